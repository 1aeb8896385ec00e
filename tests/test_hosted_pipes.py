"""Pipes to a process in real hosts: the same as in the daemon's process, from agents and from their tools."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from actors.model import Mode
from actors.plugin.launcher import PREFIX
from supervisor.containment.guard import procfs
from tests.kit import Kit, check_rest, log, rows, say, stop, until
from tests.pipe_kit import descriptors, no_more_than
from tests.pipe_points import POINTS
from tests.test_hosts import ended, hosted, none_left, receipt_of, session_of

TOOLS = ["piping_agents:async_tool", "piping_agents:plain_tool"]
KIND = pytest.mark.parametrize("kind", ["agent", "plain"])
WHO = pytest.mark.parametrize("who", ["agent", "tool"])
TALKED = [[], 0, "one\n", "two\n", True, "", True]


@KIND
@WHO
def test_code_in_a_host_talks_with_its_processes(kit: Kit, tmp_path: Path, kind: str, who: str) -> None:
    session = session_of(kit, hosted(kit, f"piping_agents:{kind}", tools=TOOLS))
    before = descriptors()
    run_id = say(session, f"talk {who} {tmp_path / 'notes'}")
    run = ended(session, run_id)
    assert run.result == TALKED, run
    # What is followed is logged, and nothing else.
    printed = [event.data["text"] for event in log(session) if event.kind in ("tool.output", "run.output")]
    assert "".join(printed) == "one\ntwo\n"
    none_left(kit, receipt_of(session, run_id))
    check_rest(session)
    no_more_than(before)


@KIND
@WHO
@pytest.mark.parametrize("point", [point.__name__ for point in POINTS])
def test_a_stop_is_raised_once_and_everything_is_ended(
    kit: Kit, tmp_path: Path, point: str, kind: str, who: str
) -> None:
    notes = tmp_path / "notes"
    session = session_of(kit, hosted(kit, f"piping_agents:{kind}", tools=TOOLS), grace_s=60.0)
    before = descriptors()
    run_id = say(session, f"{point} {who} {notes}")
    until(lambda: notes.exists() and "at\n" in notes.read_text(), "its code is there")
    stop(session)
    receipt = receipt_of(session, run_id)
    none_left(kit, receipt)
    assert ended(session, run_id).status == "cancelled"
    name = "CancelledError" if kind == "agent" else "RunCancelled"
    # A tool of an agent in plain code is plain code on a thread of its own; the agent gets it too, and notes nothing.
    first, *others = notes.read_text().split("\n")[1:]
    assert first in [f"{name} user.test", *(["CancelledError"] if kind == "agent" else [])]
    assert others == [f"and {name}", ""]
    check_rest(session)
    no_more_than(before)


@KIND
@pytest.mark.parametrize("point", [point.__name__ for point in POINTS])
def test_a_stop_that_kills_at_once_leaves_nothing_either(kit: Kit, tmp_path: Path, point: str, kind: str) -> None:
    notes = tmp_path / "notes"
    session = session_of(kit, hosted(kit, f"piping_agents:{kind}", tools=TOOLS))
    before = descriptors()
    run_id = say(session, f"{point} agent {notes}")
    until(notes.exists, "its code is there")
    stop(session, mode=Mode.IMMEDIATE)
    none_left(kit, receipt_of(session, run_id))
    check_rest(session)
    no_more_than(before)


def test_a_host_that_is_kept_has_no_more_pipes_after_each_run(kit: Kit, tmp_path: Path) -> None:
    session = session_of(kit, hosted(kit, "piping_agents:counting", tools=TOOLS, keep="session"))
    counts = [ended(session, say(session, f"talk agent {tmp_path / 'notes'}")).result for _ in range(6)]
    first, *_, last = counts
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert last - first < len(counts) - 1, counts
    stop(session)
    until(lambda: not kit.alive(), "its host ends")


def test_the_host_dies_while_it_reads_and_the_command_ends_with_the_run(kit: Kit, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    session = session_of(kit, hosted(kit, "piping_agents:agent", tools=TOOLS))
    before = descriptors()
    run_id = say(session, f"following agent {notes}")
    until(notes.exists, "its code is there")
    (host,) = [pid for pid in kit.alive() if "countermand_host" in " ".join(procfs.command_line(pid))]
    os.kill(host, signal.SIGKILL)
    assert ended(session, run_id).status == "failed"
    none_left(kit, receipt_of(session, run_id))
    check_rest(session)
    no_more_than(before)


# ── Launchers ─────────────────────────────────────────────────────────────────────────────────────


def launchers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(PREFIX)]


@KIND
@WHO
@pytest.mark.parametrize("keep", ["run", "session"])
def test_a_library_in_a_host_starts_its_child_in_a_tree_of_the_run(
    kit: Kit, tmp_path: Path, kind: str, who: str, keep: str
) -> None:
    spec = hosted(kit, f"piping_agents:{kind}", tools=TOOLS, keep=keep)
    session = session_of(kit, dataclasses.replace(spec, env={**spec.env, "TMPDIR": str(tmp_path)}))
    run_id = say(session, f"launched {who} -")
    run = ended(session, run_id)
    assert run.result == (0 if kind == "agent" else [7, "typed"])
    receipt = receipt_of(session, run_id)
    trees = [row.name for row in rows(receipt) if row.kind == "process"]
    assert ("sh" if kind == "plain" else sys.executable) in trees
    until(lambda: not launchers(tmp_path), "its files are removed")
    stop(session)
    until(lambda: not kit.alive(), "its host ends")
    check_rest(session)


@WHO
@pytest.mark.parametrize("mode", list(Mode))
def test_a_stop_ends_what_a_library_has_launched(kit: Kit, tmp_path: Path, who: str, mode: Mode) -> None:
    notes = tmp_path / "notes"
    session = session_of(kit, hosted(kit, "piping_agents:agent", tools=TOOLS))
    before = descriptors()
    run_id = say(session, f"launched {who} {notes}")
    until(notes.exists, "its code is there")
    stop(session, mode=mode)
    receipt = receipt_of(session, run_id)
    none_left(kit, receipt)
    assert sys.executable in [row.name for row in rows(receipt) if row.kind == "process"]
    check_rest(session)
    no_more_than(before)
