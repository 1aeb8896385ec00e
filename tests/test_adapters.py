"""Agents with an adapter, their frameworks as they are: ended at each point, the next request is taken, and is true.

The packages are in an environment of their own (see `test_sdks`). The provider refuses what the real one would refuse.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import NewMessage
from supervisor import Agent, Config, Supervisor
from tests.adapted_sessions import Player, plays
from tests.adapter_provider import DONE, SAID, Case, providing
from tests.host_kit import python_host
from tests.kit import GRACE_S, KILL_S, WAIT_S, Kit, check_rest, kit
from tests.test_sdks import INSTALL_S, PYTHON, ROOT, sdks

__all__ = ["kit", "sdks"]

pytestmark = pytest.mark.timeout(INSTALL_S)

INSIDE = ("claude_agent_sdk", "langgraph", "openai_agents", "pydantic_ai")
PLAIN = "smolagents"
"""A plain agent, which only a host can end wherever it waits."""
of_agents = pytest.mark.parametrize("agent", [*INSIDE, PLAIN])
PLAYS_S = 600
PAGE = (ROOT / "docs" / "agents.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("agent", INSIDE)
def test_l6_after_an_end_at_each_point_the_next_request_is_taken_and_tells_the_truth(
    sdks: None, tmp_path: Path, agent: str
) -> None:
    command = [PYTHON, "-m", "tests.adapted_sessions", str(tmp_path / "state"), str(tmp_path / "out"), agent]
    path = os.pathsep.join((str(ROOT), str(ROOT / "scripts")))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    played = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PLAYS_S, check=False)
    assert played.returncode == 0, played.stderr[-4_000:]
    assert json.loads((tmp_path / "out").read_text()) == len(plays(agent))


@pytest.fixture
def cases() -> Iterator[tuple[dict[str, Case], str]]:
    """What the provider serves, and where."""
    served: dict[str, Case] = {}
    with providing(served) as url:
        yield served, url


def hosts(kit: Kit, url: str, run: str, folder: Path, **env: str) -> Agent:
    """How hosts with the packages are started; all that they start carries the mark of the test."""
    given = {kit.mark: "1", "MODEL_URL": url, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **env}
    return Agent(run=run, python=PYTHON, path=[str(ROOT), str(folder)], env=given, spares=0, keep="session")


def start(kit: Kit, name: str, agent: Agent) -> Supervisor:
    config = Config(state_dir=kit.state_dir, agents={name: agent}, agent=name, grace_s=GRACE_S, kill_s=KILL_S)
    kit.supervisor = Supervisor.start(config)
    return kit.supervisor


@of_agents
def test_l3_in_a_host_nothing_is_left_of_a_tool_and_the_next_request_is_taken(
    sdks: None, kit: Kit, tmp_path: Path, cases: tuple[dict[str, Case], str], agent: str
) -> None:
    served, url = cases
    spec = hosts(kit, url, f"tests.adapted_agents:{agent}", tmp_path, NOTES=str(tmp_path), CHILDREN="1")
    supervisor = start(kit, agent, spec)
    player = Player(supervisor, served, tmp_path)
    played = plays(agent) if agent == PLAIN else [("tool", "stop")]
    for point, how in played:
        player.play(agent, point, how)
        check_rest(supervisor.session(f"{agent}-{point}-{how}"))
    if agent == PLAIN:
        player.allow(agent)
    supervisor.close()
    assert kit.alive() == []


@of_agents
def test_the_example_of_the_page_answers_with_its_tool(
    sdks: None, kit: Kit, tmp_path: Path, cases: tuple[dict[str, Case], str], agent: str
) -> None:
    served, url = cases
    (code,) = (one for one in CODE if f"adapters.{agent} " in one)
    (tmp_path / "my_agents.py").write_text(code)
    (tmp_path / "my_models.py").write_text("from tests.adapted_agents import chat_model\n\nchat = chat_model()\n")
    (tmp_path / "words.txt").write_text("what is in the file")
    env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    spec = hosts(kit, url, "my_agents:answer", tmp_path, MODEL="openai-chat:m", **env)
    session = start(kit, agent, spec).session("s")
    name = f"{agent}-page-read"
    served[name] = Case()
    asked = session.ask(NewMessage(content=f"[case {name}] Read [file {tmp_path}/words.txt]")).run_id or ""
    receipt = session.receipt(asked, timeout=WAIT_S)
    assert session.run(asked).status == "completed", session.run(asked).error
    assert receipt.complete
    assert [(one.role, one.content) for one in session.thread()[1:] if one.content] == [
        ("assistant", SAID),
        ("tool", "what is in the file"),
        ("assistant", DONE),
    ]


def test_smolagents_gets_notes_of_files_and_the_tokens_of_all_deltas_are_counted(sdks: None, tmp_path: Path) -> None:
    code = """
        import json
        from countermand.adapters.smolagents import run
        from smolagents import Model, ToolCallingAgent
        from smolagents.models import ChatMessageStreamDelta, get_clean_message_list
        from smolagents.monitoring import TokenUsage

        class Local(Model):
            def generate_stream(self, messages, **_):
                asked = get_clean_message_list(list(messages), flatten_messages_as_text=True)
                texts = [one["content"] for one in asked if one["role"] == "user"]
                call = json.dumps({"name": "final_answer", "arguments": {"answer": texts}})
                # As local models count: each delta is a token.
                for place, text in enumerate((call[:5], call[5:9], call[9:])):
                    yield ChatMessageStreamDelta(text, token_usage=TokenUsage(0 if place else 100, 1))

        def agent(turn):
            return str(run(turn, ToolCallingAgent([], Local(), max_steps=1, verbosity_level=0)))
    """
    file = {"type": "media", "attachment": "a", "media_type": "image/png", "size": 10, "name": "cat.png"}
    parts = [{"type": "text", "text": "Look:"}, file]
    thread = [
        {"id": "m1", "role": "user", "content": "Look:", "run_id": "run_0", "parts": parts},
        {"id": "m2", "role": "assistant", "content": "A cat.", "run_id": "run_0"},
        {"id": "m3", "role": "user", "content": "", "run_id": "run_1", "parts": [file]},
    ]
    with python_host(tmp_path, code, python=PYTHON) as host:
        host.hello()
        number = host.run(thread=thread, inputs=["m3"])
        frames = []
        while (frame := host.next()).get("id") != number:
            frames.append(frame)
            if "id" in frame:
                host.answer(frame)
        text = frame["result"]["value"]
        assert text.count("[This file is not shown: cat.png, image/png, 10 bytes]") == 2, text
        assert "Look:\\n\\n[This" in text, text
        (usage,) = [one["params"]["usage"] for one in frames if one["method"] == "answer.end"]
        assert usage == {"input": 100, "output": 3}
