"""The zygote: it inherits what a killed warden leaves, says only what it proved, and may itself be killed.

The file has over 600 lines, and is whole: one program, and each way in which it or a warden ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.messages import ProcessEnded, ProcessRemaining
from actors.model import How
from supervisor.config import LAYERS
from supervisor.containment import zygote_handle
from supervisor.containment.guard import cgroups, ledger, procfs
from tests.process_kit import (
    ESCAPE,
    FREEZER,
    HAS_CGROUPS,
    NO_CGROUP,
    WAIT_S,
    Bench,
    Recorder,
    bench,
    frozen,
    held_by,
    needs_cgroups,
    our_children,
    until,
)

FAMILY = """
import os, time
for depth in range(3):
    if os.fork():
        break
    os.setsid()
print("member", os.getpid(), flush=True)
time.sleep(1000)
"""


HIDDEN = """
import os, time
os.fork() and os._exit(0)
os.setsid()
print("hidden", os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as opened:
        yield opened


def test_l3_what_a_killed_warden_leaves_is_killed_by_the_zygote_and_proven_gone(b: Bench) -> None:
    b.run((sys.executable, "-S", "-c", FAMILY))
    until(lambda: b.owner.text().count("member") == 4, "the family")
    os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.how, ended.status, ended.proven, ended.reaped) == (How.SIGKILL, -9, True, 4)
    assert ended.note == "its warden was killed; the zygote ended what it left"
    assert b.owner.exited().status == -9
    assert b.owner.kinds() == ["ProcessStarted", "ProcessOutput", "ProcessExited", "ProcessEnded"]
    assert '"empty"' in b.ledger_text()


def test_l3_a_fork_walker_whose_warden_was_killed_is_caught_by_the_zygote(b: Bench) -> None:
    walker = (
        "import os, time\n"
        "print('walking', os.getppid(), flush=True)\n"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    b.sh("echo leader; sleep 1000", "other")
    other = b.owner.started("other").pid
    b.run((sys.executable, "-S", "-c", walker))
    os.kill(b.parent_named_in_output(), signal.SIGKILL)
    assert b.owner.ended().proven
    left = [pid for pid in b.alive() if pid != other and pid not in procfs.children(other)]
    assert left == []
    assert procfs.stat(other) is not None


def test_l3_the_trees_of_wardens_that_are_killed_together_are_each_proven_gone(b: Bench) -> None:
    names = [f"p{number}" for number in range(4)]
    for name in names:
        b.sh("trap '' TERM; sleep 1000 & echo ready; wait", name)
    for name in names:
        b.owner.wait_text("ready", name)
    wardens = [b.warden_of(b.owner.started(name).pid) for name in names]
    with b.stopped(b.zygote_pid()):
        for warden in wardens:
            os.kill(warden, signal.SIGKILL)
    for name in names:
        ended = b.owner.ended(name)
        assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)
    b.assert_nobody_left()


def kept_alive(b: Bench, command: str) -> int:
    """Start the tree `stuck` with a `sleep 1000` to be frozen, and the tree `free`; returns the pid of the first."""
    b.sh(f"trap '' TERM; {command} echo ready; sleep 1001; :", "stuck")
    b.sh("trap '' TERM; sleep 1001 & echo ready; wait", "free")
    for name in ("stuck", "free"):
        b.owner.wait_text("ready", name)
    leader = b.owner.started("stuck").pid
    parents = (leader, b.warden_of(leader))
    found: list[int] = []

    def executed() -> bool:
        found[:] = [
            one for pid in parents for one in procfs.children(pid) if procfs.command_line(one) == ["sleep", "1000"]
        ]
        return bool(found)

    until(executed, "the orphan is executed")
    return found[0]


def kill_wardens(b: Bench, *names: str) -> None:
    """Kill the wardens of some trees in one moment, as the zygote sees it."""
    wardens = [b.warden_of(b.owner.started(name).pid) for name in names]
    with b.stopped(b.zygote_pid()):
        for warden in wardens:
            os.kill(warden, signal.SIGKILL)
        for warden in wardens:
            until(lambda pid=warden: (seen := procfs.stat(pid)) is not None and seen.state == "Z", "dead")  # type: ignore[misc]


needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with"
)


@needs_freezer
def test_l13_of_trees_lost_one_after_the_other_one_that_cannot_be_killed_holds_up_no_other(tmp_path: Path) -> None:
    with bench(tmp_path, layers=NO_CGROUP, give_up_s=60.0) as b:
        # Nothing shows whose it is, but that it was there first.
        pid = kept_alive(b, "(setsid env -i sleep 1000 &);")
        with frozen(pid):
            kill_wardens(b, "stuck")
            (row,) = b.owner.wait(ProcessRemaining, "stuck").rows
            assert (row.pid, row.note) == (pid, "got SIGKILL, and is in an uninterruptible wait (state D)")
            kill_wardens(b, "free")
            ended = b.owner.ended("free")
            assert (ended.how, ended.proven) == (How.SIGKILL, True)
            assert pid not in [one.pid for one in ended.rows]
            assert "ProcessEnded" not in b.owner.kinds("stuck")
        ended = b.owner.ended("stuck")
        assert (ended.how, ended.proven) == (How.SIGKILL, True)
        assert pid in [one.pid for one in ended.rows]
        b.assert_nobody_left()


SHOWS = {
    "cgroup": ("(setsid env -i sleep 1000 &);", LAYERS),
    "marker": ("(setsid sleep 1000 &);", NO_CGROUP),
    "session": ("env -i sleep 1000 &", NO_CGROUP),
}


@needs_freezer
@pytest.mark.parametrize("shows", SHOWS)
def test_l13_of_trees_lost_together_one_that_cannot_be_killed_holds_up_no_other(tmp_path: Path, shows: str) -> None:
    command, layers = SHOWS[shows]
    if shows == "cgroup" and not HAS_CGROUPS:
        pytest.skip("no cgroup v2 that this user may write")
    with bench(tmp_path, layers=layers, give_up_s=60.0) as b:
        pid = kept_alive(b, command)
        with frozen(pid):
            kill_wardens(b, "stuck", "free")
            ended = b.owner.ended("free")
            assert (ended.how, ended.proven) == (How.SIGKILL, True)
            assert pid not in [one.pid for one in ended.rows]
            assert [row.pid for row in b.owner.wait(ProcessRemaining, "stuck").rows] == [pid]
            assert "ProcessRemaining" not in b.owner.kinds("free")
            assert "ProcessEnded" not in b.owner.kinds("stuck")
        ended = b.owner.ended("stuck")
        assert (ended.how, ended.proven) == (How.SIGKILL, True)
        assert pid in [one.pid for one in ended.rows]
        b.assert_nobody_left()


@needs_freezer
def test_l3_of_trees_lost_together_none_is_called_gone_while_a_process_may_be_of_any(tmp_path: Path) -> None:
    with bench(tmp_path, layers=NO_CGROUP, give_up_s=60.0) as b:
        pid = kept_alive(b, "(setsid env -i sleep 1000 &);")
        with frozen(pid):
            kill_wardens(b, "stuck", "free")
            for name in ("stuck", "free"):
                (row,) = b.owner.wait(ProcessRemaining, name).rows
                assert row.pid == pid
                assert row.note.endswith("; it may be of another tree whose warden was killed too")
                assert "ProcessEnded" not in b.owner.kinds(name)
        for name in ("stuck", "free"):
            assert b.owner.ended(name).proven
            assert pid not in [one.pid for one in b.owner.ended(name).rows]
        b.assert_nobody_left()


OWNERS = """
import ctypes, os, socket, sys, time
from supervisor.containment.guard import procfs, zygote
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
ours, theirs = socket.socketpair()
one = zygote.Zygote(ours, os.pidfd_open(os.getpid()), frozenset({"zygote"}), None)
lost = zygote.Lost("x", sys.argv[1], None)
one._lost.append(lost)
stranger = os.fork() or time.sleep(1000)
warden = os.fork() or time.sleep(1000)
one._wardens[warden] = ("y", sys.argv[1])
os.kill(warden, 9)
while procfs.stat(warden).state != "Z":
    time.sleep(0.005)
print(one._find_owners([stranger]) == [None])
one._wardens.clear()
print(one._find_owners([stranger]) == [lost])
lost.leader = stranger
os.kill(stranger, 9)
while one._reap() is not None:
    time.sleep(0.005)
print(lost.leader, [row["pid"] == stranger for row in lost.rows if row["pid"] == stranger])
"""


