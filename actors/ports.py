"""The ports: what is not deterministic, and what the core needs from outside.

Nothing in `actors/` reads a clock, makes an id, starts a thread or touches a file but through these. The
same actors run over the real ones in `supervisor/` and over simulated ones in `tests/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct, field

from actors.model import Address, Event, How, Json, JsonObject, Owner, Provenance, Receipt, Row, RunInfo
from actors.requests import NewMessage, Stop, Stopped

if TYPE_CHECKING:
    from contextvars import Context

    from pykka import ActorRef

    from actors.dead_letters import DeadLetters
    from actors.gate.token import CancelToken
    from actors.kernel.dispatcher import Dispatcher
    from actors.thread import Thread

Isolation = Literal["task", "thread"]


class Timer(Protocol):
    """A pending timer."""

    def cancel(self) -> None:
        """Take it back; nothing happens when it has fired."""


class Clock(Protocol):
    """Time, and timers that become messages."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC; for people."""

    def call_later(self, delay_s: float, ref: ActorRef[Any], message: Struct) -> Timer:
        """Tell `ref` the message after `delay_s` seconds; a dead actor makes it a no-op."""


class Ids(Protocol):
    """Names for what comes into being."""

    def new(self, kind: str) -> str:
        """Return a fresh id such as ``run_…`` for kind ``run``; no two are the same, across restarts too."""


class Executor(Protocol):
    """Where agents, tools and callbacks run: never on a dispatcher thread."""

    def start(
        self,
        key: str,
        name: str,
        isolation: Isolation,
        body: Callable[[], Any],
        owner: ActorRef[Any],
        token: CancelToken | None = None,
        context: Context | None = None,
    ) -> None:
        """Register `key`, then run `body` and tell `owner` ExecutionEnded, once.

        isolation ``task``: `body` returns a coroutine, run on the executor's event loop; ``thread``: `body`
        is called on a thread named after the execution. Whatever it raises, BaseException too, is caught. `token`
        is its token: where that is cancelled before the first line of a task, no line of it runs. `context` has the
        context variables that it runs with, and is its own.
        """

    def cancel(self, key: str, *, again: bool = False) -> None:
        """Cancel the task, if it is one; a thread learns of it by its token. Unknown keys are ignored.

        An end is told once: where the task was cancelled before, or a door of its token has told it, this does
        nothing. `again`: whatever it was told, for one that goes on in spite of it.
        """

    def adopt(self, key: str, owner: ActorRef[Any]) -> bool:
        """From here on tell `owner`; an end that has happened is told again. False: the key is not known."""

    def forget(self, key: str) -> None:
        """The end of `key` was taken note of; it may be forgotten."""

    def call(self, callback: Callable[[], None]) -> None:
        """Run a callback soon, on another thread, with its errors contained."""


