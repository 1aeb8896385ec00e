"""docs/tools.md: its tools run as the page says."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, File
from actors.plugin.registration import tool
from actors.plugin.spawning import AsyncSpawn, Spawn
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say

PAGE = (Path(__file__).parent.parent / "docs" / "tools.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def defined(name: str, **names: Any) -> Any:
    """Return what a block of the page defines."""
    (code,) = [code for code in CODE if f"def {name}(" in code]
    space: dict[str, Any] = {
        "asyncio": asyncio,
        "tool": tool,
        "CancelToken": CancelToken,
        "AsyncSpawn": AsyncSpawn,
        "Spawn": Spawn,
        **names,
    }
    # As the page has it, with the names that its readers import.
    exec(compile(code, f"{name} in docs/tools.md", "exec", dont_inherit=True), space)
    return space[name]


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo ok; echo FAILED one; sleep 600", "FAILED one\n"),
        ("echo ok; exit 3", "exit status 2"),
    ],
    ids=["up to the first failure", "to the end"],
)
def test_the_output_of_the_tests_is_followed_and_logged(kit: Kit, tmp_path: Path, script: str, result: str) -> None:
    (tmp_path / "Makefile").write_text(f"test:\n\t@{script}\n")

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("test", folder=str(tmp_path))).content

    session = kit.session(agent, tools=[defined("test")])
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert [row.name for row in rows(receipt) if row.kind == "process"][:1] == ["make"]
    assert session.run(run_id).result == result
    printed = "".join(event.data["text"] for event in log(session) if event.kind == "tool.output")
    assert printed.startswith("ok\n")
    check_rest(session)


def test_a_program_is_answered_on_its_terminal(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("greet", name="Ada")).content

    session = kit.session(agent, tools=[defined("greet")])
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    # The first line is the echo.
    assert session.run(run_id).result.split() == ["Ada", "hello", "Ada"]
    printed = "".join(event.data["text"] for event in log(session) if event.kind == "tool.output")
    assert printed.split() == ["Ada", "hello", "Ada"]


def test_words_are_sorted_by_a_command_and_nothing_of_that_is_logged(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("sort", words=["b", "c", "a"])).content

    session = kit.session(agent, tools=[defined("sort")])
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).result == '["a","b","c"]'
    assert not [event for event in log(session) if event.kind == "tool.output"]


def test_a_library_asks_its_server_by_a_launcher(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my-server"
    program.write_text('#!/bin/sh\necho "$1: $(cat)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("ask", question="why?")).content

    session = kit.session(agent, tools=[defined("ask")])
    run_id = say(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert "my-server" in [row.name for row in rows(receipt) if row.kind == "process"]
    assert session.run(run_id).result == "--stdio: why?\n"


def test_a_drawing_is_a_file_of_its_result(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> list[Any]:
        result = await turn.call("draw", what="a cat")
        return [result.content, [part.name for part in result.media], list(await turn.attachment(result.media[0]))]

    session = kit.session(agent, tools=[defined("draw", File=File, png_of=str.encode)])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).result == ["a drawing of a cat", ["drawing.png"], list(b"a cat")]
    check_rest(session)
