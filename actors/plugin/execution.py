"""Executes agents and calls: runs the function, and converts its result or exception to plain data.

This runs on the executor, not in a mailbox. The result or exception of a function is a foreign object, whose methods
may do anything. So it is converted here, once, and cut to its limit; actors only see exact texts and plain JSON.

A call has to pass its cell first, and the cell receives its result. A fence may close the cell between any two lines;
then `start` or `finish` returns False, and the result is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from actors.attachments import File, made_files
from actors.errors import NO_TEXT, Invalid, described
from actors.gate.cell import Cell, CellState
from actors.gate.token import CancelToken
from actors.kernel.log_context import name_task, named
from actors.messages import CallEnded, ExecutionEnded, RunFinished, ToolResult
from actors.model import Address, How, Isolation, Json, JsonObject, Outcome
from actors.plugin.emitting import AsyncEmit, Emit
from actors.plugin.foreign import Finish, Foreign, GatedTask, check_has_run
from actors.plugin.registration import Tool
from actors.plugin.spawning import AsyncSpawn, Spawn
from actors.secrets import NOTHING, Withheld
from actors.text import cut, storable, storable_json

ERROR_MAX_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class AgentDone:
    """The end of an agent: `result` is plain JSON, `error` a text."""

    how: How
    result: Json
    error: str | None


@dataclass(frozen=True, slots=True)
class Executed:
    """The end of a call's execution. `late`: the cell was closed before there was a result."""

    how: How
    result: ToolResult | None
    late: bool


NOT_STARTED = Executed(How.NOT_STARTED, None, late=False)


def body(
    tool: Tool | GatedTask[Any],
    arguments: JsonObject,
    address: Address,
    cell: Cell[ToolResult],
    token: CancelToken,
    spawn: Spawn,
    emit: Emit,
    started: Callable[[], None],
    max_bytes: int,
    within: Callable[[Callable[[], Any]], Callable[[], Any]],
) -> Callable[[], Any]:
    """Return the function that the executor runs for a call: a plain one, or one that returns a coroutine.

    `within` attributes what the tool's code starts. It wraps only that code: a call whose cell was closed first has
    ended before its execution has, so that execution may not report anything new to its run.
    """
    if tool.isolation is Isolation.TASK:
        given: dict[str, Any] = {"token": token.aio, "spawn": AsyncSpawn(spawn), "emit": AsyncEmit(emit)}
    else:
        given = {"token": token, "spawn": spawn, "emit": emit}
    given["fence"] = address.fence
    extra = {name: given[kind] for name, kind in tool.given.items()}
    _, secrets = tool.withheld(arguments)

    async def as_task() -> Executed:
        name_task(address.log_context)
        token.note_own_task()
        try:
            result = as_result(await tool.function(**tool.convert(arguments), **extra), max_bytes)
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the cell records the outcome
            return _raised(cell, error, secrets, token)
        finally:
            spawn.over()
        return _returned(cell, _without(secrets, result))

    def as_thread() -> Executed:
        try:
            with named(address.log_context):
                result = as_result(tool.function(**tool.convert(arguments), **extra), max_bytes)
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the cell records the outcome
            return _raised(cell, error, secrets, token)
        finally:
            spawn.over()
        return _returned(cell, _without(secrets, result))

    code = within(as_task if tool.isolation is Isolation.TASK else as_thread)

    def pass_cell() -> bool:
        if not cell.start():
            return False
        started()
        return True

    async def task() -> Executed:
        return await code() if pass_cell() else NOT_STARTED

    def thread() -> Executed:
        return code() if pass_cell() else NOT_STARTED

    return task if tool.isolation is Isolation.TASK else thread


def foreign_body(
    tool: Foreign,
    arguments: JsonObject,
    address: Address,
    cell: Cell[ToolResult],
    token: CancelToken,
    spawn: Spawn,
    started: Callable[[], None],
    max_bytes: int,
) -> Callable[[Finish], None]:
    """Return the function that the executor calls for a call that a `Foreign` executes.

    The value that it finishes with is converted on the thread that finishes.
    """

    def ended(value: object) -> Executed:
        if not isinstance(value, BaseException):
            try:
                return _returned(cell, as_result(value, max_bytes))
            except BaseException as error:  # noqa: BLE001  # a foreign object may do anything in its methods
                value = error
        return _raised(cell, value, NOTHING, token)

    def host(finish: Finish) -> None:
        if not cell.start():
            finish(NOT_STARTED)
            return
        started()
        try:
            tool.execute(address.fence, arguments, token, spawn, lambda value: finish(ended(value)))
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the cell records the outcome
            finish(ended(error))

    return host


