"""Cancel tokens, and how async code is notified: once, by the cancel of its task or by a door."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import typing
import weakref
from collections.abc import Callable
from typing import Any

from .errors import Invalid, RunCancelled
from .values import Provenance

if typing.TYPE_CHECKING:
    from .guard import AsyncGuard, Gate, Guard

CALLBACKS_MAX = 1000


class CancelToken:
    """Tells a run or a call that it should end. It may be read from any thread. Once cancelled it stays so."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self._lock = threading.RLock()
        self._provenance: Provenance | None = None
        # Where its guards ask, if code here may have any.
        self._gate: Gate | None = None
        self._keys = itertools.count()
        self._wakers: dict[int, Callable[[], object]] = {}
        self._callbacks: dict[int, Callable[[], None]] = {}
        # Tasks that were notified: of a run and of its calls together.
        self._told: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet() if parent is None else parent._told
        self._unlink: Callable[[], None] = lambda: None
        if parent is not None:
            above = parent
            self._unlink = parent._add_waker(lambda: self._cancel(typing.cast("Provenance", above._provenance)))

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
        if self._provenance is not None:
            raise RunCancelled(self._provenance)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is cancelled or `timeout` seconds have passed. Returns True if it is cancelled."""
        woken = threading.Event()
        forget = self._add_waker(woken.set)
        try:
            return woken.wait(timeout)
        finally:
            forget()

    def guard(self, name: str) -> Guard:
        """Return the gate of an effect of your own: ``with token.guard("write report"): …``.

        If a fence is first, or the call has its result, entering it raises RunCancelled, and the effect does not take
        place. Else it counts as begun, and the end of the call, or of the run, says so. Entering it asks the daemon.
        """
        return self._gate_of_effects().plain(name)

    def _gate_of_effects(self) -> Gate:
        assert self._gate is not None, "code gets the token of a run, or of a call that is executed here"
        return self._gate

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` once, on a thread of its own, when it is cancelled; at once if it is cancelled already.

        Returns a function that removes the callback; it does nothing if that is too late. Raises Invalid if there are
        CALLBACKS_MAX callbacks that were not removed.
        """
        with self._lock:
            if len(self._callbacks) >= CALLBACKS_MAX:
                raise Invalid(
                    "too many callbacks on one token",
                    expected=f"at most {CALLBACKS_MAX} that were not removed",
                    got="one more",
                    remedy="call the function that add_callback returned once the callback is no longer needed",
                )
            key = next(self._keys)
            self._callbacks[key] = callback
            late = self._provenance is not None
        if late:
            self._call_back()
        return lambda: _forget(self._callbacks, key)

    @property
    def aio(self) -> AsyncCancelToken:
        """The same token for async code: `wait` is awaited."""
        return AsyncCancelToken(self)

    def _add_waker(self, waker: Callable[[], object]) -> Callable[[], None]:
        """Run `waker` once, inside the cancel; at once if it is cancelled already. It may not block."""
        with self._lock:
            key = next(self._keys)
            late = self._provenance is not None
            if not late:
                self._wakers[key] = waker
        if late:
            waker()
        return lambda: _forget(self._wakers, key)

    def _cancel(self, provenance: Provenance) -> None:
        """Cancel it, and what hangs below it. Wakers are called in the order in which they were added."""
        with self._lock:
            if self._provenance is not None:
                return
            self._provenance = provenance
            wakers, self._wakers = list(self._wakers.values()), {}
        for wake in wakers:
            # A closed loop is no reason not to wake the others.
            with contextlib.suppress(Exception):
                wake()
        self._call_back()

    def _call_back(self) -> None:
        with self._lock:
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            threading.Thread(target=callback, name="countermand-callback", daemon=True).start()


def _forget(among: dict[int, Any], key: int) -> None:
    among.pop(key, None)


class AsyncCancelToken:
    """A CancelToken for async code: the same names, and `wait` is awaited."""

    def __init__(self, token: CancelToken) -> None:
        self._token = token

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
        with AsyncDoor(self._token):
            self._token.raise_if_cancelled()

    def guard(self, name: str) -> AsyncGuard:
        """Return the gate of an effect of your own, for ``async with``: see `CancelToken.guard`."""
        return self._token._gate_of_effects().aio(name)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `CancelToken.add_callback`."""
        return self._token.add_callback(callback)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is cancelled or `timeout` seconds have passed. Returns True if it is cancelled."""
        woken, wake = waker()
        forget = self._token._add_waker(wake)
        try:
            await asyncio.wait([woken], timeout=timeout)
        finally:
            forget()
        return self._token.cancelled


def waker() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Return a future of the running loop, and a function that resolves it from any thread, at any time."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        # A closed loop waits for nothing.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, woken)

    return woken, wake


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class AsyncDoor:
    """Wraps each method that async code uses: after a cancel it raises `asyncio.CancelledError`, the class itself."""

    __slots__ = ("_token",)

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Convert RunCancelled, and record that this task was notified."""
        if isinstance(error, RunCancelled):
            with contextlib.suppress(RuntimeError):
                task = asyncio.current_task()
                if task is not None:
                    self._token._told.add(task)
            raise _with_provenance(asyncio.CancelledError(*error.args), error.provenance) from None
        if isinstance(error, asyncio.CancelledError) and self._token.provenance is not None:
            # The task was cancelled while it waited here, perhaps by its own time limit: it may still be notified.
            _with_provenance(error, self._token.provenance)


def _with_provenance(error: asyncio.CancelledError, provenance: Provenance) -> asyncio.CancelledError:
    error.provenance = provenance  # type: ignore[attr-defined]  # the class declares no such attribute
    return error


def tell(task: asyncio.Task[Any], told: weakref.WeakSet[asyncio.Task[Any]]) -> None:
    """Cancel a task, unless it was notified before. On its own loop."""
    if not task.done() and task not in told:
        told.add(task)
        task.cancel()
