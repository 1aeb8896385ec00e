"""Agents that use MCP servers by the adapter, in hosts with the SDK. The servers are those of `mcp_servers`.

`steps` has those of the configuration, and does what its message says; the others have their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

KINDS = ("daemon", "changing", "dying")


def server(kind: str, **options: Any) -> Any:
    """Return one of the servers."""
    from countermand.adapters.mcp import Server

    env = {key: os.environ[key] for key in os.environ if key.startswith(("CM_TEST", "PYTHON"))}
    return Server(sys.executable, ["-m", "tests.mcp_servers", kind], env=env, cwd=os.environ["ROOT"], **options)


async def use(turn: Any) -> Any:
    """Use each of them, and return what was seen."""
    from countermand.adapters import mcp as adapter
    from countermand.adapters.mcp import STARTS_MAX, Server, servers

    named = {kind: server(kind) for kind in KINDS}
    named["daemon"] = server("daemon", ask=["say"])
    named["denied"] = server("cancels", deny=["hold"])
    named["gone"] = Server("/no/such/program")
    seen: dict[str, Any] = {}
    async with servers(turn, named) as mcp:

        async def tools() -> dict[str, Any]:
            return {tool.name: tool for tool in await mcp.tools()}

        async def call(name: str, **arguments: Any) -> tuple[str, str, bool]:
            result = await turn.call(offered[name], **arguments)
            return str(result.outcome), result.content, result.is_error

        offered = await tools()
        seen["offered"] = sorted(offered)
        seen["broken"] = sorted(mcp.broken)
        seen["said"] = await call("daemon_say", word="hello")
        seen["wrong"] = await call("changing_say", words="hello")
        seen["learnt"] = await call("changing_learn")
        gone = offered["changing_learn"]
        offered = await tools()
        seen["changed"] = sorted(name for name in offered if name.startswith("changing"))
        seen["shouted"] = await call("changing_shout", word="hello")
        adapter.TOOLS_MAX, most = 1, adapter.TOOLS_MAX
        seen["up to one"] = sorted(name for name in await tools() if name.startswith("changing"))
        adapter.TOOLS_MAX = most
        offered["gone"] = gone
        seen["unlearnt"] = await call("gone")
        seen["died"] = [await call("dying_die") for _ in range(STARTS_MAX + 1)]
    return seen


async def hold(turn: Any) -> None:
    """Call a tool that takes for good: the message says of which server, and where it notes what becomes of it."""
    from countermand.adapters.mcp import servers

    kind, note = turn.inputs[-1].content.split()
    async with servers(turn, {kind: server(kind), "daemon": server("daemon")}) as mcp:
        (tool,) = [tool for tool in await mcp.tools() if tool.name == f"{kind}_hold"]
        await turn.call(tool, note=note)


async def noted(note: str, what: str) -> None:
    """Wait until a server has noted something."""
    while not Path(note).exists() or Path(note).read_text() != what:
        await asyncio.sleep(0.02)


async def give_up(turn: Any) -> str:
    """Give up a call after it has begun, and use its server again."""
    from countermand.adapters.mcp import Server, servers

    note = turn.inputs[-1].content
    there = Server(url=os.environ["URL"]) if "URL" in os.environ else server("cancels")
    async with servers(turn, {"cancels": there}) as mcp:
        offered = {tool.name: tool for tool in await mcp.tools()}
        held = asyncio.create_task(turn.call(offered["cancels_hold"], note=note))
        await noted(note, "held")
        held.cancel()
        await asyncio.wait([held])
        await noted(note, "cancelled")
        return str((await turn.call(offered["cancels_say"], word="on")).content)


async def steps(turn: Any) -> list[Any]:
    """Do what the message says, a list of steps, and return what came of each.

    ``["list"]`` lists the tools, and the servers that are broken; ``["call", NAME, ARGUMENTS]`` calls one;
    ``["give up", NAME, ARGUMENTS]`` calls one that notes that it holds, and gives it up; ``["wait", FILE]`` notes that
    it waits, and does so for good; ``["there", PID]`` says whether a process is there; ``["bound", NAME, VALUE]`` sets
    a bound of the adapter.
    """
    from countermand.adapters import mcp as adapter
    from countermand.adapters.mcp import servers

    came: list[Any] = []
    async with servers(turn) as mcp:
        for word, *given in json.loads(turn.inputs[-1].content):
            if word == "there":
                came.append(Path(f"/proc/{given[0]}").exists())
                continue
            if word == "bound":
                setattr(adapter, *given)
                continue
            offered = {tool.name: tool for tool in await mcp.tools()}
            if word == "list":
                came.append([sorted(offered), mcp.broken])
            elif word == "call":
                result = await turn.call(offered[given[0]], **given[1])
                came.append([str(result.outcome), result.content, result.is_error])
            elif word == "give up":
                held = asyncio.create_task(turn.call(offered[given[0]], **given[1]))
                await noted(given[1]["note"], "held")
                held.cancel()
                await asyncio.wait([held])
                came.append(held.cancelled())
            elif word == "wait":
                Path(given[0]).write_text("waits")
                await asyncio.sleep(1000)
    return came


async def together(turn: Any) -> list[dict[str, str]]:
    """List the tools of a server that has died, twice at once; return which servers were broken then."""
    from countermand.adapters.mcp import servers

    async def wait_for(awaited: Any, seconds: float) -> Any:
        # As that of Python 3.12 and later: it begins at once.
        async with asyncio.timeout(seconds):
            return await awaited

    asyncio.wait_for = wait_for  # type: ignore[assignment]
    async with servers(turn) as mcp:
        offered = {tool.name: tool for tool in await mcp.tools()}
        pid = (await turn.call(offered["files_pid"])).content
        os.kill(int(pid), signal.SIGKILL)
        while Path(f"/proc/{pid}/exe").exists():
            await asyncio.sleep(0.02)

        async def broken() -> dict[str, str]:
            await mcp.tools()
            return dict(mcp.broken)

        return [*await asyncio.gather(broken(), broken())]


async def leave(turn: Any) -> str:
    """Leave a block with a server by URL, whose end is waited for no longer than a moment."""
    from countermand.adapters import mcp as adapter

    adapter.END_S = 0.2
    async with adapter.servers(turn, {"there": adapter.Server(url=os.environ["URL"])}) as mcp:
        await mcp.tools()
    return str(mcp.broken)
