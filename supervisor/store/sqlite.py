"""The store's writer: one thread at a time commits the batches of all sessions, many in one transaction.

Theory of operation. Sessions hand in batches and go on. The writer takes all that are queued, up to a bound, and
writes them in one transaction, so that one flush of the disk serves them all. Then it notifies each owner. While it
flushes, the next group gathers: the busier the daemon, the larger the groups.

There are two threads and one pen (`pen.py`): the thread that holds it writes. If a commit has one owner and nothing
else waits, the writer gives that owner its turn itself, which saves waking another thread. It gives up the pen first,
because a turn may take long: meanwhile the second thread writes, and gives no turn, so that one thread can always
write.

Order, and each batch only once: see `groups.py`.

Failures, by cause (`faults.py`):
  - the batch's (text that is not UTF-8, a number that does not fit, a sequence number that is taken): the group is
    rolled back and written again with a savepoint for each batch, so only the bad batch fails; the rest commits (law
    L13). The bad batch is reported as unfit, and its content is kept in a table of its own;
  - another process's (the file is locked): SQLite waits for it up to `busy_timeout_s`, then the group fails. A short
    lock only delays: no run ends because of it;
  - the disk's (I/O error, full, malformed; `connection.py`): roll back, close, reopen, check the file, and try the
    group once more; then it fails. If the file is malformed, the group is tried session by session: the damaged page
    may belong to one of them only;
  - ours: any other error fails the group and is logged. Only `close` ends the thread.

Health (`condition.py`). From the first disk error until a write succeeds the store is *failing*. Meanwhile an idle
writer tries a small write every second, so the store recovers by itself. The check after an error (`quick_check`) is
limited in time and in frequency. Damage is reported and not acted on: sound pages can still be written.

Stops that cannot wait are in the stop journal (`journal.py`), which this class opens first and reads with each load.

Bounds. The queue has no limit of its own, because a refused batch would break its session and a blocked one
would block an actor. Its clients bound it: an agent waits for credit (256 events or 1 MiB a
run), requests are refused by a full mailbox, and a session whose batch failed sends no more.

Loads pass through the queue, so a restored session sees everything that its earlier incarnation sent. The writer reads
a short log itself. A long one is read beside it (`long_loads.py`): no commit of another session waits for that.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from loguru import logger

from actors.errors import StoreUnavailable
from actors.kernel.actor import tell_contained
from actors.kernel.thread_role import serve_all
from actors.messages import ChildFound, CommitFailed, Committed, Loaded, LoadFailed, StopKept
from actors.ports import Batch, Clock, KeptStop, Snapshot
from supervisor.store import events, rows, tables
from supervisor.store.attachment_reads import AttachmentReads
from supervisor.store.condition import Condition
from supervisor.store.connection import WriterConnection
from supervisor.store.faults import is_malformed
from supervisor.store.groups import GroupWriter
from supervisor.store.health import StoreHealth, error_text
from supervisor.store.journal import StopJournal
from supervisor.store.long_loads import LongLoads
from supervisor.store.pen import PenQueue
from supervisor.store.reader import SqliteReader
from supervisor.store.snapshot import snapshot
from supervisor.store.unfit import put_aside
from supervisor.store.work import Attempt, Commit, Find, Load, Work

if TYPE_CHECKING:
    from pykka import ActorRef


class SqliteStore:
    """`actors.ports.Store` over one SQLite file, with its writer thread.

    Args:
        path: the file; it is made (mode 0600) where there is none. Only one process may write it: the caller
            holds the lock of the state directory. The stop journal is beside it, as `<path>-stops`.
        clock: `wall` gives the age of a request.
        busy_timeout_s: how long the writer waits for a file that another process has locked.
        caller_runs: entered around the notification of an owner when nothing else waits to be written; see
            `PooledDispatcher.caller_runs`.
        requests_kept, requests_kept_s: how many requests of a session are kept, and for how many seconds.

    Raises StoreUnavailable if the file cannot be opened or was written by a newer program. The methods may be called
    from any thread; only `close`, `answers`, `responds` and `unfinished` wait.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        busy_timeout_s: float = 10.0,
        requests_kept: int = 10_000,
        requests_kept_s: float = 7 * 86_400.0,
        caller_runs: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._requests_kept = requests_kept
        self._caller_runs = caller_runs
        self._condition = Condition(clock)
        self._groups = GroupWriter(clock, requests_kept, requests_kept_s)
        self.journal = StopJournal(path.with_name(path.name + "-stops"))
        try:
            self._writer = WriterConnection(path, busy_timeout_s, clock, self._condition, self._groups.forget)
            self.reader = SqliteReader(path)
        except BaseException as error:
            self.journal.close()
            if not isinstance(error, sqlite3.Error | OSError):
                raise
            raise StoreUnavailable(
                "the store cannot be opened",
                expected=f"a writable store at {path}",
                got=str(error),
                remedy="free space on its disk; look at the permissions, and that no other program holds the file",
            ) from error
        self._attachments = AttachmentReads(self.reader)
        self._queue = PenQueue(self._condition)
        self._long_loads = LongLoads(self._read_beside, self._loaded, self._read_by_writer)
        self._threads = tuple(
            threading.Thread(target=self._run, name=f"countermand-store-{number}", daemon=True) for number in range(2)
        )
        for thread in self._threads:
            thread.start()

    def commit(self, batch: Batch, owner: ActorRef[Any]) -> None:
        """Write a batch; `owner` receives Committed, for all batches up to that number, or CommitFailed."""
        if not self._queue.put(Commit(batch, owner, self._clock.monotonic())):
            tell_contained(owner, CommitFailed(batch.number, "the store is closed"))

    def load(self, session: str, owner: ActorRef[Any]) -> None:
        """Read a session after all batches handed in before; `owner` receives Loaded or LoadFailed."""
        if not self._queue.put(Load(session, owner, self._clock.monotonic())):
            tell_contained(owner, LoadFailed("the store is closed"))

    def find_run(self, session: str, run_id: str, owner: ActorRef[Any]) -> None:
        """Read a settled run after all batches handed in before; `owner` receives ChildFound."""
        if not self._queue.put(Find(session, run_id, owner)):
            tell_contained(owner, ChildFound(run_id, error="the store is closed"))

    def keep_stop(self, kept: KeptStop, owner: ActorRef[Any]) -> None:
        """Write a Stop to the stop journal, which does not wait for the store; then send StopKept to `owner`."""
        self.journal.keep(kept, lambda: tell_contained(owner, StopKept(kept.stop.id)))

    def forget_stop(self, session: str, request_id: str) -> None:
        """Remove a Stop from the journal: it is durable in the store, and so is the event that says so."""
        self.journal.forget(session, request_id)

    def attachment(self, session: str, name: str, reply: Future[bytes]) -> None:
        """Have `reply` resolved with the bytes of an attachment, or with NotFound or StoreUnavailable."""
        self._attachments.read(session, name, reply)

    def unfinished(self) -> list[str]:
        """Return the sessions to restore: those of the reader, and those with Stops in the journal.

        Blocks for one read, on the caller's thread. Raises StoreUnavailable.
        """
        return sorted({*self.reader.unfinished(), *self.journal.sessions()})

    def health(self) -> StoreHealth:
        """The health of the store. Does not wait."""
        queue = self._queue.state()
        since = min((at for at in (queue.since, self._long_loads.since()) if at is not None), default=None)
        lag_s = 0.0 if since is None else max(0.0, self._clock.monotonic() - since)
        return self._condition.health(
            waiting=queue.waiting, lag_s=lag_s, closed=queue.shut_down, journal=self.journal.health()
        )

    def answers(self, timeout: float) -> bool:
        """Wait until the writer has done all work queued before; False after `timeout` seconds, or if it is closed."""
        passed = threading.Event()
        return self._queue.put(passed) and passed.wait(timeout)

    def responds(self, timeout: float) -> bool:
        """Wait until the writer takes its next piece of work; False after `timeout` seconds, or if it is closed.

        It overtakes the queue, so a writer whose writes all fail slowly still responds.
        """
        seen = threading.Event()
        return self._queue.put_first(seen) and seen.wait(timeout)

    @property
    def queued(self) -> int:
        """How much work waits for the writer."""
        return len(self._queue)

    def close(self, timeout: float | None = None) -> bool:
        """Write what was handed in, checkpoint the write-ahead log, and end. May be called again.

        False: the writer did not end within `timeout` seconds; it goes on, and the process may exit meanwhile.
        """
        self._attachments.close()
        self._queue.close()
        until = None if timeout is None else time.monotonic() + timeout
        closed = self._queue.wait_for_end(timeout)
        for thread in self._threads if closed else ():
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return self.journal.close(timeout) and closed and not any(thread.is_alive() for thread in self._threads)

    # ── The writer threads ────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        serve_all()
        while group := self._queue.next():
            try:
                self._do(group)
            except BaseException:  # noqa: BLE001 - the thread serves all sessions and survives any error
                # The code below handles its errors; a defect in it must not end the writer.
                logger.exception("internal error in the store's writer")
        if not self._queue.shut_down:
            # This thread keeps the pen; the other one ends after this.
            try:
                # Readers first: the last connection to close removes the write-ahead log.
                self.reader.close()
                self._long_loads.close()
                self._writer.close()
            finally:
                self._queue.end()

    def _do(self, group: Sequence[Work]) -> None:
        first = group[0]
        if isinstance(first, threading.Event):
            first.set()
        elif isinstance(first, Load):
            self._load(first)
        elif isinstance(first, Find):
            self._find(first)
        elif isinstance(first, Attempt):
            self._attempt_write()
        else:
            self._commit([work for work in group if isinstance(work, Commit)])

    def _attempt_write(self) -> None:
        try:
            self._writer.insist(lambda connection: tables.attempt(connection, self._clock.wall()))
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            logger.debug("the store still fails: {!r}", error)
            self._condition.failed(error)
        else:
            self._condition.works()

    # ── Loads ─────────────────────────────────────────────────────────────────────────────────────

    def _load(self, load: Load) -> None:
        def read(connection: sqlite3.Connection) -> Snapshot | None:
            if not load.by_writer and events.is_long(connection, load.session):
                return None
            return self._snapshot(connection, load.session)

        try:
            found = self._writer.insist(read)
        except BaseException as error:  # noqa: BLE001 - the owner has to learn of any error
            logger.bind(session=load.session).error("session {} could not be loaded: {!r}", load.session, error)
            if isinstance(error, sqlite3.Error | OSError) and not is_malformed(error):
                self._condition.failed(error)
            tell_contained(load.owner, LoadFailed(error_text(error)))
        else:
            if found is None:
                self._long_loads.add(load)
            else:
                self._loaded(load, found)

    def _snapshot(self, connection: sqlite3.Connection, session: str) -> Snapshot:
        return snapshot(connection, session, kept=self._requests_kept)

    def _read_beside(self, session: str) -> Snapshot:
        return self.reader.at_once(lambda connection: self._snapshot(connection, session))

    def _loaded(self, load: Load, found: Snapshot) -> None:
        self._condition.leave_out(f"session {load.session}: {name}" for name in found.left_out)
        tell_contained(load.owner, Loaded(msgspec.structs.replace(found, kept=self.journal.of(load.session))))

    def _read_by_writer(self, load: Load) -> None:
        """A load beside the writer has failed."""
        load.by_writer = True
        if not self._queue.put(load):
            tell_contained(load.owner, LoadFailed("the store is closed"))

    def _find(self, find: Find) -> None:
        def found(connection: sqlite3.Connection) -> ChildFound:
            info = rows.run(connection, find.session, find.run_id)
            return ChildFound(find.run_id, info, rows.receipt(connection, find.session, find.run_id))

        try:
            answer = self._writer.insist(found)
        except BaseException as error:  # noqa: BLE001 - the owner has to learn of any error
            logger.bind(session=find.session).error("run {} could not be read: {!r}", find.run_id, error)
            answer = ChildFound(find.run_id, error=error_text(error))
        tell_contained(find.owner, answer)

    # ── Commits ───────────────────────────────────────────────────────────────────────────────────

    def _commit(self, group: list[Commit]) -> None:
        for commit in group:
            # Encoding needs no transaction, and finds most of what cannot be stored.
            try:
                commit.statements = tables.statements(commit.batch)
            except Exception as error:  # noqa: BLE001 - a batch may hold anything; only it fails
                commit.failed(error)
        try:
            written = self._writer.insist(lambda connection: self._groups.write(connection, group))
        except BaseException as error:  # noqa: BLE001 - the owners have to learn of any error
            if is_malformed(error):
                self._condition.note(error)
                self._write_by_session(group)
            else:
                self._condition.failed(error)
                logger.error("{} batches could not be written: {!r}", len(group), error)
                _fail_all(group, error)
        else:
            # If nothing was written, as behind a failed batch, nothing is known of the disk.
            if written:
                self._condition.works()
        self._put_aside([commit for commit in group if commit.unfit])
        self._tell_all(group)

    def _write_by_session(self, group: list[Commit]) -> None:
        """Write a group session by session: the damaged page may belong to one of them only (law L13)."""
        sessions: dict[str, list[Commit]] = {}
        for commit in group:
            sessions.setdefault(commit.batch.session, []).append(commit)
        for session, commits in sessions.items():
            try:
                written = self._writer.attempt(partial(self._groups.write, group=commits))
            except BaseException as error:  # noqa: BLE001 - as above
                logger.error("{} batches of session {} could not be written: {!r}", len(commits), session, error)
                _fail_all(commits, error)
            else:
                if written:
                    self._condition.works()

    def _put_aside(self, unfit: list[Commit]) -> None:
        """Keep batches that could not be stored for a person to inspect."""
        for commit in unfit:
            batch, error = commit.batch, commit.error or ""
            self._condition.unfit += 1
            self._condition.leave_out(
                [f"session {batch.session}: batch {batch.number} of {batch.incarnation}: {error}"]
            )
            try:
                self._writer.attempt(lambda connection: put_aside(connection, batch, error, self._clock.wall()))  # noqa: B023
            except Exception as again:  # noqa: BLE001 - the batch is named in the log and in `health` in any case
                logger.warning("an unfit batch could not be put aside: {!r}", again)

    def _tell_all(self, group: list[Commit]) -> None:
        durable: dict[tuple[str, str, int], Commit] = {}
        for commit in group:
            if commit.error is None:
                key = (commit.batch.session, commit.batch.incarnation, id(commit.owner))
                if key not in durable or durable[key].batch.number < commit.batch.number:
                    durable[key] = commit
        failed = [commit for commit in group if commit.error is not None]
        here = len(durable) == 1 and not failed and self._queue.claim_turns()
        with self._caller_runs() if here else nullcontext():
            # If a group holds good batches of an incarnation and its first bad one, the good ones come first.
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
            if here:
                self._queue.hand_over_pen()


def _fail_all(commits: Iterable[Commit], error: BaseException) -> None:
    for commit in commits:
        if commit.error is None:
            commit.error = error_text(error)


__all__ = ["SqliteStore"]
