"""A session in virtual time, also over a store that hangs, fails, or loses what it was given.

The file has over 600 lines, and is whole: one actor, with a section for each thing that may fail under it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.decoding import convert
from actors.errors import AgentUnavailable, Invalid, Quarantined, StoreUnavailable
from actors.hierarchy.batches import Batches
from actors.hierarchy.effects import Effects
from actors.hierarchy.incarnation import Phase
from actors.hierarchy.late_stops import STOP_OVERDUE_S, STOP_UNREAD_S, STOPS_KEPT_MAX
from actors.hierarchy.outage import RETRY_FIRST_S, RETRY_MAX_S
from actors.hierarchy.quarantine import UNFIT_MAX, UNFIT_WINDOW_S
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.kernel.actor import Actor
from actors.kernel.future import ReplyFuture
from actors.messages import GoOn, PluginsMended, Route
from actors.model import Address, Event, How, PartKind, Receipt
from actors.plugin.registration import Unloaded
from actors.plugin.turn import AsyncTurn
from actors.protocol.step import ForgetPart, Later, StartRun
from actors.requests import Accepted, Delete, Resume, Stop, Stopped
from actors.run_status import RunStatus
from supervisor.router import RestartPolicy
from tests.sim.world import ActorPoisoned, World
from tests.world_kit import SEEDS, message, of, settings, settled, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("seed", SEEDS)
def test_l1_with_a_thousand_texts_under_way_nothing_follows_the_stop_but_the_ending(seed: int) -> None:
    with World(seed, settings=settings(credit_events=2000)) as world:
        run = world.answer("s", message("a", "say=1000 forever"))
        world.run(max_steps=300 + 150 * seed)
        answer = world.answer("s", stop())
        settled(world)
        behind = [event.kind for event in world.published() if event.seq > answer.fence_seq]
        assert behind[:3] == ["run.status", "run.status", "run.ended"]
        # Where the kill deadline came before the backlog was gone through, the agent's end is late news.
        assert set(behind[3:]) <= {"receipt.amended"}
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.complete


def test_stop_and_message_back_to_back_a_thousand_times_answer_each_message_once() -> None:
    with World(3) as world:
        answers = []
        for number in range(1000):
            answers.append(world.ask("s", message(f"m{number}", "say=1 write=1")))
            answers.append(world.ask("s", stop(f"x{number}")))
            world.run(max_steps=number % 23)
        # A thread of a thousand runs is not rendered anew after each of its events.
        laws = settled(world, fold=False)
        assert all(answer.done() for answer in answers)
        assert len(laws.inputs) + len(laws.returned) == 1000
        assert set(laws.status.values()) <= {RunStatus.CANCELLED, RunStatus.COMPLETED}
        assert len(world.actors(Actor)) == 2, "nothing but the supervisor and the session is left"


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_l4_a_message_between_the_agents_return_and_the_end_of_its_run_is_an_input_once(steps: int) -> None:
    with World(steps) as world:
        first = world.answer("s", message("a", "say=1"))
        world.run(max_steps=steps)
        second = world.answer("s", message("b", "say=1", policy="enqueue"))
        laws = settled(world)
        assert laws.input_order == ["a", "b"]
        assert world.status(first.run_id) is RunStatus.COMPLETED
        assert world.status(second.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_runs_where_the_generation_moved_while_the_old_run_unwinds(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "stubborn"))
        world.wait(1.0)
        world.answer("s", stop("x1"))
        assert world.answer("s", stop("x2")).outcome == "stopping"
        second = world.answer("s", message("b", "say=1 write=0.1"))
        settled(world)
        assert world.status(second.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_the_barrier_is_forced_at_the_kill_deadline_and_says_what_it_abandons(seed: int) -> None:
    with World(seed) as world:
        first = world.answer("s", message("a", "run=60,never_dies"))
        assert world.run(lambda: bool(of(world, "process.started")))
        second = world.answer("s", message("b", "write=0.5"))
        settled(world)
        assert world.status(second.run_id) is RunStatus.COMPLETED
        forced = of(world, "session.barrier_forced")
        assert [event.data["abandoned"] for event in forced] == [["process sim"]]
        assert named_in(of(world, "run.ended")[0]) == ["state D"]
        receipt = world.disk.receipt(first.run_id)
        assert receipt is not None
        assert not receipt.complete


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_what_could_not_be_killed_and_is_named_after_the_receipt_amends_it(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "run=60,never_dies=20"))
        assert world.run(lambda: bool(of(world, "process.started")))
        world.answer("s", stop())
        settled(world)
        assert named_in(of(world, "run.ended")[0]) == []
        (amended,) = of(world, "receipt.amended")
        assert named_in(amended) == ["state D"]


@pytest.mark.parametrize("daemon_dies", [True, False], ids=["daemon", "actor"])
@pytest.mark.parametrize("seed", SEEDS)
def test_l3_the_receipt_of_a_stop_that_found_no_run_is_amended_by_a_session_that_was_read_anew(
    seed: int, daemon_dies: bool
) -> None:
    with World(seed) as before:
        before.answer("s", message("a", "serve=0,serves,never_dies say=1"))
        assert before.run(lambda: bool(of(before, "run.ended")))
        assert before.answer("s", stop("idle", scope="session")).outcome == "nothing_running"
        before.wait(9.0)
        receipt = before.disk.receipt("idle")
        assert receipt is not None
        assert [row.how for row in receipt.rows] == [How.ABANDONED]
        # It dies after all: with the daemon, or when its session has been read anew.
        (tree,) = before.processes._trees.values()
        tree.command = dataclasses.replace(tree.command, never_dies=False)
        world = before
        if daemon_dies:
            world = before.crash()
        else:
            world.poison(SessionActor)
            world.inspect("s")
            world.wait(0.5)
            world.processes._die(tree, How.SIGKILL, -9)
        with world:
            settled(world)
            amended = world.disk.receipt("idle")
            assert amended is not None
            assert amended.complete
            assert [row.how for row in amended.rows] == [How.SIGKILL]
            first, *others = [event.kind for event in world.events() if event.kind.startswith("receipt.")]
            assert (first, set(others)) == ("receipt.filed", {"receipt.amended"})
            assert not world.disk.of("s").pending


def named_in(event: Event) -> list[str]:
    """Why each process that is left could not be killed, as the receipt in an event says."""
    receipt = convert(event.data["receipt"], Receipt)
    tree = [row for call in receipt.rows for row in call.rows if row.kind == "process"]
    return [row.note for one in tree for row in one.rows]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_strict_barrier_refuses_what_waits_and_what_comes(seed: int) -> None:
    with World(seed, settings=settings(barrier="strict")) as world:
        world.answer("s", message("a", "run=60,never_dies"))
        assert world.run(lambda: bool(of(world, "process.started")))
        world.answer("s", message("b", "write=0.5 write=0.5"))
        settled(world)
        results = [event.data["outcome"] for event in of(world, "tool.ended")]
        assert results == ["interrupted", "not_started", "not_started"]
        assert not of(world, "session.barrier_forced")


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_stray_found_after_the_kill_deadline_is_named_before_a_call_starts_without_waiting_for_it(
    seed: int,
) -> None:
    with World(seed) as world:
        first = is_left_behind(world)
        assert not of(world, "session.barrier_forced")
        found(world, first)
        world.answer("s", message("b", "write=0.1"))
        settled(world)
        kinds = world.kinds()
        assert kinds.index("session.barrier_forced") < kinds.index("tool.started", kinds.index("run.ended"))
        (forced,) = of(world, "session.barrier_forced")
        assert forced.data == {"run_id": first.run, "abandoned": ["thread left 1"]}
        assert [event.data["outcome"] for event in of(world, "tool.ended")] == ["interrupted", "finished"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l7_a_strict_barrier_refuses_what_waits_when_more_is_found_of_a_run_after_its_kill_deadline(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No timer comes early: the call still waits when it is found.
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(barrier="strict")) as world:
        first = is_left_behind(world)
        world.answer("s", message("b", "run=60,ignores_term"))
        world.wait(1.0)
        third = world.answer("s", message("c", "write=0.1"))
        assert world.run(lambda: len(of(world, "tool.requested")) == 3)
        found(world, first)
        settled(world)
        assert of(world, "tool.ended")[-1].data["outcome"] == "not_started"
        assert world.status(third.run_id) is RunStatus.COMPLETED


def is_left_behind(world: World) -> Address:
    """Stop a run whose call goes on long after its kill deadline, and wait for that; returns the call's address."""
    accepted = world.answer("s", message("a", "late=60"))
    assert world.run(lambda: bool(of(world, "tool.started")))
    world.answer("s", stop())
    assert world.run(lambda: world.status(accepted.run_id) is RunStatus.CANCELLED)
    call_id = of(world, "tool.started")[0].data["call_id"]
    return Address("s", accepted.generation, accepted.run_id, call_id)


