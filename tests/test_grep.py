"""The `grep` tool: what it finds, its limits, and a pattern that does not end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import AsyncTurn, ToolResult
from supervisor.tools.grep import GREP_MAX_BYTES
from supervisor.tools.searcher import LINE_MAX_CHARS, MATCHES_MAX, SEARCHED_MAX_BYTES
from tests.kit import WAIT_S, Kit, check_rest, kit, rows, say, stop, until

__all__ = ["kit"]


def searched(kit: Kit, root: Path, *asked: dict[str, Any]) -> list[ToolResult]:
    """Return the results of searches, in one run."""
    results = list[ToolResult]()

    async def agent(turn: AsyncTurn) -> None:
        for arguments in asked:
            results.append(await turn.call("grep", **arguments))

    session = kit.session(agent, files_root=root)
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).error is None
    check_rest(session)
    return results


def test_it_finds_lines_below_the_root_and_nothing_beside_it(kit: Kit, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in (root / "src", root / ".git", tmp_path / "out"):
        folder.mkdir(parents=True)
        (folder / "x.py").write_text("def One():\n    pass\n")
    (root / "src" / "x.bin").write_bytes(b"One\0")
    (root / "src" / "latin").write_bytes(b"One \xe9\n")
    (root / "out").symlink_to(tmp_path / "out")
    with (root / "large").open("wb") as large:
        large.truncate(SEARCHED_MAX_BYTES + 1)
    found = searched(
        kit,
        root,
        {"pattern": "one", "ignore_case": True},
        {"pattern": "One", "glob": "*.py", "path": "src"},
        {"pattern": "One", "path": ".git/x.py"},
        {"pattern": "One", "path": "out"},
        {"pattern": "("},
        {"pattern": "no such line", "path": "src"},
    )
    too_large = f"[not searched: 1 files of more than {SEARCHED_MAX_BYTES} bytes]"
    assert [result.content for result in found[:3]] == [
        f"src/latin:1:One \ufffd\nsrc/x.py:1:def One():\n{too_large}",
        "src/x.py:1:def One():",
        ".git/x.py:1:def One():",
    ]
    assert [result.is_error for result in found] == [False] * 3 + [True] * 2 + [False]
    assert "leads out of the root" in found[3].content
    assert "unterminated subpattern" in found[4].content
    assert found[5].content == "[no line matches]"


def test_l14_it_returns_up_to_its_limits(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "full").write_text("x\n" * MATCHES_MAX)
    (tmp_path / "over").write_text("x\n" * (MATCHES_MAX + 1))
    (tmp_path / "long").write_text("y" * (LINE_MAX_CHARS + 1))
    (tmp_path / "much").write_text(("z" * LINE_MAX_CHARS + "\n") * MATCHES_MAX)
    full, over, long, much = searched(
        kit,
        tmp_path,
        {"pattern": "x", "path": "full"},
        {"pattern": "x", "path": "over"},
        {"pattern": "y", "glob": "long"},
        {"pattern": "z", "path": "much"},
    )
    assert full.content.split("\n") == [f"full:{number}:x" for number in range(1, MATCHES_MAX + 1)]
    last = f"[there are more: these are the first {MATCHES_MAX} lines]"
    assert over.content.split("\n") == [*full.content.replace("full", "over").split("\n"), last]
    assert long.content == f"long:1:{'y' * LINE_MAX_CHARS}…"
    lines = much.content.split("\n")
    assert lines[-1].startswith("[there are more")
    assert all(line.endswith(":" + "z" * LINE_MAX_CHARS) for line in lines[:-1])
    assert GREP_MAX_BYTES - 2 * LINE_MAX_CHARS < len("\n".join(lines[:-1])) <= GREP_MAX_BYTES


ENDLESS = {"pattern": r"^(a+)+$", "path": "endless"}


def test_l3_a_stop_ends_a_pattern_that_does_not_end(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "endless").write_text("a" * 200 + "b")

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("grep", **ENDLESS)

    session = kit.session(agent, files_root=tmp_path)
    run_id = say(session)

    def searching() -> bool:
        assert kit.supervisor is not None
        return any("grep" in str(one) for one in kit.supervisor.processes())

    until(searching, "the search runs")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert [row.name for row in rows(receipt) if row.kind == "process"] == ["grep"]
    check_rest(session)


def test_l14_a_search_has_a_limit_of_processor_time(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.tools import grep

    one_second = grep._START.replace("import main", "import main; from supervisor.tools import searcher")
    monkeypatch.setattr(grep, "_START", one_second.replace("sys.exit", "searcher.SEARCH_MAX_CPU_S = 1\nsys.exit"))
    (tmp_path / "endless").write_text("a" * 200 + "b")
    (result,) = searched(kit, tmp_path, ENDLESS)
    assert result.is_error
    assert "of processor time" in result.content


@pytest.mark.parametrize(("before", "after"), [((5, 5), (5, 5)), ((30, 30), (30, 30)), ((99, 100), (30, 31))])
def test_a_search_keeps_lower_limits_of_processor_time(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_CPU, {before})\n"
        "from supervisor.tools.searcher import main; main()\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU))"
    )
    asked = {"root": str(tmp_path), "path": ".", "pattern": "x", "glob": "*", "ignore_case": False}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.splitlines()[-1] == str(after)
