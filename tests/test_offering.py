"""Tools in the formats of providers: the registered ones, and those that are made on the spot, inside and in hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import AsyncTurn, Tool, Turn, offer_anthropic, offer_openai, offer_responses, tool
from tests.host_kit import python_host
from tests.kit import WAIT_S, Kit, say

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool(isolation="thread")
def note(text: str) -> str:
    """Note it."""
    return text


def weather(**arguments: Any) -> str:
    return str(arguments)


def shapes(name: str, description: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What the three providers take of one tool."""
    function = {"name": name, "description": description, "parameters": schema}
    return [
        {"name": name, "description": description, "input_schema": schema},
        {"type": "function", "function": function},
        {"type": "function", **function, "strict": False},
    ]


def test_tools_are_offered_in_the_form_of_each_provider() -> None:
    made = Tool(weather, name="weather", description="The weather.", schema=CITY)
    plain = {"name": "free", "description": "", "parameters": {}}
    offered = [offer([made, plain]) for offer in (offer_anthropic, offer_openai, offer_responses)]
    assert [one[0] for one in offered] == shapes("weather", "The weather.", CITY)
    assert [one[1] for one in offered] == shapes("free", "", {"type": "object", "properties": {}})


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_turn_lists_the_registered_tools(kit: Kit, kind: str) -> None:
    async def as_task(turn: AsyncTurn) -> Any:
        return offer_anthropic(turn.tools)

    def as_thread(turn: Turn) -> Any:
        return offer_anthropic(turn.tools)

    session = kit.session(as_task if kind == "async" else as_thread, tools=[note])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    offered = session.run(run_id).result
    assert isinstance(offered, list)
    by_name = {one["name"]: one for one in offered if isinstance(one, dict)}
    assert set(by_name) == {"shell", "note"}
    assert by_name["note"]["description"] == "Note it."
    assert by_name["note"]["input_schema"]["required"] == ["text"]


def test_in_a_host_tools_are_offered_in_the_same_forms(tmp_path: Path, python: str) -> None:
    code = f"""
        from countermand import Tool, offer_anthropic, offer_openai, offer_responses

        async def agent(turn):
            made = Tool(lambda **given: given, name="weather", description="The weather.", schema={CITY!r})
            return [offer([*turn.tools, made]) for offer in (offer_anthropic, offer_openai, offer_responses)]
    """
    with python_host(tmp_path, code, python=python) as host:
        host.hello()
        number = host.run(tools=[{"name": "shell", "description": "Run it.", "parameters": {"type": "object"}}])
        offered = host.answered(number)["result"]["value"]
        assert [one[0] for one in offered] == shapes("shell", "Run it.", {"type": "object", "properties": {}})
        assert [one[1] for one in offered] == shapes("weather", "The weather.", CITY)
