"""Answers of models from a host: recorded in their order, and a host that lies about them fails alone and clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.events import AnswerBegunData, AnswerEndedData, BlockData, TextData
from actors.messages import AnswerLeft, CallRequested, Said
from actors.model import How, Message, MessageStatus, Outcome, Role, ToolCall
from actors.parts import AnswerInfo, BlockPart, CallPart, TextPart
from actors.plugin.answers import ANSWERS_OPEN_MAX, BLOCK_MAX_BYTES, USAGE_KINDS_MAX
from actors.plugin.rendering import render_anthropic, render_openai, render_responses
from supervisor.hosts.frames import TEXT_MAX_BYTES
from supervisor.hosts.lines import LINE_MAX_BYTES
from tests.host_kit import python_host
from tests.pool_kit import SETTINGS, Execution, Hosting, OneRun, Tree, hosting
from tests.process_kit import until

THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig==", "number": 1.0}


@pytest.fixture
def hosts() -> Iterator[Hosting]:
    with hosting() as made:
        yield made


def said(run: OneRun) -> list[Any]:
    """What was said, what was left, and the tools of the calls, in their order."""
    found: list[Any] = []
    for one in list(run.told):
        if isinstance(one, Said):
            found.append(one.data)
        elif isinstance(one, AnswerLeft):
            found.append(("left", one.answer, one.usage))
        elif isinstance(one, CallRequested):
            found.append((one.tool, one.provider_id, one.answer))
    return found


def commit(run: OneRun) -> None:
    """Give all credit back, as when everything is in the log."""
    for _ in range(SETTINGS.credit_events):
        run.credit.give(SETTINGS.credit_bytes)


def test_the_parts_of_an_answer_are_recorded_in_their_order_under_one_id(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    own = {"fence": run.fence, "answer": 7}
    frames: list[dict[str, Any]] = [
        {"method": "answer.begin", "params": {**own, "provider": "anthropic", "model": "m-1"}},
        {"method": "block", "params": {**own, "data": THINKING}},
        {"method": "emit", "params": {**own, "text": "so ä"}},
        {"method": "block", "params": {**own, "data": {"z": 1, "a": 2}, "provider": "other"}},
        {"method": "answer.end", "params": {**own, "usage": {"self": 3}, "stop": "end_turn", "provider_id": "msg_1"}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **frame}).encode() for frame in frames]
    for number, line in enumerate(lines):
        tree.host.write(line + b"\n")
        until(lambda: len(run.told) == number + 1, "it")  # noqa: B023  # it is called here
        commit(run)
    answer = run.told[0].data.answer
    assert answer.startswith(run.core.address.run)
    assert said(run) == [
        AnswerBegunData(answer=answer, provider="anthropic", model="m-1"),
        BlockData(answer=answer, data=THINKING),
        TextData(text="so ä", answer=answer),
        BlockData(answer=answer, data={"z": 1, "a": 2}, provider="other"),
        AnswerEndedData(answer=answer, usage={"self": 3}, stop="end_turn", provider_id="msg_1"),
    ]
    assert json.dumps(run.told[3].data.data) == '{"z": 1, "a": 2}'
    assert [one.size for one in run.told] == [len(line) for line in lines]
    # The number is free again, and is of another answer.
    tree.host.note("answer.begin", fence=run.fence, answer=7)
    until(lambda: len(run.told) == 6, "the next answer")
    assert run.told[5].data.answer != answer


def test_a_call_of_an_answer_names_it_in_the_daemon_and_in_the_host(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.note("answer.begin", fence=run.fence, answer=1)
    number = tree.host.request("call", fence=run.fence, tool="shell", answer=1, provider_id="toolu_1")
    tree.host.request("call", fence=run.fence, tool="mine", answer=1, where="host")
    tree.host.note("answer.end", fence=run.fence, answer=1)
    until(lambda: len(run.told) == 4, "all of it")
    answer = run.told[0].data.answer
    assert said(run)[1:] == [
        ("shell", "toolu_1", answer),
        ("mine", None, answer),
        AnswerEndedData(answer=answer, usage={}),
    ]
    execution = Execution(run.call(1), run.token)
    execute = tree.host.next()
    assert (execute["method"], execute["params"]["of"]) == ("execute", number + 1)
    tree.host.answer(execute, content="done")
    assert execution.end().content == "done"


def test_an_answer_that_is_left_is_reported_and_costs_no_credit(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    for number in range(SETTINGS.credit_events):
        tree.host.note("answer.begin", fence=run.fence, answer=number + 1)
    for number in range(SETTINGS.credit_events):
        tree.host.note("answer.leave", fence=run.fence, answer=number + 1)
    until(lambda: len(run.told) == 2 * SETTINGS.credit_events, "all of it")
    begun = [one.data.answer for one in run.of(Said)]
    assert [one.answer for one in run.of(AnswerLeft)] == begun
    assert len(set(begun)) == len(begun)
    assert not run.over


def test_parts_that_wait_for_credit_keep_their_order(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    own = {"fence": run.fence, "answer": 1}
    tree.host.note("answer.begin", **own, provider="p")
    for number in range(10):
        tree.host.note("emit", **own, text=f"{number}")
        tree.host.note("block", **own, data={"n": number})
        tree.host.request("call", **own, tool=f"t{number}")
    tree.host.note("answer.leave", **own, usage={"input": 3})
    tree.host.note("answer.begin", **own)
    until(lambda: len(run.told) == SETTINGS.credit_events, "what there is credit for")
    while len(run.told) < 33:
        known = len(run.told)
        commit(run)
        until(lambda: len(run.told) > known, "more")  # noqa: B023  # it is called here
    first, *parts, left, second = said(run)
    expected = [(f"{n}", {"n": n}, (f"t{n}", None, first.answer)) for n in range(10)]
    assert [getattr(part, "text", getattr(part, "data", part)) for part in parts] == [
        one for three in expected for one in three
    ]
    assert left == ("left", first.answer, {"input": 3})
    assert second.answer != first.answer


def test_a_long_text_of_a_host_that_does_not_count_is_divided_within_its_answer(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    text = "ä" * TEXT_MAX_BYTES
    tree.host.note("answer.begin", fence=run.fence, answer=1)
    tree.host.note("emit", fence=run.fence, answer=1, text=text)

    def whole() -> bool:
        commit(run)
        return "".join(run.said()) == text

    until(whole, "all of it")
    assert {one.data.answer for one in run.of(Said)} == {run.told[0].data.answer}


def test_what_comes_of_an_answer_after_the_cancel_is_counted_and_has_no_effect(hosts: Hosting) -> None:
    tree, run, frame = hosts.running(can=["credit"])
    own = {"fence": run.fence, "answer": 1}
    tree.host.note("answer.begin", **own, provider="p")
    until(lambda: run.told, "its begin")
    run.cancel()
    tree.host.next()
    tree.host.note("emit", **own, text="late")
    tree.host.note("block", **own, data={})
    tree.host.request("call", **own, tool="shell")
    assert "error" in tree.host.next()
    tree.host.note("answer.end", **own)
    tree.host.note("answer.begin", **own)
    tree.host.note("answer.leave", **own)
    tree.host.refuse(frame, -32800)
    assert run.end().how is How.CANCELLED
    # And behind the end of the run.
    tree.host.note("block", **own, data={})
    until(lambda: run.refused().get("block") == 2, "the last one to be counted")
    assert run.refused() == {"text": 1, "block": 2, "call": 1, "answer.ended": 1, "answer.begun": 1}
    assert len(said(run)) == 1


def lie(tree: Tree, run: OneRun, *frames: dict[str, Any]) -> None:
    for number, frame in enumerate(frames):
        method, params = frame["method"], {"fence": run.fence, **frame.get("params", {})}
        if method == "call":
            tree.host.request("call", tool="shell", **params)
        else:
            tree.host.note(method, **params)
        commit(run)
        if number < len(frames) - 1:
            until(lambda: len(run.told) > number, "what is true to be recorded")  # noqa: B023  # it is called here


def of(method: str, answer: int = 1, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"answer": answer, **params}}


BEGIN, END, LEAVE = of("answer.begin"), of("answer.end"), of("answer.leave")
NO_ANSWER = "a part of no open answer"
LIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a block of an unknown answer": ([of("block", data={})], NO_ANSWER),
    "a text of an unknown answer": ([of("emit", text="x")], NO_ANSWER),
    "an empty text of an unknown answer": ([of("emit", text="")], NO_ANSWER),
    "a call of an unknown answer": ([of("call")], NO_ANSWER),
    "the end of an unknown answer": ([END], NO_ANSWER),
    "an unknown answer is left": ([LEAVE], NO_ANSWER),
    "a block of another answer": ([BEGIN, of("block", 2, data={})], "expected one of 1; got one of answer 2"),
    "a block behind the end": ([BEGIN, END, of("block", data={})], NO_ANSWER),
    "a text behind the end": ([BEGIN, END, of("emit", text="x")], NO_ANSWER),
    "a call behind the end": ([BEGIN, END, of("call")], NO_ANSWER),
    "a second end": ([BEGIN, END, END], NO_ANSWER),
    "it is left behind the end": ([BEGIN, END, LEAVE], NO_ANSWER),
    "a call of an answer that was left": ([BEGIN, LEAVE, of("call")], NO_ANSWER),
    "it ends though it was left": ([BEGIN, LEAVE, END], NO_ANSWER),
    "it begins twice": ([BEGIN, BEGIN], "an answer begins once"),
    "its number is no number": ([of("answer.begin", 0)], "do not fit"),
    "its block is too large": (
        [of("answer.begin", provider="p"), of("block", data={"x": "y" * BLOCK_MAX_BYTES})],
        "at most",
    ),
    "its block has no provider": ([BEGIN, of("block", data={})], "a block belongs to a provider"),
    "its block is no object": ([BEGIN, of("block", data=[1])], "do not fit"),
    "its block is nested too deeply": (
        [of("answer.begin", provider="p"), of("block", data=json.loads('{"a":' * 200 + "1" + "}" * 200))],
        "cannot be kept as it is",
    ),
    "its block has half a pair": (
        [of("answer.begin", provider="p"), of("block", data={"signature": "\ud800"})],
        "half a surrogate pair",
    ),
    "its provider has a long name": ([of("answer.begin", provider="p" * 257)], "this provider cannot be kept"),
    "its model has a long name": ([of("answer.begin", model="p" * 257)], "this model cannot be kept"),
    "its call has a long name": ([BEGIN, of("call", provider_id="t" * 257)], "this provider_id cannot be kept"),
    "its stop has a long name": ([BEGIN, of("answer.end", stop="t" * 257)], "this stop_reason cannot be kept"),
    "its usage is negative": ([BEGIN, of("answer.end", usage={"input": -1})], "do not fit"),
    "its usage so far is negative": ([BEGIN, of("answer.leave", usage={"input": -1})], "do not fit"),
    "its usage so far is too large": (
        [BEGIN, of("answer.leave", usage={"input": 2**63})],
        "usage is counted in tokens",
    ),
    "its usage is too large": ([BEGIN, of("answer.end", usage={"input": 2**63})], "usage is counted in tokens"),
    "its usage is of many kinds": (
        [BEGIN, of("answer.end", usage=dict.fromkeys(map(str, range(USAGE_KINDS_MAX + 1)), 1))],
        "too many kinds of usage",
    ),
    "too many are open": ([of("answer.begin", n + 1) for n in range(ANSWERS_OPEN_MAX + 1)], "too many answers"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_host_that_lies_about_an_answer_fails_alone_and_its_lie_is_not_recorded(hosts: Hosting, name: str) -> None:
    tree, run, _ = hosts.running()
    _, other, _ = hosts.running(session="s2")
    frames, why = LIES[name]
    lie(tree, run, *frames)
    done = run.end()
    assert done.how is How.RAISED
    assert "host.protocol" in str(done.error)
    assert why in str(done.error)
    assert len(str(done.error)) < 2_000
    assert len(said(run)) == len(frames) - 1
    assert not other.over
    assert not other.told


# ── The Python runtime ────────────────────────────────────────────────────────────────────────────


OWN_TOOLS = """
    import asyncio, threading
    from countermand import tool

    def double(number: int) -> list:
        return [2 * number, threading.current_thread() is threading.main_thread()]

    async def triple(number: int) -> int:
        await asyncio.sleep(0)
        return 3 * number

    {agent}