def process_body(
    cell: Cell[ToolResult],
    token: CancelToken,
    secrets: Withheld,
    begin: Callable[[Callable[[AgentDone], None]], None],
    started: Callable[[], None],
) -> Callable[[Finish], None]:
    """Return the function that the executor calls for a call whose tool runs in a process of its own.

    `begin` has it execute there. What is said of its end is converted on the thread that says so.
    """

    def ended(done: AgentDone) -> Executed:
        if done.how is How.RETURNED:
            return _returned(cell, _without(secrets, _said(done.result)))
        text = cut(storable(done.error or f"the tool has ended: {done.how}"), ERROR_MAX_BYTES)
        result = _without(secrets, ToolResult(Outcome.FINISHED, text, is_error=True))
        if cell.finish(result):
            return Executed(done.how, result, late=False)
        return Executed(done.how, None, late=done.how is How.RAISED and not token.cancelled)

    def host(finish: Finish) -> None:
        if not cell.start():
            finish(NOT_STARTED)
            return
        started()
        begin(lambda done: finish(ended(done)))

    return host


def _said(result: Json) -> ToolResult:
    """Return what the process of a tool says that its result is."""
    if not isinstance(result, dict):
        return ToolResult(Outcome.FINISHED, str(result))
    return ToolResult(
        Outcome.FINISHED, str(result.get("content", "")), result.get("is_error") is True, result.get("data")
    )


def agent_body(
    agent: Callable[..., Any],
    turn: object,
    address: Address,
    max_bytes: int,
    *,
    as_task: bool,
    token: CancelToken | None = None,
    over: Callable[[], None] = lambda: None,
) -> Callable[[], Any]:
    """Return the function that the executor runs for an agent: a plain one, or one that returns a coroutine.

    `over` is called when the agent's code has ended.
    """

    async def task() -> AgentDone:
        name_task(address.log_context)
        if token is not None:
            token.note_own_task()
        try:
            return AgentDone(How.RETURNED, plain(await agent(turn), max_bytes), None)
        except BaseException as error:  # noqa: BLE001  # every end of an agent is reported
            return _failed(error, token)
        finally:
            over()

    def thread() -> AgentDone:
        try:
            with named(address.log_context):
                return AgentDone(How.RETURNED, plain(agent(turn), max_bytes), None)
        except BaseException as error:  # noqa: BLE001  # every end of an agent is reported
            return _failed(error, token)
        finally:
            over()

    return task if as_task else thread


def hosted_body(run: Callable[[Callable[[AgentDone], None]], None], max_bytes: int) -> Callable[[Finish], None]:
    """Return the function that the executor calls for an agent that runs in a host: `run` tells the host.

    What the host says of its end is converted on the thread that says so.
    """

    def ended(done: AgentDone) -> AgentDone:
        error = None if done.error is None else cut(storable(done.error), ERROR_MAX_BYTES)
        return AgentDone(done.how, plain(done.result, max_bytes), error)

    return lambda finish: run(lambda done: finish(ended(done)))


def run_finished(address: Address, ended: ExecutionEnded) -> RunFinished:
    """Convert the executor's report on an agent to a RunFinished."""
    done = ended.value
    if isinstance(done, AgentDone):
        return RunFinished(address, done.how, ended.at, done.result, done.error)
    return RunFinished(address, ended.how, ended.at, error=ended.error)


def call_ended(address: Address, ended: ExecutionEnded, cell: Cell[ToolResult] | None) -> CallEnded:
    """Convert the executor's report on a call to a CallEnded.

    If the execution has no result of its own (it could not be started, or was cancelled before its first line), the
    cell says how far it came; without a cell it was closed before.
    """
    executed = ended.value
    if isinstance(executed, Executed):
        return CallEnded(address, executed.how, ended.at, executed.result, executed.late)
    how = How.NOT_STARTED if cell is not None and cell.close()[0] is CellState.VOID else ended.how
    return CallEnded(address, how, ended.at, None, note=ended.error or "")


def _failed(error: BaseException, token: CancelToken | None) -> AgentDone:
    if _was_cancelled(error, token):
        return AgentDone(How.CANCELLED, None, None)
    return AgentDone(How.RAISED, None, error_text(error))


def _was_cancelled(error: BaseException, token: CancelToken | None) -> bool:
    """Return True if code ended because it was cancelled. A CancelledError without a cancel is an error of the code."""
    return token is not None and token.cancelled and isinstance(error, asyncio.CancelledError)


def _returned(cell: Cell[ToolResult], result: ToolResult) -> Executed:
    if cell.finish(result):
        return Executed(How.RETURNED, result, late=False)
    return Executed(How.RETURNED, None, late=True)


