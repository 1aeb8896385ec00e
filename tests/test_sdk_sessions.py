"""Sessions of the openai and anthropic SDKs, ended at each event of an answer: the next request is taken, and is true.

The packages are as they are, in an environment of their own (see `test_sdks`). The provider refuses what the real one
would refuse. An answer has thinking, a text and two calls at once; the first message has an image. In half of the
sessions another answer comes before it, with results that have an image and other files.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import NewMessage
from supervisor import Config, Supervisor
from supervisor.agent import Agent
from tests.kit import GRACE_S, KILL_S, WAIT_S, Kit
from tests.scripted_provider import PROVIDERS, Case, providing
from tests.sdk_sessions import Notes, Player, cuts, plays
from tests.test_agents_page import CODE
from tests.test_sdks import INSTALL_S, PYTHON, ROOT, sdks

__all__ = ["sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)

PLAYS_S = 800
CASES = sum(len(plays(agent)) for agent in PROVIDERS)


def test_l6_after_an_end_at_each_event_of_an_answer_the_next_request_is_taken_and_tells_the_truth(
    sdks: None, tmp_path: Path
) -> None:
    command = [PYTHON, "-m", "tests.sdk_sessions", str(tmp_path / "state"), str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    played = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PLAYS_S, check=False)
    assert played.returncode == 0, played.stderr[-4_000:]
    assert json.loads((tmp_path / "out").read_text()) == CASES


@pytest.fixture
def cases() -> Iterator[tuple[dict[str, Case], str]]:
    """What the provider serves, and where."""
    served: dict[str, Case] = {}
    with providing(served) as url:
        yield served, url


@pytest.mark.parametrize("agent", PROVIDERS)
def test_l6_in_a_host_the_next_request_is_taken_and_tells_the_truth(
    sdks: None, kit: Kit, tmp_path: Path, cases: tuple[dict[str, Case], str], agent: str
) -> None:
    served, url = cases
    env = {kit.mark: "1", "MODEL_URL": url, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    run = f"tests.answering_sdks:{agent}"
    spec = Agent(run=run, python=PYTHON, path=[str(ROOT)], env=env, spares=0, keep="session")
    notes = Notes()
    config = Config(
        state_dir=kit.state_dir, agents={agent: spec}, agent=agent, tools=[notes.note], grace_s=GRACE_S, kill_s=KILL_S
    )
    kit.supervisor = Supervisor.start(config)
    player = Player(kit.supervisor, served, notes)
    last = cuts(agent)[-1]
    for cut, how, behind in ((last // 2, "takeover", 1), (last, "stop", 0)):
        player.play(agent, cut, how, behind)


def page(sdk: str, folder: Path) -> dict[str, object]:
    """Write the agent of docs/agents.md that has answers with this SDK as a module; returns what an `Agent` needs."""
    (code,) = (code for code in CODE if f"from {sdk} import" in code and "turn.answer(" in code)
    (folder / "of_the_page.py").write_text(code.replace("from actors import", "from countermand import"))
    return {"run": "of_the_page:answer", "path": [str(folder)]}


@pytest.mark.parametrize("which", ["anthropic", "openai", "by_hand"])
def test_l6_a_session_that_was_taken_over_in_a_tool_is_refused_nothing(
    sdks: None, kit: Kit, tmp_path: Path, cases: tuple[dict[str, Case], str], which: str
) -> None:
    """With thinking on, such a session was refused each later request."""
    served, url = cases
    case = served["c"] = Case("c")
    env = {
        kit.mark: "1",
        "MODEL_URL": url,
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_API_KEY": "none",
        "MODEL": "m",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
    }
    by_hand = {"run": "tests.answering_sdks:anthropic_by_hand", "path": [str(ROOT)]}
    options: Any = by_hand if which == "by_hand" else page(which, tmp_path)
    agent, notes = Agent(python=PYTHON, env=env, spares=0, keep="session", **options), Notes()
    kit.supervisor = Supervisor.start(
        Config(
            state_dir=kit.state_dir, agents={"a": agent}, agent="a", tools=[notes.note], grace_s=GRACE_S, kill_s=KILL_S
        )
    )
    session = kit.supervisor.session("s1")
    session.ask(NewMessage(content="[case c] go on"))
    assert notes.held["c:hold"].wait(WAIT_S), case.refused
    for text in ("no, do this", "hello?", "anybody?"):
        run_id = session.ask(NewMessage(content=f"[case c] {text}")).run_id
        assert run_id is not None
        session.receipt(run_id, timeout=WAIT_S)
        info = session.run(run_id)
        assert (info.status, case.refused) == ("completed", []), info.error
    assert len(case.requests) == 4
    for asked in case.requests[1:]:
        told = json.dumps(asked)
        assert "noted c:first" in told
        assert "nterrupted" in told
