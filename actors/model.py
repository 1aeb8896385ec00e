"""The nouns: addresses, provenance, receipts, messages of a thread, events, and the words that these are made of.

Everything here is a value: frozen, comparable, and stored by msgspec without conversion. The file has over 600 lines,
and is whole: the nouns are made of one another.
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, field

from actors.errors import Invalid
from actors.parts import AnswerInfo, Part
from actors.questions import Asking
from actors.run_status import RunStatus
from actors.usage import Usage

# JSON as msgspec decodes it. The one `Any` at a boundary: clients and tools choose the content.
Json = Any
JsonObject = dict[str, Any]


class Extensible(StrEnum):
    """A set of words that a later version may extend, and that is stored within larger documents.

    A word that this version does not know is read as `OTHER`, which each such set has. So a store of a later version
    does not make a whole receipt or event unreadable here.
    """

    @classmethod
    def _missing_(cls, value: object) -> Extensible | None:
        return cls.__members__["OTHER"] if isinstance(value, str) else None


class Policy(StrEnum):
    """What a new message does to an active run."""

    INTERRUPT = "interrupt"
    """It ends the run, and starts the next one."""
    ENQUEUE = "enqueue"
    """It waits until the run has ended."""
    STEER = "steer"
    """It waits, and the run may ask for it; else it starts the next run."""
    REJECT = "reject"
    """It is refused."""
    ROLLBACK = "rollback"
    """It ends the run as `interrupt` does, and the run's messages are retracted."""


SUPERSEDING: Final = frozenset({Policy.INTERRUPT, Policy.ROLLBACK})


class Scope(StrEnum):
    """How far a Stop reaches."""

    RUN = "run"
    """It ends the run, and all that the run started."""
    SESSION = "session"
    """It ends the session's own processes too."""


class Owner(StrEnum):
    """The owner of a process tree."""

    RUN = "run"
    """The tree ends with its run."""
    SESSION = "session"
    """The tree lives until the session ends it."""


class Mode(StrEnum):
    """How a Stop ends processes."""

    GRACEFUL = "graceful"
    """It asks first, and kills after a grace."""
    IMMEDIATE = "immediate"
    """It kills at once."""


class Waiting(StrEnum):
    """What a Stop does with waiting messages."""

    WITHDRAW = "withdraw"
    """They are returned to their senders."""
    PARK = "park"
    """They wait for the next message, or for a Resume."""
    KEEP = "keep"
    """They stay, and start the next run."""


class Fate(StrEnum):
    """What became of a message that no longer waits."""

    INPUT = "input"
    """A run has it, and it is in the thread."""
    RETURNED = "returned"
    """It was returned to its sender, and never became an input."""


class ReturnReason(Extensible):
    """Why a message was returned to its sender."""

    WITHDRAWN = "withdrawn"
    """A Withdraw, a Stop or the end of its run withdrew it."""
    STOPPED_BEFORE_ARRIVAL = "stopped_before_arrival"
    """Its sender sent a Stop after it, and that Stop arrived first."""
    OTHER = "other"
    """A reason that this version does not know."""


class WithdrawOutcome(StrEnum):
    """What a Withdraw did."""

    WITHDRAWN = "withdrawn"
    """The message waited, and was returned."""
    ALREADY_INPUT = "already_input"
    """A run has the message: nothing was done."""
    ALREADY_RETURNED = "already_returned"
    """The message was returned before: nothing was done."""


class Isolation(StrEnum):
    """Where the code of an agent or a tool runs."""

    TASK = "task"
    """An async function: a task on the executor's event loop. It can be cancelled."""
    THREAD = "thread"
    """A plain function: a thread of its own, which has to check its token."""
    PROCESS = "process"
    """A process of its own, which is killed with the call."""
    HOST = "host"
    """The host of the agent, or code of the agent that brought the tool along, executes it."""


class Where(StrEnum):
    """Which side executes a call."""

    DAEMON = "daemon"
    """The supervisor: in its own process, or in one that it starts for the call."""
    HOST = "host"
    """The host of the agent that asks for it."""


class Barrier(StrEnum):
    """What calls do while a part of an earlier run goes on after its kill deadline."""

    FORCED = "forced"
    """They start; the log says which parts they no longer wait for."""
    STRICT = "strict"
    """They are refused."""


class Outcome(StrEnum):
    """How a call ended."""

    NOT_STARTED = "not_started"
    """It never ran."""
    INTERRUPTED = "interrupted"
    """It was interrupted, and may have had effects."""
    FINISHED = "finished"
    """It ran to its end."""


