"""Errors: one root, and each says what was expected, what came, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.model import Provenance


class CountermandError(Exception):
    """The root of every refusal.

    Attributes:
        code: a stable word for programs, such as ``queue_full``.
        fields: the names of what an error of this kind tells beside the texts, such as ``run_id``.
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

    def told(self) -> dict[str, Any]:
        """Return the error as JSON; `retold` makes the same error from it."""
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
    """A payload, a configuration or a registration that cannot be right."""

    code = "invalid"


class TooLarge(Invalid):
    """A payload of more bytes than are taken; `expected` says how many are."""

    code = "too_large"


class NotFound(CountermandError):
    """A session, run, message, tool or agent that is not known."""

    code = "not_found"


class AheadOfLog(CountermandError):
    """A position in a session's log behind its last event: the client read it in another log."""

    code = "ahead_of_log"

    @classmethod
    def at(cls, session: str, seq: int, last_seq: int) -> AheadOfLog:
        """Return the refusal of a position `seq` in a log whose last event is `last_seq`."""
        return cls(
            f"the log of session {session} does not go as far as this position",
            expected=f"the seq of an event: at most {last_seq}" if last_seq else "0: it has no event yet",
            got=f"{seq}",
            remedy="what was read before is of another log (another state directory, or one from a backup): "
            "read this one from the start, from_seq=0",
        )


class RunActive(CountermandError):
    """Refused because a run is active; `run_id` names it."""

    code = "run_active"
    fields: tuple[str, ...] = ("run_id",)

    def __init__(self, message: str, *, run_id: str, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.run_id = run_id


class QueueFull(CountermandError):
    """A bounded queue is at its bound; nothing that it holds was dropped."""

    code = "queue_full"


class RequestReused(CountermandError):
    """A request id came again with other content (law L10)."""

    code = "request_reused"


class RequestTooOld(CountermandError):
    """A request id from before the horizon within which ids are remembered (law L10)."""

    code = "request_too_old"


class StoreUnavailable(CountermandError):
    """The store does not take writes; `superseded_run_id` names a run that was stopped all the same."""

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
    """The agent that runs messages could not be loaded. What there is can be read, and stopped, all the same."""

    code = "agent_unavailable"


class Quarantined(CountermandError):
    """The session failed too often in a window; it takes Stop and nothing else."""

    code = "quarantined"


class ReceiptPending(CountermandError):
    """The receipt is not filed yet: parts of the run are still ending."""

    code = "receipt_pending"


class ShuttingDown(CountermandError):
    """The supervisor is draining; what was accepted before is kept for the next start."""

    code = "shutting_down"


class StateDirBusy(CountermandError):
    """Another process holds the state directory; `pid` names it when it is known."""

    code = "state_dir_busy"
    fields: tuple[str, ...] = ("pid",)

    def __init__(self, message: str, *, pid: int | None, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.pid = pid


class BlockingAskError(CountermandError):
    """A handler waited on a pending future: that would take a dispatcher thread from the others."""

    code = "blocking_ask"


class InvalidTransition(CountermandError):
    """A run status was asked to move where the table in `actors.model` has no way."""

    code = "invalid_transition"


def retold(told: Mapping[str, Any]) -> CountermandError:
    """Return the error that `told` made JSON of: of the class with its code, with all its fields.

    A code that no class here has is kept, in a `CountermandError`: another version may have sent it.
    """
    code = str(told.get("code", CountermandError.code))
    kind = _kinds().get(code, CountermandError)
    error = kind.__new__(kind)
    # The root's `__init__`: the class's own may need fields that the JSON does not have.
    texts = {name: str(told.get(name, "")) for name in ("expected", "got", "remedy")}
    CountermandError.__init__(error, str(told.get("message", "")), **texts)
    known = ("code", "message", *texts)
    error.code = code
    error.fields = tuple(dict.fromkeys((*kind.fields, *(name for name in told if name not in known))))
    for name in error.fields:
        setattr(error, name, told.get(name))
    return error


def _kinds() -> dict[str, type[CountermandError]]:
    """Every error class loaded so far, by its code; where two share a code, the more general one."""
    found: dict[str, type[CountermandError]] = {}
    row: list[type[CountermandError]] = [CountermandError]
    while row:
        for kind in row:
            found.setdefault(kind.code, kind)
        row = [below for kind in row for below in kind.__subclasses__()]
    return found


class RunCancelled(asyncio.CancelledError):
    """Raised in plain code by every `turn.*` after the run's token was cancelled (law L8), each time.

    `provenance` says who and why. Async code gets `asyncio.CancelledError`, that class itself: in Python 3.11 and
    3.12 a TaskGroup takes a subclass for an error. It is a subclass here so that `except Exception: retry` does not
    swallow it and spin, and so that it comes out of `asyncio.to_thread` as the cancellation that it is.
    """

    def __init__(self, provenance: Provenance) -> None:
        super().__init__(f"cancelled by {provenance.source}: {provenance.reason}")
        self.provenance = provenance
