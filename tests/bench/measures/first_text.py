"""From a message to the first text of a program that is kept, next to the same program driven over bare pipes.

A stand-in that speaks ACP answers at once, which shows what is added, and after a time such as a quick model takes.
Claude Code is measured where it is: on the PATH, or in `.venv-sdks`. Its model is a server on this machine, which takes
that time too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from actors import NewMessage
from supervisor import Agent, Config, SessionHandle, Supervisor
from supervisor.hosts.runtime.programs.claude_code import FLAGS
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, median_ms

GROUP = "a program as an agent"
ROOT = Path(__file__).parents[3]
STAND_IN = [sys.executable, str(ROOT / "tests" / "acp_agent.py")]
MODEL_S = 0.2
"""How long a model takes to the first piece of its text."""
TIMES_MAX = 1.1
BUNDLED = "lib/python*/site-packages/claude_agent_sdk/_bundled/claude"
SERVE = f"""
from tests import model_server
# The first text is the third piece of an answer.
model_server.PIECE_S = {MODEL_S / 2}
with model_server.serving() as url:
    print(url, flush=True)
    input()
"""

Json = dict[str, Any]


def first_text(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures: of each program warm and in turn, through a supervisor and bare."""
    stand_in = Agent(preset="acp", command=STAND_IN, cwd=str(folder))
    with _Bare(STAND_IN, folder, {}) as bare:
        bare.open_acp()
        with _session(folder / "stand-in", stand_in) as session:
            for seconds, times in ((0.0, None), (MODEL_S, TIMES_MAX)):
                name = f"message to the first text, said in {seconds * 1000:.0f} ms"
                yield _compared(name, times, session, bare.ask_acp, f"after {seconds}", rounds)
    claude = shutil.which("claude") or next(map(str, (ROOT / ".venv-sdks").glob(BUNDLED)), None)
    if claude is None:
        return
    with _model() as url:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "HOME": str(folder), **quiet}
        agent = Agent(preset="claude-code", command=[claude], cwd=str(folder), env=env)
        with _Bare([claude, *FLAGS], folder, env) as bare, _session(folder / "claude", agent) as session:
            name = f"the same, Claude Code, a model in {MODEL_S * 1000:.0f} ms"
            yield _compared(name, TIMES_MAX, session, bare.ask_claude, "[say hello]", rounds)


def _compared(
    name: str,
    times: float | None,
    session: SessionHandle,
    ask: Callable[[str], float],
    content: str,
    rounds: Rounds,
) -> Figure:
    """Measure both in turn, so that each meets the same load. The first of each starts what is kept."""
    taken = [(_asked(session, content), ask(content)) for _ in range(rounds.polite + 1)][1:]
    kept, bare = (median_ms(some) for some in zip(*taken, strict=True))
    return Figure(GROUP, f"{name}, median", kept, "ms", bare, "bare", None if times is None else times * bare)


def _asked(session: SessionHandle, content: str) -> float:
    """Send a message; returns the seconds to its first text, when its run has ended."""
    taken = 0.0
    with session.subscribe(from_seq=session.status().last_seq, timeout=WAIT_S) as events:
        started = time.perf_counter()
        session.tell(NewMessage(content=content))
        for event in events:
            if event.kind == "text" and not taken:
                taken = time.perf_counter() - started
            if event.kind == "run.ended":
                break
    assert taken, "it says something"
    return taken


@contextlib.contextmanager
def _session(folder: Path, agent: Agent) -> Iterator[SessionHandle]:
    with Supervisor.start(Config(state_dir=folder, agent="one", agents={"one": agent}, drain_s=0.0)) as daemon:
        yield daemon.session("measured")


@contextlib.contextmanager
def _model() -> Iterator[str]:
    """A model in a process of its own; its URL."""
    with subprocess.Popen([sys.executable, "-c", SERVE], cwd=ROOT, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.terminate()


class _Bare:
    """A program, and lines of JSON over its pipes."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **env}, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL
        )
        self._numbers = itertools.count(1)
        self._session = ""

    def __enter__(self) -> _Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def open_acp(self) -> None:
        """Open a session of a program that speaks ACP."""
        self._request("initialize", protocolVersion=1)
        next(self._said_to_its_end("result"))
        self._request("session/new", cwd=".", mcpServers=[])
        (made,) = self._said_to_its_end("result")
        self._session = made["result"]["sessionId"]

    def ask_acp(self, content: str) -> float:
        """Prompt it; returns the seconds to its first text, when it has answered."""
        started = time.perf_counter()
        self._request("session/prompt", sessionId=self._session, prompt=[{"type": "text", "text": content}])
        return self._first(started, "result", lambda message: message.get("method") == "session/update")

    def ask_claude(self, content: str) -> float:
        """As `ask_acp`, of Claude Code."""

        def is_text(message: Json) -> bool:
            return bool(((message.get("event") or {}).get("delta") or {}).get("text"))

        started = time.perf_counter()
        self._write({"type": "user", "message": {"role": "user", "content": content}})
        return self._first(started, "total_cost_usd", is_text)

    def _first(self, started: float, last: str, is_text: Callable[[Json], bool]) -> float:
        taken = 0.0
        for message in self._said_to_its_end(last):
            if is_text(message) and not taken:
                taken = time.perf_counter() - started
        assert taken, "it says something"
        return taken

    def _request(self, method: str, **params: Any) -> None:
        self._write({"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params})

    def _write(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _said_to_its_end(self, key: str) -> Iterator[Json]:
        """What it says, up to the message that has this key."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: Json = json.loads(line)
            yield message
            if key in message:
                return
        raise AssertionError("it has ended")
