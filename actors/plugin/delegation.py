"""Delegation: a call whose work is a run of another agent, in a session of its own.

The call brings its tool along, as a gated function does (`Foreign`). Once its cell is started it asks for the child
run, as a tool asks for a process. It has its result when the child run is closed; the part of the child run ends with
the child's receipt. What ends the child run alone ends the call too, as interrupted, for the same cause: the session
decides that, and cancels the call.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, Final

from msgspec import Struct

from actors.errors import Invalid
from actors.gate.token import CancelToken
from actors.messages import ChildReport, ToolResult
from actors.model import Json, JsonObject, Outcome
from actors.plugin.child import Child
from actors.plugin.foreign import Finish, Foreign
from actors.plugin.spawning import Spawn
from actors.ports import ChildSpec
from actors.requests import SESSION_NAME_MAX_CHARS, checked_session
from actors.run_status import RunStatus
from actors.text import shown, storable

DELEGATE: Final = "delegate"
"""What the call is called in the log, and in the thread."""


class Delegated(Struct, frozen=True):
    """What came of `turn.delegate`.

    session, run_id: of the child run; empty: it was not asked for.
    status: of the child run, which may still be ending; None: it did not begin, or goes on.
    outcome: of the call. ``finished``: the child run came to an end of its own, or was refused. ``interrupted``: it was
        ended. ``not_started``: the call was refused.
    content: its text: the last message with one. What it failed with, why it was refused, or who ended it.
    is_error: True of all but a completed run.
    result: what its agent returned.
    """

    session: str
    run_id: str
    status: RunStatus | None
    outcome: Outcome
    content: str
    is_error: bool = False
    result: Json = None


class Delegation:
    """One delegation: the tool that the call brings along, and what came of it.

    Args:
        agent: the name of the agent.
        message: for it.
        session: where it runs; None: in a session of its own.
        traceparent: the span of the run that delegates.

    Raises:
        Invalid: one of them cannot be used.
    """

    def __init__(self, agent: object, message: object, session: object, traceparent: str | None) -> None:
        self.agent = _text("the agent", agent, "its name", SESSION_NAME_MAX_CHARS)
        self.message = _text("the message", message, "a text")
        self.session = None if session is None else checked_session(session)
        self._traceparent = traceparent
        self._child: Child | None = None

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call, in the log."""
        given: JsonObject = {"agent": self.agent, "message": self.message}
        return given if self.session is None else {**given, "session": self.session}

    @property
    def foreign(self) -> Foreign:
        """The tool that the call brings along."""
        return Foreign(DELEGATE, self._execute, child=self.agent)

    def _execute(self, _: str, __: JsonObject, token: CancelToken, spawn: Spawn, finish: Finish) -> None:
        spec = ChildSpec(self.agent, self.message, self.session or "", token, self._traceparent)
        self._child = spawn.child(spec)
        self._child.closed.add_done_callback(lambda closed: finish(_finished(closed)))

    def outcome(self, result: ToolResult) -> Delegated:
        """Return what came of it; `result` is what the thread has."""
        child = self._child
        report = None if child is None else child.report
        status = None if report is None else report.status
        return Delegated(
            session="" if child is None else child._session,
            run_id="" if child is None else child._id,
            status=RunStatus.CANCELLED if status is RunStatus.CANCELLING else status,
            outcome=result.outcome,
            content=result.content,
            is_error=result.is_error,
            result=None if report is None else report.result,
        )


def _finished(closed: Future[ChildReport]) -> Any:
    """Return the end of the call: a result, or the exception that ended the wait."""
    if closed.cancelled():
        return asyncio.CancelledError()
    error = closed.exception()
    if error is not None:
        return error
    report = closed.result()
    if report.status is None:
        return ToolResult(Outcome.FINISHED, f"Not started: {report.error}", is_error=True)
    if report.status is RunStatus.COMPLETED:
        return ToolResult(Outcome.FINISHED, report.content)
    said = f"\n\nIt had said:\n{report.content}" if report.content else ""
    return ToolResult(Outcome.FINISHED, f"The agent failed: {report.error}{said}", is_error=True)


def _text(what: str, value: object, expected: str, max_chars: int | None = None) -> str:
    if not isinstance(value, str) or not value.strip() or (max_chars is not None and len(value) > max_chars):
        raise Invalid(
            f"{what} of a delegation is not usable",
            expected=expected if max_chars is None else f"{expected}, at most {max_chars} characters",
            got=shown(value),
            remedy='turn.delegate("researcher", "Find the figures.")',
        )
    return storable(value)
