"""The launcher: an executable that starts a command in a tree of the run, for a library that starts its own child.

Theory of operation. A library is given a path, and executes it as it would the command itself: with its arguments, its
directory, its environment, its stdin, stdout and stderr. What it executes is this file, as a program. It connects to
the process whose code has made the launcher, and sends all of that, the three streams as descriptors. There the command
is requested as by `spawn`, and gets the streams as they are: nothing is copied, logged or buffered on the way. The
program then waits, and exits as the command did. A SIGTERM, SIGINT or SIGHUP to it ends the tree in good order, and its
death ends the tree at once.

The address is a name in the kernel, so nothing of it is left behind; only the same user, or root, is listened to. The
executable is a file in a folder of its own below the temporary one. It is removed at the end of the code; if the
process is killed, the next launcher of this user does so, by the lock that nobody holds any more.

Standard library only, Python 3.9 or later: hosts load this file too, and any interpreter executes it.
"""

from __future__ import annotations

import array
import fcntl
import glob
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from typing import Any, Protocol

CONNECTIONS_MAX = 64
"""How many commands one launcher serves at once."""
REQUEST_MAX_BYTES = 16_777_216
"""Limit on a request as JSON; what a command may have is less."""
SWEPT_MAX = 64
"""How many folders that others have left are looked at."""
PREFIX = "countermand-launch-"
LOCK = ".lock"
GRACE_S = 2.0
ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends the tree in good order."""
STREAMS = ("stdin", "stdout", "stderr")
CANNOT, LOST = 126, 75
"""Exit statuses of the program: the command was not started; it is not known how it ended."""


_FOLDERS: set[str] = set()
"""Of the launchers of this process."""


def is_launcher(path: object) -> bool:
    """Return True if this is the path of a launcher of this process: what executes it starts no process itself."""
    return isinstance(path, (str, bytes)) and os.path.dirname(os.fsdecode(path)) in _FOLDERS


class Launched(Protocol):
    """A command that was started."""

    @property
    def exited(self) -> Future[Any]:
        """Its exit, with a `status`."""

    @property
    def kill(self) -> Callable[[float], None]:
        """What ends its tree: ask, and kill after so many seconds."""


Start = Callable[[Sequence[str], str, Mapping[str, str], Mapping[str, int]], Launched]
"""Starts a command: its arguments, directory, environment, and its streams, which belong to it from then on. Waits, and
raises what `spawn` raises."""


class Launcher:
    """Serves the launchers of one agent or tool. Any thread.

    Args:
        start: starts a command.

    Raises:
        OSError: there is no room for a file, a socket or a thread.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._lock = threading.RLock()
        self._served = 0
        self._closed = False
        _sweep()
        self._folder, self._held = _folder()
        self._address = "\0" + os.path.basename(self._folder)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self._address)
        self._listening.listen(CONNECTIONS_MAX)
        _FOLDERS.add(self._folder)
        _run_apart(self._accept)

    def path(self, program: str) -> str:
        """Return the path of an executable that starts `program`, with the same name."""
        with self._lock:
            if self._closed:
                raise OSError("the code that this launcher was made for has ended")
            path = os.path.join(self._folder, os.path.basename(program) or "command")
            me = [sys.executable, "-I", "-S", os.path.realpath(__file__), self._address[1:], program]
            text = f'#!/bin/sh\nexec {" ".join(map(shlex.quote, me))} "$@"\n'
            with suppress(FileNotFoundError):
                os.unlink(path)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
            with open(fd, "w") as file:
                file.write(text)
            return path

    def close(self) -> None:
        """Launch nothing more, and remove the files. What was launched goes on. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            _FOLDERS.discard(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._held)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                # It was closed.
                return
            with self._lock:
                may = self._served < CONNECTIONS_MAX and _is_ours(connection)
                self._served += may
            if may:
                _run_apart(self._serve, connection)
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                _Connection(connection, self._start).serve()
        finally:
            with self._lock:
                self._served -= 1


class _Connection:
    """One command, as its program asks for it."""

    def __init__(self, connection: socket.socket, start: Start) -> None:
        self._connection = connection
        self._start = start

    def serve(self) -> None:
        """Start the command, and end its tree when the program asks for that, or has ended."""
        launched = self._launch()
        if launched is None:
            return
        launched.exited.add_done_callback(self._exited)
        while True:
            try:
                asked = self._connection.recv(64)
            except OSError:
                asked = b""
            if not asked:
                break
            launched.kill(GRACE_S)
        if not launched.exited.done():
            launched.kill(0.0)

    def _launch(self) -> Launched | None:
        fds: list[int] = []
        try:
            asked = json.loads(self._request(fds))
            streams, fds[:] = dict(zip(STREAMS, fds)), []  # noqa: B905  # Python 3.9 has no `strict`
            launched = self._start(asked["argv"], asked["cwd"], asked["env"], streams)
            self._say({"started": True}, last=False)
            return launched
        except BaseException as error:  # noqa: BLE001  # the program says why
            self._say({"error": f"{error}" or type(error).__name__})
            return None
        finally:
            for fd in fds:
                os.close(fd)

    def _request(self, fds: list[int]) -> bytes:
        """Read the request, and the descriptors that came with its first byte."""
        room = socket.CMSG_SPACE(len(STREAMS) * array.array("i").itemsize)
        data, ancillary, _, _ = self._connection.recvmsg(65_536, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                fds += received
        while not data.endswith(b"\n"):
            piece = self._connection.recv(1_048_576)
            if not piece or len(data) > REQUEST_MAX_BYTES:
                raise ValueError(f"a request of at most {REQUEST_MAX_BYTES} bytes was expected, with a newline")
            data += piece
        if len(fds) != len(STREAMS):
            raise ValueError(f"{len(STREAMS)} descriptors were expected, and {len(fds)} came")
        return data

    def _exited(self, exited: Future[Any]) -> None:
        """Tell the program how the command exited; on any thread."""
        self._say({"lost": True} if exited.exception() is not None else {"status": exited.result().status})

    def _say(self, word: Mapping[str, Any], *, last: bool = True) -> None:
        with suppress(OSError):
            self._connection.send(json.dumps(word).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if last:
                self._connection.shutdown(socket.SHUT_WR)


def _run_apart(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function on a thread that is no part of the code that wants it: it has none of its context."""
    thread = threading.Thread(target=function, args=arguments, name="countermand-launcher", daemon=True)
    Context().run(thread.start)


