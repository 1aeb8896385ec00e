"""Refusals, on their way from who refuses to who is told: none loses its code or what it names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import supervisor.console.client.api as console_api
import supervisor.daemon.settings  # noqa: F401  # it has a kind of its own
from actors.decoding import decoder
from actors.errors import CountermandError, Invalid, RunActive, StoreUnavailable, TooLarge, error_from_json
from actors.messages import ToolResult
from actors.model import Outcome
from supervisor.console.exits import ExitCode, of_error
from supervisor.console.render.words import refusal
from supervisor.http import refusals
from supervisor.wire import AllStopped, NotStopped, Refusal


def kinds(below: type[CountermandError] = CountermandError) -> Iterator[type[CountermandError]]:
    yield below
    for kind in below.__subclasses__():
        if kind.__module__.startswith(("actors.", "supervisor.")):
            yield from kinds(kind)


KINDS = [*dict.fromkeys(kinds())]


def made(kind: type[CountermandError]) -> CountermandError:
    """An error of a kind, with a value in all that it tells."""
    own: dict[str, Any] = {name: 77 if name == "pid" else f"{name} of it" for name in kind.fields}
    taken = inspect.signature(kind).parameters
    if "problems" in taken:
        return kind([Invalid("the message", expected="a", got="b", remedy="c")])  # type: ignore[arg-type]
    if "result" in taken:
        return kind(ToolResult(Outcome.NOT_STARTED, "the message"))  # type: ignore[arg-type]
    return kind("the message", expected="a", got="b", remedy="c", **own)


def test_there_are_the_kinds_that_this_is_about() -> None:
    assert {RunActive, StoreUnavailable, TooLarge, refusals.Busy, console_api.NoDaemon} <= {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_encoded_and_decoded_without_loss(kind: type[CountermandError]) -> None:
    error = made(kind)
    # Each field that a kind declares is one that its errors have.
    assert all(getattr(error, name) for name in kind.fields)
    again = error_from_json(json.loads(json.dumps(error.as_json())))
    assert again.as_json() == error.as_json()
    assert str(again) == str(error)
    assert issubclass(kind, type(again))
    assert again.code == kind.code
    assert of_error(again) is of_error(error)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.code in refusals.STATUSES])
def test_what_the_api_refuses_reaches_the_console_without_loss(kind: type[CountermandError]) -> None:
    answer = refusals.failure(made(kind))
    told = console_api.refused(answer.body, answer.status)
    assert told.as_json() == made(kind).as_json()


@pytest.mark.parametrize("code", refusals.STATUSES)
def test_every_code_of_the_api_reaches_the_console(code: str) -> None:
    sent = Refusal(code, "the message", "a", "b", "c", "run_1", "run_2")
    answer = refusals.packed(sent)
    told = console_api.refused(answer.body, answer.status)
    assert told.as_json() == {
        "code": code,
        "message": "the message",
        "expected": "a",
        "got": "b",
        "remedy": "c",
        "run_id": "run_1",
        "superseded_run_id": "run_2",
    }
    assert refusal(told).startswith("the message\n")


def test_a_code_and_a_field_that_are_not_known_here_are_kept() -> None:
    told = error_from_json({"code": "of_a_later_release", "message": "no", "retry_at": 12})
    assert (told.code, told.as_json()["retry_at"], of_error(told)) == ("of_a_later_release", 12, ExitCode.FAILED)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("no_daemon", ExitCode.NO_DAEMON), ("no_answer", ExitCode.RUN), ("too_large", ExitCode.USAGE)],
)
def test_a_refusal_earns_its_exit_code_wherever_it_comes_from(code: str, exit_code: ExitCode) -> None:
    assert of_error(error_from_json({"code": code, "message": "no"})) is exit_code


def test_the_refusal_of_one_session_to_a_stop_of_all_is_encoded_without_loss() -> None:
    refused = Refusal("no_answer", "the message", "a", "b", "c", "run_1")
    sent = msgspec.json.encode(AllStopped(stopped=[], failed=[NotStopped("s1", refused)]))
    again = msgspec.json.encode(decoder(AllStopped)(sent))
    assert json.loads(again) == json.loads(sent)
