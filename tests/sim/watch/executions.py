"""ExecutionLaws: when agents and tools start, begin, have effects, clean up and return (L1, L2, L3, L8, L12, L13)."""

from __future__ import annotations

from actors.gate.cell import CellState
from actors.model import Address, Outcome
from actors.protocol.run_record import CallRecord
from actors.run_status import RunStatus
from tests.sim.watch.barrier import BarrierLaws
from tests.sim.watch.children import ChildLaws
from tests.sim.watch.seen import INSTANT_S, Seen


class ExecutionLaws:
    """What the executor, the agents and the tools of a world report about code that runs."""

    def __init__(self, seen: Seen, barrier: BarrierLaws, children: ChildLaws) -> None:
        self._seen = seen
        self._barrier = barrier
        self._children = children
        # By run id or fencing token: when its cancel token was cancelled.
        self._ends_at: dict[str, float] = {}

    def starts(self, key: str, name: str) -> None:
        """An agent, or a call, is handed to the executor: its record was written ahead (law L12)."""
        if name.startswith("agent "):
            self._seen.agents.add(key)
            run = self._seen.disk.run(key)
            if run is None:
                self._seen.break_(f"{name} of {key} starts before its run is on record (L12)")
            elif run.status is not RunStatus.IN_PROGRESS:
                self._seen.break_(f"{name} of {key} starts although it is {run.status} (L1)")
            return
        row = self._seen.disk.call(key)
        if key not in self._seen.granted and (row is None or row.state == "requested"):
            self._seen.break_(f"{name} {key} starts before its grant is on record (L12)")

    def begins(self, fence: str, *, elsewhere: bool = False) -> None:
        """The first line of a tool runs: no fence was first, and nothing of an earlier run is left (laws L2, L3).

        `elsewhere`: a host executes it. The host was told so before the fence, and the fence found the call started.
        """
        session, _, call_id = fence.split(":")
        self._seen.began.add(fence)
        self._seen.inside[fence] = session
        if self._seen.world is not None and self._seen.world.session_if_alive(session) is None and not elsewhere:
            self._seen.break_(f"{fence} begins while its session is down (L13)")
        row = self._seen.disk.call(call_id)
        may = (None, Outcome.INTERRUPTED) if elsewhere else (None,)
        if row is None or row.outcome not in may:
            self._seen.break_(f"{fence} begins although its call is closed (L2)")
            return
        for call in self._calls(fence):
            if call.row.outcome not in may:
                self._seen.break_(f"{fence} begins although it was closed as {call.row.outcome} (L2)")
        self._barrier.before_run(session, row.run_id, fence)
        if not elsewhere:
            self._children.may_begin(call_id, fence)

    def leaves(self, fence: str, *, returned: bool, elsewhere: bool = False) -> None:
        """A tool leaves its function; what it returns in time is its result (law L2)."""
        self._seen.inside.pop(fence, None)
        self._seen.left.add(fence.rpartition(":")[2])
        if elsewhere:
            # The host has not reported it yet.
            return
        for call in self._calls(fence):
            if call.cell is not None and call.cell.state is CellState.STARTED:
                self._seen.in_time[call.row.call_id] = "finished" if returned else "raised"

    def writes(self, fence: str) -> None:
        """A tool that looks at its token has an effect: its call is open at this moment (law L1)."""
        row = self._seen.disk.call(fence.rpartition(":")[2])
        if row is None or row.state == "ended":
            self._seen.break_(f"{fence} writes although its call is closed (L8)")
        for call in self._calls(fence):
            if call.cell is not None and call.cell.state is not CellState.STARTED:
                self._seen.break_(f"{fence} writes although its cell is {call.cell.state} (L8)")

    def has_effect(self, fence: str) -> None:
        """An effect behind a guard takes place: its call has no result at this moment (law L1)."""
        call_id = fence.rpartition(":")[2]
        self._seen.effects[call_id] += 1
        row = self._seen.disk.call(call_id)
        if (row is not None and row.state == "ended") or any(not call.open for call in self._calls(fence)):
            self._seen.break_(f"{fence} has an effect behind a guard although its call is closed (L1)")

    def asks_for_guard(self, key: str) -> None:
        """The daemon is asked for a guard in a host. From here on the effect may have begun for the daemon.

        `key`: the id of the run, or of the call that the host executes.
        """
        self._seen.asked_for_guards.add(key)

    def has_own_effect(self, address: Address, *, in_host: bool) -> None:
        """An effect of an agent takes place behind a guard: its run is open at this moment (law L1).

        `in_host`: it was at the moment of the permit. So where it is closed by now, its end tells of the effect.
        """
        self._seen.effects[address.run] += 1
        actor = self._seen.world.session_if_alive(address.session) if self._seen.world is not None else None
        record = actor._protocol.state.record(address.run) if actor is not None else None
        rows = [self._seen.disk.run(address.run), None if record is None else record.info]
        for row in rows:
            if row is None or row.status is RunStatus.IN_PROGRESS:
                continue
            told = sum(effect.begun for effect in row.effects)
            if not in_host or told < self._seen.effects[address.run]:
                self._seen.break_(f"{address.run} has an effect behind a guard although it is closed (L1)")

    def tells(self, key: str) -> None:
        """The token of a run or a call is cancelled: its code is told of its end."""
        assert self._seen.world is not None, "a world was entered"
        self._ends_at[key] = self._seen.world.clock.monotonic()

    def told_again(self, key: str) -> None:
        """Code that cleans up is cancelled once more: not before it may be named abandoned (law L8).

        The shortest time for that is a Stop's with mode immediate, which gives no grace.
        """
        world = self._seen.world
        assert world is not None, "a world was entered"
        if world.clock.monotonic() < self._ends_at[key] + world.settings.kill_s - INSTANT_S:
            self._seen.break_(f"{key} is told of its end a second time while it cleans up (L8)")

    def _calls(self, fence: str) -> list[CallRecord]:
        """The records of the call with this fencing token in the memory of its session, if that is up."""
        session, _, call_id = fence.split(":")
        actor = self._seen.world.session_if_alive(session) if self._seen.world is not None else None
        if actor is None:
            return []
        return [record.calls[call_id] for record in actor._protocol.state.records() if call_id in record.calls]
