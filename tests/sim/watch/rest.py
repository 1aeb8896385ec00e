"""RestLaws: what is left when a session leaves memory, is deleted, or comes to rest (laws L3, L4, L6, L7, L11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.model import Event, Owner
from actors.ports import ProcessRow
from actors.run_status import RunStatus
from tests.sim.disk import was_released
from tests.sim.watch.seen import Seen, belongs_to

if TYPE_CHECKING:
    from tests.sim.world import World


class RestLaws:
    """What a world reports when a session leaves, and when everything has settled."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        # How often a session left memory.
        self.left_memory = 0

    def passivates(self, session: str) -> None:
        """A session leaves memory: all of it is written, and nothing of it goes on (law L11)."""
        tables, world = self._seen.disk.of(session), self._seen.world
        assert world is not None, "a world was entered"
        self.left_memory += 1
        for run in tables.runs.values():
            if run.status is not RunStatus.QUEUED and (not run.settled or run.late):
                self._seen.break_(f"{session} leaves while {run.run_id} is {run.status} (L11)")
        if tables.waiting and not (tables.row is not None and tables.row.parked):
            self._seen.break_(f"{session} leaves while {list(tables.waiting)} wait (L11)")
        if tables.pending:
            self._seen.break_(f"{session} leaves while {list(tables.pending)} are to be filed (L11)")
        if world.store.unwritten(session):
            self._seen.break_(f"{session} leaves with a batch under way (L11)")
        for process in tables.processes.values():
            if self._seen.lives(process):
                self._seen.break_(f"{session} leaves while {process.process_id} lives (L11)")
            if world.strays.lives(process.process_id):
                self._seen.break_(f"{session} leaves while {process.process_id} goes on (L11)")
        for fence, of in self._seen.inside.items():
            if of == session and not self._seen.faults:
                self._seen.break_(f"{session} leaves while {fence} runs (L11)")

    def deletes(self, session: str) -> None:
        """All that is stored of a session is removed: all that it started was proven to have ended (law L3)."""
        tables, world = self._seen.disk.of(session), self._seen.world
        assert world is not None, "a world was entered"
        for run in tables.runs.values():
            if not run.settled or run.late:
                self._seen.break_(f"{session} is deleted while {run.run_id} is {run.status} (L3)")
        if tables.waiting:
            self._seen.break_(f"{session} is deleted while {list(tables.waiting)} wait (L4)")
        for process in tables.processes.values():
            of_it = process.process_id in self._seen.spawned and not was_released(process)
            # Not whether it lives: of a tree whose daemon has died nobody but its ledger says that it is gone.
            if of_it and not world.processes.proven(process.process_id):
                self._seen.break_(f"{session} is deleted, and {process.process_id} is not proven to have ended (L3)")
            if world.strays.lives(process.process_id):
                self._seen.break_(f"{session} is deleted while {process.process_id} goes on (L3)")
        for fence, of in self._seen.inside.items():
            if of == session:
                self._seen.break_(f"{session} is deleted while {fence} runs (L3)")
        self._seen.deleted_receipts.update(tables.receipts)
        self._seen.deleted_requests.update(tables.requests)
        self._seen.given = {one: given for one, given in self._seen.given.items() if given.session != session}

    def came_to_rest(self, world: World) -> None:
        """A shutdown says that all came to rest: nothing was left under way (law L11)."""
        if self._seen.faults:
            # A session that is quarantined, and failed again, is taken up by nobody before the next start.
            return
        for session, tables in self._seen.disk.tables.items():
            for run in tables.runs.values():
                if run.status in (RunStatus.IN_PROGRESS, RunStatus.CANCELLING) or (run.ended_at and not run.settled):
                    self._seen.break_(f"the shutdown is over while {run.run_id} is {run.status} (L11)")
            if not all(self._is_of_abandoned(event) for one in world.store.unwritten(session) for event in one.events):
                self._seen.break_(f"the shutdown is over, and {session} is not written (L11)")
            for process in tables.processes.values():
                if not self._seen.lives(process):
                    continue
                if not self._given_up(process):
                    self._seen.break_(f"the shutdown is over while {process.process_id} lives (L11)")

    def did_not_come_to_rest(self) -> None:
        """A shutdown says that something did not come to rest: it was interrupted all the same (law L11)."""
        runs = [run for tables in self._seen.disk.tables.values() for run in tables.runs.values()]
        for run in runs if not self._seen.faults else ():
            if run.status is RunStatus.IN_PROGRESS:
                self._seen.break_(f"the shutdown is over, and {run.run_id} was not interrupted (L11)")

    def at_rest(self) -> None:
        """Nothing has failed and everything has settled: what has ended is on record as ended (laws L3, L6).

        Raises:
            AssertionError: a receipt still names something abandoned that is gone.
        """
        world = self._seen.world
        assert world is not None, "a world was entered"
        if not self._seen.crashes:
            never = self._seen.abandoned & self._seen.spawned - self._seen.halted
            assert not never, f"{never} are abandoned, and nobody told them to end (L3)"
        running = {name.rpartition(" ")[2] for name in world.executor.running()}
        for session, tables in self._seen.disk.tables.items():
            for receipt in tables.receipts.values():
                if receipt.complete or receipt.run_id is None:
                    continue
                calls = {call.call_id for call in tables.calls.values() if call.run_id == receipt.run_id}
                trees = [one.process_id for one in tables.processes.values() if belongs_to(one, receipt)]
                left = running & {*calls, receipt.run_id} or any(not self._is_proven(one) for one in trees)
                assert left, f"{session}: the receipt of {receipt.run_id} names what is left, and all is gone (L7)"

    def _is_proven(self, part: str) -> bool:
        """True if a tree, or a child run, is proven to have ended."""
        receipt = self._seen.disk.receipt(part)
        assert self._seen.world is not None, "a world was entered"
        return self._seen.world.processes.proven(part) if receipt is None else receipt.complete

    def _is_of_abandoned(self, event: Event) -> bool:
        """True if an event tells of a part that a receipt names as abandoned, or of one that was found behind it.

        A shutdown does not wait for such a part. The store writes what comes of it while it closes.
        """
        match event.kind:
            case "receipt.amended":
                return True
            case "session.barrier_forced":
                return self._is_incomplete(event.data["run_id"])
            case "run.child_ended":
                return self._is_incomplete(event.run_id or "")
            case "process.ended":
                process = self._seen.disk.process(event.data["process_id"])
                # What was found behind the receipt may be on record no earlier than its end.
                return self._is_incomplete(event.run_id or "") if process is None else self._given_up(process)
            case _:
                return False

    def _given_up(self, process: ProcessRow) -> bool:
        """True if it is on record that a tree was told to end and did not: it is abandoned."""
        if process.owner is Owner.SESSION:
            return process.ending is not None
        return self._is_incomplete(process.run_id)

    def _is_incomplete(self, run_id: str) -> bool:
        """True if the receipt of a run is on record, and says that something of it was left."""
        receipt = self._seen.disk.receipt(run_id)
        return receipt is not None and not receipt.complete
