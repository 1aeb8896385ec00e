"""Mutants of which agent answers."""

from __future__ import annotations

from typing import Final

from actors.agent_choice import AgentChoice
from actors.protocol.agents import Agents
from actors.protocol.intake import Intake
from actors.protocol.queue import PendingTurn
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.turns import Turns
from tests.sim.mutants.mutant import mutant

AGENTS: Final = (
    mutant(
        "messages for different agents share a turn",
        "L4",
        PendingTurn,
        "takes",
        "self.merge and message.merge and named",
        "self.merge and message.merge",
    ),
    mutant(
        "a message for another agent steers a run",
        "L4",
        Intake,
        "_take",
        " and message.agent in (None, active.info.agent)",
        "",
    ),
    mutant(
        "a message takes along what waits for another agent",
        "L4",
        Turns,
        "take_with",
        "agents[turn.run_id] == agent or",
        "agents or",
    ),
    mutant(
        "a run has the session's agent, whatever its messages name",
        "L4",
        Runs,
        "start",
        "(named or state.agent)",
        "state.agent",
    ),
    mutant("a client's message chooses the session's agent", "L6", Agents, "named", "(first or", "(True or"),
    mutant(
        "a closed run hands its session over",
        "L1",
        Agents,
        "hand_off_requested",
        "record = state.open_run(request.address)",
        "record = state.open_run(request.address) or state.record(request.address.run)",
    ),
    mutant("a rollback keeps a hand-off", "L6", AgentChoice, "rolled_back", "run == self.handed_by", "False"),
    mutant(
        "the agent of a session is forgotten at a restart",
        "L12",
        SessionState,
        "restore",
        "self.choice = row.choice",
        "pass",
    ),
)
