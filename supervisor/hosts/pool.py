"""HostPool: the hosts of all agents: spares, those that runs have, and those that sessions keep. The port `Hosts`.

Theory of operation. A spare is a host that has said hello and has no run; so a run begins without the start of a
process. `reserve` gives a session the spare, or the host that is starting, or a new one, and returns at once; `run`
waits for the host if necessary. Then the next spare starts, a moment later, one at a time and at low priority, so that
it does not compete with the run that has just begun.

Ownership of the tree. Until a run adopts it, the tree of a host is the pool's: only its ledger records it, and the
pool ends it. From then on a run or a session ends it and receives its reports, and passes them on here (`heard`). A
host whose run has ended by itself may be kept: after `keep` its session has it. To stay within KEPT_MAX the pool has
the session end the longest unused. One that is cut off is ended by its session, too, which records the reason.

A host that ends before its hello, or reports that its agent cannot be loaded, makes its agent *broken*: no spare is
started for 1, 2, 4 … 60 s. A run of a broken agent still tries once, and fails with the reason. A spare that dies is
replaced after the same times. The log has the reason once, until it is another one, or the agent is loaded anew.

An agent whose files of variables cannot be read is broken likewise: they are read again after the same times.

Threads. `_lock` guards the tables and the state of every host. It is held only briefly: nothing waits under it, and no
code of a run is called. `_reading` is held, outside `_lock`, while files are read, by threads that may block.
Everything else belongs to one thread, which serves all channels.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from loguru import logger

from actors.errors import Invalid
from actors.messages import ProcessNews
from actors.model import How
from actors.plugin.execution import AgentDone
from actors.ports import SpawnSpec
from supervisor.containment.reactor import Reactor
from supervisor.hosts.around import Around, Terms
from supervisor.hosts.host import Host, HostState
from supervisor.hosts.run import Finish, HostRun
from supervisor.hosts.status import AgentStatus, status_of

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.hosts import ToolOffer
    from actors.plugin.turn_core import TurnCore
    from actors.ports import Clock, Ids, Processes, Settings
    from supervisor.agent import Agent
    from supervisor.containment.reactor import Alarm

RETRY_MAX_S: Final = 60.0
"""The longest time between two tries to start a spare; a spare that lived for longer has not failed."""

KEPT_MAX: Final = 64
"""How many hosts the sessions may keep together."""

TOO_MANY: Final = "the sessions keep more hosts than they may together, and this was the longest unused"

SPARE_NICE: Final = 10
"""How much nicer than the daemon a spare is until it has said hello: its start competes with runs."""

REFILL_S: Final = 0.1
"""How long after a host was reserved the next spare starts: not beside the beginning of the run, or an early Stop."""

RESERVED_S: Final = 600.0
"""How long a host that was lost while reserved is remembered, so that its run can fail with the reason."""

STOP_S: Final = 2.0
SHUT_DOWN: Final = "the supervisor is shutting down"


class _Agent:
    """The spares of one agent. Guarded by the pool's lock."""

    def __init__(self, spec: Agent) -> None:
        self.spec = spec
        self.env: dict[str, str] | None = None
        """The variables added to the environment of its hosts; None: not read yet, or unreadable."""
        self.reading = False
        self.spares: list[Host] = []
        self.failures = 0
        self.broken = self.output = ""
        self.printed = ""
        self.failure = ""
        self.failed_at = 0.0
        self.retry_at = 0.0
        self.retry: Alarm | None = None

    def failed(self, now: float, why: str) -> None:
        """Wait before the next spare, twice as long as the last time."""
        self.failure, self.failed_at = why, now
        self.retry_at = now + min(RETRY_MAX_S, 2.0 ** min(self.failures, 6))
        self.failures += 1

    def mend(self) -> None:
        """Try the next spare at once."""
        self.failures, self.retry_at = 0, 0.0
        self.broken = self.output = ""


