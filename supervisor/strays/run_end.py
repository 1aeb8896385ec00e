"""The end of a stray, and the checks before the last end of a run."""

from __future__ import annotations

from typing import Final

from actors.messages import StrayFound
from actors.model import How, PartKind
from actors.ports import Clock
from supervisor.strays.children import Children
from supervisor.strays.records import Run, Stray
from supervisor.strays.reports import Reports
from supervisor.strays.subreaper import inherits_orphans

ORPHANS: Final = "orphans that its processes may have left"
SERVED: Final = "its processes are below multiprocessing's fork server, which belongs to the whole program"
NAMED_BY_ANOTHER: Final = "a process of unknown origin, which the receipt of another run names, may be of this one"
TAKEN: Final = "a process that began when the program started one of its own may be an orphan of this run"
LEFT_OUT: Final = "and {} more processes of unknown origin are not listed"
UNSEEN: Final = "orphans fall to another process and cannot be seen: see Config(subreaper=True)"


class RunEnd:
    """Reports the ends of strays, with checks before a run's last one. Every method is called under the lock."""

    def __init__(self, clock: Clock, reports: Reports, children: Children) -> None:
        self._clock = clock
        self._reports = reports
        self._children = children

    def ended(self, stray: Stray, how: How | None, *, note: str = "") -> None:
        """Report the end of a stray, once; see `check_last` for the last one of a run."""
        if stray.ended is not None:
            return
        self._reports.note_end(stray, how, note)
        self.check_last(stray.run)
        self._reports.ended(stray)
        if stray.process is not None and not stray.found.ours:
            self._children.release(stray.process.root)

    def one_ended(self, stray: Stray, how: How, note: str = "") -> None:
        """Record that one of the threads or tasks of a stray has ended."""
        stray.left -= 1
        if not stray.left:
            self.ended(stray, how, note=note)

    def check_last(self, run: Run) -> None:
        """If the last part of a run is ending, report children that are not attributed, and what cannot be seen.

        Not to a run of which no code was executed in this process: none of them is from it.
        """
        if run.open or not run.agent_over or not run.here:
            return
        if any(one.ended is None and one.found.ours for one in run.strays.values()):
            return
        if run.forks and not inherits_orphans():
            self.doubt(run, UNSEEN)
        if run.forks and self._children.may_have_left(run):
            self.doubt(run, NAMED_BY_ANOTHER)
        left_out = self._children.report_unknown(run)
        # After that: it looks for the processes of all starts.
        if run.forks and self._children.may_be_an_orphan(run):
            self.doubt(run, TAKEN)
        if left_out:
            self.doubt(run, LEFT_OUT.format(left_out))

    def doubt(self, run: Run, note: str) -> None:
        """Report, once, that there may be processes that cannot be seen."""
        if run.doubted:
            return
        run.doubted = True
        found = StrayFound(
            run.address, self._reports.new_id("orphans", run.address), PartKind.SUBPROCESS, ORPHANS, self._clock.wall()
        )
        stray = self._reports.found(run, found)
        self._reports.note_end(stray, How.OUT_OF_REACH, note)
        self._reports.ended(stray)
