"""Reads of the log. The functions take a connection, and begin no transaction."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from actors.decoding import decoder
from actors.events import EventData, EventKind, UnreadableData, as_data, data_of, decoded, named_messages, named_run
from actors.model import Event, Message
from actors.thread import KINDS, Thread
from supervisor.store.rows import receipt, run

PAGE: Final = 500
"""Events a query when a whole log is read."""

SHORT_EVENTS: Final = 500
SHORT_BYTES: Final = 1_048_576
"""A log within both is read in a few ms."""

_decode_data: Final = decoder(dict[str, Any])
_event: Final = "SELECT seq, session, generation, run_id, kind, data, at FROM events "

# Kinds of events of one run that may be about another one, or about a message of it.
_NAMING: Final = (
    EventKind.MESSAGE,
    EventKind.MESSAGE_RETRACTED,
    EventKind.SESSION_BARRIER_FORCED,
    EventKind.SESSION_MESSAGE_WAITING,
    EventKind.SESSION_MESSAGE_RETURNED,
)


def events(connection: sqlite3.Connection, session: str, after_seq: int, limit: int) -> list[Event]:
    """Return at most `limit` events with a `seq` above `after_seq`, in order.

    An event whose data cannot be decoded is returned with `UnreadableData`, so that there is no gap.
    """
    rows = connection.execute(
        _event + "WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?", (session, after_seq, limit)
    )
    return [_read_event(*row) for row in rows]


def is_long(connection: sqlite3.Connection, session: str) -> bool:
    """True if it takes more than a few ms to read the log of a session. The lengths are read without the data."""
    sql = "SELECT count(*), sum(length(data)) FROM (SELECT data FROM events WHERE session = ? ORDER BY seq LIMIT ?)"
    count, size = connection.execute(sql, (session, SHORT_EVENTS + 1)).fetchone()
    return count > SHORT_EVENTS or (size or 0) > SHORT_BYTES


def events_about(connection: sqlite3.Connection, session: str, run_id: str, after_seq: int, limit: int) -> list[Event]:
    """Return at most `limit` events about a run with a `seq` above `after_seq`, in order.

    They are its own, those of the session that name it, and those about its inputs, the message that interrupted it,
    and messages that its end left waiting or withdrew. The log is scanned, but the output of other runs is not read.
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
    if event.run_id == run_id:
        return True
    data = data_of(event)
    return named_run(data) == run_id or not named.isdisjoint(named_messages(data))


def _read_event(
    seq: int, session: str, generation: int, run_id: str | None, kind: str, data: bytes, at: float
) -> Event:
    try:
        return Event(seq, session, generation, run_id, kind, _decode_data(data), at)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        unreadable = UnreadableData(kind=kind, error=str(error))
        return Event(seq, session, generation, run_id, EventKind.UNREADABLE.value, as_data(unreadable), at)


def folded(
    connection: sqlite3.Connection, session: str, kinds: Iterable[str], after: int = 0
) -> Iterator[tuple[Event, EventData]]:
    """Yield the events of some kinds behind a `seq`, in order, with their data decoded; `data` of each Event is empty.

    Most of a log is output, and other kinds are not read.
    """
    sql, wanted = _folding(frozenset(kinds))
    page_full = True
    while page_full:
        page = connection.execute(sql, (session, after, *wanted, PAGE)).fetchall()
        for seq, _, generation, run_id, kind, data, at in page:
            yield Event(seq, session, generation, run_id, kind, {}, at), decoded(kind, data)
        page_full = len(page) == PAGE
        after = page[-1][0] if page else after


@functools.cache
def _folding(kinds: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Return the query of a fold, and its kinds."""
    # As plain strings: SQLite's module looks for an adapter for each value of any other class, at every query.
    wanted = tuple(sorted(map(str, kinds)))
    marks = ", ".join("?" * len(wanted))
    return f"{_event} WHERE session = ? AND seq > ? AND kind IN ({marks}) ORDER BY seq LIMIT ?", wanted


def last_seq(connection: sqlite3.Connection, session: str) -> int:
    """Return the highest `seq` of a session; 0 if it has no events."""
    row = connection.execute("SELECT MAX(seq) FROM events WHERE session = ?", (session,)).fetchone()
    return int(row[0] or 0)


def thread(connection: sqlite3.Connection, session: str) -> list[Message]:
    """Fold the log of a session into its messages."""
    fold = Thread()
    for event, data in folded(connection, session, KINDS):
        fold.add(event, data)
    return fold.messages()
