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

A publisher waits for no consumer. A consumer may be stopped at any place: a signal handler runs in the middle of it
and asks the very session that publishes, and a generator that reads a subscription is closed by the garbage collector
at any allocation. So a consumer takes no lock. The one there is, a channel's, is for those who speak for one session;
nothing is done under it but moving references. What they share with consumers is changed in steps that the
interpreter does not divide (adding to a set or a deque, copying one, setting an attribute), in an order that is
right for whoever looks in between:
  - A consumer looks, and then waits for its bell; a publisher changes what there is to see, and then rings. A bell
    that was rung stays rung until it is heard, so one that rings between the look and the wait is not missed. A
    coroutine's future is laid out before it looks at the bell, and the bell rings before the future is taken.
  - The ring holds an event before `last_seq` says so. Who sees `last_seq` above the ring reads the store.
  - A consumer copies the ring before it looks for ephemeral events: what was said before an event that it has is
    there by then.
  - A consumer asks whether it is over before it looks, so it gives what came before the end.
  - A channel may be dropped while somebody comes to it. It is marked, then its bells are rung; who has come looks for
    the mark before it waits, goes to the new channel and reads the store once more.
Threads wait for a lock that is opened, coroutines for a future that is set through their loop: neither needs a thread
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
from actors.kernel.waker import Waker
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

    def last_seq(self, session: str) -> int:
        """Return the highest `seq` of a session; 0 if it has no events."""


class _Bell:
    """Wakes its one owner, who may be a thread or a coroutine. Ringing it never waits, whatever its owner is at."""

    __slots__ = ("_silent", "_waiters")

    def __init__(self) -> None:
        # Held while it has not been rung. Not an Event, which has a lock inside that its owner and who rings share.
        self._silent = threading.Lock()
        self._silent.acquire()
        # At most one: taking it out is one step, so it is set by one alone.
        self._waiters: deque[Waker] = deque(maxlen=1)

    def ring(self) -> None:
        if self._silent.locked():
            # It raises where another has rung it in this moment.
            with contextlib.suppress(RuntimeError):
                self._silent.release()
        if not self._waiters:
            return
        try:
            waker = self._waiters.pop()
        except IndexError:
            # Another has taken it.
            return
        waker.wake()

    def wait(self, timeout: float | None) -> None:
        """Return when it is rung or was since the last wait, or after `timeout` seconds."""
        self._silent.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))

    async def heard(self, timeout: float | None) -> None:
        """The same for a coroutine."""
        waker = Waker()
        self._waiters.append(waker)
        if not self._silent.acquire(blocking=False):
            await asyncio.wait([waker.woken], timeout=timeout)


class _Channel:
    """What the hub knows of one session. `speaking` is held by who changes the ring, and by no consumer."""

    __slots__ = ("bells", "dropped", "erased", "last_seq", "ring", "speaking", "subscriptions", "weight")

    def __init__(self) -> None:
        self.speaking = threading.Lock()
        self.ring: deque[Event] = deque()
        self.weight = 0
        self.last_seq = 0
        # Up to here the log was deleted. Who listens may still be given it; who comes now is not, from memory neither.
        self.erased = 0
        # True once the hub does not know it any more: what the session says now, another channel hears.
        self.dropped = False
        self.bells: set[_Bell] = set()
        # Weak: a subscription that is dropped without being closed leaves nothing behind.
        self.subscriptions: set[weakref.ref[Subscription]] = set()

    @property
    def pinned(self) -> bool:
        return bool(self.bells or self.subscriptions)

    def listeners(self) -> list[Subscription]:
        """The subscriptions that there are at this moment."""
        return [one for one in [ref() for ref in list(self.subscriptions)] if one is not None]

    def wake(self) -> None:
        """Let all who wait look again. Without `speaking`: a loop is told, which is not ours."""
        for bell in list(self.bells):
            bell.ring()
        for subscription in self.listeners():
            subscription._bell.ring()

    def add(self, event: Event) -> None:
        if event.seq <= self.last_seq:
            return
        if event.kind == "session.deleted":
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
        """What the ring holds behind a position; nothing where it does not reach back to it."""
        if self.last_seq <= position:
            return []
        ring = list(self.ring)
        if not ring or ring[0].seq > position + 1:
            return []
        # The ring has no gap, so the place of a sequence number in it can be counted.
        start = position + 1 - ring[0].seq
        return ring[start : start + PAGE]


