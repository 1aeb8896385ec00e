"""Credit: what is under way is bounded, and what nobody waits for any more is given back."""

from __future__ import annotations

from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from actors.gate.credit import Credit


def taken(credit: Credit, size: int) -> Future[None]:
    """Take credit that is not there: the future that waits for it."""
    waiter = credit.take(size)
    assert waiter is not None
    return waiter


def test_waiters_continue_in_order() -> None:
    credit = Credit(2, 10)
    assert credit.take(10) is None
    first, second = taken(credit, 6), taken(credit, 5)
    credit.give(10)
    assert first.done()
    assert not second.done()
    credit.give(6)
    assert second.done()


def test_one_that_gives_up_lets_the_waiters_after_it_continue() -> None:
    credit = Credit(3, 10)
    assert credit.take(8) is None
    large, small = taken(credit, 9), taken(credit, 2)
    credit.give_up(9, large)
    assert large.cancelled()
    assert small.done()
    assert not small.cancelled()


def test_one_that_gives_up_after_its_grant_gives_it_back() -> None:
    credit = Credit(1, 10)
    assert credit.take(10) is None
    waiter = taken(credit, 10)
    credit.give(10)
    assert waiter.done()
    credit.give_up(10, waiter)
    assert credit.take(10) is None


def test_a_grant_that_finds_its_waiter_gone_is_given_to_the_next() -> None:
    credit = Credit(1, 10)
    assert credit.take(10) is None
    gone, next_one = taken(credit, 10), taken(credit, 10)
    gone.add_done_callback(lambda _: None)
    gone.cancel()
    credit.give(10)
    assert next_one.done()
    credit.give(10)
    assert credit.take(10) is None


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "give up"]), st.integers(0, 12), st.integers(0, 99))))
def test_when_all_was_given_back_all_of_the_credit_is_there(steps: list[tuple[str, int, int]]) -> None:
    credit = Credit(3, 10)
    under_way: list[int] = []
    waiting: list[tuple[int, Future[None]]] = []
    for step, size, pick in steps:
        if step == "take":
            waiter = credit.take(size)
            if waiter is None:
                under_way.append(size)
            else:
                waiting.append((size, waiter))
        elif step == "give" and under_way:
            credit.give(under_way.pop(pick % len(under_way)))
        elif step == "give up" and waiting:
            # Granted or not: it goes away.
            credit.give_up(*waiting.pop(pick % len(waiting)))
    for size, waiter in waiting:
        credit.give_up(size, waiter)
    for size in under_way:
        credit.give(size)
    assert credit.take(4) is None
    assert credit.take(3) is None
    assert credit.take(3) is None
    assert credit.take(0) is not None


def test_an_account_that_is_kept_elsewhere_gets_each_credit_back_at_most_once() -> None:
    credit = Credit(2, 10)
    given: list[tuple[int, int]] = []
    credit.on_given = lambda events, size: given.append((events, size))
    assert credit.take(99) is None
    waiter = taken(credit, 4)
    credit.give(99)
    assert given == [(1, 10)], "an event takes no more than there is"
    assert waiter.done()
    # What is given up was never given to it.
    credit.give_up(4, waiter)
    assert given == [(1, 10)]
    credit.on_given = None
    assert credit.take(1) is None
    credit.give(1)
    assert given == [(1, 10)]
