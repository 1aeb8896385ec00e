"""Plug-ins: agents and tools that run in the daemon's own process, imported by their spelling."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from actors.errors import CountermandError, Invalid, described
from actors.plugin.registration import Plugins, Unloaded


def plug_in_agent(spelled: str) -> Any:
    """Load an agent; see `_plug_in`."""
    return _plug_in(spelled, lambda agent: Plugins({"it": agent}, ()))


def plug_in_tool(spelled: str) -> Any:
    """Load a tool; see `_plug_in`."""
    return _plug_in(spelled, lambda tool: Plugins({}, (tool,)))


def _plug_in(spelled: str, check: Callable[[Any], object]) -> Any:
    """Load an agent or a tool. If it cannot be loaded, return an `Unloaded`; its error is reported when it is used."""
    try:
        value = load(spelled)
        check(value)
    except CountermandError as error:
        if ":" not in spelled:
            # The mistake is in the configuration, not in the named module.
            raise
        return Unloaded(spelled, error)
    return value


def load(spelled: str) -> Any:
    """Import the object that ``module:name`` names.

    Raises:
        Invalid: there is no such module or name, or importing it failed.
    """
    module, colon, name = spelled.partition(":")
    try:
        if not colon:
            raise ImportError("there is no ':' in it")
        # Find modules that were installed since the last attempt.
        importlib.invalidate_caches()
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise Invalid(
            f"{spelled!r} cannot be imported",
            expected="module:name, of a module that Python can find",
            got=described(error) + (f", for {sys.executable}" if isinstance(error, ModuleNotFoundError) else ""),
            remedy="install the package into this environment, or set PYTHONPATH",
        ) from error
    return value
