"""What agents and tools return and raise is made plain where they run: no actor ever meets a foreign object."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import msgspec
import pytest
from loguru import logger
from pykka import ActorRegistry

from actors import AsyncTurn, CancelToken, Invalid, Outcome, ToolResult, Turn, tool
from actors.gate.cell import Cell
from actors.gate.pending import Pending
from actors.hierarchy.session import SessionActor
from actors.kernel.log_context import about
from actors.messages import ExecutionEnded
from actors.model import Address, How
from actors.plugin.emitting import Emit
from actors.plugin.execution import (
    ERROR_MAX_BYTES,
    Executed,
    agent_body,
    as_result,
    body,
    call_ended,
    error_text,
    plain,
)
from actors.plugin.registration import Tool
from actors.plugin.spawning import Spawn
from actors.protocol.notes import lost_result
from supervisor import SessionHandle
from tests.kit import Kit, check_rest, say, settled, stop, until

MAX = 1000
ADDRESS = Address("s", 1, "r")


class Unshowable:
    """Its methods raise, each of them."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise SystemExit("no str")

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = object.__hash__


class UnshowableError(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise SystemExit("no text")


class Text(str):
    """A str with methods of its own."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        raise RuntimeError("no start")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Positive(msgspec.Struct):
    """A type whose check raises what it likes."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise KeyError("negative")


@pytest.mark.parametrize(
    "make",
    [
        Unshowable,
        lambda: [Unshowable()],
        lambda: {"a": Unshowable()},
        lambda: {Unshowable(): 1},
        lambda: Text("x"),
        lambda: 2**70,
    ],
)
def test_what_is_returned_is_plain_json_whatever_it_is(make: Callable[[], object]) -> None:
    value = make()
    made = plain(value, MAX)
    assert type(made) in (str, list, dict, int, float)
    assert type(as_result(value, MAX).content) is str
    assert type(as_result(ToolResult(Outcome.FINISHED, "ok", data=value), MAX).content) is str
    msgspec.json.encode(made)


@pytest.mark.parametrize(
    "result",
    [
        ToolResult(Outcome.INTERRUPTED, "x"),
        ToolResult("bogus", "x"),  # type: ignore[arg-type]  # that is the test
        ToolResult(Outcome.FINISHED, 5),  # type: ignore[arg-type]  # that is the test
        ToolResult(Outcome.FINISHED, "x", "no"),  # type: ignore[arg-type]  # that is the test
    ],
)
def test_a_tool_result_that_cannot_be_right_is_refused(result: ToolResult) -> None:
    with pytest.raises(Invalid):
        as_result(result, MAX)


def test_results_and_errors_are_cut_at_their_bounds() -> None:
    assert plain("x" * MAX, MAX) == "x" * MAX
    for value in ("x" * 10 * MAX, ["x" * 10 * MAX]):
        for made in (plain(value, MAX), as_result(value, MAX).content):
            assert isinstance(made, str)
            assert "more bytes]" in made[-40:]
            assert len(made) < MAX + 100
    assert len(error_text(ValueError("x" * 10 * ERROR_MAX_BYTES))) < ERROR_MAX_BYTES + 100
    assert "could not be made" in error_text(UnshowableError())


def returns(value: Callable[[], object]) -> Callable[[Turn], object]:
    """A plain agent that returns a value."""
    return lambda turn: value()


async def unrun() -> str:
    """Code that nobody runs."""
    return "ran"


@pytest.mark.parametrize(
    "value", [Unshowable, lambda: 2**70, lambda: Text("x"), lambda: {Unshowable(): [Unshowable()]}]
)
def test_l13_an_agent_may_return_anything(kit: Kit, value: Callable[[], object]) -> None:
    session = kit.session(returns(value))
    run = say(session)
    session.receipt(run, timeout=20)
    assert session.run(run).status == "completed"
    assert len(session.runs()) == 1
    check_rest(session)


def test_l13_an_error_without_a_text_fails_its_run_and_nothing_else(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        raise UnshowableError

    session = kit.session(agent)
    run = say(session)
    session.receipt(run, timeout=20)
    assert session.run(run).status == "failed"
    assert len(session.runs()) == 1


def test_l13_what_a_stopped_agent_returns_late_is_a_dead_letter_whatever_it_is(kit: Kit) -> None:
    began = kit.gate()

    async def agent(turn: AsyncTurn) -> object:
        began.set()
        try:
            await asyncio.sleep(3600)
        except BaseException:  # that is the test
            return Unshowable()
        return None

    session = kit.session(agent)
    run = say(session)
    assert began.wait(20)
    stop(session)
    receipt = session.receipt(run, timeout=20)
    assert receipt.complete
    settled(session)
    assert [info.status for info in session.runs()] == ["cancelled"]


def test_l13_a_tool_may_return_anything_and_its_run_continues(kit: Kit) -> None:
    values: dict[str, object] = {
        "object": Unshowable(),
        "data": ToolResult(Outcome.FINISHED, "ok", data=Unshowable()),
        "content": ToolResult(Outcome.FINISHED, 5),  # type: ignore[arg-type]  # that is the test
        "outcome": ToolResult(Unshowable(), "ok"),  # type: ignore[arg-type]  # that is the test
    }

    @tool(isolation="thread")
    def give(name: str) -> object:
        return values[name]

    def agent(turn: Turn) -> dict[str, bool]:
        return {name: turn.call("give", name=name).is_error for name in values}

    session = kit.session(agent, tools=[give])
    run = say(session)
    session.receipt(run, timeout=20)
    assert session.run(run).result == {"object": False, "data": False, "content": True, "outcome": True}
    check_rest(session)


async def generator(turn: AsyncTurn) -> Any:
    """An agent that is none: it yields."""
    yield "x"


def plain_generator(turn: Turn) -> Any:
    """As above."""
    yield "x"


@pytest.mark.parametrize("agent", [generator, plain_generator, lambda turn: unrun()])
def test_an_agent_whose_code_would_not_run_fails_and_says_so(kit: Kit, agent: Callable[..., Any]) -> None:
    session = kit.session(agent)
    run = say(session)
    session.receipt(run, timeout=20)
    assert session.run(run).status == "failed"
    assert "code that is never run" in (session.run(run).error or "")


def test_a_tool_whose_code_would_not_run_ends_with_an_error_that_says_so(kit: Kit) -> None:
    @tool(isolation="thread")
    def forgot() -> Coroutine[Any, Any, str]:
        return unrun()

    session = kit.session(lambda turn: turn.call("forgot").content, tools=[forgot])
    run = say(session)
    session.receipt(run, timeout=20)
    assert "code that is never run" in session.run(run).result


def test_l13_a_check_of_arguments_may_raise_anything(kit: Kit) -> None:
    @tool(isolation="thread")
    def take(number: Positive) -> str:
        return "taken"

    def agent(turn: Turn) -> list[str]:
        return [str(turn.call("take", number={"number": number}).outcome) for number in (1, -1)]

    session = kit.session(agent, tools=[take])
    run = say(session)
    session.receipt(run, timeout=20)
    assert session.run(run).result == ["finished", "not_started"]
    check_rest(session)


def test_a_call_that_could_not_be_started_is_not_started_to_all(kit: Kit) -> None:
    @tool(isolation="thread")
    def never() -> str:
        return "began"

    async def agent(turn: AsyncTurn) -> list[str]:
        result = await turn.call("never")
        return [str(result.outcome), result.content]

    session = kit.session(agent, tools=[never])
    assert kit.supervisor is not None
    kit.supervisor._executor._threads_max = 0
    run = say(session)
    receipt = session.receipt(run, timeout=20)
    told, content = session.run(run).result
    logged = next(event.data for event in check_rest(session) if event.kind == "tool.ended")
    assert told == logged["outcome"] == "not_started"
    assert content == logged["content"]
    assert "threads are busy" in content
    assert [row.how for row in receipt.rows if row.kind == "call"] == ["not_started"]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_nothing_is_attributed_to_a_call_that_was_shut_before_its_first_line(kind: str) -> None:
    async def as_async() -> str:
        return "ran"

    def as_plain() -> str:
        return "ran"

    attributed: list[str] = []

    def within(code: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            attributed.append("run")
            return code()

        return run

    def execute(cell: Cell[ToolResult]) -> Executed:
        token = CancelToken(lambda callback: callback())
        spawn = Spawn(lambda *_: None, Pending(token), lambda *_: None, lambda *_: None)
        function = Tool(as_async, isolation="task") if kind == "async" else Tool(as_plain, isolation="thread")
        emit = Emit(lambda *_: None, "c", Pending(token), MAX, lambda _: None)
        made = body(function, {}, ADDRESS.of_call("c"), cell, token, spawn, emit, lambda: None, MAX, within)()
        done: Executed = asyncio.run(made) if asyncio.iscoroutine(made) else made
        return done

    shut: Cell[ToolResult] = Cell()
    shut.close()
    assert execute(shut).how is How.NOT_STARTED
    assert not attributed
    assert execute(Cell()).how is How.RETURNED
    assert attributed == ["run"]


@pytest.mark.parametrize("began", [False, True])
def test_an_execution_without_a_word_of_its_own_is_what_its_cell_says(began: bool) -> None:
    cell: Cell[ToolResult] = Cell()
    if began:
        cell.start()
    ended = call_ended(Address("s", 1, "r", "c"), ExecutionEnded("c", How.RAISED, 0.0, None, "gone"), cell)
    assert ended.how is (How.RAISED if began else How.NOT_STARTED)
    assert lost_result(ended.how, ended.note).outcome is (Outcome.INTERRUPTED if began else Outcome.NOT_STARTED)
    assert not cell.start()


def test_l14_a_call_that_ended_keeps_neither_its_result_nor_its_deadline(kit: Kit) -> None:
    called, gate = kit.gate(), kit.gate()

    @tool(isolation="thread", deadline_s=3600)
    def large(token: CancelToken) -> str:
        return "x" * 100_000

    def agent(turn: Turn) -> None:
        turn.call("large")
        called.set()
        gate.wait()

    session = kit.session(agent, tools=[large])
    run = say(session)
    assert called.wait(20)
    assert kit.supervisor is not None
    (ref,) = ActorRegistry.get_by_class(SessionActor)
    actor = ref._actor_weakref()
    assert actor is not None
    (record,) = actor._protocol.state.records()
    (call,) = record.calls.values()
    until(lambda: not call.open and call.cell is None, "its cell is let go")
    timers = kit.supervisor._clock._heap
    until(lambda: not any(type(timer[2].message).__name__ == "CallDeadline" for timer in timers), "no deadline is left")
    gate.set()
    session.receipt(run, timeout=20)


# ── The log ───────────────────────────────────────────────────────────────────────────────────────


class Suspends:
    """Awaited once, it never goes on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_a_suspended_agent_can_be_collected_while_a_thread_holds_the_lock_of_the_log() -> None:
    async def agent(turn: AsyncTurn) -> None:
        del turn
        await Suspends()

    def collect() -> None:
        coroutine = agent_body(agent, None, ADDRESS, MAX, as_task=True)()
        coroutine.send(None)
        # What the garbage collector does with one that nobody holds, at any allocation: also at one under this lock.
        with logger._core.lock:  # type: ignore[attr-defined]
            coroutine.close()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    waits = thread.is_alive()
    if waits:
        logger._core.lock.release()  # type: ignore[attr-defined]
    assert not waits, "it waits for a lock that its own thread holds"


def test_a_thread_is_named_for_as_long_as_an_agent_runs_on_it() -> None:
    seen: list[object] = []
    body = agent_body(lambda turn: seen.append(about()), None, ADDRESS, MAX, as_task=False)
    assert body().how is How.RETURNED
    assert seen == [ADDRESS.log_context]
    assert not about()


# ── Context variables ─────────────────────────────────────────────────────────────────────────────

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="unset")


@tool(isolation="task")
async def as_task() -> str:
    """Read a context variable, and change it for itself."""
    before = REQUEST.get()
    REQUEST.set("of the tool")
    await asyncio.sleep(0)
    return f"{before} {about()['call'] is not None}"


@tool(isolation="thread")
def as_thread() -> str:
    """Read a context variable, and change it for itself."""
    before = REQUEST.get()
    REQUEST.set("of the tool")
    return f"{before} {about()['call'] is not None}"


def test_a_tool_has_the_context_variables_of_the_agents_code_that_calls_it(kit: Kit) -> None:
    async def async_agent(turn: AsyncTurn) -> list[str]:
        async def call(name: str, value: str) -> str:
            REQUEST.set(value)
            return (await turn.call(name)).content

        REQUEST.set("of the agent")
        calls = [call("as_task", "a"), call("as_thread", "b"), call("as_task", "c")]
        seen = [(await turn.call("as_task")).content, *await asyncio.gather(*calls)]
        return [*seen, REQUEST.get()]

    def plain_agent(turn: Turn) -> list[str]:
        REQUEST.set("of the agent")
        return [turn.call("as_task").content, turn.call("as_thread").content, REQUEST.get()]

    tools = [as_task, as_thread]
    supervisor = kit.start(async_agent, tools=tools)
    session = supervisor.session("s1")
    assert result_of(session) == ["of the agent True", "a True", "b True", "c True", "of the agent"]
    kit.close()
    session = kit.session(plain_agent, tools=tools)
    assert result_of(session) == ["of the agent True", "of the agent True", "of the agent"]
    assert REQUEST.get() == "unset"


def result_of(session: SessionHandle) -> object:
    """Have the agent run, and return what it returned."""
    run_id = say(session)
    session.receipt(run_id, timeout=20)
    run = session.run(run_id)
    assert run.error is None
    return run.result
