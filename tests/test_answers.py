"""The answers of models in a thread: folded from logs, and given back to each provider as that wants it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.model import Event, Message
from actors.parts import AnswerInfo, BlockPart, CallPart, TextPart
from actors.plugin.rendering import GO_ON, _unused, render_anthropic, render_openai, render_responses
from actors.thread import Thread
from tests.media_kit import FILE, FILE_LISTS, FILES, GIVEN_PARTS
from tests.provider_checker import check_anthropic, check_openai, check_responses

TEXTS: Final = st.sampled_from(["", " ", "yes", "two words ", "é\n\n"])
CHAT_KEYS: Final = frozenset({"reasoning_content"})
ITEMS: Final = frozenset({"web_search_call"})


def thinking(number: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": f"hm {number}", "signature": f"anthropic-{number}=="}


def redacted(number: int) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": f"anthropic-{number}"}


def reasoning(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"responses-{number}", "summary": [], **more}


BLOCKS: Final[dict[str, Any]] = {
    "anthropic": (thinking, redacted),
    "chat": (lambda number: {"reasoning_content": f"chat-{number}"},),
    "responses": (
        lambda number: reasoning(number, encrypted_content=f"responses-{number}"),
        reasoning,
        lambda number: {"type": "web_search_call", "id": f"responses-{number}", "status": "completed"},
    ),
}
"""The blocks that each provider has; each names its provider."""


class Log:
    """A log that numbers its events, with the fold of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.thread = Thread()

    def add(self, kind: str, run_id: str = "r1", generation: int = 1, /, **data: Any) -> None:
        event = Event(len(self.events) + 1, "s", generation, run_id, kind, data, float(len(self.events)))
        self.events.append(event)
        self.thread.apply(event)

    def message(self, identity: str, content: str = "go", run_id: str = "r1", **more: Any) -> None:
        self.add("message", run_id, id=identity, content=content, origin="user", policy="interrupt", **more)

    def call(self, identity: str, answer: str | None = None, run_id: str = "r1", **more: Any) -> None:
        of = {"answer": answer} if answer else {}
        self.add("tool.requested", run_id, call_id=identity, tool="bash", arguments={"of": identity}, **of, **more)

    def ended(
        self, identity: str, content: str = "ok", outcome: str = "finished", run_id: str = "r1", **more: Any
    ) -> None:
        data = {"call_id": identity, "outcome": outcome, "content": content, "is_error": False, **more}
        self.add("tool.ended", run_id, **data)

    def shape(self) -> list[tuple[str, str, str]]:
        return [(message.role, message.id, message.content) for message in self.thread.messages()]

    def one(self, identity: str) -> Message:
        (message,) = (message for message in self.thread.messages() if message.id == identity)
        return message


# ── The fold ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_one_message_of_its_parts_in_their_order() -> None:
    log = Log()
    log.add("answer.begun", answer="a1", provider="anthropic", model="m-1")
    log.add("block", answer="a1", data=thinking(1))
    log.add("text", text="I ", answer="a1")
    log.add("text", text="look", answer="a1")
    log.call("c1", "a1", provider_id="toolu_1")
    log.add("block", answer="a1", data=redacted(2), provider="other")
    log.call("c2", "a1")
    log.add("answer.ended", answer="a1", usage={"input": 3}, stop="tool_use", provider_id="msg_1")
    log.ended("c2", "second")
    log.ended("c1", "first")
    assert log.shape() == [("assistant", "r1.1", "I look"), ("tool", "c1", "first"), ("tool", "c2", "second")]
    message = log.one("r1.1")
    assert message.parts == (
        BlockPart("anthropic", thinking(1)),
        TextPart("I look"),
        CallPart("c1", "bash", {"of": "c1"}, "toolu_1"),
        BlockPart("other", redacted(2)),
        CallPart("c2", "bash", {"of": "c2"}),
    )
    assert [call.id for call in message.tool_calls] == ["c1", "c2"]
    assert message.answer == AnswerInfo("anthropic", "m-1", {"input": 3}, "tool_use", "msg_1")
    assert message.status == "complete"


