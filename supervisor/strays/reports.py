"""The reports on strays to the owners of their runs.

The reports on a stray are kept until its end is in the log, so that the next owner of the run can get them again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from actors.messages import StrayEnded, StrayFound
from actors.model import Address, How, PartKind
from actors.ports import Clock
from supervisor.by_session import BySession
from supervisor.strays.records import Run, Stray
from supervisor.strays.starter import Starter

STRAYS_MAX: Final = 100
"""Threads, and also tasks, of one execution that are reported one by one."""
OPEN_MAX: Final = 1000
"""Strays of one run, of any kind, that are reported one by one."""
OTHERS: Final = ", and others"
ENDED_MAX: Final = 1000
"""Ends that are kept while they are not in the log."""


class Reports:
    """The strays that were reported, by id. Every method is called under the lock.

    Args:
        clock: for the times of ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.strays: dict[str, Stray] = {}
        self._sessions = BySession()
        # By id, in the order of their ends: ended strays whose end is not in the log yet.
        self._ended: dict[str, None] = {}
        self._number = 0

    def new_id(self, kind: str, address: Address) -> str:
        """Return an id that no other stray has."""
        self._number += 1
        return f"{kind}_{address.call or address.run}_{self._number}"

    @staticmethod
    def full(run: Run) -> bool:
        """True if further strays of a run are not reported one by one."""
        return len(run.strays) >= OPEN_MAX

    def joined(self, run: Run, kind: PartKind, *, spared: bool = False) -> Stray | None:
        """Count one more in the stray that stands for those beyond OPEN_MAX, and return it; None if there is none."""
        stray = run.more.get((kind, spared))
        if stray is None or stray.ended is not None or not self.full(run):
            return None
        stray.more += 1
        return stray

    def found(self, run: Run, found: StrayFound) -> Stray:
        """Report a stray to its run."""
        stray = Stray(run, found)
        run.strays[stray.id] = self.strays[stray.id] = stray
        self._sessions.add(stray.id, run.address.session)
        run.tell(found)
        return stray

    def found_next(self, run: Run, found: StrayFound, *, spared: bool = False) -> Stray:
        """As `found`; if the run is full, the stray stands for those that follow, and is ended with the run."""
        if not self.full(run):
            return self.found(run, found)
        stray = self.found(run, replace(found, address=run.address, name=with_others(found.name)))
        run.more[found.kind, spared] = stray
        return stray

    def found_one(self, starter: Starter, kind: PartKind, name: str, at: float) -> Stray:
        """Report a thread or a task; those beyond STRAYS_MAX together, as one stray."""
        stray = starter.more.get(kind)
        if stray is not None and stray.ended is None:
            stray.more += 1
        else:
            stray = self.joined(starter.run, kind)
        if stray is None:
            starter.reported[kind] = starter.reported.get(kind, 0) + 1
            crowded = starter.reported[kind] > STRAYS_MAX
            name = with_others(name) if crowded else name
            found = StrayFound(starter.address, self.new_id(kind, starter.address), kind, name, at)
            stray = self.found_next(starter.run, found)
            if crowded:
                starter.more[kind] = stray
        stray.left += 1
        return stray

    def note_end(self, stray: Stray, how: How | None, note: str) -> None:
        """Record how a stray ended, for `ended` to report; for a subprocess `how` comes from the process."""
        at, process = self._clock.wall(), stray.process
        if stray.more:
            note = "; ".join(filter(None, (note, f"and {stray.more} more")))
        if process is None:
            stray.ended = StrayEnded(stray.found.address, stray.id, how, at, note=note)
            return
        stray.ended = StrayEnded(
            stray.found.address,
            stray.id,
            process.how,
            at,
            process.status,
            process.reaped,
            process.rows(),
            tuple(process.signals),
            note,
        )
        process.close()

    def ended(self, stray: Stray) -> None:
        """Report the end that `note_end` recorded."""
        assert stray.ended is not None, "its end is recorded first"
        stray.run.tell(stray.ended)
        self._ended[stray.id] = None
        if stray.run.forgotten:
            self.drop(stray)
        elif len(self._ended) > ENDED_MAX:
            self.drop(self.strays[next(iter(self._ended))])

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """Drop the strays of a session that have ended, but those of these runs; the others when they end."""
        for stray in [self.strays[key] for key in self._sessions.of(session)]:
            if stray.run.address.run in but:
                continue
            stray.run.forgotten = True
            if stray.id in self._ended:
                self.drop(stray)

    def drop(self, stray: Stray) -> None:
        """Drop the reports of a stray."""
        self._ended.pop(stray.id, None)
        self._sessions.discard(stray.id)
        del self.strays[stray.id]
        stray.run.strays.pop(stray.id, None)


def with_others(name: str) -> str:
    """The name of a stray that stands for others too."""
    return f"{name.removesuffix(OTHERS)}{OTHERS}"
