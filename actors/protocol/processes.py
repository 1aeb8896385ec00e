"""Spawns of process trees, for a run or for the session, and the output of trees.

A spawn is on record, with its cell, before its permit leaves (after the commit). A fence that closes the cell first
voids it.
"""

from __future__ import annotations

import msgspec

from actors.events import RunOutputData, ToolOutputData
from actors.gate.cell import Cell, CellState
from actors.messages import ProcessOutput, ProcessReport, SpawnGivenUp, SpawnPermit, SpawnRequested
from actors.model import Address, Barrier, How, Owner, PartKind, RunParent, TreeState
from actors.ports import ChildSpec, ProcessRow
from actors.protocol import notes
from actors.protocol.owned_tree import OwnedTree, part_of
from actors.protocol.run_record import (
    AGENT,
    OUTPUT_KEPT_CHARS,
    OUTPUT_LOGGED_MAX_BYTES,
    CallRecord,
    Part,
    ProcessRecord,
    RunRecord,
)
from actors.protocol.state import SessionState
from actors.protocol.step import ForgetPart, GiveSpawn, Keeper, MakeWait, RefuseSpawn, ReleaseHost, SpawnOwn
from actors.text import storable, tail


class Processes:
    """Decides on spawns and output."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    def spawn_requested(self, request: SpawnRequested) -> None:
        """A tool or an agent asks for a process, for its run or for the session.

        Each call has waited for the barrier. What an agent asks for itself waits for it here.
        """
        state, address = self._state, request.address
        if request.host and state.hosting is not None:
            state.hosting.asked(request.process_id)
        record = state.open_run(address)
        if record is None or (address.call is not None and state.call(address) is None):
            state.refuse_stale("spawn", address, request.spec.name)
            state.step.now.append(RefuseSpawn(address.run, address.call or "", request.process_id))
            self._release(request)
        elif request.process_id in record.spawns:
            state.dead_letter("spawn", "it was asked for before", address, request.spec.name)
        elif address.call is not None or not state.barrier():
            self._decide(record, request)
        elif state.settings.barrier == Barrier.STRICT and not state.barrier_may_open():
            self._refuse_behind_barrier(record, request)
        elif len(record.spawns) >= state.settings.processes_max:
            self._refuse_over_limit(record, request, state.settings.processes_max)
        else:
            record.spawns[request.process_id] = request
            state.step.now.append(MakeWait(record.id, request.process_id))

    def _decide(self, record: RunRecord, request: SpawnRequested) -> None:
        """Grant a spawn, or refuse it because there are too many."""
        if request.owner is Owner.SESSION:
            self._spawn_for_session(record, request.address.call or "", request)
        else:
            self._spawn_for_run(record, request.address.call or "", request)

    def given_up(self, report: SpawnGivenUp) -> bool:
        """Nobody waits for the start of a process. It does not take place; or the tree is ended, for that cause.

        A tree of the run is ended by whoever has its actor. True: the tree has started, and the run is open.
        """
        state, process_id = self._state, report.process_id
        address = Address(report.address.session, report.address.generation, report.address.run)
        record = state.open_run(address)
        if record is None:
            state.dead_letter("spawn_given_up", "its run is over, and ends it", report.address, process_id)
            return False
        if record.spawns.pop(process_id, None) is not None:
            state.step.now.append(RefuseSpawn(record.id, "", process_id))
            return False
        process, part = record.processes.get(process_id), record.parts.get(process_id)
        if part is None or part.ended or process is None or process.cell is None:
            # It was refused, or has ended; or it belongs to the session.
            return True
        if process.cell.close()[0] is CellState.VOID:
            self.void_spawn(record, process, part, state.clock.wall())
            return False
        part.ended_by(report.provenance)
        return True

    # ── The barrier ──────────────────────────────────────────────────────────────────────────────────

    def grant_waiting(self, record: RunRecord) -> None:
        """The barrier is open: decide what the agent has asked for meanwhile."""
        waiting, record.spawns = record.spawns, {}
        for request in waiting.values():
            self._decide(record, request)

    def refuse_waiting(self, record: RunRecord) -> None:
        """The barrier is strict, and something that it waits for outlived its kill deadline."""
        waiting, record.spawns = record.spawns, {}
        for request in waiting.values():
            self._refuse_behind_barrier(record, request)

    def drop_waiting(self, record: RunRecord) -> None:
        """The run is closed: what waits for the barrier is not spawned."""
        waiting, record.spawns = record.spawns, {}
        for process_id in waiting:
            self._state.step.now.append(RefuseSpawn(record.id, "", process_id))

    def _refuse_behind_barrier(self, record: RunRecord, request: SpawnRequested) -> None:
        reason = notes.behind_barrier(self._state.barrier())
        self._state.step.now.append(RefuseSpawn(record.id, "", request.process_id, reason=reason))

    # ── Granted, or one too many ─────────────────────────────────────────────────────────────────────

    def _spawn_for_run(self, record: RunRecord, call_id: str, request: SpawnRequested) -> None:
        state, process_id, name = self._state, request.process_id, request.spec.name
        known = record.parts.get(process_id)
        if process_id in record.processes and not (request.host and known is not None and known.ended):
            # One that has ended is a host that got no call and was released: it is reserved for this call now.
            state.dead_letter("spawn", "it was asked for before", request.address, name)
            return
        limit = state.settings.processes_max
        child = request.spec if isinstance(request.spec, ChildSpec) else None
        kind = PartKind.PROCESS if child is None else PartKind.RUN
        limit = limit if child is None else state.settings.children_max
        # A host is not one of those that it has spawned.
        trees = [part.id for part in record.open_parts() if part.kind == kind]
        spawned = [one for one in trees if one not in record.processes or not record.processes[one].row.host]
        if len(spawned) >= limit and not request.host:
            self._refuse_over_limit(record, request, limit)
            return
        call = record.calls.get(call_id)
        cell: Cell[None] = Cell(record.token if call is None else call.token)
        row = ProcessRow(
            state.session,
            record.id,
            call_id,
            process_id,
            storable(name),
            TreeState.GRANTED,
            host=request.host,
            kind=kind,
            child="" if child is None else child.session,
        )
        record.processes[process_id] = ProcessRecord(row, cell)
        record.add(Part(process_id, kind, row.name, call_id or AGENT, holds=True))
        state.step.processes[process_id] = row
        parent = None if child is None else RunParent(state.session, record.id, call_id, child_depth(record))
        state.step.later.append(GiveSpawn(record.id, SpawnPermit(call_id, process_id, cell, parent)))

    def _spawn_for_session(self, record: RunRecord, call_id: str, request: SpawnRequested) -> None:
        state, process_id, name = self._state, request.process_id, request.spec.name
        if process_id in record.parts or process_id in state.owned:
            state.dead_letter("spawn", "it was asked for before", request.address, name)
            return
        assert not isinstance(request.spec, ChildSpec), "a child run belongs to its run"
        limit = state.settings.processes_max
        if len(state.owned) >= limit:
            self._refuse_over_limit(record, request, limit)
            return
        call = record.calls.get(call_id)
        cell: Cell[None] = Cell(record.token if call is None else call.token)
        row = ProcessRow(
            state.session,
            record.id,
            call_id,
            process_id,
            storable(name),
            TreeState.GRANTED,
            owner=Owner.SESSION,
            generation=request.address.generation,
            owned_at=state.clock.wall(),
        )
        # Until the spawn has passed the cell it is a part of the run: a fence may void it, as it may any spawn.
        record.processes[process_id] = ProcessRecord(row, cell)
        record.add(Part(process_id, PartKind.PROCESS, row.name, call_id or AGENT, holds=False))
        state.owned[process_id] = OwnedTree(row, part_of(row), cell)
        state.step.processes[process_id] = row
        state.step.later.append(SpawnOwn(request.address, process_id, request.spec, request.listener))

    def _refuse_over_limit(self, record: RunRecord, request: SpawnRequested, limit: int) -> None:
        self._state.refuse_stale("spawn_over_limit", request.address, request.spec.name)
        call_id = request.address.call or ""
        self._state.step.now.append(RefuseSpawn(record.id, call_id, request.process_id, limit))

    def _release(self, request: SpawnRequested) -> None:
        """What was reserved for a call is of no use to it, and never was on record."""
        if request.host:
            self._release_host(request.process_id)

    def _release_host(self, process_id: str) -> None:
        if self._state.hosting is not None:
            self._state.hosting.unused(process_id)
        self._state.step.later.append(ReleaseHost(process_id))

    def forget(self, record: RunRecord, process_id: str) -> None:
        """A tree has ended: the port may forget it. The host of a tool that got no call lives, and is released."""
        process, part = record.processes.get(process_id), record.parts[process_id]
        void = process is not None and process.cell is not None and process.cell.state is CellState.VOID
        if process is None or not (process.row.host and process.row.call_id and void):
            self._state.step.later.append(ForgetPart(Keeper.PROCESSES, process_id))
        elif not part.ended:
            self._release_host(process_id)

    def void_spawn(self, record: RunRecord, process: ProcessRecord, part: Part, at: float) -> None:
        """A granted spawn will not take place. Its tool is notified, even if the permit is on its way."""
        part.end(How.NOT_STARTED, at)
        owned = self._state.owned.get(process.row.process_id)
        if owned is not None and owned.row.ending is not None:
            # A receipt may wait for it. Its actor finds the cell closed, and reports that: see `TreeReports`.
            process.row = owned.row
        else:
            self._state.owned.pop(process.row.process_id, None)
        self.end_row(process, part)
        if process.row.host:
            self._release_host(process.row.process_id)
        if process.row.host and not process.row.call_id:
            return
        self._state.step.now.append(RefuseSpawn(record.id, process.row.call_id, process.row.process_id))

    def end_row(self, process: ProcessRecord, part: Part) -> None:
        """Write the row of a process that has ended."""
        process.row = msgspec.structs.replace(process.row, state=TreeState.ENDED, end=part.as_row(()))
        self._state.step.processes[process.row.process_id] = process.row

    # ── Output ───────────────────────────────────────────────────────────────────────────────────────

    def output(self, record: RunRecord, report: ProcessReport, news: ProcessOutput) -> None:
        """Log the output of a tree, up to the limit of its call, and keep the tail for the call's result.

        A host has a limit of its own, and so has each tree that the agent has asked for itself.
        """
        if self._state.open_run(report.address) is None:
            self._state.refuse_stale("output", report.address, news.text)
            return
        process = record.processes.get(report.process_id)
        if process is not None:
            process.output_chars += len(news.text)
        logged: CallRecord | ProcessRecord | None = process
        if report.address.call is not None:
            logged = call = record.calls[report.address.call]
            call.output = tail(call.output + news.text, OUTPUT_KEPT_CHARS)
        if logged is None or logged.muted:
            return
        text, marker = storable(news.text), news.marker
        room = OUTPUT_LOGGED_MAX_BYTES - logged.logged_bytes
        encoded = text.encode()
        if len(encoded) > room and not marker:
            # Each process has this limit; here several of a call have reached it together, or several runs of a host.
            self._log(record, report, news.stream, encoded[:room].decode(errors="ignore"))
            text = f"[the limit of {OUTPUT_LOGGED_MAX_BYTES} bytes of logged output is reached]"
            marker = True
        logged.muted = marker
        logged.logged_bytes += len(encoded)
        self._log(record, report, news.stream, text, marker=marker)

    def _log(self, record: RunRecord, report: ProcessReport, stream: str, text: str, *, marker: bool = False) -> None:
        if not text:
            return
        call_id, process_id = report.address.call, report.process_id
        if call_id is None:
            self._state.event(RunOutputData(process_id=process_id, stream=stream, text=text, marker=marker), record)
        else:
            data = ToolOutputData(call_id=call_id, process_id=process_id, stream=stream, text=text, marker=marker)
            self._state.event(data, record)


def child_depth(record: RunRecord) -> int:
    """Return how deep a child run of this run stands below the first one."""
    return 1 if record.info.parent is None else record.info.parent.depth + 1
