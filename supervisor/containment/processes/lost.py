"""Trees whose warden is gone: the verdict on them, from a last word, the zygote, the ledger, or a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.containment.guard import ledger
from supervisor.containment.processes.launch import ATTEMPTS_MAX
from supervisor.containment.processes.reports import ended, tell
from supervisor.containment.processes.tree import TreePhase

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.orphans import OrphanTree
    from supervisor.containment.processes.descriptors import Descriptors
    from supervisor.containment.processes.endings import Endings
    from supervisor.containment.processes.launch import Launcher
    from supervisor.containment.processes.search import Search
    from supervisor.containment.processes.tree import Tree, TreeTable
    from supervisor.containment.reactor import Reactor


class LostTrees:
    """Judges trees without a warden. Reactor thread only.

    Args:
        give_up_s: how long to wait for the zygote's word on a tree.
    """

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        trees: TreeTable,
        descriptors: Descriptors,
        endings: Endings,
        launcher: Launcher,
        search: Search,
        give_up_s: float,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._trees = trees
        self._descriptors = descriptors
        self._endings = endings
        self._launcher = launcher
        self._search = search
        self._give_up_s = give_up_s

    def last_word(self, tree: Tree, word: Word) -> None:
        """Handle a warden's last word, from its socket or its ledger: it is the proof, if its layers can give one."""
        if not word.get("proven", True) and tree.phase is not TreePhase.ENDED:
            self._search_for(tree, "the subreaper layer is off", word)
        else:
            self._endings.prove(tree, word)

    def warden_gone(self, tree: Tree) -> None:
        """Handle the end of a warden's socket. Without a last word it was killed: ask the ledger and the zygote."""
        if tree.last is not None or tree.searched or tree.phase is TreePhase.ENDED:
            return
        last = ledger.said(ledger.read_path(tree.path), "empty")
        if last is not None:
            # It could not send it.
            self.last_word(tree, last)
            return
        tree.phase = TreePhase.LOST
        if tree.zygote is None or tree.zygote.dead:
            self.judge(tree)
        else:
            tree.kill_alarms.append(self._reactor.later(self._give_up_s, lambda: self._endings.abandon(tree)))

    def proven_gone(self, tree: Tree) -> None:
        """End a tree whose warden was killed, and whose orphans the zygote has proven gone."""
        if tree.last is not None:
            return
        words = ledger.read_path(tree.path)
        last = ledger.said(words, "empty") or {**ledger.fold(words), "at": self._clock.wall()}
        self._endings.prove(tree, last)

    def judge(self, tree: Tree) -> None:
        """Judge a tree without a warden and without a zygote, by its ledger."""
        if tree.last is not None or tree.searched:
            return
        words = ledger.read_path(tree.path)
        last = ledger.said(words, "empty")
        if last is not None:
            self.last_word(tree, last)
        elif ledger.said(words, "spawning") is None:
            self._descriptors.close(tree)
            if tree.kill_at is not None:
                self._endings.never(tree, "killed before it was started")
            elif tree.attempts < ATTEMPTS_MAX and not self._trees.closing:
                tree.disarm_kill()
                self._launcher.launch(tree)
            else:
                self._endings.never(tree, f"no warden came of {tree.attempts} attempts: each zygote was killed")
        else:
            self._search_for(tree, "its warden and the zygote were both killed", ledger.fold(words))

    def _search_for(self, tree: Tree, why: str, word: Word) -> None:
        """Search for the orphans of a tree that is not proven gone; then end it with `word` and the result."""
        tree.searched = True
        orphan = self._search.orphan(tree.process_id, why, ledger.read_path(tree.path))
        self._search.end(orphan, lambda: self._found(tree, word, orphan))

    def _found(self, tree: Tree, word: Word, orphan: OrphanTree) -> None:
        if tree.phase is TreePhase.ENDED:
            return
        verdict = self._search.verdict(word, orphan)
        if verdict["proven"]:
            self._endings.prove(tree, verdict)
        else:
            self._endings.unproven(tree, verdict)
            self._search.go_on(
                orphan,
                lambda: self._trees.by_id.get(tree.process_id) is tree,
                lambda: self._report_proof(tree, word, orphan),
            )

    def _report_proof(self, tree: Tree, word: Word, orphan: OrphanTree) -> None:
        tree.end_report = ended(tree.process_id, self._search.verdict(word, orphan), proven=True)
        tell(tree.owner, tree.end_report)
