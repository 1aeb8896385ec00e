"""Agents that put the answers of models on record: what a Stop, an exception or a refusal leaves of one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from actors import (
    AsyncTurn,
    CallPart,
    CancelToken,
    Invalid,
    NewMessage,
    Outcome,
    QueueFull,
    Stop,
    ToolResult,
    Turn,
    tool,
)
from actors.errors import RunCancelled
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, TextData
from actors.gate.credit import Credit
from actors.gate.pending import settle
from actors.messages import AnswerLeft, CallRequested, Said
from actors.model import Address, Message, Provenance
from actors.plugin.answers import ANSWERS_OPEN_MAX, BLOCK_MAX_BYTES, CALLS_UNSENT_MAX
from actors.plugin.rendering import render_anthropic
from actors.plugin.turn_core import TurnCore
from actors.thread import Thread
from tests.kit import WAIT_S, Kit, check_rest, log, say, until
from tests.provider_checker import check_anthropic

THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
STOPPED = Provenance(source="user.test", reason="enough", initiated_at=1.0)


class Parent:
    """What a run's actor is to a turn: it keeps what it is told."""

    def __init__(self, events: int = 1000) -> None:
        self.told: list[Any] = []
        self.token = CancelToken(lambda callback: callback())
        self.core = TurnCore(
            self.told.append,
            Address("s", 1, "r"),
            self.token,
            Credit(events, 1_000_000),
            Thread(),
            (),
            lambda: f"call_{len(self.told)}",
            lambda name, arguments: "no such tool" if name == "none" else None,
            1000,
            wall=lambda: 1.0,
        )

    def kinds(self) -> list[type]:
        """What it was told, and of what was said its data."""
        return [type(one.data) if isinstance(one, Said) else type(one) for one in self.told]

    def settle(self) -> None:
        """Give each call its result, as its session does when the answer has ended."""
        for request in self.told:
            if isinstance(request, CallRequested) and request.reply is not None:
                settle(request.reply, ToolResult(Outcome.FINISHED, f"of {request.tool}"))


def test_what_is_said_in_an_answer_is_published_in_its_order_and_is_in_the_thread() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        async with turn.answer(provider="anthropic", model="m-1") as answer:
            await answer.block(THINKING)
            first = answer.call("t", {"x": 1}, provider_id="toolu_1")
            await answer.text("and")
            second = answer.call("u", {})
            answer.usage(input=3)
            answer.usage(output=4, input=5)
            answer.stop_reason = "tool_use"
            answer.provider_id = "msg_1"
        kinds = parent.kinds()
        assert kinds == [AnswerBegunData, BlockData, CallRequested, TextData, CallRequested, AnswerEndedData]
        told: list[Any] = [one.data if isinstance(one, Said) else one for one in parent.told]
        begun, block, asked, text, _, ended = told
        assert begun == AnswerBegunData(answer=begun.answer, provider="anthropic", model="m-1")
        assert block == BlockData(answer=begun.answer, data=THINKING)
        assert (asked.answer, asked.provider_id, asked.arguments) == (begun.answer, "toolu_1", {"x": 1})
        assert text == TextData(text="and", answer=begun.answer)
        assert ended == AnswerEndedData(
            answer=begun.answer, usage={"input": 5, "output": 4}, stop="tool_use", provider_id="msg_1"
        )
        parent.settle()
        assert [result.content for result in await asyncio.gather(second, first)] == ["of u", "of t"]
        said, *results = turn.messages
        assert [type(part).__name__ for part in said.parts] == ["BlockPart", "CallPart", "TextPart", "CallPart"]
        assert [result.content for result in results] == ["of t", "of u"]

    asyncio.run(scene())


def test_a_plain_agents_answer_is_the_same() -> None:
    parent = Parent()
    turn = Turn(parent.core)
    with turn.answer(provider="openai") as answer:
        answer.text("hello")
        answer.block({"reasoning_content": "hm"})
        call = answer.call("t", {})
        with pytest.raises(Invalid):
            call.result()
    kinds = parent.kinds()
    assert kinds == [AnswerBegunData, TextData, BlockData, CallRequested, AnswerEndedData]
    parent.settle()
    assert call.result().content == "of t"
    assert turn.messages[0].status == "complete"


def test_an_answer_that_is_left_by_an_exception_is_partial_and_its_unsent_calls_were_never_asked_for() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        try:
            async with turn.answer(provider="p") as answer:
                sent = answer.call("t", {})
                await answer.text("half")
                unsent = answer.call("u", {})
                raise ConnectionError
        except ConnectionError:
            pass
        assert parent.kinds() == [AnswerBegunData, CallRequested, TextData, AnswerLeft]
        with pytest.raises(Invalid):
            await unsent
        parent.settle()
        assert (await sent).content == "of t"
        assert turn.messages[0].status == "partial"
        with pytest.raises(Invalid):
            await answer.text("late")
        with pytest.raises(Invalid):
            answer.call("late", {})

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["text", "end", "begin"])
def test_an_answer_whose_wait_for_credit_is_cancelled_is_left(where: str) -> None:
    async def scene() -> None:
        parent = Parent(events=1 if where != "begin" else 0)
        turn = AsyncTurn(parent.core)

        async def work() -> None:
            async with turn.answer(provider="p") as answer:
                if where == "text":
                    await answer.text("x")

        task = asyncio.create_task(work())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert parent.kinds() == ([] if where == "begin" else [AnswerBegunData, AnswerLeft])
        # Neither credit nor a place is lost.
        parent.core.credit.give(10)
        assert parent.core._answers_open == 0

    asyncio.run(scene())


