"""The protocol of a session: state and message in, records and effects out.

Theory of operation. Everything that a session decides is decided here, one message at a time, without a
thread, a clock or a file: so it can be read, tested and simulated as it is. `SessionActor` carries the steps out.

- The *fence* is one step: generation + 1, every open cell read and shut, the token cancelled, the old
  transcript closed, and (for a superseding message) the next run begun, all in one batch. After it nothing that
  carries the old generation is open, so nothing of it is accepted (law L1).
- *Acceptance* asks one question in one place, `_open`: is this address of the active run, in the current
  generation, and is its call open? The reports of endings alone are taken from closed runs, by the record
  of the run, in any generation.
- The *barrier* is not a state but a question: which parts of earlier runs, however those ended, still hold?
  Permits wait while there are any; each end of a part asks again.
- A run *settles* once: when its last part has ended, or its kill deadline has passed, whichever is first.
  What is heard of it after that amends its receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from actors import notes
from actors.cancel import CancelToken, Cell, CellState, Notify
from actors.credit import Credit
from actors.errors import CountermandError, Invalid, NotFound, Quarantined, RunActive, ShuttingDown
from actors.future import ReplyFuture
from actors.messages import (
    Accepted,
    Answer,
    CallEnded,
    CallExpired,
    CallRequested,
    CallStarted,
    NewMessage,
    OutsideRequest,
    ProcessEnded,
    ProcessExited,
    ProcessOutput,
    ProcessReport,
    ProcessStarted,
    Reply,
    Resume,
    Resumed,
    RunExpired,
    RunFinished,
    Said,
    SpawnPermit,
    SpawnRequested,
    Steered,
    SteeringRequested,
    Stop,
    Stopped,
    ToolResult,
    Withdraw,
    Withdrawn,
)
from actors.model import (
    SUPERSEDING,
    Address,
    Event,
    How,
    Json,
    JsonObject,
    Message,
    Mode,
    Outcome,
    Policy,
    Provenance,
    Receipt,
    RunInfo,
    RunStatus,
    SessionStatus,
    Waiting,
)
from actors.ports import CallRow, Clock, Ids, ProcessRow, SessionRow, Settings, Snapshot, WaitingRow
from actors.record import AGENT, OUTPUT_KEPT_CHARS, CallRecord, Part, ProcessRecord, RunRecord, restored
from actors.requests import RequestBook
from actors.step import (
    AdoptRun,
    AnswerRequest,
    DeadLetter,
    ForgetPart,
    GivePermit,
    GiveSpawn,
    GiveSteering,
    HaltRun,
    MakeWait,
    NothingToSteer,
    RefuseCall,
    RefuseSpawn,
    ReturnCredit,
    ShowEphemeral,
    StartRun,
    Step,
)
from actors.text import cut, storable, storable_json, tail
from actors.thread import Thread
from actors.waiting import PendingTurn, WaitingRoom, as_message

LATE_KEPT_MAX = 256
ADOPTIONS_MAX = 3


class Protocol:
    """One session's state and decisions. Not thread-safe: it lives in its session's mailbox.

    Args:
        session: the session's id.
        settings: limits and graces.
        clock: asked for the time of day only.
        ids: makes the ids of runs and receipts.
        notify: where callbacks of cancel tokens run.
        isolation: of each tool, by name.
    """

    def __init__(
        self,
        session: str,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        notify: Notify,
        isolation: Mapping[str, str],
    ) -> None:
        self.session = session
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._notify = notify
        self._isolation = isolation
        self.generation = 0
        self.seq = 0
        self.active: RunRecord | None = None
        self.ending: dict[str, RunRecord] = {}
        self.late: dict[str, RunRecord] = {}
        self.over: dict[str, str] = {}
        self.fates: dict[str, str] = {}
        self.room = WaitingRoom(session, settings.queue_max)
        self.requests = RequestBook(session, settings.requests_kept, settings.requests_kept_s)
        self.cutoffs: dict[str, float] = {}
        self.thread = Thread()
        self.draining = False
        self.quarantined = False
        self._queued: dict[str, RunInfo] = {}
        self._holding: str | None = None
        self._taking_up = False
        self.step = Step()

    def take_step(self) -> Step:
        """Return what was decided since the last call, and begin a new step."""
        step, self.step = self.step, Step()
        return step

    @property
    def row(self) -> SessionRow:
        """The session's own facts, as they are stored."""
        return SessionRow(
            session=self.session,
            generation=self.generation,
            seq=self.seq,
            parked=self.room.parked,
            quarantined=self.quarantined,
            cutoffs=dict(self.cutoffs),
        )

    @property
    def quiet(self) -> bool:
        """True when no run is active and none is ending."""
        return self.active is None and not self.ending

    def status(self) -> SessionStatus:
        """What the session is doing now."""
        if self.quarantined:
            state = "quarantined"
        elif self.active is not None:
            state = "running"
        else:
            state = "cancelling" if self.ending else "idle"
        refused: dict[str, int] = {}
        for record in self._records():
            for kind, count in record.refused.items():
                refused[kind] = refused.get(kind, 0) + count
        return SessionStatus(
            session=self.session,
            state=state,
            generation=self.generation,
            last_seq=self.seq,
            run_id=self.active.id if self.active else None,
            ending=tuple(self.ending),
            waiting=len(self.room),
            parked=self.room.parked,
            barrier=tuple(f"{part.kind} {part.name}" for part in self.barrier()),
            refused=refused,
        )

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def request(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        """Decide a request from outside; its answer is given when the step's batch is committed.

        Raises:
            CountermandError: it is refused; nothing was changed.
        """
        at = self._clock.wall()
        known = self.requests.known(request, at)
        if known is None:
            known = self._decide(request, at)
            self.step.requests.append(self.requests.answered(request, known, at))
        self.step.later.append(AnswerRequest(request, reply, known))

    def _decide(self, request: OutsideRequest, at: float) -> Reply:
        match request:
            case NewMessage():
                return self._new_message(request, at)
            case Stop():
                return self._stop(request, at)
            case Resume():
                return self._resume(request, at)
            case Withdraw():
                return self._withdraw(request, at)
            case Answer():
                self._dead("answer", "no call waits for an answer", None, request.call_id)
                raise NotFound(
                    "no call waits for this answer",
                    expected="the id of a call that waits for a person",
                    got=request.call_id,
                    remedy="the call may have been stopped: see the thread",
                )

    def _new_message(self, message: NewMessage, at: float) -> Accepted:
        self._refuse_unless_serving("a new message")
        size = len(message.content.encode())
        if size > self._settings.message_max_bytes:
            raise Invalid(
                "the message is too large",
                expected=f"at most {self._settings.message_max_bytes} bytes of UTF-8",
                got=f"{size} bytes",
                remedy="send it in parts, or put it in a file that the agent can read",
            )
        if message.id in self.fates:
            raise Invalid(
                "a message with this id was handled before",
                expected="a fresh id",
                got=message.id,
                remedy="construct a new message; it makes its own id",
            )
        policy = message.resolved_policy
        cutoff = self.cutoffs.get(message.origin)
        if message.sent_at is not None and cutoff is not None and message.sent_at < cutoff:
            self._returned(message, None, "stopped_before_arrival")
            return Accepted(message.id, None, None, policy, returned="stopped_before_arrival")
        active = self.active
        if active is None:
            if self.room.parked and message.origin != "user":
                return self._enqueue(message, at)
            if len(self.room) and not self.room.parked and policy not in SUPERSEDING:
                return self._enqueue(message, at)
            return self._start_with_all(message, at, superseded=None)
        if policy is Policy.REJECT:
            raise RunActive(
                "a run is active",
                run_id=active.id,
                expected="no active run, as the policy 'reject' asks",
                got=f"run {active.id}",
                remedy="wait for it, stop it, or use another policy",
            )
        if policy in SUPERSEDING:
            return self._supersede(active, message, at)
        if policy is Policy.STEER and not self.room.turns:
            self.room.refuse_if_full()
            row = self.room.steer(message, active.id, at)
            self._waits(row)
            return Accepted(message.id, active.id, active.info.generation, policy, queued=True)
        return self._enqueue(message, at)

    def _refuse_unless_serving(self, what: str) -> None:
        if self.quarantined:
            raise Quarantined(
                f"{what} is refused: the session failed too often and is quarantined",
                expected="Stop, which it still takes",
                got=what,
                remedy="look at the log for the failure, mend it, and restart the supervisor",
            )
        if self.draining:
            raise ShuttingDown(
                f"{what} is refused: the supervisor is shutting down",
                expected="Stop, which it still takes",
                got=what,
                remedy="send it again, under the same id, after the restart",
            )

    def _enqueue(self, message: NewMessage, at: float) -> Accepted:
        self.room.refuse_if_full()
        row, new = self.room.enqueue(message, self._ids.new("run"), at)
        if new:
            self._queue_run(row.run_id, at)
        self._waits(row)
        return Accepted(message.id, row.run_id, None, Policy.ENQUEUE, queued=True)

    def _start_with_all(self, message: NewMessage, at: float, superseded: str | None) -> Accepted:
        """Start a run with all that waits, then `message`, as its inputs."""
        rows, turns = self.room.take_all()
        run_id = turns[0].run_id if turns else self._ids.new("run")
        policy = message.resolved_policy
        provenance = self._inside("session.new_message", "its messages became inputs of an earlier run", at, message.id)
        for turn in turns[1:]:
            self._end_queued(turn, provenance, at, withdrawn=())
        counted = superseded is not None
        self._start_run(run_id, [row.message for row in rows] + [message], at, counted=counted)
        return Accepted(
            message.id,
            run_id,
            self.generation,
            policy,
            superseded_run_id=superseded,
            with_messages=tuple(as_message(row.message, run_id, row.accepted_at) for row in rows),
        )

    def _supersede(self, active: RunRecord, message: NewMessage, at: float) -> Accepted:
        provenance = self._inside("session.new_message", "a new message took over", at, message.id)
        rollback = message.resolved_policy is Policy.ROLLBACK
        # The fence counts the generation; the start of the next run is the same step and does not count again.
        self._fence(provenance, active, at)
        noted = not rollback or self._calls_started(active)
        self._close(active, RunStatus.CANCELLING, provenance, at, noted=noted)
        if rollback:
            self._retract(active, message.origin)
        self._halt(active, provenance, Mode.GRACEFUL)
        accepted = self._start_with_all(message, at, superseded=active.id)
        self._settle_if_done(active, at)
        return accepted

    def _retract(self, record: RunRecord, origin: str) -> None:
        """Mark the sender's own inputs of a run, and its output, as retracted."""
        inputs = set(record.info.inputs)
        own = [m.id for m in self.thread.messages() if m.id in inputs and m.role == "user" and m.origin == origin]
        self._event("message.retracted", {"run_id": record.id, "ids": own}, record)

    def _stop(self, stop: Stop, at: float) -> Stopped:
        provenance = self._provenance_of(stop, at)
        sent_at = provenance.initiated_at
        if stop.run_id is not None:
            stopped = self._stop_aimed(stop, stop.run_id, provenance, at)
        else:
            stopped = self._stop_current(stop, provenance, at)
        if stopped.outcome != "already_over":
            # A Stop that came too late for its run does nothing, to messages that are under way neither (law L9).
            self.cutoffs[stop.origin] = max(sent_at, self.cutoffs.get(stop.origin, sent_at))
            self.step.row_changed = True
        return stopped

    @staticmethod
    def _provenance_of(stop: Stop, at: float) -> Provenance:
        return Provenance(
            source=stop.source,
            reason=stop.reason,
            mode=stop.mode,
            requested_by=stop.requested_by,
            initiated_at=at if stop.sent_at is None else stop.sent_at,
        )

    def _stop_current(self, stop: Stop, provenance: Provenance, at: float) -> Stopped:
        active = self.active
        ending = [record for record in self.ending.values() if record.status is RunStatus.CANCELLING]
        joined = [record for record in reversed(ending) if record is not active]
        for record in list(self.ending.values()):
            self._join(record, provenance)
        if active is not None:
            fence_seq = self._fence(provenance, active, at)
            self._close(active, RunStatus.CANCELLING, provenance, at)
            self._halt(active, provenance, stop.mode)
            withdrawn = self._treat_waiting(stop.resolved_waiting, provenance, at, active)
            answer = Stopped(
                "stopped",
                active.id,
                active.info.receipt_id,
                fence_seq,
                withdrawn=withdrawn,
                joined=tuple(record.id for record in joined),
            )
            self._settle_if_done(active, at)
            return answer
        if joined:
            newest = joined[0]
            fence_seq = self._fence(provenance, None, at)
            withdrawn = self._treat_waiting(stop.resolved_waiting, provenance, at, newest)
            return Stopped(
                "stopping",
                newest.id,
                newest.info.receipt_id,
                fence_seq,
                withdrawn=withdrawn,
                joined=tuple(record.id for record in joined[1:]),
            )
        fence_seq = self._fence(provenance, None, at)
        withdrawn = self._treat_waiting(stop.resolved_waiting, provenance, at, None)
        receipt = Receipt(
            receipt_id=stop.id,
            run_id=None,
            generation=self.generation,
            provenance=provenance,
            fenced_at=at,
            ended_at=at,
            complete=True,
            withdrawn=tuple(message.id for message in withdrawn),
        )
        self.step.receipts[receipt.receipt_id] = receipt
        return Stopped("nothing_running", None, receipt.receipt_id, fence_seq, withdrawn=withdrawn)

    def _stop_aimed(self, stop: Stop, run_id: str, provenance: Provenance, at: float) -> Stopped:
        """A Stop aimed at a run touches only that run (law L9)."""
        active = self.active
        if active is not None and active.id == run_id:
            fence_seq = self._fence(provenance, active, at)
            self._close(active, RunStatus.CANCELLING, provenance, at)
            self._halt(active, provenance, stop.mode)
            withdrawn = self._treat_waiting(stop.resolved_waiting, provenance, at, active)
            answer = Stopped("stopped", run_id, active.info.receipt_id, fence_seq, withdrawn=withdrawn)
            self._settle_if_done(active, at)
            return answer
        record = self.ending.get(run_id)
        if record is not None and record.status is RunStatus.CANCELLING:
            self._join(record, provenance)
            withdrawn = ()
            if stop.waiting is not None and self.active is None:
                # What waits, waits for this run to end; were another one active, it would be that one's to say.
                withdrawn = self._treat_waiting(stop.waiting, provenance, at, record)
            return Stopped("stopping", run_id, record.info.receipt_id, record.info.fence_seq, withdrawn=withdrawn)
        turn = self.room.take_turn(run_id)
        if turn is not None:
            self._unpark_if_empty()
            withdrawn = tuple(as_message(row.message, run_id, row.accepted_at) for row in turn.rows)
            for row in turn.rows:
                self._returned(row.message, run_id, "withdrawn")
            receipt_id = self._end_queued(turn, provenance, at, tuple(message.id for message in withdrawn))
            return Stopped("stopped", run_id, receipt_id, None, withdrawn=withdrawn)
        over = record.info.receipt_id if record is not None else self.over.get(run_id)
        if over is None:
            raise NotFound(
                "there is no such run in this session",
                expected="the id of a run of this session, or none for the current one",
                got=run_id,
                remedy="list the runs of the session",
            )
        return Stopped("already_over", run_id, over, None)

    def _resume(self, resume: Resume, at: float) -> Resumed:
        self._refuse_unless_serving("a Resume")
        if self.active is not None:
            raise RunActive(
                "a run is active, there is nothing to resume",
                run_id=self.active.id,
                expected="a session without an active run",
                got=f"run {self.active.id}",
                remedy="wait for it, or stop it first",
            )
        if not len(self.room) and not self.thread.messages():
            raise Invalid(
                "there is nothing to resume",
                expected="a session with a thread or with waiting messages",
                got="a session without either",
                remedy="send a message",
            )
        rows, turns = self.room.take_all()
        run_id = turns[0].run_id if turns else self._ids.new("run")
        provenance = self._inside("session.new_message", "its messages became inputs of an earlier run", at, resume.id)
        for turn in turns[1:]:
            self._end_queued(turn, provenance, at, withdrawn=())
        self._start_run(run_id, [row.message for row in rows], at, resumed=True)
        self._event("session.resumed", {"run_id": run_id}, self.active)
        messages = tuple(as_message(row.message, run_id, row.accepted_at) for row in rows)
        return Resumed(run_id, self.generation, with_messages=messages)

    def _withdraw(self, withdraw: Withdraw, at: float) -> Withdrawn:
        taken = self.room.take_message(withdraw.message_id)
        if taken is None:
            fate = self.fates.get(withdraw.message_id)
            if fate is None:
                raise NotFound(
                    "there is no such message in this session",
                    expected="the message_id of an accepted message",
                    got=withdraw.message_id,
                    remedy="see the answer that the message got",
                )
            return Withdrawn(withdraw.message_id, "already_input" if fate == "input" else "already_returned")
        row, emptied = taken
        self._unpark_if_empty()
        self._returned(row.message, row.run_id, "withdrawn")
        if emptied is not None:
            provenance = Provenance(
                source="client.withdraw",
                reason="its last message was withdrawn",
                requested_by=withdraw.id,
                initiated_at=at,
            )
            self._end_queued(emptied, provenance, at, withdrawn=(row.message.id,))
        return Withdrawn(withdraw.message_id, "withdrawn")

    # ── Fence, close, settle ──────────────────────────────────────────────────────────────────────

    def _fence(self, provenance: Provenance, closing: RunRecord | None, at: float) -> int:
        """Shut the fence: generation + 1, cells, token, and the event of it. Returns the event's seq."""
        self.generation += 1
        if closing is not None:
            self._shut(closing, provenance)
        seq = self._event(
            "session.fenced",
            {"run_id": closing.id if closing else None, "provenance": storable_json(provenance)},
            None,
        )
        if closing is not None:
            closing.fenced_at = at
            closing.info = msgspec.structs.replace(closing.info, fence_seq=seq)
        return seq

    @staticmethod
    def _shut(record: RunRecord, provenance: Provenance) -> None:
        """Shut every cell of a run and cancel its token. From here on nothing of it can begin."""
        for call in record.calls.values():
            if call.cell is not None:
                call.cell.close()
        for process in record.processes.values():
            if process.cell is not None:
                process.cell.close()
        record.token.cancel(provenance)

    def _close(
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
        """Close a run's transcript and move its status: the one way in which any run ends.

        `provenance` is None for an end of its own; then its children end by ``run.ended``.
        """
        cause = provenance or self._inside("run.ended", "the agent's own end", at, None)
        self._shut(record, cause)
        for call in record.open_calls():
            state, finished = call.cell.close() if call.cell is not None else (None, None)
            if call.waits:
                self.step.now.append(
                    RefuseCall(record.id, call.row.call_id, notes.closed_result(None, None, cause, ""))
                )
            self._end_call(record, call, notes.closed_result(state, finished, cause, call.output), at)
            if state is CellState.VOID:
                record.parts[call.row.call_id].end(How.NOT_STARTED, at)
                call.row = msgspec.structs.replace(call.row, ended_at=at, how=How.NOT_STARTED)
                self._save_call(call)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.cell is not None and process.cell.close()[0] is CellState.VOID and not part.ended:
                self._void_spawn(record, process, part, at)
        if provenance is not None:
            record.info = msgspec.structs.replace(record.info, provenance=provenance)
        record.move(status)
        record.fenced_at = record.fenced_at or at
        record.info = msgspec.structs.replace(record.info, error=error, result=result)
        if record.terminal:
            record.info = msgspec.structs.replace(record.info, ended_at=at)
        data: JsonObject = {"status": str(status)}
        if provenance is not None:
            data["provenance"] = storable_json(provenance)
        if error is not None:
            data["error"] = error
        if result is not None:
            data["result"] = result
        if noted and provenance is not None:
            data["note"] = notes.run_note(provenance, calls_started=self._calls_started(record))
        elif noted and error is not None:
            data["note"] = notes.failure_note(error)
        self._event("run.status", data, record)
        self._save(record)
        if self.active is record:
            self.active = None
        self.ending[record.id] = record

    @staticmethod
    def _calls_started(record: RunRecord) -> bool:
        """Whether a call of a run whose cells are shut had begun, so that it may have had effects."""
        return record.effects or any(
            call.row.outcome not in (None, Outcome.NOT_STARTED)
            if call.cell is None
            else call.cell.state in (CellState.CLOSED, CellState.FINISHED)
            for call in record.calls.values()
        )

    def _halt(self, record: RunRecord, provenance: Provenance, mode: Mode) -> None:
        """Tell a closed run to end what it has, unless nothing of it is left."""
        record.mode = mode
        record.stage += 1
        if record.open_parts():
            self.step.now.append(HaltRun(record.id, provenance, mode, record.stage))

    def _join(self, record: RunRecord, provenance: Provenance) -> None:
        """A further Stop of a run that is ending: keep its cause, and raise the mode, never lower it."""
        if record.status is RunStatus.CANCELLING:
            record.info = msgspec.structs.replace(record.info, later=(*record.info.later, provenance)[-16:])
            self._save(record)
        if provenance.mode is Mode.IMMEDIATE and record.mode is Mode.GRACEFUL:
            self._halt(record, provenance, Mode.IMMEDIATE)

    def _settle_if_done(self, record: RunRecord, at: float) -> None:
        if record.id in self.ending and not record.open_parts():
            self._settle(record, at)

    def _settle(self, record: RunRecord, at: float) -> None:
        """File the receipt, once, and give a cancelled run its terminal status."""
        del self.ending[record.id]
        if record.status is RunStatus.CANCELLING:
            record.move(RunStatus.CANCELLED)
            record.info = msgspec.structs.replace(record.info, ended_at=at)
            self._event("run.status", {"status": str(RunStatus.CANCELLED)}, record)
        record.info = msgspec.structs.replace(record.info, settled=True)
        receipt = record.file_receipt(at, record.info.later)
        self.step.receipts[receipt.receipt_id] = receipt
        self._event("run.ended", {"status": str(record.status), "receipt": storable_json(receipt)}, record)
        self._save(record)
        self.over[record.id] = receipt.receipt_id
        if record.open_parts():
            self.late[record.id] = record
            while len(self.late) > LATE_KEPT_MAX:
                self.late.pop(next(iter(self.late)))
        self._go_on(at)

    def _go_on(self, at: float) -> None:
        """Something ended: let what waited for it go on."""
        if self._holding is not None and self._holding not in self.ending:
            self._holding = None
        if self.active is not None and not self.barrier():
            for call in self.active.open_calls():
                if call.waits:
                    self._grant(self.active, call)
        self._start_next(at)

    def kill_deadline(self, run_id: str, stage: int) -> None:
        """The time in which a closed run had to end has passed: name what is left, and go on."""
        record = self.ending.get(run_id)
        if record is None or record.stage != stage:
            return
        at = self._clock.wall()
        held = record.barrier()
        waiting = [call for call in self.active.open_calls() if call.waits] if self.active else []
        if self._settings.barrier == "forced":
            record.forced = True
            if held:
                names = [f"{part.kind} {part.name}" for part in held]
                self._event("session.barrier_forced", {"run_id": record.id, "abandoned": names}, self.active or record)
            self._settle(record, at)
            return
        self._settle(record, at)
        if held and self.active is not None:
            # Strict: what waits is refused, and so is what comes until the parts are proven ended.
            for call in waiting:
                self._refuse_strictly(self.active, call, at)

    def barrier(self) -> list[Part]:
        """What the permits of the active run wait for: parts of every earlier run, however it ended."""
        return [
            part
            for record in (*self.ending.values(), *self.late.values())
            if record is not self.active
            for part in record.barrier()
        ]

    # ── Starting ──────────────────────────────────────────────────────────────────────────────────

    def _start_run(
        self,
        run_id: str,
        inputs: Iterable[NewMessage],
        at: float,
        *,
        counted: bool = False,
        resumed: bool = False,
        retry: RunInfo | None = None,
    ) -> None:
        assert self.active is None, "a session has at most one active run"
        if not counted:
            self.generation += 1
        messages = list(inputs)
        ids = tuple(message.id for message in messages) if retry is None else retry.inputs
        info = RunInfo(
            session=self.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            agent=self._settings.agent,
            generation=self.generation,
            receipt_id=self._ids.new("rcpt"),
            inputs=ids,
            retry_of=retry.run_id if retry else None,
            attempt=retry.attempt + 1 if retry else 1,
            created_at=at,
            started_at=at,
        )
        queued = self._queued.pop(run_id, None)
        if queued is not None:
            info = msgspec.structs.replace(info, receipt_id=queued.receipt_id, created_at=queued.created_at)
        settings = self._settings
        record = RunRecord(info, CancelToken(self._notify), Credit(settings.credit_events, settings.credit_bytes))
        record.move(RunStatus.IN_PROGRESS)
        self.active = record
        for message in messages:
            self._input(message, record)
        data: JsonObject = {"agent": info.agent, "inputs": list(ids)}
        if resumed:
            data["resumed"] = True
        if retry is not None:
            data["retry_of"] = retry.run_id
        self._event("run.started", data, record)
        self._save(record)
        self.step.later.append(StartRun(run_id))

    def _input(self, message: NewMessage, record: RunRecord) -> None:
        """A message becomes an input: only now it is in the thread."""
        self.fates[message.id] = "input"
        self.step.unwait(message)
        data: JsonObject = {
            "id": message.id,
            "content": message.content,
            "origin": message.origin,
            "policy": str(message.resolved_policy),
        }
        if message.sent_at is not None:
            data["sent_at"] = message.sent_at
        self._event("message", data, record)

    def may_start(self, run_id: str) -> RunRecord | None:
        """Ask, after the commit, whether a run may start its agent; if so its part is on record now."""
        record = self.active
        if record is None or record.id != run_id or AGENT in record.parts:
            return None
        record.parts[AGENT] = Part(AGENT, AGENT, record.info.agent, None, holds=False, started_at=self._clock.wall())
        return record

    def _start_next(self, at: float) -> None:
        """Start the first pending turn, if the session is free for it."""
        if self.active is not None or self.draining or self.quarantined or self.room.parked or self._holding:
            return
        if self._taking_up:
            # What ends meanwhile must not start the next turn in front of a retry, or of a Stop that was kept.
            return
        turn = self.room.take_next()
        if turn is not None:
            self._start_run(turn.run_id, [row.message for row in turn.rows], at)

    # ── Waiting messages ──────────────────────────────────────────────────────────────────────────

    def _waits(self, row: WaitingRow) -> None:
        self.step.wait(row)
        message = row.message
        self._event(
            "session.message_waiting",
            {
                "message_id": message.id,
                "run_id": row.run_id,
                "steering": row.steering,
                "content": message.content,
                "origin": message.origin,
            },
            None,
            run_id=row.run_id,
        )

    def _returned(self, message: NewMessage, run_id: str | None, reason: str) -> None:
        self.fates[message.id] = "returned"
        self.step.unwait(message)
        self._event(
            "session.message_returned",
            {"message_id": message.id, "reason": reason, "content": message.content, "origin": message.origin},
            None,
            run_id=run_id,
        )

    def _queue_run(self, run_id: str, at: float) -> None:
        info = RunInfo(
            session=self.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            agent=self._settings.agent,
            generation=None,
            receipt_id=self._ids.new("rcpt"),
            created_at=at,
        )
        self._queued[run_id] = info
        self.step.runs[run_id] = info

    def _unsteer(self, at: float) -> None:
        """The active run is over: what waited to steer it waits on as a pending turn, in its place."""
        rows, new = self.room.unsteer(lambda: self._ids.new("run"))
        for run_id in new:
            self._queue_run(run_id, at)
        for row in rows:
            self._waits(row)

    def _unpark_if_empty(self) -> None:
        """Nothing is parked where nothing waits: a later message need not wait for a person."""
        if self.room.parked and not len(self.room):
            self.room.parked = False
            self.step.row_changed = True

    def _treat_waiting(
        self, waiting: Waiting, provenance: Provenance, at: float, closed: RunRecord | None
    ) -> tuple[Message, ...]:
        """Do with the waiting messages what a Stop says. Returns those that were withdrawn."""
        if waiting is not Waiting.WITHDRAW and closed is not None:
            self._unsteer(at)
            closed.waiting = tuple(row.message.id for turn in self.room.turns for row in turn.rows)
        if waiting is Waiting.PARK:
            self.room.parked = self.room.parked or bool(len(self.room))
            self.step.row_changed = True
            return ()
        if waiting is Waiting.KEEP:
            if closed is not None and len(self.room):
                self._holding = closed.id
            return ()
        rows, turns = self.room.take_all()
        withdrawn = tuple(as_message(row.message, row.run_id, row.accepted_at) for row in rows)
        for row in rows:
            self._returned(row.message, row.run_id, "withdrawn")
        for turn in turns:
            self._end_queued(turn, provenance, at, tuple(row.message.id for row in turn.rows))
        if closed is not None:
            closed.withdrawn += tuple(message.id for message in withdrawn)
        return withdrawn

    def _end_queued(self, turn: PendingTurn, provenance: Provenance, at: float, withdrawn: tuple[str, ...]) -> str:
        """A run that never started is cancelled, with a receipt that says so. Returns the receipt's id."""
        info = self._queued.pop(turn.run_id)
        record = RunRecord(info, CancelToken(self._notify), Credit(1, 1), withdrawn=withdrawn, fenced_at=at)
        record.token.cancel(provenance)
        record.info = msgspec.structs.replace(record.info, provenance=provenance, ended_at=at)
        record.move(RunStatus.CANCELLED)
        data = {"status": str(RunStatus.CANCELLED), "provenance": storable_json(provenance)}
        self._event("run.status", data, record)
        record.info = msgspec.structs.replace(record.info, settled=True)
        receipt = record.file_receipt(at, ())
        self.step.receipts[receipt.receipt_id] = receipt
        self._event("run.ended", {"status": str(record.status), "receipt": storable_json(receipt)}, record)
        self._save(record)
        self.over[info.run_id] = receipt.receipt_id
        return receipt.receipt_id

    # ── Reports of the active run ─────────────────────────────────────────────────────────────────

    def _open(self, address: Address) -> RunRecord | None:
        """Return the run that an address belongs to if all of the address is open; else None (stale)."""
        record = self.active
        if (
            record is None
            or address.session != self.session
            or address.generation != self.generation
            or address.run != record.id
            or not record.open
        ):
            return None
        if address.call is not None:
            call = record.calls.get(address.call)
            if call is None or not call.open:
                return None
        return record

    def _stale(self, kind: str, address: Address, shown: object = "") -> None:
        """Count what an ended run still tried to do, and keep it as a dead letter."""
        record = self._record(address.run)
        if record is not None:
            record.refused[kind] += 1
        self._dead(kind, "its generation, run or call is closed", address, shown)

    def _dead(self, kind: str, why: str, address: Address | None, shown: object) -> None:
        self.step.now.append(DeadLetter(kind, why, address, f"{shown!s:.200}"))

    def said(self, said: Said) -> None:
        """The agent said something."""
        record = self._open(said.address)
        if record is None:
            self._stale(said.kind, said.address, said.data)
            self.step.later.append(ReturnCredit(said.address.run, said.size))
            return
        if said.kind == "text":
            record.said = True
            self._event("text", {"text": storable(str(said.data.get("text", "")))}, record)
        else:
            event = Event(
                self.seq,
                self.session,
                self.generation,
                record.id,
                said.kind,
                storable_json(said.data),
                self._clock.wall(),
            )
            self.step.later.append(ShowEphemeral(event))
        self.step.later.append(ReturnCredit(record.id, said.size))

    def call_requested(self, request: CallRequested) -> None:
        """The agent asks for a call: it is on record, and starts when the barrier lets it."""
        call_id = request.address.call
        assert call_id is not None, "a call is requested under its own address"
        record = self._open(Address(request.address.session, request.address.generation, request.address.run))
        if record is None:
            self._stale("call", request.address, request.tool)
            result = ToolResult(Outcome.NOT_STARTED, "Not started: the run is over.", is_error=True)
            self.step.now.append(RefuseCall(request.address.run, call_id, result))
            return
        if call_id in record.calls:
            self._dead("call", "it was asked for before", request.address, request.tool)
            return
        problem = request.problem
        if problem is None and len(record.open_calls()) >= self._settings.calls_open_max:
            problem = f"too many calls are open: at most {self._settings.calls_open_max} at once"
        arguments: JsonObject = storable_json(request.arguments)
        row = CallRow(
            session=self.session,
            run_id=record.id,
            call_id=call_id,
            tool=request.tool,
            arguments=arguments,
            state="requested",
            isolation=self._isolation.get(request.tool, "thread"),
        )
        call = CallRecord(row)
        record.calls[call_id] = call
        record.called = True
        self._event("tool.requested", {"call_id": call_id, "tool": request.tool, "arguments": arguments}, record)
        self._save_call(call)
        at = self._clock.wall()
        if problem is not None:
            result = ToolResult(Outcome.NOT_STARTED, f"Not started: {problem}", is_error=True)
            self._end_call(record, call, result, at)
            self.step.now.append(RefuseCall(record.id, call_id, result))
        elif not self.barrier():
            self._grant(record, call)
        elif self._settings.barrier == "strict" and not self._barrier_may_open():
            self._refuse_strictly(record, call, at)
        else:
            self.step.now.append(MakeWait(record.id, call_id))

    def _barrier_may_open(self) -> bool:
        """True while no kill deadline of what the barrier waits for has passed."""
        return not any(record.barrier() for record in self.late.values())

    def _refuse_strictly(self, record: RunRecord, call: CallRecord, at: float) -> None:
        names = ", ".join(f"{part.kind} {part.name}" for part in self.barrier())
        result = ToolResult(
            Outcome.NOT_STARTED,
            f"Not started: something of an earlier run could not be ended ({names}).",
            is_error=True,
        )
        self._end_call(record, call, result, at)
        self.step.now.append(RefuseCall(record.id, call.row.call_id, result))

    def _grant(self, record: RunRecord, call: CallRecord) -> None:
        """Grant a call: cell, token and part are there before the permit leaves (after the commit)."""
        cell: Cell[ToolResult] = Cell()
        token = CancelToken(self._notify, record.token)
        call.cell, call.token = cell, token
        call.row = msgspec.structs.replace(call.row, state="granted")
        call_id = call.row.call_id
        record.parts[call_id] = Part(call_id, "call", call.row.tool, None, holds=call.row.isolation != "task")
        self._save_call(call)
        self.step.later.append(GivePermit(record.id, call_id, cell, token))

    def call_started(self, report: CallStarted) -> None:
        """A call passed its cell."""
        record = self._open(report.address)
        call = self._call(report.address)
        part = self._part(report.address)
        if part is not None:
            part.started_at = report.at
        if record is None or call is None or call.row.state != "granted":
            self._dead("call_started", "its call is closed, or has started before", report.address, "")
            return
        call.row = msgspec.structs.replace(call.row, state="started", started_at=report.at)
        self._event("tool.started", {"call_id": call.row.call_id}, record)
        self._save_call(call)

    def call_ended(self, report: CallEnded) -> None:
        """A call's execution ended. For an open call this brings its result; for a closed one, proof."""
        record = self._open(report.address)
        call = self._call(report.address)
        if record is not None and call is not None and report.result is not None:
            self._end_call(record, call, report.result, report.at)
        elif record is not None and call is not None:
            # The execution is gone and brought no result (its actor failed, or it could not be started).
            text = report.note or "the call ended without a result"
            state = call.cell.close()[0] if call.cell is not None else None
            outcome = Outcome.INTERRUPTED if state is CellState.CLOSED else Outcome.NOT_STARTED
            self._end_call(record, call, ToolResult(outcome, f"Interrupted: {text}.", is_error=True), report.at)
        elif report.late or report.result is not None:
            self._stale("result", report.address, report.how)
        self._part_ended(report.address, report.how, report.at, report.note)

    def call_expired(self, report: CallExpired) -> None:
        """A call's deadline closed it. The run goes on; the execution may go on ending."""
        record = self._open(report.address)
        call = self._call(report.address)
        if record is None or call is None:
            self._dead("call_expired", "its call is closed", report.address, "")
            return
        state = CellState.CLOSED if report.started else CellState.VOID
        result = notes.closed_result(state, None, report.provenance, call.output)
        self._end_call(record, call, result, report.at, provenance=report.provenance)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.row.call_id != call.row.call_id or process.cell is None:
                continue
            if process.cell.close()[0] is CellState.VOID and not part.ended:
                self._void_spawn(record, process, part, report.at)

    def _end_call(
        self,
        record: RunRecord,
        call: CallRecord,
        result: ToolResult,
        at: float,
        provenance: Provenance | None = None,
    ) -> None:
        """Give a call its one result in the log."""
        content = cut(storable(result.content), self._settings.content_max_bytes)
        call.row = msgspec.structs.replace(call.row, state="ended", outcome=str(result.outcome))
        data: JsonObject = {
            "call_id": call.row.call_id,
            "tool": call.row.tool,
            "outcome": str(result.outcome),
            "content": content,
            "is_error": result.is_error,
        }
        if result.data is not None:
            data["data"] = storable_json(result.data)
        if provenance is not None:
            data["provenance"] = storable_json(provenance)
        self._event("tool.ended", data, record)
        if call.row.call_id not in record.parts:
            call.row = msgspec.structs.replace(call.row, ended_at=at)
        self._save_call(call)

    def spawn_requested(self, request: SpawnRequested) -> None:
        """A tool asks for a process: on record, and gated, before it is spawned."""
        address = request.address
        record = self._open(address)
        call = self._call(address)
        if record is None or call is None or address.call is None:
            self._stale("spawn", address, request.spec.name)
            self.step.now.append(RefuseSpawn(address.run, address.call or "", request.process_id))
            return
        if request.process_id in record.processes:
            self._dead("spawn", "it was asked for before", address, request.spec.name)
            return
        if len([p for p in record.open_parts() if p.kind == "process"]) >= self._settings.processes_max:
            self._stale("spawn_over_limit", address, request.spec.name)
            self.step.now.append(RefuseSpawn(record.id, address.call, request.process_id))
            return
        cell: Cell[None] = Cell()
        row = ProcessRow(
            self.session, record.id, address.call, request.process_id, storable(request.spec.name), "granted"
        )
        record.processes[request.process_id] = ProcessRecord(row, cell)
        record.parts[request.process_id] = Part(request.process_id, "process", row.name, address.call, holds=True)
        self.step.processes[request.process_id] = row
        self.step.later.append(GiveSpawn(record.id, SpawnPermit(address.call, request.process_id, cell)))

    def process_report(self, report: ProcessReport) -> None:
        """News of a process tree. Endings are taken in any generation; the rest only while the call is open."""
        record = self._record(report.address.run)
        part = record.parts.get(report.process_id) if record is not None else None
        if record is None or part is None:
            self._dead("process", "its run is not known", report.address, report.process_id)
            if isinstance(report.news, ProcessEnded) and report.news.proven:
                self.step.later.append(ForgetPart("process", report.process_id))
            return
        open_run = self._open(Address(report.address.session, report.address.generation, report.address.run))
        match report.news:
            case ProcessStarted() as news:
                known, part.pid, part.started_at = part.pid, news.pid, news.at
                if open_run is not None and known is None:
                    data = {
                        "call_id": report.address.call,
                        "process_id": report.process_id,
                        "pid": news.pid,
                        "name": part.name,
                    }
                    self._event("process.started", data, record)
            case ProcessOutput() as news:
                self._process_output(record, report, news)
            case ProcessExited() as news:
                part.status = news.status
            case ProcessEnded() as news:
                self._process_ended(record, part, report, news)

    def _process_output(self, record: RunRecord, report: ProcessReport, news: ProcessOutput) -> None:
        if self._open(report.address) is None:
            self._stale("output", report.address, news.text)
            return
        call = record.calls[report.address.call or ""]
        data: JsonObject = {
            "call_id": report.address.call,
            "process_id": report.process_id,
            "stream": news.stream,
            "text": storable(news.text),
        }
        if news.marker:
            data["marker"] = True
        call.output = tail(call.output + news.text, OUTPUT_KEPT_CHARS)
        self._event("tool.output", data, record)

    def _process_ended(self, record: RunRecord, part: Part, report: ProcessReport, news: ProcessEnded) -> None:
        if part.ended or (part.lost and not news.proven):
            # Told again, to one that took the tree over.
            if news.proven:
                self.step.later.append(ForgetPart("process", report.process_id))
            return
        record.end_process(news)
        at = self._clock.wall()
        data: JsonObject = {
            "call_id": report.address.call,
            "process_id": report.process_id,
            "how": str(news.how),
            "status": news.status,
            "reaped": news.reaped,
            "proven": news.proven,
        }
        if news.note:
            data["note"] = news.note
        self._event("process.ended", data, record)
        if not news.proven:
            return
        process = record.processes.get(report.process_id)
        if process is not None:
            self._process_row_ended(process, part)
        self.step.later.append(ForgetPart("process", report.process_id))
        self._after_part(record, at)

    def _void_spawn(self, record: RunRecord, process: ProcessRecord, part: Part, at: float) -> None:
        """A spawn that was granted will not take place: its tool is told, also where the permit is on its way."""
        part.end(How.NOT_STARTED, at)
        self._process_row_ended(process, part)
        self.step.now.append(RefuseSpawn(record.id, process.row.call_id, process.row.process_id))

    def _process_row_ended(self, process: ProcessRecord, part: Part) -> None:
        process.row = msgspec.structs.replace(process.row, state="ended", end=part.as_row(()))
        self.step.processes[process.row.process_id] = process.row

    def steering_requested(self, request: SteeringRequested) -> None:
        """The agent asks for messages that wait to steer it: they become inputs of this run now."""
        record = self._open(request.address)
        if record is None:
            self._stale("steering", request.address)
            self.step.now.append(NothingToSteer(request.address.run, request.request_id))
            return
        if record.open_calls() or not self.room.steering:
            self.step.now.append(NothingToSteer(record.id, request.request_id))
            return
        rows = self.room.pull_steering()
        for row in rows:
            self._input(row.message, record)
        inputs = (*record.info.inputs, *(row.message.id for row in rows))
        record.info = msgspec.structs.replace(record.info, inputs=inputs)
        self._save(record)
        at = self._clock.wall()
        messages = tuple(
            Message(
                id=row.message.id,
                role="user",
                content=row.message.content,
                generation=self.generation,
                run_id=record.id,
                origin=row.message.origin,
                sent_at=row.message.sent_at,
                at=at,
            )
            for row in rows
        )
        self.step.later.append(GiveSteering(record.id, Steered(request.request_id, messages)))

    def run_finished(self, report: RunFinished) -> None:
        """The agent ended. While its run is open that is the run's end; else one more part of it ended."""
        record = self._open(report.address)
        at = self._clock.wall()
        if record is None:
            if report.how is How.RETURNED:
                self._stale("result", report.address, report.result)
            self._part_ended(report.address, report.how, report.at, report.error or "")
            return
        record.parts[AGENT].end(report.how, report.at, report.error or "")
        self.step.later.append(ForgetPart("execution", record.id))
        if report.how is How.RETURNED:
            result = storable_json(report.result)
            self._end_run(record, RunStatus.COMPLETED, None, at, result=result)
        else:
            error = storable(report.error or "the agent ended without saying why")
            self._end_run(record, RunStatus.FAILED, None, at, error=error)

    def run_expired(self, report: RunExpired) -> None:
        """The run's deadline passed."""
        record = self._open(report.address)
        if record is None:
            self._dead("run_expired", "its run is closed", report.address, "")
            return
        self._end_run(record, RunStatus.EXPIRED, report.provenance, self._clock.wall())

    def run_lost(self, run_id: str, failure: str | None) -> None:
        """A run's actor is gone. If its run was open it has failed; what it had running is taken over."""
        record = self._record(run_id)
        if record is None:
            return
        at = self._clock.wall()
        if record is self.active:
            reason = f"the run's actor is gone: {failure or 'it was stopped'}"
            provenance = self._inside("actor.failure", reason, at, None)
            self._end_run(record, RunStatus.FAILED, provenance, at, error=reason)
        if record.open_parts() and record.adoptions < ADOPTIONS_MAX:
            record.adoptions += 1
            self.step.later.append(AdoptRun(run_id))

    def _end_run(
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
        cause = provenance or self._inside("run.ended", f"the run is {status}", at, None)
        self._close(record, status, provenance, at, error=error, result=result)
        self._halt(record, cause, Mode.GRACEFUL)
        self._unsteer(at)
        self._settle_if_done(record, at)
        self._start_next(at)

    # ── Ends of parts ─────────────────────────────────────────────────────────────────────────────

    def _part_ended(self, address: Address, how: How, at: float, note: str) -> None:
        """An execution ended, of an open or a closed run, in any generation."""
        record = self._record(address.run)
        key = address.call or AGENT
        part = record.parts.get(key) if record is not None else None
        if record is None or part is None or part.ended:
            # Voided by a fence, or of a run that settled long ago: its port may forget it all the same.
            self.step.later.append(ForgetPart("execution", address.call or address.run))
            return
        if address.call is not None and record.calls[address.call].row.outcome == Outcome.NOT_STARTED:
            # What never passed its cell was not killed, whoever says that it is gone.
            how = How.NOT_STARTED
        part.end(how, at, note)
        if address.call is not None:
            call = record.calls[address.call]
            call.row = msgspec.structs.replace(call.row, ended_at=at, how=how)
            self._save_call(call)
            if call.token is not None:
                call.token.detach()
        self.step.later.append(ForgetPart("execution", address.call or record.id))
        record.trim()
        self._after_part(record, self._clock.wall())

    def _after_part(self, record: RunRecord, at: float) -> None:
        """A part ended for sure: settle its run, amend its receipt, or let permits go on."""
        if record.id in self.late:
            receipt = record.file_receipt(at, record.info.later)
            self.step.receipts[receipt.receipt_id] = receipt
            self._event("receipt.amended", {"receipt": storable_json(receipt)}, record)
            if not record.open_parts():
                del self.late[record.id]
            self._go_on(at)
            return
        self._settle_if_done(record, at)
        self._go_on(at)

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────

    def restore(
        self,
        snapshot: Snapshot,
        cause: Provenance | None,
        *,
        quarantined: bool = False,
        stopped: Mapping[str, Provenance] | None = None,
        stops: Iterable[Stop] = (),
    ) -> None:
        """Take up a session from the store: close every half-run, adopt what may still run, go on.

        Args:
            snapshot: what the store holds.
            cause: why the incarnation before ended; None after a restart of the supervisor.
            quarantined: take Stop and nothing else from now on.
            stopped: runs that somebody had stopped, when the store did not take the record of it.
            stops: the Stops that the store did not take: they are decided before anything starts, so that what
                they withdrew or stopped does not run.
        """
        at = self._clock.wall()
        self._taking_up = True
        stops = tuple(stops)
        unaimed = next((self._provenance_of(stop, at) for stop in stops if stop.run_id is None), None)
        row = snapshot.row
        if row is not None:
            self.generation, self.seq = row.generation, row.seq
            self.cutoffs = dict(row.cutoffs)
        self.thread = snapshot.thread
        self.fates = dict(snapshot.fates)
        self.over = dict(snapshot.over)
        self.requests.restore(snapshot.requests)
        self.room.restore(snapshot.waiting, parked=row.parked if row is not None else False)
        self._queued = {info.run_id: info for info in snapshot.runs if info.status is RunStatus.QUEUED}
        if quarantined:
            # A restart of the supervisor lifts it: the count of failures lives with the supervisor.
            self.quarantined = True
            self._event("session.quarantined", {}, None)
        halves = [info for info in snapshot.runs if info.status is not RunStatus.QUEUED]
        cause = cause or self._inside(
            "supervisor.recovery", "the supervisor ended while the run was going on", at, None
        )
        retry: RunInfo | None = None
        for info in halves:
            retry = self._take_up(snapshot, info, cause, (stopped or {}).get(info.run_id, unaimed), at) or retry
        self._unsteer(at)
        waiting_for = {turn.run_id for turn in self.room.turns}
        for run_id in [run_id for run_id in self._queued if run_id not in waiting_for]:
            self._end_queued(PendingTurn(run_id, merge=False), cause, at, withdrawn=())
        for stop in stops:
            try:
                self.request(stop, None)
            except CountermandError as error:
                # Aimed at a run that the store never heard of: it is over, and nothing of it is left to stop.
                self._dead("stop", str(error), None, stop.id)
        self._taking_up = False
        if self.draining or self.quarantined:
            return
        if retry is not None:
            self._start_run(self._ids.new("run"), (), at, retry=retry)
        self._start_next(at)

    def _take_up(
        self, snapshot: Snapshot, info: RunInfo, cause: Provenance, stopped: Provenance | None, at: float
    ) -> RunInfo | None:
        """Take up one run that was not settled. Returns it if its inputs are to be tried again."""
        record = restored(
            info,
            CancelToken(self._notify),
            Credit(self._settings.credit_events, self._settings.credit_bytes),
            [row for row in snapshot.calls if row.run_id == info.run_id],
            [row for row in snapshot.processes if row.run_id == info.run_id],
        )
        record.said = info.run_id in snapshot.said
        again = None
        self.ending[record.id] = record
        if info.status is RunStatus.IN_PROGRESS and stopped is not None:
            self._fence(stopped, record, at)
            self._close(record, RunStatus.CANCELLING, stopped, at)
        elif info.status is RunStatus.IN_PROGRESS:
            untouched = not record.said and not record.called
            if untouched and info.attempt < self._settings.attempts_max and not self.quarantined:
                again = info
            self._fence(cause, record, at)
            self._close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)
        else:
            record.token.cancel(info.provenance or cause)
        record.fenced_at = record.fenced_at or at
        record.stage += 1
        if record.open_parts():
            self.step.later.append(AdoptRun(record.id))
            self.step.now.append(HaltRun(record.id, record.info.provenance or cause, Mode.GRACEFUL, record.stage))
        self._settle_if_done(record, at)
        return again

    def abandon(self, provenance: Provenance) -> None:
        """Shut every gate at once, without a record: the actor is failing, or the store takes no writes."""
        for record in self._records():
            self._shut(record, provenance)

    def drain(self) -> None:
        """Refuse new work from now on; what runs may end by itself, what waits stays for the next start."""
        self.draining = True

    def interrupt(self, provenance: Provenance) -> None:
        """End the active run from inside, as a shutdown does; what waits stays for the next start."""
        active = self.active
        if active is None:
            return
        at = self._clock.wall()
        self._fence(provenance, active, at)
        self._close(active, RunStatus.CANCELLING, provenance, at)
        self._halt(active, provenance, provenance.mode)
        self._unsteer(at)
        self._settle_if_done(active, at)

    # ── Small helpers ─────────────────────────────────────────────────────────────────────────────

    def _records(self) -> Iterable[RunRecord]:
        if self.active is not None:
            yield self.active
        yield from self.ending.values()
        yield from self.late.values()

    def _record(self, run_id: str) -> RunRecord | None:
        if self.active is not None and self.active.id == run_id:
            return self.active
        return self.ending.get(run_id) or self.late.get(run_id)

    def record(self, run_id: str) -> RunRecord | None:
        """The record of a run that is active or ending, or of which something was abandoned."""
        return self._record(run_id)

    def _call(self, address: Address) -> CallRecord | None:
        record = self._record(address.run)
        if record is None or address.call is None:
            return None
        return record.calls.get(address.call)

    def _part(self, address: Address) -> Part | None:
        record = self._record(address.run)
        return record.parts.get(address.call or AGENT) if record is not None else None

    def _inside(self, source: str, reason: str, at: float, requested_by: str | None) -> Provenance:
        return Provenance(source=source, reason=reason, requested_by=requested_by, initiated_at=at)

    def _save(self, record: RunRecord) -> None:
        self.step.runs[record.id] = record.info

    def _save_call(self, call: CallRecord) -> None:
        self.step.calls[call.row.call_id] = call.row

    def _event(self, kind: str, data: JsonObject, record: RunRecord | None, *, run_id: str | None = None) -> int:
        """Append to the log: the seq is given here and nowhere else. A run's record keeps its own generation."""
        self.seq += 1
        generation = self.generation
        if record is not None:
            run_id = record.id
            if record.info.generation is not None:
                generation = record.info.generation
        event = Event(self.seq, self.session, generation, run_id, kind, data, self._clock.wall())
        self.thread.apply(event)
        self.step.events.append(event)
        self.step.row_changed = True
        return self.seq
