"""What a model is given, checked against what providers refuse, after every single event of random logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.model import Event, Message, Outcome, Role, ToolCall
from actors.plugin.rendering import OPENING, render_anthropic, render_openai
from actors.thread import Thread
from tests.provider_checker import Refused, check_anthropic, check_openai

NAMES = st.sampled_from(["bash", "functions.shell", "", "a b", "x" * 65, "é", "a\nb"])
TEXTS = st.sampled_from(["", " ", "\n", "yes", "two words ", "é\n\n"])


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A legal log: runs one after the other, parallel calls, ends of all kinds, retractions, late results."""
    events: list[Event] = []
    late: list[tuple[str, str]] = []
    calls = 0

    def add(run_id: str, kind: str, /, **data: Any) -> None:
        events.append(Event(len(events) + 1, "s", generation, run_id, kind, data, float(len(events))))

    def end(run_id: str, call_id: str, outcome: str) -> None:
        add(
            run_id,
            "tool.ended",
            call_id=call_id,
            outcome=outcome,
            content=draw(TEXTS),
            is_error=draw(st.booleans()),
        )

    for generation in range(1, draw(st.integers(1, 4)) + 1):
        run_id = f"run_{generation}"
        inputs = [f"m_{generation}_{number}" for number in range(draw(st.integers(0, 2)))]
        for identity in inputs:
            add(run_id, "message", id=identity, content=draw(TEXTS), origin="user", policy="interrupt")
        add(run_id, "run.started", agent="a", inputs=inputs)
        open_calls: list[str] = []
        for step in draw(st.lists(st.sampled_from(["text", "call", "call", "end", "steer", "late"]), max_size=10)):
            if step == "text":
                add(run_id, "text", text=draw(TEXTS))
            elif step == "call":
                calls += 1
                open_calls.append(f"call_{calls}")
                add(run_id, "tool.requested", call_id=f"call_{calls}", tool=draw(NAMES), arguments={"n": calls})
            elif step == "end" and open_calls:
                end(run_id, open_calls.pop(draw(st.integers(0, len(open_calls) - 1))), "finished")
            elif step == "steer" and not open_calls:
                add(
                    run_id,
                    "message",
                    id=f"m_{len(events)}",
                    content=draw(TEXTS),
                    origin="user",
                    policy="steer",
                )
            elif step == "late" and late:
                end(*late.pop(), "interrupted")
        for call_id in open_calls:
            if draw(st.booleans()):
                late.append((run_id, call_id))
            else:
                end(run_id, call_id, draw(st.sampled_from(["interrupted", "not_started", "finished"])))
        status = draw(st.sampled_from(["completed", "failed", "cancelling", "expired"]))
        note = draw(st.sampled_from([None, "", "The user stopped this run."]))
        add(run_id, "run.status", status=status, note=note)
        if draw(st.booleans()):
            add(
                run_id,
                "message.retracted",
                run_id=run_id,
                ids=draw(st.lists(st.sampled_from(inputs))) if inputs else [],
            )
        if status == "cancelling":
            add(run_id, "run.status", status="cancelled")
        add(run_id, "run.ended", status=status, receipt={})
    return events


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs())
def test_l6_after_every_event_both_providers_take_the_thread(log: list[Event]) -> None:
    thread = Thread()
    for event in log:
        thread.apply(event)
        messages = thread.messages()
        ids = [message.id for message in messages]
        assert len(ids) == len(set(ids))
        shown = [message for message in messages if message.status != "retracted"]
        said = any(message.content.strip() or message.tool_calls for message in shown)
        openai, anthropic = render_openai(messages), render_anthropic(messages)
        assert bool(openai) is bool(anthropic) is said
        if said:
            check_openai(openai)
            check_anthropic(anthropic)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.data())
def test_a_thread_that_an_agent_cut_anywhere_is_still_taken(log: list[Event], data: st.DataObject) -> None:
    thread = Thread()
    for event in log:
        thread.apply(event)
    messages = thread.messages()
    kept = [message for message in messages if data.draw(st.booleans())]
    openai, anthropic = render_openai(kept), render_anthropic(kept)
    if openai:
        check_openai(openai)
    if anthropic:
        check_anthropic(anthropic)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.data())
