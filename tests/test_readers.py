"""Which pipe is read when: at once after a silence, once a tick where little comes, a few a turn whatever comes."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

import pytest

from supervisor.containment.readers import EAGER_AFTER_TICKS, MUCH_BYTES, SLICE, TICK_MAX_S, Readers

TICK_S = 0.01


class HandClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Pipes:
    """Readers over real pipes, turned by hand."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.readers = Readers(self.clock, TICK_S)  # type: ignore[arg-type]  # it asks for the time alone
        self.read: list[tuple[int, int]] = []
        self.on_read: Callable[[int], None] = lambda number: None
        self.costs_s = 0.0
        self.ends: list[tuple[int, int]] = []

    def add(self) -> int:
        readable, writable = os.pipe2(os.O_NONBLOCK)
        number = len(self.ends)
        self.ends.append((readable, writable))

        def call() -> bool:
            self.on_read(number)
            self.clock.now += self.costs_s
            data = os.read(readable, MUCH_BYTES)
            self.read.append((number, len(data)))
            return len(data) >= MUCH_BYTES

        self.readers.add(readable, call)
        return number

    def write(self, number: int, size: int = 1) -> None:
        os.write(self.ends[number][1], b"x" * size)

    def remove(self, number: int) -> None:
        self.readers.remove(self.ends[number][0])

    def turn(self) -> list[tuple[int, int]]:
        """One turn of the thread; who was read in it, and how much."""
        self.read.clear()
        woken = bool(select.select([self.readers.fileno()], [], [], 0)[0])
        self.readers.turn(lambda call: call(), woken=woken)
        return sorted(self.read)

    def tick(self) -> list[tuple[int, int]]:
        self.clock.now += TICK_S
        return self.turn()


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    try:
        yield made
    finally:
        made.readers.close()
        for fd in [fd for ends in made.ends for fd in ends]:
            os.close(fd)


def test_what_comes_after_a_silence_is_read_at_once_and_what_follows_it_with_the_next_tick(pipes: Pipes) -> None:
    one = pipes.add()
    assert pipes.readers.wait_s() is None
    pipes.write(one)
    assert pipes.turn() == [(one, 1)]
    pipes.tick()
    pipes.write(one)
    pipes.write(one)
    assert pipes.turn() == []
    wait_s = pipes.readers.wait_s()
    assert wait_s is not None
    assert wait_s == pytest.approx(TICK_S)
    assert pipes.tick() == [(one, 2)]


def test_all_pipes_with_little_output_are_read_in_one_tick(pipes: Pipes) -> None:
    some = [pipes.add() for _ in range(SLICE)]
    for number in some:
        pipes.write(number)
    pipes.turn()
    pipes.tick()
    for number in some:
        pipes.write(number)
        assert pipes.turn() == []
    assert pipes.tick() == [(number, 1) for number in some]


def test_one_that_brings_much_is_read_again_at_once(pipes: Pipes) -> None:
    flood = pipes.add()
    for _ in range(5):
        pipes.write(flood, MUCH_BYTES)
        assert pipes.turn() == [(flood, MUCH_BYTES)]


def test_one_that_was_lazy_and_brings_much_is_eager_from_then_on(pipes: Pipes) -> None:
    one = pipes.add()
    pipes.write(one)
    pipes.turn()
    pipes.write(one, MUCH_BYTES)
    assert pipes.tick() == [(one, MUCH_BYTES)]
    pipes.write(one, MUCH_BYTES)
    assert pipes.turn() == [(one, MUCH_BYTES)]


def test_one_that_has_been_silent_for_some_ticks_is_read_at_once_again(pipes: Pipes) -> None:
    one = pipes.add()
    pipes.write(one)
    pipes.turn()
    for _ in range(2 * EAGER_AFTER_TICKS):
        assert pipes.tick() == []
    assert pipes.readers.wait_s() is None
    pipes.write(one)
    assert pipes.turn() == [(one, 1)]