def found(world: World, address: Address) -> None:
    """Find a thread that code of a call has left, and wait until that is on record."""
    thread = world.strays.leave(address, PartKind.THREAD).found
    assert world.run(lambda: world.disk.process(thread.stray_id) is not None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_fails_in_a_run_hides_no_stop_and_keeps_its_cause(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.down(True)
        superseding = world.ask("s", message("b", "say=1"))
        assert world.run(superseding.done)
        with pytest.raises(StoreUnavailable) as refused:
            superseding.get()
        assert refused.value.superseded_run_id == run.run_id
        answer = world.answer("s", stop())
        # The run of the message that was refused never comes to be.
        assert (answer.outcome, answer.run_id, answer.durable) == ("stopping", run.run_id, False)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("c", "say=1"))
        world.store.down(False)
        settled(world)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert info.status is RunStatus.CANCELLED
        assert info.provenance.source == "session.new_message"
        again = world.answer("s", message("b", "say=1"))
        settled(world)
        assert world.status(again.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_that_a_failed_store_did_not_take_is_kept_with_its_provenance(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.down(True)
        answer = world.answer("s", stop())
        assert (answer.outcome, answer.durable) == ("stopped", False)
        world.store.down(False)
        settled(world)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "user.test")
        assert "x" in world.disk.requests("s")


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_what_a_stop_withdrew_while_the_store_failed_does_not_run_when_it_is_back(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1 forever"))
        world.answer("s", message("b", "say=1", policy="enqueue"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.down(True)
        answer = world.answer("s", stop())
        assert [one.id for one in answer.withdrawn] == ["b"]
        world.store.down(False)
        laws = settled(world)
        assert laws.returned == {"b": "withdrawn"}
        assert laws.input_order == ["a"]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_l4_a_stop_that_is_answered_first_does_not_say_that_it_withdrew_what_is_not_on_record(
    seed: int, stored: bool
) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.hold(True)
        waits = world.ask("s", message("b", "say=1", policy="enqueue"))
        answer = world.answer("s", stop())
        assert (answer.outcome, answer.durable, answer.withdrawn) == ("stopped", False, ())
        if not stored:
            world.store.fail_next()
        world.store.hold(False)
        laws = settled(world)
        final = world.answer("s", stop())
        assert (final.outcome, final.durable) == ("stopped", True)
        if stored:
            assert waits.get(timeout=0)
            assert [one.id for one in final.withdrawn] == ["b"]
            assert laws.returned == {"b": "withdrawn"}
        else:
            with pytest.raises(StoreUnavailable):
                waits.get(timeout=0)
            world.answer("s", message("b", "say=1", policy="enqueue"))
            assert settled(world).input_order == ["a", "b"]
            assert final.withdrawn == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_in_a_tool_leaves_a_closed_run_a_true_thread_and_no_process(seed: int) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "say=1 run=60,children=2"))
        assert world.run(lambda: bool(of(world, "process.started")))
        world = world.crash()
        settled(world)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.FAILED, "supervisor.recovery")
        tool = next(one for one in world.thread() if one.role == "tool")
        assert tool.outcome == "interrupted"
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.complete
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_before_a_run_said_anything_tries_its_inputs_again_once(seed: int) -> None:
    world = World(seed)
    try:
        run = world.answer("s", message("a", "sleep=5 say=1"))
        world.wait(1.0)
        world = world.crash()
        laws = settled(world)
        (again,) = laws.retry_of
        assert laws.retry_of == {again: run.run_id}
        assert world.status(again) is RunStatus.COMPLETED
        assert laws.input_order == ["a"]
    finally:
        world.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_what_a_failure_ended_is_tried_again_though_a_stop_is_about_another_run_and_the_store_fails_again(
    seed: int,
) -> None:
    """The Stop names the failure. What is decided after a crash is not stored, and has to be decided anew."""
    with World(seed) as world:
        over = world.answer("s", message("a", "say=1"))
        world.settle()
        run = world.answer("s", message("b", "sleep=5"))
        world.store.fail_next()
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("c", "say=1", policy="enqueue"))
        told = world.answer("s", stop(run_id=over.run_id))
        assert (told.outcome, told.journalled) == ("already_over", True)
        again = world.crash()
    with again as world:
        world.store.fail_next()
        laws = settled(world)
        assert world.store.failures, "the store did not take what was decided first"
        (retry,) = laws.retry_of
        assert laws.retry_of == {retry: run.run_id}
        assert world.status(retry) is RunStatus.COMPLETED
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert info.provenance.source == "store.failure"


# ── A store that hangs, and the stop journal ──────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_stop_waits_for_a_store_that_hangs_as_long_as_it_may_and_is_reported_when_it_is_durable(
    seed: int,
) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.hold(True)
        before = world.clock.monotonic()
        answer = world.answer("s", stop())
        assert (answer.outcome, answer.run_id, answer.durable) == ("stopped", run.run_id, False)
        assert world.clock.monotonic() - before >= STOP_OVERDUE_S
        again = world.ask("s", stop())
        late = world.ask("s", message("b", "say=1"))
        world.wait(1.0)
        assert not again.get(timeout=0).durable, "again: it still is not"
        assert not late.done(), "what is accepted is durable"
        assert list(world.disk.journal) == [("s", "x")]
        assert not of(world, "session.fenced")
        world.store.hold(False)
        settled(world)
        assert late.get(timeout=0).run_id
        assert [event.data["request_id"] for event in of(world, "session.stop_durable")] == ["x"]
        assert not world.disk.journal
        assert world.answer("s", stop()).durable
        assert len(of(world, "session.stop_durable")) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_stop_that_is_stored_in_time_is_removed_from_the_journal_and_answered_once(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.hold(True)
        reply = world.ask("s", stop())
        assert world.run(lambda: ("s", "x") in world.disk.journal), "it is late, so the journal has it"
        assert not reply.done(), "the store may still take it"
        world.store.hold(False)
        settled(world)
        assert reply.get(timeout=0).durable
        assert not world.disk.journal
        assert not of(world, "session.stop_durable")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_of_a_store_that_failed_is_answered_when_the_journal_has_it(seed: int) -> None:
    with World(seed) as world:
        world.watch.faults = True
        world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.down(True)
        answers = {}
        for request in (stop(), stop("y")):
            answers[request] = answer = world.answer("s", request)
            assert (answer.durable, answer.journalled) == (False, True)
            assert ("s", request.id) in world.disk.journal
        world.store.down(False)
        settled(world)
        for request, first in answers.items():
            final = world.answer("s", request)
            assert (final.outcome, final.run_id, final.receipt_id) == (first.outcome, first.run_id, first.receipt_id)
            assert final.durable


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_stop_is_answered_while_the_session_is_still_being_read(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        again = world.crash()
    with again as world:
        world.store.hold(True)
        before = world.ask("s", message("b", "say=1", policy="enqueue"))
        asked_at = world.clock.monotonic()
        answer = world.answer("s", stop())
        assert (answer.outcome, answer.durable, answer.journalled) == ("unknown", False, True)
        assert world.clock.monotonic() - asked_at >= STOP_UNREAD_S
        behind = world.ask("s", message("c", "say=1", policy="enqueue"))
        world.store.hold(False)
        laws = settled(world)
        # It is decided in its place: what was asked before it is what it stops.
        assert before.get(timeout=0).run_id
        assert laws.returned in ({}, {"b": "withdrawn"})
        assert behind.get(timeout=0).run_id
        assert "c" in laws.inputs
        assert world.status(behind.get(timeout=0).run_id) is RunStatus.COMPLETED
        assert [event.data["request_id"] for event in of(world, "session.stop_durable")] == ["x"]
        assert not world.disk.journal
        assert world.answer("s", stop()).outcome in ("stopped", "nothing_running"), "it is known since"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wait_s", [0.05, 0.4])
@pytest.mark.parametrize("again", ["crash", "passivated"])
def test_l4_what_is_sent_after_a_stop_runs_though_both_wait_for_the_session_to_be_read(
    seed: int, wait_s: float, again: str
) -> None:
    """An id that tells no time, and no `sent_at`: the Stop is as old as its arrival, however late it is decided."""
    with World(seed, settings=settings(passivate_s=5.0)) as world:
        world.answer("s", message("a", "say=1"))
        world.settle()
        if again == "passivated":
            world.wait(20.0)
            assert not world.session_if_alive("s")
            _stop_and_message_while_it_is_read(world, wait_s)
            return
        fresh = world.crash()
    with fresh as world:
        _stop_and_message_while_it_is_read(world, wait_s)


def _stop_and_message_while_it_is_read(world: World, wait_s: float) -> None:
    world.store.hold(True)
    before = world.clock.wall()
    stopping = world.ask("s", stop())
    world.wait(wait_s)
    sent = world.ask("s", message("b", "say=1", sent_at=world.clock.wall()))
    early = world.ask("s", message("c", "say=1", sent_at=before - 1.0))
    world.wait(wait_s)
    world.store.hold(False)
    laws = settled(world)
    assert stopping.get(timeout=0).outcome == "nothing_running"
    accepted = sent.get(timeout=0)
    assert accepted.returned is None
    assert world.status(accepted.run_id) is RunStatus.COMPLETED
    assert early.get(timeout=0).returned == "stopped_before_arrival"
    assert laws.returned == {"c": "stopped_before_arrival"}


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_delete_that_waits_for_ends_is_refused_where_the_store_fails_and_may_be_sent_again(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "tidy=1"))
        world.wait(1.5)
        request = Delete(source="user.test", reason="not needed any more")
        world.store.fail_next()
        refused = world.ask("s", request)
        assert world.run(refused.done)
        with pytest.raises(StoreUnavailable):
            refused.get(timeout=0)
        assert world.run(lambda: world.session()._live.phase is Phase.SERVING)
        assert world.disk.events("s")[0].kind == "message"
        assert world.answer("s", request).session == "s"
        assert [event.kind for event in world.disk.events("s")] == ["session.deleted"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_stop_whose_session_was_not_stored_anew_is_on_record_and_begins_nothing(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1"))
        settled(world)
        world.answer("s", Delete(source="user.test", reason="to begin anew"))
        events = list(world.disk.events("s"))
        world.store.hold(True)
        lost = world.ask("s", message("b", "sleep=90"))
        first = world.answer("s", stop())
        assert (first.outcome, first.durable) == ("stopped", False)
        assert world.run(lambda: bool(world.disk.journal))
        assert not lost.done()
        again = world.crash()
    with again as world:
        assert world.run(lambda: not world.disk.journal), "it is decided, and the journal lets it go"
        assert [event.kind for event in events] == ["session.deleted"]
        assert world.disk.events("s") == events, "an event of it would begin the session anew"
        assert world.disk.receipt(first.receipt_id) is not None
        told = world.answer("s", stop())
        assert (told.outcome, told.run_id, told.receipt_id) == (first.outcome, first.run_id, first.receipt_id)
        assert told.durable
        assert world.disk.events("s") == events
        assert world.answer("s", message("c", "say=1")).run_id
        assert world.answer("s", stop()) == told, "it stands in the session that has begun anew, and stops nothing"


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_a_stop_that_was_answered_early_is_said_to_be_durable_before_its_session_is_deleted(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1"))
        settled(world)
        world.store.hold(True)
        assert not world.answer("s", stop()).durable
        deleted = world.ask("s", Delete(source="user.test", reason="not needed any more"))
        world.wait(1.0)
        world.store.hold(False)
        world.settle()
        assert deleted.done()
        assert [event.kind for event in world.published()][-2:] == ["session.stop_durable", "session.deleted"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["hangs", "fails"])
@pytest.mark.parametrize("aimed", [False, True])
def test_l12_a_stop_of_the_journal_is_decided_after_a_crash_before_anything_starts(
    seed: int, how: str, aimed: bool
) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "sleep=90"))
        waiting = world.answer("s", message("b", "say=1", policy="enqueue"))
        (world.store.hold if how == "hangs" else world.store.down)(True)
        asked = stop(run_id=run.run_id if aimed else None, waiting="withdraw")
        first = world.answer("s", asked)
        assert not first.durable
        assert world.run(lambda: bool(world.disk.journal))
        handled_at = world.disk.journal["s", "x"].at
        world.clock.elapse(100.0)
        again = world.crash()
    with again as world:
        laws = settled(world)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "user.test")
        assert info.provenance.initiated_at == handled_at, "when it was asked for, not when it was found"
        assert world.disk.of("s").receipts[info.receipt_id].withdrawn == ("b",)
        assert laws.returned == {"b": "withdrawn"}
        assert world.status(waiting.run_id) is RunStatus.CANCELLED
        assert [event.data["request_id"] for event in of(world, "session.stop_durable")] == ["x"]
        assert not world.disk.journal
        # What was sent while nobody was there was sent behind it.
        later = world.answer("s", message("c", "say=1", sent_at=handled_at + 50.0))
        assert later.returned is None
        # The fence that it told of is not on record. What it did is: one fence, and the answer to it (law L10).
        (fence,) = [event.seq for event in of(world, "session.fenced")]
        final = world.answer("s", asked)
        assert final == msgspec.structs.replace(first, fence_seq=fence, durable=True, journalled=False)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("waiting", ["withdraw", "park", "keep"])
def test_l12_what_a_stop_stopped_does_not_run_though_the_store_never_heard_that_it_had_begun(
    seed: int, waiting: str, crashes: bool
) -> None:
    """A run ends, the next begins and is stopped, and the store takes none of the three: on record that one waits."""
    with World(seed) as world:
        world.watch.faults = True
        first = world.answer("s", message("a", "say=1 sleep=1"))
        second = world.answer("s", message("b", "say=1 forever", policy="enqueue"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.hold(True)
        assert world.run(lambda: _active(world) == second.run_id)
        asked = stop(waiting=waiting)
        told = world.answer("s", asked)
        assert (told.outcome, told.run_id, told.durable, told.journalled) == ("stopped", second.run_id, False, True)
        if not crashes:
            world.store.down(True)
            world.store.hold(False)
            assert world.run(lambda: bool(world.session()._live.phase.value == "failed"))
            world.store.down(False)
            _judge_what_was_stopped_unstored(world, asked, told, first.run_id)
            return
        again = world.crash()
    with again as world:
        _judge_what_was_stopped_unstored(world, asked, told, first.run_id)


def _active(world: World) -> str | None:
    active = world.session()._protocol.state.active
    return None if active is None else active.id


def _judge_what_was_stopped_unstored(world: World, asked: Stop, told: Stopped, first: str) -> None:
    laws = settled(world)
    assert told.run_id is not None
    assert laws.returned == {"b": "withdrawn"}
    assert world.status(told.run_id) is RunStatus.CANCELLED
    assert world.status(first) is RunStatus.CANCELLED, "that it had ended is not on record"
    final = world.answer("s", asked)
    assert (final.outcome, final.run_id, final.receipt_id) == ("stopped", told.run_id, told.receipt_id)
    assert final.joined == (first,)
    assert told.receipt_id in world.disk.of("s").receipts


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_a_stop_that_is_kept_again_since_the_store_failed_again_stops_nothing_that_was_sent_since_it_came(
    seed: int,
) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "forever"))
        world.store.fail_next()
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1", policy="enqueue"))
        told = world.answer("s", stop())
        assert (told.outcome, told.journalled) == ("stopping", True)
        came_at = world.disk.journal["s", "x"].at
        world.clock.elapse(0.05)
        world.store.fail_next()
        failures = world.store.failures
        settled(world)
        assert world.store.failures > failures, "the store did not take what was decided first"
        (fence,) = [event for event in of(world, "session.fenced") if event.data["provenance"]["source"] == "user.test"]
        assert fence.data["provenance"]["initiated_at"] == came_at
        later = world.answer("s", message("c", "say=1", sent_at=came_at + 0.01))
        assert later.returned is None


@pytest.mark.parametrize("seed", SEEDS)
def test_l9_a_stop_that_came_too_late_for_its_run_does_nothing_to_what_waits_where_it_is_decided_again(
    seed: int,
) -> None:
    with World(seed) as world:
        first = world.answer("s", message("a", "say=1 sleep=1"))
        second = world.answer("s", message("b", "say=1", policy="enqueue"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.hold(True)
        assert world.run(lambda: _active(world) == second.run_id)
        asked = stop(run_id=first.run_id, waiting="withdraw")
        told = world.answer("s", asked)
        assert (told.outcome, told.withdrawn) == ("already_over", ())
        assert world.run(lambda: bool(world.disk.journal))
        again = world.crash()
    with again as world:
        laws = settled(world)
        assert laws.returned == {}
        assert world.status(second.run_id) is RunStatus.COMPLETED
        final = world.answer("s", asked)
        assert (final.outcome, final.run_id, final.withdrawn) == ("already_over", first.run_id, ())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_of_a_store_that_fails_says_of_each_run_what_it_is(seed: int) -> None:
    with World(seed) as world:
        world.watch.faults = True
        over = world.answer("s", message("a", "say=1"))
        world.settle()
        ending = world.answer("s", message("b", "run=60,never_dies"))
        assert world.run(lambda: bool(of(world, "process.started")))
        active = world.answer("s", message("c", "forever"))
        waiting = world.answer("s", message("d", "say=1", policy="enqueue"))
        world.store.down(True)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("e", "say=1", policy="enqueue"))
        expected = {
            over.run_id: ["already_over", "already_over"],
            waiting.run_id: ["stopped", "already_over"],
            ending.run_id: ["stopping", "stopping"],
            active.run_id: ["stopping", "stopping"],
        }
        asked = {}
        for run_id, outcomes in expected.items():
            for number, outcome in enumerate(outcomes):
                request = stop(f"{number}-{run_id}", run_id=run_id)
                asked[request] = told = world.answer("s", request)
                assert (told.outcome, told.run_id) == (outcome, run_id)
        newest = world.answer("s", stop("newest"))
        assert (newest.outcome, newest.run_id) == ("stopping", active.run_id)
        world.store.down(False)
        settled(world)
        for request, told in asked.items():
            final = world.answer("s", request)
            assert (final.outcome, final.run_id, final.receipt_id) == (told.outcome, told.run_id, told.receipt_id)


@pytest.mark.parametrize("seed", SEEDS)
def test_l12_kept_stops_are_bounded_and_those_beyond_are_answered_too(seed: int) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1 forever"))
        world.store.down(True)
        for number in range(STOPS_KEPT_MAX + 5):
            assert not world.answer("s", stop(f"x{number}")).durable
        world.run(lambda: not world.store.journal_ready)
        assert len(world.disk.journal) == STOPS_KEPT_MAX
        world.store.down(False)
        settled(world)
        assert len(of(world, "session.stop_durable")) == STOPS_KEPT_MAX
        assert not world.disk.journal


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_batch_that_cannot_be_stored_costs_what_was_in_it_and_the_session_continues(seed: int) -> None:
    with World(seed) as world:
        other = world.answer("t", message("o", "forever"))
        run = world.answer("s", message("a", "say=1 forever"))
        assert world.run(lambda: bool(of(world, "text")))
        world.store.unfit_next()
        with pytest.raises(Invalid) as refused:
            world.answer("s", message("b", "say=1"))
        assert "cannot be stored" in refused.value.got
        assert world.run(lambda: world.session_if_alive("s") is not None)
        after = world.answer("s", message("c", "say=1"))
        assert world.run(lambda: world.status(after.run_id) is RunStatus.COMPLETED)
        assert world.run(lambda: world.status(run.run_id) is not RunStatus.CANCELLING)
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "session.new_message")
        assert f"run {run.run_id} was stopped all the same" in str(refused.value)
        assert world.status(other.run_id) is RunStatus.IN_PROGRESS
        assert "b" not in world.disk.snapshot("s").fates


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_session_whose_batches_never_can_be_stored_is_quarantined_and_takes_stops(seed: int) -> None:
    with World(seed) as world:
        for number in range(UNFIT_MAX + 1):
            world.store.unfit_next()
            with pytest.raises(Invalid):
                world.answer("s", message(f"m{number}", "say=1"))
            assert world.run(lambda: world.session_if_alive("s") is not None)
        with pytest.raises(Quarantined):
            world.answer("s", message("late", "say=1"))
        assert world.answer("s", stop()).durable
        assert world.answer("t", message("other", "say=1")).run_id


# ── How often a store that fails is asked again ───────────────────────────────────────────────────


def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the store is asked to read a session, from here on: virtual seconds."""
    asked: list[float] = []
    load = world.store.load

    def noted(session: str, owner: ActorRef[Any]) -> None:
        asked.append(world.clock.monotonic())
        load(session, owner)

    monkeypatch.setattr(world.store, "load", noted)
    # Timers fire when they are due, and not before.
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    return asked


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_a_store_that_fails_is_asked_again_after_intervals_that_double_up_to_a_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(seed) as world:
        world.answer("s", message("a", "say=1"))
        asked = reads(world, monkeypatch)
        world.store.down(True)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1"))
        failed_at = world.clock.monotonic()
        world.wait(60.0)
        waits = [later - earlier for earlier, later in pairwise([failed_at, *asked])]
        assert waits[-1] == pytest.approx(RETRY_MAX_S, abs=0.01)
        assert waits == pytest.approx(
            [min(RETRY_FIRST_S * 2**number, RETRY_MAX_S) for number in range(len(waits))], abs=0.01
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_fails_anew_after_it_took_writes_is_asked_again_soon(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(seed) as world:
        asked = reads(world, monkeypatch)
        for number in range(2):
            world.answer("s", message(f"taken-{number}", "say=1"))
            world.settle()
            world.store.down(True)
            with pytest.raises(StoreUnavailable):
                world.answer("s", message(f"refused-{number}", "say=1"))
            failed_at = world.clock.monotonic()
            asked.clear()
            world.wait(30.0)
            assert asked[0] - failed_at == pytest.approx(RETRY_FIRST_S, abs=0.01)
            world.store.down(False)
            world.settle()
        settled(world)


# ── Trees and runs that a store or an actor that fails must not keep ──────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_an_immediate_stop_while_the_store_fails_kills_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(grace_s=30.0)) as world:
        run = world.answer("s", message("a", "run=600,ignores_term"))
        assert world.run(lambda: bool(world.processes.alive()))
        world.store.down(True)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1", policy="enqueue"))
        world.wait(1.0)
        assert world.processes.alive(), "the run has its grace"
        before = world.clock.monotonic()
        told = world.answer("s", stop(mode="immediate"))
        assert (told.outcome, told.run_id) == ("stopping", run.run_id)
        assert world.run(lambda: not world.processes.alive())
        assert world.clock.monotonic() - before < 1.0
        world.store.down(False)
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("again", ["refused", "late"])
def test_l3_an_immediate_stop_kills_at_once_where_its_run_waits_for_the_store_to_be_taken_over(
    seed: int, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(grace_s=30.0)) as world:
        run = world.answer("s", message("a", "run=600,ignores_term"))
        assert world.run(lambda: bool(of(world, "process.started")))
        world.strays.random = Random(seed)
        call_id = of(world, "tool.started")[0].data["call_id"]
        stray = world.strays.leave(
            Address("s", run.generation, run.run_id, call_id), PartKind.SUBPROCESS
        ).found.stray_id
        assert world.run(lambda: world.disk.process(stray) is not None)
        world.store.fail_next(2 if again == "refused" else 1)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1"))
        assert world.run(lambda: world.session()._live.phase is Phase.SERVING)
        if again == "late":
            world.store.hold(True)
            world.wait(1.0)
        else:
            assert world.run(lambda: world.session()._live.phase is Phase.FAILED)
        assert world.run(lambda: not world.actors(RunActor), max_steps=100), "nobody has the run"
        assert world.processes.alive(), "the run has its grace"
        told = world.answer("s", stop(mode="immediate"))
        assert (told.outcome, told.run_id, told.durable) == ("stopping", run.run_id, False)
        answered = world.clock.monotonic()
        assert world.run(lambda: not world.processes.alive() and not world.strays.lives(stray))
        assert world.clock.monotonic() - answered < RETRY_FIRST_S, "the store is not asked again before"
        world.store.hold(False)
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_immediate_stop_of_a_run_whose_actor_and_store_fail_spares_the_trees_of_its_session(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "serve=1,serves forever"))
        # Before its start is heard of: until then it is in the record of its run too.
        assert world.run(lambda: bool(world.processes.alive()))
        (kept,) = world.session()._protocol.state.owned
        world.store.down(True)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1", policy="enqueue"))
        assert world.poison(RunActor)
        world.actors(RunActor)[0].actor_ref.tell(GoOn(0))
        assert world.run(lambda: not world.actors(RunActor), max_steps=200), "nobody has the run"
        assert world.answer("s", stop(mode="immediate")).run_id == run.run_id
        assert world.run(lambda: world.processes.alive() == [kept])
        world.store.down(False)
        settled(world)
        assert world.processes.alive() == [kept]


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_an_immediate_stop_while_the_store_fails_kills_what_a_run_left_that_has_completed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed, settings=settings(grace_s=30.0)) as world:
        run = world.answer("s", message("a", "leave=600,ignores_term"))
        assert world.run(lambda: world.status(run.run_id) is RunStatus.COMPLETED and bool(world.processes.alive()))
        world.store.down(True)
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("b", "say=1"))
        world.wait(1.0)
        assert world.processes.alive(), "what it left has its grace"
        before = world.clock.monotonic()
        assert world.answer("s", stop(mode="immediate")).outcome == "nothing_running"
        assert world.run(lambda: not world.processes.alive())
        assert world.clock.monotonic() - before < 1.0
        world.store.down(False)
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_session_that_fails_in_quarantine_leaves_no_tree_of_its_own(seed: int) -> None:
    with World(seed, policy=RestartPolicy(failures_max=0)) as world:
        world.answer("s", message("a", "serve=1,serves say=1"))
        world.settle()
        for _ in range(2):
            assert world.processes.alive(), "a tree of the session outlives its actor"
            world.poison(SessionActor)
            # Not a request: whoever asks for the session has it started again.
            world.session().actor_ref.tell(GoOn(0))
            world.settle()
        assert not world.actors(SessionActor), "nobody starts it again by himself"
        assert not world.processes.alive()
        world.answer("s", stop())
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l3_a_session_that_fails_in_quarantine_before_it_is_read_leaves_no_tree_of_its_own(seed: int) -> None:
    with World(seed, policy=RestartPolicy(failures_max=0)) as world:
        world.answer("s", message("a", "serve=1,serves say=1"))
        world.answer("t", message("b", "serve=1,serves say=1"))
        world.settle()
        first = world.session()
        world.poison(SessionActor, which=world.actors(SessionActor).index(first))
        first.actor_ref.tell(GoOn(0))
        assert world.run(lambda: any(one.key == "s" and one is not first for one in world.actors(SessionActor)))
        second = world.session()
        assert not second._protocol.state.owned, "it has not been read"
        world.poison(SessionActor, which=world.actors(SessionActor).index(second))
        world.settle()
        assert [one.key for one in world.actors(SessionActor)] == ["t"]
        assert world.processes.alive() == list(world.session("t")._protocol.state.owned)


@pytest.mark.parametrize("late", [None, 1.0, 5.0])
@pytest.mark.parametrize("content", ["run=60,never_dies", "serve=0,serves,never_dies run=60,never_dies"])
def test_l7_a_second_stop_may_bring_the_kill_deadline_nearer_and_never_puts_it_off(
    content: str, late: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(1, settings=settings(grace_s=2.0, kill_s=5.0)) as world:
        run = world.answer("s", message("a", content))
        world.wait(1.0)
        before = world.clock.wall()
        world.answer("s", stop("x1", scope="session"))
        if late is not None:
            world.wait(late)
            assert world.answer("s", stop("x2", scope="session", mode="immediate")).outcome == "stopping"
        settled(world)
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert not receipt.complete
        expected = 7.0 if late is None else min(7.0, late + 5.0)
        assert receipt.ended_at - before == pytest.approx(expected, abs=0.1)


def test_l7_a_stop_that_adds_trees_of_the_session_gives_them_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(1, settings=settings(grace_s=2.0, kill_s=5.0)) as world:
        run = world.answer("s", message("a", "serve=0,serves,never_dies run=60,never_dies"))
        world.wait(1.0)
        before = world.clock.wall()
        world.answer("s", stop("x1"))
        world.wait(3.0)
        assert world.answer("s", stop("x2", scope="session")).outcome == "stopping"
        settled(world)
        receipt = world.disk.receipt(run.run_id)
        assert receipt is not None
        assert receipt.ended_at - before == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("content", ["stubborn", "forever", "say=1 forever"])
def test_l5_a_stop_that_is_not_stored_is_not_the_cause_of_what_the_store_had_ended_before(
    seed: int, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails, is read, and fails again before it has the end of the run; by then somebody has sent a Stop."""
    monkeypatch.setattr("tests.sim.world.EARLY_TIMER", 0.0)
    with World(seed) as world:
        # Something else is ending still, so that a Stop finds something there.
        world.answer("s", message("a", "run=60,never_dies"))
        assert world.run(lambda: bool(of(world, "process.started")))
        run = world.answer("s", message("b", content))
        world.wait(1.0)
        world.store.fail_next()
        with pytest.raises(StoreUnavailable):
            world.answer("s", message("c", "say=1", policy="enqueue"))
        session = world.session()
        assert world.run(lambda: session._live.phase is Phase.SERVING)
        world.store.hold(True)
        asked = world.ask("s", stop())
        assert world.run(lambda: any("x" in sent.requests for sent in session._batches.sent)), (
            "it is decided, and not stored"
        )
        world.store.fail_next()
        world.store.hold(False)
        settled(world)
        assert not asked.get(timeout=0).durable
        info = world.disk.run(run.run_id)
        assert info is not None
        assert info.provenance is not None
        assert info.provenance.source == "store.failure"


# ── An agent that could not be loaded ─────────────────────────────────────────────────────────────

UNLOADED = Unloaded("my:agent", Invalid("'my:agent' cannot be imported", got="ImportError: no model"))


def mend(world: World, agent: Any) -> None:
    """What a reload does where the agent can be imported now."""
    plugins = world.session()._plugins
    assert plugins.mend({"scripted": agent}, {}) == ["scripted"]
    world.supervisor.tell(PluginsMended())


async def speak(turn: AsyncTurn) -> None:
    await turn.emit("spoken")


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_a_message_to_an_agent_that_could_not_be_loaded_is_refused_with_the_reason_until_it_is(seed: int) -> None:
    with World(seed, agents={"scripted": UNLOADED}) as world:
        for request in (message("a", "say=1"), Resume(id="r")):
            with pytest.raises(AgentUnavailable) as refused:
                world.answer("s", request)
            assert "ImportError: no model" in refused.value.got
            assert "systemctl reload" in refused.value.remedy
        assert world.answer("s", stop()).outcome == "nothing_running"
        mend(world, speak)
        run = world.answer("s", message("a", "say=1"))
        settled(world)
        assert world.status(run.run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l4_what_waits_at_a_start_without_its_agent_waits_for_it(seed: int) -> None:
    with World(seed) as before:
        first = before.answer("s", message("a", "forever"))
        waits = before.answer("s", message("b", "say=1", policy="enqueue"))
        before._agents = {"scripted": UNLOADED}
        after = before.crash()
    with after as world:
        world.settle()
        # Its inputs would be tried again, if its agent were there.
        assert world.status(first.run_id) is RunStatus.FAILED
        assert world.status(waits.run_id) is RunStatus.QUEUED
        assert world.answer("s", message("b", "say=1", policy="enqueue")).run_id == waits.run_id, "as it was answered"
        world.answer("s", stop(waiting="keep"))
        world.settle()
        assert world.disk.waiting("s") == ["b"]
        mend(world, speak)
        laws = settled(world)
        assert world.status(waits.run_id) is RunStatus.COMPLETED
        assert laws.input_order == ["a", "b"]


# ── While a session is read ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_few_requests_wait_for_a_session_to_be_read_and_a_stop_always_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.stash.STASH_MAX", 2)
    with World(seed) as world:
        world.store.hold(True)
        kept = [world.ask("s", message(f"m{number}", "say=1", policy="enqueue")) for number in range(2)]
        world.run(max_steps=20)
        with pytest.raises(StoreUnavailable) as refused:
            world.answer("s", message("m2", "say=1", policy="enqueue"))
        assert "still being read" in str(refused.value)
        stopped = world.ask("s", stop())
        world.run(max_steps=20)
        world.store.hold(False)
        assert world.run(lambda: all(one.done() for one in kept) and stopped.done())
        assert all(one.get(timeout=0).message_id for one in kept)
        assert isinstance(stopped.get(timeout=0), Stopped)
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_stops_that_wait_for_a_session_to_be_read_have_a_bound_behind_that_of_all_else(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.stash.STASH_MAX", 2)
    monkeypatch.setattr("actors.hierarchy.answers.STOPS_MORE_MAX", 1)
    with World(seed) as world:
        world.store.hold(True)
        taken = [world.ask("s", stop(f"x{number}")) for number in range(3)]
        world.run(max_steps=20)
        refused = stop("x3")
        with pytest.raises(StoreUnavailable) as error:
            world.answer("s", refused)
        assert "3 requests wait" in str(error.value)
        world.store.hold(False)
        assert world.run(lambda: all(one.done() for one in taken))
        assert all(isinstance(one.get(timeout=0), Stopped) for one in taken)
        # It had no effect, so it is decided when it comes again, and nothing is left of it in the journal.
        assert world.answer("s", refused).durable
        settled(world)
        assert not world.disk.journal


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_a_store_that_hangs_is_given_so_many_batches_and_more_only_for_stops(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.serving.SENT_MAX", 3)
    monkeypatch.setattr("actors.hierarchy.answers.STOPS_MORE_MAX", 2)
    with World(seed) as world:
        world.answer("s", message("a", "sleep=60"))
        world.wait(0.05)
        world.store.hold(True)
        taken = [world.ask("s", message(f"m{number}", "say=1", policy="enqueue")) for number in range(3)]
        world.run(max_steps=50)
        with pytest.raises(StoreUnavailable) as error:
            world.answer("s", message("m3", "say=1", policy="enqueue"))
        assert "3 steps wait" in str(error.value)
        stops = [world.ask("s", stop(f"x{number}", waiting="keep")) for number in range(2)]
        world.run(max_steps=50)
        refused = stop("x2", waiting="keep")
        with pytest.raises(StoreUnavailable):
            world.answer("s", refused)
        world.store.hold(False)
        assert world.run(lambda: all(one.done() for one in taken + stops))
        assert all(one.get(timeout=0) for one in taken + stops)
        # It had no effect, so it is decided when it comes again.
        assert world.answer("s", refused).durable
        laws = settled(world)
        assert laws.input_order == ["a", "m0", "m1", "m2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_repeats_of_what_a_store_that_hangs_has_not_taken_have_the_same_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.serving.SENT_MAX", 3)
    with World(seed) as world:
        world.answer("s", message("a", "sleep=60"))
        world.wait(0.05)
        world.store.hold(True)
        request = message("m", "say=1", policy="enqueue")
        asked = [world.ask("s", request) for _ in range(3)]
        world.run(max_steps=50)
        with pytest.raises(StoreUnavailable):
            world.answer("s", request)
        world.store.hold(False)
        assert world.run(lambda: all(one.done() for one in asked))
        assert len({one.get(timeout=0) for one in asked}) == 1
        assert world.answer("s", request).run_id == asked[0].get(timeout=0).run_id
        settled(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_l14_what_waited_for_a_session_to_be_read_is_taken_however_few_batches_may_wait(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.serving.SENT_MAX", 1)
    monkeypatch.setattr("actors.hierarchy.answers.STOPS_MORE_MAX", 0)
    with World(seed) as world:
        world.store.hold_reads(True)
        asked = [world.ask("s", message(f"m{number}", "say=1", policy="enqueue")) for number in range(3)]
        asked.append(world.ask("s", stop("x", waiting="keep")))
        world.run(max_steps=50)
        world.store.hold_reads(False)
        assert world.run(lambda: all(one.done() for one in asked))
        assert all(one.get(timeout=0) for one in asked)
        assert settled(world).input_order == ["m0", "m1", "m2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_for_a_session_to_be_read_is_answered_by_the_next_incarnation_where_this_one_ends(seed: int) -> None:
    with World(seed) as world:
        world.store.hold(True)
        # Asked once, by somebody who does not ask again.
        reply: ReplyFuture[Any] = ReplyFuture()
        world.supervisor.actor_inbox.put(Envelope(Route("s", message("a", "say=1")), reply))
        assert world.run(lambda: any(actor._stash for actor in world.actors(SessionActor)))
        world.session().actor_ref.stop(block=False)
        world.run(max_steps=50)
        world.store.hold(False)
        world.settle()
        assert world.status(reply.get(timeout=0).run_id) is RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_cannot_be_stored_once_in_a_while_quarantine_nothing(seed: int) -> None:
    with World(seed) as world:
        for number in range(2 * UNFIT_MAX):
            world.store.unfit_next()
            with pytest.raises(Invalid):
                world.answer("s", message(f"m{number}", "say=1"))
            assert world.run(lambda: world.session_if_alive("s") is not None)
            world.wait(UNFIT_WINDOW_S / UNFIT_MAX + 1.0)
        assert world.answer("s", message("good", "say=1")).run_id


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_has_one_actor_after_its_session_was_read_anew(seed: int) -> None:
    with World(seed) as world:
        run = world.answer("s", message("a", "run=600,never_dies"))
        assert world.run(lambda: bool(world.processes.alive()))
        for _ in range(2):
            world.store.fail_next()
            with pytest.raises(StoreUnavailable):
                world.answer("s", message("b", "say=1", policy="enqueue"))
            assert world.run(lambda: world.session_if_alive("s") is not None)
            world.wait(0.1)
            assert len(world.actors(RunActor)) == 1, "what it left is taken over from the actor before, which ends"
        assert world.status(run.run_id) is not RunStatus.COMPLETED


@pytest.mark.parametrize("seed", SEEDS)
def test_l13_an_effect_that_fails_keeps_no_other_from_being_carried_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(seed) as world:
        act, begun = Effects._act, list[object]()

        def fails(effects: Effects, effect: Later) -> None:
            if isinstance(effect, StartRun) and not begun:
                begun.append(effect)
                world.watch.faults = world.watch.forgot = world.watch.bounds.poisoned = True
                raise ActorPoisoned("at a StartRun")
            act(effects, effect)

        world.answer("s", message("first", "say=1"))
        world.settle()
        monkeypatch.setattr(Effects, "_act", fails)
        world.store.hold(True)
        accepted = world.send("s", message("a", "run=0.1 run=0.1 say=1"))
        queued = world.send("s", message("b", "say=1", policy="enqueue"))
        assert world.run(lambda: len(world.session()._batches.sent) == 2)
        world.store.hold(False)
        world.settle()
        assert begun
        assert isinstance(accepted.outcome(), Accepted)
        assert isinstance(queued.outcome(), Accepted)
        assert accepted.tries == 1, "what is durable is answered, though the effect ahead of it has failed"
        assert not world.executor.kept() + world.processes.kept() + world.strays.kept()


@pytest.mark.parametrize("what", ["executor", "processes", "strays"])
@pytest.mark.parametrize("how", ["the store fails", "the actor fails"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_l14_what_had_ended_and_was_not_forgotten_is_when_the_session_is_read_anew(
    seed: int, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(seed) as world:
        world.strays.random = Random(seed)
        kept: Any = getattr(world, what)
        committed = Batches.committed

        def fails(batches: Batches, number: int) -> None:
            if any(isinstance(effect, ForgetPart) for sent in batches.sent for effect in sent.later):
                monkeypatch.undo()
                world.watch.faults = world.watch.forgot = world.watch.bounds.poisoned = True
                raise ActorPoisoned("as it hears that an end is on record")
            committed(batches, number)

        run_id = world.answer("s", message("a", "run=0.1 run=0.1 say=1")).run_id
        assert world.run(lambda: bool(world.executor.running()))
        world.strays._over(world.strays.leave(Address("s", 1, run_id), PartKind.SUBPROCESS))
        assert world.run(lambda: bool(kept.kept()))
        if how == "the store fails":
            world.store.lose_next(2)
        else:
            monkeypatch.setattr(Batches, "committed", fails)
        world.settle()
        assert len(world.errors) > 0, "it has failed"
        assert not world.executor.kept() + world.processes.kept() + world.strays.kept()


@pytest.mark.parametrize("seed", SEEDS)
def test_progress_is_shown_in_its_place_among_what_is_stored(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with World(seed) as world:
        given: list[str] = []
        publish, ephemeral = world.publisher.publish, world.publisher.ephemeral

        def published(session: str, events: Sequence[Event]) -> None:
            given.extend(event.kind for event in events)
            publish(session, events)

        def shown(event: Event) -> None:
            given.append(event.kind)
            ephemeral(event)

        monkeypatch.setattr(world.publisher, "publish", published)
        monkeypatch.setattr(world.publisher, "ephemeral", shown)
        world.answer("s", message("a", "sleep=1 say=1 show say=1 show say=1 show"))
        world.settle()
        assert [kind for kind in given if kind in ("text", "progress")] == ["text", "progress"] * 3
