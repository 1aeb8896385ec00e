"""The parts of a message, in their order: of a message with files, and of one that a model answered.

A message of text alone has none: its text is all of it. Nor has one that an agent put together with `turn.emit` and
`turn.call`: its text and its calls are all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct, field


class TextPart(Struct, frozen=True, tag="text"):
    """A piece of text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


class BlockPart(Struct, frozen=True, tag="block"):
    """A block that only its provider understands, as it came: a thinking block, a reasoning item."""

    type: ClassVar[Literal["block"]] = "block"
    provider: str | None
    data: dict[str, Any]


class CallPart(Struct, frozen=True, tag="call"):
    """A call. Its result is the tool message with its `id`; `provider_id` is what the model called it."""

    type: ClassVar[Literal["call"]] = "call"
    id: str
    name: str
    arguments: dict[str, Any]
    provider_id: str | None = None


class MediaPart(Struct, frozen=True, tag="media"):
    """An image or another file. Its bytes are an attachment of the session: `turn.attachment(part)` reads them.

    `attachment` is the attachment's name, which is made of the hash of its bytes; `size` is in bytes; `name` is what
    its sender calls the file.
    """

    type: ClassVar[Literal["media"]] = "media"
    attachment: str
    media_type: str
    size: int
    name: str | None = None


Part: TypeAlias = TextPart | BlockPart | CallPart | MediaPart
GivenPart: TypeAlias = TextPart | MediaPart
"""A part of a message from outside."""


def given_parts(parts: Iterable[Part]) -> tuple[GivenPart, ...]:
    """Return the parts of a message from outside, which are texts and files."""
    return tuple(part for part in parts if isinstance(part, TextPart | MediaPart))


class AnswerInfo(Struct, frozen=True):
    """What is known of the answer of a model.

    `usage` are counts of tokens; `stop` is the provider's reason for the end; `provider_id` is the provider's own id of
    the answer. These three come with its end.
    """

    provider: str | None = None
    model: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    stop: str | None = None
    provider_id: str | None = None
