"""Text that can be stored: what is accepted has a UTF-8 form, so that one row never takes a batch with it."""

from __future__ import annotations

import math

import msgspec

from actors.model import Json


def storable(text: str) -> str:
    """Return `text` with lone surrogates replaced by U+FFFD; the same object when there are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable_json(value: Json) -> Json:
    """Return `value` as JSON can hold it: texts made storable, what is not JSON shown as text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return _as_json(value, depth=0)


def _as_json(value: Json, depth: int) -> Json:
    if depth > 50:
        return "(nested too deeply)"
    if value is None or isinstance(value, bool | int):
        # JSON readers elsewhere hold 64 bits; a larger integer is shown as text.
        return value if value is None or -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _as_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(item, depth + 1) for item in value]
    return storable(repr(value))


def cut(text: str, max_bytes: int) -> str:
    """Return `text`, or its head with a marker that says how much was left out."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    head = data[:max_bytes].decode(errors="ignore")
    return f"{head}\n[cut: {len(data) - max_bytes} more bytes]"


def tail(text: str, max_chars: int) -> str:
    """Return the last `max_chars` characters of `text`."""
    return text if len(text) <= max_chars else text[-max_chars:]
