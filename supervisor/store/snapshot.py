"""The snapshot of a session: all that an actor needs to restore it."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from actors.agent_choice import AgentChoice
from actors.decoding import decoder
from actors.errors import CountermandError
from actors.events import (
    EventData,
    EventKind,
    MessageData,
    ProcessHandedOverData,
    RunStartedData,
    RunStatusData,
    SessionAgentData,
    SessionMessageReturnedData,
    SessionStopDurableData,
    ToolOutputData,
    UnreadableData,
)
from actors.model import CallState, Event, Fate, Receipt, RunInfo, RunParent
from actors.ports import CallRow, ProcessRow, RequestRow, SessionRow, Snapshot
from actors.protocol.run_record import OUTPUT_KEPT_CHARS, as_handed_over
from actors.run_status import RunStatus
from actors.saved import KINDS as SAVED_KINDS
from actors.saved import Saved
from actors.text import tail
from actors.thread import KINDS, Thread
from actors.usage import Usage
from supervisor.store.documents import T, leave_out, readable
from supervisor.store.events import PAGE, folded
from supervisor.store.rows import pending_receipts, session_row, waiting

UNTRIED: Final = sys.maxsize

_FATES: Final = frozenset(
    {
        EventKind.SESSION_MESSAGE_RETURNED,
        EventKind.SESSION_STOP_DURABLE,
        EventKind.SESSION_AGENT,
        EventKind.RUN_STARTED,
        EventKind.RUN_STATUS,
        EventKind.RUN_ENDED,
    }
)
"""The kinds of events that `snapshot` reads besides those of the thread."""
_ACTS: Final = frozenset(
    {EventKind.TEXT, EventKind.BLOCK, EventKind.MEDIA, EventKind.TOOL_REQUESTED, EventKind.SESSION_STATE}
)
"""The kinds of events of a run that has done something, so that it is not tried again."""
_NOTED: Final = _FATES | {EventKind.MESSAGE}
_READ: Final = KINDS | SAVED_KINDS | _FATES


@dataclass(slots=True)
class _Log:
    """The facts of a session that only its log holds."""

    thread: Thread = field(default_factory=Thread)
    saved: Saved = field(default_factory=Saved)
    acted: set[str] = field(default_factory=set)
    fates: dict[str, Fate] = field(default_factory=dict)
    told_durable: set[str] = field(default_factory=set)
    statuses: dict[str, tuple[RunStatus, int, str]] = field(default_factory=dict)
    parents: dict[str, RunParent | None] = field(default_factory=dict)
    agent: str | None = None
    over: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def add(self, event: Event, data: EventData) -> None:
        """Add the next event. One that cannot be decoded is logged, named in `left_out`, and left out."""
        # What an event concerns is found by its kind: that is cheaper than by its data.
        if event.kind in KINDS:
            self.thread.add(event, data)
        if event.kind in SAVED_KINDS:
            self.saved.add(event, data)
        if event.kind == EventKind.RUN_ENDED:
            # Even if its receipt cannot be decoded, the run is over.
            self.over.add(event.run_id or "")
        if event.kind in _ACTS and event.run_id is not None:
            # Also if it cannot be decoded, the run has done that.
            self.acted.add(event.run_id)
        if type(data) is UnreadableData:
            leave_out(f"Event {event.seq}, {data.kind}", data.error, self.left_out)
        elif event.kind in _NOTED:
            self._note(event, data)

    def _note(self, event: Event, data: EventData) -> None:
        run_id = event.run_id
        match data:
            case SessionAgentData():
                self.agent = data.agent
                if data.message_id is None and run_id is not None:
                    self.acted.add(run_id)
            case MessageData():
                self.fates[data.id] = Fate.INPUT
            case SessionMessageReturnedData():
                self.fates[data.message_id] = Fate.RETURNED
            case RunStartedData() if run_id is not None:
                self.statuses[run_id] = RunStatus.IN_PROGRESS, event.generation, data.agent
                self.parents[run_id] = data.parent
            case RunStatusData() if run_id in self.statuses:
                self.statuses[run_id] = (data.status, *self.statuses[run_id][1:])
            case SessionStopDurableData():
                self.told_durable.add(data.request_id)
            case _:
                pass


def _unsettled(connection: sqlite3.Connection, session: str, log: _Log, left_out: list[str]) -> Iterator[RunInfo]:
    """Yield the runs that are not settled. One whose row cannot be read is rebuilt from the log, so that it ends."""
    sql = "SELECT run_id, receipt_id, doc FROM runs WHERE session = ? AND settled = 0 ORDER BY place"
    for run_id, receipt_id, doc in connection.execute(sql, (session,)).fetchall():
        try:
            yield decoder(RunInfo)(doc)
        except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
            leave_out(f"RunInfo {run_id}", error, left_out)
            if run_id in log.over:
                # Its receipt is filed; later reports about it will be dead letters.
                continue
            status, generation, agent = log.statuses.get(run_id, (RunStatus.QUEUED, None, ""))
            # Never tried again, since its inputs are unknown.
            parent = log.parents.get(run_id)
            yield RunInfo(session, run_id, status, agent, generation, receipt_id, attempt=UNTRIED, parent=parent)


def _own_row(connection: sqlite3.Connection, session: str, agent: str | None, left_out: list[str]) -> SessionRow | None:
    """Return a session's row; if it cannot be read, one rebuilt from the log and the columns.

    `agent`: the one that the session has, by its log. Who handed it over is not known any more.
    """
    try:
        return session_row(connection, session)
    except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
        leave_out(f"SessionRow {session}", error, left_out)
        parked = connection.execute("SELECT parked FROM sessions WHERE session = ?", (session,)).fetchone()[0]
        sql = "SELECT MAX(generation), MAX(seq) FROM events WHERE session = ?"
        generation, seq = connection.execute(sql, (session,)).fetchone()
        usage = Usage()
        for run in readable(connection, RunInfo, "SELECT doc, run_id FROM runs WHERE session = ?", session):
            usage = usage.plus(run.usage)
        sql = "SELECT COALESCE(SUM(LENGTH(data)), 0) FROM attachments WHERE session = ?"
        return SessionRow(
            session,
            generation or 0,
            seq or 0,
            parked=bool(parked),
            usage=usage,
            choice=AgentChoice(agent),
            attachments_bytes=connection.execute(sql, (session,)).fetchone()[0],
        )


def _processes(
    connection: sqlite3.Connection, session: str, runs: list[str], waited_for: set[str], left_out: list[str]
) -> Iterator[ProcessRow]:
    """Yield the process trees that may live, and ended ones of `runs` (ids).

    Also ended trees of the session that a receipt in `waited_for` (ids of receipts and runs) has to name.
    """
    sql = "SELECT doc, process_id FROM processes WHERE session = ? AND state <> 'ended'"
    yield from readable(connection, ProcessRow, sql, session, left_out=left_out)
    if waited_for:
        sql = "SELECT doc, process_id FROM processes WHERE session = ? AND owner = 'session' AND state = 'ended'"
        for row in readable(connection, ProcessRow, sql, session, left_out=left_out):
            if row.run_id not in runs and waited_for.intersection(row.receipts):
                yield row
    if runs:
        sql = """SELECT doc, process_id FROM processes WHERE session = ? AND state = 'ended'
            AND CASE WHEN json_valid(CAST(doc AS TEXT))
                THEN json_extract(CAST(doc AS TEXT), '$.run_id') IN (SELECT value FROM json_each(?)) ELSE 1 END"""
        wanted = msgspec.json.encode(runs).decode()
        yield from readable(connection, ProcessRow, sql, session, wanted, left_out=left_out)


def _handed_over(
    connection: sqlite3.Connection, session: str, runs: list[str], left_out: list[str]
) -> Iterator[ProcessRow]:
    """Yield the hosts that one of `runs` (ids) has handed over, and that are another run's by now."""
    events = "SELECT data, at FROM events WHERE session = ? AND run_id = ? AND kind = ? ORDER BY seq"
    row_of = "SELECT doc, process_id FROM processes WHERE session = ? AND process_id = ?"
    for run_id in runs:
        for data, at in connection.execute(events, (session, run_id, EventKind.PROCESS_HANDED_OVER)).fetchall():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError):
                process_id = decoder(ProcessHandedOverData)(data).process_id
                for row in readable(connection, ProcessRow, row_of, session, process_id, left_out=left_out):
                    if row.run_id != run_id:
                        yield as_handed_over(row, run_id, at)


