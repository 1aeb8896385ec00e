"""Mutants: faults of the protocol. The simulator has to find each of them when it is planted alone.

A mutant replaces text in the source of a few functions, and is made anew in each process. If that text is no longer
there, the mutant cannot be planted, and an error says so. Nothing else changes: the check that finds the mutant is the
check that guards the law.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final
from unittest import mock

from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.hierarchy.batches import Batches
from actors.hierarchy.draining import Draining
from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.outage import Outage
from actors.hierarchy.passivation import Passivation
from actors.hierarchy.reading import Reading
from actors.hierarchy.run import RunActor
from actors.hierarchy.run_host import RunHost
from actors.hierarchy.serving import Serving
from actors.hierarchy.session import SessionActor
from actors.hierarchy.session_hosts import SessionHosts
from actors.hierarchy.stash import Stash
from actors.hierarchy.tool import ToolActor
from actors.hierarchy.tool_host import ToolHost
from actors.kernel import mailbox
from actors.kernel.down import Down
from actors.plugin import execution
from actors.plugin.turn import TurnCore
from actors.ports import KeptStop
from actors.protocol.calls import Calls
from actors.protocol.deletion import Deletion
from actors.protocol.intake import Intake
from actors.protocol.part_reports import PartReports
from actors.protocol.processes import Processes
from actors.protocol.protocol import Protocol
from actors.protocol.queue import TurnQueue
from actors.protocol.request_book import RequestBook
from actors.protocol.requests import Requests
from actors.protocol.restoration import Restoration
from actors.protocol.run_record import Part, RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.stops import Stops
from actors.protocol.tree_reports import TreeReports
from actors.protocol.turns import Turns
from supervisor.executor import _Execution
from supervisor.router import SupervisorActor
from tests.sim.disk import Disk
from tests.sim.hosts import SimHosts
from tests.sim.schedule import broken, draw
from tests.sim.store import SimStore


@dataclass(frozen=True, slots=True)
class Edit:
    """One function of a class or of a module, and the text that is replaced in its source."""

    owner: type | ModuleType
    function: str
    old: str
    new: str

    def made(self) -> Any:
        """Return the function with the edit in it, or the descriptor.

        Raises:
            ValueError: the text is not in the source, or is there more than once.
        """
        if inspect.getattr_static(self.owner, self.function, None) is None:
            raise ValueError(f"{self.owner.__name__}.{self.function} is not there: the mutant has to follow the code")
        plain: Any = inspect.unwrap(getattr(_raw(self.owner, self.function), "fget", None) or _function(self))
        source = textwrap.dedent(inspect.getsource(plain))
        if source.count(self.old) != 1:
            where = f"{self.owner.__name__}.{self.function}"
            raise ValueError(f"{where}: expected {self.old!r} once, it is there {source.count(self.old)} times")
        # `super()` in a function finds its class by the name `__class__`.
        inside = textwrap.indent(source.replace(self.old, self.new), "    ")
        code = f"def make(__class__):\n{inside}\n    return {self.function}\n"
        made: dict[str, Any] = {}
        exec(compile(code, f"<{self.function}>", "exec"), plain.__globals__, made)
        classes = getattr(self.owner, "__mro__", ())
        return made["make"](next((one for one in classes if self.function in vars(one)), None))


def _raw(owner: type | ModuleType, name: str) -> Any:
    return inspect.getattr_static(owner, name)


def _function(edit: Edit) -> Any:
    raw = _raw(edit.owner, edit.function)
    return getattr(raw, "__func__", raw)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    law: the law that it breaks.
    edits: what is replaced.
    other: returns a context in which the fault is planted, if no edit can plant it.
    """

    name: str
    law: str
    edits: tuple[Edit, ...] = ()
    other: Callable[[], Any] | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Return a context in which the actors have the fault."""
        with ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(mock.patch.object(edit.owner, edit.function, edit.made()))
            if self.other is not None:
                stack.enter_context(self.other())
            yield

    def hunt(self, schedules: int, first: int = 0) -> int | None:
        """Run schedules with the fault planted, from number `first`, at most `schedules` of them.

        Returns how many it took to find the fault; None if none of them did.
        """
        with self.planted():
            for number in range(schedules):
                if broken(draw(first + number)) is not None:
                    return number + 1
        return None


def _mutant(name: str, law: str, owner: type | ModuleType, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, law, (Edit(owner, function, old, new),))


def _at_once(effect: str) -> tuple[str, str]:
    """Return an edit of `Batches.send_step`: one kind of effect is carried out before the commit."""
    old = "    later = step.later\n"
    new = (
        f"    self._effects.carry_out_later([one for one in step.later if type(one).__name__ == {effect!r}])\n"
        f"    step.later = [one for one in step.later if type(one).__name__ != {effect!r}]\n{old}"
    )
    return old, new


_BUMP_AFTER_HALT: Final = """
    from pykka._envelope import Envelope
    from actors.messages import Halt
    from actors.protocol.stops import provenance_of
    from actors.requests import Stop
    if isinstance(request, Stop) and not getattr(self, "_halted_first", False):
        self._batches._effects._runs.halt_all(Halt(provenance_of(request, 0.0), 0.0))
        self._halted_first = True
        self._mailbox.put(Envelope(request, reply))
        return
    self._halted_first = False
    try:
        answer = self._live.protocol.requests.decide(request, reply, kept)
