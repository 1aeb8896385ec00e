"""Files of all kinds for tests of renderings: some that providers take, and some that they do not."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from actors.parts import MediaPart

PNG: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
"""An image of one pixel."""
PDF: Final = b"%PDF-1.4\n%%EOF\n"

_KINDS: Final[dict[str, tuple[str, str | None, bytes | None]]] = {
    "att_png": ("image/png", "cat.png", PNG),
    "att_nameless": ("image/jpeg", None, b"\xff\xd8\xff"),
    "att_pdf": ("application/pdf", "two\nlines.pdf", PDF),
    "att_pdf2": ("application/pdf", None, PDF),
    "att_text": ("text/plain", "notes.txt", b"line\n"),
    "att_json": ("application/json", None, b"{}"),
    "att_blank": ("text/plain", "blank.txt", b" \n"),
    "att_latin": ("text/plain", "latin.txt", b"caf\xe9"),
    "att_empty": ("image/png", "empty.png", b""),
    "att_heic": ("image/heic", "photo.heic", b"heic"),
    "att_zip": ("application/zip", "all.zip", b"PK"),
    "att_gone": ("image/png", "gone.png", None),
}
FILES: Final = {name: data for name, (_, _, data) in _KINDS.items() if data is not None}
"""What `turn.files()` returns of them: one is not among it."""
MEDIA: Final = {
    name: MediaPart(name, media_type, len(data or b"gone"), title) for name, (media_type, title, data) in _KINDS.items()
}
TAKEN: Final = frozenset({"att_png", "att_nameless", "att_pdf", "att_pdf2", "att_text", "att_json"})
"""Those that all providers take."""


def plain(part: MediaPart) -> dict[str, Any]:
    """Return a part as it is in an event."""
    named = {} if part.name is None else {"name": part.name}
    return {
        "type": "media",
        "attachment": part.attachment,
        "media_type": part.media_type,
        "size": part.size,
        **named,
    }


FILE: Final = st.sampled_from(sorted(MEDIA)).map(lambda name: plain(MEDIA[name]))
FILE_LISTS: Final = st.lists(FILE, max_size=2)
GIVEN_PARTS: Final = st.lists(
    FILE | st.sampled_from(["", " ", "look", "é\n\n"]).map(lambda text: {"type": "text", "text": text}), max_size=4
)
