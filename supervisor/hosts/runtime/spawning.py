"""Processes that the daemon starts for the agent or for a tool, in trees of their own; and their handles."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import threading
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Union

from .credit import fail, settle
from .errors import Invalid, Refused, RunCancelled
from .main_thread import PlainDoor
from .pipes import AsyncInput, AsyncOutput, Door, End, InputFile, OutputFile, Pipes
from .shared import load
from .token import AsyncDoor, CancelToken, waker
from .values import ToolResult, made
from .wire import CANCELLED, RAISED, STALE, WireError, line

if TYPE_CHECKING:
    from actors.plugin.launcher import Launcher

    from .run import Run

T = TypeVar("T")
F = TypeVar("F")
LOG, FOLLOW, PIPE = "log", "follow", "pipe"
Wanted = Union["Future[T]", Callable[[], "Future[T]"]]


@dataclass(frozen=True)
class Exit:
    """How a command exited.

    `status`: its exit status, negative for a signal. `output`, `total_bytes`: the last 64 KiB of its output, and the
    size of all of it, without what went into a pipe of the code's own (``stdout="pipe"``). `spool`: the path of a file
    with the exact bytes, where there is one.
    """

    status: int
    output: str
    total_bytes: int
    duration_s: float
    lossy: bool = False
    held: bool = False
    cpu_s: float = 0.0
    max_rss_kb: int = 0
    spool: str | None = None
    spooled_bytes: int = 0


class Tree:
    """One process tree, as the wire knows it. `fence`: of the run, or of the call, that has started it."""

    def __init__(self, run: Run, token: CancelToken, fence: str, given: Mapping[str, Any], pipes: Pipes) -> None:
        self.run = run
        self._pipes = pipes
        self._files: dict[str, Any] = {}
        self.token = token
        self.fence = fence
        self.id: str = given["process"]
        self.pid: int = given["pid"]
        self.exited: Future[Exit] = run.future_of(token)

    def heard(self, news: Mapping[str, Any]) -> None:
        """Take news of it; on the wire thread."""
        if news["news"] == "exited":
            settle(self.exited, made(Exit, news["exit"]))
        else:
            fail(self.exited, OSError(news.get("note") or "the process tree was lost"))

    def kill(self, grace_s: float) -> None:
        """Have the daemon end it. At the end of the run it does so by itself."""
        if not self.run.token.cancelled:
            params = {"fence": self.fence, "process": self.id, "grace_s": max(0.0, float(grace_s))}
            self.run.host.wire.ask("process.kill", params, lambda *_: None)

    def file(self, stream: str, kind: Callable[[End, Door], F]) -> F:
        """Return its pipe of a stream, the same one to all who ask."""
        end = self._pipes.ends.get(stream)
        if end is None:
            how = repr(PIPE) if stream == "stdin" else f"{FOLLOW!r} or {PIPE!r}"
            raise Invalid(
                f"there is no pipe to {stream} of this command",
                expected=f"a command that was spawned with {stream}={how}",
                got=f"a command without a pipe to {stream}",
                remedy=f"pass {stream}={how} to spawn",
            )
        if stream not in self._files:
            self._files[stream] = kind(end, Door(self.run, self.token, self.fence))
        return typing.cast("F", self._files[stream])

    def hand_over(self) -> Future[Any]:
        """Have the daemon hand it over to the session; returns the future of its word."""
        _, reply = _request(self.run, self.token, "process.hand_over", {"fence": self.fence, "process": self.id})
        return reply


class Process:
    """A process tree that was started for the agent or for a tool."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @property
    def process_id(self) -> str:
        """The id of its tree in events, receipts and listings."""
        return self._tree.id

    @property
    def pid(self) -> int | None:
        """The pid of the command."""
        return self._tree.pid

    @property
    def stdin(self) -> InputFile:
        """Its input, where it was spawned with ``stdin="pipe"``: a binary file. Raises Invalid elsewhere."""
        return self._tree.file("stdin", InputFile)

    @property
    def stdout(self) -> OutputFile:
        """Its output, where it was spawned with ``stdout="follow"`` or ``"pipe"``: a binary file. Raises Invalid."""
        return self._tree.file("stdout", OutputFile)

    @property
    def stderr(self) -> OutputFile:
        """As `stdout`."""
        return self._tree.file("stderr", OutputFile)

    def wait(self, timeout: float | None = None) -> Exit:
        """Block until the command has exited.

        Raises RunCancelled after a cancel; TimeoutError after `timeout` seconds; OSError if the tree was lost.
        """
        return _wait(self._tree.run, self._tree.token, self._tree.exited, timeout)

    def kill(self, grace_s: float = 2.0) -> None:
        """End the whole tree: ask, and kill after `grace_s` seconds."""
        self._tree.kill(grace_s)

    def hand_over(self, timeout: float | None = None) -> None:
        """Hand the whole tree over to the session: it outlives this run. Blocks until that is durable.

        It works while the run is open; of a process of a tool, while its call is. Raises RunCancelled after a cancel,
        ProcessLookupError if the tree has ended, TimeoutError after `timeout` seconds.
        """
        _wait(self._tree.run, self._tree.token, self._tree.hand_over, timeout)