def test_a_part_that_waits_for_credit_while_its_answer_ends_is_refused_and_costs_nothing() -> None:
    async def scene() -> None:
        parent = Parent(events=1)
        turn = AsyncTurn(parent.core)
        answer = await turn.answer(provider="p").__aenter__()
        late = asyncio.create_task(answer.text("late"))
        for _ in range(3):
            await asyncio.sleep(0)
        await answer.__aexit__(ConnectionError, ConnectionError(), None)
        parent.core.credit.give(10)
        with pytest.raises(Invalid):
            await late
        assert parent.kinds() == [AnswerBegunData, AnswerLeft]
        assert turn.messages == []
        await asyncio.wait_for(turn.emit("behind"), WAIT_S)

    asyncio.run(scene())


def test_l8_after_the_end_of_the_run_each_method_of_an_answer_raises() -> None:
    async def scene() -> None:
        parent = Parent()
        turn = AsyncTurn(parent.core)
        answer = await turn.answer(provider="p").__aenter__()
        call = answer.call("t", {})
        await answer.text("x")
        parent.token.cancel(STOPPED)
        told = len(parent.told)
        for act in (
            lambda: answer.text("y"),
            lambda: answer.block({}),
            lambda: call,
            lambda: answer.__aexit__(None, None, None),
            lambda: turn.answer(provider="p").__aenter__(),
        ):
            with pytest.raises(asyncio.CancelledError) as raised:
                await act()
            assert type(raised.value) is asyncio.CancelledError
        with pytest.raises(asyncio.CancelledError) as raised:
            answer.call("t", {})
        assert type(raised.value) is asyncio.CancelledError
        assert len(parent.told) == told

    asyncio.run(scene())
    parent = Parent()
    turn = Turn(parent.core)
    answer = turn.answer().__enter__()
    call = answer.call("t", {})
    parent.token.cancel(STOPPED)
    for act in (
        lambda: answer.text("x"),
        lambda: answer.call("t", {}),
        call.result,
        lambda: answer.__exit__(None, None, None),
        lambda: turn.answer().__enter__(),
    ):
        with pytest.raises(RunCancelled):
            act()


@pytest.mark.parametrize(
    "data",
    [
        {"signature": "\ud800"},
        {"thing": object()},
        {"text": "x" * BLOCK_MAX_BYTES},
        [1],
        "text",
        {"deep": None},
    ],
)
def test_a_block_that_would_not_be_given_back_as_it_came_is_refused(data: Any) -> None:
    if isinstance(data, dict) and "deep" in data:
        for _ in range(3000):
            data = {"deep": data}
    parent = Parent()
    with Turn(parent.core).answer(provider="p") as answer, pytest.raises(Invalid):
        answer.block(data)
    assert parent.kinds() == [AnswerBegunData, AnswerEndedData]


def test_a_block_belongs_to_a_provider() -> None:
    parent = Parent()
    with Turn(parent.core).answer() as answer:
        with pytest.raises(Invalid):
            answer.block({})
        answer.block({}, provider="p")
    assert parent.told[1].data.provider == "p"


@pytest.mark.parametrize("counts", [{"input": -1}, {"input": 1.5}, {"input": True}, {"input": 2**63}])
def test_usage_is_counted_in_whole_numbers(counts: dict[str, Any]) -> None:
    with Turn(Parent().core).answer() as answer, pytest.raises(Invalid):
        answer.usage(**counts)


def test_an_answer_begins_once_and_so_many_are_open_at_most() -> None:
    parent = Parent()
    turn = Turn(parent.core)
    answers = [turn.answer() for _ in range(ANSWERS_OPEN_MAX)]
    for answer in answers:
        answer.__enter__()
    assert len({answer.id for answer in answers}) == len(answers)
    with pytest.raises(QueueFull):
        turn.answer().__enter__()
    answers[0].__exit__(None, None, None)
    with pytest.raises(Invalid):
        answers[0].__enter__()
    turn.answer().__enter__()


def test_so_many_calls_wait_to_be_asked_for_at_most() -> None:
    async def scene() -> None:
        async with AsyncTurn(Parent().core).answer() as answer:
            for _ in range(CALLS_UNSENT_MAX):
                answer.call("t", {})
            with pytest.raises(QueueFull):
                answer.call("t", {})
            await answer.text("x")
            answer.call("t", {})

    asyncio.run(scene())


# ── In a session ──────────────────────────────────────────────────────────────────────────────────────


@tool(isolation="thread")
def note(text: str) -> str:
    return f"noted {text}"