def test_results_of_one_answer_stand_together_whenever_they_come() -> None:
    """One of its calls is refused before the next is asked for."""
    log = Log()
    log.add("answer.begun", answer="a1")
    log.call("c1", "a1")
    log.ended("c1", "no such tool", "not_started")
    log.add("text", text="and ", answer="a1")
    log.call("c2", "a1")
    log.add("answer.ended", answer="a1")
    log.ended("c2")
    assert log.shape() == [("assistant", "r1.1", "and "), ("tool", "c1", "no such tool"), ("tool", "c2", "ok")]


def test_an_answer_without_an_end_is_partial_and_one_with_an_end_is_not_though_its_run_was_stopped() -> None:
    log = Log()
    log.add("answer.begun", answer="a1")
    log.add("text", text="whole", answer="a1")
    assert log.one("r1.1").status == "partial"
    log.add("answer.ended", answer="a1")
    assert log.one("r1.1").status == "complete"
    log.add("answer.begun", answer="a2")
    log.add("text", text="left", answer="a2")
    log.add("answer.begun", answer="a3")
    log.add("text", text="whole", answer="a3")
    log.add("answer.ended", answer="a3")
    log.add("answer.begun", answer="a4")
    log.add("run.status", status="cancelling", note="stopped")
    assert [message.status for message in log.thread.messages()] == ["complete", "partial", "complete", "complete"]


def test_what_is_emitted_besides_an_answer_is_no_part_of_it() -> None:
    log = Log()
    log.add("text", text="before ")
    log.add("answer.begun", answer="a1")
    log.add("text", text="model ", answer="a1")
    log.add("text", text="agent")
    log.call("c1")
    log.add("answer.begun", answer="a2")
    log.add("text", text="says", answer="a1")
    log.add("answer.ended", answer="a1")
    log.ended("c1")
    log.add("text", text="other", answer="a2")
    assert log.shape() == [
        ("assistant", "r1.1", "before "),
        ("assistant", "r1.2", "model says"),
        ("assistant", "r1.3", "agent"),
        ("tool", "c1", "ok"),
        ("assistant", "r1.4", "other"),
    ]


def test_unknown_parts_of_an_answer_are_kept_where_that_is_possible() -> None:
    """The event that began it cannot be read."""
    log = Log()
    log.add("text", text="said", answer="a1")
    log.add("block", answer="a1", data=thinking(1))
    log.call("c1", "a1")
    log.add("answer.ended", answer="a1")
    log.ended("c1")
    assert log.shape() == [("assistant", "r1.1", "said"), ("tool", "c1", "ok")]
    assert log.one("r1.1").parts == ()


def test_an_agents_own_messages_have_no_parts() -> None:
    log = Log()
    log.message("m1")
    log.add("text", text="said")
    log.call("c1", provider_id="toolu_1")
    log.ended("c1")
    assert [(message.parts, message.answer) for message in log.thread.messages()] == [((), None)] * 3


# ── The renderings, of logs of all kinds ──────────────────────────────────────────────────────────────


