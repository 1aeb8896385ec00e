"""Whom a command runs as, within which limits, and how nice it is: of each command apart, and of no other."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.model import How
from supervisor.config import LAYERS
from supervisor.containment.guard import account, command, procfs
from tests.process_kit import NAMESPACE, NO_CGROUP, Bench, bench, needs_cgroups, needs_namespaces, until
from tests.test_warden import ROOT

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user, or go ahead of others")
NOBODY = pwd.getpwnam("nobody")
SCRATCH = "/"


@pytest.fixture(
    params=[
        pytest.param(LAYERS, id="cgroup", marks=needs_cgroups),
        pytest.param(NO_CGROUP, id="plain"),
        pytest.param(NAMESPACE - {"cgroup"}, id="namespace", marks=needs_namespaces),
    ]
)
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(tmp_path, layers=request.param) as opened:
        yield opened


def ordinary(script: str, *words: str, caps: str = "") -> str:
    """What a script prints that runs as nobody, with the directory of its first word, and with some capabilities."""
    # It may read what root has installed, where that is hidden.
    given = ",".join(["+dac_read_search", *filter(None, [caps])])
    who = ["setpriv", f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups"]
    folder = Path(tempfile.mkdtemp(prefix="countermand-test-"))
    os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
    argv = [*who, f"--inh-caps={given}", f"--ambient-caps={given}", sys.executable, "-c", script, str(folder), *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/"}
    try:
        done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ── Users ─────────────────────────────────────────────────────────────────────────────────────────


@needs_root
@pytest.mark.parametrize("user", ["nobody", str(NOBODY.pw_uid)], ids=["name", "uid"])
def test_a_command_runs_as_its_user_with_the_groups_and_the_environment_of_that(b: Bench, user: str) -> None:
    script = (
        "sed -n 's/^[UG]id:[[:space:]]*//p; s/^Groups:[[:space:]]*//p; s/^Cap[IPEA][a-z]*:[[:space:]]*//p' "
        '/proc/self/status; echo "$HOME $USER $LOGNAME $SHELL"'
    )
    b.sh(script, cwd=SCRATCH, user=user)
    ended = b.owner.ended()
    assert ended.status == 0, ended.note
    uids, gids, groups, *rest = b.owner.text().splitlines()
    assert set(uids.split()) == {str(NOBODY.pw_uid)}
    assert set(gids.split()) == {str(NOBODY.pw_gid)}
    assert set(map(int, groups.split())) == set(os.getgrouplist(NOBODY.pw_name, NOBODY.pw_gid))
    assert rest[:-1] == ["0" * 16] * 4
    assert rest[-1] == f"{NOBODY.pw_dir} nobody nobody {NOBODY.pw_shell}"


@needs_root
def test_what_a_command_asks_for_in_its_environment_comes_before_what_its_user_has(tmp_path: Path) -> None:
    with bench(tmp_path, environment={"PATH": os.defpath, "HOME": "/root", "TMPDIR": "/root/tmp"}) as b:
        b.mark = "USER=somebody"
        b.sh('echo "$HOME $USER $LOGNAME ${TMPDIR-none}"', cwd=SCRATCH, user="nobody")
        assert b.owner.ended().status == 0
        assert b.owner.text() == f"{NOBODY.pw_dir} somebody nobody none\n"


@needs_root
@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "pty"])
def test_a_user_can_open_what_it_prints_to_by_name(b: Bench, pty: bool) -> None:
    b.sh("echo out > /dev/stdout; echo err > /dev/stderr", cwd=SCRATCH, user="nobody", pty=pty)
    assert b.owner.ended().status == 0
    assert sorted(b.owner.text().split()) == ["err", "out"]
    # Nothing but its own streams was given away.
    assert os.stat(os.devnull).st_uid == 0


@needs_root
def test_l3_a_tree_of_another_user_is_asked_and_killed_as_any_and_proven_gone(b: Bench) -> None:
    b.sh("setsid sleep 1000 & trap '' TERM; echo up; while :; do sleep 0.05; done", cwd=SCRATCH, user="nobody")
    b.owner.wait_text("up")
    b.trees.kill("p", 10_000.0)
    until(lambda: '"SIGCONT"' in b.ledger_text(), "it is asked to end")
    b.trees.kill("p", 0.3)
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.SIGKILL, True)
    assert [(one.signal, one.error) for one in ended.signals] == [
        ("SIGTERM", None), ("SIGCONT", None), ("SIGKILL", None),
    ]  # fmt: skip
    b.assert_nobody_left()


@needs_root
def test_l3_what_another_user_has_is_ended_when_its_warden_is_killed(b: Bench) -> None:
    b.sh("setsid sleep 1000 & echo up; wait", cwd=SCRATCH, user="nobody")
    b.owner.wait_text("up")
    os.kill(b.warden_of(b.owner.started().pid), 9)
    assert b.owner.ended().proven
    b.assert_nobody_left()


@needs_root
def test_a_directory_that_its_user_may_not_enter_is_named(b: Bench, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    b.sh("true", cwd=str(closed), user="nobody")
    ended = b.owner.ended()
    assert (ended.how, ended.note) == (
        How.NOT_STARTED,
        (
            f"cannot enter the directory {str(closed)!r}: Permission denied: let the user 'nobody' enter it, or set "
            "cwd to a directory that this user may enter"
        ),
    )


@needs_root
@pytest.mark.parametrize("shut", ["directory", "program"])
def test_where_the_supervisor_was_started_may_be_shut_to_its_user_and_that_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut: str
) -> None:
    tmp_path.chmod(0o700)
    program = tmp_path / "program"
    program.symlink_to("/bin/sh")
    # A directory that was left out is that in which the supervisor was started.
    monkeypatch.chdir(tmp_path if shut == "directory" else SCRATCH)
    with bench(tmp_path / "state") as b:
        b.run((str(program), "-c", "true") if shut == "program" else ("true",), user="nobody")
        ended = b.owner.ended()
        assert ended.how is How.NOT_STARTED
        assert ended.note == (
            f"cannot enter the directory {str(tmp_path)!r}: Permission denied: let the user 'nobody' enter it, or set "
            "cwd to a directory that this user may enter"
            if shut == "directory"
            else f"cannot execute {str(program)!r}: Permission denied: let the user 'nobody' execute it and enter the "
            "directories above it, or name another program"
        )


@pytest.mark.parametrize("user", ["no-such-user", "4294967290", "", "99999999999999999999", "-1"])
def test_a_user_that_there_is_not_is_not_taken_for_another(b: Bench, user: str) -> None:
    b.sh("id", user=user)
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.NOT_STARTED, True)
    assert ended.note.startswith(f"cannot run as the user {user!r}: there is no account")
    assert ended.note.endswith(": add one to this machine, or name another user")


def test_our_own_user_needs_no_right(b: Bench) -> None:
    b.sh("id -u", user=str(os.geteuid()))
    assert b.owner.ended().status == 0
    assert b.owner.text() == f"{os.geteuid()}\n"


REFUSED = """
import sys
from pathlib import Path
from tests.process_kit import bench
with bench(Path(sys.argv[1])) as b:
    b.sh("id", user="root")
    print(b.owner.ended().how, b.owner.ended().note)
    b.sh("id -u", "own", user="nobody")
    b.owner.ended("own")
    print(b.owner.text("own"), end="")
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no way to become an ordinary user")
@pytest.mark.parametrize(
    ("caps", "lacking"),
    [("", "CAP_KILL, CAP_SETGID, CAP_SETUID"), ("+setuid,+setgid", "CAP_KILL"), ("+kill,+setuid", "CAP_SETGID")],
)
def test_a_daemon_that_may_not_change_users_or_not_end_another_ones_processes_refuses_and_says_what_to_do(
    caps: str, lacking: str
) -> None:
    told = f"not_started cannot run as the user 'root': this daemon has no {lacking}: {account.REMEDY}\n"
    assert ordinary(REFUSED, caps=caps) == f"{told}{NOBODY.pw_uid}\n"