def test_a_fold_that_was_copied_on_the_way_comes_to_the_same_thread(log: list[Event], data: st.DataObject) -> None:
    straight, copied = Thread(), Thread()
    cut = data.draw(st.integers(0, len(log)))
    for place, event in enumerate(log):
        straight.apply(event)
        if place == cut:
            copied = copied.copy()
        copied.apply(event)
    assert copied.messages() == straight.messages()


def user(identity: str, content: str, **more: Any) -> Message:
    return Message(identity, Role.USER, content, 1, "r", **more)


def assistant(identity: str, content: str, *calls: str, **more: Any) -> Message:
    made = tuple(ToolCall(call, "bash", {"command": "ls"}) for call in calls)
    return Message(identity, Role.ASSISTANT, content, 1, "r", tool_calls=made, **more)


def result(call: str, content: str = "ok", outcome: Outcome = Outcome.FINISHED, **more: Any) -> Message:
    return Message(call, Role.TOOL, content, 1, "r", tool_call_id=call, outcome=outcome, **more)


CONVERSATION = [
    user("m1", "list it"),
    assistant("r.1", "I look", "c1", "c2"),
    result("c1", "a.txt"),
    result("c2", "", Outcome.INTERRUPTED),
    Message("r.note", Role.NOTE, "The user stopped this run.", 1, "r"),
    user("m2", "go on"),
    assistant("r2.1", "so", status="partial"),
]


