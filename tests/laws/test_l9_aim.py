"""L9 Aim: a Stop aimed at a run touches only that run; if it is over, nothing happens and the answer says so."""

from __future__ import annotations

import threading

import pytest

from actors import NotFound, RunStatus, Turn
from tests.kit import WAIT_S, Kit, check_rest, log, message, say, settled, stop, until


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def test_l9_a_stop_for_a_run_that_is_over_changes_no_other_run(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    second = say(session, "two")
    receipt = session.receipt(first, timeout=WAIT_S)
    before = session.status()
    stopped = stop(session, run_id=first)
    assert (stopped.outcome, stopped.run_id, stopped.fence_seq) == ("already_over", first, None)
    assert stopped.receipt_id == receipt.receipt_id
    after = session.status()
    assert (after.generation, after.run_id) == (before.generation, second)
    assert not [event for event in log(session)[before.last_seq :] if event.kind == "session.fenced"]
    stop(session)
    settled(session)


def test_l9_a_stop_that_races_the_next_run_never_ends_that(kit: Kit) -> None:
    go: dict[str, threading.Event] = {}

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "brief":
            turn.emit("x")
            return
        go[turn.address.run] = kit.gate()
        while not go[turn.address.run].wait(0.001):
            turn.cancel_token.raise_if_cancelled()

    session = kit.session(agent)
    outcomes = set()
    for _ in range(60):
        first = say(session, "brief")
        second = session.ask(message("long", policy="enqueue")).run_id
        assert second is not None
        outcomes.add(stop(session, run_id=first).outcome)
        until(lambda run=second: run in go, "the next run")  # type: ignore[misc]
        go[second].set()
        session.receipt(second, timeout=WAIT_S)
        assert session.run(second).status is RunStatus.COMPLETED
    assert outcomes <= {"stopped", "already_over"}
    check_rest(session)


def test_l9_a_stop_aimed_at_a_queued_run_cancels_just_that(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until(lambda: any(event.kind == "text" for event in log(session)))
    second = session.ask(message("two", policy="enqueue", merge=False))
    third = session.ask(message("three", policy="enqueue", merge=False))
    assert second.run_id is not None
    assert third.run_id is not None
    stopped = stop(session, run_id=second.run_id)
    assert stopped.outcome == "stopped"
    assert [m.id for m in stopped.withdrawn] == [second.message_id]
    assert session.run(second.run_id).status is RunStatus.CANCELLED
    assert session.run(first).status is RunStatus.IN_PROGRESS
    assert session.run(third.run_id).status is RunStatus.QUEUED
    assert session.receipt(second.run_id).receipt_id == stopped.receipt_id
    assert stop(session, run_id=second.run_id).outcome == "already_over"
    stop(session)
    check_rest(session)


def test_l9_a_stop_aimed_at_the_active_run_leaves_what_waits(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until(lambda: any(event.kind == "text" for event in log(session)))
    second = session.ask(message("two", policy="enqueue"))
    stopped = stop(session, run_id=first)
    assert stopped.withdrawn == ()
    assert second.run_id is not None
    until(lambda: session.run(second.run_id or "").status is RunStatus.IN_PROGRESS, "the waiting run")
    stop(session)
    settled(session)


def test_l9_another_session_is_not_touched(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        while not gate.is_set():
            turn.emit("x")

    supervisor = kit.start(agent)
    sessions = [supervisor.session(name) for name in ("a", "b")]
    runs = [say(session) for session in sessions]
    with pytest.raises(NotFound):
        stop(sessions[0], run_id=runs[1])
    stop(sessions[0])
    sessions[0].receipt(runs[0], timeout=WAIT_S)
    heard = sessions[1].status().last_seq
    until(lambda: sessions[1].status().last_seq > heard, "the other goes on")
    gate.set()
    sessions[1].receipt(runs[1], timeout=WAIT_S)
    assert sessions[1].run(runs[1]).status is RunStatus.COMPLETED
    assert not [event for event in log(sessions[1]) if event.kind == "session.fenced"]


def test_l9_a_run_that_was_never_there_is_an_error_and_no_fence(kit: Kit) -> None:
    session = kit.session(hold)
    say(session)
    before = session.status()
    with pytest.raises(NotFound) as caught:
        stop(session, run_id="run_nobody")
    assert caught.value.got == "run_nobody"
    assert session.status().generation == before.generation
    stop(session)
    settled(session)


def test_l9_a_run_that_completed_while_its_children_end_is_over(kit: Kit) -> None:
    session = kit.session(grace_s=0.5)
    script = "(trap '' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 & sleep 0.1"
    run_id = say(session, kit.script(script))
    until(lambda: session.run(run_id).status is RunStatus.COMPLETED)
    stopped = stop(session, run_id=run_id)
    assert (stopped.outcome, stopped.fence_seq) == ("already_over", None)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.receipt_id == stopped.receipt_id
    assert session.run(run_id).status is RunStatus.COMPLETED
    assert kit.alive() == []