CAPABLE = """
import sys
from pathlib import Path
from tests.process_kit import bench
with bench(Path(sys.argv[1])) as b:
    script = "id -u; sed -n 's/^Cap[IPEA][a-z]*:[[:space:]]*//p' /proc/self/status; exec sleep 1000"
    b.sh(script, cwd="/", user=sys.argv[2])
    b.owner.wait_text("0" * 16 + "\\n" + "0" * 16)
    b.trees.kill("p", 20.0)
    print(b.owner.ended().how, b.owner.ended().proven)
    print(b.owner.text(), end="")
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no way to become an ordinary user")
def test_l3_a_daemon_with_the_three_capabilities_gives_none_of_them_to_the_command() -> None:
    other = next(one for one in pwd.getpwall() if one.pw_uid not in (0, NOBODY.pw_uid))
    told = ordinary(CAPABLE, other.pw_name, caps="+setuid,+setgid,+kill").splitlines()
    # What it could inherit is of no use to a program that has no capabilities of its own.
    how, uid, _, *held = told
    assert (how, uid, held) == ("sigterm True", str(other.pw_uid), ["0" * 16] * 3)


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────


def test_the_limits_of_a_command_are_over_those_of_the_configuration_and_its_own_alone(tmp_path: Path) -> None:
    with bench(tmp_path, limits={"nofile": 64, "core_bytes": 0}) as b:
        b.sh("ulimit -n; ulimit -c; ulimit -t", limits={"nofile": 50, "cpu_s": 9})
        b.owner.ended()
        b.sh("ulimit -n; ulimit -c; ulimit -t", "other")
        b.owner.ended("other")
        assert b.owner.text().split() == ["50", "0", "9"]
        assert b.owner.text("other").split() == ["64", "0", "unlimited"]


@pytest.mark.parametrize("wrong", [{"memory": 5}, {"nofile": -1}, {"nofile": 2**63}, {"nofile": "5"}, {"nofile": True}])
def test_what_is_no_limit_is_named_and_the_command_is_not_started(b: Bench, wrong: dict[str, int]) -> None:
    b.sh("true", limits=wrong)
    ended = b.owner.ended()
    assert (ended.how, ended.proven) == (How.NOT_STARTED, True)
    assert ended.note == (
        f"cannot limit {next(iter(wrong))}: a limit is one of {', '.join(command.LIMITS)}, and a whole number from 0"
    )


# ── Niceness ──────────────────────────────────────────────────────────────────────────────────────

BUSY = """
import os, subprocess, sys, threading, time
stop = threading.Event()
for _ in range(3):
    threading.Thread(target=stop.wait, daemon=True).start()
