"""Renders a thread as the input of a model call, in the three wire formats that providers share.

Pure functions. Each format refuses a whole request if one call lacks its result. So all renderings use one reading of
the thread: a call is paired with the tool message behind it, and a call or result without a partner is left out. A
thread that `actors.thread` folds has none of these; one that an agent has shortened may have some.

Calls and results are paired by their ids. If several calls have one id, the first gets the first result, the second the
second. A repeated id is replaced by a new one, and a name that a model made up is made valid, since the formats refuse
a whole request for those too. Retracted messages are left out. Notes get the user's role, the only one that all formats
allow between two assistant messages. Partial text gets no mark; white space is treated as each format asks.

An answer of a model (`turn.answer`) is given back to its own provider as it came: its texts, blocks and calls in their
order, the blocks to the byte, the calls under the provider's ids. `provider` is the name that the answer was begun
with. For any other provider its blocks are left out, its calls have our ids, and they follow its text. What providers
refuse of a partial answer is left out: a block of thinking that nothing follows.

A host has messages of its own, with the same attributes, and this file is loaded there too. So it needs nothing but the
standard library, runs from Python 3.9 on, and looks at no class of messages and parts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TypeAlias

    from actors.model import JsonObject, Message, ToolCall
    from actors.parts import CallPart

OPENING: Final = "The conversation so far:"
"""The user text before a thread that begins with the assistant, in the format in which the user has to be first."""
GO_ON: Final = "Go on."
"""The user text between a text of the assistant and an answer that begins with thinking, or is to begin with it."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_MAX_CHARS: Final = 64
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})

_INSTEAD_OF_NOTHING: Final[dict[str, str]] = {
    "not_started": "This call was not started.",
    "interrupted": "This call was interrupted before it ended; it may have had effects.",
    "finished": "The call ended without output.",
}


@dataclass(frozen=True)
class _Called:
    """A call with its result, under the id that the provider is given."""

    id: str
    name: str
    arguments: JsonObject
    result: Message


if TYPE_CHECKING:
    # A text, a block of the provider that is asked, or a call.
    _Part: TypeAlias = str | JsonObject | _Called
    # Leaves out blocks that the provider would not take where they stand.
    _Keep: TypeAlias = Callable[[list[_Part]], list[_Part]]


@dataclass(frozen=True)
class _AssistantMessage:
    """The parts of one assistant message."""

    parts: list[_Part]

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def blocks(self) -> list[JsonObject]:
        return [part for part in self.parts if isinstance(part, dict)]

    @property
    def calls(self) -> list[_Called]:
        return [part for part in self.parts if isinstance(part, _Called)]


def render_openai(messages: Sequence[Message], *, provider: str | None = None) -> list[JsonObject]:
    """Return the thread in the format of OpenAI's chat completions.

    Consecutive user texts become one message, with a blank line between them. Blank texts are left out. The format has
    no blocks. A block of `provider` without a ``type`` is taken for further keys of its assistant message, as some
    providers want back with it (``reasoning_content``, ``reasoning_details``).
    """
    rendered: list[JsonObject] = []
    for turn in _turns(messages, provider, _with_text_or_calls):
        if isinstance(turn, str):
            rendered.append({"role": "user", "content": turn})
            continue
        said: JsonObject = {key: value for block in turn.blocks for key, value in block.items()}
        said |= {"role": "assistant", "content": turn.text or None}
        said.pop("tool_calls", None)
        if turn.calls:
            said["tool_calls"] = [
                {
                    "id": called.id,
                    "type": "function",
                    "function": {"name": _name(called.name), "arguments": _json(called.arguments)},
                }
                for called in turn.calls
            ]
        rendered.append(said)
        rendered.extend(
            {"role": "tool", "tool_call_id": called.id, "content": _content(called.result)} for called in turn.calls
        )
    return rendered


def render_responses(messages: Sequence[Message], *, provider: str | None = None) -> list[JsonObject]:
    """Return the thread in the format of OpenAI's Responses, as the items of its ``input``.

    A block of `provider` is an item. A reasoning item is given back with the item that follows it, and only with its
    ``encrypted_content``: without that it is a reference to an answer that the provider has stored, and is refused
    unless each item behind it is the stored one too. So ask with ``include=["reasoning.encrypted_content"]``. Texts
    and calls are given without the provider's ids of their items; a call has its ``call_id``.
    """
    rendered: list[JsonObject] = []
    for turn in _turns(messages, provider, _without_lone_reasoning):
        if isinstance(turn, str):
            rendered.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn}]})
            continue
        for part in turn.parts:
            if isinstance(part, str):
                content = [{"type": "output_text", "text": part}]
                rendered.append({"type": "message", "role": "assistant", "content": content})
            elif isinstance(part, _Called):
                rendered.append(
                    {
                        "type": "function_call",
                        "call_id": part.id,
                        "name": _name(part.name),
                        "arguments": _json(part.arguments),
                    }
                )
            else:
                rendered.append(dict(part))
        rendered.extend(
            {"type": "function_call_output", "call_id": called.id, "output": _content(called.result)}
            for called in turn.calls
        )
    return rendered


