"""Retention: which sessions are deleted for their age or their number. Off, unless a limit is set.

Only whole sessions are deleted, since a thread is the fold of its log, and only those in which nothing runs, ends,
waits or is parked. Old sessions are found by reading the store, outside of every mailbox. Each is then asked to delete
itself *unless something has happened since*, so a session that is used in between stays.
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
"""Sessions that are deleted at a time; the others wait for the next search."""


class Retention(Struct, frozen=True):
    """The limits: keep sessions used in the last `kept_s` seconds, and the `sessions_max` last used. None: no limit."""

    kept_s: float | None = None
    sessions_max: int | None = None

    @property
    def limited(self) -> bool:
        """True if there is a limit."""
        return self.kept_s is not None or self.sessions_max is not None

    def old(self, settled: list[tuple[str, int, float]], stored: int, older_than: OlderThan) -> Old:
        """Return which of the settled sessions are too old.

        Args:
            settled: sessions that may be deleted (name, last seq, its time), the longest unused first.
            stored: number of all sessions, including those that may not.
            older_than: see `Ages`.
        """
        over = max(0, stored - self.sessions_max) if self.sessions_max is not None else 0
        before = -math.inf if self.kept_s is None else older_than(self.kept_s, (at for _, _, at in settled))
        found = ((session, seq) for rank, (session, seq, at) in enumerate(settled) if rank < over or at < before)
        return Old(tuple(itertools.islice(found, OLD_MAX)))
