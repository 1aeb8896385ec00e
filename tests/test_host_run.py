"""One run in a host: the cancel is first, nothing is accepted twice or late, and each failure has its sentence.

The file has over 600 lines, and is whole: one run, and the daemon's side of each of its frames.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from actors.errors import RunCancelled, TooLarge
from actors.events import MessageData, ProgressData, TypingData
from actors.gate.guard import NAMES_MAX, OTHERS
from actors.gate.pending import fail, settle
from actors.gate.token import CancelToken
from actors.hosts import ToolOffer
from actors.messages import (
    CallGivenUp,
    HandOffRequested,
    LateRefused,
    Said,
    SaveRequested,
    SteeringRequested,
    ToolResult,
)
from actors.model import Effect, How, Mode, Outcome, Provenance
from actors.plugin.execution import AgentDone
from actors.questions import Question
from supervisor.agent import Agent
from supervisor.hosts import host as host_module
from supervisor.hosts.frames import CANCEL_REQUEST, TEXT_MAX_BYTES
from supervisor.hosts.host import LOG_LINES_MAX
from supervisor.hosts.lines import Code
from supervisor.hosts.peer import REQUESTS_MAX
from tests.pool_kit import (
    FINISHED,
    HELLO,
    NAME,
    SESSION,
    SETTINGS,
    WHY,
    Ahead,
    Execution,
    Hosting,
    OneRun,
    Tree,
    hosting,
    message,
)
from tests.process_kit import until

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def hosts() -> Iterator[Hosting]:
    with hosting() as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process, or of a socket, is waited for briefly."""
    monkeypatch.setattr(host_module, "EXIT_S", 0.05)
    monkeypatch.setattr(host_module, "LAST_FRAMES_S", 0.05)


def methods(frames: list[dict[str, Any]]) -> list[str]:
    return [frame.get("method", "answer") for frame in frames]


def filled(tree: Tree, hosts: Hosting) -> None:
    """Fill the socket of a host, so that everything that is sent now is unsent."""

    def fill() -> None:
        channel = hosts.pool._hosts[tree.process_id]._peer.channel
        assert channel._sock is not None
        channel._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        channel.send(b'{"jsonrpc":"2.0","method":"filler","params":"' + b"x" * 300_000 + b'"}\n')
        assert channel.unsent_bytes

    hosts.loop.call(fill)


def committing(run: OneRun, condition: Callable[[], bool]) -> None:
    """Give back the credit of what is said, piece by piece, until something is true."""
    given = 0

    def go_on() -> bool:
        nonlocal given
        said = run.of(Said)
        if len(said) > given:
            given += 1
            run.credit.give(said[given - 1].size)
        return condition()

    until(go_on, "the end of what is said")


# ── Its beginning and its end ─────────────────────────────────────────────────────────────────────


def test_a_host_gets_everything_that_a_run_begins_with(hosts: Hosting) -> None:
    hosts.spare()
    tree = hosts.reserved()
    run = OneRun(thread=[message("m1"), message("m2")])
    frame = hosts.begin(tree, run, [ToolOffer("shell", "Run a script.", {"type": "object"})])
    params = frame["params"]
    assert params["fence"] == f"{SESSION}:4:"
    assert (params["session"], params["generation"], params["run"]) == (SESSION, 4, run.core.address.run)
    assert params["agent"] == NAME
    assert [one["id"] for one in params["thread"]] == params["inputs"] == ["m1", "m2"]
    assert params["tools"] == [{"name": "shell", "description": "Run a script.", "parameters": {"type": "object"}}]
    assert params["credit"] == {"events": 4, "bytes": 2_000}
    assert params["limits"] == {"grace_s": 0.5, "deadline_s": None}


def test_the_answer_of_the_host_is_the_end_of_the_agent(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    tree.host.answer(frame, value={"ok": [1, None]})
    assert run.end() == AgentDone(How.RETURNED, {"ok": [1, None]}, None)
    assert run.thread_of_finish == "cm-hosts"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"code": -32000, "message": "ValueError: no"}, "ValueError: no"),
        ({"code": -32000, "message": "x", "data": {"type": "ValueError", "message": "no"}}, "ValueError: no"),
        ({"code": -32000, "message": "no", "data": {"type": 1}}, "no"),
        ({"code": -32603}, "an error with the code -32603"),
        ({"code": -32800, "message": "cancelled"}, "its run was not cancelled"),
    ],
)
def test_an_agent_that_raises_has_raised(hosts: Hosting, error: dict[str, Any], text: str) -> None:
    tree, run, frame = hosts.running()
    tree.host.send(id=frame["id"], error=error)
    done = run.end()
    assert done.how is How.RAISED
    assert text in str(done.error)


