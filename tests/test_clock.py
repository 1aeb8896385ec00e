"""The machine's clock: its one thread serves all timers, and nothing that a timer comes to ends it."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
from msgspec import Struct
from pykka import ActorDeadError, ActorRef

from supervisor.clock import SWEEP_MIN, SystemClock

WAIT_S = 10.0
FAR_S = 1e6


class Due(Struct, frozen=True):
    """What a timer tells."""

    number: int


class Hears:
    """A ref that keeps what is told to it, or fails as it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: queue.SimpleQueue[Due] = queue.SimpleQueue()
        self.error = error
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def tell(self, message: Any) -> None:
        self.heard.put(message)
        if self.error is not None:
            raise self.error

    @property
    def ref(self) -> ActorRef[Any]:
        return cast("ActorRef[Any]", self)

    def next(self) -> Due:
        return self.heard.get(timeout=WAIT_S)


@pytest.fixture
def clock() -> Iterator[SystemClock]:
    made = SystemClock()
    try:
        yield made
    finally:
        made.close(WAIT_S)


def test_timers_fire_in_the_order_of_their_times_and_one_taken_back_does_not(clock: SystemClock) -> None:
    class Holds(Hears):
        """Keeps the clock's thread until all timers are set, however long that takes."""

        def __init__(self) -> None:
            super().__init__()
            self.set = threading.Event()

        def tell(self, message: Any) -> None:
            super().tell(message)
            assert self.set.wait(WAIT_S)

    holds, hears = Holds(), Hears()
    clock.call_later(0.0, holds.ref, Due(9))
    assert holds.next() == Due(9)
    now = clock.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "monotonic", lambda: now)
        clock.call_later(0.02, hears.ref, Due(2))
        clock.call_later(0.01, hears.ref, Due(0)).cancel()
        clock.call_later(0.0, hears.ref, Due(1))
    holds.set.set()
    assert [hears.next(), hears.next()] == [Due(1), Due(2)]
    assert hears.heard.empty()


@pytest.mark.parametrize("delay_s", [1e9, 1e11, 1e300, float("inf"), float("nan")])
def test_a_delay_longer_than_any_wait_keeps_no_timer_from_firing(clock: SystemClock, delay_s: float) -> None:
    hears = Hears()
    # Alone in the heap, so that the thread waits for it, and then beside one that is due.
    clock.call_later(0.0, hears.ref, Due(1))
    assert hears.next() == Due(1)
    clock.call_later(delay_s, hears.ref, Due(0))
    clock.call_later(0.0, hears.ref, Due(2))
    assert hears.next() == Due(2)
    clock.call_later(0.0, hears.ref, Due(3))
    assert hears.next() == Due(3)
    assert clock._thread is not None
    assert clock._thread.is_alive()


def test_an_infinite_delay_never_fires_and_holds_nothing(clock: SystemClock) -> None:
    for delay_s in (float("inf"), float("nan"), float("-inf")):
        clock.call_later(delay_s, Hears().ref, Due(0))
    assert not clock._heap


@pytest.mark.parametrize("error", [ActorDeadError("gone"), RuntimeError("broken")], ids=["dead", "broken"])
def test_a_timer_whose_message_cannot_be_sent_keeps_no_other_from_firing(clock: SystemClock, error: Exception) -> None:
    broken, hears = Hears(error), Hears()
    clock.call_later(0.0, broken.ref, Due(1))
    assert broken.next() == Due(1)
    clock.call_later(0.0, hears.ref, Due(2))
    assert hears.next() == Due(2)


def test_l14_timers_that_were_taken_back_are_let_go_before_they_are_due(clock: SystemClock) -> None:
    hears = Hears()
    clock.call_later(FAR_S, hears.ref, Due(0))
    for number in range(10 * SWEEP_MIN):
        clock.call_later(FAR_S, hears.ref, Due(number)).cancel()
    assert len(clock._heap) <= SWEEP_MIN
    clock.call_later(0.0, hears.ref, Due(1))
    assert hears.next() == Due(1)
    assert [timer.message for _, _, timer in clock._heap if timer.ref is not None] == [Due(0)], "those that count stay"


def test_l14_an_actor_that_has_ended_is_not_held_by_its_timers_until_they_are_due(clock: SystemClock) -> None:
    lives, refs = Hears(), []
    clock.call_later(FAR_S, lives.ref, Due(0))
    for number in range(10 * SWEEP_MIN):
        ended = Hears()
        refs.append(weakref.ref(ended))
        clock.call_later(FAR_S, ended.ref, Due(number))
        ended.alive = False
    del ended
    assert sum(ref() is not None for ref in refs) <= SWEEP_MIN
    assert [timer.message for _, _, timer in clock._heap if timer.counts] == [Due(0)], "that of a living one stays"


def test_after_the_close_a_timer_is_a_no_op_and_again_is_harmless(clock: SystemClock) -> None:
    hears = Hears()
    clock.call_later(0.0, hears.ref, Due(1))
    assert hears.next() == Due(1)
    clock.close(WAIT_S)
    clock.close(WAIT_S)
    clock.call_later(0.0, hears.ref, Due(2)).cancel()
    assert not clock._heap


def test_l7_a_timer_that_is_set_where_no_thread_can_be_had_fires(
    clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    hears = Hears()
    clock.call_later(0.0, hears.ref, Due(1))
    assert hears.next() == Due(1)
