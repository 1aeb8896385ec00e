"""What people who run agent harnesses met, each reduced to an input for a whole supervisor, and the right behaviour.

The file has over 600 lines, and is whole: it is a list of cases, to be read as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from msgspec.structs import replace

from actors import (
    AsyncTurn,
    CancelToken,
    How,
    NewMessage,
    Outcome,
    QueueFull,
    Row,
    RunCancelled,
    RunStatus,
    Spawn,
    Stop,
    Stopped,
    Turn,
    render_anthropic,
    render_openai,
    tool,
)
from actors.events import TextData
from actors.hierarchy.spawns import Spawns
from actors.messages import CallEnded, RunDeadline, RunFinished, SpawnPermit
from actors.model import Address
from supervisor import SessionHandle
from tests.kit import (
    WAIT_S,
    Kit,
    Listener,
    check_rest,
    fates,
    log,
    message,
    rows,
    say,
    settled,
    stop,
    until,
)
from tests.provider_checker import check_anthropic, check_openai


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def until_holding(session: SessionHandle, run_id: str) -> None:
    until(lambda: any(e.kind == "text" and e.run_id == run_id for e in log(session)), "the agent holds")


def check_valid(session: SessionHandle) -> None:
    """Model providers take the thread as it is."""
    check_openai(render_openai(session.thread()))
    check_anthropic(render_anthropic(session.thread()))


def results(session: SessionHandle) -> list[str | None]:
    return [m.outcome for m in session.thread() if m.role == "tool"]


# ── Stop is accepted but work goes on ─────────────────────────────────────────────────────────────


def test_a_stop_between_a_tools_result_and_the_next_model_call_starts_nothing_further(kit: Kit) -> None:
    between, gate = threading.Event(), kit.gate()
    went_on: list[str] = []

    @tool(isolation="thread")
    def first() -> str:
        return "one"

    @tool(isolation="thread")
    def second() -> str:
        went_on.append("second tool")
        return "two"

    def agent(turn: Turn) -> None:
        turn.call("first")
        between.set()
        gate.wait()
        turn.emit("the next model call")
        went_on.append("model call")
        turn.call("second")

    session = kit.session(agent, tools=[first, second])
    run_id = say(session)
    assert between.wait(WAIT_S)
    stop(session)
    gate.set()
    session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    assert went_on == []
    assert results(session) == ["finished"]


def test_a_stop_of_a_sleeping_command_is_answered_while_it_still_runs_and_its_tree_is_dead_by_the_receipt(
    kit: Kit,
) -> None:
    session = kit.session(grace_s=3600.0)
    run_id = say(session, kit.script("trap '' TERM; sleep 30 & wait; while :; do sleep 1; done"))
    until(lambda: len(kit.alive()) >= 2, "the tree")
    stopped = stop(session)
    # The answer did not wait for the tree, which ignores what it was asked.
    assert kit.alive() != []
    assert stopped.fence_seq is not None
    assert stop(session, mode="immediate").receipt_id == stopped.receipt_id
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete


def by_ask(session: SessionHandle, request: Stop) -> Any:
    return session.ask(request)


def by_tell(session: SessionHandle, request: Stop) -> Any:
    session.tell(request)
    return session.ask(request)


def by_aio(session: SessionHandle, request: Stop) -> Any:
    return asyncio.run(session.aio.ask(request))


def by_ref(session: SessionHandle, request: Stop) -> Any:
    assert session.ref is not None
    return session.ref.ask(request, timeout=WAIT_S)


DOORS = [by_ask, by_tell, by_aio, by_ref]


def test_the_same_stop_through_every_door_is_one_effect_with_one_answer(kit: Kit) -> None:
    session = kit.session(hold)
    until_holding(session, say(session))
    request = Stop(source="user.test", reason="every door")
    answers: list[Stopped] = []
    threads = [threading.Thread(target=lambda door=door: answers.append(door(session, request))) for door in DOORS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(answers) == len(DOORS)
    # Where the disk is slow the first of them come ahead of its record.
    on_record = [replace(answer, durable=True, journalled=False) for answer in answers]
    assert all(answer == on_record[0] for answer in on_record)
    assert answers[0].outcome == "stopped"
    events = check_rest(session)
    assert len([event for event in events if event.kind == "session.fenced"]) == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_stop_ends_the_command_whatever_door_it_comes_through(kit: Kit, door: Any) -> None:
    session = kit.session()
    run_id = say(session, kit.script("sleep 30; :"))
    until(lambda: len(kit.alive()) >= 2, "the tree")
    assert door(session, Stop(source="user.test", reason="door")).outcome == "stopped"
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert kit.alive() == []


def test_a_stop_after_the_permit_and_before_the_spawn_leaves_no_process(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    permitted, gate = threading.Event(), kit.gate()
    original = Spawns.permitted

    def late(self: Spawns, permit: SpawnPermit) -> None:
        permitted.set()
        gate.wait()
        original(self, permit)

    monkeypatch.setattr(Spawns, "permitted", late)
    session = kit.session()
    run_id = say(session, kit.script("sleep 30; :"))
    assert permitted.wait(WAIT_S)
    stop(session)
    gate.set()
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    processes: list[Row] = [row for row in rows(receipt) if row.kind == "process"]
    assert [row.how for row in processes] in ([], [How.NOT_STARTED])
    assert not [event for event in check_rest(session) if event.kind == "process.started"]


def test_a_tool_that_awaits_and_then_writes_does_not_write_after_a_stop(kit: Kit, tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    inside = threading.Event()

    @tool(isolation="task")
    async def write() -> str:
        inside.set()
        await asyncio.sleep(60)
        target.write_text("written")
        return "written"

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("write")

    session = kit.session(agent, tools=[write])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert not target.exists()
    assert results(session) == ["interrupted"]


def test_a_tool_that_ignores_its_token_and_writes_is_reported_as_such(kit: Kit, tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def write() -> str:
        inside.set()
        gate.wait()
        target.write_text("written")
        return "written"

    session = kit.session(lambda turn: turn.call("write"), tools=[write], grace_s=0.05, kill_s=0.1)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert not receipt.complete
    assert [row.how for row in rows(receipt) if row.kind == "call"] == [How.ABANDONED]
    gate.set()
    until(lambda: session.receipt(run_id).complete, "the amended receipt")
    assert session.receipt(run_id).refused == {"result": 1}
    assert results(session) == ["interrupted"]
    assert "may have had effects" in next(m.content for m in session.thread() if m.role == "tool")


def test_a_run_whose_tool_never_looks_at_its_token_still_ends(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def busy() -> str:
        inside.set()
        gate.wait()
        return "late"

    session = kit.session(lambda turn: turn.call("busy"), tools=[busy], grace_s=0.05, kill_s=0.1)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.CANCELLED
    gate.set()
    assert kit.supervisor is not None
    supervisor = kit.supervisor
    until(lambda: any(letter.kind == "result" for letter in supervisor.dead_letters()), "the dead letter")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_stop_in_the_back_off_of_a_failing_model_provider_ends_it_now(kit: Kit, kind: str) -> None:
    attempts: list[int] = []

    def plain(turn: Turn) -> None:
        while True:
            attempts.append(1)
            try:
                raise ConnectionError("429")
            except Exception:
                turn.cancel_token.wait(60.0)
                turn.cancel_token.raise_if_cancelled()

    async def awaits(turn: AsyncTurn) -> None:
        while True:
            attempts.append(1)
            try:
                raise ConnectionError("429")
            except Exception:
                await asyncio.sleep(60.0)

    agent: Any = plain if kind == "plain" else awaits
    session = kit.session(agent, kill_s=30.0)
    run_id = say(session)
    until(lambda: attempts)
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert attempts == [1]


def test_of_a_thousand_queued_events_none_is_yielded_after_the_answer(kit: Kit) -> None:
    session = kit.session(hold)
    accepted = session.ask(NewMessage(content="go"))
    assert accepted.generation is not None
    assert accepted.run_id is not None
    from actors.messages import Said

    ref = session.ref
    assert ref is not None
    listener = Listener(session)
    address = Address("s1", accepted.generation, accepted.run_id)
    for _ in range(1000):
        ref.tell(Said(address, TextData(text="queued"), 6))
    stopped = session.ask(Stop(source="user.test", reason="enough"))
    session.receipt(accepted.run_id, timeout=WAIT_S)
    events = check_rest(session)
    until(lambda: len(listener.events) == len(events))
    assert stopped.fence_seq is not None
    for given in (events, listener.close()):
        assert not [event for event in given if event.kind == "text" and event.seq > (stopped.fence_seq or 0)]


def test_a_child_that_works_past_its_deadline_is_ended_there(kit: Kit) -> None:
    session = kit.session(run_deadline_s=0.4)
    run_id = say(session, kit.script("sleep 60; :"))
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.EXPIRED
    assert kit.alive() == []
    assert receipt.complete
    assert receipt.provenance is not None
    assert receipt.provenance.source == "run.deadline"


def test_a_wake_up_that_was_pending_when_the_last_tool_ended_wakes_nothing_after_a_stop(kit: Kit) -> None:
    ended, gate = threading.Event(), kit.gate()
    started: list[str] = []

    @tool(isolation="thread")
    def last() -> str:
        return "done"

    def agent(turn: Turn) -> None:
        started.append(turn.inputs[-1].content)
        turn.call("last")
        ended.set()
        gate.wait()

    session = kit.session(agent, tools=[last])
    run_id = say(session, "work")
    assert ended.wait(WAIT_S)
    wake_up = session.ask(NewMessage(content="wake up", origin="timer"))
    stopped = stop(session)
    gate.set()
    session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    assert started == ["work"]
    assert [m.id for m in stopped.withdrawn] == [wake_up.message_id]


# ── The wrong thing is hit ────────────────────────────────────────────────────────────────────────


def test_a_stop_aimed_at_one_run_that_arrives_with_the_next_leaves_that_unharmed(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        turn.emit(turn.inputs[-1].content)

    session = kit.session(agent)
    for number in range(50):
        first = say(session, f"N {number}")
        second = session.ask(message(f"N+1 {number}", policy="enqueue", merge=False)).run_id
        assert second is not None
        session.tell(Stop(source="user.test", reason="N", run_id=first))
        session.receipt(second, timeout=WAIT_S)
        assert session.run(second).status is RunStatus.COMPLETED
    check_rest(session)


def test_a_stop_within_a_millisecond_of_the_start_ends_a_run_that_has_no_agent_yet(kit: Kit) -> None:
    said: list[str] = []

    async def agent(turn: AsyncTurn) -> None:
        await turn.emit("x")
        said.append("x")
        await turn.call("shell", script=kit.script("sleep 30"))

    session = kit.session(agent)
    for _ in range(100):
        one = NewMessage(content="go")
        session.tell(one)
        assert stop(session).outcome == "stopped"
    events = check_rest(session)
    assert kit.alive() == []
    assert Counter(str(run.status) for run in session.runs()) == {"cancelled": 100}
    assert len([event for event in events if event.kind == "run.ended"]) == 100


def test_of_two_sessions_that_stream_the_one_that_is_not_stopped_ends_normally(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        while not gate.is_set():
            turn.emit("x")

    supervisor = kit.start(agent)
    one, two = supervisor.session("one"), supervisor.session("two")
    runs = say(one), say(two)
    for session, run_id in ((one, runs[0]), (two, runs[1])):
        until_holding(session, run_id)
    stop(one)
    one.receipt(runs[0], timeout=WAIT_S)
    gate.set()
    two.receipt(runs[1], timeout=WAIT_S)
    assert one.run(runs[0]).status is RunStatus.CANCELLED
    assert two.run(runs[1]).status is RunStatus.COMPLETED


@pytest.mark.parametrize("generation", [0, -1, 7, 10**12])
def test_a_reply_of_an_unknown_generation_is_stale(kit: Kit, generation: int) -> None:
    session = kit.session(hold)
    run_id = say(session)
    until_holding(session, run_id)
    ref = session.ref
    assert ref is not None
    address = Address("s1", generation, run_id)
    ref.tell(RunFinished(address, How.RETURNED, 0.0, result="forged"))
    ref.tell(CallEnded(address.of_call("call_x"), How.RETURNED, 0.0, None, late=True))
    until(lambda: session.status().refused, "the dead letters")
    assert session.run(run_id).status is RunStatus.IN_PROGRESS
    assert stop(session).run_id == run_id
    check_rest(session)


def test_a_message_runs_when_the_generation_moves_while_the_old_run_unwinds(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "old":
            inside.set()
            gate.wait()
        turn.emit("ran")

    session = kit.session(agent, kill_s=30.0)
    old = say(session, "old")
    assert inside.wait(WAIT_S)
    stop(session)
    stop(session)
    new = say(session, "new")
    until(lambda: session.run(new).status is RunStatus.COMPLETED, "the new run")
    gate.set()
    session.receipt(old, timeout=WAIT_S)
    third = say(session, "third")
    session.receipt(third, timeout=WAIT_S)
    assert session.run(third).status is RunStatus.COMPLETED
    status = session.status()
    assert (status.state, status.ending, status.barrier) == ("idle", (), ())


def test_an_old_runs_end_takes_no_waiting_message_with_it(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "old":
            inside.set()
            gate.wait()
            return
        turn.emit("holding")
        turn.cancel_token.wait(0 if turn.inputs[-1].content == "waiting" else None)

    session = kit.session(agent, kill_s=30.0)
    old = say(session, "old")
    assert inside.wait(WAIT_S)
    new = say(session, "new")
    waiting = session.ask(message("waiting", policy="enqueue"))
    gate.set()
    session.receipt(old, timeout=WAIT_S)
    assert session.status().waiting == 1
    stop(session, run_id=new)
    assert waiting.run_id is not None
    session.receipt(waiting.run_id, timeout=WAIT_S)
    inputs, returned = fates(check_rest(session))
    assert inputs[-1] == waiting.message_id
    assert returned == []


def test_stop_and_message_back_to_back_a_thousand_times_answer_each_once(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        await turn.emit("x")

    session = kit.session(agent)
    ids = []
    futures = []
    for number in range(1000):
        one = NewMessage(content=str(number))
        ids.append(one.id)
        futures.append(session._send(one))
        futures.append(session._send(Stop(source="user.test", reason=str(number))))
    answers = [future.get(timeout=60) for future in futures]
    assert len(answers) == 2000
    inputs, returned = fates(check_rest(session))
    assert inputs == ids
    assert returned == []
    assert len(session.runs()) == 1000


# ── The thread ────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_during_the_first_of_two_tools_leaves_a_valid_thread_for_the_next_message(kit: Kit) -> None:
    inside = threading.Event()
    seen: list[list[Any]] = []

    @tool(isolation="task")
    async def slow() -> str:
        inside.set()
        await asyncio.sleep(60)
        return "never"

    async def agent(turn: AsyncTurn) -> None:
        seen.append(turn.messages)
        if turn.inputs[-1].content == "two tools":
            await asyncio.gather(turn.call("slow"), turn.call("slow"))

    session = kit.session(agent, tools=[slow])
    say(session, "two tools")
    assert inside.wait(WAIT_S)
    until(lambda: len([e for e in log(session) if e.kind == "tool.requested"]) == 2)
    stop(session)
    session.receipt(say(session, "next"), timeout=WAIT_S)
    check_rest(session)
    check_openai(render_openai(seen[-1]))
    check_anthropic(render_anthropic(seen[-1]))
    assert len(results(session)) == 2
    assert set(results(session)) <= {Outcome.INTERRUPTED, Outcome.NOT_STARTED}


@pytest.mark.parametrize("way", ["stop", "message", "deadline", "failure", "shutdown", "actor"])
def test_the_thread_is_whole_on_every_way_out_of_a_run(kit: Kit, way: str) -> None:
    inside = threading.Event()
    gate = kit.gate()

    @tool(isolation="thread")
    def slow(token: CancelToken) -> None:
        inside.set()
        token.wait()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content != "go":
            return
        turn.emit("calling")
        caller = threading.Thread(target=lambda: call(turn))
        caller.start()
        while not gate.wait(0.002):
            turn.cancel_token.raise_if_cancelled()
        raise ValueError("the agent fails")

    def call(turn: Turn) -> None:
        with contextlib.suppress(RunCancelled):
            turn.call("slow")

    session = kit.session(agent, tools=[slow], run_deadline_s=3600.0)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    if way == "deadline":
        kit.fire(RunDeadline)
    if way == "stop":
        stop(session)
    elif way == "message":
        say(session, "next")
    elif way == "failure":
        gate.set()
    elif way == "shutdown":
        kit.close(0.0)
        session = kit.session(agent, tools=[slow])
    elif way == "actor":
        assert session.ref is not None
        session.ref.stop()
    session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    check_valid(session)
    assert results(session) == ["interrupted"]
    assert [m.role for m in session.thread() if m.run_id == run_id][-1] == "note"


def test_with_two_of_three_tools_done_the_store_is_whole_when_the_end_is_heard(kit: Kit) -> None:
    third = threading.Event()
    found: list[list[str | None]] = []
    errors: list[BaseException] = []

    @tool(isolation="thread")
    def work(number: int, token: CancelToken) -> str:
        if number == 3:
            third.set()
            token.wait()
        return str(number)

    def agent(turn: Turn) -> None:
        for number in (1, 2, 3):
            turn.call("work", number=number)

    session = kit.session(agent, tools=[work])

    def watch() -> None:
        with session.subscribe() as subscription:
            for event in subscription:
                if event.kind in ("run.status", "run.ended"):
                    try:
                        check_valid(session)
                    except AssertionError as error:
                        errors.append(error)
                    found.append(results(session))
                if event.kind == "run.ended":
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    say(session)
    assert third.wait(WAIT_S)
    stop(session)
    thread.join(WAIT_S)
    assert errors == []
    assert found
    assert all(seen == ["finished", "finished", "interrupted"] for seen in found)


def test_a_request_that_was_saved_before_the_stop_is_not_saved_twice(kit: Kit) -> None:
    session = kit.session(hold)
    one = NewMessage(content="saved")
    session.ask(one)
    stop(session)
    session.ask(one)
    kit.close()
    session = kit.session(hold)
    session.ask(one)
    check_rest(session)
    assert [m.content for m in session.thread() if m.role == "user"] == ["saved"]


def test_the_cancel_of_a_run_does_not_cancel_the_write_of_what_it_said(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        turn.emit("last words")
        turn.cancel_token.wait()

    session = kit.session(agent)
    listener = Listener(session)
    for number in range(30):
        run_id = say(session)
        until(lambda n=number: len([e for e in list(listener.events) if e.kind == "text"]) == n + 1, "it was heard")  # type: ignore[misc]
        stop(session)
        session.receipt(run_id, timeout=WAIT_S)
    listener.close()
    kit.close()
    session = kit.session(agent)
    partial = [(m.content, m.status) for m in session.thread() if m.role == "assistant"]
    assert partial == [("last words", "partial")] * 30


@pytest.mark.parametrize("deltas", [0, 3])
def test_what_was_said_before_a_stop_is_there_and_marked_and_nothing_is_made_up(kit: Kit, deltas: int) -> None:
    ready = threading.Event()

    def agent(turn: Turn) -> None:
        for number in range(deltas):
            turn.emit(f"{number} ")
        ready.set()
        turn.cancel_token.wait()

    session = kit.session(agent)
    say(session)
    assert ready.wait(WAIT_S)
    until(lambda: len([e for e in log(session) if e.kind == "text"]) == deltas)
    stop(session)
    check_rest(session)
    said = [(m.content, m.status) for m in session.thread() if m.role == "assistant"]
    assert said == ([("0 1 2 ", "partial")] if deltas else [])


def test_the_model_gets_the_note_of_the_stop_before_the_users_next_sentence(kit: Kit) -> None:
    given: list[list[tuple[str, str]]] = []

    def agent(turn: Turn) -> None:
        given.append([(m.role, m.content) for m in turn.messages])
        turn.emit("I will go on and on")
        if len(given) == 1:
            turn.cancel_token.wait()

    session = kit.session(agent)
    until_holding(session, say(session, "tell me everything"))
    stop(session, "that is enough")
    session.receipt(say(session, "what is the time?"), timeout=WAIT_S)
    roles = [role for role, _ in given[-1]]
    assert roles == ["user", "assistant", "note", "user"]
    note = given[-1][2][1]
    assert "the user stopped" in note
    assert "that is enough" in note


# ── Waiting messages ──────────────────────────────────────────────────────────────────────────────


def test_a_message_that_waited_comes_before_one_that_arrives_as_the_run_ends(kit: Kit) -> None:
    gates: dict[str, threading.Event] = {}

    def agent(turn: Turn) -> None:
        if turn.inputs[0].content.startswith("first"):
            gates[turn.address.run] = kit.gate()
            gates[turn.address.run].wait()

    session = kit.session(agent)
    expected = []
    for number in range(40):
        first = session.ask(message(f"first {number}", policy="enqueue"))
        assert first.run_id is not None
        until(lambda run=first.run_id: run in gates, "the first run")  # type: ignore[misc]
        a = session.ask(message(f"A {number}", policy="enqueue"))
        gates[first.run_id].set()
        b = session.ask(message(f"B {number}", policy="enqueue"))
        expected += [first.message_id, a.message_id, b.message_id]
        settled(session)
    inputs, returned = fates(check_rest(session))
    assert inputs == expected
    assert returned == []


def test_a_message_runs_when_the_run_that_it_waited_for_times_out(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        began.set()
        if turn.inputs[-1].content == "A":
            turn.cancel_token.wait()
        turn.emit("fine")

    began = kit.gate()
    session = kit.session(agent, run_deadline_s=3600.0)
    first = say(session, "A")
    assert began.wait(WAIT_S)
    waiting = session.ask(message("B", policy="enqueue"))
    kit.fire(RunDeadline)
    assert waiting.run_id is not None
    session.receipt(waiting.run_id, timeout=WAIT_S)
    assert session.run(first).status is RunStatus.EXPIRED
    assert session.run(waiting.run_id).status is RunStatus.COMPLETED


def test_a_message_between_an_agents_return_and_the_end_of_its_run_is_an_input_exactly_once(kit: Kit) -> None:
    returned_now = threading.Semaphore(0)

    def agent(turn: Turn) -> None:
        returned_now.release()

    session = kit.session(agent)
    ids = []
    for number in range(100):
        ids.append(session.ask(message(f"a{number}", policy="enqueue")).message_id)
        assert returned_now.acquire(timeout=WAIT_S)
        ids.append(session.ask(message(f"b{number}", policy="enqueue")).message_id)
        assert returned_now.acquire(timeout=WAIT_S)
    inputs, returned = fates(check_rest(session))
    assert inputs == ids
    assert returned == []


def test_a_stop_glues_no_waiting_message_onto_a_later_one(kit: Kit) -> None:
    session = kit.session(hold)
    until_holding(session, say(session, "first"))
    session.ask(message("waiting 1", policy="enqueue"))
    session.ask(message("waiting 2", policy="enqueue"))
    stop(session, waiting="park")
    later = session.ask(NewMessage(content="later"))
    assert later.run_id is not None
    own = [m for m in session.thread() if m.run_id == later.run_id and m.role == "user"]
    assert [m.content for m in own] == ["waiting 1", "waiting 2", "later"]
    assert len({m.id for m in own}) == 3
    stop(session)
    check_rest(session)


def test_a_sender_gets_an_error_when_the_queue_is_full_and_no_message_is_dropped_in_silence(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("x")
        gate.wait()

    session = kit.session(agent, queue_max=5)
    say(session)
    accepted, refused = [], 0
    for number in range(20):
        try:
            accepted.append(session.ask(message(str(number), policy="enqueue")).message_id)
        except QueueFull:
            refused += 1
    assert (len(accepted), refused) == (5, 15)
    gate.set()
    inputs, returned = fates(check_rest(session))
    assert inputs[1:] == accepted
    assert returned == []


def test_a_spawn_that_waits_when_its_run_ends_by_itself_is_refused(kit: Kit) -> None:
    told: list[BaseException] = []
    over = threading.Event()
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def late(spawn: Spawn) -> None:
        inside.set()
        gate.wait()
        try:
            spawn(["sh", "-c", kit.script("sleep 60")])
        except BaseException as error:
            told.append(error)
        over.set()

    def agent(turn: Turn) -> None:
        def call() -> None:
            with contextlib.suppress(RunCancelled):
                turn.call("late")

        threading.Thread(target=call).start()
        inside.wait(WAIT_S)

    session = kit.session(agent, tools=[late])
    run_id = say(session)
    until(lambda: session.run(run_id).status is RunStatus.COMPLETED)
    gate.set()
    assert over.wait(WAIT_S)
    assert [type(error) for error in told] == [RunCancelled]
    session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert results(session) == ["interrupted"]


def test_a_dev_server_that_is_meant_to_outlive_its_tool_call_does_by_stated_ownership(kit: Kit) -> None:
    """And the one beside it, of which nobody has said so, does not."""

    @tool(isolation="thread")
    def start(spawn: Spawn) -> str:
        stray = spawn(["sh", "-c", kit.script("while :; do sleep 0.05; done")], name="stray")
        server = spawn(["sh", "-c", kit.script("while :; do sleep 0.05; done")], name="server", owner="session")
        return f"{stray.pid} {server.pid}"

    # What dies of SIGTERM has the time for it.
    session = kit.session(lambda turn: turn.call("start").content, tools=[start], grace_s=3600.0)
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    result = session.run(run_id).result
    assert isinstance(result, str)
    stray, server = map(int, result.split())
    assert stray not in kit.alive()
    assert server in kit.alive()
    assert [one.pid for one in session.processes() if one.leader] == [server]
    hows = {row.name: row.how for row in rows(receipt) if row.kind == "process"}
    assert (hows["stray"], hows["server"]) == ("sigterm", "handed_over")
    session.receipt(stop(session, scope="session").receipt_id, timeout=WAIT_S)
    assert server not in kit.alive()
    check_rest(session)


# ── Output ────────────────────────────────────────────────────────────────────────────────────────


def output_of(kit: Kit, script: str) -> tuple[SessionHandle, str, dict[str, Any]]:
    """Run a script; returns its session, all that was logged of its output, and its call's end."""
    session = kit.session()
    session.receipt(say(session, script), timeout=60)
    events = check_rest(session)
    (ended,) = [event.data for event in events if event.kind == "tool.ended"]
    assert not [event for event in events if event.data.get("marker")]
    return session, "".join(event.data["text"] for event in events if event.kind == "tool.output"), ended


