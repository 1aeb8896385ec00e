"""The sockets of the API: sockets from systemd, or a Unix socket of our own, and TCP if it is configured.

A Unix socket has mode 0600 before it listens, so other users can never connect. If there is a socket at its path on
which no process listens, it was an earlier daemon's and is removed. If a process listens on it, that is another daemon
with another state directory: the start is refused. A daemon identifies its own socket by the file: it never removes a
file that took the socket's place, and creates the socket again if it is missing.

Wherever the socket is, ``countermand.sock`` in the state directory leads to it: a client has to know only that
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final, TypeAlias

from loguru import logger

from actors.errors import CountermandError, Invalid, StoreUnavailable

FIRST_FD: Final = 3
BACKLOG: Final = 512
NAME: Final = "countermand.sock"
ALONE_S: Final = 5.0
ALONE_LOOK_S: Final = 0.01

_Identity: TypeAlias = tuple[int, int]


def passed(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd has passed to this process, and remove its variables from the environment.

    Raises:
        Invalid: one is not a listening stream socket, or is open to other machines.
    """
    pid = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "0")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    taken: list[socket.socket] = []
    for fd in range(FIRST_FD, FIRST_FD + int(count)):
        try:
            os.set_inheritable(fd, False)
            one = socket.socket(fileno=fd)
            fits = one.type == socket.SOCK_STREAM and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
            address = one.getsockname()
        except OSError as error:
            raise _unfit(f"descriptor {fd}: {error.strerror}") from error
        local = one.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1")
        if not fits or not local:
            raise _unfit(f"descriptor {fd}: {one.family.name} {one.type.name} {address}")
        one.setblocking(False)
        taken.append(one)
    return taken


class Sockets:
    """The listening sockets of a daemon that holds the lock of its state directory.

    Args:
        state_dir: the directory of the link to the Unix socket.
        given: sockets from systemd; a Unix socket among them replaces our own.
        path: the path of our own Unix socket.
        tcp: a host and port to listen on too.

    `restore` and `close` may be called from any thread.

    Raises:
        StoreUnavailable: a socket cannot be created, or another file is at its path; what was created is removed.
        Invalid: another process listens at its path.
    """

    def __init__(
        self, state_dir: Path, given: list[socket.socket], path: Path, tcp: tuple[str, int] | None = None
    ) -> None:
        self.all = list(given)
        # It stays valid if the working directory changes.
        path = path.absolute()
        self._state_dir = state_dir
        self._home = _identity(state_dir, follow=True)
        self._made: dict[Path, _Identity | None] = {}
        self._own: socket.socket | None = None
        self._changing = threading.Lock()
        self._closed = False
        self._trouble = ""
        try:
            unix = next((one for one in given if one.family == socket.AF_UNIX), None)
            if unix is None:
                self.path = path
                self._own = self._listen_at(path)
                self.all.insert(0, self._own)
            else:
                self.path = Path(os.fsdecode(unix.getsockname()))
            self._link()
            if tcp is not None:
                self.all.append(_listen_on(tcp))
        except BaseException:
            self.close()
            raise

    def restore(self) -> tuple[socket.socket, socket.socket] | None:
        """Create the link and the socket again if they were removed; another process's files in their place stay.

        If that fails, the error is logged, once.

        Returns:
            The socket that clients can no longer reach, and the one to serve instead; None if there is no new one.
        """
        with self._changing:
            try:
                moved = None if self._closed else self._restored()
            except CountermandError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    logger.error("clients cannot reach this daemon: {}", error)
                return None
            self._trouble = ""
            return moved

    def close(self) -> None:
        """Close all sockets, and remove the files that were created. Idempotent."""
        with self._changing:
            self._closed = True
            while self._made:
                path, identity = self._made.popitem()
                with contextlib.suppress(OSError):
                    # Another daemon's file may be there by now.
                    if _identity(path) == identity:
                        path.unlink()
            for one in self.all:
                one.close()

    def __str__(self) -> str:
        others = [f"{one.getsockname()[0]}:{one.getsockname()[1]}" for one in self.all if one.family != socket.AF_UNIX]
        return " and ".join([str(self.path), *others])

    def _restored(self) -> tuple[socket.socket, socket.socket] | None:
        if _identity(self._state_dir, follow=True) != self._home:
            raise _unusable(
                str(self._state_dir), FileNotFoundError(None, "it was removed or replaced"), "end the daemon"
            )
        moved = None
        if self._own is not None and _identity(self.path) != self._made[self.path]:
            old, fresh = self._own, self._listen_at(self.path)
            self._own = self.all[self.all.index(old)] = fresh
            moved = old, fresh
            logger.warning("the socket {} was removed, and is made again", self.path)
        self._link()
        return moved

    def _listen_at(self, path: Path) -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone_in(path.parent, self._home):
                if _is_ours(path):
                    refuse_if_served(path)
                    path.unlink()
                one.bind(os.fspath(path))
                self._made[path] = _identity(path)
                path.chmod(0o600)
                one.listen(BACKLOG)
            one.setblocking(False)
        except OSError as error:
            one.close()
            raise _unusable(str(path), error, "name another with http.socket") from error
        except BaseException:
            one.close()
            raise
        return one

    def _link(self) -> None:
        """Create the link in the state directory. A new link replaces an old one atomically.

        If the socket is systemd's, the link stays at the end: a client that connects starts the daemon again.
        """
        link, target = self._state_dir / NAME, self.path
        try:
            if link == self.path or (link.is_symlink() and link.readlink() == target):
                return
            fresh = link.with_name(f"{NAME}.new")
            _is_ours(link)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target)
            fresh.replace(link)
            if self._own is not None:
                self._made[link] = _identity(link)
        except OSError as error:
            raise _unusable(str(link), error, "mend the permissions of the state directory") from error


