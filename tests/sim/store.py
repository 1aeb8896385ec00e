"""SimStore: the store in memory. Its tables are the real ones, over SQLite without a file.

Commits are steps of their own: what an actor hands in waits in a queue until the world takes a step here, and
then several batches may be written as one group. What was written is on the `Disk`, which outlives a crash;
what waited is lost with the world, as it is lost with a daemon.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pykka import ActorDeadError

from actors.messages import CommitFailed, Committed, Loaded, LoadFailed
from actors.model import Event, Message, Receipt, RunInfo
from actors.ports import Batch, CallRow, Clock
from supervisor.store import tables
from supervisor.store.schema import migrations

if TYPE_CHECKING:
    from pykka import ActorRef

    from tests.sim.processes import Ending

GROUP_MAX: Final = 4
REQUESTS_KEPT: Final = 10_000
REQUESTS_KEPT_S: Final = 7 * 86_400.0
EVENTS_MAX: Final = 1_000_000


class Disk:
    """What survives a crash: the tables, and the ledgers of the wardens by process id."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for _, script in migrations():
            self.connection.executescript(script)
        self.ledgers: dict[str, Ending] = {}

    def close(self) -> None:
        """Let the tables go."""
        self.connection.close()

    def events(self, session: str) -> list[Event]:
        """The log of a session."""
        return tables.events(self.connection, session, 0, EVENTS_MAX)

    def last_seq(self, session: str) -> int:
        """The last seq of a session."""
        return tables.last_seq(self.connection, session)

    def thread(self, session: str) -> list[Message]:
        """The fold of the log of a session."""
        return tables.thread(self.connection, session)

    def runs(self, session: str) -> list[RunInfo]:
        """The runs of a session, the oldest first."""
        return tables.runs(self.connection, session, EVENTS_MAX)

    def run(self, run_id: str) -> RunInfo | None:
        """One run, of any session."""
        return tables.run(self.connection, None, run_id)

    def receipt(self, identity: str) -> Receipt | None:
        """A receipt by its id, or by its run's."""
        return tables.receipt(self.connection, None, identity)

    def unfinished(self) -> list[str]:
        """The sessions that somebody has to take up."""
        return tables.unfinished(self.connection)

    def waiting(self, session: str) -> list[str]:
        """Ids of the messages that wait."""
        return [row.message.id for row in tables.waiting(self.connection, session)]

    def requests(self, session: str) -> set[str]:
        """Ids of the requests whose answer is on record."""
        rows = self.connection.execute("SELECT request_id FROM requests WHERE session = ?", (session,))
        return {row[0] for row in rows}

    def call_state(self, call_id: str) -> str | None:
        """The state of a call's row; None where there is none."""
        row = self.connection.execute("SELECT doc FROM calls WHERE call_id = ?", (call_id,)).fetchone()
        return msgspec.json.decode(row[0], type=CallRow).state if row else None

    def has_process(self, process_id: str) -> bool:
        """True if the row of a process tree is there."""
        found = self.connection.execute("SELECT 1 FROM processes WHERE process_id = ?", (process_id,))
        return found.fetchone() is not None


class SimStore:
    """`actors.ports.Store` over a `Disk`.

    Faults, each for a whole group, as of a disk: `fail_next` groups fail and nothing of them is written;
    `lose_next` groups are written and reported as failed, as when a COMMIT has an outcome that nobody knows; while
    it is `down` all fails, loads too.
    """

    def __init__(self, disk: Disk, clock: Clock, random: Random) -> None:
        self._disk = disk
        self._clock = clock
        self._random = random
        self._queue: deque[tuple[Batch | str, ActorRef[Any]]] = deque()
        self._down = False
        self._held = False
        self._fail_next = 0
        self._lose_next = 0
        self.failures = 0

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Take a batch in; it is written at a later step."""
        self._queue.append((batch, owner))

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session at a later step, after all that was handed in before."""
        self._queue.append((session, owner))

    def fail_next(self, groups: int = 1) -> None:
        """Let the next groups fail."""
        self._fail_next += groups

    def lose_next(self, groups: int = 1) -> None:
        """Write the next groups, and say that they failed."""
        self._lose_next += groups

    def down(self, is_down: bool) -> None:
        """Let everything fail, or no more."""
        self._down = is_down

    def hold(self, is_held: bool) -> None:
        """Let everything wait, as on a disk that takes its time, or no more."""
        self._held = is_held

    @property
    def ready(self) -> bool:
        """True if there is something to do."""
        return bool(self._queue) and not self._held

    def step(self) -> None:
        """Write one group, or read one session."""
        first, owner = self._queue.popleft()
        if isinstance(first, str):
            self._load(first, owner)
            return
        group = [(first, owner)]
        limit = self._random.randint(1, GROUP_MAX)
        while len(group) < limit and self._queue and isinstance(self._queue[0][0], Batch):
            batch, of = self._queue.popleft()
            assert isinstance(batch, Batch), "looked at above"
            group.append((batch, of))
        self._commit(group)

    def drop(self) -> None:
        """A crash: what was handed in and not written is gone."""
        self._queue.clear()

    def _load(self, session: str, owner: ActorRef[Any]) -> None:
        if self._down:
            self.failures += 1
            _tell(owner, LoadFailed("the simulated disk is down"))
        else:
            _tell(owner, Loaded(tables.snapshot(self._disk.connection, session)))

    def _commit(self, group: list[tuple[Batch, ActorRef[Any]]]) -> None:
        if self._down or self._fail_next:
            self._fail_next = max(0, self._fail_next - 1)
            self._fail(group, "the simulated disk failed")
            return
        refused = self._write(group)
        if self._lose_next:
            self._lose_next -= 1
            self._fail(group, "the outcome of the simulated commit is not known")
            return
        durable: dict[int, tuple[int, ActorRef[Any]]] = {}
        for batch, owner in group:
            if batch not in refused:
                durable[id(owner)] = (batch.number, owner)
        for number, owner in durable.values():
            _tell(owner, Committed(number))
        self._fail([(batch, owner) for batch, owner in group if batch in refused], "it does not follow")

    def _fail(self, group: list[tuple[Batch, ActorRef[Any]]], why: str) -> None:
        self.failures += len(group)
        for batch, owner in group:
            _tell(owner, CommitFailed(batch.number, why))

    def _write(self, group: list[tuple[Batch, ActorRef[Any]]]) -> list[Batch]:
        """Write a group in one transaction; returns the batches that do not follow on what is written."""
        connection = self._disk.connection
        refused: list[Batch] = []
        connection.execute("BEGIN")
        for batch, _ in group:
            last = tables.last_batch(connection, batch.session, batch.incarnation)
            if batch.number <= last:
                continue
            if batch.number != last + 1:
                refused.append(batch)
                continue
            for sql, values in tables.statements(batch):
                connection.execute(sql, values)
            if batch.requests:
                horizon = self._clock.wall() - REQUESTS_KEPT_S
                tables.prune_requests(connection, batch.session, REQUESTS_KEPT, horizon)
            tables.set_last_batch(connection, batch.session, batch.incarnation, batch.number)
        connection.execute("COMMIT")
        return refused


def _tell(owner: ActorRef[Any], message: object) -> None:
    try:
        owner.tell(message)
    except ActorDeadError:
        return
