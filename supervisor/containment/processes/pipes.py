"""The pipes of trees: read, paused while the disk is behind, and drained after the exit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from actors.messages import ProcessOutput
from supervisor.containment.output import STREAMS
from supervisor.containment.processes.copies import Copy
from supervisor.containment.processes.keyboard import Keyboard
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
        self._copies: set[Copy] = set()

    def begin(self, tree: Tree, copied: Mapping[str, int], typed: int | None) -> None:
        """Read all pipes of a tree from now on.

        `copied`: by stream, the ends of pipes into which it is copied. `typed`: the end of what is typed on its
        terminal. They are closed from here on.
        """
        for stream, fd in copied.items():
            room, closed = partial(self._go_on, tree, stream), partial(self._forget_copy, tree, stream)
            copy = tree.copies[stream] = Copy(self._reactor, fd, room, closed)
            self._copies.add(copy)
        if typed is not None:
            tree.keyboard = Keyboard(self._reactor, typed, tree.pipes[STREAMS[0]], partial(self._forget_keyboard, tree))
        self.read(tree)

    def read(self, tree: Tree) -> None:
        """Read the pipes of a tree, but for those whose copy is behind."""
        for stream, fd in tree.pipes.items():
            if stream not in tree.waiting:
                self._reactor.read(fd, partial(self._on_pipe, tree, stream, fd))

    def end_copies(self, tree: Tree) -> None:
        """No output follows: what the readers do not have yet is still copied."""
        for copy in list(tree.copies.values()):
            copy.end()
        if tree.keyboard is not None:
            tree.keyboard.close()

    def close_copies(self) -> None:
        """Close all copies: the daemon ends."""
        for copy in list(self._copies):
            copy.close()

    def resume(self, tree: Tree) -> None:
        """Read again after a pause: the disk has caught up."""
        if tree.paused:
            tree.paused = False
            self.read(tree)

    def drain(self, tree: Tree) -> None:
        """Read the rest of the pipes after the exit, without a pause, even if the disk is behind."""
        for stream, fd in list(tree.pipes.items()):
            for _ in range(DRAIN_READS):
                copy = tree.copies.get(stream)
                if (copy is not None and copy.full) or not self._read(tree, stream, fd):
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
        elif stream in tree.pipes and stream in tree.copies and tree.copies[stream].behind:
            # Let the command wait until its reader has caught up.
            tree.waiting.add(stream)
            self._reactor.unread(fd)
        # Somebody waits for what is copied.
        return taken >= MUCH_BYTES or stream in tree.copies

    def _go_on(self, tree: Tree, stream: str) -> None:
        """Read a stream again: its copy is not behind any more."""
        if stream in tree.waiting:
            tree.waiting.discard(stream)
            if stream in tree.pipes and not tree.paused:
                fd = tree.pipes[stream]
                self._reactor.read(fd, partial(self._on_pipe, tree, stream, fd))

    @staticmethod
    def _forget_keyboard(tree: Tree) -> None:
        tree.keyboard = None

    def _forget_copy(self, tree: Tree, stream: str) -> None:
        self._copies.discard(tree.copies.pop(stream))

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
            if tree.keyboard is not None:
                tree.keyboard.close()
        self.report(tree)
        copy = tree.copies.get(stream)
        if copy is not None and data:
            copy.feed(data)
        elif copy is not None:
            copy.end()
        return len(data)
