"""TLS: asyncio imports it, and in most spares nothing uses it. So it is imported when something first does.

That saves 1.5 MB of memory a spare, and its start a tenth of its time. Only asyncio's own names for the two modules are
stand-ins: whoever imports `ssl` gets that module. A stand-in imports its module with Python's own `import`, and so
under the locks of that. It is of no effect where asyncio was imported before.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

NAMES = ("ssl", "asyncio.sslproto")


class StandIn(types.ModuleType):
    """Stands in for a module, which it imports at the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module."""
        return getattr(_module(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module."""
        setattr(_module(self), name, value)

    def __dir__(self) -> list[str]:
        """Return the names of the module."""
        return dir(_module(self))


def _module(stand_in: types.ModuleType) -> types.ModuleType:
    name = stand_in.__name__
    if sys.modules.get(name) is stand_in:
        # Asyncio is being imported, and uses it at once.
        del sys.modules[name]
    return importlib.import_module(name)


def _import_asyncio() -> None:
    if "asyncio" in sys.modules or importlib.util.find_spec("_ssl") is None:
        return
    stand_ins = {name: StandIn(name) for name in NAMES if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("asyncio")
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
    for name, stand_in in stand_ins.items():
        package, _, own = name.rpartition(".")
        # As the import of a submodule does; that of the module itself will put it there too.
        if package and not hasattr(sys.modules[package], own):
            setattr(sys.modules[package], own, stand_in)


_import_asyncio()
