"""Readers: schedules the reading of pipes, so that neither a flood nor many chatty trees monopolize the thread.

Theory of operation. A pipe is *eager* or *lazy*. An eager one wakes the thread as soon as it has data: one that was
silent, so that output after a silence is read at once, and one that brings MUCH_BYTES at a time, which is worth a
wake-up. One that brings little at a time is lazy. All lazy pipes are polled together once a tick, so two hundred
chatty trees cost one wake-up a tick and not one a line, and each read brings all output since the last.
The tick is `tick_s`, or longer (TICK_MAX_S at most) so that lazy ones take at most a SHARE of the time. After
EAGER_AFTER_TICKS without a byte a lazy one is eager again.

A turn serves at most SLICE of either kind, each read is bounded, and the kernel lists eager ones in rotation. So a
turn is short for any output, and a flood gets the same slice as any other pipe.

All of it belongs to the reactor's thread.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.ports import Clock

MUCH_BYTES = 4096
SLICE = 8
SHARE = 0.1
TICK_MAX_S = 0.1
EAGER_AFTER_TICKS = 8
ALL = 1 << 20


class Reader:
    """A pipe, and the call that reads from it; `call` is None once it is removed."""

    __slots__ = ("call", "fd", "lazy", "seen")

    def __init__(self, fd: int, call: Callable[[], bool]) -> None:
        self.fd = fd
        self.call: Callable[[], bool] | None = call
        self.lazy = False
        self.seen = 0


class Readers:
    """All pipes of a reactor. `fileno` is readable when an eager one has something."""

    def __init__(self, clock: Clock, tick_s: float) -> None:
        self._clock = clock
        self._tick_s = tick_s
        self._eager = select.epoll()
        self._lazy = select.epoll()
        self._lazy_count = 0
        self._readers: dict[int, Reader] = {}
        self._queue: deque[Reader] = deque()
        self._ticks = 0
        self._ticked_at = 0.0
        self._spent_s = 0.0

    def fileno(self) -> int:
        """The descriptor to poll, beside waiting for `wait_s`."""
        return self._eager.fileno()

    def add(self, fd: int, call: Callable[[], bool]) -> None:
        """Serve `fd`, a non-blocking descriptor, until `remove`: `call` reads, and returns True for MUCH_BYTES."""
        self._readers[fd] = Reader(fd, call)
        self._eager.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stop serving `fd`, before it is closed; no effect if it is not served."""
        reader = self._readers.pop(fd, None)
        if reader is None:
            return
        # It may still be in the queue, and the descriptor may be reused before its turn.
        reader.call = None
        (self._lazy if reader.lazy else self._eager).unregister(fd)
        self._lazy_count -= reader.lazy

    def wait_s(self) -> float | None:
        """Seconds until lazy pipes are due; None: not before an eager one has data."""
        if self._queue:
            return 0.0
        return max(0.0, self._tick_at - self._clock.monotonic()) if self._lazy_count else None

    def turn(self, contain: Callable[[Callable[[], bool]], bool | None], *, woken: bool) -> None:
        """Serve the next few pipes. `contain` runs a call and contains its errors; `woken`: `fileno` is readable."""
        if self._queue or self._lazy_count:
            began = self._clock.monotonic()
            if not self._queue and began >= self._tick_at:
                self._tick(began)
            for _ in range(min(SLICE, len(self._queue))):
                self._serve(self._queue.popleft(), contain)
            self._spent_s += self._clock.monotonic() - began
        if woken:
            ready = [self._readers[fd] for fd, _ in self._eager.poll(0, SLICE)]
            for reader in ready:
                self._serve(reader, contain)

    def close(self) -> None:
        """Close the descriptors."""
        self._eager.close()
        self._lazy.close()

    @property
    def _tick_at(self) -> float:
        return self._ticked_at + max(self._tick_s, min(TICK_MAX_S, self._spent_s / SHARE))

    def _tick(self, now: float) -> None:
        self._ticked_at, self._spent_s = now, 0.0
        self._ticks += 1
        self._queue.extend(self._readers[fd] for fd, _ in self._lazy.poll(0, ALL))
        if self._ticks % EAGER_AFTER_TICKS == 0:
            silent_since = self._ticks - EAGER_AFTER_TICKS
            for reader in [reader for reader in self._readers.values() if reader.lazy and reader.seen < silent_since]:
                self._move(reader, lazy=False)

    def _serve(self, reader: Reader, contain: Callable[[Callable[[], bool]], bool | None]) -> None:
        # It may have been removed meanwhile, or remove itself.
        if reader.call is None:
            return
        reader.seen = self._ticks
        lazy = not contain(reader.call)
        if self._readers.get(reader.fd) is reader and reader.lazy is not lazy:
            self._move(reader, lazy=lazy)

    def _move(self, reader: Reader, *, lazy: bool) -> None:
        here, there = (self._eager, self._lazy) if lazy else (self._lazy, self._eager)
        here.unregister(reader.fd)
        there.register(reader.fd, select.EPOLLIN)
        reader.lazy = lazy
        self._lazy_count += 1 if lazy else -1
