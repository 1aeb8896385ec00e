"""One session of which every step is checked, and carried out when it is durable.

Requests and reports come in here. The steps become durable in order, at any delay, and what had to wait for that is
carried out then. After every step the laws are checked on all that was decided so far. The store may fail, the actor of
the session may, and the daemon may be killed: then the session is read anew. The protocol is the real one, and so is
what sends its steps and adopts its runs; the mailbox, the threads and the ports are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from actors.errors import CountermandError
from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.hierarchy.batches import Batches
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.outage import Outage
from actors.hierarchy.run import Adoption
from actors.hierarchy.run_actors import RunActors
from actors.messages import (
    CallEnded,
    ChildFound,
    CommitFailed,
    Committed,
    ProcessNews,
    ProcessReport,
    RunFinished,
    RunReport,
    ToolResult,
)
from actors.model import Address, Event, Isolation, Message, Provenance
from actors.ports import Settings
from actors.protocol.protocol import Protocol
from actors.protocol.step import (
    AdoptRun,
    AnswerRequest,
    ForgetEnded,
    ForgetPart,
    ForgetStop,
    GivePermit,
    GiveSpawn,
    HaltRun,
    Keeper,
    Later,
    Now,
    OpenBarrier,
    StartRun,
    TellParent,
)
from actors.requests import (
    Accepted,
    OutsideRequest,
    Reply,
    Stop,
    Stopped,
)
from actors.run_status import TERMINAL, RunStatus
from tests.protocol_ports import Adopter, Executions, HeldStore, Trees
from tests.rendered_thread import check_renderings
from tests.sim.clock import SimClock
from tests.sim.disk import Disk
from tests.sim.ids import SimIds
from tests.sim.laws import LogLaws
from tests.sim.model_answers import ModelAnswerLaws

SESSION: Final = "s"
QUEUE_MAX: Final = 4
TOOLS: Final = {"held": Isolation.THREAD, "free": Isolation.TASK}


@dataclass(slots=True)
class SimCall:
    """A call as its actor would see it."""

    address: Address
    cell: Cell[ToolResult] | None = None
    token: CancelToken | None = None
    over: bool = False


class CheckedProtocol:
    """One protocol, and what it has decided.

    Args:
        barrier: what happens at the kill deadline: ``forced`` or ``strict``.
        session: its name.
        beside: the same of another session, with which it shares the clock, and what makes ids.
        settings: as of `Settings`.
    """

    def __init__(
        self, barrier: Any = "forced", session: str = SESSION, beside: CheckedProtocol | None = None, **settings: Any
    ) -> None:
        self.session = session
        self.clock: SimClock = SimClock() if beside is None else beside.clock
        self.ids: SimIds = SimIds() if beside is None else beside.ids
        self.numbers: Counter[str] = Counter() if beside is None else beside.numbers
        self.store: HeldStore = HeldStore(Disk() if beside is None else beside.store.disk)
        self.executions = Executions()
        self.trees = Trees(self.clock)
        self.ports: Any = SimpleNamespace(
            clock=self.clock,
            ids=self.ids,
            settings=Settings(agent="a", queue_max=QUEUE_MAX, barrier=barrier, **settings),
            executor=self.executions,
            processes=self.trees,
            strays=SimpleNamespace(adopt=_nothing, forget_ended=_nothing),
            store=self.store,
            publisher=self.store,
            hosts=None,
        )
        self.laws = _laws()
        self.answers: dict[str, Reply] = {}
        self.requests: list[OutsideRequest] = []
        self.started: set[str] = set()
        self.agents: dict[str, Address] = {}
        self.calls: list[SimCall] = []
        self.begun: list[tuple[str, str]] = []
        self.providers: dict[str, str] = {}
        self.halts: list[HaltRun] = []
        self.reports: list[RunReport] = []
        self.rendered: list[Message] = []
        self.be_made(None)
        self.live.begin()
        self.outage.over()

    def be_made(self, cause: Provenance | None) -> None:
        """Make the parts of a new actor of the session. `cause`: why the one before it ended; None: it did not fail."""
        plugins: Any = SimpleNamespace(isolation=TOOLS, refusal=_nothing, hosted=_nothing)
        owner: Any = SimpleNamespace(actor_ref=self, children={}, start_child=self._adopt, tell=_nothing)
        live = self.live = Incarnation(self.session, self.ports, plugins)
        self.late_stops = LateStops(self.session, self.clock, cast("Any", self.store), owner)
        self.run_actors = RunActors(owner, self.ports, plugins, live)
        self.batches = Batches(owner, self.ports, live, cast("Any", self), self.late_stops)
        self.outage: Outage = Outage(
            owner,
            self.ports,
            live,
            self.batches,
            self.run_actors,
            cast("Any", SimpleNamespace(end=_nothing)),
            cast("Any", SimpleNamespace(let_reports_go_on=_nothing)),
            self.late_stops,
            cast("Any", SimpleNamespace(count_unfit=_nothing)),
            cause,
        )
        # The last batch of the restoration.
        self.restored_by = 0

    @property
    def protocol(self) -> Protocol:
        """The protocol of the session, as it was last read."""
        return self.live.protocol

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def new(self, kind: str) -> str:
        """Return a fresh name."""
        self.numbers[kind] += 1
        return f"{kind}{self.numbers[kind]}"

    def took(self) -> list[Event]:
        """Take the step that was just decided: check it, and send it to the store."""
        step = self.protocol.state.step
        self.laws.take(step.events)
        self.check_thread()
        for later in step.later:
            if isinstance(later, GivePermit):
                self.check_permit(later)
        self.batches.send_step()
        self.check()
        self.clock.elapse(0.25)
        return step.events

    def check_thread(self) -> None:
        """What each provider would be given of the thread is what it takes, and is true."""
        self.laws.check_thread()
        assert self.laws.thread is not None, "it folds the thread"
        messages = self.laws.thread.messages()
        if messages and messages != self.rendered:
            self.rendered = messages
            check_renderings(messages)

    def heed(self) -> None:
        """What a session does before it takes a message."""

    def begins(self, run: str) -> None:
        """Code of a run, or a process of its, begins."""

    def check_permit(self, permit: GivePermit) -> None:
        """No permit is given while something of an earlier run holds the barrier."""
        active = self.protocol.state.active
        assert active is not None
        assert active.id == permit.run_id
        for record in (*self.protocol.state.ending.values(), *self.protocol.state.late.values()):
            held = [part for part in record.parts.values() if part.holds and not part.ended]
            assert record.forced or not held, f"a permit, while {held} of {record.id} hold"

    def check(self) -> None:
        """What holds after every step, besides the laws of the log."""
        protocol = self.protocol
        assert protocol.state.seq == self.laws.seq
        assert len(protocol.state.queue) <= QUEUE_MAX
        waiting = [row.message.id for row in protocol.state.queue.steering]
        waiting += [row.message.id for turn in protocol.state.queue.turns for row in turn.rows]
        assert waiting == self.laws.waiting, "what waits is what the log says, in order of acceptance"
        for record in protocol.state.ending.values():
            assert record.open_parts(), f"{record.id} has nothing left, and has not settled"
            assert record.token.cancelled
        if protocol.state.active is None and protocol.state.queue.turns:
            assert protocol.state.queue.parked or protocol.state.holding in protocol.state.ending, (
                "somebody waits for nothing"
            )
        assert protocol.state.thread.messages() == (self.laws.thread.messages() if self.laws.thread else [])

    def commit(self, batches: int = 1) -> None:
        """Let the oldest batches become durable, and carry out what waited for them."""
        for _ in range(min(batches, len(self.store.waiting))):
            self.heed()
            self.hear(self.store.step())

    def commit_all(self) -> None:
        """Let all become durable, and what comes of that."""
        while self.store.waiting:
            self.commit(len(self.store.waiting))

    def hear(self, news: Committed | ChildFound) -> None:
        """The store has done what was handed in first."""
        if isinstance(news, Committed):
            self.batches.committed(news.number)
            if news.number >= self.restored_by:
                self.outage.over()
            if not self.protocol.state.step.is_empty:
                self.took()

    # ── As the effects of a session ───────────────────────────────────────────────────────────────

    def carry_out_now(self, effects: Iterable[Now]) -> None:
        """See `Effects.carry_out_now`."""
        self.halts.extend(effect for effect in effects if isinstance(effect, HaltRun))

    def carry_out_later(self, effects: Iterable[Later]) -> None:
        """See `Effects.carry_out_later`."""
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: Later) -> None:
        """Carry out what waited for the commit."""
        match effect:
            case AnswerRequest():
                answer = effect.answer
                if isinstance(answer, Accepted):
                    # What became of it is news; the rest of the answer stands.
                    answer = msgspec.structs.replace(answer, fate=None)
                known = self.answers.setdefault(effect.request.id, answer)
                assert known == answer, "one request, two answers (L10)"
            case StartRun():
                record = self.protocol.runs.claim_start(effect.run_id)
                if record is not None:
                    assert record.id not in self.started, "an agent is started twice"
                    self.started.add(record.id)
                    self.agents[record.id] = record.address
                    self.executions.begins(record.id, record.token)
            case OpenBarrier():
                self.protocol.runs.open_barrier(effect)
                self.took()
            case GivePermit():
                for call in self.calls:
                    if call.address.call == effect.call_id:
                        call.cell, call.token = effect.cell, effect.token
            case GiveSpawn():
                for tree in self.trees:
                    if tree.process_id == effect.permit.process_id:
                        tree.cell = effect.permit.cell
            case ForgetPart(keeper=Keeper.EXECUTOR):
                self.executions.forget(effect.key)
            case ForgetPart():
                self.ports.processes.forget(effect.key)
            case ForgetEnded():
                self.live.forget_ended(effect.parts, effect.runs)
            case ForgetStop():
                self.late_stops.forget(effect.request_id)
            case TellParent():
                effect.reply.try_set(effect.report)
            case AdoptRun():
                self.run_actors.adopt(effect.run_id)
            case _:
                pass

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def request(self, request: OutsideRequest) -> Reply | CountermandError:
        """Send a request; check that a refusal changes nothing, and a repetition neither."""
        self.heed()
        protocol = self.protocol
        before = (protocol.state.seq, protocol.state.generation, len(protocol.state.queue))
        repeated = request in self.requests
        active = protocol.state.active
        statuses = dict(self.laws.status)
        try:
            protocol.requests.decide(request, None)
        except CountermandError as error:
            assert (protocol.state.seq, protocol.state.generation, len(protocol.state.queue)) == before, (
                "a refusal changed something"
            )
            events = self.took()
            assert not events
            return error
        answer = next(e.answer for e in protocol.state.step.later if isinstance(e, AnswerRequest))
        events = self.took()
        if repeated:
            assert not events, "a repeated request had an effect (L10)"
        else:
            self.requests.append(request)
            if isinstance(request, Stop) and isinstance(answer, Stopped):
                self.check_stop(request, answer, active.id if active else None, statuses)
            if isinstance(answer, Accepted) and not answer.queued and answer.returned is None:
                assert self.laws.inputs[answer.message_id] == answer.run_id
                assert answer.generation == protocol.state.generation
        return answer

    def check_stop(self, stop: Stop, answer: Stopped, active: str | None, before: dict[str, RunStatus]) -> None:
        """The outcome's word is right, and a Stop that is aimed touches only its run (L9)."""
        after = self.laws.status
        ended = {run for run, status in after.items() if before.get(run) != status and run in before}
        if stop.run_id is None:
            if active is not None:
                assert (answer.outcome, answer.run_id) == ("stopped", active)
            else:
                cancelling = [run for run, status in before.items() if status is RunStatus.CANCELLING]
                assert answer.outcome == ("stopping" if cancelling else "nothing_running")
            return
        assert ended <= {stop.run_id}, f"a Stop aimed at {stop.run_id} ended {ended} (L9)"
        status = before.get(stop.run_id)
        if status in TERMINAL:
            assert (answer.outcome, answer.fence_seq) == ("already_over", None)
            assert after == before
        elif status is RunStatus.CANCELLING:
            assert answer.outcome == "stopping"
        else:
            assert answer.outcome == "stopped"
            assert after[stop.run_id] in (RunStatus.CANCELLING, RunStatus.CANCELLED)

    # ── Reports ───────────────────────────────────────────────────────────────────────────────────

    def report(self, report: RunReport) -> list[Event]:
        """Send a report; reports are kept, so that they can be sent again."""
        self.reports.append(report)
        if isinstance(report, RunFinished | CallEnded):
            self.executions.ends(report.address.call or report.address.run, report)
        return self.handle(report)

    def handle(self, report: RunReport) -> list[Event]:
        self.heed()
        self.protocol.report(report)
        return self.took()

    # ── Failures ──────────────────────────────────────────────────────────────────────────────────

    def fail(self, what: str) -> None:
        """Let something fail.

        Args:
            what: ``store``: it loses what waits to be written. ``actor``: that of the session; what it has sent is
                written. ``daemon``: it is killed, and with it all that it executes.
        """
        match what:
            case "store":
                found = self.store.fail()
                self.outage.begin(CommitFailed(self.batches.number, "the disk failed"))
                for one in found:
                    self.hear(one)
            case "actor":
                cause = Provenance(source="actor.failure", reason="a bug", initiated_at=self.clock.wall())
                self.protocol.abandon(cause)
                while self.store.waiting:
                    self.store.step()
                self.be_made(cause)
            case _:
                self.store.fail()
                self.executions.crash()
                self.trees.crash()
                self.be_made(None)
        for call in self.calls:
            # What has not begun never does: its permit is gone.
            call.over = call.over or self.executions.token(call.address.call or "") is None
        self.halts.clear()
        self.reports.clear()
        self.store.follow(self.session)
        self.laws, self.rendered = _laws(), []
        self.laws.take(self.store.disk.events(self.session))

    def read(self) -> None:
        """Read the session anew, and restore it: see `Reading`."""
        self.live.begin()
        self.batches.begin()
        snapshot, unrecorded = self.store.disk.snapshot(self.session), self.outage.unrecorded
        unrecorded.undone.clear()
        unrecorded.cause = self.protocol.restoration.restore(
            snapshot,
            unrecorded.cause,
            ended=unrecorded.ended,
            stops=self.late_stops.restore(snapshot.kept),
            trees=unrecorded.trees_ended,
            crashed=unrecorded.after_crash,
        )
        decided = {row.request_id for row in (*snapshot.requests, *self.protocol.state.step.requests)}
        self.requests = [request for request in self.requests if request.id in decided]
        self.took()
        self.restored_by = self.batches.number
        if not self.batches.sent:
            self.outage.over()
        self.live.forget_ended()

    def _adopt(self, _: object, ports: Any, __: object, address: Address, ___: None, found: Adoption, key: str) -> None:
        """What a run has left is taken over by a new actor."""
        del key
        Adopter(ports, address, found, self.adopted)

    def adopted(self, address: Address, news: Any) -> None:
        """The actor that adopts a run reports."""
        if isinstance(news, ProcessNews):
            tree = next((tree for tree in self.trees if tree.process_id == news.process_id), None)
            self.report(ProcessReport(address if tree is None else tree.address, news.process_id, news))
        else:
            self.report(news)


def _laws() -> LogLaws:
    laws = LogLaws()
    laws.answers = ModelAnswerLaws(repeats=True)
    return laws


def _nothing(*_: object, **__: object) -> None:
    """Nothing of that is here."""
