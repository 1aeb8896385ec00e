"""Sessions with a scripted model that thinks: stopped and superseded anywhere, each next request is taken and is true.

The agent is the one of docs/agents.md: in the supervisor's process, and in a host. The model stands where the SDK does,
and says what it is told to; what the provider would refuse of a request fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from actors import Message, NewMessage, Turn, tool
from actors.protocol.notes import ANSWER_OVER
from supervisor import SessionHandle
from supervisor.agent import Agent
from tests.kit import WAIT_S, Kit, check_rest, log, message, say, stop, until
from tests.provider_checker import check_anthropic
from tests.test_agents_page import CODE

SDK = Path(__file__).parent / "fake_sdk"
WAITS = "waits"
"""In a script: the model says nothing more, until it is cut off."""


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"sig of {text}"}


def use(identity: str, text: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "note", "input": {"text": text}}


class Model:
    """The provider: what it will say, and what it was asked. See `tests/fake_sdk`."""

    def __init__(self, folder: Path, *, hosted: bool) -> None:
        self.folder = folder
        self.hosted = hosted

    def says(self, *answers: list[Any]) -> None:
        """Have it give these answers, in their order."""
        for number, answer in enumerate(answers):
            (self.folder / f"script_{number}").write_text(json.dumps(answer))

    @property
    def requests(self) -> list[list[dict[str, Any]]]:
        """What it was asked. Each is a request that the provider takes."""
        asked = [json.loads(path.read_text()) for path in sorted(self.folder.glob("request_*"))]
        for one in asked:
            assert one["thinking"]
            check_anthropic(one["messages"], thinking=True, as_said=True)
        return [one["messages"] for one in asked]

    def waits(self) -> None:
        """Wait until it says nothing more."""
        until((self.folder / "waiting").exists, "the model waits")


class Tools:
    """The tool `note`, which can be held."""

    def __init__(self) -> None:
        self.started = threading.Event()

        @tool(isolation="task")
        async def note(text: str) -> str:
            if text.startswith("hold"):
                self.started.set()
                await asyncio.Event().wait()
            return f"noted {text}"

        self.note = note


@pytest.fixture(params=["inside", "host"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Model:
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.setenv("MODEL_FOLDER", str(folder))
    monkeypatch.setenv("MODEL", "m-1")
    spec = importlib.util.spec_from_file_location("anthropic", SDK / "anthropic.py")
    assert spec is not None
    assert spec.loader is not None
    sdk = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "anthropic", sdk)
    spec.loader.exec_module(sdk)
    return Model(folder, hosted=request.param == "host")


def session_of(kit: Kit, model: Model, tools: Tools) -> SessionHandle:
    """A session with the agent of the page."""
    (code,) = (code for code in CODE if "render_anthropic(" in code and "turn.answer(" in code)
    if not model.hosted:
        names: dict[str, Any] = {}
        exec(code, names)
        return kit.session(names["answer"], tools=[tools.note])
    own = model.folder / "own"
    own.mkdir()
    (own / "thinks.py").write_text(code.replace("from actors import", "from countermand import"))
    env = {kit.mark: "1", "MODEL": "m-1", "MODEL_FOLDER": str(model.folder)}
    spec = Agent(run="thinks:answer", path=[str(own), str(SDK)], env=env, spares=0)
    return kit.start(spec, tools=[tools.note]).session("s1")


def ended(session: SessionHandle, run: str) -> str:
    session.receipt(run, timeout=WAIT_S)
    info = session.run(run)
    assert info.error is None
    return info.status


def answers(session: SessionHandle) -> list[Message]:
    return [one for one in session.thread() if one.answer is not None]


def test_a_run_with_thinking_and_a_batch_of_calls_comes_to_its_end(kit: Kit, model: Model) -> None:
    session = session_of(kit, model, Tools())
    model.says([thought("hm"), "I note.", use("toolu_1", "a"), use("toolu_2", "b")], [thought("so"), "Noted."])
    assert ended(session, say(session)) == "completed"
    assert len(model.requests) == 2
    assert model.requests[1][1]["content"] == [
        thought("hm"),
        {"type": "text", "text": "I note."},
        use("toolu_1", "a"),
        use("toolu_2", "b"),
    ]
    first, _ = answers(session)
    assert first.answer is not None
    assert (first.answer.stop, first.answer.provider_id, first.answer.usage) == (
        "tool_use",
        "msg_1",
        {"input": 7, "output": 3},
    )
    check_rest(session)


@pytest.mark.parametrize("how", ["takeover", "stop", "rollback"])
def test_after_an_end_in_the_middle_of_a_tool_each_later_request_is_taken(kit: Kit, model: Model, how: str) -> None:
    """The case that left a session in which every later call was refused."""
    tools = Tools()
    session = session_of(kit, model, tools)
    model.says([thought("hm"), use("toolu_1", "a"), use("toolu_2", "hold")])
    first = say(session)
    assert tools.started.wait(WAIT_S)
    if how == "stop":
        stop(session)
        session.receipt(first, timeout=WAIT_S)
    policy = "rollback" if how == "rollback" else None
    assert (
        ended(session, session.ask(message("no, do this", policy=policy), timeout=WAIT_S).run_id or "") == "completed"
    )
    for text in ("hello?", "anybody?"):
        assert ended(session, say(session, text)) == "completed"
    request = model.requests[1]
    if how == "rollback":
        assert [one["role"] for one in request] == ["user"]
        assert "no, do this" in request[0]["content"][0]["text"]
    else:
        assert request[1]["content"] == [thought("hm"), use("toolu_1", "a"), use("toolu_2", "hold")]
        results = [block for block in request[2]["content"] if block["type"] == "tool_result"]
        assert [block["tool_use_id"] for block in results] == ["toolu_1", "toolu_2"]
        assert "nterrupted" in results[1]["content"]
        assert results[1]["is_error"]
        assert request[2]["content"][-1]["text"].endswith("no, do this")
    assert len(model.requests) == 4
    check_rest(session)


SCRIPT: list[Any] = [thought("hm"), "Some ", "text.", use("toolu_1", "a"), thought("more"), use("toolu_2", "b")]


@pytest.mark.parametrize("place", range(len(SCRIPT) + 1))
def test_a_takeover_at_each_place_of_an_answer_leaves_what_the_provider_takes(
    kit: Kit, model: Model, place: int
) -> None:
    session = session_of(kit, model, Tools())
    model.says([*SCRIPT[:place], WAITS])
    first = say(session)
    model.waits()
    spoken = sum(isinstance(part, str) or part["type"] == "thinking" for part in SCRIPT[:place])
    until(lambda: sum(event.kind in ("text", "block") for event in log(session)) == spoken, "it is in the log")
    second = session.ask(NewMessage(content="no, do this"), timeout=WAIT_S).run_id
    assert second is not None
    assert ended(session, second) == "completed"
    assert ended(session, say(session, "hello?")) == "completed"
    assert session.run(first).status == "cancelled"
    outcomes = {one.outcome for one in session.thread() if one.role == "tool"}
    # The last call may not have been asked for yet, and none has started.
    assert outcomes <= {"not_started"}
    kinds = [event.kind for event in check_rest(session)]
    assert "tool.started" not in kinds
    partial = [one for one in answers(session) if one.run_id == first]
    assert [one.status for one in partial] == ["partial"] * bool(place)


@pytest.mark.parametrize("left", [True, False])
def test_a_call_that_comes_behind_the_end_of_its_answer_does_not_start(kit: Kit, left: bool) -> None:
    """As from a thread that had begun to ask for it while the answer was open."""

    @tool(isolation="thread")
    def note(text: str) -> str:
        return text

    def agent(turn: Turn) -> list[str]:
        with contextlib.suppress(ZeroDivisionError), turn.answer(provider="p") as answer:
            answer.text("said")
            _ = 1 // (not left)
        core = turn._core
        call_id, reply = core.request_call(core.prepare_call("note", {"text": "late"})._replace(answer=answer.id))
        result = core.called(call_id, core.pending.wait(reply, None))
        return [result.outcome, result.content]

    session = kit.session(agent, tools=[note])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["not_started", ANSWER_OVER]
    assert not [event for event in check_rest(session) if event.kind == "tool.started"]
