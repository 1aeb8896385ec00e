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
        self._shown: list[Asking] = []

    def show(self, asking: Asking) -> list[str]:
        """Return what a person reads of a question; nothing if it was shown before."""
        if any(asking.call_id == one.call_id for one in self._shown):
            return []
        self._shown.append(asking)
        number = len(self._shown)
        return [f"question {number}: {question(asking)}", f"  to answer: {_how(asking, number)}"]

    def answer(self, line: str) -> Answer | None:
        """Return the answer that a line is; None: it is none.

        Raises:
            Invalid: it names no question that was shown, or allows or declines one that takes a text.
        """
        command = _COMMAND.fullmatch(line)
        if command is None:
            return None
        word, number, content = command.groups()
        if not _NUMBER.fullmatch(number) or int(number) > len(self._shown):
            raise Invalid(
                "there is no such question",
                expected=f"the number of a question, 1 to {len(self._shown)}" if self._shown else "a question",
                got=head(number) or "no number",
                remedy=f"/{word} NUMBER",
            )
        asking, allow = self._shown[int(number) - 1], _ALLOW[word]
        if allow is not None and not asking.approval:
            raise Invalid(
                "this question takes a text",
                expected=" or ".join(asking.options) or "an answer in words",
                got=f"/{word}",
                remedy=_how(asking, int(number)),
            )
        return Answer(call_id=asking.call_id, content=content.strip(), allow=allow)


def _how(asking: Asking, number: int) -> str:
    if asking.approval:
        return f"/allow {number}, or /decline {number} WHY"
    return " or ".join(f"/answer {number} {option}" for option in asking.options) or f"/answer {number} TEXT"
