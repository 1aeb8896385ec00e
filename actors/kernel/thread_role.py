"""Threads that may not wait: those inside a turn of an actor, and those that serve all actors.

Foreign code might wait there too: the garbage collector closes generators of agents and tools on any thread, and they
may do anything at their end.
"""

from __future__ import annotations

import threading
from typing import Final


class _Handling(threading.local):
    """True on a thread that may not wait. The mailbox sets it around each turn."""

    active: bool = False


HANDLING: Final = _Handling()


def serve_all() -> None:
    """Mark the calling thread, for good, as one that serves all actors: like a turn, it may not wait for an actor."""
    HANDLING.active = True
