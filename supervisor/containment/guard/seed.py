"""The seed of a tree: the process that waits to become its command, made ready before it is needed.

It is born in the tree's cgroup, with all that can be done before a command is known already done. Its messages
with the warden: the pid of its anchor (anchor.py), the command and its descriptors, the order to execute, and why that
failed, if it did. The end of its socket without a reason is the exec.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from contextlib import suppress

from supervisor.containment.guard import anchor, cgroups, procfs
from supervisor.containment.guard.command import command_in, execute_first, limit, prepare
from supervisor.containment.guard.killing import kill_quietly
from supervisor.containment.guard.ledger import Ledger, read, said
from supervisor.containment.guard.namespaces import PR_SET_NAME, Namespace, call, mount_proc
from supervisor.containment.guard.out_of_reach import FarSides
from supervisor.containment.guard.packets import receive
from supervisor.containment.guard.unix import FAILED, go_first, keep_descriptors, readable

SEED = "cm-seed"
"""Its name, and that of its anchor, until it is the command."""
NOTE_MAX_BYTES = 4096
LOOK_S = 0.05
"""How long a seed may say nothing before we look whether it lives."""
PREPARE, GO = b"p", b"g"
"""The two messages to a seed: the command's descriptors come with the first, and the second has it execute."""
ANCHOR = b"anchor "
"""What a seed says first, and the pid of its anchor; anything else that it says is why it could not."""


class Seed:
    """A child that waits to become the command: forked while there was time, in the tree's cgroup from the beginning.

    It takes two steps: `prepare` does all that comes before an exec, and has no effect outside; `go` executes. The
    first, or else `outcome`, raises ConnectionError if it was killed while it waited. The
    constructor raises OSError.
    """

    def __init__(self, group: str | None, namespace: Namespace | None) -> None:
        if namespace is not None:
            namespace.open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leash, self._leash = os.pipe()
        self.anchor = 0
        self._unread: OSError | None = None
        self._keeper = namespace.pid if namespace is not None else None
        try:
            self.pid, inside = cgroups.fork_into(group)
            if self.pid == 0:
                grow(theirs, leash, None if inside else group, own_proc=namespace is not None)
        except OSError:
            ours.close()
            os.close(self._leash)
            raise
        finally:
            theirs.close()
            os.close(leash)
        ours.settimeout(LOOK_S)
        self._sock = ours

    def prepare(self, fds: list[int]) -> None:
        """Give it the descriptors of its command: for output, for errors, with the command itself, and its channel."""
        socket.send_fds(self._sock, [PREPARE], fds)

    def go(self) -> None:
        """Let it become the command. What one that has ended before has said is still in the socket."""
        try:
            self._sock.send(GO)
        except ConnectionError as error:
            self._unread = error

    def outcome(self) -> str:
        """Wait until it is the command; why it could not be, or empty."""
        with self._sock:
            # Its end of the socket closes with the exec.
            note = self._read_out()
        if note:
            os.waitpid(self.pid, 0)
        return note

    def weigh_anchor(self) -> int:
        """It is the command now: let its anchor end; returns the anchor's pid, which is to be reaped, or 0."""
        if self.anchor:
            # The end of its pipe does not end an anchor that a signal has stopped.
            kill_quietly(self.anchor, signal.SIGKILL)
        os.close(self._leash)
        return self.anchor

    def dismiss(self) -> None:
        """It is not needed, or has ended by itself: kill and reap it, and its anchor."""
        self._sock.close()
        os.close(self._leash)
        kill_quietly(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        # It may have ended before it sent the pid of its anchor. Without a command we have no other child.
        for pid in procfs.own_children():
            if pid != self._keeper:
                kill_quietly(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _read_out(self) -> str:
        """Read the pid of its anchor, and then why it could not execute; empty at the end."""
        dead = False
        while True:
            try:
                said = self._sock.recv(NOTE_MAX_BYTES)
            except TimeoutError:
                if dead:
                    # Killed while it made its anchor, which has the other end of the socket now, and keeps it open.
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
                # What it has said before it died is still to be read.
                dead = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ConnectionResetError as error:
                # It has not read all. The kernel reports that once, ahead of what it has sent.
                self._unread = error
            else:
                if said.startswith(ANCHOR):
                    self.anchor = int(said[len(ANCHOR) :])
                    continue
                if not said and self._unread is not None:
                    raise self._unread
                # It may be cut off within a character.
                return said.decode("utf-8", "replace")


def grow(sock: socket.socket, leash: int, group: str | None, *, own_proc: bool) -> None:
    """In the forked child: wait for the command and execute it; never returns. Says on `sock` why it could not."""
    try:
        call("prctl", PR_SET_NAME, SEED.encode(), 0, 0, 0)
        keep_descriptors(sock.fileno(), leash)
        # Ahead of ordinary processes until the exec, since a call waits for that. The warden undoes it then.
        go_first()
        if group is not None:
            cgroups.join(group)
        if own_proc:
            mount_proc()
        os.setsid()
        with open(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "rb") as null:
            os.dup2(null.fileno(), 0)
        for ignored in signal.valid_signals():
            if signal.getsignal(ignored) is signal.SIG_IGN:
                signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        rehearse()
        if not own_proc:
            # In a namespace its pid would be another number than outside.
            sock, pid = anchor.cast(sock, leash)
            sock.send(b"%s%d" % (ANCHOR, pid))
        # Without its warden no command may be executed.
        _, fds = receive(sock, len(PREPARE), to_the_end=False)
        if fds:
            for stream, fd in enumerate(fds[:2], start=1):
                os.dup2(fd, stream)
            execute = prepare(command_in(fds[2]), fds[3] if len(fds) > 3 else None)
            if sock.recv(len(GO)) == GO:
                sock.send(execute().encode()[:NOTE_MAX_BYTES])
    except OSError as error:
        sock.send(f"cannot prepare a process: {error.strerror}".encode())
    finally:
        os._exit(FAILED)


def rehearse() -> None:
    """Go once through what a spawn does, on a file in memory.

    A fork shares its memory with its parent until either writes to it, so the first time costs a page fault for each
    page; those are taken before a call waits.
    """
    fd = os.memfd_create("rehearsal", os.MFD_CLOEXEC)
    try:
        with suppress(OSError, ValueError):
            ledger = Ledger(fd)
            ledger.write({"word": "spawning", "argv": ["true"], "env": {"PATH": os.defpath}, "cwd": os.getcwd()})
            prepare(command_in(fd))
            said(read(fd), "void")
            procfs.stat(os.getpid())
            procfs.command_line(os.getpid())
            readable(fd)
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with one, other:
                socket.send_fds(one, [PREPARE], [fd])
                for copy in receive(other, len(PREPARE))[1]:
                    os.close(copy)
            FarSides().see(["true"])
            limit({})
            execute_first([b"/no/such/program"], [b"true"], {})
            time.monotonic()
    finally:
        os.close(fd)
