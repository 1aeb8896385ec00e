"""A provider that is played by a script, for agents with an adapter: what it refuses of a next turn's request is a 400.

Each request names its case, ``[case AGENT-POINT-END]``, in a text of the user's. The first turn of a case gets the
answers of its point, of `POINTS`; the point is reached when the run can be ended there. Every later turn, whose message
has ``[next]``, is checked as the real provider checks it, and gets a text. It needs the standard library, and what
checks the requests.
"""

from __future__ import annotations

import json
import re
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from tests.provider_checker import Refused, check_anthropic, check_openai, check_responses
from tests.serving import Server, served

Json = dict[str, Any]
Calls = list[tuple[str, Json]]
"""The calls of an answer: the tool's name, and its arguments."""

CASE = re.compile(r"\[case (([a-z_]+)-([a-z]+)-([a-z]+))\]")
NEXT = "[next]"
END = "final_answer"
"""The tool by which some frameworks have a model end."""
FILE = re.compile(r"\[file ([^\]]+)\]")
"""In the message of a case whose point is ``page``: the file that the model has the tool `read` read."""
GONE_S = 0.02
RETRY_S = 30
"""What a provider that is busy asks for. Longer than any test waits."""

SAID, DONE = "Some text.", "All done."
POINTS: dict[str, list[tuple[str, str]]] = {
    "token": [],
    "between": [("note", "first")],
    "tool": [("note", "first"), ("note", "hold")],
    "retry": [],
    "approval": [("wipe", "first")],
}
"""Where a run is ended, and the calls of the answer before that: the tool, and a word, which is noted with the case."""


@dataclass
class Case:
    """One session, and what was asked in it. `reached`: the provider's part of the point is reached.

    `calls`: those of the first answer, instead of those of the point.
    """

    calls: Calls = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)


# ── The answers, in three formats ─────────────────────────────────────────────────────────────────


def chat(text: str, calls: Calls, *, whole: bool = True) -> list[Json]:
    """As the chat completions of OpenAI."""

    def chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}

    events = [chunk({"role": "assistant", "content": ""}), chunk({"content": text})]
    for index, (tool, given) in enumerate(calls):
        function = {"name": tool, "arguments": json.dumps(given)}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        events.append(chunk({"tool_calls": [call]}))
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    end = [chunk({}, "tool_calls" if calls else "stop"), {**chunk({}), "choices": [], "usage": usage}]
    return [*events, *end] if whole else events


def responses(text: str, calls: Calls, *, whole: bool = True) -> list[Json]:
    """As the responses of OpenAI."""
    response = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": "m",
        "output": [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    message = {"type": "message", "id": "msg", "role": "assistant", "status": "in_progress", "content": []}
    part = {"output_index": 0, "item_id": "msg", "content_index": 0}
    said = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    events: list[Json] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": message},
        {"type": "response.content_part.added", **part, "part": {**said, "text": ""}},
        {"type": "response.output_text.delta", **part, "delta": text, "logprobs": []},
    ]
    output: list[Json] = [{**message, "status": "completed", "content": [said]}]
    for index, (tool, given) in enumerate(calls):
        function = {"name": tool, "arguments": json.dumps(given), "call_id": f"call_{index}"}
        output.append({"type": "function_call", "id": f"fc_{index}", "status": "completed", **function})
    done = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(output)]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10, **details}
    ended = {**response, "status": "completed", "output": output, "usage": usage}
    events += [*done, {"type": "response.completed", "response": ended}] if whole else []
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def anthropic(text: str, calls: Calls, *, whole: bool = True) -> list[Json]:
    """As the messages of Anthropic."""
    usage = {"input_tokens": 7, "output_tokens": 3}
    message = {"id": "msg", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    events: list[Json] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    ]
    if not whole:
        return events
    events.append({"type": "content_block_stop", "index": 0})
    for index, (tool, given) in enumerate(calls, 1):
        block = {"type": "tool_use", "id": f"call_{index - 1}", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]


def contents(text: str, calls: Calls, *, whole: bool = True) -> list[Json]:
    """As the contents of Gemini."""

    def event(part: Json, **more: Any) -> Json:
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage}

    events = [event({"text": text}), *(event({"functionCall": {"name": tool, "args": given}}) for tool, given in calls)]
    return [*events, event({"text": ""}, finishReason="STOP")] if whole else events


@dataclass(frozen=True)
class Provider:
    """One format: its answers, where a request has its messages, and its checks."""

    answer: Callable[..., list[Json]]
    messages: str
    check: Callable[[list[Json]], None]


