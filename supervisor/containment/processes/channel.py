"""The channel of a command: a descriptor that it inherits, in the daemon until it has it."""

from __future__ import annotations

import os


class Channel:
    """A copy of what a caller gave for its command. Made on any thread, and at once: the caller may close its own then.

    It is kept until the command has it or is never to have it, since a spawn may be tried again.

    Args:
        given: the caller's; None: the command gets none.
    """

    def __init__(self, given: int | None) -> None:
        self.fd: int | None = None
        self.why_not = ""
        """Why there is none though one was given."""
        if given is not None:
            try:
                self.fd = os.dup(given)
            except OSError as error:
                self.why_not = f"cannot pass its channel: {error.strerror}"

    def close(self) -> None:
        """Close the copy. Again is harmless."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
