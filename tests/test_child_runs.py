"""Child runs: an agent delegates to another one, in a session of its own, whose run is a part of the first one's.

The file has over 600 lines, and is whole: the same agents delegate inside, in hosts, and where something fails.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import AsyncTurn, Event, How, Invalid, PartKind, Receipt, Row, RunInfo, RunStatus, Turn
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.session import SessionActor
from actors.requests import Delete, Stop
from supervisor import Agent, Config, SessionHandle, Supervisor
from tests.console_kit import COMMAND
from tests.kit import GRACE_S, KILL_S, WAIT_S, Kit, check_rest, log, poison, rows, say, settled, stop, until
from tests.sim.world import World
from tests.world_kit import message as world_message
from tests.world_kit import settings

REASON = "wrong target"


async def boss(turn: AsyncTurn) -> str:
    """Delegate what it is told; ``AGENT SESSION WORDS``, with - for no session."""
    agent, session, words = turn.inputs[-1].content.split(" ", 2)
    done = await turn.delegate(agent, words, session=None if session == "-" else session)
    await turn.emit(f"{done.outcome} {done.status}: {done.content}")
    return f"{done.session} {done.run_id}"


def plain_boss(turn: Turn) -> str:
    agent, session, words = turn.inputs[-1].content.split(" ", 2)
    done = turn.delegate(agent, words, session=None if session == "-" else session)
    turn.emit(f"{done.outcome} {done.status}: {done.content}")
    return f"{done.session} {done.run_id}"


async def worker(turn: AsyncTurn) -> dict[str, int]:
    word, _, rest = turn.inputs[-1].content.partition(" ")
    await turn.emit("at work ")
    match word:
        case "sh":
            await turn.call("shell", script=rest)
        case "wait":
            await asyncio.Event().wait()
        case "fail":
            raise ValueError(rest)
    await turn.emit(f"has done {word}")
    return {"done": 1}


def child_of(session: SessionHandle) -> dict[str, Any]:
    """Wait for the last child run of a session, and return what its event says."""

    def found() -> list[Event]:
        return [event for event in log(session) if event.kind == "run.child"]

    until(found, "a child run")
    return found()[-1].data


def run_row(receipt: Receipt) -> Row:
    (row,) = (one for one in rows(receipt) if one.kind == PartKind.RUN)
    return row


def start(kit: Kit, **options: Any) -> Supervisor:
    """Start a supervisor with the worker and one more agent, which runs messages."""
    agents = {"test": options.pop("agent", boss), "worker": worker, **options.pop("agents", {})}
    kit.supervisor = Supervisor.start(
        Config(state_dir=kit.state_dir, agent="test", agents=agents, grace_s=GRACE_S, kill_s=KILL_S, **options)
    )
    return kit.supervisor


@pytest.mark.parametrize("agent", [boss, plain_boss])
def test_an_agent_delegates_and_has_the_text_of_the_other_one(kit: Kit, agent: Any) -> None:
    supervisor = start(kit, agent=agent)
    session = supervisor.session("s1")
    run = say(session, "worker - go")
    receipt = session.receipt(run, timeout=WAIT_S)
    name, child = str(session.run(run).result).split()
    other = supervisor.session(name)
    events = check_rest(session)
    assert [event.data["text"] for event in events if event.kind == "text"] == [
        "finished completed: at work has done go"
    ]
    info = other.run(child)
    assert info.parent is not None
    assert (info.parent.session, info.parent.run_id, info.parent.depth) == ("s1", run, 1)
    assert (info.status, info.agent, info.result) == (RunStatus.COMPLETED, "worker", {"done": 1})
    began = next(event.data for event in events if event.kind == "run.child")
    assert began == {"call_id": info.parent.call_id, "run_id": child, "session": name, "agent": "worker"}
    ended = next(event.data for event in events if event.kind == "run.child_ended")
    assert (ended["run_id"], ended["status"], ended["receipt_id"]) == (child, "completed", info.receipt_id)
    own = other.receipt(child, timeout=WAIT_S)
    assert receipt.complete
    assert own.complete
    assert (run_row(receipt).name, run_row(receipt).rows, run_row(receipt).how) == ("worker", own.rows, "returned")
    # A session like any other: its agent answers a person in it.
    assert other.status().agent == "worker"
    again = say(other, "go on")
    other.receipt(again, timeout=WAIT_S)
    assert other.run(again).parent is None


def test_an_agent_that_fails_and_one_that_is_not_there_give_results_that_say_so(kit: Kit) -> None:
    session = start(kit).session("s1")
    for words, expected in (
        ("worker - fail badly", "finished failed: The agent failed: ValueError: badly"),
        ("nobody - go", "not_started None: Not started: there is no such agent"),
    ):
        run = say(session, words)
        session.receipt(run, timeout=WAIT_S)
        said = [event.data["text"] for event in check_rest(session) if event.kind == "text" and event.run_id == run]
        assert said
        assert said[0].startswith(expected)


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
def test_l1_l3_l5_a_stop_ends_the_child_run_in_the_same_moment_and_the_receipt_has_its_trees(
    kit: Kit, mode: str
) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    script = kit.script("sleep 300 & setsid sleep 300 & sleep 300")
    run = say(session, f"worker - sh {script}")
    child = child_of(session)
    until(lambda: len(kit.alive()) >= 3, "the tree of the child run")
    stop(session, REASON, mode=mode)
    receipt = session.receipt(run, timeout=WAIT_S)
    other = supervisor.session(child["session"])
    info = other.run(child["run_id"])
    assert receipt.complete
    assert not kit.alive()
    assert info.provenance is not None
    assert (info.status, info.provenance.reason, info.provenance.source) == (RunStatus.CANCELLED, REASON, "user.test")
    row = run_row(receipt)
    assert (row.how, row.reaped) == ("cancelled", receipt.reaped)
    assert row.reaped >= 3
    assert row.rows == other.receipt(child["run_id"], timeout=WAIT_S).rows
    check_rest(other)
    check_rest(session)


async def two_at_once(turn: AsyncTurn) -> None:
    scripts = turn.inputs[-1].content
    await asyncio.gather(*(turn.delegate("worker", f"sh {scripts}") for _ in range(2)))


def test_l3_the_receipt_waits_for_trees_of_two_child_runs_that_ignore_sigterm(kit: Kit) -> None:
    supervisor = start(kit, agent=two_at_once)
    session = supervisor.session("s1")
    run = say(session, kit.script("trap '' TERM; (trap '' TERM; sleep 300) & sleep 300; sleep 300"))
    until(lambda: len(kit.alive()) >= 6, "the trees of both child runs")
    stop(session, REASON)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert not kit.alive()
    children = [row for row in rows(receipt) if row.kind == PartKind.RUN]
    assert [row.how for row in children] == ["cancelled"] * 2
    assert all("shell" in {one.name for one in row.rows} for row in children)
    for name in supervisor.store.names():
        check_rest(supervisor.session(name))


def test_the_console_says_whose_child_run_a_run_is(kit: Kit) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    run = say(session, "worker - wait")
    child = child_of(session)

    def shown(*words: str) -> str:
        options = ("--state-dir", str(kit.state_dir), *words)
        ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=WAIT_S, check=True)
        return ended.stdout

    other = child["session"]
    own = {"session": "s1", "run_id": run, "call_id": child["call_id"], "depth": 1}
    living = {one["session"]: one["runs"] for one in json.loads(shown("ps", "--json"))["sessions"]}
    assert [(one["run_id"], one["parent"]) for one in living[other]] == [(child["run_id"], own)]
    assert [(one["run_id"], one["parent"]) for one in living["s1"]] == [(run, None)]
    assert [one["parent"] for one in json.loads(shown("runs", other, "--json"))] == [own]
    said = f"{run} of session s1, by its {child['call_id']}"
    for words in (("ps",), ("runs", other), ("why", child["run_id"])):
        assert said in " ".join(shown(*words).split()), words
    stop(session)
    assert session.receipt(run, timeout=WAIT_S).complete


def test_a_child_run_that_is_stopped_alone_gives_its_parent_an_interrupted_result(kit: Kit) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    run = say(session, "worker - wait")
    child = child_of(session)
    stop(supervisor.session(child["session"]), REASON)
    receipt = session.receipt(run, timeout=WAIT_S)
    said = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert len(said) == 1
    assert said[0].startswith("interrupted cancelled: Interrupted: the user stopped it (user.test: wrong target).")
    assert receipt.complete
    row = run_row(receipt)
    assert row.provenance is not None
    assert row.provenance.reason == REASON
    assert session.run(run).status is RunStatus.COMPLETED


def test_a_message_of_a_person_takes_over_from_a_child_run_in_its_session(kit: Kit) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    run = say(session, "worker - wait")
    other = supervisor.session(child_of(session)["session"])
    later = say(other, "go")
    assert session.receipt(run, timeout=WAIT_S).complete
    said = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert said[0].startswith("interrupted cancelled: Interrupted: a new message took over")
    other.receipt(later, timeout=WAIT_S)
    assert other.run(later).status is RunStatus.COMPLETED


async def limited(turn: AsyncTurn) -> str:
    try:
        async with asyncio.timeout(0.05):
            await turn.delegate("worker", "wait")
    except TimeoutError:
        await turn.emit("waits no longer")
    return "done"


def test_a_delegation_that_is_no_longer_awaited_ends_its_child_run(kit: Kit) -> None:
    supervisor = start(kit, agent=limited)
    session = supervisor.session("s1")
    run = say(session)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert session.run(run).status is RunStatus.COMPLETED
    for name in supervisor.store.names():
        if name != "s1":
            (info,) = supervisor.store.runs(name)
            assert info.provenance is not None
            assert info.provenance.source == "call.given_up"
    check_rest(session)


async def leaves(turn: AsyncTurn) -> None:
    task = asyncio.ensure_future(turn.delegate("worker", "wait"))
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    # It is asked for before this call is.
    await asyncio.sleep(0)
    await turn.call("shell", script="true")


def test_l3_a_child_run_that_its_agent_leaves_behind_ends_with_the_run(kit: Kit) -> None:
    supervisor = start(kit, agent=leaves)
    session = supervisor.session("s1")
    run = say(session)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert session.run(run).status is RunStatus.COMPLETED
    child = child_of(session)
    info = supervisor.session(child["session"]).run(child["run_id"])
    assert info.provenance is not None
    assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "run.ended")


async def some(turn: AsyncTurn) -> list[str]:
    waits = [asyncio.ensure_future(turn.delegate("worker", "wait")) for _ in range(2)]
    while True:
        done, _ = await asyncio.wait(waits, timeout=0.01)
        if done:
            break
    for one in waits:
        one.cancel()
    await asyncio.wait(waits)
    return [one.result().content for one in done]


def test_l14_one_child_run_too_many_is_refused(kit: Kit) -> None:
    session = start(kit, agent=some, children_max=1).session("s1")
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    (refused,) = session.run(run).result
    assert "at most 1 at once" in refused


async def deeper(turn: AsyncTurn) -> str:
    done = await turn.delegate("deeper", "go")
    return done.content if done.is_error else f"below: {done.result}"


def test_l14_child_runs_stand_only_so_deep(kit: Kit) -> None:
    supervisor = start(kit, agent=deeper, agents={"deeper": deeper}, children_depth_max=2)
    session = supervisor.session("s1")
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).result == "below: below: Not started: child runs may stand at most 2 deep below one another"
    assert len(supervisor.store.names()) == 3


def test_l4_a_session_in_which_something_runs_takes_no_child_run(kit: Kit) -> None:
    supervisor = start(kit)
    session, busy = supervisor.session("s1"), supervisor.session("busy")
    say(busy, "wait -", agent="worker")
    until(lambda: busy.status().run_id, "a run in the other session")
    run = say(session, "worker busy go")
    session.receipt(run, timeout=WAIT_S)
    said = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert said[0].startswith("finished None: Not started: a run is active in the session of the child run")
    # Its own session is one of these.
    run = say(session, "worker s1 go")
    session.receipt(run, timeout=WAIT_S)
    said = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert said[1].startswith("finished None: Not started: a run is active")


def test_a_session_of_ones_own_is_used_again(kit: Kit) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    for number in range(2):
        run = say(session, "worker notes go")
        assert session.receipt(run, timeout=WAIT_S).complete
        assert len(supervisor.session("notes").runs()) == number + 1
    settled(supervisor.session("notes"))


@pytest.mark.parametrize("arguments", [("", "go"), ("worker", " "), ("worker", 7), (None, "go")])
def test_what_cannot_be_delegated_is_refused_with_the_reason(kit: Kit, arguments: tuple[Any, Any]) -> None:
    async def wrong(turn: AsyncTurn) -> str:
        with pytest.raises(Invalid):
            await turn.delegate(*arguments)
        with pytest.raises(Invalid, match="a session cannot have this name"):
            await turn.delegate("worker", "go", session="\n")
        return "refused"

    session = kit.start(wrong).session("s1")
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).result == "refused"


# ── Agents in hosts ───────────────────────────────────────────────────────────────────────────────

HOSTED = """
import asyncio


