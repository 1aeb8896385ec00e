"""The supervisor as a library: start it, get a session by name, and leave the `with` to drain and end it.

They start in this order: lock, clock, store, hub, strays, executor, processes, hosts, dispatcher, actors; then the
sessions that have something to finish. Each needs those before it, so they are ended in the reverse order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from loguru import logger
from pykka import ActorDeadError, Timeout

from actors.dead_letters import DeadLetter, DeadLetters
from actors.errors import AgentUnavailable, Invalid, StoreUnavailable
from actors.hierarchy.session import SessionActor
from actors.hosts import HostedAgent
from actors.kernel.dispatcher import PooledDispatcher
from actors.messages import Activate, DrainOver, Old, Ping, PluginsMended, Pong, Shutdown
from actors.model import Event, Policy
from actors.plugin.registration import Plugins, Tool, Unloaded, duration
from actors.ports import Ports
from actors.requests import checked_session
from actors.text import shown
from supervisor.agent import Agent
from supervisor.agents.shell import shell as shell_agent
from supervisor.ages import Ages
from supervisor.child_runs import ChildRuns
from supervisor.clock import SystemClock
from supervisor.config import AgentFunction, Config, absolute
from supervisor.containment.layers import Layers
from supervisor.containment.processes.trees import ProcessTrees
from supervisor.executor import ThreadExecutor
from supervisor.hosts.pool import HostPool
from supervisor.hosts.status import AgentStatus
from supervisor.ids import RandomIds
from supervisor.live_processes import LiveProcess, live_processes
from supervisor.lock import InstanceLock
from supervisor.mcp_server import McpServer
from supervisor.publisher import EventHub
from supervisor.retention import Retention
from supervisor.router import SupervisorActor
from supervisor.session_handle import SessionHandle
from supervisor.store.health import StoreHealth
from supervisor.store.reader import SqliteReader
from supervisor.store.schema import STORE_NAME
from supervisor.store.sqlite import SqliteStore
from supervisor.strays.strays import Strays
from supervisor.tool_hosts import tool_hosts
from supervisor.tools.shipped import shipped

DISPATCHER_THREADS: Final = 4
CLOSE_STEP_S: Final = 10.0
# How long the end of a tree is waited for. Its run names it abandoned long before; a later proof amends the receipt.
GIVE_UP_S: Final = 600.0


Tap = Callable[[str, Sequence[Event]], object]


class Supervisor:
    """A running supervisor; a context manager. Create one with `Supervisor.start`.

    Its methods may be called from any thread that is not an actor's.
    """

    def __init__(self, config: Config, taps: Iterable[Tap] = ()) -> None:
        self.config = config
        self._taps = tuple(taps)
        # Absolute, so that it stays valid if the working directory changes.
        state_dir = self._state_dir = absolute(Path(config.state_dir))
        plugins = self._plugins = plugins_of(config)
        self._specs = {
            name: dataclasses.replace(agent, name=name, servers={one: config.mcp[one] for one in agent.mcp})
            for name, agent in config.agents.items()
            if isinstance(agent, Agent)
        }
        self._hosts: HostPool | None = None
        self._pid = os.getpid()
        # Reentrant: a signal handler may call `close` on a thread that is closing.
        self._closing = threading.RLock()
        self._closer: int | None = None
        self._drained = self._quiet = False
        # The functions that end each started component, in the order of starting; each is idempotent.
        self._undo: list[Callable[[], object]] = []
        try:
            self._start(config, state_dir, plugins)
        except BaseException as error:
            # End everything that was started before the failure, in reverse order.
            self._end_all()
            if isinstance(error, OSError):
                raise StoreUnavailable(
                    f"the supervisor cannot start in {state_dir}",
                    expected="a directory that this user may write, on a disk with free space",
                    got=str(error),
                    remedy="free space on its disk; check its permissions, and the limits of this process",
                ) from error
            raise

    @classmethod
    def start(cls, config: Config | None = None, *, taps: Iterable[Tap] = ()) -> Supervisor:
        """Start a supervisor.

        Args:
            config: the configuration.
            taps: called with a session and its events as they are published, from the first event on; see `EventHub`.

        Raises:
            StateDirBusy: another supervisor uses the state directory; the error has its pid.
            StoreUnavailable: the store or the directory cannot be used.
            Invalid, NotFound: the configuration is invalid, or names something that does not exist.
        """
        return cls(config or Config(), taps)

    def session(self, name: str, *, policies: Mapping[str, Policy | str] | None = None) -> SessionHandle:
        """Return the handle of a session. Its first message creates the session.

        Args:
            name: 1 to 128 printable characters.
            policies: for messages without a policy, by origin, such as ``{"user": "enqueue"}``.
        """
        checked_session(name)
        kept = self._store.journal.of
        return SessionHandle(name, self._actor, self._store.reader, self._hub, policies, self._state_dir, kept)

    def sessions(self) -> list[str]:
        """Return the names of all stored sessions, sorted."""
        return self._store.reader.names()

    def processes(self) -> list[LiveProcess]:
        """Return the live processes of all sessions, with their trees and owners.

        It reads the store and /proc: call it on a thread that may block.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return live_processes(self._state_dir, self._store.reader)

    def store_health(self) -> StoreHealth:
        """Return the present health of the store and its stop journal. It does not wait."""
        return self._store.health()

    def unavailable(self) -> AgentUnavailable | None:
        """Return why messages are refused, if the agent that runs them could not be loaded."""
        return self._plugins.unavailable(self.config.agent)

    def unloaded(self) -> dict[str, str]:
        """Return the agents and tools that could not be loaded, each with the reason."""
        agents = {f"agent {name}": one.why for name, one in list(self._plugins.unloaded_agents.items())}
        return agents | {f"tool {spelled}": one.why for spelled, one in list(self._plugins.unloaded_tools.items())}

    def mend(
        self,
        agents: Mapping[str, AgentFunction | Agent | Unloaded],
        tools: Mapping[str, Tool | AgentFunction | Unloaded],
    ) -> list[str]:
        """Add agents and tools that can be loaded now; see `Plugins.mend`. Only one thread at a time.

        Agents that run in hosts are left out: the hosts load them, and try again by themselves; see `hosts`.
        """
        here = {name: agent for name, agent in agents.items() if not isinstance(agent, Agent)}
        mended = self._plugins.mend(here, tools, self._prepare)
        if mended:
            self._actor.tell(PluginsMended())
        return mended

    def _prepare(self, tool: Tool) -> None:
        """A tool is about to be added: if it runs in a process of its own, it gets its hosts first."""
        if self._hosts is not None:
            self._hosts.add(tool_hosts([tool]))

    def layers(self) -> Layers:
        """Return the layers of containment that its process trees have."""
        return self._processes.layers

    def agents(self) -> dict[str, Agent | AgentFunction | Unloaded]:
        """Return every agent by name, also those that ship, and those that could not be loaded."""
        inside = {name: agent for name, agent in list(self._plugins.agents.items()) if callable(agent)}
        return {**inside, **self._plugins.unloaded_agents, **self._specs}

    def hosts(self) -> list[AgentStatus]:
        """Return the agents that run in hosts, each with its hosts, and the reason if none can be started."""
        return [] if self._hosts is None else self._hosts.status()

    def reload_hosts(self, names: Iterable[str] | None = None) -> None:
        """Replace the spares of these agents, or of all, for example because their code has changed.

        Their `env_files` are read again: it may block. Runs go on in the hosts that they have. A host that a session
        keeps is replaced at its next run.
        """
        if self._hosts is not None:
            self._hosts.reload(names)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the last reports that came too late, the oldest first."""
        return self._dead_letters.recent()

    def busy_threads(self) -> list[str]:
        """Return the names of the threads of plain agents and tools; after a stop, those that ignore their token."""
        return self._executor.leaked()

    def left(self, *, overdue: bool = False) -> list[str]:
        """Return the strays that have not ended, as ``kind name``: see `Row.kind`.

        `overdue`: only those that go on after the grace of their run.
        """
        return self._strays.left(overdue=overdue)

    def reap(self) -> None:
        """Reap the orphans that became children of this process and have ended. For a program that handles SIGCHLD."""
        self._strays.reap()

    def close(self, drain_s: float | None = None) -> bool:
        """Refuse new work, let runs end for `drain_s` seconds, interrupt the rest, and end everything.

        Idempotent; a second call finishes a first one that was interrupted. A call on another thread waits for the
        first. It returns False at once where waiting is impossible: inside another call on this thread, as in a signal
        handler; in agents, tools and callbacks while another call waits for them; and in a forked child, whose parent
        owns the supervisor.

        Returns:
            True if all sessions came to rest and nothing was left running.

        Raises:
            Invalid: `drain_s` is not a number of seconds.
        """
        wait_s = self.config.drain_s if drain_s is None else duration("drain_s", drain_s, least=0.0)
        if os.getpid() != self._pid:
            return False
        if not self._closing.acquire(blocking=not self._executor.runs_here()):
            return False
        try:
            # The lock is reentrant, so this may be inside another call on this thread.
            return self._closer != threading.get_ident() and self._close(wait_s)
        finally:
            self._closing.release()

    def drain(self, drain_s: float) -> bool:
        """Do the first half of `close`: refuse new work, let runs end for `drain_s` seconds, interrupt the rest.

        Everything still answers after it; `close` ends the rest. Returns True if all sessions came to rest. Not for a
        thread that the supervisor owns.
        """
        with self._closing:
            self._drain_once(duration("drain_s", drain_s, least=0.0))
            return self._quiet

    def hurry(self) -> None:
        """End the drain now: interrupt what still runs. No effect outside of a drain."""
        with contextlib.suppress(ActorDeadError):
            self._actor.tell(DrainOver(final=False, hurried=True))

    def ping(self, timeout: float) -> Pong | None:
        """Check that the supervisor's actor answers. None if it does not within `timeout` seconds, or has ended."""
        try:
            return cast("Pong", self._actor.ask(Ping(), timeout=timeout))
        except (Timeout, ActorDeadError):
            return None

    def store_responds(self, timeout: float) -> bool:
        """Return True if the store's thread answers within `timeout` seconds. An error is an answer, a hang is not."""
        return self._store.responds(timeout)

    def tap(self, callback: Callable[[str, Sequence[Event]], object]) -> None:
        """Call `callback` with the events of every session as they are published; see `EventHub.tap`."""
        self._hub.tap(callback)

    @property
    def state_dir(self) -> Path:
        """The absolute path of the state directory."""
        return self._state_dir

    @property
    def store(self) -> SqliteReader:
        """A reader of the store; each read blocks for as long as the disk takes."""
        return self._store.reader

    def store_queue(self) -> int:
        """Return how many batches and loads wait for the store's thread."""
        return self._store.queued

    def resident(self) -> list[str]:
        """Return the names of the sessions that are in memory now."""
        actor = self._actor._actor_weakref()
        return list(actor.children) if actor is not None else []

    def _decided_seq(self, session: str) -> int:
        """Return the seq of the last event that a session has decided; 0 if it has no actor. It does not wait."""
        supervisor = self._actor._actor_weakref()
        ref = supervisor.children.get(session) if supervisor is not None else None
        actor = cast("SessionActor | None", ref._actor_weakref()) if ref is not None else None
        return 0 if actor is None else actor.decided_seq

    def refused(self) -> dict[str, int]:
        """Return how many reports came too late since the start, by kind."""
        return self._dead_letters.counts()

    def executing(self) -> list[str]:
        """Return the ids of the runs and calls whose agent or tool has a thread that has not ended."""
        return self._executor.running()

    def ready_actors(self) -> int:
        """Return how many actors wait for a thread of the dispatcher."""
        return self._dispatcher.queued

    def _drain_once(self, drain_s: float) -> None:
        if not self._drained:
            self._drained = True
            if self._hosts is not None:
                # Spare hosts are not needed: only runs that are decided already still begin.
                self._hosts.drain()
            self._quiet = self._drain(drain_s)

    def _close(self, drain_s: float) -> bool:
        self._closer = threading.get_ident()
        try:
            self._drain_once(drain_s)
        finally:
            try:
                self._end_all()
            finally:
                self._closer = None
        return self._quiet and not self._executor.leaked()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, config: Config, state_dir: Path, plugins: Plugins) -> None:
        self._lock = InstanceLock(state_dir)
        self._undo.append(self._lock.release)
        self._clock = SystemClock()
        self._undo.append(self._clock.close)
        self._store = SqliteStore(
            state_dir / STORE_NAME,
            clock=self._clock,
            caller_runs=lambda: self._dispatcher.caller_runs(),  # noqa: PLW0108  # there is no dispatcher yet
        )
        self._undo.append(lambda: self._store.close(CLOSE_STEP_S))
        self._hub = EventHub(self._store.reader, decided_seq=self._decided_seq)
        for callback in self._taps:
            self._hub.tap(callback)
        self._undo.append(self._hub.close)
        self._strays = Strays(self._clock, subreaper=config.subreaper)
        self._undo.append(self._strays.close)
        self._executor = ThreadExecutor(self._clock, on_loop=self._strays.serve)
        self._undo.append(lambda: self._executor.close(CLOSE_STEP_S))
        self._processes = ProcessTrees(
            state_dir,
            self._clock,
            kill_s=config.kill_s,
            give_up_s=max(GIVE_UP_S, config.kill_s),
            limits=config.limits,
            layers=config.layers,
            spool_max_bytes=config.spool_max_bytes,
            spool_total_bytes=config.spool_total_bytes,
            spool_keep_s=config.spool_keep_s,
        )
        self._undo.append(lambda: self._processes.close(CLOSE_STEP_S))
        self._processes.start()
        # End the trees of a crash that no session has a row for, and remove output of deleted sessions. Nothing can
        # spawn yet.
        self._processes.end_unnamed(self._store.reader.living_trees)
        self._processes.spools.keep_only(self._store.reader.names)
        specs = {**self._specs, **tool_hosts(plugins.tools.values())}
        # A tool that cannot be loaded may turn out to be one that runs in a process of its own.
        if specs or plugins.unloaded_tools:
            self._hosts = HostPool(
                self._processes,
                self._clock,
                RandomIds(),
                specs,
                config.settings,
                elsewhere=self._executor.call,
            )
            self._undo.append(self._hosts.close)
            self._hosts.start()
        self._dispatcher = PooledDispatcher(DISPATCHER_THREADS, name="countermand")
        self._undo.append(lambda: self._dispatcher.close(CLOSE_STEP_S))
        self._dead_letters = DeadLetters()
        child_runs = ChildRuns(self._processes)
        ports = Ports(
            clock=self._clock,
            ids=RandomIds(),
            executor=self._executor,
            strays=self._strays,
            processes=child_runs,
            store=self._store,
            publisher=self._hub,
            dispatcher=self._dispatcher,
            dead_letters=self._dead_letters,
            settings=config.settings,
            hosts=self._hosts,
            children=child_runs,
        )
        self._retention = Retention(config.retention_s, config.sessions_max)
        self._ages = Ages(self._clock)
        self._actor = SupervisorActor.start(ports, plugins, None, self._old if self._retention.limited else None)
        self._undo.append(self._stop_actor)
        child_runs.route_through(self._actor)
        # Sessions with an unfinished run, with messages that no Stop parked, or with a Stop in the journal.
        for session in self._store.unfinished():
            self._actor.tell(Activate(session))

    def _old(self) -> Old:
        """Return the sessions to delete for their age or their number. Reads the store."""
        reader = self._store.reader
        return self._retention.old(reader.settled(), reader.count(), self._ages.older_than)

    def _end_all(self) -> None:
        """End what was started, in reverse order. An interrupted step, and those after it, remain to be done."""
        while self._undo:
            try:
                if self._undo[-1]() is False:
                    self._quiet = False
            except Exception:  # noqa: BLE001  # the others must be ended too
                logger.opt(exception=True).error("while the supervisor ended")
                self._quiet = False
            self._undo.pop()

    def _drain(self, drain_s: float) -> bool:
        limit_s = drain_s + self.config.grace_s + self.config.kill_s + 2 * CLOSE_STEP_S
        try:
            quiet = bool(self._actor.ask(Shutdown(drain_s), timeout=limit_s))
        except (Timeout, ActorDeadError) as error:
            logger.error("the sessions could not be drained: {}", error)
            return False
        return quiet

    def _stop_actor(self) -> None:
        with contextlib.suppress(Timeout, ActorDeadError):
            self._actor.stop(timeout=CLOSE_STEP_S)


