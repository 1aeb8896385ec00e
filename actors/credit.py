"""Credit: how much an agent may have said that is not in the log yet (law L14).

A run has credit for a number of events and of bytes. What it emits takes some, what was committed (or
refused as stale) gives it back; an agent without credit waits, and slows nobody but itself.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError


class Credit:
    """The credit of one run. Every method may be called from any thread.

    Args:
        events: how many events may be under way.
        size: how many bytes may be under way. One event larger than this takes all of it.
    """

    def __init__(self, events: int, size: int) -> None:
        self._lock = threading.Lock()
        self._events = events
        self._size_max = size
        self._size = size
        self._waiters: deque[tuple[int, Future[None]]] = deque()

    def take(self, size: int) -> Future[None] | None:
        """Take credit for one event of `size` bytes; None: taken. Else a future that is done when it is."""
        size = min(size, self._size_max)
        with self._lock:
            if not self._waiters and self._fits(size):
                self._spend(size)
                return None
            waiter: Future[None] = Future()
            self._waiters.append((size, waiter))
            return waiter

    def give(self, size: int) -> None:
        """Give back what one event of `size` bytes took, and let those who wait go on, in order."""
        granted: list[Future[None]] = []
        with self._lock:
            self._events += 1
            self._size += min(size, self._size_max)
            while self._waiters:
                wanted, waiter = self._waiters[0]
                if waiter.done():
                    self._waiters.popleft()
                    continue
                if not self._fits(wanted):
                    break
                self._waiters.popleft()
                self._spend(wanted)
                granted.append(waiter)
        for waiter in granted:
            try:
                waiter.set_result(None)
            except InvalidStateError:
                # It was cancelled between the lock and here: a cancelled run needs no credit back.
                continue

    def _fits(self, size: int) -> bool:
        return self._events > 0 and self._size >= size

    def _spend(self, size: int) -> None:
        self._events -= 1
        self._size -= size
