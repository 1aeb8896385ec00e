"""Seen: the observations that more than one file reads, of a world and of those that crashed before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.decoding import decoder
from actors.model import Owner, Receipt
from actors.ports import Batch, ProcessRow, RequestRow
from actors.requests import OutsideRequest, Reply
from tests.sim.disk import was_released
from tests.sim.laws import LogLaws

if TYPE_CHECKING:
    from tests.sim.disk import Disk
    from tests.sim.world import World

FROM_FAULTS: Final = frozenset({"actor.failure", "store.failure", "supervisor.recovery"})
INSTANT_S: Final = 1e-6
decode_answer = decoder(Reply)


@dataclass(slots=True)
class StopAnswer:
    """What a client was answered to a Stop, where the answer says what it knows: it stands (law L10).

    `survives`: a crash does not forget it, since it is on record or in the journal. `at`: when it was given first, in
    virtual seconds since the epoch; `crashes`: how many there had been by then.
    """

    session: str
    answer: tuple[str, str | None, str]
    at: float
    crashes: int
    survives: bool


class Seen:
    """The record of what happened.

    Args:
        disk: whose batches are read as they become durable.
        fold: see `LogLaws`.
    """

    def __init__(self, disk: Disk, *, fold: bool = True) -> None:
        self.disk = disk
        self.world: World | None = None
        self.broken: list[str] = []
        self.faults = False
        self.crashes = 0
        self.restarts = 0
        # True where something that was decided may be lost.
        self.forgot = False
        self._fold = fold
        self._laws: dict[str, LogLaws] = {}

        # Requests, by id. When one was sent first, and last; how many copies of it this world has not answered yet;
        # when its answer became durable.
        self.requests: dict[str, OutsideRequest] = {}
        self.sent: dict[str, tuple[float, float]] = {}
        self.under_way: Counter[str] = Counter()
        self.told_at: dict[str, float] = {}
        self.given: dict[str, StopAnswer] = {}
        # By run: its receipt.
        self.receipts: dict[str, str] = {}
        self.deleted_receipts: set[str] = set()
        self.deleted_requests: set[str] = set()

        # Code. By run id or fencing token: its session, while it is inside its function.
        self.inside: dict[str, str] = {}
        # Hosts that broke the protocol: they have no grace.
        self.cut_off: set[str] = set()
        # Runs whose agent, and fencing tokens whose tool, has started.
        self.agents: set[str] = set()
        self.began: set[str] = set()
        # Calls: those that were granted, how those ended that ended in time, and those that returned at all.
        self.granted: set[str] = set()
        self.in_time: dict[str, str] = {}
        self.left: set[str] = set()
        # By call, and by run of its agent: how many effects it has had behind guards in this world.
        self.effects: Counter[str] = Counter()

        # Runs and calls whose code has asked for a guard in a host in this world.
        self.asked_for_guards: set[str] = set()

        # Process trees, by id. Hosts among them; by host: the session that it has run for.
        self.spawned: set[str] = set()
        self.ran: set[str] = set()
        self.hosts: set[str] = set()
        self.host_sessions: dict[str, str] = {}
        # Trees and executions that had to end; those of runs; those that a receipt named as abandoned.
        self.halted: set[str] = set()
        self.ended_for_run: set[str] = set()
        self.abandoned: set[str] = set()

        # By session: when a shutdown refused a request first, in virtual seconds since the epoch.
        self.refused_at: dict[str, float] = {}
        # Of the worlds before: from when to when a shutdown interrupted what ran; virtual seconds since the epoch.
        self.interrupts: list[tuple[float, float]] = []

    def laws(self, session: str) -> LogLaws:
        """The laws of a session's durable log, as far as it is written."""
        found = self._laws.get(session)
        if found is None:
            found = self._laws[session] = LogLaws(fold=self._fold)
        return found

    def break_(self, what: str) -> None:
        """Write down that a law does not hold."""
        self.broken.append(what)

    def lives(self, process: ProcessRow) -> bool:
        """True if a tree that was spawned, and not released, lives."""
        world = self.world
        assert world is not None, "a world was entered"
        of_it = process.process_id in self.spawned and not was_released(process)
        return of_it and world.processes.lives(process.process_id)

    def answer_to(self, request_id: str) -> StopAnswer | None:
        """The answer that a Stop got, unless a crash may have forgotten it."""
        given = self.given.get(request_id)
        return given if given is not None and (given.survives or given.crashes == self.crashes) else None


def stored_answers(batch: Batch) -> list[RequestRow]:
    """The answers of a batch. A deletion keeps ids without answers."""
    return [row for row in batch.requests if row.answer]


def belongs_to(process: ProcessRow, receipt: Receipt) -> bool:
    """True if a receipt covers a tree: it is its run's, or the session's and was ended with that run."""
    if process.owner is Owner.SESSION:
        return receipt.run_id in process.receipts
    return process.run_id == receipt.run_id
