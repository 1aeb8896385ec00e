"""Request ids: their content, their maximal length, and the prefixes that are reserved for the supervisor's own ids."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_MAX_CHARS = 128
OWN_PREFIXES = ("run_", "rcpt_", "call_", "proc_", "inc_")
"""Prefixes of the supervisor's own ids. A receipt may be found by its Stop's id, so a request id may not have one."""


def new_request_id() -> str:
    """Return a new request id: 48 bits of milliseconds, 10 of microseconds, then 70 random bits, in base 32.

    By its time a session distinguishes an id older than its memory from a new one (law L10), and a message that was
    sent before a Stop from one that was sent after it (law L4).
    """
    milliseconds, microseconds = divmod(time.time_ns() // 1_000, 1_000)
    random = int.from_bytes(os.urandom(9), "big") >> 2
    number = milliseconds << 80 | microseconds << 70 | random
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return "req_" + "".join(digits)


def request_time(request_id: str) -> float | None:
    """Return the time in a request id, in seconds since the epoch; None for an id of another format."""
    digits = request_id.removeprefix("req_")
    if len(digits) != 26 or digits == request_id or any(digit not in _ALPHABET for digit in digits):
        return None
    number = 0
    for digit in digits:
        number = number << 5 | _ALPHABET.index(digit)
    # In an id of another format these bits may be random; the result stays within its millisecond.
    microseconds = min(number >> 70 & 1023, 999)
    return ((number >> 80) * 1_000 + microseconds) / 1_000_000
