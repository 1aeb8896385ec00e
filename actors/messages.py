"""Messages inside the supervisor, by receiver: commands go down, reports come up.

Lanes. Each class says which lane it takes. `urgent` messages (requests from outside, halts, commits, timers) are
handled before all ordinary ones (the reports of children, in the order in which they were sent).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from actors.events import Emitted
from actors.model import Address, How, Json, JsonObject, Message, Outcome, Owner, PartKind, Provenance, Row, Signalled
from actors.secrets import NOTHING, Withheld

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import Context

    from actors.gate.cell import Cell
    from actors.gate.token import CancelToken
    from actors.plugin.spawning import Process
    from actors.ports import Snapshot, SpawnSpec
from actors.requests import Inspect, OutsideRequest

# ── Commands, downward ────────────────────────────────────────────────────────────────────────────


class Command(Struct, frozen=True):
    """Sent by a parent to a child; takes the urgent lane."""

    urgent: ClassVar[bool] = True


class Halt(Command, frozen=True):
    """End now: ask, and kill after `grace_s` seconds; 0 kills at once. It may come again with less grace."""

    provenance: Provenance
    grace_s: float


class Permit(Command, frozen=True):
    """A call may start: its record is committed and its cell granted. `deadline_s` is from now on, or None."""

    call_id: str
    cell: Cell[ToolResult]
    token: CancelToken
    deadline_s: float | None


class PermitWaiting(Command, frozen=True):
    """A call waits for the barrier. The run's deadline is suspended until a Permit or a refusal."""

    call_id: str


class PermitRefused(Command, frozen=True):
    """A call will not start; the agent receives `result`."""

    call_id: str
    result: ToolResult


class CallClosed(Command, frozen=True):
    """The session decided the result of a granted call.

    `provenance` says why its execution has to end; None if it is ending already.
    """

    call_id: str
    result: ToolResult
    provenance: Provenance | None


class SpawnPermit(Command, frozen=True):
    """A process may be spawned: its record is committed and its cell granted."""

    call_id: str
    process_id: str
    cell: Cell[None]


class SpawnRefused(Command, frozen=True):
    """A process will not be spawned. `limit` is the run's limit on processes, if that is the reason."""

    call_id: str
    process_id: str
    limit: int | None = None


class TreeTaken(Command, frozen=True):
    """The session owns a process tree: the receiver drops it, and does not end it."""

    call_id: str
    process_id: str


class Release(Command, frozen=True):
    """Drop the tree: another actor has it from now on."""


class Steered(Command, frozen=True):
    """The result of steering: messages that are now in the thread, as inputs of this run. May be empty."""

    request_id: int
    messages: tuple[Message, ...]


class Expire(Command, frozen=True):
    """Delete the session for `reason`, unless something has happened since `seq`, waits, or is under way."""

    seq: int
    reason: str


class Drain(Command, frozen=True):
    """Refuse new work, and let runs end by themselves. Report Quiet when nothing runs and everything is written.

    The report has the same `number`. Drain comes again, with the next number, behind each Stop that reaches the session
    meanwhile.
    """

    number: int = 0


class Interrupt(Command, frozen=True):
    """End the active run for an internal reason; waiting messages stay for the next start."""

    provenance: Provenance


class Route(Command, frozen=True):
    """Bring a message to a session, and start the session if necessary. The session answers the asker.

    `returned`: a session that ended hands it back, so it goes to the next incarnation before all later messages.
    """

    session: str
    message: OutsideRequest | Inspect
    returned: bool = False


class Activate(Command, frozen=True):
    """Start a session that has something to finish."""

    session: str


class PluginsMended(Command, frozen=True):
    """An agent or a tool that could not be loaded is loaded now: messages that waited for it go on."""


class Passivate(Command, frozen=True):
    """Leave memory, if the store has everything that is under way; the session answers `Rested`.

    It comes behind all messages routed to the session before; later ones are held until the session has answered.
    """


class Old(Command, frozen=True):
    """Sessions to delete unless something has happened since; each with the seq of its last event."""

    sessions: tuple[tuple[str, int], ...]


class Shutdown(Command, frozen=True):
    """Drain for `drain_s` seconds, then interrupt; the answer says whether all sessions came to rest."""

    drain_s: float


class Ping(Command, frozen=True):
    """Check that the supervisor answers; it does with a Pong."""


class Pong(Struct, frozen=True):
    """The number of live sessions, the phase of a shutdown, and for how many sessions it waits."""

    sessions: int
    phase: Literal["serving", "draining", "interrupting"]
    awaited: int


