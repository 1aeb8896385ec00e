"""A session's events as Server-Sent Events: ``id`` is the seq, ``event`` the kind, ``data`` the event as JSON.

The subscription is pulled: the next event is taken when the transport has room for it. So a client that reads slowly
costs one page of the log, and one that disconnects costs nothing and stops nothing. A stream counts towards the limit
from its first byte to its last, however it ends.

No gap and no duplicate: first the store is read, then the ring of recent events, both from the client's position
(``Last-Event-ID``, else ``from_seq``). A position beyond the end of the log is refused, since no event would follow it:
it belongs to another log. Ephemeral events have no id, so they do not move the client's position. While the store
cannot be read, the stream says so in a comment, and continues later from the same position.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import msgspec
from litestar.response.base import ASGIResponse

from actors.errors import AheadOfLog, StoreUnavailable
from actors.events import EPHEMERAL
from actors.model import Event
from supervisor.http.service import ApiService, cancelled, gone, soon
from supervisor.publisher import Subscription
from supervisor.session_handle import SessionHandle

MEDIA_TYPE: Final = "text/event-stream"
RETRY_S: Final = 1.0
_OPENING: Final = b"retry: 1000\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_STORE_DOWN: Final = b": the store cannot be read now; the stream goes on when it can\n\n"

_encode: Final = msgspec.json.Encoder().encode


class EventStream(ASGIResponse):
    """The events of a session after a position, until the client disconnects or the server ends.

    Args:
        service: counts the streams.
        session: the session.
        from_seq: the seq of the last event that the client has.
        ephemeral: include `typing` and `progress`.
    """

    def __init__(self, service: ApiService, session: SessionHandle, from_seq: int, *, ephemeral: bool) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._service = service
        self._session = session
        self._from_seq = from_seq
        self._ephemeral = ephemeral

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        """Send the stream. Raises Busy or AheadOfLog, before anything is sent."""
        self._service.enter_stream()
        try:
            with contextlib.suppress(StoreUnavailable):
                # If the store cannot be read yet, the stream finds out later and ends; a reconnect is then refused.
                await soon(self._service.read(self._session.check_position, self._from_seq))
            with self._service.subscribe(self._session, self._from_seq, ephemeral=self._ephemeral) as events:
                writing = asyncio.create_task(_write(events, send))
                leaving = asyncio.create_task(gone(receive))
                try:
                    await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await cancelled(writing, leaving)
        finally:
            self._service.leave_stream()


async def _write(events: Subscription, send: Any) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await _say(send, _OPENING)
    while True:
        try:
            async for event in events:
                await _say(send, framed(event))
        except StoreUnavailable:
            await _say(send, _STORE_DOWN)
            await asyncio.sleep(RETRY_S)
            continue
        except AheadOfLog:
            break
        if events.over:
            break
        await _say(send, _HEARTBEAT)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _say(send: Any, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


def framed(event: Event) -> bytes:
    """Return an event in the wire format."""
    position = b"" if event.kind in EPHEMERAL else b"id: %d\n" % event.seq
    return b"%bevent: %b\ndata: %b\n\n" % (position, event.kind.encode(), _encode(event))
