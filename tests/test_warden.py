"""The warden and its ledger when the daemon dies, at every point of a spawn, and what the next daemon finds.

The file has over 600 lines, and is whole: one program, killed at each point, and the next one's view of that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.model import How
from supervisor.config import LAYERS
from supervisor.containment.guard import ledger, procfs
from supervisor.containment.guard.killing import ROUNDS_MAX, Killing
from supervisor.containment.guard.survivors import began
from tests.process_kit import NO_CGROUP, Bench, Recorder, bench, needs_cgroups, until

ROOT = Path(__file__).parent.parent
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a process that it may not signal")

DAEMON = """
import json, os, sys, time
from pathlib import Path
from actors.ports import SpawnSpec
from supervisor.containment.processes.trees import ProcessTrees

class Clock:
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

class Owner:
    def tell(self, report):
        print(type(report).__name__, getattr(report, "pid", ""), getattr(report, "text", "").strip(), flush=True)

layers = {"layers": sys.argv[2].split(",")} if sys.argv[2] else {}
trees = ProcessTrees(Path(sys.argv[1]), Clock(), **layers)
trees.start()
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "spawn":
        trees.spawn(request["id"], SpawnSpec(tuple(request["argv"]), "x", env=request["env"]), Owner())
    elif request["do"] == "leak":
        if os.fork() == 0:
            time.sleep(1000)
        print("leaked", flush=True)
