"""Attribution: whose code starts a process, asked at the moment in which it does.

A context variable names whose code runs; tasks inherit it, and our worker threads are given it. The interpreter tells
an audit hook of each process that Python code is about to start, on the thread that starts it. The two together say who
starts what, before it is there.

An audit hook cannot be taken away, so there is one per interpreter, which is installed with the first supervisor. It
does nothing for other events than those few, and it never raises: it runs inside of foreign code.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

from loguru import logger

SPAWN: Final = "countermand.spawn"
SERVED: Final = "countermand.served"
STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", SPAWN, SERVED})
KEPT_BY: Final = frozenset({"multiprocessing.forkserver", "multiprocessing.resource_tracker"})
"""Modules that start one process for the whole program, when somebody needs it first."""


class Starter(Protocol):
    """Whose code runs."""

    @property
    def strays(self) -> Outside:
        """Who knows whose code that is."""

    def starts(self, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process. Must not wait."""


class Outside(Protocol):
    """Who wants to know of processes that nobody's code starts: those of the program around."""

    def starts_outside(self) -> None:
        """The calling thread is about to start a process, and is no agent's and no tool's. Must not wait."""


_STARTER: Final[contextvars.ContextVar[Starter | None]] = contextvars.ContextVar("countermand_starter", default=None)
_OUTSIDE: Final[weakref.WeakSet[Outside]] = weakref.WeakSet()
_INSTALLING: Final = threading.Lock()
_installed = False


def current(context: contextvars.Context | None = None) -> Starter | None:
    """Whose code runs here, or would run in `context`."""
    return _STARTER.get() if context is None else context.get(_STARTER)


def enter(starter: Starter | None) -> None:
    """What runs from here on in this context is the starter's."""
    _STARTER.set(starter)


def install(outside: Outside) -> None:
    """Tell `outside`, while it lives, of what the program starts. The first time the hook is installed too."""
    global _installed  # noqa: PLW0603  # there is one per interpreter
    with _INSTALLING:
        _OUTSIDE.add(outside)
        if not _installed:
            _installed = True
            _announce_spawns()
            sys.addaudithook(_hear)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event not in STARTS:
        return
    try:
        starter = _STARTER.get()
        if starter is not None:
            starter.starts(event, args)
        for outside in list(_OUTSIDE) if event != SERVED else ():
            # To another supervisor in this process it is the program's.
            if starter is None or starter.strays is not outside:
                outside.starts_outside()
    except Exception:  # noqa: BLE001  # it runs inside of foreign code, which has done nothing wrong
        with contextlib.suppress(Exception):
            logger.opt(exception=True).error("the start of a process could not be attributed")


def _announce_spawns() -> None:
    """Have `multiprocessing` say that it starts a process: by its own way of spawning no audit event is raised.

    What it keeps for the whole program is nobody's: other code depends on it when whoever needed it first has ended.
    """
    from multiprocessing import forkserver, util

    served: Any = getattr(forkserver, "connect_to_new_process", None)
    if served is not None:

        @functools.wraps(served)
        def connect_to_new_process(fds: Any) -> Any:
            if _STARTER.get() is not None:
                sys.audit(SERVED)
            return served(fds)

        forkserver.connect_to_new_process = connect_to_new_process

    plain: Any = getattr(util, "spawnv_passfds", None)
    if plain is None:
        return

    @functools.wraps(plain)
    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") not in KEPT_BY:
            sys.audit(SPAWN, path, args)
            return plain(path, args, passfds)
        before = _STARTER.set(None)
        try:
            sys.audit(SPAWN, path, args)
            return plain(path, args, passfds)
        finally:
            _STARTER.reset(before)

    util.spawnv_passfds = spawnv_passfds


def command(event: str, args: Sequence[Any]) -> list[str]:
    """The words of the command that an event announces; those of a fork name the fork."""
    match event:
        case "subprocess.Popen" | "os.posix_spawn" | "countermand.spawn" if len(args) > 1:
            words = args[1]
            return [os.fsdecode(word) for word in (words if isinstance(words, list | tuple) else [words])]
        case "os.system":
            return [os.fsdecode(args[0])]
        case _:
            return [event]
