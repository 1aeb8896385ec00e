"""Reads of the store, from any thread and any process, concurrent with the writer.

SQLite's write-ahead log lets readers see the last commit while the next one is written, so a reader takes no
part in the writer's queue. A connection serves one read at a time. Each concurrent read opens its own, and a small
pool keeps a few idle ones.

The pool has no lock, because a signal handler may read on a thread that is about to give a connection back, and would
deadlock on a lock that its own thread holds. Appending to a list and popping from it are atomic instead. A thread that
has appended trims the pool afterwards, and so does `close`: whichever comes last sees what the other did.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec

from actors.errors import Invalid, NotFound, StoreUnavailable
from actors.model import Event, Message, Receipt, RunInfo
from actors.ports import CallRow, ProcessRow, SessionRow, WaitingRow
from actors.text import shown
from supervisor.store import events, rows, unfit
from supervisor.store.schema import open_reader, schema_version
from supervisor.store.thread_end import thread_end
from supervisor.store.unfit import UnfitBatch

IDLE_MAX: Final = 4
EVENTS_MAX: Final = 1_000
ROWS_MAX: Final = 10_000
STEPS: Final = 10_000
"""Instructions of SQLite's virtual machine between two looks at whether the reader was closed."""

P = ParamSpec("P")
T = TypeVar("T")


