"""Where the API listens: sockets that systemd hands over, or a Unix socket of our own, and TCP if it is asked for.

A Unix socket has mode 0600 before it listens, so there is no moment at which somebody else could connect. What is
at its path is an earlier daemon's, since the caller holds the lock of the state directory, and is taken away.

Wherever the socket is, ``countermand.sock`` in the state directory leads to it: that directory is all that a client
has to know.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from actors.errors import Invalid, StoreUnavailable

FIRST_FD: Final = 3
BACKLOG: Final = 512
NAME: Final = "countermand.sock"


def passed(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Take the sockets that systemd has passed to this very process, and their words out of the environment.

    Raises:
        Invalid: one is no listening stream socket, or is open to other machines.
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
        state_dir: where the link to the Unix socket is made.
        given: sockets of systemd's; a Unix one among them stands in for our own.
        path: of our own Unix socket.
        tcp: host and port to listen on too.

    Raises:
        StoreUnavailable: one cannot be made, or something else is at its path; what was made is taken back.
    """

    def __init__(
        self, state_dir: Path, given: list[socket.socket], path: Path, tcp: tuple[str, int] | None = None
    ) -> None:
        self.all = list(given)
        self._made: list[Path] = []
        try:
            unix = next((one for one in given if one.family == socket.AF_UNIX), None)
            if unix is None:
                self.all.insert(0, self._listen_at(path))
            else:
                path = Path(os.fsdecode(unix.getsockname()))
            self.path = path
            self._link(state_dir / NAME, keep=unix is not None)
            if tcp is not None:
                self.all.append(_listen_on(tcp))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close them all, and take away what was made in the file system; again is harmless."""
        for one in self.all:
            one.close()
        while self._made:
            with contextlib.suppress(OSError):
                self._made.pop().unlink()

    def __str__(self) -> str:
        others = [f"{one.getsockname()[0]}:{one.getsockname()[1]}" for one in self.all if one.family != socket.AF_UNIX]
        return " and ".join([str(self.path), *others])

    def _listen_at(self, path: Path) -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(path):
                path.unlink()
            one.bind(os.fspath(path))
            self._made.append(path)
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

    def _link(self, link: Path, *, keep: bool) -> None:
        """Have the state directory lead to the socket. A new link takes the old one's place in one step.

        Where the socket is systemd's the link is kept at the end: whoever connects starts the daemon again.
        """
        if link == self.path:
            return
        fresh = link.with_name(f"{NAME}.new")
        try:
            _is_ours(link)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(self.path.absolute())
            fresh.replace(link)
        except OSError as error:
            raise _unusable(str(link), error, "mend the permissions of the state directory") from error
        if not keep:
            self._made.append(link)


def _listen_on(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind, protocol)
        try:
            # A port whose last connections are still closing may be taken again at once.
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
    """True if an earlier daemon's socket or link is there. Anything else is somebody's: FileExistsError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
        raise FileExistsError(None, "something that is no socket is there")
    return True


def _unusable(where: str, error: OSError, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the API cannot listen on {where}",
        expected="a place that is free and that this user may use",
        got=error.strerror or str(error),
        remedy=remedy,
    )


def _unfit(got: str) -> Invalid:
    return Invalid(
        "systemd passed a socket that the API cannot be served on",
        expected="listening stream sockets, Unix ones or on a loopback address",
        got=got,
        remedy="change ListenStream= in the socket unit",
    )