"""


class Daemon:
    """A daemon in a process of its own, to be killed."""

    def __init__(self, bench_: Bench, layers: Collection[str] = ()) -> None:
        self.bench = bench_
        name, value = bench_.mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(bench_.state_dir), ",".join(layers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def ask(self, **request: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def spawn(self, script: str, process_id: str = "p") -> None:
        name, value = self.bench.mark.split("=")
        self.ask(do="spawn", id=process_id, argv=["/bin/sh", "-c", script], env={name: value})

    def zygote(self) -> int:
        pids: list[int] = []

        def found() -> bool:
            children = [procfs.stat(pid) for pid in procfs.children(self.process.pid)]
            pids[:] = [seen.pid for seen in children if seen is not None and seen.name == "cm-zygote"]
            return bool(pids)

        until(found, "the zygote of the daemon")
        return pids[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as opened:
        yield opened


@contextmanager
def daemon(b: Bench, layers: Collection[str] = ()) -> Iterator[Daemon]:
    opened = Daemon(b, layers)
    try:
        yield opened
    finally:
        opened.close()


def test_l3_after_kill_9_of_the_daemon_everything_is_dead_and_the_ledger_says_so(b: Bench) -> None:
    with daemon(b) as victim:
        victim.spawn("trap '' TERM; sleep 1000 & setsid sleep 1000 & echo up; while :; do sleep 1; done")
        pid = int(victim.line().split()[1])
        assert victim.line() == "ProcessOutput  up"
        zygote, warden = victim.zygote(), b.warden_of(pid)
        victim.kill()
        b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
        ended = b.owner.ended()
        b.assert_nobody_left()
        assert (ended.how, ended.status, ended.proven, ended.pid) == (How.SIGKILL, -9, True, pid)
        assert ended.reaped >= 3
        # A child that the kill found between its fork and its exec still has the shell's name.
        assert {"sh"} <= {row.name for row in ended.rows} <= {"sh", "sleep", "setsid"}
        assert len(ended.rows) >= 3
        assert json.loads(b.ledger_text().splitlines()[-1])["word"] == "empty"
        until(lambda: procfs.stat(warden) is None and procfs.stat(zygote) is None, "warden and zygote are gone")


def test_l3_after_the_daemons_death_all_processes_are_killed_without_sigterm(b: Bench) -> None:
    with daemon(b) as victim:
        # It would go on after a SIGTERM, and say so.
        victim.spawn("trap 'echo asked' TERM; sleep 1000 & echo up; while :; do wait; done")
        victim.line()
        assert victim.line() == "ProcessOutput  up"
        victim.kill()
        b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
        ended = b.owner.ended()
        assert ended.proven
        sent = {signal.signal for row in ended.rows for signal in row.signals} | {one.signal for one in ended.signals}
        assert "SIGTERM" not in sent
        assert {row.how for row in ended.rows} == {How.SIGKILL}


def test_l3_a_forked_copy_of_the_daemons_sockets_does_not_hide_its_death(b: Bench) -> None:
    with daemon(b) as victim:
        victim.spawn("echo up; exec sleep 1000")
        victim.line()
        assert victim.line() == "ProcessOutput  up"
        victim.ask(do="leak")
        assert victim.line() == "leaked"
        victim.kill()
        b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
        assert b.owner.ended().proven


def test_l3_the_daemon_dies_with_the_request_in_the_socket_and_nothing_is_ever_spawned(
    b: Bench, tmp_path: Path
) -> None:
    trace = tmp_path / "ran"
    with daemon(b) as victim:
        zygote = victim.zygote()
        with b.unable_to_spawn(zygote):
            victim.spawn(f"touch {trace}; exec sleep 1000")
            until(b.ledger_text, "the request is sent")
            # The daemon's one thread sends before it looks at a request that came later.
            victim.ask(do="spawn", id="later", argv=["true"], env={})
            until(lambda: b.ledger_text("later"), "the request is in the socket")
            victim.kill()
            b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
            ended = b.owner.ended()
            assert (ended.how, ended.proven, ended.note) == (How.NOT_STARTED, True, "never spawned")
        until(lambda: procfs.stat(zygote) is None, "the zygote has gone")
        assert not trace.exists()
        assert '"spawning"' not in b.ledger_text()


def test_adopting_waits_for_a_warden_that_is_still_ending_its_tree(b: Bench) -> None:
    left = leave(b, "x", sent(procfs.boot_id()), SPAWNING, STARTED)
    # A start looks through what was left, and lets it go again.
    held = ledger.Ledger.lock(left, wait=True)
    assert held is not None
    try:
        b.trees.adopt("x", b.owner)  # type: ignore[arg-type]
        b.sh("true", "later")
        b.owner.ended("later")
        assert b.owner.kinds("x") == []
        held.write({**ledger.fold(held.words), "word": "empty", "how": "sigkill", "status": -9, "at": 3.0})
    finally:
        held.close()
    ended = b.owner.ended("x")
    assert (ended.how, ended.proven) == (How.SIGKILL, True)


@pytest.mark.parametrize("both", [False, True])
def test_l3_a_warden_that_was_stopped_by_sigstop_does_not_outlive_its_daemon(b: Bench, both: bool) -> None:
    with daemon(b) as victim:
        victim.spawn("trap '' TERM; echo up; while :; do sleep 0.05; done")
        pid = int(victim.line().split()[1])
        victim.line()
        zygote, warden_pid = victim.zygote(), b.warden_of(pid)
        for one in (warden_pid, zygote) if both else (warden_pid,):
            os.kill(one, signal.SIGSTOP)
        victim.kill()
        if both:
            # The next daemon continues them.
            b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
            assert b.owner.ended().proven
        until(lambda: procfs.stat(zygote) is None and procfs.stat(warden_pid) is None, "warden and zygote have gone")
        b.assert_nobody_left()


def test_l3_a_warden_killed_after_its_daemon_leaves_its_tree_to_the_zygote_which_finishes_the_ledger(
    b: Bench,
) -> None:
    with daemon(b) as victim:
        victim.spawn("echo up; exec sleep 1000")
        pid = int(victim.line().split()[1])
        victim.line()
        warden = b.warden_of(pid)
        with b.stopped(warden):
            victim.kill()
            os.kill(warden, signal.SIGKILL)
        b.trees.adopt("p", b.owner)  # type: ignore[arg-type]
        ended = b.owner.ended()
        assert (ended.how, ended.status, ended.proven) == (How.SIGKILL, -9, True)
        b.assert_nobody_left()


# ── The warden alone ──────────────────────────────────────────────────────────────────────────────

WARDEN = """
import os, socket, sys
from supervisor.containment.guard import warden
sock, pidfd, out, err, spec = map(int, sys.argv[1:6])
os._exit(warden.main(socket.socket(fileno=sock), pidfd, [out, err, spec], sys.argv[6]))
"""


def run_warden(path: Path, trace: Path, daemon_pid: int, *, kill: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run a warden by itself, with a command that leaves a trace."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pidfd, out, err = os.pidfd_open(daemon_pid), *(os.open(os.devnull, os.O_WRONLY) for _ in range(2))
    spec = os.memfd_create("spec")
    command = {"word": "command", "argv": ["/bin/touch", str(trace)], "cwd": "/", "env": {"PATH": "/bin:/usr/bin"}}
    os.write(spec, json.dumps(command).encode())
    fds = (theirs.fileno(), pidfd, out, err, spec)
    try:
        with ours, theirs:
            if kill:
                ours.send(ledger.encode({"word": "kill", "grace_s": 1.0}))
            return subprocess.run(
                [sys.executable, "-c", WARDEN, *map(str, fds), str(path)],
                pass_fds=fds,
                env={"PYTHONPATH": str(ROOT)},
                timeout=60,
                check=False,
            )
    finally:
        for fd in (pidfd, out, err, spec):
            os.close(fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    created = tmp_path / "x.ledger"
    ledger.create(created, "x", 0.0, "boot")
    return created


def test_a_warden_alone_spawns_its_command_and_leaves_a_last_word(path: Path, tmp_path: Path) -> None:
    assert run_warden(path, tmp_path / "ran", os.getpid()).returncode == 0
    assert (tmp_path / "ran").exists()
    words = ledger.read_path(path)
    assert [word["word"] for word in words] == [
        "sent", "warden", "spawning", "started", "reaped", "exited", "empty",
    ]  # fmt: skip


def test_l3_a_warden_that_comes_after_the_void_spawns_nothing(path: Path, tmp_path: Path) -> None:
    held = ledger.Ledger.lock(path, wait=False)
    assert held is not None
    held.write({"word": "void", "at": 0.0})
    held.close()
    assert run_warden(path, tmp_path / "ran", os.getpid()).returncode == 0
    assert not (tmp_path / "ran").exists()
    last = ledger.said(ledger.read_path(path), "empty")
    assert last is not None
    assert (last["how"], last["note"]) == ("not_started", "taken back before it was started")


def test_l3_a_warden_whose_ledger_was_removed_spawns_nothing(path: Path, tmp_path: Path) -> None:
    path.unlink()
    assert run_warden(path, tmp_path / "ran", os.getpid()).returncode == 0
    assert not (tmp_path / "ran").exists()


def test_l3_a_warden_whose_daemon_is_dead_spawns_nothing(path: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen(["/bin/sh", "-c", "exit 0"])
    try:
        until(lambda: (seen := procfs.stat(dead.pid)) is not None and seen.state == "Z", "it is dead, not reaped")
        assert run_warden(path, tmp_path / "ran", dead.pid).returncode == 0
    finally:
        dead.wait()
    assert not (tmp_path / "ran").exists()
    assert "the daemon was gone" in path.read_text()


def test_l3_a_warden_that_finds_a_kill_in_its_socket_spawns_nothing(path: Path, tmp_path: Path) -> None:
    assert run_warden(path, tmp_path / "ran", os.getpid(), kill=True).returncode == 0
    assert not (tmp_path / "ran").exists()
    assert "killed before it was started" in path.read_text()


# ── What the next daemon makes of a ledger ────────────────────────────────────────────────────────


def leave(b: Bench, process_id: str, *words: dict[str, object]) -> Path:
    """Leave a ledger as a dead daemon and a dead warden would."""
    left = b.state_dir / "wardens" / f"{process_id}.ledger"
    left.parent.mkdir(exist_ok=True)
    left.write_text("".join(json.dumps(word) + "\n" for word in words))
    return left


def sent(boot: str) -> dict[str, object]:
    return {"word": "sent", "process_id": "x", "at": 1.0, "boot": boot}


STARTED: dict[str, object] = {"word": "started", "pid": 4242, "at": 2.0, "name": "sh"}
SPAWNING: dict[str, object] = {"word": "spawning", "at": 1.5}


def adopted(b: Bench, process_id: str) -> Recorder:
    owner = Recorder()
    b.trees.adopt(process_id, owner)  # type: ignore[arg-type]
    owner.ended(process_id)
    return owner


def test_l3_a_ledger_without_a_last_word_is_not_proven(b: Bench) -> None:
    leave(b, "x", sent(procfs.boot_id()), SPAWNING, STARTED)
    ended = adopted(b, "x").ended("x")
    assert (ended.how, ended.proven, ended.pid, ended.started_at) == (How.ABANDONED, False, 4242, 2.0)
    assert ended.note == (
        "its warden left no last word; 0 found by its marker or its pid and killed; "
        "nothing proves that no other process of it is left"
    )


def test_l3_a_command_that_may_have_been_spawned_is_not_said_to_be_never_spawned(b: Bench) -> None:
    leave(b, "x", sent(procfs.boot_id()), SPAWNING)
    ended = adopted(b, "x").ended("x")
    assert (ended.how, ended.proven) == (How.ABANDONED, False)


def test_l3_no_process_outlives_a_restart_of_the_machine(b: Bench) -> None:
    leave(b, "x", sent("another-boot"), SPAWNING, STARTED)
    ended = adopted(b, "x").ended("x")
    assert (ended.how, ended.proven) == (How.ABANDONED, True)
    assert "restarted" in ended.note


@pytest.mark.parametrize("boot", ["another-boot", procfs.boot_id()])
def test_l3_a_restart_of_the_machine_proves_gone_what_no_search_could(b: Bench, boot: str) -> None:
    found = {**ledger.fold([]), "how": "sigkill", "reaped": 2, "note": "2 killed", "at": 3.0}
    leave(b, "x", sent(boot), SPAWNING, STARTED, {**found, "word": "swept", "proven": False})
    ended = adopted(b, "x").ended("x")
    restarted = boot == "another-boot"
    assert (ended.how, ended.reaped, ended.proven) == (How.SIGKILL, 2, restarted)
    assert ("restarted" in ended.note) == restarted


def test_l3_after_a_restart_of_the_machine_a_missing_ledger_does_not_say_never_spawned(b: Bench) -> None:
    b.trees.close()
    (b.state_dir / "wardens" / "boot").write_text("another-boot")
    b.trees = b.new_trees()
    ended = adopted(b, "x").ended("x")
    assert (ended.how, ended.proven) == (How.ABANDONED, True)
    b.trees.close()
    b.trees = b.new_trees()
    assert adopted(b, "x").ended("x").note == "never spawned"


def test_l3_a_ledger_without_a_warden_is_taken_back(b: Bench) -> None:
    left = leave(b, "x", sent(procfs.boot_id()))
    ended = adopted(b, "x").ended("x")
    assert (ended.how, ended.proven, ended.note) == (How.NOT_STARTED, True, "never spawned")
    assert '"void"' in left.read_text()
    assert adopted(b, "x").ended("x").how is How.NOT_STARTED


def test_a_torn_last_line_is_not_a_word(b: Bench) -> None:
    left = leave(b, "x", sent(procfs.boot_id()), SPAWNING, STARTED)
    with left.open("a") as file:
        file.write('{"word":"empty","how":"exi')
    assert not adopted(b, "x").ended("x").proven


def test_l14_a_ledger_that_stays_locked_is_reported_in_bounded_time(tmp_path: Path) -> None:
    from supervisor.containment.processes import adoption

    slack, adoption.LOCK_SLACK_S = adoption.LOCK_SLACK_S, 0.1
    try:
        with bench(tmp_path, kill_s=0.1) as b:
            left = leave(b, "x", sent(procfs.boot_id()), SPAWNING, STARTED)
            # Another thread of this process may be starting a program, which has the file open until then.
            held = ledger.Ledger.lock(left, wait=True)
            assert held is not None
            try:
                ended = adopted(b, "x").ended("x")
            finally:
                held.close()
            assert (ended.proven, ended.note) == (False, "its warden is still ending it")
    finally:
        adoption.LOCK_SLACK_S = slack


# ── A signal that is refused ──────────────────────────────────────────────────────────────────────


STRANGER = '''
import ctypes, os, sys
CAP_KILL, PR_CAPBSET_DROP = 5, 24
if sys.argv[1] == "drop":
    if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0) != 0:
        sys.exit(77)
    # The exec takes from root what it may not have any more.
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], "run", *sys.argv[2:]])
from pathlib import Path
from actors.messages import ProcessRemaining
from actors.ports import SpawnSpec
from supervisor.containment.processes.trees import ProcessTrees
from tests.process_kit import RealClock, Recorder
# It has a child in a session of its own, which could be killed, and which it shields for as long as it lives.
inner = """
import os, signal, time
shielded, shields = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(shielded, 1)
    print("up", flush=True)
    time.sleep(1000)