class StopOutcome(StrEnum):
    """What a Stop did."""

    STOPPED = "stopped"
    """It ended a run, or process trees of the session."""
    STOPPING = "stopping"
    """It joined the end of a run that was ending already."""
    NOTHING_RUNNING = "nothing_running"
    """It found nothing that it had to end."""
    ALREADY_OVER = "already_over"
    """The run that it was aimed at had ended before."""
    UNKNOWN = "unknown"
    """The session could not be read yet. The Stop holds, and is decided when the session is read."""


class SessionActivity(StrEnum):
    """What a session is doing."""

    IDLE = "idle"
    """No run is active, and none is ending."""
    RUNNING = "running"
    """A run is active."""
    CANCELLING = "cancelling"
    """No run is active, and parts of an earlier run are being ended."""
    STORE_FAILED = "store_failed"
    """The store does not take what the session decides: until it does, the session starts nothing."""
    QUARANTINED = "quarantined"
    """It failed too often: until the supervisor is restarted it accepts Stop and nothing else."""


class ServicePhase(StrEnum):
    """How far the supervisor is with its shutdown."""

    SERVING = "serving"
    """No shutdown: new work is accepted."""
    DRAINING = "draining"
    """New work is refused, and runs have time to end by themselves."""
    INTERRUPTING = "interrupting"
    """The runs that were left are being ended."""


class CallState(StrEnum):
    """The state of a call on record, in its order. A call may end from each of them."""

    REQUESTED = "requested"
    """The agent asked for it; it waits for the barrier."""
    WAITING = "waiting"
    """It waits for a person's answer."""
    GRANTED = "granted"
    """It may start."""
    STARTED = "started"
    """It passed its gate: from here on it may have effects."""
    ENDED = "ended"
    """It has its one result."""


class TreeState(StrEnum):
    """The state of a process tree on record."""

    GRANTED = "granted"
    """It may be spawned, or live."""
    ENDED = "ended"
    """Its end is known."""


class PartKind(Extensible):
    """What a part of a run is. `STRAYS` are those that code of the run started in the supervisor's own process."""

    AGENT = "agent"
    """The execution of its agent."""
    CALL = "call"
    """The execution of a tool call."""
    PROCESS = "process"
    """A process tree that a tool spawned, or a process of one."""
    SUBPROCESS = "subprocess"
    """A stray: a process."""
    THREAD = "thread"
    """A stray: a thread."""
    TASK = "task"
    """A stray: a task of an event loop."""
    REMOTE = "remote"
    """What a command such as ``ssh`` may have left running out of reach."""
    RUN = "run"
    """A child run: another agent, in a session of its own."""
    OTHER = "other"
    """A kind that this version does not know."""


STRAYS: Final = frozenset({PartKind.SUBPROCESS, PartKind.THREAD, PartKind.TASK})


class Role(StrEnum):
    """Who speaks in a message of a thread."""

    USER = "user"
    """A person, or a client."""
    ASSISTANT = "assistant"
    """The agent."""
    TOOL = "tool"
    """A tool: the result of a call."""
    NOTE = "note"
    """The supervisor: what became of a run, for the model."""


class MessageStatus(StrEnum):
    """Whether a message of a thread is whole."""

    COMPLETE = "complete"
    """It is whole."""
    PARTIAL = "partial"
    """It was cut off."""
    RETRACTED = "retracted"
    """A rollback took it back."""


class Address(Struct, frozen=True):
    """The origin of a report. The report is accepted only while its run, generation and call are open (law L1).

    `generation` is the fencing token. `call` is None for reports of the agent itself.
    """

    session: str
    generation: int
    run: str
    call: str | None = None

    def of_call(self, call: str) -> Address:
        """Return the address of a call of this run."""
        return Address(self.session, self.generation, self.run, call)

    @property
    def log_context(self) -> dict[str, object]:
        """The names of session, run, generation and call, for log lines."""
        named = {"session": self.session, "run": self.run, "generation": self.generation}
        return {**named, "call": self.call} if self.call is not None else named

    @property
    def fence(self) -> str:
        """The fencing token as a tool sees it: ``session:generation:call``."""
        return f"{self.session}:{self.generation}:{self.call or ''}"


