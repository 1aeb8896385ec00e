"""What tests of process trees share: a recorder for reports, and a way to find and clear what a test left running."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import struct
import subprocess
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from actors.messages import ProcessEnded, ProcessExited, ProcessOutput, ProcessStarted
from actors.ports import SpawnSpec
from supervisor.config import LAYERS, OPTIONAL_LAYERS
from supervisor.containment.guard import cgroups, ledger, procfs
from supervisor.containment.processes.trees import ProcessTrees

T = TypeVar("T")
WAIT_S = 60.0
GIVE_UP_S = 45.0
ESCAPE = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(1000)
    os.wait()
print("up", flush=True)
time.sleep(1000)
"""
"""A tree of so many, each in a session of its own."""
PREFORK_AGE_S = 0.3

OWN_GROUP = cgroups.own_group()
HAS_CGROUPS = OWN_GROUP is not None and os.access(os.path.join(OWN_GROUP, "cgroup.procs"), os.W_OK)
needs_cgroups = pytest.mark.skipif(not HAS_CGROUPS, reason="no cgroup v2 that this user may write")


def _has_namespaces() -> bool:
    """Asked of another program: what is wrong with our own trial is to be a failure, not a reason to test nothing."""
    trial = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    if shutil.which(trial[0]) is None:
        return False
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not _has_namespaces(), reason="no PID namespace may be made here")
FREEZER = Path("/sys/fs/cgroup/freezer")
NO_CGROUP = LAYERS - {"cgroup"}
NAMESPACE = LAYERS | OPTIONAL_LAYERS


class RealClock:
    """The machine's time; containment asks for no timers of it."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()  # noqa: TID251

    def call_later(self, delay_s: float, ref: Any, message: Any) -> Any:
        raise NotImplementedError


class Recorder:
    """An owner that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self._changed = threading.Condition()

    def tell(self, report: Any) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def wait(self, kind: type[T], process_id: str = "p") -> T:
        """The first report of that kind about that tree; fails after WAIT_S seconds."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                for report in self.reports:
                    if isinstance(report, kind) and report.process_id == process_id:  # type: ignore[attr-defined]
                        return report
                left = deadline - time.monotonic()
                assert left > 0, f"no {kind.__name__} of {process_id}; got {self.kinds()}"
                self._changed.wait(left)

    def started(self, process_id: str = "p") -> ProcessStarted:
        return self.wait(ProcessStarted, process_id)

    def exited(self, process_id: str = "p") -> ProcessExited:
        return self.wait(ProcessExited, process_id)

    def ended(self, process_id: str = "p") -> ProcessEnded:
        return self.wait(ProcessEnded, process_id)

    def kinds(self, process_id: str = "p") -> list[str]:
        """The kinds of reports about a tree, neighbours of the same kind once."""
        names = [type(report).__name__ for report in list(self.reports) if report.process_id == process_id]
        return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]

    def text(self, process_id: str = "p", stream: str | None = None) -> str:
        """All output of a tree that is no marker."""
        return "".join(
            report.text
            for report in list(self.reports)
            if isinstance(report, ProcessOutput)
            and report.process_id == process_id
            and not report.marker
            and stream in (None, report.stream)
        )

    def wait_text(self, text: str, process_id: str = "p") -> None:
        """Until the output of a tree holds `text`."""
        until(lambda: text in self.text(process_id), f"output {text!r}")


def until(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
    """Poll a condition with a deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.005)


def unread_bytes(pid: int, fd: int) -> int:
    """How many bytes wait in the pipe, or the terminal, that is descriptor `fd` of a process, for who reads it."""
    with open(f"/proc/{pid}/fd/{fd}", "rb", buffering=0) as theirs:
        (left,) = struct.unpack("i", fcntl.ioctl(theirs, termios.FIONREAD, b"\0" * 4))
    return int(left)


def fd_count() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def held_by(pid: int) -> set[str]:
    """What the descriptors of a process are."""
    links = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # It may open and close a file of its own meanwhile: one of its locale, or one in /proc.
        with suppress(FileNotFoundError):
            links.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return links


