"""Plays sessions of the SDKs: each is ended at one event of an answer, and what is asked next is taken, and is true.

    python -m tests.sdk_sessions STATE_DIR OUT

plays all of them inside this program, which needs no more than the packages of the agents and of the supervisor.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors import File, NewMessage, Stop, tool
from actors.model import Policy
from supervisor import Config, SessionHandle, Supervisor
from tests.scripted_provider import EARLIER, PROVIDERS, TEXTS, Case, providing

WAIT_S = 60.0
ENDS = ("stop", "takeover")
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
DRAWING = PIXEL[:-1] + b"\x83"
"""Another image, as far as anybody looks."""
MADE = {
    "seen": [File(DRAWING, "image/png", "drawing.png"), File(b"figures of 2025", "text/plain", "figures.txt")],
    "read": [File(b"PK", "application/zip", "all.zip")],
}
"""The files that the tool returns, by the last word of what it notes."""


class Notes:
    """The tool of the agents: it notes a text, and never comes to the end of one that says ``hold``."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.done: set[str] = set()
        self.held: defaultdict[str, threading.Event] = defaultdict(threading.Event)

        @tool(isolation="task")
        async def note(text: str) -> str | list[str | File]:
            """Note a text."""
            self.begun.add(text)
            if text.endswith(":hold"):
                self.held[text].set()
                await asyncio.Event().wait()
            self.done.add(text)
            made = MADE.get(text.rpartition(":")[2])
            return f"noted {text}" if made is None else [f"noted {text}", *made]

        self.note = note


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"not so in {WAIT_S} s: {what}"
        time.sleep(0.005)


class Player:
    """Plays the cases of one supervisor.

    Args:
        supervisor: its agents are those of `answering_sdks`.
        cases: those that the provider serves.
        notes: its tool.
    """

    def __init__(self, supervisor: Supervisor, cases: dict[str, Case], notes: Notes) -> None:
        self._supervisor = supervisor
        self._cases = cases
        self._notes = notes

    def play(self, agent: str, cut: int, how: str, behind: int = 0) -> None:
        """Cut an answer at one event, end the run there in one way, and go on.

        Args:
            agent: its name, which is that of the provider.
            cut: how many events of the answer are sent; all of them: both calls have begun.
            how: one of `ENDS`, or ``rollback``.
            behind: how many answers of the run come before it, whose calls have files as results.
        """
        provider = PROVIDERS[agent]
        name = f"{agent}-{cut}-{how}-{behind}"
        case = self._cases.setdefault(name, Case(name, cut, behind))
        session = self._supervisor.session(case.name)
        told = f"[case {case.name}] What is it?"
        image = File(PIXEL, "image/png", "pixel.png")
        first = session.ask(NewMessage(content=told, agent=agent, attachments=(image,))).run_id
        assert first is not None
        events = provider.events(case.name)
        kept = provider.kept(events[:cut])
        until(lambda: case.reached.is_set() or session.run(first).ended_at, f"{case.name}: so much of it is sent")
        assert case.reached.is_set(), (case.name, session.run(first).error, case.refused)
        spoken = kept + behind * provider.kept(events)
        until(lambda: _count(session, "text", "block") == spoken, f"{case.name}: {kept} parts are on record")
        if cut >= len(events):
            assert self._notes.held[f"{case.name}:hold"].wait(WAIT_S)
            until(lambda: _count(session, "tool.ended") == 1 + 2 * behind, "the first call has its result")
        if how == "stop":
            session.ask(Stop(source="user.test", reason="enough", run_id=first))
            session.receipt(first, timeout=WAIT_S)
        again = f"[case {case.name}] No, do this."
        self._goes_on(session, case, again, Policy.ROLLBACK if how == "rollback" else None)
        assert session.run(first).status == "cancelled", case.name
        self._tells_the_truth(agent, case, kept, how)
        self._goes_on(session, case, "And now?", None)
        assert len(case.requests) == 3 + behind, (case.name, len(case.requests))

    def _goes_on(self, session: SessionHandle, case: Case, content: str, policy: Policy | None) -> None:
        run_id = session.ask(NewMessage(content=content, policy=policy)).run_id
        assert run_id is not None
        session.receipt(run_id, timeout=WAIT_S)
        run = session.run(run_id)
        assert run.status == "completed", (case.name, run.status, run.error, case.refused)

    def _tells_the_truth(self, agent: str, case: Case, kept: int, how: str) -> None:
        """What is asked next says of each call what became of it, and of the answer what is on record."""
        provider = PROVIDERS[agent]
        asked = case.requests[1 + case.behind][provider.messages]
        results = provider.results(asked)
        texts = json.dumps(asked)
        words = {name: f"{case.name}:{name}" for name in ("first", "hold")}
        if how == "rollback":
            assert not results, (case.name, results)
            assert TEXTS[0] not in texts, case.name
            return
        if case.behind:
            seen = {f"noted {case.name}:{word}" for word in EARLIER}
            # Where a result has only text, it says more than that: which files follow.
            lines = {one: text.partition("\n")[0] for one, text in results.items()}
            assert seen <= set(lines.values()), (case.name, results)
            results = {one: text for one, text in results.items() if lines[one] not in seen}
            shown = [base64.b64encode(DRAWING).decode(), "figures of 2025", "all.zip"]
            assert [one for one in shown if one not in texts] == [], f"{case.name}: not all files of results are shown"
        first = next((text for text in results.values() if words["first"] in str(text)), None)
        ran = {name: word in self._notes.begun for name, word in words.items()}
        if words["first"] in self._notes.done:
            assert first == f"noted {words['first']}", (case.name, results)
            held = [str(text) for text in results.values() if text != first]
            assert len(held) == 1, (case.name, results)
            assert "nterrupted" in held[0], (case.name, results)
            assert "hold" in texts, case.name
        else:
            assert not any(ran.values()), (case.name, ran)
            assert all("ot started" in str(text) for text in results.values()), (case.name, results)
        # Texts are there as far as they are on record, and the image of the first message is.
        said = [texts.count(text.strip()) - case.behind for text in TEXTS]
        spoken = max(0, kept - 1)
        assert said == [int(number < spoken) for number in range(len(TEXTS))], (case.name, said, kept)
        assert base64.b64encode(PIXEL).decode() in texts, f"{case.name}: the image is not shown"