class SqliteReader:
    """The store, read only. Every method may be called from any thread, and blocks for its reads.

    It needs no writer, never blocks one, and changes nothing.

    Args:
        path: the store's file.
        busy_timeout_s: how long a read waits for a file that is being recovered.

    Raises (the constructor and each read): StoreUnavailable, if the file is missing, of another version,
    unreadable, or the reader was closed; Invalid, if an argument is no value that a row could hold.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        # Open it without reading a page of rows: a damaged one must not keep the others from being read.
        self._read(schema_version)

    def events(self, session: str, after_seq: int = 0, limit: int = EVENTS_MAX) -> list[Event]:
        """Return at most `limit` events whose `seq` is above `after_seq`, in order."""
        return self._read(events.events, session, after_seq, limit)

    def events_about(self, session: str, run_id: str, after_seq: int = 0, limit: int = EVENTS_MAX) -> list[Event]:
        """Return at most `limit` events about a run whose `seq` is above `after_seq`, in order.

        They are its own, those of the session that name it, and those about its inputs, the message that interrupted
        it, and messages that its end left waiting or withdrew.
        """
        return self._read(events.events_about, session, run_id, after_seq, limit)

    def last_seq(self, session: str) -> int:
        """Return the highest `seq` of a session; 0 if it has no events."""
        return self._read(events.last_seq, session)

    def thread(self, session: str) -> list[Message]:
        """Return the messages of a session: the fold of its whole log."""
        return self._read(events.thread, session)

    def thread_end(self, session: str, last: int, since: str | None = None) -> tuple[list[Message], bool]:
        """Return the newest messages of a session, and True if there are older ones; see `thread_end`."""
        return self._read(thread_end, session, last, since)

    def runs(
        self, session: str, limit: int = ROWS_MAX, looked_at: list[str] | None = None, before: str | None = None
    ) -> list[RunInfo]:
        """Return the newest `limit` runs in order of creation, the oldest first; see `_noting` for `looked_at`.

        With `before` they are the newest of those that were created before the run with that id.
        """
        return self._read(_noting(rows.runs, looked_at), session, limit, before)

    def run(self, session: str, run_id: str) -> RunInfo | None:
        """Return a run of a session; None if there is none."""
        return self._read(rows.run, session, run_id)

    def find_run(self, run_id: str) -> RunInfo | None:
        """Return a run of any session; None if there is none."""
        return self._read(rows.run, None, run_id)

    def runs_beginning(self, start: str, limit: int = ROWS_MAX, looked_at: list[str] | None = None) -> list[RunInfo]:
        """Return the newest `limit` runs, of any session, whose id or receipt's begins with `start`; the oldest first.

        See `_noting` for `looked_at`.
        """
        return self._read(_noting(rows.runs_beginning, looked_at), start, limit)

    def open_runs(self, session: str | None = None, limit: int = ROWS_MAX) -> list[RunInfo]:
        """Return at most `limit` runs that are not settled, of one session or of all, the oldest first."""
        return self._read(rows.open_runs, session, limit)

    def open_calls(self, session: str | None = None, limit: int = ROWS_MAX) -> list[CallRow]:
        """Return at most `limit` calls that have no recorded end, of runs that are not settled."""
        return self._read(rows.open_calls, session, limit)

    def receipt(self, session: str, identity: str) -> Receipt | None:
        """Return a receipt of a session by its own id, by its run's, or by that of a Stop whose answer names it."""
        return self._read(rows.receipt, session, identity)

    def answered_receipt(self, session: str, request_id: str) -> str | None:
        """Return the id of the receipt that the answer to a Stop names, where it is not the Stop's own."""
        return self._read(rows.answered_receipt, session, request_id)

    def answering(self, request_id: str) -> list[str]:
        """Return the sessions that have answered a request of this id, by name."""
        return self._read(rows.answering, request_id)

    def find_receipt(self, identity: str) -> Receipt | None:
        """Return a receipt of any session by its own id or by its run's."""
        return self._read(rows.receipt, None, identity)

    def session(self, session: str) -> SessionRow | None:
        """Return a session's row; None if there is none."""
        return self._read(rows.session_row, session)

    def sessions(self, after: str = "", limit: int = ROWS_MAX, looked_at: list[str] | None = None) -> list[SessionRow]:
        """Return at most `limit` sessions whose name sorts after `after`, by name; see `_noting` for `looked_at`."""
        return self._read(_noting(rows.sessions, looked_at), after, limit)

    def every_session(self, page: int = ROWS_MAX) -> Iterator[SessionRow]:
        """Yield all sessions, by name, reading `page` of them at a time; one whose row cannot be read is skipped."""
        after: str | None = ""
        while after is not None:
            looked_at: list[str] = []
            yield from self.sessions(after, page, looked_at)
            after = looked_at[-1] if looked_at else None

    def waiting(self, session: str) -> list[WaitingRow]:
        """Return the waiting messages of a session, in order."""
        return self._read(rows.waiting, session)

    def count_waiting(self) -> int:
        """Return the number of waiting messages in all sessions."""
        return self._read(rows.count_waiting)

    def is_pending(self, session: str, receipt_id: str) -> bool:
        """True if the receipt of a Stop waits for process trees of its session."""
        return self._read(rows.is_pending, session, receipt_id)

    def live_processes(self, session: str | None = None) -> list[ProcessRow]:
        """Return the process trees that are not known to have ended, of all sessions if `session` is None."""
        return self._read(rows.live_processes, session)

    def living_trees(self) -> set[str]:
        """Return the ids of the process trees that are not known to have ended, also of rows that cannot be read."""
        return self._read(rows.living_trees)

    def unfinished(self) -> list[str]:
        """Return the sessions with something to finish: a run, messages that wait unparked, a tree, a receipt."""
        return self._read(rows.unfinished)

    def attachment(self, session: str, name: str) -> bytes:
        """Return the bytes of an attachment of a session. Raises NotFound."""
        return self.attachment_and_type(session, name)[0]

    def attachment_and_type(self, session: str, name: str) -> tuple[bytes, str | None]:
        """Return the bytes of an attachment and their media type: the first one that was given for these bytes.

        None: they are a text that is not UTF-8. Raises NotFound.
        """
        found = self._read(rows.attachment, session, name)
        if found is None:
            raise NotFound(
                "there is no such attachment in this session",
                expected="a name from the `attachments` of a message",
                got=shown(name),
                remedy="see the thread of the session",
            )
        return found

    def unfit(self, limit: int = ROWS_MAX) -> list[UnfitBatch]:
        """Return the newest `limit` batches that could not be stored, the oldest first."""
        return self._read(unfit.newest, limit)

    def count(self) -> int:
        """Return the number of sessions, without deleted ones."""
        return self._read(rows.count)

    def names(self) -> list[str]:
        """Return the names of all sessions, without deleted ones; also those whose row cannot be read."""
        return self._read(rows.names)

    def settled(self) -> list[tuple[str, int, float]]:
        """Return the sessions that may be deleted: name, last seq, and its time; the longest unused first."""
        return self._read(rows.settled)

    def at_once(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a long query finds, all of it as of one commit, over a connection of its own. `close` ends it.

        Raises sqlite3.Error, OSError and what the query raises, as they are.
        """
        with contextlib.closing(open_reader(self._path, self._busy_timeout_s)) as connection:
            connection.set_progress_handler(lambda: self._closed, STEPS)
            connection.execute("BEGIN")
            return query(connection)

    def close(self) -> None:
        """Close idle connections; a read under way closes its own when it ends. May be called twice."""
        self._closed = True
        self._trim()

    def _read(self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        for value in (*args, *kwargs.values()):
            if value is not None and not isinstance(value, str | int):
                raise Invalid(
                    "id is not a string or a 64-bit integer",
                    expected="an id, as a str, or a whole number",
                    got=shown(value),
                    remedy="check the id or the number that was given",
                )
        try:
            connection = self._take()
            try:
                result = query(connection, *args, **kwargs)
            except BaseException:
                # The next reader must not get a connection that has just failed.
                connection.close()
                raise
        except (UnicodeEncodeError, OverflowError) as error:
            raise Invalid(
                "id is not UTF-8 text or a 64-bit integer",
                expected="text that is UTF-8, and numbers of 64 bits",
                got=str(error),
                remedy="check the id or the number that was given",
            ) from error
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError, Invalid, OSError) as error:
            # A damaged row cannot be decoded, or decodes to an invalid value.
            raise StoreUnavailable(
                "the store could not be read",
                expected=f"a readable store at {self._path}",
                got=str(error),
                remedy="check the disk and the permissions of the state directory",
            ) from error
        self._give_back(connection)
        return result

    def _take(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreUnavailable("the store was closed", remedy="start the supervisor again")
        try:
            return self._idle.pop()
        except IndexError:
            return open_reader(self._path, self._busy_timeout_s)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        self._idle.append(connection)
        self._trim()

    def _trim(self) -> None:
        """Close idle connections beyond `IDLE_MAX`; all of them once the reader was closed."""
        while len(self._idle) > (0 if self._closed else IDLE_MAX):
            # Another thread may have taken it.
            with contextlib.suppress(IndexError):
                self._idle.pop().close()


def _noting(
    query: Callable[Concatenate[sqlite3.Connection, P], T], looked_at: list[str] | None
) -> Callable[Concatenate[sqlite3.Connection, P], T]:
    """Have a list query append to `looked_at` the id of each row it reads, up to its limit.

    They include rows that cannot be decoded and are not in the list: so a page shorter than its limit need not be the
    last.
    """
    if looked_at is None:
        return query

    def note(_: sqlite3.Cursor, row: tuple[bytes, str]) -> tuple[bytes, str]:
        looked_at.append(row[1])
        return row

    def noting(connection: sqlite3.Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        connection.row_factory = note
        try:
            return query(connection, *args, **kwargs)
        finally:
            connection.row_factory = None

    return noting
