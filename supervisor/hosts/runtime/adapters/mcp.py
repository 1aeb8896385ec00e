"""MCP: ``async with servers(turn, {…}) as mcp`` starts servers for a run, and offers their tools as tools of the run.

Theory of operation. The client is that of the official SDK, and runs where its agent runs. It starts tasks and threads
by itself, and a process for each server on stdio: in a host all of that is contained with the host, and a fault of a
server's costs the run and not the daemon. So it does not run in the daemon for all sessions. A server on stdio is
started by the run's launcher, and not by the SDK: so it has a process tree of its own, with whatever it starts, a row
in the receipt, and an end with the run. A server by URL is somebody else's process; only the requests to it end.

A scope of the SDK has to be left by the task that has entered it. So a task of its own keeps each connection, and
another one does when a server has died. Calls run in the tasks of their calls. If one is cancelled, by a Stop, a time
limit, or because nobody awaits it any more, the SDK sends the protocol's cancel, and waits for no answer. What a server
does then is its own: after a Stop it has the grace of the run, then its tree is killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CONNECTION_CLOSED

from countermand import File, Invalid, Tool

STARTS_MAX = 4
"""How often a server is started in one run."""
START_S = 30.0
"""How long a server may take to start, and to list its tools."""
END_S = 10.0
"""How long the end of a block waits for the SDK to close its clients."""
TOOLS_MAX = 500
"""How many tools of a server are looked at."""
PAGES_MAX = 100
"""How many pages of its list are."""


@dataclass(frozen=True)
class Server:
    """A server: a program on stdio, or a URL (streamable HTTP).

    Args:
        command: the program, with its arguments in `args`, its working directory, and variables for it alone.
        url: where it is, instead.
        allow: the tools that are offered, by the server's names; None: all.
        deny: those that are not.
        ask: those that need a person's approval, each time.
    """

    command: str | None = None
    args: Collection[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    allow: Collection[str] | None = None
    deny: Collection[str] = ()
    ask: Collection[str] = ()

    def __post_init__(self) -> None:
        """Refuse a server that is neither or both."""
        if (self.command is None) == (self.url is None):
            raise Invalid(
                "it is not clear what an MCP server is",
                expected="a command, or a url",
                got="both" if self.url else "neither",
                remedy="name one of the two",
            )


class ToolFailed(Exception):
    """A server says that a call has failed, or has ended."""


@contextlib.asynccontextmanager
async def servers(turn: Any, named: Mapping[str, Server]) -> Any:
    """Start servers, each when it is first needed; they end with the block. Yields `Servers`."""
    mcp = Servers(turn, named)
    try:
        yield mcp
    finally:
        await mcp.close()


class Servers:
    """The servers of a run, in the task of its agent."""

    def __init__(self, turn: Any, named: Mapping[str, Server]) -> None:
        self._connections = {name: _Connection(turn, name, server) for name, server in named.items()}
        self.broken: dict[str, str] = {}
        """The servers that could not list their tools the last time, each with the reason."""

    async def tools(self) -> list[Tool]:
        """Ask the servers for their tools, as they are now. Each is named ``server_tool``; one that is broken has none.

        Pass them to a model, and to `turn.call`. Call it again when they may have changed.
        """
        listed = await asyncio.gather(*(self._listed(one) for one in self._connections.values()))
        return [tool for some in listed for tool in some]

    async def _listed(self, connection: _Connection) -> list[Tool]:
        try:
            found = await asyncio.wait_for(connection.tools(), START_S)
        except (ToolFailed, asyncio.TimeoutError) as error:
            self.broken[connection.name] = str(error) or f"it took more than {START_S:g} s"
            return []
        self.broken.pop(connection.name, None)
        return [connection.tool(one) for one in found]

    async def close(self) -> None:
        """End the servers. After a Stop they are ended with the run's processes meanwhile."""
        await asyncio.gather(*(one.close() for one in self._connections.values()), return_exceptions=True)


