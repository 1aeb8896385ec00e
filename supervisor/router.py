"""SupervisorActor: one per process. It routes messages to sessions, restarts them and passivates them.

Passivation. A session reports `Idle`, and the SupervisorActor sends it `Passivate`. From then on it holds messages for
the session until the session says that it stays, or its Down comes. Then the held messages go to the same incarnation,
or to the next.

Restart policy is data. A session that fails is restarted at once: it restores itself from the log, fences with
``actor.failure`` and takes over its running parts. More than `failures_max` failures within `window_s` seconds
quarantine it: it is restarted once more, and accepts Stop and nothing else. A quarantined session that fails again is
restarted only when a message comes for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from loguru import logger
from msgspec import Struct
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.errors import CountermandError, QueueFull, ShuttingDown
from actors.hierarchy.session import SessionActor
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture
from actors.kernel.mailbox import Mailbox
from actors.messages import (
    Activate,
    ChildCommand,
    ChildWanted,
    Drain,
    DrainOver,
    Erased,
    Expire,
    Idle,
    Interrupt,
    LookForOld,
    Old,
    Passivate,
    Ping,
    PluginsMended,
    Pong,
    Quiet,
    Rested,
    Route,
    Shutdown,
)
from actors.model import Provenance, ServicePhase
from actors.plugin.registration import Plugins
from actors.ports import Ports
from actors.requests import Inspect, Stop
from supervisor.child_runs import ChildLinks

INTERRUPT_SLACK_S = 2.0
LOOK_FIRST_S = 5.0
LOOK_EVERY_S = 600.0
HELD_MAX = 10_000
HELD_STOPS_MAX = 10_000
"""Limit on the Stops that are held for a session beyond `HELD_MAX`, where nothing else is."""


class RestartPolicy(Struct, frozen=True):
    """How often a session may fail before it is quarantined; `window_s` in seconds."""

    failures_max: int = 5
    window_s: float = 60.0


@dataclass(slots=True)
class HeldMessages:
    """Messages that wait for the next incarnation of a session: those that it handed back, then later ones."""

    returned: list[tuple[Route, ReplyFuture[Any] | None]] = field(default_factory=list)
    later: list[tuple[Route, ReplyFuture[Any] | None]] = field(default_factory=list)


class SupervisorActor(Actor):
    """The root of the hierarchy.

    Args:
        ports: the ports of the actors.
        plugins: agents and tools.
        policy: how often a session may fail.
        old: finds the sessions to delete. It may block, so it runs outside of every mailbox. None: no retention.
    """

    def __init__(
        self,
        ports: Ports,
        plugins: Plugins,
        policy: RestartPolicy | None = None,
        old: Callable[[], Old] | None = None,
    ) -> None:
        super().__init__(dispatcher=ports.dispatcher, key="supervisor")
        self._ports = ports
        self._plugins = plugins
        self._policy = policy or RestartPolicy()
        self._old = old
        # The times of the failures within the window, by session; the session that failed last is last.
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._quarantined: set[str] = set()
        self._draining: ReplyFuture[Any] | None = None
        self._shutting_down = False
        self._interrupted = False
        self._hurried = False
        # Sessions that have not reported Quiet yet, each with the number of its last Drain.
        self._noisy: dict[str, int] = {}
        self._drains = 0
        self._held: dict[str, HeldMessages] = {}
        # Sessions that were sent Passivate, until they answer that they stay, or their Down; and those that leave.
        self._asked_to_leave: set[str] = set()
        self._leaving: set[str] = set()
        self._child_links = ChildLinks(self.actor_ref, ports.clock)

    def on_start(self) -> None:
        """Start to look for old sessions, if there is a retention."""
        if self._old is not None:
            self._ports.clock.call_later(LOOK_FIRST_S, self.actor_ref, LookForOld())

    def on_receive(self, message: Any) -> Pong | None:
        """Handle one message."""
        match message:
            case Route():
                self._route(message)
            case Activate():
                self._session(message.session)
            case Down():
                self._session_down(message)
            case Idle():
                self._idle(message)
            case Rested():
                self._rested(message)
            case Erased():
                self._quarantined.discard(message.session)
                self._failures.pop(message.session, None)
            case LookForOld():
                self._look_for_old()
            case PluginsMended():
                for session in self.children.values():
                    tell(session, message)
            case Old():
                self._expire(message)
            case Shutdown():
                self._shutdown(message)
            case Quiet():
                self._quiet(message)
            case DrainOver():
                self._drain_over(message)
            case Ping():
                return self._pong()
            case _ if isinstance(message, ChildCommand):
                self._child_links.take(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)
        return None

    def _pong(self) -> Pong:
        if not self._shutting_down:
            return Pong(len(self.children), ServicePhase.SERVING, 0)
        phase = ServicePhase.INTERRUPTING if self._interrupted else ServicePhase.DRAINING
        return Pong(len(self.children), phase, len(self._noisy))

    def _route(self, route: Route) -> None:
        """Forward a message with its reply: the session answers the asker.

        A Route overtakes the Down of a session that has ended, so it is held until that Down and goes to the next
        incarnation. It is held too while a session decides whether it leaves: it could find the session gone.
        """
        reply = self.take_reply()
        ref = self.children.get(route.session)
        ends = route.session in self._asked_to_leave or (ref is not None and cast("Mailbox", ref.actor_inbox).closed)
        if not ends:
            self._forward(route, reply)
            return
        held = self._held.setdefault(route.session, HeldMessages())
        held_max = HELD_MAX + HELD_STOPS_MAX if isinstance(route.message, Stop) else HELD_MAX
        if route.returned:
            # It was counted in the session's own bound.
            held.returned.append((route, reply))
        elif len(held.later) < held_max:
            held.later.append((route, reply))
        else:
            error = QueueFull(
                "too many messages wait for the session to be restarted",
                expected=f"at most {held_max} messages",
                got=f"{len(held.later)} that wait already",
                remedy="send the same object again later: it has one effect",
            )
            self._refuse(route, reply, error)

    def _refuse(self, route: Route, reply: ReplyFuture[Any] | None, error: CountermandError) -> None:
        if reply is None:
            name = type(route.message).__name__
            logger.info("{} refused {} for {}, which was not an ask: {}", self, name, route.session, error)
        else:
            reply.try_set_exception(error)

    def _forward(self, route: Route, reply: ReplyFuture[Any] | None) -> None:
        # A child run is a part of a run, which may come to its end.
        taken = isinstance(route.message, Stop | Inspect | ChildWanted)
        if self._shutting_down and route.session not in self.children and not taken:
            error = ShuttingDown(
                "the supervisor is shutting down",
                expected="a Stop or a read, which it still accepts",
                got=type(route.message).__name__,
                remedy="send it again, under the same id, after the restart",
            )
            self._refuse(route, reply, error)
            return
        self._session(route.session).actor_inbox.put(Envelope(route.message, reply))
        if self._shutting_down:
            # A Quiet from before this message does not count.
            self._drain(route.session)

    def _session(self, session: str, cause: Provenance | None = None) -> ActorRef[SessionActor]:
        """Return a session's actor; start it if there is none."""
        ref = self.children.get(session)
        if ref is not None:
            return ref
        quarantined = session in self._quarantined
        ref = self.start_child(
            SessionActor, self._ports, self._plugins, session, cause, quarantined=quarantined, key=session
        )
        if self._shutting_down:
            self._drain(session)
            if self._interrupted:
                ref.tell(Interrupt(self._shutdown_provenance()))
        return ref

    def _session_down(self, down: Down) -> None:
        """Handle the end of a session's actor. Unless it left, the next one takes over its running parts."""
        left = down.key in self._leaving and down.failure is None
        self._leaving.discard(down.key)
        self._asked_to_leave.discard(down.key)
        self._noisy.pop(down.key, None)
        if not left:
            self._restart(down)
        self._release(down.key)
        self._answer_if_quiet()

    def _release(self, session: str) -> None:
        """Forward the messages held for a session, in order. That starts it if it is not in memory."""
        held = self._held.pop(session, HeldMessages())
        for route, reply in held.returned + held.later:
            self._forward(route, reply)

    # ── Passivation ───────────────────────────────────────────────────────────────────────────────

    def _idle(self, idle: Idle) -> None:
        session = self.children.get(idle.session)
        if session is None or self._shutting_down:
            return
        self._asked_to_leave.add(idle.session)
        tell(session, Passivate())

    def _rested(self, rested: Rested) -> None:
        if rested.leaves:
            # Its mailbox is closed, so messages are held until its Down.
            self._leaving.add(rested.session)
            return
        self._asked_to_leave.discard(rested.session)
        self._release(rested.session)

    def _restart(self, down: Down) -> None:
        session = down.key
        clock = self._ports.clock
        reason = f"the session's actor is gone: {down.failure or 'it was stopped'}"
        cause = Provenance(source="actor.failure", reason=reason, initiated_at=clock.wall())
        bound = logger.bind(session=session)
        if session in self._quarantined:
            bound.error("session {} failed in quarantine: {}", session, reason)
            return
        if down.failure is not None:
            failures = self._failed(session, clock.monotonic())
            if len(failures) > self._policy.failures_max:
                bound.error("session {} failed {} times: it is quarantined", session, len(failures))
                self._quarantined.add(session)
                del self._failures[session]
        bound.warning("session {} is restarted: {}", session, reason)
        self._session(session, cause)

    def _failed(self, session: str, now: float) -> deque[float]:
        """Record a failure and drop those outside of the window. Returns the remaining ones of this session."""
        failures = self._failures.setdefault(session, deque())
        failures.append(now)
        self._failures.move_to_end(session)
        since = now - self._policy.window_s
        while next(iter(self._failures.values()))[-1] < since:
            self._failures.popitem(last=False)
        while failures[0] < since:
            failures.popleft()
        return failures

    # ── Retention ─────────────────────────────────────────────────────────────────────────────────

    def _look_for_old(self) -> None:
        old, me = self._old, self.actor_ref
        if old is None or self._shutting_down:
            return
        self._ports.executor.call(lambda: tell(me, old()))
        self._ports.clock.call_later(LOOK_EVERY_S, me, LookForOld())

    def _expire(self, old: Old) -> None:
        if self._shutting_down:
            return
        for session, seq in old.sessions:
            if session not in self._asked_to_leave:
                tell(self._session(session), Expire(seq, "it was kept for as long as sessions are kept"))

    # ── Shutting down ─────────────────────────────────────────────────────────────────────────────

    def _shutdown(self, shutdown: Shutdown) -> None:
        reply = self.take_reply()
        if self._shutting_down:
            if reply is not None:
                reply.try_set(False)
            return
        self._shutting_down = True
        self._draining = reply
        for session in self.children:
            self._drain(session)
        self._ports.clock.call_later(shutdown.drain_s, self.actor_ref, DrainOver(final=False))
        self._answer_if_quiet()

    def _drain(self, session: str) -> None:
        self._drains += 1
        self._noisy[session] = self._drains
        tell(self.children[session], Drain(self._drains))

    def _quiet(self, quiet: Quiet) -> None:
        if self._noisy.get(quiet.session) == quiet.number:
            del self._noisy[quiet.session]
            self._answer_if_quiet()

    def _drain_over(self, over: DrainOver) -> None:
        if self._draining is None:
            return
        if over.final:
            logger.error("sessions did not come to rest: {}", ", ".join(sorted(self._noisy)))
            self._draining.try_set(False)
            self._draining = None
            return
        self._hurried = self._hurried or (over.hurried and not self._interrupted)
        self._interrupted = True
        for session in sorted(self._noisy):
            child = self.children.get(session)
            if child is not None:
                tell(child, Interrupt(self._shutdown_provenance()))
        settings = self._ports.settings
        wait_s = settings.grace_s + settings.kill_s + INTERRUPT_SLACK_S
        self._ports.clock.call_later(wait_s, self.actor_ref, DrainOver(final=True))

    def _answer_if_quiet(self) -> None:
        if self._draining is not None and not self._noisy:
            self._draining.try_set(True)
            self._draining = None

    def _shutdown_provenance(self) -> Provenance:
        at = self._ports.clock.wall()
        reason = "the drain was cut short" if self._hurried else "the time for draining was over"
        return Provenance(source="supervisor.shutdown", reason=reason, initiated_at=at)
