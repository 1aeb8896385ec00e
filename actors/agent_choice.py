"""AgentChoice: the agent that answers a session's messages, where a message names none."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class AgentChoice(Struct, frozen=True):
    """Which agent a session has.

    name: None: the configured one.
    handed_by: the run that handed the session over to it: a rollback of that run takes it back. None: a message chose.
    before: the agent from before that run.
    """

    name: str | None = None
    handed_by: str | None = None
    before: str | None = None

    def chosen(self, agent: str) -> AgentChoice:
        """Return the choice after a message has named an agent for the session."""
        return AgentChoice(agent)

    def handed_over(self, run: str, agent: str) -> AgentChoice:
        """Return the choice after a run has handed the session over."""
        return AgentChoice(agent, run, self.before if run == self.handed_by else self.name)

    def rolled_back(self, run: str) -> AgentChoice:
        """Return the choice after the rollback of a run."""
        return AgentChoice(self.before) if run == self.handed_by else self


NO_CHOICE: Final = AgentChoice()
"""Of a session in which no agent was chosen."""
