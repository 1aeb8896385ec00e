"""Messages to a session about its runs: what a run, or something that it started, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import field

from actors.attachments import Attachment
from actors.events import Emitted, MediaData, ProgressData, TextData
from actors.messages.lanes import Report
from actors.messages.process import ProcessKilled, ProcessNews
from actors.messages.result import ToolResult
from actors.model import Address, How, Json, JsonObject, Message, Owner, PartKind, Provenance, Row, Signalled, Where
from actors.questions import Question
from actors.secrets import NOTHING, Withheld

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import Context

    from actors.plugin.child import Child
    from actors.plugin.foreign import Made
    from actors.plugin.spawning import Process
    from actors.ports import ChildSpec, SpawnSpec


class Said(Report, frozen=True):
    """The agent emits something; `size` is in bytes, for credit."""

    address: Address
    data: Emitted
    size: int


class SaidTogether(Report, frozen=True):
    """What an agent in a host has emitted, one behind the other: it came in one piece, and goes on in one message."""

    address: Address
    said: tuple[Said, ...]


class ToolSaid(Report, frozen=True):
    """The tool of a call says a text, or shows progress, and waits on `told`. It took no credit."""

    address: Address
    data: TextData | ProgressData
    told: Future[None]


class LateRefused(Report, frozen=True):
    """Counts, by kind, of what a host still said and asked after the end of its run; refused where it came in."""

    address: Address
    counts: dict[str, int]


class CallRequested(Report, frozen=True):
    """The agent asks for a tool call.

    reply: by which its `turn.call` gets the result.
    problem: why the call is invalid (no such tool, arguments that do not fit); found where the agent runs.
    size: in bytes, for credit.
    context: the agent's context variables at the call; the tool's code has them too.
    arguments, secrets: the arguments to show, and the secret ones, which the run does not pass on.
    made: the tool, where the call brings its own.
    provider_id, where: what the model calls the call, and which side executes it; for the log.
    answer: the answer of a model that it is a part of: it starts when that has ended.
    question: what it asks a person before it goes on.
    heard: called with each text that its tool says; the run does not pass it on.
    begun: it had begun elsewhere before it was asked for, so nothing may say that it was not started.
    """

    address: Address
    tool: str
    arguments: JsonObject
    reply: Future[ToolResult] | None = None
    problem: str | None = None
    size: int | None = None
    context: Context | None = None
    secrets: Withheld = NOTHING
    made: Made | None = None
    provider_id: str | None = None
    where: Where = Where.DAEMON
    answer: str | None = None
    question: Question | None = None
    heard: Callable[[TextData], None] | None = None
    begun: bool = False


class AnswerLeft(Report, frozen=True):
    """An answer of a model was left before its end: it stays partial, and none of its calls starts.

    usage: what it cost so far, as in `answer.ended`.
    """

    address: Address
    answer: str
    usage: dict[str, int] = field(default_factory=dict)


class CallGivenUp(Report, frozen=True):
    """The agent no longer waits for a call: its await was cancelled, for example by the agent's own time limit."""

    address: Address


class CallStarted(Report, frozen=True):
    """A call's cell moved to started; its function is about to run."""

    address: Address
    at: float


class CallEnded(Report, frozen=True):
    """A call's execution ended. `result` is None if the cell was void or closed first.

    `how` is the end of the execution itself, for the receipt: a closed call ends twice, once by the fence and once
    here. `late`: its result came after its cell was closed (a dead letter).
    """

    address: Address
    how: How
    at: float
    result: ToolResult | None
    late: bool = False
    note: str = ""


class CallExpired(Report, frozen=True):
    """A call's deadline closed its cell; its execution may still be ending."""

    address: Address
    at: float
    provenance: Provenance
    started: bool


