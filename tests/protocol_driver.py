"""Everybody around one protocol: any requests and any reports, true, stale, repeated or out of nowhere.

A `Driver` holds one `Protocol` and plays everybody around it: it commits the steps in order, at any delay, carries
their effects out, and sends reports as actors would, or as no actor should. After every step the laws are
checked on all that was decided so far; at the end everything is brought to its end, and has to have settled.
"""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from actors.errors import CountermandError, QueueFull, RequestReused
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, Emitted, MediaData, TextData
from actors.gate.cell import Cell, CellState
from actors.gate.token import CancelToken
from actors.messages import (
    AnswerLeft,
    CallEnded,
    CallExpired,
    CallGivenUp,
    CallRequested,
    CallStarted,
    HandOffRequested,
    MediaGiven,
    ProcessEnded,
    ProcessExited,
    ProcessNews,
    ProcessOutput,
    ProcessReport,
    ProcessStarted,
    RunExpired,
    RunFinished,
    RunReport,
    Said,
    SaveRequested,
    SpawnRequested,
    SteeringRequested,
    ToolResult,
    ToolSaid,
)
from actors.model import Address, Event, How, Isolation, Message, Outcome, Provenance
from actors.ports import Settings, SpawnSpec
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
from actors.questions import Question
from actors.requests import (
    Accepted,
    Answer,
    NewMessage,
    OutsideRequest,
    Reply,
    Resume,
    Resumed,
    Stop,
    Stopped,
    Withdraw,
)
from actors.run_status import TERMINAL, RunStatus
from tests.rendered_thread import BLOCKS, GIVEN, check_renderings
from tests.sim.asking import ALLOWED
from tests.sim.clock import SimClock
from tests.sim.ids import SimIds
from tests.sim.laws import LogLaws
from tests.sim.model_answers import PROVIDER, ModelAnswerLaws

SESSION: Final = "s"
QUEUE_MAX: Final = 4
TOOLS: Final = {"held": Isolation.THREAD, "free": Isolation.TASK}

Op = tuple[Any, ...]


WORD = TextData(text="word ")


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


