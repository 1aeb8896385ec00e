"""Incarnation: a session as it was read last, and what it can do now. The parts of its actor share it.

An actor reads its session when it starts, and again when a store that failed is back. Each reading begins a new
incarnation: a protocol that knows nothing yet, and an id which its batches and its timers carry.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from actors.hierarchy.session_hosts import SessionHosts
from actors.model import Mode, SessionActivity, SessionStatus
from actors.plugin.registration import Plugins
from actors.ports import Ports
from actors.protocol.protocol import Protocol


class Phase(enum.Enum):
    """What a session can do now.

    `LOADING`: it is being read; requests wait. `SERVING`: it decides requests. `FAILED`: the store does not take
    writes, or could not be read.
    """

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"


class Incarnation:
    """The protocol of one session, its phase, and the id of its incarnation. Used in the turns of its actor only.

    `hosts`: which the session has reserved, through all incarnations.

    Args:
        session: the session's id.
        ports: the settings, and what the protocol needs from outside.
        plugins: agents and tools.
    """

    def __init__(self, session: str, ports: Ports, plugins: Plugins) -> None:
        self.session = session
        self.phase = Phase.LOADING
        self.id = ""
        self._ports = ports
        self._plugins = plugins
        self._children = 0
        self.hosts = SessionHosts(session, plugins, ports.hosts)
        self.protocol = self._new_protocol()

    @property
    def was_read(self) -> bool:
        """False until the session was read for the first time: before that nobody knows what runs in it."""
        return bool(self.id)

    def begin(self) -> None:
        """The session was read: begin a new incarnation, and serve."""
        if self.phase is Phase.LOADING:
            # It has decided nothing yet. A tool may have been loaded meanwhile.
            self.protocol.state.isolation = self._plugins.isolation
        else:
            self.protocol = self._new_protocol()
        self.id = self._ports.ids.new("inc")
        self.phase = Phase.SERVING

    def forget_ended(self, parts: Collection[str] = (), runs: Collection[str] = ()) -> None:
        """Forget in the ports what has ended and is closed on record, but for these parts, and strays of these runs.

        Whoever was to do that, after the commit of the end, may be gone. What is open is not forgotten.
        """
        state, ports = self.protocol.state, self._ports
        kept = state.open_parts().union(parts)
        ports.executor.forget_ended(self.session, kept)
        ports.processes.forget_ended(self.session, kept)
        ports.strays.forget_ended(self.session, state.open_runs().union(runs))

    def status(self) -> SessionStatus:
        """The session as it is now."""
        status = self.protocol.state.status()
        if self.phase is Phase.FAILED:
            # The fence holds in memory: the questions are over, and no answer to them is taken.
            return msgspec.structs.replace(status, state=SessionActivity.STORE_FAILED, asking=())
        return status

    def grace_s(self, mode: Mode, agent: str = "") -> float:
        """How many seconds a part has to end by itself; the host of an agent as many as that says."""
        if mode is Mode.IMMEDIATE:
            return 0.0
        hosted = self._plugins.hosted(agent)
        own = None if hosted is None else hosted.grace_s
        return self._ports.settings.grace_s if own is None else own

    def child_key(self, of: str) -> str:
        """A key for one more child of the session's actor, which works for the run or the tree with the id `of`."""
        self._children += 1
        return f"{of}#{self._children}"

    @staticmethod
    def worked_for(child_key: str) -> str:
        """The id of the run or the tree for which a child with this key works."""
        return child_key.partition("#")[0]

    def _new_protocol(self) -> Protocol:
        ports = self._ports
        return Protocol(
            self.session,
            ports.settings,
            ports.clock,
            ports.ids,
            ports.executor.call,
            self._plugins.isolation,
            self._plugins.refusal,
            self.hosts,
            ports.executor.token,
        )
