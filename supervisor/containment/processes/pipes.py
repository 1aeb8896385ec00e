"""The pipes of trees: read, paused while the disk is behind, and drained after the exit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from actors.messages import ProcessOutput
from supervisor.containment.processes.reports import tell
from supervisor.containment.readers import MUCH_BYTES

if TYPE_CHECKING:
    from supervisor.containment.processes.descriptors import Descriptors
    from supervisor.containment.processes.tree import Tree
    from supervisor.containment.reactor import Reactor

READ_MAX_BYTES = 65536
DRAIN_READS = 32


class Pipes:
    """Reads the pipes of trees. Reactor thread only.

    Args:
        on_drained: called when the command has exited and the last pipe is at its end.
    """

    def __init__(self, reactor: Reactor, descriptors: Descriptors, on_drained: Callable[[Tree], None]) -> None:
        self._reactor = reactor
        self._descriptors = descriptors
        self._on_drained = on_drained

    def read(self, tree: Tree) -> None:
        """Read all pipes of a tree from now on."""
        for stream, fd in tree.pipes.items():
            self._reactor.read(fd, partial(self._on_pipe, tree, stream, fd))

    def resume(self, tree: Tree) -> None:
        """Read again after a pause: the disk has caught up."""
        if tree.paused:
            tree.paused = False
            self.read(tree)

    def drain(self, tree: Tree) -> None:
        """Read the rest of the pipes after the exit, without a pause, even if the disk is behind."""
        for stream, fd in list(tree.pipes.items()):
            for _ in range(DRAIN_READS):
                if not self._read(tree, stream, fd):
                    break

    def read_now(self, tree: Tree) -> None:
        """Read what is in the pipes, however they are scheduled; see `actors.ports.Processes.read_output`."""
        self.drain(tree)
        if not tree.pipes and tree.exited is not None:
            self._on_drained(tree)

    def report(self, tree: Tree) -> None:
        """Report the output since the last report."""
        for piece in tree.output.take():
            tell(tree.owner, ProcessOutput(tree.process_id, piece.stream, piece.text, piece.marker))

    def _on_pipe(self, tree: Tree, stream: str, fd: int) -> bool:
        """Read a bounded amount; True if it was much."""
        taken = self._read(tree, stream, fd)
        if not tree.pipes and tree.exited is not None:
            self._on_drained(tree)
        elif tree.spool.full and not tree.paused:
            # Let the command wait until the disk has caught up.
            tree.paused = True
            for paused in tree.pipes.values():
                self._reactor.unread(paused)
        return taken >= MUCH_BYTES

    def _read(self, tree: Tree, stream: str, fd: int) -> int:
        """Read once; returns the number of bytes, 0 if there is none now or at the end."""
        try:
            data = os.read(fd, READ_MAX_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            # A terminal reports EIO when no process has it open any more.
            if error.errno != errno.EIO:
                raise
            data = b""
        if data:
            tree.output.feed(stream, data)
            tree.spool.feed(data)
        else:
            self._descriptors.close_pipe(tree, stream)
            tree.output.end(stream)
        self.report(tree)
        return len(data)
