"""Tools that are made where they are called, in a host: the daemon holds them to their schemas, and gates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.requests import Answer
from actors.secrets import MARK
from supervisor import SessionHandle
from supervisor.agent import Agent
from tests.host_kit import Json, python_host
from tests.kit import WAIT_S, Kit, check_rest, log, say, stop, until

CODE = '''
import asyncio
import contextvars
import time
from pathlib import Path

from countermand import CancelToken, Invalid, Refused, Tool, tool

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "key": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SPAN = contextvars.ContextVar("span", default="none")


class Service:
    def look(self, **arguments):
        """Look it up."""
        with Path("asked").open("a") as file:
            file.write(f"{sorted(arguments)} {SPAN.get()}\\n")
        return f"sunny in {arguments['city']}, asked with {arguments.get('key')}"


async def rain(city: str, fence: str, token: CancelToken):
    return f"rain in {city} {fence.split(':')[0]} {token.cancelled}"


def plain_rain(city, token: CancelToken, fence=""):
    return f"rain in {city} {fence.split(':')[0]} {token.cancelled}"


MADE = {
    "look": Tool(Service().look, schema=CITY, secret=["key"]),
    "rain": Tool(rain, schema=CITY),
    "plain_rain": Tool(plain_rain, schema=CITY),
    "careful": Tool(lambda: "careful", name="careful", schema={}, approve=True),
    "invalid": Tool(lambda: "never", name="invalid", schema={"type": "objekt"}),
    "outside": Tool(lambda: "never", name="outside", schema={"$ref": "file:///etc/passwd"}),
    "forged": Tool(plain_rain, name="forged", schema={}),
}


def hold(token: CancelToken):
    Path("begun").touch()
    while not token.cancelled:
        time.sleep(0.01)
    Path("cause").write_text(token.provenance.source)
    token.raise_if_cancelled()


async def hold_async(token: CancelToken):
    Path("begun").touch()
    try:
        await asyncio.sleep(1000)
    finally:
        Path("cause").write_text(token.provenance.source)


HELD = {
    "hold": Tool(hold, schema={}),
    "hold_async": Tool(hold_async, schema={}),
    "limited": Tool(hold, name="limited", schema={}, deadline_s=0.05),
}


async def agent(turn):
    SPAN.set("of the agent")
    name, _, rest = turn.inputs[-1].content.partition(" ")
    if name == "give_up":
        waiting = asyncio.create_task(turn.call(HELD["hold_async"]))
        while not Path("begun").exists():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        return [one.outcome for one in turn.messages if one.role == "tool"]
    if name in HELD:
        result = await turn.call(HELD[name])
        return [result.outcome, result.content]
    if name == "answer":
        async with turn.answer(provider="p") as answer:
            calls = [answer.call(MADE["rain"], {"city": city}, provider_id=str(city)) for city in ("Bern", 7)]
        return [(await one).outcome for one in calls]
    if name == "gate":
        async def function():
            return "begun"

        try:
            return await turn.gate("look", {"town": "Bern"}, function, schema=CITY)
        except Refused as error:
            return [error.result.outcome, error.result.content]
    result = await turn.call(MADE[name], **eval(rest or "{}"))
    return [result.outcome, result.content]


def plain(turn):
    SPAN.set("of the agent")
    name, _, rest = turn.inputs[-1].content.partition(" ")
    if name in HELD:
        result = turn.call(HELD[name])
        return [result.outcome, result.content]
    if name == "answer":
        with turn.answer(provider="p") as answer:
            calls = [answer.call(MADE["rain"], {"city": city}, provider_id=str(city)) for city in ("Bern", 7)]
        return [one.result().outcome for one in calls]
    if name == "gate":
        try:
            return turn.gate("look", {"town": "Bern"}, lambda: "begun", schema=CITY)
        except Refused as error:
            return [error.result.outcome, error.result.content]
    result = turn.call(MADE[name], **eval(rest or "{}"))
    return [result.outcome, result.content]
'''

EACH = pytest.mark.parametrize("agent", ["agent", "plain"])


def session_of(kit: Kit, folder: Path, agent: str) -> SessionHandle:
    (folder / "making.py").write_text(CODE)
    spec = Agent(run=f"making:{agent}", path=[str(folder)], env={kit.mark: "1"}, cwd=str(folder), spares=0)
    return kit.start(spec).session("s1")


def result(session: SessionHandle, content: str) -> Any:
    """What a run returns that does what a message says."""
    run_id = say(session, content)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    run = session.run(run_id)
    assert run.error is None
    return run.result


@EACH
def test_l2_a_host_calls_tools_that_are_made_on_the_spot_through_the_gate(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    said = f"sunny in Bern, asked with {MARK}"
    assert result(session, "look {'city': 'Bern', 'key': 'hunter2'}") == ["finished", said]
    assert result(session, "rain {'city': 'Bern'}") == ["finished", "rain in Bern s1 False"]
    assert result(session, "plain_rain {'city': 'Bern'}") == ["finished", "rain in Bern s1 False"]
    assert (tmp_path / "asked").read_text() == "['city', 'key'] of the agent\n"
    events = [event for event in check_rest(session) if event.kind == "tool.requested"]
    assert events[0].data["arguments"] == {"city": "Bern", "key": MARK}
    assert "hunter2" not in str([event.data for event in log(session) if event.kind != "message"])


@EACH
@pytest.mark.parametrize(
    ("called", "why"),
    [
        ("look {'town': 'Bern', 'key': 'hunter2'}", "is a required property"),
        ("look {'city': 7, 'key': 'hunter2'}", "is not of type"),
        ("invalid", "the schema of the tool 'invalid' is not valid"),
        ("outside", "the schema of the tool 'outside' is not valid"),
        ("gate", "is a required property"),
    ],
)
def test_l2_the_daemon_starts_no_call_that_does_not_fit(
    kit: Kit, tmp_path: Path, agent: str, called: str, why: str
) -> None:
    session = session_of(kit, tmp_path, agent)
    outcome, content = result(session, called)
    assert outcome == "not_started"
    assert why in content
    assert not (tmp_path / "asked").exists()
    assert "tool.started" not in {event.kind for event in check_rest(session)}
    assert "hunter2" not in str([event.data for event in log(session) if event.kind != "message"])


@EACH
def test_what_is_filled_in_for_a_tool_cannot_be_an_argument(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    outcome, content = result(session, "forged {'city': 'Bern', 'token': 'mine'}")
    assert outcome == "finished"
    assert "fills in token" in content


@EACH
def test_calls_of_an_answer_may_be_of_tools_that_are_made_on_the_spot(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    assert result(session, "answer") == ["finished", "not_started"]
    check_rest(session)


@EACH
def test_a_person_is_asked_for_a_tool_that_needs_it(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    run_id = say(session, "careful")
    until(lambda: session.status().asking, "it waits")
    session.ask(Answer(call_id=session.status().asking[0].call_id, allow=True))
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["finished", "careful"]


@EACH
@pytest.mark.parametrize("name", ["hold", "hold_async"])
def test_l3_a_stop_ends_a_tool_that_is_made_on_the_spot(kit: Kit, tmp_path: Path, agent: str, name: str) -> None:
    session = session_of(kit, tmp_path, agent)
    run_id = say(session, name)
    until((tmp_path / "begun").exists, "it has begun")
    stop(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert [event.data["outcome"] for event in check_rest(session) if event.kind == "tool.ended"] == ["interrupted"]
    assert kit.alive() == []


@EACH
def test_a_time_limit_ends_a_tool_that_is_made_on_the_spot(kit: Kit, tmp_path: Path, agent: str) -> None:
    session = session_of(kit, tmp_path, agent)
    assert result(session, "limited")[0] == "interrupted"
    ended = next(event.data for event in check_rest(session) if event.kind == "tool.ended")
    assert ended["provenance"]["source"] == "tool.deadline"


def test_a_call_that_is_no_longer_awaited_ends_with_its_cause(kit: Kit, tmp_path: Path) -> None:
    session = session_of(kit, tmp_path, "agent")
    assert result(session, "give_up") == ["interrupted"]
    ended = next(event.data for event in check_rest(session) if event.kind == "tool.ended")
    assert ended["provenance"]["source"] == "call.given_up"
    assert (tmp_path / "cause").read_text() == "call.given_up"


# ── The frames ────────────────────────────────────────────────────────────────────────────────────


def test_the_frame_of_a_call_has_what_the_daemon_needs_to_check_it(tmp_path: Path, python: str) -> None:
    code = """
        from typing import Annotated
        from countermand import Secret, Tool, tool

        SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}

        @tool(approve=True)
        def typed(key: Annotated[str, Secret]) -> str:
            "Typed."
            return key

        async def agent(turn):
            made = Tool(lambda **given: "ok", name="made", description="Made.", schema=SCHEMA, secret=["key"])
            results = [(await turn.call(one, key="hunter2")).content for one in (made, Tool(typed))]
            return [results, [call.arguments for one in turn.messages for call in one.tool_calls]]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run()
        frames: list[Json] = []
        for name, value in (("c1", "ok"), ("c2", MARK)):
            call = host.take("call")
            frames.append(call["params"])
            execute = host.request("execute", fence=f"s:1:{name}", call=name, of=call["id"], deadline_s=None)
            assert host.answered(execute)["result"]["content"] == value
            host.answer(call, call=name, outcome="finished", content=value, is_error=False, data=None)
        assert host.answered(number)["result"]["value"] == [["ok", MARK], [{"key": MARK}] * 2]
        for frame in frames:
            assert (frame["where"], frame["arguments"], frame["secret"]) == ("host", {"key": "hunter2"}, ["key"])
        assert (frames[0]["description"], frames[0]["schema"]["properties"]) == ("Made.", {"key": {"type": "string"}})
        assert (frames[1]["description"], frames[1]["ask"]) == ("Typed.", True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("schema={}", "invalid name of a tool"),
        ("name='two words', schema={}", "invalid name of a tool"),
        ("name='t', schema=7", "the schema of the tool 't' is not valid"),
        ("name='t', schema={'a': {1, 2}}", "the schema of the tool 't' is not valid"),
        ("name='t', schema={}, deadline_s=-1", "a deadline is a number of seconds"),
        ("name='t'", "a parameter that a schema cannot name"),
        ("name='t', schema={'properties': {'token': {}}}", "both a model and the supervisor"),
    ],
)
def test_what_is_no_tool_is_refused_where_it_is_made(tmp_path: Path, options: str, why: str) -> None:
    code = f"""
        from countermand import CancelToken, Invalid, Tool

        def function(token: CancelToken, **given):
            return ""

        async def agent(turn):
            function.__name__ = "no name"
            try:
                Tool(function, {options})
            except Invalid as error:
                return error.message
    """
    with python_host(tmp_path, code) as host:
        host.hello()
        assert why in host.answered(host.run())["result"]["value"]


def test_a_tool_of_the_host_may_be_one_with_a_schema(tmp_path: Path) -> None:
    code = """
        from countermand import Tool
        made = Tool(lambda **given: "ok", name="made", schema={"properties": {"a": {}}})

        async def agent(turn):
            return (await turn.call("made", a=1)).content
    """
    with python_host(tmp_path, code, "--tool", "mine:made") as host:
        assert [one["name"] for one in host.hello()["tools"]] == ["made"]
        number = host.run()
        call = host.take("call")
        assert call["params"]["schema"] == {"properties": {"a": {}}}
        host.answer(call, call="c1", outcome="finished", content="ok", is_error=False, data=None)
        assert host.answered(number)["result"]["value"] == "ok"