def check_program(messages: list[Json]) -> None:
    """Check messages of a program, without what it may add to them: marks of its cache, messages in a role of its own.

    A message that is one text may be given as that.
    """
    made = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        plain = [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]
        if message["role"] != "system":
            made.append({"role": message["role"], "content": plain})
    check_anthropic(made)


def check_chat(messages: list[Json]) -> None:
    """Check messages of chat completions, without those of the system."""
    check_openai([message for message in messages if message["role"] != "system"])


PROVIDERS = {
    "/v1/chat/completions": Provider(chat, "messages", check_chat),
    "/v1/responses": Provider(responses, "input", check_responses),
    "/v1/messages": Provider(anthropic, "messages", check_program),
    # Only a program asks so, and nothing is asked of it after the end.
    "/v1beta/models/gemini-2.5-flash:streamGenerateContent": Provider(contents, "contents", lambda _: None),
}


def results(request: Json) -> list[str]:
    """The texts of the results in a request, in their order."""
    if "input" in request:
        return [str(one["output"]) for one in request["input"] if one.get("type") == "function_call_output"]
    found = []
    for message in request["messages"]:
        if message["role"] == "tool":
            found.append(str(message["content"]))
        elif isinstance(message["content"], list):
            found += [str(block["content"]) for block in message["content"] if block["type"] == "tool_result"]
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _names(tools: list[Json]) -> Iterator[str]:
    for one in tools:
        for tool in one.get("functionDeclarations", [one]):
            yield str(tool.get("name") or tool.get("function", {}).get("name"))


class _Server(Server):
    cases: ClassVar[dict[str, Case]] = {}


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.close_connection = True
        asked: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = PROVIDERS[self.path.split("?")[0]]
        texts = "\n".join(_texts(asked[provider.messages]))
        names = CASE.findall(texts)
        if not names or not asked.get("tools"):
            # What a program asks beside its turns, such as for the title of its session.
            self._send(provider.answer(DONE, []))
            return
        name, _, point, _ = names[0]
        case = _Server.cases[name]
        case.requests.append(asked)
        try:
            if NEXT in texts:
                self._checked(provider, case, asked)
            else:
                self._play(provider, case, name, point)
        except OSError:
            # The client is gone, which is what is tested.
            return

    def _checked(self, provider: Provider, case: Case, asked: Json) -> None:
        try:
            provider.check(asked[provider.messages])
        except Refused as error:
            case.refused.append(f"{error}: {json.dumps(asked[provider.messages])}")
            self.send_error(400, "refused")
            return
        ends = any(one.get("function", {}).get("name") == END for one in asked["tools"])
        self._send(provider.answer("", [(END, {"answer": DONE})]) if ends else provider.answer(DONE, []))

    def _play(self, provider: Provider, case: Case, name: str, point: str) -> None:
        if point == "retry":
            self.send_response(503)
            self.send_header("retry-after", str(RETRY_S))
            self.send_header("content-length", "0")
            self.end_headers()
            case.reached.set()
            return
        offered = list(_names(case.requests[0]["tools"]))
        if point == "page":
            read = next(one for one in offered if one.endswith("read"))
            path = FILE.findall(json.dumps(case.requests[0]))[0]
            calls: Calls = [(read, {"path": path})] if len(case.requests) == 1 else []
            if calls or END not in offered:
                self._send(provider.answer(SAID if calls else DONE, calls))
            else:
                self._send(provider.answer("", [(END, {"answer": DONE})]))
            return
        if point == "handoff":
            handoffs: Calls = [("transfer_to_openai_agents", {})] if len(case.requests) == 1 else []
            self._send(provider.answer(SAID if handoffs else DONE, handoffs))
            return
        if len(case.requests) > 1:
            # Behind the results, before the first byte.
            case.reached.set()
            self._hold()
            return
        whole = point != "token"
        wanted = case.calls or [(tool, {"text": f"{name}:{word}"}) for tool, word in POINTS[point]]
        # A program gives the tools of a server names that end with their own.
        calls = [(next(one for one in offered if one.endswith(tool)), given) for tool, given in wanted]
        self._send(provider.answer(SAID, calls, whole=whole))
        if not whole:
            case.reached.set()
            self._hold()

    def _hold(self) -> None:
        """Say nothing more until the client is gone."""
        while True:
            readable, _, _ = select.select([self.connection], [], [], GONE_S)
            if readable and not self.connection.recv(1024):
                return

    def _send(self, events: list[Json]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{named}data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def providing(cases: dict[str, Case]) -> Iterator[str]:
    """Serve these cases, which may become more, on a free port of this machine; gives the URL."""
    _Server.cases = cases
    server = _Server(("127.0.0.1", 0), _Handler)
    with served(server) as url:
        yield url
