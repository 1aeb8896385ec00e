"""Hosts of runs: reserved when a run is decided, given it after the commit, kept by the session, taken back.

Theory of operation. The host in which a run's agent is to run is reserved in the step that starts the run, and its row
is in that step's batch. So it is a part of the run before the run is sent to it. As for a spawn, the cell of its row
decides whether that happens: the start of the run starts the cell, and a fence that comes first voids it. A host whose
cell was voided got no run; it is released when that is durable.

From then on it is a tree of the run like any other: it ends with the run, holds the barrier, and its warden proves its
end. Where the run ends by itself the session may keep it for the next run: a hand-over, in the same step. The next run
of the agent takes it back. What the host does of earlier runs is refused by their generation.

A host that the session keeps is ended by any Stop that is not aimed at a run, when it was idle for its time, and when
the sessions keep too many together.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.events import ProcessTakenBackData
from actors.gate.cell import Cell
from actors.hosts import HostedAgent
from actors.model import Owner, PartKind, Provenance, TreeState
from actors.ports import ProcessRow
from actors.protocol.owned_tree import OwnedTree
from actors.protocol.run_record import AGENT, Part, ProcessRecord, RunRecord
from actors.protocol.state import SessionState
from actors.protocol.step import KeepHost, LetTreeGo
from actors.protocol.trees import Trees
from actors.text import storable

REPLACED: Final = "another host runs the agent from now on"
IDLE: Final = "no run has needed it for its time"


class RunHosts:
    """Decides on the hosts of runs."""

    def __init__(self, state: SessionState, trees: Trees) -> None:
        self._state = state
        self._trees = trees

    def agent(self, record: RunRecord) -> HostedAgent | None:
        """The agent of a run, if it runs in hosts."""
        hosting = self._state.hosting
        return None if hosting is None else hosting.hosted(record.info.agent)

    def reserve(self, record: RunRecord) -> str | None:
        """Reserve the host of a run that starts, if its agent runs in one: the one that is kept for it, or another.

        Returns its id, for `add`, which follows in the same step.
        """
        hosting, agent = self._state.hosting, self.agent(record)
        if hosting is None or agent is None:
            return None
        kept = self._kept_for(agent)
        return hosting.reserve(agent.name, None if kept is None else kept.id)

    def code_changed_at(self, process_id: str | None) -> float | None:
        """Return when the code of a reserved host was last changed; None: there is no host, or it is not known."""
        hosting = self._state.hosting
        return None if hosting is None or process_id is None else hosting.code_changed_at(process_id)

    def _kept_for(self, agent: HostedAgent) -> OwnedTree | None:
        return next((owned for owned in self._state.owned.values() if owned.may_be_taken_back(agent.name)), None)

    def add(self, record: RunRecord, process_id: str | None, at: float) -> None:
        """Make the host that was reserved for a run a part of it. None: there is no such host."""
        state, agent = self._state, self.agent(record)
        if agent is None or process_id is None:
            return
        kept = self._kept_for(agent)
        if kept is not None and kept.id == process_id:
            self._take_back(record, kept)
            return
        if kept is not None:
            self._retire(kept, REPLACED, at)
        name = storable(f"host {agent.name}")
        row = ProcessRow(
            state.session,
            record.id,
            "",
            process_id,
            name,
            TreeState.GRANTED,
            generation=state.generation,
            host=agent.name,
        )
        self._add(record, row, Cell())

    def _add(self, record: RunRecord, row: ProcessRow, cell: Cell[None]) -> Part:
        part = Part(row.process_id, PartKind.PROCESS, row.name, AGENT, holds=True)
        part.pid, part.started_at = row.pid, row.started_at
        record.processes[row.process_id] = ProcessRecord(row, cell)
        record.add(part)
        self._state.step.processes[row.process_id] = row
        return part

    def claim(self, record: RunRecord) -> None:
        """After the commit: the run is open and is sent to its host. A fence has voided the host's cell otherwise."""
        process = record.host
        if process is not None and process.cell is not None:
            process.cell.start()

    # ── Kept by the session ──────────────────────────────────────────────────────────────────────────

    def keep(self, record: RunRecord, at: float) -> None:
        """A run has ended by itself: hand its host over to the session, if its agent says so and there is room."""
        state, agent, process = self._state, self.agent(record), record.host
        if agent is None or not agent.keep or process is None or state.draining or state.deleting is not None:
            return
        part = record.parts[process.row.process_id]
        if part.ended or part.lost or len(state.owned) >= state.settings.processes_max:
            return
        # The gate: a failure of its actor may have begun to end it.
        if process.cell is None or not process.cell.finish(None):
            return
        self._trees.hand_over(record, process, record.address, None, at)
        state.step.later.append(KeepHost(part.id))

    def _take_back(self, record: RunRecord, owned: OwnedTree) -> None:
        """A host that the session keeps is a part of a run again: from here on it ends with the run."""
        state = self._state
        del state.owned[owned.id]
        row = msgspec.structs.replace(
            owned.row, run_id=record.id, generation=state.generation, owner=Owner.RUN, owned_at=None, receipts=()
        )
        cell: Cell[None] = Cell()
        # It is not released any more: it has run, and is of no use to another session.
        cell.start()
        part = self._add(record, row, cell)
        part.status = owned.part.status
        state.event(ProcessTakenBackData(process_id=row.process_id, pid=row.pid, name=row.name), record)
        state.step.now.append(LetTreeGo(owned.id))

    def retire(self, process_id: str, since: float | None, reason: str, at: float) -> None:
        """End a host that the session keeps, if no run has taken it back since."""
        owned = self._state.owned.get(process_id)
        if owned is not None and owned.row.host and owned.row.owned_at == since and owned.row.ending is None:
            self._retire(owned, reason, at)

    def _retire(self, owned: OwnedTree, reason: str, at: float) -> None:
        cause = Provenance(source="host.retired", reason=reason, initiated_at=at)
        self._trees.end([owned], cause, None)
