"""Providers that are played by a script, over real sockets, and as strict as the real ones: what they refuse is a 400.

Each request names its case, ``[case NAME]``, in a text of the user's. The first answer of a case is `Case.events`, of
which so many are sent as the case says; then nothing more comes until the client is gone. Every later answer is a text.
It needs the standard library, and what checks the requests.
"""

from __future__ import annotations

import json
import re
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from tests.provider_checker import Refused, check_anthropic, check_openai, check_responses
from tests.serving import Server, served

Json = dict[str, Any]
CASE = re.compile(r"\[case ([\w-]+)\]")
GONE_S = 0.02
TEXTS = ("Some ", "text.")
WORDS = ("first", "hold")
"""What the two calls of the answer that is cut are given."""
EARLIER = ("seen", "read")
"""And those of an answer before it."""


@dataclass
class Case:
    """One session: how much of an answer is sent, which is the one behind so many whole ones, and what was asked."""

    name: str
    cut: int | None = None
    behind: int = 0
    requests: list[Json] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)


def arguments(case: str, words: Iterable[str]) -> list[str]:
    """The arguments of the two calls of an answer, as JSON."""
    return [json.dumps({"text": f"{case}:{word}"}) for word in words]


# ── The answers, event by event ───────────────────────────────────────────────────────────────────