os.setresuid(65534, 65534, 65534)
os.write(shields, b".")
time.sleep(1000)
"""
owner = Recorder()
layers = os.environ["LAYERS"].split(",")
trees = ProcessTrees(Path(sys.argv[2]), RealClock(), kill_s=6.0, layers=layers)
trees.start()
argv = ("/bin/sh", "-c", 'sleep 1000 & "$0" -c "$1" & wait', sys.executable, inner)
trees.spawn("p", SpawnSpec(argv, "x", env=dict([os.environ["MARK"].split("=")])), owner)
owner.wait_text("up")
trees.kill("p", 0.1)
ended = owner.ended()
trees.close(1.0)
print(ended.how.value, ended.proven, ended.reaped, ended.note)
print([(signal.signal, signal.error) for signal in ended.signals])
for report in owner.reports:
    if isinstance(report, ProcessRemaining):
        print([(row.name[:6], row.how.value, row.note) for row in report.rows])
'''


def kill_a_stranger(b: Bench, layers: Collection[str]) -> tuple[str, list[str]]:
    """What comes of a tree with a process of another user that its warden may not signal, as with `sudo`."""
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, "drop", str(b.state_dir), STRANGER],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": b.mark, "LAYERS": ",".join(layers)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("capabilities cannot be dropped here")
    assert done.returncode == 0, done.stderr
    verdict, signals, *remaining = done.stdout.splitlines()
    assert "('SIGTERM', 'Operation not permitted')" in signals
    assert "('SIGKILL', 'Operation not permitted')" in signals or layers is LAYERS
    return verdict, remaining


@needs_root
def test_l3_a_process_that_refuses_a_signal_is_named_and_the_ladder_continues(b: Bench) -> None:
    verdict, (remaining,) = kill_a_stranger(b, NO_CGROUP)
    assert verdict.startswith("abandoned False 2 could not be killed: python")
    note = "SIGKILL was refused: Operation not permitted; it is of user 65534"
    assert remaining == str([("python", "out_of_reach", note)])
    (stranger,) = b.alive()
    os.kill(stranger, signal.SIGKILL)
    until(lambda: '"empty"' in b.ledger_text(), "its warden has waited for it")


@needs_root
@needs_cgroups
def test_l3_whom_the_warden_may_not_signal_dies_with_the_cgroup(b: Bench) -> None:
    verdict, _ = kill_a_stranger(b, LAYERS)
    assert verdict == "sigterm True 4 "
    assert b.alive() == []


# ── A tree that outruns the rounds ────────────────────────────────────────────────────────────────

FREEZE = """
import ctypes, os, signal, time
from supervisor.containment.guard import killing, procfs
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)

