"""A run in virtual time: its agent, its deadline, and what ends it or takes it over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.agent import AsyncTurn
from actors.base import Actor
from actors.cancel import CancelToken
from actors.credit import Credit
from actors.messages import Down, RunFinished
from actors.model import Address, How, Provenance, RunStatus
from actors.plugins import Tool
from actors.run import RunActor, RunStart
from actors.thread import Thread
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_times_out_with_a_message_waiting_gives_way_to_it(seed: int) -> None:
    with World(seed, settings=settings(run_deadline_s=5.0)) as world:
        first = world.answer("s", message("a", "forever"))
        second = world.answer("s", message("b", "say=1", policy="enqueue"))
        settled(world)
        assert world.status(first.run_id) is RunStatus.EXPIRED
        assert world.status(second.run_id) is RunStatus.COMPLETED
        expired = world.disk.run(first.run_id)
        assert expired is not None
        assert expired.provenance is not None
        assert expired.provenance.source == "run.deadline"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_in_the_sleep_of_a_backoff_ends_it_now(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "sleep=60"))
        world.wait(1.0)
        before = world.clock.monotonic()
        assert world.answer("s", stop()).outcome == "stopped"
        assert world.run(lambda: world.status(run.run_id) is RunStatus.CANCELLED)
        assert world.clock.monotonic() - before < 0.1
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_deadlines_stand_still_in_the_barrier(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that hesitates for 3 s before the agent has asked for its call would let the run expire, rightly.
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(run_deadline_s=3.0, grace_s=6.0)) as world:
        world.answer("s", message("a", "run=60,ignores_term"))
        world.wait(1.0)
        second = world.answer("s", message("b", "write=0.5"))
        settled(world)
        # The old tree takes all of its grace of 6 s, which is more than the deadline of 3 s.
        assert world.status(second.run_id) is RunStatus.COMPLETED
        ended = next(event for event in of(world, "process.ended"))
        begun = next(event for event in of(world, "tool.started") if event.run_id == second.run_id)
        assert ended.seq < begun.seq


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_run_whose_actor_fails_is_failed_with_a_cause_and_what_it_had_is_ended(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "say=1 run=60,ignores_term,output=500"))
        assert world.run(lambda: bool(of(world, "process.started")))
        other = world.answer("t", message("b", "say=1 sleep=30 say=1"))
        world.poison(RunActor)
        settled(world)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.FAILED, "actor.failure")
        assert not world.processes.alive()
        assert not world.executor.running()
        assert world.status(other.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_an_agent_that_swallows_many_cancels_is_cancelled_until_it_ends(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "stubborn stubborn stubborn"))
        world.wait(1.0)
        world.answer("s", stop())
        settled(world)
        assert not world.executor.running()
        assert world.status(run.run_id) is RunStatus.CANCELLED


def test_l8_a_run_that_was_closed_before_its_actors_first_turn_is_born_stopped() -> None:
    heard: list[Any] = []

    class Parent(Actor):
        def on_receive(self, report: Any) -> None:
            heard.append(report)

    def never(turn: AsyncTurn) -> None:
        raise AssertionError("the agent of a closed run is not called")

    with World(0) as world:
        world.answer("s", message("a", "say=1"))
        session = world.session()
        token = CancelToken(world.executor.call)
        token.cancel(Provenance(source="user.test", reason="too soon"))
        start = RunStart(never, "never", token, Credit(1, 1), Thread(), (), None)
        parent = Parent.start(dispatcher=world.dispatcher)
        address = Address("s", 1, "run_x")
        child = RunActor.start(
            session._ports, session._plugins, address, start, None, key="x", parent=parent, dispatcher=world.dispatcher
        )
        world.settle()
        assert not child.is_alive()
        assert [type(report) for report in heard] == [RunFinished, Down]
        assert heard[0].how is How.NOT_STARTED


def test_a_plain_function_is_refused_with_the_reason() -> None:
    def plain(turn: AsyncTurn) -> None:
        raise AssertionError("never called")

    with World(0, agents={"scripted": plain}) as world:
        world.watch.faults = True
        run = world.answer("s", message("a", "say=1"))
        world.settle()
        assert world.status(run.run_id) is RunStatus.FAILED
        assert any("needs a thread" in error for error in world.errors)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_left_of_a_deadline_before_a_wait_in_the_barrier_is_left_after_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(run_deadline_s=3.0, grace_s=6.0)) as world:
        world.answer("s", message("a", "run=60,ignores_term"))
        world.wait(1.0)
        # It has worked for 2 s when it comes to the barrier, and would for 2 s more behind it.
        second = world.answer("s", message("b", "sleep=2 write=2"))
        began = world.clock.monotonic()
        assert world.run(lambda: world.status(second.run_id) is RunStatus.EXPIRED)
        begun = next(event for event in of(world, "tool.started") if event.run_id == second.run_id)
        assert begun.at - world.events()[0].at > 6.0, "its call waited for the tree of the first"
        assert world.clock.monotonic() - began > 6.0
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("own", "configured", "outcome"), [(5.0, 1.0, "finished"), (1.0, 5.0, "interrupted")])
def test_a_tools_own_deadline_goes_before_the_configured_one(
    seed: int, own: float, configured: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)

    async def slow() -> str:
        """Take 3 s."""
        await asyncio.sleep(3.0)
        return "done"

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("slow")

    slow_tool = Tool(slow, isolation="task", deadline_s=own)
    with World(
        seed, agents={"scripted": agent}, more_tools=[slow_tool], settings=settings(call_deadline_s=configured)
    ) as world:
        world.answer("s", message("a", "go"))
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tool_without_a_deadline_has_the_configured_one(seed: int) -> None:
    with World(seed, settings=settings(call_deadline_s=1.0)) as world:
        world.answer("s", message("a", "write=60"))
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == "interrupted"
