"""HostSpec: how the hosts of one agent are started, and what becomes of them. A value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field


class HostSpec(Struct, frozen=True):
    """How the hosts of an agent are started.

    name: of the agent.
    argv: the command, as for exec. It finds the number of its socket in ``COUNTERMAND_CHANNEL``.
    env: is added to the clean environment. Its values may be secret: the repr does not show them.
    user: whose rights it has; None: those of the daemon.
    limits: as in `supervisor.config.Config`, added to the configured ones.
    spares: how many hosts are kept ready. 0: every run starts a host, and waits for it.
    keep: ``session``: after a run that has ended by itself the host stays, for the session's next run.
    keep_idle_s: after this many seconds without a run such a host is ended.
    overlap: False: a run is told to its host when all earlier runs of its session are proven to have ended.
    grace_s: seconds that a host has to end by itself after a cancel; None: as configured for all.
    start_s: seconds that a host has to say hello.
    tools: names of the daemon's tools that the agent may call; None: all of them.
    """

    name: str
    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    spares: int = 1
    keep: Literal["run", "session"] = "run"
    keep_idle_s: float = 600.0
    overlap: bool = True
    grace_s: float | None = None
    start_s: float = 60.0
    tools: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"HostSpec({self.name!r}, {self.argv!r}, env of {', '.join(self.env) or 'nothing'})"
