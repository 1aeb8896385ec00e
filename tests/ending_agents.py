"""Agents that start what outlives an agent elsewhere, with nothing but the standard library.

They run in a host, imported by the agent's interpreter, and inside a supervisor's process. The first word of the last
message says what is done. Each tells the step that it is at, so that a test can end it there; after its last step it
goes on for good. The processes that they start carry the mark of the test in their environment.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
NODE_CHILD = "process.on('SIGTERM', () => {}); process.on('SIGHUP', () => {}); setInterval(() => {}, 1000);"
NODE = f"""
const {{ spawn }} = require("node:child_process");
spawn(process.execPath, ["-e", {NODE_CHILD!r}], {{ stdio: "inherit", detached: true }});
{NODE_CHILD}
console.log("up");
"""
STARTED: list[Any] = []
"""What nobody waits for, so that the collector neither ends it nor complains of it."""


class Steps:
    """Tells which step a run is at."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn
        self.count = 0

    async def next(self) -> None:
        """Say that a step begins."""
        self.count += 1
        await self.turn.emit(f"<{self.count}>")


def start_children() -> None:
    """Start a child that ignores SIGTERM, and one in a session of its own."""
    STARTED.append(subprocess.Popen([sys.executable, "-S", "-c", STUBBORN]))
    STARTED.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))


def spin() -> None:
    """Work for good, and look at nothing."""
    while True:
        time.sleep(0.01)


def run_stubborn() -> None:
    """Wait for a process that ignores SIGTERM."""
    subprocess.run([sys.executable, "-S", "-c", STUBBORN], check=False)


def ignore_and_spin(_: int = 0) -> None:
    """Work for good in a process that nothing but SIGKILL ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spin()


async def for_good() -> None:
    """Wait for what does not come."""
    await asyncio.sleep(1000)


async def agent(turn: Any) -> Any:
    """Do what the last message says."""
    word, _, rest = turn.inputs[-1].content.partition(" ")
    return await globals()[f"do_{word}"](turn, rest)


async def do_say(turn: Any, rest: str) -> None:
    """Say it, and return."""
    await turn.emit(f"said: {rest}")


async def do_leave(turn: Any, rest: str) -> None:
    """Say it, and return; two processes and a thread go on."""
    start_children()
    threading.Thread(target=spin, daemon=True).start()
    await turn.emit(f"said: {rest}")


async def do_thread(turn: Any, rest: str) -> None:
    """Work on threads that never look, and wait there for a process that ignores SIGTERM."""
    steps = Steps(turn)
    await steps.next()
    beside = [asyncio.create_task(asyncio.to_thread(spin)) for _ in range(2)]
    await steps.next()
    beside.append(asyncio.create_task(asyncio.to_thread(run_stubborn)))
    await steps.next()
    await asyncio.gather(*beside)


async def do_multiprocessing(turn: Any, rest: str) -> None:
    """Work in a pool, an executor and a process of their own; `rest` is how they are started."""
    steps = Steps(turn)
    context: BaseContext = multiprocessing.get_context(rest)
    await steps.next()
    process = context.Process(target=ignore_and_spin, daemon=True)  # type: ignore[attr-defined]
    process.start()
    await steps.next()
    pool = context.Pool(2)
    pool.map_async(ignore_and_spin, range(2))
    await steps.next()
    executor = concurrent.futures.ProcessPoolExecutor(1, context)
    STARTED.extend((process, pool, executor))
    beside = asyncio.get_running_loop().run_in_executor(executor, ignore_and_spin)
    await steps.next()
    await beside


async def do_swallow(turn: Any, rest: str) -> None:
    """Ignore every cancel, in two tasks, and go on trying to say something."""
    steps = Steps(turn)

    async def swallow() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
                await turn.emit(".")

    await steps.next()
    start_children()
    await steps.next()
    beside = asyncio.create_task(swallow())
    with contextlib.suppress(asyncio.CancelledError):
        await steps.next()
    await swallow()
    await beside


async def do_block(turn: Any, rest: str) -> None:
    """Block the event loop; `rest` is how."""
    steps = Steps(turn)
    await steps.next()
    start_children()
    await steps.next()
    BLOCKS[rest]()


def busy() -> None:
    """Take all of a core."""
    while True:
        pass


BLOCKS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: time.sleep(1000),
    "busy": busy,
    # No other thread of the process runs meanwhile.
    "regex": lambda: re.match("(a+)+$", "a" * 60 + "b"),
    "wait": lambda: threading.Event().wait(),
    "child": run_stubborn,
}


async def do_fork(turn: Any, rest: str) -> None:
    """Fork copies of the host: one that ignores SIGTERM, and one that leaves its parent and its session."""
    steps = Steps(turn)
    await steps.next()
    if os.fork() == 0:
        ignore_and_spin()
    await steps.next()
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        ignore_and_spin()
    await steps.next()
    os.waitpid(pid, 0)
    await steps.next()
    await for_good()


async def do_node(turn: Any, rest: str) -> None:
    """Start a program in Node that ignores SIGTERM, and has a child that does so in a session of its own."""
    steps = Steps(turn)
    await steps.next()
    process = await asyncio.create_subprocess_exec("node", "-e", NODE, stdout=subprocess.PIPE)
    await steps.next()
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    await steps.next()
    await process.wait()
