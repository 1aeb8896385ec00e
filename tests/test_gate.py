"""The gate for functions of the agent's own: a call as any other, and the function's own objects come back."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, How, Invalid, Outcome, Provenance, RunStatus, ToolResult, Turn, tool
from actors.errors import Refused, RunCancelled
from actors.gate.cell import Cell, CellState
from actors.gate.pending import Pending, settle
from actors.messages import CallDeadline
from actors.model import Address
from actors.plugin.execution import NOT_STARTED, Executed, foreign_body
from actors.plugin.foreign import Finish, Foreign, GatedThread
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, stop, until

ADDRESS = Address("s", 1, "r", "c")
SPAN: ContextVar[str] = ContextVar("span", default="none")
CAUSE = Provenance(source="user.test", reason="enough")


class Broken(Exception):
    """What a function of a framework raises; it is known by its identity."""


class Value:
    """What a function of a framework returns; it is known by its identity."""


def result_of(kit: Kit, agent: Callable[..., Any], **options: Any) -> Any:
    """Have an agent run to its end, and return what it returned."""
    session = kit.session(agent, **options)
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    run = session.run(run_id)
    assert run.error is None
    return run.result


# ── What comes back ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_l2_a_gated_function_is_a_call_and_what_it_returned_comes_back_as_it_is(kit: Kit, kind: str) -> None:
    value, seen = Value(), list[object]()

    async def as_task(turn: AsyncTurn) -> bool:
        async def function() -> Value:
            seen.append(asyncio.current_task())
            return value

        got = await turn.gate("weather", {"city": "Bern"}, function, show=lambda one: f"shown {one is value}")
        seen.append(turn.messages[-1].content)
        return got is value and seen[0] is not asyncio.current_task()

    def as_thread(turn: Turn) -> bool:
        def function() -> Value:
            seen.append(threading.current_thread())
            return value

        got = turn.gate("weather", {"city": "Bern"}, function, show=lambda one: f"shown {one is value}")
        seen.append(turn.messages[-1].content)
        return got is value and seen[0] is threading.current_thread()

    session = kit.session(as_task if kind == "task" else as_thread)
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result is True
    assert seen[1] == "shown True", "the agent goes on with the result in its thread"
    events = [event for event in check_rest(session) if event.kind.startswith("tool.")]
    assert [event.kind for event in events] == ["tool.requested", "tool.started", "tool.ended"]
    assert events[0].data["arguments"] == {"city": "Bern"}
    assert (events[2].data["tool"], events[2].data["content"]) == ("weather", "shown True")
    assert [(row.kind, row.name, row.how) for row in rows(receipt) if row.kind == "call"] == [
        ("call", "weather", How.RETURNED)
    ]


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_the_log_has_what_the_model_calls_a_gated_call_up_to_a_limit(kit: Kit, kind: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    names: list[Any] = ["toolu_01", "\ud83d", "x" * 1_000, 7, None]

    async def as_task(turn: AsyncTurn) -> None:
        for name in names:
            await turn.gate("weather", {}, functools.partial(asyncio.sleep, 0), schema=schema, provider_id=name)

    def as_thread(turn: Turn) -> None:
        for name in names:
            turn.gate("weather", {}, lambda: None, schema=schema, provider_id=name)

    session = kit.session(as_task if kind == "task" else as_thread)
    session.receipt(say(session), timeout=WAIT_S)
    asked = [event.data for event in check_rest(session) if event.kind == "tool.requested"]
    assert [data.get("provider_id") for data in asked] == ["toolu_01", "\ufffd", "x" * 256, "7", None]
    assert {data.get("where") for data in asked} == {None}, "the supervisor's own process executes it"


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_what_a_gated_function_raises_comes_back_as_it_was_raised(kit: Kit, kind: str) -> None:
    broken, exits = Broken("as it is"), SystemExit(3)

    async def as_task(turn: AsyncTurn) -> list[bool]:
        async def function(error: BaseException) -> None:
            raise error

        same = []
        for error in (broken, exits):
            try:
                await turn.gate("breaks", {}, lambda error=error: function(error))  # type: ignore[misc]
            except BaseException as raised:
                same.append(raised is error)
        return same

    def as_thread(turn: Turn) -> list[bool]:
        def function(error: BaseException) -> None:
            raise error

        same = []
        for error in (broken, exits):
            try:
                turn.gate("breaks", {}, lambda error=error: function(error))  # type: ignore[misc]
            except BaseException as raised:
                same.append(raised is error)
        return same

    assert result_of(kit, as_task if kind == "task" else as_thread) == [True, True]
    assert kit.supervisor is not None
    results = [event.data for event in log(kit.supervisor.session("s1")) if event.kind == "tool.ended"]
    assert [(one["outcome"], one["is_error"], one["content"]) for one in results] == [
        ("finished", True, "Broken: as it is"),
        ("finished", True, "SystemExit: 3"),
    ]


def test_a_gated_function_has_the_context_of_its_caller(kit: Kit) -> None:
    async def as_task(turn: AsyncTurn) -> list[str]:
        async def function() -> str:
            before = SPAN.get()
            SPAN.set("of the function")
            return before

        async def one(name: str) -> str:
            SPAN.set(name)
            return await turn.gate("spans", {}, function)

        SPAN.set("of the agent")
        seen = [await turn.gate("spans", {}, function), *await asyncio.gather(one("a"), one("b"))]
        return [*seen, SPAN.get()]

    def as_thread(turn: Turn) -> list[str]:
        SPAN.set("of the agent")
        return [turn.gate("spans", {}, SPAN.get)]

    assert result_of(kit, as_task) == ["of the agent", "a", "b", "of the agent"]
    kit.close()
    assert result_of(kit, as_thread) == ["of the agent"]


def test_a_function_whose_code_would_run_outside_of_the_gate_is_an_error_to_both(kit: Kit) -> None:
    async def later() -> str:
        raise AssertionError("it is never awaited")

    def as_thread(turn: Turn) -> list[str]:
        said = []

        def makes_it() -> Any:
            return later()

        for function in (later, functools.partial(later), makes_it, lambda: (one for one in "abc")):
            with pytest.raises(Invalid) as refused:
                turn.gate("lazy", {}, function)
            said.append(refused.value.message)
        return said

    async def as_task(turn: AsyncTurn) -> str:
        async def generator() -> Any:
            return (one for one in "abc")

        with pytest.raises(Invalid) as refused:
            await turn.gate("lazy", {}, generator)
        return refused.value.message

    never_run = "the function returned code that is never run"
    not_here = "this function cannot be gated here"
    assert result_of(kit, as_thread) == [not_here, not_here, never_run, never_run]
    kit.close()
    assert result_of(kit, as_task) == never_run


def test_an_async_function_is_gated_on_the_agents_loop_and_nowhere_else(kit: Kit) -> None:
    began = list[str]()

    async def agent(turn: AsyncTurn) -> str:
        async def function() -> None:
            began.append("elsewhere")

        def elsewhere() -> None:
            asyncio.run(turn.gate("here", {}, function))

        with pytest.raises(Invalid) as refused:
            await asyncio.to_thread(elsewhere)
        return refused.value.message

    assert result_of(kit, agent) == "an async function can be gated on the agent's own event loop only"
    assert not began


# ── What does not take place ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_call_that_is_refused_raises_what_the_thread_has_and_its_function_never_begins(kit: Kit, kind: str) -> None:
    began, large = list[str](), {"text": "x" * 2_000_000}

    async def as_task(turn: AsyncTurn) -> list[str]:
        async def function() -> None:
            began.append("began")

        with pytest.raises(Refused) as refused:
            await turn.gate("large", large, function)
        return [refused.value.result.outcome, refused.value.result.content, turn.messages[-1].content]

    def as_thread(turn: Turn) -> list[str]:
        with pytest.raises(Refused) as refused:
            turn.gate("large", large, lambda: began.append("began"))
        return [refused.value.result.outcome, refused.value.result.content, turn.messages[-1].content]

    outcome, content, shown = result_of(kit, as_task if kind == "task" else as_thread)
    assert (outcome, content) == ("not_started", shown)
    assert "are 2000011 bytes as JSON" in content
    assert not began


def stopped_behind_an_earlier_run(kit: Kit, kind: str, **how: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Stop a run whose gated call waits for an earlier run; returns what is on record of the call, and what it cost."""
    began, hold = list[str](), kit.gate()

    @tool(isolation="thread")
    def holds() -> None:
        hold.wait()

    async def as_task(turn: AsyncTurn) -> None:
        async def function() -> None:
            began.append("began")

        if turn.inputs[-1].content == "hold":
            await turn.call("holds")
        await turn.gate("late", {}, function, **how)

    def as_thread(turn: Turn) -> None:
        if turn.inputs[-1].content == "hold":
            turn.call("holds")
        turn.gate("late", {}, lambda: began.append("began"), **how)

    session = kit.session(as_task if kind == "task" else as_thread, tools=[holds], grace_s=30.0)
    first = say(session, "hold")
    until(lambda: any(event.kind == "tool.started" for event in log(session)))
    second = say(session, "go", policy="interrupt")
    until(lambda: any(event.kind == "tool.requested" and event.run_id == second for event in log(session)))
    stop(session, mode="immediate")
    hold.set()
    assert session.receipt(second, timeout=WAIT_S).complete
    session.receipt(first, timeout=WAIT_S)
    events = [event for event in check_rest(session) if event.run_id == second]
    (asked,) = [event.data for event in events if event.kind == "tool.requested"]
    (ended,) = [event.data for event in events if event.kind == "tool.ended"]
    assert not began
    return asked, ended, session.run(second).usage.calls


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_l2_a_function_that_waits_for_an_earlier_run_never_begins_when_its_run_is_stopped(kit: Kit, kind: str) -> None:
    asked, ended, calls = stopped_behind_an_earlier_run(kit, kind)
    assert "begun" not in asked
    assert ended["outcome"] == "not_started"
    assert calls == 0


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_l6_what_has_begun_elsewhere_is_interrupted_where_another_call_is_not_started(kit: Kit, kind: str) -> None:
    asked, ended, calls = stopped_behind_an_earlier_run(kit, kind, begun=True)
    assert asked["begun"] is True
    assert ended["outcome"] == "interrupted"
    assert ended["content"].startswith("Interrupted: ")
    assert "had begun before it was on record, and may have had effects" in ended["content"]
    assert calls == 1


