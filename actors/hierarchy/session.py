"""SessionActor: one per live session; it carries out what `actors.protocol.protocol` decides.

Theory of operation. Each message is decided by the protocol in memory; what the step takes away (halts,
refusals) is done at once, its records go to the store as one batch, and what it starts, permits, answers or
publishes is done when `Committed` comes back. Batches are pipelined: the next may be decided and sent before the
last is durable, and `Committed` is cumulative.

Phases. *Loading*: the session reads itself from the store; requests wait. *Serving*. *Failed*: the store does not
take writes. The fence is shut in memory and children are halted; a Stop is answered (`durable=False`) and kept,
anything else is refused. When the store can be read again the session takes itself up as after a restart, with
`store.failure` as the cause, and handles the kept Stops again, under their own ids and their first answers.

Stops. A Stop waits for the store with a bound, loading or serving, and no crash forgets it; see `late_stops`. It is
answered by what is known: by the book, where it was answered before; else by what the session knows of its runs; and
where the session was never read, or the book was deleted and that may not be stored, by a word that says so.

A batch that cannot be stored, of a store that is well (`CommitFailed.unfit`), costs what was in it: the requests in it
are refused for good, those behind it may be sent again. The session goes on from what is on record, as above; where
that does not help (`UNFIT_MAX` times within `UNFIT_WINDOW_S`) it is quarantined.

Passivation. A session that is at rest, and was not used for `passivate_s` seconds, tells its supervisor so. That routes
nothing to it any more and sends `Passivate`, which comes behind all that it had routed. Then the session ends, unless
it is in use again. What came for it meanwhile, and what was left in its mailbox, waits in the supervisor and goes to
the next incarnation, in order; so nobody can tell.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import msgspec
from loguru import logger
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.errors import CountermandError, Invalid, StoreUnavailable
from actors.gate.cell import Cell
from actors.gate.pending import fail, settle
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import Adopting, RunActor, RunStart
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture
from actors.messages import (
    CallClosed,
    CallEnded,
    CommitFailed,
    Committed,
    Drain,
    Erased,
    Expire,
    GoOn,
    Halt,
    Idle,
    IdleOver,
    Interrupt,
    KillDeadline,
    Loaded,
    LoadFailed,
    Passivate,
    Permit,
    PermitRefused,
    PermitWaiting,
    PluginsMended,
    ProcessEnded,
    ProcessExited,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    Quiet,
    Rested,
    Route,
    RunFinished,
    RunReport,
    SpawnRefused,
    Steered,
    StopKept,
    StopOverdue,
    StrayEnded,
    StrayFound,
    TreesDeadline,
    TreeTaken,
    TryStore,
)
from actors.model import (
    STRAYS,
    Address,
    Event,
    Mode,
    Owner,
    PartKind,
    Provenance,
    RunInfo,
    Scope,
    SessionActivity,
    SessionStatus,
)
from actors.plugin.registration import Plugins
from actors.ports import Batch, Ports, SpawnSpec
from actors.protocol.protocol import Protocol
from actors.protocol.restoration import recovery_cause
from actors.protocol.run_record import RunRecord
from actors.protocol.step import (
    AdoptRun,
    AdoptTree,
    AnswerRequest,
    CloseCall,
    EndTrees,
    ForgetPart,
    ForgetSession,
    ForgetStop,
    GivePermit,
    GiveSpawn,
    GiveSteering,
    HaltRun,
    KeepDeadLetter,
    KillTree,
    Later,
    MakeWait,
    NothingToSteer,
    Now,
    RefuseCall,
    RefuseDeleted,
    RefuseHandOver,
    RefuseRequest,
    RefuseSpawn,
    ReturnCredit,
    SayHandedOver,
    ShowEphemeral,
    SpawnOwn,
    StartRun,
    TakeTree,
)
from actors.protocol.stops import is_of_stop, provenance_of
from actors.requests import (
    UNKNOWN,
    Accepted,
    Answer,
    Delete,
    Inspect,
    NewMessage,
    OutsideRequest,
    Request,
    Resume,
    Stop,
    Stopped,
    Withdraw,
)

STASH_MAX: Final = 10_000
"""How many requests may wait while the session is read."""
SENT_MAX: Final = 10_000
"""How many batches, and repeats of what is in them, may wait for the store before a request is refused."""
STOPS_MORE_MAX: Final = 10_000
"""How many Stops are taken beyond either of them."""
BACKLOG_MIN: Final = 64
ANSWER_TAKEN_S: Final = 0.001
UNFIT_MAX: Final = 5
UNFIT_WINDOW_S: Final = 60.0
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0


class Phase(enum.Enum):
    """What a session can do now; see the head of this file."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"


@dataclass(slots=True)
class Sent:
    """A batch that was sent and is not known to be durable, or what waits behind one and is written nowhere."""

    number: int
    events: tuple[Event, ...]
    later: list[Later]
    requests: frozenset[str] = frozenset()
    runs: tuple[RunInfo, ...] = ()


@dataclass(slots=True)
class TreeHost:
    """Who hears of a process tree of the session: a child by `key`, or this actor where that failed; and its tool."""

    key: str
    listener: Callable[[ProcessNews], None] | None


