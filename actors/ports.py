"""The ports: everything that is not deterministic, or that the core needs from outside.

Code in `actors/` reads clocks, makes ids, starts threads and touches files only through these. The same actors run over
the real ports in `supervisor/` and over simulated ones in `tests/`. One exception: the code of an agent or a tool reads
and writes its own pipes (`actors.plugin.pipes`), which no actor does. The file has over 600 lines, and is whole: a
port is its words, and who writes another port reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from actors.agent_choice import NO_CHOICE, AgentChoice
from actors.hosts import HostedAgent, Hosts, ToolOffer
from actors.model import (
    Address,
    Barrier,
    CallState,
    Effect,
    Event,
    Fate,
    How,
    Isolation,
    Json,
    JsonObject,
    Outcome,
    Owner,
    PartKind,
    Provenance,
    Receipt,
    Row,
    RunInfo,
    RunParent,
    StopOutcome,
    TreeState,
)
from actors.questions import Question
from actors.requests import NewMessage, Stop, Stopped
from actors.saved import Saved
from actors.usage import NO_USAGE, Budget, Usage

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextvars import Context

    from pykka import ActorRef

    from actors.dead_letters import DeadLetters
    from actors.gate.token import CancelToken
    from actors.kernel.dispatcher import Dispatcher
    from actors.thread import Thread


class Timer(Protocol):
    """A pending timer."""

    def cancel(self) -> None:
        """Cancel it; no effect if it has fired."""


class Clock(Protocol):
    """Time, and timers that become messages."""

    def monotonic(self) -> float:
        """Return seconds that never decrease; for durations."""

    def wall(self) -> float:
        """Return seconds since the epoch, UTC; for people."""

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> Timer:
        """Tell `ref` the message after `delay_s` seconds; no effect if the actor is dead."""


class Ids(Protocol):
    """Makes ids."""

    def new(self, kind: str) -> str:
        """Return a new id such as ``run_…`` for kind ``run``; ids are unique, even across restarts."""


class Executor(Protocol):
    """Runs agents, tools and callbacks, never on a dispatcher thread."""

    def start(
        self,
        key: str,
        name: str,
        isolation: Isolation,
        body: Callable[..., Any],
        owner: ActorRef[Any],
        token: CancelToken | None = None,
        context: Context | None = None,
        session: str = "",
    ) -> None:
        """Register `key`, then run `body` and tell `owner` ExecutionEnded, once.

        Any exception of `body` is caught, even a BaseException.

        Args:
            key: the id of the execution.
            name: for people.
            isolation: ``task``: `body` returns a coroutine, which runs on the executor's event loop; ``thread``: `body`
                is called on a thread named after the execution; ``host``: it runs elsewhere. Then `body` is called
                at once, with a function that takes the value of the end. It may not block; the first end counts.
            body: what to run.
            owner: receives the reports.
            token: the execution's token. If it is cancelled before the first line of a task, no line of it runs.
            context: the context variables to run with; not shared with other code.
            session: to which it belongs; see `forget_ended`.
        """

    def cancel(self, key: str, *, again_s: float | None = None) -> bool:
        """Cancel the execution if it is a task; anything else has to check its token. Unknown keys are ignored.

        Returns True if it is a task that has not ended: only then can another cancel have an effect.

        A task is cancelled once: if it was cancelled before, or a door of its token has raised in it, this does
        nothing. `again_s` cancels it once more, if it was cancelled at least this many seconds ago: a task that goes
        on in spite of its cancel. On a busy machine a cancel may arrive much later than it was sent.
        """

    def adopt(self, key: str, owner: ActorRef[Any], *, anew: bool = False) -> bool:
        """Report to `owner` from now on; an end that has happened is reported again. False: the key is unknown.

        Args:
            key: of the execution.
            owner: receives the reports.
            anew: an earlier actor of the run has failed, or its session's has, and `owner` replaces it. What is older
                than `owner` cannot adopt the execution from here on: the earlier actor may not know yet that it is
                replaced, and would take the reports away.
        """

    def token(self, key: str) -> CancelToken | None:
        """Return the token of an execution that was started and not forgotten; None if there is none.

        A session that is read again gets it back here, with the effects that have begun behind its guards: they are on
        record only with the end.
        """

    def forget(self, key: str) -> None:
        """Forget an execution whose end has been handled."""

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """Forget the executions of a session that have ended, but those with these keys.

        Others are forgotten as soon as they end: no actor asks for their ends any more.
        """

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback soon, on another thread; its errors are contained."""


