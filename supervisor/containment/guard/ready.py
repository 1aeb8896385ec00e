"""What a warden prepares before it has a tree. Standard library only: the zygote loads this file."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.guard.namespaces import Namespace
from supervisor.containment.guard.preforked import Preforked, warm_up
from supervisor.containment.guard.unix import go_first, session_goes_first, wake_on_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]


class Ready:
    """What a warden prepares before it has a tree: session, group, namespace, wake-up pipe, preforked child."""

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
        self.preforked: Preforked | None = None
        # The warden tries again when a request comes, and reports the reason.
        with suppress(OSError):
            self.preforked = Preforked(self.group, self.namespace)
        warm_up()

    def prepare(self, fds: list[int]) -> None:
        """Let the preforked child prepare the command. If it has ended, forget it and its error text."""
        if self.preforked is None:
            return
        try:
            self.preforked.prepare(fds)
        except ConnectionError:
            self.preforked.dismiss()
            self.preforked = None

    def dismiss(self) -> None:
        """Undo it all: no tree came."""
        if self.preforked is not None:
            self.preforked.dismiss()
        if self.namespace is not None:
            self.namespace.close()
        if self.group is not None:
            cgroups.remove(self.group)
