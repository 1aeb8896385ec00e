"""Every message, by receiver: commands (what someone wants) apart from reports (what has happened).

Lanes. A class says which lane it takes: `urgent` messages (requests from outside, halts, commits, timers)
are handled before all ordinary ones (what children report, in the order they report it). `bounded`
requests are refused by a mailbox that holds too many of them; a Stop never is.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from actors.errors import Invalid
from actors.model import (
    OUTSIDE_SOURCES,
    Address,
    How,
    Json,
    JsonObject,
    Message,
    Mode,
    Outcome,
    Owner,
    Policy,
    Provenance,
    Row,
    Scope,
    Signalled,
    Waiting,
)
from actors.secrets import NOTHING, Withheld
from actors.text import not_utf8, shown, storable

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import Context
    from enum import StrEnum

    from pykka import ActorRef

    from actors.cancel import CancelToken, Cell
    from actors.ports import Snapshot, SpawnSpec
    from actors.spawning import Process

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_MAX_CHARS = 128
OWN_PREFIXES = ("run_", "rcpt_", "call_", "proc_", "inc_")
"""How ids begin that the supervisor makes. A receipt may go by its Stop's id, so no request may look like these."""


def new_request_id() -> str:
    """Return a fresh request id: 48 bits of milliseconds, 10 of microseconds, then 70 random bits, in base 32.

    The time in it lets a session tell an id that is older than its memory from one that is new (law L10), and a message
    that was sent before a Stop from one that was sent after it (law L4).
    """
    milliseconds, microseconds = divmod(time.time_ns() // 1_000, 1_000)
    random = int.from_bytes(os.urandom(9), "big") >> 2
    number = milliseconds << 80 | microseconds << 70 | random
    digits = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return "req_" + "".join(digits)


def request_time(request_id: str) -> float | None:
    """Return the seconds since the epoch that a request id carries; None for an id of another make."""
    digits = request_id.removeprefix("req_")
    if len(digits) != 26 or digits == request_id or any(digit not in _ALPHABET for digit in digits):
        return None
    number = 0
    for digit in digits:
        number = number << 5 | _ALPHABET.index(digit)
    # In an id of another make these bits may be random: they are within its millisecond all the same.
    microseconds = min(number >> 70 & 1023, 999)
    return ((number >> 80) * 1_000 + microseconds) / 1_000_000


def _text(message: Struct, name: str, *, empty: bool = False) -> str:
    value = getattr(message, name)
    if isinstance(value, str):
        value = storable(value)
        force_setattr(message, name, value)
    if not isinstance(value, str) or (not empty and not value.strip()):
        raise Invalid(
            f"this {name} is not usable",
            expected="a text" if empty else "a non-empty text",
            got=shown(value),
            remedy=f"give {name} as {'a text' if empty else 'a text that is not empty'}",
        )
    return value


def _enum(message: Struct, name: str, kind: type[StrEnum]) -> None:
    value = getattr(message, name)
    try:
        # What is no text at all is not asked to show itself, as an enum would ask it.
        force_setattr(message, name, kind(storable(value) if isinstance(value, str) else ""))
    except ValueError:
        raise Invalid(
            f"this {name} is not known",
            expected=" | ".join(kind),
            got=shown(value),
            remedy=f"give {name} as one of: {', '.join(kind)}",
        ) from None


def _check_id(message: Struct) -> None:
    identity = _text(message, "id")
    if len(identity) > ID_MAX_CHARS:
        raise Invalid(
            "a request id is too long",
            expected=f"at most {ID_MAX_CHARS} characters",
            got=f"{len(identity)} characters",
            remedy="leave the id out: the request makes its own",
        )
    if identity.startswith(OWN_PREFIXES):
        raise Invalid(
            "a request cannot have an id that the supervisor could have made for something else",
            expected=f"an id that begins with none of {', '.join(OWN_PREFIXES)}",
            got=repr(identity),
            remedy="leave the id out: the request makes its own",
        )


def _check_seconds(message: Struct, name: str) -> None:
    value = getattr(message, name)
    if value is None:
        return
    try:
        seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise Invalid(
            f"{type(message).__name__}.{name} is not a time",
            expected="seconds since the epoch, UTC, or None",
            got=shown(value),
            remedy="use time.time()",
        )
    force_setattr(message, name, seconds)


def _check_outside(message: Struct, source: str) -> None:
    if not source.startswith(OUTSIDE_SOURCES):
        raise Invalid(
            f"a {type(message).__name__} from outside cannot claim an inside source",
            expected="'user.<door>' or 'client.<name>'",
            got=repr(source),
            remedy="name the door it came through, such as 'user.console'",
        )


def _check_bool(message: Struct, name: str) -> None:
    value = getattr(message, name)
    if not isinstance(value, bool):
        raise Invalid(
            f"{type(message).__name__}.{name} is neither yes nor no",
            expected="True or False",
            got=shown(value),
            remedy=f"give {name} as a bool",
        )


# ── Requests from outside (urgent, one lane: a client's own order holds) ──────────────────────────


class Request(Struct, frozen=True, kw_only=True, tag=True):
    """What all requests share: an id that makes the same object sent again have one effect (law L10)."""

    urgent: ClassVar[bool] = True
    bounded: ClassVar[bool] = True

    id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        _check_id(self)


class Attachment(Struct, frozen=True):
    """Bytes that are kept beside a message. The name is a digest of them."""

    name: str
    data: bytes


def _attachment_name(data: bytes) -> str:
    import hashlib

    return f"att_{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _check_attachments(message: NewMessage) -> None:
    """Attach the content's bytes where its text does not keep them; nothing else is attached."""
    content: object = message.content
    data = not_utf8(content) if isinstance(content, str) else None
    if data is not None:
        force_setattr(message, "attachments", (Attachment(_attachment_name(data), data),))
    attachments: object = message.attachments
    if not isinstance(attachments, tuple) or not all(
        isinstance(one, Attachment) and type(one.data) is bytes and one.name == _attachment_name(one.data)
        for one in attachments
    ):
        raise Invalid(
            "NewMessage.attachments is made by the message itself",
            expected="a content whose bytes are not UTF-8, and nothing here",
            got=shown(attachments),
            remedy="leave the attachments out",
        )


class NewMessage(Request, frozen=True, kw_only=True, tag=True):
    """A message for the session's agent.

    Content that has no UTF-8 form is shown with U+FFFD where it cannot be, and its bytes are kept as the attachment.

    `policy` says what happens to an active run; None is the default of the origin: a person (``user``)
    interrupts, all others enqueue. `merge=False` gives a waiting message a turn of its own. `sent_at`
    (epoch seconds, UTC) is when it left its sender: one sent before the last Stop is returned.
    """

    content: str
    policy: Policy | None = None
    origin: str = "user"
    merge: bool = True
    sent_at: float | None = None
    attachments: tuple[Attachment, ...] = ()

    if TYPE_CHECKING:
        # The words of an enum are accepted too: `__post_init__` makes them members.
        def __init__(
            self,
            *,
            content: str,
            policy: Policy | str | None = None,
            origin: str = "user",
            merge: bool = True,
            sent_at: float | None = None,
            id: str = "",  # noqa: A002  # it is the field's name
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_id(self)
        _check_attachments(self)
        _text(self, "content", empty=True)
        _text(self, "origin")
        _check_seconds(self, "sent_at")
        _check_bool(self, "merge")
        if self.policy is not None:
            _enum(self, "policy", Policy)

    @property
    def resolved_policy(self) -> Policy:
        """The policy that applies: the one given, else that of the origin."""
        if self.policy is not None:
            return self.policy
        return Policy.INTERRUPT if self.origin == "user" else Policy.ENQUEUE


class Stop(Request, frozen=True, kw_only=True, tag=True):
    """End the current run, or the run named, and everything it started.

    `waiting` says what becomes of messages that wait. None is ``withdraw``, or ``keep`` for a Stop
    aimed at a run, which touches that run and nothing else (law L9).
    """

    bounded: ClassVar[bool] = False

    source: str
    reason: str
    run_id: str | None = None
    scope: Scope = Scope.RUN
    mode: Mode = Mode.GRACEFUL
    waiting: Waiting | None = None
    origin: str = "user"
    sent_at: float | None = None
    requested_by: str | None = None

    if TYPE_CHECKING:
        # The words of the enums are accepted too: `__post_init__` makes them members.
        def __init__(
            self,
            *,
            source: str,
            reason: str,
            run_id: str | None = None,
            scope: Scope | str = Scope.RUN,
            mode: Mode | str = Mode.GRACEFUL,
            waiting: Waiting | str | None = None,
            origin: str = "user",
            sent_at: float | None = None,
            requested_by: str | None = None,
            id: str = "",  # noqa: A002  # it is the field's name
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "source")
        _text(self, "reason")
        _text(self, "origin")
        for name in ("run_id", "requested_by"):
            if getattr(self, name) is not None:
                _text(self, name)
        _check_seconds(self, "sent_at")
        _enum(self, "scope", Scope)
        _enum(self, "mode", Mode)
        if self.waiting is not None:
            _enum(self, "waiting", Waiting)
        _check_outside(self, self.source)
        Provenance(source=self.source, reason=self.reason)

    @property
    def resolved_waiting(self) -> Waiting:
        """What happens to waiting messages when the caller did not say."""
        if self.waiting is not None:
            return self.waiting
        return Waiting.WITHDRAW if self.run_id is None else Waiting.KEEP


class Resume(Request, frozen=True, kw_only=True, tag=True):
    """Start a run that sees the thread as it is, with the messages that were parked as its inputs."""

    origin: str = "user"

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "origin")


class Withdraw(Request, frozen=True, kw_only=True, tag=True):
    """Take one waiting message back."""

    message_id: str

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "message_id")


