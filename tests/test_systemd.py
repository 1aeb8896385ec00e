"""The daemon under a live systemd: start, watchdog, kill and restart, reload, stop, socket activation, the units.

A test's work is put into the state directory before the daemon starts: a message that waits there is run by itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.model import RunInfo
from actors.run_status import RunStatus
from supervisor.lock import held
from tests.daemon_kit import PROJECT, WAIT_S, lines, output, runs, seed
from tests.kit import alive, until
from tests.systemd_kit import Manager, manager, need_systemd

UNIT = "countermand.service"
UNITS = PROJECT / "scripts"
SCRIPT_MARK = "countermand_systemd_test"


class Service:
    """The user unit as it ships, on this checkout, with a state directory and a configuration of the test's."""

    def __init__(self, systemd: Manager, directory: Path) -> None:
        self.systemd = systemd
        self.state_dir = directory / "state"
        self.config = directory / "countermand.toml"
        self.log_file = directory / "daemon.log"
        self.left_file = directory / "left"
        self.mark = f"{SCRIPT_MARK}_{os.getpid()}_{directory.name}"
        self.settings: dict[str, Any] = {"grace_s": 0.5, "kill_s": 2.0, "drain_s": 5.0}

    def write_config(self, **settings: Any) -> None:
        """Put settings into the file."""
        self.settings.update(settings)
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        agents = {name: f"tests.daemon_plugins:{name}" for name in ("hang", "deaf")}
        # What they do to the daemon, they do in its process.
        lines += [f'[agents.{name}]\nrun = "{where}"\nin_process = true' for name, where in agents.items()]
        self.config.write_text("\n".join(lines))

    def seed(self, **scripts: str) -> None:
        """Have a message wait in each session named; the start of the daemon runs it."""
        seed(self.state_dir, self.mark, **scripts)

    def install(self, unit: str = "countermand-user.service", **service: str) -> None:
        """Put the units in place, as installed but for the paths."""
        (self.systemd.units / UNIT).write_text((UNITS / unit).read_text())
        sockets = (UNITS / "countermand.socket").read_text()
        (self.systemd.units / "countermand.socket").write_text(re.sub("(?m)^SocketUser=.*\n", "", sockets))
        stop_post = self.left_file.with_name("left.sh")
        group = f"/sys/fs/cgroup/user/app.slice/{UNIT}"
        stop_post.write_text(
            f"find {group} -name cgroup.procs -exec cat {{}} + | while read pid; do\n"
            f"  case $(cat /proc/$pid/comm) in ''|sh|find|cat) ;; *) cat /proc/$pid/cmdline; echo ;; esac\n"
            f"done > {self.left_file}\n"
        )
        options = {
            "WorkingDirectory": str(self.state_dir.parent),
            "StandardOutput": f"append:{self.log_file}",
            "StandardError": f"append:{self.log_file}",
            "ExecStopPost": f"/bin/sh {stop_post}",
            **service,
        }
        drop_in = self.systemd.units / f"{UNIT}.d"
        drop_in.mkdir(exist_ok=True)
        lines = [
            "[Service]",
            "ExecStart=",
            f"ExecStart={sys.executable} -m supervisor.console serve",
            f"Environment=PYTHONPATH={PROJECT} COUNTERMAND_CONFIG={self.config} COUNTERMAND_STATE_DIR={self.state_dir}",
            *(f"{name}={value}" for name, value in options.items()),
        ]
        (drop_in / "test.conf").write_text("\n".join(lines))

    def start(self) -> None:
        """Boot systemd and start the unit; returns when that is ready."""
        if not self.config.exists():
            self.write_config()
        self.systemd.start()
        self.systemd.ctl("start", UNIT)

    # ── What is seen of it ────────────────────────────────────────────────────────────────────────

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.systemd.show(UNIT, name)

    def log(self) -> list[dict[str, Any]]:
        """Lines of the daemon's log."""
        return lines(self.log_file)

    def says(self, part: str, times: int = 1) -> bool:
        """True if the log has said something so often."""
        return sum(part in line["message"] for line in self.log()) >= times

    def wait_says(self, part: str, times: int = 1) -> None:
        """Until the log has said something."""
        until(lambda: self.says(part, times), f"{part!r} in the log: {self.tail()}", WAIT_S)

    def tail(self) -> str:
        """The end of the log, for people."""
        return self.log_file.read_text()[-4000:] if self.log_file.exists() else ""

    def last_run(self, session: str) -> RunInfo:
        """The run of the message that `seed` has left waiting."""
        return runs(self.state_dir, session)[-1]

    def wait_output(self, session: str, part: str) -> None:
        """Until the tools of a session have written something."""
        until(lambda: part in output(self.state_dir, session), f"{part!r}: {self.tail()}", WAIT_S)

    def left(self) -> str:
        """What was in the cgroup when the daemon had ended, and before systemd killed anything."""
        return self.left_file.read_text().replace("\0", " ")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The unit in a user's manager; ended whatever happens."""
    with manager("user", tmp_path / "systemd") as systemd:
        made = Service(systemd, tmp_path)
        try:
            yield made
        finally:
            systemd.close()
            for pid in alive(made.mark):
                os.kill(pid, signal.SIGKILL)