def our_children() -> list[int]:
    """All children of this process, of any thread, zombies included."""
    return procfs.children(os.getpid())


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process in state D, so that it does not die before this is left; only where FREEZER can be used."""
    icebox = FREEZER / f"countermand-test-{uuid.uuid4().hex}"
    icebox.mkdir()
    try:
        (icebox / "tasks").write_text(str(pid))
        (icebox / "freezer.state").write_text("FROZEN")
        until(lambda: (icebox / "freezer.state").read_text() == "FROZEN\n", "frozen")
        yield
    finally:
        (icebox / "freezer.state").write_text("THAWED")
        until(lambda: not (icebox / "tasks").read_text(), "nobody is in the freezer")
        icebox.rmdir()


def until_a_preforked_child_is_old() -> None:
    """Until the process that is ready for this supervisor's next command was forked some ticks of the clock ago."""

    def old() -> bool:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return any(now - child.start_ticks / procfs.TICKS_PER_S > PREFORK_AGE_S for child in our_preforked())

    until(old, "a process is ready for the next command")


def our_preforked() -> list[procfs.Stat]:
    """Who waits to become a command of this process, without their memory holders; in a namespace its keeper too."""
    of_us = [pid for pid in our_children() if _name_of(pid) == "cm-zygote"]
    spares = [pid for zygote in of_us for pid in procfs.children(zygote) if _name_of(pid) == "cm-spare"]
    below = [seen for spare in spares for pid in procfs.children(spare) if (seen := procfs.stat(pid)) is not None]
    pids = {seen.pid for seen in below}
    # A memory holder is in the session of its child.
    return [seen for seen in below if seen.pid == seen.sid or seen.sid not in pids]


def _name_of(pid: int) -> str:
    seen = procfs.stat(pid)
    return "" if seen is None else seen.name