def render_anthropic(
    messages: Sequence[Message], *, provider: str | None = None, thinking: bool = False
) -> list[JsonObject]:
    """Return the thread in the format of Anthropic's messages.

    User and assistant alternate, the user first: a thread that begins with the assistant gets `OPENING` before it. All
    results of an assistant message are in the user message behind it, in the order of the calls, followed by the user's
    text. Blank texts are left out. The last assistant message loses its trailing white space, which the provider
    refuses.

    Args:
        messages: the thread.
        provider: whose blocks (thinking with its signature, redacted thinking) and ids are given back.
        thinking: the request will have thinking on. Then the provider refuses results at the end whose calls no
            thinking came before: calls of an agent itself, or of another provider's model. Such calls are rendered as
            text. It also refuses a thread that ends with the assistant, as one does whose last answer was left: then
            `GO_ON` follows.
    """
    rendered: list[JsonObject] = []

    def blocks(role: str) -> list[JsonObject]:
        if not rendered and role == "assistant":
            rendered.append({"role": "user", "content": [{"type": "text", "text": OPENING}]})
        if not rendered or rendered[-1]["role"] != role:
            rendered.append({"role": role, "content": []})
        content: list[JsonObject] = rendered[-1]["content"]
        return content

    for turn in _turns(messages, provider, _without_last_thinking):
        if isinstance(turn, str):
            blocks("user").append({"type": "text", "text": turn})
            continue
        if _is_thinking(turn.parts[0]) and rendered and _speaks_first(rendered[-1]):
            blocks("user").append({"type": "text", "text": GO_ON})
        blocks("assistant").extend(map(_as_block, turn.parts))
        for called in turn.calls:
            blocks("user").append(_as_result(called))
    while thinking and _tell_calls_without_thinking(rendered):
        pass
    if thinking and rendered and rendered[-1]["role"] == "assistant":
        blocks("user").append({"type": "text", "text": GO_ON})
    if rendered and rendered[-1]["role"] == "assistant":
        last = rendered[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()
    return rendered


def _as_block(part: _Part) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, _Called):
        return {"type": "tool_use", "id": part.id, "name": _name(part.name), "input": part.arguments}
    return dict(part)


def _as_result(called: _Called) -> JsonObject:
    result = called.result
    block: JsonObject = {"type": "tool_result", "tool_use_id": called.id, "content": _content(result)}
    if result.is_error or result.outcome != "finished":
        block["is_error"] = True
    return block


def _is_thinking(part: _Part) -> bool:
    return isinstance(part, dict) and part.get("type") in _THINKING


def _speaks_first(message: JsonObject) -> bool:
    """True of an assistant message that does not begin with thinking."""
    return message["role"] == "assistant" and not _is_thinking(message["content"][0])


def _tell_calls_without_thinking(rendered: list[JsonObject]) -> bool:
    """Give the calls at the end as text, if no thinking began what the assistant did since the user spoke last.

    Returns True if it did: there may be further ones before them then.
    """
    if not rendered or not _results(rendered[-1]):
        return False
    first = len(rendered) - 2
    while first >= 2 and len(_results(rendered[first - 1])) == len(rendered[first - 1]["content"]):
        first -= 2
    if _is_thinking(rendered[first]["content"][0]):
        return False
    *_, asked, answered = rendered
    results = {block["tool_use_id"]: block["content"] for block in _results(answered)}
    told = [
        f"The assistant called {block['name']} with {_json(block['input'])}. The result:\n{results[block['id']]}"
        for block in asked["content"]
        if block["type"] == "tool_use"
    ]
    del rendered[-2:]
    spoken: list[_Part] = [block for block in asked["content"] if block["type"] != "tool_use"]
    said = _without_last_thinking(spoken)
    behind = [block for block in answered["content"] if block["type"] != "tool_result"]
    content = [{"type": "text", "text": text} for text in told] + behind
    if said:
        rendered.append({"role": "assistant", "content": said})
        rendered.append({"role": "user", "content": content})
    else:
        rendered[-1]["content"].extend(content)
    return True


