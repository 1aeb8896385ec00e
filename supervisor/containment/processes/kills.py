"""Kills: requests to the warden, with deadlines for a silent warden and for a tree that does not end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.containment.guard import ledger
from supervisor.containment.processes.tree import TreePhase

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.processes.endings import Endings
    from supervisor.containment.processes.tree import Tree
    from supervisor.containment.reactor import Reactor

SHOWN_MAX_BYTES = 4096
"""The output of a killed command is spooled if it is longer, since a report may show only its end."""
SILENT_S = 0.5
"""How often a silent warden is checked for progress."""


class Kills:
    """Kills trees. Reactor thread only.

    Args:
        kill_s: half this long after the grace of a kill the zygote takes over from a warden that is silent and idle.
        give_up_s: this long after the grace of a kill a tree that is not proven gone is reported so.
    """

    def __init__(self, reactor: Reactor, clock: Clock, endings: Endings, *, kill_s: float, give_up_s: float) -> None:
        self._reactor = reactor
        self._clock = clock
        self._endings = endings
        self._kill_s = kill_s
        self._give_up_s = give_up_s

    def kill(self, tree: Tree, grace_s: float) -> None:
        """Kill a tree; a later deadline than that of an earlier kill changes nothing."""
        if tree.phase is TreePhase.ENDED:
            return
        if tree.phase is TreePhase.WAITING:
            self._endings.never(tree, "killed before it was started")
            return
        kill_at = self._clock.monotonic() + max(0.0, grace_s)
        if tree.kill_at is not None and tree.kill_at <= kill_at:
            return
        tree.kill_at = kill_at
        if tree.exit_report is None and tree.output.total_bytes > SHOWN_MAX_BYTES:
            # The report has the end of its output, and the name of the file with all of it.
            tree.spool.need()
        if tree.drained_bytes is not None:
            self._endings.report_exit(tree)
        if tree.last is not None or tree.phase is TreePhase.LOST:
            return
        tree.disarm_kill()
        wait_s = max(0.0, grace_s)
        tree.kill_alarms = [
            self._reactor.later(wait_s + self._kill_s / 2, lambda: self._end_silent_warden(tree)),
            self._reactor.later(wait_s + self._give_up_s, lambda: self._endings.abandon(tree)),
        ]
        if tree.sock is not None:
            try:
                tree.sock.send(ledger.encode({"word": "kill", "grace_s": wait_s}))
            except OSError:
                # It has just ended, or does not read: the end of the socket or the alarms follow.
                return

    def _end_silent_warden(self, tree: Tree) -> None:
        """Ask the zygote to take over from a warden that has sent nothing since the deadline and may be stopped.

        The zygote checks that. It is asked again, since a warden that is slow now may be stopped later.
        """
        if (
            tree.last is not None
            or tree.remaining
            or tree.zygote is None
            or tree.phase in (TreePhase.LOST, TreePhase.ENDED)
        ):
            return
        tree.kill_alarms.append(self._reactor.later(SILENT_S, lambda: self._end_silent_warden(tree)))
        try:
            tree.zygote.send({"word": "end_warden", "process_id": tree.process_id})
        except OSError:
            return
