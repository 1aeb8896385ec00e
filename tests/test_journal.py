"""`logs` and `doctor` against a live systemd with a journal: the daemon as a system unit, its log where units log."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_kit import PROJECT, WAIT_S
from tests.kit import until
from tests.systemd_kit import Manager, manager

JOURNALD = Path("/lib/systemd/systemd-journald")
UNIT = "countermand.service"


class Journalled:
    """A system manager with a journal of its own, and the daemon as a unit of it."""

    def __init__(self, systemd: Manager, directory: Path) -> None:
        self.systemd = systemd
        self.state_dir = directory / "state"
        # Its journal is gone with it: what is below /run is its own.
        (systemd.units / "journal.service").write_text(
            "[Service]\nType=notify\n"
            "ExecStartPre=/bin/sh -c 'mkdir -p /run/systemd/journald.conf.d && "
            'printf "[Journal]\\\\nStorage=volatile\\\\nReadKMsg=no\\\\nForwardToSyslog=no\\\\n" '
            "> /run/systemd/journald.conf.d/test.conf'\n"
            f"ExecStart={JOURNALD}\nStandardOutput=null\nStandardError=null\n"
        )
        (systemd.units / UNIT).write_text(
            "[Service]\nType=notify\nKillMode=mixed\nOOMPolicy=continue\nDelegate=yes\nRestart=on-failure\n"
            f"Environment=PYTHONPATH={PROJECT} COUNTERMAND_STATE_DIR={self.state_dir} HOME=/\n"
            f"ExecStart={sys.executable} -m supervisor.console serve --set drain_s=0.2 --set grace_s=0.2\n"
            "StandardOutput=journal\nStandardError=journal\n"
        )

    def start(self) -> None:
        """Boot systemd, its journal, then the daemon."""
        self.systemd.start()
        self.systemd.ctl("start", "journal.service")
        self.systemd.ctl("start", UNIT)

    def run(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command beside the daemon."""
        command = [sys.executable, "-m", "supervisor.console", "--state-dir", str(self.state_dir), *args]
        return self.systemd.run(*command, check=check, environment={"PYTHONPATH": str(PROJECT), "TZ": "UTC"})

    def logs(self, *args: str) -> list[dict[str, Any]]:
        """The lines of `logs --json`."""
        return [json.loads(line) for line in self.run("logs", "--json", *args).stdout.splitlines()]

    def said(self, *session: str) -> list[str]:
        """The message of the last line, of a session or of all, in a list; empty where there is none."""
        return messages(self.logs(*session, "-n", "1"))

    def pid(self) -> str:
        return self.systemd.show(UNIT, "MainPID")


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[Journalled]:
    if not JOURNALD.exists():
        pytest.skip(f"there is no {JOURNALD}")
    with manager("system", tmp_path / "systemd") as systemd:
        yield Journalled(systemd, tmp_path)


def messages(lines: list[dict[str, Any]]) -> list[str]:
    return [line["message"] for line in lines]


def test_logs_are_read_from_the_journal_of_the_unit_before_and_after_its_end(journalled: Journalled) -> None:
    journalled.start()
    for session in ("s1", "s2"):
        journalled.run("send", session, "true", "--wait")
        # The journal takes what it is sent in its own time.
        until(lambda name=session: journalled.said(name) == ["run completed"], "its last line is there", WAIT_S)  # type: ignore[misc]
    text = journalled.run("logs").stdout
    assert "INFO    ready: serving" in text
    assert "session=s1" in text
    assert {line.get("session") for line in journalled.logs("s1")} == {"s1"}
    assert journalled.logs("--level", "error") == []
    (last,) = journalled.logs("-n", "1")
    assert last["session"] == "s2"
    # The lines of others do not count.
    assert journalled.said("s1") == ["run completed"]
    first = journalled.pid()
    journalled.systemd.run("kill", "-KILL", first)
    until(lambda: journalled.pid() not in ("0", first), "it is started again", WAIT_S)
    until(lambda: sum("ready: serving" in one for one in messages(journalled.logs())) == 2, "both starts", WAIT_S)
    assert [line["session"] for line in journalled.logs("s2", "-n", "1")] == ["s2"], "from before the crash"
    journalled.systemd.ctl("stop", UNIT)
    until(lambda: journalled.said()[0].startswith("ended, after"), "its last line is there", WAIT_S)
    assert sum("ready: serving" in one for one in messages(journalled.logs())) == 2
    nothing = journalled.run("logs", "--unit", "nothing.service", check=False)
    assert nothing.returncode == 3
    assert "nothing.service" in nothing.stderr


def test_logs_are_followed_over_a_restart_without_gap_or_double(journalled: Journalled, tmp_path: Path) -> None:
    journalled.start()
    journalled.run("send", "s1", "true", "--wait")
    found = tmp_path / "followed"
    command = f"exec {sys.executable} -m supervisor.console --state-dir {journalled.state_dir} logs -f --json > {found}"
    write = 'printf \'[Service]\\nType=exec\\nEnvironment=PYTHONPATH=%s\\nExecStart=/bin/sh -c "%s"\\n\' "$0" "$1"'
    where = "/etc/systemd/system/follow.service"
    journalled.systemd.run("sh", "-c", f"{write} > {where}", str(PROJECT), command)
    journalled.systemd.ctl("daemon-reload")
    journalled.systemd.ctl("start", "follow.service")

    def followed() -> list[str]:
        return [json.loads(line)["message"] for line in found.read_text().splitlines() if line.endswith("}")]

    until(lambda: found.exists() and "run completed" in followed(), "what was there", WAIT_S)
    journalled.systemd.ctl("restart", UNIT)
    until(lambda: sum("ready: serving" in one for one in followed()) == 2, "both starts", WAIT_S)
    journalled.run("send", "s2", "true", "--wait")
    until(lambda: followed().count("run completed") == 2, "what came", WAIT_S)
    until(lambda: followed() == messages(journalled.logs("-n", "1000")), "each line once, in their order", WAIT_S)


def test_doctor_sees_what_the_unit_gives_it(journalled: Journalled) -> None:
    journalled.start()
    found = {one["check"]: one for one in json.loads(journalled.run("doctor", "--json").stdout)["findings"]}
    assert found["unit"]["ok"]
    assert "active" in found["unit"]["found"]
    assert "delegated" in found["containment"]["found"]
    assert "cgroup" in found["containment"]["found"].partition(";")[0]
    unit = "/etc/systemd/system/" + UNIT
    journalled.systemd.run("sed", "-i", "s/^Delegate=yes/Delegate=no/", unit)
    journalled.systemd.ctl("daemon-reload")
    journalled.systemd.ctl("restart", UNIT)
    done = journalled.run("doctor", "--json", check=False)
    assert done.returncode == 1
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert [check for check, one in found.items() if not one["ok"]] == ["unit"]
    assert "Delegate=no" in found["unit"]["found"]
    assert "not delegated" in found["containment"]["found"]
