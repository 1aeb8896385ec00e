"""A store that fails, on real files: stops work, health says so, nothing accepted is lost, and it comes back.

The file has over 600 lines, and is whole: each fault is put under the same supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from actors import NewMessage, RunStatus, Stop, Turn
from actors.errors import ReceiptPending, StoreUnavailable
from actors.messages import CommitFailed, Committed, LoadFailed
from actors.ports import KeptStop
from supervisor import Config, SessionHandle, Supervisor
from supervisor.store.journal import StopJournal
from supervisor.store.sqlite import SqliteStore
from tests.kit import WAIT_S, until
from tests.store_kit import small_disk
from tests.test_store import Owner, StandingClock, batch, hold_group, load, text, write

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0
STORE = "store.sqlite3"


def agent(turn: Turn) -> None:
    if turn.inputs and turn.inputs[-1].content.startswith("say"):
        turn.emit("spoken")
        return
    turn.cancel_token.wait()


def config(state_dir: Path) -> Config:
    return Config(state_dir=str(state_dir), agents={"test": agent}, agent="test", grace_s=0.3, kill_s=1.0, drain_s=0.0)


def stop(**fields: Any) -> Stop:
    return Stop(source="user.test", reason="enough", **fields)


def accept(session: SessionHandle, content: str, **fields: Any) -> Any:
    """Send a message until the store takes it: the same object, as a client does."""
    message, taken = NewMessage(content=content, **fields), []

    def ask() -> bool:
        try:
            taken.append(session.ask(message, timeout=WAIT_S))
        except StoreUnavailable:
            return False
        return True

    until(ask, "the message is taken")
    return taken[0]


def told_durable(session: SessionHandle) -> list[str]:
    events = session._store.events(session.session, 0, 10_000)
    return [event.data["request_id"] for event in events if event.kind == "session.stop_durable"]


def inputs(session: SessionHandle) -> list[str]:
    return [message.content for message in session.thread() if message.role == "user"]


# ── In a process of its own ───────────────────────────────────────────────────────────────────────

CHILD = """
    import json, sys
    import msgspec
    from pathlib import Path
    from actors import NewMessage, Stop
    from actors.errors import CountermandError
    from supervisor import Supervisor
    from tests.test_store_faults import config

    def tell(said):
        print(msgspec.json.encode(said).decode(), flush=True)

    with Supervisor.start(config(Path(sys.argv[1]))) as supervisor:
        session = supervisor.session("s")
        tell("ready")
        for line in sys.stdin:
            kind, fields = json.loads(line)
            if kind == "health":
                tell(supervisor.store_health())
                continue
            try:
                tell(session.ask({"NewMessage": NewMessage, "Stop": Stop}[kind](**fields), timeout=30))
            except CountermandError as error:
                tell({"refused": error.code})