def spared():
    if os.fork() == 0:
        os.setsid()
    time.sleep(60)
    os._exit(0)

def crowd():
    end = time.monotonic() + 60
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
        else:
            os.fork()
    if os.getpid() % 2:
        time.sleep(60)
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
    os._exit(0)

def fork(body):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        body()
    return pid

rounds = killing.Killing()
rounds._rounds = killing.ROUNDS_MAX
keep = fork(spared)
while not procfs.children(keep):
    pass
fork(crowd)
while len(procfs.descendants({keep})) < 8:
    pass
began = time.monotonic()
while procfs.own_children() != [keep] and time.monotonic() - began < 50:
    rounds.round({keep})
    while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        rounds.reaped(os.waitpid(-1, os.WNOHANG)[0])
grandchild = procfs.children(keep)[0]
print("gone", procfs.own_children() == [keep], procfs.stat(keep).state, procfs.stat(grandchild).state)
os.kill(grandchild, signal.SIGKILL)
os.kill(keep, signal.SIGKILL)
"""


def test_l3_a_crowd_is_stopped_as_one_and_then_killed_and_a_spared_process_is_not_touched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREEZE],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "gone True S S\n", done.stderr


def test_l3_a_tree_with_new_members_in_every_round_is_stopped_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[subprocess.Popen[bytes]] = []
    growing = True

    def all_of_them() -> list[int]:
        if growing:
            spawned.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return [process.pid for process in spawned]

    def states() -> str:
        return "".join(seen.state for process in spawned if (seen := procfs.stat(process.pid)) is not None)

    monkeypatch.setattr(procfs, "own_children", all_of_them)
    killing = Killing()
    try:
        for _ in range(ROUNDS_MAX):
            assert len(killing.round()[0]) == 1
        for _ in range(3):
            # Each pass sees one more than the one before; who was killed is a zombie here.
            assert killing.round() == ([], {})
            assert killing.stopping
        growing = False
        new = spawned[ROUNDS_MAX:]
        until(lambda: states()[ROUNDS_MAX:] in ("T" * len(new), "T" * (len(new) - 1) + "S"), "they are stopped")
        while not (fresh := killing.round()[0]):
            assert killing.stopping
        assert not killing.stopping
        assert set(fresh) == {process.pid for process in new}
        assert [process.wait(10) for process in spawned] == [-signal.SIGKILL] * len(spawned)
        killing.over()
        growing = True
        assert killing.round()[0] == [spawned[-1].pid]
    finally:
        for process in spawned:
            process.kill()
            process.wait()


ENDED = """
import os, signal, socket, sys, time
from supervisor.containment.guard import ledger, procfs, warden
from supervisor.containment.guard.ready import Ready
ledger.create(sys.argv[1], "p", 0.0, "boot")
ready = Ready(warden.LAYERS, None)
ready.preforked.dismiss()
sock, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one = warden.Warden(sock, -1, [], ledger.Ledger.lock(sys.argv[1], wait=True), ready)
ended = os.fork() or os._exit(3)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)

