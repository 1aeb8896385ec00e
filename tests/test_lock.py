"""The lock of a state directory: who gets it, who is refused and told why, and who may look."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.errors import Invalid, StateDirBusy, StoreUnavailable
from supervisor import lock
from supervisor.containment.guard import procfs
from supervisor.lock import InstanceLock, held, holder
from tests.process_kit import WAIT_S, held_by, until

ROOT = Path(__file__).parent.parent

HOLDER = """
import sys, pathlib, supervisor.lock
lock = supervisor.lock.InstanceLock(pathlib.Path(sys.argv[1]))
print("holds", flush=True)
sys.stdin.read()
"""

ASKER = """
import sys, pathlib, supervisor.lock
print("asks", flush=True)
while True:
    supervisor.lock.held(pathlib.Path(sys.argv[1]))
"""

KILLED_AS_IT_STARTS_A_CHILD = """
import os, pathlib, signal, subprocess, sys, supervisor.lock
lock = supervisor.lock.InstanceLock(pathlib.Path(sys.argv[1]))
# As between the fork and the exec of a child: it has the descriptors.
child = subprocess.Popen(["sleep", "600"], pass_fds=lock._fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

OF_THE_FIRST_RELEASE = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("refused", flush=True)
else:
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\\n".encode(), 0)
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@contextmanager
def other(program: str, state: Path) -> Iterator[tuple[int, str]]:
    """A process with a program; its pid, and its first word."""
    argv = [sys.executable, "-c", program, str(state)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(pid: int) -> bool:
    """True of a process that has ended, reaped or not."""
    seen = procfs.stat(pid)
    return seen is None or seen.state == "Z"


def test_the_lock_of_one_that_was_killed_as_it_started_a_child_is_waited_for(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    with other(KILLED_AS_IT_STARTS_A_CHILD, state) as (pid, word):
        child = int(word)

        def look(holding: int, is_dead: Callable[[int], bool] = lock._is_dead) -> bool:
            looks.append(holding)
            if len(looks) == 3:
                # Its exec, or its end, closes them.
                os.kill(child, signal.SIGKILL)
                until(lambda: ended(child), "its end")
            return is_dead(holding)

        try:
            until(lambda: ended(pid), "its end")
            monkeypatch.setattr(lock, "GONE_S", 0.0)
            with pytest.raises(StateDirBusy) as caught:
                InstanceLock(state)
            assert caught.value.pid == pid
            monkeypatch.setattr(lock, "GONE_S", WAIT_S)
            monkeypatch.setattr(lock, "_is_dead", look)
            InstanceLock(state).release()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    assert looks[:3] == [pid] * 3


def test_a_second_one_is_refused_and_the_holder_is_named(state: Path) -> None:
    with other(HOLDER, state) as (pid, word):
        assert (word, held(state), holder(state / "lock")) == ("holds", True, pid)
        with pytest.raises(StateDirBusy) as caught:
            InstanceLock(state)
        assert caught.value.pid == pid
    assert not held(state)
    InstanceLock(state).release()


def test_whose_lock_file_was_removed_still_holds_the_directory(state: Path) -> None:
    with other(HOLDER, state):
        (state / "lock").unlink()
        assert held(state)
        with pytest.raises(StateDirBusy):
            InstanceLock(state)
        assert held(state)


def test_whose_directory_was_removed_does_not_hold_the_next_of_that_name(state: Path) -> None:
    lock = InstanceLock(state)
    shutil.rmtree(state)
    assert not held(state)
    InstanceLock(state).release()
    lock.release()


def test_asking_refuses_no_start(state: Path) -> None:
    InstanceLock(state).release()
    with other(ASKER, state) as (_, word):
        assert word == "asks"
        for _ in range(3000):
            InstanceLock(state).release()


def test_a_process_that_is_stopped_while_it_checks_the_lock_refuses_no_start(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    InstanceLock(state).release()
    close, starts = os.close, list[int]()

    def and_start(fd: int) -> None:
        """Start, while whoever asks has not let go of what it has opened."""
        monkeypatch.setattr(os, "close", close)
        InstanceLock(state).release()
        starts.append(fd)
        monkeypatch.setattr(os, "close", and_start)
        close(fd)

    monkeypatch.setattr(os, "close", and_start)
    assert not held(state)
    assert len(starts) == 2


def test_a_daemon_of_the_first_release_is_respected_and_respects_the_next(state: Path) -> None:
    InstanceLock(state).release()
    with other(OF_THE_FIRST_RELEASE, state) as (pid, word):
        assert (word, held(state)) == ("holds", True)
        with pytest.raises(StateDirBusy) as caught:
            InstanceLock(state)
        assert caught.value.pid == pid
    lock = InstanceLock(state)
    with other(OF_THE_FIRST_RELEASE, state) as (_, word):
        assert word == "refused"
    assert holder(lock.path) == os.getpid()
    lock.release()


@pytest.mark.parametrize("what", ["link", "second name", "pipe", "directory"])
def test_what_is_no_lock_of_its_own_is_refused_and_not_touched(state: Path, tmp_path: Path, what: str) -> None:
    state.mkdir(mode=0o700)
    lock, precious = state / "lock", tmp_path / "precious"
    precious.write_text("precious, and longer than a pid")
    match what:
        case "link":
            lock.symlink_to(precious)
        case "second name":
            lock.hardlink_to(precious)
        case "pipe":
            os.mkfifo(lock)
        case _:
            lock.mkdir()
    with pytest.raises(Invalid) as caught:
        InstanceLock(state)
    assert f"ls -l {lock}" in caught.value.remedy
    assert precious.read_text() == "precious, and longer than a pid"
    assert not held(state)


def test_the_pid_of_a_holder_takes_the_place_of_a_longer_one(state: Path) -> None:
    InstanceLock(state).release()
    (state / "lock").write_text("4194303\n")
    lock = InstanceLock(state)
    assert holder(lock.path) == os.getpid()
    lock.release()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777, 0o730])
def test_a_directory_that_is_open_to_others_is_refused(state: Path, mode: int) -> None:
    state.mkdir()
    (state / "store.sqlite3").touch()
    state.chmod(mode)
    with pytest.raises(Invalid) as caught:
        InstanceLock(state)
    assert f"chmod 700 {state}" in caught.value.remedy
    assert [one.name for one in state.iterdir()] == ["store.sqlite3"]
    assert stat.S_IMODE(state.stat().st_mode) == mode
    state.chmod(0o700)
    InstanceLock(state).release()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_an_empty_directory_that_others_may_only_read_is_closed_to_them(state: Path, mode: int) -> None:
    state.mkdir()
    state.chmod(mode)
    InstanceLock(state).release()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_an_empty_directory_that_others_may_write_is_refused(state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(Invalid):
        InstanceLock(state)
    assert list(state.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused_also_for_root(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 65534, -1)
    with pytest.raises(Invalid) as caught:
        InstanceLock(state)
    assert "run this as uid 65534" in caught.value.remedy
    assert list(state.iterdir()) == []


def test_a_directory_that_is_made_is_private(state: Path) -> None:
    InstanceLock(state / "below").release()
    assert stat.S_IMODE((state / "below").stat().st_mode) == 0o700


def test_a_directory_that_leads_elsewhere_is_the_one_behind_it(state: Path, tmp_path: Path) -> None:
    lock = InstanceLock(state)
    (tmp_path / "link").symlink_to(state)
    assert held(tmp_path / "link")
    with pytest.raises(StateDirBusy):
        InstanceLock(tmp_path / "link")
    lock.release()


def test_what_is_no_directory_is_refused(state: Path) -> None:
    state.write_text("")
    with pytest.raises(StoreUnavailable):
        InstanceLock(state)
    assert not held(state)


def test_of_many_that_start_at_once_one_gets_it(state: Path) -> None:
    argv = [sys.executable, "-c", HOLDER, str(state)]
    many = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
        for _ in range(6)
    ]
    try:
        until(lambda: sum(one.poll() is not None for one in many) == 5, "five were refused")
        (holds,) = (one for one in many if one.poll() is None)
        assert holds.stdout is not None
        assert holds.stdout.readline() == b"holds\n"
        assert holder(state / "lock") == holds.pid
    finally:
        for one in many:
            one.kill()
            one.communicate()


def test_a_lock_that_the_kernel_refuses_leaves_nothing_open(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir(mode=0o700)
    flock = fcntl.flock

    def refused(fd: int, kind: int) -> None:
        if kind != fcntl.LOCK_UN:
            raise OSError(37, "No locks available")
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StoreUnavailable) as caught:
        InstanceLock(state)
    assert "No locks available" in caught.value.got
    # Not by their number: what an earlier test has left may be closed meanwhile.
    assert not [one for one in held_by(os.getpid()) if one.startswith(str(state))]
