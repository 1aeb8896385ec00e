"""The decisions of a session alone: any requests and any reports, true, stale, repeated or out of nowhere.

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
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import File
from actors.dead_letters import DeadLetters
from actors.errors import CountermandError, QueueFull, RequestReused
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, Emitted, ProgressData, TextData
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
    LateRefused,
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
from actors.model import Address, Event, How, Isolation, Outcome, Provenance, RunInfo, StopOutcome
from actors.ports import KeptStop, SessionRow, Settings, Snapshot, SpawnSpec, WaitingRow
from actors.protocol.protocol import Protocol
from actors.protocol.request_book import RequestBook
from actors.protocol.run_record import AGENT
from actors.protocol.step import (
    AnswerRequest,
    GivePermit,
    GiveSpawn,
    HaltRun,
    KeepDeadLetter,
    Later,
    OpenBarrier,
    ReturnCredit,
    StartRun,
)
from actors.protocol.stops import CUTOFFS_MAX
from actors.questions import Question
from actors.requests import (
    Accepted,
    Answer,
    Delete,
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
from actors.thread import Thread
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
    """

    def __init__(self, barrier: Any = "forced") -> None:
        self.clock = SimClock()
        self.protocol = Protocol(
            SESSION,
            Settings(agent="a", queue_max=QUEUE_MAX, barrier=barrier),
            self.clock,
            SimIds(),
            lambda callback: callback(),
            TOOLS,
        )
        self.laws = LogLaws()
        self.laws.answers = ModelAnswerLaws(repeats=True)
        self.uncommitted: deque[list[Later]] = deque()
        self.answers: dict[str, Reply] = {}
        self.requests: list[OutsideRequest] = []
        self.started: set[str] = set()
        self.agents: dict[str, Address] = {}
        self.calls: list[SimCall] = []
        self.begun: list[tuple[str, str]] = []
        self.trees: list[SimTree] = []
        self.halts: list[HaltRun] = []
        self.reports: list[RunReport] = []
        self.numbers: Counter[str] = Counter()

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
        self.laws.check_thread()
        self.uncommitted.append(step.later)
        for later in step.later:
            if isinstance(later, GivePermit):
                self.check_permit(later)
        self.check()
        self.clock.elapse(0.25)
        return step.events

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
            for effect in self.uncommitted.popleft():
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
        self.protocol.report(report)
        return self.took()

    def end_call(self, call: SimCall, how: int) -> None:
        """End a call as its execution would: by its cell."""
        at = self.clock.wall()
        result = ToolResult(Outcome.FINISHED, "done")
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
        image = File(b"an image", "image/png", "cat.png")
        message = NewMessage(
            id=self.new("m"), content="look", agent=agent, origin=origin, policy=policy, attachments=(image,)
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
            assert not self.protocol.state.queue.parked
            assert not len(self.protocol.state.queue)

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
        address = Address(SESSION, generation, run)
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
                thought = {"type": "thinking", "thinking": "hm", "signature": "signed"}
                self.report(Said(address, BlockData(answer=answer, data=thought), 1))
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
            self.report(CallStarted(call.address, self.clock.wall()))

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
        assert self.protocol.state.quiet, f"not settled: {list(self.protocol.state.ending.values())}"
        assert not self.protocol.state.late, "something that has ended is waited for"
        assert not len(self.protocol.state.queue)
        self.laws.finished()
        assert not self.protocol.state.barrier()


which = st.sampled_from((0, 0, 0, 1, 2, 5))
ages = st.sampled_from((None, None, None, 0.0, 1.0, 30.0))
policies = st.sampled_from((None, "interrupt", "enqueue", "enqueue", "steer", "steer", "reject", "rollback"))


def op(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.tuples(st.just(name), *arguments)


requests = st.one_of(
    op("new", policies, st.sampled_from(("user", "bot")), st.booleans(), ages),
    op("new", policies, st.sampled_from(("user", "bot")), st.booleans(), ages),
    op(
        "stop",
        st.sampled_from(("graceful", "immediate")),
        st.sampled_from((None, None, 0, 1, 2, 3, 4)),
        st.sampled_from((None, "withdraw", "park", "keep")),
        ages,
    ),
    op("ask_for", st.sampled_from((None, "a", "other")), st.sampled_from(("user", "bot")), policies),
    op("resume"),
    op("withdraw", which),
    op("again", which),
    op("reuse", which),
    op("reply", which, st.sampled_from((True, True, False, None))),
)
reports = st.one_of(
    op("say", which, st.sampled_from((WORD, WORD, ProgressData(shown={"text": "word "})))),
    op("call", which, st.sampled_from(("held", "free", "none"))),
    op("call", which, st.sampled_from(("held", "free"))),
    op("begin_answer", which, st.integers(0, 2), st.sampled_from((PROVIDER, PROVIDER, "p"))),
    op("tell", which, st.booleans()),
    op("hand_off", which, st.sampled_from(("a", "other"))),
    op("save", which, st.sampled_from((1, None))),
    op("question", which, st.sampled_from(("ask", ALLOWED)), st.sampled_from((None, None, 0))),
    op("call", which, st.sampled_from(("held", "free", "none")), which),
    op("answer", which, which, st.sampled_from(("text", "block", "end", "end", "leave"))),
    op("start_call", which),
    op("start_call", which),
    op("end_call", which, st.integers(0, 2)),
    op("expire_call", which),
    op("give_up", which),
    op("spawn", which),
    op("process", which, st.sampled_from(("started", "output", "exited", "ended", "lost"))),
    op("steer", which),
    op("finish", which, st.booleans()),
    op("expire_run", which),
    op("lose_run", which),
    op("kill_deadline", which, st.booleans()),
    op("repeat_report", which),
    op("strange", st.integers(0, 5), st.sampled_from(("run_0001", "run_0002", "run_of_nobody"))),
)
commits = op("commit", st.integers(1, 5))
RUNS: Final[tuple[Op, ...]] = (("new", None, "user", True, None), ("commit", 9))
BEGINNINGS: Final[tuple[tuple[Op, ...], ...]] = (
    (),
    RUNS,
    (*RUNS, ("call", 0, "held"), ("commit", 9), ("start_call", 0)),
    (*RUNS, ("begin_answer", 0, 2, PROVIDER), ("answer", 0, 0, "block"), ("answer", 0, 0, "text"), ("commit", 9)),
    (*RUNS, ("begin_answer", 0, 2), ("answer", 0, 0, "end"), ("commit", 9)),
    (*RUNS, ("begin_answer", 0, 2), ("answer", 0, 0, "leave"), ("commit", 9)),
)
"""What a script may begin with: drawn one by one, few runs come as far."""
scripts = st.builds(
    lambda begins, then: [*begins, *then],
    st.sampled_from(BEGINNINGS),
    st.lists(st.one_of(requests, reports, reports, commits, commits), min_size=25, max_size=70),
)


@pytest.mark.timeout(600)  # a failure is worth the time that it takes to shrink
@settings(max_examples=900, deadline=None)
@given(script=scripts)
def test_any_requests_and_any_reports_keep_the_laws(script: list[Op]) -> None:
    driver = Driver()
    for one in script:
        driver.play(one)
    driver.finish()


@pytest.mark.parametrize("then", ["end", "leave", "stop"])
def test_l2_calls_of_an_answer_are_granted_with_its_end_and_not_otherwise(then: str) -> None:
    driver = Driver()
    for one in (("new", None, "user", True, None), ("commit", 9), ("begin_answer", 0, 2), ("commit", 9)):
        driver.play(one)
    assert [call.cell for call in driver.calls] == [None, None]
    driver.play(("stop", "graceful", None, None, None) if then == "stop" else ("answer", 0, 0, then))
    driver.commit(9)
    assert [call.cell is not None for call in driver.calls] == [then == "end"] * 2
    assert set(driver.laws.outcomes.values()) == (set() if then == "end" else {"not_started"})
    # Once more, and late: nothing of it counts.
    for what in ("end", "leave", "text", "block"):
        driver.play(("answer", 0, 0, what))
    driver.commit(9)
    assert [call.cell is not None for call in driver.calls] == [then == "end"] * 2
    driver.finish()


@pytest.mark.parametrize("over", ["end", "leave"])
def test_l6_a_part_of_an_answer_that_is_not_open_is_a_dead_letter(over: str) -> None:
    driver = Driver()
    for one in (("new", None, "user", True, None), ("commit", 9), ("begin_answer", 0, 0)):
        driver.play(one)
    address, ((_, answer),) = driver.address(0), driver.begun
    assert address is not None

    def refused(data: Emitted) -> None:
        driver.protocol.report(Said(address, data, 7))
        step = driver.protocol.state.step
        assert [effect.kind for effect in step.now if isinstance(effect, KeepDeadLetter)] == [str(data.event_kind)]
        assert ReturnCredit(address.run, 7) in step.later
        assert not driver.took()

    refused(AnswerBegunData(answer=answer))
    driver.play(("answer", 0, 0, over))
    for data in (
        TextData(text="late", answer=answer),
        BlockData(answer=answer, data={"type": "thinking"}),
        AnswerEndedData(answer=answer),
    ):
        refused(data)
        refused(msgspec.structs.replace(data, answer="of nobody"))
    driver.finish()


@pytest.mark.timeout(600)
@settings(max_examples=300, deadline=None)
@given(script=scripts)
def test_any_requests_and_any_reports_keep_the_laws_behind_a_strict_barrier(script: list[Op]) -> None:
    driver = Driver("strict")
    for one in script:
        driver.play(one)
    driver.finish()


def started(driver: Driver, **message: Any) -> str:
    """Start a run, and its agent."""
    answer = driver.request(NewMessage(id=driver.new("m"), content="go", **message))
    assert isinstance(answer, Accepted)
    assert answer.run_id is not None
    driver.commit(99)
    return answer.run_id


@pytest.mark.parametrize("waiting", ["park", "keep", "withdraw"])
def test_what_waits_when_a_run_is_stopped_is_parked_kept_or_withdrawn(waiting: str) -> None:
    driver = Driver()
    first = started(driver)
    driver.op_new("enqueue", "bot", True, None)
    driver.op_stop("graceful", None, waiting, None)
    assert driver.protocol.state.active is None
    driver.op_finish(0, True)
    active = driver.protocol.state.active
    if waiting == "keep":
        assert active is not None
        assert active.info.inputs == ("m2",)
    else:
        assert active is None
        assert driver.protocol.state.queue.parked == (waiting == "park")
    assert driver.laws.status[first] is RunStatus.CANCELLED
    if waiting == "park":
        # Others queue up behind what is parked; a person's message takes all of it along.
        driver.op_new("interrupt", "bot", True, None)
        assert driver.protocol.state.active is None
        answer = driver.request(NewMessage(id="mine", content="go on"))
        assert isinstance(answer, Accepted)
        assert [one.id for one in answer.with_messages] == ["m2", "m3"]
    driver.finish()


def test_l4_steering_messages_that_were_not_pulled_keep_their_own_turns_and_their_place() -> None:
    driver = Driver()
    started(driver)
    for merge in (True, False, True):
        driver.op_new("steer", "bot", merge, None)
    driver.op_new("enqueue", "bot", True, None)
    driver.op_stop("graceful", None, "park", None)
    assert [[row.message.id for row in turn.rows] for turn in driver.protocol.state.queue.turns] == [
        ["m2"],
        ["m3"],
        ["m4", "m5"],
    ]
    driver.finish()


def test_l4_a_stop_that_was_kept_is_decided_before_anything_of_a_restored_session_starts() -> None:
    over = RunInfo(
        session=SESSION,
        run_id="run_1",
        status=RunStatus.COMPLETED,
        agent="a",
        generation=1,
        receipt_id="rcpt_1",
        started_at=1.0,
        ended_at=2.0,
    )
    queued = RunInfo(
        session=SESSION, run_id="run_2", status=RunStatus.QUEUED, agent="a", generation=None, receipt_id="rcpt_2"
    )
    waiting = WaitingRow(SESSION, NewMessage(id="m", content="go", origin="bot"), 1, "run_2", False, 3.0)
    snapshot = Snapshot(
        SESSION, SessionRow(SESSION, generation=1, seq=0), Thread(), runs=(over, queued), waiting=(waiting,)
    )
    driver = Driver()
    # The run that is over settles while it is taken up, and what waits would start then.
    stop = Stop(id="x", source="user.test", reason="meanwhile")
    driver.protocol.restoration.restore(snapshot, None, stops=[KeptStop(SESSION, stop, 4.0)])
    events = driver.protocol.state.take_step().events
    assert [event.data["message_id"] for event in events if event.kind == "session.message_returned"] == ["m"]
    assert driver.protocol.state.active is None
    assert "run.started" not in [event.kind for event in events]


@pytest.mark.parametrize(
    ("outcome", "run_id", "source"),
    [
        (None, None, "user.test"),
        (StopOutcome.STOPPED, "run_2", "user.test"),
        (StopOutcome.STOPPING, "run_2", "store.failure"),
        (StopOutcome.STOPPING, "run_1", "store.failure"),
        (StopOutcome.NOTHING_RUNNING, None, "store.failure"),
        (StopOutcome.ALREADY_OVER, "run_2", "store.failure"),
    ],
)
def test_l5_what_had_ended_before_a_kept_stop_is_not_ended_by_it(
    outcome: StopOutcome | None, run_id: str | None, source: str
) -> None:
    """A crash has come, and the Stop that the journal kept is all that tells of the failure ahead of it."""
    by_a_person = Provenance(source="user.test", reason="the first stop", initiated_at=1.5)
    ending, running = (
        RunInfo(SESSION, f"run_{n}", status, "a", n, f"rcpt_{n}", started_at=float(n))
        for n, status in ((1, RunStatus.CANCELLING), (2, RunStatus.IN_PROGRESS))
    )
    ending = msgspec.structs.replace(ending, provenance=by_a_person)
    failure = Provenance(source="store.failure", reason="the disk failed", initiated_at=3.0)
    kept = KeptStop(
        SESSION,
        Stop(id="x", source="user.test", reason="meanwhile"),
        4.0,
        outcome,
        run_id,
        run_id and f"rcpt_{run_id[-1]}",
        generation=2,
        cause=failure if outcome not in (None, StopOutcome.STOPPED) else None,
    )
    driver = Driver()
    row = SessionRow(SESSION, generation=2, seq=0)
    driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread(), runs=(ending, running)), None, stops=[kept])
    events = driver.protocol.state.take_step().events
    first = next(event for event in events if event.kind == "run.status" and event.run_id == "run_2")
    assert first.data["provenance"]["source"] == source
    assert not [event for event in events if event.kind == "run.started"], "a Stop came: nothing begins anew"


