"""A run in virtual time: its agent, its deadline, and what ends it or takes it over."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import pytest

from actors.gate.cell import Cell
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.hierarchy.run import RunActor
from actors.hierarchy.run_agent import RunStart
from actors.kernel.actor import Actor
from actors.kernel.down import Down
from actors.messages import (
    CallRequested,
    Halt,
    PermitRefused,
    PermitWaiting,
    ProcessEnded,
    ProcessReport,
    RunDeadline,
    RunExpired,
    RunFinished,
    SpawnPermit,
    SpawnRefused,
    SpawnRequested,
    ToolResult,
)
from actors.model import Address, How, Outcome, Owner, Provenance
from actors.plugin.registration import Tool
from actors.plugin.turn import AsyncTurn
from actors.ports import Executor, SpawnSpec
from actors.ports import Processes as ProcessesPort
from actors.run_status import RunStatus
from actors.thread import Thread
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

M = TypeVar("M")

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


class Alone:
    """The actor of one run, under a parent that notes what it reports; its agent never ends."""

    def __init__(self, world: World, *, deadline_s: float | None = None, cancelled: bool = False) -> None:
        heard = self.heard = list[Any]()
        killed = self.killed = list[str]()

        class Parent(Actor):
            def on_receive(self, report: Any) -> None:
                heard.append(report)

        async def waits(turn: AsyncTurn) -> None:
            raise AssertionError("never called: nothing is executed here")

        class Nothing:
            """An executor whose executions begin and never end."""

            def start(self, *execution: object) -> None:
                assert not cancelled, "the agent of a closed run is not started"

            def cancel(self, key: str, *, again_s: float | None = None) -> None:
                return

        class Processes:
            def kill(self, process_id: str, grace_s: float) -> None:
                killed.append(process_id)

            def adopt(self, process_id: str, owner: object, session: str) -> None:
                return

        world.answer("s", message("a", "say=1"))
        session = world.session()
        ports = dataclasses.replace(
            session._ports, processes=cast("ProcessesPort", Processes()), executor=cast("Executor", Nothing())
        )
        self.world = world
        self.token = CancelToken(world.executor.call)
        if cancelled:
            self.token.cancel(Provenance(source="user.test", reason="too soon"))
        start = RunStart(waits, "waits", self.token, Credit(1, 1), Thread(), {}, (), deadline_s)
        self.address = Address("s", 1, "run_x")
        self.ref = RunActor.start(
            ports,
            session._plugins,
            self.address,
            start,
            None,
            key="x",
            parent=Parent.start(dispatcher=world.dispatcher),
            dispatcher=world.dispatcher,
        )

    def tell(self, *messages: Any) -> None:
        """Tell it something, and let it take that."""
        for one in messages:
            self.ref.tell(one)
        self.world.wait(0.01)

    def reports(self, kind: type[M]) -> list[M]:
        return [report for report in self.heard if isinstance(report, kind)]

    def call(self, call_id: str = "call_1") -> Future[ToolResult]:
        """Ask for a call, as its agent does; returns what the agent waits on."""
        reply: Future[ToolResult] = Future()
        self.tell(CallRequested(self.address.of_call(call_id), "write", {"seconds": 1.0}, reply=reply, size=1))
        return reply


REFUSED = ToolResult(Outcome.NOT_STARTED, "refused", is_error=True)
HALT = Halt(Provenance(source="user.test", reason="enough"), 2.0)


def test_l8_a_run_that_was_closed_before_its_actors_first_turn_is_born_stopped() -> None:
    with World(0) as world:
        run = Alone(world, cancelled=True)
        world.settle()
        assert not run.ref.is_alive()
        assert [type(report) for report in run.heard] == [RunFinished, Down]
        assert run.heard[0].how is How.NOT_STARTED


def test_a_deadline_that_passed_as_a_call_came_to_the_barrier_stands_still_all_the_same() -> None:
    with World(0) as world:
        run = Alone(world, deadline_s=5.0)
        run.call()
        # It was in the mailbox behind the news of the barrier.
        run.tell(PermitWaiting("call_1"), RunDeadline(1))
        assert run.reports(RunExpired) == []
        world.wait(60.0)
        assert run.reports(RunExpired) == []


def test_a_call_that_is_refused_in_the_barrier_holds_up_the_deadline_no_longer() -> None:
    with World(0) as world:
        run = Alone(world, deadline_s=5.0)
        reply = run.call()
        run.tell(PermitWaiting("call_1"), PermitRefused("call_1", REFUSED))
        assert reply.result(0) is REFUSED
        world.wait(10.0)
        assert len(run.reports(RunExpired)) == 1


def test_a_run_that_was_halted_in_the_barrier_has_no_deadline_any_more() -> None:
    with World(0) as world:
        run = Alone(world, deadline_s=5.0)
        run.call()
        run.tell(PermitWaiting("call_1"), HALT, PermitRefused("call_1", REFUSED))
        world.wait(60.0)
        assert run.reports(RunExpired) == []


def test_l2_a_spawn_whose_call_is_gone_when_its_permit_comes_is_not_made_and_that_is_reported() -> None:
    with World(0) as world:
        run = Alone(world)
        cell: Cell[None] = Cell()
        run.tell(SpawnPermit("call_1", "proc_1", cell))
        assert not cell.start()
        (report,) = run.reports(ProcessReport)
        assert isinstance(report.news, ProcessEnded)
        assert (report.process_id, report.news.how, report.news.proven) == ("proc_1", How.NOT_STARTED, True)


def test_l14_the_cell_of_a_permit_behind_its_refusal_is_not_kept() -> None:
    with World(0) as world:
        run = Alone(world)
        spec, cell = SpawnSpec(("sim",), "sim"), Cell[None]()
        run.tell(SpawnRequested(run.address.of_call("call_1"), "proc_1", spec))
        run.tell(SpawnRefused("call_1", "proc_1"), SpawnPermit("call_1", "proc_1", cell))
        (actor,) = [one for one in world.actors(RunActor) if one.key == "x"]
        assert not actor._cells
        assert not cell.start()


@pytest.mark.parametrize("owner", [Owner.RUN, Owner.SESSION])
def test_l3_a_halt_ends_what_its_run_asked_for_and_nothing_that_was_asked_for_the_session(owner: Owner) -> None:
    with World(0) as world:
        run = Alone(world)
        spec = SpawnSpec(("sim",), "sim")
        run.tell(SpawnRequested(run.address.of_call("call_1"), "proc_1", spec, owner=owner))
        run.tell(HALT)
        assert run.killed == (["proc_1"] if owner is Owner.RUN else [])


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