class Strays(Protocol):
    """Strays: what code of agents and tools starts by itself inside this process: processes, threads, tasks (law L3).

    The start of a stray is reported to the owner of its run before the end of the execution that started it. So when
    the last execution of a run and each reported stray have ended, nothing attributable to the run is left.
    """

    def within(
        self, address: Address, isolation: Isolation, token: CancelToken, body: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap `body` for the executor, so that what it starts is attributed to `address`; see `Executor.start`.

        A process that it starts after `token` was cancelled belongs to a clean-up: it is not asked to end before `body`
        has ended, and it is killed at the deadline.
        """

    def adopt(
        self, address: Address, owner: ActorRef[Any], claimed: Sequence[ProcessRow] = (), *, anew: bool = False
    ) -> None:
        """Report StrayFound and StrayEnded of the run to `owner` from now on; known strays are reported again.

        `anew`: see `Executor.adopt`. `claimed` are strays on record. For one that is unknown here an end is reported:
        its process ended with the supervisor that it was in, or is ended now.
        """

    def end(self, address: Address, grace_s: float) -> None:
        """End the strays of a run, or of one call of it.

        A process and those below it get SIGTERM and SIGCONT now, and SIGKILL after `grace_s` seconds. A task is
        cancelled once, when the code that started it has ended. A thread cannot be ended. Strays that start later are
        ended too. A second call with less grace escalates.
        """

    def forget(self, stray_id: str) -> None:
        """Forget a stray whose end is in the log."""

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """Forget the strays of a session that have ended, but those of these runs, and the others as soon as they end.

        See `Executor.forget_ended`.
        """


class PipeEnds(Protocol):
    """The ends of pipes that are for a command, until it is spawned. Any thread."""

    def take(self) -> dict[str, int] | None:
        """Return the descriptors by stream, which belong to the caller from now on; None: they were closed."""

    def close(self) -> None:
        """Close those that were not taken."""


class SpawnSpec(Struct, frozen=True):
    """A command to spawn.

    argv: as for exec.
    name: for people.
    env: is added to the clean environment. Its values may be secret: the repr does not show them.
    pty, pty_size: the command gets a terminal (columns, rows). What comes from the end of ``stdin`` is typed on it, and
        all its output is stream ``stdout``.
    stdin: everything that the command can read from its input. It may be secret: the repr does not show it.
    channel: a descriptor that the command inherits, the only one beyond the three; its number there is in
        ``COUNTERMAND_CHANNEL``. `Processes.spawn` copies it before it returns, so the caller may close its own.
    nice: how much nicer than the daemon the command and what it starts are (0 to 19), until `Processes.set_nice`. It
        is without effect where the daemon could not take it back (without CAP_SYS_NICE, and no RLIMIT_NICE).
    user: the name or the uid of whom the command runs as, with that user's groups, HOME, USER, LOGNAME and SHELL; None:
        as the daemon. It is not started where the daemon may not change users (CAP_SETUID, CAP_SETGID), or could not
        end what runs as another one (CAP_KILL).
    limits: resource limits of each of its processes, over the configured ones; see `supervisor.config.Config`.
    streams: which of ``stdin``, ``stdout``, ``stderr`` have an end in `ends`. ``pipe``: it is the command's own,
        so its output is not reported. ``follow``: the output is reported, and copied into that end. What is typed on
        a terminal is copied from there.
    ends: those; `Processes.spawn` takes them.
    """

    argv: tuple[str, ...]
    name: str
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    pty_size: tuple[int, int] = (80, 24)
    stdin: bytes | None = None
    channel: int | None = None
    nice: int = 0
    user: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    ends: PipeEnds | None = None

    def __repr__(self) -> str:
        return f"SpawnSpec({self.name!r}, {self.argv!r}, env of {', '.join(self.env) or 'nothing'})"


class ChildSpec(Struct, frozen=True):
    """A child run to have, in place of a process tree.

    name: the agent. message: its input. session: where it runs. traceparent: as in `NewMessage`.
    token: of the call that delegates; the token of the child run hangs below it.
    parent: whose part it is; None while it waits for its permit.
    """

    name: str
    message: str
    session: str
    token: CancelToken
    traceparent: str | None = None
    parent: RunParent | None = None


class Processes(Protocol):
    """Process trees, each with its warden. All reports go to the actor that owns the tree.

    Child runs are adopted, ended and forgotten likewise, each under its id: see `Children`.
    """

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """Register `process_id`, of a `session`, then spawn. Never blocks, and never raises because a spawn failed.

        The owner receives ProcessStarted, ProcessOutput (any number), ProcessExited and ProcessEnded, in this order; or
        only ProcessEnded (NOT_STARTED), if the spawn failed. ProcessRemaining comes before the end if some processes of
        a killed tree cannot be killed.
        """

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        """End the tree: SIGTERM and SIGCONT now, SIGKILL after `grace_s` seconds, until it is proven gone.

        0 kills at once. A second call with less grace escalates; the kill is never postponed. Unknown ids are ignored.
        `session`: to which it belongs from now on, if it was spawned for none; see `forget_ended`.
        """

    def kill_session(self, session: str, grace_s: float) -> None:
        """End every tree of a session that was spawned here, or adopted for it; see `kill`."""

    def set_nice(self, process_id: str, nice: int) -> None:
        """Change how much nicer than the daemon a tree is: its command, and what that has started.

        A process of it that has chosen another value keeps that. Unknown ids, and trees that have ended, are ignored.
        """

    def adopt(self, process_id: str, owner: ActorRef[Any], session: str = "", *, anew: bool = False) -> None:
        """Report to `owner` from now on, and repeat what it may have missed, in order: start, exit, survivors, end.

        For an id that this instance never spawned, the ledger of its warden is read: ProcessEnded follows when that
        warden is done, or it says that nothing was found.

        `session`: to which it belongs from now on, if it was spawned for none; see `kill_session`. Of a child run it is
        where that runs. `anew`: see `Executor.adopt`.
        """

    def read_output(self, process_id: str) -> None:
        """Report what the tree has printed by now, and then OutputRead. An unknown id is ignored, or has ended."""

    def forget(self, process_id: str) -> None:
        """Forget a tree whose end is in the log, and delete its ledger."""

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """Forget the trees of a session but these, and delete their ledgers, once they are proven to have ended.

        See `Executor.forget_ended`.
        """

    def forget_session(self, session: str) -> None:
        """Delete the output files of a deleted session, all of whose trees have ended."""


class Children(Protocol):
    """Child runs, each in its session. All else about them goes through `Processes`."""

    def start(self, run_id: str, spec: ChildSpec, owner: ActorRef[Any]) -> None:
        """Register `run_id`, then have the run.

        The owner receives ChildStarted, ChildClosed and ProcessEnded, in this order; or only ProcessEnded
        (NOT_STARTED). ProcessRemaining comes before the end if the receipt of the child run names what could not be
        ended.
        """


# ── The store ─────────────────────────────────────────────────────────────────────────────────────


class SessionRow(Struct, frozen=True, omit_defaults=True):
    """The row of a session itself. Times: seconds, epoch, UTC.

    cutoffs: by origin, the time at which its last Stop was sent.
    forgotten_to: a request made up to this time may have been answered, and its answer may be forgotten.
    deleted: the row is a tombstone, and nothing has happened since the deletion.
    usage: of all its runs so far.
    choice: the agent that answers its messages.
    attachments_bytes: of all its attachments, each time that they were given.
    """

    session: str
    generation: int
    seq: int
    parked: bool = False
    quarantined: bool = False
    cutoffs: dict[str, float] = field(default_factory=dict)
    forgotten_to: float = 0.0
    deleted: bool = False
    usage: Usage = NO_USAGE
    choice: AgentChoice = NO_CHOICE
    attachments_bytes: int = 0


class CallRow(Struct, frozen=True):
    """A call; `outcome` once its result is in the log.

    `ended_at` and `how` describe the end of its execution, which may come after its result is in the log. Without
    `how` nothing has executed it. `effects` are those that it had begun behind guards when it got its result.
    `question` is what it asks a person before it goes on. `begun`: see `CallRequested`.
    """

    session: str
    run_id: str
    call_id: str
    tool: str
    arguments: JsonObject
    state: CallState
    isolation: Isolation = Isolation.THREAD
    outcome: Outcome | None = None
    started_at: float | None = None
    ended_at: float | None = None
    how: How | None = None
    effects: tuple[Effect, ...] = ()
    question: Question | None = None
    begun: bool = False


class ProcessRow(Struct, frozen=True):
    """A process tree; ``granted`` is on record before the spawn. Times: seconds, epoch, UTC.

    end: the receipt's row of a tree that has ended.
    call_id: of the call that asked for it, or whose tool runs in it; empty if the agent did, and if it is its host.
    child: the session of a child run, whose id is `process_id`; its `kind` is ``run``.
    host: what it is called, if it is a host: the agent that runs in it, or the tool (`actors.plugin.registration`).
    kind: not ``process`` for a stray, which is on record once it is found: see `Strays`. Then `call_id` is empty if the
        agent started it, and `born` and `ours` are as in `StrayFound`.

    Of a tree that its session owns:
    generation: of the run that started it.
    owned_at: when the session became its owner.
    ending: why the session ends it; None while it does not.
    receipts: the runs, and the receipts of Stops, that wait for its end.
    """

    session: str
    run_id: str
    call_id: str
    process_id: str
    name: str
    state: TreeState
    end: Row | None = None
    owner: Owner = Owner.RUN
    generation: int = 0
    owned_at: float | None = None
    pid: int | None = None
    started_at: float | None = None
    ending: Provenance | None = None
    receipts: tuple[str, ...] = ()
    kind: PartKind = PartKind.PROCESS
    born: str = ""
    ours: bool = True
    host: str = ""
    child: str = ""


class WaitingRow(Struct, frozen=True):
    """A waiting message: `place` orders the queue; `run_id` is the run that it starts, or steers (`steering`)."""

    session: str
    message: NewMessage
    place: int
    run_id: str
    steering: bool
    accepted_at: float


class RequestRow(Struct, frozen=True):
    """A request's id, the digest of its content, and its answer as tagged JSON; `at` is epoch seconds, UTC."""

    session: str
    request_id: str
    digest: bytes
    answer: bytes
    at: float


class KeptStop(Struct, frozen=True):
    """A Stop that was answered before the store had it; `at` is when it was handled (seconds, epoch, UTC).

    outcome, run_id, receipt_id: its answer, if it was decided by then; that answer stands.
    generation: the session's generation when it was decided.
    cause: the earlier cause of the run's end, if the Stop was not the first.
    failure: what had failed when it was kept: it had ended all that was open by then, another run than `run_id` too.
    waiting_too: its run had begun, so it was decided what becomes of the messages that waited.
    """

    session: str
    stop: Stop
    at: float
    outcome: StopOutcome | None = None
    run_id: str | None = None
    receipt_id: str | None = None
    generation: int | None = None
    cause: Provenance | None = None
    failure: Provenance | None = None
    waiting_too: bool = False

    @property
    def answer(self) -> Stopped | None:
        """The part of its answer that stands; None if it was not decided."""
        if self.outcome is None:
            return None
        return Stopped(self.outcome, self.run_id, self.receipt_id or self.stop.id, None, durable=False)

    def is_about(self, run: RunInfo) -> bool:
        """Return True if this Stop concerns a run that is on record as open: it was to end it, or found it ended."""
        if self._came_before(run):
            return False
        return self.stop.run_id in (None, run.run_id)

    def may_have_ended(self, run: RunInfo) -> bool:
        """Return True if this Stop may have ended a run that it is about.

        A Stop that found nothing to end, or joined the end of another run, was handled after this run had ended: by
        itself, or with all that was open by what `failure` names.
        """
        if self.outcome == StopOutcome.STOPPING:
            return self.run_id == run.run_id
        return self.outcome not in (StopOutcome.NOTHING_RUNNING, StopOutcome.ALREADY_OVER)

    def _came_before(self, run: RunInfo) -> bool:
        # The clock may have been set back in between, so the generations have to agree if both are known.
        if run.started_at is None or run.started_at <= self.at:
            return False
        return self.generation is None or run.generation is None or run.generation > self.generation


class AttachmentRow(Struct, frozen=True):
    """The bytes of an attachment; `at` is epoch seconds, UTC. `media_type` None: of a message that is not UTF-8."""

    session: str
    name: str
    data: bytes
    at: float
    media_type: str | None = None


class Batch(Struct, frozen=True):
    """Everything that one step of a session decided, written in one transaction. Rows are upserts by their id.

    incarnation, number: `number` counts a session's batches from 1 within one incarnation. Together they identify a
        batch, so that a retry is recognised.
    unwaiting: ids of messages that no longer wait.
    pending: receipts that wait for process trees of the session; once filed they are among `receipts`.
    erase: all rows of the session are deleted first.
    """

    session: str
    incarnation: str
    number: int
    events: tuple[Event, ...] = ()
    row: SessionRow | None = None
    runs: tuple[RunInfo, ...] = ()
    calls: tuple[CallRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    unwaiting: tuple[str, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    pending: tuple[Receipt, ...] = ()
    attachments: tuple[AttachmentRow, ...] = ()
    erase: bool = False


class Snapshot(Struct, frozen=True):
    """What the store holds of a session, for the actor that restores it.

    saved: what agents have saved for later runs.
    runs: those that are not settled (including queued ones) or are `late`.
    calls: of `runs`, ended or not.
    processes: of `runs`, ended or not; and those that the session owns and that have not ended.
    handed_over: hosts that a later run has taken back, as each of `runs` had handed them over (`as_handed_over`).
    receipts: of the late runs; and those of `pending` that are filed, and not complete.
    requests: the oldest first.
    acted: ids of those `runs` that have a text, a block, a call or a save on record.
    fates: of each message that no longer waits.
    over: the receipt id of every other run.
    pending: the receipts that wait for process trees of the session, as they were before they were filed.
    kept: Stops from the stop journal, the oldest first.
    told_durable: ids of the Stops whose `session.stop_durable` is in the log.
    printed: for each of `calls` that has not ended, the end of its output so far.
    left_out: names of rows that cannot be read.
    """

    session: str
    row: SessionRow | None
    thread: Thread
    saved: Saved = field(default_factory=Saved)
    runs: tuple[RunInfo, ...] = ()
    calls: tuple[CallRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    handed_over: tuple[ProcessRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    acted: frozenset[str] = frozenset()
    fates: dict[str, Fate] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    pending: tuple[Receipt, ...] = ()
    kept: tuple[KeptStop, ...] = ()
    told_durable: frozenset[str] = frozenset()
    printed: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class Store(Protocol):
    """The log and the rows, and the stop journal.

    All calls return at once; the results are sent to `owner`.
    """

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Write a batch; send Committed when it is durable, or CommitFailed.

        The batches of an incarnation commit in the order of their numbers. After one has failed, every later one of
        that incarnation fails too; a new incarnation starts again at 1.
        """

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session, after all earlier batches; send Loaded or LoadFailed."""

    def find_run(self, session: str, run_id: str, owner: ActorRef[Any]) -> None:
        """Read a settled run and its receipt, after all earlier batches; send ChildFound."""

    def keep_stop(self, kept: KeptStop, owner: ActorRef[Any]) -> None:
        """Write a Stop to the stop journal, which does not wait for the store; idempotent.

        StopKept reports that it is there. From then on it survives a crash: each load of the session returns it until
        it is forgotten. If there is no room for it, no report is sent.
        """

    def forget_stop(self, session: str, request_id: str) -> None:
        """Drop a Stop from the journal: the Stop, and the event that reports it, are durable in the store."""

    def attachment(self, session: str, name: str, reply: Future[bytes]) -> None:
        """Have `reply` resolved with the bytes of an attachment, or with NotFound or StoreUnavailable."""


class Publisher(Protocol):
    """Brings committed events to subscribers. Never blocks: subscribers pull."""

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Publish committed events, in sequence order."""

    def ephemeral(self, event: Event) -> None:
        """Show an event that is not stored to the subscribers that asked for such; it may be dropped."""


class Settings(Struct, frozen=True):
    """Policy as data: graces and deadlines in seconds, limits in items or bytes.

    `attachments_max`, `attachments_max_bytes`: of one message; `attachments_kept_bytes`: of a session.
    `passivate_s`: a session that was unused for this long (at most twice as long) leaves memory; None: never.
    `max_tokens`, `max_calls`: with the deadline the budget of each run; see `Budget`.
    `children_max`: open child runs of one run; `children_depth_max`: how deep runs may stand below one another.
    """

    agent: str = "shell"
    grace_s: float = 2.0
    kill_s: float = 5.0
    run_deadline_s: float | None = None
    call_deadline_s: float | None = None
    queue_max: int = 1000
    message_max_bytes: int = 1_048_576
    attachments_max: int = 20
    attachments_max_bytes: int = 16_777_216
    attachments_kept_bytes: int = 1_073_741_824
    barrier: Barrier = Barrier.FORCED
    credit_events: int = 256
    credit_bytes: int = 1_048_576
    content_max_bytes: int = 1_048_576
    calls_open_max: int = 64
    processes_max: int = 64
    requests_kept: int = 10_000
    requests_kept_s: float = 7 * 86_400.0
    attempts_max: int = 3
    passivate_s: float | None = None
    max_tokens: int | None = None
    max_calls: int | None = None
    children_max: int = 8
    children_depth_max: int = 3

    @property
    def budget(self) -> Budget:
        """The budget of a run whose agent has none of its own."""
        return Budget(self.max_tokens, self.max_calls, self.run_deadline_s)


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that an actor is given: the ports, the settings, and its dispatcher.

    hosts: None where no agent runs in hosts.
    children: None where no run may have child runs.
    """

    clock: Clock
    ids: Ids
    executor: Executor
    strays: Strays
    processes: Processes
    store: Store
    publisher: Publisher
    dispatcher: Dispatcher
    dead_letters: DeadLetters
    settings: Settings
    hosts: Hosts | None = None
    children: Children | None = None


__all__ = [
    "Batch",
    "CallRow",
    "ChildSpec",
    "Children",
    "Clock",
    "Executor",
    "HostedAgent",
    "Hosts",
    "Ids",
    "Isolation",
    "Json",
    "KeptStop",
    "Ports",
    "ProcessRow",
    "Processes",
    "Provenance",
    "Publisher",
    "RequestRow",
    "SessionRow",
    "Settings",
    "Snapshot",
    "SpawnSpec",
    "Store",
    "Strays",
    "Timer",
    "ToolOffer",
    "WaitingRow",
]
