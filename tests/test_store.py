"""The SQLite store: real files, real threads, real processes.

The file has over 600 lines, and is whole: one port, with a section for each of its promises.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex, cast

import msgspec
import pytest
from msgspec import Struct
from pykka import ActorRef

from actors import model
from actors.errors import Invalid, StoreUnavailable
from actors.messages import CommitFailed, Committed, Loaded, LoadFailed
from actors.model import CallState, Event, Mode, PartKind, Provenance, Receipt, RunInfo, TreeState
from actors.ports import (
    Batch,
    CallRow,
    Clock,
    ProcessRow,
    RequestRow,
    SessionRow,
    Snapshot,
    Timer,
    WaitingRow,
)
from actors.requests import NewMessage
from actors.run_status import RunStatus
from supervisor.store import events as log
from supervisor.store import schema, sqlite
from supervisor.store.connection import CHECK_EVERY_S
from supervisor.store.events import PAGE, SHORT_BYTES, SHORT_EVENTS
from supervisor.store.groups import PRUNE_EVERY
from supervisor.store.pen import GROUP_MAX
from supervisor.store.reader import IDLE_MAX, SqliteReader
from supervisor.store.snapshot import snapshot
from supervisor.store.sqlite import SqliteStore
from tests.kit import until
from tests.store_kit import small_disk

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0


class StandingClock:
    """A clock whose wall stands where it was put."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.now = wall

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> Timer:
        raise NotImplementedError("the store asks for no timers")


_is_a_clock: Clock = StandingClock()


class Owner:
    """Takes what the store tells, as the mailbox of a session would."""

    def __init__(self) -> None:
        self.told: queue.Queue[Any] = queue.Queue()

    def tell(self, message: Any) -> None:
        self.told.put(message)

    @property
    def ref(self) -> ActorRef[Any]:
        return cast("ActorRef[Any]", self)

    def next(self) -> Any:
        return self.told.get(timeout=PATIENCE_S)

    def until_committed(self, number: int) -> None:
        while True:
            message = self.next()
            assert isinstance(message, Committed), message
            if message.number >= number:
                assert message.number == number
                return


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(path, clock=StandingClock(), busy_timeout_s=0.2)
    yield made
    assert made.close(PATIENCE_S)


def text(seq: int, words: str = "x", session: str = "s", run_id: str = "r1") -> Event:
    return Event(seq, session, 1, run_id, "text", {"text": words}, 100.0 + seq)


def batch(number: int, *, session: str = "s", incarnation: str = "i1", seq: int | None = None, **more: Any) -> Batch:
    """A batch with one event, whose seq is the batch's number unless it is given."""
    more.setdefault("events", (text(number if seq is None else seq, session=session),))
    return Batch(session, incarnation, number, **more)


def run_info(run_id: str, session: str = "s", status: RunStatus = RunStatus.IN_PROGRESS, **more: Any) -> RunInfo:
    return RunInfo(session, run_id, status, "shell", 1, f"rcpt_{run_id}", **more)


def write(store: SqliteStore, made: Batch) -> None:
    owner = Owner()
    store.commit(made, owner.ref)
    owner.until_committed(made.number)


def load(store: SqliteStore, session: str = "s") -> Snapshot:
    """Read a session as the writer does, and beside it, which finds the same."""
    owner = Owner()
    found = []
    for short_events in (SHORT_EVENTS, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "SHORT_EVENTS", short_events)
            store.load(session, owner.ref)
            loaded = owner.next()
        assert isinstance(loaded, Loaded), loaded
        found.append(loaded.snapshot)
    assert compared(found[0]) == compared(found[1])
    return found[0]


def compared(snapshot: Snapshot) -> dict[str, Any]:
    fields = msgspec.structs.asdict(snapshot)
    return {**fields, "thread": snapshot.thread.messages(), "saved": snapshot.saved.__dict__}


# ── What goes in comes out ────────────────────────────────────────────────────────────────────────


def test_l12_what_was_committed_is_there_after_a_restart(path: Path) -> None:
    provenance = Provenance("user.console", "wrong target", Mode.IMMEDIATE, "uid 0", 5.0)
    run = run_info("r1", provenance=provenance, inputs=("m1",), result={"n": [1, 2.5, None]}, created_at=1.5)
    receipt = Receipt("rcpt_r1", "r1", 1, provenance, 1.0, 2.0, True, refused={"text": 2})
    waiting = WaitingRow("s", NewMessage(id="m2", content="später"), 1, "r2", False, 9.0)
    request = RequestRow("s", "m2", b"\x00\xff", b'{"type":"Accepted"}', 1_000_000.0)
    call = CallRow("s", "r1", "c1", "bash", {"command": "ls"}, CallState.GRANTED)
    process = ProcessRow("s", "r1", "c1", "p1", "ls", TreeState.GRANTED)
    row = SessionRow("s", 3, 2, parked=True, cutoffs={"user": 4.0})
    events = (text(1, "é\x00"), text(2, "b"))
    first = SqliteStore(path, clock=StandingClock())
    try:
        made = Batch(
            "s",
            "i1",
            1,
            events,
            row,
            (run,),
            (call,),
            (process,),
            (receipt,),
            (waiting,),
            requests=(request,),
        )
        write(first, made)
    finally:
        assert first.close(PATIENCE_S)
    second = SqliteStore(path, clock=StandingClock())
    try:
        reader = second.reader
        assert reader.events("s") == list(events)
        assert reader.run("s", "r1") == run
        assert reader.find_run("r1") == run
        assert reader.run("other", "r1") is None
        assert reader.receipt("s", "rcpt_r1") == reader.receipt("s", "r1") == reader.find_receipt("r1") == receipt
        assert reader.receipt("other", "r1") is None
        assert reader.sessions() == [row]
        assert reader.session("s") == row
        assert [message.content for message in reader.thread("s")] == ["é\x00b"]
        snapshot = load(second)
        assert snapshot.row == row
        assert snapshot.runs == (run,)
        assert snapshot.calls == (call,)
        assert snapshot.processes == (process,)
        assert snapshot.waiting == (waiting,)
        assert snapshot.requests == (request,)
        assert snapshot.acted == frozenset({"r1"})
        assert [message.content for message in snapshot.thread.messages()] == ["é\x00b"]
    finally:
        assert second.close(PATIENCE_S)


