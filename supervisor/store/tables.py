"""What goes into which table, and how it is read back: functions of a connection, in no transaction."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from loguru import logger
from msgspec import Struct

from actors.errors import CountermandError, Invalid
from actors.model import Event, Message, Receipt, RunInfo, RunStatus
from actors.ports import Batch, CallRow, ProcessRow, RequestRow, SessionRow, Snapshot, WaitingRow
from actors.protocol.run_record import OUTPUT_KEPT_CHARS
from actors.requests import Reply, Stopped
from actors.text import cut, storable, storable_json, tail
from actors.thread import KINDS, Thread

PAGE: Final = 500
"""Events read at a time when a whole log is gone through."""

EVENTS_A_STATEMENT: Final = 64

INCARNATIONS_KEPT: Final = 8
"""Incarnations of a session whose last batch is remembered; older ones have nobody left to send one again."""

UNREADABLE: Final = "unreadable"
"""The kind under which an event is read whose data cannot be: it has its place in the log, and nobody acts on it."""

UNTRIED: Final = sys.maxsize
UNFIT_KEPT: Final = 1_000
UNFIT_MAX_BYTES: Final = 65_536

_FATES: Final = frozenset(
    {
        "session.message_returned",
        "session.stop_durable",
        "run.started",
        "run.status",
        "run.ended",
    }
)
"""What `snapshot` reads of a log besides the messages."""

T = TypeVar("T")
Statement = tuple[str, tuple[Any, ...]]


class UnfitBatch(Struct, frozen=True):
    """A batch that could not be stored, and why. `shown` is what it held, as far as that can be shown, as JSON."""

    session: str
    incarnation: str
    number: int
    error: str
    shown: str
    at: float


_encode: Final = msgspec.json.Encoder().encode
_data: Final = msgspec.json.Decoder(dict[str, Any]).decode
_event: Final = "SELECT seq, session, generation, run_id, kind, data, at FROM events "

# Kinds of events of one run that may be about another one, or about a message of it.
_NAMING: Final = (
    "message",
    "message.retracted",
    "session.barrier_forced",
    "session.message_waiting",
    "session.message_returned",
)

_UPSERTS: Final = {
    "sessions": """INSERT INTO sessions (session, parked, doc) VALUES (?, ?, ?)
        ON CONFLICT (session) DO UPDATE SET parked = excluded.parked, doc = excluded.doc""",
    "runs": """INSERT INTO runs (session, run_id, receipt_id, settled, doc) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (run_id, session) DO UPDATE
        SET receipt_id = excluded.receipt_id, settled = excluded.settled, doc = excluded.doc""",
    "calls": """INSERT INTO calls (session, run_id, call_id, doc) VALUES (?, ?, ?, ?)
        ON CONFLICT (session, run_id, call_id) DO UPDATE SET doc = excluded.doc""",
    "processes": """INSERT INTO processes (session, process_id, state, owner, doc) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (session, process_id) DO UPDATE
        SET state = excluded.state, owner = excluded.owner, doc = excluded.doc""",
    "receipts": """INSERT INTO receipts (session, receipt_id, run_id, doc) VALUES (?, ?, ?, ?)
        ON CONFLICT (receipt_id, session) DO UPDATE SET run_id = excluded.run_id, doc = excluded.doc""",
    "pending": """INSERT INTO pending_receipts (session, receipt_id, doc) VALUES (?, ?, ?)
        ON CONFLICT (session, receipt_id) DO UPDATE SET doc = excluded.doc""",
    "waiting": """INSERT INTO waiting (session, message_id, place, doc) VALUES (?, ?, ?, ?)
        ON CONFLICT (session, message_id) DO UPDATE SET place = excluded.place, doc = excluded.doc""",
    "requests": """INSERT INTO requests (session, place, request_id, at, doc)
        SELECT ?, COALESCE((SELECT MAX(place) FROM requests WHERE session = ?), 0) + 1, ?, ?, ?
        WHERE true
        ON CONFLICT (session, request_id) DO UPDATE SET at = excluded.at, doc = excluded.doc""",
}


_OF_A_SESSION: Final = (
    "events",
    "runs",
    "calls",
    "processes",
    "receipts",
    "pending_receipts",
    "waiting",
    "requests",
    "attachments",
    "batches_unfit",
)
"""What is removed with a session. Its row stays, as a tombstone, and `batches`, so that no batch is written twice."""

_LIVING: Final = """FROM sessions WHERE NOT COALESCE(
    CASE WHEN json_valid(CAST(doc AS TEXT)) THEN json_extract(CAST(doc AS TEXT), '$.deleted') END, 0)"""
"""Those that were not deleted; one whose row is damaged is there, and whoever decodes it says so."""


def statements(batch: Batch) -> list[Statement]:
    """Encode a batch as statements with their rows.

    Raises ValueError (a lone surrogate is a UnicodeEncodeError), TypeError, or Invalid.
    """
    session = batch.session
    strangers = {event.session for event in batch.events} - {session}
    if strangers:
        raise Invalid("a batch holds events of another session", expected=session, got=", ".join(sorted(strangers)))
    made: list[Statement] = []
    if batch.erase:
        made += [(f"DELETE FROM {table} WHERE session = ?", (session,)) for table in _OF_A_SESSION]  # noqa: S608  # names above

    def add(sql: str, rows: list[tuple[Any, ...]]) -> None:
        made.extend((sql, row) for row in rows)

    # A plain INSERT: a sequence number that is taken is a defect, and the second writer of it must not win. Many rows
    # in one statement: each statement lets go of the interpreter's lock, and has to wait for it when others are busy.
    for start in range(0, len(batch.events), EVENTS_A_STATEMENT):
        page = batch.events[start : start + EVENTS_A_STATEMENT]
        values: list[Any] = []
        for e in page:
            values += (session, e.seq, e.generation, e.run_id, e.kind, _encode(e.data), e.at)
        made.append((_insert_events(len(page)), tuple(values)))
    if batch.row is not None:
        add(_UPSERTS["sessions"], [(session, batch.row.parked, _encode(batch.row))])
    add(_UPSERTS["runs"], [(session, r.run_id, r.receipt_id, r.settled and not r.late, _encode(r)) for r in batch.runs])
    add(_UPSERTS["calls"], [(session, c.run_id, c.call_id, _encode(c)) for c in batch.calls])
    add(_UPSERTS["processes"], [(session, p.process_id, p.state, str(p.owner), _encode(p)) for p in batch.processes])
    add(_UPSERTS["receipts"], [(session, r.receipt_id, r.run_id, _encode(r)) for r in batch.receipts])
    add(_UPSERTS["pending"], [(session, r.receipt_id, _encode(r)) for r in batch.pending])
    add(
        "DELETE FROM pending_receipts WHERE session = ? AND receipt_id = ?",
        [(session, r.receipt_id) for r in batch.receipts if r.run_id is None],
    )
    add(_UPSERTS["waiting"], [(session, w.message.id, w.place, _encode(w)) for w in batch.waiting])
    add(
        "DELETE FROM waiting WHERE session = ? AND message_id = ?",
        [(session, message_id) for message_id in batch.unwaiting],
    )
    add(_UPSERTS["requests"], [(session, session, r.request_id, r.at, _encode(r)) for r in batch.requests])
    add(
        "INSERT OR IGNORE INTO attachments (session, name, data, at) VALUES (?, ?, ?, ?)",
        [(session, a.name, a.data, a.at) for a in batch.attachments],
    )
    return made


@functools.cache
def _insert_events(number: int) -> str:
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * number)
    return f"INSERT INTO events (session, seq, generation, run_id, kind, data, at) VALUES {rows}"  # noqa: S608  # marks only


def prune_requests(connection: sqlite3.Connection, session: str, kept: int, before: float) -> None:
    """Forget requests of a session beyond the newest `kept`, and of the oldest those before `before` (epoch seconds).

    As the book does, in the order in which they were answered: whoever reads them knows up to where they are gone.
    """
    connection.execute(
        """DELETE FROM requests WHERE session = ?
        AND place <= (SELECT MAX(place) FROM requests WHERE session = ?) - ?""",
        (session, session, kept),
    )
    connection.execute(
        """DELETE FROM requests WHERE session = ?
        AND place < COALESCE((SELECT MIN(place) FROM requests WHERE session = ? AND at >= ?), 0)""",
        (session, session, before),
    )


def attempt(connection: sqlite3.Connection, at: float) -> None:
    """Write something small, in a transaction of its own, to find out whether that succeeds."""
    connection.execute(
        "INSERT INTO attempts (one, at) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET at = excluded.at", (at,)
    )


def put_aside(connection: sqlite3.Connection, batch: Batch, error: str, at: float) -> None:
    """Keep what an unfit batch held, as far as it can be shown; the newest `UNFIT_KEPT` are kept."""
    shown = {name: storable_json(getattr(batch, name)) for name in batch.__struct_fields__}
    row = (storable(batch.session), storable(batch.incarnation), batch.number, storable(error))
    doc = cut(_encode(shown).decode(), UNFIT_MAX_BYTES)
    sql = "INSERT INTO batches_unfit (session, incarnation, number, error, doc, at) VALUES (?, ?, ?, ?, ?, ?)"
    place = connection.execute(sql, (*row, doc.encode(), at)).lastrowid
    connection.execute("DELETE FROM batches_unfit WHERE place <= ?", ((place or 0) - UNFIT_KEPT,))


def unfit(connection: sqlite3.Connection, limit: int) -> list[UnfitBatch]:
    """Return the newest batches that could not be stored, the oldest of them first."""
    sql = "SELECT session, incarnation, number, error, doc, at FROM batches_unfit ORDER BY place DESC LIMIT ?"
    found = [
        UnfitBatch(session, incarnation, number, error, doc.decode(), at)
        for session, incarnation, number, error, doc, at in connection.execute(sql, (limit,))
    ]
    return found[::-1]


def last_batch(connection: sqlite3.Connection, session: str, incarnation: str) -> int:
    """Return the number of the last batch of an incarnation that is durable; 0 if there is none."""
    row = connection.execute(
        "SELECT number FROM batches WHERE session = ? AND incarnation = ?", (session, incarnation)
    ).fetchone()
    return int(row[0]) if row else 0


def set_last_batch(connection: sqlite3.Connection, session: str, incarnation: str, number: int) -> None:
    """Remember the last batch of an incarnation, and forget incarnations that are long gone."""
    connection.execute(
        """INSERT INTO batches (session, incarnation, number) VALUES (?, ?, ?)
        ON CONFLICT (session, incarnation) DO UPDATE SET number = excluded.number""",
        (session, incarnation, number),
    )
    if number == 1:
        connection.execute(
            """DELETE FROM batches WHERE session = ? AND place NOT IN
            (SELECT place FROM batches WHERE session = ? ORDER BY place DESC LIMIT ?)""",
            (session, session, INCARNATIONS_KEPT),
        )


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


def _doc(connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any) -> T | None:
    row = connection.execute(sql, values).fetchone()
    return _decoder(kind)(row[0]) if row else None


def _readable(
    connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any, left_out: list[str] | None = None
) -> list[T]:
    """Read a list of documents; `sql` selects each with its id.

    One that cannot be read is logged, named in `left_out`, and hides no other (law L13).
    """
    decode = _decoder(kind)
    found: list[T] = []
    for doc, identity in connection.execute(sql, values):
        try:
            found.append(decode(doc))
        except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
            _leave_out(f"{kind.__name__} {identity}", error, left_out)
    return found


def _leave_out(what: str, error: Exception, left_out: list[str] | None) -> None:
    logger.error("a stored row cannot be read: {}: {}", what, error)
    if left_out is not None:
        left_out.append(f"{what}: {error}")


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode


def events(connection: sqlite3.Connection, session: str, after_seq: int, limit: int) -> list[Event]:
    """Return at most `limit` events with a `seq` above `after_seq`, in order.

    One that cannot be read is there as an event of the kind ``unreadable``: it leaves no gap, and hides no other.
    """
    rows = connection.execute(
        _event + "WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?", (session, after_seq, limit)
    )
    return [_read_event(*row) for row in rows]


def events_about(connection: sqlite3.Connection, session: str, run_id: str, after_seq: int, limit: int) -> list[Event]:
    """Return at most `limit` events about a run with a `seq` above `after_seq`, in order.

    They are its own, those of the session that name it, and those about messages that it was given, that took over
    from it, or that its end left waiting or withdrew. The log is gone through, but of what others said nothing is read.
    """
    named = _messages_of(connection, session, run_id)
    marks = ", ".join("?" * len(_NAMING))
    sql = (
        f"{_event} WHERE session = ? AND seq > ? AND (run_id = ? OR run_id IS NULL OR kind IN ({marks})) "
        "ORDER BY seq LIMIT ?"
    )
    found: list[Event] = []
    while len(found) < limit and (
        page := [_read_event(*row) for row in connection.execute(sql, (session, after_seq, run_id, *_NAMING, PAGE))]
    ):
        found += (event for event in page if _is_about(event, run_id, named))
        after_seq = page[-1].seq
    return found[:limit]


def _messages_of(connection: sqlite3.Connection, session: str, run_id: str) -> frozenset[str]:
    info, filed = run(connection, session, run_id), receipt(connection, session, run_id)
    named = set() if info is None else {*info.inputs}
    if info is not None and info.provenance is not None and info.provenance.requested_by is not None:
        named.add(info.provenance.requested_by)
    return frozenset(named if filed is None else named.union(filed.waiting, filed.withdrawn))


def _is_about(event: Event, run_id: str, named: frozenset[str]) -> bool:
    data = event.data
    ids = data.get("ids", ()) if event.kind == "message.retracted" else (data.get("message_id", data.get("id")),)
    return run_id in (event.run_id, data.get("run_id")) or not named.isdisjoint(ids)


def _read_event(
    seq: int, session: str, generation: int, run_id: str | None, kind: str, data: bytes, at: float
) -> Event:
    try:
        return Event(seq, session, generation, run_id, kind, _data(data), at)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        return Event(seq, session, generation, run_id, UNREADABLE, {"kind": kind, "error": str(error)}, at)


def _folded(connection: sqlite3.Connection, session: str, kinds: Iterable[str]) -> Iterator[Event]:
    """Go through the events of some kinds, in order. Most of a log is output, which is not decoded for it."""
    wanted = sorted(kinds)
    marks = ", ".join("?" * len(wanted))
    sql = f"{_event} WHERE session = ? AND seq > ? AND kind IN ({marks}) ORDER BY seq LIMIT ?"
    after = 0
    while page := [_read_event(*row) for row in connection.execute(sql, (session, after, *wanted, PAGE))]:
        yield from page
        after = page[-1].seq


def last_seq(connection: sqlite3.Connection, session: str) -> int:
    """Return the highest `seq` of a session; 0 if it has no events."""
    row = connection.execute("SELECT MAX(seq) FROM events WHERE session = ?", (session,)).fetchone()
    return int(row[0] or 0)


def thread(connection: sqlite3.Connection, session: str) -> list[Message]:
    """Fold the log of a session into its messages."""
    fold = Thread()
    for event in _folded(connection, session, KINDS):
        fold.apply(event)
    return fold.messages()


def runs(connection: sqlite3.Connection, session: str, limit: int) -> list[RunInfo]:
    """Return the newest `limit` runs of a session in order of creation, the oldest first."""
    sql = "SELECT doc, run_id FROM runs WHERE session = ? ORDER BY place DESC LIMIT ?"
    return _readable(connection, RunInfo, sql, session, limit)[::-1]


def run(connection: sqlite3.Connection, session: str | None, run_id: str) -> RunInfo | None:
    """Return a run, of any session where `session` is None."""
    sql = "SELECT doc FROM runs WHERE run_id = ? AND (? IS NULL OR session = ?) ORDER BY place DESC LIMIT 1"
    return _doc(connection, RunInfo, sql, run_id, session, session)


def runs_beginning(connection: sqlite3.Connection, start: str, limit: int) -> list[RunInfo]:
    """Return the newest `limit` runs of any session whose id, or whose receipt's, begins with `start`, oldest first."""
    # Not LIKE, nor GLOB: what they take for a pattern may be in an id that somebody types.
    sql = """SELECT doc, run_id FROM runs
        WHERE substr(run_id, 1, length(?1)) = ?1 OR substr(receipt_id, 1, length(?1)) = ?1
        ORDER BY place DESC LIMIT ?2"""
    return _readable(connection, RunInfo, sql, start, limit)[::-1]