class Answer(Request, frozen=True, kw_only=True, tag=True):
    """A person's answer to a call that waits for one. Where no such call waits it is a dead letter."""

    call_id: str
    content: str

    def __post_init__(self) -> None:
        _check_id(self)
        _text(self, "call_id")
        _text(self, "content", empty=True)


class Delete(Request, frozen=True, kw_only=True, tag=True):
    """Delete the session: end what runs, wait for the proofs, then remove all that is stored of it.

    What is left is a tombstone, without content: the generation and the seq go on from it where the name is used again,
    and requests from before are too old. The answer is given when the rows are gone.
    """

    source: str
    reason: str
    requested_by: str | None = None

    def __post_init__(self) -> None:
        _check_id(self)
        for name in ("source", "reason"):
            _text(self, name)
        if self.requested_by is not None:
            _text(self, "requested_by")
        _check_outside(self, self.source)
        Provenance(source=self.source, reason=self.reason)


class Inspect(Struct, frozen=True):
    """Ask a session for its `SessionStatus`; changes nothing."""

    urgent: ClassVar[bool] = True
    bounded: ClassVar[bool] = False


Decided: TypeAlias = NewMessage | Stop | Resume | Withdraw | Answer
"""Requests that are answered as soon as what was decided is durable."""

OutsideRequest: TypeAlias = Decided | Delete


