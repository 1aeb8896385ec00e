"""Disk: what survives a crash of a simulated daemon, in memory: the rows of the store, the stop journal, and the
ledgers of the wardens.

It keeps what `supervisor.store` keeps, without encoding it, so that a world can take tens of thousands of steps
a second; `tests.test_sim` plays schedules on both and compares what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.model import Event, Fate, How, Message, Owner, Receipt, RunInfo
from actors.ports import Batch, CallRow, KeptStop, ProcessRow, RequestRow, SessionRow, Snapshot, WaitingRow
from actors.protocol.run_record import OUTPUT_KEPT_CHARS, as_handed_over
from actors.run_status import RunStatus
from actors.saved import Saved
from actors.text import tail
from actors.thread import Thread

if TYPE_CHECKING:
    from tests.sim.processes import Ending


def was_released(row: ProcessRow) -> bool:
    """True of a host that was told nothing of its run: it is not its run's any more."""
    return bool(row.host) and row.end is not None and row.end.how is How.NOT_STARTED


@dataclass(slots=True)
class Tables:
    """The rows of one session, each by its id, in order of their first write."""

    events: list[Event] = field(default_factory=list)
    row: SessionRow | None = None
    runs: dict[str, RunInfo] = field(default_factory=dict)
    calls: dict[str, CallRow] = field(default_factory=dict)
    processes: dict[str, ProcessRow] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    pending: dict[str, Receipt] = field(default_factory=dict)
    waiting: dict[str, WaitingRow] = field(default_factory=dict)
    requests: dict[str, RequestRow] = field(default_factory=dict)
    attachments: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)