def test_a_value_that_is_too_large_is_cut(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    tree.host.answer(frame, value="x" * 1_100_000)
    result = run.end().result
    assert len(result) < 1_050_000
    assert "more bytes" in result


def test_a_thread_that_is_longer_than_a_line_is_sent_in_one_frame(hosts: Hosting) -> None:
    hosts.spare()
    tree = hosts.reserved()
    frame = hosts.begin(tree, OneRun(thread=[message("m1", "x" * 9_000_000)]))
    assert len(frame["params"]["thread"][0]["content"]) == 9_000_000


def test_a_run_waits_for_the_hello_of_its_host(hosts: Hosting) -> None:
    run = OneRun()
    tree = hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    assert tree.host.nothing()
    tree.host.request("hello", **HELLO)
    assert methods([tree.host.next(), tree.host.next()]) == ["answer", "run"]


# ── The cancel ────────────────────────────────────────────────────────────────────────────────────


def test_the_cancel_says_who_and_why_and_for_how_long(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    run.cancel()
    cancel = tree.host.next()
    assert cancel["method"] == CANCEL_REQUEST
    assert cancel["params"]["requestId"] == frame["id"]
    assert cancel["params"]["fence"] == run.fence
    assert cancel["params"]["why"]["source"] == WHY.source
    assert (cancel["params"]["mode"], cancel["params"]["grace_s"]) == ("graceful", 0.5)
    tree.host.refuse(cancel | {"id": frame["id"]}, -32800)
    assert run.end() == AgentDone(How.CANCELLED, None, None)
    assert tree.host.nothing()


def test_an_immediate_stop_leaves_no_grace(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    run.cancel(Mode.IMMEDIATE)
    assert tree.host.next()["params"]["grace_s"] == 0


def test_the_cancel_is_the_first_frame_after_a_fence_whatever_the_fence_brings_about(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    for number in range(3):
        tree.host.request("call", fence=run.fence, tool="shell", arguments={"n": number})
    tree.host.request("steering", fence=run.fence)
    run.call(2)
    until(lambda: len(run.told) == 4, "everything to be asked for")
    # The replies of the calls fail inside the cancel, ahead of the waker that brings the cancel here.
    run.cancel()
    frames = [tree.host.next() for _ in range(5)]
    assert methods(frames) == [CANCEL_REQUEST, "answer", "answer", "answer", "answer"]
    assert {one["error"]["code"] for one in frames[1:]} == {Code.CANCELLED}
    assert {one["error"]["data"]["provenance"]["source"] for one in frames[1:]} == {WHY.source}


def test_a_host_that_was_sent_no_run_gets_no_cancel(hosts: Hosting) -> None:
    run = OneRun()
    tree = hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    run.cancel()
    assert run.end() == AgentDone(How.CANCELLED, None, None)
    tree.host.request("hello", **HELLO)
    tree.host.next()
    assert tree.host.nothing()


def test_a_run_that_was_cancelled_before_it_was_sent_to_a_spare_is_not_sent(hosts: Hosting) -> None:
    hosts.spare()
    tree, run = hosts.reserved(), OneRun()
    run.cancel()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    assert run.end() == AgentDone(How.CANCELLED, None, None)
    assert tree.host.nothing()


def test_a_run_of_which_nothing_was_written_is_taken_back(hosts: Hosting) -> None:
    hosts.spare()
    tree, run = hosts.reserved(), OneRun()
    filled(tree, hosts)
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    hosts.loop.call(lambda: None)
    run.cancel()
    assert run.end() == AgentDone(How.CANCELLED, None, None)
    assert tree.host.next()["method"] == "filler"
    assert tree.host.nothing()


def test_the_cancel_overtakes_answers_that_a_slow_host_has_not_read(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="shell")
    call = run.call()
    filled(tree, hosts)
    assert call.reply is not None
    settle(call.reply, FINISHED)
    hosts.loop.call(lambda: None)
    run.cancel()
    hosts.loop.call(lambda: None)
    assert methods([tree.host.next() for _ in range(3)]) == ["filler", CANCEL_REQUEST, "answer"]


def test_an_agent_that_returns_after_its_cancel_has_returned(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    run.cancel()
    tree.host.next()
    tree.host.answer(frame, value=1)
    assert run.end() == AgentDone(How.RETURNED, 1, None)


def test_a_cancel_after_the_end_is_not_sent(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    tree.host.answer(frame, value=1)
    run.end()
    run.cancel()
    assert tree.host.nothing()


# ── What it says ──────────────────────────────────────────────────────────────────────────────────


def test_the_frames_of_a_host_come_to_its_run_in_order_with_the_bytes_of_their_lines(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    lines = [
        json.dumps({"jsonrpc": "2.0", "method": method, "params": {"fence": run.fence, **params}}).encode()
        for method, params in (("emit", {"text": "eins ä"}), ("typing", {}), ("progress", {"data": {"done": 0.5}}))
    ]
    tree.host.write(b"\n".join(lines) + b"\n")
    until(lambda: len(run.told) == 3, "all of it")
    assert [one.size for one in run.told] == [len(line) for line in lines]
    assert run.said() == ["eins ä"]
    assert run.told[1].data == TypingData()
    assert run.told[2].data == ProgressData(shown={"done": 0.5})


def test_a_host_that_counts_credit_gets_what_is_given_back(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    for text in ("one", "two"):
        tree.host.note("emit", fence=run.fence, text=text)
    until(lambda: len(run.told) == 2, "both texts")

    def commit() -> None:
        # Together, so that they are told together.
        for one in run.of(Said):
            run.credit.give(one.size)

    hosts.loop.call(commit)
    size = sum(one.size for one in run.of(Said))
    assert tree.host.next() == {
        "jsonrpc": "2.0",
        "method": "credit",
        "params": {"fence": run.fence, "events": 2, "bytes": size},
    }
    assert tree.host.nothing()


@pytest.mark.parametrize("end", ["its answer", "its cancel"])
def test_a_host_gets_no_credit_after_the_end_of_its_run(hosts: Hosting, end: str) -> None:
    tree, run, frame = hosts.running(can=["credit"])
    tree.host.note("emit", fence=run.fence, text="one")
    until(run.said, "the text")
    if end == "its answer":
        tree.host.answer(frame, value=1)
        run.end()
    else:
        run.cancel()
        assert tree.host.next()["method"] == CANCEL_REQUEST
    run.credit.give(run.told[0].size)
    assert tree.host.nothing()


def test_a_host_that_says_all_that_its_credit_allows_again_and_again_is_never_overdrawn(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    events, size, given = 4, 2_000, 0
    for number in range(60):
        line = json.dumps(
            {"jsonrpc": "2.0", "method": "emit", "params": {"fence": run.fence, "text": "ä" * (number * 37 % 700 + 1)}}
        ).encode()
        while events < 1 or size < min(len(line), 2_000):
            for one in run.of(Said)[given:]:
                run.credit.give(one.size)
                given += 1
            credit = tree.host.next()["params"]
            events, size = events + credit["events"], size + credit["bytes"]
        events, size = events - 1, size - min(len(line), 2_000)
        tree.host.write(line + b"\n")
        until(lambda: len(run.of(Said)) == number + 1, "the text")  # noqa: B023  # it is called here
    assert not run.over


def test_a_host_that_counts_and_says_too_much_fails(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    for _ in range(5):
        tree.host.note("emit", fence=run.fence, text="x")
    done = run.end()
    assert done.how is How.RAISED
    assert (
        done.error == f"host.protocol: the host of agent {NAME} broke the protocol: it said more than it has credit for"
    )
    assert len(run.of(Said)) == 4
    assert tree.host.closed()


def test_a_host_that_does_not_count_is_read_no_further_until_there_is_credit(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    for number in range(6):
        tree.host.note("emit", fence=run.fence, text=str(number))
    tree.host.answer(frame, value="the end")
    until(lambda: len(run.told) == 4, "as much as there is credit for")
    assert hosts.loop.call(lambda: len(run.told)) == 4
    assert not run.over
    run.credit.give(run.told[0].size)
    until(lambda: len(run.told) == 5, "one more")
    run.credit.give(run.told[1].size)
    assert run.end().result == "the end"
    assert run.said() == ["0", "1", "2", "3", "4", "5"]


def test_a_host_that_waits_for_credit_hears_its_cancel_and_is_heard(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    for number in range(7):
        tree.host.note("emit", fence=run.fence, text=str(number))
    until(lambda: len(run.told) == 4, "as much as there is credit for")
    run.cancel()
    assert tree.host.next()["method"] == CANCEL_REQUEST
    tree.host.refuse(frame, -32800)
    assert run.end() == AgentDone(How.CANCELLED, None, None)
    assert run.said() == ["0", "1", "2", "3"]
    assert run.refused() == {"text": 3}


@pytest.mark.parametrize("text", ["x" * (TEXT_MAX_BYTES * 3 + 5), "𝄞" * TEXT_MAX_BYTES])
def test_a_long_text_of_a_host_that_does_not_count_is_divided(hosts: Hosting, text: str) -> None:
    tree, run, _ = hosts.running()
    tree.host.note("emit", fence=run.fence, text=text)
    tree.host.note("emit", fence=run.fence, text="behind it")
    committing(run, lambda: "".join(run.said()) == text + "behind it")
    assert max(len(piece.encode()) for piece in run.said()) <= TEXT_MAX_BYTES


def test_a_text_of_eight_mebibytes_is_divided_without_a_deep_stack(hosts: Hosting) -> None:
    with hosting() as plenty:
        tree, run, _ = plenty.running()
        run.core.credit._events = run.core.credit._size = run.core.credit._size_max = 2**40
        tree.host.note("emit", fence=run.fence, text="x" * 8_000_000)
        until(lambda: sum(map(len, run.said())) == 8_000_000, "all of it")


def test_a_long_text_of_a_host_that_counts_breaks_the_protocol(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    tree.host.note("emit", fence=run.fence, text="x" * (TEXT_MAX_BYTES + 1))
    assert "65537 bytes of text at once" in str(run.end().error)


def test_an_empty_text_says_nothing_and_costs_nothing(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    tree.host.note("emit", fence=run.fence, text="")
    assert tree.host.next()["params"]["events"] == 1
    assert not run.told


def test_a_progress_that_is_too_large_breaks_the_protocol(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.note("progress", fence=run.fence, data={"x": "y" * 1_100_000})
    assert "this progress is too large" in str(run.end().error)


def test_what_it_says_after_its_cancel_is_counted_and_has_no_effect(hosts: Hosting) -> None:
    tree, run, frame = hosts.running(can=["credit"])
    tree.host.note("emit", fence=run.fence, text="before")
    until(lambda: run.said() == ["before"], "what was said before")
    run.cancel()
    tree.host.next()
    for _ in range(500):
        tree.host.note("emit", fence=run.fence, text="after")
    tree.host.note("typing", fence=run.fence)
    tree.host.note("progress", fence=run.fence, data={})
    tree.host.request("call", fence=run.fence, tool="shell")
    tree.host.request("steering", fence=run.fence)
    tree.host.request("state", fence=run.fence, changes={"late": 1})
    tree.host.request("hand_off", fence=run.fence, agent="late")
    tree.host.request("guard", fence=run.fence, name="late")
    assert [tree.host.next()["error"]["code"] for _ in range(5)] == [Code.CANCELLED] * 5
    tree.host.refuse(frame, -32800)
    assert run.end().how is How.CANCELLED
    assert run.said() == ["before"]
    assert not run.of(SaveRequested)
    assert run.core.token.effects == ()
    once = dict.fromkeys(("typing", "progress", "call", "steering", "state", "hand_off", "guard"), 1)
    assert run.refused() == {"text": 500, **once}
    assert not run.of(HandOffRequested)


def test_a_flood_after_the_cancel_is_reported_from_time_to_time_and_not_frame_by_frame(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    run.cancel()
    tree.host.next()
    line = json.dumps({"jsonrpc": "2.0", "method": "emit", "params": {"fence": run.fence, "text": "x"}}).encode()
    tree.host.write((line + b"\n") * 20_000)
    until(lambda: run.refused() == {"text": 20_000}, "all of it to be counted")
    assert len(run.told) < 2_000


def test_what_names_a_run_that_is_over_is_refused_and_counted(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    tree.host.answer(frame, value=1)
    run.end()
    tree.host.note("emit", fence=run.fence, text="late")
    tree.host.request("call", fence=run.fence, tool="shell")
    assert tree.host.next()["error"]["code"] == Code.STALE
    until(lambda: run.refused() == {"text": 1, "call": 1}, "both to be counted")
    status = hosts.host(tree)
    assert status is not None
    assert status.refused == 2


@pytest.mark.parametrize("fence", ["", "s1:3:", "s1:4:call_1", "s2:4:", "s1:5:", "\x00"])
def test_a_fence_that_is_not_of_the_run_has_no_effect(hosts: Hosting, fence: str) -> None:
    tree, run, frame = hosts.running()
    tree.host.note("emit", fence=fence, text="x")
    tree.host.note("progress", fence=fence, data={})
    tree.host.note("typing", fence=fence)
    tree.host.note(CANCEL_REQUEST, fence=fence, requestId=1)
    for method in ("call", "steering"):
        tree.host.request(method, fence=fence, tool="shell")
        assert tree.host.next()["error"]["code"] == Code.STALE
    tree.host.answer(frame, value=1)
    assert run.end().how is How.RETURNED
    # What the tool of a call may say is counted, if that is over.
    assert {type(one) for one in run.told} <= {LateRefused}


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_is_asked_for_and_answered_with_its_result(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request("call", fence=run.fence, tool="shell", arguments={"script": "true"})
    call = run.call()
    assert (call.tool, call.arguments, call.made) == ("shell", {"script": "true"}, None)
    assert call.reply is not None
    settle(call.reply, ToolResult(Outcome.INTERRUPTED, "cut", is_error=True, data={"a": 1}))
    assert tree.host.next() == {
        "jsonrpc": "2.0",
        "id": number,
        "result": {
            "call": call.address.call,
            "outcome": "interrupted",
            "content": "cut",
            "is_error": True,
            "data": {"a": 1},
        },
    }


def test_a_call_costs_the_bytes_of_its_line(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    line = b'{"jsonrpc":"2.0","id":1,"method":"call","params":{"fence":"%s","tool":"t","arguments":{"a":  "\\u00e4"}}}'
    line %= run.fence.encode()
    tree.host.write(line + b"\n")
    assert run.call().size == len(line)
    assert run.credit._size == 2_000 - len(line)


def test_a_result_whose_escapes_do_not_fit_into_a_line_is_cut(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="shell")
    reply = run.call().reply
    assert reply is not None
    settle(reply, ToolResult(Outcome.FINISHED, "\x01" * 1_048_576, data="\x01" * 1_048_576))
    result = tree.host.next()["result"]
    assert "more bytes" in result["content"]
    assert result["data"] is None


def test_the_check_of_a_call_that_blocks_holds_up_its_own_host_alone(hosts: Hosting) -> None:
    checking, go_on = threading.Event(), threading.Event()

    def check(name: str, arguments: dict[str, Any]) -> str | None:
        checking.set()
        assert go_on.wait(30)
        return "it does not fit"

    tree, run, _ = hosts.running(check=check)
    tree.host.request("call", fence=run.fence, tool="shell")
    tree.host.note("emit", fence=run.fence, text="behind the call")
    assert checking.wait(30)
    other_tree, other, _ = hosts.running(session="s2", generation=1)
    other_tree.host.note("emit", fence=other.fence, text="hello")
    until(lambda: other.said() == ["hello"], "the other host to be heard")
    assert not run.told
    go_on.set()
    assert run.call().problem == "it does not fit"
    until(lambda: run.said() == ["behind the call"], "what stands behind the call")


def test_a_cancel_does_not_wait_for_the_check_of_a_call(hosts: Hosting) -> None:
    checking, go_on = threading.Event(), threading.Event()

    def check(name: str, arguments: dict[str, Any]) -> str | None:
        checking.set()
        assert go_on.wait(30)
        return None

    tree, run, frame = hosts.running(check=check)
    number = tree.host.request("call", fence=run.fence, tool="shell")
    assert checking.wait(30)
    run.cancel()
    assert tree.host.next()["method"] == CANCEL_REQUEST
    tree.host.refuse(frame, -32800)
    assert run.end().how is How.CANCELLED
    go_on.set()
    answer = tree.host.next()
    assert (answer["id"], answer["error"]["code"]) == (number, Code.CANCELLED)
    assert not run.calls()


def test_a_call_whose_check_raises_is_refused(hosts: Hosting) -> None:
    def check(name: str, arguments: dict[str, Any]) -> str | None:
        raise ValueError("a foreign check")

    tree, run, _ = hosts.running(check=check)
    tree.host.request("call", fence=run.fence, tool="shell")
    assert "a foreign check" in tree.host.next()["error"]["message"]
    tree.host.note("emit", fence=run.fence, text="and on")
    until(lambda: run.said() == ["and on"], "the next frame")


def test_one_request_too_many_is_refused_and_the_others_stay_open(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    for _ in range(REQUESTS_MAX):
        tree.host.request("steering", fence=run.fence)
    refused = tree.host.request("steering", fence=run.fence)
    answer = tree.host.next()
    assert (answer["id"], answer["error"]["code"]) == (refused, Code.REFUSED)
    assert len(run.of(SteeringRequested)) == REQUESTS_MAX
    run.steer()
    assert tree.host.next()["result"] == {"messages": []}
    tree.host.request("steering", fence=run.fence)
    until(lambda: len(run.of(SteeringRequested)) == REQUESTS_MAX + 1, "the next request")


def test_what_a_refused_call_has_cost_is_given_back(hosts: Hosting) -> None:
    def check(name: str, arguments: dict[str, Any]) -> str | None:
        raise ValueError("a foreign check")

    tree, run, _ = hosts.running(can=["credit"], check=check)
    for params in (b'{"fence":"%s"}' % run.fence.encode(), b'{"fence":"%s","tool":"t"}' % run.fence.encode()):
        line = b'{"jsonrpc":"2.0","id":7,"method":"call","params":%s}' % params
        tree.host.write(line + b"\n")
        frames = [tree.host.next(), tree.host.next()]
        credit = next(frame for frame in frames if frame.get("method") == "credit")
        assert (credit["params"]["events"], credit["params"]["bytes"]) == (1, len(line))
        assert any("error" in frame for frame in frames)


def test_a_call_that_the_host_does_not_wait_for_is_given_up(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request("call", fence=run.fence, tool="shell")
    call = run.call()
    for _ in range(3):
        tree.host.note(CANCEL_REQUEST, fence=run.fence, requestId=number)
    tree.host.note("emit", fence=run.fence, text="w")
    until(run.said, "what stands behind it")
    assert [given_up.address for given_up in run.of(CallGivenUp)] == [call.address]
    # It has its result, and then it is nothing that could be given up.
    assert call.reply is not None
    settle(call.reply, ToolResult(Outcome.INTERRUPTED, "given up"))
    assert tree.host.next()["result"]["outcome"] == "interrupted"
    tree.host.note(CANCEL_REQUEST, fence=run.fence, requestId=number)
    tree.host.note("emit", fence=run.fence, text="x")
    until(lambda: run.said() == ["w", "x"], "what stands behind it")
    assert len(run.of(CallGivenUp)) == 1


def test_a_call_whose_reply_fails_otherwise_is_answered_too(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="shell")
    reply = run.call().reply
    assert reply is not None
    fail(reply, OSError("gone"))
    assert "gone" in tree.host.next()["error"]["message"]


def test_calls_that_are_open_at_the_end_of_the_agent_are_answered(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    number = tree.host.request("call", fence=run.fence, tool="shell")
    call = run.call()
    tree.host.answer(frame, value=1)
    run.end()
    assert call.reply is not None
    settle(call.reply, ToolResult(Outcome.INTERRUPTED, "the run has ended"))
    assert tree.host.next()["id"] == number


def test_what_it_saves_is_answered_when_it_is_durable_and_a_refusal_says_why(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    assert frame["params"]["state"] == {}
    numbers = [tree.host.request("state", fence=run.fence, changes={"a": [1], "b": None}) for _ in range(2)]
    until(lambda: len(run.of(SaveRequested)) == 2, "two requests")
    first, second = run.of(SaveRequested)
    assert (first.changes, first.size) == ({"a": [1], "b": None}, None)
    fail(second.saved, TooLarge("too large", got="70,000 bytes"))
    refused = tree.host.next()
    assert (refused["id"], refused["error"]["data"]["code"]) == (numbers[1], "too_large")
    settle(first.saved, None)
    assert tree.host.next() == {"jsonrpc": "2.0", "id": numbers[0], "result": {}}


def test_a_guard_is_entered_in_the_daemon_and_what_is_none_is_refused(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    for _ in range(2):
        number = tree.host.request("guard", fence=run.fence, name="publish")
        assert tree.host.next() == {"jsonrpc": "2.0", "id": number, "result": {}}
    tree.host.note("guard.done", fence=run.fence, name="publish")
    tree.host.note("guard.done", fence=f"{run.fence}call_9", name="publish")
    tree.host.request("guard", fence=f"{run.fence}call_9", name="publish")
    stale = tree.host.next()["error"]
    assert (stale["code"], stale["data"]["provenance"]["reason"]) == (Code.STALE, "the call is closed")
    for other in ("other:4:", "other:4:call_9"):
        tree.host.request("guard", fence=other, name="publish")
        tree.host.note("guard.done", fence=other, name="publish")
        assert tree.host.next()["error"]["code"] == Code.STALE
    tree.host.request("guard", fence=run.fence, name="  ")
    assert tree.host.next()["error"]["data"]["code"] == "invalid"
    for name in (None, 7, ["publish"]):
        tree.host.request("guard", fence=run.fence, name=name)
        assert tree.host.next()["error"]["code"] == Code.INVALID_PARAMS
    # Both are of another kind than they have to be.
    tree.host.note("guard", fence=run.fence, name="publish")
    tree.host.request("guard.done", fence=run.fence, name="publish")
    assert tree.host.next()["error"]["code"] == Code.NO_METHOD
    assert run.core.token.effects == (Effect("publish", 2, 1),)
    until(lambda: run.refused() == {"guard": 1}, "it is counted")


def test_l14_the_names_of_effects_in_a_host_are_short_lines_and_only_so_many(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    names = [f"effect {number}" for number in range(NAMES_MAX + 2)] + ["a\nb" + "x" * 100_000]
    for name in names:
        tree.host.request("guard", fence=run.fence, name=name)
        assert "result" in tree.host.next()
        tree.host.note("guard.done", fence=run.fence, name=name)
    until(lambda: run.core.token.effects[-1].done == 3, "all are done")
    assert len(run.core.token.effects) == NAMES_MAX + 1
    assert run.core.token.effects[-1] == Effect(OTHERS, 3, 3)


@pytest.mark.parametrize(
    ("begun", "done"), [([], "publish"), (["publish"], "another"), (["publish"], ""), (["publish", "publish"], None)]
)
def test_a_host_that_says_of_what_had_not_begun_that_it_is_done_breaks_the_protocol(
    hosts: Hosting, begun: list[str], done: str | None
) -> None:
    tree, run, _ = hosts.running()
    for name in begun:
        tree.host.request("guard", fence=run.fence, name=name)
        assert "result" in tree.host.next()
    for name in [*begun, "publish"] if done is None else [done]:
        tree.host.note("guard.done", fence=run.fence, name=name)
    end = run.end()
    assert end.how is How.RAISED
    assert "broke the protocol: it says of an effect that it is done, which had not begun" in str(end.error)
    assert sum(effect.begun for effect in run.core.token.effects) == len(begun)


def test_l6_an_effect_whose_host_is_gone_has_begun_and_is_not_known_to_be_done(hosts: Hosting, quick: None) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("guard", fence=run.fence, name="publish")
    assert "result" in tree.host.next()
    tree.die(1)
    assert run.end().how is How.RAISED
    assert run.core.token.effects == (Effect("publish"),)


def test_l1_a_cancel_comes_before_the_answer_to_a_guard_that_it_has_overtaken(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    begin = CancelToken._begin_effect

    def overtaken(token: CancelToken, name: str) -> None:
        begin(token, name)
        run.cancel()

    with mock.patch.object(CancelToken, "_begin_effect", overtaken):
        number = tree.host.request("guard", fence=run.fence, name="publish")
        frames = [tree.host.next() for _ in range(2)]
    assert [frame.get("method", frame.get("id")) for frame in frames] == [CANCEL_REQUEST, number]
    assert run.core.token.effects == (Effect("publish"),)


def test_a_question_is_asked_for_and_answered_as_a_call_is(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    number = tree.host.request("ask", fence=run.fence, question="Deploy?", options=["yes", "no"])
    call = run.call()
    assert (call.tool, call.arguments) == ("ask", {"question": "Deploy?", "options": ["yes", "no"]})
    assert call.question == Question("Deploy?", ("yes", "no"))
    assert call.size is not None, "it costs what its line has"
    assert call.reply is not None
    settle(call.reply, ToolResult(Outcome.FINISHED, "yes"))
    answer = tree.host.next()
    assert (answer["id"], answer["result"]["outcome"], answer["result"]["content"]) == (number, "finished", "yes")
    tree.host.request("ask", fence=run.fence, question=" ")
    frames = [tree.host.next() for _ in range(2)]
    assert [frame["error"]["code"] for frame in frames if "error" in frame] == [Code.REFUSED]
    assert [frame["params"]["events"] for frame in frames if "params" in frame] == [1], "its credit is given back"
    tree.host.request("call", fence=run.fence, tool="shell", arguments={}, ask=True)
    asked = run.call(1)
    assert asked.question is not None
    assert asked.question.approval


def test_steering_brings_the_messages_that_wait(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("steering", fence=run.fence)
    run.steer(message("m7", "go left"))
    (steered,) = tree.host.next()["result"]["messages"]
    assert (steered["id"], steered["content"]) == ("m7", "go left")


def test_the_run_has_the_span_of_the_message_that_it_answers(hosts: Hosting) -> None:
    hosts.spare()
    tree, run = hosts.reserved(), OneRun()
    with run.core._lock:
        for key, span in (("m1", SPAN), ("m2", None)):
            run.core._apply(MessageData(id=key, content="go", traceparent=span))
            run.core._inputs.add(key)
    assert hosts.begin(tree, run)["params"]["_meta"] == {"traceparent": SPAN}


def test_a_run_whose_message_has_no_span_has_no_meta(hosts: Hosting) -> None:
    _, _, frame = hosts.running()
    assert "_meta" not in frame["params"]


# ── Calls that the host executes ──────────────────────────────────────────────────────────────────


def executing(hosts: Hosting, **options: Any) -> tuple[Tree, OneRun, dict[str, Any], Execution, dict[str, Any]]:
    """A host that executes a call: its tree, its run, the run's frame, the call, the frame of `execute`."""
    tree, run, frame = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", arguments={"city": "Bern"}, where="host", **options)
    execution = Execution(run.call(), run.token)
    return tree, run, frame, execution, tree.host.next()


def test_a_call_of_the_hosts_own_is_executed_when_its_cell_is_started(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request(
        "call", fence=run.fence, tool="weather", arguments={"city": "Bern"}, where="host", deadline_s=3.5
    )
    call = run.call()
    assert call.made is not None
    assert (call.tool, call.made.name, call.made.deadline_s) == ("weather", "weather", 3.5)
    assert tree.host.nothing(), "nothing is executed before its cell is started (W4)"
    execution = Execution(call, run.token)
    frame = tree.host.next()
    assert frame["method"] == "execute"
    assert frame["params"] == {
        "fence": call.address.fence,
        "call": call.address.call,
        "of": number,
        "deadline_s": 3.5,
    }
    tree.host.answer(frame, content="sunny", data={"c": 20})
    assert execution.end() == ToolResult(Outcome.FINISHED, "sunny", data={"c": 20})


@pytest.mark.parametrize("where", ["host", "daemon"])
@pytest.mark.parametrize(
    ("name", "kept"), [("toolu_01", "toolu_01"), ("\ud83d", "\ufffd"), ("x" * 1_000, "x" * 256), (None, None)]
)
def test_the_session_gets_the_models_id_of_a_call_and_which_side_executes_it(
    hosts: Hosting, where: str, name: str | None, kept: str | None
) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where=where, provider_id=name)
    call = run.call()
    assert (call.provider_id, call.where) == (kept, where)


def test_a_call_whose_arguments_are_too_large_is_asked_for_under_its_names(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    arguments = {"text": "x" * (SETTINGS.content_max_bytes + 1)}
    params = {"fence": run.fence, "tool": "weather", "arguments": arguments, "provider_id": "toolu_01"}
    tree.host.request("call", where="host", **params)
    call = run.call()
    assert call.problem is not None
    assert (call.arguments, call.provider_id, call.where) == ({}, "toolu_01", "host")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": -32000, "data": {"type": "KeyError", "message": "'x'"}}, "KeyError: 'x'"),
        ({"code": -32000, "message": "no such city"}, "no such city"),
    ],
)
def test_what_raised_in_the_host_is_the_result(hosts: Hosting, error: dict[str, Any], expected: str) -> None:
    tree, _, _, execution, frame = executing(hosts)
    tree.host.send(id=frame["id"], error=error)
    assert execution.end() == ToolResult(Outcome.FINISHED, expected, is_error=True)


def test_a_call_that_ends_as_cancelled_without_a_cancel_has_failed(hosts: Hosting) -> None:
    tree, _, _, execution, frame = executing(hosts)
    tree.host.refuse(frame, -32800, "by itself")
    end = execution.end()
    assert type(end) is asyncio.CancelledError
    assert str(end) == "by itself"


def test_the_cancel_of_a_run_is_followed_by_one_for_each_call_that_the_host_executes(hosts: Hosting) -> None:
    tree, run, frame, execution, execute = executing(hosts)
    run.cancel()
    first, second = tree.host.next(), tree.host.next()
    assert (first["params"]["requestId"], first["params"]["fence"]) == (frame["id"], run.fence)
    answers = [tree.host.next()]
    if "method" not in second:
        second, answers = answers[0], [second]
    assert second["method"] == CANCEL_REQUEST
    assert (second["params"]["requestId"], second["params"]["fence"]) == (execute["id"], execution.fence)
    assert execution.ends.empty(), "its code may go on, so it has not ended"
    tree.host.refuse(execute, -32800)
    assert isinstance(execution.end(), RunCancelled)


def test_the_end_of_one_call_is_sent_to_its_host_and_ends_no_run(hosts: Hosting) -> None:
    tree, run, _, execution, execute = executing(hosts)
    why = Provenance(source="tool.deadline", reason="too slow")
    execution.token.cancel(why)
    cancel = tree.host.next()
    assert (cancel["params"]["requestId"], cancel["params"]["why"]["source"]) == (execute["id"], "tool.deadline")
    tree.host.answer(execute, content="finished all the same")
    assert execution.end().content == "finished all the same"
    assert not run.over
    assert tree.host.nothing()


def test_a_call_that_was_cancelled_before_it_was_sent_to_the_host_never_begins(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where="host")
    call = run.call()
    run.cancel()
    execution = Execution(call, run.token)
    assert isinstance(execution.end(), RunCancelled)
    assert methods([tree.host.next(), tree.host.next()]) == [CANCEL_REQUEST, "answer"]
    assert tree.host.nothing()


def test_an_execute_that_is_unsent_at_the_cancel_is_withdrawn(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where="host")
    call = run.call()
    filled(tree, hosts)
    execution = Execution(call, run.token)
    hosts.loop.call(lambda: None)
    run.cancel()
    assert isinstance(execution.end(), RunCancelled)
    assert methods([tree.host.next() for _ in range(3)]) == ["filler", CANCEL_REQUEST, "answer"]
    assert tree.host.nothing()


def test_an_execute_that_is_unsent_at_the_cancel_does_not_leave_before_its_own_cancel_comes(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where="host")
    call = run.call()
    filled(tree, hosts)
    # The cancel of the run's token reaches those of its calls one after the other.
    call_token = CancelToken(lambda callback: callback())
    execution = Execution(call, call_token)
    hosts.loop.call(lambda: None)
    run.cancel()
    hosts.loop.call(lambda: None)
    assert methods([tree.host.next() for _ in range(3)]) == ["filler", CANCEL_REQUEST, "answer"]
    assert tree.host.nothing()
    assert execution.ends.empty()
    call_token.cancel(WHY)
    assert isinstance(execution.end(), RunCancelled)
    assert tree.host.nothing()


def test_the_cancel_of_a_call_does_not_overtake_that_of_its_run(hosts: Hosting) -> None:
    tree, run, frame, _, execute = executing(hosts)
    filled(tree, hosts)
    run.cancel()
    hosts.loop.call(lambda: None)
    assert tree.host.next()["method"] == "filler"
    assert tree.host.next()["params"]["requestId"] == frame["id"]
    assert tree.host.next()["params"]["requestId"] == execute["id"]


def test_an_execute_that_is_unsent_at_the_deadline_of_its_call_is_withdrawn(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where="host")
    call = run.call()
    filled(tree, hosts)
    execution = Execution(call, run.token)
    hosts.loop.call(lambda: None)
    execution.token.cancel(Provenance(source="tool.deadline", reason="too slow"))
    assert isinstance(execution.end(), RunCancelled)
    assert tree.host.next()["method"] == "filler"
    assert tree.host.nothing()


def test_a_call_that_the_host_executes_outlives_the_answer_of_its_run(hosts: Hosting) -> None:
    tree, run, frame, execution, execute = executing(hosts)
    tree.host.answer(frame, value=1)
    assert run.end().how is How.RETURNED
    assert execution.ends.empty()
    tree.host.answer(execute, content="late")
    assert execution.end().content == "late"


def test_calls_that_the_host_executes_end_with_its_process_and_not_with_its_socket(hosts: Hosting, quick: None) -> None:
    tree, run, _, execution, _ = executing(hosts)
    tree.host.sock.close()
    assert "closed its connection" in str(run.end().error)
    assert execution.ends.empty(), "its code may go on"
    tree.exit(-11)
    assert "killed by SIGSEGV" in str(execution.end())


def test_a_delegation_of_a_host_is_a_call_that_brings_its_work_along(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    number = tree.host.request("delegate", fence=run.fence, agent="worker", message="go", session="c")
    call = run.call()
    assert (call.tool, call.arguments) == ("delegate", {"agent": "worker", "message": "go", "session": "c"})
    assert call.made is not None
    assert call.made.child == "worker"
    assert call.reply is not None
    call.reply.set_result(ToolResult(Outcome.NOT_STARTED, "Not started: there is no such agent.", is_error=True))
    answer = tree.host.next()
    assert answer["id"] == number
    assert answer["result"]["outcome"] == "not_started"
    assert (answer["result"]["session"], answer["result"]["status"]) == ("", None)
    tree.host.request("delegate", fence=run.fence, agent="worker", message="go", session="\n")
    assert tree.host.next()["error"]["code"] == Code.REFUSED


def test_an_answer_to_execute_that_does_not_fit_breaks_the_protocol_and_ends_the_call(hosts: Hosting) -> None:
    tree, run, _, execution, execute = executing(hosts)
    tree.host.send(id=execute["id"], result={"content": 7})
    assert "its answer does not fit" in str(execution.end())
    assert "host.protocol" in str(run.end().error)


def test_a_call_that_comes_to_a_host_which_was_cut_off_never_begins(hosts: Hosting) -> None:
    tree, run, _ = hosts.running()
    tree.host.request("call", fence=run.fence, tool="weather", where="host")
    call = run.call()
    tree.host.write(b"nonsense\n")
    run.end()
    assert "the channel of its host is closed" in str(Execution(call, run.token).end())


# ── Whatever else it says ─────────────────────────────────────────────────────────────────────────


def test_an_unknown_request_and_wrong_parameters_are_refused_and_change_nothing(hosts: Hosting) -> None:
    tree, run, frame = hosts.running()
    tree.host.request("telepathy", fence=run.fence)
    assert tree.host.next()["error"]["code"] == Code.NO_METHOD
    tree.host.request("emit", fence=run.fence, text="a notification as a request")
    assert tree.host.next()["error"]["code"] == Code.NO_METHOD
    tree.host.request("call", fence=run.fence, arguments={})
    assert tree.host.next()["error"]["code"] == Code.INVALID_PARAMS
    tree.host.note("telemetry", anything=1)
    tree.host.note("call", fence=run.fence, tool="a request as a notification")
    tree.host.answer(frame, value=1)
    assert run.end().how is How.RETURNED
    assert not run.told
    status = hosts.host(tree)
    assert status is not None
    assert status.ignored == 2


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"Traceback (most recent call last):", "no frame: JSON is malformed"),
        (b'{"jsonrpc":"2.0","method":"emit","params":{"fence":"s1:4:","text":5}}', "parameters of its emit do not fit"),
        (b'{"jsonrpc":"2.0","id":9,"result":{}}', "answered 9"),
        (b'{"jsonrpc":"2.0","id":9,"method":"hello","params":{"protocol":[1]}}', "hello twice"),
        (b'{"jsonrpc":"2.0","id":1,"result":"no object"}', "its answer to run does not fit"),
    ],
)
def test_what_breaks_the_protocol_fails_the_run_with_what_it_was(hosts: Hosting, line: bytes, what: str) -> None:
    tree, run, _ = hosts.running()
    tree.host.write(line + b"\n")
    done = run.end()
    assert done.how is How.RAISED
    assert str(done.error).startswith(f"host.protocol: the host of agent {NAME} broke the protocol: ")
    assert what in str(done.error)
    assert len(str(done.error)) < 600
    assert tree.host.closed()
    assert not tree.kills, "its tree is its run's to end"


def test_lines_for_the_log_are_bounded(hosts: Hosting) -> None:
    from loguru import logger

    lines: list[str] = []
    sink = logger.add(lambda text: lines.append(str(text)), format="{level} {message}", level="DEBUG")
    try:
        tree, run, frame = hosts.running()
        tree.host.note("log", level="warning", text="two\nlines", fields={"n": 1})
        tree.host.note("log", level="shout", text="x" * 20_000)
        for number in range(LOG_LINES_MAX + 50):
            tree.host.note("log", text=f"line {number}")
        tree.host.answer(frame, value=1)
        run.end()
    finally:
        logger.remove(sink)
    mine = [line for line in lines if f"the host of agent {NAME}" in line]
    assert mine[0] == f"WARNING the host of agent {NAME}: two\\nlines n=1\n"
    assert mine[1].startswith("INFO ")
    assert len(mine[1]) < 8_400
    assert len(mine) == LOG_LINES_MAX + 1
    assert "no more are shown" in mine[-1]


# ── Its failures ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "output", "text"),
    [
        (-11, "", "ended: killed by SIGSEGV"),
        (3, "x" * 600 + "the end", "ended: exit status 3; its output ends:\n" + "x" * 493 + "the end"),
        (0, "\x1b[31mred", "ended: exit status 0; its output ends:\n\\x1b[31mred"),
        (-70, "", "killed by signal 70"),
    ],
)
def test_a_host_that_dies_in_a_run_fails_it_with_how_and_its_last_words(
    hosts: Hosting, status: int, output: str, text: str
) -> None:
    tree, run, _ = hosts.running()
    tree.die(status, output)
    done = run.end()
    assert (done.how, done.result) == (How.RAISED, None)
    assert str(done.error).startswith(f"the host of agent {NAME} ")
    assert text in str(done.error)
    hosts.until_state(tree, None)


@pytest.mark.parametrize(
    ("status", "how"), [(-9, How.SIGKILL), (-15, How.SIGTERM), (0, How.CANCELLED), (-11, How.CANCELLED)]
)
def test_a_host_that_ends_after_the_cancel_without_an_answer_ended_as_it_did(
    hosts: Hosting, status: int, how: How
) -> None:
    tree, run, _ = hosts.running()
    run.cancel()
    tree.host.next()
    tree.die(status)
    assert run.end().how is how


@pytest.mark.parametrize("first", ["exit", "socket"])
def test_frames_that_were_written_before_the_exit_are_handled_before_the_host_is_gone(
    hosts: Hosting, first: str
) -> None:
    tree, run, frame = hosts.running()

    def both() -> None:
        # All at once, so that the exit is known before the first frame is read.
        for number in range(3):
            tree.host.note("emit", fence=run.fence, text=str(number))
        tree.host.answer(frame, value="the end")
        if first == "socket":
            tree.host.sock.close()
        tree.die(0)

    hosts.loop.call(both)
    assert run.end() == AgentDone(How.RETURNED, "the end", None)
    assert run.said() == ["0", "1", "2"]


def test_a_host_that_has_exited_and_whose_last_frames_wait_for_credit_is_heard_to_its_end(
    hosts: Hosting, quick: None
) -> None:
    tree, run, frame = hosts.running()
    for number in range(9):
        tree.host.note("emit", fence=run.fence, text=str(number))
    tree.host.answer(frame, value="the end")
    tree.die(0)
    committing(run, lambda: run.over)
    assert run.end().result == "the end"
    assert len(run.said()) == 9


def test_last_frames_that_have_just_got_credit_are_heard_though_the_time_for_them_is_over() -> None:
    clock = Ahead()
    with hosting(clock=clock) as hosts:
        tree, run, frame = hosts.running()
        channel = hosts.pool._hosts[tree.process_id]._peer.channel
        for number in range(5):
            tree.host.note("emit", fence=run.fence, text=str(number))
        hosts.loop.until(lambda: channel.paused, "it to wait for credit")
        # These stay in the socket.
        for number in range(5, 8):
            tree.host.note("emit", fence=run.fence, text=str(number))
        tree.host.answer(frame, value="the end")
        tree.die(0)

        def late() -> None:
            clock.ahead_s = 2 * host_module.LAST_FRAMES_S

        def give() -> None:
            for one in run.of(Said):
                run.credit.give(one.size)
            # In the turn of the loop that hears of the credit, and behind that.
            assert hosts.loop.reactor.post(late)

        hosts.loop.call(give)
        assert run.end().result == "the end"
        assert len(run.said()) == 8


def test_a_socket_that_a_child_holds_open_does_not_hold_up_the_end(hosts: Hosting, quick: None) -> None:
    tree, run, _ = hosts.running()
    tree.host.note("emit", fence=run.fence, text="last words")
    tree.exit(1, closes=False)
    assert "exit status 1" in str(run.end().error)
    assert run.said() == ["last words"]
    assert tree.host.closed()


def test_a_host_that_closes_its_socket_and_lives_has_failed(hosts: Hosting, quick: None) -> None:
    tree, run, _ = hosts.running()
    tree.host.sock.shutdown(socket.SHUT_WR)
    assert run.end().error == f"the host of agent {NAME} closed its connection"
    assert tree.host.closed()


def test_a_tree_that_was_lost_ends_the_run(hosts: Hosting, quick: None) -> None:
    tree, run, _ = hosts.running()
    tree.end("its warden is gone", How.GONE)
    assert run.end().error == f"the host of agent {NAME} ended: its warden is gone"


def test_a_host_that_cannot_be_started_fails_its_run_with_the_reason(hosts: Hosting) -> None:
    run, tree = OneRun(), hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    tree.host.sock.close()
    tree.end("cannot execute 'the': No such file", How.NOT_STARTED)
    assert run.end().error == f"the host of agent {NAME} could not be started: cannot execute 'the': No such file"


def test_a_host_that_ends_before_its_hello_fails_its_run_and_says_so(hosts: Hosting) -> None:
    run, tree = OneRun(), hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    tree.die(1, "ImportError: no module named x")
    error = str(run.end().error)
    assert "ended before it said hello: exit status 1" in error
    assert "ImportError: no module named x" in error


def test_an_agent_that_cannot_be_loaded_fails_its_run_with_why(hosts: Hosting) -> None:
    run, tree = OneRun(), hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    tree.host.request("hello", **HELLO, error="ModuleNotFoundError: x")
    assert tree.host.next()["result"]["protocol"] == 1
    assert run.end().error == f"the agent {NAME} cannot be loaded: ModuleNotFoundError: x"


def test_a_host_that_speaks_another_protocol_fails_its_run(hosts: Hosting) -> None:
    run, tree = OneRun(), hosts.reserved()
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    tree.host.request("hello", protocol=[7, 8])
    error = tree.host.next()["error"]
    assert (error["code"], error["data"]) == (Code.NO_PROTOCOL, {"expected": [1], "got": [7, 8]})
    assert "speaks protocol [7, 8], and this daemon [1]" in str(run.end().error)


def test_a_host_that_speaks_later_protocols_too_gets_our_version(hosts: Hosting) -> None:
    tree = hosts.trees.next()
    tree.host.request("hello", protocol=[2, 1], later="field")
    assert tree.host.next()["result"]["protocol"] == 1


def test_a_host_that_does_not_say_hello_in_time_fails_its_run() -> None:
    with hosting(Agent(name=NAME, command=("slow",), spares=0, start_s=0.05)) as hosts:
        run, tree = OneRun(), hosts.reserved()
        hosts.pool.run(tree.process_id, run.core, (), run.finish)
        assert run.end().error == f"the host of agent {NAME} did not say hello within 0.05 s"


def test_a_run_of_a_host_that_had_died_before_fails(hosts: Hosting) -> None:
    hosts.spare()
    tree, run = hosts.reserved(), OneRun()
    tree.die(-9)
    hosts.loop.until(lambda: hosts.pool._hosts[tree.process_id].ended, "its end")
    hosts.pool.run(tree.process_id, run.core, (), run.finish)
    assert "killed by SIGKILL" in str(run.end().error)
    hosts.until_state(tree, None)


def test_a_run_without_a_host_fails_with_the_reason(hosts: Hosting) -> None:
    run = OneRun()
    hosts.pool.run(hosts.pool.reserve("nobody", SESSION), run.core, (), run.finish)
    assert "there is no agent 'nobody' that runs in hosts" in str(run.end().error)
    run = OneRun()
    hosts.pool.run("proc_unknown", run.core, (), run.finish)
    assert "there is no such host" in str(run.end().error)


def test_a_run_that_is_active_when_the_supervisor_ends_has_failed() -> None:
    with hosting() as hosts:
        _, run, _ = hosts.running()
    assert run.end().error == "the supervisor is shutting down"


def test_one_host_that_breaks_the_protocol_is_not_noticed_by_another(hosts: Hosting) -> None:
    first_tree, first, _ = hosts.running()
    second_tree, second, frame = hosts.running(session="s2")
    first_tree.host.write(b"\x00" * 1_000 + b"\n")
    assert "host.protocol" in str(first.end().error)
    second_tree.host.note("emit", fence=second.fence, text="unharmed")
    second_tree.host.answer(frame, value=1)
    assert second.end().how is How.RETURNED
    assert second.said() == ["unharmed"]


def test_a_fence_that_is_taken_from_another_session_has_no_effect_there(hosts: Hosting) -> None:
    liar, first, _ = hosts.running()
    _, victim, _ = hosts.running(session="s2", generation=9)
    liar.host.note("emit", fence=victim.fence, text="a lie")
    liar.host.request("call", fence=victim.fence, tool="shell")
    assert liar.host.next()["error"]["code"] == Code.STALE
    assert not victim.told
    assert not first.told
