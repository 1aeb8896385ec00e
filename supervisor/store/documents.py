"""Decode the documents in rows. A damaged one is left out of a list, and hides no other (law L13)."""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar

import msgspec
from loguru import logger

from actors.decoding import decoder
from actors.errors import CountermandError

T = TypeVar("T")


def document(connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any) -> T | None:
    """Read one document; None where there is no row.

    Raises msgspec.MsgspecError, CountermandError or UnicodeDecodeError where it cannot be decoded.
    """
    row = connection.execute(sql, values).fetchone()
    return decoder(kind)(row[0]) if row else None


def readable(
    connection: sqlite3.Connection, kind: type[T], sql: str, *values: Any, left_out: list[str] | None = None
) -> list[T]:
    """Read a list of documents; `sql` selects each with its id.

    A document that cannot be decoded is logged, named in `left_out`, and left out of the list (law L13).
    """
    decode = decoder(kind)
    found: list[T] = []
    for doc, identity in connection.execute(sql, values):
        try:
            found.append(decode(doc))
        except (msgspec.MsgspecError, CountermandError, UnicodeDecodeError) as error:
            leave_out(f"{kind.__name__} {identity}", error, left_out)
    return found


def leave_out(what: str, error: Exception | str, left_out: list[str] | None) -> None:
    """Log that a row cannot be read, and name it in `left_out`."""
    logger.error("a stored row cannot be read: {}: {}", what, error)
    if left_out is not None:
        left_out.append(f"{what}: {error}")
