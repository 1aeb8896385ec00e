"""The turn, as its agent sees it: what a wait that is given up leaves behind is nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pykka import ActorDeadError

from actors import AsyncTurn, CancelToken, Invalid, NewMessage, Outcome, Stop, ToolResult, Turn, tool
from actors.errors import RunCancelled
from actors.events import TextData
from actors.gate.credit import Credit
from actors.gate.pending import settle
from actors.messages import CallGivenUp, CallRequested, SteeringRequested
from actors.model import Address, Event, Message, Role
from actors.plugin.turn_core import TurnCore
from actors.thread import Thread
from supervisor import Config, Supervisor
from tests.kit import WAIT_S, Kit, ask_stop, check_rest, say


def message(identity: str) -> Message:
    """A message that steers."""
    return Message(identity, Role.USER, "steer me", 1, "r", origin="user")


NOW = 1_750_000_000.0


class Parent:
    """What a run's actor is to a turn: it keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.token = CancelToken(lambda callback: callback())
        self.core = TurnCore(
            self.told.append,
            Address("s", 1, "r"),
            self.token,
            Credit(1, 1000),
            Thread(),
            (),
            lambda: f"call_{len(self.told)}",
            lambda name, arguments: None,
            1000,
            wall=lambda: NOW,
        )


async def begun(work: Any, told: list[Any]) -> asyncio.Task[Any]:
    """Start a task that tells its actor something and waits."""
    before = len(told)
    task: asyncio.Task[Any] = asyncio.create_task(work)
    await asyncio.sleep(0)
    assert len(told) == before + 1
    return task


def test_what_steering_brings_is_in_the_thread_though_its_waiter_has_left() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        task = await begun(turn.steering(), parent.told)
        task.cancel()
        await asyncio.wait([task])
        (request,) = parent.told
        assert isinstance(request, SteeringRequested)
        assert request.reply is not None
        settle(request.reply, (message("m1"),))
        assert [shown.content for shown in turn.messages] == ["steer me"]
        assert [shown.id for shown in turn.inputs] == ["m1"]

    asyncio.run(scene())


def test_the_result_of_a_call_is_in_the_thread_once_though_its_await_was_cancelled() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        task = await begun(turn.call("t"), parent.told)
        # As its session does, when it is durable.
        parent.core.credit.give(parent.told[0].size)
        waited = await begun(turn.call("u"), parent.told)
        task.cancel()
        # It says so, and the cancel goes on when the call has its result.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        *requests, given_up = parent.told
        assert given_up == CallGivenUp(requests[0].address)
        assert not task.done()
        for request in requests:
            assert isinstance(request, CallRequested)
            assert request.reply is not None
            settle(request.reply, ToolResult(Outcome.FINISHED, f"of {request.tool}"))
        await asyncio.wait([task])
        assert task.cancelled()
        assert (await waited).content == "of u"
        assert [shown.content for shown in turn.messages if shown.role == "tool"] == ["of t", "of u"]

    asyncio.run(scene())


def test_a_call_whose_coroutine_is_closed_is_given_up_without_a_wait() -> None:
    async def scene() -> None:
        parent = Parent()
        call = AsyncTurn(parent.core).call("t")
        call.send(None)
        call.close()
        request, given_up = parent.told
        assert given_up == CallGivenUp(request.address)

    asyncio.run(scene())


def test_an_emit_that_is_given_up_while_it_waits_takes_no_credit() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        await turn.emit("first")
        waiting = [asyncio.create_task(turn.emit("never")) for _ in range(3)]
        await asyncio.sleep(0)
        # The first was granted by then, and is cancelled before it hears of it.
        parent.core.credit.give(5)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await asyncio.wait_for(turn.emit("last"), 20)
        assert [said.data.text for said in parent.told] == ["first", "last"]

    asyncio.run(scene())


@pytest.mark.parametrize("name", [5, None, b"t", ["t"]])
def test_a_tool_is_called_by_a_text(name: Any) -> None:
    parent = Parent()
    with pytest.raises(Invalid):
        Turn(parent.core).call(name)
    assert not parent.told


def test_emits_that_were_cancelled_keep_no_agent_from_speaking(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        for _ in range(5):
            tasks = [asyncio.create_task(turn.emit("y" * 16_000)) for _ in range(200)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await turn.emit("still here")

    session = kit.session(agent)
    run = say(session)
    session.receipt(run, timeout=60)
    assert session.run(run).status == "completed"
    said = [event.data["text"] for event in check_rest(session) if event.kind == "text"]
    assert said.count("still here") == 5


# ── What the garbage collector closes ─────────────────────────────────────────────────────────────


def test_the_span_of_a_run_is_that_of_the_last_of_its_messages_which_has_one(kit: Kit) -> None:
    release, spans = kit.gate(), ["00-" + digit * 32 + "-b7ad6b7169203331-01" for digit in "abc"]

    def agent(turn: Turn) -> str | None:
        if turn.inputs[0].content == "first":
            release.wait()
        return turn.traceparent

    session = kit.session(agent)
    first = session.ask(NewMessage(content="first", traceparent=spans[0])).run_id
    for span in (spans[1], spans[2], None):
        waiting = session.ask(NewMessage(content="and", policy="enqueue", traceparent=span)).run_id
    last = session.ask(NewMessage(content="alone", policy="enqueue", merge=False)).run_id
    release.set()
    assert first is not None
    assert waiting is not None
    assert last is not None
    for run_id, expected in ((first, spans[0]), (waiting, spans[2]), (last, None)):
        session.receipt(run_id, timeout=WAIT_S)
        assert session.run(run_id).result == expected
    check_rest(session)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_l7_a_generator_that_waits_when_it_is_closed_holds_no_session_up(tmp_path: Path) -> None:
    """The collector closes it wherever it comes to run: here in a turn of the session that alone could answer it."""

    @tool(isolation="thread")
    def note(text: str) -> str:
        return text

    class Client:
        """As with an error and its traceback, what it holds is in a cycle."""

        stream: Iterator[str]

    closed = threading.Event()

    def leaves(turn: Turn) -> None:
        def stream() -> Iterator[str]:
            try:
                yield "x"
                yield "y"
            finally:
                closed.set()
                turn.call("note", text="closed")

        client = Client()
        client.stream = stream()
        client.__dict__["itself"] = client
        next(client.stream)
        del client
        turn.emit("said")
        turn.cancel_token.wait()

    def collects(_: str, events: Sequence[Event]) -> None:
        if any(event.kind == "text" for event in events):
            gc.collect()

    config = Config(state_dir=tmp_path, agent="leaves", agents={"leaves": leaves}, tools=[note], grace_s=0.3)
    gc.disable()
    try:
        with Supervisor.start(config, taps=[collects]) as supervisor:
            session, other = supervisor.session("s1"), supervisor.session("s2")
            session.ask(NewMessage(content="go"), timeout=WAIT_S)
            assert closed.wait(WAIT_S)
            for one in (session, other):
                ask_stop(one, Stop(source="user.test", reason="enough"))
    finally:
        gc.enable()


def test_l5_what_meets_an_actor_that_is_gone_says_when_that_was_found() -> None:
    def gone(message: object) -> None:
        raise ActorDeadError("gone")

    parent = Parent()
    parent.core._tell = gone
    with pytest.raises(RunCancelled) as raised:
        parent.core.said(TextData(text="x"), 1)
    assert (raised.value.provenance.source, raised.value.provenance.initiated_at) == ("actor.failure", NOW)
