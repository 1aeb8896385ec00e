"""Reply futures: what an `ask` waits on, made so that it never waits in a handler.

A dispatcher thread that blocks in a handler is one that the other actors do not have; a few such handlers
that wait for each other hold the whole pool. So a pending reply refuses to be waited on inside a handler, and
gives what Pykka's futures lack instead: a callback when it is done.

A reply may be resolved by two hands: by the handler that took it, and by the teardown of the actor that owes
it. The first one counts. `try_set` and `try_set_exception` say whether they were first; `set` and
`set_exception` raise on a second call, as Pykka's do, but not when it was a teardown that came first: the
handler's thread cannot know of that and has done nothing wrong.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger
from pykka import Future, ThreadingFuture
from pykka._future import _Unset
from pykka._threading import ThreadingFutureResult

from actors.errors import BlockingAskError, Invalid
from actors.handling import HANDLING

if TYPE_CHECKING:
    from pykka._types import OptExcInfo

T = TypeVar("T")


class ReplyFuture(ThreadingFuture[T]):
    """The answer to one `ask`. Every method may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Callable[[ReplyFuture[T]], None]] | None = None
        self._abandoned = False

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer, or raise the exception that is the answer.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            BlockingAskError: it is pending and the caller is a handler, whatever the timeout.
            pykka.Timeout: it is still pending after `timeout` seconds.
        """
        if not HANDLING.active or self._result is not None:
            return super().get(timeout=timeout)
        # A derived future (`ref.stop()`, `map`) asks the one below it, which comes back here. Another thread
        # that waits on the derived one holds its lock all that while, so even taking the lock would block.
        if self._get_hook is None or not self._condition.acquire(blocking=False):
            raise BlockingAskError(
                "a handler may not wait for a reply that is pending",
                expected="a reply that is done",
                got="a pending one",
                remedy="tell the other actor and handle its answer as a message, or use add_done_callback",
            )
        try:
            return super().get(timeout=timeout)
        finally:
            self._condition.release()

    def done(self) -> bool:
        """True when `get` returns or raises at once. A derived future is done once it was read."""
        return self._result is not None or not isinstance(self._get_hook_result, _Unset)

    def add_done_callback(self, callback: Callable[[ReplyFuture[T]], None]) -> None:
        """Call `callback(self)` once: on the thread that resolves this future, or now if it is done.

        What the callback raises is logged and goes no further, whatever it is: the resolving thread is
        most often another actor's.

        Raises:
            Invalid: this is a derived future (`ref.stop()`, `map`): it is computed when it is read, so
                there is no moment at which it becomes done.
        """
        with self._condition:
            if self._get_hook is not None:
                raise Invalid(
                    "a derived future has no moment at which it becomes done",
                    expected="the future of an ask",
                    got="one that is computed when it is read",
                    remedy="add the callback to the future it was derived from",
                )
            if self._result is None:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        self._run(callback)

    def set(self, value: Any | None = None) -> None:
        """Resolve it with a value.

        Raises:
            queue.Full: somebody other than a teardown has resolved it already.
        """
        if not self.try_set(value) and not self._abandoned:
            raise queue.Full

    def set_exception(self, exc_info: OptExcInfo | None = None) -> None:
        """Resolve it with an exception; None takes the one being handled.

        Raises:
            queue.Full: somebody other than a teardown has resolved it already.
        """
        info = sys.exc_info() if exc_info is None else exc_info
        if not self._resolve(ThreadingFutureResult(exc_info=info), abandoned=False) and not self._abandoned:
            raise queue.Full

    def try_set(self, value: Any | None = None) -> bool:
        """Resolve it with a value; False if it was resolved already, and then nothing happens."""
        return self._resolve(ThreadingFutureResult(value=value), abandoned=False)

    def try_set_exception(self, error: BaseException) -> bool:
        """Resolve it with an exception; False if it was resolved already, and then nothing happens."""
        return self._resolve(_failed(error), abandoned=False)

    def abandon(self, error: BaseException) -> bool:
        """Resolve it for an owner that ended; a later `set` by that owner's hand is ignored."""
        return self._resolve(_failed(error), abandoned=True)

    def _resolve(self, result: ThreadingFutureResult, *, abandoned: bool) -> bool:
        with self._condition:
            if self._result is not None or self._get_hook is not None:
                return False
            self._result = result
            self._abandoned = abandoned
            callbacks, self._callbacks = self._callbacks, None
            self._condition.notify_all()
        for callback in callbacks or ():
            self._run(callback)
        return True

    def _run(self, callback: Callable[[ReplyFuture[T]], None]) -> None:
        try:
            callback(self)
        except BaseException:  # noqa: BLE001  # see the next line
            # A SystemExit in a callback must not end the actor whose thread happens to resolve the reply.
            logger.opt(exception=True).error("a callback of a reply raised: {}", callback)


def _failed(error: BaseException) -> ThreadingFutureResult:
    return ThreadingFutureResult(exc_info=(type(error), error, error.__traceback__))


def answer(reply: Future[Any], value: object) -> bool:
    """Resolve any Pykka future with a value; False, and no harm done, if it was resolved already."""
    if isinstance(reply, ReplyFuture):
        return reply.try_set(value)
    try:
        reply.set(value)
    except queue.Full:
        return False
    return True


def refuse(reply: Future[Any], error: BaseException) -> bool:
    """Resolve any Pykka future with an exception; False, and no harm done, if it was resolved already."""
    if isinstance(reply, ReplyFuture):
        return reply.try_set_exception(error)
    try:
        reply.set_exception((type(error), error, error.__traceback__))
    except queue.Full:
        return False
    return True