def anthropic_events(case: str, words: Iterable[str] = WORDS) -> list[Json]:
    """Thinking, a text, and two calls at once."""

    def block(index: int, start: Json, *deltas: Json) -> list[Json]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def call(index: int, given: str) -> list[Json]:
        start = {"type": "tool_use", "id": f"toolu_{index}", "name": "note", "input": {}}
        halves = (given[: len(given) // 2], given[len(given) // 2 :])
        return block(index, start, *({"type": "input_json_delta", "partial_json": half} for half in halves))

    usage = {"input_tokens": 7, "output_tokens": 3}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    first, second = arguments(case, words)
    return [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm, "},
            {"type": "thinking_delta", "thinking": "so"},
            {"type": "signature_delta", "signature": "signed"},
        ),
        *block(1, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in TEXTS)),
        *call(2, first),
        *call(3, second),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def anthropic_text(text: str) -> list[Json]:
    """An answer that is a text."""
    events = anthropic_events("")
    return [
        events[0],
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {**events[-2], "delta": {"stop_reason": "end_turn", "stop_sequence": None}},
        events[-1],
    ]


def chunk(delta: Json, finish: str | None = None) -> Json:
    """A piece of an answer of the chat completions."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


def openai_events(case: str, words: Iterable[str] = WORDS) -> list[Json]:
    """Reasoning in keys of its own, as some providers have it, a text, and two calls at once."""
    calls = []
    for index, given in enumerate(arguments(case, words)):
        function = {"name": "note", "arguments": ""}
        calls.append(chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]}))
        halves = (given[: len(given) // 2], given[len(given) // 2 :])
        calls += [chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]}) for half in halves]
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"reasoning_content": text}) for text in ("hm, ", "so")),
        *(chunk({"content": text}) for text in TEXTS),
        *calls,
        chunk({}, "tool_calls"),
    ]


def openai_text(text: str) -> list[Json]:
    """An answer that is a text."""
    return [chunk({"role": "assistant", "content": text}), chunk({}, "stop")]


def responses_events(case: str, words: Iterable[str] = WORDS) -> list[Json]:
    """A reasoning item, a text, and two calls at once."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    events: list[Json] = [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**reasoning, "encrypted_content": None}},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
    ]
    part = {"output_index": 1, "item_id": "msg_1", "content_index": 0}
    events += [{"type": "response.output_text.delta", **part, "delta": text, "logprobs": []} for text in TEXTS]
    whole = [{"type": "output_text", "text": "".join(TEXTS), "annotations": []}]
    events.append({"type": "response.output_item.done", "output_index": 1, "item": {**message, "content": whole}})
    for index, given in enumerate(arguments(case, words)):
        item = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}", "name": "note"}
        place = {"output_index": index + 2, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": index + 2, "item": begun})
        events.append({"type": "response.function_call_arguments.delta", **place, "delta": given})
        ended = {**item, "arguments": given, "status": "completed"}
        events.append({"type": "response.output_item.done", "output_index": index + 2, "item": ended})
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    events.append({"type": "response.completed", "response": {**response, "status": "completed", "usage": usage}})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def responses_text(text: str) -> list[Json]:
    """An answer that is a text."""
    events = responses_events("")
    delta = next(event for event in events if event["type"] == "response.output_text.delta")
    return [events[0], {**delta, "delta": text}, events[-1]]


# ── The providers ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Provider:
    """One format: its path, its answers, its checks, and what is on record of a part of an answer.

    `kept` counts the texts and blocks that an agent has put on record once it has seen so many events. `results` gives
    the text of each result in a request, by the provider's id of the call.
    """

    path: str
    messages: str
    events: Callable[..., list[Json]]
    text: Callable[[str], list[Json]]
    check: Callable[[list[Json]], None]
    kept: Callable[[list[Json]], int]
    results: Callable[[list[Json]], dict[str, str]]
    named: bool = True


def _anthropic_kept(events: list[Json]) -> int:
    texts = [event for event in events if event.get("delta", {}).get("type") == "text_delta"]
    thoughts = [event for event in events if event["type"] == "content_block_stop" and event["index"] == 0]
    return len(texts) + len(thoughts)


def _openai_kept(events: list[Json]) -> int:
    # The reasoning is whole when something else comes.
    texts = [event for event in events if event["choices"][0]["delta"].get("content")]
    return len(texts) + bool(texts)


def _responses_kept(events: list[Json]) -> int:
    kinds = [(event["type"], event.get("item", {}).get("type")) for event in events]
    return kinds.count(("response.output_text.delta", None)) + kinds.count(("response.output_item.done", "reasoning"))


def _anthropic_results(messages: list[Json]) -> dict[str, str]:
    blocks = [block for message in messages for block in message["content"]]
    return {block["tool_use_id"]: _words(block["content"]) for block in blocks if block["type"] == "tool_result"}


def _words(content: str | list[Json]) -> str:
    """The text of a result, which may have files."""
    return content if isinstance(content, str) else next(str(block["text"]) for block in content if "text" in block)


PROVIDERS = {
    "anthropic": Provider(
        "/v1/messages",
        "messages",
        anthropic_events,
        anthropic_text,
        lambda messages: check_anthropic(messages, thinking=True, as_said=True),
        _anthropic_kept,
        _anthropic_results,
    ),
    "openai": Provider(
        "/v1/chat/completions",
        "messages",
        openai_events,
        openai_text,
        lambda messages: check_openai(messages, keys=frozenset({"reasoning_content"})),
        _openai_kept,
        lambda messages: {one["tool_call_id"]: one["content"] for one in messages if one["role"] == "tool"},
        named=False,
    ),
    "responses": Provider(
        "/v1/responses",
        "input",
        responses_events,
        responses_text,
        check_responses,
        _responses_kept,
        lambda items: {
            one["call_id"]: _words(one["output"]) for one in items if one.get("type") == "function_call_output"
        },
    ),
}


class _Server(Server):
    cases: ClassVar[dict[str, Case]] = {}


def client_is_gone(connection: socket.socket) -> bool:
    """True if a client has closed its connection; it is waited for a moment."""
    readable, _, _ = select.select([connection], [], [], GONE_S)
    return bool(readable) and not connection.recv(1024)


def sent(provider: Provider, events: list[Json]) -> bytes:
    """Events as they are sent, with the end of the stream if they have it."""
    lines = [
        (f"event: {event['type']}\n" if provider.named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ]
    ended = not provider.named and any(one["finish_reason"] for event in events for one in event["choices"])
    return "".join([*lines, *(["data: [DONE]\n\n"] if ended else [])]).encode()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        asked: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = next(one for one in PROVIDERS.values() if self.path.split("?")[0] == one.path)
        names = CASE.findall(json.dumps(asked[provider.messages]))
        case = _Server.cases[names[0]]
        case.requests.append(asked)
        try:
            provider.check(asked[provider.messages])
        except Refused as error:
            case.refused.append(f"{error}: {json.dumps(asked[provider.messages])}")
            self.send_error(400, "refused")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self._answer(provider, case)
        except OSError:
            # The client is gone, which is what is tested.
            return

    def _answer(self, provider: Provider, case: Case) -> None:
        place = len(case.requests) - 1
        if place != case.behind:
            earlier = place < case.behind
            self._send(provider, provider.events(case.name, EARLIER) if earlier else provider.text("All done."))
            return
        events = provider.events(case.name)
        whole = case.cut is None or case.cut >= len(events)
        self._send(provider, events if whole else events[: case.cut])
        case.reached.set()
        while not whole and not client_is_gone(self.connection):
            pass

    def _send(self, provider: Provider, events: list[Json]) -> None:
        self.wfile.write(sent(provider, events))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def providing(cases: dict[str, Case]) -> Iterator[str]:
    """Serve these cases, which may become more, on a free port of this machine; gives the URL."""
    _Server.cases = cases
    server = _Server(("127.0.0.1", 0), _Handler)
    with served(server) as url:
        yield url