def test_l3_what_a_warden_that_is_dead_and_not_reaped_may_have_left_is_put_down_to_no_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNERS, str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # A number that was reaped may be given to anybody, so nothing is known by it any more.
    assert done.stdout == "True\nTrue\nNone [True]\n", done.stderr


def test_l3_how_a_command_ended_is_known_whatever_it_is_called(b: Bench, tmp_path: Path) -> None:
    program = tmp_path / "cm-prefork"
    shutil.copy(shutil.which("sleep") or "", program)
    b.run((str(program), "1000"))
    os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.SIGKILL, True)


def test_l3_the_last_word_of_a_warden_that_was_not_heard_is_read_in_its_ledger(b: Bench) -> None:
    b.sh("exec sleep 1000")
    pid = b.owner.started().pid
    warden = b.warden_of(pid)
    busy, go_on = threading.Event(), threading.Event()
    tree = b.trees._trees.by_id["p"]
    assert tree.sock is not None

    def wait() -> None:
        busy.set()
        go_on.wait(WAIT_S)

    b.trees._reactor.post(wait)
    assert busy.wait(WAIT_S)
    try:
        os.kill(pid, signal.SIGKILL)
        until(lambda: procfs.stat(warden) is None, "the warden has ended, and its zygote is content")
        while lost := tree.sock.recv(1000):
            assert lost
    finally:
        go_on.set()
    ended = b.owner.ended()
    assert (ended.how, ended.status, ended.proven, ended.reaped) == (How.SIGKILL, -9, True, 1)
    assert b.owner.exited().status == -9


def test_l13_a_killed_warden_costs_its_own_tree_only(b: Bench) -> None:
    b.sh("echo ready; exec sleep 1000", "one")
    b.sh("echo ready; exec sleep 1000", "two")
    one = b.owner.started("one").pid
    b.owner.wait_text("ready", "two")
    os.kill(b.warden_of(one), signal.SIGKILL)
    assert b.owner.ended("one").proven
    assert "ProcessEnded" not in b.owner.kinds("two")
    b.trees.kill("two", 5.0)
    assert b.owner.ended("two").how is How.SIGTERM


def test_l3_a_command_that_ended_before_its_warden_was_killed_keeps_its_own_status(b: Bench) -> None:
    b.sh("sleep 1000 & exit 5")
    assert b.owner.exited().status == 5
    found: list[int] = []

    def there() -> bool:
        # Nobody has an environment for a moment while it becomes another program.
        found[:] = b.alive()
        return bool(found)

    until(there, "the child")
    (child,) = found
    os.kill(b.warden_of(child), signal.SIGKILL)
    ended = b.owner.ended()
    assert (ended.how, ended.status, ended.proven) == (How.EXIT, 5, True)
    b.assert_nobody_left()


def test_l3_a_warden_that_was_stopped_by_sigstop_is_replaced_by_the_zygote(tmp_path: Path) -> None:
    with bench(tmp_path, kill_s=2.0, give_up_s=60.0) as b:
        b.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        b.owner.wait_text("ready")
        os.kill(b.warden_of(b.owner.started().pid), signal.SIGSTOP)
        b.trees.kill("p", 0.0)
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.SIGKILL, True)
        b.assert_nobody_left()


@pytest.mark.parametrize("layers", [LAYERS, NO_CGROUP], ids=["with groups", "without"])
def test_a_warden_that_is_slow_is_not_taken_for_one_that_is_stopped(tmp_path: Path, layers: frozenset[str]) -> None:
    # It is asked after no time at all, while it has hundreds to kill and to reap.
    with bench(tmp_path, kill_s=0.0, give_up_s=60.0, layers=layers) as b:
        b.run((sys.executable, "-S", "-c", ESCAPE, "400"))
        b.owner.wait_text("up")
        b.trees.kill("p", 0.0)
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.SIGKILL, True)
        # At its deadline, which is at once, a warden may say who is left; the zygote has not taken its place.
        assert "warden" not in ended.note
        # Those in between ended by themselves, and were read by their parent.
        assert ended.reaped == 400
        b.assert_nobody_left()


