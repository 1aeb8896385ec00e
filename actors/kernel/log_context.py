"""The log of agents and tools: which session, run and call a line is about; and the switch, which is off in a library.

A library prints nothing of its own accord: in a program that embeds this one the log is off until the program turns it
on (``loguru.logger.enable("actors")``, and ``"supervisor"``). The command and the daemon are programs, and `speak`.

Not `loguru.contextualize`: it holds the log's one lock for a moment, and an allocation in that moment may start the
garbage collector, which closes a suspended coroutine that nobody holds, whose own `contextualize` then waits on the
same thread for that lock, for ever. What is here takes no lock.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from loguru import logger

PACKAGES: Final = ("actors", "supervisor")
_ABOUT: Final[contextvars.ContextVar[Mapping[str, object]]] = contextvars.ContextVar("countermand_log_context")


def be_quiet() -> None:
    """Log nothing. Called once, when the package is imported; a program may turn the log on after that."""
    for package in PACKAGES:
        logger.disable(package)


def speak() -> None:
    """Log: this process is our own program, not one that embeds the library."""
    for package in PACKAGES:
        logger.enable(package)


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
