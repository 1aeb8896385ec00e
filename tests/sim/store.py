"""SimStore: the store, with faults, over what a crash leaves: the `Disk`.

Commits are steps of their own: what an actor hands in waits in a queue until the world takes a step here, and
then several batches may be written as one group. What was written is on the `Disk`, which outlives a crash;
what waited is lost with the world, as it is lost with a daemon.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pykka import ActorDeadError

from actors.errors import NotFound
from actors.gate.pending import fail, settle
from actors.messages import ChildFound, CommitFailed, Committed, Loaded, LoadFailed, StopKept
from actors.ports import Batch, KeptStop, Snapshot
from tests.sim.disk import Disk, journal_takes
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from pykka import ActorRef

GROUP_MAX: Final = 4


class SimStore:
    """`actors.ports.Store` over a `Disk`.

    Faults, each for a whole group, as of a disk: `fail_next` groups fail and nothing of them is written;
    `lose_next` groups are written and reported as failed, as when a COMMIT has an outcome that nobody knows; while
    it is `down` all fails, loads too. And one of a batch: of `unfit_next` groups the first cannot be stored.
    """

    def __init__(self, disk: Disk, random: Random, watch: Watch) -> None:
        self._disk = disk
        self._random = random
        self._watch = watch
        self._queue: deque[tuple[Batch | str | tuple[str, str], ActorRef[Any]]] = deque()
        self._down = False
        self._held = False
        self._reads_held = False
        self._journal_held = False
        self._loads: deque[tuple[str, ActorRef[Any]]] = deque()
        self._journal: deque[tuple[KeptStop, ActorRef[Any]] | tuple[str, str]] = deque()
        self._fail_next = 0
        self._lose_next = 0
        self._unfit_next = 0
        self.failures = 0
        # Something was to fail, or to wait.
        self.troubled = False

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Take a batch in; it is written at a later step."""
        self._queue.append((batch, owner))

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session at a later step, after all that was handed in before."""
        self._queue.append((session, owner))

    def find_run(self, session: str, run_id: str, owner: ActorRef[Any]) -> None:
        """Read a settled run at a later step, after all that was handed in before."""
        self._queue.append(((session, run_id), owner))

    def keep_stop(self, kept: KeptStop, owner: ActorRef[Any]) -> None:
        """Take a Stop in; it is in the journal at a later step, whatever holds the store up."""
        self._watch.journal.keeps(kept)
        self._journal.append((kept, owner))

    def forget_stop(self, session: str, request_id: str) -> None:
        """Let a Stop go at a later step."""
        self._watch.journal.forgets(session, request_id)
        self._journal.append((session, request_id))

    def attachment(self, session: str, name: str, reply: Future[bytes]) -> None:
        """Read what was written of an attachment."""
        data = self._disk.attachment(session, name)
        if data is None:
            fail(reply, NotFound("there is no such attachment", expected="one that was written", got=name))
        else:
            settle(reply, data)

    def fail_next(self, groups: int = 1) -> None:
        """Let the next groups fail."""
        self.troubled = True
        self._fail_next += groups

    def lose_next(self, groups: int = 1) -> None:
        """Write the next groups, and say that they failed."""
        self.troubled = True
        self._lose_next += groups

    def unfit_next(self, groups: int = 1) -> None:
        """Let the first batch of the next groups be one that cannot be stored."""
        self.troubled = True
        self._unfit_next += groups

    def down(self, is_down: bool) -> None:
        """Let everything fail, or no more."""
        self.troubled = True
        self._down = is_down

    def hold(self, is_held: bool) -> None:
        """Let everything wait, as on a disk that takes its time, or no more."""
        self.troubled = True
        self._held = is_held

    def hold_reads(self, is_held: bool) -> None:
        """Let reads wait, as of a session with a long log, while writes go on; or no more."""
        self.troubled = True
        self._reads_held = is_held
        if not is_held:
            self._queue.extendleft(reversed(self._loads))
            self._loads.clear()

    def hold_journal(self, is_held: bool) -> None:
        """Let the journal wait, as on a disk of its own that takes its time, or no more."""
        self._journal_held = is_held

    @property
    def ready(self) -> bool:
        """True if there is something to do."""
        return bool(self._queue) and not self._held

    @property
    def journal_ready(self) -> bool:
        """True if there is something to write to the journal."""
        return bool(self._journal) and not self._journal_held

    def journal_step(self) -> None:
        """Write one record of the journal, or let one go."""
        first, second = self._journal.popleft()
        if isinstance(first, KeptStop):
            key = first.session, first.stop.id
            if journal_takes(first, self._disk.journal.get(key)):
                self._disk.journal[key] = first
            self._watch.journal.journalled(first)
            assert not isinstance(second, str), "an owner, beside a Stop"
            _tell(second, StopKept(first.stop.id))
        else:
            assert isinstance(second, str), "the id of a Stop, beside its session"
            self._disk.journal.pop((first, second), None)

    def step(self) -> None:
        """Write one group, or read one session."""
        first, owner = self._queue.popleft()
        if isinstance(first, str) and self._reads_held:
            self._loads.append((first, owner))
            return
        if isinstance(first, str):
            self._load(first, owner)
            return
        if isinstance(first, tuple):
            self._find(*first, owner)
            return
        group = [(first, owner)]
        limit = self._random.randint(1, GROUP_MAX)
        while len(group) < limit and self._queue and isinstance(self._queue[0][0], Batch):
            batch, of = self._queue.popleft()
            assert isinstance(batch, Batch), "looked at above"
            group.append((batch, of))
        self._commit(group)

    def unwritten(self, session: str) -> list[Batch]:
        """The batches of a session that wait to be written."""
        return [work for work, _ in self._queue if isinstance(work, Batch) and work.session == session]

    def close(self) -> None:
        """A shutdown: the journal writes what was handed in, as the real one does."""
        while self._journal:
            self.journal_step()

    def drop(self) -> None:
        """A crash: what was handed in and not written is gone."""
        self._queue.clear()
        self._loads.clear()
        self._journal.clear()

    def _find(self, session: str, run_id: str, owner: ActorRef[Any]) -> None:
        if self._down:
            self.failures += 1
            self._watch.faults = True
            _tell(owner, ChildFound(run_id, error="the simulated disk is down"))
            return
        info = self._disk.of(session).runs.get(run_id)
        receipt = None if info is None else self._disk.of(session).receipts.get(info.receipt_id)
        _tell(owner, ChildFound(run_id, info, receipt))

    def _load(self, session: str, owner: ActorRef[Any]) -> None:
        if self._down:
            self.failures += 1
            self._watch.faults = True
            _tell(owner, LoadFailed("the simulated disk is down"))
        else:
            _tell(owner, Loaded(self._with_unwritten_stops(self._disk.snapshot(session))))

    def _with_unwritten_stops(self, snapshot: Snapshot) -> Snapshot:
        """What was handed to the journal is given to whoever loads, as by the real one, also before it is written."""
        kept = {one.stop.id: one for one in snapshot.kept}
        for first, second in self._journal:
            if not isinstance(first, KeptStop):
                if first == snapshot.session:
                    kept.pop(str(second), None)
            elif first.session == snapshot.session and journal_takes(first, kept.get(first.stop.id)):
                kept[first.stop.id] = first
        return msgspec.structs.replace(snapshot, kept=tuple(kept.values()))

    def _commit(self, group: list[tuple[Batch, ActorRef[Any]]]) -> None:
        if self._down or self._fail_next:
            self._fail_next = max(0, self._fail_next - 1)
            self._fail(group, "the simulated disk failed")
            return
        unfit = [batch for batch, _ in group[:1]] if self._unfit_next else []
        self._unfit_next = max(0, self._unfit_next - 1)
        # A batch that does not follow the last one written is refused, as the store's writer does.
        refused = [batch for batch, _ in group if batch in unfit or not self._disk.write(batch)]
        if self._lose_next:
            self._lose_next -= 1
            self._fail(group, "the outcome of the simulated commit is not known")
            return
        durable: dict[int, tuple[Batch, ActorRef[Any]]] = {}
        for batch, owner in group:
            if batch not in refused:
                durable[id(owner)] = (batch, owner)
        for batch, owner in durable.values():
            self._watch.bounds.told(batch.incarnation, batch.number)
            _tell(owner, Committed(batch.number))
        self._fail([(batch, owner) for batch, owner in group if batch in unfit], "it cannot be stored", unfit=True)
        behind = [(batch, owner) for batch, owner in group if batch in refused and batch not in unfit]
        self._fail(behind, "it does not follow")

    def _fail(self, group: list[tuple[Batch, ActorRef[Any]]], why: str, *, unfit: bool = False) -> None:
        if not group:
            return
        self._watch.faults = True
        self.failures += len(group)
        for batch, owner in group:
            self._watch.bounds.told_failure(batch.incarnation)
            _tell(owner, CommitFailed(batch.number, why, unfit=unfit))


def _tell(owner: ActorRef[Any], message: object) -> None:
    try:
        owner.tell(message)
    except ActorDeadError:
        return
