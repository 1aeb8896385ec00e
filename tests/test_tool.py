"""A call in virtual time: its permit, its cell and its processes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.gate.cell import CellState
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.kernel.actor import Actor
from actors.messages import GoOn, ToolResult
from actors.model import Message, Provenance
from actors.plugin.registration import Tool
from actors.plugin.spawning import AsyncSpawn
from actors.plugin.turn import AsyncTurn
from actors.run_status import RunStatus
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seed", range(60))
def test_l2_a_stop_between_a_permit_and_its_spawn_leaves_no_process_or_one_that_the_receipt_lists(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "run=60"))
        # Every moment from the request of the call to the start of the process, one step later each time.
        assert world.run(lambda: "tool.requested" in world.kinds())
        world.run(max_steps=2 * seed)
        world.answer("s", stop())
        settled(world)
        assert not world.errors
        assert not world.processes.alive()
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        listed = [row for call in receipt.rows for row in call.rows if row.pid is not None]
        assert len(listed) == world.kinds().count("process.ended") - sum(
            event.data["how"] == "not_started" for event in of(world, "process.ended")
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_l2_a_spawn_that_a_stop_refused_before_its_permit_was_durable_is_not_made_when_it_is(seed: int) -> None:
    async def cling(spawn: AsyncSpawn) -> str:
        """Ask for a process, and take its time where that is refused: its actor lives on meanwhile."""
        try:
            await spawn(["sim", "runs=60"])
        except GeneratorExit:
            raise
        except BaseException:
            await asyncio.sleep(1.0)
        return "refused"

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("cling")

    with World(seed, agents={"scripted": agent}, more_tools=[Tool(cling, isolation="task")]) as world:
        world.answer("s", message("a", "go"))
        assert world.run(lambda: any(record.processes for record in world.session()._protocol.state.records()))
        world.store.hold(True)
        answer = world.ask("s", stop())
        # The fence is decided and its refusal is heard; the permit, granted before it, still waits for the disk.
        world.wait(0.5)
        world.store.hold(False)
        assert world.run(answer.done)
        settled(world)
        assert not world.errors
        assert not world.processes.spawned


@pytest.mark.parametrize("seed", SEEDS)
def test_l6_a_result_that_is_in_the_cell_stands_where_the_calls_actor_fails_before_its_report(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "write=1 say=1"))
        in_cell = world.run(lambda: any(a._permit.cell.state is CellState.FINISHED for a in world.actors(ToolActor)))
        assert in_cell
        world.poison(ToolActor)
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == "finished"
        assert world.status(run.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l6_after_a_crash_the_model_gets_what_a_call_had_printed(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "run=60,output=4"))
        assert world.run(lambda: len(of(world, "tool.output")) >= 2)
        again = world.crash()
        said = "".join(event.data["text"] for event in of(world, "tool.output"))
    with again as world:
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == "interrupted"
        assert ended.data["content"].endswith(f"Its output so far ended with:\n{said}")


# ── An agent that waits for its call no longer ────────────────────────────────────────────────────


class Caller:
    """An agent that calls a tool in a task of its own, and says something when that is over, however it is."""

    def __init__(self, tool: str, **arguments: object) -> None:
        self.tool, self.arguments = tool, arguments
        self.call: asyncio.Task[ToolResult] | None = None
        self.seen: list[Message] = []
        self.over = False

    async def __call__(self, turn: AsyncTurn) -> None:
        """Be the agent."""
        self.call = asyncio.create_task(turn.call(self.tool, **self.arguments))
        await asyncio.wait([self.call])
        self.seen = turn.messages
        self.over = True
        await turn.emit("behind it")

    def give_up(self, world: World) -> None:
        """Cancel the await of the call, on the loop, as a time limit does."""
        assert self.call is not None
        world.executor._loop.call_soon(self.call.cancel)


def where_it_is(world: World) -> list[str]:
    """The kinds of events that say in which order a call ended and its agent went on."""
    return [kind for kind in world.kinds() if kind in ("tool.requested", "tool.ended", "text")]


@pytest.mark.parametrize("tool", ["write", "run", "hand"])
@pytest.mark.parametrize("seed", range(50))
def test_l6_a_call_that_is_given_up_at_any_moment_has_one_true_result_in_its_place(seed: int, tool: str) -> None:
    arguments = {"seconds": 0.0} if tool == "write" else {"argv": ["sim", "runs=60", "ignores_term"]}
    agent = Caller(tool, **arguments)
    with World(seed, agents={"scripted": agent}) as world:
        run = world.answer("s", message("a", "go"))
        assert world.run(lambda: agent.call is not None)
        # Every moment from the request of the call to what it brings, one step later each time.
        world.run(max_steps=2 * seed)
        agent.give_up(world)
        laws = settled(world)
        assert not world.errors
        assert where_it_is(world) == ["tool.requested", "tool.ended", "text"]
        (ended,) = of(world, "tool.ended")
        call_id, outcome = ended.data["call_id"], ended.data["outcome"]
        assert outcome != "not_started" or not any(fence.endswith(call_id) for fence in world.watch.began)
        assert (ended.data.get("provenance") or {}).get("source") == (
            None if outcome == "finished" else "call.given_up"
        )
        # What the agent was shown at once is what the log says.
        assert laws.thread is not None
        mine = [one for one in agent.seen if one.role == "tool"]
        assert mine == [
            msgspec.structs.replace(one, at=mine[0].at) for one in laws.thread.messages() if one.role == "tool"
        ]
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.complete
        assert outcome != "finished" or "result" not in receipt.refused
        assert world.status(run.run_id) is RunStatus.COMPLETED
        assert not world.processes.alive() or tool == "hand"


@pytest.mark.parametrize("seed", SEEDS)
def test_l6_a_call_that_is_given_up_while_it_waits_for_the_barrier_never_starts(seed: int) -> None:
    agent = Caller("write", seconds=0.0)

    async def either(turn: AsyncTurn) -> None:
        if turn.inputs[-1].content == "go":
            await agent(turn)
        else:
            await turn.call("deaf", seconds=4.0)

    with World(seed, agents={"scripted": either}) as world:
        world.answer("s", message("a", "hold"))
        assert world.run(lambda: bool(world.watch.began))
        world.answer("s", message("b", "go"))
        assert world.run(lambda: world.kinds().count("tool.requested") == 2)
        agent.give_up(world)
        assert world.run(lambda: agent.over)
        assert len(world.watch.began) == 1
        settled(world)
        assert len(world.watch.began) == 1
        assert [event.data["outcome"] for event in of(world, "tool.ended")] == ["interrupted", "not_started"]


@pytest.mark.parametrize("seed", range(40))
def test_l5_of_a_stop_and_a_given_up_call_the_first_is_the_cause_and_the_agent_is_cancelled_once(seed: int) -> None:
    agent = Caller("write", seconds=9.0)
    with World(seed, agents={"scripted": agent}) as world:
        run = world.answer("s", message("a", "go"))
        assert world.run(lambda: bool(world.watch.began))
        stopped = world.ask("s", stop())
        world.run(max_steps=seed)
        agent.give_up(world)
        settled(world)
        assert stopped.done()
        (ended,) = of(world, "tool.ended")
        # Where time moved on while the Stop waited to be handled, the call may have returned.
        assert ended.data["outcome"] == "interrupted" or world.stalled_s > 8.0
        assert world.status(run.run_id) in (RunStatus.CANCELLED, RunStatus.COMPLETED)
        (fenced,) = (event.seq for event in of(world, "session.fenced"))
        given_up = (ended.data.get("provenance") or {}).get("source") == "call.given_up"
        assert given_up == (ended.seq < fenced)
        assert not world.watch.inside
        assert not world.errors


@pytest.mark.parametrize("seed", range(40))
def test_l5_of_a_deadline_and_a_given_up_call_the_first_is_the_cause(seed: int) -> None:
    agent = Caller("write", seconds=9.0)
    with World(seed, agents={"scripted": agent}, settings=settings(call_deadline_s=1.0)) as world:
        world.answer("s", message("a", "go"))
        if not world.run(lambda: bool(world.watch.began)):
            # Time moved on to the deadline before the tool began.
            assert world.stalled_s > 0.0
            assert of(world, "tool.ended")[0].data["outcome"] == "not_started"
            return
        (call,) = world.actors(ToolActor)
        world.run(lambda: call._permit.token.cancelled or world.clock.monotonic() > 0.9)
        world.run(max_steps=seed)
        agent.give_up(world)
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] == "interrupted"
        first = call._permit.token.provenance
        assert first is not None
        assert ended.data["provenance"]["source"] == first.source
        assert where_it_is(world) == ["tool.requested", "tool.ended", "text"]
        # What the agent was told is what the log says.
        assert [one.content for one in agent.seen if one.role == "tool"] == [ended.data["content"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_l5_a_deadline_that_has_closed_a_call_is_its_cause_where_the_agents_word_comes_first(seed: int) -> None:
    agent = Caller("late", seconds=9.0)
    with World(seed, agents={"scripted": agent}) as world:
        world.answer("s", message("a", "go"))
        assert world.run(lambda: bool(world.watch.began))
        (call,) = world.actors(ToolActor)
        # As its actor does in its turn, before it can tell the session.
        call._permit.cell.close()
        call._permit.token.cancel(Provenance(source="tool.deadline", reason="too long"))
        agent.give_up(world)
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert ended.data["provenance"]["source"] == "tool.deadline"


@pytest.mark.parametrize("seed", range(40))
def test_l6_a_result_that_is_in_the_cell_stands_where_the_agent_gives_up_before_it_hears_of_it(seed: int) -> None:
    agent = Caller("write", seconds=1.0)
    with World(seed, agents={"scripted": agent}) as world:
        run = world.answer("s", message("a", "go"))
        assert world.run(lambda: any(a._permit.cell.state is CellState.FINISHED for a in world.actors(ToolActor)))
        world.run(max_steps=seed % 10)
        agent.give_up(world)
        settled(world)
        (ended,) = of(world, "tool.ended")
        assert (ended.data["outcome"], ended.data["content"]) == ("finished", "written")
        assert "provenance" not in ended.data
        assert [one.content for one in agent.seen if one.role == "tool"] == ["written"]
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.refused == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", [RunActor, ToolActor, SessionActor])
def test_l7_giving_a_call_up_does_not_wait_for_an_actor_that_is_gone(seed: int, who: type[Actor]) -> None:
    agent = Caller("write", seconds=9.0)
    with World(seed, agents={"scripted": agent}) as world:
        run = world.answer("s", message("a", "go"))
        assert world.run(lambda: bool(world.watch.began))
        world.watch.faults = True
        agent.give_up(world)
        world.poison(who)
        settled(world)
        assert agent.over or world.status(run.run_id) is not RunStatus.COMPLETED
        assert len(of(world, "tool.ended")) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancel_that_comes_again_and_again_does_not_send_the_agent_on_before_the_result(seed: int) -> None:
    agent = Caller("write", seconds=9.0)
    with World(seed, agents={"scripted": agent}) as world:
        world.answer("s", message("a", "go"))
        assert world.run(lambda: bool(world.watch.began))
        while not agent.over:
            # As anyio does, at every turn of the loop.
            agent.give_up(world)
            world.step()
        assert [one.outcome for one in agent.seen if one.role == "tool"] == ["interrupted"]
        settled(world)
        assert where_it_is(world) == ["tool.requested", "tool.ended", "text"]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_of_several_waiters_for_one_call_may_leave_and_another_call_is_not_touched(seed: int) -> None:
    results: list[object] = []

    async def agent(turn: AsyncTurn) -> None:
        call, other = (asyncio.create_task(turn.call("write", seconds=1.0)) for _ in range(2))
        waiting = [asyncio.create_task(_waits(asyncio.shield(call))) for _ in range(2)]
        await asyncio.sleep(0.5)
        waiting[0].cancel()
        other.cancel()
        results.extend(await asyncio.gather(*waiting, call, other, return_exceptions=True))

    with World(seed, agents={"scripted": agent}) as world:
        world.answer("s", message("a", "go"))
        settled(world)
        assert [getattr(one, "outcome", type(one).__name__) for one in results] == [
            "CancelledError",
            "finished",
            "finished",
            "CancelledError",
        ]
        assert sorted(event.data["outcome"] for event in of(world, "tool.ended")) == ["finished", "interrupted"]


async def _waits(call: asyncio.Future[ToolResult]) -> ToolResult:
    return await call


@pytest.mark.parametrize("seed", SEEDS)
def test_l5_what_a_call_that_is_given_up_had_started_is_ended_with_that_cause(seed: int) -> None:
    agent = Caller("run", argv=["sim", "runs=60", "ignores_term"])
    with World(seed, agents={"scripted": agent}) as world:
        run = world.answer("s", message("a", "go"))
        assert world.run(lambda: "process.started" in world.kinds())
        agent.give_up(world)
        settled(world)
        (ended,) = of(world, "process.ended")
        assert (ended.data["how"], ended.data["provenance"]["source"]) == ("sigkill", "call.given_up")
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.complete
        assert world.status(run.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_the_tree_of_a_call_whose_actor_fails_is_ended_and_its_run_hears_of_that(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "run=600,ignores_term say=1"))
        assert world.run(lambda: bool(of(world, "process.started")))
        before = world.clock.monotonic()
        world.poison(ToolActor)
        # Any message: it fails at the next one.
        world.actors(ToolActor)[0].actor_ref.tell(GoOn(0))
        assert world.run(lambda: bool(of(world, "process.ended")))
        assert world.run(lambda: not world.actors(RunActor)), "it waits for no tree that nobody tells it of"
        assert world.clock.monotonic() - before < 60.0
        settled(world)
        (ended,) = of(world, "process.ended")
        assert ended.data["how"] == "sigkill"
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.complete
