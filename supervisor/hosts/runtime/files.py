"""Files that the agent's model, or a tool, made: checked, and as they are in frames."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any

from .errors import Invalid
from .values import File

MADE_MAX = 20
MADE_MAX_BYTES = 4_194_304
NAME_MAX_CHARS = 255
TYPE_MAX_CHARS = 100
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")


def is_file(value: object) -> bool:
    """Return True if it is a File: ours, or that of the daemon's process."""
    return isinstance(value, File) or type(value).__name__ == File.__name__


def checked(parts: Iterable[Any]) -> list[File]:
    """Return files as they are sent. Raises Invalid if one is not valid, or if they are too many or too large."""
    files = [_checked(one) for one in parts]
    size = sum(len(file.data) for file in files)
    if len(files) > MADE_MAX or size > MADE_MAX_BYTES:
        raise Invalid(
            "these files are too large, or too many",
            expected=f"at most {MADE_MAX} files, of {MADE_MAX_BYTES} bytes together",
            got=f"{len(files)} files of {size} bytes",
            remedy="write them to a folder, and say their names",
        )
    return files


def as_frame(file: Any) -> dict[str, Any]:
    """Return a file as it is in a frame."""
    data = base64.b64encode(file.data).decode()
    return {"data": data, "media_type": file.media_type, "name": file.name}


def _checked(one: Any) -> File:
    data, media_type, name = (getattr(one, field, None) for field in ("data", "media_type", "name"))
    kind = media_type.lower() if isinstance(media_type, str) else ""
    named = name is None or (isinstance(name, str) and bool(name.strip()) and len(name) <= NAME_MAX_CHARS)
    typed = len(kind) <= TYPE_MAX_CHARS and _MEDIA_TYPE.fullmatch(kind) is not None
    if not isinstance(data, (bytes, bytearray, memoryview)) or not named or not typed:
        raise Invalid(
            "this is not a file",
            expected="a File with bytes, a media type such as image/png, and a name or None",
            got=type(one).__name__,
            remedy="File(data, 'image/png', 'a.png')",
        )
    return File(bytes(data), kind, None if name is None else name.encode("utf-8", "replace").decode())