class Driver:
    """Everybody around one protocol.

    Args:
        barrier: what happens at the kill deadline: ``forced`` or ``strict``.
        session: its name.
        beside: a driver of another session, with which it shares the clock, and what makes ids.
        settings: as of `Settings`.
    """

    def __init__(
        self, barrier: Any = "forced", session: str = SESSION, beside: Driver | None = None, **settings: Any
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

    def end_call(self, call: SimCall, how: int) -> None:
        """End a call as its execution would: by its cell."""
        at = self.clock.wall()
        made = GIVEN[:how] if how > 2 else ()
        kept = [one.kept() for one in made]
        result = ToolResult(
            Outcome.FINISHED, "done", parts=[part for _, part in kept], attachments=tuple(one for one, _ in kept)
        )
        call.over = True
        if call.cell is None or how == 2:
            # Its actor is gone, or its permit never came: the execution brought nothing.
            self.report(CallEnded(call.address, How.RAISED, at, None, note="gone"))
        elif call.cell.state is CellState.GRANTED or call.cell.state is CellState.VOID:
            call.cell.close()
            self.report(CallEnded(call.address, How.NOT_STARTED, at, None))
        elif call.cell.finish(result):
            self.report(CallEnded(call.address, How.RETURNED, at, result))
        else:
            self.report(CallEnded(call.address, How.RETURNED, at, None, late=how == 1))

    def end_tree(self, tree: SimTree, *, proven: bool = True) -> None:
        """Say the last word on a tree."""
        at = self.clock.wall()
        how = How.SIGKILL
        if tree.cell is None or not (tree.cell.start() or tree.cell.state is CellState.STARTED):
            how = How.NOT_STARTED
        tree.over = tree.over or proven
        self.news(tree, ProcessEnded(tree.process_id, how, proven, at, reaped=1))

    def news(self, tree: SimTree, news: ProcessNews) -> None:
        self.report(ProcessReport(tree.address, tree.process_id, news))

    # ── Playing ───────────────────────────────────────────────────────────────────────────────────

    def play(self, op: Op) -> None:
        """Do one thing; what it names is taken modulo what there is."""
        name, *rest = op
        getattr(self, f"op_{name}")(*rest)

    def op_commit(self, steps: int) -> None:
        self.commit(steps)

    def op_new(self, policy: Any, origin: str, merge: bool, age: float | None) -> None:
        full = len(self.protocol.state.queue) >= QUEUE_MAX
        sent_at = None if age is None else self.clock.wall() - age
        outcome = self.request(
            NewMessage(id=self.new("m"), content="do it", policy=policy, origin=origin, merge=merge, sent_at=sent_at)
        )
        if isinstance(outcome, QueueFull):
            assert full
        elif isinstance(outcome, Accepted) and outcome.queued:
            assert not full

    def op_ask_for(self, agent: str | None, origin: str, policy: Any) -> None:
        """A message for an agent, with an image."""
        message = NewMessage(
            id=self.new("m"), content="look", agent=agent, origin=origin, policy=policy, attachments=GIVEN[:2]
        )
        self.request(message)

    def op_stop(self, mode: Any, aim: int | None, waiting: Any, age: float | None) -> None:
        runs = list(self.laws.status) + [turn.run_id for turn in self.protocol.state.queue.turns]
        run_id = None if aim is None or not runs else runs[aim % len(runs)]
        sent_at = None if age is None else self.clock.wall() - age
        stop = Stop(
            id=self.new("x"),
            source="user.test",
            reason="why",
            mode=mode,
            run_id=run_id,
            waiting=waiting,
            sent_at=sent_at,
        )
        parked = self.protocol.state.queue.parked
        self.request(stop)
        if waiting == "park" and run_id is None:
            assert self.protocol.state.queue.parked == (parked or bool(len(self.protocol.state.queue)))

    def op_resume(self) -> None:
        outcome = self.request(Resume(id=self.new("r")))
        if isinstance(outcome, Resumed):
            queue, active = self.protocol.state.queue, self.protocol.state.active
            assert not queue.parked
            assert active is not None
            # Only what waits behind a message for another agent goes on waiting.
            assert not len(queue) or (queue.first_agent or self.protocol.state.agent) != active.info.agent

    def op_withdraw(self, which: int) -> None:
        messages = [one for one in self.requests if isinstance(one, NewMessage)]
        if messages:
            self.request(Withdraw(id=self.new("w"), message_id=messages[which % len(messages)].id))

    def op_again(self, which: int) -> None:
        if self.requests:
            self.request(self.requests[which % len(self.requests)])

    def op_reuse(self, which: int) -> None:
        if self.requests:
            other = NewMessage(id=self.requests[which % len(self.requests)].id, content="something else")
            assert isinstance(self.request(other), RequestReused)

    def address(self, which: int) -> Address | None:
        """The address of some agent: most often the newest."""
        known = list(self.agents.values())[::-1]
        return known[which % len(known)] if known else None

    def op_say(self, which: int, data: Emitted) -> None:
        address = self.address(which)
        if address is not None:
            self.report(Said(address, data, 5))

    def op_strange(self, generation: int, run: str) -> None:
        active = self.protocol.state.active
        address = Address(self.session, generation, run)
        if active is not None and address == active.address:
            return
        assert not self.report(Said(address, TextData(text="who is this"), 3))

    def op_call(self, which: int, tool: str, answer: int | None = None) -> None:
        address = self.address(which)
        if address is not None:
            call = SimCall(address.of_call(self.new("c")))
            self.calls.append(call)
            problem = None if tool in TOOLS else "there is no such tool"
            of = self.some_answer(address, answer) if answer is not None else None
            self.report(CallRequested(call.address, tool, {"n": 1}, problem=problem, answer=of))

    def op_question(self, which: int, tool: str, answer: int | None) -> None:
        """A call that a person has to answer, or to allow."""
        address = self.address(which)
        if address is not None:
            call = SimCall(address.of_call(self.new("c")))
            self.calls.append(call)
            of = self.some_answer(address, answer) if answer is not None else None
            asked = Question("May it?", approval=tool == ALLOWED)
            self.report(CallRequested(call.address, tool, {"n": 1}, question=asked, answer=of))

    def op_reply(self, which: int, allow: bool | None) -> None:
        """A person answers a call: most often the newest, whether it waits or not."""
        if self.calls:
            call_id = self.calls[::-1][which % len(self.calls)].address.call or ""
            self.request(Answer(id=self.new("a"), call_id=call_id, content="as I say", allow=allow))

    def some_answer(self, address: Address, which: int) -> str | None:
        """An answer of a run: most often the newest."""
        known = [answer for run, answer in self.begun if run == address.run][::-1]
        return known[which % len(known)] if known else None

    def op_begin_answer(self, which: int, calls: int, provider: str = "p") -> None:
        address = self.address(which)
        if address is not None:
            answer = self.new("answer")
            self.begun.append((address.run, answer))
            self.providers[answer] = provider
            self.report(Said(address, AnswerBegunData(answer=answer, provider=provider), 1))
            for _ in range(calls):
                self.op_call(which, "free", 0)

    def op_answer(self, which: int, place: int, what: str) -> None:
        address = self.address(which)
        answer = self.some_answer(address, place) if address is not None else None
        if address is None or answer is None:
            return
        match what:
            case "text":
                self.report(Said(address, TextData(text="word ", answer=answer), 1))
            case "block":
                thought = BLOCKS.get(self.providers[answer], BLOCKS[PROVIDER])
                self.report(Said(address, BlockData(answer=answer, data=thought), 1))
            case "media":
                attachment, part = GIVEN[0].kept()
                data = MediaData(answer=answer, part=part)
                self.report(MediaGiven(address, data, attachment, None, Future()))
            case "end":
                self.report(Said(address, AnswerEndedData(answer=answer), 1))
            case _:
                self.report(AnswerLeft(address, answer))

    def some_call(self, which: int) -> SimCall | None:
        known = [call for call in self.calls if call.cell is not None and not call.over][::-1]
        return known[which % len(known)] if known else None

    def op_start_call(self, which: int) -> None:
        call = self.some_call(which)
        if call is not None and call.cell is not None and call.cell.start():
            self.begins(call.address.run)
            self.report(CallStarted(call.address, self.clock.wall()))
            self.started_call(call)

    def started_call(self, call: SimCall) -> None:
        """The code of a call runs."""

    def op_tell(self, which: int, late: bool) -> None:
        """The tool of a call says something: while it runs, or whenever else."""
        call = self.some_call(which)
        if late and self.calls:
            call = self.calls[which % len(self.calls)]
        if call is not None and call.cell is not None and call.cell.state is not CellState.GRANTED:
            told = Future[None]()
            text = TextData(text=f"{call.address.fence} word", call=call.address.call)
            self.report(ToolSaid(call.address, text, told))

    def op_hand_off(self, which: int, agent: str) -> None:
        address = self.address(which)
        if address is not None:
            self.report(HandOffRequested(address, agent, None, Future()))

    def op_save(self, which: int, value: int | None) -> None:
        address = self.address(which)
        if address is not None:
            self.report(SaveRequested(address, {"key": value}, None, Future()))

    def op_end_call(self, which: int, how: int) -> None:
        call = self.some_call(which)
        if call is not None:
            self.end_call(call, how)

    def op_expire_call(self, which: int) -> None:
        call = self.some_call(which)
        if call is None or call.cell is None or call.token is None:
            return
        state, _ = call.cell.close()
        provenance = Provenance(source="tool.deadline", reason="too long")
        if state is not CellState.FINISHED and call.token.cancel(provenance):
            started = state is CellState.CLOSED
            self.report(CallExpired(call.address, self.clock.wall(), provenance, started))

    def op_give_up(self, which: int) -> None:
        call = self.some_call(which)
        if call is not None:
            self.report(CallGivenUp(call.address))

    def op_spawn(self, which: int) -> None:
        call = self.some_call(which)
        if call is not None and call.cell is not None and call.cell.state is CellState.STARTED:
            tree = SimTree(call.address, self.new("p"))
            self.trees.append(tree)
            self.report(SpawnRequested(tree.address, tree.process_id, SpawnSpec(("sh",), "sh")))

    def op_process(self, which: int, what: str) -> None:
        known = [tree for tree in self.trees if tree.cell is not None and not tree.over][::-1]
        if not known:
            return
        tree, at = known[which % len(known)], self.clock.wall()
        if tree.cell is None or not (tree.cell.start() or tree.cell.state is CellState.STARTED):
            self.end_tree(tree)
            return
        match what:
            case "started":
                self.news(tree, ProcessStarted(tree.process_id, 7, at))
            case "output":
                self.news(tree, ProcessOutput(tree.process_id, "stdout", "a line\n"))
            case "exited":
                self.news(tree, ProcessExited(tree.process_id, 0, at, 0.1, "", 0, lossy=False, held=False))
            case _:
                self.end_tree(tree, proven=what == "ended")

    def op_steer(self, which: int) -> None:
        address = self.address(which)
        if address is not None:
            self.report(SteeringRequested(address, self.numbers["steer"]))

    def op_finish(self, which: int, returned: bool) -> None:
        address = self.address(which)
        if address is not None:
            how, error = (How.RETURNED, None) if returned else (How.RAISED, "ValueError: no")
            self.report(RunFinished(address, how, self.clock.wall(), {"n": 1} if returned else None, error))

    def op_expire_run(self, which: int) -> None:
        address = self.address(which)
        if address is not None:
            provenance = Provenance(source="run.deadline", reason="too long")
            self.report(RunExpired(address, provenance))

    def op_lose_run(self, which: int) -> None:
        address = self.address(which)
        if address is not None:
            self.protocol.runs.lost(address.run, "RuntimeError: broke")
            self.took()

    def op_kill_deadline(self, which: int, stale: bool) -> None:
        if self.halts:
            halt = self.halts[::-1][which % len(self.halts)]
            self.protocol.runs.kill_deadline(halt.run_id, halt.stage - stale)
            self.took()

    def op_repeat_report(self, which: int) -> None:
        if self.reports:
            self.handle(self.reports[::-1][which % len(self.reports)])

    # ── The end ───────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Stop what runs, let every part end, and see that all is settled."""
        self.wind_up()
        self.check_settled()

    def wind_up(self) -> None:
        """Stop what runs, and let every part end."""
        self.request(Stop(id=self.new("x"), source="user.test", reason="the end"))
        self.commit(len(self.uncommitted))
        for tree in self.trees:
            if not tree.over:
                self.end_tree(tree)
        for call in self.calls:
            if call.cell is not None and not call.over:
                self.end_call(call, 0)
        for address in self.agents.values():
            self.report(RunFinished(address, How.RAISED, self.clock.wall(), None, "RunCancelled"))
        self.commit(len(self.uncommitted))

    def check_settled(self) -> None:
        """Everything has come to its end."""
        assert self.protocol.state.quiet, f"not settled: {list(self.protocol.state.ending.values())}"
        assert not self.protocol.state.late, "something that has ended is waited for"
        assert not len(self.protocol.state.queue)
        self.laws.finished()
        assert not self.protocol.state.barrier()


def started(driver: Driver, **message: Any) -> str:
    """Start a run, and its agent."""
    answer = driver.request(NewMessage(id=driver.new("m"), content="go", **message))
    assert isinstance(answer, Accepted)
    assert answer.run_id is not None
    driver.commit(99)
    return answer.run_id