class AsyncProcess:
    """A `Process` for async code: `wait` and `hand_over` are awaited."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @property
    def process_id(self) -> str:
        """The id of its tree; see `Process.process_id`."""
        return self._tree.id

    @property
    def pid(self) -> int | None:
        """The pid of the command."""
        return self._tree.pid

    @property
    def stdin(self) -> AsyncInput:
        """Its input, where it was spawned with ``stdin="pipe"``. Raises Invalid elsewhere."""
        return self._tree.file("stdin", AsyncInput)

    @property
    def stdout(self) -> AsyncOutput:
        """Its output, where it was spawned with ``stdout="follow"`` or ``"pipe"``. Raises Invalid elsewhere."""
        return self._tree.file("stdout", AsyncOutput)

    @property
    def stderr(self) -> AsyncOutput:
        """As `stdout`."""
        return self._tree.file("stderr", AsyncOutput)

    async def wait(self, timeout: float | None = None) -> Exit:
        """Wait until the command has exited; see `Process.wait`."""
        return await _wait_async(self._tree.run, self._tree.token, self._tree.exited, timeout)

    def kill(self, grace_s: float = 2.0) -> None:
        """End the whole tree; see `Process.kill`."""
        self._tree.kill(grace_s)

    async def hand_over(self, timeout: float | None = None) -> None:
        """Hand the whole tree over to the session; see `Process.hand_over`."""
        await _wait_async(self._tree.run, self._tree.token, self._tree.hand_over, timeout)


class _Asks:
    """What asks for processes: for the agent of a run, or for a call that is executed here."""

    _is_async = False

    def __init__(self, run: Run, token: CancelToken, fence: str) -> None:
        self._run = run
        self._token = token
        self._fence = fence
        # Reentrant: the garbage collector may run code that spawns.
        self._lock = threading.RLock()
        self._piped: weakref.WeakSet[Pipes] = weakref.WeakSet()
        self._launcher: Launcher | None = None

    def over(self) -> None:
        """The code that this was given to has ended, and its pipes with it."""
        with self._lock:
            left, launcher = list(self._piped), self._launcher
        for pipes in left:
            pipes.over(cancelled=self._token.cancelled)
        if launcher is not None:
            launcher.close()

    def _ask(
        self, argv: object, stdin: object, stdout: object, stderr: object, params: dict[str, Any]
    ) -> tuple[int, Future[Tree]]:
        """Ask for a process; returns the number of the request, and the future of its tree.

        The tree is known to the run before it has any news. Pipes are opened here: the other ends go along.
        """
        token = self._token
        streams = _streams(stdin, stdout, stderr)
        typed = None if stdin is None or stdin == PIPE else base64.b64encode(_bytes(stdin)).decode()
        params = {**params, "argv": _words(argv), "stdin": typed}
        pipes = Pipes(streams)
        try:
            number, reply = self._send(params, streams, pipes.theirs.take() or {}, pipes)
        except BaseException:
            pipes.close()
            raise
        if streams:
            with self._lock:
                self._piped.add(pipes)
            # Weakly: pipes that the code has dropped are closed.
            weak = weakref.ref(pipes)

            def over() -> None:
                left = weak()
                if left is not None:
                    left.over()

            forget = token._add_waker(over)

            def closed(done: Future[Tree]) -> None:
                if done.exception() is not None:
                    forget()
                    pipes.close()

            reply.add_done_callback(closed)
        return number, reply

    def _send(
        self, params: dict[str, Any], streams: Mapping[str, str], theirs: Mapping[str, int], pipes: Pipes
    ) -> tuple[int, Future[Tree]]:
        """Send a request, with the descriptors of the command's streams, which are closed here."""
        run, token, fence = self._run, self._token, self._fence
        params = {**params, "fence": fence, **({"pipes": streams} if streams else {})}

        def started(given: Mapping[str, Any]) -> Tree:
            tree = Tree(run, token, fence, given, pipes)
            run.trees[tree.id] = tree
            return tree

        try:
            return _request(run, token, "spawn", params, started, tuple(theirs.values()))
        finally:
            for fd in theirs.values():
                os.close(fd)

    def launcher(self, program: str) -> str:
        """Return the path of an executable that starts `program` in a process tree of the run, as this does.

        For a library that starts its own child: give it this path in place of the program's. The command gets the
        arguments, the directory, the environment and the very stdin, stdout and stderr with which the library executes
        it, so nothing of them is logged. It exits as the command does. SIGTERM, SIGINT and SIGHUP to it end the tree,
        as `Process.kill` does; if it is killed, the tree is killed. It works until the run or the call has ended.

        Raises RunCancelled after a cancel, Invalid for what is no program, OSError if it cannot be made.
        """
        with AsyncDoor(self._token) if self._is_async else contextlib.nullcontext():
            _look(self._run, self._token)
        if not _text("program", program) or "\0" in program:
            raise _invalid("program", "the name or the path of a program", repr(program)[:100])
        with self._lock:
            if self._launcher is None:
                # Loaded here: few agents need it, and the modules that it needs.
                self._launcher = load("launcher").Launcher(self._launch)
                self._token._add_waker(self._launcher.close)
            path: str = self._launcher.path(program)
            return path

    def _launch(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], streams: Mapping[str, int]) -> Tree:
        """Start a command with these descriptors. On a thread of the launcher."""
        params = {**_more(cwd, env, None, "run", pty=False, pty_size=(80, 24)), "argv": _words(argv), "stdin": None}
        return self._send(params, dict.fromkeys(streams, PIPE), streams, Pipes({}))[1].result()

    def _give_up(self, number: int) -> None:
        """Have the daemon end what nobody gets the handle of. At the end of the run it does so by itself."""
        if not self._run.token.cancelled and not self._token.cancelled:
            self._run.host.wire.note("$/cancel_request", {"requestId": number, "fence": self._run.fence})


