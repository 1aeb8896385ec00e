"""Where a daemon is to be found: its state directory, and its socket."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

SOCKET_NAME: Final = "countermand.sock"


class Place(Struct, frozen=True):
    """A state directory, and a socket where one was named.

    Without a name the socket is looked for in the state directory: wherever a daemon listens, that leads to it.
    """

    state_dir: Path
    named: Path | None = None

    @property
    def socket(self) -> Path:
        """The path of the daemon's socket."""
        return self.named or self.state_dir / SOCKET_NAME
