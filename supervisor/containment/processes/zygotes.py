"""The zygote that spawns, and older ones, which are needed while their wardens live: they inherit the orphans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from loguru import logger

from supervisor.containment.zygote_handle import ZygoteHandle

if TYPE_CHECKING:
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.tree import TreeTable
    from supervisor.containment.processes.warden_dir import WardenDir
    from supervisor.containment.reactor import Reactor


class Zygotes:
    """All zygotes of a daemon that have not ended. Reactor thread only, but for `none`.

    Args:
        environment: the whole environment of a zygote.
        layers: the active ones.
        on_word: called with each word of a zygote.
        on_dead: called once for each zygote that has ended, after its last word.
    """

    def __init__(
        self,
        reactor: Reactor,
        trees: TreeTable,
        warden_dir: WardenDir,
        environment: Mapping[str, str],
        layers: Collection[str],
        on_word: Callable[[ZygoteHandle, Word], None],
        on_dead: Callable[[ZygoteHandle], None],
    ) -> None:
        self._reactor = reactor
        self._trees = trees
        self._warden_dir = warden_dir
        self._environment = environment
        self._layers = sorted(layers)
        self._on_word = on_word
        self._on_dead = on_dead
        self._all: set[ZygoteHandle] = set()
        self.current: ZygoteHandle | None = None
        self.none = threading.Event()
        """Set when the daemon is closing and every zygote has ended. Any thread may wait for it."""

    def warm_up(self) -> None:
        """Start a zygote ahead of the first spawn."""
        try:
            self.living()
        except OSError as error:
            logger.warning("no zygote yet, the next spawn tries again: {}", error)

    def living(self) -> ZygoteHandle:
        """Return the zygote that spawns, after starting one if there is none. Raises OSError."""
        if self.current is None or self.current.dead:
            settings: Word = {"word": "settings", "layers": self._layers, "cgroup": self._warden_dir.cgroup}
            self.current = ZygoteHandle(self._reactor, self._environment, settings, self._on_word, self._dead)
            self._all.add(self.current)
        return self.current

    def give_up_current(self) -> None:
        """Have the next spawn start another zygote."""
        self.current = None

    def end_all(self) -> None:
        """Ask all to end."""
        for zygote in list(self._all):
            zygote.close()
        if not self._all:
            self.none.set()

    def kill_all(self) -> None:
        """Kill those that have not ended."""
        for zygote in list(self._all):
            zygote.kill()

    def _dead(self, zygote: ZygoteHandle) -> None:
        self._all.discard(zygote)
        if not self._trees.closing:
            logger.warning("the zygote (pid {}) has ended; the next spawn starts another", zygote.pid)
        if self.current is zygote:
            self.current = None
        self._on_dead(zygote)
        if not self._all and self._trees.closing:
            self.none.set()