def test_l6_what_has_begun_elsewhere_is_interrupted_when_it_cannot_be_let_in(kit: Kit) -> None:
    refused: list[str] = []

    async def agent(turn: AsyncTurn) -> None:
        async def function() -> None:
            raise AssertionError("it does not fit")

        with pytest.raises(Refused) as error:
            await turn.gate("run", {"n": "x"}, function, schema={"properties": {"n": {"type": "number"}}}, begun=True)
        refused.append(error.value.result.content)
        with pytest.raises(Invalid, match="asks whether it may start, and has begun"):
            await turn.gate("run", {}, function, ask=True, begun=True)

    session = kit.session(agent)
    run_id = say(session, "go")
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).status is RunStatus.COMPLETED
    (content,) = refused
    assert content.startswith("Interrupted: the arguments")
    assert content.endswith("The call had begun before it was on record, and may have had effects.")
    (ended,) = [event for event in check_rest(session) if event.kind == "tool.ended"]
    assert (ended.data["outcome"], ended.data["content"]) == ("interrupted", content)


SPAWN: Any = None
"""Nothing is spawned here."""


def executed(cell: Cell[ToolResult], execute: Callable[..., None], token: CancelToken | None = None) -> list[Executed]:
    """Hand a call to somebody else, as its actor does, and return what it is told of the end."""
    ends: list[Any] = []
    token = token or CancelToken(lambda callback: callback())
    foreign_body(Foreign("t", execute), {}, ADDRESS, cell, token, SPAWN, lambda: None, 1000)(ends.append)
    return ends


