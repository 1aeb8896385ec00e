"""`countermand agents`, `agents reload` and `agents try`: what they print, and the exit code that they end with."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from supervisor.console.commands.trial import behind
from supervisor.hosts.host import WHY_MAX_CHARS
from tests.console_kit import Desk, desk_at
from tests.kit import until

TESTS = Path(__file__).parent
AGENT = """
import asyncio, os, subprocess, sys

async def answer(turn):
    subprocess.Popen(["sleep", "MARK"])
    what = turn.inputs[0].content
    print("printed by the process", file=sys.stderr, flush=True)
    await turn.emit(f"you said {what}\\n")
    if what == "wait":
        await asyncio.sleep(1000)
    if what == "raise":
        raise ValueError("as asked for")
    if what == "ask":
        await turn.ask("Deploy it?")
    return {"said": what, "key": os.environ.get("KEY")}
"""


def written(desk: Desk, tmp_path: Path, more: str = "") -> str:
    """A configuration with an agent whose processes carry the mark; returns its path."""
    (tmp_path / "mine.py").write_text(AGENT.replace("MARK", desk.mark))
    file = tmp_path / "countermand.toml"
    file.write_text(f"agent = 'mine'\n[agents.mine]\nrun = 'mine:answer'\npath = ['{tmp_path}']\n{more}")
    return str(file)


def left(desk: Desk) -> list[str]:
    """What trials have left behind."""
    return [path.name for path in Path(desk.env["TMPDIR"]).iterdir()]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def trial(desk: Desk, tmp_path: Path) -> Desk:
    """A desk whose temporary directory is its own."""
    desk.env["TMPDIR"] = str(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    return desk


# ── An agent that is not installed ────────────────────────────────────────────────────────────────


MISSING = {
    "a program": (
        "preset = 'claude-code'\nenv = {PATH = '/nowhere'}",
        (
            "the agent bad cannot be loaded: the program 'claude' cannot be started; expected a program on the PATH of "
            "the host, or a path; got there is no such program; PATH is /nowhere; to do: npm install -g "
            "@anthropic-ai/claude-code, or name it in the key 'command' of the agent (PATH: key 'env')"
        ),
    ),
    "a package": (
        "run = 'bad:answer'\npath = ['FOLDER']",
        (
            "the agent bad cannot be loaded: No module named 'no_such_sdk' (FOLDER/bad.py, line 1), when bad:answer "
            f"was loaded; expected it to be installed for {sys.executable}, or in a directory of the key 'path'; "
            "to do: install the package that has it, or name an interpreter that has it in the key 'python'"
        ),
    ),
    "a command": (
        "command = ['/no/such/program']",
        (
            "the host of agent bad could not be started: cannot execute '/no/such/program': No such file or directory; "
            "to do: install it, or name another in the key 'command'"
        ),
    ),
}


def missing(desk: Desk, tmp_path: Path, which: str, more: str = "") -> tuple[str, str]:
    """A configuration with an agent that is not installed; returns its path, and what is to be said of it."""
    (tmp_path / "bad.py").write_text("import no_such_sdk\n")
    table, fault = (text.replace("FOLDER", str(tmp_path)) for text in MISSING[which])
    return written(desk, tmp_path, f"[agents.bad]\n{table}\n{more}"), fault


def said_once(done: CompletedProcess[str], fault: str) -> None:
    shown = done.stdout + done.stderr
    assert [line.count(fault) for line in shown.splitlines() if fault in line] == [1], shown
    assert shown.count("cannot be loaded") + shown.count("could not be started") == 1, shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("which", MISSING)
def test_what_is_not_installed_is_said_once_wherever_a_daemon_is_asked(desk: Desk, tmp_path: Path, which: str) -> None:
    config, fault = missing(desk, tmp_path, which)
    desk.serve("--config", config)
    until(lambda: state(desk, "bad") == "broken", "it to be tried")
    sent = desk.run("", "send", "s1", "--agent", "bad", "--wait", "hello")
    assert sent.returncode == 4
    said_once(sent, fault)
    said_once(desk.run("hello\n", "chat", "--session", "s2", "--agent", "bad"), fault)
    (run,) = desk.json("runs", "s1")
    for command in (("runs", "s1"), ("why", run["run_id"]), ("agents",), ("doctor",), ("logs",)):
        said_once(desk.run("", *command), fault)
    assert "run.output" not in desk.run("", "events", "s1").stdout
    said_once(desk.run("", "agents", "reload", "bad"), fault)


@pytest.mark.parametrize("which", MISSING)
def test_what_is_not_installed_is_said_once_without_a_daemon(trial: Desk, tmp_path: Path, which: str) -> None:
    config, fault = missing(trial, tmp_path, which, "spares = 0\n")
    said_once(trial.run("", "config", "check", "--config", config), fault)
    said_once(trial.run("", "agents", "try", "bad", "hello", "--config", config), fault)
    said_once(trial.run("hello\n", "chat", "--agent", "bad", "--config", config), fault)


# ── With a daemon ─────────────────────────────────────────────────────────────────────────────────


def state(desk: Desk, name: str) -> Any:
    (found,) = (one for one in desk.json("agents")["agents"] if one["name"] == name)
    return found["state"]


def test_the_agents_of_a_daemon_are_listed_and_reloaded(desk: Desk, tmp_path: Path) -> None:
    desk.serve("--config", written(desk, tmp_path, "[agents.bad]\nrun = 'no_such_module:answer'\n"))
    until(lambda: (state(desk, "mine"), state(desk, "bad")) == ("ready", "broken"), "both to be tried")
    listed = desk.run("", "agents")
    assert listed.returncode == 0
    lines = listed.stdout.splitlines()
    assert any(line.startswith("mine (runs messages)") and "mine:answer" in line for line in lines), listed.stdout
    assert any(line.startswith("  host") and "spare" in line and "python 3." in line for line in lines)
    assert any(line.startswith("shell") and "in the daemon's own process" in line for line in lines)
    assert "bad: last failure" in listed.stdout
    assert "No module named 'no_such_module'" in listed.stdout

    done = desk.run("", "agents", "reload", "mine")
    assert (done.returncode, done.stdout) == (0, "mine: ready\n")
    done = desk.run("", "agents", "reload")
    assert done.returncode == 1
    assert "bad: broken: " in done.stdout
    assert "mine: ready" in done.stdout
    done = desk.run("", "agents", "reload", "nobody")
    assert done.returncode == 1
    assert "expected: bad | mine | shell" in done.stderr
    assert desk.run("", "agents", "reload", "shell").returncode == 2
    (entry,) = desk.json("agents", "reload", "mine")["agents"]
    assert (entry["name"], entry["state"]) == ("mine", "ready")

    doctor = desk.run("", "doctor")
    assert "bad: no host of it can be started" in doctor.stdout
    assert "countermand agents reload" in doctor.stdout


SERVERS = """
from countermand.daemon_log import daemon

