"""Attachments: bytes that are kept with a session, each once, under a name that is made of their hash.

A `File` is what a sender gives: bytes, and what they are. It is kept as an `Attachment`, which the store has, and shown
as a `MediaPart`, which has no bytes. An event never has bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from actors.errors import Invalid, TooLarge
from actors.parts import MediaPart
from actors.text import shown, storable

FILE_NAME_MAX_CHARS: Final = 255
MEDIA_TYPE_MAX_CHARS: Final = 100
PARTS_MAX: Final = 100
"""Parts of one message, or of one result."""
MADE_MAX: Final = 20
"""Files of one result of a tool."""
MADE_MAX_BYTES: Final = 4_194_304
"""Bytes of the files of one result together, and of one file of an answer: so they fit into a frame of a host."""
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")


class Attachment(Struct, frozen=True):
    """Bytes that are kept with a session. The name is made of their hash: `attachment_name`."""

    name: str
    data: bytes


def attachment_name(data: bytes) -> str:
    """Return the name of an attachment: ``att_`` and the BLAKE2b hash of its bytes, 16 bytes in hexadecimal digits."""
    import hashlib

    return f"att_{hashlib.blake2b(data, digest_size=16).hexdigest()}"


class File(Struct, frozen=True):
    """An image or another file, to be sent with a message or returned by a tool: ``File(data, "image/png", "a.png")``.

    Args:
        data: its bytes.
        media_type: what they are, without parameters: ``image/png``, ``application/pdf``.
        name: what people and models call it; at most 255 characters.

    Raises:
        Invalid: a field is of another kind.
    """

    data: bytes
    media_type: str
    name: str | None = None

    def __post_init__(self) -> None:
        data: object = self.data
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _invalid("data", "bytes", data, "read the file: Path(…).read_bytes()")
        force_setattr(self, "data", bytes(data))
        force_setattr(self, "media_type", checked_media_type(self.media_type))
        if self.name is not None:
            force_setattr(self, "name", checked_file_name(self.name))

    def kept(self) -> tuple[Attachment, MediaPart]:
        """Return the bytes as they are kept, and the part that stands for them."""
        name = attachment_name(self.data)
        return Attachment(name, self.data), MediaPart(name, self.media_type, len(self.data), self.name)


def checked_media_type(value: object) -> str:
    """Return a media type in small letters. Raises Invalid if it is none."""
    made = storable(value).lower() if isinstance(value, str) else ""
    if len(made) > MEDIA_TYPE_MAX_CHARS or _MEDIA_TYPE.fullmatch(made) is None:
        raise _invalid("media_type", "a type and a subtype, such as image/png", value, "leave parameters out")
    return made


def checked_file_name(value: object) -> str:
    """Return the name of a file as a plain text. Raises Invalid if it is none, or is too long."""
    if not isinstance(value, str) or not value.strip() or len(value) > FILE_NAME_MAX_CHARS:
        raise _invalid("name", f"a text of at most {FILE_NAME_MAX_CHARS} characters", value, "leave the name out")
    return storable(value)


def without_repeats(attachments: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Return each of the attachments once, in order."""
    return tuple({one.name: one for one in attachments}.values())


def check_number(parts: int) -> None:
    """Raise Invalid if a message or a result has more than `PARTS_MAX` parts."""
    if parts > PARTS_MAX:
        raise Invalid(
            "there are too many parts",
            expected=f"at most {PARTS_MAX}",
            got=f"{parts}",
            remedy="put texts together; send further files with another message",
        )


def made_files(files: Collection[File]) -> tuple[tuple[Attachment, ...], tuple[MediaPart, ...]]:
    """Return files that a tool or an agent made, as they are kept, and the parts that stand for them.

    Raises:
        TooLarge: they are more than `MADE_MAX`, or larger than `MADE_MAX_BYTES` together.
    """
    size = sum(len(file.data) for file in files)
    if len(files) > MADE_MAX or size > MADE_MAX_BYTES:
        raise TooLarge(
            "these files are too large, or too many",
            expected=f"at most {MADE_MAX} files, of {MADE_MAX_BYTES} bytes together",
            got=f"{len(files)} files of {size} bytes",
            remedy="write them to a folder, and say their names",
        )
    kept = [file.kept() for file in files]
    return without_repeats(attachment for attachment, _ in kept), tuple(part for _, part in kept)


def _invalid(field: str, expected: str, got: object, remedy: str) -> Invalid:
    return Invalid(f"File.{field} is not valid", expected=expected, got=shown(got), remedy=remedy)
