"""An MCP server that starts a daemon: a process of its own session that ignores SIGTERM, and has no parent.

Its tool says a word in capitals; `work` is one that takes for good.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from mcp.server.mcpserver import MCPServer

DAEMON = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
os.close(1)
time.sleep(1000)
"""
server = MCPServer("says")


@server.tool()  # type: ignore[untyped-decorator]
async def say(word: str) -> str:
    """Say a word."""
    if word == "work":
        await asyncio.sleep(1000)
    return word.upper()


if __name__ == "__main__":
    subprocess.run([sys.executable, "-S", "-c", DAEMON], stdout=subprocess.PIPE, check=True)
    server.run("stdio")
