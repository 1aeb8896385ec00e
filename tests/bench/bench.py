"""Measures what the product promises to be fast at, each next to a baseline taken in the same run.

    scripts/bench            a table
    scripts/bench --json     one document on stdout
    scripts/bench --quick    fewer rounds; the figures are rougher

Figures are of this machine at this moment: compare them within a run. The exit code is 1 if a figure is over its
limit: how much later a Stop is answered behind a hundred thousand messages, what containment may cost, and what it
costs to read two hundred chatty children.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import queue
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pykka
from loguru import logger
from pykka import ActorRef

from actors import AsyncTurn, NewMessage, SessionActor, Stop
from actors.dead_letters import DeadLetters
from actors.errors import Invalid
from actors.kernel.actor import Actor
from actors.kernel.dispatcher import PooledDispatcher
from actors.kernel.mailbox import Mailbox
from actors.messages import Committed, ProcessEnded, ProcessExited, ProcessOutput, Said
from actors.model import Address, Event, Mode, Policy, Receipt, RunInfo, RunStatus
from actors.plugin.registration import Plugins
from actors.ports import Batch, Ports, SessionRow, Settings, SpawnSpec
from supervisor import Config, SessionHandle, Supervisor
from supervisor.clock import SystemClock
from supervisor.config import LAYERS
from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.processes import ProcessTrees
from supervisor.executor import ThreadExecutor
from supervisor.ids import RandomIds
from supervisor.publisher import EventHub
from supervisor.store.sqlite import SqliteStore
from supervisor.strays import Strays
from tests.daemon_kit import Foreground
from tests.process_kit import ESCAPE

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_S = 60.0
GRACE_S = 0.3
BACKLOG = 100_000
BACKLOG_RATIO_MAX = 3.0
TREE = 1000
TREE_RATIO_MAX = 2.0
TREE_RATIO_PLAIN_MAX = 4.0
SPAWN_RATIO_MAX = 3.0
READY_MAX_MS = 700.0
POLITE_MAX_MS = 20.0
DAEMON_THREADS = 200
DAEMON_BYTES = 500_000_000
STUBBORN = 'sleep 100 & setsid sleep 100 & (trap "" TERM; sleep 100) & echo up; wait'
POLITE = "echo up; exec sleep 100"
CHATTY_RATIO_MAX = 0.5
CHATTY = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
for number in range(int(sys.argv[2])):
    print("a line of output, number", number, flush=True)
    time.sleep(0.02)
"""


class Figure(msgspec.Struct, frozen=True):
    """One measured number. `baseline` is what to read it against, in the same unit; `limit` what it must not pass."""

    group: str
    name: str
    value: float
    unit: str
    baseline: float | None = None
    against: str = ""
    limit: float | None = None

    @property
    def over(self) -> bool:
        """True if it is over its limit."""
        return self.limit is not None and self.value >= self.limit


class Rounds(msgspec.Struct, frozen=True):
    """How often each thing is measured."""

    stops: int = 50
    backlog: int = 15
    answers: int = 200
    spawns: int = 50
    polite: int = 20
    messages: int = 900
    texts: int = 20_000
    commit_s: float = 2.0
    actors: int = 20_000
    threads: int = 500
    starts: int = 10
    trees: int = 7
    leaks: int = 1000
    children: int = 200
    lines: int = 150
    flood_mb: int = 2000
    resident: int = 10_000
    stored: int = 100_000
    activations: int = 300
    ready_stored: int = 10_000
    ready_halves: int = 100


QUICK = Rounds(8, 3, 50, 10, 5, 300, 4_000, 0.5, 5_000, 100, 3, 3, 200, 200, 50, 300, 1_000, 5_000, 100, 1_000, 20)


# ── Small things ──────────────────────────────────────────────────────────────────────────────────


def timed(work: Callable[[], Any]) -> float:
    """Seconds that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_ms(seconds: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return statistics.median(seconds) * 1000


def p95_ms(seconds: list[float]) -> float:
    """The value that 95 of 100 do not pass, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))] * 1000


class Inbox:
    """Whoever a port reports to: keeps what it is told, with the time."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()

    def tell(self, message: Any) -> None:
        self.told.put((time.perf_counter(), message))

    def wait(self, kind: type) -> float:
        """When the next report of that kind came."""
        while True:
            at, message = self.told.get(timeout=WAIT_S)
            if isinstance(message, kind):
                return at


async def idle(turn: AsyncTurn) -> None:
    """An agent that has nothing to do."""


async def waits(turn: AsyncTurn) -> None:
    """An agent that waits to be stopped."""
    await turn.cancel_token.wait()


async def talks(turn: AsyncTurn) -> None:
    """An agent that says as many words as its message asks for."""
    for number in range(int(turn.inputs[0].content)):
        await turn.emit(f"word {number} ")


@contextlib.contextmanager
def running(folder: Path, agent: str) -> Iterator[Supervisor]:
    """A supervisor in a directory of its own."""
    config = Config(
        state_dir=folder / agent,
        agent=agent,
        agents={"idle": idle, "waits": waits, "talks": talks},
        grace_s=GRACE_S,
        drain_s=0.0,
    )
    with Supervisor.start(config) as supervisor:
        yield supervisor


def run_until_up(session: SessionHandle, script: str) -> str:
    """Run a script that says ``up``; returns its run's id once that was heard."""
    after = session.status().last_seq
    accepted = session.ask(NewMessage(content=script), timeout=WAIT_S)
    assert accepted.run_id is not None
    for event in session.subscribe(from_seq=after, timeout=WAIT_S):
        if event.kind == "tool.output" and event.run_id == accepted.run_id:
            return accepted.run_id
    raise TimeoutError("the script says nothing")


