"""Hosts of runs, in virtual time: told of a run or not, how a Stop ends them, and what the session keeps.

The hosts here are calm (`tests/sim/hosts.py`): they do what a good host does. What others do is drawn by schedules.

The file has over 600 lines, and is whole: one noun, with one world of calm hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from actors.errors import StoreUnavailable
from actors.hierarchy.incarnation import Phase
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.kernel.actor import Actor
from actors.messages import ProcessOutput
from actors.model import How, Receipt, Row
from actors.plugin.turn import AsyncTurn
from actors.ports import HostedAgent, ProcessRow
from actors.protocol.run_record import OUTPUT_LOGGED_MAX_BYTES
from actors.run_status import RunStatus
from tests.sim.hosts import Hosting, HostTurn
from tests.sim.processes import _Tree
from tests.sim.world import World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("quiet")]

GRACE_S = 2.0
SOON_S = 0.2


def hosted(
    seed: int, *, agents: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **agent: Any
) -> World:
    """A world whose agent runs in hosts."""
    hosting = Hosting(seed, HostedAgent("scripted", **agent), calm=True)
    return World(seed, agents=agents, settings=settings(**(limits or {})), hosting=hosting)


def ready(world: World) -> None:
    """Have the session read, and a spare started."""
    world.inspect("s")
    world.wait(0.1)


def say(world: World, content: str, request_id: str = "a", **options: Any) -> str:
    """Send a message; returns its run's id."""
    answer = world.answer("s", message(request_id, content, **options))
    assert answer.run_id is not None
    return str(answer.run_id)


def hosts(world: World) -> list[ProcessRow]:
    """The rows of hosts, in the order of their ids."""
    rows = world.disk.of("s").processes.values()
    return sorted((row for row in rows if row.host), key=lambda row: row.process_id)


def tree(world: World, process_id: str) -> _Tree:
    return world.processes._trees[process_id]


def begun(world: World, run_id: str) -> None:
    """Step until the agent of a run is inside its function."""
    assert world.run(lambda: run_id in world.watch.inside), "the agent begins"


def receipt_of(world: World, run_id: str) -> Receipt:
    receipt = world.disk.receipt(run_id)
    assert receipt is not None
    return receipt


def parts(rows: Iterable[Row]) -> list[Row]:
    return [one for row in rows for one in (row, *parts(row.rows))]


def signals(row: Row) -> dict[str, float]:
    """When a tree got which signal, in seconds since the beginning of the world."""
    return {one.signal: one.at - 1_750_000_000.0 for one in row.signals}


# ── The part of a run ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_the_host_of_a_run_is_a_part_below_its_agent_and_ends_with_it(seed: int) -> None:
    with hosted(seed) as world:
        run = say(world, "say=2 write=0.1")
        settled(world)
        assert world.status(run) is RunStatus.COMPLETED
        (agent,) = [row for row in receipt_of(world, run).rows if row.kind == "agent"]
        (host,) = agent.rows
        assert (host.kind, host.name, host.how, host.reaped) == ("process", "host scripted", How.SIGTERM, 1)
        assert host.provenance is not None
        assert host.provenance.source == "run.ended"
        (row,) = hosts(world)
        assert (row.run_id, row.call_id, row.host, row.state) == (run, "", "scripted", "ended")
        assert [event.data["process_id"] for event in of(world, "process.started")] == [row.process_id]
        assert receipt_of(world, run).complete


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_the_row_of_a_host_is_in_the_batch_that_starts_its_run(seed: int) -> None:
    with hosted(seed) as world:
        batches: list[Any] = []
        commit = world.store.commit

        def committed(batch: Any, owner: Any) -> None:
            batches.append(batch)
            commit(batch, owner)

        world.store.commit = committed  # type: ignore[method-assign]  # what is written is looked at
        run = say(world, "say=1")
        (first,) = [batch for batch in batches if any(event.kind == "run.started" for event in batch.events)]
        assert [(row.run_id, row.state, row.host) for row in first.processes] == [(run, "granted", "scripted")]


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_calls_of_the_next_run_wait_for_the_host_of_the_last(seed: int) -> None:
    async def agent(turn: AsyncTurn) -> None:
        if turn.inputs[-1].content == "first":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
        await turn.call("write", seconds=0.0)

    with hosted(seed, agents={"scripted": agent}) as world:
        say(world, "first")
        world.wait(0.1)
        second = say(world, "second", "b", policy="interrupt")
        fenced = world.clock.monotonic()
        assert world.run(lambda: bool(of(world, "tool.started")))
        # It swallows its cancel, so its host is killed at the grace, and only then is its end proven.
        assert world.clock.monotonic() >= fenced + GRACE_S
        settled(world)
        assert world.status(second) is RunStatus.COMPLETED


