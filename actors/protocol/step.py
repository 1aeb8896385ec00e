"""A step: what a session decided for one message of its mailbox, before anything is carried out.

Its records go to the store in one batch. Its effects are of two kinds:

- `Now`: effects that end or refuse something: halts, refusals, dead letters. They are carried out at once, since
  nothing has to be durable before them.
- `Later`: effects that start or tell something: starts, permits, answers. They are carried out in order, after the
  commit of the batch. Decisions may be ahead of the store; these effects may not.
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
from actors.messages import ChildReport, ProcessNews, SpawnPermit, Steered, ToolResult
from actors.model import Address, Event, Mode, Provenance, Receipt, RunInfo
from actors.ports import AttachmentRow, CallRow, ProcessRow, RequestRow, SpawnSpec, WaitingRow
from actors.requests import NewMessage, OutsideRequest, Reply

# ── Later: carried out after the commit ───────────────────────────────────────────────────────────


class AnswerRequest(Struct, frozen=True):
    """Answer a request."""

    request: OutsideRequest
    reply: ReplyFuture[Any] | None
    answer: Reply


class StartRun(Struct, frozen=True):
    """Start the actor of a run, if the run is still open."""

    run_id: str


class OpenBarrier(Struct, frozen=True):
    """Wait no longer for the parts of a run, or for trees of the session: it is on record that they were abandoned."""

    run_id: str | None = None
    trees: tuple[str, ...] = ()


class GivePermit(Struct, frozen=True):
    """Let a call start, if its cell is still granted."""

    run_id: str
    call_id: str
    cell: Cell[ToolResult]
    token: CancelToken


class GiveAnswer(Struct, frozen=True):
    """Give a run the result of a call, now that it is durable: a person's answer, or a result with files."""

    run_id: str
    call_id: str
    result: ToolResult


class GiveSpawn(Struct, frozen=True):
    """Let a process be spawned. Its cell refuses the spawn if there was a fence meanwhile."""

    run_id: str
    permit: SpawnPermit


class GiveSteering(Struct, frozen=True):
    """Give a run its steering messages, which are in the thread now."""

    run_id: str
    steered: Steered


class ReturnCredit(Struct):
    """Return the credit for reports of the agent that follow one another. `sizes`: of each, in bytes."""

    run_id: str
    sizes: list[int]


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


class ForgetEnded(Struct, frozen=True):
    """The actor of a run is gone, and with it what it was to have forgotten: forget all in the session that has ended.

    parts, runs: those that were open when this was decided are not forgotten, since their ends may not be on record
        yet. Nor are those that are open by then.
    """

    parts: frozenset[str]
    runs: frozenset[str]


class ForgetSession(Struct, frozen=True):
    """The deletion of the session is durable: its files outside of the store are deleted too."""


class AdoptRun(Struct, frozen=True):
    """Take over the parts that a run of an earlier incarnation, or a failed run actor, may still have running."""

    run_id: str


class SpawnOwn(Struct, frozen=True):
    """Spawn a process tree of the session, unless there was a fence meanwhile."""

    address: Address
    process_id: str
    spec: SpawnSpec
    listener: Callable[[ProcessNews], None] | None


class SayHandedOver(Struct, frozen=True):
    """Tell a tool that the session owns its process tree: the record of that is durable."""

    process_id: str
    handed: Future[None]


class SaySaved(Struct, frozen=True):
    """Tell an agent that what it saved is durable, or that it handed its session over."""

    saved: Future[None]


class ReleaseHost(Struct, frozen=True):
    """Release a host: the run or call that it was reserved for is not sent to it, and that is durable."""

    process_id: str


class KeepHost(Struct, frozen=True):
    """The session keeps a host: that is durable. Then it is ended when it was idle for its time."""

    process_id: str


class AdoptTree(Struct, frozen=True):
    """Take over a process tree of the session from an earlier incarnation."""

    process_id: str


class ForgetStop(Struct, frozen=True):
    """A Stop of the journal, and the event that reports it, are durable: the journal may drop the Stop."""

    request_id: str


class TellParent(Struct, frozen=True):
    """Answer who waits for a report on a child run."""

    reply: ReplyFuture[Any]
    report: ChildReport


