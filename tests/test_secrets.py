"""What a tool marks as secret, and the environment of what it spawns, are in nothing that is kept or shown."""

from __future__ import annotations

import dataclasses
import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from loguru import logger
from msgspec import Meta, Struct

from actors import (
    AsyncTurn,
    CancelToken,
    Outcome,
    Secret,
    Spawn,
    Tool,
    ToolResult,
    render_anthropic,
    render_openai,
    tool,
)
from actors.ports import SpawnSpec
from actors.secrets import MARK, Withheld, is_secret, withheld
from supervisor.hosts.runtime.tools import Tool as HostTool
from supervisor.hosts.runtime.values import ToolResult as HostResult
from tests.http_kit import Api, api
from tests.kit import WAIT_S, check_rest, kit, say

__all__ = ["api", "kit"]

KEY = f"sk-{uuid.uuid4().hex}\n'quoted'"
"""What must not be found: with characters that JSON, and Python's own texts, show otherwise."""
CORE = KEY.removeprefix("sk-").split("\n")[0].encode()
"""The part of it that no encoding changes."""

given: list[Any] = []


class Account(Struct):
    user: str
    password: Annotated[str, Meta(min_length=1), Secret]


@tool(isolation="thread")
def uses(url: str, api_key: Annotated[str, Meta(min_length=3), Secret], account: Account | None = None) -> str:
    given.append((url, api_key, account))
    return "used"


@tool(isolation="task")
async def fails(api_key: Annotated[str, Secret()]) -> str:
    raise ValueError(f"401 for {api_key}", api_key)


@tool(isolation="thread")
def echoes(api_key: Annotated[str, Secret]) -> ToolResult:
    return ToolResult(Outcome.FINISHED, f"the key is {api_key}", data={"keys": [api_key], api_key: 1})


@tool(isolation="thread")
def chooses(api_key: Annotated[Literal["a", "b"], Secret]) -> str:
    return api_key


@tool(isolation="thread")
def spawns(spawn: Spawn, token: CancelToken) -> str:
    options: dict[str, Any] = {"env": {"API_KEY": KEY}, "stdin": KEY.encode()}
    return spawn(["sh", "-c", 'printf %s "$API_KEY" | wc -c; wc -c'], **options).wait().output


@pytest.fixture
def told() -> Iterator[Callable[[], str]]:
    """All that is logged, at the lowest level and with what loguru shows of the variables at an error."""
    written = io.StringIO()
    sink = logger.add(written, level=0, diagnose=True, backtrace=True)
    yield written.getvalue
    logger.remove(sink)


def files(state_dir: Path) -> dict[str, bytes]:
    """Each file below a directory."""
    return {str(path): path.read_bytes() for path in state_dir.rglob("*") if path.is_file()}


CALLS: dict[str, dict[str, Any]] = {
    "uses": {"url": "u", "api_key": KEY, "account": {"user": "me", "password": KEY}},
    "fails": {"api_key": KEY},
    "echoes": {"api_key": KEY},
    "chooses": {"api_key": KEY},
    "spawns": {},
}
MISSPELT = {"url": "u", "api_kye": KEY}


def test_a_secret_is_in_nothing_that_is_kept_shown_or_logged(api: Api, told: Callable[[], str]) -> None:
    results: dict[str, ToolResult] = {}
    threads: list[Any] = []

    async def agent(turn: AsyncTurn) -> None:
        for name, arguments in CALLS.items():
            results[name] = await turn.call(name, **arguments)
        results["misspelt"] = await turn.call("uses", **MISSPELT)
        threads.append(turn.messages)

    given.clear()
    client = api.start(agent, tools=[uses, fails, echoes, chooses, spawns])
    session = api.session()
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    events = check_rest(session)

    assert given == [("u", KEY, Account("me", KEY))], "the tool itself has it"
    assert results["spawns"].content.split() == [str(len(KEY))] * 2, "the command has it"
    assert results["fails"].content.startswith("ValueError: ")
    assert MARK in results["fails"].content
    assert (results["echoes"].content, results["echoes"].data) == (f"the key is {MARK}", {"keys": [MARK], MARK: 1})
    assert results["chooses"].outcome == results["misspelt"].outcome == "not_started"

    asked = [event.data["arguments"] for event in events if event.kind == "tool.requested"]
    assert asked[0] == {"url": "u", "api_key": MARK, "account": MARK}
    assert asked[-1] == {"url": "u", "api_kye": MARK}, "what goes by another name may be one, misspelt"

    shown = {"log": told(), "receipt": repr(receipt), "results": repr(results), "turn": repr(threads)}
    shown |= {"openai": repr(render_openai(session.thread())), "anthropic": repr(render_anthropic(session.thread()))}
    for path in ("thread", "log", "runs", "waiting", "processes", f"receipts/{run_id}", f"runs/{run_id}"):
        shown[path] = client.get(f"/v1/sessions/s1/{path}").text
    for path in ("/v1/dead-letters", "/v1/doctor", "/metrics", "/v1/sessions", "/v1/processes"):
        shown[path] = client.get(path).text
    for what, text in shown.items():
        assert CORE not in text.encode(), what
    kept = files(api.supervisor.state_dir)
    assert any(path.endswith("store.sqlite3") for path in kept)
    api.close_server()
    assert api.kit.close()
    for path, data in (kept | files(api.kit.state_dir)).items():
        assert CORE not in data, path


