"""Cancels a run in a host at each moment: after each bytecode of the runtime and of the agent, one after another.

    python host_moments.py FILE plain|async STRIDE [GAP...]

FILE starts the runtime. This is the program of a test, for any interpreter that the runtime supports; it needs the
standard library alone. A trace function counts bytecodes on the main thread. After one, two, ... of them it does what
the wire thread does when a cancel comes. For a plain agent it sets the token there, and does the rest GAP bytecodes
later: it wakes who waits, cancels the tokens below, and sends the signal. Each run must then hold to the rule: its end
is told once, and nothing cuts the clean-up.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

FILE, KIND, STRIDE = sys.argv[1], sys.argv[2], int(sys.argv[3])
GAPS = [int(gap) for gap in sys.argv[4:]] or [0]
CLEAN_UP = [0, 1, 2, 3, 4]
PATIENCE = 40
"""So many steps later, at the latest, the agent has to be told."""

spec = importlib.util.spec_from_file_location("countermand_host", FILE)
assert spec is not None
assert spec.loader is not None
start: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
runtime: Any = start.load()
parts: Any = {name: importlib.import_module(f"countermand.{name}") for name in ("host", "run", "turn", "wire")}
WHY = runtime.Provenance("user.console", "enough")
Refused, RunCancelled = runtime.Refused, runtime.RunCancelled


class Daemon(threading.Thread):
    """Answers what the host asks: a call of a tool of the host is executed first.

    A call of `never` has no answer until the host does not wait for it any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.number = 1_000_000
        self.executing: dict[int, int] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self.answered = threading.Condition()
        # Of all runs: how many effects behind guards may begin, have taken place, and are said to be done.
        self.permitted = self.effects = self.done = 0

    def run(self) -> None:
        for line in self.sock.makefile("rb"):
            self.take(json.loads(line))

    def take(self, frame: dict[str, Any]) -> None:
        if frame.get("method") == "call":
            self.called(frame["id"], frame["params"])
        elif frame.get("method") == "guard":
            self.permitted += 1
            self.send(id=frame["id"], result={})
        elif frame.get("method") == "guard.done":
            self.done += 1
        elif frame.get("method") == "$/cancel_request":
            result = {"call": "n", "outcome": "interrupted", "content": "nobody waits for it"}
            self.send(id=frame["params"]["requestId"], result=result)
        elif "method" not in frame:
            asked = self.executing.pop(frame["id"], None)
            if asked is not None:
                self.send(id=asked, result={"call": "c", "outcome": "finished", "content": "done"})
                return
            with self.answered:
                assert frame["id"] not in self.answers, f"answered twice: {frame}"
                self.answers[frame["id"]] = frame
                self.answered.notify_all()

    def check_effects(self) -> None:
        """What has taken place was permitted, and only that is said to be done."""
        assert self.done <= self.effects <= self.permitted, (self.done, self.effects, self.permitted)

    def called(self, number: int, params: dict[str, Any]) -> None:
        if params.get("where") == "host":
            self.number += 1
            self.executing[self.number] = number
            self.send(id=self.number, method="execute", params={"fence": "s:1:c", "call": "c", "of": number})
        elif params["tool"] != "never":
            self.send(id=number, result={"call": "d", "outcome": "finished", "content": "done"})

    def send(self, **frame: Any) -> None:
        self.sock.sendall(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def wait_for(self, there: Callable[[], bool]) -> None:
        with self.answered:
            assert self.answered.wait_for(there, 60), "no answer"


class Moment:
    """Acts after a number of bytecodes of this thread: it does `first`, and `gap` bytecodes later `then`."""

    def __init__(self, moment: int, gap: int, first: Callable[[], None], then: Callable[[], None]) -> None:
        self.count = 0
        self.moment, self.gap = moment, gap
        self.first, self.then = first, then

    @property
    def came(self) -> bool:
        return self.count >= self.moment

    def __enter__(self) -> Moment:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def trace(self, frame: types.FrameType, event: str, _: object) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(TRACED) or frame.f_code in UNTRACED:
                return None
            # Python 3.12 leaves out the bytecodes of some frames; Python 3.9 cannot do both.
            frame.f_trace_opcodes, frame.f_trace_lines = True, sys.version_info >= (3, 12)
        elif event in {"opcode", "line"}:
            self.count += 1
            if self.count == self.moment:
                self.first()
            if self.count == self.moment + self.gap:
                self.then()
        return self.trace


TRACED = (__file__, *runtime.__path__)
UNTRACED = {Moment.__enter__.__code__, Moment.__exit__.__code__}


class Failed(Exception):
    """The agent has failed by itself."""


class Story:
    """What the code of one run has seen."""

    def __init__(self) -> None:
        self.told: list[str] = []
        # Somebody waited in a door when the cancel came, and the agent did not run in between.
        self.waited = False
        self.cleaned: dict[str, list[int]] = {}
        self.lost = ""

    def check(self, error: BaseException | None, *, came: bool) -> None:
        assert not self.lost, self.lost
        assert len(self.told) == len(set(self.told)), f"told twice: {self.told}"
        for who in self.told:
            assert self.cleaned[who] == CLEAN_UP, f"the clean-up of {who} was cut: {self.cleaned}"
        for later in ("beside", "in a door") if self.waited else ("beside",):
            if {"agent", later} <= set(self.told):
                assert self.told.index("agent") < self.told.index(later), self.told
        assert error is None or isinstance(error, asyncio.CancelledError), repr(error)
        assert came or error is None, "nobody has cancelled it"


def new_run(host: Any, number: int) -> Any:
    params = {"fence": "s:1:", "session": "s", "generation": 1, "run": "r", "thread": [], "inputs": [], "tools": []}
    run = parts["run"].Run(host, number, {**params, "credit": {"events": 256, "bytes": 1_048_576}})
    host._run = run
    return run


# ── A plain agent ──


def plain(host: Any, daemon: Daemon, number: int, gap: int) -> bool:
    """Cancel a run after `number` bytecodes. Returns False if it was over before."""
    run, story = new_run(host, number), Story()
    turn = runtime.Turn(run)
    # An end by an error has other moments than a return.
    fails = number % 2 == 0

    def clean_up(who: str) -> None:
        story.told.append(who)
        done = story.cleaned.setdefault(who, [])
        for step in CLEAN_UP:
            done.append(step)

    def function() -> str:
        try:
            wait("the function, when it began,")
            turn.emit("in the function")
            wait("the function")
        except RunCancelled:
            clean_up("function")
            raise
        if fails:
            raise Failed
        return "value"

    def wait(who: str) -> None:
        # A call that blocks: whoever is cancelled has to be told in here.
        for _ in range(PATIENCE):
            if not run.token.cancelled:
                return
        story.lost = f"{who} was not told"

    def agent(turn: Any) -> str:
        try:
            wait("the agent, when it began,")
            turn.emit("before")
            with turn.cancel_token.guard("effect"):
                daemon.effects += 1
            try:
                assert turn.gate("tool", {}, function) == "value"
            except Failed:
                assert fails
            except Refused as error:
                raise AssertionError("only the run's end ends the call here") from error
            wait("the agent")
        except RunCancelled:
            clean_up("agent")
            raise
        if fails:
            raise Failed
        return "value"

    def set_token() -> None:
        run.token._provenance = WHY

    def cancel() -> None:
        run.token._provenance = None
        run.token._cancel(WHY)

    with Moment(number, gap, set_token, cancel) as moment:
        value, error = host.main.attempt(run.token, lambda: agent(turn))
        sys.settrace(None)
    if moment.count < number + gap:
        cancel()
    daemon.wait_for(lambda: not host.executing)
    if isinstance(error, Failed):
        assert fails
        error = None
    else:
        assert (value == "value") == (error is None)
        assert error is not None or not fails
    story.check(error, came=moment.came)
    daemon.check_effects()
    assert host.main.doors == 0
    assert host.main.targets == []
    return moment.came


# ── An async agent ──


def coroutine(host: Any, daemon: Daemon, number: int) -> bool:
    """Cancel a run after `number` bytecodes. Returns False if it was over before."""
    loop = host.loop = parts["host"].new_loop()
    run, story = new_run(host, number), Story()
    turn: Any = None

    async def clean_up(who: str, error: asyncio.CancelledError) -> None:
        assert type(error) is asyncio.CancelledError
        story.told.append(who)
        done = story.cleaned.setdefault(who, [])
        for step in CLEAN_UP:
            await asyncio.sleep(0)
            done.append(step)

    async def function() -> str:
        try:
            await turn.emit("in the function")
            await wait("the function")
        except asyncio.CancelledError as error:
            await clean_up("function", error)
            raise
        return "value"

    async def in_a_door() -> None:
        try:
            await turn.call("never")
        except asyncio.CancelledError as error:
            await clean_up("in a door", error)
            raise

    async def beside() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            await clean_up("beside", error)
            raise

    async def wait(who: str) -> None:
        # An await that takes long: whoever is cancelled has to be told in here.
        for _ in range(PATIENCE):
            await asyncio.sleep(0)
            if not run.token.cancelled:
                return
        story.lost = f"{who} was not told"

    async def agent(given: Any) -> str:
        nonlocal turn
        turn = given
        others = [asyncio.get_running_loop().create_task(one()) for one in (in_a_door, beside)]
        others[0].set_name("in_a_door")
        try:
            await turn.emit("before")
            async with turn.cancel_token.guard("effect"):
                daemon.effects += 1
            assert await turn.gate("tool", {}, function) == "value"
            await turn.call("tool")
            await wait("the agent")
        except asyncio.CancelledError as error:
            await clean_up("agent", error)
            raise
        await asyncio.sleep(0)
        if not run.token.cancelled:
            for other in others:
                other.cancel()
            await asyncio.wait(others)
        return "value"

    host._agent = agent
    loop.call_soon(host._begin, run)
    ended: dict[str, Any] = {}

    def stop() -> None:
        daemon.wait_for(lambda: number in daemon.answers)
        ended.update(daemon.answers[number])
        loop.call_soon_threadsafe(loop.stop)

    waiting = threading.Thread(target=stop)
    waiting.start()

    def cancel() -> None:
        asked = any(call.tool == "never" for call in run.calls.values())
        story.waited = asked and getattr(asyncio.current_task(loop), "get_name", str)() != "in_a_door"
        run.token._cancel(WHY)

    with Moment(number, 0, lambda: None, cancel) as moment:
        while not ended:
            loop.run_forever()
            if host._ended is not None:
                sys.settrace(None)
                closed, host._ended = host._ended, None
                host._end(*closed, cancelled=True)
    waiting.join()
    daemon.wait_for(lambda: not host.executing)
    cancelled = ended.get("error", {}).get("code") == -32800
    assert cancelled or ended["result"]["value"] == "value", ended
    story.check(asyncio.CancelledError() if cancelled else None, came=moment.came)
    daemon.check_effects()
    if cancelled and moment.came:
        assert not asyncio.all_tasks(loop)
    loop.close()
    return moment.came


def main() -> None:
    ours, theirs = socket.socketpair()
    wire = parts["wire"].Wire(theirs)
    host = parts["host"].Host(wire, "module:agent", [])
    wire.start()
    daemon = Daemon(ours)
    daemon.start()
    host._when_idle = host._when_busy = lambda: None
    signal.signal(signal.SIGINT, host.main.interrupt)
    tried = 0
    for gap in GAPS:
        moment = 1
        while plain(host, daemon, moment, gap) if KIND == "plain" else coroutine(host, daemon, moment):
            moment += STRIDE
            tried += 1
    print(tried)


main()
