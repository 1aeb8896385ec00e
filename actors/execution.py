"""How a call is executed: the cell is passed, the function runs, the cell takes its result.

This runs on the executor, not in a mailbox. Between any two lines of it a fence may shut the cell; then
`start` or `finish` says so, and what it brought is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.cancel import CancelToken, Cell
from actors.errors import RunCancelled
from actors.messages import CallEnded, ExecutionEnded, ToolResult
from actors.model import Address, How, Outcome
from actors.plugins import Tool
from actors.spawning import AsyncSpawn, Spawn
from actors.text import storable_json


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of an execution: `late` says that the cell was shut before the result was there."""

    how: How
    result: ToolResult | None
    late: bool


NOT_STARTED = Executed(How.NOT_STARTED, None, late=False)


def body(
    tool: Tool,
    arguments: dict[str, Any],
    address: Address,
    cell: Cell[ToolResult],
    token: CancelToken,
    spawn: Spawn,
    started: Callable[[], None],
) -> Callable[[], Any]:
    """Return what the executor runs for a call: a function, or one that gives a coroutine, by the isolation."""
    if tool.isolation == "task":
        given: dict[str, Any] = {"token": token.aio, "spawn": AsyncSpawn(spawn), "fence": address.fence}
    else:
        given = {"token": token, "spawn": spawn, "fence": address.fence}
    extra = {name: given[kind] for name, kind in tool.given.items()}

    async def as_task() -> Executed:
        if not cell.start():
            return NOT_STARTED
        started()
        try:
            value = await tool.function(**tool.convert(arguments), **extra)
        except BaseException as error:  # noqa: BLE001  # every way out gives the cell its word
            return _raised(cell, error)
        return _returned(cell, value)

    def as_thread() -> Executed:
        if not cell.start():
            return NOT_STARTED
        started()
        try:
            value = tool.function(**tool.convert(arguments), **extra)
        except BaseException as error:  # noqa: BLE001  # every way out gives the cell its word
            return _raised(cell, error)
        return _returned(cell, value)

    return as_task if tool.isolation == "task" else as_thread


def call_ended(address: Address, ended: ExecutionEnded) -> CallEnded:
    """Say, in the protocol's words, what the executor said of a call's execution."""
    executed = ended.value
    if isinstance(executed, Executed):
        return CallEnded(address, executed.how, ended.at, executed.result, executed.late)
    # It did not come to its own word: it could not be started, or it was cancelled before its first line.
    return CallEnded(address, How.RAISED, ended.at, None, note=ended.error or "")


def _returned(cell: Cell[ToolResult], value: object) -> Executed:
    result = as_result(value)
    if cell.finish(result):
        return Executed(How.RETURNED, result, late=False)
    return Executed(How.RETURNED, None, late=True)


def _raised(cell: Cell[ToolResult], error: BaseException) -> Executed:
    result = ToolResult(Outcome.FINISHED, f"{type(error).__name__}: {error}", is_error=True)
    if cell.finish(result):
        return Executed(How.RAISED, result, late=False)
    # A tool that gave up because it was cancelled brings nothing late; one that failed by itself does.
    cancelled = isinstance(error, RunCancelled | asyncio.CancelledError)
    return Executed(How.RAISED, None, late=not cancelled)


def as_result(value: object) -> ToolResult:
    """Turn what a tool returned into its result: a text as it is, anything else as JSON."""
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult(Outcome.FINISHED, "")
    if isinstance(value, str):
        return ToolResult(Outcome.FINISHED, value)
    return ToolResult(Outcome.FINISHED, msgspec.json.encode(storable_json(value)).decode())
