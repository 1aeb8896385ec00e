"""Countermand's daemon side: the supervisor around the actors, as a library, and the console.

The map, from the outside in:

    console/       the `countermand` command: chat, thread, runs, ps, why
    daemon/        `countermand serve`: settings, systemd, signals, the log, the order of coming and going
    embed.py       Supervisor: start, session, close; the order in which all of this comes and goes
    listing.py     what runs now, and whose it is
    handle.py      SessionHandle: the way into one session, blocking and awaitable
    config.py      Config: what a supervisor is started with
    supervisor.py  SupervisorActor: routes, restarts, quarantines, passivates, drains
    retention.py   which sessions are kept for too long
    agents/ tools/ what ships: the shell agent and the shell tool
    executor.py    where agents, tools and callbacks run
    containment/   process trees: zygote, wardens, output
    store/         the log in SQLite: migrations, writer, reader
    publisher.py   committed events on their way to subscribers
    clock.py ids.py lock.py   time and timers, names, the instance lock
"""

from supervisor.config import Config
from supervisor.embed import Supervisor
from supervisor.handle import AsyncSessionHandle, SessionHandle
from supervisor.listing import LiveProcess

__all__ = ["AsyncSessionHandle", "Config", "LiveProcess", "SessionHandle", "Supervisor"]
