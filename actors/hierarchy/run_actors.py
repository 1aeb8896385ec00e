"""RunActors: the actors of a session's runs, from their start to their end.

A run whose actor failed, or which an earlier incarnation left, gets an actor that *adopts* what may still run of it.
When the session is read again, the actors from before are stopped. A run is adopted only when the actor that is
replaced has ended: until then that one may still carry out an earlier message to start something.
"""

from __future__ import annotations

from actors.hierarchy.incarnation import Incarnation, Phase
from actors.hierarchy.run import Adoption, RunActor
from actors.hierarchy.run_agent import RunStart
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.messages import Halt, KillDeadline
from actors.model import STRAYS, Mode, PartKind
from actors.plugin.registration import Plugins
from actors.ports import Ports
from actors.protocol.run_record import RunRecord
from actors.protocol.step import HaltRun


class RunActors:
    """The run actors of one session. Used in the turns of its actor only.

    Args:
        owner: the session's actor, whose children they are.
        ports: what they need from outside.
        plugins: agents and tools.
        live: the session.
    """

    def __init__(self, owner: Actor, ports: Ports, plugins: Plugins, live: Incarnation) -> None:
        self._owner = owner
        self._ports = ports
        self._plugins = plugins
        self._live = live
        # By run: the key of its actor.
        self._keys: dict[str, str] = {}
        # By run: the key of an actor that is replaced, until it has ended.
        self._replaced: dict[str, str] = {}
        # Runs that are adopted when the actor that is replaced has ended.
        self._to_adopt: set[str] = set()

    def is_replaced(self, run_id: str) -> bool:
        """True while a run has an actor that is replaced."""
        return run_id in self._replaced

    def tell(self, run_id: str, message: object) -> None:
        """Tell the actor of a run; where it has none the message is dropped."""
        child = self._owner.children.get(self._keys.get(run_id, ""))
        if child is not None:
            tell(child, message)

    def start(self, run_id: str) -> None:
        """Start the actor of a run whose start is durable; unless a fence came between the decision and the commit."""
        record = self._live.protocol.runs.claim_start(run_id)
        if record is None:
            return
        host = record.host
        if host is not None:
            self._live.hosts.begun(host.row.process_id)
        start = RunStart(
            agent=self._plugins.agent(record.info.agent),
            agent_name=record.info.agent,
            token=record.token,
            credit=record.credit,
            thread=self._live.protocol.state.thread.copy(),
            saved=self._live.protocol.state.saved.of(record.info.agent),
            inputs=record.info.inputs,
            deadline_s=self._live.protocol.state.budget(record).deadline_s,
            host=None if host is None else (host.row.process_id, host.cell),
        )
        self._start_actor(record, start, None)

    def adopt(self, run_id: str) -> None:
        """Start an actor that adopts what may still run of a closed run, and ends it."""
        record = self._live.protocol.state.record(run_id)
        if record is None or not record.runner_parts():
            return
        if run_id in self._replaced:
            self._to_adopt.add(run_id)
            return
        provenance = record.info.provenance or record.token.provenance
        assert provenance is not None, "only a closed run is adopted"
        open_parts = record.runner_parts()
        trees = [record.processes[part.id].row for part in open_parts if part.kind in (PartKind.PROCESS, PartKind.RUN)]
        adoption = Adoption(
            agent=any(part.kind == PartKind.AGENT for part in open_parts),
            calls=tuple(part.id for part in open_parts if part.kind == PartKind.CALL),
            processes=tuple((row.process_id, row.call_id) for row in trees if row.call_id or not row.host),
            host=next((row.process_id for row in trees if row.host and not row.call_id), None),
            strays=tuple(record.processes[part.id].row for part in open_parts if part.kind in STRAYS),
            halt=Halt(provenance, self._grace_s(record, record.mode)),
            children={row.process_id: row.child for row in trees if row.child},
        )
        self._start_actor(record, None, adoption)

    def _start_actor(self, record: RunRecord, start: RunStart | None, adoption: Adoption | None) -> None:
        key = self._live.child_key(record.id)
        self._keys[record.id] = key
        self._owner.start_child(RunActor, self._ports, self._plugins, record.address, start, adoption, key=key)

    # ── Ending them ───────────────────────────────────────────────────────────────────────────────

    def halt(self, halt: HaltRun) -> None:
        """End the parts of a run, and set the timer after which what is left is named abandoned."""
        record = self._live.protocol.state.record(halt.run_id)
        grace_s = self._live.grace_s(halt.mode) if record is None else self._grace_s(record, halt.mode)
        self.end_parts(halt.run_id, Halt(halt.provenance, grace_s))
        deadline = KillDeadline(halt.run_id, halt.stage, self._live.id)
        self._ports.clock.call_later(grace_s + self._ports.settings.kill_s, self._owner.actor_ref, deadline)

    def _grace_s(self, record: RunRecord, mode: Mode) -> float:
        """How many seconds the parts of a run have to end by themselves; a child run has no more than its parent."""
        grace_s = self._live.grace_s(mode, record.info.agent)
        return grace_s if record.grace_max_s is None else min(grace_s, record.grace_max_s)

    def halt_all(self, halt: Halt) -> None:
        """Tell every run actor to end what it has."""
        for run_id in self._keys:
            self.tell(run_id, halt)

    def end_parts(self, run_id: str, halt: Halt) -> None:
        """End the parts of a closed run.

        The kill goes through the run's actor, so that it comes behind the spawns of that actor. A run without an actor
        gets one when the store takes writes, and its end does not wait for that: the ports know its parts. Nothing
        more is spawned, since its cells are closed; and its tokens have cancelled its executions.
        """
        record = self._live.protocol.state.record(run_id)
        if self._keys.get(run_id, "") in self._owner.children:
            self.tell(run_id, halt)
        elif record is not None and (parts := record.runner_parts()):
            for part in parts:
                # A tree that was spawned for the session is in the record of its run until the run is closed.
                if part.kind in (PartKind.PROCESS, PartKind.RUN) and part.id not in self._live.protocol.state.owned:
                    self._ports.processes.kill(part.id, halt.grace_s)
            self._ports.strays.end(record.address, halt.grace_s)

    def replace_all(self) -> None:
        """The session is read again: stop all run actors. What they had is adopted by new ones."""
        for run_id, key in self._keys.items():
            child = self._owner.children.get(key)
            if child is not None:
                child.stop(block=False)
                self._replaced[run_id] = key
        self._keys.clear()
        self._to_adopt.clear()

    def ended(self, run_id: str, down: Down) -> None:
        """A run actor has ended. If no other has replaced it, the protocol takes its run for lost."""
        serves = self._live.phase is Phase.SERVING
        if self._replaced.get(run_id) == down.key:
            del self._replaced[run_id]
            if run_id in self._to_adopt and serves:
                self._to_adopt.discard(run_id)
                self.adopt(run_id)
        elif self._keys.get(run_id) == down.key:
            del self._keys[run_id]
            if serves:
                self._live.protocol.runs.lost(run_id, down.failure)