@pytest.mark.parametrize("failure", ["store.failure", "actor.failure"])
def test_l5_what_failed_before_a_kept_stop_ends_the_run_whose_start_was_stored_after_all(failure: str) -> None:
    """The Stop joined the run that a message had taken over from, and that has a cause of its own."""
    taken_over = Provenance(source="session.new_message", reason="a new message took over", initiated_at=1.5)
    before, after = (
        RunInfo(SESSION, f"run_{n}", RunStatus.IN_PROGRESS, "a", n, f"rcpt_{n}", started_at=float(n)) for n in (1, 2)
    )
    before = msgspec.structs.replace(before, status=RunStatus.CANCELLING, provenance=taken_over)
    kept = KeptStop(
        SESSION,
        Stop(id="x", source="user.test", reason="meanwhile"),
        4.0,
        StopOutcome.STOPPING,
        "run_1",
        "rcpt_1",
        generation=2,
        cause=taken_over,
        failure=Provenance(source=failure, reason="it failed", initiated_at=3.0),
    )
    driver = Driver()
    row = SessionRow(SESSION, generation=2, seq=0)
    driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread(), runs=(before, after)), None, stops=[kept])
    step = driver.protocol.state.take_step()
    ends = [event.data for event in step.events if event.kind == "run.status" and event.run_id == "run_2"]
    assert [end["provenance"]["source"] for end in ends] == [failure]
    assert not [event for event in step.events if event.kind == "run.started"], "a Stop came: nothing begins anew"
    (answered,) = (msgspec.json.decode(row.answer) for row in step.requests if row.request_id == "x")
    assert (answered["outcome"], answered["run_id"]) == ("stopping", "run_1"), "its answer stands"


