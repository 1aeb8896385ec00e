"""The search for the orphans of a tree without a warden, on a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from loguru import logger

from supervisor.containment import orphans
from supervisor.containment.guard import ledger
from supervisor.containment.orphans import OrphanTree

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.tree import TreeTable
    from supervisor.containment.reactor import Reactor

SEARCH_S = 1.0
"""After so long, ending orphans or starting a thread is tried again."""


class Search:
    """Searches, judges the result, and goes on if a cgroup can prove an end later. Reactor thread only.

    Args:
        trees: shows whether the daemon is closing.
        boot: the id of this boot.
        layers: the active ones.
        give_up_s: how long a search goes on after its tree was reported as not proven gone.
    """

    def __init__(
        self, reactor: Reactor, clock: Clock, trees: TreeTable, boot: str, layers: Collection[str], give_up_s: float
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._trees = trees
        self._boot = boot
        self._layers = layers
        self._give_up_s = give_up_s
        self._threads: list[threading.Thread] = []

    def orphan(self, process_id: str, why: str, words: list[Word]) -> OrphanTree:
        """The ways to find the orphans of a ledger's tree, as far as the layers allow them."""
        sent, started, spawning = (ledger.said(words, word) or {} for word in ("sent", "started", "spawning"))
        by_marker = "marker" in self._layers and sent.get("boot") == self._boot
        keeper = spawning.get("keeper")
        return OrphanTree(
            process_id,
            why,
            marker=sent.get("marker", "") if by_marker else None,
            pid=started.get("pid"),
            start_ticks=started.get("start_ticks"),
            cgroup=spawning.get("cgroup") if "cgroup" in self._layers else None,
            keeper=(keeper["pid"], keeper["start_ticks"]) if keeper and sent.get("boot") == self._boot else None,
        )

    def end(self, orphan: OrphanTree, then: Callable[[], None]) -> None:
        """Find and kill them on another thread; then call `then` on the reactor's thread."""
        self.aside(lambda: orphans.end(orphan), then)

    def verdict(self, word: Word, orphan: OrphanTree) -> Word:
        """The last word on a tree that was searched for, from its ledger and the result of the search."""
        # The kernel has killed every process of a namespace that has ended.
        seen_ending = "sigkill" if orphan.command_killed or not orphan.outlived else "abandoned"
        return {
            **word,
            "word": "swept",
            "how": word["how"] or seen_ending,
            "reaped": word["reaped"] + len(orphan.killed),
            "note": orphan.note,
            "proven": orphan.proven,
            "at": self._clock.wall(),
        }

    def go_on(self, orphan: OrphanTree, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        """Go on after a tree was reported as not proven gone, if its cgroup can prove it later; then call `then`.

        A process in state D cannot be killed now, and dies when its wait is over. `wanted`: an owner still waits.
        """
        until = self._clock.monotonic() + self._give_up_s

        def again() -> None:
            if orphan.emptied and wanted():
                then()
            elif (
                orphan.cgroup is not None
                and os.path.isdir(orphan.cgroup)
                and wanted()
                and not self._trees.closing
                and self._clock.monotonic() < until
            ):
                self._reactor.later(SEARCH_S, lambda: self.end(orphan, again))

        again()

    def aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do slow work on another thread, and then call `then` on the reactor's thread."""

        def run() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001  # a failed search proves nothing, and claims nothing
                logger.exception("the search for a tree's orphans has failed")
            self._reactor.post(then)

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name="countermand-orphans", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # At a limit of threads, for example. The tree is not proven gone until then.
            logger.warning("a thread to search for a tree's orphans could not be started; trying again: {}", error)
            self._reactor.later(SEARCH_S, lambda: self.aside(work, then))
            return
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait for the searches under way, at most `timeout_s` seconds for each. Not from the reactor's thread."""
        for thread in self._threads:
            thread.join(timeout_s)
