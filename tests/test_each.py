"""Each: one step that fails keeps no other from being done, and the first failure is raised."""

from __future__ import annotations

import pytest

from actors.kernel.each import Each


def test_every_step_is_done_and_the_first_failure_is_raised() -> None:
    done = list[int]()

    def step(number: int) -> None:
        done.append(number)
        if number % 2:
            raise SystemExit(number)

    def steps() -> None:
        with Each() as each:
            for number in range(4):
                each.do(step, number)

    with pytest.raises(SystemExit) as raised:
        steps()
    assert raised.value.code == 1
    assert done == [0, 1, 2, 3]


def test_what_is_raised_in_the_context_itself_is_raised() -> None:
    def fails(error: Exception) -> None:
        raise error

    def steps() -> None:
        with Each() as each:
            each.do(fails, ValueError("a step"))
            fails(KeyError("the context"))

    with pytest.raises(KeyError):
        steps()
