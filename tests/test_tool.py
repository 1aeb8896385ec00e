"""A call in virtual time: its permit, its cell and its processes."""

from __future__ import annotations

import asyncio

import pytest

from actors.agent import AsyncTurn
from actors.cancel import CellState
from actors.model import RunStatus
from actors.plugins import Tool
from actors.spawning import AsyncSpawn
from actors.tool import ToolActor
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settled, stop

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
        assert world.run(lambda: any(record.processes for record in world.session()._protocol._records()))
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
def test_l6_a_result_that_is_in_the_cell_stands_where_the_calls_actor_fails_before_it_tells(seed: int) -> None:
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
def test_l6_after_a_crash_the_model_is_told_what_a_call_had_printed(seed: int) -> None:
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
