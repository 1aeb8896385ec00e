"""A client of `countermand mcp`, made with the official SDK: it does what it is asked, and prints what it saw as JSON.

It runs in the environment of the SDK, and is given the command to start, and what to do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import Client, StdioServerParameters


def told(result: Any) -> Any:
    """Return what a tool says, and whether that is an error."""
    return {"error": result.is_error, "told": json.loads(result.content[0].text)}


async def supervise(client: Any, session: str, script: str) -> dict[str, Any]:
    """Start a tree, wait for it, give that up, stop it, look at the proof; then run something to its end."""
    seen: dict[str, Any] = {"tools": {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}}

    async def call(name: str, **arguments: Any) -> Any:
        return told(await client.call_tool(name, arguments))

    seen["nothing"] = await call("status", session="none such")
    seen["sent"] = await call("send", session=session, content=script, id="first")
    seen["again"] = await call("send", session=session, content=script, id="first")
    waiting = asyncio.create_task(client.call_tool("receipt", {"session": session, "wait_s": 600} | run_of(seen)))
    await asyncio.sleep(0)
    status = await call("status", session=session)
    while "started" not in json.dumps(await call("sessions")) and status["told"]["status"]["state"] != "running":
        status = await call("status", session=session)
    waiting.cancel()
    seen["given up"] = (await asyncio.gather(waiting, return_exceptions=True))[0].__class__.__name__
    seen["running"] = await call("status", session=session)
    print("running", flush=True)
    # Whoever started this looks at the processes, and says to go on.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    seen["stopped"] = await call("stop", session=session, reason="it takes too long", wait_s=60)
    seen["receipt"] = await call("receipt", session=session, **run_of(seen))
    seen["over"] = await call("stop", session=session, reason="once more", **run_of(seen))
    seen["done"] = await call("send", session=session, content="echo hello; exit 3", wait_s=60)
    seen["wrong"] = await call("stop", session=session)
    seen["unknown"] = await call("receipt", session=session, run_id="run_none")
    return seen


def run_of(seen: dict[str, Any]) -> dict[str, str]:
    """Return the run of the first message, as an argument."""
    return {"run_id": seen["sent"]["told"]["accepted"]["run_id"]}


async def only(client: Any, script: str) -> dict[str, Any]:
    """Use a server that controls one session."""
    tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
    sent = told(await client.call_tool("send", {"content": script, "wait_s": 60}))
    other = told(await client.call_tool("send", {"content": script, "session": "another"}))
    return {"tools": tools, "sent": sent, "other": other}


async def main(command: list[str], what: str, *rest: str) -> None:
    """Start the command, and do `what` with it."""
    async with Client(StdioServerParameters(command=command[0], args=command[1:])) as client:
        seen = await (supervise if what == "supervise" else only)(client, *rest)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), *sys.argv[2:]))
