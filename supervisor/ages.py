"""Ages by the wall clock. They decide what is deleted, so a wrong clock would lose data.

The wall clock may be wrong by years in either direction: a machine without a battery starts in another year, and a time
server corrects that a minute later. So the clock is trusted

- at the start, unless it is so far ahead of the newest item that every item would be too old;
- else once it has not been set for `SETTLE_S`, by comparison with the monotonic clock.

Until then nothing becomes older. A clock that is set back is trusted at once, since that makes nothing older.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from actors.ports import Clock

SETTLE_S: Final = 3_600.0
"""Seconds until a clock that was set is trusted. Items that are kept for less time use that time instead."""

SET_S: Final = 60.0
"""A difference to the monotonic clock of more seconds means that the wall clock was set; it may be slewed by less."""


class Ages:
    """Decides what is too old. Used by one thread at a time. A clock that was set is noticed at the next call.

    Args:
        clock: gives the wall clock and the monotonic clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.wall()
        # How far the wall clock is ahead of the monotonic one: at the start, when last seen, and as trusted.
        self._first = self._offset = self._started - clock.monotonic()
        self._since = clock.monotonic()
        self._believed = -math.inf

    def older_than(self, kept_s: float, made: Iterable[float]) -> float:
        """Return the time (epoch seconds, UTC) such that items made before it are older than `kept_s` seconds.

        Args:
            kept_s: how long an item is kept.
            made: when each item was made (epoch seconds, UTC).
        """
        now = self._clock.monotonic()
        offset = self._clock.wall() - now
        if abs(offset - self._offset) > SET_S:
            self._offset, self._since = offset, now
        if now - self._since >= min(kept_s, SETTLE_S):
            self._believed = offset
        elif self._believed == -math.inf:
            newest = max((at for at in made if at < self._started), default=self._started)
            if newest >= self._started - kept_s:
                self._believed = self._first
        return min(offset, self._believed) + now - kept_s