# ── A Stop ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l8_a_stop_lets_the_agent_clean_up_in_its_host_and_signals_its_other_trees_at_once(seed: int) -> None:
    with hosted(seed) as world:
        run = say(world, "leave=60 tidy=1")
        assert world.run(lambda: sum(event.data["tool"] == "tidy" for event in of(world, "tool.requested")) == 1)
        world.wait(0.5)
        fenced = world.clock.monotonic()
        world.answer("s", stop())
        settled(world)
        rows = parts(receipt_of(world, run).rows)
        (agent,) = [row for row in rows if row.kind == "agent"]
        (host,) = [row for row in rows if row.name == "host scripted"]
        (left,) = [row for row in rows if row.kind == "process" and row.name == "sim"]
        assert receipt_of(world, run).complete
        assert world.status(run) is RunStatus.CANCELLED
        if world.stalled_s > SOON_S / 2:
            # A timer overtook what was ready: when something was due says nothing of when it was done.
            return
        assert signals(left)["SIGTERM"] < fenced + SOON_S
        # The clean-up takes a second, undisturbed; then the host has the rest of the grace.
        assert agent.ended_at is not None
        assert fenced + 1 <= agent.ended_at - 1_750_000_000.0 < fenced + 1 + SOON_S
        assert fenced + 1 <= signals(host)["SIGTERM"] < fenced + 1 + SOON_S
        assert "SIGKILL" not in signals(host)


