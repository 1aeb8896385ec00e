"""The search for what a tree without a warden left, on a thread aside."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from loguru import logger

from supervisor.containment import orphans
from supervisor.containment.guard import ledger
from supervisor.containment.orphans import Leftover

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.tree import TreeTable
    from supervisor.containment.reactor import Reactor

SEARCH_S = 1.0
"""After so long what could not be ended is tried again."""


class Search:
    """Searches, judges what was found, and goes on where a cgroup can prove an end later. Reactor thread only.

    Args:
        trees: says whether the daemon is closing.
        boot: the id of this boot.
        layers: those that hold.
        give_up_s: for so long a search goes on after its tree was reported as not proven gone.
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

    def leftover(self, process_id: str, why: str, words: list[Word]) -> Leftover:
        """How to know what the tree of a ledger has left, as far as the layers allow it."""
        sent, started, spawning = (ledger.said(words, word) or {} for word in ("sent", "started", "spawning"))
        by_marker = "marker" in self._layers and sent.get("boot") == self._boot
        keeper = spawning.get("keeper")
        return Leftover(
            process_id,
            why,
            marker=sent.get("marker", "") if by_marker else None,
            pid=started.get("pid"),
            start_ticks=started.get("start_ticks"),
            cgroup=spawning.get("cgroup") if "cgroup" in self._layers else None,
            keeper=(keeper["pid"], keeper["start_ticks"]) if keeper and sent.get("boot") == self._boot else None,
        )

    def end(self, leftover: Leftover, then: Callable[[], None]) -> None:
        """Find and kill it, on a thread aside; then call `then` here."""
        self.aside(lambda: orphans.end(leftover), then)

    def verdict(self, word: Word, leftover: Leftover) -> Word:
        """The last word on a tree that was searched for, from what its ledger says and what was found."""
        # The kernel has killed every process of a namespace that has ended.
        seen_ending = "sigkill" if leftover.command_killed or not leftover.outlived else "abandoned"
        return {
            **word,
            "word": "swept",
            "how": word["how"] or seen_ending,
            "reaped": word["reaped"] + len(leftover.killed),
            "note": leftover.note,
            "proven": leftover.proven,
            "at": self._clock.wall(),
        }

    def go_on(self, leftover: Leftover, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        """Go on after a tree was reported as not proven gone, where its cgroup can prove it later; then call `then`.

        A process in state D cannot be killed now, and dies when its wait is over. `wanted`: an owner still asks.
        """
        until = self._clock.monotonic() + self._give_up_s

        def again() -> None:
            if leftover.emptied and wanted():
                then()
            elif (
                leftover.cgroup is not None
                and os.path.isdir(leftover.cgroup)
                and wanted()
                and not self._trees.closing
                and self._clock.monotonic() < until
            ):
                self._reactor.later(SEARCH_S, lambda: self.end(leftover, again))

        again()

    def aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do what may take a while on a thread aside, and then call `then` here."""

        def run() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001  # what was not found is not claimed
                logger.exception("the search for what a tree left has failed")
            self._reactor.post(then)

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name="countermand-leftovers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # A tree at its limit of threads, for one. What is searched for is not proven gone before.
            logger.warning("a thread to search for what a tree left could not be started, and is later: {}", error)
            self._reactor.later(SEARCH_S, lambda: self.aside(work, then))
            return
        self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait for each search under way, for at most so many seconds. Not from the reactor's thread."""
        for thread in self._threads:
            thread.join(timeout_s)
