"""Coding agents as people have them, from their registry, as agents: their model is a server on this machine.

Claude Code is the one on the PATH, else the one that the Claude Agent SDK brings along. The others have to be on the
PATH, as they are with `./scripts/test --agents`, which also runs what takes long. Without it there is one end of Claude
Code, and what it keeps.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from actors.messages import RunDeadline
from actors.model import Policy
from supervisor import Agent, McpServer, SessionHandle
from supervisor.containment.guard.procfs import command_line
from tests.ends_kit import check_receipt, ended, look, receipt_of, said
from tests.kit import WAIT_S, YEAR_S, Kit, check_rest, kit, log, say, stop, until
from tests.model_server import serving
from tests.program_kit import MOMENTS, answer, asking, done, handed, kill_daemon, served
from tests.test_sdks import INSTALL_S, ROOT, sdks

__all__ = ["kit", "sdks"]

ALL = "CM_TEST_AGENTS" in os.environ
of_all = pytest.mark.skipif(not ALL, reason="./scripts/test --agents")
BUNDLED = "lib/python*/site-packages/claude_agent_sdk/_bundled/claude"
pytestmark = pytest.mark.timeout(INSTALL_S)


def claude_code() -> str:
    """Where Claude Code is. The environment of the SDK is made if it is needed."""
    return shutil.which("claude") or str(next((ROOT / ".venv-sdks").glob(BUNDLED)))


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Iterator[str]:
    """A model on this machine; its URL."""
    if shutil.which("claude") is None:
        request.getfixturevalue("sdks")
    with serving() as url:
        yield url


MOMENTS_OF = ("in its answer", "while it asks", "in a tool")


class Real:
    """A real program, in a folder of its own."""

    preset = ""
    resumes = True
    prompts: ClassVar[dict[str, str]] = {"in its answer": "[talk]", "while it asks": "[work]", "in a tool": "[work]"}

    def __init__(self, kit: Kit, folder: Path, model: str) -> None:
        self.kit, self.folder, self.model = kit, folder, model

    def command(self, *, ask: bool) -> list[str]:
        """Its command, with rules that ask for permission or allow everything."""
        raise NotImplementedError

    def env(self) -> dict[str, str]:
        return {}

    def options(self, *, ask: bool = True) -> dict[str, Any]:
        env = {self.kit.mark: "1", "HOME": str(self.folder), **self.env()}
        command = self.command(ask=ask)
        return {"preset": self.preset, "command": command, "env": env, "cwd": str(self.folder), "spares": 0}

    def session(self, *, ask: bool = True) -> SessionHandle:
        return self.kit.start(Agent(**self.options(ask=ask)), run_deadline_s=YEAR_S).session("s1")

    def was_told(self, text: str) -> bool:
        """True if a text is in what it keeps on disk."""
        files = [file for file in self.folder.rglob("*") if file.is_file() and "state" not in file.parts]
        return any(text.encode() in file.read_bytes() for file in files)


class Claude(Real):
    """Claude Code."""

    preset = "claude-code"

    def command(self, *, ask: bool) -> list[str]:
        return [claude_code(), *(() if ask else ("--allowedTools", "Bash"))]

    def env(self) -> dict[str, str]:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        return {"ANTHROPIC_BASE_URL": self.model, "ANTHROPIC_API_KEY": "none", **quiet}

    def transcripts(self) -> list[Path]:
        """Its own sessions on disk."""
        return sorted((self.folder / ".claude" / "projects").glob("*/*.jsonl"))


class Codex(Real):
    """Codex."""

    preset = "codex"
    prompts: ClassVar = {"in its answer": "[talk]", "while it asks": "[permit]", "in a tool": "[work]"}

    def command(self, *, ask: bool) -> list[str]:
        provider = f'{{name="local",base_url="{self.model}/v1",wire_api="responses",env_key="LOCAL_KEY"}}'
        config = ['model="m"', 'model_provider="local"', f"model_providers.local={provider}"]
        if not ask:
            config.append('sandbox_mode="danger-full-access"')
        return [on_path("codex"), "app-server", *(word for one in config for word in ("-c", one))]

    def env(self) -> dict[str, str]:
        return {"LOCAL_KEY": "none"}


class OpenCode(Real):
    """opencode. It reports a command as begun before it asks for permission."""

    preset = "opencode"

    def command(self, *, ask: bool) -> list[str]:
        options = {"baseURL": f"{self.model}/v1", "apiKey": "none"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": options, "models": {"m": {}}}
        config = {"provider": {"local": provider}, "model": "local/m", "small_model": "local/m", "autoupdate": False}
        rules = {"permission": {"bash": "ask" if ask else "allow"}, "share": "disabled"}
        (self.folder / "opencode.json").write_text(json.dumps(config | rules))
        return [on_path("opencode"), "acp"]


class Gemini(Real):
    """Gemini CLI. Its tools are not tried here. It does not find its session again, and begins a new one."""

    preset = "gemini"
    resumes = False
    prompts: ClassVar = {"in its answer": "[talk]"}

    def command(self, *, ask: bool) -> list[str]:
        return [
            on_path("gemini"),
            "--acp",
            "--skip-trust",
            "--model",
            "gemini-2.5-flash",
            *(() if ask else ("--yolo",)),
        ]

    def env(self) -> dict[str, str]:
        return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": self.model}


def on_path(program: str) -> str:
    """Where a program is; without it the test is skipped: ./scripts/test --agents installs it."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"there is no {program}: ./scripts/test --agents")
    return found


