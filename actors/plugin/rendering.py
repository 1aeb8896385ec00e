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

Messages and results may have files. `files` has their bytes, by the names of their attachments: `turn.files()`. A file
is given in the form that the provider takes for it. In place of any other file, and of one without bytes, stands a
text that names it. So it is with all files of an assistant, which no provider takes back.

A host has messages of its own, with the same attributes, and this file is loaded there too. So it needs nothing but the
standard library, runs from Python 3.9 on, and looks at no class of messages and parts. It has over 600 lines, and is
whole: a host loads it alone, and the three formats share its reading of a thread.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TypeAlias

    from actors.model import JsonObject, Message, ToolCall
    from actors.parts import CallPart, MediaPart

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

_IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_PDF: Final = "application/pdf"
_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml"})
"""Types of files that are text, beside ``text/…``."""


@dataclass(frozen=True)
class _Media:
    """An image or another file, with its bytes where there are some to give."""

    part: MediaPart
    data: bytes | None

    @property
    def title(self) -> str:
        return " ".join(self.part.name.split()) if self.part.name else ""

    def note(self, what: str = "This file is not shown") -> str:
        named = f"{self.title}, " if self.title else ""
        return f"[{what}: {named}{self.part.media_type}, {self.part.size} bytes]"

    def image(self) -> str | None:
        return self._base64() if self.part.media_type in _IMAGES else None

    def pdf(self) -> str | None:
        return self._base64() if self.part.media_type == _PDF else None

    def text(self) -> str | None:
        if self.data is None or not (self.part.media_type.startswith("text/") or self.part.media_type in _TEXTS):
            return None
        try:
            text = self.data.decode()
        except UnicodeDecodeError:
            return None
        return text if text.strip() else None

    def url(self, data: str) -> str:
        return f"data:{self.part.media_type};base64,{data}"

    def _base64(self) -> str | None:
        return base64.b64encode(self.data).decode() if self.data else None


def media_note(part: MediaPart) -> str:
    """Return the text that stands in place of a file."""
    return _Media(part, None).note()


@dataclass(frozen=True)
class _UserMessage:
    """The texts and files of the user, no two texts in a row."""

    parts: list[str | _Media]

    def add(self, part: str | _Media) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(part, str) and isinstance(last, str):
            self.parts[-1] = f"{last}\n\n{part}"
        else:
            self.parts.append(part)


@dataclass(frozen=True)
class _Called:
    """A call with its result, under the id that the provider is given."""

    id: str
    name: str
    arguments: JsonObject
    result: Message
    media: list[_Media]


if TYPE_CHECKING:
    # Makes what a provider takes for a file; None: it takes none such.
    _Show: TypeAlias = Callable[[_Media], JsonObject | None]
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


def newest_media(messages: Sequence[Message], max_bytes: int) -> list[MediaPart]:
    """Return the files of messages, each once, the newest first, as far as they have `max_bytes` together.

    Those of retracted messages, and of the assistant, are left out, since no rendering shows them.
    """
    found: dict[str, MediaPart] = {}
    left = max_bytes
    for message in reversed(messages):
        if message.status == "retracted" or message.role == "assistant":
            continue
        for part in reversed(message.parts):
            if part.type == "media" and part.attachment not in found and part.size <= left:
                found[part.attachment] = part
                left -= part.size
    return list(found.values())


def render_openai(
    messages: Sequence[Message], *, provider: str | None = None, files: Mapping[str, bytes] | None = None
) -> list[JsonObject]:
    """Return the thread in the format of OpenAI's chat completions.

    Consecutive user texts become one message, with a blank line between them. Blank texts are left out. The format has
    no blocks. A block of `provider` without a ``type`` is taken for further keys of its assistant message, as some
    providers want back with it (``reasoning_content``, ``reasoning_details``).

    `files` has the bytes of images, PDFs and texts, which are given to the model. A result of a tool has only text in
    this format, so its files follow in a message of the user.
    """
    rendered: list[JsonObject] = []
    # Of results, for the user's next message.
    ahead: list[str | _Media] = []

    def user(parts: Iterable[str | _Media]) -> None:
        said = _UserMessage([])
        for part in (*ahead, *parts):
            said.add(part)
        ahead.clear()
        if len(said.parts) == 1 and isinstance(said.parts[0], str):
            rendered.append({"role": "user", "content": said.parts[0]})
        elif said.parts:
            rendered.append({"role": "user", "content": _shown(said.parts, "text", _for_chat)})

    for turn in _turns(messages, provider, _with_text_or_calls, files):
        if isinstance(turn, _UserMessage):
            user(turn.parts)
            continue
        user(())
        said = _joined(turn.blocks)
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
        for called in turn.calls:
            content = _result_parts(called)
            follows = [one for one in called.media if _for_chat(one) is not None]
            texts = [
                one
                if isinstance(one, str)
                else one.note("This file follows" if one in follows else "This file is not shown")
                for one in content
            ]
            rendered.append({"role": "tool", "tool_call_id": called.id, "content": "\n".join(texts)})
            if follows:
                ahead += [f"From the result of {_name(called.name)}, {called.id}:", *follows]
    user(())
    return rendered


