"""How a session is restored from the store: half-runs are closed, what may still run is adopted, Stops are replayed.

Theory of operation. The order matters, and is that of `restore`: the state; the trees of the session; settled runs with
abandoned parts; half-runs, which are closed for the first cause that there is; the Stops that were answered before the
store had them. Only then do runs settle and the next one start, so that no message starts that a Stop has withdrawn.

A half-run is tried again if it is *untouched*: as far as is known nothing of it was said, called, spawned, saved, or
begun behind a guard. All but the last is in the log. What has begun behind guards is in the tokens of the executions,
which outlive the session's actor, and each of its incarnations. They are gone if the daemon was: then it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors.errors import CountermandError
from actors.events import SessionQuarantinedData
from actors.model import FAILURES, STRAYS, Barrier, Mode, Provenance, RunInfo, StopOutcome, TreeState
from actors.ports import KeptStop, SessionRow, Snapshot
from actors.protocol.queue import PendingTurn
from actors.protocol.requests import Requests
from actors.protocol.run_record import RunRecord, is_own, restored
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.step import AdoptRun, ForgetPart, ForgetStop, HaltRun, Keeper
from actors.protocol.stops import Stops, provenance_of
from actors.protocol.trees import Trees
from actors.protocol.turns import Turns
from actors.requests import Stopped
from actors.run_status import RunStatus


class Restoration:
    """Decides what becomes of what an earlier incarnation of the session left."""

    def __init__(
        self, state: SessionState, trees: Trees, turns: Turns, runs: Runs, stops: Stops, requests: Requests
    ) -> None:
        self._state = state
        self._trees = trees
        self._turns = turns
        self._runs = runs
        self._stops = stops
        self._requests = requests

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
    ) -> Provenance:
        """Restore the session, and start what is next.

        Args:
            snapshot: what the store holds.
            cause: why the incarnation before ended; None after a restart of the supervisor.
            quarantined: accept Stop and nothing else from now on.
            ended: runs that had ended for a cause that the store did not take, as they were then: it was the first
                cause, and stands.
            stops: the Stops that were answered before the store had them. They are replayed before anything starts, so
                that nothing runs that they withdrew or stopped.
            trees: why trees of the session are being ended, of those whose rows do not say it.
            crashed: the supervisor was restarted, so the wardens are ending all of its trees.

        Returns:
            The first cause that there is. It has ended all that was open.
        """
        state, at = self._state, self._state.clock.wall()
        state.restoring = True
        state.restore(snapshot)
        # A Stop that is on record was stored after all, with its effect: it must not stop what came after it. A deleted
        # session keeps an id without its answer: a Stop that came again after the deletion is not on record.
        on_record = {row.request_id for row in snapshot.requests if row.answer}
        kept_stops = self._after_deletion(tuple(stops), snapshot.row)
        new_stops = [kept for kept in kept_stops if kept.stop.id not in on_record]
        # The id of a Stop that was pruned from the request book since then counts as new.
        self._stops.begin_replay(snapshot.told_durable & on_record)
        if quarantined:
            # A restart of the supervisor lifts it: the supervisor counts the failures.
            state.quarantined = True
            if not state.deleted:
                state.event(SessionQuarantinedData(), None)
        self._trees.restore(snapshot, lambda tree: _gone(at) if crashed else (trees or {}).get(tree))
        for info in snapshot.runs:
            if info.settled:
                self._restore_late(snapshot, info, at)
        # A Stop that came after a failure names it, even if nothing else is left that does.
        named = (one for kept in new_stops for one in (kept.failure, kept.cause))
        failures = (one for one in named if one is not None and one.source in FAILURES)
        cause = next(failures, cause) or _recovery_cause(at)
        retry: RunInfo | None = None
        for info in snapshot.runs:
            if info.status is not RunStatus.QUEUED and not info.settled:
                stops_of_it = [kept for kept in new_stops if kept.is_about(info)]
                earlier_end = (ended or {}).get(info.run_id)
                retry = self._restore_half(snapshot, info, cause, earlier_end, stops_of_it, at) or retry
        self._turns.requeue_steering(at)
        waiting_for = {turn.run_id for turn in state.queue.turns}
        for run_id in [run_id for run_id in state.queued if run_id not in waiting_for]:
            self._turns.cancel(PendingTurn(run_id, merge=False), cause, at, withdrawn=())
        for kept in kept_stops:
            self._replay(kept)
        self._stops.end_replay()
        # Not before: a Stop that closed one of these runs answers with it, and the run's receipt names what the Stop
        # did to waiting messages.
        for record in list(state.ending.values()):
            self._runs.settle_if_done(record, at)
        state.restoring = False
        self._trees.file_restored(at)
        if retry is not None:
            # Also while the supervisor drains: it is what was active, and has until the time for draining is over.
            self._runs.start(state.ids.new("run"), (), at, retry=retry)
        self._trees.end_if_drained(at)
        if state.draining or state.quarantined:
            return cause
        self._runs.start_next(at)
        return cause

    def _after_deletion(self, stops: tuple[KeptStop, ...], row: SessionRow | None) -> tuple[KeptStop, ...]:
        """Drop the Stops that came before the session was deleted: what they stopped has ended, and is erased."""
        if row is None or not row.deleted:
            return stops
        self._state.step.later += [ForgetStop(kept.stop.id) for kept in stops if kept.at <= row.forgotten_to]
        return tuple(kept for kept in stops if kept.at > row.forgotten_to)

    def _replay(self, kept: KeptStop) -> None:
        """Decide a Stop that was answered before the store had it; one that is on record has its answer already."""
        stop = kept.stop
        try:
            answer = self._requests.decide(stop, None, kept)
        except CountermandError as error:
            # It is aimed at a run that was never stored: that run is over, and nothing of it is left to stop.
            self._state.dead_letter("stop", str(error), None, stop.id)
            self._state.step.later.append(ForgetStop(stop.id))
            return
        assert isinstance(answer, Stopped), "the answer to a Stop"
        if self._state.deleted:
            self._state.step.later.append(ForgetStop(stop.id))
        else:
            self._stops.durable(stop, answer)

    def _restore_half(
        self,
        snapshot: Snapshot,
        info: RunInfo,
        cause: Provenance,
        ended: RunInfo | None,
        stops: list[KeptStop],
        at: float,
    ) -> RunInfo | None:
        """Restore a run that was not settled. Returns it if its inputs have to be tried again.

        Args:
            snapshot: what the store holds.
            info: the run.
            cause: why it ended, if nothing had ended it before.
            ended: the run as it had ended for a cause that the store did not take.
            stops: the Stops that are about it, in their order.
            at: now.
        """
        state = self._state
        record = self._record(snapshot, info)
        again = None
        state.ending[record.id] = record
        enders = [kept for kept in stops if kept.may_have_ended(info)]
        if ended is not None and ended.provenance == cause and not enders:
            # The failure ended it, as it ended all runs: it may be tried again.
            ended = None
        if info.status is RunStatus.IN_PROGRESS and ended is not None and ended.provenance is not None:
            status = RunStatus.CANCELLING if ended.status is RunStatus.CANCELLED else ended.status
            self._runs.fence(ended.provenance, record, at)
            self._runs.close(record, status, ended.provenance, at, error=ended.error)
        elif info.status is RunStatus.IN_PROGRESS and enders:
            # The first Stop that was meant for it; the later ones have joined it.
            first = enders[0]
            cause_of_it = first.cause if first.run_id == record.id else None
            provenance = cause_of_it or provenance_of(first.stop, first.at)
            self._runs.fence(provenance, record, at)
            self._runs.close(record, RunStatus.CANCELLING, provenance, at)
            if first.outcome is None:
                self._stops.closed_on_behalf_of(first.stop, record)
        elif info.status is RunStatus.IN_PROGRESS and (followed := _parents_fence(record)) is not None:
            self._runs.fence(followed, record, at)
            self._runs.close(record, RunStatus.CANCELLING, followed, at)
        elif info.status is RunStatus.IN_PROGRESS:
            # First, so that no effect can begin once `_untouched` has looked for effects.
            self._runs.fence(cause, record, at)
            # A run that a person wanted to end is not tried again; nor one that could only be interrupted.
            may_run = not state.quarantined and not state.interrupted
            can_run = not stops and may_run and state.unavailable(info.agent) is None
            # What a child run brings is of use to its parent alone, whose call has its result by then.
            can_run = can_run and info.parent is None
            if can_run and info.attempt < state.settings.attempts_max and _untouched(snapshot, record):
                again = info
            self._runs.close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)
        else:
            record.token.cancel(info.provenance or cause)
        if record.status is RunStatus.CANCELLING:
            for kept in enders:
                if (kept.outcome, kept.run_id) == (StopOutcome.STOPPED, record.id):
                    self._stops.closed_on_behalf_of(kept.stop, record)
        record.fenced_at = record.fenced_at or at
        record.stage += 1
        if record.open_parts():
            if record.runner_parts():
                state.step.later.append(AdoptRun(record.id))
            state.step.now.append(HaltRun(record.id, record.info.provenance or cause, Mode.GRACEFUL, record.stage))
        return again

    def _restore_late(self, snapshot: Snapshot, info: RunInfo, at: float) -> None:
        """Restore a settled run whose receipt names an abandoned part: a late end of it still amends the receipt."""
        record = self._record(snapshot, info)
        receipt = next((one for one in snapshot.receipts if one.run_id == info.run_id), None)
        if receipt is not None:
            record.restore_from(receipt)
        record.forced = self._state.settings.barrier == Barrier.FORCED
        reason = "what is left of it is taken over"
        record.token.cancel(info.provenance or Provenance(source="run.ended", reason=reason, initiated_at=at))
        self._state.over[record.id] = info.receipt_id
        self._runs.keep_late(record)
        if record.runner_parts():
            self._state.step.later.append(AdoptRun(record.id))
        if not record.open_parts():
            self._runs.drop_late(record)

    def _record(self, snapshot: Snapshot, info: RunInfo) -> RunRecord:
        # What is still executing, or has ended and is not on record, has its token.
        token_of = self._state.token_of
        record = restored(
            info,
            token_of(info.run_id) or self._state.new_token(),
            self._state.new_credit(),
            [row for row in snapshot.calls if row.run_id == info.run_id],
            [row for row in (*snapshot.processes, *snapshot.handed_over) if row.run_id == info.run_id],
            snapshot.printed,
        )
        for call in record.calls.values():
            call.token = token_of(call.row.call_id)
        self._trees.attach(record)
        for row in snapshot.processes:
            if row.run_id == record.id and row.kind in STRAYS and row.state == TreeState.ENDED:
                # Before the run is adopted: its record may have no room for the stray, which would be found again.
                self._state.step.later.append(ForgetPart(Keeper.STRAYS, row.process_id))
        return record


def _untouched(snapshot: Snapshot, record: RunRecord) -> bool:
    """Return True if a run that is fenced has done nothing, as far as is known; so it may be tried again."""
    return not (
        record.id in snapshot.acted
        or any(row.run_id == record.id for row in snapshot.calls)
        or any(row.run_id == record.id and is_own(row) for row in snapshot.processes)
        or record.token.effects
    )


def _parents_fence(record: RunRecord) -> Provenance | None:
    """Return who ended the parent of a child run before the session failed; None: that did not come first."""
    cause = record.token.provenance
    return None if record.info.parent is None or cause is None or cause.source in FAILURES else cause


def _gone(at: float) -> Provenance:
    """Return the cause of process trees that ended with the supervisor."""
    reason = "the supervisor ended, and its process trees with it"
    return Provenance(source="supervisor.recovery", reason=reason, initiated_at=at)


def _recovery_cause(at: float) -> Provenance:
    """Return the cause of runs that were open when the supervisor died; `at` is now (epoch seconds, UTC)."""
    reason = "the supervisor ended while the run was going on"
    return Provenance(source="supervisor.recovery", reason=reason, initiated_at=at)
