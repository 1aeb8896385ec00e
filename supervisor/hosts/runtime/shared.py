"""Files that the daemon's process has too, and that need no other library than the standard one."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 3, "actors", "plugin")


def load(name: str) -> Any:
    """Return the module of a file in `actors/plugin/`, loaded once."""
    # Not by its package, which needs libraries that an agent's interpreter may not have.
    known = sys.modules.get(f"{__package__}.shared_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"{__package__}.shared_{name}", os.path.join(FOLDER, f"{name}.py"))
    assert spec is not None, "it is a file of Python's"
    assert spec.loader is not None, "it is a file of Python's"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
