"""TreeLaws: when process trees start, change their owner, and are used as hosts (laws L1, L3, L8, L12, L13)."""

from __future__ import annotations

from actors.model import Address, Owner
from actors.run_status import TERMINAL
from tests.sim.bounds import Bounds
from tests.sim.watch.barrier import BarrierLaws
from tests.sim.watch.seen import Seen


class TreeLaws:
    """What a world reports about its process trees, those of hosts included."""

    def __init__(self, seen: Seen, barrier: BarrierLaws, bounds: Bounds) -> None:
        self._seen = seen
        self._barrier = barrier
        self._bounds = bounds

    def spawns(self, process_id: str) -> None:
        """A command is handed to the port: on record, of an open call, and behind the barrier."""
        self._seen.spawned.add(process_id)
        if process_id in self._seen.hosts:
            # A host is spawned before any run needs it.
            return
        row = self._seen.disk.process(process_id)
        if row is None:
            self._seen.break_(f"{process_id} is spawned before it is on record (L12)")
            return
        call, run = self._seen.disk.call(row.call_id), self._seen.disk.run(row.run_id)
        closed = call is None or call.state == "ended" if row.call_id else run is None or run.status in TERMINAL
        if closed:
            self._seen.break_(f"{process_id} is spawned for a call, or by an agent, whose time is over (L1)")
        self._barrier.before_run(row.session, row.run_id, process_id)
        self._bounds.spawns(process_id)

    def tells_host(self, process_id: str, address: Address, *, overlap: bool, busy: bool) -> None:
        """A host is told of a run: it is on record as the run's, and of no other use (laws L1, L12, L13)."""
        session, run = address.session, address.run
        row = self._seen.disk.of(session).processes.get(process_id)
        if row is None or row.run_id != run or row.state == "ended":
            self._seen.break_(f"{process_id} is told of {run} before it is on record as its host (L12)")
        if busy:
            self._seen.break_(f"{process_id} is told of {run} while it has another run (L1)")
        known = self._seen.host_sessions.setdefault(process_id, session)
        if known != session:
            self._seen.break_(f"{process_id} has run for {known}, and is told of {run} of {session} (L13)")
        actor = self._seen.world.session_if_alive(session) if self._seen.world is not None else None
        record = actor._protocol.state.record(run) if actor is not None else None
        if record is not None and not record.open:
            self._seen.break_(f"{process_id} is told of {run}, which is {record.status} (L1)")
        if not overlap:
            self._barrier.before_run(session, run, process_id)
            self._barrier.of_session(session, process_id)

    def asks_host(self, process_id: str) -> None:
        """A host gets a SIGTERM, which ends most: its agent has ended before, or has had its grace (law L8)."""
        row = self._seen.disk.process(process_id)
        if (
            row is not None
            and row.host
            and not row.call_id
            and row.owner is Owner.RUN
            and row.run_id in self._seen.inside
            and process_id not in self._seen.cut_off
            and not self._seen.faults
        ):
            self._seen.break_(f"{process_id} is asked to end while its agent cleans up (L8)")

    def releases(self, process_id: str) -> None:
        """A host is released: no run is on record that has it (law L12)."""
        row = self._seen.disk.process(process_id)
        if row is not None and row.state != "ended" and row.owner is Owner.RUN:
            self._seen.break_(f"{process_id} is released, and is on record as the host of {row.run_id} (L12)")

    def handed_over(self, process_id: str) -> None:
        """A tool is told that a tree is the session's: it is on record (law L12)."""
        row = self._seen.disk.process(process_id)
        if row is None or row.owner is not Owner.SESSION:
            self._seen.break_(f"{process_id} is said to be the session's before that is durable (L12)")
