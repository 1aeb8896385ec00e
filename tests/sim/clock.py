"""SimClock: time that moves when the world says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from pykka import ActorDeadError, ActorRef

EPOCH: Final = 1_750_000_000.0
"""Seconds since the epoch, UTC, at which the virtual time of every first world begins."""


class SimTimer:
    """A pending timer of virtual time."""

    __slots__ = ("_now", "action", "cancelled_at")

    def __init__(self, action: Callable[[], None], now: Callable[[], float]) -> None:
        self.action: Callable[[], None] | None = action
        self._now = now
        self.cancelled_at: float | None = None

    def cancel(self) -> None:
        """Take it back; nothing happens when it has fired."""
        if self.action is not None:
            self.cancelled_at = self._now()
        self.action = None


class SimClock:
    """`actors.ports.Clock` in virtual time.

    Args:
        now: seconds of virtual time at which it begins.

    `on_timer` is told of every timer of an actor: the actor, the message, the delay in seconds, and the timer.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self.on_timer: Callable[[Any, object, float, SimTimer], None] | None = None
        self._heap: list[tuple[float, int, SimTimer]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._now

    def wall(self) -> float:
        """Virtual seconds since the epoch."""
        return EPOCH + self._now

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> SimTimer:
        """Tell `ref` the message when `delay_s` virtual seconds have passed."""

        def tell() -> None:
            try:
                ref.tell(message)
            except ActorDeadError:
                return

        timer = self.call_at(self._now + delay_s, tell)
        if self.on_timer is not None:
            self.on_timer(ref._actor_weakref(), message, delay_s, timer)
        return timer

    def call_at(self, due: float, action: Callable[[], None]) -> SimTimer:
        """Call `action` at `due`: for the other simulated ports."""
        timer = SimTimer(action, self.monotonic)
        heapq.heappush(self._heap, (due, next(self._numbers), timer))
        return timer

    def next_due(self) -> float | None:
        """When the next timer is due; None where there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def elapse(self, seconds: float) -> None:
        """Let time pass; what becomes due by it stays to be fired."""
        self._now += seconds

    def fire(self) -> bool:
        """Fire the next timer, for which time moves on if it has to. False: there is none."""
        due = self.next_due()
        if due is None:
            return False
        _, _, timer = heapq.heappop(self._heap)
        self._now = max(self._now, due)
        action, timer.action = timer.action, None
        assert action is not None, "next_due leaves a timer that is pending on top"
        action()
        return True
