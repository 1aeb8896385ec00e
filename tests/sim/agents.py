"""An agent that does what its messages say: what a model would do, by a script. Its tools are in `tests.sim.tools`.

A message is a list of words, done one after the other:

    say=3          three texts                  sleep=60       a wait, such as a backoff
    show           progress, which is not stored
    write=2        a tool that awaits 2 s and then writes, if its token is not cancelled
    late=2         as write, and it swallows its cancels
    deaf=2         a tool that awaits 2 s and ignores its token and its cancels
    guard=2        a tool that has an effect behind a guard, ignores its cancels for 2 s, and comes to another guard; a
                   task that it leaves behind comes to a third one
    tells=3        a tool that says so many texts, each after a while, also behind its result
    told=0.2       as ``tells=9``, under a time limit of the agent's own
    files=2        two files, which are the message's own, and are read; draws=2 two of a tool; paints=2 of an answer
    patient=9      as write, by a tool with a deadline of its own
    gate=2         a function of the agent's own that awaits 2 s, through its gate
    foreign=2      a tool that the call brings along, and that somebody else executes, who awaits 2 s;
                   ``foreign_guard`` has an effect behind a guard before that
    proc=2         as `write`, by a tool in a process of its own, which does not look; where agents are in hosts
    fan=4          four calls of `write` at once
    many=9         a tool that runs nine processes, one after the other
    crowd=4        a tool that starts four processes at once, as far as it may, and returns
    limit=0.5      a call of `write` that takes 1 s, under a time limit of the agent's own; it goes on when that is over
    ask            asks a person; ``ask=2`` waits for 2 s at most
    allowed=2      as write, by a tool that a person has to allow
    both=1         two calls of `write` at once
    answer=0.5     an answer of a model, with thinking, texts and three calls: two of `write`, and a bad one
    answer_left=1  the same, left by an exception at its end
    open=5         a call of `write` that nobody waits for: the agent may end with it open
    run=5,exit=1   a tool that runs the process "sim runs=5 exit=1" and waits for it
    leave=60       a tool that starts the process "sim runs=60" and returns
    serve=60       a tool that starts it for the session, and returns
    hand=60        a tool that starts it for the run, hands it over to the session, and returns; ``hand=60,after=1``
                   hands it over a second later
    own=5,exit=1   the agent itself runs the process, in no call, and waits for it
    own_left=60    it starts it, and goes on; ``own_serve`` for the session, ``own_hand`` hands it over
    own_many=4     it starts so many at once, as far as it may
    bad            a call of a tool that does not exist
    fail           a tool that raises
    effect=2       the agent itself has an effect behind a guard, which takes 2 s, and comes to another guard
    to=other       in no message: one that is drawn with it names this agent
    hand_off=other hands the session over to another agent; to one that cannot be loaded, or is not there, in vain
    delegate=…     delegates to another agent: see `tests.sim.delegating`; ``left_delegate`` goes on meanwhile
    save=2         saves something for later runs, so many times; ``save=0`` removes it
    steer          asks for messages that wait to steer, and says them
    stubborn       swallows its next cancels, a few times
    tidy=3         works for a while, then waits in a tool; both clean up for 3 s when they are told to end
    raise          raises            forever       waits until it is cancelled
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from actors.errors import QueueFull, Refused
from actors.gate.token import CancelToken
from actors.messages import ToolResult
from actors.model import JsonObject, Outcome
from actors.plugin.foreign import Foreign, GatedTask
from actors.plugin.spawning import Spawn
from actors.plugin.turn import AsyncTurn
from actors.plugin.turn_core import PreparedCall
from tests.sim.asking import asked
from tests.sim.delegating import delegate, hand_off, leave_delegated
from tests.sim.hosts import HostTurn
from tests.sim.media import WORDS as MEDIA_WORDS
from tests.sim.model_answers import answered
from tests.sim.tools import AgentBroke, Effects, cleaned_up, looked_at
from tests.sim.watch import Watch

SWALLOWED_MAX: Final = 3


@dataclass(slots=True)
class Speaker:
    """What an agent says names its run and counts, so that a text in the wrong place is seen."""

    turn: AsyncTurn
    said: int = 0
    limits: int = 0
    asked: list[JsonObject] = field(default_factory=list)
    gated: dict[GatedTask[Any], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Know which calls were asked for: a time limit may be over before that."""
        core = self.turn._core
        request = core.request_call

        def asks(call: PreparedCall) -> tuple[str, Future[ToolResult]]:
            self.asked.append(call.arguments)
            call_id, reply = request(call)
            if isinstance(call.made, GatedTask):
                self.gated[call.made] = core.address.of_call(call_id).fence
            return call_id, reply

        core.request_call = asks  # type: ignore[method-assign]  # what the agent does is watched

    @property
    def run(self) -> str:
        """The run that it speaks for."""
        return self.turn.address.run

    async def say(self, emit: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Say the next text."""
        number, self.said = self.said, self.said + 1
        await (emit or self.turn.emit)(f"{self.run}:{number} ")


def scripted(watch: Watch, name: str = "scripted") -> Callable[[AsyncTurn], Awaitable[dict[str, int]]]:
    """Make the agent of one world, or another one that does the same."""

    async def agent(turn: AsyncTurn) -> dict[str, int]:
        """Do what the inputs say, in order."""
        speaker, words = Speaker(turn), 0
        watch.inside[speaker.run] = turn.address.session
        watch.choices.runs(turn.address.session, speaker.run, name)
        watch.saves.reads_state(turn.address.session, speaker.run, name, turn.state)
        # From its first line on: an end that the agent swallows is one that it was told of.
        turn.cancel_token._token.add_waker(lambda: watch.executions.tells(speaker.run))
        try:
            for message in turn.inputs:
                for word in message.content.split():
                    await _do(turn, speaker, word, watch)
                    words += 1
        finally:
            watch.inside.pop(speaker.run, None)
            watch.causes.told_why(turn.address.session, speaker.run, turn.cancel_token.provenance)
        return {"words": words}

    return agent


async def _do(turn: AsyncTurn, speaker: Speaker, word: str, watch: Watch) -> None:
    name, _, value = word.partition("=")
    run = speaker.run
    match name:
        case "say":
            for _ in range(int(value)):
                await speaker.say()
        case "show":
            await turn.progress(of=run)
        case "sleep":
            await asyncio.sleep(float(value))
        case "write" | "deaf" | "late" | "patient" | "guard" | "proc" | "allowed":
            tool = "write" if name == "proc" and not hasattr(turn, "host") else name
            await turn.call(tool, seconds=float(value), of=run)
        case "gate" if not hasattr(turn, "host"):
            await _gated(speaker, watch, float(value))
        case "gate" | "foreign" | "foreign_guard":
            await _foreign(speaker, watch, float(value), guarded=name == "foreign_guard")
        case "ask":
            await asked(turn, watch, float(value) if value else None)
        case "limit" | "told":
            await _limited(turn, speaker, watch, float(value), tells=name == "told")
        case "both" | "fan":
            times = [float(value), 0.1] if name == "both" else [0.1] * int(value)
            await asyncio.gather(*(turn.call("write", seconds=seconds, of=run) for seconds in times))
        case "many" | "crowd" | "tells":
            await turn.call(name, number=int(value), of=run)
        case "answer" | "answer_left":
            await answered(turn, watch, speaker.say, float(value), left=name == "answer_left")
        case "open":
            call = asyncio.ensure_future(turn.call("write", seconds=float(value), of=run))
            call.add_done_callback(looked_at)
            # Two turns of the loop: the call has asked, and is left to itself.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        case "run" | "leave" | "serve" | "hand":
            await turn.call(name, argv=["sim", *f"runs={value}".split(",")], of=run)
        case "own" | "own_left" | "own_serve" | "own_hand" | "own_many":
            await _own(turn, watch, name, value)
        case "bad" | "fail":
            await turn.call("no_such_tool" if name == "bad" else name)
        case "save" | "effect" | "hand_off" | "delegate" | "left_delegate" | "files" | "draws" | "paints":
            await _DECIDED[name](turn, watch, value)
        case "steer":
            for message in await turn.steering():
                await turn.emit(f"steered by {message.id} ")
        case "stubborn":
            await _stubborn()
        case "tidy":
            await _tidy(turn, watch, float(value))
        case "raise":
            raise AgentBroke("as it was told")
        case "forever":
            await asyncio.Event().wait()
        case _:
            await turn.emit(word)


async def _own(turn: AsyncTurn, watch: Watch, name: str, value: str) -> None:
    """Start a process in no call. It may be one too many, or be refused by a strict barrier."""
    with suppress(QueueFull, Refused):
        if name == "own_many":
            for _ in range(int(value)):
                await turn.spawn(["sim", "runs=3"])
            return
        owner = "session" if name == "own_serve" else "run"
        process = await turn.spawn(["sim", *f"runs={value}".split(",")], owner=owner)
        if name == "own":
            with suppress(OSError):
                await process.wait()
        elif name == "own_hand":
            with suppress(ProcessLookupError):
                await process.hand_over()
                watch.trees.handed_over(process.process_id)


async def _gated(speaker: Speaker, watch: Watch, seconds: float) -> None:
    """Have a function of one's own gated: what it returns is returned, whatever the thread is shown."""
    effects, returned = Effects(watch), object()
    before = set(speaker.gated.values())

    async def function() -> object:
        # Gated calls are asked for one after the other here, so it is the last.
        with effects.inside(next(fence for fence in speaker.gated.values() if fence not in before)):
            await asyncio.sleep(seconds)
        return returned

    with suppress(Refused):
        arguments = {"seconds": seconds, "of": speaker.run}
        begun = _begins_elsewhere(seconds)
        value = await speaker.turn.gate("gated", arguments, function, show=lambda _: "shown", begun=begun)
        if value is not returned:
            watch.break_(f"{speaker.run} is given {value!r} by its gate (L6)")


def _begins_elsewhere(seconds: float) -> bool:
    """True of some calls: they are said to have begun before they are asked for."""
    return int(seconds * 10) % 2 == 1


async def _foreign(speaker: Speaker, watch: Watch, seconds: float, *, guarded: bool) -> None:
    """Call a tool that is executed elsewhere, as a closure in a host is. `guarded`: it has an effect behind a guard."""
    effects, loop, core = Effects(watch), asyncio.get_running_loop(), speaker.turn._core
    host = getattr(speaker.turn, "host", None) or Elsewhere()

    def execute(fence: str, _: JsonObject, token: CancelToken, spawn: Spawn, finish: Callable[[object], None]) -> None:
        del spawn

        async def closure() -> ToolResult:
            with effects.inside(fence, elsewhere=True):
                if guarded:
                    async with _guard(speaker.turn, "write", watch, (fence, token)):
                        watch.executions.has_effect(fence)
                await asyncio.sleep(seconds)
            return ToolResult(Outcome.FINISHED, "written")

        def begin() -> None:
            # Its cancel is a word that comes behind: it may begin in spite of a fence, if it was told to before that.
            task = host.executes(closure(), finish, loop)
            if task is not None:
                token.add_waker(partial(_cancel_soon, loop, task))

        loop.call_soon(begin)

    arguments: JsonObject = {"seconds": seconds, "of": speaker.run}
    begun = _begins_elsewhere(seconds)
    call = core.prepare_named("foreign", arguments, Foreign("foreign", execute), None, begun=begun)
    await speaker.turn._called(call)


class Elsewhere:
    """Who executes the calls that bring their tool along, of an agent that is not in a host."""

    def executes(
        self, closure: Coroutine[Any, Any, object], finish: Callable[[object], None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[Any]:
        """Execute a call."""

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            finish(asyncio.CancelledError() if task.cancelled() else error or task.result())

        task = loop.create_task(closure)
        task.add_done_callback(ended)
        return task


def _cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    loop.call_soon(task.cancel)


async def _limited(turn: AsyncTurn, speaker: Speaker, watch: Watch, seconds: float, *, tells: bool) -> None:
    """Give a call up when a time limit is over, and go on: by then its result is in the thread (law L6)."""
    if tells:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await turn.call("tells", number=9, of=speaker.run)
        return
    number, speaker.limits = speaker.limits, speaker.limits + 1
    takes_s = 1.0 + number / 1e6
    try:
        async with asyncio.timeout(seconds):
            await turn.call("write", seconds=takes_s, of=speaker.run)
    except TimeoutError:
        calls = [call.arguments for message in turn.messages for call in message.tool_calls]
        mine = {"seconds": takes_s, "of": speaker.run}
        if mine in speaker.asked and mine not in calls and turn.cancelled_by is None:
            watch.break_(f"{speaker.run} goes on, and the call that it gave up has no result (L6)")
    await speaker.say()


async def _tidy(turn: AsyncTurn, watch: Watch, seconds: float) -> None:
    """Be in a door of the turn or outside, as the end may come; then clean up, which takes its time."""
    async with cleaned_up(watch, turn.address.run, seconds):
        for number in range(24):
            await asyncio.sleep(0 if number % 8 else 0.2)
            await turn.typing()
        await turn.call("tidy", seconds=seconds, of=turn.address.run)


async def _save(turn: AsyncTurn, watch: Watch, times: int) -> None:
    """Save what names the run; what is returned from is durable, and is in the state."""
    run = turn.address.run
    nothing: JsonObject = {"key 0": None, "key 1": None}
    for changes in [{f"key {number % 2}": [run, number]} for number in range(times)] or [nothing]:
        await turn.save(**changes)
        watch.saves.has_saved(turn.address.session, run, changes)
        if any(turn.state.get(key) != value for key, value in changes.items()):
            watch.break_(f"{run} has saved {changes}, and its state is {turn.state} (L6)")


async def _guarded(turn: AsyncTurn, watch: Watch, seconds: float) -> None:
    """Have effects of one's own behind guards."""
    in_host = hasattr(turn, "host")
    for name, takes_s in (("slow", seconds), ("then", 0.0)):
        async with _guard(turn, name, watch):
            watch.executions.has_own_effect(turn.address, in_host=in_host)
            await asyncio.sleep(takes_s)


def _guard(
    turn: AsyncTurn, name: str, watch: Watch, call: tuple[str, CancelToken] | None = None
) -> AbstractAsyncContextManager[None]:
    """Return a guard of the agent's own, or of a call: its fence, its token. One in a host asks the daemon."""
    if isinstance(turn, HostTurn):
        return turn.guard(name, watch, call)
    return (turn.cancel_token if call is None else call[1].aio).guard(name)


async def _stubborn() -> None:
    """Swallow what comes, a few times; then it is over by itself."""
    for _ in range(SWALLOWED_MAX):
        try:
            await asyncio.sleep(3.0)
        except GeneratorExit:
            raise
        except BaseException:
            continue


_DECIDED: Final[dict[str, Callable[[AsyncTurn, Watch, str], Awaitable[None]]]] = {
    "save": lambda turn, watch, value: _save(turn, watch, int(value)),
    "effect": lambda turn, watch, value: _guarded(turn, watch, float(value)),
    "hand_off": hand_off,
    "delegate": delegate,
    "left_delegate": leave_delegated,
    **MEDIA_WORDS,
}
"""Words of which the session decides, each with what does it."""