"""


class Child:
    """A supervisor in its own process."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._read() == "ready"

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child is there"
        return json.loads(line)

    def ask(self, kind: str, **fields: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, fields]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self, **fields: Any) -> Any:
        return self.ask("Stop", source="user.test", reason="enough", **fields)

    def stop_on_record(self, **fields: Any) -> Any:
        """Stop, and again until the answer says that the journal has it: a slow disk may make that late."""
        answer = self.stop(**fields)
        while not answer["journalled"] and not answer["durable"]:
            answer = self.stop(**fields)
        return answer

    def journalled(self) -> bool:
        health = self.ask("health")["journal"]
        return bool(health["kept"]) and not health["unwritten"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def child(state_dir: Path) -> Iterator[Child]:
    made = Child(state_dir)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


LOCK = """
    import sqlite3, sys, time
    other = sqlite3.connect(sys.argv[1], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
    sys.stdin.readline()
"""


@contextmanager
def locked_by_another(path: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the file's lock: for so long, and until it gets a line or this is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOCK), str(path), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


# ── Locked by another process ─────────────────────────────────────────────────────────────────────


def test_locked_for_8_s_by_another_process_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with Supervisor.start(config(tmp_path)) as supervisor:
        session, other = supervisor.session("s"), supervisor.session("other")
        run = session.ask(NewMessage(content="hold"), timeout=WAIT_S)
        untouched = other.ask(NewMessage(content="hold"), timeout=WAIT_S)
        taken: list[Any] = []
        later = threading.Thread(target=lambda: taken.append(session.ask(NewMessage(content="say"), timeout=WAIT_S)))
        asked = stop()
        with locked_by_another(tmp_path / STORE, 8.0) as locker:
            answer = session.ask(asked, timeout=WAIT_S)
            assert (answer.outcome, answer.run_id, answer.durable) == ("stopped", run.run_id, False)
            assert locker.poll() is None, "it was answered behind the lock"
            later.start()
            until(lambda: supervisor.store_health().state == "slow", "health says that it waits")
            until(lambda: supervisor.store_health().journal.kept == 1, "it is in the journal")
            assert not taken, "what is not durable is not answered"
            assert locker.stdin is not None
            locker.stdin.write("go\n")
            locker.stdin.flush()
            locker.wait(PATIENCE_S)
            later.join(WAIT_S)
        assert taken, "the message was taken"
        session.receipt(run.run_id, timeout=WAIT_S)
        info = session.run(run.run_id or "")
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "user.test")
        until(lambda: told_durable(session) == [asked.id], "its sender is told")
        until(lambda: not supervisor.store_health().journal.kept, "the journal lets it go")
        assert session.ask(asked, timeout=WAIT_S).durable, "again: its answer is on record"
        assert other.run(untouched.run_id or "").status is RunStatus.IN_PROGRESS, "a lock ends nobody's run"
        session.receipt(taken[0].run_id, timeout=WAIT_S)
        assert inputs(session) == ["hold", "say"]
        until(lambda: supervisor.store_health().state == "ok")


def test_a_lock_that_is_held_longer_is_waited_for_with_a_bound_and_said(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / STORE, clock=StandingClock(), busy_timeout_s=0.2)
    try:
        owner = Owner()
        with locked_by_another(tmp_path / STORE, PATIENCE_S):
            store.commit(batch(1), owner.ref)
            assert isinstance(owner.next(), CommitFailed)
            assert store.health().state == "failing"
            assert "locked" in (store.health().error or "")
            assert not store.health().writable
        # Nobody writes: it finds out by itself that the lock is gone.
        until(lambda: store.health().state == "ok", "it heals by itself")
        assert store.health().error, "what it was is still said"
    finally:
        assert store.close(PATIENCE_S)


def test_l12_a_stop_that_only_the_journal_has_is_not_undone_by_kill_9(tmp_path: Path) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        with locked_by_another(tmp_path / STORE, 2 * PATIENCE_S):
            answer = daemon.stop(id="the-stop")
            assert (answer["outcome"], answer["run_id"], answer["durable"]) == ("stopped", run["run_id"], False)
            until(daemon.journalled, "it is in the journal")
            daemon.kill()
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        session.receipt(run["run_id"], timeout=WAIT_S)
        until(lambda: told_durable(session) == ["the-stop"], "its sender is told")
        # Nothing was on record of it but its start: without the Stop it is tried again.
        (only,) = session.runs()
        assert only.run_id == run["run_id"]
        assert only.provenance is not None
        assert (only.status, only.provenance.source) == (RunStatus.CANCELLED, "user.test")
        again = session.ask(stop(id="the-stop"), timeout=WAIT_S)
        assert (again.outcome, again.run_id, again.receipt_id) == ("stopped", run["run_id"], answer["receipt_id"])
        assert again.durable
        until(lambda: not supervisor.store_health().journal.kept, "the journal lets it go")
    left = StopJournal(tmp_path / f"{STORE}-stops")
    try:
        assert left.sessions() == []
    finally:
        assert left.close(PATIENCE_S)


@pytest.mark.parametrize("store", ["locked", "fails"])
def test_l12_a_stop_that_is_said_to_be_journalled_survives_kill_9_right_after_its_answer(
    tmp_path: Path, store: str
) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        with locked_by_another(tmp_path / STORE, 2 * PATIENCE_S) if store == "locked" else nullcontext():
            if store == "fails":
                limit = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1_024, limit[1]))
            # No look at the journal in between: the answer is all that its sender has.
            answer = daemon.stop_on_record(id="the-stop")
            daemon.kill()
    assert (answer["run_id"], answer["durable"], answer["journalled"]) == (run["run_id"], False, True)
    left = StopJournal(tmp_path / f"{STORE}-stops")
    try:
        assert [kept.stop.id for kept in left.of("s")] == ["the-stop"]
    finally:
        assert left.close(PATIENCE_S)
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        session.receipt(run["run_id"], timeout=WAIT_S)
        (only,) = session.runs()
        assert only.provenance is not None
        assert (only.status, only.provenance.source) == (RunStatus.CANCELLED, "user.test")


