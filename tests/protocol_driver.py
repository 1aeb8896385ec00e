"""Everybody around one protocol: any requests and any reports, true, stale, repeated or out of nowhere.

A `Driver` plays everybody around its protocol: it sends requests, and reports as actors would, or as no actor should.
At the end everything is brought to its end, and has to have settled.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

from actors.errors import QueueFull, RequestReused
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, Emitted, MediaData, TextData
from actors.gate.cell import CellState
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
    Said,
    SaveRequested,
    SpawnRequested,
    SteeringRequested,
    ToolResult,
    ToolSaid,
)
from actors.model import Address, How, Outcome, Provenance
from actors.ports import SpawnSpec
from actors.questions import Question
from actors.requests import (
    Accepted,
    Answer,
    NewMessage,
    Resume,
    Resumed,
    Stop,
    Withdraw,
)
from tests.protocol_check import QUEUE_MAX, TOOLS, CheckedProtocol, SimCall
from tests.protocol_ports import SimTree
from tests.rendered_thread import BLOCKS, GIVEN
from tests.sim.asking import ALLOWED
from tests.sim.model_answers import PROVIDER

Op = tuple[Any, ...]
WORD: Final = TextData(text="word ")


class Driver(CheckedProtocol):
    """Everybody around one protocol. What it can do is a word of a script: see `play`."""

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
        if not tree.begin():
            how = How.NOT_STARTED
        tree.over = tree.over or proven
        self.news(tree, ProcessEnded(tree.process_id, how, proven, at, reaped=1))

    def news(self, tree: SimTree, news: ProcessNews) -> None:
        if not isinstance(news, ProcessOutput):
            tree.news.append(news)
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
        if call is not None and call.cell is not None and call.token is not None and call.cell.start():
            self.executions.begins(call.address.call or "", call.token)
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
        provenance = Provenance(source="tool.deadline", reason="too long", initiated_at=self.clock.wall())
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
        if not tree.begin():
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
            provenance = Provenance(source="run.deadline", reason="too long", initiated_at=self.clock.wall())
            self.report(RunExpired(address, provenance))

    def op_lose_run(self, which: int) -> None:
        address = self.address(which)
        if address is not None:
            self.heed()
            self.protocol.runs.lost(address.run, "RuntimeError: broke")
            self.took()

    def op_kill_deadline(self, which: int, stale: bool) -> None:
        if self.halts:
            halt = self.halts[::-1][which % len(self.halts)]
            self.heed()
            self.protocol.runs.kill_deadline(halt.run_id, halt.stage - stale)
            self.took()

    def op_repeat_report(self, which: int) -> None:
        if self.reports:
            self.handle(self.reports[::-1][which % len(self.reports)])

    def op_fail(self, what: str) -> None:
        """The store fails, or the session's actor; or the daemon is killed."""
        self.fail(what)
        self.read()

    # ── The end ───────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        """Stop what runs, let every part end, and see that all is settled."""
        self.wind_up()
        self.check_settled()

    def wind_up(self) -> None:
        """Stop what runs, and let every part end."""
        self.request(Stop(id=self.new("x"), source="user.test", reason="the end"))
        self.commit_all()
        for tree in self.trees:
            if not tree.over:
                self.end_tree(tree)
        for call in self.calls:
            if call.cell is not None and not call.over:
                self.end_call(call, 0)
        for address in self.agents.values():
            self.report(RunFinished(address, How.RAISED, self.clock.wall(), None, "RunCancelled"))
        self.commit_all()

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