@pytest.mark.parametrize("end", ["", "\n"])
def test_one_line_of_200_000_characters_is_heard_whole_and_kept_whole(kit: Kit, end: str) -> None:
    words = f"print('é' * 200_000, end={end!r})"
    session, text, ended = output_of(kit, f'{sys.executable} -S -c "{words}"')
    line = "é" * 200_000 + end
    assert text == line
    data = ended["data"]
    assert (data["total_bytes"], data["exit_code"], data["lossy"]) == (len(line.encode()), 0, False)
    assert Path(data["spool"]).read_text() == line
    assert ended["content"].splitlines()[1].startswith("é" * 32_000)
    check_valid(session)


def test_half_a_character_is_shown_as_one_that_is_missing_and_kept_as_it_was(kit: Kit) -> None:
    session, text, ended = output_of(kit, "printf '\\360'")
    assert text == "\ufffd"
    assert ended["data"]["lossy"]
    assert ended["content"].startswith("\ufffd")
    assert Path(ended["data"]["spool"]).read_bytes() == b"\xf0"
    check_valid(session)


@pytest.mark.parametrize("pause", ["", "sleep 0.1;"])
def test_a_character_that_comes_in_pieces_is_one_character(kit: Kit, pause: str) -> None:
    _, text, ended = output_of(kit, f"printf '\\360\\237'; {pause} printf '\\230'; {pause} printf '\\200'; echo .")
    assert text == ended["content"] == "😀.\n"
    assert not ended["data"]["lossy"]