def test_l14_only_so_many_requests_wait_for_a_session_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.protocol.deletion.DELETIONS_MAX", 2)
    driver = Driver()
    started(driver)
    first, second, third = (Delete(source="user.test", reason=f"reason {number}") for number in range(3))
    # They wait for the agent, which has not ended.
    driver.protocol.requests.decide(first, None)
    driver.protocol.requests.decide(second, None)
    with pytest.raises(QueueFull):
        driver.protocol.requests.decide(third, None)
    assert [request for request, _ in driver.protocol.deletion.call_off()] == [first, second]


def test_l9_a_stop_that_comes_too_late_for_its_run_changes_nothing() -> None:
    driver = Driver()
    first = started(driver)
    driver.op_finish(0, True)
    second = started(driver)
    answer = driver.request(Stop(id="x", source="user.test", reason="late", run_id=first, sent_at=driver.clock.wall()))
    assert isinstance(answer, Stopped)
    assert answer.outcome == "already_over"
    assert driver.protocol.state.active is not None
    assert driver.protocol.state.active.id == second
    # Not even the cutoff: a message that left before that Stop is taken.
    late = NewMessage(id="m", content="and", policy="enqueue", sent_at=driver.clock.wall() - 60)
    accepted = driver.request(late)
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    driver.finish()


