"""TreeActors: the actors of the process trees that belong to a session, and not to a run.

All reports of trees pass here, also those of a run's trees: which of the two owns a tree may have changed on their way.

A tree does not end with its actor: the session's actor takes the tree over, and hears its news from the port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykka import ActorRef

from actors.gate.cell import Cell
from actors.hierarchy.incarnation import Incarnation
from actors.hierarchy.process import ProcessActor
from actors.kernel.actor import Actor, tell, tell_contained
from actors.messages import (
    Halt,
    HostIdle,
    HostUnwanted,
    ProcessEnded,
    ProcessNews,
    ProcessReport,
    Release,
    TreesDeadline,
)
from actors.model import Address, Owner
from actors.ports import Ports, SpawnSpec
from actors.protocol.step import EndTrees, SpawnOwn


@dataclass(slots=True)
class TreeHost:
    """Who hears the news of a tree.

    `key`: of its actor; "" if that failed and the session's actor hears the news. `listener`: the tool that waits.
    """

    key: str
    listener: Callable[[ProcessNews], None] | None


class TreeActors:
    """The process trees of one session. Used in the turns of its actor only.

    Args:
        owner: the session's actor, whose children the actors of the trees are.
        ports: what they need from outside.
        live: the session.
    """

    def __init__(self, owner: Actor, ports: Ports, live: Incarnation) -> None:
        self._owner = owner
        self._ports = ports
        self._live = live
        self._hosts: dict[str, TreeHost] = {}

    def spawn(self, spawn: SpawnOwn) -> None:
        """Start the actor of a tree, which spawns it; unless a fence came between the decision and the commit."""
        owned = self._live.protocol.trees.claim_spawn(spawn.process_id)
        if owned is not None:
            self._host(spawn.address, spawn.process_id, spawn.spec, owned.cell, spawn.listener)

    def adopt(self, address: Address, process_id: str, listener: Callable[[ProcessNews], None] | None) -> None:
        """Start an actor for a tree that runs already: a run's until now, or one that an incarnation before left.

        The port reports to that actor from here on. If the tree gets another owner, that one adopts it later.
        """
        owned = self._live.protocol.state.owned.get(process_id)
        if owned is not None and owned.row.host:
            listener = self._live.hosts.listener(process_id)
        child = self._host(address, process_id, None, None, listener)
        self._ports.processes.adopt(process_id, child, address.session)

    def let_go(self, process_id: str) -> None:
        """A host that the session kept is a run's again: its actor ends, and ends nothing."""
        host = self._hosts.pop(process_id, None)
        child = self._owner.children.get(host.key) if host is not None else None
        if child is not None:
            tell(child, Release())

    def watch_host(self, process_id: str) -> None:
        """If a tree is a host that the session keeps, look at it again when it may have been idle for its time.

        Or when the hosts port wants it ended. The port asks again if the session was not in memory the first time.
        """
        owned = self._live.protocol.state.owned.get(process_id)
        agent = None if owned is None else self._live.hosts.hosted(owned.row.host)
        if owned is not None and agent is not None and owned.row.ending is None:
            ref, since = self._owner.actor_ref, owned.row.owned_at
            self._ports.clock.call_later(agent.keep_idle_s, ref, HostIdle(process_id, since))
            self._live.hosts.keep(
                process_id, lambda reason: tell_contained(ref, HostUnwanted(process_id, since, reason))
            )

    def _host(
        self,
        address: Address,
        process_id: str,
        spec: SpawnSpec | None,
        cell: Cell[None] | None,
        listener: Callable[[ProcessNews], None] | None,
    ) -> ActorRef[ProcessActor]:
        key = self._live.child_key(process_id)
        self._hosts[process_id] = TreeHost(key, listener)
        return self._owner.start_child(
            ProcessActor,
            self._ports,
            address,
            process_id,
            spec,
            cell,
            owner=Owner.SESSION,
            listener=listener,
            key=key,
        )

    # ── Their news ────────────────────────────────────────────────────────────────────────────────

    def report(self, report: ProcessReport) -> None:
        """Decide on a report about a tree, of the session or of a run."""
        self._live.protocol.report(report)
        if isinstance(report.news, ProcessEnded) and report.process_id not in self._live.protocol.state.owned:
            self._hosts.pop(report.process_id, None)

    def news(self, news: ProcessNews) -> None:
        """News from the port itself, of a tree that was taken over from an actor that failed."""
        owned, host = self._live.protocol.state.owned.get(news.process_id), self._hosts.get(news.process_id)
        if host is not None and host.listener is not None:
            host.listener(news)
        if owned is not None:
            self.report(ProcessReport(owned.address, owned.id, news))

    # ── Ending them ───────────────────────────────────────────────────────────────────────────────

    def end_all(self, end: EndTrees) -> None:
        """End trees, and set the timer after which what is left is named abandoned."""
        longest_s = 0.0
        for process_id in end.process_ids:
            owned = self._live.protocol.state.owned.get(process_id)
            grace_s = self._live.grace_s(end.mode, "" if owned is None else owned.row.host)
            self.end(process_id, Halt(end.provenance, grace_s))
            longest_s = max(grace_s, longest_s)
        deadline = TreesDeadline(end.stage, self._live.id)
        self._ports.clock.call_later(longest_s + self._ports.settings.kill_s, self._owner.actor_ref, deadline)

    def end(self, process_id: str, halt: Halt) -> None:
        """End a tree through its actor, so that the kill comes behind the spawn. One without an actor was spawned."""
        host = self._hosts.get(process_id)
        child = self._owner.children.get(host.key) if host is not None else None
        if child is not None:
            tell(child, halt)
        else:
            self._ports.processes.kill(process_id, halt.grace_s)

    def stop_all(self) -> None:
        """The session is read again: stop the actors of all trees. Trees that are on record are adopted anew."""
        for host in self._hosts.values():
            child = self._owner.children.get(host.key)
            if child is not None:
                child.stop(block=False)
        self._hosts.clear()

    def has_actor(self, process_id: str, key: str) -> bool:
        """True if a tree has its actor under this key."""
        host = self._hosts.get(process_id)
        return host is not None and host.key == key

    def take_over(self, process_id: str) -> None:
        """The actor of a tree has ended. The tree is not ended for that: the session's actor takes it over."""
        owned = self._live.protocol.state.owned.get(process_id)
        if owned is None:
            del self._hosts[process_id]
            return
        self._hosts[process_id].key = ""
        if owned.cell is not None:
            # A tree that has not passed its cell by now is never spawned, and the port reports that.
            owned.cell.close()
        self._ports.processes.adopt(process_id, self._owner.actor_ref, self._live.session)
        if owned.row.ending is not None:
            self._ports.processes.kill(process_id, self._live.grace_s(owned.mode, owned.row.host))