def _for_chat(media: _Media) -> JsonObject | None:
    image, pdf, text = media.image(), media.pdf(), media.text()
    if image is not None:
        return {"type": "image_url", "image_url": {"url": media.url(image)}}
    if pdf is not None:
        return {"type": "file", "file": {"filename": media.title or "file.pdf", "file_data": media.url(pdf)}}
    return None if text is None else {"type": "text", "text": f"{media.note('A file')}\n{text}"}


def render_responses(
    messages: Sequence[Message], *, provider: str | None = None, files: Mapping[str, bytes] | None = None
) -> list[JsonObject]:
    """Return the thread in the format of OpenAI's Responses, as the items of its ``input``.

    A block of `provider` is an item. A reasoning item is given back with the item that follows it, and only with its
    ``encrypted_content``: without that it is a reference to an answer that the provider has stored, and is refused
    unless each item behind it is the stored one too. So ask with ``include=["reasoning.encrypted_content"]``. Texts
    and calls are given without the provider's ids of their items; a call has its ``call_id``.

    `files` has the bytes of images, PDFs and texts, which are given to the model, those of results too.
    """
    rendered: list[JsonObject] = []
    for turn in _turns(messages, provider, _without_lone_reasoning, files):
        if isinstance(turn, _UserMessage):
            content = _shown(turn.parts, "input_text", _for_responses)
            rendered.append({"type": "message", "role": "user", "content": content})
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
        for called in turn.calls:
            output: str | list[JsonObject] = _content(called.result)
            if called.media:
                output = _shown(_result_parts(called), "input_text", _for_responses)
            rendered.append({"type": "function_call_output", "call_id": called.id, "output": output})
    return rendered


def _for_responses(media: _Media) -> JsonObject | None:
    image, pdf, text = media.image(), media.pdf(), media.text()
    if image is not None:
        return {"type": "input_image", "detail": "auto", "image_url": media.url(image)}
    if pdf is not None:
        return {"type": "input_file", "filename": media.title or "file.pdf", "file_data": media.url(pdf)}
    return None if text is None else {"type": "input_text", "text": f"{media.note('A file')}\n{text}"}