"""
ASYNC = """
    async def agent(turn):
        async with turn.answer(provider="p") as answer:
            calls = [answer.call("double", {"number": 1}), answer.call("triple", {"number": 2}, provider_id="t2")]
            await answer.text("so")
        contents = [result.content for result in await asyncio.gather(*calls)]
        return [contents, [call.id for call in calls], [part.type for part in turn.messages[-3].parts]]
"""
PLAIN = """
    def agent(turn):
        with turn.answer(provider="p") as answer:
            calls = [answer.call("double", {"number": 1}), answer.call("triple", {"number": 2}, provider_id="t2")]
            answer.text("so")
        contents = [call.result().content for call in calls]
        return [contents, [call.id for call in calls], [part.type for part in turn.messages[-3].parts]]
"""


@pytest.mark.parametrize("agent", [ASYNC, PLAIN], ids=["async", "plain"])
def test_tools_of_the_hosts_own_are_executed_behind_the_answer_that_asks_for_them(tmp_path: Path, agent: str) -> None:
    code = OWN_TOOLS.replace("    {agent}", agent)
    with python_host(tmp_path, code, "--tool", "mine:double", "--tool", "mine:triple") as host:
        host.hello()
        number = host.run()
        begun = host.take("answer.begin")["params"]["answer"]
        calls = [host.take("call"), host.take("call")]
        assert [(call["params"]["where"], call["params"]["answer"]) for call in calls] == [("host", begun)] * 2
        assert [call["params"].get("provider_id") for call in calls] == [None, "t2"]
        host.take("emit")
        assert host.take("answer.end")["params"]["answer"] == begun
        for name, call in zip("ab", calls, strict=True):
            execute = host.request("execute", fence=f"s:1:{name}", call=name, of=call["id"], deadline_s=None)
            content = host.answered(execute)["result"]["content"]
            host.answer(call, call=name, outcome="finished", content=content, is_error=False, data=None)
        value = host.answered(number)["result"]["value"]
    assert value == [["[2,false]", "6"], ["a", "b"], ["call", "call", "text"]]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_l8_a_cancel_in_the_middle_of_an_answer_interrupts_once_and_nothing_follows(tmp_path: Path, kind: str) -> None:
    code = {
        "async": """
        import asyncio
        async def agent(turn):
            try:
                async with turn.answer(provider="p") as answer:
                    answer.call("t", {})
                    await answer.text("half")
                    answer.call("u", {})
                    await asyncio.sleep(1000)
            except asyncio.CancelledError as error:
                # A clean-up is not cut.
                await asyncio.sleep(0.01)
                for door in (answer.text("late"), answer.block({})):
                    try:
                        await door
                    except asyncio.CancelledError:
                        pass
                raise
        """,
        "plain": """
        import time
        from countermand import RunCancelled
        def agent(turn):
            try:
                with turn.answer(provider="p") as answer:
                    answer.call("t", {})
                    answer.text("half")
                    time.sleep(1000)
            except RunCancelled:
                time.sleep(0.01)
                try:
                    answer.text("late")
                except RunCancelled:
                    pass
                raise
        """,
    }[kind]
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run()
        for method in ("answer.begin", "call", "emit"):
            host.take(method)
        host.cancel(number)
        assert host.answered(number)["error"]["code"] == -32800


def test_an_agent_renders_its_thread_for_providers_with_its_own_interpreter(tmp_path: Path, python: str) -> None:
    code = """
        from countermand import render_anthropic, render_openai, render_responses
        async def agent(turn):
            async with turn.answer(provider="anthropic", model="m") as answer:
                await answer.block({"type": "thinking", "thinking": "hm", "signature": "s"})
                await answer.text("I look.")
                call = answer.call("look", {"at": "it", "n": 1.5}, provider_id="toolu_1")
            await call
            return [
                render_anthropic(turn.messages, provider="anthropic", thinking=True),
                render_anthropic(turn.messages, provider="other"),
                render_openai(turn.messages),
                render_responses(turn.messages),
            ]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        for method in ("answer.begin", "block", "emit"):
            host.take(method)
        call = host.take("call")
        host.take("answer.end")
        host.answer(call, call="c1", outcome="interrupted", content="cut", is_error=True, data=None)
        given = host.answered(number)["result"]["value"]
    thread = [
        Message("m1", Role.USER, "hi", 1, "run_1"),
        Message(
            "run_1.1",
            Role.ASSISTANT,
            "I look.",
            1,
            "run_1",
            tool_calls=(ToolCall("c1", "look", {"at": "it", "n": 1.5}),),
            parts=(
                BlockPart("anthropic", {"type": "thinking", "thinking": "hm", "signature": "s"}),
                TextPart("I look."),
                CallPart("c1", "look", {"at": "it", "n": 1.5}, "toolu_1"),
            ),
            answer=AnswerInfo("anthropic", "m"),
        ),
        Message("c1", Role.TOOL, "cut", 1, "run_1", tool_call_id="c1", outcome=Outcome.INTERRUPTED, is_error=True),
    ]
    assert given == [
        render_anthropic(thread, provider="anthropic", thinking=True),
        render_anthropic(thread, provider="other"),
        render_openai(thread),
        render_responses(thread),
    ]
    assert given[0][1]["content"][0]["type"] == "thinking"