def test_a_stop_that_neither_the_store_nor_the_journal_can_write_is_answered_all_the_same_and_says_so(
    tmp_path: Path,
) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        limit = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (0, limit[1]))
        answer = daemon.stop(id="the-stop")
        assert (answer["outcome"], answer["run_id"]) == ("stopped", run["run_id"])
        assert (answer["durable"], answer["journalled"]) == (False, False)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, limit)
        until(lambda: daemon.stop(id="the-stop")["durable"], "the store takes it")


def test_l12_a_stop_of_the_journal_is_decided_by_the_next_start_though_nothing_else_is_left(tmp_path: Path) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="say")
        reader = sqlite3.connect(tmp_path / STORE)
        settled = "SELECT settled FROM runs WHERE run_id = ?"
        until(lambda: reader.execute(settled, (run["run_id"],)).fetchone() == (1,))
        reader.close()
        with locked_by_another(tmp_path / STORE, 2 * PATIENCE_S):
            answer = daemon.stop(id="the-stop")
            assert (answer["outcome"], answer["durable"]) == ("nothing_running", False)
            until(daemon.journalled, "it is in the journal")
            daemon.kill()
    with Supervisor.start(config(tmp_path)) as supervisor:
        # Nobody asks the session for anything.
        until(lambda: not supervisor.store_health().journal.kept, "the journal lets it go")
        assert told_durable(supervisor.session("s")) == ["the-stop"]


def test_l12_without_the_stop_the_same_run_is_tried_again(tmp_path: Path) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        daemon.kill()
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        until(lambda: len(session.runs()) == 2, "it is tried again")
        assert [info.retry_of for info in session.runs()] == [None, run["run_id"]]


def test_l10_the_answer_in_the_journal_stands_after_a_kill(tmp_path: Path) -> None:
    told = {}
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        waiting = daemon.ask("NewMessage", content="say", policy="enqueue", origin="bot")
        with locked_by_another(tmp_path / STORE, 2 * PATIENCE_S):
            # The second is aimed at what the first has withdrawn, the third at what it has stopped.
            for asked in (stop(), stop(run_id=waiting["run_id"]), stop(run_id=run["run_id"])):
                fields = {"id": asked.id} if asked.run_id is None else {"id": asked.id, "run_id": asked.run_id}
                told[asked] = answer = daemon.stop_on_record(**fields)
                assert (answer["durable"], answer["journalled"]) == (False, True)
            daemon.kill()
    assert [answer["outcome"] for answer in told.values()][:2] == ["stopped", "already_over"]
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        for asked, answer in told.items():
            again = session.ask(asked, timeout=WAIT_S)
            stands = again.outcome, again.run_id, again.receipt_id
            assert stands == (answer["outcome"], answer["run_id"], answer["receipt_id"])
            assert session.receipt(again.receipt_id, timeout=WAIT_S).complete
        info = session.run(run["run_id"])
        assert info.provenance is not None
        assert info.provenance.source == "user.test"
        assert len(session.runs()) == 2, "nothing is tried again that a person has stopped"


def test_l12_a_stop_that_was_left_in_the_journal_ends_no_run_that_began_behind_it(tmp_path: Path) -> None:
    with child(tmp_path) as daemon:
        run = daemon.ask("NewMessage", content="hold")
        daemon.kill()
    left = StopJournal(tmp_path / f"{STORE}-stops")
    assert left.keep(KeptStop("s", stop(id="the-stop"), StandingClock().wall()))
    assert left.synced(WAIT_S)
    assert left.close(PATIENCE_S)
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        until(lambda: len(session.runs()) == 2, "it is tried again")
        before, again = session.runs()
        assert before.provenance is not None
        assert before.provenance.source == "supervisor.recovery"
        assert again.retry_of == run["run_id"]
        assert told_durable(session) == ["the-stop"], "it is decided all the same, and finds nothing"


# ── A disk that is full ───────────────────────────────────────────────────────────────────────────