@pytest.fixture
def claude(kit: Kit, tmp_path: Path, model: str) -> Claude:
    """Claude Code, with its model."""
    return Claude(kit, tmp_path, model)


@pytest.mark.parametrize("way", ["stopped", "taken over", "expired", "killed"])
@pytest.mark.parametrize("moment", MOMENTS_OF)
@pytest.mark.parametrize("kind", [Claude, Codex, OpenCode, Gemini], ids=lambda kind: kind.preset)
def test_l3_nothing_is_left_of_a_program_and_its_next_turn_is_told_the_truth(
    kit: Kit, tmp_path: Path, model: str, kind: type[Real], moment: str, way: str
) -> None:
    if moment not in kind.prompts:
        pytest.skip(f"not tried with {kind.preset}")
    if (moment, way) == ("while it asks", "expired"):
        pytest.skip("a deadline stands still while a person is asked")
    if not ALL and (kind, moment, way) != (Claude, "in a tool", "stopped"):
        pytest.skip("./scripts/test --agents")
    real, asked, ask = kind(kit, tmp_path, model), kind.prompts[moment], moment != "in a tool"
    if way == "killed":
        run_id = kill_daemon(kit, real.options(ask=ask), moment, "[say hello]", asked)
        session = real.session(ask=ask)
    else:
        session = real.session(ask=ask)
        assert done(session, "[say hello]") == "HELLO"
        run_id = say(session, asked)
        until(lambda: MOMENTS[moment](session), moment)
    if moment == "in a tool" and way != "killed":
        until(lambda: look(kit.mark).stubborn, "the command that ignores SIGTERM")
    seen = look(kit.mark)
    if way == "stopped":
        stop(session)
    elif way == "taken over":
        say(session, "[say again]", policy=Policy.INTERRUPT)
    elif way == "expired":
        kit.fire(RunDeadline)
    receipt = receipt_of(session, run_id)
    assert receipt.complete, receipt
    if way != "killed":
        check_receipt(receipt, seen)
    assert not seen.pids & look(kit.mark).pids
    later = [run.run_id for run in session.runs()][2:]
    if later:
        assert ended(session, later[0]).status == "completed"
        text = said(session, later[0])
    else:
        text = done(session, "[say again]")
    assert text == "AGAIN" if real.resumes else text.endswith("AGAIN"), text
    check_rest(session)
    assert real.was_told(NOTES[way])
    if not real.resumes:
        return
    # It is one session of its own, and the note is in it.
    assert len({event.data["changes"]["session"] for event in log(session) if event.kind == "session.state"}) == 1
    assert real.was_told(f"It was to answer: {asked}")


@of_all
@pytest.mark.parametrize("kind", [Claude, Codex, OpenCode, Gemini], ids=lambda kind: kind.preset)
def test_l3_the_server_that_a_program_is_handed_is_in_its_tree_and_ends_with_it(
    kit: Kit, tmp_path: Path, model: str, kind: type[Real]
) -> None:
    servers = {"files": handed(kit, tmp_path)["files"]}
    agent = Agent(**kind(kit, tmp_path, model).options(), mcp=["files"])
    session = kit.start(agent, mcp=servers, run_deadline_s=YEAR_S).session("s1")
    assert done(session, "[say hello]") == "HELLO"
    server = served(tmp_path, 1)[0]
    assert (server["cwd"], server["key"]) == (str(tmp_path / "place"), "secret")
    assert server["pid"] in kit.alive()
    assert kit.supervisor is not None
    (host,) = kit.supervisor.hosts()[0].hosts
    assert [(one.name, one.state) for one in host.mcp] == [("files", "handed over")]
    stop(session)
    until(lambda: not kit.alive(), "nothing to be left")
    check_rest(session)


