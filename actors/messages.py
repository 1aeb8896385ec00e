"""Messages inside the supervisor, by receiver: commands go down, reports come up.

Lanes. A class says which lane it takes: `urgent` messages (requests from outside, halts, commits, timers)
are handled before all ordinary ones (what children report, in the order they report it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from actors.model import (
    Address,
    How,
    Json,
    JsonObject,
    Message,
    Outcome,
    Owner,
    Provenance,
    Row,
    Signalled,
)
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
    """End now: asked first with `grace_s` seconds of grace, or at once when it is 0. May come again, harder."""

    provenance: Provenance
    grace_s: float


class Permit(Command, frozen=True):
    """A call may start: its record is committed, its cell is granted. `deadline_s` from now, or None."""

    call_id: str
    cell: Cell[ToolResult]
    token: CancelToken
    deadline_s: float | None


class PermitWaiting(Command, frozen=True):
    """A call of the run waits for the barrier: its deadline stands still until a Permit or a refusal."""

    call_id: str


class PermitRefused(Command, frozen=True):
    """A call will not start; `result` is what the agent is told."""

    call_id: str
    result: ToolResult


class CallClosed(Command, frozen=True):
    """The session decided the result of a call that was granted.

    `provenance` says why its execution has to end; None: it is ending already.
    """

    call_id: str
    result: ToolResult
    provenance: Provenance | None


class SpawnPermit(Command, frozen=True):
    """A process may be spawned: its record is committed, its cell is granted."""

    call_id: str
    process_id: str
    cell: Cell[None]


class SpawnRefused(Command, frozen=True):
    """A process will not be spawned; `limit` is the number that the run may have, if that is why."""

    call_id: str
    process_id: str
    limit: int | None = None


class TreeTaken(Command, frozen=True):
    """A process tree is the session's: what asked for it or had it lets go of it, and does not end it."""

    call_id: str
    process_id: str


class Release(Command, frozen=True):
    """Let go of the tree: another actor has it from here on."""


class Steered(Command, frozen=True):
    """What steering brought: messages that are in the thread now, as inputs of this run. May be empty."""

    request_id: int
    messages: tuple[Message, ...]


class Expire(Command, frozen=True):
    """Delete yourself for `reason`, unless something has happened since `seq`, waits, or is under way."""

    seq: int
    reason: str


class Drain(Command, frozen=True):
    """Refuse new work; let runs end by themselves; say Quiet, with this number, when nothing runs and all is written.

    It comes again, with the next number, behind each Stop that is brought to the session meanwhile.
    """

    number: int = 0


class Interrupt(Command, frozen=True):
    """End the active run from inside; what waits stays for the next start."""

    provenance: Provenance


class Route(Command, frozen=True):
    """Bring a message to a session, which is started if it is not there; the asker is the session's to answer.

    `returned`: a session that ended hands it back, so it goes to the next incarnation before all that came after it.
    """

    session: str
    message: OutsideRequest | Inspect
    returned: bool = False


class Activate(Command, frozen=True):
    """Start a session that has something to finish."""

    session: str


class PluginsMended(Command, frozen=True):
    """An agent or a tool that could not be loaded is there now: what waited for it goes on."""


class Passivate(Command, frozen=True):
    """Leave memory, if there is nothing under way that is not in the store; the session answers `Rested`.

    It comes behind all that was routed to the session before, and nothing is routed to it until it has answered.
    """


class Old(Command, frozen=True):
    """Sessions to be deleted unless something has happened since: each with the seq of its last event."""

    sessions: tuple[tuple[str, int], ...]


class Shutdown(Command, frozen=True):
    """Drain for `drain_s` seconds, then interrupt; the answer says whether all sessions came to rest."""

    drain_s: float


class Ping(Command, frozen=True):
    """Ask the supervisor whether it answers; it does with a Pong."""


class Pong(Struct, frozen=True):
    """How many sessions are live, whether a shutdown drains or interrupts them, and for how many it waits."""

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
    """Something the agent emits. kind: ``text | typing | progress``; `size` in bytes, for credit."""

    address: Address
    kind: str
    data: JsonObject
    size: int


class CallRequested(Report, frozen=True):
    """The agent asks for a tool call; `reply` is how its `turn.call` gets the result; `size` in bytes, for credit.

    `problem` is set where the agent runs, when the call cannot be right (no such tool, arguments that do not fit).
    `context` are the context variables of the agent at the call: the tool's code has them too.
    `arguments` are as they are shown; `secrets`, which the run keeps to itself, are what they hide.
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
    """The agent no longer waits for a call: its await was cancelled, by the agent's own time limit for example."""

    address: Address


