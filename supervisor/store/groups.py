"""A group of batches in one transaction: in order, once, and each by itself where one cannot be stored.

A session numbers its batches from 1 within an incarnation, and the number of the last one is written in the batch's own
transaction. So the file records which batches are written. A batch at or below that number is acknowledged and not
written again; a batch that is not the next is refused. So a batch may be sent twice, every batch behind a failed one
fails, and a group that is retried after an error in COMMIT, whose outcome is unknown, is not written twice.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from actors.ports import Batch, Clock
from supervisor.store import tables
from supervisor.store.faults import DATA_ERRORS
from supervisor.store.work import Commit, DoesNotFollow

LAST_KEPT_MAX: Final = 10_000
"""Incarnations whose last batch is cached."""
PRUNE_EVERY: Final = 64
"""Old requests are deleted in every 64th batch of an incarnation; a load never reads them."""

_Last = dict[tuple[str, str], int]


class GroupWriter:
    """Writes groups of batches. Only the thread with the pen uses it.

    Args:
        clock: gives the age of a request.
        requests_kept, requests_kept_s: how many requests of a session are kept, and for how many seconds.
    """

    def __init__(self, clock: Clock, requests_kept: int, requests_kept_s: float) -> None:
        self._clock = clock
        self._requests_kept = requests_kept
        self._requests_kept_s = requests_kept_s
        # The last durable batch of each incarnation; read once, then cached, since no other process writes.
        self._last: _Last = {}

    def forget(self) -> None:
        """Clear the cache: the connection was given up."""
        self._last = {}

    def write(self, connection: sqlite3.Connection, group: list[Commit]) -> bool:
        """Write a group in one transaction. An error in a batch's data is recorded in its Commit; others are raised.

        False: there was nothing to write.
        """
        written: _Last = {}
        try:
            connection.execute("BEGIN IMMEDIATE")
            for commit in group:
                if commit.statements is not None:
                    self._write_batch(connection, commit.batch, commit.statements, written)
            connection.execute("COMMIT")
        except DATA_ERRORS:
            connection.execute("ROLLBACK")
            written = {}
            self._write_apart(connection, group, written)
        self._last.update(written)
        while len(self._last) > LAST_KEPT_MAX:
            self._last.pop(next(iter(self._last)))
        return bool(written)

    def _write_apart(self, connection: sqlite3.Connection, group: list[Commit], written: _Last) -> None:
        """Write each batch of a group in a savepoint of its own, so that only the one that cannot be stored fails."""
        errors: dict[int, BaseException] = {}
        connection.execute("BEGIN IMMEDIATE")
        for index, commit in enumerate(group):
            if commit.statements is None:
                continue
            connection.execute("SAVEPOINT batch")
            try:
                self._write_batch(connection, commit.batch, commit.statements, written)
            except DATA_ERRORS as error:
                errors[index] = error
                connection.execute("ROLLBACK TO batch")
            connection.execute("RELEASE batch")
        connection.execute("COMMIT")
        for index, offence in errors.items():
            group[index].failed(offence)

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
            raise DoesNotFollow(
                f"batch {batch.number} of session {batch.session} does not follow the last one written",
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
