"""`agents`: where each agent of a daemon runs, and the state of its hosts; and `agents reload`."""

from __future__ import annotations

import time
from typing import Final

from actors.text import one_line
from supervisor.console.client.api import Api, need_api
from supervisor.console.client.endpoint import Endpoint
from supervisor.console.exits import ExitCode
from supervisor.console.render.output import console, grid, note, print_json, say
from supervisor.console.render.progress import Progress
from supervisor.console.render.words import ERROR_CHARS, age, head
from supervisor.states import AgentPlace, AgentState
from supervisor.wire import AgentEntry, AgentHost, AgentPage, McpState, ReloadBody

LOOK_S: Final = 0.2
"""How often it is looked whether a host is ready."""
SERVER_MAX: Final = 60
HANDED_OVER: Final = "handed over"
_STYLE: Final = {AgentState.BROKEN: "bold red", AgentState.STARTING: "yellow"}
_SPARE: Final = "spare"
"""The state of a host that has said hello and has no run."""


def show_agents(endpoint: Endpoint, *, as_json: bool) -> None:
    """Print the agents of the daemon, each with its hosts and its last failure.

    Raises:
        NoDaemon: none answers.
    """
    page = need_api(endpoint).get("/v1/agents", AgentPage)
    if as_json:
        print_json(page)
        return
    from rich.text import Text

    out = console()
    table = grid("agent", "state", "since", "session", "what runs")
    for entry in page.agents:
        runs = f"{entry.runs}, in the daemon's own process" if entry.where is AgentPlace.DAEMON else entry.runs
        name = f"{head(entry.name, 40)}{' (runs messages)' * entry.default}"
        table.add_row(
            Text(name, style="bold"), Text(entry.state, style=_STYLE.get(entry.state, "")), "", "", head(runs)
        )
        for host in sorted(entry.hosts, key=lambda one: one.started_at):
            table.add_row("  host", host.state, _ago(host.since), host.session or "", _host(host))
            for server in host.mcp:
                style = "bold red" if server.why else ""
                state = Text(one_line(server.state), style=style)
                table.add_row(f"    mcp {one_line(server.name)}", state, "", "", _server(server, entry))
    out.print(table)
    for entry in page.agents:
        if entry.failure:
            _say_failure(out, entry)


def _host(host: AgentHost) -> str:
    late = f", {host.refused} late frames refused" if host.refused else ""
    return one_line(f"{host.runtime or 'has not said hello'}, {host.process_id}{late}")


def _server(server: McpState, entry: AgentEntry) -> str:
    tools = "" if server.tools is None else f", {server.tools} tool{'s' * (server.tools != 1)}"
    why = f": {head(server.why, SERVER_MAX)}" if server.why else ""
    starts = ", which the program starts" if server.state == HANDED_OVER else ""
    return f"{head(entry.mcp.get(server.name, ''), SERVER_MAX)}{starts}{tools}{why}"


def _say_failure(out: object, entry: AgentEntry) -> None:
    broken = entry.state is AgentState.BROKEN
    when = f", {_ago(entry.failed_at)} ago" if entry.failed_at is not None else ""
    again = f"; it is tried again in {entry.retry_in_s:.0f} s" if broken and entry.retry_in_s is not None else ""
    mended = "" if broken else " (mended since)"
    text = f"{entry.name}: last failure{when}{mended}: {head(entry.failure, ERROR_CHARS)}{again}"
    say(out, text, "bold red" if broken else "dim")


def reload_agents(endpoint: Endpoint, name: str | None, wait_s: float, *, as_json: bool) -> ExitCode:
    """Load agents anew: one, or all that run in hosts; and wait until the new hosts are ready.

    Args:
        endpoint: where the daemon is.
        name: of the agent; None: all.
        wait_s: how long it is waited for them, in seconds; 0: not at all.
        as_json: print an `AgentPage`.

    Returns: FAILED if one is broken then, RUN if one is not ready in time.

    Raises:
        NoDaemon: none answers.
        NotFound, Invalid: there is no such agent, or it does not run in hosts.
    """
    api = need_api(endpoint)
    agents = api.post("/v1/agents/reload", AgentPage, ReloadBody(agent=name)).agents
    if wait_s:
        agents = _until_ready(api, {one.name for one in agents}, wait_s)
    if as_json:
        print_json(AgentPage(agents))
    else:
        _say_reloaded(agents, waited=wait_s > 0)
    if any(one.state is AgentState.BROKEN for one in agents):
        return ExitCode.FAILED
    return ExitCode.RUN if wait_s and not all(map(_loaded, agents)) else ExitCode.OK


def _until_ready(api: Api, names: set[str], wait_s: float) -> list[AgentEntry]:
    deadline = time.monotonic() + wait_s
    with Progress() as progress:
        while True:
            agents = [one for one in api.get("/v1/agents", AgentPage).agents if one.name in names]
            due = [one.name for one in agents if not _loaded(one)]
            if not due or time.monotonic() >= deadline:
                return agents
            progress.show(f"waiting for a host of {', '.join(due)}")
            time.sleep(LOOK_S)


def _loaded(entry: AgentEntry) -> bool:
    """True if it is known how the reload ended. Before it, a spare of the old code was ended."""
    return entry.state is AgentState.BROKEN or not entry.spares or any(host.state == _SPARE for host in entry.hosts)


def _say_reloaded(agents: list[AgentEntry], *, waited: bool) -> None:
    if not agents:
        note("no agent of the daemon runs in hosts")
    out = console()
    for one in agents:
        if one.state is AgentState.BROKEN:
            say(out, f"{one.name}: broken: {head(one.failure, ERROR_CHARS)}", "bold red")
            for line in one.output.splitlines():
                say(out, f"  {line}", "dim")
        elif not one.spares:
            say(out, f"{one.name}: loaded anew at its next run: it has no spares")
        elif _loaded(one):
            say(out, f"{one.name}: ready")
        else:
            say(out, f"{one.name}: {'not ready in time' if waited else 'loading'}", "yellow")


def _ago(at: float | None) -> str:
    return age(None if at is None else max(0.0, time.time() - at))  # noqa: TID251  # as the daemon's times
