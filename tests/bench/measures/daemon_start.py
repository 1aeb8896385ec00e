"""The start of `countermand serve` over an empty store, to its READY=1."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figure import Figure, Rounds
from tests.bench.kit import median_ms, run, timed
from tests.daemon_kit import Foreground

READY_MAX_MS = 700.0


def daemon_start(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
