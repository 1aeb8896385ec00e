"""What nobody inherited: found by marker, pid or parent, and signalled only while it is who it was."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.model import How
from supervisor.containment import orphans
from supervisor.containment.guard import procfs
from supervisor.containment.guard.ledger import MARKER
from supervisor.containment.orphans import OrphanTree
from tests.process_kit import NO_CGROUP, WAIT_S, Bench, bench, until
from tests.test_warden import SPAWNING, Daemon, daemon, leave, sent


def orphan(marker: str | None = "", pid: int | None = None, start_ticks: int | None = None) -> OrphanTree:
    return OrphanTree("p", "because", marker, pid, start_ticks, None)


def ticks(pid: int) -> int:
    seen = procfs.stat(pid)
    assert seen is not None
    return seen.start_ticks


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, layers=NO_CGROUP) as opened:
        yield opened


def lives(process: subprocess.Popen[bytes]) -> bool:
    seen = procfs.stat(process.pid)
    return seen is not None and seen.state not in "ZXTt"


def test_l3_a_recorded_pid_that_belongs_to_another_process_now_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    one = orphan(pid=sleeper.pid, start_ticks=ticks(sleeper.pid) - 1)
    orphans.end(one)
    assert (one.killed, one.refused, one.command_killed) == (set(), {}, False)
    assert lives(sleeper)


def test_l3_a_process_is_known_by_its_pid_and_the_tick_it_began_in(sleeper: subprocess.Popen[bytes]) -> None:
    one = orphan(pid=sleeper.pid, start_ticks=ticks(sleeper.pid))
    orphans.end(one)
    assert one.command_killed
    assert sleeper.wait(10) == -signal.SIGKILL


def test_l3_a_process_that_was_replaced_between_the_search_and_the_pidfd_is_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    one = orphan(marker="m", pid=sleeper.pid, start_ticks=ticks(sleeper.pid) - 1)
    stale: dict[tuple[int, int], int | None] = {
        (sleeper.pid, ticks(sleeper.pid) - 1): None,
        (sleeper.pid, ticks(sleeper.pid)): None,
    }
    orphans.stop_and_kill(one, stale, 0.0)
    # Below a parent that is not ours, though its pid and its tick are right.
    orphans.stop_and_kill(one, {(sleeper.pid, ticks(sleeper.pid)): 1}, 0.0)
    assert one.killed == set()
    assert lives(sleeper)


def test_l3_without_the_layer_no_process_is_looked_for(sleeper: subprocess.Popen[bytes]) -> None:
    one = orphan(marker=None, pid=sleeper.pid, start_ticks=ticks(sleeper.pid))
    orphans.end(one)
    assert lives(sleeper)
    assert one.note == "because; nothing proves that no other process of it is left"


def test_l3_the_marker_is_matched_whole() -> None:
    process = subprocess.Popen(["sleep", "1000"], env={MARKER: "p:1234"})
    try:
        until(lambda: f"{MARKER}=p:1234" in procfs.environment(process.pid), "it is executed")
        for marker in ("p:123", "", "p:12345"):
            orphans.end(orphan(marker))
            assert lives(process)
        one = orphan("p:1234")
        orphans.end(one)
        assert len(one.killed) == 1
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def kill_all_three(b: Bench, victim: Daemon, pid: int) -> None:
    """Kill a daemon, its zygote and a warden, so that none of them sees another's end."""
    zygote, warden = victim.zygote(), b.warden_of(pid)
    with b.stopped(zygote), b.stopped(warden):
        victim.kill()
        os.kill(warden, signal.SIGKILL)
        os.kill(zygote, signal.SIGKILL)


@pytest.mark.parametrize("asked", [True, False])
def test_l3_what_daemon_zygote_and_warden_left_is_killed_at_the_next_start(b: Bench, asked: bool) -> None:
    b.trees.close()
    with daemon(b) as victim:
        victim.spawn("setsid sleep 1000 & (env -i sleep 1000 &) ; env -i sleep 1000 & echo up; wait")
        pid = int(victim.line().split()[1])
        assert victim.line() == "ProcessOutput  up"
        until(lambda: len(procfs.children(pid)) == 2, "two in the background")
        kill_all_three(b, victim, pid)
        b.trees = b.new_trees()
        if asked:
            b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
            ended = b.owner.ended()
            assert ended.pid == pid
            assert ended.note.startswith("its warden left no last word; ")
            if "its cgroup was" in ended.note:
                assert ended.proven
            else:
                assert (ended.how, ended.proven) == (How.SIGKILL, False)
        until(lambda: not [one for one in b.alive() if (seen := procfs.stat(one)) and seen.state not in "ZX"], "dead")
        until(lambda: '"swept"' in b.ledger_text(), "what was found is written down")
        again = b.new_trees()
        try:
            again.adopt("p", b.owner)  # type: ignore[arg-type]
            told = b.owner.ended()
            assert "found by its marker or its pid and killed" in told.note
        finally:
            again.close()


def test_agenc_1413_after_a_restart_a_stored_pid_of_another_process_is_not_signalled(
    b: Bench, sleeper: subprocess.Popen[bytes]
) -> None:
    started = {"word": "started", "pid": sleeper.pid, "start_ticks": ticks(sleeper.pid) - 1, "at": 2.0, "name": "sh"}
    leave(b, "x", {**sent(procfs.boot_id()), "marker": "x:1"}, SPAWNING, started)
    b.trees.adopt("x", b.owner)  # type: ignore[arg-type]
    ended = b.owner.ended("x")
    assert (ended.how, ended.proven) == (How.ABANDONED, False)
    assert "0 found" in ended.note
    assert lives(sleeper)


def test_l3_of_another_boot_no_process_is_looked_for(b: Bench, sleeper: subprocess.Popen[bytes]) -> None:
    started = {"word": "started", "pid": sleeper.pid, "start_ticks": ticks(sleeper.pid), "at": 2.0, "name": "sh"}
    leave(b, "x", {**sent("another-boot"), "marker": "x:1"}, SPAWNING, started)
    b.trees.adopt("x", b.owner)  # type: ignore[arg-type]
    assert b.owner.ended("x").proven
    assert lives(sleeper)


def test_l3_a_leftover_that_refuses_is_named(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    # A program that was just executed runs for a moment, before it sleeps.
    until(lambda: (seen := procfs.stat(sleeper.pid)) is not None and seen.state == "S", "it sleeps")
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    one = orphan(pid=sleeper.pid, start_ticks=ticks(sleeper.pid))
    orphans.end(one)
    assert f"pid {sleeper.pid} refused: Operation not permitted" in one.note
    assert f"still there: sleep (pid {sleeper.pid}, state S)" in one.note
    assert one.killed == set()


def test_l3_where_no_thread_can_be_had_the_search_for_what_a_tree_left_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def refused_once(thread: threading.Thread) -> None:
        if thread.name == "countermand-orphans" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    searched, told = threading.Event(), threading.Event()
    with bench(tmp_path) as b:
        monkeypatch.setattr(threading.Thread, "start", refused_once)
        b.trees._reactor.post(lambda: b.trees._search.aside(searched.set, told.set))
        assert told.wait(WAIT_S)
        assert searched.is_set()
    assert refused
