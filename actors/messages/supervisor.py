"""Messages to the supervisor, and the reports of its sessions."""

from __future__ import annotations

from msgspec import Struct

from actors.messages.lanes import Command, Report, TimerFired
from actors.model import ServicePhase
from actors.requests import Inspect, OutsideRequest


class Route(Command, frozen=True):
    """Bring a message to a session, and start the session if necessary. The session answers the asker.

    `returned`: a session that ended hands it back, so it goes to the next incarnation before all later messages.
    """

    session: str
    message: OutsideRequest | Inspect
    returned: bool = False


class Activate(Command, frozen=True):
    """Start a session that has something to finish."""

    session: str


class PluginsMended(Command, frozen=True):
    """An agent or a tool that could not be loaded is loaded now: messages that waited for it go on."""


class Old(Command, frozen=True):
    """Sessions to delete unless something has happened since; each with the seq of its last event."""

    sessions: tuple[tuple[str, int], ...]


class Shutdown(Command, frozen=True):
    """Drain for `drain_s` seconds, then interrupt; the answer says whether all sessions came to rest."""

    drain_s: float


class Ping(Command, frozen=True):
    """Check that the supervisor answers; it does with a Pong."""


class Pong(Struct, frozen=True):
    """The number of live sessions, the phase, and for how many sessions a shutdown waits."""

    sessions: int
    phase: ServicePhase
    awaited: int


class Quiet(Report, frozen=True):
    """A draining session runs nothing, and everything is written; `number` is that of its last Drain."""

    session: str
    number: int


class Idle(Report, frozen=True):
    """A session was idle for `passivate_s`, and may be passivated."""

    session: str


class Rested(Report, frozen=True):
    """The answer to `Passivate`: the session `leaves` and its Down follows, or it stays because it is in use."""

    session: str
    leaves: bool


class Erased(Report, frozen=True):
    """A session was deleted: its name can be used again, and its earlier failures no longer count."""

    session: str


class LookForOld(TimerFired, frozen=True):
    """Time to look for sessions that are kept longer than necessary."""


class DrainOver(TimerFired, frozen=True):
    """The time for draining, or (`final`) for interrupting, is over; `hurried`: it was cut short on request."""

    final: bool
    hurried: bool = False
