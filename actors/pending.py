"""Pending replies of one token: what an agent or a tool waits for, and that a cancel ends at once.

Code outside the actors waits on futures: an answer from its actor, or the cancel of its token, whichever is
first. The token's cancel itself fails what is pending, on whatever thread it is: none of these futures is handed to
foreign code, so no callback of theirs is foreign, and none blocks. So nobody waits for an actor that is gone, because
the end of a run cancels its token whatever happened to its actors.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from actors.cancel import CancelToken
from actors.errors import RunCancelled

T = TypeVar("T")


def settle(future: Future[T], value: T) -> bool:
    """Give a future its value; False if it had one, or was cancelled. Any thread."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def fail(future: Future[Any], error: BaseException) -> bool:
    """Give a future its error; False if it was done. Any thread."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return False
    return True


class Pending:
    """The futures that one token's cancel fails. Every method may be called from any thread.

    Args:
        token: of the run, or of the call.
    """

    def __init__(self, token: CancelToken) -> None:
        self.token = token
        self._lock = threading.Lock()
        # Ordered, so that a simulated world is a function of its seed.
        self._futures: dict[Future[Any], None] = {}
        token.add_waker(self._cancelled)

    def future(self) -> Future[Any]:
        """Return a future that the token's cancel fails with RunCancelled."""
        future: Future[Any] = Future()
        self.watch(future)
        return future

    def watch(self, future: Future[Any]) -> None:
        """Let the token's cancel fail `future`."""
        with self._lock:
            self._futures[future] = None
        future.add_done_callback(self._forget)
        if self.token.cancelled:
            self._cancelled()

    def wait(self, future: Future[T], timeout: float | None) -> T:
        """Block until `future` is done; a cancel, before or meanwhile, raises RunCancelled."""
        self.token.raise_if_cancelled()
        value = future.result(timeout)
        self.token.raise_if_cancelled()
        return value

    async def wait_async(self, future: Future[T]) -> T:
        """Wait for `future` without blocking the loop; a cancel raises RunCancelled."""
        self.token.raise_if_cancelled()
        # Not asyncio.wrap_future: the cancel of one waiter would cancel what others may wait for as well.
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        def done(_: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                # The loop is closed, and its coroutines with it: nobody waits any more.
                return

        future.add_done_callback(done)
        await woken
        self.token.raise_if_cancelled()
        return future.result()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.pop(future, None)

    def _cancelled(self) -> None:
        provenance = self.token.provenance
        assert provenance is not None, "called by the token's cancel"
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            fail(future, RunCancelled(provenance))
