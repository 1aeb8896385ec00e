"""Countermand's core: the actor system and the protocol. It knows nothing of a daemon or a database.

The map, from the outside in; imports point down only:

    session.py     SessionActor: carries out what the protocol decides, batch by batch
    late_stops.py  Stops that the store does not have yet, and the answers that wait
    run.py         RunActor: the agent's execution, its calls, its deadline
    tool.py        ToolActor: one call, its cell and its processes
    process.py     ProcessActor: one process tree
    protocol.py    the decisions of a session: requests from outside, and taking a session up again
    owned.py       process trees that belong to the session
    lifecycle.py   how runs begin and end: fence, close, settle
    reports.py     what an open run says and asks: text, steering, calls, processes
    state.py       what all decisions rest on: the state, the log, acceptance, the barrier
    agent.py       Turn and AsyncTurn: what an agent's function is given
    execution.py   how a call passes its cell
    plugins.py     agents and tools as functions
    secrets.py     arguments that a tool alone sees
    notes.py       what the model is told of an interruption
    record.py      what a session knows of one run, and its receipt
    waiting.py     messages that wait
    requests.py    request ids and their answers
    step.py        what one turn of a mailbox decided
    spawning.py    `spawn`, for tools
    base.py        Actor: watch, Down, every way out
    mailbox.py dispatcher.py future.py registry.py   two lanes; the pool; replies; Pykka's registry
    thread.py      the thread: the fold of a session's log
    rendering.py   a thread as model providers take it
    credit.py pending.py text.py   flow control; replies that a cancel ends; text that can be stored
    ports.py       what is not deterministic, and what the core needs from outside
    dead_letters.py   replies that came too late
    log_context.py   what the lines of the log of an agent or a tool are about; it is off until a program turns it on
    handling.py    threads that may not wait
    messages.py    every message
    cancel.py      CancelToken, Cell
    model.py errors.py   the nouns; what is refused, and why
"""

from actors.agent import AsyncTurn, Turn
from actors.cancel import AsyncCancelToken, CancelToken
from actors.errors import (
    AgentUnavailable,
    AheadOfLog,
    BlockingAskError,
    CountermandError,
    Invalid,
    NotFound,
    Quarantined,
    QueueFull,
    ReceiptPending,
    RequestReused,
    RequestTooOld,
    RunActive,
    RunCancelled,
    ShuttingDown,
    StateDirBusy,
    StoreUnavailable,
    TooLarge,
)
from actors.log_context import be_quiet
from actors.messages import (
    Accepted,
    Answer,
    Delete,
    Deleted,
    NewMessage,
    Resume,
    Resumed,
    Stop,
    Stopped,
    ToolResult,
    Withdraw,
    Withdrawn,
)
from actors.model import (
    Event,
    How,
    Message,
    Mode,
    Outcome,
    Owner,
    Policy,
    Provenance,
    Receipt,
    Row,
    RunInfo,
    RunStatus,
    Scope,
    SessionStatus,
    Waiting,
)
from actors.process import ProcessActor
from actors.rendering import render_anthropic, render_openai
from actors.run import RunActor
from actors.secrets import Secret
from actors.session import SessionActor
from actors.spawning import AsyncProcess, AsyncSpawn, Exit, Process, Spawn
from actors.tool import ToolActor

# Last: the import of the module actors/tool.py binds its name here, and the public name is the decorator's.
from actors.plugins import Tool, tool  # isort: skip

be_quiet()

__all__ = [
    "Accepted",
    "AgentUnavailable",
    "AheadOfLog",
    "Answer",
    "AsyncCancelToken",
    "AsyncProcess",
    "AsyncSpawn",
    "AsyncTurn",
    "BlockingAskError",
    "CancelToken",
    "CountermandError",
    "Delete",
    "Deleted",
    "Event",
    "Exit",
    "How",
    "Invalid",
    "Message",
    "Mode",
    "NewMessage",
    "NotFound",
    "Outcome",
    "Owner",
    "Policy",
    "Process",
    "ProcessActor",
    "Provenance",
    "Quarantined",
    "QueueFull",
    "Receipt",
    "ReceiptPending",
    "RequestReused",
    "RequestTooOld",
    "Resume",
    "Resumed",
    "Row",
    "RunActive",
    "RunActor",
    "RunCancelled",
    "RunInfo",
    "RunStatus",
    "Scope",
    "Secret",
    "SessionActor",
    "SessionStatus",
    "ShuttingDown",
    "Spawn",
    "StateDirBusy",
    "Stop",
    "Stopped",
    "StoreUnavailable",
    "TooLarge",
    "Tool",
    "ToolActor",
    "ToolResult",
    "Turn",
    "Waiting",
    "Withdraw",
    "Withdrawn",
    "render_anthropic",
    "render_openai",
    "tool",
]