def _is_ours(connection: socket.socket) -> bool:
    """Return True if the other side is of this user, or root."""
    room = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, room))
    return uid in _users()


def _users() -> tuple[int, ...]:
    return (0, os.getuid())


def _folder() -> tuple[str, int]:
    """Make a folder, and return it with the descriptor of its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        held = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(os.path.join(folder, LOCK)):
                return folder, held
        # Another launcher has taken it for one that was left.
        os.close(held)


def _sweep() -> None:
    """Remove the folders that killed processes of this user have left."""
    for lock in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*", LOCK))[:SWEPT_MAX]:
        with suppress(OSError):
            if os.stat(lock).st_uid != os.getuid():
                continue
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(os.path.dirname(lock), ignore_errors=True)
            finally:
                os.close(fd)


# ── The program ───────────────────────────────────────────────────────────────────────────────────


def main(address: str, *argv: str) -> int:
    """Have a command started, wait for its exit, and exit likewise."""
    _open_streams()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def ask_to_end(*_: object) -> None:
        with suppress(OSError):
            sock.send(b"end\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    try:
        sock.connect("\0" + address)
        asked = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
        data = json.dumps(asked).encode() + b"\n"
        rights = array.array("i", range(3))
        # Held back until they have their handler: once this is sent, the command may be up.
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKS)
        sent = sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        sock.sendall(data[sent:])
        for number in ASKS:
            signal.signal(number, ask_to_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS)
        # They are the command's now: their ends are not to be kept open here.
        errors = os.dup(2)
        os.set_inheritable(errors, False)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        words = sock.makefile("rb")
        word = json.loads(words.readline() or b"{}")
    except OSError as error:
        return _say(2, f"{argv[0]} cannot be started: its run is over, or cannot be reached: {error}")
    if "error" in word:
        return _say(errors, f"{argv[0]} cannot be started: {word['error']}")
    os.close(errors)
    status = json.loads(words.readline() or b"{}").get("status", LOST)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return int(status)


def _open_streams() -> None:
    """Open nothing in place of each stream that is closed. A new descriptor has the lowest number that is free."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _say(fd: int, text: str) -> int:
    with suppress(OSError):
        os.write(fd, f"countermand: {text}\n".encode("utf-8", "replace"))
    return CANNOT


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
