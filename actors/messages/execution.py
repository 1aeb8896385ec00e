"""Messages about the execution of an agent or a call, to the actor that has it: a run or a tool."""

from __future__ import annotations

from typing import Any

from actors.messages.lanes import Report, TimerFired
from actors.model import How


class ExecutionStarted(Report, frozen=True):
    """An execution passed its cell and runs."""

    key: str
    at: float


class ExecutionEnded(Report, frozen=True):
    """An execution ended: it returned `value` or raised `error`, or it never began (`how` is NOT_STARTED)."""

    key: str
    how: How
    at: float
    value: Any = None
    error: str | None = None


class RecancelExecution(TimerFired, frozen=True):
    """Cancel an async execution again if it goes on after the grace and the kill time; then at growing intervals.

    `patience_s`: both times together, in seconds; the least time from one cancel to the next.
    """

    patience_s: float
    attempt: int = 0

    @property
    def next(self) -> RecancelExecution:
        """The next one."""
        return RecancelExecution(self.patience_s, self.attempt + 1)

    @property
    def next_s(self) -> float:
        """Seconds until the next one: 1, 2, 4, … 60."""
        return float(min(60, 2 ** min(self.attempt, 6)))
