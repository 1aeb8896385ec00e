"""HostCalls: the calls that a host asks for, and those that it executes itself.

Theory of operation. Every call goes through the gate, wherever its function is: the session records it, permits it and
closes it. For a tool of the host the call brings a `Foreign` along. The daemon moves the call's cell to *started* and
only then calls `Foreign.execute`, which writes `execute` (W4). A call that is started at the fence is interrupted, even
if the host had not begun it; a call whose `execute` is unsent at the cancel is withdrawn, and never begins.

Such an execution ends with the host's answer to `execute`, or with the host's process, which has its code. A cancel
does not change that: code that goes on is running, and the receipt must not say otherwise.

The check of a call's arguments may be code of a tool. It runs on another thread, and the channel is paused meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from actors.errors import CountermandError, Invalid, RunCancelled, described
from actors.messages import ToolResult
from actors.model import Json, JsonObject, Mode, Outcome, Where
from actors.plugin.foreign import Finish, Foreign
from actors.text import cut, storable
from supervisor.hosts import frames, lines
from supervisor.hosts.frames import CANCEL_REQUEST
from supervisor.hosts.lines import Answer, Code, NotAFrame, Request

if TYPE_CHECKING:
    from actors.gate.token import CancelToken
    from actors.plugin.delegation import Delegation
    from actors.plugin.spawning import Spawn
    from actors.plugin.turn_core import PreparedCall, TurnCore
    from supervisor.hosts.account import Account
    from supervisor.hosts.around import Around, Terms
    from supervisor.hosts.channel import Unsent
    from supervisor.hosts.late import LateFrames
    from supervisor.hosts.peer import Peer

CUT_BYTES: Final = 262_144
"""If a result does not fit into a line with all its escapes, so much of its text is sent, and no data."""


class HostFailed(Exception):  # it names what happened
    """A call was executed by a host, which has ended."""


@dataclass(slots=True)
class _Execution:
    """A call that the host executes."""

    fence: str
    token: CancelToken
    spawn: Spawn
    finish: Finish
    frame: Unsent
    forget: Callable[[], None]
    withdrawn: bool = False


class HostCalls:
    """The calls of one run. Thread of all channels only.

    Args:
        turn: the run's turn.
        terms: the limits of the run.
        around: see there.
        peer: the host.
        account: of the run.
        late: of the run.
    """

    def __init__(
        self, turn: TurnCore, terms: Terms, around: Around, peer: Peer, account: Account, late: LateFrames
    ) -> None:
        self._turn = turn
        self._terms = terms
        self._around = around
        self._peer = peer
        self._account = account
        self._late = late
        self._ids: dict[int, str] = {}
        self._delegations: dict[int, Delegation] = {}
        self._executing: dict[int, _Execution] = {}
        self._gone: HostFailed | None = None

    # ── What the host asks for ────────────────────────────────────────────────────────────────────

    def requested(self, request: Request, call: frames.Call, answer: str | None) -> None:
        """Ask the session for a call. The request is answered when the call has its result.

        `answer`: the id of the model's answer that it is a part of.
        """
        if self._turn.token.provenance is not None:
            self._refuse(request, RunCancelled(self._turn.token.provenance))
        elif call.where == "host":
            foreign = self._foreign(request.id, call)
            self._ask(request, self._check(call, foreign, answer))
        else:
            self._account.hold()
            self._around.elsewhere(lambda: self._check_elsewhere(request, call, answer))

    def asked(self, request: Request, ask: frames.Ask) -> None:
        """Ask a person. The request is answered when the question has its result."""
        try:
            prepared: PreparedCall | BaseException = self._turn.prepare_question(ask.question, ask.options)
        except (CountermandError, RunCancelled) as error:
            prepared = error
        self._ask(request, prepared)

    def delegated(self, request: Request, delegate: frames.Delegate) -> None:
        """Have another agent answer a message. The request is answered when the call has its result."""
        try:
            delegation, prepared = self._turn.prepare_delegation(delegate.agent, delegate.message, delegate.session)
        except (CountermandError, RunCancelled) as error:
            self._refuse(request, error)
            return
        self._delegations[request.id] = delegation
        self._ask(request, prepared)

    def _check_elsewhere(self, request: Request, call: frames.Call, answer: str | None) -> None:
        """Check a call; on another thread."""
        prepared = self._check(call, None, answer)
        self._around.post(lambda: self._account.go_on(lambda: self._ask(request, prepared)))

    def _check(self, call: frames.Call, foreign: Foreign | None, answer: str | None) -> PreparedCall | BaseException:
        try:
            where = Where.DAEMON if foreign is None else Where.HOST
            prepared = self._turn.prepare_named(
                call.tool,
                call.arguments,
                foreign,
                call.provider_id,
                where,
                ask=call.ask,
                begun=call.begun,
                schema=call.schema,
                secret=call.secret,
            )
            return prepared._replace(answer=answer)
        except BaseException as error:  # noqa: BLE001  # the check may be foreign code; the host gets the error
            return error

    def _ask(self, request: Request, prepared: PreparedCall | BaseException) -> None:
        if isinstance(prepared, BaseException):
            self._refuse(request, prepared)
        else:
            # The cost of the line is given back when the call is on record.
            priced = prepared._replace(size=request.size)
            self._account.spend(request.size, lambda: self._request(request, priced))

    def _request(self, request: Request, prepared: PreparedCall) -> None:
        try:
            call_id, reply = self._turn.request_call(prepared)
        except RunCancelled as error:
            self._refuse(request, error)
            return
        self._ids[request.id] = call_id
        reply.add_done_callback(lambda done: self._around.post(lambda: self._replied(request, call_id, done)))

    def _replied(self, request: Request, call_id: str, reply: Future[ToolResult]) -> None:
        self._ids.pop(request.id, None)
        delegation = self._delegations.pop(request.id, None)
        error = reply.exception()
        if error is not None:
            refuse(self._peer, request, error)
            return
        result = reply.result()
        done = frames.CallDone(
            call=call_id,
            outcome=result.outcome,
            content=result.content,
            is_error=result.is_error,
            data=result.data,
            parts=result.media or UNSET,
        )
        self._peer.answer(request.id, _fitting(done if delegation is None else _delegated(done, delegation, result)))

    def _refuse(self, request: Request, error: BaseException) -> None:
        self._delegations.pop(request.id, None)
        if isinstance(error, RunCancelled):
            self._late.note("call")
        else:
            self._account.give_back(request.size)
        refuse(self._peer, request, error)

    def give_up(self, request_id: int) -> None:
        """End a call that the host no longer waits for. One that has its result already is not affected.

        It is reported once: this costs no credit, and a host could say it again and again.
        """
        call_id = self._ids.pop(request_id, None)
        if call_id is not None:
            self._turn.say_given_up(call_id)

    # ── What the host executes ────────────────────────────────────────────────────────────────────

    @property
    def executing(self) -> bool:
        """True while the host executes a call."""
        return bool(self._executing)

    def token(self, fence: str) -> CancelToken | None:
        """Return the token of a call that the host executes, by the call's fence; None if there is no such call."""
        return next((one.token for one in self._executing.values() if one.fence == fence), None)

    def spawn(self, fence: str) -> Spawn | None:
        """Return the Spawn of a call that the host executes, by the call's fence; None if there is no such call."""
        return next((one.spawn for one in self._executing.values() if one.fence == fence), None)

    def _foreign(self, of: int, call: frames.Call) -> Foreign:
        deadline_s = call.deadline_s or self._terms.call_deadline_s

        def execute(fence: str, _: JsonObject, token: CancelToken, spawn: Spawn, finish: Finish) -> None:
            if not self._around.post(lambda: self._execute(of, fence, deadline_s, token, spawn, finish)):
                finish(HostFailed("the supervisor has shut down"))

        return Foreign(storable(call.tool), execute, call.deadline_s)

    def _execute(
        self, of: int, fence: str, deadline_s: float | None, token: CancelToken, spawn: Spawn, finish: Finish
    ) -> None:
        """Tell the host to execute a call: its cell is started."""
        if token.provenance is not None:
            # An `execute` that is not written never begins.
            finish(RunCancelled(token.provenance))
            return
        if self._gone is not None or self._peer.channel.closed:
            finish(self._gone or HostFailed("the channel of its host is closed"))
            return
        call_id = fence.rsplit(":", 1)[-1]
        params = frames.Execute(fence=fence, call=call_id, of=of, deadline_s=deadline_s)
        number, frame = self._peer.request("execute", params, lambda answer: self._executed(number, answer))
        forget = token.add_waker(lambda: self._post(lambda: self._cancel_one(number)))
        self._executing[number] = _Execution(fence, token, spawn, finish, frame, forget)

    def _executed(self, number: int, answer: Answer) -> None:
        """Handle the host's answer to `execute`: the code of the call has ended."""
        execution = self._executing.pop(number)
        execution.forget()
        try:
            result = self._result(answer, execution.token)
        except NotAFrame as error:
            execution.finish(HostFailed(f"its answer does not fit: {error}"))
            self._around.broke_protocol(f"its answer to execute does not fit: {error}")
            return
        execution.finish(result)

    @staticmethod
    def _result(answer: Answer, token: CancelToken) -> ToolResult | BaseException:
        if answer.error is None:
            done = frames.converted(answer.result, frames.Executed)
            try:
                files = [one.file() for one in done.files]
            except Invalid as error:
                raise NotAFrame(str(error)) from error
            return ToolResult(Outcome.FINISHED, done.content, done.is_error, done.data, parts=tuple(files))
        if answer.error.code != Code.CANCELLED:
            return ToolResult(Outcome.FINISHED, raised(answer.error), is_error=True)
        if token.provenance is not None:
            return RunCancelled(token.provenance)
        return asyncio.CancelledError(storable(answer.error.message))

    def _post(self, call: Callable[[], None]) -> None:
        self._around.post(call)

    def _cancel_one(self, number: int) -> None:
        """Handle the cancel of a call's token: by its run, by its deadline, or because the host gave it up."""
        execution = self._executing.get(number)
        if execution is None:
            return
        self._withdraw(number, execution)
        if execution.withdrawn:
            assert execution.token.provenance is not None, "it is cancelled"
            del self._executing[number]
            execution.finish(RunCancelled(execution.token.provenance))
        else:
            cancel = cancel_of(number, execution.fence, execution.token, self._terms.grace_s)
            self._peer.notify_first(CANCEL_REQUEST, cancel, execution.frame)

    def withdraw(self) -> None:
        """Withdraw each `execute` of which nothing was written: the run is cancelled. Each call's cancel follows."""
        for number, execution in self._executing.items():
            self._withdraw(number, execution)

    def _withdraw(self, number: int, execution: _Execution) -> None:
        execution.withdrawn = execution.withdrawn or self._peer.take_back(number, execution.frame)

    def host_gone(self, why: str) -> None:
        """End all calls that the host executed: its process has ended, and with it their code."""
        self._gone = HostFailed(why)
        executing, self._executing = self._executing, {}
        for execution in executing.values():
            execution.forget()
            execution.finish(self._gone)


