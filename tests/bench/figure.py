"""One measured number, and how often each thing is measured."""

from __future__ import annotations

import msgspec


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
