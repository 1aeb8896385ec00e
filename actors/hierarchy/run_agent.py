"""RunAgent: starts the agent of a run, in this process or in its host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from actors.gate.cell import Cell
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.hierarchy.run_host import RunHost
from actors.hierarchy.spawns import Spawns
from actors.kernel.actor import Actor
from actors.model import Address, JsonObject
from actors.plugin import execution
from actors.plugin.registration import Agent, Plugins, Tool, is_async
from actors.plugin.turn import AsyncTurn, Turn
from actors.plugin.turn_core import TurnCore
from actors.ports import HostedAgent, Isolation, Ports, ToolOffer
from actors.thread import Thread


@dataclass(frozen=True, slots=True)
class RunStart:
    """What a run begins with.

    `agent`: its function, or what runs in a host. `thread`: a copy that the run may change. `saved`: what runs of the
    agent have saved. `inputs`: ids of the run's own messages. `deadline_s`: how long it may take, in seconds, without
    the time in which its calls wait; None for ever. `host`: the id of the tree in which the agent runs, and its cell;
    None: the agent does not run in a host.
    """

    agent: Agent
    agent_name: str
    token: CancelToken
    credit: Credit
    thread: Thread
    saved: JsonObject
    inputs: tuple[str, ...]
    deadline_s: float | None
    host: tuple[str, Cell[None] | None] | None = None


class RunAgent:
    """The start of one run's agent. Used in a turn of the run's actor only.

    Args:
        owner: the run's actor.
        ports: what it needs from outside.
        plugins: the tools.
        address: of the run.
        host: the host of the run, if its agent runs in one.
        spawns: makes what spawns processes for the agent.
    """

    def __init__(
        self, owner: Actor, ports: Ports, plugins: Plugins, address: Address, host: RunHost, spawns: Spawns
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._plugins = plugins
        self._address = address
        self._host = host
        self._spawns = spawns

    def begin(self, start: RunStart) -> None:
        """Start it. The tree of its host, if it has one, is the run's already."""
        agent, executor, run = start.agent, self._ports.executor, self._address.run
        tools = self._tools_for(agent)
        # Before the turn adds its waker: so the agent's task is cancelled first, and after it the other tasks that wait
        # in a method of the turn.
        start.token.add_waker(lambda: executor.cancel(run))
        core = TurnCore(
            self._owner.actor_ref.tell,
            self._address,
            start.token,
            start.credit,
            start.thread,
            start.inputs,
            lambda: self._ports.ids.new("call"),
            lambda name, arguments: execution.problem(tools, name, arguments),
            self._ports.settings.content_max_bytes,
            lambda name, arguments: execution.withheld(tools, name, arguments),
            self._spawns.spawn,
            wall=self._ports.clock.wall,
            saved=start.saved,
            asks=lambda name: _asks(agent, tools, name),
            tools=lambda: [tool.offer for tool in tools.values()],
            attachment=lambda name, reply: self._ports.store.attachment(self._address.session, name, reply),
        )
        if isinstance(agent, HostedAgent):
            self._begin_in_host(start, core, tools)
        else:
            self._begin_here(agent, start, core)

    def _tools_for(self, agent: Agent) -> Mapping[str, Tool]:
        tools = self._plugins.tools
        if not isinstance(agent, HostedAgent) or agent.tools is None:
            return tools
        return {name: tools[name] for name in agent.tools if name in tools}

    def _begin_here(self, agent: Callable[..., Any], start: RunStart, core: TurnCore) -> None:
        executor, run = self._ports.executor, self._address.run
        as_task = is_async(agent)
        turn = AsyncTurn(core) if as_task else Turn(core)
        body = execution.agent_body(
            agent,
            turn,
            self._address,
            self._ports.settings.content_max_bytes,
            as_task=as_task,
            token=start.token,
            over=core.spawn.over,
        )
        isolation = Isolation.TASK if as_task else Isolation.THREAD
        body = self._ports.strays.within(self._address, isolation, start.token, body)
        self._ports.strays.adopt(self._address, self._owner.actor_ref)
        name, ref, session = f"agent {start.agent_name}", self._owner.actor_ref, self._address.session
        executor.start(run, name, isolation, body, ref, start.token, None, session)

    def _begin_in_host(self, start: RunStart, core: TurnCore, tools: Mapping[str, Tool]) -> None:
        """Send the run to its host. The host's tree is adopted first, so that its end is reported to this run."""
        hosts, run, content_max = self._host.hosts, self._address.run, self._ports.settings.content_max_bytes
        assert start.host is not None, "its host was reserved"
        host, cell = start.host
        self._host.begin(host, cell)
        offers = [ToolOffer(name, tool.description, tool.schema) for name, tool in tools.items()]
        body = execution.hosted_body(lambda finish: hosts.run(host, core, offers, finish), content_max)
        # What it starts itself is in its host; but it calls tools that run here.
        body = self._ports.strays.within(self._address, Isolation.HOST, start.token, body)
        name, ref, session = f"agent {start.agent_name}", self._owner.actor_ref, self._address.session
        self._ports.executor.start(run, name, Isolation.HOST, body, ref, start.token, None, session)
        # Behind it: nothing of the run is here before its first call.
        self._ports.strays.adopt(self._address, self._owner.actor_ref)


def _asks(agent: Agent, tools: Mapping[str, Tool], name: str) -> bool:
    """Return True if a call of this name by an agent needs a person's approval."""
    tool = tools.get(name)
    return (tool is not None and tool.approve) or (isinstance(agent, HostedAgent) and name in agent.ask)
