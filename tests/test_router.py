"""The supervisor's actor in virtual time: routing, restarts, quarantine and the drain."""

from __future__ import annotations

import pytest

from actors.errors import Quarantined, ShuttingDown
from actors.hierarchy.session import SessionActor
from actors.requests import Delete
from actors.run_status import RunStatus
from supervisor.router import RestartPolicy, SupervisorActor
from tests.sim.world import World
from tests.world_kit import SEEDS, message, settled, stop


def root(world: World) -> SupervisorActor:
    """The supervisor's actor."""
    (actor,) = world.actors(SupervisorActor)
    return actor


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
def test_l13_a_quarantine_ends_with_the_deletion_of_its_session(seed: int) -> None:
    with World(seed, policy=RestartPolicy(failures_max=0, window_s=60.0)) as world:
        world.answer("s", message("a", "say=1"))
        world.settle()
        world.poison(SessionActor)
        world.settle()
        with pytest.raises(Quarantined):
            world.answer("s", message("b", "say=1"))
        world.answer("s", Delete(id="gone", source="user.test", reason="it is broken"))
        assert world.answer("s", message("c", "say=1")).run_id is not None
        world.settle()
        assert not world.watch.broken
        # And it may fail once more, as any session.
        assert not root(world)._quarantined
        assert not root(world)._failures


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_session_that_is_deleted_in_quarantine_and_fails_then_has_no_new_life_by_itself(seed: int) -> None:
    with World(seed, policy=RestartPolicy(failures_max=0, window_s=60.0)) as world:
        world.answer("s", message("a", "say=1"))
        world.settle()
        world.poison(SessionActor)
        world.settle()
        world.ask("s", Delete(id="gone", source="user.test", reason="it is broken"))
        assert world.run(lambda: world.kinds() == ["session.deleted"])
        world.poison(SessionActor)
        world.settle()
        assert world.kinds() == ["session.deleted"]
        assert world.answer("s", message("c", "say=1")).run_id is not None
        world.settle()
        assert "session.quarantined" not in world.kinds()
        assert not world.watch.broken


def test_l14_failures_of_long_ago_are_forgotten_whichever_session_failed() -> None:
    with World(0, policy=RestartPolicy(failures_max=2, window_s=60.0)) as world:
        supervisor = root(world)
        for number in range(20):
            supervisor._failed(f"s{number}", 30.0 * number)
            assert list(supervisor._failures) == [f"s{one}" for one in range(max(0, number - 2), number + 1)]
        assert len(supervisor._failed("s19", 600.0)) == 2
        assert list(supervisor._failures) == ["s18", "s19"]


@pytest.mark.parametrize("how", ["it ends in time", "it is interrupted", "it is read too late"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l4_a_run_that_a_crash_cut_off_and_that_is_read_in_the_drain_is_tried_again_until_that_is_over(
    seed: int, how: str
) -> None:
    with World(seed) as before:
        seconds = 1 if how == "it ends in time" else 600
        cut_off = before.answer("s", message("a", f"sleep={seconds} say=1"))
        waits = before.answer("s", message("b", "say=1", policy="enqueue"))
        world = before.crash()
    with world:
        world.store.hold(how == "it is read too late")
        quiet = world.shutdown(drain_s=30.0)
        if how == "it is read too late":
            assert world.run(lambda: root(world)._interrupted)
            world.store.hold(False)
        assert world.run(quiet.done)
        if world.hesitated:
            # The machine stood still behind the interrupt, until the time for the ends was over.
            return
        assert quiet.get() is True
        first, *again = [run for run in world.disk.runs("s") if run.run_id != waits.run_id]
        assert (first.run_id, first.status) == (cut_off.run_id, RunStatus.FAILED)
        assert first.provenance is not None
        assert first.provenance.source == "supervisor.recovery"
        if how == "it is read too late":
            assert again == []
        else:
            (retry,) = again
            assert retry.retry_of == cut_off.run_id
            ends = (
                (RunStatus.COMPLETED, None)
                if how == "it ends in time"
                else (RunStatus.CANCELLED, "supervisor.shutdown")
            )
            assert (retry.status, retry.provenance and retry.provenance.source) == ends
        assert world.disk.waiting("s") == ["b"], "what waits is kept for the next start"


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
