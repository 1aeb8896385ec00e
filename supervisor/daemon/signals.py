"""Signals as things that the main thread reads.

A handler runs between any two lines of the main thread, also while that holds a lock: so it notes the number in a
deque, which takes none, and does nothing else. That it is there also makes the interpreter write a byte to a socket,
from C and at once, which wakes whoever waits there.

The byte is no more than that. The socket takes fewer than three hundred of them while nobody reads, and what comes then
is dropped; the note is not. What is noted has a bound: a reload that is asked for is asked for once, and of each signal
that ends the daemon three say all.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

WAKE: Final = 0
"""Read after `wake`; no signal has this number."""
ENDS_MAX: Final = 3


class Signals:
    """Takes SIGINT, SIGTERM and SIGHUP in a `with`; main thread only, except for `wake`.

    A SIGHUP that is ignored stays ignored, as under nohup, and a SIGINT too: a shell that has no jobs starts what is to
    run in the background so. Whoever has started us may have blocked them all, which an exec does not undo: in here
    they are not.
    """

    TAKEN: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._noted: deque[int] = deque()
        self._woken = False
        self.on_child: Callable[[], object] | None = None
        """Called by `wait` when a child has ended."""
        self._before: dict[signal.Signals, Any] = {}
        self._previous_fd = -1

    def __enter__(self) -> Self:
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self.TAKEN:
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._note)
        # Behind the handlers: what is pending comes now.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the number of the next signal, or WAKE; None after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Emptied before the look: what comes after it writes a byte anew.
            with contextlib.suppress(BlockingIOError):
                while self._reader.recv(4096):
                    continue
            if self._noted:
                number = self._noted.popleft()
                if number != signal.SIGCHLD:
                    return number
                if self.on_child is not None:
                    self.on_child()
                continue
            if self._woken:
                self._woken = False
                return WAKE
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            select.select([self._reader], [], [], left)

    def wake(self) -> None:
        """Have `wait` return WAKE. Any thread. A full socket already wakes it."""
        self._woken = True
        with contextlib.suppress(OSError):
            self._writer.send(bytes([WAKE]))

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as the interpreter calls it
        """Note a signal; see the head of this file."""
        if self._noted.count(number) < (1 if number in (signal.SIGHUP, signal.SIGCHLD) else ENDS_MAX):
            self._noted.append(number)
