"""The bounds of the API: policy as data. Times in seconds, sizes in bytes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

JSON_FACTOR: Final = 6
"""How many bytes of JSON one byte of a message may take: a control character takes six."""
BODY_SLACK: Final = 65_536
"""Bytes of a body beside the content of its message and its attachments: their names and types too."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits on clients.

    Args:
        clients_max: connections. At the limit the one that has been idle the longest is closed for a new one, so that
            idle connections never keep a Stop out.
        streams_max: event streams; fewer than `clients_max`, so that they never keep a Stop out either.
        waits_max: requests that wait for a receipt; one more is answered at once, without the receipt.
        body_max: the body of a request.
        header_max: the request line and the headers.
        idle_s: time without a request.
        request_s: time from the first byte of a request to its last.
        stalled_s: time for which a client reads nothing of a response, or sends on behind its request.
        wait_max_s: time that a request may wait for a receipt.
        ask_s: time that a session may take to answer.
        heartbeat_s: the longest silence of an event stream.
        page_max: entries in one answer.
        page_bytes: once an answer is this large it gets no further entry.
        close_s: time that requests may take to finish at the end.
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
    def for_messages(cls, message_max_bytes: int, attachments_max_bytes: int) -> Limits:
        """Return limits under which every message that a session accepts fits into a body, however it is encoded."""
        encoded = 4 * -(-attachments_max_bytes // 3)
        return cls(body_max=max(cls().body_max, JSON_FACTOR * message_max_bytes + encoded + BODY_SLACK))
