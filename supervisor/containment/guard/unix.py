"""What the zygote, the wardens and the seeds are to the kernel: what wakes them, what they ignore, when they run.

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
"""Exit status of one of them that could not do its work."""
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
"""What a tree could send its warden, or a terminal its zygote, that would end or stop it."""


def wake_on_child() -> int:
    """Make every SIGCHLD readable on the descriptor returned; the pipe of an earlier call stays the caller's."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def go_first(pid: int = 0) -> None:
    """Run ahead of ordinary processes, if we may (root, or CAP_SYS_NICE); what we fork or spawn does not inherit it.

    `pid`: an unreaped child of ours, instead of us.

    By the nice value, and not by a real-time policy: the kernel makes the parent that reaps a process with threads wait
    in a spin until the last thread has left its processor. A real-time process spins on that very processor, and the
    thread cannot leave it until real-time throttling ends that, 0.95 s later.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE_FIRST)
        os.sched_setscheduler(pid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def go_with_the_others(pid: int, nice: int = 0) -> None:
    """Take back what `go_first` gave to an unreaped child: it is `nice` nicer than the daemon that started us.

    `pid`: 0 is this process.
    """
    with suppress(OSError):
        # In this order: what it forks meanwhile must not inherit ours.
        os.setpriority(os.PRIO_PROCESS, pid, NICE + nice)
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def niceness(wanted: int) -> int:
    """How much nicer than the daemon a command may be made: not at all where we could not take it back.

    Asked in a process that has tried to go first.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NICE)[0]
    went_first = os.getpriority(os.PRIO_PROCESS, 0) == NICE_FIRST
    if not went_first and allowed != resource.RLIM_INFINITY and allowed < NICE_LAST + 1 - NICE:
        return 0
    return max(0, min(wanted, NICE_LAST - NICE))


def session_goes_first() -> None:
    """Give our session as large a share of the processor as it may have, where the kernel shares it out by session.

    A tree of hundreds of sessions has hundreds of such shares and its warden has one: without this, seconds could pass
    before a kill is read. For the leader of a session in which none of the tree is.
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
