"""The daemon in the foreground: one of it, signals, the log, the end of it. Under systemd: see test_systemd."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from actors.run_status import RunStatus
from supervisor import Supervisor
from supervisor.config import Config
from supervisor.daemon.notify import Notifier
from supervisor.daemon.serve import Daemon, DaemonExit, _DaemonShutdown
from supervisor.daemon.settings import Source
from supervisor.daemon.signals import Signals
from supervisor.daemon.sockets import Sockets
from supervisor.lock import held
from tests.daemon_kit import PROJECT, WAIT_S, Foreground, output, runs, seed
from tests.kit import alive, message, until

PLUGINS = "tests.daemon_plugins"
QUICK = ("grace_s=0.3", "kill_s=2.0")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Foreground]:
    """A daemon that is ended whatever happens."""
    made = Foreground(tmp_path)
    try:
        yield made
    finally:
        made.close()


def agent(name: str) -> tuple[str, str]:
    """Settings that have an agent of tests/daemon_plugins.py run messages, in the daemon's own process."""
    return f'agents={{{name} = {{run = "{PLUGINS}:{name}", in_process = true}}}}', f"agent={name}"


# ── One of it ─────────────────────────────────────────────────────────────────────────────────────


def test_a_second_daemon_is_refused_names_the_first_and_takes_nothing_from_it(daemon: Foreground) -> None:
    first = daemon.ready()
    second = daemon.start()
    assert second.wait(WAIT_S) == DaemonExit.REFUSED
    refusal = daemon.wait_says("is in use by process")
    assert f"process {first.pid}" in refusal["message"]
    assert "--state-dir" in refusal["message"]
    assert (daemon.state_dir / "countermand.sock").is_socket()
    assert first.poll() is None
    first.terminate()
    assert first.wait(WAIT_S) == DaemonExit.OK
    assert not held(daemon.state_dir)


def test_it_ends_at_once_with_nothing_to_do_and_leaves_no_socket(daemon: Foreground) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        daemon.ready()
        assert daemon.end(number) == DaemonExit.OK
        assert not (daemon.state_dir / "countermand.sock").exists()
    told = daemon.told()
    order = [next(place for place, words in enumerate(told) if one in words) for one in ("READY=1", "STOPPING=1")]
    assert order == sorted(order)
    assert any(words.startswith("EXTEND_TIMEOUT_USEC=") for words in told)


def test_it_says_ready_once_when_it_can_be_reached(daemon: Foreground) -> None:
    daemon.ready()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.state_dir / "countermand.sock"))
    (word,) = (words for words in daemon.told() if "READY=1" in words)
    assert f"on {daemon.state_dir}/countermand.sock" in word
    daemon.end()
    assert sum("READY=1" in words for words in daemon.told()) == 1


def test_an_unusable_state_directory_has_another_exit_code_than_a_wrong_setting(
    daemon: Foreground, tmp_path: Path
) -> None:
    assert daemon.start("drain_s=soon").wait(WAIT_S) == DaemonExit.REFUSED
    (tmp_path / "state").write_text("a file")
    assert daemon.start().wait(WAIT_S) == DaemonExit.FAILED
    daemon.wait_says("cannot be used")