async def answer(turn):
    daemon[0].note("mcp", {"name": "files", "state": "running", "tools": 2})
    daemon[0].note("mcp", {"name": "search", "state": "ended", "why": "it is gone: " + "x" * 1000})
    daemon[0].note("mcp", {"name": "unknown", "state": "running"})
"""


def test_the_servers_of_an_agent_are_listed_below_the_host_that_uses_them(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "serving.py").write_text(SERVERS)
    more = f"mcp = ['files', 'search']\n[agents.other]\nrun = 'serving:answer'\npath = ['{tmp_path}']\n"
    servers = "[mcp.files]\ncommand = 'file-server'\nargs = ['--stdio']\n[mcp.search]\nurl = 'http://h/mcp'\n"
    config = written(desk, tmp_path, more + servers)
    text = Path(config).read_text().replace("mine:answer", "serving:answer", 1)
    Path(config).write_text(text)
    desk.serve("--config", config)
    assert desk.run("hello", "send", "s1", "--wait").returncode == 0

    def kept() -> list[Any]:
        (entry,) = (one for one in desk.json("agents")["agents"] if one["name"] == "mine")
        assert entry["mcp"] == {"files": "file-server --stdio", "search": "http://h/mcp"}
        return [host["mcp"] for host in entry["hosts"] if host["session"] == "s1"]

    ((files, search),) = kept()
    assert files == {"name": "files", "state": "running", "tools": 2, "why": ""}
    assert (search["name"], search["state"], search["tools"]) == ("search", "ended", None)
    assert search["why"].startswith("it is gone: xxx")
    assert len(search["why"]) == WHY_MAX_CHARS
    lines = desk.run("", "agents").stdout.splitlines()
    assert any(line.split()[:3] == ["mcp", "files", "running"] and "--stdio, 2 tools" in line for line in lines), (
        "\n".join(lines)
    )
    assert any(line.split()[:3] == ["mcp", "search", "ended"] and "it is gone" in line for line in lines), lines


def test_of_a_server_that_a_program_is_handed_it_is_listed_who_starts_it(desk: Desk, tmp_path: Path) -> None:
    folder, python = tmp_path.resolve(), sys.executable
    program = f"preset = 'acp'\ncommand = ['{python}', '{TESTS / 'acp_agent.py'}']\ncwd = '{folder}'\nspares = 0\n"
    command = f"command = '{python}'\nargs = ['{TESTS / 'handed_server.py'}', '{folder / 'served'}', 'files']\n"
    more = f"[agents.program]\n{program}mcp = ['files']\n[mcp.files]\n{command}"
    desk.serve("--config", written(desk, tmp_path, more))
    sent = desk.run("", "send", "s1", "--agent", "program", "--wait", "say hello")
    assert (sent.returncode, sent.stdout) == (0, "said: hello")
    (line,) = (one for one in desk.run("", "agents").stdout.splitlines() if one.split()[:1] == ["mcp"])
    assert line.split()[1:4] == ["files", "handed", "over"]
    assert line.endswith("which the program starts")


def test_without_a_daemon_there_are_no_agents_to_list(desk: Desk) -> None:
    for words in (("agents",), ("agents", "reload")):
        done = desk.run("", *words)
        assert done.returncode == 3
        assert "no daemon answers" in done.stderr


def test_an_agent_that_is_not_ready_in_time_is_said_to_be_so(desk: Desk, tmp_path: Path) -> None:
    config = written(desk, tmp_path, "[agents.slow]\ncommand = ['sleep', '1000']\n")
    desk.serve("--config", config)
    done = desk.run("", "agents", "reload", "slow", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (4, "slow: not ready in time\n")
    done = desk.run("", "agents", "reload", "slow", "--no-wait")
    assert (done.returncode, done.stdout) == (0, "slow: loading\n")


# ── Without one ───────────────────────────────────────────────────────────────────────────────────


def test_a_trial_shows_the_output_and_the_receipt_and_leaves_nothing(trial: Desk, tmp_path: Path) -> None:
    done = trial.run("", "agents", "try", "mine", "hello", "--config", written(trial, tmp_path))
    assert (done.returncode, done.stdout) == (0, "you said hello\n"), done.stderr
    assert "printed by the process" in done.stderr
    assert "process host mine" in done.stderr
    assert "process sleep" in done.stderr
    assert "everything ended, 2 processes proven dead" in done.stderr
    assert (trial.alive(), left(trial)) == ([], [])
    assert not trial.state_dir.exists() or not any(trial.state_dir.iterdir())


def test_a_trial_as_json_has_the_result_and_the_receipt(trial: Desk, tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("KEY=of the file\n")
    config = written(trial, tmp_path, f"env_files = ['{tmp_path}/secrets']\n")
    done = trial.run("from standard input", "agents", "try", "mine", "--config", config, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["status"], said["receipt"]["complete"]) == ("completed", True)
    assert said["result"] == {"said": "from standard input", "key": "of the file"}


def test_a_trial_of_an_agent_that_raises_says_what_and_exits_with_4(trial: Desk, tmp_path: Path) -> None:
    done = trial.run("", "agents", "try", "mine", "raise", "--config", written(trial, tmp_path))
    assert done.returncode == 4
    assert "failed: ValueError: as asked for" in done.stderr
    assert 'mine.py", line 12, in answer' in done.stderr, "the traceback that its process printed"
    assert "everything ended" in done.stderr
    assert (trial.alive(), left(trial)) == ([], [])


def test_a_trial_of_an_agent_that_cannot_be_loaded_says_why(trial: Desk, tmp_path: Path) -> None:
    config = written(trial, tmp_path, "[agents.bad]\nrun = 'no_such_module:answer'\n")
    done = trial.run("", "agents", "try", "bad", "hello", "--config", config)
    assert done.returncode == 4
    assert "No module named 'no_such_module', when no_such_module:answer was loaded" in done.stderr
    assert left(trial) == []


def test_a_trial_expires_at_its_time_limit(trial: Desk, tmp_path: Path) -> None:
    done = trial.run("", "agents", "try", "mine", "wait", "--timeout", "1.5", "--config", written(trial, tmp_path))
    assert done.returncode == 4
    assert " expired by " in done.stderr
    assert (trial.alive(), left(trial)) == ([], [])


@pytest.mark.parametrize(("number", "shown"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_trial_and_its_receipt_is_waited_for(
    trial: Desk, tmp_path: Path, number: signal.Signals, shown: int
) -> None:
    chatting = trial.start("agents", "try", "mine", "wait", "--config", written(trial, tmp_path))
    chatting.out.wait("you said wait")
    until(lambda: trial.alive() != [], "its child to run")
    chatting.signal(number)
    assert chatting.ended() == shown
    assert "stopping the run" in chatting.err.text
    assert (trial.alive(), left(trial)) == ([], [])


def test_a_trial_says_that_nobody_can_answer_its_agents_question(trial: Desk, tmp_path: Path) -> None:
    chatting = trial.start("agents", "try", "mine", "ask", "--config", written(trial, tmp_path), "--json")
    chatting.err.wait("question: Deploy it?\n  nobody can answer it here; Ctrl-C ends it\n")
    chatting.signal(signal.SIGINT)
    assert chatting.ended() == 130
    assert (trial.alive(), left(trial)) == ([], [])


def test_a_second_ctrl_c_kills_a_trial(trial: Desk, tmp_path: Path) -> None:
    config = written(trial, tmp_path, "grace_s = 60\n")
    agent = tmp_path / "mine.py"
    agent.write_text(agent.read_text().replace("await asyncio.sleep(1000)", "__import__('time').sleep(1000)"))
    chatting = trial.start("agents", "try", "mine", "wait", "--config", config)
    chatting.out.wait("you said wait")
    chatting.signal(signal.SIGINT)
    chatting.err.wait("stopping the run")
    chatting.signal(signal.SIGINT)
    assert chatting.ended() == 130
    assert "killing the run" in chatting.err.text
    assert (trial.alive(), left(trial)) == ([], [])


def test_a_trial_does_not_touch_the_daemon_that_runs(trial: Desk, tmp_path: Path) -> None:
    config = written(trial, tmp_path)
    trial.serve("--config", config)
    assert trial.run("", "agents", "try", "mine", "hello", "--config", config).returncode == 0
    assert trial.json("sessions") == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nobody", "x"), 1, "there is no such agent in the configuration"),
        (("mine", "x", "--timeout", "0"), 2, "--timeout is not more than 0"),
        (("mine", "x", "--set", "agents.mine.spares=x"), 2, "agents.mine.spares"),
    ],
)
def test_a_trial_that_cannot_be_meant_is_refused(
    trial: Desk, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    done = trial.run("", "agents", "try", *words, "--config", written(trial, tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert left(trial) == []


def test_the_shell_can_be_tried_too(trial: Desk) -> None:
    done = trial.run("", "agents", "try", "shell", "echo hello; exit 3")
    assert done.returncode == 1
    assert done.stdout.startswith("hello\n[exit code 3")


def test_the_check_of_a_configuration_starts_its_agents(trial: Desk, tmp_path: Path) -> None:
    config = written(trial, tmp_path)
    done = trial.run("", "config", "check", "--config", config)
    assert (done.returncode, done.stdout) == (0, f"ok: {config}\n"), done.stderr
    config = written(trial, tmp_path, "[agents.bad]\nrun = 'no_such_module:answer'\nspares = 0\n")
    done = trial.run("", "config", "check", "--config", config)
    assert done.returncode == 2
    assert done.stderr.startswith("countermand: the agent bad cannot be loaded: No module named 'no_such_module'")
    assert len(done.stderr.splitlines()) == 1
    assert left(trial) == []


@pytest.mark.parametrize(
    ("shown", "end", "rest"),
    [
        ("", "", ""),
        ("", "all", "all"),
        ("all", "all", ""),
        ("a", "all", "ll"),
        ("0123456789", "56789ab", "ab"),
        ("0123456789", "cdefghi", "cdefghi"),
        ("0123456789", "", ""),
    ],
)
def test_what_was_printed_behind_the_end_of_a_run_is_shown_once(shown: str, end: str, rest: str) -> None:
    assert behind(shown, end) == rest