child = subprocess.Popen(["sleep", "1000"])
chosen = subprocess.Popen(["nice", "-n", "3", "sleep", "1000"])
print("up", flush=True)
time.sleep(1000)
"""
"""A command with threads, a child, and one that is nicer by its own choice."""
OURS = os.getpriority(os.PRIO_PROCESS, 0)


def values(pid: int) -> list[int]:
    """The nice values of the threads of a process, and of its children's, over ours; sorted, each once."""
    seen: set[int] = set()
    for one in [pid, *procfs.children(pid)]:
        for tid in os.listdir(f"/proc/{one}/task"):
            seen.add(os.getpriority(os.PRIO_PROCESS, int(tid)) - OURS)
    return sorted(seen)


@needs_root
@pytest.mark.parametrize("user", [None, "nobody"], ids=["own", "other"])
def test_a_tree_is_as_nice_as_it_was_asked_to_be_until_that_is_taken_back_from_all_of_it(
    b: Bench, user: str | None
) -> None:
    python = sys.executable if user is None else shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python here that an ordinary user may run")
    b.run((python, "-S", "-c", BUSY), cwd=SCRATCH, nice=10, user=user)
    b.owner.wait_text("up")
    pid = b.owner.started().pid
    until(lambda: values(pid) == [10, 13], "all of it gives way")
    b.trees.set_nice("p", 4)
    until(lambda: values(pid) == [4, 13], "less so, but for the one that has chosen")
    b.trees.set_nice("p", 0)
    until(lambda: values(pid) == [0, 13], "no more")
    assert len(procfs.children(pid)) == 2
    warden = b.warden_of(pid)
    assert os.getpriority(os.PRIO_PROCESS, warden) == -20
    b.sh("exec sleep 1000", "later")
    later = b.owner.started("later").pid
    # It runs ahead of others for the exec; its warden takes that back when it sees that it was executed.
    until(lambda: values(later) == [0], "another command is as nice as the daemon")


@needs_root
def test_what_a_nice_command_forks_at_once_is_as_nice(b: Bench) -> None:
    for number in range(10):
        b.sh("nice & nice; wait", f"p{number}", nice=7)
    for number in range(10):
        b.owner.ended(f"p{number}")
        assert b.owner.text(f"p{number}").split() == [str(OURS + 7)] * 2


@needs_root
def test_a_niceness_that_is_taken_back_before_the_command_has_started_is_not_lost(b: Bench) -> None:
    with b.unable_to_spawn(b.zygote_pid()):
        b.sh("exec sleep 1000", nice=10)
        b.trees.set_nice("p", 0)
        b.settle()
    pid = b.owner.started().pid
    until(lambda: values(pid) == [0], "it is as nice as the daemon")


@needs_root
@pytest.mark.parametrize(("asked", "given"), [(100, 19), (-5, 0)])
def test_a_niceness_is_between_the_daemons_and_the_most_that_there_is(b: Bench, asked: int, given: int) -> None:
    b.sh("nice", nice=asked)
    b.owner.ended()
    assert b.owner.text() == f"{min(19, OURS + given)}\n"


def test_an_unknown_or_ended_process_is_not_made_nicer(b: Bench) -> None:
    b.trees.set_nice("stranger", 5)
    b.sh("true")
    b.owner.ended()
    b.trees.set_nice("p", 5)
    b.settle()
    b.sh("echo on", "q")
    assert b.owner.ended("q").status == 0


ORDINARY = """
import sys
from pathlib import Path
from tests.process_kit import bench
with bench(Path(sys.argv[1])) as b:
    b.sh("nice", nice=10)
    b.owner.ended()
    print(b.owner.text(), end="")
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no way to become an ordinary user")
def test_a_daemon_that_could_not_take_it_back_makes_no_command_nicer() -> None:
    assert ordinary(ORDINARY) == f"{OURS}\n"
