"""A process that code inside this process started by itself, and its descendants: asked to end, killed, proven gone.

It has no warden. The code that started it is its parent and reads its exit status, so nothing is reaped here. A member
is identified by its pidfd. That is opened first, and then the parent is checked: it must be a living member, or this
process. So the pidfd cannot belong to another process with a reused pid. A readable pidfd proves an end.

Before a signal all members are stopped, in passes, until a pass finds no new one. A stopped process cannot fork, so a
signal that kills a parent hides no child. A process that is forked and loses its parent between two looks is not found
here, but among the orphans that fall to this process.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections import deque
from contextlib import suppress
from typing import Final

from actors.model import How, PartKind, Row, Signalled
from supervisor.containment.guard import procfs
from supervisor.containment.guard.killing import signal_name
from supervisor.containment.guard.unix import readable

PASSES_MAX: Final = 20
NAME_MAX_CHARS: Final = 120
ROWS_MAX: Final = 100


class Member:
    """One process, by its pid, its start time and its pidfd. `fd` is None if no descriptor was free."""

    __slots__ = ("ended_at", "fd", "name", "pid", "started_at", "stopped", "ticks")

    def __init__(self, pid: int, seen: procfs.Stat, fd: int | None, name: str) -> None:
        self.pid = pid
        self.ticks = seen.start_ticks
        self.started_at = seen.started_at
        self.fd = fd
        self.name = name
        self.stopped = False
        self.ended_at: float | None = None

    @property
    def alive(self) -> bool:
        """True until its end is seen."""
        if self.ended_at is not None:
            return False
        if self.fd is not None:
            ended = readable(self.fd)
        else:
            seen = procfs.stat(self.pid)
            ended = seen is None or seen.start_ticks != self.ticks or seen.dead
        if ended:
            self.ended_at = _now()
        return not ended

    def send(self, number: int) -> str | None:
        """Signal it; returns the error's text if that was refused."""
        if self.fd is None:
            return "no descriptor was free for it"
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return None
        except OSError as error:
            return error.strerror or str(error)
        return None

    def close(self) -> None:
        """Close its descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Offspring:
    """A process and its descendants. For one thread at a time, but for `join`.

    Args:
        root: the process itself.
    """

    def __init__(self, root: Member) -> None:
        self.root = root
        self.members: dict[int, Member] = {root.pid: root}
        self.ended: list[Member] = []
        self.ended_count = 0
        self._joining: deque[Member] = deque()
        self.signals: list[Signalled] = []
        self.status: int | None = None

    def join(self, member: Member) -> None:
        """Add a process that is not below it, to be ended with it. Any thread, but not while `gone` runs."""
        self._joining.append(member)

    def look(self) -> bool:
        """Find new descendants; True if there is one. Notes which members have ended."""
        found = self._take_in()
        todo = [member for member in self.members.values() if member.alive]
        while todo:
            parent = todo.pop()
            for pid in procfs.children(parent.pid):
                known = self.members.get(pid)
                if known is not None and known.alive:
                    continue
                member = opened(pid, parent.pid)
                if member is None:
                    continue
                if not parent.alive:
                    # The pid of its parent may have been reused. If the process is ours, it is an orphan.
                    member.close()
                    continue
                self._add(member)
                todo.append(member)
                found = True
        return found

    def ask(self) -> None:
        """Send SIGTERM and SIGCONT to all members."""
        self._freeze()
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to all members. A repeated call reaches those still alive, and new ones."""
        self._freeze()
        self._send(signal.SIGKILL)

    @property
    def gone(self) -> bool:
        """True if no member is alive. One that ends while this looks counts as alive until the next look."""
        self._take_in()
        if not self.root.alive:
            self._read_status()
        for member in list(self.members.values()):
            if member is not self.root and not member.alive:
                self._over(member)
        # By what is noted now: an end that is seen only here would be in no count, and the status would not be read.
        return all(member.ended_at is not None for member in self.members.values())

    @property
    def how(self) -> How:
        """How the process itself ended; `How.GONE` if its parent has read the status."""
        if self.status is None:
            return How.GONE
        if self.status in (-signal.SIGTERM, -signal.SIGKILL) and self.signals:
            return How.SIGKILL if self.status == -signal.SIGKILL else How.SIGTERM
        return How.EXIT

    @property
    def reaped(self) -> int:
        """How many of its processes are proven dead."""
        return self.ended_count + (not self.root.alive)

    def rows(self) -> tuple[Row, ...]:
        """The rows of its descendants for a receipt, at most ROWS_MAX."""
        below = [*self.ended, *(member for member in self.members.values() if member is not self.root)]
        return tuple(
            Row(
                PartKind.PROCESS,
                one.name,
                started_at=one.started_at,
                ended_at=one.ended_at,
                how=None if one.ended_at is None else How.GONE,
                pid=one.pid,
            )
            for one in below[:ROWS_MAX]
        )

    def close(self) -> None:
        """Close all descriptors."""
        for member in self.members.values():
            member.close()

    def _freeze(self) -> None:
        for _ in range(PASSES_MAX):
            for member in self.members.values():
                if not member.stopped and member.alive:
                    member.stopped = member.send(signal.SIGSTOP) is None
            if not self.look():
                return

    def _send(self, number: int) -> None:
        refused = {member.send(number) for member in self.members.values() if member.alive} - {None}
        for member in self.members.values():
            member.stopped = False
        name = signal_name(number)
        if not any(one.signal == name for one in self.signals):
            self.signals.append(Signalled(name, _now(), "; ".join(sorted(filter(None, refused))) or None))

    def _take_in(self) -> bool:
        """Add those that have joined; True if there is one."""
        found = bool(self._joining)
        while self._joining:
            self._add(self._joining.popleft())
        return found

    def _add(self, member: Member) -> None:
        known = self.members.get(member.pid)
        if known is not None:
            self._over(known)
        self.members[member.pid] = member

    def _over(self, member: Member) -> None:
        if self.members.get(member.pid) is member:
            del self.members[member.pid]
        member.close()
        self.ended_count += member is not self.root
        if len(self.ended) < ROWS_MAX:
            self.ended.append(member)

    def _read_status(self) -> None:
        """Read the exit status without reaping, so that the parent can still read it."""
        if self.status is not None or self.root.fd is None:
            return
        with suppress(OSError):
            read = os.waitid(os.P_PIDFD, self.root.fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if read is not None:
                self.status = read.si_status if read.si_code == os.CLD_EXITED else -read.si_status


def opened(pid: int, parent: int | None, name: str | None = None) -> Member | None:
    """Return a living process, if its parent is `parent` (None: any); else None."""
    try:
        fd: int | None = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError:
        # Our descriptor table is full.
        fd = None
    seen = procfs.stat(pid)
    if seen is None or seen.dead or (parent is not None and seen.ppid != parent):
        if fd is not None:
            os.close(fd)
        return None
    return Member(pid, seen, fd, name or command_of(pid, seen))


def _now() -> float:
    return time.time()  # noqa: TID251  # beside the kernel's own times, which are of the machine


def command_of(pid: int, seen: procfs.Stat) -> str:
    """The command line of a process, cut; its name in brackets if it has none."""
    return named(procfs.command_line(pid)) or f"[{seen.name}]"


def named(words: list[str]) -> str:
    """A command line as a person would type it, cut."""
    return shlex.join(words)[:NAME_MAX_CHARS]
