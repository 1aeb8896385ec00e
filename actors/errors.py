"""Errors: one root class. Each error says what was expected, what came, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from actors.messages import ToolResult
    from actors.model import Provenance


class CountermandError(Exception):
    """The root of every refusal.

    Attributes:
        code: a stable word for programs, such as ``queue_full``.
        fields: names of the further attributes of this kind of error, such as ``run_id``.
        expected: what would have been accepted.
        got: what came instead.
        remedy: what the caller can do.
    """

    code: str = "error"
    fields: tuple[str, ...] = ()

    def __init__(self, message: str, *, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.got = got
        self.remedy = remedy

    def as_json(self) -> dict[str, Any]:
        """Return the error as JSON; `error_from_json` converts it back."""
        texts = {name: getattr(self, name) for name in ("code", "message", "expected", "got", "remedy")}
        return texts | {name: getattr(self, name) for name in self.fields if getattr(self, name) is not None}

    def __str__(self) -> str:
        parts = [self.message]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.got:
            parts.append(f"got {self.got}")
        if self.remedy:
            parts.append(f"to do: {self.remedy}")
        return "; ".join(parts)


class Invalid(CountermandError):
    """A payload, a configuration or a registration is invalid."""

    code = "invalid"


class TooLarge(Invalid):
    """A payload has too many bytes; `expected` gives the limit."""

    code = "too_large"


class NotFound(CountermandError):
    """There is no such session, run, message, tool or agent."""

    code = "not_found"


class AheadOfLog(CountermandError):
    """A position lies beyond the end of a session's log: perhaps the client got it from another log."""

    code = "ahead_of_log"

    @classmethod
    def at(cls, session: str, seq: int, last_seq: int) -> AheadOfLog:
        """Return the refusal of a position `seq` in a log whose last event is `last_seq`."""
        return cls(
            f"the log of session {session} ends before this position",
            expected=f"the seq of an event: at most {last_seq}" if last_seq else "0: it has no event yet",
            got=f"{seq}",
            remedy="the position belongs to another log (another state directory, or a backup): "
            "read this log from the start, from_seq=0",
        )


class RunActive(CountermandError):
    """The request was refused because a run is active; `run_id` names it."""

    code = "run_active"
    fields: tuple[str, ...] = ("run_id",)

    def __init__(self, message: str, *, run_id: str, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.run_id = run_id


class QueueFull(CountermandError):
    """A bounded queue is full; nothing in it was dropped."""

    code = "queue_full"


class RequestReused(CountermandError):
    """A request id was reused with other content (law L10)."""

    code = "request_reused"


class RequestTooOld(CountermandError):
    """A request id is older than the horizon within which ids are remembered (law L10)."""

    code = "request_too_old"


class StoreUnavailable(CountermandError):
    """The store does not accept writes; `superseded_run_id` names a run that was stopped nevertheless."""

    code = "store_unavailable"
    fields: tuple[str, ...] = ("superseded_run_id",)

    def __init__(
        self,
        message: str,
        *,
        superseded_run_id: str | None = None,
        expected: str = "",
        got: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.superseded_run_id = superseded_run_id


class AgentUnavailable(CountermandError):
    """The agent that runs messages could not be loaded. Reading and stopping work."""

    code = "agent_unavailable"


class Quarantined(CountermandError):
    """The session failed too often within a window; it accepts Stop and nothing else."""

    code = "quarantined"


class ReceiptPending(CountermandError):
    """The receipt is not filed yet: parts of the run are still ending."""

    code = "receipt_pending"


class ShuttingDown(CountermandError):
    """The supervisor is shutting down; messages accepted before are kept for the next start."""

    code = "shutting_down"


class StateDirBusy(CountermandError):
    """Another process holds the state directory; `pid` names it if it is known."""

    code = "state_dir_busy"
    fields: tuple[str, ...] = ("pid",)

    def __init__(self, message: str, *, pid: int | None, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.pid = pid


class Refused(CountermandError):
    """A gated function did not take place, or its call was closed before it ended; `result` is what the thread has."""

    code = "refused"

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.content or f"the call was {result.outcome}")
        self.result = result


class BlockingAskError(CountermandError):
    """A handler waited on a pending future, which would block a thread that other actors need."""

    code = "blocking_ask"


class InvalidTransition(CountermandError):
    """A change of a run's status is not in the table of `actors.run_status`."""

    code = "invalid_transition"


def error_from_json(fields: Mapping[str, Any]) -> CountermandError:
    """Return the error from the JSON of `CountermandError.as_json`: its class by its code, with all its fields.

    An unknown code is kept, in a `CountermandError`: another version may have sent it.
    """
    code = str(fields.get("code", CountermandError.code))
    kind = _kinds().get(code, CountermandError)
    error = kind.__new__(kind)
    # The root's `__init__`: the class's own may require fields that the JSON does not have.
    texts = {name: str(fields.get(name, "")) for name in ("expected", "got", "remedy")}
    CountermandError.__init__(error, str(fields.get("message", "")), **texts)
    known = ("code", "message", *texts)
    error.code = code
    error.fields = tuple(dict.fromkeys((*kind.fields, *(name for name in fields if name not in known))))
    for name in error.fields:
        setattr(error, name, fields.get(name))
    return error


def _kinds() -> dict[str, type[CountermandError]]:
    """Return every error class loaded so far, by code; if two share a code, the more general one."""
    found: dict[str, type[CountermandError]] = {}
    row: list[type[CountermandError]] = [CountermandError]
    while row:
        for kind in row:
            found.setdefault(kind.code, kind)
        row = [below for kind in row for below in kind.__subclasses__()]
    return found


NO_TEXT: Final = "(its text could not be made)"


def described(error: BaseException) -> str:
    """Return an error's class and text, for a record or the log. What its class raises meanwhile is contained."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an exception class may do anything in its __str__
        text = NO_TEXT
    return f"{type(error).__name__}: {text}"


class RunCancelled(asyncio.CancelledError):
    """Raised in plain code by every use of `turn.*` after the run's token was cancelled (law L8).

    `provenance` says who ended the run and why. Async code gets `asyncio.CancelledError` itself: in Python 3.11 and
    3.12 a TaskGroup treats a subclass as an error. This class is a subclass so that `except Exception: retry` does not
    swallow it and spin, and so that it comes out of `asyncio.to_thread` as a cancellation.
    """

    def __init__(self, provenance: Provenance) -> None:
        super().__init__(f"cancelled by {provenance.source}: {provenance.reason}")
        self.provenance = provenance
