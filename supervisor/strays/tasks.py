"""Tasks that agents and tools make on our loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextlib import suppress
from typing import Any

from actors.model import How, PartKind
from actors.ports import Clock
from supervisor.strays import attribution
from supervisor.strays.records import Stray
from supervisor.strays.reports import Reports
from supervisor.strays.run_end import RunEnd
from supervisor.strays.starter import Host, Starter


class Tasks:
    """The tasks of starters, from their creation to their end.

    Args:
        host: the host whose starters' tasks are recorded.
        lock: the one that guards starters and strays.
    """

    def __init__(self, host: Host, lock: threading.RLock, clock: Clock, reports: Reports, ends: RunEnd) -> None:
        self._host = host
        self._lock = lock
        self._clock = clock
        self._reports = reports
        self._ends = ends

    def make(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """The loop's task factory."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        starter = attribution.current_of(self._host, options.get("context"))
        if starter is not None:
            # It may be another thread's starter, which is just ending.
            with self._lock:
                starter.tasks.add(task)
                if starter.over:
                    self.report(starter, task)
        return task

    def report(self, starter: Starter, task: asyncio.Task[Any]) -> None:
        """Report a task that outlasts its starter. Called under the lock."""
        stray = self._reports.found_one(starter, PartKind.TASK, _task_name(task), self._clock.wall())
        stray.tasks.add(task)
        task.add_done_callback(functools.partial(self._done, stray))

    def cancel(self, stray: Stray) -> None:
        """Cancel the tasks of a stray that is being ended, once. Called under the lock."""
        if stray.asked or not stray.tasks or stray.run.due(stray.call) is None:
            return
        stray.asked = True
        with suppress(RuntimeError):
            for task in stray.tasks:
                task.get_loop().call_soon_threadsafe(_cancel_once, task)

    def _done(self, stray: Stray, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        note = "" if error is None else type(error).__name__
        how = How.CANCELLED if task.cancelled() else How.RETURNED if error is None else How.RAISED
        with self._lock:
            stray.tasks.discard(task)
            self._ends.one_ended(stray, how, note)


def _cancel_once(task: asyncio.Task[Any]) -> None:
    if not task.cancelling():
        task.cancel()


def _task_name(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    function = getattr(coro, "__qualname__", type(coro).__name__)
    name = task.get_name()
    return str(function) if name.startswith("Task-") else f"{name} ({function})"
