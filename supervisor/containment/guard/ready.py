"""What a warden makes ready before it has a tree. Standard library only: the zygote loads this file."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.guard.namespaces import Namespace
from supervisor.containment.guard.seed import Seed, rehearse
from supervisor.containment.guard.unix import go_first, session_goes_first, wake_on_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]


class Ready:
    """What a warden can make ready before it has a tree: its session, its group, its wake-up pipe, its seed."""

    def __init__(self, layers: frozenset[str], base: str | None) -> None:
        os.setsid()
        go_first()
        session_goes_first()
        self.layers = layers
        me, heir = procfs.stat(os.getpid()), procfs.stat(os.getppid())
        self.word: Word = {
            "word": "warden",
            "pid": os.getpid(),
            "start_ticks": me.start_ticks if me is not None else None,
            "zygote": {"pid": heir.pid, "start_ticks": heir.start_ticks} if heir is not None else None,
            "at": time.time(),
        }
        self.wake = wake_on_child()
        self.group = cgroups.create_tree(base) if base is not None else None
        self.namespace = Namespace() if "namespace" in layers else None
        self.seed: Seed | None = None
        # The request that comes tries again, and says why.
        with suppress(OSError):
            self.seed = Seed(self.group, self.namespace)
        rehearse()

    def prepare(self, fds: list[int]) -> None:
        """The command has come: let the seed prepare it. One that has ended before is forgotten, with its word."""
        if self.seed is None:
            return
        try:
            self.seed.prepare(fds)
        except ConnectionError:
            self.seed.dismiss()
            self.seed = None

    def dismiss(self) -> None:
        """No tree came."""
        if self.seed is not None:
            self.seed.dismiss()
        if self.namespace is not None:
            self.namespace.close()
        if self.group is not None:
            cgroups.remove(self.group)
