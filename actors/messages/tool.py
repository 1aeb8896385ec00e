"""Messages to a tool: one call of a run."""

from __future__ import annotations

from actors.messages.lanes import Command, TimerFired


class KillProcess(Command, frozen=True):
    """A tool ends a process that it started."""

    process_id: str
    grace_s: float


class CallDeadline(TimerFired, frozen=True):
    """The call's time is up."""
