"""A model on this machine: it speaks the streams of two providers over real sockets, and answers as slowly as they do.

A prompt `[say WORD]` is answered by that word in capitals, so that an answer shows who gave it. A prompt `[work]` is
answered by a call of the tool that is offered, and when its result is there, by a text that has no end; `[talk]` by
that text at once. `[permit]` is `[work]` with a command for which Codex has to ask.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.serving import Server, served

PIECE_S = 0.01
PIECES_MAX = 100_000
PROMPT = re.compile(r"\[(say|work|talk|permit) ?(\w*)\]")

RESULTS = ('"tool_result"', '"role": "tool"', '"function_call_output"', '"functionResponse"')
"""What shows that the tool has been called, in one of the formats."""

Json = dict[str, Any]


class Model(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        asked: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.close_connection = True
        try:
            if self.path.endswith("/chat/completions"):
                self.begin()
                self.chat(asked)
            elif ":streamGenerateContent" in self.path:
                self.begin()
                self.contents(asked)
            elif self.path.endswith("/responses"):
                self.begin()
                self.responses_of(asked)
            elif self.path.split("?")[0].endswith("/v1/messages"):
                self.begin()
                self.messages(asked)
            else:
                self.send_error(404)
        except OSError:
            # The client is gone, which is what is tested.
            return

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def line(self, data: Json, event: str = "") -> None:
        named = f"event: {event}\n" if event else ""
        self.wfile.write(f"{named}data: {json.dumps(data)}\n\n".encode())
        time.sleep(PIECE_S)

    # ── What is answered ──

    def answer(self, asked: Json) -> Iterator[str]:
        """The pieces of a text; a tool is called where there are none."""
        said = json.dumps(next(asked[key] for key in ("messages", "input", "contents") if key in asked))
        prompts = PROMPT.findall(said)
        word, rest = prompts[-1] if prompts else ("say", "nothing")
        if word == "say":
            yield rest.upper()
        elif word == "talk" or any(result in said for result in RESULTS):
            for number in range(PIECES_MAX):
                yield f"{number} "

    def chat(self, asked: Json) -> None:
        """As the chat completions of OpenAI."""

        def chunk(delta: Json, finish: str | None = None) -> None:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            self.line({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices})

        chunk({"role": "assistant", "content": ""})
        pieces = False
        for piece in self.answer(asked):
            pieces = True
            chunk({"content": piece})
        if not pieces:
            names = [tool["function"]["name"] for tool in asked["tools"]]
            name = "bash" if "bash" in names else names[0]
            arguments = json.dumps({"command": SCRIPT, "description": "Work"}) if name == "bash" else "{}"
            called = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
            chunk({"tool_calls": [called]})
            for piece in (arguments[:1], arguments[1:]):
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        chunk({}, "stop" if pieces else "tool_calls")
        self.wfile.write(b"data: [DONE]\n\n")

    def messages(self, asked: Json) -> None:
        """As the messages of Anthropic. The tool is a shell, and the command that it is given ignores SIGTERM."""

        def event(kind: str, **data: Any) -> None:
            self.line({"type": kind, **data}, kind)

        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": asked["model"]}
        event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
        pieces = False
        for piece in self.answer(asked):
            if not pieces:
                event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            pieces = True
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        if not pieces:
            block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
            event("content_block_start", index=0, content_block=block)
            arguments = json.dumps({"command": SCRIPT, "description": "Work", "timeout": 600_000})
            for at in range(0, len(arguments), 40):
                delta = {"type": "input_json_delta", "partial_json": arguments[at : at + 40]}
                event("content_block_delta", index=0, delta=delta)
        event("content_block_stop", index=0)
        stop = "end_turn" if pieces else "tool_use"
        event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
        event("message_stop")

    def responses_of(self, asked: Json) -> None:
        """As the responses of OpenAI. The tool is the shell of Codex."""

        def event(kind: str, **data: Any) -> None:
            self.line({"type": kind, **data}, kind)

        response = {"id": "r", "object": "response", "status": "in_progress", "output": [], "model": asked["model"]}
        event("response.created", response=response)
        message = {"id": "m", "type": "message", "role": "assistant", "content": []}
        text = ""
        for piece in self.answer(asked):
            if not text:
                event("response.output_item.added", output_index=0, item=message)
            text += piece
            event("response.output_text.delta", item_id="m", output_index=0, content_index=0, delta=piece)
        if text:
            item = {**message, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        else:
            arguments = {"cmd": SCRIPT}
            if PROMPT.findall(json.dumps(asked["input"]))[-1][0] == "permit":
                arguments |= {"sandbox_permissions": "require_escalated", "justification": "it is needed"}
            called = {"call_id": "c", "name": "exec_command", "arguments": json.dumps(arguments)}
            item = {"id": "f", "type": "function_call", **called}
        event("response.output_item.done", output_index=0, item=item)
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        event("response.completed", response={**response, "status": "completed", "usage": usage})

    def contents(self, asked: Json) -> None:
        """As the contents of Gemini; no tool is called."""

        def part(finish: str | None = None, **part: Any) -> None:
            candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
            usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
            self.line(
                {"candidates": [candidate | ({"finishReason": finish} if finish else {})], "usageMetadata": usage}
            )

        for piece in self.answer(asked):
            part(text=piece)
        part("STOP", text="")


SCRIPT = """trap "" TERM HUP INT; (setsid sleep 1000 </dev/null >/dev/null 2>&1 &); sleep 1000"""


@contextmanager
def serving() -> Iterator[str]:
    """Serve on a free port of this machine; gives the URL."""
    server = Server(("127.0.0.1", 0), Model)
    with served(server) as url:
        yield url