def test_a_full_disk_refuses_messages_takes_stops_and_heals_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 * 1024 * 1024) as disk, Supervisor.start(config(disk.path)) as supervisor:
        session = supervisor.session("s")
        accepted = [accept(session, f"say {number}") for number in range(3)]
        session.receipt(accepted[-1].run_id, timeout=WAIT_S)
        disk.fill()
        sent, refused, kept = ["say 0", "say 1", "say 2"], [], None
        health = supervisor.store_health()
        for number in range(3, 2_000):
            content = f"say {number} " + "x" * 20_000
            message = NewMessage(content=content, policy="enqueue")
            try:
                session.ask(message, timeout=WAIT_S)
                sent.append(content)
            except StoreUnavailable:
                refused.append(message)
                asked = stop(waiting="keep")
                durable = session.ask(asked, timeout=WAIT_S).durable
                health = supervisor.store_health()
                # Not for the slowness of a machine: the disk takes nothing more.
                if not durable and health.state == "failing":
                    kept = asked
                    break
        assert kept is not None, "the disk was full, and nothing was refused"
        assert not health.writable
        assert "full" in (health.error or "")
        assert supervisor._store.journal.synced(WAIT_S), "the journal has its place"
        assert supervisor.store_health().journal.error is None
        with pytest.raises(StoreUnavailable):
            session.ask(NewMessage(content="say no"), timeout=WAIT_S)
        disk.free()
        until(lambda: supervisor.store_health().state == "ok", "it heals by itself")
        last = accept(session, "say last", policy="enqueue")
        session.receipt(last.run_id, timeout=WAIT_S)
        again = session.ask(refused[-1], timeout=WAIT_S)
        session.receipt(again.run_id, timeout=WAIT_S)
        assert inputs(session) == [*sent, "say last", refused[-1].content], "each accepted one, once, in order"
        assert session.ask(kept, timeout=WAIT_S).durable
        assert kept.id in told_durable(session)


# ── Writes that fail ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", ["heals", "killed"])
def test_a_disk_whose_writes_fail_hides_no_stop(tmp_path: Path, ending: str) -> None:
    with child(tmp_path) as daemon:
        for number in range(4):
            assert "run_id" in daemon.ask("NewMessage", content=f"say {number}", policy="enqueue")
        run = daemon.ask("NewMessage", content="hold")
        # All that the earlier runs write is on record: the first write that fails is the one of the Stop.
        reader = sqlite3.connect(tmp_path / STORE)
        until(lambda: reader.execute("SELECT run_id FROM runs WHERE NOT settled").fetchall() == [(run["run_id"],)])
        reader.close()
        limit = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        # Less than a page of the store can be written, wherever its log begins; one record of the journal can.
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1_024, limit[1]))
        answer = daemon.stop(id="the-stop")
        assert (answer["run_id"], answer["durable"]) == (run["run_id"], False)
        assert daemon.ask("NewMessage", content="say no") == {"refused": "store_unavailable"}
        health = daemon.ask("health")
        assert health["state"] == "failing", health
        assert health["error"]
        until(daemon.journalled, "it is in the journal")
        if ending == "heals":
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, limit)
            until(lambda: daemon.stop(id="the-stop")["durable"], "the store takes it")
            until(lambda: daemon.ask("health")["state"] == "ok", "it heals by itself")
        daemon.kill()
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        session.receipt(run["run_id"], timeout=WAIT_S)
        until(lambda: told_durable(session) == ["the-stop"], "its sender is told, once")
        info = session.run(run["run_id"])
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.CANCELLED, "user.test")
        assert [content.split()[:2] for content in inputs(session)] == [
            *(["say", str(number)] for number in range(4)),
            ["hold"],
        ]
        assert all(info.retry_of is None for info in session.runs())


def test_a_file_that_was_taken_away_is_not_made_anew(tmp_path: Path) -> None:
    path, aside = tmp_path / STORE, tmp_path / "aside"
    store = SqliteStore(path, clock=StandingClock())
    try:
        owner = Owner()
        write(store, batch(1))
        aside.mkdir()
        for file in tmp_path.glob(f"{STORE}*"):
            if not file.name.endswith("-stops"):
                os.link(file, aside / file.name)
                file.unlink()
        broken = store._writer.connection
        assert broken is not None
        broken.close()
        store.commit(batch(2), owner.ref)
        assert isinstance(owner.next(), CommitFailed)
        assert not path.exists(), "an empty store would say that nothing ever was"
        assert store.health().state == "failing"
        path.touch()
        store.commit(batch(2), owner.ref)
        failed = owner.next()
        assert isinstance(failed, CommitFailed)
        assert "empty" in failed.error
        for file in aside.iterdir():
            shutil.move(file, tmp_path / file.name)
        until(lambda: store.health().state == "ok", "it heals by itself")
        write(store, batch(2))
        assert [event.seq for event in store.reader.events("s")] == [1, 2]
    finally:
        assert store.close(PATIENCE_S)


