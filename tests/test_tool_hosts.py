"""The host of a call whose tool has a process of its own, in virtual time: whoever ends or fails, at each moment."""

from __future__ import annotations

from typing import Any

import pytest

from actors.gate.cell import Cell
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.hosts import HostedAgent
from actors.messages import CallRequested, ProcessStarted, SpawnRequested
from actors.model import How
from actors.ports import ProcessRow, SpawnSpec
from actors.requests import Accepted
from actors.run_status import RunStatus
from tests.protocol_driver import Driver
from tests.protocol_ports import SimTree
from tests.sim.hosts import Hosting
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

WHO = pytest.mark.parametrize("who", [ToolActor, RunActor, ProcessActor, SessionActor])


def hosted(seed: int, **options: Any) -> World:
    return World(seed, hosting=Hosting(seed, HostedAgent("scripted"), calm=True), **options)


def rows_of(world: World) -> list[ProcessRow]:
    return [row for row in world.disk.of("s").processes.values() if row.host == "tool proc"]


def granted(world: World) -> None:
    """Step until the host of a call is decided on; the store does not have it yet."""

    def decided() -> bool:
        records = world.session()._protocol.state.records()
        return any(one.row.host == "tool proc" for record in records for one in record.processes.values())

    assert world.run(decided)
    world.store.hold(True)


def next_call_works(world: World) -> None:
    run = world.answer("s", message("z", "proc=1 say=1")).run_id
    settled(world)
    assert world.status(run) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_it_is_a_part_below_its_call_and_ends_with_it(seed: int) -> None:
    with hosted(seed) as world:
        run = world.answer("s", message("a", "proc=1 proc=1 say=1")).run_id
        settled(world)
        assert world.status(run) is RunStatus.COMPLETED
        first, second = rows_of(world)
        assert first.process_id != second.process_id
        assert {one.call_id for one in (first, second)} == {
            event.data["call_id"] for event in of(world, "tool.requested")
        }
        for row in (first, second):
            assert row.end is not None
            assert row.end.how is How.SIGTERM
            assert not world.processes.lives(row.process_id)


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_a_stop_while_its_permit_waits_for_the_disk_gives_it_back_once_that_is_durable(seed: int) -> None:
    with hosted(seed) as world:
        world.answer("s", message("a", "proc=5"))
        granted(world)
        answer = world.ask("s", stop())
        world.wait(0.5)
        world.store.hold(False)
        assert world.run(answer.done)
        settled(world)
        assert not world.errors
        (row,) = rows_of(world)
        assert row.end is not None
        if row.end.how is How.NOT_STARTED:
            assert world.processes.lives(row.process_id), "it is a spare again"
        next_call_works(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_the_deadline_of_the_call_passes_while_the_permit_is_under_way(seed: int) -> None:
    with hosted(seed, settings=settings(call_deadline_s=0.2)) as world:
        run = world.answer("s", message("a", "proc=5 say=1")).run_id
        granted(world)
        world.wait(1.0)
        world.store.hold(False)
        settled(world)
        assert world.status(run) is RunStatus.COMPLETED
        (ended,) = of(world, "tool.ended")
        assert ended.data["outcome"] in ("interrupted", "not_started")
        next_call_works(world)


@pytest.mark.parametrize("waits", [True, False], ids=["its request waits", "it is about to be reserved"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l14_a_host_is_a_spare_again_if_the_runs_actor_ends_before_it_gets_the_request(seed: int, waits: bool) -> None:
    with hosted(seed) as world:
        assert world.hosts is not None
        world.answer("s", message("a", "proc=5"))
        reserve, reserved = world.hosts.reserve, list[str]()

        def reserving(agent: str, session: str, kept: str | None = None) -> str:
            reserved.append(reserve(agent, session, kept))
            return reserved[-1]

        world.hosts.reserve = reserving  # type: ignore[method-assign]  # the moment in question
        assert world.run(lambda: bool(reserved if waits else world.actors(ToolActor)))
        (actor,) = world.actors(RunActor)
        # It overtakes what waits in its mailbox. To those who watch it is as if it had failed.
        world.watch.faults = world.watch.forgot = world.watch.bounds.poisoned = True
        actor.actor_ref.stop(block=False)
        settled(world)
        assert reserved or not waits
        for host in reserved:
            assert world.hosts.is_spare(host)
        assert not rows_of(world), "it was never on record"
        next_call_works(world)


@WHO
@pytest.mark.parametrize("seed", range(6))
def test_l13_an_actor_fails_between_the_request_and_the_permit(seed: int, who: Any) -> None:
    with hosted(seed) as world:
        world.answer("s", message("a", "proc=5"))
        granted(world)
        world.poison(who)
        world.ask("s", stop())
        world.wait(0.5)
        world.store.hold(False)
        settled(world)
        assert all(run.settled for run in world.disk.of("s").runs.values())


@WHO
@pytest.mark.parametrize("seed", range(6))
def test_l13_an_actor_fails_while_it_executes(seed: int, who: Any) -> None:
    with hosted(seed) as world:
        world.answer("s", message("a", "proc=5"))
        assert world.run(lambda: any(fence.count(":") == 2 and not fence.endswith(":") for fence in world.watch.inside))
        world.poison(who)
        world.ask("s", stop())
        settled(world)
        assert all(run.settled for run in world.disk.of("s").runs.values())
        for row in rows_of(world):
            assert not world.processes.lives(row.process_id)


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_after_a_crash_of_the_daemon_it_is_proven_dead(seed: int) -> None:
    with hosted(seed) as world:
        world.answer("s", message("a", "proc=5"))
        assert world.run(lambda: bool(of(world, "process.started")))
        again = world.crash()
    with again as world:
        settled(world)
        for row in rows_of(world):
            assert row.state == "ended"
        next_call_works(world)


def test_l3_a_host_that_was_not_sent_its_call_may_be_the_next_calls_and_is_that_ones_alone() -> None:
    driver = Driver()
    answer = driver.request(message("a", "two calls"))
    assert isinstance(answer, Accepted)
    assert answer.run_id is not None
    driver.commit(9)
    run = driver.agents[answer.run_id]
    one, other = (SimTree(run.of_call(call), "p") for call in ("c1", "c2"))
    for tree in (one, other):
        driver.report(CallRequested(tree.address, "free", {}))
    driver.commit(9)

    def ask(tree: SimTree) -> Cell[None]:
        driver.trees[:] = [tree]
        driver.report(SpawnRequested(tree.address, "p", SpawnSpec((), "host of free"), host="tool free"))
        driver.commit(9)
        assert tree.cell is not None, "it is permitted"
        return tree.cell

    ask(one).close()
    driver.end_tree(one)
    driver.commit(9)
    assert ask(other).start()
    # The word of the first call may come twice, from whoever took over what it had.
    driver.end_tree(one)
    driver.news(other, ProcessStarted("p", 7, 1.0))
    record = driver.protocol.state.active
    assert record is not None
    part = record.parts["p"]
    assert (part.parent, part.pid, part.ended) == ("c2", 7, False)
