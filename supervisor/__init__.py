"""Countermand's daemon side: the supervisor around the actors, as a library, and the console.

The map, from the outside in:

    console/            the `countermand` command: chat, and the client of a daemon
    daemon/             `countermand serve`: settings, systemd, signals, the log, the order of coming and going
    http/               the local API: the supervisor over a Unix socket, and loopback
    supervisor.py       Supervisor: start, session, close; the order in which all of this comes and goes
    session_handle.py   SessionHandle: the way into one session, blocking and awaitable
    live_tree.py        what lives now, as a tree: session, run, call, process
    live_processes.py   every live process, and whose it is
    router.py           SupervisorActor: routes, restarts, quarantines, passivates, drains
    retention.py        which sessions are kept for too long
    agents/ tools/      what ships: the shell agent and the shell tool
    executor.py         where agents, tools and callbacks run
    strays/             what their code starts by itself: processes, threads, tasks
    containment/        process trees: zygote, wardens, output
    store/              the log in SQLite: migrations, writer, reader
    publisher.py        committed events on their way to subscribers
    clock.py ids.py lock.py   time and timers, names, the instance lock
    ages.py             what is old, by a wall clock that may be wrong
    wire.py             the API's JSON, for the server and the client
    config.py           Config: what a supervisor is started with
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.config import Config
    from supervisor.live_processes import LiveProcess
    from supervisor.session_handle import AsyncSessionHandle, SessionHandle
    from supervisor.supervisor import Supervisor

__all__ = ["AsyncSessionHandle", "Config", "LiveProcess", "SessionHandle", "Supervisor"]

_HOMES = {
    "AsyncSessionHandle": "supervisor.session_handle",
    "Config": "supervisor.config",
    "LiveProcess": "supervisor.live_processes",
    "SessionHandle": "supervisor.session_handle",
    "Supervisor": "supervisor.supervisor",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: the command's own modules are in here, and most need nothing of a daemon."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
