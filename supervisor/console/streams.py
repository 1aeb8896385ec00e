"""The standard streams, made fit for a command: open, able to show every text, and standard error in nobody's way.

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

GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.ENXIO})
"""What a write fails with where nobody reads any more: the other end of a pipe, a connection, a terminal."""


def open_streams() -> None:
    """Make the standard streams fit; once, at the beginning, on the main thread."""
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
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # In an encoding that lacks a character it is written as its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    raw = _Forgiving(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=True)


def mute_output() -> None:
    """Lead standard output to where nothing is kept: what is left in a buffer must not be tried again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def when_unread(call: Callable[[], object], fd: int = 1) -> None:
    """Call something when nobody reads standard output any more, also while nothing is written; on a thread of its own.

    Nobody reads a pipe or a connection whose other end is closed, and a terminal that has hung up. A file is read.
    """
    # Its own number for the same stream: what becomes of the other is no end of the reader.
    watched = os.dup(fd)

    def watch() -> None:
        poll = select.poll()
        # Errors and hang-ups are told without being asked for.
        poll.register(watched, 0)
        poll.poll()
        os.close(watched)
        call()

    threading.Thread(target=watch, name="console-reader", daemon=True).start()


class _Forgiving(io.FileIO):
    """Writes all, waiting for a slow reader; where nothing can be written it says nothing, for there is no place to."""

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            try:
                written = super().write(left)
            except OSError:
                break
            if written is None:
                # Somebody made this end non-blocking.
                select.select([], [self.fileno()], [])
            else:
                left = left[written:]
        return size