def _printed(connection: sqlite3.Connection, session: str, calls: Iterable[CallRow]) -> dict[str, str]:
    """Return the tail of the output of each call that has not ended, by call id; unreadable events are skipped."""
    wanted = {call.call_id: call.run_id for call in calls if call.state in (CallState.GRANTED, CallState.STARTED)}
    sql = "SELECT data FROM events WHERE session = ? AND run_id = ? AND kind = ? ORDER BY seq DESC LIMIT ?"
    found = dict.fromkeys(wanted, "")
    for run_id in set(wanted.values()):
        for (data,) in connection.execute(sql, (session, run_id, EventKind.TOOL_OUTPUT, PAGE)):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError):
                output = decoder(ToolOutputData)(data)
                if output.call_id in found and not output.marker:
                    found[output.call_id] = tail(output.text + found[output.call_id], OUTPUT_KEPT_CHARS)
    return found


def snapshot(connection: sqlite3.Connection, session: str, *, kept: int = 10_000) -> Snapshot:
    """Read everything an actor needs to restore a session.

    Requests: the newest `kept`, however old, since the clock may be wrong for now. Rows that cannot be read are named
    in `left_out`, and the session goes on without them.
    """
    log = _Log()
    left_out = log.left_out
    for event, data in folded(connection, session, _READ):
        log.add(event, data)
    runs = list(_unsettled(connection, session, log, left_out))
    pending = pending_receipts(connection, session, left_out)
    waited_for = {receipt.receipt_id for receipt in pending} | {run.run_id for run in runs}
    settled = connection.execute("SELECT run_id, receipt_id FROM runs WHERE session = ? AND settled = 1", (session,))
    calls_of = "SELECT doc, call_id FROM calls WHERE session = ? AND run_id = ? ORDER BY call_id"
    receipts_of = "SELECT doc, receipt_id FROM receipts WHERE session = ? AND run_id = ?"
    filed = "SELECT doc, receipt_id FROM receipts WHERE session = ? AND receipt_id = ?"
    newest = "SELECT doc, request_id FROM requests WHERE session = ? ORDER BY place DESC LIMIT ?"

    def rows(kind: type[T], sql: str, *values: Any) -> list[T]:
        return readable(connection, kind, sql, session, *values, left_out=left_out)

    calls = tuple(row for run in runs for row in rows(CallRow, calls_of, run.run_id))
    run_ids = [run.run_id for run in runs]
    return Snapshot(
        session=session,
        row=_own_row(connection, session, log.agent, left_out),
        thread=log.thread,
        saved=log.saved,
        runs=tuple(runs),
        calls=calls,
        processes=tuple(_processes(connection, session, run_ids, waited_for, left_out)),
        handed_over=tuple(_handed_over(connection, session, run_ids, left_out)),
        pending=tuple(pending),
        receipts=(
            *(row for run in runs if run.late for row in rows(Receipt, receipts_of, run.run_id)),
            *(row for receipt in pending for row in rows(Receipt, filed, receipt.receipt_id)),
        ),
        waiting=tuple(waiting(connection, session, left_out)),
        requests=tuple(reversed(rows(RequestRow, newest, kept))),
        acted=frozenset(log.acted & {run.run_id for run in runs}),
        fates=log.fates,
        over=dict(settled.fetchall()),
        told_durable=frozenset(log.told_durable),
        printed=_printed(connection, session, calls),
        left_out=tuple(left_out),
    )
