"""Messages to a session from the supervisor and the store, and its timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from actors.messages.lanes import Command, TimerFired
from actors.model import Provenance, Receipt, RunInfo

if TYPE_CHECKING:
    from actors.ports import Snapshot


class Expire(Command, frozen=True):
    """Delete the session for `reason`, unless something has happened since `seq`, waits, or is under way."""

    seq: int
    reason: str


class Drain(Command, frozen=True):
    """Refuse new work, and let runs end by themselves. Report Quiet when nothing runs and everything is written.

    The report has the same `number`. Drain comes again, with the next number, after each Stop that reaches the session
    meanwhile.
    """

    number: int = 0


class Interrupt(Command, frozen=True):
    """End the active run for an internal reason; waiting messages stay for the next start."""

    provenance: Provenance


class Passivate(Command, frozen=True):
    """Leave memory, if the store has everything that is under way; the session answers `Rested`.

    It comes behind all messages routed to the session before; later ones are held until the session has answered.
    """


class ChildFound(Command, frozen=True):
    """What the store holds of a run that was settled, behind all batches before; None: no such run. Or an error."""

    run_id: str
    info: RunInfo | None = None
    receipt: Receipt | None = None
    error: str | None = None


class Committed(Struct, frozen=True):
    """All batches of a session up to and including `number` are durable."""

    urgent: ClassVar[bool] = True
    number: int


class CommitFailed(Struct, frozen=True):
    """Batch `number` of a session, and every later one, could not be written.

    `unfit`: the store works; this batch cannot be stored.
    """

    urgent: ClassVar[bool] = True
    number: int
    error: str
    unfit: bool = False


class StopKept(Struct, frozen=True):
    """A Stop is in the stop journal, on disk."""

    urgent: ClassVar[bool] = True
    request_id: str


class Loaded(Struct, frozen=True):
    """The store has read a session."""

    urgent: ClassVar[bool] = True
    snapshot: Snapshot


class LoadFailed(Struct, frozen=True):
    """The store could not read a session."""

    urgent: ClassVar[bool] = True
    error: str


class KillDeadline(TimerFired, frozen=True):
    """The remaining parts of a closed run are now named `abandoned`.

    A deadline that was moved has an old `stage`; one that was set before the session was reloaded has an old
    `incarnation`. Both are void.
    """

    run_id: str
    stage: int
    incarnation: str


class HostIdle(TimerFired, frozen=True):
    """A host that the session keeps since `since` (epoch seconds, UTC) may have been idle for its time."""

    process_id: str
    since: float | None


class HostUnwanted(Command, frozen=True):
    """The port to hosts wants a host ended that the session keeps, for this reason. `since` is as in `HostIdle`."""

    process_id: str
    since: float | None
    reason: str


class TreesDeadline(TimerFired, frozen=True):
    """Trees that the session began to end at `stage`, and that have not ended, are now named `abandoned`.

    `incarnation` is as in `KillDeadline`.
    """

    stage: int
    incarnation: str


class GoOn(TimerFired, frozen=True):
    """The answer in batch `number` has had time to reach its client: reports that waited for it go on."""

    number: int


class StopOverdue(TimerFired, frozen=True):
    """A Stop is not durable yet, and has to be journalled. `final`: its time to wait is over, and it is answered."""

    request_id: str
    final: bool


class IdleOver(TimerFired, frozen=True):
    """The session has been idle for `passivate_s`, unless it was used meanwhile."""


class TryStore(TimerFired, frozen=True):
    """Time to ask the store again."""
