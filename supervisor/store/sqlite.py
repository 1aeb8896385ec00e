"""The store's writer: one thread at a time, that commits what all sessions decided, many batches at a time.

Theory of operation. Sessions hand in batches and go on; the writer takes all that has gathered, up to
a bound, and writes it in one transaction, so that one flush of the disk serves them all. Then it tells each
owner. While it flushes, the next group gathers: the busier the daemon, the larger the groups.

There are two threads and one pen: who has it writes. Where a commit has one owner and nothing else waits, the writer
gives that owner its turn itself, which saves waking another thread. It lays the pen down before: a turn may take long,
and what other sessions hand in meanwhile is written by the second thread. That one gives no turn meanwhile, so one of
them is always free to write.

Order and once. A session numbers its batches from 1 within an incarnation, and the number of the last one is
written in the batch's own transaction. So the file itself knows what is done: a batch at or below that number
was written before and is answered as such; one that is not the next is refused. That makes a batch that is
sent again harmless, makes every batch behind a failed one fail, and keeps a group that is retried after an
error in COMMIT, whose outcome nobody knows, from being written twice.

Failures, by whose fault they are:
  - the batch's (text that is not UTF-8, a number that does not fit, a sequence number that is taken): the group is
    rolled back and written again with a savepoint for each batch, so the offender alone fails; the rest commits (law
    L13). It is told that it is unfit, and what it held is put aside in a table of its own;
  - another process's (the file is locked): SQLite waits for it up to `busy_timeout_s`, then the group fails. What a
    short lock holds up is late, and no worse: no run ends for it;
  - the disk's (I/O error, full, malformed): roll back, close, open again, check the file, and try the group once more;
    then it fails. Where the file is malformed its sessions are tried one by one: the page that is damaged may be
    another's. A file that is gone is not made anew under a daemon that has been told it is durable. SQLite itself goes
    on in one that was removed or replaced, so after each piece of work it is looked whether the path still leads there;
  - ours: whatever else is raised fails the group and is logged. Nothing ends the thread but `close`.

Health. From the first failure of the disk until a write succeeds the store is *failing*. It finds out by itself: with
nothing to write it tries a small write of its own every second. The check after an error (`quick_check`) has a bound
in time and in how often it is made, and what it finds is said and not acted on: what can be written still is.

Stops that cannot wait are in the stop journal (`journal.py`), which this class opens first and reads with each load.

Bounds. The queue has no limit of its own, because a refused batch would break its session and a blocked one
would block an actor. It is bounded by those who fill it: an agent waits for credit (256 events or 1 MiB a
run), requests are refused by a full mailbox, and a session whose batch failed sends no more.

Loads run on the writer's thread, so a session that is taken up sees all that its earlier incarnation sent.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
from loguru import logger

from actors.errors import CountermandError, StoreUnavailable
from actors.kernel.actor import tell_contained
from actors.kernel.thread_role import serve_all
from actors.messages import CommitFailed, Committed, Loaded, LoadFailed, StopKept
from actors.ports import Batch, Clock, KeptStop, Snapshot
from supervisor.store import tables
from supervisor.store.health import StoreHealth, error_text
from supervisor.store.journal import StopJournal
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import open_writer
from supervisor.store.snapshot import snapshot
from supervisor.store.unfit import put_aside

if TYPE_CHECKING:
    from pykka import ActorRef

T = TypeVar("T")

GROUP_MAX: Final = 256
"""Batches in one transaction: enough to make the flush cheap, few enough that none waits long."""
LAST_KEPT_MAX: Final = 10_000
"""Incarnations whose last batch is known without a read."""
PRUNE_EVERY: Final = 64
"""Old requests are deleted in one of so many batches of an incarnation; who loads a session never sees them."""

LEFT_OUT_MAX: Final = 100
"""Names of what was left out that `health` remembers."""
NOT_FINISHED: Final = "not checked to the end: the file is large"
SLOW_S: Final = 1.0
ATTEMPT_EVERY_S: Final = 1.0
CHECK_EVERY_S: Final = 10.0
CHECK_MAX_S: Final = 2.0
CHECK_STEPS: Final = 50_000
"""Instructions of SQLite's machine between two looks at the clock."""

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
_MALFORMED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class _DoesNotFollow(StoreUnavailable):
    """A batch is not the next one: one before it has failed."""


