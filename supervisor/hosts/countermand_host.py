"""The host of a Python agent: the process in which its code runs.

    COUNTERMAND_CHANNEL=<descriptor> python countermand_host.py module:function [--tool module:function]...

The daemon starts it. It is one file, for the agent's own interpreter (Python 3.9 or later) and for its environment: it
needs the standard library alone. An agent imports what it needs of it as `countermand`; see `publish`.
`COUNTERMAND_PATH` is put on the module path first, then the working directory.

Theory of operation. The *wire thread* reads frames and acts on them at once, whatever the agent does: it sets tokens,
gives credit, answers `ping`. The *main thread* has the agent. An async one has one event loop for the life of the
process, so that clients bound to a loop live on in a host that is kept; a plain one is called. Whoever says something
writes it, under the lock of the wire.

A run's end is told once. The wire thread sets the token first. Then it tells the main thread, and last it fails what
the methods of the turn ("doors") wait for. After that each door raises (law L8): that is the agent's own doing.

- Async. Telling is a callback on the loop, which cancels the agent's task, unless a door has raised in that task
  before. Doors that are woken come later on the loop, so the agent's task hears first. When the agent's function has
  ended, each other task that was not told is cancelled once. Then async generators are closed, and the functions
  registered with `atexit` are run; then the host answers.
- Plain. Telling is a signal to the main thread, whose handler raises RunCancelled. That ends a read, a sleep or a wait.
  The handler raises only where the agent's own code is. In a door it does nothing, since half a frame may be written:
  the door looks at the token when it is left. The order of these steps closes the races: the token is set before the
  signal is sent; a door is first left, and then looks. A signal that comes just before a system call does not
  interrupt it, so it is repeated until the agent was told.

What is started here (threads, processes) is below the daemon's warden, and is ended and proven by it. So nothing is
joined here, and the end of the socket is `os._exit`.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import atexit
import contextlib
import contextvars
import dataclasses
import enum
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import types
import typing
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

T = TypeVar("T")

PROTOCOL = 1
CAN = ("credit", "ping", "host_tools", "steering")
CHANNEL = "COUNTERMAND_CHANNEL"
PATH = "COUNTERMAND_PATH"

LINE_MAX_BYTES = 8 * 1024 * 1024
TEXT_MAX_CHARS = 16_384
"""Of one `emit`: 64 KiB in UTF-8 at most."""
RESULT_MAX_BYTES = 1_048_576
ERROR_MAX_BYTES = 65_536
DEPTH_MAX = 100
CALLBACKS_MAX = 1000
READ_BYTES = 262_144
SIGNAL_AGAIN_S = 0.02
SIGNAL_AGAIN_MAX_S = 0.5
GOODBYE_S = 5.0
"""How long a host whose agent cannot be loaded waits for the daemon to have heard why."""

NO_METHOD, INVALID_PARAMS, CANCELLED, RAISED, STALE, REFUSED = -32601, -32602, -32800, -32000, -32001, -32003
EXIT_LOST, EXIT_USAGE, EXIT_BROKEN = 75, 64, 3

UNSET: Any = object()


# ── What an agent imports: values ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Provenance:
    """Who ended something, and why. `initiated_at`: seconds since the epoch, UTC. `cause`: the earlier provenance."""

    source: str
    reason: str
    mode: str = "graceful"
    requested_by: str | None = None
    initiated_at: float = 0.0
    cause: Provenance | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Provenance:
        """Make one from JSON."""
        made = _made(cls, given)
        return dataclasses.replace(made, cause=cls.of(given["cause"])) if given.get("cause") else made


@dataclass(frozen=True)
class Address:
    """The run that this turn belongs to. `generation` is the fencing token; `fence` is how frames carry it."""

    session: str
    generation: int
    run: str
    fence: str


@dataclass(frozen=True)
class ToolCall:
    """A call that an agent asked for, in the terms of a model provider."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One message of a thread. `role`: ``user``, ``assistant``, ``tool`` or ``note``. Times: seconds, epoch, UTC."""

    id: str
    role: str
    content: str
    generation: int | None = None
    run_id: str | None = None
    status: str = "complete"
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    outcome: str | None = None
    is_error: bool = False
    origin: str | None = None
    sent_at: float | None = None
    at: float | None = None
    attachments: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Message:
        """Make one from JSON."""
        calls = tuple(_made(ToolCall, call) for call in given.get("tool_calls") or ())
        return dataclasses.replace(
            _made(cls, given), tool_calls=calls, attachments=tuple(given.get("attachments") or ())
        )


@dataclass(frozen=True)
class ToolResult:
    """The result of a call. `outcome` is the truth: ``finished``, ``interrupted`` or ``not_started``."""

    outcome: str
    content: str
    is_error: bool = False
    data: Any = None
    provenance: Provenance | None = None


def _made(kind: Callable[..., T], given: Mapping[str, Any]) -> T:
    """Make a dataclass from JSON; unknown fields are ignored."""
    names = {field.name for field in dataclasses.fields(typing.cast("Any", kind))}
    return kind(**{name: value for name, value in given.items() if name in names})


