"""Standard output and standard error, and the terminal that may be both.

Output of runs goes to standard output as it is; all that the console itself says goes to standard error, so that
a pipe gets the one without the other. Both are written unbuffered: what was printed is out, whatever happens next.

On a terminal both end on the same screen, so a remark begins on a line of its own, and a prompt that waits is
wiped before something is printed over it. What a person has typed by then stays in the terminal's own line buffer.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PROMPT: Final = "> "
WIPE_LINE: Final = "\r\x1b[K"
LOCK_WAIT_S: Final = 1.0


class OutputClosed(Exception):
    """Nobody reads standard output any more."""


class Screen:
    """Where the console writes. Every method may be called from any thread, and blocks as long as the reader does."""

    def __init__(self, out_fd: int = 1, err_fd: int = 2) -> None:
        self._out, self._err = out_fd, err_fd
        self.out_is_terminal = _is_terminal(out_fd)
        self.err_is_terminal = _is_terminal(err_fd)
        self._coloured = self.err_is_terminal and not os.environ.get("NO_COLOR")
        self._lock = threading.Lock()
        self._line_open = False
        self._prompted = False

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
        """Print output of a run; with `fresh_line`, not behind what is on the line already.

        Raises:
            OutputClosed: nobody reads it.
        """
        if not text:
            return
        with self._turn():
            self._wipe_prompt()
            if fresh_line and self._line_open:
                text = "\n" + text
            self._line_open = not text.endswith("\n")
            try:
                _write(self._out, text)
            except OSError as error:
                raise OutputClosed(str(error)) from error

    def remark(self, text: str) -> None:
        """Say something about what goes on, on standard error; a line, or several."""
        with self._turn():
            self._wipe_prompt()
            if self._line_open and self.out_is_terminal and self.err_is_terminal:
                text = "\n" + text
                self._line_open = False
            self._say(f"\x1b[2m{text}\x1b[0m\n" if self._coloured else f"{text}\n")

    def block(self, text: str) -> None:
        """Print something laid out, such as a table, on standard error."""
        with self._turn():
            self._wipe_prompt()
            if self._line_open and self.out_is_terminal and self.err_is_terminal:
                self._say("\n")
                self._line_open = False
            self._say(text if text.endswith("\n") else text + "\n")

    def prompt(self) -> None:
        """Show that a line is waited for, unless that is shown already."""
        with self._turn():
            if not self._prompted:
                lead = "\n" if self._line_open and self.out_is_terminal else ""
                self._say(lead + PROMPT)
                self._line_open, self._prompted = False, True

    def line_entered(self) -> None:
        """The person pressed Enter: the terminal is on a fresh line."""
        with self._turn():
            self._prompted = self._line_open = False

    def interrupted(self) -> None:
        """The terminal has echoed ^C: what is said next begins on a line of its own."""
        with self._turn():
            self._prompted, self._line_open = False, True

    def leave_prompt(self) -> None:
        """Go to a fresh line from a prompt that nobody will answer."""
        with self._turn():
            if self._prompted:
                self._say("\n")
                self._prompted = False

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # A reader that takes nothing blocks the thread that writes to it, with the lock; a remark to somebody
        # else, such as a receipt, must not wait for that for ever.
        locked = self._lock.acquire(timeout=LOCK_WAIT_S)
        try:
            yield
        finally:
            if locked:
                self._lock.release()

    def _wipe_prompt(self) -> None:
        if self._prompted:
            self._say(WIPE_LINE)
            self._prompted = False

    def _say(self, text: str) -> None:
        try:
            _write(self._err, text)
        except OSError:
            # There is nobody left to tell; what was to be told stands in the store.
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
            # Somebody made this end non-blocking; its reader is slow, not gone.
            select.select([], [fd], [])
