"""Agents in hosts that start what outlives an agent elsewhere: however a run ends, and whenever, nobody is left."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ends_kit import ENDS, Example, Kind, drawn, end_in_one_way, end_inside, kill_daemons
from tests.kit import Kit

KINDS = [
    Kind("thread", 3),
    Kind("multiprocessing", 4, ("fork", "spawn", "forkserver")),
    Kind("swallow", 3),
    Kind("block", 2, ("sleep", "busy", "regex", "wait", "child")),
    Kind("fork", 4),
    Kind("node", 3),
    Example(),
]
NODE = {"node", Example.word}


NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
PARAMS = {kind.word: pytest.param(kind, marks=[NO_NODE] if kind.word in NODE else [], id=kind.word) for kind in KINDS}
of_kinds = pytest.mark.parametrize("kind", PARAMS.values())
# A program in Node is inside of nothing.
of_kinds_inside = pytest.mark.parametrize("kind", [one for word, one in PARAMS.items() if word != Example.word])


@pytest.mark.parametrize("way", ENDS)
@of_kinds
def test_l3_nobody_is_left_however_and_whenever_a_run_is_ended(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, way: str
) -> None:
    kind.prepare(tmp_path, kit.mark, monkeypatch)
    end_in_one_way(kit, kind, way, drawn(f"{kind.word} {way}"))


@of_kinds
def test_l3_nobody_is_left_of_a_daemon_whenever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    kill_daemons(kind, tmp_path, monkeypatch, drawn(f"{kind.word} killed"))


@of_kinds_inside
def test_l5_whatever_goes_on_of_an_agent_inside_is_in_the_receipt(kit: Kit, kind: Kind) -> None:
    # What never lets go of the interpreter's lock blocks all of the program, and nobody is left to write a receipt.
    inside = replace(kind, ways=tuple(way for way in kind.ways if way != "regex"))
    end_inside(kit, inside, f"tests.{kind.agent}", drawn(f"{kind.word} inside"))