class Story:
    """Draws a legal log: answers of all providers, some at once, cut off anywhere; runs that end in all ways."""

    def __init__(self, draw: st.DrawFn, *, thinks: bool) -> None:
        self.draw = draw
        self.thinks = thinks
        self.log = Log()
        self.number = 0
        self.run = ""
        self.generation = 0
        self.answers: dict[str, str] = {}
        self.asked: dict[str, str | None] = {}

    def add(self, kind: str, /, **data: Any) -> None:
        self.log.add(kind, self.run, self.generation, **data)

    def next(self) -> int:
        self.number += 1
        return self.number

    def begin(self) -> None:
        answer = f"a{self.next()}"
        provider = "anthropic" if self.thinks else self.draw(st.sampled_from([*BLOCKS, "nobody"]))
        self.add("answer.begun", answer=answer, provider=provider)
        self.answers[answer] = provider
        if self.thinks:
            self.add("block", answer=answer, data=thinking(self.next()))

    def one_of(self, things: Any) -> Any:
        return self.draw(st.sampled_from(sorted(things, key=str)))

    def part(self, what: str) -> None:
        """Add a part to an open answer, or besides."""
        if what == "besides":
            self.add("text", text=self.draw(TEXTS))
        elif what == "own" and not self.thinks:
            self.ask(None)
        elif what in ("text", "block", "media", "call", "call", "end", "leave") and self.answers:
            answer = self.one_of(self.answers)
            if what == "text":
                self.add("text", text=self.draw(TEXTS), answer=answer)
            elif what == "block" and self.answers[answer] in BLOCKS:
                block = self.draw(st.sampled_from(BLOCKS[self.answers[answer]]))
                self.add("block", answer=answer, data=block(self.next()))
            elif what == "media":
                self.add("media", answer=answer, part=self.draw(FILE))
            elif what == "call":
                self.ask(answer)
            elif what == "end":
                del self.answers[answer]
                self.add("answer.ended", answer=answer, stop="tool_use")
            elif what == "leave":
                del self.answers[answer]
                for call in [call for call, of in self.asked.items() if of == answer]:
                    self.result(call, "not_started")
        elif what == "result":
            ready = [call for call, of in self.asked.items() if of not in self.answers]
            if ready:
                self.result(self.one_of(ready), "finished")

    def ask(self, answer: str | None) -> None:
        call = f"call_{self.next()}"
        # Some providers count their calls anew in each answer.
        named = {"provider_id": f"toolu_{sum(of == answer for of in self.asked.values())}"} if answer else {}
        self.asked[call] = answer
        self.log.call(call, answer, self.run, **(named if self.draw(st.booleans()) else {}))

    def result(self, call: str, outcome: str) -> None:
        del self.asked[call]
        more = {"parts": self.draw(FILE_LISTS), "is_error": self.draw(st.booleans())} if outcome == "finished" else {}
        self.log.ended(call, self.draw(TEXTS), outcome, self.run, **more)

    def tell_run(self) -> None:
        self.generation += 1
        self.run = f"run_{self.generation}"
        inputs = [f"m{self.next()}" for _ in range(self.draw(st.integers(0, 2)))]
        for identity in inputs:
            self.log.message(identity, self.draw(TEXTS), self.run, parts=self.draw(GIVEN_PARTS))
        steps = ["begin", "text", "block", "media", "call", "call", "end", "end", "leave", "result", "besides", "own"]
        for what in self.draw(st.lists(st.sampled_from(steps), max_size=14)):
            if what == "begin" and len(self.answers) < 2:
                self.begin()
            else:
                self.part(what)
        for call, of in list(self.asked.items()):
            self.result(call, "not_started" if of in self.answers else self.draw(st.sampled_from(["interrupted"])))
        self.answers.clear()
        status = self.draw(st.sampled_from(["completed", "cancelling"]))
        self.add("run.status", status=status, note=self.draw(st.sampled_from([None, "The user stopped this run."])))
        if self.draw(st.integers(0, 5)) == 0:
            self.add("message.retracted", run_id=self.run, ids=inputs)


@st.composite
def stories(draw: st.DrawFn, *, thinks: bool = False) -> list[Event]:
    story = Story(draw, thinks=thinks)
    for _ in range(draw(st.integers(1, 3))):
        story.tell_run()
    return story.log.events


def every_state(log: list[Event]) -> Iterator[list[Message]]:
    """Yield the messages after each event that changed them."""
    thread, before = Thread(), list[Message]()
    for event in log:
        thread.apply(event)
        messages = thread.messages()
        if messages != before:
            before = messages
            yield messages


