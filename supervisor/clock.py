"""The clock port: the machine's time, and one thread whose timers become messages.

The timers serve all sessions, so nothing may end their thread: it contains every error of a timer, and it waits in
steps, since the length of a wait is limited. A timer that was cancelled, or whose actor has ended, stays in the heap
until it is due, or until there are many: it holds its actor, and so all that this one had.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from typing import Any, Final

from msgspec import Struct
from pykka import ActorRef

from actors.kernel.actor import tell_contained
from actors.kernel.thread_role import serve_all

# A wait that is longer than the platform allows raises OverflowError.
WAIT_MAX_S: Final = 60.0
SWEEP_MIN: Final = 256


class _Timer:
    """A pending timer. It drops its references when it is cancelled or has fired."""

    __slots__ = ("due", "message", "ref")

    def __init__(self, due: float, ref: ActorRef[Any], message: Struct) -> None:
        self.due = due
        self.ref: ActorRef[Any] | None = ref
        self.message: Struct | None = message

    @property
    def counts(self) -> bool:
        """True if it may still have an effect."""
        ref = self.ref
        return ref is not None and ref.is_alive()

    def cancel(self) -> None:
        """Cancel it; no effect if it has fired."""
        self.ref = self.message = None


class SystemClock:
    """`actors.ports.Clock` on the machine's clocks. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._sweep_at = SWEEP_MIN
        self._closed = False
        # Not with the first timer: if no thread could be started at that moment, the timer would never fire.
        self._thread = threading.Thread(target=self._run, name="countermand-clock", daemon=True)
        self._thread.start()

    def monotonic(self) -> float:
        """Return seconds that never decrease; for durations."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch, UTC; for people."""
        return time.time()  # noqa: TID251  # this is the adapter

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> _Timer:
        """Tell `ref` the message after `delay_s` seconds, never if infinite; no effect if the actor is dead."""
        timer = _Timer(self.monotonic() + delay_s, ref, message)
        with self._changed:
            if self._closed or not math.isfinite(timer.due):
                return timer
            self._sweep()
            heapq.heappush(self._heap, (timer.due, next(self._numbers), timer))
            if self._heap[0][2] is timer:
                self._changed.notify()
        return timer

    def close(self, timeout: float | None = 5.0) -> None:
        """Fire no more timers, and join the thread."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _sweep(self) -> None:
        """Drop the timers that have no effect any more, each time the heap has doubled."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].counts]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._heap))

    def _run(self) -> None:
        serve_all()
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > self.monotonic()):
                    left = self._heap[0][0] - self.monotonic() if self._heap else WAIT_MAX_S
                    self._changed.wait(min(left, WAIT_MAX_S))
                if self._closed:
                    return
                _, _, timer = heapq.heappop(self._heap)
            ref, message = timer.ref, timer.message
            timer.cancel()
            if ref is not None:
                tell_contained(ref, message)