class EventHub:
    """`actors.ports.Publisher`, and the place where subscribers come.

    `publish`, `ephemeral` and `close` wait for no consumer and do no I/O. Every method may be called from any thread.

    Args:
        store: where events are read that are not recent.
        rings_max: sessions without subscribers whose recent events are kept.
        decided_seq: the seq of the last event that a session has decided, which may not be stored yet.
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
        """Call back with the session and the events of each `publish`, on its thread: it must be quick.

        An event may be published twice, with the same `seq`. What the callback raises is logged.
        """
        self._taps = (*self._taps, callback)

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Make committed events of a session known, in the order of their `seq`."""
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
            except BaseException:  # noqa: BLE001  # a listener's failure is its own: a SystemExit must end no session
                logger.opt(exception=True).error("{} failed on an event", callback)

    def ephemeral(self, event: Event) -> None:
        """Show an event that is not stored to those subscribers of its session who asked for such."""
        channel = self._channels.get(event.session)
        if channel is None or self._closed:
            return
        shown_to: list[Subscription] = []
        with channel.speaking:
            if event.seq < channel.last_seq:
                # The log has gone on: what is late is not shown (law L1).
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
        """Return the events of a session behind `from_seq`: those in the store first, then those to come.

        Args:
            session: the session's name; one that does not exist yet may be waited for.
            from_seq: the `seq` of the last event that the caller has; 0 for all.
            ephemeral: also give `typing` and `progress`.
            timeout: end after so many seconds in which there was nothing to give; None: never.

        Raises:
            Invalid: `from_seq` is no whole number of 64 bits, or `timeout` no number of seconds.

        To iterate raises AheadOfLog where the session has no event of that `seq`: see `check_position`.
        """
        from_seq = _checked_seq(from_seq)
        check_timeout(timeout)
        subscription = Subscription(self, session, from_seq, ephemeral, timeout)
        self._drop_old_rings()
        return subscription

    def check_position(self, session: str, seq: int) -> None:
        """Refuse a position that is behind the end of a session's log: nothing would ever follow on it.

        Reads the store, unless the hub has heard of an event there.

        Raises:
            AheadOfLog: the session has decided no event of that seq, and the store holds none.
            StoreUnavailable: the store cannot be read.
        """
        channel = self._channels.get(session)
        # The store comes last: a session that is not there any more has stored all that it had decided.
        if seq <= 0 or (channel is not None and seq <= channel.last_seq) or seq <= self._decided_seq(session):
            return
        last_seq = self._store.last_seq(session)
        if seq > last_seq:
            raise AheadOfLog.at(session, seq, last_seq)

    def wait(self, session: str, predicate: Callable[[], T | None], timeout: float | None = None) -> T | None:
        """Return what `predicate` returns as soon as that is true; it is asked whenever the session speaks.

        The predicate is called on this thread, under no lock, so it may read the store. After `timeout`
        seconds, or when the hub closes, it is asked a last time and its answer returned as it is.
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
        """End every subscription, after what the ring and the store still give it. May be called twice."""
        self._closed = True
        for channel in list(self._channels.values()):
            channel.wake()

    def _channel(self, session: str) -> _Channel:
        channel = self._channels.get(session)
        if channel is None:
            return self._channels.setdefault(session, _Channel())
        # Another may have dropped it by now. Who speaks may do so all the same: who listens knows by the mark.
        with contextlib.suppress(KeyError):
            self._channels.move_to_end(session)
        return channel

    def _drop_old_rings(self) -> None:
        # A ring that somebody listens to is passed over and counts as fresh. Each call looks at two at most,
        # and adds one at most, so the number falls to the bound without any one publish paying for all.
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
                # Another thread changed them meanwhile; it, or the next call, does the rest.
                return
            dropped.dropped = True
            dropped.wake()


class Subscription:
    """The events of one session, from a position on. Iterate it, in a thread or in a coroutine.

    One consumer at a time; `close` may come from any thread and ends the iteration at once. Iterating raises
    StoreUnavailable where the store has to be read and cannot be; the same call may be tried again after
    that. It raises AheadOfLog where `from_seq` is behind the last event, and is over then.
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
        # The oldest of them, taken out: while it waits for its turn, those behind it may still be dropped.
        self._passing: Event | None = None
        self._bell = _Bell()
        self._closed = False
        self._attach()
        self._position = max(from_seq, self._channel.erased)

    @property
    def position(self) -> int:
        """The `seq` of the last event that was given; subscribe from it to go on."""
        return self._position

    @property
    def over(self) -> bool:
        """True once it was closed, or the hub was: what ended by its `timeout` may be iterated on instead."""
        return self._over()

    def close(self) -> None:
        """End the iteration, wherever it is. May be called again, from any thread; it waits for nothing."""
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
        """Listen to the session from now on; what it said before is in the store."""
        channel = self._hub._channel(self.session)
        self._ref = weakref.ref(self, channel.subscriptions.discard)
        self._channel = channel
        # Until the store has been read to its end once, what the hub has not heard of may be in it.
        self._behind_store = True
        channel.subscriptions.add(self._ref)
        if self._closed:
            # Closed meanwhile, by another thread, which may have taken it from where it was.
            channel.subscriptions.discard(self._ref)

    def _take(self) -> Event | None:
        """Return the next event that can be given without the store."""
        if self._closed:
            return None
        if not self._taken:
            # The ring serves a newcomer too, before any read: what it gives follows on the position.
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
        """Read a page of the store; None: it cannot be read and the hub is closed, so this is the end."""
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