def test_rows_are_upserts_and_what_waits_no_longer_goes(store: SqliteStore) -> None:
    first = WaitingRow("s", NewMessage(id="m1", content="a"), 1, "r2", False, 1.0)
    second = WaitingRow("s", NewMessage(id="m2", content="b"), 2, "r2", True, 1.0)
    write(store, batch(1, runs=(run_info("r1"),), waiting=(second, first)))
    assert load(store).waiting == (first, second)
    assert load(store).over == {}
    done = run_info("r1", status=RunStatus.COMPLETED, settled=True)
    ended = ProcessRow("s", "r1", "c1", "p1", "ls", TreeState.ENDED)
    write(store, batch(2, runs=(done,), unwaiting=("m1",), processes=(ended,)))
    snapshot = load(store)
    assert snapshot.waiting == (second,)
    assert (snapshot.runs, snapshot.processes, snapshot.acted) == ((), (), frozenset())
    assert snapshot.over == {"r1": "rcpt_r1"}
    assert store.reader.runs("s") == [done]


def test_a_process_that_outlives_its_settled_run_is_loaded(store: SqliteStore) -> None:
    process = ProcessRow("s", "r1", "c1", "p1", "serve", TreeState.GRANTED)
    write(
        store,
        batch(1, runs=(run_info("r1", status=RunStatus.COMPLETED, settled=True),), processes=(process,)),
    )
    assert load(store).processes == (process,)


def test_runs_come_in_order_of_creation_and_the_newest_within_the_limit(store: SqliteStore) -> None:
    write(store, batch(1, runs=(run_info("b"), run_info("a"))))
    write(store, batch(2, runs=(run_info("c"), run_info("b", status=RunStatus.FAILED))))
    assert [run.run_id for run in store.reader.runs("s")] == ["b", "a", "c"]
    assert [run.run_id for run in store.reader.runs("s", limit=2)] == ["a", "c"]


def test_of_more_runs_that_begin_alike_than_fit_the_newest_are_given(store: SqliteStore) -> None:
    write(store, batch(1, runs=tuple(run_info(f"run_{number}") for number in range(6))))
    for start, expected in (("run_", ["run_4", "run_5"]), ("rcpt_", ["run_4", "run_5"]), ("run_3", ["run_3"])):
        assert [run.run_id for run in store.reader.runs_beginning(start, 2)] == expected


