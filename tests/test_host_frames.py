"""Frames: every line is a frame or is refused, the schema is of what is said, and the document's example is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import host_schema
from actors.model import Message, Mode, Outcome, Provenance, Role
from supervisor.hosts import frames, lines
from supervisor.hosts.frames import CANCEL_REQUEST, FROM_DAEMON, FROM_HOST
from supervisor.hosts.lines import Answer, Code, NotAFrame, Notification, Request
from supervisor.hosts.schema import document, schema

DOCUMENT = Path(__file__).parents[1] / "docs" / "host-protocol.md"
EXAMPLE = re.findall(r"^([<>]) (.+)$", DOCUMENT.read_text(), re.MULTILINE)
WHY = Provenance(source="user.test", reason="the test says so")


def validator(direction: str) -> Any:
    whole = schema()
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{direction}", "$defs": whole["$defs"]})


FITS = {"from_host": validator("from_host"), "from_daemon": validator("from_daemon")}


def test_the_schema_in_the_documents_is_of_the_structs() -> None:
    assert host_schema.TARGET.read_text() == document(), "run scripts/host_schema.py"


def test_every_method_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    for method in (*FROM_HOST, *FROM_DAEMON):
        assert f"`{method.name}`" in text


# ── What the daemon writes ────────────────────────────────────────────────────────────────────────

MESSAGE = Message("msg_1", Role.USER, "hello", 1, "run_1")
LINES = {
    "run": lines.request(
        1,
        "run",
        frames.Run(
            fence="s:1:",
            session="s",
            generation=1,
            run="run_1",
            agent="mine",
            thread=(MESSAGE,),
            inputs=("msg_1",),
            tools=(frames.Offer(name="shell", description="Run.", parameters={"type": "object"}),),
            credit=frames.CreditTerms(events=256, bytes=1_048_576),
            limits=frames.RunLimits(grace_s=2.0, deadline_s=None),
        ),
    ),
    "execute": lines.request(2, "execute", frames.Execute(fence="s:1:c", call="c", of=1, deadline_s=3.5)),
    "cancel": lines.notification(
        CANCEL_REQUEST, frames.Cancel(request_id=1, fence="s:1:", why=WHY, mode=Mode.IMMEDIATE, grace_s=0.0)
    ),
    "credit": lines.notification("credit", frames.CreditGiven(fence="s:1:", events=3, bytes=99)),
    "ping": lines.request(3, "ping", frames.Ping()),
    "called": lines.answer(
        1, frames.CallDone(call="c", outcome=Outcome.INTERRUPTED, content="", is_error=True, data={"a": 1})
    ),
    "steered": lines.answer(2, frames.Steered(messages=(MESSAGE,))),
    "refused": lines.refusal(3, Code.STALE, "it is of a run that is over"),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_the_daemon_writes_is_one_line_that_fits_the_schema(line: bytes) -> None:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    FITS["from_daemon"].validate(json.loads(line))
    assert isinstance(lines.decoded(line), Request | Notification | Answer)


# ── The example of the document ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("direction", "line"), EXAMPLE)
def test_each_line_of_the_example_fits_the_schema(direction: str, line: str) -> None:
    FITS["from_host" if direction == ">" else "from_daemon"].validate(json.loads(line))
    frame = lines.decoded(line.encode())
    if direction == ">" and not isinstance(frame, Answer):
        params = frames.host_params(frame.method, frame.params)
        assert params is not None


def test_the_example_answers_each_request_once() -> None:
    open_requests: dict[str, set[int]] = {"<": set(), ">": set()}
    for direction, line in EXAMPLE:
        frame = lines.decoded(line.encode())
        if isinstance(frame, Request):
            assert frame.id not in open_requests[direction]
            open_requests[direction].add(frame.id)
        elif isinstance(frame, Answer):
            open_requests["<" if direction == ">" else ">"].remove(frame.id)
    assert open_requests == {"<": set(), ">": set()}


# ── What a host may write ─────────────────────────────────────────────────────────────────────────

NO_FRAMES = {
    "nothing": b"",
    "text": b"hello",
    "a batch": b'[{"jsonrpc":"2.0","id":1,"method":"hello"}]',
    "no version": b'{"id":1,"method":"hello"}',
    "another version": b'{"jsonrpc":"1.0","id":1,"method":"hello"}',
    "an id of 0": b'{"jsonrpc":"2.0","id":0,"method":"hello"}',
    "an id that is a text": b'{"jsonrpc":"2.0","id":"1","method":"hello"}',
    "an id that is true": b'{"jsonrpc":"2.0","id":true,"method":"hello"}',
    "an id that is a fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"hello"}',
    "an id that is too large": b'{"jsonrpc":"2.0","id":9007199254740992,"method":"hello"}',
    "a request whose id is null": b'{"jsonrpc":"2.0","id":null,"method":"hello"}',
    "a method that is a number": b'{"jsonrpc":"2.0","id":1,"method":1}',
    "a request that is an answer": b'{"jsonrpc":"2.0","id":1,"method":"hello","result":1}',
    "neither": b'{"jsonrpc":"2.0","id":1}',
    "both result and error": b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1}}',
    "an error that is null": b'{"jsonrpc":"2.0","id":1,"error":null}',
    "an error without a code": b'{"jsonrpc":"2.0","id":1,"error":{"message":"x"}}',
    "an answer to nothing": b'{"jsonrpc":"2.0","result":1}',
    "no UTF-8": b'{"jsonrpc":"2.0","method":"\xff"}',
    "too deep": b'{"jsonrpc":"2.0","method":"emit","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "half a line": b'{"jsonrpc":"2.0","method":"emit","params":{"fe',
}


@pytest.mark.parametrize("line", NO_FRAMES.values(), ids=NO_FRAMES)
def test_a_line_that_is_no_frame_is_refused_with_its_beginning(line: bytes) -> None:
    with pytest.raises(NotAFrame) as refused:
        lines.decoded(line)
    assert repr(line[:30].decode(errors="replace"))[1:-1] in str(refused.value)
    assert len(str(refused.value)) < 500


def test_params_of_a_wrong_type_are_refused() -> None:
    for method, params in (
        ("emit", b'{"fence":"s","text":1}'),
        ("emit", b'{"text":"x"}'),
        ("emit", b"null"),
        ("emit", b'{"fence":"s","text":"\xff"}'),
        ("call", b'{"fence":"s","tool":"t","arguments":[]}'),
        ("call", b'{"fence":"s","tool":"t","where":"elsewhere"}'),
        ("call", b'{"fence":"s","tool":"t","deadline_s":0}'),
        ("progress", b'{"fence":"s","data":"x"}'),
        (CANCEL_REQUEST, b'{"fence":"s","requestId":"1"}'),
        ("hello", b'{"protocol":"1"}'),
    ):
        with pytest.raises(NotAFrame):
            frames.host_params(method, params)


def test_unknown_fields_are_ignored() -> None:
    line = b'{"jsonrpc":"2.0","method":"emit","trace":1,"params":{"fence":"s","text":"x","later":{}}}'
    frame = lines.decoded(line)
    assert isinstance(frame, Notification)
    assert frames.host_params(frame.method, frame.params) == frames.Emit(fence="s", text="x")


def test_an_unknown_method_has_no_params() -> None:
    assert frames.host_params("process.freeze", b"{}") is None


def test_half_of_a_surrogate_pair_becomes_a_mark_and_costs_the_line_that_came() -> None:
    line = b'{"jsonrpc":"2.0","method":"emit","params":{"fence":"s","text":"\\ud83d"}}'
    frame = lines.decoded(line)
    assert isinstance(frame, Notification)
    assert frame.size == len(line)
    assert frames.host_params(frame.method, frame.params) == frames.Emit(fence="s", text="�")


def test_half_of_a_surrogate_pair_saves_no_line_that_is_wrong_otherwise() -> None:
    with pytest.raises(NotAFrame):
        lines.decoded(b'{"jsonrpc":"2.0","method":1,"params":{"text":"\\ud83d"}}')


def is_frame_or_refused(line: bytes) -> None:
    refusal = ""
    try:
        frame = lines.decoded(line)
        if isinstance(frame, Answer):
            assert (frame.error is None) == bool(frame.result)
        else:
            frames.host_params(frame.method, frame.params)
    except NotAFrame as refused:
        refusal = str(refused)
    assert len(refusal) < 2_000


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_refused(line: bytes) -> None:
    is_frame_or_refused(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"])
METHODS = st.sampled_from([method.name for method in FROM_HOST])
FIELDS = st.sampled_from(
    ["fence", "text", "data", "tool", "arguments", "where", "protocol", "requestId", "level", "deadline_s", "can"]
)


@given(
    st.dictionaries(KEYS, JSON, max_size=6),
    METHODS,
    st.dictionaries(FIELDS, JSON, max_size=6),
    st.sampled_from(["as it is", "a version", "a method", "parameters"]),
    st.booleans(),
)
def test_any_object_is_a_frame_or_refused(
    body: dict[str, Any], method: str, params: dict[str, Any], how: str, ascii_only: bool
) -> None:
    steps = ["as it is", "a version", "a method", "parameters"].index(how)
    if steps > 0:
        body["jsonrpc"] = "2.0"
    if steps > 1:
        body["method"] = method
        body.pop("result", None)
        body.pop("error", None)
    if steps > 2:
        body["params"] = params
    is_frame_or_refused(json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


@given(st.sampled_from([line.encode() for direction, line in EXAMPLE if direction == ">"]), st.data())
def test_a_frame_with_a_byte_changed_or_cut_off_is_a_frame_or_refused(line: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(line) - 1))
    change = data.draw(st.sampled_from(["cut", "drop", "replace"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    match change:
        case "cut":
            line = line[:place]
        case "drop":
            line = line[:place] + line[place + 1 :]
        case _:
            line = line[:place] + byte + line[place + 1 :]
    is_frame_or_refused(line)
