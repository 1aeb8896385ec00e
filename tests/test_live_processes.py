"""What runs now is listed with its tree and its owner, and nobody is taken for somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from actors import Owner, Spawn, Turn, tool
from actors.model import TreeState
from actors.ports import Batch, ProcessRow
from supervisor import SessionHandle
from supervisor.containment.guard import ledger, procfs
from supervisor.live_processes import live_processes
from supervisor.live_tree import living
from supervisor.store import tables
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import open_writer
from tests.console_kit import Desk
from tests.kit import WAIT_S, Kit, say, stop, until
from tests.process_kit import bench, until_a_preforked_child_is_old

TREE = "(setsid sh -c 'sleep 60 & wait' &) ; sleep 60; :"


def trees(kit: Kit) -> tuple[SessionHandle, str, str]:
    """One tree of a run, one of the session, each with a part that has fallen to its warden."""

    @tool(isolation="thread")
    def both(spawn: Spawn) -> None:
        spawn(["sh", "-c", kit.script(TREE)], name="of the run")
        spawn(["sh", "-c", kit.script(TREE)], name="of the session", owner="session")

    def agent(turn: Turn) -> None:
        turn.call("both")
        turn.cancel_token.wait()

    session = kit.session(agent, tools=[both])
    run_id = say(session)
    until(lambda: len(kit.alive()) == 8, "both trees")
    return session, run_id, session.session


def test_every_live_process_is_listed_once_with_its_tree_and_its_owner(kit: Kit) -> None:
    session, run_id, name = trees(kit)
    assert kit.supervisor is not None
    found = session.processes()
    assert sorted(one.pid for one in found) == sorted(kit.alive())
    assert {one.pid for one in kit.supervisor.processes()} == {one.pid for one in found}
    assert kit.supervisor.session("other").processes() == []
    by_tree: dict[str, list[Any]] = {}
    for one in found:
        by_tree.setdefault(one.name, []).append(one)
        assert (one.session, one.run_id) == (name, run_id)
        assert one.call_id.startswith("call_")
        assert one.rss_bytes
        assert one.rss_bytes > 0
        assert one.cpu_s is not None
        assert one.cpu_s >= 0
        assert one.age_s >= 0
        seen = procfs.stat(one.pid)
        assert seen is not None
        assert one.parent == seen.ppid
        assert abs(one.started_at - seen.started_at) < 2.0
    assert {name: {one.owner for one in some} for name, some in by_tree.items()} == {
        "of the run": {Owner.RUN},
        "of the session": {Owner.SESSION},
    }
    for some in by_tree.values():
        assert len(some) == 4
        (leader,) = [one for one in some if one.leader]
        assert leader.command.startswith("sh -c")
        # What fell to the warden has the same parent as the command: it is still of this tree.
        assert len([one for one in some if one.parent == leader.parent]) == 2
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert {one.name for one in session.processes()} == {"of the session"}
    session.receipt(stop(session, scope="session").receipt_id, timeout=WAIT_S)
    assert session.processes() == []


def test_no_process_is_listed_as_older_than_its_call_though_its_command_was_forked_before(kit: Kit) -> None:
    session = kit.session()
    assert kit.supervisor is not None
    until_a_preforked_child_is_old()
    run_id = say(session, kit.script(TREE))
    until(lambda: len(kit.alive()) == 4, "the tree")
    listed = session.processes()
    (leader,) = [one for one in listed if one.leader]
    seen = procfs.stat(leader.pid)
    (live,) = living(kit.supervisor.store, listed, session.session).sessions
    (call,) = live.runs[0].calls
    assert seen is not None
    assert call.started_at is not None
    assert seen.started_at < call.started_at, "the kernel counts from the fork"
    assert len(call.processes) == 4
    for one in call.processes:
        assert one.started_at >= call.started_at
        assert one.started_at >= leader.started_at
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)


def test_the_listing_is_there_for_async_code_and_for_the_console(kit: Kit) -> None:
    import asyncio
    import json

    session, run_id, _ = trees(kit)
    listed = asyncio.run(session.aio.processes())
    assert {one.pid for one in listed} == {one.pid for one in session.processes()}
    argv = [sys.executable, "-m", "supervisor.console", "ps", "--state-dir", str(kit.state_dir)]
    root = Path(__file__).parent.parent
    shown = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True, cwd=root)
    (live,) = json.loads(shown.stdout)["sessions"]
    of_calls = [one for run in live["runs"] for call in run["calls"] for one in call["processes"]]
    of_runs = [one for run in live["runs"] for one in run["processes"]]
    assert {one["pid"] for one in (*of_calls, *of_runs, *live["processes"])} == {one.pid for one in listed}
    assert {one["owner"] for one in (*of_calls, *of_runs)} == {"run"}
    assert {one["owner"] for one in live["processes"]} == {"session"}
    plain = subprocess.run([*argv, session.session], capture_output=True, text=True, check=True, cwd=root).stdout
    for one in listed:
        assert str(one.pid) in plain
    assert run_id in plain
    assert "of the session itself" in plain
    unknown = subprocess.run([*argv, "nobody"], capture_output=True, text=True, check=False, cwd=root)
    assert unknown.returncode == 1
    assert "no session" in unknown.stderr


def test_ps_says_when_nothing_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "state")
    try:
        assert desk.run("true\n", "chat").returncode == 0
        assert "nothing runs" in desk.run("", "ps").stdout
        assert desk.json("ps") == {"sessions": [], "more": False, "served": False}
    finally:
        desk.close()


def test_a_process_that_goes_while_it_is_looked_at_costs_the_list_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path) as opened:
        opened.sh("echo up; exec sleep 1000")
        opened.owner.wait_text("up")
        pid = opened.owner.started().pid
        row = ProcessRow("s", "r", "c", "p", "server", TreeState.GRANTED, owner=Owner.SESSION)
        connection = open_writer(tmp_path / "store.sqlite3", 1.0)
        for sql, values in tables.statements(Batch("s", "i", 1, processes=(row,))):
            connection.execute(sql, values)
        connection.close()
        whole = psutil.Process.as_dict

        def gone(process: psutil.Process, *args: Any, **options: Any) -> dict[str, Any]:
            if process.pid == os.getpid():
                raise FileNotFoundError(2, "No such file or directory", f"/proc/{process.pid}/cmdline")
            found: dict[str, Any] = whole(process, *args, **options)
            return found

        monkeypatch.setattr(psutil.Process, "as_dict", gone)
        assert [one.pid for one in live_processes(tmp_path, SqliteReader(tmp_path / "store.sqlite3"))] == [pid]


@pytest.mark.parametrize("who", ["a stranger", "the warden"])
def test_a_pid_that_has_become_another_processs_is_not_taken_for_the_warden(tmp_path: Path, who: str) -> None:
    """The ledger of a tree that was not heard to end names a pid; a process has it, with a child."""
    (tmp_path / "wardens").mkdir()
    row = ProcessRow("s", "r", "c", "p", "server", TreeState.GRANTED, owner=Owner.SESSION)
    connection = open_writer(tmp_path / "store.sqlite3", 1.0)
    for sql, values in tables.statements(Batch("s", "i", 1, processes=(row,))):
        connection.execute(sql, values)
    connection.close()
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = 0
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        seen = procfs.stat(process.pid)
        assert seen is not None
        path = tmp_path / "wardens" / f"{quote('p', safe='')}.ledger"
        ledger.create(path, "p", 0.0, "boot")
        # It says what a warden says: who it is, and when it wrote that, by a clock that was set since.
        ticks = seen.start_ticks - (1 if who == "a stranger" else 0)
        held = ledger.Ledger.lock(path, wait=True)
        assert held is not None
        at = seen.started_at - 3600.0
        held.write({"word": "warden", "pid": process.pid, "start_ticks": ticks, "zygote": None, "at": at})
        held.write({"word": "started", "pid": child, "at": seen.started_at})
        held.close()
        reader = SqliteReader(tmp_path / "store.sqlite3")
        found = live_processes(tmp_path, reader)
        reader.close()
        assert [one.pid for one in found] == ([] if who == "a stranger" else [child])
    finally:
        for pid in (child, process.pid):
            if pid:
                os.kill(pid, 9)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
