"""The children of this process, and the starts they belong to, from the audit event to the pid.

A start is announced before the process exists. The children that its thread has at that moment are recorded; a later
child of the thread that belongs to no other start is the process of this one.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

from actors.messages import StrayFound
from actors.model import Address, PartKind
from supervisor.containment import offspring
from supervisor.containment.guard import procfs
from supervisor.containment.guard.ledger import MARKER
from supervisor.containment.offspring import Member, Offspring
from supervisor.strays.records import Run
from supervisor.strays.reports import Reports
from supervisor.strays.starter import Starter
from supervisor.strays.subreaper import inherits_orphans

KNOWN_MAX: Final = 4096
STARTS_MAX: Final = 100
LOOKS_MAX: Final = 12
LOOKS_ENDING_MAX: Final = 1000
"""Looks for a process of a run that is being ended: more, since it may be about to start."""
LOOK_S: Final = 0.0005
"""Between two looks; it doubles, up to 64 times this."""
UNKNOWN: Final = "process of unknown origin"


class _Start:
    """A process that a thread is about to start, or whose pid is not known yet. No starter: the program's own.

    `command`: the command line of the program's own; None: that of this process.
    """

    __slots__ = ("before", "cleans_up", "command", "looks", "name", "next_s", "starter", "ticks", "tid")

    def __init__(self, starter: Starter | None, tid: int, name: str, command: list[str] | None) -> None:
        self.starter = starter
        # The fence itself cancels the token; `Strays.end` is called later.
        self.cleans_up = starter is not None and starter.token.cancelled
        self.tid = tid
        self.name = name
        self.command = command
        # The thread's id may be reused.
        self.ticks = _thread_ticks(tid)
        self.before = frozenset(_children(tid))
        self.looks = 0
        self.next_s = 0.0


class Children:
    """The starts without a pid, and the children that are known. Every method is called under the lock.

    Args:
        reports: receives the processes of agents and tools.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._pid = os.getpid()
        self.boot = procfs.boot_id()
        self.inherits = inherits_orphans()
        self._starts: dict[int, _Start] = {}
        self._starts_max = STARTS_MAX
        # The start time in ticks, by pid, of children whose start was attributed or was the program's own.
        self._known: dict[int, int] = {}
        # Children that were reported to a run as not its own, by pid: the start time in ticks, and the run's address.
        self._unknown: dict[int, tuple[int, Address]] = {}
        # Children of the thread to which orphans fall, by pid, that were taken for the program's own: the start time
        # in ticks, and the command line of the program's own process.
        self._taken: dict[int, tuple[int, list[str]]] = {}

    @property
    def starting(self) -> bool:
        """True while there is a start without a pid."""
        return bool(self._starts)

    def know_all(self) -> None:
        """Record the present children as the program's own, which reads their exit status."""
        for pid in procfs.children(self._pid):
            seen = procfs.stat(pid)
            if seen is not None:
                self._known.setdefault(pid, seen.start_ticks)

    # ── Starts ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, starter: Starter | None, name: str, *, command: list[str] | None, forks: bool) -> None:
        """Record that the calling thread is about to start a process; `forks`: which may start others."""
        tid = threading.get_native_id()
        self.settle(tid)
        if starter is not None and forks:
            starter.run.forks = True
        if len(self._starts) >= self._starts_max:
            self.find_all()
            self._starts_max = max(STARTS_MAX, 2 * len(self._starts))
        self._starts[tid] = _Start(starter, tid, name, command)

    def settle(self, tid: int) -> None:
        """Close the start of a thread: its process exists now, or could not be started, or was reaped already."""
        start = self._starts.pop(tid, None)
        if start is not None:
            self._find(start)

    def find_all(self) -> None:
        """Look for the processes of all starts."""
        for start in list(self._starts.values()):
            self._find(start)

    def find_due(self, now: float) -> list[float]:
        """Look for the processes of starts that are due for a look; returns the seconds until further looks."""
        waits = list[float]()
        for tid, start in list(self._starts.items()):
            ending = start.starter is not None and bool(start.starter.run.dues)
            looks_max = LOOKS_ENDING_MAX if ending else LOOKS_MAX
            if start.looks >= looks_max:
                # Look again when its run is ended, or its thread starts another process or ends its execution.
                continue
            if start.next_s > now:
                waits.append(start.next_s - now)
            elif not self._find(start):
                start.looks += 1
                if start.looks < looks_max:
                    wait_s = LOOK_S * 2 ** min(start.looks, 6)
                    start.next_s = now + wait_s
                    waits.append(wait_s)
                elif start.starter is None:
                    # It could not be started. A later child of this thread is not its process.
                    del self._starts[tid]
        return waits

    def _find(self, start: _Start) -> bool:
        """Look for the process of a start; True if there is nothing more to look for.

        The process is there, or has ended and waits to be reaped, or the thread is gone.
        """
        if _thread_ticks(start.tid) != start.ticks:
            if self._starts.get(start.tid) is start:
                del self._starts[start.tid]
            return True
        pids = [pid for pid in _children(start.tid) if pid not in start.before and not self._knows(pid)]
        found = any(self._bind(start, pid) for pid in pids)
        if found:
            self._starts.pop(start.tid, None)
        return found

    def _bind(self, start: _Start, pid: int) -> bool:
        seen = procfs.stat(pid)
        if seen is None or seen.ppid != self._pid:
            return False
        self._remember(pid, seen.start_ticks)
        root = offspring.opened(pid, self._pid, start.name) if start.starter is not None else None
        if start.starter is None or root is None:
            if start.starter is None and start.tid == self._pid and self.inherits:
                own = procfs.command_line(self._pid) if start.command is None else start.command
                if len(self._taken) >= KNOWN_MAX:
                    self._taken = {one: taken for one, taken in self._taken.items() if self._knows(one)}
                self._taken[pid] = seen.start_ticks, own
            return True
        self._subprocess(start.starter.run, start.starter.address, root, spared=start.cleans_up)
        return True

    # ── Children ──────────────────────────────────────────────────────────────────────────────────────

    def report_unknown(self, run: Run) -> int:
        """Report to a run, as not its own, the children that began during it and whose start is not attributed.

        Returns how many could not be reported for lack of room.
        """
        left_out = 0
        fresh = [pid for pid in procfs.children(self._pid) if not self._knows(pid)]
        if fresh:
            # Some may belong to open starts. No other start can begin: that takes the lock.
            self.find_all()
        for pid in fresh:
            seen = procfs.stat(pid)
            if self._knows(pid) or seen is None or seen.start_ticks < run.begun or _is_contained(pid):
                continue
            root = offspring.opened(pid, self._pid)
            if root is None:
                continue
            if self._reports.full(run):
                root.close()
                left_out += 1
            else:
                self._unknown[pid] = seen.start_ticks, run.address
                self._subprocess(run, run.address, root, ours=False)
        return left_out

    def may_be_an_orphan(self, run: Run) -> bool:
        """Return True if a child that was taken for the program's own may be an orphan of this run, and is alive.

        It fell to the thread of which the program had announced a process, and that process has another command line.
        """
        for pid, (ticks, command) in list(self._taken.items()):
            seen = procfs.stat(pid)
            if seen is None or seen.dead or seen.start_ticks != ticks:
                del self._taken[pid]
            elif ticks >= run.begun and not _is_of(procfs.command_line(pid), command):
                return True
        return False

    def may_have_left(self, run: Run) -> bool:
        """Return True if a child that was reported to another run, as not its own, may be this one's, and is alive."""
        for pid, (ticks, reported) in list(self._unknown.items()):
            seen = procfs.stat(pid)
            if seen is None or seen.dead or seen.start_ticks != ticks:
                del self._unknown[pid]
            elif reported != run.address and ticks >= run.begun:
                return True
        return False

    def reap(self) -> None:
        """Reap the orphans that have ended: children of the main thread that no start here explains."""
        if not self.inherits:
            return
        dead = [pid for pid in _children(self._pid) if (seen := procfs.stat(pid)) is not None and seen.dead]
        if not dead:
            return
        self.find_all()
        for pid in dead:
            if not self._knows(pid):
                with suppress(OSError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _subprocess(self, run: Run, address: Address, root: Member, *, ours: bool = True, spared: bool = False) -> None:
        self._remember(root.pid, root.ticks)
        crowd = self._reports.joined(run, PartKind.SUBPROCESS, spared=spared) if ours else None
        if crowd is not None and crowd.process is not None:
            crowd.process.join(root)
            return
        found = StrayFound(
            address,
            self._reports.new_id("subprocess", address),
            PartKind.SUBPROCESS,
            root.name,
            root.started_at,
            root.pid,
            f"{self.boot}:{root.ticks}",
            ours,
            "" if ours else UNKNOWN,
        )
        stray = self._reports.found_next(run, found, spared=spared) if ours else self._reports.found(run, found)
        stray.process, stray.spared = Offspring(root), spared

    def release(self, root: Member) -> None:
        """Forget a child that is not known to be ours and whose end was reported, so that `reap` may reap it."""
        if self._known.get(root.pid) == root.ticks:
            del self._known[root.pid]
        unknown = self._unknown.get(root.pid)
        if unknown is not None and unknown[0] == root.ticks:
            del self._unknown[root.pid]

    def _remember(self, pid: int, ticks: int) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known = {one: known for one, known in self._known.items() if self._knows(one)}
        self._known[pid] = ticks

    def _knows(self, pid: int) -> bool:
        """True for a child whose start was attributed, or was the program's own."""
        ticks = self._known.get(pid)
        seen = None if ticks is None else procfs.stat(pid)
        return seen is not None and seen.start_ticks == ticks


# The second is the path in an earlier release, which may still run beside this one.
KEEPERS: Final = ("/containment/guard/zygote.py", "/containment/zygote.py")


def _is_contained(pid: int) -> bool:
    """True for the supervisor's own processes, and those in trees: their wardens or ledgers report them.

    This process may be in a tree too, of another supervisor: its own mark, which its children inherit, says nothing.
    """
    if any(word.endswith(KEEPERS) for word in procfs.command_line(pid)):
        return True
    mark = f"{MARKER}="
    marks = {word for word in procfs.environment(pid) if word.startswith(mark)}
    return bool(marks - {mark + os.environ.get(MARKER, "")})


def _is_of(line: list[str], command: list[str]) -> bool:
    """True if a command line may be that of a process which was started by this command.

    The kernel puts the interpreter of a script in front, and a shell may become the command that it was given.
    """
    if line == command or not line or not command:
        return line == command
    before = len(line) - len(command)
    if before >= 0 and line[before + 1 :] == command[1:]:
        return os.path.basename(line[before]) == os.path.basename(command[0])
    shell = os.path.basename(command[0]).endswith("sh") and command[1:2] == ["-c"]
    return shell and os.path.basename(line[0]) in command[2]


def _children(tid: int) -> list[int]:
    try:
        return [int(word) for word in procfs.read_text(f"/proc/self/task/{tid}/children").split()]
    except OSError:
        return []


def _thread_ticks(tid: int) -> int | None:
    """When a thread of this process began, in ticks; None if there is no such thread."""
    seen = procfs.stat(tid)
    return None if seen is None else seen.start_ticks
