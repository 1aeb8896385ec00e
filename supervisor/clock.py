"""The clock port: the machine's time, and one thread whose timers become messages."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Any

from loguru import logger
from msgspec import Struct
from pykka import ActorDeadError, ActorRef


class _Timer:
    """A pending timer; what it holds is let go when it is cancelled or has fired."""

    __slots__ = ("due", "message", "ref")

    def __init__(self, due: float, ref: ActorRef[Any], message: Struct) -> None:
        self.due = due
        self.ref: ActorRef[Any] | None = ref
        self.message: Struct | None = message

    def cancel(self) -> None:
        """Take it back; nothing happens when it has fired."""
        self.ref = self.message = None


class SystemClock:
    """`actors.ports.Clock` on the machine's clocks. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def monotonic(self) -> float:
        """Seconds that only grow; for durations."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, UTC; for people."""
        return time.time()  # noqa: TID251  # this is the adapter

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> _Timer:
        """Tell `ref` the message after `delay_s` seconds; a dead actor makes it a no-op."""
        timer = _Timer(self.monotonic() + delay_s, ref, message)
        with self._changed:
            if self._closed:
                return timer
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="countermand-clock", daemon=True)
                self._thread.start()
            heapq.heappush(self._heap, (timer.due, next(self._numbers), timer))
            if self._heap[0][2] is timer:
                self._changed.notify()
        return timer

    def close(self, timeout: float | None = 5.0) -> None:
        """Fire nothing any more, and join the thread."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > self.monotonic()):
                    left = self._heap[0][0] - self.monotonic() if self._heap else None
                    self._changed.wait(left)
                if self._closed:
                    return
                _, _, timer = heapq.heappop(self._heap)
            ref, message = timer.ref, timer.message
            timer.cancel()
            if ref is not None:
                try:
                    ref.tell(message)
                except ActorDeadError:
                    logger.trace("a timer for {}, which is gone", ref)