def test_l4_a_stop_from_a_clock_that_is_ahead_cuts_off_only_what_was_sent_before_it_came() -> None:
    driver = Driver()
    # Milliseconds where seconds are meant.
    stop = Stop(id="x", source="user.test", reason="enough", sent_at=driver.clock.wall() * 1000)
    assert isinstance(driver.request(stop), Stopped)
    driver.clock.elapse(1.0)
    accepted = driver.request(NewMessage(id="m", content="go", sent_at=driver.clock.wall()))
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    driver.finish()


@pytest.mark.parametrize("restored", [False, True])
def test_l4_a_clock_that_is_set_back_returns_no_message_that_is_sent_after_it(restored: bool) -> None:
    driver = Driver()
    driver.request(Stop(id="x", source="user.test", reason="enough", origin="user"))
    driver.clock.elapse(-3600.0)
    if restored:
        row = driver.protocol.state.row
        driver = Driver()
        driver.clock.elapse(-3600.0)
        driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread()), None)
        driver.protocol.state.take_step()
    protocol, sent_at = driver.protocol, driver.clock.wall()
    driver.clock.elapse(1.0)
    accepted = protocol.requests.decide(NewMessage(id="m", content="go", sent_at=sent_at), None)
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    # The next Stop draws a line of its own, by the clock as it is.
    protocol.requests.decide(Stop(id="y", source="user.test", reason="enough", origin="user"), None)
    protocol.state.take_step()
    driver.clock.elapse(1.0)
    for name, at, returned in (("n", sent_at, "stopped_before_arrival"), ("o", driver.clock.wall(), None)):
        accepted = protocol.requests.decide(NewMessage(id=name, content="go", sent_at=at), None)
        assert isinstance(accepted, Accepted)
        assert accepted.returned == returned


