"""The life of a run: started, fenced, closed, settled.

Theory of operation.

- The *fence* is one step: generation + 1, every cell closed, the token cancelled. After it nothing that
  carries the old generation is open, so nothing of it is accepted (law L1).
- A run is *closed* in one place, `close`, however it ends: each open call gets its one result by its cell, the status
  moves by the one table, and the note for the model is written. So no way out leaves anything to repair.
- A run *settles* once: when its last part has ended, or its kill deadline has passed, whichever is first. A part that
  ends later amends the receipt.
- Whenever something has ended, `go_on` lets what waited for it go on. It is the only place that does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from actors.errors import CountermandError, Invalid, RunCancelled
from actors.events import (
    AnswerBegunData,
    AnswerEndedData,
    BlockData,
    Emitted,
    ProgressData,
    ReceiptAmendedData,
    RunEndedData,
    RunStartedData,
    RunStatusData,
    SessionBarrierForcedData,
    SessionFencedData,
    TextData,
    TypingData,
    as_data,
)
from actors.gate.cell import CellState
from actors.gate.token import CancelToken
from actors.messages import AnswerLeft, CallRequested, MediaGiven, ProcessRemaining, RunExpired, Said, ToolSaid
from actors.model import Barrier, Event, How, Json, Mode, Outcome, PartKind, Provenance, RunInfo, RunParent
from actors.protocol import notes
from actors.protocol.calls import Calls
from actors.protocol.deletion import Deletion
from actors.protocol.run_hosts import RunHosts
from actors.protocol.run_record import AGENT, Part, RunRecord
from actors.protocol.state import LATE_KEPT_MAX, SessionState
from actors.protocol.step import (
    AdoptRun,
    ForgetEnded,
    HaltRun,
    OpenBarrier,
    RefuseSave,
    SaySaved,
    ShowEphemeral,
    StartRun,
)
from actors.protocol.trees import Trees
from actors.protocol.turns import Turns
from actors.requests import Answer, Answered, NewMessage
from actors.run_status import RunStatus

ADOPTIONS_MAX: Final = 3
"""How often what a run has running is taken over from an actor that failed."""


class Runs:
    """Decides how runs begin and end."""

    def __init__(
        self, state: SessionState, calls: Calls, trees: Trees, turns: Turns, deletion: Deletion, hosts: RunHosts
    ) -> None:
        self._state = state
        self._hosts = hosts
        self._calls = calls
        self._trees = trees
        self._turns = turns
        self._deletion = deletion

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        run_id: str,
        inputs: Iterable[NewMessage],
        at: float,
        *,
        counted: bool = False,
        resumed: bool = False,
        retry: RunInfo | None = None,
        parent: RunParent | None = None,
        below: CancelToken | None = None,
    ) -> None:
        """Start a run.

        Args:
            run_id: its id; that of the turn that it was, if it waited.
            inputs: its messages.
            at: now.
            counted: the fence of this step has raised the generation already.
            resumed: a person asked for it with a Resume.
            retry: the run whose inputs are tried again.
            parent: whose child run it is.
            below: the token below which that of the run hangs.
        """
        state = self._state
        assert state.active is None, "a session has at most one active run"
        if not counted:
            state.generation += 1
        messages = list(inputs)
        named = next((message.agent for message in messages if message.agent is not None), None)
        ids = tuple(message.id for message in messages) if retry is None else retry.inputs
        info = RunInfo(
            session=state.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            agent=(named or state.agent) if retry is None else retry.agent,
            generation=state.generation,
            receipt_id=state.ids.new("rcpt"),
            inputs=ids,
            retry_of=retry.run_id if retry else None,
            attempt=retry.attempt + 1 if retry else 1,
            created_at=at,
            started_at=at,
            parent=parent,
        )
        queued = state.queued.pop(run_id, None)
        if queued is not None:
            info = msgspec.structs.replace(info, receipt_id=queued.receipt_id, created_at=queued.created_at)
        record = RunRecord(info, state.new_token(below), state.new_credit())
        record.move(RunStatus.IN_PROGRESS)
        state.active = record
        for message in messages:
            self._turns.add_input(message, record)
        host = self._hosts.reserve(record)
        started = RunStartedData(
            agent=info.agent,
            inputs=ids,
            resumed=resumed,
            retry_of=retry.run_id if retry is not None else None,
            code_changed_at=self._hosts.code_changed_at(host),
            parent=parent,
        )
        state.event(started, record)
        self._hosts.add(record, host, at)
        state.save_run(record)
        state.step.later.append(StartRun(run_id))

    def claim_start(self, run_id: str) -> RunRecord | None:
        """After the commit: put the agent's part on record and return the run; None if a fence came between.

        None also if it has to wait until all that earlier runs have started is proven to have ended.
        """
        record = self._state.active
        if record is None or record.id != run_id or AGENT in record.parts:
            return None
        at, agent = self._state.clock.wall(), self._hosts.agent(record)
        if agent is not None and not agent.overlap and self._state.barrier():
            self._state.held = record.id
            if not self._state.barrier_may_open():
                self.refuse_waiting(at)
            return None
        self._hosts.claim(record)
        record.parts[AGENT] = Part(AGENT, PartKind.AGENT, record.info.agent, None, holds=False, started_at=at)
        return record

    def start_next(self, at: float) -> None:
        """Start the first pending turn, if the session is free for it."""
        state = self._state
        if state.active is not None or state.draining or state.quarantined or state.queue.parked or state.holding:
            return
        if state.restoring:
            # A run that ends meanwhile must not start the next turn ahead of a retry, or of a Stop that is replayed.
            return
        turn = state.queue.take_next(lambda turn: state.unavailable(turn.agent or state.agent) is None)
        if turn is not None:
            self.start(turn.run_id, [row.message for row in turn.rows], at)

    def go_on(self, at: float) -> None:
        """Something has ended: let what waited for it go on."""
        state = self._state
        if state.holding is not None and state.holding not in state.ending:
            state.holding = None
        if state.held is not None and not state.barrier():
            state.step.later.append(StartRun(state.held))
            state.held = None
        self._calls.grant_waiting()
        self.start_next(at)
        self._trees.end_if_drained(at)
        self._deletion.call_off_if_hopeless()

    # ── What the agent emits ─────────────────────────────────────────────────────────────────────────

    def said(self, said: Said) -> None:
        """The agent emitted something: progress is only shown, all else is stored."""
        state = self._state
        record = state.open_run(said.address)
        kind = str(said.data.event_kind)
        if record is None:
            state.refuse_stale(kind, said.address, as_data(said.data))
        elif not self._fits_answers(record, said.data):
            why = "its answer has begun before, has ended, or was left"
            state.dead_letter(kind, why, said.address, as_data(said.data))
        elif isinstance(said.data, (TextData, BlockData)):
            state.event(said.data, record)
        elif isinstance(said.data, AnswerBegunData):
            record.answers.add(said.data.answer)
            state.event(said.data, record)
        elif isinstance(said.data, AnswerEndedData):
            self._end_if_spent(self._calls.answer_ended(record, said.data))
        else:
            self._show(said.data, record)
        state.step.return_credit(said.address.run, said.size)

    def tool_said(self, report: ToolSaid) -> None:
        """A tool says a text, or shows progress, as its agent does: while its call is open, and no longer."""
        state = self._state
        record = state.open_run(report.address)
        if record is None:
            kind, at = str(report.data.event_kind), state.clock.wall()
            state.refuse_stale(kind, report.address, as_data(report.data))
            over = Provenance(source="run.ended", reason="the call is closed", initiated_at=at)
            state.step.now.append(RefuseSave(report.told, RunCancelled(over)))
            return
        if isinstance(report.data, TextData):
            state.event(report.data, record)
        else:
            self._show(report.data, record)
        state.step.later.append(SaySaved(report.told))

    def _show(self, data: ProgressData | TypingData, record: RunRecord) -> None:
        """Show what is not stored, in its place."""
        state = self._state
        kind, at = data.event_kind, state.clock.wall()
        event = Event(state.seq, state.session, state.generation, record.id, kind, as_data(data), at)
        state.step.later.append(ShowEphemeral(event))

    def media_given(self, given: MediaGiven) -> None:
        """The agent adds a file to an answer. Its bytes are written with the event that names it."""
        state, part = self._state, given.data.part
        record = state.open_run(given.address)
        if given.size is not None:
            state.step.return_credit(given.address.run, given.size)
        if record is None:
            state.refuse_stale(str(given.data.event_kind), given.address, part.media_type)
            return
        refused: CountermandError | None = state.no_room((part,))
        if given.data.answer not in record.answers:
            refused = Invalid(
                "this file belongs to no open answer",
                expected="an answer that has begun, and has not ended",
                got=given.data.answer,
                remedy="give it inside of the block of turn.answer(…)",
            )
        if refused is not None:
            state.step.now.append(RefuseSave(given.kept, refused))
            return
        state.event(given.data, record)
        state.keep((given.attachment,), (part,), state.clock.wall())
        state.step.later.append(SaySaved(given.kept))

    def call_requested(self, request: CallRequested) -> None:
        """The agent asks for a call; its run ends if it has none left."""
        self._end_if_spent(self._calls.requested(request))

    def call_answered(self, answer: Answer, at: float) -> Answered:
        """A person answers a call that waits; its run ends if it has no call left. Raises as `Calls.answered` does."""
        record = self._state.active
        self._end_if_spent(self._calls.answered(answer, at))
        assert record is not None, "a call of it was answered"
        return Answered(answer.call_id, record.id)

    def answer_left(self, report: AnswerLeft) -> None:
        """The agent left an answer; its run ends if that has cost too much."""
        self._end_if_spent(self._calls.answer_left(report))

    def _end_if_spent(self, why: str | None) -> None:
        """End the active run if its budget is spent, in the step that found so: nothing of it starts any more."""
        record = self._state.active
        if why is None or record is None:
            return
        at = self._state.clock.wall()
        self.end(record, RunStatus.EXPIRED, Provenance(source="run.budget", reason=why, initiated_at=at), at)

    @staticmethod
    def _fits_answers(record: RunRecord, data: Emitted) -> bool:
        """True if a part or an end belongs to an open answer, and a begin to none."""
        match data:
            case AnswerBegunData():
                return data.answer not in record.answers
            case AnswerEndedData() | BlockData():
                return data.answer in record.answers
            case TextData():
                return data.answer is None or data.answer in record.answers
            case _:
                return True

    # ── Fence, close, halt ───────────────────────────────────────────────────────────────────────────

    def fence(self, provenance: Provenance, closing: RunRecord | None, at: float) -> int:
        """Raise the generation, close the cells of the run, cancel its token. Returns the seq of the event of it."""
        state = self._state
        state.generation += 1
        if closing is not None:
            self.shut(closing, provenance)
        seq = state.event(SessionFencedData(run_id=closing.id if closing else None, provenance=provenance), None)
        if closing is not None:
            closing.fenced_at = at
            closing.info = msgspec.structs.replace(closing.info, fence_seq=seq)
        return seq

    @staticmethod
    def shut(record: RunRecord, provenance: Provenance) -> None:
        """Close every cell of a run and cancel its token: from here on nothing of it can begin."""
        for call in record.calls.values():
            if call.cell is not None:
                call.cell.close()
        for process in record.processes.values():
            if process.cell is not None:
                process.cell.close()
        record.token.cancel(provenance)

    def close(
        self,
        record: RunRecord,
        status: RunStatus,
        provenance: Provenance | None,
        at: float,
        *,
        noted: bool = True,
        error: str | None = None,
        result: Json = None,
    ) -> None:
        """Close a run's transcript and move its status: every end of a run passes here.

        Args:
            record: the run.
            status: its next status.
            provenance: why it ends; None if its agent ended by itself. Then its children end by ``run.ended``.
            at: now.
            noted: write the note for the model.
            error: what the agent raised.
            result: what the agent returned.
        """
        state = self._state
        cause = provenance or Provenance(source="run.ended", reason="the agent's own end", initiated_at=at)
        # Behind a fence once more, which changes nothing; this one is for ends without a fence.
        self.shut(record, cause)
        self._calls.close_all(record, cause, at)
        if provenance is not None:
            record.info = msgspec.structs.replace(record.info, provenance=provenance)
        else:
            for part in record.open_parts():
                if part.kind in (PartKind.PROCESS, PartKind.RUN, PartKind.SUBPROCESS):
                    part.ended_by(cause)
        record.move(status)
        record.fenced_at = record.fenced_at or at
        record.info = msgspec.structs.replace(record.info, error=error, result=result)
        if record.terminal:
            record.info = msgspec.structs.replace(record.info, ended_at=at)
        note = None
        effects = record.token.effects
        record.info = msgspec.structs.replace(record.info, effects=effects)
        if noted and provenance is not None:
            note = notes.run_note(provenance, calls_started=self.calls_started(record), effects=effects)
        elif noted and error is not None:
            note = notes.failure_note(error, effects)
        data = RunStatusData(status=status, provenance=provenance, error=error, result=result, note=note)
        state.event(data, record)
        state.save_run(record)
        record.answers.clear()
        if state.active is record:
            state.active = None
        state.ending[record.id] = record
        self._trees.leave_closed_run(record, at)

    @staticmethod
    def calls_started(record: RunRecord) -> bool:
        """True if a call of a run whose cells are closed had started, so that it may have had effects.

        Or a process that the agent itself had asked for.
        """
        spawned = any(
            record.parts[process.row.process_id].how is not How.NOT_STARTED
            and (process.cell is None or process.cell.state is not CellState.VOID)
            for process in record.own_spawns()
        )
        return (
            record.effects
            or spawned
            or any(
                call.row.begun or (call.executed and call.row.outcome not in (None, Outcome.NOT_STARTED))
                if call.cell is None or call.row.begun
                else call.cell.state in (CellState.CLOSED, CellState.FINISHED)
                for call in record.calls.values()
            )
        )

    def halt(self, record: RunRecord, provenance: Provenance, mode: Mode, *, moves: bool = True) -> None:
        """Tell a closed run to end its parts, if it has any left.

        `moves`: the kill deadline that this sets replaces an earlier one; else the earlier of the two counts.
        """
        record.mode = mode
        record.stage += moves
        if record.open_parts():
            self._state.step.now.append(HaltRun(record.id, provenance, mode, record.stage))
            if AGENT not in record.parts and not record.adoptions:
                # Its agent was not started, so no actor has the host that it took back.
                record.adoptions += 1
                self._state.step.later.append(AdoptRun(record.id))

    def join(self, record: RunRecord, provenance: Provenance) -> None:
        """A further Stop of a run that is ending: keep its cause, and raise the mode, never lower it.

        The kill deadline may come nearer by that, and never moves away: the earlier one counts too.
        """
        hurries = provenance.mode is Mode.IMMEDIATE and record.mode is Mode.GRACEFUL
        if record.status is RunStatus.CANCELLING or hurries:
            record.info = msgspec.structs.replace(record.info, later=(*record.info.later, provenance)[-16:])
            self._state.save_run(record)
        if hurries:
            self.halt(record, provenance, Mode.IMMEDIATE, moves=False)

    # ── Ends without a fence ─────────────────────────────────────────────────────────────────────────

    def end(
        self,
        record: RunRecord,
        status: RunStatus,
        provenance: Provenance | None,
        at: float,
        *,
        error: str | None = None,
        result: Json = None,
    ) -> None:
        """End the active run in another way than by a fence; its children end under the barrier."""
        cause = provenance or Provenance(source="run.ended", reason=f"the run is {status}", initiated_at=at)
        self.close(record, status, provenance, at, error=error, result=result)
        self.halt(record, cause, Mode.GRACEFUL)
        self._turns.requeue_steering(at)
        self.settle_if_done(record, at)
        self.start_next(at)

    def expired(self, report: RunExpired) -> None:
        """The run's deadline passed."""
        record = self._state.open_run(report.address)
        if record is None:
            self._state.dead_letter("run_expired", "its run is closed", report.address, "")
            return
        self.end(record, RunStatus.EXPIRED, report.provenance, self._state.clock.wall())

    def lost(self, run_id: str, failure: str | None) -> None:
        """A run's actor is gone. If its run was open it has failed; what it had running is taken over."""
        if failure is not None:
            # It was to hear the ends of what a fence had closed, and nobody asks for these again.
            self._state.step.later.append(ForgetEnded(self._state.open_parts(), self._state.open_runs()))
        record = self._state.record(run_id)
        if record is None:
            return
        at = self._state.clock.wall()
        if record is self._state.active:
            reason = f"the run's actor is gone: {failure or 'it was stopped'}"
            provenance = Provenance(source="actor.failure", reason=reason, initiated_at=at)
            self.end(record, RunStatus.FAILED, provenance, at, error=reason)
        # No more is reported of a tree whose warden was lost.
        if any(not part.lost for part in record.runner_parts()) and record.adoptions < ADOPTIONS_MAX:
            record.adoptions += 1
            self._state.step.later.append(AdoptRun(run_id))

    # ── Settling ─────────────────────────────────────────────────────────────────────────────────────

    def settle_if_done(self, record: RunRecord, at: float) -> None:
        """Settle a closed run if its last part has ended."""
        if record.id in self._state.ending and not record.awaited_parts():
            self._settle(record, at)

    def _settle(self, record: RunRecord, at: float) -> None:
        """File the receipt, once, and give a cancelled run its terminal status."""
        state = self._state
        del state.ending[record.id]
        if record.status is RunStatus.CANCELLING:
            record.move(RunStatus.CANCELLED)
            record.info = msgspec.structs.replace(record.info, ended_at=at)
            state.event(RunStatusData(status=RunStatus.CANCELLED), record)
        record.info = msgspec.structs.replace(record.info, settled=True, late=bool(record.open_parts()))
        receipt = record.file_receipt(at, record.info.later)
        state.step.receipts[receipt.receipt_id] = receipt
        state.event(RunEndedData(status=record.status, receipt=receipt), record)
        state.save_run(record)
        state.over[record.id] = receipt.receipt_id
        if record.info.late:
            self.keep_late(record)
        self.go_on(at)

    def kill_deadline(self, run_id: str, stage: int) -> None:
        """The time in which a closed run had to end has passed: name what is left, and go on."""
        record = self._state.ending.get(run_id)
        if record is None or record.stage != stage:
            return
        at = self._state.clock.wall()
        self.force_barrier(record, record.barrier(), at)
        self._settle(record, at)

    def force_barrier(self, record: RunRecord, held: list[Part], at: float) -> None:
        """The kill deadline of a closed run has passed: calls no longer wait for its parts, or are refused.

        They wait until it is on record which parts those are: `open_barrier`.
        """
        state = self._state
        if not held:
            return
        if state.settings.barrier == Barrier.FORCED:
            names = tuple(f"{part.kind} {part.name}" for part in held)
            data = SessionBarrierForcedData(run_id=record.id, abandoned=names)
            state.event(data, state.active or record)
            state.step.later.append(OpenBarrier(run_id=record.id))
        else:
            # Strict: calls that wait are refused, and so are new ones until the parts are proven to have ended.
            self.refuse_waiting(at)

    def open_barrier(self, opened: OpenBarrier) -> None:
        """After the commit: it is on record what was abandoned, so nothing waits for it any longer.

        An agent that may not overlap starts as soon as the barrier is open, without a record of its own. In memory the
        barrier must therefore not be open before that is durable.
        """
        state = self._state
        record = state.record(opened.run_id) if opened.run_id is not None else None
        if record is not None:
            record.forced = True
        for process_id in opened.trees:
            owned = state.owned.get(process_id)
            if owned is not None:
                owned.forced = True
        self.go_on(state.clock.wall())

    def refuse_waiting(self, at: float) -> None:
        """Something outlived its kill deadline. Where the barrier is strict, nothing waits for it any longer."""
        state, active = self._state, self._state.active
        if state.settings.barrier != Barrier.STRICT:
            return
        self._calls.refuse_waiting(at)
        if active is not None and state.held == active.id:
            names = ", ".join(f"{part.kind} {part.name}" for part in state.barrier())
            error = f"the agent was not started: something of an earlier run could not be ended ({names})"
            self.end(active, RunStatus.FAILED, None, at, error=error)

    # ── Parts that end ───────────────────────────────────────────────────────────────────────────────

    def part_ended(self, record: RunRecord, at: float) -> None:
        """A part is proven to have ended: settle its run or amend its receipt, and go on."""
        if record.id in self._state.late:
            self.amend(record, at)
            if not record.open_parts():
                self.drop_late(record)
        else:
            self.settle_if_done(record, at)
        self.go_on(at)

    def part_remains(self, part: Part, news: ProcessRemaining) -> None:
        """Some processes of a tree survive so far: the receipt has to name them, also if it was filed before."""
        if part.ended:
            return
        named, part.remaining = part.remaining is not None, news
        at = self._state.clock.wall()
        for record in [] if named else list(self._state.late.values()):
            if record.parts.get(part.id) is part:
                self.amend(record, at)

    def amend(self, record: RunRecord, at: float) -> None:
        """File the receipt of a settled run again, with what has become known since."""
        receipt = record.file_receipt(at, record.info.later)
        self._state.step.receipts[receipt.receipt_id] = receipt
        self._state.event(ReceiptAmendedData(receipt=receipt), record)

    def keep_late(self, record: RunRecord) -> None:
        """Keep a settled run of which a part may still end; beyond the limit the oldest is dropped."""
        late = self._state.late
        late[record.id] = record
        while len(late) > LATE_KEPT_MAX:
            self.drop_late(late[next(iter(late))])

    def drop_late(self, record: RunRecord) -> None:
        """Drop a settled run: no part of it is left, or too many are kept."""
        del self._state.late[record.id]
        record.info = msgspec.structs.replace(record.info, late=False)
        self._state.save_run(record)
