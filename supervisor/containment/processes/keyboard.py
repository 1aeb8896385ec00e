"""The keyboard of a terminal: what code writes into a pipe is typed on the terminal of its command.

It never waits, and holds one read at most. While the terminal takes no more, because its command does not read, the
pipe is not read either, and the writer waits for that. The end of the pipe is typed too, as the terminal's own
character for it: twice after the beginning of a line, since the first one only hands that over.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.containment.reactor import Reactor

READ_BYTES = 4096
LOCAL_FLAGS, CHARACTERS = 3, 6


class Keyboard:
    """Types on one terminal. Reactor thread only. If it cannot be made, it is closed.

    Args:
        fd: the read end of the writer's pipe; it belongs to this object now.
        terminal: the daemon's side of the terminal, non-blocking; it is copied.
        on_closed: called once, when it is closed.
    """

    def __init__(self, reactor: Reactor, fd: int, terminal: int, on_closed: Callable[[], None]) -> None:
        self._reactor = reactor
        self._fd: int | None = fd
        self._terminal: int | None = None
        self._held = b""
        self._line_begun = False
        self._ended = False
        self._on_closed = on_closed
        os.set_blocking(fd, False)
        try:
            self._terminal = os.dup(terminal)
        except OSError:
            self.close()
            return
        reactor.watch(fd, self._read)

    def close(self) -> None:
        """Type nothing more: its writer gets an error. May be called again."""
        if self._fd is None:
            return
        for fd in (self._fd, self._terminal):
            if fd is not None:
                self._reactor.unwatch(fd)
                os.close(fd)
        self._fd = self._terminal = None
        self._on_closed()

    def _read(self) -> None:
        assert self._fd is not None, "a closed one is not watched"
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._line_begun = not data.endswith((b"\n", b"\r"))
        else:
            self._ended = True
            data = self._end_of_input()
        self._held = data
        self._reactor.unwatch(self._fd)
        self._write()

    def _write(self) -> None:
        assert self._fd is not None, "a closed one is not watched"
        assert self._terminal is not None, "it was opened with the pipe"
        try:
            while self._held:
                self._held = self._held[os.write(self._terminal, self._held) :]
        except BlockingIOError:
            self._reactor.unwatch(self._terminal)
            self._reactor.watch(self._terminal, self._write, writable=True)
            return
        except OSError:
            # It was hung up.
            self.close()
            return
        if self._ended:
            self.close()
            return
        self._reactor.unwatch(self._terminal)
        self._reactor.watch(self._fd, self._read)

    def _end_of_input(self) -> bytes:
        """Return what ends the input of a command that reads lines; another one has no end of input."""
        assert self._terminal is not None, "it was opened with the pipe"
        try:
            modes = termios.tcgetattr(self._terminal)
        except termios.error:
            return b""
        if not modes[LOCAL_FLAGS] & termios.ICANON:
            return b""
        end: bytes = modes[CHARACTERS][termios.VEOF]
        return end * 2 if self._line_begun else end
