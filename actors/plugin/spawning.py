"""Processes for tools and agents: `spawn(argv)`, which needs a permit as a call does, and a handle of the process.

A spawn asks the session for a permit. After a fence, or after its own call was closed, it raises RunCancelled instead
(asyncio.CancelledError in async code). Each process has an owner. A process of the run may outlive its call, and dies
with the run. A process of the session outlives the run too, until it is stopped with the session. A whole tree of the
run can be handed over to the session while its call is open; one that the agent spawned itself, while the run is.

The code may have pipes to the process (`pipes`). They end with a cancel, and with the code: then the input of the
process is closed, and it may print its last words.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from msgspec import Struct, structs

from actors.errors import Invalid
from actors.gate.pending import Pending, fail, may_wait
from actors.gate.token import CancelBoundary
from actors.model import Owner
from actors.plugin.child import Child
from actors.plugin.launcher import Launcher
from actors.plugin.pipes import FOLLOW, PIPE, AsyncInput, AsyncOutput, End, InputFile, OutputFile, Pipes, Theirs
from actors.ports import ChildSpec, SpawnSpec
from actors.text import shown

PTY_SIZE_MAX = 10_000
STDIN_MAX_BYTES = 16_777_216
COMMAND_MAX_BYTES = 2_097_152
"""The default limit of Linux (execve(2))."""
LOG = "log"
"""Output that is logged, and nothing else. The other words are in `pipes`."""


class Exit(Struct, frozen=True):
    """How a command exited.

    status: its exit status, negative for a signal.
    output, total_bytes: the last 64 KiB of its output, and the size of all of it; without what went into a pipe of the
        code's own (``stdout="pipe"``).
    lossy: some of the output was not UTF-8.
    held: a process that it left behind still holds its output open.
    spool: if one of these is true, or there is more output than in `output`: the path of a file with the exact bytes
        from the beginning. Its size and its age are limited by the configuration.
    spooled_bytes: how many bytes that file had at this time.
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


