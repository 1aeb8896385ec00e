"""The daemon's end of one zygote: start it, send it requests with descriptors, receive its words, notice its death.

If the zygote has a spare warden, this has the warden's socket, and asks that warden first; see `zygote`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.containment.guard.ledger import decode, encode
from supervisor.containment.guard.packets import receive

if TYPE_CHECKING:
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.reactor import Reactor

SCRIPT = Path(__file__).with_name("guard") / "zygote.py"
WORD_MAX_BYTES = 65536
WORDS_A_TURN = 64


class ZygoteHandle:
    """A running zygote. Reactor thread only. The constructor raises OSError if it cannot be started.

    Args:
        environment: the whole environment of the zygote, which its forks can read.
        settings: its layers and its cgroup, as one word; see `zygote`.
        on_word: called with each word of the zygote.
        on_dead: called once, after its last word, when it has ended and was reaped.
    """

    def __init__(
        self,
        reactor: Reactor,
        environment: Mapping[str, str],
        settings: Word,
        on_word: Callable[[ZygoteHandle, Word], None],
        on_dead: Callable[[ZygoteHandle], None],
    ) -> None:
        self._reactor = reactor
        self._on_word = on_word
        self._on_dead = on_dead
        self.dead = False
        self._spare: tuple[int, socket.socket] | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                daemon_pidfd = os.pidfd_open(os.getpid())
                try:
                    self._process = self._start(theirs.fileno(), daemon_pidfd, environment, settings)
                finally:
                    os.close(daemon_pidfd)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._sock = ours
        self._pidfd = os.pidfd_open(self._process.pid)
        reactor.watch(self._sock.fileno(), self._hear)
        reactor.watch(self._pidfd, self._died)

    @staticmethod
    def _start(sock_fd: int, pidfd: int, environment: Mapping[str, str], settings: Word) -> subprocess.Popen[bytes]:
        # A session of its own: the daemon handles a terminal's Ctrl-C. It inherits no stream of the daemon: a reader of
        # the daemon's output must see its end when the daemon ends.
        return subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-X",
                "utf8",
                str(SCRIPT),
                str(sock_fd),
                str(pidfd),
                encode(settings).decode(),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=(sock_fd, pidfd),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its pid; for people and tests."""
        return self._process.pid

    def send(self, word: Word, fds: Sequence[int] = ()) -> None:
        """Send a request; raises BlockingIOError when it is behind, another OSError when it is gone."""
        socket.send_fds(self._sock, [encode(word)], list(fds))

    def spawn(self, process_id: str, ledger_path: str, fds: Sequence[int]) -> None:
        """Ask the spare warden for a tree, or the zygote for a warden for it. Raises as `send`."""
        if self._spare is None:
            self.send({"word": "fork", "process_id": process_id, "ledger": ledger_path}, fds)
            return
        pid, sock = self._spare
        self.send({"word": "taken", "pid": pid, "process_id": process_id, "ledger": ledger_path})
        self._spare = None
        # If it was killed meanwhile, the zygote reports the tree as unborn.
        with sock, contextlib.suppress(ConnectionError):
            socket.send_fds(sock, [encode({"word": "spawn", "ledger": ledger_path})], list(fds))

    def close(self) -> None:
        """Ask it to end, by closing the socket: it forks nothing more and ends after its wardens."""
        self._dismiss_spare()
        if not self.dead:
            self._reactor.unwatch(self._sock.fileno())
            _end(self._sock)

    def kill(self) -> None:
        """Kill it; `on_dead` follows."""
        if not self.dead:
            self._process.kill()

    def _hear(self) -> None:
        for _ in range(WORDS_A_TURN):
            if self._sock.fileno() < 0:
                return
            try:
                data, fds = receive(self._sock, WORD_MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                # The pidfd reports its death; nothing more comes over the socket.
                self._reactor.unwatch(self._sock.fileno())
                return
            word = decode(data)
            if word["word"] == "spare":
                self._dismiss_spare()
                # None if our descriptor table is full: the spare then sees the end of its socket, and another comes.
                self._spare = next(((word["pid"], socket.socket(fileno=fd)) for fd in fds), None)
            else:
                self._on_word(self, word)

    def _dismiss_spare(self) -> None:
        if self._spare is not None:
            _end(self._spare[1])
            self._spare = None

    def _died(self) -> None:
        self.dead = True
        self._reactor.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if self._sock.fileno() >= 0:
            self._hear()
            self._reactor.unwatch(self._sock.fileno())
            self._sock.close()
        self._dismiss_spare()
        self._on_dead(self)


def _end(sock: socket.socket) -> None:
    """Shut it down before closing: a forked child may hold a copy, which would hide the end from the other side."""
    with sock, contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