def plugins_of(config: Config) -> Plugins:
    """Return the agents and tools of a configuration, and those that ship.

    Raises:
        Invalid: one of them cannot be used.
        NotFound: there is no agent with the name of the agent that runs messages.
    """
    agents = {
        name: _hosted(name, agent) if isinstance(agent, Agent) else agent for name, agent in config.agents.items()
    }
    plugins = Plugins({"shell": shell_agent, **agents}, config.tools)
    root = None if config.files_root is None else absolute(Path(config.files_root))
    if root is not None and not root.is_dir():
        raise Invalid(
            "the key 'files_root' names no directory",
            expected="the path of a directory that is there",
            got=shown(str(root)),
            remedy="make it, or correct the path",
        )
    for tool in shipped(None if root is None else str(root), config.http_hosts):
        # One of the configuration goes before one that ships.
        if tool.name not in plugins.tools:
            plugins.add(tool)
    _check_granted(config, plugins)
    _check_servers(config)
    with contextlib.suppress(AgentUnavailable):
        # If it could not be loaded, messages are refused, but reading and stopping work.
        plugins.agent(config.agent)
    return plugins


def _hosted(name: str, agent: Agent) -> HostedAgent:
    """Return an agent that runs in hosts, as the actors use it."""
    return HostedAgent(
        name,
        keep=agent.keep == "session",
        keep_idle_s=agent.keep_idle_s,
        overlap=bool(agent.overlap),
        grace_s=agent.grace_s,
        tools=agent.granted,
        budget=agent.budget,
        ask=tuple(agent.ask),
    )


