"""AgentStatus: an agent that runs in hosts, and its hosts, as people are told of them."""

from __future__ import annotations

from msgspec import Struct

from supervisor.hosts.host import Host, HostState


class HostStatus(Struct, frozen=True):
    """One host. Times in seconds.

    session: that it has a run of, or that keeps it.
    runtime: what it says that it runs with; empty until it has said hello.
    age_s: since its start.
    state_s: since it has its state.
    refused: frames that came for a run that was over.
    ignored: notifications that this daemon does not know.
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


class AgentStatus(Struct, frozen=True):
    """An agent that runs in hosts.

    spares: how many are wanted.
    broken: why no host of it could be started the last time; empty if one could, or none was tried.
    output: the end of what that host had printed.
    printed: the end of what the last host had printed that was told of a run and has ended; at most 64 KiB.
    failure: the last failure of a start, or of a spare, also if it is mended since; empty: there was none.
    failed_s_ago: seconds since that.
    retry_in_s: seconds until the next spare is tried; None: none is waited for.
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
        """True if a host of it has said hello, whoever has it."""
        return any(host.runtime and host.state is not HostState.ENDING for host in self.hosts)


def status_of(host: Host, now: float) -> HostStatus:
    """Return what is told of a host; `now` by the clock of durations. Under the pool's lock."""
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
    )
