"""A paste on a terminal: what stands between the two marks of a bracketed paste is one message, of as many lines.

Without the marks each line of what is pasted would be a message, and take over from the one before it.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from supervisor.console.tty.lines import LINE_MAX_BYTES, Line

BEGIN: Final = "\x1b[200~"
END: Final = "\x1b[201~"
ASK_FOR_MARKS: Final = "\x1b[?2004h"
"""Written to a terminal, it puts the marks around what is pasted; a terminal that knows of none does nothing."""
NO_MORE_MARKS: Final = "\x1b[?2004l"


class Paste:
    """Puts lines together to messages. `open`: a paste has begun, and its end has not come."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._total_bytes = 0
        self.open = False

    def take(self, line: Line) -> Line | None:
        """Return the message that a line completes, without the marks; None while a paste is incomplete."""
        text = line.text
        # The last mark of the line says whether a paste is open after it.
        begin, end = text.rfind(BEGIN), text.rfind(END)
        self.open = begin > end if begin != end else self.open
        text = text.replace(BEGIN, "").replace(END, "")
        self._total_bytes += line.total_bytes + bool(self._lines)
        if self._total_bytes <= LINE_MAX_BYTES and not line.cut:
            self._lines.append(text)
        if self.open:
            return None
        whole = structs.replace(
            line,
            text="\n".join(self._lines),
            total_bytes=self._total_bytes,
            cut=line.cut or self._total_bytes > LINE_MAX_BYTES,
        )
        self.drop()
        return whole

    def drop(self) -> None:
        """Discard the pasted text so far: Ctrl-C has made the terminal discard the rest."""
        self._lines.clear()
        self._total_bytes = 0
        self.open = False
