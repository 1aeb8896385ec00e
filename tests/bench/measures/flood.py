"""The rate at which a flood is read, and a Stop beside it: of its own session, and of another one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors import Stop
from actors.messages import ProcessExited
from actors.ports import SpawnSpec
from supervisor import Supervisor
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import (
    POLITE,
    WAIT_S,
    Inbox,
    median_ms,
    p95_ms,
    process_trees,
    resident,
    run_until_up,
    running,
    timed,
)


def flood(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    command = ["sh", "-c", f"head -c {rounds.flood_mb * 1_000_000} /dev/zero | tr '\\0' x"]

    def bare() -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while os.read(process.stdout.fileno(), 65536):
                pass

    inbox: Any = Inbox()
    seconds = timed(bare)
    before = resident()
    with process_trees(folder / "trees") as trees:

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
