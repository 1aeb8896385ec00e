"""A Stop to its answer, and to the proof of death, of a tree that leaves its session and ignores SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from actors import Stop
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import GRACE_S, WAIT_S, commit_floor, median_ms, p95_ms, run_until_up, running

STUBBORN = 'sleep 100 & setsid sleep 100 & (trap "" TERM; sleep 100) & echo up; wait'


def stop_latency(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