def test_a_place_that_is_taken_by_something_else_is_refused_and_stays(daemon: Foreground, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("somebody's")
    assert daemon.start(f"http.socket={taken}").wait(WAIT_S) == DaemonExit.FAILED
    daemon.wait_says("another file is there, which is not a socket")
    assert taken.read_text() == "somebody's"
    assert not held(daemon.state_dir)


def test_a_socket_that_a_killed_daemon_has_left_is_replaced(daemon: Foreground) -> None:
    daemon.ready()
    daemon.end(signal.SIGKILL)
    path = daemon.state_dir / "countermand.sock"
    assert path.is_socket()
    daemon.ready()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert path.stat().st_mode & 0o777 == 0o600


# ── An agent that cannot be loaded ────────────────────────────────────────────────────────────────


def test_l13_a_daemon_serves_without_its_agent_says_so_and_takes_it_at_a_reload(
    daemon: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "plugins" / "my_agent.py"
    module.parent.mkdir()
    module.write_text("import no_such_model\n")
    # The kit's own path comes first.
    monkeypatch.setattr("tests.daemon_kit.PROJECT", f"{PROJECT}:{module.parent}")
    inside = ("agents.mine.in_process=true", "agents.other.in_process=true")
    daemon.ready("agents={mine = 'my_agent:answer', other = 'no_such:thing'}", *inside, "agent=mine")
    assert "no_such_model" in daemon.wait_says("agent mine cannot be used")["message"]
    transport = httpx.HTTPTransport(uds=str(daemon.state_dir / "countermand.sock"))
    with httpx.Client(transport=transport, base_url="http://countermand", timeout=WAIT_S) as client:
        ready = client.get("/v1/ready")
        assert (ready.status_code, ready.json()["phase"]) == (503, "serving")
        assert "No module named 'no_such_model'" in ready.json()["reason"]
        assert "reload" in ready.json()["remedy"]
        (found,) = (one for one in client.get("/v1/doctor").json()["findings"] if one["check"] == "plug-ins")
        assert not found["ok"]
        assert "agent mine" in found["found"]
        assert "agent other" in found["found"]
        message = {"content": "hello", "id": "m1"}
        refused = client.post("/v1/sessions/s/messages", json=message)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "agent_unavailable")
        assert f"No module named 'no_such_model', for {sys.executable}" in refused.json()["error"]["got"]
        stop = {"source": "user.test", "reason": "x", "sent_at": 1.0}
        stopped = client.post("/v1/sessions/s/stop", json=stop)
        assert stopped.json()["outcome"] == "nothing_running"
        assert client.get("/v1/sessions").status_code == 200

        module.write_text("def answer(turn):\n    turn.emit('mended')\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_says("mine could be loaded now")
        daemon.wait_says("no_such:thing cannot be used")
        assert client.get("/v1/ready").status_code == 200
        accepted = client.post("/v1/sessions/s/messages", json=message)
        assert accepted.status_code in (200, 202), accepted.text
        run = accepted.json()["run_id"]
        assert client.get(f"/v1/sessions/s/receipts/{run}", params={"wait_s": WAIT_S}).json()["complete"]
        thread = client.get("/v1/sessions/s/thread").json()
        assert "mended" in json.dumps(thread)


def test_l13_a_daemon_serves_without_its_agent_in_hosts_and_a_reload_loads_it_with_its_variables(
    daemon: Foreground, tmp_path: Path
) -> None:
    module, variables = tmp_path / "plugins" / "my_agent.py", tmp_path / "mine.env"
    module.parent.mkdir()
    module.write_text("import no_such_model\n")
    variables.write_text("KEY=old\n")
    table = f"{{run = 'my_agent:answer', path = ['{module.parent}'], env_files = ['{variables}']}}"
    daemon.ready(f"agents.mine={table}", "agents.other.command=['/no/such/program']", "agent=mine")
    assert "No module named 'no_such_model'" in daemon.wait_says("the agent mine cannot be loaded")["message"]
    daemon.wait_says("/no/such/program")
    transport = httpx.HTTPTransport(uds=str(daemon.state_dir / "countermand.sock"))
    with httpx.Client(transport=transport, base_url="http://countermand", timeout=WAIT_S) as client:
        until(lambda: client.get("/v1/ready").status_code == 503, "it is not ready", WAIT_S)
        assert "No module named 'no_such_model'" in client.get("/v1/ready").json()["reason"]
        # Its run tries once, and says why it fails; what was accepted is on record.
        failed = client.post("/v1/sessions/s/messages", json={"content": "hello"}).json()["run_id"]
        receipt = client.get(f"/v1/sessions/s/receipts/{failed}", params={"wait_s": WAIT_S}).json()
        assert receipt["complete"]
        assert "no_such_model" in client.get(f"/v1/runs/{failed}").json()["error"]

        module.write_text("import os\n\nasync def answer(turn):\n    await turn.emit('mended ' + os.environ['KEY'])\n")
        variables.write_text("KEY=new\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_says("the configuration was read again")
        until(lambda: client.get("/v1/ready").status_code == 200, "it is ready", WAIT_S)
        run = client.post("/v1/sessions/s/messages", json={"content": "hello"}).json()["run_id"]
        assert client.get(f"/v1/sessions/s/receipts/{run}", params={"wait_s": WAIT_S}).json()["complete"]
        assert "mended new" in json.dumps(client.get("/v1/sessions/s/thread").json())
    assert "KEY" not in daemon.log_file.read_text()


# ── Reload ────────────────────────────────────────────────────────────────────────────────────────


def test_a_socket_that_is_removed_is_made_again_and_served(daemon: Foreground) -> None:
    daemon.ready()
    path = daemon.state_dir / "countermand.sock"
    with connected(path) as before:
        path.unlink()
        until(path.is_socket, "the socket is there again")
        daemon.wait_says("is made again")
        with connected(path) as after:
            assert answers(after)
        assert answers(before), "a connection that came by the old one goes on"
    assert daemon.end() == DaemonExit.OK
    assert not path.exists()


def test_two_daemons_with_one_socket_do_not_take_it_from_each_other(daemon: Foreground, tmp_path: Path) -> None:
    shared = tmp_path / "shared.sock"
    first = daemon.ready(f"http.socket={shared}")
    daemon.state_dir = tmp_path / "other"
    second = daemon.start(f"http.socket={shared}")
    assert second.wait(WAIT_S) == DaemonExit.REFUSED
    daemon.wait_says(f"in use by process {first.pid}")
    with connected(shared) as client:
        assert answers(client)
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S) == DaemonExit.OK
    assert not shared.exists()


def test_whose_lock_was_removed_is_not_joined_by_a_second_one(daemon: Foreground) -> None:
    first = daemon.ready()
    (daemon.state_dir / "lock").unlink()
    second = daemon.start()
    assert second.wait(WAIT_S) == DaemonExit.REFUSED
    daemon.wait_says("is in use")
    with connected(daemon.state_dir / "countermand.sock") as client:
        assert answers(client)
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S) == DaemonExit.OK


def test_a_daemon_of_the_first_release_whose_lock_was_removed_is_not_joined_either(daemon: Foreground) -> None:
    # Nothing is locked; that it still listens is all that can be seen of it.
    daemon.state_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(daemon.state_dir / "countermand.sock"))
        theirs.listen()
        assert daemon.start().wait(WAIT_S) == DaemonExit.REFUSED
    daemon.wait_says(f"in use by process {os.getpid()}")
    assert [one.name for one in daemon.state_dir.iterdir()] == ["countermand.sock"], "the store was not opened"