class CallStarted(Report, frozen=True):
    """A call's cell moved to started; its function is about to run."""

    address: Address
    at: float


class CallEnded(Report, frozen=True):
    """A call's execution ended. `result` is None where the cell was void or closed first.

    It also says, for the receipt, how the execution itself ended: a closed call ends twice, once by the
    fence and once here. `late`: it brought a result that came after its cell was closed (a dead letter).
    """

    address: Address
    how: How
    at: float
    result: ToolResult | None
    late: bool = False
    note: str = ""


class CallExpired(Report, frozen=True):
    """A call's deadline closed its cell while it was in it; its execution may go on ending."""

    address: Address
    at: float
    provenance: Provenance
    started: bool


class SpawnRequested(Report, frozen=True):
    """A tool asks for a process; `process` is the handle that waits in the tool.

    Of one that is to be the session's, `listener` brings its news to that handle; it blocks nobody.
    """

    address: Address
    process_id: str
    spec: SpawnSpec
    process: Process | None = None
    owner: Owner = Owner.RUN
    listener: Callable[[ProcessNews], None] | None = None


class HandOverRequested(Report, frozen=True):
    """A tool hands a process tree over to the session; `handed` is what it waits on, `listener` as of a spawn."""

    address: Address
    process_id: str
    handed: Future[None]
    listener: Callable[[ProcessNews], None] | None = None


class ProcessReport(Report, frozen=True):
    """What a process actor reports upward, with the address it belongs to; or what its tool does to it."""

    address: Address
    process_id: str
    news: ProcessNews | ProcessKilled


class SteeringRequested(Report, frozen=True):
    """The agent asks for messages that wait to steer it."""

    address: Address
    request_id: int
    reply: Future[tuple[Message, ...]] | None = None


class RunFinished(Report, frozen=True):
    """The execution of the agent ended: it returned `result` or raised `error`.

    While the run is open this is its natural end; of a closed run it is one more part that has ended.
    """

    address: Address
    how: How
    at: float
    result: Json = None
    error: str | None = None


class RunExpired(Report, frozen=True):
    """The run's deadline passed; its agent may go on ending."""

    address: Address
    provenance: Provenance


class Quiet(Report, frozen=True):
    """A draining session has nothing running, and all of it is written; `number` is that of the last Drain it heard."""

    session: str
    number: int


class Idle(Report, frozen=True):
    """A session has had nothing to do for its time, and may be passivated."""

    session: str


class Rested(Report, frozen=True):
    """The answer to `Passivate`: the session `leaves`, and its Down follows; or it stays, since it is in use."""

    session: str
    leaves: bool


class Erased(Report, frozen=True):
    """A session was deleted: its name can be used again, and its earlier failures do not count."""

    session: str


# ── From the ports ────────────────────────────────────────────────────────────────────────────────


class ExecutionStarted(Report, frozen=True):
    """An execution passed its cell and runs."""

    key: str
    at: float


class ExecutionEnded(Report, frozen=True):
    """An execution is over: it returned `value`, or raised `error`; `cell_was_shut`: it never began."""

    key: str
    how: How
    at: float
    value: Any = None
    error: str | None = None


class ProcessStarted(Report, frozen=True):
    """The command of a tree runs, as `pid`. `spool`: the file for what it prints, where that is more than is shown."""

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

    `status` is the exit status, negative for a signal. `tail` holds the last 64 KiB of all output;
    `total_bytes` counts it; `lossy`: some bytes were not UTF-8 and were replaced; `held`: a process of
    the tree still holds the output open. CPU in seconds, `max_rss_kb` in KiB. `spool` is the path of a file with the
    exact bytes of the output, where the tail is not all of it, or not exact, or more may come; its first
    `spooled_bytes` are in there by now.
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
    """The last word on a tree. `proven`: nobody of it is left, by ECHILD; else it was lost, and `note` says how.

    `how` is that of the command itself; NOT_STARTED when nothing was spawned. `rows` are processes of the
    tree that were seen, `reaped` counts all. `status` as in ProcessExited, None where it is not known.
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
    """Some of a killed tree could not be killed so far; `rows` and `note` say who and why.

    News of the moment `at`, and no end: they are waited for, and ProcessEnded follows. Told again when they are others.
    """

    process_id: str
    at: float
    rows: tuple[Row, ...]
    note: str


class ProcessKilled(Report, frozen=True):
    """A tool ends a tree that it started, in `grace_s` seconds: that is why it ends, unless it was being ended before.

    One of the run is ended by the tool's own actor, behind this; one of the session by the session, on this.
    """

    process_id: str
    provenance: Provenance
    grace_s: float


class StrayFound(Report, frozen=True):
    """Code of a run has started something by itself, inside the supervisor's own process: see `ports.Strays`.

    `address` is of the call, or of the agent, that started it; `kind` is ``subprocess | thread | task``. `ours` is
    False for a process of which nobody can say who started it. `born` tells its pid from a later use of the number.
    """

    address: Address
    stray_id: str
    kind: str
    name: str
    at: float
    pid: int | None = None
    born: str = ""
    ours: bool = True
    note: str = ""


class StrayEnded(Report, frozen=True):
    """A stray is proven to have ended. `how` is None where its exit status was read by whoever started it.

    ``out_of_reach``: what there may be cannot be seen from here, and nothing more will be heard of it. The rest is as
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


