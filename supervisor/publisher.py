"""The event hub: brings committed events to subscribers, which pull.

Theory of operation. The store is the queue. A subscription is a position in a session's log. It takes the events after
that position from a small ring of recent events if the ring reaches back far enough, else from the store, and waits if
there are none. So a slow subscriber holds no memory and slows down no other (law L14): it falls out of the ring and
reads the store, which has every event (law L6).

Invariants, and the races they close:
  - Events are published after they are committed, so an event that was announced is in the store.
  - A session's ring has no gap. If an event does not follow the last one (the session failed between commit and
    publish), the ring is cleared first. A subscriber then sees that the log is ahead of its position, finds that the
    ring does not reach back to it, and reads the store: no event is missed.
  - A position only grows, and only events above it are delivered: no event comes twice.
  - A subscription is registered before its first read of the store. An event that is committed before that read is in
    its result; a later one moves `last_seq` above the position: no wake-up is lost.
  - An event that is published twice (by a restarted session) is not above `last_seq`, and is ignored.

Ephemeral events carry the seq of the last event before them. They are delivered once the position has reached that seq
and before it passes it, so one from before a fence is never shown after the fence. If a subscription's small buffer is
full, the oldest is dropped.

A publisher waits for no consumer. A consumer may be interrupted anywhere: by a signal handler that asks the very
session that publishes; and the garbage collector may close a generator that reads a subscription at any allocation. So
a consumer takes no lock. The only lock, a channel's, is for the publishers of one session, and only references are
moved under it. The state that they share with consumers changes in steps that the interpreter does not divide (adding
to a set or a deque, copying one, setting an attribute). Their order is right for a reader in between:
  - A consumer looks, and then waits for its bell; a publisher changes the state, and then rings. A bell that was rung
    stays rung until its owner notices, so a ring between the look and the wait is not missed. A coroutine adds its
    waker before it checks the bell, and a ring sets the bell before it takes the waker.
  - The ring has an event before `last_seq` is raised. A consumer that sees `last_seq` beyond the ring reads the store.
  - A consumer copies the ring before it looks for ephemeral events: those that came before an event in its copy are
    there by then.
  - A consumer checks for the end before it looks, so it still delivers the events from before the end.
  - A channel may be dropped while a consumer joins it. The channel is marked, then its bells are rung. The consumer
    checks the mark before it waits, joins the new channel and reads the store once more.
Threads wait for a lock that is released, coroutines for a future that is set through their loop: neither needs a thread
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from loguru import logger

from actors.errors import AheadOfLog, Invalid, StoreUnavailable
from actors.events import EventKind
from actors.kernel.waker import Waker
from actors.model import Event
from actors.text import shown

RING_EVENTS: Final = 256
RING_BYTES: Final = 256 * 1024
"""Roughly how much text a ring holds; a single larger event is held alone."""
RINGS_MAX: Final = 100
"""Rings that are kept for sessions without subscribers; the least recently used one is dropped first."""
EPHEMERAL_MAX: Final = 256
PAGE: Final = 256
"""Limit on the events that a subscription takes at a time."""
PAGE_BYTES: Final = 1_048_576
"""Roughly how much text of a page it keeps; the rest is read again later. A single larger event is kept alone."""

SEQ_MAX: Final = 2**63 - 1

T = TypeVar("T")


class EventSource(Protocol):
    """What the hub needs of the store's reader."""

    def events(self, session: str, after_seq: int, limit: int) -> list[Event]:
        """Return at most `limit` events with a `seq` above `after_seq`, in order."""

    def last_seq(self, session: str) -> int:
        """Return the highest `seq` of a session; 0 if it has no events."""


class _Bell:
    """Wakes its one owner, a thread or a coroutine. Ringing never waits, whatever its owner is doing."""

    __slots__ = ("_silent", "_waiters")

    def __init__(self) -> None:
        # Held until it is rung. Not an Event: that has a lock inside, which its owner and a ringing thread would share.
        self._silent = threading.Lock()
        self._silent.acquire()
        # At most one. Removing it is one step, so only one thread wakes it.
        self._waiters: deque[Waker] = deque(maxlen=1)

    def ring(self) -> None:
        if self._silent.locked():
            # It raises if another thread has just rung it.
            with contextlib.suppress(RuntimeError):
                self._silent.release()
        if not self._waiters:
            return
        try:
            waker = self._waiters.pop()
        except IndexError:
            # Another thread has taken it.
            return
        waker.wake()

    def wait(self, timeout: float | None) -> None:
        """Return once it is rung, at once if it was rung since the last wait, or after `timeout` seconds."""
        self._silent.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))

    async def heard(self, timeout: float | None) -> None:
        """Wait like `wait`, in a coroutine."""
        waker = Waker()
        self._waiters.append(waker)
        if not self._silent.acquire(blocking=False):
            await asyncio.wait([waker.woken], timeout=timeout)


