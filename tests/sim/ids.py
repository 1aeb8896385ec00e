"""SimIds: names that count, so that they are the same in every replay."""

from __future__ import annotations

from collections import Counter


class SimIds:
    """`actors.ports.Ids`: no two names are the same, across the worlds that share it too."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()

    def new(self, kind: str) -> str:
        """Return ``run_0001`` for kind ``run``; names sort in the order in which they were made."""
        self._made[kind] += 1
        return f"{kind}_{self._made[kind]:04d}"
