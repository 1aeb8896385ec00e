"""MCP: ``async with servers(turn) as mcp`` has the servers that the agent is configured with, as tools of its run.

Theory of operation. The client is that of the official SDK, and runs where its agent runs. It starts tasks and threads
by itself, and a process for each server on stdio: in a host all of that is contained with the host, and a fault of a
server's costs the run and not the daemon. So it does not run in the daemon for all sessions.

Servers of the configuration (`COUNTERMAND_MCP`) are kept in this process: they go on when a run has ended by itself,
and the next run of a host that its session keeps finds them as they are. Each is a process below the host, or a URL.
Whatever ends a run or its host (a Stop, a message that takes over, a time limit, the end of the daemon) ends them with
it: they are asked to end first, and are in the tree of the host, which is killed after the grace.

``servers(turn, {…})`` has servers for this run alone. One on stdio is started by the run's launcher, and not by the
SDK: so it has a process tree of its own, with whatever it starts, a row in the receipt, and an end with the run. A
server by URL is somebody else's process; only the requests to it end.

A scope of the SDK has to be left by the task that has entered it. So a task of its own keeps each connection, and
another one does when a server has died. Calls run in the tasks of their calls. If one is cancelled, by a Stop, a time
limit, or because nobody awaits it any more, the SDK sends the protocol's cancel, and waits for no answer. After a Stop
the connection is closed only when its calls have ended, so that the cancel leaves before the end of the input. Without
a Stop the server has to answer a question within its grace, else it is ended: a later call would wait behind that one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CONNECTION_CLOSED

from countermand import File, Invalid, Tool

from ..configured import servers as configured

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
HTTP_S, HTTP_READ_S = 30.0, 300.0
"""How long a request to a URL may take to be sent, and be without a word of its answer."""
ENDED_EARLY = "it was ended while it started"
MARKER = "COUNTERMAND_TREE"
"""The variable by which what is left of a host is found. The SDK would not pass it on."""


@dataclass(frozen=True)
class Server:
    """A server: a program on stdio, or a URL (streamable HTTP).

    Args:
        command: the program, with its arguments in `args`, its working directory, and variables for it alone.
        url: where it is, instead; with `headers` for each request.
        allow: the tools that are offered, by the server's names; None: all.
        deny: those that are not.
        ask: those that need a person's approval, each time.
        grace_s: how long it has to answer something after a call was given up, in seconds; else it is ended. After a
            Stop it has half of that to end by itself.
    """

    command: str | None = None
    args: Collection[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None
    allow: Collection[str] | None = None
    deny: Collection[str] = ()
    ask: Collection[str] = ()
    grace_s: float = 2.0

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


_kept: dict[str, _Connection] = {}
"""The servers of the configuration, from the first turn on."""


@contextlib.asynccontextmanager
async def servers(turn: Any, named: Mapping[str, Server] | None = None) -> AsyncGenerator[Servers, None]:
    """Yield the `Servers` of a run. Each is started when it is first needed.

    Args:
        turn: the turn.
        named: servers for this run, by name: they end with the block. None: those of the configuration, which go on
            after it unless the run was ended.

    Raises:
        Invalid: there are none in the configuration.
    """
    if named is not None:
        connections = {name: _Connection(name, server, turn.spawn.launcher) for name, server in named.items()}
    else:
        connections = _configured()
    for one in connections.values():
        one.begin(turn)
    try:
        yield Servers(connections)
    finally:
        ended = turn.cancelled_by is not None
        if ended or named is not None:
            # After a Stop they are ended with the processes of the run meanwhile, or soon.
            await asyncio.gather(*(one.close(stopped=ended) for one in connections.values()), return_exceptions=True)


def _configured() -> dict[str, _Connection]:
    """Return the connections of this process."""
    if not configured():
        raise Invalid(
            "this agent is configured with no MCP server",
            expected='mcp = ["NAME"] in [agents.NAME], and [mcp.NAME]; or servers(turn, {"NAME": Server(…)})',
            got="none",
            remedy="add one of the two; an agent in the daemon's own process has the second only",
        )
    for name, keys in configured().items():
        _kept.setdefault(name, _Connection(name, Server(**keys), None))
    return dict(_kept)


class Servers:
    """The servers of a run, in the task of its agent."""

    def __init__(self, connections: Mapping[str, _Connection]) -> None:
        self._connections = connections
        self.broken: dict[str, str] = {}
        """The servers that could not list their tools the last time, or not all of them, each with the reason."""

    async def tools(self) -> list[Tool]:
        """Ask the servers for their tools, as they are now. Each is named ``server_tool``; one that is broken has none.

        Pass them to a model, and to `turn.call`. Call it again when they may have changed.
        """
        self.broken = {}
        listed = await asyncio.gather(*(self._listed(one) for one in self._connections.values()))
        found: dict[str, Tool] = {}
        for connection, tools in zip(self._connections.values(), listed, strict=True):
            for tool in tools:
                if tool.name in found:
                    self.broken[connection.name] = f"two of its tools, or of another server, would be {tool.name}"
                found.setdefault(tool.name, tool)
        return list(found.values())

    async def _listed(self, connection: _Connection) -> list[Tool]:
        tools: list[Tool] = []
        try:
            for found in await connection.tools():
                try:
                    tools.append(connection.tool(found))
                except Invalid as error:
                    # The others are offered.
                    self.broken[connection.name] = f"its tool {found.name} is left out: {error}"
        except ToolFailed as error:
            self.broken[connection.name] = str(error)
        return tools


class _Connection:
    """A server, and the task that keeps its client.

    Args:
        name: of the server.
        server: what it is.
        launcher: returns the path that starts a program in a tree of its own; None: it is started below this process.
    """

    def __init__(self, name: str, server: Server, launcher: Callable[[str], str] | None) -> None:
        self.name = name
        self.server = server
        self._launcher = launcher
        self._turn: Any = None
        # In this run.
        self._starts = 0
        # Those of servers that were started anew may still be ending.
        self._keepers: set[asyncio.Task[None]] = set()
        self._client: _Client | None = None
        self._ended = ""
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Whether the server still answers, after a call was given up.
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, turn: Any) -> None:
        """Be used by a run."""
        self._turn, self._starts = turn, 0

    # ── The client ──

    def _begun(self) -> _Client:
        """Return the client of the server, which is started if it does not run. Raises ToolFailed."""
        kept = self._client
        if kept is None:
            if self._starts >= STARTS_MAX:
                last = f"; the last time: {self._ended}" if self._ended else ""
                raise ToolFailed(f"the MCP server {self.name} has ended {STARTS_MAX} times in this run{last}")
            self._starts += 1
            kept = self._client = _Client()
            self._show("starting")
            kept.keeper = asyncio.create_task(self._keep(kept), name=f"MCP server {self.name}")
            self._keepers.add(kept.keeper)
            kept.keeper.add_done_callback(self._keepers.discard)
        return kept

    async def _keep(self, kept: _Client) -> None:
        """Hold a client open until it is over."""
        try:
            async with Client(self._where()) as client:
                kept.started(client)
                if self._client is kept:
                    self._show("running")
                await kept.over.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, the next use starts the server anew
            kept.failed(error)
        finally:
            kept.failed(ToolFailed(ENDED_EARLY))

    def _where(self) -> Any:
        server = self.server
        if server.url is not None:
            return _http(server.url, server.headers) if server.headers else server.url
        command, env = str(server.command), dict(server.env or {})
        if self._launcher is not None:
            command = self._launcher(command)
        else:
            env.update({MARKER: os.environ[MARKER]} if MARKER in os.environ else {})
        return StdioServerParameters(command=command, args=[*server.args], env=env, cwd=server.cwd)

    def _drop(self, kept: _Client | None, why: str) -> None:
        """End a client; the next use starts the server anew. One that is not this connection's any more is left."""
        if kept is None or self._client is not kept:
            return
        self._client, self._ended = None, why
        self._show("ended", why=why)
        kept.end()

    def _show(self, state: str, **more: Any) -> None:
        """Tell the daemon what the server does, for people. Those of one run alone have rows of their own."""
        if self._launcher is not None:
            return
        # Only a host is configured with servers, and only there this is the daemon's.
        from .. import daemon_log

        daemon_log.server(self.name, state, **more)

    # ── Requests ──

    async def tools(self) -> list[Any]:
        """Return the tools that the server has now, and that may be offered. Raises ToolFailed.

        A server that has died or is out of reach since it was last used is started anew: to list has no effects.
        """
        warm = self._client is not None
        try:
            return await self._listed()
        except ToolFailed:
            if not warm:
                raise
        return await self._listed()

    async def _listed(self) -> list[Any]:
        kept = self._begun()
        try:
            return await asyncio.wait_for(self._list(kept), START_S)
        except (ToolFailed, asyncio.TimeoutError) as error:
            late = f"the MCP server {self.name} took more than {START_S:g} s to start, or to list its tools"
            why = str(error) or late
            if not self._calls:
                # One that is busy with a call may be as it should be.
                self._drop(kept, why)
            raise ToolFailed(why) from error

    async def _list(self, kept: _Client) -> list[Any]:
        found: list[Any] = []
        cursor = None
        for _ in range(PAGES_MAX):
            page = await self._asked(kept, "list_tools", cursor=cursor, cache_mode="refresh")
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= TOOLS_MAX:
                break
        allow, deny = self.server.allow, self.server.deny
        offered = [one for one in found[:TOOLS_MAX] if one.name not in deny and (allow is None or one.name in allow)]
        self._show("running", tools=len(offered))
        return offered

    def tool(self, found: Any) -> Tool:
        """Return a tool of the server as one of the run."""

        async def call(**arguments: Any) -> Any:
            return _result(await self._called(found.name, arguments))

        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.name}_{found.name}")[:64]
        approve = found.name in self.server.ask
        described = found.description or ""
        return Tool(call, name=name, description=described, schema=found.input_schema, approve=approve)

    async def _called(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        self._calls += 1
        self._idle.clear()
        try:
            return await self._asked(self._begun(), "call_tool", tool, arguments)
        except asyncio.CancelledError:
            # The SDK has sent the cancel. After a Stop the server is ended in any case.
            if self._client is not None and self._turn.cancelled_by is None:
                asking = asyncio.create_task(self._ask_whether_it_answers(self._client))
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _ask_whether_it_answers(self, kept: _Client) -> None:
        """End a server that answers nothing within its grace after a call was given up."""
        if not kept.there:
            return
        question = asyncio.ensure_future(kept.ready.result().list_tools(cache_mode="refresh"))
        try:
            answered, _ = await asyncio.wait([question], timeout=self.server.grace_s)
        finally:
            question.cancel()
        if not answered and not self._calls:
            # Behind another call it may wait as it should.
            self._drop(kept, f"it answered nothing for {self.server.grace_s:g} s after a call was given up")

    async def _asked(self, kept: _Client, method: str, *args: Any, **options: Any) -> Any:
        try:
            client = await asyncio.shield(kept.ready)
        except Exception as error:  # whatever it is, the server is not there
            self._drop(kept, _words(error))
            raise ToolFailed(f"the MCP server {self.name} does not start: {_words(error)}") from error
        try:
            return await getattr(client, method)(*args, **options)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolFailed(f"the MCP server {self.name} refuses that: {error}") from error
            # The next one starts it anew. This call may have had effects, so it is not repeated.
            ended = f"the MCP server {self.name} has ended"
            self._drop(kept, ended)
            raise ToolFailed(f"{ended}, and the call may have had effects") from error
        except Exception as error:  # whatever the SDK cannot take is a failure of the call
            raise ToolFailed(f"the MCP server {self.name} fails: {_words(error)}") from error

    # ── The end ──

    async def close(self, *, stopped: bool) -> None:
        """End the server. One that the SDK does not end in time is left to the end of the processes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (min(END_S, self.server.grace_s / 2) if stopped else END_S)
        if self._calls:
            # Their cancel goes first.
            idle = asyncio.ensure_future(self._idle.wait())
            await asyncio.wait([idle], timeout=until - loop.time())
            idle.cancel()
        for asking in self._asking:
            asking.cancel()
        self._drop(self._client, "it was ended")
        if self._keepers:
            _, slow = await asyncio.wait(self._keepers, timeout=max(0.0, until - loop.time()))
            for keeper in slow:
                keeper.cancel()


class _Client:
    """A client of the SDK: when it is ready, and until when its task keeps it. On the loop."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self.keeper: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
        """True if it has started."""
        return self.ready.done() and self.ready.exception() is None

    def started(self, client: Any) -> None:
        """It is ready, unless it was ended meanwhile."""
        if not self.ready.done():
            self.ready.set_result(client)

    def failed(self, error: Exception) -> None:
        """It does not start, unless it has."""
        if not self.ready.done():
            self.ready.set_exception(error)
            # Nobody may be waiting for it.
            self.ready.exception()

    def end(self) -> None:
        """Have its task close it, or start it no further."""
        self.over.set()
        if not self.ready.done() and self.keeper is not None:
            # A task that has not begun ends without a word.
            self.failed(ToolFailed(ENDED_EARLY))
            self.keeper.cancel()


@contextlib.asynccontextmanager
async def _http(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    """A transport to a URL, with headers."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(HTTP_S, read=HTTP_READ_S)
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _words(error: BaseException) -> str:
    """Return what an error says; of a group of them, the first."""
    inner = getattr(error, "exceptions", None)
    return _words(inner[0]) if inner else str(error) or type(error).__name__


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
