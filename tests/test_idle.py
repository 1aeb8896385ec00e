"""Passivation in virtual time: what comes at the instant in which a session leaves, and what it comes back to."""

from __future__ import annotations

from typing import Any

import pytest
from pykka import ActorDeadError

from actors.errors import QueueFull, ShuttingDown
from actors.hierarchy.session import SessionActor
from actors.ports import Settings
from actors.requests import Resume, Stopped, Withdraw
from actors.run_status import RunStatus
from supervisor.router import SupervisorActor
from tests.sim.laws import LogLaws
from tests.sim.world import World
from tests.world_kit import SEEDS, message, stop

pytestmark = pytest.mark.usefixtures("quiet")

TEN_MINUTES = 600.0


def settings(passivate_s: float | None = 1.0, **changes: Any) -> Settings:
    return Settings(agent="scripted", passivate_s=passivate_s, **changes)


def settled(world: World) -> LogLaws:
    world.settle()
    laws = LogLaws()
    laws.take(world.events())
    laws.check_thread()
    laws.finished()
    assert not world.errors
    assert not world.watch.broken
    return laws


def resident(world: World) -> int:
    return len(world.actors(SessionActor))


@pytest.mark.parametrize("passivate_s", [None, 1.0, TEN_MINUTES / 2, TEN_MINUTES])
def test_l11_after_ten_idle_minutes_a_tool_call_works(passivate_s: float | None) -> None:
    with World(1, settings=settings(passivate_s)) as world:
        world.answer("s", message("a", "say=1 write=0.1 run=0.1"))
        world.wait(TEN_MINUTES)
        assert resident(world) == (passivate_s is None or passivate_s == TEN_MINUTES)
        second = world.answer("s", message("b", "say=1 write=0.1 run=0.1"))
        laws = settled(world)
        assert world.status(second.run_id) is RunStatus.COMPLETED
        assert laws.input_order == ["a", "b"]
        outcomes = [event.data["outcome"] for event in world.events() if event.kind == "tool.ended"]
        assert outcomes == ["finished"] * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_ten_idle_minutes_inside_a_call_end_neither_the_run_nor_the_session(seed: int) -> None:
    with World(seed, settings=settings(0.5)) as world:
        first = world.answer("s", message("a", f"run={TEN_MINUTES:.0f} write=0.1"))
        world.wait(TEN_MINUTES - 10)
        assert resident(world) == 1
        assert world.status(first.run_id) is RunStatus.IN_PROGRESS
        settled(world)
        assert world.status(first.run_id) is RunStatus.COMPLETED
        assert resident(world) == 0


@pytest.mark.parametrize(
    "request_", [message("b", "say=1"), message("b", "say=1", policy="enqueue"), stop("b"), Resume(id="b")]
)
def test_l11_a_request_at_any_step_of_a_passivation_is_answered_as_if_there_were_none(request_: Any) -> None:
    """One step later each time, from before the session is idle until it is long gone."""
    for steps in range(24):
        answers = []
        for passivate_s in (1.0, None):
            with World(7, settings=settings(passivate_s)) as world:
                world.answer("s", message("a", "say=1"))
                if passivate_s is None:
                    world.wait(2.0)
                else:
                    assert world.run(world.someone_is_idle)
                    world.run(max_steps=steps)
                asked = world.send("s", request_)
                assert world.run(lambda asked=asked: asked.done)  # type: ignore[misc]
                assert asked.tries == 1
                answers.append(asked.outcome())
                settled(world)
        assert answers[0] == answers[1], f"{steps} steps behind the session's word"


@pytest.mark.parametrize("steps", range(8))
def test_l11_a_message_to_the_actor_itself_is_taken_or_goes_to_the_next_incarnation(steps: int) -> None:
    """In front of the Passivate, behind it, or into a mailbox that is about to close."""
    with World(5, settings=settings()) as world:
        world.answer("s", message("a", "say=1"))
        assert world.run(world.someone_is_idle)
        ref = world.session().actor_ref
        world.run(max_steps=steps)
        if not ref.is_alive():
            with pytest.raises(ActorDeadError):
                ref.ask(message("b", "say=1"), block=False).get(timeout=0)
            return
        future: Any = ref.ask(message("b", "say=1"), block=False)
        assert world.run(future.done)
        assert future.get(timeout=0).generation == 2
        assert settled(world).input_order == ["a", "b"]


