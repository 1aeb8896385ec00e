"""Deletion of a session: ended, proven, removed; what is left of it, and what may not be deleted. And retention."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from actors import (
    Delete,
    Invalid,
    NotFound,
    RequestTooOld,
    Resume,
    RunActive,
    Spawn,
    Stop,
    StoreUnavailable,
    Turn,
    tool,
)
from actors.messages import Old
from actors.model import Waiting
from actors.ports import Batch, KeptStop
from supervisor import SessionHandle, Supervisor
from supervisor.retention import Retention
from supervisor.store import tables, unfit
from supervisor.store.journal import StopJournal
from supervisor.store.reader import SqliteReader
from tests.kit import (
    WAIT_S,
    YEAR_S,
    ClockSteps,
    Kit,
    Listener,
    check_rest,
    log,
    message,
    say,
    settled,
    stop,
    until,
)


def speak(turn: Turn) -> None:
    for one in turn.inputs:
        turn.emit(f"heard {one.content}")


def delete(session: SessionHandle, reason: str = "not needed any more") -> Delete:
    """Delete a session, and return the request."""
    request = Delete(source="user.test", reason=reason)
    session.ask(request, timeout=WAIT_S)
    return request


def rows(state_dir: Path, session: str) -> dict[str, int]:
    """How many rows of a session each table holds, but for none."""
    connection = sqlite3.connect(state_dir / "store.sqlite3")
    try:
        of_sessions = """SELECT name FROM sqlite_master WHERE type = 'table'
            AND EXISTS (SELECT 1 FROM pragma_table_info(sqlite_master.name) WHERE name = 'session')"""
        names = [name for (name,) in connection.execute(of_sessions)]
        counts = {
            name: connection.execute(f"SELECT COUNT(*) FROM {name} WHERE session = ?", (session,)).fetchone()[0]
            for name in names
        }
    finally:
        connection.close()
    return {name: count for name, count in counts.items() if count}


def test_what_is_deleted_is_gone_and_a_tombstone_is_left(kit: Kit) -> None:
    session = kit.session(speak)
    run_id = say(session, "a secret")
    settled(session)
    before = session.status()
    request = Delete(source="user.test", reason="not needed any more")
    deleted = session.ask(request, timeout=WAIT_S)
    assert (deleted.session, deleted.seq) == ("s1", before.last_seq + 1)
    assert (session.thread(), session.runs()) == ([], [])
    with pytest.raises(NotFound):
        session.run(run_id)
    with pytest.raises(NotFound):
        session.receipt(run_id)
    (event,) = list(session.subscribe(timeout=0.0))
    assert (event.seq, event.kind) == (deleted.seq, "session.deleted")
    assert event.data["provenance"]["source"] == "session.deleted"
    assert event.data["provenance"]["cause"]["source"] == "user.test"
    assert kit.supervisor is not None
    assert kit.supervisor.sessions() == []
    left = rows(kit.state_dir, "s1")
    assert set(left) == {"events", "sessions", "requests", "batches"}
    # Of the requests the ids: that of the message, and the Delete with its answer.
    assert (left["events"], left["sessions"], left["requests"]) == (1, 1, 2)
    kit.close()
    for file in kit.state_dir.glob("store.sqlite3*"):
        assert b"a secret" not in file.read_bytes()


def test_what_was_put_aside_or_attached_goes_with_its_session_and_with_no_other(kit: Kit) -> None:
    supervisor = kit.start(speak)
    for one in (supervisor.session("s1"), supervisor.session("s2")):
        say(one, os.fsdecode(b"caf\xe9"))
        settled(one)
    kit.close()
    connection = sqlite3.connect(kit.state_dir / "store.sqlite3", isolation_level=None)
    try:
        for name in ("s1", "s2"):
            unfit.put_aside(connection, Batch(session=name, incarnation="i", number=1), "it did not fit", 1.0)
    finally:
        connection.close()
    supervisor = kit.start(speak)
    assert {"attachments", "batches_unfit"} <= rows(kit.state_dir, "s1").keys()
    before = rows(kit.state_dir, "s2")
    delete(supervisor.session("s1"))
    assert rows(kit.state_dir, "s1").keys() == {"events", "sessions", "requests", "batches"}
    assert rows(kit.state_dir, "s2") == before


def spooled(kit: Kit) -> dict[str, bytes]:
    """The spool files there are, with what is in them."""
    found = {}
    for path in (kit.state_dir / "spool").iterdir():
        # One may go at any moment: that is what is waited for.
        with suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found


def print_much(kit: Kit, *names: str) -> None:
    """Have a process of each session print more than a result has room for."""
    assert kit.supervisor is not None
    for name in names:
        session = kit.supervisor.session(name)
        say(session, f"yes {name} | head -c 300000")
        settled(session)


def test_the_long_outputs_of_a_deleted_session_are_deleted_and_no_others(kit: Kit) -> None:
    supervisor = kit.start()
    print_much(kit, "s1", "s2")
    assert sorted(data[:3] for data in spooled(kit).values()) == [b"s1\n", b"s2\n"]
    delete(supervisor.session("s1"))
    until(lambda: len(spooled(kit)) == 1, "its file is gone")
    assert [data[:3] for data in spooled(kit).values()] == [b"s2\n"]
    print_much(kit, "s1")
    assert len(spooled(kit)) == 2, "the name is used again"


def test_what_a_crash_left_of_a_deleted_sessions_outputs_goes_at_the_next_start(kit: Kit) -> None:
    supervisor = kit.start()
    print_much(kit, "s1", "s2")
    before = spooled(kit)
    delete(supervisor.session("s1"))
    until(lambda: len(spooled(kit)) == 1, "its file is gone")
    kept = spooled(kit)
    kit.close()
    # As after a crash that came between the commit and the removal.
    for name, data in before.items():
        (kit.state_dir / "spool" / name).write_bytes(data)
    kit.start()
    until(lambda: spooled(kit) == kept, "it is gone, and the other is not")


def test_the_long_outputs_of_sessions_that_retention_deletes_go_too(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.router.LOOK_FIRST_S", 0.3)
    monkeypatch.setattr("supervisor.router.LOOK_EVERY_S", 0.1)
    supervisor = kit.start(retention_s=1.0)
    print_much(kit, "s1")
    until(lambda: supervisor.sessions() == [], "it is deleted")
    until(lambda: spooled(kit) == {}, "its file is gone")


def test_l12_a_stop_that_the_journal_still_holds_is_let_go_and_wakes_no_deleted_session(kit: Kit) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    asked_at = list(session.subscribe(timeout=0.0))[-1].at
    delete(session)
    events = list(session.subscribe(timeout=0.0))
    kit.close()
    # As after a crash that came before the journal had let it go.
    path = kit.state_dir / "store.sqlite3-stops"
    journal = StopJournal(path)
    assert journal.keep(KeptStop("s1", Stop(source="user.test", reason="before the deletion"), asked_at))
    assert journal.close(WAIT_S)
    supervisor = kit.start(speak)
    until(lambda: not supervisor.store_health().journal.kept, "the journal lets it go")
    assert supervisor.sessions() == []
    assert list(supervisor.session("s1").subscribe(timeout=0.0)) == events


@pytest.mark.parametrize("where", ["resident", "passivated", "restarted"])
def test_a_stop_does_not_begin_a_deleted_session_anew(kit: Kit, where: str) -> None:
    session = kit.session(speak, passivate_s=0.05 if where == "passivated" else None)
    say(session)
    settled(session)
    delete(session)
    left = rows(kit.state_dir, "s1")
    if where == "passivated":
        until(lambda: session.ref is None, "it leaves memory")
    elif where == "restarted":
        kit.close()
        session = kit.session(speak)
    for scope in ("run", "session"):
        with pytest.raises(NotFound) as refusal:
            stop(session, scope=scope)
        assert "deleted" in str(refusal.value)
    assert kit.supervisor is not None
    assert kit.supervisor.sessions() == []
    assert rows(kit.state_dir, "s1") == left
    assert [event.kind for event in session.subscribe(timeout=0.0)] == ["session.deleted"]
    say(session, "a new beginning")
    settled(session)
    assert stop(session).outcome == "nothing_running", "it is there again, so it can be stopped"


def test_l12_a_stop_of_the_journal_that_came_after_the_deletion_begins_nothing_anew(kit: Kit) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    delete(session)
    (event,) = list(session.subscribe(timeout=0.0))
    kit.close()
    # As of a store that hung: it was answered before anybody knew that the session was deleted.
    journal = StopJournal(kit.state_dir / "store.sqlite3-stops")
    assert journal.keep(KeptStop("s1", Stop(source="user.test", reason="behind the deletion"), event.at + 1.0))
    assert journal.close(WAIT_S)
    supervisor = kit.start(speak)
    until(lambda: not supervisor.store_health().journal.kept, "the journal lets it go")
    assert supervisor.sessions() == []
    assert list(supervisor.session("s1").subscribe(timeout=0.0)) == [event]


def test_l3_what_runs_is_ended_and_proven_before_anything_is_removed(kit: Kit) -> None:
    @tool(isolation="thread")
    def serve(spawn: Spawn, script: str) -> str:
        spawn(["bash", "-c", script], owner="session")
        spawn(["bash", "-c", script]).wait()
        return "it is over"

    def agent(turn: Turn) -> None:
        turn.call("serve", script=kit.script("(trap '' TERM; sleep 300) & sleep 300"))

    session = kit.session(agent, tools=[serve])
    listener = Listener(session)
    run_id = say(session)
    waiting = session.ask(message("waits", policy="enqueue"), timeout=WAIT_S)
    until(lambda: len(kit.alive()) >= 4, "both trees run")
    delete(session)
    assert not kit.alive(), "the answer comes behind the proofs"
    assert rows(kit.state_dir, "s1").keys() == {"events", "sessions", "requests", "batches"}
    until(lambda: listener.events and listener.events[-1].kind == "session.deleted", "the last event")
    events = listener.close()
    (ended,) = [event for event in events if event.kind == "run.ended" and event.run_id == run_id]
    assert ended.data["receipt"]["complete"]
    assert ended.data["receipt"]["provenance"]["source"] == "session.deleted"
    returned = [event.data["message_id"] for event in events if event.kind == "session.message_returned"]
    assert returned == [waiting.message_id]


def test_l10_a_delete_sent_again_has_the_same_answer_and_deletes_nothing_that_came_after_it(kit: Kit) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    request = Delete(source="user.test", reason="once")
    answer = session.ask(request, timeout=WAIT_S)
    say(session, "a new beginning")
    settled(session)
    assert session.ask(request, timeout=WAIT_S) == answer
    assert [one.content for one in session.thread()] == ["a new beginning", "heard a new beginning"]
    kit.close()
    again = kit.session(speak)
    assert again.ask(request, timeout=WAIT_S) == answer
    assert len(again.thread()) == 2


def test_l1_and_l10_a_name_that_is_used_again_continues_from_its_tombstone(kit: Kit) -> None:
    session = kit.session(speak, passivate_s=0.05)
    old, late = message("before"), message("was under way when the session was deleted")
    session.ask(old, timeout=WAIT_S)
    settled(session)
    before = session.status()
    delete(session)
    for _ in range(2):
        with pytest.raises(RequestTooOld):
            session.ask(old, timeout=WAIT_S)
        with pytest.raises(RequestTooOld):
            session.ask(late, timeout=WAIT_S)
        until(lambda: session.ref is None, "it leaves memory, and is asked once more")
    accepted = session.ask(message("after"), timeout=WAIT_S)
    assert accepted.generation == before.generation + 1, "a fencing token is never given twice"
    settled(session)
    events = list(session.subscribe(timeout=0.0))
    assert [event.seq for event in events] == list(range(before.last_seq + 1, before.last_seq + 1 + len(events)))
    assert kit.supervisor is not None
    assert kit.supervisor.sessions() == ["s1"]


def test_while_it_is_being_deleted_a_session_refuses_messages_and_takes_a_stop(kit: Kit) -> None:
    # It is being deleted until it is stopped at once.
    session = kit.session(grace_s=60.0)
    say(session, kit.script("trap '' TERM; echo up; sleep 300 & wait; sleep 300"))
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "it runs, and ignores what it is told")
    answers: list[object] = []
    deleting = threading.Thread(target=lambda: answers.append(delete(session)))
    deleting.start()
    try:

        def refused() -> bool:
            try:
                session.ask(message("too late", policy="reject"), timeout=WAIT_S)
            except NotFound as refusal:
                return "being deleted" in str(refusal)
            except RunActive:
                return False
            return False

        until(refused, "a message is refused")
        # It may have no record: the deletion goes on, and then there is nothing to ask any more.
        at_once = Stop(source="user.test", reason="at once", mode="immediate")
        assert session.ask(at_once, timeout=WAIT_S).outcome == "stopping"
    finally:
        deleting.join(WAIT_S)
    assert answers


@pytest.mark.parametrize("name", ["s1", "other"])
def test_a_session_that_is_not_there_cannot_be_deleted(kit: Kit, name: str) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    delete(session)
    assert kit.supervisor is not None
    with pytest.raises(NotFound):
        delete(kit.supervisor.session(name))


def test_what_is_not_proven_to_have_ended_is_not_deleted(kit: Kit) -> None:
    release = kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        release.wait()
        return "at last"

    def agent(turn: Turn) -> None:
        turn.call("deaf")

    session = kit.session(agent, tools=[deaf])
    run_id = say(session)
    until(lambda: any(event.kind == "tool.started" for event in log(session)), "the call")
    with pytest.raises(RunActive) as refusal:
        delete(session)
    assert refusal.value.run_id == run_id
    assert not session.receipt(run_id, timeout=WAIT_S).complete
    release.set()
    until(lambda: session.receipt(run_id).complete, "it ends at last")
    delete(session)
    assert session.runs() == []


def test_a_delete_cannot_claim_to_come_from_inside() -> None:
    with pytest.raises(Invalid):
        Delete(source="session.deleted", reason="x")
    with pytest.raises(Invalid):
        Delete(source="user.test", reason=" ")


def test_l12_a_delete_that_cannot_be_written_is_refused_and_nothing_is_gone(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    thread = session.thread()
    encode = tables.statements

    def fails(batch: object) -> list[tables.Statement]:
        if getattr(batch, "erase", False):
            return [("DELETE FROM no_such_table", ())]  # as where the file is damaged: not the fault of the batch
        return encode(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "statements", fails)
    request = Delete(source="user.test", reason="not today")
    with pytest.raises(StoreUnavailable):
        session.ask(request, timeout=WAIT_S)
    monkeypatch.undo()
    until(lambda: session.status().state == "idle", "it is read again")
    assert session.thread() == thread
    session.ask(request, timeout=WAIT_S)
    assert session.thread() == []


# ── Retention ─────────────────────────────────────────────────────────────────────────────────────


def older_than(kept_s: float, made: Iterable[float]) -> float:
    """As at the 400th second."""
    assert list(made) == [100.0, 200.0, 300.0]
    return 400.0 - kept_s


def test_what_is_old_is_what_is_over_a_limit_the_longest_unused_first() -> None:
    settled_ones = [("a", 7, 100.0), ("b", 8, 200.0), ("c", 9, 300.0)]
    assert not Retention().limited
    assert Retention(kept_s=150.0).old(settled_ones, 3, older_than) == Old((("a", 7), ("b", 8)))
    assert Retention(sessions_max=2).old(settled_ones, 3, older_than) == Old((("a", 7),))
    # Five are stored, two of which are in use: those count, and are not among what can go.
    assert Retention(sessions_max=3).old(settled_ones, 5, older_than) == Old((("a", 7), ("b", 8)))
    assert Retention(sessions_max=9, kept_s=1e6).old(settled_ones, 5, older_than) == Old(())


def test_retention_deletes_what_was_not_used_for_its_time_and_never_what_waits_or_runs(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.router.LOOK_FIRST_S", 0.3)
    monkeypatch.setattr("supervisor.router.LOOK_EVERY_S", 0.1)
    go = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("here")
        if turn.inputs and turn.inputs[-1].content == "hold":
            while not go.wait(0.01):
                turn.cancel_token.raise_if_cancelled()

    supervisor = kit.start(agent, retention_s=1.0, passivate_s=0.1)
    settled_one, running, parked = (supervisor.session(name) for name in ("settled", "running", "parked"))
    say(settled_one)
    run_id = say(running, "hold")
    held = say(parked, "hold")
    parked.ask(message("waits", policy="enqueue"), timeout=WAIT_S)
    stop(parked, waiting=Waiting.PARK)
    parked.receipt(held, timeout=WAIT_S)
    until(lambda: supervisor.sessions() == ["parked", "running"], "what is settled is deleted")
    # It is not listed from the moment in which that is on record; a moment later its rows are gone.
    event = next(event for event in settled_one.subscribe(timeout=WAIT_S) if event.kind == "session.deleted")
    assert event.data["provenance"]["source"] == "session.deleted"
    assert parked.status().waiting == 1
    assert running.status().run_id == run_id
    go.set()
    running.receipt(run_id, timeout=WAIT_S)
    until(lambda: supervisor.sessions() == ["parked"], "what has ended is deleted in its time")


def test_the_longest_unused_session_goes_first_whatever_the_clock_said(kit: Kit, steps: ClockSteps) -> None:
    supervisor = kit.start(speak, passivate_s=0.05)
    for name, step_s in (("first", 0.0), ("second", 3 * YEAR_S), ("third", -3 * YEAR_S)):
        steps.by(step_s)
        session = supervisor.session(name)
        say(session)
        settled(session)
    assert [name for name, _, _ in supervisor._store.reader.settled()] == ["first", "second", "third"]


def test_a_clock_that_jumps_by_years_makes_no_session_old(
    kit: Kit, steps: ClockSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.router.LOOK_FIRST_S", 0.05)
    monkeypatch.setattr("supervisor.router.LOOK_EVERY_S", 0.02)
    supervisor = kit.start(speak, retention_s=7 * 86_400.0)
    session = supervisor.session("s1")
    say(session)
    settled(session)
    looks, settled_ones = [], SqliteReader.settled

    def looked(reader: SqliteReader) -> list[tuple[str, int, float]]:
        looks.append(settled_ones(reader))
        return looks[-1]

    monkeypatch.setattr(SqliteReader, "settled", looked)
    steps.by(3 * YEAR_S)
    until(lambda: len(looks) > 5, "it has been looked for old sessions")
    assert [[name for name, _, _ in look] for look in looks[-3:]] == [["s1"]] * 3
    assert supervisor.sessions() == ["s1"]


def test_a_name_can_be_used_again_though_the_clock_is_set_back_when_it_was_deleted(kit: Kit, steps: ClockSteps) -> None:
    session = kit.session(speak, passivate_s=0.05)
    old, resume = message("before"), Resume()
    session.ask(old, timeout=WAIT_S)
    settled(session)
    session.ask(resume, timeout=WAIT_S)
    settled(session)
    delete(session)
    for step_s in (-0.5, -3600.0, -3 * YEAR_S):
        steps.by(step_s)
        # What had an effect before it was deleted has none now, wherever the clock is.
        for repeated in (old, resume):
            with pytest.raises(RequestTooOld):
                session.ask(repeated, timeout=WAIT_S)
        assert session.ask(message("after"), timeout=WAIT_S).run_id is not None
        settled(session)
        delete(session)
        until(lambda: session.ref is None, "it leaves memory: what it knows is on record")
    steps.by(6 * YEAR_S)
    assert session.ask(message("at last"), timeout=WAIT_S).run_id is not None


def test_what_is_used_between_the_look_and_the_deletion_stays(kit: Kit) -> None:
    session = kit.session(speak)
    say(session)
    settled(session)
    seq = session.status().last_seq
    assert kit.supervisor is not None
    say(session, "used again")
    settled(session)
    kit.supervisor._actor.tell(Old((("s1", seq),)))
    # Behind it in the same lane.
    assert session.status().last_seq > seq
    check_rest(session)
    assert [one.content for one in session.thread() if one.role == "user"] == ["go", "used again"]
    kit.supervisor._actor.tell(Old((("s1", session.status().last_seq),)))
    until(lambda: kit.supervisor is not None and kit.supervisor.sessions() == [], "it is old now")


def test_nothing_is_deleted_unless_a_limit_is_set(tmp_path: Path) -> None:
    from supervisor import Config

    with Supervisor.start(Config(state_dir=tmp_path)) as supervisor:
        assert not supervisor._retention.limited
    for wrong in ({"retention_s": -1.0}, {"retention_s": "a week"}, {"sessions_max": 0}, {"passivate_s": 0.0}):
        with pytest.raises(Invalid):
            Config(state_dir=tmp_path, **wrong)
