"""What the zygote, the wardens and the seeds are to the kernel: what wakes them, what they ignore, when they run.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

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
    """Run before ordinary processes, if we may (root, or CAP_SYS_NICE); what we fork or spawn does not inherit it.

    `pid`: an unreaped child of ours, instead of us.

    A tree of hundreds of sessions has hundreds of shares of the processor and its warden has one, so without this
    seconds can pass before a kill is even read. A warden sleeps but for the moments in which it reaps or kills.
    """
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def go_with_the_others(pid: int) -> None:
    """Take back what `go_first` gave to an unreaped child."""
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


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