class RefuseDeleted(Struct, frozen=True):
    """Refuse a request that was answered before: its session is deleted, and the deletion is durable."""

    request: OutsideRequest
    reply: ReplyFuture[Any] | None
    error: CountermandError


Later: TypeAlias = (
    AnswerRequest
    | StartRun
    | OpenBarrier
    | GivePermit
    | GiveAnswer
    | GiveSpawn
    | GiveSteering
    | ReturnCredit
    | ShowEphemeral
    | ForgetPart
    | ForgetEnded
    | ForgetSession
    | AdoptRun
    | SpawnOwn
    | SayHandedOver
    | SaySaved
    | ReleaseHost
    | KeepHost
    | AdoptTree
    | ForgetStop
    | TellParent
    | RefuseDeleted
)

# ── Now: carried out at once ──────────────────────────────────────────────────────────────────────


class HaltRun(Struct, frozen=True):
    """Tell a run to end its parts, and set its kill deadline, at which the remaining ones are named abandoned."""

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
    """Tell a run that a granted call is closed, with this result.

    `provenance` says why its execution has to end; None if it is ending already.
    """

    run_id: str
    call_id: str
    result: ToolResult
    provenance: Provenance | None


class MakeWait(Struct, frozen=True):
    """Tell a run that a call waits for the barrier or for a person, or a spawn of the agent's own for the barrier.

    The run's deadline is suspended.
    """

    run_id: str
    call_id: str


class RefuseSpawn(Struct, frozen=True):
    """Tell a run that a process will not be spawned; see `SpawnRefused`."""

    run_id: str
    call_id: str
    process_id: str
    limit: int | None = None
    reason: str = ""


class TakeTree(Struct, frozen=True):
    """Take a process tree from its run, which must not end it any more.

    It is carried out at once, while the store writes the record: a halt of the run does not wait for the store either,
    and must not reach the tree. It is reported only when the record is durable.
    """

    address: Address
    process_id: str
    listener: Callable[[ProcessNews], None] | None


class LetTreeGo(Struct, frozen=True):
    """A process tree that was the session's is a run's again: nothing of the session ends it any more."""

    process_id: str


class RefuseHandOver(Struct, frozen=True):
    """Tell a tool that its run keeps the process tree."""

    handed: Future[None]
    error: BaseException


class RefuseSave(Struct, frozen=True):
    """Tell an agent that nothing was saved, or handed over."""

    saved: Future[None]
    error: BaseException


class RefuseRequest(Struct, frozen=True):
    """Refuse a request that still waits for its answer."""

    reply: ReplyFuture[Any] | None
    error: CountermandError


class EndTrees(Struct, frozen=True):
    """End process trees of the session, and set the deadline at which the remaining ones are named abandoned."""

    process_ids: tuple[str, ...]
    provenance: Provenance
    mode: Mode
    stage: int


class KillTree(Struct, frozen=True):
    """End a process tree of the session for its tool, with `grace_s` seconds of grace. Nothing waits for its end."""

    process_id: str
    provenance: Provenance
    grace_s: float


class NothingToSteer(Struct, frozen=True):
    """Tell a run that there is no steering message for it."""

    run_id: str
    request_id: int


class KeepDeadLetter(Struct, frozen=True):
    """Count and keep a report that came too late, or one letter for `count` of them."""

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
    | LetTreeGo
    | RefuseHandOver
    | RefuseSave
    | RefuseRequest
    | EndTrees
    | KillTree
    | NothingToSteer
    | KeepDeadLetter
)


@dataclass(slots=True)
class Step:
    """What was decided since the last batch."""

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
        """True if there is a record to write."""
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

    def return_credit(self, run_id: str, size: int) -> None:
        """Return the credit for a report of `size` bytes."""
        last = self.later[-1] if self.later else None
        if isinstance(last, ReturnCredit) and last.run_id == run_id:
            last.sizes.append(size)
        else:
            self.later.append(ReturnCredit(run_id, [size]))

    def wait(self, row: WaitingRow) -> None:
        """Record that a message waits."""
        self.unwaiting.pop(row.message.id, None)
        self.waiting[row.message.id] = row

    def unwait(self, message: NewMessage) -> None:
        """Record that a message waits no longer."""
        self.waiting.pop(message.id, None)
        self.unwaiting[message.id] = None
