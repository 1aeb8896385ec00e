"""RunHost: the start of a host is told with other news of its run, ahead of it, and alone where there is no other."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.hierarchy.run import RunActor
from actors.hierarchy.run_host import START_HELD_S
from actors.messages import HostStartDue, ProcessEnded, ProcessReport, ProcessStarted, RunFinished, Said
from actors.run_status import RunStatus
from tests.test_run_hosts import begun, hosted, ready, say
from tests.world_kit import SEEDS, of, settled, stop

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]


def told_by_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the actors of runs tell their session."""
    told: list[Any] = []
    parent = RunActor.__mro__[1]
    tell_parent = cast("Any", parent).tell_parent

    def tells(actor: Any, message: object) -> None:
        if isinstance(actor, RunActor):
            told.append(message)
        tell_parent(actor, message)

    monkeypatch.setattr(parent, "tell_parent", tells)
    return told


def is_start(message: object) -> bool:
    return isinstance(message, ProcessReport) and isinstance(message.news, ProcessStarted)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_start_of_a_spare_is_told_with_the_first_line_and_ahead_of_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(seed) as world:
        ready(world)
        told = told_by_runs(monkeypatch)
        say(world, "say=1")
        settled(world)
        kinds = ["start" if is_start(one) else type(one).__name__ for one in told]
        assert kinds[:2] == ["start", "Said"], kinds
        assert kinds.count("start") == 1
        order = [event.kind for event in world.events() if event.kind in ("process.started", "text")]
        assert order == ["process.started", "text"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_start_of_the_host_of_an_agent_that_says_nothing_is_on_record_a_moment_later(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(seed) as world:
        ready(world)
        told = told_by_runs(monkeypatch)
        run = say(world, "sleep=5")
        begun(world, run)
        world.wait(2 * START_HELD_S)
        assert [is_start(one) for one in told] == [True]
        assert world.run(lambda: of(world, "process.started") != [])
        assert world.status(run) is RunStatus.IN_PROGRESS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_before_the_start_of_the_host_is_told_loses_nothing_of_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(seed) as world:
        ready(world)
        told = told_by_runs(monkeypatch)
        run = say(world, "sleep=5")
        assert world.run(lambda: any(actor._host.start is not None for actor in world.actors(RunActor)))
        world.answer("s", stop())
        settled(world)
        news = [one.news for one in told if isinstance(one, ProcessReport)]
        assert [type(one) for one in (news[0], news[-1])] == [ProcessStarted, ProcessEnded]
        receipt = world.disk.receipt(run)
        assert receipt is not None
        assert receipt.complete


def test_a_timer_that_comes_behind_the_news_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(0) as world:
        ready(world)
        told = told_by_runs(monkeypatch)
        run = say(world, "say=1 sleep=5")
        begun(world, run)
        world.wait(0.1)
        before = len(told)
        (actor,) = world.actors(RunActor)
        actor.actor_ref.tell(HostStartDue())
        world.wait(0.1)
        assert len(told) == before
        assert sum(map(is_start, told)) == 1
        settled(world)
        assert {type(one) for one in told} >= {Said, RunFinished}
