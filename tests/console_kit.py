"""What tests of the console share: the command as a real process, by pipe or on a terminal, and what it left."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from supervisor.console.client.api import NoDaemon, find_api
from supervisor.console.client.endpoint import Endpoint
from supervisor.containment.guard import procfs
from tests.process_kit import unread_bytes, until

WAIT_S = 60.0
START_S = 240.0
ROOT = Path(__file__).resolve().parent.parent
COMMAND = (sys.executable, "-m", "supervisor.console")
# A terminal sends Ctrl-C only to the session that it controls, and a fork in a test process is not to be had.
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
# The command line has no agent that fails: this is the same chat with one that does.
WITH_AGENT = """
import sys
from supervisor import Config
from supervisor.console.chat.chat import chat

async def fail(turn):
    raise ValueError("the agent has a defect")

async def wait(turn):
    import asyncio
    await asyncio.sleep(1000)

async def ask(turn):
    for question in ("Deploy it?", "Really?"):
        await turn.emit("said: " + await turn.ask(question, options=["yes", "no"]) + "\\n")

agents = {"fail": fail, "wait": wait, "ask": ask}
sys.exit(int(chat(Config(state_dir=sys.argv[1], agents=agents, agent=sys.argv[2], run_deadline_s=0.5), "s1")))
"""


class Chatting:
    """A console that runs with pipes; what it says is gathered as it comes."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], *, gather_output: bool = True) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, env=env, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
        self.out, self.err = Gathered(), Gathered()
        self.stdin, self.stdout, self.stderr = map(
            _pipe, (self.process.stdin, self.process.stdout, self.process.stderr)
        )
        if gather_output:
            self.out.follow(self.stdout.fileno())
        self.err.follow(self.stderr.fileno())

    @property
    def pid(self) -> int:
        return self.process.pid

    def type(self, text: str) -> None:
        self.stdin.write(text.encode())
        self.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; returns its exit code, as a shell shows it."""
        code = self.process.wait(WAIT_S)
        self.out.join()
        self.err.join()
        return _to_a_shell(code)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self.stdin.close()
        self.out.join()
        self.err.join()
        self.stdout.close()
        self.stderr.close()


def _to_a_shell(code: int) -> int:
    """What a shell shows of an end: 128 and its number for a signal, which nobody has dealt with."""
    return code if code >= 0 else 128 - code


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "opened as a pipe"
    return end


class Terminal:
    """A console on a terminal of its own, which sends what the keys mean."""

    def __init__(self, argv: Sequence[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 120))
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *argv],
            env={**env, "TERM": "xterm"},
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.screen = Gathered()
        self.screen.follow(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def is_read(self) -> bool:
        """True if the console has read every line that the terminal has."""
        return unread_bytes(self.process.pid, 0) == 0

    def line(self, text: str) -> None:
        self.type(text + "\n")

    def ctrl_c(self) -> None:
        self.type("\x03")

    def ctrl_d(self) -> None:
        self.type("\x04")

    def ended(self) -> int:
        code = self.process.wait(WAIT_S)
        self.screen.join()
        return _to_a_shell(code)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self.screen.join()
        os.close(self._ours)


class Gathered:
    """Text that comes on a descriptor, and a mark up to which it was looked at."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._changed = threading.Condition()
        self._seen = 0
        self._thread: threading.Thread | None = None

    def follow(self, fd: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(fd,), daemon=True)
        self._thread.start()

    def _run(self, fd: int) -> None:
        while True:
            try:
                data = os.read(fd, 65536)
            except OSError:
                # A terminal whose last user has gone.
                data = b""
            with self._changed:
                self._data += data
                self._changed.notify_all()
            if not data:
                return

    @property
    def text(self) -> str:
        with self._changed:
            return self._data.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait(self, *texts: str) -> None:
        """Until each of `texts` has come, in any order, behind what was waited for before."""
        with self._changed:
            for text in texts:
                found = self._changed.wait_for(lambda text=text: self._end(text) >= 0, WAIT_S)  # type: ignore[misc]
                assert found, f"no {text!r} in {bytes(self._data[self._seen :]).decode('utf-8', 'replace')!r}"
            self._seen = max(map(self._end, texts))

    def _end(self, text: str) -> int:
        """Where `text` ends behind what was waited for before; -1: it has not come."""
        found = self._data.find(text.encode(), self._seen)
        return -1 if found < 0 else found + len(text.encode())

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(WAIT_S)


