"""The reactor: one thread that waits for descriptors, timers and calls posted from other threads.

Everything that a callback touches belongs to this thread, so callbacks need no locks. In a turn of the loop
the watched descriptors come first (the sockets of wardens: exits, ends), then posted calls (spawns, kills),
timers, and last a few of the pipes (see `readers`), which are read a bounded amount each. So a flood of
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
from typing import TYPE_CHECKING, TypeVar

from loguru import logger

from actors.kernel.thread_role import serve_all
from supervisor.containment.readers import Readers

if TYPE_CHECKING:
    from actors.ports import Clock

Call = Callable[[], None]
T = TypeVar("T")
WAIT_MAX_S = 3600.0
"""The longest wait the selector accepts; a turn of the loop without an event changes nothing."""


class Alarm:
    """A pending timer of a reactor. Reactor thread only."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        """Cancel it; no effect if it has fired."""
        self.call = None


class Watch:
    """The call for a descriptor that is ready."""

    __slots__ = ("call", "fd")

    def __init__(self, fd: int, call: Call) -> None:
        self.fd = fd
        self.call = call


class Reactor:
    """One selector thread.

    `post`, `now` and `stop` may be called from any thread; the other methods from the reactor's own, or before `start`.

    Args:
        name: of the thread.
        clock: for the timers.
        tick_s: how often a pipe with little output is read; see `readers`.
    """

    def __init__(self, name: str, clock: Clock, tick_s: float = 0.01) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._readers = Readers(clock, tick_s)
        self._selector.register(self._readers.fileno(), selectors.EVENT_READ, None)
        self._posted: deque[Call] = deque()
        # Reentrant: a signal handler that closes may interrupt the main thread while it holds the lock.
        self._lock = threading.RLock()
        self._open = True
        self._stopping = False
        self._timers: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def post(self, call: Call) -> bool:
        """Run `call` soon on the reactor's thread, in the order posted. False: the reactor is closed."""
        with self._lock:
            if not self._open:
                return False
            self._posted.append(call)
            os.eventfd_write(self._wake, 1)
        return True

    def watch(self, fd: int, call: Call, *, writable: bool = False) -> None:
        """Run `call` whenever `fd` is readable (or `writable`), at once, until `unwatch`. For sockets with few data."""
        event = selectors.EVENT_WRITE if writable else selectors.EVENT_READ
        self._selector.register(fd, event, Watch(fd, call))

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed; no effect if it is not watched."""
        try:
            self._selector.unregister(fd)
        except KeyError:
            return

    def read(self, fd: int, call: Callable[[], bool]) -> None:
        """Run `call` when `fd`, which is non-blocking, is readable, after watched descriptors, until `unread`.

        `call` reads a bounded amount, and returns True if that was much; see `readers`.
        """
        self._readers.add(fd, call)

    def unread(self, fd: int) -> None:
        """Stop reading `fd`, before it is closed; no effect if it is not read."""
        self._readers.remove(fd)

    def now(self) -> float:
        """Return the time of its timers, in seconds."""
        return self._clock.monotonic()

    def later(self, delay_s: float, call: Call) -> Alarm:
        """Run `call` after `delay_s` seconds."""
        alarm = Alarm(call)
        heapq.heappush(self._timers, (self._clock.monotonic() + delay_s, next(self._order), alarm))
        return alarm

    def stop(self, timeout_s: float) -> bool:
        """Run the posted calls, end the thread, close; True if it ended within `timeout_s` seconds."""
        self.post(self._stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        serve_all()
        while not self._stopping:
            woken = False
            for key, _ in self._selector.select(self._timeout_s()):
                if key.data is not None:
                    self._call_watch(key.data)
                elif key.fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    woken = True
            for _ in range(len(self._posted)):
                self._contain(self._posted.popleft())
            self._fire()
            self._readers.turn(self._contain, woken=woken)
        with self._lock:
            self._open = False
        while self._posted:
            self._contain(self._posted.popleft())
        self._readers.close()
        self._selector.close()
        os.close(self._wake)

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if self._posted:
            return 0.0
        now = self._clock.monotonic()
        wait_s = self._readers.wait_s()
        if self._timers:
            timer_s = max(0.0, self._timers[0][0] - now)
            wait_s = timer_s if wait_s is None else min(wait_s, timer_s)
        return None if wait_s is None else min(WAIT_MAX_S, wait_s)

    def _fire(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._contain(call)

    def _call_watch(self, watch: Watch) -> None:
        """Run its call, unless an earlier callback of this turn has unwatched it, or the descriptor was reused."""
        try:
            key = self._selector.get_key(watch.fd)
        except KeyError:
            return
        if key.data is watch:
            self._contain(watch.call)

    @staticmethod
    def _contain(call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception:  # noqa: BLE001  # one failure must not end the thread of all
            logger.exception("a callback of the reactor {} failed", threading.current_thread().name)
            return None