def blocks_in(rendered: list[dict[str, Any]], provider: str) -> set[str]:
    """Check that all blocks in it are `provider`'s; return their texts."""
    text = json.dumps(rendered)
    for other in BLOCKS:
        assert other == provider or f'"{other}-' not in text, f"a block of {other} for {provider}"
    return {block for block in text.split('"') if block.startswith(f"{provider}-")}


def begins_a_run(shown: list[Message]) -> bool:
    spoken = list(itertools.takewhile(lambda message: message.role in ("user", "note"), reversed(shown)))
    earlier = shown[: len(shown) - len(spoken)]
    noted = any(message.role == "note" for message in spoken)
    return bool(spoken) and (noted or not earlier or {message.run_id for message in spoken} != {earlier[-1].run_id})


def check_all(messages: list[Message], *, thinks: bool) -> None:
    """Check what each provider would be given."""
    shown = [message for message in messages if message.status != "retracted"]
    results = sum(message.role == "tool" for message in shown)
    for provider, files in itertools.product((*BLOCKS, "nobody", None), (FILES, None)):
        chat = render_openai(messages, provider=provider, files=files)
        items = render_responses(messages, provider=provider, files=files)
        said = render_anthropic(messages, provider=provider, thinking=False, files=files)
        unsaid = render_anthropic(messages, provider=provider, files=files)
        if chat:
            check_openai(chat, keys=CHAT_KEYS if provider == "chat" else frozenset())
            assert sum(message["role"] == "tool" for message in chat) == results
            blocks_in(chat, provider or "")
        if items and provider != "anthropic":
            check_responses(items, kinds=ITEMS if provider == "responses" else frozenset())
            assert sum(item["type"] == "function_call_output" for item in items) == results
            blocks_in(items, provider or "")
        if said and provider != "responses":
            own = provider == "anthropic"
            ends = said[-1]["role"] == "user"
            check_anthropic(said, thinking=thinks and own and ends, as_said=provider is not None)
            told = [block for message in said for block in message["content"] if block["type"] == "tool_result"]
            assert len(told) == results
            blocks_in(said, provider or "")
            thoughtful = render_anthropic(messages, provider=provider, thinking=True, files=files)
            check_anthropic(thoughtful, thinking=True, as_said=provider is not None)
            assert unsaid == (thoughtful if begins_a_run(shown) else said)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_l6_after_every_event_each_provider_takes_the_thread(log: list[Event]) -> None:
    for messages in every_state(log):
        check_all(messages, thinks=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(thinks=True))
def test_l6_with_thinking_on_no_call_has_to_be_rendered_as_text(log: list[Event]) -> None:
    for messages in every_state(log):
        check_all(messages, thinks=True)
        plain = render_anthropic(messages, provider="anthropic")
        if plain and plain[-1]["role"] == "user":
            assert render_anthropic(messages, provider="anthropic", thinking=True) == plain


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(), st.data())
def test_a_thread_that_an_agent_has_cut_anywhere_is_still_taken(log: list[Event], data: st.DataObject) -> None:
    thread = Thread()
    for event in log:
        thread.apply(event)
    kept = [message for message in thread.messages() if data.draw(st.booleans())]
    for provider in (*BLOCKS, None):
        chat = render_openai(kept, provider=provider, files=FILES)
        items = render_responses(kept, provider=provider, files=FILES)
        if chat:
            check_openai(chat, keys=CHAT_KEYS if provider == "chat" else frozenset())
        if items and provider in ("responses", None):
            check_responses(items, kinds=ITEMS)
        if provider in ("anthropic", None):
            said = render_anthropic(kept, provider=provider, thinking=True, files=FILES)
            if said:
                check_anthropic(said, thinking=True, as_said=provider is not None)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(), st.data())
