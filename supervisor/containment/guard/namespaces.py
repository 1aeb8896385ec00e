"""The PID namespace of a process tree: no process can leave it, and all of them die with its first process.

Theory of operation. The layer is off unless it is asked for. With it a warden makes a PID namespace and stays outside.
Its later children are inside: first the *keeper*, which is pid 1 there, then the preforked child. So the command is
the warden's own child as without it, with its status and resource usage, and the warden sees the pids of the machine.
An orphan inside falls to the keeper, which reaps and reports it.

*The proof.* The keeper is the warden's child. The kernel lets it be reaped only when all others in its namespace
are dead and reaped, and then no process can be forked into it again. So ECHILD means here what it means without the
layer, and does so without relying on the subreaper. With the warden and the zygote dead, the same proof is the keeper's
end (`orphans`).

*Ending.* The keeper does one thing for the warden: `kill(-1)`, which reaches all in the namespace but itself, in one
step that no fork outruns. It exits once it was asked to and has no child left. If the warden is killed, the kernel
sends the keeper SIGKILL (PDEATHSIG; a warden has one thread), even if it is stopped; then all of them are dead.

*Without privilege* the namespace needs a user namespace around it, with only our own user and group: set-uid programs
and file capabilities have no effect in it. The command has no capability in it after its exec. A /proc of its own, in a
mount namespace of the preforked child's, shows a command the pids that it can signal.

Races, and why each is closed:

* *The warden dies before the keeper has set PDEATHSIG*: the keeper checks for the end of its socket after that.
* *An orphan comes while the keeper learns that the command has ended*: the command's children were the keeper's before
  the command could be reaped, and the keeper only goes at its own ECHILD.
* *The keeper is killed*, from outside: so are all in its namespace, and no other process can be forked into it.

Standard library only: the zygote and the wardens load this file too. As a script it makes and ends a namespace once, as
a warden and its preforked child do, and prints what failed: `probe` runs it to check that namespaces work here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
KEEPER = "cm-keeper"
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_PROC = 0x2 | 0x4 | 0x8
"""nosuid, nodev, noexec."""
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
LEAVE = 0
"""Sent to the keeper instead of a signal's number: exit when no child is left."""
REPORT_MAX_BYTES = 1024
REAPED_A_TURN = 256
NICE_FIRST = -20


def call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library; raises OSError with its name unless it returns 0."""
    words = [one if one is None or isinstance(one, bytes) else ctypes.c_ulong(one) for one in arguments]
    if getattr(LIBC, name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter() -> None:
    """Put the later children of this process into a new PID namespace, with a user namespace if needed.

    Raises OSError.
    """
    try:
        call("unshare", CLONE_NEWPID)
        return
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        # Inside, root would have every capability that was taken from it here.
        raise OSError(errno.EPERM, "we are root without CAP_SYS_ADMIN, which a user namespace would give back")
    call("unshare", CLONE_NEWUSER | CLONE_NEWPID)
    # The kernel demands that setgroups is denied first: dropping a group could grant a right.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror}") from error
        finally:
            os.close(fd)


def mount_proc() -> None:
    """In a process of the namespace: give it a /proc of its own; all other mounts stay shared. Raises OSError."""
    call("unshare", CLONE_NEWNS)
    call("mount", None, b"/proc", None, MS_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", MS_PROC, None)


def fork_with_socket(child: Callable[[socket.socket], NoReturn]) -> tuple[int, socket.socket]:
    """Fork `child` with one end of a new socket; returns its pid and the other end. Raises OSError.

    It is in this file because, as a script, this file cannot import ours.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            child(theirs)
    return pid, ours


