"""Countermand's core: the actor system and the protocol. It knows nothing of a daemon or a database.

The map, from the outside in. Rooms import downward only, and each has a map of its own:

    hierarchy/   the four actors, and the Stops that the store does not have yet
    protocol/    the decisions of a session: pure, without a mailbox or a thread
    plugin/      the interface for the code of agents and tools, and how that code is run
    gate/        cells and tokens: the objects on which a fence acts without waiting
    kernel/      the base of every actor: mailbox, dispatcher, future, registry; nothing of sessions
    messages/    messages between the actors, and from the ports; a file for each receiver

    requests.py  requests from outside and their answers
    ports.py     interfaces for everything that is not deterministic or comes from outside
    hosts.py     hosts: the port to them, and the agents that run in them
    thread.py    the thread: the fold of a session's log
    saved.py     what agents save for later runs: a fold of it, too
    events.py    the schema of the log: each kind of event, and the fields of its data
    dead_letters.py   reports that came too late
    ids.py text.py secrets.py   request ids; storable and safe text; secret arguments
    attachments.py   files, and the bytes that are kept with a session
    agent_choice.py   the agent that a session has
    usage.py     what a run has used, and how much of it a run may use
    model.py parts.py questions.py   the nouns; the parts of messages; what calls ask a person
    run_status.py errors.py   the status of a run, and how it may change; the errors
    decoding.py  decodes what has a type, on any thread
"""

from actors.attachments import File
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
    Refused,
    RequestReused,
    RequestTooOld,
    RunActive,
    RunCancelled,
    ShuttingDown,
    StateDirBusy,
    StoreUnavailable,
    TooLarge,
)
from actors.events import EventKind, data_of
from actors.gate.token import AsyncCancelToken, CancelToken
from actors.hierarchy.process import ProcessActor
from actors.hierarchy.run import RunActor
from actors.hierarchy.session import SessionActor
from actors.hierarchy.tool import ToolActor
from actors.kernel.log_context import be_quiet
from actors.messages import ToolResult
from actors.model import (
    Barrier,
    Effect,
    Event,
    Fate,
    How,
    Isolation,
    Message,
    Mode,
    Outcome,
    Owner,
    PartKind,
    Policy,
    Provenance,
    Receipt,
    ReturnReason,
    Row,
    RunInfo,
    RunParent,
    Scope,
    SessionActivity,
    SessionStatus,
    StopOutcome,
    Waiting,
    WithdrawOutcome,
)
from actors.parts import AnswerInfo, BlockPart, CallPart, MediaPart, TextPart
from actors.plugin.answers import AsyncModelAnswer, AsyncModelCall, ModelAnswer, ModelCall
from actors.plugin.delegation import Delegated
from actors.plugin.emitting import AsyncEmit, Emit
from actors.plugin.offering import offer_anthropic, offer_openai, offer_responses
from actors.plugin.registration import Tool, tool
from actors.plugin.rendering import render_anthropic, render_openai, render_responses
from actors.plugin.spawning import AsyncProcess, AsyncSpawn, Exit, Process, Spawn
from actors.plugin.turn import AsyncTurn, Turn
from actors.questions import Asking
from actors.requests import (
    Accepted,
    Answer,
    Answered,
    Delete,
    Deleted,
    NewMessage,
    Resume,
    Resumed,
    Stop,
    Stopped,
    Withdraw,
    Withdrawn,
)
from actors.run_status import RunStatus
from actors.secrets import Secret

be_quiet()

__all__ = [
    "Accepted",
    "AgentUnavailable",
    "AheadOfLog",
    "Answer",
    "AnswerInfo",
    "Answered",
    "Asking",
    "AsyncCancelToken",
    "AsyncEmit",
    "AsyncModelAnswer",
    "AsyncModelCall",
    "AsyncProcess",
    "AsyncSpawn",
    "AsyncTurn",
    "Barrier",
    "BlockPart",
    "BlockingAskError",
    "CallPart",
    "CancelToken",
    "CountermandError",
    "Delegated",
    "Delete",
    "Deleted",
    "Effect",
    "Emit",
    "Event",
    "EventKind",
    "Exit",
    "Fate",
    "File",
    "How",
    "Invalid",
    "Isolation",
    "MediaPart",
    "Message",
    "Mode",
    "ModelAnswer",
    "ModelCall",
    "NewMessage",
    "NotFound",
    "Outcome",
    "Owner",
    "PartKind",
    "Policy",
    "Process",
    "ProcessActor",
    "Provenance",
    "Quarantined",
    "QueueFull",
    "Receipt",
    "ReceiptPending",
    "Refused",
    "RequestReused",
    "RequestTooOld",
    "Resume",
    "Resumed",
    "ReturnReason",
    "Row",
    "RunActive",
    "RunActor",
    "RunCancelled",
    "RunInfo",
    "RunParent",
    "RunStatus",
    "Scope",
    "Secret",
    "SessionActivity",
    "SessionActor",
    "SessionStatus",
    "ShuttingDown",
    "Spawn",
    "StateDirBusy",
    "Stop",
    "StopOutcome",
    "Stopped",
    "StoreUnavailable",
    "TextPart",
    "TooLarge",
    "Tool",
    "ToolActor",
    "ToolResult",
    "Turn",
    "Waiting",
    "Withdraw",
    "WithdrawOutcome",
    "Withdrawn",
    "data_of",
    "offer_anthropic",
    "offer_openai",
    "offer_responses",
    "render_anthropic",
    "render_openai",
    "render_responses",
    "tool",
]
