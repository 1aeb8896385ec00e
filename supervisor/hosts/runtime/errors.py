"""The errors that an agent gets."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from .values import Provenance, ToolResult


class CountermandError(Exception):
    """The daemon, or this runtime, refused something: what was expected, what came, and what to do."""

    def __init__(
        self, message: str, *, code: str = "error", expected: str = "", got: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.expected, self.got, self.remedy = message, code, expected, got, remedy

    def __str__(self) -> str:
        named = (("expected", self.expected), ("got", self.got), ("to do:", self.remedy))
        return "; ".join([self.message, *(f"{name} {text}" for name, text in named if text)])


class Invalid(CountermandError):
    """A value that was given is invalid."""

    def __init__(self, message: str, *, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, code="invalid", expected=expected, got=got, remedy=remedy)


class QueueFull(CountermandError):
    """There is no place for one more; nothing was dropped."""

    def __init__(self, message: str, *, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, code="queue_full", expected=expected, got=got, remedy=remedy)


class Refused(CountermandError):
    """A gated function did not take place, or its call was closed before it ended; `result` is what the thread has."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.content or f"the call was {result.outcome}", code="refused")
        self.result = result


class RunCancelled(asyncio.CancelledError):
    """Raised in plain code after its run was cancelled; `provenance` says who and why.

    Async code gets `asyncio.CancelledError` itself: in Python 3.11 and 3.12 a TaskGroup treats a subclass as an error.
    """

    def __new__(cls, *arguments: Any) -> RunCancelled:
        """Make one; if the agent has imported the class of the daemon's process, it is one of that too."""
        theirs = getattr(sys.modules.get("actors.errors"), "RunCancelled", None)
        kind = cls if theirs is None else type(cls.__name__, (cls, theirs), {"__module__": cls.__module__})
        return super().__new__(kind, *arguments)

    def __init__(self, provenance: Provenance) -> None:
        asyncio.CancelledError.__init__(self, f"cancelled by {provenance.source}: {provenance.reason}")
        self.provenance = provenance