def test_l2_the_cell_of_a_call_is_started_before_its_foreign_execution() -> None:
    cell, states, asked = Cell[ToolResult](), list[CellState](), list[object]()

    def execute(fence: str, arguments: object, token: CancelToken, _: object, finish: Finish) -> None:
        states.append(cell.state)
        asked.append(fence)
        finish(ToolResult(Outcome.FINISHED, "done"))

    (end,) = executed(cell, execute)
    assert (states, asked) == ([CellState.STARTED], ["s:1:c"])
    assert (end.how, end.result, cell.state) == (How.RETURNED, ToolResult(Outcome.FINISHED, "done"), "finished")
    # The fence was first.
    shut = Cell[ToolResult]()
    shut.close()
    assert executed(shut, execute) == [NOT_STARTED]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("value", "how", "content"),
    [
        ("text", How.RETURNED, "text"),
        ({"a": 1}, How.RETURNED, '{"a":1}'),
        (Broken("no"), How.RAISED, "Broken: no"),
        (ToolResult(Outcome.NOT_STARTED, "it lies"), How.RAISED, "Invalid"),
    ],
)
def test_l6_the_result_of_a_foreign_execution_is_the_result_of_its_call_unless_it_is_late(
    value: object, how: How, content: str
) -> None:
    cell, later = Cell[ToolResult](), list[Finish]()
    (end,) = executed(cell, lambda *rest: rest[4](value))
    assert end.how is how
    assert end.result is not None
    assert end.result.content.startswith(content)
    assert end.result.is_error is (how is How.RAISED)
    closed = Cell[ToolResult]()
    ends = executed(closed, lambda *rest: later.append(rest[4]))
    closed.close()
    later[0](value)
    assert [(one.how, one.result, one.late) for one in ends] == [(how, None, True)]


