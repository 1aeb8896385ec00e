"""Cancel tokens: each tells running code that it should end.

Theory of operation. Cancelling sets state and wakes waiters; it runs no foreign code. Callbacks go to the executor,
which contains their errors. The product's own waits use *wakers*, which run inside the cancel: they never block, and
a foreign callback that blocks must not delay the stop of another session. A cancelled token stays cancelled for ever
(law L8): nothing can clear it.

Async code is cancelled once (law L8): by the cancel of its task, or by a *door* (a method of the turn, of its token, of
`spawn`) that it uses before that cancel comes. The second of the two must not interrupt the clean-up that the first has
started. So a door records which task it raised in, and the executor checks that before it cancels a task. Both happen
on the task's own loop, so nothing can come in between.

The garbage collector may close a foreign generator at any allocation, and the generator's clean-up may use a token
whose lock this thread holds. So a token's lock is reentrant, and nothing is allocated under it except in `cancel`,
which has set the first cause by then.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from loguru import logger

from actors.errors import Invalid, RunCancelled
from actors.gate.guard import AsyncGuard, Effects, Guard
from actors.kernel.waker import Waker
from actors.model import Effect, Provenance

R = TypeVar("R")

GROUP_TURNS: Final = 50
"""How many turns of the loop a further task waits for its group to cancel it: enough for a dozen nested groups."""
CALLBACKS_MAX: Final = 1000

Notify = Callable[[Callable[[], None]], None]
"""Runs a callback on another thread and contains its errors (`Executor.call`)."""


class CancelToken:
    """Tells a run or a call that it should end. It may be read from any thread, at any time.

    Args:
        notify: runs callbacks; the executor's `call`.
        parent: a token whose cancel cancels this one too, with the same provenance.
    """

    __slots__ = (
        "_callbacks",
        "_children",
        "_count",
        "_effects",
        "_keys",
        "_lock",
        "_notify",
        "_over",
        "_own_task",
        "_parent",
        "_provenance",
        "_raised_in",
        "_waiters",
        "_wakers",
    )

    def __init__(self, notify: Notify, parent: CancelToken | None = None) -> None:
        self._lock = threading.RLock()
        self._notify = notify
        self._parent = parent
        self._provenance: Provenance | None = None
        # Why no effect may begin any more though nothing was cancelled: what the token belongs to has ended.
        self._over: Provenance | None = None
        self._effects: Effects | None = None
        self._keys = itertools.count()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wakers: dict[int, Callable[[], object]] = {}
        # Callbacks that were added and not removed; those that a cancel handed over stay counted.
        self._count = 0
        # Ordered, so that the simulator is deterministic.
        self._children: dict[CancelToken, None] = {}
        self._waiters: list[threading.Event] = []
        # Tasks in which a door has raised this token's cancel.
        self._raised_in: weakref.WeakSet[asyncio.Task[Any]] | None = None
        # The task of the agent or the tool itself; its own tasks are others.
        self._own_task: weakref.ref[asyncio.Task[Any]] | None = None
        if parent is not None:
            parent._attach(self)

    @property
    def cancelled(self) -> bool:
        """True once it is cancelled, for good."""
        return self._provenance is not None

    @property
    def provenance(self) -> Provenance | None:
        """Who cancelled it and why. The first cause stands."""
        return self._provenance

    def raise_if_cancelled(self) -> None:
        """Raise RunCancelled, on every call, if it is cancelled."""
        provenance = self._provenance
        if provenance is not None:
            raise RunCancelled(provenance)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is cancelled or `timeout` seconds have passed. Returns True if it is cancelled."""
        waiter = threading.Event()
        with self._lock:
            if self._provenance is not None:
                return True
            self._waiters.append(waiter)
        try:
            return waiter.wait(timeout)
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def guard(self, name: str) -> Guard:
        """Return the gate of an effect of your own: ``with token.guard("write report"): …``.

        If a fence is first, or the call has its result, entering it raises RunCancelled, and the effect does not take
        place. Else the effect counts as begun: the end of the call, or that of the run, is on record with its name, and
        with whether the block was left without an exception. Nothing is written before that, so after a crash of the
        daemon it is not known. `name` is cut to NAME_MAX_CHARS characters. Any thread; it waits for nothing.

        Raises:
            Invalid: the name is empty.
        """
        return Guard(self, name)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects that have begun behind guards of this token. Once it is cancelled, none is added."""
        return () if self._effects is None else self._effects.listed()

    def end_effects(self, provenance: Provenance) -> tuple[Effect, ...]:
        """Let no effect begin any more: the call has its result. Returns those that have begun."""
        with self._lock:
            if self._over is None:
                self._over = provenance
        return self.effects

    def begin(self, start: Callable[[], bool]) -> bool:
        """Return what `start` returns; or False, without calling it, if this token or one above it is cancelled.

        Under the lock: once the cancel of a token above has returned, nothing begins any more.
        """
        with self._lock:
            return self._cause() is None and start()

    def _cause(self) -> Provenance | None:
        """Return who cancelled it; a cancel that has reached only a token above it so far was first too."""
        cause, above = self._provenance, self._parent
        while cause is None and above is not None:
            cause, above = above._provenance, above._parent
        return cause

    def _begin_effect(self, name: str) -> None:
        """Count an effect as begun, or raise RunCancelled."""
        if self._effects is None:
            fresh = Effects()
            with self._lock:
                if self._effects is None:
                    self._effects = fresh
        effects = self._effects
        with self._lock:
            cause = self._provenance or self._over or self._cause()
            if cause is None:
                effects.begin(name)
                return
        raise RunCancelled(cause)

    def _finish_effect(self, name: str) -> bool:
        effects = self._effects
        if effects is None:
            return False
        with self._lock:
            return effects.finish(name)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` once, on the executor, when it is cancelled; at once if it is cancelled already.

        Returns a function that removes the callback; it does nothing if that is too late.

        Raises:
            Invalid: this token has CALLBACKS_MAX callbacks that were not removed.
        """
        key = next(self._keys)
        with self._lock:
            full = self._count >= CALLBACKS_MAX
            late = self._provenance is not None
            if not full:
                self._count += 1
                if not late:
                    self._callbacks[key] = callback
        if full:
            raise Invalid(
                "too many callbacks on one token",
                expected=f"at most {CALLBACKS_MAX} that were not removed",
                got="one more",
                remedy="call the function that add_callback returned once the callback is no longer needed",
            )
        if late:
            self._notify(callback)
        return lambda: self._forget(key)

    def add_waker(self, waker: Callable[[], object]) -> Callable[[], None]:
        """Run `waker` once, inside the cancel; at once if it is cancelled already. Not foreign code; may not block.

        Returns a function that removes the waker; it does nothing if that is too late.
        """
        key = next(self._keys)
        with self._lock:
            late = self._provenance is not None
            if not late:
                self._wakers[key] = waker
        if late:
            _wake(waker)
        return lambda: self._forget_waker(key)

    def cancel(self, provenance: Provenance) -> bool:
        """Cancel it and every token linked below it. Returns True if this was the first cause.

        It sets state, wakes waiters and hands callbacks over. It waits for nothing and runs no foreign code.
        """
        with self._lock:
            if self._provenance is not None:
                return False
            self._provenance = provenance
            callbacks, self._callbacks = list(self._callbacks.values()), {}
            children, self._children = self._children, {}
            waiters, self._waiters = self._waiters, []
            wakers, self._wakers = list(self._wakers.values()), {}
        for waiter in waiters:
            waiter.set()
        for waker in wakers:
            _wake(waker)
        for child in children:
            child.cancel(provenance)
        for callback in callbacks:
            self._notify(callback)
        return True

    def note_own_task(self) -> None:
        """The current task is that of the agent or of the tool: its executor tells it of the cancel."""
        task = asyncio.current_task()
        self._own_task = None if task is None else weakref.ref(task)

    def was_raised_in(self, task: asyncio.Task[Any]) -> bool:
        """Return True if a door has raised the cancel in `task`. On the task's own loop."""
        return self._raised_in is not None and task in self._raised_in

    def _group_may_tell(self) -> bool:
        """Return True in a further task of the agent or the tool in which the cancel was not raised yet."""
        task, own = asyncio.current_task(), self._own_task
        return task is not None and own is not None and own() is not task and not self.was_raised_in(task)

    def _note_raised_here(self) -> None:
        """Record that a door raises the cancel in the current task, if there is one."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return
        if task is not None:
            if self._raised_in is None:
                self._raised_in = weakref.WeakSet()
            self._raised_in.add(task)

    def detach(self) -> None:
        """Make the parent forget this token: what it guards has ended, so there is nothing to cancel."""
        if self._parent is not None:
            with self._parent._lock:
                self._parent._children.pop(self, None)

    @property
    def aio(self) -> AsyncCancelToken:
        """The same token for async code: `wait` is awaited."""
        return AsyncCancelToken(self)

    def _attach(self, child: CancelToken) -> None:
        with self._lock:
            if self._provenance is None:
                self._children[child] = None
                return
            provenance = self._provenance
        child.cancel(provenance)

    def _forget(self, key: int) -> None:
        with self._lock:
            if self._callbacks.pop(key, None) is not None:
                self._count -= 1

    def _forget_waker(self, key: int) -> None:
        with self._lock:
            self._wakers.pop(key, None)


def _wake(waker: Callable[[], object]) -> None:
    try:
        waker()
    except Exception:  # noqa: BLE001  # for example a closed loop: the other waiters must be woken
        logger.opt(exception=True).debug("the waker {} raised", waker)


class CancelBoundary:
    """Wraps each method that async code calls: after a cancel it raises `asyncio.CancelledError`, the class itself.

    The error has an attribute `provenance`. A CancelledError with another cause, such as the code's own time limit,
    passes unchanged.

    The executor cancels the agent's own task, and task groups pass that on, a level in a few turns of the loop. So with
    ``async with`` a further task waits for that, and the cancel is raised here only if no group cancels the task: a
    second cancel would interrupt its clean-up (law L8).
    """

    __slots__ = ("_token",)

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Convert RunCancelled to the exception that async code expects."""
        if isinstance(error, RunCancelled):
            self._token._note_raised_here()
            raise _with_provenance(asyncio.CancelledError(*error.args), error.provenance) from None
        if isinstance(error, asyncio.CancelledError) and self._token.provenance is not None:
            # The task was cancelled while it waited here.
            _with_provenance(error, self._token.provenance)

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Convert RunCancelled; in a further task not before its group had the time to cancel it."""
        if error is None:
            return
        if isinstance(error, RunCancelled) and self._token._group_may_tell():
            try:
                for _ in range(GROUP_TURNS):
                    await asyncio.sleep(0)
            except asyncio.CancelledError as told:
                _with_provenance(told, error.provenance)
                raise
        self.__exit__(kind, error, traceback)


def _with_provenance(error: asyncio.CancelledError, provenance: Provenance) -> asyncio.CancelledError:
    error.provenance = provenance  # type: ignore[attr-defined]  # the class declares no such attribute
    return error


class AsyncCancelToken:
    """A CancelToken for async agents and tools: the same names, and `wait` is awaited."""

    __slots__ = ("_boundary", "_token")

    def __init__(self, token: CancelToken) -> None:
        self._token = token
        self._boundary = CancelBoundary(token)

    @property
    def cancelled(self) -> bool:
        """True once it is cancelled, for good."""
        return self._token.cancelled

    @property
    def provenance(self) -> Provenance | None:
        """Who cancelled it and why."""
        return self._token.provenance

    def raise_if_cancelled(self) -> None:
        """Raise asyncio.CancelledError, with its `provenance`, on every call, if it is cancelled."""
        with self._boundary:
            self._token.raise_if_cancelled()

    def guard(self, name: str) -> AsyncGuard:
        """Return the gate of an effect of your own, for ``with`` and ``async with``: see `CancelToken.guard`.

        In tasks of a group of yours use ``async with``.
        """
        return AsyncGuard(self._token.guard(name), self._boundary)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `CancelToken.add_callback`."""
        return self._token.add_callback(callback)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait, without blocking the loop, until it is cancelled or `timeout` seconds have passed.

        Returns True if it is cancelled. The task of the agent or tool is itself cancelled then, so only another task
        sees the return.
        """
        async with self._boundary:
            return await _wait(self._token, timeout)


async def _wait(token: CancelToken, timeout: float | None) -> bool:
    waker = Waker()
    forget = token.add_waker(waker.wake)
    try:
        async with asyncio.timeout(timeout):
            await waker.woken
    except TimeoutError:
        return token.cancelled
    finally:
        forget()
    return True