def _check_granted(config: Config, plugins: Plugins) -> None:
    """Raise Invalid if an agent is granted a tool that is not there; one that could not be loaded may be it."""
    if plugins.unloaded_tools:
        return
    for name, agent in config.agents.items():
        missing = [one for one in (agent.granted or () if isinstance(agent, Agent) else ()) if one not in plugins.tools]
        if missing:
            raise Invalid(
                f"the key {f'agents.{name}.tools'!r} names a tool that is not there",
                expected=" | ".join(sorted(plugins.tools)) + " | module:function",
                got=missing[0],
                remedy="register it (tools), or correct its name",
            )


def _check_servers(config: Config) -> None:
    """Raise Invalid if a value is no MCP server, or an agent names one that is not there."""
    for name, server in config.mcp.items():
        if not isinstance(server, McpServer):
            raise Invalid(
                f"the key {f'mcp.{name}'!r} is no MCP server",
                expected="an McpServer",
                got=type(server).__name__,
                remedy="mcp={name: McpServer(command=…)}",
            )
    for name, agent in config.agents.items():
        if not isinstance(agent, Agent):
            continue
        missing = [one for one in agent.mcp if one not in config.mcp]
        if missing:
            raise Invalid(
                f"the key {f'agents.{name}.mcp'!r} names an MCP server that is not there",
                expected=" | ".join(sorted(config.mcp)) or "a table [mcp.NAME] for each",
                got=missing[0],
                remedy="add it to the configuration, or correct its name",
            )
        ruled = [one for one in agent.mcp if agent.is_program and config.mcp[one].rules]
        if ruled:
            raise Invalid(
                f"the key {f'agents.{name}.mcp'!r} hands a program an MCP server with rules, which it would not keep",
                expected="servers without 'allow', 'deny' and 'ask'",
                got=f"{ruled[0]}, with {', '.join(config.mcp[ruled[0]].rules)}",
                remedy="write the rules into the program's own configuration, and a table [mcp.NAME] without them",
            )
