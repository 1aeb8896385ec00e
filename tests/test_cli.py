"""The command line: options and their values, what a start loads, and completion in the shell."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import shellingham  # type: ignore[import-untyped]  # it has no annotations
from click import Command, Group
from click.testing import CliRunner

from actors.errors import Invalid
from supervisor.console.cli.agents import trial
from supervisor.console.cli.common import Common
from supervisor.console.cli.daemon import demo
from supervisor.console.cli.root import root

PROJECT = Path(__file__).parent.parent
HEAVY = {"httpx", "litestar", "loguru", "msgspec", "psutil", "pydantic", "pykka", "rich", "uvicorn"}


def command(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "supervisor.console", "--state-dir", str(directory), *args],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "args",
    [
        ("stop", "s", "--timeout", "abc", "--json"),
        ("answer", "s", "call_1", "--json"),
        ("runs", "--json", "--no-such-option"),
        ("events", "--json", "a", "b", "c"),
        ("no-such-command", "--json"),
    ],
)
def test_with_json_a_usage_error_is_a_document_too(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = command(tmp_path, *args)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "invalid")
    assert error["message"] in " ".join(done.stderr.split())
    assert error["expected"].startswith("Usage: countermand")
    assert error["remedy"].endswith("--help")


@pytest.mark.parametrize("args", [("stop", "s", "--timeout", "abc"), ("stop", "--no-such", "--", "--json")])
def test_without_json_a_usage_error_prints_nothing_on_standard_output(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = command(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The packages that a command has loaded."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}


def leaves(group: Group) -> list[Command]:
    """The commands below a group, those of its groups too."""
    return [one for each in group.commands.values() for one in (leaves(each) if isinstance(each, Group) else [each])]


# ── Options ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "code"),
    [(("--help",), 0), (("--version",), 0), (("stop", "--help"), 0), (("stop", "s1", "--nope"), 2), (("nope",), 2)],
)
def test_help_and_a_wrong_option_load_no_library_but_the_command_line_s(
    tmp_path: Path, args: tuple[str, ...], code: int
) -> None:
    done = command(tmp_path, *args)
    assert done.returncode == code, done.stderr[-2000:]
    assert loaded(done) & HEAVY == set()
    assert "click" in loaded(done)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("config", "check", "--set", "grace_s=1", "--set", "drain_s=2"), 0),
        (("sessions", "--json"), 1),
        (("stop", "s1", "--reason", "enough", "--timeout", "2.5"), 3),
    ],
)
def test_the_values_of_options_are_checked_without_pydantic(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    done = command(tmp_path, *args)
    assert done.returncode == code, done.stderr[-2000:]
    assert "pydantic" not in loaded(done)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ("stop s1 --timeout soon", "Invalid value for '--timeout': 'soon' is not a valid number."),
        ("stop s1 --timeout -1", "Invalid value for '--timeout': -1.0 is not in the range x>=0.0."),
        ("events s1 --from-seq 1.5", "Invalid value for '--from-seq': '1.5' is not a valid whole number."),
        ("logs -n -1", "Invalid value for '--lines' / '-n': -1 is not in the range x>=0."),
        ("events", "Missing argument 'SESSION'."),
        ("send", "Missing argument 'SESSION'."),
        ("why", "Missing argument 'RUN'."),
        ("stop a b", "Got unexpected extra argument (b)"),
        ("config check --socket x", "No such option '--socket'. Did you mean '--set'?"),
        ("sto", "No such command 'sto'. Did you mean 'stop'?"),
    ],
)
def test_a_wrong_command_line_is_refused_with_2_and_what_is_wrong_with_it(args: str, error: str) -> None:
    done = CliRunner().invoke(root, shlex.split(args))
    assert done.exit_code == 2
    assert done.stderr.endswith(f"Error: {error}\n")


def test_help_lists_the_commands_in_the_order_of_their_use() -> None:
    text = CliRunner().invoke(root, ["-h"]).stdout
    listed = [line.split()[0] for line in text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert (listed[0], listed[-1]) == ("chat", "config")
    assert listed == list(root.commands)


@pytest.mark.parametrize("leaf", leaves(root), ids=lambda leaf: leaf.name)
def test_every_command_has_the_common_options_last_and_each_parameter_has_a_help(leaf: Command) -> None:
    names = [one.name for one in leaf.params]
    assert all(one.help for one in leaf.params)
    everywhere = [name for name in ("state_dir", "agent", "socket", "verbose") if name in names]
    assert names[-len(everywhere) :] == everywhere
    # A trial names its agent, and throws its state away. A demo has an agent of its own.
    assert everywhere[:2] == {trial: ["verbose"], demo: ["state_dir"]}.get(leaf, ["state_dir", "agent"])


def test_common_options_after_the_command_win_and_an_empty_one_is_given() -> None:
    before = Common(state_dir="a", agent="b", verbose=True)
    assert Common(state_dir="", socket="c").over(before) == Common("", "b", "c", verbose=True)
    assert Common().over(before) == before


@pytest.mark.parametrize("given", [Common(state_dir="~nobody-of-this-name/x"), Common(socket="~nobody-of-this-name/x")])
def test_a_home_of_an_unknown_user_is_refused(given: Common) -> None:
    with pytest.raises(Invalid, match="begins with the home of an unknown user"):
        given.endpoint()


# ── Completion ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def started_from(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))


def test_bash_completes_a_command_once_completion_is_installed(home: Path) -> None:
    (home / "bin").mkdir()
    start = home / "bin" / "countermand"
    start.write_text(f'#!/bin/sh\ncd {PROJECT} && exec {sys.executable} -m supervisor.console "$@"\n')
    start.chmod(0o755)
    (home / ".bashrc").write_text("true")
    script = """
        countermand --install-completion && countermand --install-completion && . ~/.bashrc || exit
        COMP_WORDS=(countermand se); COMP_CWORD=1
        _countermand_completion countermand
        echo "offered: ${COMPREPLY[@]}"
    """
    env = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
    # The shell reads its script from standard input: with -c it would begin as another process's argument.
    done = subprocess.run(
        ["bash", "--norc"], input=script, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "offered: sessions send serve"
    path = home / ".bash_completions" / "countermand.sh"
    assert f"bash completion installed in {path}" in done.stdout
    assert (home / ".bashrc").read_text() == f"true\n\nsource '{path}'\n"


@pytest.mark.parametrize(
    ("shell", "path"), [("zsh", ".zfunc/_countermand"), ("fish", ".config/fish/completions/countermand.fish")]
)
def test_the_script_is_written_to_where_the_shell_finds_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, shell: str, path: str
) -> None:
    started_from(monkeypatch, shell)
    for _ in range(2):
        assert CliRunner().invoke(root, ["--install-completion"]).exit_code == 0
    shown = CliRunner().invoke(root, ["--show-completion"]).stdout
    assert (home / path).read_text().rstrip() == shown.rstrip()
    assert f"_COUNTERMAND_COMPLETE={shell}_complete" in shown
    if shell == "zsh":
        assert (home / ".zshrc").read_text() == "fpath+=~/.zfunc; autoload -Uz compinit; compinit\n"


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_a_shell_that_has_no_completion_is_refused_by_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    started_from(monkeypatch, "tcsh")
    done = CliRunner().invoke(root, [option])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "completion is for bash, zsh and fish, and this is tcsh" in done.stderr
    assert list(home.iterdir()) == []
