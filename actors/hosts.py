"""Hosts: processes in which agents run. What the actors know of them, and what they need from the port to them.

A host is a process tree like any other: its warden proves its end, and it belongs to a run, or to a session that keeps
it. Whatever the agent's code starts by itself is below that warden. So the end of the tree is the end of all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.model import JsonObject
from actors.usage import Budget

if TYPE_CHECKING:
    from actors.messages import ProcessNews
    from actors.plugin.execution import AgentDone
    from actors.plugin.turn_core import TurnCore


class HostedAgent(Struct, frozen=True):
    """An agent that runs in hosts: it stands in `Plugins.agents` where a function does otherwise.

    keep: where a run of it ends by itself, its host is handed over to the session, for the next run.
    keep_idle_s: seconds after which a host that is kept, and in which no run began, is ended.
    overlap: False: a run of it begins when all earlier runs of its session are proven to have ended.
    grace_s: seconds that a host has to end by itself; None: the configured ones.
    tools: names of the supervisor's tools that it may call; None: all of them.
    budget: how much a run of it may use; what it leaves open is as configured for all.
    ask: names of tools whose calls need a person's approval.
    """

    name: str
    keep: bool = False
    keep_idle_s: float = 600.0
    overlap: bool = True
    grace_s: float | None = None
    tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
    ask: tuple[str, ...] = ()


class ToolOffer(Struct, frozen=True):
    """A tool of the supervisor's that a hosted agent may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


class Hosts(Protocol):
    """Starts hosts, and speaks with them. No method blocks or raises; each may be called from any thread.

    The tree of a host is spawned here, and reports here, until a run or a session adopts it (`Processes.adopt`). From
    then on that ends it, hears its news, and repeats them here (`heard`).

    Of a host that was reserved, one of two things follows, once: `run`, when the run is on record; or `release`. A host
    that was sent a run is never given to another session.
    """

    def reserve(self, agent: str, session: str, kept: str | None = None) -> str:
        """Reserve a host for a run of `session`, and return the id of its process tree.

        That is a host that has no other use: a spare, else one that is started now. `kept` is the one that the session
        keeps for this agent, if any. It is returned, unless it is not to be used any more (its code was replaced, or it
        has ended); then the session ends it.
        """

    def code_changed_at(self, process_id: str) -> float | None:
        """Return when the code that a reserved host has loaded was last changed, in seconds since 1970.

        None: it does not say, or it has loaded none so far.
        """

    def release(self, process_id: str) -> None:
        """The run of a reserved host was not sent to it, and will not be: the host may be reserved again.

        Unknown ids are ignored, and so are hosts that were sent a run.
        """

    def run(
        self, process_id: str, turn: TurnCore, tools: Sequence[ToolOffer], finish: Callable[[AgentDone], None]
    ) -> None:
        """Tell a host to run: the run is on record and open.

        `finish` is called exactly once, from any thread, perhaps before this returns: with the host's answer, or with
        its failure; at the latest when its tree has ended (`heard`). The cancel of the run comes by `turn.token`: a
        waker is to be registered on it, which may be called before this returns. What the host says and asks goes
        through `turn`.
        """

    def keep(self, process_id: str, session: str, unwanted: Callable[[str], None]) -> None:
        """The session keeps the host, whose run has ended by itself. That is durable.

        It may come after `reserve` has returned this host for the next run, and comes again from a session that was
        read anew.

        `unwanted` is called, from any thread and perhaps before this returns, if the session is to end the host, for
        the reason that is given: too many are kept and this is the longest unused, or it cannot be talked to any more.
        It is not returned by `reserve` any more.
        """

    def heard(self, process_id: str, news: ProcessNews) -> None:
        """A report on the tree of a host came to the run or the session that adopted it.

        ProcessExited says how the host's command ended. With ProcessEnded nothing more is to come of the host: what it
        has open has failed, and it is forgotten. Reports may be repeated; unknown ids are ignored.
        """
