"""The history of a run: what it says, and how much of a long log is read for it."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import msgspec
import pytest

from actors.model import Event, PartKind, Provenance, Receipt, Row, RunInfo, Signalled
from supervisor import Config, SessionHandle, Supervisor
from supervisor.console.client.store_records import StoreRecords
from supervisor.console.commands.why import RunHistory, _moments, read_history
from supervisor.console.render.words import date_time
from supervisor.store import events
from supervisor.store.schema import STORE_NAME
from tests.kit import log, message, settled, stop, until

SESSION = "s1"
OTHERS = 100_000


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A session of three runs: one is taken over, the next is stopped while messages wait, the last ends by itself."""
    directory = tmp_path / "state"
    with Supervisor.start(Config(state_dir=directory, grace_s=0.2, kill_s=2.0, drain_s=0.0)) as supervisor:
        session = supervisor.session(SESSION)
        for number, word in enumerate(("first", "second"), start=1):
            session.ask(message(f"echo {word}; sleep 1000", id=f"m{number}"))
            until(partial(_has_said, session, word), word)
        session.ask(message("echo waits", id="m3", policy="enqueue"))
        session.ask(message("echo waits too", id="m4", policy="enqueue"))
        stop(session, waiting="withdraw")
        settled(session)
        session.ask(message("echo last", id="m5"))
        settled(session)
    return directory


def test_a_story_costs_what_its_run_costs_however_long_the_log_is(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stories(state_dir)
    lengthen(state_dir)
    read = 0
    read_event = events._read_event

    def counted(*row: object) -> object:
        nonlocal read
        read += 1
        return read_event(*row)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(events, "_read_event", counted)
    assert stories(state_dir) == before
    assert read < OTHERS / 100


def test_a_story_has_the_messages_that_a_run_left_and_the_one_that_took_over(state_dir: Path) -> None:
    first, second, last = stories(state_dir)
    with StoreRecords(state_dir) as records:
        thread = records.thread(SESSION)
    for history in (first, second, last):
        assert list(history.inputs) == [one for one in thread if one.id in history.run.inputs]
        assert sum(history.held.thread.values()) == sum(one.run_id == history.run.run_id for one in thread)
    assert first.taken_over_by == ("m2", second.run.run_id)
    assert first.texts == {"m1": "echo first; sleep 1000", "m2": "echo second; sleep 1000"}
    assert second.receipt is not None
    assert second.receipt.withdrawn == ("m3", "m4")
    assert second.texts == {"m2": "echo second; sleep 1000", "m3": "echo waits", "m4": "echo waits too"}


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_events_are_printed_in_the_order_of_the_log_though_the_clock_was_set_meanwhile(step_s: float) -> None:
    kinds = ["message", "run.started", "session.fenced", "run.status", "session.fenced", "run.status"]
    # It was set between the start of the run and its end.
    events = [
        Event(seq, SESSION, 1, "r", kind, {"status": "cancelled"}, 1e6 + seq + (step_s if seq > 2 else 0.0))
        for seq, kind in enumerate(kinds, start=1)
    ]
    provenance = Provenance(source="user.test", reason="enough")
    signal = Signalled("SIGTERM", 1e6 + 4.5 + step_s)
    rows = (Row(PartKind.PROCESS, "sh", pid=7, signals=(signal,)),)
    receipt = Receipt("x", "r", 1, provenance, 0.0, 0.0, complete=True, rows=rows)
    told = _moments(events, receipt)
    assert [moment.seq for moment in told if moment.seq] == sorted(moment.seq for moment in told if moment.seq)
    (place,) = [place for place, moment in enumerate(told) if not moment.seq]
    assert told[place - 1].seq == 4
    assert told[place + 1].seq == 5


def test_the_start_of_a_run_is_printed_with_the_version_of_the_code_that_its_host_had() -> None:
    data = {"agent": "mine", "inputs": ["m1"]}
    events = [
        Event(seq, SESSION, seq, f"r{seq}", "run.started", {**data, **more}, 1e6)
        for seq, more in enumerate(({}, {"code_changed_at": 9e5}), start=1)
    ]
    plain, with_code = (moment.what for moment in _moments(events, None))
    assert plain == "began, as generation 1"
    assert with_code == f"began, as generation 2, with the code of {date_time(9e5)}"


def test_child_runs_are_printed_with_their_sessions_and_ends() -> None:
    child = {"call_id": "call_1", "run_id": "run_2", "session": "s1.x"}
    ended = {**child, "status": "cancelled", "how": "cancelled", "reaped": 3, "proven": True}
    events = [
        Event(1, SESSION, 1, "run_1", "run.child", {**child, "agent": "researcher"}, 1e6),
        Event(2, SESSION, 1, "run_1", "run.child_ended", ended, 1e6),
    ]
    assert [moment.what for moment in _moments(events, None)] == [
        "child run run_2 of researcher began, in session s1.x",
        "child run run_2 cancelled, 3 reaped, proven to have ended",
    ]


def stories(state_dir: Path) -> list[RunHistory]:
    """The history of each run of the session that is told of, the oldest first."""
    with StoreRecords(state_dir) as records:
        runs: list[RunInfo] = [run for run in records.runs(SESSION) if run.started_at is not None]
        return [read_history(records, run) for run in runs]


def _has_said(session: SessionHandle, word: str) -> bool:
    return any(word in event.data.get("text", "") for event in log(session))


def lengthen(state_dir: Path) -> None:
    """Have the session's log go on with what one more run says."""
    connection = sqlite3.connect(state_dir / STORE_NAME)
    with connection:
        (last,) = connection.execute("SELECT MAX(seq) FROM events WHERE session = ?", (SESSION,)).fetchone()
        said = msgspec.json.encode({"text": "x" * 100})
        connection.executemany(
            "INSERT INTO events (session, seq, generation, run_id, kind, data, at) VALUES (?, ?, 9, ?, 'text', ?, 1.0)",
            ((SESSION, last + number, "run_of_others", said) for number in range(1, OTHERS + 1)),
        )
    connection.close()
