r"""The output of a run, filtered for a terminal: its text and its colours, and no other control sequence.

An agent or a process that moves the cursor could rewrite the console's own lines, a title or a clipboard sequence
reaches beyond the screen, and a right-to-left override shows a command as another one. So a terminal gets only
printable text, newlines, tabs, and SGR sequences, which are colours and the like. Of the rest:

- A whole control sequence (CSI, OSC, DCS, APC, PM, SOS, and those of ESC and a letter) is left out: it has no text.
- A control that stands alone, or begins a sequence that does not end well, is made visible (``\x1b``), and the text
  behind it stays text: so a sequence that is never ended hides nothing.
- A carriage return is the end of a line, alone or before a newline: a progress bar shows each of its states.

A sequence may come in pieces. Its beginning is held back until it is decided, for SEQUENCE_MAX characters at most; so
what is shown does not depend on where the pieces end.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from actors.text import CONTROLS, one_line

SEQUENCE_MAX: Final = 1_024
"""Characters of the inside of a control sequence; a longer one is text."""
COLOURS_MAX: Final = 16
"""How many of the last colours are restored in the next piece, unless they were reset."""
RESET: Final = "\x1b[0m"

_INSIDE: Final = rf"[^\x00-\x1f\x7f-\x9f]{{0,{SEQUENCE_MAX}}}"
_PARAMETERS: Final = rf"[0-?]{{0,{SEQUENCE_MAX}}}"
_TOKEN: Final = re.compile(
    rf"(?P<text>(?:(?![\n\t])[^{CONTROLS}]|[\n\t])+)"
    rf"|(?P<colour>\x1b\[[0-9;:]{{0,{SEQUENCE_MAX}}}m)"
    r"|(?P<newline>\r\n?)"
    rf"|(?P<control_sequence>\x1b\[{_PARAMETERS}[ -/]{{0,8}}[@-~])"
    rf"|(?P<control_string>\x1b[\]PX^_]{_INSIDE}(?:\x07|\x1b\\))"
    r"|(?P<escape>\x1b[ -/]{0,8}(?![\[\]PX^_])[0-~])"
    r"|(?P<control>.)",
    re.DOTALL,
)
_UNDECIDED: Final = re.compile(rf"\r|\x1b(?:[ -/]{{0,8}}|\[{_PARAMETERS}[ -/]{{0,8}}|[\]PX^_]{_INSIDE}\x1b?)")
"""An unfinished control sequence. Output that ends with one is held back until the rest comes."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


class TerminalFilter:
    """Filters the output of runs for a terminal; for one stream of output. Not for several threads at once.

    Colours are reset after each piece and restored in the next, so that other text in between has none.
    """

    def __init__(self) -> None:
        self._held = ""
        self._colours: deque[str] = deque(maxlen=COLOURS_MAX)

    def feed(self, text: str) -> str:
        """Take the next piece of text; return the part to show, with text that was held back before."""
        return self._take(self._held + text, last=False)

    def end(self) -> str:
        """End the message and its colours; return the text that was held back."""
        shown = self._take(self._held, last=True)
        self._colours.clear()
        return shown

    def _take(self, text: str, *, last: bool) -> str:
        self._held = ""
        if not text:
            return ""
        shown = [*self._colours]
        at = 0
        while at < len(text):
            if not last and _UNDECIDED.fullmatch(text, at):
                self._held = text[at:]
                break
            token = _TOKEN.match(text, at)
            assert token is not None, "every character is a token"
            at = token.end()
            match token.lastgroup:
                case "text":
                    shown.append(token[0])
                case "colour":
                    shown.append(token[0])
                    self._note(token[0])
                case "newline":
                    shown.append("\n")
                case "control":
                    shown.append(one_line(token[0]))
                case _:
                    continue
        if self._colours:
            shown.append(RESET)
        return "".join(shown)

    def _note(self, colour: str) -> None:
        """Keep what is on; what begins with a 0, or says nothing, takes off all before it."""
        if not colour[2:-1].partition(";")[0].strip("0"):
            self._colours.clear()
        if colour[2:-1].strip("0"):
            self._colours.append(colour)


def without_colours(shown: str) -> str:
    """Return what a filter has let pass, without its colours."""
    return _COLOUR.sub("", shown)
