"""Stop: which run it ends, what it does to waiting messages and to trees of the session, and its answer.

Theory of operation. `stop` finds what the Stop is about: the current run, a run that is ending, a turn that waits, or
nothing. A run that it ends is fenced, closed and halted in one step (`_stop_run`). A Stop aimed at a run touches only
that run (law L9).

While the store fails, nothing can be decided on record. A Stop is then answered from memory (`answer_unstored`), kept
in the stop journal, and decided again when the session is restored; its first answer stands (`_replay`, law L10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from loguru import logger

from actors.errors import NotFound
from actors.events import SessionStopDurableData
from actors.ids import request_time
from actors.model import OUTSIDE_SOURCES, Message, Mode, Provenance, Receipt, RunInfo, Scope, StopOutcome, Waiting
from actors.ports import KeptStop
from actors.protocol.owned_tree import OwnedTree
from actors.protocol.run_record import RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.step import ForgetStop
from actors.protocol.trees import Trees
from actors.protocol.turns import Turns
from actors.requests import Stop, Stopped
from actors.run_status import RunStatus

CUTOFFS_MAX: Final = 256
"""Origins whose last Stop is remembered, of a session."""


class Stops:
    """Decides on Stop."""

    def __init__(self, state: SessionState, trees: Trees, turns: Turns, runs: Runs) -> None:
        self._state = state
        self._trees = trees
        self._turns = turns
        self._runs = runs
        # Stops of which `session.stop_durable` is in the log.
        self._reported_durable: set[str] = set()
        # During restore: the run that was closed on behalf of each Stop that is replayed, by the Stop's id.
        self._closed_for: dict[str, RunRecord] = {}

    def stop(self, stop: Stop, at: float, kept: KeptStop | None) -> Stopped:
        """Decide a Stop.

        Args:
            stop: which.
            at: now.
            kept: its entry in the journal, if it came while it could not be stored: it stops nothing that was sent
                since, and its earlier answer stands.

        Raises:
            NotFound: there is no such session or run; nothing was changed.
        """
        state = self._state
        answer = None if kept is None else kept.answer
        if state.deleted and answer is None:
            # Its fence would be an event, and the name would be in use again.
            raise NotFound(
                f"there is no session {state.session}: it was deleted",
                expected="a session that has had a message since",
                got=f"Stop {stop.id}",
                remedy="nothing of it runs, and nothing waits: there is nothing to stop",
            )
        handled_at = at if kept is None else min(at, kept.at)
        provenance = provenance_of(stop, handled_at)
        if answer is None:
            stopped = self._stop_found(stop, provenance, at)
        elif state.deleted:
            # It was answered while the store failed, and the store never took the message that began the session again.
            self._file_promised_receipt(answer, provenance, at)
            stopped = msgspec.structs.replace(answer, durable=True)
        else:
            stopped = self._replay(stop, answer, provenance, at, kept)
        if stopped.outcome != StopOutcome.ALREADY_OVER:
            # A Stop that comes too late for its run has no effect, not on messages that are on their way either (L9).
            # A Stop may have waited on its way, with messages behind it. Its id has the time at which it was made. A
            # time ahead of the clock must not cut off messages that are sent from now on.
            made_at = request_time(stop.id) if stop.sent_at is None else None
            sent_at = provenance.initiated_at if made_at is None else made_at
            self._cut_off(stop.origin, min(sent_at, handled_at), at)
        return stopped

    def _cut_off(self, origin: str, sent_at: float, at: float) -> None:
        """Messages of `origin` that were sent before `sent_at` are returned when they arrive."""
        cutoffs = self._state.cutoffs
        before = cutoffs.pop(origin, sent_at)
        cutoffs[origin] = sent_at if before > at else max(sent_at, before)
        while len(cutoffs) > CUTOFFS_MAX:
            # What was sent before the oldest Stop has most likely arrived.
            del cutoffs[next(iter(cutoffs))]
        self._state.step.row_changed = True

    # ── What it finds ────────────────────────────────────────────────────────────────────────────────

    def _stop_found(self, stop: Stop, provenance: Provenance, at: float) -> Stopped:
        if stop.run_id is not None:
            return self._stop_aimed(stop, stop.run_id, provenance, at)
        return self.stop_current(stop, provenance, at)

    def _current(self, stop: Stop) -> RunRecord | None:
        return self._state.active or self._closed_for.get(stop.id)

    def stop_current(self, stop: Stop, provenance: Provenance, at: float) -> Stopped:
        """Stop the current run, or join the end of the runs that are ending. `provenance` is the cause on record."""
        state = self._state
        current = self._current(stop)
        ending = [record for record in state.ending.values() if record is not current]
        for record in ending:
            self._runs.join(record, provenance)
        joined = [record for record in reversed(ending) if record.status is RunStatus.CANCELLING]
        if current is not None:
            return self._stop_run(stop, current, provenance, at, joined)
        fence_seq = self._runs.fence(provenance, None, at)
        if joined:
            newest = joined[0]
            self._widen(stop, newest, provenance)
            withdrawn = self._turns.stop(stop.resolved_waiting, provenance, at, newest)
            return Stopped(
                StopOutcome.STOPPING,
                newest.id,
                newest.info.receipt_id,
                fence_seq,
                withdrawn=withdrawn,
                joined=tuple(record.id for record in joined[1:]),
            )
        withdrawn = self._turns.stop(stop.resolved_waiting, provenance, at, None)
        receipt = Receipt(
            receipt_id=stop.id,
            run_id=None,
            generation=state.generation,
            provenance=provenance,
            fenced_at=at,
            ended_at=at,
            complete=True,
            withdrawn=tuple(message.id for message in withdrawn),
        )
        self._trees.end_for_stop(self._ended_by(stop), receipt, provenance, at)
        return Stopped(StopOutcome.NOTHING_RUNNING, None, receipt.receipt_id, fence_seq, withdrawn=withdrawn)

    def _stop_aimed(self, stop: Stop, run_id: str, provenance: Provenance, at: float) -> Stopped:
        """Stop the run that a Stop is aimed at; with scope ``session`` the session's trees too."""
        state = self._state
        current = self._current(stop)
        if current is not None and current.id == run_id:
            return self._stop_run(stop, current, provenance, at)
        record = state.ending.get(run_id)
        if record is not None and record.status is RunStatus.CANCELLING:
            self._runs.join(record, provenance)
            self._widen(stop, record, provenance)
            withdrawn: tuple[Message, ...] = ()
            if stop.waiting is not None and state.active is None:
                # The messages wait for this run to end; if another run is active, they wait for that one.
                withdrawn = self._turns.stop(stop.waiting, provenance, at, record)
            return Stopped(
                StopOutcome.STOPPING, run_id, record.info.receipt_id, record.info.fence_seq, withdrawn=withdrawn
            )
        queued = self._stop_queued(run_id, provenance, at)
        if queued is not None:
            return queued
        over = record.info.receipt_id if record is not None else state.over.get(run_id)
        if over is None:
            raise _no_such_run(run_id)
        return Stopped(StopOutcome.ALREADY_OVER, run_id, over, None)

    def _stop_run(
        self, stop: Stop, record: RunRecord, provenance: Provenance, at: float, joined: Iterable[RunRecord] = ()
    ) -> Stopped:
        """Fence, close and halt a run. During restore it may be closed already, on behalf of this Stop."""
        if record.open:
            self._runs.fence(provenance, record, at)
            self._runs.close(record, RunStatus.CANCELLING, provenance, at)
        self._trees.end(self._ended_by(stop), provenance, record)
        self._runs.halt(record, provenance, stop.mode)
        withdrawn = self._turns.stop(stop.resolved_waiting, provenance, at, record)
        info = record.info
        self._runs.settle_if_done(record, at)
        return Stopped(
            StopOutcome.STOPPED,
            record.id,
            info.receipt_id,
            info.fence_seq,
            withdrawn=withdrawn,
            joined=tuple(other.id for other in joined),
        )

    def _widen(self, stop: Stop, record: RunRecord, provenance: Provenance) -> None:
        """A Stop joins a run that is ending: its receipt waits for what of the session the Stop ends too."""
        if self._trees.end(self._ended_by(stop), provenance, record):
            # Their grace begins now, so the receipt waits that long from now.
            self._runs.halt(record, provenance, record.mode)

    def _ended_by(self, stop: Stop) -> list[OwnedTree]:
        """The trees of the session that a Stop ends: all, if that is its scope; hosts that are kept, if it has no aim.

        Those have been running what the Stop is to end.
        """
        if stop.scope is Scope.SESSION:
            return list(self._state.owned.values())
        return self._trees.kept_hosts() if stop.run_id is None else []

    def _stop_queued(self, run_id: str | None, provenance: Provenance, at: float) -> Stopped | None:
        """Cancel a run that waits for its turn, and return its messages; None: it does not wait."""
        turn = None if run_id is None else self._state.queue.take_turn(run_id)
        if turn is None:
            return None
        receipt_id, withdrawn = self._turns.withdraw(turn, provenance, at)
        return Stopped(StopOutcome.STOPPED, turn.run_id, receipt_id, None, withdrawn=withdrawn)

    # ── Replayed, because the store did not take it ──────────────────────────────────────────────────

    def begin_replay(self, reported_durable: Iterable[str]) -> None:
        """The session is being restored. `reported_durable`: Stops of which `session.stop_durable` is in the log."""
        self._reported_durable = set(reported_durable)

    def closed_on_behalf_of(self, stop: Stop, record: RunRecord) -> None:
        """A restored run was closed for a Stop that will be replayed: the Stop then has this run as its current one."""
        self._closed_for.setdefault(stop.id, record)

    def end_replay(self) -> None:
        """All Stops have been replayed."""
        self._closed_for = {}

    def _replay(self, stop: Stop, answer: Stopped, provenance: Provenance, at: float, kept: KeptStop | None) -> Stopped:
        """Carry out a Stop that the store did not take. Its answer stands, whatever it finds now (law L10)."""
        found, ends = answer, False
        # The store may hold as waiting a run that had started and ended since: the Stop was answered `already_over`.
        queued = self._stop_queued(answer.run_id, provenance, at)
        if answer.outcome != StopOutcome.ALREADY_OVER:
            try:
                found = self._stop_found(stop, provenance, at)
                ends = found.outcome != StopOutcome.ALREADY_OVER
            except NotFound:
                session = self._state.session
                logger.debug("session {}: nothing is on record of what Stop {} has stopped", session, stop.id)
        if queued is not None:
            found = msgspec.structs.replace(found, withdrawn=(*queued.withdrawn, *found.withdrawn))
        if not ends and kept is not None and kept.waiting_too and self._waits_since_then(answer, kept.at):
            # The store did not take the start of its run either. What waited behind that waits still.
            withdrawn = self._turns.stop(stop.resolved_waiting, provenance, at, None)
            found = msgspec.structs.replace(found, withdrawn=(*found.withdrawn, *withdrawn))
        self._file_promised_receipt(answer, provenance, at)
        joined = [run_id for run_id in (found.run_id, *found.joined) if run_id not in (None, answer.run_id)]
        answered = {"outcome": answer.outcome, "run_id": answer.run_id, "receipt_id": answer.receipt_id}
        return msgspec.structs.replace(found, **answered, durable=True, joined=tuple(joined))

    def _waits_since_then(self, answer: Stopped, at: float) -> bool:
        """True if what waits now is what waited when a Stop was answered, and not for another run."""
        if answer.outcome == StopOutcome.STOPPING and self._state.active is not None:
            return False
        return all(row.accepted_at <= at for turn in self._state.queue.turns for row in turn.rows)

    def _file_promised_receipt(self, answer: Stopped, provenance: Provenance, at: float) -> None:
        """File the receipt that an answer named, also if its run was never stored or there was none."""
        state, run_id, receipt_id = self._state, answer.run_id, answer.receipt_id
        if run_id is not None and (run_id in state.over or run_id in state.queued or state.record(run_id) is not None):
            return
        if receipt_id in state.step.receipts or receipt_id in state.step.pending:
            return
        state.step.receipts[receipt_id] = Receipt(
            receipt_id=receipt_id,
            run_id=run_id,
            generation=state.generation,
            provenance=provenance,
            fenced_at=at,
            ended_at=at,
            complete=True,
        )

    def durable(self, stop: Stop, answer: Stopped) -> None:
        """A Stop that was answered before the store had it is on record now: log that, and drop it from the journal."""
        state = self._state
        if stop.id not in self._reported_durable:
            self._reported_durable.add(stop.id)
            data = SessionStopDurableData(request_id=stop.id, outcome=answer.outcome, receipt_id=answer.receipt_id)
            state.event(data, None, run_id=answer.run_id)
        state.step.later.append(ForgetStop(stop.id))

    # ── While the store fails ────────────────────────────────────────────────────────────────────────

    def answer_unstored(self, stop: Stop, ended: Mapping[str, RunInfo], undone: Mapping[str, RunInfo]) -> Stopped:
        """Answer a Stop while the store fails. It is decided when the store is back, and this answer stands then.

        The failure has ended the active run in memory, and the Stop joins that end. The messages that wait are those
        that the store has, without those that were cancelled since.

        Args:
            stop: which.
            ended: runs whose end stands, although the store did not take it.
            undone: runs that had not started: they wait again or are dropped, since the store did not take them.

        Raises:
            NotFound: it is aimed at a run that does not exist.
        """
        state, aim = self._state, stop.run_id
        closed = [record for record in state.ending.values() if record.status is RunStatus.CANCELLING]
        if state.active is not None and state.active.id not in undone:
            closed.append(state.active)
        for record in reversed(closed):
            if aim in (None, record.id):
                return Stopped(StopOutcome.STOPPING, record.id, record.info.receipt_id, None)
        if aim is None:
            return Stopped(StopOutcome.NOTHING_RUNNING, None, stop.id, None)
        waits, held = state.queued.get(aim) or undone.get(aim), state.record(aim)
        known = waits or ended.get(aim) or (held.info if held is not None else None)
        over = known.receipt_id if known is not None else state.over.get(aim)
        if over is None:
            raise _no_such_run(aim)
        return Stopped(
            StopOutcome.STOPPED if waits is not None and aim not in ended else StopOutcome.ALREADY_OVER, aim, over, None
        )

    def cancelled_unstored(
        self, stop: Stop, answer: Stopped, provenance: Provenance, undone: Mapping[str, RunInfo]
    ) -> list[RunInfo]:
        """The runs that such a Stop ends (see `answer_unstored`), each with its first cause (law L5)."""
        ends = []
        record = None if answer.run_id is None else self._state.record(answer.run_id)
        if record is not None and record.open and answer.outcome == StopOutcome.STOPPING:
            first = record.token.provenance or provenance
            ends.append(msgspec.structs.replace(record.info, status=RunStatus.CANCELLING, provenance=first))
        queued = [info for info in self._state.queued.values() if _takes_from_queue(stop, answer, info.run_id)]
        queued += [
            info for info in undone.values() if (answer.outcome, answer.run_id) == (StopOutcome.STOPPED, info.run_id)
        ]
        cancelled = {"status": RunStatus.CANCELLED, "provenance": provenance}
        return [*ends, *(msgspec.structs.replace(info, **cancelled) for info in queued)]

    def killed_unstored(self, stop: Stop, answer: Stopped) -> list[RunRecord]:
        """The runs whose parts such a Stop kills at once: those that it joins, also if they ended by themselves."""
        if stop.mode is not Mode.IMMEDIATE or answer.outcome == StopOutcome.ALREADY_OVER:
            return []
        active = [self._state.active] if self._state.active is not None else []
        return [record for record in (*self._state.ending.values(), *active) if stop.run_id in (None, record.id)]


