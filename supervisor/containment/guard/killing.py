"""Killing a tree from above it: signals to processes that are proven ours, in rounds, until no new one is found.

A warden kills its tree so, and the zygote the orphans of a killed warden. Own children are not reaped before they
are signalled, so their pids cannot be reused. A process further down is signalled by pidfd, and only if it still
descends from us. Each round kills one level, and the next level becomes our children. A tree that still has new members
after ROUNDS_MAX rounds is stopped as a whole, in passes, until a pass finds no new member. Then it is killed. The dead
are reaped between two passes: in a crowd that forks and dies they would make each pass longer than the last, and the
crowd would never be caught.

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
"""After so many passes with a new process in each, all are killed as they are: another process may continue them."""


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
    """Signal descendants: own children by pid, others by pidfd and only if they are not below one of `spare`."""
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
        """Signal those not signalled yet. Returns their pids, and the error of each refused signal by pid.

        After ROUNDS_MAX rounds, one that has processes to signal starts with a pass that stops the new ones. While
        `stopping` is True none was killed. The next round must not wait longer than it takes to reap the dead.
        """
        self.groups = set()
        if self._rounds >= ROUNDS_MAX and (self.stopping or self.fresh(spare)):
            self.stopping = self._stop_the_new(spare)
            if self.stopping:
                return [], {}
            # The deepest first: the kernel may continue a stopped process when its parent ends.
            signal_each(procfs.descendants(spare)[::-1], signal.SIGKILL, spare)
        for pid in list(self.refused):
            # We may be allowed to signal it now: `sudo` may have executed its command.
            if kill_quietly(pid, signal.SIGKILL) is None:
                del self.refused[pid]
        if self.refused:
            # As long as it lives, its children do not become ours.
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
            # Processes killed before may still be dying, and their children become ours later: keep the count.
            return fresh, refused
        self._rounds += 1
        return fresh, refused

    def _stop_the_new(self, spare: frozenset[int] | set[int]) -> bool:
        """Stop every descendant that is not stopped; False: there was none, or PASSES_MAX passes found new ones."""
        present = procfs.descendants(spare)
        # Forget processes that are gone: their pids may be reused. Their children are in `present`.
        self._stopped.intersection_update(present)
        fresh = [pid for pid in present if pid not in self._stopped]
        self._stopped.update(fresh)
        signal_each(fresh, signal.SIGSTOP, spare)
        self._passes += 1
        if fresh and self._passes < PASSES_MAX:
            return True
        self._passes = 0
        if fresh:
            # A stopped process may run again. The next pass stops all of them once more.
            self._stopped.clear()
        return False

    def fresh(self, spare: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Our children that were not signalled yet."""
        return [pid for pid in procfs.own_children() if pid not in self._sent and pid not in spare]

    @property
    def crowd(self) -> int:
        """How many are stopped, dead ones included: the number to reap before the next pass."""
        return len(self._stopped) if self.stopping else 0

    def reaped(self, pid: int) -> None:
        """Forget a pid that was reaped: it may be reused."""
        self._sent.discard(pid)
        self._stopped.discard(pid)
        self.refused.pop(pid, None)

    def over(self) -> None:
        """Count rounds and passes from zero again: no process is left."""
        self._rounds = self._passes = 0
        self.stopping = False
        self._stopped.clear()


def foreign_groups(pids: list[int]) -> set[int]:
    """The process groups of our children in `pids`, without those of our own session."""
    session = os.getsid(0)
    seen = [procfs.stat(pid) for pid in pids]
    return {found.pgid for found in seen if found is not None and found.sid != session}