def test_openai_gets_calls_results_and_merged_user_turns() -> None:
    rendered = render_openai(CONVERSATION)
    check_openai(rendered)
    assert [message["role"] for message in rendered] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert [call["id"] for call in rendered[1]["tool_calls"]] == ["c1", "c2"]
    assert json.loads(rendered[1]["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert rendered[2] == {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}
    assert "interrupted" in rendered[3]["content"]
    assert "effects" in rendered[3]["content"]
    assert rendered[4]["content"] == "The user stopped this run.\n\ngo on"
    assert rendered[5] == {"role": "assistant", "content": "so"}


def test_anthropic_gets_results_first_and_then_the_text_in_one_user_message() -> None:
    rendered = render_anthropic(CONVERSATION)
    check_anthropic(rendered)
    assert [message["role"] for message in rendered] == ["user", "assistant", "user", "assistant"]
    assert [block["type"] for block in rendered[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["type"] for block in rendered[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert "is_error" not in rendered[2]["content"][0]
    assert rendered[2]["content"][1]["is_error"] is True


def test_a_call_that_never_started_says_so() -> None:
    thread = [user("m", "x"), assistant("r.1", "", "c1"), result("c1", "", Outcome.NOT_STARTED)]
    assert "not started" in render_openai(thread)[2]["content"]
    assert "not started" in render_anthropic(thread)[2]["content"][0]["content"]


def test_what_is_retracted_is_left_out() -> None:
    thread = [
        user("m1", "wrong", status="retracted"),
        assistant("r.1", "said", "c1", status="retracted"),
        result("c1", status="retracted"),
        user("m2", "right"),
    ]
    assert render_openai(thread) == [{"role": "user", "content": "right"}]
    assert render_anthropic(thread) == [{"role": "user", "content": [{"type": "text", "text": "right"}]}]


def test_a_thread_that_begins_with_the_assistant_gets_an_opening_for_anthropic() -> None:
    thread = [assistant("r.1", "hello")]
    rendered = render_anthropic(thread)
    check_anthropic(rendered)
    assert rendered[0]["content"][0]["text"] == OPENING
    assert render_openai(thread) == [{"role": "assistant", "content": "hello"}]


def test_rendering_changes_nothing_in_the_thread() -> None:
    before = list(CONVERSATION)
    render_openai(CONVERSATION)
    render_anthropic(CONVERSATION)
    assert before == CONVERSATION


def _openai_call(*ids: str) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _openai_result(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": "x"}


HELLO: dict[str, Any] = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HELLO, HELLO],
        [{"role": "user", "content": " "}],
        [HELLO, _openai_call("a")],
        [HELLO, _openai_call("a"), HELLO],
        [HELLO, _openai_result("a")],
        [HELLO, _openai_call("a", "b"), _openai_result("b"), _openai_result("a")],
        [HELLO, _openai_call("a"), _openai_result("a"), _openai_call("a"), _openai_result("a")],
        [HELLO, {"role": "assistant", "content": None}],
        [HELLO, {"role": "assistant", "content": "x", "tool_calls": []}],
    ],
)
def test_the_checker_of_openai_refuses(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused):
        check_openai(messages)


def _block(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


SAID: dict[str, Any] = {"type": "text", "text": "hello"}


def _use(identity: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "f", "input": {}}


def _used(identity: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": "x"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [_block("assistant", SAID)],
        [_block("user", SAID), _block("user", SAID)],
        [_block("user")],
        [_block("user", {"type": "text", "text": ""})],
        [_block("user", SAID), _block("assistant", _use("a"))],
        [_block("user", SAID), _block("assistant", _use("a")), _block("user", SAID)],
        [_block("user", SAID), _block("assistant", _use("a")), _block("user", SAID, _used("a"))],
        [
            _block("user", SAID),
            _block("assistant", _use("a"), _use("b")),
            _block("user", _used("b"), _used("a")),
        ],
        [_block("user", _used("a"))],
        [
            _block("user", SAID),
            _block("assistant", _use("a"), _use("a")),
            _block("user", _used("a"), _used("a")),
        ],
        [_block("user", SAID), _block("assistant", {"type": "text", "text": "x "})],
    ],
)
def test_the_checker_of_anthropic_refuses(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused):
        check_anthropic(messages)


def test_a_name_that_a_model_made_up_is_made_fit_for_both_providers_and_kept_in_the_thread() -> None:
    call = ToolCall("c1", "functions.shell é" + "x" * 99, {})
    thread = [user("m", "x"), Message("r.1", Role.ASSISTANT, "", 1, "r", tool_calls=(call,)), result("c1")]
    openai, anthropic = render_openai(thread), render_anthropic(thread)
    check_openai(openai)
    check_anthropic(anthropic)
    name = openai[1]["tool_calls"][0]["function"]["name"]
    assert name == anthropic[1]["content"][0]["name"] == ("functions_shell__" + "x" * 99)[:64]
    assert thread[1].tool_calls[0].name == call.name


def test_calls_with_one_id_have_each_their_own_result_and_an_id_of_their_own() -> None:
    def call(number: int) -> ToolCall:
        return ToolCall("c", "t", {"n": number})

    def result(text: str) -> Message:
        return Message("r", Role.TOOL, text, 1, "run", tool_call_id="c", outcome=Outcome.FINISHED)

    thread = [
        Message("u", Role.USER, "go", 1, "run"),
        Message(
            "a", Role.ASSISTANT, "", 1, "run", tool_calls=(call(1), call(2), ToolCall("c_2", "t", {"n": 3}), call(4))
        ),
        result("first"),
        result("second"),
        Message("r", Role.TOOL, "of c_2", 1, "run", tool_call_id="c_2", outcome=Outcome.FINISHED),
        Message("b", Role.ASSISTANT, "again", 1, "run", tool_calls=(call(5),)),
        result("third"),
    ]
    openai = render_openai(thread)
    check_openai(openai)
    asked = {
        one["id"]: json.loads(one["function"]["arguments"])["n"] for m in openai for one in m.get("tool_calls", [])
    }
    answered = {m["tool_call_id"]: m["content"] for m in openai if m["role"] == "tool"}
    # The fourth call has no result, and is left out.
    expected = {1: "first", 2: "second", 3: "of c_2", 5: "third"}
    assert {asked[one]: text for one, text in answered.items()} == expected
    anthropic = render_anthropic(thread)
    check_anthropic(anthropic)
    blocks = [block for message in anthropic for block in message["content"]]
    inputs = {block["id"]: block["input"]["n"] for block in blocks if block["type"] == "tool_use"}
    results = {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}
    assert {inputs[one]: text for one, text in results.items()} == expected