class _Channel:
    """The hub's state of one session. A thread that changes the ring holds `speaking`; no consumer does."""

    __slots__ = ("bells", "dropped", "erased", "last_seq", "ring", "speaking", "subscriptions", "weight")

    def __init__(self) -> None:
        self.speaking = threading.Lock()
        self.ring: deque[Event] = deque()
        self.weight = 0
        self.last_seq = 0
        # The log was deleted up to here. Present subscribers may still get those events; new ones do not.
        self.erased = 0
        # True once the hub has dropped it: later events of the session go to another channel.
        self.dropped = False
        self.bells: set[_Bell] = set()
        # Weak: a subscription that is dropped without being closed leaves nothing behind.
        self.subscriptions: set[weakref.ref[Subscription]] = set()

    @property
    def pinned(self) -> bool:
        return bool(self.bells or self.subscriptions)

    def listeners(self) -> list[Subscription]:
        """Return the present subscriptions."""
        return [one for one in [ref() for ref in list(self.subscriptions)] if one is not None]

    def wake(self) -> None:
        """Wake all consumers. Not under `speaking`, since it calls into a foreign event loop."""
        for bell in list(self.bells):
            bell.ring()
        for subscription in self.listeners():
            subscription._bell.ring()

    def add(self, event: Event) -> None:
        if event.seq <= self.last_seq:
            return
        if event.kind == EventKind.SESSION_DELETED:
            self.erased = event.seq - 1
        if event.seq != self.last_seq + 1:
            self.ring.clear()
            self.weight = 0
        self.ring.append(event)
        self.last_seq = event.seq
        self.weight += _weight(event)
        while len(self.ring) > RING_EVENTS or (self.weight > RING_BYTES and len(self.ring) > 1):
            self.weight -= _weight(self.ring.popleft())

    def behind(self, position: int) -> list[Event]:
        """Return the events in the ring after a position; empty if the ring does not reach back to it."""
        if self.last_seq <= position:
            return []
        ring = list(self.ring)
        if not ring or ring[0].seq > position + 1:
            return []
        # The ring has no gap, so the index of a sequence number follows from the first one.
        start = position + 1 - ring[0].seq
        return ring[start : start + PAGE]


