"""Ownership of process trees, in virtual time: whose one is, is decided once, whatever comes when (L3, L5, L13, L14).

Every test runs over many seeds, that is over many orders of the same events. What all of them must satisfy is in
`check`: a tree that was handed over is not ended with its run, one that was not is, each end has a cause on record,
and each receipt waits for what it names.

The file has over 600 lines, and is whole: each test ends in the one `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors import NewMessage, Owner, Stop, Stopped
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.kernel.actor import Actor
from actors.model import Event, Receipt
from actors.ports import ProcessRow
from actors.requests import Accepted
from tests.sim.client import Client
from tests.sim.laws import LogLaws
from tests.sim.world import World

SEEDS = range(40)
SERVER = "serve=1,serves"
HANDED = "hand=1,serves"
KILLED = ("sigterm", "sigkill")

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]


def new(content: str, **options: Any) -> NewMessage:
    return NewMessage(content=content, **options)


def stop(**options: Any) -> Stop:
    return Stop(source="user.test", reason="the test says so", **options)


def run_of(world: World, content: str) -> str:
    """Send a message and return its run's id."""
    accepted = world.answer("s", new(content))
    assert isinstance(accepted, Accepted)
    assert accepted.run_id is not None
    return accepted.run_id


def of_kind(world: World, kind: str) -> list[Event]:
    return [event for event in world.events() if event.kind == kind]


def until(world: World, condition: Callable[[], Any], what: str) -> None:
    assert world.run(lambda: bool(condition())), f"seed {world.seed}: never {what}"


def alive(world: World) -> int:
    return len(world.processes.alive())


def process_rows(world: World) -> list[ProcessRow]:
    return list(world.disk.of("s").processes.values())


def processes_in(receipt: Receipt | None) -> dict[str, str]:
    """How each process of a receipt ended, by its name and pid."""
    assert receipt is not None
    todo, found = list(receipt.rows), {}
    while todo:
        row = todo.pop()
        todo += row.rows
        if row.kind == "process":
            found[f"{row.name} {row.pid}"] = str(row.how)
    return found


def hows(receipt: Receipt | None) -> list[str]:
    return sorted(processes_in(receipt).values())


def served(world: World, content: str) -> str:
    """Run a message that leaves a tree of the session, to the end of the run. Returns the run's id."""
    run_id = run_of(world, content)
    until(world, lambda: of_kind(world, "run.ended"), "the end of the run")
    assert alive(world) == 1
    return run_id


def check(world: World, *, failed: bool = False) -> None:
    """What holds of ownership in every log and every table, when all has settled.

    `failed`: an actor or the store did, so that what was to be forgotten may not have been.
    """
    events = world.events()
    laws = LogLaws()
    laws.take(events)
    laws.finished()
    assert not world.processes.alive()
    handed = {event.data["process_id"] for event in events if event.kind == "process.handed_over"}
    for process_id in world.effects.handed:
        assert process_id in handed, f"a tool was told of a hand-over that is not on record: {process_id}"
    receipts = {event.run_id: event.data["receipt"] for event in events if event.kind == "run.ended"}
    ends = {event.data["process_id"]: event for event in events if event.kind == "process.ended"}
    for row in process_rows(world):
        assert row.state == "ended", f"{row.process_id} is left {row.state}"
        assert (row.owner is Owner.SESSION) or row.process_id not in handed
        if row.owner is Owner.SESSION and row.process_id in ends:
            end = ends[row.process_id]
            assert end.data["owner"] == "session"
            assert end.data["how"] not in KILLED or end.data["provenance"]["source"], f"{end} has no cause (L5)"
            if row.ending is None:
                assert end.data["how"] in ("exit", "not_started")
        # Listed by its run as ended with it, or as handed over; never as both, never as neither.
        if row.run_id in receipts and row.process_id in handed:
            found = _rows(receipts[row.run_id], row.name)
            assert found, f"{row.process_id} is not in the receipt of its run"
    assert world.disk.of("s").pending == {}
    kept = world.executor.kept() + world.processes.kept()
    assert failed or not kept, f"ended, and forgotten by nobody: {kept} (L14)"


def _rows(receipt: dict[str, Any], name: str) -> list[dict[str, Any]]:
    todo, found = list(receipt["rows"]), []
    while todo:
        row = todo.pop()
        todo += row.get("rows", ())
        if row["kind"] == "process" and row["name"] == name:
            found.append(row)
    return found


