"""L2 Gate: one cell decides each call, and the result says what really happened."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, NewMessage, ToolResult, Turn, tool
from actors.hierarchy.tool import ToolActor
from actors.messages import CallDeadline, ExecutionEnded
from tests.kit import WAIT_S, Kit, check_rest, log, say, settled, stop, until

ROUNDS = 100


def outcomes(session: Any) -> dict[str, str]:
    """The outcome of every call, by its id."""
    return {event.data["call_id"]: event.data["outcome"] for event in log(session) if event.kind == "tool.ended"}


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_l2_every_outcome_agrees_with_whether_the_tool_really_ran(kit: Kit, kind: str) -> None:
    ran: list[str] = []
    returned: list[str] = []

    @tool(isolation="thread", name="work")
    def in_thread(fence: str, token: CancelToken) -> str:
        ran.append(fence.rpartition(":")[2])
        token.wait(0.0005)
        returned.append(fence.rpartition(":")[2])
        return "done"

    @tool(isolation="task", name="work")
    async def in_task(fence: str) -> str:
        ran.append(fence.rpartition(":")[2])
        returned.append(fence.rpartition(":")[2])
        return "done"

    def calls(turn: Turn) -> None:
        while True:
            turn.call("work")

    async def calls_async(turn: AsyncTurn) -> None:
        while True:
            await turn.call("work")

    agent: Any = calls if kind == "thread" else calls_async
    session = kit.session(agent, tools=[in_thread if kind == "thread" else in_task])
    seed = random.Random(3)
    for number in range(ROUNDS):
        before = len(ran)
        say(session)
        if number % 10 == 0:
            # So that calls are made in some rounds, however busy the machine is.
            until(lambda before=before: len(ran) > before, "a call")  # type: ignore[misc]
        deadline = time.monotonic() + seed.random() * 0.01
        while time.monotonic() < deadline:
            pass
        stop(session)
    check_rest(session)
    seen = outcomes(session)
    assert seen, "no call was ever made: the rounds proved nothing"
    for call_id, outcome in seen.items():
        if outcome == "not_started":
            assert call_id not in ran
        elif outcome == "finished":
            assert call_id in returned
    assert set(ran) <= {call for call, outcome in seen.items() if outcome != "not_started"}
    assert len(ran) == len(set(ran)), "a call ran twice"


def test_l2_what_a_closed_call_brings_is_a_dead_letter(kit: Kit) -> None:
    inside = threading.Event()
    gate = kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        inside.set()
        gate.wait()
        return "too late"

    session = kit.session(lambda turn: turn.call("deaf"), tools=[deaf])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    gate.set()
    receipt = session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    assert list(outcomes(session).values()) == ["interrupted"]
    assert receipt.refused == {"result": 1}
    assert "too late" not in "".join(message.content for message in session.thread())


def test_l2_a_result_that_was_in_the_cell_before_the_fence_is_finished(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, gate = threading.Event(), kit.gate()
    original = ToolActor._execution_ended

    def held(self: ToolActor, ended: ExecutionEnded) -> None:
        reported.set()
        gate.wait()
        original(self, ended)

    @tool(isolation="thread")
    def quick() -> str:
        return "in time"

    monkeypatch.setattr(ToolActor, "_execution_ended", held)
    session = kit.session(lambda turn: turn.call("quick"), tools=[quick])
    run_id = say(session)
    assert reported.wait(WAIT_S)
    stop(session)
    gate.set()
    session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    results = [message for message in session.thread() if message.role == "tool"]
    assert [(message.outcome, message.content) for message in results] == [("finished", "in time")]


def test_l2_the_deadline_of_a_call_closes_it_and_the_run_continues(kit: Kit) -> None:
    got: list[ToolResult] = []

    inside = kit.gate()

    @tool(isolation="thread", deadline_s=3600.0)
    def slow(token: CancelToken) -> str:
        inside.set()
        token.wait()
        return "late"

    def agent(turn: Turn) -> None:
        got.append(turn.call("slow"))
        turn.emit("went on")

    session = kit.session(agent, tools=[slow])
    run_id = say(session)
    # One that has not begun when its deadline comes is not interrupted, but not started.
    assert inside.wait(WAIT_S)
    kit.fire(CallDeadline)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    events = check_rest(session)
    ended = next(event for event in events if event.kind == "tool.ended")
    assert got[0].outcome == "interrupted"
    assert ended.data["outcome"] == "interrupted"
    assert ended.data["provenance"]["source"] == "tool.deadline"
    assert receipt.provenance is None
    assert [event.data["text"] for event in events if event.kind == "text"] == ["went on"]


@pytest.mark.parametrize(("name", "arguments"), [("nothing", {}), ("typed", {"count": "many"}), ("typed", {})])
def test_l2_a_call_that_cannot_be_right_never_starts(kit: Kit, name: str, arguments: dict[str, Any]) -> None:
    ran: list[int] = []
    got: list[ToolResult] = []

    @tool(isolation="thread")
    def typed(count: int) -> str:
        ran.append(count)
        return ""

    session = kit.session(lambda turn: got.append(turn.call(name, **arguments)), tools=[typed])
    session.receipt(say(session), timeout=WAIT_S)
    assert [(result.outcome, result.is_error) for result in got] == [("not_started", True)]
    assert ran == []
    assert list(outcomes(session).values()) == ["not_started"]


def test_l2_a_call_that_waits_for_the_barrier_is_void_after_a_stop(kit: Kit) -> None:
    ran: list[str] = []
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        inside.set()
        gate.wait()
        return ""

    @tool(isolation="thread")
    def touch() -> str:
        ran.append("touch")
        return ""

    def agent(turn: Turn) -> None:
        turn.call(turn.inputs[-1].content)

    session = kit.session(agent, tools=[deaf, touch], kill_s=30.0)
    say(session, "deaf")
    assert inside.wait(WAIT_S)
    waiting = say(session, "touch")
    until(lambda: any(e.kind == "tool.requested" and e.run_id == waiting for e in log(session)), "the request")
    assert session.status().barrier == ("call deaf",)
    stop(session)
    receipt = session.receipt(waiting, timeout=WAIT_S)
    gate.set()
    check_rest(session)
    assert ran == []
    assert "not_started" in outcomes(session).values()
    assert receipt.complete


def test_l2_a_call_that_waits_starts_when_the_barrier_opens(kit: Kit) -> None:
    order: list[str] = []
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        inside.set()
        gate.wait()
        order.append("deaf ended")
        return ""

    @tool(isolation="thread")
    def touch() -> str:
        order.append("touch began")
        return ""

    session = kit.session(lambda turn: turn.call(turn.inputs[-1].content), tools=[deaf, touch], kill_s=30.0)
    say(session, "deaf")
    assert inside.wait(WAIT_S)
    run_id = say(session, "touch")
    until(lambda: any(e.kind == "tool.requested" and e.run_id == run_id for e in log(session)), "the request")
    gate.set()
    session.receipt(run_id, timeout=WAIT_S)
    assert order == ["deaf ended", "touch began"]


@pytest.mark.parametrize(("barrier", "outcome"), [("forced", "finished"), ("strict", "not_started")])
def test_l2_at_the_kill_deadline_the_barrier_is_forced_or_refuses(kit: Kit, barrier: str, outcome: str) -> None:
    got: list[ToolResult] = []
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        inside.set()
        gate.wait()
        return ""

    @tool(isolation="thread")
    def touch() -> str:
        return ""

    def agent(turn: Turn) -> None:
        got.append(turn.call(turn.inputs[-1].content))

    session = kit.session(agent, tools=[deaf, touch], barrier=barrier, grace_s=0.05, kill_s=0.1)
    first = session.ask(NewMessage(content="deaf"))
    assert inside.wait(WAIT_S)
    second = say(session, "touch")
    session.receipt(second, timeout=WAIT_S)
    assert [result.outcome for result in got] == [outcome]
    assert not session.receipt(first.run_id, timeout=WAIT_S).complete
    forced = [event for event in log(session) if event.kind == "session.barrier_forced"]
    assert len(forced) == (1 if barrier == "forced" else 0)
    gate.set()
    settled(session)
