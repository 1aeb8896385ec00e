"""Dead letters: stale replies, counted and kept in a bounded ring, shown on request, never as output."""

from __future__ import annotations

import threading
from collections import Counter, deque

from msgspec import Struct

from actors.model import Address


class DeadLetter(Struct, frozen=True):
    """A reply that came too late. `at` is epoch seconds, UTC; `why` is for people."""

    kind: str
    why: str
    address: Address | None
    at: float
    shown: str


class DeadLetters:
    """The ring of one supervisor. Every method may be called from any thread.

    Args:
        keep: how many letters the ring holds; the oldest goes first. Counts are never dropped.
    """

    def __init__(self, keep: int = 1000) -> None:
        # A signal handler may ask for them while the main thread does.
        self._lock = threading.RLock()
        self._ring: deque[DeadLetter] = deque(maxlen=keep)
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, why: str, address: Address | None, at: float, shown: object = "") -> None:
        """Keep one letter; `shown` is cut to 200 characters."""
        letter = DeadLetter(kind, why, address, at, f"{shown!s:.200}")
        with self._lock:
            self._ring.append(letter)
            self._counts[kind] += 1

    def recent(self) -> list[DeadLetter]:
        """The letters in the ring, oldest first."""
        with self._lock:
            return list(self._ring)

    def counts(self) -> dict[str, int]:
        """How many there were, by kind, since the start."""
        with self._lock:
            return dict(self._counts)
