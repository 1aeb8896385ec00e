"""What the providers refuse with a 400, as strict checks of a whole request's messages.

All raise `Refused` with the place and the rule. They are written from the providers' documented rules and from what
their 400s say, and are stricter than the providers where those are lenient (a repeated id, an empty text, arguments
that are no JSON).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9_.:-]+")
THINKING = {"thinking": {"type", "thinking", "signature"}, "redacted_thinking": {"type", "data"}}
"""The keys of each block of thinking."""


class Refused(AssertionError):
    """The provider would answer 400."""


def _require(condition: bool, place: int, rule: str) -> None:
    if not condition:
        raise Refused(f"messages[{place}]: {rule}")


def check_openai(messages: list[dict[str, Any]], *, keys: frozenset[str] = frozenset()) -> None:
    """Check messages of OpenAI's chat completions; `keys` are further ones that the provider's assistant has."""
    _require(bool(messages), 0, "there is no message")
    seen: set[str] = set()
    owed: list[str] = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            _require(set(message) == {"role", "tool_call_id", "content"}, place, "wrong keys of a tool message")
            _require(bool(owed), place, "a tool message without a call before it")
            _require(message["tool_call_id"] == owed.pop(0), place, "a result out of the order of the calls")
            _text(message["content"], place)
            continue
        _require(not owed, place, f"calls without a result: {owed}")
        if role == "user":
            _require(set(message) == {"role", "content"}, place, "wrong keys of a user message")
            _check_given(message["content"], place, _CHAT_FILES)
            previous = messages[place - 1]["role"] if place else None
            _require(previous != "user", place, "two user messages in a row")
        elif role == "assistant":
            known = {"role", "content", "tool_calls"} | keys
            _require(set(message) <= known, place, "wrong keys of an assistant message")
            calls = message.get("tool_calls")
            if message["content"] is None:
                _require(bool(calls), place, "an assistant message with neither text nor calls")
            else:
                _text(message["content"], place)
            if "tool_calls" in message:
                _require(isinstance(calls, list) and bool(calls), place, "an empty list of calls")
            for call in calls or []:
                _require(set(call) == {"id", "type", "function"}, place, "wrong keys of a call")
                _require(call["type"] == "function", place, "a call that is no function")
                _require(set(call["function"]) == {"name", "arguments"}, place, "wrong keys of a function")
                _name(call["function"]["name"], place)
                arguments = call["function"]["arguments"]
                _require(isinstance(arguments, str), place, "arguments that are no string")
                _require(isinstance(json.loads(arguments), dict), place, "arguments that are no JSON object")
                _new_id(call["id"], seen, place)
                owed.append(call["id"])
        else:
            _require(False, place, f"an unknown role {role!r}")
    _require(not owed, len(messages), f"calls without a result: {owed}")


def check_anthropic(messages: list[dict[str, Any]], *, thinking: bool = False, as_said: bool = False) -> None:
    """Check messages of Anthropic's messages endpoint.

    `thinking`: the request has it on. `as_said`: the provider's own answers are in it, in their own order; in any other
    message the texts are before the calls.
    """
    _require(bool(messages), 0, "there is no message")
    _require(messages[0]["role"] == "user", 0, "the first message is not the user's")
    seen: set[str] = set()
    owed: list[str] = []
    for place, message in enumerate(messages):
        _require(set(message) == {"role", "content"}, place, "wrong keys")
        role, content = message["role"], message["content"]
        _require(role == ("user", "assistant")[place % 2], place, "roles do not alternate")
        _require(isinstance(content, list) and bool(content), place, "empty content")
        expected, owed = owed, []
        if role == "user":
            results = [block for block in content if block["type"] == "tool_result"]
            _require(content[: len(results)] == results, place, "a result behind a text")
            ids = [block["tool_use_id"] for block in results]
            _require(ids == expected, place, f"results {ids} do not answer the calls {expected}")
            for block in results:
                _require(
                    set(block) <= {"type", "tool_use_id", "content", "is_error"},
                    place,
                    "wrong keys of a result",
                )
                _require(block.get("is_error", False) in (True, False), place, "is_error is no boolean")
                _check_given(block["content"], place, _ANTHROPIC_FILES)
                if block.get("is_error") and not isinstance(block["content"], str):
                    only_text = all(one["type"] == "text" for one in block["content"])
                    _require(only_text, place, "all content must be type `text` if `is_error` is true")
            rest = content[len(results) :]
            if rest:
                _check_given(rest, place, _ANTHROPIC_FILES)
            texts = [block for block in rest if block["type"] == "text"]
        else:
            calls = [block for block in content if block["type"] == "tool_use"]
            texts = [block for block in content if block["type"] == "text"]
            thoughts = [block for block in content if block["type"] in THINKING]
            _require(len(calls) + len(texts) + len(thoughts) == len(content), place, "an unknown block")
            if not as_said:
                _require(content[len(content) - len(calls) :] == calls, place, "a text behind a call")
            for block in thoughts:
                _require(set(block) == THINKING[block["type"]], place, "wrong keys of thinking")
                _require(all(isinstance(value, str) and value for value in block.values()), place, "empty thinking")
            _require(content[-1]["type"] not in THINKING, place, "the final block is thinking")
            for block in calls:
                _require(set(block) == {"type", "id", "name", "input"}, place, "wrong keys of a call")
                _require(isinstance(block["input"], dict), place, "input that is no object")
                _name(block["name"], place)
                _new_id(block["id"], seen, place)
            owed = [block["id"] for block in calls]
        for block in texts:
            _require(set(block) == {"type", "text"}, place, "wrong keys of a text")
            _text(block["text"], place)
    _require(not owed, len(messages), f"calls without a result: {owed}")
    last = messages[-1]
    _require(last["role"] == "user" or not thinking, len(messages) - 1, "the assistant at the end, with thinking on")
    if last["role"] == "assistant":
        text = last["content"][-1]["text"]
        _require(text == text.rstrip(), len(messages) - 1, "the last assistant text ends in white space")
    elif thinking and last["content"][0]["type"] == "tool_result":
        _check_begins_with_thinking(messages)


def _check_begins_with_thinking(messages: list[dict[str, Any]]) -> None:
    """What the assistant did since the user spoke last, up to the results at the end, begins with thinking."""
    first = len(messages) - 2
    while first > 1 and all(block["type"] == "tool_result" for block in messages[first - 1]["content"]):
        first -= 2
    found = messages[first]["content"][0]["type"]
    _require(found in THINKING, first, f"expected `thinking` or `redacted_thinking`, but found `{found}`")


def check_responses(items: list[dict[str, Any]], *, kinds: frozenset[str] = frozenset()) -> None:
    """Check the input of OpenAI's Responses; `kinds` are the types of further items that its output may have."""
    _require(bool(items), 0, "there is no item")
    seen: set[str] = set()
    owed: list[str] = []
    for place, item in enumerate(items):
        kind = item.get("type")
        behind = items[place + 1] if place + 1 < len(items) else {}
        if kind == "function_call_output":
            _require(set(item) == {"type", "call_id", "output"}, place, "wrong keys of a result")
            _require(bool(owed) and item["call_id"] == owed.pop(0), place, "a result out of the order of the calls")
            _check_given(item["output"], place, _RESPONSES_FILES, text="input_text")
            if behind.get("type") != "function_call_output":
                _require(not owed, place, f"calls without a result: {owed}")
        elif kind == "message":
            role = item.get("role")
            _require(set(item) == {"type", "role", "content"}, place, "wrong keys of a message")
            _require(role in ("user", "assistant"), place, f"an unknown role {role!r}")
            if role == "user":
                _check_given(item["content"], place, _RESPONSES_FILES, text="input_text")
            else:
                _require(len(item["content"]) == 1, place, "a message without its one text")
                (text,) = item["content"]
                _require(set(text) == {"type", "text"} and text["type"] == "output_text", place, "no output_text")
                _text(text["text"], place)
            _require(role == "assistant" or not owed, place, f"calls without a result: {owed}")
        elif kind == "function_call":
            _require(set(item) == {"type", "call_id", "name", "arguments"}, place, "wrong keys of a call")
            _name(item["name"], place)
            _require(isinstance(json.loads(item["arguments"]), dict), place, "arguments that are no JSON object")
            _new_id(item["call_id"], seen, place)
            owed.append(item["call_id"])
        elif kind == "reasoning":
            _require({"type", "summary", "encrypted_content"} <= set(item), place, "a reasoning item that lacks keys")
            follows = behind.get("role") == "assistant" or behind.get("type") in {"function_call", "reasoning"} | kinds
            _require(follows, place, "'reasoning' was provided without its required following item")
        else:
            _require(kind in kinds, place, f"an unknown item {kind!r}")
    _require(not owed, len(items), f"calls without a result: {owed}")