@pytest.mark.parametrize("layers", [LAYERS, NO_CGROUP], ids=["with groups", "without"])
def test_l3_of_a_big_tree_whose_warden_was_killed_all_are_counted_and_the_command_is_known(
    tmp_path: Path, layers: frozenset[str]
) -> None:
    with bench(tmp_path, layers=layers) as b:
        b.run((sys.executable, "-S", "-c", ESCAPE, "400"))
        b.owner.wait_text("up")
        os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
        ended = b.owner.ended()
        assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)
        assert ended.reaped == 400
        b.assert_nobody_left()


def test_l3_killing_the_zygote_leaves_its_wardens_at_work_and_new_spawns_start_another(b: Bench) -> None:
    b.sh("echo old; exec sleep 1000", "old")
    b.owner.wait_text("old", "old")
    first = b.zygote_pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in our_children(), "its death was noticed and reaped")
    b.sh("echo new; exec sleep 1000", "new")
    b.owner.wait_text("new", "new")
    assert b.zygote_pid() != first
    assert "ProcessEnded" not in b.owner.kinds("old")
    for name in ("old", "new"):
        b.trees.kill(name, 5.0)
        ended = b.owner.ended(name)
        assert (ended.how, ended.proven) == (How.SIGTERM, True)
    b.assert_nobody_left()


def kill_warden_and_zygote(b: Bench) -> None:
    zygote, warden = b.zygote_pid(), b.warden_of(b.owner.started().pid)
    with b.stopped(zygote):
        os.kill(warden, signal.SIGKILL)
        os.kill(zygote, signal.SIGKILL)


def test_l3_with_warden_and_zygote_both_killed_and_no_other_layer_nothing_is_claimed(tmp_path: Path) -> None:
    with bench(tmp_path, layers={"subreaper", "zygote"}) as b:
        b.sh("echo ready; exec sleep 1000")
        b.owner.wait_text("ready")
        kill_warden_and_zygote(b)
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.ABANDONED, False)
        assert ended.note == (
            "its warden and the zygote were both killed; nothing proves that no other process of it is left"
        )
        until(lambda: b.alive() == [b.owner.started().pid], "the command lives, and is executed")


def test_l3_with_warden_and_zygote_both_killed_what_has_the_marker_is_killed_and_no_more_is_claimed(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, layers=NO_CGROUP) as b:
        b.sh("setsid sleep 1000 & (env -i sleep 1000) & echo ready; exec sleep 1000")
        b.owner.wait_text("ready")
        until(lambda: len(procfs.children(b.owner.started().pid)) == 2, "both in the background")
        kill_warden_and_zygote(b)
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.SIGKILL, False)
        assert ended.note == (
            "its warden and the zygote were both killed; 3 found by its marker or its pid and killed; "
            "nothing proves that no other process of it is left"
        )
        b.assert_nobody_left()


@needs_cgroups
def test_l3_with_warden_and_zygote_both_killed_the_cgroup_is_the_proof(b: Bench) -> None:
    b.run(("/bin/sh", "-c", f'env -i {sys.executable} -S -c "$0"; exec sleep 1000', HIDDEN))
    b.owner.wait_text("\n")
    pid, group = int(b.owner.text().split()[1]), b.group()
    assert group is not None
    kill_warden_and_zygote(b)
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.SIGKILL, True)
    assert "its cgroup was emptied and removed" in ended.note
    assert (seen := procfs.stat(pid)) is None or seen.state in "ZX"
    assert not os.path.exists(group)
    b.assert_nobody_left()


