"""The cost of an idle session: its memory, and its activation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from supervisor import Config, Supervisor
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, idle, median_ms, p95_ms, resident, timed
from tests.bench.sessions import write_sessions


def idle_sessions(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
