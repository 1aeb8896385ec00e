"""Endpoint: where to find a daemon, by its state directory and its socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from msgspec import Struct

SOCKET_NAME: Final = "countermand.sock"
CONNECT_S: Final = 5.0
PROBE_S: Final = 1.0
"""How long a connection to a socket may take. A listener that does not accept counts as a daemon too."""
PATH_MAX_BYTES: Final = 107
"""Of a Unix socket's path: unix(7)."""


class Endpoint(Struct, frozen=True):
    """A state directory, and a socket if one was named.

    Otherwise the socket is the one in the state directory, which leads to the daemon's wherever it listens.
    """

    state_dir: Path
    named: Path | None = None

    @property
    def socket(self) -> Path:
        """The path of the daemon's socket."""
        return self.named or self.state_dir / SOCKET_NAME

    @property
    def resolved(self) -> str:
        """The path for the kernel, without links: a link may be longer than the path of a socket may."""
        return os.path.realpath(self.socket)

    def is_listening(self) -> bool:
        """True if a process listens on the socket; also if that cannot be found out, for lack of permission."""
        if len(os.fsencode(self.resolved)) > PATH_MAX_BYTES:
            # No process can bind such a path.
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_S)
            try:
                probe.connect(self.resolved)
            except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
                return False
            except OSError:
                return True
        return True
