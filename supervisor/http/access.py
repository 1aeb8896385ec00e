"""Access control.

On the Unix socket the kernel gives the uid of the peer (SO_PEERCRED); only the daemon's own uid and root are admitted.
On loopback any local user and any web page in a browser can connect. A request there needs a bearer token, and a Host
header that names loopback: a page whose name was rebound to 127.0.0.1 sends its own name (DNS rebinding).

A request whose transport is unknown is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from actors.errors import CountermandError, Invalid, StoreUnavailable

PEER: Final = "countermand.peer"
"""The key in a scope's state for the peer of the connection."""

WHO: Final = "countermand.who"
"""The key in a scope's state for the admitted caller, as provenances name it."""

UNNAMED: Final = "local"
TOKEN_MIN_CHARS: Final = 16
TOKEN_FILE_MAX_BYTES: Final = 65_536
HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CREDENTIALS: Final = struct.Struct("3i")


class Unauthorized(CountermandError):
    """There is no token, or it is unknown."""

    code = "unauthorized"


class Forbidden(CountermandError):
    """The peer is another user's process."""

    code = "forbidden"


class Misdirected(CountermandError):
    """The Host header names another host."""

    code = "misdirected"


class Peer(Struct, frozen=True):
    """The other end of a connection: its uid over a Unix socket; over loopback None, and what it reached."""

    uid: int | None
    port: int | None = None
    address: str = "127.0.0.1"


def peer_of(sock: Any) -> Peer | None:
    """Return the peer of a connected socket; None if the kernel does not name it."""
    try:
        if sock.family == socket.AF_UNIX:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(raw)
            return Peer(uid)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            address, port = sock.getsockname()[:2]
            return Peer(None, port, address)
    except OSError:
        return None
    return None


class Access:
    """Decides who is admitted.

    Args:
        tokens: bearer tokens for loopback, by their names in provenances; without any, loopback admits no caller.
        uids: the uids that may use the Unix socket; None: the daemon's own uid, and root.
    """

    def __init__(self, tokens: Mapping[str, str] | None = None, uids: Iterable[int] | None = None) -> None:
        # Digests have equal lengths, so a comparison does not reveal the length of a token either.
        self._tokens = {name: _digest(token.encode()) for name, token in (tokens or {}).items()}
        self._uids = frozenset((0, os.geteuid()) if uids is None else uids)

    def refuses(self, peer: Peer | None) -> Forbidden | None:
        """Return the refusal of a connection, if it is to be refused before anything is read from it."""
        if peer is not None and (peer.uid is None or peer.uid in self._uids):
            return None
        return Forbidden(
            "this user may not use the daemon's socket",
            expected=f"a process of uid {' or '.join(str(uid) for uid in sorted(self._uids))}",
            got=f"uid {peer.uid}" if peer is not None else "a peer that the kernel does not name",
            remedy="run it as the user that the daemon runs as, or as root",
        )

    def admit(self, peer: Peer | None, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the caller of a request: ``uid:1000``, or ``token:name``. Raises a refusal."""
        refused = self.refuses(peer)
        if refused is not None or peer is None:
            raise refused or Forbidden("no peer")
        if peer.uid is not None:
            return f"uid:{peer.uid}"
        given = list(headers)
        _check_host([value for name, value in given if name == b"host"], peer)
        return f"token:{self._token([value for name, value in given if name == b'authorization'])}"

    def _token(self, values: list[bytes]) -> str:
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        digest = _digest(token.strip())
        found = ""
        # All are compared, each in constant time, so that the duration reveals nothing about them.
        for name, known in self._tokens.items():
            if hmac.compare_digest(digest, known):
                found = name
        if scheme.lower() != b"bearer" or not found:
            raise Unauthorized(
                "this request has no known token",
                expected="one header 'Authorization: Bearer <token>'",
                got="another token" if scheme.lower() == b"bearer" else "no bearer token",
                remedy="send the token in the daemon's token file, or use its Unix socket",
            )
        return found


def read_tokens(path: Path) -> dict[str, str]:
    """Return the tokens of a file by their names. A missing file is created with one token.

    A line is a token, or a name and a token. A token without a name is ``local``.

    Raises:
        Invalid: others can read the file, another user owns it, or it has no token of at least 16 characters.
        StoreUnavailable: it cannot be created or read.
    """
    try:
        _make(path)
        # Opened first and checked then, so that the checked file is the one that is read.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            text = file.read(TOKEN_FILE_MAX_BYTES)
    except OSError as error:
        raise StoreUnavailable(
            f"the token file {path} cannot be used",
            expected="a file that only this user can read",
            got=error.strerror or str(error),
            remedy="correct its permissions, or name another",
        ) from error
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise Invalid(
            f"the token file {path} is not private",
            expected=f"a file of uid {os.geteuid()} with mode 0600",
            got=f"uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            remedy=f"chmod 600 {path}, and change the token if others may have read it",
        )
    return _parsed(path, text)


def _make(path: Path) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with os.fdopen(fd, "w") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")


def _parsed(path: Path, text: bytes) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, token = line.strip().rpartition(" ")
        if not token or line.startswith("#"):
            continue
        name = name.strip() or UNNAMED
        if len(token) < TOKEN_MIN_CHARS or name in tokens:
            raise Invalid(
                f"the token file {path} has an invalid line",
                expected=f"a token of at least {TOKEN_MIN_CHARS} characters, with a unique name before it",
                got=f"a token of {len(token)} characters named {name!r}",
                remedy="correct that line, or remove the file: a new one is created",
            )
        tokens[name] = token
    if not tokens:
        raise Invalid(
            f"the token file {path} has no token",
            expected="a line with a token",
            got="none",
            remedy="remove the file: a new one is created",
        )
    return tokens


def _check_host(hosts: list[bytes], peer: Peer) -> None:
    host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
    name, colon, number = host.rpartition(":")
    if not colon or number.endswith("]"):
        name, number = host, "80"
    # It may listen on another address of loopback, such as 127.0.0.2: no page has that for its name.
    reached = f"[{peer.address}]" if ":" in peer.address else peer.address
    if name not in HOSTS | {reached} or number != str(peer.port):
        raise Misdirected(
            "this request is for another host",
            expected=f"one Host header: localhost:{peer.port} or {reached}:{peer.port}",
            got=f"{', '.join(one.decode('latin-1') for one in hosts)!r:.80}",
            remedy="connect to the daemon's own address",
        )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
