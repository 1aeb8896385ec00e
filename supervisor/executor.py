"""The executor port: where agents, tools and callbacks run.

Theory of operation. Async functions are tasks on one event loop, in a thread of its own. A plain function has
a thread for itself, named after what it runs, since it may block for as long as it likes. Callbacks run on a
small pool that grows when all of its threads are busy, so that one that blocks keeps no other from running.

The loop serves all sessions, so nothing that runs on it may end it: SystemExit or KeyboardInterrupt in a task that
an agent made, and a `stop` by an agent, leave `run_forever`; the thread logs that and goes back in, until `close`.

Every execution is registered under its key before it starts, and its end is kept until `forget`: whoever
adopts the key hears of an end that has happened. Between the end and the telling of it stands one lock, so an
adopting actor is told by the one side or by the other, and never by none.

Bounds. `threads_max` executions on threads, leaked ones counted; one more ends at once, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from loguru import logger
from pykka import ActorRef

from actors.errors import described
from actors.gate.token import CancelToken
from actors.kernel.actor import tell
from actors.messages import ExecutionEnded
from actors.model import How
from actors.ports import Clock, Isolation
from supervisor.strays import attribution

THREADS_MAX: Final = 512
CALLBACK_THREADS_MAX: Final = 64
CALLBACK_IDLE_S: Final = 10.0
LAST_TASKS_S: Final = 1.0


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Execution:
    key: str
    name: str
    owner: ActorRef[Any]
    ended: ExecutionEnded | None = None
    on_thread: bool = False
    token: CancelToken | None = None
    context: Context | None = None
    task: asyncio.Task[None] | None = None
    told: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def adopt(self, owner: ActorRef[Any]) -> None:
        """From here on tell `owner`; an end that has happened is told again."""
        with self.lock:
            self.owner = owner
            if self.ended is not None:
                tell(owner, self.ended)

    @property
    def born_cancelled(self) -> bool:
        """True if its end was decided before its first line: it never runs one."""
        return self.told or (self.token is not None and self.token.cancelled)

    def cancel(self, again: bool) -> None:
        """Tell the task of its end, once; see the port. On the loop."""
        told, self.told = self.told, True
        if self.task is None or (told and not again):
            return
        if again or self.token is None or not self.token.has_told(self.task):
            self.task.cancel()


_ON_THREADS: Final[weakref.WeakValueDictionary[str, _Execution]] = weakref.WeakValueDictionary()
"""Executions on threads, which outlive the executor that they were started by: the next in this process finds them."""
# A child that is forked has none of these threads.
os.register_at_fork(after_in_child=_ON_THREADS.clear)


class ThreadExecutor:
    """`actors.ports.Executor` on an event loop and threads. Every method may be called from any thread.

    Args:
        clock: for the times of ends.
        threads_max: how many plain functions may run at once, those that ignore their token too.
        on_loop: told of the event loop before anything runs on it.
    """

    def __init__(
        self,
        clock: Clock,
        threads_max: int = THREADS_MAX,
        on_loop: Callable[[asyncio.AbstractEventLoop], object] | None = None,
    ) -> None:
        self._clock = clock
        self._on_loop = on_loop
        self._threads_max = threads_max
        # A signal handler may come while the main thread has it, and ask, or close.
        self._lock = threading.RLock()
        self._executions: dict[str, _Execution] = {}
        self._threads: set[threading.Thread] = set()
        self._callbacks = _CallbackPool()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._closed = False

    def start(
        self,
        key: str,
        name: str,
        isolation: Isolation,
        body: Callable[[], Any],
        owner: ActorRef[Any],
        token: CancelToken | None = None,
        context: Context | None = None,
    ) -> None:
        """Register `key`, then run `body` and tell `owner` ExecutionEnded, once; see the port."""
        execution = _Execution(key, name, owner, on_thread=isolation == "thread", token=token, context=context)
        thread = self._thread_for(execution, body) if isolation == "thread" else None
        with self._lock:
            self._executions[key] = execution
            closed = self._closed
            # Asked and taken in one: of two that come together for the last place one gets it.
            crowded = thread is not None and len(self._threads) >= self._threads_max
            if thread is not None and not closed and not crowded:
                self._threads.add(thread)
                _ON_THREADS[key] = execution
            loop, refusal = None, ""
            if not closed and thread is None:
                try:
                    loop = self._running_loop()
                except (RuntimeError, OSError) as error:
                    # There may be room for a thread, or for a descriptor, the next time.
                    refusal = f"no event loop could be started: {error}"
        if closed or refusal:
            self._end(execution, How.NOT_STARTED, None, refusal or "the executor is closed")
        elif crowded:
            self._end(execution, How.NOT_STARTED, None, f"{self._threads_max} threads are busy; see leaked()")
        elif thread is not None:
            self._start_thread(execution, thread)
        elif loop is not None and not _soon(loop, self._start_task, execution, body):
            self._end(execution, How.NOT_STARTED, None, "the event loop is closed")

    def cancel(self, key: str, *, again: bool = False) -> None:
        """Cancel the task, if it is one and was not told before; a thread learns of it by its token. See the port."""
        with self._lock:
            execution, loop = self._executions.get(key), self._loop
        if execution is not None and loop is not None and execution.ended is None:
            _soon(loop, execution.cancel, again)

    def adopt(self, key: str, owner: ActorRef[Any]) -> bool:
        """From here on tell `owner`; an end that has happened is told again."""
        with self._lock:
            execution = self._executions.get(key) or _ON_THREADS.get(key)
            if execution is None:
                return False
            self._executions[key] = execution
        execution.adopt(owner)
        return True

    def forget(self, key: str) -> None:
        """The end of `key` was taken note of."""
        with self._lock:
            self._executions.pop(key, None)

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback soon, on another thread, with its errors contained."""
        self._callbacks.submit(callback)

    def leaked(self) -> list[str]:
        """Names of the threads that run now, agents and tools alike; after a stop: those that ignore it."""
        return sorted(thread.name for thread in list(self._threads))

    def running(self) -> list[str]:
        """Keys of the executions on threads that have not ended: ids of runs, for their agents, and of calls."""
        return [key for key, one in list(self._executions.items()) if one.ended is None and one.on_thread]

    def runs_here(self) -> bool:
        """True if the calling thread is one of those that `close` ends. Takes no lock: a signal handler may ask."""
        thread = threading.current_thread()
        return thread is self._loop_thread or thread in self._threads or self._callbacks.owns(thread)

    def close(self, timeout: float = 5.0) -> bool:
        """Cancel the tasks, end the loop and the callbacks; threads of plain functions are left to themselves.

        Again is harmless. From one of its own threads it does not wait for that one. Returns True if nothing is
        left running.
        """
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._loop_thread
        if loop is not None:
            _soon(loop, loop.stop)
        gone = thread is None or _joined(thread, timeout)
        quiet = self._callbacks.close(timeout)
        with self._lock:
            return gone and quiet and not self._threads

    # ── Tasks ─────────────────────────────────────────────────────────────────────────────────────

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            if self._on_loop is not None:
                self._on_loop(loop)
            thread = threading.Thread(target=self._run_loop, args=(loop,), name="countermand-loop", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop, self._loop_thread = loop, thread
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._closed and not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001  # the loop serves all: it outlives whatever comes
                logger.error("a task raised {} out of the event loop, which goes on", described(error))
            else:
                if not self._closed:
                    logger.error("an agent or a tool stopped the event loop, which goes on")
        _end_loop(loop)

    def _start_task(self, execution: _Execution, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        assert self._loop is not None, "a task starts on the loop"
        if execution.context is not None:
            # It is the caller's, whose own task this is not.
            execution.context.run(attribution.enter, None)
        execution.task = self._loop.create_task(
            self._run_task(execution, body), name=execution.name, context=execution.context
        )
        execution.task.add_done_callback(lambda task: self._task_gone(execution, task))
        if execution.born_cancelled:
            execution.told = True
            execution.task.cancel()

    async def _run_task(self, execution: _Execution, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            value = await body()
        except BaseException as error:  # noqa: BLE001  # every way out of an agent or a tool is told
            self._end(execution, How.RAISED, None, described(error))
        else:
            self._end(execution, How.RETURNED, value, None)

    def _task_gone(self, execution: _Execution, task: asyncio.Task[None]) -> None:
        if execution.ended is None:
            # It was cancelled before its first line, so nothing in it could tell.
            self._end(execution, How.NOT_STARTED, None, "cancelled before its first line")
        if not task.cancelled():
            task.exception()

    # ── Threads ───────────────────────────────────────────────────────────────────────────────────

    def _thread_for(self, execution: _Execution, body: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                called = body() if execution.context is None else execution.context.run(body)
                value, error, how = called, None, How.RETURNED
            except BaseException as raised:  # noqa: BLE001  # every way out of an agent or a tool is told
                value, error, how = None, described(raised), How.RAISED
            # First the count, then the word: whoever hears of the end finds the thread gone from the list.
            with self._lock:
                self._threads.discard(thread)
            self._end(execution, how, value, error)

        # Daemon: a tool that ignores its token must not keep the process from ending.
        thread = threading.Thread(target=run, name=f"countermand {execution.name}", daemon=True)
        return thread

    def _start_thread(self, execution: _Execution, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads.discard(thread)
            self._end(execution, How.NOT_STARTED, None, f"no thread could be started: {error}")

    def _end(self, execution: _Execution, how: How, value: object, error: str | None) -> None:
        ended = ExecutionEnded(execution.key, how, self._clock.wall(), value, error)
        with execution.lock:
            execution.ended = ended
            tell(execution.owner, ended)


class _CallbackPool:
    """Threads for callbacks. One is always idle, up to a bound; those that were not needed for a while go.

    A thread that takes a callback and leaves none idle starts the next one itself, so that `submit` only notifies: it
    is called in handlers, and starting a thread waits for it. Where none could be started, the next `submit` tries.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._short = False
        self._start_one()

    def submit(self, callback: Callable[[], None]) -> None:
        with self._changed:
            if not self._closed:
                self._queue.append(callback)
                self._changed.notify()
            short, self._short = self._short, False
        if short:
            self._start_one()

    def owns(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def close(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        gone = [_joined(thread, max(0.0, deadline - time.monotonic())) for thread in threads]
        return all(gone)

    def _start_one(self) -> None:
        thread = threading.Thread(target=self._run, name="countermand-callbacks", daemon=True)
        with self._changed:
            if self._closed or len(self._threads) >= CALLBACK_THREADS_MAX:
                return
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            logger.error("no thread for callbacks could be started: {}", error)
            with self._changed:
                self._threads.discard(thread)
                self._short = True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._queue and not self._closed:
                    signalled = self._changed.wait(CALLBACK_IDLE_S)
                    if not signalled and not self._queue and self._idle > 1:
                        break
                self._idle -= 1
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                callback = self._queue.popleft()
                last = self._idle == 0
            if last:
                self._start_one()
            try:
                callback()
            except BaseException:  # noqa: BLE001  # a callback is foreign code; its errors end here
                logger.opt(exception=True).error("a callback raised: {}", callback)


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> bool:
    """Run a callback on the loop; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return False
    return True


def _joined(thread: threading.Thread, timeout: float) -> bool:
    """True if a thread is gone, which is waited for, or never will be: it is the caller's."""
    if thread is threading.current_thread():
        return False
    thread.join(timeout)
    return not thread.is_alive()


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on the loop and close it; a step that fails keeps no other from its turn."""
    if loop.is_closed():
        return
    for task in asyncio.all_tasks(loop):
        task.cancel()
    deadline = time.monotonic() + LAST_TASKS_S
    # Again and again: what one task raises out of the loop ends a wait, and leaves the others to be waited for.
    while (tasks := asyncio.all_tasks(loop)) and (left := deadline - time.monotonic()) > 0:
        _last(loop, asyncio.wait(tasks, timeout=left))
    _last(loop, loop.shutdown_asyncgens())
    with contextlib.suppress(Exception):
        loop.close()


def _last(loop: asyncio.AbstractEventLoop, step: Coroutine[Any, Any, Any]) -> None:
    try:
        loop.run_until_complete(step)
    except BaseException as error:  # noqa: BLE001  # what agents leave behind may raise anything
        logger.warning("while the event loop ended: {}", described(error))
