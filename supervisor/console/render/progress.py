"""Progress: one line on standard error that says what is waited for, while it is, on a terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Final

from actors.text import one_line

WIPE_LINE: Final = "\r\x1b[K"


class Progress:
    """A line that is written over; a context manager, after which it is gone. Elsewhere than on a terminal: silent."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._terminal:
            self._write(WIPE_LINE)

    def show(self, text: str) -> None:
        """Have the line say this."""
        if self._terminal:
            width = os.get_terminal_size(2).columns or 80
            self._write(WIPE_LINE + one_line(text)[: width - 1])

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
