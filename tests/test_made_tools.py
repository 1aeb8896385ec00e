"""Tools that are made where they are called, in the supervisor's process: calls as those of registered tools."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from actors import AsyncCancelToken, AsyncTurn, CancelToken, Invalid, Outcome, RunCancelled, Spawn, Tool, Turn, tool
from actors.errors import Refused
from actors.messages import CallDeadline
from actors.model import How, Isolation
from actors.requests import Answer
from actors.secrets import MARK
from supervisor import SessionHandle
from supervisor.agent import Agent
from tests import process_tools
from tests.kit import WAIT_S, YEAR_S, Kit, check_rest, log, rows, say, stop, until

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "key": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SPAN: ContextVar[str] = ContextVar("span", default="none")


class Service:
    """An object of a framework."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def look(self, **arguments: Any) -> str:
        """Look it up."""
        self.asked.append(arguments)
        return f"sunny in {arguments['city']}"

    def __call__(self, city: str, key: str = "") -> dict[str, str]:
        """Be called."""
        return {"city": city}


class AsyncService:
    async def __call__(self, city: str) -> str:
        return f"rain in {city}"


def outcomes(session: SessionHandle) -> list[tuple[str, str, str]]:
    """The results in the log: what was called, its outcome, and its text."""
    events = [event.data for event in check_rest(session) if event.kind == "tool.ended"]
    return [(one["tool"], one["outcome"], one["content"]) for one in events]


def done(session: SessionHandle) -> str:
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).error is None
    return run_id


# ── What is a tool ────────────────────────────────────────────────────────────────────────────────


