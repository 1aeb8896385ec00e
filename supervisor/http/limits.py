"""The bounds of the API: policy as data. Times in seconds, sizes in bytes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

JSON_FACTOR: Final = 6
"""How many bytes of JSON one byte of a message may take: a control character takes six."""
BODY_SLACK: Final = 65_536
"""Bytes of a body beside the content of its message."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a client may take.

    Args:
        clients_max: connections. Beyond it the one that has been idle the longest is closed for the new one, so that
            idle connections never keep a Stop out.
        streams_max: event streams; fewer than `clients_max`, so that they never do either.
        waits_max: requests that wait for a receipt; one more is answered at once, without it.
        body_max: the body of a request.
        header_max: the request line and the headers.
        idle_s: a connection without a request.
        request_s: from the first byte of a request to its last.
        stalled_s: a response of which the client takes nothing, or behind whose request it sends without an end.
        wait_max_s: the longest that a request may wait for a receipt.
        ask_s: how long a session may take to answer.
        heartbeat_s: an event stream is never silent for longer.
        page_max: entries in one answer.
        page_bytes: after so much an answer takes no further entry.
        close_s: at the end, how long requests that are being answered may take.
    """

    clients_max: int = 512
    streams_max: int = 256
    waits_max: int = 128
    body_max: int = 8_388_608
    header_max: int = 16_384
    idle_s: float = 120.0
    request_s: float = 30.0
    stalled_s: float = 60.0
    wait_max_s: float = 600.0
    ask_s: float = 30.0
    heartbeat_s: float = 15.0
    page_max: int = 1_000
    page_bytes: int = 4_194_304
    close_s: float = 5.0

    @classmethod
    def for_messages(cls, message_max_bytes: int) -> Limits:
        """Return bounds under which each message that a session takes fits into a body, however it is written."""
        return cls(body_max=max(cls().body_max, JSON_FACTOR * message_max_bytes + BODY_SLACK))
