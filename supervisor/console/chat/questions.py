"""Questions: the calls that wait for a person, by number, and the commands that answer them.

A command names the number under which its question was shown. So it never answers another question, which came while
the line was typed.
"""

from __future__ import annotations

import re
from typing import Final

from actors.errors import Invalid
from actors.questions import Asking
from actors.requests import Answer
from supervisor.console.render.question import question
from supervisor.console.render.words import head

_COMMAND: Final = re.compile(r"/(answer|allow|decline)(?!\S)\s*(\S*)\s*(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_ALLOW: Final = {"answer": None, "allow": True, "decline": False}


class Questions:
    """The questions of one chat, in the order in which they were shown."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    def show(self, asking: Asking) -> list[str]:
        """Return what a person reads of a question; nothing if it was shown before."""
        if asking.call_id in self._calls:
            return []
        self._calls.append(asking.call_id)
        number = len(self._calls)
        how = f"/allow {number}, or /decline {number} WHY" if asking.approval else f"/answer {number} TEXT"
        return [f"question {number}: {question(asking)}", f"  to answer: {how}"]

    def answer(self, line: str) -> Answer | None:
        """Return the answer that a line is; None: it is none.

        Raises:
            Invalid: it names no question that was shown.
        """
        command = _COMMAND.fullmatch(line)
        if command is None:
            return None
        word, number, content = command.groups()
        if not _NUMBER.fullmatch(number) or int(number) > len(self._calls):
            raise Invalid(
                "there is no such question",
                expected=f"the number of a question, 1 to {len(self._calls)}" if self._calls else "a question",
                got=head(number) or "no number",
                remedy=f"/{word} NUMBER",
            )
        return Answer(call_id=self._calls[int(number) - 1], content=content.strip(), allow=_ALLOW[word])