class Disk:
    """See the head of this file."""

    def __init__(self) -> None:
        self.tables: dict[str, Tables] = {}
        self.ledgers: dict[str, Ending] = {}
        self.journal: dict[tuple[str, str], KeptStop] = {}
        # What was ever written, and is not there any more since its session was deleted: for those who watch.
        self.deleted: dict[str, list[Event]] = {}
        self.on_batch: Callable[[Batch], None] | None = None

    def of(self, session: str) -> Tables:
        """The rows of a session."""
        found = self.tables.get(session)
        if found is None:
            found = self.tables[session] = Tables()
        return found

    def write(self, batch: Batch) -> bool:
        """Write a batch, unless it is there already. False: it does not follow the last one written."""
        tables = self.of(batch.session)
        last = tables.batches.get(batch.incarnation, 0)
        if batch.number <= last:
            return True
        if batch.number != last + 1:
            return False
        if self.on_batch is not None:
            self.on_batch(batch)
        if batch.erase:
            self.deleted.setdefault(batch.session, []).extend(tables.events)
            self.tables[batch.session] = tables = Tables(batches=tables.batches)
        for event in batch.events:
            assert event.seq > (tables.events[-1].seq if tables.events else 0), f"the seq {event.seq} is taken"
            tables.events.append(event)
        if batch.row is not None:
            tables.row = batch.row
        for run in batch.runs:
            tables.runs[run.run_id] = run
        for call in batch.calls:
            tables.calls[call.call_id] = call
        for process in batch.processes:
            tables.processes[process.process_id] = process
        for receipt in batch.pending:
            tables.pending[receipt.receipt_id] = receipt
        for receipt in batch.receipts:
            tables.receipts[receipt.receipt_id] = receipt
            if receipt.complete:
                tables.pending.pop(receipt.receipt_id, None)
        for row in batch.waiting:
            tables.waiting[row.message.id] = row
        for message_id in batch.unwaiting:
            tables.waiting.pop(message_id, None)
        for attachment in batch.attachments:
            tables.attachments.setdefault(attachment.name, attachment.data)
        for request in batch.requests:
            tables.requests[request.request_id] = request
        tables.batches[batch.incarnation] = batch.number
        return True

    def events(self, session: str) -> list[Event]:
        """The log of a session."""
        return self.of(session).events

    def ever(self, session: str) -> list[Event]:
        """All events that a session ever had, those too that were deleted with it."""
        return self.deleted.get(session, []) + self.of(session).events

    def last_seq(self, session: str) -> int:
        """The last seq of a session; 0 if it has no events."""
        events = self.of(session).events
        return events[-1].seq if events else 0

    def thread(self, session: str) -> list[Message]:
        """The fold of the log of a session."""
        fold = Thread()
        for event in self.events(session):
            fold.apply(event)
        return fold.messages()

    def attachment(self, session: str, name: str) -> bytes | None:
        """The bytes of an attachment; None: it was not written."""
        return self.of(session).attachments.get(name)

    def runs(self, session: str) -> list[RunInfo]:
        """The runs of a session, the oldest first."""
        return list(self.of(session).runs.values())

    def run(self, run_id: str) -> RunInfo | None:
        """One run, of any session."""
        for tables in self.tables.values():
            if run_id in tables.runs:
                return tables.runs[run_id]
        return None

    def receipt(self, identity: str) -> Receipt | None:
        """A receipt by its id, or by its run's."""
        for tables in self.tables.values():
            if identity in tables.receipts:
                return tables.receipts[identity]
        for tables in self.tables.values():
            for receipt in tables.receipts.values():
                if receipt.run_id == identity:
                    return receipt
        return None

    def unfinished(self) -> list[str]:
        """The sessions that somebody has to take up."""
        return sorted(
            session
            for session, tables in self.tables.items()
            if any(not run.settled or run.late for run in tables.runs.values())
            or any(row.owner is Owner.SESSION and row.state != "ended" for row in tables.processes.values())
            or tables.pending
            or (tables.waiting and not (tables.row is not None and tables.row.parked))
        )

    def waiting(self, session: str) -> list[str]:
        """Ids of the messages that wait, in their order."""
        return [row.message.id for row in self._waiting(session)]

    def requests(self, session: str) -> dict[str, RequestRow]:
        """The requests whose answer is on record, by id."""
        return self.of(session).requests

    def call(self, call_id: str) -> CallRow | None:
        """The row of a call, of any session."""
        for tables in self.tables.values():
            if call_id in tables.calls:
                return tables.calls[call_id]
        return None

    def process(self, process_id: str) -> ProcessRow | None:
        """The row of a process tree, of any session."""
        rows = [tables.processes[process_id] for tables in self.tables.values() if process_id in tables.processes]
        # A host that was released has a row in each session that had reserved it.
        return next((row for row in rows if row.state != "ended"), rows[0] if rows else None)

    def snapshot(self, session: str) -> Snapshot:
        """All that an actor needs in order to take a session up."""
        tables = self.of(session)
        fold, saved = Thread(), Saved()
        acted: set[str] = set()
        fates: dict[str, Fate] = {}
        told_durable: set[str] = set()
        handed: list[Event] = []
        printed: dict[str, str] = {}
        for event in tables.events:
            fold.apply(event)
            saved.apply(event)
            match event.kind:
                case "text" | "block" | "media" | "tool.requested" | "session.state" if event.run_id is not None:
                    acted.add(event.run_id)
                case "message":
                    fates[event.data["id"]] = Fate.INPUT
                case "session.message_returned":
                    fates[event.data["message_id"]] = Fate.RETURNED
                case "process.handed_over":
                    handed.append(event)
                case "session.stop_durable":
                    told_durable.add(event.data["request_id"])
                case "tool.output" if "marker" not in event.data:
                    text = printed.get(event.data["call_id"], "") + event.data["text"]
                    printed[event.data["call_id"]] = tail(text, OUTPUT_KEPT_CHARS)
                case _:
                    pass
        unsettled = [run for run in tables.runs.values() if not run.settled or run.late]
        ids = {run.run_id for run in unsettled}
        every_call = sorted(tables.calls.values(), key=lambda call: call.call_id)
        calls = tuple(call for run in unsettled for call in every_call if call.run_id == run.run_id)
        living = [process for process in tables.processes.values() if process.state != "ended"]
        waited_for = {*tables.pending, *ids}
        named = [
            row.process_id
            for row in tables.processes.values()
            if row.owner is Owner.SESSION and row.run_id not in ids and waited_for.intersection(row.receipts)
        ]
        settled = [run for run in tables.runs.values() if run.settled and not run.late]
        late = {run.run_id for run in unsettled if run.late}
        return Snapshot(
            session=session,
            row=tables.row,
            thread=fold,
            saved=saved,
            runs=tuple(unsettled),
            calls=calls,
            processes=(
                *living,
                *(tables.processes[one] for one in named if tables.processes[one].state == "ended"),
                *(one for one in tables.processes.values() if one.state == "ended" and one.run_id in ids),
            ),
            handed_over=tuple(
                as_handed_over(tables.processes[event.data["process_id"]], run.run_id, event.at)
                for run in unsettled
                for event in handed
                if run.run_id == event.run_id != tables.processes[event.data["process_id"]].run_id
            ),
            pending=tuple(tables.pending.values()),
            receipts=(
                *(one for one in tables.receipts.values() if one.run_id in late),
                *(tables.receipts[one] for one in tables.pending if one in tables.receipts),
            ),
            waiting=tuple(self._waiting(session)),
            requests=tuple(tables.requests.values()),
            acted=frozenset(acted & ids),
            fates=fates,
            over={run.run_id: run.receipt_id for run in settled},
            kept=tuple(kept for kept in self.journal.values() if kept.session == session),
            told_durable=frozenset(told_durable),
            printed={
                call.call_id: printed.get(call.call_id, "") for call in calls if call.state in ("granted", "started")
            },
        )

    def _waiting(self, session: str) -> list[WaitingRow]:
        return sorted(self.of(session).waiting.values(), key=lambda row: row.place)


def status(disk: Disk, run_id: str) -> RunStatus | None:
    """The durable status of a run."""
    info = disk.run(run_id)
    return info.status if info else None


def journal_takes(kept: KeptStop, known: KeptStop | None) -> bool:
    """True if the journal writes this record: what it has stays, unless only the new one has an answer."""
    return known is None or (known.outcome is None and kept.outcome is not None)
