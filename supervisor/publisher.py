"""The event hub: committed events on their way to subscribers, who pull.

Theory of operation. The store is the queue. A subscription is a position in a session's log; it takes what is
behind that position, from a small ring of recent events where the ring reaches back far enough, else from the
store, and waits when there is nothing. So a slow subscriber holds no memory and slows nobody (law L14): it
falls out of the ring and reads the store, where all of it is (law L6).

Invariants, and the races they close:
  - Events are published after they are committed, so whoever has heard of an event finds it in the store.
  - A session's ring is without a gap: when what is published does not follow on what is there (a session that
    failed between commit and publish), the ring begins anew. A subscriber then sees that the log goes further
    than it is, finds that the ring does not reach back to it, and reads the store: no gap.
  - A position only grows, and only what is above it is delivered: no event twice.
  - A subscription is registered before its first read of the store. An event that is committed before that
    read is in what it reads; one that is published later moves `last_seq` above the position: no wake-up is
    lost.
  - What is published twice (a session that was restarted says it again) is below `last_seq` and ignored.

Ephemeral events carry the seq they came after. They are delivered when the position has reached it and before
it passes it, so one from before a fence is never shown after the fence; what does not fit a subscription's
small buffer is dropped, oldest first.

One lock guards rings and subscriptions; under it nothing is done but moving references. Threads wait on their
session's condition, coroutines on a future that is set through their loop: neither needs a thread of its own.
A subscription may be closed at any allocation, also of a thread that has the lock: a generator that reads one is closed
by the garbage collector. So the lock may be taken again, and `close` only marks, wakes, and changes no collection.
"""

from __future__ import annotations

import asyncio
import operator
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from loguru import logger

from actors.errors import Invalid, StoreUnavailable
from actors.model import Event
from actors.text import shown

RING_EVENTS: Final = 256
RING_BYTES: Final = 256 * 1024
"""Roughly how much text a ring holds; a single larger event is held alone."""
RINGS_MAX: Final = 1_000
"""Sessions whose recent events are kept though nobody listens; the one least recently heard of goes first."""
EPHEMERAL_MAX: Final = 256
PAGE: Final = 256
"""Events that a subscription takes at a time."""
PAGE_BYTES: Final = 1_048_576
"""Roughly how much text of a page it keeps; what is over is read again. A single larger event is kept alone."""

SEQ_MAX: Final = 2**63 - 1

T = TypeVar("T")


class EventSource(Protocol):
    """What the hub reads committed events from: the store's reader."""

    def events(self, session: str, after_seq: int, limit: int) -> list[Event]:
        """Return at most `limit` events with a `seq` above `after_seq`, in order."""


class _Channel:
    """What the hub knows of one session; guarded by the hub's lock, which `changed` shares."""

    __slots__ = ("changed", "erased", "last_seq", "pins", "ring", "subscriptions", "version", "weight")

    def __init__(self, lock: threading.RLock) -> None:
        self.changed = threading.Condition(lock)
        self.ring: deque[Event] = deque()
        self.weight = 0
        self.last_seq = 0
        # Up to here the log was deleted. Who listens may still be given it; who comes now is not, from memory neither.
        self.erased = 0
        self.version = 0
        self.pins = 0
        # Weak: a subscription that is dropped without being closed leaves nothing behind.
        self.subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    @property
    def pinned(self) -> bool:
        return self.pins > 0 or any(not one._closed for one in self.subscriptions)

    def add(self, event: Event) -> None:
        if event.seq <= self.last_seq:
            return
        if event.kind == "session.deleted":
            self.erased = event.seq - 1
        if event.seq != self.last_seq + 1:
            self.ring.clear()
            self.weight = 0
        self.last_seq = event.seq
        self.ring.append(event)
        self.weight += _weight(event)
        while len(self.ring) > RING_EVENTS or (self.weight > RING_BYTES and len(self.ring) > 1):
            self.weight -= _weight(self.ring.popleft())

    def behind(self, position: int) -> list[Event] | None:
        """What the ring holds behind a position; None where it does not reach back to it."""
        if not self.ring or self.ring[0].seq > position + 1:
            return None
        # The ring has no gap, so the place of a sequence number in it can be counted.
        start = position + 1 - self.ring[0].seq
        return [self.ring[place] for place in range(start, min(len(self.ring), start + PAGE))]


