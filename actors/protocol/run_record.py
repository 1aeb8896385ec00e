"""What a session knows of one run: its calls with their cells, its parts, and its receipt.

A *part* is something that may still be running: the execution of the agent or of a call, a process tree, a stray. A
part is recorded before it can begin. It ends once, when a report proves its end: the executor reports the end of
executions, and the warden that of processes. So a receipt never claims more than was seen, and the failure of an actor
ends no part.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from actors.gate.cell import Cell
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.messages import ProcessEnded, ProcessRemaining, SpawnRequested, StrayEnded, ToolResult
from actors.model import (
    STRAYS,
    Address,
    CallState,
    Effect,
    How,
    Isolation,
    Mode,
    Outcome,
    Owner,
    PartKind,
    Provenance,
    Receipt,
    Row,
    RunInfo,
    Signalled,
    TreeState,
)
from actors.ports import CallRow, ProcessRow
from actors.run_status import TERMINAL, RunStatus, transition

AGENT = "agent"
"""The id of the part that is the agent's execution."""
OUTPUT_KEPT_CHARS = 4096
OUTPUT_LOGGED_MAX_BYTES = 1_048_576
PARTS_KEPT_MAX = 1000
ENDED_BY_ITSELF: Final = frozenset({How.EXIT, How.NOT_STARTED, How.RETURNED, How.RAISED})
UNDECIDED: Final = frozenset({CallState.REQUESTED, CallState.WAITING})
HANDED_OVER_NOTE = "it belongs to the session: Stop(scope='session') ends it"
KEPT_NOTE = "the session keeps it for the next run of its agent: Stop ends it"


class HasEnd(Protocol):
    """Something that is open until it ends, once."""

    @property
    def open(self) -> bool:
        """True until it has ended."""


E = TypeVar("E", bound=HasEnd)


