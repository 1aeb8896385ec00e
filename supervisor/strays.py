"""Strays: what code of agents and tools starts by itself inside this process, outside of calls and of `spawn`.

Theory of operation. Whose code runs is in a context variable (`attribution`), and its start is attributed as follows.

- *Processes*. The audit hook speaks on the thread that is about to fork, so the process will be a child of this thread:
  the children that the thread has then and had not before. The watching thread looks for it; so does the thread itself
  before it starts another, and at the end of its execution. So of each thread at most one start has no pid yet, and
  none has when what started it has ended.
- *Threads*. Our loop's default executor notes whose work it is given (`asyncio.to_thread`).
- *Tasks*. Our loop's task factory notes whose task it makes.

Processes are told to the run when their pid is known, threads and tasks when what started them has ended before them.
Either way a start is told before the end of what started it. So when all that a run was told of has ended, nothing that
can be attributed to it is left. One thing is not attributed: what code leaves with a timer or a callback of the loop.

A process is asked and killed with what is below it (`containment.offspring`), by the watching thread. What was started
after the fence may go on until the grace is over: it may be a clean-up's. Nobody's exit status is taken.

What has lost its parent falls to this process, if that inherits orphans (a subreaper, or process 1). Before a run's
last part ends the children of this process are looked at: one that began during the run, and of which nobody can say
who started it, is told to the run as not its own. Where orphans fall to somebody else, a run that started processes is
told that what they left cannot be seen. So a receipt is never complete by ignorance of a process.

What `multiprocessing` keeps for the whole program is the program's own, whoever needs it first. Of what a run has its
fork server start nothing is seen, and the run is told so.

Bounds. Of one execution at most STRAYS_MAX threads and tasks are told one by one; the others are one stray together.
Of ends that nobody has put on record, such as those of what a timer starts after its run, the last ENDED_MAX are kept.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import functools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from loguru import logger
from pykka import ActorDeadError, ActorRef

from actors.gate.token import CancelToken
from actors.messages import StrayEnded, StrayFound
from actors.model import Address, How
from actors.ports import Clock, Isolation, ProcessRow
from supervisor import attribution
from supervisor.containment import offspring
from supervisor.containment.guard import procfs
from supervisor.containment.offspring import Member, Offspring

STRAYS_MAX: Final = 100
WORKERS_MAX: Final = 128
KNOWN_MAX: Final = 4096
STARTS_MAX: Final = 100
ENDED_MAX: Final = 1000
LOOKS_MAX: Final = 12
LOOKS_ENDING_MAX: Final = 1000
LOOK_S: Final = 0.0005
LADDER_S: Final = 0.02
PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37
UNKNOWN: Final = "process, whose is not known"
ORPHANS: Final = "what its processes may have left"
SERVED: Final = "processes of multiprocessing's fork server are below that, which is the whole program's"
UNSEEN: Final = "orphans fall to another process and cannot be seen: see Config(subreaper=True)"
LOST: Final = "what had lost its parent when the supervisor died cannot be seen any more"
CONTAINED: Final = "COUNTERMAND_FENCE="
# The second is that of an earlier release, which may still run beside this one.
KEEPERS: Final = ("/containment/guard/zygote.py", "/containment/zygote.py")


class _Run:
    """What is known of one run; it lives for as long as code of it may run, or a stray of it is kept."""

    __slots__ = (
        "__weakref__",
        "address",
        "agent_over",
        "begun",
        "doubted",
        "dues",
        "forks",
        "lock",
        "open",
        "owner",
        "strays",
    )

    def __init__(self, address: Address, lock: threading.RLock) -> None:
        self.address = address
        # Of the `Strays` that has it.
        self.lock = lock
        self.owner: ActorRef[Any] | None = None
        self.begun = ticks_now()
        # How many executions of it have begun and not ended.
        self.open = 0
        self.agent_over = False
        # By call, None for all: when what goes on is killed (seconds, monotonic).
        self.dues: dict[str | None, float] = {}
        self.strays: dict[str, _Stray] = {}
        self.forks = False
        self.doubted = False

    def due(self, call: str | None) -> float | None:
        """When what a call, or the agent, has started is killed; None: it is not being ended."""
        dues = [self.dues[key] for key in {None, call} if key in self.dues]
        return min(dues, default=None)


class _Stray:
    """Something that was told to its run. `process` is of a subprocess alone; `left` threads or tasks are in it."""

    __slots__ = ("__weakref__", "asked", "call", "ended", "found", "id", "left", "process", "run", "spared", "tasks")

    def __init__(self, run: _Run, found: StrayFound) -> None:
        self.run = run
        self.id = found.stray_id
        self.call = found.address.call
        self.found = found
        self.ended: StrayEnded | None = None
        self.process: Offspring | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.left = 0
        self.asked = False
        # It is not asked before what has started it has ended; it is killed when its time is over.
        self.spared = False


_THREADS: Final[weakref.WeakValueDictionary[str, _Stray]] = weakref.WeakValueDictionary()
"""Those on threads, by id. They outlive the supervisor that they were started in; the next in this process finds them
here."""
# A child that is forked has none of these threads.
os.register_at_fork(after_in_child=_THREADS.clear)


class _Work:
    """What a default executor was given to do, of one starter."""

    __slots__ = ("future", "name", "over", "started_at", "starter", "stray")

    def __init__(self, starter: _Starter, name: str, started_at: float) -> None:
        self.starter = starter
        self.name = name
        self.started_at = started_at
        self.future: Future[Any] | None = None
        self.over = False
        self.stray: _Stray | None = None


class _Starter:
    """One execution: the agent's of a run, or that of a call. What its code starts is the starter's."""

    __slots__ = ("address", "more", "over", "run", "strays", "tasks", "token", "told", "works")

    def __init__(self, strays: Strays, run: _Run, address: Address, token: CancelToken) -> None:
        self.strays = strays
        self.token = token
        self.run = run
        self.address = address
        self.over = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.works: set[_Work] = set()
        self.told: dict[str, int] = {}
        # By kind: all that are more than are told one by one.
        self.more: dict[str, _Stray] = {}

    def starts(self, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process."""
        if event == attribution.SERVED:
            self.strays.served(self)
        else:
            self.strays.starting(self, attribution.command(event, args))


