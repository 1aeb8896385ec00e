"""Credit: limits the output of a run that is not durable yet; and helpers for the futures of its waiters."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")


class Credit:
    """Limits the output of a run that is not durable yet. Each frame takes credit; the wire gives it back.

    Args:
        events: limit on the frames that are not durable.
        size: limit on their bytes. A frame that is larger takes all of it.
    """

    def __init__(self, events: int, size: int) -> None:
        self._lock = threading.RLock()
        self._events, self._size, self._size_max = events, size, size
        self._waiters: deque[tuple[int, Future[None]]] = deque()

    def take(self, size: int) -> Future[None] | None:
        """Take credit for a frame of `size` bytes. Returns None if there was enough, else a future to wait for."""
        size = min(size, self._size_max)
        waiter: Future[None] = Future()
        with self._lock:
            if not self._waiters and self._fits(size):
                self._spend(size)
                return None
            self._waiters.append((size, waiter))
        return waiter

    def give(self, events: int, size: int) -> None:
        """Give credit back, and grant it to the waiters in order."""
        while True:
            with self._lock:
                self._events += events
                self._size = min(self._size + size, self._size_max)
                granted = self._grant()
            # Waiters that no longer wait give it back.
            returned = [size for size, waiter in granted if not settle(waiter, None)]
            if not returned:
                return
            events, size = len(returned), sum(returned)

    def give_up(self, size: int, waiter: Future[None]) -> None:
        """Remove a waiter that no longer waits. If it was granted its credit already, give that back."""
        if not waiter.cancel() and waiter.exception() is None:
            self.give(1, min(size, self._size_max))
        else:
            with self._lock:
                self._waiters = deque(other for other in self._waiters if other[1] is not waiter)
            self.give(0, 0)

    def _grant(self) -> list[tuple[int, Future[None]]]:
        granted = []
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


def settle(future: Future[T], value: T) -> bool:
    """Resolve a future with a value. Returns False if it was done. Any thread."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def fail(future: Future[Any], error: BaseException) -> None:
    """Resolve a future with an error, unless it is done. Any thread."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
