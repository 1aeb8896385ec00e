"""Messages to the supervisor, and the reports of its sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from actors.messages.children import ChildReport, ChildWanted
from actors.messages.lanes import Command, Report, TimerFired
from actors.model import ServicePhase
from actors.requests import Inspect, OutsideRequest

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.ports import ChildSpec


class Route(Command, frozen=True):
    """Bring a message to a session, and start the session if necessary. The session answers the asker.

    `returned`: a session that ended hands it back, so it goes to the next incarnation before all later messages.
    """

    session: str
    message: OutsideRequest | Inspect | ChildWanted
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


# ── Child runs, as the port of process trees has them (`Processes`) ───────────────────────────────


class StartChild(Command, frozen=True):
    """Have a run in another session; its news go to `owner`."""

    run_id: str
    spec: ChildSpec
    owner: ActorRef[Any]


class EndChild(Command, frozen=True):
    """End a child run of a run of the session `parent`, with at most `grace_s` seconds of grace."""

    run_id: str
    grace_s: float
    parent: str = ""


class EndChildren(Command, frozen=True):
    """End every child run of the runs of a session; see `EndChild`."""

    parent: str
    grace_s: float


class AdoptChild(Command, frozen=True):
    """Report to `owner` from now on, all anew. `session`: where the run is, if an earlier supervisor started it.

    `anew`: see `actors.ports.Executor.adopt`.
    """

    run_id: str
    owner: ActorRef[Any]
    session: str
    anew: bool


class ForgetChild(Command, frozen=True):
    """The end of a child run is on record."""

    run_id: str


class ForgetChildren(Command, frozen=True):
    """Forget what has ended of the child runs of a session's runs, but these."""

    parent: str
    but: frozenset[str]


class ChildHeard(Report, frozen=True):
    """The answer to what a session was asked about a child run the `number`th time: its report, or an error."""

    run_id: str
    number: int
    answer: ChildReport | BaseException


class AskChild(TimerFired, frozen=True):
    """Time to ask again, where the `number`th time there was no answer."""

    run_id: str
    number: int


ChildCommand: TypeAlias = (
    StartChild | EndChild | EndChildren | AdoptChild | ForgetChild | ForgetChildren | ChildHeard | AskChild
)
"""What the supervisor's actor is told of child runs."""
