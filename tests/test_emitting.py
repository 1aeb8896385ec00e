"""What a tool says while it runs: a text of its agent's, in its place, and nothing once its call is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AsyncEmit,
    AsyncTurn,
    CancelToken,
    Emit,
    Event,
    Invalid,
    RunCancelled,
    Tool,
    Turn,
    render_anthropic,
    render_openai,
    tool,
)
from actors.messages import CallDeadline
from supervisor import SessionHandle
from supervisor.agent import Agent
from tests.kit import WAIT_S, Kit, Listener, check_rest, log, say, stop, until
from tests.provider_checker import check_anthropic, check_openai


@tool(isolation="thread")
def plain(emit: Emit) -> str:
    emit("plain says. ")
    emit.progress(step=1)
    return "plain is done"


@tool(isolation="task")
async def task(emit: AsyncEmit) -> str:
    await emit("task says. ")
    await emit.progress(step=2)
    return "task is done"


def told(session: SessionHandle) -> list[tuple[str, str | None]]:
    """The texts in the log, and the name of the tool that said each; None: the agent."""
    events = check_rest(session)
    names = {event.data["call_id"]: event.data["tool"] for event in events if event.kind == "tool.requested"}
    return [
        (event.data["text"], names[event.data["call"]] if "call" in event.data else None)
        for event in events
        if event.kind == "text"
    ]


def heard(listener: Listener) -> list[Event]:
    """Close a listener when it has heard the end of the run, and return all that it has heard."""
    until(lambda: any(event.kind == "run.ended" for event in list(listener.events)), "the end of the run")
    return listener.close()


def shape(session: SessionHandle) -> list[tuple[str, str]]:
    """The thread: roles and contents. Providers take it."""
    messages = session.thread()
    check_anthropic(render_anthropic(messages, provider="p"), as_said=True)
    check_openai(render_openai(messages, provider="p"))
    return [(str(message.role), message.content) for message in messages]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_l6_what_a_tool_says_stands_with_its_call_as_text_of_the_agent(kit: Kit, kind: str) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def as_task(turn: AsyncTurn) -> None:
        await turn.emit("I ask. ")
        for name in ("plain", "task"):
            await turn.call(name)
        seen.append([(str(one.role), one.content) for one in turn.messages])

    def as_thread(turn: Turn) -> None:
        turn.emit("I ask. ")
        for name in ("plain", "task"):
            turn.call(name)
        seen.append([(str(one.role), one.content) for one in turn.messages])

    session = kit.session(as_task if kind == "async" else as_thread, tools=[plain, task])
    with_progress = Listener(session, ephemeral=True)
    session.receipt(say(session), timeout=WAIT_S)
    assert told(session) == [("I ask. ", None), ("plain says. ", "plain"), ("task says. ", "task")]
    assert shape(session) == [
        ("user", "go"),
        ("assistant", "I ask. plain says. "),
        ("tool", "plain is done"),
        ("assistant", "task says. "),
        ("tool", "task is done"),
    ]
    assert seen == [shape(session)], "the agent sees the same"
    events = heard(with_progress)
    assert [event.data for event in events if event.kind == "progress"] == [{"step": 1}, {"step": 2}]
    kinds = [event.kind for event in events if event.kind in ("tool.started", "text", "tool.ended")]
    assert kinds == ["text", *["tool.started", "text", "tool.ended"] * 2], "a call has started before its tool speaks"


def test_in_a_models_answer_it_stands_behind_the_results(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        async with turn.answer(provider="p") as answer:
            await answer.text("I ask both.")
            calls = [answer.call(name, {}, provider_id=name) for name in ("plain", "task")]
        for call in calls:
            await call

    session = kit.session(agent, tools=[plain, task])
    session.receipt(say(session), timeout=WAIT_S)
    first, second, results, *rest = [content for _, content in shape(session)[1:]]
    assert (first, second, results) == ("I ask both.", "plain is done", "task is done")
    assert sorted("".join(rest).split(". ")) == ["", "plain says", "task says"]


@pytest.mark.parametrize("end", ["result", "stop", "deadline"])
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_l1_once_its_call_is_closed_a_tool_says_nothing(kit: Kit, kind: str, end: str) -> None:
    begun, closed, refused = kit.gate(), kit.gate(), list[str]()
    done = threading.Event()

    def late(emit: Emit, token: CancelToken) -> None:
        def behind() -> None:
            begun.set()
            closed.wait(WAIT_S)
            for say_it in (partial(emit, "late"), partial(emit.progress, late=1)):
                try:
                    say_it()
                except RunCancelled as error:
                    refused.append(error.provenance.source)
            done.set()

        threading.Thread(target=behind, daemon=True).start()
        begun.wait(WAIT_S)
        if end != "result":
            token.wait(WAIT_S)

    async def late_task(emit: AsyncEmit) -> None:
        async def behind() -> None:
            while not closed.is_set():
                # A Stop cancels what the tool leaves behind, too.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            for say_it in (partial(emit, "late"), partial(emit.progress, late=1)):
                try:
                    await say_it()
                except asyncio.CancelledError as error:
                    refused.append(error.provenance.source)  # type: ignore[attr-defined]  # it has one
            done.set()

        tasks.append(asyncio.create_task(behind()))
        begun.set()
        if end != "result":
            await asyncio.sleep(WAIT_S)

    tasks: list[Any] = []
    made = Tool(
        late_task if kind == "async" else late, name="late", schema={}, deadline_s=3600.0 if end == "deadline" else None
    )

    async def agent(turn: AsyncTurn) -> None:
        await turn.call(made)
        await asyncio.sleep(WAIT_S)

    session = kit.session(agent)
    run_id = say(session)
    assert begun.wait(WAIT_S)
    if end == "stop":
        stop(session)
    elif end == "deadline":
        kit.fire(CallDeadline)
    until(lambda: any(event.kind == "tool.ended" for event in log(session)), "the call is closed")
    closed.set()
    assert done.wait(WAIT_S)
    if end != "stop":
        stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    source = {"result": "run.ended", "stop": "user.test", "deadline": "tool.deadline"}[end]
    assert refused == [source] * 2
    assert told(session) == []


def test_l14_what_a_tool_says_is_bounded(kit: Kit) -> None:
    raised: list[str] = []

    def says(emit: Emit) -> None:
        for wrong in (partial(emit, 7), partial(emit.progress, much="x" * 1_048_576)):  # type: ignore[arg-type]  # meant
            try:
                wrong()
            except Invalid as error:
                raised.append(error.message)
        emit("")
        emit("x" * 70_000)

    async def agent(turn: AsyncTurn) -> None:
        await turn.call(Tool(says, schema={}))

    session = kit.session(agent)
    session.receipt(say(session), timeout=WAIT_S)
    assert raised == ["an agent can emit text only", "this progress is too large"]
    texts = [text for text, _ in told(session)]
    assert ("".join(texts), len(texts)) == ("x" * 70_000, 5), "a long text is in pieces, an empty one is none"


def test_a_tool_in_a_process_of_its_own_says_something(kit: Kit) -> None:
    from tests import process_tools

    async def agent(turn: AsyncTurn) -> list[str]:
        results = [(await turn.call(name)).content for name in ("speaks", "speaks_async")]
        return [*results, "".join(one.content for one in turn.messages if one.role == "assistant")]

    session = kit.session(agent, tools=[process_tools.speaks, process_tools.speaks_async])
    progress = Listener(session, ephemeral=True)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["said", "said", "a b " * 2]
    assert told(session) == [("a ", "speaks"), ("b ", "speaks"), ("a ", "speaks_async"), ("b ", "speaks_async")]
    assert [event.data for event in heard(progress) if event.kind == "progress"] == [{"step": 1}, {"step": 1}]


# ── In hosts ──────────────────────────────────────────────────────────────────────────────────────

HOSTED = """
import asyncio
import threading
from pathlib import Path

