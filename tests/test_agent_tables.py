"""The agents of the settings, ``[agents.NAME]``: what they are, and what is refused, with its file and its key."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors import Invalid, NewMessage
from supervisor import Agent, Config, Supervisor
from supervisor.agent import MODEL_KEYS, OPTIONS_MAX_BYTES, RUNTIME, VARIABLE_MAX_BYTES
from supervisor.daemon.agent_tables import AGENT_KEYS
from supervisor.daemon.settings import WrongSettings
from supervisor.supervisor import plugins_of
from tests.daemon_plugins import deaf
from tests.test_settings import source, wrong


def agent(tmp_path: Path, text: str, *assignments: str) -> Agent:
    """The agent `mine` of a file."""
    made = source(tmp_path, text, None, *assignments).load().config.agents["mine"]
    assert isinstance(made, Agent)
    return made


EVERYTHING = """
[agents.mine]
run = "my_package.agents:answer"
python = "/opt/agents/mine/bin/python"
path = ["/opt/agents/mine/src"]
cwd = "/srv/work"
user = "agent"
env = { MODEL = "small" }
env_files = ["/etc/countermand/mine.env"]
tools = ["shell", "my_package.tools:search"]
ask = ["shell"]
mcp = ["files"]
spares = 1
keep = "run"
keep_idle_s = 600
overlap = true
grace_s = 2.0
start_s = 60
run_deadline_s = 3600
max_tokens = 1_000_000
max_calls = 200
limits = { as_bytes = 2_000_000_000 }
in_process = false
"""
SERVER = "\n[mcp.files]\ncommand = 'files'\n"


def test_a_table_has_the_keys_of_the_librarys_agent(tmp_path: Path) -> None:
    made = agent(tmp_path, EVERYTHING + SERVER)
    assert made == Agent(
        name="mine",
        run="my_package.agents:answer",
        python="/opt/agents/mine/bin/python",
        path=["/opt/agents/mine/src"],
        cwd="/srv/work",
        user="agent",
        env={"MODEL": "small"},
        env_files=["/etc/countermand/mine.env"],
        tools=["shell", "my_package.tools:search"],
        ask=["shell"],
        mcp=["files"],
        spares=1,
        keep="run",
        keep_idle_s=600.0,
        overlap=True,
        grace_s=2.0,
        start_s=60.0,
        run_deadline_s=3600.0,
        max_tokens=1_000_000,
        max_calls=200,
        limits={"as_bytes": 2_000_000_000},
    )
    assert made.argv == (
        *("/opt/agents/mine/bin/python", str(RUNTIME), "my_package.agents:answer"),
        *("--tool", "my_package.tools:search"),
    )
    written = [line.split(" ")[0] for line in EVERYTHING.splitlines()[2:]]
    assert sorted({*written, "command", "preset", *MODEL_KEYS}) == sorted(AGENT_KEYS), "every key is in the example"


def test_a_name_of_a_function_alone_means_a_host(tmp_path: Path) -> None:
    made = agent(tmp_path, "[agents]\nmine = 'no_such_module:answer'")
    assert made == Agent(name="mine", run="no_such_module:answer")
    assert made.argv == (sys.executable, str(RUNTIME), "no_such_module:answer")
    assert "no_such_module" not in sys.modules


def test_a_command_is_an_agent_in_any_language(tmp_path: Path) -> None:
    assert agent(tmp_path, "[agents.mine]\ncommand = ['node', 'agent.mjs']").argv == ("node", "agent.mjs")


def test_a_preset_is_one_line(tmp_path: Path) -> None:
    made = agent(tmp_path, "[agents.mine]\npreset = 'gemini'")
    assert made == Agent(name="mine", preset="gemini", keep="session", overlap=False)
    assert made.argv == (sys.executable, str(RUNTIME), "countermand.programs.acp:answer")
    assert made.environment() == {"COUNTERMAND_PROGRAM": '["gemini", "--acp"]'}


def test_a_model_is_one_line_and_its_key_is_nowhere_in_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-secret")
    line = f"{{ preset = 'openai', model = 'm', base_url = 'http://127.0.0.1:1/v1', key_file = '{tmp_path / 'key'}' }}"
    made = agent(tmp_path, f"agents.mine = {line}")
    assert (made.keep, made.overlap, made.spelled) == ("run", True, "openai: m at http://127.0.0.1:1/v1")
    assert made.argv == (sys.executable, str(RUNTIME), "countermand.models.chat:answer")
    given = json.loads(made.environment()["COUNTERMAND_MODEL"])
    assert given == {"model": "m", "base_url": "http://127.0.0.1:1/v1", "key_file": str(tmp_path / "key")}
    own = agent(tmp_path, "[agents.mine]\npreset = 'openai'\nmodel = 'm'\npython = '/p'\ntools = ['shell', 'm:f']")
    assert own.argv == ("/p", str(RUNTIME), "countermand.models.chat:answer", "--tool", "m:f")


def test_the_options_of_a_model_may_have_so_many_bytes() -> None:
    most = "x" * (OPTIONS_MAX_BYTES - len('{"stop": ""}'))
    assert Agent(preset="openai", model="m", options={"stop": most}).options == {"stop": most}
    with pytest.raises(Invalid, match=r"the key 'options' has an invalid value.* at most 65536 bytes"):
        Agent(preset="openai", model="m", options={"stop": most + "x"})


def test_in_the_daemons_process_it_is_the_function_itself(tmp_path: Path) -> None:
    text = "[agents.mine]\nrun = 'tests.daemon_plugins:deaf'\nin_process = true"
    assert source(tmp_path, text).load().config.agents["mine"] is deaf


def test_the_command_line_sets_one_key_of_an_agent(tmp_path: Path) -> None:
    text = "[agents.mine]\nrun = 'm:f'\nspares = 3\n[agents.'a.b']\nrun = 'm:f'"
    made = source(tmp_path, text, None, "agents.mine.spares=0", "agents.a.b.keep=session", "agents.new=x:y").load()
    assert made.config.agents == {
        "mine": Agent(name="mine", run="m:f", spares=0),
        "a.b": Agent(name="a.b", run="m:f", keep="session"),
        "new": Agent(name="new", run="x:y"),
    }
    assert made.found["agents"].source == f"{tmp_path / 'countermand.toml'}, the command line"


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("run = 'm'", "run", "module:function"),
        ("run = 5", "run", "module:function"),
        ("run = 'm:'", "run", "module:function"),
        ("command = []", "command", "a program and its arguments"),
        ("command = 'node'", "command", "a program and its arguments"),
        ("run = 'm:f'\npython = ''", "python", "interpreter"),
        ("run = 'm:f'\npath = 'x'", "path", "a list of directories"),
        ("run = 'm:f'\npath = ['a:b']", "path", "a list of directories"),
        ("run = 'm:f'\ncwd = 5", "cwd", "a directory"),
        ("run = 'm:f'\nuser = 5", "user", "the uid of a user"),
        ("run = 'm:f'\nenv = {A = 5}", "env", "each with its text"),
        ("run = 'm:f'\nenv = {'A=B' = 'x'}", "env", "each with its text"),
        ("run = 'm:f'\nenv = {COUNTERMAND_CHANNEL = '5'}", "env", "the host's socket"),
        ("run = 'm:f'\nenv_files = 'x'", "env_files", "a list of paths"),
        ("run = 'm:f'\ntools = ['a:']", "tools", "module:function"),
        ("run = 'm:f'\nspares = -1", "spares", "0 to 64"),
        ("run = 'm:f'\nspares = true", "spares", "0 to 64"),
        ("run = 'm:f'\nkeep = 'always'", "keep", "'run' or 'session'"),
        ("run = 'm:f'\nkeep_idle_s = -1", "keep_idle_s", "a number of seconds"),
        ("run = 'm:f'\noverlap = 1", "overlap", "true or false"),
        ("run = 'm:f'\nask = 'shell'", "ask", "a list of names of tools"),
        ("run = 'm:f'\ngrace_s = 'x'", "grace_s", "a number of seconds"),
        ("run = 'm:f'\nstart_s = 0", "start_s", "a number of seconds"),
        ("run = 'm:f'\nlimits = {files = 5}", "limits", "nofile"),
        ("run = 'm:f'\nin_process = 1", "in_process", "true or false"),
        ("in_process = true", "run", "module:function"),
        ("command = ['x']\nin_process = true", "command", "run and in_process alone"),
        ("run = 'm:f'\nspares = 1\nin_process = true", "spares", "run and in_process alone"),
        ("command = ['x']\npython = 'y'", "python", "'run' instead of 'command'"),
        ("command = ['x']\npath = ['y']", "path", "'run' instead of 'command'"),
        ("base_url = 'http://user:secret@host/v1'", "base_url", "without a user or a key"),
        ("options = { model = 'x' }", "options", "without input, messages, model, stream, tools"),
        ("options = { x = 2026-01-01 }", "options", "as JSON of at most 65536 bytes"),
        ("command = ['x']\ntools = ['m:f']", "tools", "names of tools without a ':'"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_its_key_and_what_is_allowed(
    tmp_path: Path, text: str, key: str, hint: str
) -> None:
    made = source(tmp_path, f"[agents.mine]\n{text}")
    found = wrong(made)
    (only,) = [one for one in found if f"'agents.mine.{key}'" in one]
    assert only.startswith(f"{made.file}: ")
    assert hint in only


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is not clear what the agent 'mine' runs"),
        ("preset = 'acp'", "it is not clear what program the agent 'mine' is"),
        ("preset = 'x'", "the key 'agents.mine.preset' has an invalid value"),
        ("preset = 'openai'", "it is not clear what model the agent 'mine' is"),
        ("preset = 'openai'\nmodel = 'm'\ncommand = ['x']", "the key 'agents.mine.command' is for an agent without"),
        ("run = 'm:f'\nmodel = 'm'", "the key 'agents.mine.model' is for a preset that is a model"),
        ("preset = 'acp'\ncommand = ['x']\nmodel = 'm'", "the key 'agents.mine.model' is for a preset that is a model"),
        ("run = 'm:f'\ncommand = ['x']", "it is not clear what the agent 'mine' runs"),
        ("run = 'm:f'\nsparse = 1", "there is no configuration key 'agents.mine.sparse'"),
        ("run = 'm:f'\nname = 'x'", "there is no configuration key 'agents.mine.name'"),
        ("run = 'm:f'\ncwd = '~nobody-of-this-name/x'", "begins with the home of an unknown user"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, told: str) -> None:
    made = source(tmp_path, f"[agents.mine]\n{text}")
    (only,) = wrong(made)
    assert only.startswith(f"{made.file}: {told}") or (only.startswith(f"{made.file}: ") and told in only)


def test_all_that_is_wrong_with_all_agents_is_found_at_once(tmp_path: Path) -> None:
    text = "drain = 1\n[agents.a]\nspares = -1\nkeep = 5\nrum = 'x'\n[agents.b]\n[agents.c]\nrun = 'm:f'\ncwd = 5"
    found = wrong(source(tmp_path, text))
    named = ["'drain'", "agents.a.spares", "agents.a.keep", "agents.a.rum", "'b'", "agents.c.cwd"]
    assert all(any(key in one for one in found) for key in named), found
    assert len(found) == len(named)


def test_a_misspelt_key_is_guessed(tmp_path: Path) -> None:
    (only,) = wrong(source(tmp_path, "[agents.mine]\nrun = 'm:f'\nsparse = 1"))
    assert "did you mean 'agents.mine.spares'?" in only


@pytest.mark.parametrize("assignment", ["agents.mine=5", "agents.mine.zzz=5", "agents.=5"])
def test_an_assignment_that_is_no_agent_is_refused(tmp_path: Path, assignment: str) -> None:
    assert wrong(source(tmp_path, "", None, assignment))[0].startswith("the command line: ")


def test_a_tool_that_is_granted_and_not_there_is_refused(tmp_path: Path) -> None:
    (only,) = wrong(source(tmp_path, "[agents.mine]\nrun = 'm:f'\ntools = ['shell', 'serch']"))
    assert "'agents.mine.tools' names a tool that is not there" in only
    assert "shell" in only


# ── The value of the library ──────────────────────────────────────────────────────────────────────


def test_a_library_names_the_key_alone() -> None:
    with pytest.raises(Invalid, match="the key 'spares' has an invalid value"):
        Agent(run="m:f", spares=-1)
    with pytest.raises(TypeError):
        Agent(run="m:f", sparse=1)  # type: ignore[call-arg]


def test_its_environment_is_not_shown() -> None:
    assert "hush" not in repr(Agent(run="m:f", env={"KEY": "hush"}))
    with pytest.raises(Invalid) as refused:
        Agent(run="m:f", env={"KEY": "hush", "A=B": "x"})
    assert "hush" not in str(refused.value)


def test_paths_hold_wherever_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    made = Agent(run="m:f", python="venv/bin/python", path=["~/src", "src"], cwd=".", env_files=["secrets"])
    assert made.python == f"{tmp_path}/venv/bin/python"
    assert made.path == ("/home/me/src", f"{tmp_path}/src")
    assert (made.cwd, made.env_files) == (str(tmp_path), (f"{tmp_path}/secrets",))
    assert Agent(run="m:f", python="python3.12").python == "python3.12", "looked for in PATH"


def test_a_host_gets_its_own_tools_and_the_granted_ones() -> None:
    made = Agent(run="m:f", tools=["shell", "my.tools:search"])
    assert made.granted == ("shell",)
    assert made.argv[-2:] == ("--tool", "my.tools:search")
    assert Agent(run="m:f").granted is None
    assert Agent(run="m:f", tools=["my.tools:search"]).granted == ()


def test_an_unknown_grant_is_let_be_while_a_tool_cannot_be_loaded(tmp_path: Path) -> None:
    text = "tools = ['no.such:search']\n[agents.mine]\nrun = 'm:f'\ntools = ['search']"
    settings = source(tmp_path, text).load()
    assert len(settings.unloaded) == 1


# ── Files of variables ────────────────────────────────────────────────────────────────────────────


def files(tmp_path: Path, content: str | bytes, **options: Any) -> Agent:
    path = tmp_path / "mine.env"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Agent(run="m:f", python="/python", env_files=[str(path)], **options)


def test_a_file_of_variables_has_lines_comments_and_quotes(tmp_path: Path) -> None:
    text = "# keys\n\nA=1\nexport B = two words \nC='it''s'\nD=\"x=y\"\nE=\nA=later\nF='\n"
    found = files(tmp_path, text).environment()
    assert found == {"A": "later", "B": "two words", "C": "it''s", "D": "x=y", "E": "", "F": "'"}


def test_the_table_goes_over_a_file_and_a_later_file_over_an_earlier(tmp_path: Path) -> None:
    (tmp_path / "later").write_text("B=2\nC=2\n")
    made = files(tmp_path, "A=1\nB=1\nC=1\n", env={"C": "3"}, path=["/a", "/b"])
    made = Agent(
        run="m:f",
        python="/python",
        env_files=[*made.env_files, str(tmp_path / "later")],
        env=made.env,
        path=made.path,
    )
    assert made.environment() == {"A": "1", "B": "2", "C": "3", "COUNTERMAND_PATH": "/a:/b"}


@pytest.mark.parametrize(
    "content", ["hush", "hush hush=1", "1hush=x", "COUNTERMAND_CHANNEL=hush", b"A=\xff\xfehush", b"A=hush\0"]
)
def test_a_line_that_is_no_variable_is_refused_and_not_shown(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(Invalid, match=r"mine\.env") as refused:
        files(tmp_path, content).environment()
    assert "hush" not in str(refused.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        Agent(run="m:f", env_files=[str(tmp_path / "none")]).environment()
    with pytest.raises(Invalid, match="too large"):
        files(tmp_path, "A=" + "x" * 1_048_576).environment()


def test_the_supervisors_own_interpreter_finds_what_the_supervisor_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert Agent(run="m:f").environment() == {"PYTHONPATH": "/mine"}
    assert Agent(run="m:f", env={"PYTHONPATH": "/theirs"}).environment() == {"PYTHONPATH": "/theirs"}
    assert Agent(run="m:f", python="/other/python").environment() == {}
    assert Agent(command=["node"]).environment() == {}


# ── What the supervisor makes of it ───────────────────────────────────────────────────────────────


def test_l14_a_variable_of_the_limit_starts_a_process_and_a_longer_one_is_named() -> None:
    short = Agent(preset="openai", model="m", instructions="x", name="mine")
    ((name, value),) = short.environment().items()
    most = 1 + VARIABLE_MAX_BYTES - len(f"{name}={value}")
    longest = dataclasses.replace(short, instructions="x" * most)
    subprocess.run(["true"], env=longest.environment(), check=True)
    longer = dataclasses.replace(short, instructions="x" * (most + 1))
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true"], env={name: f"{longest.environment()[name]} "}, check=True)
    expected = rf"{name} of the agent 'mine' .*the keys of a model.*{VARIABLE_MAX_BYTES + 1} bytes"
    with pytest.raises(Invalid, match=expected):
        longer.environment()
    with pytest.raises(Invalid, match="the variable A of an agent is too long"):
        Agent(run="m:f", env={"A": "x" * VARIABLE_MAX_BYTES}).environment()


def test_what_holds_for_its_runs_is_what_it_says() -> None:
    made = Agent(run="m:f", keep="session", keep_idle_s=5, overlap=False, grace_s=1, tools=["shell", "m:g"])
    hosted = plugins_of(Config(agents={"mine": made})).hosted("mine")
    assert hosted is not None
    assert (hosted.name, hosted.keep, hosted.keep_idle_s, hosted.overlap) == ("mine", True, 5.0, False)
    assert (hosted.grace_s, hosted.tools) == (1.0, ("shell",))


def test_a_supervisor_starts_whatever_its_agents_come_to(tmp_path: Path) -> None:
    agents = {
        "unread": Agent(run="m:f", env_files=[str(tmp_path / "none")]),
        "missing": Agent(command=["/no/such/program"]),
        "cold": Agent(run="no_such_module:f", spares=0),
    }
    with Supervisor.start(Config(state_dir=tmp_path / "state", agents=agents)) as supervisor:
        unread, _, cold = supervisor.hosts()
        assert "No such file" in unread.broken
        assert (cold.broken, cold.hosts) == ("", ())
        session = supervisor.session("s")
        assert session.receipt(session.ask(NewMessage(content="true"), timeout=30).run_id, timeout=30).complete


def test_wrong_settings_of_an_agent_are_one_refusal(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match="2 mistakes"):
        source(tmp_path, "[agents.mine]\nrun = 'm'\nspares = -1").load()
