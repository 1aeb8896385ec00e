"""Agents that the tests of hosts run: imported in a host by the agent's interpreter, never here.

What a message says is what is done: a word, and what it takes. `mark` is in the environment of the host, so everything
that is started here is found by it from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


def start_children() -> list[int]:
    """Start what outlives an agent elsewhere: a child that ignores SIGTERM, and one in a session of its own."""
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN])
    apart = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    return [stubborn.pid, apart.pid]


async def agent(turn: Any) -> Any:
    """Do what the last message says."""
    word, _, rest = turn.inputs[-1].content.partition(" ")
    return await globals()[f"do_{word}"](turn, rest)


async def do_say(turn: Any, rest: str) -> dict[str, Any]:
    await turn.emit(f"said: {rest}")
    return {"pid": os.getpid(), "heard": len(turn.messages)}


async def do_recall(turn: Any, rest: str) -> dict[str, Any]:
    thread = [[one.id, one.role, one.content, [call.arguments for call in one.tool_calls]] for one in turn.messages]
    await turn.emit(f"recalled: {rest}")
    return {"pid": os.getpid(), "thread": thread}


async def do_call(turn: Any, rest: str) -> str:
    result = await turn.call("shell", script=rest)
    await turn.emit(f"called: {result.content.strip()}")
    return str(result.outcome)


async def do_gate(turn: Any, rest: str) -> str:
    async def own() -> str:
        await asyncio.sleep(0.01)
        return rest.upper()

    return str(await turn.gate("upper", {"text": rest}, own, provider_id="toolu_01"))


async def do_gated_sleep(turn: Any, rest: str) -> None:
    async def own() -> None:
        try:
            await turn.emit("in the gate")
            await asyncio.sleep(1000)
        finally:
            with open(rest, "a") as file:
                file.write("closure cleaned up\n")

    await turn.gate("sleeper", {}, own)


async def do_sleep(turn: Any, rest: str) -> None:
    """Sleep, and clean up when told to end."""
    try:
        await turn.emit("asleep")
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(0.05)
        if rest:
            with open(rest, "a") as file:
                file.write(f"cleaned up: {turn.cancelled_by.source}\n")


async def do_children(turn: Any, rest: str) -> None:
    await turn.emit(" ".join(map(str, start_children())))
    await asyncio.sleep(1000)


async def do_swallow(turn: Any, rest: str) -> None:
    """Ignore every cancel, and go on trying to say something."""
    start_children()
    await turn.emit("asleep")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        with contextlib.suppress(asyncio.CancelledError):
            await turn.emit("said after the stop")


async def do_block(turn: Any, rest: str) -> None:
    """Block the event loop."""
    start_children()
    await turn.emit("asleep")
    time.sleep(1000)


async def do_thread(turn: Any, rest: str) -> None:
    await turn.emit("asleep")
    await asyncio.to_thread(time.sleep, 1000)


async def do_fork(turn: Any, rest: str) -> None:
    await turn.emit("asleep")
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(1000)
    await asyncio.sleep(1000)


async def do_leave(turn: Any, rest: str) -> str:
    """Leave a thread behind that says something of this run, past everything that would prevent it.

    It begins when there is a file of that name: what it says before the end of the run is a part of it.
    """
    raw, fence = channel(), turn.address.fence

    def go_on() -> None:
        line = '{"jsonrpc":"2.0","method":"emit","params":{"fence":"%s","text":"said by what was left behind"}}\n'
        while not os.path.exists(rest):
            time.sleep(0.01)
        while True:
            time.sleep(0.01)
            raw.sendall((line % fence).encode())

    threading.Thread(target=go_on, daemon=True).start()
    return "left"


async def do_flood(turn: Any, rest: str) -> None:
    while True:
        await turn.emit("x" * 20)


async def do_raise(turn: Any, rest: str) -> None:
    raise ValueError(rest)


async def do_exit(turn: Any, rest: str) -> None:
    print("last words", flush=True)
    os._exit(int(rest))


async def do_segv(turn: Any, rest: str) -> None:
    ctypes.string_at(0)


async def do_kill(turn: Any, rest: str) -> None:
    os.kill(os.getpid(), getattr(signal, rest))
    await asyncio.sleep(1000)


async def do_memory(turn: Any, rest: str) -> None:
    taken = [bytearray(50_000_000) for _ in range(1000)]
    await turn.emit(str(len(taken)))


def peer_of(found: socket.socket) -> int:
    """The process that made a socket pair."""
    return int.from_bytes(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)


def channel() -> socket.socket:
    """The socket to the daemon, as code that means harm would find it."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(number))
            if found.family == socket.AF_UNIX and peer_of(found) not in (0, os.getpid()):
                return found
    raise AssertionError("there is no channel")


async def do_close(turn: Any, rest: str) -> None:
    """Close the connection, and go on."""
    await turn.emit("asleep")
    channel().shutdown(socket.SHUT_WR)
    await asyncio.sleep(1000)


async def do_write(turn: Any, rest: str) -> None:
    """Write what is no frame."""
    channel().sendall(rest.encode() + b"\n")
    await asyncio.sleep(1000)


async def do_long(turn: Any, rest: str) -> None:
    """Write a line that never ends."""

    def write() -> None:
        # It blocks: without that the runtime, which reads the same socket, would take it for lost.
        raw = channel()
        with contextlib.suppress(OSError):
            while True:
                raw.sendall(b"x" * 65_536)

    await asyncio.to_thread(write)
    await asyncio.sleep(1000)


async def do_overdraw(turn: Any, rest: str) -> None:
    fence = turn.address.fence
    line = b'{"jsonrpc":"2.0","method":"emit","params":{"fence":"%s","text":"%s"}}\n' % (fence.encode(), b"y" * 9_000)
    with contextlib.suppress(OSError):
        channel().sendall(line * 2_000)
    await asyncio.sleep(1000)


def plain(turn: Any) -> Any:
    """Do the same for a plain agent: it may block."""
    word, _, rest = turn.inputs[-1].content.partition(" ")
    if word == "sleep":
        try:
            turn.emit("asleep")
            time.sleep(1000)
        finally:
            with open(rest, "a") as file:
                file.write("cleaned up\n")
    if word == "call":
        return turn.call("shell", script=rest).content
    turn.emit(f"said: {rest}")
    return None


async def do_spawn(turn: Any, rest: str) -> list[Any]:
    """Have the daemon run a script, and wait for it."""
    process = await turn.spawn(["sh", "-c", rest], env=marked())
    await turn.emit(f"pid {process.pid}")
    done = await process.wait()
    return [done.status, done.output]


async def do_serve(turn: Any, rest: str) -> str:
    """Hand a process over to the session, and end."""
    process = await turn.spawn(["sh", "-c", rest], env=marked())
    await process.hand_over()
    return str(process.process_id)


async def do_spawn_and_die(turn: Any, rest: str) -> None:
    """Start a script, and be killed when it has said something."""
    process = await turn.spawn(["sh", "-c", rest], env=marked(), stdout="follow")
    await process.stdout.readline()
    await turn.emit("asleep")
    os.kill(os.getpid(), signal.SIGKILL)


def marked() -> dict[str, str]:
    """The mark of the test, for what is started by the daemon."""
    return {name: value for name, value in os.environ.items() if name.startswith("CM_")}
