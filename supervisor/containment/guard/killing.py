"""Killing a tree from above it: signals to who is proven ours, in rounds, until nobody new is met.

A warden does so with its tree, and the zygote with what a killed warden leaves. Own children are not reaped before they
are signalled, so their pids are theirs; who is further down is signalled by pidfd, and only if it still descends from
us. Each round makes orphans of the next level our children. A tree that still has new members after ROUNDS_MAX rounds
is stopped, all of it, until a pass over it finds nobody new, and then killed. The dead are reaped between two passes:
in a crowd that forks and dies they would make each pass longer than the last, and it would never be caught.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from supervisor.containment.guard import procfs

ROUNDS_MAX = 10
PASSES_MAX = 200
"""So many passes find somebody new before all are killed as they are: somebody may continue whom we stop."""


def signal_name(number: int) -> str:
    """SIGTERM for 15; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def kill_quietly(pid: int, number: int) -> str | None:
    """Signal an unreaped child; the error's text if it was refused, None if sent or already dead."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    except OSError as error:
        return os.strerror(error.errno or errno.EPERM)
    return None


def kill_descendant(pid: int, number: int, spare: frozenset[int] | set[int] = frozenset()) -> tuple[bool, str | None]:
    """Signal a descendant that is not our child: by pidfd, and only if it still descends from us, not through `spare`.

    Returns whether it is ours, and the error's text if the signal was refused.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False, None
    try:
        if not procfs.descends_from(pid, os.getpid(), spare):
            return False, None
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True, None
    except OSError as error:
        return True, os.strerror(error.errno or errno.EPERM)
    finally:
        os.close(fd)
    return True, None


def signal_each(pids: list[int], number: int, spare: frozenset[int] | set[int]) -> None:
    """Signal descendants, each as its kind allows; none that has come to be below one of `spare`."""
    own = set(procfs.own_children())
    for pid in pids:
        if pid in own:
            kill_quietly(pid, number)
        else:
            kill_descendant(pid, number, spare)


class Killing:
    """Rounds of SIGKILL over our own children, except those we `spare`; shared by wardens and the zygote."""

    def __init__(self) -> None:
        self._sent: set[int] = set()
        self.refused: dict[int, str] = {}
        self._rounds = 0
        self._stopped: set[int] = set()
        self._passes = 0
        self.stopping = False
        self.groups: set[int] = set()

    def round(self, spare: frozenset[int] | set[int] = frozenset()) -> tuple[list[int], dict[int, str]]:
        """Signal those not signalled yet. Returns their pids, and of those who refused, why.

        After ROUNDS_MAX of them a round in which there is somebody to signal is first one pass that stops who is new:
        while `stopping` is True nobody was killed, and the next round, when the dead are reaped, must not wait.
        """
        self.groups = set()
        if self._rounds >= ROUNDS_MAX and (self.stopping or self.fresh(spare)):
            self.stopping = self._stop_the_new(spare)
            if self.stopping:
                return [], {}
            # The deepest first: whose parent ends before, the kernel may continue.
            signal_each(procfs.descendants(spare)[::-1], signal.SIGKILL, spare)
        for pid in list(self.refused):
            # It may have become somebody whom we may signal, as `sudo` does when it executes what it was asked to.
            if kill_quietly(pid, signal.SIGKILL) is None:
                del self.refused[pid]
        if self.refused:
            # While it lives, who is below it does not become our child.
            unsent = [pid for pid in procfs.descendants(spare) if pid not in self._sent]
            signal_each(unsent, signal.SIGKILL, spare)
        fresh = self.fresh(spare)
        refused: dict[int, str] = {}
        for pid in fresh:
            error = kill_quietly(pid, signal.SIGKILL)
            if error is not None:
                refused[pid] = self.refused[pid] = error
        self._sent.update(fresh)
        self.groups = foreign_groups(fresh)
        for group in self.groups:
            # A member of it is our child and not reaped, so the number still names this group.
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        if not fresh:
            # Those killed before may still be dying, and who they leave is yet to come: the count goes on.
            return fresh, refused
        self._rounds += 1
        return fresh, refused

    def _stop_the_new(self, spare: frozenset[int] | set[int]) -> bool:
        """Stop every descendant that was not; False: there was none, or there were some for too long."""
        everybody = procfs.descendants(spare)
        # Who is gone counts no more: the pid may be somebody else's. Whoever it left is one of those.
        self._stopped.intersection_update(everybody)
        fresh = [pid for pid in everybody if pid not in self._stopped]
        self._stopped.update(fresh)
        signal_each(fresh, signal.SIGSTOP, spare)
        self._passes += 1
        if fresh and self._passes < PASSES_MAX:
            return True
        self._passes = 0
        if fresh:
            # Who is in there may run again. The next pass is to stop everybody anew.
            self._stopped.clear()
        return False

    def fresh(self, spare: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Our children that were not signalled yet."""
        return [pid for pid in procfs.own_children() if pid not in self._sent and pid not in spare]

    @property
    def crowd(self) -> int:
        """How many are stopped, the dead among them included: so many may be reaped before the next pass."""
        return len(self._stopped) if self.stopping else 0

    def reaped(self, pid: int) -> None:
        """The pid is free again and may come back as somebody new."""
        self._sent.discard(pid)
        self._stopped.discard(pid)
        self.refused.pop(pid, None)

    def over(self) -> None:
        """Nobody is left: what comes later is counted from the beginning."""
        self._rounds = self._passes = 0
        self.stopping = False
        self._stopped.clear()


def foreign_groups(pids: list[int]) -> set[int]:
    """The process groups of our children in `pids`, without those of our own session."""
    session = os.getsid(0)
    seen = [procfs.stat(pid) for pid in pids]
    return {found.pgid for found in seen if found is not None and found.sid != session}
