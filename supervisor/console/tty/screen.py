"""Standard output and standard error, and the terminal that may be both.

Output of runs goes to standard output; the console's own remarks go to standard error, so that a pipe gets the one
without the other. Both are written unbuffered, so no output is lost at a sudden end.

A terminal gets filtered output, and a pipe the bytes as they are. On a terminal both end on the same screen, so a
remark begins on a line of its own, and a waiting prompt is wiped before anything is printed over it. A half-typed line
stays in the terminal's own line buffer.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from actors.text import one_line
from supervisor.console.tty.pasting import ASK_FOR_MARKS, NO_MORE_MARKS
from supervisor.console.tty.streams import GONE
from supervisor.console.tty.terminal import TerminalFilter, without_colours

PROMPT: Final = "> "
WIPE_LINE: Final = "\r\x1b[K"
LOCK_WAIT_S: Final = 1.0


class OutputClosed(Exception):
    """Standard output cannot be written. `unread`: nothing reads it any more; otherwise the disk may be full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.unread = error.errno in GONE


class Screen:
    """Where the console writes. Every method may be called from any thread, and blocks as long as the reader does."""

    def __init__(self, out_fd: int = 1, err_fd: int = 2) -> None:
        self._out, self._err = out_fd, err_fd
        self.out_is_terminal = _is_terminal(out_fd)
        self.err_is_terminal = _is_terminal(err_fd)
        self._coloured = self.err_is_terminal and not os.environ.get("NO_COLOR")
        self._filter = TerminalFilter() if self.out_is_terminal else None
        self._lock = threading.Lock()
        self._line_open = False
        self._fresh_line = False
        self._prompted = False
        self._marks = False

    @property
    def width(self) -> int:
        """Columns of the terminal; plenty where there is none."""
        if not self.err_is_terminal:
            return 160
        try:
            return os.get_terminal_size(self._err).columns or 80
        except OSError:
            return 80

    def output(self, text: str, *, fresh_line: bool = False) -> None:
        """Print output of a run; with `fresh_line`, on a new line if the current one is not empty.

        Raises:
            OutputClosed: it cannot be written, or is not read any more.
        """
        if not text:
            return
        with self._turn():
            if fresh_line:
                self._end_message()
                self._fresh_line = True
            self._print(text if self._filter is None else self._filter.feed(text))

    def end_message(self) -> None:
        """End the output of a message: print an unfinished sequence, and reset the colours.

        Raises:
            OutputClosed: it cannot be written, or is not read any more.
        """
        with self._turn():
            self._end_message()

    def remark(self, *lines: str) -> None:
        """Print remarks on standard error; each text becomes one line."""
        with self._turn():
            self._begin_own()
            text = "\n".join(one_line(line) for line in lines)
            self._say(f"\x1b[2m{text}\x1b[0m\n" if self._coloured else f"{text}\n")

    def block(self, text: str) -> None:
        """Print something laid out, such as a table, on standard error."""
        with self._turn():
            self._begin_own()
            self._say(text if text.endswith("\n") else text + "\n")

    def prompt(self) -> None:
        """Show the prompt, unless it is shown already."""
        with self._turn():
            if not self._prompted:
                lead = "\n" if self._line_open and self.out_is_terminal else ""
                # Set each time: another program may have had the terminal meanwhile.
                self._say(lead + (ASK_FOR_MARKS if self._marks else "") + PROMPT)
                self._line_open, self._prompted = False, True

    def ask_for_marks(self) -> None:
        """Make the terminal mark pasted text, until the prompt is left."""
        with self._turn():
            self._marks = self.err_is_terminal and os.environ.get("TERM", "dumb") != "dumb"
            self._say(ASK_FOR_MARKS if self._marks else "")

    def line_entered(self) -> None:
        """The person pressed Enter: the terminal is on a fresh line."""
        with self._turn():
            self._prompted = self._line_open = False

    def interrupted(self) -> None:
        """The terminal has echoed ^C: the next remark begins on a line of its own."""
        with self._turn():
            self._prompted, self._line_open = False, True

    def leave_prompt(self) -> None:
        """Go to a fresh line from a prompt that will not be answered."""
        with self._turn():
            if self._prompted:
                self._say("\n")
                self._prompted = False
            if self._marks:
                self._say(NO_MORE_MARKS)
                self._marks = False

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # If the output is not read, the thread that writes to it blocks and holds the lock. A remark, such as a
        # receipt, goes to standard error, and must not wait for that for ever.
        locked = self._lock.acquire(timeout=LOCK_WAIT_S)
        try:
            yield
        finally:
            if locked:
                self._lock.release()

    def _print(self, text: str) -> None:
        seen = text if self._filter is None else without_colours(text)
        if not seen:
            return
        self._wipe_prompt()
        if self._fresh_line and self._line_open:
            text = "\n" + text
        self._fresh_line = False
        self._line_open = not seen.endswith("\n")
        try:
            _write(self._out, text)
        except OSError as error:
            raise OutputClosed(error) from error

    def _end_message(self) -> None:
        if self._filter is not None:
            self._print(self._filter.end())

    def _begin_own(self) -> None:
        """Go to a fresh line for a remark: not after a prompt, nor after unfinished output."""
        self._wipe_prompt()
        if self._line_open and self.out_is_terminal and self.err_is_terminal:
            self._say("\n")
            self._line_open = False

    def _wipe_prompt(self) -> None:
        if self._prompted:
            self._say(WIPE_LINE)
            self._prompted = False

    def _say(self, text: str) -> None:
        try:
            _write(self._err, text)
        except OSError:
            # Nothing can be shown any more; the facts are in the store.
            return


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _write(fd: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "replace"))
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # Another process made this end non-blocking; its reader is slow, not gone.
            select.select([], [fd], [])