def open_runs(connection: sqlite3.Connection, session: str | None, limit: int) -> list[RunInfo]:
    """Return runs that are not settled, of any session where `session` is None, the oldest first."""
    sql = "SELECT doc, run_id FROM runs WHERE settled = 0 AND (? IS NULL OR session = ?) ORDER BY place LIMIT ?"
    return _readable(connection, RunInfo, sql, session, session, limit)


def open_calls(connection: sqlite3.Connection, session: str | None, limit: int) -> list[CallRow]:
    """Return calls of runs that are not settled whose execution has not ended, by session and run."""
    # The limit counts open calls only: a run may have thousands that have ended.
    sql = """SELECT calls.doc, calls.call_id
        FROM runs JOIN calls ON calls.session = runs.session AND calls.run_id = runs.run_id
        WHERE runs.settled = 0 AND (? IS NULL OR runs.session = ?)
        AND CASE WHEN json_valid(CAST(calls.doc AS TEXT))
            THEN json_extract(CAST(calls.doc AS TEXT), '$.ended_at') IS NULL ELSE 1 END
        ORDER BY runs.place, calls.call_id LIMIT ?"""
    return _readable(connection, CallRow, sql, session, session, limit)


def receipt(connection: sqlite3.Connection, session: str | None, identity: str) -> Receipt | None:
    """Return a receipt by its own id, else by its run's; of any session where `session` is None.

    In a session it is found by the id of the Stop too that was answered with it.
    """
    for column in ("receipt_id", "run_id"):
        sql = f"""SELECT doc FROM receipts WHERE {column} = ? AND (? IS NULL OR session = ?)
            ORDER BY place DESC LIMIT 1"""  # noqa: S608 - the column is one of two words above
        found = _doc(connection, Receipt, sql, identity, session, session)
        if found is not None:
            return found
    told = None if session is None else told_receipt(connection, session, identity)
    return None if told is None else receipt(connection, session, told)


