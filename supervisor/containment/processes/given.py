"""What a command is given, a channel and ends of pipes: the daemon's, until the command has started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.ports import SpawnSpec


class Given:
    """Takes the descriptors of a spec: a copy of its channel, and the ends of its pipes. Made on any thread.

    They are kept until the command has started or never will, since a spawn may be tried again.
    """

    def __init__(self, spec: SpawnSpec) -> None:
        self.why_not = ""
        """Why one could not be taken; empty otherwise."""
        self.channel: int | None = None
        self.own: dict[str, int] = {}
        """Ends that the command itself gets, by stream."""
        self.copied: dict[str, int] = {}
        """Ends that the daemon copies into, by stream."""
        self.typed: int | None = None
        """The end of what is typed on its terminal."""
        if spec.ends is not None:
            taken = spec.ends.take()
            if taken is None:
                self.why_not = "its pipes were closed before it was started"
            for stream, fd in (taken or {}).items():
                if stream == "stdin" and spec.pty:
                    self.typed = fd
                else:
                    followed = spec.streams.get(stream) == "follow"
                    (self.copied if followed else self.own)[stream] = fd
        if spec.channel is not None:
            try:
                self.channel = os.dup(spec.channel)
            except OSError as error:
                self.why_not = f"cannot pass its channel: {error.strerror}"

    def close(self) -> None:
        """Close them; those in `copied` and `typed` only if they were not removed from there. May be called again."""
        for fd in (*self.own.values(), *self.copied.values(), self.typed, self.channel):
            if fd is not None:
                os.close(fd)
        self.own.clear()
        self.copied.clear()
        self.typed = self.channel = None