@needs_cgroups
@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with")
def test_l3_a_process_that_could_not_be_ended_at_first_is_proven_gone_when_it_is(tmp_path: Path) -> None:
    with bench(tmp_path, give_up_s=60.0) as b:
        b.sh("echo up; exec sleep 1000")
        b.owner.wait_text("up")
        pid = b.owner.started().pid
        with frozen(pid):
            kill_warden_and_zygote(b)
            assert not b.owner.ended().proven
            assert [type(report) for report in b.owner.reports].count(ProcessEnded) == 1
        until(lambda: [type(report) for report in b.owner.reports].count(ProcessEnded) == 2, "the proof")
        proof = b.owner.reports[-1]
        assert (proof.proven, proof.how) == (True, How.SIGKILL)
        assert "its cgroup was emptied and removed" in proof.note
        later = Recorder()
        b.trees.adopt("p", later)  # type: ignore[arg-type]
        assert later.ended().proven
        b.assert_nobody_left()


@needs_cgroups
@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with")
def test_l3_what_a_dead_daemon_left_in_state_d_is_proven_gone_when_it_is(tmp_path: Path) -> None:
    with bench(tmp_path, give_up_s=60.0) as b:
        b.settle()
        base = cgroups.prepare(str(tmp_path / "wardens"))[0]
        assert base is not None
        group = os.path.join(base, "left")
        os.mkdir(group)
        with subprocess.Popen(
            ["sh", "-c", f"echo 0 >{group}/cgroup.procs; echo up; exec sleep 1000"], stdout=-1
        ) as left:
            assert left.stdout is not None
            left.stdout.readline()
            path = tmp_path / "wardens" / "x.ledger"
            ledger.create(path, "x", 0.0, procfs.boot_id(), "x:mark")
            held = ledger.Ledger.lock(path, wait=True)
            assert held is not None
            held.write({"word": "spawning", "at": 0.0, "cgroup": group})
            held.close()
            first, second = Recorder(), Recorder()
            with frozen(left.pid):
                b.trees.adopt("x", first)  # type: ignore[arg-type]
                assert not first.ended("x").proven
                b.trees.adopt("x", second)  # type: ignore[arg-type]
                assert not second.ended("x").proven
            left.wait(WAIT_S)
            until(lambda: second.reports[-1].proven, "the proof")
        assert len(first.reports) == 1
        words = ledger.read_path(path)
        assert (swept := ledger.said(words, "swept")) is not None
        assert swept["proven"]
        assert not os.path.exists(group)


def spare_of(zygote: int) -> int:
    """The pid of the spare warden of a zygote, once it waits."""
    found: list[int] = []

    def waits() -> bool:
        children = [procfs.stat(pid) for pid in procfs.children(zygote)]
        found[:] = [seen.pid for seen in children if seen is not None and seen.name == "cm-spare" and seen.state == "S"]
        return bool(found)

    until(waits, "a spare warden")
    return found[0]


def test_l3_a_spare_warden_that_is_found_dead_costs_nothing(b: Bench) -> None:
    zygote = b.zygote_pid()
    first = spare_of(zygote)
    with b.stopped(zygote):
        os.kill(first, signal.SIGKILL)
        until(lambda: (seen := procfs.stat(first)) is not None and seen.state == "Z", "it is dead, and not reaped")
        b.sh("echo here")
        b.settle()
    assert b.owner.ended().status == 0
    assert b.owner.text() == "here\n"
    assert spare_of(zygote) != first
    assert '"warden"' in b.ledger_text()
    assert b.ledger_text().count('"spawning"') == 1


def test_l3_a_spare_warden_that_was_reaped_before_it_is_taken_costs_nothing(b: Bench) -> None:
    first = spare_of(b.zygote_pid())
    os.kill(first, signal.SIGKILL)
    until(lambda: procfs.stat(first) is None, "it is reaped")
    b.sh("echo here")
    assert b.owner.ended().status == 0
    assert b.owner.text() == "here\n"
    assert b.ledger_text().count('"spawning"') == 1


def test_l3_whose_a_killed_warden_was_is_read_before_its_death_is_judged(b: Bench) -> None:
    zygote = b.zygote_pid()
    spare_of(zygote)
    with b.stopped(zygote):
        # What it has not read yet is before the word that says whose the warden is.
        for _ in range(3):
            b.to_zygote({"word": "end_warden", "process_id": "nobody"})
        b.run((sys.executable, "-S", "-c", FAMILY))
        until(lambda: b.owner.text().count("member") == 4, "the family, without the zygote")
        os.kill(warden := b.warden_of(b.owner.started().pid), signal.SIGKILL)
        until(lambda: (seen := procfs.stat(warden)) is not None and seen.state == "Z", "it is dead, and not reaped")
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.how, ended.status, ended.proven, ended.reaped) == (How.SIGKILL, -9, True, 4)
    assert ended.note == "its warden was killed; the zygote ended what it left"


