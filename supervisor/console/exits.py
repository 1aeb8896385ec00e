"""The exit codes, the same for every command, and which one an error or a run's end earns.

Where several apply the highest decides: to be stopped outweighs a run that failed, which outweighs a script that said
no.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from actors.errors import CountermandError, Invalid
from actors.model import Json
from actors.run_status import RunStatus


class ExitCode(IntEnum):
    """What the process says when it ends."""

    OK = 0
    FAILED = 1
    """A refusal, something that was asked for and did not come about, or a script that ended non-zero."""
    USAGE = 2
    """A usage error: an unknown option, a value that is not allowed, an ambiguous id."""
    NO_DAEMON = 3
    """No daemon answers, or it went away before its answer."""
    RUN = 4
    """A run failed or expired, its script was killed, refused or timed out, or a request got no answer."""
    STOPPED = 130
    """A run was cancelled, or the output is not read any more. A shell shows Ctrl-C like this too: see `ending.py`."""


_BY_STATUS: Final = {
    RunStatus.CANCELLED: ExitCode.STOPPED,
    RunStatus.CANCELLING: ExitCode.STOPPED,
    RunStatus.FAILED: ExitCode.RUN,
    RunStatus.EXPIRED: ExitCode.RUN,
}


_BY_CODE: Final = {
    "no_daemon": ExitCode.NO_DAEMON,
    "no_answer": ExitCode.RUN,
}


def of_run(status: RunStatus, result: Json) -> ExitCode:
    """Return the exit code that a run earned which ended in `status` and returned `result`."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if not isinstance(result, dict) or "exit_code" not in result:
        return ExitCode.OK
    said = result["exit_code"]
    if said is None or (isinstance(said, int) and said < 0):
        # The script did not come to an exit of its own.
        return ExitCode.RUN
    return ExitCode.OK if said == 0 else ExitCode.FAILED


def of_error(error: CountermandError) -> ExitCode:
    """Return the exit code that a refusal earns."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return ExitCode.USAGE if isinstance(error, Invalid) else ExitCode.FAILED
