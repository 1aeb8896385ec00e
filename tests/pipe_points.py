"""A server of JSON lines, and what code does with pipes up to each point at which a Stop may come; also in hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "hang":
        os.write(2, b"hangs")
        continue
    print(json.dumps({"id": asked["id"], "result": asked.get("params")}), flush=True)
    if asked["method"] == "last":
        break
"""
"""Answers a line of JSON with one, as an MCP server does; ``hang`` is never answered, and after ``last`` it exits."""

FULL = 1_000_000
"""More bytes than a pipe takes."""


def server() -> list[str]:
    """The command of the server."""
    return [sys.executable, "-c", SERVER]


def request(number: int, method: str = "echo") -> bytes:
    """A line for it."""
    return json.dumps({"id": number, "method": method, "params": {"n": number}}).encode() + b"\n"


def answer(number: int) -> dict[str, Any]:
    """What it says to that."""
    return {"id": number, "result": {"n": number}}


# ── Up to a Stop: each asks for what never comes ──────────────────────────────────────────────────


async def reading(spawn: Any, at: Callable[[], None]) -> None:
    """Iterate over what a server prints, in the middle of a conversation."""
    process = await spawn(server(), stdin="pipe", stdout="pipe")
    await process.stdin.write(request(1))
    async for line in process.stdout:
        assert json.loads(line) == answer(1)
        await process.stdin.write(request(2, "hang"))
        at()


async def following(spawn: Any, at: Callable[[], None]) -> None:
    """Iterate over output that is logged too, of a command that prints without a pause."""
    process = await spawn(["yes"], stdout="follow")
    async for line in process.stdout:
        assert line == b"y\n"
        at()


async def writing(spawn: Any, at: Callable[[], None]) -> None:
    """Write to a command that does not read."""
    process = await spawn(["sleep", "600"], stdin="pipe")
    at()
    await process.stdin.write(b"x" * FULL)


async def before_the_first_read(spawn: Any, at: Callable[[], None]) -> None:
    """Start it, and wait for something else."""
    process = await spawn(server(), stdin="pipe", stdout="pipe")
    at()
    await process.wait()


async def after_its_input_was_closed(spawn: Any, at: Callable[[], None]) -> None:
    """Close its input, and read to an end that does not come."""
    process = await spawn(["sh", "-c", "cat; sleep 600"], stdin="pipe", stdout="pipe")
    await process.stdin.write(b"all")
    process.stdin.close()
    at()
    await process.stdout.read()


async def typing(spawn: Any, at: Callable[[], None]) -> None:
    """Type on a terminal that is not read."""
    process = await spawn(["sleep", "600"], pty=True, stdin="pipe")
    at()
    await process.stdin.write(b"line\n" * (FULL // 5))


POINTS: list[Callable[[Any, Callable[[], None]], Awaitable[None]]] = [
    reading,
    following,
    writing,
    typing,
    before_the_first_read,
    after_its_input_was_closed,
]


# ── The same in plain code ────────────────────────────────────────────────────────────────────────


def plain_reading(spawn: Any, at: Callable[[], None]) -> None:
    """See `reading`."""
    process = spawn(server(), stdin="pipe", stdout="pipe")
    process.stdin.write(request(1))
    for line in process.stdout:
        assert json.loads(line) == answer(1)
        process.stdin.write(request(2, "hang"))
        at()


def plain_following(spawn: Any, at: Callable[[], None]) -> None:
    """See `following`."""
    for line in spawn(["yes"], stdout="follow").stdout:
        assert line == b"y\n"
        at()


def plain_writing(spawn: Any, at: Callable[[], None]) -> None:
    """See `writing`."""
    process = spawn(["sleep", "600"], stdin="pipe")
    at()
    process.stdin.write(b"x" * FULL)


def plain_before_the_first_read(spawn: Any, at: Callable[[], None]) -> None:
    """See `before_the_first_read`."""
    process = spawn(server(), stdin="pipe", stdout="pipe")
    at()
    process.wait()


def plain_after_its_input_was_closed(spawn: Any, at: Callable[[], None]) -> None:
    """See `after_its_input_was_closed`."""
    process = spawn(["sh", "-c", "cat; sleep 600"], stdin="pipe", stdout="pipe")
    process.stdin.write(b"all")
    process.stdin.close()
    at()
    process.stdout.read()


def plain_typing(spawn: Any, at: Callable[[], None]) -> None:
    """See `typing`."""
    process = spawn(["sleep", "600"], pty=True, stdin="pipe")
    at()
    process.stdin.write(b"line\n" * (FULL // 5))


PLAIN_POINTS: list[Callable[[Any, Callable[[], None]], None]] = [
    plain_reading,
    plain_following,
    plain_writing,
    plain_typing,
    plain_before_the_first_read,
    plain_after_its_input_was_closed,
]
