"""Whether a supervisor works on a run that is recorded as unfinished.

None does if the run's supervisor has ended and no other has the state directory. The record does not change until the
next start closes it, and its status and duration are not true until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from actors.model import RunInfo
from actors.run_status import LIVE
from supervisor.console.render.output import say

HINT: Final = (
    "the daemon or chat of these unfinished runs has ended; the next start closes them (countermand chat, or serve)"
)


def attended(run: RunInfo, *, served: bool) -> bool | None:
    """True if a supervisor works on a run, False if none does; None for a run that waits or is over."""
    return served if run.status in LIVE or (run.ended_at is not None and not run.settled) else None


def status_words(status: str, *, served: bool) -> str:
    """Return the status of a run that is not settled, for people."""
    words = status.replace("_", " ")
    return words if served or status == "queued" else f"{words}, and no supervisor works on it"


def say_if_unattended(out: Any, runs: Iterable[RunInfo], *, served: bool) -> None:
    """Print the hint if no supervisor works on one of these runs."""
    if any(attended(run, served=served) is False for run in runs):
        say(out, HINT, "yellow")
