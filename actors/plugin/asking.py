"""Asking: the questions of an agent, and those whether a tool may be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from actors.errors import Invalid, Refused
from actors.messages import ToolResult
from actors.model import JsonObject, Outcome
from actors.questions import Question
from actors.text import one_line, shown, storable

ASK: Final = "ask"
"""What a call that is a question is called in the log, and in the thread."""

ARGUMENTS_MAX_CHARS: Final = 2_000
"""So much of the arguments of a call is in the question whether it may start."""


def approval_of(tool: str, arguments: JsonObject) -> Question:
    """Return the question whether a tool may be called with these arguments, which have no secret ones."""
    text = one_line(msgspec.json.encode(arguments).decode())
    if len(text) > ARGUMENTS_MAX_CHARS:
        # Whoever allows a call has to know that this is not all of it.
        left_out = len(text) - ARGUMENTS_MAX_CHARS
        text = f"{text[:ARGUMENTS_MAX_CHARS]} … and {left_out} more characters, which are in its tool.requested"
    return Question(f"May {one_line(tool)} be called with {text}?", approval=True)


def question_of(question: object, options: object) -> Question:
    """Return what an agent asks.

    Raises:
        Invalid: the question is not a text, or is empty; or the options are not texts.
    """
    if not isinstance(question, str) or not question.strip():
        raise Invalid("this is not a question", expected="a text", got=shown(question), remedy="turn.ask('Deploy it?')")
    texts: list[Any] = (
        list(options) if isinstance(options, Sequence) and not isinstance(options, str | bytes) else [None]
    )
    if not all(isinstance(one, str) for one in texts):
        raise Invalid(
            "these are not options of a question",
            expected="a list of texts",
            got=shown(options),
            remedy="turn.ask('Deploy it?', options=['yes', 'no'])",
        )
    return Question(storable(question), tuple(map(storable, texts)))


def answer_of(result: ToolResult) -> str:
    """Return what a person answered.

    Raises:
        Refused: there is no answer: the person declined, or the question was closed.
    """
    if result.outcome != Outcome.FINISHED:
        raise Refused(result)
    return result.content
