"""Countermand's daemon side: the supervisor around the actors, as a library, and the console.

The map, from the outside in:

    console/            the `countermand` command: chat, and the client of a daemon
    daemon/             `countermand serve`: settings, systemd, signals, the log, startup and shutdown
    http/               the local API: the supervisor over a Unix socket, and loopback
    supervisor.py       Supervisor: start, session, close; the order in which all of this starts and ends
    session_handle.py   SessionHandle: the interface to one session, blocking and awaitable
    live_tree.py        the live tree: session, run, call, process
    live_processes.py   every live process and its owner
    router.py           SupervisorActor: routes, restarts, quarantines, passivates, drains
    child_runs.py       child runs as a port: they are started and ended as process trees are
    retention.py        deletes sessions for their age or their number
    agents/ tools/      the shell agent; the tools that ship
    tool_hosts.py       starts the processes in which tools run
    executor.py         runs agents, tools and callbacks
    strays/             processes, threads and tasks that their code starts without `spawn`
    hosts/              agents in processes of their own, and the protocol that these speak
    containment/        process trees: zygote, wardens, output
    store/              the log in SQLite: migrations, writer, reader
    publisher.py        brings committed events to subscribers
    clock.py ids.py lock.py   time and timers, ids, the instance lock
    by_session.py       finds what is kept of a session
    ages.py             decides what is too old, by a wall clock that may be wrong
    wire.py             the API's JSON, for the server and the client
    states.py           the states of the store and of agents
    agent.py            Agent: an agent that runs in processes of its own
    mcp_server.py       McpServer: an MCP server, whose tools agents get by its name
    variables.py        variables of processes, from tables and files
    presets.py          the programs and models that an agent can be by name: `Agent(preset=…)`
    config.py           Config: the configuration of a supervisor
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.agent import Agent
    from supervisor.config import Config
    from supervisor.live_processes import LiveProcess
    from supervisor.mcp_server import McpServer
    from supervisor.session_handle import AsyncSessionHandle, SessionHandle
    from supervisor.supervisor import Supervisor

__all__ = ["Agent", "AsyncSessionHandle", "Config", "LiveProcess", "McpServer", "SessionHandle", "Supervisor"]

_HOMES = {
    "Agent": "supervisor.agent",
    "AsyncSessionHandle": "supervisor.session_handle",
    "Config": "supervisor.config",
    "LiveProcess": "supervisor.live_processes",
    "McpServer": "supervisor.mcp_server",
    "SessionHandle": "supervisor.session_handle",
    "Supervisor": "supervisor.supervisor",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use: the command's modules are in this package, and most need no supervisor."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
