"""The protocol of a session: state and message in, records and effects out.

Theory of operation. Everything that a session decides is decided here and in the four classes below it, one message
at a time, without a thread, a clock or a file: so it can be read, tested and simulated as it is. `SessionActor` carries
the steps out. `SessionState` holds the state and the log, `RunReports` decides what an open run may do, `RunLifecycle`
how runs begin and end, `OwnedTrees` what becomes of process trees that belong to the session; this class decides what
is asked from outside, and how a session is taken up again.

A superseding message is one step: the fence, the close of the old run, and the start of the next, in one batch, whose
answer is given when it is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from loguru import logger

from actors.errors import CountermandError, Invalid, NotFound, Quarantined, QueueFull, RunActive, ShuttingDown, TooLarge
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.ids import request_time
from actors.kernel.future import ReplyFuture
from actors.model import (
    FAILURES,
    OUTSIDE_SOURCES,
    SUPERSEDING,
    JsonObject,
    Message,
    Mode,
    Policy,
    Provenance,
    Receipt,
    RunInfo,
    RunStatus,
    Scope,
    Waiting,
)
from actors.ports import AttachmentRow, KeptStop, SessionRow, Snapshot
from actors.protocol.queue import PendingTurn, WaitingRoom, as_message
from actors.protocol.run_record import STRAYS, RunRecord, restored
from actors.protocol.step import (
    AdoptRun,
    AnswerRequest,
    ForgetPart,
    ForgetSession,
    ForgetStop,
    HaltRun,
    RefuseRequest,
)
from actors.protocol.trees import OwnedTrees
from actors.requests import (
    Accepted,
    Answer,
    Decided,
    Delete,
    Deleted,
    NewMessage,
    OutsideRequest,
    Reply,
    Resume,
    Resumed,
    Stop,
    Stopped,
    Withdraw,
    Withdrawn,
)
from actors.text import storable_json
from actors.thread import Thread

CUTOFFS_MAX: Final = 256
DELETIONS_MAX: Final = 1000
"""Origins whose last Stop is remembered, of a session."""


class Protocol(OwnedTrees):
    """One session's decisions on requests from outside. Not thread-safe: it lives in its session's mailbox."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deletions: list[tuple[Delete, ReplyFuture[Any] | None]] = []
        # While the session is taken up, of each Stop that is decided again: the run that was closed on its behalf.
        self._closed_for: dict[str, RunRecord] = {}
        # Stops of which `session.stop_durable` is in the log.
        self._told_durable: set[str] = set()

    def request(
        self, request: OutsideRequest, reply: ReplyFuture[Any] | None, kept: KeptStop | None = None
    ) -> Reply | None:
        """Decide a request from outside; its answer is given when the step's batch is committed.

        Args:
            request: what is asked.
            reply: where the answer goes.
            kept: a Stop that came before, and is not on record: what was sent since it came did not come before it, and
                what it was answered stands.

        Returns:
            The answer; None for a Delete that waits for its proofs.

        Raises:
            CountermandError: it is refused; nothing was changed.
        """
        at = self._clock.wall()
        known = self.requests.known(request, at)
        if known is None and isinstance(request, Delete):
            self._delete(request, reply, at)
            return None
        if known is None:
            assert not isinstance(request, Delete), "decided above"
            known = self._decide(request, at, kept)
            forgotten_to = self.requests.forgotten_to
            self.step.requests.append(self.requests.answered(request, known, at))
            if self.requests.forgotten_to != forgotten_to:
                self.step.row_changed = True
        elif isinstance(known, Accepted) and known.queued:
            # Its answer stands, and its sender learns besides what became of it.
            known = msgspec.structs.replace(known, fate=self.fates.get(known.message_id))
        self.step.later.append(AnswerRequest(request, reply, known))
        return known

    def _decide(self, request: Decided, at: float, kept: KeptStop | None) -> Reply:
        match request:
            case NewMessage():
                return self._new_message(request, at)
            case Stop():
                return self._stop(request, at, kept)
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

    # ── NewMessage ───────────────────────────────────────────────────────────────────────────────────

    def _new_message(self, message: NewMessage, at: float) -> Accepted:
        self._refuse_unless_serving("a new message")
        # What is shown of one that is not UTF-8 is made of its attachment.
        size = sum(len(one.data) for one in message.attachments) or len(message.content.encode())
        if size > self._settings.message_max_bytes:
            raise TooLarge(
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
        # One that lies ahead of the clock was there before that was set back: nothing sent now is measured by it.
        if message.sent_at is not None and cutoff is not None and message.sent_at < cutoff <= at:
            self._returned(message, None, "stopped_before_arrival")
            return Accepted(message.id, None, None, policy, returned="stopped_before_arrival")
        accepted = self._take(message, policy, at)
        self.step.attachments += [
            AttachmentRow(self.session, attachment.name, attachment.data, at) for attachment in message.attachments
        ]
        return accepted

    def _take(self, message: NewMessage, policy: Policy, at: float) -> Accepted:
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
        if self.deleting is not None:
            raise NotFound(
                f"{what} is refused: the session is being deleted",
                expected="Stop, which it still takes",
                got=what,
                remedy="send it again when the session is deleted, to begin a new one, or to another session",
            )
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
        unavailable = self._unavailable()
        if unavailable is not None:
            raise unavailable

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

    # ── Stop ─────────────────────────────────────────────────────────────────────────────────────────

    def _stop(self, stop: Stop, at: float, kept: KeptStop | None) -> Stopped:
        answer = None if kept is None else kept.answer
        if self.deleted and answer is None:
            # Its fence would be an event, and the name would be in use again.
            raise NotFound(
                f"there is no session {self.session}: it was deleted",
                expected="a session that has had a message since",
                got=f"Stop {stop.id}",
                remedy="nothing of it runs, and nothing waits: there is nothing to stop",
            )
        handled_at = at if kept is None else min(at, kept.at)
        provenance = self.provenance_of(stop, handled_at)
        if answer is None:
            stopped = self._stop_found(stop, provenance, at)
        elif self.deleted:
            # It was answered while the store failed, which never took what had begun the session anew.
            self._file_what_was_told(answer, provenance, at)
            stopped = msgspec.structs.replace(answer, durable=True)
        else:
            stopped = self._stop_again(stop, answer, provenance, at)
        if stopped.outcome != "already_over":
            # A Stop that came too late for its run does nothing, to messages that are under way neither (law L9).
            # And a clock that is ahead does not cut off what is sent from now on. On its way here a Stop may have
            # waited, with others behind it: its id tells when it was made, whoever sends it.
            made_at = request_time(stop.id) if stop.sent_at is None else None
            sent_at = provenance.initiated_at if made_at is None else made_at
            self._cut_off(stop.origin, min(sent_at, handled_at), at)
        return stopped

    def _stop_found(self, stop: Stop, provenance: Provenance, at: float) -> Stopped:
        """Stop what is there."""
        if stop.run_id is not None:
            return self._stop_aimed(stop, stop.run_id, provenance, at)
        return self._stop_current(stop, provenance, at)

    def _stop_again(self, stop: Stop, answer: Stopped, provenance: Provenance, at: float) -> Stopped:
        """Carry out a Stop again that the store did not take. Its answer stands, whatever is found now (law L10)."""
        found = answer
        # On record a run may wait that had begun, and had ended, and the store took neither: it was told to be over.
        queued = self._stop_queued(answer.run_id, provenance, at)
        if answer.outcome != "already_over":
            try:
                found = self._stop_found(stop, provenance, at)
            except NotFound:
                logger.debug("session {}: nothing is on record of what Stop {} has stopped", self.session, stop.id)
        if queued is not None:
            found = msgspec.structs.replace(found, withdrawn=(*queued.withdrawn, *found.withdrawn))
        self._file_what_was_told(answer, provenance, at)
        joined = [run_id for run_id in (found.run_id, *found.joined) if run_id not in (None, answer.run_id)]
        said = {"outcome": answer.outcome, "run_id": answer.run_id, "receipt_id": answer.receipt_id}
        return msgspec.structs.replace(found, **said, durable=True, joined=tuple(joined))

    def _file_what_was_told(self, answer: Stopped, provenance: Provenance, at: float) -> None:
        """File the receipt that an answer named, also if its run was never stored or there was none."""
        run_id = answer.run_id
        if run_id is not None and (run_id in self.over or run_id in self._queued or self._record(run_id) is not None):
            return
        if answer.receipt_id in self.step.receipts or answer.receipt_id in self.step.pending:
            return
        self.step.receipts[answer.receipt_id] = Receipt(
            receipt_id=answer.receipt_id,
            run_id=run_id,
            generation=self.generation,
            provenance=provenance,
            fenced_at=at,
            ended_at=at,
            complete=True,
        )

    def stop_durable(self, stop: Stop, answer: Stopped) -> None:
        """A Stop that was answered before the store had it is on record now: say so, and let the journal forget it."""
        if stop.id not in self._told_durable:
            self._told_durable.add(stop.id)
            data: JsonObject = {"request_id": stop.id, "outcome": answer.outcome, "receipt_id": answer.receipt_id}
            self._event("session.stop_durable", data, None, run_id=answer.run_id)
        self.step.later.append(ForgetStop(stop.id))

    def _cut_off(self, origin: str, sent_at: float, at: float) -> None:
        """Messages of `origin` that were sent before `sent_at` come too late from now on."""
        before = self.cutoffs.pop(origin, sent_at)
        self.cutoffs[origin] = sent_at if before > at else max(sent_at, before)
        while len(self.cutoffs) > CUTOFFS_MAX:
            # What was sent before the Stop that came first has most likely arrived.
            del self.cutoffs[next(iter(self.cutoffs))]
        self.step.row_changed = True

    @staticmethod
    def provenance_of(stop: Stop, at: float) -> Provenance:
        """What a Stop that was handled at `at` (epoch seconds, UTC) is as a cause."""
        return Provenance(
            source=stop.source,
            reason=stop.reason,
            mode=stop.mode,
            requested_by=stop.requested_by,
            initiated_at=at if stop.sent_at is None else stop.sent_at,
        )

    def _stop_current(self, stop: Stop, provenance: Provenance, at: float) -> Stopped:
        current = self.active or self._closed_for.get(stop.id)
        ending = [record for record in self.ending.values() if record is not current]
        for record in ending:
            self._join(record, provenance)
        joined = [record for record in reversed(ending) if record.status is RunStatus.CANCELLING]
        if current is not None:
            return self._stop_run(stop, current, provenance, at, joined)
        if joined:
            newest = joined[0]
            fence_seq = self._fence(provenance, None, at)
            self._widen(stop, newest, provenance)
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
        if stop.scope is Scope.SESSION:
            self._stop_receipt(receipt, provenance, at)
        else:
            self.step.receipts[receipt.receipt_id] = receipt
        return Stopped("nothing_running", None, receipt.receipt_id, fence_seq, withdrawn=withdrawn)

    def _stop_run(
        self, stop: Stop, record: RunRecord, provenance: Provenance, at: float, joined: Iterable[RunRecord] = ()
    ) -> Stopped:
        """Close a run for a Stop. One that was closed for it when the session was read has its fence already."""
        if record.open:
            self._fence(provenance, record, at)
            self._close(record, RunStatus.CANCELLING, provenance, at)
        if stop.scope is Scope.SESSION:
            self._end_owned(provenance, record)
        self._halt(record, provenance, stop.mode)
        withdrawn = self._treat_waiting(stop.resolved_waiting, provenance, at, record)
        info = record.info
        self._settle_if_done(record, at)
        return Stopped(
            "stopped",
            record.id,
            info.receipt_id,
            info.fence_seq,
            withdrawn=withdrawn,
            joined=tuple(other.id for other in joined),
        )

    def _stop_queued(self, run_id: str | None, provenance: Provenance, at: float) -> Stopped | None:
        """Cancel a run that waits for its turn, and return its messages; None: it does not wait."""
        turn = None if run_id is None else self.room.take_turn(run_id)
        if turn is None:
            return None
        self._unpark_if_empty()
        withdrawn = tuple(as_message(row.message, turn.run_id, row.accepted_at) for row in turn.rows)
        for row in turn.rows:
            self._returned(row.message, turn.run_id, "withdrawn")
        receipt_id = self._end_queued(turn, provenance, at, tuple(message.id for message in withdrawn))
        return Stopped("stopped", turn.run_id, receipt_id, None, withdrawn=withdrawn)

    def answer_unstored(self, stop: Stop, ended: Mapping[str, RunInfo], undone: Mapping[str, RunInfo]) -> Stopped:
        """Answer a Stop while the store fails. It is decided when the store is back, and this answer stands then.

        The failure has ended the active run in memory: a Stop joins that end. What waits is what the store has, less
        what was cancelled since.

        Args:
            stop: which.
            ended: runs whose end stands, and which the store did not take.
            undone: runs that had not begun, and wait again or never come to be, since the store did not take the rest.

        Raises:
            NotFound: it is aimed at a run that is not there.
        """
        aim = stop.run_id
        closed = [record for record in self.ending.values() if record.status is RunStatus.CANCELLING]
        if self.active is not None and self.active.id not in undone:
            closed.append(self.active)
        for record in reversed(closed):
            if aim in (None, record.id):
                return Stopped("stopping", record.id, record.info.receipt_id, None)
        if aim is None:
            return Stopped("nothing_running", None, stop.id, None)
        waits, held = self._queued.get(aim) or undone.get(aim), self._record(aim)
        known = waits or ended.get(aim) or (held.info if held is not None else None)
        over = known.receipt_id if known is not None else self.over.get(aim)
        if over is None:
            raise _no_such_run(aim)
        return Stopped("stopped" if waits is not None and aim not in ended else "already_over", aim, over, None)

    def cancelled_unstored(
        self, stop: Stop, answer: Stopped, provenance: Provenance, undone: Mapping[str, RunInfo]
    ) -> list[RunInfo]:
        """The runs that such a Stop ends (see `answer_unstored`), each with its first cause (law L5)."""
        ends = []
        record = None if answer.run_id is None else self._record(answer.run_id)
        if record is not None and record.open and answer.outcome == "stopping":
            first = record.token.provenance or provenance
            ends.append(msgspec.structs.replace(record.info, status=RunStatus.CANCELLING, provenance=first))
        queued = [info for info in self._queued.values() if self._takes_from_queue(stop, answer, info.run_id)]
        queued += [info for info in undone.values() if (answer.outcome, answer.run_id) == ("stopped", info.run_id)]
        cancelled = {"status": RunStatus.CANCELLED, "provenance": provenance}
        return [*ends, *(msgspec.structs.replace(info, **cancelled) for info in queued)]

    def killed_unstored(self, stop: Stop, answer: Stopped) -> list[RunRecord]:
        """The runs whose parts such a Stop kills at once: what it joins, also of those that ended by themselves."""
        if stop.mode is not Mode.IMMEDIATE or answer.outcome == "already_over":
            return []
        of = [*self.ending.values(), *([self.active] if self.active is not None else [])]
        return [record for record in of if stop.run_id in (None, record.id)]

    @staticmethod
    def _takes_from_queue(stop: Stop, answer: Stopped, run_id: str) -> bool:
        """True if a waiting run is cancelled: the Stop is aimed at it, or withdraws whatever waits."""
        if answer.outcome == "already_over":
            return False
        if stop.run_id == run_id:
            return True
        return stop.resolved_waiting is Waiting.WITHDRAW and (stop.run_id is None or answer.outcome == "stopping")

    def _widen(self, stop: Stop, record: RunRecord, provenance: Provenance) -> None:
        """A Stop of the whole session joins a run that is ending: its receipt waits for the session's trees too."""
        if stop.scope is Scope.SESSION and self._end_owned(provenance, record):
            # They have a grace of their own, so the receipt waits as long from here.
            self._halt(record, provenance, record.mode)

    def _stop_aimed(self, stop: Stop, run_id: str, provenance: Provenance, at: float) -> Stopped:
        """A Stop aimed at a run touches only that run (law L9); with scope ``session`` the session's trees too."""
        current = self.active or self._closed_for.get(stop.id)
        if current is not None and current.id == run_id:
            return self._stop_run(stop, current, provenance, at)
        record = self.ending.get(run_id)
        if record is not None and record.status is RunStatus.CANCELLING:
            self._join(record, provenance)
            self._widen(stop, record, provenance)
            withdrawn: tuple[Message, ...] = ()
            if stop.waiting is not None and self.active is None:
                # What waits, waits for this run to end; were another one active, it would be that one's to say.
                withdrawn = self._treat_waiting(stop.waiting, provenance, at, record)
            return Stopped("stopping", run_id, record.info.receipt_id, record.info.fence_seq, withdrawn=withdrawn)
        queued = self._stop_queued(run_id, provenance, at)
        if queued is not None:
            return queued
        over = record.info.receipt_id if record is not None else self.over.get(run_id)
        if over is None:
            raise _no_such_run(run_id)
        return Stopped("already_over", run_id, over, None)

    # ── Resume, Withdraw ─────────────────────────────────────────────────────────────────────────────

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

    # ── Delete ───────────────────────────────────────────────────────────────────────────────────────

    def _delete(self, delete: Delete, reply: ReplyFuture[Any] | None, at: float) -> None:
        """End everything as a Stop of the session does; when all is proven, there is nothing but rows to remove."""
        if self.draining:
            raise ShuttingDown(
                "a Delete is refused: the supervisor is shutting down",
                expected="Stop, which it still takes",
                got="Delete",
                remedy="send it again, under the same id, after the restart",
            )
        if not self.seq or self.deleted:
            raise NotFound(
                "there is no such session",
                expected="a session in which something has happened",
                got=self.session,
                remedy="list the sessions",
            )
        if len(self._deletions) >= DELETIONS_MAX:
            raise QueueFull(
                "too many requests wait for the session to be deleted",
                expected=f"at most {DELETIONS_MAX} of them",
                got=f"{len(self._deletions)} that wait already",
                remedy="wait until the session is deleted: one request does that",
            )
        self._deletions.append((delete, reply))
        cause = Provenance(
            source=delete.source, reason=delete.reason, requested_by=delete.requested_by, initiated_at=at
        )
        self._begin_deletion(delete.reason, at, delete.id, cause)

    def expire(self, seq: int, reason: str) -> None:
        """Delete a session that is kept for longer than it has to be, if nothing has happened in it since `seq`."""
        if self.at_rest and not len(self.room) and not self.deleted and self.seq == seq:
            self._begin_deletion(reason, self._clock.wall())

    def _begin_deletion(
        self, reason: str, at: float, requested_by: str | None = None, cause: Provenance | None = None
    ) -> None:
        provenance = Provenance(
            source="session.deleted", reason=reason, requested_by=requested_by, initiated_at=at, cause=cause
        )
        if self.deleting is None:
            self.deleting = provenance
            if not self.nothing_left or len(self.room):
                self._stop_everything(provenance, at)
        self._call_off_deletion_if_hopeless()

    def _stop_everything(self, provenance: Provenance, at: float) -> None:
        # What ends by it says whose doing it is by the provenance that is passed beside it.
        stop = Stop(id=self._ids.new("stop"), source="client.delete", reason=provenance.reason, scope=Scope.SESSION)
        self._stop_current(stop, provenance, at)

    def _call_off_deletion_if_hopeless(self) -> None:
        """What was named abandoned may end some day or never: nobody waits for that, and it is not forgotten."""
        hopeless = [*self.late, *(owned.id for owned in self.owned.values() if owned.given_up)]
        if self.deleting is None or not self.quiet or not hopeless:
            return
        error = RunActive(
            "the session cannot be deleted: not all that it started is proven to have ended",
            run_id=hopeless[0],
            expected="a session of which nothing is left but rows",
            got=f"{', '.join(hopeless)}, which left something behind that may live",
            remedy="see their receipts, end what they name, and delete the session then, or after a restart",
        )
        self.step.now += [RefuseRequest(reply, error) for _, reply in self.take_deletions()]

    def take_deletions(self) -> list[tuple[Delete, ReplyFuture[Any] | None]]:
        """Give the deletion up; returns the requests for it, which are to be refused."""
        deletions, self._deletions = self._deletions, []
        self.deleting = None
        return deletions

    def _go_on(self, at: float) -> None:
        super()._go_on(at)
        self._call_off_deletion_if_hopeless()

    def erase_if_proven(self) -> bool:
        """When all has ended, and is written: begin a step that removes everything, and leaves a tombstone."""
        if self.deleting is None or not self.nothing_left:
            return False
        at = self._clock.wall()
        provenance, deletions = self.deleting, self.take_deletions()
        self.thread = Thread()
        self.fates, self.over, self._queued = {}, {}, {}
        self.room = WaitingRoom(self.session, self._settings.queue_max)
        self.step.requests += self.requests.forget(at, repeats=bool(deletions))
        self.step.erase = True
        self.quarantined = False
        self.step.later.append(ForgetSession())
        seq = self._event("session.deleted", {"provenance": storable_json(provenance)}, None)
        self.deleted = True
        for request, reply in deletions:
            answer = Deleted(self.session, seq)
            self.step.requests.append(self.requests.answered(request, answer, at))
            self.step.later.append(AnswerRequest(request, reply, answer))
        return True

    # ── Coming and going ─────────────────────────────────────────────────────────────────────────────

    def restore(
        self,
        snapshot: Snapshot,
        cause: Provenance | None,
        *,
        quarantined: bool = False,
        ended: Mapping[str, RunInfo] | None = None,
        stops: Iterable[KeptStop] = (),
        trees: Mapping[str, Provenance] | None = None,
        crashed: bool = False,
    ) -> None:
        """Take up a session from the store: close every half-run, adopt what may still run, go on.

        Args:
            snapshot: what the store holds.
            cause: why the incarnation before ended; None after a restart of the supervisor.
            quarantined: take Stop and nothing else from now on.
            ended: runs that had ended for a cause, when the store did not take the record of it, as they were then:
                that cause was the first, and stands.
            stops: the Stops that were answered before the store had them: they are decided before anything starts, so
                that what they withdrew or stopped does not run.
            trees: why those of the session's trees are being ended whose record says nothing of it.
            crashed: the supervisor was restarted, so that the wardens are ending all of them.
        """
        at = self._clock.wall()
        self._taking_up = True
        # One that is on record was written after all, with its effect: what has come behind it is not its to stop.
        # Of what was deleted an id is kept, and no answer: a Stop that came again behind that is not on record.
        on_record = {told.request_id for told in snapshot.requests if told.answer}
        stops = self._not_deleted(tuple(stops), snapshot.row)
        new_stops = [kept for kept in stops if kept.stop.id not in on_record]
        # Of a Stop that was pruned since then it is of no use: its id is new again.
        self._told_durable = set(snapshot.told_durable & on_record)
        row = snapshot.row
        if row is not None:
            self.generation, self.seq, self.deleted = row.generation, row.seq, row.deleted
            self.cutoffs = dict(row.cutoffs)
        self.thread = snapshot.thread
        self.fates = dict(snapshot.fates)
        self.over = dict(snapshot.over)
        self.requests.restore(snapshot.requests, row.forgotten_to if row is not None else 0.0)
        self.room.restore(snapshot.waiting, parked=row.parked if row is not None else False)
        self._queued = {info.run_id: info for info in snapshot.runs if info.status is RunStatus.QUEUED}
        if quarantined:
            # A restart of the supervisor lifts it: the count of failures lives with the supervisor.
            self.quarantined = True
            if not self.deleted:
                self._event("session.quarantined", {}, None)
        halves = [info for info in snapshot.runs if info.status is not RunStatus.QUEUED and not info.settled]
        gone = self._inside("supervisor.recovery", "the supervisor ended, and its process trees with it", at, None)
        self._restore_owned(snapshot, lambda tree: gone if crashed else (trees or {}).get(tree))
        for info in snapshot.runs:
            if info.settled:
                self._take_up_late(snapshot, info, at)
        # A Stop that came behind a failure tells of it, also where nobody else is left who knows.
        told = (kept.cause for kept in new_stops if kept.cause is not None and kept.cause.source in FAILURES)
        cause = next(told, cause) or self.recovery_cause(at)
        retry: RunInfo | None = None
        for info in halves:
            stops_of_it = [kept for kept in new_stops if kept.is_about(info)]
            retry = self._take_up(snapshot, info, cause, (ended or {}).get(info.run_id), stops_of_it, at) or retry
        self._unsteer(at)
        waiting_for = {turn.run_id for turn in self.room.turns}
        for run_id in [run_id for run_id in self._queued if run_id not in waiting_for]:
            self._end_queued(PendingTurn(run_id, merge=False), cause, at, withdrawn=())
        for kept in stops:
            self._take_up_stop(kept)
        self._closed_for = {}
        # Not before: a Stop that has closed one of them says so, and its receipt tells what it did to what waits.
        for record in list(self.ending.values()):
            self._settle_if_done(record, at)
        self._taking_up = False
        self._file_restored(at)
        self._end_when_drained(at)
        if self.draining or self.quarantined:
            return
        if retry is not None:
            self._start_run(self._ids.new("run"), (), at, retry=retry)
        self._start_next(at)

    def _not_deleted(self, stops: tuple[KeptStop, ...], row: SessionRow | None) -> tuple[KeptStop, ...]:
        """Let go of the Stops that came before the session was deleted: what they stopped has ended, and is erased."""
        if row is None or not row.deleted:
            return stops
        self.step.later += [ForgetStop(kept.stop.id) for kept in stops if kept.at <= row.forgotten_to]
        return tuple(kept for kept in stops if kept.at > row.forgotten_to)

    def recovery_cause(self, at: float) -> Provenance:
        """The cause of runs that were open when the supervisor died, at `at` (epoch seconds, UTC)."""
        return self._inside("supervisor.recovery", "the supervisor ended while the run was going on", at, None)

    def _take_up_stop(self, kept: KeptStop) -> None:
        """Decide a Stop that was answered before the store had it; one that is on record has its answer already."""
        stop = kept.stop
        try:
            answer = self.request(stop, None, kept)
        except CountermandError as error:
            # Aimed at a run that the store never heard of: it is over, and nothing of it is left to stop.
            self._dead("stop", str(error), None, stop.id)
            self.step.later.append(ForgetStop(stop.id))
            return
        assert isinstance(answer, Stopped), "the answer to a Stop"
        if self.deleted:
            self.step.later.append(ForgetStop(stop.id))
        else:
            self.stop_durable(stop, answer)

    def _take_up(
        self,
        snapshot: Snapshot,
        info: RunInfo,
        cause: Provenance,
        ended: RunInfo | None,
        stops: list[KeptStop],
        at: float,
    ) -> RunInfo | None:
        """Take up one run that was not settled. Returns it if its inputs are to be tried again.

        Args:
            snapshot: what the store holds.
            info: the run.
            cause: why it ended, where nobody had ended it.
            ended: how it had ended for a cause, where the store did not take that.
            stops: those that are about it, in their order.
            at: now.
        """
        record = self._restored(snapshot, info)
        record.said = info.run_id in snapshot.said
        again = None
        self.ending[record.id] = record
        enders = [kept for kept in stops if kept.may_have_ended(info)]
        if ended is not None and ended.provenance == cause and not enders:
            # As all that nobody had ended: it may be tried again.
            ended = None
        if info.status is RunStatus.IN_PROGRESS and ended is not None and ended.provenance is not None:
            status = RunStatus.CANCELLING if ended.status is RunStatus.CANCELLED else ended.status
            self._fence(ended.provenance, record, at)
            self._close(record, status, ended.provenance, at, error=ended.error)
        elif info.status is RunStatus.IN_PROGRESS and enders:
            # The first that was meant for it: those behind that have joined it.
            first = enders[0]
            cause_of_it = first.cause if first.run_id == record.id else None
            provenance = cause_of_it or self.provenance_of(first.stop, first.at)
            self._fence(provenance, record, at)
            self._close(record, RunStatus.CANCELLING, provenance, at)
            if first.outcome is None:
                self._closed_for.setdefault(first.stop.id, record)
        elif info.status is RunStatus.IN_PROGRESS:
            untouched = not record.said and not record.called
            # What a person wanted to end does not begin anew.
            can_run = not stops and not self.quarantined and self._unavailable() is None
            if untouched and info.attempt < self._settings.attempts_max and can_run:
                again = info
            self._fence(cause, record, at)
            self._close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)
        else:
            record.token.cancel(info.provenance or cause)
        if record.status is RunStatus.CANCELLING:
            for kept in enders:
                if (kept.outcome, kept.run_id) == ("stopped", record.id):
                    self._closed_for.setdefault(kept.stop.id, record)
        record.fenced_at = record.fenced_at or at
        record.stage += 1
        if record.open_parts():
            if record.runner_parts():
                self.step.later.append(AdoptRun(record.id))
            self.step.now.append(HaltRun(record.id, record.info.provenance or cause, Mode.GRACEFUL, record.stage))
        return again

    def _take_up_late(self, snapshot: Snapshot, info: RunInfo, at: float) -> None:
        """Take up a settled run whose receipt names something abandoned: its end amends the receipt, now too."""
        record = self._restored(snapshot, info)
        receipt = next((one for one in snapshot.receipts if one.run_id == info.run_id), None)
        if receipt is not None:
            record.take_up(receipt)
        record.forced = self._settings.barrier == "forced"
        reason = "what is left of it is taken over"
        record.token.cancel(info.provenance or self._inside("run.ended", reason, at, None))
        self.over[record.id] = info.receipt_id
        self._keep_late(record)
        if record.runner_parts():
            self.step.later.append(AdoptRun(record.id))
        if not record.open_parts():
            self._no_longer_late(record)

    def _restored(self, snapshot: Snapshot, info: RunInfo) -> RunRecord:
        record = restored(
            info,
            CancelToken(self._notify),
            Credit(self._settings.credit_events, self._settings.credit_bytes),
            [row for row in snapshot.calls if row.run_id == info.run_id],
            [row for row in snapshot.processes if row.run_id == info.run_id],
            snapshot.printed,
        )
        self._attach_restored(record)
        for row in snapshot.processes:
            if row.run_id == record.id and row.kind in STRAYS and row.state == "ended":
                # Before the run is taken over: the record may have no room for it, and it would be found anew.
                self.step.later.append(ForgetPart("stray", row.process_id))
        return record

    def plugins_mended(self, isolation: Mapping[str, str]) -> None:
        """An agent or a tool was loaded after all: what waited for it goes on. `isolation` is of each tool, by name."""
        self._isolation = isolation
        self._start_next(self._clock.wall())

    def drain(self) -> None:
        """Refuse new work from now on; what runs may end by itself, what waits stays for the next start."""
        self.draining = True
        self._end_when_drained(self._clock.wall())

    def interrupt(self, provenance: Provenance) -> None:
        """End the active run from inside, as a shutdown does; what waits stays for the next start."""
        self._end_owned(provenance, None)
        active = self.active
        if active is None:
            return
        at = self._clock.wall()
        self._fence(provenance, active, at)
        self._close(active, RunStatus.CANCELLING, provenance, at)
        self._halt(active, provenance, provenance.mode)
        self._unsteer(at)
        self._settle_if_done(active, at)


def is_of_stop(provenance: Provenance) -> bool:
    """True if a Stop is the cause: what came from outside, and is not refused where it cannot be stored."""
    return provenance.source.startswith(OUTSIDE_SOURCES) and provenance.source != "client.withdraw"


def _no_such_run(run_id: str) -> NotFound:
    return NotFound(
        "there is no such run in this session",
        expected="the id of a run of this session, or none for the current one",
        got=run_id,
        remedy="list the runs of the session",
    )
