"""`doctor`: each thing that can be wrong around a daemon is found, named, and told with what helps."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.console.client.endpoint import Endpoint
from supervisor.console.commands import doctor, units
from supervisor.console.commands.orphans import find_orphans, open_ledgers
from supervisor.containment.guard import ledger, procfs
from supervisor.wire import Finding
from tests.console_kit import WAIT_S, Desk, short_desk
from tests.kit import until
from tests.test_store_faults import PATIENCE_S, locked_by_another


@pytest.fixture
def desk() -> Iterator[Desk]:
    with short_desk() as opened:
        yield opened


def diagnosed(desk: Desk, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command. It sees the whole machine: it is run again while another test's processes have no warden."""
    done: list[subprocess.CompletedProcess[str]] = []

    def of_this_test() -> bool:
        done[:] = [desk.run("", "doctor", *words, env=env)]
        orphans = {int(pid) for pid in re.findall(r"(\d+) \([^ ()]+:\d+:[^ ()]*\)", done[0].stdout)}
        return orphans <= set(desk.alive())

    until(of_this_test, "no orphan of another test")
    return done[0]


def findings(desk: Desk, code: int, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """What the command finds, by check; it has to end with a code, and each thing that is wrong to have a remedy."""
    done = diagnosed(desk, "--json", env=env)
    assert done.returncode == code, done.stdout + done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["ok"] is (code == 0)
    for one in diagnosis["findings"]:
        assert one["ok"] or one["remedy"], one
    return {one["check"]: one for one in diagnosis["findings"]}


def wrong(found: dict[str, dict[str, Any]]) -> set[str]:
    return {check for check, one in found.items() if not one["ok"]}


# ── The daemon and its directory ──────────────────────────────────────────────────────────────────


def test_nothing_is_wrong_where_there_is_nothing(desk: Desk) -> None:
    assert "none runs" in findings(desk, 0)["daemon"]["found"]
    assert not desk.state_dir.exists()


def test_a_daemon_that_is_well_is_shown_with_its_own_findings_and_one_that_was_killed_is_not(desk: Desk) -> None:
    daemon = desk.serve()
    found = findings(desk, 0)
    assert str(daemon.pid) in found["daemon"]["found"]
    assert {"supervisor", "store", "disk", "permissions", "stops", "quarantine", "orphans", "ledgers"} <= found.keys()
    text = diagnosed(desk).stdout
    assert "nothing is wrong" in text
    assert "WRONG" not in text
    desk.state_dir.chmod(0o755)
    assert wrong(findings(desk, 1)) == {"permissions"}
    desk.state_dir.chmod(0o700)
    daemon.kill()
    daemon.wait(WAIT_S)
    found = findings(desk, 1)
    assert wrong(found) == {"daemon"}
    assert "no answer on the socket" in found["daemon"]["found"]
    assert "serve" in found["daemon"]["remedy"]
    text = diagnosed(desk).stdout
    assert "WRONG  daemon" in text
    assert "1 thing to see to" in text


def test_a_daemon_that_hangs_is_named_by_its_pid(desk: Desk) -> None:
    """One that holds the lock, and whose socket takes nobody in."""
    assert desk.run("true\n", "chat").returncode == 0
    holder = "import sys, time, supervisor.lock as lock, pathlib; l = lock.InstanceLock(pathlib.Path(sys.argv[1]))"
    argv = [sys.executable, "-c", f"{holder}; print('held', flush=True); time.sleep(600)", str(desk.state_dir)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        left.bind(str(desk.state_dir / "countermand.sock"))
        left.close()
        found = findings(desk, 1)
        assert wrong(found) == {"daemon"}
        assert f"process {process.pid}" in found["daemon"]["found"]
        assert f"kill {process.pid}" in found["daemon"]["remedy"]
        (desk.state_dir / "countermand.sock").unlink()
        assert "a chat or a library" in findings(desk, 0)["daemon"]["found"]
    finally:
        process.kill()
        process.communicate()


def test_a_store_that_cannot_be_read_a_token_that_others_read_and_a_full_disk(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.state_dir.mkdir(mode=0o700)
    (desk.state_dir / "store.sqlite3").write_bytes(b"no database " * 1_000)
    (desk.state_dir / "token").write_text("x" * 32)
    (desk.state_dir / "token").chmod(0o644)
    found = findings(desk, 1)
    assert wrong(found) == {"store", "permissions"}
    assert "token" in found["permissions"]["found"]
    monkeypatch.setattr(doctor, "DISK_LEAST_BYTES", 1 << 80)
    (disk,) = (one for one in doctor._places(desk.state_dir) if one.check == "disk")
    assert not disk.ok
    assert "free space" in disk.remedy


def test_a_store_that_another_process_has_locked_is_named_with_what_helps(desk: Desk) -> None:
    desk.serve()
    desk.json("send", "s1", f"echo begun; sleep {desk.mark}")
    desk.wait_alive(1)
    with locked_by_another(desk.state_dir / "store.sqlite3", PATIENCE_S):
        stopped = desk.run("", "stop", "s1", "--no-wait", "--json")
        assert json.loads(stopped.stdout)["durable"] is False
        found = findings(desk, 1)
        assert wrong(found) == {"store"}
        assert "lsof" in found["store"]["remedy"]
        assert "1 stops kept" in found["stop journal"]["found"]
    until(lambda: desk.run("", "doctor").returncode == 0, "it is well when the lock is gone")


# ── What was left behind ──────────────────────────────────────────────────────────────────────────


def test_a_process_of_a_tool_that_no_warden_watches_is_an_orphan(desk: Desk) -> None:
    daemon = desk.serve()
    run_id = desk.json("send", "s1", f"echo begun; sleep {desk.mark}")["accepted"]["run_id"]
    desk.wait_alive(1)
    # What a warden watches is none, whoever asks.
    assert not {one.pid for one in find_orphans()} & set(desk.alive())
    assert desk.run("", "kill", run_id).returncode == 0
    daemon.terminate()
    assert daemon.wait(WAIT_S) == 0
    env = {**os.environ, "COUNTERMAND_FENCE": f"s1:1:call_{desk.mark}"}
    stray = subprocess.Popen(["sleep", desk.mark], env=env)
    try:
        # Popen returns in the middle of the exec, when there is neither an environment nor a command line to be read.
        until(lambda: f"COUNTERMAND_FENCE={env['COUNTERMAND_FENCE']}" in procfs.environment(stray.pid), "its exec")
        (orphan,) = (one for one in find_orphans() if desk.mark in one.command)
        assert (orphan.pid, orphan.fence) == (stray.pid, f"s1:1:call_{desk.mark}")
        found = findings(desk, 1)["orphans"]
        assert str(stray.pid) in found["found"]
        assert "kill" in found["remedy"]
    finally:
        stray.send_signal(signal.SIGKILL)
        stray.wait(WAIT_S)
    assert not [one for one in find_orphans() if desk.mark in one.command]


def test_a_tree_whose_warden_left_no_last_word_is_named_and_one_at_work_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "wardens"
    folder.mkdir()
    for name in ("lost", "ended", "asked", "at work"):
        ledger.create(folder / f"{name}.ledger", name, 1.0, "boot")
    words = {"lost": ("spawning",), "ended": ("spawning", "empty"), "asked": (), "at work": ("spawning",)}
    held = []
    for name, said in words.items():
        opened = ledger.Ledger.lock(folder / f"{name}.ledger", wait=False)
        assert opened is not None
        for word in said:
            opened.write({"word": word, "at": 1.0})
        if name == "at work":
            held.append(opened)
        else:
            opened.close()
    assert open_ledgers(tmp_path) == ["lost"]
    for opened in held:
        opened.close()
    assert open_ledgers(tmp_path) == ["at work", "lost"]
    (found,) = (one for one in doctor._left_behind(Endpoint(tmp_path), served=False) if one.check == "ledgers")
    assert not found.ok
    assert "lost" in found.found
    # A daemon settles them by itself.
    (found,) = (one for one in doctor._left_behind(Endpoint(tmp_path), served=True) if one.check == "ledgers")
    assert found.ok


# ── The unit ──────────────────────────────────────────────────────────────────────────────────────


RIGHT = {
    "Type": "notify",
    "KillMode": "mixed",
    "OOMPolicy": "continue",
    "Delegate": "yes",
    "Restart": "on-failure",
    "LoadState": "loaded",
    "ActiveState": "active",
    "NeedDaemonReload": "no",
    "FragmentPath": "/etc/systemd/system/countermand.service",
    "ExecStart": f"{{ path={sys.executable} ; argv[]={sys.executable} serve ; }}",
}


def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], *, user: str = "") -> list[Finding]:
    """What is found of a unit; a `systemctl` that says these properties stands in for the manager."""
    program = tmp_path / "systemctl"
    said = "\n".join(f"{key}={value}" for key, value in {**RIGHT, **changed}.items())
    (tmp_path / "said").write_text(said + "\n")
    (tmp_path / "said.user").write_text(user or "LoadState=not-found\n")
    program.write_text(f"#!/bin/sh\ncase $1 in --user) cat {tmp_path}/said.user;; *) cat {tmp_path}/said;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return list(units.look_at_units(None))


def test_the_unit_as_it_is_shipped_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = look(tmp_path, monkeypatch, {})
    assert found.ok, found


@pytest.mark.parametrize(
    ("changed", "said", "remedy"),
    [
        ({"Type": "simple"}, "Type=simple", "scripts/install"),
        ({"KillMode": "control-group"}, "KillMode=control-group", "systemctl cat"),
        ({"OOMPolicy": "stop"}, "OOMPolicy=stop", "drop-ins"),
        ({"Delegate": "no"}, "Delegate=no", "drop-ins"),
        ({"Restart": "no"}, "Restart=no", "drop-ins"),
        ({"ExecStart": "{ path=/nowhere/countermand ; argv[]=x ; }"}, "no such program", "scripts/install"),
        ({"NeedDaemonReload": "yes"}, "has changed", "systemctl daemon-reload"),
        ({"ActiveState": "failed"}, "has failed", "reset-failed"),
    ],
)
def test_a_unit_that_says_something_else_is_named_with_what_comes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str, remedy: str
) -> None:
    (found,) = look(tmp_path, monkeypatch, changed)
    assert not found.ok
    assert said in found.found
    assert remedy in found.remedy


def test_where_none_is_installed_the_users_own_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (none,) = look(tmp_path, monkeypatch, {"LoadState": "not-found"})
    assert none.ok
    assert "none is installed" in none.found
    wrong_one = "\n".join(f"{key}={value}" for key, value in {**RIGHT, "Type": "simple"}.items())
    (own,) = look(tmp_path, monkeypatch, {"LoadState": "not-found"}, user=wrong_one)
    assert not own.ok
    assert "systemctl --user" in own.remedy


def test_the_units_that_are_shipped_say_what_the_rules_ask_for() -> None:
    scripts = Path(__file__).parent.parent / "scripts"
    for name in ("countermand.service", "countermand-user.service"):
        lines = (scripts / name).read_text().splitlines()
        said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        for key, (allowed, _) in units.RULES.items():
            assert said[key] in allowed, (name, key)