_decode_reply: Final = msgspec.json.Decoder(Reply).decode


def told_receipt(connection: sqlite3.Connection, session: str, request_id: str) -> str | None:
    """Return the id of the receipt that the answer to a Stop names, where it is not the Stop's own; else None."""
    sql = "SELECT doc FROM requests WHERE session = ? AND request_id = ?"
    row = _doc(connection, RequestRow, sql, session, request_id)
    answer = None if row is None or not row.answer else _decode_reply(row.answer)
    return answer.receipt_id if isinstance(answer, Stopped) and answer.receipt_id != request_id else None


def pending_receipts(connection: sqlite3.Connection, session: str, left_out: list[str] | None = None) -> list[Receipt]:
    """Return the receipts of Stops that wait for process trees of the session; see `_readable` for `left_out`."""
    sql = "SELECT doc, receipt_id FROM pending_receipts WHERE session = ?"
    return _readable(connection, Receipt, sql, session, left_out=left_out)


def is_pending(connection: sqlite3.Connection, session: str, receipt_id: str) -> bool:
    """True if the receipt of a Stop waits for process trees of the session."""
    sql = "SELECT 1 FROM pending_receipts WHERE session = ? AND receipt_id = ?"
    return connection.execute(sql, (session, receipt_id)).fetchone() is not None