def refuse_if_served(path: Path) -> None:
    """Raise Invalid if a process listens at the path of a Unix socket. A link is not a socket, and is not refused."""
    if path.is_symlink() or not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.connect(os.fspath(path))
            pid = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
            who = f"process {pid}"
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            # For example another user's socket, or one whose process does not accept in time.
            who = f"another process ({error.strerror})"
    raise Invalid(
        f"the socket {path} is in use by {who}",
        expected="a path at which no process listens",
        got=f"a socket of {who}",
        remedy="end that process, or name another socket with http.socket",
    )


@contextlib.contextmanager
def _alone_in(directory: Path, home: _Identity | None) -> Iterator[None]:
    """Exclude other daemons from a directory while a socket in it is bound and does not listen yet.

    `home`: the state directory, which needs no lock here since this daemon has it for itself.
    """
    if _identity(directory, follow=True) == home:
        yield
        return
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # The directory can be written but not read, so no daemon can lock it.
        yield
        return
    try:
        deadline = time.monotonic() + ALONE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise OSError(error.errno, "its directory is in use by another supervisor") from error
                time.sleep(ALONE_LOOK_S)
        yield
    finally:
        os.close(fd)


def _identity(path: Path, *, follow: bool = False) -> _Identity | None:
    """Return the identity of the file at a path; None if there is none.

    The inode number of a socket, or of a locked directory, is not reused while it is open.
    """
    try:
        seen = path.stat(follow_symlinks=follow)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _listen_on(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind, protocol)
        try:
            # A port whose last connections are still closing may be bound again at once.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(found)
            one.listen(BACKLOG)
            one.setblocking(False)
        except BaseException:
            one.close()
            raise
    except OSError as error:
        raise _unusable(f"{host}:{port}", error, "choose another port with http.listen") from error
    return one


def _is_ours(path: Path) -> bool:
    """Return True if an earlier daemon's socket or link is there. Raises FileExistsError for any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
        raise FileExistsError(None, "another file is there, which is not a socket")
    return True


def _unusable(where: str, error: OSError, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the API cannot listen on {where}",
        expected="a free address that this user may use",
        got=error.strerror or str(error),
        remedy=remedy,
    )


def _unfit(got: str) -> Invalid:
    return Invalid(
        "systemd passed a socket on which the API cannot be served",
        expected="listening stream sockets, Unix ones or on a loopback address",
        got=got,
        remedy="change ListenStream= in the socket unit",
    )
