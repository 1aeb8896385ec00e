"""Reports of process trees that belong to the session, and their kill deadline.

They are accepted in any generation: the tree may outlive the run that asked for it.
"""

from __future__ import annotations

from actors.events import ProcessEndedData, ProcessStartedData, SessionBarrierForcedData
from actors.messages import (
    ChildClosed,
    ChildStarted,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
)
from actors.model import Address, Barrier, How, Owner, TreeState
from actors.protocol.owned_tree import OwnedTree
from actors.protocol.processes import Processes
from actors.protocol.run_record import RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.step import ForgetPart, Keeper, KillTree, OpenBarrier
from actors.protocol.trees import Trees


class TreeReports:
    """Decides on what is reported of trees of the session."""

    def __init__(self, state: SessionState, processes: Processes, trees: Trees, runs: Runs) -> None:
        self._state = state
        self._processes = processes
        self._trees = trees
        self._runs = runs

    def process(self, owned: OwnedTree, report: ProcessReport) -> None:
        """Something is reported of a tree of the session."""
        match report.news:
            case ProcessStarted() as news:
                self._started(owned, news)
            case ProcessOutput() as news:
                record = self._state.open_run(owned.address)
                if record is not None:
                    self._processes.output(record, report, news)
            case ProcessExited() as news:
                owned.part.status = news.status
            case ProcessRemaining() as news:
                self._remains(owned, news)
            case ProcessKilled() as news:
                self._killed(owned, report.address, news)
            case ProcessEnded() as news:
                self._ended(owned, news)
            case ChildStarted() | ChildClosed():
                raise AssertionError("a child run belongs to its run")

    def _started(self, owned: OwnedTree, news: ProcessStarted) -> None:
        if owned.row.pid is not None:
            return
        owned.part.pid, owned.part.started_at = news.pid, news.at
        self._trees.save(owned, pid=news.pid, started_at=news.at)
        record = self._state.record(owned.row.run_id)
        part = record.parts.get(owned.id) if record is not None else None
        if record is not None and part is not None and part is not owned.part:
            part.pid, part.started_at = news.pid, news.at
        if record is not None and record is self._state.active:
            data = ProcessStartedData(
                call_id=owned.row.call_id or None,
                process_id=owned.id,
                pid=news.pid,
                name=owned.row.name,
                owner=Owner.SESSION,
            )
            self._state.event(data, record)
        self._trees.leave_run(record, owned.id, news.at)

    def _remains(self, owned: OwnedTree, news: ProcessRemaining) -> None:
        named = owned.part.remaining is not None
        self._runs.part_remains(owned.part, news)
        at = self._state.clock.wall()
        for waiting in [] if named else list(self._state.stop_receipts.values()):
            if waiting.filed and owned.id in waiting.parts:
                self._trees.file(waiting, at)

    def _killed(self, owned: OwnedTree, address: Address, news: ProcessKilled) -> None:
        """A tool ends it. The session carries that out, so that the cause is known before the end is reported."""
        if self._state.open_run(Address(address.session, address.generation, address.run)) is None:
            self._state.refuse_stale("kill", address, owned.id)
            return
        if owned.row.ending is None:
            owned.part.ended_by(news.provenance)
        self._state.step.now.append(KillTree(owned.id, news.provenance, news.grace_s))

    def _ended(self, owned: OwnedTree, news: ProcessEnded) -> None:
        state, part, at = self._state, owned.part, self._state.clock.wall()
        if part.lost and not news.proven:
            # Reported again, to an actor that took the tree over.
            return
        part.end_process(news)
        if owned.row.host:
            # It may exit at the end of its socket, without a signal: what ends the session's use of it ends it.
            part.provenance = part.provenance or owned.row.ending
        record = state.record(owned.row.run_id)
        if news.how is How.NOT_STARTED:
            self._not_started(record, owned, news)
        data = ProcessEndedData(
            run_id=owned.row.run_id,
            call_id=owned.row.call_id or None,
            process_id=owned.id,
            how=news.how,
            status=news.status,
            reaped=news.reaped,
            proven=news.proven,
            owner=Owner.SESSION,
            note=news.note,
            provenance=part.provenance,
        )
        # Not in the generation of its run, which may have ended long ago: it is an event of the session.
        state.event(data, None)
        if not news.proven:
            return
        self._trees.leave_run(record, owned.id, at)
        del state.owned[owned.id]
        self._trees.save(owned, state=TreeState.ENDED, end=part.as_row(()))
        state.step.later.append(ForgetPart(Keeper.PROCESSES, owned.id))
        for one in list(state.records()):
            if one.parts.get(owned.id) is part:
                self._runs.part_ended(one, at)
        self._trees.file_receipts_of(owned.id, at)
        self._runs.go_on(at)

    @staticmethod
    def _not_started(record: RunRecord | None, owned: OwnedTree, news: ProcessEnded) -> None:
        """It could not be spawned: the row in the receipt of its run says so, if the run is still in memory."""
        part = record.parts.get(owned.id) if record is not None else None
        if record is not None and part is not None and part is not owned.part:
            part.end(How.NOT_STARTED, news.at, news.note)
            part.note = news.note
            record.processes.pop(owned.id, None)

    def deadline(self, stage: int) -> None:
        """The time in which trees of the session had to end has passed: name what is left, and go on.

        It also applies to trees that were ending before and have to hurry now: their own deadline may be later.
        """
        state = self._state
        left = [owned for owned in state.owned.values() if 0 < owned.stage <= stage and not owned.late]
        if not left:
            return
        at = state.clock.wall()
        for owned in left:
            owned.late = True
            owned.part.how = How.ABANDONED
        self._trees.file_without_late(at)
        if state.settings.barrier == Barrier.FORCED:
            names = tuple(f"process {owned.part.name}" for owned in left)
            state.event(SessionBarrierForcedData(run_id=None, abandoned=names), state.active)
            state.step.later.append(OpenBarrier(trees=tuple(owned.id for owned in left)))
        else:
            self._runs.refuse_waiting(at)
        self._runs.go_on(at)