def _check_given(content: object, place: int, files: dict[str, Any], *, text: str = "text") -> None:
    """Check what the user, or a tool, gives: a text, or a list of texts and files."""
    if isinstance(content, str):
        _text(content, place)
        return
    _require(isinstance(content, list) and bool(content), place, "empty content")
    assert isinstance(content, list)
    for block in content:
        if block.get("type") == text:
            _require(set(block) == {"type", "text"}, place, "wrong keys of a text")
            _text(block["text"], place)
        else:
            _require(block.get("type") in files, place, f"an unknown block {block.get('type')!r}")
            files[block["type"]](block, place)


def _chat_image(block: dict[str, Any], place: int) -> None:
    _require(set(block) == {"type", "image_url"} and set(block["image_url"]) == {"url"}, place, "keys of an image")
    _data_url(block["image_url"]["url"], place, _IMAGES)


def _chat_file(block: dict[str, Any], place: int) -> None:
    _require(set(block) == {"type", "file"}, place, "keys of a file")
    _require(set(block["file"]) == {"filename", "file_data"}, place, "keys of a file")
    _text(block["file"]["filename"], place)
    _data_url(block["file"]["file_data"], place, _PDF)


def _response_image(block: dict[str, Any], place: int) -> None:
    _require(set(block) == {"type", "detail", "image_url"}, place, "keys of an image")
    _require(block["detail"] in ("auto", "low", "high", "original"), place, "the detail of an image")
    _data_url(block["image_url"], place, _IMAGES)


