"""The pieces of a text that an agent emits, one for each event."""

from __future__ import annotations

from typing import Final

from actors.errors import Invalid
from actors.text import storable

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