def test_a_secret_of_a_call_that_is_open_or_was_stopped_is_in_nothing_that_is_kept(
    api: Api, told: Callable[[], str]
) -> None:
    began = api.kit.gate()

    @tool(isolation="thread")
    def holds(api_key: Annotated[str, Secret], token: CancelToken) -> str:
        began.set()
        token.wait()
        raise RuntimeError(api_key)

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("holds", api_key=KEY)

    client = api.start(agent, tools=[holds])
    say(api.session())
    assert began.wait(WAIT_S)
    open_call = [client.get("/v1/processes").text.encode(), *files(api.supervisor.state_dir).values()]
    client.post("/v1/sessions/s1/stop", json={"wait_s": WAIT_S})
    check_rest(api.session())
    after = [client.get(path).text.encode() for path in ("/v1/dead-letters", "/v1/sessions/s1/log")]
    for data in (*open_call, *after, *files(api.supervisor.state_dir).values(), told().encode()):
        assert CORE not in data


# ── What is secret ────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Dated:
    word: Annotated[str, Secret]


class Named(NamedTuple):
    word: Annotated[str, Secret]


class Typed(TypedDict):
    word: Annotated[str, Secret]


class Plain(Struct):
    word: str
    more: list[Plain] = []


class Around(Struct):
    inner: list[Account]
    again: Around | None = None


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Annotated[str, Secret], True),
        (Annotated[str, Secret()], True),
        (Annotated[str, Meta(min_length=1), Secret], True),
        (Annotated[str, Secret] | None, True),
        (list[Annotated[str, Secret]], True),
        (dict[str, Annotated[str, Secret]], True),
        (Account, True),
        (Around, True),
        (Dated, True),
        (Named, True),
        (Typed, True),
        (str, False),
        (Annotated[str, Meta(min_length=1)], False),
        (Plain, False),
        (list[Plain] | None, False),
        (Literal["Secret"], False),
        (Any, False),
    ],
)
def test_a_parameter_is_secret_where_any_part_of_its_type_is(hint: object, expected: bool) -> None:
    assert is_secret(hint) is expected


def test_the_schema_shows_a_secret_parameter_without_its_default() -> None:
    @tool(isolation="thread")
    def fetch(url: str = "u", key: Annotated[str, Meta(description="The key."), Secret] = KEY) -> str:
        return url

    schema = Tool(fetch).schema
    assert schema["properties"]["key"] == {"type": "string", "description": "The key."}
    assert schema["properties"]["url"]["default"] == "u"
    assert Tool(fetch).convert({})["key"] == KEY


def test_a_tool_without_secrets_keeps_its_arguments_as_they_are() -> None:
    arguments = {"a": 1, "b": "x"}
    shown, secrets = withheld(arguments, frozenset(), frozenset({"a"}))
    assert shown is arguments
    assert secrets.hidden_in("x") == "x"


def test_what_is_withheld_is_given_back_and_shows_nothing_of_itself() -> None:
    arguments = {"a": "plain", "key": {"user": "somebody", "pin": 12345, "none": None, "on": True}}
    shown, secrets = withheld(arguments, frozenset({"key"}), frozenset({"a", "key"}))
    assert shown == {"a": "plain", "key": MARK}
    assert secrets.restored(shown) == arguments
    assert repr(secrets) == str(secrets) == "Withheld()"
    with pytest.raises(TypeError):
        msgspec.json.encode(secrets)
    assert secrets.hidden_in(["somebody 12345 plain True None", 7, None]) == [f"{MARK} {MARK} plain True None", 7, None]
    assert secrets.hidden_in([12345, {"pin": 12345}]) == [MARK, {"pin": MARK}], "a number as well"


@pytest.mark.parametrize("value", ["secret\nlines", 'secret "quoted"\\ lines', "secret's lines", "secrét \U0001f511"])
@pytest.mark.parametrize(
    "shown", [repr, json.dumps, lambda text: json.dumps([text], ensure_ascii=False), lambda text: repr(f'"{text}"')]
)
def test_a_secret_is_hidden_as_python_and_json_escape_it_inside_and_in_a_host(
    value: str, shown: Callable[[str], str]
) -> None:
    text = shown(value)
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    host = HostTool(lambda key: key, schema=schema, name="t", secret=["key"])
    result = host.without({"key": value}, HostResult("finished", text, data=[text]))
    for hidden in (Withheld({"key": value}).hidden_in(text), result.content, *result.data):
        assert MARK in hidden
        assert "secr" not in hidden.replace(MARK, "")
        assert "lines" not in hidden


def test_of_secrets_that_hold_one_another_nothing_is_left() -> None:
    secrets = Withheld({"a": "abcd", "b": "abcdefgh"})
    assert secrets.hidden_in("abcdefgh abcd") == f"{MARK} {MARK}"
    assert Withheld({"pin": "12"}).hidden_in("12 of them") == "12 of them", "so short a text is in there by chance"


def test_the_text_of_a_command_has_no_value_of_its_environment_and_no_input() -> None:
    spec = SpawnSpec(("sh", "-c", "true"), "sh", env={"API_KEY": KEY}, stdin=KEY.encode())
    assert CORE.decode() not in repr(spec)
    assert "API_KEY" in repr(spec)
