"""Signals as an inbox: the main thread waits for them, or a thread hands them on.

A handler runs between any two lines of the main thread, even while that thread holds a lock. So the handler only
appends the number to a deque, which takes no lock. The interpreter also writes the number of each handled signal to a
socket, from C and at once.

`wait` is for a main thread that only waits (the daemon's). The byte on the socket merely wakes it: the socket holds
fewer than three hundred bytes and drops later ones, but the deque drops no signal that matters. The deque is bounded:
one SIGHUP asks for one reload, and three of a signal that ends the daemon are enough.

`hand_on` is for a main thread that waits elsewhere (the chat's waits for its queue). The kernel may deliver a signal to
any thread; the main thread, which alone runs handlers, then sleeps on. So another thread reads the numbers from the
socket, in the order in which the signals came.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

WAKE: Final = 0
"""Returned after `wake`; no signal has this number."""
ENDS_MAX: Final = 3


class Signals:
    """Receives SIGINT, SIGTERM and SIGHUP in a `with`. Main thread only, except for `wake`.

    An ignored SIGHUP stays ignored, as under nohup. So does an ignored SIGINT: a shell without job control starts its
    background commands with it ignored. The parent may have blocked signals, and an exec keeps them blocked; inside the
    `with` they are unblocked.

    Args:
        hand_on: called with the number of each signal, on a thread of its own; it must not block. None: the main thread
            calls `wait`.
    """

    TAKEN: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, hand_on: Callable[[int], object] | None = None) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(hand_on is not None)
        self._writer.setblocking(False)
        self._noted: deque[int] = deque()
        self._woken = False
        self.on_child: Callable[[], object] | None = None
        """Called by `wait` when a child has ended."""
        self._before: dict[signal.Signals, Any] = {}
        self._previous_fd = -1
        self._thread: threading.Thread | None = None
        if hand_on is not None:
            self._thread = threading.Thread(target=self._read, args=(hand_on,), name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self.TAKEN:
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        if self._thread is None:
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._note)
        else:
            self._thread.start()
        # After the handlers: pending signals are delivered now.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._writer.close()
        if self._thread is not None:
            # It hands on the numbers that are still in the socket, and ends.
            self._thread.join()
        self._reader.close()

    def _read(self, hand_on: Callable[[int], object]) -> None:
        while numbers := self._reader.recv(64):
            for number in numbers:
                hand_on(number)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the number of the next signal, or WAKE; None after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Emptied before the deque is checked: a later signal writes another byte.
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
        """Make `wait` return WAKE. Any thread. A full socket wakes it too."""
        self._woken = True
        with contextlib.suppress(OSError):
            self._writer.send(bytes([WAKE]))

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as the interpreter calls it
        """Record a signal; see the head of this file."""
        if self._noted.count(number) < (1 if number in (signal.SIGHUP, signal.SIGCHLD) else ENDS_MAX):
            self._noted.append(number)