class Committed(Struct, frozen=True):
    """All batches of a session up to and with `number` are durable."""

    urgent: ClassVar[bool] = True
    number: int


class StopKept(Struct, frozen=True):
    """A Stop is in the stop journal, and on the disk there."""

    urgent: ClassVar[bool] = True
    request_id: str


class CommitFailed(Struct, frozen=True):
    """Batch `number` of a session, and with it every later one, could not be written.

    `unfit`: the store is well, and it was this batch that cannot be stored.
    """

    urgent: ClassVar[bool] = True
    number: int
    error: str
    unfit: bool = False


class Loaded(Struct, frozen=True):
    """What the store holds of a session."""

    urgent: ClassVar[bool] = True
    snapshot: Snapshot


class LoadFailed(Struct, frozen=True):
    """The store could not be read."""

    urgent: ClassVar[bool] = True
    error: str


# ── Timers ────────────────────────────────────────────────────────────────────────────────────────


class Timer(Struct, frozen=True):
    """A time that was asked for has come."""

    urgent: ClassVar[bool] = True


class KillDeadline(Timer, frozen=True):
    """What a closed run still has is named `abandoned` now.

    `stage` tells a moved deadline from an old one, `incarnation` one that was set before the session was read again.
    """

    run_id: str
    stage: int
    incarnation: str


class TreesDeadline(Timer, frozen=True):
    """Trees of the session that it began to end at `stage`, and that have not ended, are named `abandoned` now.

    `incarnation` as of a `KillDeadline`.
    """

    stage: int
    incarnation: str


class RunDeadline(Timer, frozen=True):
    """The run's time is up."""

    stage: int


class CallDeadline(Timer, frozen=True):
    """The call's time is up."""


class RecancelExecution(Timer, frozen=True):
    """Cancel an async execution again that goes on after the grace and the kill time; then at growing intervals."""

    attempt: int = 0

    @property
    def next(self) -> RecancelExecution:
        """The one after this."""
        return RecancelExecution(self.attempt + 1)

    @property
    def next_s(self) -> float:
        """Seconds until the one after this: 1, 2, 4, … 60."""
        return float(min(60, 2 ** min(self.attempt, 6)))


class LookForOld(Timer, frozen=True):
    """Time to look for sessions that are kept for longer than they have to be."""


class DrainOver(Timer, frozen=True):
    """The time for draining, or (`final`) for interrupting, is over; `hurried`: somebody has cut it short."""

    final: bool
    hurried: bool = False


class GoOn(Timer, frozen=True):
    """The answer in batch `number` has had time to be taken: reports that waited for it go on."""

    number: int


class StopOverdue(Timer, frozen=True):
    """A Stop is not durable yet: to be journalled. `final`: it has waited as long as it may, and is answered."""

    request_id: str
    final: bool


class IdleOver(Timer, frozen=True):
    """The session has been idle for its time, if it was not used meanwhile."""


class TryStore(Timer, frozen=True):
    """Time to ask the store again."""


# ── What a tool call brings ───────────────────────────────────────────────────────────────────────


class ToolResult(Struct, frozen=True):
    """What a call brought, as the agent and the next model call see it; `outcome` tells the truth (law L6).

    `provenance` says who ended the call before its own end, such as its deadline (source ``tool.deadline``).
    """

    outcome: Outcome
    content: str
    is_error: bool = False
    data: Json = None
    provenance: Provenance | None = None
