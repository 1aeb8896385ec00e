"""Agents that put the answers of models on record: what a Stop, an exception or a refusal leaves of one.

The first tests are of the turn alone: in the supervisor's process, and of the Python runtime in a host.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors import CallPart, NewMessage, Stop, tool
from actors.plugin.answers import ANSWERS_OPEN_MAX, BLOCK_MAX_BYTES, CALLS_UNSENT_MAX, USAGE_KINDS_MAX
from actors.plugin.rendering import render_anthropic
from supervisor import SessionHandle
from supervisor.agent import Agent
from tests import answering_agents
from tests.answer_kit import InHost, Inside
from tests.kit import WAIT_S, Kit, check_rest, log, say, until
from tests.provider_checker import check_anthropic

THINKING = answering_agents.THINKING
PLACES: list[Any] = [Inside, InHost]


@pytest.fixture(params=PLACES, ids=["inside", "host"])
def place(request: pytest.FixtureRequest) -> Any:
    """Where the agent runs: makes what its turn tells."""
    return request.param


def kinds(parent: Inside | InHost) -> list[str]:
    return [kind for kind, _ in parent.told()]


def test_what_is_said_in_an_answer_is_published_in_its_order_and_is_in_the_thread(place: Any) -> None:
    async def scene() -> None:
        parent = place()
        turn = parent.aio()
        async with turn.answer(provider="anthropic", model="m-1") as answer:
            await answer.block(THINKING)
            first = answer.call("t", {"x": 1}, provider_id="toolu_1")
            await answer.text("and")
            second = answer.call("u", {})
            answer.usage(input=3)
            answer.usage(output=4, input=5)
            answer.stop_reason = "tool_use"
            answer.provider_id = "msg_1"
        assert kinds(parent) == ["answer.begin", "block", "call", "emit", "call", "answer.end"]
        begun, block, asked, text, unnamed, ended = (data for _, data in parent.told())
        assert {data["answer"] for _, data in parent.told()} == {begun["answer"]}
        assert (begun["provider"], begun["model"]) == ("anthropic", "m-1")
        assert (block["data"], block.get("provider")) == (THINKING, None)
        assert (asked["tool"], asked["arguments"], asked["provider_id"]) == ("t", {"x": 1}, "toolu_1")
        assert (text["text"], unnamed.get("provider_id")) == ("and", None)
        assert (ended["usage"], ended["stop"], ended["provider_id"]) == (
            {"input": 5, "output": 4},
            "tool_use",
            "msg_1",
        )
        parent.settle()
        assert [result.content for result in await asyncio.gather(second, first)] == ["of u", "of t"]
        said, *results = turn.messages
        assert [type(part).__name__ for part in said.parts] == ["BlockPart", "CallPart", "TextPart", "CallPart"]
        assert [part.data for part in said.parts if hasattr(part, "data")] == [THINKING]
        assert [(part.id, part.provider_id) for part in said.parts if hasattr(part, "name")] == [
            (first.id, "toolu_1"),
            (second.id, None),
        ]
        assert (said.answer.provider, said.answer.model, said.answer.stop) == ("anthropic", "m-1", "tool_use")
        assert (said.answer.usage, said.answer.provider_id) == ({"input": 5, "output": 4}, "msg_1")
        assert [result.content for result in results] == ["of t", "of u"]

    asyncio.run(scene())


def test_what_an_agent_says_besides_an_answer_is_a_message_of_its_own(place: Any) -> None:
    async def scene() -> None:
        parent = place()
        turn = parent.aio()
        await turn.emit("before")
        async with turn.answer(provider="p") as answer, turn.answer(provider="q") as other:
            await answer.text("one ")
            await turn.emit("besides")
            await other.text("other")
            await answer.text("two")
        await turn.emit(" and behind")
        assert [message.content for message in turn.messages] == ["before", "one two", "other", "besides and behind"]
        assert [[part.text for part in message.parts] for message in turn.messages] == [[], ["one two"], ["other"], []]

    asyncio.run(scene())


def test_a_plain_agents_answer_is_the_same(place: Any) -> None:
    parent = place()
    turn = parent.turn()
    with turn.answer(provider="openai") as answer:
        answer.text("hello")
        answer.block({"reasoning_content": "hm"})
        call = answer.call("t", {})
        with pytest.raises(parent.errors.Invalid):
            call.result()
    assert kinds(parent) == ["answer.begin", "emit", "block", "call", "answer.end"]
    parent.settle()
    assert call.result().content == "of t"
    assert turn.messages[0].status == "complete"


def test_an_answer_that_is_left_by_an_exception_is_partial_and_its_unsent_calls_were_never_asked_for(
    place: Any,
) -> None:
    async def scene() -> None:
        parent = place()
        turn = parent.aio()
        try:
            async with turn.answer(provider="p") as answer:
                sent = answer.call("t", {})
                await answer.text("half")
                unsent = answer.call("u", {})
                answer.usage(input=9)
                raise ConnectionError
        except ConnectionError:
            pass
        assert kinds(parent) == ["answer.begin", "call", "emit", "answer.leave"]
        assert len({data["answer"] for _, data in parent.told()}) == 1
        assert parent.told()[-1][1]["usage"] == {"input": 9}
        with pytest.raises(parent.errors.Invalid):
            await unsent
        parent.settle()
        assert (await sent).content == "of t"
        assert turn.messages[0].status == "partial"
        with pytest.raises(parent.errors.Invalid):
            await answer.text("late")
        with pytest.raises(parent.errors.Invalid):
            answer.call("late", {})
        assert parent.open_answers() == 0

    asyncio.run(scene())


@pytest.mark.parametrize("where", ["text", "end", "begin"])
def test_an_answer_whose_wait_for_credit_is_cancelled_is_left(place: Any, where: str) -> None:
    async def scene() -> None:
        parent = place(events=1 if where != "begin" else 0)
        turn = parent.aio()

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
        assert kinds(parent) == ([] if where == "begin" else ["answer.begin", "answer.leave"])
        # Neither credit nor a place is lost.
        parent.give(1)
        await asyncio.wait_for(turn.emit("behind"), WAIT_S)
        assert parent.open_answers() == 0

    asyncio.run(scene())


def test_a_part_that_waits_for_credit_while_its_answer_ends_is_refused_and_costs_nothing(place: Any) -> None:
    async def scene() -> None:
        parent = place(events=1)
        turn = parent.aio()
        answer = await turn.answer(provider="p").__aenter__()
        late = asyncio.create_task(answer.text("late"))
        for _ in range(3):
            await asyncio.sleep(0)
        await answer.__aexit__(ConnectionError, ConnectionError(), None)
        parent.give(1)
        with pytest.raises(parent.errors.Invalid):
            await late
        assert kinds(parent) == ["answer.begin", "answer.leave"]
        assert turn.messages == []
        await asyncio.wait_for(turn.emit("behind"), WAIT_S)

    asyncio.run(scene())


def test_a_call_that_waits_for_credit_while_its_answer_ends_is_not_requested_and_costs_nothing(place: Any) -> None:
    async def scene() -> None:
        parent = place(events=1)
        turn = parent.aio()
        answer = await turn.answer(provider="p").__aenter__()
        call = answer.call("t", {})
        late = asyncio.create_task(answer.text("late"))
        for _ in range(3):
            await asyncio.sleep(0)
        await answer.__aexit__(ConnectionError, ConnectionError(), None)
        parent.give(1)
        with pytest.raises(parent.errors.Invalid):
            await late
        with pytest.raises(parent.errors.Invalid):
            await call
        assert kinds(parent) == ["answer.begin", "answer.leave"]
        await asyncio.wait_for(turn.emit("behind"), WAIT_S)

    asyncio.run(scene())


def test_a_call_from_another_thread_that_waits_for_credit_while_its_answer_ends_is_refused(place: Any) -> None:
    parent = place(events=2)
    turn = parent.turn()
    answer = turn.answer(provider="p").__enter__()
    turn.emit("it takes the credit")
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            answer.call("t", {})
        except parent.errors.CountermandError as error:
            raised.append(error)

    other = threading.Thread(target=ask)
    other.start()
    until(parent.waits_for_credit, "the wait for credit")
    answer.__exit__(ConnectionError, ConnectionError(), None)
    parent.give(1)
    other.join(WAIT_S)
    assert [type(error) for error in raised] == [parent.errors.Invalid]
    assert kinds(parent) == ["answer.begin", "emit", "answer.leave"]
    assert parent.open_answers() == 0
    turn.emit("behind")


def test_l8_after_the_end_of_the_run_each_method_of_an_answer_raises(place: Any) -> None:
    async def scene() -> None:
        parent = place()
        turn = parent.aio()
        answer = await turn.answer(provider="p").__aenter__()
        call = answer.call("t", {})
        await answer.text("x")
        parent.cancel()
        told = len(parent.told())
        acts: list[Callable[[], Any]] = [
            lambda: answer.text("y"),
            lambda: answer.block({}),
            lambda: call,
            lambda: answer.__aexit__(None, None, None),
            lambda: turn.answer(provider="p").__aenter__(),
        ]
        for act in acts:
            with pytest.raises(asyncio.CancelledError) as raised:
                await act()
            assert type(raised.value) is asyncio.CancelledError
        with pytest.raises(asyncio.CancelledError) as raised:
            answer.call("t", {})
        assert type(raised.value) is asyncio.CancelledError
        assert len(parent.told()) == told

    asyncio.run(scene())
    parent = place()
    turn = parent.turn()
    answer = turn.answer().__enter__()
    call = answer.call("t", {})
    parent.cancel()
    for act in (
        lambda: answer.text("x"),
        lambda: answer.call("t", {}),
        call.result,
        lambda: answer.__exit__(None, None, None),
        lambda: turn.answer().__enter__(),
    ):
        with pytest.raises(parent.errors.RunCancelled):
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
        {"number": float("nan")},
    ],
)
def test_a_block_that_would_not_be_given_back_as_it_came_is_refused(place: Any, data: Any) -> None:
    if isinstance(data, dict) and "deep" in data:
        for _ in range(3000):
            data = {"deep": data}
    parent = place()
    with parent.turn().answer(provider="p") as answer, pytest.raises(parent.errors.Invalid):
        answer.block(data)
    assert kinds(parent) == ["answer.begin", "answer.end"]


def test_a_block_belongs_to_a_provider(place: Any) -> None:
    parent = place()
    turn = parent.turn()
    with turn.answer() as answer:
        with pytest.raises(parent.errors.Invalid):
            answer.block({})
        answer.block({}, provider="p")
    assert parent.told()[1][1]["provider"] == "p"
    assert turn.messages[0].parts[0].provider == "p"


@pytest.mark.parametrize("counts", [{"input": -1}, {"input": 1.5}, {"input": True}, {"input": 2**63}])
def test_usage_is_counted_in_whole_numbers(place: Any, counts: dict[str, Any]) -> None:
    parent = place()
    with parent.turn().answer() as answer, pytest.raises(parent.errors.Invalid):
        answer.usage(**counts)


def test_usage_is_of_so_many_kinds_at_most_whatever_they_are_called(place: Any) -> None:
    parent = place()
    with parent.turn().answer() as answer:
        answer.usage(self=1, **{f"kind {number}": number for number in range(USAGE_KINDS_MAX - 1)})
        with pytest.raises(parent.errors.Invalid):
            answer.usage(more=1)
    usage = parent.told()[-1][1]["usage"]
    assert (len(usage), usage["self"], "more" in usage) == (USAGE_KINDS_MAX, 1, False)


@pytest.mark.parametrize("name", ["provider", "model", "stop_reason", "provider_id", "of a call"])
def test_a_name_that_cannot_be_kept_as_it_is_is_refused(place: Any, name: str) -> None:
    parent, long = place(), "x" * 257

    def answer() -> None:
        with parent.turn().answer(**({name: long} if name in ("provider", "model") else {})) as answer:
            if name == "of a call":
                answer.call("t", {}, provider_id=long)
            setattr(answer, name, long)

    with pytest.raises(parent.errors.Invalid):
        answer()
    assert parent.open_answers() == 0


def test_an_answer_begins_once_and_so_many_are_open_at_most(place: Any) -> None:
    parent = place()
    turn = parent.turn()
    answers = [turn.answer() for _ in range(ANSWERS_OPEN_MAX)]
    for answer in answers:
        answer.__enter__()
    assert len({data["answer"] for _, data in parent.told()}) == len(answers)
    with pytest.raises(parent.errors.QueueFull):
        turn.answer().__enter__()
    answers[0].__exit__(None, None, None)
    with pytest.raises(parent.errors.Invalid):
        answers[0].__enter__()
    turn.answer().__enter__()


def test_so_many_calls_wait_to_be_asked_for_at_most(place: Any) -> None:
    async def scene() -> None:
        parent = place()
        async with parent.aio().answer() as answer:
            for _ in range(CALLS_UNSENT_MAX):
                answer.call("t", {})
            with pytest.raises(parent.errors.QueueFull):
                answer.call("t", {})
            await answer.text("x")
            answer.call("t", {})

    asyncio.run(scene())


# ── In a session ──────────────────────────────────────────────────────────────────────────────────────


@tool(isolation="task")
async def note(text: str) -> str:
    if text == "hold":
        await asyncio.Event().wait()
    return f"noted {text}"


@pytest.fixture(params=["inside", "host"])
def hosted(request: pytest.FixtureRequest) -> bool:
    """Whether the agent of a session runs in a host."""
    return bool(request.param == "host")


def session_of(kit: Kit, name: str, *, hosted: bool) -> SessionHandle:
    """A session with an agent of `answering_agents`."""
    spec = Agent(run=f"answering_agents:{name}", path=[str(Path(__file__).parent)], env={kit.mark: "1"}, spares=0)
    return kit.start(spec if hosted else getattr(answering_agents, name), tools=[note]).session("s1")


def result_of(session: SessionHandle, content: str) -> Any:
    """Run a message to its end: what its agent returned."""
    run = say(session, content)
    session.receipt(run, timeout=WAIT_S)
    info = session.run(run)
    assert (info.status, info.error) == ("completed", None)
    return info.result


def kinds_of(events: list[Any]) -> list[str]:
    wanted = {"answer.begun", "answer.ended", "block", "text", "tool.requested", "tool.started", "tool.ended"}
    return [event.kind for event in events if event.kind in wanted]


def test_l2_the_calls_of_an_answer_start_when_it_has_ended_also_where_one_is_refused(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    assert result_of(session, "batch") == ["not_started", "finished", "finished"]
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
def test_l6_an_answer_that_is_cut_off_is_partial_and_its_calls_never_started(kit: Kit, hosted: bool, how: str) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    run = say(session, "half")
    until(lambda: any(event.kind == "text" for event in log(session)), "the text is in the log")
    if how == "stop":
        session.ask(Stop(source="user.test", reason="enough"), timeout=WAIT_S)
    else:
        session.ask(NewMessage(content="nothing"), timeout=WAIT_S)
    assert session.receipt(run, timeout=WAIT_S).complete
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


def test_an_answer_that_is_left_lets_its_run_continue_and_its_calls_are_ended(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    outcome, content, second, statuses = result_of(session, "left")
    assert (outcome, second) == ("not_started", "finished")
    assert "cut off" in content
    check_rest(session)
    assert [(m.role, m.status) for m in session.thread()[1:]] == [
        ("assistant", "partial"),
        ("tool", "complete"),
        ("assistant", "complete"),
        ("tool", "complete"),
    ]
    # What the agent sees is what the log has.
    assert statuses == [message.status for message in session.thread()]


def test_a_plain_agents_batch_runs_in_a_session(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "plain", hosted=hosted)
    assert result_of(session, "go") == ["noted a", "noted b"]
    check_rest(session)
    said = session.thread()[1]
    assert said.answer is not None
    assert (said.answer.model, said.answer.usage) == ("m", {"input": 1, "output": 2})


def test_a_message_that_steers_does_not_come_between_the_parts_of_an_answer(
    kit: Kit, hosted: bool, tmp_path: Path
) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    sent = tmp_path / "sent"
    run = say(session, f"steer {sent}")
    until(lambda: any(event.kind == "text" for event in log(session)), "the answer has begun")
    session.ask(NewMessage(content="left", policy="steer"), timeout=WAIT_S)
    sent.touch()
    session.receipt(run, timeout=WAIT_S)
    assert session.run(run).result == [[], ["left"]]
    check_rest(session)
    assert [message.content for message in session.thread()] == [session.thread()[0].content, "one two", "left"]


def test_a_call_of_an_answer_that_is_given_up_has_its_result_before_what_is_said_next(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    content, seen = result_of(session, "given_up")
    assert content == "noted b"
    check_rest(session)
    assert seen == [[message.role, message.content] for message in session.thread()[1:]]
    assert [role for role, _ in seen] == ["assistant", "tool", "tool", "assistant"]
    assert session.thread()[2].outcome != "finished"


def test_an_answer_may_be_longer_than_the_credit_of_its_run(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    parts, chars = result_of(session, "many")
    check_rest(session)
    said = session.thread()[1]
    assert (parts, chars) == (len(said.parts), len(said.content))
    assert parts == 1_200
    assert chars > 100_000


def test_l14_blocks_may_be_as_large_as_the_limit_says(kit: Kit, hosted: bool) -> None:
    session = session_of(kit, "agent", hosted=hosted)
    sizes = result_of(session, f"large {BLOCK_MAX_BYTES}")
    check_rest(session)
    parts = session.thread()[1].parts
    assert sizes == [BLOCK_MAX_BYTES - 8] * 3
    assert [len(part.data["x"]) for part in parts if part.type == "block"] == sizes
