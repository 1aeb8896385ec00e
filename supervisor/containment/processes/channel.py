"""The channel of a command: the daemon's copy of a descriptor, until the command has inherited it."""

from __future__ import annotations

import os


class Channel:
    """A copy of a caller's descriptor. Made on any thread; after that the caller may close its own.

    It is kept until the command has started or never will, since a spawn may be tried again.

    Args:
        given: the caller's descriptor; None: the command gets none.
    """

    def __init__(self, given: int | None) -> None:
        self.fd: int | None = None
        self.why_not = ""
        """Why the copy could not be made; empty otherwise."""
        if given is not None:
            try:
                self.fd = os.dup(given)
            except OSError as error:
                self.why_not = f"cannot pass its channel: {error.strerror}"

    def close(self) -> None:
        """Close the copy. May be called again."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
