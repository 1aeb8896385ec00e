"""The result of a tool call."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from actors.attachments import Attachment, File
from actors.model import Json, Outcome, Provenance
from actors.parts import MediaPart


class ToolResult(Struct, frozen=True):
    """The result of a call for the agent and the next model call; `outcome` is the truth (law L6).

    `provenance` says who ended the call early, for example its deadline (source ``tool.deadline``). A tool gives its
    images and other files as `parts`: ``ToolResult(Outcome.FINISHED, "drawn", parts=[File(data, "image/png")])``.
    Whoever called it gets a `MediaPart` for each, and their bytes as `attachments`.
    """

    outcome: Outcome
    content: str
    is_error: bool = False
    data: Json = None
    provenance: Provenance | None = None
    parts: Sequence[MediaPart | File] = ()
    attachments: tuple[Attachment, ...] = ()

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The files, as the thread has them."""
        return tuple(part for part in self.parts if isinstance(part, MediaPart))