def test_l3_a_spare_warden_does_not_outlive_its_zygote(b: Bench) -> None:
    zygote = b.zygote_pid()
    spare = spare_of(zygote)
    child = procfs.children(spare)
    os.kill(zygote, signal.SIGKILL)
    until(lambda: not any(procfs.stat(pid) for pid in (spare, *child)), "neither it nor what it has ready")
    b.sh("echo here")
    assert b.owner.ended().status == 0


def test_l3_a_child_that_a_spare_warden_has_ready_ends_with_it_also_while_the_zygote_is_stopped(b: Bench) -> None:
    zygote = b.zygote_pid()
    spare = spare_of(zygote)
    until(lambda: len(procfs.children(spare)) == 2, "a process that waits, and one that keeps its memory")
    below = procfs.children(spare)
    with b.stopped(zygote):
        os.kill(spare, signal.SIGKILL)
        until(lambda: all((seen := procfs.stat(pid)) is None or seen.state == "Z" for pid in below), "both have ended")
    b.sh("echo here")
    assert b.owner.ended().status == 0


def preforked_of(spare: int) -> int:
    """The process that a spare warden has ready, once it has its holder; it leads the session of both."""
    until(lambda: len(procfs.children(spare)) == 2, "a process that waits, and one that keeps its memory")
    return next(pid for pid in procfs.children(spare) if (seen := procfs.stat(pid)) is not None and seen.sid == pid)


def test_l3_a_memory_holder_that_is_stopped_holds_no_proof_up(b: Bench) -> None:
    spare = spare_of(b.zygote_pid())
    child = preforked_of(spare)
    (holder,) = set(procfs.children(spare)) - {child}
    os.kill(holder, signal.SIGSTOP)
    b.sh("echo here")
    ended = b.owner.ended()
    assert b.owner.text() == "here\n"
    assert (ended.status, ended.reaped, len(ended.rows)) == (0, 1, 1)


