"""The served OpenAPI document, and schemathesis over it: no 5xx, and no answer outside the document."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import AsyncTurn, Event
from actors.events import EPHEMERAL
from actors.model import (
    CallState,
    Fate,
    PartKind,
    ReturnReason,
    ServicePhase,
    SessionActivity,
    StopOutcome,
    WithdrawOutcome,
)
from actors.run_status import RunStatus
from supervisor.http import document as document_module
from supervisor.states import StoreState
from tests.http_kit import TOKEN, Api, api
from tests.kit import kit
from tests.test_events import SAMPLES

__all__ = ["api", "kit"]

ROOT = Path(__file__).parent.parent
REFUSED = {"$ref": "#/components/schemas/Refused"}
METHODS_OF_BODIES = ("post", "delete")


async def answers(turn: AsyncTurn) -> None:
    await turn.emit("heard")


def document(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/openapi.json").raise_for_status().json()
    return found


def test_the_document_is_made_once_and_not_on_the_thread_that_serves(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    completed = document_module._completed

    def seen(found: dict[str, Any]) -> dict[str, Any]:
        made.append(threading.current_thread().name)
        return completed(found)

    monkeypatch.setattr(document_module, "_completed", seen)
    client = api.start(answers)
    with ThreadPoolExecutor(8) as pool:
        found = [one.result() for one in [pool.submit(document, api.client()) for _ in range(8)]]
    assert all(one == found[0] for one in found)
    assert client.get("/v1/openapi.json").headers["content-type"] == "application/vnd.oai.openapi+json"
    (name,) = made
    assert name.startswith("countermand-http-read")
    assert client.get("/v1/nothing").status_code == 404


@pytest.mark.timeout(400)
def test_schemathesis_finds_no_defect_and_no_answer_outside_the_document(api: Api, tmp_path: Path) -> None:
    api.start(answers, tcp=True)
    command = [
        str(Path(sys.executable).with_name("st")),
        "run",
        f"http://127.0.0.1:{api.port}/v1/openapi.json",
        f"--header=Authorization: Bearer {TOKEN}",
        # It never ends; see below.
        "--exclude-path-regex=/events$",
        "--max-examples=4",
        "--seed=1",
        "--request-timeout=30",
        "--continue-on-failure",
        "--no-color",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.http_hooks", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=380, check=False
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "30 selected" in ended.stdout


def test_the_document_types_the_data_of_an_event_by_its_kind(api: Api) -> None:
    found = document(api.start(answers))
    log = schemathesis.openapi.from_dict(found)["/v1/sessions/{session}/log"]["GET"]

    def fits(kind: str, data: dict[str, Any]) -> bool:
        page = {"events": [msgspec.to_builtins(Event(1, "s", 1, None, kind, data, 2.0))], "next": None}
        request = httpx.Request("GET", "http://localhost/v1/sessions/s/log")
        response = httpx.Response(200, json=page, request=request)
        response.elapsed = timedelta(0)
        return log.is_valid_response(response)

    for kind, data in SAMPLES:
        assert fits(kind, data) is (kind not in EPHEMERAL), kind
    assert not fits("session.folded", {})
    assert not fits("text", {"content": "it has no text"})
    assert not fits("run.status", {"status": "resting"})
    assert not fits("run.ended", {"status": "completed", "receipt": {"receipt_id": "rcpt_1"}})


NAMES = st.text(st.characters(codec="utf-8"), max_size=150)
SEQS = st.one_of(st.integers(), st.text(max_size=20))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=NAMES, from_seq=SEQS, ephemeral=st.sampled_from(["true", "false", "1", "x", ""]))
def test_an_event_stream_opens_or_is_refused_whatever_is_asked_for(
    api: Api, name: str, from_seq: int | str, ephemeral: str
) -> None:
    client = api.client() if api.server is not None else api.start(answers)
    url = f"/v1/sessions/{quote(name, safe='')}/events"
    with client.stream("GET", url, params={"from_seq": str(from_seq), "ephemeral": ephemeral}) as response:
        if response.status_code == 200:
            assert response.headers["content-type"] == "text/event-stream"
            assert next(response.iter_lines()) == "retry: 1000"
        else:
            assert response.status_code in (400, 404, 409)
            response.read()
            assert set(response.json()) == {"error"}
    client.close()


def test_every_operation_says_what_it_refuses_with_in_one_form(api: Api) -> None:
    found = document(api.start(answers))
    assert found["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            answers_of = operation["responses"]
            assert {"400", "401", "403", "408", "421", "431", "503"} <= set(answers_of), path
            for status, answer in answers_of.items():
                if status >= "400" and (path, status) != ("/v1/ready", "503"):
                    assert answer["content"]["application/json"]["schema"] == REFUSED, (path, method, status)
            if method in METHODS_OF_BODIES:
                assert "413" in answers_of


def test_every_body_says_that_it_takes_nothing_else(api: Api) -> None:
    found = document(api.start(answers))
    for path, operations in found["paths"].items():
        for operation in operations.values():
            if "requestBody" not in operation:
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            optional = "oneOf" in schema
            assert operation["requestBody"]["required"] is not optional, path
            name = (schema["oneOf"][0] if optional else schema)["$ref"].rpartition("/")[2]
            assert found["components"]["schemas"][name]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("struct", "field", "words"),
    [
        ("SessionStatus", "state", SessionActivity),
        ("Accepted", "returned", ReturnReason),
        ("Accepted", "fate", Fate),
        ("Withdrawn", "outcome", WithdrawOutcome),
        ("StopAnswer", "outcome", StopOutcome),
        ("Readiness", "phase", ServicePhase),
        ("Readiness", "store_state", StoreState),
        ("LiveRun", "status", RunStatus),
        ("LiveCall", "state", CallState),
        ("LiveStray", "kind", PartKind),
    ],
)
def test_a_closed_set_of_words_is_an_enum(api: Api, struct: str, field: str, words: type[StrEnum]) -> None:
    schemas = document(api.start(answers))["components"]["schemas"]
    schema = schemas[struct]["properties"][field]
    choices = [
        schemas[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in schema.get("oneOf", [schema])
    ]
    (named,) = [one["enum"] for one in choices if one.get("type") != "null"]
    assert [word for word in named if word is not None] == [*words]