from countermand import AsyncEmit, Emit, Invalid, RunCancelled, Tool, tool


def plain(emit: Emit):
    emit("plain says. ")
    emit.progress(step=1)
    try:
        emit.progress(much="x" * 1_048_576)
    except Invalid as error:
        return error.message


async def task(emit: AsyncEmit) -> str:
    await emit("task says. ")
    await emit.progress(step=2)
    return "task is done"


def late(emit: Emit):
    def behind():
        closed.wait()
        refused = []
        for say in (lambda: emit("late"), lambda: emit.progress(late=1)):
            try:
                say()
            except RunCancelled as error:
                refused.append(error.provenance.source)
        Path("refused").write_text(repr(refused))

    threading.Thread(target=behind, daemon=True).start()


closed = threading.Event()
MADE = [Tool(plain, schema={}), Tool(task)]


def shown(turn):
    return [[one.role, one.content] for one in turn.messages]


async def agent(turn):
    if turn.inputs[-1].content == "late":
        await turn.call(Tool(late, schema={}))
        closed.set()
        while not Path("refused").exists():
            await asyncio.sleep(0.01)
        return
    await turn.emit("I ask. ")
    for one in MADE:
        await turn.call(one)
    return shown(turn)


def plain_agent(turn):
    turn.emit("I ask. ")
    for one in MADE:
        turn.call(one)
    return shown(turn)
"""


def hosted(kit: Kit, folder: Path, agent: str) -> SessionHandle:
    (folder / "speaking.py").write_text(HOSTED)
    spec = Agent(run=f"speaking:{agent}", path=[str(folder)], env={kit.mark: "1"}, cwd=str(folder), spares=0)
    return kit.start(spec).session("s1")


@pytest.mark.parametrize("agent", ["agent", "plain_agent"])
def test_what_a_tool_of_a_host_says_stands_with_its_call(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = hosted(kit, tmp_path, agent)
    progress = Listener(session, ephemeral=True)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).error is None
    assert told(session) == [("I ask. ", None), ("plain says. ", "plain"), ("task says. ", "task")]
    assert shape(session) == [
        ("user", "go"),
        ("assistant", "I ask. plain says. "),
        ("tool", "this progress is too large"),
        ("assistant", "task says. "),
        ("tool", "task is done"),
    ]
    assert session.run(run_id).result == json.loads(json.dumps(shape(session)))
    assert [event.data for event in heard(progress) if event.kind == "progress"] == [{"step": 1}, {"step": 2}]


def test_l1_once_its_call_is_closed_a_tool_of_a_host_says_nothing(kit: Kit, tmp_path: Path) -> None:
    session = hosted(kit, tmp_path, "agent")
    run_id = say(session, "late")
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).error is None
    assert (tmp_path / "refused").read_text() == "['run.ended', 'run.ended']"
    assert told(session) == []


# ── The page ──────────────────────────────────────────────────────────────────────────────────────


def test_the_example_of_the_page_says_what_it_does(kit: Kit) -> None:
    page = (Path(__file__).parent.parent / "docs" / "tools.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (code,) = (one for one in blocks if "emit: Emit" in one)
    names: dict[str, Any] = {"tool": tool, "Emit": Emit}
    exec(code, names)

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("build", target="docs")

    session = kit.session(agent, tools=[names["build"]])
    session.receipt(say(session), timeout=WAIT_S)
    assert shape(session)[1:] == [("assistant", "Building docs. "), ("tool", "docs is built")]
