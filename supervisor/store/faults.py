"""Errors of SQLite and of the disk, by cause."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

import msgspec

from actors.errors import CountermandError
from supervisor.states import StoreFault

DATA_ERRORS: Final = (
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
"""Errors caused by the batch's own data."""
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_MALFORMED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def code(error: BaseException) -> int | None:
    """Return SQLite's primary code of an error, if it has one."""
    found = getattr(error, "sqlite_errorcode", None)
    return found & 0xFF if isinstance(found, int) else None


def is_busy(error: BaseException) -> bool:
    """True if another process has the file locked."""
    return code(error) in _BUSY


def is_malformed(error: BaseException) -> bool:
    """True if SQLite found the file damaged."""
    return code(error) in _MALFORMED


def kind(error: BaseException) -> StoreFault:
    """Classify an error."""
    if is_busy(error):
        return StoreFault.LOCKED
    if code(error) == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return StoreFault.FULL
    return StoreFault.MALFORMED if is_malformed(error) else StoreFault.DISK