# ── A long thread ─────────────────────────────────────────────────────────────────────────────────


def test_a_thread_of_answers_that_is_longer_than_a_line_is_sent_and_read(hosts: Hosting, tmp_path: Path) -> None:
    """`run` has the whole thread, and no limit: each of its parts has one."""
    block = {"type": "thinking", "thinking": "x" * 1_000_000, "signature": "s"}
    thread = [
        Message(
            f"run_0.{number}",
            Role.ASSISTANT,
            "so",
            3,
            "run_0",
            MessageStatus.PARTIAL,
            parts=(BlockPart("anthropic", block), TextPart("so")),
            answer=AnswerInfo("anthropic", "m-1", {"input": number}),
        )
        for number in range(9)
    ]
    run = OneRun(thread=thread)
    run.core.messages = lambda: thread  # type: ignore[method-assign]  # as a thread that was folded from the log
    hosts.spare()
    frame = hosts.begin(hosts.reserved(), run)
    assert len(json.dumps(frame)) > LINE_MAX_BYTES
    code = """
        async def agent(turn):
            async with turn.answer(provider="p") as answer:
                await answer.text("heard")
            *told, own = turn.messages
            parts = [part for message in told for part in message.parts]
            return [
                len(told),
                sum(len(part.data["thinking"]) for part in parts if part.type == "block"),
                {part.text for part in parts if part.type == "text"},
                [message.answer.usage["input"] for message in told],
                {message.status for message in told},
                [own.status, own.parts[0].text],
            ]
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        number = host.run(**{name: frame["params"][name] for name in ("thread", "inputs")})
        host.take("answer.begin")
        host.take("emit")
        host.take("answer.end")
        value = host.answered(number)["result"]["value"]
    assert value == [9, 9_000_000, ["so"], list(range(9)), ["partial"], ["complete", "heard"]]
