"""Tools that the tests run in processes of their own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from actors import AsyncCancelToken, AsyncEmit, CancelToken, Emit, Secret, Spawn, ToolResult, tool
from actors.model import Outcome

PARENT = os.getpid()


@tool(isolation="process", name="whoami")
def whoami(word: str, fence: str, times: int = 1) -> dict[str, Any]:
    """Say what was given, and where this runs."""
    for line in ("first", "last"):
        # What follows soon after some output is read a moment later, so the last line is unread when this returns.
        print(f"{line} line by {word}", flush=True)
        time.sleep(0.005 if line == "first" else 0.0)
    return {"word": word * times, "fence": fence, "pid": os.getpid()}


@tool(isolation="process")
async def counts(number: int) -> ToolResult:
    """Count, and say so with data."""
    await asyncio.sleep(0.01)
    return ToolResult(Outcome.FINISHED, f"counted to {number}", is_error=number < 0, data=list(range(number)))


@tool(isolation="process")
def fails(how: str) -> str:
    """End in another way than by a result."""
    if how == "raise":
        raise ValueError("it cannot be")
    if how == "segv":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(4)
    if how == "long":
        return "\x01" * 2_000_000
    return how


@tool(isolation="process")
def stubborn(mark: str, file: str) -> str:
    """Ignore everything, with children that do too, one in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ[mark] = "1"
    script = f"export {mark}=1; trap '' TERM; sleep 600"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    Path(file).write_text("begun")
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


@tool(isolation="process")
def tidy(file: str, token: CancelToken) -> str:
    """Clean up when told to end."""
    Path(file).write_text("begun")
    try:
        time.sleep(600)
    finally:
        time.sleep(0.05)
        Path(file).write_text(f"cleaned up: {token.provenance.source if token.provenance else None}")
    return "slept"


def write(file: str, text: str) -> None:
    Path(file).write_text(text)


@tool(isolation="process", deadline_s=0.5)
async def slow(file: str, token: AsyncCancelToken) -> str:
    """Take longer than it may."""
    write(file, "begun")
    try:
        await asyncio.sleep(600)
    finally:
        write(file, f"cleaned up: {token.provenance.source if token.provenance else None}")
    return "slept"


@tool(isolation="process")
def guarded(file: str, token: CancelToken) -> str:
    """Have an effect behind a guard, then wait for the end, and come to another guard."""
    with token.guard("write"):
        write(file, "begun")
    try:
        token.wait()
    finally:
        with token.guard("late"):
            write(file, "late")
    return "done"


@tool(isolation="process")
def builds(spawn: Spawn) -> str:
    """Start a process for the call."""
    done = spawn(["sh", "-c", "echo $COUNTERMAND_FENCE; exit 5"]).wait(60)
    return f"{done.status} {done.output.strip()}"


@tool(isolation="process")
def keeps(password: Annotated[str, Secret]) -> str:
    """Say a secret."""
    if password == "raise-it":
        raise ValueError(f"no {password}") from KeyError(password)
    return f"it is {password}"


@tool(isolation="process")
def speaks(emit: Emit) -> str:
    """Say something, and show progress."""
    emit("a ")
    emit.progress(step=1)
    emit("b ")
    return "said"


@tool(isolation="process")
async def speaks_async(emit: AsyncEmit) -> str:
    """Say something, and show progress."""
    await emit("a ")
    await emit.progress(step=1)
    await emit("b ")
    return "said"