# ── The measurements ──────────────────────────────────────────────────────────────────────────────


def stop_latency(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(a) Stop to its answer, and to the proof of death, of a tree that leaves its session and ignores SIGTERM."""
    answered, dead = [], []
    with running(folder, "shell") as supervisor:
        session = supervisor.session("stops")
        for _ in range(rounds.stops):
            run_id = run_until_up(session, STUBBORN)
            started = time.perf_counter()
            session.ask(Stop(source="user.bench", reason="measured"), timeout=WAIT_S)
            answered.append(time.perf_counter() - started)
            receipt = session.receipt(run_id, timeout=WAIT_S)
            dead.append(time.perf_counter() - started)
            assert receipt.complete, "what is timed is a proof"
    floor = commit_floor(folder, rounds)
    commit = "one row in SQLite, synchronous=FULL"
    yield Figure("stop", "ask to answer, median", median_ms(answered), "ms", median_ms(floor), commit)
    yield Figure("stop", "ask to answer, p95", p95_ms(answered), "ms", p95_ms(floor), commit)
    yield Figure("stop", "ask to proven dead, median", median_ms(dead), "ms", GRACE_S * 1000, "the grace")
    yield Figure("stop", "ask to proven dead, p95", p95_ms(dead), "ms", GRACE_S * 1000, "the grace")


def polite_stop(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(a) Stop to the event of the receipt, which is durable by then, of a child that ends at SIGTERM; and each hop."""
    hops: list[list[float]] = []
    with running(folder, "shell") as supervisor:
        session = supervisor.session("polite")
        for _ in range(rounds.polite):
            run_id = run_until_up(session, POLITE)
            with session.subscribe(from_seq=session.status().last_seq, timeout=WAIT_S) as events:
                # By the wall clock, which all that the receipt tells of is told by.
                at = [time.time()]  # noqa: TID251
                session.tell(Stop(source="user.bench", reason="measured"))
                next(event for event in events if event.kind == "run.ended" and event.run_id == run_id)
                heard = time.time()  # noqa: TID251
            receipt = session.receipt(run_id)
            (tree,) = [row for call in receipt.rows for row in call.rows]
            assert receipt.complete, "what is timed is a proof"
            assert tree.ended_at is not None, "it is complete"
            at += [receipt.fenced_at, tree.signals[0].at, tree.ended_at, receipt.ended_at, heard]
            hops.append([after - before for before, after in itertools.pairwise(at)])
    whole = [sum(one) for one in hops]
    kills, floor = killed(rounds), commit_floor(folder, rounds)
    name = "a polite child: ask to receipt durable"
    yield Figure(
        "polite stop", f"{name}, median", median_ms(whole), "ms", median_ms(kills), "SIGTERM, wait()", POLITE_MAX_MS
    )
    yield Figure("polite stop", f"{name}, p95", p95_ms(whole), "ms", p95_ms(kills), "SIGTERM, wait()")
    names = ("asked to fenced", "to SIGTERM sent", "to the tree proven empty", "to the receipt decided", "to durable")
    for name, taken in zip(names, zip(*hops, strict=True), strict=True):
        commit = (p95_ms(floor), "one row in SQLite, FULL") if name == "to durable" else (None, "")
        yield Figure("polite stop", f"  {name}, median", median_ms(list(taken)), "ms")
        yield Figure("polite stop", f"  {name}, p95", p95_ms(list(taken)), "ms", *commit)


@contextlib.contextmanager
def process_trees(folder: Path, **options: Any) -> Iterator[ProcessTrees]:
    """A ProcessTrees by itself."""
    clock = SystemClock()
    trees = ProcessTrees(folder, clock, **options)
    trees.start()
    try:
        yield trees
    finally:
        trees.close()
        clock.close()


def big_trees(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(h) An immediate kill of a thousand processes in as many sessions, to its proof, and of a polite child."""
    # By turns, so that all meet the same machine.
    taken: dict[str, list[float]] = {"bare": [], "cgroup": [], "plain": []}
    polite = []
    base = cgroups.prepare(str(folder))[0]
    with (
        process_trees(folder / "cgroup") as with_group,
        process_trees(folder / "plain", layers=LAYERS - {"cgroup"}) as without,
    ):
        for number in range(rounds.trees):
            if base is not None:
                taken["bare"].append(bare_group_kill(os.path.join(base, "bare")))
                taken["cgroup"].append(tree_kill(with_group, f"p{number}"))
            taken["plain"].append(tree_kill(without, f"p{number}"))
        for number in range(rounds.polite):
            inbox: Any = Inbox()
            with_group.spawn(f"polite{number}", SpawnSpec(("bash", "-c", POLITE), "bench"), inbox)
            inbox.wait(ProcessOutput)
            started = time.perf_counter()
            with_group.kill(f"polite{number}", 10.0)
            polite.append(inbox.wait(ProcessEnded) - started)
    bare = None
    against = ""
    if base is not None:
        cgroups.leave(base)
        bare, against = median_ms(taken["bare"]), "a bare cgroup.kill and rmdir"
        kill = median_ms(taken["cgroup"])
        yield Figure("trees", f"{TREE:,} that escaped, killed and proven", kill, "ms", bare, against)
        yield Figure("trees", "ratio", kill / bare, "x", limit=TREE_RATIO_MAX)
    plain = median_ms(taken["plain"])
    yield Figure("trees", "the same without cgroups", plain, "ms", bare, against)
    if bare is not None:
        yield Figure("trees", "ratio without cgroups", plain / bare, "x", limit=TREE_RATIO_PLAIN_MAX)
    yield Figure(
        "trees",
        "a polite child: kill to proof, median",
        median_ms(polite),
        "ms",
        median_ms(killed(rounds)),
        "SIGTERM, wait()",
        POLITE_MAX_MS,
    )


def tree_kill(trees: ProcessTrees, process_id: str) -> float:
    """Seconds from an immediate kill of a big tree to its proof."""
    inbox: Any = Inbox()
    trees.spawn(process_id, SpawnSpec((sys.executable, "-S", "-c", ESCAPE, str(TREE)), "bench"), inbox)
    inbox.wait(ProcessOutput)
    started = time.perf_counter()
    trees.kill(process_id, 0.0)
    ended: float = inbox.wait(ProcessEnded)
    return ended - started


def bare_group_kill(group: str) -> float:
    """Seconds that the kernel alone takes for the same tree: cgroup.kill and rmdir, until rmdir succeeds."""
    os.mkdir(group)
    join = f'echo 0 > {group}/cgroup.procs; exec "$0" "$@"'
    argv = ["sh", "-c", join, sys.executable, "-S", "-c", ESCAPE, str(TREE)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.perf_counter()
        while True:
            cgroups.write(os.path.join(group, "cgroup.kill"), "1")
            with contextlib.suppress(OSError):
                os.rmdir(group)
                return time.perf_counter() - started


def spawn_from_a_big_daemon(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(i) Spawn to the first byte from a process with many threads and much memory, against a bare posix_spawn."""
    memory = bytearray(DAEMON_BYTES)
    memory[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(range(0, DAEMON_BYTES, os.sysconf("SC_PAGE_SIZE")))
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(DAEMON_THREADS)]
    for thread in threads:
        thread.start()
    bare, contained = [], []
    try:
        with process_trees(folder / "big") as trees:
            for number in range(rounds.spawns):
                bare.append(posix_spawn_to_first_byte())
                # A daemon spawns now and then; in between it has the time to make the next warden ready.
                time.sleep(0.05)
                inbox: Any = Inbox()
                started = time.perf_counter()
                trees.spawn(f"p{number}", SpawnSpec(("/bin/echo", "up"), "bench"), inbox)
                contained.append(inbox.wait(ProcessOutput) - started)
                inbox.wait(ProcessEnded)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    ours, theirs = median_ms(contained), median_ms(bare)
    against = "a bare posix_spawn"
    yield Figure("spawn", "of a big daemon, to the first byte, median", ours, "ms", theirs, against)
    yield Figure("spawn", "ratio", ours / theirs, "x", limit=SPAWN_RATIO_MAX)


def posix_spawn_to_first_byte() -> float:
    """Seconds from a posix_spawn to the first byte of the child's output."""
    readable, writable = os.pipe()
    started = time.perf_counter()
    actions = [(os.POSIX_SPAWN_DUP2, writable, 1)]
    pid = os.posix_spawn("/bin/echo", ["echo", "up"], dict(os.environ), file_actions=actions, setsid=True)
    os.close(writable)
    os.read(readable, 1)
    seconds = time.perf_counter() - started
    os.waitpid(pid, 0)
    os.close(readable)
    return seconds


def after_many_spawns(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(j) What is left behind by many trees that were killed: of each kind there must be as much as before."""
    with process_trees(folder / "many") as trees:

        def kill_some(first: int, count: int) -> dict[str, float]:
            for number in range(first, first + count):
                inbox: Any = Inbox()
                script = "setsid sleep 100 & sleep 100 & echo up; wait"
                trees.spawn(f"p{number}", SpawnSpec(("sh", "-c", script), "bench"), inbox)
                inbox.wait(ProcessOutput)
                trees.kill(f"p{number}", 0.0)
                inbox.wait(ProcessEnded)
                trees.forget(f"p{number}")
            time.sleep(0.5)
            (zygote,) = procfs.children(os.getpid())
            return {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(),
                "wardens": len(procfs.children(zygote)),
                "ledgers": len(list((folder / "many" / "wardens").glob("*.ledger"))),
                "zombies": sum(1 for pid in procfs.children(zygote) if (s := procfs.stat(pid)) and s.state == "Z"),
                "MB": round(resident() / 1e6, 1),
            }

        before = kill_some(0, 50)
        after = kill_some(50, rounds.leaks)
    for kind, unit in (("descriptors", ""), ("threads", ""), ("wardens", ""), ("ledgers", ""), ("zombies", "")):
        limit = before[kind] + 0.5
        yield Figure("leaks", f"{kind} after {rounds.leaks:,} more", after[kind], unit, before[kind], "before", limit)
    limit = before["MB"] + 8.0
    yield Figure("leaks", f"memory after {rounds.leaks:,} more", after["MB"], "MB", before["MB"], "before", limit)


def commit_floor(folder: Path, rounds: Rounds) -> list[float]:
    """What a durable answer costs at least here: seconds for each commit of one small row."""
    connection = sqlite3.connect(folder / "floor.sqlite3", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (n INTEGER)")
        return [timed(lambda: connection.execute("INSERT INTO t VALUES (1)")) for _ in range(rounds.answers)]
    finally:
        connection.close()


def killed(rounds: Rounds) -> list[float]:
    """A bare Popen of the same polite child: seconds from SIGTERM to the end of wait()."""
    taken = []
    for _ in range(rounds.polite):
        with subprocess.Popen(["bash", "-c", POLITE], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            started = time.perf_counter()
            process.terminate()
            process.wait()
            taken.append(time.perf_counter() - started)
    return taken


class PausableDispatcher(PooledDispatcher):
    """A pool that keeps what is submitted while it is paused."""

    def __init__(self) -> None:
        super().__init__(2)
        self._kept: list[tuple[Mailbox, int, bool]] | None = None
        self._keeping = threading.Lock()

    def submit(self, mailbox: Mailbox, ticket: int, urgent: bool) -> None:
        with self._keeping:
            if self._kept is not None:
                self._kept.append((mailbox, ticket, urgent))
                return
        super().submit(mailbox, ticket, urgent)

    def pause(self) -> None:
        """Run nobody from now on; turns under way end."""
        with self._keeping:
            self._kept = []

    def resume(self) -> None:
        """Run everybody again."""
        with self._keeping:
            kept, self._kept = self._kept or [], None
        for entry in kept:
            super().submit(*entry)


@contextlib.contextmanager
def by_hand(folder: Path) -> Iterator[tuple[Ports, PausableDispatcher]]:
    """The real ports, without a supervisor around them, in a process that is set up as a supervisor does it."""
    folder.mkdir()
    with contextlib.ExitStack() as undo:
        clock = SystemClock()
        undo.callback(clock.close)
        store = SqliteStore(folder / "store.sqlite3", clock=clock)
        undo.callback(store.close, WAIT_S)
        hub = EventHub(store.reader)
        undo.callback(hub.close)
        strays = Strays(clock)
        undo.callback(strays.close)
        executor = ThreadExecutor(clock, on_loop=strays.serve)
        undo.callback(executor.close, WAIT_S)
        processes = ProcessTrees(folder, clock)
        undo.callback(processes.close, WAIT_S)
        processes.start()
        dispatcher = PausableDispatcher()
        undo.callback(dispatcher.close, WAIT_S)
        settings = Settings(agent="waits", grace_s=GRACE_S)
        ids, letters = RandomIds(), DeadLetters()
        ports = Ports(clock, ids, executor, strays, processes, store, hub, dispatcher, letters, settings)
        yield ports, dispatcher


def stop_behind_backlog(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(b) Stop behind a backlog of what the active run says, in the same mailbox, against none."""
    taken: dict[int, list[float]] = {0: [], BACKLOG: []}
    with by_hand(folder / "backlog") as (ports, dispatcher):
        plugins = Plugins({"waits": waits}, [])
        # One round to warm up; then one with and one without by turns, so that both meet the same machine.
        for number in range(2 * rounds.backlog + 2):
            backlog = BACKLOG if number % 2 else 0
            name = f"session {number}"
            ref = SessionActor.start(ports, plugins, name)
            accepted: Any = ref.ask(NewMessage(content="wait"), timeout=WAIT_S)
            address = Address(name, accepted.generation, accepted.run_id)
            dispatcher.pause()
            for place in range(backlog):
                ref.tell(Said(address, "text", {"text": f"word {place}"}, 0))
            dispatcher.resume()
            stop = Stop(source="user.bench", reason="measured", mode=Mode.IMMEDIATE)
            seconds = timed(lambda ref=ref, stop=stop: ref.ask(stop, timeout=WAIT_S))  # type: ignore[misc]
            if number >= 2:
                taken[backlog].append(seconds)
            # Also ends what is left of the backlog, so that the next round does not share the machine with it.
            ref.stop(timeout=WAIT_S)
    behind, alone = median_ms(taken[BACKLOG]), median_ms(taken[0])
    yield Figure("backlog", f"Stop behind {BACKLOG:,} messages, median", behind, "ms", alone, "behind none")
    yield Figure("backlog", "ratio of the medians", behind / alone, "x", limit=BACKLOG_RATIO_MAX)


def answer_latency(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(c) A message to its answer, which is given when its run's start is durable; and spawns."""
    with running(folder, "idle") as supervisor:
        session = supervisor.session("answers")
        taken = []
        for _ in range(rounds.answers):
            message = NewMessage(content="x")
            taken.append(timed(lambda message=message: session.ask(message, timeout=WAIT_S)))  # type: ignore[misc]
    floor = commit_floor(folder / "idle", rounds)
    commit = "one row in SQLite, synchronous=FULL"
    yield Figure("message", "ask to answer (run.started), median", median_ms(taken), "ms", median_ms(floor), commit)
    yield Figure("message", "ask to answer (run.started), p95", p95_ms(taken), "ms", p95_ms(floor), commit)
    bare = []
    for _ in range(rounds.spawns):
        started = time.perf_counter()
        with subprocess.Popen(["bash", "-c", "echo up"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            bare.append(time.perf_counter() - started)
    # By turns, so that both meet the same machine.
    taken_by: dict[str, list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as stack:
        kinds = {"trees": stack.enter_context(process_trees(folder / "trees"))}
        with contextlib.suppress(Invalid):
            layers = LAYERS | {"namespace"}
            kinds["namespaces"] = stack.enter_context(process_trees(folder / "namespaces", layers=layers))
        for number in range(rounds.spawns):
            for kind, trees in kinds.items():
                taken_by.setdefault(kind, []).append(spawned(trees, f"p{number}"))
    contained, gone = zip(*taken_by.pop("trees"), strict=True)
    with running(folder, "shell") as supervisor:
        session = supervisor.session("spawns")
        whole = [timed(lambda: run_until_up(session, "echo up")) for _ in range(rounds.spawns)]
    popen = "a bare Popen"
    yield Figure(
        "spawn", "to the first byte, with its warden, median", median_ms(contained), "ms", median_ms(bare), popen
    )
    yield Figure("spawn", "to the proof of the end, median", median_ms(gone), "ms", median_ms(bare), popen)
    for first, proof in [zip(*taken, strict=True) for taken in taken_by.values()]:
        yield Figure("spawn", "the same in a namespace, median", median_ms(first), "ms", median_ms(bare), popen)
        yield Figure("spawn", "to that proof in a namespace, median", median_ms(proof), "ms", median_ms(bare), popen)
    yield Figure("spawn", "message to the first byte's event, median", median_ms(whole), "ms", median_ms(bare), popen)


def spawned(trees: ProcessTrees, process_id: str) -> tuple[float, float]:
    """Seconds from a spawn to its first byte and to the proof of its end."""
    inbox: Any = Inbox()
    started = time.perf_counter()
    trees.spawn(process_id, SpawnSpec(("bash", "-c", "echo up"), "bench"), inbox)
    return inbox.wait(ProcessOutput) - started, inbox.wait(ProcessEnded) - started


class Lines:
    """Whoever hears the output of many children: counts them, and what they say."""

    def __init__(self) -> None:
        self.up = threading.Semaphore(0)
        self.over = threading.Semaphore(0)
        self.chars = 0

    def hear(self, text: str) -> None:
        """Take some text. Called on the thread that reads, or on one of those."""
        self.chars += len(text)
        if text == "up\n":
            self.up.release()

    def tell(self, message: Any) -> None:
        """Take a report of a port."""
        if isinstance(message, ProcessOutput):
            self.hear(message.text)
        elif isinstance(message, ProcessExited):
            self.over.release()

    def cpu_s(self, go: Path, children: int) -> float:
        """Seconds of this process's CPU from the moment that all may speak until all have ended."""
        for _ in range(children):
            assert self.up.acquire(timeout=WAIT_S)
        time.sleep(0.5)
        started = time.process_time()
        go.touch()
        for _ in range(children):
            assert self.over.acquire(timeout=WAIT_S)
        return time.process_time() - started


def chatty(go: Path, rounds: Rounds) -> list[str]:
    """A child that says ``up``, waits for a file, and then says line after line."""
    return [sys.executable, "-I", "-S", "-c", CHATTY, str(go), str(rounds.lines)]


def chatty_by_threads(go: Path, rounds: Rounds) -> float:
    """Seconds of CPU to read them with two threads a child, as `subprocess` has it done."""
    lines = Lines()
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        for _ in range(rounds.children):
            process = stack.enter_context(
                subprocess.Popen(chatty(go, rounds), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )

            def read(pipe: Any, process: subprocess.Popen[bytes], whole: bool) -> None:
                for line in pipe:
                    lines.hear(line.decode("utf-8", "replace"))
                if whole:
                    process.wait()
                    lines.over.release()

            for pipe, whole in ((process.stdout, True), (process.stderr, False)):
                threads.append(threading.Thread(target=read, args=(pipe, process, whole)))
                threads[-1].start()
        cpu_s = lines.cpu_s(go, rounds.children)
        for thread in threads:
            thread.join()
    return cpu_s


@contextlib.contextmanager
def trees_in(folder: Path) -> Iterator[ProcessTrees]:
    """Containment by itself."""
    clock = SystemClock()
    trees = ProcessTrees(folder, clock)
    trees.start()
    try:
        yield trees
    finally:
        trees.close()
        clock.close()


def chatty_children(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(h) The CPU that it takes to read many children that each say a line every 20 ms."""
    baseline = chatty_by_threads(folder / "go threads", rounds)
    lines: Any = Lines()
    go = folder / "go trees"
    with trees_in(folder / "trees") as trees:
        for number in range(rounds.children):
            trees.spawn(f"p{number}", SpawnSpec(tuple(chatty(go, rounds)), "bench"), lines)
        cpu_s = lines.cpu_s(go, rounds.children)
    name = f"CPU to read {rounds.children} chatty children"
    limit = CHATTY_RATIO_MAX * baseline * 1000
    yield Figure("output", name, cpu_s * 1000, "ms", baseline * 1000, "two threads a child", limit)


def flood(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(i) How fast a flood is read, and what it does to a Stop: of its own session, and of another one."""
    command = ["sh", "-c", f"head -c {rounds.flood_mb * 1_000_000} /dev/zero | tr '\\0' x"]

    def bare() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while os.read(process.stdout.fileno(), 65536):
                pass

    inbox: Any = Inbox()
    seconds = timed(bare)
    before = resident()
    with trees_in(folder / "trees") as trees:

        def contained() -> None:
            trees.spawn("flood", SpawnSpec(tuple(command), "bench"), inbox)
            inbox.wait(ProcessExited)

        rate = rounds.flood_mb / timed(contained)
    yield Figure("output", "a flood is read", rate, "MB/s", rounds.flood_mb / seconds, "os.read, and dropped")
    yield Figure("output", "memory that it takes", max(0, resident() - before) / 1e6, "MB", rounds.flood_mb, "printed")
    with running(folder, "shell") as supervisor:
        alone = stops_dead(supervisor, "alone", POLITE, rounds)
        of_flood = stops_dead(supervisor, "of the flood", "yes", rounds)
        other = supervisor.session("flood")
        run_id = run_until_up(other, "yes")
        beside = stops_dead(supervisor, "beside", POLITE, rounds)
        other.ask(Stop(source="user.bench", reason="measured"), timeout=WAIT_S)
        other.receipt(run_id, timeout=WAIT_S)
    without = "without a flood"
    yield Figure(
        "output", "Stop to the receipt beside a flood, median", median_ms(beside), "ms", median_ms(alone), without
    )
    yield Figure("output", "Stop to the receipt beside a flood, p95", p95_ms(beside), "ms", p95_ms(alone), without)
    yield Figure(
        "output", "Stop of a flood to its receipt, median", median_ms(of_flood), "ms", median_ms(alone), without
    )
    yield Figure("output", "Stop of a flood to its receipt, p95", p95_ms(of_flood), "ms", p95_ms(alone), without)


def stops_dead(supervisor: Supervisor, name: str, script: str, rounds: Rounds) -> list[float]:
    """Seconds from a Stop to the receipt that proves the end, for each round of a script in a session of its own."""
    session = supervisor.session(name)
    taken = []
    for _ in range(rounds.polite):
        run_id = run_until_up(session, script)
        time.sleep(0.2)
        started = time.perf_counter()
        session.ask(Stop(source="user.bench", reason="measured"), timeout=WAIT_S)
        session.receipt(run_id, timeout=WAIT_S)
        taken.append(time.perf_counter() - started)
    return taken


def throughput(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(d) Messages through one session, each a run of its own; texts of one run to a subscriber."""
    with running(folder, "idle") as supervisor:
        session = supervisor.session("throughput")
        messages = [NewMessage(content="x", policy=Policy.ENQUEUE, merge=False) for _ in range(rounds.messages)]

        def all_run() -> None:
            for message in messages[:-1]:
                session.tell(message)
            last = session.ask(messages[-1], timeout=WAIT_S)
            session.receipt(last.run_id, timeout=WAIT_S)

        yield Figure("throughput", "messages, a run each", rounds.messages / timed(all_run), "/s")
    with running(folder, "talks") as supervisor:
        session = supervisor.session("stream")
        heard = itertools.count()

        def all_heard() -> None:
            session.tell(NewMessage(content=str(rounds.texts)))
            for event in session.subscribe(timeout=WAIT_S):
                if event.kind == "text":
                    next(heard)
                elif event.kind == "run.ended":
                    return

        seconds = timed(all_heard)
        assert next(heard) == rounds.texts, "every text is heard"
        yield Figure("throughput", "texts streamed to a subscriber", rounds.texts / seconds, "/s")


class Committing:
    """A session that always has one batch on its way."""

    def __init__(self, store: SqliteStore, session: str, until: float) -> None:
        self._store, self._session, self._until = store, session, until
        self.number = 0
        self.over = threading.Event()

    def send(self) -> None:
        """Hand in the next batch."""
        number = self.number + 1
        event = Event(number, self._session, 1, "run", "text", {"text": "a few words of text"}, 0.0)
        batch = Batch(self._session, "inc", number, events=(event,), row=SessionRow(self._session, 1, number))
        self._store.commit(batch, self)  # type: ignore[arg-type]  # it is told like an actor

    def tell(self, message: Any) -> None:
        assert isinstance(message, Committed), message
        self.number = message.number
        if time.perf_counter() < self._until:
            self.send()
        else:
            self.over.set()


def group_commit(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(e) Durable batches a second, of sessions that each wait for one before they send the next."""
    rates = {}
    for sessions in (1, 16):
        clock = SystemClock()
        store = SqliteStore(folder / f"commits-{sessions}.sqlite3", clock=clock)
        try:
            until = time.perf_counter() + rounds.commit_s
            all_of_them = [Committing(store, f"s{number}", until) for number in range(sessions)]

            def run(all_of_them: list[Committing] = all_of_them) -> None:
                for committing in all_of_them:
                    committing.send()
                for committing in all_of_them:
                    assert committing.over.wait(WAIT_S)

            seconds = timed(run)
            rates[sessions] = sum(committing.number for committing in all_of_them) / seconds
        finally:
            store.close(WAIT_S)
            clock.close()
    yield Figure("store", "batches committed, 1 session", rates[1], "/s")
    yield Figure("store", "batches committed, 16 sessions", rates[16], "/s", rates[1], "1 session")


def actors_cost(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(f) What an idle actor costs, and how fast actors start, against Pykka's actor with a thread."""
    dispatcher = PooledDispatcher(2)
    threads = [resident_after(pykka.ThreadingActor.start, rounds.threads)]
    pooled = [resident_after(lambda: Actor.start(dispatcher=dispatcher), rounds.actors)]
    dispatcher.close()
    (each, rate), (each_thread, rate_thread) = pooled[0], threads[0]
    yield Figure("actors", "memory of an idle actor", each, "bytes", each_thread, "pykka.ThreadingActor")
    yield Figure("actors", "starts", rate, "/s", rate_thread, "pykka.ThreadingActor")


def resident_after(start: Callable[[], ActorRef[Any]], number: int) -> tuple[float, float]:
    """Start so many actors; returns the bytes of memory that each took, and how many started in a second."""
    before = resident()
    refs: list[ActorRef[Any]] = []
    seconds = timed(lambda: refs.extend(start() for _ in range(number)))
    for ref in refs[-16:]:
        # The last to be started has had its turn, or its thread runs: all are idle now.
        ref.proxy().actor_urn.get(timeout=WAIT_S)
    each = (resident() - before) / number
    for ref in refs:
        ref.stop(block=False)
    for ref in refs:
        ref._actor_weakref  # noqa: B018  # keeps the refs alive until here
    return each, number / seconds


def resident() -> int:
    """This process's memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_sessions(folder: Path, number: int, *, halves: int = 0) -> Path:
    """Write a store of so many sessions, `halves` of them with a run that is going on; returns the state directory.

    Each has three runs, of a message, five texts, a call and its result: 40 events, as after a short talk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    store = SqliteStore(folder / "store.sqlite3", clock=clock)
    inbox: Any = Inbox()
    try:
        for place in range(number):
            store.commit(a_session(f"session {place:06}", half=place < halves), inbox)
            if place % 1000 == 999:
                assert store.answers(WAIT_S)
        assert store.answers(WAIT_S)
    finally:
        store.close(WAIT_S)
        clock.close()
    return folder


def a_session(name: str, *, half: bool) -> Batch:
    """A session's whole past as one batch."""
    events: list[Event] = []
    runs: list[RunInfo] = []
    receipts: list[Receipt] = []
    at = time.time()  # noqa: TID251  # a clock of ours has a thread, and this is called for each session
    for generation in (1, 2, 3):
        run_id = f"run_{name}_{generation}"
        open_ = half and generation == 3

        def add(kind: str, data: Any, generation: int = generation, run_id: str = run_id) -> None:
            events.append(Event(len(events) + 1, name, generation, run_id, kind, data, at))

        add(
            "message", {"id": f"m_{name}_{generation}", "content": "make test", "origin": "user", "policy": "interrupt"}
        )
        add("run.started", {"agent": "waits", "inputs": [f"m_{name}_{generation}"]})
        for word in range(5):
            add("text", {"text": f"word {word} of what it says"})
        call = f"call_{name}_{generation}"
        add("tool.requested", {"call_id": call, "tool": "shell", "arguments": {"script": "make test"}})
        if not open_:
            add("tool.started", {"call_id": call})
            add("tool.ended", {"call_id": call, "tool": "shell", "outcome": "finished", "content": "it is done " * 20})
            add("run.status", {"status": "completed"})
            add("run.ended", {"status": "completed", "receipt": {}})
            receipts.append(Receipt(f"rcpt_{run_id}", run_id, generation, None, at, at, complete=True))
        status = RunStatus.IN_PROGRESS if open_ else RunStatus.COMPLETED
        runs.append(
            RunInfo(
                session=name,
                run_id=run_id,
                status=status,
                agent="waits",
                generation=generation,
                receipt_id=f"rcpt_{run_id}",
                inputs=(f"m_{name}_{generation}",),
                created_at=at,
                started_at=at,
                settled=not open_,
            )
        )
    row = SessionRow(name, 3, len(events))
    return Batch(name, "inc_0", 1, tuple(events), row, tuple(runs), receipts=tuple(receipts))


def idle_sessions(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(h) What a session costs that has nothing to do: in memory, and when it comes back to it."""
    state_dir = write_sessions(folder / "many", rounds.stored)
    config = Config(state_dir=state_dir, agent="idle", agents={"idle": idle}, passivate_s=None)
    with Supervisor.start(config) as supervisor:
        threads = threading.active_count()
        names = [f"session {place:06}" for place in range(rounds.resident)]
        taken = []
        for name in names[: rounds.activations]:
            session = supervisor.session(name)
            taken.append(timed(lambda session=session: session.status(timeout=WAIT_S)))  # type: ignore[misc]
        before = resident()
        for name in names[rounds.activations :]:
            supervisor.session(name).status(timeout=WAIT_S)
        each = (resident() - before) / (rounds.resident - rounds.activations)
        more = threading.active_count() - threads
        warm = [timed(lambda n=n: supervisor.session(n).status(timeout=WAIT_S)) for n in names[: rounds.activations]]  # type: ignore[misc]
        listed = timed(lambda: len(supervisor.sessions()))
    what = f"idle sessions: {rounds.resident:,} resident, {rounds.stored:,} stored"
    yield Figure(what, "activation, median", median_ms(taken), "ms", median_ms(warm), "one that is resident")
    yield Figure(what, "activation, p95", p95_ms(taken), "ms", p95_ms(warm), "one that is resident")
    yield Figure(what, "memory of a resident session", each, "bytes")
    yield Figure(what, "threads for them", float(more), "")
    yield Figure(what, "the first 10,000 listed", listed * 1000, "ms")


def ready_again(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(i) A start over many stored sessions, some of which have a run to be closed."""
    empty = []
    for number in range(3):
        config = Config(state_dir=folder / f"empty {number}", agent="idle", agents={"idle": idle})
        started = time.perf_counter()
        with Supervisor.start(config):
            empty.append(time.perf_counter() - started)
    state_dir = write_sessions(folder / "stored", rounds.ready_stored, halves=rounds.ready_halves)
    config = Config(state_dir=state_dir, agent="idle", agents={"idle": idle})
    started = time.perf_counter()
    with Supervisor.start(config) as supervisor:
        supervisor.session("another").ask(NewMessage(content="x"), timeout=WAIT_S)
        ready = time.perf_counter() - started
        reader = supervisor._store.reader
        while reader.unfinished():
            time.sleep(0.005)
        closed = time.perf_counter() - started
    what = f"a start: {rounds.ready_stored:,} stored sessions, {rounds.ready_halves} half-runs"
    yield Figure(what, "to the first answer", ready * 1000, "ms", median_ms(empty), "an empty store, started")
    yield Figure(
        what, "until every half-run is closed", closed * 1000, "ms", median_ms(empty), "an empty store, started"
    )


def console_start(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(g) What a start of the command costs, and what the script around it adds."""
    python = [timed(lambda: run([sys.executable, "-c", "pass"])) for _ in range(rounds.starts)]
    command = str(Path(sys.executable).with_name("countermand"))
    version = [timed(lambda: run([sys.executable, command, "--version"])) for _ in range(rounds.starts)]
    script = [timed(lambda: run([str(ROOT / "scripts" / "run"), "--version"])) for _ in range(rounds.starts)]
    yield Figure(
        "console", "countermand --version, median", median_ms(version), "ms", median_ms(python), "python -c pass"
    )
    yield Figure(
        "console", "scripts/run --version, median", median_ms(script), "ms", median_ms(version), "without the script"
    )


def daemon_start(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """(g) From the start of `countermand serve`, over an empty store, to its word that it is ready."""
    with contextlib.closing(Foreground(folder)) as daemon:
        daemon.ready()  # the first start compiles the modules
        daemon.end()
        python, ready = [], []
        for _ in range(rounds.starts):
            python.append(timed(lambda: run([sys.executable, "-c", "pass"])))
            ready.append(timed(daemon.ready))
            daemon.end()
    yield Figure(
        "daemon", "to READY=1, median", median_ms(ready), "ms", median_ms(python), "python -c pass", READY_MAX_MS
    )


def run(argv: list[str]) -> None:
    """Run a command to its end."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


# ── The report ────────────────────────────────────────────────────────────────────────────────────

MEASUREMENTS: tuple[Callable[[Path, Rounds], Iterator[Figure]], ...] = (
    actors_cost,
    stop_latency,
    polite_stop,
    stop_behind_backlog,
    answer_latency,
    throughput,
    group_commit,
    idle_sessions,
    ready_again,
    console_start,
    daemon_start,
    big_trees,
    spawn_from_a_big_daemon,
    after_many_spawns,
    chatty_children,
    flood,
)


def shown(value: float) -> str:
    """A number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_line(figure: Figure) -> str:
    """A figure as a line of the table."""
    line = f"  {figure.name:<46}{shown(figure.value):>9} {figure.unit:<6}"
    if figure.baseline is not None:
        line += f"{shown(figure.baseline):>9} {figure.unit:<6}{figure.against}"
    if figure.limit is not None:
        line += f"  {'OVER the' if figure.over else 'within the'} limit of {shown(figure.limit)}"
    return line


def main() -> int:
    """Measure and print; see the head of this file."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures countermand on this machine.")
    parser.add_argument("--json", action="store_true", help="one document on stdout, at the end")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rougher figures, sooner")
    parser.add_argument("--only", metavar="NAME", choices=[m.__name__ for m in MEASUREMENTS], help="one measurement")
    options = parser.parse_args()
    rounds = QUICK if options.quick else Rounds()
    logger.remove()
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    figures: list[Figure] = []
    if not options.json:
        print(f"{machine}, load {os.getloadavg()[0]:.1f}")
    for measure in MEASUREMENTS:
        if options.only not in (None, measure.__name__):
            continue
        with tempfile.TemporaryDirectory(prefix="countermand-bench-") as folder:
            for figure in measure(Path(folder), rounds):
                if not options.json:
                    if not figures or figures[-1].group != figure.group:
                        print(f"{figure.group}{'':<60}{'baseline' if figure.baseline is not None else ''}")
                    print(as_line(figure), flush=True)
                figures.append(figure)
    if options.json:
        document = {
            "machine": machine,
            "load": os.getloadavg()[0],
            "quick": options.quick,
            "figures": msgspec.to_builtins(figures),
        }
        print(json.dumps(document, indent=2))
    return 1 if any(figure.over for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