def _without(secrets: Withheld, result: ToolResult) -> ToolResult:
    """Return the result with each of the call's secrets replaced by the mark."""
    content, data = str(secrets.hidden_in(result.content)), secrets.hidden_in(result.data)
    return msgspec.structs.replace(result, content=content, data=data)


def _raised(cell: Cell[ToolResult], error: BaseException, secrets: Withheld, token: CancelToken) -> Executed:
    how = How.CANCELLED if _was_cancelled(error, token) else How.RAISED
    result = _without(secrets, ToolResult(Outcome.FINISHED, error_text(error), is_error=True))
    if cell.finish(result):
        return Executed(how, result, late=False)
    # A tool that ended because it was cancelled has no late result; one that failed by itself has.
    return Executed(how, None, late=how is How.RAISED)


# ── Foreign objects to plain data ────────────────────────────────────────────────────────────────────


def problem(tools: Mapping[str, Tool], name: str, arguments: JsonObject) -> str | None:
    """Return why a call is invalid, or None. It runs code of the arguments' types, so not for a handler."""
    tool = tools.get(name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return f"there is no tool {name!r:.100}; there is: {known}"
    return misfit(tool, arguments)


def misfit(tool: Tool, arguments: JsonObject) -> str | None:
    """Return why arguments do not fit a tool, or None; see `problem`."""
    try:
        found = tool.check(arguments)
    except BaseException as error:  # noqa: BLE001  # a type's own check may raise anything
        found = f"the arguments of {tool.name} do not fit: {error_text(error)}"
    # The text may show a value that does not fit.
    return None if found is None else str(tool.withheld(arguments)[1].hidden_in(found))


def withheld(tools: Mapping[str, Tool], name: str, arguments: JsonObject) -> tuple[JsonObject, Withheld]:
    """Separate the secret arguments of a call. Returns the arguments to show, and the secret ones."""
    tool = tools.get(name)
    return (arguments, NOTHING) if tool is None else tool.withheld(arguments)


def error_text(error: BaseException) -> str:
    """Return an error's class and text, cut to its bound."""
    return cut(storable(described(error)), ERROR_MAX_BYTES)


def plain(value: object, max_bytes: int) -> Json:
    """Return a function's result as plain JSON. If it is larger than `max_bytes`, return the beginning of its text.

    Raises:
        Invalid: it is a coroutine or a generator, so the function's code has not run.
    """
    check_has_run(value)
    if isinstance(value, str):
        return cut(storable(value), max_bytes)
    try:
        made = storable_json(value)
        encoded = msgspec.json.encode(made)
    except BaseException:  # noqa: BLE001  # a foreign object may do anything in its methods
        return f"an object {NO_TEXT}"
    return made if len(encoded) <= max_bytes else cut(encoded.decode(), max_bytes)


def as_result(value: object, max_bytes: int) -> ToolResult:
    """Convert a tool's return value to its result: a text unchanged, a `File` as one, anything else as JSON.

    Raises:
        Invalid: it is a coroutine or a generator, or an invalid ToolResult.
        TooLarge: it has too many files, or too large ones.
    """
    if value is None:
        return ToolResult(Outcome.FINISHED, "")
    if isinstance(value, File):
        value = ToolResult(Outcome.FINISHED, "", parts=(value,))
    elif isinstance(value, list | tuple) and any(isinstance(one, File) for one in value):
        texts = "\n".join(_text(plain(one, max_bytes), max_bytes) for one in value if not isinstance(one, File))
        value = ToolResult(Outcome.FINISHED, texts, parts=[one for one in value if isinstance(one, File)])
    if not isinstance(value, ToolResult):
        return ToolResult(Outcome.FINISHED, _text(plain(value, max_bytes), max_bytes))
    content: object = value.content
    is_error: object = value.is_error
    parts: object = value.parts
    files = [one for one in parts if isinstance(one, File)] if isinstance(parts, list | tuple) else []
    if (
        value.outcome != Outcome.FINISHED
        or not isinstance(content, str)
        or not isinstance(is_error, bool)
        or not isinstance(parts, list | tuple)
        or len(files) != len(parts)
    ):
        raise Invalid(
            "the tool returned an invalid ToolResult",
            expected="the outcome 'finished', a str as content, a bool as is_error, and a list of Files as parts",
            got=f"{value.outcome!r:.80}, {type(content).__name__}, {type(is_error).__name__}, {parts!r:.80}",
            remedy="return a str, or raise to say that the call failed",
        )
    attachments, media = made_files(files)
    text, data = _text(plain(content, max_bytes), max_bytes), plain(value.data, max_bytes)
    return ToolResult(Outcome.FINISHED, text, is_error, data, parts=media, attachments=attachments)


def _text(value: Json, max_bytes: int) -> str:
    return value if isinstance(value, str) else cut(msgspec.json.encode(value).decode(), max_bytes)
