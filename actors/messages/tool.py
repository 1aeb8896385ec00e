"""Messages to a tool: one call of a run. What is about a process goes to a run too, for its agent's own."""

from __future__ import annotations

from actors.messages.lanes import Command, TimerFired


class KillProcess(Command, frozen=True):
    """A tool, or an agent, ends a process that it started."""

    process_id: str
    grace_s: float


class CallDeadline(TimerFired, frozen=True):
    """The call's time is up."""
