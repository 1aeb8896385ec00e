"""A step: what one turn of a session's mailbox decided, before anything of it is carried out.

Records go to the store in one batch. Effects are of two kinds. *Now* is what takes away: halts, refusals,
dead letters; it need not wait for the store. *Later* is what acts: starts, permits, answers, publishing; it
is carried out when the batch is committed, in order (deciding may run ahead of the store, acting may not).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

from actors.errors import CountermandError
from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.kernel.future import ReplyFuture
from actors.messages import ProcessNews, SpawnPermit, Steered, ToolResult
from actors.model import Address, Event, Mode, Provenance, Receipt, RunInfo
from actors.ports import AttachmentRow, CallRow, ProcessRow, RequestRow, SpawnSpec, WaitingRow
from actors.requests import NewMessage, OutsideRequest, Reply

# ── Later: carried out after the commit ───────────────────────────────────────────────────────────


class AnswerRequest(Struct, frozen=True):
    """Give a request its answer."""

    request: OutsideRequest
    reply: ReplyFuture[Any] | None
    answer: Reply


class StartRun(Struct, frozen=True):
    """Start a run's actor, if the run is still open by then."""

    run_id: str


class GivePermit(Struct, frozen=True):
    """Let a call start, if its cell is still granted by then."""

    run_id: str
    call_id: str
    cell: Cell[ToolResult]
    token: CancelToken


class GiveSpawn(Struct, frozen=True):
    """Let a process be spawned; its cell refuses if a fence came meanwhile."""

    run_id: str
    permit: SpawnPermit


class GiveSteering(Struct, frozen=True):
    """Hand steering messages over: they are in the thread."""

    run_id: str
    steered: Steered


class ReturnCredit(Struct, frozen=True):
    """Give back the credit of one thing that the agent said."""

    run_id: str
    size: int


class ShowEphemeral(Struct, frozen=True):
    """Show an event that is not stored."""

    event: Event


class Keeper(StrEnum):
    """The port that has a part of a run."""

    EXECUTOR = "executor"
    """The part is the execution of an agent or a call."""
    PROCESSES = "processes"
    """It is a process tree."""
    STRAYS = "strays"
    """It is a stray."""


class ForgetPart(Struct, frozen=True):
    """The end of a part is in the log: the port that has it may forget it."""

    keeper: Keeper
    key: str


class ForgetSession(Struct, frozen=True):
    """The deletion of the session is durable: what lies outside of the store goes too."""


class AdoptRun(Struct, frozen=True):
    """Take over what a run of an earlier incarnation, or a failed run actor, may still have running."""

    run_id: str


class SpawnOwn(Struct, frozen=True):
    """Spawn a process tree of the session, if no fence came meanwhile."""

    address: Address
    process_id: str
    spec: SpawnSpec
    listener: Callable[[ProcessNews], None] | None


class SayHandedOver(Struct, frozen=True):
    """Tell a tool that its process tree is the session's: that is durable."""

    process_id: str
    handed: Future[None]


class AdoptTree(Struct, frozen=True):
    """Take over a process tree of the session that an earlier incarnation left."""

    process_id: str


class ForgetStop(Struct, frozen=True):
    """A Stop that was kept in the journal, and the event that says so, are durable: the journal may let it go."""

    request_id: str


class RefuseDeleted(Struct, frozen=True):
    """Refuse a request that had an answer: what it was about is gone with the session, and the deletion is durable."""

    request: OutsideRequest
    reply: ReplyFuture[Any] | None
    error: CountermandError


Later: TypeAlias = (
    AnswerRequest
    | StartRun
    | GivePermit
    | GiveSpawn
    | GiveSteering
    | ReturnCredit
    | ShowEphemeral
    | ForgetPart
    | ForgetSession
    | AdoptRun
    | SpawnOwn
    | SayHandedOver
    | AdoptTree
    | ForgetStop
    | RefuseDeleted
)

# ── Now: carried out at once ──────────────────────────────────────────────────────────────────────


class HaltRun(Struct, frozen=True):
    """Tell a run to end what it has, and set the time at which what is left is named abandoned."""

    run_id: str
    provenance: Provenance
    mode: Mode
    stage: int


