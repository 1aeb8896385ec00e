"""Watch: the laws as predicates over what is observed, asked at every door of a world while it runs.

`LogLaws` reads what the log says. This one knows in addition what really happened: which tools and agents are inside
their functions, which process trees live, what clients asked and were answered. It never reads a decision of the
actors as the truth about the world, only about themselves (whether a run is open in its session's memory).

A predicate that does not hold is written into `broken`; the world raises it at the end of the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors.errors import CountermandError, ShuttingDown, StoreUnavailable
from actors.gate.cell import CellState
from actors.hierarchy.late_stops import STOPS_KEPT_MAX
from actors.ids import request_time
from actors.model import (
    TERMINAL,
    Address,
    Event,
    How,
    Mode,
    Outcome,
    Owner,
    Provenance,
    Receipt,
    Row,
    RunStatus,
    Scope,
    Waiting,
)
from actors.ports import Batch, KeptStop, ProcessRow, RequestRow, Settings
from actors.protocol.run_record import CallRecord, RunRecord, is_own
from actors.requests import UNKNOWN, Accepted, Delete, NewMessage, OutsideRequest, Reply, Resumed, Stop, Stopped
from tests.sim.bounds import TOLD_S, Bounds
from tests.sim.disk import journal_takes, was_released
from tests.sim.laws import LogLaws

if TYPE_CHECKING:
    from tests.sim.disk import Disk
    from tests.sim.world import World

FROM_FAULTS: Final = frozenset({"actor.failure", "store.failure", "supervisor.recovery"})
INSTANT_S: Final = 1e-6
_decode = msgspec.json.Decoder(Reply).decode


class LawBroken(AssertionError):
    """A predicate does not hold."""


@dataclass(slots=True)
class Given:
    """What a client was answered to a Stop, where the answer says what it knows: it stands (law L10).

    `survives`: a crash does not forget it, since it is on record or in the journal. `at`: when it was told first, in
    virtual seconds since the epoch; `crashes`: how many there had been by then.
    """

    session: str
    answer: tuple[str, str | None, str]
    at: float
    crashes: int
    survives: bool


class Watch:
    """The watcher of one client's worlds: the world it is in, and those that crashed before.

    Args:
        disk: whose batches are read as they become durable.
        fold: see `LogLaws`.
    """

    def __init__(self, disk: Disk, *, fold: bool = True) -> None:
        self.broken: list[str] = []
        self.faults = False
        self.crashes = 0
        # True where something that was decided may be known to nobody any more.
        self.forgot = False
        self.restarts = 0
        self.left_memory = 0
        self.names: dict[str, str] = {}
        self.deleted_receipts: set[str] = set()
        self.deleted_requests: set[str] = set()
        self.requests: dict[str, OutsideRequest] = {}
        self.agents: set[str] = set()
        self.began: set[str] = set()
        self.inside: dict[str, str] = {}
        self.in_time: dict[str, str] = {}
        self.spawned: set[str] = set()
        # Trees of hosts; by tree: the session that it has run for.
        self.hosts: set[str] = set()
        self._told: dict[str, str] = {}
        self.halted: set[str] = set()
        self.ended_for_run: set[str] = set()
        self.granted: set[str] = set()
        self.abandoned: set[str] = set()
        self.ran: set[str] = set()
        self.left: set[str] = set()
        self.told_at: dict[str, float] = {}
        # By call: how many effects it has had behind guards.
        self.effects: Counter[str] = Counter()
        # By the run's id, or the call's fencing token: when its token was cancelled.
        self._ends_at: dict[str, float] = {}
        self.kept: dict[str, KeptStop] = {}
        self.owed: dict[str, tuple[KeptStop, int]] = {}
        # Those that the journal was told to let go, and that were not handed to it since.
        self.let_go: set[str] = set()
        self.stops_told: set[str] = set()
        self.told_not_durable: set[str] = set()
        # Stops that went on record while their session was deleted: an event about them would begin it anew.
        self.without_event: set[str] = set()
        self.in_journal: set[str] = set()
        self.given: dict[str, Given] = {}
        self.unknown: set[str] = set()
        # By request: when the last copy of it that was under way was refused, in virtual seconds since the epoch.
        self.refused: dict[str, float] = {}
        # By run: what an agent was told of why it ends.
        self._why: dict[str, Provenance] = {}
        self.refused_at: dict[str, float] = {}
        # By run: a message that was refused, and told that it has stopped that run all the same; and when.
        self._superseded: dict[str, tuple[str, int, int]] = {}
        self._disk = disk
        self._fold = fold
        self._world: World | None = None
        # Of the worlds before: from when to when a shutdown interrupted what ran; virtual seconds since the epoch.
        self._interrupts: list[tuple[float, float]] = []
        self._laws: dict[str, LogLaws] = {}
        self._answers: dict[str, Any] = {}
        self._receipts: dict[str, str] = {}
        # By session and origin: what was sent before the first has come too late, what was sent after the second not.
        self._cutoffs: dict[tuple[str, str], tuple[float, float]] = {}
        # When a request was sent first, and last.
        self.sent: dict[str, tuple[float, float]] = {}
        # How often a request was sent to this world and has no answer yet.
        self.under_way: Counter[str] = Counter()
        disk.on_batch = self._batch
        self.bounds = Bounds(disk, self.broken)

    def enter(self, world: World) -> None:
        """From here on this is the world that is watched; what was inside a function in the last one is gone."""
        if self._world is not None and self._world.interrupts_at is not None:
            self._interrupts.append((self._world.interrupts_at, world.clock.wall()))
        self.inside.clear()
        self.refused_at.clear()
        self.under_way.clear()
        self._world = world
        self.bounds.enter(world)
        world.clock.on_timer = self.bounds.timer

    def crashed(self) -> None:
        """What only the memory of a world had is known to nobody any more."""
        self.crashes += 1
        self.forgot = True
        # A Stop that the journal did not have is forgotten: whoever was told `durable=False` sends it again, and it is
        # decided anew. So is one that the journal had, and not with its answer.
        self.told_not_durable &= self.in_journal
        journal = self._disk.journal
        # One that was let go, and is handed to the journal once more, is in it again when it is written.
        known = [one for one in self.kept.items() if one[0] in self.let_go or (one[1].session, one[0]) in journal]
        self.kept = {request_id: journal.get((kept.session, request_id), kept) for request_id, kept in known}
        self.let_go -= {one for _, one in self._disk.journal}

    def laws(self, session: str) -> LogLaws:
        """The laws of a session's durable log, as far as it is written."""
        found = self._laws.get(session)
        if found is None:
            found = self._laws[session] = LogLaws(fold=self._fold)
        return found

    def break_(self, what: str) -> None:
        """Write down that a law does not hold."""
        self.broken.append(what)

    # ── Doors: what starts ────────────────────────────────────────────────────────────────────────

    def starts(self, key: str, name: str) -> None:
        """An agent, or a call, is handed to the executor: its record was written ahead (law L12)."""
        if name.startswith("agent "):
            self.agents.add(key)
            run = self._disk.run(key)
            if run is None:
                self.break_(f"{name} of {key} starts before its run is on record (L12)")
            elif run.status is not RunStatus.IN_PROGRESS:
                self.break_(f"{name} of {key} starts although it is {run.status} (L1)")
            return
        row = self._disk.call(key)
        if key not in self.granted and (row is None or row.state == "requested"):
            self.break_(f"{name} {key} starts before its grant is on record (L12)")

    def spawns(self, process_id: str) -> None:
        """A command is handed to the port: on record, of an open call, and behind the barrier."""
        self.spawned.add(process_id)
        if process_id in self.hosts:
            # Before anybody needs it.
            return
        row = self._disk.process(process_id)
        if row is None:
            self.break_(f"{process_id} is spawned before it is on record (L12)")
            return
        call, run = self._disk.call(row.call_id), self._disk.run(row.run_id)
        closed = call is None or call.state == "ended" if row.call_id else run is None or run.status in TERMINAL
        if closed:
            self.break_(f"{process_id} is spawned for a call, or by an agent, whose time is over (L1)")
        self._barrier(row.session, row.run_id, process_id)
        self.bounds.spawns(process_id)

    def begins(self, fence: str, *, elsewhere: bool = False) -> None:
        """The first line of a tool runs: no fence was first, and nothing of an earlier run is left (laws L2, L3).

        `elsewhere`: somebody else executes it. He was told so before the fence, and the fence found it started.
        """
        session, _, call_id = fence.split(":")
        self.began.add(fence)
        self.inside[fence] = session
        if self._world is not None and self._world.session_if_alive(session) is None and not elsewhere:
            self.break_(f"{fence} begins while its session is down (L13)")
        row = self._disk.call(call_id)
        may = (None, Outcome.INTERRUPTED) if elsewhere else (None,)
        if row is None or row.outcome not in may:
            self.break_(f"{fence} begins although its call is closed (L2)")
            return
        for call in self._calls(fence):
            if call.row.outcome not in may:
                self.break_(f"{fence} begins although it was closed as {call.row.outcome} (L2)")
        self._barrier(session, row.run_id, fence)

    def leaves(self, fence: str, *, returned: bool, elsewhere: bool = False) -> None:
        """A tool leaves its function; what it returns in time is its result (law L2)."""
        self.inside.pop(fence, None)
        self.left.add(fence.rpartition(":")[2])
        if elsewhere:
            # He has yet to say so.
            return
        for call in self._calls(fence):
            if call.cell is not None and call.cell.state is CellState.STARTED:
                self.in_time[call.row.call_id] = "finished" if returned else "raised"

    def tells_host(self, process_id: str, address: Address, *, overlap: bool, busy: bool) -> None:
        """A host is told of a run: it is on record as the run's, and of no other use (laws L1, L12, L13)."""
        session, run = address.session, address.run
        row = self._disk.of(session).processes.get(process_id)
        if row is None or row.run_id != run or row.state == "ended":
            self.break_(f"{process_id} is told of {run} before it is on record as its host (L12)")
        if busy:
            self.break_(f"{process_id} is told of {run} while it has another run (L1)")
        if self._told.setdefault(process_id, session) != session:
            self.break_(f"{process_id} has run for {self._told[process_id]}, and is told of {run} of {session} (L13)")
        actor = self._world.session_if_alive(session) if self._world is not None else None
        record = actor._protocol.state.record(run) if actor is not None else None
        if record is not None and not record.open:
            self.break_(f"{process_id} is told of {run}, which is {record.status} (L1)")
        if not overlap:
            self._barrier(session, run, process_id)
            self._barrier_of_session(session, process_id)

    def asks_host(self, process_id: str) -> None:
        """A host gets a SIGTERM, which ends most: its agent has ended before, or has had its grace (law L8)."""
        row = self._disk.process(process_id)
        if (
            row is not None
            and row.host
            and not row.call_id
            and row.owner is Owner.RUN
            and row.run_id in self.inside
            and not self.faults
        ):
            self.break_(f"{process_id} is asked to end while its agent cleans up (L8)")

    def releases(self, process_id: str) -> None:
        """A host is released: no run is on record that has it (law L12)."""
        row = self._disk.process(process_id)
        if row is not None and row.state != "ended" and row.owner is Owner.RUN:
            self.break_(f"{process_id} is released, and is on record as the host of {row.run_id} (L12)")

    def tells(self, key: str) -> None:
        """The token of a run or a call is cancelled: its code is told of its end."""
        assert self._world is not None, "a world was entered"
        self._ends_at[key] = self._world.clock.monotonic()

    def told_again(self, key: str) -> None:
        """Code that cleans up is cancelled once more: not before it may be named abandoned (law L8).

        The shortest time for that is a Stop's with mode immediate, which gives no grace.
        """
        world = self._world
        assert world is not None, "a world was entered"
        if world.clock.monotonic() < self._ends_at[key] + world.settings.kill_s - INSTANT_S:
            self.break_(f"{key} is told of its end a second time while it cleans up (L8)")

    def handed_over(self, process_id: str) -> None:
        """A tool is told that a tree is the session's: it is on record (law L12)."""
        row = self._disk.process(process_id)
        if row is None or row.owner is not Owner.SESSION:
            self.break_(f"{process_id} is said to be the session's before that is durable (L12)")

    def writes(self, fence: str) -> None:
        """A tool that looks at its token has an effect: its call is open at this moment (law L1)."""
        row = self._disk.call(fence.rpartition(":")[2])
        if row is None or row.state == "ended":
            self.break_(f"{fence} writes although its call is closed (L8)")
        for call in self._calls(fence):
            if call.cell is not None and call.cell.state is not CellState.STARTED:
                self.break_(f"{fence} writes although its cell is {call.cell.state} (L8)")

    def has_effect(self, fence: str) -> None:
        """An effect behind a guard takes place: its call has no result at this moment (law L1)."""
        call_id = fence.rpartition(":")[2]
        self.effects[call_id] += 1
        row = self._disk.call(call_id)
        if (row is not None and row.state == "ended") or any(not call.open for call in self._calls(fence)):
            self.break_(f"{fence} has an effect behind a guard although its call is closed (L1)")

    def _barrier(self, session: str, run_id: str, what: str) -> None:
        """Nothing of an earlier run is alive that holds, or its session was made to go on without it (law L3)."""
        laws, world = self.laws(session), self._world
        if world is None:
            return
        generation = laws.run_generation.get(run_id, 0)
        tables = self._disk.of(session)
        for process in tables.processes.values():
            if process.owner is Owner.SESSION:
                continue
            earlier = laws.run_generation.get(process.run_id, 0) < generation and process.run_id not in laws.forced
            if (
                earlier
                and not was_released(process)
                and process.process_id in self.spawned
                and world.processes.lives(process.process_id)
            ):
                self.break_(f"{what} begins while {process.process_id} of {process.run_id} lives (L3)")
        for fence, of in self.inside.items():
            call = tables.calls.get(fence.rpartition(":")[2]) if of == session else None
            if call is None or call.isolation == "task" or call.run_id in laws.forced:
                continue
            if laws.run_generation.get(call.run_id, 0) < generation:
                self.break_(f"{what} begins while {fence} of {call.run_id} runs (L3)")

    def _barrier_of_session(self, session: str, what: str) -> None:
        """No tree is alive that the session is ending, or the session was made to go on without it (law L3)."""
        named = self.laws(session).forced.get(None, ())
        for process in self._disk.of(session).processes.values():
            ends = process.owner is Owner.SESSION and process.ending is not None
            if ends and self._lives(process) and f"{process.kind} {process.name}" not in named:
                self.break_(f"{what} begins while {process.process_id} lives, which the session is ending (L3)")

    # ── Doors: what is ended ──────────────────────────────────────────────────────────────────────

    def halts(self, key: str) -> None:
        """A tree is told to end, or an execution is cancelled: the gate was shut first (law L1)."""
        self.halted.add(key)
        if not self._is_owned(key):
            self.ended_for_run.add(key)
        world = self._world
        if self.faults or world is None:
            return
        process = self._disk.process(key)
        if process is not None and (process.owner is Owner.SESSION or self._is_owned(key)):
            self._ends_of_session(process)
            return
        call = self._disk.call(process.call_id if process else key)
        run = call.run_id if call else process.run_id if process is not None and process.kind == "process" else key
        session = call.session if call else (self._session_of_run(run) or "")
        actor = world.session_if_alive(session)
        if actor is None:
            return
        record = actor._protocol.state.record(run)
        if record is None or not record.open:
            return
        if call is not None and not self._gate_open(record, call.call_id):
            return
        if call is None and record.token.cancelled and not any(map(partial(self._gate_open, record), record.calls)):
            # The fence has shut every gate, and is about to move the status.
            return
        self.break_(f"{key} is ended before its gate is shut (L1)")

    def _is_owned(self, process_id: str) -> bool:
        """True if a tree is the session's in the session's memory, which may be ahead of the disk."""
        process = self._disk.process(process_id)
        actor = self._world.session_if_alive(process.session) if process and self._world is not None else None
        return actor is not None and process_id in actor._protocol.state.owned

    def _ends_of_session(self, process: ProcessRow) -> None:
        """A tree of the session is told to end: by the session, for a cause, and not by the end of its run (law L5)."""
        actor = self._world.session_if_alive(process.session) if self._world is not None else None
        owned = actor._protocol.state.owned.get(process.process_id) if actor is not None else None
        if owned is not None and owned.row.ending is None:
            self.break_(f"{process.process_id} is the session's, and is ended without a cause (L5)")

    @staticmethod
    def _gate_open(record: RunRecord, call_id: str) -> bool:
        call = record.calls.get(call_id)
        return call is not None and call.cell is not None and call.cell.state in (CellState.GRANTED, CellState.STARTED)

    def _session_of_run(self, run_id: str) -> str | None:
        run = self._disk.run(run_id)
        return run.session if run else None

    # ── Doors: Stops that the store does not have yet ─────────────────────────────────────────────

    def keeps(self, kept: KeptStop) -> None:
        """A Stop is handed to the journal."""
        known = self.kept.get(kept.stop.id) if kept.stop.id not in self.let_go else None
        if journal_takes(kept, known):
            self.kept[kept.stop.id] = kept
        self.let_go.discard(kept.stop.id)

    def journalled(self, kept: KeptStop) -> None:
        """A Stop is in the journal: from here on no crash may lose it (law L12)."""
        self.in_journal.add(kept.stop.id)
        # One that was let go meanwhile is written and taken out again.
        if not self._was_on_record(kept.session, kept.stop.id) and kept.stop.id not in self.let_go:
            known = self._disk.journal[kept.session, kept.stop.id]
            if known is kept or kept.stop.id not in self.owed:
                # Else it was sent again, and the journal has it as it was decided the first time.
                self.owed[kept.stop.id] = known, self.crashes
        given = self.given.get(kept.stop.id)
        if given is not None and kept.outcome is not None:
            given.survives = given.survives or given.crashes == self.crashes

    def forgets(self, session: str, request_id: str) -> None:
        """The journal is told to let a Stop go: it is on record, with the event that says so (law L12)."""
        self.let_go.add(request_id)
        kept = self.kept.get(request_id)
        if kept is None or not self._has_its_run(kept):
            return
        row, told = self._disk.of(session).row, self._disk.requests(session).get(request_id)
        deleted = request_id in self.deleted_requests and (told is None or not told.answer)
        if deleted or (row is not None and row.deleted):
            # A Stop of a session that was deleted is nothing to decide, and must not begin it anew.
            self.owed.pop(request_id, None)
        elif not self._was_on_record(session, request_id):
            self.break_(f"the journal lets {request_id} go before it is on record (L12)")
        elif request_id in self.told_not_durable - self.stops_told - self.without_event:
            self.break_(f"the journal lets {request_id} go before anybody was told that it is durable (L12)")

    def _was_on_record(self, session: str, request_id: str) -> bool:
        """It is, or was until the session was deleted with it."""
        return request_id in self._disk.requests(session) or request_id in self.deleted_requests

    def _has_its_run(self, kept: KeptStop) -> bool:
        """False: it was aimed at a run that never came to be, and is nothing to decide."""
        return kept.stop.run_id is None or kept.stop.run_id in self._disk.of(kept.session).runs

    def _owed(self, batch: Batch, told: set[str]) -> None:
        """After a crash a Stop of the journal is decided before anything starts, and ends what it stopped (law L12)."""
        owed = [(kept, crashes) for kept, crashes in self.owed.values() if kept.session == batch.session]
        named = [cause for kept, _ in owed for cause in (kept.cause, kept.failure)]
        for kept, crashes in owed:
            request_id = kept.stop.id
            if not self._has_its_run(kept):
                continue
            for event in batch.events if self.crashes > crashes else ():
                source = (event.data.get("provenance") or {}).get("source")
                mine = kept.stop.run_id in (None, event.run_id) and event.run_id in self._disk.of(batch.session).runs
                mine = mine and kept.outcome not in ("nothing_running", "already_over")
                # One that came while the session could not be read knows nothing of what an earlier one names.
                before = (kept.cause, kept.failure) if kept.outcome is not None else named
                mine = mine and not any(cause is not None and cause.source == source for cause in before)
                # What had begun, and was over when the Stop joined another run, had ended without being written.
                over = kept.outcome == "stopping" and event.run_id != kept.run_id and event.run_id in self.agents
                mine = mine and not (over and kept.failure is None)
                if event.kind == "run.status" and source in FROM_FAULTS and mine:
                    self.break_(f"{event.run_id} ends by {source}, and {request_id} had stopped it (L12)")
                if event.kind == "run.started" and request_id not in told:
                    self.break_(f"{event.run_id} starts, and {request_id} is not decided, which was answered (L12)")
            if request_id in told:
                del self.owed[request_id]

    def _stop_durable(self, event: Event, told: set[str]) -> None:
        request_id = event.data["request_id"]
        if request_id in self.stops_told and request_id not in self.deleted_requests:
            self.break_(f"{request_id} is told to be durable twice (L12)")
        self.stops_told.add(request_id)
        if request_id not in told and not self._was_on_record(event.session, request_id):
            self.break_(f"{request_id} is told to be durable, and is not on record (L12)")

    # ── Doors: who leaves ─────────────────────────────────────────────────────────────────────────

    def passivates(self, session: str) -> None:
        """A session leaves memory: all of it is written, and nothing of it goes on (law L11)."""
        tables, world = self._disk.of(session), self._world
        assert world is not None, "a world was entered"
        self.left_memory += 1
        for run in tables.runs.values():
            if run.status is not RunStatus.QUEUED and (not run.settled or run.late):
                self.break_(f"{session} leaves while {run.run_id} is {run.status} (L11)")
        if tables.waiting and not (tables.row is not None and tables.row.parked):
            self.break_(f"{session} leaves while {list(tables.waiting)} wait (L11)")
        if tables.pending:
            self.break_(f"{session} leaves while {list(tables.pending)} are to be filed (L11)")
        if world.store.unwritten(session):
            self.break_(f"{session} leaves with a batch under way (L11)")
        for process in tables.processes.values():
            if self._lives(process):
                self.break_(f"{session} leaves while {process.process_id} lives (L11)")
            if world.strays.lives(process.process_id):
                self.break_(f"{session} leaves while {process.process_id} goes on (L11)")
        for fence, of in self.inside.items():
            if of == session and not self.faults:
                self.break_(f"{session} leaves while {fence} runs (L11)")

    def _lives(self, process: ProcessRow) -> bool:
        world = self._world
        assert world is not None, "a world was entered"
        of_it = process.process_id in self.spawned and not was_released(process)
        return of_it and world.processes.lives(process.process_id)

    def _deletes(self, session: str) -> None:
        """All that is stored of a session is removed: all that it started was proven to have ended (law L3)."""
        tables, world = self._disk.of(session), self._world
        assert world is not None, "a world was entered"
        for run in tables.runs.values():
            if not run.settled or run.late:
                self.break_(f"{session} is deleted while {run.run_id} is {run.status} (L3)")
        if tables.waiting:
            self.break_(f"{session} is deleted while {list(tables.waiting)} wait (L4)")
        for process in tables.processes.values():
            of_it = process.process_id in self.spawned and not was_released(process)
            # Not whether it lives: of a tree whose daemon has died nobody but its ledger says that it is gone.
            if of_it and not world.processes.proven(process.process_id):
                self.break_(f"{session} is deleted, and {process.process_id} is not proven to have ended (L3)")
            if world.strays.lives(process.process_id):
                self.break_(f"{session} is deleted while {process.process_id} goes on (L3)")
        for fence, of in self.inside.items():
            if of == session:
                self.break_(f"{session} is deleted while {fence} runs (L3)")
        self.deleted_receipts.update(tables.receipts)
        self.deleted_requests.update(tables.requests)
        self.given = {one: given for one, given in self.given.items() if given.session != session}

    def came_to_rest(self, world: World) -> None:
        """A shutdown says that all came to rest: nothing was left under way (law L11)."""
        if self.faults:
            # A session that is quarantined, and failed again, is taken up by nobody before the next start.
            return
        for session, tables in self._disk.tables.items():
            for run in tables.runs.values():
                if run.status in (RunStatus.IN_PROGRESS, RunStatus.CANCELLING) or (run.ended_at and not run.settled):
                    self.break_(f"the shutdown is over while {run.run_id} is {run.status} (L11)")
            if not all(self._is_of_abandoned(event) for one in world.store.unwritten(session) for event in one.events):
                self.break_(f"the shutdown is over, and {session} is not written (L11)")
            for process in tables.processes.values():
                if not self._lives(process):
                    continue
                if not self._given_up(process):
                    self.break_(f"the shutdown is over while {process.process_id} lives (L11)")

    def did_not_come_to_rest(self) -> None:
        """A shutdown says that something did not come to rest: it was interrupted all the same (law L11)."""
        runs = [run for tables in self._disk.tables.values() for run in tables.runs.values()]
        for run in runs if not self.faults else ():
            if run.status is RunStatus.IN_PROGRESS:
                self.break_(f"the shutdown is over, and {run.run_id} was not interrupted (L11)")

    def _is_of_abandoned(self, event: Event) -> bool:
        """True if an event tells of a part that a receipt names as abandoned, or of one that was found behind it.

        A shutdown does not wait for such a part. The store writes what comes of it while it closes.
        """
        match event.kind:
            case "receipt.amended":
                return True
            case "session.barrier_forced":
                return self._is_incomplete(event.data["run_id"])
            case "process.ended":
                process = self._disk.process(event.data["process_id"])
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
        receipt = self._disk.receipt(run_id)
        return receipt is not None and not receipt.complete

    # ── What becomes durable ──────────────────────────────────────────────────────────────────────

    def _batch(self, batch: Batch) -> None:
        """One step of a session is written: what belongs together is in it together (laws L4, L10)."""
        laws = self.laws(batch.session)
        if batch.erase:
            self._deletes(batch.session)
            # Of what is deleted the last ids are kept, and no answers.
            batch = msgspec.structs.replace(batch, requests=tuple(row for row in batch.requests if row.answer))
        told = {row.request_id for row in batch.requests}
        inputs_before = set(laws.inputs)
        waiting_before = list(laws.waiting)
        try:
            laws.take(batch.events)
            laws.rendered(batch.events)
        except AssertionError as error:
            self.break_(f"{batch.session}: {error}")
            return
        moved = {event.run_id for event in batch.events if event.kind == "run.status"}
        self._owed(batch, told)
        for event in batch.events:
            match event.kind:
                case "session.fenced":
                    self._fenced(event, batch, told, moved)
                case "run.started":
                    self._tried_again(event)
                    self._begins_again(event)
                    if event.at > self.refused_at.get(batch.session, event.at):
                        self.break_(f"{event.run_id} starts, and the supervisor is shutting down (L11)")
                case "run.status":
                    self._aimed(event)
                    self._not_tried_again(event, batch)
                    self._first_cause(event.session, event.run_id or "")
                case "message" | "session.message_waiting":
                    message = event.data["id" if event.kind == "message" else "message_id"]
                    if message not in told and message not in waiting_before:
                        self.break_(f"{message} is accepted without its request id (L10)")
                case "tool.ended":
                    self._tool_ended(event)
                case "process.ended":
                    self._process_ended(event)
                case "session.stop_durable":
                    self._stop_durable(event, told)
                case _:
                    pass
        self.bounds.batch(batch)
        of = batch.row or self._disk.of(batch.session).row
        self.without_event -= told
        if of is not None and of.deleted:
            self.without_event |= told
        for row in batch.requests:
            self.told_at.setdefault(row.request_id, row.at)
        for call in batch.calls:
            if call.state != "requested":
                # Remembered also where the session is deleted since then: what is under way finds its gate shut.
                self.granted.add(call.call_id)
            if call.how is How.GONE and call.call_id in self.left and not (self.crashes or self.restarts):
                self.break_(f"{call.call_id} is on record as gone, and has returned (L6)")
        for receipt in batch.receipts:
            self._receipt(batch, receipt)
        self._parked(batch, laws, inputs_before, waiting_before)
        self._of_session(batch)
        self._granted(batch, laws)
        self._cut_off(batch)
        for row in _answers(batch):
            answer = _decode(row.answer)
            if isinstance(answer, Stopped):
                self._stands(batch.session, row.request_id, answer, survives=True)

    def _fenced(self, event: Event, batch: Batch, told: set[str], moved: set[str | None]) -> None:
        run, provenance = event.data["run_id"], event.data["provenance"]
        source, by = provenance["source"], provenance.get("requested_by")
        if run is not None and run not in moved:
            self.break_(f"{run} is fenced, and not closed in the same step (L4)")
        if source in FROM_FAULTS and not self.faults and not self.crashes:
            self.break_(f"{run} ends by {source}, and nothing has failed (L5)")
        if source == "supervisor.shutdown" and not self._is_interrupted(run, provenance["initiated_at"], batch):
            self.break_(f"{run} is interrupted while it may end by itself (L11)")
        request = self.requests.get(str(by))
        refused_at, ended = self.refused.get(str(by), math.inf), self._disk.run(run or "")
        again = self.under_way[str(by)] or self.sent.get(str(by), (0.0, 0.0))[1] > refused_at
        if ended is not None and not again and refused_at < (ended.started_at or 0.0):
            self.break_(f"{run} began when {by} was refused, and is ended by it (L5)")
        kept = self.kept.get(str(by)) if by not in self.let_go else None
        if kept is not None and kept.stop.sent_at is None and provenance["initiated_at"] > kept.at + INSTANT_S:
            self.break_(f"{by} is on record as of {provenance['initiated_at']}, and came at {kept.at} (L5)")
        if source == "session.new_message" and self.faults:
            # Its fence was shut in memory, and the store did not take it: it was refused, and says so.
            return
        if request is not None and by not in told and not isinstance(request, Delete):
            self.break_(f"{by} has fenced {run}, and its id is not on record with that (L10)")
        if source == "session.new_message" and by is not None:
            touched = {e.data["id"] for e in batch.events if e.kind == "message"}
            if by not in touched:
                self.break_(f"{by} took over from {run}, and is no input in the same step (L4)")

    def _is_interrupted(self, run_id: str, at: float, batch: Batch) -> bool:
        """True if a shutdown was interrupting what ran at that time, and the run had begun before it was over.

        That may be on record later, when the next daemon decides a Stop of the journal that has joined the end.
        """
        world = self._world
        now = [(world.interrupts_at, math.inf)] if world is not None and world.interrupts_at is not None else []
        run = self._disk.run(run_id) or next(one for one in batch.runs if one.run_id == run_id)
        began = run.started_at or 0.0
        return any(since - INSTANT_S <= at <= until and began < until for since, until in (*self._interrupts, *now))

    def _aimed(self, event: Event) -> None:
        """A Stop that was aimed at a run ends that run and no other (law L9)."""
        provenance = event.data.get("provenance") or {}
        stop = self.requests.get(str(provenance.get("requested_by")))
        queued = event.run_id not in self.laws(event.session).run_generation
        withdrawn = isinstance(stop, Stop) and stop.waiting is Waiting.WITHDRAW and queued
        given, run = self._given(stop.id) if isinstance(stop, Stop) else None, self._disk.run(event.run_id or "")
        if given is not None and run is not None and (run.started_at or 0.0) > given.at:
            self.break_(f"{event.run_id} began behind {provenance['requested_by']}, and is ended by it (L9)")
        if given is not None and not queued and given.answer[0] != "stopped" and given.answer[1] != event.run_id:
            said = " ".join(filter(None, given.answer[:2]))
            self.break_(f"{event.run_id} is ended by {provenance['requested_by']}, which was answered {said} (L10)")
        if isinstance(stop, Stop) and stop.run_id not in (None, event.run_id) and not withdrawn:
            self.break_(f"{stop.id} was aimed at {stop.run_id} and ends {event.run_id} (L9)")
        if provenance.get("source") in FROM_FAULTS and not self.faults and not self.crashes:
            self.break_(f"{event.run_id} ends by {provenance['source']}, and nothing has failed (L5)")

    def _tool_ended(self, event: Event) -> None:
        """The result that is on record is what happened (law L6)."""
        call, outcome = event.data["call_id"], event.data["outcome"]
        fence = next((one for one in self.began if one.endswith(f":{call}")), None)
        if outcome == Outcome.NOT_STARTED and fence is not None:
            self.break_(f"{call} is on record as not started, and has begun (L6)")
        told = sum(effect.get("begun", 1) for effect in event.data.get("effects", ()))
        if told != self.effects[call] and not self.faults and not self.crashes:
            self.break_(f"{call} has had {self.effects[call]} effects, and is told to have had {told} (L6)")
        if call in self.in_time and not self.faults and not self.crashes and outcome != Outcome.FINISHED:
            self.break_(f"{call} had {self.in_time[call]} in time, and is on record as {outcome} (L2)")

    def _process_ended(self, event: Event) -> None:
        process, world = event.data["process_id"], self._world
        row, never = self._disk.process(process), event.data["how"] == How.NOT_STARTED
        if row is not None and row.host and never and process not in self._told:
            # The host of a tool that was told nothing lives on, and goes back to the spares.
            return
        if (
            event.data["proven"]
            and world is not None
            and (world.processes.lives(process) or world.strays.lives(process))
        ):
            self.break_(f"{process} is on record as gone, and lives (L3)")
        if event.data["how"] == How.NOT_STARTED and process in self.ran:
            self.break_(f"{process} is on record as never started, and did run (L6)")

    def _receipt(self, batch: Batch, receipt: Receipt) -> None:
        """A receipt never says more than was seen, and waits for the ends as long as it may (laws L3, L7)."""
        world = self._world
        if receipt.run_id is None or world is None:
            return
        first = receipt.run_id not in self._receipts
        known = self._receipts.setdefault(receipt.run_id, receipt.receipt_id)
        if known != receipt.receipt_id:
            self.break_(f"{receipt.run_id} has two receipts: {known} and {receipt.receipt_id} (L7)")
        session, tables = batch.session, self._disk.of(batch.session)
        rows_now = tables.processes | {row.process_id: row for row in batch.processes}
        rows = list(_all_rows(receipt.rows))
        if receipt.complete:
            if receipt.run_id in self.inside:
                self.break_(f"the receipt of {receipt.run_id} is complete, and its agent runs (L3)")
            for process in rows_now.values():
                if _of(process, receipt) and not was_released(process) and world.processes.lives(process.process_id):
                    self.break_(f"the receipt of {receipt.run_id} is complete, and {process.process_id} lives (L3)")
            for stray in world.strays.alive():
                if stray.address.run == receipt.run_id:
                    self.break_(f"the receipt of {receipt.run_id} is complete, and {stray.stray_id} goes on (L3)")
            for fence, of in self.inside.items():
                call = tables.calls.get(fence.rpartition(":")[2]) if of == session else None
                if call is not None and call.run_id == receipt.run_id:
                    self.break_(f"the receipt of {receipt.run_id} is complete, and {fence} runs (L3)")
            if any(row.ended_at is None for row in rows):
                self.break_(f"the receipt of {receipt.run_id} is complete with an open row (L3)")
            return
        for process in rows_now.values():
            if _of(process, receipt) and not was_released(process) and world.processes.lives(process.process_id):
                self.abandoned.add(process.process_id)
        if all(row.how is How.OUT_OF_REACH for row in rows if row.ended_at is None):
            # Of nobody knows whom, for whom it does not wait.
            return
        trees = [one for one in tables.processes.values() if one.owner is Owner.SESSION and _of(one, receipt)]
        given = [one.ending for one in trees if one.ending is not None and one.state != "ended"]
        deadline = self._deadline(receipt, given, world.settings)
        if receipt.ended_at < deadline - INSTANT_S:
            self.break_(f"the receipt of {receipt.run_id} names what is left before its time is over (L7)")
        in_time = not (trees or self.faults or self.crashes or self.restarts)
        if first and in_time and receipt.ended_at > deadline + TOLD_S + world.stalled_s:
            self.break_(f"the receipt of {receipt.run_id} waits longer than it may (L7)")

    def _deadline(self, receipt: Receipt, trees: Iterable[Provenance], settings: Settings) -> float:
        """The earliest moment at which what has not ended may be named abandoned.

        `trees`: why those of the session end that it waits for. They may have begun to end later than its run.
        """
        stops = [stop for stop in (receipt.provenance, *receipt.later) if stop is not None]
        hurry = next((stop for stop in stops if stop.mode is Mode.IMMEDIATE), None)
        grace_s = 0.0 if hurry is not None else settings.grace_s
        began = [self.told_at.get(ending.requested_by or "", 0.0) for ending in trees]
        least = max([receipt.fenced_at, *began]) + grace_s + settings.kill_s
        if hurry is None:
            return least
        # One that hurries does not put off what there is time for already.
        hurried = self.told_at.get(hurry.requested_by or "", 0.0) + settings.kill_s
        return max(least, min(hurried, receipt.fenced_at + settings.grace_s + settings.kill_s))

    def _parked(self, batch: Batch, laws: LogLaws, inputs_before: set[str], waiting_before: list[str]) -> None:
        """What was parked waits for a person (law L4), through restarts too (law L12)."""
        row = self._disk.of(batch.session).row
        new_inputs = set(laws.inputs) - inputs_before
        resumed = any(event.kind == "session.resumed" for event in batch.events)
        if row is not None and row.parked:
            by_person = any(
                isinstance(request, NewMessage) and request.origin == "user" and request.id in new_inputs
                for request in (self.requests.get(told.request_id) for told in batch.requests)
            )
            if new_inputs & set(waiting_before) and not by_person and not resumed:
                self.break_(f"parked messages run, and nobody asked for it: {new_inputs & set(waiting_before)} (L12)")
        answered = [(self.requests.get(told.request_id), _decode(told.answer)) for told in _answers(batch)]
        withdrawn = any(_withdraws(request, answer) for request, answer in answered)
        if withdrawn and set(laws.waiting) & set(waiting_before):
            self.break_(f"{laws.waiting} wait behind a Stop that withdraws what waits (L4)")
        parked = any(_parks(request, answer) for request, answer in answered)
        gone_on = bool(new_inputs) or resumed
        if parked and laws.waiting and not gone_on and batch.row is not None and not batch.row.parked:
            self.break_(f"{laws.waiting} were parked, and that is not on record (L12)")

    def _granted(self, batch: Batch, laws: LogLaws) -> None:
        """No call is granted while something goes on that code of an earlier run is known to have started (L3).

        Where the session was made to go on without it, it is named in the log before.
        """
        world, tables = self._world, self._disk.of(batch.session)
        for call in batch.calls:
            known = tables.calls.get(call.call_id)
            if call.state != "granted" or world is None or (known is not None and known.state == "granted"):
                continue
            generation = laws.run_generation.get(call.run_id, 0)
            for row in tables.processes.values():
                named = f"{row.kind} {row.name}" in laws.forced.get(row.run_id, ())
                earlier = laws.run_generation.get(row.run_id, 0) < generation and not named
                if earlier and row.ours and world.strays.lives(row.process_id):
                    self.break_(f"{call.call_id} is granted while {row.process_id} of {row.run_id} goes on (L3)")

    def _of_session(self, batch: Batch) -> None:
        """A Stop of the whole session ends what is its own, in the same step; a tree is handed over or ended (L3)."""
        for row in batch.processes:
            known = self._disk.process(row.process_id)
            new = row.owner is Owner.SESSION and known is not None and known.owner is not Owner.SESSION
            # A host may have been taken back since, by a run that has been ended since.
            if new and not row.host and row.process_id in self.ended_for_run and not self.faults:
                self.break_(f"{row.process_id} is handed over, and had been told to end (L3)")
        made = [self.requests.get(told.request_id) for told in batch.requests]
        stops = [stop for stop in made if isinstance(stop, Stop) and stop.run_id is None]
        if not stops:
            return
        of_all = any(stop.scope is Scope.SESSION for stop in stops)
        rows = self._disk.of(batch.session).processes | {row.process_id: row for row in batch.processes}
        for row in rows.values():
            if row.owner is Owner.SESSION and row.state != "ended" and row.ending is None and (of_all or row.host):
                self.break_(f"{row.process_id} is left by a Stop of its session (L3)")

    def _given(self, request_id: str) -> Given | None:
        """What a Stop was answered, unless a crash may have forgotten it."""
        given = self.given.get(request_id)
        return given if given is not None and (given.survives or given.crashes == self.crashes) else None

    def _stands(self, session: str, request_id: str, answer: Stopped, *, survives: bool) -> None:
        """What a Stop was answered it is answered again, whatever fails meanwhile, and that is stored (law L10)."""
        if request_id in self.deleted_requests:
            # It is new where it comes again.
            return
        said = answer.outcome, answer.run_id, answer.receipt_id
        given, world = self._given(request_id), self._world
        if given is None:
            at = world.clock.wall() if world is not None else 0.0
            self.given[request_id] = Given(session, said, at, self.crashes, survives)
            return
        given.survives = given.survives or survives
        if given.answer != said:
            self.break_(f"{request_id} was answered {given.answer}, and is answered {said} now (L10)")

    def _begins_again(self, event: Event) -> None:
        """A run that a client was told is stopped, or over, does not begin behind that, nor is it tried again (L7)."""
        before = event.data.get("retry_of", event.run_id)
        for request_id in self.given:
            given = self._given(request_id)
            if given is None or given.answer[1] not in (event.run_id, before) or event.at <= given.at:
                continue
            self.break_(f"{event.run_id} begins, and {request_id} was told that {before} is {given.answer[0]} (L7)")
        refused = self._superseded.get(before or "")
        if refused is not None and refused[1:] == (self.crashes, self.restarts) and not self.forgot:
            self.break_(f"{event.run_id} begins, and {refused[0]} was told that it has stopped {before} (L7)")

    def _tried_again(self, event: Event) -> None:
        """What a Stop of the session came behind does not begin anew by itself (law L12)."""
        before = self._disk.run(event.data.get("retry_of", ""))
        for request_id in self.given if before is not None else ():
            given, stop, kept = self._given(request_id), self.requests.get(request_id), self.kept.get(request_id)
            if given is None or given.session != event.session or not isinstance(stop, Stop) or stop.run_id is not None:
                continue
            # A Stop that had counted further was decided behind this start.
            earlier = kept is not None and kept.generation is not None and kept.generation < event.generation
            began = (before.started_at if before is not None else None) or 0.0
            if earlier and self.sent[request_id][0] >= began:
                self.break_(f"{event.run_id} is another attempt, and {request_id} had stopped the first (L12)")

    def _not_tried_again(self, event: Event, batch: Batch) -> None:
        """What a failure or a crash ended before it did anything begins anew, unless a Stop was about it (law L12)."""
        source, run = (event.data.get("provenance") or {}).get("source"), self._disk.run(event.run_id or "")
        actor = self._world.session_if_alive(batch.session) if self._world is not None else None
        if source not in ("store.failure", "supervisor.recovery") or run is None or actor is None:
            return
        state, began = actor._protocol.state, run.started_at or 0.0
        barred = state.draining or state.quarantined or state.unavailable() is not None
        if barred or run.attempt >= state.settings.attempts_max:
            return
        kept = [one.stop for one in self.kept.values() if one.session == run.session and one.at >= began]
        stopped = any(stop.run_id in (None, run.run_id) for stop in kept)
        spoken = run.run_id in self.laws(run.session).spoken
        own = any(is_own(row) and row.run_id == run.run_id for row in self._disk.of(run.session).processes.values())
        again = any(one.data.get("retry_of") == run.run_id for one in batch.events)
        if run.status is RunStatus.IN_PROGRESS and not (spoken or own or stopped or again):
            self.break_(f"{run.run_id} ends by {source}, had done nothing, and is not tried again (L12)")

    def told_why(self, session: str, run_id: str, why: Provenance | None) -> None:
        """An agent is told that its run is over, and why: that is the first cause, and goes on record (law L5)."""
        if why is not None:
            self._why.setdefault(run_id, why)
            self._first_cause(session, run_id)

    def _first_cause(self, session: str, run_id: str) -> None:
        why, cause = self._why.get(run_id), self.laws(session).cause.get(run_id)
        # Of what it decided and had not written an actor that fails leaves nothing.
        if why is None or run_id not in self.laws(session).cause or why.source == "run.ended" or self.forgot:
            return
        told, written = (why.source, why.requested_by), cause and (cause["source"], cause.get("requested_by"))
        if told != written:
            self.break_(f"{run_id} was told that it ends by {told}, on record is {written} (L5)")

    def _cut_off(self, batch: Batch) -> None:
        """A message that was sent before a Stop of its sender, and comes after it, is returned (law L4)."""
        for told in _answers(batch):
            request, answer = self.requests.get(told.request_id), _decode(told.answer)
            if isinstance(request, Stop) and isinstance(answer, Stopped) and answer.outcome != "already_over":
                kept = self.kept.get(request.id)
                handled_at = told.at if kept is None else min(told.at, kept.at)
                # When it came is known where it was sent once. It may have waited to be decided: in a session that is
                # being read, or on its way to one.
                first, last = self.sent.get(request.id, (handled_at, handled_at))
                # An id tells milliseconds.
                least = min(first, handled_at, request_time(request.id) or first)
                most = handled_at if first != last else min(first, handled_at)
                if request.sent_at is not None:
                    least = most = min(request.sent_at, most)
                key = (batch.session, request.origin)
                low, high = self._cutoffs.get(key, (least, most))
                self._cutoffs[key] = max(least, low), max(most, high)
            elif isinstance(request, NewMessage) and isinstance(answer, Accepted) and request.sent_at is not None:
                low, high = self._cutoffs.get((batch.session, request.origin), (0.0, 0.0))
                if request.sent_at < low and answer.returned != "stopped_before_arrival":
                    self.break_(f"{request.id} was sent before a Stop, came after it, and is taken (L4)")
                if request.sent_at >= high and answer.returned == "stopped_before_arrival":
                    self.break_(f"{request.id} is returned as stopped before its arrival, and was not (L4)")

    # ── What clients see ──────────────────────────────────────────────────────────────────────────

    def published(self, session: str, events: Iterable[Event], last: int) -> None:
        """Events are shown: each once, in order, and durable by now (laws L6, L12)."""
        for event in events:
            if event.seq <= last:
                self.break_(f"event {event.seq} of {session} is published behind {last} (L6)")
            last = event.seq
        if last > self._disk.last_seq(session):
            self.break_(f"event {last} of {session} is published before it is durable (L12)")

    def shown(self, event: Event) -> None:
        """An event that is not stored is shown: its run was open where it stands in the log (law L1)."""
        closed = self.laws(event.session).closed_at.get(event.run_id or "")
        if closed is not None and closed <= event.seq:
            self.break_(f"{event.kind} of {event.run_id} is shown behind the end of its run (L1)")

    def is_answered(self, request_id: str) -> bool:
        """True if a client has a durable answer to this id."""
        return request_id in self._answers

    def answered(self, session: str, request: OutsideRequest, outcome: object) -> None:
        """A client gets an answer: it is durable, and the only one of its id (laws L10, L12)."""
        if self.requests[request.id] is not request:
            # Another request under an id that was used: its answer is no answer to that id.
            return
        self.bounds.answered(request, outcome)
        if isinstance(outcome, ShuttingDown) and self._world is not None:
            self.refused_at.setdefault(session, self._world.clock.wall())
        if isinstance(outcome, CountermandError):
            # A copy that is under way may be taken, and its answer may come early.
            now = self._world.clock.wall() if self._world is not None else 0.0
            self.refused[request.id] = math.inf if self.under_way[request.id] else now
            if isinstance(outcome, StoreUnavailable) and outcome.superseded_run_id is not None:
                told = request.id, self.crashes, self.restarts
                self._superseded.setdefault(outcome.superseded_run_id, told)
            known = self._answers.get(request.id)
            if isinstance(request, Stop) and self._given(request.id) is not None:
                self.break_(f"{request.id} was answered {self.given[request.id]}, and is refused now: {outcome} (L10)")
            if known is not None and type(outcome).__name__ in ("Invalid", "RequestReused", "RunActive"):
                self.break_(f"{request.id} was answered by {known}, and is refused now: {outcome} (L10)")
            return
        mine = sum(1 for kept in self.kept.values() if kept.session == session)
        if isinstance(outcome, Stopped) and not (outcome.durable or request.id in self.kept or mine >= STOPS_KEPT_MAX):
            self.break_(f"{request.id} is answered before it is durable, and the journal was not told (L12)")
        if isinstance(outcome, Stopped) and outcome.outcome == UNKNOWN:
            self.unknown.add(request.id)
        elif isinstance(outcome, Stopped):
            survives = outcome.durable or outcome.journalled
            self._stands(session, request.id, outcome, survives=survives)
        if isinstance(outcome, Stopped) and not outcome.durable:
            self.told_not_durable.add(request.id)
            if outcome.journalled and request.id not in self.in_journal:
                self.break_(f"{request.id} is said to be in the journal, and is not (L12)")
        if not isinstance(outcome, msgspec.Struct) or not getattr(outcome, "durable", True):
            return
        if request.id not in self.told_at:
            self.break_(f"{request.id} is answered before its effect is durable (L12)")
        # A Stop is never too old: where it comes again behind a deletion it has its effect again.
        again = request.id in self.deleted_requests and isinstance(request, Stop)
        if isinstance(outcome, Accepted) and outcome.fate is not None:
            laws = self.laws(session)
            known_to = {"input": laws.inputs, "returned": laws.returned}[outcome.fate]
            if outcome.message_id not in known_to and request.id not in self.deleted_requests:
                self.break_(f"{outcome.message_id} is said to be {outcome.fate}, which is not on record (L4)")
            # What became of it is news; the rest of the answer stands.
            outcome = msgspec.structs.replace(outcome, fate=None)
        if self._answers.setdefault(request.id, outcome) != outcome and not again:
            self.break_(f"{request.id} has two answers: {self._answers[request.id]} and {outcome} (L10)")
        if isinstance(outcome, Stopped) and outcome.run_id is not None:
            known = self._receipts.setdefault(outcome.run_id, outcome.receipt_id)
            if known != outcome.receipt_id:
                self.break_(f"{outcome.run_id} has two receipts: {known} and {outcome.receipt_id} (L7)")
            if isinstance(request, Stop) and request.run_id not in (None, outcome.run_id):
                self.break_(f"{request.id} was aimed at {request.run_id} and answers for {outcome.run_id} (L9)")
        if isinstance(outcome, Accepted | Resumed) and outcome.generation is not None and outcome.run_id:
            written = self.laws(session).run_generation.get(outcome.run_id)
            if written is not None and written != outcome.generation:
                self.break_(f"{request.id} is answered with generation {outcome.generation}, on record is {written}")

    def answers_stand(self) -> None:
        """Everything has settled: a receipt whose id was told is there, and what was not known is decided (law L10).

        Raises:
            AssertionError: one is not.
        """
        for request_id in self.given:
            given = self._given(request_id)
            receipt_id = given.answer[2] if given is not None else None
            filed = receipt_id is None or receipt_id in self.deleted_receipts or self._disk.receipt(receipt_id)
            assert filed, f"{request_id} was told of {receipt_id}, which is not there (L10)"
        for request_id in self.unknown - self.refused.keys() - self.deleted_requests:
            known = any(request_id in tables.requests for tables in self._disk.tables.values())
            lost = self.crashes and request_id not in self.in_journal
            assert known or lost or self._is_about_nothing(request_id), (
                f"{request_id} was told that it is not known, and never is (L10)"
            )

    def _is_about_nothing(self, request_id: str) -> bool:
        """True if a Stop is refused where it is decided: its run never came to be, or its session was deleted."""
        stop, kept = self.requests[request_id], self.kept.get(request_id)
        assert isinstance(stop, Stop), "nothing else is answered so"
        deleted = kept is not None and kept.session in self._disk.deleted
        runs = [run_id for tables in self._disk.tables.values() for run_id in tables.runs]
        return deleted or (stop.run_id is not None and stop.run_id not in runs)

    def at_rest(self) -> None:
        """Nothing has failed and everything has settled: what has ended is on record as ended (laws L3, L6).

        Raises:
            AssertionError: a receipt still names something abandoned that is gone.
        """
        world = self._world
        assert world is not None, "a world was entered"
        if not self.crashes:
            never = self.abandoned & self.spawned - self.halted
            assert not never, f"{never} are abandoned, and nobody told them to end (L3)"
        running = {name.rpartition(" ")[2] for name in world.executor.running()}
        for session, tables in self._disk.tables.items():
            for receipt in tables.receipts.values():
                if receipt.complete or receipt.run_id is None:
                    continue
                calls = {call.call_id for call in tables.calls.values() if call.run_id == receipt.run_id}
                trees = [one.process_id for one in tables.processes.values() if _of(one, receipt)]
                left = running & {*calls, receipt.run_id} or any(not world.processes.proven(one) for one in trees)
                assert left, f"{session}: the receipt of {receipt.run_id} names what is left, and all is gone (L7)"

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _calls(self, fence: str) -> list[CallRecord]:
        """What a session that is there knows of the call with this fencing token."""
        session, _, call_id = fence.split(":")
        actor = self._world.session_if_alive(session) if self._world is not None else None
        if actor is None:
            return []
        return [record.calls[call_id] for record in actor._protocol.state.records() if call_id in record.calls]


def _answers(batch: Batch) -> list[RequestRow]:
    """The answers of a batch. A deletion keeps ids, and of them no answer."""
    return [row for row in batch.requests if row.answer]


def _of(process: ProcessRow, receipt: Receipt) -> bool:
    """True if a receipt answers for a tree: it is its run's, or the session's and was ended with that run."""
    if process.owner is Owner.SESSION:
        return receipt.run_id in process.receipts
    return process.run_id == receipt.run_id


def _withdraws(request: OutsideRequest | None, answer: Reply) -> bool:
    return (
        isinstance(request, Stop)
        and isinstance(answer, Stopped)
        and request.run_id is None
        and request.resolved_waiting is Waiting.WITHDRAW
    )


def _parks(request: OutsideRequest | None, answer: Reply) -> bool:
    return (
        isinstance(request, Stop)
        and isinstance(answer, Stopped)
        and request.run_id is None
        and request.resolved_waiting is Waiting.PARK
    )


def _all_rows(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        yield row
        yield from _all_rows(row.rows)
