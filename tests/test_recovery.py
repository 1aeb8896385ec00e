"""`kill -9` at any moment, then a start: what was given is there, what was accepted is done once, nothing is left."""

from __future__ import annotations

import os
import random
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import NewMessage, ShuttingDown, StateDirBusy, Stop
from actors.model import Policy, Waiting
from actors.requests import Accepted, Stopped
from actors.run_status import RunStatus
from supervisor import SessionHandle, Supervisor
from supervisor.containment.guard import procfs
from supervisor.containment.processes import adoption
from supervisor.store.reader import SqliteReader
from tests.crash_kit import WAIT_S, Child, Scripts, Told, alive, config, judge, nobody_left, rows_of, settle, until
from tests.kit import ask_stop

INSTANTS = int(os.environ.get("COUNTERMAND_CRASH_INSTANTS", "100"))
SEED = os.environ.get("COUNTERMAND_CRASH_SEED", "1")
CHUNKS = 4
LIFE_MAX_S = 0.5
LIFE_LINES = 100
"""So much is told at least in a life of that length, which is longer where a machine is busy: the load has to begin."""
POINT_S = 20.0

STAGES = ("commit", "committed", "publish", "published")
KINDS = (
    "message",
    "text",
    "run.started",
    "run.status",
    "run.ended",
    "tool.requested",
    "tool.started",
    "tool.ended",
    "process.started",
    "process.ended",
    "session.fenced",
    "session.message_waiting",
    "session.resumed",
)
STARTS = (
    "answered:Accepted",
    "answered:Stopped",
    "answered:Resumed",
    "agent",
    "agent-started",
    "call",
    "call-started",
    "spawn",
    "ledger",
    "sent",
    "running",
    "kill",
    "killing",
    "forget",
    "forgotten",
)
POINTS = [f"{stage}:{kind}" for kind in KINDS for stage in STAGES] + list(STARTS)


def live_and_die(folder: Path, mark: str, told: Told, seed: str, *, die_at: str | None, life_s: float) -> None:
    """One life of a child: it dies at its point, or else after `life_s` seconds of load."""
    child = Child(folder, mark, seed, told=told, die_at=die_at)
    lines = int(LIFE_LINES * min(life_s / LIFE_MAX_S, 1.0))

    def dying() -> bool:
        return any(line["told"] == "dying" for line in child.lines)

    try:
        child.until_ready()
        child.until(dying, life_s)
        child.until(lambda: dying() or len(child.lines) >= lines, WAIT_S)
        child.kill()
    finally:
        child.dispose()
    for line in child.lines:
        told.take(line)


def recover_and_judge(folder: Path, mark: str, told: Told) -> Counter[str]:
    """The last start: everything comes to rest by itself, and everything that has to hold does."""
    scripts = Scripts(folder, mark)
    # What waits for this file ends by itself now, so no stop is needed for the sessions to come to rest.
    scripts.release.touch()
    with Supervisor.start(config(folder / "state")) as supervisor:
        reader = SqliteReader(folder / "state" / "store.sqlite3")
        try:
            settle(supervisor)
            assert not alive(mark), "what has a complete receipt is dead"
            return judge(reader, told, scripts)
        finally:
            reader.close()


