"""Runs of this session that are child runs: begun, fenced and reported for the session of their parent.

See `child_link.py` for the theory. Here is the child's side. Everything is found by the id of the run, which the parent
has chosen; so a question that comes again changes nothing.
"""

from __future__ import annotations

from actors.errors import Invalid, RunActive
from actors.messages import ChildReport, ChildWanted
from actors.model import Mode, Policy, Provenance, Role
from actors.ports import ChildSpec
from actors.protocol.child_link import DELETED
from actors.protocol.intake import Intake
from actors.protocol.request_book import FORGOTTEN_WITHIN_S
from actors.protocol.run_record import RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.turns import Turns
from actors.requests import NewMessage
from actors.run_status import RunStatus

ORIGIN = "agent"
"""Who sends the message that a child run answers."""


class ChildRuns:
    """Decides on what the parents of this session's runs want."""

    def __init__(self, state: SessionState, turns: Turns, runs: Runs, intake: Intake) -> None:
        self._state = state
        self._turns = turns
        self._runs = runs
        self._intake = intake

    def follow(self) -> None:
        """Before anything is decided: if the parent of the active run was fenced, or its call closed, so is the run."""
        record = self._state.active
        if record is None or record.info.parent is None or not record.open:
            return
        cause = record.token.provenance
        if cause is not None:
            self._stop(record, cause, None, self._state.clock.wall())

    def wanted(self, wanted: ChildWanted) -> None:
        """Begin a run, unless it is known; or end it.

        Raises:
            CountermandError: it cannot begin; nothing was changed.
        """
        state, at = self._state, self._state.clock.wall()
        record = state.record(wanted.run_id)
        if record is not None:
            if wanted.stop is not None:
                self._stop(record, wanted.stop, wanted.grace_s, at)
            return
        over = wanted.run_id in state.over or self._is_deleted(wanted)
        born_stopped = wanted.stop is not None or wanted.spec is None or wanted.spec.token.cancelled
        if not over and not born_stopped:
            assert wanted.spec is not None, "looked at above"
            self._start(wanted.run_id, wanted.spec, at)

    def report(self, wanted: ChildWanted) -> ChildReport | None:
        """Return what is known of a run, if that is more than was seen; None too if only the store has it."""
        run_id, seen = wanted.run_id, wanted.seen
        record = self._state.record(run_id)
        if record is None and run_id in self._state.over:
            return None
        if record is None and seen is None and self._is_deleted(wanted):
            return ChildReport(run_id, RunStatus.FAILED, error=DELETED, final=True)
        if record is None:
            return ChildReport(run_id, None, final=True)
        if record.open:
            report = ChildReport(run_id, RunStatus.IN_PROGRESS)
            return report if report.follows(seen) else None
        if seen is not None and seen.closed and record.receipt is None:
            # Only its receipt is news.
            return None
        info = record.info
        report = ChildReport(
            run_id, info.status, self.content(run_id), info.error, info.result, info.provenance, record.receipt
        )
        return report if report.follows(seen) else None

    def in_store(self, run_id: str) -> bool:
        """True if a run is settled, and only the store has its receipt."""
        return self._state.record(run_id) is None and run_id in self._state.over

    def _is_deleted(self, wanted: ChildWanted) -> bool:
        """True if a run that is not known has begun, or may have, and was deleted with its session.

        A deletion is remembered to the millisecond.
        """
        if wanted.seen is not None:
            return True
        return wanted.since is not None and wanted.since <= self._state.book.forgotten_to + FORGOTTEN_WITHIN_S

    def content(self, run_id: str) -> str:
        """Return the last text that a run has emitted."""
        messages = self._state.thread.messages()
        texts = (one.content for one in reversed(messages) if one.run_id == run_id and one.role == Role.ASSISTANT)
        return next((text for text in texts if text.strip()), "")

    # ── Begun, and ended ─────────────────────────────────────────────────────────────────────────────

    def _start(self, run_id: str, spec: ChildSpec, at: float) -> None:
        state = self._state
        message = NewMessage(
            id=f"delegated_{run_id.removeprefix('run_')}",
            content=spec.message,
            policy=Policy.REJECT,
            origin=ORIGIN,
            traceparent=spec.traceparent,
            agent=spec.name,
        )
        # A run that is there may still come to its end while the supervisor drains, and this is a part of one.
        self._intake.refuse_unless_serving("a child run", spec.name, draining=state.interrupted)
        self._intake.refuse_too_large(message)
        if state.active is not None:
            raise RunActive(
                "a run is active in the session of the child run",
                run_id=state.active.id,
                expected="a session in which nothing runs",
                got=f"run {state.active.id}",
                remedy="delegate to another session, or to a new one",
            )
        if len(state.queue):
            raise Invalid(
                "messages wait in the session of the child run",
                expected="a session in which nothing waits",
                got=f"{len(state.queue)} messages",
                remedy="delegate to another session, or to a new one",
            )
        self._runs.start(run_id, (message,), at, parent=spec.parent, below=spec.token)

    def _stop(self, record: RunRecord, cause: Provenance, grace_s: float | None, at: float) -> None:
        """End a run as a Stop that is aimed at it does. What waits in the session goes on."""
        mode = Mode.IMMEDIATE if grace_s == 0 else cause.mode
        hurries = grace_s is not None and (record.grace_max_s is None or grace_s < record.grace_max_s)
        if hurries:
            record.grace_max_s = grace_s
        if record.open:
            self._runs.fence(cause, record, at)
            self._runs.close(record, RunStatus.CANCELLING, cause, at)
            self._runs.halt(record, cause, mode)
            self._turns.requeue_steering(at)
            self._runs.settle_if_done(record, at)
            self._runs.start_next(at)
        elif hurries and record.id in self._state.ending and mode is Mode.IMMEDIATE:
            reason = "its parent is ended at once"
            at_once = Provenance(source="run.ended", reason=reason, mode=mode, initiated_at=at, cause=cause)
            self._runs.join(record, at_once)
        elif hurries and record.id in self._state.ending:
            self._runs.halt(record, cause, record.mode, moves=False)
