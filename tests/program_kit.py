"""What the tests of presets share: sessions of a stand-in, what it was asked, and how it was asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors import Answer
from supervisor import Agent, McpServer, SessionHandle
from supervisor.hosts.runtime.programs.prompts import CLOSING, OPENING
from tests.ends_kit import TESTS, ended, said, told
from tests.kit import WAIT_S, Kit, log, say, until

ACP_AGENT = TESTS / "acp_agent.py"


@dataclass
class Stand:
    """A session of an agent that is a stand-in, and where that notes what it was asked."""

    kit: Kit
    folder: Path
    preset: str = "acp"
    program: Path = ACP_AGENT
    more: tuple[str, ...] = ()

    def agent(self, *more: str, **options: Any) -> Agent:
        chosen: dict[str, Any] = {"env": {self.kit.mark: "1"}, "spares": 0, "cwd": str(self.folder), **options}
        command = [sys.executable, str(self.program), *self.more, *more]
        return Agent(preset=self.preset, command=command, **chosen)

    def session(self, *more: str, **options: Any) -> SessionHandle:
        """Start a supervisor with it and return its session."""
        agent = self.agent(*more, mcp=tuple(options.get("mcp", ())))
        return self.kit.start(agent, **options).session("s1")

    def noted(self, what: str) -> list[tuple[int, Any]]:
        """What it has noted of requests and answers of a kind, each with its process."""
        file = self.folder / "sessions" / "log"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [(pid, params) for pid, method, params in lines if method == what]

    def prompts(self) -> list[str]:
        return [params["prompt"][0]["text"] for _, params in self.noted("session/prompt")]


def handed(kit: Kit, folder: Path) -> dict[str, McpServer]:
    """Two servers that a program can be handed: one that it starts, and one by HTTP."""
    (folder / "place").mkdir()
    (folder / "keys").write_text("KEY=secret\nTOKEN=hidden\n")
    keys = [str(folder / "keys")]
    command = [str(TESTS / "handed_server.py"), str(folder / "served"), "files"]
    # Some programs give a server few of their own variables.
    env = {kit.mark: "1"}
    files = McpServer(command=sys.executable, args=command, cwd=str(folder / "place"), env=env, env_files=keys)
    web = McpServer(url="http://127.0.0.1:9/mcp", headers={"A": "Bearer ${TOKEN}"}, env_files=keys)
    return {"files": files, "web": web}


def served(folder: Path, count: int) -> list[dict[str, Any]]:
    """What servers have noted of their starts, once there were so many."""
    file = folder / "served"
    until(lambda: file.exists() and file.read_text().count("\n") == count, "the server to start")
    return [json.loads(line) for line in file.read_text().splitlines()]


def note_of(prompt: str) -> str:
    """The supervisor's note of a prompt; empty if it has none."""
    return prompt.partition(CLOSING)[0] if prompt.startswith(OPENING) else ""


def done(session: SessionHandle, content: str, **options: Any) -> str:
    """Have a run answer a message, to its end; returns what it said."""
    run_id = say(session, content, **options)
    run = ended(session, run_id)
    assert run.status == "completed", run
    return said(session, run_id)


def at_step(session: SessionHandle, run_id: str, step: int) -> None:
    """Wait until a run has said that a step begins."""
    until(lambda: f"<{step}>" in told(session, run_id), f"step {step}")


def asking(session: SessionHandle) -> str:
    """Wait until a person is asked; returns the call."""
    until(lambda: session.status().asking, "a question")
    return session.status().asking[0].call_id


def answer(session: SessionHandle, call_id: str, **options: Any) -> None:
    session.ask(Answer(call_id=call_id, **options), timeout=WAIT_S)


# ── Moments, and a daemon that is killed at one ───────────────────────────────────────────────────


def started(session: SessionHandle) -> list[Any]:
    """The calls that have started."""
    return [event for event in log(session) if event.kind == "tool.started"]


MOMENTS: dict[str, Callable[[SessionHandle], object]] = {
    "in its answer": lambda session: said(session, session.runs()[-1].run_id),
    "in a tool": started,
    "while it asks": lambda session: session.status().asking,
}


def kill_daemon(kit: Kit, options: dict[str, Any], moment: str, *messages: str) -> str:
    """Kill a daemon at a moment of the run of the last message; returns that run when nobody of it is left."""
    argv = [str(kit.state_dir), json.dumps(options), moment, *messages]
    with subprocess.Popen([sys.executable, "-m", "tests.program_child", *argv], cwd=TESTS.parent, stdout=-1) as child:
        assert child.stdout is not None
        run_id = child.stdout.readline().decode().strip()
        child.kill()
    assert run_id
    until(lambda: not kit.alive(), "everybody to die with the daemon")
    return run_id