# ── Start ─────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_ready_when_it_serves_and_says_where(service: Service) -> None:
    service.install()
    service.start()
    assert service.show("ActiveState") == "active"
    assert service.show("StatusText").startswith("serving")
    assert service.show("Delegate") == "yes"
    assert held(service.state_dir)
    assert stat.S_IMODE(service.state_dir.stat().st_mode) == 0o700
    # systemd's runtime directory has the socket, and the state directory leads to it.
    link = service.state_dir / "countermand.sock"
    assert os.readlink(link) == "/run/user/0/countermand/countermand.sock"
    mode = service.systemd.run("stat", "-c", "%a %F", os.readlink(link)).stdout
    assert mode.strip() == "600 socket"


def test_an_invalid_configuration_is_refused_and_not_tried_again(service: Service) -> None:
    service.install()
    service.write_config(drain=3)
    service.systemd.start()
    done = service.systemd.ctl("start", UNIT, check=False)
    assert done.returncode != 0
    assert service.show("ActiveState") == "failed"
    assert service.show("NRestarts") == "0"
    assert service.show("ExecMainStatus") == "2"
    assert service.says("did you mean 'drain_s'?")


# ── Watchdog, kill, restart ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", ["store", "supervisor"])
def test_a_part_that_hangs_is_named_and_the_daemon_is_started_anew(service: Service, part: str) -> None:
    service.seed(s1=part)
    service.write_config(agent="hang")
    service.install(WatchdogSec="2")
    service.start()
    first = service.show("MainPID")
    until(lambda: service.show("NRestarts") != "0", f"a restart: {service.tail()}", WAIT_S)
    silent = "the store's thread" if part == "store" else "the supervisor"
    assert service.says(f"{silent} does not answer")
    assert "Fatal Python error: Aborted" in service.log_file.read_text(), "each thread says where it was"
    service.wait_says("ready", times=2)
    assert service.show("MainPID") != first
    until(lambda: service.last_run("s1").status is RunStatus.FAILED, "the run's end", WAIT_S)
    run = service.last_run("s1")
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.recovery"


def test_a_daemon_that_answers_is_left_alone_by_the_watchdog(service: Service) -> None:
    service.install(WatchdogSec="1")
    service.start()
    first = service.show("WatchdogTimestampMonotonic")
    until(lambda: int(service.show("WatchdogTimestampMonotonic")) > int(first) + 3_000_000, "3 s of feeding", WAIT_S)
    assert service.show("NRestarts") == "0"
    until(lambda: "live" in service.show("StatusText"), "what it says of itself", WAIT_S)


