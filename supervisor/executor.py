"""The executor port: runs agents, tools and callbacks.

Theory of operation. Async functions are tasks on one event loop, which has its own thread. A plain function gets a
thread of its own, named after the execution, since it may block as long as it likes. An execution elsewhere (in a
host, or by the caller of a gated function) is only registered here, and reports its own end. Callbacks run on a small
pool that grows when all its threads are busy, so that a blocking callback delays no other.

The loop serves all sessions, so no code on it may end it. A SystemExit or KeyboardInterrupt in a task that an agent
made, or an agent's call of `loop.stop`, ends `run_forever`; the thread logs that and calls it again, until `close`.

Every execution is registered under its key before it starts, and its end is kept until `forget`: an actor that adopts
the key later still gets the report. Recording the end and adopting use one lock, so an adopting actor always gets it,
from one side or the other. If no actor will adopt it any more (`forget_ended`), its end is not kept.

Bounds. At most `threads_max` executions run on threads, including leaked ones; one more ends at once, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from loguru import logger
from pykka import ActorRef

from actors.errors import described
from actors.gate.token import CancelToken
from actors.kernel.actor import tell
from actors.kernel.succession import Succession
from actors.messages import ExecutionEnded
from actors.model import How, Isolation
from actors.ports import Clock
from supervisor.by_session import BySession
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
    session: str = ""
    ended: ExecutionEnded | None = None
    forgotten: bool = False
    succession: Succession = field(default_factory=Succession)
    isolation: Isolation = Isolation.TASK
    token: CancelToken | None = None
    context: Context | None = None
    task: asyncio.Task[None] | None = None
    cancelled_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def adopt(self, owner: ActorRef[Any], *, anew: bool) -> None:
        """See `actors.ports.Executor.adopt`."""
        with self.lock:
            if not self.succession.admits(owner, anew=anew):
                return
            self.owner, self.forgotten = owner, False
            if self.ended is not None:
                tell(owner, self.ended)

    def forget(self) -> bool:
        """No actor will adopt it. True: it has ended; else it is forgotten when it ends."""
        with self.lock:
            self.forgotten = True
            return self.ended is not None

    @property
    def born_cancelled(self) -> bool:
        """True if it was cancelled before its first line; then no line of it runs."""
        return self.cancelled_at is not None or (self.token is not None and self.token.cancelled)

    def cancel(self, again_s: float | None) -> None:
        """Cancel the task: once, or once more after `again_s` seconds; see the port. On the loop."""
        now = asyncio.get_running_loop().time()
        first = self.cancelled_at is None
        if self.cancelled_at is None:
            self.cancelled_at = now
        if self.task is None:
            return
        # Its token may have raised the cancel in it already.
        is_new = first and (self.token is None or not self.token.was_raised_in(self.task))
        if is_new or (again_s is not None and now >= self.cancelled_at + again_s):
            self.task.cancel()


_ON_THREADS: Final[weakref.WeakValueDictionary[str, _Execution]] = weakref.WeakValueDictionary()
"""Executions on threads. They outlive the executor that started them; the next one in this process finds them here."""
# A forked child has none of these threads.
os.register_at_fork(after_in_child=_ON_THREADS.clear)


class ThreadExecutor:
    """`actors.ports.Executor` on an event loop and threads. Every method may be called from any thread.

    Args:
        clock: gives the times of ends.
        threads_max: limit on plain functions that run at once, including those that ignore their token.
        on_loop: called with the event loop before anything runs on it.
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
        # Reentrant: a signal handler that interrupts the main thread may use the executor, or close it.
        self._lock = threading.RLock()
        self._executions: dict[str, _Execution] = {}
        self._sessions = BySession()
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
        body: Callable[..., Any],
        owner: ActorRef[Any],
        token: CancelToken | None = None,
        context: Context | None = None,
        session: str = "",
    ) -> None:
        """Register `key`, then run `body` and send ExecutionEnded to `owner`, once; see the port."""
        execution = _Execution(key, name, owner, session, isolation=isolation, token=token, context=context)
        thread = self._thread_for(execution, body) if isolation is Isolation.THREAD else None
        with self._lock:
            self._keep(execution)
            closed = self._closed
            # Checked and added under one lock, so that two starts cannot both get the last free one.
            crowded = thread is not None and len(self._threads) >= self._threads_max
            if thread is not None and not closed and not crowded:
                self._threads.add(thread)
                _ON_THREADS[key] = execution
            loop, refusal = None, ""
            if not closed and isolation is Isolation.TASK:
                try:
                    loop = self._running_loop()
                except (RuntimeError, OSError) as error:
                    # A thread, or a descriptor, may be available the next time.
                    refusal = f"no event loop could be started: {error}"
        if closed or refusal:
            self._end(execution, How.NOT_STARTED, None, refusal or "the executor is closed")
        elif crowded:
            self._end(execution, How.NOT_STARTED, None, f"{self._threads_max} threads are busy; see leaked()")
        elif thread is not None:
            self._start_thread(execution, thread)
        elif isolation is Isolation.HOST:
            self._start_elsewhere(execution, body)
        elif loop is not None and not _soon(loop, self._start_task, execution, body):
            self._end(execution, How.NOT_STARTED, None, "the event loop is closed")

    def cancel(self, key: str, *, again_s: float | None = None) -> bool:
        """See `actors.ports.Executor.cancel`."""
        with self._lock:
            execution, loop = self._executions.get(key), self._loop
        if (
            execution is None
            or execution.isolation is not Isolation.TASK
            or loop is None
            or execution.ended is not None
        ):
            return False
        _soon(loop, execution.cancel, again_s)
        return True

    def adopt(self, key: str, owner: ActorRef[Any], *, anew: bool = False) -> bool:
        """See `actors.ports.Executor.adopt`."""
        with self._lock:
            execution = self._executions.get(key) or _ON_THREADS.get(key)
            if execution is None:
                return False
            self._keep(execution)
        execution.adopt(owner, anew=anew)
        return True

    def token(self, key: str) -> CancelToken | None:
        """See `actors.ports.Executor.token`."""
        with self._lock:
            execution = self._executions.get(key) or _ON_THREADS.get(key)
        return None if execution is None else execution.token

    def forget(self, key: str) -> None:
        """Forget an execution whose end has been handled."""
        with self._lock:
            self._executions.pop(key, None)
            self._sessions.discard(key)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `actors.ports.Executor.forget_ended`."""
        with self._lock:
            executions = [self._executions[key] for key in self._sessions.of(session) if key not in but]
        for execution in executions:
            if execution.forget():
                self.forget(execution.key)

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback soon, on another thread; its errors are contained."""
        self._callbacks.submit(callback)

    def leaked(self) -> list[str]:
        """Return the names of the threads that run agents and tools now; after a stop, those that ignore it."""
        return sorted(thread.name for thread in list(self._threads))

    def running(self) -> list[str]:
        """Return the keys of the executions on threads that have not ended: ids of runs (their agents) and of calls."""
        return [
            key
            for key, one in list(self._executions.items())
            if one.ended is None and one.isolation is Isolation.THREAD
        ]

    def runs_here(self) -> bool:
        """Return True if `close` would end the calling thread. Takes no lock: a signal handler may call it."""
        thread = threading.current_thread()
        return thread is self._loop_thread or thread in self._threads or self._callbacks.owns(thread)

    def close(self, timeout: float = 5.0) -> bool:
        """Cancel the tasks, end the loop and the callbacks. It may be called again.

        Threads of plain functions are left running, since a thread cannot be ended; while one runs, this returns False.
        It waits at most `timeout` seconds for the loop, and as long again for the callbacks; not for the thread that
        calls it.
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

    def _keep(self, execution: _Execution) -> None:
        """Under the lock."""
        self._executions[execution.key] = execution
        self._sessions.add(execution.key, execution.session)

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
            except BaseException as error:  # noqa: BLE001  # the loop serves all sessions and has to go on
                logger.error("a task raised {} out of the event loop, which goes on", described(error))
            else:
                if not self._closed:
                    logger.error("an agent or a tool stopped the event loop, which goes on")
        _end_loop(loop)

    def _start_task(self, execution: _Execution, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        assert self._loop is not None, "a task starts on the loop"
        if execution.context is not None:
            # The context came from the caller, whose own task is another one.
            execution.context.run(attribution.enter, None)
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
        except BaseException as error:  # noqa: BLE001  # every end of an agent or a tool is reported
            self._end(execution, How.RAISED, None, described(error))
        else:
            self._end(execution, How.RETURNED, value, None)

    def _task_gone(self, execution: _Execution, task: asyncio.Task[None]) -> None:
        if execution.ended is None:
            # It was cancelled before its first line, so `_run_task` could not report the end.
            self._end(execution, How.NOT_STARTED, None, "cancelled before its first line")
        if not task.cancelled():
            task.exception()

    # ── Threads ───────────────────────────────────────────────────────────────────────────────────

    def _thread_for(self, execution: _Execution, body: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                called = body() if execution.context is None else execution.context.run(body)
                value, error, how = called, None, How.RETURNED
            except BaseException as raised:  # noqa: BLE001  # every end of an agent or a tool is reported
                value, error, how = None, described(raised), How.RAISED
            # Before the report, so that its receiver finds the thread gone from the list.
            with self._lock:
                self._threads.discard(thread)
            self._end(execution, how, value, error)

        # A daemon thread: a tool that ignores its token must not keep the process from ending.
        thread = threading.Thread(target=run, name=f"countermand {execution.name}", daemon=True)
        return thread

    def _start_thread(self, execution: _Execution, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads.discard(thread)
            self._end(execution, How.NOT_STARTED, None, f"no thread could be started: {error}")

    # ── Elsewhere ─────────────────────────────────────────────────────────────────────────────────

    def _start_elsewhere(self, execution: _Execution, body: Callable[[Callable[[object], None]], Any]) -> None:
        try:
            body(lambda value: self._end(execution, How.RETURNED, value, None))
        except BaseException as raised:  # noqa: BLE001  # every end of an agent or a tool is reported
            self._end(execution, How.RAISED, None, described(raised))

    def _end(self, execution: _Execution, how: How, value: object, error: str | None) -> None:
        ended = ExecutionEnded(execution.key, how, self._clock.wall(), value, error)
        with execution.lock:
            if execution.ended is not None:
                # An execution elsewhere may report its end twice.
                return
            execution.ended = ended
            tell(execution.owner, ended)
            forgotten = execution.forgotten
        if forgotten:
            self.forget(execution.key)


class _CallbackPool:
    """Threads for callbacks. One is always idle, unless all that there may be are busy.

    A thread that takes a callback and leaves no other idle starts the next one itself. So `submit`, which is called in
    handlers, starts none, except after a start that failed: starting a thread blocks. Threads that were idle for a
    while end.
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
    """Wait for a thread. Returns True if it has ended; False at once if it is the calling thread."""
    if thread is threading.current_thread():
        return False
    thread.join(timeout)
    return not thread.is_alive()


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks of the loop and close it. A step that fails does not prevent the others."""
    if loop.is_closed():
        return
    for task in asyncio.all_tasks(loop):
        task.cancel()
    deadline = time.monotonic() + LAST_TASKS_S
    # In a loop: an exception that a task raises out of the event loop ends one wait, but not those for the others.
    while (tasks := asyncio.all_tasks(loop)) and (left := deadline - time.monotonic()) > 0:
        _last(loop, asyncio.wait(tasks, timeout=left))
    _last(loop, loop.shutdown_asyncgens())
    with contextlib.suppress(Exception):
        loop.close()


def _last(loop: asyncio.AbstractEventLoop, step: Coroutine[Any, Any, Any]) -> None:
    try:
        loop.run_until_complete(step)
    except BaseException as error:  # noqa: BLE001  # tasks that agents left behind may raise anything
        logger.warning("while the event loop ended: {}", described(error))
