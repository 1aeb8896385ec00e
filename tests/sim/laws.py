"""What every log has to satisfy, read from its events alone: the laws as one fold.

`LogLaws` takes events in the order of the log; after every single one of them all that is asserted here holds.
`finished` says what has to hold in addition when everything has settled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from actors.model import INSIDE_SOURCES, OUTSIDE_SOURCES, Event, Message
from actors.plugin.rendering import render_anthropic, render_openai
from actors.run_status import TERMINAL, TRANSITIONS, RunStatus
from actors.thread import Thread
from tests.provider_checker import check_anthropic, check_openai
from tests.sim.asking import AskingLaws
from tests.sim.model_answers import ModelAnswerLaws

SPOKEN: Final = frozenset(
    {
        "answer.begun",
        "answer.ended",
        "answer.left",
        "block",
        "media",
        "text",
        "tool.requested",
        "call.waiting",
        "call.answered",
        "tool.started",
        "tool.output",
        "process.started",
        "run.child",
        "run.output",
        "process.taken_back",
        "message",
        "session.state",
    }
)
"""What only an open run may have in the log (law L1); all else is the supervisor's own record of endings."""

ENDINGS: Final = frozenset(
    {
        "tool.ended",
        "process.ended",
        "run.child_ended",
        "run.status",
        "run.ended",
        "receipt.amended",
        "message.retracted",
    }
)

RENDERED_AT: Final = frozenset({"run.started", "run.ended", "session.fenced"})
"""When a client or a model reads the thread."""

SPEAKER: Final = re.compile(r"(run_\d+):(\d+) ")
"""What the scripted agent says: its run, and how many texts it said before."""