class SessionActor(Actor):
    """The actor of one session.

    Args:
        ports: what it needs from outside.
        plugins: agents and tools.
        session: the session's id.
        cause: why the incarnation before this one ended, where it did not end by itself.
        quarantined: take Stop and nothing else.
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
        self._ports = ports
        self._plugins = plugins
        self._session = session
        self._cause = cause
        self._quarantined = quarantined
        self._phase = Phase.LOADING
        self._protocol = self._fresh_protocol()
        self._incarnation = ""
        self._number = 0
        self._sent: deque[Sent] = deque()
        self._stash: deque[tuple[Any, ReplyFuture[Any] | None]] = deque()
        self._runners: dict[str, str] = {}
        # By run: its actor from before the session was read anew, until that ends; and which runs wait for it to end.
        self._replaced: dict[str, str] = {}
        self._to_adopt: set[str] = set()
        self._child_number = 0
        self._trees: dict[str, TreeHost] = {}
        self._trees_ended: dict[str, Provenance] = {}
        # Until that is on record: what the session owned before the supervisor was started is being ended.
        self._after_crash = cause is None
        self._late_stops = LateStops(session, ports.clock, ports.store, self.actor_ref)
        self._unfit: deque[float] = deque()
        # While the record of it may not be stored: runs that had begun and have ended for a cause, and what a Stop has
        # cancelled. That stands.
        self._ended: dict[str, RunInfo] = {}
        # False until the session was read: what runs in it is not known.
        self._was_read = False
        # While the store fails: runs that had not begun. What it did not take of them has not happened, whether that
        # was a start or an end: they wait again, or never come to be.
        self._undone: dict[str, RunInfo] = {}
        self._retry_s = RETRY_FIRST_S
        self._answering = 0
        self._taken_up = 0
        self._draining = False
        self._drain_number = 0
        self._said_quiet = False
        # Whether a timer, or the supervisor, is to say when the session has been idle for its time.
        self._idle_watched = False
        self._used = False

    def log_context(self) -> Mapping[str, object]:
        """Its session, and its generation and active run as they are now."""
        active = self._protocol.state.active
        named = {"session": self._session, "generation": self._protocol.state.generation}
        return {**named, "run": active.id} if active is not None else named

    @property
    def decided_seq(self) -> int:
        """The seq of the last event that was decided, stored or not. For any thread."""
        return self._protocol.state.seq

    def on_start(self) -> None:
        """Read the session from the store; requests wait until it is there."""
        self._ports.store.load(self._session, self.actor_ref)

    def on_receive(self, message: Any) -> Any:
        """Handle one message; see the head of this file for the phases."""
        match message:
            case NewMessage() | Stop() | Resume() | Withdraw() | Answer() | Delete():
                self._request(message, self.take_reply())
            case Inspect() if self._phase is Phase.LOADING and len(self._stash) < STASH_MAX:
                self._stash.append((message, self.take_reply()))
            case Inspect():
                return self._status()
            case Committed():
                self._committed(message)
            case CommitFailed():
                self._commit_failed(message)
            case Loaded():
                self._loaded(message)
            case LoadFailed():
                self._load_failed(message.error)
            case StopOverdue() | StopKept():
                self._stop_waited(message)
            case TryStore():
                self._ports.store.load(self._session, self.actor_ref)
            case IdleOver():
                self._idle_over()
            case Passivate():
                self._passivate()
            case Expire():
                if self._phase is Phase.SERVING:
                    self._protocol.requests.expire(message.seq, message.reason)
            case Drain():
                self._draining = True
                self._drain_number = message.number
                self._said_quiet = False
                self._protocol.drain()
            case Interrupt():
                self._protocol.interrupt(message.provenance)
            case GoOn():
                if message.number == self._answering:
                    self._mailbox.release()
            case KillDeadline():
                if message.incarnation == self._incarnation:
                    self._protocol.runs.kill_deadline(message.run_id, message.stage)
            case TreesDeadline():
                if message.incarnation == self._incarnation:
                    self._protocol.tree_reports.deadline(message.stage)
            case Down():
                self._child_down(message)
            case _ if self._phase is Phase.SERVING:
                self._report(message)
            case _:
                # What a run reports meanwhile is heard again when its parts are taken over.
                logger.trace("{} is {}: not taken: {!r:.200}", self, self._phase.value, message)
        return None

    def on_turn_end(self) -> None:
        """Send what this turn decided as one batch."""
        self._flush()
        self._watch_idle()

    # ── Requests and reports ──────────────────────────────────────────────────────────────────────

    def _request(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        self._used = True
        if self._phase is Phase.LOADING:
            if _is_full(len(self._stash), STASH_MAX, request):
                why = f"the session is still being read, and {len(self._stash)} requests wait for that already"
                raise _unavailable(why, request)
            self._late_stops.expect(request, self._ports.clock.wall())
            self._stash.append((request, reply))
            return
        if self._phase is Phase.FAILED:
            self._request_while_failed(request, reply)
            return
        if _is_full(len(self._sent), SENT_MAX, request):
            raise _unavailable(f"the store does not keep up: {len(self._sent)} steps wait for it already", request)
        self._serve(request, reply)

    def _serve(self, request: OutsideRequest, reply: ReplyFuture[Any] | None, *, goes_on: bool = False) -> None:
        """Decide a request that was taken. Where it `goes_on`, the next one is stored in one batch with it."""
        at = self._ports.clock.wall()
        kept, refused, answer = self._late_stops.entry(request), False, None
        requests = self._protocol.state.book
        try:
            answer = self._protocol.requests.decide(request, reply, kept)
        except CountermandError as error:
            refused = True
            if requests.in_doubt(request.id):
                # Not before the deletion is durable: if it is not stored, there is an answer to this request.
                self._late_stops.expect(request, at)
                self._wait_for_last([RefuseDeleted(request, reply, error)])
            else:
                self._refuse(request, reply, error)
        # A request does not wait for the rest of the turn: its halts leave now. Nor does its answer wait for a
        # backlog of reports: they go on when it is given.
        if not refused:
            # Ahead of that: one that is answered by it waits for nothing, whatever else has left with it.
            told = None if requests.in_doubt(request.id) else answer
            if isinstance(told, Stopped):
                told = _without(told, self._unstored())
            self._late_stops.expect(request, at, told, self._protocol.state.generation)
        if goes_on:
            return
        self._flush()
        if self._sent:
            self._answering = self._number
            self._mailbox.hold()

    def _refuse(self, request: OutsideRequest, reply: ReplyFuture[Any] | None, error: CountermandError) -> None:
        self._late_stops.refused(request)
        if reply is None:
            logger.info(
                "{} refused {} {}, which nobody asked about: {}", self, type(request).__name__, request.id, error
            )
        else:
            reply.try_set_exception(error)

    def _report(self, message: Any) -> None:
        self._used = True
        match message:
            case CallEnded() | RunFinished() | StrayFound() | StrayEnded() if message.address.run in self._replaced:
                # What it had started may not have been taken. Its end is told again behind that, when it is taken over;
                # so is what it left behind, which would be found twice.
                logger.trace("{} does not take it from an actor that is replaced: {!r:.200}", self, message)
            case ProcessReport():
                self._process_report(message)
            case ProcessStarted() | ProcessOutput() | ProcessExited() | ProcessRemaining() | ProcessEnded():
                # From the port itself: a tree that was taken over from a process actor that failed.
                self._tree_news(message)
            case PluginsMended():
                self._protocol.plugins_mended(self._plugins.isolation)
            case _ if isinstance(message, RunReport):
                self._protocol.report(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    def _status(self) -> SessionStatus:
        status = self._protocol.state.status()
        if self._phase is Phase.FAILED:
            return msgspec.structs.replace(status, state=SessionActivity.STORE_FAILED)
        return status

    # ── Batches ───────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        """Do what the step takes away, send its records, and keep what it starts until they are durable."""
        if self._phase is not Phase.SERVING:
            return
        self._send_step()
        # A Stop that the store does not have yet is to be told durable first: behind a deletion, that were new life.
        if not self._late_stops.wait and self._protocol.deletion.erase_if_proven():
            # In a batch of its own: what ended before it is published as it was written.
            self._send_step()
        self._say_quiet()

    def _send_step(self) -> None:
        if self._protocol.state.step.is_empty:
            return
        step = self._protocol.state.take_step()
        later = step.later
        if step.has_records:
            # Handed in first: the store can write while the halts are told.
            self._number += 1
            events = tuple(step.events)
            requests = frozenset(row.request_id for row in step.requests)
            runs = tuple(step.runs.values())
            self._sent.append(Sent(self._number, events, step.later, requests, runs))
            batch = Batch(
                session=self._session,
                incarnation=self._incarnation,
                number=self._number,
                events=events,
                row=self._protocol.state.row if step.row_changed else None,
                runs=runs,
                calls=tuple(step.calls.values()),
                processes=tuple(step.processes.values()),
                receipts=tuple(step.receipts.values()),
                pending=tuple(step.pending.values()),
                waiting=tuple(step.waiting.values()),
                unwaiting=tuple(step.unwaiting),
                requests=tuple(step.requests),
                attachments=tuple(step.attachments),
                erase=step.erase,
            )
            self._ports.store.commit(batch, self.actor_ref)
            later = []
        for effect in step.now:
            self._carry_out_now(effect)
        if self._sent and later:
            # Nothing to write, but what it rests on may not be durable yet.
            self._wait_for_last(later)
        elif later:
            self._stops_are_durable(later)
            self._carry_out_later(later)

    def _wait_for_last(self, later: list[Later]) -> None:
        """Keep what is written nowhere until the last batch is durable. It counts as one: a repeat has a bound too."""
        last = self._sent[-1]
        self._sent.append(Sent(last.number, (), later, last.requests))

    def _committed(self, committed: Committed) -> None:
        if self._phase is not Phase.SERVING:
            return
        while self._sent and self._sent[0].number <= committed.number:
            sent = self._sent.popleft()
            self._publish(sent)
            self._stops_are_durable(sent.later)
            self._carry_out_later(effect for effect in sent.later if not isinstance(effect, ShowEphemeral))
        if committed.number >= self._taken_up:
            self._finish_restore()
        if committed.number >= self._answering:
            self._let_reports_go_on()

    def _finish_restore(self) -> None:
        """All runs that were open when the session was read are closed now, and that is on record."""
        self._ended = {}
        self._cause = None
        self._trees_ended = {}
        self._after_crash = False
        self._retry_s = RETRY_FIRST_S

    def _let_reports_go_on(self) -> None:
        """An answer was given. Behind a backlog it is taken first: the asker's thread needs the interpreter for it."""
        if len(self._mailbox) <= BACKLOG_MIN:
            self._mailbox.release()
        else:
            self._ports.clock.call_later(ANSWER_TAKEN_S, self.actor_ref, GoOn(self._answering))

    def _stops_are_durable(self, effects: Iterable[Later]) -> None:
        """Answers are about to be given: Stops among them are on record, and who was told otherwise is to hear it."""
        for effect in effects:
            if not isinstance(effect, AnswerRequest) or not isinstance(effect.request, Stop):
                continue
            told = self._late_stops.on_record(effect.request)
            if told is not None:
                assert isinstance(effect.answer, Stopped), "the answer to a Stop"
                self._protocol.stops.durable(told, effect.answer)

    def _stop_waited(self, message: StopOverdue | StopKept) -> None:
        if isinstance(message, StopKept):
            self._late_stops.journalled(message.request_id)
        elif self._late_stops.handle_overdue(message, in_stash=self._phase is Phase.LOADING):
            self._answer_overdue(message.request_id)

    def _answer_overdue(self, request_id: str) -> None:
        """Answer a Stop that has waited as long as it may, where it is: in the stash, or in a batch that was sent."""
        if self._phase is Phase.LOADING:
            for index, (request, reply) in enumerate(self._stash):
                if isinstance(request, Stop) and request.id == request_id:
                    self._stash[index] = request, None
                    self._late_stops.answer(request_id, _unknown(request), reply)
            return
        for sent in self._sent:
            for effect in sent.later:
                if isinstance(effect, AnswerRequest) and effect.request.id == request_id:
                    stop, answer = effect.request, effect.answer
                    assert isinstance(stop, Stop), "nothing else waits with a bound"
                    assert isinstance(answer, Stopped), "the answer to a Stop"
                    answer = self._not_in_doubt(stop, answer, self._unstored())
                    self._late_stops.answer(request_id, answer, effect.reply)
                elif isinstance(effect, RefuseDeleted) and effect.request.id == request_id:
                    assert isinstance(effect.request, Stop), "nothing else waits with a bound"
                    self._late_stops.answer(request_id, _unknown(effect.request), effect.reply)
        self._mailbox.release()

    def _publish(self, sent: Sent) -> None:
        """Make a batch known, and show what is not stored in its place: behind its seq, it would be late."""
        publisher, rest = self._ports.publisher, sent.events
        for effect in sent.later:
            if isinstance(effect, ShowEphemeral):
                earlier = sum(1 for event in rest if event.seq <= effect.event.seq)
                if earlier:
                    publisher.publish(self._session, rest[:earlier])
                    rest = rest[earlier:]
                publisher.ephemeral(effect.event)
        if rest:
            publisher.publish(self._session, rest)

    def _say_quiet(self) -> None:
        # What this turn has decided and not sent yet is not written either.
        written = not (self._sent or self._protocol.state.step.has_records or self._stash or self._late_stops.wait)
        if self._draining and not self._said_quiet and self._protocol.state.quiet and written and self.parent:
            self._said_quiet = True
            tell(self.parent, Quiet(self._session, self._drain_number))

    # ── Effects ───────────────────────────────────────────────────────────────────────────────────

    def _carry_out_now(self, effect: Now) -> None:
        match effect:
            case HaltRun():
                self._halt_run(effect)
            case RefuseCall():
                self._tell_runner(effect.run_id, PermitRefused(effect.call_id, effect.result))
            case CloseCall():
                self._tell_runner(effect.run_id, CallClosed(effect.call_id, effect.result, effect.provenance))
            case MakeWait():
                self._tell_runner(effect.run_id, PermitWaiting(effect.call_id))
            case RefuseSpawn():
                self._tell_runner(effect.run_id, SpawnRefused(effect.call_id, effect.process_id, effect.limit))
            case TakeTree():
                self._tell_runner(effect.address.run, TreeTaken(effect.address.call or "", effect.process_id))
                self._host_tree(effect.address, effect.process_id, None, None, effect.listener)
            case RefuseHandOver():
                fail(effect.handed, effect.error)
            case RefuseRequest():
                if effect.reply is not None:
                    effect.reply.try_set_exception(effect.error)
            case KillTree():
                self._end_tree(effect.process_id, Halt(effect.provenance, effect.grace_s))
            case EndTrees():
                self._end_trees(effect)
            case NothingToSteer():
                self._tell_runner(effect.run_id, Steered(effect.request_id, ()))
            case KeepDeadLetter():
                at = self._ports.clock.wall()
                self._ports.dead_letters.add(effect.kind, effect.why, effect.address, at, effect.shown)

    def _carry_out_later(self, effects: Iterable[Later]) -> None:
        for effect in effects:
            match effect:
                case AnswerRequest():
                    if effect.reply is not None:
                        effect.reply.try_set(effect.answer)
                case StartRun():
                    self._start_run(effect.run_id)
                case GivePermit():
                    deadline_s = self._ports.settings.call_deadline_s
                    self._tell_runner(effect.run_id, Permit(effect.call_id, effect.cell, effect.token, deadline_s))
                case GiveSpawn():
                    self._tell_runner(effect.run_id, effect.permit)
                case GiveSteering():
                    self._tell_runner(effect.run_id, effect.steered)
                case ReturnCredit():
                    record = self._protocol.state.record(effect.run_id)
                    if record is not None:
                        record.credit.give(effect.size)
                case ShowEphemeral():
                    self._ports.publisher.ephemeral(effect.event)
                case ForgetPart():
                    self._forget_part(effect)
                case ForgetSession():
                    self._ports.processes.forget_session(self._session)
                    self._protocol.state.book.forgotten()
                    self._lift_quarantine()
                case AdoptRun():
                    self._adopt_run(effect.run_id)
                case SpawnOwn():
                    self._spawn_own(effect)
                case SayHandedOver():
                    self._protocol.trees.handed_over(effect.process_id)
                    settle(effect.handed, None)
                case AdoptTree():
                    owned = self._protocol.state.owned.get(effect.process_id)
                    if owned is not None:
                        self._host_tree(owned.address, owned.id, None, None, None)
                case RefuseDeleted():
                    self._refuse(effect.request, effect.reply, effect.error)
                case ForgetStop():
                    self._ports.store.forget_stop(self._session, effect.request_id)

    def _forget_part(self, part: ForgetPart) -> None:
        match part.kind:
            case "process":
                self._ports.processes.forget(part.key)
            case "stray":
                self._ports.strays.forget(part.key)
            case _:
                self._ports.executor.forget(part.key)

    def _start_run(self, run_id: str) -> None:
        record = self._protocol.runs.claim_start(run_id)
        if record is None:
            # A fence came between the decision and the commit: the agent is never started.
            return
        start = RunStart(
            agent=self._plugins.agent(record.info.agent),
            agent_name=record.info.agent,
            token=record.token,
            credit=record.credit,
            thread=self._protocol.state.thread.copy(),
            inputs=record.info.inputs,
            deadline_s=self._ports.settings.run_deadline_s,
        )
        self._start_runner(record, start, None)

    def _adopt_run(self, run_id: str) -> None:
        record = self._protocol.state.record(run_id)
        if record is None or not record.runner_parts():
            return
        if run_id in self._replaced:
            self._to_adopt.add(run_id)
            return
        provenance = record.info.provenance or record.token.provenance
        assert provenance is not None, "only what is closed is taken over"
        open_parts = record.runner_parts()
        adopting = Adopting(
            agent=any(part.kind == PartKind.AGENT for part in open_parts),
            calls=tuple(part.id for part in open_parts if part.kind == PartKind.CALL),
            processes=tuple(
                (part.id, record.processes[part.id].row.call_id) for part in open_parts if part.kind == PartKind.PROCESS
            ),
            strays=tuple(record.processes[part.id].row for part in open_parts if part.kind in STRAYS),
            halt=Halt(provenance, self._grace_s(record.mode)),
        )
        self._start_runner(record, None, adopting)

    def _start_runner(self, record: RunRecord, start: RunStart | None, adopting: Adopting | None) -> None:
        self._child_number += 1
        key = f"{record.id}#{self._child_number}"
        self._runners[record.id] = key
        self.start_child(RunActor, self._ports, self._plugins, record.address, start, adopting, key=key)

    def _halt_run(self, halt: HaltRun) -> None:
        grace_s = self._grace_s(halt.mode)
        self._end_parts(halt.run_id, Halt(halt.provenance, grace_s))
        deadline = KillDeadline(halt.run_id, halt.stage, self._incarnation)
        self._ports.clock.call_later(grace_s + self._ports.settings.kill_s, self.actor_ref, deadline)

    def _grace_s(self, mode: Mode) -> float:
        return 0.0 if mode is Mode.IMMEDIATE else self._ports.settings.grace_s

    def _tell_runner(self, run_id: str, message: object) -> None:
        child = self.children.get(self._runners.get(run_id, ""))
        if child is not None:
            tell(child, message)

    def _end_parts(self, run_id: str, halt: Halt) -> None:
        """End what a closed run has, by way of its actor, behind whose spawns the kill comes.

        Where it has none, it gets one when the store takes writes. Its end does not wait for that: the ports have its
        parts. Nothing is spawned behind this, since its gates are shut; and its executions were told by their tokens.
        """
        record = self._protocol.state.record(run_id)
        if self._runners.get(run_id, "") in self.children:
            self._tell_runner(run_id, halt)
        elif record is not None and (parts := record.runner_parts()):
            for part in parts:
                # What was spawned for the session is in the record of its run until that is closed.
                if part.kind == PartKind.PROCESS and part.id not in self._protocol.state.owned:
                    self._ports.processes.kill(part.id, halt.grace_s)
            self._ports.strays.end(record.address, halt.grace_s)

    # ── Process trees of the session ──────────────────────────────────────────────────────────────

    def _spawn_own(self, spawn: SpawnOwn) -> None:
        address, process_id = spawn.address, spawn.process_id
        self._tell_runner(address.run, TreeTaken(address.call or "", process_id))
        owned = self._protocol.trees.claim_spawn(process_id)
        if owned is not None:
            self._host_tree(address, process_id, spawn.spec, owned.cell, spawn.listener)

    def _host_tree(
        self,
        address: Address,
        process_id: str,
        spec: SpawnSpec | None,
        cell: Cell[None] | None,
        listener: Callable[[ProcessNews], None] | None,
    ) -> None:
        """Start the actor of a tree of the session: it spawns `spec`, or takes the tree over."""
        self._child_number += 1
        key = f"{process_id}#{self._child_number}"
        self._trees[process_id] = TreeHost(key, listener)
        self.start_child(
            ProcessActor,
            self._ports,
            address,
            process_id,
            spec,
            cell,
            owner=Owner.SESSION,
            listener=listener,
            key=key,
        )

    def _process_report(self, report: ProcessReport) -> None:
        self._protocol.report(report)
        if isinstance(report.news, ProcessEnded) and report.process_id not in self._protocol.state.owned:
            self._trees.pop(report.process_id, None)

    def _tree_news(self, news: ProcessNews) -> None:
        owned, host = self._protocol.state.owned.get(news.process_id), self._trees.get(news.process_id)
        if host is not None and host.listener is not None:
            host.listener(news)
        if owned is not None:
            self._process_report(ProcessReport(owned.address, owned.id, news))

    def _end_trees(self, end: EndTrees) -> None:
        grace_s = self._grace_s(end.mode)
        for process_id in end.process_ids:
            self._end_tree(process_id, Halt(end.provenance, grace_s))
        deadline = TreesDeadline(end.stage, self._incarnation)
        self._ports.clock.call_later(grace_s + self._ports.settings.kill_s, self.actor_ref, deadline)

    def _end_tree(self, process_id: str, halt: Halt) -> None:
        """By way of its actor, behind whose spawn the kill comes; where there is none, it was spawned long ago."""
        host = self._trees.get(process_id)
        child = self.children.get(host.key) if host is not None else None
        if child is not None:
            tell(child, halt)
        else:
            self._ports.processes.kill(process_id, halt.grace_s)

    def _tree_down(self, process_id: str, host: TreeHost) -> None:
        """The actor of a tree is gone. The tree is not ended for that: this actor takes it over."""
        owned = self._protocol.state.owned.get(process_id)
        if owned is None:
            del self._trees[process_id]
            return
        host.key = ""
        if owned.cell is not None:
            # If it has not passed the cell by now, nobody will spawn it, and the port says so.
            owned.cell.close()
        self._ports.processes.adopt(process_id, self.actor_ref)
        if owned.row.ending is not None:
            self._ports.processes.kill(process_id, self._grace_s(owned.mode))

    def _child_down(self, down: Down) -> None:
        run_id = down.key.partition("#")[0]
        host = self._trees.get(run_id)
        if host is not None and host.key == down.key:
            if self._phase is Phase.SERVING:
                self._tree_down(run_id, host)
            return
        if self._replaced.get(run_id) == down.key:
            del self._replaced[run_id]
            if run_id in self._to_adopt and self._phase is Phase.SERVING:
                self._to_adopt.discard(run_id)
                self._adopt_run(run_id)
            return
        if self._runners.get(run_id) != down.key:
            return
        del self._runners[run_id]
        if self._phase is Phase.SERVING:
            self._protocol.runs.lost(run_id, down.failure)

    # ── Loading, and a store that fails ───────────────────────────────────────────────────────────

    def _fresh_protocol(self) -> Protocol:
        ports = self._ports
        protocol = Protocol(
            self._session,
            ports.settings,
            ports.clock,
            ports.ids,
            ports.executor.call,
            self._plugins.isolation,
            lambda: self._plugins.unavailable(ports.settings.agent),
        )
        if getattr(self, "_draining", False):
            protocol.drain()
        return protocol

    def _loaded(self, loaded: Loaded) -> None:
        if self._phase is Phase.SERVING:
            return
        # Actors of runs from before: their parts are taken over from the ports, by fresh ones.
        for run_id, key in self._runners.items():
            child = self.children.get(key)
            if child is not None:
                child.stop(block=False)
                self._replaced[run_id] = key
        self._runners.clear()
        self._to_adopt.clear()
        for host in self._trees.values():
            child = self.children.get(host.key)
            if child is not None:
                child.stop(block=False)
        self._trees.clear()
        self._undone.clear()
        self._protocol = self._fresh_protocol()
        self._incarnation = self._ports.ids.new("inc")
        self._number = self._answering = 0
        self._sent.clear()
        self._phase = Phase.SERVING
        self._was_read = True
        row = loaded.snapshot.row
        if self._quarantined and self._cause is None and row is not None and row.deleted:
            # Somebody asked for it; one that was restarted for its failures may go on failing.
            self._lift_quarantine()
        # The first cause stands until it is on record, however often that has to be tried.
        self._cause = self._cause or recovery_cause(self._ports.clock.wall())
        self._mailbox.release()
        for name in loaded.snapshot.left_out:
            at = self._ports.clock.wall()
            self._ports.dead_letters.add("row", "it is stored, and cannot be read", None, at, name)
        self._protocol.restoration.restore(
            loaded.snapshot,
            self._cause,
            quarantined=self._quarantined,
            ended=self._ended,
            stops=self._late_stops.take_up(loaded.snapshot.kept),
            trees=self._trees_ended,
            crashed=self._after_crash,
        )
        self._flush()
        # Until what was just decided is durable, a further failure has to know what had ended these runs.
        self._taken_up = self._number
        if not self._sent:
            self._finish_restore()
        # What came ahead of a Stop of the journal is stored in one batch with it: behind a crash between the two nobody
        # would know that the Stop came later.
        kept = [index for index, (request, _) in enumerate(self._stash) if self._late_stops.keeps(request)]
        last, index = kept[-1] if kept else 0, 0
        while self._stash:
            request, reply = self._stash.popleft()
            if not isinstance(request, Inspect):
                self._serve(request, reply, goes_on=index < last)
            elif reply is not None:
                reply.try_set(self._status())
            index += 1

    def _load_failed(self, error: str) -> None:
        if self._phase is Phase.SERVING:
            return
        logger.error("{} cannot be read: {}", self, error)
        self._phase = Phase.FAILED
        stash, self._stash = self._stash, deque()
        for request, reply in stash:
            if not isinstance(request, Inspect):
                self._request_while_failed(request, reply)
            elif reply is not None:
                reply.try_set(self._status())
        self._try_later()

    def _commit_failed(self, failed: CommitFailed) -> None:
        """The store does not take writes: fence in memory, halt, answer what can be answered, and come back."""
        if self._phase is not Phase.SERVING:
            return
        at = self._ports.clock.wall()
        logger.error(
            "session {}: batch {} was not stored: {} ({} messages in the thread)",
            self._session,
            failed.number,
            failed.error,
            len(self._protocol.state.thread.messages()),
        )
        provenance = Provenance(source="store.failure", reason=failed.error or "no reason given", initiated_at=at)
        self._phase = Phase.FAILED
        self._mailbox.release()
        self._cause = self._cause or provenance
        self._protocol.abandon(provenance)
        for key in self._runners.values():
            child = self.children.get(key)
            if child is not None:
                tell(child, Halt(provenance, self._ports.settings.grace_s))
        for owned in self._protocol.state.owned.values():
            if not owned.durable:
                # Whether it is the session's is not known; nobody was told that it is, and it ends with its run.
                self._trees_ended[owned.id] = provenance
                self._end_tree(owned.id, Halt(provenance, self._ports.settings.grace_s))
        step = self._protocol.state.take_step()
        requests = frozenset(row.request_id for row in step.requests)
        self._sent.append(Sent(self._number + 1, (), step.later, requests, tuple(step.runs.values())))
        sent_before, self._sent = self._sent, deque()
        unstarted = {effect.run_id for sent in sent_before for effect in sent.later if isinstance(effect, StartRun)}
        for info in (info for sent in sent_before for info in sent.runs):
            begun = info.started_at is not None and info.run_id not in unstarted
            if info.provenance is not None and (begun or is_of_stop(info.provenance)):
                self._ended.setdefault(info.run_id, info)
            elif not begun:
                self._undone[info.run_id] = info
        unstored = frozenset[str]().union(*(sent.requests for sent in sent_before))
        self._protocol.state.book.drop(unstored)
        for sent in sent_before:
            unfit = sent.requests if failed.unfit and sent.number == failed.number else frozenset()
            for effect in sent.later:
                if isinstance(effect, AnswerRequest):
                    why = failed.error if effect.request.id in unfit else None
                    self._answer_unstored(effect, why, unstored)
                elif isinstance(effect, RefuseDeleted) and isinstance(effect.request, Stop):
                    self._answer_kept(effect.request, _unknown(effect.request), effect.reply)
                elif isinstance(effect, RefuseDeleted) and effect.reply is not None:
                    why = "the store did not take the deletion that this request came behind"
                    effect.reply.try_set_exception(_unavailable(why, effect.request))
        for request, reply in self._protocol.deletion.call_off():
            if reply is not None:
                reply.try_set_exception(_unavailable("the store does not take writes", request))
        if failed.unfit:
            self._count_unfit()
        self._try_later()

    def _count_unfit(self) -> None:
        now = self._ports.clock.monotonic()
        self._unfit.append(now)
        while self._unfit[0] < now - UNFIT_WINDOW_S:
            self._unfit.popleft()
        if len(self._unfit) > UNFIT_MAX and not self._quarantined:
            logger.error("session {}: {} of its batches were unfit: quarantined", self._session, len(self._unfit))
            self._quarantined = True

    def _lift_quarantine(self) -> None:
        """The session is deleted: nothing is left of it that could fail again."""
        self._quarantined = False
        self._unfit.clear()
        self.tell_parent(Erased(self._session))

    def _answer_unstored(self, effect: AnswerRequest, unfit: str | None, unstored: frozenset[str]) -> None:
        """Answer a request whose batch was not stored: a Stop has happened, anything else has not.

        `unfit` says why its batch never can be stored, where it is that. `unstored` are the requests that are not on
        record: any other is a repeat, whose answer is, and has waited behind what is not.
        """
        request, answer, reply = effect.request, effect.answer, effect.reply
        if isinstance(request, Stop) and request.id not in unstored:
            if reply is not None:
                reply.try_set(answer)
            return
        if isinstance(request, Stop) and isinstance(answer, Stopped):
            self._answer_kept(request, self._not_in_doubt(request, answer, unstored), reply)
            return
        superseded = answer.superseded_run_id if isinstance(answer, Accepted) else None
        if superseded in self._undone:
            superseded = None
        if reply is None:
            return
        if unfit is None:
            reply.try_set_exception(_unavailable("the store does not take writes", request, superseded))
        else:
            reply.try_set_exception(_cannot_be_stored(request, unfit, superseded))

    def _request_while_failed(self, request: OutsideRequest, reply: ReplyFuture[Any] | None) -> None:
        if not isinstance(request, Stop):
            if reply is not None:
                reply.try_set_exception(_unavailable("the store does not take writes", request))
            return
        at = self._ports.clock.wall()
        try:
            answer = self._late_stops.given(request)
            stored = self._protocol.state.book.known(request, at) if answer is None else None
            if stored is not None:
                if reply is not None:
                    reply.try_set(stored)
                return
            self._answer_kept(request, answer or self._decide_unstored(request, at), reply)
        except CountermandError as error:
            if reply is not None:
                reply.try_set_exception(error)

    def _decide_unstored(self, stop: Stop, at: float) -> Stopped:
        """Say what a Stop comes to while the store fails, and do of it what needs no store."""
        if not self._was_read or self._protocol.state.book.in_doubt(stop.id):
            return _unknown(stop)
        answer = self._protocol.stops.answer_unstored(stop, self._ended, self._undone)
        provenance = provenance_of(stop, at)
        if stop.scope is Scope.SESSION and stop.run_id is None:
            for process_id in self._protocol.state.owned:
                self._end_tree(process_id, Halt(provenance, self._grace_s(stop.mode)))
        for info in self._protocol.stops.cancelled_unstored(stop, answer, provenance, self._undone):
            self._ended.setdefault(info.run_id, info)
        for record in self._protocol.stops.killed_unstored(stop, answer):
            self._end_parts(record.id, Halt(record.token.provenance or provenance, 0.0))
        return answer

    def _not_in_doubt(self, stop: Stop, answer: Stopped, unstored: frozenset[str]) -> Stopped:
        """What a Stop may be told before it is on record: where a deletion is not stored, an earlier answer stands."""
        return _unknown(stop) if self._protocol.state.book.in_doubt(stop.id) else _without(answer, unstored)

    def _unstored(self) -> frozenset[str]:
        """The requests that were decided, and are not on record yet."""
        now = (row.request_id for row in self._protocol.state.step.requests)
        return frozenset(now).union(*(sent.requests for sent in self._sent))

    def _answer_kept(self, stop: Stop, answer: Stopped, reply: ReplyFuture[Any] | None) -> None:
        """Keep a Stop that is not stored, to be handled again when the store is back, and answer it."""
        ended = None if answer.run_id is None else self._ended.get(answer.run_id)
        cause = ended.provenance if ended is not None else self._cause
        if cause is not None and cause.requested_by == stop.id:
            # It was the first itself.
            cause = None
        self._late_stops.store_failed(stop, answer, reply, self._protocol.state.generation, cause, self._cause)

    def _try_later(self) -> None:
        self._ports.clock.call_later(self._retry_s, self.actor_ref, TryStore())
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    # ── Passivation ───────────────────────────────────────────────────────────────────────────────

    @property
    def _at_rest(self) -> bool:
        """True when nothing is lost if this actor ends: all that it knows is written, and nobody answers to it."""
        return (
            self._phase is Phase.SERVING
            and self._protocol.state.at_rest
            and not self._sent
            and not self._protocol.state.step.has_records
            and not self._late_stops.wait
            and not self._late_stops.answers_wait
            and not self.children
        )

    def _watch_idle(self) -> None:
        idle_s = self._ports.settings.passivate_s
        if idle_s is None or self._idle_watched or self.parent is None or not self._at_rest:
            return
        # One timer at a time, and none is moved: a session in use only notes that it was used.
        self._idle_watched = True
        self._used = False
        self._ports.clock.call_later(idle_s, self.actor_ref, IdleOver())

    def _idle_over(self) -> None:
        if self._used or not self._at_rest:
            self._idle_watched = False
        elif self.parent is not None:
            tell(self.parent, Idle(self._session))

    def _passivate(self) -> None:
        assert self.parent is not None, "only a supervisor passivates"
        # What others than the supervisor have sent is taken first.
        leaves = self._at_rest and not len(self._mailbox)
        tell(self.parent, Rested(self._session, leaves))
        if leaves:
            self._stop()
        else:
            self._idle_watched = False

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────────

    def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
        """What is left in the closed mailbox goes to the next incarnation, by way of the router."""
        requests = [envelope for envelope in envelopes if isinstance(envelope.message, Request | Inspect)]
        if self.parent is not None:
            for envelope in requests:
                route = Route(self._session, envelope.message, returned=True)
                self.parent.actor_inbox.put(Envelope(route, envelope.reply_to))
            envelopes = [envelope for envelope in envelopes if not isinstance(envelope.message, Request | Inspect)]
        if envelopes:
            super().hand_back(envelopes)

    def _hand_back_stash(self) -> None:
        """Requests that waited for the session to be read go on too, before what is left in the mailbox."""
        if self.parent is None:
            return
        stash, self._stash = self._stash, deque()
        for request, reply in stash:
            if reply is not None and self._taken is not None:
                # It is the next incarnation's to answer, so it is not failed with this one.
                self._taken.pop(reply, None)
            self.parent.actor_inbox.put(Envelope(Route(self._session, request, returned=True), reply))

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """A request that was told to the closed mailbox goes to the next incarnation too."""
        message = envelope.message
        if self.parent is not None and self._mailbox.closed and isinstance(message, OutsideRequest):
            tell(self.parent, Route(self._session, message, returned=True))
        else:
            super().on_undelivered(envelope)

    def on_stop(self) -> None:
        """Shut every gate: what this incarnation started is taken over by the next, already ending."""
        self._hand_back_stash()
        self._late_stops.answer_all_held()
        at = self._ports.clock.wall()
        reason = "the session's actor was stopped"
        self._protocol.abandon(Provenance(source="actor.failure", reason=reason, initiated_at=at))

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,  # noqa: ARG002  # Pykka's signature
    ) -> None:
        """Shut every gate at once: nothing of this generation begins while the session is being restarted."""
        self._hand_back_stash()
        self._late_stops.answer_all_held()
        name = exception_type.__name__ if exception_type else "failure"
        reason = f"the session's actor failed: {name}: {exception_value}"
        cause = Provenance(source="actor.failure", reason=reason, initiated_at=self._ports.clock.wall())
        if self._quarantined:
            # Nobody starts this session again by himself, and a tree has to have an owner: those that are about to be
            # spawned, and those of an incarnation before, which this one may not have read.
            grace_s = self._ports.settings.grace_s
            for process_id in self._protocol.state.owned:
                self._end_tree(process_id, Halt(cause, grace_s))
            self._ports.processes.kill_session(self._session, grace_s)
        self._protocol.abandon(cause)


