"""What an agent, or its tool, emits: the pieces of a text, one for each event, and the bound of other data."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.errors import Invalid
from actors.model import JsonObject
from actors.text import storable, storable_json

TEXT_EVENT_MAX_BYTES: Final = 65_536


def pieces(text: object) -> list[str]:
    """Divide a text into pieces, one for each event."""
    if not isinstance(text, str):
        raise Invalid(
            "an agent can emit text only",
            expected="a str",
            got=type(text).__name__,
            remedy="emit(str(value)), or progress(value) for data",
        )
    text = storable(text)
    if len(text) * 4 <= TEXT_EVENT_MAX_BYTES:
        return [text] if text else []
    step = TEXT_EVENT_MAX_BYTES // 4
    return [text[start : start + step] for start in range(0, len(text), step)]


def bounded(data: JsonObject, size_max: int, problem: str, remedy: str) -> tuple[JsonObject, int]:
    """Return data as plain JSON, and its size in bytes. Raises Invalid if it is larger than `size_max`."""
    made: JsonObject = storable_json(data)
    size = len(msgspec.json.encode(made))
    if size > size_max:
        raise Invalid(problem, expected=f"at most {size_max} bytes as JSON", got=f"{size} bytes", remedy=remedy)
    return made, size
