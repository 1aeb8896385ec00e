"""Adding outcomes up: the table for people, the document for programs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from tests.gauntlet.census import Household
from tests.gauntlet.single import Outcome

FAILURES_MAX = 40
DESCRIPTORS_MORE_MAX = 16
SPARES = 1
"""How many wardens wait for a tree, in a supervisor without hosts."""
"""The threads of the gauntlet read the store over connections of their own, which go when they are collected."""


class Fault(NamedTuple):
    """Something that went wrong in a run. kind: ``survivor | wrong | stale``; what: the words on it."""

    kind: str
    what: str


def faults(outcome: Outcome) -> list[Fault]:
    """All that went wrong in a run, in words."""
    kinds = (("survivor", outcome.survivors), ("wrong", outcome.wrong), ("stale", outcome.stale))
    return [Fault(kind, what) for kind, said in kinds for what in said]


class Totals:
    """Outcomes of all runs, by case and trigger, in the order in which these were first met."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str], list[Outcome]] = {}
        self.before: Household | None = None
        self.after: Household | None = None
        self.skipped: dict[str, str] = {}
        self.supervisors = 1
        self.spares = SPARES

    def expect(self, case: str, trigger: str) -> None:
        """Have a line for a case and a trigger, where it stands in the table."""
        self._by.setdefault((case, trigger), [])

    def add(self, outcome: Outcome) -> None:
        """Take in what came of a run."""
        self._by.setdefault((outcome.case, outcome.trigger), []).append(outcome)

    @property
    def bad(self) -> bool:
        """True if anything survived, a receipt was wrong, something had an effect after its fence, or was leaked."""
        return bool(self.leaks()) or any(outcome.bad for outcomes in self._by.values() for outcome in outcomes)

    @property
    def count(self) -> int:
        """How many runs there were."""
        return sum(map(len, self._by.values()))

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "cases": [_line(case, trigger, outcomes) for (case, trigger), outcomes in self._by.items() if outcomes],
            "skipped": [{"case": case, "reason": reason} for case, reason in self.skipped.items()],
            "failures": self.failures(),
            "before": None if self.before is None else to_builtins(self.before),
            "after": None if self.after is None else to_builtins(self.after),
            "leaks": self.leaks(),
        }

    def leaks(self) -> list[str]:
        """Say what the daemon of all the runs has too many of when they are over."""
        if self.before is None or self.after is None:
            return []
        # Those from before are not of these runs.
        dead = self.after.zombies - self.before.zombies
        said = [f"{dead} dead processes are not reaped"] if dead > 0 else []
        # The first count may come before the spare warden is there.
        if self.after.wardens > max(self.before.wardens, self.spares):
            said.append(f"{self.after.wardens} wardens are there, and {self.before.wardens} were before")
        if self.after.descriptors > self.before.descriptors + self.supervisors * DESCRIPTORS_MORE_MAX:
            said.append(f"{self.after.descriptors} descriptors are open, and {self.before.descriptors} were before")
        return said

    def failures(self) -> list[dict[str, Any]]:
        """Return the words on what went wrong, each once, the most frequent first."""
        words: Counter[tuple[str, str, str, str]] = Counter()
        for (case, trigger), outcomes in self._by.items():
            for outcome in outcomes:
                words.update((case, trigger, fault.kind, fault.what) for fault in faults(outcome))
        return [
            {"case": case, "trigger": trigger, "kind": kind, "what": what, "times": times}
            for (case, trigger, kind, what), times in words.most_common(FAILURES_MAX)
        ]

    def show(self, console: Console) -> None:
        """Print the table, what was skipped, and what went wrong."""
        table = Table(box=None, pad_edge=False)
        for name in ("case", "trigger", "layer"):
            table.add_column(name)
        for name in ("runs", "survivors", "wrong", "stale", "unproven"):
            table.add_column(name, justify="right")
        for name in ("fence ms", "max", "dead ms", "max"):
            table.add_column(name, justify="right")
        before = ""
        for line in self.document()["cases"]:
            name, before = (line["case"] if line["case"] != before else ""), line["case"]
            faults = [_fault(line[key]) for key in ("survivors", "receipts_wrong", "stale_effects")]
            times = [_ms(line[key][which]) for key in ("fence_ms", "dead_ms") for which in ("median", "max")]
            table.add_row(
                name, line["trigger"], line["layer"], str(line["runs"]), *faults, str(line["unproven"] or ""), *times
            )
        console.print(table)
        for case, reason in self.skipped.items():
            console.print(f"skipped {case}: {reason}", highlight=False, markup=False)
        for leak in self.leaks():
            console.print(f"leaked: {leak}", highlight=False, markup=False)
        for failure in self.failures():
            text = "{case} by {trigger}, {times} times, {kind}: {what}".format(**failure)
            console.print(text, highlight=False, markup=False)


def _line(case: str, trigger: str, outcomes: list[Outcome]) -> dict[str, Any]:
    layers = Counter(outcome.layer for outcome in outcomes if outcome.layer)
    return {
        "case": case,
        "trigger": trigger,
        "runs": len(outcomes),
        "survivors": sum(len(outcome.survivors) for outcome in outcomes),
        "receipts_wrong": sum(1 for outcome in outcomes if outcome.wrong),
        "stale_effects": sum(len(outcome.stale) for outcome in outcomes),
        "unproven": sum(outcome.unproven for outcome in outcomes),
        "fence_ms": _times(outcome.fence_ms for outcome in outcomes),
        "dead_ms": _times(outcome.dead_ms for outcome in outcomes),
        "layer": "+".join(layers) or "unknown",
    }


def _times(some: Iterable[float | None]) -> dict[str, float | None]:
    times = [time for time in some if time is not None]
    if not times:
        return {"median": None, "max": None}
    return {"median": round(statistics.median(times), 3), "max": round(max(times), 3)}


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _fault(count: int) -> str:
    return f"[red]{count}[/red]" if count else "0"
