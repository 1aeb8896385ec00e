"""Files that the daemon's process has too, and that need no other library than the standard one."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from typing import Any

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 3, "actors", "plugin")


# Reentrant: the garbage collector may run code that loads.
_LOCK = threading.RLock()


def load(name: str) -> Any:
    """Return the module of a file in `actors/plugin/`, loaded once. Any thread."""
    # Not by its package, which needs libraries that an agent's interpreter may not have.
    full = f"{__package__}.shared_{name}"
    with _LOCK:
        known = sys.modules.get(full)
        if known is not None:
            return known
        spec = importlib.util.spec_from_file_location(full, os.path.join(FOLDER, f"{name}.py"))
        assert spec is not None, "it is a file of Python's"
        assert spec.loader is not None, "it is a file of Python's"
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            # The next call tries again.
            del sys.modules[spec.name]
            raise
        return module
