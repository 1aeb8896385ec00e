"""SimExecutor: async agents and tools as real coroutines, on a loop that is stepped, in virtual time.

A step runs one handle of the loop, so that between any two awaits of any two coroutines the actors, the store
and the processes may have their turns. Plain functions would need threads, whose order no seed decides: they
are refused here and tested on real threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, Unpack

from pykka import ActorDeadError

from actors.gate.token import CancelToken
from actors.messages import ExecutionEnded
from actors.model import How, Isolation
from supervisor.executor import _Execution
from tests.sim.clock import SimClock
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from pykka import ActorRef


LATE_START: Final = 1 / 16
LATE_START_MAX_S: Final = 0.2

Ts = TypeVarTuple("Ts")


class SimLoop(asyncio.BaseEventLoop):
    """An event loop without a selector: its time is the clock's, and somebody else steps it."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._sim_clock = clock
        self._handles: deque[asyncio.Handle] = deque()
        # A task that a crash leaves behind is no news: its world has ended.
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        """Virtual seconds."""
        return self._sim_clock.monotonic()

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Queue a callback for a later step."""
        handle = asyncio.Handle(callback, args, self, context)
        self._handles.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Queue a callback at a moment of virtual time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self._handles.append(handle)

        self._sim_clock.call_at(when, due)
        return handle

    @property
    def ready(self) -> bool:
        """True if a step would run something."""
        handles = self._handles
        while handles and handles[0].cancelled():
            handles.popleft()
        return bool(handles)

    def step(self) -> None:
        """Run one handle."""
        handle = self._handles.popleft()
        asyncio._set_running_loop(self)
        try:
            if not handle.cancelled():
                handle._run()
        finally:
            asyncio._set_running_loop(None)

    def drop(self) -> None:
        """Run nothing any more."""
        self._handles.clear()
        self.close()


class SimExecutor:
    """`actors.ports.Executor` for async functions.

    Args:
        clock: virtual time.
        random: chooses among callbacks, which on a real executor run side by side.
        watch: asked when an execution is registered, and when it is cancelled.
    """

    def __init__(self, clock: SimClock, random: Random, watch: Watch) -> None:
        self._clock = clock
        self._random = random
        self._watch = watch
        self._loop = SimLoop(clock)
        self._executions: dict[str, _Execution] = {}
        self._callbacks: list[Callable[[], None]] = []
        self.errors: list[BaseException] = []
        self._dropped: set[asyncio.Task[Any]] = set()

    def start(
        self,
        key: str,
        name: str,
        isolation: Isolation,
        body: Callable[..., Any],
        owner: ActorRef[Any],
        token: CancelToken | None = None,
        context: Context | None = None,
        session: str = "",
    ) -> None:
        """Register `key`, then run the coroutine that `body` gives and tell `owner` ExecutionEnded, once."""
        if isolation is Isolation.THREAD:
            raise NotImplementedError(f"{name}: a plain function needs a thread; simulated worlds run async ones")
        self._watch.executions.starts(key, name)
        execution = _Execution(key, name, owner, session, isolation=isolation, token=token, context=context)
        self._executions[key] = execution
        if isolation is Isolation.HOST:
            body(lambda value: self._end(execution, How.RETURNED, value, None))
        elif self._random.random() < LATE_START:
            # As where all threads of a pool are busy.
            delay_s = self._random.random() * LATE_START_MAX_S
            self._loop.call_at(self._clock.monotonic() + delay_s, self._start_task, execution, body)
        else:
            self._loop.call_soon(self._start_task, execution, body)

    def cancel(self, key: str, *, again_s: float | None = None) -> bool:
        """Cancel the task, if it was not told before."""
        execution = self._executions.get(key)
        self._watch.ends.halts(key)
        if execution is None or execution.ended is not None:
            return False
        if execution.token is not None and not execution.token.cancelled:
            self._watch.break_(f"{key} is to end, and its token does not say so (L8)")
        if execution.isolation is not Isolation.TASK:
            return False
        self._loop.call_soon(execution.cancel, again_s)
        return True

    def adopt(self, key: str, owner: ActorRef[Any], *, anew: bool = False) -> bool:
        """From here on tell `owner`; an end that has happened is told again."""
        execution = self._executions.get(key)
        if execution is None:
            return False
        if not execution.succession.admits(owner, anew=anew):
            return True
        execution.owner, execution.forgotten = owner, False
        if execution.ended is not None:
            _tell(owner, execution.ended)
        return True

    def token(self, key: str) -> CancelToken | None:
        """The token of what was started and not forgotten."""
        execution = self._executions.get(key)
        return None if execution is None else execution.token

    def forget(self, key: str) -> None:
        """The end of `key` was taken note of."""
        self._executions.pop(key, None)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """What else has ended of a session, or ends from here on, is forgotten."""
        for one in [one for one in self._executions.values() if one.session == session and one.key not in but]:
            if one.forget():
                self.forget(one.key)

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback at a step of its own."""
        self._callbacks.append(callback)

    # ── For the world ─────────────────────────────────────────────────────────────────────────────

    @property
    def loop_ready(self) -> bool:
        """True if a coroutine can go on."""
        return self._loop.ready

    @property
    def callbacks_ready(self) -> bool:
        """True if a callback waits."""
        return bool(self._callbacks)

    def loop_step(self) -> None:
        """Let one coroutine go on to its next await."""
        self._loop.step()

    def callback_step(self) -> None:
        """Run one callback; they are equal, as on a pool of threads."""
        callback = self._callbacks.pop(int(self._random.random() * len(self._callbacks)))
        try:
            callback()
        except Exception as error:
            self.errors.append(error)

    def running(self) -> list[str]:
        """Names and keys of what has not ended."""
        return [f"{one.name} {one.key}" for one in self._executions.values() if one.ended is None]

    def kept(self) -> list[str]:
        """Names and keys of what has ended and was not forgotten."""
        return [f"{one.name} {one.key}" for one in self._executions.values() if one.ended is not None]

    def drop(self) -> None:
        """A crash: no coroutine goes on, and nobody is told."""
        # Kept until the schedule is over: a coroutine that is collected runs its clean-up, at a moment of no seed.
        self._dropped = asyncio.all_tasks(self._loop)
        for task in self._dropped:
            # Read by asyncio when a task that is pending is collected; there is no public way to say it.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                # It has not run a line, so closing it runs none; left open, Python would warn.
                coroutine.close()
        self._loop.drop()
        self._executions.clear()
        self._callbacks.clear()

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _start_task(self, execution: _Execution, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        execution.task = self._loop.create_task(
            self._run_task(execution, body), name=execution.name, context=execution.context
        )
        execution.task.add_done_callback(lambda task: self._task_gone(execution, task))
        if execution.born_cancelled:
            execution.cancelled_at = self._loop.time()
            execution.task.cancel()

    async def _run_task(self, execution: _Execution, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            value = await body()
        except GeneratorExit:
            # The world has crashed and its coroutines are collected: nothing is told.
            raise
        except BaseException as error:
            self._end(execution, How.RAISED, None, f"{type(error).__name__}: {error}")
        else:
            self._end(execution, How.RETURNED, value, None)

    def _task_gone(self, execution: _Execution, task: asyncio.Task[None]) -> None:
        if execution.ended is None:
            self._end(execution, How.NOT_STARTED, None, "cancelled before its first line")
        if not task.cancelled():
            task.exception()

    def _end(self, execution: _Execution, how: How, value: object, error: str | None) -> None:
        if execution.ended is not None:
            self._watch.break_(f"{execution.key} ends twice (L7)")
        execution.ended = ExecutionEnded(execution.key, how, self._clock.wall(), value, error)
        _tell(execution.owner, execution.ended)
        if execution.forgotten:
            self.forget(execution.key)


def _tell(owner: ActorRef[Any], ended: ExecutionEnded) -> None:
    try:
        owner.tell(ended)
    except ActorDeadError:
        return