def _results(message: JsonObject) -> list[JsonObject]:
    return [block for block in message["content"] if block["type"] == "tool_result"]


# ── What a format takes of an answer ──────────────────────────────────────────────────────────────────


def _with_text_or_calls(parts: list[_Part]) -> list[_Part]:
    """Chat completions: an assistant message has text or calls. A block with a type is of another format."""
    kept = [part for part in parts if not (isinstance(part, dict) and "type" in part)]
    return kept if any(not isinstance(part, dict) for part in kept) else []


def _without_last_thinking(parts: list[_Part]) -> list[_Part]:
    """Anthropic: thinking is not the last block of a message."""
    kept = [part for part in parts if not isinstance(part, dict) or "type" in part]
    while kept and _is_thinking(kept[-1]):
        kept.pop()
    return kept


def _without_lone_reasoning(parts: list[_Part]) -> list[_Part]:
    """Responses: a reasoning item is followed by what it led to, and carries its content with it."""
    kept: list[_Part] = []
    for part in reversed(parts):
        if isinstance(part, dict) and "type" not in part:
            continue
        reasoning = isinstance(part, dict) and part.get("type") == "reasoning"
        if not reasoning or (kept and isinstance(part, dict) and part.get("encrypted_content")):
            kept.append(part)
    return kept[::-1]


# ── The reading of the thread ─────────────────────────────────────────────────────────────────────────


def _turns(messages: Sequence[Message], provider: str | None, keep: _Keep) -> list[str | _AssistantMessage]:
    """Read a thread as user texts, no two in a row, and assistant messages with paired results."""
    shown = [message for message in messages if message.status != "retracted"]
    turns: list[str | _AssistantMessage] = []
    used: set[str] = set()
    for place, message in enumerate(shown):
        if message.role == "assistant":
            parts = keep(_parts(message, _results_behind(shown, place), used, provider))
            if parts:
                turns.append(_AssistantMessage(parts))
        elif message.role in ("user", "note") and message.content.strip():
            if turns and isinstance(turns[-1], str):
                turns[-1] = f"{turns[-1]}\n\n{message.content}"
            else:
                turns.append(message.content)
    return turns


def _parts(
    message: Message, results: defaultdict[str, deque[Message]], used: set[str], provider: str | None
) -> list[_Part]:
    """Return the parts of an assistant message that a provider is to have; see the head of this file."""
    own = provider is not None and message.answer is not None and message.answer.provider == provider
    made: list[_Part] = []

    def add(call: ToolCall | CallPart, identity: str) -> None:
        if results[call.id]:
            made.append(_Called(_unused(identity, used), call.name, call.arguments, results[call.id].popleft()))

    if not message.parts:
        if message.content.strip():
            made.append(message.content)
        for call in message.tool_calls:
            add(call, call.id)
        return made
    for part in message.parts:
        if part.type == "call":
            add(part, part.provider_id if own and part.provider_id else part.id)
        elif part.type == "text" and part.text.strip():
            made.append(part.text)
        elif part.type == "block" and provider is not None and part.provider == provider:
            made.append(part.data)
    if own:
        return made
    text = "".join(part.text for part in message.parts if part.type == "text")
    spoken: list[_Part] = [part for part in made if isinstance(part, dict)]
    if text.strip():
        spoken.append(text)
    return [*spoken, *(part for part in made if isinstance(part, _Called))]


def _results_behind(messages: Sequence[Message], place: int) -> defaultdict[str, deque[Message]]:
    """Return the results behind an assistant message, by the id of their call, in their order."""
    results: defaultdict[str, deque[Message]] = defaultdict(deque)
    for behind in range(place + 1, len(messages)):
        message = messages[behind]
        if message.role != "tool":
            break
        if message.tool_call_id is not None:
            results[message.tool_call_id].append(message)
    return results


def _unused(identity: str, used: set[str]) -> str:
    """Return an id that no other call of the request has."""
    own, number = identity, 2
    while own in used:
        own, number = f"{identity}_{number}", number + 1
    used.add(own)
    return own


def _name(name: str) -> str:
    """Return a tool's name in a form that providers accept: a model may have made up the name."""
    return _NOT_IN_A_NAME.sub("_", name)[:_NAME_MAX_CHARS] or "_"


def _json(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _content(result: Message) -> str:
    if result.content.strip():
        return result.content
    return _INSTEAD_OF_NOTHING[result.outcome or "finished"]
