"""The follower: events of a stream, across breaks of the connection."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, cast

import httpx
import msgspec

from actors.model import Event
from supervisor.console.client.api import Api
from supervisor.console.client.follower import Follower

ODD = "a\u2028b\u0085c\x0bd\re\nf"
"""What Python takes for the end of a line, and the protocol does not, as it is within JSON."""


class Pieces(httpx.SyncByteStream):
    """The bytes of an answer, a few at a time: characters and events are cut anywhere."""

    def __init__(self, whole: bytes) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._whole), 3):
            yield self._whole[start : start + 3]


class NetworkStream:
    """Stands for the connection, which the follower asks for its socket."""

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"


def event(seq: int, text: str = ODD) -> bytes:
    whole = Event(seq=seq, session="s1", generation=1, run_id="run_1", kind="text", at=1.0, data={"text": text})
    return b"id: %d\nevent: text\ndata: %s\n\n" % (seq, msgspec.json.encode(whole))


def follower(answers: list[bytes], asked: list[str], said: list[str]) -> Follower:
    """A follower of a daemon that gives these answers, one a connection, and notes from where it was asked."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Last-Event-ID"])
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        stream = Pieces(answers.pop(0))
        return httpx.Response(200, headers=headers, stream=stream, extensions={"network_stream": NetworkStream()})

    client = httpx.Client(transport=httpx.MockTransport(handle), base_url="http://daemon")
    api: Any = types.SimpleNamespace(client=client, place=None)
    return Follower(cast("Api", api), "s1", on_break=said.append)


def test_an_event_is_whole_wherever_the_stream_is_cut_and_a_sign_of_life_is_none() -> None:
    answer = b"retry: 1000\n\n" + event(1) + b": still here\n\n" + event(2) + b": still here\n\n" + event(3)
    events = follower([answer], [], [])
    found = [next(events) for _ in range(3)]
    assert [one.seq for one in found] == [1, 2, 3]
    assert {one.data["text"] for one in found} == {ODD}


def test_after_a_break_it_asks_for_what_comes_after_the_last_whole_event() -> None:
    asked: list[str] = []
    said: list[str] = []
    cut = event(1) + event(2)[:-1]
    events = follower([cut, b": still here\n\n", event(2) + event(3)], asked, said)
    assert [next(events).seq for _ in range(3)] == [1, 2, 3]
    assert asked == ["0", "1", "1"]
    assert said[0] == "the connection is lost; trying again…"
    assert "connected again" in said