class RefuseCall(Struct, frozen=True):
    """Tell a run that a call will not start."""

    run_id: str
    call_id: str
    result: ToolResult


class CloseCall(Struct, frozen=True):
    """Tell a run that a call that was granted is closed, with this result.

    `provenance` says why what executes it is to end; None: it ends already.
    """

    run_id: str
    call_id: str
    result: ToolResult
    provenance: Provenance | None


class MakeWait(Struct, frozen=True):
    """Tell a run that a call waits for the barrier: its deadline stands still."""

    run_id: str
    call_id: str


class RefuseSpawn(Struct, frozen=True):
    """Tell a run that a process will not be spawned; `limit` is the number that the run may have, if that is why."""

    run_id: str
    call_id: str
    process_id: str
    limit: int | None = None


class TakeTree(Struct, frozen=True):
    """Take a process tree from its run, which must not end it any more.

    Carried out at once, when the record of it is on its way to the store: a halt of the run, which does not wait
    either, must find it taken. Nothing says so to anybody before that record is durable.
    """

    address: Address
    process_id: str
    listener: Callable[[ProcessNews], None] | None


class RefuseHandOver(Struct, frozen=True):
    """Tell a tool that its process tree stays its run's."""

    handed: Future[None]
    error: BaseException


class RefuseRequest(Struct, frozen=True):
    """Refuse a request whose answer was to come later."""

    reply: ReplyFuture[Any] | None
    error: CountermandError


class EndTrees(Struct, frozen=True):
    """End process trees of the session, and set the time at which what is left is named abandoned."""

    process_ids: tuple[str, ...]
    provenance: Provenance
    mode: Mode
    stage: int


class KillTree(Struct, frozen=True):
    """End a process tree of the session for a tool of it, which holds up nothing; in `grace_s` seconds."""

    process_id: str
    provenance: Provenance
    grace_s: float


class NothingToSteer(Struct, frozen=True):
    """Tell a run that no message waits to steer it, or that it may not have one."""

    run_id: str
    request_id: int


class KeepDeadLetter(Struct, frozen=True):
    """Count and keep a reply that came too late, or one letter for `count` of them."""

    kind: str
    why: str
    address: Address | None
    shown: str
    count: int = 1


Now: TypeAlias = (
    HaltRun
    | RefuseCall
    | CloseCall
    | MakeWait
    | RefuseSpawn
    | TakeTree
    | RefuseHandOver
    | RefuseRequest
    | EndTrees
    | KillTree
    | NothingToSteer
    | KeepDeadLetter
)


@dataclass(slots=True)
class Step:
    """What was decided since the last batch was sent."""

    events: list[Event] = field(default_factory=list)
    runs: dict[str, RunInfo] = field(default_factory=dict)
    calls: dict[str, CallRow] = field(default_factory=dict)
    processes: dict[str, ProcessRow] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    pending: dict[str, Receipt] = field(default_factory=dict)
    waiting: dict[str, WaitingRow] = field(default_factory=dict)
    unwaiting: dict[str, None] = field(default_factory=dict)
    requests: list[RequestRow] = field(default_factory=list)
    attachments: list[AttachmentRow] = field(default_factory=list)
    row_changed: bool = False
    erase: bool = False
    now: list[Now] = field(default_factory=list)
    later: list[Later] = field(default_factory=list)

    @property
    def has_records(self) -> bool:
        """True if there is something to write."""
        return bool(
            self.events
            or self.runs
            or self.calls
            or self.processes
            or self.receipts
            or self.pending
            or self.waiting
            or self.unwaiting
            or self.requests
            or self.attachments
            or self.row_changed
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was decided."""
        return not (self.now or self.later or self.has_records or self.erase)

    def wait(self, row: WaitingRow) -> None:
        """Record that a message waits."""
        self.unwaiting.pop(row.message.id, None)
        self.waiting[row.message.id] = row

    def unwait(self, message: NewMessage) -> None:
        """Record that a message waits no longer."""
        self.waiting.pop(message.id, None)
        self.unwaiting[message.id] = None
