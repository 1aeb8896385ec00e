"""The fold of a log into a thread."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.model import Event, Message
from actors.thread import Thread


class Log:
    """A log that numbers its events; `thread` is their fold."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.seq = 0

    def add(self, run_id: str | None, kind: str, /, *, generation: int = 1, **data: Any) -> None:
        self.seq += 1
        self.thread.apply(Event(self.seq, "s", generation, run_id, kind, data, 100.0 + self.seq))

    def message(self, run_id: str, message_id: str, content: str = "hello", generation: int = 1) -> None:
        self.add(
            run_id,
            "message",
            generation=generation,
            id=message_id,
            content=content,
            origin="user",
            policy="interrupt",
        )

    def text(self, run_id: str, text: str) -> None:
        self.add(run_id, "text", text=text)

    def call(self, run_id: str, call_id: str) -> None:
        self.add(run_id, "tool.requested", call_id=call_id, tool="bash", arguments={"command": call_id})

    def ended(self, run_id: str, call_id: str, content: str = "ok", outcome: str = "finished") -> None:
        self.add(run_id, "tool.ended", call_id=call_id, outcome=outcome, content=content, is_error=False)

    def shape(self) -> list[tuple[str, str, str]]:
        """What the thread shows: role, id, content."""
        return [(message.role, message.id, message.content) for message in self.thread.messages()]

    def one(self, message_id: str) -> Message:
        (message,) = (message for message in self.thread.messages() if message.id == message_id)
        return message


def test_consecutive_texts_are_one_assistant_message() -> None:
    log = Log()
    log.message("r1", "m1")
    for word in ("a", "b", "c"):
        log.text("r1", word)
    assert log.shape() == [("user", "m1", "hello"), ("assistant", "r1.1", "abc")]
    message = log.one("r1.1")
    assert (message.generation, message.run_id, message.at, message.status) == (1, "r1", 102.0, "complete")


def test_an_input_keeps_its_origin_generation_and_times() -> None:
    log = Log()
    log.add("r1", "message", generation=4, id="m1", content="x", origin="timer", policy="enqueue", sent_at=7.5)
    message = log.one("m1")
    assert (message.origin, message.sent_at, message.generation, message.at) == ("timer", 7.5, 4, 101.0)


def test_a_call_is_shown_only_once_its_result_is_in() -> None:
    log = Log()
    log.text("r1", "let me look")
    log.call("r1", "c1")
    log.add("r1", "tool.started", call_id="c1")
    log.add("r1", "tool.output", call_id="c1", text="…")
    assert log.shape() == [("assistant", "r1.1", "let me look")]
    assert log.one("r1.1").tool_calls == ()
    log.ended("r1", "c1", "found")
    assert log.shape() == [("assistant", "r1.1", "let me look"), ("tool", "c1", "found")]
    assert [(call.id, call.name, call.arguments) for call in log.one("r1.1").tool_calls] == [
        ("c1", "bash", {"command": "c1"})
    ]
    assert (log.one("c1").tool_call_id, log.one("c1").outcome) == ("c1", "finished")


def test_a_call_without_text_has_no_made_up_text() -> None:
    log = Log()
    log.call("r1", "c1")
    assert log.shape() == []
    log.ended("r1", "c1")
    assert log.shape() == [("assistant", "r1.1", ""), ("tool", "c1", "ok")]


def test_results_stand_in_the_order_of_the_requests() -> None:
    log = Log()
    for call_id in ("c1", "c2", "c3"):
        log.call("r1", call_id)
    log.ended("r1", "c3")
    assert [call.id for call in log.one("r1.1").tool_calls] == ["c3"]
    log.ended("r1", "c1")
    log.ended("r1", "c2")
    assert [identity for _, identity, _ in log.shape()] == ["r1.1", "c1", "c2", "c3"]
    assert [call.id for call in log.one("r1.1").tool_calls] == ["c1", "c2", "c3"]


def test_what_comes_while_a_call_is_open_joins_its_message_and_then_a_new_one_opens() -> None:
    log = Log()
    log.text("r1", "one ")
    log.call("r1", "c1")
    log.text("r1", "two")
    log.call("r1", "c2")
    log.ended("r1", "c1")
    log.call("r1", "c3")
    log.ended("r1", "c2")
    log.ended("r1", "c3")
    log.call("r1", "c4")
    log.ended("r1", "c4")
    log.text("r1", "three")
    assert log.shape() == [
        ("assistant", "r1.1", "one two"),
        ("tool", "c1", "ok"),
        ("tool", "c2", "ok"),
        ("tool", "c3", "ok"),
        ("assistant", "r1.2", ""),
        ("tool", "c4", "ok"),
        ("assistant", "r1.3", "three"),
    ]


def test_l6_a_run_that_was_stopped_leaves_its_last_text_marked_partial_and_a_note() -> None:
    log = Log()
    log.message("r1", "m1")
    log.call("r1", "c1")
    log.ended("r1", "c1")
    log.text("r1", "half a sen")
    log.add("r1", "run.status", status="cancelling", note="The user stopped this run.")
    log.add("r1", "run.status", status="cancelled", note="Said again.")
    assert [(m.role, m.id, m.status) for m in log.thread.messages()] == [
        ("user", "m1", "complete"),
        ("assistant", "r1.1", "complete"),
        ("tool", "c1", "complete"),
        ("assistant", "r1.2", "partial"),
        ("note", "r1.note", "complete"),
    ]
    assert log.one("r1.note").content == "The user stopped this run."