def test_calls_that_have_ended_take_no_place_from_one_that_is_open(store: SqliteStore, path: Path) -> None:
    ended = [CallRow("s", "r1", f"call_{number}", "t", {}, CallState.ENDED, ended_at=1.0) for number in range(5)]
    still = CallRow("s", "r1", "call_9", "t", {}, CallState.STARTED)
    write(store, batch(1, runs=(run_info("r1"),), calls=(*ended, still)))
    assert store.reader.open_calls(limit=2) == [still]
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE calls SET doc = ? WHERE call_id = 'call_0'", (b"{",))
    assert store.reader.open_calls(limit=2) == [still], "one that is damaged hides no other"


def test_events_are_paged_and_the_thread_is_their_fold(store: SqliteStore) -> None:
    count = 1_234
    write(store, batch(1, events=tuple(text(seq, f"{seq} ") for seq in range(1, count + 1))))
    assert [event.seq for event in store.reader.events("s", 10, 3)] == [11, 12, 13]
    assert store.reader.last_seq("s") == count
    assert store.reader.last_seq("nobody") == 0
    assert store.reader.events("nobody") == []
    (message,) = store.reader.thread("s")
    assert message.content.split() == [str(seq) for seq in range(1, count + 1)]


@pytest.mark.parametrize("count", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_a_log_that_ends_at_the_end_of_a_page_or_beside_it_is_folded_whole(store: SqliteStore, count: int) -> None:
    write(store, batch(1, events=tuple(text(seq, f"{seq} ") for seq in range(1, count + 1))))
    (message,) = store.reader.thread("s")
    assert message.content.split() == [str(seq) for seq in range(1, count + 1)]


def test_a_snapshot_says_what_became_of_each_message(store: SqliteStore) -> None:
    events = (
        Event(1, "s", 1, "r1", "message", {"id": "m1", "content": "x", "origin": "user"}, 1.0),
        Event(2, "s", 1, "r1", "session.message_returned", {"message_id": "m2", "outcome": "withdrawn"}, 1.0),
    )
    write(store, batch(1, events=events, runs=(run_info("r1"),)))
    snapshot = load(store)
    assert snapshot.fates == {"m1": "input", "m2": "returned"}
    assert snapshot.acted == frozenset()


@pytest.mark.parametrize(
    ("kind", "data", "acted"),
    [
        ("text", {"text": "a"}, True),
        ("block", {"answer": "ans_1", "data": {"type": "thinking"}}, True),
        ("tool.requested", {"call_id": "c1", "tool": "t", "arguments": {}}, True),
        ("session.state", {"agent": "a", "changes": {"k": 1}}, True),
        ("run.started", {"agent": "a", "inputs": []}, False),
    ],
)
def test_what_a_run_has_said_called_or_saved_is_read_as_what_it_has_done(
    store: SqliteStore, kind: str, data: dict[str, Any], acted: bool
) -> None:
    write(store, batch(1, events=(Event(1, "s", 1, "r1", kind, data, 1.0),), runs=(run_info("r1"),)))
    snapshot = load(store)
    assert snapshot.left_out == ()
    assert snapshot.acted == (frozenset({"r1"}) if acted else frozenset())


def test_l7_of_a_run_with_something_left_all_that_has_ended_is_read_too(store: SqliteStore) -> None:
    rows = tuple(
        ProcessRow("s", run, "c1", f"{kind}_{run}", "left", TreeState.ENDED, kind=kind)
        for run in ("late", "over")
        for kind in (PartKind.PROCESS, PartKind.SUBPROCESS, PartKind.THREAD)
    )
    ended = tuple(
        Event(seq, "s", 1, run, "run.ended", {"status": "done"}, 1.0) for seq, run in ((1, "late"), (2, "over"))
    )
    late = run_info("late", status=RunStatus.COMPLETED, settled=True, late=True)
    over = run_info("over", status=RunStatus.COMPLETED, settled=True)
    write(store, batch(1, events=ended, runs=(late, over), processes=rows))
    assert {row.process_id for row in load(store).processes} == {"process_late", "subprocess_late", "thread_late"}


def test_l3_a_host_that_a_later_run_took_back_is_read_as_each_unsettled_run_handed_it_over(store: SqliteStore) -> None:
    events = tuple(
        Event(seq, "s", seq, run, "process.handed_over", {"process_id": process}, 10.0 + seq)
        for seq, run, process in ((1, "settled", "p1"), (2, "r1", "p1"), (3, "r2", "p1"), (4, "r2", "p2"))
    )
    runs = (run_info("settled", status=RunStatus.COMPLETED, settled=True), *map(run_info, ("r1", "r2", "r3")))
    host = ProcessRow("s", "r3", "", "p1", "host mine", TreeState.ENDED, pid=7, host="mine", receipts=("r3",))
    still = ProcessRow("s", "r2", "", "p2", "host mine", TreeState.GRANTED, owner=model.Owner.SESSION, host="mine")
    write(store, batch(1, events=events, runs=runs, processes=(host, still)))
    snapshot = load(store)
    assert set(snapshot.processes) == {host, still}
    assert [(row.run_id, row.process_id, row.owner, row.owned_at, row.pid) for row in snapshot.handed_over] == [
        ("r1", "p1", "session", 12.0, 7),
        ("r2", "p1", "session", 13.0, 7),
    ]
    assert {row.receipts for row in snapshot.handed_over} == {()}, "no receipt waits for it there"


def test_l3_the_receipt_of_a_stop_waits_until_it_is_complete(store: SqliteStore) -> None:
    receipt = Receipt("idle", None, 1, Provenance("user.console", "enough"), 1.0, 1.0, complete=True)
    write(store, batch(1, pending=(receipt,)))
    assert (load(store).pending, load(store).receipts) == ((receipt,), ())
    filed = msgspec.structs.replace(receipt, ended_at=9.0, complete=False)
    write(store, batch(2, receipts=(filed,)))
    assert (load(store).pending, load(store).receipts) == ((receipt,), (filed,))
    assert store.reader.receipt("s", "idle") == filed
    write(store, batch(3, receipts=(msgspec.structs.replace(filed, complete=True),)))
    assert (load(store).pending, load(store).receipts) == ((), ())


def test_unfinished_are_sessions_with_an_unsettled_run_or_with_messages_that_are_not_parked(
    store: SqliteStore,
) -> None:
    def wait(session: str) -> tuple[WaitingRow, ...]:
        return (WaitingRow(session, NewMessage(id="m", content="x"), 1, "r", False, 1.0),)

    done = run_info("r1", "done", RunStatus.COMPLETED, settled=True)
    write(store, batch(1, session="half", runs=(run_info("r2", "half"),)))
    write(store, batch(1, session="done", runs=(done,), row=SessionRow("done", 1, 1)))
    write(store, batch(1, session="queued", waiting=wait("queued"), row=SessionRow("queued", 1, 1)))
    write(store, batch(1, session="rowless", waiting=wait("rowless")))
    write(store, batch(1, session="parked", waiting=wait("parked"), row=SessionRow("parked", 1, 1, parked=True)))
    assert store.reader.unfinished() == ["half", "queued", "rowless"]


def test_a_row_that_is_damaged_hides_no_other(store: SqliteStore, path: Path) -> None:
    write(store, batch(1, row=SessionRow("s", 1, 1)))
    write(store, batch(1, session="t", row=SessionRow("t", 1, 1)))
    damage = sqlite3.connect(path)
    damage.execute("UPDATE sessions SET doc = x'7b' WHERE session = 's'")
    damage.commit()
    damage.close()
    assert [row.session for row in store.reader.sessions()] == ["t"]
    assert load(store, "t").row == SessionRow("t", 1, 1)


def test_pages_of_sessions_that_are_damaged_end_no_list(store: SqliteStore, path: Path) -> None:
    for number in range(1, 8):
        write(store, batch(1, session=f"s{number}", row=SessionRow(f"s{number}", 1, 1)))
    with contextlib.closing(sqlite3.connect(path)) as damage, damage:
        damage.execute("UPDATE sessions SET doc = x'7b' WHERE session IN ('s3', 's4', 's7')")
    assert [row.session for row in store.reader.every_session(page=2)] == ["s1", "s2", "s5", "s6"]
    assert store.reader.names() == [f"s{number}" for number in range(1, 8)]


def test_l13_rows_that_cannot_be_read_are_left_out_of_a_session_that_is_taken_up(
    store: SqliteStore, path: Path
) -> None:
    write(
        store,
        batch(
            1,
            row=SessionRow("s", 1, 1),
            runs=(run_info("r1"),),
            calls=tuple(CallRow("s", "r1", call, "bash", {}, CallState.GRANTED) for call in ("c1", "c2")),
            processes=tuple(ProcessRow("s", "r1", "c1", tree, "ls", TreeState.GRANTED) for tree in ("p1", "p2")),
            waiting=tuple(WaitingRow("s", NewMessage(id=m, content="x"), 1, "r2", False, 9.0) for m in ("m1", "m2")),
            requests=tuple(RequestRow("s", m, b"", b"{}", 1_000_000.0) for m in ("m1", "m2")),
        ),
    )
    damage = sqlite3.connect(path)
    for table, column, identity in (
        ("calls", "call_id", "c1"),
        ("processes", "process_id", "p1"),
        ("requests", "request_id", "m1"),
    ):
        damage.execute(f"UPDATE {table} SET doc = x'7b' WHERE {column} = '{identity}'")
    # Not broken, but no message that could be made today.
    damage.execute("UPDATE waiting SET doc = json_set(doc, '$.message.origin', '') WHERE message_id = 'm1'")
    damage.commit()
    damage.close()
    snapshot = load(store)
    assert [row.call_id for row in snapshot.calls] == ["c2"]
    assert [row.process_id for row in snapshot.processes] == ["p2"]
    assert [row.message.id for row in snapshot.waiting] == ["m2"]
    assert [row.request_id for row in snapshot.requests] == ["m2"]
    assert [row.message.id for row in store.reader.waiting("s")] == ["m2"]


def test_l4_a_run_whose_text_cannot_be_read_has_said_it_and_is_not_tried_again(store: SqliteStore, path: Path) -> None:
    quiet = Event(2, "s", 1, "r2", "run.status", {"status": "in_progress"}, 102.0)
    write(store, batch(1, events=(text(1), quiet), row=SessionRow("s", 1, 1), runs=(run_info("r1"), run_info("r2"))))
    with contextlib.closing(sqlite3.connect(path)) as damage, damage:
        damage.execute("UPDATE events SET data = x'7b'")
    snapshot = load(store)
    assert len(snapshot.left_out) == 2
    assert snapshot.acted == {"r1"}


def test_the_file_is_for_its_owner_alone(store: SqliteStore, path: Path) -> None:
    write(store, batch(1))
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


# ── Order, and once ───────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_is_sent_again_is_written_once_and_answered_again(store: SqliteStore) -> None:
    owner = Owner()
    write(store, batch(1))
    write(store, batch(2))
    store.commit(batch(1), owner.ref)
    assert owner.next() == Committed(1)
    assert [event.seq for event in store.reader.events("s")] == [1, 2]


def test_a_batch_that_is_not_the_next_one_fails(store: SqliteStore) -> None:
    owner = Owner()
    write(store, batch(1))
    store.commit(batch(3), owner.ref)
    failed = owner.next()
    assert isinstance(failed, CommitFailed)
    assert failed.number == 3
    assert "expected batch 2" in failed.error


def test_after_a_failed_batch_the_later_ones_fail_until_a_new_incarnation_starts(store: SqliteStore) -> None:
    owner = Owner()
    write(store, batch(1))
    for made in (batch(2, events=(text(2, "\ud800"),)), batch(3), batch(4)):
        store.commit(made, owner.ref)
    assert [type(owner.next()) for _ in range(3)] == [CommitFailed] * 3
    assert store.reader.last_seq("s") == 1
    write(store, batch(1, incarnation="i2", seq=2))
    assert [event.seq for event in store.reader.events("s")] == [1, 2]


def test_a_sequence_number_that_is_taken_fails_the_second_writer_of_it(store: SqliteStore) -> None:
    owner = Owner()
    write(store, batch(1))
    store.commit(batch(1, incarnation="zombie", events=(text(1, "other"),)), owner.ref)
    assert isinstance(owner.next(), CommitFailed)
    assert store.reader.events("s") == [text(1)]


def test_committed_is_cumulative_and_comes_in_order_over_many_groups(store: SqliteStore) -> None:
    owner = Owner()
    count = 3 * GROUP_MAX
    for number in range(1, count + 1):
        store.commit(batch(number), owner.ref)
    told: list[int] = []
    while not told or told[-1] < count:
        message = owner.next()
        assert isinstance(message, Committed)
        told.append(message.number)
    assert told == sorted(set(told))
    assert [event.seq for event in store.reader.events("s", 0, count + 1)] == list(range(1, count + 1))


def test_a_load_sees_all_that_was_handed_in_before_it(store: SqliteStore) -> None:
    owner = Owner()
    for number in range(1, 101):
        store.commit(batch(number, runs=(run_info("r1"),)), owner.ref)
    (message,) = load(store).thread.messages()
    assert len(message.content) == 100


def test_only_the_last_incarnations_of_a_session_are_remembered(store: SqliteStore, path: Path) -> None:
    for count in range(1, 31):
        write(store, batch(1, incarnation=f"i{count}", seq=count))
    rows = sqlite3.connect(path)
    try:
        assert rows.execute("SELECT COUNT(*) FROM batches").fetchone() == (8,)
    finally:
        rows.close()


# ── Requests have a horizon ───────────────────────────────────────────────────────────────────────


def test_l10_requests_beyond_the_number_kept_are_forgotten_oldest_first(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock(), requests_kept=10)
    try:
        for number in range(1, 26):
            request = RequestRow("s", f"q{number}", b"d", b"a", 1_000_000.0)
            write(store, batch(number, requests=(request,)))
        again = RequestRow("s", "q20", b"d", b"changed", 1_000_000.0)
        write(store, batch(26, requests=(again,)))
        kept = load(store).requests
        assert [request.request_id for request in kept] == [f"q{number}" for number in range(16, 26)]
        assert kept[4] == again
    finally:
        assert store.close(PATIENCE_S)


def kept(store: SqliteStore) -> list[str]:
    """The ids of the requests that the store has of the session."""
    return [request.request_id for request in load(store).requests]


def test_l10_requests_older_than_the_horizon_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.store.groups.PRUNE_EVERY", 2)
    clock = StandingClock()
    store = SqliteStore(path, clock=clock, requests_kept_s=100.0)
    try:
        write(store, batch(1, requests=(RequestRow("s", "old", b"", b"", clock.now),)))
        clock.now += 99.0
        write(store, batch(2, requests=(RequestRow("s", "young", b"", b"", clock.now),)))
        assert kept(store) == ["old", "young"]
        clock.now += 2.0
        write(store, batch(3, requests=(RequestRow("s", "new", b"", b"", clock.now),)))
        assert kept(store) == ["young", "new"]
    finally:
        assert store.close(PATIENCE_S)


def test_l10_what_is_read_while_the_clock_is_ahead_is_all_there_is(path: Path) -> None:
    clock = StandingClock()
    store = SqliteStore(path, clock=clock, requests_kept_s=100.0)
    try:
        write(store, batch(1, requests=(RequestRow("s", "one", b"", b"", clock.now),)))
        clock.now += 1e8
        assert kept(store) == ["one"]
    finally:
        assert store.close(PATIENCE_S)


def test_l10_of_answers_whose_times_are_in_no_order_the_oldest_ones_go_and_leave_no_gap(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.groups.PRUNE_EVERY", 2)
    clock = StandingClock()
    store = SqliteStore(path, clock=clock, requests_kept_s=100.0)
    try:
        for number, at in ((1, 0.0), (2, 1e8), (3, 2.0), (4, 3.0)):
            write(store, batch(number, requests=(RequestRow("s", f"q{number}", b"", b"", clock.now + at),)))
        clock.now += 150.0
        write(store, batch(5, requests=(RequestRow("s", "q5", b"", b"", clock.now),)))
        # The third is old too; but as the book has it, it goes with those before it.
        assert kept(store) == ["q2", "q3", "q4", "q5"]
    finally:
        assert store.close(PATIENCE_S)


def request_ids(path: Path, session: str = "s") -> list[str]:
    """The requests that are in the file itself, whoever may still see them."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT request_id FROM requests WHERE session = ? ORDER BY length(request_id), request_id", (session,)
        )
        return [row[0] for row in rows]


def test_l14_the_file_keeps_a_bounded_number_of_requests(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock(), requests_kept=10)
    try:
        for number in range(1, 2 * PRUNE_EVERY + 2):
            write(store, batch(number, requests=(RequestRow("s", f"q{number}", b"d", b"a", 1_000_000.0),)))
            assert len(request_ids(path)) <= 10 + PRUNE_EVERY
        last = 2 * PRUNE_EVERY + 1
        assert request_ids(path) == [f"q{number}" for number in range(last - 9, last + 1)]
    finally:
        assert store.close(PATIENCE_S)


def test_l14_the_file_keeps_requests_for_a_bounded_time_and_no_other_sessions(path: Path) -> None:
    clock = StandingClock()
    store = SqliteStore(path, clock=clock, requests_kept_s=100.0)
    try:
        for session in ("s", "other"):
            old = RequestRow(session, f"old-{session}", b"", b"", clock.now)
            write(store, batch(1, session=session, requests=(old,)))
        clock.now += 101.0
        young = RequestRow("s", "young", b"", b"", clock.now)
        write(store, batch(1, seq=2, incarnation="i2", requests=(young,)))
        assert request_ids(path) == ["young"]
        assert request_ids(path, "other") == ["old-other"]
    finally:
        assert store.close(PATIENCE_S)


# ── Faults ────────────────────────────────────────────────────────────────────────────────────────


def hold_group(store: SqliteStore) -> Any:
    """Keep the writer busy inside a tell, so that what is handed in meanwhile becomes one group."""
    entered, leave = threading.Event(), threading.Event()

    class Holding:
        def tell(self, message: Any) -> None:
            entered.set()
            assert leave.wait(PATIENCE_S)

    store.load("nobody", cast("ActorRef[Any]", Holding()))
    assert entered.wait(PATIENCE_S)
    return leave


def in_another_process(path: Path) -> int:
    """Count the events in another process, whose connection is the last one for SQLite if ours have no locks."""
    count = "SELECT count(*) FROM events"
    script = f"import sqlite3; c = sqlite3.connect({str(path)!r}); print(*c.execute({count!r}).fetchone()); c.close()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("reading", [True, False])
def test_l12_another_process_that_closes_the_file_removes_nothing_of_it(path: Path, *, reading: bool) -> None:
    def full(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    reader = None
    if reading:
        # The program has it open before the supervisor does.
        SqliteStore(path, clock=StandingClock()).close(PATIENCE_S)
        reader = SqliteReader(path)
        assert reader.events("s") == []
    store = SqliteStore(path, clock=StandingClock())
    try:
        write(store, batch(1))
        assert in_another_process(path) == 1
        for number in range(2, 5):
            assert len(store.reader.events("s")) == number - 1
            with pytest.raises(sqlite3.OperationalError, match="full"):
                store._writer.attempt(full)
            # It is open anew.
            write(store, batch(number))
            assert in_another_process(path) == number
            assert Path(f"{path}-wal").exists()
    finally:
        store.close(PATIENCE_S)
        if reader is not None:
            reader.close()


def write_long(store: SqliteStore) -> None:
    events = tuple(text(seq, session="long") for seq in range(1, SHORT_EVENTS + 2))
    write(store, batch(1, session="long", events=events))


def test_while_a_long_session_is_read_others_are_read_and_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = threading.Event()

    def slow(connection: sqlite3.Connection, session: str, **options: Any) -> Snapshot:
        assert session != "long" or leave.wait(PATIENCE_S)
        return snapshot(connection, session, **options)

    monkeypatch.setattr(sqlite, "snapshot", slow)
    clock = StandingClock()
    store, owner, long = SqliteStore(path, clock=clock), Owner(), Owner()
    try:
        write_long(store)
        write(store, batch(1))
        store.load("long", long.ref)
        store.load("s", owner.ref)
        assert isinstance(owner.next(), Loaded)
        store.commit(batch(1, incarnation="i2", seq=2), owner.ref)
        assert owner.next() == Committed(1)
        assert long.told.empty()
        clock.now += 3.0
        assert store.health().lag_s == 3.0, "who waits for a load is seen"
        leave.set()
        loaded = long.next()
        assert isinstance(loaded, Loaded)
        (message,) = loaded.snapshot.thread.messages()
        assert len(message.content) == SHORT_EVENTS + 1
    finally:
        leave.set()
        assert store.close(PATIENCE_S)


def test_a_load_of_a_long_session_finds_what_was_handed_in_before_it(store: SqliteStore) -> None:
    write_long(store)
    owner = Owner()
    leave = hold_group(store)
    store.commit(batch(2, session="long", seq=SHORT_EVENTS + 2), owner.ref)
    store.load("long", owner.ref)
    leave.set()
    assert owner.next() == Committed(2)
    loaded = owner.next()
    assert isinstance(loaded, Loaded)
    (message,) = loaded.snapshot.thread.messages()
    assert len(message.content) == SHORT_EVENTS + 2


def test_a_load_under_way_is_given_up_when_the_store_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(connection: sqlite3.Connection, _session: str, **_options: Any) -> Any:
        begun.set()
        return connection.execute(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT sum(n) FROM n"
        )

    monkeypatch.setattr(sqlite, "snapshot", endless)
    store, owner = SqliteStore(path, clock=StandingClock()), Owner()
    write_long(store)
    store.load("long", owner.ref)
    assert begun.wait(PATIENCE_S)
    assert store.close(PATIENCE_S)
    assert isinstance(owner.next(), LoadFailed)
    assert not path.with_name(path.name + "-wal").exists()
    assert store.health().error is None


def test_a_session_with_few_events_that_are_large_is_long(store: SqliteStore) -> None:
    write(store, batch(1, events=tuple(text(seq, "x" * (SHORT_BYTES // 2)) for seq in (1, 2))))
    write(store, batch(1, session="t", events=tuple(text(seq, session="t") for seq in range(1, SHORT_EVENTS + 1))))
    assert store.reader.at_once(lambda connection: log.is_long(connection, "s"))
    assert not store.reader.at_once(lambda connection: log.is_long(connection, "t"))
    assert not store.reader.at_once(lambda connection: log.is_long(connection, "nobody"))


def test_a_long_session_is_read_from_the_file_that_is_there(path: Path, tmp_path: Path) -> None:
    """And not over a connection to the one that was."""
    store, owner = SqliteStore(path, clock=StandingClock()), Owner()
    try:
        write_long(store)
        before = tmp_path / "before.sqlite"
        with contextlib.closing(sqlite3.connect(before)) as copy, contextlib.closing(sqlite3.connect(path)) as now:
            now.backup(copy)
        write(store, batch(2, session="long", seq=SHORT_EVENTS + 2))
        assert store.reader.last_seq("long") == SHORT_EVENTS + 2
        for side in ("-wal", "-shm"):
            path.with_name(path.name + side).unlink()
        before.replace(path)
        store.load("long", owner.ref)
        loaded = owner.next()
        assert isinstance(loaded, Loaded)
        (message,) = loaded.snapshot.thread.messages()
        assert len(message.content) == SHORT_EVENTS + 1
    finally:
        assert store.close(PATIENCE_S)


def test_a_load_of_a_long_session_is_tried_again_and_then_fails_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[sqlite3.Error] = []

    def failing(*args: Any, **options: Any) -> Snapshot:
        if errors:
            raise errors.pop()
        return snapshot(*args, **options)

    monkeypatch.setattr(sqlite, "snapshot", failing)
    store, owner = SqliteStore(path, clock=StandingClock()), Owner()
    try:
        write_long(store)
        errors.append(sqlite3.OperationalError("disk I/O error"))
        store.load("long", owner.ref)
        assert isinstance(owner.next(), Loaded)
        # Beside the writer, and twice by the writer.
        errors += [sqlite3.OperationalError("disk I/O error") for _ in range(3)]
        store.load("long", owner.ref)
        failed = owner.next()
        assert isinstance(failed, LoadFailed)
        assert "disk I/O error" in failed.error
        write(store, batch(1))
        health = store.health()
        assert "disk I/O error" in (health.error or "")
        assert health.writable
    finally:
        assert store.close(PATIENCE_S)


@pytest.mark.parametrize(
    "offence",
    [
        {"events": (text(1, "\ud800", "bad"),)},
        {"events": (Event(1, "bad", 1, "r\udfff", "text", {"text": "x"}, 1.0),)},
        {"events": (Event(1, "bad", 2**70, "r", "text", {"text": "x"}, 1.0),)},
        {"events": (Event(1, "bad", 1, "r", "text", {"text": object()}, 1.0),)},
        {"events": (Event(1, "bad", 1, "r", "text", {"text": "x"}, float("nan")),)},
        {"events": (text(1, "x", "bad"), text(1, "y", "bad"))},
        {"events": (text(1, "x", "good"),)},
        {"waiting": (WaitingRow("bad", NewMessage(content="x"), 1, "r\udc80", False, 1.0),)},
    ],
    ids=["text", "id", "number", "object", "time", "twice", "stranger", "waiting"],
)
def test_l13_a_batch_that_cannot_be_stored_fails_alone_in_its_group(
    store: SqliteStore, offence: dict[str, Any]
) -> None:
    bad, good = Owner(), Owner()
    leave = hold_group(store)
    try:
        store.commit(batch(1, session="good"), good.ref)
        store.commit(batch(1, session="bad", **offence), bad.ref)
        store.commit(batch(2, session="good"), good.ref)
        store.commit(batch(2, session="bad", seq=9), bad.ref)
    finally:
        leave.set()
    assert good.next() == Committed(2)
    failures = [bad.next(), bad.next()]
    assert [(type(failure), failure.number) for failure in failures] == [(CommitFailed, 1), (CommitFailed, 2)]
    assert all(failure.error for failure in failures)
    assert [event.seq for event in store.reader.events("good")] == [1, 2]
    assert store.reader.events("bad") == []
    assert load(store, "bad").waiting == ()


def test_the_good_batches_of_an_incarnation_before_its_bad_one_are_kept(store: SqliteStore) -> None:
    owner = Owner()
    leave = hold_group(store)
    try:
        store.commit(batch(1), owner.ref)
        store.commit(batch(2), owner.ref)
        store.commit(batch(3, events=(text(3, "\ud800"),)), owner.ref)
    finally:
        leave.set()
    assert owner.next() == Committed(2)
    assert isinstance(owner.next(), CommitFailed)
    assert store.reader.last_seq("s") == 2


def test_a_file_that_is_locked_is_waited_for_with_a_bound_and_heals(store: SqliteStore, path: Path) -> None:
    owner = Owner()
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        store.commit(batch(1), owner.ref)
        failed = owner.next()
        assert isinstance(failed, CommitFailed)
        assert "locked" in failed.error
        assert store.health().integrity is None, "a lock is no damage: nothing is opened again, or looked for"
        assert store.reader.events("s") == []
        other.execute("ROLLBACK")
        write(store, batch(1, incarnation="i2"))
    finally:
        other.close()
    assert store.reader.last_seq("s") == 1


def test_a_lock_that_is_given_up_in_time_costs_nothing(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock(), busy_timeout_s=PATIENCE_S)
    owner = Owner()
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        store.commit(batch(1), owner.ref)
        assert owner.told.empty()
        other.execute("COMMIT")
        assert owner.next() == Committed(1)
    finally:
        other.close()
        assert store.close(PATIENCE_S)


def test_l13_while_one_thread_gives_a_turn_that_takes_long_the_other_writes_and_gives_none(path: Path) -> None:
    gate, turns = threading.Event(), queue.Queue[str]()

    @contextlib.contextmanager
    def caller_runs() -> Iterator[None]:
        yield
        turns.put(threading.current_thread().name)
        gate.wait(PATIENCE_S)

    store = SqliteStore(path, clock=StandingClock(), busy_timeout_s=0.2, caller_runs=caller_runs)
    try:
        write(store, batch(1, session="first"))
        turns.get(timeout=PATIENCE_S)
        for number in (1, 2, 3):
            write(store, batch(number, session="second"))
        assert store.answers(PATIENCE_S)
        assert turns.empty()
        gate.set()
        numbers = itertools.count(2)

        def written() -> bool:
            # The first thread may still be in its turn: until it is back, the other one writes, and gives none.
            write(store, batch(next(numbers), session="first"))
            return not turns.empty()

        until(written, "a turn")
    finally:
        gate.set()
        assert store.close(PATIENCE_S)


def test_a_connection_that_broke_is_opened_again_and_the_group_written(store: SqliteStore) -> None:
    write(store, batch(1))
    broken = store._writer.connection
    assert broken is not None
    broken.close()
    write(store, batch(2))
    assert store._writer.connection is not broken
    broken = store._writer.connection
    assert broken is not None
    broken.close()
    assert load(store).thread.messages()
    assert store.reader.last_seq("s") == 2


class LosesItsCommit:
    """A connection whose first COMMIT is done, and reported as an error of the disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = self._connection.execute(sql, *values)
        if sql == "COMMIT" and not self._told:
            self._told = True
            raise sqlite3.OperationalError("disk I/O error")
        return cursor


def test_l12_a_group_whose_commit_has_an_unknown_outcome_is_written_once(store: SqliteStore) -> None:
    owner = Owner()
    store.commit(batch(1), owner.ref)
    assert owner.next() == Committed(1)
    assert store.answers(PATIENCE_S)
    assert store._writer.connection is not None
    store._writer.connection = cast("sqlite3.Connection", LosesItsCommit(store._writer.connection))
    store.commit(batch(2), owner.ref)
    assert owner.next() == Committed(2)
    store.commit(batch(3), owner.ref)
    assert owner.next() == Committed(3)
    assert [event.seq for event in store.reader.events("s")] == [1, 2, 3]
    assert store.health().unfit == 0


def test_l14_the_check_after_errors_is_made_at_most_once_in_its_interval(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = schema.open_writer(*arguments, **options)
        connection.set_trace_callback(lambda sql: checks.append(sql) if "quick_check" in sql else None)
        return connection

    monkeypatch.setattr("supervisor.store.connection.open_writer", watched)
    clock = StandingClock()
    store = SqliteStore(path, clock=clock)

    def breaks(number: int) -> None:
        assert store._writer.connection is not None
        store._writer.connection.close()
        write(store, batch(number))

    try:
        for number in range(1, 4):
            breaks(number)
        assert len(checks) == 1
        clock.now += CHECK_EVERY_S - 0.1
        breaks(4)
        assert len(checks) == 1
        clock.now += 0.2
        breaks(5)
        assert len(checks) == 2
        assert store.health().integrity == "ok"
    finally:
        assert store.close(PATIENCE_S)


def test_l14_of_few_incarnations_it_is_known_without_a_read_what_is_written(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.groups.LAST_KEPT_MAX", 3)
    for number in range(1, 11):
        write(store, batch(1, session=f"s{number}"))
        assert len(store._groups._last) <= 3
    # Of one that was let go the file itself knows.
    write(store, batch(1, session="s1"))
    write(store, batch(2, session="s1"))
    assert [event.seq for event in store.reader.events("s1")] == [1, 2]


def test_l14_a_transaction_holds_a_bounded_number_of_batches(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.pen.GROUP_MAX", 3)
    commits: list[str] = []
    assert store._writer.connection is not None
    store._writer.connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    owner = Owner()
    leave = hold_group(store)
    for number in range(1, 8):
        store.commit(batch(number), owner.ref)
    leave.set()
    told = [owner.next() for _ in range(3)]
    assert told == [Committed(3), Committed(6), Committed(7)]
    assert len(commits) == 3


def test_l14_what_could_not_be_stored_is_kept_and_named_up_to_a_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.store.condition.LEFT_OUT_MAX", 3)
    monkeypatch.setattr("supervisor.store.unfit.UNFIT_KEPT", 3)
    store = SqliteStore(path, clock=StandingClock())
    try:
        for number in range(1, 6):
            owner = Owner()
            store.commit(batch(1, session=f"s{number}", events=(text(1, "\ud800", f"s{number}"),)), owner.ref)
            assert isinstance(owner.next(), CommitFailed)
        assert [one.session for one in store.reader.unfit()] == ["s3", "s4", "s5"]
        assert [name.split(":")[0] for name in store.health().left_out] == ["session s3", "session s4", "session s5"]
        assert store.health().unfit == 5
    finally:
        assert store.close(PATIENCE_S)


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from tests.test_store import Owner, StandingClock, batch, text
    from actors.messages import CommitFailed, Committed
    from supervisor.store.sqlite import SqliteStore

    store = SqliteStore(Path(sys.argv[1]), clock=StandingClock())
    owner = Owner()
    store.commit(batch(1), owner.ref)
    assert owner.next() == Committed(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    store.commit(batch(2, events=(text(2, "x" * 500_000),)), owner.ref)
    failed = owner.next()
    assert isinstance(failed, CommitFailed), failed
    assert store.answers(30)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.commit(batch(1, incarnation="i2", seq=2), owner.ref)
    assert owner.next() == Committed(1)
    assert [event.seq for event in store.reader.events("s")] == [1, 2]
    assert store.close(30)
    print("healed:", failed.error)
"""


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_disk_that_takes_no_more_fails_the_group_and_heals_when_it_does(path: Path) -> None:
    child = python(FULL_DISK, str(path))
    try:
        shown, _ = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, shown
        assert "healed:" in shown
    finally:
        child.kill()
        child.wait()


COMMIT_FOREVER = """
    import sys
    from pathlib import Path
    from tests.test_store import Owner, StandingClock, batch
    from actors.messages import Committed
    from supervisor.store.sqlite import SqliteStore

    store = SqliteStore(Path(sys.argv[1]), clock=StandingClock())
    owner = Owner()
    for number in range(1, 1_000_000):
        store.commit(batch(number), owner.ref)
        if number % 3 == 0:
            message = owner.next()
            assert isinstance(message, Committed), message
            print(message.number, flush=True)
"""


def test_l12_every_acknowledged_batch_survives_kill_9(path: Path) -> None:
    child = python(COMMIT_FOREVER, str(path))
    acknowledged = 0
    try:
        assert child.stdout is not None
        for _ in range(50):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        acknowledged = int(rest[-1]) if rest else acknowledged
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert acknowledged >= 50
    reader = SqliteReader(path)
    try:
        last = reader.last_seq("s")
        assert last >= acknowledged
    finally:
        reader.close()
    store = SqliteStore(path, clock=StandingClock())
    try:
        seqs = [event.seq for event in store.reader.events("s", 0, last + 1)]
        assert seqs == list(range(1, last + 1))
        write(store, batch(last + 1))
        assert store.reader.last_seq("s") == last + 1
    finally:
        assert store.close(PATIENCE_S)


def test_an_owner_that_raises_or_is_gone_disturbs_no_other(store: SqliteStore) -> None:
    class Gone:
        def tell(self, message: Any) -> None:
            raise RuntimeError("the actor is dead")

    store.commit(batch(1, session="gone"), cast("ActorRef[Any]", Gone()))
    store.load("gone", cast("ActorRef[Any]", Gone()))
    write(store, batch(1))
    assert store.reader.last_seq("gone") == 1


# ── Opening and closing ───────────────────────────────────────────────────────────────────────────


def test_a_file_from_a_newer_program_is_refused_and_left_as_it_is(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    for opened in (lambda: SqliteStore(path, clock=StandingClock()), lambda: SqliteReader(path)):
        with pytest.raises(StoreUnavailable, match="newer program") as refused:
            opened()
        assert refused.value.got == "schema version 99"
    assert path.read_bytes() == before


def test_a_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_text("this is not a database, and it is long enough to have a header\n" * 20)
    with pytest.raises(StoreUnavailable, match="not a database"):
        SqliteStore(path, clock=StandingClock())


def test_a_migration_that_fails_leaves_the_version_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(path, clock=StandingClock()).close(PATIENCE_S)
    good = schema.migrations()
    bad = [*good, (len(good) + 1, "CREATE TABLE more (a);\nCREATE TABLE events (a);\n")]
    monkeypatch.setattr(schema, "migrations", lambda: bad)
    with pytest.raises(StoreUnavailable, match="already exists"):
        SqliteStore(path, clock=StandingClock())
    monkeypatch.undo()
    store = SqliteStore(path, clock=StandingClock())
    try:
        write(store, batch(1))
        rows = sqlite3.connect(path)
        try:
            assert rows.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchone() is None
        finally:
            rows.close()
    finally:
        assert store.close(PATIENCE_S)


def test_a_migration_brings_an_older_file_up_to_date_and_keeps_what_is_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path, clock=StandingClock())
    write(store, batch(1))
    assert store.close(PATIENCE_S)
    more = [*schema.migrations(), (len(schema.migrations()) + 1, "CREATE TABLE more (a);\n-- the end\n")]
    monkeypatch.setattr(schema, "migrations", lambda: more)
    with pytest.raises(StoreUnavailable, match="older than this program"):
        SqliteReader(path)
    store = SqliteStore(path, clock=StandingClock())
    try:
        assert store.reader.events("s") == [text(1)]
    finally:
        assert store.close(PATIENCE_S)


def test_closing_writes_what_was_handed_in_and_empties_the_log(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock())
    owner = Owner()
    leave = hold_group(store)
    for number in range(1, 601):
        store.commit(batch(number), owner.ref)
    closing = threading.Thread(target=store.close, args=(PATIENCE_S,))
    closing.start()
    leave.set()
    closing.join(PATIENCE_S)
    assert store.close(PATIENCE_S)
    reader = SqliteReader(path)
    try:
        assert reader.last_seq("s") == 600
    finally:
        reader.close()
    last = None
    while not owner.told.empty():
        last = owner.told.get_nowait()
    assert last == Committed(600)


def test_a_closed_store_refuses_and_says_so(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock())
    assert store.answers(PATIENCE_S)
    assert store.close(PATIENCE_S)
    assert store.close(PATIENCE_S)
    assert not path.with_name(path.name + "-wal").exists()
    owner = Owner()
    store.commit(batch(1), owner.ref)
    store.load("s", owner.ref)
    assert isinstance(owner.next(), CommitFailed)
    assert isinstance(owner.next(), LoadFailed)
    assert not store.answers(PATIENCE_S)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.reader.last_seq("s")


def test_a_writer_that_hangs_does_not_answer_and_close_says_so(path: Path) -> None:
    store = SqliteStore(path, clock=StandingClock())
    leave = hold_group(store)
    try:
        assert not store.answers(0.01)
        assert not store.close(0.01)
    finally:
        leave.set()
    assert store.close(PATIENCE_S)


# ── Readers ───────────────────────────────────────────────────────────────────────────────────────


READ = """
    import sys
    from pathlib import Path
    from supervisor.store.reader import SqliteReader

    reader = SqliteReader(Path(sys.argv[1]))
    print(reader.last_seq("s"), len(reader.events("s")), reader.unfinished())
    reader.close()
"""


def test_another_process_reads_while_the_writer_holds_the_file(store: SqliteStore, path: Path) -> None:
    write(store, batch(1, runs=(run_info("r1"),)))
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        child = python(READ, str(path))
        try:
            shown, _ = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
            child.wait()
    finally:
        other.close()
    assert shown.split(maxsplit=2) == ["1", "1", "['s']\n"]


def test_a_reader_changes_nothing_and_cannot(store: SqliteStore, path: Path) -> None:
    write(store, batch(1))
    connection = schema.open_reader(path, 1.0)
    try:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM events")
    finally:
        connection.close()


def test_a_reader_says_where_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no store to read"):
        SqliteReader(tmp_path / "missing.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_question_that_no_store_can_hold_is_invalid(store: SqliteStore) -> None:
    with pytest.raises(Invalid):
        store.reader.events("\ud800")
    with pytest.raises(Invalid):
        store.reader.events("s", 2**70)
    assert store.reader.events("s") == []


@pytest.mark.parametrize("doc", [b"{", b'{"session":"\xff"}', b'{"session":"s"}'])
def test_a_row_that_is_damaged_is_a_store_that_cannot_be_read(store: SqliteStore, path: Path, doc: bytes) -> None:
    write(store, batch(1, runs=(run_info("r1"),)))
    with contextlib.closing(sqlite3.connect(path)) as damage, damage:
        damage.execute("UPDATE runs SET doc = ?", (doc,))
    with pytest.raises(StoreUnavailable):
        store.reader.find_run("r1")
    looked_at: list[str] = []
    assert store.reader.runs("s", 9, looked_at) == []
    assert looked_at == ["r1"]


def test_readers_on_many_threads_see_only_whole_batches(store: SqliteStore) -> None:
    done = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        seen = 0
        while not done.is_set():
            seqs = [event.seq for event in store.reader.events("s")]
            if seqs != list(range(1, len(seqs) + 1)) or len(seqs) % 3 or len(seqs) < seen:
                wrong.append(f"after {seen}: {seqs}")
                return
            seen = len(seqs)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 61):
            write(store, batch(number, events=tuple(text(3 * number - back) for back in (2, 1, 0))))
    finally:
        done.set()
        for reader in readers:
            reader.join(PATIENCE_S)
    assert not wrong
    assert store.reader.last_seq("s") == 180


class Interrupted(list[sqlite3.Connection]):
    """A pool in which something happens, once each, just as a connection is taken or given back: a signal, say."""

    def __init__(self, connections: list[sqlite3.Connection], happens: Callable[[], object]) -> None:
        super().__init__(connections)
        self.left = {"pop": happens, "append": happens}

    def pop(self, index: SupportsIndex = -1) -> sqlite3.Connection:
        self.left.pop("pop", int)()
        return super().pop(index)

    def append(self, connection: sqlite3.Connection) -> None:
        self.left.pop("append", int)()
        super().append(connection)


def test_a_read_in_a_signal_handler_does_not_wait_for_its_own_thread(store: SqliteStore, path: Path) -> None:
    write(store, batch(1))
    reader = SqliteReader(path)
    seen: list[int] = []
    pool = reader._idle = Interrupted(reader._idle, lambda: seen.append(reader.last_seq("s")))
    reading = threading.Thread(target=lambda: seen.append(reader.last_seq("s")), daemon=True)
    reading.start()
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    assert (seen, pool.left) == ([1, 1, 1], {})
    reader.close()


def test_a_connection_that_is_given_back_while_the_reader_is_closed_is_closed(store: SqliteStore, path: Path) -> None:
    reader = SqliteReader(path)
    (connection,) = reader._idle
    reader._idle = Interrupted(reader._idle, int)
    reader._idle.left = {"append": reader.close}
    assert reader.last_seq("s") == 0
    assert reader._idle == []
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


def test_l14_few_connections_stay_open_after_many_reads_at_once(store: SqliteStore, path: Path) -> None:
    reader = SqliteReader(path)
    together = threading.Barrier(4 * IDLE_MAX)

    def meet(_: sqlite3.Connection) -> int:
        return together.wait(PATIENCE_S)

    readers = [threading.Thread(target=reader._read, args=(meet,)) for _ in range(together.parties)]
    for one in readers:
        one.start()
    for one in readers:
        one.join(PATIENCE_S)
    assert not together.broken
    assert len(reader._idle) == IDLE_MAX
    reader.close()
    assert reader._idle == []


# ── The file, before it is opened ─────────────────────────────────────────────────────────────────


def test_a_link_to_a_file_that_is_not_there_yet_leads_to_the_store(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store.sqlite3").symlink_to(tmp_path / "disk" / "store")
    store = SqliteStore(tmp_path / "store.sqlite3", clock=StandingClock())
    try:
        write(store, batch(1))
    finally:
        store.close(PATIENCE_S)
    assert (tmp_path / "disk" / "store").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [True, False])
def test_a_disk_that_was_made_read_only_is_named_as_such(tmp_path: Path, *, make: bool) -> None:
    with small_disk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        path = disk.path / "store.sqlite3"
        SqliteStore(path, clock=StandingClock()).close(PATIENCE_S)
        if subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], capture_output=True, check=False).returncode:
            pytest.skip("it cannot be mounted again here")
        with pytest.raises(OSError, match="Read-only file system"):
            schema.open_writer(path, 1.0, make=make)
