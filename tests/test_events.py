"""The schema of the log: each kind has one struct, and the JSON is what it was when the kinds were strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import event_docs
from actors.events import (
    DATA,
    EPHEMERAL,
    EventKind,
    ProgressData,
    RunStatusData,
    TextData,
    UnreadableData,
    as_data,
    data_of,
    decoded,
)
from actors.model import INSIDE_SOURCES, Event
from actors.run_status import RunStatus

CAUSE = {
    "source": "user.demo",
    "reason": "enough",
    "mode": "graceful",
    "requested_by": None,
    "initiated_at": 3.0,
    "cause": None,
}
ROW = {
    "kind": "agent",
    "name": "worker",
    "started_at": 1.0,
    "ended_at": 2.0,
    "how": "returned",
    "status": None,
    "signals": [],
    "pid": None,
    "note": "",
    "reaped": 0,
    "rows": [],
    "provenance": None,
    "effects": [{"name": "publish", "begun": 2, "done": 1}],
}
RECEIPT = {
    "receipt_id": "rcpt_1",
    "run_id": "run_1",
    "generation": 1,
    "provenance": CAUSE,
    "fenced_at": 4.0,
    "ended_at": 5.0,
    "complete": True,
    "rows": [ROW],
    "reaped": 0,
    "refused": {"text": 2},
    "waiting": ["m9"],
    "withdrawn": [],
    "omitted": 0,
    "later": [],
}

SAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("message", {"id": "m1", "content": "hi", "origin": "user", "policy": "interrupt"}),
    (
        "message",
        {"id": "m1", "content": "hi", "origin": "bot", "policy": "steer", "sent_at": 2.5, "attachments": ["a.bin"]},
    ),
    ("message", {"id": "m1", "content": "hi", "origin": "user", "policy": "steer", "traceparent": "00-0a-0b-01"}),
    ("message.retracted", {"run_id": "run_1", "ids": ["m1", "m2"]}),
    ("answer.begun", {"answer": "ans_1"}),
    ("answer.begun", {"answer": "ans_1", "provider": "anthropic", "model": "m-1"}),
    ("answer.ended", {"answer": "ans_1"}),
    ("answer.ended", {"answer": "ans_1", "usage": {"input": 3}, "stop": "tool_use", "provider_id": "msg_1"}),
    ("answer.left", {"answer": "ans_1"}),
    ("answer.left", {"answer": "ans_1", "usage": {"input": 3}}),
    ("block", {"answer": "ans_1", "data": {"type": "thinking", "thinking": "hm", "signature": "s"}}),
    ("block", {"answer": "ans_1", "provider": "openai", "data": {}}),
    (
        "media",
        {
            "answer": "ans_1",
            "part": {"type": "media", "attachment": "att_1", "media_type": "image/png", "size": 3, "name": "a.png"},
        },
    ),
    (
        "message",
        {
            "id": "m1",
            "content": "hi",
            "origin": "user",
            "policy": "interrupt",
            "attachments": ["att_1"],
            "parts": [
                {"type": "media", "attachment": "att_1", "media_type": "image/png", "size": 3, "name": None},
                {"type": "text", "text": "hi"},
            ],
        },
    ),
    ("text", {"text": "hello"}),
    ("text", {"text": "hello", "answer": "ans_1"}),
    ("tool.requested", {"call_id": "c1", "tool": "shell", "arguments": {"script": "ls", "deep": [{"x": None}]}}),
    (
        "tool.requested",
        {"call_id": "c1", "tool": "weather", "arguments": {}, "provider_id": "toolu_01", "where": "host"},
    ),
    ("tool.requested", {"call_id": "c1", "tool": "t", "arguments": {}, "provider_id": "toolu_1", "answer": "ans_1"}),
    ("call.waiting", {"call_id": "c1", "question": "Deploy?"}),
    ("call.waiting", {"call_id": "c1", "question": "May it?", "options": ["yes"], "approval": True}),
    ("call.answered", {"call_id": "c1", "content": "yes", "allow": None, "by": "user"}),
    ("tool.started", {"call_id": "c1"}),
    ("tool.output", {"call_id": "c1", "process_id": "p1", "stream": "stdout", "text": "x\n"}),
    ("tool.output", {"call_id": "c1", "process_id": "p1", "stream": "stderr", "text": "[full]", "marker": True}),
    ("tool.ended", {"call_id": "c1", "tool": "t", "outcome": "finished", "content": "4", "is_error": False}),
    (
        "tool.ended",
        {
            "call_id": "c1",
            "tool": "t",
            "outcome": "interrupted",
            "content": "",
            "is_error": True,
            "data": {"exit_code": 0},
            "provenance": CAUSE,
        },
    ),
    ("tool.ended", {"call_id": "c1", "tool": "t", "outcome": "finished", "content": "", "is_error": True, "data": 0}),
    ("process.started", {"call_id": "c1", "process_id": "p1", "pid": 7, "name": "sleep"}),
    ("process.started", {"process_id": "p1", "kind": "subprocess", "pid": 7, "name": "sleep"}),
    ("process.started", {"call_id": "c1", "process_id": "p1", "pid": 7, "name": "sleep", "owner": "session"}),
    (
        "process.ended",
        {"call_id": "c1", "process_id": "p1", "how": "exit", "status": 0, "reaped": 1, "proven": True},
    ),
    (
        "process.ended",
        {"process_id": "p1", "kind": "subprocess", "how": None, "status": None, "reaped": 0, "proven": True},
    ),
    (
        "process.ended",
        {
            "run_id": "run_1",
            "call_id": "c1",
            "process_id": "p1",
            "how": "sigterm",
            "status": -15,
            "reaped": 3,
            "proven": False,
            "owner": "session",
            "note": "its ledger is gone",
            "provenance": CAUSE,
        },
    ),
    ("process.taken_back", {"process_id": "proc_1", "pid": 7, "name": "host mine"}),
    ("run.child", {"call_id": "call_1", "run_id": "run_2", "session": "s1.x", "agent": "researcher"}),
    (
        "run.child_ended",
        {
            "call_id": "call_1",
            "run_id": "run_2",
            "session": "s1.x",
            "status": "completed",
            "receipt_id": "rcpt_2",
            "how": "returned",
            "reaped": 3,
            "proven": True,
        },
    ),
    ("run.output", {"process_id": "proc_1", "stream": "stderr", "text": "warming up", "marker": True}),
    ("process.handed_over", {"call_id": "c1", "process_id": "p1", "pid": None, "name": "sleep"}),
    ("run.started", {"agent": "shell", "inputs": ["m1"]}),
    ("run.started", {"agent": "shell", "inputs": [], "resumed": True}),
    ("run.started", {"agent": "shell", "inputs": [], "retry_of": "run_0"}),
    ("run.started", {"agent": "mine", "inputs": ["m1"], "code_changed_at": 1_750_000_000.5}),
    ("run.status", {"status": "cancelled"}),
    ("run.status", {"status": "cancelling", "provenance": CAUSE, "note": "It was interrupted."}),
    ("run.status", {"status": "failed", "error": "", "note": "It failed."}),
    ("run.status", {"status": "completed", "result": False}),
    ("run.ended", {"status": "completed", "receipt": RECEIPT}),
    ("receipt.filed", {"receipt": {**RECEIPT, "run_id": None}}),
    ("receipt.amended", {"receipt": {**RECEIPT, "provenance": {**CAUSE, "cause": CAUSE}}}),
    ("session.fenced", {"run_id": None, "provenance": CAUSE}),
    ("session.fenced", {"run_id": "run_1", "provenance": CAUSE}),
    (
        "session.message_waiting",
        {"message_id": "m1", "run_id": "run_1", "steering": False, "content": "hi", "origin": "user"},
    ),
    (
        "session.message_returned",
        {"message_id": "m1", "reason": "withdrawn", "content": "hi", "origin": "user"},
    ),
    ("session.resumed", {"run_id": "run_1"}),
    ("session.barrier_forced", {"run_id": None, "abandoned": ["process sleep"]}),
    ("session.stop_durable", {"request_id": "stop_1", "outcome": "already_over", "receipt_id": "rcpt_1"}),
    ("session.quarantined", {}),
    ("session.deleted", {"provenance": CAUSE}),
    ("session.agent", {"agent": "claude", "by": "user", "message_id": "m1"}),
    ("session.agent", {"agent": "claude", "by": "triage"}),
    ("session.agent", {"agent": None, "by": "user", "message_id": "m1"}),
    ("session.state", {"agent": "claude", "changes": {"resume": "0b7f", "summary": None}}),
    ("typing", {}),
    ("progress", {"done": 3, "of": {"all": [4]}}),
    ("unreadable", {"kind": "text", "error": "invalid JSON"}),
]
"""Each kind as it is written, with and without the keys that may be left out."""

ROOT = Path(__file__).parents[1]
WORDS = frozenset({kind for kind in EventKind if "." not in kind} | INSIDE_SOURCES)
"""Kinds that are something else too: a word, a key, or the source of a stop."""
NAMES = frozenset(map(str, EventKind)) - WORDS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def event(kind: str, data: dict[str, Any]) -> Event:
    return Event(3, "s", 1, "run_1", kind, data, 2.0)


def test_each_kind_has_a_sample_and_a_struct_that_is_named_after_it() -> None:
    assert {kind for kind, _ in SAMPLES} == set(EventKind) == set(DATA)
    assert len(set(DATA.values())) == len(EventKind)
    for kind, struct in DATA.items():
        words = kind.replace(".", "_").split("_")
        assert struct.__name__ == "".join(word.capitalize() for word in words) + "Data"
        assert struct.event_kind is EventKind(kind)
        assert struct.__doc__
    assert {"typing", "progress"} == EPHEMERAL


@pytest.mark.parametrize(("kind", "data"), SAMPLES)
def test_each_kind_is_decoded_and_encoded_to_the_same_bytes(kind: str, data: dict[str, Any]) -> None:
    found = data_of(event(kind, data))
    assert type(found) is DATA[kind]
    assert found.event_kind == kind
    encoded = as_data(found)
    assert msgspec.json.encode(encoded) == msgspec.json.encode(data)
    assert data_of(event(kind, encoded)) == found


@pytest.mark.parametrize(("kind", "data"), SAMPLES)
def test_the_json_of_a_row_is_decoded_as_the_dict_of_an_event_is(kind: str, data: dict[str, Any]) -> None:
    assert decoded(kind, msgspec.json.encode(data)) == data_of(event(kind, data))


@pytest.mark.parametrize("kind", [*EventKind, "session.folded"])
@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff", b"null", None])
def test_a_row_that_is_damaged_is_unreadable(kind: str, damaged: Any) -> None:
    found = decoded(kind, damaged)
    assert isinstance(found, UnreadableData)
    assert (found.kind, bool(found.error)) == (kind, True)


@pytest.mark.parametrize(
    ("kind", "damaged"), [("text", b'{"text": "\xff"}'), ("run.status", b'{"status": "x"}'), ("message", b"{}")]
)
def test_a_row_with_a_damaged_value_is_unreadable(kind: str, damaged: bytes) -> None:
    assert isinstance(decoded(kind, damaged), UnreadableData)


@pytest.mark.parametrize(("kind", "data"), SAMPLES)
def test_a_key_of_a_newer_version_is_ignored(kind: str, data: dict[str, Any]) -> None:
    if kind != "progress":
        assert data_of(event(kind, {**data, "newer": {"x": 1}})) == data_of(event(kind, data))


def test_a_kind_of_a_newer_version_is_unreadable_and_says_so() -> None:
    found = data_of(event("session.folded", {"x": 1}))
    assert found == UnreadableData(kind="session.folded", error="this version does not know this kind of event")


@pytest.mark.parametrize("kind", list(EventKind))
@pytest.mark.parametrize("data", [{}, {"text": 1, "id": [], "provenance": {"source": "nobody", "reason": ""}}])
def test_missing_and_wrong_keys_are_no_error(kind: EventKind, data: dict[str, Any]) -> None:
    found = data_of(event(kind, data))
    assert type(found) in (DATA[kind], UnreadableData)


@settings(max_examples=50, deadline=None)
@given(kind=st.sampled_from(EventKind), data=st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_no_data_makes_decoding_raise(kind: EventKind, data: dict[str, Any]) -> None:
    assert type(data_of(event(kind, data))) in (DATA[kind], UnreadableData)


@settings(max_examples=50, deadline=None)
@given(sample=st.sampled_from(SAMPLES), damage=JSON, place=st.integers(0, 9))
def test_a_damaged_value_is_unreadable_or_of_the_same_kind(
    sample: tuple[str, dict[str, Any]], damage: Any, place: int
) -> None:
    kind, data = sample
    damaged = {**data, **({list(data)[place % len(data)]: damage} if data else {})}
    assert type(data_of(event(kind, damaged))) in (DATA[kind], UnreadableData)


def plain_types(value: Any) -> None:
    assert type(value) in (dict, list, str, int, float, bool, type(None)), type(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        plain_types(inner)


@pytest.mark.parametrize(("kind", "data"), SAMPLES)
def test_the_dict_of_a_struct_has_built_in_types_alone(kind: str, data: dict[str, Any]) -> None:
    plain_types(as_data(data_of(event(kind, data))))


def test_what_has_no_form_in_utf_8_is_encoded_all_the_same() -> None:
    found = RunStatusData(status=RunStatus.FAILED, error="half \ud800")
    assert msgspec.json.encode(as_data(found))


def test_progress_keeps_the_keys_that_the_agent_chose() -> None:
    shown = {"kind": "x", "shown": 1}
    assert data_of(event("progress", shown)) == ProgressData(shown=shown)
    assert as_data(ProgressData(shown=shown)) == shown


def test_a_kind_equals_its_string_and_an_event_takes_either() -> None:
    assert issubclass(EventKind, StrEnum)
    assert EventKind.TEXT == "text"
    assert data_of(event("text", {"text": "x"})) == data_of(event(EventKind.TEXT, {"text": "x"})) == TextData(text="x")
    assert msgspec.json.encode(event(EventKind.TEXT, {})) == msgspec.json.encode(event("text", {}))


# ── The one place that names the kinds ────────────────────────────────────────────────────────────


def named(tree: ast.AST) -> Iterator[str]:
    """The kinds of events that a module names by a string.

    A kind that is nothing else is one wherever it is, also in a statement of SQL. Of the other words only those are
    taken for one that are compared with a `kind`, or stand beside another kind in a collection.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield from NAMES.intersection((text, *text.split("'")))
            case ast.Compare(left=left, comparators=others) if is_kind(left):
                yield from (kind for other in others for kind in kinds_in(other))
            case ast.Match(subject=subject, cases=cases) if is_kind(subject):
                yield from (kind for case in cases for kind in kinds_in(case.pattern))
            case ast.Set() | ast.Tuple() | ast.List() | ast.Dict():
                kinds = list(kinds_in(node))
                yield from kinds if NAMES.intersection(kinds) else ()
            case _:
                continue


def is_kind(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "kind") or (
        isinstance(node, ast.Name) and node.id == "kind"
    )


def kinds_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value in DATA:
            yield one.value


@pytest.mark.parametrize(
    "bare",
    [
        "x = event.kind == 'text'",
        "x = kind in ('typing', y)",
        "match event.kind:\n    case 'tool.output' | 'message' if x: pass",
        "match event.kind:\n    case 'message': pass",
        "append('session.resumed', {})",
        "X = {'run.ended', 'run.status'}",
        "sql = \"SELECT data FROM events WHERE kind = 'tool.output'\"",
    ],
)
def test_a_bare_kind_is_found(bare: str) -> None:
    assert list(named(ast.parse(bare)))


def test_no_module_names_a_kind_by_a_string() -> None:
    paths = [path for room in ("actors", "supervisor") for path in sorted((ROOT / room).rglob("*.py"))]
    found = {
        str(path.relative_to(ROOT)): kinds
        for path in paths
        if (kinds := sorted(set(named(ast.parse(path.read_text())))))
    }
    assert found == {"actors/events.py": sorted(NAMES)}


def test_the_document_of_the_events_is_up_to_date() -> None:
    assert event_docs.TARGET.read_text() == event_docs.document(), "run scripts/event_docs.py"
