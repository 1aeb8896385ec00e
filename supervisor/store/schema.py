"""Opening the store's file: its settings, and the numbered migrations that bring it up to date.

A migration is a file `migrations/NNNN_<what>.sql`. Those that the store lacks are applied in order of their numbers, in
one transaction together with `PRAGMA user_version`, so that a crash leaves the file as it was or up to date, and never
between. It is one commit, since each waits for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from actors.errors import StoreUnavailable

STORE_NAME: Final = "store.sqlite3"
"""The store's file in the state directory."""
MIGRATIONS: Final = Path(__file__).parent / "migrations"
WAL_KEPT_BYTES: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")


@cache
def migrations() -> list[tuple[int, str]]:
    """Return the number and the SQL of every migration, in order."""
    found = []
    for path in sorted(MIGRATIONS.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        assert match is not None, f"a migration is named NNNN_<what>.sql, not {path.name}"
        found.append((int(match[1]), path.read_text(encoding="utf-8")))
    assert [number for number, _ in found] == list(range(1, len(found) + 1)), "migrations are numbered without a gap"
    return found


def open_writer(path: Path, busy_timeout_s: float, *, make: bool = True) -> sqlite3.Connection:
    """Open the file for the one writer, and bring it up to date.

    Args:
        path: the file.
        busy_timeout_s: how long a statement waits for a file that is locked.
        make: make the file where there is none. Otherwise a missing or empty file is an error: it has lost what was
            durable in it.

    The connection may be used from any thread, by one at a time. Raises sqlite3.Error, OSError (a missing file), or
    StoreUnavailable (a newer file; an empty one that may not be made).
    """
    _find(path, make=make)
    if not make and path.stat().st_size == 0:
        raise StoreUnavailable(
            "the store's file is empty",
            expected="the file that was opened at the start",
            got=f"an empty file at {path}",
            remedy="stop the supervisor, and put the file back from a copy",
        )
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _check_not_newer(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit is on the disk when it returns, also when the power fails (law L12).
        connection.execute("PRAGMA synchronous = FULL")
        # A slow reader can make the write-ahead log grow; this gives the space back when the reader has finished.
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _find(path: Path, *, make: bool) -> None:
    """Raise OSError if the file cannot be read and written, or is not there and may not be made.

    A file that is there is not opened: a process that closes one loses its locks on it, also those of its connections
    (fcntl(2)). Any other process that closes the file would then be the last one for SQLite, and remove the log of
    what has been written since.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            # Mode 0600, since conversations are private; SQLite gives its side files the mode of the main file.
            os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600))
            return
    if stat.S_ISDIR(path.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def open_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the file read-only; another process may be writing it.

    Raises StoreUnavailable where there is no file or its version differs, and sqlite3.Error.
    """
    if not path.exists():
        raise StoreUnavailable(
            "there is no store to read",
            expected="a file made by a supervisor",
            got=f"nothing at {path}",
            remedy="check the state directory, or start the supervisor once",
        )
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        known = len(migrations())
        _check_not_newer(connection, path)
        version = schema_version(connection)
        if version < known:
            raise StoreUnavailable(
                f"the store {path} is older than this program",
                expected=f"schema version {known}",
                got=f"schema version {version}",
                remedy="start the supervisor once: it brings the store up to date",
            )
    except BaseException:
        connection.close()
        raise
    return connection


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration applied to the file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_not_newer(connection: sqlite3.Connection, path: Path) -> None:
    known = len(migrations())
    version = schema_version(connection)
    if version > known:
        raise StoreUnavailable(
            f"the store {path} was written by a newer program",
            expected=f"schema version {known} or older",
            got=f"schema version {version}",
            remedy="run the newer program; nothing in the file was changed",
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if schema_version(connection) < len(migrations()):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again under the lock: another process may have applied some.
            version = schema_version(connection)
            for number, script in migrations()[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    _check_not_newer(connection, path)


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements: `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert all(not line.strip() or line.startswith("--") for line in statement.splitlines()), "an open statement"
