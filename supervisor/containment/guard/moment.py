"""A moment by the kernel's own counters: which processes were forked before it, and which after it.

A start time is exact to a clock tick only, and much is forked within one. Pids are finer: the kernel gives them out in
order, begins again at the lowest after the highest, and says which one was the last.

A signal to a process group reaches a child whose fork is not complete, if the fork began before the signal: the kernel
hands it on to the child. A fork that begins later gives a child without it. A child's pid is given out in between. So
a child whose pid was given out before the signal was sent has got it.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

from supervisor.containment.guard import procfs

LAST_PID = "/proc/sys/kernel/ns_last_pid"
"""The pid given out last in our PID namespace. /proc/loadavg has it too, but containers may replace that file."""


class Moment:
    """Now. `pid`: the pid given out last; None where the kernel does not say."""

    __slots__ = ("pid", "ticks")

    def __init__(self) -> None:
        self.ticks = procfs.ticks_now()
        try:
            self.pid: int | None = int(procfs.read_text(LAST_PID))
        except (OSError, ValueError):
            self.pid = None


def forked_before(seen: procfs.Stat, before: Moment, after: Moment, now: Moment) -> bool | None:
    """True if a process was forked before `before`, False if after `after`; None if that cannot be told.

    Args:
        seen: the process.
        before: a moment before what is asked about.
        after: a moment after it.
        now: a moment after `seen` was read. From `before` to `now` fewer pids were given out than there are.
    """
    if seen.start_ticks < before.ticks:
        # It may be numbered as if it were new, where the kernel has begun again at the lowest pid.
        return True
    if before.pid is None or after.pid is None or now.pid is None:
        return None
    if _given_out(seen.pid, before.pid, after.pid):
        return None
    return not _given_out(seen.pid, after.pid, now.pid)


def _given_out(pid: int, since: int, until: int) -> bool:
    """True if a pid was given out after `since`, and not after `until`."""
    return since < pid <= until if since <= until else pid > since or pid <= until