class Namespace:
    """The warden's end of its tree's namespace. `pid`: of the keeper; None before `open`, and when it is reaped."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self._entered = False
        self._sock: socket.socket | None = None

    def open(self) -> None:
        """Make the namespace and fork its keeper, unless that is done. Raises OSError."""
        if not self._entered:
            enter()
            self._entered = True
        if self._sock is None:
            self.pid, self._sock = fork_with_socket(keep)
            self._sock.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll for reports."""
        assert self._sock is not None
        return self._sock.fileno()

    def signal(self, number: int) -> None:
        """Signal all in the namespace but the keeper, once."""
        self._tell(number)

    def leave(self) -> None:
        """Let the keeper exit when it has no child left: the command has ended."""
        self._tell(LEAVE)

    def reports(self, most: int) -> Iterator[bytes | None]:
        """Yield the keeper's reports of reaped processes, at most `most`; None as the last one if no more will come."""
        assert self._sock is not None
        for _ in range(most):
            try:
                data = self._sock.recv(REPORT_MAX_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # Reported once, ahead of its messages, if it ended without having read all of ours.
                continue
            except OSError:
                data = b""
            yield data or None
            if not data:
                return

    def close(self) -> None:
        """End and reap the keeper: nothing was started in the namespace."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None

    def _tell(self, number: int) -> None:
        assert self._sock is not None
        # If the keeper is gone, so is everything in the namespace. One that does not read is killed after a while.
        with suppress(OSError):
            self._sock.send(bytes([number]))


# ── The keeper ────────────────────────────────────────────────────────────────────────────────────


def keep(sock: socket.socket) -> NoReturn:
    """In the forked child, pid 1 of the namespace: reap, report, signal all on request; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, 2**30)
        with suppress(OSError):
            # As `unix.go_first`, which this file cannot import.
            os.setpriority(os.PRIO_PROCESS, 0, NICE_FIRST)
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        call("prctl", PR_SET_NAME, KEEPER.encode(), 0, 0, 0)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(readable, select.POLLIN)
        poll.register(sock, select.POLLIN)
        leaving = False
        while (reaped := reap(sock)) is not None or not leaving:
            ready = {fd for fd, _ in poll.poll(0 if reaped == REAPED_A_TURN else None)}
            if readable in ready:
                with suppress(BlockingIOError):
                    os.read(readable, 65536)
            if sock.fileno() in ready:
                word = sock.recv(1)
                if not word:
                    break
                leaving = leaving or word[0] in (LEAVE, signal.SIGKILL)
                if word[0] != LEAVE:
                    with suppress(ProcessLookupError):
                        os.kill(-1, word[0])
    finally:
        os._exit(0)


def reap(sock: socket.socket) -> int | None:
    """Reap the dead, at most REAPED_A_TURN, and report each; returns how many, None if no child is left."""
    for count in range(REAPED_A_TURN):
        try:
            waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if waiting is None:
            return count
        seen = stat_outside(waiting.si_pid)
        _, raw = os.waitpid(waiting.si_pid, 0)
        sock.send(b"%d %b" % (raw, seen))
    return REAPED_A_TURN


def stat_outside(pid: int) -> bytes:
    """The line /proc/<pid>/stat of a dead child, with its pid outside; empty if no descriptor is available.

    The keeper sees the machine's /proc. The fdinfo of a pidfd there names the pid of the process outside.
    """
    try:
        fd = os.pidfd_open(pid)
        try:
            entry = read(f"/proc/self/fdinfo/{fd}")
        finally:
            os.close(fd)
        outside = next(line[4:].strip() for line in entry.split(b"\n") if line.startswith(b"Pid:"))
        return read(f"/proc/{int(outside)}/stat")
    except (OSError, StopIteration):
        return b""


def read(path: str) -> bytes:
    """Read a small file at once."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, REPORT_MAX_BYTES // 2)
    finally:
        os.close(fd)


# ── Whether it can be had ─────────────────────────────────────────────────────────────────────────


def attempt() -> None:
    """Make and end a namespace with one process; raises OSError with what failed."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    namespace = Namespace()
    namespace.open()
    try:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os._exit(write_failure(mount_proc, writable))
        os.close(writable)
        with open(readable, "rb") as failure:
            number, _, text = failure.read().decode().partition(" ")
        os.waitpid(pid, 0)
        if text:
            raise OSError(int(number), text)
        namespace.leave()
        status = os.waitpid(namespace.pid or 0, 0)[1]
        namespace.pid = None
        if status != 0:
            raise OSError(errno.ECHILD, f"its first process ended with status {status}")
    finally:
        namespace.close()


def write_failure(work: Callable[[], None], fd: int) -> int:
    """Do some work, and write its error to `fd`; returns 0."""
    try:
        work()
        if os.readlink("/proc/self") != str(os.getpid()):
            raise OSError(errno.ENOTSUP, "its /proc shows another namespace")
    except OSError as error:
        os.write(fd, f"{error.errno} {error.strerror}".encode())
    return 0


if __name__ == "__main__":
    try:
        attempt()
    except OSError as failure:
        sys.stdout.write(f"{failure.strerror}\n")
        sys.exit(1)