@of_all
@pytest.mark.parametrize("kind", [Claude, Codex, OpenCode, Gemini], ids=lambda kind: kind.preset)
def test_l3_a_stop_ends_a_program_that_waits_for_a_server_which_never_answers(
    kit: Kit, tmp_path: Path, model: str, kind: type[Real]
) -> None:
    servers = {"mute": McpServer(command="sleep", args=["1234567"], env={kit.mark: "1"})}
    agent = Agent(**kind(kit, tmp_path, model).options(), mcp=["mute"])
    session = kit.start(agent, mcp=servers, run_deadline_s=YEAR_S).session("s1")
    run_id = say(session, "[say hello]")
    until(lambda: any(command_line(pid)[1:] == ["1234567"] for pid in kit.alive()), "the server to start")
    stop(session)
    assert receipt_of(session, run_id).complete
    until(lambda: not kit.alive(), "nothing to be left")
    check_rest(session)


NOTES = {
    "stopped": "interrupted: the user stopped it",
    "taken over": "interrupted: a new message took over",
    "expired": "interrupted: the run reached its deadline",
    "killed": "interrupted: the supervisor was restarted",
}


@of_all
@pytest.mark.parametrize("allow", [True, False])
def test_l2_what_claude_code_asks_permission_for_waits_for_a_person(claude: Claude, allow: bool) -> None:
    session = claude.session()
    run_id = say(session, "[work]")
    call_id = asking(session)
    answer(session, call_id, content="allow" if allow else "deny, it is too risky")
    if allow:
        until(lambda: look(claude.kit.mark).stubborn, "the command")
        stop(session)
    else:
        # The model goes on: its next text has no end.
        until(lambda: said(session, run_id), "what it says to that")
        # It writes its session down in its own time.
        until(lambda: "deny, it is too risky" in claude.transcripts()[0].read_text(), "the reason in its session")
        assert not look(claude.kit.mark).stubborn
        stop(session)
    assert receipt_of(session, run_id).complete
    assert claude.kit.alive() == []


@of_all
@pytest.mark.parametrize("allow", [True, False])
def test_l2_a_command_for_which_codex_asks_begins_only_if_it_is_allowed(
    kit: Kit, tmp_path: Path, model: str, allow: bool
) -> None:
    session = Codex(kit, tmp_path, model).session()
    run_id = say(session, "[permit]")
    answer(session, asking(session), allow=allow)
    if allow:
        until(lambda: look(kit.mark).stubborn, "the command")
    else:
        until(lambda: [event for event in log(session) if event.kind == "tool.ended"], "the result of the call")
        assert not look(kit.mark).stubborn
    stop(session)
    assert receipt_of(session, run_id).complete
    (result,) = [event.data for event in log(session) if event.kind == "tool.ended"]
    assert result["outcome"] == ("interrupted" if allow else "not_started")
    assert kit.alive() == []


def test_claude_code_stays_while_turns_end_by_themselves_and_its_tokens_are_counted(claude: Claude) -> None:
    session = claude.session()
    for word in ("one", "two", "three"):
        assert done(session, f"[say {word}]") == word.upper()
    assert len({event.data["pid"] for event in log(session) if event.kind == "process.started"}) == 1
    assert len(claude.transcripts()) == 1
    used = session.status().usage
    assert (used.input, used.output) == (3, 3), used


@of_all
def test_a_session_of_claude_code_that_is_gone_is_replaced(claude: Claude) -> None:
    session = claude.session()
    assert done(session, "[say hello]") == "HELLO"
    assert session.receipt(stop(session).receipt_id, timeout=WAIT_S).complete
    (old,) = claude.transcripts()
    old.unlink()
    text = done(session, "[say again]")
    assert text.endswith("AGAIN")
    assert f"no longer has its session {old.stem}" in text
    (new,) = claude.transcripts()
    assert new != old
    assert "- user: [say hello]" in new.read_text()


@of_all
@pytest.mark.parametrize(("kind", "kept"), [(Codex, ".codex/sessions"), (OpenCode, ".local/share/opencode")])
def test_a_session_of_another_program_that_is_gone_is_replaced(
    kit: Kit, tmp_path: Path, model: str, kind: type[Real], kept: str
) -> None:
    session = kind(kit, tmp_path, model).session()
    assert done(session, "[say hello]") == "HELLO"
    assert session.receipt(stop(session).receipt_id, timeout=WAIT_S).complete
    shutil.rmtree(tmp_path / kept)
    text = done(session, "[say again]")
    assert "no longer has its session" in text
    assert text.endswith("AGAIN")
