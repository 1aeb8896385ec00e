"""The `shell` tool: a script, run by the shell in a process tree of its own."""

from __future__ import annotations

import shutil
from typing import Final

from actors.messages import ToolResult
from actors.model import Outcome
from actors.plugins import tool
from actors.spawning import AsyncSpawn, Exit

PIECE_CHARS: Final = 30_000


@tool(isolation="task")
async def shell(script: str, spawn: AsyncSpawn, cwd: str | None = None) -> ToolResult:
    """Run a shell script and return the end of its output, with its exit code and duration.

    What it leaves in the background lives on until the run ends.
    """
    program = shutil.which("bash") or "/bin/sh"
    process = await spawn([program, "-c", *_arguments(script)], cwd=cwd, name=_name(script))
    done = await process.wait()
    data = {
        "exit_code": done.status,
        "duration_s": round(done.duration_s, 6),
        "total_bytes": done.total_bytes,
        "lossy": done.lossy,
        "held": done.held,
        "cpu_s": done.cpu_s,
        "max_rss_kb": done.max_rss_kb,
    }
    return ToolResult(Outcome.FINISHED, _told(done), is_error=done.status != 0, data=data)


def _arguments(script: str) -> list[str]:
    """Return a script as arguments of ``-c``: a long one in pieces, since one argument holds 128 KiB at the most."""
    if len(script) <= PIECE_CHARS:
        return [script]
    pieces = [script[start : start + PIECE_CHARS] for start in range(0, len(script), PIECE_CHARS)]
    return ['script=$(printf %s "$@"); set --; eval "$script"', "shell", *pieces]


def _name(script: str) -> str:
    first = next((line.strip() for line in script.splitlines() if line.strip()), "shell")
    return first if len(first) <= 60 else first[:59] + "…"


def _told(done: Exit) -> str:
    """What the model reads: the output, and a line about the exit where that is not plain success."""
    lines = [done.output]
    shown = len(done.output.encode())
    if done.total_bytes > shown:
        lines.insert(0, f"[the last {shown} of {done.total_bytes} bytes of output]\n")
    if done.status != 0:
        lines.append(f"\n[{describe_exit(done.status)}]")
    if done.held:
        lines.append("\n[a process left in the background still holds the output]")
    return "".join(lines)


def describe_exit(status: int) -> str:
    """Say an exit status in words: a code, or the signal that ended the command."""
    import signal

    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