def test_l3_a_spare_warden_that_is_stopped_does_not_outlive_its_zygote(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        zygote = b.zygote_pid()
        spare = spare_of(zygote)
        os.kill(spare, signal.SIGSTOP)
        try:
            b.trees.close()
            until(lambda: procfs.stat(zygote) is None and procfs.stat(spare) is None, "neither is left")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(spare, signal.SIGCONT)


def test_l3_a_command_that_went_to_a_dead_spare_warden_first_is_not_given_up(tmp_path: Path) -> None:
    # So long that the zygote's word on the first warden comes before, however busy the machine is.
    with bench(tmp_path, give_up_s=WAIT_S) as b:
        zygote = b.zygote_pid()
        first = spare_of(zygote)
        os.kill(first, signal.SIGKILL)
        until(lambda: procfs.stat(first) is None, "it is reaped")
        with b.stopped(zygote):
            b.sh("echo here; exec sleep 1000")
            b.settle()
            tree = b.trees._trees.by_id["p"]
            until(lambda: tree.kill_alarms, "the end of the first warden is heard before the zygote's word on it")
        b.owner.wait_text("here")
        assert tree.kill_alarms == [], "nothing is left that would give it up"
        b.trees.kill("p", WAIT_S)
        ended = b.owner.ended()
        assert (ended.how, ended.status, ended.proven) == (How.SIGTERM, -signal.SIGTERM, True)


HASTY = """
import os, sys, time, types
for name in ("supervisor", "supervisor.containment", "supervisor.containment.guard"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(sys.argv[1], *name.split(".")[1:])]
from supervisor.containment.guard import memory_holder, preforked, procfs
memory_holder.receive = lambda *_: time.sleep(1000)
waiting = preforked.Preforked(None, None)
while len(procfs.own_children()) < 2:
    time.sleep(0.01)
waiting.dismiss()
print("left:", procfs.own_children())
"""


def test_l3_a_preforked_child_that_is_dismissed_before_it_has_named_its_memory_holder_leaves_no_process() -> None:
    package = str(Path(zygote_handle.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", HASTY, package]
    assert subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout == "left: []\n"


def test_l3_a_command_finds_no_child_that_it_has_not_made(b: Bench) -> None:
    look = "import os; print('children:', open(f'/proc/self/task/{os.getpid()}/children').read().split())"
    b.run((sys.executable, "-S", "-c", look))
    ended = b.owner.ended()
    assert b.owner.text() == "children: []\n"
    assert (ended.reaped, len(ended.rows)) == (1, 1)


def test_l3_a_spare_warden_that_dies_with_the_request_in_its_socket_costs_nothing(b: Bench) -> None:
    first = spare_of(b.zygote_pid())
    with b.stopped(first):
        b.sh("echo here")
        b.settle()
        until(lambda: spare_of(b.zygote_pid()) != first, "the request was handed on, and another one is ready")
        os.kill(first, signal.SIGKILL)
    assert b.owner.ended().status == 0
    assert b.owner.text() == "here\n"
    assert b.ledger_text().count('"spawning"') == 1


def test_a_request_that_was_in_the_socket_of_a_killed_zygote_is_sent_to_another(b: Bench) -> None:
    first = b.zygote_pid()
    with b.stopped(first):
        # If there is a spare warden, the first is its.
        b.sh("echo there", "other")
        b.sh("echo here")
        b.settle()
        os.kill(first, signal.SIGKILL)
    for name in ("other", "p"):
        ended = b.owner.ended(name)
        assert (ended.how, ended.status) == (How.EXIT, 0)
    assert b.owner.text() == "here\n"
    assert b.ledger_text().count('"spawning"') == 1


def test_l14_a_zygote_that_cannot_live_ends_the_spawn_after_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_handle, "SCRIPT", tmp_path / "missing.py")
    # What an earlier test has left to die may still be there.
    before = set(our_children())
    with bench(tmp_path) as b:
        b.sh("true")
        ended = b.owner.ended()
        assert (ended.how, ended.proven) == (How.NOT_STARTED, True)
        assert "warden" in ended.note
        assert b.owner.kinds() == ["ProcessEnded"]
    assert set(our_children()) <= before


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with bench(tmp_path) as b:
        b.sh("true")
        ended = b.owner.ended()
        assert (ended.how, ended.note) == (How.NOT_STARTED, "cannot start a warden: No such file or directory")


def test_the_zygote_and_the_wardens_outlive_what_a_terminal_or_a_tree_may_send_them(b: Bench) -> None:
    b.sh("kill -TERM $PPID; kill -INT $PPID; kill -HUP $PPID; kill -USR1 $PPID; echo sent; exec sleep 1000")
    b.owner.wait_text("sent")
    zygote = b.zygote_pid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        os.kill(zygote, number)
    assert os.getsid(zygote) != os.getsid(0)
    b.sh("echo still", "later")
    assert b.owner.ended("later").status == 0
    assert b.zygote_pid() == zygote
    b.trees.kill("p", 5.0)
    assert b.owner.ended().how is How.SIGTERM


def test_neither_zygote_nor_another_warden_holds_a_descriptor_of_a_tree(b: Bench, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    try:
        b.sh("echo ready; exec sleep 1000", "one")
        b.sh("echo ready; exec sleep 1000", "two")
        b.owner.wait_text("ready", "one")
        b.owner.wait_text("ready", "two")
        one, two = b.owner.started("one").pid, b.owner.started("two").pid
        pipes = {os.readlink(f"/proc/{one}/fd/{fd}") for fd in (1, 2)}
        for other in (b.zygote_pid(), b.warden_of(one), b.warden_of(two), two):
            held = held_by(other)
            assert held
            assert not held & pipes
            assert str(tmp_path / "lock") not in held
        until(lambda: held_by(one) == {"/dev/null", *pipes}, "the command holds its three descriptors alone")
    finally:
        os.close(lock)
