"""The bytes of attachments: read from the daemon piece by piece, since a frame has a bound."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from .errors import Invalid
from .plain import storable
from .rendering import newest_media
from .values import MediaPart

if TYPE_CHECKING:
    from .call import Steps
    from .run import Run

FILES_MAX_BYTES = 33_554_432
"""How many bytes of a thread's files are read for a rendering, unless it is said otherwise."""


def read(run: Run, wanted: object) -> Steps[bytes]:
    """Read the bytes of an attachment of the session."""
    name = wanted.attachment if isinstance(wanted, MediaPart) else wanted
    if not isinstance(name, str):
        raise Invalid(
            "an attachment is named by a part of a message, or by its name",
            expected="a MediaPart, or a text such as its `attachment`",
            got=type(wanted).__name__,
            remedy="turn.attachment(part)",
        )
    found = bytearray()
    while True:
        reply = run.request("attachment", attachment=storable(name), start=len(found))
        yield reply
        piece = reply.result()
        data = base64.b64decode(piece["data"])
        found += data
        if not data or len(found) >= piece["size"]:
            return bytes(found)


def read_files(run: Run, max_bytes: int) -> Steps[dict[str, bytes]]:
    """Read the bytes of the thread's newest files, as far as they have `max_bytes` together."""
    found: dict[str, bytes] = {}
    for part in newest_media(run.thread.messages(), max_bytes):
        found[part.attachment] = yield from read(run, part)
    return found
