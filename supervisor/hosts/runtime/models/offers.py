"""Offers: the tools that a model may call: those of the turn, and those of the agent's MCP servers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncGenerator
from typing import Any

from ..configured import servers as configured


@contextlib.asynccontextmanager
async def offers(turn: Any) -> AsyncGenerator[Offers, None]:
    """Yield the offers of a turn. The servers go on afterwards, for the next one, unless the turn was ended."""
    if not configured():
        yield Offers(turn, None)
        return
    # Only where there are servers: it needs their SDK.
    from ..adapters.mcp import servers

    async with servers(turn) as mcp:
        yield Offers(turn, mcp)


class Offers:
    """The tools of one turn. `mcp`: what has the tools of the servers; None: there are none."""

    def __init__(self, turn: Any, mcp: Any) -> None:
        self._turn = turn
        self._mcp = mcp
        self._of_servers: dict[str, Any] = {}
        self._broken: dict[str, str] = {}

    async def now(self) -> list[Any]:
        """Return the tools as they are now, for the next request. A server that lacks some is named in the log."""
        own = self._turn.tools
        if self._mcp is None:
            return list(own)
        taken = {tool["name"] for tool in own}
        listed = await self._mcp.tools()
        self._of_servers = {tool.name: tool for tool in listed if tool.name not in taken}
        for name, why in self._mcp.broken.items():
            if self._broken.get(name) != why:
                sys.stderr.write(f"the model lacks tools of the MCP server {name}: {why}\n")
        self._broken = dict(self._mcp.broken)
        return [*own, *self._of_servers.values()]

    def named(self, name: str) -> Any:
        """Return what a call of this name calls: a tool of a server, or the name."""
        return self._of_servers.get(name, name)