def _count(session: SessionHandle, *kinds: str) -> int:
    status = session.status()
    if not status.last_seq:
        return 0
    count = 0
    with session.subscribe(timeout=WAIT_S) as events:
        for event in events:
            count += event.kind in kinds
            if event.seq >= status.last_seq:
                break
    return count


def cuts(agent: str) -> range:
    """Each place of an answer at which it can be cut."""
    return range(len(PROVIDERS[agent].events("")) + 1)


def plays(agent: str) -> list[tuple[int, str, int]]:
    """Each cut with each end: of the first answer, and of one behind results with files."""
    last = cuts(agent)[-1]
    ends = [(cut, how) for cut in cuts(agent) for how in ((*ENDS, "rollback") if cut == last else ENDS)]
    return [(cut, how, behind) for behind in (0, 1) for cut, how in ends]


def main(state_dir: str, out: str) -> None:
    """Play every case of every agent."""
    from tests import answering_sdks

    cases: dict[str, Case] = {}
    notes, played = Notes(), 0
    with providing(cases) as url:
        os.environ["MODEL_URL"] = url
        agents: dict[str, Any] = {name: getattr(answering_sdks, name) for name in PROVIDERS}
        config = Config(state_dir=state_dir, agents=agents, agent="anthropic", tools=[notes.note], grace_s=1.0)
        with Supervisor.start(config) as supervisor:
            player = Player(supervisor, cases, notes)
            for agent in PROVIDERS:
                for cut, how, behind in plays(agent):
                    player.play(agent, cut, how, behind)
                    played += 1
    Path(out).write_text(json.dumps(played))


if __name__ == "__main__":
    main(*sys.argv[1:])