# ── Answers (stored with the request's id, and given only after the commit) ───────────────────────


class Accepted(Struct, frozen=True, tag=True):
    """A message was accepted. `generation` is None while it waits; `returned` says why it came back.

    `fate` is in the answer to a repeat, of a message that was `queued`: what it became, ``input`` or ``returned``.
    It is None in the first answer, and for as long as the message waits; all else is as it was in the first answer.
    """

    message_id: str
    run_id: str | None
    generation: int | None
    policy: Policy
    queued: bool = False
    superseded_run_id: str | None = None
    with_messages: tuple[Message, ...] = ()
    returned: str | None = None
    fate: str | None = None


UNKNOWN = "unknown"
"""The outcome of a Stop of which the session cannot say yet what it comes to."""


class Stopped(Struct, frozen=True, tag=True):
    """A Stop was handled; the fence is shut. The receipt follows when all parts have ended.

    outcome: ``stopped | stopping | nothing_running | already_over``. It stands, with `run_id` and `receipt_id`: the
    same Stop is answered so whenever it is sent again. `fence_seq`, `withdrawn` and `joined` may be added to while it
    is not `durable`. ``unknown``: the session could not be read, so nothing is known yet; or the Stop had an
    answer before the session was deleted, which may not be stored. The Stop is kept and decided when it can be, and
    `receipt_id` finds its receipt then. Where it is not `durable` yet, `journalled` says whether it is in the stop
    journal, so that a crash does not forget it.
    """

    outcome: str
    run_id: str | None
    receipt_id: str
    fence_seq: int | None
    durable: bool = True
    journalled: bool = False
    withdrawn: tuple[Message, ...] = ()
    joined: tuple[str, ...] = ()


class Resumed(Struct, frozen=True, tag=True):
    """A run was started from the thread as it stood."""

    run_id: str
    generation: int
    with_messages: tuple[Message, ...] = ()


class Withdrawn(Struct, frozen=True, tag=True):
    """What became of a Withdraw: ``withdrawn | already_input | already_returned``."""

    message_id: str
    outcome: str


class Deleted(Struct, frozen=True, tag=True):
    """The session was deleted; `seq` is that of the event which says so, the only one that is left."""

    session: str
    seq: int


Reply: TypeAlias = Accepted | Stopped | Resumed | Withdrawn | Deleted


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


class Down(Report, frozen=True):
    """A child actor is gone; it comes after everything the child sent. `failure` is None for a normal stop."""

    child: ActorRef[Any]
    key: str
    failure: str | None


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


def digest(request: OutsideRequest) -> bytes:
    """Return what identifies a request's content apart from its id."""
    import hashlib

    return hashlib.blake2b(msgspec.json.encode(request), digest_size=16).digest()
