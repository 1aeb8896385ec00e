"""Standard input as lines, one at a time.

A thread reads the descriptor itself and never through `sys.stdin`: a buffered reader that is blocked holds a lock
that the interpreter needs to end. It reads on only when the next line is asked for, so a long file waits in its pipe
and not in memory, and a line longer than `LINE_MAX_BYTES` is counted but not kept.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct

LINE_MAX_BYTES: Final = 4 * 1024 * 1024
READ_BYTES: Final = 65536


class Line(Struct, frozen=True):
    """A line without its end; `cut`: it was longer than LINE_MAX_BYTES, and `total_bytes` says how long."""

    text: str
    total_bytes: int
    cut: bool = False


class EndOfInput(Struct, frozen=True):
    """No more lines will come; `error` where reading failed."""

    error: str = ""


class LineReader:
    """Reads lines on a thread of its own and gives each to `on_line`, after `ask` has asked for it.

    Args:
        on_line: called on that thread, with one item for each `ask`.
        fd: where to read; it is left open.
    """

    def __init__(self, on_line: Callable[[Line | EndOfInput], None], fd: int = 0) -> None:
        self._on_line = on_line
        self._fd = fd
        self._wanted = threading.Semaphore(0)
        self._closed = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._kept = bytearray()
        self._seen = 0
        self._ended = False
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="console-lines", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask for one more line."""
        self._wanted.release()

    def close(self) -> None:
        """End the thread, also while it waits for input; what was not read stays in the pipe."""
        self._closed.set()
        os.write(self._wake_write, b"x")
        self._wanted.release()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            # Closing releases the semaphore too: the remaining input is dropped.
            item = None if self._closed.is_set() else self._next()
            if item is None:
                return
            self._on_line(item)
            if isinstance(item, EndOfInput):
                return

    def _next(self) -> Line | EndOfInput | None:
        """Return the next line, or the end; None when closed meanwhile."""
        # Carried over from the line before; only what is new is searched for a line's end.
        searched = 0
        while True:
            end = self._kept.find(b"\n", searched)
            if end >= 0:
                line = self._line(end)
                del self._kept[: end + 1]
                self._seen = len(self._kept)
                return line
            if len(self._kept) > LINE_MAX_BYTES:
                del self._kept[LINE_MAX_BYTES:]
            searched = len(self._kept)
            if self._ended:
                if not self._seen:
                    return EndOfInput(self._error)
                line = self._line(len(self._kept))
                self._kept.clear()
                self._seen = 0
                return line
            data = self._read()
            if data is None:
                return None
            self._kept += data
            self._seen += len(data)
            self._ended = not data

    def _line(self, end: int) -> Line:
        total = self._seen - (len(self._kept) - end)
        return Line(bytes(self._kept[:end]).decode(errors="surrogateescape").rstrip("\r"), total, total > end)

    def _read(self) -> bytes | None:
        """Return what there is to read, b"" at the end; None when closed."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._closed.is_set():
            ready = dict(poll.poll())
            if self._closed.is_set():
                return None
            if self._fd not in ready:
                continue
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                # A terminal that hung up, or a descriptor that is not open: no more input will come.
                self._error = str(error)
                return b""
        return None
