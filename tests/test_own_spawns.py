"""Processes that an agent starts itself, in no call: on record, behind the barrier, parts below the agent."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from actors import AsyncTurn, Turn
from actors.errors import QueueFull, Refused
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.model import Barrier, How, Owner, Row
from actors.plugin.registration import Tool
from actors.plugin.spawning import AsyncProcess, AsyncSpawn
from actors.run_status import RunStatus
from tests.kit import WAIT_S, Kit, check_rest
from tests.kit import say as say_to
from tests.kit import stop as stop_it
from tests.process_kit import until
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop


def agents_row(world: World, run_id: str) -> Row:
    receipt = world.disk.receipt(run_id)
    assert receipt is not None
    assert receipt.complete
    (row,) = [row for row in receipt.rows if row.kind == "agent"]
    return row


def filed(world: World, run_id: str) -> None:
    assert world.run(lambda: world.disk.receipt(run_id) is not None)


def say(world: World, content: str, request_id: str = "a", **changes: Any) -> str:
    run_id = world.answer("s", message(request_id, content, **changes)).run_id
    assert isinstance(run_id, str)
    return run_id


# ── Its life ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_process_of_the_agents_own_is_a_part_below_the_agent_and_in_no_call(seed: int) -> None:
    with World(seed) as world:
        run = say(world, "own=1,exit=3,output=2,children=1 say=1")
        settled(world)
        assert world.status(run) is RunStatus.COMPLETED
        (row,) = agents_row(world, run).rows
        assert (row.kind, row.name, row.how, row.status) == ("process", "sim", How.EXIT, 3)
        (started,), (ended,) = of(world, "process.started"), of(world, "process.ended")
        assert "call_id" not in started.data
        assert "call_id" not in ended.data
        assert {event.data["process_id"] for event in of(world, "run.output")} == {started.data["process_id"]}
        assert not of(world, "tool.requested")
        assert not world.watch.broken


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_one_that_is_left_ends_with_its_run(seed: int) -> None:
    with World(seed) as world:
        run = say(world, "own_left=60 say=1")
        settled(world)
        (row,) = agents_row(world, run).rows
        assert row.how is How.SIGTERM
        assert row.provenance is not None
        assert row.provenance.source == "run.ended"


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_one_of_the_sessions_outlives_its_run_and_a_stop_of_the_session_ends_it(seed: int) -> None:
    for word in ("own_serve=60", "own_hand=60"):
        with World(seed) as world:
            run = say(world, f"{word} say=1")
            filed(world, run)
            (row,) = agents_row(world, run).rows
            assert row.how is How.HANDED_OVER
            (tree,) = [one for one in world.disk.of("s").processes.values() if one.owner is Owner.SESSION]
            assert world.processes.lives(tree.process_id)
            world.answer("s", stop(scope="session"))
            settled(world)
            assert not world.processes.lives(tree.process_id)
            (ended,) = of(world, "process.ended")
            assert "call_id" not in ended.data
            assert ended.data["provenance"]["source"] == "user.test"


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_there_are_as_many_as_a_run_may_have(seed: int) -> None:
    full = list[BaseException]()

    async def agent(turn: AsyncTurn) -> None:
        for _ in range(2):
            await turn.spawn(["sim", "runs=60"])
        with pytest.raises(QueueFull) as caught:
            await turn.spawn(["sim", "runs=60"])
        full.append(caught.value)

    with World(seed, settings=settings(processes_max=2), agents={"scripted": agent}) as world:
        say(world, "go")
        settled(world)
    assert len(full) == 1


# ── Given up at each moment ───────────────────────────────────────────────────────────────────────


class Asker:
    """An agent, or its tool, that asks for a process in a task of its own, does not wait for it, and goes on.

    Where its message is `leave` the agent leaves a process behind, which takes its time to end.
    """

    def __init__(self, who: str, owner: Owner) -> None:
        self.who, self.owner = who, owner
        self.asked: asyncio.Task[AsyncProcess] | None = None

    async def __call__(self, turn: AsyncTurn) -> None:
        """Be the agent."""
        if turn.inputs[-1].content == "leave":
            await turn.spawn(["sim", "runs=3600", "ignores_term"])
            await asyncio.Event().wait()
        elif self.who == "agent":
            await self.ask(turn.spawn)
        else:
            await turn.call("start")

    async def ask(self, spawn: AsyncSpawn) -> str:
        """Ask. The run, or the call, is open for long after that."""
        self.asked = asyncio.create_task(spawn(["sim", "runs=3600", "ignores_term", "children=1"], owner=self.owner))
        await asyncio.wait([self.asked])
        await asyncio.Event().wait()
        return "over"

    def give_up(self, world: World) -> None:
        """Cancel the await, on the loop, as a time limit does."""
        assert self.asked is not None
        world.executor._loop.call_soon(self.asked.cancel)


@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind the barrier"])
@pytest.mark.parametrize("owner", list(Owner))
@pytest.mark.parametrize("who", ["agent", "tool"])
@pytest.mark.parametrize("moment", range(20))
def test_l5_a_spawn_that_is_given_up_at_any_moment_leaves_no_process_while_the_run_continues(
    moment: int, who: str, owner: Owner, behind: bool
) -> None:
    asker = Asker(who, owner)
    tools = [Tool(asker.ask, name="start", isolation="task")]
    with World(moment, agents={"scripted": asker}, more_tools=tools) as world:
        if behind:
            say(world, "leave", "first")
            assert world.run(lambda: bool(of(world, "process.started")))
        run = say(world, "go", policy="interrupt")
        assert world.run(lambda: asker.asked is not None)
        # Every moment from the request to the start of the process, one step later each time.
        world.run(max_steps=2 * moment)
        asker.give_up(world)
        assert asker.asked is not None
        assert world.run(asker.asked.done)
        got = not asker.asked.cancelled()
        world.wait(20.0)
        assert world.status(run) is RunStatus.IN_PROGRESS
        mine = [row for row in world.disk.of("s").processes.values() if row.run_id == run]
        assert got or not any(world.processes.lives(row.process_id) for row in mine)
        for event in of(world, "process.ended"):
            if event.data["process_id"] in [row.process_id for row in mine] and event.data["how"] != "not_started":
                assert event.data["how"] == "sigkill"
                assert event.data["provenance"]["source"] == "call.given_up"
        world.answer("s", stop(scope="session"))
        settled(world)
        assert not world.errors
        receipt = world.disk.receipt(run)
        assert receipt is not None
        assert receipt.complete
        assert not world.processes.alive()


@pytest.mark.parametrize("then", ["stop", "crash", "RunActor", "ToolActor", "ProcessActor", "SessionActor"])
@pytest.mark.parametrize("owner", list(Owner))
@pytest.mark.parametrize("who", ["agent", "tool"])
@pytest.mark.parametrize("moment", range(16))
def test_l3_whatever_comes_right_behind_a_spawn_that_is_given_up_no_process_is_left(
    moment: int, who: str, owner: Owner, then: str
) -> None:
    asker = Asker(who, owner)
    tools = [Tool(asker.ask, name="start", isolation="task")]
    with World(moment, agents={"scripted": asker}, more_tools=tools) as world:
        run = say(world, "go")
        assert world.run(lambda: asker.asked is not None)
        world.run(max_steps=2 * moment)
        asker.give_up(world)
        world.run(max_steps=moment % 5)
        if then == "crash":
            after = world.crash()
        else:
            after = world
            kinds = {one.__name__: one for one in (RunActor, ToolActor, ProcessActor, SessionActor)}
            if then != "stop":
                world.poison(kinds[then])
        with after:
            if then != "stop":
                after.wait(20.0)
            # Whatever became of it, a person ends what is left.
            after.answer("s", stop(scope="session"))
            settled(after)
            assert not after.processes.alive()
            receipt = after.disk.receipt(run)
            assert receipt is not None
            assert receipt.complete


# ── Stopped at each moment ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_a_stop_while_its_permit_waits_for_the_disk_leaves_nothing_to_spawn(seed: int) -> None:
    with World(seed) as world:
        run = say(world, "say=1 own_left=60 forever")
        world.store.hold(True)
        recorded = lambda: any(one.processes for one in world.session()._protocol.state.records())  # noqa: E731
        if not world.run(recorded):
            world.store.hold(False)
            assert world.run(recorded)
            world.store.hold(True)
        answer = world.ask("s", stop())
        world.wait(0.5)
        world.store.hold(False)
        assert world.run(answer.done)
        settled(world)
        assert not world.errors
        receipt = world.disk.receipt(run)
        assert receipt is not None
        assert receipt.complete


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_l2_a_stop_at_any_moment_leaves_no_process_and_a_complete_receipt(seed: int, after_s: float) -> None:
    with World(seed) as world:
        run = say(world, "own_left=60,output=5,children=2 own=60 forever")
        world.wait(after_s)
        world.answer("s", stop())
        settled(world)
        assert world.status(run) is RunStatus.CANCELLED
        for row in agents_row(world, run).rows:
            assert row.how in (How.SIGTERM, How.NOT_STARTED)
        assert not any(world.processes.lives(one.process_id) for one in world.disk.of("s").processes.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_the_note_says_that_what_the_agent_started_may_have_had_effects(seed: int) -> None:
    with World(seed) as world:
        say(world, "own_left=60 forever")
        assert world.run(lambda: bool(of(world, "process.started")))
        world.answer("s", stop())
        settled(world)
        (note,) = [one.content for one in world.thread() if one.role == "note"]
        assert "may have had effects" in note


# ── The barrier ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_it_waits_until_the_parts_of_an_earlier_run_have_ended(seed: int) -> None:
    with World(seed) as world:
        first = say(world, "own_left=60,ignores_term forever")
        assert world.run(lambda: bool(of(world, "process.started")))
        second = say(world, "own=0.1 say=1", "b", policy="interrupt")
        settled(world)
        assert world.status(second) is RunStatus.COMPLETED
        story = [(event.kind, event.run_id) for event in world.events() if event.kind.startswith("process.")]
        assert story.index(("process.ended", first)) < story.index(("process.started", second))


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_a_stop_ends_the_wait_for_the_barrier(seed: int) -> None:
    with World(seed) as world:
        say(world, "own_left=60,ignores_term forever")
        assert world.run(lambda: bool(of(world, "process.started")))
        second = say(world, "own=0.1 say=1", "b", policy="interrupt")
        assert world.run(lambda: any(one.spawns for one in world.session()._protocol.state.records()))
        world.answer("s", stop("x2"))
        settled(world)
        assert world.status(second) is RunStatus.CANCELLED
        assert len(of(world, "process.started")) == 1
        assert not agents_row(world, second).rows


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_strict_barrier_that_does_not_open_refuses_it(seed: int) -> None:
    refused = list[str]()

    async def agent(turn: AsyncTurn) -> None:
        if not turn.inputs[0].content.startswith("second"):
            await turn.spawn(["sim", "runs=60", "never_dies"])
            await asyncio.Event().wait()
        for _ in range(2):
            try:
                await turn.spawn(["sim", "runs=1"])
            except Refused as error:
                refused.append(error.result.content)

    with World(seed, settings=settings(barrier=Barrier.STRICT), agents={"scripted": agent}) as world:
        say(world, "first")
        assert world.run(lambda: bool(of(world, "process.started")))
        say(world, "second", "b", policy="interrupt")
        assert world.run(lambda: len(refused) == 2)
        assert all("could not be ended (process sim)" in text for text in refused)
        assert len(of(world, "process.started")) == 1


# ── Failures ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [ProcessActor, RunActor])
@pytest.mark.parametrize("seed", SEEDS)
def test_l13_it_ends_where_its_actor_or_its_runs_fails(seed: int, kind: Any) -> None:
    with World(seed) as world:
        run = say(world, "own_left=60 forever")
        assert world.run(lambda: bool(of(world, "process.started")))
        world.poison(kind)
        world.wait(0.1)
        world.answer("s", stop())
        settled(world)
        (row,) = agents_row(world, run).rows
        assert row.how is How.SIGTERM


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_after_a_crash_it_is_proven_dead_and_its_run_is_not_tried_again(seed: int) -> None:
    with World(seed, settings=settings(attempts_max=3)) as world:
        run = say(world, "own_left=60 forever")
        assert world.run(lambda: bool(of(world, "process.started")))
        again = world.crash()
    with again as world:
        settled(world)
        assert [event.run_id for event in of(world, "run.started")] == [run]
        (row,) = agents_row(world, run).rows
        assert row.kind == "process"
        assert not any(world.processes.lives(one.process_id) for one in world.disk.of("s").processes.values())


# ── Real processes ────────────────────────────────────────────────────────────────────────────────


def test_a_plain_agent_runs_a_command_reads_its_output_and_ends_one(kit: Kit) -> None:
    seen = dict[str, Any]()

    def agent(turn: Turn) -> None:
        done = turn.spawn(["sh", "-c", "cat; echo $COUNTERMAND_FENCE >&2; exit 4"], stdin=b"typed\n").wait(WAIT_S)
        seen.update(status=done.status, output=done.output, fence=turn.address.fence)
        other = turn.spawn(["sleep", "60"], name="sleeper")
        seen["pid"] = other.pid
        other.kill(0.0)
        seen["killed"] = other.wait(WAIT_S).status

    session = kit.session(agent)
    run = say_to(session)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert (seen["status"], seen["killed"]) == (4, -9)
    assert sorted(seen["output"].split()) == sorted(["typed", seen["fence"]])
    (row,) = receipt.rows
    assert [(one.name, one.how) for one in row.rows] == [("sh", How.EXIT), ("sleeper", How.SIGKILL)]
    assert row.rows[1].provenance is not None
    assert row.rows[1].provenance.source == "tool.kill"
    assert row.rows[1].provenance.reason.startswith("the agent ")
    check_rest(session)


def test_an_async_agent_that_is_stopped_leaves_none_of_its_processes(kit: Kit) -> None:
    processes = list[AsyncProcess]()

    async def agent(turn: AsyncTurn) -> None:
        script = "trap '' TERM; setsid sleep 60 & while :; do echo x; sleep 0.05; done"
        processes.append(await turn.spawn(["sh", "-c", kit.script(script)]))
        await processes[0].wait()

    session = kit.session(agent)
    run = say_to(session)
    until(lambda: processes and len(kit.alive()) >= 2, "the tree, and its handle")
    stop_it(session)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert kit.alive() == []
    pid = processes[0].pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    (row,) = receipt.rows[0].rows
    assert row.how is How.SIGKILL
    assert row.reaped >= 2