OUTSIDE_SOURCES: Final = ("user.", "client.")
INSIDE_SOURCES: Final = frozenset(
    {
        "session.new_message",
        "session.deleted",
        "run.deadline",
        "run.stalled",
        "run.budget",
        "run.ended",
        "call.given_up",
        "tool.deadline",
        "tool.kill",
        "host.retired",
        "actor.failure",
        "store.failure",
        "supervisor.shutdown",
        "supervisor.recovery",
    }
)
_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
FAILURES: Final = frozenset({"actor.failure", "store.failure", "supervisor.recovery"})
"""Sources of ends that were not requested, and that end everything open in a session."""


@functools.lru_cache(maxsize=256)
def _check_source(source: str) -> None:
    """Raise Invalid unless the source is one from outside, or has the form of one from inside.

    It need not be in `INSIDE_SOURCES`: what a later version has stored is read here too.
    """
    words = source.split(".")
    outside = source.startswith(OUTSIDE_SOURCES) and all(words)
    inside = len(words) > 1 and all(_WORD.fullmatch(word) for word in words)
    if not (outside or inside) or len(source) > 100:
        raise Invalid(
            "unknown source of a stop",
            expected="'user.<interface>' or 'client.<name>', dotted, at most 100 characters",
            got=repr(source),
            remedy="name the interface through which the stop came, such as 'user.console'",
        )


class Provenance(Struct, frozen=True):
    """Who ended something, and why (law L5). It cannot be empty.

    `initiated_at` is when that was requested, in seconds since the epoch, UTC. `reason` is for people; no code depends
    on it. `cause` is the earlier provenance, if one end led to another.
    """

    source: str
    reason: str
    mode: Mode = Mode.GRACEFUL
    requested_by: str | None = None
    initiated_at: float = 0.0
    cause: Provenance | None = None

    def __post_init__(self) -> None:
        _check_source(self.source)
        if not self.reason.strip():
            raise Invalid(
                "a provenance needs a reason",
                expected="a non-empty text",
                got=repr(self.reason),
                remedy="say in a few words why this was ended",
            )


class How(Extensible):
    """How one part of a run ended, in a receipt."""

    RETURNED = "returned"
    """An agent or a call returned."""
    RAISED = "raised"
    """An agent or a call raised an error."""
    CANCELLED = "cancelled"
    """An agent or a call was cancelled, and ended at its cancel."""
    EXIT = "exit"
    """A process exited by itself."""
    SIGTERM = "sigterm"
    """A process was asked to end, and did."""
    SIGKILL = "sigkill"
    """A process was killed."""
    ABANDONED = "abandoned"
    """It could not be ended in time, and may still be running."""
    OUT_OF_REACH = "out_of_reach"
    """What may be left of it cannot be seen."""
    NOT_STARTED = "not_started"
    """It never began."""
    HANDED_OVER = "handed_over"
    """The session owns it since then: it is no longer a part of this run."""
    GONE = "gone"
    """Its end is proven, but not how it ended.

    Either a process's own parent read its status, or an agent or a call was lost with its supervisor.
    """
    OTHER = "other"
    """A way that this version does not know."""


class Signalled(Struct, frozen=True):
    """A signal that was sent, and when (seconds since the epoch, UTC)."""

    signal: str
    at: float
    error: str | None = None


class Effect(Struct, frozen=True):
    """An effect behind guards of this name: how often it has begun, and how often the block was left without an error.

    What has begun and is not done may have taken place all the same, in part or whole.
    """

    name: str
    begun: int = 1
    done: int = 0

    def __str__(self) -> str:
        """Return a phrase for people and models."""
        if self.begun == 1:
            return f"{self.name} ({'done' if self.done else 'not known to be done'})"
        return f"{self.name} ({self.begun} times, {self.done} done)"


class Row(Struct, frozen=True):
    """One part of a run in a receipt: the agent, a call, a process, with the parts below it.

    `status` is the exit status of a process (negative: the signal), and None for other parts. `how` is None while the
    part is still running, in a receipt that is not complete. `ended_at` of one that was handed over is when it was.
    `provenance` says who ended a process, if that was not the end of the run: its tool, the deadline of its call, the
    agent that abandoned its call, or the natural end of its run. For a process of the session it is always there. It
    may have been ending when the Stop of the receipt came. `effects` are those that the code of the agent or the
    call has begun behind guards; left out (UNSET) if there is none. Times: seconds, epoch, UTC.
    """

    kind: PartKind
    name: str
    started_at: float | None = None
    ended_at: float | None = None
    how: How | None = None
    status: int | None = None
    signals: tuple[Signalled, ...] = ()
    pid: int | None = None
    note: str = ""
    reaped: int = 0
    rows: tuple[Row, ...] = ()
    provenance: Provenance | None = None
    effects: tuple[Effect, ...] | UnsetType = UNSET


