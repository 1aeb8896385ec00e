"""Loading: the functions of the user's that a host was started for."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import traceback
import typing
from collections.abc import Callable
from typing import Any

from .errors import Invalid
from .plain import words


def code_changed_at(spelled: str) -> float | None:
    """Return when the file of a function's module was last changed, in seconds since 1970; None if it has no file.

    It is to be asked before the module is imported: a change meanwhile must not be taken for the code that runs.
    """
    module = spelled.partition(":")[0]
    parent = module.rpartition(".")[0]
    if parent:
        # As the import of the module does. Its errors are those of that.
        importlib.import_module(parent)
    try:
        spec = importlib.util.find_spec(module)
        in_file = spec is not None and spec.has_location
        return max(0.0, os.stat(str(typing.cast("Any", spec).origin)).st_mtime) if in_file else None
    except (ImportError, OSError, ValueError):
        return None


def imported(spelled: str) -> Callable[..., Any]:
    """Import a function by its spelling, ``module:function``."""
    found = named(spelled)
    if not callable(found):
        raise Invalid(f"{spelled} is not a function", got=type(found).__name__)
    return typing.cast("Callable[..., Any]", found)


def named(spelled: str) -> Any:
    """Import whatever has this spelling."""
    module, _, name = spelled.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling `function` returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may have an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def why_broken(spelled: str, error: BaseException) -> str:
    """Return why the agent cannot be loaded: the error, and the last line of code that it came from."""
    ours = (os.path.dirname(__file__) + os.sep, str(importlib.__file__), "<frozen")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{words(error)}{where}, when {spelled} was loaded"
