"""Renders a thread as the input of a model call, in the two wire formats that providers share.

Pure functions. Both formats refuse a whole request if one call lacks its result. So both renderings use one reading of
the thread: a call is paired with the tool message behind it, and a call or result without a partner is left out. A
thread that `actors.thread` folds has none of these; one that an agent has shortened may have some.

Calls and results are paired by their ids. If several calls have one id, the first gets the first result, the second the
second. A repeated id is replaced by a new one, and a name that a model made up is made valid, since both formats refuse
a whole request for those too. Retracted messages are left out. Notes get the user's role, the only one that both
formats allow between two assistant messages. Partial text gets no mark; white space is treated as each format asks.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from actors.model import JsonObject, Message, MessageStatus, Outcome, Role, ToolCall

OPENING: Final = "The conversation so far:"
"""The user text before a thread that begins with the assistant, in the format in which the user has to be first."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_MAX_CHARS: Final = 64

_INSTEAD_OF_NOTHING: Final[dict[str, str]] = {
    Outcome.NOT_STARTED: "This call was not started.",
    Outcome.INTERRUPTED: "This call was interrupted before it ended; it may have had effects.",
    Outcome.FINISHED: "The call ended without output.",
}


class _AssistantMessage:
    """One assistant message with the results of its calls."""

    __slots__ = ("calls", "text")

    def __init__(self, text: str, calls: list[tuple[ToolCall, Message]]) -> None:
        self.text = text
        self.calls = calls


def render_openai(messages: Sequence[Message]) -> list[JsonObject]:
    """Return the thread in the format of OpenAI's chat completions.

    Consecutive user texts become one message, with a blank line between them. Blank texts are left out.
    """
    rendered: list[JsonObject] = []
    for turn in _turns(messages):
        if isinstance(turn, str):
            rendered.append({"role": "user", "content": turn})
            continue
        said: JsonObject = {"role": "assistant", "content": turn.text or None}
        if turn.calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": _name(call.name),
                        "arguments": msgspec.json.encode(call.arguments).decode(),
                    },
                }
                for call, _ in turn.calls
            ]
        rendered.append(said)
        rendered.extend(
            {"role": "tool", "tool_call_id": call.id, "content": _content(result)} for call, result in turn.calls
        )
    return rendered


def render_anthropic(messages: Sequence[Message]) -> list[JsonObject]:
    """Return the thread in the format of Anthropic's messages.

    User and assistant alternate, the user first: a thread that begins with the assistant gets `OPENING` before it. All
    results of an assistant message are in the user message behind it, in the order of the calls, followed by the user's
    text. Blank texts are left out. The last assistant message loses its trailing white space, which the provider
    refuses.
    """
    rendered: list[JsonObject] = []

    def blocks(role: str) -> list[JsonObject]:
        if not rendered and role == "assistant":
            rendered.append({"role": "user", "content": [{"type": "text", "text": OPENING}]})
        if not rendered or rendered[-1]["role"] != role:
            rendered.append({"role": role, "content": []})
        content: list[JsonObject] = rendered[-1]["content"]
        return content

    for turn in _turns(messages):
        if isinstance(turn, str):
            blocks("user").append({"type": "text", "text": turn})
            continue
        content = blocks("assistant")
        if turn.text:
            content.append({"type": "text", "text": turn.text})
        content.extend(
            {"type": "tool_use", "id": call.id, "name": _name(call.name), "input": call.arguments}
            for call, _ in turn.calls
        )
        for call, result in turn.calls:
            block: JsonObject = {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": _content(result),
            }
            if result.is_error or result.outcome != Outcome.FINISHED:
                block["is_error"] = True
            blocks("user").append(block)
    if rendered and rendered[-1]["role"] == "assistant":
        last = rendered[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()
    return rendered


def _turns(messages: Sequence[Message]) -> list[str | _AssistantMessage]:
    """Read a thread as user texts, no two in a row, and assistant messages with paired results."""
    shown = [message for message in messages if message.status != MessageStatus.RETRACTED]
    turns: list[str | _AssistantMessage] = []
    used: set[str] = set()
    for place, message in enumerate(shown):
        if message.role == Role.ASSISTANT:
            results = _results_behind(shown, place)
            calls = [
                (_with_own_id(call, used), results[call.id].popleft())
                for call in message.tool_calls
                if results[call.id]
            ]
            text = message.content if message.content.strip() else ""
            if text or calls:
                turns.append(_AssistantMessage(text, calls))
        elif message.role in (Role.USER, Role.NOTE) and message.content.strip():
            if turns and isinstance(turns[-1], str):
                turns[-1] = f"{turns[-1]}\n\n{message.content}"
            else:
                turns.append(message.content)
    return turns


def _results_behind(messages: Sequence[Message], place: int) -> defaultdict[str, deque[Message]]:
    """Return the results behind an assistant message, by the id of their call, in their order."""
    results: defaultdict[str, deque[Message]] = defaultdict(deque)
    for behind in range(place + 1, len(messages)):
        message = messages[behind]
        if message.role != Role.TOOL:
            break
        if message.tool_call_id is not None:
            results[message.tool_call_id].append(message)
    return results


def _with_own_id(call: ToolCall, used: set[str]) -> ToolCall:
    """Return a call with an id that no other call of the request has."""
    own = call.id
    number = 2
    while own in used:
        own, number = f"{call.id}_{number}", number + 1
    used.add(own)
    return call if own == call.id else msgspec.structs.replace(call, id=own)


def _name(name: str) -> str:
    """Return a tool's name in a form that providers accept: a model may have called a name that is not a tool's."""
    return _NOT_IN_A_NAME.sub("_", name)[:_NAME_MAX_CHARS] or "_"


def _content(result: Message) -> str:
    if result.content.strip():
        return result.content
    return _INSTEAD_OF_NOTHING[result.outcome or Outcome.FINISHED]
