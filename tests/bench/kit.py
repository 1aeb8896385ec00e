"""What the measures share: supervisors, process trees, agents, times, and common baselines."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actors import AsyncTurn, NewMessage
from supervisor import Config, SessionHandle, Supervisor
from supervisor.clock import SystemClock
from supervisor.containment.processes.trees import ProcessTrees
from tests.bench.figure import Rounds

WAIT_S = 60.0
GRACE_S = 0.3
POLITE = "echo up; exec sleep 100"
POLITE_MAX_MS = 20.0


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


def resident() -> int:
    """This process's memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(argv: list[str]) -> None:
    """Run a command to its end."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


class Inbox:
    """An owner of process trees: it keeps each report with the time at which it came."""

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
