"""What agents that are a model share: their key, the waits before a request is made again, calls as models spell them.

No SDK is needed here: its errors are told by their names, and a client is whatever has its arguments.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.hosts.runtime.loading import PACKAGES, why_broken
from supervisor.hosts.runtime.models.chat import spell
from supervisor.hosts.runtime.models.model import (
    ERROR_MAX_CHARS,
    KEY_MAX_BYTES,
    BrokenOff,
    Failed,
    Model,
    ModelFailed,
    call,
)
from supervisor.hosts.runtime.models.patience import WAIT_MAX_S, WAITS_S, patiently

LOCAL = {"base_url": "http://127.0.0.1:8080/v1"}


class APIError(Exception):
    """As both SDKs have it."""

    def __init__(self, status: int | None = None, body: object = None, **headers: str) -> None:
        super().__init__("it failed")
        self.status_code, self.body, self.response = status, body, SimpleNamespace(headers=headers)


class Turn:
    """A turn that notes the waits; `said` is what is on record of the answer when it fails."""

    def __init__(self, *, said: bool = False) -> None:
        self.messages = list[str]()
        self.shown = list[dict[str, Any]]()
        self.waited = list[float]()
        self.asked = 0
        self.cancel_token = self
        self._said = said

    async def progress(self, **data: Any) -> None:
        self.shown.append(data)

    async def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return False

    async def fails(self, error: Exception) -> None:
        self.asked += 1
        self.messages += ["a piece"] * self._said
        raise error


def made(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Model:
    monkeypatch.setenv("COUNTERMAND_MODEL", json.dumps({"model": "m", **settings}))
    return Model("types", "SimpleNamespace", key="TEST_KEY", url="TEST_URL")


def failed(monkeypatch: pytest.MonkeyPatch, turn: Turn, error: Exception) -> str:
    """Ask for what fails, and return the words of the error that comes of it."""
    model = made(monkeypatch, **LOCAL)
    with pytest.raises(ModelFailed) as raised:
        asyncio.run(patiently(turn, model, lambda one: one.fails(error)))
    return str(raised.value)


# ── The key ───────────────────────────────────────────────────────────────────────────────────────


def test_a_key_of_the_environment_is_taken_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-secret")
    model = made(monkeypatch)
    assert (model.client.api_key, model.provider) == ("sk-secret", "types")
    assert not {"TEST_KEY", "COUNTERMAND_MODEL"} & os.environ.keys()
    assert model.shown("no sk-secret here") == "no [key] here"
    assert len(model.shown("x" * 2 * ERROR_MAX_CHARS)) == ERROR_MAX_CHARS + 1


def test_without_a_key_there_has_to_be_a_server_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(monkeypatch, **LOCAL)
    assert (model.client.api_key, model.provider) == ("none", "127.0.0.1:8080")
    with pytest.raises(Exception, match="there is no key for the model m; expected key_file, or TEST_KEY in a file"):
        made(monkeypatch)


@pytest.mark.parametrize("text", ["", "sk-secret\nsk-secret", "sk secret", "sk-s\u00e9cret", "s" * (KEY_MAX_BYTES + 1)])
def test_a_file_that_is_no_key_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(Exception, match=r"the file .* of key_file cannot be used") as raised:
        made(monkeypatch, key_file=str(file))
    assert "secret" not in str(raised.value)
    file.write_text("s" * KEY_MAX_BYTES)
    assert made(monkeypatch, key_file=str(file)).client.api_key == "s" * KEY_MAX_BYTES
    file.unlink()
    with pytest.raises(Exception, match="No such file"):
        made(monkeypatch, key_file=str(file))


def test_an_sdk_that_is_not_there_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERMAND_MODEL", json.dumps({"model": "m", **LOCAL}))
    monkeypatch.setitem(PACKAGES, "no_such_sdk", "no-such-sdk")
    with pytest.raises(ModuleNotFoundError) as raised:
        Model("no_such_sdk", "Client", key="TEST_KEY", url="TEST_URL")
    said = why_broken("countermand.models.chat:answer", raised.value)
    assert "No module named 'no_such_sdk'" in said
    assert f"to do: {sys.executable} -m pip install no-such-sdk, or name an interpreter" in said


# ── Patience ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [APIError(503), APIError(429), BrokenOff("it has no end"), APIError(), Failed(None)])
def test_what_passes_is_asked_again_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    turn = Turn()
    failed(monkeypatch, turn, error)
    assert (turn.asked, tuple(turn.waited)) == (len(WAITS_S) + 1, WAITS_S)
    assert [one["asks_again_in_s"] for one in turn.shown] == list(WAITS_S)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (APIError(401), "see that key_file or env_files has the right key"),
        (APIError(404), "see that model and base_url are right"),
        (APIError(429, {"code": "insufficient_quota", "message": "no money"}), "429 no money"),
        (APIError(None, {"type": "invalid_request_error", "message": "odd"}), "odd"),
        (APIError(400, {"error": {"type": "x", "message": "prompt is too long"}}), "the thread is too long for"),
        (Failed(SimpleNamespace(code="context_length_exceeded", message="so")), "the thread is too long for"),
        (Failed(SimpleNamespace(code="invalid_prompt", message="odd")), "refused the request: odd"),
        (APIError(400, {"type": "exceed_context_size_error", "message": "so"}), "the thread is too long for"),
    ],
)
def test_what_does_not_pass_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    turn = Turn()
    assert words in failed(monkeypatch, turn, error)
    assert (turn.asked, turn.waited) == (1, [])


def test_the_provider_says_how_long_is_waited_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn()
    failed(monkeypatch, turn, APIError(429, None, **{"retry-after": f"{WAIT_MAX_S}"}))
    assert turn.waited == [WAIT_MAX_S] * len(WAITS_S)
    turn = Turn()
    failed(monkeypatch, turn, APIError(429, None, **{"retry-after": f"{WAIT_MAX_S + 1}"}))
    assert (turn.asked, turn.waited) == (1, [])


def test_an_answer_of_which_a_part_is_on_record_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(said=True)
    assert "an answer of the model m at 127.0.0.1:8080 broke off" in failed(monkeypatch, turn, BrokenOff("no end"))
    assert turn.asked == 1


def test_what_is_no_error_of_the_provider_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, model, error = Turn(), made(monkeypatch, **LOCAL), KeyError("a mistake")
    with pytest.raises(KeyError) as raised:
        asyncio.run(patiently(turn, model, lambda one: one.fails(error)))
    assert raised.value is error


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────


class Said:
    """An answer, which notes the calls."""

    def call(self, tool: Any, arguments: Any, *, provider_id: str | None) -> tuple[Any, Any, str | None]:
        return tool, arguments, provider_id


def test_a_call_is_asked_for_as_it_is_spelled() -> None:
    assert call(Said(), "note", '{"text": "x"}', "c1") == ("note", {"text": "x"}, "c1")
    assert call(Said(), "note", "", None) == ("note", {}, None)


@pytest.mark.parametrize("spelled", ['{"text": "it was cut o', "[1]", "7", "[" * 100_000])
def test_a_call_whose_arguments_are_no_object_calls_nothing_and_says_so(spelled: str) -> None:
    tool, arguments, _ = call(Said(), "a name of its own", spelled, "c1")
    assert (tool.name, arguments) == ("a_name_of_its_own", {"arguments": spelled})
    with pytest.raises(Exception, match="the tool was not called; expected arguments that are one JSON object"):
        tool.function(**arguments)


def piece(index: int, identity: str | None, name: str | None, arguments: str | None) -> Any:
    return SimpleNamespace(index=index, id=identity, function=SimpleNamespace(name=name, arguments=arguments))


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "a", "f", "{"), piece(0, None, None, "}"), piece(1, "b", "g", "["), piece(1, None, None, "]")],
        [piece(0, "a", "f", "{"), piece(1, "b", "g", "["), piece(0, None, None, "}"), piece(1, None, None, "]")],
        [piece(0, "a", "f", "{}"), piece(0, "b", "g", "[]")],
        [piece(0, "a", "f", "{"), piece(0, "a", "f", "}"), piece(1, "b", "g", None), piece(1, "b", None, "[]")],
    ],
)
def test_pieces_of_calls_are_put_together_however_a_server_numbers_them(pieces: list[Any]) -> None:
    spelled = dict[Any, dict[str, str]]()
    for one in pieces:
        spell(spelled, [one])
    assert [tuple(one.values()) for one in spelled.values()] == [("a", "f", "{}"), ("b", "g", "[]")]