def provenance_of(stop: Stop, at: float) -> Provenance:
    """Return a Stop that was handled at `at` (epoch seconds, UTC) as the cause of an end."""
    return Provenance(
        source=stop.source,
        reason=stop.reason,
        mode=stop.mode,
        requested_by=stop.requested_by,
        initiated_at=at if stop.sent_at is None else stop.sent_at,
    )


def is_of_stop(provenance: Provenance) -> bool:
    """True if a Stop is the cause: a request from outside that is not refused while the store fails."""
    return provenance.source.startswith(OUTSIDE_SOURCES) and provenance.source != "client.withdraw"


def _takes_from_queue(stop: Stop, answer: Stopped, run_id: str) -> bool:
    """True if a Stop cancels a waiting run: it is aimed at it, or withdraws all that waits."""
    if answer.outcome == StopOutcome.ALREADY_OVER:
        return False
    if stop.run_id == run_id:
        return True
    return stop.resolved_waiting is Waiting.WITHDRAW and (stop.run_id is None or answer.outcome == StopOutcome.STOPPING)


def _no_such_run(run_id: str) -> NotFound:
    return NotFound(
        "there is no such run in this session",
        expected="the id of a run of this session, or none for the current one",
        got=run_id,
        remedy="list the runs of the session",
    )
