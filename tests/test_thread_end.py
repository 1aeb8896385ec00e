"""The newest messages, read from the end of a log. `tests/test_sim.py` compares them at each length of many logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.model import Event
from supervisor.store import events as log
from supervisor.store import thread_end as module
from supervisor.store.reader import SqliteReader
from supervisor.store.sqlite import SqliteStore
from tests.test_store import StandingClock, batch, write

WAIT_S = 60.0


class Log:
    """A session's log, written event by event."""

    def __init__(self, path: Path) -> None:
        self._store = SqliteStore(path, clock=StandingClock())
        self.reader: SqliteReader = self._store.reader
        self.seq = 0

    def add(self, run_id: str | None, kind: str, /, **data: Any) -> None:
        self.seq += 1
        write(self._store, batch(self.seq, events=(Event(self.seq, "s", 1, run_id, kind, data, 100.0),)))

    def run(self, run_id: str, *inputs: str, texts: int = 3, **started: Any) -> None:
        for one in inputs:
            self.add(run_id, "message", id=one, content=f"do {one}", origin="user", policy="interrupt")
        self.add(run_id, "run.started", agent="test", inputs=list(inputs), **started)
        for number in range(texts):
            self.add(run_id, "text", text=f"{run_id} {number}.")

    def close(self) -> None:
        self._store.close(WAIT_S)


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(log, "PAGE", 3)
    monkeypatch.setattr(module, "EVENTS_A_MESSAGE", 1)
    made = Log(tmp_path / "store.sqlite3")
    yield made
    made.close()


def check_all(logged: Log) -> None:
    whole = logged.reader.thread("s")
    assert whole
    for last in range(1, len(whole) + 2):
        assert logged.reader.thread_end("s", last) == (whole[-last:], last < len(whole)), last
    for run_id in {message.run_id for message in whole}:
        place = next(number for number, message in enumerate(whole) if message.run_id == run_id)
        assert logged.reader.thread_end("s", 1, run_id) == (whole[place:], place > 0), run_id


def test_a_run_whose_inputs_stand_in_the_run_that_it_tries_again(logged: Log) -> None:
    for number in range(4):
        logged.run(f"run_{number}", f"m{number}")
    logged.run("run_half", "m4", "m5", texts=0)
    logged.add("run_half", "run.status", status="failed", note="It was cut off.")
    # They are in the log a second time, and in the thread once.
    logged.run("run_again", "m4", "m5", retry_of="run_half")
    check_all(logged)
    logged.run("run_last", "m6")
    check_all(logged)


def test_a_late_report_of_a_run_before(logged: Log) -> None:
    for number in range(3):
        logged.run(f"run_{number}", f"m{number}")
    logged.add("run_2", "tool.requested", call_id="c1", tool="shell", arguments={})
    logged.run("run_3", "m3")
    logged.add("run_2", "tool.ended", call_id="c1", tool="shell", outcome="finished", content="done", is_error=False)
    logged.run("run_4", "m4")
    logged.add("run_3", "message.retracted", run_id="run_3", ids=["m3"])
    check_all(logged)


def test_there_are_no_older_messages_where_the_runs_before_have_none(logged: Log) -> None:
    for number in range(10):
        logged.run(f"run_resumed_{number}", texts=0, resumed=True)
    logged.run("run_1", "m1", texts=1)
    logged.add("run_1", "run.status", status="completed")
    check_all(logged)


def test_an_empty_log_and_a_run_that_is_not_there(logged: Log) -> None:
    assert logged.reader.thread_end("s", 5) == ([], False)
    for number in range(8):
        logged.run(f"run_{number}", f"m{number}")
    whole = logged.reader.thread("s")
    assert logged.reader.thread_end("s", 2, "run_none") == (whole[-2:], True)


def test_the_end_is_read_without_the_rest_of_the_log(logged: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        logged.run(f"run_{number}", f"m{number}")
    monkeypatch.setattr(log, "thread", lambda *_: pytest.fail("the whole log was folded"))
    found, more = logged.reader.thread_end("s", 4)
    assert [message.run_id for message in found] == ["run_28", "run_28", "run_29", "run_29"]
    assert more