class OpenIndex(dict[str, E]):
    """Parts or calls of a run by id, in order of creation. The open ones are found without a look at the others.

    An end is found at the next question: two runs may share a part, and its end is reported to neither index. The cost
    of a question grows with the number of open ones and of those that ended since the last question. The value of an id
    is replaced or removed, and its id never changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, E] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __setitem__(self, key: str, one: E) -> None:
        super().__setitem__(key, one)
        self._ended.pop(key, None)
        self._open[key] = one

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._open.pop(key, None)
        self._ended.pop(key, None)

    def open(self) -> list[E]:
        """Return those that have not ended, in order of creation."""
        if not self._open:
            return []
        for key in [key for key, one in self._open.items() if not one.open]:
            del self._open[key]
            self._ended[key] = None
        return list(self._open.values())

    def ended(self) -> Iterable[str]:
        """Return the ids of those whose end was found, in the order in which it was found."""
        return self._ended


@dataclass(slots=True)
class Part:
    """Something of a run that may still be running.

    holds: the barrier waits for its end.
    ours: False for a process of unknown origin. The receipt names it, and nothing waits for its end.
    lost: its warden could not prove its end.
    remaining: what of it could not be killed so far.
    provenance: who ends it, if that is not the end of the run; of a tree of the session, whoever does.
    effects: what its code has begun behind guards, when the receipt was filed last.
    """

    id: str
    kind: PartKind
    name: str
    parent: str | None
    holds: bool
    ours: bool = True
    started_at: float | None = None
    ended_at: float | None = None
    how: How | None = None
    status: int | None = None
    pid: int | None = None
    reaped: int = 0
    signals: tuple[Signalled, ...] = ()
    rows: tuple[Row, ...] = ()
    note: str = ""
    lost: bool = False
    remaining: ProcessRemaining | None = None
    provenance: Provenance | None = None
    effects: tuple[Effect, ...] = ()

    @property
    def ended(self) -> bool:
        """True once its end is proven."""
        return self.ended_at is not None

    @property
    def open(self) -> bool:
        """True while it may still be running."""
        return self.ended_at is None

    def end(self, how: How | None, at: float, note: str = "") -> None:
        """Record its end."""
        self.remaining = None
        self.how, self.ended_at = how, at
        self.note = note or self.note

    def ended_by(self, provenance: Provenance) -> None:
        """Record who ends it. The first one stays."""
        if not self.ended and self.provenance is None:
            self.provenance = provenance

    def end_process(self, news: ProcessEnded) -> None:
        """Record the warden's last report of a tree. If the end is not proven, the part stays open and is `lost`."""
        self.pid = self.pid if news.pid is None else news.pid
        self.started_at = self.started_at if news.started_at is None else news.started_at
        self.status = self.status if news.status is None else news.status
        self.reaped, self.signals = news.reaped, news.signals
        # The row of this part is that of the command itself.
        self.rows = tuple(row for row in news.rows if not self._is(row))
        self.note = news.note or self.note
        if news.how in ENDED_BY_ITSELF and not news.signals:
            # It had ended by itself before the request to end it arrived.
            self.provenance = None
        if news.proven:
            self.end(news.how, news.at)
        else:
            self.lost = True

    def end_stray(self, news: StrayEnded) -> None:
        """Record the end of a stray."""
        self.status, self.reaped, self.rows, self.signals = news.status, news.reaped, news.rows, news.signals
        if not news.signals:
            # It ended by itself.
            self.provenance = None
        self.end(news.how, news.at, news.note)

    def restore(self, row: Row) -> None:
        """Restore the part from its own row."""
        self.started_at, self.ended_at, self.how, self.status = row.started_at, row.ended_at, row.how, row.status
        self.pid, self.reaped, self.signals, self.rows, self.note = row.pid, row.reaped, row.signals, row.rows, row.note
        self.provenance, self.effects = row.provenance, row.effects or ()

    def _is(self, row: Row) -> bool:
        """Return True if a row is about the command of this tree. A pid is used again, with another start time."""
        return row.pid is not None and (row.pid, row.started_at) == (self.pid, self.started_at)

    def as_row(self, below: tuple[Row, ...]) -> Row:
        """Return its row in a receipt, with the rows of the parts below it."""
        how, note = self.how, self.note
        remaining: tuple[Row, ...] = ()
        if self.remaining is not None:
            note = note or self.remaining.note
            remaining = tuple(row for row in self.remaining.rows if not self._is(row))
            for own in self.remaining.rows:
                if self._is(own) and not self.ended:
                    how, note = own.how, f"{note}; {own.note}"
        return Row(
            kind=self.kind,
            name=self.name,
            started_at=self.started_at,
            ended_at=self.ended_at,
            how=how,
            status=self.status,
            signals=self.signals,
            pid=self.pid,
            note=note,
            reaped=self.reaped,
            rows=self.rows + remaining + below,
            provenance=self.provenance,
            effects=self.effects or msgspec.UNSET,
        )


@dataclass(slots=True)
class CallRecord:
    """One call.

    answer: the answer of a model that it is a part of, until that has ended: it does not start before.
    cell, token: set once it is granted.
    output: the end of its output, for the model.
    logged_bytes: how much of its output is in the log.
    muted: the log has the marker, and gets no more output of this call.
    """

    row: CallRow
    answer: str | None = None
    cell: Cell[ToolResult] | None = None
    token: CancelToken | None = None
    output: str = ""
    logged_bytes: int = 0
    muted: bool = False

    @property
    def open(self) -> bool:
        """True until its result is in the log."""
        return self.row.state != CallState.ENDED

    @property
    def finished(self) -> bool:
        """True once its own result is in the log. The result may come from its cell, before its report arrives."""
        return self.row.outcome == Outcome.FINISHED

    @property
    def waits(self) -> bool:
        """True while it waits for the end of its answer, for a person, or for the barrier."""
        return self.row.state in UNDECIDED

    @property
    def waits_for_person(self) -> bool:
        """True while it waits for a person."""
        return self.row.state == CallState.WAITING

    @property
    def waits_for_barrier(self) -> bool:
        """True while it waits for the barrier alone."""
        return self.row.state == CallState.REQUESTED and self.answer is None

    @property
    def executed(self) -> bool:
        """False once it has ended, and nothing has executed it: it was refused, or its result is a person's answer."""
        return self.row.ended_at is None or self.row.how is not None

    @property
    def may_start(self) -> bool:
        """True while it is decided that it may start, and it is not on record that it has."""
        return self.waits_for_barrier or self.row.state == CallState.GRANTED