def _is_full(count: int, limit: int, request: OutsideRequest) -> bool:
    """True if one request more would be beyond a bound, which for a Stop lies further away."""
    return count >= (limit + STOPS_MORE_MAX if isinstance(request, Stop) else limit)


def _unknown(stop: Stop) -> Stopped:
    """The answer to a Stop of a session that could not be read: what runs in it is not known, and is not guessed."""
    return Stopped(UNKNOWN, None, stop.id, None, durable=False)


def _without(answer: Stopped, unstored: frozenset[str]) -> Stopped:
    """Leave out of an answer the messages whose acceptance is not on record: their senders may send them again."""
    withdrawn = tuple(message for message in answer.withdrawn if message.id not in unstored)
    return msgspec.structs.replace(answer, withdrawn=withdrawn)


def _cannot_be_stored(request: OutsideRequest, why: str, superseded: str | None) -> Invalid:
    but = f"; run {superseded} was stopped all the same" if superseded else ""
    return Invalid(
        f"what the request brought about cannot be stored{but}",
        expected="text and numbers that the store can hold",
        got=f"{type(request).__name__} {request.id}: {why}",
        remedy="do not send it again as it is; the log of the supervisor names what was left out",
    )


def _unavailable(why: str, request: OutsideRequest, superseded: str | None = None) -> StoreUnavailable:
    return StoreUnavailable(
        why,
        superseded_run_id=superseded,
        expected="a store that takes writes",
        got=f"{type(request).__name__} {request.id}",
        remedy="send the same object again when the store is back: it has one effect",
    )
