"""What goes into which table, and how it is read back: functions of a connection, in no transaction."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec
from loguru import logger

from actors.errors import CountermandError, Invalid
from actors.model import Event, Message, Receipt, RunInfo
from actors.ports import Batch, CallRow, ProcessRow, RequestRow, SessionRow, Snapshot, WaitingRow
from actors.thread import Thread

PAGE: Final = 500
"""Events read at a time when a whole log is gone through."""

EVENTS_A_STATEMENT: Final = 64

INCARNATIONS_KEPT: Final = 8
"""Incarnations of a session whose last batch is remembered; older ones have nobody left to send one again."""

T = TypeVar("T")
Statement = tuple[str, tuple[Any, ...]]

_encode: Final = msgspec.json.Encoder().encode
_data: Final = msgspec.json.Decoder(dict[str, Any]).decode
_event: Final = "SELECT seq, session, generation, run_id, kind, data, at FROM events "

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
)
"""What is removed with a session. Its row stays, as a tombstone, and `batches`, so that no batch is written twice."""

_LIVING: Final = "FROM sessions WHERE COALESCE(json_extract(CAST(doc AS TEXT), '$.deleted'), 0) = 0 "


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
    return made


@functools.cache
def _insert_events(number: int) -> str:
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * number)
    return f"INSERT INTO events (session, seq, generation, run_id, kind, data, at) VALUES {rows}"  # noqa: S608  # marks only


def prune_requests(connection: sqlite3.Connection, session: str, kept: int, before: float) -> None:
    """Forget requests of a session beyond the newest `kept`, and those before `before` (epoch seconds)."""
    connection.execute(
        """DELETE FROM requests WHERE session = ?
        AND place <= (SELECT MAX(place) FROM requests WHERE session = ?) - ?""",
        (session, session, kept),
    )
    connection.execute("DELETE FROM requests WHERE session = ? AND at < ?", (session, before))


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


def _docs(connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any) -> list[T]:
    decode: Callable[[bytes], T] = _decoder(kind)
    return [decode(row[0]) for row in connection.execute(sql, values)]


def _doc(connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any) -> T | None:
    found = _docs(connection, kind, sql, *values)
    return found[0] if found else None


def _readable(connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any) -> list[T]:
    """As `_docs`, for lists: a row that cannot be read is logged and left out, so that it hides no other (law L13)."""
    decode = _decoder(kind)
    found: list[T] = []
    for (doc,) in connection.execute(sql, values):
        try:
            found.append(decode(doc))
        except (msgspec.MsgspecError, CountermandError) as error:
            logger.error("a stored {} cannot be read and is left out: {}", kind.__name__, error)
    return found


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode


def events(connection: sqlite3.Connection, session: str, after_seq: int, limit: int) -> list[Event]:
    """Return at most `limit` events with a `seq` above `after_seq`, in order."""
    rows = connection.execute(
        _event + "WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?", (session, after_seq, limit)
    )
    return [
        Event(seq, of, generation, run_id, kind, _data(data), at)
        for seq, of, generation, run_id, kind, data, at in rows
    ]


def log(connection: sqlite3.Connection, session: str) -> Iterator[Event]:
    """Go through the whole log of a session, a page at a time."""
    after = 0
    while page := events(connection, session, after, PAGE):
        yield from page
        after = page[-1].seq


def last_seq(connection: sqlite3.Connection, session: str) -> int:
    """Return the highest `seq` of a session; 0 if it has no events."""
    row = connection.execute("SELECT MAX(seq) FROM events WHERE session = ?", (session,)).fetchone()
    return int(row[0] or 0)


def thread(connection: sqlite3.Connection, session: str) -> list[Message]:
    """Fold the log of a session into its messages."""
    fold = Thread()
    for event in log(connection, session):
        fold.apply(event)
    return fold.messages()


def runs(connection: sqlite3.Connection, session: str, limit: int) -> list[RunInfo]:
    """Return the newest `limit` runs of a session in order of creation, the oldest first."""
    sql = "SELECT doc FROM runs WHERE session = ? ORDER BY place DESC LIMIT ?"
    return _readable(connection, RunInfo, sql, session, limit)[::-1]


def run(connection: sqlite3.Connection, session: str | None, run_id: str) -> RunInfo | None:
    """Return a run, of any session where `session` is None."""
    sql = "SELECT doc FROM runs WHERE run_id = ? AND (? IS NULL OR session = ?) ORDER BY place DESC LIMIT 1"
    return _doc(connection, RunInfo, sql, run_id, session, session)


def runs_beginning(connection: sqlite3.Connection, start: str, limit: int) -> list[RunInfo]:
    """Return runs of any session whose id, or whose receipt's, begins with `start`, the oldest first."""
    # Not LIKE, nor GLOB: what they take for a pattern may be in an id that somebody types.
    sql = """SELECT doc FROM runs
        WHERE substr(run_id, 1, length(?1)) = ?1 OR substr(receipt_id, 1, length(?1)) = ?1 ORDER BY place LIMIT ?2"""
    return _readable(connection, RunInfo, sql, start, limit)


