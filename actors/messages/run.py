"""Messages to a run, from its session. What is about a call the run passes on to the tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages.lanes import Command, TimerFired
from actors.messages.result import ToolResult
from actors.model import Message, Provenance, RunParent

if TYPE_CHECKING:
    from actors.gate.cell import Cell
    from actors.gate.token import CancelToken


class Permit(Command, frozen=True):
    """A call may start: its record is committed and its cell granted. `deadline_s` is from now on, or None."""

    call_id: str
    cell: Cell[ToolResult]
    token: CancelToken
    deadline_s: float | None


class PermitWaiting(Command, frozen=True):
    """A call waits for the barrier, or for a person. The run's deadline is suspended until a Permit or a refusal.

    Of a spawn that the agent itself has asked for, `call_id` is the id of the tree.
    """

    call_id: str


class PermitRefused(Command, frozen=True):
    """A call will not start; the agent receives `result`."""

    call_id: str
    result: ToolResult


class CallAnswered(Command, frozen=True):
    """A person's answer is the result of a call, and that is durable."""

    call_id: str
    result: ToolResult


class CallClosed(Command, frozen=True):
    """The session decided the result of a granted call.

    `provenance` says why its execution has to end; None if it is ending already.
    """

    call_id: str
    result: ToolResult
    provenance: Provenance | None


class SpawnPermit(Command, frozen=True):
    """A process may be spawned: its record is committed and its cell granted. No `call_id`: it is the agent's own.

    `parent`: what a child run is told of whose part it is.
    """

    call_id: str
    process_id: str
    cell: Cell[None]
    parent: RunParent | None = None


class SpawnRefused(Command, frozen=True):
    """A process will not be spawned: by the limit on processes, or for a `reason`, or because the run is over."""

    call_id: str
    process_id: str
    limit: int | None = None
    reason: str = ""


class TreeTaken(Command, frozen=True):
    """The session owns a process tree: the receiver drops it, and does not end it."""

    call_id: str
    process_id: str


class Steered(Command, frozen=True):
    """The result of steering: messages that are now in the thread, as inputs of this run. May be empty."""

    request_id: int
    messages: tuple[Message, ...]


class HostGraceOver(TimerFired, frozen=True):
    """The host of a halted run has had its time to end by itself."""


class HostStartDue(TimerFired, frozen=True):
    """The start of the run's host has waited for other news of the run as long as it may."""


class RunDeadline(TimerFired, frozen=True):
    """The run's time is up."""

    stage: int