@pytest.mark.timeout(max(120, 2 * INSTANTS))
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_l12_nothing_given_is_lost_and_nothing_is_done_twice_when_killed_at_any_instant(
    chunk: int, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    told = Told()
    rounds = -(-INSTANTS // CHUNKS)
    chance = random.Random(f"{SEED} {chunk}")
    with nobody_left(mark):
        for number in range(rounds):
            life_s = chance.uniform(0.0, LIFE_MAX_S)
            live_and_die(tmp_path, mark, told, f"{SEED}-{chunk}-{number}", die_at=None, life_s=life_s)
        seen = recover_and_judge(tmp_path, mark, told)
    for what in ("run completed", "run cancelled", "supervisor.recovery", "user.test", "call interrupted"):
        assert seen[what], f"the load never saw: {what}; it saw {seen}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_l12_nothing_given_is_lost_when_killed_between_two_steps_of_one_decision(chunk: int, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    told = Told()
    mine = POINTS[chunk::CHUNKS]
    with nobody_left(mark):
        for number, point in enumerate(mine):
            live_and_die(tmp_path, mark, told, f"{SEED}-p{chunk}-{number}", die_at=point, life_s=POINT_S)
            assert told.dying[-1:] == [point], f"the load does not reach {point}"
        recover_and_judge(tmp_path, mark, told)


# ── One kill at a chosen moment ───────────────────────────────────────────────────────────────────


@pytest.fixture
def mark() -> Iterator[str]:
    """What everything that a test starts carries; it is gone when the test is over."""
    made = uuid.uuid4().hex
    with nobody_left(made):
        yield made


def tree(scripts: Scripts, word: str) -> NewMessage:
    """A message that runs a tree until the file `release` is there."""
    return NewMessage(content=f"sh:{scripts.tree(word)}", policy=Policy.INTERRUPT)


def with_tree(tmp_path: Path, mark: str, *more: NewMessage | Stop) -> tuple[Child, Told, NewMessage]:
    """A child whose one run has a whole tree alive, and that was asked `more` after it."""
    scripts = Scripts(tmp_path, mark)
    first = tree(scripts, "first")
    told = Told()
    child = Child(tmp_path, mark, "quiet", told=told, only=[first, *more])
    try:
        child.until(lambda: len(child.answers()) == 1 + len(more), WAIT_S)
        until(lambda: scripts.runs_of("first") or any(isinstance(request, Stop) for request in more), "the tree")
    except BaseException:
        child.dispose()
        raise
    return child, told, first


def run_of(child: Child) -> str:
    """The run of the child's first message."""
    accepted = child.answers()[0]
    assert isinstance(accepted, Accepted)
    assert accepted.run_id is not None
    return accepted.run_id


def test_a_second_start_is_refused_and_names_the_process_that_holds_the_directory(tmp_path: Path, mark: str) -> None:
    child, _, _ = with_tree(tmp_path, mark)
    try:
        with pytest.raises(StateDirBusy) as refusal:
            Supervisor.start(config(tmp_path / "state"))
    finally:
        child.dispose()
    assert refusal.value.pid == child.process.pid
    assert str(child.process.pid) in str(refusal.value)


def test_after_a_kill_the_next_start_serves_at_once_and_its_calls_wait_for_the_wardens_of_the_last(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody but this test wakes the warden, or kills it for being stopped: neither this daemon, nor the old zygote.
    monkeypatch.setattr(adoption, "STOPPED_MAX_S", WAIT_S)
    child, _, _ = with_tree(tmp_path, mark)
    scripts = Scripts(tmp_path, mark)
    shells = [pid for pid, command in alive(mark).items() if "setsid" in command and parent_is_a_warden(pid)]
    # What it has set going may look like it for a moment, until it is another program; the shell was first.
    seen = [stat for stat in map(procfs.stat, shells) if stat is not None]
    warden = min(seen, key=lambda stat: stat.start_ticks)
    # A stopped warden neither ends its tree nor lets go of anything that it may have inherited.
    zygote = procfs.stat(warden.ppid)
    assert zygote is not None
    os.kill(zygote.ppid, signal.SIGSTOP)
    os.kill(warden.ppid, signal.SIGSTOP)
    try:
        child.kill()
        with Supervisor.start(config(tmp_path / "state")) as supervisor:
            session = supervisor.session("s0")
            again = NewMessage(content=f"sh:{scripts.quick('second')}", policy=Policy.INTERRUPT)
            accepted = session.ask(again, timeout=WAIT_S)
            assert accepted.generation is not None, "it runs at once"
            until(lambda: has_waiting_call(session, accepted.run_id), "the call of the new run waits")
            assert session.status().barrier, "the barrier holds it"
            assert not scripts.runs_of("second")
            os.kill(warden.ppid, signal.SIGCONT)
            os.kill(zygote.ppid, signal.SIGCONT)
            receipt = session.receipt(accepted.run_id, timeout=WAIT_S)
            assert receipt.complete
            old = session.receipt(run_of(child), timeout=WAIT_S)
            assert old.complete, "the warden's last word came before the barrier opened"
            assert not any(event.kind == "session.barrier_forced" for event in session.subscribe(timeout=0.0))
            assert scripts.runs_of("second") == 1
            assert not alive(mark)
    finally:
        child.dispose()
        for stopped in (warden.ppid, zygote.ppid):
            signal_if_there(stopped, signal.SIGCONT)


def parent_is_a_warden(pid: int) -> bool:
    seen = procfs.stat(pid)
    parent = procfs.stat(seen.ppid) if seen is not None else None
    return parent is not None and parent.name == "cm-warden"


def signal_if_there(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def has_waiting_call(session: SessionHandle, run_id: str | None) -> bool:
    return any(event.kind == "tool.requested" and event.run_id == run_id for event in session.subscribe(timeout=0.0))


def test_a_half_run_is_closed_by_recovery_and_its_receipt_counts_what_the_warden_reaped(
    tmp_path: Path, mark: str
) -> None:
    child, _, _ = with_tree(tmp_path, mark)
    try:
        until(lambda: sum(command == "sleep 300" for command in alive(mark).values()) == 4, "all that sleep")
    finally:
        child.kill()
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        receipt = session.receipt(run_of(child), timeout=WAIT_S)
        run = session.run(run_of(child))
        (result,) = [message for message in session.thread() if message.role == "tool"]
    assert run.status is RunStatus.FAILED
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.recovery"
    assert receipt.complete
    (process,) = [row for row in rows_of(receipt.rows) if row.kind == "process" and row.reaped]
    # The shell, its subshell, and four that sleep; the shell may have been in a short sleep too.
    assert receipt.reaped == process.reaped >= 6
    assert result.outcome == "interrupted"
    assert not alive(mark)


def test_l5_a_run_that_a_stop_had_closed_keeps_that_stop_as_its_cause_over_a_kill(tmp_path: Path, mark: str) -> None:
    stop = Stop(source="user.console", reason="wrong target", requested_by="uid 7")
    child, told, _ = with_tree(tmp_path, mark, stop)
    child.kill()
    for line in child.lines:
        told.take(line)
    stopped = child.answers()[-1]
    assert isinstance(stopped, Stopped)
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        receipt = session.receipt(stopped.receipt_id, timeout=WAIT_S)
        run = session.run(run_of(child))
        again = ask_stop(session, stop)
    assert (again.outcome, again.run_id, again.receipt_id) == (stopped.outcome, stopped.run_id, stopped.receipt_id)
    assert again == stopped or not stopped.durable
    assert run.status is RunStatus.CANCELLED
    assert run.provenance is not None
    assert (run.provenance.source, run.provenance.reason) == ("user.console", "wrong target")
    assert receipt.provenance == run.provenance
    assert not alive(mark)


def test_l12_what_a_stop_parked_is_parked_after_a_kill_and_what_no_stop_parked_runs(tmp_path: Path, mark: str) -> None:
    waiting = NewMessage(content="text:2", policy=Policy.ENQUEUE)
    park = Stop(source="user.console", reason="later", waiting=Waiting.PARK)
    scripts = Scripts(tmp_path, mark)
    child, _, _ = with_tree(tmp_path, mark, waiting, park)
    child.kill()
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        settle(supervisor)
        status = session.status()
        assert (status.parked, status.waiting, status.run_id) == (True, 1, None)
        other = supervisor.session("s1")
        other.ask(tree(scripts, "other"), timeout=WAIT_S)
        pending = other.ask(NewMessage(content="text:1", policy=Policy.ENQUEUE), timeout=WAIT_S)
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        assert supervisor.session("s1").receipt(pending.run_id, timeout=WAIT_S).complete
        assert supervisor.session("s1").run(pending.run_id or "").status is RunStatus.COMPLETED
        status = supervisor.session("s0").status()
        assert (status.parked, status.waiting, status.run_id) == (True, 1, None)


# ── Leaving in peace ──────────────────────────────────────────────────────────────────────────────


def test_l11_a_drain_lets_a_run_finish_and_refuses_new_messages_meanwhile(tmp_path: Path, mark: str) -> None:
    scripts = Scripts(tmp_path, mark)
    supervisor = Supervisor.start(config(tmp_path / "state"))
    closed: list[bool] = []
    closing = threading.Thread(target=lambda: closed.append(supervisor.close(drain_s=WAIT_S)))
    try:
        session = supervisor.session("s0")
        accepted = session.ask(tree(scripts, "slow"), timeout=WAIT_S)
        pending = session.ask(NewMessage(content="text:1", policy=Policy.ENQUEUE), timeout=WAIT_S)
        until(lambda: scripts.runs_of("slow"), "the run is in its call")
        closing.start()
        until(lambda: refuses(session), "it refuses new messages")
        assert session.run(accepted.run_id or "").status is RunStatus.IN_PROGRESS, "the drain interrupts nobody"
        assert refuses(supervisor.session("unheard-of"))
    finally:
        scripts.release.touch()
        if closing.ident is None:
            supervisor.close()
        else:
            closing.join()
    assert closed == [True]
    assert not alive(mark)
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        run = session.run(accepted.run_id or "")
        assert (run.status, run.provenance) == (RunStatus.COMPLETED, None)
        session.receipt(pending.run_id, timeout=WAIT_S)
        assert session.run(pending.run_id or "").status is RunStatus.COMPLETED, "it waited for this start"


def refuses(session: SessionHandle) -> bool:
    try:
        session.ask(NewMessage(content="text:1", policy=Policy.ENQUEUE), timeout=WAIT_S)
    except ShuttingDown:
        return True
    return False


def test_l11_what_does_not_finish_in_the_drain_is_interrupted_with_the_shutdown_as_its_cause(
    tmp_path: Path, mark: str
) -> None:
    scripts = Scripts(tmp_path, mark)
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        accepted = session.ask(tree(scripts, "slow"), timeout=WAIT_S)
        pending = session.ask(NewMessage(content="text:1", policy=Policy.ENQUEUE), timeout=WAIT_S)
        until(lambda: scripts.runs_of("slow"), "the run is in its call")
        assert supervisor.close(drain_s=0.05), "everything came to rest"
    assert not alive(mark)
    with Supervisor.start(config(tmp_path / "state")) as supervisor:
        session = supervisor.session("s0")
        run = session.run(accepted.run_id or "")
        receipt = session.receipt(accepted.run_id)
        assert run.status is RunStatus.CANCELLED
        assert run.provenance is not None
        assert run.provenance.source == "supervisor.shutdown"
        assert receipt.complete
        session.receipt(pending.run_id, timeout=WAIT_S)
        assert session.run(pending.run_id or "").status is RunStatus.COMPLETED


def test_l11_a_stop_is_taken_during_the_drain(tmp_path: Path, mark: str) -> None:
    scripts = Scripts(tmp_path, mark)
    supervisor = Supervisor.start(config(tmp_path / "state"))
    closing = threading.Thread(target=lambda: supervisor.close(drain_s=WAIT_S))
    try:
        session = supervisor.session("s0")
        accepted = session.ask(tree(scripts, "slow"), timeout=WAIT_S)
        until(lambda: scripts.runs_of("slow"), "the run is in its call")
        closing.start()
        until(lambda: refuses(session), "it refuses new messages")
        stopped = session.ask(Stop(source="user.console", reason="not worth waiting for"), timeout=WAIT_S)
        assert (stopped.outcome, stopped.run_id) == ("stopped", accepted.run_id)
    finally:
        if closing.ident is None:
            supervisor.close()
        else:
            closing.join()
    reader = SqliteReader(tmp_path / "state" / "store.sqlite3")
    try:
        run = reader.run("s0", accepted.run_id or "")
    finally:
        reader.close()
    assert run is not None
    assert run.status is RunStatus.CANCELLED
    assert run.provenance is not None
    assert run.provenance.source == "user.console"
