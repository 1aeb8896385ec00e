"""Signals as things that the main thread reads.

A handler runs between any two lines of the main thread, also while that holds a lock: so it does nothing. That it
is there makes the interpreter write the signal's number to a socket, and that is read where there is time for it.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from types import FrameType
from typing import Any, Final, Self

WAKE: Final = 0
"""Read after `wake`; no signal has this number."""


class Signals:
    """Takes SIGINT, SIGTERM and SIGHUP in a `with`; main thread only, except for `wake`.

    A SIGHUP that is ignored stays ignored, as under nohup.
    """

    TAKEN: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._previous_fd = -1

    def __enter__(self) -> Self:
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self.TAKEN:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the number of the next signal, or WAKE; None after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with contextlib.suppress(BlockingIOError):
                return self._reader.recv(1)[0]
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            select.select([self._reader], [], [], left)

    def wake(self) -> None:
        """Have `wait` return WAKE. Any thread. A full socket already wakes it."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([WAKE]))


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing; see the head of this file."""
