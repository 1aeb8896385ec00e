"""RecordLaws: batches are whole, and say what happened, as they become durable (laws L2, L3, L4, L6, L10, L11, L12)."""

from __future__ import annotations

import msgspec

from actors.model import Event, How, Outcome, Owner, RunInfo, Scope, Waiting
from actors.ports import Batch
from actors.requests import NewMessage, OutsideRequest, Reply, Stop, Stopped
from actors.run_status import RunStatus
from tests.sim.bounds import Bounds
from tests.sim.laws import LogLaws
from tests.sim.media import check_batch
from tests.sim.watch.answers import AnswerLaws
from tests.sim.watch.attempts import AttemptLaws
from tests.sim.watch.barrier import BarrierLaws
from tests.sim.watch.causes import CauseLaws
from tests.sim.watch.children import ChildLaws
from tests.sim.watch.choices import ChoiceLaws
from tests.sim.watch.journal import JournalLaws
from tests.sim.watch.receipts import ReceiptLaws
from tests.sim.watch.rest import RestLaws
from tests.sim.watch.seen import Seen, decode_answer, stored_answers
from tests.sim.watch.usage import UsageLaws


class RecordLaws:
    """The batches of all sessions, each as it becomes durable."""

    def __init__(
        self,
        seen: Seen,
        bounds: Bounds,
        barrier: BarrierLaws,
        journal: JournalLaws,
        answers: AnswerLaws,
        causes: CauseLaws,
        attempts: AttemptLaws,
        receipts: ReceiptLaws,
        rest: RestLaws,
        usage: UsageLaws,
        choices: ChoiceLaws,
        children: ChildLaws,
    ) -> None:
        self._seen = seen
        self._bounds = bounds
        self._barrier = barrier
        self._journal = journal
        self._answers = answers
        self._causes = causes
        self._attempts = attempts
        self._receipts = receipts
        self._rest = rest
        self._usage = usage
        self._choices = choices
        self._children = children

    def batch(self, batch: Batch) -> None:
        """One step of a session is written: what belongs together is in it together (laws L4, L10)."""
        laws = self._seen.laws(batch.session)
        if batch.erase:
            self._rest.deletes(batch.session)
            # Of what is deleted the last ids are kept, and no answers.
            batch = msgspec.structs.replace(batch, requests=tuple(row for row in batch.requests if row.answer))
        told = {row.request_id for row in batch.requests}
        inputs_before = set(laws.inputs)
        waiting_before = list(laws.waiting)
        try:
            check_batch(self._seen.disk, batch)
            laws.take(batch.events)
            laws.rendered(batch.events)
        except AssertionError as error:
            self._seen.break_(f"{batch.session}: {error}")
            return
        self._children.batch(batch)
        moved = {event.run_id for event in batch.events if event.kind == "run.status"}
        self._journal.batch(batch, told)
        for event in batch.events:
            match event.kind:
                case "session.fenced":
                    self._causes.fenced(event, batch, told, moved)
                case "run.started":
                    self._attempts.tried_again(event)
                    self._attempts.begins_again(event)
                    # What was active may be tried again until the time for draining is over; what waits stays.
                    begins = "retry_of" not in event.data and "parent" not in event.data
                    if begins and event.at > self._seen.refused_at.get(batch.session, event.at):
                        self._seen.break_(f"{event.run_id} starts, and the supervisor is shutting down (L11)")
                case "run.status":
                    self._causes.aimed(event)
                    self._attempts.not_tried_again(event, batch)
                    self._causes.first_cause(event.session, event.run_id or "")
                case "message" | "session.message_waiting":
                    message = event.data["id" if event.kind == "message" else "message_id"]
                    delegated = self._children.is_child(event.run_id)
                    if message not in told and message not in waiting_before and not delegated:
                        self._seen.break_(f"{message} is accepted without its request id (L10)")
                case "tool.ended":
                    self._tool_ended(event)
                case "process.ended":
                    self._process_ended(event)
                case "session.stop_durable":
                    self._journal.stop_durable(event, told)
                case _:
                    pass
        self._bounds.batch(batch)
        self._usage.batch(batch)
        self._choices.batch(batch)
        of = batch.row or self._seen.disk.of(batch.session).row
        self._journal.without_event -= told
        if of is not None and of.deleted:
            self._journal.without_event |= told
        for row in batch.requests:
            self._seen.told_at.setdefault(row.request_id, row.at)
        for run in batch.runs:
            self._run_row(run)
        for call in batch.calls:
            if call.state not in ("requested", "waiting"):
                # Remembered also where the session is deleted since then: what is under way finds its gate shut.
                self._seen.granted.add(call.call_id)
            returned = call.call_id in self._seen.left and not (self._seen.crashes or self._seen.restarts)
            if call.how is How.GONE and returned:
                self._seen.break_(f"{call.call_id} is on record as gone, and has returned (L6)")
        for receipt in batch.receipts:
            self._receipts.receipt(batch, receipt)
        self._parked(batch, laws, inputs_before, waiting_before)
        self._of_session(batch)
        self._barrier.granted(batch, laws)
        self._answers.cut_off(batch)
        for row in stored_answers(batch):
            answer = decode_answer(row.answer)
            if isinstance(answer, Stopped):
                self._answers.stands(batch.session, row.request_id, answer, survives=True)

    def _tool_ended(self, event: Event) -> None:
        """The result that is on record is what happened (law L6)."""
        call, outcome = event.data["call_id"], event.data["outcome"]
        fence = next((one for one in self._seen.began if one.endswith(f":{call}")), None)
        if outcome == Outcome.NOT_STARTED and fence is not None:
            self._seen.break_(f"{call} is on record as not started, and has begun (L6)")
        told, had = sum(effect.get("begun", 1) for effect in event.data.get("effects", ())), self._seen.effects[call]
        if not self._fits(call, told, had) and not self._forgets_effects:
            self._seen.break_(f"{call} has had {had} effects, and is told to have had {told} (L6)")
        in_time = call in self._seen.in_time and not self._seen.faults and not self._seen.crashes
        if in_time and outcome != Outcome.FINISHED:
            self._seen.break_(f"{call} had {self._seen.in_time[call]} in time, and is on record as {outcome} (L2)")

    @property
    def _forgets_effects(self) -> bool:
        """True if a daemon has ended: only its memory had what had begun behind guards in what was not closed."""
        return bool(self._seen.crashes or self._seen.restarts)

    def _fits(self, key: str, told: int, had: int) -> bool:
        """True if it is told of as many effects as a call or an agent has had.

        In a host one that was permitted may not take place, or not yet.
        """
        return told >= had if key in self._seen.asked_for_guards else told == had

    def _run_row(self, run: RunInfo) -> None:
        """The row of a run that is closed tells of all that its agent had begun behind guards (law L6)."""
        told, had = sum(effect.begun for effect in run.effects), self._seen.effects[run.run_id]
        closed = run.status not in (RunStatus.QUEUED, RunStatus.IN_PROGRESS)
        if closed and not self._fits(run.run_id, told, had) and not self._forgets_effects:
            self._seen.break_(f"{run.run_id} has had {had} effects, and is told to have had {told} (L6)")

    def _process_ended(self, event: Event) -> None:
        process, world = event.data["process_id"], self._seen.world
        row, never = self._seen.disk.process(process), event.data["how"] == How.NOT_STARTED
        if row is not None and row.host and never and process not in self._seen.host_sessions:
            # The host of a tool that was told nothing lives on, and goes back to the spares.
            return
        if (
            event.data["proven"]
            and world is not None
            and (world.processes.lives(process) or world.strays.lives(process))
        ):
            self._seen.break_(f"{process} is on record as gone, and lives (L3)")
        if event.data["how"] == How.NOT_STARTED and process in self._seen.ran:
            self._seen.break_(f"{process} is on record as never started, and did run (L6)")

    def _parked(self, batch: Batch, laws: LogLaws, inputs_before: set[str], waiting_before: list[str]) -> None:
        """What was parked waits for a person (law L4), through restarts too (law L12)."""
        row = self._seen.disk.of(batch.session).row
        new_inputs = set(laws.inputs) - inputs_before
        resumed = any(event.kind == "session.resumed" for event in batch.events)
        if row is not None and row.parked:
            by_person = any(
                isinstance(request, NewMessage) and request.origin == "user" and request.id in new_inputs
                for request in (self._seen.requests.get(told.request_id) for told in batch.requests)
            )
            if new_inputs & set(waiting_before) and not by_person and not resumed:
                self._seen.break_(
                    f"parked messages run, and nobody asked for it: {new_inputs & set(waiting_before)} (L12)"
                )
        answered = [
            (self._seen.requests.get(told.request_id), decode_answer(told.answer)) for told in stored_answers(batch)
        ]
        withdrawn = any(_has(request, answer, Waiting.WITHDRAW) for request, answer in answered)
        if withdrawn and set(laws.waiting) & set(waiting_before):
            self._seen.break_(f"{laws.waiting} wait behind a Stop that withdraws what waits (L4)")
        parked = any(_has(request, answer, Waiting.PARK) for request, answer in answered)
        gone_on = bool(new_inputs) or resumed
        if parked and laws.waiting and not gone_on and batch.row is not None and not batch.row.parked:
            self._seen.break_(f"{laws.waiting} were parked, and that is not on record (L12)")

    def _of_session(self, batch: Batch) -> None:
        """A Stop of the whole session ends what is its own, in the same step; a tree is handed over or ended (L3)."""
        for row in batch.processes:
            known = self._seen.disk.process(row.process_id)
            new = row.owner is Owner.SESSION and known is not None and known.owner is not Owner.SESSION
            # A host may have been taken back since, by a run that has been ended since.
            if new and not row.host and row.process_id in self._seen.ended_for_run and not self._seen.faults:
                self._seen.break_(f"{row.process_id} is handed over, and had been told to end (L3)")
        made = [self._seen.requests.get(told.request_id) for told in batch.requests]
        stops = [stop for stop in made if isinstance(stop, Stop) and stop.run_id is None]
        if not stops:
            return
        of_all = any(stop.scope is Scope.SESSION for stop in stops)
        rows = self._seen.disk.of(batch.session).processes | {row.process_id: row for row in batch.processes}
        for row in rows.values():
            if row.owner is Owner.SESSION and row.state != "ended" and row.ending is None and (of_all or row.host):
                self._seen.break_(f"{row.process_id} is left by a Stop of its session (L3)")


def _has(request: OutsideRequest | None, answer: Reply, waiting: Waiting) -> bool:
    """Return True for an answered Stop that says this of the messages that wait."""
    return (
        isinstance(request, Stop)
        and isinstance(answer, Stopped)
        and request.run_id is None
        and request.resolved_waiting is waiting
    )
