"""The prompt of a program: what it has not seen of the thread, and the messages that it is to answer.

A program keeps the conversation itself. So it is given only what came to the thread since it was asked the last time:
how its last turn was cut off, and what others have said. All of that is marked as the supervisor's, not the user's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plain import cut
from ..rendering import media_note
from ..values import MediaPart, Message, TextPart

HISTORY_MAX_BYTES = 65_536
"""Of what is told of the thread; the oldest of it is left out."""
QUOTE_MAX_BYTES = 4_096
"""Of one message in it."""

OPENING = "[From the supervisor of this session, not from the user."
CLOSING = "End of the supervisor's note.]"
GO_ON = "Go on."
GONE = "Your own session could not be resumed, and this is a new one. What was said so far:"
NEW = "What was said in this session before you were asked:"
SINCE = "What was said in this session since you were asked the last time:"
AGAIN = (
    "What you had begun without asking may have had effects too, even if it is not listed or is listed as not started: "
    "look before you rely on it."
)


def prompt(messages: Sequence[Message], inputs: Sequence[Message], seen: str | None, *, gone: bool) -> str:
    """Return what a program is told.

    Args:
        messages: the thread, with the inputs.
        inputs: what it is to answer; empty: it is to go on.
        seen: the run in which this session of the program was asked the last time; None: it is new.
        gone: it is new because the one before could not be resumed.
    """
    own = {message.id for message in inputs}
    before = [message for message in messages if message.id not in own]
    told = _cut_off(before, seen) + _news(before, seen, gone=gone)
    asked = "\n\n".join(filter(None, map(_text, inputs))) or GO_ON
    return "\n".join([OPENING, *told, CLOSING, "", asked]) if told else asked


def _cut_off(before: Sequence[Message], seen: str | None) -> list[str]:
    """How the run that asked it the last time was cut off, if it was."""
    run = [message for message in before if seen is not None and message.run_id == seen]
    notes = [message.content for message in run if message.role == "note"]
    if not notes:
        return []
    lines = [*notes]
    lines += [f"It was to answer: {_quoted(one)}" for one in run if one.role == "user" and one.status != "retracted"]
    lines += [f"- {_call(one, run)}" for one in run if one.role == "tool" and one.outcome != "finished"]
    return [*lines, AGAIN]


def _news(before: Sequence[Message], seen: str | None, *, gone: bool) -> list[str]:
    """What came after that run; all of it for a session that is new, or does not know where it was."""
    known = [place for place, message in enumerate(before) if seen is not None and message.run_id == seen]
    news = before[known[-1] + 1 :] if known else before
    lines = [_line(message, news) for message in news]
    if not lines:
        return [GONE.partition(" What")[0]] if gone else []
    kept: list[str] = []
    room = HISTORY_MAX_BYTES
    for line in reversed(lines):
        room -= len(line.encode()) + 1
        if room < 0:
            kept.append("(earlier messages are left out)")
            break
        kept.append(line)
    heading = GONE if gone else SINCE if known else NEW
    return [heading, *reversed(kept)]


def _line(message: Message, among: Sequence[Message]) -> str:
    if message.status == "retracted":
        return f"- taken back, with what followed from it, except for effects: {message.role}: {_quoted(message)}"
    if message.role == "tool":
        return f"- {_call(message, among)}"
    cut_off = " (cut off)" if message.status == "partial" else ""
    return f"- {message.role}{cut_off}: {_quoted(message)}"


def _call(result: Message, among: Sequence[Message]) -> str:
    calls = [call for message in among for call in message.tool_calls if call.id == result.tool_call_id]
    called = f"{calls[0].name} {calls[0].arguments}" if calls else "a call"
    return f"tool {cut(called, QUOTE_MAX_BYTES)}: {_quoted(result)}"


def _quoted(message: Message) -> str:
    return cut(_text(message), QUOTE_MAX_BYTES)


def _text(message: Message) -> str:
    """Return the text of a message, with a note in place of each file."""
    if not any(isinstance(part, MediaPart) for part in message.parts):
        return message.content
    parts = [part for part in message.parts if isinstance(part, (TextPart, MediaPart))]
    texts = [part.text if isinstance(part, TextPart) else media_note(part) for part in parts]
    # The parts of a tool's result are its files alone.
    return "\n\n".join(filter(None, [message.content, *texts] if message.role == "tool" else texts))