def test_l11_what_is_left_in_the_closed_mailbox_goes_to_the_next_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = SessionActor._passivate
    futures: list[Any] = []

    def leaves(self: SessionActor) -> None:
        # At the last moment, behind the look into the mailbox: as a thread would that is quick enough.
        stop_now = self._stop

        def stopping() -> None:
            futures.append(self.actor_ref.ask(message("b", "say=1"), block=False))
            stop_now()

        self._stop = stopping  # type: ignore[method-assign]
        leave(self)

    monkeypatch.setattr(SessionActor, "_passivate", leaves)
    with World(5, settings=settings()) as world:
        world.answer("s", message("a", "say=1"))
        assert world.run(lambda: bool(futures) and futures[0].done())
        assert futures[0].get(timeout=0).generation == 2
        monkeypatch.undo()
        assert settled(world).input_order == ["a", "b"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_messages_that_wait_while_a_session_leaves_keep_their_order(seed: int) -> None:
    with World(seed, settings=settings(0.001)) as world:
        sent = []
        for number in range(40):
            sent.append(world.send("s", message(f"m{number}", "say=1", policy="enqueue", merge=False)))
            if number % 4 == 0:
                world.run(world.someone_is_idle, max_steps=400)
            world.run(max_steps=number % 7)
        laws = settled(world)
        assert laws.input_order == [f"m{number}" for number in range(40)]
        assert all(one.done and one.tries == 1 for one in sent)
        assert world.watch.rest.left_memory > 1
        assert set(laws.status.values()) == {RunStatus.COMPLETED}


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_session_that_is_used_again_and_again_stays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a machine that hesitates the session may have been idle for longer than the client wanted, rightly.
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(1.0)) as world:
        for number in range(20):
            world.answer("s", message(f"m{number}", "say=1"))
            world.wait(0.6)
        assert world.watch.rest.left_memory == 0
        world.wait(2.5)
        assert world.watch.rest.left_memory == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_session_with_something_abandoned_stays_and_hears_of_its_end(seed: int) -> None:
    with World(seed, settings=settings(0.5)) as world:
        run = world.answer("s", message("a", "run=40,never_dies"))
        assert world.run(lambda: any(event.kind == "process.started" for event in world.disk.of("s").events))
        world.answer("s", stop())
        world.wait(20.0)
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert not receipt.complete
        assert resident(world) == 1
        world.settle()
        amended = world.disk.receipt(run.run_id)
        assert amended is not None
        if amended.complete:
            assert resident(world) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_crash_while_a_session_leaves_loses_nothing(seed: int) -> None:
    with World(seed, settings=settings(0.5)) as world:
        answer = world.answer("s", message("a", "say=1 write=0.1"))
        assert world.run(world.someone_is_idle)
        world.run(max_steps=seed)
        with world.crash() as after:
            assert resident(after) == 0, "there is nothing to finish"
            assert after.answer("s", message("a", "say=1 write=0.1")) == answer
            laws = settled(after)
            assert laws.input_order == ["a"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_shutdown_while_a_session_leaves_comes_to_rest(seed: int) -> None:
    with World(seed, settings=settings(0.5)) as world:
        world.answer("s", message("a", "say=1"))
        assert world.run(world.someone_is_idle)
        world.run(max_steps=seed % 6)
        late = world.send("s", message("b", "say=1"))
        over = world.shutdown(5.0)
        assert world.run(over.done) or over.done()
        assert world.came_to_rest
        outcome = late.outcome() if late.done else None
        assert outcome is None or isinstance(outcome, ShuttingDown) or outcome.generation == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_shutdown_waits_for_what_waited_for_its_session_to_be_read(seed: int) -> None:
    with World(seed, settings=settings(0.5)) as world:
        world.answer("s", message("a", "forever"))
        world.answer("s", message("b", "say=1", policy="enqueue"))
        world.answer("s", stop(waiting="park"))
        world.settle()
        assert resident(world) == 0
        world.store.hold_reads(True)
        withdrawn = world.send("s", Withdraw(id="w", message_id="b"))
        assert world.run(lambda: resident(world) > 0 and bool(world.session()._stash))
        over = world.shutdown(5.0)
        assert world.run(lambda: world.session()._draining.on)
        world.store.hold_reads(False)
        assert world.run(over.done) or over.done()
        assert world.came_to_rest
        assert withdrawn.outcome().outcome == "withdrawn"


def test_a_session_that_was_never_used_leaves_memory_and_leaves_nothing() -> None:
    with World(1, settings=settings()) as world:
        looked = world.inspect("nobody")
        assert world.run(looked.done)
        world.settle()
        assert resident(world) == 0
        assert not world.disk.of("nobody").events


def test_what_is_held_for_a_session_that_leaves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.router.HELD_MAX", 3)
    monkeypatch.setattr("supervisor.router.HELD_STOPS_MAX", 2)
    with World(3, settings=settings()) as world:
        world.answer("s", message("a", "say=1"))
        assert world.run(world.someone_is_idle)
        supervisor = world.supervisor._actor_weakref()
        assert isinstance(supervisor, SupervisorActor)
        # As when it had just asked; what comes now is held until the session has gone.
        supervisor._asked_to_leave.add("s")
        asked = [world.send("s", message(f"m{number}", "say=1", policy="enqueue")) for number in range(6)]
        stops = [world.send("s", stop(f"x{number}")) for number in range(3)]
        world.settle()
        assert [isinstance(one.outcome(), QueueFull) for one in asked] == [False] * 3 + [True] * 3
        # A Stop is taken where all else is refused, with a bound of its own.
        assert [isinstance(one.outcome(), Stopped) for one in stops] == [True, True, False]
        assert isinstance(stops[-1].outcome(), QueueFull)
