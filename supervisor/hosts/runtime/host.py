"""The host: this process. It says `hello`, and then carries out one run at a time.

The main thread has the agent; the wire's thread handles the frames. See the head of this package.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import inspect
import os
import queue
import signal
import socket
import sys
import typing
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from . import configured, daemon_log
from .call import Call
from .credit import fail, settle
from .errors import Invalid
from .loading import code_changed_at, imported, is_async, lacks_a_package, named, says_all, why_broken
from .main_thread import MainThread
from .plain import as_json, bounded_json, report, words
from .run import Run
from .token import tell
from .tools import Tool
from .turn import AsyncTurn, Turn
from .values import Provenance
from .wakeup import Wakeup
from .wire import CANCELLED, RAISED, REFUSED, Wire, WireError, line

PROTOCOL = 1
CAN = ("credit", "ping", "thread_from")
PATH = "COUNTERMAND_PATH"
OWN = "countermand."
"""Modules whose names begin so are of this runtime."""
GOODBYE_S = 5.0
"""How long a host whose agent cannot be loaded waits for the daemon to receive the reason."""
EXIT_BROKEN = 3

T = TypeVar("T")


class CountingTask(asyncio.Task[Any]):
    """A task that counts its cancels, as tasks do from Python 3.11 on."""

    asked = 0

    def cancel(self, msg: Any = None) -> bool:
        """Count, and cancel."""
        self.asked += 1
        return super().cancel(msg)

    def cancelling(self) -> int:
        """Return how often it was cancelled."""
        return self.asked


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose tasks count their cancels, as the current one of this thread."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 11):
        loop.set_task_factory(lambda loop, coroutine: CountingTask(coroutine, loop=loop))
    return loop


class Host:
    """This process: it says `hello`, and then carries out one run at a time.

    Args:
        wire: to the daemon.
        spelled: the agent, ``module:function``.
        tools: tools to execute here, spelled likewise.
    """

    def __init__(self, wire: Wire, spelled: str, tools: Sequence[str]) -> None:
        self.wire = wire
        self._spelled = spelled
        self._spelled_tools = tools
        self.tools: dict[str, Tool] = {}
        self._code_changed_at: float | None = None
        self.main = MainThread()
        self._wakeup = Wakeup()
        # Of an async agent.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._run: Run | None = None
        # Of the last run: the messages that it came with.
        self._thread: list[Mapping[str, Any]] = []
        # Of a plain agent. None: leave.
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._ended: tuple[Run | None, Any, BaseException | None] | None = None
        # Calls whose function is being executed, by the id of their `execute`.
        self.executing: dict[int, Call] = {}
        wire.handlers.update(
            {
                "run": self._on_run,
                "execute": self._on_execute,
                "$/cancel_request": self._on_cancel,
                "credit": self._on_credit,
                "process": self._on_process,
                "ping": self._on_ping,
            }
        )

    def serve(self) -> None:
        """Load the agent, say `hello`, and carry out runs until the process is ended. Main thread."""
        signal.signal(signal.SIGINT, self.main.interrupt)
        hello: dict[str, Any] = {"protocol": [PROTOCOL], "runtime": f"python {sys.version.split()[0]}", "can": CAN}
        try:
            agent = self._load()
        except BaseException as error:  # noqa: BLE001  # any error is reported to the daemon
            if not says_all(error) and not lacks_a_package(error):
                report(error)
            self._hello({**hello, "error": why_broken(self._spelled, error)}, GOODBYE_S)
            _flush()
            os._exit(EXIT_BROKEN)
        offers = [tool.offer for tool in self.tools.values()]
        hello.update(agent={"async": self.loop is not None}, tools=offers, code_changed_at=self._code_changed_at)
        self._hello(hello, None)
        self._when_idle()
        if self.loop is None:
            self._serve_plain(agent)
        else:
            self._serve_async(self.loop, agent)

    def _load(self) -> Callable[..., Any]:
        """Import agent and tools, and let the agent's module prepare itself."""
        self._code_changed_at = code_changed_at(self._spelled)
        agent = imported(self._spelled)
        for spelled in self._spelled_tools:
            found = named(spelled)
            made = found if isinstance(found, Tool) else Tool(imported(spelled))
            if made.name in self.tools:
                raise Invalid("two tools have the same name", got=made.name, remedy="rename one: tool(name=…)")
            self.tools[made.name] = made
        if is_async(agent):
            # Made here and not before: the module may have chosen another kind of loop.
            self.loop = new_loop()
        prepare = getattr(sys.modules[self._spelled.partition(":")[0]], "prepare", None)
        if callable(prepare):
            prepared = prepare()
            if inspect.isawaitable(prepared):
                loop = self.loop
                asyncio.run(_awaited(prepared)) if loop is None else loop.run_until_complete(_awaited(prepared))
        return agent

    def _hello(self, params: Mapping[str, Any], timeout: float | None) -> None:
        answered: Future[None] = Future()

        def taken(_: Any, error: WireError | None) -> None:
            settle(answered, None) if error is None else fail(answered, error)
            if error is None:
                daemon_log.daemon.append(self.wire)

        self.wire.ask("hello", params, taken)
        try:
            answered.result(timeout)
        except WireError as error:
            report(error.public())
            _flush()
            os._exit(EXIT_BROKEN)
        except FutureTimeoutError:
            return

    # ── Frames; on the wire thread ──

    def _on_run(self, number: int | None, params: Mapping[str, Any]) -> None:
        if number is None:
            return
        if self._run is not None:
            data = {"code": "run_active", "expected": "one run at a time", "got": str(params.get("run"))}
            self.wire.refuse(number, REFUSED, "a run is active in this host", data)
            return
        known = params.get("thread_from") or 0
        if known > len(self._thread):
            raise ValueError(f"the last run came with {len(self._thread)} messages, and {known} are left out")
        thread = [*self._thread[:known], *params["thread"]]
        run = self._run = Run(self, number, {**params, "thread": thread})
        self._thread = thread
        if self.loop is None:
            self._runs.put(run)
            self._wakeup.wake()
        else:
            self.loop.call_soon_threadsafe(self._begin, run)

    def _on_execute(self, number: int | None, params: Mapping[str, Any]) -> None:
        if number is None:
            return
        call = self._run.calls.get(params["of"]) if self._run is not None else None
        if call is None:
            self.wire.refuse(number, CANCELLED, "this call is not waited for")
        else:
            call.executed(number, params)

    def _on_cancel(self, _: int | None, params: Mapping[str, Any]) -> None:
        number, why = params["requestId"], Provenance.of(params["why"])
        run = self._run
        if run is not None and run.number == number:
            run.token._cancel(why)
            return
        call = self.executing.get(number)
        if call is not None:
            call.token._cancel(why)

    def _on_ping(self, number: int | None, _: Mapping[str, Any]) -> None:
        if number is not None:
            self.wire.answer(number, {})

    def _on_credit(self, _: int | None, params: Mapping[str, Any]) -> None:
        run = self._run
        if run is not None and run.fence == params["fence"]:
            run.credit.give(params["events"], params["bytes"])

    def _on_process(self, _: int | None, params: Mapping[str, Any]) -> None:
        run = self._run
        tree = None if run is None else run.trees.pop(params["process"], None)
        if tree is not None:
            tree.heard(params)

    def tell(self, run: Run) -> None:
        """Tell the agent that its run is cancelled. Any thread."""
        if self.loop is None:
            self.main.urge()
        else:
            self.loop.call_soon_threadsafe(self._tell_task, run)

    @staticmethod
    def _tell_task(run: Run) -> None:
        if run.task is not None and run.task_told is not None:
            tell(run.task, run.token._told)
            run.task_told.set()

    # ── An async agent; on the main thread ──

    def _serve_async(self, loop: asyncio.AbstractEventLoop, agent: Callable[..., Any]) -> None:
        self._agent = agent
        self._wakeup.watched_by(loop)
        while True:
            # A task that raises SystemExit ends the loop's run, and nothing else.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
            ended, self._ended = self._ended, None
            if ended is not None:
                self._end(*ended, cancelled=True)

    def _begin(self, run: Run) -> None:
        """Begin a run. On the loop."""
        self._when_busy()
        loop = typing.cast("asyncio.AbstractEventLoop", self.loop)

        async def body() -> Any:
            run.token.raise_if_cancelled()
            try:
                return await self._agent(AsyncTurn(run))
            except (SystemExit, KeyboardInterrupt) as error:
                # The loop would end by it.
                raise _Exited(error) from None

        run.task_told = asyncio.Event()
        run.task = loop.create_task(body())
        run.task.add_done_callback(functools.partial(self._returned, run))

    def _returned(self, run: Run, task: asyncio.Task[Any]) -> None:
        """Take note that the agent's function has ended. On the loop."""
        try:
            value, error = task.result(), None
        except _Exited as exited:
            value, error = None, exited.error
        except BaseException as raised:  # noqa: BLE001  # every end of an agent is answered
            value, error = None, raised
        if run.token.cancelled:
            typing.cast("Any", self.loop).create_task(self._close(run, value, error))
        else:
            self._end(run, value, error, cancelled=False)

    async def _close(self, run: Run | None, value: Any, error: BaseException | None) -> None:
        """End what an agent has left on the loop, then leave the loop."""
        loop = asyncio.get_running_loop()
        told = weakref.WeakSet() if run is None else run.token._told
        while rest := asyncio.all_tasks() - {typing.cast("Any", asyncio.current_task())}:
            for task in rest:
                # A task that was cancelled already is cleaning up, and must not be interrupted.
                if not getattr(task, "cancelling", int)():
                    tell(task, told)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(rest)
        with contextlib.suppress(asyncio.CancelledError):
            await loop.shutdown_asyncgens()
        # Functions for the exit may run a loop of their own.
        self._ended = (run, value, error)
        loop.stop()

    # ── A plain agent; on the main thread ──

    def _serve_plain(self, agent: Callable[..., Any]) -> None:
        while True:
            run = self._wakeup.next_of(self._runs)
            if run is None:
                self._end(None, None, None, cancelled=True)
                continue
            self._when_busy()
            call = functools.partial(contextvars.copy_context().run, agent, Turn(run))
            self._end(run, *self.main.attempt(run.token, call), cancelled=run.token.cancelled)

    # ── The end of a run ──

    def _end(self, run: Run | None, value: Any, error: BaseException | None, *, cancelled: bool) -> None:
        """Answer a run; None: leave. On the main thread, outside of the agent's code."""
        if cancelled:
            _run_exit_functions()
        else:
            self._when_idle()
        if run is None:
            _flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        try:
            frame = line(id=run.number, **_answer(run, value, error))
        except BaseException as failed:  # noqa: BLE001  # the value is a foreign object
            frame = line(id=run.number, **_answer(run, None, failed))
        _flush()
        self._run = None
        self.wire.write(frame)
        run.token._cancel(Provenance("run.ended", "this run is over"))

    def _when_idle(self) -> None:
        """Leave in good order at SIGTERM: what exporters hold is flushed."""
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._leave)
        if self.loop is not None:
            self._wakeup.set_anew()

    def _when_busy(self) -> None:
        """Die at SIGTERM, as any process."""
        if signal.getsignal(signal.SIGTERM) == self._leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _leave(self, _signal: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.loop is None:
            self._runs.put(None)
        else:
            loop = self.loop
            loop.call_soon_threadsafe(lambda: loop.create_task(self._close(None, None, None)))


def _run_exit_functions() -> None:
    """Run what is registered with `atexit`; but processes of `multiprocessing` are not joined, no more than threads."""
    util: Any = sys.modules.get("multiprocessing.util")
    try:
        if util is not None:
            atexit.unregister(util._exit_function)
        atexit._run_exitfuncs()
        if util is not None:
            util._exit_function(active_children=list)
    except BaseException as error:  # noqa: BLE001  # the answer follows
        report(error)


class _Exited(Exception):
    """The agent raised SystemExit or KeyboardInterrupt."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _answer(run: Run, value: Any, error: BaseException | None) -> dict[str, Any]:
    """Return the answer to a run, as a part of its frame."""
    if error is None:
        return {"result": {"value": bounded_json(value)}}
    if isinstance(error, asyncio.CancelledError) and run.token.cancelled:
        data = as_json({"provenance": run.token.provenance})
        return {"error": {"code": CANCELLED, "message": "cancelled", "data": data}}
    if not says_all(error):
        report(error)
    text = words(error)
    data = {"type": type(error).__name__, "message": text.partition(": ")[2]}
    return {"error": {"code": RAISED, "message": text, "data": data}}


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def main(channel: int, agent: str, tools: Sequence[str]) -> None:
    """Be the host of an agent until this process is ended. Main thread.

    Args:
        channel: the descriptor of the socket to the daemon.
        agent: ``module:function``.
        tools: the user's, likewise.
    """
    sock = socket.socket(fileno=channel)
    sock.setblocking(True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            typing.cast("Any", stream).reconfigure(line_buffering=True, errors="backslashreplace")
    folders = [*filter(None, os.environ.pop(PATH, "").split(os.pathsep))]
    if tools or not agent.startswith(OWN):
        # Of a preset no module is the user's, and the directory may be one that a program works on.
        folders.append(os.getcwd())
    sys.path[:0] = folders
    sys.argv = [agent]
    configured.servers()
    wire = Wire(sock)
    host = Host(wire, agent, tools)
    wire.start()
    host.serve()