def end_all(world: World, *, failed: bool = False) -> Stopped:
    """A Stop of the whole session, and all that comes of it."""
    answer = world.answer("s", stop(scope="session"))
    assert isinstance(answer, Stopped)
    world.settle()
    check(world, failed=failed)
    return answer


# ── It outlives its run ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", [SERVER, HANDED])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_tree_of_the_session_outlives_its_run_and_is_named_in_its_receipt(seed: int, content: str) -> None:
    with World(seed) as world:
        run_id = served(world, content)
        receipt = world.disk.receipt(run_id)
        assert hows(receipt) == ["handed_over"]
        assert receipt is not None
        assert receipt.complete
        assert receipt.reaped == 0
        assert len(world.session()._protocol.state.status().owned) == 1
        answer = end_all(world)
        assert answer.outcome == "nothing_running"
        ended = world.disk.receipt(answer.receipt_id)
        assert hows(ended) == ["sigterm"]
        assert ended is not None
        assert ended.complete
        assert ended.reaped == 1
        assert world.session()._protocol.state.status().owned == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_tree_of_the_session_holds_no_barrier_and_survives_stops_and_takeovers(seed: int) -> None:
    with World(seed) as world:
        served(world, SERVER)
        second = run_of(world, "write=0.1 forever")
        until(world, lambda: world.effects.written, "a call beside it")
        third = run_of(world, "write=0.1 forever")
        until(world, lambda: len(world.effects.written) == 2, "a call after the takeover")
        assert world.answer("s", stop()).run_id == third
        until(world, lambda: len(of_kind(world, "run.ended")) == 3, "the receipts")
        assert alive(world) == 1
        assert hows(world.disk.receipt(second)) == hows(world.disk.receipt(third)) == []
        end_all(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_its_output_is_logged_while_its_call_is_open_and_not_after(seed: int) -> None:
    with World(seed) as world:
        run_of(world, "serve=8,output=40 sleep=9 say=1")
        until(world, lambda: of_kind(world, "run.ended"), "the end of the run")
        world.settle()
        ended = next(event.seq for event in world.events() if event.kind == "tool.ended")
        assert all(event.seq < ended for event in of_kind(world, "tool.output"))
        status = world.session()._protocol.state.status()
        assert status.refused == {}
        assert not [letter for letter in world.dead_letters.recent() if letter.kind == "output"]
        (end,) = of_kind(world, "process.ended")
        assert end.data["how"] == "exit"
        assert "provenance" not in end.data
        check(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_one_that_cannot_be_executed_says_so_and_leaves_nothing(seed: int) -> None:
    with World(seed) as world:
        run_id = run_of(world, "serve=1,absent say=1")
        world.settle()
        assert hows(world.disk.receipt(run_id)) == ["not_started"]
        (result,) = [message for message in world.thread() if message.role == "tool"]
        assert "no such file" in result.content
        check(world)


# ── A stop around the spawn ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", range(0, 60, 3))
@pytest.mark.parametrize("scope", ["run", "session"])
def test_l2_a_stop_at_any_moment_of_a_spawn_for_the_session_leaves_one_of_two_states(steps: int, scope: str) -> None:
    seen = set()
    for seed in range(12):
        with World(seed) as world:
            run_id = run_of(world, SERVER + " forever")
            until(world, lambda: world.actors(ToolActor), "a call")
            world.run(max_steps=steps)
            answer = world.answer("s", stop(scope=scope))
            until(world, lambda: world.disk.receipt(answer.receipt_id), "the receipt")  # noqa: B023  # called in this round
            world.wait(30.0)
            found = hows(world.disk.receipt(run_id))
            lives = alive(world)
            seen.add((tuple(found), lives))
            if scope == "run":
                # Never spawned, and then the receipt says so; or the session's, and alive.
                assert (found, lives) in (([], 0), (["not_started"], 0), (["handed_over"], 1)), (found, lives)
            else:
                assert lives == 0
                assert found in ([], ["not_started"], ["sigterm"], ["handed_over"]), found
            end_all(world)
    assert seen


def test_l2_a_stop_before_the_grant_is_durable_spawns_nothing() -> None:
    for seed in SEEDS:
        with World(seed) as world:
            run_id = run_of(world, SERVER + " forever")
            until(world, lambda: world.session()._protocol.state.owned, "the request")
            world.store.hold(True)
            asked = world.send("s", stop())
            world.run(max_steps=200)
            world.store.hold(False)
            until(world, lambda: asked.done, "the answer")  # noqa: B023  # called in this round
            world.settle()
            if not world.processes.spawned:
                assert hows(world.disk.receipt(run_id)) == ["not_started"]
                assert alive(world) == 0
            end_all(world)


# ── A stop around the hand-over ───────────────────────────────────────────────────────────────────────


def _asked(world: World) -> bool:
    """Whether the session has decided on a hand-over."""
    return bool(world.session()._protocol.state.owned)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_behind_a_hand_over_does_not_end_the_tree_not_even_before_that_is_durable(seed: int) -> None:
    with World(seed) as world:
        run_id = run_of(world, HANDED + " forever")
        until(world, lambda: _asked(world), "the decision")
        world.store.hold(True)
        asked = world.send("s", stop(mode="immediate"))
        world.run(max_steps=300)
        # While the disk takes its time it has no answer, or one that says that it is not durable.
        assert not asked.done or not asked.outcome().durable
        world.store.hold(False)
        until(world, lambda: asked.done, "the answer")  # called in this round
        until(world, lambda: world.disk.receipt(run_id), "the receipt")
        world.wait(30.0)
        assert hows(world.disk.receipt(run_id)) == ["handed_over"]
        assert alive(world) == 1
        end_all(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_before_a_hand_over_ends_the_tree_with_the_run(seed: int) -> None:
    with World(seed) as world:
        run_id = run_of(world, HANDED + " forever")
        until(world, world.processes.alive, "the tree")
        if _asked(world):
            pytest.skip("in this order it was handed over at once")
        world.answer("s", stop())
        world.settle()
        assert hows(world.disk.receipt(run_id)) == ["sigterm"]
        assert world.effects.handed == []
        assert alive(world) == 0
        check(world)


@pytest.mark.parametrize("steps", range(0, 90, 3))
def test_l3_a_stop_at_any_moment_of_a_hand_over_leaves_one_of_two_states(steps: int) -> None:
    for seed in range(12):
        with World(seed) as world:
            run_id = run_of(world, HANDED + " forever")
            until(world, lambda: world.processes.spawned, "the spawn")
            world.run(max_steps=steps)
            world.answer("s", stop(mode="immediate"))
            until(world, lambda: world.disk.receipt(run_id), "the receipt")  # noqa: B023  # called in this round
            world.wait(30.0)
            found, lives = hows(world.disk.receipt(run_id)), alive(world)
            ended = (["sigkill"], 0), (["sigterm"], 0), (["not_started"], 0)
            assert (found, lives) in (*ended, (["handed_over"], 1)), (seed, found, lives)
            assert bool(world.effects.handed) <= (lives == 1), "it was said to be handed over, and was ended"
            end_all(world)


@pytest.mark.parametrize("steps", range(0, 60, 4))
@pytest.mark.parametrize("kind", [ProcessActor, ToolActor, RunActor])
def test_l13_an_actor_that_fails_at_any_moment_of_a_hand_over_leaves_one_of_two_states(
    kind: type[Actor], steps: int
) -> None:
    for seed in range(10):
        with World(seed) as world:
            run_of(world, HANDED + " forever")
            until(world, world.processes.alive, "the tree")
            world.run(max_steps=steps)
            world.poison(kind, before=bool(seed % 2))
            world.run(max_steps=100)
            world.answer("s", stop())
            world.wait(30.0)
            handed = bool(of_kind(world, "process.handed_over"))
            assert alive(world) == handed, f"seed {seed}: handed over: {handed}, alive: {alive(world)}"
            end_all(world, failed=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_deadline_of_the_call_and_a_hand_over_do_not_both_have_the_tree(seed: int) -> None:
    for delay in (0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.0015):
        from actors.ports import Settings

        with World(seed, settings=Settings(agent="scripted", call_deadline_s=delay)) as world:
            run_id = run_of(world, HANDED + " forever")
            world.wait(30.0)
            handed = bool(of_kind(world, "process.handed_over"))
            assert alive(world) == handed
            world.answer("s", stop())
            until(world, lambda: world.disk.receipt(run_id), "the receipt")  # noqa: B023  # called in this round
            assert ("handed_over" in hows(world.disk.receipt(run_id))) == handed
            end_all(world)


# ── How it ends ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_of_the_session_ends_it_with_the_run_and_that_receipt_waits_for_it(seed: int) -> None:
    with World(seed) as world:
        first = served(world, "serve=1,serves,ignores_term")
        second = run_of(world, "run=1,serves forever")
        until(world, lambda: alive(world) == 2, "both")
        answer = world.answer("s", stop(scope="session"))
        assert (answer.outcome, answer.run_id) == ("stopped", second)
        until(world, lambda: world.disk.receipt(second), "the receipt")
        assert alive(world) == 0
        assert hows(world.disk.receipt(second)) == ["sigkill", "sigterm"]
        assert hows(world.disk.receipt(first)) == ["handed_over"]
        end_all(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_of_the_run_that_handed_it_over_and_of_the_session_names_it_once(seed: int) -> None:
    with World(seed) as world:
        run_id = run_of(world, HANDED + " forever")
        until(world, lambda: world.effects.handed, "the hand-over")
        world.answer("s", stop(scope="session"))
        world.settle()
        receipt = world.disk.receipt(run_id)
        assert hows(receipt) == ["sigterm"]
        assert receipt is not None
        assert receipt.reaped == 1
        check(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_of_the_session_widens_one_of_the_run_that_is_still_ending(seed: int) -> None:
    with World(seed) as world:
        served(world, SERVER)
        second = run_of(world, "run=1,serves,ignores_term")
        until(world, lambda: alive(world) == 2, "both")
        world.answer("s", stop())
        joined = world.answer("s", stop(scope="session"))
        assert (joined.outcome, joined.run_id) == ("stopping", second)
        until(world, lambda: world.disk.receipt(second), "the receipt")
        assert alive(world) == 0
        assert hows(world.disk.receipt(second)) == ["sigkill", "sigterm"]
        assert not of_kind(world, "receipt.amended")
        end_all(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l10_a_second_stop_of_the_session_escalates_and_both_receipts_come(seed: int) -> None:
    with World(seed) as world:
        served(world, "serve=1,serves,ignores_term")
        first = stop(scope="session")
        one = world.answer("s", first)
        again = world.answer("s", first)
        # The first may have been answered before the disk had it.
        assert replace(again, durable=True) == replace(one, durable=True)
        began = world.clock.monotonic()
        two = world.answer("s", stop(scope="session", mode="immediate"))
        until(world, lambda: world.disk.receipt(one.receipt_id), "the first receipt")
        until(world, lambda: world.disk.receipt(two.receipt_id), "the second receipt")
        assert world.clock.monotonic() - began < world.settings.grace_s
        assert hows(world.disk.receipt(one.receipt_id)) == hows(world.disk.receipt(two.receipt_id)) == ["sigkill"]
        (end,) = of_kind(world, "process.ended")
        assert end.data["provenance"]["mode"] == "graceful", "the first cause stands (L5)"
        end_all(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_while_a_stop_ends_it_permits_wait(seed: int) -> None:
    with World(seed) as world:
        served(world, "serve=1,serves,ignores_term")
        world.answer("s", stop(scope="session"))
        lives: list[int] = []
        begins = world.watch.executions.begins

        def began(fence: str, *, elsewhere: bool = False) -> None:
            lives.append(alive(world))
            begins(fence, elsewhere=elsewhere)

        world.watch.executions.begins = began  # type: ignore[method-assign]  # asked besides
        run_of(world, "write=0.1")
        world.settle()
        assert lives == [0]
        check(world)


@pytest.mark.parametrize("barrier", ["forced", "strict"])
@pytest.mark.parametrize("seed", range(10))
def test_l7_one_that_cannot_be_ended_is_named_abandoned_in_bounded_time(seed: int, barrier: Any) -> None:
    from actors.ports import Settings

    with World(seed, settings=Settings(agent="scripted", barrier=barrier)) as world:
        served(world, "serve=1,serves,never_dies")
        answer = world.answer("s", stop(scope="session"))
        second = run_of(world, "write=0.1")
        world.settle()
        receipt = world.disk.receipt(answer.receipt_id)
        assert receipt is not None
        assert not receipt.complete
        assert hows(receipt) == ["abandoned"]
        assert world.status(second) == "completed"
        outcome = "finished" if barrier == "forced" else "not_started"
        assert [message.outcome for message in world.thread() if message.role == "tool"][-1] == outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_shutdown_ends_it_behind_the_last_run_and_says_why(seed: int) -> None:
    with World(seed) as world:
        served(world, SERVER)
        run_of(world, "sleep=3 say=1")
        down = world.shutdown(60.0)
        world.wait(1.0)
        assert alive(world) == 1, "what still runs may need it"
        until(world, down.done, "the shutdown")
        assert down.get(timeout=0) is True
        assert alive(world) == 0
        (end,) = of_kind(world, "process.ended")
        assert end.data["provenance"]["source"] == "supervisor.shutdown"
        check(world)


def test_l11_a_shutdown_ends_it_when_the_last_run_has_ended_and_not_only_when_draining_is_over() -> None:
    reasons = set()
    for seed in range(10):
        with World(seed) as world:
            served(world, SERVER)
            run_of(world, "say=9")
            down = world.shutdown(1e6)
            until(world, down.done, "the shutdown")
            (end,) = of_kind(world, "process.ended")
            reasons.add(end.data["provenance"]["reason"])
    # A timer may fire early, as on a machine under load, but not in each of these orders.
    assert "the supervisor is shutting down" in reasons


# ── What fails meanwhile ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [SessionActor, ProcessActor])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_l13_when_its_actor_or_its_session_fails_it_lives_on_and_is_still_the_sessions(
    seed: int, kind: type[Actor], before: bool
) -> None:
    with World(seed) as world:
        served(world, SERVER)
        assert world.poison(kind, before=before)
        (process_id,) = world.session()._protocol.state.owned
        if kind is ProcessActor:
            world.actors(ProcessActor)[0].actor_ref.tell(object())
        run_of(world, "say=1")
        world.wait(30.0)
        assert alive(world) == 1
        (owned,) = world.session()._protocol.state.owned.values()
        assert owned.id == process_id
        assert owned.row.ending is None
        answer = end_all(world, failed=True)
        assert hows(world.disk.receipt(answer.receipt_id)) == ["sigterm"]


@pytest.mark.parametrize("seed", range(20))
def test_l13_when_the_session_fails_while_a_stop_ends_it_the_receipt_comes_all_the_same(seed: int) -> None:
    with World(seed) as world:
        served(world, "serve=1,serves,ignores_term")
        answer = world.answer("s", stop(scope="session"))
        world.poison(SessionActor, before=bool(seed % 2))
        run_of(world, "say=1")
        world.settle()
        assert hows(world.disk.receipt(answer.receipt_id)) == ["sigkill"]
        (end,) = of_kind(world, "process.ended")
        assert end.data["provenance"]["source"] == "user.test"
        end_all(world, failed=True)


@pytest.mark.parametrize("content", [SERVER, HANDED])
@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_l12_after_a_crash_of_the_daemon_its_end_is_on_record_with_a_cause(
    seed: int, during: bool, content: str
) -> None:
    world = World(seed)
    try:
        run_id = served(world, content)
        answer = world.answer("s", stop(scope="session")) if during else None
        world = world.crash()
        world.settle()
        (end,) = of_kind(world, "process.ended")
        source = "user.test" if during else "supervisor.recovery"
        assert end.data["provenance"]["source"] == source
        assert hows(world.disk.receipt(run_id)) == ["handed_over"]
        if answer is not None:
            receipt = world.disk.receipt(answer.receipt_id)
            assert receipt is not None
            assert receipt.complete
            assert hows(receipt) == [end.data["how"]]
        assert world.disk.unfinished() == []
        check(world)
    finally:
        world.close()


@pytest.mark.parametrize("steps", range(0, 120, 4))
def test_l12_a_crash_at_any_moment_of_a_hand_over_ends_it_once(steps: int) -> None:
    for seed in range(8):
        world = World(seed)
        try:
            run_id = run_of(world, HANDED + " forever")
            until(world, lambda: world.processes.spawned, "the spawn")  # noqa: B023  # called in this round
            world.run(max_steps=steps)
            told = list(world.effects.handed)
            world = world.crash()
            world.settle()
            found = hows(world.disk.receipt(run_id))
            handed = bool(of_kind(world, "process.handed_over"))
            assert (found == ["handed_over"]) == handed, (seed, found)
            assert bool(told) <= handed, "what a tool was told is durable"
            check(world)
        finally:
            world.close()


@pytest.mark.parametrize("lose", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_store_that_fails_at_a_hand_over_ends_the_tree_whether_it_was_written_or_not(
    seed: int, lose: bool
) -> None:
    with World(seed) as world:
        run_id = run_of(world, HANDED + " forever")
        until(world, lambda: _asked(world), "the decision")
        if not world.store.ready:
            pytest.skip("in this order it is durable already")
        if lose:
            world.store.lose_next()
        else:
            world.store.fail_next()
        world.settle()
        assert world.effects.handed == []
        assert alive(world) == 0
        assert hows(world.disk.receipt(run_id)) in (["handed_over"], ["sigterm"])
        check(world, failed=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_stop_of_the_session_ends_it_also_while_the_store_takes_no_writes(seed: int) -> None:
    with World(seed) as world:
        served(world, SERVER)
        world.store.down(True)
        run = world.send("s", new("say=1"))
        until(world, lambda: run.done, "the refusal")
        end = stop(scope="session")
        assert world.answer("s", end).durable is False
        world.wait(5.0)
        assert alive(world) == 0
        world.store.down(False)
        world.settle()
        assert hows(world.disk.receipt(end.id)) == ["sigterm"]
        (ended,) = of_kind(world, "process.ended")
        assert ended.data["provenance"]["source"] == "user.test"
        end_all(world, failed=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_a_session_has_as_many_trees_as_it_may_have(seed: int) -> None:
    from actors.ports import Settings

    with World(seed, settings=Settings(agent="scripted", processes_max=2)) as world:
        run_of(world, f"{SERVER} {HANDED} {SERVER} {HANDED} say=1")
        until(world, lambda: of_kind(world, "run.ended"), "the end of the run")
        world.wait(30.0)
        assert alive(world) == 2
        errors = [message.content for message in world.thread() if message.role == "tool" and message.is_error]
        assert len(errors) == 2
        assert all("QueueFull" in error for error in errors)
        end_all(world)


# ── All of it together ────────────────────────────────────────────────────────────────────────────────

CONTENTS = ("serve=60", "hand=60", "serve=60 forever", "hand=60 forever", "hand=1 sleep=3", "serve=60,ignores_term")
mine = st.tuples(
    st.just("new"),
    st.sampled_from(CONTENTS),
    st.sampled_from((None, "interrupt", "enqueue", "rollback")),
    st.just("user"),
    st.booleans(),
    st.none(),
)
stops = st.tuples(
    st.just("stop"),
    st.sampled_from(("graceful", "immediate")),
    st.sampled_from((None, None, 0, 1)),
    st.sampled_from((None, "park", "keep")),
    st.sampled_from(("run", "session")),
    st.just("user"),
    st.none(),
)
pauses = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 90)),
    st.tuples(st.just("wait"), st.sampled_from((0.05, 3.0, 9.0))),
    st.tuples(st.just("hold"), st.booleans()),
)
faults = st.one_of(
    st.tuples(st.just("fail"), st.integers(1, 2)),
    st.tuples(st.just("lose"), st.integers(1, 2)),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("poison"), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    st.just(("crash",)),
)
again = st.tuples(st.just("repeat"), st.integers(0, 9))
scripts = st.lists(st.one_of(mine, mine, mine, stops, again, pauses, pauses, pauses, faults), min_size=4, max_size=20)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(seed=st.integers(0, 2**32), script=scripts)
def test_whatever_comes_every_tree_has_one_owner_and_every_end_a_cause(seed: int, script: list[Any]) -> None:
    with Client(seed) as client:
        client.play(script)
        events = client.world.events("s")
        handed = {event.data["process_id"] for event in events if event.kind == "process.handed_over"}
        for process_id in client.world.effects.handed:
            assert process_id in handed, "a tool was told of a hand-over that is not on record"
        for event in events:
            if event.kind == "process.ended" and event.data.get("owner") == "session" and event.data["how"] in KILLED:
                assert event.data["provenance"]["source"], f"{event} has no cause (L5)"
        for row in process_rows(client.world):
            assert row.owner is Owner.RUN or row.state == "ended", f"{row} is left"
