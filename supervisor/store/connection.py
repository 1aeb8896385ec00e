"""The writer's connection: reopened and checked after a disk error. Only the thread with the pen uses it.

A missing file is not created again, because the daemon relies on what was durable in it. SQLite keeps writing to a
file that was removed or replaced, so after each piece of work the path is checked to lead to the same file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from loguru import logger

from actors.errors import StoreUnavailable
from actors.ports import Clock
from supervisor.store.condition import NOT_FINISHED, Condition
from supervisor.store.faults import code, is_busy, is_malformed
from supervisor.store.health import error_text
from supervisor.store.schema import open_writer

T = TypeVar("T")

CHECK_EVERY_S: Final = 10.0
CHECK_MAX_S: Final = 2.0
CHECK_STEPS: Final = 50_000
"""Instructions of SQLite's virtual machine between two looks at the clock."""


class WriterConnection:
    """The one connection that writes. The constructor raises sqlite3.Error, OSError, or StoreUnavailable.

    Args:
        path: the store's file.
        busy_timeout_s: how long a statement waits for a file that another process has locked.
        clock: for the interval between checks.
        condition: records errors, the results of checks, and how often the file was reopened.
        on_lost: called when a connection was given up: anything cached from the file must be read again.
    """

    def __init__(
        self, path: Path, busy_timeout_s: float, clock: Clock, condition: Condition, on_lost: Callable[[], None]
    ) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock
        self._condition = condition
        self._on_lost = on_lost
        self.connection: sqlite3.Connection | None = open_writer(path, busy_timeout_s)
        self._checked_at: float | None = None
        # As text, since they are looked up after each piece of work, and a `Path` would be made into text each time.
        self._watched = (str(path), f"{path}-wal")
        self._files = self._files_now()

    def insist(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work with the connection; after a disk error, retry once with a new connection."""
        try:
            return self.attempt(work)
        except (sqlite3.Error, OSError) as error:
            self._condition.note(error)
            if is_busy(error):
                raise
            # Once for a disk that stays full: it is tried again and again.
            level = "DEBUG" if self._condition.failing else "WARNING"
            logger.log(level, "the store failed and is reopened: {!r}", error)
            self._check()
            return self.attempt(work)

    def attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work with the connection, and leave no transaction open; after a disk error, give it up."""
        if self.connection is None:
            self.connection = open_writer(self._path, self._busy_timeout_s, make=False)
            self._files = self._files_now()
            self._condition.reopened += 1
        connection = self.connection
        try:
            done = work(connection)
            self._check_files()
            return done
        except BaseException as error:
            if not _rolled_back(connection) or (isinstance(error, sqlite3.Error | OSError) and not is_busy(error)):
                self.connection = None
                self._on_lost()
                _close(connection)
            raise

    def close(self) -> None:
        """Checkpoint the write-ahead log, and close."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            # Commits stay in the write-ahead log, and the next start reads them from there.
            logger.warning("the write-ahead log could not be checkpointed: {!r}", error)
        _close(connection)

    def _check(self) -> None:
        """Look for damage after an error, for a bounded time. Damage is reported, not acted on."""
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
            found = self.attempt(check)
        except sqlite3.DatabaseError as error:
            if code(error) == sqlite3.SQLITE_INTERRUPT:
                found = NOT_FINISHED
            elif is_malformed(error):
                found = error_text(error)
            else:
                return
        except (OSError, StoreUnavailable):
            return
        if found not in ("ok", NOT_FINISHED):
            logger.error("the store's file is damaged: {}", found)
        self._condition.integrity = found

    def _files_now(self) -> list[tuple[int, int] | None]:
        """The identities of the store's file and of its write-ahead log."""
        return [_identity(path) for path in self._watched]

    def _check_files(self) -> None:
        """Raise OSError if the files were removed or replaced: no reader would find what was just written."""
        files = self._files_now()
        if files != self._files and self._files != [files[0], None]:
            raise FileNotFoundError(errno.ENOENT, "the store's files were removed or replaced", str(self._path))
        self._files = files


def _rolled_back(connection: sqlite3.Connection) -> bool:
    """Roll back an open transaction; False if even that fails."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True


def _identity(path: str) -> tuple[int, int] | None:
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
