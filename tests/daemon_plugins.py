"""Agents that tests put into a daemon by its configuration, to see what a defect in it comes to."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any, TypeVar

from loguru import logger

from actors import Turn
from supervisor.store.sqlite import SqliteStore
from supervisor.supervisor import SupervisorActor

T = TypeVar("T")


class Never(threading.Event):
    """Work for the store's thread that it never comes back from."""

    def set(self) -> None:
        """Hang."""
        threading.Event().wait()


def hang(turn: Turn) -> None:
    """Hang the part that the message names, for good."""
    # A run with a call on record is not begun anew after a restart.
    turn.call("shell", script="true")
    part = turn.inputs[0].content
    logger.info("hanging the {}", part)
    if part == "store":
        _only(SqliteStore)._enqueue(Never())
    else:
        actor: Any = _only(SupervisorActor)
        actor._pong = threading.Event().wait
    time.sleep(3600)


def deaf(turn: Turn) -> None:
    """Work on and on, and never look at the token."""
    turn.emit("working\n")
    threading.Event().wait()


def _only(kind: type[T]) -> T:
    (found,) = (one for one in gc.get_objects() if isinstance(one, kind))
    return found
