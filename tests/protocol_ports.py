"""What is around one session when its protocol is tested: its store, its executor, and its process trees.

Each does what its port is to do (`actors.ports`), in turns that the test gives. They outlive the incarnations of their
session; what a crash of the daemon leaves is the `Disk`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from pykka._envelope import Envelope

from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.hierarchy.run import Adoption, RunActor
from actors.messages import ChildFound, Committed, ProcessEnded, ProcessNews, RunReport
from actors.model import Address, Event, How
from actors.ports import Batch, KeptStop
from tests.sim.clock import SimClock
from tests.sim.disk import Disk, journal_takes

_NUMBERS: Final = itertools.count(1)


class Box(deque[Any]):
    """The mailbox of one actor, in place of its reference."""

    @property
    def actor_inbox(self) -> Box:
        """As of a reference."""
        return self

    def put(self, envelope: Envelope[Any]) -> None:
        """Take a message that may ask for a reply."""
        self.append(envelope)

    def tell(self, message: Any) -> None:
        """Take a message."""
        self.append(Envelope(message))


class HeldStore:
    """The store of one session: it writes one batch at a time, when it is told to.

    Args:
        disk: what was written.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.waiting: deque[Batch | tuple[str, str]] = deque()
        self._shown = 0

    def commit(self, batch: Batch, _: object) -> None:
        """See `Store.commit`."""
        self.waiting.append(batch)

    def find_run(self, session: str, run_id: str, _: object) -> None:
        """See `Store.find_run`."""
        self.waiting.append((session, run_id))

    def keep_stop(self, kept: KeptStop, _: object) -> None:
        """See `Store.keep_stop`."""
        key = kept.session, kept.stop.id
        if journal_takes(kept, self.disk.journal.get(key)):
            self.disk.journal[key] = kept

    def forget_stop(self, session: str, request_id: str) -> None:
        """See `Store.forget_stop`."""
        self.disk.journal.pop((session, request_id), None)

    def step(self) -> Committed | ChildFound:
        """Write what was handed in first, or find it."""
        first = self.waiting.popleft()
        if isinstance(first, Batch):
            assert self.disk.write(first), f"batch {first.number} does not follow the last one"
            return Committed(first.number)
        return self._found(*first)

    def fail(self) -> list[ChildFound]:
        """Lose all batches that wait. Returns what was found behind them."""
        left = [self._found(*one) for one in self.waiting if not isinstance(one, Batch)]
        self.waiting.clear()
        return left

    def _found(self, session: str, run_id: str) -> ChildFound:
        tables = self.disk.of(session)
        info = tables.runs.get(run_id)
        return ChildFound(run_id, info, None if info is None else tables.receipts.get(info.receipt_id))

    # ── As the publisher ──────────────────────────────────────────────────────────────────────────

    def publish(self, session: str, events: tuple[Event, ...]) -> None:
        """See `Publisher.publish`: each event that is written is shown, in order, once."""
        written = self.disk.events(session)
        assert list(events) == written[self._shown : self._shown + len(events)], "what is shown is not the log (L12)"
        self._shown += len(events)

    def ephemeral(self, event: Event) -> None:
        """See `Publisher.ephemeral`."""

    def follow(self, session: str) -> None:
        """The session is read anew: what was written and not shown is read from the log."""
        self._shown = len(self.disk.events(session))


@dataclass(slots=True)
class _Execution:
    token: CancelToken
    end: RunReport | None = None


class Executions:
    """The agents and calls that execute, or have ended and are not forgotten: see `actors.ports.Executor`."""

    def __init__(self) -> None:
        self._known: dict[str, _Execution] = {}

    def call(self, callback: Callable[[], None]) -> None:
        """See `Executor.call`."""
        callback()

    def begins(self, key: str, token: CancelToken) -> None:
        """An agent or a call begins to execute."""
        self._known[key] = _Execution(token)

    def ends(self, key: str, report: RunReport) -> None:
        """It has ended, as the first report says."""
        known = self._known.get(key)
        if known is not None and known.end is None:
            known.end = report

    def token(self, key: str) -> CancelToken | None:
        """See `Executor.token`."""
        known = self._known.get(key)
        return None if known is None else known.token

    def adopt(self, key: str, owner: Adopter, *, anew: bool = False) -> bool:
        """See `Executor.adopt`."""
        del anew
        known = self._known.get(key)
        if known is not None and known.end is not None:
            owner.tell(known.end)
        return known is not None

    def forget(self, key: str) -> None:
        """See `Executor.forget`."""
        self._known.pop(key, None)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `Executor.forget_ended`."""
        del session
        self._known = {key: known for key, known in self._known.items() if known.end is None or key in but}

    def crash(self) -> None:
        """The process of the daemon is gone, and with it all that it executes."""
        self._known.clear()


@dataclass(slots=True)
class SimTree:
    """A process tree as its actor would see it. `begun`: it was spawned; `news`: what was reported of it since."""

    address: Address
    process_id: str
    cell: Cell[None] | None = None
    begun: bool = False
    over: bool = False
    news: list[ProcessNews] = field(default_factory=list)

    def begin(self) -> bool:
        """Spawn it, if it may still begin. False: it never has."""
        self.begun = self.begun or (self.cell is not None and self.cell.start())
        return self.begun


class Trees(list[SimTree]):
    """The process trees of a session, and what of them a warden would know: see `actors.ports.Processes`."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._clock = clock

    def adopt(self, process_id: str, owner: Adopter, session: str = "", *, anew: bool = False) -> None:
        """See `Processes.adopt`."""
        del session, anew
        for tree in self:
            if tree.process_id == process_id and tree.begun:
                for news in list(tree.news):
                    owner.tell(news)
                return
            tree.over = tree.over or tree.process_id == process_id
        owner.tell(ProcessEnded(process_id, How.NOT_STARTED, proven=True, at=self._clock.wall()))

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        """See `Processes.kill`: each ends when the test says so."""

    def forget(self, process_id: str) -> None:
        """See `Processes.forget`."""

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `Processes.forget_ended`."""

    def crash(self) -> None:
        """The daemon is gone: the wardens end what it had begun."""
        for tree in self:
            if not tree.over and tree.begun:
                tree.news.append(ProcessEnded(tree.process_id, How.SIGKILL, proven=True, at=self._clock.wall()))
            tree.over = True


class Adopter(RunActor):
    """The actor of a run that adopts what an earlier one left. It has no mailbox: what it hears is taken at once.

    Args:
        ports: where it looks for what may still run.
        address: the run's.
        adoption: what to take over.
        hears: takes what the ports tell it of a part, and what it reports itself.
    """

    def __init__(
        self, ports: Any, address: Address, adoption: Adoption, hears: Callable[[Address, Any], object]
    ) -> None:
        self.actor_urn = str(next(_NUMBERS))
        self._actor_ref: Any = self
        self._ports = ports
        self._address = address
        self._adoption = adoption
        self._hears = hears
        self._executions = set()
        self._processes = {}
        self._strays = set()
        self._cells = {}
        self._adopt(adoption)

    def tell(self, message: Any) -> None:
        """Take a report."""
        self._hears(self._address, message)

    def tell_parent(self, message: object) -> None:
        self._hears(self._address, message)

    def _halt(self, halt: object) -> None:
        """What it has ends when the test says so."""


__all__ = ["Adopter", "Box", "Executions", "HeldStore", "SimTree", "Trees"]