# ── A page that is damaged ────────────────────────────────────────────────────────────────────────

PAGE = 4096


def damage(path: Path, mark: bytes, but_not: bytes) -> dict[int, bytes]:
    """Overwrite every page that has the one mark and not the other with garbage; returns what was there."""
    data = path.read_bytes()
    was = {
        place: data[place : place + PAGE]
        for place in range(PAGE, len(data), PAGE)
        if mark in data[place : place + PAGE] and but_not not in data[place : place + PAGE]
    }
    assert was, "there is something to damage"
    put(path, dict.fromkeys(was, b"\xee" * PAGE))
    return was


def put(path: Path, pages: dict[int, bytes]) -> None:
    with path.open("r+b") as file:
        for place, page in pages.items():
            file.seek(place)
            file.write(page)


def damaged_store(path: Path, **options: Any) -> SqliteStore:
    """A store of the sessions a, m and z, the pages of m damaged."""
    store = SqliteStore(path, clock=StandingClock())
    for session, words in (("a", "good"), ("m", "EVIL"), ("z", "good")):
        # Every other seq is left free, for a row that has to go into the middle of the damage.
        events = tuple(text(2 * seq, f"{words * 20} {seq}", session) for seq in range(1, 301))
        write(store, batch(1, session=session, events=events))
    assert store.close(PATIENCE_S)
    damage(path, b"EVIL", b"good")
    return SqliteStore(path, clock=StandingClock(), **options)


def test_l13_a_damaged_page_costs_the_session_whose_it_is_and_no_other(tmp_path: Path) -> None:
    store = damaged_store(tmp_path / STORE)
    try:
        owners = {session: Owner() for session in ("a", "m", "z")}
        leave = hold_group(store)
        for session, owner in owners.items():
            store.commit(batch(1, session=session, incarnation="i2", seq=301), owner.ref)
        leave.set()
        assert isinstance(owners["m"].next(), CommitFailed)
        assert owners["a"].next() == owners["z"].next() == Committed(1)
        assert store.reader.last_seq("z") == 600
        health = store.health()
        assert (health.state, health.writable) == ("damaged", True)
        assert health.integrity not in (None, "ok")
        store.load("m", owners["m"].ref)
        assert isinstance(owners["m"].next(), LoadFailed)
        assert len(load(store, "a").thread.messages()) == 1
    finally:
        assert store.close(PATIENCE_S)


