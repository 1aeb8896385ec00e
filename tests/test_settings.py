"""The daemon's settings: which source counts, what is refused and how, and what `config` prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from actors import Invalid, NewMessage
from supervisor import Config, Supervisor
from supervisor.daemon.agent_tables import AGENT_KEYS
from supervisor.daemon.settings import KEYS, VARIABLES, DaemonSettings, HttpSettings, Source, WrongSettings, as_toml
from tests.daemon_plugins import deaf

PROJECT = Path(__file__).parent.parent


def wrong(source: Source) -> list[str]:
    """What is refused, each with its remedy."""
    with pytest.raises(WrongSettings) as caught:
        source.load()
    assert isinstance(caught.value, Invalid)
    return [f"{problem.message} | {problem.expected} | {problem.remedy}" for problem in caught.value.problems]


def source(tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, *assignments: str) -> Source:
    file = tmp_path / "countermand.toml"
    file.write_text(text)
    home = {"COUNTERMAND_STATE_DIR": str(tmp_path / "state")}
    return Source(file, {**home, **(environment or {})}, assignments)


def test_the_command_line_goes_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "drain_s = 1\ngrace_s = 1\nkill_s = 1\n[log]\nlevel = 'debug'"
    environment = {"COUNTERMAND_DRAIN_S": "2", "COUNTERMAND_GRACE_S": "2.5", "COUNTERMAND_LOG_LEVEL": "error"}
    settings = source(tmp_path, text, environment, "drain_s=3").load()
    assert (settings.config.drain_s, settings.config.grace_s, settings.config.kill_s) == (3.0, 2.5, 1.0)
    assert settings.log.level == "error"
    sources = [settings.found[key].source for key in ("drain_s", "grace_s", "kill_s", "queue_max")]
    assert sources == ["the command line", "COUNTERMAND_GRACE_S", str(tmp_path / "countermand.toml"), "default"]


def test_without_a_file_the_defaults_are_those_of_the_library(tmp_path: Path) -> None:
    settings = Source(None, {"XDG_CONFIG_HOME": str(tmp_path)}, (f"state_dir={tmp_path}",)).load()
    assert settings.file is None
    assert settings.config.settings == Config(state_dir=tmp_path).settings


def test_the_file_is_looked_for_in_the_users_configuration_and_where_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "countermand").mkdir()
    (tmp_path / "countermand" / "countermand.toml").write_text("drain_s = 7")
    other = tmp_path / "other.toml"
    other.write_text("drain_s = 8")
    home = {"XDG_CONFIG_HOME": str(tmp_path), "COUNTERMAND_STATE_DIR": str(tmp_path)}
    assert Source(None, home).load().config.drain_s == 7.0
    assert Source(None, {**home, "COUNTERMAND_CONFIG": str(other)}).load().config.drain_s == 8.0
    assert "cannot be read" in wrong(Source(None, {**home, "COUNTERMAND_CONFIG": str(tmp_path / "none")}))[0]


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("drain = 1", "no configuration key 'drain'", "'drain_s'"),
        ("level = 'info'", "no configuration key 'level'", "'log.level'"),
        ("[http]\nsockt = 'x'", "no configuration key 'http.sockt'", "'http.socket'"),
        ("[htp]\nsocket = 'x'", "no configuration key 'htp'", "'http'"),
        ("zzz = 1", "no configuration key 'zzz'", "remove it"),
        ("drain_s = '1'", "'drain_s' has an invalid value", "a number"),
        ("drain_s = -1", "'drain_s'", ""),
        ("drain_s = true", "'drain_s' has an invalid value", "a number"),
        ("queue_max = 1.5", "'queue_max' has an invalid value", "a whole number"),
        ("barrier = 'x'", "'barrier' has an invalid value", "'forced' | 'strict'"),
        ("run_deadline_s = 'x'", "'run_deadline_s' has an invalid value", "a number"),
        ("[log]\nlevel = 'loud'", "'log.level' has an invalid value", "'debug'"),
        ("log = 'loud'", "'log' has an invalid value", "a table"),
        ("agents = ['x']", "'agents' has an invalid value", "module:name"),
        ("tools = ['os']", "'os' cannot be imported", "module:name"),
        ("agent = 'nobody'", "no such agent", "shell"),
        ("[http]\nlisten = '0.0.0.0:80'", "not served on such an address", "loopback"),
        ("[http]\nlisten = '127.0.0.1:x'", "not served on such an address", "127.0.0.1:8123"),
        (f"[http]\nsocket = '/{'x' * 120}'", "path of the socket is too long", "at most 107 bytes"),
        ("drain_s = ", "cannot be read", "a TOML file"),
    ],
)
def test_an_invalid_setting_is_refused_with_what_is_allowed(tmp_path: Path, text: str, told: str, hint: str) -> None:
    (only,) = wrong(source(tmp_path, text))
    assert told in only
    assert hint in only


def test_all_that_is_wrong_is_found_at_once_each_with_where_it_stands(tmp_path: Path) -> None:
    made = source(tmp_path, "drain = 1\nkill_s = 'x'", {"COUNTERMAND_GRACE_S": "soon"}, "barrier=none", "what")
    found = wrong(made)
    starts = [str(made.file), str(made.file), "COUNTERMAND_GRACE_S", "the command line", "an assignment has no value"]
    assert len(found) == len(starts)
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True))


def test_a_variable_that_is_nearly_a_key_is_refused_and_others_are_let_be(tmp_path: Path) -> None:
    settings = source(tmp_path, "", {"COUNTERMAND_FENCE": "s:1:c", "COUNTERMAND_CRASH_INSTANTS": "5"}).load()
    assert settings.changes(source(tmp_path).load()) == []
    assert "COUNTERMAND_DRAIN_S" in wrong(source(tmp_path, "", {"COUNTERMAND_DRAINS": "5"}))[0]


def test_an_agent_in_the_daemons_process_is_imported_by_its_name(tmp_path: Path) -> None:
    text = "agent = 'deaf'\n[agents.deaf]\nrun = 'tests.daemon_plugins:deaf'\nin_process = true"
    settings = source(tmp_path, text).load()
    assert settings.config.agents["deaf"] is deaf
    assert settings.found["agents"].value == {"deaf": {"run": "tests.daemon_plugins:deaf", "in_process": True}}


def test_what_show_prints_is_toml_that_says_the_same(tmp_path: Path) -> None:
    text = "drain_s = 3\n[agents]\n'a b' = 'tests.daemon_plugins:deaf'\n[agents.c]\ncommand = ['a', \"b'\"]\n"
    text += "env = {X = 'é', Y = ''}\ngrace_s = 1.5\n[http]\nlisten = '[::1]:0'"
    settings = source(tmp_path, text).load()
    printed = as_toml(settings.found)
    again = source(tmp_path, printed).load()
    assert settings.changes(again) == []
    tomllib.loads(printed)


def test_every_key_has_a_variable_of_its_own() -> None:
    assert len(VARIABLES) == len(KEYS)


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8123", ("::1", 8123)), ("localhost:0", ("localhost", 0)), ("", None)],
)
def test_where_the_api_listens(listen: str, address: tuple[str, int] | None) -> None:
    assert HttpSettings(listen=listen).address == address


def test_under_systemd_the_socket_is_in_its_runtime_directory(tmp_path: Path, monkeypatch: Any) -> None:
    settings: DaemonSettings = source(tmp_path).load()
    assert settings.socket == tmp_path / "state" / "countermand.sock"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/countermand:/run/other")
    assert settings.socket == Path("/run/countermand/countermand.sock")


# ── The commands ──────────────────────────────────────────────────────────────────────────────────


def command(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The state directory is short: a socket in it has to have a path that the kernel takes.
    environment = {
        "HOME": str(tmp_path),
        "COUNTERMAND_STATE_DIR": "/tmp/x",
        "PYTHONPATH": str(PROJECT),
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-m", "supervisor.console", "config", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_check_says_all_that_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("drain = 1\nbarrier = 'x'")
    done = command(tmp_path, "check", "--config", str(file))
    assert done.returncode == 2
    assert "did you mean 'drain_s'?" in done.stderr
    assert "'forced' | 'strict'" in done.stderr
    as_json = command(tmp_path, "check", "--config", str(file), "--json")
    assert as_json.returncode == 2
    said = json.loads(as_json.stdout)
    assert (said["ok"], [one["code"] for one in said["problems"]]) == (False, ["invalid", "invalid"])
    file.write_text("drain_s = 1")
    done = command(tmp_path, "check", "--config", str(file))
    assert (done.returncode, done.stdout) == (0, f"ok: {file}\n")
    as_json = command(tmp_path, "check", "--config", str(file), "--json")
    assert json.loads(as_json.stdout) == {"ok": True, "file": str(file), "problems": []}


def test_show_prints_each_setting_and_where_it_was_set(tmp_path: Path) -> None:
    done = command(tmp_path, "show", "--set", "drain_s=5", "--state-dir", "/x", "--json")
    shown = json.loads(done.stdout)
    assert shown["drain_s"] == {"value": 5.0, "source": "the command line"}
    assert shown["state_dir"] == {"value": "/x", "source": "the command line"}
    assert shown["barrier"] == {"value": "forced", "source": "default"}


def test_the_documentation_names_every_key_and_no_other() -> None:
    assert _documented("| key | default |") == sorted(KEYS)
    assert _documented("| key of an agent | default |") == sorted(AGENT_KEYS)


def _documented(head: str) -> list[str]:
    """The keys of a table of the documentation."""
    table = (PROJECT / "docs" / "daemon.md").read_text().partition(head)[2].partition("\n\n")[0]
    names = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return sorted(key for cell in names for key in re.findall(r"`([a-z_.0-9]+)`", cell))


@pytest.mark.parametrize("key", ["state_dir", "http.socket", "http.token_file"])
def test_a_home_of_an_unknown_user_is_refused_with_its_key(tmp_path: Path, key: str) -> None:
    (said,) = wrong(source(tmp_path, "", {"COUNTERMAND_STATE_DIR": ""}, f"{key}=~nobody-of-this-name/x"))
    assert f"the path of {key} begins with the home of an unknown user" in said


def test_a_file_that_is_nested_too_deeply_cannot_be_read(tmp_path: Path) -> None:
    text = "tools = " + "[" * 2_000 + "]" * 20_000
    assert "cannot be read" in wrong(source(tmp_path, text))[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agents = {x = {run = 'no.such:thing', in_process = true}}", "'no.such:thing' cannot be imported: ModuleNot"),
        ("agents = {x = {run = 'leaves_at_once:x', in_process = true}}", "cannot be imported: SystemExit: 3"),
        ("agents = {x = {run = 'os:sep', in_process = true}}", "is not a function: '/'"),
        ("tools = ['leaves_at_once:x']", "'leaves_at_once:x' cannot be imported: SystemExit: 3"),
        ("tools = ['os:getcwd']", "the tool 'getcwd' has no isolation"),
    ],
)
def test_l13_an_agent_or_a_tool_that_cannot_be_loaded_is_its_own_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys; sys.exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = source(tmp_path, text).load()
    (unloaded,) = settings.unloaded
    assert told in unloaded.why
    with Supervisor.start(settings.config) as supervisor:
        assert list(supervisor.unloaded().values()) == [unloaded.why]
        session = supervisor.session("s")
        assert session.receipt(session.ask(NewMessage(content="true"), timeout=30).run_id, timeout=30).complete


def test_check_names_what_cannot_be_loaded(tmp_path: Path) -> None:
    done = command(tmp_path, "check", "--set", "agents={x = {run = 'no.such:thing', in_process = true}}", "--json")
    assert done.returncode == 2
    assert "'no.such:thing' cannot be imported" in done.stderr
    said = json.loads(done.stdout)
    assert (said["ok"], [one["code"] for one in said["problems"]]) == (False, ["invalid"])