class SpawnRequested(Report, frozen=True):
    """A tool, or an agent (then no call is in `address`), asks for a process, or a child run; `process` is its handle.

    If the session is to own it, `listener` brings its news to that handle; it never blocks. `host`: what the host is
    called that was reserved for the call's tool, and runs already; then nothing is spawned, and there is no handle.
    """

    address: Address
    process_id: str
    spec: SpawnSpec | ChildSpec
    process: Process | Child | None = None
    owner: Owner = Owner.RUN
    listener: Callable[[ProcessNews], None] | None = None
    host: str = ""


class SpawnGivenUp(Report, frozen=True):
    """A tool, or an agent, no longer waits for the start of a process. It comes behind its SpawnRequested."""

    address: Address
    process_id: str
    provenance: Provenance


class HandOverRequested(Report, frozen=True):
    """A process tree is handed over to the session by who started it, and waits on `handed`; see SpawnRequested."""

    address: Address
    process_id: str
    handed: Future[None]
    listener: Callable[[ProcessNews], None] | None = None


class ProcessReport(Report, frozen=True):
    """The news of a process, or its end by its tool, with its address."""

    address: Address
    process_id: str
    news: ProcessNews | ProcessKilled


class SteeringRequested(Report, frozen=True):
    """The agent asks for the waiting messages that steer it."""

    address: Address
    request_id: int
    reply: Future[tuple[Message, ...]] | None = None


class SaveRequested(Report, frozen=True):
    """The agent saves `changes` for later runs, and waits on `saved`.

    `size` is the credit that it took, in bytes; None: it took none, since its open requests are bounded.
    """

    address: Address
    changes: JsonObject
    size: int | None
    saved: Future[None]


class MediaGiven(Report, frozen=True):
    """The agent adds a file to an answer, and waits on `kept`. `size` is as in `SaveRequested`."""

    address: Address
    data: MediaData
    attachment: Attachment
    size: int | None
    kept: Future[None]


class HandOffRequested(Report, frozen=True):
    """The agent hands its session over to another one, and waits on `told`. `size` is as in `SaveRequested`."""

    address: Address
    agent: str
    size: int | None
    told: Future[None]


class RunFinished(Report, frozen=True):
    """The execution of the agent ended: it returned `result` or raised `error`.

    In an open run this is the run's natural end; in a closed run it is the end of one more part.
    """

    address: Address
    how: How
    at: float
    result: Json = None
    error: str | None = None


class RunExpired(Report, frozen=True):
    """The run's deadline passed; its agent may still be ending."""

    address: Address
    provenance: Provenance


class StrayFound(Report, frozen=True):
    """Code of a run has started something by itself, inside the supervisor's own process: see `ports.Strays`.

    `address` is of the call, or of the agent, that started it; `kind` is ``subprocess | thread | task``. `ours` is
    False for a process of unknown origin. `born` distinguishes its pid from a later use of the number.
    """

    address: Address
    stray_id: str
    kind: PartKind
    name: str
    at: float
    pid: int | None = None
    born: str = ""
    ours: bool = True
    note: str = ""


class StrayEnded(Report, frozen=True):
    """A stray is proven to have ended. `how` is None if the code that started it read its exit status.

    ``out_of_reach``: survivors, if any, cannot be seen from here, and no further report comes. The other fields are as
    in `ProcessEnded`.
    """

    address: Address
    stray_id: str
    how: How | None
    at: float
    status: int | None = None
    reaped: int = 0
    rows: tuple[Row, ...] = ()
    signals: tuple[Signalled, ...] = ()
    note: str = ""


RunReport: TypeAlias = (
    Said
    | SaidTogether
    | ToolSaid
    | LateRefused
    | AnswerLeft
    | CallRequested
    | CallStarted
    | CallExpired
    | CallGivenUp
    | CallEnded
    | SpawnGivenUp
    | SpawnRequested
    | HandOverRequested
    | ProcessReport
    | StrayFound
    | StrayEnded
    | SteeringRequested
    | SaveRequested
    | MediaGiven
    | HandOffRequested
    | RunFinished
    | RunExpired
)
"""What a run, or something that it started, reports to its session."""