class Receipt(Struct, frozen=True):
    """The parts of a run, how each ended, and what could not be ended.

    run_id: None for a Stop that found no run; `receipt_id` is then that Stop's id.
    provenance: None if the agent ended by itself: it returned, or raised.
    complete: False if a part was abandoned, or if there may be processes that cannot be seen (``out_of_reach``).
    reaped: number of processes that were proven dead.
    refused: what the ended run still tried to do, counted by kind.
    waiting, withdrawn: ids of the messages that were left waiting, and of those that were withdrawn.
    omitted: number of rows that are not listed: in a run with very many parts, those that ended long before.
    later: further causes, in order.
    """

    receipt_id: str
    run_id: str | None
    generation: int
    provenance: Provenance | None
    fenced_at: float
    ended_at: float
    complete: bool
    rows: tuple[Row, ...] = ()
    reaped: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    omitted: int = 0
    later: tuple[Provenance, ...] = ()


class ToolCall(Struct, frozen=True):
    """A call that an agent asked for, in the terms of a model provider."""

    id: str
    name: str
    arguments: JsonObject


class Message(Struct, frozen=True):
    """One message of a thread, or one that waits (then `generation` is None).

    A tool message has the `outcome` of its call. `attachments` are names: see `SessionHandle.attachment`. A message
    with files has `parts`, and `content` repeats the texts among these. One that is the answer of a model has `answer`,
    and `parts`; `content` and `tool_calls` repeat the texts and calls among these. To change what is rendered of a
    message with parts, change its parts.
    """

    id: str
    role: Role
    content: str
    generation: int | None
    run_id: str | None
    status: MessageStatus = MessageStatus.COMPLETE
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    outcome: Outcome | None = None
    is_error: bool = False
    origin: str | None = None
    sent_at: float | None = None
    at: float | None = None
    attachments: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    answer: AnswerInfo | None = None


class Event(Struct, frozen=True):
    """One entry of a session's log. `seq` starts at 1 and has no gaps; `at` is epoch seconds, UTC.

    Ephemeral events (``typing``, ``progress``) carry the last seq and are not stored.
    """

    seq: int
    session: str
    generation: int
    run_id: str | None
    kind: str
    data: JsonObject
    at: float


class RunParent(Struct, frozen=True):
    """Whose part a child run is: the session, the run and the call that delegated to it. `depth`: 1 below a run."""

    session: str
    run_id: str
    call_id: str
    depth: int = 1


class RunInfo(Struct, frozen=True):
    """A run as the store holds it. Times: seconds, epoch, UTC. `result` is what the agent returned.

    `parent`: whose child run it is; None: nobody's.
    `effects`: those that the agent itself had begun behind guards when the run was closed.
    `settled`: its receipt is filed. `late`: that receipt names an abandoned part whose end may still be reported.
    `usage`: its tokens, as far as its agent says them, and its calls.
    """

    session: str
    run_id: str
    status: RunStatus
    agent: str
    generation: int | None
    receipt_id: str
    inputs: tuple[str, ...] = ()
    retry_of: str | None = None
    attempt: int = 1
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    fence_seq: int | None = None
    provenance: Provenance | None = None
    later: tuple[Provenance, ...] = ()
    error: str | None = None
    result: Json = None
    settled: bool = False
    late: bool = False
    effects: tuple[Effect, ...] = ()
    usage: Usage = Usage()
    parent: RunParent | None = None


class SessionStatus(Struct, frozen=True):
    """What a session is doing now.

    last_seq: of the last event that was decided. It may not be stored yet, and after a crash another event may get it.
    waiting: number of waiting messages.
    barrier: the parts for which permits wait.
    refused: dead letters, counted by kind.
    owned: ids of the process trees that the session owns.
    usage: of all its runs so far.
    asking: the calls that wait for a person.
    agent: which answers the next message that names none.
    attachments_bytes: of all its attachments, each time that they were given.
    """

    session: str
    state: SessionActivity
    generation: int
    last_seq: int
    run_id: str | None
    ending: tuple[str, ...]
    waiting: int
    parked: bool
    barrier: tuple[str, ...]
    refused: dict[str, int]
    owned: tuple[str, ...] = ()
    usage: Usage = Usage()
    asking: tuple[Asking, ...] = ()
    agent: str = ""
    attachments_bytes: int = 0
