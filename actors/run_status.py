"""The status of a run, and the one table of how it may change."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from actors.errors import InvalidTransition


class RunStatus(StrEnum):
    """The status of a run. `TRANSITIONS` has the allowed changes."""

    QUEUED = "queued"
    """It waits for the run before it."""
    IN_PROGRESS = "in_progress"
    """Its agent may act."""
    CANCELLING = "cancelling"
    """It is fenced, and its parts are being ended."""
    COMPLETED = "completed"
    """Its agent returned."""
    FAILED = "failed"
    """Its agent raised an error, or the supervisor failed."""
    EXPIRED = "expired"
    """Its deadline passed."""
    CANCELLED = "cancelled"
    """Something outside of it ended it: a Stop, a new message, a shutdown."""


TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    RunStatus.QUEUED: frozenset({RunStatus.IN_PROGRESS, RunStatus.CANCELLED, RunStatus.FAILED}),
    RunStatus.IN_PROGRESS: frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.EXPIRED, RunStatus.CANCELLING}),
    RunStatus.CANCELLING: frozenset({RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.EXPIRED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, ways in TRANSITIONS.items() if not ways)
LIVE: Final = frozenset({RunStatus.IN_PROGRESS, RunStatus.CANCELLING})


def transition(old: RunStatus, new: RunStatus) -> RunStatus:
    """Return `new`, or raise InvalidTransition if the table does not allow it after `old`."""
    if new not in TRANSITIONS[old]:
        raise InvalidTransition(
            f"a run cannot go from {old} to {new}",
            expected=" or ".join(sorted(TRANSITIONS[old])) or f"nothing, {old} is terminal",
            got=str(new),
            remedy="this is a defect of the caller: report it",
        )
    return new
