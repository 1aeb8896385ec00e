"""Mutants of what is counted of runs, and of their budgets."""

from __future__ import annotations

from typing import Final

from actors.protocol.calls import Calls
from actors.protocol.deletion import Deletion
from actors.protocol.state import SessionState
from actors.usage import Budget
from tests.sim.mutants.mutant import mutant

USAGE: Final = (
    mutant("a budget of tokens is never held", "L14", Budget, "spent", "usage.tokens <= self.max_tokens", "True"),
    mutant("a budget of calls is never held", "L14", Calls, "_decide", "if spent is not None:", "if False:"),
    mutant(
        "calls that may start and have not are not counted",
        "L14",
        Calls,
        "_calls_spent",
        "calls_spent(record.info.usage, others)",
        "calls_spent(record.info.usage, 0)",
    ),
    mutant(
        "calls of an answer that spent the budget start",
        "L14",
        Calls,
        "answer_ended",
        "if spent is None and call.answer",
        "if call.answer",
    ),
    mutant("an answer that was left costs nothing", "L6", Calls, "answer_left", "report.usage)\n    at", "{})\n    at"),
    mutant(
        "a call that has begun is counted twice",
        "L6",
        Calls,
        "end",
        "and (call.row.state == CallState.GRANTED or uncounted):",
        "and True:",
    ),
    mutant(
        "a call that had begun at a fence is not counted",
        "L6",
        Calls,
        "end",
        "if result.outcome != Outcome.NOT_STARTED and",
        "if False and",
    ),
    mutant(
        "usage of open runs is counted twice after a restart",
        "L12",
        SessionState,
        "restore",
        "    self.usage = row.usage\n",
        "    self.usage = row.usage\n    for run in snapshot.runs:\n        self.usage = self.usage.plus(run.usage)\n",
    ),
    mutant(
        "usage is lost at a restart",
        "L12",
        SessionState,
        "restore",
        "self.usage = row.usage",
        "pass",
    ),
    mutant(
        "usage is kept after a deletion",
        "L6",
        Deletion,
        "erase_if_proven",
        "state.thread, state.saved, state.usage = Thread(), Saved(), NO_USAGE",
        "state.thread, state.saved = Thread(), Saved()",
    ),
)
