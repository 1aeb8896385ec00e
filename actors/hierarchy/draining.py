"""Draining: a session that is shut down tells its supervisor once when it is quiet and all of it is written."""

from __future__ import annotations

from actors.hierarchy.batches import Batches
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.stash import Stash
from actors.kernel.actor import Actor, tell
from actors.messages import Quiet
from actors.model import Provenance


class Draining:
    """Whether one session drains. Used in the turns of its actor only.

    Args:
        owner: the session's actor; its parent gets the reports.
        live: the session.
        batches: what is not written yet.
        stash: what was not even decided.
        late_stops: Stops that the store is still to get.
    """

    def __init__(self, owner: Actor, live: Incarnation, batches: Batches, stash: Stash, late_stops: LateStops) -> None:
        self._owner = owner
        self._live = live
        self._batches = batches
        self._stash = stash
        self._late_stops = late_stops
        self._number = 0
        self._said_quiet = False
        self._interrupted: Provenance | None = None
        self.on = False

    def begin(self, number: int) -> None:
        """Refuse new work from here on, and say when the session is quiet.

        Args:
            number: of the supervisor's request, which the word about it carries.
        """
        self.on = True
        self._number = number
        self._said_quiet = False
        self._live.protocol.drain()

    def interrupt(self, provenance: Provenance) -> None:
        """The time for draining is over: end what is active, and start nothing when the session is read."""
        self._interrupted = provenance
        self._live.protocol.interrupt(provenance)

    def go_on(self) -> None:
        """A new incarnation has begun: it drains too."""
        if self.on:
            self._live.protocol.drain()
        if self._interrupted is not None:
            self._live.protocol.interrupt(self._interrupted)

    def say_quiet(self) -> None:
        """Tell the supervisor, once, if the session is quiet and written."""
        # What this turn has decided and not sent yet is not written either.
        step = self._live.protocol.state.step
        written = not (self._batches.sent or step.has_records or self._stash or self._late_stops.pending)
        parent = self._owner.parent
        if self.on and not self._said_quiet and self._live.protocol.state.quiet and written and parent:
            self._said_quiet = True
            tell(parent, Quiet(self._live.session, self._number))
