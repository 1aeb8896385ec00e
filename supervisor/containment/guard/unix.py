"""Signals, wake-ups, scheduling and descriptors of the zygote, the wardens and their preforked children.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import os
import resource
import select
import signal
from contextlib import suppress

NICE = os.getpriority(os.PRIO_PROCESS, 0)
"""Our nice value when this file was loaded, which was the daemon's."""
NICE_FIRST = -20
NICE_LAST = 19
FAILED = 70
"""Exit status of a guard process that could not do its work."""
IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXFSZ,
)
"""Signals that would end or stop a guard process, and that a tree or a terminal could send it."""


def wake_on_child() -> int:
    """Make every SIGCHLD readable on the descriptor returned; the caller keeps the pipe of an earlier call."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def go_first(pid: int = 0) -> None:
    """Run ahead of ordinary processes, if we may (root, or CAP_SYS_NICE); our children do not inherit it.

    `pid`: an unreaped child of ours, instead of us.

    By the nice value, not by a real-time policy. A parent that reaps a process with threads spins in the kernel until
    the last thread has left its processor. A real-time parent may spin on that very processor, and then the thread
    cannot leave it until real-time throttling sets in, 0.95 s later.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE_FIRST)
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def go_with_the_others(pid: int, nice: int = 0) -> None:
    """Undo `go_first` for an unreaped child (0: this process), and make it `nice` nicer than the daemon."""
    with suppress(OSError):
        # In this order: a process it forks meanwhile must not inherit our nice value.
        os.setpriority(os.PRIO_PROCESS, pid, NICE + nice)
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def niceness(wanted: int) -> int:
    """How much nicer than the daemon a command can be made: 0 if we could not undo it later.

    To be called in a process that has called `go_first`.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NICE)[0]
    went_first = os.getpriority(os.PRIO_PROCESS, 0) == NICE_FIRST
    if not went_first and allowed != resource.RLIM_INFINITY and allowed < NICE_LAST + 1 - NICE:
        return 0
    return max(0, min(wanted, NICE_LAST - NICE))


def session_goes_first() -> None:
    """Give our session the largest share of the processor, where the kernel schedules by session (autogroup).

    A tree of hundreds of sessions has hundreds of shares and its warden has one: without this, seconds could pass
    before the warden reads a kill. For the leader of a session that has no process of the tree.
    """
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(NICE_FIRST))


def drain(fd: int) -> None:
    """Empty a wake-up pipe."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def readable(fd: int) -> bool:
    """True if a read of `fd` would not block (also at its end, or for the pidfd of a dead process)."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def keep_descriptors(*kept: int) -> None:
    """Close all descriptors but the first three and these."""
    for low, high in zip([2, *sorted(kept)], [*sorted(kept), 2**30], strict=True):
        os.closerange(low + 1, high)