def test_killed_in_a_tool_the_daemon_is_back_with_no_process_left_and_the_cause_on_record(service: Service) -> None:
    service.seed(s1="setsid sleep 9999 & (trap '' TERM; while :; do sleep 1; done) & echo begun; wait")
    service.install()
    service.start()
    service.wait_output("s1", "begun")
    assert alive(service.mark)
    first = service.show("MainPID")
    service.systemd.run("kill", "-KILL", first)
    service.wait_says("ready", times=2)
    assert service.show("MainPID") != first
    assert service.show("NRestarts") == "1"
    until(lambda: service.last_run("s1").status is RunStatus.FAILED, "the run's end", WAIT_S)
    run = service.last_run("s1")
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.recovery"
    until(lambda: not alive(service.mark), "the end of what it had started", WAIT_S)
    until(lambda: any(line.get("run") == run.run_id for line in service.log()), "a line that names the run", WAIT_S)


def test_restarted_in_a_tool_that_has_left_its_session_it_is_back_at_once(service: Service) -> None:
    service.seed(s1="setsid sleep 9999 & echo begun; sleep 9999")
    service.write_config(drain_s=0.5)
    service.install()
    service.start()
    service.wait_output("s1", "begun")
    first = service.show("MainPID")
    service.systemd.ctl("restart", UNIT)
    assert service.show("ActiveState") == "active"
    assert service.show("MainPID") != first
    run = service.last_run("s1")
    assert run.status is RunStatus.CANCELLED
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.shutdown"
    assert service.left() == "", "the cgroup was empty before systemd looked"
    assert not alive(service.mark)


# ── Reload ────────────────────────────────────────────────────────────────────────────────────────


def test_a_reload_changes_what_it_may_and_touches_no_run(service: Service) -> None:
    service.seed(s1="sleep 9999 & echo begun; wait")
    service.install()
    service.start()
    service.wait_output("s1", "begun")
    before = alive(service.mark)
    service.write_config(drain_s=0.25, queue_max=5)
    service.systemd.ctl("reload", UNIT)
    service.wait_says("the configuration was read again; changed: drain_s")
    service.wait_says("only at the next start: queue_max")
    until(lambda: "next start: queue_max" in service.show("StatusText"), "the status", WAIT_S)
    until(lambda: service.show("SubState") == "running", "the end of the reload", WAIT_S)
    service.write_config(drain=7)
    service.systemd.ctl("reload", UNIT, check=False)
    service.wait_says("stays as it is")
    assert service.last_run("s1").status is RunStatus.IN_PROGRESS
    assert alive(service.mark) == before
    service.systemd.ctl("stop", UNIT)
    assert service.says("draining, for at most 0.25 s"), "the shorter drain holds"


# ── Stop ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_lets_a_run_end_by_itself_and_says_so(service: Service) -> None:
    release = service.state_dir.parent / "release"
    service.seed(s1=f"echo begun; while [ ! -e {release} ]; do sleep 0.1; done; echo ended")
    service.write_config(drain_s=60.0)
    # Far less than the drain takes: the daemon asks for the time that it needs.
    service.install(TimeoutStopSec="2")
    service.start()
    service.wait_output("s1", "begun")
    service.systemd.ctl("stop", "--no-block", UNIT)
    until(lambda: service.show("StatusText").startswith("draining: 1 session at work"), "the drain", WAIT_S)
    assert service.show("ActiveState") == "deactivating"
    entered = service.log()[-1]["at"]
    until(lambda: "left" in service.show("StatusText") and _after(entered, 4.0), "more than TimeoutStopSec", WAIT_S)
    release.touch()
    until(lambda: service.show("ActiveState") == "inactive", f"the end: {service.tail()}", WAIT_S)
    assert service.show("Result") == "success"
    assert service.last_run("s1").status is RunStatus.COMPLETED
    assert "ended" in output(service.state_dir, "s1")
    phases = [line["message"] for line in service.log() if line["message"].startswith("shutting down")]
    assert [re.split("[:,]", phase)[1].strip() for phase in phases] == [
        "draining",
        "closing the API",
        "ending processes",
    ]
    assert service.left() == ""