def live_processes(connection: sqlite3.Connection, session: str | None) -> list[ProcessRow]:
    """Return the process trees that are not known to have ended, of any session where it is None."""
    sql = """SELECT doc, process_id FROM processes WHERE state <> 'ended' AND (? IS NULL OR session = ?)
        ORDER BY session, process_id"""
    return _readable(connection, ProcessRow, sql, session, session)


def attachment(connection: sqlite3.Connection, session: str, name: str) -> bytes | None:
    """Return the bytes of an attachment."""
    row = connection.execute("SELECT data FROM attachments WHERE session = ? AND name = ?", (session, name)).fetchone()
    return row[0] if row else None


def session_row(connection: sqlite3.Connection, session: str) -> SessionRow | None:
    """Return a session's own facts."""
    return _doc(connection, SessionRow, "SELECT doc FROM sessions WHERE session = ?", session)


def sessions(connection: sqlite3.Connection, after: str, limit: int) -> list[SessionRow]:
    """Return at most `limit` sessions whose name is above `after`, by name; deleted ones are not among them."""
    sql = f"SELECT doc, session {_LIVING} AND session > ? ORDER BY session LIMIT ?"
    return _readable(connection, SessionRow, sql, after, limit)


def waiting(connection: sqlite3.Connection, session: str, left_out: list[str] | None = None) -> list[WaitingRow]:
    """Return the messages that wait, in their order; see `_readable` for `left_out`."""
    sql = "SELECT doc, message_id FROM waiting WHERE session = ? ORDER BY place"
    return _readable(connection, WaitingRow, sql, session, left_out=left_out)


