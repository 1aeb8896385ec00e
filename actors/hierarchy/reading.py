"""Reading: the session comes from the store, and requests that waited for that are decided.

A reading that succeeds begins a new incarnation. What the last one left is restored by the protocol: its runs are
closed, their parts are adopted and ended, and Stops that the store did not have are decided before anything starts.
"""

from __future__ import annotations

from loguru import logger

from actors.hierarchy.batches import Batches
from actors.hierarchy.draining import Draining
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.outage import Outage
from actors.hierarchy.quarantine import Quarantine
from actors.hierarchy.run_actors import RunActors
from actors.hierarchy.serving import Serving
from actors.hierarchy.stash import Stash
from actors.hierarchy.tree_actors import TreeActors
from actors.kernel.actor import Actor
from actors.messages import Erased
from actors.ports import Ports, Snapshot
from actors.requests import Inspect


class Reading:
    """Reads one session. Used in the turns of its actor only.

    Args:
        owner: the session's actor, which gets Loaded or LoadFailed.
        ports: the store, and dead letters for rows that cannot be read.
        live: the session.
        stash: requests that wait for the reading.
        runs: the actors of its runs.
        trees: the actors of its process trees.
        batches: send what the restoration decides.
        draining: goes on in the new incarnation.
        serving: decides what has waited.
        outage: what the last incarnation knew, and the store may not.
        late_stops: Stops to be decided now.
        quarantine: whether the session takes Stops only.
    """

    def __init__(
        self,
        owner: Actor,
        ports: Ports,
        live: Incarnation,
        stash: Stash,
        runs: RunActors,
        trees: TreeActors,
        batches: Batches,
        draining: Draining,
        serving: Serving,
        outage: Outage,
        late_stops: LateStops,
        quarantine: Quarantine,
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._stash = stash
        self._runs = runs
        self._trees = trees
        self._batches = batches
        self._draining = draining
        self._serving = serving
        self._outage = outage
        self._late_stops = late_stops
        self._quarantine = quarantine
        # The last batch of the restoration.
        self._restored_by = 0

    def begin(self) -> None:
        """Ask the store for the session."""
        self._ports.store.load(self._live.session, self._owner.actor_ref)

    def loaded(self, snapshot: Snapshot) -> None:
        """The session was read: restore it, and decide what has waited."""
        if self._live.phase is Phase.SERVING:
            return
        # An actor that ended by itself has left nothing. One that fails in quarantine names its successor no cause.
        failed_before = not self._outage.unrecorded.after_crash or self._quarantine.on
        self._runs.replace_all()
        self._trees.stop_all()
        self._live.hosts.settle(snapshot)
        self._live.begin()
        self._draining.go_on()
        self._batches.begin()
        self._lift_quarantine_if_deleted(snapshot)
        self._serving.begin()
        for name in snapshot.left_out:
            at = self._ports.clock.wall()
            self._ports.dead_letters.add("row", "it is stored, and cannot be read", None, at, name)
        self._restore(snapshot)
        # A row that cannot be read may be that of an open part.
        if failed_before and not snapshot.left_out:
            self._live.forget_ended()
        self._decide_what_waits()

    def committed(self, number: int) -> None:
        """Batches are durable; if those of the restoration are among them, it is on record."""
        if number >= self._restored_by:
            self._outage.over()

    def failed(self, error: str) -> None:
        """The session cannot be read: answer what waits, and try again later."""
        if self._live.phase is Phase.SERVING:
            return
        logger.error("{} cannot be read: {}", self._owner, error)
        self._live.phase = Phase.FAILED
        for request, reply in self._stash.take_all():
            if not isinstance(request, Inspect):
                self._outage.request(request, reply)
            elif reply is not None:
                reply.try_set(self._live.status())
        self._outage.try_later()

    def _lift_quarantine_if_deleted(self, snapshot: Snapshot) -> None:
        """A deleted session is used again. One that was restarted for its failures may go on failing: it stays."""
        deleted = snapshot.row is not None and snapshot.row.deleted
        if self._quarantine.on and self._outage.unrecorded.cause is None and deleted:
            self._quarantine.lift()
            self._owner.tell_parent(Erased(self._live.session))

    def _restore(self, snapshot: Snapshot) -> None:
        unrecorded = self._outage.unrecorded
        unrecorded.undone.clear()
        # The first cause stands until it is on record, however often that has to be tried.
        unrecorded.cause = self._live.protocol.restoration.restore(
            snapshot,
            unrecorded.cause,
            quarantined=self._quarantine.on,
            ended=unrecorded.ended,
            stops=self._late_stops.restore(snapshot.kept),
            trees=unrecorded.trees_ended,
            crashed=unrecorded.after_crash,
        )
        self._serving.flush()
        # Until what was just decided is durable, a further failure has to know what had ended these runs.
        self._restored_by = self._batches.number
        if not self._batches.sent:
            self._outage.over()

    def _decide_what_waits(self) -> None:
        """Decide the requests that waited, in order.

        All up to the last Stop of the journal are stored in one batch with it: after a crash between two batches there
        would be no record that the Stop came later than they did.
        """
        waiting = self._stash.waiting
        kept = [index for index, (request, _) in enumerate(waiting) if self._late_stops.is_kept(request)]
        last, index = kept[-1] if kept else 0, 0
        while waiting:
            request, reply = waiting.popleft()
            if not isinstance(request, Inspect):
                self._serving.decide(request, reply, goes_on=index < last)
            elif reply is not None:
                reply.try_set(self._live.status())
            index += 1
