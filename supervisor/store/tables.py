"""The SQL that writes a batch. The functions take a connection, and begin no transaction."""

from __future__ import annotations

import functools
import sqlite3
from typing import Any, Final

import msgspec

from actors.errors import Invalid
from actors.ports import Batch

EVENTS_A_STATEMENT: Final = 64

INCARNATIONS_KEPT: Final = 8
"""Incarnations of a session whose last batch is kept; older ones never send a batch again."""

Statement = tuple[str, tuple[Any, ...]]
_encode: Final = msgspec.json.Encoder().encode

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
"""Deleted with a session. Its row stays, as a tombstone, and `batches`, so that no batch is written twice."""


def statements(batch: Batch) -> list[Statement]:
    """Encode a batch as statements with their rows.

    Raises ValueError (UnicodeEncodeError for a lone surrogate), OverflowError, RecursionError, TypeError, or Invalid.
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

    # A plain INSERT: a duplicate sequence number is a defect, and its second writer must not win. Many rows in one
    # statement: each statement releases the GIL, and waits to take it back while other threads are busy.
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
        # One that is not complete waits on, to be amended.
        [(session, r.receipt_id) for r in batch.receipts if r.run_id is None and r.complete],
    )
    add(_UPSERTS["waiting"], [(session, w.message.id, w.place, _encode(w)) for w in batch.waiting])
    add(
        "DELETE FROM waiting WHERE session = ? AND message_id = ?",
        [(session, message_id) for message_id in batch.unwaiting],
    )
    add(_UPSERTS["requests"], [(session, session, r.request_id, r.at, _encode(r)) for r in batch.requests])
    add(
        "INSERT OR IGNORE INTO attachments (session, name, data, at, media_type) VALUES (?, ?, ?, ?, ?)",
        [(session, a.name, a.data, a.at, a.media_type) for a in batch.attachments],
    )
    return made


@functools.cache
def _insert_events(number: int) -> str:
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * number)
    return f"INSERT INTO events (session, seq, generation, run_id, kind, data, at) VALUES {rows}"  # noqa: S608  # marks only


def prune_requests(connection: sqlite3.Connection, session: str, kept: int, before: float) -> None:
    """Delete requests of a session beyond the newest `kept`, and the oldest ones before `before` (epoch seconds).

    In the order of their answers, as the request book does: so those that remain have no gap.
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
    """Write one small row, in a transaction of its own, to test whether writes succeed."""
    connection.execute(
        "INSERT INTO attempts (one, at) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET at = excluded.at", (at,)
    )


def last_batch(connection: sqlite3.Connection, session: str, incarnation: str) -> int:
    """Return the number of the last batch of an incarnation that is durable; 0 if there is none."""
    row = connection.execute(
        "SELECT number FROM batches WHERE session = ? AND incarnation = ?", (session, incarnation)
    ).fetchone()
    return int(row[0]) if row else 0


def set_last_batch(connection: sqlite3.Connection, session: str, incarnation: str, number: int) -> None:
    """Write the number of an incarnation's last batch, and delete those of old incarnations."""
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