class _Door:
    """How code in this process waits for a pipe; see `pipes.Door`."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def look(self) -> None:
        self._pending.token.raise_if_cancelled()

    def ended(self) -> None:
        self.look()

    async def ended_async(self) -> None:
        self.look()

    def future(self) -> Future[Any]:
        return self._pending.future()

    def plain(self) -> AbstractContextManager[object]:
        may_wait()
        return nullcontext()

    def aio(self) -> CancelBoundary:
        return CancelBoundary(self._pending.token)

    async def wait_async(self, future: Future[Any]) -> Any:
        return await self._pending.wait_async(future)


Request = Callable[[SpawnSpec, Owner, "Process"], None]
RequestChild = Callable[[ChildSpec, Child], None]
HandOver = Callable[["Process", Future[None]], None]


F = TypeVar("F", OutputFile, InputFile)
A = TypeVar("A", AsyncOutput, AsyncInput)


class Process:
    """A process tree that a tool or an agent started. Its actor sets the fields; any thread may wait on it."""

    def __init__(
        self,
        pending: Pending,
        kill: Callable[[float], None],
        hand_over: Callable[[Future[None]], None] | None = None,
        give_up: Callable[[], None] = lambda: None,
        pipes: Pipes | None = None,
    ) -> None:
        self._id = ""
        self._started: Future[int] = pending.future()
        self._exited: Future[Exit] = pending.future()
        self._pending = pending
        self._kill = kill
        self._hand_over = hand_over
        self._give_up = give_up
        self._pipes = Pipes({}) if pipes is None else pipes
        self._files: dict[str, OutputFile | InputFile] = {}
        self._forget_pipes: Callable[[], None] = lambda: None
        if pipes is not None:
            self._started.add_done_callback(self._may_be_closed)
            self._forget_pipes = pending.token.add_waker(pipes.over)

    @property
    def process_id(self) -> str:
        """The id of its tree in events, receipts and listings."""
        return self._id

    @property
    def stdin(self) -> InputFile:
        """Its input, where it was spawned with ``stdin="pipe"``: a binary file. Raises Invalid elsewhere."""
        return self._file("stdin", InputFile)

    @property
    def stdout(self) -> OutputFile:
        """Its output, where it was spawned with ``stdout="follow"`` or ``"pipe"``: a binary file. Raises Invalid."""
        return self._file("stdout", OutputFile)

    @property
    def stderr(self) -> OutputFile:
        """As `stdout`."""
        return self._file("stderr", OutputFile)

    @property
    def pid(self) -> int | None:
        """The pid of the command, once it runs."""
        return self._started.result() if self._started.done() and not self._started.exception() else None

    def wait(self, timeout: float | None = None) -> Exit:
        """Block until the command has exited and its output was drained for a bounded time.

        Raises:
            RunCancelled: the call was cancelled first.
            TimeoutError: `timeout` seconds have passed.
        """
        return self._pending.wait(self._exited, timeout)

    def kill(self, grace_s: float = 2.0) -> None:
        """End the whole tree: ask, and kill after `grace_s` seconds."""
        self._kill(grace_s)

    def hand_over(self, timeout: float | None = None) -> None:
        """Hand the whole tree over to the session: it outlives this run. Blocks until that is durable.

        This works only while the call is open. A Stop that comes first ends the tree with the run; a later one does
        not. If the session owns the tree already, nothing changes.

        Raises:
            RunCancelled: the call was cancelled first, or has its result.
            ProcessLookupError: the tree has ended.
            QueueFull: the session has reached its limit of process trees.
            TimeoutError: `timeout` seconds have passed; the tree may still be handed over.
        """
        self._pending.wait(self._begin_hand_over(), timeout)

    def _begin_hand_over(self) -> Future[None]:
        self._pending.token.raise_if_cancelled()
        handed: Future[None] = self._pending.future()
        assert self._hand_over is not None, "a tool's own process can reach its actor"
        self._hand_over(handed)
        return handed

    def _fail(self, error: BaseException) -> None:
        """Fail its pending waits with this error."""
        fail(self._started, error)
        fail(self._exited, error)

    def _ended(self, error: BaseException) -> None:
        """No process of the tree is left; what still waits fails with this error."""
        self._fail(error)
        self._forget_pipes()
        self._pipes.tree_ended()

    def _may_be_closed(self, started: Future[int]) -> None:
        if started.exception() is not None:
            self._forget_pipes()
            self._pipes.close()

    def _end(self, stream: str) -> End:
        end = self._pipes.ends.get(stream)
        if end is None:
            how = repr(PIPE) if stream == "stdin" else f"{FOLLOW!r} or {PIPE!r}"
            raise Invalid(
                f"there is no pipe to {stream} of this command",
                expected=f"a command that was spawned with {stream}={how}",
                got=f"a command without a pipe to {stream}",
                remedy=f"pass {stream}={how} to spawn",
            )
        return end

    def _file(self, stream: str, kind: type[F]) -> F:
        end = self._end(stream)
        # One for all who ask: it holds what was read and not handed over.
        file = self._files.get(stream)
        if file is None:
            file = self._files[stream] = kind(end, _Door(self._pending))
        assert isinstance(file, kind), "each stream has one direction"
        return file


class AsyncProcess:
    """A `Process` for async tools: `wait` is awaited."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._boundary = CancelBoundary(process._pending.token)
        self._streams: dict[str, AsyncOutput | AsyncInput] = {}

    @property
    def process_id(self) -> str:
        """The id of its tree; see `Process.process_id`."""
        return self._process.process_id

    @property
    def stdin(self) -> AsyncInput:
        """Its input, where it was spawned with ``stdin="pipe"``. Raises Invalid elsewhere."""
        return self._stream("stdin", AsyncInput)

    @property
    def stdout(self) -> AsyncOutput:
        """Its output, where it was spawned with ``stdout="follow"`` or ``"pipe"``. Raises Invalid elsewhere."""
        return self._stream("stdout", AsyncOutput)

    @property
    def stderr(self) -> AsyncOutput:
        """As `stdout`."""
        return self._stream("stderr", AsyncOutput)

    @property
    def pid(self) -> int | None:
        """The pid of the command, once it runs."""
        return self._process.pid

    async def wait(self, timeout: float | None = None) -> Exit:
        """Wait until the command has exited; see `Process.wait`."""
        async with self._boundary:
            async with asyncio.timeout(timeout):
                return await self._process._pending.wait_async(self._process._exited)

    def kill(self, grace_s: float = 2.0) -> None:
        """End the whole tree; see `Process.kill`."""
        self._process.kill(grace_s)

    async def hand_over(self, timeout: float | None = None) -> None:
        """Hand the whole tree over to the session; see `Process.hand_over`."""
        async with self._boundary:
            async with asyncio.timeout(timeout):
                await self._process._pending.wait_async(self._process._begin_hand_over())

    def _stream(self, stream: str, kind: type[A]) -> A:
        end = self._process._end(stream)
        made = self._streams.get(stream)
        if made is None:
            made = self._streams[stream] = kind(end, _Door(self._process._pending))
        assert isinstance(made, kind), "each stream has one direction"
        return made