async def boss(turn):
    word = turn.inputs[-1].content
    if word == "limit":
        try:
            async with asyncio.timeout(0.2):
                await turn.delegate("worker", "wait")
        except TimeoutError:
            return "waited no longer"
    refused = await turn.delegate("nobody", "go")
    done = await turn.delegate("worker", word)
    return [refused.outcome, done.outcome, done.status, done.content, done.result, done.session, done.run_id]


def plain(turn):
    done = turn.delegate("worker", turn.inputs[-1].content)
    return [done.outcome, done.status, done.content, done.is_error]


async def below(turn):
    await turn.emit("in a host ")
    result = await turn.call("shell", script="sleep 300")
    return result.outcome
"""


@pytest.fixture
def hosted(kit: Kit, tmp_path: Path) -> Any:
    """Return a function that makes an agent which runs in hosts, of a function of the module above."""
    (tmp_path / "delegating.py").write_text(HOSTED)

    def made(function: str) -> Agent:
        return Agent(run=f"delegating:{function}", path=[str(tmp_path)], env={kit.mark: "1"}, spares=0)

    return made


def test_an_agent_in_a_host_delegates(kit: Kit, hosted: Any) -> None:
    supervisor = start(kit, agent=hosted("boss"))
    session = supervisor.session("s1")
    run = say(session, "go")
    assert session.receipt(run, timeout=WAIT_S).complete
    refused, outcome, status, content, result, name, child = session.run(run).result
    assert (refused, outcome, status) == ("not_started", "finished", "completed")
    assert (content, result) == ("at work has done go", {"done": 1})
    parent = supervisor.session(name).run(child).parent
    assert parent is not None
    assert (parent.session, parent.run_id) == ("s1", run)
    run = say(session, "limit")
    assert session.receipt(run, timeout=WAIT_S).complete
    assert session.run(run).result == "waited no longer"
    check_rest(session)


def test_a_plain_agent_in_a_host_has_the_interruption_of_its_child_run_as_a_result(kit: Kit, hosted: Any) -> None:
    supervisor = start(kit, agent=hosted("plain"))
    session = supervisor.session("s1")
    run = say(session, "wait")
    stop(supervisor.session(child_of(session)["session"]), REASON)
    assert session.receipt(run, timeout=WAIT_S).complete
    outcome, status, content, is_error = session.run(run).result
    assert (outcome, status, is_error) == ("interrupted", "cancelled", True)
    assert REASON in content


def test_l3_a_stop_ends_parent_and_child_in_hosts_of_their_own_with_all_their_trees(kit: Kit, hosted: Any) -> None:
    supervisor = start(kit, agent=hosted("boss"), agents={"worker": hosted("below")})
    session = supervisor.session("s1")
    run = say(session, "go")
    child = child_of(session)
    other = supervisor.session(child["session"])
    until(lambda: [event for event in log(other) if event.kind == "tool.started"], "a call of the child run")
    stop(session, REASON)
    receipt = session.receipt(run, timeout=WAIT_S)
    assert receipt.complete
    assert not kit.alive()
    assert run_row(receipt).rows == other.receipt(child["run_id"], timeout=WAIT_S).rows
    assert {row.name for row in run_row(receipt).rows} >= {"worker", "shell"}
    check_rest(other)
    check_rest(session)


# ── What fails meanwhile ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["parent", "child"])
def test_l7_l13_when_the_actor_of_a_session_fails_the_child_run_ends_and_both_receipts_are_complete(
    kit: Kit, which: str
) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    run = say(session, f"worker - sh {kit.script('sleep 300')}")
    child = child_of(session)
    other = supervisor.session(child["session"])
    until(kit.alive, "the tree of the child run")
    ref = session.ref if which == "parent" else other.ref
    assert ref is not None
    poison(ref)
    receipt = session.receipt(run, timeout=WAIT_S)
    own = other.receipt(child["run_id"], timeout=WAIT_S)
    assert receipt.complete
    assert own.complete
    assert not kit.alive()
    info = other.run(child["run_id"])
    assert info.provenance is not None
    assert info.provenance.source == "actor.failure"
    # It is not tried again on its own.
    assert [one.run_id for one in other.runs()] == [child["run_id"]]
    assert run_row(receipt).rows == own.rows


def test_l7_a_shutdown_ends_parent_and_child(kit: Kit) -> None:
    supervisor = start(kit)
    session = supervisor.session("s1")
    say(session, "worker - wait")
    child = child_of(session)
    assert supervisor.close(0.0)
    kit.supervisor = None
    supervisor = start(kit)
    infos = [supervisor.session(name).runs()[-1] for name in ("s1", child["session"])]
    for info in infos:
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "supervisor.shutdown")
        assert info.settled


CRASHES = """
import asyncio, sys, threading
from actors import NewMessage
from supervisor import Config, Supervisor
from tests.test_child_runs import boss, worker
supervisor = Supervisor.start(Config(sys.argv[1], agent="boss", agents={"boss": boss, "worker": worker}))
supervisor.session("s1").ask(NewMessage(content="worker - sh " + sys.argv[2]))
threading.Event().wait()
"""


def test_l12_after_kill_9_of_the_daemon_parent_and_child_have_ended_and_neither_is_tried_again(kit: Kit) -> None:
    script = kit.script("sleep 300 & sleep 300")
    ran = subprocess.Popen(
        [sys.executable, "-c", CRASHES, str(kit.state_dir), script], cwd=Path(__file__).parent.parent
    )
    try:
        until(lambda: len([pid for pid in kit.alive() if pid != ran.pid]) >= 3, "the tree of the child run")
    finally:
        ran.send_signal(signal.SIGKILL)
        ran.wait()
    supervisor = start(kit)
    session = supervisor.session("s1")
    (run,) = session.runs()
    receipt = session.receipt(run.run_id, timeout=WAIT_S)
    child = next(event.data for event in log(session) if event.kind == "run.child")
    other = supervisor.session(child["session"])
    own = other.receipt(child["run_id"], timeout=WAIT_S)
    assert not kit.alive()
    assert receipt.complete
    assert own.complete
    assert [one.run_id for one in other.runs()] == [child["run_id"]]
    info = other.run(child["run_id"])
    assert info.provenance is not None
    assert info.provenance.source == "supervisor.recovery"
    assert run_row(receipt).rows == own.rows


# ── In virtual time ───────────────────────────────────────────────────────────────────────────────


def runs_of(world: World) -> list[RunInfo]:
    return [run for tables in world.disk.tables.values() for run in tables.runs.values() if run.parent is not None]


@pytest.mark.parametrize("steps", range(1, 45))
def test_l1_a_stop_at_any_step_of_a_delegation_leaves_no_child_run(steps: int) -> None:
    with World(steps, settings=settings()) as world:
        world.ask("s", world_message("m", "delegate=other/say:1+write:1"))
        world.run(max_steps=steps)
        world.answer("s", Stop(id="x", source="user.test", reason=REASON))
        world.settle()
        assert not world.watch.broken
        for child in runs_of(world):
            assert child.settled
            assert child.provenance is None or child.provenance.reason == REASON
        assert all(receipt.complete for tables in world.disk.tables.values() for receipt in tables.receipts.values())
        world.watch.children.at_rest()


@pytest.mark.parametrize("steps", range(1, 60, 2))
@pytest.mark.parametrize("actor", [SessionActor, ProcessActor])
def test_l13_whichever_actor_fails_at_any_step_the_child_run_ends_and_is_told_once(steps: int, actor: Any) -> None:
    for which in range(2):
        with World(steps, settings=settings()) as world:
            world.ask("s", world_message("m", "delegate=other/say:1+write:1 say=1"))
            world.run(max_steps=steps)
            world.poison(actor, which=which)
            world.settle()
            assert not world.watch.broken
            assert all(child.settled for child in runs_of(world))
            ended = [event.data["run_id"] for event in world.events("s") if event.kind == "run.child_ended"]
            assert sorted(ended) == sorted(set(ended))
            world.watch.children.at_rest()


@pytest.mark.parametrize("steps", range(1, 60, 3))
def test_l12_a_crash_at_any_step_ends_parent_and_child(steps: int) -> None:
    with World(steps, settings=settings()) as first:
        first.ask("s", world_message("m", "delegate=other/say:1+run:30"))
        first.run(max_steps=steps)
        with first.crash() as world:
            world.settle()
            assert not world.watch.broken
            for child in runs_of(world):
                assert child.settled
                assert child.attempt == 1
            world.watch.children.at_rest()


def test_l5_the_cause_of_the_parents_end_stands_where_the_childs_session_fails_at_once() -> None:
    for seed in range(20):
        with World(seed, settings=settings()) as world:
            world.ask("s", world_message("m", "delegate=other/forever"))
            assert world.run(partial(_has_child, world))
            (child,) = runs_of(world)
            reply = world.ask("s", Stop(id="x", source="user.test", reason=REASON))
            assert world.run(partial(_is_fenced, world))
            # Which of the two actors of sessions is the child's.
            keys = [one.key for one in world.actors(SessionActor)]
            world.poison(SessionActor, which=keys.index(child.session))
            world.settle()
            assert reply.done()
            (child,) = runs_of(world)
            assert child.provenance is not None
            assert child.provenance.reason == REASON
            assert child.status is RunStatus.CANCELLED


def _has_child(world: World) -> bool:
    return "run.child" in world.kinds("s")


def _is_fenced(world: World) -> bool:
    return world.session("s")._protocol.state.active is None


@pytest.mark.parametrize("seed", range(20))
def test_l4_a_child_run_that_is_deleted_before_its_parent_has_heard_of_it_does_not_begin_again(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        world.ask("s", world_message("m", "delegate=other@c/forever say=1"))
        assert world.run(lambda: bool(runs_of(world)))
        # The question fails with the actor, and comes again when the session is there no more.
        world.poison(SessionActor, which=[one.key for one in world.actors(SessionActor)].index("c"))
        world.answer("c", Delete(source="user.test", reason=REASON))
        assert world.disk.deleted
        world.settle()
        assert not world.watch.broken
        assert not runs_of(world)
        (ended,) = [event.data for event in world.events("s") if event.kind == "run.child_ended"]
        assert (ended["how"], ended["status"]) == (How.GONE, "failed")
        world.watch.children.at_rest()
