"""The daemon's own log."""

from __future__ import annotations

import sys
from typing import Any

from .plain import as_json, storable
from .wire import Wire

WHY_MAX_CHARS = 1_000

daemon: list[Wire] = []
"""The wire to the daemon, once it knows this host."""


def log(text: str, level: str = "info", **fields: Any) -> None:
    """Write a line to the daemon's own log. Before the daemon knows this host, it goes to stderr. Any thread.

    Args:
        text: at most 8 KiB are kept.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        fields: shown behind the text.
    """
    for wire in daemon:
        wire.note("log", {"level": level, "text": storable(str(text)), "fields": as_json(fields)})
        return
    print(level, text, fields or "", file=sys.stderr)  # noqa: T201


def server(name: str, state: str, *, why: object = "", tools: int | None = None) -> None:
    """Show people what an MCP server of the configuration does now. `why`: a foreign text, of which some is kept."""
    for wire in daemon:
        wire.note(
            "mcp", {"name": name, "state": state, "tools": tools, "why": storable(str(why or ""))[:WHY_MAX_CHARS]}
        )