def open_runs(connection: sqlite3.Connection, session: str | None, limit: int) -> list[RunInfo]:
    """Return runs that are not settled, of any session where `session` is None, the oldest first."""
    sql = "SELECT doc FROM runs WHERE settled = 0 AND (? IS NULL OR session = ?) ORDER BY place LIMIT ?"
    return _readable(connection, RunInfo, sql, session, session, limit)


def open_calls(connection: sqlite3.Connection, session: str | None, limit: int) -> list[CallRow]:
    """Return calls of runs that are not settled whose execution has not ended, by session and run."""
    sql = """SELECT calls.doc FROM runs JOIN calls ON calls.session = runs.session AND calls.run_id = runs.run_id
        WHERE runs.settled = 0 AND (? IS NULL OR runs.session = ?)
        ORDER BY runs.place, calls.call_id LIMIT ?"""
    rows = _readable(connection, CallRow, sql, session, session, limit)
    return [row for row in rows if row.ended_at is None]


def receipt(connection: sqlite3.Connection, session: str | None, identity: str) -> Receipt | None:
    """Return a receipt by its own id, or else by its run's; of any session where `session` is None."""
    for column in ("receipt_id", "run_id"):
        sql = f"""SELECT doc FROM receipts WHERE {column} = ? AND (? IS NULL OR session = ?)
            ORDER BY place DESC LIMIT 1"""  # noqa: S608 - the column is one of two words above
        found = _doc(connection, Receipt, sql, identity, session, session)
        if found is not None:
            return found
    return None


def pending_receipts(connection: sqlite3.Connection, session: str) -> list[Receipt]:
    """Return the receipts of Stops that wait for process trees of the session."""
    return _readable(connection, Receipt, "SELECT doc FROM pending_receipts WHERE session = ?", session)


def is_pending(connection: sqlite3.Connection, session: str, receipt_id: str) -> bool:
    """True if the receipt of a Stop waits for process trees of the session."""
    sql = "SELECT 1 FROM pending_receipts WHERE session = ? AND receipt_id = ?"
    return connection.execute(sql, (session, receipt_id)).fetchone() is not None


def live_processes(connection: sqlite3.Connection, session: str | None) -> list[ProcessRow]:
    """Return the process trees that are not known to have ended, of any session where it is None."""
    sql = "SELECT doc FROM processes WHERE state <> 'ended' AND (? IS NULL OR session = ?) ORDER BY session, process_id"
    return _readable(connection, ProcessRow, sql, session, session)


def session_row(connection: sqlite3.Connection, session: str) -> SessionRow | None:
    """Return a session's own facts."""
    return _doc(connection, SessionRow, "SELECT doc FROM sessions WHERE session = ?", session)


def sessions(connection: sqlite3.Connection, after: str, limit: int) -> list[SessionRow]:
    """Return at most `limit` sessions whose name is above `after`, by name; deleted ones are not among them."""
    sql = f"SELECT doc {_LIVING} AND session > ? ORDER BY session LIMIT ?"
    return _readable(connection, SessionRow, sql, after, limit)


def waiting(connection: sqlite3.Connection, session: str) -> list[WaitingRow]:
    """Return the messages that wait, in their order."""
    return _readable(connection, WaitingRow, "SELECT doc FROM waiting WHERE session = ? ORDER BY place", session)


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


