"""Kills: asked of the warden, with deadlines for a warden that is silent and for a tree that does not end."""

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
"""A killed command that printed more than this has a file of it: the report says where its text is cut off."""
SILENT_S = 0.5
"""How often it is looked whether a warden that says nothing is at work."""


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
            # The report has the end of its output, and the name of the file that has all of it. Once its exit is
            # reported no file is needed.
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
                # It has just ended, or it reads nothing at all: the socket's end or the alarms follow.
                return

    def _end_silent_warden(self, tree: Tree) -> None:
        """A warden that has not said a word since the deadline may be stopped or stuck: then the zygote takes over.

        The zygote sees whether it is. It is asked again, for a warden that is slow now may be stopped later.
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
