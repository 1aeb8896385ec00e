"""AgentStatus: an agent that runs in hosts, and its hosts, as shown to people."""

from __future__ import annotations

from msgspec import Struct

from supervisor.hosts.frames import McpServerNow
from supervisor.hosts.host import Host, HostState


class HostStatus(Struct, frozen=True):
    """One host. Times in seconds.

    session: the session that has a run in it, or keeps it.
    runtime: the name it gives its runtime; empty until its hello.
    age_s: since its start.
    state_s: since it entered its state.
    refused: frames that came for a run that was over.
    ignored: notifications that this daemon does not know.
    mcp: the MCP servers that it has begun to use.
    """

    agent: str
    process_id: str
    state: HostState
    session: str | None
    runtime: str
    age_s: float
    state_s: float
    refused: int
    ignored: int
    mcp: tuple[McpServerNow, ...] = ()


class AgentStatus(Struct, frozen=True):
    """An agent that runs in hosts.

    spares: how many are wanted.
    broken: why no host of it could be started the last time; empty if one could, or none was tried.
    output: the tail of that host's output.
    printed: the tail of the output of the last host that had a run and has ended; at most 64 KiB.
    failure: the last failure of a start, or of a spare, even if it is mended since; empty: there was none.
    failed_s_ago: seconds since that.
    retry_in_s: seconds until the next spare is tried; None: no retry is pending.
    """

    name: str
    spares: int
    hosts: tuple[HostStatus, ...]
    broken: str = ""
    output: str = ""
    printed: str = ""
    failure: str = ""
    failed_s_ago: float | None = None
    retry_in_s: float | None = None

    @property
    def ready(self) -> bool:
        """True if a host of it has said hello and is not ending, also if a run or session has it."""
        return any(host.runtime and host.state is not HostState.ENDING for host in self.hosts)


def status_of(host: Host, now: float) -> HostStatus:
    """Return the status of a host; `now` by the monotonic clock. Under the pool's lock."""
    return HostStatus(
        agent=host.spec.name,
        process_id=host.process_id,
        state=host.state,
        session=host.session,
        runtime=host.hello.runtime if host.hello is not None else "",
        age_s=now - host.started_at,
        state_s=now - host.state_at,
        refused=host.refused,
        ignored=host.ignored,
        mcp=tuple(host.mcp.values()),
    )
