"""A run's recorded strays, which an earlier supervisor started."""

from __future__ import annotations

from typing import Final

from actors.messages import StrayFound
from actors.model import How, PartKind
from actors.ports import ProcessRow
from supervisor.containment import offspring
from supervisor.containment.guard import procfs
from supervisor.containment.offspring import Offspring
from supervisor.strays.records import Run
from supervisor.strays.reports import Reports
from supervisor.strays.run_end import RunEnd
from supervisor.strays.threads import GOING_ON

LOST: Final = "processes that were orphans when the supervisor died cannot be seen any more"


class Claims:
    """Takes over recorded strays. Every method is called under the lock."""

    def __init__(self, reports: Reports, ends: RunEnd) -> None:
        self._reports = reports
        self._ends = ends
        self._boot = procfs.boot_id()

    def claim(self, run: Run, row: ProcessRow) -> None:
        """Find a stray by its record, or report that it is gone."""
        going_on = GOING_ON.get(row.process_id)
        if going_on is not None:
            # A thread outlives its supervisor, which still reports the thread's end.
            with going_on.run.lock:
                going_on.run.owner = run.owner
                going_on.run.tell_all(going_on)
            return
        address = run.address.of_call(row.call_id) if row.call_id else run.address
        found = StrayFound(
            address, row.process_id, row.kind, row.name, row.started_at or 0.0, row.pid, row.born, row.ours
        )
        stray = self._reports.found(run, found)
        if row.kind == PartKind.SUBPROCESS:
            self._ends.doubt(run, LOST)
        boot, _, ticks = row.born.rpartition(":")
        root = offspring.opened(row.pid, None, row.name) if row.pid is not None and boot == self._boot else None
        if root is not None and str(root.ticks) != ticks:
            root.close()
            root = None
        if root is not None and row.ours:
            stray.process = Offspring(root)
            return
        if root is not None:
            root.close()
        self._ends.ended(stray, How.GONE, note="the supervisor that it was started in has ended")
