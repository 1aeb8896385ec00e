"""Texts of a host: what comes in one piece goes on together, in its order, and nothing of it after a fence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actors.gate.pending import Pending
from actors.gate.token import CancelToken
from actors.messages import CallRequested, Said, SaidTogether, SaveRequested, SteeringRequested
from actors.model import How
from actors.plugin.execution import AgentDone
from actors.plugin.foreign import Foreign
from supervisor.hosts import frames
from supervisor.hosts import pool as pool_module
from supervisor.hosts.run import TOGETHER_MAX
from supervisor.hosts.runtime.thread import Thread
from supervisor.hosts.runtime.values import Message
from tests.channel_kit import WAIT_S
from tests.pool_kit import SETTINGS, Hosting, OneRun, hosting
from tests.process_kit import until

ROOMY = msgspec.structs.replace(SETTINGS, credit_events=256, credit_bytes=1_048_576)


@pytest.fixture
def hosts() -> Iterator[Hosting]:
    with hosting() as made:
        yield made


def lines(run: OneRun, texts: list[str], *more: dict[str, Any]) -> bytes:
    """The lines of some texts, and of other frames behind them."""
    emits = [{"method": "emit", "params": {"fence": run.fence, "text": text}} for text in texts]
    return b"".join(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n" for frame in [*emits, *more])


def sizes(messages: list[Any]) -> list[int]:
    """How many texts are in each message; 0: it has none."""
    return [len(one.said) if isinstance(one, SaidTogether) else int(isinstance(one, Said)) for one in messages]


def test_texts_that_come_in_one_piece_go_on_together_up_to_a_limit(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)
    texts = [str(number) for number in range(2 * TOGETHER_MAX + 3)]
    tree.host.write(lines(run, texts))
    until(lambda: len(run.said()) == len(texts), "all texts")
    assert run.said() == texts
    assert sizes(run.messages) == [TOGETHER_MAX, TOGETHER_MAX, 3]
    assert {one.address for one in run.of(Said)} == {run.core.address}


def test_a_text_that_comes_alone_goes_on_at_once(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)
    for number in range(3):
        tree.host.note("emit", fence=run.fence, text=str(number))
        until(lambda: len(run.said()) == number + 1, "the text")  # noqa: B023  # it is called here
    assert sizes(run.messages) == [1, 1, 1]


@pytest.mark.parametrize(
    ("method", "params", "kind"),
    [
        ("call", {"tool": "shell"}, CallRequested),
        ("steering", {}, SteeringRequested),
        ("state", {"changes": {"a": 1}}, SaveRequested),
    ],
)
def test_what_is_asked_for_behind_texts_stays_behind_them(
    hosts: Hosting, method: str, params: dict[str, Any], kind: type[Any]
) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)
    asked = {"id": 7, "method": method, "params": {"fence": run.fence, **params}}
    tree.host.write(lines(run, ["a", "b"], asked) + lines(run, ["c"]))
    until(lambda: len(run.messages) == 3, "all of it")
    assert sizes(run.messages) == [2, 0, 1]
    assert isinstance(run.messages[1], kind)


def test_the_end_of_a_call_that_the_host_executes_stays_behind_the_texts_before_it(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)
    tree.host.request("call", fence=run.fence, tool="mine", where="host")
    call, said = run.call(), list[int]()
    assert isinstance(call.made, Foreign)
    token, done = CancelToken(lambda callback: callback(), run.token), threading.Event()
    spawn = run.trees.spawn(Pending(token))

    def ended(_: object) -> None:
        said.append(len(run.said()))
        done.set()

    call.made.execute(call.address.fence, {}, token, spawn, ended)
    execute = tree.host.next()
    tree.host.write(lines(run, ["a", "b"], {"id": execute["id"], "result": {"content": "well"}}))
    assert done.wait(WAIT_S)
    assert said == [2]


def test_progress_behind_texts_stays_behind_them(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)
    shown = {"method": "progress", "params": {"fence": run.fence, "data": {"done": 1}}}
    tree.host.write(lines(run, ["a", "b"], shown) + lines(run, ["c"]))
    until(lambda: len(run.told) == 4, "all of it")
    assert [type(one.data).__name__ for one in run.told] == ["TextData", "TextData", "ProgressData", "TextData"]


@pytest.mark.parametrize("end", ["its answer", "a breach of the protocol", "its death"])
def test_the_texts_before_the_end_of_an_agent_are_passed_on_before_it(hosts: Hosting, end: str) -> None:
    tree, run, frame = hosts.running(can=["credit"], settings=ROOMY)
    before: list[int] = []
    host_run = hosts.pool._hosts[tree.process_id]._run
    assert host_run is not None

    def finish(done: AgentDone) -> None:
        before.append(len(run.said()))
        run.finish(done)

    host_run._finish = finish
    last = {
        "its answer": {"id": frame["id"], "result": {"value": None}},
        "a breach of the protocol": {"id": 99, "result": {}},
        "its death": {"method": "typing", "params": {"fence": run.fence}},
    }[end]
    tree.host.write(lines(run, ["a", "b", "c"], last))
    if end == "its death":
        tree.die(-9)
    run.end()
    assert before == [3]


def test_texts_that_a_fence_overtakes_are_refused_and_counted(hosts: Hosting) -> None:
    tree, run, frame = hosts.running(can=["credit"], settings=ROOMY)
    host_run = hosts.pool._hosts[tree.process_id]._run
    assert host_run is not None

    def fenced_in_the_middle_of_a_piece() -> None:
        for text in ("a", "b", "c"):
            host_run._emit(frames.Emit(fence=run.fence, text=text), 50)
        assert not run.told, "the piece is not over"
        run.cancel()
        host_run.pass_on()

    hosts.loop.call(fenced_in_the_middle_of_a_piece)
    tree.host.refuse(frame, -32800)
    assert run.end().how is How.CANCELLED
    assert not run.said()
    assert run.refused() == {"text": 3}


def test_one_that_does_not_count_its_credit_is_heard_text_by_text(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(settings=ROOMY)
    tree.host.write(lines(run, ["a", "b", "c"]))
    until(lambda: len(run.said()) == 3, "all texts")
    assert sizes(run.messages) == [1, 1, 1]


def test_the_credit_of_texts_that_go_on_together_is_that_of_each(hosts: Hosting) -> None:
    tree, run, _ = hosts.running(can=["credit"])
    tree.host.write(lines(run, ["1", "2", "3", "4", "5"]))
    assert "said more than it has credit for" in str(run.end().error)
    assert run.said() == ["1", "2", "3", "4"]


def test_a_defect_behind_the_last_frame_of_a_piece_fails_the_run_and_holds_nothing_up(
    hosts: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, run, _ = hosts.running(can=["credit"], settings=ROOMY)

    def broken(message: object) -> None:
        raise ValueError("by mistake")

    monkeypatch.setattr(run.core, "tell", broken)
    tree.host.write(lines(run, ["a", "b"]))
    assert "a defect of the daemon: ValueError: by mistake" in str(run.end().error)
    assert tree.host.closed()


# ── Its start ─────────────────────────────────────────────────────────────────────────────────────


def test_the_next_spare_does_not_start_beside_the_run_that_took_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "REFILL_S", 1_000.0)
    with hosting() as hosts:
        hosts.spare()
        # What its hello brings about is done.
        hosts.loop.call(lambda: None)
        tree = hosts.reserved()
        run = OneRun()
        hosts.begin(tree, run)
        hosts.loop.call(lambda: None)
        assert hosts.trees.spawned.empty()


# ── The thread, in the host ───────────────────────────────────────────────────────────────────────


def given(number: int, role: str) -> dict[str, Any]:
    return {"id": f"m{number}", "role": role, "content": str(number), "generation": 1, "run_id": "r"}


def test_the_inputs_of_a_run_are_those_of_its_thread_and_what_steered_it() -> None:
    messages = [given(1, "user"), given(2, "assistant"), given(3, "user"), given(4, "tool"), given(5, "user")]
    thread = Thread({"run": "r", "generation": 1, "thread": messages, "inputs": ["m3", "m4", "m5"]})
    assert [one.id for one in thread.own_inputs()] == ["m3", "m5"]
    thread.text("well")
    thread.steered([Message("m6", "user", "6"), Message("m3", "user", "again")])
    assert [one.id for one in thread.own_inputs()] == ["m3", "m5", "m6"]
    assert [one.id for one in thread.messages()] == ["m1", "m2", "m3", "m4", "m5", "r.1", "m6"]


def test_a_message_is_made_once_and_two_under_one_id_stay_two() -> None:
    messages = [given(1, "user"), {**given(1, "user"), "content": "other"}]
    thread = Thread({"run": "r", "generation": 1, "thread": messages, "inputs": []})
    first = thread.messages()
    assert [one.content for one in first] == ["1", "other"]
    assert all(one is other for one, other in zip(first, thread.messages(), strict=True))
