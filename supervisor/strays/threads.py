"""Work that agents and tools submit to our loop's default executor, as with `asyncio.to_thread`."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from actors.model import How, PartKind
from actors.ports import Clock
from supervisor.strays import attribution
from supervisor.strays.children import Children
from supervisor.strays.records import Stray
from supervisor.strays.reports import Reports
from supervisor.strays.run_end import RunEnd
from supervisor.strays.starter import Host, Starter

WORKERS_MAX: Final = 128

GOING_ON: Final[weakref.WeakValueDictionary[str, Stray]] = weakref.WeakValueDictionary()
"""Strays on threads, by id. They outlive their supervisor; the next one in this process finds them here."""
# A forked child has none of these threads.
os.register_at_fork(after_in_child=GOING_ON.clear)


class Work:
    """Work that one starter submitted to a default executor."""

    __slots__ = ("name", "over", "started_at", "starter", "stray")

    def __init__(self, starter: Starter, name: str, started_at: float) -> None:
        self.starter = starter
        self.name = name
        self.started_at = started_at
        self.over = False
        self.stray: Stray | None = None


class Threads:
    """The work of starters, from its submission to its end.

    Args:
        host: the host whose starters' work is recorded.
        lock: the one that guards starters and strays.
    """

    def __init__(
        self, host: Host, lock: threading.RLock, clock: Clock, reports: Reports, children: Children, ends: RunEnd
    ) -> None:
        self.host = host
        self._lock = lock
        self._clock = clock
        self._reports = reports
        self._children = children
        self._ends = ends

    def submitted(self, starter: Starter, function: Callable[..., Any]) -> Work:
        """Record work that a starter submits."""
        work = Work(starter, _function_name(function), self._clock.wall())
        with self._lock:
            starter.works.add(work)
            if starter.over:
                self.report(work)
        return work

    def do(self, work: Work, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do the work, on a thread of the executor, in the context of its submission."""
        try:
            return function(*args, **kwargs)
        finally:
            with self._lock:
                self._children.settle(threading.get_native_id())
            self.over(work)

    def over(self, work: Work) -> None:
        """Record that the work is done, or never will be. May be called again."""
        with self._lock:
            if work.over:
                return
            work.over = True
            work.starter.works.discard(work)
            if work.stray is not None:
                self._ends.one_ended(work.stray, How.RETURNED)

    def report(self, work: Work) -> None:
        """Report work that outlasts its starter. Called under the lock."""
        if work.stray is None and not work.over:
            work.stray = self._reports.found_one(work.starter, PartKind.THREAD, work.name, work.started_at)
            GOING_ON[work.stray.id] = work.stray


class Workers(ThreadPoolExecutor):
    """A loop's default executor, which records the starter of each piece of work."""

    def __init__(self, threads: Threads) -> None:
        super().__init__(WORKERS_MAX, "countermand-worker")
        # Not `_threads`: the pool has an attribute of that name.
        self._recorder = threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn` on a thread, and record its starter."""
        threads = self._recorder
        starter = attribution.current_of(threads.host)
        if starter is None:
            return super().submit(fn, *args, **kwargs)
        work = threads.submitted(starter, fn)
        context = contextvars.copy_context()
        try:
            future = super().submit(context.run, threads.do, work, fn, args, kwargs)
        except BaseException:
            threads.over(work)
            raise
        # No thread does work that is cancelled before it begins.
        future.add_done_callback(lambda _: threads.over(work))
        return future


def _function_name(function: Callable[..., Any]) -> str:
    """The name of the called function, without the wrappers of asyncio."""
    while isinstance(function, functools.partial):
        bound = getattr(function.func, "__self__", None)
        function = function.args[0] if isinstance(bound, contextvars.Context) else function.func
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