def test_a_tool_is_made_of_anything_that_can_be_called() -> None:
    service = Service()
    made = Tool(service.look, schema=CITY)
    assert (made.name, made.description, made.isolation) == ("look", "Look it up.", Isolation.THREAD)
    assert made.schema == CITY
    assert Tool(service, name="it", schema=CITY).isolation is Isolation.THREAD
    assert Tool(AsyncService(), name="it", schema=CITY).isolation is Isolation.TASK
    assert Tool(functools.partial(service.look, key="k"), name="it", schema=CITY, description="x").description == "x"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schema": CITY}, "invalid name of a tool"),
        ({"name": "two words", "schema": CITY}, "invalid name of a tool"),
        ({"name": "t", "schema": {"type": 7}}, "the schema of the tool 't' is not valid"),
        ({"name": "t", "schema": CITY, "secret": ["kye"]}, "each secret argument"),
        ({"name": "t", "schema": CITY, "isolation": "process"}, "cannot run in a process of its own"),
        ({"name": "t", "schema": CITY, "isolation": "task"}, "fits a plain function"),
        ({"name": "t", "schema": CITY, "deadline_s": -1}, "deadline_s"),
        ({"name": "t"}, "no isolation that fits"),
    ],
)
def test_what_is_no_tool_is_refused_where_it_is_made(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Tool(lambda **_: "", **options)


def test_a_parameter_that_a_model_and_the_supervisor_would_fill_in_is_refused() -> None:
    def guarded(city: CancelToken, token: CancelToken, fence: str) -> None:
        """Have the token of the call."""

    with pytest.raises(Invalid, match="both a model and the supervisor"):
        Tool(guarded, schema=CITY)
    made = Tool(guarded, schema={})
    assert made.given == {"city": "token", "token": "token", "fence": "fence"}
    assert Tool(guarded, schema={"properties": {"fence": {}}}).given == {"city": "token", "token": "token"}
    found = made.check({"token": "forged"})
    assert found is not None
    assert "the supervisor fills in token" in found


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_l2_a_tool_that_is_made_on_the_spot_is_called_through_the_gate(kit: Kit, kind: str) -> None:
    service = Service()
    tools = [Tool(service.look, schema=CITY), Tool(AsyncService(), name="rain", schema=CITY)]

    async def as_task(turn: AsyncTurn) -> list[Any]:
        results = await asyncio.gather(*(turn.call(one, city="Bern") for one in tools))
        return [results[0].content, results[1].content, [one.outcome for one in turn.messages[1:] if one.outcome]]

    def as_thread(turn: Turn) -> list[Any]:
        results = [turn.call(one, city="Bern") for one in tools]
        return [results[0].content, results[1].content, [one.outcome for one in turn.messages[1:] if one.outcome]]

    session = kit.session(as_task if kind == "async" else as_thread)
    run_id = done(session)
    assert session.run(run_id).result == ["sunny in Bern", "rain in Bern", ["finished", "finished"]]
    assert service.asked == [{"city": "Bern"}]
    called = {row.name: row.how for row in rows(session.receipt(run_id)) if row.kind == "call"}
    assert called == {"look": How.RETURNED, "rain": How.RETURNED}
    kinds = [event.kind for event in check_rest(session) if event.kind.startswith("tool.")]
    assert sorted(kinds) == ["tool.ended"] * 2 + ["tool.requested"] * 2 + ["tool.started"] * 2


def test_l2_arguments_that_do_not_fit_the_schema_start_nothing(kit: Kit) -> None:
    service = Service()
    made = Tool(service.look, schema=CITY, approve=True)

    async def agent(turn: AsyncTurn) -> list[str]:
        result = await turn.call(made, town="Bern")
        return [result.outcome, result.content]

    session = kit.session(agent)
    outcome, why = session.run(done(session)).result
    assert outcome == "not_started"
    assert '"city" is a required property' in why
    assert service.asked == []
    assert not {event.kind for event in log(session)} & {"tool.started", "call.waiting"}, "and nobody is asked"


def test_a_registered_tool_may_have_a_schema_of_its_own(kit: Kit) -> None:
    service = Service()

    async def agent(turn: AsyncTurn) -> list[Any]:
        offered = [one["parameters"] for one in turn.tools if one["name"] == "look"]
        results = [await turn.call("look", city="Bern"), await turn.call("look", city=7)]
        return [offered, [one.outcome for one in results]]

    session = kit.session(agent, tools=[Tool(service.look, schema=CITY)])
    assert session.run(done(session)).result == [[CITY], ["finished", "not_started"]]


def test_calls_of_a_models_answer_may_be_of_tools_that_are_made_on_the_spot(kit: Kit) -> None:
    made = Tool(AsyncService(), name="rain", schema=CITY)

    async def as_task(turn: AsyncTurn) -> list[str]:
        async with turn.answer(provider="p") as answer:
            calls = [
                answer.call(made, {"city": "Bern"}, provider_id="a"),
                answer.call(made, {"city": 7}, provider_id="b"),
            ]
        return [(await one).outcome for one in calls]

    session = kit.session(as_task)
    assert session.run(done(session)).result == ["finished", "not_started"]
    message = next(one for one in session.thread() if one.answer is not None)
    assert [part.provider_id for part in message.parts if part.type == "call"] == ["a", "b"]


def test_secrets_of_a_tool_that_is_made_on_the_spot_are_in_no_record(kit: Kit) -> None:
    service = Service()

    def look(**arguments: Any) -> str:
        service.look(**arguments)
        return f"asked with {arguments['key']}"

    made = Tool(look, schema=CITY, secret=["key"])

    async def agent(turn: AsyncTurn) -> list[str]:
        results = [await turn.call(made, city="Bern", key="hunter2"), await turn.call(made, city=7, key="hunter2")]
        return [one.content for one in results]

    session = kit.session(agent)
    first, second = session.run(done(session)).result
    assert first == f"asked with {MARK}"
    assert "is not of type" in second
    assert service.asked == [{"city": "Bern", "key": "hunter2"}]
    assert "hunter2" not in str([event.data for event in log(session)]) + str(session.thread())


def test_a_tool_has_the_context_of_its_caller_and_what_the_supervisor_fills_in(kit: Kit) -> None:
    def plain(city: str, token: CancelToken, spawn: Spawn, fence: str) -> str:
        return f"{SPAN.get()} {city} {token.cancelled} {type(spawn).__name__} {fence.split(':', maxsplit=1)[0]}"

    async def task(city: str, token: AsyncCancelToken) -> str:
        return f"{SPAN.get()} {city} {token.cancelled}"

    async def agent(turn: AsyncTurn) -> list[str]:
        SPAN.set("of the agent")
        made = Tool(plain, schema=CITY), Tool(task, schema=CITY)
        return [(await turn.call(one, city="Bern")).content for one in made]

    session = kit.session(agent)
    assert session.run(done(session)).result == ["of the agent Bern False Spawn s1", "of the agent Bern False"]


def test_a_tool_that_is_made_on_the_spot_may_need_approval_and_a_name_that_does_needs_it_too(kit: Kit) -> None:
    @tool(isolation="thread", approve=True)
    def wipe() -> str:
        """Be registered under this name."""
        return "registered"

    careful = Tool(lambda: "made", name="careful", schema={}, approve=True)
    namesake = Tool(lambda: "made", name="wipe", schema={})

    async def agent(turn: AsyncTurn) -> list[str]:
        return [(await turn.call(one)).content for one in (careful, namesake)]

    session = kit.session(agent, tools=[wipe])
    run_id = say(session)
    for name in ("careful", "wipe"):
        until(functools.partial(_waits, session, name), f"{name} waits")
        session.ask(Answer(call_id=session.status().asking[0].call_id, allow=True))
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["made", "made"]


def _waits(session: SessionHandle, name: str) -> bool:
    return [one.tool for one in session.status().asking] == [name]


def test_a_tool_in_a_process_of_its_own_is_called_by_its_name_only(kit: Kit) -> None:
    found = next(one for one in vars(process_tools).values() if getattr(one, "isolation", None) == "process")

    async def agent(turn: AsyncTurn) -> str:
        try:
            await turn.call(Tool(found))
        except Invalid as error:
            return error.message
        return "it was called"

    session = kit.session(agent)
    assert "is not registered" in str(session.run(done(session)).result)


# ── Its end ───────────────────────────────────────────────────────────────────────────────────────


class Held:
    """A function that holds until it is cancelled, on a thread or in a task."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.causes: list[str] = []

    def made(self, kind: str, **options: Any) -> Tool:
        """Make a tool of it."""

        def plain(token: CancelToken) -> None:
            self.begun.set()
            token.wait(WAIT_S)
            self.causes.append(token.provenance.source if token.provenance else "none")
            token.raise_if_cancelled()

        async def task(token: AsyncCancelToken) -> None:
            self.begun.set()
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                self.causes.append(token.provenance.source if token.provenance else "none")

        return Tool(plain if kind == "plain" else task, name="hold", schema={}, **options)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_call_that_is_no_longer_awaited_ends_with_its_cause(kit: Kit, kind: str) -> None:
    held = Held()

    async def agent(turn: AsyncTurn) -> list[str]:
        waiting = asyncio.create_task(turn.call(held.made(kind)))
        await asyncio.to_thread(held.begun.wait)
        waiting.cancel()
        await asyncio.wait([waiting])
        return [one.outcome or "" for one in turn.messages if one.role == "tool"]

    session = kit.session(agent)
    assert session.run(done(session)).result == ["interrupted"]
    assert held.causes == ["call.given_up"]
    ended = next(event.data for event in check_rest(session) if event.kind == "tool.ended")
    assert ended["provenance"]["source"] == "call.given_up"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_tool_that_is_made_on_the_spot_has_a_time_limit(kit: Kit, kind: str) -> None:
    held = Held()

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call(held.made(kind, deadline_s=YEAR_S))).outcome

    session = kit.session(agent)
    run_id = say(session)
    # One that passes before it begins would keep it from beginning.
    assert held.begun.wait(WAIT_S)
    kit.fire(CallDeadline)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).result == "interrupted"
    assert held.causes == ["tool.deadline"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_l3_a_stop_ends_a_tool_that_is_made_on_the_spot(kit: Kit, kind: str) -> None:
    held = Held()

    async def agent(turn: AsyncTurn) -> None:
        await turn.call(held.made(kind))

    session = kit.session(agent)
    run_id = say(session)
    assert held.begun.wait(WAIT_S)
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert held.causes == ["user.test"]
    assert [outcome for _, outcome, _ in outcomes(session)] == ["interrupted"]


# ── The schema of a gated function ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("schema", "why"), [(CITY, "is a required property"), ({"type": 7}, "the schema of the tool 'look' is not valid")]
)
def test_l2_a_gated_function_whose_arguments_do_not_fit_does_not_begin(
    kit: Kit, kind: str, schema: dict[str, Any], why: str
) -> None:
    begun: list[str] = []

    async def as_task(turn: AsyncTurn) -> list[str]:
        async def function() -> None:
            begun.append("begun")

        return await _refused(lambda: turn.gate("look", {"town": "Bern"}, function, schema=schema))

    def as_thread(turn: Turn) -> list[str]:
        try:
            turn.gate("look", {"town": "Bern"}, lambda: begun.append("begun"), schema=schema)
        except Refused as error:
            return [error.result.outcome, error.result.content]
        return []

    session = kit.session(as_task if kind == "async" else as_thread)
    outcome, content = session.run(done(session)).result
    assert outcome == Outcome.NOT_STARTED
    assert why in content
    assert begun == []


async def _refused(call: Callable[[], Any]) -> list[str]:
    try:
        await call()
    except Refused as error:
        return [error.result.outcome, error.result.content]
    except RunCancelled:
        pass
    return []


# ── The page ──────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(__file__).parent.parent / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(EXAMPLE,) = (code for code in BLOCKS if "Tool(service" in code)
WEATHER = """
class Weather:
    def __init__(self, station):
        self.station = station

    def forecast(self, city, days=1):
        return f"{days} days of sun in {city}"
"""


@pytest.mark.parametrize("where", ["inside", "host"])
def test_the_example_of_the_page_calls_its_tool(kit: Kit, tmp_path: Path, where: str) -> None:
    if where == "inside":
        names: dict[str, Any] = {}
        exec(WEATHER + EXAMPLE, names)
        session = kit.session(names["answer"])
    else:
        (tmp_path / "page.py").write_text(WEATHER + EXAMPLE.replace("from actors import", "from countermand import"))
        spec = Agent(run="page:answer", path=[str(tmp_path)], env={kit.mark: "1"}, spares=0)
        session = kit.start(spec).session("s1")
    done(session)
    assert session.thread()[-1].content == "2 tools; 2 days of sun in Bern"
    assert outcomes(session) == [("forecast", "finished", "2 days of sun in Bern")]
