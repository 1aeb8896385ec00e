"""L1 Fence: once a session has handled a Stop or a superseding message, nothing of that generation is accepted."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, NewMessage, RunCancelled, Spawn, Stop, Turn, tool
from actors.events import TextData
from actors.messages import CallRequested, Said, SpawnRequested
from actors.model import Address
from actors.ports import SpawnSpec
from tests.kit import OUTPUT_KINDS, WAIT_S, Kit, Listener, check_log, check_rest, log, say, settled, stop, until

ROUNDS = 200


def stream(turn: Turn) -> None:
    while True:
        turn.emit("word ")


async def stream_async(turn: AsyncTurn) -> None:
    while True:
        await turn.emit("word ")
        await asyncio.sleep(0)


def dither(delay_s: float) -> None:
    """Let a time pass that is far below what a sleep can do."""
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        pass


def heard(listener: Listener, run_id: str | None) -> bool:
    """True once the listener was given text of a run."""
    return any(event.kind == "text" and event.run_id == run_id for event in list(listener.events))


@pytest.mark.parametrize("agent", [stream, stream_async])
def test_l1_no_text_of_a_generation_gets_a_number_after_the_fence(kit: Kit, agent: Any) -> None:
    session = kit.session(agent)
    listener = Listener(session)
    seed = random.Random(1)
    fences = []
    for number in range(ROUNDS // 2):
        accepted = session.ask(NewMessage(content="go"))
        if number % 5 == 0:
            # So that the agent is in full flow in some rounds, however busy the machine is.
            until(lambda run=accepted.run_id: heard(listener, run), "the agent is heard")  # type: ignore[misc]
        dither(seed.random() * 0.004)
        stopped = stop(session)
        assert stopped.outcome == "stopped"
        assert stopped.fence_seq is not None
        assert accepted.generation is not None
        fences.append((stopped.fence_seq, accepted.generation))
    events = check_rest(session)
    for fence_seq, generation in fences:
        late = [
            event
            for event in events[fence_seq:]
            if event.generation <= generation and event.kind in OUTPUT_KINDS | {"message"}
        ]
        assert late == []
    assert any(event.kind == "text" for event in events), "the agent was never heard: the rounds proved nothing"
    until(lambda: len(listener.events) == len(events))
    check_log(listener.close())


def test_l1_no_text_of_a_superseded_run_comes_behind_the_message_that_superseded_it(kit: Kit) -> None:
    session = kit.session(stream)
    seed = random.Random(2)
    runs = []
    for number in range(ROUNDS // 2):
        runs.append(say(session, str(number)))
        dither(seed.random() * 0.003)
    stop(session)
    events = check_rest(session)
    starts = {event.run_id: event.seq for event in events if event.kind == "run.started"}
    for earlier, later in itertools.pairwise(runs):
        texts = [event.seq for event in events if event.kind == "text" and event.run_id == earlier]
        assert all(seq < starts[later] for seq in texts)


def test_l1_progress_is_fenced_though_it_is_not_stored(kit: Kit) -> None:
    def show(turn: Turn) -> None:
        while True:
            turn.progress(step=1)

    session = kit.session(show)
    fences = {}
    listener = Listener(session, ephemeral=True)
    for _ in range(20):
        accepted = session.ask(NewMessage(content="go"))
        heard = len([event for event in listener.events if event.kind == "progress"])
        until(lambda heard=heard: len([e for e in list(listener.events) if e.kind == "progress"]) > heard, "progress")  # type: ignore[misc]
        fences[accepted.generation] = stop(session).fence_seq
    settled(session)
    for event in listener.close():
        fence_seq = fences[event.generation] if event.kind == "progress" else None
        assert fence_seq is None or event.seq < fence_seq


def test_l1_nothing_is_started_by_an_agent_that_asks_after_its_fence(kit: Kit) -> None:
    ran: list[str] = []
    answers: list[object] = []
    began, over = threading.Event(), threading.Event()

    @tool(isolation="thread")
    def touch() -> str:
        ran.append("touch")
        return ""

    def stubborn(turn: Turn) -> None:
        began.set()
        turn.cancel_token.wait()
        for ask in (lambda: turn.call("touch"), lambda: turn.emit("late"), turn.steering, turn.typing):
            try:
                answers.append(ask())
            except RunCancelled as error:
                answers.append(error)
        over.set()

    session = kit.session(stubborn, tools=[touch])
    say(session)
    # A run that is stopped before its first line is born stopped, and asks nothing.
    assert began.wait(WAIT_S)
    stop(session)
    assert over.wait(WAIT_S)
    check_rest(session)
    assert [type(answer) for answer in answers] == [RunCancelled] * 4
    assert ran == []


def test_l1_nothing_is_spawned_by_a_tool_that_asks_after_its_fence(kit: Kit) -> None:
    answers: list[BaseException] = []
    inside, over = threading.Event(), threading.Event()

    @tool(isolation="thread")
    def late(token: CancelToken, spawn: Spawn) -> None:
        inside.set()
        token.wait()
        try:
            spawn(["sh", "-c", kit.script("sleep 60")])
        except RunCancelled as error:
            answers.append(error)
        over.set()

    session = kit.session(lambda turn: turn.call("late"), tools=[late])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    assert over.wait(WAIT_S)
    session.receipt(run_id, timeout=WAIT_S)
    assert len(answers) == 1
    assert kit.alive() == []
    assert not [event for event in check_rest(session) if event.kind == "process.started"]


@pytest.mark.parametrize("shift", [-1, 1, 1000])
def test_l1_what_carries_another_generation_is_a_dead_letter(kit: Kit, shift: int) -> None:
    ran: list[str] = []
    gate = kit.gate()

    @tool(isolation="thread")
    def touch() -> str:
        ran.append("touch")
        return ""

    def waits(turn: Turn) -> None:
        turn.emit("mine")
        gate.wait()

    session = kit.session(waits, tools=[touch])
    accepted = session.ask(NewMessage(content="go"))
    until(lambda: any(event.kind == "text" for event in log(session)))
    assert accepted.generation is not None
    assert accepted.run_id is not None
    assert session.ref is not None
    address = Address("s1", accepted.generation + shift, accepted.run_id)
    session.ref.tell(Said(address, TextData(text="forged"), 6))
    session.ref.tell(CallRequested(address.of_call("call_x"), "touch", {}))
    session.ref.tell(SpawnRequested(address.of_call("call_x"), "proc_x", SpawnSpec(("true",), "true")))
    until(lambda: sum(session.status().refused.values()) >= 3, "three dead letters")
    gate.set()
    events = check_rest(session)
    assert [event.data["text"] for event in events if event.kind == "text"] == ["mine"]
    assert not [event for event in events if event.kind == "tool.requested"]
    assert ran == []
    receipt = session.receipt(accepted.run_id, timeout=WAIT_S)
    assert receipt.refused == {"text": 1, "call": 1, "spawn": 1}
    assert kit.supervisor is not None
    assert {letter.kind for letter in kit.supervisor.dead_letters()} >= {"text", "call", "spawn"}


def test_l1_a_stop_overtakes_a_backlog_of_output(kit: Kit) -> None:
    gate = kit.gate()

    def floods(turn: Turn) -> None:
        gate.wait()

    session = kit.session(floods)
    accepted = session.ask(NewMessage(content="go"))
    assert accepted.generation is not None
    assert accepted.run_id is not None
    ref = session.ref
    assert ref is not None
    address = Address("s1", accepted.generation, accepted.run_id)
    # It handles nothing of it before all of it is there.
    told = kit.keep_busy(ref)
    for _ in range(20_000):
        ref.tell(Said(address, TextData(text="x"), 1))
    stopping = ref.ask(Stop(source="user.test", reason="enough"), block=False)
    told.set()
    stopped = stopping.get(timeout=WAIT_S)
    gate.set()
    events = check_rest(session)
    assert len([event for event in events if event.kind == "text"]) < 20_000
    assert stopped.fence_seq is not None
    assert not [event for event in events[stopped.fence_seq :] if event.kind == "text"]
