"""A provider on this machine that holds each answer at the moment that its prompt names, as strict as a real one.

A prompt ``[do WORD NAME]`` is answered as `_Handler` says; NAME is in the arguments of the calls, and a file of that
name says that the moment has come. The events, and what is refused, are those of `scripted_provider`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.provider_checker import Refused
from tests.scripted_provider import PROVIDERS, Json, Provider, client_is_gone, sent
from tests.serving import Server, served

PROMPT = re.compile(r"\[do (\w+) (\w+)\]")
INSTRUCTIONS = "Be brief."
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
RETRY_AFTER_S = 45


class Moments:
    """What it has: the key that it wants, and what it was asked.

    Args:
        folder: where a file is made for each name whose moment has come.
        key: the key.
    """

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.key = key
        self.requests: defaultdict[str, list[Json]] = defaultdict(list)
        self.refused: list[str] = []

    def asked(self, provider: str, name: str) -> list[Json]:
        """The messages of the first request of this name."""
        messages: list[Json] = self.requests[name][0][PROVIDERS[provider].messages]
        return messages


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        self.close_connection = True
        moments: Moments = self.server.moments
        asked: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider = next(one for one in PROVIDERS.values() if self.path.split("?")[0] == one.path)
        shown = self.headers.get("x-api-key") or self.headers["authorization"].removeprefix("Bearer ")
        if shown != moments.key:
            self.refuse(401, f"Incorrect API key provided: {shown}", "invalid_api_key")
            return
        messages: list[Json] = asked[provider.messages]
        told = [asked.get("system"), asked.get("instructions")]
        if messages[0].get("role") == "system":
            told.append(messages.pop(0)["content"])
        try:
            assert INSTRUCTIONS in told, told
            provider.check(messages)
        except (Refused, AssertionError) as error:
            moments.refused.append(f"{error}: {json.dumps(messages)}")
            self.refuse(400, str(error), "invalid_request_error")
            return
        word, name = PROMPT.findall(json.dumps(messages))[-1]
        moments.requests[name].append(asked)
        try:
            self.answer(provider, word, name, answered=not PROMPT.findall(json.dumps(messages[-1:])))
        except OSError:
            # The client is gone, which is what is tested.
            return

    def answer(self, provider: Provider, word: str, name: str, *, answered: bool) -> None:
        moments: Moments = self.server.moments
        reached = moments.folder / name
        events = provider.events(name)
        if word == "approve":
            events = json.loads(json.dumps(events).replace('"note"', '"careful"'))
        if word == "mcp":
            events = json.loads(json.dumps(events).replace('"note"', '"files_note"'))
        if word == "retry":
            reached.touch()
            self.refuse(429, "slow down", "rate_limit_exceeded", retry_after=RETRY_AFTER_S)
        elif word == "limit":
            self.refuse(400, "This model's maximum context length is 8 tokens", "context_length_exceeded")
        elif word == "flaky" and len(moments.requests[name]) < 3:
            self.refuse(503, "overloaded", "server_error", retry_after=0)
        elif word == "between" and answered:
            reached.touch()
            self.hold()
        elif word == "first":
            until = next(n for n in range(len(events)) if provider.kept(events[:n]) == 2)
            self.begin()
            self.wfile.write(sent(provider, events[:until]))
            reached.touch()
            self.hold()
        else:
            self.begin()
            events = provider.text(f"Done {name}.") if answered or word in ("say", "flaky") else events
            if not provider.named:
                events = [*events, {**events[0], "choices": [], "usage": USAGE}]
            self.wfile.write(sent(provider, events))
            if word != "between":
                reached.touch()

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def hold(self) -> None:
        while not client_is_gone(self.connection):
            pass

    def refuse(self, status: int, message: str, code: str, *, retry_after: int | None = None) -> None:
        body = json.dumps({"type": "error", "error": {"type": code, "code": code, "message": message}}).encode()
        self.send_response(status)
        if retry_after is not None:
            self.send_header("retry-after", str(retry_after))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(moments: Moments) -> Iterator[str]:
    """Serve on a free port of this machine; gives the URL."""
    server: Any = Server(("127.0.0.1", 0), _Handler)
    server.moments = moments
    with served(server) as url:
        yield url
