"""An agent that does what its messages say, and tools to go with it: what a model would do, by a script.

A message is a list of words, done one after the other:

    say=3          three texts                  sleep=60       a wait, such as a backoff
    write=2        a tool that awaits 2 s and then writes, if its token is not cancelled
    deaf=2         a tool that awaits 2 s and ignores its token and its cancels
    both=1         two calls of `write` at once
    open=5         a call of `write` that nobody waits for: the agent may end with it open
    run=5,exit=1   a tool that runs the process "sim runs=5 exit=1" and waits for it
    leave=60       a tool that starts the process "sim runs=60" and returns
    serve=60       a tool that starts it for the session, and returns
    hand=60        a tool that starts it for the run, hands it over to the session, and returns
    bad            a call of a tool that does not exist
    fail           a tool that raises
    steer          asks for messages that wait to steer, and says them
    stubborn       swallows its next cancels, a few times
    raise          raises            forever       waits until it is cancelled
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from actors.agent import AsyncTurn
from actors.cancel import AsyncCancelToken
from actors.plugins import Tool
from actors.spawning import AsyncSpawn

SWALLOWED_MAX: Final = 3


class AgentBroke(Exception):
    """What the scripted agent raises when it is told to."""


@dataclass(slots=True)
class Effects:
    """What the tools of one world did to it.

    `written` are fencing tokens of writes by the tool that looks at its token; `deaf` of those by the other. `handed`
    are ids of process trees whose tool was told that they are the session's.
    """

    written: list[str] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    on_begin: Callable[[str], None] | None = None
    on_write: Callable[[str], None] | None = None

    def begin(self, fence: str) -> None:
        """The first line of every tool."""
        if self.on_begin is not None:
            self.on_begin(fence)


async def scripted(turn: AsyncTurn) -> dict[str, int]:
    """Do what the inputs say, in order."""
    words = 0
    for message in turn.inputs:
        for word in message.content.split():
            await _do(turn, word)
            words += 1
    return {"words": words}


async def _do(turn: AsyncTurn, word: str) -> None:
    name, _, value = word.partition("=")
    match name:
        case "say":
            for number in range(int(value)):
                await turn.emit(f"text {number} ")
        case "sleep":
            await asyncio.sleep(float(value))
        case "write" | "deaf":
            await turn.call(name, seconds=float(value))
        case "both":
            await asyncio.gather(turn.call("write", seconds=float(value)), turn.call("write", seconds=0.1))
        case "open":
            call = asyncio.ensure_future(turn.call("write", seconds=float(value)))
            call.add_done_callback(_looked_at)
            # Two turns of the loop: the call has asked, and is left to itself.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        case "run" | "leave" | "serve" | "hand":
            await turn.call(name, argv=["sim", *f"runs={value}".split(",")])
        case "bad":
            await turn.call("no_such_tool")
        case "fail":
            await turn.call("fail")
        case "steer":
            for message in await turn.steering():
                await turn.emit(f"steered by {message.id} ")
        case "stubborn":
            await _stubborn()
        case "raise":
            raise AgentBroke("as it was told")
        case "forever":
            await asyncio.Event().wait()
        case _:
            await turn.emit(word)


async def _stubborn() -> None:
    """Swallow what comes, a few times; then it is over by itself."""
    for _ in range(SWALLOWED_MAX):
        try:
            await asyncio.sleep(3.0)
        except GeneratorExit:
            raise
        except BaseException:
            continue


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Take note of how a call ended that nobody waits for, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()


def tools(effects: Effects) -> list[Tool]:
    """Make the tools of one world."""

    async def write(seconds: float, token: AsyncCancelToken, fence: str) -> str:
        """Await, then write: the effect of a tool that looks at its token."""
        effects.begin(fence)
        await asyncio.sleep(seconds)
        if not token.cancelled:
            effects.written.append(fence)
            if effects.on_write is not None:
                effects.on_write(fence)
        return "written"

    async def deaf(seconds: float, fence: str) -> str:
        """Go on to the end, whatever is asked of it."""
        effects.begin(fence)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(max(until - loop.time(), 0.001))
            except GeneratorExit:
                raise
            except BaseException:
                continue
        effects.deaf.append(fence)
        return "done all the same"

    async def run(argv: list[str], spawn: AsyncSpawn, fence: str) -> str:
        """Run a process and wait for its exit."""
        effects.begin(fence)
        process = await spawn(argv)
        done = await process.wait()
        return f"exit {done.status}"

    async def leave(argv: list[str], spawn: AsyncSpawn, fence: str) -> str:
        """Start a process and leave it running."""
        effects.begin(fence)
        process = await spawn(argv)
        return f"pid {process.pid}"

    async def serve(argv: list[str], spawn: AsyncSpawn, fence: str) -> str:
        """Start a process for the session."""
        effects.begin(fence)
        process = await spawn(argv, owner="session")
        return f"pid {process.pid}"

    async def hand(argv: list[str], spawn: AsyncSpawn, fence: str) -> str:
        """Start a process, and hand it over to the session."""
        effects.begin(fence)
        process = await spawn(argv)
        await process.hand_over()
        effects.handed.append(process.process_id)
        return f"handed over {process.process_id}"

    async def fail(fence: str) -> str:
        """Raise."""
        effects.begin(fence)
        raise AgentBroke("the tool broke")

    return [Tool(function, isolation="task") for function in (write, deaf, run, leave, serve, hand, fail)]
