"""MCP tables: the MCP servers of the settings, ``[mcp.NAME]``, as the values that a library configures.

Each is a table of the keys of `supervisor.McpServer`. All mistakes are found at once: each key is tried alone, and then
all of a table together.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Final

from actors.errors import CountermandError, Invalid
from supervisor.mcp_server import McpServer

MCP_KEYS: Final = tuple(field.name for field in dataclasses.fields(McpServer) if field.name != "name")
"""The keys of a table."""
_OF_URL: Final = ("url", "headers")


class McpTables:
    """The MCP servers of the settings, and the mistakes in them.

    Args:
        tables: the tables as written, by name.
        source: the source of the tables, for errors.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, Any]], source: str) -> None:
        self.servers: dict[str, McpServer] = {}
        self.problems: list[CountermandError] = []
        self._source = source
        for name, table in tables.items():
            server = self._server(name, table)
            if server is not None:
                self.servers[name] = server

    def _server(self, name: str, table: Mapping[str, Any]) -> McpServer | None:
        known = len(self.problems)
        if self._try(name, {"command": "x"}) is None:
            return None
        for key, value in table.items():
            if key not in MCP_KEYS:
                self._unknown(name, key)
            elif key not in ("command", "url"):
                self._try(name, {"url": "http://x"} if key in _OF_URL else {"command": "x"}, {key: value})
        return self._try(name, table) if len(self.problems) == known else None

    def _try(self, name: str, *tables: Mapping[str, Any]) -> McpServer | None:
        values = {key: value for table in tables for key, value in table.items()}
        try:
            return McpServer(name=name, **values)
        except CountermandError as error:
            text = f"{self._source}: {error.message}"
            self.problems.append(Invalid(text, expected=error.expected, got=error.got, remedy=error.remedy))
            return None

    def _unknown(self, name: str, key: str) -> None:
        near = difflib.get_close_matches(key, MCP_KEYS, n=1)
        self.problems.append(
            Invalid(
                f"{self._source}: there is no configuration key 'mcp.{name}.{key}'",
                expected=" | ".join(MCP_KEYS),
                got=key,
                remedy=f"did you mean 'mcp.{name}.{near[0]}'?" if near else "remove it",
            )
        )
