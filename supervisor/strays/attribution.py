"""Attribution: which execution starts a process, asked at the moment of the start.

A context variable names the execution whose code runs; tasks inherit it, and our worker threads get it. The interpreter
calls an audit hook for each process that Python code is about to start, on the thread that starts it. Together they
show which execution starts a process before it exists.

An audit hook cannot be removed, so there is one per interpreter, installed with the first supervisor. It ignores all
but a few events, and it never raises, because it runs inside foreign code.
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
from typing import Any, Final

from loguru import logger

from supervisor.strays.starter import Host, Starter

SPAWN: Final = "countermand.spawn"
SERVED: Final = "countermand.served"
STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", SPAWN, SERVED})
EXECUTES: Final = frozenset({"subprocess.Popen", "os.posix_spawn"})
"""Those whose first argument is the path that is executed."""
KEPT_BY: Final = frozenset({"multiprocessing.forkserver", "multiprocessing.resource_tracker"})
"""Modules that start one process for the whole program, at its first use."""


_STARTER: Final[contextvars.ContextVar[Starter | None]] = contextvars.ContextVar("countermand_starter", default=None)
_HOSTS: Final[weakref.WeakSet[Host]] = weakref.WeakSet()
_INSTALLING: Final = threading.Lock()
_installed = False


def current(context: contextvars.Context | None = None) -> Starter | None:
    """The starter whose code runs here, or would run in `context`; None if there is none."""
    return _STARTER.get() if context is None else context.get(_STARTER)


def current_of(host: Host, context: contextvars.Context | None = None) -> Starter | None:
    """The same, but None unless it is a starter of `host`."""
    starter = current(context)
    return starter if starter is not None and starter.host is host else None


def enter(starter: Starter | None) -> None:
    """Attribute code that runs in this context from now on to `starter`; None: to the program."""
    _STARTER.set(starter)


def install(host: Host) -> None:
    """Notify `host`, while it lives, of the processes the program starts. The first call installs the hook."""
    global _installed  # noqa: PLW0603  # there is one per interpreter
    with _INSTALLING:
        _HOSTS.add(host)
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
            starter.host.starts(starter, event, args)
        for host in list(_HOSTS) if event != SERVED else ():
            # For another supervisor in this process it is the program's.
            if starter is None or starter.host is not host:
                host.starts_outside(event, args)
    except Exception:  # noqa: BLE001  # it runs inside foreign code, which must not fail because of us
        with contextlib.suppress(Exception):
            logger.opt(exception=True).error("the start of a process could not be attributed")


def _announce_spawns() -> None:
    """Make `multiprocessing` announce its processes: its own way of spawning raises no audit event.

    Processes that it keeps for the whole program are the program's: other code uses them after the first user ends.
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


def executed(event: str, args: Sequence[Any]) -> list[str] | None:
    """The command line of the process that an event announces; None: that of this process, which forks."""
    if event == "os.system":
        return ["sh", "-c", *command(event, args)]
    return None if event.startswith("os.fork") else command(event, args)


def command(event: str, args: Sequence[Any]) -> list[str]:
    """The arguments of the command that an event announces; for a fork, the name of the event."""
    match event:
        case "subprocess.Popen" | "os.posix_spawn" | "countermand.spawn" if len(args) > 1:
            words = args[1]
            return [os.fsdecode(word) for word in (words if isinstance(words, list | tuple) else [words])]
        case "os.system":
            return [os.fsdecode(args[0])]
        case _:
            return [event]
