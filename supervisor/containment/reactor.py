"""The reactor: one thread that waits for descriptors, timers and calls posted from other threads.

Everything that a callback touches belongs to this thread, so callbacks need no locks. In a turn of the loop
the urgent descriptors come first (the sockets of wardens: exits, ends), then posted calls (spawns, kills),
timers, and last the ordinary descriptors (pipes), whose callbacks read a bounded amount each. So a flood of
output delays an exit or a kill by one bounded turn, never by the length of the flood.

A callback that raises is logged and costs its own event only.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from loguru import logger

if TYPE_CHECKING:
    from actors.ports import Clock

Call = Callable[[], None]
WAIT_MAX_S = 3600.0
"""The selector takes no longer wait; a turn of the loop without an event changes nothing."""


class Alarm:
    """A pending timer of a reactor. Reactor thread only."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        """Take it back; nothing happens when it has fired."""
        self.call = None


class Watch:
    """What to call when a descriptor is readable."""

    __slots__ = ("call", "fd", "urgent")

    def __init__(self, fd: int, call: Call, urgent: bool) -> None:
        self.fd = fd
        self.call = call
        self.urgent = urgent


class Reactor:
    """One selector thread.

    `post` may be called from any thread; `watch`, `unwatch` and `later` from the reactor's own, or before `start`.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._posted: deque[Call] = deque()
        self._lock = threading.Lock()
        self._open = True
        self._stopping = False
        self._timers: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def post(self, call: Call) -> bool:
        """Run `call` soon on the reactor's thread, in the order posted. False: it is closed, and nothing runs."""
        with self._lock:
            if not self._open:
                return False
            self._posted.append(call)
            os.eventfd_write(self._wake, 1)
        return True

    def watch(self, fd: int, call: Call, *, urgent: bool = False) -> None:
        """Run `call` whenever `fd` is readable, until `unwatch`."""
        self._selector.register(fd, selectors.EVENT_READ, Watch(fd, call, urgent))

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, before it is closed; also one that is not watched."""
        try:
            self._selector.unregister(fd)
        except KeyError:
            return

    def later(self, delay_s: float, call: Call) -> Alarm:
        """Run `call` after `delay_s` seconds."""
        alarm = Alarm(call)
        heapq.heappush(self._timers, (self._clock.monotonic() + delay_s, next(self._order), alarm))
        return alarm

    def stop(self, timeout_s: float) -> bool:
        """Run what was posted, end the thread, close; True when it ended within `timeout_s` seconds."""
        self.post(self._stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            events = self._selector.select(self._timeout_s())
            watches = [key.data for key, _ in events if key.data is not None]
            for watch in watches:
                if watch.urgent:
                    self._call_watch(watch)
            if len(events) != len(watches):
                os.eventfd_read(self._wake)
            for _ in range(len(self._posted)):
                self._contain(self._posted.popleft())
            self._fire()
            for watch in watches:
                if not watch.urgent:
                    self._call_watch(watch)
        with self._lock:
            self._open = False
        while self._posted:
            self._contain(self._posted.popleft())
        self._selector.close()
        os.close(self._wake)

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if self._posted:
            return 0.0
        if not self._timers:
            return None
        return min(WAIT_MAX_S, max(0.0, self._timers[0][0] - self._clock.monotonic()))

    def _fire(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._contain(call)

    def _call_watch(self, watch: Watch) -> None:
        """Call it, unless an earlier callback of this turn has unwatched it, or its number is somebody else's now."""
        try:
            key = self._selector.get_key(watch.fd)
        except KeyError:
            return
        if key.data is watch:
            self._contain(watch.call)

    def _contain(self, call: Call) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001  # one tree's failure must not end the thread of all
            logger.exception("a callback of the containment's reactor failed")
