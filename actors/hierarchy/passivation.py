"""Passivation: a session at rest that was not used for a while leaves memory.

It tells its supervisor that it is idle. From then on the supervisor keeps what comes for the session, and sends
`Passivate`, which comes behind all that it had routed before. If the session is still at rest then, its actor ends.
What was kept, and what was left in the mailbox, goes to the next incarnation in order.
"""

from __future__ import annotations

from actors.hierarchy.batches import Batches
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.parents import Parents
from actors.kernel.actor import Actor, tell
from actors.messages import Idle, IdleOver
from actors.ports import Ports


class Passivation:
    """Whether one session may leave memory. Used in the turns of its actor only.

    Args:
        owner: the session's actor; its parent gets the reports.
        ports: the clock, and after how many seconds a session is idle.
        live: the session.
        batches: what is not written yet.
        late_stops: Stops that the store is still to get.
        parents: wait for reports on child runs.
    """

    def __init__(
        self,
        owner: Actor,
        ports: Ports,
        live: Incarnation,
        batches: Batches,
        late_stops: LateStops,
        parents: Parents,
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._batches = batches
        self._late_stops = late_stops
        self._parents = parents
        # Whether a timer, or the supervisor, is to say when the session has been idle for its time.
        self._watched = False
        self._used = False

    @property
    def at_rest(self) -> bool:
        """True when nothing is lost if the actor ends: its state is written, and it has no children."""
        return (
            self._live.phase is Phase.SERVING
            and self._live.protocol.state.at_rest
            and not self._batches.sent
            and not self._live.protocol.state.step.has_records
            and not self._late_stops.pending
            and not self._late_stops.answers_pending
            and not self._owner.children
            and self._parents.idle
        )

    def note_use(self) -> None:
        """The session is in use: it is not idle before its time has passed anew."""
        self._used = True

    def watch(self) -> None:
        """Set the timer, if the session is at rest and has none."""
        idle_s = self._ports.settings.passivate_s
        if idle_s is None or self._watched or self._owner.parent is None or not self.at_rest:
            return
        # One timer at a time, and it is never moved: a session in use only notes that it was used.
        self._watched = True
        self._used = False
        self._ports.clock.call_later(idle_s, self._owner.actor_ref, IdleOver())

    def idle_over(self) -> None:
        """The timer has fired: tell the supervisor, if the session was not used meanwhile."""
        if self._used or not self.at_rest:
            self._watched = False
        elif self._owner.parent is not None:
            tell(self._owner.parent, Idle(self._live.session))

    def stay(self) -> None:
        """The session was asked to leave, and stays."""
        self._watched = False