class _Start:
    """A process that a thread is about to start, or has started and whose pid is not known. None: the program's own."""

    __slots__ = ("before", "cleans_up", "looks", "name", "next_s", "starter", "ticks", "tid")

    def __init__(self, starter: _Starter | None, tid: int, name: str) -> None:
        self.starter = starter
        # The fence itself cancels the token; `Strays.end` hears of it later.
        self.cleans_up = starter is not None and starter.token.cancelled
        self.tid = tid
        self.name = name
        # Its number may be another thread's later.
        self.ticks = _thread_ticks(tid)
        self.before = frozenset(_children(tid))
        self.looks = 0
        self.next_s = 0.0


class Strays:
    """`actors.ports.Strays`. Every method may be called from any thread.

    Args:
        clock: for the times of ends.
        subreaper: have orphans fall to this process.
    """

    def __init__(self, clock: Clock, *, subreaper: bool = False) -> None:
        self._clock = clock
        if subreaper and not inherit_orphans():
            logger.warning("orphans cannot be had to fall to this process: receipts say what is not seen")
        self._pid = os.getpid()
        self._boot = procfs.boot_id()
        # Re-entrant: the collector may run foreign code while it is held.
        self._lock = threading.RLock()
        self._runs: weakref.WeakValueDictionary[str, _Run] = weakref.WeakValueDictionary()
        self._strays: dict[str, _Stray] = {}
        self._starts: dict[int, _Start] = {}
        self._starts_max = STARTS_MAX
        # By id, in the order of their ends: strays that have ended, and whose end is not in the log yet.
        self._ended: dict[str, None] = {}
        self._known: dict[int, int] = {}
        self._number = 0
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher: threading.Thread | None = None
        self._closed = False
        self._reaps = inherits_orphans()
        self._workers: list[_Workers] = []
        attribution.install(self)
        # What the program has started before is its own, and so is the status of that.
        with self._lock:
            for pid in procfs.children(self._pid):
                seen = procfs.stat(pid)
                if seen is not None:
                    self._known.setdefault(pid, seen.start_ticks)

    # ── For the actors ────────────────────────────────────────────────────────────────────────────────

    def within(
        self, address: Address, isolation: Isolation, token: CancelToken, body: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return `body` with what it starts attributed; see the port."""
        with self._lock:
            run = self._runs.get(address.run)
            if run is None:
                run = self._runs[address.run] = _Run(
                    Address(address.session, address.generation, address.run), self._lock
                )
        starter = _Starter(self, run, address, token)

        def as_thread() -> Any:
            attribution.enter(starter)
            self._begun(starter)
            try:
                return body()
            finally:
                self._over(starter)

        async def as_task() -> Any:
            attribution.enter(starter)
            self._begun(starter)
            try:
                return await body()
            finally:
                self._over(starter)

        return as_task if isolation == "task" else as_thread

    def adopt(self, address: Address, owner: ActorRef[Any], claimed: Sequence[ProcessRow] = ()) -> None:
        """From here on tell `owner`; see the port."""
        run_address = Address(address.session, address.generation, address.run)
        with self._lock:
            run = self._runs.get(address.run)
            if run is None:
                run = self._runs[address.run] = _Run(run_address, self._lock)
            run.owner = owner
            for stray in list(run.strays.values()):
                _tell(run, stray.found)
                if stray.ended is not None:
                    _tell(run, stray.ended)
            for row in claimed:
                if row.process_id not in run.strays:
                    self._claim(run, row)
        self._rouse()

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
                    self._cancel(stray)
        self._rouse()

    def forget(self, stray_id: str) -> None:
        """The end of a stray is in the log."""
        with self._lock:
            stray = self._strays.get(stray_id)
            if stray is not None and stray.ended is not None:
                self._drop(stray)

    # ── For the executor, and for people ──────────────────────────────────────────────────────────────

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attribute the tasks of a loop, and the work that it gives to its default executor."""
        workers = _Workers(self)
        self._workers.append(workers)
        loop.set_default_executor(workers)
        loop.set_task_factory(self._make_task)

    def left(self, *, overdue: bool = False) -> list[str]:
        """What goes on, as ``kind name``: subprocesses, and threads and tasks whose execution has ended.

        `overdue`: of those only what goes on after the grace of its run.
        """
        now = time.monotonic()
        with self._lock:
            return sorted(
                f"{one.found.kind} {one.found.name}"
                for one in self._strays.values()
                if one.ended is None and (not overdue or (one.run.due(one.call) or now) < now)
            )

    def close(self) -> bool:
        """End the watching thread. Again is harmless. Returns True if nothing goes on."""
        with self._lock:
            self._closed = True
            watcher = self._watcher
        for workers in self._workers:
            workers.shutdown(wait=False, cancel_futures=True)
        self._rouse()
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(5.0)
        with self._lock:
            if self._wake is not None and (watcher is None or not watcher.is_alive()):
                os.close(self._wake)
                self._wake = None
        return not self.left()

    # ── Executions ────────────────────────────────────────────────────────────────────────────────────

    def _begun(self, starter: _Starter) -> None:
        with self._lock:
            starter.run.open += 1

    def _over(self, starter: _Starter) -> None:
        """An execution ends, on its own thread: tell what of it goes on, before its end is told. Never raises."""
        if os.getpid() != self._pid:
            return
        try:
            with self._lock:
                run = starter.run
                self._settle_start(threading.get_native_id())
                starter.over = True
                run.open -= 1
                run.agent_over = run.agent_over or starter.address.call is None
                for task in [one for one in starter.tasks if not one.done()]:
                    self._tell_task(starter, task)
                for work in list(starter.works):
                    self._tell_work(work)
                self._look_around(run)
                if run.due(starter.address.call) is not None:
                    for stray in run.strays.values():
                        self._cancel(stray)
                        stray.spared = stray.spared and stray.call != starter.address.call
            self._rouse()
        except Exception:  # noqa: BLE001  # the end of an execution is told, whatever happens here
            logger.opt(exception=True).error("what {} left could not be looked at", starter.address)

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────

    def starting(self, starter: _Starter, words: list[str]) -> None:
        """The calling thread is about to start a process. Called in the audit hook."""
        if os.getpid() != self._pid or self._closed:
            # In a child that was forked there is nobody to tell, and a lock may be held for ever.
            return
        self._begin(starter, offspring.named(words))

    def starts_outside(self) -> None:
        """The calling thread is about to start a process for the program around. Called in the audit hook."""
        if os.getpid() != self._pid or self._closed:
            return
        self._begin(None, "")

    def served(self, starter: _Starter) -> None:
        """The fork server of `multiprocessing` is about to start a process for a starter. Called in the audit hook."""
        if os.getpid() == self._pid:
            with self._lock:
                self._tell_doubt(starter.run, SERVED)

    def _begin(self, starter: _Starter | None, name: str) -> None:
        tid = threading.get_native_id()
        with self._lock:
            self._settle_start(tid)
            if starter is not None:
                starter.run.forks = True
            if len(self._starts) >= self._starts_max:
                for start in list(self._starts.values()):
                    self._find(start)
                self._starts_max = max(STARTS_MAX, 2 * len(self._starts))
            self._starts[tid] = _Start(starter, tid, name)
        self._rouse()

    def _settle_start(self, tid: int) -> None:
        """The thread is not starting a process any more: one that it started is there now, or never was, or is gone."""
        start = self._starts.pop(tid, None)
        if start is not None:
            self._find(start)

    def _find(self, start: _Start) -> bool:
        """Look for the process of a start; True if there is nothing more to look for.

        It is there, or has ended and waits for whoever reads its status, or its thread is gone.
        """
        if _thread_ticks(start.tid) != start.ticks:
            if self._starts.get(start.tid) is start:
                del self._starts[start.tid]
            return True
        pids = [pid for pid in _children(start.tid) if pid not in start.before and not self._knows(pid)]
        found = any(self._bind(start, pid) for pid in pids)
        if found:
            self._starts.pop(start.tid, None)
        return found

    def _bind(self, start: _Start, pid: int) -> bool:
        seen = procfs.stat(pid)
        if seen is None or seen.ppid != self._pid:
            return False
        self._remember(pid, seen.start_ticks)
        root = offspring.opened(pid, self._pid, start.name) if start.starter is not None else None
        if start.starter is None or root is None:
            return True
        stray = self._subprocess(start.starter.run, start.starter.address, root)
        stray.spared = start.cleans_up
        return True

    def _subprocess(self, run: _Run, address: Address, root: Member, *, ours: bool = True) -> _Stray:
        self._remember(root.pid, root.ticks)
        found = StrayFound(
            address,
            self._new_id("subprocess", address),
            "subprocess",
            root.name,
            root.started_at,
            root.pid,
            f"{self._boot}:{root.ticks}",
            ours,
            "" if ours else UNKNOWN,
        )
        stray = self._tell_found(run, found)
        stray.process = Offspring(root)
        return stray

    def _remember(self, pid: int, ticks: int) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known = {one: known for one, known in self._known.items() if self._knows(one)}
        self._known[pid] = ticks

    def _claim(self, run: _Run, row: ProcessRow) -> None:
        """Take a stray that is on record and not known: it was another supervisor's, which has ended."""
        going_on = _THREADS.get(row.process_id)
        if going_on is not None:
            with going_on.run.lock:
                going_on.run.owner = run.owner
                _tell(run, going_on.found)
                if going_on.ended is not None:
                    _tell(run, going_on.ended)
            return
        address = run.address.of_call(row.call_id) if row.call_id else run.address
        found = StrayFound(
            address, row.process_id, row.kind, row.name, row.started_at or 0.0, row.pid, row.born, row.ours
        )
        stray = self._tell_found(run, found)
        if row.kind == "subprocess":
            self._tell_doubt(run, LOST)
        boot, _, ticks = row.born.rpartition(":")
        root = offspring.opened(row.pid, None, row.name) if row.pid is not None and boot == self._boot else None
        if root is not None and str(root.ticks) != ticks:
            root.close()
            root = None
        if root is not None and row.ours:
            stray.process = Offspring(root)
            return
        if root is not None:
            root.close()
        self._tell_ended(stray, How.GONE, note="the supervisor that it was started in has ended")

    def _look_around(self, run: _Run) -> None:
        """Before what may be the last end of a run: tell it what nobody can attribute, and what cannot be seen."""
        if run.open or not run.agent_over:
            return
        if any(one.ended is None and one.found.ours for one in run.strays.values()):
            return
        if run.forks and not inherits_orphans():
            self._tell_doubt(run, UNSEEN)
        fresh = [pid for pid in procfs.children(self._pid) if not self._knows(pid)]
        if fresh:
            # Of threads that are starting one just now. No other can begin to: that takes the lock.
            for start in list(self._starts.values()):
                self._find(start)
        for pid in fresh:
            seen = procfs.stat(pid)
            if self._knows(pid) or seen is None or seen.start_ticks < run.begun or _is_contained(pid):
                continue
            root = offspring.opened(pid, self._pid)
            if root is not None:
                self._subprocess(run, run.address, root, ours=False)

    def _knows(self, pid: int) -> bool:
        """True of a child whose start was attributed, or was the program's own."""
        ticks = self._known.get(pid)
        seen = None if ticks is None else procfs.stat(pid)
        return seen is not None and seen.start_ticks == ticks

    def _tell_doubt(self, run: _Run, note: str) -> None:
        """Tell, once, that there may be processes which cannot be seen."""
        if run.doubted:
            return
        run.doubted = True
        found = StrayFound(run.address, self._new_id("orphans", run.address), "subprocess", ORPHANS, self._clock.wall())
        self._tell_ended(self._tell_found(run, found), How.OUT_OF_REACH, note=note)

    def reap(self) -> None:
        """A child of this process has ended: if it is an orphan, nobody else waits for it."""
        if self._reaps:
            self._rouse()

    def _reap(self) -> None:
        """Reap the orphans that have ended. They fall to the first thread; what was started here is known."""
        if not self._reaps:
            return
        dead = [pid for pid in _children(self._pid) if (seen := procfs.stat(pid)) is not None and seen.dead]
        if not dead:
            return
        for start in list(self._starts.values()):
            self._find(start)
        for pid in dead:
            if not self._knows(pid):
                with suppress(OSError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    # ── Tasks ─────────────────────────────────────────────────────────────────────────────────────────

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        context = options.get("context")
        starter = attribution.current(context)
        if isinstance(starter, _Starter) and starter.strays is self:
            # It may be another thread's starter, which ends in this moment.
            with self._lock:
                starter.tasks.add(task)
                if starter.over:
                    self._tell_task(starter, task)
        return task

    def _tell_task(self, starter: _Starter, task: asyncio.Task[Any]) -> None:
        stray = self._tell_one(starter, "task", _task_name(task), self._clock.wall())
        stray.tasks.add(task)
        task.add_done_callback(functools.partial(self._task_done, stray))

    def _task_done(self, stray: _Stray, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        note = "" if error is None else type(error).__name__
        how = How.CANCELLED if task.cancelled() else How.RETURNED if error is None else How.RAISED
        with self._lock:
            stray.tasks.discard(task)
            self._one_ended(stray, how, note)

    def _cancel(self, stray: _Stray) -> None:
        """Cancel its tasks, once."""
        if stray.asked or not stray.tasks or stray.run.due(stray.call) is None:
            return
        stray.asked = True
        with suppress(RuntimeError):
            for task in stray.tasks:
                task.get_loop().call_soon_threadsafe(_cancel_once, task)

    # ── Threads ───────────────────────────────────────────────────────────────────────────────────────

    def give_work(self, starter: _Starter, function: Callable[..., Any]) -> _Work:
        """A default executor is given work of a starter."""
        work = _Work(starter, _function_name(function), self._clock.wall())
        with self._lock:
            starter.works.add(work)
            if starter.over:
                self._tell_work(work)
        return work

    def do_work(self, work: _Work, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do it, on a thread of the executor, in the context in which it was given."""
        try:
            return function(*args, **kwargs)
        finally:
            with self._lock:
                self._settle_start(threading.get_native_id())
            self.work_over(work)

    def work_over(self, work: _Work) -> None:
        """It is done, or never will be. Again is harmless."""
        with self._lock:
            if work.over:
                return
            work.over = True
            work.starter.works.discard(work)
            if work.stray is not None:
                self._one_ended(work.stray, How.RETURNED)

    def _tell_work(self, work: _Work) -> None:
        if work.stray is None and not work.over:
            work.stray = self._tell_one(work.starter, "thread", work.name, work.started_at)
            _THREADS[work.stray.id] = work.stray

    # ── Telling ───────────────────────────────────────────────────────────────────────────────────────

    def _tell_one(self, starter: _Starter, kind: str, name: str, at: float) -> _Stray:
        """Tell of a thread or a task; of very many the last ones together."""
        stray = starter.more.get(kind)
        if stray is None or stray.ended is not None:
            starter.told[kind] = starter.told.get(kind, 0) + 1
            crowded = starter.told[kind] > STRAYS_MAX
            name = f"{name}, and others" if crowded else name
            found = StrayFound(starter.address, self._new_id(kind, starter.address), kind, name, at)
            stray = self._tell_found(starter.run, found)
            if crowded:
                starter.more[kind] = stray
        stray.left += 1
        return stray

    def _one_ended(self, stray: _Stray, how: How, note: str = "") -> None:
        stray.left -= 1
        if not stray.left:
            self._tell_ended(stray, how, note=note)

    def _new_id(self, kind: str, address: Address) -> str:
        self._number += 1
        return f"{kind}_{address.call or address.run}_{self._number}"

    def _tell_found(self, run: _Run, found: StrayFound) -> _Stray:
        stray = _Stray(run, found)
        run.strays[stray.id] = self._strays[stray.id] = stray
        _tell(run, found)
        return stray

    def _tell_ended(self, stray: _Stray, how: How | None, *, note: str = "") -> None:
        """Tell the end of a stray; before the last one of a run, what else there is."""
        if stray.ended is not None:
            return
        at, process = self._clock.wall(), stray.process
        if process is None:
            stray.ended = StrayEnded(stray.found.address, stray.id, how, at, note=note)
        else:
            stray.ended = StrayEnded(
                stray.found.address,
                stray.id,
                process.how,
                at,
                process.status,
                process.reaped,
                process.rows(),
                tuple(process.signals),
            )
            process.close()
        if stray.found.name != ORPHANS:
            self._look_around(stray.run)
        _tell(stray.run, stray.ended)
        self._ended[stray.id] = None
        if len(self._ended) > ENDED_MAX:
            self._drop(self._strays[next(iter(self._ended))])

    def _drop(self, stray: _Stray) -> None:
        self._ended.pop(stray.id, None)
        del self._strays[stray.id]
        stray.run.strays.pop(stray.id, None)

    # ── The watching thread ───────────────────────────────────────────────────────────────────────────

    def _rouse(self) -> None:
        with self._lock:
            if self._watcher is None and not self._closed and (self._reaps or self._starts or self._strays):
                watcher = threading.Thread(target=self._watch, name="countermand-strays", daemon=True)
                # Where there is no room for a thread just now: whoever comes next tries again.
                with suppress(RuntimeError):
                    watcher.start()
                    self._watcher = watcher
            if self._wake is not None:
                with suppress(BlockingIOError):
                    os.eventfd_write(self._wake, 1)

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._wait(self._turn())
            except Exception:  # noqa: BLE001  # it watches for all runs, and goes on
                logger.opt(exception=True).error("strays could not be watched for a moment")
                time.sleep(LADDER_S)

    def _wait(self, timeout_s: float | None) -> None:
        wake = self._wake
        assert wake is not None, "it is closed when this thread has ended"
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        with self._lock:
            for stray in self._strays.values():
                if stray.ended is None and stray.process is not None:
                    for member in stray.process.members.values():
                        if member.fd is not None and member.ended_at is None:
                            poll.register(member.fd, select.POLLIN)
        poll.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))
        with suppress(BlockingIOError):
            os.eventfd_read(wake)

    def _turn(self) -> float | None:
        """Do what is due; returns after how many seconds there is more to do without a word from anybody."""
        now, waits = time.monotonic(), list[float]()
        with self._lock:
            self._reap()
            for tid, start in list(self._starts.items()):
                if start.next_s > now:
                    waits.append(start.next_s - now)
                elif not self._find(start):
                    start.looks += 1
                    ending = start.starter is not None and bool(start.starter.run.dues)
                    if start.looks < (LOOKS_ENDING_MAX if ending else LOOKS_MAX):
                        wait_s = LOOK_S * 2 ** min(start.looks, 6)
                        start.next_s = now + wait_s
                        waits.append(wait_s)
                    elif start.starter is None:
                        # It could not be started. Who falls to this thread later is somebody else.
                        del self._starts[tid]
                    else:
                        # It is looked for again when its thread says something.
                        start.next_s = float("inf")
            processes = [one for one in self._strays.values() if one.process is not None and one.ended is None]
        for stray in processes:
            wait_s = self._tend(stray, now)
            if wait_s is not None:
                waits.append(wait_s)
        return min(waits, default=None)

    def _tend(self, stray: _Stray, now: float) -> float | None:
        """Ask, kill, or look whether a subprocess is gone."""
        process, due = stray.process, stray.run.due(stray.call)
        assert process is not None, "a subprocess has one"
        if due is None or not stray.found.ours:
            if process.gone:
                with self._lock:
                    self._tell_ended(stray, None)
            return None if process.root.fd is not None else LADDER_S
        if now >= due:
            process.kill()
        elif not stray.asked and not stray.spared:
            stray.asked = True
            process.ask()
        else:
            process.look()
        if process.gone:
            with self._lock:
                self._tell_ended(stray, None)
            return None
        return LADDER_S


class _Workers(ThreadPoolExecutor):
    """A loop's default executor, which notes whose work it is given."""

    def __init__(self, strays: Strays) -> None:
        super().__init__(WORKERS_MAX, "countermand-worker")
        self._strays = strays

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        starter = attribution.current()
        if not isinstance(starter, _Starter) or starter.strays is not self._strays:
            return super().submit(fn, *args, **kwargs)
        work = self._strays.give_work(starter, fn)
        context = contextvars.copy_context()
        try:
            future = super().submit(context.run, self._strays.do_work, work, fn, args, kwargs)
        except BaseException:
            self._strays.work_over(work)
            raise
        work.future = future
        # One that is cancelled before it begins is done by nobody.
        future.add_done_callback(lambda _: self._strays.work_over(work))
        return future


def ticks_now() -> int:
    """The moment as the kernel counts the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * procfs.TICKS_PER_S)


def inherits_orphans() -> bool:
    """True if what loses its parent below this process becomes its child."""
    if os.getpid() == 1:
        return True
    said = ctypes.c_int(0)
    return _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(said)) == 0 and said.value == 1


def inherit_orphans() -> bool:
    """Have what loses its parent below this process become its child. It changes the whole program."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: Any) -> int:
    try:
        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))
    except (OSError, AttributeError):
        return -1


def _children(tid: int) -> list[int]:
    try:
        return [int(word) for word in procfs.read_text(f"/proc/self/task/{tid}/children").split()]
    except OSError:
        return []


def _thread_ticks(tid: int) -> int | None:
    """When a thread of this process began, as the kernel counts; None: there is none."""
    seen = procfs.stat(tid)
    return None if seen is None else seen.start_ticks


def _is_contained(pid: int) -> bool:
    """True of the supervisor's own processes, and of those in trees: their wardens, or a ledger, tell of them."""
    if any(word.endswith(KEEPERS) for word in procfs.command_line(pid)):
        return True
    return any(word.startswith(CONTAINED) for word in procfs.environment(pid))


def _cancel_once(task: asyncio.Task[Any]) -> None:
    if not task.cancelling():
        task.cancel()


def _task_name(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    function = getattr(coro, "__qualname__", type(coro).__name__)
    name = task.get_name()
    return str(function) if name.startswith("Task-") else f"{name} ({function})"


def _function_name(function: Callable[..., Any]) -> str:
    """The name of what is called, through the wrappers of asyncio."""
    while isinstance(function, functools.partial):
        bound = getattr(function.func, "__self__", None)
        function = function.args[0] if isinstance(bound, contextvars.Context) else function.func
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def _tell(run: _Run, message: StrayFound | StrayEnded) -> None:
    if run.owner is None:
        return
    # Where the owner is gone: whoever takes the run over hears it.
    with suppress(ActorDeadError):
        run.owner.tell(message)