class LogLaws:
    """The laws of one session's log.

    Args:
        fold: also fold the thread, for `rendered`.
    """

    def __init__(self, *, fold: bool = True) -> None:
        self.seq = 0
        self.generation = 0
        self.status: dict[str, RunStatus] = {}
        self.run_generation: dict[str, int] = {}
        self.ended: dict[str, dict[str, object]] = {}
        self.calls: dict[str, str] = {}
        self.started_calls: set[str] = set()
        self.begun_elsewhere: set[str] = set()
        self.outcomes: dict[str, str] = {}
        self.spoken: set[str] = set()
        # The last event says that the session was deleted.
        self.deleted = False
        self.stopped: set[str] = set()
        self.processes: set[str] = set()
        self.dead: set[str] = set()
        # By run: the pids of the trees that it has handed over.
        self.handed: dict[str, set[int]] = {}
        self.waiting: list[str] = []
        # All that ever waited, each with the seq of its first event.
        self.waited: dict[str, int] = {}
        self.named: dict[str, str | None] = {}
        self.inputs: dict[str, str] = {}
        self.input_order: list[str] = []
        self.returned: dict[str, str] = {}
        self.retry_of: dict[str, str] = {}
        self.run_inputs: dict[str, list[str]] = {}
        self.closed_at: dict[str, int] = {}
        self.cause: dict[str, Any] = {}
        # By run, or None for trees of the session: what was named when permits went on without it.
        self.forced: dict[str | None, set[str]] = {}
        self.said: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.answers = ModelAnswerLaws()
        self.asking = AskingLaws()
        self.thread = Thread() if fold else None
        self._checked: list[Message] = []

    def take(self, events: Iterable[Event]) -> None:
        """Take in events, in order."""
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        assert event.seq == self.seq + 1, f"a gap: {event.seq} after {self.seq}"
        self.seq = event.seq
        assert not self.deleted or event.kind != "session.stop_durable", (
            "a session is begun anew to say what it was (L12)"
        )
        self.deleted = event.kind == "session.deleted"
        self._check_generation(event)
        self.answers.take(event)
        source = (event.data.get("provenance") or {}).get("source", "")
        assert not source or source in INSIDE_SOURCES or source.startswith(OUTSIDE_SOURCES), (
            f"{source} is no source (L5)"
        )
        self.asking.take(event)
        run = event.run_id
        match event.kind:
            case "run.started":
                assert run is not None
                self._move(run, RunStatus.IN_PROGRESS)
                newest = max(self.run_generation.values(), default=0)
                assert event.generation > newest, (
                    f"{run} starts in generation {event.generation}, as an earlier one (L1)"
                )
                self.run_generation[run] = event.generation
                self.run_inputs.setdefault(run, [])
                if "retry_of" in event.data:
                    before = self.retry_of[run] = event.data["retry_of"]
                    assert before not in self.spoken, f"{before} had text or a call, and is tried again (L4)"
                    assert before not in self.stopped, f"{before} was stopped, and is tried again (L12)"
                else:
                    assert event.data["inputs"] == self.run_inputs[run], "the inputs are what was logged before"
            case "run.status":
                assert run is not None
                self._status(event, run)
            case "run.ended":
                assert run is not None
                self._run_ended(event, run)
            case "text":
                assert run is not None
                self.spoken.add(run)
                self._said(event.data["text"], run)
                self._told(event.data)
            case "block" | "media":
                assert run is not None
                self.spoken.add(run)
            case "message":
                assert run is not None
                assert run not in self.closed_at, f"{event.data['id']} becomes an input of {run}, which is closed (L4)"
                self._input(event.data["id"], event.data.get("agent"), run)
            case "session.message_waiting":
                message = event.data["message_id"]
                assert message not in self.inputs, f"{message} waits and was an input (L4)"
                assert message not in self.returned, f"{message} waits and was returned (L4)"
                if message not in self.waiting:
                    self.waiting.append(message)
                self.waited.setdefault(message, event.seq)
                self.named[message] = event.data.get("agent")
            case "session.message_returned":
                message = event.data["message_id"]
                assert message not in self.inputs, f"{message} was an input and is returned"
                assert message not in self.returned, f"{message} is returned twice"
                self.returned[message] = event.data["reason"]
                if message in self.waiting:
                    self.waiting.remove(message)
            case "tool.requested":
                assert run is not None
                assert event.data["call_id"] not in self.calls, "a call is requested once"
                if event.data.get("begun"):
                    self.begun_elsewhere.add(event.data["call_id"])
                self.calls[event.data["call_id"]] = run
                self.spoken.add(run)
                of = event.data["arguments"].get("of", run)
                assert of == run, f"{event.data['call_id']} was asked for by {of}, and is logged under {run} (L1)"
            case "tool.started":
                call = event.data["call_id"]
                assert call in self.calls
                assert call not in self.started_calls
                assert call not in self.outcomes
                self.started_calls.add(call)
            case "process.started":
                assert event.data["process_id"] not in self.processes, "a process starts once"
                self.processes.add(event.data["process_id"])
            case "process.handed_over" if run is not None and "pid" in event.data:
                self.handed.setdefault(run, set()).add(event.data["pid"])
            case "process.ended" if event.data["proven"]:
                assert event.data["process_id"] not in self.dead, "a process is proven dead once"
                # The host of a tool that was told nothing is a spare again, and may be another call's later.
                if event.data["how"] != "not_started":
                    self.dead.add(event.data["process_id"])
            case "tool.output":
                assert event.data["call_id"] not in self.outcomes, "output of a call that has ended"
            case "tool.ended":
                self._call_ended(event)
            case "session.barrier_forced":
                self.forced.setdefault(event.data["run_id"], set()).update(event.data["abandoned"])
            case _:
                pass
        if self.thread is not None:
            self.thread.apply(event)

    def rendered(self, events: Iterable[Event]) -> None:
        """Check that providers would take the thread, where one of `events` is such that somebody reads it now."""
        if self.thread is not None and any(event.kind in RENDERED_AT for event in events):
            self.check_thread()

    def _said(self, text: str, run: str) -> None:
        """What an agent says is logged under its own run, in its order, without a gap."""
        marked = SPEAKER.fullmatch(text)
        if marked is None:
            return
        assert marked[1] == run, f"{marked[1]} said {text!r}, and it is logged under {run} (L1)"
        assert int(marked[2]) == self.said.get(run, 0), f"{run} said {text!r} as its text {self.said.get(run, 0)} (L6)"
        self.said[run] = int(marked[2]) + 1

    def _told(self, data: Mapping[str, Any]) -> None:
        """What a tool says is logged while its call is open: it has begun, and has no result."""
        call = data.get("call")
        if call is None:
            return
        assert call in self.started_calls, f"the tool of {call} said {data['text']!r} before that was on record (L2)"
        assert call not in self.outcomes, f"the tool of {call} said {data['text']!r} behind its result (L1)"
        # The fence of a call ends with its id.
        said, _, number = data["text"].rpartition(" ")
        assert said.endswith(f":{call}"), f"{said} said {data['text']!r}, and it is logged under {call} (L1)"
        if not number.isdigit():
            return
        assert number == str(self.told.get(call, 0)), f"{call} said {number} as its text {self.told.get(call, 0)} (L6)"
        self.told[call] = self.told.get(call, 0) + 1

    def _check_generation(self, event: Event) -> None:
        if event.kind in ("session.fenced", "run.started"):
            assert event.generation >= self.generation, "the generation fell"
        if event.kind in ENDINGS and event.run_id in self.run_generation:
            assert event.generation == self.run_generation[event.run_id], f"{event.kind} has another run's generation"
        elif event.kind != "session.barrier_forced":
            assert event.generation >= self.generation, f"{event.kind} of generation {event.generation} (L1)"
            self.generation = max(self.generation, event.generation)
        if event.kind in SPOKEN and event.kind != "message":
            assert event.run_id is not None
            assert self.status.get(event.run_id) is RunStatus.IN_PROGRESS, f"{event.kind} of a closed run (L1)"

    def _move(self, run: str, status: RunStatus) -> None:
        old = self.status.get(run, RunStatus.QUEUED)
        assert status in TRANSITIONS[old], f"{run} goes from {old} to {status}"
        self.status[run] = status

    def _status(self, event: Event, run: str) -> None:
        status = RunStatus(event.data["status"])
        cancelling = self.status.get(run) is RunStatus.CANCELLING
        self._move(run, status)
        if status is not RunStatus.IN_PROGRESS:
            self.closed_at.setdefault(run, event.seq)
            self.cause.setdefault(run, event.data.get("provenance"))
        for call, of in self.calls.items():
            assert of != run or call in self.outcomes, f"{run} is closed with {call} open (L6)"
        if cancelling:
            return
        if status in (RunStatus.CANCELLING, RunStatus.CANCELLED, RunStatus.EXPIRED):
            assert event.data["provenance"]["source"], f"{run} is {status} without a provenance (L5)"
        if event.data.get("provenance", {"source": ""})["source"].startswith(OUTSIDE_SOURCES):
            self.stopped.add(run)
        if status is RunStatus.FAILED:
            assert event.data.get("provenance") or event.data["error"], f"{run} failed without a cause (L5)"

    def _run_ended(self, event: Event, run: str) -> None:
        assert run not in self.ended, f"{run} ends twice (L7)"
        status = RunStatus(event.data["status"])
        assert status in TERMINAL, f"{run} ended as {status} (L7)"
        assert status is self.status[run], f"{run} ended as {status}, is {self.status[run]}"
        self.ended[run] = event.data
        receipt = event.data["receipt"]
        assert receipt["run_id"] == run
        cause = self.cause.get(run)
        assert receipt["provenance"] == cause, f"{run} ended by {cause}, its receipt says {receipt['provenance']} (L5)"
        if status is not RunStatus.COMPLETED and status is not RunStatus.FAILED:
            assert receipt["provenance"], f"the receipt of {run} has no provenance (L5)"
        rows, handed = list(receipt["rows"]), self.handed.pop(run, set())
        while rows:
            row = rows.pop()
            handed.discard(row.get("pid"))
            rows.extend(row.get("rows", ()))
            if receipt["complete"]:
                assert row["ended_at"] is not None, f"a complete receipt with an open row: {row}"
            # The status of a process that code started by itself is read by that code.
            assert row["how"] is not None or row["kind"] == "subprocess", f"a row that does not say how it ended: {row}"
        assert not handed or receipt.get("omitted"), f"{run} handed over {handed}, which its receipt does not name (L3)"

    def _input(self, message: str, agent: str | None, run: str) -> None:
        assert message not in self.inputs, f"{message} is an input twice (L4)"
        assert message not in self.returned, f"{message} was returned and is an input (L4)"
        place = self.waiting.index(message) if message in self.waiting else len(self.waiting)
        ahead = self.waiting[:place]
        # Only what waits for another agent is overtaken; see `ChoiceLaws`.
        apart = len({agent, *(self.named[one] for one in ahead)}) > 1
        assert not ahead or apart, f"{message} overtakes {ahead} (L4)"
        del self.waiting[place : place + 1]
        self.inputs[message] = run
        self.input_order.append(message)
        self.run_inputs.setdefault(run, []).append(message)

    def _call_ended(self, event: Event) -> None:
        call, outcome = event.data["call_id"], event.data["outcome"]
        assert call in self.calls, "a result without a call"
        assert call not in self.outcomes, f"{call} has two results (L6)"
        if call in self.started_calls or call in self.begun_elsewhere:
            assert outcome != "not_started", f"{call} had started (L6)"
        self.outcomes[call] = outcome

    def check_thread(self) -> None:
        """Check that providers would take the thread as it is (law L6)."""
        assert self.thread is not None, "only with fold"
        messages = self.thread.messages()
        if messages and messages != self._checked:
            self._checked = messages
            rendered = render_openai(messages)
            if rendered:
                check_openai(rendered)
            spoken = render_anthropic(messages)
            if spoken:
                check_anthropic(spoken)
            self.answers.check_thread(messages)

    def finished(self) -> None:
        """Everything has settled: every run ended once, every call has its result."""
        for run, status in self.status.items():
            assert status in TERMINAL, f"{run} is left {status} (L7)"
            assert run in self.ended, f"{run} has no receipt (L7)"
        for call in self.calls:
            assert call in self.outcomes, f"{call} has no result (L6)"
        for run, before in self.retry_of.items():
            assert before in self.ended, f"{run} retries {before}, which has not ended"
