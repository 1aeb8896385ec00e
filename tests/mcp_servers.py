"""MCP servers that are not as one would like, made with the official SDK: each is a word, its first argument.

A second argument is a port, on which it serves streamable HTTP instead of stdio. Each has `say`, which says a word in
capitals, `pid`, `variable`, `header`, and `note`, which notes a text. ``daemon``: it starts one of its own session that
ignores SIGTERM. ``cancels``: a call of `hold` notes its cancel. ``stubborn``: a call of `hold` ignores its cancel, and
the server ignores SIGTERM and the end of its input. ``changing``: `learn` adds a tool, and removes itself. ``dying``: a
call of `die` ends it at once. ``holding``: `note` of a text that ends in ``:hold`` takes for good. ``starting``: it
notes in the file of the variable NOTE that it starts, and starts no further, whoever asks it to end. ``odd``: a number
in the schema of `count` has more than 64 bits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field  # type: ignore[import-not-found]

from tests.mcp_server import DAEMON

KIND = sys.argv[1]
server = MCPServer(KIND)


@server.tool()  # type: ignore[untyped-decorator]
async def say(word: str) -> str:
    """Say a word."""
    return word.upper()


@server.tool()  # type: ignore[untyped-decorator]
async def note(text: str) -> str:
    """Note a text."""
    if KIND == "holding" and text.endswith(":hold"):
        await asyncio.sleep(1000)
    return f"noted {text}"


@server.tool()  # type: ignore[untyped-decorator]
async def pid() -> int:
    """Return the pid of the server."""
    return os.getpid()


@server.tool()  # type: ignore[untyped-decorator]
async def variable(name: str) -> str:
    """Return a variable of the server."""
    return os.environ.get(name, "it is not there")


@server.tool()  # type: ignore[untyped-decorator]
async def header(name: str, context: Context) -> str:
    """Return a header of the request."""
    return str((context.headers or {}).get(name, "it is not there"))


if KIND == "cancels":

    @server.tool()  # type: ignore[untyped-decorator]
    async def hold(note: str) -> str:
        """Take for good, and note a cancel."""
        Path(note).write_text("held")
        try:
            await asyncio.sleep(1000)
        except BaseException:
            Path(note).write_text("cancelled")
            raise
        return "never"


if KIND == "stubborn":

    @server.tool(name="hold")  # type: ignore[untyped-decorator]
    async def deaf(note: str) -> str:
        """Take for good, whoever cancels it."""
        Path(note).write_text("held")
        while True:
            time.sleep(1)


if KIND == "changing":

    @server.tool()  # type: ignore[untyped-decorator]
    async def learn() -> str:
        """Learn to shout."""
        server.add_tool(shout)
        server.remove_tool("learn")
        return "learnt"

    async def shout(word: str) -> str:
        """Shout a word."""
        return f"{word.upper()}!"


if KIND == "dying":

    @server.tool()  # type: ignore[untyped-decorator]
    async def die() -> str:
        """Die."""
        os._exit(3)


if KIND == "odd":

    @server.tool()  # type: ignore[untyped-decorator]
    async def count(number: Annotated[int, Field(le=2**70)]) -> int:
        """Count on."""
        return number + 1


if __name__ == "__main__":
    if KIND == "daemon":
        subprocess.run([sys.executable, "-S", "-c", DAEMON], stdout=subprocess.PIPE, check=True)
    if KIND in ("stubborn", "starting"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if KIND == "starting":
        Path(os.environ["NOTE"]).write_text(str(os.getpid()))
        time.sleep(1000)
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
