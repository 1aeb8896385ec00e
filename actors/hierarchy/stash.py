"""Stash: requests that came while their session is being read. They are decided in order when it was read."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from actors.hierarchy.answers import is_full, unavailable, unknown
from actors.hierarchy.late_stops import LateStops
from actors.kernel.future import ReplyFuture
from actors.ports import Clock
from actors.requests import Inspect, OutsideRequest, Stop

STASH_MAX: Final = 10_000
"""How many requests may wait while the session is read."""


class Stash:
    """The requests of one session that wait for it to be read. Used in the turns of its actor only.

    Args:
        clock: tells when a request came.
        late_stops: bounds how long a Stop waits.
    """

    def __init__(self, clock: Clock, late_stops: LateStops) -> None:
        self._clock = clock
        self._late_stops = late_stops
        self.waiting: deque[tuple[OutsideRequest | Inspect, ReplyFuture[Any] | None]] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def is_full(self) -> bool:
        """True if no more than Stops are taken."""
        return len(self.waiting) >= STASH_MAX

    def add(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        """Let a request wait.

        Raises:
            StoreUnavailable: too many wait already.
        """
        count = len(self.waiting)
        if is_full(count, STASH_MAX, request):
            raise unavailable(f"the session is still being read, and {count} requests wait for that already", request)
        self._late_stops.begin_wait(request, self._clock.wall())
        self.waiting.append((request, reply))

    def add_inspect(self, inspect: Inspect, reply: ReplyFuture[Any] | None) -> None:
        """Let a request for the status wait."""
        self.waiting.append((inspect, reply))

    def take_all(self) -> deque[tuple[OutsideRequest | Inspect, ReplyFuture[Any] | None]]:
        """Take out all that waits."""
        taken, self.waiting = self.waiting, deque()
        return taken

    def answer_overdue(self, request_id: str) -> None:
        """A Stop has waited as long as it may: answer it. It stays, to be decided when the session was read."""
        for index, (request, reply) in enumerate(self.waiting):
            if isinstance(request, Stop) and request.id == request_id:
                self.waiting[index] = request, None
                self._late_stops.answer(request_id, unknown(request), reply)
