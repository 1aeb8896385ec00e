"""Reads of the rows of runs, calls, receipts, processes and sessions: functions of a connection."""

from __future__ import annotations

import sqlite3
from typing import Final

from actors.decoding import decoder
from actors.model import Receipt, RunInfo
from actors.ports import CallRow, ProcessRow, RequestRow, SessionRow, WaitingRow
from actors.requests import Reply, Stopped
from supervisor.store.documents import document, readable

_LIVING: Final = """FROM sessions WHERE NOT COALESCE(
    CASE WHEN json_valid(CAST(doc AS TEXT)) THEN json_extract(CAST(doc AS TEXT), '$.deleted') END, 0)"""
"""Sessions that were not deleted. One with a damaged row is included, and is left out when it is decoded."""


def runs(connection: sqlite3.Connection, session: str, limit: int, before: str | None = None) -> list[RunInfo]:
    """Return the newest `limit` runs of a session, or of those before a run, in order of creation, the oldest first."""
    sql = """SELECT doc, run_id FROM runs WHERE session = ?1
        AND (?3 IS NULL OR place < (SELECT place FROM runs WHERE session = ?1 AND run_id = ?3))
        ORDER BY place DESC LIMIT ?2"""
    return readable(connection, RunInfo, sql, session, limit, before)[::-1]


def run(connection: sqlite3.Connection, session: str | None, run_id: str) -> RunInfo | None:
    """Return a run, of any session where `session` is None."""
    sql = "SELECT doc FROM runs WHERE run_id = ? AND (? IS NULL OR session = ?) ORDER BY place DESC LIMIT 1"
    return document(connection, RunInfo, sql, run_id, session, session)


def runs_beginning(connection: sqlite3.Connection, start: str, limit: int) -> list[RunInfo]:
    """Return the newest `limit` runs of any session whose id, or whose receipt's, begins with `start`, oldest first."""
    # Not LIKE or GLOB: an id that a person types may hold their wildcards.
    sql = """SELECT doc, run_id FROM runs
        WHERE substr(run_id, 1, length(?1)) = ?1 OR substr(receipt_id, 1, length(?1)) = ?1
        ORDER BY place DESC LIMIT ?2"""
    return readable(connection, RunInfo, sql, start, limit)[::-1]


def open_runs(connection: sqlite3.Connection, session: str | None, limit: int) -> list[RunInfo]:
    """Return runs that are not settled, of any session where `session` is None, the oldest first."""
    sql = "SELECT doc, run_id FROM runs WHERE settled = 0 AND (? IS NULL OR session = ?) ORDER BY place LIMIT ?"
    return readable(connection, RunInfo, sql, session, session, limit)


def open_calls(connection: sqlite3.Connection, session: str | None, limit: int) -> list[CallRow]:
    """Return calls of runs that are not settled whose execution has not ended, by session and run."""
    # The limit counts open calls only: a run may have thousands that have ended.
    sql = """SELECT calls.doc, calls.call_id
        FROM runs JOIN calls ON calls.session = runs.session AND calls.run_id = runs.run_id
        WHERE runs.settled = 0 AND (? IS NULL OR runs.session = ?)
        AND CASE WHEN json_valid(CAST(calls.doc AS TEXT))
            THEN json_extract(CAST(calls.doc AS TEXT), '$.ended_at') IS NULL ELSE 1 END
        ORDER BY runs.place, calls.call_id LIMIT ?"""
    return readable(connection, CallRow, sql, session, session, limit)


def receipt(connection: sqlite3.Connection, session: str | None, identity: str) -> Receipt | None:
    """Return a receipt by its own id, else by its run's; of any session where `session` is None.

    With a session, also by the id of a Stop whose answer names it.
    """
    for column in ("receipt_id", "run_id"):
        sql = f"""SELECT doc FROM receipts WHERE {column} = ? AND (? IS NULL OR session = ?)
            ORDER BY place DESC LIMIT 1"""  # noqa: S608 - the column is one of two words above
        found = document(connection, Receipt, sql, identity, session, session)
        if found is not None:
            return found
    answered = None if session is None else answered_receipt(connection, session, identity)
    return None if answered is None else receipt(connection, session, answered)


_decode_reply: Final = decoder(Reply)


def answered_receipt(connection: sqlite3.Connection, session: str, request_id: str) -> str | None:
    """Return the id of the receipt that the answer to a Stop names, where it is not the Stop's own; else None."""
    sql = "SELECT doc FROM requests WHERE session = ? AND request_id = ?"
    row = document(connection, RequestRow, sql, session, request_id)
    answer = None if row is None or not row.answer else _decode_reply(row.answer)
    return answer.receipt_id if isinstance(answer, Stopped) and answer.receipt_id != request_id else None


