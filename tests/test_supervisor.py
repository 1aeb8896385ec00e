"""The supervisor's actor in virtual time: routing, restarts, quarantine and the drain."""

from __future__ import annotations

import pytest

from actors.errors import Quarantined, ShuttingDown
from actors.model import RunStatus
from actors.session import SessionActor
from supervisor.supervisor import RestartPolicy
from tests.sim.world import World
from tests.world_kit import SEEDS, message, settled, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_that_fails_too_often_is_quarantined_and_still_takes_a_stop(seed: int) -> None:
    with World(seed, policy=RestartPolicy(failures_max=2, window_s=60.0)) as world:
        for number in range(3):
            world.ask("s", message(f"m{number}", "forever"))
            assert world.run(lambda: bool(world.actors(SessionActor)))
            world.run(max_steps=40)
            session = world.session()
            world.poison(SessionActor)
            world.ask("s", stop(f"p{number}"))
            assert world.run(lambda session=session: not session.actor_ref.is_alive())  # type: ignore[misc]
        world.settle()
        with pytest.raises(Quarantined):
            world.answer("s", message("late", "say=1"))
        assert world.answer("s", stop("last")).outcome == "nothing_running"
        assert world.kinds().count("session.quarantined") == 1
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_shutting_down_drains_then_interrupts_and_keeps_what_waits_for_the_next_start(seed: int) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "say=1 forever"))
        waits = world.answer("s", message("b", "say=1", policy="enqueue"))
        quick = world.answer("t", message("c", "say=1 sleep=2 say=1"))
        quiet = world.shutdown(drain_s=5.0)
        with pytest.raises(ShuttingDown):
            world.answer("s", message("d", "say=1"))
        assert world.run(quiet.done)
        assert quiet.get() is True
        assert world.status(run.run_id) is RunStatus.CANCELLED
        assert world.status(quick.run_id) is RunStatus.COMPLETED
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert info.provenance.source == "supervisor.shutdown"
        assert world.disk.waiting("s") == ["b"]
        world = world.crash()
        settled(world)
        assert world.status(waits.run_id) is RunStatus.COMPLETED
    finally:
        world.close()
