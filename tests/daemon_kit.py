"""What tests of the daemon share: one in a process of its own, in the foreground, with somebody who hears its words."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from actors.model import RunInfo
from supervisor import Supervisor
from supervisor.config import Config
from supervisor.store.reader import SqliteReader
from tests.kit import alive, message, until

PROJECT: Final = Path(__file__).parent.parent
WAIT_S: Final = 60.0

T = TypeVar("T")


def seed(state_dir: Path, mark: str, **scripts: str) -> None:
    """Have a message wait in each session named, behind one whose run was ended by a shutdown: a start runs it.

    Processes of a script carry the mark; what has no space in it is no script.
    """
    with Supervisor.start(Config(state_dir=state_dir, grace_s=0.2, kill_s=2.0, drain_s=0.0)) as supervisor:
        for name, script in scripts.items():
            session = supervisor.session(name)
            session.ask(message("sleep 1000"))
            session.ask(message(f"export {mark}=1\n{script}" if " " in script else script, policy="enqueue"))


def runs(state_dir: Path, session: str) -> list[RunInfo]:
    """The runs of a session, the oldest first, whoever has the store open."""
    return _read(state_dir, lambda reader: reader.runs(session))


def output(state_dir: Path, session: str) -> str:
    """All output of the calls of a session."""
    events = _read(state_dir, lambda reader: reader.events(session))
    return "".join(event.data.get("text", "") for event in events if event.kind == "tool.output")


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON and whole."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line[-1] == "\n"]


def _read(state_dir: Path, query: Callable[[SqliteReader], T]) -> T:
    reader = SqliteReader(state_dir / "store.sqlite3")
    try:
        return query(reader)
    finally:
        reader.close()


class Foreground:
    """`countermand serve` in a process of its own; end it with `close`, whatever happened."""

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "state"
        self.log_file = directory / "log"
        self.mark = f"countermand_daemon_test_{os.getpid()}_{directory.name}"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(f"{directory}/notify")
        self._notify.setblocking(False)
        self._address = f"{directory}/notify"
        self._words: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *assignments: str, stderr: int | None = None, through: str = "", **popen: Any
    ) -> subprocess.Popen[bytes]:
        """Start one; the last one is `process`. `through`: a script of Python's that executes its own arguments."""
        sets = [word for assignment in assignments for word in ("--set", assignment)]
        command = [sys.executable, "-m", "supervisor.console", "serve", "--state-dir", str(self.state_dir), *sets]
        if through:
            command = [sys.executable, "-c", through, *command]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "NOTIFY_SOCKET": self._address, "HOME": "/"}
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                env=environment,
                **popen,
            )
        self._started.append(process)
        return process

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The last one that was started."""
        return self._started[-1]

    def ready(self, *assignments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start one and wait until it says READY."""
        self.words()
        process = self.start(*assignments, **options)
        seen: list[str] = []

        def is_ready() -> bool:
            assert process.poll() is None, self.log_file.read_text()
            seen.extend(self.words())
            return any("READY=1" in word for word in seen)

        until(is_ready, "READY", WAIT_S)
        return process

    def words(self) -> list[str]:
        """What it has told systemd since the last time this was asked."""
        new: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                new.append(self._notify.recv(65536).decode())
        self._words += new
        return new

    def told(self) -> list[str]:
        """All that it has told systemd."""
        self.words()
        return self._words

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return lines(self.log_file)

    def wait_says(self, part: str) -> dict[str, Any]:
        """The first line of the log that says something; waited for."""
        found: list[dict[str, Any]] = []

        def says() -> bool:
            found[:] = [line for line in self.log() if part in line["message"]]
            return bool(found)

        until(says, f"{part!r} in the log", WAIT_S)
        return found[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        """End everything that was started."""
        self._notify.close()
        for process in self._started:
            process.kill()
            process.wait(WAIT_S)
        for pid in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
