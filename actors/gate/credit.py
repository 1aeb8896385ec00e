"""Credit: how much an agent may have said that is not in the log yet (law L14).

A run has credit for a number of events and of bytes. What it emits takes some, what was committed (or
refused as stale) gives it back; an agent without credit waits, and slows nobody but itself.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from actors.gate.pending import settle


class Credit:
    """The credit of one run. Every method may be called from any thread.

    Args:
        events: how many events may be under way.
        size: how many bytes may be under way. One event larger than this takes all of it.
    """

    def __init__(self, events: int, size: int) -> None:
        # It may be taken again: see pending.py.
        self._lock = threading.RLock()
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
        with self._lock:
            self._waiters.append((size, waiter))
        # It may fit by now.
        self._give([])
        return waiter

    def give(self, size: int) -> None:
        """Give back what one event of `size` bytes took, and let those who wait go on, in order."""
        self._give([min(size, self._size_max)])

    def give_up(self, size: int, waiter: Future[None]) -> None:
        """The one that waited for `size` bytes goes away: its place is free, and what it was granted is given back."""
        if waiter.cancel() or waiter.exception() is not None:
            with self._lock:
                self._waiters = deque(other for other in self._waiters if other[1] is not waiter)
            self._give([])
        else:
            self.give(size)

    def _give(self, sizes: list[int]) -> None:
        while True:
            with self._lock:
                self._events += len(sizes)
                self._size += sum(sizes)
                granted = self._grant()
            # One that was cancelled between the lock and here gives back at once what it was granted.
            sizes = [size for size, waiter in granted if not settle(waiter, None)]
            if not sizes:
                return

    def _grant(self) -> list[tuple[int, Future[None]]]:
        granted: list[tuple[int, Future[None]]] = []
        while self._waiters:
            size, waiter = self._waiters[0]
            if not waiter.done():
                if not self._fits(size):
                    break
                self._spend(size)
                granted.append((size, waiter))
            self._waiters.popleft()
        return granted

    def _fits(self, size: int) -> bool:
        return self._events > 0 and self._size >= size

    def _spend(self, size: int) -> None:
        self._events -= 1
        self._size -= size