def checked(
    argv: Sequence[str],
    cwd: str | None,
    env: Mapping[str, str] | None,
    name: str | None,
    pty: bool = False,
    pty_size: tuple[int, int] = (80, 24),
    stdin: bytes | str | None = None,
    stdout: str = LOG,
    stderr: str = LOG,
) -> SpawnSpec:
    """Check a command for exec, and convert its texts to exactly `str`. Its pipes are still to be opened."""
    words: object = argv
    if not isinstance(words, Sequence) or isinstance(words, str) or not words or not all(map(_text, words)):
        raise Invalid(
            "invalid command",
            expected="a non-empty sequence of texts without NUL, as for exec",
            got=shown(argv),
            remedy="for a shell command line, give ['sh', '-c', script]",
        )
    if cwd is not None and not _text(cwd):
        raise _invalid("cwd", "the path of a directory as a text without NUL, or None", cwd)
    if name is not None and not _text(name):
        raise _invalid("name", "a text without NUL, or None", name)
    given: object = {} if env is None else env
    if not isinstance(given, Mapping) or not all(
        _text(key) and key and "=" not in key and _text(value) for key, value in given.items()
    ):
        # The values are not shown: an environment may hold secrets.
        raise _invalid("env", "a mapping of names without '=' to texts, both without NUL, or None", type(env).__name__)
    streams = _streams(pty, stdin, stdout, stderr)
    _check_input(pty, pty_size, None if stdin == PIPE else stdin)
    texts = (*words, *given, *given.values(), cwd or "", name or "")
    size = sum(len(str.encode(text, "utf-8", "surrogatepass")) + 1 for text in texts)
    if size > COMMAND_MAX_BYTES:
        raise Invalid(
            "a command is too large",
            expected=f"at most {COMMAND_MAX_BYTES} bytes of arguments, environment, directory and name",
            got=f"{size} bytes",
            remedy="write it to a file, or to its stdin",
        )
    exact = str.__str__
    return SpawnSpec(
        tuple(map(exact, words)),
        exact(name or argv[0]),
        None if cwd is None else exact(cwd),
        {exact(key): exact(value) for key, value in given.items()},
        pty,
        (int(pty_size[0]), int(pty_size[1])),
        bytes(stdin) if isinstance(stdin, bytes | bytearray | memoryview) else None,
        streams=streams,
    )


def _streams(pty: object, stdin: object, stdout: object, stderr: object) -> dict[str, str]:
    """Return what each stream is that is not as usual."""
    streams = {"stdin": PIPE} if stdin == PIPE else {}
    for name, how in (("stdout", stdout), ("stderr", stderr)):
        if not isinstance(how, str) or how not in (LOG, FOLLOW, PIPE):
            raise _invalid(name, f"{LOG!r}, {FOLLOW!r} or {PIPE!r}", how)
        if pty and (how == PIPE or (name == "stderr" and how != LOG)):
            only = f"{LOG!r} or {FOLLOW!r}" if name == "stdout" else repr(LOG)
            raise _invalid(name, f"{only}: a terminal has one output, and it is logged", how)
        if how != LOG:
            streams[name] = str.__str__(how)
    return streams


def _owner(value: object) -> Owner:
    try:
        return Owner(value)  # type: ignore[arg-type]  # it raises for anything but an owner
    except Exception:  # noqa: BLE001  # an enum calls the `__repr__` of a foreign value, which may raise anything
        raise _invalid("owner", " or ".join(repr(str(owner)) for owner in Owner), value) from None


