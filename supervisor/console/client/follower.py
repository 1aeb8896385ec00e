"""Follower: the events of a session as they come, over a daemon's stream, across breaks of the connection.

After a break it continues after the last event that it gave, so there is no gap and no duplicate. A daemon that is
restarted within `GIVE_UP_S` is found again.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import httpx
from httpx_sse import EventSource

from actors.decoding import decoder
from actors.events import EPHEMERAL
from actors.model import Event
from supervisor.console.client.api import Api, gone, no_daemon, refused, segment
from supervisor.console.client.endpoint import CONNECT_S

SILENCE_S: Final = 45.0
"""A stream is never silent for a third of it; one that is has lost its other end."""
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0
GIVE_UP_S: Final = 60.0
PASSING: Final = frozenset({429, 502, 503, 504})
"""Answers of a daemon that starts, ends or is busy."""


class Follower:
    """An endless iterator of a session's events after `from_seq`. One thread iterates; any may call `close`.

    Args:
        api: the daemon.
        session: the session's name.
        from_seq: the `seq` of the last event to leave out.
        on_break: called with a text when the connection is lost, and when it is back.
        give_up_s: seconds without a connection after which it ends.

    Raises (from `next`): NoDaemon after `give_up_s`; or the daemon's refusal.
    """

    def __init__(
        self,
        api: Api,
        session: str,
        from_seq: int = 0,
        *,
        on_break: Callable[[str], object] = lambda _: None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._api = api
        self._url = f"/v1/sessions/{segment(session)}/events"
        self._position = from_seq
        self._on_break = on_break
        self._give_up_s = give_up_s
        self._closed = threading.Event()
        self._stream: socket.socket | None = None
        self._events = self._follow()

    def __iter__(self) -> Follower:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """End the iteration, also while it waits."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                # It has ended by itself.
                return

    def _follow(self) -> Iterator[Event]:
        lost_at: float | None = None
        retry_s = RETRY_FIRST_S
        while not self._closed.is_set():
            error: Exception | None = None
            try:
                for event in self._connection():
                    if lost_at is not None:
                        lost_at, retry_s = None, RETRY_FIRST_S
                        self._on_break("connected again")
                    if event is not None:
                        yield event
            except httpx.TransportError as failure:
                error = failure
            if self._closed.is_set():
                return
            now = time.monotonic()
            if lost_at is None:
                lost_at = now
                self._on_break("the connection is lost; trying again…")
            elif now - lost_at > self._give_up_s:
                endpoint = self._api.endpoint
                raise gone(endpoint, error) if error else no_daemon(endpoint, "a stream that ends at once")
            self._closed.wait(retry_s)
            retry_s = min(2 * retry_s, RETRY_LAST_S)

    def _connection(self) -> Iterator[Event | None]:
        """Yield the events of one connection, from the position on; None when it is established."""
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        headers = {"Last-Event-ID": str(self._position)}
        with self._api.client.stream("GET", self._url, headers=headers, timeout=timeout) as answer:
            if answer.status_code in PASSING:
                return
            if answer.status_code >= 400:
                raise refused(answer.read(), answer.status_code)
            self._stream = answer.extensions["network_stream"].get_extra_info("socket")
            try:
                yield None
                for message in EventSource(answer).iter_sse():
                    if not message.data:
                        # A sign of life.
                        continue
                    event = decoder(Event)(message.data)
                    if event.kind not in EPHEMERAL:
                        self._position = event.seq
                    yield event
            finally:
                self._stream = None
