"""The MCP servers of the settings, ``[mcp.NAME]``: what they are, and what is refused, with its file and its key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from actors import Invalid
from supervisor import Agent, Config, McpServer
from supervisor.daemon.mcp_tables import MCP_KEYS
from supervisor.daemon.settings import WrongSettings, as_toml
from supervisor.supervisor import plugins_of
from supervisor.variables import FILE_MAX_BYTES
from tests.test_settings import source, wrong

FILES = """
[mcp.files]
command = "my-file-server"
args = ["--stdio", ""]
env = { ROOT = "/srv/project" }
cwd = "/srv"
env_files = ["/etc/countermand/files.env"]
allow = ["read", "write"]
deny = ["delete"]
ask = ["write"]
grace_s = 1
"""
SEARCH = """
[mcp.search]
url = "https://127.0.0.1:9000/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }
"""
SECRET = "its-secret"


def test_a_table_has_the_keys_of_the_librarys_server(tmp_path: Path) -> None:
    settings = source(tmp_path, FILES + SEARCH).load()
    assert settings.config.mcp == {
        "files": McpServer(
            name="files",
            command="my-file-server",
            args=["--stdio", ""],
            env={"ROOT": "/srv/project"},
            cwd="/srv",
            env_files=["/etc/countermand/files.env"],
            allow=["read", "write"],
            deny=["delete"],
            ask=["write"],
            grace_s=1.0,
        ),
        "search": McpServer(
            name="search", url="https://127.0.0.1:9000/mcp", headers={"Authorization": "Bearer ${TOKEN}"}
        ),
    }
    written = [line.split(" ")[0] for line in (FILES + SEARCH).splitlines() if " = " in line]
    assert sorted(written) == sorted(MCP_KEYS), "every key is in the example"
    shown = as_toml(settings.found)
    assert 'mcp = {"files" = {"command" = "my-file-server", ' in shown


def test_an_agent_with_servers_keeps_its_host_and_its_runs_do_not_overlap_unless_it_says_so() -> None:
    chosen = Agent(run="m:f", mcp=["files"])
    assert (chosen.keep, chosen.overlap) == ("session", False)
    other = Agent(run="m:f", mcp=["files"], keep="run", overlap=True)
    assert (other.keep, other.overlap) == ("run", True)


def environment(tmp_path: Path, server: McpServer) -> dict[str, Any]:
    """What a host is told of a server."""
    agent = Agent(run="m:f", mcp=["mine"], servers={"mine": server})
    found: dict[str, Any] = json.loads(agent.environment()["COUNTERMAND_MCP"])["mine"]
    return found


def test_a_host_is_told_of_its_servers_with_what_their_files_have(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(f"TOKEN={SECRET}\nROOT=/other\n")
    told = environment(tmp_path, McpServer(command="x", env={"ROOT": "/srv"}, env_files=[str(file)]))
    assert (told["command"], told["env"]) == ("x", {"TOKEN": SECRET, "ROOT": "/srv"})
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Plain": "$5 {TOKEN}"}
    server = McpServer(url="http://h/mcp", headers=headers, env_files=[str(file)])
    told = environment(tmp_path, server)
    assert told["headers"] == {"Authorization": f"Bearer {SECRET}", "X-Plain": "$5 {TOKEN}"}
    assert SECRET not in repr(server)
    relative = McpServer(command="./x", cwd="~", env_files=["e"])
    assert (relative.command, relative.env_files) == (str(Path.cwd() / "x"), (str(Path.cwd() / "e"),))
    assert relative.cwd == str(Path.home())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"TOKEN\n", "another, line 1"),
        (b"OTHER=1\n", "names a variable that is not there.*TOKEN"),
        (b"A=" + b"x" * (FILE_MAX_BYTES - 1), "not UTF-8, or too large"),
        (None, "No such file"),
    ],
)
def test_a_file_of_variables_that_does_not_fit_is_refused_and_not_shown(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "env"
    if content is not None:
        file.write_bytes(content)
    server = McpServer(name="s", url="http://h/mcp", headers={"A": "${TOKEN}"}, env_files=[str(file)])
    with pytest.raises(Invalid, match=rf"mcp\.s\.(env_files|headers).*{says}"):
        environment(tmp_path, server)


@pytest.mark.parametrize(
    ("text", "message", "expected"),
    [
        ("[mcp.x]", "it is not clear what the MCP server 'x' is", "one of 'command'"),
        ("[mcp.x]\ncommand = 'c'\nurl = 'http://h'", "it is not clear what the MCP server 'x' is", "one of 'command'"),
        ("[mcp.x]\ncommand = ['c']", "'mcp.x.command' has an invalid value", "the path of a program"),
        ("[mcp.x]\ncommand = 'c'\nargs = 'a'", "'mcp.x.args' has an invalid value", "a list of texts"),
        ("[mcp.x]\ncommand = 'c'\nenv = {A = 1}", "'mcp.x.env' has an invalid value", "each with its text"),
        ("[mcp.x]\ncommand = 'c'\nheaders = {A = 'b'}", "'mcp.x.headers' has an invalid value", "beside command"),
        ("[mcp.x]\nurl = 'http://h'\nargs = ['a']", "'mcp.x.args' has an invalid value", "beside url"),
        ("[mcp.x]\nurl = 'http://h'\nenv = {A = 'b'}", "'mcp.x.env' has an invalid value", "beside url"),
        ("[mcp.x]\nurl = 'http://me:pw@h'", "'mcp.x.url' has an invalid value", "without a user or a key"),
        ("[mcp.x]\nurl = 'ftp://h'", "'mcp.x.url' has an invalid value", "http:// or https://"),
        ("[mcp.x]\nurl = 'http://h'\nheaders = {'A:' = 'b'}", "'mcp.x.headers' has an invalid", "names of headers"),
        ('[mcp.x]\nurl = "http://h"\nheaders = {A = "b\\nC: d"}', "'mcp.x.headers' has an invalid", "names of headers"),
        ("[mcp.x]\ncommand = 'c'\nallow = 'read'", "'mcp.x.allow' has an invalid value", "names of its tools"),
        ("[mcp.x]\ncommand = 'c'\ngrace_s = -1", "'mcp.x.grace_s'", ""),
        ("[mcp.x]\ncommand = 'c'\nask_ = ['a']", "no configuration key 'mcp.x.ask_'", "command | args"),
        ("[mcp.'a b']\ncommand = 'c'", "invalid name of an MCP server", "1 to 32"),
        (f"[mcp.{'x' * 33}]\ncommand = 'c'", "invalid name of an MCP server", "1 to 32"),
        ("mcp = ['x']", "'mcp' has an invalid value", "a table of names, each a table of keys"),
        ("agents.a = {run = 'm:f', mcp = ['x']}", "'agents.a.mcp' names an MCP server that is not there", "[mcp.NAME]"),
        ("agents.a = {run = 'm:f', mcp = 'x'}", "'agents.a.mcp' has an invalid value", "names of MCP servers"),
        ("agents.a = {command = ['p'], mcp = ['x']}", "'agents.a.mcp' is for an agent in Python", "'run' instead"),
    ],
)
def test_what_is_no_server_is_refused_with_its_key_and_what_is_allowed(
    tmp_path: Path, text: str, message: str, expected: str
) -> None:
    (problem,) = wrong(source(tmp_path, text))
    assert message in problem
    assert expected in problem


def test_all_mistakes_of_all_servers_are_found_at_once(tmp_path: Path) -> None:
    text = "[mcp.x]\nargs = 'a'\nallow = 'b'\n[mcp.y]\nurl = 'http://h'\nheader = {}"
    found = [problem.partition("mcp.")[2].partition("'")[0] for problem in wrong(source(tmp_path, text))]
    assert found == ["x.args", "x.allow", "y.header"]


def test_the_values_of_variables_and_headers_are_in_no_error() -> None:
    with pytest.raises(Invalid) as caught:
        McpServer(command="c", env={"TOKEN": SECRET, "=": ""})
    assert "TOKEN" in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(Invalid) as caught:
        McpServer(command="c", headers={"Authorization": SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"[mcp]\na = 'server'\n[mcp.b]\ncommand = 'c'\nenv = {{ TOKEN = '{SECRET}' }}",
        f"[mcp]\ncommand = 'c'\nenv = {{ TOKEN = '{SECRET}' }}",
        f"mcp = '{SECRET}'",
        f"[mcp.a]\ncommand = 'c'\nenv = ['TOKEN={SECRET}']",
        f"[mcp.a]\nurl = 'http://h'\nheaders = 'Authorization: Bearer {SECRET}'",
        f"[mcp.a]\nurl = 'http://h/mcp?key={SECRET}'",
        f"[mcp.a]\nurl = 'http://me:{SECRET}@h/mcp'",
        f"[agents]\na = 5\n[agents.b]\nrun = 'm:f'\nenv = {{ TOKEN = '{SECRET}' }}",
        f"[agents.a]\nrun = 'm:f'\nenv = ['TOKEN={SECRET}']",
        f"[agents.a]\npreset = 'openai'\nmodel = 'm'\nbase_url = 'http://me:{SECRET}@h'",
        f"[agents.a]\npreset = 'openai'\nmodel = 'm'\noptions = {{ stream = true, user = '{SECRET}' }}",
        f"[agents.a]\nrun = 'm:f'\noptions = {{ extra_headers = {{ X = '{SECRET}' }} }}",
    ],
)
def test_what_may_be_a_secret_is_in_no_error_of_the_settings_whatever_is_wrong_with_it(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(WrongSettings) as caught:
        source(tmp_path, text).load()
    assert SECRET not in str(caught.value)


def test_a_library_is_told_what_is_no_server(tmp_path: Path) -> None:
    servers: Any = {"x": {"command": "c"}}
    with pytest.raises(Invalid, match=r"the key 'mcp\.x' is no MCP server"):
        plugins_of(Config(state_dir=tmp_path, mcp=servers))
    with pytest.raises(Invalid, match=r"'agents\.a\.mcp' names an MCP server that is not there"):
        plugins_of(Config(state_dir=tmp_path, agents={"a": Agent(run="m:f", mcp=["x"])}))


def test_the_page_names_every_key_and_its_configuration_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "mcp.md").read_text()
    table = page.partition("| key of a server | default |")[2].partition("\n\n")[0]
    names = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(key for cell in names for key in re.findall(r"`(\w+)`", cell)) == sorted(MCP_KEYS)
    text = page.partition("```toml\n")[2].partition("```")[0]
    config = source(tmp_path, text).load().config
    assert sorted(config.mcp) == ["files", "search"]
    plugins_of(config)