def told():
    seen = one._record
    print([signal["signal"] for signal in seen.signals], [signal["signal"] for signal in seen.rows[ended]["signals"]])

one._ladder._ask()
told()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lives = os.fork() or time.sleep(60)
one._ladder._ask()
told()
one._ladder.deadline = time.monotonic()
one._ladder.step(busy=False)
told()
assert procfs.stat(ended).dead
os.waitpid(lives, 0)
"""


def test_l5_a_process_that_had_ended_and_is_not_reaped_is_not_reported_as_signalled(path: Path) -> None:
    argv = [sys.executable, "-c", ENDED, str(path.with_name("ended.ledger"))]
    done = subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=30, check=False)
    asked = "['SIGTERM', 'SIGCONT']"
    assert done.stdout == f"[] []\n{asked} []\n['SIGTERM', 'SIGCONT', 'SIGKILL'] []\n", done.stderr


def test_l3_a_tree_that_cannot_be_stopped_is_killed_as_it_is_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[subprocess.Popen[bytes]] = []

    def all_of_them() -> list[int]:
        spawned.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return [process.pid for process in spawned]

    monkeypatch.setattr("supervisor.containment.guard.killing.PASSES_MAX", 3)
    monkeypatch.setattr(procfs, "own_children", all_of_them)
    killing = Killing()
    killing._rounds = ROUNDS_MAX
    try:
        for _ in range(2):
            rounds = [killing.round() for _ in range(3)]
            assert rounds[:2] == [([], {})] * 2
            assert rounds[2][0]
            assert not killing.stopping
        # Those who were there before each of the two, and what the last look has found.
        assert [process.wait(10) for process in spawned[:-1]] == [-signal.SIGKILL] * (len(spawned) - 1)
    finally:
        for process in spawned:
            process.kill()
            process.wait()


def test_l3_where_no_process_is_to_be_killed_none_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as below one that may not be signalled, who goes on to have others do his work."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    killing = Killing()
    try:
        monkeypatch.setattr(procfs, "own_children", lambda: [sleeper.pid])
        assert killing.round() == ([sleeper.pid], {})
        killing._rounds = ROUNDS_MAX
        monkeypatch.setattr(procfs, "descendants", lambda *_: pytest.fail("nobody is new"))
        assert killing.round() == ([], {})
        assert not killing.stopping
    finally:
        sleeper.wait()


def test_l3_a_command_begins_with_its_exec_and_no_process_below_it_began_before() -> None:
    me = procfs.stat(os.getpid())
    assert me is not None
    before, after = me.started_at - 100.0, me.started_at + 100.0
    # Where the wall clock was set meanwhile, or nothing was ready and the fork came last, that is so too.
    assert [began(me, me.pid, at) for at in (before, after)] == [before, after]
    assert began(me, None, after) == after
    assert abs(began(me, None, before) - me.started_at) < 1.0
    assert abs(began(me, me.pid, None) - me.started_at) < 1.0
