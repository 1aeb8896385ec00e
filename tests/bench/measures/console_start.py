"""The start of the command, and what the script around it adds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figure import Figure, Rounds
from tests.bench.kit import median_ms, run, timed

ROOT = Path(__file__).resolve().parents[3]


def console_start(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
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
