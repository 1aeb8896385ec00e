"""Reads of /proc: children, identity, ancestry. Standard library only: the zygote loads it.

The proofs that use this file rest on two facts of the kernel.

A process leaves the list of its parent's children only when the parent reaps it. So for *our own* list,
while we (the only thread) do not reap, the list only grows, and a read to its end has seen every process that
was in it at that end. A read of another process's list may miss one that was there. It is good enough to send
a polite signal, never to prove an absence.

The pid of our unreaped child cannot be reused. For every other pid we open a pidfd first
and check the ancestry after that: if the way up still leads to us, the pidfd is that of a process of ours.
"""

from __future__ import annotations

import os
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEPTH_MAX = 4096
CLIMBS_MAX = 10
WALK_MAX = 100_000
CLOCK_READS_MAX = 10
CLOCK_READ_S = 0.001
COMMAND_LINE_MAX = 65_536


class Stat:
    """One line of /proc/<pid>/stat. `started_at` is epoch seconds, UTC, exact to a clock tick (10 ms)."""

    __slots__ = ("name", "pgid", "pid", "ppid", "sid", "start_ticks", "state")

    def __init__(self, pid: int, text: str) -> None:
        # The name may hold blanks and brackets; it ends at the last closing one.
        opened, closed = text.index("("), text.rindex(")")
        rest = text[closed + 2 :].split(" ", 20)
        self.pid = pid
        self.name = text[opened + 1 : closed]
        self.state = rest[0]
        self.ppid = int(rest[1])
        self.pgid = int(rest[2])
        self.sid = int(rest[3])
        self.start_ticks = int(rest[19])

    @property
    def dead(self) -> bool:
        """True if it has ended and is not reaped: the kernel accepts a signal to it, without effect."""
        return self.state in "ZX"

    @property
    def started_at(self) -> float:
        """When the process began, by the wall clock as it stands now."""
        return _booted_at() + self.start_ticks / TICKS_PER_S


def _booted_at() -> float:
    """When the machine was booted, by the wall clock as it stands now.

    Two clocks are read one after the other. If much time passes between, as under load, they are read again.
    """
    best, shortest_s = 0.0, float("inf")
    for _ in range(CLOCK_READS_MAX):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = time.time()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before < shortest_s:
            best, shortest_s = wall - after, after - before
        if shortest_s <= CLOCK_READ_S:
            break
    return best


def ticks_now() -> int:
    """This moment, as the kernel counts the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def switches(pid: int) -> int:
    """A process's voluntary context switches: the count grows while the process works. -1: it is gone."""
    try:
        status = read_text(f"/proc/{pid}/status")
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt")), -1)


def read_text(path: str) -> str:
    """Read a /proc file to its end, in as many reads as that takes; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")


def stat(pid: int) -> Stat | None:
    """Read /proc/<pid>/stat, also of a zombie; None if there is no such process."""
    try:
        return Stat(pid, read_text(f"/proc/{pid}/stat"))
    except (OSError, ValueError):
        return None


def command_line(pid: int) -> list[str]:
    """The command line of `pid`, at most COMMAND_LINE_MAX bytes; empty if it has ended."""
    try:
        fd = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        words = os.read(fd, COMMAND_LINE_MAX).rstrip(b"\0").decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(fd)
    return words.split("\0") if words else []


def environment(pid: int) -> list[str]:
    """The environment that a process was executed with; empty for a zombie, or if we may not read it."""
    try:
        return read_text(f"/proc/{pid}/environ").split("\0")
    except OSError:
        return []


def own_children() -> list[int]:
    """Our own children, zombies included. Only for a process with one thread. Raises OSError without /proc."""
    me = os.getpid()
    return [int(word) for word in read_text(f"/proc/{me}/task/{me}/children").split()]


def children(pid: int) -> list[int]:
    """The children of all threads of `pid`, as far as they could be seen."""
    seen: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            seen.extend(int(word) for word in read_text(f"/proc/{pid}/task/{tid}/children").split())
    except OSError:
        return seen
    return seen


def descendants(spare: frozenset[int] | set[int] = frozenset(), most: int = WALK_MAX) -> list[int]:
    """Our descendants, as far as they could be seen, nearest first, about `most` of them; without `spare` and below."""
    found = [pid for pid in own_children() if pid not in spare]
    known = set(found)
    for pid in found:
        if len(found) >= most:
            break
        for child in children(pid):
            if child not in known:
                known.add(child)
                found.append(child)
    return found


def descends_from(pid: int, ancestor: int, past: frozenset[int] | set[int] = frozenset()) -> bool:
    """True if the way up from `pid` leads to `ancestor` without passing one of `past`.

    Climbs again if a process on the way died meanwhile.
    """
    for _ in range(CLIMBS_MAX):
        verdict = _climb(pid, ancestor, past)
        if verdict is not None:
            return verdict
    return False


def _climb(pid: int, ancestor: int, past: frozenset[int] | set[int]) -> bool | None:
    """One way up; None if it changed under us.

    Each link is read twice, the second time after the link above it: a parent that died in between changes
    the child's link, so two equal readings say that the parent lived, under that pid, while its own was read.
    """
    way: list[tuple[int, int]] = []
    at = pid
    while at != ancestor:
        if at in past:
            return False
        seen = stat(at)
        if seen is None:
            return False if at == pid else None
        if seen.ppid == 0 or len(way) >= DEPTH_MAX:
            return False
        way.append((at, seen.ppid))
        at = seen.ppid
    for child, parent in way:
        seen = stat(child)
        if seen is None or seen.ppid != parent:
            return None
    return True


def boot_id() -> str:
    """The kernel's name for this boot; empty where it has none."""
    try:
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""