def test_l14_the_cutoffs_of_a_session_are_bounded_and_the_oldest_goes_first() -> None:
    driver = Driver()
    for number in range(CUTOFFS_MAX + 2):
        driver.request(Stop(id=f"x{number}", source="user.test", reason="enough", origin=f"o{number}"))
    assert list(driver.protocol.state.cutoffs) == [f"o{number}" for number in range(2, CUTOFFS_MAX + 2)]
    driver.finish()


def test_l10_what_the_book_forgot_is_in_the_row_of_its_batch() -> None:
    driver = Driver()
    driver.protocol.state.book = RequestBook(SESSION, kept=1, kept_s=1e9)
    driver.protocol.requests.decide(Stop(source="user.test", reason="one"), None)
    assert driver.protocol.state.row.forgotten_to == 0.0
    driver.protocol.state.take_step()
    driver.protocol.requests.decide(NewMessage(content="two"), None)
    step = driver.protocol.state.take_step()
    assert step.row_changed
    assert driver.protocol.state.row.forgotten_to > 0.0
    again = Driver()
    again.protocol.restoration.restore(Snapshot(SESSION, driver.protocol.state.row, Thread()), None)
    assert again.protocol.state.book.forgotten_to == driver.protocol.state.row.forgotten_to


def test_l5_a_part_that_a_lost_actor_left_is_still_waited_for() -> None:
    driver = Driver()
    run = started(driver)
    driver.op_lose_run(0)
    assert driver.laws.status[run] is RunStatus.FAILED
    assert run not in driver.laws.ended
    record = driver.protocol.state.record(run)
    assert record is not None
    assert [part.id for part in record.open_parts()] == [AGENT]
    driver.finish()
    assert driver.laws.ended[run]


def test_l1_what_was_refused_where_it_came_in_is_counted_and_changes_nothing_else() -> None:
    driver = Driver()
    run = started(driver)
    address = driver.agents[run]
    driver.request(Stop(id="x", source="user.test", reason="enough"))
    assert not driver.handle(LateRefused(address, {"text": 150, "call": 2}))
    driver.handle(LateRefused(address, {"text": 4}))
    record = driver.protocol.state.record(run)
    assert record is not None
    assert record.refused == {"text": 154, "call": 2}
    driver.finish()
    # Its receipt is filed: from now on these are dead letters alone.
    assert not driver.handle(LateRefused(address, {"text": 1}))


def test_a_letter_for_many_late_reports_counts_all_of_them() -> None:
    letters = DeadLetters(keep=2)
    letters.add("text", "late", None, 1.0, "150 of them", 150)
    letters.add("text", "late", None, 2.0)
    assert letters.counts() == {"text": 151}
    assert len(letters.recent()) == 2
