"""SessionActor: one per live session; it carries out what `actors.protocol.protocol` decides.

Theory of operation. The protocol decides each message in memory. What the step takes away (halts, refusals) is done at
once. Its records go to the store as one batch, and what it starts, permits, answers or publishes is done when
`Committed` comes back. Batches are pipelined: the next one may be decided and sent before the last one is durable.

The actor routes messages. Each part of the work is an object that it owns; the package's docstring lists them from the
top down, and a call goes down in that list. The phase says who takes a request: `Stash` while the session is loading,
`Serving`, or `Outage` when the store has failed. The store may fail at any moment. A Stop is answered all the same,
within a bound, and no crash forgets it (`late_stops.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from loguru import logger
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.hierarchy.batches import Batches
from actors.hierarchy.draining import Draining
from actors.hierarchy.effects import Effects
from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.outage import Outage
from actors.hierarchy.parents import Parents
from actors.hierarchy.passivation import Passivation
from actors.hierarchy.quarantine import Quarantine
from actors.hierarchy.reading import Reading
from actors.hierarchy.run_actors import RunActors
from actors.hierarchy.serving import Serving
from actors.hierarchy.stash import Stash
from actors.hierarchy.tool_host import release_unheard
from actors.hierarchy.tree_actors import TreeActors
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.kernel.each import Each
from actors.kernel.future import ReplyFuture
from actors.messages import (
    CallEnded,
    ChildFound,
    ChildWanted,
    CommitFailed,
    Committed,
    Drain,
    Expire,
    GoOn,
    Halt,
    HostIdle,
    HostUnwanted,
    IdleOver,
    Interrupt,
    KillDeadline,
    Loaded,
    LoadFailed,
    OutputRead,
    Passivate,
    PluginsMended,
    ProcessNews,
    ProcessReport,
    Rested,
    Route,
    RunFinished,
    RunReport,
    Said,
    StopKept,
    StopOverdue,
    StrayEnded,
    StrayFound,
    TreesDeadline,
    TryStore,
)
from actors.model import Provenance, SessionStatus
from actors.plugin.registration import Plugins
from actors.ports import Ports
from actors.protocol.protocol import Protocol
from actors.protocol.run_hosts import IDLE
from actors.requests import (
    Answer,
    Delete,
    Inspect,
    NewMessage,
    OutsideRequest,
    Request,
    Resume,
    Stop,
    Withdraw,
)

HANDED_BACK: Final = Request | Inspect | ChildWanted
"""What goes from a closed mailbox to the next incarnation."""


class SessionActor(Actor):
    """The actor of one session.

    Args:
        ports: what it needs from outside.
        plugins: agents and tools.
        session: the session's id.
        cause: why the incarnation before this one ended; None if it ended by itself.
        quarantined: take Stop and nothing else.
        key: what the supervisor calls it; by default the session's id.
        parent: the supervisor; None where the actor is started by hand.
        dispatcher: runs it and its children; by default that of the ports.
    """

    def __init__(
        self,
        ports: Ports,
        plugins: Plugins,
        session: str,
        cause: Provenance | None = None,
        *,
        quarantined: bool = False,
        key: str = "",
        parent: ActorRef[Any] | None = None,
        dispatcher: Any = None,
    ) -> None:
        super().__init__(dispatcher=dispatcher or ports.dispatcher, parent=parent, key=key or session)
        ref = self.actor_ref
        self._ports = ports
        self._plugins = plugins
        # From the bottom of the package's list to its top.
        self._live = live = Incarnation(session, ports, plugins)
        self._late_stops = late = LateStops(session, ports.clock, ports.store, ref)
        self._quarantine = quarantine = Quarantine(session, on=quarantined)
        self._stash = stash = Stash(ports.clock, late)
        self._runs = runs = RunActors(self, ports, plugins, live)
        self._trees = trees = TreeActors(self, ports, live)
        effects = Effects(self, ports, live, runs, trees, late, quarantine)
        self._batches = batches = Batches(ref, ports, live, effects, late)
        self._parents = parents = Parents(ref, ports, live, batches)
        self._passivation = Passivation(self, ports, live, batches, late, parents)
        self._draining = draining = Draining(self, live, batches, stash, late)
        self._serving = serving = Serving(ref, self._mailbox, ports.clock, live, batches, draining, late)
        self._outage = outage = Outage(ref, ports, live, batches, runs, trees, serving, late, quarantine, cause)
        self._reading = Reading(
            self, ports, live, stash, runs, trees, batches, draining, serving, outage, late, quarantine
        )

    @property
    def _protocol(self) -> Protocol:
        return self._live.protocol

    def log_context(self) -> Mapping[str, object]:
        """Its session, and its generation and active run as they are now."""
        active = self._protocol.state.active
        named = {"session": self._live.session, "generation": self._protocol.state.generation}
        return {**named, "run": active.id} if active is not None else named

    @property
    def decided_seq(self) -> int:
        """The seq of the last event that was decided, stored or not. For any thread."""
        return self._protocol.state.seq

    def on_start(self) -> None:
        """Read the session from the store; requests wait until it is there."""
        self._reading.begin()

    def on_turn_end(self) -> None:
        """Send what this turn decided as one batch."""
        self._parents.decide()
        self._serving.flush()
        self._parents.answer()
        self._passivation.watch()

    # ── Messages ──────────────────────────────────────────────────────────────────────────────────

    def on_receive(self, message: Any) -> Any:
        """Handle one message."""
        serving = self._live.phase is Phase.SERVING
        if serving:
            self._live.protocol.child_runs.follow()
        match message:
            case Said() if serving:
                # By far the most frequent.
                self._passivation.note_use()
                self._live.protocol.runs.said(message)
            case ChildWanted():
                self._passivation.note_use()
                self._parents.add(message, self.take_reply())
            case ChildFound():
                self._parents.found(message)
            case NewMessage() | Stop() | Resume() | Withdraw() | Answer() | Delete():
                self._request(message, self.take_reply())
            case Inspect():
                return self._inspect(message)
            case Committed():
                self._committed(message)
            case CommitFailed():
                self._commit_failed(message)
            case Loaded():
                self._reading.loaded(message.snapshot)
            case LoadFailed():
                self._reading.failed(message.error)
            case StopOverdue():
                self._stop_overdue(message)
            case StopKept():
                self._late_stops.journalled(message.request_id)
            case TryStore():
                self._reading.begin()
            case IdleOver():
                self._passivation.idle_over()
            case Passivate():
                self._passivate()
            case Expire():
                if serving:
                    self._protocol.requests.expire(message.seq, message.reason)
            case Drain():
                self._draining.begin(message.number)
            case Interrupt():
                self._draining.interrupt(message.provenance)
            case GoOn():
                self._serving.go_on(message.number)
            case KillDeadline() | TreesDeadline() | HostIdle() | HostUnwanted():
                self._time_over(message)
            case Down():
                self._child_down(message)
            case _ if serving:
                self._report(message)
            case _:
                release_unheard(message, self._ports.hosts)
                # A run reports it again when its parts are adopted.
                logger.trace("{} is {}: not taken: {!r:.200}", self, self._live.phase.value, message)
        return None

    def _inspect(self, message: Inspect) -> SessionStatus | None:
        if self._live.phase is Phase.LOADING and not self._stash.is_full:
            self._stash.add_inspect(message, self.take_reply())
            return None
        return self._live.status()

    def _time_over(self, timer: KillDeadline | TreesDeadline | HostIdle | HostUnwanted) -> None:
        match timer:
            case KillDeadline() if timer.incarnation == self._live.id:
                self._protocol.runs.kill_deadline(timer.run_id, timer.stage)
            case TreesDeadline() if timer.incarnation == self._live.id:
                self._protocol.tree_reports.deadline(timer.stage)
            case HostIdle() if self._live.phase is Phase.SERVING:
                self._protocol.hosts.retire(timer.process_id, timer.since, IDLE, self._ports.clock.wall())
            case HostUnwanted() if self._live.phase is Phase.SERVING:
                self._protocol.hosts.retire(timer.process_id, timer.since, timer.reason, self._ports.clock.wall())
            case _:
                logger.trace("{}: a timer that is over: {!r:.200}", self, timer)

    def _request(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        self._passivation.note_use()
        match self._live.phase:
            case Phase.LOADING:
                self._stash.add(request, reply)
            case Phase.SERVING:
                self._serving.request(request, reply)
            case Phase.FAILED:
                self._outage.request(request, reply)

    def _report(self, message: Any) -> None:
        self._passivation.note_use()
        match message:
            case CallEnded() | RunFinished() | StrayFound() | StrayEnded() if self._runs.is_replaced(
                message.address.run
            ):
                # The actor that adopts the run reports the ends again, after the starts, some of which were perhaps not
                # handled. It also reports the strays of the run, which would be found twice.
                logger.trace("{} does not take it from an actor that is replaced: {!r:.200}", self, message)
            case ProcessReport():
                self._trees.report(message)
            case _ if isinstance(message, ProcessNews):
                # From the port itself: a tree that was taken over from a process actor that failed.
                self._trees.news(message)
            case OutputRead():
                logger.trace("{} has taken the tree over from who waited for its output", self)
            case PluginsMended():
                self._protocol.plugins_mended(self._plugins.isolation)
            case _ if isinstance(message, RunReport):
                self._protocol.report(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    def _committed(self, committed: Committed) -> None:
        if self._live.phase is not Phase.SERVING:
            return
        self._batches.committed(committed.number)
        self._reading.committed(committed.number)
        self._serving.committed(committed.number)

    def _commit_failed(self, failed: CommitFailed) -> None:
        if self._live.phase is Phase.SERVING:
            self._outage.begin(failed)

    def _stop_overdue(self, overdue: StopOverdue) -> None:
        loading = self._live.phase is Phase.LOADING
        if not self._late_stops.handle_overdue(overdue, in_stash=loading):
            return
        if loading:
            self._stash.answer_overdue(overdue.request_id)
        else:
            self._batches.answer_overdue(overdue.request_id)
            self._serving.let_reports_go_on()

    def _child_down(self, down: Down) -> None:
        of = self._live.worked_for(down.key)
        if not self._trees.has_actor(of, down.key):
            self._runs.ended(of, down)
        elif self._live.phase is Phase.SERVING:
            self._trees.take_over(of)

    def _passivate(self) -> None:
        assert self.parent is not None, "only a supervisor passivates"
        # What others than the supervisor have sent is taken first.
        leaves = self._passivation.at_rest and not len(self._mailbox)
        tell(self.parent, Rested(self._live.session, leaves))
        if leaves:
            self._stop()
        else:
            self._passivation.stay()

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────────

    def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
        """What is left in the closed mailbox goes to the next incarnation, through the router."""
        requests = [envelope for envelope in envelopes if isinstance(envelope.message, HANDED_BACK)]
        if self.parent is not None:
            for envelope in requests:
                route = Route(self._live.session, envelope.message, returned=True)
                self.parent.actor_inbox.put(Envelope(route, envelope.reply_to))
            envelopes = [envelope for envelope in envelopes if not isinstance(envelope.message, HANDED_BACK)]
        if envelopes:
            super().hand_back(envelopes)

    def _hand_back_stash(self) -> None:
        """Requests that waited for the session to be read go on too, ahead of what is left in the mailbox."""
        if self.parent is None:
            return
        for request, reply in self._stash.take_all():
            if reply is not None and self._taken is not None:
                # The next incarnation answers it, so it does not fail with this one.
                self._taken.pop(reply, None)
            self.parent.actor_inbox.put(Envelope(Route(self._live.session, request, returned=True), reply))

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """A request without a reply that came to the closed mailbox goes to the next incarnation too."""
        message = envelope.message
        if self.parent is not None and self._mailbox.closed and isinstance(message, OutsideRequest):
            tell(self.parent, Route(self._live.session, message, returned=True))
        elif not release_unheard(message, self._ports.hosts):
            super().on_undelivered(envelope)

    def on_stop(self) -> None:
        """Close every gate: what this incarnation started is adopted by the next one, and is already ending."""
        self._let_go("the session's actor was stopped")

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,  # noqa: ARG002  # Pykka's signature
    ) -> None:
        """Close every gate at once: nothing of this generation begins while the session is being restarted."""
        name = exception_type.__name__ if exception_type else "failure"
        self._let_go(f"the session's actor failed: {name}: {exception_value}", failed=True)

    def _let_go(self, reason: str, *, failed: bool = False) -> None:
        """Close every gate, last of all; and certainly, whatever else fails."""
        cause = Provenance(source="actor.failure", reason=reason, initiated_at=self._ports.clock.wall())
        with Each() as each:
            each.do(self._hand_back_stash)
            each.do(self._late_stops.answer_all_held)
            each.do(self._live.hosts.end, self._ports.processes, self.failed_at)
            if failed and self._quarantine.on:
                each.do(self._end_trees, cause)
            each.do(self._protocol.abandon, cause)

    def _end_trees(self, cause: Provenance) -> None:
        """It has failed in quarantine: only a person starts this session again, and a tree has to have an owner.

        End those that are about to be spawned, and those of an incarnation before, which this one may not have read.
        """
        grace_s = self._ports.settings.grace_s
        for process_id in self._protocol.state.owned:
            self._trees.end(process_id, Halt(cause, grace_s))
        self._ports.processes.kill_session(self._live.session, grace_s)