def test_a_state_directory_that_is_open_to_others_is_refused_with_the_remedy(daemon: Foreground) -> None:
    daemon.state_dir.mkdir()
    (daemon.state_dir / "notes").touch()
    daemon.state_dir.chmod(0o755)
    assert daemon.start().wait(WAIT_S) == DaemonExit.REFUSED
    daemon.wait_says(f"chmod 700 {daemon.state_dir}")


BLOCKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signals})
os.execv(sys.argv[1], sys.argv[1:])
"""
IGNORED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


def test_signals_that_its_parent_has_blocked_end_it_and_its_commands_have_a_clean_mask(daemon: Foreground) -> None:
    seed(daemon.state_dir, daemon.mark, s="grep -E 'Sig(Blk|Ign)' /proc/self/status")
    daemon.ready(through=BLOCKED.format(signals="{2, 15, 17}"))
    until(lambda: runs(daemon.state_dir, "s")[-1].status is RunStatus.COMPLETED, "the command has ended", WAIT_S)
    assert output(daemon.state_dir, "s").split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    assert daemon.end() == DaemonExit.OK


def test_a_chat_hears_the_signals_that_its_parent_has_blocked(daemon: Foreground) -> None:
    chat = [sys.executable, "-m", "supervisor.console", "--state-dir", str(daemon.state_dir), "chat"]
    argv = [sys.executable, "-c", BLOCKED.format(signals="{2, 15}"), *chat]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=PROJECT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"export {daemon.mark}=1; echo up; sleep 1000\n".encode())
            process.stdin.flush()
            assert process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) != 0
        finally:
            process.kill()
    assert not alive(daemon.mark)


def test_a_daemon_that_started_with_sigint_ignored_keeps_running(daemon: Foreground) -> None:
    process = daemon.ready(through=IGNORED)
    process.send_signal(signal.SIGINT)
    # Behind it: whoever handles this one has had the other.
    process.send_signal(signal.SIGHUP)
    daemon.wait_says("the configuration was read again")
    with connected(daemon.state_dir / "countermand.sock") as client:
        assert answers(client)
    assert daemon.end() == DaemonExit.OK
    assert not [line for line in daemon.log() if "SIGINT" in line["message"]]


def test_a_daemon_whose_directory_is_removed_still_runs_commands(daemon: Foreground, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    seed(daemon.state_dir, daemon.mark, s1=f"rmdir {there}")
    daemon.ready(cwd=there)
    until(lambda: not there.exists(), "it is removed", WAIT_S)
    console = [sys.executable, "-m", "supervisor.console", "--state-dir", str(daemon.state_dir)]
    argv = [*console, "send", "s3", "echo hello; pwd", "--wait"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"hello\n{daemon.state_dir}/workplace\n")
    assert daemon.end() == DaemonExit.OK


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WAIT_S)
        client.connect(str(path))
        yield client


def answers(client: socket.socket) -> bool:
    client.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_reload_notifies_systemd_when_it_begins_and_when_it_ends(daemon: Foreground) -> None:
    daemon.ready()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_says("the configuration was read again; changed: nothing")
    until(lambda: any("READY=1" in words for words in daemon.told()[2:]), "the end of the reload", WAIT_S)
    told = daemon.told()
    (begin,) = (place for place, words in enumerate(told) if "RELOADING=1" in words)
    assert int(told[begin].split("MONOTONIC_USEC=")[1].splitlines()[0]) > 0
    assert any("READY=1" in words for words in told[begin + 1 :])


def test_a_reload_of_the_log_holds_from_the_next_line_on(
    daemon: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[log]\nlevel = 'warning'")
    monkeypatch.setenv("COUNTERMAND_CONFIG", str(file))
    daemon.ready()
    assert not [line for line in daemon.log() if line["level"] == "info"]
    file.write_text("[log]\nlevel = 'info'")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_says("changed: log.level")
    file.write_text("[log]\nlevel = 'error'")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: sum("READY=1" in words for words in daemon.told()) == 3, "the second reload", WAIT_S)
    assert daemon.end() == DaemonExit.OK
    assert not [line for line in daemon.log() if "shutting down" in line["message"]]


@pytest.mark.parametrize(
    "slip", ["[http]\nsocket = '~nobody-of-this-name/s'", "tools = ['no_colon']", "tools = [" + "[" * 2_000]
)
def test_l11_a_reload_of_a_file_with_a_slip_changes_nothing(
    daemon: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slip: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("drain_s = 1")
    monkeypatch.setenv("COUNTERMAND_CONFIG", str(file))
    daemon.ready()
    file.write_text(slip)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_says("the configuration was not read again, and stays as it is")
    assert daemon.end() == DaemonExit.OK


def test_l13_a_tool_that_a_reload_names_and_that_cannot_be_loaded_is_reported_and_keeps_nothing_else_out(
    daemon: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("drain_s = 1")
    monkeypatch.setenv("COUNTERMAND_CONFIG", str(file))
    daemon.ready()
    file.write_text("drain_s = 2\ntools = ['no_such:tool']")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_says("changed: drain_s")
    assert "No module named 'no_such'" in daemon.wait_says("no_such:tool cannot be used")["message"]
    daemon.wait_says("only at the next start: tools")
    assert daemon.end() == DaemonExit.OK


def test_l11_a_tool_that_can_be_loaded_now_and_has_the_name_of_a_shipped_one_ends_no_run(
    daemon: Foreground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "plugins" / "my_tools.py"
    module.parent.mkdir()
    monkeypatch.setattr("tests.daemon_kit.PROJECT", f"{PROJECT}:{module.parent}")
    daemon.ready("tools=['my_tools:shell']", *QUICK)
    daemon.wait_says("my_tools:shell cannot be used")
    module.write_text(
        "from actors import tool\n\n@tool(isolation='thread')\ndef shell(script: str) -> str:\n    return script\n"
    )
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_says("my_tools:shell cannot be used: two tools have the same name: shell")
    assert daemon.end() == DaemonExit.OK


def test_l11_a_reload_that_fails_ends_no_daemon_and_reports_that_it_is_over(tmp_path: Path) -> None:
    def fails(*_: object) -> list[str]:
        raise RuntimeError("it cannot be")

    told: list[str] = []
    notifier = SimpleNamespace(reloading=lambda: told.append("reloading"), ready=told.append)
    logs = SimpleNamespace(apply=lambda _: None)
    source = Source(None, {"COUNTERMAND_STATE_DIR": str(tmp_path)})
    supervisor: Any = SimpleNamespace(mend=fails, reload_hosts=fails, unloaded=dict)
    Daemon(source, notifier, logs, None)._reload("here", supervisor)  # type: ignore[arg-type]
    assert told == ["reloading", "serving here; the reload failed"]


def test_hundreds_of_signals_amid_a_torrent_of_log_lines_hang_nothing(daemon: Foreground) -> None:
    # loguru 390: a handler that logs waits for the lock that its own thread holds.
    seed(daemon.state_dir, daemon.mark, s1="go", s2="go")
    daemon.ready(*agent("chatters"), "drain_s=0.1", *QUICK)
    for session in ("s1", "s2"):
        until(lambda: runs(daemon.state_dir, session)[-1].status is RunStatus.IN_PROGRESS, "its run", WAIT_S)  # noqa: B023
    daemon.wait_says("chatter")
    for _ in range(300):
        daemon.process.send_signal(signal.SIGHUP)
    assert daemon.end() == DaemonExit.OK
    assert {run.status for run in (runs(daemon.state_dir, "s1") + runs(daemon.state_dir, "s2"))} == {
        RunStatus.CANCELLED
    }


# ── The end ───────────────────────────────────────────────────────────────────────────────────────


def test_a_second_signal_cuts_the_drain_short(daemon: Foreground) -> None:
    seed(daemon.state_dir, daemon.mark, s1="echo begun; sleep 1000")
    daemon.ready("drain_s=100000", *QUICK)
    until(lambda: "begun" in output(daemon.state_dir, "s1"), "the script", WAIT_S)
    daemon.process.terminate()
    daemon.wait_says("draining, for at most 100000 s")
    assert runs(daemon.state_dir, "s1")[-1].status is RunStatus.IN_PROGRESS
    assert daemon.end() == DaemonExit.OK
    daemon.wait_says("second signal")
    run = runs(daemon.state_dir, "s1")[-1]
    assert run.status is RunStatus.CANCELLED
    assert run.provenance is not None
    assert (run.provenance.source, run.provenance.reason) == ("supervisor.shutdown", "the drain was cut short")
    assert any("STATUS=interrupting" in words or "STATUS=ending" in words for words in daemon.told())


def test_a_second_signal_that_comes_before_the_drain_has_begun_cuts_it_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, hurry, hurried = Supervisor.drain, Supervisor.hurry, threading.Event()

    def drain_late(self: Supervisor, drain_s: float) -> bool:
        assert hurried.wait(WAIT_S)
        return drain(self, drain_s)

    def hurry_noted(self: Supervisor) -> None:
        hurry(self)
        hurried.set()

    monkeypatch.setattr(Supervisor, "drain", drain_late)
    monkeypatch.setattr(Supervisor, "hurry", hurry_noted)
    config = Config(state_dir=tmp_path / "state", grace_s=0.3, drain_s=100_000.0)
    with Supervisor.start(config) as supervisor, Signals() as signals:
        run_id = supervisor.session("s1").ask(message("sleep 1000"), timeout=WAIT_S).run_id
        sockets = Sockets(tmp_path / "state", [], tmp_path / "s")
        daemon: Any = SimpleNamespace(
            notifier=Notifier(), signals=signals, settings=SimpleNamespace(config=supervisor.config)
        )
        os.kill(os.getpid(), signal.SIGTERM)
        assert _DaemonShutdown(daemon, supervisor, None, sockets).run() == DaemonExit.OK
    (run,) = runs(tmp_path / "state", "s1")
    assert (run.run_id, run.status) == (run_id, RunStatus.CANCELLED)
    assert run.provenance is not None
    assert run.provenance.reason == "the drain was cut short"


def test_a_third_signal_ends_it_on_the_spot_and_what_it_ran_too(daemon: Foreground) -> None:
    seed(daemon.state_dir, daemon.mark, s1="trap '' TERM; echo begun; while :; do sleep 1; done")
    daemon.ready("drain_s=100000", "grace_s=100000", "kill_s=2.0")
    until(lambda: "begun" in output(daemon.state_dir, "s1"), "the script", WAIT_S)
    daemon.process.terminate()
    daemon.wait_says("draining")
    daemon.process.terminate()
    daemon.wait_says("second signal")
    assert daemon.end() == DaemonExit.FAILED
    until(lambda: not alive(daemon.mark), "the end of what it ran", WAIT_S)


def test_a_run_that_ends_in_the_drain_is_completed_and_the_api_answers_meanwhile(
    daemon: Foreground, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    seed(daemon.state_dir, daemon.mark, s1=f"echo begun; while [ ! -e {release} ]; do sleep 0.05; done")
    daemon.ready("drain_s=100000", *QUICK)
    until(lambda: "begun" in output(daemon.state_dir, "s1"), "the script", WAIT_S)
    daemon.process.terminate()
    daemon.wait_says("draining")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.state_dir / "countermand.sock"))
    asked = len([words for words in daemon.told() if "EXTEND_TIMEOUT_USEC" in words])
    until(
        lambda: len([words for words in daemon.told() if "EXTEND_TIMEOUT_USEC" in words]) > asked + 1,
        "systemd is asked for patience again and again",
        WAIT_S,
    )
    release.touch()
    assert daemon.process.wait(WAIT_S) == DaemonExit.OK
    assert runs(daemon.state_dir, "s1")[-1].status is RunStatus.COMPLETED


# ── The log ───────────────────────────────────────────────────────────────────────────────────────


def test_lines_name_the_session_the_run_and_the_generation(daemon: Foreground) -> None:
    seed(daemon.state_dir, daemon.mark, s1="go")
    daemon.ready(*agent("talks"), f'tools=["{PLUGINS}:talk"]')
    daemon.wait_says("run completed")
    daemon.end()
    run = runs(daemon.state_dir, "s1")[-1]
    about = {"session": "s1", "run": run.run_id, "generation": run.generation}
    for part in ("the agent talks", "the tool talks", "the library talks", "run started", "run completed"):
        line = daemon.wait_says(part)
        assert {name: line.get(name) for name in about} == about, line
    assert daemon.wait_says("the tool talks")["call"]
    assert daemon.wait_says("the tool talks")["extra"] == {"colour": "red"}
    assert daemon.wait_says("the library talks")["logger"].startswith("library:")
    assert "session" not in daemon.wait_says("ready: serving")


def test_the_end_of_a_run_that_a_crash_has_cut_off_is_in_the_log(daemon: Foreground) -> None:
    seed(daemon.state_dir, daemon.mark, s1="echo begun; sleep 1000")
    daemon.ready(*QUICK)
    until(lambda: "begun" in output(daemon.state_dir, "s1"), "the script", WAIT_S)
    daemon.end(signal.SIGKILL)
    daemon.ready(*QUICK)
    line = daemon.wait_says("run failed by supervisor.recovery")
    assert (line["session"], line["run"]) == ("s1", runs(daemon.state_dir, "s1")[-1].run_id)


def test_on_a_terminal_it_writes_for_people(daemon: Foreground) -> None:
    ours, theirs = pty.openpty()
    heard: list[bytes] = []

    def hear() -> None:
        try:
            while data := os.read(ours, 4096):
                heard.append(data)
        except OSError:
            return  # the other end is closed

    thread = threading.Thread(target=hear)
    thread.start()
    try:
        daemon.ready(stderr=theirs)
        daemon.end()
    finally:
        os.close(theirs)
        thread.join(WAIT_S)
        os.close(ours)
    text = b"".join(heard).decode()
    assert "ready: serving" in text
    assert "{" not in text


def test_in_the_journal_each_line_has_its_priority(daemon: Foreground) -> None:
    ours, theirs = os.pipe()
    seen = os.fstat(theirs)
    os.environ["JOURNAL_STREAM"] = f"{seen.st_dev}:{seen.st_ino}"
    try:
        process = daemon.start("drain_s=soon", stderr=theirs)
    finally:
        del os.environ["JOURNAL_STREAM"]
        os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    assert process.wait(WAIT_S) == DaemonExit.REFUSED
    assert text.startswith('<3>{"at"')
    assert json.loads(text[3:])["level"] == "error"


def test_a_log_without_a_reader_blocks_no_writer(daemon: Foreground) -> None:
    ours, theirs = os.pipe()
    try:
        seed(daemon.state_dir, daemon.mark, s1="go")
        daemon.ready(*agent("floods"), stderr=theirs)
        os.close(theirs)
        # More than the pipe and the queue hold.
        until(lambda: runs(daemon.state_dir, "s1")[-1].status is RunStatus.COMPLETED, "the run", WAIT_S)
        assert daemon.end() == DaemonExit.OK
    finally:
        os.close(ours)


# ── The supervisor's side ─────────────────────────────────────────────────────────────────────────


def test_a_supervisor_that_was_drained_answers_until_it_is_closed(tmp_path: Path) -> None:
    with Supervisor.start(Config(state_dir=tmp_path / "state")) as supervisor:
        pong = supervisor.ping(WAIT_S)
        assert pong is not None
        assert (pong.sessions, pong.phase, pong.awaited) == (0, "serving", 0)
        supervisor.session("s1").status()
        assert supervisor.drain(WAIT_S)
        pong = supervisor.ping(WAIT_S)
        assert pong is not None
        assert (pong.sessions, pong.phase) == (1, "draining")
        assert supervisor.session("s1").status().state == "idle"
        assert supervisor.store_responds(WAIT_S)
        assert supervisor.close()
        assert supervisor.ping(WAIT_S) is None
        assert not supervisor.store_responds(WAIT_S)


def test_a_hurry_without_a_drain_does_nothing(tmp_path: Path) -> None:
    with Supervisor.start(Config(state_dir=tmp_path / "state")) as supervisor:
        supervisor.hurry()
        pong: Any = supervisor.ping(WAIT_S)
        assert pong.phase == "serving"


def test_the_store_responds_ahead_of_what_waits(tmp_path: Path) -> None:
    class Slow(threading.Event):
        def __init__(self, gate: threading.Event) -> None:
            super().__init__()
            self.gate = gate

        def set(self) -> None:
            done.append(1)
            self.gate.wait(WAIT_S)

    first, rest, done = threading.Event(), threading.Event(), list[int]()
    with Supervisor.start(Config(state_dir=tmp_path / "state")) as supervisor:
        try:
            for gate in (first, rest, rest):
                supervisor._store._queue.put(Slow(gate))
            until(lambda: done, "the first")
            assert not supervisor.store_responds(0.01), "it hangs"
            threading.Timer(0.1, first.set).start()
            assert supervisor.store_responds(WAIT_S / 2), "what is under way has ended, and the rest has not begun"
        finally:
            first.set()
            rest.set()