def _after(at: str, seconds: float) -> bool:
    import datetime as dt

    return (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(at)).total_seconds() > seconds


def test_a_stop_ends_a_tool_that_ignores_it_and_leaves_an_empty_cgroup(service: Service) -> None:
    service.seed(
        s1="trap '' TERM INT HUP; echo begun; setsid sh -c \"trap '' TERM; sleep 9999\" & while :; do sleep 1; done"
    )
    service.write_config(drain_s=0.5)
    service.install()
    service.start()
    service.wait_output("s1", "begun")
    service.systemd.ctl("stop", UNIT)
    assert service.show("Result") == "success"
    run = service.last_run("s1")
    assert run.status is RunStatus.CANCELLED
    assert run.provenance is not None
    assert run.provenance.source == "supervisor.shutdown"
    assert service.says("shutting down: interrupting")
    assert service.left() == ""
    assert not alive(service.mark)


def test_a_plain_function_that_never_looks_at_its_token_does_not_keep_the_daemon(service: Service) -> None:
    service.seed(s1="go")
    service.write_config(agent="deaf", drain_s=0.2)
    service.install()
    service.start()
    until(lambda: service.last_run("s1").status is RunStatus.IN_PROGRESS, "the run", WAIT_S)
    service.systemd.ctl("stop", UNIT)
    assert service.show("Result") == "exit-code", "what could not be ended is told"
    assert service.says("agent deaf"), "and named"
    assert service.last_run("s1").status is RunStatus.CANCELLED
    assert service.left() == ""


# ── Socket activation ─────────────────────────────────────────────────────────────────────────────


def test_the_first_connection_starts_it_and_the_socket_outlives_it(service: Service) -> None:
    service.install()
    service.write_config()
    service.systemd.start()
    service.systemd.ctl("start", "countermand.socket")
    assert service.show("ActiveState") == "inactive"
    path = "/run/user/0/countermand/countermand.sock"
    connect = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r})"
    service.systemd.run(sys.executable, "-c", connect)
    service.wait_says("ready")
    until(lambda: service.show("ActiveState") == "active", "the start", WAIT_S)
    assert service.says(path)
    service.systemd.ctl("stop", "countermand.socket", UNIT)
    service.systemd.ctl("start", "countermand.socket")
    assert os.readlink(service.state_dir / "countermand.sock") == path
    service.systemd.run(sys.executable, "-c", connect)
    service.wait_says("ready", times=2)


# ── The units ─────────────────────────────────────────────────────────────────────────────────────


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    need_systemd()
    environment = {**os.environ, "XDG_RUNTIME_DIR": "/run"}
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False, env=environment)


def placed(directory: Path) -> Path:
    """The system units with a program that is there."""
    for name in (UNIT, "countermand.socket"):
        text = (UNITS / name).read_text().replace("/opt/countermand/bin/countermand", "/bin/true")
        (directory / name).write_text(text)
    return directory / UNIT


def test_the_hardening_of_the_system_unit_is_rated_ok_or_better(tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=49", str(placed(tmp_path)))
    assert done.returncode == 0, done.stdout


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    placed(tmp_path)
    user = tmp_path / "user"
    user.mkdir()
    text = (UNITS / "countermand-user.service").read_text()
    (user / UNIT).write_text(text.replace("/opt/countermand/bin/countermand", "/bin/true"))
    done = analyze("verify", "--man=no", str(tmp_path / UNIT), str(tmp_path / "countermand.socket"), str(user / UNIT))
    ours = [line for line in done.stderr.splitlines() if "countermand" in line]
    assert not ours
