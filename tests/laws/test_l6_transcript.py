"""L6 Transcript: what was told is what is kept; each call has one true result; the thread is valid at all times."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path

import msgspec
import pytest

from actors import CancelToken, NewMessage, Spawn, Turn, render_anthropic, render_openai, tool
from actors.model import Event
from actors.thread import Thread
from supervisor import SessionHandle
from tests.kit import WAIT_S, Kit, Listener, check_rest, log, say, stop, until
from tests.provider_checker import check_anthropic, check_openai


def fold(events: list[Event]) -> list[object]:
    thread = Thread()
    for event in events:
        thread.apply(event)
    return list(thread.messages())


def check_valid(session: SessionHandle) -> None:
    messages = session.thread()
    check_openai(render_openai(messages))
    check_anthropic(render_anthropic(messages))


def work(turn: Turn) -> None:
    while True:
        turn.emit("thinking ")
        turn.call("nap")


@tool(isolation="thread")
def nap(token: CancelToken) -> str:
    """Wait a moment."""
    token.wait(0.002)
    return "slept"


def test_l6_what_a_subscriber_was_given_is_what_the_log_holds_and_the_thread_is_its_fold(kit: Kit) -> None:
    session = kit.session(work, tools=[nap])
    live = Listener(session)
    seed = random.Random(6)
    for number in range(40):
        say(session, str(number))
        deadline = time.monotonic() + seed.random() * 0.008
        while time.monotonic() < deadline:
            pass
        if seed.random() < 0.5:
            stop(session)
    stop(session)
    events = check_rest(session)
    until(lambda: len(live.events) >= len(events), "the live subscriber has all")
    assert live.close() == events
    assert msgspec.to_builtins(session.thread()) == msgspec.to_builtins(fold(events))
    check_valid(session)
    kit.close()
    session = kit.session(work, tools=[nap])
    assert log(session)[: len(events)] == events
    assert session.thread() == fold(events)


def test_l6_the_thread_is_valid_input_after_every_single_event(kit: Kit) -> None:
    session = kit.session(work, tools=[nap])
    for number in range(6):
        say(session, str(number))
        until(lambda run=number: len(log(session)) > 10 * (run + 1), "some output")  # type: ignore[misc]
    stop(session)
    thread = Thread()
    for event in check_rest(session):
        thread.apply(event)
        check_openai(render_openai(thread.messages()))
        check_anthropic(render_anthropic(thread.messages()))


def test_l6_partial_text_is_kept_and_marked_and_a_note_names_who_stopped(kit: Kit) -> None:
    def speak(turn: Turn) -> None:
        for word in ("The ", "answer ", "is"):
            turn.emit(word)
        turn.cancel_token.wait()

    session = kit.session(speak)
    run_id = say(session, "tell me")
    until(lambda: len([e for e in log(session) if e.kind == "text"]) == 3)
    stop(session, "I know it")
    check_rest(session)
    shown = [(m.role, m.status, m.content) for m in session.thread()]
    assert shown[:2] == [("user", "complete", "tell me"), ("assistant", "partial", "The answer is")]
    assert [m.role for m in session.thread()] == ["user", "assistant", "note"]
    note = session.thread()[2]
    assert "user.test" in note.content
    assert "I know it" in note.content
    assert note.run_id == run_id


def test_l6_a_run_that_said_nothing_gets_no_text(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    say(session, "hello")
    stop(session)
    check_rest(session)
    assert [m.role for m in session.thread()] == ["user", "note"]


def test_l6_each_call_has_one_result_and_it_is_true(kit: Kit) -> None:
    inside = threading.Event()

    @tool(isolation="thread")
    def quick() -> str:
        return "quick"

    @tool(isolation="thread")
    def slow(token: CancelToken) -> None:
        inside.set()
        token.wait()

    def agent(turn: Turn) -> None:
        turn.call("quick")
        turn.call("nothing")
        turn.call("slow")

    session = kit.session(agent, tools=[quick, slow])
    say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    check_rest(session)
    results = [(m.outcome, m.is_error) for m in session.thread() if m.role == "tool"]
    assert results == [("finished", False), ("not_started", True), ("interrupted", True)]
    note = next(m for m in session.thread() if m.role == "note")
    assert "may have had effects" in note.content
    check_valid(session)


@pytest.mark.parametrize(
    "text", ["lone \ud800 surrogate", "nul \x00 byte", "\U0001f600 wide", "a\u0301 combining", "x" * 200_000]
)
def test_l6_any_text_is_kept_the_same_for_all(kit: Kit, text: str) -> None:
    def agent(turn: Turn) -> None:
        turn.emit(text)

    session = kit.session(agent)
    live = Listener(session)
    session.receipt(say(session, "go"), timeout=WAIT_S)
    events = check_rest(session)
    until(lambda: len(live.events) == len(events))
    assert live.close() == events
    said = "".join(event.data["text"] for event in events if event.kind == "text")
    assert said == next(m.content for m in session.thread() if m.role == "assistant")
    if text.isprintable():
        assert said == text


def test_l6_what_a_person_typed_is_accepted_whatever_characters_it_has(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.emit(str(len(turn.inputs))))
    for content in ("", "\ud800", "\x00", "\r\n\t", "\U0001f600"):
        run_id = say(session, content)
        session.receipt(run_id, timeout=WAIT_S)
    check_rest(session)
    assert len([m for m in session.thread() if m.role == "user"]) == 5


def test_l6_an_agent_sees_the_thread_as_the_log_has_it(kit: Kit) -> None:
    seen: list[list[tuple[str, str]]] = []

    def agent(turn: Turn) -> None:
        turn.emit("before")
        turn.call("nap")
        turn.emit("after")
        seen.append([(m.role, m.content) for m in turn.messages])

    session = kit.session(agent, tools=[nap])
    for number in range(2):
        session.receipt(say(session, str(number)), timeout=WAIT_S)
    assert seen[-1] == [(m.role, m.content) for m in session.thread()]


def test_l6_after_an_end_event_the_thread_is_already_whole(kit: Kit) -> None:
    inside = threading.Event()

    @tool(isolation="thread")
    def slow(token: CancelToken) -> None:
        inside.set()
        token.wait()

    session = kit.session(lambda turn: turn.call("slow"), tools=[slow])
    checked = threading.Event()

    def watch() -> None:
        with session.subscribe() as subscription:
            for event in subscription:
                if event.kind == "run.status":
                    check_valid(session)
                    if [m.outcome for m in session.thread() if m.role == "tool"] == ["interrupted"]:
                        checked.set()
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    session.ask(NewMessage(content="go"))
    assert inside.wait(WAIT_S)
    stop(session)
    thread.join(WAIT_S)
    assert checked.is_set()


def of_the_cut_off(session: SessionHandle) -> str:
    (content,) = [message.content for message in session.thread() if message.role == "tool"]
    assert isinstance(content, str)
    assert content.startswith("Interrupted: ")
    return content


def test_l6_a_call_that_is_cut_off_names_the_file_with_all_that_it_printed(kit: Kit) -> None:
    session = kit.session()
    say(session, kit.script("seq 1 4000; sleep 60; :"))
    until(lambda: any("\n4000\n" in event.data["text"] for event in log(session) if event.kind == "tool.output"))
    session.receipt(stop(session).run_id, timeout=WAIT_S)
    content = of_the_cut_off(session)
    assert "\n4000\n" in content
    assert "\n2000\n" not in content, "more was printed than is shown"
    path = re.search(r"What it printed, up to the limit of such a file, is in (\S+\.out),", content)
    assert path is not None, content
    # Less than what a finished call would show, so there is a file only because it was cut off.
    until(lambda: Path(path[1]).read_text() == "".join(f"{number}\n" for number in range(1, 4001)), "all of it")


def test_l6_a_call_that_is_cut_off_names_no_file_where_there_is_none(kit: Kit) -> None:
    @tool(isolation="thread")
    def two(spawn: Spawn) -> None:
        assert spawn(["seq", "1", "4000"]).wait(WAIT_S).spool is None
        spawn(["sh", "-c", kit.script("echo little; sleep 60; :")]).wait()

    session = kit.session(lambda turn: turn.call("two"), tools=[two])
    say(session)
    until(lambda: any("little" in event.data["text"] for event in log(session) if event.kind == "tool.output"))
    session.receipt(stop(session).run_id, timeout=WAIT_S)
    content = of_the_cut_off(session)
    assert "little" in content
    assert ".out" not in content