class KillProcess(Command, frozen=True):
    """A tool ends a process that it started."""

    process_id: str
    grace_s: float


# ── Reports, upward (ordinary lane, in the order in which they happened) ──────────────────────────


class Report(Struct, frozen=True):
    """Sent by a child to its parent; takes the ordinary lane."""

    urgent: ClassVar[bool] = False


class Said(Report, frozen=True):
    """The agent emits something; `size` is in bytes, for credit."""

    address: Address
    data: Emitted
    size: int


class CallRequested(Report, frozen=True):
    """The agent asks for a tool call.

    reply: by which its `turn.call` gets the result.
    problem: why the call is invalid (no such tool, arguments that do not fit); found where the agent runs.
    size: in bytes, for credit.
    context: the agent's context variables at the call; the tool's code has them too.
    arguments, secrets: the arguments to show, and the secret ones, which the run does not pass on.
    """

    address: Address
    tool: str
    arguments: JsonObject
    reply: Future[ToolResult] | None = None
    problem: str | None = None
    size: int | None = None
    context: Context | None = None
    secrets: Withheld = NOTHING


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
    """A tool asks for a process; `process` is the handle in the tool.

    If the session is to own it, `listener` brings its news to that handle; it never blocks.
    """

    address: Address
    process_id: str
    spec: SpawnSpec
    process: Process | None = None
    owner: Owner = Owner.RUN
    listener: Callable[[ProcessNews], None] | None = None


class HandOverRequested(Report, frozen=True):
    """A tool hands a process tree over to the session, and waits on `handed`. `listener` as in SpawnRequested."""

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


class Quiet(Report, frozen=True):
    """A draining session runs nothing, and everything is written; `number` is that of its last Drain."""

    session: str
    number: int


class Idle(Report, frozen=True):
    """A session was idle for `passivate_s`, and may be passivated."""

    session: str


class Rested(Report, frozen=True):
    """The answer to `Passivate`: the session `leaves` and its Down follows, or it stays because it is in use."""

    session: str
    leaves: bool


class Erased(Report, frozen=True):
    """A session was deleted: its name can be used again, and its earlier failures no longer count."""

    session: str


# ── From the ports ────────────────────────────────────────────────────────────────────────────────


class ExecutionStarted(Report, frozen=True):
    """An execution passed its cell and runs."""

    key: str
    at: float


class ExecutionEnded(Report, frozen=True):
    """An execution ended: it returned `value` or raised `error`, or it never began (`how` is NOT_STARTED)."""

    key: str
    how: How
    at: float
    value: Any = None
    error: str | None = None


class ProcessStarted(Report, frozen=True):
    """The command of a tree runs, as `pid`. `spool`: the file for its output, if that is more than is shown."""

    process_id: str
    pid: int
    at: float
    spool: str | None = None


class ProcessOutput(Report, frozen=True):
    """Some output, decoded. `marker` says that the limit of logged output is reached and no more follows."""

    process_id: str
    stream: str
    text: str
    marker: bool = False


class ProcessExited(Report, frozen=True):
    """The command itself exited (its tree may live on); its output was drained for a bounded time.

    status: the exit status, negative for a signal.
    tail, total_bytes: the last 64 KiB of the output, and the size of all of it.
    lossy: some bytes were not UTF-8 and were replaced.
    held: a process of the tree still holds the output open.
    cpu_s, max_rss_kb: in seconds; in KiB.
    spool, spooled_bytes: the path of a file with the exact bytes of the output, if the tail is not all of it, or not
        exact, or more may come; and how many bytes it has by now.
    """

    process_id: str
    status: int
    at: float
    duration_s: float
    tail: str
    total_bytes: int
    lossy: bool
    held: bool
    cpu_s: float = 0.0
    max_rss_kb: int = 0
    spool: str | None = None
    spooled_bytes: int = 0


class ProcessEnded(Report, frozen=True):
    """The last report of a tree. `proven`: no process of it is left, by ECHILD; else it was lost, and `note` says how.

    `how` is the end of the command itself; NOT_STARTED if nothing was spawned. `rows` are the processes of the tree
    that were seen; `reaped` counts all. `status` is as in ProcessExited, and None if it is not known.
    """

    process_id: str
    how: How
    proven: bool
    at: float
    status: int | None = None
    pid: int | None = None
    started_at: float | None = None
    reaped: int = 0
    rows: tuple[Row, ...] = ()
    signals: tuple[Signalled, ...] = ()
    note: str = ""


