"""Reads long sessions beside the writer, each on a thread of its own, so that they hold up no other session."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from actors.errors import StoreUnavailable
from actors.kernel.thread_role import serve_all
from actors.ports import Snapshot
from supervisor.store.reader import SqliteReader
from supervisor.store.work import Load

LOADS_AT_ONCE: Final = 8


class LongLoads:
    """Loads of long sessions. One waits for one of `LOADS_AT_ONCE` threads, which start with the first loads.

    Args:
        reader: reads the store.
        snapshot: reads a session.
        loaded, failed: called with the end of each load, on its thread.
    """

    def __init__(
        self,
        reader: SqliteReader,
        snapshot: Callable[[sqlite3.Connection, str], Snapshot],
        loaded: Callable[[Load, Snapshot], None],
        failed: Callable[[Load, BaseException], None],
    ) -> None:
        self._reader = reader
        self._snapshot = snapshot
        self._loaded = loaded
        self._failed = failed
        self._pool = ThreadPoolExecutor(LOADS_AT_ONCE, "countermand-loads", initializer=serve_all)

    def read(self, load: Load) -> None:
        """Read a session. What is in the store by now is in the snapshot."""
        try:
            self._pool.submit(self._read, load)
        except RuntimeError as error:
            # No thread can be started.
            self._failed(load, error)

    def close(self) -> None:
        """Wait for the loads. The reader was closed before: they fail at once."""
        self._pool.shutdown()

    def _read(self, load: Load) -> None:
        try:
            try:
                found = self._reader.at_once(self._snapshot, load.session)
            except StoreUnavailable:
                # Once more, with a new connection, as the writer does.
                found = self._reader.at_once(self._snapshot, load.session)
        except BaseException as error:  # noqa: BLE001  # the owner has to learn of any error
            self._failed(load, error)
        else:
            self._loaded(load, found)
