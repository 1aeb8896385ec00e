"""Reports of the parts of runs: executions that end, process trees, and strays.

A stray is what code of a run started by itself. Ends are accepted of open and closed runs, in any generation, and found
by the record of the run; anything else only while the run or the call is open.
"""

from __future__ import annotations

import msgspec

from actors.events import ProcessEndedData, ProcessStartedData, RunChildData, RunChildEndedData
from actors.messages import (
    CallEnded,
    ChildClosed,
    ChildStarted,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    RunFinished,
    StrayEnded,
    StrayFound,
)
from actors.model import Address, How, Outcome, PartKind, TreeState
from actors.ports import ProcessRow
from actors.protocol import notes
from actors.protocol.calls import Calls
from actors.protocol.processes import Processes
from actors.protocol.run_hosts import RunHosts
from actors.protocol.run_record import AGENT, Part, ProcessRecord, RunRecord
from actors.protocol.runs import Runs
from actors.protocol.state import SessionState
from actors.protocol.step import CloseCall, ForgetPart, GiveAnswer, Keeper
from actors.run_status import RunStatus
from actors.text import storable


class PartReports:
    """Decides on what is reported of the parts of runs."""

    def __init__(self, state: SessionState, processes: Processes, calls: Calls, runs: Runs, hosts: RunHosts) -> None:
        self._state = state
        self._hosts = hosts
        self._processes = processes
        self._calls = calls
        self._runs = runs

    # ── Executions ───────────────────────────────────────────────────────────────────────────────────

    def run_finished(self, report: RunFinished) -> None:
        """The agent's execution ended: the end of an open run, or of one more part of a closed one."""
        state = self._state
        record = state.open_run(report.address)
        at = state.clock.wall()
        if record is None:
            if report.how is How.RETURNED:
                state.refuse_stale("result", report.address, report.result)
            self._execution_ended(report.address, report.how, report.at, report.error or "")
            return
        record.parts[AGENT].end(report.how, report.at, report.error or "")
        state.step.later.append(ForgetPart(Keeper.EXECUTOR, record.id))
        if report.how is How.RETURNED:
            self._hosts.keep(record, at)
            self._runs.end(record, RunStatus.COMPLETED, None, at, result=report.result)
        else:
            error = report.error or "the agent ended without saying why"
            self._runs.end(record, RunStatus.FAILED, None, at, error=error)

    def call_ended(self, report: CallEnded) -> None:
        """A call's execution ended: for an open call this is its result, for a closed one the proof of its end."""
        state = self._state
        record, call = state.open_run(report.address), state.call(report.address)
        if record is not None and call is not None and report.result is not None:
            kept = self._calls.end(record, call, report.result, report.at)
            if report.result.parts:
                state.step.later.append(GiveAnswer(record.id, call.row.call_id, kept))
        elif record is not None and call is not None:
            # The execution ended without a result: its actor failed, or it could not be started.
            if call.cell is not None:
                call.cell.close()
            effects = () if call.token is None else call.token.effects
            result = notes.lost_result(report.how, report.note, effects)
            result = self._calls.end(record, call, result, report.at)
            state.step.now.append(CloseCall(record.id, call.row.call_id, result, None))
        elif report.late or (report.result is not None and not (call is not None and call.finished)):
            state.refuse_stale("result", report.address, report.how)
        self._execution_ended(report.address, report.how, report.at, report.note)

    def _execution_ended(self, address: Address, how: How, at: float, note: str) -> None:
        state = self._state
        record, part = state.record(address.run), state.part(address)
        if record is None or part is None or part.ended:
            # Voided by a fence, or of a run that was dropped: its port may forget it all the same.
            state.step.later.append(ForgetPart(Keeper.EXECUTOR, address.call or address.run))
            return
        if address.call is not None and record.calls[address.call].row.outcome == Outcome.NOT_STARTED:
            # What never passed its cell was not killed, whatever is reported of its actor.
            how = How.NOT_STARTED
        part.end(how, at, note)
        if address.call is not None:
            call = record.calls[address.call]
            call.row = msgspec.structs.replace(call.row, ended_at=at, how=how)
            state.save_call(call)
            if call.token is not None:
                call.token.detach()
        state.step.later.append(ForgetPart(Keeper.EXECUTOR, address.call or record.id))
        self._runs.part_ended(record, state.clock.wall())

    # ── Process trees of runs ────────────────────────────────────────────────────────────────────────

    def process(self, report: ProcessReport) -> None:
        """Something is reported of a process tree of a run."""
        state = self._state
        record = state.record(report.address.run)
        part = record.parts.get(report.process_id) if record is not None else None
        if record is None or part is None:
            state.dead_letter("process", "its run is not known", report.address, report.process_id)
            if isinstance(report.news, ProcessEnded) and report.news.proven:
                state.step.later.append(ForgetPart(Keeper.PROCESSES, report.process_id))
            return
        if self._is_anothers(record, report):
            state.dead_letter("process", "its host is another call's by now", report.address, report.process_id)
            return
        match report.news:
            case ProcessStarted() as news:
                self._process_started(record, part, report, news)
            case ProcessOutput() as news:
                self._processes.output(record, report, news)
            case ProcessExited() as news:
                part.status = news.status
                if report.process_id in record.processes:
                    record.processes[report.process_id].spool = news.spool
            case ProcessRemaining() as news:
                self._runs.part_remains(part, news)
            case ProcessKilled() as news if self._run_is_open(report.address):
                part.ended_by(news.provenance)
            case ProcessKilled():
                state.dead_letter("process_killed", "its run is over, and ends it", report.address, report.process_id)
            case ChildStarted() as news:
                self._child_started(record, part, report, news)
            case ChildClosed() as news:
                cause = news.report.provenance
                if cause is not None and self._run_is_open(report.address):
                    part.ended_by(cause)
                    self._calls.child_ended(report, cause)
            case ProcessEnded() as news:
                self._process_ended(record, part, report, news)

    @staticmethod
    def _is_anothers(record: RunRecord, report: ProcessReport) -> bool:
        """True if a call reports on a host that it never used, and that another call has since."""
        process = record.processes.get(report.process_id)
        return process is not None and bool(process.row.host) and process.row.call_id != (report.address.call or "")

    def _run_is_open(self, address: Address) -> bool:
        return self._state.open_run(Address(address.session, address.generation, address.run)) is not None

    def _process_started(self, record: RunRecord, part: Part, report: ProcessReport, news: ProcessStarted) -> None:
        known, part.pid, part.started_at = part.pid, news.pid, news.at
        if report.process_id in record.processes:
            record.processes[report.process_id].spool = news.spool
        if known is None and self._run_is_open(report.address):
            data = ProcessStartedData(
                call_id=report.address.call, process_id=report.process_id, pid=news.pid, name=part.name
            )
            self._state.event(data, record)

    def _child_started(self, record: RunRecord, part: Part, report: ProcessReport, news: ChildStarted) -> None:
        known, part.started_at = part.started_at, news.at if part.started_at is None else part.started_at
        if known is None and self._run_is_open(report.address):
            child = record.processes[report.process_id].row.child
            data = RunChildData(call_id=report.address.call or "", run_id=part.id, session=child, agent=part.name)
            self._state.event(data, record)

    def _process_ended(self, record: RunRecord, part: Part, report: ProcessReport, news: ProcessEnded) -> None:
        state = self._state
        if part.ended or (part.lost and not news.proven):
            # Reported again, to an actor that took the tree over.
            if news.proven:
                self._processes.forget(record, report.process_id)
            return
        if news.proven:
            self._processes.forget(record, report.process_id)
        part.end_process(news)
        if news.how is How.OUT_OF_REACH:
            record.unseen.add(part.id)
        at = state.clock.wall()
        state.event(self._ended_data(record, part, report, news), record)
        if not news.proven:
            return
        process = record.processes.get(report.process_id)
        if process is not None:
            self._processes.end_row(process, part)
        self._runs.part_ended(record, at)

    @staticmethod
    def _ended_data(
        record: RunRecord, part: Part, report: ProcessReport, news: ProcessEnded
    ) -> ProcessEndedData | RunChildEndedData:
        if part.kind == PartKind.RUN:
            child, row = news.child, record.processes[part.id].row
            receipt = None if child is None else child.receipt
            return RunChildEndedData(
                call_id=row.call_id,
                run_id=part.id,
                session=row.child,
                status=None if child is None else child.status,
                receipt_id=None if receipt is None else receipt.receipt_id,
                how=news.how,
                reaped=news.reaped,
                proven=news.proven and news.how is not How.OUT_OF_REACH,
                note=news.note,
                provenance=part.provenance,
            )
        return ProcessEndedData(
            call_id=report.address.call,
            process_id=report.process_id,
            how=news.how,
            status=news.status,
            reaped=news.reaped,
            proven=news.proven,
            note=news.note,
            provenance=part.provenance,
        )

    # ── Strays ───────────────────────────────────────────────────────────────────────────────────────

    def stray_found(self, found: StrayFound) -> None:
        """Code of a run, open or closed, has started something by itself: it is a part from here on."""
        state, address, key = self._state, found.address, found.stray_id
        record = state.record(address.run)
        if record is None:
            state.dead_letter("stray", "its run is not known", address, found.name)
            return
        if key in record.parts:
            # Reported again, to an actor that took the run over.
            return
        parent = address.call if address.call in record.parts else AGENT
        part = Part(key, found.kind, storable(found.name), parent, found.ours, found.ours, started_at=found.at)
        part.pid, part.note = found.pid, found.note
        if not record.open and record.info.provenance is None:
            # The run has ended by itself, and its end is what ends the stray.
            part.provenance = record.token.provenance
        record.add(part)
        row = ProcessRow(
            state.session,
            record.id,
            address.call or "",
            key,
            part.name,
            TreeState.GRANTED,
            generation=address.generation,
            pid=found.pid,
            started_at=found.at,
            kind=found.kind,
            born=found.born,
            ours=found.ours,
        )
        record.processes[key] = ProcessRecord(row, None)
        state.step.processes[key] = row
        if record is state.active and part.kind == PartKind.SUBPROCESS:
            started = ProcessStartedData(
                call_id=row.call_id or None, process_id=key, kind=row.kind, pid=found.pid, name=part.name
            )
            state.event(started, record)
        if record.id in state.late:
            at = state.clock.wall()
            # Its code ran on after the kill deadline, and this was found only now.
            self._runs.force_barrier(record, [part] if part.holds else [], at)
            self._runs.amend(record, at)

    def stray_ended(self, news: StrayEnded) -> None:
        """A stray of a run, open or closed, has ended."""
        state = self._state
        record = state.record(news.address.run)
        part = record.parts.get(news.stray_id) if record is not None else None
        if record is None or part is None or part.ended:
            state.step.later.append(ForgetPart(Keeper.STRAYS, news.stray_id))
            return
        part.end_stray(news)
        if news.how is How.OUT_OF_REACH:
            record.unseen.add(part.id)
        process = record.processes[part.id]
        if part.kind == PartKind.SUBPROCESS:
            data = ProcessEndedData(
                call_id=process.row.call_id or None,
                process_id=process.row.process_id,
                kind=process.row.kind,
                how=news.how,
                status=news.status,
                reaped=news.reaped,
                proven=news.how is not How.OUT_OF_REACH,
                note=part.note,
                provenance=part.provenance,
            )
            state.event(data, record)
        self._processes.end_row(process, part)
        state.step.later.append(ForgetPart(Keeper.STRAYS, part.id))
        self._runs.part_ended(record, state.clock.wall())
