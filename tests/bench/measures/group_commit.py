"""Durable batches a second, of sessions that each wait for one before they send the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.messages import Committed
from actors.model import Event
from actors.ports import Batch, SessionRow
from supervisor.clock import SystemClock
from supervisor.store.sqlite import SqliteStore
from tests.bench.figure import Figure, Rounds
from tests.bench.kit import WAIT_S, timed


def group_commit(folder: Path, rounds: Rounds) -> Iterator[Figure]:
    """Yield the figures."""
    rates = {}
    for sessions in (1, 16):
        clock = SystemClock()
        store = SqliteStore(folder / f"commits-{sessions}.sqlite3", clock=clock)
        try:
            until = time.perf_counter() + rounds.commit_s
            all_of_them = [Committing(store, f"s{number}", until) for number in range(sessions)]

            def run(all_of_them: list[Committing] = all_of_them) -> None:
                for committing in all_of_them:
                    committing.send()
                for committing in all_of_them:
                    assert committing.over.wait(WAIT_S)

            seconds = timed(run)
            rates[sessions] = sum(committing.number for committing in all_of_them) / seconds
        finally:
            store.close(WAIT_S)
            clock.close()
    yield Figure("store", "batches committed, 1 session", rates[1], "/s")
    yield Figure("store", "batches committed, 16 sessions", rates[16], "/s", rates[1], "1 session")


class Committing:
    """A session that always has one batch on its way."""

    def __init__(self, store: SqliteStore, session: str, until: float) -> None:
        self._store, self._session, self._until = store, session, until
        self.number = 0
        self.over = threading.Event()

    def send(self) -> None:
        """Hand in the next batch."""
        number = self.number + 1
        event = Event(number, self._session, 1, "run", "text", {"text": "a few words of text"}, 0.0)
        batch = Batch(self._session, "inc", number, events=(event,), row=SessionRow(self._session, 1, number))
        self._store.commit(batch, self)  # type: ignore[arg-type]  # it is told like an actor

    def tell(self, message: Any) -> None:
        assert isinstance(message, Committed), message
        self.number = message.number
        if time.perf_counter() < self._until:
            self.send()
        else:
            self.over.set()
