"""docs/agents.md: its configurations are valid, its code is code, and its first agent runs as it says."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

from actors import File
from supervisor import Agent
from supervisor.daemon.settings import Source
from tests.kit import Kit, kit, say, settled
from tests.media_kit import PNG
from tests.pipe_points import server
from tests.test_hosts import ended, none_left, receipt_of, texts

__all__ = ["kit"]

PAGE = (Path(__file__).parent.parent / "docs" / "agents.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TABLES = [block for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE) if "[agents" in block]


@pytest.mark.parametrize("table", TABLES)
def test_a_configuration_of_the_page_is_valid(tmp_path: Path, table: str) -> None:
    file = tmp_path / "countermand.toml"
    file.write_text(re.sub(r"^    ", "", table, flags=re.MULTILINE))
    agents = Source(file, {"COUNTERMAND_STATE_DIR": str(tmp_path)}).load().config.agents
    assert all(isinstance(agent, Agent) for agent in agents.values())
    assert len(agents) == 1


@pytest.mark.parametrize("code", [code for code in CODE if "session.ask(" not in code])
def test_the_code_of_the_page_is_an_agent(code: str) -> None:
    kinds = (ast.AsyncFunctionDef, ast.FunctionDef)
    defined = [node for node in ast.parse(code).body if isinstance(node, kinds)]
    assert defined[-1].name == "answer"
    assert [argument.arg for argument in defined[-1].args.args] == ["turn"]
    assert len(code.splitlines()) <= 30


def test_the_first_agent_of_the_page_runs_as_it_says(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(CODE[0].replace("make test", "echo tested"))
    agent = Agent(run="my_agents:answer", path=[str(tmp_path)], env={kit.mark: "1"}, cwd=os.getcwd(), spares=0)
    session = kit.start(agent).session("s1")
    run = ended(session, say(session, "hello"))
    assert (run.status, "".join(texts(session))) == ("completed", "You said: hellotested\n")
    none_left(kit, receipt_of(session, run.run_id))
    settled(session)


def test_the_agent_of_the_page_talks_to_its_server(kit: Kit) -> None:
    (code,) = [code for code in CODE if "my-server" in code]
    space = dict[str, Any]()
    exec(compile(code.replace('["my-server"]', repr(server())), "docs/agents.md", "exec", dont_inherit=True), space)
    session = kit.start(space["answer"]).session("s1")
    run = ended(session, say(session, "hello"))
    assert (run.status, texts(session)) == ("completed", ["null"])
    receipt = receipt_of(session, run.run_id)
    assert receipt.complete
    settled(session)


def test_the_agent_of_the_page_reads_the_files_of_a_message(kit: Kit) -> None:
    (code,) = [code for code in CODE if "turn.attachment(" in code]
    space = dict[str, Any]()
    exec(compile(code, "docs/agents.md", "exec", dont_inherit=True), space)
    session = kit.start(space["answer"]).session("s1")
    run = ended(session, say(session, "What is it?", attachments=[File(PNG, "image/png", "cat.png")]))
    said = f"cat.png has {len(PNG)} bytes. The model is given 2 blocks."
    assert (run.status, "".join(texts(session))) == ("completed", said)