class Bench:
    """A ProcessTrees on a directory of its own, an owner, and a mark in the environment of all it spawns."""

    def __init__(self, state_dir: Path, **options: Any) -> None:
        self.mark = f"CM_TEST_MARK={uuid.uuid4().hex}"
        self.state_dir = state_dir
        # What is said of a tree when this is over depends on how much else the machine has to do meanwhile.
        self.options = options if "kill_s" in options else {"give_up_s": GIVE_UP_S, **options}
        self.owner = Recorder()
        self.trees = self.new_trees()

    def new_trees(self) -> ProcessTrees:
        trees = ProcessTrees(self.state_dir, RealClock(), **self.options)
        trees.start()
        return trees

    def sh(self, script: str, process_id: str = "p", cwd: str | None = None, **options: Any) -> None:
        """Spawn a shell script."""
        self.run(("/bin/sh", "-c", script), process_id, cwd, **options)

    def run(
        self, argv: tuple[str, ...], process_id: str = "p", cwd: str | None = None, session: str = "", **options: Any
    ) -> None:
        """Spawn a command."""
        name, value = self.mark.split("=")
        spec = SpawnSpec(argv, "test", cwd=cwd, env={name: value}, **options)
        self.trees.spawn(process_id, spec, self.owner, session)  # type: ignore[arg-type]

    def parent_named_in_output(self) -> int:
        """The pid that a command has printed after one word, on its first line."""
        self.owner.wait_text("\n")
        return int(self.owner.text().split()[1])

    def to_zygote(self, word: dict[str, Any]) -> None:
        """Send the zygote a word, in its turn."""
        zygote = self.trees._zygotes.current
        assert zygote is not None
        self.trees._reactor.post(lambda: zygote.send(word))

    def wardens(self) -> list[int]:
        """The wardens that have a tree, zombies included; the spare one has none, nor has one that was just forked."""
        children = [procfs.stat(pid) for pid in procfs.children(self.zygote_pid())]
        return [
            seen.pid
            for seen in children
            if seen is not None and seen.name not in ("cm-prefork", "cm-spare", "cm-zygote")
        ]

    def orphans(self) -> list[int]:
        """The children of the one warden, and those that have fallen to the keeper of its namespace, if it has one."""
        (warden,) = self.wardens()
        children = procfs.children(warden)
        keeper = self.keeper()
        return [*children, *(procfs.children(keeper) if keeper is not None else ())]

    def keeper(self, process_id: str = "p") -> int | None:
        """The first process in a tree's namespace, as its ledger names it."""
        spawning = ledger.said(ledger.read_path(self.state_dir / "wardens" / f"{process_id}.ledger"), "spawning")
        return spawning["keeper"]["pid"] if spawning is not None and spawning["keeper"] is not None else None

    def outside(self, pid: int) -> int:
        """The machine's number of a process of ours that has called itself `pid`."""
        for candidate in self.alive():
            status = Path(f"/proc/{candidate}/status").read_text().splitlines()
            if next(line for line in status if line.startswith("NSpid:")).split()[-1] == str(pid):
                return candidate
        raise LookupError(f"nobody calls itself {pid}")

    def group(self, process_id: str = "p") -> str | None:
        """The directory of a tree's cgroup, as its ledger names it."""
        spawning = ledger.said(ledger.read_path(self.state_dir / "wardens" / f"{process_id}.ledger"), "spawning")
        return spawning["cgroup"] if spawning is not None else None

    def settle(self) -> None:
        """Until the containment's thread has done all that it was asked before."""
        last = Recorder()
        self.trees.adopt("nobody", last)  # type: ignore[arg-type]
        last.ended("nobody")

    def alive(self) -> list[int]:
        """Pids of everything with the mark that still runs."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if self.mark.encode() in environ.split(b"\0"):
                    found.append(int(name))
        return found

    def assert_nobody_left(self) -> None:
        """Nobody with the mark runs. At once: the proof came before."""
        left = [procfs.stat(pid) for pid in self.alive()]
        names = [(seen.pid, seen.name, seen.state) for seen in left if seen is not None and seen.state not in "ZX"]
        assert not names, f"still running: {names}"

    def zygote_pid(self) -> int:
        """The pid of the zygote in use."""
        until(self._zygotes, "a zygote")
        return self._zygotes()[-1]

    def _zygotes(self) -> list[int]:
        seen = [procfs.stat(pid) for pid in our_children()]
        return [one.pid for one in seen if one is not None and one.name == "cm-zygote" and one.state != "Z"]

    @contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """Keep a process stopped."""
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: (seen := procfs.stat(pid)) is not None and seen.state == "T", "stopped")
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def has_spare(self) -> bool:
        """True if there is a warden that waits to be asked."""
        zygote = self.trees._zygotes.current
        return zygote is not None and zygote._spare is not None

    def descriptors_at_rest(self) -> int:
        """How many descriptors this process has, with that of a spare warden."""
        until(self.has_spare, "a warden is ready for the next")
        gc.collect()  # what an earlier test has left may hold some
        return fd_count()

    @contextmanager
    def unable_to_spawn(self, zygote: int) -> Iterator[None]:
        """Keep a zygote stopped, and the spare warden, which may have no name yet, that its daemon may ask instead."""
        with ExitStack() as stack:
            stack.enter_context(self.stopped(zygote))
            for pid in procfs.children(zygote):
                if _name_of(pid) in ("cm-spare", "cm-zygote"):
                    stack.enter_context(self.stopped(pid))
            yield

    def warden_of(self, pid: int) -> int:
        """The pid of the warden above a command."""
        seen = procfs.stat(pid)
        assert seen is not None
        return seen.ppid

    def ledger_text(self, process_id: str = "p") -> str:
        """What the ledger of a tree holds by now; empty if there is none."""
        path = self.state_dir / "wardens" / f"{process_id}.ledger"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        """End everything, also what a failed test left."""
        try:
            self.trees.close(10.0)
        finally:
            for _ in range(50):
                # Again, for what forks faster than it is looked for.
                for pid in self.alive():
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                if not self.alive():
                    break
            self._remove_groups()

    def _remove_groups(self) -> None:
        """Remove the cgroups of trees whose warden a test has killed; one that lives removes its own."""
        base = cgroups.prepare(str(self.state_dir / "wardens"))[0] if HAS_CGROUPS else None
        deadline = time.monotonic() + 5.0
        while base is not None and os.path.exists(base) and time.monotonic() < deadline:
            # Again, while the zygote of a daemon that a test has killed is about to go.
            cgroups.sweep(base, 1.0)
            cgroups.leave(base)
            time.sleep(0.005)


@contextmanager
def bench(state_dir: Path, **options: Any) -> Iterator[Bench]:
    """A Bench that is closed whatever happens."""
    opened = Bench(state_dir, **options)
    try:
        yield opened
    finally:
        opened.close()