@dataclass(slots=True)
class ProcessRecord:
    """One process tree: its row, and the cell of its spawn.

    spool: the path of the file for its output, if that is more than is kept here.
    output_chars: how much it has printed.
    logged_bytes, muted: of a host: how much of its output is in the log; and a marker, after which comes no more.
    """

    row: ProcessRow
    cell: Cell[None] | None
    spool: str | None = None
    output_chars: int = 0
    logged_bytes: int = 0
    muted: bool = False


@dataclass(slots=True)
class RunRecord:
    """One run in the memory of its session, until no report of it can arrive any more.

    answers: ids of the answers of models that have begun and not ended.
    spawns: processes that the agent has asked for, and that wait for the barrier, by id.
    effects: a call that was forgotten may have had effects; or a tree that was the agent's own.
    unseen: ids of the parts whose processes cannot be seen. With one of them the receipt is never complete.
    refused: stale reports, counted by kind.
    omitted, reaped: numbers of the parts that were forgotten, and of their processes that were proven dead.
    stage: counts the moves of the kill deadline. A deadline of an earlier stage is void.
    adoptions: how often its parts were taken over from a failed run actor.
    grace_max_s: of a child run: how many seconds its parent's end gives it at most; None: that has not come.
    forced: it is on record that its kill deadline has passed, and the barrier no longer waits for its parts.
    waiting, withdrawn: ids of messages, for the receipt.
    receipt: the one that was filed last.
    """

    info: RunInfo
    token: CancelToken
    credit: Credit
    calls: OpenIndex[CallRecord] = field(default_factory=OpenIndex)
    processes: dict[str, ProcessRecord] = field(default_factory=dict)
    parts: OpenIndex[Part] = field(default_factory=OpenIndex)
    answers: set[str] = field(default_factory=set)
    spawns: dict[str, SpawnRequested] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    effects: bool = False
    omitted: int = 0
    reaped: int = 0
    mode: Mode = Mode.GRACEFUL
    fenced_at: float = 0.0
    stage: int = 0
    adoptions: int = 0
    grace_max_s: float | None = None
    forced: bool = False
    waiting: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    receipt: Receipt | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.run_id

    @property
    def status(self) -> RunStatus:
        """The run's status."""
        return self.info.status

    @property
    def open(self) -> bool:
        """True while its reports are accepted."""
        return self.info.status is RunStatus.IN_PROGRESS

    @property
    def terminal(self) -> bool:
        """True once it has a terminal status."""
        return self.info.status in TERMINAL

    @property
    def address(self) -> Address:
        """The address of the agent's own reports."""
        assert self.info.generation is not None, "a run that started has a generation"
        return Address(self.info.session, self.info.generation, self.id)

    @property
    def host(self) -> ProcessRecord | None:
        """The host in which its agent runs, while that is the run's; None: it has none."""
        hosts = (process for process in self.processes.values() if process.row.host and not process.row.call_id)
        return next(hosts, None)

    def move(self, status: RunStatus) -> None:
        """Change its status. Raises InvalidTransition if `TRANSITIONS` does not allow it."""
        self.info = msgspec.structs.replace(self.info, status=transition(self.info.status, status))

    def open_calls(self) -> list[CallRecord]:
        """Return the calls without a result, in the order of the requests."""
        return self.calls.open()

    def note_effects(self) -> None:
        """Note for the receipt what the agent and the calls have begun behind guards, and what of that is done by now.

        Tokens are gone after a crash: then the rows say what it was when call and run were closed.
        """
        for call in self.calls.values():
            part = self.parts.get(call.row.call_id)
            if part is not None:
                part.effects = call.row.effects if call.token is None else call.token.effects
        agent = self.parts.get(AGENT)
        if agent is not None:
            agent.effects = self.token.effects or self.info.effects

    def own_spawns(self) -> Iterable[ProcessRecord]:
        """Return the trees that the agent itself has asked for, in no call."""
        return (process for process in self.processes.values() if is_own(process.row))

    def spools_of(self, call: CallRecord) -> list[str]:
        """Return the paths of the output files of a call's processes that printed more than is kept here."""
        return [
            process.spool
            for process in self.processes.values()
            if process.row.call_id == call.row.call_id
            and process.spool is not None
            and process.output_chars > OUTPUT_KEPT_CHARS
        ]

    def open_parts(self) -> list[Part]:
        """Return the parts that may still be running."""
        return self.parts.open()

    def awaited_parts(self) -> list[Part]:
        """Return the open parts that the receipt waits for. A process of unknown origin is not among them."""
        return [part for part in self.open_parts() if part.ours]

    def runner_parts(self) -> list[Part]:
        """Return the open parts that the run's own actor has: all but the session's trees that end with this run."""
        return [part for part in self.open_parts() if part.kind != PartKind.PROCESS or part.id in self.processes]

    def barrier(self) -> list[Part]:
        """Return the parts that the permits of a later run wait for."""
        if self.forced:
            return []
        return [part for part in self.parts.open() if part.holds]

    def add(self, part: Part) -> None:
        """Record a part that may begin. At the limit the part that ended first is forgotten for it (law L14)."""
        self.parts[part.id] = part
        self.trim()

    def trim(self) -> None:
        """Forget the parts that ended first, beyond a limit: the number of calls and spawns of a run has none."""
        self._trim_refused()
        open_parts, excess = self.parts.open(), len(self.parts) - PARTS_KEPT_MAX
        if excess <= 0:
            return
        # The rows of open parts and calls are below these.
        needed = {AGENT, *(part.parent for part in open_parts), *(call.row.call_id for call in self.calls.open())}
        needed |= self.unseen
        gone = itertools.islice((part_id for part_id in self.parts.ended() if part_id not in needed), excess)
        for part_id in list(gone):
            self.reaped += self.parts[part_id].reaped
            self.omitted += 1
            process = self.processes.pop(part_id, None)
            if process is not None and is_own(process.row):
                self.effects = self.effects or self.parts[part_id].how is not How.NOT_STARTED
            del self.parts[part_id]
            call = self.calls.get(part_id)
            if call is not None:
                self.effects = self.effects or call.row.outcome != Outcome.NOT_STARTED
                del self.calls[part_id]

    def _trim_refused(self) -> None:
        """Forget the oldest calls that were refused, or were questions: they have no part, and are in no receipt."""
        if len(self.calls) <= PARTS_KEPT_MAX:
            return
        refused = [key for key, call in self.calls.items() if not call.open and key not in self.parts]
        for key in refused[: len(self.calls) - PARTS_KEPT_MAX]:
            call = self.calls[key]
            self.effects = self.effects or call.row.begun or (call.executed and call.row.outcome != Outcome.NOT_STARTED)
            del self.calls[key]

    def restore_from(self, receipt: Receipt) -> None:
        """Restore from a filed receipt what no row of a part contains."""
        self.receipt, self.fenced_at = receipt, receipt.fenced_at
        self.refused = Counter(receipt.refused)
        self.waiting, self.withdrawn = receipt.waiting, receipt.withdrawn
        self.omitted = max(self.omitted, receipt.omitted)
        self.reaped = max(self.reaped, receipt.reaped - sum(part.reaped for part in self.parts.values()))
        for row in receipt.rows:
            agent = self.parts.get(AGENT)
            if row.kind == PartKind.AGENT and agent is not None and row.ended_at is not None and row.how is not None:
                agent.end(row.how, row.ended_at, row.note)
            known = {(self.parts[one].name, self.parts[one].ended_at) for one in self.unseen}
            for below in row.rows:
                # Its own row cannot be read.
                lost = (below.name, below.ended_at) not in known
                if lost and below.kind in STRAYS and below.how is How.OUT_OF_REACH and below.ended_at is not None:
                    part = Part(f"unseen_{len(self.unseen)}", below.kind, below.name, AGENT, holds=False)
                    part.restore(below)
                    self.add(part)
                    self.unseen.add(part.id)

    def file_receipt(self, at: float, later: tuple[Provenance, ...]) -> Receipt:
        """Make the receipt. It names open parts as abandoned, and those of unknown origin as out of reach."""
        self.trim()
        self.note_effects()
        open_parts = self.open_parts()
        for part in open_parts:
            part.how = How.ABANDONED if part.ours else How.OUT_OF_REACH
        self.receipt = Receipt(
            receipt_id=self.info.receipt_id,
            run_id=self.id,
            generation=self.info.generation or 0,
            provenance=self.info.provenance,
            fenced_at=self.fenced_at,
            ended_at=at,
            complete=not open_parts and not self.unseen,
            rows=self._rows(),
            reaped=self.reaped + sum(part.reaped for part in self.parts.values()),
            omitted=self.omitted,
            refused=dict(self.refused),
            waiting=self.waiting,
            withdrawn=self.withdrawn,
            later=later,
        )
        return self.receipt

    def _rows(self) -> tuple[Row, ...]:
        below: dict[str | None, list[Part]] = {}
        for part in self.parts.values():
            below.setdefault(part.parent if part.parent in self.parts else None, []).append(part)

        def rows(parent: str | None) -> tuple[Row, ...]:
            return tuple(part.as_row(rows(part.id)) for part in below.get(parent, ()))

        return rows(None)


