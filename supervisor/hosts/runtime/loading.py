"""Loading: the functions of the user's that a host was started for."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable
from typing import Any

from .errors import CountermandError, Invalid
from .plain import words

PACKAGES = {
    "agents": "openai-agents",
    "anthropic": "anthropic",
    "claude_agent_sdk": "claude-agent-sdk",
    "httpx2": "mcp",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "openai": "openai",
    "pydantic_ai": "pydantic-ai",
    "smolagents": "smolagents",
}
"""The modules that adapters and models need, each with the package to install for it."""


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
    """Return why the agent cannot be loaded: the error, and the last line of the user's code that it came from."""
    frames = _frames_of_the_user(error)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = words(error)
    said = text.partition(": ")[2]
    if isinstance(error, ModuleNotFoundError) and error.name:
        return str(_not_installed(f"{said}{where}, when {spelled} was loaded", error.name, spelled))
    return said if says_all(error) else f"{text}{where}, when {spelled} was loaded"


def says_all(error: BaseException) -> bool:
    """Return True if a traceback would add nothing to an error: the runtime refused something, in code of its own."""
    return isinstance(error, CountermandError) and not _frames_of_the_user(error)


def lacks_a_package(error: BaseException) -> bool:
    """Return True if a module is not installed; a package may say in an error of its own what it needs."""
    return isinstance(error, ImportError) and isinstance(error.__cause__ or error, ModuleNotFoundError)


def _not_installed(what: str, module: str, spelled: str) -> Invalid:
    top = module.partition(".")[0]
    if top == spelled.partition(":")[0].partition(".")[0]:
        return Invalid(
            what, expected="it in a directory of the key 'path'", remedy="name the directory in which it is in that key"
        )
    package = PACKAGES.get(top)
    install = f"{sys.executable} -m pip install {package}" if package else "install the package that has it"
    return Invalid(
        what,
        expected=f"it to be installed for {sys.executable}, or in a directory of the key 'path'",
        remedy=f"{install}, or name an interpreter that has it in the key 'python'",
    )


def _frames_of_the_user(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (os.path.dirname(__file__) + os.sep, str(importlib.__file__), "<frozen")
    return [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
