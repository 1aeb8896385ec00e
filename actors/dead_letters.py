"""Dead letters: reports that came too late. They are counted, and the last ones are kept in a bounded ring."""

from __future__ import annotations

import threading
from collections import Counter, deque

from msgspec import Struct

from actors.model import Address


class DeadLetter(Struct, frozen=True):
    """A report that came too late. `at` is epoch seconds, UTC; `why` is for people."""

    kind: str
    why: str
    address: Address | None
    at: float
    shown: str


class DeadLetters:
    """The dead letters of one supervisor. Every method may be called from any thread.

    Args:
        keep: how many letters the ring holds; the oldest is dropped first. Counts are never dropped.
    """

    def __init__(self, keep: int = 1000) -> None:
        # Reentrant: a signal handler may interrupt the main thread here, and ask for them too.
        self._lock = threading.RLock()
        self._ring: deque[DeadLetter] = deque(maxlen=keep)
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, why: str, address: Address | None, at: float, shown: object = "", count: int = 1) -> None:
        """Add one letter; `shown` is cut to 200 characters. `count`: how many reports it stands for."""
        letter = DeadLetter(kind, why, address, at, f"{shown!s:.200}")
        with self._lock:
            self._ring.append(letter)
            self._counts[kind] += count

    def recent(self) -> list[DeadLetter]:
        """Return the letters in the ring, oldest first."""
        with self._lock:
            return list(self._ring)

    def counts(self) -> dict[str, int]:
        """Return how many there were since the start, by kind."""
        with self._lock:
            return dict(self._counts)
