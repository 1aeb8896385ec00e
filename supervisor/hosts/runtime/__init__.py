"""What runs in the host of a Python agent; there it is the package `countermand`, from which agents import.

The map, from the outside in:

    host.py          Host: this process; `hello`, one run after another, and how it ends
    loading.py       the functions that it was started for
    turn.py          Turn and AsyncTurn: the argument of an agent
    answers.py       the answer of a model, as it is put on record
    files.py         files that tools and models make
    attachments.py   the bytes of files, read from the daemon
    tools.py         the user's tools, which are executed here
    schema.py        the types of their parameters, as JSON schema and as conversion
    emitting.py      what a tool says while it runs
    spawning.py      processes that the daemon starts for the agent or a tool
    pipes.py         the pipes to them
    run.py call.py   a run, and a call that its agent asks for
    thread.py        the messages of a run
    rendering.py     those messages, and tools, as providers want them
    credit.py        limits the output that is not durable yet
    main_thread.py   where a signal interrupts a plain agent
    wakeup.py        what ends the wait of an idle main thread
    guard.py         guards: each asks the daemon whether an effect may begin
    token.py         cancel tokens, and the cancellation of async code
    wire.py          frames over the socket
    daemon_log.py    the daemon's own log
    configured.py    the MCP servers that this host is configured with
    shared.py        files that the daemon's process has too
    tls.py           TLS, which is imported when something first uses it
    plain.py         foreign objects to plain JSON
    values.py errors.py   the values and errors that an agent gets
    programs/ models/   agents that are programs of other people's, or a model: `Agent(preset=…)`
    adapters/        agents that are written with a framework

Theory of operation. The *wire thread* reads frames and acts on them at once, whatever the agent does: it sets tokens,
gives credit, answers `ping`. The *main thread* has the agent. An async one has one event loop for the life of the
process, so that clients bound to a loop live on in a host that is kept; a plain one is called. Any thread that sends a
frame writes it itself, under the lock of the wire.

Each task, or the main thread, is notified once of a run's end. The wire thread sets the token first. Then it notifies
the agent, and last it fails the futures that the methods of the turn ("doors") wait for. After that each door raises,
every time the agent calls one (law L8).

- Async. The notification is a callback on the loop, which cancels the agent's task, unless a door has raised in that
  task before. A door of another task waits until that has happened, and for a few more turns of the loop: a cancelled
  task group cancels its tasks, and would interrupt the clean-up of a task in which a door had raised. When the agent's
  function has ended, each other task that was not notified is cancelled once. Then async generators are closed, and the
  functions registered with `atexit` are run; then the host answers.
- Plain. The notification is a signal to the main thread, whose handler raises RunCancelled. That ends a read, a sleep
  or a wait. The handler raises only in the agent's own code. In a door it does nothing, since half a frame may be
  written: the door checks the token on its way out. The order of these steps closes the races: the token is set before
  the signal is sent; a door is first left, and then checks. A signal that comes just before a system call does not
  interrupt it, so it is repeated until the agent was notified.

Between two runs SIGTERM ends the process in good order, as a run's cancel does: functions registered with `atexit` are
run. For the same race, an idle main thread waits for a descriptor to which each signal writes (`wakeup.py`).

What is started here (threads, processes) is below the daemon's warden, and is ended and proven by it. So nothing is
joined here, and the end of the socket is `os._exit`.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import types
from typing import Any

from . import tls  # noqa: F401  # the first of these: the others import asyncio
from .answers import AsyncModelAnswer, AsyncModelCall, ModelAnswer, ModelCall
from .daemon_log import log
from .emitting import AsyncEmit, Emit
from .errors import CountermandError, Invalid, QueueFull, Refused, RunCancelled
from .rendering import (
    offer_anthropic,
    offer_openai,
    offer_responses,
    render_anthropic,
    render_openai,
    render_responses,
)
from .schema import Secret
from .spawning import AsyncProcess, AsyncSpawn, Exit, Process, Spawn
from .token import AsyncCancelToken, CancelToken
from .tools import Tool, tool
from .turn import AsyncTurn, Turn
from .values import (
    Address,
    AnswerInfo,
    BlockPart,
    CallPart,
    Delegated,
    File,
    MediaPart,
    Message,
    Provenance,
    TextPart,
    ToolCall,
    ToolResult,
)

__all__ = [
    "Address",
    "AnswerInfo",
    "AsyncCancelToken",
    "AsyncEmit",
    "AsyncModelAnswer",
    "AsyncModelCall",
    "AsyncProcess",
    "AsyncSpawn",
    "AsyncTurn",
    "BlockPart",
    "CallPart",
    "CancelToken",
    "CountermandError",
    "Delegated",
    "Emit",
    "Exit",
    "File",
    "Invalid",
    "MediaPart",
    "Message",
    "ModelAnswer",
    "ModelCall",
    "Process",
    "Provenance",
    "QueueFull",
    "Refused",
    "RunCancelled",
    "Secret",
    "Spawn",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Turn",
    "log",
    "offer_anthropic",
    "offer_openai",
    "offer_responses",
    "render_anthropic",
    "render_openai",
    "render_responses",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Return a name that is not here from the package `countermand` that is installed, if one is."""
    # `from . import x` asks for a module of this package here before it imports it.
    own = os.path.join(os.path.dirname(__file__), name)
    is_own = name.startswith("__") or os.path.exists(f"{own}.py") or os.path.isdir(own)
    package = None if is_own else _installed()
    if package is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(package, name)


@functools.cache
def _installed() -> types.ModuleType | None:
    spec = importlib.machinery.PathFinder.find_spec("countermand")
    if spec is None or spec.loader is None:
        return None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package
