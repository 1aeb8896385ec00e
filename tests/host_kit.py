"""A daemon that is played by hand: it starts a real host over a socket pair, and speaks the frames."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

RUNTIME = Path(__file__).parents[1] / "supervisor" / "hosts" / "countermand_host.py"
PATIENCE_S = 60.0
"""A host that says nothing for so long has failed. No test depends on it."""

WHY = {"source": "user.console", "reason": "enough", "mode": "graceful", "initiated_at": 12.5}
Json = dict[str, Any]


class Daemon:
    """One host, and the daemon's end of its socket.

    Args:
        argv: what to start, after `env`.
        cwd: its working directory.
        env: added to the environment.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.errors = cwd / "stderr"
        self.prints = cwd / "stdout"
        with self.errors.open("wb") as errors, self.prints.open("wb") as prints:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **(env or {}), "COUNTERMAND_CHANNEL": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=errors,
                start_new_session=True,
            )
        theirs.close()
        self._unread = b""
        self._numbers = 0

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            print(self.stderr(), file=sys.stderr)
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    # ── Frames ──

    def send(self, **frame: Any) -> None:
        self.sock.sendall(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def request(self, method: str, **params: Any) -> int:
        self._numbers += 1
        self.send(id=self._numbers, method=method, params=params)
        return self._numbers

    def answer(self, frame: Json, **result: Any) -> None:
        self.send(id=frame["id"], result=result)

    def next(self) -> Json:
        """Return the next frame of the host; {} at the end of what it says."""
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self.sock], [], [], PATIENCE_S)
            assert readable, f"the host says nothing: {self.stderr()}"
            try:
                piece = self.sock.recv(65_536)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return {}
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        frame: Json = json.loads(line)
        assert frame.pop("jsonrpc") == "2.0"
        frame["size"] = len(line)
        return frame

    def take(self, method: str) -> Json:
        """Return the next frame, which has this method."""
        frame = self.next()
        assert frame.get("method") == method, (frame, self.stderr())
        return frame

    def answered(self, number: int) -> Json:
        """Return the next frame, which answers this request."""
        frame = self.next()
        assert (frame.get("id"), frame.get("method")) == (number, None), (frame, self.stderr())
        return frame

    # ── What a daemon says ──

    def hello(self) -> Json:
        """Answer the host's `hello`; returns its parameters."""
        frame = self.take("hello")
        self.answer(frame, protocol=1, limits={}, can=[])
        params: Json = frame["params"]
        return params

    def run(self, **more: Any) -> int:
        """Tell the host of a run; returns the id of the request."""
        params = {
            "fence": "s:1:",
            "session": "s",
            "generation": 1,
            "run": "run_1",
            "agent": "mine",
            "thread": [{"id": "m1", "role": "user", "content": "hi", "generation": 1, "run_id": "run_1"}],
            "inputs": ["m1"],
            "tools": [],
            "credit": {"events": 256, "bytes": 1_048_576},
            "limits": {"grace_s": 2.0, "deadline_s": None},
        }
        return self.request("run", **{**params, **more})

    def cancel(self, number: int, fence: str = "s:1:", **why: Any) -> None:
        """Tell the host that a `run` or an `execute` is cancelled."""
        params = {"requestId": number, "fence": fence, "why": {**WHY, **why}, "mode": "graceful", "grace_s": 2.0}
        self.send(method="$/cancel_request", params=params)

    def ping(self) -> None:
        """See that the wire thread lives."""
        assert self.answered(self.request("ping"))["result"] == {}

    def texts(self, count: int) -> str:
        """Return the next texts together."""
        return "".join(self.take("emit")["params"]["text"] for _ in range(count))

    # ── The process ──

    def stderr(self) -> str:
        return self.errors.read_text(errors="replace")

    def stdout(self) -> str:
        return self.prints.read_text(errors="replace")

    def exit_status(self) -> int:
        return self.process.wait(PATIENCE_S)


def python_host(
    folder: Path, code: str, *more: str, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> Daemon:
    """Start a host of the agent `mine:agent`, whose module has this code."""
    (folder / "mine.py").write_text(textwrap.dedent(code))
    return Daemon([python, str(RUNTIME), "mine:agent", *more], folder, env)


def interpreters() -> list[str]:
    """Return this interpreter, the system's, and the oldest and the newest of those that pyenv has."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    versions = [found for minor in range(9, 30) for found in glob.glob(f"{root}/versions/3.{minor}.*/bin/python3")[:1]]
    others = [path for path in ("/usr/bin/python3", *versions[:1], *versions[-1:]) if os.access(path, os.X_OK)]
    return [sys.executable, *others]


@pytest.fixture(params=interpreters())
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter for the agent."""
    found: str = request.param
    return found
