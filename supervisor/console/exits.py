"""The exit codes, and which one a run's end earns.

Where several apply the highest decides: to be stopped outweighs a run that failed, which outweighs a message that
was refused, which outweighs a script that said no.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from actors.model import Json, RunStatus


class ExitCode(IntEnum):
    """What the process says when it ends."""

    OK = 0
    SCRIPT = 1
    """A run completed, and what it returned has an `exit_code` other than 0."""
    REFUSED = 2
    """Wrong usage, or a refusal: unknown option, agent, session or run; a directory in use; a store that is down."""
    RUN = 3
    """A run failed or expired, or a request got no answer."""
    STOPPED = 130
    """A signal or Ctrl-C ended it, nobody reads the output any more, or a run ended cancelled."""


_BY_STATUS: Final = {
    RunStatus.CANCELLED: ExitCode.STOPPED,
    RunStatus.CANCELLING: ExitCode.STOPPED,
    RunStatus.FAILED: ExitCode.RUN,
    RunStatus.EXPIRED: ExitCode.RUN,
}


def of_run(status: RunStatus, result: Json) -> ExitCode:
    """Return the exit code that a run earned which ended in `status` and returned `result`."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    said = result.get("exit_code") if isinstance(result, dict) else None
    return ExitCode.OK if said in (None, 0) else ExitCode.SCRIPT