def test_a_fold_that_was_copied_on_the_way_comes_to_the_same_thread(log: list[Event], data: st.DataObject) -> None:
    straight, copied = Thread(), Thread()
    cuts = data.draw(st.sets(st.integers(0, len(log)), max_size=3))
    twins: list[tuple[Thread, list[Message]]] = []
    for place, event in enumerate(log):
        straight.apply(event)
        if place in cuts:
            twins.append((copied, copied.messages()))
            copied = copied.copy()
        copied.apply(event)
    assert copied.messages() == straight.messages()
    for twin, messages in twins:
        assert twin.messages() == messages


# ── What each provider is given ───────────────────────────────────────────────────────────────────────


def interrupted() -> Log:
    """A message took over while two calls of an answer with thinking ran."""
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="anthropic", model="m-1")
    log.add("block", answer="a1", data=thinking(1))
    log.call("c1", "a1", provider_id="toolu_1")
    log.call("c2", "a1", provider_id="toolu_2")
    log.add("answer.ended", answer="a1", stop="tool_use")
    log.ended("c2", "done")
    log.ended("c1", "interrupted", "interrupted")
    log.add("run.status", status="cancelling", note="A new message stopped this run.")
    log.message("m2", "no, do this", run_id="r2")
    return log


def test_after_a_takeover_in_a_tool_the_thinking_is_where_it_was_and_the_note_behind_the_results() -> None:
    rendered = render_anthropic(interrupted().thread.messages(), provider="anthropic", thinking=True)
    check_anthropic(rendered, thinking=True)
    assert [block["type"] for block in rendered[1]["content"]] == ["thinking", "tool_use", "tool_use"]
    assert rendered[1]["content"][0] == thinking(1)
    assert [block["id"] for block in rendered[1]["content"][1:]] == ["toolu_1", "toolu_2"]
    assert [(block.get("tool_use_id"), block.get("content")) for block in rendered[2]["content"]] == [
        ("toolu_1", "interrupted"),
        ("toolu_2", "done"),
        (None, None),
    ]
    assert rendered[2]["content"][2]["text"] == "A new message stopped this run.\n\nno, do this"


def test_another_provider_gets_neither_blocks_nor_ids() -> None:
    messages = interrupted().thread.messages()
    chat = render_openai(messages, provider="openai")
    check_openai(chat)
    assert [call["id"] for call in chat[1]["tool_calls"]] == ["c1", "c2"]
    items = render_responses(messages, provider="openai")
    check_responses(items)
    assert [item["type"] for item in items] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert chat == render_openai(messages)
    assert items == render_responses(messages)


def test_with_thinking_on_calls_that_no_thinking_came_before_are_rendered_as_text() -> None:
    messages = interrupted().thread.messages()
    plain = render_anthropic(messages, thinking=False)
    check_anthropic(plain)
    rendered = render_anthropic(messages, thinking=True)
    check_anthropic(rendered, thinking=True)
    (only,) = rendered
    told = [block["text"] for block in only["content"]]
    assert told[0] == "go"
    assert told[1] == 'The assistant called bash with {"of":"c1"}. The result:\ninterrupted'
    assert told[3] == "A new message stopped this run.\n\nno, do this"
    assert render_anthropic(messages) == rendered, "the request may have thinking on, for all that is known"


def test_within_a_run_calls_stay_calls_if_nobody_says_that_thinking_is_on() -> None:
    log = Log()
    log.message("m1")
    log.call("c1")
    log.ended("c1")
    for steered in (False, True):
        if steered:
            log.message("m2")
        messages = log.thread.messages()
        assert render_anthropic(messages) == render_anthropic(messages, thinking=False)
        assert render_anthropic(messages) != render_anthropic(messages, thinking=True)


def searching(*blocks: dict[str, Any], stop: str | None = None) -> Log:
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="anthropic")
    log.add("text", answer="a1", text="Looking …")
    for block in (thinking(1), *blocks):
        log.add("block", answer="a1", data=block)
    if stop is not None:
        log.add("answer.ended", answer="a1", stop=stop)
    return log