class _Commit:
    """A batch on its way; `error` is why it failed, and stays None where it is durable. `unfit`: by its own fault."""

    __slots__ = ("batch", "error", "owner", "since", "statements", "unfit")

    def __init__(self, batch: Batch, owner: ActorRef[Any], since: float) -> None:
        self.batch = batch
        self.owner = owner
        self.since = since
        self.error: str | None = None
        self.unfit = False
        self.statements: list[tables.Statement] | None = None

    def failed(self, error: BaseException) -> None:
        """It cannot be stored as it is, or comes behind one that could not."""
        self.error = error_text(error)
        self.unfit = not isinstance(error, _DoesNotFollow)


class _Load:
    """A session to be read."""

    __slots__ = ("owner", "session", "since")

    def __init__(self, session: str, owner: ActorRef[Any], since: float) -> None:
        self.session = session
        self.owner = owner
        self.since = since


class _Attempt:
    """Nothing to do, but to find out whether writes succeed again."""


_Work: TypeAlias = _Commit | _Load | _Attempt | threading.Event


class SqliteStore:
    """`actors.ports.Store` over one SQLite file, with its writer thread.

    Args:
        path: the file; it is made (mode 0600) where there is none. Only one process may write it: the caller
            holds the lock of the state directory. The stop journal is beside it, as `<path>-stops`.
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
        busy_timeout_s: float = 10.0,
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
        self.journal = StopJournal(path.with_name(path.name + "-stops"))
        try:
            self._connection: sqlite3.Connection | None = open_writer(path, busy_timeout_s)
            self.reader = SqliteReader(path)
        except BaseException as error:
            self.journal.close()
            if not isinstance(error, sqlite3.Error | OSError):
                raise
            raise StoreUnavailable(
                "the store cannot be opened",
                expected=f"a writable store at {path}",
                got=str(error),
                remedy="make room on its disk; look at the permissions, and that no other program holds the file",
            ) from error
        # What is durable of each incarnation; read once, then known, since nobody else writes.
        self._last: _Last = {}
        self._work: deque[_Work] = deque()
        self._wake = threading.Condition()
        self._closing = False
        # Who writes now, and who gives a turn: idents of threads. With the pen nobody else touches what is below.
        self._pen: int | None = None
        self._lending: int | None = None
        self._shut_down = threading.Event()
        self._failing = False
        self._error: str | None = None
        self._kind: str | None = None
        self._reopened = self._unfit = 0
        self._failed_at: float | None = None
        self._busy_since: float | None = None
        self._integrity: str | None = None
        self._checked_at: float | None = None
        self._files = self._files_now()
        self._left_out: deque[str] = deque(maxlen=LEFT_OUT_MAX)
        self._threads = tuple(
            threading.Thread(target=self._run, name=f"countermand-store-{number}", daemon=True) for number in range(2)
        )
        for thread in self._threads:
            thread.start()

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Write a batch; `owner` is told Committed, for all up to that number, or CommitFailed."""
        if not self._enqueue(_Commit(batch, owner, self._clock.monotonic())):
            tell_contained(owner, CommitFailed(batch.number, "the store is closed"))

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session after all that was handed in before; `owner` is told Loaded or LoadFailed."""
        if not self._enqueue(_Load(session, owner, self._clock.monotonic())):
            tell_contained(owner, LoadFailed("the store is closed"))

    def keep_stop(self, kept: KeptStop, owner: ActorRef[Any]) -> None:
        """Write a Stop to the stop journal, which does not wait for the store; then tell `owner` StopKept."""
        self.journal.keep(kept, lambda: tell_contained(owner, StopKept(kept.stop.id)))

    def forget_stop(self, session: str, request_id: str) -> None:
        """The Stop is durable, and so is the event that says so: the journal may let it go."""
        self.journal.forget(session, request_id)

    def unfinished(self) -> list[str]:
        """Return the sessions that somebody has to take up: those of the reader, and those with Stops in the journal.

        Blocks for one read, on the caller's thread. Raises StoreUnavailable.
        """
        return sorted({*self.reader.unfinished(), *self.journal.sessions()})

    def health(self) -> StoreHealth:
        """How the store is; waits for nothing, and may be called from any thread at any time."""
        with self._wake:
            first = self._work[0] if self._work else None
            since = self._busy_since
            if since is None and isinstance(first, _Commit | _Load):
                since = first.since
            waiting, closed = len(self._work), self._shut_down.is_set()
            left_out = tuple(self._left_out)
        lag_s = 0.0 if since is None else max(0.0, self._clock.monotonic() - since)
        if closed:
            state = "closed"
        elif self._failing:
            state = "failing"
        elif self._integrity not in (None, "ok", NOT_FINISHED):
            state = "damaged"
        else:
            state = "slow" if lag_s > SLOW_S else "ok"
        return StoreHealth(
            state=state,
            error=self._error,
            kind=self._kind,
            failed_at=self._failed_at,
            reopened=self._reopened,
            unfit=self._unfit,
            waiting=waiting,
            lag_s=lag_s,
            integrity=self._integrity,
            left_out=left_out,
            journal=self.journal.health(),
        )

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
            self._notify()
        return seen.wait(timeout)

    @property
    def queued(self) -> int:
        """How many batches and loads wait for the writer thread."""
        return len(self._work)

    def close(self, timeout: float | None = None) -> bool:
        """Write what was handed in, empty the write-ahead log, and end. May be called again.

        False: the writer did not end within `timeout` seconds; it goes on, and the process may end under it.
        """
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        until = None if timeout is None else time.monotonic() + timeout
        closed = self._shut_down.wait(timeout)
        for thread in self._threads if closed else ():
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return self.journal.close(timeout) and closed and not any(thread.is_alive() for thread in self._threads)

    # ── The writer threads ────────────────────────────────────────────────────────────────────────

    def _enqueue(self, work: _Work) -> bool:
        with self._wake:
            if self._closing:
                return False
            self._work.append(work)
            self._notify()
            return True

    def _notify(self) -> None:
        """Wake a thread for new work. The one that has the pen looks by itself, and so does one that gives a turn."""
        if self._pen is None and self._lending != threading.get_ident():
            self._wake.notify()

    def _run(self) -> None:
        serve_all()
        while group := self._next():
            try:
                self._do(group)
            except BaseException:  # noqa: BLE001 - the thread serves all: it outlives whatever comes
                # Nothing below lets an error out; should one come all the same, the writer outlives it.
                logger.exception("the store's writer met an error of its own")
        if not self._shut_down.is_set():
            # This thread has the pen and keeps it; the other one ends after this.
            try:
                self._shut()
            finally:
                with self._wake:
                    self._shut_down.set()
                    self._wake.notify_all()

    def _lay_down_pen(self) -> None:
        """From here on another thread may write."""
        if self._pen == threading.get_ident():
            self._pen = self._busy_since = None

    def _next(self) -> list[_Work]:
        """Wait for work and the pen: commits are taken as a group, anything else alone. Empty: closing, all done."""
        me = threading.get_ident()
        with self._wake:
            self._lay_down_pen()
            if self._lending == me:
                self._lending = None
            while self._pen is not None or not self._work:
                if self._shut_down.is_set():
                    return []
                if self._closing and self._pen is None:
                    self._pen = me
                    return []
                tries = self._failing and self._pen is None
                timed_out = not self._wake.wait(ATTEMPT_EVERY_S if tries else None)
                if timed_out and self._pen is None and not self._work:
                    self._pen = me
                    return [_Attempt()]
            self._pen = me
            group: list[_Work] = []
            first = self._work[0] if self._work else None
            if isinstance(first, _Commit | _Load):
                self._busy_since = first.since
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
        elif isinstance(first, _Attempt):
            self._attempt_write()
        else:
            self._commit([work for work in group if isinstance(work, _Commit)])

    def _load(self, load: _Load) -> None:
        try:
            snapshot = self._insist(lambda connection: self._snapshot(connection, load.session))
        except BaseException as error:  # noqa: BLE001 - whatever it was, the owner has to be told
            logger.bind(session=load.session).error("session {} could not be loaded: {!r}", load.session, error)
            if isinstance(error, sqlite3.Error | OSError) and not _is_malformed(error):
                self._failed(error)
            tell_contained(load.owner, LoadFailed(error_text(error)))
        else:
            self._leave_out(f"session {load.session}: {name}" for name in snapshot.left_out)
            tell_contained(load.owner, Loaded(snapshot))

    def _leave_out(self, names: Iterable[str]) -> None:
        with self._wake:
            for name in names:
                if name not in self._left_out:
                    self._left_out.append(name)

    def _attempt_write(self) -> None:
        try:
            self._insist(lambda connection: tables.attempt(connection, self._clock.wall()))
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            logger.debug("the store still fails: {!r}", error)
            self._failed(error)
        else:
            self._works()

    def _works(self) -> None:
        if self._failing:
            logger.info("the store takes writes again")
        self._failing = False

    def _failed(self, error: BaseException) -> None:
        self._failing = True
        self._note(error)

    def _note(self, error: BaseException) -> None:
        self._error = error_text(error)
        self._kind = _kind(error)
        self._failed_at = self._clock.wall()
        if _is_malformed(error):
            self._integrity = self._error

    def _commit(self, group: list[_Commit]) -> None:
        for commit in group:
            # Encoding needs no transaction, and finds most of what cannot be stored.
            try:
                commit.statements = tables.statements(commit.batch)
            except Exception as error:  # noqa: BLE001 - a batch may hold anything; only it fails
                commit.failed(error)
        try:
            written = self._insist(lambda connection: self._write(connection, group))
        except BaseException as error:  # noqa: BLE001 - whatever it was, the owners have to be told
            if _is_malformed(error):
                self._note(error)
                self._write_by_session(group)
            else:
                self._failed(error)
                logger.error("{} batches could not be written: {!r}", len(group), error)
                _fail_all(group, error)
        else:
            # Where none of them was to be written, as behind one that failed, nothing is known of the disk.
            if written:
                self._works()
        self._put_aside([commit for commit in group if commit.unfit])
        self._tell_all(group)

    def _write_by_session(self, group: list[_Commit]) -> None:
        """The file is malformed where one of a group has to be written: the others may be elsewhere (law L13)."""
        sessions: dict[str, list[_Commit]] = {}
        for commit in group:
            sessions.setdefault(commit.batch.session, []).append(commit)
        for session, commits in sessions.items():
            try:
                written = self._attempt(lambda connection, commits=commits: self._write(connection, commits))  # type: ignore[misc]
            except BaseException as error:  # noqa: BLE001 - as above
                logger.error("{} batches of session {} could not be written: {!r}", len(commits), session, error)
                _fail_all(commits, error)
            else:
                if written:
                    self._works()

    def _put_aside(self, unfit: list[_Commit]) -> None:
        """Keep what could not be stored where a person can look at it, as far as it can be shown."""
        for commit in unfit:
            batch, error = commit.batch, commit.error or ""
            self._unfit += 1
            self._leave_out([f"session {batch.session}: batch {batch.number} of {batch.incarnation}: {error}"])
            try:
                self._attempt(lambda connection: put_aside(connection, batch, error, self._clock.wall()))  # noqa: B023
            except Exception as again:  # noqa: BLE001 - it is named in the log and in `health` all the same
                logger.warning("an unfit batch could not be put aside: {!r}", again)

    def _write(self, connection: sqlite3.Connection, group: list[_Commit]) -> bool:
        """Write a group in one transaction. What a batch did wrong is noted in it; the rest is raised.

        False: none of them was to be written.
        """
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
        return bool(written)

    def _write_apart(self, connection: sqlite3.Connection, group: list[_Commit], written: _Last) -> None:
        """Write a group in which something cannot be stored: each batch by itself, so that only that one fails."""
        errors: dict[int, BaseException] = {}
        connection.execute("BEGIN IMMEDIATE")
        for place, commit in enumerate(group):
            if commit.statements is None:
                continue
            connection.execute("SAVEPOINT batch")
            try:
                self._write_batch(connection, commit.batch, commit.statements, written)
            except _DATA_ERRORS as error:
                errors[place] = error
                connection.execute("ROLLBACK TO batch")
            connection.execute("RELEASE batch")
        connection.execute("COMMIT")
        for place, offence in errors.items():
            group[place].failed(offence)

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
            raise _DoesNotFollow(
                f"batch {batch.number} of session {batch.session} does not follow on what is written",
                expected=f"batch {last + 1}",
                got=f"batch {batch.number}",
                remedy="start a new incarnation of the session",
            )
        for sql, values in statements:
            connection.execute(sql, values)
        if batch.requests and batch.number % PRUNE_EVERY == 1:
            before = self._clock.wall() - self._requests_kept_s
            tables.prune_requests(connection, batch.session, self._requests_kept, before)
        tables.set_last_batch(connection, batch.session, batch.incarnation, batch.number)
        written[key] = batch.number

    def _snapshot(self, connection: sqlite3.Connection, session: str) -> Snapshot:
        found = snapshot(connection, session, kept=self._requests_kept)
        return msgspec.structs.replace(found, kept=self.journal.of(session))

    def _insist(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work with the connection; after an error of the disk once more with a fresh one."""
        try:
            return self._attempt(work)
        except (sqlite3.Error, OSError) as error:
            self._note(error)
            if _is_busy(error):
                raise
            logger.warning("the store failed and is opened again: {!r}", error)
            self._check()
            return self._attempt(work)

    def _check(self) -> None:
        """Look for damage after an error, for a bounded time. What it finds is said, not acted on."""
        now = self._clock.monotonic()
        if self._checked_at is not None and now < self._checked_at + CHECK_EVERY_S:
            return
        self._checked_at = now
        until = time.monotonic() + CHECK_MAX_S

        def check(connection: sqlite3.Connection) -> str:
            connection.set_progress_handler(lambda: time.monotonic() > until, CHECK_STEPS)
            try:
                return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            finally:
                connection.set_progress_handler(None, 0)

        try:
            found = self._attempt(check)
        except sqlite3.DatabaseError as error:
            if _code(error) == sqlite3.SQLITE_INTERRUPT:
                found = NOT_FINISHED
            elif _is_malformed(error):
                found = error_text(error)
            else:
                return
        except (OSError, StoreUnavailable):
            return
        if found not in ("ok", NOT_FINISHED):
            logger.error("the store's file is damaged: {}", found)
        self._integrity = found

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = open_writer(self._path, self._busy_timeout_s, make=False)
            self._files = self._files_now()
            self._reopened += 1
        connection = self._connection
        try:
            done = work(connection)
            self._check_place()
            return done
        except BaseException as error:
            if not self._rolled_back(connection) or (
                isinstance(error, sqlite3.Error | OSError) and not _is_busy(error)
            ):
                self._connection = None
                self._last = {}
                _close(connection)
            raise

    def _files_now(self) -> list[tuple[int, int] | None]:
        """Which files the paths of the store and of its write-ahead log lead to."""
        return [_identity(self._path), _identity(self._path.with_name(self._path.name + "-wal"))]

    def _check_place(self) -> None:
        """Raise OSError where somebody has removed or replaced the files: nobody would find what was just written."""
        files = self._files_now()
        if files != self._files and self._files != [files[0], None]:
            raise FileNotFoundError(errno.ENOENT, "the store's files were removed or replaced", str(self._path))
        self._files = files

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
        failed = [commit for commit in group if commit.error is not None]
        with self._wake:
            lends = len(durable) == 1 and not failed and not self._work and self._lending is None
            if lends:
                self._lending = threading.get_ident()
        with self._lend() if lends else nullcontext():
            # Where a group holds good batches of an incarnation and its first bad one, the good ones come first.
            for commit in durable.values():
                tell_contained(commit.owner, Committed(commit.batch.number))
            for commit in failed:
                logger.bind(session=commit.batch.session).error(
                    "batch {} of session {} was not written: {}",
                    commit.batch.number,
                    commit.batch.session,
                    commit.error,
                )
                tell_contained(commit.owner, CommitFailed(commit.batch.number, commit.error or "", unfit=commit.unfit))
            if lends:
                with self._wake:
                    self._lay_down_pen()
                    if self._work:
                        self._wake.notify()

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


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except sqlite3.Error as error:
        logger.warning("a connection of the store could not be closed: {!r}", error)


def _fail_all(commits: Iterable[_Commit], error: BaseException) -> None:
    for commit in commits:
        if commit.error is None:
            commit.error = error_text(error)


def _code(error: BaseException) -> int | None:
    """Return SQLite's primary code of an error, if it has one."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _is_busy(error: BaseException) -> bool:
    return _code(error) in _BUSY


def _is_malformed(error: BaseException) -> bool:
    return _code(error) in _MALFORMED


def _kind(error: BaseException) -> str:
    """Which of `health.REMEDIES` an error is about."""
    if _is_busy(error):
        return "locked"
    if _code(error) == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    return "malformed" if _is_malformed(error) else "disk"


__all__ = ["GROUP_MAX", "SqliteStore"]
