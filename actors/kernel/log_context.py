"""The context of log lines (session, run, call), and the switch that turns the log on or off.

In a program that embeds this library the log is off until the program enables it
(``loguru.logger.enable("actors")``, and ``"supervisor"``). The command and the daemon are programs: they call `speak`.

`loguru.contextualize` could deadlock here. It holds the log's one lock for a moment, and an allocation in that moment
may start the garbage collector. That may close an unreferenced coroutine, whose own `contextualize` then waits on the
same thread for that lock, for ever. The functions here take no lock.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from loguru import logger

PACKAGES: Final = ("actors", "supervisor")
CONTEXT: Final = ("session", "run", "generation", "call")
"""The names of the context, in the order in which a line shows them."""
_ABOUT: Final[contextvars.ContextVar[Mapping[str, object]]] = contextvars.ContextVar("countermand_log_context")


def be_quiet() -> None:
    """Turn the log off. Called once, when the package is imported; a program may turn it on after that."""
    for package in PACKAGES:
        logger.disable(package)


def speak() -> None:
    """Turn the log on, in a process that is our own program and not one that embeds the library."""
    for package in PACKAGES:
        logger.enable(package)


def about() -> Mapping[str, object]:
    """Return the log context of the code that runs here; empty if none was set. Any thread."""
    return _ABOUT.get({})


def name_task(context: Mapping[str, object]) -> None:
    """Set the log context for the rest of this asyncio task. A task has its own contextvars, so nothing is restored."""
    _ABOUT.set(context)


@contextmanager
def named(context: Mapping[str, object]) -> Iterator[None]:
    """Set the log context for a block. For plain functions only: a coroutine may be closed in another context."""
    before = _ABOUT.set(context)
    try:
        yield
    finally:
        _ABOUT.reset(before)
