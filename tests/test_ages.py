"""What is old by a wall clock that may be set by years: nothing is deleted for a clock that is wrong for a while."""

from __future__ import annotations

import pytest

from supervisor.ages import SETTLE_S, Ages
from tests.kit import YEAR_S
from tests.sim.clock import SimClock

WEEK_S = 7 * 86_400.0


class SetClock(SimClock):
    """Virtual time whose wall clock may be set."""

    ahead_s = 0.0

    def wall(self) -> float:
        """As it was set."""
        return super().wall() + self.ahead_s


def age(ages: Ages, clock: SetClock, made: list[float]) -> float:
    """How old something may be, by the clock as it is, without being too old."""
    return clock.wall() - ages.older_than(WEEK_S, made)


def test_a_clock_that_fits_what_is_kept_is_believed_at_the_start() -> None:
    clock = SetClock()
    assert age(Ages(clock), clock, [clock.wall() - YEAR_S, clock.wall() - 3600.0]) == WEEK_S
    assert age(Ages(clock), clock, []) == WEEK_S


def test_one_that_would_make_all_that_is_kept_too_old_is_believed_when_it_has_settled() -> None:
    clock = SetClock()
    made = [clock.wall()]
    clock.ahead_s = 3 * YEAR_S
    ages = Ages(clock)
    # What has been made since says nothing: it was made by the same clock.
    assert ages.older_than(WEEK_S, [*made, clock.wall()]) < made[0]
    clock.elapse(SETTLE_S / 2)
    assert ages.older_than(WEEK_S, [*made, clock.wall()]) < made[0]
    clock.elapse(SETTLE_S / 2)
    assert age(ages, clock, made) == WEEK_S


@pytest.mark.parametrize("jump_s", [120.0, 3 * YEAR_S])
def test_a_jump_ahead_makes_nothing_older_until_the_clock_has_settled_and_none_if_it_is_put_right(
    jump_s: float,
) -> None:
    clock = SetClock()
    ages = Ages(clock)
    assert age(ages, clock, []) == WEEK_S
    for _ in range(3):
        clock.ahead_s = jump_s
        assert age(ages, clock, []) == WEEK_S + jump_s
        clock.elapse(SETTLE_S - 1)
        assert age(ages, clock, []) == WEEK_S + jump_s
        clock.ahead_s = 0.0
        assert age(ages, clock, []) == WEEK_S
        clock.elapse(60.0)
    clock.ahead_s = jump_s
    assert age(ages, clock, []) == WEEK_S + jump_s
    clock.elapse(SETTLE_S)
    assert age(ages, clock, []) == WEEK_S


def test_a_clock_that_is_set_back_is_believed_at_once() -> None:
    clock = SetClock()
    ages = Ages(clock)
    clock.elapse(SETTLE_S)
    assert age(ages, clock, []) == WEEK_S
    clock.ahead_s = -YEAR_S
    assert age(ages, clock, []) == WEEK_S


def test_a_clock_that_is_slewed_is_believed_all_along() -> None:
    clock = SetClock()
    ages = Ages(clock)
    clock.elapse(SETTLE_S)
    for _ in range(100):
        clock.elapse(SETTLE_S)
        clock.ahead_s += 1.8
        age(ages, clock, [])
    assert age(ages, clock, []) <= WEEK_S + 60.0