def _response_file(block: dict[str, Any], place: int) -> None:
    _require(set(block) == {"type", "filename", "file_data"}, place, "keys of a file")
    _text(block["filename"], place)
    _data_url(block["file_data"], place, _PDF)


def _anthropic_image(block: dict[str, Any], place: int) -> None:
    _require(set(block) == {"type", "source"}, place, "keys of an image")
    source = block["source"]
    _require(set(source) == {"type", "media_type", "data"} and source["type"] == "base64", place, "keys of a source")
    _require(source["media_type"] in _IMAGES, place, f"an image of type {source['media_type']!r}")
    _base64(source["data"], place)


def _anthropic_document(block: dict[str, Any], place: int) -> None:
    _require({"type", "source"} <= set(block) <= {"type", "source", "title"}, place, "keys of a document")
    if "title" in block:
        _text(block["title"], place)
    source = block["source"]
    _require(set(source) == {"type", "media_type", "data"}, place, "keys of a source")
    if source["type"] == "text":
        _require(source["media_type"] == "text/plain", place, "a text of another type")
        _text(source["data"], place)
    else:
        _require((source["type"], source["media_type"]) == ("base64", "application/pdf"), place, "not a PDF")
        _base64(source["data"], place)


_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_PDF = frozenset({"application/pdf"})
_CHAT_FILES: dict[str, Any] = {"image_url": _chat_image, "file": _chat_file}
_RESPONSES_FILES: dict[str, Any] = {"input_image": _response_image, "input_file": _response_file}
_ANTHROPIC_FILES: dict[str, Any] = {"image": _anthropic_image, "document": _anthropic_document}


def _data_url(url: object, place: int, types: frozenset[str]) -> None:
    found = re.fullmatch(r"data:([^;,]+);base64,(.+)", url) if isinstance(url, str) else None
    _require(found is not None and found[1] in types, place, f"a URL of {types} is wanted, not {str(url)[:40]!r}")
    assert found is not None
    _base64(found[2], place)


def _base64(data: object, place: int) -> None:
    try:
        decoded = base64.b64decode(str(data), validate=True)
    except binascii.Error:
        decoded = b""
    _require(bool(decoded), place, "no bytes in base64")


def _text(value: object, place: int) -> None:
    _require(isinstance(value, str) and bool(value.strip()), place, "an empty text")


def _name(value: object, place: int) -> None:
    _require(isinstance(value, str) and _NAME.fullmatch(value) is not None, place, f"a malformed name {value!r}")


def _new_id(value: object, seen: set[str], place: int) -> None:
    _require(isinstance(value, str) and _ID.fullmatch(value) is not None, place, f"a malformed id {value!r}")
    _require(value not in seen, place, f"the id {value!r} twice")
    seen.add(str(value))