class HostPool:
    """All hosts of one supervisor. Implements `actors.hosts.Hosts`; every method may be called from any thread.

    Args:
        processes: spawns their trees.
        clock: for back-off, and the ages of hosts.
        ids: for the ids of their trees.
        specs: the agents that run in hosts, by name.
        settings: graces, deadlines, credit and sizes.
        elsewhere: runs a function soon on a thread that may be blocked: `Executor.call`.
        kept_max: how many hosts sessions may keep together.
    """

    def __init__(
        self,
        processes: Processes,
        clock: Clock,
        ids: Ids,
        specs: Mapping[str, Agent],
        settings: Settings,
        *,
        elsewhere: Callable[[Callable[[], None]], None],
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._elsewhere = elsewhere
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._agents = {name: _Agent(spec) for name, spec in specs.items()}
        self._hosts: dict[str, Host] = {}
        # Ordered: the longest unused first.
        self._kept: dict[str, Host] = {}
        # Reserved ids without a host, each with the reason.
        self._unmade: dict[str, str] = {}
        self._draining = self._closed = False
        self._reactor = Reactor("cm-hosts", clock)

    def start(self) -> None:
        """Read the agents' files of variables, and start the thread and the first spares; once."""
        for agent in self._agents.values():
            self._read_environment(agent)
        self._reactor.start()
        for agent in self._agents.values():
            self._reactor.post(lambda agent=agent: self._refill(agent))  # type: ignore[misc]  # a default binds it

    def add(self, specs: Mapping[str, Agent]) -> None:
        """Add what runs in hosts from now on, and start its spares; names that are known stay as they are.

        Its files of variables are read: it may block.
        """
        entries = {name: _Agent(spec) for name, spec in specs.items() if name not in self._agents}
        for entry in entries.values():
            self._read_environment(entry)
        with self._lock:
            # A table of its own: others may be going through the one that there is.
            self._agents = {**self._agents, **entries}
        for entry in entries.values():
            self._refill_soon(entry)

    # ── The port ──────────────────────────────────────────────────────────────────────────────────

    def reserve(self, agent: str, session: str, kept: str | None = None) -> str:
        """See `actors.hosts.Hosts.reserve`."""
        with self._lock:
            entry = self._agents.get(agent)
            if entry is None or self._closed:
                why = SHUT_DOWN if self._closed else f"there is no agent {agent!r} that runs in hosts"
                return self._unmade_host(why)
            host = self._take_kept(kept, session)
            spent = host is None
            host = host or self._take_spare(entry) or self._new(entry, HostState.RESERVED)
            if host is None:
                return self._unmade_host(entry.broken)
            host.state, host.session = HostState.RESERVED, session
            host.awaited_at = self._clock.monotonic()
            self._hasten(host)
        if spent:
            self._reactor.post(lambda: self._refill_later(entry))
        return host.process_id

    def _take_kept(self, process_id: str | None, session: str) -> Host | None:
        host = self._hosts.get(process_id) if process_id is not None else None
        if host is None or host.outdated or host.lost or host.session != session:
            return None
        if host.hung_up():
            # It has died, and the thread of its channel has not noticed yet.
            return None
        self._kept.pop(host.process_id, None)
        return host if host.state in (HostState.KEPT, HostState.RUNNING) else None

    def _take_spare(self, entry: _Agent) -> Host | None:
        # Prefer one that has said hello.
        host = min(entry.spares, key=lambda one: not one.ready, default=None)
        if host is not None:
            entry.spares.remove(host)
            if host.ready:
                entry.failures = 0
        return host

    def _unmade_host(self, why: str) -> str:
        process_id = self._ids.new("proc")
        self._unmade[process_id] = why
        return process_id

    def code_changed_at(self, process_id: str) -> float | None:
        """See `actors.hosts.Hosts.code_changed_at`."""
        with self._lock:
            host = self._hosts.get(process_id)
            return None if host is None or host.hello is None else host.hello.code_changed_at

    def release(self, process_id: str) -> None:
        """See `actors.hosts.Hosts.release`."""
        tell = None
        with self._lock:
            self._unmade.pop(process_id, None)
            host = self._hosts.get(process_id)
            if host is None or host.state is not HostState.RESERVED:
                return
            entry = self._agents[host.spec.name]
            if host.had_run:
                self._keep(host)
                tell = host.tell_unwanted if host.unwanted else None
            elif host.outdated or host.lost or self._draining:
                self._end(host)
            else:
                host.state, host.session = HostState.SPARE if host.ready else HostState.STARTING, None
                entry.spares.insert(0, host)
                while len(entry.spares) > entry.spec.spares:
                    self._end(entry.spares.pop())
        if tell is not None:
            tell(host.unwanted)

    def run(self, process_id: str, turn: TurnCore, tools: Sequence[ToolOffer], finish: Finish) -> None:
        """See `actors.hosts.Hosts.run`."""
        with self._lock:
            host = self._hosts.get(process_id)
            why = self._unmade.pop(process_id, "there is no such host")
            if host is not None:
                host.state, host.session, host.had_run = HostState.RUNNING, turn.address.session, True
                if host.ended:
                    self._forget(host)
        if host is None:
            finish(AgentDone(How.RAISED, None, f"the host of the run could not be started: {why}"))
            return
        run = HostRun(turn, tools, finish, self._terms(host.spec), self._around(host), host.known_thread)
        if not self._reactor.post(lambda: host.begin(run)):
            run.lost(SHUT_DOWN)

    def _terms(self, spec: Agent) -> Terms:
        settings = self._settings
        return Terms(
            agent=spec.name,
            grace_s=settings.grace_s if spec.grace_s is None else spec.grace_s,
            deadline_s=spec.budget.over(settings.budget).deadline_s,
            call_deadline_s=settings.call_deadline_s,
            credit_events=settings.credit_events,
            credit_bytes=settings.credit_bytes,
            content_max_bytes=settings.content_max_bytes,
        )

    def _around(self, host: Host) -> Around:
        return Around(
            post=self._reactor.post,
            elsewhere=self._elsewhere,
            later=self._reactor.later,
            broke_protocol=host.broke_protocol,
            over=host.run_over,
        )

    def keep(self, process_id: str, session: str, unwanted: Callable[[str], None]) -> None:
        """See `actors.hosts.Hosts.keep`."""
        with self._lock:
            host = self._hosts.get(process_id)
            if host is None:
                return
            host.tell_unwanted = unwanted
            # Ask again: the session may not have been in memory when it was asked first. Or the host was cut off after
            # the end of its run.
            told = [host] if host.unwanted else []
            if host.state is HostState.RUNNING:
                host.session = session
                self._keep(host)
                told += self._take_surplus()
        for one in told:
            assert one.tell_unwanted is not None, "its session has said that it keeps it"
            one.tell_unwanted(one.unwanted)
        self._reactor.post(host.idle)

    def _take_surplus(self) -> list[Host]:
        """Take away the hosts that are kept beyond the limit, the longest unused first. Under the lock."""
        surplus = list(self._kept.values())[: max(0, len(self._kept) - self._kept_max)]
        for host in surplus:
            del self._kept[host.process_id]
            host.state, host.unwanted = HostState.ENDING, TOO_MANY
        return surplus

    def _keep(self, host: Host) -> None:
        """A session keeps it, or is to end it. Under the lock."""
        if host.unwanted:
            host.state = HostState.ENDING
        else:
            host.state = HostState.KEPT
            self._kept[host.process_id] = host

    def heard(self, process_id: str, news: ProcessNews) -> None:
        """See `actors.hosts.Hosts.heard`."""
        host = self._hosts.get(process_id)
        if host is not None:
            host.tell(news)

    # ── For people ────────────────────────────────────────────────────────────────────────────────

    def reload(self, names: Iterable[str] | None = None) -> None:
        """Replace the spares of these agents, or of all; a host that a session keeps goes at its next run.

        Their files of variables are read again: it may block. Unknown names are ignored. Runs go on in the hosts that
        they have.
        """
        named = self._agents if names is None else self._agents.keys() & set(names)
        entries = [self._agents[name] for name in named]
        for entry in entries:
            with self._lock:
                entry.mend()
            self._read_environment(entry)
        with self._lock:
            for entry in entries:
                for host in self._hosts.values():
                    if host.spec.name == entry.spec.name:
                        host.outdated = True
                spares, entry.spares = entry.spares, []
                for host in spares:
                    self._end(host)
        for entry in entries:
            self._refill_soon(entry)

    def status(self) -> list[AgentStatus]:
        """Return the status of each agent, and of its hosts that have not ended."""
        now = self._clock.monotonic()
        with self._lock:
            hosts = [host for host in self._hosts.values() if not host.ended]
            return [
                AgentStatus(
                    name=name,
                    spares=entry.spec.spares,
                    hosts=tuple(status_of(host, now) for host in hosts if host.spec.name == name),
                    broken=entry.broken,
                    output=entry.output,
                    printed=entry.printed,
                    failure=entry.failure,
                    failed_s_ago=now - entry.failed_at if entry.failure else None,
                    retry_in_s=max(0.0, entry.retry_at - now) if entry.retry is not None else None,
                )
                for name, entry in self._agents.items()
            ]

    # ── The end ───────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """End the spares, and start none any more. Runs that begin now start a host."""
        with self._lock:
            self._draining = True
            for entry in self._agents.values():
                spares, entry.spares = entry.spares, []
                for host in spares:
                    self._end(host)

    def close(self) -> bool:
        """End the spares, fail the remaining runs, and end the thread. Their trees end with all others.

        Returns True if the thread has ended.
        """
        self.drain()
        with self._lock:
            self._closed = True
        self._reactor.post(self._close_all)
        return self._reactor.stop(STOP_S)

    def _close_all(self) -> None:
        for host in list(self._hosts.values()):
            host.close(SHUT_DOWN)

    # ── Hosts that begin ──────────────────────────────────────────────────────────────────────────

    def _refill_soon(self, entry: _Agent) -> None:
        self._reactor.post(lambda: self._refill(entry))

    def _refill_later(self, entry: _Agent) -> None:
        self._reactor.later(REFILL_S, lambda: self._refill(entry))

    def _refill(self, entry: _Agent) -> None:
        """Start a spare if one is missing, none is starting, and it is not too early. Thread of all channels."""
        with self._lock:
            if entry.retry is not None:
                entry.retry.cancel()
                entry.retry = None
            starting = any(not host.ready for host in entry.spares)
            if self._draining or starting or entry.reading or len(entry.spares) >= entry.spec.spares:
                return
            wait_s = entry.retry_at - self._clock.monotonic()
            if wait_s > 0:
                entry.retry = self._reactor.later(wait_s, lambda: self._refill(entry))
                return
            host = self._new(entry, HostState.STARTING)
            if host is not None:
                entry.spares.append(host)
                return
        self._refill_soon(entry)

    def _read_environment(self, entry: _Agent) -> None:
        """Read an agent's files of variables. It blocks: not under the lock, nor on the thread of all channels."""
        with self._reading:
            # One at a time, so that the last read counts.
            try:
                env, why = entry.spec.environment(), ""
            except Invalid as error:
                env, why = None, f"{error.message}: {error.got}"
            with self._lock:
                entry.env, entry.reading = env, False
                if why:
                    if why != entry.broken:
                        logger.error("{}", why)
                    entry.broken, entry.output = why, ""
                    entry.failed(self._clock.monotonic(), why)

    def _read_again(self, entry: _Agent) -> None:
        self._read_environment(entry)
        self._refill_soon(entry)

    def _new(self, entry: _Agent, state: HostState) -> Host | None:
        """Start a host; None if there is no socket, or no environment for it. Under the lock; it does not wait."""
        spec = entry.spec
        if entry.env is None:
            if not entry.reading:
                entry.reading = True
                self._elsewhere(lambda: self._read_again(entry))
            return None
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            entry.broken = f"{spec.name} gets no socket for its host: {error.strerror}"
            entry.failed(self._clock.monotonic(), entry.broken)
            return None
        with theirs:
            process_id = self._ids.new("proc")
            host = Host(self._reactor, self, spec, process_id, ours, state, self._clock.monotonic())
            self._hosts[process_id] = host
            self._reactor.post(host.open)
            host.nice = SPARE_NICE if state is HostState.STARTING else 0
            command = SpawnSpec(
                spec.argv,
                f"host {spec.name}",
                spec.cwd,
                dict(entry.env),
                channel=theirs.fileno(),
                nice=host.nice,
                user=spec.user,
                limits=dict(spec.limits),
            )
            # The host receives the reports of its tree, as an actor would.
            self._processes.spawn(process_id, command, cast("ActorRef[Any]", host))
        return host

    def _hasten(self, host: Host) -> None:
        """Give a host the priority of the daemon: a run waits for it, or it is ready. Under the lock."""
        if host.nice:
            host.nice = 0
            self._processes.set_nice(host.process_id, 0)

    # ── Hosts that end ────────────────────────────────────────────────────────────────────────────

    def _end(self, host: Host) -> None:
        """End a host that no run and no session has, and forget its tree once it has ended. Under the lock."""
        host.state = HostState.ENDING
        self._processes.kill(host.process_id, 0.0)
        # No run and no session has adopted it, so no row names it.
        self._processes.forget(host.process_id)
        if host.ended:
            self._forget(host)

    def _forget(self, host: Host) -> None:
        """Forget a host of which no process is left. Under the lock."""
        self._hosts.pop(host.process_id, None)
        self._kept.pop(host.process_id, None)

    # ── Reports of the hosts: see `host.Keeper`. Thread of all channels ───────────────────────────

    def host_ready(self, host: Host) -> None:
        """It has said hello."""
        with self._lock:
            entry = self._agents[host.spec.name]
            entry.broken = entry.output = ""
            host.ready, host.ready_at = True, self._clock.monotonic()
            self._hasten(host)
            if host.state is HostState.STARTING:
                host.state = HostState.SPARE
        self._refill_soon(entry)

    def host_unready(self, host: Host, why: str) -> float:
        """It has not said hello so far. What a spare took at its low priority does not count once a run waits for it.

        Returns the seconds that it still has. If there are none it is lost from here on, and is given to no run.
        """
        with self._lock:
            left_s = max(0.0, host.awaited_at + host.spec.start_s - self._clock.monotonic())
            if not left_s:
                self._lost(host, why)
            return left_s

    def host_cut_off(self, host: Host, why: str) -> None:
        """Its channel is closed."""
        tell = None
        with self._lock:
            self._lost(host, why)
            if host.state in (HostState.STARTING, HostState.SPARE):
                self._end(host)
            elif host.had_run and not host.unwanted:
                # A run ends it, or the session that keeps it now, or may keep it in a moment.
                host.unwanted = why
                if host.state is HostState.KEPT:
                    del self._kept[host.process_id]
                    host.state, tell = HostState.ENDING, host.tell_unwanted
        if tell is not None:
            tell(why)

    def host_gone(self, host: Host, why: str) -> None:
        """Its process has ended."""
        with self._lock:
            self._lost(host, why)
            entry = self._agents[host.spec.name]
            if not host.ready and entry.broken == host.lost:
                entry.output = host.output
            if host.had_run:
                entry.printed = host.output
            if host.state in (HostState.STARTING, HostState.SPARE):
                # The rest of its tree ends too.
                self._end(host)

    def _lost(self, host: Host, why: str) -> None:
        """Record why it was lost, once; delay the next spare if it was one, or never said hello."""
        if host.lost:
            return
        host.lost = why
        entry, now = self._agents[host.spec.name], self._clock.monotonic()
        if host in entry.spares:
            entry.spares.remove(host)
        if not host.ready:
            if host.state is not HostState.ENDING and not host.outdated and not host.cancelled:
                if why != entry.broken:
                    # A run that has it fails with the same words.
                    has_run = host.state in (HostState.RESERVED, HostState.RUNNING)
                    logger.log("INFO" if has_run else "ERROR", "{}", why)
                entry.broken, entry.output = why, host.output
                entry.failed(now, why)
        elif host.state is HostState.SPARE:
            logger.warning("{}", why)
            if now - host.ready_at >= RETRY_MAX_S:
                entry.failures = 0
            entry.failed(now, why)
        if host.state is HostState.RESERVED:
            # Its run may still come; or it was closed before it began, and only its session gets the tree's reports.
            self._reactor.later(RESERVED_S, lambda: self._drop(host))
        self._refill_soon(entry)

    def _drop(self, host: Host) -> None:
        """Forget a host that was lost while it was reserved, and that no run has asked for since."""
        with self._lock:
            if host.state is HostState.RESERVED:
                self._forget(host)

    def host_ended(self, host: Host) -> None:
        """No process of its tree is left."""
        with self._lock:
            host.ended = True
            # A reserved one stays known: its run adopts it, or releases it.
            if host.state is not HostState.RESERVED:
                self._forget(host)