class ProcessRemaining(Report, frozen=True):
    """Some processes of a killed tree survive so far; `rows` and `note` say which and why.

    It describes the moment `at` and is not an end: they are waited for, and ProcessEnded follows. It is sent again when
    the survivors change.
    """

    process_id: str
    at: float
    rows: tuple[Row, ...]
    note: str


class ProcessKilled(Report, frozen=True):
    """A tool ends a tree that it started, with `grace_s` seconds of grace.

    That is the cause of its end, unless it was being ended already. The tool's own actor ends a tree of the run, after
    it has sent this; the session ends a tree of its own when it receives this.
    """

    process_id: str
    provenance: Provenance
    grace_s: float


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


ProcessNews: TypeAlias = ProcessStarted | ProcessOutput | ProcessExited | ProcessRemaining | ProcessEnded

RunReport: TypeAlias = (
    Said
    | CallRequested
    | CallStarted
    | CallExpired
    | CallGivenUp
    | CallEnded
    | SpawnRequested
    | HandOverRequested
    | ProcessReport
    | StrayFound
    | StrayEnded
    | SteeringRequested
    | RunFinished
    | RunExpired
)
"""What a run, or something that it started, reports to its session."""


class Committed(Struct, frozen=True):
    """All batches of a session up to and including `number` are durable."""

    urgent: ClassVar[bool] = True
    number: int


class StopKept(Struct, frozen=True):
    """A Stop is in the stop journal, on disk."""

    urgent: ClassVar[bool] = True
    request_id: str


class CommitFailed(Struct, frozen=True):
    """Batch `number` of a session, and every later one, could not be written.

    `unfit`: the store works; this batch cannot be stored.
    """

    urgent: ClassVar[bool] = True
    number: int
    error: str
    unfit: bool = False


class Loaded(Struct, frozen=True):
    """The store has read a session."""

    urgent: ClassVar[bool] = True
    snapshot: Snapshot


class LoadFailed(Struct, frozen=True):
    """The store could not read a session."""

    urgent: ClassVar[bool] = True
    error: str


# ── Timers ────────────────────────────────────────────────────────────────────────────────────────


class TimerFired(Struct, frozen=True):
    """A requested time has come."""

    urgent: ClassVar[bool] = True


class KillDeadline(TimerFired, frozen=True):
    """The remaining parts of a closed run are now named `abandoned`.

    A deadline that was moved has an old `stage`; one that was set before the session was reloaded has an old
    `incarnation`. Both are void.
    """

    run_id: str
    stage: int
    incarnation: str


class TreesDeadline(TimerFired, frozen=True):
    """Trees that the session began to end at `stage`, and that have not ended, are now named `abandoned`.

    `incarnation` is as in `KillDeadline`.
    """

    stage: int
    incarnation: str


class RunDeadline(TimerFired, frozen=True):
    """The run's time is up."""

    stage: int


class CallDeadline(TimerFired, frozen=True):
    """The call's time is up."""


class RecancelExecution(TimerFired, frozen=True):
    """Cancel an async execution again if it goes on after the grace and the kill time; then at growing intervals."""

    attempt: int = 0

    @property
    def next(self) -> RecancelExecution:
        """The next one."""
        return RecancelExecution(self.attempt + 1)

    @property
    def next_s(self) -> float:
        """Seconds until the next one: 1, 2, 4, … 60."""
        return float(min(60, 2 ** min(self.attempt, 6)))


class LookForOld(TimerFired, frozen=True):
    """Time to look for sessions that are kept longer than necessary."""


class DrainOver(TimerFired, frozen=True):
    """The time for draining, or (`final`) for interrupting, is over; `hurried`: it was cut short on request."""

    final: bool
    hurried: bool = False


class GoOn(TimerFired, frozen=True):
    """The answer in batch `number` has had time to reach its client: reports that waited for it go on."""

    number: int


class StopOverdue(TimerFired, frozen=True):
    """A Stop is not durable yet, and has to be journalled. `final`: its time to wait is over, and it is answered."""

    request_id: str
    final: bool


class IdleOver(TimerFired, frozen=True):
    """The session has been idle for `passivate_s`, unless it was used meanwhile."""


class TryStore(TimerFired, frozen=True):
    """Time to ask the store again."""


# ── The result of a tool call ─────────────────────────────────────────────────────────────────────


class ToolResult(Struct, frozen=True):
    """The result of a call for the agent and the next model call; `outcome` is the truth (law L6).

    `provenance` says who ended the call early, for example its deadline (source ``tool.deadline``).
    """

    outcome: Outcome
    content: str
    is_error: bool = False
    data: Json = None
    provenance: Provenance | None = None