def is_own(row: ProcessRow) -> bool:
    """True of a tree that the agent of a run has asked for itself, in no call."""
    return row.kind == PartKind.PROCESS and not row.call_id and not row.host


def as_handed_over(row: ProcessRow, run_id: str, at: float) -> ProcessRow:
    """Return the row of a host as the run `run_id` handed it over at `at` (epoch seconds, UTC).

    The row itself is that of the run which has taken it back since; only the log tells of the earlier ones.
    """
    return msgspec.structs.replace(
        row, run_id=run_id, owner=Owner.SESSION, owned_at=at, state=TreeState.ENDED, end=None, ending=None, receipts=()
    )


def restored(
    info: RunInfo,
    token: CancelToken,
    credit: Credit,
    calls: Iterable[CallRow],
    processes: Iterable[ProcessRow],
    printed: Mapping[str, str],
) -> RunRecord:
    """Return the record of a run of an earlier incarnation, with each part on record, whether it has ended or not."""
    record = RunRecord(info=info, token=token, credit=credit)
    if info.started_at is not None:
        agent = Part(AGENT, PartKind.AGENT, info.agent, None, holds=False, started_at=info.started_at)
        record.parts[AGENT] = agent
        if info.status is RunStatus.COMPLETED and info.ended_at is not None:
            agent.end(How.RETURNED, info.ended_at)
    for row in calls:
        call = record.calls[row.call_id] = CallRecord(row, output=printed.get(row.call_id, ""))
        if row.state in (CallState.GRANTED, CallState.STARTED):
            # It is not known whether a granted call has begun, so it counts as started.
            call.cell = Cell()
            call.cell.start()
        if row.state in UNDECIDED or not call.executed:
            # It waited for a person or its permit, was refused, or a person's answer was its result.
            continue
        holds = row.isolation is not Isolation.TASK
        part = Part(row.call_id, PartKind.CALL, row.tool, None, holds, started_at=row.started_at)
        if row.ended_at is not None and row.how is not None:
            part.end(row.how, row.ended_at)
        record.parts[row.call_id] = part
    for process in processes:
        of_agent = (process.host and not process.call_id) or is_own(process)
        parent = AGENT if of_agent else process.call_id if process.call_id in record.parts else None
        holds = process.owner is Owner.RUN and process.ours
        part = Part(process.process_id, process.kind, process.name, parent, holds, process.ours)
        if process.kind in STRAYS:
            part.parent = parent or AGENT
            part.pid, part.started_at = process.pid, process.started_at
        if process.owner is Owner.RUN:
            record.processes[process.process_id] = ProcessRecord(process, None)
        if process.end is not None and (process.owner is Owner.RUN or process.end.how is How.NOT_STARTED):
            part.restore(process.end)
            if part.how is How.OUT_OF_REACH:
                record.unseen.add(part.id)
        elif process.owner is Owner.SESSION:
            part.pid, part.started_at = process.pid, process.started_at
            note = KEPT_NOTE if process.host else HANDED_OVER_NOTE
            part.end(How.HANDED_OVER, process.owned_at or info.created_at, note)
        record.parts[process.process_id] = part
    record.trim()
    return record
