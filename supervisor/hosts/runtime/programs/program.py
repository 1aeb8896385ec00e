"""Program: a process that speaks in lines of JSON over its pipes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import typing
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import CountermandError, Invalid

LINE_MAX_BYTES = 16 * 1024 * 1024
"""Of one message of a program: the result of a tool may hold a whole file."""

INBOX_MAX = 256
"""How many messages wait for the turn; then the program is read no further."""

STDERR_BYTES = 4096
"""How much of the end of its standard error is kept, for the failure that its end is."""

QUIET_S = 30.0
"""After so long without a message, subscribers are shown that the program is quiet; nothing is ended by that."""

PATH_CHARS = 200
"""How much of PATH is shown where a program is not in it."""

INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "gemini": "npm install -g @google/gemini-cli",
    "opencode": "npm install -g opencode-ai",
}
"""How the programs of the presets are installed."""

STATUS_S = 0.005
LAST_WORDS_S = 1.0
"""How long the end of a program's output is waited for after its exit: a child may have inherited its pipes."""


class ProgramEnded(CountermandError):
    """The program has exited, or speaks no longer, in the middle of something."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="program_ended")


class Program:
    """A running program. On the loop of the host only.

    Args:
        name: of the preset, for texts.
        argv: its command, as for exec.
    """

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.argv = tuple(argv)
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._inbox: deque[dict[str, Any]] | None = None
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._unreadable = ""
        self._stderr = b""
        self._ended = ""

    async def start(self) -> None:
        """Start it. Raises Invalid if it cannot be executed."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_MAX_BYTES,
            )
        except OSError as error:
            raise not_there(self.argv, error.strerror or str(error)) from error
        self._following = asyncio.create_task(self._follow(self._process))

    @property
    def alive(self) -> bool:
        """True while it has neither exited nor closed its output."""
        return self._process is not None and self._process.returncode is None and not self._ended

    def listen(self) -> None:
        """Keep its messages from here on, for `next`; until then, and after `ignore`, they are dropped."""
        self._inbox = deque()

    def ignore(self) -> None:
        """Drop its messages from here on."""
        self._inbox = None
        self._room.set()

    async def next(self, quiet: Callable[[float], Awaitable[object]] | None = None) -> dict[str, Any]:
        """Return its next message. However long that takes: `quiet` is told from time to time for how many seconds.

        Raises:
            ProgramEnded: there is none any more; the text has its exit status and the end of its standard error.
        """
        assert self._inbox is not None, "listen comes first"
        waited_s = 0.0
        while not self._inbox:
            if self._ended:
                raise ProgramEnded(self._ended)
            self._came.clear()
            # Not `wait_for`: up to Python 3.11 that can swallow the one cancel of the task.
            came = asyncio.ensure_future(self._came.wait())
            try:
                await asyncio.wait([came], timeout=QUIET_S)
            finally:
                came.cancel()
            if not self._came.is_set():
                waited_s += QUIET_S
                if quiet is not None:
                    await quiet(waited_s)
        message = self._inbox.popleft()
        self._room.set()
        return message

    async def write(self, message: Mapping[str, Any]) -> None:
        """Write a message. Raises ProgramEnded if it does not take any."""
        stdin = self._process.stdin if self._process is not None else None
        assert stdin is not None, "it was started, with a pipe"
        try:
            stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            await self._over()
            raise ProgramEnded(self._ended) from None

    async def _over(self) -> None:
        """Wait until its end is noted; if it only takes nothing any more, that is one."""
        following = self._following
        if following is not None:
            await asyncio.wait([following], timeout=3 * LAST_WORDS_S)
        self._ended = self._ended or f"{self.name} has closed its input, and runs on"

    async def end(self) -> None:
        """Kill it, and wait until that is noted. What it has started is ended with the host."""
        if self._process is not None and self._following is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._following
            await asyncio.wait([asyncio.create_task(_exited(self._process))], timeout=LAST_WORDS_S)
            # It may hold pipes that a child of the program's has too.
            typing.cast("Any", self._process)._transport.close()

    # ── Reading ──

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Read what it says until it has ended, and note how."""
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        reading = asyncio.create_task(self._read(process.stdout))
        errors = asyncio.create_task(self._keep_errors(process.stderr))
        exited = asyncio.create_task(_exited(process))
        try:
            await asyncio.wait([reading, exited], return_when=asyncio.FIRST_COMPLETED)
            # The rest follows soon, unless it runs on, or a child of its has inherited the pipes.
            await asyncio.wait([exited], timeout=0.0 if self._unreadable else LAST_WORDS_S)
            while True:
                _, unread = await asyncio.wait([reading, errors], timeout=LAST_WORDS_S)
                if not unread or self._room.is_set():
                    break
        finally:
            for task in (reading, errors, exited):
                task.cancel()
        output = self._stderr.decode(errors="replace").strip()
        why = self._unreadable or f"{self.name} ended: {_how(process.returncode)}"
        self._ended = why + (f"; its standard error ends:\n{output}" if output else "")
        self._came.set()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while not self._unreadable:
            try:
                line = await stream.readline()
            except ValueError:
                self._unreadable = f"{self.name} wrote a line of more than {LINE_MAX_BYTES} bytes"
                return
            if not line:
                return
            await self._pass_on(line)

    async def _pass_on(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            # Some print to standard output what is no message.
            sys.stderr.write(f"{self.name} printed: {line[:500]!r}\n")
            return
        while self._inbox is not None and len(self._inbox) >= INBOX_MAX:
            self._room.clear()
            await self._room.wait()
        if self._inbox is not None:
            self._inbox.append(message)
            self._came.set()

    async def _keep_errors(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(65_536):
            self._stderr = (self._stderr + piece)[-STDERR_BYTES:]
            # It is the output of the host, and so of the run.
            with contextlib.suppress(OSError):
                sys.stderr.write(piece.decode(errors="replace"))
                sys.stderr.flush()


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Wait until it has exited. Its own `wait` waits for its pipes too, which a child may have."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    try:
        watched = os.pidfd_open(process.pid)
    except OSError:
        # It is reaped already, or the kernel is too old.
        await process.wait()
        return
    try:
        loop.add_reader(watched, woken.set)
        await woken.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    while process.returncode is None:  # noqa: ASYNC110  # the class has no event for it
        # Another thread reaps it, and tells the loop.
        await asyncio.sleep(STATUS_S)


def _how(status: int | None) -> str:
    if status is None:
        return "it closed its output, and runs on"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def not_there(argv: Sequence[str], why: str) -> Invalid:
    """Return the error of a program that cannot be executed."""
    path = os.environ.get("PATH", "")
    shown = path if len(path) <= PATH_CHARS else f"{path[: PATH_CHARS - 1]}…"
    install = INSTALL.get(os.path.basename(argv[0]), "install it")
    return Invalid(
        f"the program {argv[0]!r} cannot be started",
        expected="a program on the PATH of the host, or a path",
        got=f"{why}; PATH is {shown}",
        remedy=f"{install}, or name it in the key 'command' of the agent (PATH: key 'env')",
    )
