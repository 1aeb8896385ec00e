"""Retention: which sessions are kept for longer than they have to be. Off, unless a limit is set.

Only whole sessions go, and only those in which nothing runs, ends, waits or is parked: a thread is the fold of its
log, so no log is cut. Which are old is read from the store, off every mailbox; each is then asked to delete itself
*unless something has happened since*, so what is used in between stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from actors.messages import Old

OlderThan = Callable[[float, Iterable[float]], float]

OLD_MAX: Final = 500
"""Sessions that are deleted at a time; the rest waits for the next look."""


class Retention(Struct, frozen=True):
    """What is kept: sessions used in the last `kept_s` seconds, and the `sessions_max` last used. None: no limit."""

    kept_s: float | None = None
    sessions_max: int | None = None

    @property
    def limited(self) -> bool:
        """True if anything is ever too old."""
        return self.kept_s is not None or self.sessions_max is not None

    def old(self, settled: list[tuple[str, int, float]], stored: int, older_than: OlderThan) -> Old:
        """Say which of the settled sessions (name, last seq, its time; the longest unused first) are too old.

        Args:
            settled: sessions that could go.
            stored: how many sessions there are, with those that cannot.
            older_than: see `Ages`.
        """
        over = max(0, stored - self.sessions_max) if self.sessions_max is not None else 0
        before = -math.inf if self.kept_s is None else older_than(self.kept_s, (at for _, _, at in settled))
        found = ((session, seq) for place, (session, seq, at) in enumerate(settled) if place < over or at < before)
        return Old(tuple(itertools.islice(found, OLD_MAX)))