async def deaf(turn: AsyncTurn) -> None:
    """Swallow every cancel."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(("agent", "grace_s"), [({}, GRACE_S), ({"grace_s": 5.0}, 5.0)], ids=["configured", "its own"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_an_agent_that_keeps_running_is_killed_with_its_host_when_the_grace_is_over(
    seed: int, agent: dict[str, Any], grace_s: float
) -> None:
    with hosted(seed, agents={"scripted": deaf}, **agent) as world:
        run = say(world, "go")
        world.wait(0.1)
        fenced = world.clock.monotonic()
        world.answer("s", stop())
        settled(world)
        (host,) = [row for row in parts(receipt_of(world, run).rows) if row.kind == "process"]
        assert fenced + grace_s <= signals(host)["SIGKILL"] < fenced + grace_s + SOON_S
        assert signals(host).get("SIGTERM", fenced + grace_s) >= fenced + grace_s
        (of_agent,) = [row for row in parts(receipt_of(world, run).rows) if row.kind == "agent"]
        assert of_agent.how is How.RAISED
        assert receipt_of(world, run).complete


@pytest.mark.parametrize("later_s", [None, 0.5])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stop_that_is_immediate_kills_the_host_at_once_also_behind_one_that_was_not(
    seed: int, later_s: float | None
) -> None:
    with hosted(seed, agents={"scripted": deaf}) as world:
        run = say(world, "go")
        world.wait(0.1)
        if later_s is not None:
            world.answer("s", stop())
            world.wait(later_s)
        killed = world.clock.monotonic()
        world.answer("s", stop("y", mode="immediate"))
        settled(world)
        (host,) = [row for row in parts(receipt_of(world, run).rows) if row.kind == "process"]
        assert killed <= signals(host)["SIGKILL"] < killed + SOON_S
        assert receipt_of(world, run).complete


# ── What fails ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", ["sleep=60", "foreign=60", "write=60"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l7_a_host_that_dies_fails_its_run_with_the_reason_and_the_next_run_has_another(seed: int, words: str) -> None:
    with hosted(seed) as world:
        run = say(world, words)
        begun(world, run)
        if words != "sleep=60":
            assert world.run(lambda: of(world, "tool.started") != [])
        world.wait(0.1)
        (row,) = hosts(world)
        world.processes.crash(row.process_id)
        assert world.run(lambda: world.status(run) is RunStatus.FAILED)
        info = world.disk.run(run)
        assert info is not None
        assert info.error is not None
        assert "host" in info.error
        following = say(world, "say=1", "b")
        settled(world)
        assert world.status(following) is RunStatus.COMPLETED
        assert receipt_of(world, run).complete
        assert len({row.process_id for row in hosts(world)}) == 2
        calls = of(world, "tool.ended")
        assert [event.data["outcome"] for event in calls] == (
            ["finished"] if words == "foreign=60" else ["interrupted"] if words == "write=60" else []
        )


@pytest.mark.parametrize("kind", [RunActor, SessionActor, ProcessActor])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_l13_whatever_actor_fails_the_host_of_its_run_is_ended_and_proven(
    seed: int, kind: type[Actor], before: bool
) -> None:
    with hosted(seed) as world:
        run = say(world, "say=1 forever")
        assert world.run(lambda: bool(of(world, "text")))
        world.run(max_steps=seed * 3)
        assert world.poison(kind, before=before)
        # It fails at its next message: a Stop brings one to each of them.
        world.ask("s", stop())
        settled(world)
        (row,) = hosts(world)
        assert not world.processes.lives(row.process_id)
        assert row.state == "ended"
        assert world.status(run) in (RunStatus.FAILED, RunStatus.CANCELLED)
        assert receipt_of(world, run).complete


@pytest.mark.parametrize("steps", range(0, 120, 8))
def test_l12_a_crash_at_any_moment_leaves_no_host_and_closes_its_run(steps: int) -> None:
    with hosted(steps, keep=True) as first:
        first.ask("s", message("a", "say=1 write=0.1"))
        first.run(max_steps=steps)
        with first.crash() as world:
            settled(world)
            for row in hosts(world):
                assert row.state == "ended" or row.owner == "session"
                assert not world.processes.lives(row.process_id) or row.run_id != "run_0001"
            for run in world.disk.runs("s"):
                assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
                assert receipt_of(world, run.run_id).complete


# ── Reserved, and not told ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_a_host_whose_run_is_fenced_before_its_start_is_sent_no_frame_and_serves_the_next(seed: int) -> None:
    with hosted(seed) as world:
        ready(world)
        world.store.hold(True)
        world.ask("s", message("a", "say=1"))
        world.ask("s", stop())
        world.wait(0.1)
        world.store.hold(False)
        world.wait(0.1)
        (row,) = hosts(world)
        assert row.end is not None
        assert (row.state, row.end.how) == ("ended", How.NOT_STARTED)
        spare = world.hosts
        assert spare is not None
        assert spare.is_spare(row.process_id), "it was told nothing, and that is durable"
        (fenced,) = [run for run in world.disk.runs("s") if run.status is RunStatus.CANCELLED]
        assert [row.how for row in parts(receipt_of(world, fenced.run_id).rows)] == [How.NOT_STARTED]
        # One of the two spares is that one.
        used = [say(world, "say=1", "b"), say(world, "say=1", "c", policy="enqueue")]
        settled(world)
        assert all(world.status(run) is RunStatus.COMPLETED for run in used)
        assert row.process_id in {one.process_id for one in hosts(world) if one.run_id in used}


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "perhaps stored"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_host_is_released_where_the_store_refused_its_run_and_ended_where_the_run_is_on_record(
    seed: int, stored: bool
) -> None:
    with hosted(seed) as world:
        ready(world)
        assert world.hosts is not None
        (spare,) = [host.process_id for host in world.hosts._spares["scripted"]]
        world.watch.faults = True
        if stored:
            world.store.lose_next(1)
        else:
            world.store.fail_next(1)
        refused = world.ask("s", message("a", "say=1"))
        assert world.run(refused.done)
        with pytest.raises(StoreUnavailable):
            refused.get(timeout=0)
        world.wait(1.0)
        if stored:
            # The run was tried again, in another host; this one was its part, and is proven to have ended.
            assert [row.state for row in hosts(world) if row.process_id == spare] == ["ended"]
            assert not world.processes.lives(spare)
        else:
            assert not hosts(world)
            assert world.hosts.is_spare(spare)
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_the_host_that_a_failing_session_had_reserved_is_of_no_use_to_another(seed: int) -> None:
    with hosted(seed) as world:
        ready(world)
        world.store.hold(True)
        world.ask("s", message("a", "say=1"))
        assert world.run(lambda: any(actor._live.hosts._reserved for actor in world.actors(SessionActor)))
        (reserved,) = world.session()._live.hosts._reserved
        world.poison(SessionActor)
        world.ask("s", stop())
        world.wait(0.1)
        world.store.hold(False)
        settled(world)
        assert not world.processes.lives(reserved)


# ── An agent that may not overlap ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_an_agent_that_may_not_overlap_begins_when_all_earlier_runs_are_proven_to_have_ended(seed: int) -> None:
    with hosted(seed, overlap=False) as world:
        say(world, "leave=60,ignores_term say=1 sleep=60")
        assert world.run(lambda: len(of(world, "process.started")) == 2)
        fenced = world.clock.monotonic()
        second = say(world, "say=1 sleep=1", "b", policy="interrupt")
        begun(world, second)
        assert world.clock.monotonic() >= fenced + GRACE_S
        settled(world)
        assert world.status(second) is RunStatus.COMPLETED


@pytest.mark.parametrize("barrier", ["forced", "strict"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l7_what_never_ends_holds_an_agent_up_for_its_time_and_no_longer(seed: int, barrier: str) -> None:
    with hosted(seed, overlap=False, limits={"barrier": barrier}) as world:
        say(world, "leave=60,never_dies sleep=60")
        assert world.run(lambda: len(of(world, "process.started")) == 2)
        second = say(world, "say=1", "b", policy="interrupt")
        settled(world)
        info = world.disk.run(second)
        assert info is not None
        if barrier == "forced":
            assert info.status is RunStatus.COMPLETED
        else:
            assert info.status is RunStatus.FAILED
            assert info.error is not None
            assert (
                "the agent was not started: something of an earlier run could not be ended (process sim)" in info.error
            )
            third = say(world, "say=1", "c")
            settled(world)
            assert world.status(third) is RunStatus.FAILED


@pytest.mark.parametrize("word", ["run=60,never_dies", "serve=60,never_dies"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_an_agent_begins_beside_what_was_abandoned_when_that_is_on_record_and_not_before(
    seed: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store writes one batch at a time: the start of the run first, and then what was abandoned meanwhile.
    monkeypatch.setattr("tests.sim.store.GROUP_MAX", 1)
    with hosted(seed, overlap=False) as world:
        say(world, word)
        world.wait(1.0)
        world.answer("s", stop(scope="session"))
        world.store.hold(True)
        world.tell("s", message("b", "say=1"))
        world.wait(9.0)
        world.store.hold(False)
        assert world.run(lambda: len(of(world, "run.started")) == 2)
        world.store.hold(True)
        world.wait(1.0)
        second = of(world, "run.started")[-1].run_id
        (row,) = [row for row in hosts(world) if row.run_id == second]
        assert world.hosts is not None
        assert not of(world, "session.barrier_forced")
        assert not world.hosts.was_told(row.process_id)
        world.store.hold(False)
        settled(world)
        assert of(world, "session.barrier_forced")
        assert world.status(str(second)) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_a_run_that_is_stopped_while_its_agent_waits_never_begins(seed: int) -> None:
    with hosted(seed, overlap=False) as world:
        say(world, "leave=60,ignores_term sleep=60")
        assert world.run(lambda: len(of(world, "process.started")) == 2)
        second = say(world, "say=1", "b", policy="interrupt")
        world.wait(0.5)
        world.answer("s", stop())
        settled(world)
        assert world.status(second) is RunStatus.CANCELLED
        assert not [event for event in of(world, "text") if event.run_id == second]
        (row,) = [row for row in hosts(world) if row.run_id == second]
        assert row.end is not None
        assert row.end.how is How.NOT_STARTED


# ── Its output, its tools ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_what_a_host_prints_is_logged_up_to_a_limit_and_not_past_the_end_of_its_run(seed: int) -> None:
    with hosted(seed) as world:
        run = say(world, "sleep=1")
        begun(world, run)
        (row,) = hosts(world)
        host, piece = tree(world, row.process_id), "x" * 400_000
        for _ in range(4):
            host.todo.append(lambda: world.processes._tell(host, ProcessOutput(row.process_id, "stderr", piece)))
        assert world.run(lambda: len(of(world, "run.output")) == 4)
        world.wait(2.0)
        world.processes._tell(host, ProcessOutput(row.process_id, "stderr", "too late"))
        settled(world)
        events = of(world, "run.output")
        assert {event.data["process_id"] for event in events} == {row.process_id}
        assert sum(len(event.data["text"]) for event in events[:-1]) == OUTPUT_LOGGED_MAX_BYTES
        assert events[-1].data["marker"]
        assert all(event.run_id == run for event in events)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_a_host_prints_before_its_answer_is_logged_before_the_end_of_the_run(seed: int, fails: bool) -> None:
    async def prints(turn: AsyncTurn) -> None:
        assert isinstance(turn, HostTurn)
        host = tree(world, turn.host.process_id)
        for number in range(5):
            world.processes._later(host, ProcessOutput(host.process_id, "stdout", f"{number}\n"))
        if fails:
            # Its actor ends, and with it whoever would tell what was printed.
            world.poison(ProcessActor)
        await asyncio.sleep(0)

    with hosted(seed, agents={"scripted": prints}) as world:
        run = say(world, "")
        settled(world)
        assert world.status(run) in ((RunStatus.COMPLETED, RunStatus.FAILED) if fails else (RunStatus.COMPLETED,))
        if not fails:
            assert "".join(event.data["text"] for event in of(world, "run.output")) == "0\n1\n2\n3\n4\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_in_a_host_may_call_the_tools_that_are_named_and_no_others(seed: int) -> None:
    with hosted(seed, tools=("write",)) as world:
        run = say(world, "write=0.1 fan=1 run=1")
        settled(world)
        assert world.hosts is not None
        assert [offer.name for offer in world.hosts.offered] == ["write"]
        assert world.hosts.offered[0].parameters["properties"].keys() == {"seconds", "of"}
        ended = [(event.data["tool"], event.data["outcome"]) for event in of(world, "tool.ended")]
        assert ended == [("write", "finished"), ("write", "finished"), ("run", "not_started")]
        assert world.status(run) is RunStatus.COMPLETED


# ── Kept ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_host_is_kept_for_the_next_run_which_takes_it_back_and_ends_with_it(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        first = say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        (row,) = hosts(world)
        assert (row.owner, row.run_id) == ("session", first)
        (host,) = [one for one in parts(receipt_of(world, first).rows) if one.kind == "process"]
        assert (host.how, host.note) == (
            How.HANDED_OVER,
            "the session keeps it for the next run of its agent: Stop ends it",
        )
        second = say(world, "say=1 sleep=60", "b")
        begun(world, second)
        (row,) = hosts(world)
        assert (row.owner, row.run_id) == ("run", second)
        assert world.session().decided_seq
        world.answer("s", stop())
        settled(world)
        kinds = [event.kind for event in world.events() if event.kind.startswith("process.")]
        assert kinds == ["process.started", "process.handed_over", "process.taken_back", "process.ended"]
        (host,) = [one for one in parts(receipt_of(world, second).rows) if one.kind == "process"]
        assert host.how is How.SIGTERM
        assert receipt_of(world, second).complete


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_run_that_waits_takes_the_host_in_the_step_that_hands_it_over(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        first = say(world, "say=1 sleep=0.5")
        second = say(world, "say=1", "b", policy="enqueue")
        settled(world)
        assert world.status(first) is world.status(second) is RunStatus.COMPLETED
        assert len(hosts(world)) == 1
        kinds = [event.kind for event in world.events() if event.kind.startswith("process.")]
        assert kinds[:4] == ["process.started", "process.handed_over", "process.taken_back", "process.handed_over"]
        assert receipt_of(world, first).complete


@pytest.mark.parametrize("daemon_dies", [True, False], ids=["daemon", "actor"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_receipt_filed_after_a_crash_names_the_host_that_a_later_run_took_back(
    seed: int, daemon_dies: bool
) -> None:
    with hosted(seed, keep=True) as before:
        first = say(before, "say=1 leave=60,ignores_term")
        second = say(before, "say=1 sleep=60", "b", policy="enqueue")
        begun(before, second)
        assert before.disk.receipt(first) is None, "what it has left ignores SIGTERM"
        (host,) = hosts(before)
        assert host.run_id == second
        (handed,) = of(before, "process.handed_over")
        if daemon_dies:
            world = before.crash()
        else:
            world = before
            world.poison(SessionActor)
            world.inspect("s")
        with world:
            world.wait(5.0)
            receipt = receipt_of(world, first)
            (named,) = [one for one in parts(receipt.rows) if one.name == host.name]
            assert (named.how, named.pid) == (How.HANDED_OVER, handed.data["pid"])
            assert named.started_at is not None
            assert receipt.complete
            world.answer("s", stop())
            settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_a_run_that_took_its_host_back_and_never_begins_ends_it(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        world.wait(0.1)
        world.store.hold(True)
        world.ask("s", message("b", "say=1"))
        world.ask("s", stop())
        world.wait(0.1)
        world.store.hold(False)
        settled(world)
        (row,) = hosts(world)
        assert not world.processes.lives(row.process_id)
        second = world.disk.runs("s")[-1]
        assert second.status is RunStatus.CANCELLED
        assert receipt_of(world, second.run_id).complete
        assert not [event for event in of(world, "text") if event.run_id == second.run_id]


@pytest.mark.parametrize("scope", ["run", "session"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_any_stop_without_an_aim_ends_the_host_that_is_kept_and_says_so_in_its_receipt(
    seed: int, scope: str
) -> None:
    with hosted(seed, keep=True) as world:
        first = say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        over = world.answer("s", stop("aimed", run_id=first, scope="run"))
        assert over.outcome == "already_over"
        world.wait(1.0)
        (row,) = hosts(world)
        assert world.processes.lives(row.process_id), "it was aimed at a run that is over (L9)"
        answer = world.answer("s", stop("idle", scope=scope))
        assert answer.outcome == "nothing_running"
        settled(world)
        assert not world.processes.lives(row.process_id)
        receipt = world.disk.receipt("idle")
        assert receipt is not None
        assert [(one.name, one.how) for one in receipt.rows] == [("host scripted", How.SIGTERM)]
        assert receipt.complete


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_a_host_that_no_run_needs_is_ended_when_it_was_idle_for_its_time(seed: int) -> None:
    with hosted(seed, keep=True, keep_idle_s=10.0) as world:
        say(world, "say=1")
        world.wait(6.0)
        say(world, "say=1", "b")
        assert world.run(lambda: len(of(world, "run.ended")) == 2)
        kept_since = world.clock.monotonic()
        world.wait(6.0)
        if world.stalled_s > SOON_S / 2:
            # A timer overtook what was ready: the host may have been idle for its time before.
            return
        (row,) = hosts(world)
        assert world.processes.lives(row.process_id), "a run has needed it since"
        assert world.run(lambda: not world.processes.lives(row.process_id))
        ended_at = world.clock.monotonic() + world.stalled_s
        assert kept_since + 10 <= ended_at < kept_since + 10 + SOON_S + 2 * world.stalled_s
        settled(world)
        (ended,) = of(world, "process.ended")
        assert ended.data["provenance"]["source"] == "host.retired"
        third = say(world, "say=1", "c")
        settled(world)
        assert world.status(third) is RunStatus.COMPLETED


@pytest.mark.parametrize("fails", [None, "before", "behind"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l5_a_host_that_is_one_too_many_is_ended_by_its_session_with_the_reason(seed: int, fails: str | None) -> None:
    with hosted(seed, keep=True) as world:
        assert world.hosts is not None
        world.hosts.kept_max = 0
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "process.handed_over")))
        (row,) = hosts(world)
        if fails is not None:
            # The session may not hear it the first time.
            world.poison(SessionActor, before=fails == "before")
            world.inspect("s")
        assert world.run(lambda: not world.processes.lives(row.process_id))
        settled(world)
        (ended,) = of(world, "process.ended")
        assert ended.data["process_id"] == row.process_id
        assert ended.data["provenance"]["source"] == "host.retired"
        assert ended.data["provenance"]["reason"] == "too many are kept"
        second = say(world, "say=1", "b")
        settled(world)
        assert world.status(second) is RunStatus.COMPLETED


@pytest.mark.parametrize("why", ["host.retired", "supervisor.recovery"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l5_a_kept_host_that_was_ending_when_a_stop_came_keeps_its_own_cause(seed: int, why: str) -> None:
    with hosted(seed, keep=True, keep_idle_s=5.0) as before:
        say(before, "say=1")
        assert before.run(lambda: bool(of(before, "process.handed_over")))
        before.wait(0.1)
        if why == "supervisor.recovery":
            world = before.crash()
        else:
            world = before
            assert world.run(lambda: hosts(world)[0].ending is not None)
        with world:
            answer = world.answer("s", stop("joins"))
            assert answer.outcome == "nothing_running"
            settled(world)
            (row,) = world.disk.receipt("joins").rows  # type: ignore[union-attr]  # it is filed by now
            assert (row.name, row.ended_at is not None) == ("host scripted", True)
            assert row.provenance is not None
            assert row.provenance.source == why
            (ended,) = of(world, "process.ended")
            assert ended.data["provenance"]["source"] == why
            (stored,) = hosts(world)
            assert stored.ending is not None
            assert stored.ending.source == why
            assert stored.end is not None
            assert stored.end.provenance == stored.ending


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_whose_code_was_replaced_is_not_used_again_and_is_ended_when_the_next_run_begins(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        assert world.hosts is not None
        world.hosts.replace()
        second = say(world, "say=1 write=0.1", "b")
        assert world.run(lambda: world.status(second) is RunStatus.COMPLETED)
        world.wait(1.0)
        old, new = hosts(world)
        assert not world.processes.lives(old.process_id)
        assert world.processes.lives(new.process_id)
        (ended,) = of(world, "process.ended")
        assert (ended.data["process_id"], ended.data["provenance"]["source"]) == (old.process_id, "host.retired")
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_start_of_a_run_says_which_code_its_host_has(seed: int) -> None:
    def said() -> list[float | None]:
        return [event.data.get("code_changed_at") for event in of(world, "run.started")]

    with hosted(seed, keep=True) as world:
        assert world.hosts is not None
        ready(world)
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        say(world, "say=1", "b")
        assert world.run(lambda: len(of(world, "run.ended")) == 2)
        assert said() == [1.0, 1.0], "one that is kept has the code that it had"
        world.hosts.replace()
        say(world, "say=1", "c")
        assert said() == [1.0, 1.0, None], "its host is started by the run, and has no code yet"
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_in_this_process_has_no_code_of_its_own(seed: int) -> None:
    with World(seed, settings=settings()) as world:
        say(world, "say=1")
        settled(world)
        (event,) = of(world, "run.started")
        assert "code_changed_at" not in event.data


@pytest.mark.parametrize("content", ["raise", "say=1 raise"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_in_which_an_agent_has_failed_is_not_kept(seed: int, content: str) -> None:
    with hosted(seed, keep=True) as world:
        run = say(world, content)
        settled(world)
        assert world.status(run) is RunStatus.FAILED
        assert not of(world, "process.handed_over")
        (row,) = hosts(world)
        assert not world.processes.lives(row.process_id)


@pytest.mark.parametrize("seed", SEEDS)
def test_l11_a_session_leaves_memory_only_when_the_host_that_it_keeps_has_ended(seed: int) -> None:
    with hosted(seed, keep=True, keep_idle_s=5.0, limits={"passivate_s": 0.5}) as world:
        say(world, "say=1")
        world.wait(3.0)
        assert world.session_if_alive("s") is not None
        settled(world)
        assert world.session_if_alive("s") is None


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_host_that_is_kept_survives_its_sessions_actor_and_serves_the_next_run(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        world.wait(0.1)
        world.poison(SessionActor)
        world.inspect("s")
        world.wait(0.5)
        second = say(world, "say=1", "b")
        assert world.run(lambda: world.status(second) is RunStatus.COMPLETED)
        assert len(hosts(world)) == 1
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_the_host_that_a_session_keeps_is_ended_when_the_session_is_quarantined(seed: int) -> None:
    with hosted(seed, keep=True) as world:
        say(world, "say=1")
        assert world.run(lambda: bool(of(world, "run.ended")))
        world.wait(0.1)
        (row,) = hosts(world)
        world.poison(SessionActor)
        world.inspect("s")

        def loading() -> bool:
            return any(actor._live.phase is Phase.LOADING for actor in world.actors(SessionActor))

        failures = 1
        while world.run(loading, max_steps=3000):
            # Each incarnation fails before it has read what is its own.
            world.poison(SessionActor)
            world.run(lambda: not loading())
            failures += 1
        assert failures > world.policy.failures_max
        world.wait(3.0)
        assert not world.processes.lives(row.process_id)
