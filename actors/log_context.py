"""What the lines of the log of an agent or a tool are about.

Not `loguru.contextualize`: it holds the log's one lock for a moment, and an allocation in that moment may start the
garbage collector, which closes a suspended coroutine that nobody holds, whose own `contextualize` then waits on the
same thread for that lock, for ever. What is here takes no lock.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_ABOUT: Final[contextvars.ContextVar[Mapping[str, object]]] = contextvars.ContextVar("countermand_log_context")


def about() -> Mapping[str, object]:
    """What the code that runs here was named for; empty where nobody has named it. Any thread."""
    return _ABOUT.get({})


def name_task(context: Mapping[str, object]) -> None:
    """Name what the rest of this asyncio task is about. It has a context of its own, so nothing is put back."""
    _ABOUT.set(context)


@contextmanager
def named(context: Mapping[str, object]) -> Iterator[None]:
    """Name what the block is about. For plain functions: a coroutine may be closed in a context that is not its own."""
    before = _ABOUT.set(context)
    try:
        yield
    finally:
        _ABOUT.reset(before)