def kinds_of(events: list[Any]) -> list[str]:
    wanted = {"answer.begun", "answer.ended", "block", "text", "tool.requested", "tool.started", "tool.ended"}
    return [event.kind for event in events if event.kind in wanted]


def test_l2_the_calls_of_an_answer_start_when_it_has_ended_also_where_one_is_refused(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        async with turn.answer(provider="anthropic") as answer:
            await answer.block(THINKING)
            calls = [answer.call("none", {}), answer.call("note", {"text": "a"}), answer.call("note", {"text": "b"})]
            await answer.text("so")
        return [result.outcome for result in await asyncio.gather(*calls)]

    session = kit.session(agent, tools=[note])
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).result == ["not_started", "finished", "finished"]
    kinds = kinds_of(check_rest(session))
    assert kinds[:8] == [
        "answer.begun",
        "block",
        "tool.requested",
        "tool.ended",
        "tool.requested",
        "tool.requested",
        "text",
        "answer.ended",
    ]
    said, *results = session.thread()[1:]
    asked = [part.id for part in said.parts if isinstance(part, CallPart)]
    assert asked == [result.tool_call_id for result in results]
    assert [result.outcome for result in results] == ["not_started", "finished", "finished"]


@pytest.mark.parametrize("how", ["stop", "message"])
def test_l6_an_answer_that_is_cut_off_is_partial_and_its_calls_never_started(kit: Kit, how: str) -> None:
    said = threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        if len(turn.messages) > 1:
            return
        async with turn.answer(provider="anthropic") as answer:
            await answer.block(THINKING)
            answer.call("note", {"text": "a"}, provider_id="toolu_1")
            await answer.text("half a sen")
            said.set()
            await asyncio.Event().wait()

    session = kit.session(agent, tools=[note])
    run = say(session)
    assert said.wait(WAIT_S)
    until(lambda: any(event.kind == "text" for event in log(session)), "the text is in the log")
    if how == "stop":
        session.ask(Stop(source="user.test", reason="enough"), timeout=WAIT_S)
    else:
        session.ask(NewMessage(content="no, this"), timeout=WAIT_S)
    session.receipt(run, timeout=WAIT_S)
    check_rest(session)
    _, answer, result, note_, *_ = session.thread()
    assert (answer.status, answer.content, result.outcome, note_.role) == (
        "partial",
        "half a sen",
        "not_started",
        "note",
    )
    rendered = render_anthropic(session.thread(), provider="anthropic", thinking=True)
    check_anthropic(rendered, thinking=True, as_said=True)
    assert [block["type"] for block in rendered[1]["content"]] == ["thinking", "tool_use", "text"]


def test_an_answer_that_is_left_lets_its_run_continue_and_its_calls_are_ended(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[str]:
        for attempt in range(2):
            try:
                async with turn.answer(provider="p") as answer:
                    call = answer.call("note", {"text": "a"})
                    await answer.text(f"attempt {attempt}")
                    if attempt == 0:
                        raise ConnectionError
            except ConnectionError:
                first = await call
        return [first.outcome, first.content, (await call).outcome]

    session = kit.session(agent, tools=[note])
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    outcome, content, second = session.run(run).result
    assert (outcome, second) == ("not_started", "finished")
    assert "cut off" in content
    check_rest(session)
    assert [(m.role, m.status) for m in session.thread()[1:]] == [
        ("assistant", "partial"),
        ("tool", "complete"),
        ("assistant", "complete"),
        ("tool", "complete"),
    ]


def test_a_plain_agents_batch_runs_in_a_session(kit: Kit) -> None:
    def agent(turn: Turn) -> list[str]:
        with turn.answer(provider="p", model="m") as answer:
            answer.text("two")
            calls = [answer.call("note", {"text": text}) for text in "ab"]
            answer.usage(input=1, output=2)
        return [call.result().content for call in calls]

    session = kit.session(agent, tools=[note])
    run = say(session)
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).result == ["noted a", "noted b"]
    check_rest(session)
    said = session.thread()[1]
    assert said.answer is not None
    assert (said.answer.model, said.answer.usage) == ("m", {"input": 1, "output": 2})


def test_a_message_that_steers_does_not_come_between_the_parts_of_an_answer(kit: Kit) -> None:
    steered: list[tuple[Message, ...]] = []
    asked, sent = threading.Event(), threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        async with turn.answer(provider="p") as answer:
            await answer.text("one ")
            asked.set()
            await asyncio.to_thread(sent.wait, WAIT_S)
            steered.append(await turn.steering())
            await answer.text("two")
        steered.append(await turn.steering())

    session = kit.session(agent)
    run = say(session)
    assert asked.wait(WAIT_S)
    session.ask(NewMessage(content="left", policy="steer"), timeout=WAIT_S)
    sent.set()
    session.receipt(run, timeout=WAIT_S)
    assert [[message.content for message in one] for one in steered] == [[], ["left"]]
    check_rest(session)
    assert [message.content for message in session.thread()] == [session.thread()[0].content, "one two", "left"]
