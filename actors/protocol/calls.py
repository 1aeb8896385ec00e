"""The calls of the active run: requested, granted, started, ended.

A call is accepted while its address is open (`SessionState.open_run`). A granted call is on record, with its cell, its
token and its part, before its permit leaves (after the commit). Each call gets one result in the log (`end`).

The calls of one answer of a model are one batch. Each is put on record as it is asked for, and none starts before the
answer has ended: so the whole answer is on record before any effect of it. An invalid call is refused at once. If the
answer is left, or its run is closed before, all of them are ended as not started.

A call with a question waits for a person before all else. The first answer that comes while it waits stands. To a
question of the agent it is the result; any other call is decided on if it is allowed. Whatever closes a call closes one
that waits: it was not started, for that cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from actors.errors import Invalid, NotFound, TooLarge
from actors.events import (
    AnswerEndedData,
    AnswerLeftData,
    CallAnsweredData,
    CallWaitingData,
    ToolEndedData,
    ToolRequestedData,
    ToolStartedData,
)
from actors.gate.cell import Cell, CellState
from actors.gate.token import CancelToken
from actors.messages import (
    AnswerLeft,
    CallExpired,
    CallGivenUp,
    CallRequested,
    CallStarted,
    ProcessReport,
    ToolResult,
)
from actors.model import Address, Barrier, CallState, How, Isolation, Outcome, PartKind, Provenance
from actors.ports import CallRow
from actors.protocol import notes
from actors.protocol.processes import Processes, child_depth
from actors.protocol.run_record import CallRecord, Part, RunRecord
from actors.protocol.state import SessionState
from actors.protocol.step import CloseCall, GiveAnswer, GivePermit, MakeWait, RefuseCall
from actors.requests import USER, Answer
from actors.usage import Usage, of_answer

ONE_CALL: Final = Usage(calls=1)


class Calls:
    """Decides on calls."""

    def __init__(self, state: SessionState, processes: Processes) -> None:
        self._state = state
        self._processes = processes

    def requested(self, request: CallRequested) -> str | None:
        """The agent asks for a call: put it on record; it starts when its answer has ended and the barrier is open.

        Returns why its run has to end, if that has no call left; else None.
        """
        state, call_id = self._state, request.address.call
        assert call_id is not None, "a call is requested under its own address"
        record = state.open_run(Address(request.address.session, request.address.generation, request.address.run))
        if record is None:
            state.refuse_stale("call", request.address, request.tool)
            self._return_credit(request.address.run, request.size)
            result = ToolResult(Outcome.NOT_STARTED, "Not started: the run is over.", is_error=True)
            if request.begun:
                result = notes.had_begun(result)
            state.step.now.append(RefuseCall(request.address.run, call_id, result))
            return None
        if call_id in record.calls:
            state.dead_letter("call", "it was asked for before", request.address, request.tool)
            return None
        self._return_credit(record.id, request.size)
        problem = request.problem
        if problem is None and len(record.open_calls()) >= state.settings.calls_open_max:
            problem = f"too many calls are open: at most {state.settings.calls_open_max} at once"
        if problem is None and request.made is not None and request.made.child is not None:
            problem = self._child_problem(record, request.made.child)
        row = CallRow(
            session=state.session,
            run_id=record.id,
            call_id=call_id,
            tool=request.tool,
            arguments=request.arguments,
            state=CallState.REQUESTED,
            isolation=request.made.isolation if request.made else state.isolation.get(request.tool, Isolation.THREAD),
            question=request.question,
            begun=request.begun,
        )
        # Of an answer that is over: another thread had begun to ask before its end.
        late = request.answer is not None and request.answer not in record.answers
        answer = None if late else request.answer
        call = CallRecord(row, answer)
        record.calls[call_id] = call
        data = ToolRequestedData(
            call_id=call_id,
            tool=request.tool,
            arguments=request.arguments,
            provider_id=request.provider_id,
            where=request.where,
            answer=answer,
            begun=request.begun,
        )
        state.event(data, record)
        state.save_call(call)
        at = state.clock.wall()
        if problem is not None:
            # At once, also in an answer: the number of open calls is limited.
            self._not_started(record, call, f"Not started: {problem}", at)
        elif late:
            self._not_started(record, call, notes.ANSWER_OVER, at)
        elif answer is None:
            return self._begin(record, call, at)
        return None

    def _child_problem(self, record: RunRecord, agent: str) -> str | None:
        """Return why a run may have no child run of this agent; None: it may."""
        limit = self._state.settings.children_depth_max
        if child_depth(record) > limit:
            return f"child runs may stand at most {limit} deep below one another"
        unavailable = self._state.unavailable(agent)
        return None if unavailable is None else str(unavailable)

    def child_ended(self, report: ProcessReport, cause: Provenance) -> None:
        """Something ended the child run of a call, and not the call: close it for the same cause."""
        record, call = self._state.open_run(report.address), self._state.call(report.address)
        if record is None or call is None or call.cell is None or call.token is None:
            return
        at = self._state.clock.wall()
        state, finished = call.cell.close()
        call.token.cancel(cause)
        result = _closed(record, call, state, finished, cause)
        result = self._cut(record, call, result, at, cause)
        self._state.step.now.append(CloseCall(record.id, call.row.call_id, result, cause))

    def _begin(self, record: RunRecord, call: CallRecord, at: float) -> str | None:
        """Let a valid call wait for a person, if it has a question; else decide on it. Returns as `_decide` does."""
        question = call.row.question
        if question is None:
            return self._decide(record, call, at)
        spent = self._calls_spent(record, call) if question.approval else None
        if spent is not None:
            # Nobody is asked about a call that cannot start.
            return spent
        call_id = call.row.call_id
        call.row = msgspec.structs.replace(call.row, state=CallState.WAITING)
        data = CallWaitingData(
            call_id=call_id, question=question.text, options=question.options, approval=question.approval
        )
        self._state.event(data, record)
        self._state.save_call(call)
        self._state.step.now.append(MakeWait(record.id, call_id))
        return None

    def _calls_spent(self, record: RunRecord, call: CallRecord) -> str | None:
        """Return why a run has to end that has no call left for this one; None: it has."""
        others = sum(one.may_start for one in record.open_calls() if one is not call)
        return self._state.budget(record).calls_spent(record.info.usage, others)

    def _decide(self, record: RunRecord, call: CallRecord, at: float) -> str | None:
        """Grant a valid call, let it wait for the barrier, or refuse it behind a strict one.

        Returns why the run has to end, if it has no call left; then nothing was decided, and its end closes the call.
        """
        state = self._state
        spent = self._calls_spent(record, call)
        if spent is not None:
            return spent
        if not state.barrier():
            self._grant(record, call)
        elif state.settings.barrier == Barrier.STRICT and not state.barrier_may_open():
            self._refuse(record, call, at)
        else:
            state.step.now.append(MakeWait(record.id, call.row.call_id))
        return None

    # ── The answers of models ────────────────────────────────────────────────────────────────────────

    def answer_ended(self, record: RunRecord, data: AnswerEndedData) -> str | None:
        """An answer is complete, and with this step on record: count what it cost, and decide on its calls, in order.

        Returns why the run has to end, if its budget is spent; else None.
        """
        record.answers.discard(data.answer)
        self._state.event(data, record)
        spent = self._cost(record, data.usage)
        at = self._state.clock.wall()
        for call in record.open_calls():
            if spent is None and call.answer == data.answer:
                call.answer = None
                spent = self._begin(record, call, at)
        return spent

    def _cost(self, record: RunRecord, counts: Mapping[str, int]) -> str | None:
        """Count what an answer cost. Returns why the run has to end, if its budget is spent."""
        self._state.use(record, of_answer(counts))
        return self._state.budget(record).spent(record.info.usage)

    def answer_left(self, report: AnswerLeft) -> str | None:
        """An answer was left before its end: count what it cost so far. None of its calls starts.

        Returns why the run has to end, if its budget is spent; else None.
        """
        record = self._state.open_run(report.address)
        if record is None or report.answer not in record.answers:
            why = "its run is closed" if record is None else "it is not open"
            self._state.dead_letter("answer_left", why, report.address, "")
            return None
        record.answers.discard(report.answer)
        self._state.event(AnswerLeftData(answer=report.answer, usage=report.usage), record)
        spent = self._cost(record, report.usage)
        at = self._state.clock.wall()
        for call in record.open_calls():
            if call.answer == report.answer:
                call.answer = None
                self._not_started(record, call, notes.ANSWER_LEFT, at)
        return spent

    def _return_credit(self, run_id: str, size: int | None) -> None:
        """Return the credit of a report once this step is durable; a size of None took no credit."""
        if size is not None:
            self._state.step.return_credit(run_id, size)

    # ── What waits for a person ──────────────────────────────────────────────────────────────────────

    def answered(self, answer: Answer, at: float) -> str | None:
        """A person answers a call of the active run, which waits. Returns as `_decide` does.

        Raises:
            NotFound: no such call waits: it may be over, or have been answered.
            Invalid: it does not say whether the call is allowed, or it is not a person who says that; or it allows a
                question, and does not answer it.
            TooLarge: its content is.
        """
        state, record = self._state, self._state.active
        call = None if record is None else record.calls.get(answer.call_id)
        if record is None or call is None or not record.open or not call.waits_for_person:
            state.dead_letter("answer", "no call waits for an answer", None, answer.call_id)
            raise NotFound(
                "no call waits for this answer",
                expected="the id of a call that waits for a person",
                got=answer.call_id,
                remedy="it may have been answered or stopped: see the thread",
            )
        assert call.row.question is not None, "it waits for a person"
        approval = call.row.question.approval
        _check_answer(answer, approval, state.settings.content_max_bytes)
        data = CallAnsweredData(call_id=answer.call_id, content=answer.content, allow=answer.allow, by=answer.origin)
        state.event(data, record)
        call.row = msgspec.structs.replace(call.row, state=CallState.REQUESTED)
        if answer.allow is False:
            self._not_started(record, call, notes.declined(answer.content), at)
        elif approval:
            state.save_call(call)
            return self._decide(record, call, at)
        else:
            result = ToolResult(Outcome.FINISHED, answer.content)
            self.end(record, call, result, at)
            state.step.later.append(GiveAnswer(record.id, answer.call_id, result))
        return None

    # ── The barrier ──────────────────────────────────────────────────────────────────────────────────

    def grant_waiting(self) -> None:
        """Grant the calls that wait for the barrier, and the agent's own spawns, if it is open now."""
        active = self._state.active
        if active is None or self._state.barrier():
            return
        self._processes.grant_waiting(active)
        for call in active.open_calls():
            if call.waits_for_barrier:
                self._grant(active, call)

    def refuse_waiting(self, at: float) -> None:
        """Refuse the calls that wait for a strict barrier: something that it waits for outlived its kill deadline."""
        active = self._state.active
        if active is None:
            return
        self._processes.refuse_waiting(active)
        for call in active.open_calls():
            if call.waits_for_barrier:
                self._refuse(active, call, at)

    def _grant(self, record: RunRecord, call: CallRecord) -> None:
        """Grant a call: its cell, token and part exist before the permit leaves (after the commit)."""
        token = CancelToken(self._state.notify, record.token)
        cell: Cell[ToolResult] = Cell(token)
        call.cell, call.token = cell, token
        call.row = msgspec.structs.replace(call.row, state=CallState.GRANTED)
        call_id = call.row.call_id
        record.add(Part(call_id, PartKind.CALL, call.row.tool, None, holds=call.row.isolation is not Isolation.TASK))
        self._state.save_call(call)
        self._state.step.later.append(GivePermit(record.id, call_id, cell, token))

    def _refuse(self, record: RunRecord, call: CallRecord, at: float) -> None:
        self._not_started(record, call, notes.behind_barrier(self._state.barrier()), at)

    def _not_started(self, record: RunRecord, call: CallRecord, why: str, at: float) -> None:
        result = self.end(record, call, ToolResult(Outcome.NOT_STARTED, why, is_error=True), at)
        self._state.step.now.append(RefuseCall(record.id, call.row.call_id, result))

    # ── Start and end ────────────────────────────────────────────────────────────────────────────────

    def started(self, report: CallStarted) -> None:
        """A call passed its cell."""
        state = self._state
        record, call, part = state.open_run(report.address), state.call(report.address), state.part(report.address)
        if part is not None:
            part.started_at = report.at
        if record is None or call is None or call.row.state != CallState.GRANTED:
            state.dead_letter("call_started", "its call is closed, or has started before", report.address, "")
            return
        call.row = msgspec.structs.replace(call.row, state=CallState.STARTED, started_at=report.at)
        state.event(ToolStartedData(call_id=call.row.call_id), record)
        state.use(record, ONE_CALL)
        state.save_call(call)

    def expired(self, report: CallExpired) -> None:
        """A call's deadline closed it. The run goes on; the execution of the call may still be ending."""
        record, call = self._state.open_run(report.address), self._state.call(report.address)
        if record is None or call is None:
            self._state.dead_letter("call_expired", "its call is closed", report.address, "")
            return
        state = CellState.CLOSED if report.started else CellState.VOID
        result = _closed(record, call, state, None, report.provenance)
        result = self._cut(record, call, result, report.at, report.provenance)
        self._state.step.now.append(CloseCall(record.id, call.row.call_id, result, None))

    def given_up(self, report: CallGivenUp) -> None:
        """The agent no longer waits for a call: close it by its cell, and end its execution.

        The order of the log is decided here: what the agent emits afterwards comes after the call's result. A call that
        has its result, by a fence, by its deadline, or by its own end, keeps it.
        """
        record, call = self._state.open_run(report.address), self._state.call(report.address)
        now = self._state.step.now
        if record is None or call is None:
            self._state.dead_letter("call_given_up", "its call is closed", report.address, "")
            return
        at = self._state.clock.wall()
        provenance = Provenance(source="call.given_up", reason=notes.GIVEN_UP, initiated_at=at)
        if call.cell is None or call.token is None:
            result = notes.closed_result(None, None, provenance, "")
            result = self.end(record, call, result, at, provenance=provenance)
            now.append(RefuseCall(record.id, call.row.call_id, result))
            return
        state, finished = call.cell.close()
        if finished is not None:
            now.append(CloseCall(record.id, call.row.call_id, finished, None))
            self.end(record, call, finished, at)
            return
        call.token.cancel(provenance)
        # The call's deadline may have been first: then its actor has cancelled the token, with that cause.
        cause = call.token.provenance or provenance
        result = _closed(record, call, state, None, cause)
        if state is CellState.VOID:
            self._end_unstarted(record, call, at)
        result = self._cut(record, call, result, at, cause)
        now.append(CloseCall(record.id, call.row.call_id, result, cause))

    def _cut(
        self, record: RunRecord, call: CallRecord, result: ToolResult, at: float, provenance: Provenance
    ) -> ToolResult:
        """End a call before its own end, in a run that goes on: nothing more is spawned for it. Returns as `end`."""
        result = self.end(record, call, result, at, provenance=provenance)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.row.call_id != call.row.call_id or process.cell is None:
                continue
            if process.cell.close()[0] is CellState.VOID and not part.ended:
                self._processes.void_spawn(record, process, part, at)
            part.ended_by(provenance)
        return result

    def close_all(self, record: RunRecord, cause: Provenance, at: float) -> None:
        """Close every open call of a run that ends, and void its spawns: each call's one result is read from its cell.

        `cause` is why the run ends.
        """
        self._processes.drop_waiting(record)
        for call in record.open_calls():
            state, finished = call.cell.close() if call.cell is not None else (None, None)
            waits = call.waits
            result = self.end(record, call, _closed(record, call, state, finished, cause), at)
            if waits:
                self._state.step.now.append(RefuseCall(record.id, call.row.call_id, result))
            if state is CellState.VOID:
                self._end_unstarted(record, call, at)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.cell is not None and process.cell.close()[0] is CellState.VOID and not part.ended:
                self._processes.void_spawn(record, process, part, at)

    def _end_unstarted(self, record: RunRecord, call: CallRecord, at: float) -> None:
        """A granted call whose cell is void never started here: its part has ended."""
        how = How.CANCELLED if call.row.begun else How.NOT_STARTED
        record.parts[call.row.call_id].end(how, at)
        call.row = msgspec.structs.replace(call.row, ended_at=at, how=how)
        self._state.save_call(call)

    def end(
        self,
        record: RunRecord,
        call: CallRecord,
        result: ToolResult,
        at: float,
        provenance: Provenance | None = None,
    ) -> ToolResult:
        """Give a call its one result in the log, and return it.

        It is without its files, if there is no room for them; and a call that had begun elsewhere was not refused.
        """
        if call.row.begun and result.outcome == Outcome.NOT_STARTED:
            result = notes.had_begun(result)
        refused = self._state.no_room(result.media)
        if refused is not None:
            content = f"{result.content}\n[its files are not kept: {refused}]".lstrip("\n")
            result = msgspec.structs.replace(result, content=content, parts=(), attachments=())
        uncounted = call.row.begun and call.row.started_at is None
        if result.outcome != Outcome.NOT_STARTED and (call.row.state == CallState.GRANTED or uncounted):
            # It had begun, and the report of that is not here yet, or is never to come.
            self._state.use(record, ONE_CALL)
        effects = call.row.effects
        if call.token is not None:
            # Code that outlives its call begins nothing more.
            over = Provenance(source="run.ended", reason="the call is closed", initiated_at=at)
            effects = call.token.end_effects(over)
        call.row = msgspec.structs.replace(call.row, state=CallState.ENDED, outcome=result.outcome, effects=effects)
        data = ToolEndedData(
            call_id=call.row.call_id,
            tool=call.row.tool,
            outcome=result.outcome,
            content=result.content,
            is_error=result.is_error,
            data=result.data,
            provenance=provenance,
            effects=effects,
            parts=result.media,
        )
        self._state.event(data, record)
        self._state.keep(result.attachments, result.media, at)
        # The row has the outcome; the cell would keep the result in memory for as long as the run goes on.
        call.cell = None
        if call.row.call_id not in record.parts:
            call.row = msgspec.structs.replace(call.row, ended_at=at)
            record.trim()
        self._state.save_call(call)
        return result


