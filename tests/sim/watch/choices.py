"""ChoiceLaws: each run is of the agent that its messages name, or that its session has (laws L4, L6, L12)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from actors.model import Event
from actors.ports import Batch
from tests.sim.watch.seen import Seen

CONFIGURED = "scripted"


@dataclass(slots=True)
class _Session:
    """What the log of one session says: its agent, as it should be, and as it is on record; and the runs in it.

    `before`: the last run that handed the session over, and the agent from before it. `taken`: messages that were
    handled. By run: the agents that its messages name, who runs it, and to whom it handed the session.
    """

    expected: str | None = None
    recorded: str | None = None
    before: tuple[str, str | None] = ("", None)
    taken: int = 0
    named: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    agents: dict[str, str] = field(default_factory=dict)
    handed: dict[str, str] = field(default_factory=dict)


class ChoiceLaws:
    """Which agents run, against what messages name and agents hand over."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._sessions: defaultdict[str, _Session] = defaultdict(_Session)

    def batch(self, batch: Batch) -> None:
        """A batch is durable."""
        if batch.erase:
            self._sessions.pop(batch.session, None)
        session = self._sessions[batch.session]
        for event in batch.events:
            self._event(session, event)
        row = batch.row
        if row is not None and row.choice.name != session.recorded:
            self._seen.break_(f"{batch.session} has {session.recorded}, and {row.choice.name} is on record (L12)")
        if session.expected != session.recorded:
            self._seen.break_(f"{batch.session} has {session.recorded}, and {session.expected} was chosen (L6)")

    def _event(self, session: _Session, event: Event) -> None:
        run, data = event.run_id or "", event.data
        match event.kind:
            case "message":
                first, session.taken = not session.taken, session.taken + 1
                if "agent" not in data:
                    return
                session.named[run].add(data["agent"])
                if session.named[run] != {session.agents.get(run, data["agent"])}:
                    self._seen.break_(f"{run} has messages for {session.named[run]} (L4)")
                if (data["origin"] == "user" or first) and data["agent"] != session.expected:
                    session.expected, session.before = data["agent"], ("", None)
            case "session.message_returned":
                session.taken += 1
            case "session.agent":
                session.recorded = data["agent"]
                if "message_id" not in data:
                    before = session.before[1] if session.before[0] == run else session.expected
                    session.expected, session.before = data["agent"], (run, before)
                    session.handed[run] = data["agent"]
            case "message.retracted" if session.before[0] == run:
                session.expected, session.before = session.before[1], ("", None)
            case "run.started":
                session.agents[run] = data["agent"]
                own = session.agents.get(data.get("retry_of", ""), session.expected or CONFIGURED)
                wanted = session.named[run] or {own}
                if {data["agent"]} != wanted:
                    self._seen.break_(f"{run} is run by {data['agent']}, and is for {wanted} (L4)")
            case _:
                pass

    def runs(self, session: str, run_id: str, agent: str) -> None:
        """The code of an agent begins."""
        known = self._sessions[session].agents.get(run_id)
        if known is not None and known != agent:
            self._seen.break_(f"{agent} runs {run_id}, which is {known}'s (L6)")

    def told(self, session: str, run_id: str, agent: str) -> None:
        """An agent is told that it handed its session over: that is durable."""
        if self._sessions[session].handed.get(run_id) != agent:
            self._seen.break_(f"{run_id} is told that {agent} has the session before that is durable (L12)")
