"""The event hub, over a small log in memory and over the real store.

The file has over 600 lines, and is whole: what holds over the log in memory holds over the store.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from actors.errors import AheadOfLog, StoreUnavailable
from actors.messages import Committed
from actors.model import Event
from actors.ports import Publisher, Store
from actors.requests import Stop
from supervisor import publisher
from supervisor.publisher import EPHEMERAL_MAX, RING_EVENTS, EventHub, Subscription, _Bell
from supervisor.store.sqlite import SqliteStore
from tests.kit import WAIT_S, Kit, kit, say, until
from tests.test_store import PATIENCE_S, Owner, StandingClock, batch

__all__ = ["kit"]

BOUND_S = 60.0
"""How long another thread may take for a few calls of the hub, on a machine that has much to do."""


class Log:
    """A log in memory: what a store's reader gives, and how often it was asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: dict[str, list[Event]] = {}
        self.reads = 0
        self.broken = False

    def append(self, count: int = 1, session: str = "s", text: str = "x") -> list[Event]:
        with self.lock:
            log = self.all.setdefault(session, [])
            new = [made(len(log) + 1 + place, session, text) for place in range(count)]
            log.extend(new)
            return new

    def events(self, session: str, after_seq: int, limit: int) -> list[Event]:
        with self.lock:
            self.reads += 1
            if self.broken:
                raise StoreUnavailable("the store could not be read")
            return self.all.get(session, [])[after_seq : after_seq + limit]

    def last_seq(self, session: str) -> int:
        with self.lock:
            if self.broken:
                raise StoreUnavailable("the store could not be read")
            return len(self.all.get(session, []))


def made(seq: int, session: str = "s", text: str = "x") -> Event:
    return Event(seq, session, 1, "r", "text", {"text": text}, float(seq))


def passing(seq: int, kind: str = "typing", **data: Any) -> Event:
    return Event(seq, "s", 1, "r", kind, data, float(seq))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def hub(log: Log) -> Iterator[EventHub]:
    hub = EventHub(log)
    yield hub
    hub.close()


def seqs(subscription: Subscription) -> list[int]:
    return [event.seq for event in subscription]