class Desk:
    """A state directory, a mark that the processes of a test carry in their command line, and consoles on them."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.mark = f"100.{uuid.uuid4().int % 10**12:012d}"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("COUNTERMAND", "XDG"))}
        self.env["COUNTERMAND_STATE_DIR"] = str(state_dir)
        self.log_file = state_dir.with_name(f"{state_dir.name}.log")
        self._open: list[Chatting | Terminal] = []
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def tree(self) -> str:
        """A script that starts a child, one in a session of its own, and one that ignores SIGTERM."""
        mark = self.mark
        return f'sleep {mark} & setsid sleep {mark} & (trap "" TERM; sleep {mark}) & echo started; wait'

    def run(self, text: str | bytes, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command with `text` on its standard input."""
        data = text.encode() if isinstance(text, str) else text
        done = subprocess.run(
            [*COMMAND, *args],
            input=data,
            env=env or self.env,
            cwd=ROOT,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *args: str) -> Any:
        done = self.run("", *args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def raw(self, *args: str) -> bytes:
        """What a command writes, to the byte."""
        ended = subprocess.run(
            [*COMMAND, *args], cwd=ROOT, env=self.env, capture_output=True, timeout=WAIT_S, check=True
        )
        return ended.stdout

    def start(self, *args: str, gather_output: bool = True) -> Chatting:
        chatting = Chatting([*COMMAND, *args], self.env, gather_output=gather_output)
        self._open.append(chatting)
        return chatting

    def start_with_agent(self, agent: str) -> Chatting:
        chatting = Chatting([sys.executable, "-c", WITH_AGENT, str(self.state_dir), agent], self.env)
        self._open.append(chatting)
        return chatting

    def terminal(self, *args: str) -> Terminal:
        terminal = Terminal([*COMMAND, *args], self.env)
        self._open.append(terminal)
        return terminal

    def terminal_with_agent(self, agent: str) -> Terminal:
        terminal = Terminal([sys.executable, "-c", WITH_AGENT, str(self.state_dir), agent], self.env)
        self._open.append(terminal)
        return terminal

    def bash(self, script: str) -> Terminal:
        """A line of bash on a terminal."""
        terminal = Terminal(["/bin/bash", "-c", script], self.env)
        self._open.append(terminal)
        return terminal

    def serve(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a daemon on the state directory, and return when it answers; its log goes to `log_file`."""
        with self.log_file.open("ab") as log:
            daemon = subprocess.Popen([*COMMAND, "serve", *args], env=self.env, cwd=ROOT, stderr=log)
        self._daemons.append(daemon)

        def answers() -> bool:
            assert daemon.poll() is None, self.log_file.read_text()
            try:
                api = find_api(Endpoint(self.state_dir))
            except NoDaemon:
                return False
            if api is not None:
                api.close()
            return api is not None and api.info.pid == daemon.pid

        until(answers, "a daemon that answers", START_S)
        return daemon

    def alive(self) -> list[int]:
        """Processes with the mark that run."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            seen = procfs.stat(int(name)) if self.mark.encode() in line else None
            if seen is not None and seen.state not in "ZX":
                found.append(int(name))
        return found

    def wait_alive(self, count: int) -> None:
        """Until so many `sleep`s of the test run."""
        until(lambda: len(self._sleeps()) >= count, f"{count} sleeps", WAIT_S)

    def wait_dead(self) -> None:
        """Until nobody of the test runs: for what is killed by the one who was to be killed last."""
        until(lambda: not self.alive(), "all dead", WAIT_S)

    def _sleeps(self) -> list[int]:
        return [pid for pid in self.alive() if (seen := procfs.stat(pid)) is not None and seen.name == "sleep"]

    def close(self) -> None:
        for opened in self._open:
            opened.close()
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait(WAIT_S)
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def short_desk() -> Iterator[Desk]:
    """A Desk in a directory with a short name, as the path of a socket needs one."""
    with tempfile.TemporaryDirectory(prefix="cm") as directory, desk_at(Path(directory) / "s") as desk:
        yield desk


@contextmanager
def desk_at(state_dir: Path) -> Iterator[Desk]:
    """A Desk that is cleared whatever happens."""
    desk = Desk(state_dir)
    try:
        yield desk
    finally:
        desk.close()