"""

MUTANTS: Final = (
    # ── the fence ──
    _mutant(
        "bump after halt",
        "L1",
        Serving,
        "decide",
        "    try:\n        answer = self._live.protocol.requests.decide(request, reply, kept)\n",
        _BUMP_AFTER_HALT.lstrip("\n"),
    ),
    _mutant("the fence does not count", "L1", Runs, "fence", "state.generation += 1", "pass"),
    _mutant(
        "stale accepted when the address is unknown",
        "L1",
        SessionState,
        "open_run",
        "        or address.generation != self.generation\n        or address.run != record.id\n",
        "",
    ),
    _mutant(
        "text of a closed run accepted",
        "L1",
        Runs,
        "said",
        "record = state.open_run(said.address)",
        "record = state.open_run(said.address) or state.record(said.address.run)",
    ),
    _mutant(
        "output of a closed call accepted",
        "L1",
        Processes,
        "output",
        "if self._state.open_run(report.address) is None:",
        "if self._state.record(report.address.run) is None:",
    ),
    # ── the gate ──
    _mutant(
        "permit checked at the request instead of at the start",
        "L2",
        Cell,
        "start",
        "        if self._state is not CellState.GRANTED:\n            return False\n",
        "",
    ),
    _mutant(
        "an effect begins behind the fence",
        "L1",
        CancelToken,
        "_begin_effect",
        "        if cause is None:\n",
        "        if True:\n",
    ),
    _mutant(
        "what outlives its call has effects",
        "L1",
        CancelToken,
        "end_effects",
        "            self._over = provenance\n",
        "            pass\n",
    ),
    _mutant(
        "a result does not tell of effects",
        "L6",
        Calls,
        "end",
        "effects = call.token.end_effects(over)",
        "call.token.end_effects(over)",
    ),
    _mutant(
        "the result in the cell is ignored",
        "L2",
        Calls,
        "close_all",
        "_closed(record, call, state, finished, cause)",
        "_closed(record, call, CellState.CLOSED if finished else state, None, cause)",
    ),
    _mutant(
        "a result in the cell is lost to an agent that gives up",
        "L2",
        Calls,
        "given_up",
        "if finished is not None:",
        "if False:",
    ),
    _mutant(
        "execute before the cell is started",
        "L2",
        execution,
        "foreign_body",
        "        if not cell.start():\n            finish(NOT_STARTED)\n            return\n        started()\n",
        "        tool.execute(address.fence, arguments, token, spawn, lambda value: finish(ended(value)))\n"
        "        if cell.start():\n            started()\n        return\n",
    ),
    _mutant(
        "a void call that somebody else was to execute has no end",
        "L7",
        execution,
        "foreign_body",
        "finish(NOT_STARTED)",
        "pass",
    ),
    _mutant("permit before its commit", "L2", Batches, "send_step", *_at_once("GivePermit")),
    _mutant("spawn permit before its commit", "L2", Batches, "send_step", *_at_once("GiveSpawn")),
    _mutant(
        "a failing session leaves its gates open", "L2", SessionActor, "on_failure", "self._protocol.abandon(", "("
    ),
    # ── containment and the barrier ──
    _mutant("no barrier", "L3", SessionState, "barrier", "if record is not self.active", "if False"),
    _mutant(
        "what code started by itself is taken for ended",
        "L3",
        PartReports,
        "stray_found",
        "record.add(part)",
        "part.end(None, found.at), record.add(part)",
    ),
    _mutant(
        "what code started by itself holds no barrier",
        "L3",
        PartReports,
        "stray_found",
        "found.ours, found.ours, started_at",
        "False, found.ours, started_at",
    ),
    _mutant(
        "what is found after the kill deadline is not named",
        "L3",
        PartReports,
        "stray_found",
        "self._runs.force_barrier(record, [part] if part.holds else [], at)",
        "pass",
    ),
    _mutant(
        "a process of nobody knows whom is left out of the receipt",
        "L3",
        RunRecord,
        "file_receipt",
        "complete=not open_parts",
        "complete=not self.awaited_parts()",
    ),
    _mutant(
        "a run actor ends before what its code started by itself",
        "L3",
        RunActor,
        "_stop_if_done",
        " or self._strays",
        "",
    ),
    _mutant(
        "barrier for the last generation only",
        "L3",
        SessionState,
        "barrier",
        "(*self.ending.values(), *self.late.values())",
        "[*self.ending.values(), *self.late.values()][-1:]",
    ),
    _mutant(
        "a strict barrier opens at the deadline",
        "L3",
        SessionState,
        "barrier",
        "(*self.ending.values(), *self.late.values())",
        "self.ending.values()",
    ),
    _mutant(
        "the run's end taken as proof of death",
        "L3",
        PartReports,
        "run_finished",
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n',
        "    for part in record.open_parts():\n        part.end(report.how, report.at)\n",
    ),
    _mutant("an unproven end taken as proof", "L3", Part, "end_process", "if news.proven:", "if True:"),
    _mutant(
        "what ended with its daemon needs no proof",
        "L3",
        TreeReports,
        "_ended",
        "if not news.proven:",
        "if not news.proven and str(owned.row.ending and owned.row.ending.source) != 'supervisor.recovery':",
    ),
    _mutant(
        "halt does not reach the trees",
        "L3",
        RunActor,
        "_halt",
        "            tell(child, halt)\n",
        "            pass\n",
    ),
    _mutant(
        "nothing is taken over after a restart",
        "L3",
        Restoration,
        "_restore_half",
        "state.step.later.append(AdoptRun(record.id))",
        "pass",
    ),
    _mutant("a part is forgotten before its commit", "L3", Batches, "send_step", *_at_once("ForgetPart")),
    _mutant(
        "a Stop of the session leaves its trees",
        "L3",
        Stops,
        "_stop_run",
        "    self._trees.end(self._ended_by(stop), provenance, record)\n",
        "",
    ),
    _mutant("said to be handed over before its commit", "L12", Batches, "send_step", *_at_once("SayHandedOver")),
    _mutant("spawned for the session before its commit", "L12", Batches, "send_step", *_at_once("SpawnOwn")),
    # ── hosts ──
    _mutant(
        "the host's answer ends its tree's part",
        "L3",
        PartReports,
        "run_finished",
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n',
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n'
        "    if record.host is not None:\n"
        "        record.parts[record.host.row.process_id].end(report.how, report.at)\n",
    ),
    _mutant("one spare for two runs", "L13", SimHosts, "reserve", "spares.pop(0)", "spares[0]"),
    Mutant(
        "a spare that was reserved for a fenced run is told of it",
        "L1",
        (
            Edit(
                Runs,
                "claim_start",
                "record = self._state.active\n    if record is None or record.id != run_id or AGENT",
                "record = self._state.record(run_id)\n    if record is None or AGENT",
            ),
            Edit(RunActor, "_begin", "if start.token.cancelled:", "if False:"),
        ),
    ),
    _mutant("a kept host outlives a Stop", "L3", Stops, "_ended_by", "stop.run_id is None", "False"),
    _mutant(
        "a frame of an earlier run is accepted in a kept host",
        "L1",
        SimHosts,
        "_frame",
        "core.address.fence != fence or ",
        "",
    ),
    _mutant("a host is released before that is on record", "L12", Batches, "send_step", *_at_once("ReleaseHost")),
    _mutant(
        "a host is released that may be on record",
        "L12",
        SessionHosts,
        "settle",
        "self._reserved - on_record",
        "self._reserved",
    ),
    _mutant(
        "a signal cuts off the clean-up in a host",
        "L8",
        RunHost,
        "end",
        "if agent_runs and left_s:",
        "if False:",
    ),
    _mutant(
        "an agent that may not overlap begins beside an earlier run",
        "L3",
        Runs,
        "claim_start",
        "not agent.overlap",
        "False",
    ),
    _mutant(
        "an agent begins before it is on record what of an earlier run is abandoned",
        "L3",
        Runs,
        "force_barrier",
        "state.step.later.append(OpenBarrier(run_id=record.id))",
        "record.forced = True",
    ),
    _mutant(
        "an agent begins before it is on record what of the session is abandoned",
        "L3",
        TreeReports,
        "deadline",
        "state.step.later.append(OpenBarrier(trees=tuple(owned.id for owned in left)))",
        "[setattr(owned, 'forced', True) for owned in left]",
    ),
    _mutant(
        "a host that a run took back is left when the run does not begin",
        "L7",
        Runs,
        "halt",
        "self._state.step.later.append(AdoptRun(record.id))",
        "pass",
    ),
    # ── taking over, and what waits ──
    _mutant(
        "takeover in two steps",
        "L4",
        Intake,
        "_supersede",
        "self._start_with_all(message, at, superseded=active.id)",
        "self._enqueue(message, at)",
    ),
    _mutant(
        "the queue is taken by the run",
        "L4",
        Runs,
        "end",
        "    self._turns.requeue_steering(at)\n",
        "    self._turns.requeue_steering(at)\n    self._state.queue.take_all()\n",
    ),
    _mutant(
        "steer handed over twice",
        "L4",
        TurnQueue,
        "pull_steering",
        "pulled, self.steering = self.steering, []",
        "pulled = list(self.steering)",
    ),
    _mutant(
        "what waits is turned around",
        "L4",
        TurnQueue,
        "take_all",
        "for turn in turns for row in turn.rows]",
        "for turn in turns[::-1] for row in turn.rows]",
    ),
    _mutant(
        "a Stop leaves what it says it withdraws",
        "L4",
        Turns,
        "stop",
        "if waiting is Waiting.KEEP:",
        "if waiting is not Waiting.PARK:",
    ),
    _mutant(
        "a message from before the Stop is taken",
        "L4",
        Intake,
        "new_message",
        "message.sent_at is not None and cutoff is not None and message.sent_at < cutoff",
        "False",
    ),
    # ── who did it ──
    _mutant(
        "the second cause replaces the first",
        "L5",
        Runs,
        "join",
        "later=(*record.info.later, provenance)[-16:]",
        "provenance=provenance",
    ),
    Mutant("Down ahead of the output", "L5", other=lambda: mock.patch.dict(mailbox._KINDS, {Down: (True, False)})),
    # ── the transcript ──
    Mutant(
        "repair after publish",
        "L6",
        (
            Edit(
                Calls,
                "close_all",
                "self.end(record, call, _closed(record, call, state, finished, cause), at)",
                "pass",
            ),
            Edit(
                Runs,
                "_settle",
                "    del state.ending[record.id]\n",
                "    del state.ending[record.id]\n    for call in record.open_calls():\n"
                '        self._calls.end(record, call, notes.lost_result("raised", ""), at)\n',
            ),
        ),
    ),
    _mutant(
        "a late result is a second result",
        "L6",
        Calls,
        "end",
        "    call.row = msgspec.structs.replace(call.row, state=CallState.ENDED, outcome=result.outcome)\n",
        "    call.row = msgspec.structs.replace(call.row, state=CallState.GRANTED, outcome=result.outcome)\n",
    ),
    _mutant(
        "an agent goes on before the call that it gave up has its result",
        "L6",
        TurnCore,
        "give_up",
        "while not reply.done():",
        "while False:",
    ),
    # ── terminal, once, in time ──
    _mutant(
        "old run's end dropped as stale",
        "L7",
        PartReports,
        "run_finished",
        '        self._execution_ended(report.address, report.how, report.at, report.error or "")\n',
        "",
    ),
    _mutant(
        "receipt before the reap",
        "L7",
        Runs,
        "settle_if_done",
        "not record.awaited_parts()",
        'not [part for part in record.awaited_parts() if part.kind != "process"]',
    ),
    _mutant(
        "second stop with a second receipt",
        "L7",
        Runs,
        "join",
        "later=(*record.info.later, provenance)[-16:]",
        'later=(*record.info.later, provenance)[-16:], receipt_id=self._state.ids.new("rcpt")',
    ),
    _mutant("no kill deadline", "L7", Runs, "kill_deadline", "if record is None or record.stage != stage:", "if 1:"),
    _mutant(
        "a Stop that hurries puts the kill deadline off",
        "L7",
        Runs,
        "halt",
        "record.stage += moves",
        "record.stage += 1",
    ),
    _mutant(
        "a deadline of an earlier incarnation counts",
        "L7",
        SessionActor,
        "_time_over",
        "case KillDeadline() if timer.incarnation == self._live.id:",
        "case KillDeadline():",
    ),
    _mutant(
        "a proof that comes late amends nothing",
        "L7",
        Runs,
        "amend",
        "    receipt = record.file_receipt(at, record.info.later)\n"
        "    self._state.step.receipts[receipt.receipt_id] = receipt\n",
        "    receipt = record.file_receipt(at, record.info.later)\n",
    ),
    # ── the token ──
    _mutant(
        "token cleared at the end",
        "L8",
        Runs,
        "_settle",
        "    del state.ending[record.id]\n",
        "    del state.ending[record.id]\n    for call in record.calls.values():\n"
        "        if call.token is not None:\n            call.token._provenance = None\n",
    ),
    _mutant(
        "a door tells, and the cancel tells again",
        "L8",
        _Execution,
        "cancel",
        "first and (self.token is None or not self.token.was_raised_in(self.task))",
        "first",
    ),
    Mutant(
        "a call that is given up goes on",
        "L8",
        (
            Edit(Calls, "given_up", "call.token.cancel(provenance)", "pass"),
            Edit(RunActor, "_call_closed", "closed.provenance is not None", "False"),
        ),
    ),
    _mutant("a halt tells again", "L8", _Execution, "cancel", "first = self.cancelled_at is None", "first = True"),
    _mutant(
        "an agent is cancelled again at the grace",
        "L8",
        RunActor,
        "_halt",
        "halt.grace_s + self._ports.settings.kill_s",
        "halt.grace_s",
    ),
    _mutant(
        "a tool is cancelled again at the grace",
        "L8",
        ToolActor,
        "_halt",
        "halt.grace_s + self._ports.settings.kill_s",
        "halt.grace_s",
    ),
    # ── aim ──
    _mutant(
        "aimed stop that hits the current run",
        "L9",
        Stops,
        "_stop_aimed",
        "if current is not None and current.id == run_id:",
        "if current is not None:",
    ),
    # ── once ──
    _mutant(
        "request id not stored with its effect",
        "L10",
        Requests,
        "decide",
        "state.step.requests.append(state.book.answered(request, known, at))",
        "state.book.answered(request, known, at)",
    ),
    _mutant(
        "answers forgotten at a restart",
        "L10",
        SessionState,
        "restore",
        "    self.book.restore(snapshot.requests, row.forgotten_to if row is not None else 0.0)\n",
        "",
    ),
    _mutant(
        "the content of a repeat is not compared", "L10", RequestBook, "known", "row.digest != digest(request)", "False"
    ),
    _mutant(
        "the answer to a repeat says that what waits came back",
        "L10",
        Requests,
        "decide",
        "state.fates.get(known.message_id)",
        'state.fates.get(known.message_id, "returned")',
    ),
    _mutant(
        "a Stop that is decided again is answered by what is found then",
        "L10",
        Stops,
        "stop",
        "answer = None if kept is None else kept.answer",
        "answer = None",
    ),
    Mutant(
        "what a Stop was answered while the store fails is forgotten",
        "L10",
        (
            Edit(LateStops, "first_answer", "return kept.answer if kept is not None else None", "return None"),
            Edit(
                LateStops,
                "store_failed",
                "    answer = kept.answer if kept is not None and kept.answer is not None else answer\n",
                "",
            ),
        ),
    ),
    _mutant(
        "a stored answer is not looked up while the store fails",
        "L10",
        Outage,
        "request",
        "self._live.protocol.state.book.known(request, at) if answer is None else None",
        "None",
    ),
    _mutant(
        "a Stop of a session that is being read is answered as if nothing ran",
        "L10",
        Stash,
        "answer_overdue",
        "unknown(request)",
        'type(unknown(request))("nothing_running", None, request_id, None)',
    ),
    _mutant(
        "the journal is not given an answer that is known later",
        "L10",
        LateStops,
        "_keep",
        "kept.answer is None and answer is not None",
        "False",
    ),
    _mutant(
        "a receipt that was told of is not filed",
        "L10",
        Stops,
        "_replay",
        "    self._file_promised_receipt(answer, provenance, at)\n",
        "",
    ),
    _mutant(
        "a Stop that comes behind a failure of the store counts as the cause",
        "L5",
        Stops,
        "cancelled_unstored",
        "first = record.token.provenance or provenance",
        "first = provenance",
    ),
    _mutant(
        "what had ended a run is forgotten where the store did not take it",
        "L5",
        Outage,
        "_note_runs",
        "            self.unrecorded.ended.setdefault(info.run_id, info)\n",
        "            pass\n",
    ),
    _mutant(
        "what a Stop came behind is tried again",
        "L12",
        Restoration,
        "_restore_half",
        "can_run = not stops and",
        "can_run =",
    ),
    _mutant(
        "a Stop that is decided again leaves waiting what it had stopped",
        "L12",
        Stops,
        "_replay",
        "queued = self._stop_queued(answer.run_id, provenance, at)",
        "queued = None",
    ),
    # ── durable first ──
    _mutant("answer before commit", "L12", Batches, "send_step", *_at_once("AnswerRequest")),
    _mutant("the agent starts before its run is durable", "L12", Batches, "send_step", *_at_once("StartRun")),
    _mutant(
        "publish before commit",
        "L12",
        Batches,
        "send_step",
        "        self._ports.store.commit(batch, self._owner)\n",
        "        self._ports.publisher.publish(self._live.session, events)\n"
        "        self._ports.store.commit(batch, self._owner)\n",
    ),
    Mutant(
        "a retried batch overtaking",
        "L12",
        (
            Edit(
                SimStore,
                "_commit",
                '        self._fail(group, "the simulated disk failed")\n',
                "        self._queue.extend(group)\n",
            ),
            Edit(Disk, "write", "    if batch.number != last + 1:\n        return False\n", ""),
        ),
    ),
    _mutant(
        "a half-run is left as it was",
        "L12",
        Restoration,
        "_restore_half",
        "        self._runs.close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)\n",
        "",
    ),
    _mutant(
        "what had done nothing is not tried again",
        "L12",
        Restoration,
        "_restore_half",
        "untouched = not record.said and not record.called",
        "untouched = False",
    ),
    _mutant(
        "tried again although it had spoken",
        "L12",
        Restoration,
        "_restore_half",
        "untouched = not record.said and not record.called",
        "untouched = True",
    ),
    _mutant(
        "parked forgotten at a restart",
        "L12",
        SessionState,
        "restore",
        "parked=row.parked if row is not None else False",
        "parked=False",
    ),
    _mutant(
        "what is sent while a Stop waits to be decided comes too late",
        "L4",
        Stops,
        "stop",
        "min(sent_at, handled_at)",
        "at",
    ),
    _mutant(
        "the Stop's hour forgotten at a restart",
        "L12",
        SessionState,
        "restore",
        "self.cutoffs = dict(row.cutoffs)",
        "self.cutoffs = {}",
    ),
    _mutant(
        "a returned message waits again after a restart",
        "L12",
        Turns,
        "add_returned",
        "    self._state.step.unwait(message)\n",
        "",
    ),
    _mutant(
        "a Stop that was stored stops what came behind it",
        "L12",
        Restoration,
        "restore",
        "[kept for kept in kept_stops if kept.stop.id not in on_record]",
        "list(kept_stops)",
    ),
    # ── the stop journal ──
    _mutant(
        "the journal is not read at a restart",
        "L12",
        LateStops,
        "restore",
        "for entry in journal:",
        "for entry in ():",
    ),
    _mutant("the journal lets a Stop go before it is on record", "L12", Batches, "send_step", *_at_once("ForgetStop")),
    _mutant(
        "a Stop that is overdue is not kept in the journal",
        "L12",
        LateStops,
        "_keep",
        "    self._store.keep_stop(kept.entry, self._owner)\n",
        "",
    ),
    _mutant(
        "a Stop is said to be in the journal before it is",
        "L12",
        LateStops,
        "answer",
        "kept is not None and kept.journalled",
        "True",
    ),
    _mutant(
        "nobody is told that a Stop is durable at last",
        "L12",
        Batches,
        "_stops_are_durable",
        "            self._live.protocol.stops.durable(stop, effect.answer)\n",
        "",
    ),
    _mutant(
        "a Stop is told to be durable again after a restart",
        "L12",
        Stops,
        "durable",
        "if stop.id not in self._reported_durable:",
        "if True:",
    ),
    _mutant(
        "what a Stop of the journal was aimed at is not looked up",
        "L12",
        KeptStop,
        "is_about",
        "return self.stop.run_id in (None, run.run_id)",
        "return self.stop.run_id is None",
    ),
    _mutant(
        "the failure that a Stop of the journal names is forgotten where the session is restored in vain",
        "L12",
        Reading,
        "_restore",
        "    unrecorded.cause = self._live.protocol.restoration.restore(\n",
        "    from actors.protocol.restoration import _recovery_cause\n"
        "    unrecorded.cause = unrecorded.cause or _recovery_cause(self._ports.clock.wall())\n"
        "    self._live.protocol.restoration.restore(\n",
    ),
    _mutant(
        "a Stop that is kept again came when the store failed again",
        "L5",
        LateStops,
        "store_failed",
        "if replayed is not None and",
        "if False and replayed is not None and",
    ),
    _mutant(
        "the journal does not name the failure that came before a Stop",
        "L5",
        Outage,
        "_keep_and_answer",
        "cause, failure)",
        "cause, None)",
    ),
    # ── idle ──
    _mutant(
        "passivates with a batch under way",
        "L11",
        Passivation,
        "at_rest",
        "        and not self._batches.sent\n        and not self._live.protocol.state.step.has_records\n",
        "",
    ),
    _mutant(
        "passivates with a run under way",
        "L11",
        SessionState,
        "idle",
        "self.active is None and not self.ending",
        "not self.ending",
    ),
    _mutant("passivates over an open barrier", "L11", SessionState, "nothing_left", "and not self.late", "and True"),
    _mutant(
        "passivates with a tree of the session",
        "L11",
        SessionState,
        "nothing_left",
        "self.quiet and not self.late and not self.owned",
        "self.idle and not self.late",
    ),
    _mutant(
        "message at passivation dropped",
        "L11",
        SupervisorActor,
        "_release",
        "held.returned + held.later",
        "held.returned",
    ),
    _mutant(
        "message at passivation given to the one that leaves",
        "L11",
        SupervisorActor,
        "_route",
        "if not ends:",
        "if not ends or not route.returned:",
    ),
    _mutant(
        "message that finds the session in use is held for ever",
        "L11",
        SupervisorActor,
        "_rested",
        "    self._release(rested.session)\n",
        "",
    ),
    _mutant(
        "deleted before the proofs",
        "L11",
        Deletion,
        "erase_if_proven",
        "state.deleting is None or not state.nothing_left",
        "state.deleting is None or state.active is not None",
    ),
    _mutant(
        "a Delete that waits for ends is forgotten where the store fails",
        "L12",
        Outage,
        "_answer_all",
        "in self._live.protocol.deletion.call_off():",
        "in ():",
    ),
    _mutant(
        "deleted before a Stop is told to be durable",
        "L12",
        Serving,
        "flush",
        "not self._late_stops.pending and ",
        "",
    ),
    _mutant(
        "a deletion forgets which ids were used",
        "L10",
        RequestBook,
        "forget",
        "    return blank\n",
        "    self._rows, self._forgotten_to = OrderedDict(), 0.0\n    return []\n",
    ),
    _mutant(
        "the generation begins anew after a deletion",
        "L1",
        Deletion,
        "erase_if_proven",
        "    state.step.erase = True\n",
        "    state.step.erase = True\n    state.generation = 0\n",
    ),
    _mutant(
        "shutdown does not wait for proofs",
        "L11",
        SessionState,
        "idle",
        "self.active is None and not self.ending",
        "self.active is None",
    ),
    _mutant(
        "shutdown does not wait for what it decided to be written",
        "L11",
        Draining,
        "say_quiet",
        "not (self._batches.sent or step.has_records or self._stash or self._late_stops.pending)",
        "True",
    ),
    _mutant(
        "shutdown does not wait for what waited to be read",
        "L11",
        Draining,
        "say_quiet",
        "self._stash or ",
        "",
    ),
    _mutant(
        "what a session said before a Stop came counts",
        "L11",
        SupervisorActor,
        "_quiet",
        "if self._noisy.get(quiet.session) == quiet.number:",
        "if quiet.session in self._noisy:",
    ),
    _mutant(
        "drain starts the next turn",
        "L11",
        Runs,
        "start_next",
        "state.active is not None or state.draining or state.quarantined",
        "state.active is not None or state.quarantined",
    ),
    _mutant(
        "waiting turns start as a draining session is taken up",
        "L11",
        Restoration,
        "restore",
        "    if state.draining or state.quarantined:\n        return cause\n",
        "    state.draining, draining = False, state.draining\n"
        "    self._runs.start_next(at)\n    state.draining = draining\n",
    ),
    _mutant(
        "shutdown interrupts at once",
        "L11",
        SupervisorActor,
        "_shutdown",
        "call_later(shutdown.drain_s, ",
        "call_later(0.0, ",
    ),
    _mutant(
        "what is not at rest is not interrupted",
        "L11",
        Protocol,
        "interrupt",
        "    if active is None:\n",
        "    if active is None or not self.state.owned:\n",
    ),
    _mutant(
        "a session that takes a Stop in the shutdown need not come to rest",
        "L11",
        SupervisorActor,
        "_forward",
        "    if self._shutting_down:\n",
        "    if False:\n",
    ),
    # ── retries, limits, takeovers ──
    _mutant(
        "a store that fails is asked ever more seldom",
        "L12",
        Outage,
        "try_later",
        "min(self._retry_s * 2, RETRY_MAX_S)",
        "self._retry_s * 2",
    ),
    _mutant(
        "a store that was back is asked as seldom as before",
        "L12",
        Outage,
        "over",
        "    self._retry_s = RETRY_FIRST_S\n",
        "",
    ),
    _mutant(
        "a session that fails in quarantine leaves its trees",
        "L3",
        SessionActor,
        "on_failure",
        "if self._quarantine.on:",
        "if False:",
    ),
    _mutant(
        "quarantined one failure late",
        "L13",
        SupervisorActor,
        "_restart",
        "> self._policy.failures_max",
        "> self._policy.failures_max + 1",
    ),
    _mutant(
        "the deadline of a run begins anew behind each barrier",
        "L7",
        RunActor,
        "_disarm_deadline",
        "    self._deadline_left_s -= self._ports.clock.monotonic() - self._deadline_since\n",
        "",
    ),
    _mutant(
        "the configured deadline beats the tool's own",
        "L7",
        RunActor,
        "_permit",
        "tool.deadline_s or permit.deadline_s",
        "permit.deadline_s or tool.deadline_s",
    ),
    _mutant(
        "a process of the agent's own does not wait for the barrier",
        "L3",
        Processes,
        "spawn_requested",
        "elif address.call is not None or not state.barrier():",
        "elif True:",
    ),
    _mutant(
        "a process of the agent's own is asked for by a run that is over",
        "L1",
        Processes,
        "spawn_requested",
        "if record is None or (",
        "record = state.record(address.run)\n    if record is None or (",
    ),
    _mutant(
        "a process that waits for the barrier is not refused at the end of its run",
        "L7",
        Processes,
        "drop_waiting",
        "for process_id in waiting:",
        "for process_id in ():",
    ),
    _mutant(
        "a process of the agent's own is not ended with its run",
        "L3",
        RunActor,
        "_halt",
        "if key != self._host.id:",
        "if key != self._host.id and key not in self._processes:",
    ),
    _mutant(
        "the process of a tool is told of its call in spite of a fence",
        "L1",
        ToolHost,
        "permitted",
        "if finish is None or not permit.cell.start():",
        "if finish is None:",
    ),
    _mutant(
        "the process of a tool outlives the Stop of its call",
        "L3",
        ToolHost,
        "halt",
        "self._tree.halt(halt, agent_runs=executing)",
        "pass",
    ),
    _mutant(
        "one process of a run too many",
        "L14",
        Processes,
        "_spawn_for_run",
        ">= limit and",
        "> limit and",
    ),
    _mutant(
        "one process of the session too many",
        "L14",
        Processes,
        "_spawn_for_session",
        "if len(state.owned) >= limit:",
        "if len(state.owned) > limit:",
    ),
    _mutant(
        "one open call too many",
        "L14",
        Calls,
        "requested",
        ">= state.settings.calls_open_max:",
        "> state.settings.calls_open_max:",
    ),
    _mutant("one waiting message too many", "L14", TurnQueue, "refuse_if_full", ">= self._limit", "> self._limit"),
    _mutant("parts are kept without a bound", "L14", RunRecord, "trim", "if excess <= 0:", "if excess <= 1000:"),
    _mutant("a receipt lists parts beyond the bound", "L14", RunRecord, "file_receipt", "    self.trim()\n", ""),
    _mutant(
        "a Stop says that it withdrew what may never be on record",
        "L4",
        Batches,
        "early_answer",
        "else without_unstored(answer, unstored)",
        "else answer",
    ),
    _mutant("what a receipt leaves out is not counted", "L14", RunRecord, "trim", "        self.omitted += 1\n", ""),
    _mutant(
        "an untouched run is tried again without end",
        "L14",
        Restoration,
        "_restore_half",
        "info.attempt < state.settings.attempts_max",
        "True",
    ),
    _mutant(
        "what a lost call has running is not taken over",
        "L3",
        RunActor,
        "_child_down",
        "        if call_id not in (call, process_id) or process_id in self._undecided:\n",
        "        if True:\n",
    ),
    _mutant(
        "a receipt forgets in a crash the host that a later run has taken back",
        "L3",
        Restoration,
        "_record",
        "(*snapshot.processes, *snapshot.handed_over)",
        "snapshot.processes",
    ),
)