def _check_input(pty: object, size: object, stdin: object) -> None:
    """Check the input and the terminal of a command."""
    if not isinstance(pty, bool):
        raise _invalid("pty", "True or False", pty)
    if not isinstance(size, Sequence) or len(size) != 2 or not all(map(_cells, size)):
        raise _invalid("pty_size", f"a pair of whole numbers, columns and rows, 1 to {PTY_SIZE_MAX}", size)
    if stdin is None:
        return
    if not isinstance(stdin, bytes | bytearray | memoryview) or len(bytes(stdin)) > STDIN_MAX_BYTES:
        # The input is not shown either.
        raise _invalid("stdin", f"at most {STDIN_MAX_BYTES} bytes, {PIPE!r}, or None", type(stdin).__name__)
    if pty:
        raise _invalid("stdin", f"{PIPE!r} or None, since a terminal is typed on", type(stdin).__name__)


def _cells(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= PTY_SIZE_MAX


def _text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _invalid(parameter: str, expected: str, got: object) -> Invalid:
    return Invalid(
        f"invalid {parameter} of a command",
        expected=expected,
        got=shown(got),
        remedy=f"correct {parameter}, or leave it out",
    )


class Spawn:
    """`spawn(argv, …)` for a plain tool: blocks until the command runs, and returns its `Process`."""

    def __init__(
        self,
        request: Request,
        pending: Pending,
        kill: Callable[[Process, float], None],
        hand_over: HandOver | None = None,
        give_up: Callable[[Process], None] = lambda _: None,
        request_child: RequestChild | None = None,
    ) -> None:
        self._request_child = request_child
        self._request = request
        self._pending = pending
        self._kill = kill
        self._hand_over = hand_over
        self._give_up = give_up
        # Reentrant: the garbage collector may run code that spawns.
        self._lock = threading.RLock()
        self._piped: WeakSet[Pipes] = WeakSet()
        self._launcher: Launcher | None = None

    def raise_if_cancelled(self) -> None:
        """Raise RunCancelled if the code that this was given to was cancelled."""
        self._pending.token.raise_if_cancelled()

    def over(self) -> None:
        """The code that this was given to has ended, and its pipes with it."""
        with self._lock:
            left, launcher = list(self._piped), self._launcher
        for pipes in left:
            pipes.over(cancelled=self._pending.token.cancelled)
        if launcher is not None:
            launcher.close()

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        owner: Owner | str = Owner.RUN,
        pty: bool = False,
        pty_size: tuple[int, int] = (80, 24),
        stdin: bytes | str | None = None,
        stdout: str = LOG,
        stderr: str = LOG,
    ) -> Process:
        """Run a command.

        Args:
            argv: the program and its arguments.
            cwd: its working directory; None for that of the supervisor's process. If that was removed, and no other
                directory has its name, an empty one in the state directory.
            env: is added to the clean environment that every tool gets.
            name: for people; the program by default.
            owner: ``run``: it dies with the run, however that ends. ``session``: it lives on, and no later run waits
                for it; Stop(scope="session") or the end of the session ends it. Its output is logged while this call
                is open.
            pty: gives it a terminal, for programs that need one. Then all its output is one stream, you may type
                (``stdin="pipe"``), and a graceful end hangs up after half of the grace.
            pty_size: columns and rows of that terminal.
            stdin: its input, at most 16 MiB; None for an empty input; ``pipe``: you write it (`Process.stdin`).
            stdout: ``log``: it is logged as events. ``follow``: the same, and you read it too (`Process.stdout`); a
                command whose output you do not read waits, and so does the log. ``pipe``: it is yours alone, and
                nothing of it is logged.
            stderr: the same.

        Raises:
            RunCancelled: the call was cancelled before this returned; what was started by then ends with it.
            OSError: it could not be started, or there are no descriptors for its pipes.
            Invalid: a parameter is invalid.
            QueueFull: its owner has reached the limit of processes.
            Refused: an agent asked, and something of an earlier run could not be ended (strict barrier).
        """
        process = self.begin(checked(argv, cwd, env, name, pty, pty_size, stdin, stdout, stderr), owner)
        self._pending.wait(process._started, None)
        return process

    def launcher(self, program: str) -> str:
        """Return the path of an executable that starts `program` in a process tree of the run, as this does.

        For a library that starts its own child: give it this path in place of the program's. The command gets the
        arguments, the directory, the environment and the very stdin, stdout and stderr with which the library executes
        it, so nothing of them is logged. It exits as the command does. SIGTERM, SIGINT and SIGHUP to it end the tree,
        as `Process.kill` does; if it is killed, the tree is killed. It works until the code that this was given to has
        ended.

        Args:
            program: its name, looked up in the PATH with which it is executed, or its path.

        Raises:
            RunCancelled: the run or the call was cancelled.
            Invalid: the program is not a text.
            OSError: it could not be made.
        """
        self._pending.token.raise_if_cancelled()
        if not _text(program) or not program:
            raise _invalid("program", "the name or the path of a program, without NUL", program)
        with self._lock:
            if self._launcher is None:
                self._launcher = Launcher(self._launch)
            return self._launcher.path(str.__str__(program))

    def _launch(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], streams: Mapping[str, int]) -> _Launched:
        """Start a command with these descriptors. On a thread of the launcher."""
        ends = Theirs(streams)
        try:
            spec = checked(argv, cwd, env, None)
            process = self.begin(structs.replace(spec, streams=dict.fromkeys(streams, PIPE), ends=ends))
            self._pending.wait(process._started, None)
        except BaseException:
            ends.close()
            raise
        return _Launched(process._exited, process.kill)

    def child(self, spec: ChildSpec) -> Child:
        """Ask for a child run, without waiting."""
        self._pending.token.raise_if_cancelled()
        assert self._request_child is not None, "a call that delegates can reach its actor"
        child = Child(self._pending)
        self._request_child(spec, child)
        return child

    def begin(self, spec: SpawnSpec, owner: Owner | str = Owner.RUN) -> Process:
        """Ask for a process, without waiting. Pipes that its spec asks for are opened, unless it has them."""
        owner = _owner(owner)
        self._pending.token.raise_if_cancelled()
        hand_over = self._hand_over
        pipes = None
        if spec.streams and spec.ends is None:
            pipes = Pipes(spec.streams)
            with self._lock:
                self._piped.add(pipes)
            spec = structs.replace(spec, ends=pipes.theirs)
        process = Process(
            self._pending,
            lambda grace_s: self._kill(process, grace_s),
            None if hand_over is None else lambda handed: hand_over(process, handed),
            lambda: self._give_up(process),
            pipes,
        )
        ends = spec.ends
        if ends is not None:
            process._started.add_done_callback(lambda started: ends.close() if started.exception() else None)
        self._request(spec, owner, process)
        return process


