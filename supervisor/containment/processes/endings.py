"""The exit of a command and the end of its tree: each is reported once, the exit first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from actors.messages import ProcessEnded, ProcessExited
from supervisor.containment.guard import ledger
from supervisor.containment.processes.reports import ended, not_started, tell
from supervisor.containment.processes.tree import TreePhase

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.descriptors import Descriptors
    from supervisor.containment.processes.pipes import Pipes
    from supervisor.containment.processes.tree import Tree
    from supervisor.containment.reactor import Reactor

SETTLE_S = 1.0
SETTLE_KILLED_S = 0.01


class Endings:
    """Reports exits and ends. Reactor thread only.

    Args:
        drain_s: after the command's exit its output is read to its end, for at most this many seconds.
        give_up_s: the time limit, for the note of a tree that is not proven gone.
        on_ended: called when the end of a tree was reported.
    """

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        descriptors: Descriptors,
        pipes: Pipes,
        *,
        drain_s: float,
        give_up_s: float,
        on_ended: Callable[[Tree], None],
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._descriptors = descriptors
        self._pipes = pipes
        self._drain_s = drain_s
        self._give_up_s = give_up_s
        self._on_ended = on_ended

    # ── The exit ──────────────────────────────────────────────────────────────────────────────────

    def exited(self, tree: Tree, word: Word) -> None:
        """Record the exit of the command; it is reported once its output is drained."""
        tree.exited = word
        self._pipes.drain(tree)
        if tree.pipes:
            tree.drain_alarm = self._reactor.later(self._drain_s, lambda: self.drained(tree))
        else:
            self.drained(tree)

    def drained(self, tree: Tree) -> None:
        """Report the exit once the disk has the output: that is at its end, or the time to drain it is over."""
        if tree.drained_bytes is not None or tree.phase is TreePhase.ENDED:
            return
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        self._pipes.drain(tree)
        tree.held = bool(tree.pipes)
        tree.drained_bytes = tree.output.total_bytes
        tree.output.close()
        self._pipes.report(tree)
        if tree.held or tree.output.lossy:
            tree.spool.need()
        if tree.spool.begun:
            # A stop waits for no slow disk.
            wait_s = SETTLE_S if tree.kill_at is None else SETTLE_KILLED_S
            tree.drain_alarm = self._reactor.later(wait_s, lambda: self.report_exit(tree))
            tree.spool.settle(lambda: self.report_exit(tree))
        else:
            self.report_exit(tree)

    def report_exit(self, tree: Tree) -> None:
        """Report the exit once, and the end if that is known already."""
        if tree.exit_report is not None or tree.phase is TreePhase.ENDED:
            return
        assert tree.exited is not None
        assert tree.drained_bytes is not None
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        kept = tree.spool.kept
        word = tree.exited
        tree.exit_report = ProcessExited(
            tree.process_id,
            status=word["status"],
            at=word["at"],
            duration_s=word["duration_s"],
            tail=tree.output.tail,
            total_bytes=tree.drained_bytes,
            lossy=tree.output.lossy,
            held=tree.held,
            cpu_s=word["cpu_s"],
            max_rss_kb=word["max_rss_kb"],
            spool=None if kept is None else kept.path,
            spooled_bytes=0 if kept is None else kept.size,
        )
        tell(tree.owner, tree.exit_report)
        if tree.last is not None:
            self._end(tree, ended(tree.process_id, tree.last, proven=tree.last.get("proven", True)))

    def report_exit_now(self, tree: Tree) -> None:
        """Report the exit, if there was one, without waiting for its output."""
        if tree.exited is not None:
            self.drained(tree)
            self.report_exit(tree)
        tree.output.close()
        self._pipes.report(tree)

    # ── The end ───────────────────────────────────────────────────────────────────────────────────

    def prove(self, tree: Tree, word: Word) -> None:
        """End the tree by its last word; the exit is reported first, if its output is still being drained."""
        tree.last = word
        tree.disarm_kill()
        if tree.exited is None and word["status"] is not None and tree.start_report is not None:
            # The warden was killed, and the zygote saw the command end.
            duration_s = max(0.0, word["at"] - tree.start_report.at)
            exited = {"status": word["status"], "at": word["at"], "duration_s": duration_s}
            self.exited(tree, {"word": "exited", **exited, "cpu_s": 0.0, "max_rss_kb": 0})
        if tree.phase is not TreePhase.ENDED and (tree.exited is None or tree.exit_report is not None):
            self._end(tree, ended(tree.process_id, word, proven=word.get("proven", True)))

    def abandon(self, tree: Tree, why: str = "") -> None:
        """Report that the tree is not proven gone. Its warden, if there is one, goes on ending it."""
        if tree.phase is TreePhase.ENDED or tree.last is not None:
            return
        remains = tree.remaining.note if tree.remaining is not None else ""
        note = why or remains or f"not proven gone {self._give_up_s:g} s after its deadline"
        word = ledger.fold(ledger.read_path(tree.path))
        word.update(how="abandoned", note=note, at=self._clock.wall())
        self.unproven(tree, word)

    def unproven(self, tree: Tree, word: Word) -> None:
        """Report the exit, and the end as not proven."""
        self.report_exit_now(tree)
        self._end(tree, ended(tree.process_id, word, proven=False))

    def never(self, tree: Tree, note: str) -> None:
        """End a tree that never had a process."""
        self._end(tree, not_started(tree.process_id, note, self._clock.wall()))

    def _end(self, tree: Tree, report: ProcessEnded) -> None:
        tree.given.close()
        if tree.start_report is not None:
            # The last output of a background process goes only into the spool.
            self._pipes.drain(tree)
        tree.phase = TreePhase.ENDED
        tree.spool.close()
        tree.disarm_kill()
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        self._descriptors.close(tree)
        self._pipes.end_copies(tree)
        tree.end_report = report
        tell(tree.owner, report)
        self._on_ended(tree)