SEARCH: Final[dict[str, Any]] = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND: Final[dict[str, Any]] = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}


def test_l6_a_call_that_the_provider_executes_is_given_back_with_its_result_or_not_at_all() -> None:
    """It refuses one without the other, and what is left of a partial answer never gets the other."""

    def assistant(log: Log, place: int = 1) -> list[dict[str, Any]]:
        return list(render_anthropic(log.thread.messages(), provider="anthropic")[place]["content"])

    text = {"type": "text", "text": "Looking …"}
    cut_off = searching(SEARCH)
    cut_off.message("m2", run_id="r2")
    assert assistant(cut_off) == [text]
    whole = searching(SEARCH, FOUND, stop="end_turn")
    assert assistant(whole) == [text, thinking(1), SEARCH, FOUND]
    paused = searching(SEARCH, stop="pause_turn")
    assert assistant(paused) == [text, thinking(1), SEARCH], "the provider goes on with it"
    for thinks in (True, False, None):
        said = render_anthropic(paused.thread.messages(), provider="anthropic", thinking=thinks)
        assert [message["role"] for message in said] == ["user", "assistant"]
    paused.add("answer.begun", answer="a2", provider="anthropic")
    paused.add("block", answer="a2", data=FOUND)
    paused.add("text", answer="a2", text="There.")
    assert assistant(paused) == [text, thinking(1), SEARCH, FOUND, {"type": "text", "text": "There."}]
    both = searching(SEARCH)
    both.call("c1", "a1", provider_id="toolu_1")
    both.add("answer.ended", answer="a1", stop="tool_use")
    both.ended("c1")
    assert SEARCH in assistant(both), "the provider executes it when it has the other result"
    both.message("m2", run_id="r2")
    assert SEARCH not in assistant(both)
    stopped = searching(SEARCH, stop="pause_turn")
    stopped.message("m2", run_id="r2")
    assert assistant(stopped) == [text]
    assert assistant(searching(FOUND, stop="end_turn")) == [text]


def test_after_a_resume_behind_a_stop_calls_without_thinking_are_rendered_as_text() -> None:
    log = Log()
    log.message("m1")
    log.call("c1")
    log.ended("c1", "interrupted", "interrupted")
    log.add("run.status", status="cancelling", note="Stopped by user.console.")
    messages = log.thread.messages()
    check_anthropic(render_anthropic(messages), thinking=True)


def test_ids_that_are_repeated_cost_no_more_the_more_often_they_are() -> None:
    used: dict[str, int] = {}
    made = [_unused("call_0", used) for _ in range(50_000)]
    assert made[:3] == ["call_0", "call_0_2", "call_0_3"]
    assert len(set(made)) == 50_000
    assert _unused("call_0_3", used) == "call_0_3_2"


def test_chat_completions_are_given_all_that_one_answer_has_under_a_key() -> None:
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="chat")
    for thought, text in (("first. ", "a"), ("second.", "b")):
        log.add("block", answer="a1", data={"reasoning_content": thought, "reasoning_details": [thought]})
        log.add("text", answer="a1", text=text)
    log.add("answer.ended", answer="a1")
    assert render_openai(log.thread.messages(), provider="chat")[1] == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "first. second.",
        "reasoning_details": ["first. ", "second."],
    }


def test_an_agents_own_text_before_an_answer_with_thinking_is_no_part_of_its_message() -> None:
    log = Log()
    log.message("m1")
    log.add("text", text="Looking …")
    log.add("answer.begun", answer="a1", provider="anthropic")
    log.add("block", answer="a1", data=redacted(1))
    log.call("c1", "a1")
    log.add("answer.ended", answer="a1")
    log.ended("c1")
    rendered = render_anthropic(log.thread.messages(), provider="anthropic", thinking=True)
    check_anthropic(rendered, thinking=True)
    assert rendered[2] == {"role": "user", "content": [{"type": "text", "text": GO_ON}]}
    assert rendered[3]["content"][0] == redacted(1)