class CountermandError(Exception):
    """The daemon, or this runtime, refused something: what was expected, what came, and what to do."""

    def __init__(
        self, message: str, *, code: str = "error", expected: str = "", got: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.expected, self.got, self.remedy = message, code, expected, got, remedy

    def __str__(self) -> str:
        named = (("expected", self.expected), ("got", self.got), ("to do:", self.remedy))
        return "; ".join([self.message, *(f"{name} {text}" for name, text in named if text)])


class Invalid(CountermandError):
    """A value that was given is invalid."""

    def __init__(self, message: str, *, expected: str = "", got: str = "", remedy: str = "") -> None:
        super().__init__(message, code="invalid", expected=expected, got=got, remedy=remedy)


class Refused(CountermandError):
    """A gated function did not take place, or its call was closed before it ended; `result` is what the thread has."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.content or f"the call was {result.outcome}", code="refused")
        self.result = result


class RunCancelled(asyncio.CancelledError):
    """Raised in plain code after its run was cancelled; `provenance` says who and why.

    Async code gets `asyncio.CancelledError` itself: in Python 3.11 and 3.12 a TaskGroup treats a subclass as an error.
    """

    def __init__(self, provenance: Provenance) -> None:
        super().__init__(f"cancelled by {provenance.source}: {provenance.reason}")
        self.provenance = provenance


# ── Foreign objects to plain JSON ─────────────────────────────────────────────────────────────────


def storable(text: str) -> str:
    """Return `text` with each half of a surrogate pair replaced by U+FFFD: it has no UTF-8 form."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def cut(text: str, max_bytes: int) -> str:
    """Return `text`, or its beginning with a marker that says how much was left out."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    return f"{data[:max_bytes].decode(errors='ignore')}\n[cut: {len(data) - max_bytes} more bytes]"


def words(error: BaseException) -> str:
    """Return an error's class and text. What its class raises meanwhile is contained."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an exception class may do anything in its __str__
        text = "(its text could not be made)"
    return cut(storable(f"{type(error).__name__}: {text}"), ERROR_MAX_BYTES)


def as_json(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Convert a value to JSON: texts made storable, other objects shown as text. `above`: ids of its containers."""
    if id(value) in above:
        return "(contains itself)"
    if len(above) > DEPTH_MAX:
        return "(nested too deeply)"
    try:
        return _as_json(value, (*above, id(value)))
    except Exception:  # noqa: BLE001  # it is a foreign object; the other values are still shown
        return f"({type(value).__name__}: cannot be shown)"


def _as_json(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return as_json(value.value, above)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int):
        # JSON readers elsewhere hold 64 bits; a larger integer is shown as text.
        number = int.__int__(value)
        return number if -(2**63) <= number < 2**64 else str(number)
    if isinstance(value, float):
        exact = float.__float__(value)
        return exact if math.isfinite(exact) else None
    if isinstance(value, Mapping):
        return {
            storable(key if isinstance(key, str) else str(key)): as_json(item, above) for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item, above) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name), above) for field in dataclasses.fields(value)}
    if callable(getattr(value, "isoformat", None)):
        return storable(value.isoformat())
    return storable(repr(value))


def check_has_run(value: Any) -> None:
    """Check that a function's result is a value.

    Raises:
        Invalid: it is a coroutine or a generator, so the function's code has not run. It is closed.
    """
    if inspect.isawaitable(value) or inspect.isasyncgen(value) or inspect.isgenerator(value):
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
        raise Invalid(
            "the function returned code that is never run",
            expected="an async function, or a plain one that returns its result",
            got=type(value).__name__,
            remedy="declare it with 'async def' and without 'yield', and await what it calls",
        )


def bounded_json(value: Any) -> Any:
    """Convert what a function returned to JSON; if it is too large, return the beginning of its text."""
    check_has_run(value)
    if isinstance(value, str):
        return cut(storable(value), RESULT_MAX_BYTES)
    made = as_json(value)
    text = _dumped(made)
    return made if len(text.encode()) <= RESULT_MAX_BYTES else cut(text, RESULT_MAX_BYTES)


def as_result(value: Any) -> ToolResult:
    """Convert a function's return value to the result of its call: a text unchanged, anything else as JSON."""
    if isinstance(value, ToolResult):
        return ToolResult(
            value.outcome,
            cut(storable(value.content), RESULT_MAX_BYTES),
            bool(value.is_error),
            bounded_json(value.data),
            value.provenance,
        )
    if value is None:
        return ToolResult("finished", "")
    made = bounded_json(value)
    return ToolResult("finished", made if isinstance(made, str) else _dumped(made))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ── The wire ──────────────────────────────────────────────────────────────────────────────────────


class WireError(Exception):
    """The daemon answered a request with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.code = error.get("code")
        data = error.get("data")
        self.data: Mapping[str, Any] = data if isinstance(data, dict) else {}

    def public(self) -> CountermandError:
        """Return it as the error that an agent gets."""
        texts = {name: str(self.data.get(name, "")) for name in ("expected", "got", "remedy")}
        return CountermandError(str(self), code=str(self.data.get("code", self.code)), **texts)


Handler = Callable[[Optional[int], Mapping[str, Any]], None]
Taken = Callable[[Any, Optional[WireError]], None]


class Wire:
    """Frames over one socket: JSON-RPC 2.0, one a line. Any thread writes; the wire thread reads.

    Args:
        sock: the host's end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Reentrant: the garbage collector may close a generator of the agent here, whose clean-up says something.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, Taken] = {}
        self.handlers: dict[str, Handler] = {}

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="countermand-wire", daemon=True).start()
        # A forked child has the socket, but no thread that reads, and not the run.
        os.register_at_fork(after_in_child=self._sock.close)

    def ask(self, method: str, params: Mapping[str, Any], taken: Taken) -> None:
        """Send a request; `taken(result, error)` is called once, on the wire thread: it is quick."""
        number = self.number(taken)
        self.write(line(id=number, method=method, params=params))

    def number(self, taken: Taken) -> int:
        """Return the id for a request that is written next; see `ask`."""
        number = next(self._numbers)
        self._pending[number] = taken
        return number

    def unask(self, number: int) -> None:
        """Forget a request that was not written."""
        self._pending.pop(number, None)

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self.write(line(method=method, params=params))

    def answer(self, number: int, result: Mapping[str, Any]) -> None:
        """Answer a request."""
        self.write(line(id=number, result=result))

    def refuse(self, number: int, code: int, message: str, data: Any = None) -> None:
        """Answer a request with an error."""
        error = {"code": code, "message": message}
        self.write(line(id=number, error=error if data is None else {**error, "data": data}))

    def write(self, data: bytes) -> None:
        """Write one line. Waits while the daemon reads nothing."""
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                # The daemon is gone, or this is a forked child.
                os._exit(EXIT_LOST)

    def _read(self) -> None:
        unread = bytearray()
        while True:
            try:
                piece = self._sock.recv(READ_BYTES)
            except OSError:
                piece = b""
            if not piece:
                # The warden is ending this tree.
                os._exit(EXIT_LOST)
            searched = len(unread)
            unread += piece
            start = 0
            while (end := unread.find(b"\n", max(start, searched))) >= 0:
                self._take(bytes(unread[start:end]))
                start = end + 1
            del unread[:start]

    def _take(self, data: bytes) -> None:
        try:
            frame = json.loads(data)
            if "method" in frame:
                self._handle(frame.get("id"), frame["method"], frame.get("params") or {})
            else:
                taken = self._pending.pop(frame.get("id"), None)
                if taken is not None:
                    error = frame.get("error")
                    taken(frame.get("result"), None if error is None else WireError(error))
        except Exception:  # noqa: BLE001  # this thread has to live on: the cancel comes through it
            traceback.print_exc()

    def _handle(self, number: int | None, method: str, params: Mapping[str, Any]) -> None:
        handler = self.handlers.get(method)
        if handler is None:
            # An unknown notification is ignored.
            if number is not None:
                self.refuse(number, NO_METHOD, f"there is no method {method!r}")
            return
        try:
            handler(number, params)
        except (KeyError, TypeError, ValueError) as error:
            if number is None:
                raise
            self.refuse(number, INVALID_PARAMS, f"{method}: {words(error)}")


def line(**frame: Any) -> bytes:
    """Return a frame as a line, with its newline. Raises Invalid if it is too long."""
    data = _dumped({"jsonrpc": "2.0", **frame}).encode()
    if len(data) > LINE_MAX_BYTES:
        raise Invalid(
            "this is too large for one frame",
            expected=f"at most {LINE_MAX_BYTES} bytes as JSON",
            got=f"{len(data)} bytes",
            remedy="write it to a file, and name the file",
        )
    return data + b"\n"


# ── The token ─────────────────────────────────────────────────────────────────────────────────────


class CancelToken:
    """Tells a run or a call that it should end. It may be read from any thread. Once cancelled it stays so."""

    def __init__(self, parent: CancelToken | None = None) -> None:
        self._lock = threading.RLock()
        self._provenance: Provenance | None = None
        self._keys = itertools.count()
        self._wakers: dict[int, Callable[[], object]] = {}
        self._callbacks: dict[int, Callable[[], None]] = {}
        # Tasks that were told: of a run and of its calls together.
        self._told: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet() if parent is None else parent._told
        self._unlink: Callable[[], None] = lambda: None
        if parent is not None:
            above = parent
            self._unlink = parent._add_waker(lambda: self._cancel(typing.cast("Provenance", above._provenance)))

    @property
    def cancelled(self) -> bool:
        """True once it is cancelled, for good."""
        return self._provenance is not None

    @property
    def provenance(self) -> Provenance | None:
        """Who cancelled it and why. The first cause stands."""
        return self._provenance

    def raise_if_cancelled(self) -> None:
        """Raise RunCancelled, on every call, if it is cancelled."""
        if self._provenance is not None:
            raise RunCancelled(self._provenance)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is cancelled or `timeout` seconds have passed. Returns True if it is cancelled."""
        woken = threading.Event()
        forget = self._add_waker(woken.set)
        try:
            return woken.wait(timeout)
        finally:
            forget()

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run `callback` once, on a thread of its own, when it is cancelled; at once if it is cancelled already.

        Returns a function that removes the callback; it does nothing if that is too late. Raises Invalid if there are
        CALLBACKS_MAX callbacks that were not removed.
        """
        with self._lock:
            if len(self._callbacks) >= CALLBACKS_MAX:
                raise Invalid(
                    "too many callbacks on one token",
                    expected=f"at most {CALLBACKS_MAX} that were not removed",
                    got="one more",
                    remedy="call the function that add_callback returned once the callback is no longer needed",
                )
            key = next(self._keys)
            self._callbacks[key] = callback
            late = self._provenance is not None
        if late:
            self._call_back()
        return lambda: _forget(self._callbacks, key)

    @property
    def aio(self) -> AsyncCancelToken:
        """The same token for async code: `wait` is awaited."""
        return AsyncCancelToken(self)

    def _add_waker(self, waker: Callable[[], object]) -> Callable[[], None]:
        """Run `waker` once, inside the cancel; at once if it is cancelled already. It may not block."""
        with self._lock:
            key = next(self._keys)
            late = self._provenance is not None
            if not late:
                self._wakers[key] = waker
        if late:
            waker()
        return lambda: _forget(self._wakers, key)

    def _cancel(self, provenance: Provenance, first: Callable[[], object] = lambda: None) -> None:
        """Cancel it, and what hangs below it. `first` is called before anybody else is woken."""
        with self._lock:
            if self._provenance is not None:
                return
            self._provenance = provenance
            wakers, self._wakers = list(self._wakers.values()), {}
        for wake in (first, *wakers):
            # A closed loop is no reason not to wake the others.
            with contextlib.suppress(Exception):
                wake()
        self._call_back()

    def _call_back(self) -> None:
        with self._lock:
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            threading.Thread(target=callback, name="countermand-callback", daemon=True).start()


def _forget(among: dict[int, Any], key: int) -> None:
    among.pop(key, None)


class AsyncCancelToken:
    """A CancelToken for async code: the same names, and `wait` is awaited."""

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    @property
    def cancelled(self) -> bool:
        """True once it is cancelled, for good."""
        return self._token.cancelled

    @property
    def provenance(self) -> Provenance | None:
        """Who cancelled it and why."""
        return self._token.provenance

    def raise_if_cancelled(self) -> None:
        """Raise asyncio.CancelledError, with its `provenance`, on every call, if it is cancelled."""
        with AsyncDoor(self._token):
            self._token.raise_if_cancelled()

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `CancelToken.add_callback`."""
        return self._token.add_callback(callback)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is cancelled or `timeout` seconds have passed. Returns True if it is cancelled."""
        woken, wake = _waker()
        forget = self._token._add_waker(wake)
        try:
            await asyncio.wait([woken], timeout=timeout)
        finally:
            forget()
        return self._token.cancelled


def _waker() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Return a future of the running loop, and a function that resolves it from any thread, at any time."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        # A closed loop waits for nothing.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, woken)

    return woken, wake


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class AsyncDoor:
    """Wraps each method that async code uses: after a cancel it raises `asyncio.CancelledError`, the class itself."""

    __slots__ = ("_token",)

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Convert RunCancelled, and note that this task has been told."""
        if isinstance(error, RunCancelled):
            with contextlib.suppress(RuntimeError):
                task = asyncio.current_task()
                if task is not None:
                    self._token._told.add(task)
            raise _with_provenance(asyncio.CancelledError(*error.args), error.provenance) from None
        if isinstance(error, asyncio.CancelledError) and self._token.provenance is not None:
            # The task was cancelled while it waited here. If that was its own time limit, it is still to be told.
            _with_provenance(error, self._token.provenance)


def _with_provenance(error: asyncio.CancelledError, provenance: Provenance) -> asyncio.CancelledError:
    error.provenance = provenance  # type: ignore[attr-defined]  # the class declares no such attribute
    return error


def tell(task: asyncio.Task[Any], told: weakref.WeakSet[asyncio.Task[Any]]) -> None:
    """Cancel a task, unless it was told before. On its own loop."""
    if not task.done() and task not in told:
        told.add(task)
        task.cancel()


# ── The main thread of a plain agent ──────────────────────────────────────────────────────────────


class Target:
    """What the main thread executes: the agent, or the function of a gated call in it. `told`: its end was told."""

    __slots__ = ("token", "told")

    def __init__(self, token: CancelToken) -> None:
        self.token = token
        self.told = False


class MainThread:
    """Raises RunCancelled on the main thread, once, where the agent's own code is. See the head of this file."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.targets: list[Target] = []
        # How many doors the main thread is in.
        self.doors = 0

    @property
    def is_here(self) -> bool:
        """True on the main thread."""
        return threading.get_ident() == self.ident

    def interrupt(self, _signal: int, frame: types.FrameType | None) -> None:
        """Handle SIGINT, on the main thread, between any two bytecodes."""
        target = self._owed()
        if target is None:
            return
        target.told = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RunCancelled(typing.cast("Provenance", target.token.provenance)) from None
        # The agent runs a loop of its own: its main task is told, and ends the others as it is used to.
        main, told = _main_task(frame), target.token._told

        def tell_all() -> None:
            for task in asyncio.all_tasks(loop) if main is None else (main,):
                tell(task, told)

        loop.call_soon_threadsafe(tell_all)

    def urge(self) -> None:
        """Interrupt the agent's code on the main thread, until it is told. Any thread."""
        if self._owed() is not None:
            self._kill()
            threading.Thread(target=self._urge, name="countermand-urge", daemon=True).start()

    def _urge(self) -> None:
        pause = SIGNAL_AGAIN_S
        # An agent with a handler of its own gets one signal.
        while signal.getsignal(signal.SIGINT) == self.interrupt:
            time.sleep(pause)
            if self._owed() is None:
                return
            self._kill()
            pause = min(2 * pause, SIGNAL_AGAIN_MAX_S)

    def _kill(self) -> None:
        signal.pthread_kill(self.ident, signal.SIGINT)

    def attempt(self, token: CancelToken, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the agent's code: the agent, or the function of a gated call, from inside of a door.

        Returns its value, or UNSET and its error. On the main thread the handler may raise in it, once: from the first
        line here up to the line that says that it was told.
        """
        if not self.is_here:
            try:
                token.raise_if_cancelled()
                return function(), None
            except BaseException as error:  # noqa: BLE001  # every end of the agent's code is noted
                return UNSET, error
        doors, target = self.doors, Target(token)
        try:
            value, raised = self._attempt(target, function)
        except RunCancelled as late:
            # The signal came while another error was noted.
            value, raised = UNSET, late
        # In this order: below is the target of the run, which the door tells.
        self.doors = doors
        self.targets.remove(target)
        return value, raised

    def _attempt(self, target: Target, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        value: Any = UNSET
        try:
            self.targets.append(target)
            self.doors = 0
            target.token.raise_if_cancelled()
            value = function()
            target.told = True
        except BaseException as error:  # noqa: BLE001  # every end of the agent's code is noted
            target.told = True
            # If it has returned, it has not been interrupted.
            return (value, error) if value is UNSET else (value, None)
        return value, None

    def _owed(self) -> Target | None:
        """Return the target that is to be told, if no door will do it."""
        for target in self.targets[-1:]:
            if not self.doors and target.token.cancelled and not target.told:
                return target
        return None


def _main_task(frame: types.FrameType | None) -> asyncio.Task[Any] | None:
    """Return the task that the loop in these frames runs until it is complete; None if that is not known."""
    while frame is not None:
        if frame.f_code is asyncio.base_events.BaseEventLoop.run_until_complete.__code__:
            task = frame.f_locals.get("future")
            return task if isinstance(task, asyncio.Task) else None
        frame = frame.f_back
    return None


class PlainDoor:
    """Wraps each method that plain code uses. On the main thread the handler leaves the telling to it."""

    __slots__ = ("_main", "_token")

    def __init__(self, main: MainThread, token: CancelToken) -> None:
        self._main = main
        self._token = token

    def __enter__(self) -> None:
        """Go in: from here on the handler does nothing."""
        if self._main.is_here:
            self._main.doors += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave, and then look at the token: a signal that came in here did nothing."""
        main = self._main
        if not main.is_here:
            return
        target = main.targets[-1] if main.targets else None
        if target is not None and isinstance(error, RunCancelled) and self._token.cancelled:
            target.told = True
        main.doors -= 1
        if target is not None and target.token.provenance is not None and not target.told:
            target.told = True
            raise RunCancelled(target.token.provenance) from error


# ── A run ─────────────────────────────────────────────────────────────────────────────────────────


class Credit:
    """What a run may say that is not durable yet. The wire gives it back; whoever says something takes it.

    Args:
        events: limit on the frames that are not durable.
        size: limit on their bytes. A frame that is larger takes all of it.
    """

    def __init__(self, events: int, size: int) -> None:
        self._lock = threading.RLock()
        self._events, self._size, self._size_max = events, size, size
        self._waiters: deque[tuple[int, Future[None]]] = deque()

    def take(self, size: int) -> Future[None] | None:
        """Take credit for a frame of `size` bytes. Returns None if there was enough, else a future to wait for."""
        size = min(size, self._size_max)
        waiter: Future[None] = Future()
        with self._lock:
            if not self._waiters and self._fits(size):
                self._spend(size)
                return None
            self._waiters.append((size, waiter))
        return waiter

    def give(self, events: int, size: int) -> None:
        """Give credit back, and grant it to the waiters in order."""
        while True:
            with self._lock:
                self._events += events
                self._size = min(self._size + size, self._size_max)
                granted = self._grant()
            # Who no longer waits gives it back.
            returned = [size for size, waiter in granted if not settle(waiter, None)]
            if not returned:
                return
            events, size = len(returned), sum(returned)

    def give_up(self, size: int, waiter: Future[None]) -> None:
        """Remove a waiter that no longer waits. If it was granted its credit already, give that back."""
        if not waiter.cancel() and waiter.exception() is None:
            self.give(1, min(size, self._size_max))
        else:
            with self._lock:
                self._waiters = deque(other for other in self._waiters if other[1] is not waiter)
            self.give(0, 0)

    def _grant(self) -> list[tuple[int, Future[None]]]:
        granted = []
        while self._waiters:
            size, waiter = self._waiters[0]
            if not waiter.done():
                if not self._fits(size):
                    break
                self._spend(size)
                granted.append((size, waiter))
            self._waiters.popleft()
        return granted

    def _fits(self, size: int) -> bool:
        return self._events > 0 and self._size >= size

    def _spend(self, size: int) -> None:
        self._events -= 1
        self._size -= size


def settle(future: Future[T], value: T) -> bool:
    """Resolve a future with a value. Returns False if it was done. Any thread."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def fail(future: Future[Any], error: BaseException) -> None:
    """Resolve a future with an error, unless it is done. Any thread."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


class Segment:
    """What the agent said and asked for in one message of the thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.texts: list[str] = []
        self.calls: list[Call] = []


class Thread:
    """The thread of a run: what came with it, and what the agent has said and called since. Any thread.

    Text and calls are collected in one message. While one of its calls is open, all output joins it; once all have
    ended, the next text or call opens another. A call is shown only together with its result.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()
        self._run, self._generation = params["run"], params["generation"]
        self._before = [Message.of(message) for message in params["thread"]]
        self.inputs = set(params["inputs"])
        self._items: list[Message | Segment] = []
        self._numbers = itertools.count(1)

    def text(self, text: str) -> None:
        """Add what the agent said."""
        with self._lock:
            self._segment().texts.append(text)

    def requested(self, call: Call) -> None:
        """Add a call that the agent asks for."""
        with self._lock:
            self._segment().calls.append(call)

    def steered(self, messages: Sequence[Message]) -> None:
        """Add messages that steer the run."""
        with self._lock:
            for message in messages:
                if message.id not in self.inputs:
                    self.inputs.add(message.id)
                    self._items.append(message)

    def messages(self) -> list[Message]:
        """Return all messages, in a new list."""
        with self._lock:
            found = list(self._before)
            for item in self._items:
                found.extend([item] if isinstance(item, Message) else self._built(item))
            return found

    def _segment(self) -> Segment:
        last = self._items[-1] if self._items else None
        if isinstance(last, Segment) and (not last.calls or not all(call.over for call in last.calls)):
            return last
        made = Segment(next(self._numbers))
        self._items.append(made)
        return made

    def _built(self, segment: Segment) -> list[Message]:
        ended = [(call, call.result) for call in segment.calls if call.result is not None]
        text = "".join(segment.texts)
        if not text and not ended:
            return []
        common: dict[str, Any] = {"generation": self._generation, "run_id": self._run}
        calls = tuple(ToolCall(call.id, call.tool, call.arguments) for call, _ in ended)
        said = Message(f"{self._run}.{segment.number}", "assistant", text, tool_calls=calls, **common)
        results = [
            Message(
                call.id,
                "tool",
                result.content,
                tool_call_id=call.id,
                outcome=result.outcome,
                is_error=result.is_error,
                **common,
            )
            for call, result in ended
        ]
        return [said, *results]


class Call:
    """One call that the agent asked for. Its `result` is set when the daemon has answered.

    Of a function that is executed here, `begin` starts it, on the wire thread, once the daemon says so; `here` are the
    steps of whoever executes it while it waits. `value` and `error` say how it ended.
    """

    def __init__(self, run: Run, tool: str, arguments: dict[str, Any]) -> None:
        self.run = run
        self.tool = tool
        self.arguments = arguments
        # Further fields of its frame.
        self.frame: dict[str, Any] = {}
        self.token = CancelToken(run.token)
        self.reply: Future[ToolResult] = run.future()
        self.result: ToolResult | None = None
        self.over = False
        self.id = ""
        self.fence = ""
        self._number = run.host.wire.number(self._taken)
        self._line = b""
        self.begin: Callable[[], object] | None = None
        self.here: Steps[None] | None = None
        self.show: Callable[[Any], Any] | None = None
        self.hide: Callable[[ToolResult], ToolResult] = lambda result: result
        self.execute_id: int | None = None
        self.value: Any = UNSET
        self.error: BaseException | None = None

    def prepare(self) -> int:
        """Make the frame; returns what it costs in bytes."""
        params = {"fence": self.run.fence, "tool": self.tool, "arguments": self.arguments, **self.frame}
        where = {} if self.begin is None else {"where": "host"}
        self._line = line(id=self._number, method="call", params={**params, **where})
        return len(self._line) - 1

    def drop(self) -> None:
        """Forget a call that was not asked for."""
        self.run.host.wire.unask(self._number)
        self.token._unlink()

    def ask(self) -> None:
        """Ask for it. Its credit was taken before."""
        self.run.token.raise_if_cancelled()
        self.run.calls[self._number] = self
        self.run.thread.requested(self)
        self.run.host.wire.write(self._line)
        self._line = b""

    def give_up(self) -> None:
        """Report that nobody waits for it any more, unless the run has ended. Its answer still comes."""
        if not self.run.token.cancelled:
            self.run.host.wire.note("$/cancel_request", {"requestId": self._number, "fence": self.run.fence})

    def outcome(self) -> Any:
        """Return what the function returned, or raise what it raised; Refused if the call was closed before."""
        result = self.reply.result()
        if result.outcome != "finished" or (self.value is UNSET and self.error is None):
            raise Refused(result) from self.error
        if self.error is not None:
            raise self.error
        return self.value

    def _taken(self, result: Any, error: WireError | None) -> None:
        """Take the daemon's answer; on the wire thread."""
        run = self.run
        run.calls.pop(self._number, None)
        self.token._unlink()
        self.over = True
        if error is None:
            made = _made(ToolResult, result)
            self.id, self.result = result["call"], made
            settle(self.reply, made)
        elif error.code in (CANCELLED, STALE):
            fail(self.reply, RunCancelled(run.why(error.data.get("provenance"))))
        else:
            fail(self.reply, error.public())

    # ── Executing it here ──

    def executed(self, number: int, params: Mapping[str, Any]) -> None:
        """Handle `execute`; on the wire thread."""
        self.execute_id, self.id, self.fence = number, params["call"], params["fence"]
        self.run.host.executing[number] = self
        if self.begin is None or self.reply.done() or self.token.cancelled:
            self.declined()
            return
        try:
            self.begin()
        except RuntimeError as error:
            # Its loop is closed, or there can be no further thread.
            self.ended(UNSET, error)

    def declined(self) -> None:
        """Answer `execute`: the function did not begin, or was ended by its cancel."""
        number = self._answering()
        if number is not None:
            data = as_json({"provenance": self.token.provenance})
            self.run.host.wire.refuse(number, CANCELLED, "cancelled", data)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Answer `execute`: the function returned, or raised."""
        if isinstance(error, asyncio.CancelledError) and (self.token.cancelled or self.run.token.cancelled):
            self.declined()
            return
        self.value, self.error = value, error
        if error is None:
            try:
                check_has_run(value)
                result = as_result(value if self.show is None else self.show(value))
            except BaseException as failed:  # noqa: BLE001  # it is raised where the function was called
                self.error = failed
        if self.error is not None:
            result = ToolResult("finished", words(self.error), is_error=True)
        result = self.hide(result)
        number = self._answering()
        if number is not None:
            answer = {"content": result.content, "is_error": result.is_error, "data": result.data}
            self.run.host.wire.answer(number, answer)

    def _answering(self) -> int | None:
        """Return the id of the `execute` to answer: once, whichever thread comes first."""
        number = self.execute_id
        return number if number is not None and self.run.host.executing.pop(number, None) is not None else None


class Run:
    """One run in this host.

    Args:
        host: the host.
        number: the id of the `run` request.
        params: its parameters.
    """

    def __init__(self, host: Host, number: int, params: Mapping[str, Any]) -> None:
        self.host = host
        self.number = number
        self.fence: str = params["fence"]
        self.address = Address(params["session"], params["generation"], params["run"], self.fence)
        self.token = CancelToken()
        self.thread = Thread(params)
        self.credit = Credit(params["credit"]["events"], params["credit"]["bytes"])
        self.tools = [*(tool.offer for tool in host.tools.values()), *params.get("tools", ())]
        # Open calls, by the id of their request.
        self.calls: dict[int, Call] = {}
        self.task: asyncio.Task[Any] | None = None
        self._lock = threading.RLock()
        self._futures: dict[Future[Any], None] = {}
        self.token._add_waker(self._cancelled)

    def why(self, given: Mapping[str, Any] | None) -> Provenance:
        """Return who ended this run, as far as that is known."""
        if self.token.provenance is not None:
            return self.token.provenance
        return Provenance.of(given) if given else Provenance("run.ended", "this run is over")

    def future(self) -> Future[Any]:
        """Return a future that the run's cancel fails with RunCancelled."""
        made: Future[Any] = Future()
        self.watch(made)
        return made

    def watch(self, future: Future[Any]) -> None:
        """Make the run's cancel fail `future`."""
        with self._lock:
            self._futures[future] = None
        future.add_done_callback(self._done)
        if self.token.cancelled:
            self._cancelled()

    def request(self, method: str) -> Future[Any]:
        """Ask the daemon; returns the future of its answer."""
        reply = self.future()

        def taken(result: Any, error: WireError | None) -> None:
            if error is None:
                settle(reply, result)
            elif error.code in (CANCELLED, STALE):
                fail(reply, RunCancelled(self.why(error.data.get("provenance"))))
            else:
                fail(reply, error.public())

        self.token.raise_if_cancelled()
        self.host.wire.ask(method, {"fence": self.fence}, taken)
        return reply

    def wait(self, future: Future[T]) -> T:
        """Block until `future` is done. A cancel, before or meanwhile, raises RunCancelled."""
        self.token.raise_if_cancelled()
        value = future.result()
        self.token.raise_if_cancelled()
        return value

    async def wait_async(self, future: Future[T]) -> T:
        """Wait for `future` without blocking the loop; a cancel raises RunCancelled. Inside an `AsyncDoor`."""
        self.token.raise_if_cancelled()
        woken, wake = _waker()
        future.add_done_callback(lambda _: wake())
        await woken
        self.token.raise_if_cancelled()
        return future.result()

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.pop(future, None)

    def _cancelled(self) -> None:
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            fail(future, RunCancelled(self.why(None)))


# ── The turn ──────────────────────────────────────────────────────────────────────────────────────


def _pieces(text: object) -> list[str]:
    """Divide a text into pieces, one for each frame."""
    if not isinstance(text, str):
        raise Invalid(
            "an agent can emit text only",
            expected="a str",
            got=type(text).__name__,
            remedy="emit(str(value)), or progress(value) for data",
        )
    text = storable(text)
    return [text[start : start + TEXT_MAX_CHARS] for start in range(0, len(text), TEXT_MAX_CHARS)]


Steps = Generator["Future[Any]", None, T]
"""What a door does, for both kinds of turn: it yields the futures that it has to wait for, and returns its value."""


class TurnBase:
    """The common part of both kinds of turn."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def messages(self) -> list[Message]:
        """The thread: everything before this run, its inputs, and its output and calls so far."""
        return self._run.thread.messages()

    @property
    def inputs(self) -> list[Message]:
        """This run's own messages, in order of acceptance; empty in a run that was resumed without any."""
        inputs = self._run.thread.inputs
        return [message for message in self.messages if message.id in inputs and message.role == "user"]

    @property
    def address(self) -> Address:
        """Session, generation and run, and the fence that frames carry."""
        return self._run.address

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that `call` takes: each with its `name`, `description`, and the JSON schema of its `parameters`."""
        return [dict(tool) for tool in self._run.tools]

    @property
    def cancelled_by(self) -> Provenance | None:
        """Who ended this run and why; None while it goes on. It distinguishes a Stop from your own time limit."""
        return self._run.token.provenance

    # ── The steps of the doors ──

    def _emit(self, text: object) -> Steps[None]:
        for piece in _pieces(text):
            yield from self._say("emit", text=piece)
            self._run.thread.text(piece)

    def _progress(self, data: Mapping[str, Any]) -> Steps[None]:
        made = as_json(data)
        size = len(_dumped(made).encode())
        if size > RESULT_MAX_BYTES:
            raise Invalid(
                "this progress is too large",
                expected=f"at most {RESULT_MAX_BYTES} bytes as JSON",
                got=f"{size} bytes",
                remedy="show less of it, or emit it as text",
            )
        yield from self._say("progress", data=made)

    def _say(self, method: str, **params: Any) -> Steps[None]:
        run = self._run
        frame = line(method=method, params={"fence": run.fence, **params})
        yield from self._spend(len(frame) - 1)
        run.token.raise_if_cancelled()
        run.host.wire.write(frame)

    def _spend(self, size: int) -> Steps[None]:
        """Take the credit that a frame of `size` bytes costs; wait if there is not enough."""
        run = self._run
        run.token.raise_if_cancelled()
        waiter = run.credit.take(size)
        if waiter is not None:
            run.watch(waiter)
            try:
                yield waiter
            except BaseException:
                run.credit.give_up(size, waiter)
                raise

    def _steering(self) -> Steps[tuple[Message, ...]]:
        reply = self._run.request("steering")
        yield reply
        messages = tuple(Message.of(message) for message in reply.result()["messages"])
        self._run.thread.steered(messages)
        return messages

    def _call(self, tool: object, arguments: Mapping[str, Any]) -> Steps[ToolResult]:
        """Call a tool: of the daemon's, or of the user's, which is executed here."""
        own = self._run.host.tools.get(tool) if isinstance(tool, str) else None
        if own is None:
            return (yield from self._ask(self._asked(tool, arguments)))
        given = as_json(arguments)
        call = self._asked(own.name, own.shown(given))
        call.hide = functools.partial(own.without, given)
        call.frame.update(own.frame)
        return (yield from self._gated(call, lambda: own.execute(given, call), in_thread=not own.is_async))

    def _gate(
        self, name: object, arguments: Mapping[str, Any], function: Callable[[], Any], show: Any, **frame: Any
    ) -> Steps[Call]:
        """Call a function that is here; returns the call, which has its value or its error."""
        call = self._asked(name, arguments)
        call.show = show
        call.frame.update({key: value for key, value in frame.items() if value is not None})
        yield from self._gated(call, function, in_thread=False)
        return call

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        raise NotImplementedError

    def _asked(self, tool: object, arguments: Mapping[str, Any]) -> Call:
        """Return a call that is not yet asked for."""
        if not isinstance(tool, str):
            raise Invalid(
                "a tool is called by its name",
                expected="a str",
                got=type(tool).__name__,
                remedy="turn.call('name', argument=value)",
            )
        if not isinstance(arguments, Mapping):
            raise Invalid("the arguments of a call have names", expected="a mapping", got=type(arguments).__name__)
        self._run.token.raise_if_cancelled()
        return Call(self._run, storable(tool), as_json(arguments))

    def _ask(self, call: Call) -> Steps[ToolResult]:
        """Ask for a call, and wait for its result.

        If that wait is cancelled and the run is not, the call is ended. Its result is waited for, so that the agent's
        next output comes after it; further cancels are ignored in this one round trip.
        """
        run = self._run
        try:
            yield from self._spend(call.prepare())
            call.ask()
        except BaseException:
            call.drop()
            raise
        try:
            if call.here is not None:
                yield from call.here
            yield call.reply
        except GeneratorExit:
            # The coroutine that waited is being closed, and may not wait.
            call.give_up()
            raise
        except asyncio.CancelledError:
            call.give_up()
            while not call.reply.done() and not run.token.cancelled:
                with contextlib.suppress(asyncio.CancelledError):
                    yield call.reply
            raise
        return call.reply.result()


def _more(schema: Mapping[str, Any] | None, provider_id: str | None, deadline_s: float | None) -> dict[str, Any]:
    """Return further fields of a `call`, as the daemon expects them."""
    return {
        "schema": None if schema is None else as_json(dict(schema)),
        "provider_id": None if provider_id is None else storable(str(provider_id)),
        "deadline_s": _seconds(deadline_s),
    }


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value < math.inf:
        raise Invalid("a deadline is a number of seconds", expected="at least 0.001", got=repr(value))
    return float(value)


class AsyncTurn(TurnBase):
    """One turn of an async agent.

    After a cancel every method raises `asyncio.CancelledError` itself, with `provenance` as an attribute.
    """

    @property
    def cancel_token(self) -> AsyncCancelToken:
        """The run's token."""
        return self._run.token.aio

    async def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        await self._through(self._emit(text))

    async def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        await self._through(self._progress(data))

    async def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        await self._through(self._say("typing"))

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once (`asyncio.gather`).

        If this await is cancelled (`asyncio.timeout`, a framework's limit), the call is ended, and its result is added
        to the thread. Only then does your code get the CancelledError.
        """
        return await self._through(self._call(tool, arguments))

    async def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], Awaitable[T]],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Callable[[T], str | ToolResult] | None = None,
        deadline_s: float | None = None,
    ) -> T:
        """One call of a function that is here, gated: for tools of a framework.

        It is recorded and permitted like any call, then executed here in a task of its own, in the context of the
        caller. Returns what it returned, raises what it raised.

        Args:
            name: the tool's name.
            arguments: shown and recorded; `function` has its own.
            function: what to execute.
            schema: a JSON schema of the arguments, shown to whoever approves; it is not enforced.
            provider_id: what the model called the call.
            show: makes the text for the thread; by default the value itself, as JSON if it is no text.
            deadline_s: seconds after which the call is closed.

        Raises:
            Refused: it did not take place, or not to its end; `result` is what the thread has.
        """
        more = _more(schema, provider_id, deadline_s)
        call = await self._through(self._gate(name, arguments, function, show, **more))
        return typing.cast("T", call.outcome())

    async def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        return await self._through(self._steering())

    async def _through(self, steps: Steps[T]) -> T:
        """Go through a door: take its steps, and await what they wait for."""
        run = self._run
        with AsyncDoor(run.token):
            run.token.raise_if_cancelled()
            try:
                future = next(steps)
                while True:
                    try:
                        await run.wait_async(future)
                    except BaseException as error:  # noqa: BLE001  # the steps decide
                        future = steps.throw(error)
                    else:
                        future = next(steps)
            except StopIteration as end:
                return typing.cast("T", end.value)

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        context, loop = contextvars.copy_context(), asyncio.get_running_loop()
        if in_thread:
            call.begin = functools.partial(_in_thread, call, context, function)
        else:
            call.begin = functools.partial(loop.call_soon_threadsafe, _in_task, call, context, function)
        return self._ask(call)


def _in_task(call: Call, context: contextvars.Context, function: Callable[[], Any]) -> None:
    """Execute a call's function in a task of its own. On the loop."""
    if call.token.cancelled:
        call.declined()
        return

    async def execute() -> None:
        try:
            value = await function()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the call has an end
            call.ended(UNSET, error)
        else:
            call.ended(value, None)

    loop = asyncio.get_running_loop()
    task = context.run(loop.create_task, execute())
    call.token._add_waker(functools.partial(loop.call_soon_threadsafe, tell, task, call.token._told))
    # A task that is cancelled before its first line has not executed anything.
    task.add_done_callback(lambda _: call.declined())


def _in_thread(call: Call, context: contextvars.Context, function: Callable[[], Any]) -> None:
    """Execute a call's plain function on a thread of its own. It looks at its token by itself."""

    def execute() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the call has an end
            call.ended(UNSET, error)
        else:
            call.ended(value, None)

    threading.Thread(target=execute, name=f"countermand-{call.tool}", daemon=True).start()


class Turn(TurnBase):
    """One turn of a plain agent: every method blocks its thread, and raises RunCancelled after a cancel."""

    @property
    def cancel_token(self) -> CancelToken:
        """The run's token."""
        return self._run.token

    def emit(self, text: str) -> None:
        """Emit a text. It waits for credit if much of the run's output is not in the log yet."""
        self._through(self._emit(text))

    def progress(self, **data: Any) -> None:
        """Show progress to subscribers. It is fenced like other output, and not stored. Raises Invalid if too large."""
        self._through(self._progress(data))

    def typing(self) -> None:
        """Show that the agent is at work; not stored."""
        self._through(self._say("typing"))

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and wait for its result. Several calls may be open at once, from several threads."""
        return self._through(self._call(tool, arguments))

    def gate(
        self,
        name: str,
        arguments: Mapping[str, Any],
        function: Callable[[], T],
        *,
        schema: Mapping[str, Any] | None = None,
        provider_id: str | None = None,
        show: Callable[[T], str | ToolResult] | None = None,
        deadline_s: float | None = None,
    ) -> T:
        """See `AsyncTurn.gate`: the function is a plain one, and is called on the calling thread."""
        more = _more(schema, provider_id, deadline_s)
        call = self._through(self._gate(name, arguments, function, show, **more))
        return typing.cast("T", call.outcome())

    def steering(self) -> tuple[Message, ...]:
        """Take the waiting messages that steer this run; none while a call is open."""
        return self._through(self._steering())

    def _through(self, steps: Steps[T]) -> T:
        """Go through a door: take its steps, and wait for what they wait for."""
        run = self._run
        with PlainDoor(run.host.main, run.token):
            run.token.raise_if_cancelled()
            try:
                future = next(steps)
                while True:
                    try:
                        run.wait(future)
                    except BaseException as error:  # noqa: BLE001  # the steps decide
                        future = steps.throw(error)
                    else:
                        future = next(steps)
            except StopIteration as end:
                return typing.cast("T", end.value)

    def _gated(self, call: Call, function: Callable[[], Any], *, in_thread: bool) -> Steps[ToolResult]:
        del in_thread
        begun = self._run.future()
        call.begin = functools.partial(settle, begun, None)
        # A call that is refused is not executed.
        call.reply.add_done_callback(lambda _: settle(begun, None))
        call.here = self._execute(call, begun, function)
        return self._ask(call)

    def _execute(self, call: Call, begun: Future[None], function: Callable[[], Any]) -> Steps[None]:
        """Execute a call's function on this thread, once the daemon says so."""
        try:
            yield begun
            if call.execute_id is not None:
                main = self._run.host.main
                forget = call.token._add_waker(main.urge)
                call.ended(*main.attempt(call.token, function))
                forget()
        finally:
            # It does nothing if the call was answered.
            call.declined()


# ── Tools that are executed here ──────────────────────────────────────────────────────────────────


class Secret:
    """Marks a tool's parameter: ``api_key: Annotated[str, Secret]``. Only the tool sees its values."""


MARK = "[secret]"
SECRET_MIN_CHARS = 4


def tool(
    *, isolation: str | None = None, name: str | None = None, deadline_s: float | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Mark a function as a tool, as in the daemon's process; here its isolation is what it is.

    Args:
        isolation: ``task`` or ``thread``; not needed.
        name: the tool's name; the function's own by default.
        deadline_s: seconds after which a call is closed and its token cancelled; None for the configured deadline.
    """

    def mark(function: Callable[..., T]) -> Callable[..., T]:
        marked: Any = function
        marked.isolation, marked.tool_name, marked.deadline_s = isolation, name, deadline_s
        return function

    return mark


class HostTool:
    """A tool of the user's that is executed here, gated by the daemon.

    Args:
        function: a plain or an async function with a typed signature.

    Raises:
        Invalid: a parameter has no type, or one that a schema cannot describe.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_async = is_async(function)
        self.name = str(getattr(function, "tool_name", None) or getattr(function, "__name__", ""))
        self._hints: dict[str, Any] = {}
        self._given: dict[str, str] = {}
        self._secret: set[str] = set()
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = list(inspect.signature(function).parameters.values())
        except Exception as error:
            raise self._invalid("a signature that cannot be read", words(error)) from error
        properties, required = {}, []
        for parameter in parameters:
            name, hint = parameter.name, hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise self._invalid("a parameter that a schema cannot name", str(parameter))
            kind = getattr(_bare(hint), "__name__", "")
            if kind in ("CancelToken", "AsyncCancelToken"):
                self._given[name] = kind
                continue
            if name == "fence":
                self._given[name] = name
                continue
            if hint is None:
                raise self._invalid("a parameter without a type", name)
            if _is_secret(hint):
                self._secret.add(name)
            self._hints[name] = hint
            properties[name] = self._schema(name, hint)
            if parameter.default is parameter.empty:
                required.append(name)
            elif name not in self._secret:
                properties[name]["default"] = as_json(parameter.default)
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        description = inspect.getdoc(function) or ""
        self.offer = {"name": self.name, "description": description, "parameters": schema}
        # Fields of the frame of a call.
        self.frame: dict[str, Any] = {"description": description, "schema": schema}
        seconds = _seconds(getattr(function, "deadline_s", None))
        if seconds is not None:
            self.frame["deadline_s"] = seconds

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to record: a mark in place of each secret."""
        return {name: MARK if name in self._secret else value for name, value in arguments.items()}

    def without(self, arguments: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """Return a result with each of the call's secrets replaced by the mark."""
        secrets = sorted({text for name in self._secret for text in _texts(arguments.get(name))}, key=len, reverse=True)
        return dataclasses.replace(result, content=_hidden(result.content, secrets), data=_hidden(result.data, secrets))

    def execute(self, arguments: Mapping[str, Any], call: Call) -> Any:
        """Execute a call; an async tool of a plain agent has a loop of its own."""
        given: dict[str, Any] = {"fence": call.fence, "CancelToken": call.token, "AsyncCancelToken": call.token.aio}
        extra = {name: given[kind] for name, kind in self._given.items()}
        value = self.function(**self._converted(arguments), **extra)
        return _completed(value, call.token) if self.is_async and call.run.host.loop is None else value

    def _converted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        schema = typing.cast("Any", self.offer["parameters"])
        missing = [name for name in schema["required"] if name not in arguments]
        unknown = [name for name in arguments if name not in self._hints]
        if missing or unknown:
            what = f"it lacks {', '.join(missing)}" if missing else f"it has no {', '.join(unknown)}"
            raise Invalid(f"the arguments of {self.name} do not fit: {what}", expected=", ".join(self._hints))
        made = {}
        for name, value in arguments.items():
            try:
                made[name] = _convert(self._hints[name], value)
            except (TypeError, ValueError) as error:
                raise Invalid(f"the arguments of {self.name} do not fit: {name}: {error}") from None
        return made

    def _schema(self, name: str, hint: Any) -> dict[str, Any]:
        try:
            return _schema(hint)
        except TypeError as error:
            raise self._invalid("a parameter that a schema cannot describe", f"{name}: {error}") from None

    def _invalid(self, what: str, got: str) -> Invalid:
        return Invalid(
            f"the tool {self.name!r} has {what}",
            expected="named parameters of JSON's types, and of dataclasses and enums of them",
            got=got,
            remedy="take a str, a number, a list or a dict, and convert it in the tool",
        )


def _completed(coroutine: Any, token: CancelToken) -> Any:
    """Run a coroutine to its end, on a loop of its own, on this thread. The token's cancel cancels it once."""

    async def main() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "this is a task"
        forget = token._add_waker(functools.partial(loop.call_soon_threadsafe, tell, task, token._told))
        try:
            return await coroutine
        finally:
            forget()

    return asyncio.run(main())


def _texts(value: Any) -> list[str]:
    if isinstance(value, (list, dict)):
        return [text for one in (value.values() if isinstance(value, dict) else value) for text in _texts(one)]
    return [str(value)] if value is not None and len(str(value)) >= SECRET_MIN_CHARS else []


def _hidden(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return functools.reduce(lambda text, secret: text.replace(secret, MARK), secrets, value)
    if isinstance(value, list):
        return [_hidden(one, secrets) for one in value]
    if isinstance(value, dict):
        return {_hidden(key, secrets): _hidden(one, secrets) for key, one in value.items()}
    return MARK if value is not None and str(value) in secrets else value


_NAMED = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _is_secret(hint: Any, passed: tuple[int, ...] = ()) -> bool:
    """Return True if a mark is anywhere in a type: before Python 3.11 a default of None puts an Optional around it."""
    if id(hint) in passed:
        return False
    if getattr(hint, "__name__", type(hint).__name__) == Secret.__name__:
        return True
    fields = typing.get_type_hints(hint, include_extras=True).values() if dataclasses.is_dataclass(hint) else ()
    parts = (*typing.get_args(hint), *_extras(hint), *fields)
    return any(_is_secret(part, (*passed, id(hint))) for part in parts)


def _extras(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()


def _schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Raises TypeError if it has none."""
    described = next((extra for extra in _extras(hint) if isinstance(extra, str)), None)
    if described is not None:
        return {**_schema(_bare(hint)), "description": described}
    hint = _bare(hint)
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Any:
        return {}
    if hint is None or hint is type(None):
        return {"type": "null"}
    if origin in _UNIONS:
        return {"anyOf": [_schema(one) for one in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and inner[1:] == (...,)):
        return {"type": "array", "items": _schema(inner[0])} if inner else {"type": "array"}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(inner[1])} if inner else {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return {"enum": [as_json(member.value) for member in origin]}
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        hints = typing.get_type_hints(origin, include_extras=True)
        needed = [field.name for field in dataclasses.fields(origin) if _needed(field)]
        inside = {field.name: _schema(hints[field.name]) for field in dataclasses.fields(origin)}
        return {"type": "object", "properties": inside, "required": needed}
    if origin in _NAMED:
        return {"type": _NAMED[origin]}
    raise TypeError(f"no schema for {hint!r}")


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any) -> Any:
    """Convert JSON to a type that `_schema` describes. Raises TypeError or ValueError."""
    hint = _bare(hint)
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _UNIONS:
        for one in inner:
            with contextlib.suppress(TypeError, ValueError):
                return _convert(one, value)
        return _fits(value, False, " or ".join(getattr(one, "__name__", str(one)) for one in inner))
    if origin is typing.Literal:
        return _fits(value, value in inner, f"one of {inner}")
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(value)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        _fits(value, isinstance(value, dict), "an object")
        hints = typing.get_type_hints(origin, include_extras=True)
        unknown = sorted(set(value) - {field.name for field in dataclasses.fields(origin)})
        _fits(unknown, not unknown, "no further fields")
        return origin(**{name: _convert(hints[name], one) for name, one in value.items()})
    if origin in (list, tuple, set, frozenset, Sequence):
        _fits(value, isinstance(value, list), "an array")
        made = [_convert(inner[0] if inner else Any, one) for one in value]
        return made if origin in (list, Sequence) else origin(made)
    if origin in (dict, Mapping):
        _fits(value, isinstance(value, dict), "an object")
        return {key: _convert(inner[1] if inner else Any, one) for key, one in value.items()}
    return _convert_plain(origin, value)


def _convert_plain(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if kind is None or kind is type(None):
        return _fits(value, value is None, "null")
    if kind is float:
        _fits(value, isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
        return float(value)
    return _fits(value, type(value) is kind, _NAMED.get(kind, str(kind)))


def _fits(value: Any, fits: bool, expected: str) -> Any:
    if not fits:
        raise ValueError(f"expected {expected}, got {value!r:.80}")
    return value


# ── The host ──────────────────────────────────────────────────────────────────────────────────────


class CountingTask(asyncio.Task[Any]):
    """A task that counts its cancels, as tasks do from Python 3.11 on."""

    asked = 0

    def cancel(self, msg: Any = None) -> bool:
        """Count, and cancel."""
        self.asked += 1
        return super().cancel(msg)

    def cancelling(self) -> int:
        """Return how often it was cancelled."""
        return self.asked


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose tasks count their cancels, as the current one of this thread."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 11):
        loop.set_task_factory(lambda loop, coroutine: CountingTask(coroutine, loop=loop))
    return loop


class Host:
    """This process: it says `hello`, and then carries out one run at a time.

    Args:
        wire: to the daemon.
        spelled: the agent, ``module:function``.
        tools: tools to execute here, spelled likewise.
    """

    def __init__(self, wire: Wire, spelled: str, tools: Sequence[str]) -> None:
        self.wire = wire
        self._spelled = spelled
        self._spelled_tools = tools
        self.tools: dict[str, HostTool] = {}
        self.main = MainThread()
        # Of an async agent.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._run: Run | None = None
        # Of a plain agent. None: leave.
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._ended: tuple[Run | None, Any, BaseException | None] | None = None
        # Calls whose function is being executed, by the id of their `execute`.
        self.executing: dict[int, Call] = {}
        self.ready = False
        wire.handlers.update(
            {
                "run": self._on_run,
                "execute": self._on_execute,
                "$/cancel_request": self._on_cancel,
                "credit": self._on_credit,
                "ping": self._on_ping,
            }
        )

    def serve(self) -> None:
        """Load the agent, say `hello`, and carry out runs until the process is ended. Main thread."""
        signal.signal(signal.SIGINT, self.main.interrupt)
        hello: dict[str, Any] = {"protocol": [PROTOCOL], "runtime": f"python {sys.version.split()[0]}", "can": CAN}
        try:
            agent = self._load()
        except BaseException as error:  # noqa: BLE001  # whatever is raised, the daemon is told why
            traceback.print_exc()
            self._hello({**hello, "error": _why_broken(self._spelled, error)}, GOODBYE_S)
            _flush()
            os._exit(EXIT_BROKEN)
        offers = [tool.offer for tool in self.tools.values()]
        self._hello({**hello, "agent": {"async": self.loop is not None}, "tools": offers}, None)
        self._when_idle()
        if self.loop is None:
            self._serve_plain(agent)
        else:
            self._serve_async(self.loop, agent)

    def _load(self) -> Callable[..., Any]:
        """Import agent and tools, and let the agent's module prepare itself."""
        agent = _imported(self._spelled)
        for spelled in self._spelled_tools:
            made = HostTool(_imported(spelled))
            self.tools[made.name] = made
        if is_async(agent):
            # Made here and not before: the module may have chosen another kind of loop.
            self.loop = new_loop()
        prepare = getattr(sys.modules[self._spelled.partition(":")[0]], "prepare", None)
        if callable(prepare):
            prepared = prepare()
            if inspect.isawaitable(prepared):
                loop = self.loop
                asyncio.run(_awaited(prepared)) if loop is None else loop.run_until_complete(_awaited(prepared))
        return agent

    def _hello(self, params: Mapping[str, Any], timeout: float | None) -> None:
        answered: Future[None] = Future()

        def taken(_: Any, error: WireError | None) -> None:
            settle(answered, None) if error is None else fail(answered, error)
            self.ready = error is None

        self.wire.ask("hello", params, taken)
        try:
            answered.result(timeout)
        except WireError as error:
            print(f"countermand: the daemon refused this host: {error} {dict(error.data)}", file=sys.stderr)  # noqa: T201
            _flush()
            os._exit(EXIT_BROKEN)
        except Exception:  # noqa: BLE001  # it has not answered in time
            return

    # ── Frames; on the wire thread ──

    def _on_run(self, number: int | None, params: Mapping[str, Any]) -> None:
        if number is None:
            return
        if self._run is not None:
            data = {"code": "run_active", "expected": "one run at a time", "got": str(params.get("run"))}
            self.wire.refuse(number, REFUSED, "a run is active in this host", data)
            return
        run = self._run = Run(self, number, params)
        if self.loop is None:
            self._runs.put(run)
        else:
            self.loop.call_soon_threadsafe(self._begin, run)

    def _on_execute(self, number: int | None, params: Mapping[str, Any]) -> None:
        if number is None:
            return
        call = self._run.calls.get(params["of"]) if self._run is not None else None
        if call is None:
            self.wire.refuse(number, CANCELLED, "nobody waits for this call")
        else:
            call.executed(number, params)

    def _on_cancel(self, _: int | None, params: Mapping[str, Any]) -> None:
        number, why = params["requestId"], Provenance.of(params["why"])
        run = self._run
        if run is not None and run.number == number:
            run.token._cancel(why, lambda: self._tell(run))
            return
        call = self.executing.get(number)
        if call is not None:
            call.token._cancel(why)

    def _on_ping(self, number: int | None, _: Mapping[str, Any]) -> None:
        if number is not None:
            self.wire.answer(number, {})

    def _on_credit(self, _: int | None, params: Mapping[str, Any]) -> None:
        run = self._run
        if run is not None and run.fence == params["fence"]:
            run.credit.give(params["events"], params["bytes"])

    def _tell(self, run: Run) -> None:
        """Tell the agent that its run is cancelled."""
        if self.loop is None:
            self.main.urge()
        else:
            told = run.token._told
            self.loop.call_soon_threadsafe(lambda: None if run.task is None else tell(run.task, told))

    # ── An async agent; on the main thread ──

    def _serve_async(self, loop: asyncio.AbstractEventLoop, agent: Callable[..., Any]) -> None:
        self._agent = agent
        while True:
            # A task that raises SystemExit ends the loop's run, and nothing else.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
            ended, self._ended = self._ended, None
            if ended is not None:
                self._end(*ended, cancelled=True)

    def _begin(self, run: Run) -> None:
        """Begin a run. On the loop."""
        self._when_busy()
        loop = typing.cast("asyncio.AbstractEventLoop", self.loop)

        async def body() -> Any:
            run.token.raise_if_cancelled()
            try:
                return await self._agent(AsyncTurn(run))
            except (SystemExit, KeyboardInterrupt) as error:
                # The loop would end by it.
                raise _Exited(error) from None

        run.task = loop.create_task(body())
        run.task.add_done_callback(functools.partial(self._returned, run))

    def _returned(self, run: Run, task: asyncio.Task[Any]) -> None:
        """Take note that the agent's function has ended. On the loop."""
        try:
            value, error = task.result(), None
        except _Exited as exited:
            value, error = None, exited.error
        except BaseException as raised:  # noqa: BLE001  # every end of an agent is answered
            value, error = None, raised
        if run.token.cancelled:
            typing.cast("Any", self.loop).create_task(self._close(run, value, error))
        else:
            self._end(run, value, error, cancelled=False)

    async def _close(self, run: Run | None, value: Any, error: BaseException | None) -> None:
        """End what an agent has left on the loop, then leave the loop."""
        loop = asyncio.get_running_loop()
        told = weakref.WeakSet() if run is None else run.token._told
        while rest := asyncio.all_tasks() - {typing.cast("Any", asyncio.current_task())}:
            for task in rest:
                # Who has heard of it cleans up, and is not cut.
                if not getattr(task, "cancelling", int)():
                    tell(task, told)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(rest)
        with contextlib.suppress(asyncio.CancelledError):
            await loop.shutdown_asyncgens()
        # Functions for the exit may run a loop of their own.
        self._ended = (run, value, error)
        loop.stop()

    # ── A plain agent; on the main thread ──

    def _serve_plain(self, agent: Callable[..., Any]) -> None:
        while True:
            run = self._runs.get()
            if run is None:
                self._end(None, None, None, cancelled=True)
                continue
            self._when_busy()
            call = functools.partial(contextvars.copy_context().run, agent, Turn(run))
            self._end(run, *self.main.attempt(run.token, call), cancelled=run.token.cancelled)

    # ── The end of a run ──

    def _end(self, run: Run | None, value: Any, error: BaseException | None, *, cancelled: bool) -> None:
        """Answer a run; None: leave. On the main thread, outside of the agent's code."""
        if cancelled:
            _run_exit_functions()
        else:
            self._when_idle()
        if run is None:
            _flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        try:
            frame = line(id=run.number, **_answer(run, value, error))
        except BaseException as failed:  # noqa: BLE001  # the value is a foreign object
            frame = line(id=run.number, **_answer(run, None, failed))
        _flush()
        self._run = None
        self.wire.write(frame)
        run.token._cancel(Provenance("run.ended", "this run is over"))

    def _when_idle(self) -> None:
        """Leave in good order at SIGTERM: what exporters hold is flushed."""
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._leave)

    def _when_busy(self) -> None:
        """Die at SIGTERM, as any process."""
        if signal.getsignal(signal.SIGTERM) == self._leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _leave(self, _signal: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.loop is None:
            self._runs.put(None)
        else:
            loop = self.loop
            loop.call_soon_threadsafe(lambda: loop.create_task(self._close(None, None, None)))


def _run_exit_functions() -> None:
    """Run what is registered with `atexit`; but processes of `multiprocessing` are not joined, no more than threads."""
    util: Any = sys.modules.get("multiprocessing.util")
    try:
        if util is not None:
            atexit.unregister(util._exit_function)
        atexit._run_exitfuncs()
        if util is not None:
            util._exit_function(active_children=list)
    except BaseException:  # noqa: BLE001  # the answer follows
        traceback.print_exc()


class _Exited(Exception):
    """The agent raised SystemExit or KeyboardInterrupt."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _answer(run: Run, value: Any, error: BaseException | None) -> dict[str, Any]:
    """Return the answer to a run, as a part of its frame."""
    if error is None:
        return {"result": {"value": bounded_json(value)}}
    if isinstance(error, asyncio.CancelledError) and run.token.cancelled:
        data = as_json({"provenance": run.token.provenance})
        return {"error": {"code": CANCELLED, "message": "cancelled", "data": data}}
    traceback.print_exception(type(error), error, error.__traceback__)
    text = words(error)
    data = {"type": type(error).__name__, "message": text.partition(": ")[2]}
    return {"error": {"code": RAISED, "message": text, "data": data}}


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _imported(spelled: str) -> Callable[..., Any]:
    """Import a function by its spelling, ``module:function``."""
    module, _, name = spelled.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise Invalid(f"{spelled} is not a function", got=type(found).__name__)
    return typing.cast("Callable[..., Any]", found)


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling `function` returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may have an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _why_broken(spelled: str, error: BaseException) -> str:
    """Return why the agent cannot be loaded: the error, and the last line of code that it came from."""
    ours = (__file__, importlib.__file__)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename not in ours]
    frames = [one for one in frames if not one.filename.startswith("<frozen")]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{words(error)}{where}, when {spelled} was loaded"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


_host: Host | None = None


def log(text: str, level: str = "info", **fields: Any) -> None:
    """Write a line to the daemon's own log. Before the daemon knows this host, it goes to stderr. Any thread.

    Args:
        text: at most 8 KiB are kept.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        fields: shown behind the text.
    """
    if _host is not None and _host.ready:
        _host.wire.note("log", {"level": level, "text": storable(str(text)), "fields": as_json(fields)})
    else:
        print(level, text, fields or "", file=sys.stderr)  # noqa: T201


PUBLIC = (
    Address,
    AsyncCancelToken,
    AsyncTurn,
    CancelToken,
    CountermandError,
    Invalid,
    Message,
    Provenance,
    Refused,
    RunCancelled,
    Secret,
    ToolCall,
    ToolResult,
    Turn,
    log,
    tool,
)


def publish() -> None:
    """Make `from countermand import Turn, …` work in this process.

    What is asked for and is not here comes from the package of that name that is installed, if one is.
    """
    module = types.ModuleType("countermand", __doc__)
    module.__spec__ = importlib.machinery.ModuleSpec("countermand", None)
    for one in PUBLIC:
        one.__module__ = "countermand"
        setattr(module, one.__name__, one)
    module.__all__ = [one.__name__ for one in PUBLIC]  # type: ignore[attr-defined]  # modules have no declared one
    module.__getattr__ = _installed  # type: ignore[method-assign]  # PEP 562
    sys.modules["countermand"] = module


def _installed(name: str) -> Any:
    if not name.startswith("__"):
        package = _installed_package()
        if package is not None:
            return getattr(package, name)
    raise AttributeError(f"module 'countermand' has no attribute {name!r}")


@functools.cache
def _installed_package() -> types.ModuleType | None:
    spec = importlib.machinery.PathFinder.find_spec("countermand")
    if spec is None or spec.loader is None:
        return None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


def main(arguments: Sequence[str]) -> None:
    """Start this process as a host."""
    global _host  # noqa: PLW0603  # one process is one host
    channel = os.environ.pop(CHANNEL, "")
    targets = list(arguments)
    tools = []
    while "--tool" in targets[1:]:
        place = targets.index("--tool", 1)
        tools += targets[place + 1 : place + 2]
        del targets[place : place + 2]
    if not channel.isdigit() or len(targets) != 1 or not all(":" in one for one in (*targets, *tools)):
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_USAGE)
    os.set_inheritable(int(channel), False)
    sock = socket.socket(fileno=int(channel))
    sock.setblocking(True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            typing.cast("Any", stream).reconfigure(line_buffering=True, errors="backslashreplace")
    if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.dirname(os.path.realpath(__file__)):
        # The folder of this file: its modules are not the agent's.
        del sys.path[0]
    sys.path[:0] = [*filter(None, os.environ.pop(PATH, "").split(os.pathsep)), os.getcwd()]
    sys.argv = [targets[0]]
    wire = Wire(sock)
    _host = Host(wire, targets[0], tools)
    wire.start()
    _host.serve()


if __name__ in ("__main__", "__mp_main__"):
    # The second name: a process that multiprocessing spawns imports this file first, then the agent's module.
    publish()
if __name__ == "__main__":
    main(sys.argv[1:])