def answering(connection: sqlite3.Connection, request_id: str) -> list[str]:
    """Return the sessions that have answered a request of this id."""
    sql = """SELECT session FROM sessions WHERE EXISTS
        (SELECT 1 FROM requests WHERE requests.session = sessions.session AND request_id = ?) ORDER BY session"""
    return [name for (name,) in connection.execute(sql, (request_id,))]


def pending_receipts(connection: sqlite3.Connection, session: str, left_out: list[str] | None = None) -> list[Receipt]:
    """Return the receipts of Stops that wait for process trees of the session; see `readable` for `left_out`."""
    sql = "SELECT doc, receipt_id FROM pending_receipts WHERE session = ?"
    return readable(connection, Receipt, sql, session, left_out=left_out)


def is_pending(connection: sqlite3.Connection, session: str, receipt_id: str) -> bool:
    """True if the receipt of a Stop waits for process trees of the session."""
    sql = "SELECT 1 FROM pending_receipts WHERE session = ? AND receipt_id = ?"
    return connection.execute(sql, (session, receipt_id)).fetchone() is not None


def live_processes(connection: sqlite3.Connection, session: str | None) -> list[ProcessRow]:
    """Return the process trees that are not known to have ended, of any session where it is None."""
    sql = """SELECT doc, process_id FROM processes WHERE state <> 'ended' AND (? IS NULL OR session = ?)
        ORDER BY session, process_id"""
    return readable(connection, ProcessRow, sql, session, session)


def living_trees(connection: sqlite3.Connection) -> set[str]:
    """Return the ids of the process trees that are not known to have ended, also of rows that cannot be read."""
    return {
        process_id for (process_id,) in connection.execute("SELECT process_id FROM processes WHERE state <> 'ended'")
    }


def attachment(connection: sqlite3.Connection, session: str, name: str) -> tuple[bytes, str | None] | None:
    """Return the bytes of an attachment, and their media type; None: there is no such attachment."""
    sql = "SELECT data, media_type FROM attachments WHERE session = ? AND name = ?"
    row: tuple[bytes, str | None] | None = connection.execute(sql, (session, name)).fetchone()
    return row


def session_row(connection: sqlite3.Connection, session: str) -> SessionRow | None:
    """Return a session's own facts."""
    return document(connection, SessionRow, "SELECT doc FROM sessions WHERE session = ?", session)


def sessions(connection: sqlite3.Connection, after: str, limit: int) -> list[SessionRow]:
    """Return at most `limit` sessions whose name is above `after`, by name; deleted ones are not among them."""
    sql = f"SELECT doc, session {_LIVING} AND session > ? ORDER BY session LIMIT ?"
    return readable(connection, SessionRow, sql, after, limit)


def waiting(connection: sqlite3.Connection, session: str, left_out: list[str] | None = None) -> list[WaitingRow]:
    """Return the waiting messages of a session, in order; see `readable` for `left_out`."""
    sql = "SELECT doc, message_id FROM waiting WHERE session = ? ORDER BY place"
    return readable(connection, WaitingRow, sql, session, left_out=left_out)


def count_waiting(connection: sqlite3.Connection) -> int:
    """Return the number of waiting messages in all sessions."""
    return int(connection.execute("SELECT COUNT(*) FROM waiting").fetchone()[0])


def unfinished(connection: sqlite3.Connection) -> list[str]:
    """Return the sessions that have to be restored.

    Each has a run that is not settled or is late, messages waiting unparked, a process tree of its own that may not
    have ended, or a pending receipt.
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
    """Return the number of sessions, without deleted ones."""
    (number,) = connection.execute(f"SELECT COUNT(*) {_LIVING}").fetchone()
    return int(number)


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all sessions, without deleted ones."""
    return [name for (name,) in connection.execute(f"SELECT session {_LIVING} ORDER BY session")]


def settled(connection: sqlite3.Connection) -> list[tuple[str, int, float]]:
    """Return the sessions with nothing to finish and nothing waiting, parked or not, the longest unused first.

    Ordered by the creation of their last runs, not by the clock. Each with the seq and the time (epoch seconds, UTC)
    of its last event.
    """
    busy = set(unfinished(connection))
    busy.update(row[0] for row in connection.execute("SELECT DISTINCT session FROM waiting"))
    # The last event of each, by the primary key: one index lookup a session.
    newest = "(SELECT MAX(seq) FROM events WHERE events.session = sessions.session)"
    run = "(SELECT MAX(place) FROM runs WHERE runs.session = sessions.session)"
    last = f"SELECT session AS name, {newest} AS last, COALESCE({run}, 0) AS run {_LIVING}"
    rows = connection.execute(
        f"SELECT session, seq, at FROM ({last}) JOIN events ON session = name AND seq = last ORDER BY run, at"  # noqa: S608  # constants
    )
    return [(session, seq, at) for session, seq, at in rows if session not in busy]
