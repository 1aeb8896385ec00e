"""MCP servers that are not as one would like, made with the official SDK: each is a word, its first argument.

A second argument is a port, on which it serves streamable HTTP instead of stdio. Each has `say`, which says a word in
capitals. ``daemon``: it starts one of its own session that ignores SIGTERM. ``cancels``: a call of `hold` notes its
cancel. ``stubborn``: a call of `hold` ignores its cancel, and the server ignores SIGTERM and the end of its input.
``changing``: `learn` adds a tool, and removes itself. ``dying``: a call of `die` ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from tests.mcp_server import DAEMON

KIND = sys.argv[1]
server = MCPServer(KIND)


@server.tool()  # type: ignore[untyped-decorator]
async def say(word: str) -> str:
    """Say a word."""
    return word.upper()


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


if __name__ == "__main__":
    if KIND == "daemon":
        subprocess.run([sys.executable, "-S", "-c", DAEMON], stdout=subprocess.PIPE, check=True)
    if KIND == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