def test_an_answer_that_was_left_and_is_tried_again_is_not_taken_for_the_beginning_of_the_next() -> None:
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="anthropic")
    log.add("block", answer="a1", data=thinking(1))
    log.add("text", text="half a sen ", answer="a1")
    rendered = render_anthropic(log.thread.messages(), provider="anthropic", thinking=True)
    check_anthropic(rendered, thinking=True)
    assert rendered[1:] == [
        {"role": "assistant", "content": [thinking(1), {"type": "text", "text": "half a sen "}]},
        {"role": "user", "content": [{"type": "text", "text": GO_ON}]},
    ]


def test_a_block_behind_which_nothing_came_is_left_out_and_kept_in_the_thread() -> None:
    log = Log()
    log.message("m1")
    for provider, block in (("anthropic", thinking(1)), ("responses", reasoning(2, encrypted_content="x"))):
        log.add("answer.begun", answer=provider, provider=provider)
        log.add("block", answer=provider, data=block)
    log.add("run.status", status="cancelling", note="Stopped.")
    messages = log.thread.messages()
    assert [message.parts for message in messages[1:3]] == [
        (BlockPart("anthropic", thinking(1)),),
        (BlockPart("responses", reasoning(2, encrypted_content="x")),),
    ]
    said, items = render_anthropic(messages, provider="anthropic"), render_responses(messages, provider="responses")
    for (only,) in (said, items):
        assert only["content"][0]["text"] == "go\n\nStopped."


def test_a_reasoning_item_that_is_a_reference_is_left_out() -> None:
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="responses")
    log.add("block", answer="a1", data=reasoning(1))
    log.add("block", answer="a1", data=reasoning(2, encrypted_content="x"))
    log.add("text", text="yes", answer="a1")
    log.add("answer.ended", answer="a1")
    items = render_responses(log.thread.messages(), provider="responses")
    check_responses(items)
    assert items[1:] == [
        reasoning(2, encrypted_content="x"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
    ]


def test_a_chat_provider_gets_its_keys_back_with_their_message() -> None:
    log = Log()
    log.message("m1")
    log.add("answer.begun", answer="a1", provider="chat")
    log.add("block", answer="a1", data={"reasoning_content": "hm", "role": "x", "content": "y", "tool_calls": 5})
    log.add("text", text="yes", answer="a1")
    rendered = render_openai(log.thread.messages(), provider="chat")
    check_openai(rendered, keys=CHAT_KEYS)
    assert rendered[1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_ids_that_a_provider_uses_again_are_paired_by_their_places() -> None:
    log = Log()
    log.message("m1")
    for number in (1, 2):
        log.add("answer.begun", answer=f"a{number}", provider="chat")
        log.call(f"c{number}", f"a{number}", provider_id="call_0")
        log.add("answer.ended", answer=f"a{number}")
        log.ended(f"c{number}", f"of {number}")
    rendered = render_openai(log.thread.messages(), provider="chat")
    check_openai(rendered)
    asked = {message["tool_calls"][0]["id"]: message for message in rendered if message.get("tool_calls")}
    told = {message["tool_call_id"]: message["content"] for message in rendered if message["role"] == "tool"}
    assert told == {"call_0": "of 1", "call_0_2": "of 2"}
    assert list(asked) == list(told)


def test_rendering_changes_nothing_in_a_block() -> None:
    log = Log()
    log.message("m1")
    cited = {"type": "text", "text": "as it says ", "citations": [{"cited_text": "x"}]}
    log.add("answer.begun", answer="a1", provider="anthropic")
    log.add("block", answer="a1", data=dict(cited))
    messages = log.thread.messages()
    rendered = render_anthropic(messages, provider="anthropic")
    assert rendered[1]["content"] == [cited | {"text": "as it says"}]
    assert messages[1].parts == (BlockPart("anthropic", cited),)