@pytest.mark.parametrize("size", [1, MUCH_BYTES])
def test_l14_a_turn_serves_a_few_and_no_reader_waits_for_more_turns_than_it_takes(pipes: Pipes, size: int) -> None:
    everybody = {pipes.add() for _ in range(5 * SLICE)}
    for number in everybody:
        pipes.write(number)
    for _ in range(5):
        pipes.turn()
    pipes.tick()
    for number in everybody:
        pipes.write(number, size)
    served: set[int] = set()
    pipes.clock.now += TICK_S
    for _ in range(5):
        turn = pipes.turn()
        assert 0 < len(turn) <= SLICE
        served |= {number for number, _ in turn}
    assert served == everybody


def test_l14_among_floods_that_never_end_a_small_voice_has_its_turn(pipes: Pipes) -> None:
    floods = [pipes.add() for _ in range(3 * SLICE)]
    pipes.on_read = lambda number: pipes.write(number, MUCH_BYTES) if number in floods else None
    for number in floods:
        pipes.write(number, MUCH_BYTES)
    pipes.turn()
    small = pipes.add()
    pipes.write(small)
    for _ in range(4):
        turn = pipes.turn()
        assert len(turn) <= SLICE
        if (small, 1) in turn:
            return
    raise AssertionError("it was not heard")


def test_l14_the_tick_grows_with_what_the_lazy_ones_cost_up_to_a_limit(pipes: Pipes) -> None:
    one = pipes.add()
    for costs_s, longest_s in ((0.003, 0.031), (10.0, TICK_MAX_S)):
        pipes.costs_s = 0.0
        pipes.write(one)
        pipes.clock.now += 1.0
        pipes.turn()
        pipes.costs_s = costs_s
        pipes.write(one)
        pipes.clock.now += 1.0
        began = pipes.clock.now
        assert pipes.turn() == [(one, 1)]
        wait_s = pipes.readers.wait_s()
        assert wait_s is not None
        assert wait_s == pytest.approx(max(0.0, began + min(costs_s * 10, TICK_MAX_S) - pipes.clock.now))
        assert wait_s <= longest_s


def test_a_reader_that_is_removed_before_its_turn_is_not_read_nor_is_the_next_one_with_its_number(
    pipes: Pipes,
) -> None:
    first, second = pipes.add(), pipes.add()
    for number in (first, second):
        pipes.write(number)
    pipes.turn()
    pipes.tick()
    for number in (first, second):
        pipes.write(number)

    def remove_the_other(number: int) -> None:
        other = second if number == first else first
        pipes.remove(other)
        # Its number is somebody else's from now on, who has nothing to read.
        stranger, unused = os.pipe2(os.O_NONBLOCK)
        os.dup2(stranger, pipes.ends[other][0])
        os.close(stranger)
        pipes.readers.add(pipes.ends[other][0], lambda: pytest.fail("a stranger was read"))
        pipes.on_read = lambda number: None
        pipes.ends.append((unused, os.dup(unused)))

    pipes.on_read = remove_the_other
    assert len(pipes.tick()) == 1
    assert pipes.turn() == []


def test_one_that_removes_itself_is_read_no_more(pipes: Pipes) -> None:
    one = pipes.add()
    pipes.write(one)
    pipes.on_read = pipes.remove
    assert pipes.turn() == [(one, 1)]
    pipes.write(one)
    pipes.clock.now += 1.0
    assert pipes.turn() == []
    assert pipes.readers.wait_s() is None


def test_a_reader_that_fails_disturbs_no_other(pipes: Pipes) -> None:
    broken, fine = pipes.add(), pipes.add()
    for number in (broken, fine):
        pipes.write(number)

    def fail(number: int) -> None:
        if number == broken:
            raise OSError("broken")

    def contain(call: Callable[[], bool]) -> bool | None:
        try:
            return call()
        except OSError:
            return None

    pipes.on_read = fail
    pipes.readers.turn(contain, woken=True)
    assert (fine, 1) in pipes.read
