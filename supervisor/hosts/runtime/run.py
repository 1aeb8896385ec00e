"""A run: its token, its credit, its thread, its open calls."""

from __future__ import annotations

import asyncio
import itertools
import threading
import typing
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from .credit import Credit, fail, settle
from .errors import QueueFull, RunCancelled
from .thread import Thread
from .token import CancelToken, waker
from .values import Address, Provenance
from .wire import CANCELLED, STALE, WireError

if TYPE_CHECKING:
    from .call import Call
    from .host import Host
    from .spawning import Tree

ANSWERS_OPEN_MAX = 64
LEVELS_MAX = 20
"""How many nested task groups are notified before a door raises in a task of the innermost."""

T = TypeVar("T")


class Run:
    """One run in this host.

    Args:
        host: the host.
        number: the id of the `run` request.
        params: its parameters.
    """

    def __init__(self, host: Host, number: int, params: Mapping[str, Any]) -> None:
        self.host = host
        self.number = number
        self.fence: str = params["fence"]
        self.address = Address(params["session"], params["generation"], params["run"], self.fence)
        self.traceparent: str | None = (params.get("_meta") or {}).get("traceparent")
        self.grace_s: float = (params.get("limits") or {}).get("grace_s", 0.0)
        self.token = CancelToken()
        self.thread = Thread(params)
        # What runs of this agent have saved; never changed in place.
        self.saved: dict[str, Any] = params.get("state") or {}
        self.credit = Credit(params["credit"]["events"], params["credit"]["bytes"])
        daemons = [tool for tool in params["tools"] if tool["name"] not in host.tools]
        self.tools = [*(tool.offer for tool in host.tools.values()), *daemons]
        # Open calls, by the id of their request.
        self.calls: dict[int, Call] = {}
        self._answers_open = 0
        self._answer_numbers = itertools.count(1)
        # Process trees whose command has not exited, by id.
        self.trees: dict[str, Tree] = {}
        # Of an async agent: its task, and whether that was notified of the run's end.
        self.task: asyncio.Task[Any] | None = None
        self.task_told: asyncio.Event | None = None
        self._lock = threading.RLock()
        self._futures: dict[Future[Any], None] = {}
        # In this order: the agent is notified before its doors.
        self.token._add_waker(lambda: host.tell(self))
        self.token._add_waker(self._cancelled)

    def why(self, given: Mapping[str, Any] | None) -> Provenance:
        """Return who ended this run, as far as that is known."""
        if self.token.provenance is not None:
            return self.token.provenance
        return Provenance.of(given) if given else Provenance("run.ended", "this run is over")

    def future(self) -> Future[Any]:
        """Return a future that the run's cancel fails with RunCancelled."""
        made: Future[Any] = Future()
        self.watch(made)
        return made

    def future_of(self, token: CancelToken) -> Future[Any]:
        """Return a future that the run's cancel fails, and that of this token, of a call."""
        made = self.future()
        if token is not self.token:
            forget = token._add_waker(lambda: fail(made, RunCancelled(typing.cast("Provenance", token.provenance))))
            made.add_done_callback(lambda _: forget())
        return made

    def watch(self, future: Future[Any]) -> None:
        """Make the run's cancel fail `future`."""
        with self._lock:
            self._futures[future] = None
        future.add_done_callback(self._done)
        if self.token.cancelled:
            self._cancelled()

    def answer_opens(self) -> int:
        """Count an answer of a model that is about to begin; returns its number. Raises QueueFull if many are open."""
        with self._lock:
            if self._answers_open >= ANSWERS_OPEN_MAX:
                raise QueueFull(
                    "too many answers of models are open",
                    expected=f"at most {ANSWERS_OPEN_MAX} at once",
                    got=f"{self._answers_open}",
                    remedy="leave the block of an answer before the next one begins",
                )
            self._answers_open += 1
            return next(self._answer_numbers)

    def answer_over(self) -> None:
        """An answer of a model has ended, was left, or did not begin."""
        with self._lock:
            self._answers_open -= 1

    def request(self, method: str, **params: Any) -> Future[Any]:
        """Ask the daemon; returns the future of its answer."""
        reply = self.future()

        def taken(result: Any, error: WireError | None) -> None:
            if error is None:
                settle(reply, result)
            elif error.code in (CANCELLED, STALE):
                fail(reply, RunCancelled(self.why(error.data.get("provenance"))))
            else:
                fail(reply, error.public())

        self.token.raise_if_cancelled()
        self.host.wire.ask(method, {"fence": self.fence, **params}, taken)
        return reply

    def wait(self, future: Future[T]) -> T:
        """Block until `future` is done. A cancel, before or meanwhile, raises RunCancelled."""
        self.token.raise_if_cancelled()
        value = future.result()
        self.token.raise_if_cancelled()
        return value

    async def wait_async(self, future: Future[T]) -> T:
        """Wait for `future` without blocking the loop; a cancel raises RunCancelled. Inside an `AsyncDoor`."""
        self.token.raise_if_cancelled()
        woken, wake = waker()
        future.add_done_callback(lambda _: wake())
        await woken
        self.token.raise_if_cancelled()
        return future.result()

    async def tell_last(self) -> None:
        """Wait before a door raises in another task than the agent's own, until that one and its groups are notified.

        A task group cancels its tasks when it is cancelled. If a door had raised in one of them by then, the group's
        cancel would be a second one, and interrupt its clean-up. A task that is cancelled in here was notified by that.
        """
        task, told = asyncio.current_task(), self.task_told
        heard = task in (self.task, None) or task in self.token._told
        if heard or told is None or self.task is None or self.task.done():
            return
        if asyncio.get_running_loop() is not self.host.loop:
            return
        await told.wait()
        for _ in range(LEVELS_MAX):
            await asyncio.sleep(0)

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.pop(future, None)

    def _cancelled(self) -> None:
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            fail(future, RunCancelled(self.why(None)))
