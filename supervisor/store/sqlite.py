"""The store's writer: one thread that commits what all sessions decided, many batches at a time.

Theory of operation. Sessions hand in batches and go on; the writer thread takes all that has gathered, up to
a bound, and writes it in one transaction, so that one flush of the disk serves them all. Then it tells each
owner. While it flushes, the next group gathers: the busier the daemon, the larger the groups.

Order and once. A session numbers its batches from 1 within an incarnation, and the number of the last one is
written in the batch's own transaction. So the file itself knows what is done: a batch at or below that number
was written before and is answered as such; one that is not the next is refused. That makes a batch that is
sent again harmless, makes every batch behind a failed one fail, and keeps a group that is retried after an
error in COMMIT, whose outcome nobody knows, from being written twice.

Failures, by whose fault they are:
  - the batch's (text that is not UTF-8, a number that does not fit, a sequence number that is taken): every
    batch has its savepoint, so the offender alone is rolled back and fails; the rest of the group commits
    (law L13);
  - another process's (the file is locked): SQLite waits for it up to `busy_timeout_s`, then the group fails;
  - the disk's (I/O error, full, malformed): roll back, close, reopen, check the version, and try the group
    once more; then it fails. The next group starts with a fresh attempt, so the store heals when the disk
    does;
  - ours: whatever else is raised fails the group and is logged. Nothing ends the thread but `close`.

Bounds. The queue has no limit of its own, because a refused batch would break its session and a blocked one
would block an actor. It is bounded by those who fill it: an agent waits for credit (256 events or 1 MiB a
run), requests are refused by a full mailbox, and a session whose batch failed sends no more.

Loads run on the writer's thread, so a session that is taken up sees all that its earlier incarnation sent.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from loguru import logger
from msgspec import Struct

from actors.errors import CountermandError, StoreUnavailable
from actors.messages import CommitFailed, Committed, Loaded, LoadFailed
from actors.ports import Batch, Clock, Snapshot
from supervisor.store import tables
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import open_writer

if TYPE_CHECKING:
    from pykka import ActorRef

GROUP_MAX: Final = 256
"""Batches in one transaction: enough to make the flush cheap, few enough that none waits long."""
LAST_KEPT_MAX: Final = 10_000
"""Incarnations whose last batch is known without a read."""
PRUNE_EVERY: Final = 64
"""Old requests are deleted in one of so many batches of an incarnation; who loads a session never sees them."""

_Last = dict[tuple[str, str], int]

_DATA_ERRORS: Final = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    CountermandError,
    msgspec.MsgspecError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class _Commit:
    """A batch on its way; `error` is why it failed, and stays None where it is durable."""

    __slots__ = ("batch", "error", "owner", "statements")

    def __init__(self, batch: Batch, owner: ActorRef[Any]) -> None:
        self.batch = batch
        self.owner = owner
        self.error: str | None = None
        self.statements: list[tables.Statement] | None = None


class _Load:
    """A session to be read."""

    __slots__ = ("owner", "session")

    def __init__(self, session: str, owner: ActorRef[Any]) -> None:
        self.session = session
        self.owner = owner


_Work: TypeAlias = _Commit | _Load | threading.Event


class SqliteStore:
    """`actors.ports.Store` over one SQLite file, with its writer thread.

    Args:
        path: the file; it is made (mode 0600) where there is none. Only one process may write it: the caller
            holds the lock of the state directory.
        clock: `wall` says how old a request is.
        busy_timeout_s: how long the writer waits for a file that somebody else has locked.
        lend: around the telling of what is durable, when nothing else waits to be written; see `PooledDispatcher.lend`.
        requests_kept, requests_kept_s: how many requests a session's memory holds, and for how many seconds.

    Raises StoreUnavailable where the file cannot be opened or was written by a newer program. The methods may
    be called from any thread; only `close` and `answers` wait.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        busy_timeout_s: float = 5.0,
        requests_kept: int = 10_000,
        requests_kept_s: float = 7 * 86_400.0,
        lend: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._requests_kept = requests_kept
        self._requests_kept_s = requests_kept_s
        self._lend = lend
        try:
            self._connection: sqlite3.Connection | None = open_writer(path, busy_timeout_s)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(
                "the store cannot be opened",
                expected=f"a writable store at {path}",
                got=str(error),
                remedy="check the disk, the permissions, and that no other program holds the file",
            ) from error
        self.reader = SqliteReader(path)
        # What is durable of each incarnation; read once, then known, since nobody else writes.
        self._last: _Last = {}
        self._work: deque[_Work] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="countermand-store", daemon=True)
        self._thread.start()

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Write a batch; `owner` is told Committed, for all up to that number, or CommitFailed."""
        if not self._enqueue(_Commit(batch, owner)):
            _tell(owner, CommitFailed(batch.number, "the store is closed"))

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session after all that was handed in before; `owner` is told Loaded or LoadFailed."""
        if not self._enqueue(_Load(session, owner)):
            _tell(owner, LoadFailed("the store is closed"))

    def answers(self, timeout: float) -> bool:
        """Wait until the writer thread has passed this moment; False after `timeout` seconds: it hangs."""
        passed = threading.Event()
        return self._enqueue(passed) and passed.wait(timeout)

    def responds(self, timeout: float) -> bool:
        """Wait until the writer thread takes work up again, whatever comes of it; False after `timeout` seconds.

        It overtakes what waits: behind a disk that refuses each write for a while, the thread answers all the same.
        """
        seen = threading.Event()
        with self._wake:
            if self._closing:
                return False
            self._work.appendleft(seen)
            self._wake.notify()
        return seen.wait(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Write what was handed in, empty the write-ahead log, and end. May be called again.

        False: the writer did not end within `timeout` seconds; it goes on, and the process may end under it.
        """
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ── The writer thread ─────────────────────────────────────────────────────────────────────────

    def _enqueue(self, work: _Work) -> bool:
        with self._wake:
            if self._closing:
                return False
            self._work.append(work)
            self._wake.notify()
            return True

    def _run(self) -> None:
        while group := self._next():
            try:
                self._do(group)
            except BaseException:  # noqa: BLE001 - the thread serves all: it outlives whatever comes
                # Nothing below lets an error out; should one come all the same, the writer outlives it.
                logger.exception("the store's writer met an error of its own")
        self._shut()

    def _next(self) -> list[_Work]:
        """Wait for work and take it: commits as a group, anything else alone. Empty: closing, all done."""
        with self._wake:
            while not self._work and not self._closing:
                self._wake.wait()
            group: list[_Work] = []
            while self._work and len(group) < GROUP_MAX:
                if group and not isinstance(self._work[0], _Commit):
                    break
                group.append(self._work.popleft())
                if not isinstance(group[-1], _Commit):
                    break
            return group

    def _do(self, group: Sequence[_Work]) -> None:
        first = group[0]
        if isinstance(first, threading.Event):
            first.set()
        elif isinstance(first, _Load):
            self._load(first)
        else:
            self._commit([work for work in group if isinstance(work, _Commit)])

    def _load(self, load: _Load) -> None:
        try:
            snapshot = self._insist(lambda connection: self._snapshot(connection, load.session))
        except BaseException as error:  # noqa: BLE001 - whatever it was, the owner has to be told
            logger.bind(session=load.session).error("session {} could not be loaded: {!r}", load.session, error)
            _tell(load.owner, LoadFailed(_words(error)))
        else:
            _tell(load.owner, Loaded(snapshot))

    def _commit(self, group: list[_Commit]) -> None:
        for commit in group:
            # Encoding needs no transaction, and finds most of what cannot be stored.
            try:
                commit.statements = tables.statements(commit.batch)
            except Exception as error:  # noqa: BLE001 - a batch may hold anything; only it fails
                commit.error = _words(error)
        try:
            self._insist(lambda connection: self._write(connection, group))
        except BaseException as error:  # noqa: BLE001 - whatever it was, the owners have to be told
            logger.error("{} batches could not be written: {!r}", len(group), error)
            for commit in group:
                commit.error = commit.error or _words(error)
        self._tell_all(group)

    def _write(self, connection: sqlite3.Connection, group: list[_Commit]) -> None:
        """Write a group in one transaction. What a batch did wrong is noted in it; the rest is raised."""
        written: _Last = {}
        try:
            connection.execute("BEGIN IMMEDIATE")
            for commit in group:
                if commit.statements is not None:
                    self._write_batch(connection, commit.batch, commit.statements, written)
            connection.execute("COMMIT")
        except _DATA_ERRORS:
            connection.execute("ROLLBACK")
            written = {}
            self._write_apart(connection, group, written)
        self._last.update(written)
        while len(self._last) > LAST_KEPT_MAX:
            self._last.pop(next(iter(self._last)))

    def _write_apart(self, connection: sqlite3.Connection, group: list[_Commit], written: _Last) -> None:
        """Write a group in which something cannot be stored: each batch by itself, so that only that one fails."""
        errors: dict[int, str] = {}
        connection.execute("BEGIN IMMEDIATE")
        for place, commit in enumerate(group):
            if commit.statements is None:
                continue
            connection.execute("SAVEPOINT batch")
            try:
                self._write_batch(connection, commit.batch, commit.statements, written)
            except _DATA_ERRORS as error:
                errors[place] = _words(error)
                connection.execute("ROLLBACK TO batch")
            connection.execute("RELEASE batch")
        connection.execute("COMMIT")
        for place, words in errors.items():
            group[place].error = words

    def _write_batch(
        self, connection: sqlite3.Connection, batch: Batch, statements: list[tables.Statement], written: _Last
    ) -> None:
        key = (batch.session, batch.incarnation)
        last = written.get(key) or self._last.get(key)
        if last is None:
            last = tables.last_batch(connection, batch.session, batch.incarnation)
        if batch.number <= last:
            return
        if batch.number != last + 1:
            raise StoreUnavailable(
                f"batch {batch.number} of session {batch.session} does not follow on what is written",
                expected=f"batch {last + 1}",
                got=f"batch {batch.number}",
                remedy="start a new incarnation of the session",
            )
        for sql, values in statements:
            connection.execute(sql, values)
        if batch.requests and batch.number % PRUNE_EVERY == 1:
            tables.prune_requests(connection, batch.session, self._requests_kept, self._horizon())
        tables.set_last_batch(connection, batch.session, batch.incarnation, batch.number)
        written[key] = batch.number

    def _horizon(self) -> float:
        return self._clock.wall() - self._requests_kept_s

    def _snapshot(self, connection: sqlite3.Connection, session: str) -> Snapshot:
        return tables.snapshot(connection, session, kept=self._requests_kept, since=self._horizon())

    def _insist(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do some work with the connection; after an error of the disk once more with a fresh one."""
        try:
            return self._attempt(work)
        except (sqlite3.Error, OSError) as error:
            if _is_busy(error):
                raise
            logger.warning("the store failed and is opened again: {!r}", error)
            return self._attempt(work)

    def _attempt(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._connection is None:
            self._connection = open_writer(self._path, self._busy_timeout_s)
        connection = self._connection
        try:
            return work(connection)
        except BaseException as error:
            if not self._rolled_back(connection) or (
                isinstance(error, sqlite3.Error | OSError) and not _is_busy(error)
            ):
                self._connection = None
                self._last = {}
                _close(connection)
            raise

    @staticmethod
    def _rolled_back(connection: sqlite3.Connection) -> bool:
        """Leave no transaction open; False where the connection cannot even do that."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _tell_all(self, group: list[_Commit]) -> None:
        durable: dict[tuple[str, str, int], _Commit] = {}
        for commit in group:
            if commit.error is None:
                key = (commit.batch.session, commit.batch.incarnation, id(commit.owner))
                if key not in durable or durable[key].batch.number < commit.batch.number:
                    durable[key] = commit
        # Where a group holds good batches of an incarnation and its first bad one, the good ones come first.
        # With nothing else to write this thread gives the owners their turns itself, and saves waking another.
        with nullcontext() if self._work else self._lend():
            for commit in durable.values():
                _tell(commit.owner, Committed(commit.batch.number))
        for commit in group:
            if commit.error is not None:
                logger.bind(session=commit.batch.session).error(
                    "batch {} of session {} was not written: {}",
                    commit.batch.number,
                    commit.batch.session,
                    commit.error,
                )
                _tell(commit.owner, CommitFailed(commit.batch.number, commit.error))

    def _shut(self) -> None:
        # Readers first: the last to close a file is the one that can take its write-ahead log away.
        self.reader.close()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            # What was committed is in the write-ahead log, and the next start reads it from there.
            logger.warning("the write-ahead log could not be emptied: {!r}", error)
        _close(connection)


def _tell(owner: ActorRef[Any], message: Struct) -> None:
    """Tell an owner; one that is gone, or whose mailbox raises, is its own affair."""
    try:
        owner.tell(message)
    except Exception as error:  # noqa: BLE001 - what the mailbox of another raises ends with it
        logger.debug("{} has nobody to hear it: {!r}", type(message).__name__, error)


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except sqlite3.Error as error:
        logger.warning("a connection of the store could not be closed: {!r}", error)


def _is_busy(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _BUSY


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


__all__ = ["GROUP_MAX", "SqliteStore"]