def render_anthropic(
    messages: Sequence[Message],
    *,
    provider: str | None = None,
    thinking: bool | None = None,
    files: Mapping[str, bytes] | None = None,
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
            `GO_ON` follows. None: it is not said. Then it is so where a new run begins, as after a takeover: that
            thread is taken with thinking on and off. Within a run, calls stay calls.
        files: the bytes of images, PDFs and texts, which are given to the model. Those of a result are in the result;
            if that is an error, which has only text, they follow the results.
    """
    rendered: list[JsonObject] = []

    def blocks(role: str) -> list[JsonObject]:
        if not rendered and role == "assistant":
            rendered.append({"role": "user", "content": [{"type": "text", "text": OPENING}]})
        if not rendered or rendered[-1]["role"] != role:
            rendered.append({"role": role, "content": []})
        content: list[JsonObject] = rendered[-1]["content"]
        return content

    settled = _settled(messages, provider)

    def keep(parts: list[_Part]) -> list[_Part]:
        return _without_last_thinking([part for part in parts if _server_id(part) in settled])

    for turn in _turns(messages, provider, keep, files):
        if isinstance(turn, _UserMessage):
            blocks("user").extend(_shown(turn.parts, "text", _for_anthropic))
            continue
        if _is_thinking(turn.parts[0]) and rendered and _speaks_first(rendered[-1]):
            blocks("user").append({"type": "text", "text": GO_ON})
        blocks("assistant").extend(map(_as_block, turn.parts))
        behind: list[JsonObject] = []
        for called in turn.calls:
            blocks("user").append(_as_result(called, behind))
        if behind:
            blocks("user").extend(behind)
    if thinking is None:
        thinking = _begins_a_run(messages)
    while thinking and _tell_calls_without_thinking(rendered):
        pass
    if thinking and rendered and rendered[-1]["role"] == "assistant" and not _is_paused(messages):
        blocks("user").append({"type": "text", "text": GO_ON})
    if rendered and rendered[-1]["role"] == "assistant":
        last = rendered[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()
    return rendered


def _for_anthropic(media: _Media) -> JsonObject | None:
    image, pdf, text = media.image(), media.pdf(), media.text()
    title = {"title": media.title} if media.title else {}
    if image is not None:
        return {"type": "image", "source": {"type": "base64", "media_type": media.part.media_type, "data": image}}
    if pdf is not None:
        return {"type": "document", "source": {"type": "base64", "media_type": _PDF, "data": pdf}, **title}
    if text is not None:
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    return None


def _as_block(part: _Part) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, _Called):
        return {"type": "tool_use", "id": part.id, "name": _name(part.name), "input": part.arguments}
    return dict(part)


def _as_result(called: _Called, behind: list[JsonObject]) -> JsonObject:
    """Return the block of a result. What may not be in it is added to `behind`, for the same message."""
    result = called.result
    block: JsonObject = {"type": "tool_result", "tool_use_id": called.id, "content": _content(result)}
    if called.media:
        block["content"] = _shown(_result_parts(called), "text", _for_anthropic)
    if result.is_error or result.outcome != "finished":
        block["is_error"] = True
        if called.media:
            files = [one for one in block["content"] if one["type"] != "text"]
            behind += files
            texts = [one for one in block["content"] if one["type"] == "text"]
            block["content"] = texts or _INSTEAD_OF_NOTHING[result.outcome or "finished"]
    return block


def _is_thinking(part: _Part) -> bool:
    return isinstance(part, dict) and part.get("type") in _THINKING


def _speaks_first(message: JsonObject) -> bool:
    """True of an assistant message that does not begin with thinking."""
    return message["role"] == "assistant" and not _is_thinking(message["content"][0])


def _joined(blocks: Iterable[JsonObject]) -> JsonObject:
    """Return the keys of several blocks as those of one message: texts and lists under one key are joined."""
    joined: JsonObject = {}
    for block in blocks:
        for key, value in block.items():
            before = joined.get(key)
            both = type(before) is type(value) and isinstance(value, (str, list))
            joined[key] = before + value if both else value
    return joined


def _begins_a_run(messages: Sequence[Message]) -> bool:
    """True if the user, or a note, speaks last, and not within the run that made the calls before it."""
    shown = [message for message in messages if message.status != "retracted"]
    spoken = next((at for at, one in enumerate(reversed(shown)) if one.role not in ("user", "note")), len(shown))
    last = shown[len(shown) - spoken :]
    if spoken == len(shown) or any(message.role == "note" for message in last):
        # A note is the last word about its run.
        return bool(spoken)
    return {message.run_id for message in last} not in (set(), {shown[-spoken - 1].run_id})


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
    told: list[JsonObject] = []
    for block in asked["content"]:
        if block["type"] == "tool_use":
            result = results[block["id"]]
            shown = [{"type": "text", "text": result}] if isinstance(result, str) else result
            text = "\n".join(one["text"] for one in shown if one["type"] == "text")
            called = f"The assistant called {block['name']} with {_json(block['input'])}. The result:\n{text}"
            told += [{"type": "text", "text": called.rstrip("\n") if not text else called}]
            told += [one for one in shown if one["type"] != "text"]
    del rendered[-2:]
    spoken: list[_Part] = [block for block in asked["content"] if block["type"] != "tool_use"]
    said = _without_last_thinking(spoken)
    behind = [block for block in answered["content"] if block["type"] != "tool_result"]
    content = told + behind
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


def _server_id(part: _Part) -> str | None:
    """Anthropic: the id of a call that the provider executes itself, of the call's block or its result's; else None."""
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if not isinstance(kind, str) or not kind.endswith(("_tool_use", "_tool_result")):
        return None
    return str(part["tool_use_id"] if "tool_use_id" in part else part.get("id"))


def _settled(messages: Sequence[Message], provider: str | None) -> set[str | None]:
    """Return the ids of such calls that have their result or will have it, and None for anything else.

    The provider refuses one without the other. But it executes those of the last answer when it is asked to go on with
    that: if the answer paused for them, or has calls of other tools too, and nothing but their results came since.
    """
    calls: set[str | None] = set()
    results: set[str | None] = {None}
    goes_on = _goes_on_with(messages)
    for message in messages:
        if message.status == "retracted":
            continue
        for part in message.parts:
            if part.type == "block" and part.provider == provider:
                is_result = "tool_use_id" in part.data
                (results if is_result else calls).add(_server_id(part.data))
                if message is goes_on and not is_result:
                    results.add(_server_id(part.data))
    return {None} | (calls & results)


def _goes_on_with(messages: Sequence[Message]) -> Message | None:
    """Return the answer that the next request goes on with, so that the provider executes its own calls in it."""
    for message in reversed(messages):
        if message.status == "retracted" or message.role == "tool":
            continue
        open_ended = message.answer is not None and message.answer.stop in ("pause_turn", "tool_use")
        return message if message.role == "assistant" and open_ended else None
    return None


def _is_paused(messages: Sequence[Message]) -> bool:
    last = _goes_on_with(messages)
    return last is not None and last.answer is not None and last.answer.stop == "pause_turn"


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


def _turns(
    messages: Sequence[Message], provider: str | None, keep: _Keep, files: Mapping[str, bytes] | None
) -> list[_UserMessage | _AssistantMessage]:
    """Read a thread as messages of the user, no two in a row, and assistant messages with paired results."""
    shown = [message for message in messages if message.status != "retracted"]
    turns: list[_UserMessage | _AssistantMessage] = []
    used: dict[str, int] = {}
    for place, message in enumerate(shown):
        if message.role == "assistant":
            parts = keep(_parts(message, _results_behind(shown, place), used, provider, files or {}))
            if parts:
                turns.append(_AssistantMessage(parts))
        elif message.role in ("user", "note"):
            for part in _given(message, files or {}):
                last = turns[-1] if turns else None
                if not isinstance(last, _UserMessage):
                    last = _UserMessage([])
                    turns.append(last)
                last.add(part)
    return turns


def _given(message: Message, files: Mapping[str, bytes]) -> list[str | _Media]:
    """Return the texts and files of a user's message; blank texts are left out."""
    if not message.parts:
        return [message.content] if message.content.strip() else []
    given: list[str | _Media] = []
    for part in message.parts:
        if part.type == "media":
            given.append(_Media(part, files.get(part.attachment)))
        elif part.type == "text" and part.text.strip():
            given.append(part.text)
    return given


def _media(message: Message, files: Mapping[str, bytes]) -> list[_Media]:
    return [_Media(part, files.get(part.attachment)) for part in message.parts if part.type == "media"]


def _result_parts(called: _Called) -> list[str | _Media]:
    """Return the text and the files of a result."""
    if called.media and not called.result.content.strip():
        return [*called.media]
    return [_content(called.result), *called.media]


def _shown(parts: Iterable[str | _Media], text: str, show: _Show) -> list[JsonObject]:
    """Return texts and files as a provider takes them; `text` is its type for texts, `show` makes the files."""
    made: list[JsonObject] = []
    for part in parts:
        file = None if isinstance(part, str) else show(part)
        made.append(file or {"type": text, "text": part if isinstance(part, str) else part.note()})
    return made


def _parts(
    message: Message,
    results: defaultdict[str, deque[Message]],
    used: dict[str, int],
    provider: str | None,
    files: Mapping[str, bytes],
) -> list[_Part]:
    """Return the parts of an assistant message that a provider is to have; see the head of this file."""
    own = provider is not None and message.answer is not None and message.answer.provider == provider
    made: list[_Part] = []

    def add(call: ToolCall | CallPart, identity: str) -> None:
        if results[call.id]:
            result = results[call.id].popleft()
            made.append(_Called(_unused(identity, used), call.name, call.arguments, result, _media(result, files)))

    if not message.parts:
        if message.content.strip():
            made.append(message.content)
        for call in message.tool_calls:
            add(call, call.id)
        return made
    text = ""
    for part in message.parts:
        if part.type == "call":
            add(part, part.provider_id if own and part.provider_id else part.id)
        elif part.type == "text":
            text += part.text
            if part.text.strip():
                made.append(part.text)
        elif part.type == "media":
            note = _Media(part, None).note("The assistant made a file that is not shown")
            text += f"\n\n{note}\n\n" if text else f"{note}\n\n"
            made.append(note)
        elif provider is not None and part.provider == provider:
            made.append(part.data)
    if own:
        return made
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


def _unused(identity: str, used: dict[str, int]) -> str:
    """Return an id that no other call of the request has. `used`: with each, the number for its next repetition."""
    own, number = identity, used.get(identity, 2)
    while own in used:
        own, number = f"{identity}_{number}", number + 1
    used[identity] = number
    used.setdefault(own, 2)
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
