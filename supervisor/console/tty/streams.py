"""The standard streams, prepared for a command: open, able to show every text, and standard error never blocking.

A stream that was closed before the command began is led to where nothing is kept and nothing comes from. Else what is
opened later would have its number: the log would be written into a socket, or the store be read as input.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET})
"""Errors of a write when the other end of a pipe or of a connection is closed."""


def open_streams() -> StandardOutput:
    """Make the standard streams fit, and return what standard output is now; once, at the beginning."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # Input too is led to where nothing can be read: to read it is an error, as it is of what is closed.
            null = os.open(os.devnull, os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    output = StandardOutput(1, "w", closefd=False)
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    # In an encoding that lacks a character it is written as its number.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output), encoding, "backslashreplace", line_buffering=output.isatty()
    )
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    said = io.BufferedWriter(_Whole(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(said, encoding, "backslashreplace", line_buffering=True)
    return output


def when_unread(call: Callable[[], object], fd: int = 1) -> None:
    """Call something when standard output is not read any more, even if nothing is written; on a thread of its own.

    A pipe or a connection whose other end is closed is not read, nor a terminal that has hung up. A file always is.
    """
    # A duplicate: closing the original must not look as if the reader had gone.
    watched = os.dup(fd)

    def watch() -> None:
        poll = select.poll()
        # Errors and hang-ups are reported without being asked for.
        poll.register(watched, 0)
        poll.poll()
        os.close(watched)
        call()

    threading.Thread(target=watch, name="console-reader", daemon=True).start()


def is_unread() -> bool:
    """True if a write has found that standard output is not read any more."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, StandardOutput) and raw.unread


class _Whole(io.FileIO):
    """Writes everything, waiting for a slow reader. Output that cannot be written is dropped."""

    failed: OSError | None = None
    """The first error of a write."""

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left and self.failed is None:
            try:
                written = super().write(left)
            except OSError as error:
                self.failed = error
                break
            if written is None:
                # Another process made this end non-blocking.
                select.select([], [self.fileno()], [])
            else:
                left = left[written:]
        return size


class StandardOutput(_Whole):
    """Standard output. A command whose output cannot be written still goes on to its end and its exit code."""

    @property
    def unread(self) -> bool:
        """True if a write has found that it is not read any more."""
        return self.failed is not None and self.failed.errno in GONE
