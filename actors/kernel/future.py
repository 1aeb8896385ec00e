"""Reply futures: an `ask` returns one. A pending reply cannot be waited on in a handler.

A handler that blocks takes a dispatcher thread from the other actors, and a few handlers that wait for each other
would block the whole pool. A pending reply therefore refuses to be waited on inside a handler, and offers what
Pykka's futures lack: a callback when it is done.

Two parties may resolve a reply: the handler that took it, and the teardown of the actor that owes it. The first one
counts. `try_set` and `try_set_exception` return whether they were first. `set` and `set_exception` raise on a second
call, as Pykka's do, unless a teardown came first: the handler's thread cannot know of that and has made no mistake.

A resolving thread never waits. A thread that waits, or adds a callback, may be interrupted anywhere by a signal
handler that asks the same actor. So there is no lock, and shared state changes in steps that the interpreter does not
divide:
  - Each party appends its result to one list, and the first in it counts. Any thread that finds it may use it.
  - The resolver sets the result before it rings bells and runs callbacks. A waiter adds its bell, or its callback,
    before it looks for the result. So at least one of the two sees the other.
  - The thread that removes a callback from the list runs it.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger
from pykka import Future, ThreadingFuture, Timeout
from pykka._future import _Unset
from pykka._threading import ThreadingFutureResult

from actors.errors import BlockingAskError, Invalid
from actors.kernel.thread_role import HANDLING

if TYPE_CHECKING:
    from pykka._types import OptExcInfo

T = TypeVar("T")


class ReplyFuture(ThreadingFuture[T]):
    """The answer to one `ask`. Every method may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        # Each result, and whether a teardown gave it.
        self._results: list[tuple[ThreadingFutureResult, bool]] = []
        self._bells: list[threading.Lock] = []
        self._callbacks: list[Callable[[ReplyFuture[T]], None]] = []

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer, or raise the exception that is the answer.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            BlockingAskError: it is pending and the caller is a handler, with any timeout.
            pykka.Timeout: it is still pending after `timeout` seconds.
        """
        if self._get_hook is None:
            if self._result is None:
                self._wait(timeout)
            assert self._result is not None, "it was waited for"
            return _given(self._result)
        if not HANDLING.active:
            return super().get(timeout=timeout)
        # A derived future (`ref.stop()`, `map`) asks the one below it, which comes back here. Another thread that
        # waits on the derived one holds its lock all that time, so even taking the lock could block.
        if not self._condition.acquire(blocking=False):
            raise _blocking()
        try:
            return super().get(timeout=timeout)
        finally:
            self._condition.release()

    def done(self) -> bool:
        """Return True if `get` would return or raise at once. A derived future is done once it was read."""
        return self._result is not None or not isinstance(self._get_hook_result, _Unset)

    def add_done_callback(self, callback: Callable[[ReplyFuture[T]], None]) -> None:
        """Call `callback(self)` once: on the thread that resolves this future, or now if it is done.

        Any exception of the callback is logged and goes no further: the resolving thread usually belongs to another
        actor.

        Raises:
            Invalid: this is a derived future (`ref.stop()`, `map`). It is computed when it is read, so there is no
                moment at which it becomes done.
        """
        if self._get_hook is not None:
            raise Invalid(
                "a derived future has no moment at which it becomes done",
                expected="the future of an ask",
                got="one that is computed when it is read",
                remedy="add the callback to the future it was derived from",
            )
        self._callbacks.append(callback)
        if self._result is not None:
            self._run_all()

    def set(self, value: Any | None = None) -> None:
        """Resolve it with a value.

        Raises:
            queue.Full: it is resolved already, and not by a teardown.
        """
        if not self.try_set(value) and not self._abandoned:
            raise queue.Full

    def set_exception(self, exc_info: OptExcInfo | None = None) -> None:
        """Resolve it with an exception; None takes the one being handled.

        Raises:
            queue.Full: it is resolved already, and not by a teardown.
        """
        info = sys.exc_info() if exc_info is None else exc_info
        if not self._resolve(ThreadingFutureResult(exc_info=info), abandoned=False) and not self._abandoned:
            raise queue.Full

    def try_set(self, value: Any | None = None) -> bool:
        """Resolve it with a value. Returns False, without effect, if it was resolved already."""
        return self._resolve(ThreadingFutureResult(value=value), abandoned=False)

    def try_set_exception(self, error: BaseException) -> bool:
        """Resolve it with an exception. Returns False, without effect, if it was resolved already."""
        return self._resolve(_failed(error), abandoned=False)

    def abandon(self, error: BaseException) -> bool:
        """Resolve it on behalf of an owner that has ended; a later `set` by that owner is ignored."""
        return self._resolve(_failed(error), abandoned=True)

    def _resolve(self, result: ThreadingFutureResult, *, abandoned: bool) -> bool:
        if self._result is not None or self._get_hook is not None:
            return False
        mine = (result, abandoned)
        self._results.append(mine)
        first = self._results[0]
        self._result = first[0]
        for bell in list(self._bells):
            # It raises if another thread has rung it.
            with contextlib.suppress(RuntimeError):
                bell.release()
        self._run_all()
        return first is mine

    def _wait(self, timeout: float | None) -> None:
        """Return when there is a result. Raises BlockingAskError and Timeout."""
        if HANDLING.active:
            raise _blocking()
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        try:
            if self._result is None:
                bell.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
        finally:
            self._bells.remove(bell)
        if self._result is None:
            raise Timeout(f"{timeout} seconds")

    @property
    def _abandoned(self) -> bool:
        return bool(self._results) and self._results[0][1]

    def _run_all(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                # Another thread has taken it.
                return
            self._run(callback)

    def _run(self, callback: Callable[[ReplyFuture[T]], None]) -> None:
        try:
            callback(self)
        except BaseException:  # noqa: BLE001  # see the next line
            # A SystemExit in a callback must not end the actor whose thread resolves the reply.
            logger.opt(exception=True).error("a callback of a reply raised: {}", callback)


def _given(result: ThreadingFutureResult) -> Any:
    if result.exc_info is None:
        return result.value
    kind, error, traceback = result.exc_info
    assert kind is not None, "an exception has a class"
    raise (kind() if error is None else error).with_traceback(traceback)


def _blocking() -> BlockingAskError:
    return BlockingAskError(
        "a handler may not wait for a reply that is pending",
        expected="a reply that is done",
        got="a pending one",
        remedy="tell the other actor and handle its answer as a message, or use add_done_callback",
    )


def _failed(error: BaseException) -> ThreadingFutureResult:
    return ThreadingFutureResult(exc_info=(type(error), error, error.__traceback__))


def answer(reply: Future[Any], value: object) -> bool:
    """Resolve any Pykka future with a value. Returns False, without effect, if it was resolved already."""
    if isinstance(reply, ReplyFuture):
        return reply.try_set(value)
    try:
        reply.set(value)
    except queue.Full:
        return False
    return True


def refuse(reply: Future[Any], error: BaseException) -> bool:
    """Resolve any Pykka future with an exception. Returns False, without effect, if it was resolved already."""
    if isinstance(reply, ReplyFuture):
        return reply.try_set_exception(error)
    try:
        reply.set_exception((type(error), error, error.__traceback__))
    except queue.Full:
        return False
    return True
