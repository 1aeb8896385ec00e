"""What runs in the process of a tool with the isolation ``process``: a host whose agent is that one tool.

It is loaded by the runtime of hosts (`countermand`), in the interpreter of the supervisor. The tool and its arguments
are converted as in the supervisor's own process, by the same code. The run of such a host is the call: its
one input has the arguments, and its cancel is the call's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from actors.errors import Invalid, described
from actors.messages import ToolResult
from actors.plugin import registration
from actors.plugin.execution import as_result
from actors.plugin.registration import Tool
from actors.secrets import NOTHING
from actors.text import cut

TOOL: Final = "COUNTERMAND_TOOL"
"""The variable with the spelling of the tool, ``module:function``."""

KINDS: Final = {
    "CancelToken": "token",
    "AsyncCancelToken": "token",
    "Spawn": "spawn",
    "AsyncSpawn": "spawn",
    "Emit": "emit",
    "AsyncEmit": "emit",
}
"""The classes of the runtime that name what a tool is given."""

_loaded: list[Tool] = []


def prepare() -> None:
    """Load the tool; the runtime calls this before it says hello, and tells the supervisor if it fails."""
    # The stub that code imports from here is the runtime itself, and its classes are named in signatures.
    runtime: Any = sys.modules.get("countermand")
    if runtime is not None:
        for theirs, kind in KINDS.items():
            registration._GIVEN[getattr(runtime, theirs)] = kind
    _loaded.append(Tool(_function(os.environ.pop(TOOL)), isolation="process"))


def _function(spelled: str) -> Callable[..., Any]:
    module, _, within = spelled.partition(":")
    found: Any = importlib.import_module(module)
    for part in within.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


async def as_task(turn: Any) -> dict[str, Any]:
    """Execute a call of an async tool."""
    arguments, max_bytes = _asked(turn)
    (tool,) = _loaded
    with _secrets_hidden(tool, arguments, turn):
        return _bounded(await tool.function(**tool.convert(arguments), **_given(tool, turn)), max_bytes)


def as_thread(turn: Any) -> dict[str, Any]:
    """Execute a call of a plain tool, on the main thread: RunCancelled interrupts it where it blocks."""
    arguments, max_bytes = _asked(turn)
    (tool,) = _loaded
    with _secrets_hidden(tool, arguments, turn):
        value = tool.function(**tool.convert(arguments), **_given(tool, turn))
        if inspect.isawaitable(value):
            raise TypeError(f"the tool {tool.name!r} returned something to await: declare it with 'async def'")
        return _bounded(value, max_bytes)


@contextlib.contextmanager
def _secrets_hidden(tool: Tool, arguments: dict[str, Any], turn: Any) -> Iterator[None]:
    """Raise an error of the tool without the call's secrets: its traceback is printed, and output is stored."""
    _, secrets = tool.withheld(arguments)
    try:
        yield
    except BaseException as error:
        if secrets is NOTHING or (isinstance(error, asyncio.CancelledError) and turn.cancel_token.cancelled):
            raise
        name, _, text = str(secrets.hidden_in(described(error))).partition(": ")
        # Not the error itself, whose causes and notes may have them too.
        shown = type(name, (Exception,), {"__module__": type(error).__module__})(text)
        raise shown.with_traceback(error.__traceback__) from None


def _asked(turn: Any) -> tuple[dict[str, Any], int]:
    asked = json.loads(turn.inputs[0].content)
    return asked["arguments"], asked["max_bytes"]


def _given(tool: Tool, turn: Any) -> Mapping[str, Any]:
    given = {"token": turn.cancel_token, "spawn": turn.spawn, "emit": _emit(turn), "fence": turn.address.fence}
    return {name: given[kind] for name, kind in tool.given.items()}


def _emit(turn: Any) -> Any:
    """Return what the tool says by: here the run is the call, so it is what an agent says by."""
    emit: Any = functools.partial(turn.emit)
    emit.progress = turn.progress
    return emit


def _bounded(value: Any, max_bytes: int) -> dict[str, Any]:
    """Return a result as JSON of at most `max_bytes`, which the supervisor takes as one value."""
    if type(value).__name__ == "ToolResult" and not isinstance(value, ToolResult):
        # That of the runtime has the same fields.
        value = ToolResult(value.outcome, value.content, value.is_error, value.data, parts=value.parts)
    result = as_result(value, max_bytes)
    if result.parts:
        raise Invalid(
            "a tool in a process of its own cannot return files",
            expected="a text, or plain JSON",
            got=f"{len(result.parts)} files",
            remedy="declare the tool with isolation='thread' or 'task', or write the files and say their names",
        )
    said = {"content": result.content, "is_error": result.is_error, "data": result.data}
    room = max_bytes
    while len(msgspec.json.encode(said)) > max_bytes:
        room //= 2
        said = {"content": cut(result.content, room), "is_error": result.is_error, "data": None}
    return said
