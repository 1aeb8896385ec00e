"""The values that an agent gets: frozen, with the fields of those in the daemon's process."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Provenance:
    """Who ended something, and why. `initiated_at`: seconds since the epoch, UTC. `cause`: the earlier provenance."""

    source: str
    reason: str
    mode: str = "graceful"
    requested_by: str | None = None
    initiated_at: float = 0.0
    cause: Provenance | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Provenance:
        """Make one from JSON."""
        own = made(cls, given)
        return dataclasses.replace(own, cause=cls.of(given["cause"])) if given.get("cause") else own


@dataclass(frozen=True)
class Address:
    """The run that this turn belongs to. `generation` is the fencing token; `fence` is how frames carry it."""

    session: str
    generation: int
    run: str
    fence: str


@dataclass(frozen=True)
class ToolCall:
    """A call that an agent asked for, in the terms of a model provider."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class TextPart:
    """A piece of the text of a model's answer."""

    type: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class BlockPart:
    """A block of a model's answer that only its provider understands, as it came."""

    type: ClassVar[str] = "block"
    provider: str | None
    data: dict[str, Any]


@dataclass(frozen=True)
class CallPart:
    """A call of a model's answer. Its result is the tool message with its `id`; `provider_id` is the model's own."""

    type: ClassVar[str] = "call"
    id: str
    name: str
    arguments: dict[str, Any]
    provider_id: str | None = None


@dataclass(frozen=True)
class MediaPart:
    """An image or another file. Its bytes are an attachment of the session: `turn.attachment(part)` reads them.

    `attachment` is the attachment's name; `size` is in bytes; `name` is what its sender calls the file.
    """

    type: ClassVar[str] = "media"
    attachment: str
    media_type: str
    size: int
    name: str | None = None


Part = Union[TextPart, BlockPart, CallPart, MediaPart]
PARTS: dict[str, Callable[..., Part]] = {"text": TextPart, "block": BlockPart, "call": CallPart, "media": MediaPart}


@dataclass(frozen=True)
class AnswerInfo:
    """What is known of the answer of a model; `usage`, `stop` and `provider_id` come with its end."""

    provider: str | None = None
    model: str | None = None
    usage: dict[str, int] = dataclasses.field(default_factory=dict)
    stop: str | None = None
    provider_id: str | None = None


@dataclass(frozen=True)
class Message:
    """One message of a thread. `role`: ``user``, ``assistant``, ``tool`` or ``note``. Times: seconds, epoch, UTC.

    A message with files has `parts`, and `content` repeats the texts among these. One that is the answer of a model has
    `answer`, and `parts`; `content` and `tool_calls` repeat the texts and calls among these.
    """

    id: str
    role: str
    content: str
    generation: int | None = None
    run_id: str | None = None
    status: str = "complete"
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    outcome: str | None = None
    is_error: bool = False
    origin: str | None = None
    sent_at: float | None = None
    at: float | None = None
    attachments: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    answer: AnswerInfo | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Message:
        """Make one from JSON, of which it shares nothing that can be changed."""
        if given.get("tool_calls") or given.get("parts") or given.get("answer"):
            given = json.loads(json.dumps(given))
        calls = tuple(made(ToolCall, call) for call in given.get("tool_calls") or ())
        parts = tuple(made(PARTS[part["type"]], part) for part in given.get("parts") or () if part["type"] in PARTS)
        answer = made(AnswerInfo, given["answer"]) if given.get("answer") else None
        attachments = tuple(given.get("attachments") or ())
        more = {"tool_calls": calls, "attachments": attachments, "parts": parts, "answer": answer}
        return made(cls, {**given, **more})


@dataclass(frozen=True)
class File:
    """An image or another file that a tool returns: ``File(data, "image/png", "a.png")``."""

    data: bytes
    media_type: str
    name: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """The result of a call. `outcome` is the truth: ``finished``, ``interrupted`` or ``not_started``.

    A tool gives its files as `parts`, each a `File`; whoever called it gets a `MediaPart` for each.
    """

    outcome: str
    content: str
    is_error: bool = False
    data: Any = None
    provenance: Provenance | None = None
    parts: Sequence[MediaPart | File] = ()


@dataclass(frozen=True)
class Delegated:
    """What came of `turn.delegate`.

    session, run_id: of the other agent's run; empty: it was not asked for.
    status: of its run, which may still be ending; None: it did not begin, or goes on.
    outcome: of the call. ``finished``: the run came to an end of its own, or was refused. ``interrupted``: it was
        ended. ``not_started``: the call was refused.
    content: its text. What it failed with, why it was refused, or who ended it.
    is_error: True of all but a completed run. result: what its agent returned.
    """

    session: str
    run_id: str
    status: str | None
    outcome: str
    content: str
    is_error: bool = False
    result: Any = None


def made(kind: Callable[..., T], given: Mapping[str, Any]) -> T:
    """Make a dataclass from JSON; unknown fields are ignored."""
    names = _names(kind)
    return kind(**{name: value for name, value in given.items() if name in names})


@functools.cache
def _names(kind: Callable[..., Any]) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(typing.cast("Any", kind)))
