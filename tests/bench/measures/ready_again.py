"""A start over many stored sessions, some of which have an unfinished run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from actors import NewMessage
from supervisor import Config, Supervisor
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, idle, median_ms
from tests.bench.sessions import write_sessions


def ready_again(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
