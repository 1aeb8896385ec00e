"""Bounds: what may grow, last or be tried again only so far (laws L3, L7, L12, L14). Asked by the watch.

They are asked where the bound is felt: when a timer is set, when a process starts, when a batch is durable, when a
receipt is filed, when a session's actor is gone. What a bound is comes from the settings of the world, not from the
code that keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.messages import CallDeadline, RunDeadline, TryStore
from actors.model import STRAYS, Mode, Owner, PartKind, Row
from actors.protocol.run_record import AGENT
from actors.requests import Stop, Stopped
from tests.sim.disk import was_released

if TYPE_CHECKING:
    from actors.model import Receipt
    from actors.ports import Batch
    from tests.sim.clock import SimTimer
    from tests.sim.disk import Disk
    from tests.sim.world import World

PATIENT_S: Final = 1.5
"""The deadline of the tool `patient`, in seconds: its own, which is longer than most that are configured."""

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
TOLD_S: Final = 1.0
"""Virtual seconds in which what an actor was told has come to a process tree, those not counted in which the machine
stood still: see `World.stalled_s`."""

INSTANT_S: Final = 0.001
OWN_ROWS: Final = frozenset({PartKind.PROCESS, PartKind.RUN})


class Bounds:
    """The watcher of limits.

    Args:
        disk: what is on record.
        broken: where it is written down that one does not hold.
    """

    def __init__(self, disk: Disk, broken: list[str]) -> None:
        self._disk = disk
        self._broken = broken
        self._world: World | None = None
        # True where an actor was made to fail: what it was told may be lost, and who takes over begins anew.
        self.poisoned = False
        # By incarnation: the last batch that its session was told is durable.
        self._told: dict[str, int] = {}
        self._failures_told: set[str] = set()
        self._tried: dict[int, str] = {}
        self._deadlines: dict[str, list[tuple[float, float, SimTimer]]] = {}
        self._killed_at: dict[str, float] = {}
        self._failed: dict[str, list[float]] = {}

    def enter(self, world: World) -> None:
        """From here on this is the world that is watched."""
        self._world = world
        self._deadlines.clear()
        self._killed_at.clear()
        self._failed.clear()

    def _break(self, what: str) -> None:
        self._broken.append(what)

    # ── Timers ────────────────────────────────────────────────────────────────────────────────────

    def timer(self, actor: Any, message: object, delay_s: float, timer: SimTimer) -> None:
        """A timer was set."""
        match message:
            case TryStore() if isinstance(actor, SessionActor):
                self._tries(actor, delay_s)
            case RunDeadline() if isinstance(actor, RunActor):
                self._times(actor.key, delay_s, timer)
            case CallDeadline() if actor is not None:
                self._times_call(actor._tool.name, delay_s)
            case _:
                pass
        self._kills()

    def _tries(self, actor: SessionActor, delay_s: float) -> None:
        """A session asks a store that fails again: soon at first, seldom later, and never more seldom than that."""
        if delay_s > RETRY_MAX_S:
            self._break(f"{actor.key} asks the store again after {delay_s:g} s: at most {RETRY_MAX_S:g} s (L12)")
        durable = self._told.get(actor._live.id, 0)
        first = self._tried.get(id(actor)) != actor._live.id
        if first and 0 < actor._reading._restored_by <= durable and delay_s > RETRY_FIRST_S:
            self._break(f"{actor.key} waits {delay_s:g} s for a store that had served it until now (L12)")
        self._tried[id(actor)] = actor._live.id

    def _times(self, run_id: str, delay_s: float, timer: SimTimer) -> None:
        """The deadline of a run goes on where it stood still: all in all it is no longer than it is set."""
        world = self._world
        assert world is not None, "a world was entered"
        now, times = world.clock.monotonic(), self._deadlines.setdefault(run_id, [])
        # One that has fired ran for its time, however late that is heard of.
        ran = sum(min(its, (now if at.cancelled_at is None else at.cancelled_at) - since) for since, its, at in times)
        times.append((now, delay_s, timer))
        most = world.settings.run_deadline_s
        if most is not None and ran + delay_s > most + INSTANT_S:
            self._break(f"{run_id} has {ran + delay_s:g} s in all, and its deadline is {most:g} s (L7)")

    def _times_call(self, tool: str, delay_s: float) -> None:
        """The deadline of a tool is its own where it has one, else the configured one."""
        world = self._world
        assert world is not None, "a world was entered"
        own = {"patient": PATIENT_S} | {one.name: one.deadline_s for one in world._more_tools}
        expected = own.get(tool) or world.settings.call_deadline_s
        if delay_s != expected:
            self._break(f"a call of {tool} may take {delay_s:g} s: its deadline is {expected} s (L7)")

    # ── Stops that kill ───────────────────────────────────────────────────────────────────────────

    def answered(self, request: object, answer: object) -> None:
        """A Stop that kills at once has killed when it is answered, or is about to, whatever the store does."""
        world = self._world
        if world is None or not isinstance(request, Stop) or not isinstance(answer, Stopped):
            return
        if request.mode is Mode.IMMEDIATE and answer.run_id is not None and answer.outcome in ("stopped", "stopping"):
            self._killed_at.setdefault(answer.run_id, world.clock.monotonic() - world.stalled_s)

    def _kills(self) -> None:
        world = self._world
        if world is None or self.poisoned or not self._killed_at:
            return
        now = world.clock.monotonic() - world.stalled_s
        for run_id, since in list(self._killed_at.items()):
            if now < since + TOLD_S:
                continue
            del self._killed_at[run_id]
            run = self._disk.run(run_id)
            left = [one.process_id for one in world.processes.to_be_killed() if self._is_of(one.process_id, run_id)]
            if run is not None and left:
                self._break(f"{left} of {run_id} live on {now - since:g} s after a Stop that kills at once (L3)")

    def _is_of(self, process_id: str, run_id: str) -> bool:
        world = self._world
        row, hosts = self._disk.process(process_id), world.hosts if world is not None else None
        if row is None or row.run_id != run_id or row.owner is not Owner.RUN or was_released(row):
            return False
        serving = world.session_if_alive(row.session) if world is not None else None
        if serving is not None and process_id in serving._live.protocol.state.owned:
            # It was handed over before the Stop, and that is not on record yet.
            return False
        # A host that was told nothing may be released, and that not be on record yet.
        return not row.host or hosts is None or hosts.was_told(process_id)

    def erased(self, session: str) -> None:
        """The supervisor hears that a session was deleted: whoever uses the name again begins anew."""
        self._failed.pop(session, None)

    def down(self, session: str, *, quarantined: bool) -> None:
        """A session's actor has failed: too often, and it is quarantined.

        In quarantine nobody takes over what is its own: it was ended.
        """
        world = self._world
        if world is None:
            return
        now, policy = world.clock.monotonic(), world.policy
        times = [at for at in self._failed.get(session, []) if at > now - policy.window_s]
        if len(times) > policy.failures_max and not quarantined:
            self._break(f"{session} has failed {len(times) + 1} times, and is not quarantined (L13)")
        self._failed[session] = [*times, now]
        if not quarantined:
            return
        rows = self._disk.of(session).processes
        left = [
            one.process_id
            for one in world.processes.to_be_killed()
            if one.process_id in rows and rows[one.process_id].owner is Owner.SESSION and one.kill_at is None
        ]
        if left:
            self._break(f"{left} live on, and {session} has failed in quarantine (L3)")

    # ── What grows ────────────────────────────────────────────────────────────────────────────────

    def told(self, incarnation: str, number: int) -> None:
        """A session is told that its batches are durable, up to this one."""
        if incarnation not in self._failures_told:
            self._told[incarnation] = number

    def told_failure(self, incarnation: str) -> None:
        """A session is told that a batch was not stored: what it is told behind that is nothing to it."""
        self._failures_told.add(incarnation)

    def spawns(self, process_id: str) -> None:
        """A process starts: with the others of its owner there are no more than there may be."""
        world, row = self._world, self._disk.process(process_id)
        if world is None or row is None:
            return
        of = "run_id" if row.owner is Owner.RUN else "session"
        # A host is none of those that its run has spawned.
        rows = [other for other in self._disk.of(row.session).processes.values() if other.owner is row.owner]
        known = [
            other.process_id
            for other in rows
            if getattr(other, of) == getattr(row, of)
            and other.process_id != process_id
            and not (other.host and other.owner is Owner.RUN)
        ]
        living = [one for one in known if world.processes.lives(one)]
        if len(living) >= world.settings.processes_max:
            self._break(f"{process_id} starts beside {living}: at most {world.settings.processes_max} (L14)")

    def batch(self, batch: Batch) -> None:
        """A batch is durable."""
        world = self._world
        if world is None:
            return
        tables, settings = self._disk.of(batch.session), world.settings
        if len(tables.waiting) > settings.queue_max:
            self._break(f"{len(tables.waiting)} messages wait: at most {settings.queue_max} (L14)")
        for run_id in {call.run_id for call in batch.calls}:
            is_open = [one for one in tables.calls.values() if one.run_id == run_id and one.state != "ended"]
            if len(is_open) > settings.calls_open_max:
                self._break(f"{run_id} has {len(is_open)} calls open: at most {settings.calls_open_max} (L14)")
        for run in batch.runs:
            if run.attempt > settings.attempts_max:
                self._break(f"{run.run_id} is attempt {run.attempt}: at most {settings.attempts_max} (L14)")
        for receipt in batch.receipts:
            self._receipt(batch.session, receipt)

    def _receipt(self, session: str, receipt: Receipt) -> None:
        """A receipt lists so many parts, and counts the others."""
        from actors.protocol.run_record import PARTS_KEPT_MAX

        world = self._world
        if receipt.run_id is None or world is None:
            return
        # A tree stands alone where its call is of an earlier run, or left out. The rows below a tree are its processes,
        # and those below a child run are of its receipt.
        rows = [(row, *(() if row.kind in OWN_ROWS else row.rows)) for row in receipt.rows]
        parts = [part for below in rows for part in below if _is_part(part)]
        listed, asked_for = len(parts), sum(part.kind not in STRAYS for part in parts)
        # What is open at once is listed, and what the session has beside it. A child run outlives its call.
        children = min(world.settings.children_max, sum(part.kind is PartKind.RUN for part in parts))
        most = max(PARTS_KEPT_MAX, 1 + world.settings.calls_open_max + world.settings.processes_max + children)
        if asked_for > most + world.settings.processes_max:
            self._break(f"the receipt of {receipt.run_id} lists {asked_for} parts: at most {most} (L14)")
        # Code may start any number by itself: each that goes on is listed, and what it is a row of (L1).
        going_on = sum(part.kind == AGENT or any(one.ended_at is None for one in (part, *part.rows)) for part in parts)
        most = max(PARTS_KEPT_MAX, going_on)
        if listed > most:
            self._break(f"the receipt of {receipt.run_id} lists {listed} parts, {going_on} go on: at most {most} (L14)")
        tables = self._disk.of(session)
        calls = [one for one in tables.calls.values() if one.run_id == receipt.run_id and one.started_at is not None]
        # What code started by itself may be another's by then: of that nothing is counted here.
        trees = [
            one
            for one in tables.processes.values()
            if one.run_id == receipt.run_id and one.owner is Owner.RUN and one.process_id.startswith("proc_")
        ]
        if listed + receipt.omitted < len(calls) + len(trees):
            begun = f"{len(calls)} calls and {len(trees)} trees"
            self._break(f"the receipt of {receipt.run_id} has {listed} parts, {receipt.omitted} more, of {begun} (L14)")


def _is_part(row: Row) -> bool:
    """Whether a row is a part of a run, and not a process below another one."""
    return row.kind != "process" or bool(row.started_at or row.how)