def count_waiting(connection: sqlite3.Connection) -> int:
    """Return how many messages wait, in all sessions."""
    return int(connection.execute("SELECT COUNT(*) FROM waiting").fetchone()[0])


def unfinished(connection: sqlite3.Connection) -> list[str]:
    """Return the sessions that somebody has to take up.

    A run is not settled or is late, messages wait unparked, or a process tree of the session may not have ended.
    """
    rows = connection.execute(
        """SELECT session FROM runs WHERE settled = 0
        UNION
        SELECT waiting.session FROM waiting LEFT JOIN sessions ON sessions.session = waiting.session
        WHERE COALESCE(sessions.parked, 0) = 0
        UNION
        SELECT session FROM processes WHERE owner = 'session' AND state <> 'ended'
        UNION
        SELECT session FROM pending_receipts
        ORDER BY 1"""
    )
    return [row[0] for row in rows]


def count(connection: sqlite3.Connection) -> int:
    """Return how many sessions there are; deleted ones do not count."""
    (number,) = connection.execute(f"SELECT COUNT(*) {_LIVING}").fetchone()
    return int(number)


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all sessions; deleted ones are not among them."""
    return [name for (name,) in connection.execute(f"SELECT session {_LIVING} ORDER BY session")]


def settled(connection: sqlite3.Connection) -> list[tuple[str, int, float]]:
    """Return the sessions with nothing to finish and nothing waiting, parked or not, the longest unused first.

    By the order in which their last runs were made, whatever the clock said. Each with the seq and the time (epoch
    seconds, UTC) of its last event.
    """
    busy = set(unfinished(connection))
    busy.update(row[0] for row in connection.execute("SELECT DISTINCT session FROM waiting"))
    # The last event of each, by the primary key: one step down the tree for each session.
    newest = "(SELECT MAX(seq) FROM events WHERE events.session = sessions.session)"
    run = "(SELECT MAX(place) FROM runs WHERE runs.session = sessions.session)"
    last = f"SELECT session AS name, {newest} AS last, COALESCE({run}, 0) AS run {_LIVING}"
    rows = connection.execute(
        f"SELECT session, seq, at FROM ({last}) JOIN events ON session = name AND seq = last ORDER BY run, at"  # noqa: S608  # constants
    )
    return [(session, seq, at) for session, seq, at in rows if session not in busy]


@dataclass(slots=True)
class _Log:
    """What the log of a session says, where its rows do not."""

    thread: Thread = field(default_factory=Thread)
    said: set[str] = field(default_factory=set)
    fates: dict[str, str] = field(default_factory=dict)
    told_durable: set[str] = field(default_factory=set)
    statuses: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Take in one event, in order."""
        self.thread.apply(event)
        run_id, data = event.run_id, event.data
        match event.kind:
            case "text" | "tool.requested" if run_id is not None:
                self.said.add(run_id)
            case "message":
                self.fates[data["id"]] = "input"
            case "session.message_returned":
                self.fates[data["message_id"]] = "returned"
            case "run.started" if run_id is not None:
                self.statuses[run_id] = RunStatus.IN_PROGRESS, event.generation, data["agent"]
            case "run.status" if run_id in self.statuses:
                self.statuses[run_id] = (data["status"], *self.statuses[run_id][1:])
            case "run.ended":
                self.over.add(run_id or "")
            case "session.stop_durable":
                self.told_durable.add(data["request_id"])
            case _:
                pass


