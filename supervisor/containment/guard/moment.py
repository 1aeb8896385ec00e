"""A moment by the kernel's own counters: which processes were forked before it, and which after it.

A start time is exact only to a clock tick, and many processes may be forked within one. Pids are finer: the kernel
allocates them in order, wraps around after the highest, and shows the last one.

A signal to a process group also reaches a child whose fork is under way, if the fork began before the signal: the
kernel passes it on. The pid is allocated during the fork. So a child whose pid was allocated before the signal was
sent has got it.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

from supervisor.containment.guard import procfs

LAST_PID = "/proc/sys/kernel/ns_last_pid"
"""The last pid allocated in our PID namespace. /proc/loadavg has it too, but containers may replace that file."""


class Moment:
    """Now. `pid`: the last pid allocated; None where the kernel does not show it."""

    __slots__ = ("pid", "ticks")

    def __init__(self) -> None:
        self.ticks = procfs.ticks_now()
        try:
            self.pid: int | None = int(procfs.read_text(LAST_PID))
        except (OSError, ValueError):
            self.pid = None


def forked_before(seen: procfs.Stat, before: Moment, after: Moment, now: Moment) -> bool | None:
    """True if a process was forked before `before`, False if after `after`; None if that is not known.

    Args:
        seen: the process.
        before: a moment before the event in question.
        after: a moment after it.
        now: a moment after `seen` was read. Between `before` and `now` the pids must not wrap around completely.
    """
    if seen.start_ticks < before.ticks:
        # Its pid may look new, if the pids have wrapped around.
        return True
    if before.pid is None or after.pid is None or now.pid is None:
        return None
    if _given_out(seen.pid, before.pid, after.pid):
        return None
    return not _given_out(seen.pid, after.pid, now.pid)


def _given_out(pid: int, since: int, until: int) -> bool:
    """True if a pid was allocated after `since`, and not after `until`."""
    return since < pid <= until if since <= until else pid > since or pid <= until