def test_what_is_no_text_at_all_is_stored_and_kept_to_the_byte(kit: Kit) -> None:
    every = bytes(range(256)) * 8
    octal = "".join(f"\\{byte:03o}" for byte in every)
    session, text, ended = output_of(kit, f"printf '{octal}'")
    assert text == every.decode("utf-8", "replace")
    assert "\0" in text
    assert Path(ended["data"]["spool"]).read_bytes() == every
    check_valid(session)


def test_a_command_that_reads_with_nothing_on_its_input_ends_at_once(kit: Kit) -> None:
    _, text, ended = output_of(kit, "cat; read line; echo $?; echo end")
    assert text == "1\nend\n"
    assert ended["data"]["exit_code"] == 0


NO_FORK = """
import os, sys, threading
from pathlib import Path
forks = []
os.register_at_fork(before=lambda: forks.append(1))
lock, go = threading.Lock(), threading.Event()
def thread():
    while not go.is_set():
        with lock:
            pass
threads = [threading.Thread(target=go.wait) for _ in range(200)] + [threading.Thread(target=thread) for _ in range(2)]
for one in threads:
    one.start()
from actors import NewMessage
from supervisor import Config, Supervisor
with Supervisor.start(Config(state_dir=sys.argv[1])) as supervisor:
    sessions = [supervisor.session(f"s{number}") for number in range(10)]
    runs = [(s, s.ask(NewMessage(content="echo hello; sleep 0 &"), timeout=60).run_id) for s in sessions]
    for session, run_id in runs:
        assert session.receipt(run_id, timeout=60).complete
        assert session.run(run_id).status == "completed"
go.set()
for one in threads:
    one.join()
assert not forks, "the daemon has forked itself"
print("never forked")
"""


def test_a_daemon_of_many_threads_and_held_locks_starts_commands_without_forking_itself(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", NO_FORK, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.stdout, ran.returncode) == ("never forked\n", 0), ran.stderr


def test_a_signal_that_comes_while_something_is_logged_stops_a_run_all_the_same(kit: Kit) -> None:
    session = kit.session()
    run_id = say(session, kit.script("echo up; exec sleep 1000"))
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "it is up")
    told: list[Any] = []

    def sink(_: str) -> None:
        # The logger holds its lock here, and the handler runs on top of it.
        if not told and threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: object) -> None:
        told.append(stop(session))
        told.append(session.receipt(run_id, timeout=WAIT_S))

    before = signal.signal(signal.SIGUSR1, handler)
    added = logger.add(sink, level="TRACE")
    try:
        logger.info("something")
        until(lambda: len(told) == 2, "the handler has run")
    finally:
        logger.remove(added)
        signal.signal(signal.SIGUSR1, before)
    assert told[0].outcome == "stopped"
    assert told[1].complete
    assert kit.alive() == []
