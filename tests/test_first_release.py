"""A store of the first release opens, recovers, and reads the same. `tests/data/make_first_release.py` made it.

`first_release_rendered.json` is what models were given of its logs before answers of models were on record.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.decoding import convert
from actors.events import UnreadableData, as_data, data_of
from actors.model import Event
from actors.plugin.rendering import render_anthropic, render_openai
from actors.run_status import RunStatus
from actors.thread import Thread
from supervisor import Supervisor
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import open_writer
from tests.crash_kit import until
from tests.data.make_first_release import config

DATA = Path(__file__).parent / "data"
STORE = "store.sqlite3"
NAMES = ("s1", "s2", "gone")


@pytest.fixture(scope="module")
def expected() -> Any:
    return json.loads((DATA / "first_release.json").read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(DATA / "first_release.sqlite3", tmp_path / STORE)
    return tmp_path


@pytest.fixture
def reader(folder: Path) -> Iterator[SqliteReader]:
    # As the start of a supervisor does, which is needed once: a reader changes nothing.
    open_writer(folder / STORE, 5.0).close()
    found = SqliteReader(folder / STORE)
    yield found
    found.close()


def plain(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def assert_has(found: Any, wanted: Any) -> None:
    """Everything that is wanted is there, and the same; objects may have further keys, which the first one had not."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        assert wanted.keys() <= found.keys()
        for key, value in wanted.items():
            assert_has(found[key], value)
    elif isinstance(wanted, list) and isinstance(found, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_has(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", NAMES)
def test_its_events_are_the_same_to_the_byte_and_each_is_decoded(
    reader: SqliteReader, expected: Any, name: str
) -> None:
    events = reader.events(name)
    assert events
    assert [msgspec.json.encode(event).decode() for event in events] == [
        json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in expected["stored"][name]["events"]
    ]
    for event in events:
        data = data_of(event)
        assert not isinstance(data, UnreadableData), event
        assert data.event_kind == event.kind
        assert msgspec.json.encode(as_data(data)) == msgspec.json.encode(event.data), event.kind


@pytest.mark.parametrize(("state", "name"), [("stored", "s1"), ("stored", "s2"), ("recovered", "s2")])
def test_models_are_given_the_same_of_its_logs_to_the_byte(expected: Any, state: str, name: str) -> None:
    rendered = json.loads((DATA / "first_release_rendered.json").read_bytes())[f"{state} {name}"]
    thread = Thread()
    for event in expected[state][name]["events"]:
        thread.apply(convert(event, Event))
    messages = thread.messages()
    assert all(not message.parts and message.answer is None for message in messages)
    for provider in (None, "openai", "anthropic"):
        found = {
            "openai": render_openai(messages, provider=provider),
            "anthropic": render_anthropic(messages, provider=provider),
        }
        # Their text: so the order of the keys counts, too.
        assert json.dumps(found) == json.dumps(rendered)


@pytest.mark.parametrize("name", NAMES)
def test_its_thread_runs_and_receipts_read_the_same(reader: SqliteReader, expected: Any, name: str) -> None:
    wanted = expected["stored"][name]
    assert_has(plain(reader.thread(name)), wanted["thread"])
    assert_has(plain(reader.runs(name)), wanted["runs"])
    for run_id, receipt in wanted["receipts"].items():
        assert_has(plain(reader.receipt(name, run_id)), receipt)
    for receipt in wanted["stop_receipts"]:
        assert_has(plain(reader.receipt(name, receipt["receipt_id"])), receipt)


def test_receipts_with_words_of_a_later_version_are_read_all_the_same(
    reader: SqliteReader, folder: Path, expected: Any
) -> None:
    receipts = {run_id: one for run_id, one in expected["stored"]["s1"]["receipts"].items() if one["rows"]}
    assert receipts
    with closing(sqlite3.connect(folder / STORE)) as connection, connection:
        known = 'CAST(doc AS TEXT), \'"kind":"agent"\', \'"kind":"later"\''
        connection.execute(f"UPDATE receipts SET doc = CAST(REPLACE({known}) AS BLOB)")  # constants
    for run_id, receipt in receipts.items():
        found = plain(reader.receipt("s1", run_id))
        assert [row["kind"] for row in found["rows"]] == [
            "other" if one["kind"] == "agent" else one["kind"] for one in receipt["rows"]
        ]
        assert_has(found | {"rows": []}, receipt | {"rows": []})


def test_it_is_opened_and_what_had_settled_reads_the_same(folder: Path, expected: Any) -> None:
    wanted = expected["stored"]["s1"]
    with Supervisor.start(config(folder)) as supervisor:
        session = supervisor.session("s1")
        assert session.status().state == "idle"
        assert supervisor.store_health().left_out == ()
        assert_has(plain(session.thread()), wanted["thread"])
        assert_has(plain(session.runs()), wanted["runs"])
        for run_id, receipt in wanted["receipts"].items():
            assert_has(plain(session.receipt(run_id)), receipt)
        assert "gone" not in supervisor.sessions()


def test_what_a_crash_cut_off_is_recovered_as_the_first_release_recovers_it(folder: Path, expected: Any) -> None:
    """The same but for the times, and for the words that tell of a restart."""
    wanted = expected["recovered"]["s2"]
    with Supervisor.start(config(folder)) as supervisor:
        session = supervisor.session("s2")
        until(lambda: session.status().state == "idle" and not session.status().waiting, "all has ended")
        until(lambda: all(run.settled for run in session.runs()), "each receipt is filed")
        thread, runs = plain(session.thread()), plain(session.runs())
        kinds = [event.kind for event in supervisor.store.events("s2")]
    assert kinds == [event["kind"] for event in wanted["events"]]
    for one, other in zip(thread, wanted["thread"], strict=True):
        same = ("id", "role", "generation", "run_id", "status", "tool_calls", "tool_call_id", "outcome", "is_error")
        assert {key: one[key] for key in same} == {key: other[key] for key in same}
        if one["role"] in ("user", "assistant"):
            assert one["content"] == other["content"]
    for one, other in zip(runs, wanted["runs"], strict=True):
        same = ("run_id", "status", "receipt_id", "inputs", "retry_of", "attempt", "generation", "settled", "late")
        assert {key: one[key] for key in same} == {key: other[key] for key in same}
        source, before = ((run["provenance"] or {}).get("source") for run in (one, other))
        assert source == before
    assert [run["status"] for run in runs].count(RunStatus.FAILED) == 1
