"""World: the real actors over simulated ports, one thread, a seeded order, virtual time.

Theory of operation. One step of the world is one of: a message of one actor, a group of commits, a report of a
process tree, one stretch of a coroutine between two awaits, one callback, or a timer that is due. Which, is drawn
by the world's random numbers among those that have something to do; so every order that threads could bring
about may come, and the same seed brings the same. A step takes `STEP_S` of virtual time. When nobody has anything to
do, time moves on to the next timer; with a small probability it does so before, as on a machine under load.

A crash drops everything that is in memory, without a hook or a handler, and makes a new world over the same
`Disk`. The wardens of the process trees outlive it by a moment, end their trees, and leave ledgers. A shutdown that is
answered ends a world in the same way: whatever it had not finished by then is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from loguru import logger
from pykka import ActorDeadError, ActorRef, ActorRegistry
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.dead_letters import DeadLetters
from actors.errors import Invalid
from actors.hierarchy.incarnation import Phase
from actors.hierarchy.session import SessionActor
from actors.kernel.actor import Actor
from actors.kernel.dispatcher import StepDispatcher
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture
from actors.kernel.log_context import speak
from actors.kernel.mailbox import Mailbox
from actors.messages import Activate, Erased, Idle, Rested, Route, Shutdown
from actors.model import Event, Message
from actors.plugin.registration import Agent, Tool, Unloaded
from actors.ports import Ports, Settings
from actors.requests import Inspect, OutsideRequest
from actors.run_status import RunStatus
from supervisor.child_runs import ChildRuns
from supervisor.router import RestartPolicy, SupervisorActor
from tests.sim.agents import scripted
from tests.sim.clock import SimClock
from tests.sim.disk import Disk
from tests.sim.executor import SimExecutor
from tests.sim.hosts import Hosting, SimHosts
from tests.sim.ids import SimIds
from tests.sim.processes import SimProcesses
from tests.sim.publisher import SimPublisher
from tests.sim.store import SimStore
from tests.sim.strays import SimStrays
from tests.sim.tools import Effects, SimPlugins, tools
from tests.sim.watch import LawBroken, Watch

STEP_S: Final = 1e-5
EARLY_TIMER: Final = 1 / 200
SETTLE_STEPS_MAX: Final = 400_000
TRIES_MAX: Final = 8
TRY_AGAIN_S: Final = 0.02

if TYPE_CHECKING:
    import loguru

A = TypeVar("A", bound=Actor)


class ActorPoisoned(Exception):
    """What a poisoned actor raises."""


class Asked:
    """One request that somebody sent, and what came of it."""

    def __init__(self, session: str, request: OutsideRequest) -> None:
        self.session = session
        self.request = request
        self.future: ReplyFuture[Any] = ReplyFuture()
        self.tries = 0

    @property
    def done(self) -> bool:
        """True if it was answered or refused."""
        return self.future.done()

    def outcome(self) -> Any:
        """The answer, or the exception that is the answer; it is an error to ask too early."""
        assert self.done, f"{self.request} has no answer"
        return _outcome(self.future)


def _outcome(done: ReplyFuture[Any]) -> Any:
    """The answer of a future that is done, or the exception that is the answer: what `get` gives, without its locks."""
    result = done._result
    assert result is not None, "it is done, and nobody derives futures here"
    return result.value if result.exc_info is None else result.exc_info[1]


class SimSupervisor(SupervisorActor):
    """The supervisor, with the watch at the door through which sessions leave."""

    def __init__(self, watch: Watch, *args: Any) -> None:
        super().__init__(*args)
        self._watch = watch

    def on_receive(self, message: Any) -> None:
        """Handle one message."""
        if isinstance(message, Rested) and message.leaves:
            self._watch.rest.passivates(message.session)
        if isinstance(message, Erased):
            self._watch.bounds.erased(message.session)
        if isinstance(message, Down) and message.failure is not None:
            self._watch.bounds.down(message.key, quarantined=message.key in self._quarantined)
        super().on_receive(message)
        if isinstance(message, Rested) and not message.leaves and message.session in self._held:
            ref = self.children.get(message.session)
            if ref is not None and ref.is_alive():
                self._watch.break_(f"{message.session} stays, and what came for it is held (L11)")


class World:
    """See the head of this file. A context manager: leaving it drops everything.

    Args:
        seed: the order of everything.
        agents: by name; by default the scripted one, which is also the one that runs.
        more_tools: besides those of `tests.sim.tools`.
        settings: graces and limits.
        policy: when a session is quarantined.
        before: the world that crashed, whose disk, ids and time this one takes over.
        hosting: how the agent that is named so runs in hosts.
    """

    def __init__(
        self,
        seed: int,
        *,
        agents: Mapping[str, Callable[..., Any] | Unloaded] | None = None,
        more_tools: Iterable[Tool] = (),
        settings: Settings | None = None,
        policy: RestartPolicy | None = None,
        before: World | None = None,
        hosting: Hosting | None = None,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self._random = self.random.random
        self._ready: list[Callable[[], Any]] = []
        self.settings = settings or Settings(agent="scripted")
        self.errors: list[str] = []
        self.steps = 0
        self.asked: list[Asked] = []
        # When the shutdown began, and is to interrupt what runs: virtual seconds since the epoch.
        self.interrupts_at: float | None = None
        self.ended = False
        self.came_to_rest = False
        # The machine was so slow while it shut down that what there is time for need not have been done.
        self.hesitated = False
        # Virtual seconds by which time moved on although somebody had something to do.
        self.stalled_s: float = before.stalled_s if before else 0.0
        self._closed = False
        self.disk: Disk = before.disk if before else Disk()
        self.ids: SimIds = before.ids if before else SimIds()
        self.watch: Watch = before.watch if before else Watch(self.disk)
        self.effects: Effects = before.effects if before else Effects(self.watch)
        self.clock: SimClock = SimClock(before.clock.monotonic() if before else 0.0)
        of_its_own: dict[str, Callable[..., Any] | Unloaded] = {
            "scripted": scripted(self.watch),
            "other": scripted(self.watch, "other"),
            "broken": Unloaded("sim:broken", Invalid("its module raises", expected="", got="", remedy="")),
        }
        self._agents: dict[str, Callable[..., Any] | Unloaded] = dict(agents or of_its_own)
        self._more_tools = tuple(more_tools)
        self.policy = policy or RestartPolicy()
        self.store = SimStore(self.disk, self.random, self.watch)
        self.publisher = SimPublisher(self.watch)
        self.processes = SimProcesses(self.clock, self.random, self.disk.ledgers, self.watch)
        self.executor = SimExecutor(self.clock, self.random, self.watch)
        self.strays: SimStrays = SimStrays(self.clock, before.strays.random if before else None)
        inside: dict[str, Agent | Unloaded] = dict(self._agents)
        self.hosting = hosting
        self.hosts: SimHosts | None = None
        if hosting is not None:
            code = self._agents[hosting.agent.name]
            assert callable(code), "what runs in hosts is a function here"
            inside[hosting.agent.name] = hosting.agent
            loop = self.executor._loop
            self.hosts = SimHosts(hosting, loop, self.processes, self.ids, self.watch, code)
        self.dispatcher = StepDispatcher(seed)
        # Twice: most of what happens are messages, and a fair share for every port would starve them.
        self._turns = [self.dispatcher.step] * 2
        self._coroutines = [self.executor.loop_step] * 2
        self.dead_letters = DeadLetters()
        _ERRORS.listen(self.errors)
        child_runs = ChildRuns(self.processes)
        ports = Ports(
            clock=self.clock,
            ids=self.ids,
            executor=self.executor,
            strays=self.strays,
            processes=child_runs,
            store=self.store,
            publisher=self.publisher,
            dispatcher=self.dispatcher,
            dead_letters=self.dead_letters,
            settings=self.settings,
            hosts=self.hosts,
            children=child_runs,
        )
        plugins = SimPlugins(inside, [*tools(self.effects), *self._more_tools])
        self.supervisor: ActorRef[SimSupervisor] = SimSupervisor.start(self.watch, ports, plugins, self.policy)
        child_runs.route_through(self.supervisor)
        # Sessions are found through it after it has failed too, whenever garbage is collected.
        root = self.supervisor._actor_weakref()
        assert root is not None, "it was started just now"
        self._root: SimSupervisor = root
        self.watch.enter(self)
        for session in sorted({*self.disk.unfinished(), *(session for session, _ in self.disk.journal)}):
            self.supervisor.tell(Activate(session))

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def ask(self, session: str, request: OutsideRequest) -> ReplyFuture[Any]:
        """Send a request; the future has the answer when the world has taken the steps to it.

        As a session's handle does, the same object is sent again where an actor died with it.
        """
        return self.send(session, request).future

    def send(self, session: str, request: OutsideRequest) -> Asked:
        """As `ask`; returns the request together with its future."""
        asked = Asked(session, request)
        self.watch.requests.setdefault(request.id, request)
        self.asked.append(asked)
        self._send(asked)
        return asked

    def tell(self, session: str, request: OutsideRequest) -> None:
        """Send a request and do not look for its answer."""
        self.supervisor.tell(Route(session, request))

    def inspect(self, session: str) -> ReplyFuture[Any]:
        """Ask for the status of a session."""
        future: ReplyFuture[Any] = ReplyFuture()
        self.supervisor.actor_inbox.put(Envelope(Route(session, Inspect()), future))
        return future

    def shutdown(self, drain_s: float) -> ReplyFuture[Any]:
        """Drain, then interrupt; the answer says whether all came to rest, and with it the world ends."""
        future: ReplyFuture[Any] = ReplyFuture()
        if self.interrupts_at is None:
            self.interrupts_at = self.clock.wall() + drain_s
            future.add_done_callback(self._over)
        self.supervisor.actor_inbox.put(Envelope(Shutdown(drain_s), future))
        return future

    def _over(self, answer: ReplyFuture[Any]) -> None:
        self.ended = True
        said = _outcome(answer)
        self.came_to_rest = said is True
        if said is True:
            self.watch.rest.came_to_rest(self)
        elif said is False and not self.hesitated:
            self.watch.rest.did_not_come_to_rest()

    def _send(self, asked: Asked) -> None:
        asked.tries += 1
        now = self.clock.wall()
        first, _ = self.watch.sent.get(asked.request.id, (now, now))
        self.watch.sent[asked.request.id] = first, now
        self.watch.under_way[asked.request.id] += 1
        inner: ReplyFuture[Any] = ReplyFuture()
        inner.add_done_callback(lambda done: self._answered(asked, done))
        self.supervisor.actor_inbox.put(Envelope(Route(asked.session, asked.request), inner))

    def _answered(self, asked: Asked, done: ReplyFuture[Any]) -> None:
        outcome = _outcome(done)
        self.watch.under_way[asked.request.id] -= 1
        if isinstance(outcome, ActorDeadError | ActorPoisoned):
            if not (self.watch.faults or self._closed):
                self.watch.break_(f"{asked.request.id} finds nobody, and nothing has failed (L11)")
            if asked.tries < TRIES_MAX and self.supervisor.is_alive():
                self.clock.call_at(self.clock.monotonic() + TRY_AGAIN_S, lambda: self._send(asked))
            else:
                asked.future.try_set_exception(ActorDeadError(str(outcome)))
            return
        self.watch.answers.answered(asked.session, asked.request, outcome)
        if isinstance(outcome, Exception):
            asked.future.try_set_exception(outcome)
        else:
            asked.future.try_set(outcome)

    def someone_is_idle(self) -> bool:
        """True at the instant in which a session has said that it is idle, and the supervisor has not heard it."""
        waits = self.supervisor.actor_inbox
        assert isinstance(waits, Mailbox), "actors have no other"
        return any(isinstance(envelope.message, Idle) for envelope in waits._ordinary or ())

    def someone_is_to_leave(self) -> bool:
        """True while a session is asked to leave memory, and has not answered."""
        return bool(self._root._asked_to_leave - self._root._leaving)

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """Let one of those that have something to do take one step. False: nobody has, and no timer is set.

        Raises:
            LawBroken: a predicate of the watch does not hold after it.
        """
        ready, random, clock, store, executor = self._ready, self._random, self.clock, self.store, self.executor
        if self.ended:
            return False
        while True:
            ready.clear()
            if self.dispatcher.waits():
                ready += self._turns
            if store.ready:
                ready.append(store.step)
            if store.journal_ready:
                ready.append(store.journal_step)
            if self.processes.ready:
                ready.append(self.processes.step)
            if executor.loop_ready:
                ready += self._coroutines
            if executor.callbacks_ready:
                ready.append(executor.callback_step)
            due = clock.next_due()
            early = due is not None and due > clock.monotonic() and bool(ready)
            if due is not None and (not early or random() < EARLY_TIMER):
                ready.append(clock.fire)
            if not ready:
                return False
            chosen = ready[int(random() * len(ready))]
            if early and due is not None and chosen == clock.fire:
                self.stalled_s += due - clock.monotonic()
            if early and self.interrupts_at is not None and chosen == clock.fire:
                self.hesitated = True
            if chosen() is not False:
                break
            # Nobody was behind the entry of the dispatcher: somebody else has the step.
        clock.elapse(STEP_S)
        self.steps += 1
        if self.watch.broken:
            raise LawBroken(f"seed {self.seed}, step {self.steps}: {'; '.join(self.watch.broken)}")
        return True

    def run(self, until: Callable[[], bool] | None = None, max_steps: int = SETTLE_STEPS_MAX) -> bool:
        """Step until a condition holds, nothing is left to do, or `max_steps` were taken; True if it holds."""
        for _ in range(max_steps):
            if until is not None and until():
                return True
            if not self.step():
                break
        return until is not None and until()

    def settle(self, max_steps: int = SETTLE_STEPS_MAX) -> None:
        """Step until nothing is left to do, however far time has to move for it."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"seed {self.seed}: not settled after {max_steps} steps: {self.executor.running()}")

    def answer(self, session: str, request: OutsideRequest) -> Any:
        """Send a request and step until it is answered. Raises what it is refused with."""
        future = self.ask(session, request)
        assert self.run(future.done), f"seed {self.seed}: {request} is never answered"
        return future.get(timeout=0)

    def wait(self, seconds: float) -> None:
        """Step until `seconds` of virtual time have passed."""
        passed: list[bool] = []
        self.clock.call_at(self.clock.monotonic() + seconds, lambda: passed.append(True))
        assert self.run(lambda: bool(passed)) or self.ended

    # ── What is there ─────────────────────────────────────────────────────────────────────────────

    def events(self, session: str = "s") -> list[Event]:
        """The durable log."""
        return self.disk.events(session)

    def published(self, session: str = "s") -> list[Event]:
        """What subscribers of this world were given."""
        return self.publisher.events.get(session, [])

    def kinds(self, session: str = "s") -> list[str]:
        """The kinds of the durable log, in order."""
        return [event.kind for event in self.events(session)]

    def thread(self, session: str = "s") -> list[Message]:
        """The thread: the fold of the durable log."""
        return self.disk.thread(session)

    def status(self, run_id: str) -> RunStatus | None:
        """The durable status of a run."""
        info = self.disk.run(run_id)
        return info.status if info else None

    def actors(self, kind: type[A]) -> list[A]:
        """The live actors of a class, in the order of their starts."""
        found = []
        for ref in ActorRegistry.get_all():
            actor = ref._actor_weakref()
            if isinstance(actor, kind) and actor.dispatcher is self.dispatcher:
                found.append(actor)
        return found

    def session(self, session: str = "s") -> SessionActor:
        """The live actor of a session."""
        return next(actor for actor in self.actors(SessionActor) if actor.key == session)

    def session_if_alive(self, session: str) -> SessionActor | None:
        """The live actor of a session, if it has one that serves."""
        ref = self._root.children.get(session)
        actor: SessionActor | None = ref._actor_weakref() if ref is not None else None
        if actor is None or actor.actor_stopped.is_set() or actor._live.phase is not Phase.SERVING:
            return None
        return actor

    # ── Failures ──────────────────────────────────────────────────────────────────────────────────

    def poison(self, kind: type[Actor], *, which: int = 0, before: bool = True) -> bool:
        """Let an actor fail at the next message that it handles: before it does anything, or when it has.

        Returns False if there is no such actor.
        """
        found = self.actors(kind)
        if not found:
            return False
        actor = found[which % len(found)]
        handle = actor.on_receive

        def failing(message: Any) -> Any:
            if not before:
                handle(message)
            raise ActorPoisoned(f"at a {type(message).__name__}")

        self.watch.faults = self.watch.forgot = self.watch.bounds.poisoned = True
        actor.on_receive = failing  # type: ignore[method-assign]  # the fault that is injected
        return True

    def crash(self, seed: int | None = None) -> World:
        """`kill -9`, and a start over what was durable. What was asked and not answered fails."""
        self.watch.crashed()
        return self._next(seed)

    def restart(self, seed: int | None = None) -> World:
        """A start after a shutdown that was answered; where that could not bring all to rest, it is as a crash."""
        assert self.ended, "a shutdown was answered"
        if self.came_to_rest:
            self.watch.restarts += 1
            self.store.close()
            return self._next(seed)
        return self.crash(seed)

    def _next(self, seed: int | None) -> World:
        self.close()
        return World(
            self.seed + 1 if seed is None else seed,
            agents=self._agents,
            more_tools=self._more_tools,
            settings=self.settings,
            policy=self.policy,
            before=self,
            hosting=self.hosting,
        )

    def close(self) -> None:
        """Drop everything, without a handler or a hook of an actor."""
        self._closed = True
        self.store.drop()
        self.executor.drop()
        self.processes.drop()
        _ERRORS.forget(self.errors)
        # With its dispatcher closed an actor that is sent something ends without a hook.
        self.dispatcher.close()
        for actor in self.actors(Actor):
            with contextlib.suppress(ActorDeadError):
                actor.actor_ref.tell(_ActorStop())
        for asked in self.asked:
            asked.future.try_set_exception(ActorDeadError("the supervisor has ended"))

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Errors:
    """What the core logs as an error goes to every world that is there: where nothing was made to fail, nothing may be.

    One handler for all worlds, because loguru takes longer to add one than a world to play a schedule.
    """

    def __init__(self) -> None:
        self._worlds: list[list[str]] = []
        self._handler: int | None = None

    def listen(self, errors: list[str]) -> None:
        """Append errors to this list from here on."""
        if self._handler is None:
            speak()
            self._handler = logger.add(
                self._logged,
                level="ERROR",
                format=lambda _: "{message}\n",
                catch=False,
                backtrace=False,
                diagnose=False,
            )
        self._worlds.append(errors)

    def forget(self, errors: list[str]) -> None:
        """Append to it no more; again is harmless."""
        self._worlds = [one for one in self._worlds if one is not errors]

    def _logged(self, message: loguru.Message) -> None:
        record = message.record
        failure = record["exception"]
        shown = record["message"] + (f": {failure.value!r}" if failure else "")
        for errors in self._worlds:
            errors.append(shown)


_ERRORS: Final = Errors()


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Print nothing meanwhile; each world still keeps the errors that it logs."""
    with contextlib.suppress(ValueError):
        logger.remove(0)
    yield