def _check_answer(answer: Answer, approval: bool, max_bytes: int) -> None:
    if approval and answer.allow is None:
        raise Invalid(
            "this call asks whether it may start",
            expected="allow=True or allow=False",
            got="neither",
            remedy="say it: Answer(call_id=…, allow=True)",
        )
    if approval and answer.origin != USER:
        raise Invalid(
            "only a person can allow this call, or decline it",
            expected=f"origin={USER!r}, a person",
            got=f"origin={answer.origin!r}",
            remedy="let a person answer; to end the run instead, send a Stop",
        )
    if not approval and answer.allow and not answer.content.strip():
        # The first answer stands, and an empty text is none that was meant.
        raise Invalid(
            "this call asks a question, and not whether it may start",
            expected="the answer as content, or allow=False to decline",
            got="allow=True alone",
            remedy="say it: Answer(call_id=…, content='yes')",
        )
    size = len(answer.content.encode())
    if size > max_bytes:
        raise TooLarge(
            "the answer is too large",
            expected=f"at most {max_bytes} bytes of UTF-8",
            got=f"{size} bytes",
            remedy="put it in a file that the agent can read, and answer with its name",
        )


def _closed(
    record: RunRecord, call: CallRecord, state: CellState | None, finished: ToolResult | None, cause: Provenance
) -> ToolResult:
    """Return the one result of a call that is closed, and whose token is cancelled; see `notes.closed_result`."""
    effects = () if call.token is None else call.token.effects
    return notes.closed_result(state, finished, cause, call.output, record.spools_of(call), effects)