class _Launched(NamedTuple):
    """See `launcher.Launched`."""

    exited: Future[Exit]
    kill: Callable[[float], None]


class AsyncSpawn:
    """`await spawn(argv, …)` for an async tool: the same parameters, awaited."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._boundary = CancelBoundary(spawn._pending.token)

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        owner: Owner | str = Owner.RUN,
        pty: bool = False,
        pty_size: tuple[int, int] = (80, 24),
        stdin: bytes | str | None = None,
        stdout: str = LOG,
        stderr: str = LOG,
    ) -> AsyncProcess:
        """Run a command; see `Spawn.__call__`.

        If this await is cancelled (`asyncio.timeout`, a framework's limit), the process does not start, or is ended,
        with the source ``call.given_up``. That holds also for one of the session: nobody has its handle.
        """
        pending = self._spawn._pending
        async with self._boundary:
            process = self._spawn.begin(checked(argv, cwd, env, name, pty, pty_size, stdin, stdout, stderr), owner)
            try:
                await pending.wait_async(process._started)
            except (asyncio.CancelledError, GeneratorExit):
                if not pending.token.cancelled:
                    process._give_up()
                raise
        return AsyncProcess(process)

    def launcher(self, program: str) -> str:
        """Return the path of an executable that starts `program` in a tree of the run; see `Spawn.launcher`."""
        with self._boundary:
            return self._spawn.launcher(program)
