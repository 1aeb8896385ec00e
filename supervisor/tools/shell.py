"""The `shell` tool: a script, run by the shell in a process tree of its own."""

from __future__ import annotations

import shutil
from typing import Final

from actors.messages import ToolResult
from actors.model import Json, Outcome
from actors.plugin.registration import tool
from actors.plugin.spawning import AsyncSpawn, Exit

PIECE_CHARS: Final = 30_000


@tool(isolation="task")
async def shell(script: str, spawn: AsyncSpawn, cwd: str | None = None, pty: bool = False) -> ToolResult:
    """Run a shell script and return the end of its output, with its exit code and duration.

    Processes that it leaves in the background live on until the run ends. `pty` gives it a terminal, for programs that
    need one; nothing can be typed on it. If not all of the output is returned, the result names a file that has it.
    """
    program = shutil.which("bash") or "/bin/sh"
    process = await spawn([program, "-c", *_arguments(script)], cwd=cwd, name=_name(script), pty=pty)
    done = await process.wait()
    data: dict[str, Json] = {
        "exit_code": done.status,
        "duration_s": round(done.duration_s, 6),
        "total_bytes": done.total_bytes,
        "lossy": done.lossy,
        "held": done.held,
        "cpu_s": done.cpu_s,
        "max_rss_kb": done.max_rss_kb,
    }
    if done.status < 0:
        data["signal"] = signal_name(-done.status)
    if done.spool is not None:
        data.update(spool=done.spool, spooled_bytes=done.spooled_bytes)
    return ToolResult(Outcome.FINISHED, _told(done), is_error=done.status != 0, data=data)


def _arguments(script: str) -> list[str]:
    """Return a script as arguments of ``-c``: a long one in pieces, since one argument holds at most 128 KiB."""
    if len(script) <= PIECE_CHARS:
        return [script]
    pieces = [script[start : start + PIECE_CHARS] for start in range(0, len(script), PIECE_CHARS)]
    return ['script=$(printf %s "$@"); set --; eval "$script"', "shell", *pieces]


def _name(script: str) -> str:
    first = next((line.strip() for line in script.splitlines() if line.strip()), "shell")
    return first if len(first) <= 60 else first[:59] + "…"


def _told(done: Exit) -> str:
    """Return what the model reads: the output, and a line about the exit unless it was 0."""
    lines = [done.output]
    shown = len(done.output.encode())
    if done.total_bytes > shown:
        lines.insert(0, f"[the last {shown} of {done.total_bytes} bytes of output{_where(done)}]\n")
    elif done.lossy:
        lines.append(f"\n[not all of the output is text{_where(done)}]")
    if done.status != 0:
        lines.append(f"\n[{describe_exit(done.status)}]")
    if done.held:
        goes_on = f", and goes on writing to {done.spool}" if done.spool else ""
        lines.append(f"\n[a process left in the background still holds the output{goes_on}]")
    return "".join(lines)


def _where(done: Exit) -> str:
    """Return where all of the output is, or its beginning."""
    if done.spool is None:
        return ""
    whole = done.spooled_bytes >= done.total_bytes
    what = "all of it is" if whole else f"the first {done.spooled_bytes} are"
    return f"; {what} in {done.spool}"


def describe_exit(status: int) -> str:
    """Return an exit status in words: a code, or the signal that ended the command."""
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