def test_l6_a_run_that_was_stopped_before_it_said_anything_has_no_assistant_message() -> None:
    log = Log()
    log.message("r1", "m1")
    log.text("r1", "")
    log.add("r1", "run.status", status="cancelling", note="stopped")
    assert [role for role, _, _ in log.shape()] == ["user", "note"]


def test_a_completed_run_is_complete() -> None:
    log = Log()
    log.text("r1", "done")
    log.add("r1", "run.status", status="completed", result=None)
    assert [m.status for m in log.thread.messages()] == ["complete"]


def test_a_late_result_takes_its_place_with_its_own_run() -> None:
    log = Log()
    log.message("r1", "m1")
    log.call("r1", "c1")
    log.add("r1", "run.status", status="cancelling", note="stopped")
    log.message("r2", "m2", generation=2)
    log.text("r2", "new")
    log.ended("r1", "c1", "late", "interrupted")
    assert [identity for _, identity, _ in log.shape()] == ["m1", "r1.1", "c1", "r1.note", "m2", "r2.1"]
    assert log.one("c1").outcome == "interrupted"


def test_a_result_that_comes_twice_or_without_a_request_changes_nothing() -> None:
    log = Log()
    log.call("r1", "c1")
    log.ended("r1", "c1", "first")
    log.ended("r1", "c1", "second")
    log.ended("r1", "unknown")
    log.call("r1", "c1")
    log.text("r1", "next")
    assert log.shape() == [("assistant", "r1.1", ""), ("tool", "c1", "first"), ("assistant", "r1.2", "next")]


def test_a_steering_message_stands_between_what_was_said_before_and_after_it() -> None:
    log = Log()
    log.message("r1", "m1")
    log.text("r1", "before")
    log.message("r1", "m2", "steer")
    log.text("r1", "after")
    assert [identity for _, identity, _ in log.shape()] == ["m1", "r1.1", "m2", "r1.2"]


def test_a_rollback_retracts_the_inputs_named_and_all_output_but_not_the_note() -> None:
    log = Log()
    log.message("r1", "m1")
    log.message("r1", "m2")
    log.text("r1", "said")
    log.call("r1", "c1")
    log.ended("r1", "c1")
    log.add("r1", "run.status", status="cancelling", note="rolled back")
    log.add("r1", "message.retracted", generation=2, run_id="r1", ids=["m1"])
    log.message("r2", "m3", generation=2)
    assert {m.id: m.status for m in log.thread.messages()} == {
        "m1": "retracted",
        "m2": "complete",
        "r1.1": "retracted",
        "c1": "retracted",
        "r1.note": "complete",
        "m3": "complete",
    }


def test_an_input_that_is_logged_again_for_a_retry_is_shown_once() -> None:
    log = Log()
    log.message("r1", "m1")
    log.message("r2", "m1")
    assert log.shape() == [("user", "m1", "hello")]


def test_a_copy_is_independent_in_both_directions() -> None:
    log = Log()
    log.message("r1", "m1")
    log.text("r1", "a")
    log.call("r1", "c1")
    before = log.thread.messages()
    twin = log.thread.copy()
    twin.apply(Event(9, "s", 1, "r1", "tool.ended", {"call_id": "c1", "outcome": "finished", "content": "x"}, 1.0))
    twin.apply(Event(10, "s", 1, "r1", "text", {"text": "twin"}, 1.0))
    twin.apply(Event(11, "s", 1, "r1", "message.retracted", {"run_id": "r1", "ids": ["m1"]}, 1.0))
    assert log.thread.messages() == before
    log.text("r1", "b")
    assert log.shape() == [("user", "m1", "hello"), ("assistant", "r1.1", "ab")]
    assert [m.id for m in twin.messages()] == ["m1", "r1.1", "c1", "r1.2"]


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("mtcesr"), st.integers(0, 5)), max_size=60))
def test_twins_of_twins_show_what_was_applied_to_them_and_nothing_else(steps: list[tuple[int, str, int]]) -> None:
    twins: list[tuple[Thread, list[Event]]] = [(Thread(), [])]
    for seq, (which, what, number) in enumerate(steps, start=1):
        thread, applied = twins[which % len(twins)]
        run_id = f"r{number % 3}"
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            "m": ("message", {"id": f"m{number}", "content": "hello"}),
            "t": ("text", {"text": f"{seq} "}),
            "c": ("tool.requested", {"call_id": f"c{number}", "tool": "t", "arguments": {}}),
            "e": ("tool.ended", {"call_id": f"c{number}", "outcome": "finished", "content": f"{seq}"}),
            "s": ("run.status", {"status": "cancelling", "note": f"note {seq}"}),
            "r": ("message.retracted", {"run_id": run_id, "ids": [f"m{number}"]}),
        }
        kind, data = kinds[what]
        event = Event(seq, "s", 1, run_id, kind, data, 1.0)
        thread.apply(event)
        applied.append(event)
        if number == 0 and len(twins) < 4:
            twins.append((thread.copy(), list(applied)))
        for twin, events in twins:
            fresh = Thread()
            for past in events:
                fresh.apply(past)
            assert twin.messages() == fresh.messages()


def test_the_list_of_messages_belongs_to_the_caller() -> None:
    log = Log()
    log.message("r1", "m1")
    log.thread.messages().clear()
    assert len(log.thread.messages()) == 1


def test_kinds_that_say_nothing_about_messages_are_ignored() -> None:
    log = Log()
    log.add(None, "session.fenced", generation=3)
    log.add("r1", "run.started", agent="shell", inputs=[])
    log.add("r1", "run.status", status="in_progress")
    log.add("r1", "something.new", text="x")
    assert log.shape() == []