def test_a_store_that_failed_takes_writes_again_as_soon_as_a_session_beside_the_damage_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It does not find out by a write of its own.
    monkeypatch.setattr("supervisor.store.pen.ATTEMPT_EVERY_S", 3600.0)
    store = damaged_store(tmp_path / STORE, busy_timeout_s=0.2)
    other = sqlite3.connect(tmp_path / STORE, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        owners = {session: Owner() for session in ("a", "m")}
        store.commit(batch(1, session="a", incarnation="i2", seq=301), owners["a"].ref)
        assert isinstance(owners["a"].next(), CommitFailed)
        assert store.health().state == "failing"
        other.execute("ROLLBACK")
        leave = hold_group(store)
        for session, owner in owners.items():
            store.commit(batch(1, session=session, incarnation="i3", seq=301), owner.ref)
        leave.set()
        assert owners["a"].next() == Committed(1)
        assert isinstance(owners["m"].next(), CommitFailed)
        assert store.health().state == "damaged"
    finally:
        other.close()
        assert store.close(PATIENCE_S)


def test_a_damaged_session_takes_stops_and_comes_back_when_the_page_does(tmp_path: Path) -> None:
    with Supervisor.start(config(tmp_path)) as supervisor:
        for name, content in (("bad", "say " + "EVIL" * 20_000), ("good", "say")):
            session = supervisor.session(name)
            session.receipt(accept(session, content).run_id, timeout=WAIT_S)
    was = damage(tmp_path / STORE, b"EVIL" * 900, b"good")
    with Supervisor.start(config(tmp_path)) as supervisor:
        bad, good = supervisor.session("bad"), supervisor.session("good")
        with pytest.raises(StoreUnavailable):
            bad.ask(NewMessage(content="say more"), timeout=WAIT_S)
        assert accept(good, "say more").run_id
        asked = stop()
        answer = bad.ask(asked, timeout=WAIT_S)
        assert (answer.outcome, answer.durable) == ("unknown", False), "what runs in it cannot be read"
        with pytest.raises(ReceiptPending):
            bad.receipt(answer.receipt_id)
        assert supervisor._store.journal.synced(WAIT_S)
        assert supervisor.store_health().journal.kept == 1
        until(lambda: supervisor.store_health().state == "damaged", "health says so")
        assert bad.status().state == "store_failed"
        put(tmp_path / STORE, was)
        accept(bad, "say again")
        again = bad.ask(asked, timeout=WAIT_S)
        assert (again.outcome, again.durable) == ("nothing_running", True), "it is known now"
        assert bad.receipt(answer.receipt_id, timeout=WAIT_S).complete
        until(lambda: told_durable(bad) == [asked.id], "the Stop was not forgotten")
        assert [content[:8] for content in inputs(bad)] == ["say EVIL", "say agai"]
    check = sqlite3.connect(tmp_path / STORE)
    try:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        check.close()


# ── Rows that cannot be stored, or not be read ────────────────────────────────────────────────────


def test_l13_what_cannot_be_stored_is_put_aside_and_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / STORE, clock=StandingClock())
    try:
        owner = Owner()
        write(store, batch(1))
        store.commit(batch(2, events=(text(2, "half \ud800"),)), owner.ref)
        store.commit(batch(3), owner.ref)
        unfit, behind = owner.next(), owner.next()
        assert (unfit.number, unfit.unfit, behind.number, behind.unfit) == (2, True, 3, False)
        (aside,) = store.reader.unfit()
        assert (aside.session, aside.incarnation, aside.number) == ("s", "i1", 2)
        assert "surrogates" in aside.error
        assert "half" in aside.shown
        (named,) = store.health().left_out
        assert named.startswith("session s: batch 2 of i1: ")
        assert store.health().state == "ok", "the store is well"
    finally:
        assert store.close(PATIENCE_S)


def test_l13_rows_that_cannot_be_read_at_a_restart_are_named_and_their_runs_ended(tmp_path: Path) -> None:
    with child(tmp_path) as daemon:
        first = daemon.ask("NewMessage", content="say one")["run_id"]
        run = daemon.ask("NewMessage", content="hold", policy="enqueue")["run_id"]
        reader = sqlite3.connect(tmp_path / STORE)
        until(lambda: reader.execute("SELECT settled FROM runs WHERE run_id = ?", (first,)).fetchone() == (1,))
        # The second has begun, so that the third message is no input of it: that would let it end.
        begun = "SELECT 1 FROM events WHERE run_id = ? AND kind = 'run.started'"
        until(lambda: reader.execute(begun, (run,)).fetchone() is not None, "the second run")
        daemon.ask("NewMessage", content="say two", policy="enqueue")
        reader.close()
        daemon.kill()
    breaks = sqlite3.connect(tmp_path / STORE)
    breaks.execute("UPDATE runs SET doc = x'ff' WHERE run_id = ?", (run,))
    breaks.execute("UPDATE sessions SET doc = x'7b'")
    breaks.execute("UPDATE events SET data = x'7b' WHERE kind = 'text'")
    before = breaks.execute("SELECT MAX(seq), MAX(generation) FROM events").fetchone()
    breaks.commit()
    breaks.close()
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")

        def ended() -> bool:
            # Until the session has written its rows anew, a reader meets the damaged ones.
            with contextlib.suppress(StoreUnavailable):
                status = session.status()
                return status.state == "idle" and not status.waiting and session.run(run).provenance is not None
            return False

        until(ended, "all has ended")
        # What the session has decided is read when it is durable.
        assert session.receipt(run, timeout=WAIT_S).complete
        info = session.run(run)
        assert info.provenance is not None
        assert (info.status, info.provenance.source) == (RunStatus.FAILED, "supervisor.recovery")
        assert [one.retry_of for one in session.runs()] == [None] * len(session.runs())
        last = accept(session, "say three", policy="enqueue")
        assert session.status().last_seq > before[0]
        assert (last.generation or before[1] + 1) > before[1]
        session.receipt(last.run_id, timeout=WAIT_S)
        assert inputs(session) == ["say one", "hold", "say two", "say three"]
        named = " ".join(supervisor.store_health().left_out)
        assert "Event" in named
        assert f"RunInfo {run}" in named
        assert "SessionRow s" in named
        assert len([one for one in supervisor.dead_letters() if one.kind == "row"]) == 3
        kinds = [event.kind for event in session._store.events("s", 0, 1_000)]
        assert kinds.count("unreadable") == 1, "it has its place in the log"


