"""Which agent answers: chosen by a message that names one, or by an agent that hands its session over.

The choice is the session's: it holds for later messages that name none. A message of a person makes it, and the first
message of a session, whoever sent it. A message of any other client names the agent of its own run alone.
"""

from __future__ import annotations

from actors.events import SessionAgentData
from actors.messages import HandOffRequested
from actors.protocol.queue import chooses_agent
from actors.protocol.run_record import RunRecord
from actors.protocol.state import SessionState
from actors.protocol.step import RefuseSave, SaySaved
from actors.requests import NewMessage


class Agents:
    """Decides which agent a session has."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    def named(self, message: NewMessage, record: RunRecord, *, first: bool) -> None:
        """A message becomes an input of a run of the agent that it names. `first`: it is the first of its session."""
        state = self._state
        if message.agent is None or message.agent == state.choice.name or not (first or chooses_agent(message)):
            return
        state.choice = state.choice.chosen(message.agent)
        data = SessionAgentData(agent=message.agent, by=message.origin, message_id=message.id)
        state.event(data, record)

    def hand_off_requested(self, request: HandOffRequested) -> None:
        """An agent hands its session over. After a fence that is stale, and the cancel of its token has said so."""
        state = self._state
        record = state.open_run(request.address)
        if request.size is not None:
            state.step.return_credit(request.address.run, request.size)
        if record is None:
            state.refuse_stale("hand_off", request.address, request.agent)
            return
        unavailable = state.unavailable(request.agent)
        if unavailable is not None:
            state.step.now.append(RefuseSave(request.told, unavailable))
            return
        state.choice = state.choice.handed_over(record.id, request.agent)
        state.event(SessionAgentData(agent=request.agent, by=record.info.agent), record)
        state.step.later.append(SaySaved(request.told))

    def rolled_back(self, record: RunRecord, message: NewMessage) -> None:
        """A message rolls a run back: so is its hand-off."""
        state = self._state
        before, state.choice = state.choice, state.choice.rolled_back(record.id)
        if state.choice != before:
            # Not under the run's own generation, which is closed.
            state.event(SessionAgentData(agent=state.choice.name, by=message.origin, message_id=message.id), None)
