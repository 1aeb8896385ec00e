"""The agents of the daemon, over HTTP: where each runs, the state of its hosts, and their reload."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Router, get, post
from litestar.params import JSONBody

from actors.errors import Invalid, NotFound
from actors.plugin.registration import Unloaded
from supervisor.agent import Agent
from supervisor.config import AgentFunction
from supervisor.hosts.host import HostState
from supervisor.hosts.status import AgentStatus, HostStatus
from supervisor.http.routing import TheService, exact, refusals
from supervisor.states import AgentPlace, AgentState
from supervisor.supervisor import Supervisor
from supervisor.wire import AgentEntry, AgentHost, AgentPage, McpState, ReloadBody


@get("/v1/agents", summary="The agents, and the state of their hosts", responses=refusals())
async def list_agents(service: TheService) -> AgentPage:
    """List the agents by name: where each runs, its state, its hosts, and its last failure."""
    return AgentPage(agent_entries(service.supervisor))


@post("/v1/agents/reload", summary="Load agents anew", status_code=200, responses=refusals(404, 413))
async def reload_agents(
    service: TheService, request: Request[Any, Any, Any], data: JSONBody[ReloadBody | None] = None
) -> AgentPage:
    """Replace the spare hosts of the named agent, or of all that run in hosts.

    Runs go on in the hosts that they have. The answer has those agents, and does not wait for the new hosts.
    """
    body = ReloadBody() if data is None else await exact(request, data)
    supervisor = service.supervisor
    if body.agent is not None:
        _check_reloadable(body.agent, supervisor.agents())
    # It reads files.
    await service.read(supervisor.reload_hosts, None if body.agent is None else [body.agent])
    entries = agent_entries(supervisor)
    return AgentPage([one for one in entries if one.where is AgentPlace.HOST and body.agent in (None, one.name)])


def _check_reloadable(name: str, agents: dict[str, Agent | AgentFunction | Unloaded]) -> None:
    if name not in agents:
        raise NotFound(
            "there is no such agent",
            expected=" | ".join(sorted(agents)),
            got=name,
            remedy="choose one of these: GET /v1/agents",
        )
    if not isinstance(agents[name], Agent):
        raise Invalid(
            f"the agent {name!r} runs in the daemon's own process, which loads it once",
            expected="an agent that runs in hosts",
            got=name,
            remedy="restart the daemon; one that could not be loaded is tried again at SIGHUP",
        )


def agent_entries(supervisor: Supervisor) -> list[AgentEntry]:
    """Return all agents by name. It does not wait."""
    now = time.time()  # noqa: TID251  # as the times in the store
    hosted = {status.name: status for status in supervisor.hosts()}
    default = supervisor.config.agent
    entries = []
    for name, agent in sorted(supervisor.agents().items()):
        if isinstance(agent, Agent):
            entries.append(_of_hosts(agent, hosted[name], now, default=name == default))
        else:
            entries.append(_inside(name, agent, default=name == default))
    return entries


def _of_hosts(agent: Agent, status: AgentStatus, now: float, *, default: bool) -> AgentEntry:
    return AgentEntry(
        name=agent.name,
        default=default,
        where=AgentPlace.HOST,
        runs=agent.spelled,
        state=_state(status),
        spares=status.spares,
        keep=agent.keep or "run",
        hosts=[_host(one, now) for one in status.hosts],
        failure=status.failure,
        failed_at=None if status.failed_s_ago is None else now - status.failed_s_ago,
        output=status.output,
        retry_in_s=status.retry_in_s,
        mcp={name: server.spelled for name, server in agent.servers.items()},
    )


def _inside(name: str, agent: AgentFunction | Unloaded, *, default: bool) -> AgentEntry:
    if isinstance(agent, Unloaded):
        state, runs, failure = AgentState.BROKEN, agent.spelled, agent.why
    else:
        state, failure = AgentState.READY, ""
        runs = f"{getattr(agent, '__module__', '?')}:{getattr(agent, '__qualname__', type(agent).__qualname__)}"
    return AgentEntry(name=name, default=default, where=AgentPlace.DAEMON, runs=runs, state=state, failure=failure)


def _state(status: AgentStatus) -> AgentState:
    if status.broken:
        return AgentState.BROKEN
    if status.ready:
        return AgentState.READY
    starting = status.spares or any(host.state is not HostState.ENDING for host in status.hosts)
    return AgentState.STARTING if starting else AgentState.COLD


def _host(host: HostStatus, now: float) -> AgentHost:
    return AgentHost(
        process_id=host.process_id,
        state=str(host.state),
        session=host.session,
        runtime=host.runtime,
        started_at=now - host.age_s,
        since=now - host.state_s,
        refused=host.refused,
        ignored=host.ignored,
        mcp=[McpState(one.name, one.state, one.tools, one.why) for one in host.mcp],
    )


AGENTS = Router("/", route_handlers=[list_agents, reload_agents], tags=["agents"])
