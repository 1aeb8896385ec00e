"""Pending replies: the futures on which an agent or a tool waits, and which the cancel of its token fails at once.

Code outside the actors waits for an answer from its actor or for the cancel of its token, whichever comes first. The
cancel fails the pending futures on the thread that cancels. That cannot block: the futures are never handed to foreign
code, so none of their callbacks is foreign. No code waits for an actor that is gone, because the end of a run cancels
its token even if its actors have failed.

The garbage collector may close a generator of an agent or a tool at any allocation, on any thread, and the generator's
clean-up may come back here. So a wait is refused on a thread that others wait for, and the lock is reentrant.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from actors.errors import BlockingAskError, RunCancelled
from actors.gate.token import CancelToken
from actors.kernel.thread_role import HANDLING
from actors.kernel.waker import Waker

T = TypeVar("T")


def settle(future: Future[T], value: T) -> bool:
    """Resolve a future with a value. Returns False if it was done or cancelled. Any thread."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def fail(future: Future[Any], error: BaseException) -> bool:
    """Resolve a future with an error. Returns False if it was done. Any thread."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return False
    return True


def may_wait() -> None:
    """Raise BlockingAskError on a thread that others wait for; see the head of this file."""
    if HANDLING.active:
        raise BlockingAskError(
            "a thread that serves all sessions may not wait for one of them",
            expected="a thread of an agent or of a tool",
            got=threading.current_thread().name,
            remedy="close generators by hand, or with contextlib.closing: the garbage collector does it anywhere",
        )


class Pending:
    """The futures that the cancel of one token fails. Every method may be called from any thread.

    Args:
        token: the token of the run or of the call.
    """

    def __init__(self, token: CancelToken) -> None:
        self.token = token
        self._lock = threading.RLock()
        # Ordered, so that the simulator is deterministic.
        self._futures: dict[Future[Any], None] = {}
        # The waiters of each future. A future keeps its callbacks until it is done, so it gets one callback of ours,
        # however often it is awaited.
        self._awaited: dict[Future[Any], dict[Waker, None]] = {}
        token.add_waker(self._cancelled)

    def future(self) -> Future[Any]:
        """Return a future that the token's cancel fails with RunCancelled."""
        future: Future[Any] = Future()
        self.watch(future)
        return future

    def watch(self, future: Future[Any]) -> None:
        """Make the token's cancel fail `future`."""
        with self._lock:
            self._futures[future] = None
        future.add_done_callback(self._forget)
        if self.token.cancelled:
            self._cancelled()

    def wait(self, future: Future[T], timeout: float | None) -> T:
        """Block until `future` is done. A cancel, before or meanwhile, raises RunCancelled.

        Raises:
            BlockingAskError: it is pending, and others wait for this thread; see the head of this file.
        """
        self.token.raise_if_cancelled()
        if not future.done():
            may_wait()
        value = future.result(timeout)
        self.token.raise_if_cancelled()
        return value

    async def wait_async(self, future: Future[T]) -> T:
        """Wait for `future` without blocking the loop; a cancel raises RunCancelled. Inside a `CancelBoundary`."""
        self.token.raise_if_cancelled()
        # Not asyncio.wrap_future: the cancel of one waiter would cancel the future, on which others may wait too.
        waker = Waker()
        fresh: dict[Waker, None] = {}
        with self._lock:
            waiters = self._awaited.setdefault(future, fresh)
            waiters[waker] = None
        if waiters is fresh:
            future.add_done_callback(self._wake)
        try:
            await waker.woken
        finally:
            with self._lock:
                waiters.pop(waker, None)
        self.token.raise_if_cancelled()
        return future.result()

    def _wake(self, future: Future[Any]) -> None:
        with self._lock:
            waiters = self._awaited.pop(future)
        for waker in list(waiters):
            waker.wake()

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
