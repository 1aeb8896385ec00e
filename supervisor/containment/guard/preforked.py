"""The preforked child of a warden: it waits to become the command of a tree.

It is forked into the tree's cgroup, and prepares everything that does not depend on the command. Its messages with
the warden: the pid of its memory holder (memory_holder.py), the command and its descriptors, the order to execute,
and the reason if that failed. The end of its socket without a reason means that it has executed.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, memory_holder, procfs
from supervisor.containment.guard.command import command_in, execute_first, limit, prepare
from supervisor.containment.guard.killing import kill_quietly
from supervisor.containment.guard.ledger import Ledger, read, said
from supervisor.containment.guard.namespaces import PR_SET_NAME, Namespace, call, mount_proc
from supervisor.containment.guard.out_of_reach import OutOfReach
from supervisor.containment.guard.packets import receive
from supervisor.containment.guard.unix import FAILED, go_first, keep_descriptors, readable

PREFORKED = "cm-prefork"
"""Its name, and that of its memory holder, until it is the command."""
NOTE_MAX_BYTES = 4096
LOOK_S = 0.05
"""After so long without a message we check whether the child lives."""
PREPARE, GO = b"p", b"g"
"""The two messages to the child: the first carries the command's descriptors, the second makes it execute."""
HOLDER = b"holder "
"""The child's first message begins with this; its memory holder's pid follows. Any other message is an error text."""


class Preforked:
    """A child that waits to become the command, in the tree's cgroup from the fork on.

    There are two steps: `prepare` does everything before the exec and has no effect outside; `go` executes. `prepare`,
    or else `outcome`, raises ConnectionError if the child was killed while it waited. The constructor raises OSError.
    """

    def __init__(self, group: str | None, namespace: Namespace | None) -> None:
        if namespace is not None:
            namespace.open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hold, self._hold = os.pipe()
        self.holder = 0
        self._unread: OSError | None = None
        self._keeper = namespace.pid if namespace is not None else None
        try:
            self.pid, inside = cgroups.fork_into(group)
            if self.pid == 0:
                become_command(theirs, hold, None if inside else group, own_proc=namespace is not None)
        except OSError:
            ours.close()
            os.close(self._hold)
            raise
        finally:
            theirs.close()
            os.close(hold)
        ours.settimeout(LOOK_S)
        self._sock = ours

    def prepare(self, fds: list[int]) -> None:
        """Send it the descriptors of its command: stdout, stderr, the command itself, its channel or its input."""
        socket.send_fds(self._sock, [PREPARE], fds)

    def go(self) -> None:
        """Let it become the command. If it has ended already, its error text is still in the socket."""
        try:
            self._sock.send(GO)
        except ConnectionError as error:
            self._unread = error

    def outcome(self) -> str:
        """Wait until it is the command; returns why it could not become it, or an empty text."""
        with self._sock:
            # The exec closes its end of the socket.
            note = self._read_out()
        if note:
            os.waitpid(self.pid, 0)
        return note

    def release_holder(self) -> int:
        """End the memory holder: the child is the command now. Returns the holder's pid, to be reaped, or 0."""
        if self.holder:
            # A holder stopped by a signal does not see the end of its pipe.
            kill_quietly(self.holder, signal.SIGKILL)
        os.close(self._hold)
        return self.holder

    def dismiss(self) -> None:
        """Kill and reap it and its memory holder: it is not needed, or has ended by itself."""
        self._sock.close()
        os.close(self._hold)
        kill_quietly(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        # It may have ended before it sent the pid of its holder. Without a command we have no other child.
        for pid in procfs.own_children():
            if pid != self._keeper:
                kill_quietly(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _read_out(self) -> str:
        """Read the pid of its memory holder, and then why it could not execute; empty at the end."""
        dead = False
        while True:
            try:
                said = self._sock.recv(NOTE_MAX_BYTES)
            except TimeoutError:
                if dead:
                    # Killed while it made its memory holder, which now keeps the other end of the socket open.
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
                # Messages from before its death are still to be read.
                dead = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ConnectionResetError as error:
                # It has not read all. The kernel reports that once, ahead of what it has sent.
                self._unread = error
            else:
                if said.startswith(HOLDER):
                    self.holder = int(said[len(HOLDER) :])
                    continue
                if not said and self._unread is not None:
                    raise self._unread
                # The text may be cut off within a character.
                return said.decode("utf-8", "replace")


def become_command(sock: socket.socket, hold: int, group: str | None, *, own_proc: bool) -> None:
    """In the forked child: wait for the command and execute it; never returns. Sends on `sock` why it could not."""
    try:
        call("prctl", PR_SET_NAME, PREFORKED.encode(), 0, 0, 0)
        keep_descriptors(sock.fileno(), hold)
        # Run ahead of ordinary processes until the exec, since a call waits for it; the warden then undoes this.
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
        warm_up()
        if not own_proc:
            # In a namespace the holder's pid would differ from the one outside.
            sock, pid = memory_holder.start(sock, hold)
            sock.send(b"%s%d" % (HOLDER, pid))
        # If the warden is gone, no command may be executed.
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


def warm_up() -> None:
    """Run the code of a spawn once, on a file in memory.

    A fork shares memory with its parent until either writes to it, so the first run costs a page fault for each page.
    This takes the faults before a call waits.
    """
    fd = os.memfd_create("countermand-warm-up", os.MFD_CLOEXEC)
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
            OutOfReach().see(["true"])
            limit({})
            execute_first([b"/no/such/program"], [b"true"], {})
            time.monotonic()
    finally:
        os.close(fd)
