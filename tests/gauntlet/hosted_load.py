"""An agent that does some of everything that hosts do, by the words of its message; standard library only.

    say       emits pieces until its time is over
    gate      calls a function that is here, which sleeps
    call      calls the daemon's shell
    children  starts one that ignores SIGTERM and one in a session of its own, and says something until its time is over
    deaf      the same, and ignores every cancel
    exit      ends its process

A word is followed by a time in seconds. Where LOAD_SLOW_S is set the module takes that long to be imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from typing import Any

MARK = "CM_GAUNTLET_HOST"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
WORDS = ("say", "gate", "call", "children", "deaf", "exit")

time.sleep(float(os.environ.get("LOAD_SLOW_S", "0")))


async def agent(turn: Any) -> str:
    """Do what the messages say, one after the other."""
    for message in turn.inputs:
        word, _, seconds = message.content.partition(" ")
        assert word in WORDS
        await globals()[f"do_{word}"](turn, float(seconds))
    return "done"


async def do_say(turn: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await turn.emit("a piece, ")
        await asyncio.sleep(0.005)


async def do_gate(turn: Any, seconds: float) -> None:
    async def function() -> str:
        await asyncio.sleep(seconds)
        return "done"

    await turn.gate("function", {"seconds": seconds}, function)


async def do_call(turn: Any, seconds: float) -> None:
    script = f"export {MARK}={os.environ[MARK]}; sleep 100 & setsid sleep 100 & sleep {seconds}"
    await turn.call("shell", script=script)


async def do_children(turn: Any, seconds: float) -> None:
    subprocess.Popen([sys.executable, "-I", "-S", "-c", STUBBORN])
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    await do_say(turn, seconds)


async def do_deaf(turn: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    subprocess.Popen([sys.executable, "-I", "-S", "-c", STUBBORN])
    while time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await do_say(turn, until - time.monotonic())


async def do_exit(turn: Any, seconds: float) -> None:
    await do_say(turn, seconds)
    os._exit(3)
