"""The parts of an assistant's message that a model answered, in the order in which the model said them.

A message that an agent put together with `turn.emit` and `turn.call` has none: its text and its calls are all of it.
"""

from __future__ import annotations

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


Part: TypeAlias = TextPart | BlockPart | CallPart


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
