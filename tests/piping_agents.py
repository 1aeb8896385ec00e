"""Agents that use pipes, as the tests of hosts run them: imported in a host, never here.

A message has a word, who does it (the agent, or a tool of its own), and a file in which it is noted what code gets.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pipe_points  # type: ignore[import-not-found]  # in a host this folder is on the path

from countermand import AsyncSpawn, Spawn

FULL = b"x" * 1_000_000


def note(path: str, text: str) -> None:
    """Add a line to the file."""
    with open(path, "a") as file:
        file.write(text + "\n")


def pipes_open() -> int:
    """How many pipes this process has."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
        except FileNotFoundError:
            continue
    return found


def cause(error: Any) -> str:
    """What ended it, if the error says so: the cancel of a task does not."""
    return f" {error.provenance.source}" if hasattr(error, "provenance") else ""


def noting(path: str) -> Callable[[], None]:
    """Return what says, once, that code is where a Stop is to come."""
    said: list[None] = []

    def at() -> None:
        if not said:
            said.append(None)
            note(path, "at")

    return at


# ── Async code ────────────────────────────────────────────────────────────────────────────────────


async def do(word: str, spawn: Any, path: str) -> Any:
    """Do what the word says."""
    if word == "talk":
        return await talk(spawn)
    if word == "launched":
        return await launched(spawn, path)
    try:
        await getattr(pipe_points, word)(spawn, noting(path))
    except BaseException as error:
        note(path, f"{type(error).__name__}{cause(error)}")
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            await spawn(["true"], stdout="pipe")
        except BaseException as again:
            note(path, f"and {type(again).__name__}")
        raise


async def launched(spawn: Any, path: str) -> int:
    """Have a library start the server, and leave it in the middle of a conversation."""
    program, *arguments = pipe_points.server()
    child = await asyncio.create_subprocess_exec(spawn.launcher(program), *arguments, stdin=-1, stdout=-1)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(20):
        child.stdin.write(pipe_points.request(number))
        assert json.loads(await child.stdout.readline()) == pipe_points.answer(number)
    if path != "-":
        child.stdin.write(pipe_points.request(1, "hang"))
        note(path, "at")
        await asyncio.Event().wait()
    child.stdin.close()
    # One folder, however often it is asked for.
    assert os.path.dirname(spawn.launcher("true")) == os.path.dirname(spawn.launcher("false"))
    return await child.wait()


async def talk(spawn: Any) -> list[Any]:
    """Use each kind of pipe, and each of their ends."""
    process = await spawn(pipe_points.server(), stdin="pipe", stdout="pipe")
    for number in range(20):
        await process.stdin.write(pipe_points.request(number))
        assert json.loads(await process.stdout.readline()) == pipe_points.answer(number)
    process.stdin.close()
    seen = [[line async for line in process.stdout], (await process.wait()).status]
    process = await spawn(["sh", "-c", "echo one; read go; echo two"], stdin="pipe", stdout="follow")
    first = await process.stdout.readline()
    await process.stdin.write(b"go\n")
    seen += [first.decode(), (await process.stdout.read()).decode()]
    try:
        await process.stdin.write(FULL)
    except BrokenPipeError as error:
        seen.append("any more" in str(error))
    process = await spawn(["sh", "-c", "sleep 600 & echo up"], stdout="pipe")
    await process.stdout.readline()
    await process.wait()
    process.kill(0)
    seen.append((await process.stdout.readline()).decode())
    try:
        await spawn(["/no-such"], stdin="pipe", stdout="pipe")
    except OSError as error:
        seen.append("no-such" in str(error))
    return seen


async def async_tool(word: str, path: str, spawn: AsyncSpawn) -> str:
    """Do it in a call."""
    return json.dumps(await do(word, spawn, path))


async def agent(turn: Any) -> Any:
    """Do what the message says."""
    word, who, path = turn.inputs[-1].content.split()
    if who == "agent":
        assert turn.spawn is turn.spawn
        return await do(word, turn.spawn, path)
    return json.loads((await turn.call("async_tool", word=word, path=path)).content)


async def counting(turn: Any) -> int:
    """Do it, and return how many pipes are open then."""
    word, _, path = turn.inputs[-1].content.split()
    await do(word, turn.spawn, path)
    # Dropped with its input open.
    await (await turn.spawn(["true"], stdin="pipe")).wait()
    return pipes_open()


# ── Plain code ────────────────────────────────────────────────────────────────────────────────────


def plain_do(word: str, spawn: Any, path: str) -> Any:
    """Do what the word says."""
    if word == "talk":
        return plain_talk(spawn)
    if word == "launched":
        command = [spawn.launcher("sh"), "-c", "cat; exit 7"]
        ran = subprocess.run(command, input=b"typed", stdout=subprocess.PIPE, check=False)
        return [ran.returncode, ran.stdout.decode()]
    try:
        getattr(pipe_points, f"plain_{word}")(spawn, noting(path))
    except BaseException as error:
        note(path, f"{type(error).__name__}{cause(error)}")
        try:
            spawn(["true"], stdout="pipe")
        except BaseException as again:
            note(path, f"and {type(again).__name__}")
        raise


def plain_talk(spawn: Any) -> list[Any]:
    """See `talk`."""
    process = spawn(pipe_points.server(), stdin="pipe", stdout="pipe")
    for number in range(20):
        process.stdin.write(pipe_points.request(number))
        assert json.loads(process.stdout.readline()) == pipe_points.answer(number)
    process.stdin.close()
    seen = [list(process.stdout), process.wait().status]
    process = spawn(["sh", "-c", "echo one; read go; echo two"], stdin="pipe", stdout="follow")
    first = process.stdout.readline()
    process.stdin.write(b"go\n")
    seen += [first.decode(), process.stdout.read().decode()]
    try:
        process.stdin.write(FULL)
    except BrokenPipeError as error:
        seen.append("any more" in str(error))
    process = spawn(["sh", "-c", "sleep 600 & echo up"], stdout="pipe")
    process.stdout.readline()
    process.wait()
    process.kill(0)
    seen.append(process.stdout.readline().decode())
    try:
        spawn(["/no-such"], stdin="pipe", stdout="pipe")
    except OSError as error:
        seen.append("no-such" in str(error))
    return seen


def plain_tool(word: str, path: str, spawn: Spawn) -> str:
    """Do it in a call."""
    return json.dumps(plain_do(word, spawn, path))


def plain(turn: Any) -> Any:
    """Do what the message says."""
    word, who, path = turn.inputs[-1].content.split()
    if who == "agent":
        return plain_do(word, turn.spawn, path)
    return json.loads(turn.call("plain_tool", word=word, path=path).content)
