"""Reads the end of a thread from the end of the log.

Theory of operation. The thread has a group of messages for each run, in the order in which the runs first had something
to show, and a run shows nothing before it starts or is closed. So the groups of all runs that start behind a place of
the log are the end of the thread, and are folded from what follows that place. Of the first run that starts there it is
not known where its inputs are, so it is left out. A run that tries another one again may show its inputs in the other's
group, so it counts only beside that one. The part of the log is made longer until there are more messages than were
asked for. Where a single run fills the end of the log, that may be all of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from actors.events import EventKind, RunStartedData
from actors.model import Message
from actors.thread import KINDS, Thread
from supervisor.store import events

EVENTS_A_MESSAGE: Final = 8
GROWTH: Final = 4


def thread_end(
    connection: sqlite3.Connection, session: str, last: int, since: str | None = None
) -> tuple[list[Message], bool]:
    """Return the newest messages of a session, and True if there are older ones.

    Args:
        connection: a reader's.
        session: its name.
        last: the number of messages.
        since: a run; the messages of the runs that started after it, and its own, are returned too.
    """
    end = events.last_seq(connection, session)
    size = max(last * EVENTS_A_MESSAGE, events.PAGE)
    while size < end:
        runs = _started(connection, session, end - size)
        if since is None or since in runs:
            found = _messages(connection, session, end - size, frozenset(runs))
            first = _first(found, last, since)
            if first > 0:
                return found[first:], True
        size *= GROWTH
    found = events.thread(connection, session)
    first = _first(found, last, since)
    return found[first:], first > 0


def _first(messages: Sequence[Message], last: int, since: str | None) -> int:
    """Return the place of the first message that is asked for."""
    of_run = (place for place, message in enumerate(messages) if since is not None and message.run_id == since)
    return max(0, min(len(messages) - last, next(of_run, len(messages))))


def _started(connection: sqlite3.Connection, session: str, after: int) -> list[str | None]:
    """Return the runs all of whose messages are behind a place of the log, in the order in which they started."""
    whole: list[str | None] = []
    started = events.folded(connection, session, [EventKind.RUN_STARTED], after)
    for number, (event, data) in enumerate(started):
        retried = data.retry_of if isinstance(data, RunStartedData) else None
        if number == 0 or (retried is not None and retried not in whole):
            whole.clear()
        else:
            whole.append(event.run_id)
    return whole


def _messages(connection: sqlite3.Connection, session: str, after: int, runs: frozenset[str | None]) -> list[Message]:
    fold = Thread()
    for event, data in events.folded(connection, session, KINDS, after):
        if event.run_id in runs:
            fold.add(event, data)
    return fold.messages()
