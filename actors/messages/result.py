"""The result of a tool call."""

from __future__ import annotations

from msgspec import Struct

from actors.model import Json, Outcome, Provenance


class ToolResult(Struct, frozen=True):
    """The result of a call for the agent and the next model call; `outcome` is the truth (law L6).

    `provenance` says who ended the call early, for example its deadline (source ``tool.deadline``).
    """

    outcome: Outcome
    content: str
    is_error: bool = False
    data: Json = None
    provenance: Provenance | None = None