def _unsettled(connection: sqlite3.Connection, session: str, log: _Log, left_out: list[str]) -> Iterator[RunInfo]:
    """Go through the runs that are not settled. One whose row cannot be read is ended by what the log says of it."""
    sql = "SELECT run_id, receipt_id, doc FROM runs WHERE session = ? AND settled = 0 ORDER BY place"
    for run_id, receipt_id, doc in connection.execute(sql, (session,)).fetchall():
        try:
            yield _decoder(RunInfo)(doc)
        except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
            _leave_out(f"RunInfo {run_id}", error, left_out)
            if run_id in log.over:
                # Its receipt is filed; what may be heard of it still will be a dead letter.
                continue
            status, generation, agent = log.statuses.get(run_id, (RunStatus.QUEUED, None, ""))
            # Never tried again: what its inputs were is not known.
            yield RunInfo(session, run_id, RunStatus(status), agent, generation, receipt_id, attempt=UNTRIED)


def _own_row(connection: sqlite3.Connection, session: str, left_out: list[str]) -> SessionRow | None:
    """Return a session's own facts; where they cannot be read, what the log and the columns say of them."""
    try:
        return session_row(connection, session)
    except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
        _leave_out(f"SessionRow {session}", error, left_out)
        parked = connection.execute("SELECT parked FROM sessions WHERE session = ?", (session,)).fetchone()[0]
        sql = "SELECT MAX(generation), MAX(seq) FROM events WHERE session = ?"
        generation, seq = connection.execute(sql, (session,)).fetchone()
        return SessionRow(session, generation or 0, seq or 0, parked=bool(parked))