class Spawn(_Asks):
    """`spawn(argv, …)` for plain code: blocks until the command runs, and returns its `Process`."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        owner: str = "run",
        pty: bool = False,
        pty_size: tuple[int, int] = (80, 24),
        stdin: bytes | str | None = None,
        stdout: str = LOG,
        stderr: str = LOG,
    ) -> Process:
        """Run a command in a process tree of its own, below a warden, and not below this process.

        Args:
            argv: the program and its arguments.
            cwd: its working directory; None for the daemon's.
            env: is added to the clean environment that every tool gets.
            name: for people; the program by default.
            owner: ``run``: it dies with the run, however that ends. ``session``: it lives on until the session ends it.
            pty: gives it a terminal.
            pty_size: columns and rows of that.
            stdin: its input, a few MiB; ``pipe``: you write it (`Process.stdin`).
            stdout: ``log``: it is logged as events. ``follow``: the same, and you read it too (`Process.stdout`).
                ``pipe``: it is yours alone, and nothing of it is logged.
            stderr: the same.

        Raises:
            RunCancelled: it was cancelled before this returned; what was started by then ends with the run.
            OSError: it could not be started.
            Invalid: a parameter is invalid.
            CountermandError: its owner has as many processes as it may have.
            Refused: a part of an earlier run could not be ended, and nothing begins beside it.
        """
        more = _more(cwd, env, name, owner, pty, pty_size)
        return Process(_wait(self._run, self._token, lambda: self._ask(argv, stdin, stdout, stderr, more)[1], None))


class AsyncSpawn(_Asks):
    """`await spawn(argv, …)` for async code: the same parameters, awaited."""

    _is_async = True

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        owner: str = "run",
        pty: bool = False,
        pty_size: tuple[int, int] = (80, 24),
        stdin: bytes | str | None = None,
        stdout: str = LOG,
        stderr: str = LOG,
    ) -> AsyncProcess:
        """Run a command; see `Spawn.__call__`.

        If this await is cancelled (a time limit of your own), the process does not start, or is ended.
        """
        more = _more(cwd, env, name, owner, pty, pty_size)
        numbers: list[int] = []

        def ask() -> Future[Tree]:
            number, reply = self._ask(argv, stdin, stdout, stderr, more)
            numbers.append(number)
            return reply

        try:
            return AsyncProcess(await _wait_async(self._run, self._token, ask, None))
        except (asyncio.CancelledError, GeneratorExit):
            for number in numbers:
                self._give_up(number)
            raise


# ── Asking and waiting ────────────────────────────────────────────────────────────────────────────


def _request(
    run: Run,
    token: CancelToken,
    method: str,
    params: dict[str, Any],
    take: Any = None,
    descriptors: Sequence[int] = (),
) -> tuple[int, Future[Any]]:
    """Send a request, and copies of the descriptors; returns its number and the future of its answer."""
    reply = run.future_of(token)

    def taken(result: Any, error: WireError | None) -> None:
        if error is None:
            value = result if take is None else take(result)
            settle(reply, value)
        else:
            fail(reply, _raised(run, error))

    number = run.host.wire.number(taken)
    try:
        run.host.wire.write(line(id=number, method=method, params=params), descriptors)
    except BaseException:
        run.host.wire.unask(number)
        raise
    return number, reply


def _raised(run: Run, error: WireError) -> BaseException:
    """Return an error of the daemon as code of the agent gets it."""
    if error.code in (CANCELLED, STALE):
        return RunCancelled(run.why(error.data.get("provenance")))
    if error.code == RAISED:
        kind = ProcessLookupError if error.data.get("type") == "ProcessLookupError" else OSError
        return kind(str(error.data.get("message") or error))
    if error.data.get("code") == "refused":
        return Refused(ToolResult("not_started", str(error), is_error=True))
    return error.public()


def _wait(run: Run, token: CancelToken, wanted: Wanted[T], timeout: float | None) -> T:
    """Wait for a future, or for the one that `wanted` returns. In plain code."""
    with PlainDoor(run.host.main, token):
        _look(run, token)
        future = wanted if isinstance(wanted, Future) else wanted()
        try:
            value = future.result(timeout)
        except FutureTimeoutError:
            # Before Python 3.11 that is a class of its own.
            raise _timed_out(timeout) from None
        _look(run, token)
        return value


async def _wait_async(run: Run, token: CancelToken, wanted: Wanted[T], timeout: float | None) -> T:
    """As `_wait`, in async code."""
    with AsyncDoor(token):
        try:
            _look(run, token)
            future = wanted if isinstance(wanted, Future) else wanted()
            woken, wake = waker()
            future.add_done_callback(lambda _: wake())
            timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, wake)
            try:
                await woken
            finally:
                if timer is not None:
                    timer.cancel()
            _look(run, token)
            if not future.done():
                raise _timed_out(timeout)
            return future.result()
        except RunCancelled:
            if run.token.cancelled:
                await run.tell_last()
            raise


def _look(run: Run, token: CancelToken) -> None:
    run.token.raise_if_cancelled()
    token.raise_if_cancelled()


def _timed_out(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"{timeout} s have passed")


# ── Parameters ────────────────────────────────────────────────────────────────────────────────────


def _more(cwd: Any, env: Any, name: Any, owner: Any, pty: bool, pty_size: Any) -> dict[str, Any]:
    given = {} if env is None else env
    if not isinstance(given, Mapping):
        raise _invalid("env", "a mapping of names to texts, or None", type(env).__name__)
    return {
        "cwd": None if cwd is None else _text("cwd", cwd),
        "env": {_text("env", key): _text("env", value) for key, value in given.items()},
        "name": None if name is None else _text("name", name),
        "owner": getattr(owner, "value", owner),
        "pty": pty,
        "pty_size": list(pty_size) if isinstance(pty_size, Sequence) else pty_size,
    }


def _streams(stdin: object, stdout: object, stderr: object) -> dict[str, str]:
    """Return what each stream is that is not as usual. The daemon checks the rest."""
    streams = {"stdin": PIPE} if stdin == PIPE else {}
    for name, how in (("stdout", stdout), ("stderr", stderr)):
        if how not in (LOG, FOLLOW, PIPE):
            raise _invalid(name, f"{LOG!r}, {FOLLOW!r} or {PIPE!r}", repr(how)[:100])
        if how != LOG:
            streams[name] = str(how)
    return streams


def _words(argv: object) -> list[str]:
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence):
        raise _invalid("argv", "a sequence of texts; for a shell ['sh', '-c', script]", type(argv).__name__)
    return [_text("argv", word) for word in argv]


def _text(parameter: str, value: object) -> str:
    """Return a text. It is not made storable: a command with another text in it would be another command."""
    try:
        typing.cast("str", value).encode()
    except (AttributeError, UnicodeError):
        raise _invalid(parameter, "text that is valid Unicode", type(value).__name__) from None
    return str(value)


def _bytes(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _invalid("stdin", f"bytes, {PIPE!r}, or None", type(value).__name__)
    return bytes(value)


def _invalid(parameter: str, expected: str, got: str) -> Invalid:
    return Invalid(
        f"invalid {parameter} of a command",
        expected=expected,
        got=got,
        remedy=f"correct {parameter}, or leave it out",
    )