class Listener:
    """A thread that takes all that a subscription gives."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.got: list[Event] = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        for event in self.subscription:
            with self.changed:
                self.got.append(event)
                self.changed.notify_all()

    def until(self, condition: Callable[[list[Event]], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.got), PATIENCE_S), [e.seq for e in self.got]

    def end(self) -> list[int]:
        self.subscription.close()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return [event.seq for event in self.got]


# ── Positions behind the end of the log ───────────────────────────────────────────────────────────


async def first_of(subscription: Subscription) -> Event:
    return await anext(subscription)


FIRSTS: list[Callable[[Subscription], Event]] = [next, lambda events: asyncio.run(first_of(events))]


@pytest.mark.parametrize("first", FIRSTS, ids=["plain", "async"])
@pytest.mark.parametrize("number", [0, 3])
def test_l6_a_position_behind_the_end_of_the_log_is_refused_and_not_waited_at(
    log: Log, hub: EventHub, number: int, first: Callable[[Subscription], Event]
) -> None:
    log.append(number)
    subscription = hub.subscribe("s", number + 1)
    with pytest.raises(AheadOfLog):
        first(subscription)
    assert subscription.over
    log.append(5)
    assert seqs(subscription) == [], "what is another log by now is not gone on with"


def test_a_position_behind_the_end_of_the_log_is_refused_as_soon_as_the_store_can_be_read(
    log: Log, hub: EventHub
) -> None:
    log.append(3)
    log.broken = True
    subscription = hub.subscribe("s", 9)
    with pytest.raises(StoreUnavailable):
        next(subscription)
    assert not subscription.over
    log.broken = False
    with pytest.raises(AheadOfLog):
        next(subscription)


def test_a_position_that_a_session_has_decided_and_not_stored_yet_is_waited_at(log: Log) -> None:
    log.append(3)
    hub = EventHub(log, decided_seq={"s": 5}.__getitem__)
    subscription = hub.subscribe("s", 5, timeout=0)
    assert seqs(subscription) == []
    with pytest.raises(AheadOfLog):
        hub.check_position("s", 6)
    hub.publish("s", log.append(3))
    assert seqs(subscription) == [6]


def test_a_position_that_is_stored_while_it_is_looked_for_is_no_position_behind_the_end(log: Log) -> None:
    def leaves(session: str) -> int:
        # The last that it decided is stored, and then it is not there any more.
        log.append(5, session)
        return 0

    EventHub(log, decided_seq=leaves).check_position("s", 5)


def test_a_position_at_the_end_of_the_log_or_before_it_is_taken(log: Log, hub: EventHub) -> None:
    log.append(3)
    for position in (-1, 0, 2, 3):
        hub.check_position("s", position)
    assert seqs(hub.subscribe("s", 3, timeout=0)) == []
    assert seqs(hub.subscribe("nobody", 0, timeout=0)) == []


# ── Store first, then live ────────────────────────────────────────────────────────────────────────


def test_what_is_in_the_store_comes_first_then_what_is_live(log: Log, hub: EventHub) -> None:
    log.append(3)
    listener = Listener(hub.subscribe("s", 1))
    try:
        listener.until(lambda got: len(got) == 2)
        hub.publish("s", log.append(2))
        listener.until(lambda got: len(got) == 4)
    finally:
        got = listener.end()
    assert got == [2, 3, 4, 5]


def test_a_session_that_does_not_exist_yet_can_be_waited_for(log: Log, hub: EventHub) -> None:
    listener = Listener(hub.subscribe("s"))
    try:
        hub.publish("s", log.append())
        listener.until(lambda got: len(got) == 1)
    finally:
        listener.end()


def test_a_subscriber_gets_its_own_session_alone(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    hub.publish("t", log.append(3, "t"))
    hub.publish("s", log.append(1))
    assert [(event.session, event.seq) for event in subscription] == [("s", 1)]


def test_l6_no_gap_and_no_double_for_subscribers_that_come_at_any_time_and_at_any_pace(log: Log, hub: EventHub) -> None:
    count = 3 * RING_EVENTS
    chance = random.Random(7)
    listeners: list[tuple[int, Listener]] = []
    try:
        while len(log.all.get("s", [])) < count:
            if chance.random() < 0.1 and len(listeners) < 12:
                start = chance.randrange(len(log.all.get("s", [])) + 1)
                listeners.append((start, Listener(hub.subscribe("s", start))))
            hub.publish("s", log.append(chance.randrange(1, 6)))
        end = len(log.all["s"])
        for start, listener in listeners:
            listener.until(lambda got: bool(got) and got[-1].seq == end)
            assert [event.seq for event in listener.got] == list(range(start + 1, end + 1))
    finally:
        for _, listener in listeners:
            listener.end()
    assert listeners


def test_l14_a_slow_subscriber_falls_out_of_the_ring_and_reads_the_store(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    hub.publish("s", log.append())
    assert next(subscription).seq == 1
    for _ in range(5):
        hub.publish("s", log.append(RING_EVENTS))
    assert len(subscription._taken) == 0
    assert len(subscription._channel.ring) == RING_EVENTS
    assert seqs(subscription) == list(range(2, 5 * RING_EVENTS + 2))


def test_a_subscriber_that_keeps_up_does_not_read_the_store(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    assert seqs(subscription) == []
    reads = log.reads
    for seq in range(1, 2 * RING_EVENTS):
        hub.publish("s", log.append())
        assert next(subscription).seq == seq
    assert log.reads == reads


def test_l14_large_events_do_not_fill_the_ring(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    for _ in range(20):
        hub.publish("s", log.append(1, text="x" * 100_000))
    assert 1 <= len(subscription._channel.ring) <= 3
    assert seqs(subscription) == list(range(1, 21))


def test_events_that_were_committed_and_never_published_are_not_skipped(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    hub.publish("s", log.append(2))
    assert [next(subscription).seq, next(subscription).seq] == [1, 2]
    log.append(3)
    hub.publish("s", log.append(1))
    assert seqs(subscription) == [3, 4, 5, 6]


def test_events_that_are_published_twice_are_given_once(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    events = log.append(3)
    hub.publish("s", events)
    hub.publish("s", events[1:])
    assert seqs(subscription) == [1, 2, 3]
    more = log.append(3)
    hub.publish("s", more)
    hub.publish("s", more[:1])
    assert seqs(subscription) == [4, 5, 6]


def test_a_store_that_cannot_be_read_is_an_error_and_the_subscription_continues_after_it(
    log: Log, hub: EventHub
) -> None:
    log.append(2)
    subscription = hub.subscribe("s", timeout=0)
    log.broken = True
    with pytest.raises(StoreUnavailable):
        next(subscription)
    log.broken = False
    assert seqs(subscription) == [1, 2]


def test_an_event_that_was_announced_and_is_not_in_the_store_is_an_error_and_no_loop(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", timeout=0)
    hub.publish("s", [made(5)])
    with pytest.raises(StoreUnavailable, match="does not have"):
        next(subscription)


# ── Ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_silence_ends_a_subscription_with_a_timeout(hub: EventHub) -> None:
    assert seqs(hub.subscribe("s", timeout=0.01)) == []


def test_closing_from_another_thread_ends_the_iteration_at_once(log: Log, hub: EventHub) -> None:
    hub.publish("s", log.append(3))
    listener = Listener(hub.subscribe("s"))
    listener.until(lambda got: len(got) == 3)
    listener.end()
    with hub.subscribe("s") as subscription:
        assert next(subscription).seq == 1
    assert seqs(subscription) == []


def test_a_reader_that_the_garbage_collector_closes_under_the_lock_of_the_hub_blocks_no_thread(log: Log) -> None:
    hub = EventHub(log)
    closed, other = hub.subscribe("s"), hub.subscribe("s")

    def reads() -> Generator[Event, None, None]:
        with closed:
            yield from closed

    reader = reads()
    hub.publish("s", log.append())
    next(reader)
    done = threading.Event()

    def collect() -> None:
        with hub._channels["s"].speaking:
            reader.close()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(20), "it waits for a lock that its own thread holds"
    hub.publish("s", log.append())
    assert [next(other).seq for _ in range(2)] == [1, 2]
    assert closed.over
    assert list(closed) == []
    assert len(hub._channels["s"].subscriptions) == 1


def test_the_end_of_the_hub_ends_all_subscriptions_after_what_there_is_to_give(log: Log, hub: EventHub) -> None:
    log.append(RING_EVENTS)
    hub.publish("s", log.append(RING_EVENTS))
    waiting = Listener(hub.subscribe("t"))
    late = hub.subscribe("s")
    hub.close()
    waiting.thread.join(PATIENCE_S)
    assert not waiting.thread.is_alive()
    assert seqs(late) == list(range(1, 2 * RING_EVENTS + 1))
    log.broken = True
    assert seqs(hub.subscribe("u")) == []


# ── Ephemeral events ──────────────────────────────────────────────────────────────────────────────


def test_ephemeral_events_come_only_to_subscribers_that_asked(log: Log, hub: EventHub) -> None:
    asked, plain = hub.subscribe("s", ephemeral=True, timeout=0), hub.subscribe("s", timeout=0)
    hub.publish("s", log.append(1))
    hub.ephemeral(passing(1))
    assert [event.kind for event in asked] == ["text", "typing"]
    assert [event.kind for event in plain] == ["text"]


def test_l1_an_ephemeral_event_keeps_its_place_between_stored_ones(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", ephemeral=True, timeout=0)
    hub.publish("s", log.append(1))
    hub.ephemeral(passing(1))
    hub.ephemeral(passing(3))
    hub.publish("s", log.append(3))
    hub.ephemeral(passing(2))
    assert [(event.seq, event.kind) for event in subscription] == [
        (1, "text"),
        (1, "typing"),
        (2, "text"),
        (3, "text"),
        (3, "typing"),
        (4, "text"),
    ]


def test_l14_ephemeral_events_that_are_not_read_are_dropped_oldest_first(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s", ephemeral=True, timeout=0)
    hub.publish("s", log.append(1))
    for number in range(EPHEMERAL_MAX + 10):
        hub.ephemeral(passing(1, "progress", number=number))
    numbers = [event.data["number"] for event in subscription if event.kind == "progress"]
    assert numbers == list(range(10, EPHEMERAL_MAX + 10))


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────


def test_l14_rings_of_sessions_without_a_subscriber_are_bounded(log: Log) -> None:
    hub = EventHub(log, rings_max=10)
    kept = hub.subscribe("kept", timeout=0)
    for number in range(100):
        hub.publish(f"s{number}", log.append(1, f"s{number}"))
        assert len(hub._channels) <= 11
    for number in range(100):
        hub.subscribe(f"t{number}").close()
        hub.wait(f"u{number}", lambda: True)
    assert len(hub._channels) <= 11
    hub.publish("kept", log.append(1, "kept"))
    assert seqs(kept) == [1]


def test_a_subscription_that_is_dropped_without_being_closed_leaves_nothing(log: Log, hub: EventHub) -> None:
    log.append(2)
    for event in hub.subscribe("s"):
        assert event.seq == 1
        break
    gc.collect()
    assert len(hub._channels["s"].subscriptions) == 0


# ── Waiting for a change ──────────────────────────────────────────────────────────────────────────


def test_wait_returns_what_it_waits_for_as_soon_as_it_is_so(log: Log, hub: EventHub) -> None:
    asked = threading.Event()
    found: list[int | None] = []

    def third() -> int | None:
        asked.set()
        return 3 if len(log.all.get("s", [])) >= 3 else None

    waiting = threading.Thread(target=lambda: found.append(hub.wait("s", third, PATIENCE_S)))
    waiting.start()
    assert asked.wait(PATIENCE_S)
    for _ in range(3):
        hub.publish("s", log.append())
    waiting.join(PATIENCE_S)
    assert found == [3]


def test_wait_ends_with_its_time_and_with_the_hub(hub: EventHub) -> None:
    assert hub.wait("s", lambda: None, 0.01) is None
    waiting = threading.Thread(target=lambda: hub.wait("s", lambda: None))
    waiting.start()
    hub.close()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


# ── Coroutines ────────────────────────────────────────────────────────────────────────────────────


async def take(subscription: Subscription, count: int) -> list[int]:
    got: list[int] = []
    async for event in subscription:
        got.append(event.seq)
        if len(got) == count:
            break
    return got


def test_coroutines_get_the_same_without_a_thread_each(log: Log, hub: EventHub) -> None:
    end = 2 * RING_EVENTS
    log.append(RING_EVENTS)
    before = threading.active_count()

    async def listen() -> list[list[int]]:
        tasks = [asyncio.create_task(take(hub.subscribe("s", start), end - start)) for start in range(100)]
        await asyncio.sleep(0)

        def speak() -> None:
            for _ in range(RING_EVENTS // 4):
                hub.publish("s", log.append(4))

        publisher = threading.Thread(target=speak)
        publisher.start()
        async with asyncio.timeout(PATIENCE_S):
            got = await asyncio.gather(*tasks)
        assert threading.active_count() < before + 50
        publisher.join(PATIENCE_S)
        return got

    for start, got in enumerate(asyncio.run(listen())):
        assert got == list(range(start + 1, end + 1))


def test_a_coroutine_ends_by_silence_by_close_and_by_the_hub(log: Log, hub: EventHub) -> None:
    async def rest(subscription: Subscription) -> list[int]:
        return [event.seq async for event in subscription]

    async def listen() -> None:
        hub.publish("s", log.append(2))
        assert await rest(hub.subscribe("s", timeout=0.01)) == [1, 2]
        closed, ended = hub.subscribe("s"), hub.subscribe("s")
        tasks = [asyncio.create_task(rest(closed)), asyncio.create_task(rest(ended))]
        async with asyncio.timeout(PATIENCE_S):
            while closed.position < 2 or ended.position < 2:  # noqa: ASYNC110 - there is no asyncio event
                await asyncio.sleep(0.001)
            threading.Thread(target=closed.close).start()
            assert await tasks[0] == [1, 2]
            assert not tasks[1].done()
            hub.close()
            assert await tasks[1] == [1, 2]

    asyncio.run(listen())


def test_a_coroutine_that_is_cancelled_while_it_waits_loses_nothing(log: Log, hub: EventHub) -> None:
    async def listen() -> list[int]:
        subscription = hub.subscribe("s")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.05)
        hub.publish("s", log.append(2))
        async with asyncio.timeout(PATIENCE_S):
            return await take(subscription, 2)

    assert asyncio.run(listen()) == [1, 2]


def test_a_loop_that_was_closed_under_a_subscription_does_not_hurt_the_publisher(log: Log, hub: EventHub) -> None:
    subscription = hub.subscribe("s")

    async def begin() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.01)

    asyncio.run(begin())
    hub.publish("s", log.append(1))
    assert next(subscription).seq == 1


# ── Nobody waits for a consumer ───────────────────────────────────────────────────────────────────


class Stopped:
    """Stops its thread at lines of the hub, as a signal handler may, while another thread does something.

    Args:
        act: what the other thread does, and is waited for.
        when: whether to, at this line of the hub (its function and number).
    """

    def __init__(self, act: Callable[[], object], when: Callable[[str, int], bool]) -> None:
        self.act = act
        self.when = when
        self.acts = 0
        self.stuck: tuple[str, int] | None = None

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != publisher.__file__ or self.stuck:
            return None
        place = frame.f_code.co_name, frame.f_lineno
        if event == "line" and self.when(*place):
            self.acts += 1
            other = threading.Thread(target=self.act, daemon=True)
            other.start()
            other.join(BOUND_S)
            if other.is_alive():
                self.stuck = place
        return self._trace


def as_a_thread(subscription: Subscription, got: list[Event]) -> None:
    got.extend(subscription)


def as_a_coroutine(subscription: Subscription, got: list[Event]) -> None:
    async def listen() -> None:
        got.extend([event async for event in subscription])

    asyncio.run(listen())


Consume = Callable[[Subscription, list[Event]], None]


@pytest.mark.parametrize("consume", [as_a_thread, as_a_coroutine])
def test_l14_publishing_waits_for_no_consumer_wherever_it_is_paused(consume: Consume, log: Log, hub: EventHub) -> None:
    states: Counter[object] = Counter()
    has_nothing: Callable[[], bool] = bool
    got: list[Event] = []

    def act() -> None:
        for _ in range(2):
            hub.ephemeral(passing(len(log.all.get("s", []))))
            hub.publish("s", log.append())
            hub.ephemeral(passing(len(log.all["s"])))
        another = hub.subscribe("s", timeout=0)
        next(another)
        another.close()
        assert hub.wait("s", lambda: True, BOUND_S)

    def when(*place: Any) -> bool:
        # Each line also with nothing to give, so that all that comes then comes between two lines.
        state = place, has_nothing()
        states[state] += 1
        return states[state] <= 3

    stopped = Stopped(act, when)
    with stopped:
        subscription = hub.subscribe("s", ephemeral=True, timeout=0.05)
        has_nothing = lambda: not (subscription._taken or subscription._ephemeral or subscription._passing)  # noqa: E731
        acts = -1
        while acts != stopped.acts:
            # Again: its timeout may have ended it before it came to the lines at which it waits.
            acts = stopped.acts
            consume(subscription, got)
    # What came while it was ending by its timeout.
    consume(subscription, got)
    assert stopped.stuck is None, f"another thread waited for the one that was stopped at {stopped.stuck}"
    assert stopped.acts > 40
    stored = [event.seq for event in got if event.kind == "text"]
    assert stored == list(range(1, 2 * stopped.acts + 1))
    position = 0
    for event in got:
        assert event.kind == "text" or event.seq == position
        position = event.seq


@pytest.mark.parametrize("consume", [as_a_thread, as_a_coroutine])
def test_no_end_is_missed_wherever_a_consumer_is_stopped(
    consume: Consume, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = threading.Event()
    wait, heard = _Bell.wait, _Bell.heard

    def rests(bell: _Bell, timeout: float | None) -> None:
        resting.set()
        wait(bell, timeout)

    async def listens(bell: _Bell, timeout: float | None) -> None:
        resting.set()
        await heard(bell, timeout)

    monkeypatch.setattr(_Bell, "wait", rests)
    monkeypatch.setattr(_Bell, "heard", listens)
    reached = True
    line = 0
    while reached:
        line += 1
        hub = EventHub(log)
        hub.publish("s", log.append())
        last = log.append()
        count = 0

        def act(hub: EventHub = hub, last: list[Event] = last) -> None:
            hub.publish("s", last)
            hub.close()

        def when(*_: Any, line: int = line) -> bool:
            nonlocal count
            count += 1
            return count == line

        stopped = Stopped(act, when)
        got: list[Event] = []
        subscription = hub.subscribe("s", len(log.all["s"]) - 2)

        def run(stopped: Stopped = stopped, got: list[Event] = got, one: Subscription = subscription) -> None:
            with stopped:
                consume(one, got)

        resting.clear()
        consumer = threading.Thread(target=run, daemon=True)
        consumer.start()
        until(lambda: resting.is_set() or not consumer.is_alive())  # noqa: B023  # called in this round alone
        # Where it was not stopped, nor is on its last lines before its rest, the end comes now.
        consumer.join(0.05)
        if not stopped.acts:
            act()
        consumer.join(PATIENCE_S)
        reached = stopped.acts > 0
        assert not consumer.is_alive(), f"the end that came at line {line} was missed"
        assert stopped.stuck is None
        assert [event.seq for event in got] == [event.seq for event in log.all["s"][-2:]]
    assert line > 20


def test_no_change_is_missed_wherever_its_waiter_is_paused(log: Log, hub: EventHub) -> None:
    places: set[tuple[str, int]] = set()

    def when(*place: Any) -> bool:
        new = place not in places
        places.add(place)
        return new

    stopped = Stopped(lambda: hub.publish("s", log.append()), when)
    with stopped:
        assert hub.wait("s", lambda: len(places) > 10 and len(log.all["s"]) == stopped.acts, PATIENCE_S)
        assert hub.wait("t", lambda: None, 0.01) is None
    assert stopped.stuck is None
    assert not hub._channels["s"].pinned


def test_a_signal_handler_that_interrupts_a_consumer_may_ask_the_session_that_publishes(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    say(session)
    answers: list[str] = []

    def handler(*_: object) -> None:
        answers.append(session.ask(Stop(source="user.test", reason="^C"), timeout=BOUND_S).outcome)

    take = Subscription._take

    def interrupted(subscription: Subscription) -> Event | None:
        if not answers:
            signal.raise_signal(signal.SIGUSR1)
        return take(subscription)

    monkeypatch.setattr(Subscription, "_take", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for event in session.subscribe(timeout=WAIT_S):
            if event.kind == "run.ended":
                break
        else:
            pytest.fail("the run did not end")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == ["stopped"]


def test_l6_nothing_is_lost_doubled_or_out_of_order_while_rings_come_and_go(log: Log) -> None:
    hub = EventHub(log, rings_max=2)
    sessions, count = [f"s{number}" for number in range(6)], 400
    over = threading.Event()
    before = sys.getswitchinterval()

    def speak(session: str) -> None:
        for _ in range(count):
            hub.publish(session, log.append(1, session))

    def come_and_go(chance: random.Random) -> None:
        while not over.is_set():
            session = chance.choice(sessions)
            hub.subscribe(session, 10**9).close()
            hub.wait(session, lambda: None, 0)
            hub.subscribe(f"t{chance.randrange(100)}")

    def listen(session: str, got: list[int]) -> None:
        for event in hub.subscribe(session):
            got.append(event.seq)
            if event.seq == count:
                return

    async def listen_all(got: dict[str, list[int]]) -> None:
        async def one(session: str) -> None:
            got[session] = await take(hub.subscribe(session), count)

        await asyncio.gather(*(one(session) for session in sessions))

    in_threads: list[list[int]] = [[] for _ in range(2 * len(sessions))]
    in_coroutines: dict[str, list[int]] = {}
    threads = [threading.Thread(target=listen, args=(sessions[n % 6], got)) for n, got in enumerate(in_threads)]
    threads.append(threading.Thread(target=lambda: asyncio.run(listen_all(in_coroutines))))
    threads += [threading.Thread(target=speak, args=(session,)) for session in sessions]
    passers = [threading.Thread(target=come_and_go, args=(random.Random(seed),)) for seed in range(2)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in (*threads, *passers):
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), [len(got) for got in in_threads]
    finally:
        sys.setswitchinterval(before)
        over.set()
        hub.close()
    for got in (*in_threads, *in_coroutines.values()):
        assert got == list(range(1, count + 1))
    assert len(in_coroutines) == len(sessions)


class Overtaken(OrderedDict[str, Any]):
    """Channels of which something happens to one in the moment before it is dropped, or after it, the first time."""

    def __init__(
        self, channels: OrderedDict[str, Any], before: Callable[[], object], after: Callable[[], object] = bool
    ) -> None:
        super().__init__(channels)
        self.happens: list[Callable[[], object]] = [after, before]

    def pop(self, session: str, *_: Any) -> Any:
        if len(self.happens) == 2:
            self.happens.pop()()
            channel = super().pop(session)
            self.happens.pop()()
            return channel
        return super().pop(session)


def test_a_subscriber_that_comes_while_a_ring_is_dropped_gets_the_events_from_then_on(log: Log) -> None:
    hub = EventHub(log, rings_max=1)
    hub.publish("s", log.append())
    listeners: list[Listener] = []
    asked = [threading.Event(), threading.Event()]
    asks = iter(asked)
    found = threading.Event()

    def second() -> bool:
        there = len(log.all["s"]) > 1
        next(asks, asked[0]).set()
        return there

    def wait() -> None:
        if hub.wait("s", second, PATIENCE_S):
            found.set()

    def come() -> None:
        listeners.append(Listener(hub.subscribe("s")))
        listeners[0].until(lambda got: len(got) == 1)
        threading.Thread(target=wait).start()
        assert asked[0].wait(PATIENCE_S)

    hub._channels = Overtaken(hub._channels, come)
    hub.publish("t", log.append(1, "t"))
    try:
        assert asked[1].wait(PATIENCE_S), "who waits was not told that the ring was dropped"
        hub.publish("s", log.append())
        listeners[0].until(lambda got: len(got) == 2)
        assert found.wait(PATIENCE_S)
    finally:
        listeners[0].end()


def test_l6_what_is_said_while_a_ring_is_dropped_is_read_from_the_store(log: Log) -> None:
    hub = EventHub(log, rings_max=1)
    hub.publish("s", log.append())
    subscriptions: list[Subscription] = []

    def come() -> None:
        subscriptions.append(hub.subscribe("s", timeout=0.05))
        assert seqs(subscriptions[0]) == [1]

    def go_on() -> None:
        hub.publish("s", log.append())
        for other in ("t", "u", "v"):
            hub.publish(other, log.append(1, other))
        assert "s" not in hub._channels

    hub._channels = Overtaken(hub._channels, come, go_on)
    hub.publish("t", log.append(1, "t"))
    assert seqs(subscriptions[0]) == [2]


def test_l13_a_tap_that_would_end_its_thread_ends_no_publisher(log: Log, hub: EventHub) -> None:
    heard: list[str] = []

    def ends(session: str, events: Sequence[Event]) -> None:
        raise SystemExit(session)

    hub.tap(ends)
    hub.tap(lambda session, events: heard.append(session))
    hub.publish("s", log.append())
    assert heard == ["s"]


# ── Over the real store ───────────────────────────────────────────────────────────────────────────


class Publishing(Owner):
    """What a session does on Committed: publish the events of the batches up to it."""

    def __init__(self, hub: EventHub) -> None:
        super().__init__()
        self.hub = hub
        self.published = 0

    def tell(self, message: Any) -> None:
        assert isinstance(message, Committed), message
        events = [e for number in range(self.published + 1, message.number + 1) for e in batch(number).events]
        self.published = message.number
        self.hub.publish("s", events)
        super().tell(message)


def test_l6_a_subscriber_of_an_event_finds_it_in_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite", clock=StandingClock())
    hub = EventHub(store.reader)
    ports: tuple[Store, Publisher] = (store, hub)
    assert ports
    missing: list[int] = []
    got: list[int] = []
    subscription = hub.subscribe("s")

    def listen() -> None:
        for event in subscription:
            got.append(event.seq)
            if store.reader.events("s", event.seq - 1, 1) != [event]:
                missing.append(event.seq)
            if event.seq == 200:
                return

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        owner = Publishing(hub)
        for number in range(1, 201):
            store.commit(batch(number), owner.ref)
        owner.until_committed(200)
        listener.join(PATIENCE_S)
        assert got == list(range(1, 201))
        assert missing == []
    finally:
        hub.close()
        subscription.close()
        listener.join(PATIENCE_S)
        assert store.close(PATIENCE_S)
