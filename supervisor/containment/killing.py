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

from supervisor.containment import procfs

ROUNDS_MAX = 10
STOPPED_MAX = 20_000


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


def kill_descendant(pid: int, number: int) -> tuple[bool, str | None]:
    """Signal a descendant that is not our child: by pidfd, and only if it still descends from us.

    Returns whether it is ours, and the error's text if the signal was refused.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False, None
    try:
        if not procfs.descends_from(pid, os.getpid()):
            return False, None
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True, None
    except OSError as error:
        return True, os.strerror(error.errno or errno.EPERM)
    finally:
        os.close(fd)
    return True, None


def signal_each(pids: list[int], number: int) -> None:
    """Signal descendants, each as its kind allows."""
    own = set(procfs.own_children())
    for pid in pids:
        if pid in own:
            kill_quietly(pid, number)
        else:
            kill_descendant(pid, number)


class Killing:
    """Rounds of SIGKILL over our own children, except those we `spare`; shared by wardens and the zygote."""

    def __init__(self) -> None:
        self._sent: set[int] = set()
        self.refused: dict[int, str] = {}
        self._rounds = 0
        self._stopped: set[int] = set()
        self._stops = 0
        self.stopping = False
        self.groups: set[int] = set()

    def round(self, spare: frozenset[int] | set[int] = frozenset()) -> tuple[list[int], dict[int, str]]:
        """Signal those not signalled yet. Returns their pids, and of those who refused, why.

        After ROUNDS_MAX of them a round is first one pass that stops who is new: while `stopping` is True nobody was
        killed, and the next round, when the dead are reaped, must not wait.
        """
        self.groups = set()
        if self._rounds >= ROUNDS_MAX:
            self.stopping = self._stop_the_new(spare)
            if self.stopping:
                return [], {}
            signal_each(procfs.descendants(spare), signal.SIGKILL)
        for pid in list(self.refused):
            # It may have become somebody whom we may signal, as `sudo` does when it executes what it was asked to.
            if kill_quietly(pid, signal.SIGKILL) is None:
                del self.refused[pid]
        if self.refused:
            # While it lives, who is below it does not become our child.
            signal_each([pid for pid in procfs.descendants(spare) if pid not in self._sent], signal.SIGKILL)
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
        """Stop every descendant that was not; False: there was none, or it is no use."""
        everybody = procfs.descendants(spare)
        # Who is gone counts no more: the pid may be somebody else's. Whoever it left is one of those.
        self._stopped.intersection_update(everybody)
        fresh = [pid for pid in everybody if pid not in self._stopped]
        self._stopped.update(fresh)
        self._stops += len(fresh)
        if not fresh or self._stops > STOPPED_MAX:
            self._stops = 0
            return False
        signal_each(fresh, signal.SIGSTOP)
        return True

    def fresh(self, spare: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Our children that were not signalled yet."""
        return [pid for pid in procfs.own_children() if pid not in self._sent and pid not in spare]

    def reaped(self, pid: int) -> None:
        """The pid is free again and may come back as somebody new."""
        self._sent.discard(pid)
        self._stopped.discard(pid)
        self.refused.pop(pid, None)

    def over(self) -> None:
        """Nobody is left: what comes later is counted from the beginning."""
        self._rounds = self._stops = 0
        self.stopping = False
        self._stopped.clear()


def foreign_groups(pids: list[int]) -> set[int]:
    """The process groups of our children in `pids`, without those of our own session."""
    session = os.getsid(0)
    seen = [procfs.stat(pid) for pid in pids]
    return {found.pgid for found in seen if found is not None and found.sid != session}
