"""Attempts: a run is tried again after a failure or a crash only if it had done nothing, as far as is known."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors import AsyncTurn, CancelToken, Effect, Turn
from actors.errors import RunCancelled
from actors.hierarchy.session import SessionActor
from actors.model import RunInfo
from actors.run_status import RunStatus
from tests.kit import WAIT_S, Kit, StoreFaults, faults, kit, log, poison, rows, say, settled, until
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of
from tests.world_kit import settled as at_rest

__all__ = ["faults", "kit"]

SOURCES = {"store": "store.failure", "actor": "actor.failure", "crash": "supervisor.recovery"}


def after(world: World, failure: str) -> World:
    """Have the store, the session's actor, one after the other, or the daemon fail. Returns the world that goes on."""
    if failure == "crash":
        return world.crash()
    if failure in ("actor", "actor and store"):
        assert world.poison(SessionActor)
    if failure in ("store", "actor and store"):
        # With the actor: what the next incarnation has decided first is not stored.
        world.store.fail_next()
    world.tell("s", message("b", "say=1", policy="enqueue"))
    return world


def info_of(world: World, run_id: str | None) -> RunInfo:
    info = world.disk.run(run_id or "")
    assert info is not None
    return info


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failure", ["store", "actor", "actor and store"])
def test_l4_a_run_whose_agent_had_entered_a_guard_is_not_tried_again_and_tells_of_it(failure: str, seed: int) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "effect=5"))
        world.wait(1.0)
        world = after(world, failure)
        laws = at_rest(world)
        assert not laws.retry_of
        info = info_of(world, run.run_id)
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.FAILED, SOURCES[failure.partition(" ")[0]])
        assert info.effects == (Effect("slow"),)
        receipt = world.disk.receipt(info.run_id)
        assert receipt is not None
        assert [row.effects for row in rows(receipt) if row.kind == "agent"] == [(Effect("slow"),)]
        (note,) = [one.content for one in world.thread() if one.role == "note"]
        assert "The agent itself had begun: slow (not known to be done)." in note
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failure", ["store", "actor"])
def test_l4_a_run_is_not_tried_again_whose_own_end_behind_its_effects_was_not_stored(failure: str, seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "sleep=1 effect=0"))
        if failure == "store":
            world.store.fail_next()
        else:
            assert world.run(lambda: world.watch.effects[run.run_id or ""] == 2)
            assert world.poison(SessionActor, before=False)
        laws = at_rest(world)
        assert not laws.retry_of
        assert info_of(world, run.run_id).effects == (Effect("slow", done=1), Effect("then", done=1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failure", ["store", "actor", "actor and store", "crash"])
def test_l4_a_run_that_had_saved_something_is_not_tried_again_and_the_next_one_reads_it(
    failure: str, seed: int
) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "save=1 sleep=5"))
        world.wait(1.0)
        world = after(world, failure)
        laws = at_rest(world)
        assert not laws.retry_of
        assert info_of(world, run.run_id).status is RunStatus.FAILED
        world.answer("s", message("c", "say=1"))
        # What it reads is checked by the watch.
        at_rest(world)
        assert len(of(world, "session.state")) == 1
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failure", ["store", "actor", "actor and store", "crash"])
def test_l4_a_run_that_had_done_nothing_is_tried_again(failure: str, seed: int) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "sleep=5 effect=0"))
        world.wait(1.0)
        world = after(world, failure)
        laws = at_rest(world)
        (again,) = laws.retry_of
        assert laws.retry_of == {again: run.run_id}
        assert info_of(world, run.run_id).effects == ()
        assert info_of(world, again).effects == (Effect("slow", done=1), Effect("then", done=1))
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_crash_it_is_unknown_that_an_effect_had_begun_and_the_run_is_retried(seed: int) -> None:
    """The log has no word of it before its run, or its call, is closed: entering a guard waits for nothing."""
    world = World(seed)
    try:
        run = world.answer("s", message("a", "effect=5"))
        world.wait(1.0)
        world = world.crash()
        laws = at_rest(world)
        assert list(laws.retry_of.values()) == [run.run_id]
        assert info_of(world, run.run_id).effects == ()
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("failure", ["store", "actor", "actor and store"])
def test_l6_the_result_of_a_call_tells_what_it_had_begun_before_the_failure(failure: str, seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "guard=5"))
        world.wait(1.0)
        after(world, failure)
        at_rest(world)
        (ended,) = [event for event in of(world, "tool.ended") if event.data["tool"] == "guard"]
        assert ended.data["outcome"] == "interrupted"
        assert [(one["name"], one.get("begun", 1), one["done"]) for one in ended.data["effects"]] == [("at once", 1, 1)]
        assert "It had begun: at once (done)." in ended.data["content"]


# ── On real threads ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["task", "thread"])
@pytest.mark.parametrize("failure", ["store", "actor"])
def test_l4_an_effect_that_continues_after_the_failure_is_reported_with_its_end(
    kit: Kit, faults: StoreFaults, failure: str, kind: str
) -> None:
    inside, go_on, late = threading.Event(), kit.gate(), list[type[BaseException]]()

    def work(content: str, token: CancelToken) -> None:
        if content != "go":
            return
        with token.guard("write report"):
            inside.set()
            go_on.wait()
        try:
            with token.guard("publish"):
                raise AssertionError("it took place")
        except RunCancelled as error:
            late.append(type(error))
            raise

    def as_thread(turn: Turn) -> None:
        work(turn.inputs[-1].content, turn.cancel_token)

    async def as_task(turn: AsyncTurn) -> None:
        await asyncio.to_thread(work, turn.inputs[-1].content, turn.cancel_token._token)

    session = kit.session(as_thread if kind == "thread" else as_task)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    if failure == "store":
        faults.fail(session)
        faults.failing = False
    else:
        before = session.ref
        assert before is not None
        poison(before)
        until(lambda: not before.is_alive(), "the session's actor has failed")
    until(lambda: session.run(run_id).status is RunStatus.FAILED, "it is on record")
    go_on.set()
    receipt = session.receipt(run_id, timeout=WAIT_S)
    settled(session)
    assert [info.retry_of for info in session.runs()] == [None] * len(session.runs())
    assert session.run(run_id).effects == (Effect("write report"),)
    assert [row.effects for row in rows(receipt) if row.kind == "agent"] == [(Effect("write report", done=1),)]
    assert not [event for event in log(session) if event.kind == "run.started" and event.data.get("retry_of")]
    assert late == [RunCancelled]