def _delegated(done: frames.CallDone, delegation: Delegation, result: ToolResult) -> frames.Delegated:
    """Return what came of a delegation."""
    came = delegation.outcome(result)
    return frames.Delegated(
        call=done.call,
        outcome=done.outcome,
        content=done.content,
        is_error=done.is_error,
        data=came.result,
        session=came.session,
        run=came.run_id,
        status=came.status,
    )


def refuse(peer: Peer, request: Request, error: BaseException) -> None:
    """Answer a request with an error: the run has ended, or the request is refused."""
    if isinstance(error, RunCancelled):
        data = {"provenance": msgspec.to_builtins(error.provenance)}
        peer.refuse(request.id, Code.CANCELLED, str(error), data)
    elif isinstance(error, CountermandError):
        peer.refuse(request.id, Code.REFUSED, error.message, error.as_json())
    else:
        named: Json = {"type": type(error).__name__, "message": storable(str(error))}
        peer.refuse(request.id, Code.RAISED, storable(described(error)), named)


def cancel_of(number: int, fence: str, token: CancelToken, grace_s: float) -> frames.Cancel:
    """Return the cancel of a `run` or an `execute`, whose token is cancelled."""
    why = token.provenance
    assert why is not None, "a token that is cancelled has a provenance"
    left_s = 0.0 if why.mode is Mode.IMMEDIATE else grace_s
    return frames.Cancel(request_id=number, fence=fence, why=why, mode=why.mode, grace_s=left_s)


def raised(error: lines.ErrorObject) -> str:
    """Return the text of an error that a host reports: its class and text, if it has both."""
    data = error.data if isinstance(error.data, dict) else {}
    kind, message = data.get("type"), data.get("message")
    if isinstance(kind, str) and isinstance(message, str):
        return storable(f"{kind}: {message}")
    return storable(error.message) or f"an error with the code {error.code}"


def _fitting(done: frames.CallDone) -> frames.CallDone:
    """Return a result that fits into a line. Each character of a text may need six bytes there."""
    size = len(done.content) + len(msgspec.json.encode(done.data))
    if size <= lines.LINE_MAX_BYTES // 8 or len(msgspec.json.encode(done)) <= lines.LINE_MAX_BYTES - 1024:
        return done
    return msgspec.structs.replace(done, content=cut(done.content, CUT_BYTES), data=None)
