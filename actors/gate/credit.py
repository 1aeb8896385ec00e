"""Credit: limits what an agent may emit before it is in the log (law L14).

A run has credit for a number of events and of bytes. Emitting takes credit; a commit, or a refusal as stale, gives it
back. An agent without credit waits, and slows down only itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from actors.gate.pending import settle


class Credit:
    """The credit of one run. Every method may be called from any thread.

    Args:
        events: limit on the events that are not in the log yet.
        size: limit on their bytes. An event that is larger takes all of the credit.

    Attributes:
        on_given: called with the number of events whose credit was given back and with their bytes, on the thread that
            gives it; it may not block. For an agent that keeps account itself, elsewhere.
    """

    def __init__(self, events: int, size: int) -> None:
        # Reentrant: see pending.py.
        self._lock = threading.RLock()
        self._events = events
        self._size_max = size
        self._size = size
        self._waiters: deque[tuple[int, Future[None]]] = deque()
        self.on_given: Callable[[int, int], None] | None = None

    def take(self, size: int) -> Future[None] | None:
        """Take credit for one event of `size` bytes. Returns None if that was possible, else a future to wait on."""
        size = min(size, self._size_max)
        with self._lock:
            if not self._waiters and self._fits(size):
                self._spend(size)
                return None
        waiter: Future[None] = Future()
        with self._lock:
            self._waiters.append((size, waiter))
        # Credit may have come back in between.
        self._give([])
        return waiter

    def give(self, *sizes: int) -> None:
        """Give back the credit of events of these sizes, in bytes, and grant it to the waiters in order."""
        given = [min(size, self._size_max) for size in sizes]
        self._give(given)
        on_given = self.on_given
        if on_given is not None:
            on_given(len(given), sum(given))

    def give_up(self, size: int, waiter: Future[None]) -> None:
        """Remove a waiter that no longer waits for its `size` bytes. If it was granted them already, give them back."""
        if waiter.cancel() or waiter.exception() is not None:
            with self._lock:
                self._waiters = deque(other for other in self._waiters if other[1] is not waiter)
            self._give([])
        else:
            self._give([min(size, self._size_max)])

    def _give(self, sizes: list[int]) -> None:
        while True:
            with self._lock:
                self._events += len(sizes)
                self._size += sum(sizes)
                granted = self._grant()
            # A waiter that was cancelled after the lock was released gives its credit back at once.
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
