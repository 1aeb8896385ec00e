"""Plays sessions of agents with an adapter: each is ended at one point, and what is asked next is taken, and is true.

    python -m tests.adapted_sessions STATE_DIR OUT AGENT...

plays all of them inside this program, which needs no more than the packages of the agents and of the supervisor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from actors import Answer, NewMessage, Stop
from supervisor import Config, SessionHandle, Supervisor
from tests.adapter_provider import DONE, NEXT, POINTS, SAID, Case, providing, results
from tests.sdk_sessions import WAIT_S, until

ENDS = ("stop", "takeover")
DEAR = ("claude_agent_sdk", "smolagents")
"""Agents of which a start takes long: without `./scripts/test --agents` each point has one end, in turn."""
OWN = ("claude_agent_sdk",)
"""Agents that keep the conversation themselves, and are told what has become of it."""
TOLD = {"between": "noted {}:first", "tool": "nterrupted", "approval": "ot started"}
"""What these are told, or know, of the end at a point."""


def plays(agent: str) -> list[tuple[str, str]]:
    """The points of an agent, each with an end."""
    every = [(point, how) for point in POINTS for how in ENDS]
    if agent not in DEAR or "CM_TEST_AGENTS" in os.environ:
        return every
    return [(point, ENDS[place % len(ENDS)]) for place, point in enumerate(POINTS)]


class Player:
    """Plays the cases of one supervisor.

    Args:
        supervisor: its agents are those of `adapted_agents`, or some of them.
        cases: those that the provider serves.
        notes: the folder where their tools note what they do.
    """

    def __init__(self, supervisor: Supervisor, cases: dict[str, Case], notes: Path) -> None:
        self._supervisor = supervisor
        self._cases = cases
        self._notes = notes

    def play(self, agent: str, point: str, how: str) -> None:
        """End a run at a point, by a Stop or by a message that takes over, and go on."""
        name = f"{agent}-{point}-{how}"
        case = self._cases.setdefault(name, Case())
        session = self._supervisor.session(name)
        first = self._begin(session, agent, f"[case {name}] What is it?")
        until(lambda: self._reached(session, case, name, point) or session.run(first).ended_at, f"{name} is there")
        assert not session.run(first).ended_at, (name, session.run(first).error)
        if how == "stop":
            session.ask(Stop(source="user.test", reason="enough", run_id=first))
            receipt = session.receipt(first, timeout=WAIT_S)
            assert receipt.complete, receipt
        second = self._begin(session, agent, f"{NEXT} No, do this.")
        self._comes_to_its_end(session, case, second)
        assert session.receipt(first, timeout=WAIT_S).complete, name
        assert session.run(first).status == "cancelled", name
        self._tells_the_truth(case, name, point)
        usage = session.run(second).usage
        assert (usage.input, usage.output) == (7, 3), (name, usage)
        if agent not in OWN:
            self._comes_to_its_end(session, case, self._begin(session, agent, f"{NEXT} And now?"))
        assert [one.content for one in session.thread() if one.content][-1] == DONE, name

    def allow(self, agent: str) -> None:
        """Let a call begin that waits for it: the model gets its result."""
        name = f"{agent}-approval-allowed"
        case = self._cases.setdefault(name, Case())
        session = self._supervisor.session(name)
        first = self._begin(session, agent, f"[case {name}] Wipe it.")
        until(lambda: session.status().asking or session.run(first).ended_at, f"{name}: it asks")
        (asking,) = session.status().asking
        # Where the agent asks by itself, it takes a person's words as they come.
        words = " Allow" if agent in OWN else "allow"
        session.ask(Answer(call_id=asking.call_id, content=words, allow=True))
        assert case.reached.wait(WAIT_S), name
        assert f"noted {name}:first" in json.dumps(case.requests[-1])
        session.ask(Stop(source="user.test", reason="enough", run_id=first))
        assert session.receipt(first, timeout=WAIT_S).complete, name

    def hand_over(self, agent: str, other: str) -> None:
        """Have an agent hand over to another one: the session is the other's from then on."""
        name = f"{agent}-handoff-over"
        case = self._cases.setdefault(name, Case())
        session = self._supervisor.session(name)
        self._comes_to_its_end(session, case, self._begin(session, agent, f"[case {name}] Hand over."))
        assert session.status().agent == other
        run_id = session.ask(NewMessage(content=f"{NEXT} And now?")).run_id or ""
        self._comes_to_its_end(session, case, run_id)
        assert session.run(run_id).agent == other

    def _begin(self, session: SessionHandle, agent: str, content: str) -> str:
        run_id = session.ask(NewMessage(content=content, agent=agent)).run_id
        assert run_id is not None
        return run_id

    def _comes_to_its_end(self, session: SessionHandle, case: Case, run_id: str) -> None:
        receipt = session.receipt(run_id, timeout=WAIT_S)
        run = session.run(run_id)
        assert run.status == "completed", (session.session, run.status, run.error, case.refused)
        assert receipt.complete, receipt

    def _reached(self, session: SessionHandle, case: Case, name: str, point: str) -> bool:
        if point == "approval":
            return bool(session.status().asking)
        if point == "tool":
            noted = [*(one.content for one in session.thread() if one.role == "tool")]
            return self._noted(name, "hold begun") and f"noted {name}:first" in noted
        return case.reached.is_set() and (point == "retry" or SAID in [one.content for one in session.thread()])

    def _noted(self, name: str, what: str) -> bool:
        return (self._notes / f"{name}:{what}").exists()

    def _tells_the_truth(self, case: Case, name: str, point: str) -> None:
        """What is asked next says of each call what became of it, and what was said before."""
        asked = case.requests[-1]
        found = results(asked)
        if name.startswith(OWN):
            text = json.dumps(asked)
            assert "The run before this was interrupted" in text, (name, text)
            assert TOLD.get(point, "").format(name) in text, (name, text)
            return
        if name.startswith("smolagents"):
            # It has calls as text.
            text = json.dumps(asked)
            assert TOLD.get(point, "").format(name) in text, (name, text)
            assert [SAID in text] == [point != "retry"], (name, text)
            return
        assert [SAID in json.dumps(asked)] == [point != "retry"], (name, asked)
        if point in ("between", "tool"):
            assert found[:1] == [f"noted {name}:first"], (name, found)
        if point == "tool":
            assert len(found) == 2, (name, found)
            assert "nterrupted" in found[1], (name, found)
        elif point == "approval":
            # Where the tool itself asks, that is a call in it.
            assert found, name
            assert "ot started" in found[-1], (name, found)
            assert not self._noted(name, "first begun"), name
        elif point != "between":
            assert not found, (name, found)


def main(state_dir: str, out: str, agents: Collection[str]) -> None:
    """Play every case of every agent."""
    from tests import adapted_agents

    cases: dict[str, Case] = {}
    notes, played = Path(state_dir).with_name("notes"), 0
    notes.mkdir()
    os.environ["NOTES"] = str(notes)
    with providing(cases) as url:
        os.environ["MODEL_URL"] = url
        functions: dict[str, Any] = {name: getattr(adapted_agents, name) for name in (*agents, "triage")}
        config = Config(state_dir=state_dir, agents=functions, agent=next(iter(agents)), grace_s=1.0, subreaper=True)
        with Supervisor.start(config) as supervisor:
            player = Player(supervisor, cases, notes)
            for agent in agents:
                for point, how in plays(agent):
                    player.play(agent, point, how)
                    played += 1
                player.allow(agent)
                if agent == "openai_agents":
                    player.hand_over("triage", agent)
    Path(out).write_text(json.dumps(played))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
