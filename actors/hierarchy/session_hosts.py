"""SessionHosts: the hosts that a session has reserved, until it is known what becomes of them.

A host is reserved when a run is decided, and the record of that may not be stored. Then the host is released; but only
when the session has been read again and the host is not on record. A run on record has its host, whatever the store
has answered to the session: that host is taken over and ended with the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from actors.hosts import HostedAgent, Hosts
from actors.messages import ProcessNews, SpawnRequested
from actors.model import TreeState
from actors.plugin.registration import Plugins
from actors.ports import Processes, Snapshot


class SessionHosts:
    """The hosts of one session. It lives in the session's mailbox.

    Args:
        session: the session's id.
        plugins: the agents.
        hosts: None where no agent runs in hosts.
    """

    def __init__(self, session: str, plugins: Plugins, hosts: Hosts | None) -> None:
        self._session = session
        self._plugins = plugins
        self._hosts = hosts
        self._reserved: set[str] = set()
        self._unused: set[str] = set()

    def hosted(self, agent: str) -> HostedAgent | None:
        """Return an agent that runs in hosts, by name; None: it does not."""
        return self._plugins.hosted(agent)

    def listener(self, process_id: str) -> Callable[[ProcessNews], None] | None:
        """Who else hears the news of a host."""
        return None if self._hosts is None else functools.partial(self._hosts.heard, process_id)

    def reserve(self, agent: str, kept: str | None) -> str:
        """Reserve a host for a run; see `Hosts.reserve`."""
        assert self._hosts is not None, "an agent that runs in hosts needs them"
        process_id = self._hosts.reserve(agent, self._session, kept)
        self._reserved.add(process_id)
        return process_id

    def code_changed_at(self, process_id: str) -> float | None:
        """Return when the code of a reserved host was last changed; see `Hosts.code_changed_at`."""
        return None if self._hosts is None else self._hosts.code_changed_at(process_id)

    def asked(self, process_id: str) -> None:
        """A call asks for a host that it has reserved: from here on the session decides what becomes of it."""
        self._reserved.add(process_id)

    def unused(self, process_id: str) -> None:
        """It is decided that a host does not get its run or call: the host is released when that is durable."""
        self._unused.add(process_id)

    def begun(self, process_id: str) -> None:
        """The run of a host begins, or its call has it: that is durable, and from here on it is theirs."""
        self._reserved.discard(process_id)

    def release(self, process_id: str) -> None:
        """A host does not get its run or call, and that is durable: release it."""
        self._reserved.discard(process_id)
        self._unused.discard(process_id)
        if self._hosts is not None:
            self._hosts.release(process_id)

    def keep(self, process_id: str, unwanted: Callable[[str], None]) -> None:
        """The session keeps a host, and that is durable; see `Hosts.keep`."""
        if self._hosts is not None:
            self._hosts.keep(process_id, self._session, unwanted)

    def settle(self, snapshot: Snapshot) -> None:
        """The session was read again: release what is not on record as its own."""
        on_record = {row.process_id for row in snapshot.processes if row.state != TreeState.ENDED}
        for process_id in sorted((self._reserved | self._unused) - on_record):
            self.release(process_id)
        self._forget()

    def end(self, processes: Processes, failed_at: object = None) -> None:
        """The session's actor ends: kill its hosts. They may be on record as the session's, so no other may get them.

        The next incarnation knows which are not: it has those forgotten.

        `failed_at`: the message at which it failed, which may have asked for another.
        """
        if isinstance(failed_at, SpawnRequested) and failed_at.host:
            self._reserved.add(failed_at.process_id)
        for process_id in sorted(self._reserved | self._unused):
            processes.kill(process_id, 0.0, self._session)
        self._forget()

    def _forget(self) -> None:
        self._reserved.clear()
        self._unused.clear()