def test_l2_a_foreign_execution_that_fails_to_begin_has_ended_its_call() -> None:
    cell = Cell[ToolResult]()

    def execute(*_: object) -> None:
        raise Broken("its loop is closed")

    (end,) = executed(cell, execute)
    assert (end.how, cell.state) == (How.RAISED, CellState.FINISHED)


# ── A stop, and now, and now ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "order",
    [
        ("permit", "cancel"),
        ("cancel", "permit"),
        ("refusal", "permit"),
        ("cancel", "refusal", "permit"),
        ("permit", "refusal", "cancel"),
    ],
    ids=" then ".join,
)
def test_l2_whatever_comes_before_the_thread_has_woken_the_call_ends_once_and_begins_only_where_it_may(
    order: tuple[str, ...],
) -> None:
    token = CancelToken(lambda callback: callback())
    began, ends = list[str](), list[object]()
    pending = Pending(token)
    reply: Future[ToolResult] = pending.future()
    gated = GatedThread("t", lambda: began.append("began"), None, None, pending)

    def happens(what: str) -> None:
        match what:
            case "permit":
                gated.foreign.execute("s:1:c", {}, token, SPAWN, ends.append)
            case "cancel":
                token.cancel(CAUSE)
            case _:
                settle(reply, ToolResult(Outcome.NOT_STARTED, "no"))

    wait = pending.wait

    def all_at_once(future: Future[Any], timeout: float | None) -> Any:
        for what in order:
            happens(what)
        return wait(future, timeout)

    pending.wait = all_at_once  # type: ignore[method-assign]  # all of it happens before the thread wakes
    cancelled = "cancel" in order
    if cancelled:
        with pytest.raises(RunCancelled):
            gated.run(reply)
    else:
        gated.run(reply)
    assert not began
    assert len(ends) == 1, "what was permitted ends, although nobody executes it"
    assert isinstance(ends[0], asyncio.CancelledError)
    if not cancelled:
        with pytest.raises(Refused):
            gated.outcome(reply.result())


def test_l2_a_permit_that_comes_after_the_thread_has_gone_ends_its_call() -> None:
    token = CancelToken(lambda callback: callback())
    pending, ends = Pending(token), list[object]()
    gated = GatedThread("t", lambda: None, None, None, pending)
    token.cancel(CAUSE)
    with pytest.raises(RunCancelled):
        gated.run(Future())
    gated.foreign.execute("s:1:c", {}, token, SPAWN, ends.append)
    assert [type(one) for one in ends] == [asyncio.CancelledError]


def test_l1_a_stop_cancels_a_gated_task_once_and_what_it_returns_is_not_accepted(kit: Kit) -> None:
    told, inside = list[object](), threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        async def function() -> str:
            try:
                inside.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append("cancelled")
            for _ in range(5):
                await asyncio.sleep(0.01)
            return "too late"

        try:
            await turn.gate("swallows", {}, function)
        except asyncio.CancelledError as error:
            told.append(type(error) is asyncio.CancelledError and error.provenance)  # type: ignore[attr-defined]
            raise

    session = kit.session(agent)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert told.count("cancelled") == 1
    assert [one.reason for one in told if isinstance(one, Provenance)] == ["enough"]
    (ended,) = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    assert ended["outcome"] == "interrupted"
    assert receipt.refused == {"result": 1}
    assert [(row.name, row.how) for row in rows(receipt) if row.kind == "call"] == [("swallows", How.RETURNED)]


