"""Copies: output that is logged, and that somebody also reads from a pipe.

A copy never waits. What does not fit into the pipe is held, and the stream is not read meanwhile: so a slow reader
slows its own command, through the command's pipe. Only after the exit of the command is the rest of its output read at
once, up to HELD_MAX_BYTES. A reader that has closed its end gets nothing more, and the log goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.containment.reactor import Reactor

HELD_MAX_BYTES = 1_048_576
"""While more than this is held for a reader, its stream is not read, not even after the exit."""


class Copy:
    """The copy of one stream. Reactor thread only.

    Args:
        fd: the write end of the reader's pipe; it belongs to this object now.
        on_room: called when everything that was held has been written, or is not wanted any more.
        on_closed: called once, when it is closed.
    """

    def __init__(self, reactor: Reactor, fd: int, on_room: Callable[[], None], on_closed: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self._reactor = reactor
        self._fd: int | None = fd
        self._held = bytearray()
        self._watched = False
        self._ended = False
        self._on_room = on_room
        self._on_closed = on_closed

    @property
    def behind(self) -> bool:
        """True while something is held."""
        return bool(self._held)

    @property
    def full(self) -> bool:
        """True while more than HELD_MAX_BYTES are held."""
        return len(self._held) > HELD_MAX_BYTES

    def feed(self, data: bytes) -> None:
        """Copy some bytes."""
        if self._fd is not None:
            self._held += data
            self._write()

    def end(self) -> None:
        """No byte follows: close it when the reader has room for what is held. May be called again."""
        self._ended = True
        if self._fd is not None and not self._held:
            self.close()

    def close(self) -> None:
        """Close it now. May be called again."""
        if self._fd is None:
            return
        self._unwatch()
        os.close(self._fd)
        self._fd = None
        self._held.clear()
        self._on_closed()

    def _write(self) -> None:
        assert self._fd is not None, "a closed copy is not watched"
        try:
            while self._held:
                del self._held[: os.write(self._fd, self._held)]
        except BlockingIOError:
            if not self._watched:
                self._watched = True
                self._reactor.watch(self._fd, self._write, writable=True)
            return
        except OSError:
            # Its reader has closed the pipe.
            self.close()
        else:
            self._unwatch()
            if self._ended:
                self.close()
        # Whoever wrote: a read behind the exit may be quicker than the word that there is room.
        self._on_room()

    def _unwatch(self) -> None:
        if self._watched and self._fd is not None:
            self._watched = False
            self._reactor.unwatch(self._fd)
