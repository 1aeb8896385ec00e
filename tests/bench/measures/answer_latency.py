"""A message to its answer, which is given when the start of its run is durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from actors import NewMessage
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import (
    WAIT_S,
    commit_floor,
    median_ms,
    p95_ms,
    running,
    timed,
)


def answer_latency(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