class EventHub:
    """`actors.ports.Publisher`, and the place where subscribers come.

    `publish` and `ephemeral` never block, do no I/O, and may be called from any thread, as may all methods.

    Args:
        store: where events are read that are not recent.
        rings_max: sessions without subscribers whose recent events are kept.
    """

    def __init__(self, store: EventSource, *, rings_max: int = RINGS_MAX) -> None:
        self._store = store
        self._rings_max = rings_max
        self._lock = threading.RLock()
        self._channels: OrderedDict[str, _Channel] = OrderedDict()
        self._closed = False
        self._taps: tuple[Callable[[str, Sequence[Event]], object], ...] = ()

    def tap(self, callback: Callable[[str, Sequence[Event]], object]) -> None:
        """Call back with the session and the events of each `publish`, on its thread: it must be quick.

        An event may be published twice, with the same `seq`. What the callback raises is logged.
        """
        self._taps = (*self._taps, callback)

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Make committed events of a session known, in the order of their `seq`."""
        if not events:
            return
        with self._lock:
            if self._closed:
                return
            channel = self._channel(session)
            for event in events:
                channel.add(event)
            self._notify(channel)
            self._drop_old_rings()
        for callback in self._taps:
            try:
                callback(session, events)
            except Exception:  # noqa: BLE001  # a listener's failure is its own
                logger.opt(exception=True).error("{} failed on an event", callback)

    def ephemeral(self, event: Event) -> None:
        """Show an event that is not stored to those subscribers of its session who asked for such."""
        with self._lock:
            channel = self._channels.get(event.session)
            if channel is None or self._closed or event.seq < channel.last_seq:
                # Nobody listens, or the log has gone on: what is late is not shown (law L1).
                return
            wanted = False
            for subscription in channel.subscriptions:
                if subscription._ephemeral is not None and not subscription._closed:
                    subscription._ephemeral.append(event)
                    wanted = True
            if wanted:
                self._notify(channel)

    def subscribe(
        self, session: str, from_seq: int = 0, *, ephemeral: bool = False, timeout: float | None = None
    ) -> Subscription:
        """Return the events of a session behind `from_seq`: those in the store first, then those to come.

        Args:
            session: the session's name; one that does not exist yet may be waited for.
            from_seq: the `seq` of the last event that the caller has; 0 for all.
            ephemeral: also give `typing` and `progress`.
            timeout: end after so many seconds in which there was nothing to give; None: never.

        Raises:
            Invalid: `from_seq` is no whole number of 64 bits, or `timeout` no number of seconds.
        """
        from_seq = _checked_seq(from_seq)
        check_timeout(timeout)
        with self._lock:
            channel = self._channel(session)
            from_seq = max(from_seq, channel.erased)
            subscription = Subscription(self, channel, session, from_seq, ephemeral, timeout)
            channel.subscriptions.add(subscription)
            self._drop_old_rings()
            return subscription

    def wait(self, session: str, predicate: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Return what `predicate` returns as soon as that is true; it is asked whenever the session speaks.

        The predicate is called on this thread, under no lock, so it may read the store. After `timeout`
        seconds, or when the hub closes, it is asked a last time and its answer returned as it is.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._pin(session) as channel:
            while True:
                with self._lock:
                    version = channel.version
                value = predicate()
                if value:
                    return value
                with self._lock:
                    while channel.version == version and not self._closed:
                        left = None if deadline is None else deadline - time.monotonic()
                        if left is not None and left <= 0:
                            break
                        channel.changed.wait(left)
                    over = channel.version == version
                if over:
                    return predicate()

    def close(self) -> None:
        """End every subscription, after what the ring and the store still give it. May be called twice."""
        with self._lock:
            self._closed = True
            for channel in self._channels.values():
                self._notify(channel)

    def _channel(self, session: str) -> _Channel:
        channel = self._channels.get(session)
        if channel is None:
            channel = self._channels[session] = _Channel(self._lock)
        else:
            self._channels.move_to_end(session)
        return channel

    @contextmanager
    def _pin(self, session: str) -> Iterator[_Channel]:
        with self._lock:
            channel = self._channel(session)
            channel.pins += 1
            self._drop_old_rings()
        try:
            yield channel
        finally:
            with self._lock:
                channel.pins -= 1

    def _notify(self, channel: _Channel) -> None:
        channel.version += 1
        channel.changed.notify_all()
        closed = False
        for subscription in channel.subscriptions:
            subscription._wake_loop()
            closed = closed or subscription._closed
        if closed:
            channel.subscriptions = weakref.WeakSet(one for one in channel.subscriptions if not one._closed)

    def _drop_old_rings(self) -> None:
        # A ring that somebody listens to is passed over and counts as fresh. Each call looks at two at most,
        # and adds one at most, so the number falls to the bound without any one publish paying for all.
        for _ in range(2):
            if len(self._channels) <= self._rings_max:
                return
            session, channel = next(iter(self._channels.items()))
            if channel.pinned:
                self._channels.move_to_end(session)
            else:
                del self._channels[session]


class Subscription:
    """The events of one session, from a position on. Iterate it, in a thread or in a coroutine.

    One consumer at a time; `close` may come from any thread and ends the iteration at once. Iterating raises
    StoreUnavailable where the store has to be read and cannot be; the same call may be tried again after
    that.
    """

    def __init__(
        self,
        hub: EventHub,
        channel: _Channel,
        session: str,
        from_seq: int,
        ephemeral: bool,
        timeout: float | None,
    ) -> None:
        self.session = session
        self._hub = hub
        self._channel = channel
        self._position = from_seq
        self._timeout = timeout
        self._taken: deque[Event] = deque()
        self._ephemeral: deque[Event] | None = deque(maxlen=EPHEMERAL_MAX) if ephemeral else None
        # Until the store has been read to its end once, what the hub has not heard of may be in it.
        self._behind_store = True
        self._closed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def position(self) -> int:
        """The `seq` of the last event that was given; subscribe from it to go on."""
        return self._position

    @property
    def over(self) -> bool:
        """True once it was closed, or the hub was: what ended by its `timeout` may be iterated on instead."""
        return self._over()

    def close(self) -> None:
        """End the iteration, wherever it is. May be called again, from any thread."""
        self._closed = True
        with self._hub._lock:
            self._channel.changed.notify_all()
            self._wake_loop()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        deadline = self._deadline()
        while True:
            with self._hub._lock:
                event = self._take()
                if event is not None:
                    return event
                if not self._must_read():
                    left = self._left(deadline)
                    if self._over() or (left is not None and left <= 0):
                        raise StopIteration
                    self._channel.changed.wait(left)
                    continue
                position = self._position
            page = self._read(position)
            if page is None:
                raise StopIteration
            self._took(page)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        deadline = self._deadline()
        loop = asyncio.get_running_loop()
        while True:
            woken: asyncio.Future[None] | None = None
            with self._hub._lock:
                event = self._take()
                if event is not None:
                    return event
                left = self._left(deadline)
                if not self._must_read():
                    if self._over() or (left is not None and left <= 0):
                        raise StopAsyncIteration
                    woken = loop.create_future()
                    self._waiter = (loop, woken)
                position = self._position
            if woken is not None:
                await asyncio.wait([woken], timeout=left)
                continue
            page = await asyncio.to_thread(self._read, position)
            if page is None:
                raise StopAsyncIteration
            self._took(page)

    # ── Under the hub's lock ──────────────────────────────────────────────────────────────────────

    def _take(self) -> Event | None:
        """Return the next event that can be given without the store."""
        if self._closed:
            return None
        if self._ephemeral and self._ephemeral[0].seq <= self._position:
            return self._ephemeral.popleft()
        if not self._taken:
            # The ring serves a newcomer too, before any read: what it gives follows on the position.
            self._taken.extend(self._channel.behind(self._position) or ())
        if not self._taken:
            return None
        event = self._taken.popleft()
        self._position = event.seq
        return event

    def _must_read(self) -> bool:
        if self._closed:
            return False
        return self._behind_store or self._channel.last_seq > self._position

    def _over(self) -> bool:
        return self._closed or self._hub._closed

    def _wake_loop(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        loop, woken = waiter
        try:
            loop.call_soon_threadsafe(_set, woken)
        except RuntimeError:
            # The loop was closed with its coroutines; there is nobody left to wake.
            return

    # ── Without the lock ──────────────────────────────────────────────────────────────────────────

    def _deadline(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    @staticmethod
    def _left(deadline: float | None) -> float | None:
        return None if deadline is None else deadline - time.monotonic()

    def _read(self, position: int) -> list[Event] | None:
        """Read a page of the store; None: it cannot be read and the hub is closed, so this is the end."""
        with self._hub._lock:
            last_seq = self._channel.last_seq
        try:
            page = self._hub._store.events(self.session, position, PAGE)
        except StoreUnavailable:
            if self._hub._closed:
                return None
            raise
        if not page and last_seq > position:
            raise StoreUnavailable(
                f"an event of session {self.session} was announced that the store does not hold",
                expected=f"events {position + 1} to {last_seq}",
                got="none",
                remedy="this is a defect: report it; subscribing again is safe",
            )
        return page

    def _took(self, page: list[Event]) -> None:
        kept = _light(page)
        with self._hub._lock:
            self._taken.extend(kept)
            if len(kept) == len(page) < PAGE:
                self._behind_store = False


def check_timeout(timeout: object) -> None:
    """Refuse what is no time to wait.

    Raises:
        Invalid: it is neither None nor a number of seconds that the platform can wait.
    """
    if timeout is None:
        return
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not timeout <= threading.TIMEOUT_MAX:  # type: ignore[operator]  # a number here
        raise Invalid(
            "this timeout cannot be right",
            expected="a number of seconds, or None to wait without an end",
            got=shown(timeout),
            remedy="give such as timeout=30",
        )


def _checked_seq(seq: object) -> int:
    try:
        number = operator.index(seq)  # type: ignore[arg-type]  # what it is not raises
    except TypeError:
        number = SEQ_MAX + 1
    if not -SEQ_MAX <= number <= SEQ_MAX:
        raise Invalid(
            "no event can have this seq",
            expected="a whole number: the seq of the last event that you have, or 0",
            got=shown(seq),
            remedy="give the seq of an event, or leave it out for all",
        )
    return number


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _light(page: list[Event]) -> list[Event]:
    """The head of a page that weighs at most PAGE_BYTES, and always its first event."""
    weight = 0
    for count, event in enumerate(page):
        weight += _weight(event)
        if weight > PAGE_BYTES and count > 0:
            return page[:count]
    return page


def _weight(event: Event) -> int:
    """About how many bytes an event holds: its texts, and a little for the rest."""
    return 256 + sum(len(value) for value in event.data.values() if isinstance(value, str))
