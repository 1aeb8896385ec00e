"""Messages that wait: to steer the active run, or as the inputs of a later run (a turn).

The `TurnQueue` holds them in order. This file decides what is recorded when a message begins to wait, becomes an
input of a run, or is returned to its sender; and what a Stop does to the messages that wait.
"""

from __future__ import annotations

import itertools

import msgspec

from actors.events import (
    MessageData,
    RunEndedData,
    RunStatusData,
    SessionMessageReturnedData,
    SessionMessageWaitingData,
)
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.messages import Steered, SteeringRequested
from actors.model import Fate, Message, Provenance, ReturnReason, RunInfo, Waiting
from actors.ports import WaitingRow
from actors.protocol.agents import Agents
from actors.protocol.queue import PendingTurn, as_message, chooses_agent
from actors.protocol.run_record import RunRecord
from actors.protocol.state import SessionState
from actors.protocol.step import GiveSteering, NothingToSteer
from actors.requests import NewMessage
from actors.run_status import RunStatus


class Turns:
    """Decides on messages that wait, and on the runs that they will start."""

    def __init__(self, state: SessionState, agents: Agents) -> None:
        self._state = state
        self._agents = agents

    # ── What is recorded of a message ────────────────────────────────────────────────────────────────

    def add_input(self, message: NewMessage, record: RunRecord) -> None:
        """A message becomes an input of a run: only now is it in the thread."""
        first = not self._state.fates
        self._state.fates[message.id] = Fate.INPUT
        self._state.step.unwait(message)
        data = MessageData(
            id=message.id,
            content=message.content,
            origin=message.origin,
            policy=message.resolved_policy,
            sent_at=message.sent_at,
            attachments=message.attachment_names,
            traceparent=message.traceparent,
            agent=message.agent,
            parts=message.parts,
        )
        self._state.event(data, record)
        self._agents.named(message, record, first=first)

    def add_waiting(self, row: WaitingRow) -> None:
        """A message waits."""
        self._state.step.wait(row)
        message = row.message
        data = SessionMessageWaitingData(
            message_id=message.id,
            run_id=row.run_id,
            steering=row.steering,
            content=message.content,
            origin=message.origin,
            agent=message.agent,
            parts=message.parts,
        )
        self._state.event(data, None, run_id=row.run_id)

    def add_returned(self, message: NewMessage, run_id: str | None, reason: ReturnReason) -> None:
        """A message is returned to its sender: it is no input of any run."""
        self._state.fates[message.id] = Fate.RETURNED
        self._state.step.unwait(message)
        data = SessionMessageReturnedData(
            message_id=message.id,
            reason=reason,
            content=message.content,
            origin=message.origin,
            parts=message.parts,
        )
        self._state.event(data, None, run_id=run_id)

    # ── Steering ─────────────────────────────────────────────────────────────────────────────────────

    def steering_requested(self, request: SteeringRequested) -> None:
        """The agent asks for the messages that wait to steer it: they become inputs of its run now."""
        state = self._state
        record = state.open_run(request.address)
        if record is None:
            state.refuse_stale("steering", request.address)
            state.step.now.append(NothingToSteer(request.address.run, request.request_id))
            return
        if record.open_calls() or record.answers or not state.queue.steering:
            state.step.now.append(NothingToSteer(record.id, request.request_id))
            return
        rows = state.queue.pull_steering()
        for row in rows:
            self.add_input(row.message, record)
        inputs = (*record.info.inputs, *(row.message.id for row in rows))
        record.info = msgspec.structs.replace(record.info, inputs=inputs)
        state.save_run(record)
        at = state.clock.wall()
        messages = tuple(
            msgspec.structs.replace(as_message(row.message, record.id, at), generation=state.generation) for row in rows
        )
        state.step.later.append(GiveSteering(record.id, Steered(request.request_id, messages)))

    def requeue_steering(self, at: float) -> None:
        """The active run has ended: messages that waited to steer it become pending turns, ahead of the others."""
        rows, new = self._state.queue.requeue_steering(lambda: self._state.ids.new("run"))
        for run_id in new:
            agent = next((row.message.agent for row in rows if row.run_id == run_id and row.message.agent), None)
            self._queue(run_id, agent, at)
        for row in rows:
            self.add_waiting(row)

    # ── Turns ────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, message: NewMessage, at: float) -> WaitingRow:
        """Let a message wait for a turn, in one that is there or in a new one.

        Raises:
            QueueFull: too many messages wait.
        """
        queue = self._state.queue
        queue.refuse_if_full()
        row, new = queue.enqueue(message, self._state.ids.new("run"), at)
        if new:
            self._queue(row.run_id, message.agent, at)
        self.add_waiting(row)
        return row

    def _queue(self, run_id: str, agent: str | None, at: float) -> None:
        info = RunInfo(
            session=self._state.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            # Of a session that changes its agent meanwhile, the run has the new one when it starts.
            agent=agent or self._state.agent,
            generation=None,
            receipt_id=self._state.ids.new("rcpt"),
            created_at=at,
        )
        self._state.queued[run_id] = info
        self._state.step.runs[run_id] = info

    def cancel(self, turn: PendingTurn, provenance: Provenance, at: float, withdrawn: tuple[str, ...]) -> str:
        """Cancel a run that never started, with a receipt. Returns the receipt's id.

        `withdrawn` are the ids of the messages that are returned for it.
        """
        state = self._state
        info = state.queued.pop(turn.run_id)
        record = RunRecord(info, CancelToken(state.notify), Credit(1, 1), withdrawn=withdrawn, fenced_at=at)
        record.token.cancel(provenance)
        record.info = msgspec.structs.replace(record.info, provenance=provenance, ended_at=at)
        record.move(RunStatus.CANCELLED)
        state.event(RunStatusData(status=RunStatus.CANCELLED, provenance=provenance), record)
        record.info = msgspec.structs.replace(record.info, settled=True)
        receipt = record.file_receipt(at, ())
        state.step.receipts[receipt.receipt_id] = receipt
        state.event(RunEndedData(status=record.status, receipt=receipt), record)
        state.save_run(record)
        state.over[info.run_id] = receipt.receipt_id
        return receipt.receipt_id

    def take_with(
        self, at: float, requested_by: str, message: NewMessage | None = None
    ) -> tuple[str, tuple[NewMessage, ...], tuple[Message, ...]]:
        """Take what waits for the agent of `message`, to start one run with it now; what is for others keeps its place.

        None: what waits for the agent of the first waiting message, up to the first that is for another.

        Returns:
            The id of that run: the first turn's, or a new one; the messages; and the messages as they waited. The runs
            of the other turns that were taken are cancelled.
        """
        queue = self._state.queue
        named = any(row.message.agent is not None for turn in queue.turns for row in turn.rows)
        if named or any(row.message.agent is not None for row in queue.steering) or (message and message.agent):
            # Some of it may be for another agent, and steers no run of this one.
            self.requeue_steering(at)
        own, agents = self._state.agent, dict[str, str]()
        for turn in queue.turns:
            agents[turn.run_id] = turn.agent or own
            own = agents[turn.run_id] if turn.chooses else own
        if message is None:
            first = next(iter(agents.values()), own)
            wanted = list(itertools.takewhile(lambda run_id: agents[run_id] == first, agents))
        else:
            agent = message.agent or own
            # A message that names none would be for the agent which this run chooses, if it waited on.
            joins = chooses_agent(message) or any(turn.chooses and agents[turn.run_id] == agent for turn in queue.turns)
            wanted = [
                turn.run_id for turn in queue.turns if agents[turn.run_id] == agent or (joins and turn.agent is None)
            ]
        steering, turns = queue.pull_steering(), queue.take_turns(wanted)
        rows = steering + [row for turn in turns for row in turn.rows]
        queue.parked = False
        run_id = turns[0].run_id if turns else self._state.ids.new("run")
        provenance = Provenance(
            source="session.new_message",
            reason="its messages became inputs of an earlier run",
            requested_by=requested_by,
            initiated_at=at,
        )
        for turn in turns[1:]:
            self.cancel(turn, provenance, at, withdrawn=())
        messages = tuple(row.message for row in rows)
        return run_id, messages, tuple(as_message(row.message, run_id, row.accepted_at) for row in rows)

    def unpark_if_empty(self) -> None:
        """Nothing is parked where nothing waits: a later message need not wait for a person."""
        queue = self._state.queue
        if queue.parked and not len(queue):
            queue.parked = False
            self._state.step.row_changed = True

    # ── What a Stop does to them ─────────────────────────────────────────────────────────────────────

    def withdraw(self, turn: PendingTurn, provenance: Provenance, at: float) -> tuple[str, tuple[Message, ...]]:
        """Return the messages of a turn that was taken from the queue, and cancel its run.

        Returns the id of the run's receipt, and the messages.
        """
        self.unpark_if_empty()
        withdrawn = tuple(as_message(row.message, turn.run_id, row.accepted_at) for row in turn.rows)
        for row in turn.rows:
            self.add_returned(row.message, turn.run_id, ReturnReason.WITHDRAWN)
        receipt_id = self.cancel(turn, provenance, at, tuple(message.id for message in withdrawn))
        return receipt_id, withdrawn

    def stop(
        self, waiting: Waiting, provenance: Provenance, at: float, closed: RunRecord | None
    ) -> tuple[Message, ...]:
        """Do with the waiting messages what a Stop asks. Returns those that were withdrawn.

        `closed` is the run that the Stop closes or joins: its receipt names them.
        """
        queue = self._state.queue
        if waiting is not Waiting.WITHDRAW and closed is not None:
            self.requeue_steering(at)
            closed.waiting = tuple(row.message.id for turn in queue.turns for row in turn.rows)
        if waiting is Waiting.PARK:
            queue.parked = queue.parked or bool(len(queue))
            self._state.step.row_changed = True
            return ()
        if waiting is Waiting.KEEP:
            if closed is not None and len(queue):
                self._state.holding = closed.id
            return ()
        rows, turns = queue.take_all()
        withdrawn = tuple(as_message(row.message, row.run_id, row.accepted_at) for row in rows)
        for row in rows:
            self.add_returned(row.message, row.run_id, ReturnReason.WITHDRAWN)
        for turn in turns:
            self.cancel(turn, provenance, at, tuple(row.message.id for row in turn.rows))
        if closed is not None:
            closed.withdrawn += tuple(message.id for message in withdrawn)
        return withdrawn