def _processes(
    connection: sqlite3.Connection, session: str, runs: list[str], waited_for: set[str], left_out: list[str]
) -> Iterator[ProcessRow]:
    """Go through the process trees that may live, and those that have ended and are of `runs` (ids).

    Those of the session that have ended come too, where a receipt that is not filed is to name them.
    """
    sql = "SELECT doc, process_id FROM processes WHERE session = ? AND state <> 'ended'"
    yield from _readable(connection, ProcessRow, sql, session, left_out=left_out)
    if waited_for:
        sql = "SELECT doc, process_id FROM processes WHERE session = ? AND owner = 'session' AND state = 'ended'"
        for row in _readable(connection, ProcessRow, sql, session, left_out=left_out):
            if row.run_id not in runs and waited_for.intersection(row.receipts):
                yield row
    if runs:
        sql = """SELECT doc, process_id FROM processes WHERE session = ? AND state = 'ended'
            AND CASE WHEN json_valid(CAST(doc AS TEXT))
                THEN json_extract(CAST(doc AS TEXT), '$.run_id') IN (SELECT value FROM json_each(?)) ELSE 1 END"""
        wanted = msgspec.json.encode(runs).decode()
        yield from _readable(connection, ProcessRow, sql, session, wanted, left_out=left_out)


def _printed(connection: sqlite3.Connection, session: str, calls: Iterable[CallRow]) -> dict[str, str]:
    """Return the end of what each call that has not ended has printed, as far as that can be read."""
    wanted = {call.call_id: call.run_id for call in calls if call.state in ("granted", "started")}
    sql = "SELECT data FROM events WHERE session = ? AND run_id = ? AND kind = 'tool.output' ORDER BY seq DESC LIMIT ?"
    found = dict.fromkeys(wanted, "")
    for run_id in set(wanted.values()):
        for (data,) in connection.execute(sql, (session, run_id, PAGE)):
            with contextlib.suppress(msgspec.MsgspecError, LookupError, TypeError):
                output = _data(data)
                if output["call_id"] in found and "marker" not in output:
                    found[output["call_id"]] = tail(output["text"] + found[output["call_id"]], OUTPUT_KEPT_CHARS)
    return found