class EventHub:
    """`actors.ports.Publisher`, with subscriptions.

    `publish`, `ephemeral` and `close` wait for no consumer and do no I/O. Every method may be called from any thread.

    Args:
        store: for events that are not recent.
        rings_max: number of sessions without subscribers whose recent events are kept.
        decided_seq: returns the seq of the last event that a session has decided, which may not be stored yet.
    """

    def __init__(
        self,
        store: EventSource,
        *,
        rings_max: int = RINGS_MAX,
        decided_seq: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._store = store
        self._decided_seq = decided_seq
        self._rings_max = rings_max
        self._channels: OrderedDict[str, _Channel] = OrderedDict()
        self._closed = False
        self._taps: tuple[Callable[[str, Sequence[Event]], object], ...] = ()

    def tap(self, callback: Callable[[str, Sequence[Event]], object]) -> None:
        """Call `callback` with the session and the events of each `publish`, on its thread. It has to be quick.

        An event may be published twice, with the same `seq`. An exception of the callback is logged.
        """
        self._taps = (*self._taps, callback)

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Publish committed events of a session, in the order of their `seq`."""
        if not events or self._closed:
            return
        channel = self._channel(session)
        with channel.speaking:
            for event in events:
                channel.add(event)
        channel.wake()
        self._drop_old_rings()
        for callback in self._taps:
            try:
                callback(session, events)
            except BaseException:  # noqa: BLE001  # a callback's failure is its own: a SystemExit must end no session
                logger.opt(exception=True).error("{} failed on an event", callback)

    def ephemeral(self, event: Event) -> None:
        """Show an event that is not stored to those subscribers of its session that asked for such."""
        channel = self._channels.get(event.session)
        if channel is None or self._closed:
            return
        shown_to: list[Subscription] = []
        with channel.speaking:
            if event.seq < channel.last_seq:
                # The log has gone on: a late event is not shown (law L1).
                return
            for subscription in channel.listeners():
                if subscription._ephemeral is not None:
                    subscription._ephemeral.append(event)
                    shown_to.append(subscription)
        for subscription in shown_to:
            subscription._bell.ring()

    def subscribe(
        self, session: str, from_seq: int = 0, *, ephemeral: bool = False, timeout: float | None = None
    ) -> Subscription:
        """Return the events of a session after `from_seq`: the stored ones first, then new ones as they come.

        Args:
            session: the session's name; it need not exist yet.
            from_seq: the `seq` of the last event that the caller has; 0 for all.
            ephemeral: include `typing` and `progress`.
            timeout: end after this many seconds without an event; None: never.

        Raises:
            Invalid: `from_seq` is not an integer of 64 bits, or `timeout` is not a number of seconds.

        Iterating raises AheadOfLog if the session has no event with that `seq`: see `check_position`.
        """
        from_seq = _checked_seq(from_seq)
        check_timeout(timeout)
        subscription = Subscription(self, session, from_seq, ephemeral, timeout)
        self._drop_old_rings()
        return subscription

    def check_position(self, session: str, seq: int) -> None:
        """Refuse a position beyond the end of a session's log, since no event would ever follow it.

        Reads the store, unless the hub has seen an event there.

        Raises:
            AheadOfLog: the session has decided no event with that seq, and the store has none.
            StoreUnavailable: the store cannot be read.
        """
        channel = self._channels.get(session)
        # The store comes last: a session that left memory meanwhile has stored everything that it had decided.
        if seq <= 0 or (channel is not None and seq <= channel.last_seq) or seq <= self._decided_seq(session):
            return
        last_seq = self._store.last_seq(session)
        if seq > last_seq:
            raise AheadOfLog.at(session, seq, last_seq)

    def wait(self, session: str, predicate: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Return the first true result of `predicate`, which is called after each event of the session.

        The predicate is called on this thread, under no lock, so it may read the store. After `timeout` seconds, or
        when the hub closes, it is called a last time and its result returned as it is.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        bell = _Bell()
        channel = self._channel(session)
        try:
            channel.bells.add(bell)
            self._drop_old_rings()
            while True:
                while channel.dropped:
                    channel = self._channel(session)
                    channel.bells.add(bell)
                left = _left(deadline)
                over = self._closed or (left is not None and left <= 0)
                value = predicate()
                if value or over:
                    return value
                bell.wait(left)
        finally:
            channel.bells.discard(bell)

    def close(self) -> None:
        """End every subscription, after the events that the ring and the store still have for it. Idempotent."""
        self._closed = True
        for channel in list(self._channels.values()):
            channel.wake()

    def _channel(self, session: str) -> _Channel:
        channel = self._channels.get(session)
        if channel is None:
            return self._channels.setdefault(session, _Channel())
        # Another thread may have dropped it by now. Publishing to it does no harm: consumers check the mark.
        with contextlib.suppress(KeyError):
            self._channels.move_to_end(session)
        return channel

    def _drop_old_rings(self) -> None:
        # A ring with a consumer is skipped and counts as recently used. Each call examines at most two rings and adds
        # at most one, so the number falls to the bound without one publish paying for all.
        for _ in range(2):
            if len(self._channels) <= self._rings_max:
                return
            try:
                session, channel = next(iter(self._channels.items()))
                if channel.pinned:
                    self._channels.move_to_end(session)
                    continue
                dropped = self._channels.pop(session)
            except (KeyError, RuntimeError, StopIteration):
                # Another thread has changed them meanwhile; that thread, or the next call, does the rest.
                return
            dropped.dropped = True
            dropped.wake()


class Subscription:
    """The events of one session, from a position on. Iterate it in a thread or in a coroutine.

    One consumer at a time; any thread may call `close`, which ends the iteration at once. Iterating raises
    StoreUnavailable if the store has to be read and cannot be; the same call may be repeated after that. It raises
    AheadOfLog if `from_seq` is beyond the last event, and then the subscription is over.
    """

    def __init__(
        self,
        hub: EventHub,
        session: str,
        from_seq: int,
        ephemeral: bool,
        timeout: float | None,
    ) -> None:
        self.session = session
        self._hub = hub
        self._timeout = timeout
        self._taken: deque[Event] = deque()
        self._ephemeral: deque[Event] | None = deque(maxlen=EPHEMERAL_MAX) if ephemeral else None
        # The oldest ephemeral event, removed from the buffer: the buffer may drop others while it waits for its turn.
        self._passing: Event | None = None
        self._bell = _Bell()
        self._closed = False
        self._attach()
        self._position = max(from_seq, self._channel.erased)

    @property
    def position(self) -> int:
        """The `seq` of the last event that was delivered; subscribe from it to continue."""
        return self._position

    @property
    def over(self) -> bool:
        """True once it, or the hub, was closed. One that ended by its `timeout` is not over: iterate it again."""
        return self._over()

    def close(self) -> None:
        """End the iteration. Idempotent, from any thread; it does not wait."""
        self._closed = True
        self._channel.subscriptions.discard(self._ref)
        self._bell.ring()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Event:
        deadline = self._deadline()
        while True:
            over = self._over(deadline)
            event = self._take()
            if event is not None:
                return event
            if self._must_read():
                page = self._read(self._position)
                if page is None:
                    raise StopIteration
                self._took(page)
            elif over:
                raise StopIteration
            elif self._channel.dropped:
                self._attach()
            else:
                self._bell.wait(_left(deadline))

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        deadline = self._deadline()
        while True:
            over = self._over(deadline)
            event = self._take()
            if event is not None:
                return event
            if self._must_read():
                page = await asyncio.to_thread(self._read, self._position)
                if page is None:
                    raise StopAsyncIteration
                self._took(page)
            elif over:
                raise StopAsyncIteration
            elif self._channel.dropped:
                self._attach()
            else:
                await self._bell.heard(_left(deadline))

    def _attach(self) -> None:
        """Join the session's channel; its earlier events are in the store."""
        channel = self._hub._channel(self.session)
        self._ref = weakref.ref(self, channel.subscriptions.discard)
        self._channel = channel
        # Until the store has been read to its end once, it may have events that the hub has not seen.
        self._behind_store = True
        channel.subscriptions.add(self._ref)
        if self._closed:
            # Another thread closed it meanwhile, and may have removed it from the old channel only.
            channel.subscriptions.discard(self._ref)

    def _take(self) -> Event | None:
        """Return the next event that can be delivered without the store."""
        if self._closed:
            return None
        if not self._taken:
            # The ring also serves a new subscription before its first read: its events follow the position.
            self._taken.extend(self._channel.behind(self._position))
        if self._passing is None and self._ephemeral:
            self._passing = self._ephemeral.popleft()
        if self._passing is not None and self._passing.seq <= self._position:
            passing, self._passing = self._passing, None
            return passing
        if not self._taken:
            return None
        event = self._taken.popleft()
        self._position = event.seq
        return event

    def _must_read(self) -> bool:
        if self._closed:
            return False
        return self._behind_store or self._channel.last_seq > self._position

    def _over(self, deadline: float | None = None) -> bool:
        left = _left(deadline)
        return self._closed or self._hub._closed or (left is not None and left <= 0)

    def _deadline(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _read(self, position: int) -> list[Event] | None:
        """Read a page of the store. None means the end: it cannot be read and the hub is closed."""
        last_seq = self._channel.last_seq
        try:
            page = self._hub._store.events(self.session, position, PAGE)
        except StoreUnavailable:
            if self._hub._closed:
                return None
            raise
        if not page and last_seq > position:
            raise StoreUnavailable(
                f"an event of session {self.session} was announced that the store does not have",
                expected=f"events {position + 1} to {last_seq}",
                got="none",
                remedy="this is a defect: report it; subscribing again is safe",
            )
        if not page:
            try:
                self._hub.check_position(self.session, position)
            except AheadOfLog:
                self.close()
                raise
        return page

    def _took(self, page: list[Event]) -> None:
        kept = _light(page)
        self._taken.extend(kept)
        if len(kept) == len(page) < PAGE:
            self._behind_store = False


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def check_timeout(timeout: object) -> None:
    """Refuse an invalid timeout.

    Raises:
        Invalid: it is neither None nor a number of seconds that the platform can wait.
    """
    if timeout is None:
        return
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not timeout <= threading.TIMEOUT_MAX:  # type: ignore[operator]  # a number here
        raise Invalid(
            "invalid timeout",
            expected="a number of seconds, or None to wait for ever",
            got=shown(timeout),
            remedy="give, for example, timeout=30",
        )


def _checked_seq(seq: object) -> int:
    try:
        number = operator.index(seq)  # type: ignore[arg-type]  # it raises for anything but an integer
    except TypeError:
        number = SEQ_MAX + 1
    if not -SEQ_MAX <= number <= SEQ_MAX:
        raise Invalid(
            "invalid seq",
            expected="a whole number: the seq of the last event that you have, or 0",
            got=shown(seq),
            remedy="give the seq of an event, or leave it out for all",
        )
    return number


def _light(page: list[Event]) -> list[Event]:
    """Return the beginning of a page, at most PAGE_BYTES, but at least its first event."""
    weight = 0
    for count, event in enumerate(page):
        weight += _weight(event)
        if weight > PAGE_BYTES and count > 0:
            return page[:count]
    return page


def _weight(event: Event) -> int:
    """Return the approximate size of an event in bytes: its texts, and a constant for the rest."""
    weight = 256
    for value in event.data.values():
        if isinstance(value, str):
            weight += len(value)
    return weight
