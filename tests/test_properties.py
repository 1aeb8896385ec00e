"""The laws over the real actors: any requests, in any order and timing, through faults, failures and crashes.

Everything here is a function of what hypothesis draws: the script, and the seed of the world that it is played in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sim.client import Client, Op
from tests.sim.world import quiet_log

CONTENTS = (
    "say=1",
    "say=3 write=1 say=1",
    "both=2 say=1",
    "write=0.1 run=1 write=0.1",
    "run=30,children=2,output=3",
    "run=30,ignores_term",
    "leave=60 say=1 sleep=1",
    "sleep=60",
    "open=5",
    "deaf=9",
    "stubborn",
    "say=1 steer sleep=1 steer",
    "raise",
    "fail bad",
    "forever",
    "run=1,absent say=1",
    "run=1,lost",
)

# A failure is worth the time that it takes to shrink.
pytestmark = pytest.mark.timeout(600)

contents = st.sampled_from(CONTENTS)
ages = st.sampled_from((None, None, None, 0.0, 0.5, 5.0))
news = st.tuples(
    st.just("new"),
    contents,
    st.sampled_from((None, "interrupt", "enqueue", "enqueue", "steer", "reject", "rollback")),
    st.sampled_from(("user", "user", "bot")),
    st.booleans(),
    ages,
)
stops = st.tuples(
    st.just("stop"),
    st.sampled_from(("graceful", "immediate")),
    st.sampled_from((None, None, 0, 1, 2, 3)),
    st.sampled_from((None, "withdraw", "park", "keep")),
    st.sampled_from(("run", "session")),
    ages,
)
others = st.one_of(
    st.tuples(st.just("withdraw"), st.integers(0, 9)),
    st.just(("resume",)),
    st.tuples(st.just("repeat"), st.integers(0, 9)),
)
pauses = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 60)),
    st.tuples(st.just("steps"), st.integers(1, 60)),
    st.tuples(st.just("wait"), st.sampled_from((0.05, 1.0, 3.0, 9.0))),
    st.tuples(st.just("hold"), st.booleans()),
)
faults = st.one_of(
    st.tuples(st.just("fail"), st.integers(1, 2)),
    st.tuples(st.just("lose"), st.integers(1, 2)),
    st.tuples(st.just("down"), st.booleans()),
)
failures = st.tuples(st.just("poison"), st.integers(0, 3), st.integers(0, 3), st.booleans())
seeds = st.integers(0, 2**32)


def script(*more: st.SearchStrategy[Any], size: int = 20) -> st.SearchStrategy[list[Op]]:
    """Draw a script of requests and pauses, with what is given mixed in."""
    return st.lists(
        st.one_of(news, news, stops, others, pauses, pauses, pauses, *more), min_size=min(size, 6), max_size=size
    )


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with quiet_log():
        yield


profile = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@profile
@given(seed=seeds, script=script())
def test_every_request_in_every_order_keeps_the_laws(seed: int, script: list[Op]) -> None:
    with Client(seed) as client:
        client.play(script)


@profile
@given(seed=seeds, script=script(faults))
def test_l13_the_laws_hold_through_a_store_that_fails(seed: int, script: list[Op]) -> None:
    with Client(seed) as client:
        client.play(script)


@profile
@given(seed=seeds, script=script(failures))
def test_l13_the_laws_hold_through_actors_that_fail(seed: int, script: list[Op]) -> None:
    with Client(seed) as client:
        client.play(script)


@profile
@given(seed=seeds, script=script(st.just(("crash",))))
def test_l12_the_laws_hold_through_crashes_of_the_daemon(seed: int, script: list[Op]) -> None:
    with Client(seed) as client:
        client.play(script)


@profile
@given(seed=seeds, script=script(faults, failures, st.just(("crash",)), size=28))
def test_the_laws_hold_through_all_of_it_together(seed: int, script: list[Op]) -> None:
    with Client(seed) as client:
        client.play(script)
