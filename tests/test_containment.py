"""Law L3 with real processes: whatever a tree does, it is ended, and its end is said only when it is proven.

The file has over 600 lines, and is whole: all use one bench of trees, with scripts that resist.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.messages import OutputRead, ProcessEnded, ProcessOutput, ProcessRemaining
from actors.model import How
from actors.ports import SpawnSpec
from supervisor.config import LAYERS, LIMITS, OPTIONAL_LAYERS
from supervisor.containment.guard import cgroups, command, killing, procfs, warden
from tests.process_kit import (
    FREEZER,
    NAMESPACE,
    NO_CGROUP,
    OWN_GROUP,
    Bench,
    Recorder,
    bench,
    fd_count,
    frozen,
    needs_cgroups,
    needs_namespaces,
    our_children,
    until,
)

PYTHON = sys.executable
ROOT = Path(__file__).parent.parent

WALKER = """
import os, sys, time
print("walking", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""

DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        print("daemon", os.getpid(), flush=True)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""

CROWD = """
import os, time
print("warden", os.getppid(), flush=True)
end = time.monotonic() + 60
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


BOMB = """
import os, time
print("warden", os.getppid(), flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    if os.fork() == 0:
        os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
"""


LIMITED_BOMB = """
import os, time
print("warden", os.getppid(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""


@pytest.fixture(
    params=[
        pytest.param(LAYERS, id="cgroup", marks=needs_cgroups),
        pytest.param(NO_CGROUP, id="plain"),
        pytest.param(NAMESPACE, id="namespace+cgroup", marks=[needs_cgroups, needs_namespaces]),
        pytest.param(NAMESPACE - {"cgroup"}, id="namespace", marks=needs_namespaces),
    ]
)
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """With a cgroup for each tree, and without; with a namespace for each, and without."""
    with bench(tmp_path, layers=request.param) as opened:
        yield opened


def test_a_plain_command_reports_start_output_exit_and_end_in_this_order(b: Bench) -> None:
    b.sh("echo out; echo err >&2; exit 3")
    ended = b.owner.ended()
    assert b.owner.kinds() == ["ProcessStarted", "ProcessOutput", "ProcessExited", "ProcessEnded"]
    assert b.owner.text(stream="stdout") == "out\n"
    assert b.owner.text(stream="stderr") == "err\n"
    exited = b.owner.exited()
    assert (exited.status, exited.total_bytes, exited.lossy, exited.held) == (3, 8, False, False)
    assert sorted(exited.tail.split()) == ["err", "out"]
    assert (ended.how, ended.status, ended.proven, ended.reaped) == (How.EXIT, 3, True, 1)
    assert ended.pid == b.owner.started().pid
    assert [(row.kind, row.name, row.status) for row in ended.rows] == [("process", "sh", 3)]


def test_a_command_that_exits_at_once_reports_in_order_too(b: Bench) -> None:
    for number in range(20):
        b.run(("/bin/true",), f"p{number}")
    for number in range(20):
        b.owner.ended(f"p{number}")
        assert b.owner.kinds(f"p{number}") == ["ProcessStarted", "ProcessExited", "ProcessEnded"]


def test_a_command_killed_by_a_signal_has_a_negative_status(b: Bench) -> None:
    b.sh("kill -SEGV $$")
    ended = b.owner.ended()
    assert (ended.how, ended.status) == (How.EXIT, -signal.SIGSEGV)


def test_cat_with_nothing_on_its_input_ends_at_once(b: Bench) -> None:
    b.run(("cat",))
    assert b.owner.ended().status == 0


def test_a_command_that_does_not_exist_is_not_started_and_says_why(b: Bench) -> None:
    b.run(("countermand-no-such-command",))
    ended = b.owner.ended()
    assert (ended.how, ended.proven, ended.status, ended.pid) == (How.NOT_STARTED, True, None, None)
    assert ended.note == "cannot execute 'countermand-no-such-command': No such file or directory"
    assert b.owner.kinds() == ["ProcessEnded"]


def test_a_command_without_permission_or_with_a_bad_word_is_not_started(b: Bench, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    b.run((str(plain),), "p1")
    b.run(("/bin/echo", "a\0b"), "p2")
    b.run(("/bin/echo", "\ud800"), "p3")
    b.run((), "p4")
    assert "Permission denied" in b.owner.ended("p1").note
    assert "null byte" in b.owner.ended("p2").note
    assert "surrogates not allowed" in b.owner.ended("p3").note
    assert b.owner.ended("p4").note
    assert {b.owner.ended(f"p{number}").how for number in (1, 2, 3, 4)} == {How.NOT_STARTED}


def test_a_bad_directory_is_not_started_and_named(b: Bench) -> None:
    b.sh("true", cwd="/no/such/place")
    ended = b.owner.ended()
    assert ended.how is How.NOT_STARTED
    assert ended.note == "cannot enter the directory '/no/such/place': No such file or directory"


def test_a_command_runs_in_its_directory_and_with_a_large_argument(b: Bench, tmp_path: Path) -> None:
    b.run(("/bin/sh", "-c", 'pwd; echo "${#1}"', "sh", "x" * 120_000), cwd=str(tmp_path))
    b.owner.ended()
    assert b.owner.text() == f"{tmp_path}\n120000\n"


def test_a_relative_directory_is_the_daemons_own(b: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    b.sh("pwd", "p1", cwd="below")
    b.sh("pwd", "p2")
    b.owner.ended("p1")
    b.owner.ended("p2")
    assert b.owner.text("p1") == f"{tmp_path}/below\n"
    assert b.owner.text("p2") == f"{tmp_path}\n"


def test_a_relative_state_directory_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with bench(Path("state")) as b:
        b.sh("exit 3")
        assert b.owner.ended().status == 3


def test_l13_many_trees_at_once_each_end_as_they_should(b: Bench) -> None:
    for number in range(40):
        b.sh(f"echo {number}; sleep 0.{number % 5}; exit {number}", f"exit{number}")
        b.sh(f"echo {number}; sleep 1000 & wait", f"kill{number}")
    for number in range(40):
        b.owner.started(f"kill{number}")
        b.trees.kill(f"kill{number}", 10_000.0)
    for number in range(40):
        assert b.owner.ended(f"exit{number}").status == number
        assert b.owner.text(f"exit{number}") == f"{number}\n"
        assert b.owner.ended(f"kill{number}").how is How.SIGTERM
        assert b.owner.kinds(f"exit{number}") == ["ProcessStarted", "ProcessOutput", "ProcessExited", "ProcessEnded"]
    b.assert_nobody_left()


def test_a_command_starts_with_a_clean_signal_state_session_and_descriptors(b: Bench) -> None:
    script = (
        "import os, signal\n"
        "ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]\n"
        "print(sorted(int(n) for n in ignored if n not in (signal.SIGPIPE, signal.SIGXFSZ)))\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))\n"
        "print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))[:3], os.read(0, 1))\n"
        # It runs ahead of others for the exec; its warden takes that back when it sees that it was executed.
        "while os.getpriority(os.PRIO_PROCESS, 0) < 0 or os.sched_getscheduler(0) != os.SCHED_OTHER: os.sched_yield()\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0))\n"
        "print([fd for fd in range(3, 1000) if os.path.exists(f'/proc/self/fd/{fd}')])\n"
    )
    b.run((PYTHON, "-c", script))
    b.owner.ended()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert b.owner.text().splitlines() == ["[]", "[]", "True ['0', '1', '2'] b''", str(nice), "[]"]


THREADED = """
import signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(32):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("up", flush=True)
while True:
    time.sleep(0.001)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run ahead of others")
@pytest.mark.parametrize(
    "layers", [LAYERS, pytest.param(NAMESPACE, marks=needs_namespaces)], ids=["default", "namespace"]
)
def test_no_process_that_reaps_a_program_of_many_threads_is_real_time_and_the_program_is_as_nice_as_its_daemon(
    tmp_path: Path, layers: frozenset[str]
) -> None:
    # Who reaps such a program spins until its last thread has left the processor, which real time keeps it from.
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    try:
        with bench(tmp_path, layers=layers) as b:
            b.run((PYTHON, "-c", THREADED))
            pid = b.owner.started().pid
            b.owner.wait_text("up")
            threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
            keeper = b.keeper()
            reapers = [b.zygote_pid(), b.warden_of(pid), *([keeper] if keeper is not None else [])]

            def how(pid: int) -> tuple[int, int]:
                return os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, pid)

            assert len(threads) == 33
            assert {how(thread) for thread in threads} == {(os.SCHED_OTHER, 5)}
            assert [how(reaper) for reaper in reapers] == [(os.SCHED_OTHER, -20)] * len(reapers)
            b.trees.kill("p", 1000.0)
            until(lambda: '"SIGCONT"' in b.ledger_text(), "it was asked to end")
            assert [how(reaper) for reaper in reapers] == [(os.SCHED_OTHER, -20)] * len(reapers)
            b.trees.kill("p", 0.0)
            assert b.owner.ended().how is How.SIGKILL
            assert how(reapers[0]) == (os.SCHED_OTHER, -20)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give its session a larger share")
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing out by session")
def test_the_session_of_a_warden_has_a_larger_share_of_the_processor_and_that_of_its_command_has_not(b: Bench) -> None:
    def share(pid: int) -> str:
        return Path(f"/proc/{pid}/autogroup").read_text().split()[-1]

    b.sh("echo up; exec sleep 1000")
    pid = b.owner.started().pid
    b.owner.wait_text("up")
    assert [share(b.zygote_pid()), share(b.warden_of(pid)), share(pid)] == ["-20", "-20", "0"]


def test_no_secret_of_the_daemon_reaches_a_tool_a_warden_or_the_zygote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CM_FAKE_SECRET", "hunter2")
    monkeypatch.setenv("LC_TIME", "C")
    with bench(tmp_path) as b:
        b.sh("env; exec sleep 1000")
        pid = b.owner.started().pid
        b.owner.wait_text("LC_TIME=C")
        assert "hunter2" not in b.owner.text()
        assert b.mark in b.owner.text()
        for holder in (pid, b.warden_of(pid), b.zygote_pid()):
            environ = environment_of(holder)
            assert b"PATH=" in environ
            assert b"hunter2" not in environ


def environment_of(pid: int) -> bytes:
    """A process's environment, which is empty for a moment while it becomes another program: read once more then."""
    found: list[bytes] = []

    def seen() -> bool:
        found[:] = [Path(f"/proc/{pid}/environ").read_bytes()]
        return bool(found[0])

    until(seen, "its environment")
    return found[0]


def test_l3_background_and_setsid_children_stay_in_the_tree_and_end_with_it(b: Bench) -> None:
    b.sh("sleep 1000 & setsid sleep 1000 & echo ready; exit 0")
    exited = b.owner.exited()
    assert (exited.status, exited.held, exited.tail) == (0, True, "ready\n")
    until(lambda: len(b.alive()) == 2, "both in the background")
    assert "ProcessEnded" not in b.owner.kinds()
    b.trees.kill("p", 10_000.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.how, ended.status, ended.proven, ended.reaped) == (How.EXIT, 0, True, 3)
    assert sorted(row.how or "" for row in ended.rows) == [How.EXIT, How.SIGTERM, How.SIGTERM]
    assert {signal.signal for signal in ended.signals} == {"SIGTERM", "SIGCONT"}


def test_l3_a_background_writer_is_drained_in_silence_after_the_exit(b: Bench) -> None:
    b.sh("(while :; do echo more more more; done) & exit 0")
    assert b.owner.exited().held
    said = len(b.owner.text())
    (writer,) = [pid for pid in b.alive() if pid != b.owner.started().pid]
    before = written(writer)
    until(lambda: written(writer) > before + 1_000_000, "the writer goes on writing")
    assert len(b.owner.text()) == said
    b.trees.kill("p", 0.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


def written(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def test_l3_a_double_forked_daemon_that_ignores_term_is_killed_at_the_deadline(b: Bench) -> None:
    b.run((PYTHON, "-c", DAEMON))
    b.owner.exited()
    b.owner.wait_text("daemon")
    pid = b.outside(int(b.owner.text().split()[1]))
    b.trees.kill("p", 10_000.0)
    until(lambda: '"SIGCONT"' in b.ledger_text(), "it is asked to end")
    b.trees.kill("p", 0.1)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert procfs.stat(pid) is None
    (row,) = [row for row in ended.rows if row.pid == pid]
    assert (row.how, row.status) == (How.SIGKILL, -9)
    assert [signal.signal for signal in row.signals] == ["SIGTERM", "SIGCONT", "SIGKILL"]


def test_l3_a_tree_that_ignores_term_is_killed_after_its_grace(b: Bench) -> None:
    b.sh("trap '' TERM; (echo deaf; while :; do sleep 0.05; done) & wait")
    b.owner.wait_text("deaf")
    b.trees.kill("p", 0.2)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)


def test_l3_a_second_kill_with_less_grace_escalates_and_one_with_more_does_not_put_off(b: Bench) -> None:
    b.sh("trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    b.owner.wait_text("deaf")
    b.trees.kill("p", 10_000.0)
    until(lambda: '"SIGTERM"' in b.ledger_text(), "the polite request")
    b.trees.kill("p", 0.05)
    b.trees.kill("p", 10_000.0)
    assert b.owner.ended().how is How.SIGKILL
    b.assert_nobody_left()


def test_l3_a_stopped_process_is_continued_and_can_end_politely(b: Bench) -> None:
    b.sh("trap 'echo bye; exit 7' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
    pid = b.owner.started().pid
    until(lambda: (seen := procfs.stat(pid)) is not None and seen.state == "T", "stopped")
    b.trees.kill("p", 10_000.0)
    assert b.owner.ended().status == 7
    assert b.owner.text() == "ready\nbye\n"


def test_l3_a_wrapper_that_dies_on_term_and_does_not_forward_it_takes_its_child_along(b: Bench) -> None:
    b.sh("setsid sh -c 'echo inner; exec sleep 1000' & wait")
    b.owner.wait_text("inner")
    b.trees.kill("p", 10_000.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.how, ended.reaped) == (How.SIGTERM, 2)


def test_l3_what_a_term_handler_starts_to_clean_up_is_not_disturbed(b: Bench, tmp_path: Path) -> None:
    done = tmp_path / "cleaned"
    b.sh(f"trap 'sleep 0.1; touch {done}; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    b.owner.wait_text("ready")
    b.trees.kill("p", 10_000.0)
    assert b.owner.ended().status == 0
    assert done.exists()


def test_l3_a_leader_that_forked_and_exited_is_no_hiding_place(b: Bench) -> None:
    b.sh("(sleep 1000 > /dev/null 2>&1 &) ; exit 0")
    assert not b.owner.exited().held
    b.trees.kill("p", 1.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


def test_l3_a_fork_walker_in_ever_new_sessions_is_caught(b: Bench) -> None:
    b.run((PYTHON, "-S", "-c", WALKER))
    b.owner.wait_text("walking")
    b.trees.kill("p", 0.0)
    ended = b.owner.ended()
    assert ended.proven
    b.assert_nobody_left()


def test_l3_a_crowd_of_fork_walkers_is_caught(b: Bench) -> None:
    b.run((PYTHON, "-S", "-c", CROWD))
    b.owner.wait_text("\n")
    until(lambda: len(b.orphans()) > 5, "a crowd")
    b.trees.kill("p", 0.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="without its priority a warden may not outrun this; a cgroup would")
def test_l3_a_bomb_that_doubles_in_ever_new_sessions_is_outrun(b: Bench) -> None:
    b.run((PYTHON, "-S", "-c", BOMB))
    b.owner.wait_text("\n")
    until(lambda: len(b.orphans()) > 20, "a crowd")
    b.trees.kill("p", 0.0)
    assert b.owner.ended().proven
    b.assert_nobody_left()


def test_l3_a_tree_of_twenty_is_gone_and_counted(b: Bench) -> None:
    b.sh("for i in $(seq 20); do sleep 1000 & done; echo ready; wait")
    b.owner.wait_text("ready")
    b.trees.kill("p", 5.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.reaped, len(ended.rows)) == (21, 21)


def test_l5_a_process_that_is_killed_at_once_is_listed_also_where_the_parent_takes_its_status(b: Bench) -> None:
    # The children die while the memory of their parent is freed, and nobody is told of their end.
    b.run((PYTHON, "-S", "-c", TAKES_THE_STATUS))
    b.owner.wait_text("ready")
    b.trees.kill("p", 0.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert (ended.reaped, len(ended.rows)) == (9, 9)
    assert {row.how for row in ended.rows} <= {How.SIGKILL, How.GONE}
    assert all([signal.signal for signal in row.signals] == ["SIGKILL"] for row in ended.rows), ended


TAKES_THE_STATUS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
memory = bytearray(b"x" * 300_000_000)
for _ in range(8):
    if os.fork() == 0:
        os.execlp("sleep", "sleep", "1000")
print("ready", flush=True)
time.sleep(1000)
"""


def test_l3_rows_are_bounded_and_reaped_counts_all(b: Bench) -> None:
    script = "import os\nfor _ in range(150):\n    if os.fork() == 0: os._exit(0)"
    b.run((PYTHON, "-S", "-c", script))
    ended = b.owner.ended()
    assert len(ended.rows) == 100
    assert ended.reaped == 151
    assert len(b.ledger_text().splitlines()) < 210


def test_l3_a_kill_before_the_start_starts_nothing(b: Bench, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    with b.unable_to_spawn(b.zygote_pid()):
        b.sh(f"touch {trace}; sleep 1000")
        b.trees.kill("p", 5.0)
        b.trees.kill("p", 4.0)
        b.settle()
    ended = b.owner.ended()
    assert (ended.how, ended.proven, ended.note) == (How.NOT_STARTED, True, "killed before it was started")
    assert b.owner.kinds() == ["ProcessEnded"]
    assert not trace.exists()


def test_l3_kill_right_after_spawn_ends_every_time(b: Bench) -> None:
    for number in range(20):
        b.sh("sleep 1000", f"p{number}")
        b.trees.kill(f"p{number}", 0.0)
    for number in range(20):
        assert b.owner.ended(f"p{number}").proven
    b.assert_nobody_left()


def test_l3_killing_one_tree_leaves_the_other_alone(b: Bench) -> None:
    b.sh("sleep 1000", "one")
    b.sh("echo two; read x < /dev/zero; sleep 1000", "two")
    b.owner.started("one")
    other = b.owner.started("two").pid
    b.trees.kill("one", 1.0)
    b.owner.ended("one")
    assert procfs.stat(other) is not None
    assert "ProcessEnded" not in b.owner.kinds("two")


def test_l3_killing_the_trees_of_a_session_leaves_those_of_another_alone(b: Bench) -> None:
    for process_id, session in (("one", "mine"), ("two", "mine"), ("three", "other")):
        b.sh("sleep 1000", process_id, session=session)
    other = b.owner.started("three").pid
    b.trees.kill_session("mine", 0.0)
    for process_id in ("one", "two"):
        assert b.owner.ended(process_id).proven
    assert procfs.stat(other) is not None
    assert "ProcessEnded" not in b.owner.kinds("three")


def test_l3_a_tree_without_an_owner_is_killed_with_the_session_that_adopted_it(b: Bench) -> None:
    for process_id in ("kept", "spare"):
        b.sh("sleep 1000", process_id)
        b.owner.started(process_id)
    b.trees.adopt("kept", b.owner, "mine")  # type: ignore[arg-type]
    b.trees.kill_session("mine", 0.0)
    assert b.owner.ended("kept").proven
    assert "ProcessEnded" not in b.owner.kinds("spare")


def test_an_unknown_id_is_ignored_by_kill_and_forget(b: Bench) -> None:
    b.trees.kill("nobody", 0.0)
    b.trees.forget("nobody")
    b.run(("/bin/true",))
    assert b.owner.ended().status == 0


def test_the_exit_is_reported_in_bounded_time_though_the_output_is_held_open(b: Bench) -> None:
    b.sh("sleep 1000 & echo hi; exit 3")
    exited = b.owner.exited()
    assert (exited.status, exited.held, exited.tail) == (3, True, "hi\n")


@pytest.mark.parametrize("rest", ["sleep 1000", "exit 3"])
def test_output_is_reported_when_it_is_asked_for(tmp_path: Path, rest: str) -> None:
    with bench(tmp_path, coalesce_s=1000.0) as b:
        os.mkfifo(tmp_path / "go")
        # The second line is small and soon after the first: it is left for a tick that does not come.
        b.sh(f"echo one; read go < go; echo two; touch done; {rest}", cwd=str(tmp_path))
        b.owner.wait_text("one")
        (tmp_path / "go").write_text("go\n")
        until((tmp_path / "done").exists, "the second line is printed")
        b.trees.read_output("p")
        b.owner.wait(OutputRead)
        assert b.owner.text() == "one\ntwo\n"
        b.trees.kill("p", 0.0)
        b.owner.ended()
        assert [kind for kind in b.owner.kinds() if kind != "OutputRead"][-2:] == ["ProcessExited", "ProcessEnded"]
        b.trees.read_output("p")
        b.trees.read_output("nobody")
        b.settle()


def test_half_a_character_at_the_end_is_lossy_and_not_lost(b: Bench) -> None:
    b.sh("printf '\\360'")
    exited = b.owner.exited()
    assert (exited.tail, exited.lossy, exited.total_bytes) == ("\ufffd", True, 1)
    assert b.owner.text() == "\ufffd"


def test_one_line_of_200_000_characters_comes_whole(b: Bench) -> None:
    b.run((PYTHON, "-S", "-c", "import sys; sys.stdout.write('é' * 200_000)"))
    exited = b.owner.exited()
    assert b.owner.text() == "é" * 200_000
    assert exited.total_bytes == 400_000
    assert exited.tail == "é" * 32_768


def test_l14_a_flood_is_capped_counted_and_does_not_delay_the_end_of_another_tree(b: Bench) -> None:
    b.sh("head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end", "flood")
    b.sh("sleep 1000", "other")
    b.owner.started("other")
    b.trees.kill("other", 1.0)
    b.owner.ended("other")
    exited = b.owner.exited("flood")
    assert exited.total_bytes == 50_000_000 + 9
    assert len(exited.tail) == 65_536
    assert exited.tail.endswith("x\nthe end\n")
    markers = [report for report in b.owner.reports if isinstance(report, ProcessOutput) and report.marker]
    assert len(markers) == 1
    assert len(b.owner.text("flood")) == 1_048_576


def test_adopting_a_tree_of_this_daemon_sends_the_new_owner_what_it_missed(b: Bench) -> None:
    b.sh("echo hi; exit 4")
    b.owner.ended()
    late = Recorder()
    b.trees.adopt("p", late)  # type: ignore[arg-type]
    assert late.ended() == b.owner.ended()
    assert late.exited() == b.owner.exited()
    assert late.started() == b.owner.started()
    assert late.kinds() == ["ProcessStarted", "ProcessExited", "ProcessEnded"]


def test_the_output_of_a_tree_that_a_session_adopts_goes_with_the_session(b: Bench) -> None:
    b.sh("head -c 300000 /dev/zero | tr '\\0' x; exit 4")
    b.owner.ended()
    before = b.owner.exited().spool
    assert before is not None
    late = Recorder()
    b.trees.adopt("p", late, "mine")  # type: ignore[arg-type]
    path = b.trees.spools.path("p", "mine")
    assert late.exited().spool == str(path)
    until(path.exists, "the file under its new name")
    assert not Path(before).exists()
    assert path.stat().st_size == 300_000
    b.trees.forget_session("mine")
    until(lambda: not path.exists(), "the file to go")


def test_adopting_a_running_tree_moves_its_reports_to_the_new_owner(b: Bench) -> None:
    b.sh("read x < /dev/null; exec sleep 1000")
    b.owner.started()
    late = Recorder()
    b.trees.adopt("p", late)  # type: ignore[arg-type]
    assert late.started() == b.owner.started()
    b.trees.kill("p", 1.0)
    assert late.ended().proven
    assert "ProcessEnded" not in b.owner.kinds()
    assert late.kinds() == ["ProcessStarted", "ProcessExited", "ProcessEnded"]


def test_an_actor_that_adopts_a_tree_before_its_start_gets_one_report_of_the_start(b: Bench) -> None:
    late = Recorder()
    with b.unable_to_spawn(b.zygote_pid()):
        b.sh("exec sleep 1000")
        b.trees.adopt("p", late)  # type: ignore[arg-type]
        b.settle()
    late.started()
    b.settle()
    assert [type(report).__name__ for report in late.reports if report.process_id == "p"] == ["ProcessStarted"]
    assert b.owner.kinds() == []


def test_adopting_an_id_that_was_never_spawned_says_so(b: Bench) -> None:
    b.trees.adopt("stranger", b.owner)  # type: ignore[arg-type]
    ended = b.owner.ended("stranger")
    assert (ended.how, ended.proven, ended.note) == (How.NOT_STARTED, True, "never spawned")


def test_forgetting_removes_the_ledger_and_the_memory(b: Bench) -> None:
    b.run(("/bin/true",))
    b.owner.ended()
    b.trees.forget("p")
    until(lambda: not list((b.state_dir / "wardens").glob("*.ledger")), "no ledger")
    late = Recorder()
    b.trees.adopt("p", late)  # type: ignore[arg-type]
    assert late.ended().how is How.NOT_STARTED


def test_l14_of_a_session_that_is_read_anew_no_tree_is_kept_that_has_ended_but_those_that_are_asked_for(
    b: Bench,
) -> None:
    spec = SpawnSpec(("/bin/true",), "true")
    serves = SpawnSpec(("/bin/sleep", "1000"), "sleep")
    for process_id, session in (("over", "s"), ("asked", "s"), ("another", "t"), ("spare", "")):
        b.trees.spawn(process_id, spec, b.owner, session)  # type: ignore[arg-type]
        b.owner.ended(process_id)
    for process_id in ("lives", "reserved"):
        b.trees.spawn(process_id, serves, b.owner, "")  # type: ignore[arg-type]
        b.owner.started(process_id)
    b.trees.adopt("lives", b.owner, "s")  # type: ignore[arg-type]
    b.trees.kill("reserved", 0.0, "s")
    b.trees.forget_ended("s", {"asked"})
    b.trees.kill("lives", 0.0)
    for process_id in ("lives", "reserved"):
        assert b.owner.ended(process_id).proven
    b.settle()
    assert set(b.trees._trees.by_id) == {"asked", "another", "spare"}
    assert {path.stem for path in (b.state_dir / "wardens").glob("*.ledger")} == {"asked", "another", "spare"}


def test_an_owner_that_raises_disturbs_no_other_tree(b: Bench) -> None:
    class Broken:
        def tell(self, report: object) -> None:
            raise ValueError("broken owner")

    name, value = b.mark.split("=")
    b.trees.spawn("broken", SpawnSpec(("/bin/true",), "x", env={name: value}), Broken())  # type: ignore[arg-type]
    b.run(("/bin/true",))
    assert b.owner.ended().status == 0
    b.trees.adopt("broken", b.owner)  # type: ignore[arg-type]
    assert b.owner.ended("broken").status == 0


def test_l3_closing_kills_all_trees_proves_it_and_leaves_no_thread_child_or_descriptor(tmp_path: Path) -> None:
    # What an earlier test has left may end meanwhile.
    descriptors, children = fd_count(), our_children()
    threads = threading.enumerate()
    with bench(tmp_path) as b:
        b.sh("trap '' TERM; sleep 1000 & setsid sleep 1000 & echo ready; wait", "one")
        b.sh("sleep 1000", "two")
        b.owner.wait_text("ready", "one")
        assert b.trees.close(10.0)
        assert b.owner.ended("one").proven
        assert b.owner.ended("two").proven
        b.assert_nobody_left()
        b.sh("true", "late")
        assert b.owner.ended("late").how is How.NOT_STARTED
    assert fd_count() <= descriptors
    assert set(our_children()) <= set(children)
    assert set(threading.enumerate()) <= set(threads)


def test_l14_a_hundred_spawns_leave_no_descriptor_zombie_or_thread(b: Bench) -> None:
    b.run(("/bin/true",), "first")
    b.owner.ended("first")
    descriptors, threads = b.descriptors_at_rest(), threading.enumerate()
    zygote = b.zygote_pid()
    for number in range(100):
        b.run(("/bin/true",), f"p{number}")
        assert b.owner.ended(f"p{number}").proven
        b.trees.forget(f"p{number}")
    until(lambda: not b.wardens(), "the zygote has reaped its wardens")
    until(lambda: b.descriptors_at_rest() <= descriptors, "no descriptor is left")
    assert set(threading.enumerate()) <= set(threads)
    assert len(os.listdir(f"/proc/{zygote}/fd")) < 12


def test_l3_what_cannot_be_proven_is_reported_abandoned_in_bounded_time(tmp_path: Path) -> None:
    with bench(tmp_path, kill_s=0.4) as b:
        b.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        pid = b.owner.started().pid
        b.owner.wait_text("ready")
        with b.stopped(b.warden_of(pid)), b.stopped(b.zygote_pid()):
            b.trees.kill("p", 0.0)
            ended = b.owner.ended()
            assert (ended.how, ended.proven) == (How.ABANDONED, False)
            assert ended.note == "not proven gone 0.4 s after its deadline"
            assert procfs.stat(pid) is not None
        until(lambda: not b.alive(), "its warden goes on ending it")
        until(lambda: '"empty"' in b.ledger_text(), "and says so in the ledger")
        assert [type(r) for r in b.owner.reports].count(ProcessEnded) == 1


def test_l5_each_process_of_a_signalled_group_says_so_whichever_process_reads_its_end(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        # The shell outlives the signal, so that it reads the end of its child itself, before the warden looks again.
        b.run(("/bin/bash", "-c", "trap ':' TERM; sleep 100 & echo ready; wait; wait; exit 0"))
        b.owner.wait_text("ready")
        b.trees.kill("p", 10_000.0)
        ended = b.owner.ended()
    assert ended.proven
    assert [[sent.signal for sent in row.signals] for row in ended.rows] == [["SIGTERM", "SIGCONT"]] * 2


def test_l5_a_process_that_is_killed_with_its_group_says_so(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.run(("/bin/bash", "-c", "trap '' TERM; sleep 100 & echo ready; wait; sleep 100"))
        b.owner.wait_text("ready")
        b.trees.kill("p", 0.2)
        ended = b.owner.ended()
    assert ended.proven
    assert len(ended.rows) == 2
    assert all(row.signals[-1].signal == "SIGKILL" for row in ended.rows)


# ── What people reported ──────────────────────────────────────────────────────────────────────────


def test_clawsweeper_1502_a_child_that_ignores_term_and_two_kills(b: Bench) -> None:
    b.sh("(trap '' TERM; echo deaf; while :; do sleep 1; done) & wait")
    b.owner.wait_text("deaf")
    b.trees.kill("p", 10_000.0)
    until(lambda: '"SIGTERM"' in b.ledger_text(), "the first kill asks")
    b.trees.kill("p", 0.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    assert ended.proven
    assert {"SIGTERM", "SIGCONT", "SIGKILL"} == {sent.signal for sent in ended.signals}


def test_daintree_9107_a_stopped_child_that_ignores_term_is_continued_and_then_killed(b: Bench) -> None:
    b.sh("trap '' TERM; echo ready; kill -STOP $$; echo continued; while :; do sleep 0.05; done")
    pid = b.owner.started().pid
    until(lambda: (seen := procfs.stat(pid)) is not None and seen.state == "T", "stopped")
    b.trees.kill("p", 10_000.0)
    b.owner.wait_text("continued")
    b.trees.kill("p", 0.0)
    ended = b.owner.ended()
    b.assert_nobody_left()
    (row,) = [row for row in ended.rows if row.pid == pid]
    assert [sent.signal for sent in row.signals] == ["SIGTERM", "SIGCONT", "SIGKILL"]


def test_airflow_65738_a_kill_in_any_moment_of_a_spawn_never_hits_the_group_of_the_daemon(b: Bench) -> None:
    canary = subprocess.Popen(["sleep", "1000"])
    try:
        assert os.getpgid(canary.pid) == os.getpgrp()
        zygote = b.zygote_pid()
        for number in range(30):
            b.sh("sleep 1000", f"p{number}")
            if number % 3:
                b.settle()
            b.trees.kill(f"p{number}", (number % 2) * 5.0)
        for number in range(30):
            assert b.owner.ended(f"p{number}").proven
        assert canary.poll() is None
        assert b.zygote_pid() == zygote
    finally:
        canary.kill()
        canary.wait()


def test_l13_a_process_below_a_spared_one_is_not_signalled() -> None:
    """A number that was of the tree when it was listed may be of another tree by now."""
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        below = int(child.stdout.readline())
        try:
            assert killing.kill_descendant(below, 0) == (True, None)
            assert killing.kill_descendant(below, signal.SIGKILL, {child.pid}) == (False, None)
            assert (seen := procfs.stat(below)) is not None
            assert not seen.dead
        finally:
            os.kill(below, signal.SIGKILL)


def test_cpython_127049_only_what_descends_from_the_sender_is_signalled() -> None:
    # Signal 0 asks, and does nothing.
    assert killing.kill_descendant(1, 0) == (False, None)
    assert killing.kill_descendant(os.getppid(), 0) == (False, None)
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert killing.kill_descendant(child.pid, 0) == (True, None)
    finally:
        child.kill()
        child.wait()
    assert killing.kill_descendant(child.pid, 0) == (False, None)


def test_rq_1193_hermes_81292_killed_trees_leave_no_zombie_descriptor_thread_or_memory(b: Bench) -> None:
    def kill_some(first: int, count: int) -> None:
        for number in range(first, first + count):
            b.sh("setsid sleep 1000 & sleep 1000 & echo up; wait", f"p{number}")
        for number in range(first, first + count):
            b.owner.wait_text("up", f"p{number}")
            b.trees.kill(f"p{number}", 0.0)
        for number in range(first, first + count):
            assert b.owner.ended(f"p{number}").proven
            b.trees.forget(f"p{number}")
        until(lambda: not b.wardens(), "the zygote has reaped its wardens")

    def resident_kb() -> int:
        status = Path(f"/proc/{zygote}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    zygote = b.zygote_pid()
    kill_some(0, 20)
    descriptors, threads = b.descriptors_at_rest(), threading.enumerate()
    children, resident = our_children(), resident_kb()
    kill_some(20, 80)
    until(lambda: b.descriptors_at_rest() <= descriptors, "no descriptor is left")
    assert set(threading.enumerate()) <= set(threads)
    assert set(our_children()) <= set(children)
    assert resident_kb() - resident < 1024
    assert len(os.listdir(f"/proc/{zygote}/fd")) < 12
    b.assert_nobody_left()


def assert_frozen(news: ProcessRemaining, pid: int) -> None:
    """It names one process, which got the signal and is in state D."""
    (row,) = news.rows
    assert (row.pid, row.how, row.ended_at) == (pid, How.ABANDONED, None)
    assert row.note == "got SIGKILL, and is in an uninterruptible wait (state D)"


@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="no freezer to put a process into state D with")
def test_circus_1023_a_process_that_cannot_be_killed_is_named_and_not_said_to_be_stopped(b: Bench) -> None:
    b.sh("sleep 1000 & echo up; wait")
    b.owner.wait_text("up")
    (sleeper,) = procfs.children(b.owner.started().pid)
    until(lambda: (seen := procfs.stat(sleeper)) is not None and seen.name == "sleep", "it is executed")
    with frozen(sleeper):
        b.trees.kill("p", 0.0)
        later, other = Recorder(), Recorder()
        assert_frozen(b.owner.wait(ProcessRemaining), sleeper)
        b.trees.adopt("p", later)  # type: ignore[arg-type]
        assert_frozen(later.wait(ProcessRemaining), sleeper)
        b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
        with closing(b.new_trees()) as next_daemon:
            next_daemon.adopt("p", other)  # type: ignore[arg-type]
            assert_frozen(other.wait(ProcessRemaining), sleeper)
        assert "ProcessEnded" not in b.owner.kinds()
    ended = b.owner.ended()
    assert ended.proven
    assert ended.note == f"took long to end after SIGKILL: sleep (pid {sleeper}, state D)"
    assert all(row.ended_at is not None for row in ended.rows), "who remained is gone too"
    b.assert_nobody_left()


def test_inspect_ai_1357_the_far_side_of_a_command_is_named_as_out_of_reach(b: Bench, tmp_path: Path) -> None:
    for name in ("ssh", "docker"):
        (tmp_path / name).symlink_to("/bin/sleep")
    b.sh(f"{tmp_path}/ssh 1000 & echo up; wait; docker run -d image")
    b.run((str(tmp_path / "ssh"), "1000"), "itself")
    b.sh("echo docker exec", "innocent")
    b.owner.wait_text("up")
    assert b.owner.ended("innocent").rows[-1].kind == "process"
    for process_id in ("p", "itself"):
        b.owner.started(process_id)
        b.trees.kill(process_id, 5.0)
    ended = b.owner.ended()
    assert ended.proven, "what is here is gone"
    far = {row.name: row for row in ended.rows if row.how is How.OUT_OF_REACH}
    assert set(far) == {"ssh 1000", "docker run -d image"}
    assert {row.kind for row in far.values()} == {"remote"}
    # Seen where it ran; or, killed between its fork and its exec, known from the script alone.
    assert far["ssh 1000"].note.startswith("'ssh 1000' ")
    assert "what it started elsewhere is out of reach" in far["ssh 1000"].note
    assert "is named in the script" in far["docker run -d image"].note
    assert [row.name for row in b.owner.ended("itself").rows if row.kind == "remote"] == ["ssh 1000"]


@pytest.mark.parametrize("layers", [LAYERS, NO_CGROUP], ids=["with groups", "without"])
@pytest.mark.parametrize("end", ["killed at once", "its warden is killed"])
def test_a_far_side_deep_in_a_tree_is_named_however_the_tree_ends(
    tmp_path: Path, layers: frozenset[str], end: str
) -> None:
    # A dead process has no command line, and its name does not say it: it is of the shell that was executed.
    deep = tmp_path / "deep.py"
    deep.write_text(
        "import os, sys, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0: continue\n"
        "    os.wait()\n"
        "os.execv('/bin/sh', ['docker', sys.argv[1], 'web'])\n"
    )
    (tmp_path / "exec").write_text("echo up; sleep 1000; :")
    with bench(tmp_path / "state", layers=layers) as b:
        b.run((sys.executable, str(deep), "exec"), cwd=str(tmp_path))
        b.owner.wait_text("up")
        if end == "killed at once":
            b.trees.kill("p", 0.0)
        else:
            os.kill(b.warden_of(b.owner.started().pid), signal.SIGKILL)
        ended = b.owner.ended()
        assert ended.proven
        assert [(row.name, row.how) for row in ended.rows if row.kind == "remote"] == [
            ("docker exec web", How.OUT_OF_REACH)
        ]
        b.assert_nobody_left()


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────


def test_a_command_has_the_limits_of_the_configuration_for_good_and_its_warden_has_not(tmp_path: Path) -> None:
    limits = {"nofile": 64, "cpu_s": 7, "core_bytes": 0, "fsize_bytes": 4096, "nproc": 500, "as_bytes": 2**31}
    with bench(tmp_path, limits=limits) as b:
        script = (
            "import resource as r\n"
            "for name in ('NOFILE', 'CPU', 'CORE', 'FSIZE', 'NPROC', 'AS'):\n"
            "    print(*r.getrlimit(getattr(r, 'RLIMIT_' + name)))\n"
            "input()\n"
        )
        b.run((PYTHON, "-S", "-c", script))
        b.owner.ended()
        wanted = ["64 64", "7 7", "0 0", "4096 4096", "500 500", f"{2**31} {2**31}"]
        assert b.owner.text(stream="stdout").splitlines() == wanted
        b.sh("echo up; exec sleep 1000", "q")
        b.owner.wait_text("up", "q")
        text = Path(f"/proc/{b.warden_of(b.owner.started('q').pid)}/limits").read_text()
        assert "Max cpu time              unlimited" in text


def test_a_limit_above_what_we_may_have_ourselves_is_what_we_may_have(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with bench(tmp_path, limits={"nofile": most * 2}) as b:
        b.sh("ulimit -Hn")
        assert b.owner.ended().status == 0
        assert b.owner.text() == f"{most}\n"


def test_the_names_of_limits_and_layers_are_the_same_on_both_sides() -> None:
    assert set(command.LIMITS) == LIMITS
    assert warden.LAYERS == LAYERS
    assert warden.OPTIONAL_LAYERS == OPTIONAL_LAYERS


# ── An ordinary user ──────────────────────────────────────────────────────────────────────────────

ORDINARY = """
import os, sys
from pathlib import Path
assert os.getresuid() == (65534, 65534, 65534)
from tests.process_kit import bench, until
from supervisor.config import LAYERS, LIMITS
walker, crowd, hider, bomb = sys.argv[2:]
python, layers = os.environ["FOR_EVERYBODY"], os.environ["LAYERS"].split(",")
with bench(Path(sys.argv[1]), limits={"nproc": 60}, layers=layers) as b:
    for name, script, word in (("hider", hider, "daemon"), ("walker", walker, "walking"), ("crowd", crowd, "warden")):
        b.run((python, "-S", "-c", script), name)
        b.owner.wait_text(word, name)
    for name in ("walker", "crowd", "hider"):
        print((b.group(name) is not None), end=" ")
        b.trees.kill(name, 0.0)
        print(b.owner.ended(name).proven, end=" ")
    b.run((python, "-S", "-c", bomb), "bomb")
    # It fills what its limit allows, and every one that is killed makes room for another.
    until(lambda: len(b.alive()) > 20, "the bomb")
    b.trees.kill("bomb", 0.0)
    print(b.owner.ended("bomb").proven, end=" ")
    b.assert_nobody_left()
    if "namespace" in layers:
        b.sh('echo $$ $(id -u) $(id -g) $(sed -n "s/^CapEff:[[:space:]]*//p" /proc/self/status)', "inside")
        assert b.owner.ended("inside").status == 0
        assert b.owner.text("inside") == "2 65534 65534 0000000000000000\\n", b.owner.text("inside")
    print("nobody left")
"""


def python_for_everybody() -> str:
    """A Python that an ordinary user may run without a capability, which none has in a user namespace."""
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    for python in (PYTHON, "/usr/bin/python3", "/usr/local/bin/python3"):
        with suppress(OSError):
            if subprocess.run([python, "-c", ""], check=False, **nobody).returncode == 0:
                return python
    pytest.skip("no Python here that an ordinary user may run")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="this user cannot become an ordinary one"
)
@pytest.mark.parametrize(
    "layers", [LAYERS, pytest.param(NAMESPACE, marks=needs_namespaces)], ids=["default", "namespace"]
)
@pytest.mark.parametrize("delegated", [False, pytest.param(True, marks=needs_cgroups)])
def test_l3_as_an_ordinary_user_with_and_without_a_delegated_group(delegated: bool, layers: frozenset[str]) -> None:
    python = python_for_everybody() if "namespace" in layers else PYTHON
    folder = Path(tempfile.mkdtemp(prefix="countermand-test-"))
    os.chown(folder, 65534, 65534)
    group = Path(OWN_GROUP or "/nowhere") / folder.name
    join = ""
    try:
        if delegated:
            group.mkdir()
            for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
                os.chown(group / name, 65534, 65534)
            join = f"echo 0 > {group}/cgroup.procs; "
        # It may read what root has installed, where that is hidden; beyond that it is a user like any other.
        caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *caps]
        argv = [*who, PYTHON, "-c", ORDINARY, str(folder), WALKER, CROWD, DAEMON, LIMITED_BOMB]
        done = subprocess.run(
            ["/bin/sh", "-c", join + 'exec "$0" "$@"', *argv],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HOME": "/",
                "LAYERS": ",".join(layers),
                "FOR_EVERYBODY": python,
            },
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        if delegated:
            assert cgroups.end(str(group), 20.0)
        shutil.rmtree(folder)
    assert done.stdout == f"{delegated} True " * 3 + "True nobody left\n", done.stderr