def settled(connection: sqlite3.Connection) -> list[tuple[str, int, float]]:
    """Return the sessions with nothing to finish and nothing waiting, parked or not, the longest unused first.

    Each with the seq and the time (epoch seconds, UTC) of its last event.
    """
    busy = set(unfinished(connection))
    busy.update(row[0] for row in connection.execute("SELECT DISTINCT session FROM waiting"))
    # The last event of each, by the primary key: one step down the tree for each session.
    newest = "(SELECT MAX(seq) FROM events WHERE events.session = sessions.session)"
    last = f"SELECT session AS name, {newest} AS last {_LIVING}"
    rows = connection.execute(
        f"SELECT session, seq, at FROM ({last}) JOIN events ON session = name AND seq = last ORDER BY at"  # noqa: S608  # constants
    )
    return [(session, seq, at) for session, seq, at in rows if session not in busy]


def _processes(
    connection: sqlite3.Connection, session: str, ended: Iterable[str], waited_for: set[str]
) -> Iterator[ProcessRow]:
    """Go through the process trees that may live, and those that have ended and are among `ended` (ids).

    Those of the session that have ended come too, where a receipt that is not filed is to name them.
    """
    yield from _readable(
        connection, ProcessRow, "SELECT doc FROM processes WHERE session = ? AND state <> 'ended'", session
    )
    if waited_for:
        sql = "SELECT doc FROM processes WHERE session = ? AND owner = 'session' AND state = 'ended'"
        for row in _readable(connection, ProcessRow, sql, session):
            if row.process_id not in ended and waited_for.intersection(row.receipts):
                yield row
    for process_id in ended:
        sql = "SELECT doc FROM processes WHERE session = ? AND process_id = ? AND state = 'ended'"
        yield from _readable(connection, ProcessRow, sql, session, process_id)


def _receipts(connection: sqlite3.Connection, session: str, run_ids: Iterable[str]) -> Iterator[Receipt]:
    for run_id in run_ids:
        yield from _readable(
            connection, Receipt, "SELECT doc FROM receipts WHERE session = ? AND run_id = ?", session, run_id
        )


def snapshot(connection: sqlite3.Connection, session: str, *, kept: int = 10_000, since: float = 0.0) -> Snapshot:
    """Read all that an actor needs in order to take a session up.

    Of its requests the newest `kept`, of those not before `since` (epoch seconds). A waiting message, a request, a call
    or a process whose row cannot be read is left out: the session goes on without it.
    """
    fold = Thread()
    said: set[str] = set()
    fates: dict[str, str] = {}
    ended: dict[str, str] = {}
    for event in log(connection, session):
        fold.apply(event)
        if event.kind in ("text", "tool.requested") and event.run_id is not None:
            said.add(event.run_id)
        elif event.kind == "message":
            fates[event.data["id"]] = "input"
        elif event.kind == "session.message_returned":
            fates[event.data["message_id"]] = "returned"
        elif event.kind == "process.ended":
            # Of one that was the session's, the run that it came from is in the data.
            ended[event.data["process_id"]] = event.run_id or event.data["run_id"]
        elif event.kind == "run.ended":
            # Its receipt is filed, so nobody asks any more for the processes that it lists.
            ended = {process: run_id for process, run_id in ended.items() if run_id != event.run_id}
    unsettled = _docs(
        connection, RunInfo, "SELECT doc FROM runs WHERE session = ? AND settled = 0 ORDER BY place", session
    )
    settled = connection.execute("SELECT run_id, receipt_id FROM runs WHERE session = ? AND settled = 1", (session,))
    newest = "SELECT doc FROM requests WHERE session = ? AND at >= ? ORDER BY place DESC LIMIT ?"
    pending = pending_receipts(connection, session)
    waited_for = {receipt.receipt_id for receipt in pending} | {run.run_id for run in unsettled}
    calls_of = "SELECT doc FROM calls WHERE session = ? AND run_id = ? ORDER BY call_id"
    return Snapshot(
        session=session,
        row=session_row(connection, session),
        thread=fold,
        runs=tuple(unsettled),
        calls=tuple(row for run in unsettled for row in _readable(connection, CallRow, calls_of, session, run.run_id)),
        processes=tuple(_processes(connection, session, ended, waited_for)),
        pending=tuple(pending),
        receipts=tuple(_receipts(connection, session, [run.run_id for run in unsettled if run.late])),
        waiting=tuple(waiting(connection, session)),
        requests=tuple(reversed(_readable(connection, RequestRow, newest, session, since, kept))),
        said=frozenset(said & {run.run_id for run in unsettled}),
        fates=fates,
        over=dict(settled.fetchall()),
    )