def test_l3_a_gated_plain_function_that_keeps_running_is_waited_for_and_holds_the_barrier(kit: Kit) -> None:
    inside, leave, began = threading.Event(), kit.gate(), list[bool]()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "next":
            turn.gate("second", {}, lambda: began.append(leave.is_set()))
            return

        def goes_on() -> str:
            inside.set()
            leave.wait()
            return "too late"

        turn.gate("goes_on", {}, goes_on)

    session = kit.session(agent, grace_s=30.0)
    first = say(session)
    assert inside.wait(WAIT_S)
    second = say(session, "next", policy="interrupt")
    until(lambda: any(event.kind == "tool.requested" and event.run_id == second for event in log(session)))
    assert not began
    leave.set()
    assert session.receipt(second, timeout=WAIT_S).complete
    assert began == [True]
    receipt = session.receipt(first, timeout=WAIT_S)
    assert receipt.complete
    assert session.run(first).status is RunStatus.CANCELLED


def test_l6_a_gate_whose_await_is_cancelled_is_given_up_and_its_function_is_cancelled(kit: Kit) -> None:
    told = list[str]()

    async def agent(turn: AsyncTurn) -> list[str]:
        inside = asyncio.Event()

        async def function() -> None:
            try:
                inside.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append("cancelled")
                raise

        call = asyncio.ensure_future(turn.gate("slow", {}, function))
        await inside.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # Its result is in the thread before the agent goes on.
        seen = [message.outcome for message in turn.messages if message.role == "tool"]
        await turn.gate("next", {}, lambda: asyncio.sleep(0))
        return [str(one) for one in seen]

    assert result_of(kit, agent) == ["interrupted"]
    assert told == ["cancelled"]
    assert kit.supervisor is not None
    first, second = [event.data for event in log(kit.supervisor.session("s1")) if event.kind == "tool.ended"]
    assert first["provenance"]["source"] == "call.given_up"
    assert second["outcome"] == "finished"


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_l2_a_gate_with_a_deadline_is_closed_at_it_and_its_caller_gets_what_the_thread_has(kit: Kit, kind: str) -> None:
    inside = kit.gate()

    async def as_task(turn: AsyncTurn) -> list[str]:
        async def slow() -> None:
            inside.set()
            await asyncio.Event().wait()

        with pytest.raises(Refused) as refused:
            await turn.gate("slow", {}, slow, deadline_s=3600.0)
        return [refused.value.result.outcome, turn.messages[-1].content]

    def as_thread(turn: Turn) -> list[str]:
        def slow() -> str:
            inside.set()
            until(lambda: any(message.outcome == "interrupted" for message in turn.messages))
            return "too late"

        with pytest.raises(Refused) as refused:
            turn.gate("slow", {}, slow, deadline_s=3600.0)
        return [refused.value.result.outcome, turn.messages[-1].content]

    session = kit.session(as_task if kind == "task" else as_thread)
    run_id = say(session)
    # One that has not begun when its deadline comes is not interrupted, but not started.
    assert inside.wait(WAIT_S)
    kit.fire(CallDeadline)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    outcome, shown = session.run(run_id).result
    assert outcome == "interrupted"
    assert "3600 s" in shown


def test_a_deadline_of_a_gate_is_a_number_of_seconds(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> str:
        with pytest.raises(Invalid) as refused:
            await turn.gate("t", {}, lambda: asyncio.sleep(0), deadline_s=-1.0)
        return refused.value.message

    assert "deadline_s of a gated function" in result_of(kit, agent)


def test_what_is_gated_at_once_runs_at_once_each_in_a_call_of_its_own(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[int]:
        arrived, all_here = list[int](), asyncio.Event()

        async def function(number: int) -> int:
            arrived.append(number)
            if len(arrived) == 8:
                all_here.set()
            await all_here.wait()
            return number

        calls = [turn.gate("one", {"number": n}, lambda n=n: function(n)) for n in range(8)]  # type: ignore[misc]
        return list(await asyncio.gather(*calls))

    assert result_of(kit, agent) == list(range(8))
