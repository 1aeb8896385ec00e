"""Threads that may not wait: those that are inside a turn of an actor, and those that serve all actors.

It need not be code of ours that would wait there: the garbage collector closes generators of agents and tools on
whatever thread it runs, and they may do anything at their end.
"""

from __future__ import annotations

import threading
from typing import Final


class _Handling(threading.local):
    """Whether this thread may not wait. The mailbox sets it around each turn."""

    active: bool = False


HANDLING: Final = _Handling()


def serve_all() -> None:
    """Say that the calling thread serves all actors, for good: as in a turn, nothing on it waits for one of them."""
    HANDLING.active = True
