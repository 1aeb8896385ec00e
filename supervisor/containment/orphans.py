"""The orphans of a tree whose warden and zygote were both killed: found, identified, killed, and counted.

Theory of operation. No process of ours inherited these, so they have to be searched for. An orphan is recognised in
three ways: it has the tree's marker in its environment, or it is the recorded command (its pid and the clock tick of
its start), or it is below one of those. For each a pidfd is opened first, and then its identity is checked
again, so a reused pid is never signalled. For one that is known by its parent, that parent is held and stopped
meanwhile. All are stopped and then killed. The search is repeated until it finds no process.

It cannot find a process that removed the marker from its environment (`env -i`) and whose parents are gone. So an
empty search proves nothing, and the note only says how many were found. The proof is the tree's cgroup, if it had one:
killed and removed here too; or the end of the keeper of its namespace.

Runs on a thread of its own, because it reads all of /proc. The pids are of this boot; the caller sees to that.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.guard.ledger import MARKER

WITHIN_S = 2.0
PAUSE_S = 0.01
REFUSED_MAX = 10


@dataclass
class OrphanTree:
    """A tree whose warden is dead: how to find its processes, and the result of the search.

    Args:
        process_id: the tree's.
        why: the reason for the search, for people.
        marker: the value of MARKER in the environment of its command; None: do not search by it.
        pid: of the command, with `start_ticks` as in /proc; None if unknown.
        cgroup: the directory of the tree's cgroup, if it had one.
        keeper: pid and start ticks of the first process in the tree's PID namespace, if it had one.
    """

    process_id: str
    why: str
    marker: str | None
    pid: int | None
    start_ticks: int | None
    cgroup: str | None
    keeper: tuple[int, int] | None = None
    killed: set[tuple[int, int]] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    emptied: bool = False
    outlived: bool = True
    left: list[str] = field(default_factory=list)
    done: bool = False

    @property
    def command_killed(self) -> bool:
        """True if the command itself was still there, and was killed here."""
        return (self.pid, self.start_ticks) in self.killed

    @property
    def proven(self) -> bool:
        """True if no process of the tree is left."""
        return self.emptied or not self.outlived

    @property
    def note(self) -> str:
        """The result of the search, for people."""
        parts = [self.why]
        if self.marker is not None:
            parts.append(f"{len(self.killed)} found by its marker or its pid and killed")
        if not self.outlived:
            parts.append("the first process of its PID namespace has ended, and with it all others in it")
        elif self.emptied:
            parts.append("its cgroup was emptied and removed, which a process that went into another one outlives")
        else:
            parts.append("nothing proves that no other process of it is left")
        parts += [f"pid {pid} refused: {why}" for pid, why in list(self.refused.items())[:REFUSED_MAX]]
        parts += [f"still there: {name}" for name in self.left]
        return "; ".join(parts)


def end(orphan: OrphanTree) -> None:
    """Find and kill a tree's orphans, searching for WITHIN_S seconds; the result is in the argument."""
    deadline = time.monotonic() + WITHIN_S
    if orphan.marker is not None:
        while seen := find(orphan):
            stop_and_kill(orphan, seen, deadline)
            if time.monotonic() >= deadline or all(pid in orphan.refused for pid, _ in seen):
                break
            time.sleep(PAUSE_S)
        still = [procfs.stat(pid) for pid, _ in find(orphan)]
        orphan.left = [f"{one.name} (pid {one.pid}, state {one.state})" for one in still if one][:REFUSED_MAX]
    if orphan.cgroup is not None:
        orphan.emptied = cgroups.end(orphan.cgroup, WITHIN_S)
    if orphan.keeper is not None:
        orphan.outlived = not end_keeper(*orphan.keeper)


def end_keeper(pid: int, start_ticks: int) -> bool:
    """Kill the first process of a namespace; True if it has ended, which it does after all others in the namespace.

    The kernel has sent it SIGKILL already, at its warden's death.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        seen = procfs.stat(pid)
        if seen is None or seen.start_ticks != start_ticks:
            return True
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(WITHIN_S * 1000))
    except ProcessLookupError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def find(orphan: OrphanTree) -> dict[tuple[int, int], int | None]:
    """The living processes of the tree, by (pid, start ticks): the parent it was found by, None if found by itself."""
    present = [seen for name in os.listdir("/proc") if name.isdigit() and (seen := procfs.stat(int(name)))]
    below: dict[int, list[procfs.Stat]] = {}
    for seen in present:
        below.setdefault(seen.ppid, []).append(seen)
    found: dict[tuple[int, int], int | None] = {
        (seen.pid, seen.start_ticks): None for seen in present if seen.state not in "ZX" and known(orphan, seen)
    }
    queue = [pid for pid, _ in found]
    while queue:
        parent = queue.pop()
        for child in below.get(parent, ()):
            if (child.pid, child.start_ticks) not in found and child.state not in "ZX":
                found[child.pid, child.start_ticks] = parent
                queue.append(child.pid)
    return found


def known(orphan: OrphanTree, seen: procfs.Stat) -> bool:
    """True if a process is the recorded command, or has the tree's marker."""
    if (seen.pid, seen.start_ticks) == (orphan.pid, orphan.start_ticks):
        return True
    return bool(orphan.marker) and f"{MARKER}={orphan.marker}" in procfs.environment(seen.pid)


def stop_and_kill(orphan: OrphanTree, found: dict[tuple[int, int], int | None], deadline: float) -> None:
    """Stop all of them, so that none forks and no parent ends; then kill them and wait for them to end."""
    held: dict[tuple[int, int], int] = {}
    try:
        # Parents come before their children in `found`.
        for (pid, start_ticks), parent in found.items():
            if parent is not None and all(holder != parent for holder, _ in held):
                continue
            fd = hold(orphan, pid, start_ticks, parent)
            if fd is not None:
                held[pid, start_ticks] = fd
        poll = select.poll()
        for one, fd in held.items():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                orphan.killed.add(one)
            poll.register(fd, select.POLLIN)
        waiting = len(held)
        while waiting and (ended := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
            waiting -= len(ended)
            for fd, _ in ended:
                poll.unregister(fd)
    finally:
        for fd in held.values():
            os.close(fd)


def hold(orphan: OrphanTree, pid: int, start_ticks: int, parent: int | None) -> int | None:
    """Open a pidfd and stop its process, if it still is the one that was found; None otherwise."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        seen = procfs.stat(pid)
        if seen is not None and seen.start_ticks == start_ticks and (known(orphan, seen) or seen.ppid == parent):
            signal.pidfd_send_signal(fd, signal.SIGSTOP)
            return fd
    except ProcessLookupError:
        pass
    except OSError as error:
        orphan.refused[pid] = error.strerror or str(error)
    os.close(fd)
    return None
