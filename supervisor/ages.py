"""Ages by the wall clock, which decide what is deleted for its age and cannot be restored.

The wall clock may be wrong by years, in either direction: a machine without a battery begins in another year, and a
time server puts that right a minute later. So the clock is believed

- at the start, unless it is so far ahead of the newest of what is kept that all of it would be too old;
- else when nobody has set it for `SETTLE_S`, as the monotonic clock can tell.

Until then nothing is older than it was before. A clock that is set back is believed at once: it makes nothing older.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from actors.ports import Clock

SETTLE_S: Final = 3_600.0
"""For how long a clock that was set is not believed, at most: something that is kept for less settles in that time."""

SET_S: Final = 60.0
"""From what difference to the monotonic clock on the wall clock was set, in seconds: it may be slewed by less."""


class Ages:
    """Says what is too old. Used by one thread at a time; a clock that was set is noticed when it is asked.

    Args:
        clock: the time of day, and a time that only grows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.wall()
        # How far the wall clock is ahead of the monotonic one: at the start, as seen last, and as it is believed.
        self._first = self._offset = self._started - clock.monotonic()
        self._since = clock.monotonic()
        self._believed = -math.inf

    def older_than(self, kept_s: float, made: Iterable[float]) -> float:
        """Return the time (epoch seconds, UTC) before which whatever was made is older than `kept_s` seconds.

        Args:
            kept_s: for how long something is kept.
            made: when each of what is kept was made (epoch seconds, UTC).
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
