"""SupervisorActor: one per process; the only router, and the one that restarts sessions.

Restart policy is data. A session that fails is restarted at once: it reads itself from the log, fences with
``actor.failure`` and takes over what it had running. More than `failures_max` failures within `window_s` seconds
quarantine it: it is restarted once more, and takes Stop and nothing else. A quarantined session that fails again is
not restarted until somebody asks for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from loguru import logger
from msgspec import Struct
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.base import Actor, tell
from actors.errors import QueueFull, ShuttingDown
from actors.future import ReplyFuture
from actors.mailbox import Mailbox
from actors.messages import Activate, Down, Drain, DrainOver, Interrupt, Ping, Pong, Quiet, Route, Shutdown, Stop
from actors.model import Provenance
from actors.plugins import Plugins
from actors.ports import Ports
from actors.session import SessionActor

INTERRUPT_SLACK_S = 2.0
HELD_MAX = 10_000


class RestartPolicy(Struct, frozen=True):
    """How often a session may fail before it is quarantined; `window_s` in seconds."""

    failures_max: int = 5
    window_s: float = 60.0


@dataclass(slots=True)
class Held:
    """What waits for a session that ended to be started anew: what it handed back, then what came later."""

    returned: list[tuple[Route, ReplyFuture[Any] | None]] = field(default_factory=list)
    later: list[tuple[Route, ReplyFuture[Any] | None]] = field(default_factory=list)


class SupervisorActor(Actor):
    """The root of the hierarchy.

    Args:
        ports: what the actors need from outside.
        plugins: agents and tools.
        policy: how often a session may fail.
    """

    def __init__(self, ports: Ports, plugins: Plugins, policy: RestartPolicy | None = None) -> None:
        super().__init__(dispatcher=ports.dispatcher, key="supervisor")
        self._ports = ports
        self._plugins = plugins
        self._policy = policy or RestartPolicy()
        self._failures: dict[str, deque[float]] = {}
        self._quarantined: set[str] = set()
        self._draining: ReplyFuture[Any] | None = None
        self._shutting_down = False
        self._interrupted = False
        self._noisy: set[str] = set()
        self._held: dict[str, Held] = {}

    def on_receive(self, message: Any) -> Pong | None:
        """Handle one message."""
        match message:
            case Route():
                self._route(message)
            case Activate():
                self._session(message.session)
            case Down():
                self._session_down(message)
            case Shutdown():
                self._shutdown(message)
            case Quiet():
                self._noisy.discard(message.session)
                self._answer_if_quiet()
            case DrainOver():
                self._drain_over(final=message.final)
            case Ping():
                return self._pong()
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)
        return None

    def _pong(self) -> Pong:
        if not self._shutting_down:
            return Pong(len(self.children), "serving", 0)
        return Pong(len(self.children), "interrupting" if self._interrupted else "draining", len(self._noisy))

    def _route(self, route: Route) -> None:
        """Hand a message on, with its asker: the session answers.

        A Route overtakes the Down of a session that ended, so it waits for that and goes to the next incarnation.
        """
        reply = self.take_reply()
        ref = self.children.get(route.session)
        if ref is None or not cast("Mailbox", ref.actor_inbox).closed:
            self._forward(route, reply)
            return
        held = self._held.setdefault(route.session, Held())
        if route.returned:
            held.returned.append((route, reply))
        elif len(held.later) < HELD_MAX or isinstance(route.message, Stop):
            held.later.append((route, reply))
        elif reply is not None:
            error = QueueFull(
                "too many messages wait for the session to be restarted",
                expected=f"at most {HELD_MAX} messages",
                got=f"{len(held.later)} that wait already",
                remedy="send the same object again a little later: it has one effect",
            )
            reply.try_set_exception(error)

    def _forward(self, route: Route, reply: ReplyFuture[Any] | None) -> None:
        if self._shutting_down and route.session not in self.children and not isinstance(route.message, Stop):
            error = ShuttingDown(
                "the supervisor is shutting down",
                expected="Stop, which it still takes",
                got=type(route.message).__name__,
                remedy="send it again, under the same id, after the restart",
            )
            if reply is not None:
                reply.try_set_exception(error)
            return
        self._session(route.session).actor_inbox.put(Envelope(route.message, reply))

    def _session(self, session: str, cause: Provenance | None = None) -> ActorRef[SessionActor]:
        """Return a session's actor; it is started where there is none."""
        ref = self.children.get(session)
        if ref is not None:
            return ref
        quarantined = session in self._quarantined
        ref = self.start_child(
            SessionActor, self._ports, self._plugins, session, cause, quarantined=quarantined, key=session
        )
        if self._shutting_down:
            self._noisy.add(session)
            ref.tell(Drain())
            if self._interrupted:
                ref.tell(Interrupt(self._shutdown_provenance()))
        return ref

    def _session_down(self, down: Down) -> None:
        """A session's actor is gone. Whatever ended it, what it had running is taken over by the next."""
        self._restart(down)
        held = self._held.pop(down.key, Held())
        for route, reply in held.returned + held.later:
            self._forward(route, reply)

    def _restart(self, down: Down) -> None:
        session = down.key
        self._noisy.discard(session)
        clock = self._ports.clock
        reason = f"the session's actor is gone: {down.failure or 'it was stopped'}"
        cause = Provenance(source="actor.failure", reason=reason, initiated_at=clock.wall())
        bound = logger.bind(session=session)
        if session in self._quarantined:
            bound.error("session {} failed in quarantine: {}", session, reason)
            self._answer_if_quiet()
            return
        if down.failure is not None:
            failures = self._failures.setdefault(session, deque())
            failures.append(clock.monotonic())
            while failures[0] < clock.monotonic() - self._policy.window_s:
                failures.popleft()
            if len(failures) > self._policy.failures_max:
                bound.error("session {} failed {} times: it is quarantined", session, len(failures))
                self._quarantined.add(session)
                del self._failures[session]
        bound.warning("session {} is restarted: {}", session, reason)
        self._session(session, cause)
        self._answer_if_quiet()

    # ── Shutting down ─────────────────────────────────────────────────────────────────────────────

    def _shutdown(self, shutdown: Shutdown) -> None:
        reply = self.take_reply()
        if self._shutting_down:
            if reply is not None:
                reply.try_set(False)
            return
        self._shutting_down = True
        self._draining = reply
        self._noisy = set(self.children)
        for child in self.children.values():
            tell(child, Drain())
        self._ports.clock.call_later(shutdown.drain_s, self.actor_ref, DrainOver(final=False))
        self._answer_if_quiet()

    def _drain_over(self, *, final: bool) -> None:
        if self._draining is None:
            return
        if final:
            logger.error("sessions did not come to rest: {}", ", ".join(sorted(self._noisy)))
            self._draining.try_set(False)
            self._draining = None
            return
        if self._interrupted:
            # The time to drain was cut short, and this is its end.
            return
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
        reason = "the time for draining was over"
        return Provenance(source="supervisor.shutdown", reason=reason, initiated_at=at)