def snapshot(connection: sqlite3.Connection, session: str, *, kept: int = 10_000) -> Snapshot:
    """Read all that an actor needs in order to take a session up.

    Of its requests the newest `kept`, however old: the clock may be wrong for now. What cannot be read is left out and
    named, and the session goes on without it.
    """
    told, left_out = _Log(), list[str]()
    for event in _folded(connection, session, KINDS | _FATES):
        try:
            told.take(event)
        except (LookupError, TypeError, ValueError) as error:
            _leave_out(f"Event {event.seq}, {event.kind}", error, left_out)
        if event.kind == UNREADABLE:
            left_out.append(f"Event {event.seq}, {event.data['kind']}: {event.data['error']}")
    runs = list(_unsettled(connection, session, told, left_out))
    pending = pending_receipts(connection, session, left_out)
    waited_for = {receipt.receipt_id for receipt in pending} | {run.run_id for run in runs}
    settled = connection.execute("SELECT run_id, receipt_id FROM runs WHERE session = ? AND settled = 1", (session,))
    calls_of = "SELECT doc, call_id FROM calls WHERE session = ? AND run_id = ? ORDER BY call_id"
    receipts_of = "SELECT doc, receipt_id FROM receipts WHERE session = ? AND run_id = ?"
    newest = "SELECT doc, request_id FROM requests WHERE session = ? ORDER BY place DESC LIMIT ?"

    def rows(kind: type[T], sql: str, *values: Any) -> list[T]:
        return _readable(connection, kind, sql, session, *values, left_out=left_out)

    calls = tuple(row for run in runs for row in rows(CallRow, calls_of, run.run_id))
    return Snapshot(
        session=session,
        row=_own_row(connection, session, left_out),
        thread=told.thread,
        runs=tuple(runs),
        calls=calls,
        processes=tuple(_processes(connection, session, [run.run_id for run in runs], waited_for, left_out)),
        pending=tuple(pending),
        receipts=tuple(row for run in runs if run.late for row in rows(Receipt, receipts_of, run.run_id)),
        waiting=tuple(waiting(connection, session, left_out)),
        requests=tuple(reversed(rows(RequestRow, newest, kept))),
        said=frozenset(told.said & {run.run_id for run in runs}),
        fates=told.fates,
        over=dict(settled.fetchall()),
        told_durable=frozenset(told.told_durable),
        printed=_printed(connection, session, calls),
        left_out=tuple(left_out),
    )
