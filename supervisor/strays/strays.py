"""Strays: the port `actors.ports.Strays`. The package's docstring has the theory of operation."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from loguru import logger
from pykka import ActorRef

from actors.gate.token import CancelToken
from actors.model import Address
from actors.plugin.launcher import is_launcher
from actors.ports import Clock, Isolation, ProcessRow
from supervisor.containment import offspring
from supervisor.strays import attribution
from supervisor.strays.children import Children
from supervisor.strays.claims import Claims
from supervisor.strays.records import Run
from supervisor.strays.reports import Reports
from supervisor.strays.run_end import SERVED, RunEnd
from supervisor.strays.starter import Starter
from supervisor.strays.subreaper import inherit_orphans
from supervisor.strays.tasks import Tasks
from supervisor.strays.threads import Threads, Workers
from supervisor.strays.watcher import Watcher


class Strays:
    """`actors.ports.Strays`. Every method may be called from any thread.

    Args:
        clock: for the times of ends.
        subreaper: have orphans fall to this process.
    """

    def __init__(self, clock: Clock, *, subreaper: bool = False) -> None:
        if subreaper and not inherit_orphans():
            logger.warning("this process cannot inherit orphans: receipts say what cannot be seen")
        self._pid = os.getpid()
        # Re-entrant: the garbage collector may run foreign code while it is held.
        self._lock = threading.RLock()
        self._runs: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
        self._reports = Reports(clock)
        self._children = Children(self._reports)
        self._ends = RunEnd(clock, self._reports, self._children)
        self._threads = Threads(self, self._lock, clock, self._reports, self._children, self._ends)
        self._tasks = Tasks(self, self._lock, clock, self._reports, self._ends)
        self._claims = Claims(self._reports, self._ends)
        self._watcher = Watcher(self._lock, self._reports, self._children, self._ends)
        self._workers: list[Workers] = []
        attribution.install(self)
        # After that: from now on the hook sees the starts of other threads; earlier processes are children already.
        with self._lock:
            self._children.know_all()

    # ── For the actors ────────────────────────────────────────────────────────────────────────────────

    def within(
        self, address: Address, isolation: Isolation, token: CancelToken, body: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `body` wrapped so that its starts are attributed; see the port."""
        with self._lock:
            run = self._run(address)
        starter = Starter(self, run, address, token)

        def as_thread() -> Any:
            attribution.enter(starter)
            self._begun(starter, here=True)
            try:
                return body()
            finally:
                self._over(starter)

        async def as_task() -> Any:
            attribution.enter(starter)
            self._begun(starter, here=True)
            try:
                return await body()
            finally:
                self._over(starter)

        def elsewhere(finish: Callable[[object], None]) -> None:
            def finished(value: object) -> None:
                self._over(starter)
                finish(value)

            self._begun(starter, here=False)
            try:
                body(finished)
            except BaseException:
                self._over(starter)
                raise

        if isolation is Isolation.HOST:
            return elsewhere
        return as_task if isolation is Isolation.TASK else as_thread

    def adopt(
        self, address: Address, owner: ActorRef[Any], claimed: Sequence[ProcessRow] = (), *, anew: bool = False
    ) -> None:
        """Send reports to `owner` from now on; see the port."""
        with self._lock:
            run = self._run(address)
            if not run.succession.admits(owner, anew=anew):
                return
            run.owner, run.forgotten = owner, False
            for stray in list(run.strays.values()):
                run.tell_all(stray)
            for row in claimed:
                if row.process_id not in run.strays:
                    self._claims.claim(run, row)
            if run.strays:
                self._watcher.rouse()

    def end(self, address: Address, grace_s: float) -> None:
        """End the strays of a run, or of a call; see the port."""
        due = time.monotonic() + grace_s
        with self._lock:
            run = self._runs.get(address.run)
            if run is None:
                return
            run.dues[address.call] = min(due, run.dues.get(address.call, due))
            for stray in run.strays.values():
                if address.call in (None, stray.call):
                    self._tasks.cancel(stray)
        self._watcher.rouse()

    def forget(self, stray_id: str) -> None:
        """Drop the reports of a stray whose end is in the log."""
        with self._lock:
            stray = self._reports.strays.get(stray_id)
            if stray is not None and stray.ended is not None:
                self._reports.drop(stray)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `actors.ports.Strays.forget_ended`."""
        with self._lock:
            self._reports.forget_ended(session, but)

    def _run(self, address: Address) -> Run:
        run = self._runs.get(address.run)
        if run is None:
            run_address = Address(address.session, address.generation, address.run)
            run = self._runs[address.run] = Run(run_address, self._lock)
        return run

    # ── For the executor, and for people ──────────────────────────────────────────────────────────────

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attribute the tasks of a loop, and the work submitted to its default executor."""
        workers = Workers(self._threads)
        self._workers.append(workers)
        loop.set_default_executor(workers)
        loop.set_task_factory(self._tasks.make)

    def left(self, *, overdue: bool = False) -> list[str]:
        """Live strays as ``kind name``: subprocesses, and threads and tasks that outlast their execution.

        `overdue`: only those that live on after the grace of their run.
        """
        now = time.monotonic()
        with self._lock:
            return sorted(
                f"{one.found.kind} {one.found.name}"
                for one in self._reports.strays.values()
                if one.ended is None and (not overdue or (one.run.due(one.call) or now) < now)
            )

    def reap(self) -> None:
        """Reap ended children that are orphans, for which no other code waits. The watching thread does it."""
        if self._children.inherits:
            self._watcher.rouse()

    def close(self) -> bool:
        """End the watching thread; returns True if no stray lives. May be called again."""
        self._watcher.begin_closing()
        for workers in self._workers:
            workers.shutdown(wait=False, cancel_futures=True)
        self._watcher.close()
        return not self.left()

    # ── Executions ────────────────────────────────────────────────────────────────────────────────────

    def _begun(self, starter: Starter, *, here: bool) -> None:
        with self._lock:
            starter.run.open += 1
            starter.run.here = starter.run.here or here

    def _over(self, starter: Starter) -> None:
        """Report the strays of an execution, on its own thread and before its end is reported. Never raises."""
        if os.getpid() != self._pid:
            return
        try:
            with self._lock:
                if starter.over:
                    # A host may report the end twice.
                    return
                run = starter.run
                self._children.settle(threading.get_native_id())
                starter.over = True
                run.open -= 1
                run.agent_over = run.agent_over or starter.address.call is None
                for task in [one for one in starter.tasks if not one.done()]:
                    self._tasks.report(starter, task)
                for work in list(starter.works):
                    self._threads.report(work)
                self._ends.check_last(run)
                if run.due(starter.address.call) is not None:
                    for stray in run.strays.values():
                        self._tasks.cancel(stray)
                        stray.spared = stray.spared and stray.call != starter.address.call
                if run.here or run.strays:
                    self._watcher.rouse()
        except Exception:  # noqa: BLE001  # the end of an execution is reported, whatever happens here
            logger.opt(exception=True).error("the strays of {} could not be reported", starter.address)

    # ── Called in the audit hook ──────────────────────────────────────────────────────────────────────

    def starts(self, starter: Starter, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process for `starter`; see `Host`."""
        # A forked child cannot report, and a lock may be held for ever there.
        if os.getpid() != self._pid:
            return
        if event == attribution.SERVED:
            # The fork server of `multiprocessing` starts it, and we cannot see it.
            with self._lock:
                self._ends.doubt(starter.run, SERVED)
        elif not self._watcher.closed:
            # A launcher starts nothing itself: its command has a warden.
            forks = not (event in attribution.EXECUTES and is_launcher(args[0]))
            self._begin(starter, offspring.named(attribution.command(event, args)), forks=forks)

    def starts_outside(self, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process of the program's own; see `Host`."""
        if os.getpid() == self._pid and not self._watcher.closed:
            command = None
            # Words that are none: the start fails too.
            with suppress(TypeError):
                command = attribution.executed(event, args)
            self._begin(None, "", command=command)

    def _begin(
        self, starter: Starter | None, name: str, *, command: list[str] | None = None, forks: bool = False
    ) -> None:
        with self._lock:
            self._children.begin(starter, name, command=command, forks=forks)
        self._watcher.rouse()
