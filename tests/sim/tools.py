"""The tools of the scripted agents: what each does to its world, with an effect that the watch hears of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from actors.errors import QueueFull
from actors.gate.token import AsyncCancelToken
from actors.model import Isolation
from actors.plugin.emitting import AsyncEmit
from actors.plugin.registration import Plugins, Tool
from actors.plugin.spawning import AsyncSpawn
from tests.sim.bounds import PATIENT_S
from tests.sim.media import draws
from tests.sim.watch import Watch


class AgentBroke(Exception):
    """What the scripted agent raises when it is told to."""


@dataclass(slots=True)
class Effects:
    """What the tools of one world did to it, and who is told when they do.

    `written` are fencing tokens of writes by tools that look at their token; `deaf` of those by the one that does not.
    `handed` are ids of process trees whose tool was told that they are the session's.
    """

    watch: Watch
    written: list[str] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)

    @contextmanager
    def inside(self, fence: str, *, elsewhere: bool = False) -> Iterator[None]:
        """The body of every tool: its first line, and every way out of it."""
        self.watch.executions.begins(fence, elsewhere=elsewhere)
        returned = False
        try:
            yield
            returned = True
        finally:
            self.watch.executions.leaves(fence, returned=returned, elsewhere=elsewhere)

    def write(self, fence: str) -> None:
        """The effect of a tool that has looked at its token."""
        self.written.append(fence)
        self.watch.executions.writes(fence)


def _functions(effects: Effects | None) -> list[Callable[..., Any]]:
    """The functions of the tools; without effects only their signatures are of use."""

    def inside(fence: str) -> AbstractContextManager[None]:
        assert effects is not None, "a template is never called"
        return effects.inside(fence)

    async def write(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """Await, then write: the effect of a tool that looks at its token."""
        with inside(fence):
            await asyncio.sleep(seconds)
            if effects is not None and not token.cancelled:
                effects.write(fence)
        return "written"

    async def tidy(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """Wait, and clean up when told to end."""
        with inside(fence):
            assert effects is not None, "a template is never called"
            watch = effects.watch
            token._token.add_waker(lambda: watch.executions.tells(fence))
            async with cleaned_up(watch, fence, seconds):
                await asyncio.sleep(0.2)
                token.raise_if_cancelled()
                await asyncio.sleep(60)
        return "waited"

    async def late(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """Go on whatever comes, and look at the token before the effect."""
        with inside(fence):
            await whatever_comes(seconds)
            if effects is not None and not token.cancelled:
                effects.write(fence)
        return "written"

    async def guard(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """Come to a guard before each effect, also late, and in a task that nobody waits for."""
        assert effects is not None, "a template is never called"
        watch = effects.watch

        async def behind() -> None:
            await whatever_comes(seconds + 0.1)
            async with token.guard("behind"):
                watch.executions.has_effect(fence)

        with inside(fence):
            with token.guard("at once"):
                watch.executions.has_effect(fence)
            asyncio.ensure_future(behind()).add_done_callback(looked_at)
            await whatever_comes(seconds)
            with token.guard("then"):
                watch.executions.has_effect(fence)
        return "done"

    async def deaf(seconds: float, fence: str, of: str = "") -> str:
        """Go on to the end, whatever is asked of it."""
        with inside(fence):
            await whatever_comes(seconds)
            if effects is not None:
                effects.deaf.append(fence)
        return "done all the same"

    async def run(argv: list[str], spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Run a process and wait for its exit."""
        with inside(fence):
            process = await spawn(argv)
            done = await process.wait()
        return f"exit {done.status}"

    async def patient(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """As `write`; its deadline is its own."""
        with inside(fence):
            await asyncio.sleep(seconds)
            if effects is not None and not token.cancelled:
                effects.write(fence)
        return "written"

    patient.deadline_s = PATIENT_S  # type: ignore[attr-defined]  # as the decorator does

    async def allowed(seconds: float, token: AsyncCancelToken, fence: str, of: str = "") -> str:
        """As `write`; it needs a person's approval."""
        with inside(fence):
            await asyncio.sleep(seconds)
            if effects is not None and not token.cancelled:
                effects.write(fence)
        return "written"

    allowed.approve = True  # type: ignore[attr-defined]  # as the decorator does

    async def many(number: int, spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Run processes, one after the other."""
        with inside(fence):
            for _ in range(number):
                process = await spawn(["sim", "runs=0.01"])
                await process.wait()
                # Its end is proven a little later.
                await asyncio.sleep(0.1)
        return "all of them"

    async def tells(number: int, emit: AsyncEmit, fence: str, of: str = "") -> str:
        """Say texts; a task that it leaves behind says another one."""
        assert effects is not None, "a template is never called"

        async def behind() -> None:
            await whatever_comes(0.3)
            await emit(f"{fence} behind")

        with inside(fence):
            await emit.progress(of=fence)
            for count in range(number):
                await emit(f"{fence} {count}")
                await asyncio.sleep(0.1)
            asyncio.ensure_future(behind()).add_done_callback(looked_at)
        return "told"

    async def crowd(number: int, spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Start processes that run beside each other, as far as there may be so many."""
        with inside(fence):
            for _ in range(number):
                with suppress(QueueFull):
                    await spawn(["sim", "runs=3"])
        return "as many as there may be"

    async def leave(argv: list[str], spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Start a process and leave it running."""
        with inside(fence):
            process = await spawn(argv)
        return f"pid {process.pid}"

    async def serve(argv: list[str], spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Start a process for the session."""
        with inside(fence):
            process = await spawn(argv, owner="session")
        return f"pid {process.pid}"

    async def hand(argv: list[str], spawn: AsyncSpawn, fence: str, of: str = "") -> str:
        """Start a process, and hand it over to the session."""
        with inside(fence):
            process = await spawn(argv)
            for word in argv:
                if word.startswith("after="):
                    await asyncio.sleep(float(word.removeprefix("after=")))
            await process.hand_over()
            if effects is not None:
                effects.handed.append(process.process_id)
                effects.watch.trees.handed_over(process.process_id)
        return f"handed over {process.process_id}"

    async def fail(fence: str) -> str:
        """Raise."""
        with inside(fence):
            raise AgentBroke("the tool broke")

    own: list[Callable[..., Any]] = [
        write,
        tidy,
        late,
        guard,
        deaf,
        run,
        tells,
        patient,
        allowed,
        many,
        crowd,
        leave,
        serve,
        hand,
        fail,
    ]
    return [*own, draws(inside)]


async def proc(seconds: float, of: str = "") -> str:
    """Await: it is executed by what plays the processes of tools."""
    raise AssertionError(f"{of} has it executed here for {seconds} s")


@cache
def _templates() -> list[Tool]:
    """The tools with their schemas, which take far longer to make than a world does."""
    return [Tool(function, isolation="task") for function in _functions(None)]


def tools(effects: Effects) -> list[Tool]:
    """Make the tools of one world."""
    made = []
    for template, function in zip(_templates(), _functions(effects), strict=True):
        tool = copy(template)
        tool.function = function
        made.append(tool)
    return [*made, Tool(proc, isolation="process")]


class SimPlugins(Plugins):
    """Plugins in which `deaf` is known as a thread: nothing can cancel it, so the barrier waits for its end."""

    @property
    def isolation(self) -> dict[str, Isolation]:
        """The isolation of each tool, by name."""
        return super().isolation | {"deaf": Isolation.THREAD}


@asynccontextmanager
async def cleaned_up(watch: Watch, key: str, seconds: float) -> AsyncIterator[None]:
    """Have a clean-up of several awaits behind the block: an end is told once, and does not cut it (law L8)."""
    try:
        yield
    except asyncio.CancelledError as error:
        if type(error) is not asyncio.CancelledError:
            watch.break_(f"{key} is told of its end by {type(error).__name__} (L8)")
        try:
            for _ in range(4):
                await asyncio.sleep(seconds / 4)
        except asyncio.CancelledError:
            watch.executions.told_again(key)
            raise
        raise


async def whatever_comes(seconds: float) -> None:
    """Sleep to the end, and swallow every cancel."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await asyncio.sleep(max(until - loop.time(), 0.001))
        except GeneratorExit:
            raise
        except BaseException:
            continue


def looked_at(future: asyncio.Future[Any]) -> None:
    """Take note of how a call ended that nobody waits for, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()
