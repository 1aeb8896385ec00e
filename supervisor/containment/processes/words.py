"""Handles the words of wardens and zygotes about trees."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from loguru import logger

from actors.messages import ProcessStarted
from supervisor.containment.guard import ledger
from supervisor.containment.guard.packets import receive
from supervisor.containment.processes.reports import remaining, tell
from supervisor.containment.processes.tree import TreePhase

if TYPE_CHECKING:
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.descriptors import Descriptors
    from supervisor.containment.processes.endings import Endings
    from supervisor.containment.processes.lost import LostTrees
    from supervisor.containment.processes.pipes import Pipes
    from supervisor.containment.processes.tree import Tree, TreeTable
    from supervisor.containment.spool import Spools
    from supervisor.containment.zygote_handle import ZygoteHandle

WORD_MAX_BYTES = 262_144
WORDS_A_TURN = 16


class Words:
    """Receives the words of wardens and zygotes. Reactor thread only.

    Args:
        layers: the active ones.
    """

    def __init__(
        self,
        trees: TreeTable,
        layers: Collection[str],
        descriptors: Descriptors,
        pipes: Pipes,
        spools: Spools,
        endings: Endings,
        lost: LostTrees,
    ) -> None:
        self._trees = trees
        self._layers = layers
        self._descriptors = descriptors
        self._pipes = pipes
        self._spools = spools
        self._endings = endings
        self._lost = lost

    # ── Wardens ───────────────────────────────────────────────────────────────────────────────────

    def on_warden(self, tree: Tree) -> None:
        """Read a bounded number of words from a warden's socket, or its end."""
        for _ in range(WORDS_A_TURN):
            if tree.sock is None:
                return
            try:
                data, _ = receive(tree.sock, WORD_MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._descriptors.close_socket(tree)
                self._lost.warden_gone(tree)
                return
            self._on_warden_word(tree, ledger.decode(data))

    def _on_warden_word(self, tree: Tree, word: Word) -> None:
        match word["word"]:
            case "started":
                self.on_started(tree, word)
            case "exited":
                self._endings.exited(tree, word)
            case "remaining":
                self._on_remaining(tree, word)
            case "empty":
                self._lost.last_word(tree, word)
            case unknown:
                logger.warning("a warden sent an unknown word: {}", unknown)

    def on_started(self, tree: Tree, word: Word) -> None:
        """Record that the command runs, and read its output."""
        tree.phase = TreePhase.RUNNING
        given = tree.given
        copied, given.copied, typed, given.typed = given.copied, {}, given.typed, None
        given.close()
        spool = tree.spool.path if self._spools.file_max_bytes else None
        tree.start_report = ProcessStarted(tree.process_id, word["pid"], word["at"], spool)
        tell(tree.owner, tree.start_report)
        self._pipes.begin(tree, copied, typed)

    def _on_remaining(self, tree: Tree, word: Word) -> None:
        """Report the survivors: a receipt that is filed before the proof can name them."""
        if tree.last is None and tree.phase is not TreePhase.ENDED:
            tree.remaining = remaining(tree.process_id, word)
            tell(tree.owner, tree.remaining)

    # ── Zygotes ───────────────────────────────────────────────────────────────────────────────────

    def on_zygote_word(self, zygote: ZygoteHandle, word: Word) -> None:
        """Handle a zygote's word about a tree whose warden it forked."""
        tree = self._trees.by_id.get(word["process_id"])
        if tree is None or tree.phase is TreePhase.ENDED or tree.zygote is not zygote:
            return
        match word["word"]:
            case "not_forked":
                self._endings.never(tree, word["note"])
            case "gone":
                self._descriptors.close_socket(tree)
                self._lost.proven_gone(tree)
            case "remaining":
                self._on_remaining(tree, word)
            case "unborn":
                self._descriptors.close_socket(tree)
                self._lost.judge(tree)
            case "lost" if "zygote" not in self._layers:
                self._lost.judge(tree)
            case "forked" | "lost":
                # The warden reports by itself, and the end of its socket shows its loss.
                return
            case unknown:
                logger.warning("the zygote sent an unknown word: {}", unknown)

    def on_zygote_dead(self, zygote: ZygoteHandle) -> None:
        """Judge the lost trees of a zygote that has ended: it sends no more words about them."""
        for tree in list(self._trees.by_id.values()):
            if tree.zygote is zygote and tree.phase is TreePhase.LOST:
                self._lost.judge(tree)
