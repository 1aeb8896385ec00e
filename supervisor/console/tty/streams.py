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
    """Prepare the standard streams, and return the new standard output. Call it once, at the start."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # Standard input too is opened only for writing: reading it is an error, as it is for a closed one.
            null = os.open(os.devnull, os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    output = StandardOutput(1, "w", closefd=False)
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    # A character that the encoding lacks is written as an escape with its number.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output), encoding, "backslashreplace", line_buffering=output.isatty()
    )
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    said = io.BufferedWriter(_Whole(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(said, encoding, "backslashreplace", line_buffering=True)
    return output


def when_unread(call: Callable[[], object], fd: int = 1) -> None:
    """Call a function when standard output is not read any more, even if nothing is written; on a thread of its own.

    That is so if the other end of a pipe or connection is closed, or a terminal has hung up. It never is for a file.
    """
    # A duplicate is watched: closing the original must not look as if the reader were gone.
    watched = os.dup(fd)

    def watch() -> None:
        poll = select.poll()
        # Errors and hang-ups are always reported.
        poll.register(watched, 0)
        poll.poll()
        os.close(watched)
        call()

    threading.Thread(target=watch, name="console-reader", daemon=True).start()


def is_unread() -> bool:
    """True if a write has failed because nothing reads standard output any more."""
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
    """Standard output. If it cannot be written, the command still runs to its end and its exit code."""

    @property
    def unread(self) -> bool:
        """True if a write has failed because nothing reads it any more."""
        return self.failed is not None and self.failed.errno in GONE