# ── The file is removed under it ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["removed", "replaced", "wal"])
def test_l12_nothing_is_durable_in_a_file_that_was_removed(tmp_path: Path, how: str) -> None:
    with Supervisor.start(config(tmp_path)) as supervisor:
        session = supervisor.session("s")
        session.ask(NewMessage(content="say one"), timeout=WAIT_S)
        until(lambda: session.status().state == "idle", "the run")
        for file in [tmp_path / f"{STORE}-wal"] if how == "wal" else sorted(tmp_path.glob(f"{STORE}*")):
            file.unlink()
        if how == "replaced":
            (tmp_path / "other").mkdir()
            SqliteStore(tmp_path / "other" / STORE, clock=StandingClock()).close(WAIT_S)
            os.replace(tmp_path / "other" / STORE, tmp_path / STORE)
        with pytest.raises(StoreUnavailable):
            session.ask(NewMessage(content="say two"), timeout=WAIT_S)
        health = supervisor.store_health()
        assert health.error is not None


# ── A disk that is full at the start ──────────────────────────────────────────────────────────────


PAGE = 4096


@pytest.mark.parametrize("pages", [0, 1, 2, 100, 515, 516, 520, 530, 540, 546, 548, 550, 552, 556])
def test_a_start_on_a_full_disk_is_refused_with_the_remedy_and_the_next_one_with_room_succeeds(
    tmp_path: Path, pages: int
) -> None:
    # Wherever the room ends: at the directory, the lock, the journal, the store, the ledgers.
    with small_disk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        state = disk.path / "state"
        disk.fill(pages * PAGE)
        refused: StoreUnavailable | None = None
        try:
            Supervisor.start(config(state)).close()
        except StoreUnavailable as error:
            refused = error
        if refused is None:
            assert pages > 540, "it had room for what it needs"
        else:
            assert refused.remedy.startswith("free space")
            assert any(part in refused.got for part in ("space left", "full", "disk I/O")), refused.got
        disk.free()
        with Supervisor.start(config(state)) as supervisor:
            session = supervisor.session("s")
            taken = accept(session, "say something")
            session.receipt(taken.run_id, timeout=WAIT_S)


def test_a_later_start_on_a_disk_that_is_full_is_refused_or_serves_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        state = disk.path / "state"
        with Supervisor.start(config(state)) as supervisor:
            session = supervisor.session("s")
            session.receipt(accept(session, "say something").run_id, timeout=WAIT_S)
            before = supervisor.store.thread("s")
        disk.fill()
        with suppress(StoreUnavailable), Supervisor.start(config(state)) as supervisor:
            assert supervisor.store.thread("s") == before
        disk.free()
        with Supervisor.start(config(state)) as supervisor:
            assert supervisor.store.thread("s") == before


@pytest.mark.parametrize("pages", [0, 1, 515, 530])
def test_serve_and_chat_say_on_a_full_disk_what_they_need_and_fail(tmp_path: Path, pages: int) -> None:
    with small_disk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        disk.fill(pages * PAGE)
        for command in ("serve", "chat"):
            argv = [sys.executable, "-m", "supervisor.console", "--state-dir", str(disk.path / "state"), command]
            done = subprocess.run(
                argv, input="echo hi\n", capture_output=True, text=True, check=False, timeout=WAIT_S * 2, cwd=ROOT
            )
            assert done.returncode == 1, done.stderr
            assert "free space" in done.stderr
            assert "Traceback" not in done.stderr
            assert "output could not be written" not in done.stderr