class Strays(Protocol):
    """What code of agents and tools starts by itself inside this process: processes, threads, tasks (law L3).

    A start is told to the owner of its run before the end of what started it is. So when the last execution of a run
    has ended, and each stray that was told, nothing that can be attributed to the run is left.
    """

    def within(
        self, address: Address, isolation: Isolation, token: CancelToken, body: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return `body` for the executor. What it starts is attributed to `address`; see `Executor.start`.

        A process that it starts once `token` is cancelled is a clean-up's: it is not asked to end before `body` has
        ended, and killed when its time is over.
        """

    def adopt(self, address: Address, owner: ActorRef[Any], claimed: Sequence[ProcessRow] = ()) -> None:
        """From here on tell `owner` StrayFound and StrayEnded of the run; what is known is told again.

        `claimed` are strays on record. The end of one that is not known is told: its process ended with the supervisor
        that it was in, or is ended now.
        """

    def end(self, address: Address, grace_s: float) -> None:
        """End the strays of a run, or of one call of it.

        A process and what is below it: SIGTERM and SIGCONT now, SIGKILL after `grace_s` seconds. A task is cancelled
        once, when what started it has ended. A thread cannot be ended. What is started later is ended too. Again with
        less grace it escalates.
        """

    def forget(self, stray_id: str) -> None:
        """The end of the stray is in the log."""


class SpawnSpec(Struct, frozen=True):
    """A command to spawn: `argv` as exec takes it, `env` added to the clean environment, `name` for people.

    `stdin` is all that it can read from its input. With `pty` it gets a terminal of `pty_size` (columns, rows), on
    which nothing is typed, and all it writes is stream ``stdout``. The values of `env`, and `stdin`, may be secret: no
    text of it has them.
    """

    argv: tuple[str, ...]
    name: str
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    pty_size: tuple[int, int] = (80, 24)
    stdin: bytes | None = None

    def __repr__(self) -> str:
        return f"SpawnSpec({self.name!r}, {self.argv!r}, env of {', '.join(self.env) or 'nothing'})"


class Processes(Protocol):
    """Process trees, each with its warden. All reports go to the tree's owner, an actor."""

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """Register `process_id`, of a `session`, then spawn. Never blocks, never raises for what the world does.

        Tells the owner ProcessStarted, ProcessOutput (any number), ProcessExited, ProcessEnded, in this
        order; or ProcessEnded alone (NOT_STARTED) where nothing could be spawned. ProcessRemaining, before the end,
        if some of a killed tree cannot be killed.
        """

    def kill(self, process_id: str, grace_s: float) -> None:
        """End the tree: SIGTERM and SIGCONT now, SIGKILL after `grace_s` seconds, until it is proven gone.

        0 kills at once. Again with less grace it escalates; it is never put off. An id that is not known is ignored.
        """

    def kill_session(self, session: str, grace_s: float) -> None:
        """End every tree of a session that was spawned here; see `kill`."""

    def adopt(self, process_id: str, owner: ActorRef[Any]) -> None:
        """From here on tell `owner`, and tell it again what it may have missed (exit, who remains, end).

        For an id that this instance never spawned, the ledger that its warden left is read: ProcessEnded
        follows when that warden is done, or says that nothing was found.
        """

    def forget(self, process_id: str) -> None:
        """The end of the tree is in the log: what is kept of it (its ledger too) may go."""

    def forget_session(self, session: str) -> None:
        """A session was deleted, and all its trees have ended: the files of their output go too."""


# ── The store ─────────────────────────────────────────────────────────────────────────────────────


class SessionRow(Struct, frozen=True):
    """A session's own facts. Times: seconds, epoch, UTC.

    `cutoffs`: by origin, when its last Stop was sent. `forgotten_to`: a request made up to then may have been answered,
    and its answer is not kept any more. `deleted`: it is a tombstone, and nothing has happened since.
    """

    session: str
    generation: int
    seq: int
    parked: bool = False
    quarantined: bool = False
    cutoffs: dict[str, float] = field(default_factory=dict)
    forgotten_to: float = 0.0
    deleted: bool = False


class CallRow(Struct, frozen=True):
    """A call. state: ``requested | granted | started | ended``; `outcome` once its result is in the log.

    `ended_at` and `how` are of what executed it, which may end after its result is in the log.
    """

    session: str
    run_id: str
    call_id: str
    tool: str
    arguments: JsonObject
    state: str
    isolation: str = "thread"
    outcome: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    how: How | None = None


class ProcessRow(Struct, frozen=True):
    """A process tree. state: ``granted | ended``: granted is on record before it is spawned.

    `kind` is another than ``process`` for a stray, which is on record once it is found: see `Strays`. Then `call_id` is
    empty where the agent started it, and `born` and `ours` are as in `StrayFound`.

    `end` is what the receipt says of one that has ended. Of a tree that belongs to its session: `generation` is that
    of the run that started it, `owned_at` when it became the session's, `ending` why the session ends it (None while
    it does not), and `receipts` the runs and the receipts of Stops that wait for its end. Times: seconds, epoch, UTC.
    """

    session: str
    run_id: str
    call_id: str
    process_id: str
    name: str
    state: str
    end: Row | None = None
    owner: Owner = Owner.RUN
    generation: int = 0
    owned_at: float | None = None
    pid: int | None = None
    started_at: float | None = None
    ending: Provenance | None = None
    receipts: tuple[str, ...] = ()
    kind: str = "process"
    born: str = ""
    ours: bool = True


class WaitingRow(Struct, frozen=True):
    """A message that waits: `place` orders the queue, `run_id` is the turn it waits for, steering or not."""

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

    `outcome`, `run_id` and `receipt_id` are its answer, where it was decided by then: that answer stands. `generation`
    is what the session had counted when it was decided. `cause` is what had ended before it came, where the Stop was
    not the first to end it.
    """

    session: str
    stop: Stop
    at: float
    outcome: str | None = None
    run_id: str | None = None
    receipt_id: str | None = None
    generation: int | None = None
    cause: Provenance | None = None

    @property
    def answer(self) -> Stopped | None:
        """The answer that it had, as far as that stands; None if it was not decided."""
        if self.outcome is None:
            return None
        return Stopped(self.outcome, self.run_id, self.receipt_id or self.stop.id, None, durable=False)

    def is_about(self, run: RunInfo) -> bool:
        """True if this Stop was to end a run that is on record as open, or was told that it is over."""
        if self._came_before(run):
            return False
        return self.stop.run_id in (None, run.run_id)

    def may_have_ended(self, run: RunInfo) -> bool:
        """True if this Stop may have ended a run that it is about: it did not find it over.

        One that found nothing to end, or joined the end of another run, came behind the end of this one.
        """
        if self.outcome == "stopping":
            return self.run_id == run.run_id
        return self.outcome not in ("nothing_running", "already_over")

    def _came_before(self, run: RunInfo) -> bool:
        # The clock may have been set back in between. So where the generations are known, they have to say it too.
        if run.started_at is None or run.started_at <= self.at:
            return False
        return self.generation is None or run.generation is None or run.generation > self.generation


class AttachmentRow(Struct, frozen=True):
    """Bytes that came where text was expected; `at` is epoch seconds, UTC."""

    session: str
    name: str
    data: bytes
    at: float


class Batch(Struct, frozen=True):
    """What one step of a session decided, written in one transaction.

    `number` counts a session's batches from 1 within one incarnation; `incarnation` tells incarnations
    apart, so that a retry of the same batch is known. Rows are upserts by their id; `unwaiting` are ids
    of messages that wait no longer. `pending` are receipts that wait for process trees of the session; filed, they
    are among `receipts`. `erase`: all rows of the session are removed first.
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
    """What the store holds of a session, for an actor that takes it up.

    `runs` are those that are not settled (queued ones too) or are `late`, with their `calls` and `processes`, ended or
    not, and for the late ones their `receipts`; `said` are ids of runs among them that have text or a call on record.
    `fates` says what became of each message that does not wait: ``input | returned``. `requests` in order of age,
    oldest first.
    `over`: the receipt id of every other run. `processes` are also those of the session itself that have not ended, and
    `pending` the receipts that wait for them. `kept` are Stops from the stop journal, the oldest first;
    `told_durable` are ids of Stops whose `session.stop_durable` is in the log. `printed` is, for each of `calls` that
    has not ended, the end of what it has printed so far. `left_out` names rows that cannot be read.
    """

    session: str
    row: SessionRow | None
    thread: Thread
    runs: tuple[RunInfo, ...] = ()
    calls: tuple[CallRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    said: frozenset[str] = frozenset()
    fates: dict[str, str] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    pending: tuple[Receipt, ...] = ()
    kept: tuple[KeptStop, ...] = ()
    told_durable: frozenset[str] = frozenset()
    printed: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class Store(Protocol):
    """The log and the rows, and beside them the stop journal.

    All calls return at once; what comes of `commit` and `load` is told to `owner`.
    """

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Write a batch; tell Committed when it is durable, or CommitFailed.

        Batches of an incarnation commit in order of their number. After one that failed, every later one
        of that incarnation fails too, until a new incarnation starts at 1.
        """

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session after all that was committed before; tell Loaded or LoadFailed."""

    def keep_stop(self, kept: KeptStop, owner: ActorRef[Any]) -> None:
        """Write a Stop to the stop journal, which does not wait for the store; again is harmless.

        Once it is there, which is told as StopKept, it survives a crash: whoever loads the session gets it, until it is
        forgotten. Where there is no room for it nothing is told.
        """

    def forget_stop(self, session: str, request_id: str) -> None:
        """The Stop, and the event that says so, are durable in the store: the journal may let it go."""


class Publisher(Protocol):
    """Where committed events go for subscribers. Never blocks: subscribers pull."""

    def publish(self, session: str, events: Sequence[Event]) -> None:
        """Make committed events known, in sequence order."""

    def ephemeral(self, event: Event) -> None:
        """Show an event that is not stored to those who asked for such; it may be dropped."""


class Settings(Struct, frozen=True):
    """Policy as data: graces and deadlines in seconds, limits in items or bytes.

    `passivate_s`: a session that was not used for so long, twice that at most, leaves memory; None: never.
    """

    agent: str = "shell"
    grace_s: float = 2.0
    kill_s: float = 5.0
    run_deadline_s: float | None = None
    call_deadline_s: float | None = None
    queue_max: int = 1000
    message_max_bytes: int = 1_048_576
    barrier: Literal["forced", "strict"] = "forced"
    credit_events: int = 256
    credit_bytes: int = 1_048_576
    content_max_bytes: int = 1_048_576
    calls_open_max: int = 64
    processes_max: int = 64
    requests_kept: int = 10_000
    requests_kept_s: float = 7 * 86_400.0
    attempts_max: int = 3
    passivate_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything an actor is given: the ports, the settings, and who runs it."""

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


__all__ = [
    "Batch",
    "CallRow",
    "Clock",
    "Executor",
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
    "WaitingRow",
]
