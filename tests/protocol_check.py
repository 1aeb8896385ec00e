"""One protocol of which every step is checked, and carried out when it is durable.

Requests and reports come in here. The steps become durable in order, at any delay, and what had to wait for that is
carried out then. After every step the laws are checked on all that was decided so far.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from actors.errors import CountermandError
from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.messages import (
    RunReport,
    ToolResult,
)
from actors.model import Address, Event, Isolation, Message
from actors.ports import Settings
from actors.protocol.protocol import Protocol
from actors.protocol.step import (
    AnswerRequest,
    GivePermit,
    GiveSpawn,
    HaltRun,
    Later,
    OpenBarrier,
    StartRun,
    Step,
)
from actors.requests import (
    Accepted,
    OutsideRequest,
    Reply,
    Stop,
    Stopped,
)
from actors.run_status import TERMINAL, RunStatus
from tests.rendered_thread import check_renderings
from tests.sim.clock import SimClock
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


@dataclass(slots=True)
class SimTree:
    """A process tree as its actor would see it."""

    address: Address
    process_id: str
    cell: Cell[None] | None = None
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
        self.protocol = Protocol(
            session,
            Settings(agent="a", queue_max=QUEUE_MAX, barrier=barrier, **settings),
            self.clock,
            self.ids,
            lambda callback: callback(),
            TOOLS,
        )
        self.laws = LogLaws()
        self.laws.answers = ModelAnswerLaws(repeats=True)
        self.uncommitted: deque[Step] = deque()
        self.answers: dict[str, Reply] = {}
        self.requests: list[OutsideRequest] = []
        self.started: set[str] = set()
        self.agents: dict[str, Address] = {}
        self.calls: list[SimCall] = []
        self.begun: list[tuple[str, str]] = []
        self.providers: dict[str, str] = {}
        self.trees: list[SimTree] = []
        self.halts: list[HaltRun] = []
        self.reports: list[RunReport] = []
        self.rendered: list[Message] = []

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────────

    def new(self, kind: str) -> str:
        """Return a fresh name."""
        self.numbers[kind] += 1
        return f"{kind}{self.numbers[kind]}"

    def took(self) -> list[Event]:
        """Take the step that was just decided: check it, and keep what has to wait for its commit."""
        step = self.protocol.state.take_step()
        for effect in step.now:
            if isinstance(effect, HaltRun):
                self.halts.append(effect)
        self.laws.take(step.events)
        self.check_thread()
        self.uncommitted.append(step)
        for later in step.later:
            if isinstance(later, GivePermit):
                self.check_permit(later)
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

    def commit(self, steps: int = 1) -> None:
        """Let the oldest steps become durable, and carry out what waited for it."""
        if self.uncommitted:
            self.heed()
        for _ in range(min(steps, len(self.uncommitted))):
            self.durable(self.uncommitted.popleft())

    def durable(self, step: Step) -> None:
        """A step is durable: carry out what waited for it."""
        for effect in step.later:
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
        return self.handle(report)

    def handle(self, report: RunReport) -> list[Event]:
        self.heed()
        self.protocol.report(report)
        return self.took()
