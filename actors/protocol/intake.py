"""Messages from outside: NewMessage by its policy, Resume, and Withdraw.

A message that supersedes is one step: the fence, the close of the old run, and the start of the next, in one batch,
whose answer is given when it is durable.
"""

from __future__ import annotations

from actors.errors import Invalid, NotFound, Quarantined, RunActive, ShuttingDown, TooLarge
from actors.events import MessageRetractedData, SessionResumedData
from actors.model import SUPERSEDING, Fate, Mode, Policy, Provenance, ReturnReason, Role, WithdrawOutcome
from actors.protocol.agents import Agents
from actors.protocol.run_record import RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.turns import Turns
from actors.requests import USER, Accepted, NewMessage, Resume, Resumed, Withdraw, Withdrawn
from actors.run_status import RunStatus


class Intake:
    """Decides on NewMessage, Resume and Withdraw. What it refuses has changed nothing."""

    def __init__(self, state: SessionState, turns: Turns, runs: Runs, agents: Agents) -> None:
        self._state = state
        self._agents = agents
        self._turns = turns
        self._runs = runs

    # ── NewMessage ───────────────────────────────────────────────────────────────────────────────────

    def new_message(self, message: NewMessage, at: float) -> Accepted:
        """Take a message: it starts a run, steers one, or waits."""
        state = self._state
        # Behind messages that choose an agent for the session, one that names none is for that agent.
        agent = message.agent or state.queue.chosen_agent or state.agent
        self.refuse_unless_serving("a new message", agent, draining=state.draining)
        self.refuse_too_large(message)
        refused = state.too_large(message.media)
        if refused is not None:
            raise refused
        lacking = [
            one.attachment for one in message.media if all(one.attachment != a.name for a in message.attachments)
        ]
        if lacking:
            raise Invalid(
                "the message lacks the bytes of its files",
                expected="a File for each file",
                got=", ".join(lacking),
                remedy="NewMessage(content='…', attachments=[File(data, 'image/png')])",
            )
        if message.id in state.fates:
            raise Invalid(
                "a message with this id was handled before",
                expected="a fresh id",
                got=message.id,
                remedy="construct a new message; it makes its own id",
            )
        policy = message.resolved_policy
        cutoff = state.cutoffs.get(message.origin)
        # A cutoff ahead of the clock was set before the clock was set back: it applies to no message that is sent now.
        if message.sent_at is not None and cutoff is not None and message.sent_at < cutoff <= at:
            self._turns.add_returned(message, None, ReturnReason.STOPPED_BEFORE_ARRIVAL)
            return Accepted(message.id, None, None, policy, returned=ReturnReason.STOPPED_BEFORE_ARRIVAL)
        accepted = self._take(message.without_files(), policy, at)
        state.keep(message.attachments, message.media, at)
        return accepted

    def _take(self, message: NewMessage, policy: Policy, at: float) -> Accepted:
        active, queue = self._state.active, self._state.queue
        if active is not None and policy is Policy.REJECT:
            raise RunActive(
                "a run is active",
                run_id=active.id,
                expected="no active run, as the policy 'reject' asks",
                got=f"run {active.id}",
                remedy="wait for it, stop it, or use another policy",
            )
        if queue.parked and message.origin != USER:
            # Parked messages wait for a person, and this one waits behind them. A run may be active: a retry after a
            # failure of the store, which the Stop that parked them was not about.
            return self._enqueue(message, at)
        if active is None:
            if len(queue) and not queue.parked and policy not in SUPERSEDING:
                accepted = self._enqueue(message, at)
                # What waits may wait for its agent, which is not this message's.
                self._runs.start_next(at)
                return accepted
            return self._start_with_all(message, at, superseded=None)
        if policy in SUPERSEDING:
            return self._supersede(active, message, at)
        if policy is Policy.STEER and not queue.turns and message.agent in (None, active.info.agent):
            queue.refuse_if_full()
            self._turns.add_waiting(queue.steer(message, active.id, at))
            return Accepted(message.id, active.id, active.info.generation, policy, queued=True)
        return self._enqueue(message, at)

    def _enqueue(self, message: NewMessage, at: float) -> Accepted:
        row = self._turns.enqueue(message, at)
        return Accepted(message.id, row.run_id, None, Policy.ENQUEUE, queued=True)

    def _start_with_all(self, message: NewMessage, at: float, superseded: str | None) -> Accepted:
        """Start a run whose inputs are all that waits for the same agent, then `message`."""
        run_id, waited, shown = self._turns.take_with(at, message.id, message)
        self._runs.start(run_id, (*waited, message), at, counted=superseded is not None)
        return Accepted(
            message.id,
            run_id,
            self._state.generation,
            message.resolved_policy,
            superseded_run_id=superseded,
            with_messages=shown,
        )

    def _supersede(self, active: RunRecord, message: NewMessage, at: float) -> Accepted:
        provenance = Provenance(
            source="session.new_message",
            reason="a new message took over",
            requested_by=message.id,
            initiated_at=at,
        )
        rollback = message.resolved_policy is Policy.ROLLBACK
        # The fence raises the generation; the start of the next run is in the same step and does not raise it again.
        self._runs.fence(provenance, active, at)
        noted = not rollback or self._runs.calls_started(active) or bool(active.token.effects)
        self._runs.close(active, RunStatus.CANCELLING, provenance, at, noted=noted)
        if rollback:
            self._retract(active, message.origin)
            self._agents.rolled_back(active, message)
        self._runs.halt(active, provenance, Mode.GRACEFUL)
        accepted = self._start_with_all(message, at, superseded=active.id)
        self._runs.settle_if_done(active, at)
        return accepted

    def _retract(self, record: RunRecord, origin: str) -> None:
        """Mark the sender's own inputs of a run, and its output, as retracted."""
        inputs, messages = set(record.info.inputs), self._state.thread.messages()
        own = tuple(m.id for m in messages if m.id in inputs and m.role == Role.USER and m.origin == origin)
        self._state.event(MessageRetractedData(run_id=record.id, ids=own), record)

    def refuse_too_large(self, message: NewMessage) -> None:
        """Raise TooLarge if a message is larger than one may be."""
        # The content stands for its exact bytes if it is not UTF-8.
        size = len(message.content.encode() if message.raw is None else message.raw)
        limit = self._state.settings.message_max_bytes
        if size > limit:
            raise TooLarge(
                "the message is too large",
                expected=f"at most {limit} bytes of UTF-8",
                got=f"{size} bytes",
                remedy="send it in parts, or put it in a file that the agent can read",
            )

    def refuse_unless_serving(self, what: str, agent: str, *, draining: bool) -> None:
        """Refuse what the session does not take now. `draining`: the supervisor is too far in its shutdown for it.

        Raises:
            NotFound, Quarantined, ShuttingDown: as they say.
            AgentUnavailable, NotFound: the agent cannot run.
        """
        state = self._state
        if state.deleting is not None:
            raise NotFound(
                f"{what} is refused: the session is being deleted",
                expected="Stop, which it still takes",
                got=what,
                remedy="send it again when the session is deleted, to begin a new one, or to another session",
            )
        if state.quarantined:
            raise Quarantined(
                f"{what} is refused: the session failed too often and is quarantined",
                expected="Stop, which it still takes",
                got=what,
                remedy="look at the log for the failure, mend it, and restart the supervisor",
            )
        if draining:
            raise ShuttingDown(
                f"{what} is refused: the supervisor is shutting down",
                expected="Stop, which it still takes",
                got=what,
                remedy="send it again, under the same id, after the restart",
            )
        unavailable = state.unavailable(agent)
        if unavailable is not None:
            raise unavailable

    # ── Resume, Withdraw ─────────────────────────────────────────────────────────────────────────────

    def resume(self, resume: Resume, at: float) -> Resumed:
        """Start a run with all that waits, or with the thread as it is."""
        state = self._state
        agent = state.queue.first_agent or state.agent
        self.refuse_unless_serving("a Resume", agent, draining=state.draining)
        if state.active is not None:
            raise RunActive(
                "a run is active, there is nothing to resume",
                run_id=state.active.id,
                expected="a session without an active run",
                got=f"run {state.active.id}",
                remedy="wait for it, or stop it first",
            )
        if not len(state.queue) and not state.thread.messages():
            raise Invalid(
                "there is nothing to resume",
                expected="a session with a thread or with waiting messages",
                got="a session without either",
                remedy="send a message",
            )
        run_id, waited, shown = self._turns.take_with(at, resume.id)
        self._runs.start(run_id, waited, at, resumed=True)
        state.event(SessionResumedData(run_id=run_id), state.active)
        return Resumed(run_id, state.generation, with_messages=shown)

    def withdraw(self, withdraw: Withdraw, at: float) -> Withdrawn:
        """Return one message to its sender, if it still waits."""
        state = self._state
        taken = state.queue.take_message(withdraw.message_id)
        if taken is None:
            fate = state.fates.get(withdraw.message_id)
            if fate is None:
                raise NotFound(
                    "there is no such message in this session",
                    expected="the message_id of an accepted message",
                    got=withdraw.message_id,
                    remedy="see the answer that the message got",
                )
            known = WithdrawOutcome.ALREADY_INPUT if fate is Fate.INPUT else WithdrawOutcome.ALREADY_RETURNED
            return Withdrawn(withdraw.message_id, known)
        row, emptied = taken
        self._turns.unpark_if_empty()
        self._turns.add_returned(row.message, row.run_id, ReturnReason.WITHDRAWN)
        if emptied is not None:
            provenance = Provenance(
                source="client.withdraw",
                reason="its last message was withdrawn",
                requested_by=withdraw.id,
                initiated_at=at,
            )
            self._turns.cancel(emptied, provenance, at, withdrawn=(row.message.id,))
        return Withdrawn(withdraw.message_id, WithdrawOutcome.WITHDRAWN)
