"""Batches that could not be stored, kept for a person to inspect."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec
from msgspec import Struct

from actors.ports import Batch
from actors.text import cut, storable, storable_json

UNFIT_KEPT: Final = 1_000
UNFIT_MAX_BYTES: Final = 65_536


class UnfitBatch(Struct, frozen=True):
    """A batch that could not be stored, and why. `shown` is its content as JSON, cut to `UNFIT_MAX_BYTES`."""

    session: str
    incarnation: str
    number: int
    error: str
    shown: str
    at: float


def put_aside(connection: sqlite3.Connection, batch: Batch, error: str, at: float) -> None:
    """Keep the content of an unfit batch, as far as JSON can hold it; only the newest `UNFIT_KEPT` are kept."""
    shown = {name: storable_json(getattr(batch, name)) for name in batch.__struct_fields__}
    row = (storable(batch.session), storable(batch.incarnation), batch.number, storable(error))
    doc = cut(msgspec.json.encode(shown).decode(), UNFIT_MAX_BYTES)
    sql = "INSERT INTO batches_unfit (session, incarnation, number, error, doc, at) VALUES (?, ?, ?, ?, ?, ?)"
    place = connection.execute(sql, (*row, doc.encode(), at)).lastrowid
    connection.execute("DELETE FROM batches_unfit WHERE place <= ?", ((place or 0) - UNFIT_KEPT,))


def newest(connection: sqlite3.Connection, limit: int) -> list[UnfitBatch]:
    """Return the newest batches that could not be stored, the oldest of them first."""
    sql = "SELECT session, incarnation, number, error, doc, at FROM batches_unfit ORDER BY place DESC LIMIT ?"
    found = [
        UnfitBatch(session, incarnation, number, error, doc.decode(), at)
        for session, incarnation, number, error, doc, at in connection.execute(sql, (limit,))
    ]
    return found[::-1]
