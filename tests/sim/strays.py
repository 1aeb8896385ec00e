"""SimStrays: what code of a run leaves behind by itself, in virtual time.

Real code leaves processes, threads and tasks, which are tested on real ones. Here an execution leaves what its world
says: things that end by themselves, when they are told, when they are killed, or long after; and that are nobody's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pykka import ActorDeadError

from actors.kernel.succession import Succession
from actors.messages import StrayEnded, StrayFound
from actors.model import Address, How, Isolation, PartKind
from tests.sim.clock import SimClock

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.gate.token import CancelToken
    from actors.ports import ProcessRow

LEFT: Final = 1 / 3
KINDS: Final = (PartKind.SUBPROCESS, PartKind.THREAD, PartKind.TASK)
LONG_S: Final = 40.0


class _Stray:
    __slots__ = ("ended", "found", "told_to_end")

    def __init__(self, found: StrayFound) -> None:
        self.found = found
        self.ended: StrayEnded | None = None
        self.told_to_end = False


class SimStrays:
    """`actors.ports.Strays`.

    Args:
        clock: virtual time.
        random: draws what is left; None: executions leave nothing.
    """

    def __init__(self, clock: SimClock, random: Random | None) -> None:
        self._clock = clock
        self.random = random
        self._owners: dict[str, ActorRef[Any]] = {}
        self._successions: defaultdict[str, Succession] = defaultdict(Succession)
        self._strays: dict[str, _Stray] = {}
        self._ending: dict[str, float] = {}
        self._count = 0
        # Runs of whose strays no end is asked for any more.
        self._forgotten: set[str] = set()

    def within(
        self, address: Address, isolation: Isolation, token: CancelToken, body: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `body`; where it ends, something may be left, which is told before its end."""
        if self.random is None or isolation is not Isolation.TASK:
            # The executor refuses what needs a thread.
            return body

        async def leaving() -> Any:
            try:
                return await body()
            finally:
                self._leave(address)

        return leaving

    def adopt(
        self, address: Address, owner: ActorRef[Any], claimed: Sequence[ProcessRow] = (), *, anew: bool = False
    ) -> None:
        """From here on tell `owner`; what is known is told again, and the end of what is not."""
        if not self._successions[address.run].admits(owner, anew=anew):
            return
        self._owners[address.run] = owner
        self._forgotten.discard(address.run)
        for stray in [one for one in self._strays.values() if one.found.address.run == address.run]:
            self._tell(stray.found)
            if stray.ended is not None:
                self._tell(stray.ended)
        for row in claimed:
            if row.process_id not in self._strays:
                how = None if row.kind == "subprocess" else How.SIGKILL
                self._tell(StrayEnded(address, row.process_id, how, self._clock.wall(), note="gone"))

    def end(self, address: Address, grace_s: float) -> None:
        """End what a run, or a call, has left: some of it at once, some when it is killed, some long after."""
        key = address.call or address.run
        due = self._clock.monotonic() + grace_s
        self._ending[key] = min(due, self._ending.get(key, due))
        for stray in self._strays.values():
            self._end_one(stray)

    def forget(self, stray_id: str) -> None:
        """The end of it is in the log."""
        stray = self._strays.get(stray_id)
        if stray is not None and stray.ended is not None:
            del self._strays[stray_id]

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """What else has ended of a session, or ends from here on, is forgotten."""
        for stray_id, stray in list(self._strays.items()):
            address = stray.found.address
            if address.session == session and address.run not in but:
                self._forgotten.add(address.run)
                self.forget(stray_id)

    # ── For the world ─────────────────────────────────────────────────────────────────────────────

    def lives(self, stray_id: str) -> bool:
        """True if it was left and has not ended."""
        stray = self._strays.get(stray_id)
        return stray is not None and stray.ended is None

    def alive(self) -> list[StrayFound]:
        """What was left and goes on."""
        return [one.found for one in self._strays.values() if one.ended is None]

    def kept(self) -> list[str]:
        """What has ended and was not forgotten."""
        return [key for key, one in self._strays.items() if one.ended is not None]

    def leave(self, address: Address, kind: PartKind, *, ours: bool = True) -> _Stray:
        """Something goes on of which the supervisor was not told when it began."""
        self._count += 1
        stray_id = f"{kind}_{address.call or address.run}_{self._count}"
        found = StrayFound(address, stray_id, kind, f"left {self._count}", self._clock.wall(), ours=ours)
        stray = self._strays[stray_id] = _Stray(found)
        self._tell(found)
        return stray

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _leave(self, address: Address) -> None:
        assert self.random is not None, "asked before"
        while self.random.random() < LEFT:
            kind = KINDS[int(self.random.random() * len(KINDS))]
            ours = kind != PartKind.SUBPROCESS or self.random.random() < 0.8
            stray = self.leave(address, kind, ours=ours)
            if self.random.random() < 0.5 or not ours:
                self._later(stray, self.random.random() * (3.0 if ours else LONG_S))
            self._end_one(stray)

    def _end_one(self, stray: _Stray) -> None:
        address = stray.found.address
        dues = [self._ending[key] for key in (address.run, address.call) if key in self._ending]
        if not dues or not stray.found.ours:
            return
        assert self.random is not None, "it has left something"
        left_s = max(0.0, min(dues) - self._clock.monotonic())
        if stray.found.kind == "subprocess":
            # Killed at the latest when the grace is over.
            self._later(stray, left_s if self.random.random() < 0.3 else self.random.random() * left_s)
        elif not stray.told_to_end:
            # A thread cannot be ended, and a task may take its time.
            self._later(stray, self.random.random() * (LONG_S if self.random.random() < 0.3 else 1.0))
        stray.told_to_end = True

    def _later(self, stray: _Stray, delay_s: float) -> None:
        self._clock.call_at(self._clock.monotonic() + delay_s, lambda: self._over(stray))

    def _over(self, stray: _Stray) -> None:
        if stray.ended is None:
            address, key = stray.found.address, stray.found.stray_id
            stray.ended = StrayEnded(address, key, How.RETURNED, self._clock.wall())
            self._tell(stray.ended)
            if address.run in self._forgotten:
                self.forget(key)

    def _tell(self, message: StrayFound | StrayEnded) -> None:
        owner = self._owners.get(message.address.run)
        if owner is None:
            return
        try:
            owner.tell(message)
        except ActorDeadError:
            return