class _Connection:
    """A server, and the task that keeps its client."""

    def __init__(self, turn: Any, name: str, server: Server) -> None:
        self.name = name
        self._turn = turn
        self._server = server
        # Those of servers that were started anew may still be ending.
        self._keepers: set[asyncio.Task[None]] = set()
        self._client: asyncio.Future[Any] | None = None
        self._over = asyncio.Event()
        self._starts = 0

    async def client(self) -> Any:
        """Return the client of the server, which is started if it does not run."""
        if self._client is None:
            if self._starts == STARTS_MAX:
                raise ToolFailed(f"the MCP server {self.name} has ended {STARTS_MAX} times in this run")
            self._starts += 1
            self._client = asyncio.get_running_loop().create_future()
            self._over = asyncio.Event()
            keeper = asyncio.create_task(self._keep(self._client, self._over), name=f"MCP server {self.name}")
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)
        try:
            return await asyncio.shield(self._client)
        except Exception as error:  # whatever it is, the server is not there
            self._client = None
            raise ToolFailed(f"the MCP server {self.name} does not start: {error}") from error

    async def _keep(self, ready: asyncio.Future[Any], over: asyncio.Event) -> None:
        """Hold a client open until it is over."""
        try:
            async with Client(self._where()) as client:
                ready.set_result(client)
                await over.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, the next call starts the server anew
            if not ready.done():
                ready.set_exception(error)
                # Nobody may be waiting for it.
                ready.exception()

    def _where(self) -> Any:
        server = self._server
        if server.url is not None:
            return server.url
        command = self._turn.spawn.launcher(server.command)
        return StdioServerParameters(command=command, args=[*server.args], env=dict(server.env or {}), cwd=server.cwd)

    async def tools(self) -> list[Any]:
        """Return the tools that the server has now, and that may be offered."""
        found: list[Any] = []
        cursor = None
        for _ in range(PAGES_MAX):
            page = await self._asked("list_tools", cursor=cursor, cache_mode="refresh")
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= TOOLS_MAX:
                break
        allow, deny = self._server.allow, self._server.deny
        return [one for one in found[:TOOLS_MAX] if one.name not in deny and (allow is None or one.name in allow)]

    def tool(self, found: Any) -> Tool:
        """Return a tool of the server as one of the run."""

        async def call(**arguments: Any) -> Any:
            return _result(await self._asked("call_tool", found.name, arguments))

        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.name}_{found.name}")[:64]
        approve = found.name in self._server.ask
        described = found.description or ""
        return Tool(call, name=name, description=described, schema=found.input_schema, approve=approve)

    async def _asked(self, method: str, *args: Any, **options: Any) -> Any:
        client = await self.client()
        try:
            return await getattr(client, method)(*args, **options)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolFailed(f"the MCP server {self.name} refuses that: {error}") from error
            if self._client is not None and self._client.done() and self._client.result() is client:
                # The next one starts it anew. This call may have had effects, so it is not repeated.
                self._client = None
                self._over.set()
            raise ToolFailed(f"the MCP server {self.name} has ended, and the call may have had effects") from error

    async def close(self) -> None:
        """End the server. One that the SDK does not end in END_S is left to the end of the run's processes."""
        self._over.set()
        if self._keepers:
            _, slow = await asyncio.wait(self._keepers, timeout=END_S)
            for keeper in slow:
                keeper.cancel()


def _result(answer: Any) -> Any:
    """Return what a tool has answered: texts and files. Raises ToolFailed if it says that it has failed."""
    parts = [_part(one) for one in answer.content]
    if answer.is_error:
        raise ToolFailed("\n".join(one for one in parts if isinstance(one, str)) or "it says no more")
    if not parts:
        return answer.structured_content
    return parts if any(isinstance(one, File) for one in parts) else "\n".join(parts)


def _part(content: Any) -> Any:
    if content.type == "text":
        return content.text
    if content.type in ("image", "audio"):
        return File(base64.b64decode(content.data), content.mime_type)
    return content.model_dump_json(by_alias=True, exclude_none=True)
