"""The life of a run: queued, started, fenced, closed, settled.

- The *fence* is one step: generation + 1, every open cell read and shut, the token cancelled. After it nothing that
  carries the old generation is open, so nothing of it is accepted (law L1).
- A run is *closed* in one place, `_close`, whatever ended it: each open call gets its one result by its cell, the
  status moves by the one table, and the note for the model is written. So there is nothing to repair on any way out.
- The reports of endings, and they alone, are taken from closed runs, by the record of the run, in any generation.
- A run *settles* once: when its last part has ended, or its kill deadline has passed, whichever is first. Each end of
  a part asks again whether permits may go on. What is heard of a run after it settled amends its receipt.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from actors.gate.cell import CellState
from actors.gate.credit import Credit
from actors.gate.token import CancelToken
from actors.messages import (
    CallEnded,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    RunExpired,
    RunFinished,
    StrayEnded,
    StrayFound,
)
from actors.model import (
    Address,
    How,
    Json,
    JsonObject,
    Message,
    Mode,
    Outcome,
    Provenance,
    RunInfo,
    RunStatus,
    Waiting,
)
from actors.ports import ProcessRow
from actors.protocol import notes
from actors.protocol.calls import RunReports
from actors.protocol.queue import PendingTurn, as_message
from actors.protocol.run_record import AGENT, SUBPROCESS, Part, ProcessRecord, RunRecord
from actors.protocol.step import AdoptRun, CloseCall, ForgetPart, HaltRun, RefuseCall, StartRun
from actors.requests import NewMessage
from actors.text import storable, storable_json

LATE_KEPT_MAX = 256
ADOPTIONS_MAX = 3


class RunLifecycle(RunReports):
    """The decisions on how runs begin and end."""

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────

    def _start_run(
        self,
        run_id: str,
        inputs: Iterable[NewMessage],
        at: float,
        *,
        counted: bool = False,
        resumed: bool = False,
        retry: RunInfo | None = None,
    ) -> None:
        assert self.active is None, "a session has at most one active run"
        if not counted:
            self.generation += 1
        messages = list(inputs)
        ids = tuple(message.id for message in messages) if retry is None else retry.inputs
        info = RunInfo(
            session=self.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            agent=self._settings.agent,
            generation=self.generation,
            receipt_id=self._ids.new("rcpt"),
            inputs=ids,
            retry_of=retry.run_id if retry else None,
            attempt=retry.attempt + 1 if retry else 1,
            created_at=at,
            started_at=at,
        )
        queued = self._queued.pop(run_id, None)
        if queued is not None:
            info = msgspec.structs.replace(info, receipt_id=queued.receipt_id, created_at=queued.created_at)
        settings = self._settings
        record = RunRecord(info, CancelToken(self._notify), Credit(settings.credit_events, settings.credit_bytes))
        record.move(RunStatus.IN_PROGRESS)
        self.active = record
        for message in messages:
            self._input(message, record)
        data: JsonObject = {"agent": info.agent, "inputs": list(ids)}
        if resumed:
            data["resumed"] = True
        if retry is not None:
            data["retry_of"] = retry.run_id
        self._event("run.started", data, record)
        self._save(record)
        self.step.later.append(StartRun(run_id))

    def may_start(self, run_id: str) -> RunRecord | None:
        """Ask, after the commit, whether a run may start its agent; if so its part is on record now."""
        record = self.active
        if record is None or record.id != run_id or AGENT in record.parts:
            return None
        record.parts[AGENT] = Part(AGENT, AGENT, record.info.agent, None, holds=False, started_at=self._clock.wall())
        return record

    def _start_next(self, at: float) -> None:
        """Start the first pending turn, if the session is free for it."""
        if self.active is not None or self.draining or self.quarantined or self.room.parked or self._holding:
            return
        if self._taking_up:
            # What ends meanwhile must not start the next turn in front of a retry, or of a Stop that was kept.
            return
        if self._unavailable() is not None:
            # It waits for its agent.
            return
        turn = self.room.take_next()
        if turn is not None:
            self._start_run(turn.run_id, [row.message for row in turn.rows], at)

    def _go_on(self, at: float) -> None:
        """Something ended: let what waited for it go on."""
        if self._holding is not None and self._holding not in self.ending:
            self._holding = None
        if self.active is not None and not self.barrier():
            for call in self.active.open_calls():
                if call.waits:
                    self._grant(self.active, call)
        self._start_next(at)

    # ── Fence, close, settle ─────────────────────────────────────────────────────────────────────────

    def _fence(self, provenance: Provenance, closing: RunRecord | None, at: float) -> int:
        """Shut the fence: generation + 1, cells, token, and the event of it. Returns the event's seq."""
        self.generation += 1
        if closing is not None:
            self._shut(closing, provenance)
        seq = self._event(
            "session.fenced",
            {"run_id": closing.id if closing else None, "provenance": storable_json(provenance)},
            None,
        )
        if closing is not None:
            closing.fenced_at = at
            closing.info = msgspec.structs.replace(closing.info, fence_seq=seq)
        return seq

    @staticmethod
    def _shut(record: RunRecord, provenance: Provenance) -> None:
        """Shut every cell of a run and cancel its token. From here on nothing of it can begin."""
        for call in record.calls.values():
            if call.cell is not None:
                call.cell.close()
        for process in record.processes.values():
            if process.cell is not None:
                process.cell.close()
        record.token.cancel(provenance)

    def _close(
        self,
        record: RunRecord,
        status: RunStatus,
        provenance: Provenance | None,
        at: float,
        *,
        noted: bool = True,
        error: str | None = None,
        result: Json = None,
    ) -> None:
        """Close a run's transcript and move its status: the one way in which any run ends.

        `provenance` is None for an end of its own; then its children end by ``run.ended``.
        """
        cause = provenance or self._inside("run.ended", "the agent's own end", at, None)
        self._shut(record, cause)
        for call in record.open_calls():
            state, finished = call.cell.close() if call.cell is not None else (None, None)
            if call.waits:
                self.step.now.append(
                    RefuseCall(record.id, call.row.call_id, notes.closed_result(None, None, cause, ""))
                )
            spools = record.spools_of(call)
            result_of_it = notes.closed_result(state, finished, cause, call.output, spools)
            self._end_call(record, call, result_of_it, at)
            if state is CellState.VOID:
                self._never_began(record, call, at)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.cell is not None and process.cell.close()[0] is CellState.VOID and not part.ended:
                self._void_spawn(record, process, part, at)
        if provenance is not None:
            record.info = msgspec.structs.replace(record.info, provenance=provenance)
        else:
            for part in record.open_parts():
                if part.kind in ("process", SUBPROCESS):
                    part.ended_by(cause)
        record.move(status)
        record.fenced_at = record.fenced_at or at
        record.info = msgspec.structs.replace(record.info, error=error, result=result)
        if record.terminal:
            record.info = msgspec.structs.replace(record.info, ended_at=at)
        data: JsonObject = {"status": str(status)}
        if provenance is not None:
            data["provenance"] = storable_json(provenance)
        if error is not None:
            data["error"] = error
        if result is not None:
            data["result"] = result
        if noted and provenance is not None:
            data["note"] = notes.run_note(provenance, calls_started=self._calls_started(record))
        elif noted and error is not None:
            data["note"] = notes.failure_note(error)
        self._event("run.status", data, record)
        self._save(record)
        if self.active is record:
            self.active = None
        self.ending[record.id] = record

    @staticmethod
    def _calls_started(record: RunRecord) -> bool:
        """Whether a call of a run whose cells are shut had begun, so that it may have had effects."""
        return record.effects or any(
            call.row.outcome not in (None, Outcome.NOT_STARTED)
            if call.cell is None
            else call.cell.state in (CellState.CLOSED, CellState.FINISHED)
            for call in record.calls.values()
        )

    def _halt(self, record: RunRecord, provenance: Provenance, mode: Mode, *, moves: bool = True) -> None:
        """Tell a closed run to end what it has, unless nothing of it is left.

        `moves`: the kill deadline that this sets takes the place of an earlier one; else the first of them counts.
        """
        record.mode = mode
        record.stage += moves
        if record.open_parts():
            self.step.now.append(HaltRun(record.id, provenance, mode, record.stage))

    def _join(self, record: RunRecord, provenance: Provenance) -> None:
        """A further Stop of a run that is ending: keep its cause, and raise the mode, never lower it.

        The deadline may come nearer by that, and never further away: the earlier one counts too.
        """
        hurries = provenance.mode is Mode.IMMEDIATE and record.mode is Mode.GRACEFUL
        if record.status is RunStatus.CANCELLING or hurries:
            record.info = msgspec.structs.replace(record.info, later=(*record.info.later, provenance)[-16:])
            self._save(record)
        if hurries:
            self._halt(record, provenance, Mode.IMMEDIATE, moves=False)

    def _settle_if_done(self, record: RunRecord, at: float) -> None:
        if record.id in self.ending and not record.awaited_parts():
            self._settle(record, at)

    def _settle(self, record: RunRecord, at: float) -> None:
        """File the receipt, once, and give a cancelled run its terminal status."""
        del self.ending[record.id]
        if record.status is RunStatus.CANCELLING:
            record.move(RunStatus.CANCELLED)
            record.info = msgspec.structs.replace(record.info, ended_at=at)
            self._event("run.status", {"status": str(RunStatus.CANCELLED)}, record)
        record.info = msgspec.structs.replace(record.info, settled=True, late=bool(record.open_parts()))
        receipt = record.file_receipt(at, record.info.later)
        self.step.receipts[receipt.receipt_id] = receipt
        self._event("run.ended", {"status": str(record.status), "receipt": storable_json(receipt)}, record)
        self._save(record)
        self.over[record.id] = receipt.receipt_id
        if record.info.late:
            self._keep_late(record)
        self._go_on(at)

    def _keep_late(self, record: RunRecord) -> None:
        """Keep a settled run of which something may still be heard; of very many the oldest is given up."""
        self.late[record.id] = record
        while len(self.late) > LATE_KEPT_MAX:
            self._no_longer_late(self.late[next(iter(self.late))])

    def _no_longer_late(self, record: RunRecord) -> None:
        del self.late[record.id]
        record.info = msgspec.structs.replace(record.info, late=False)
        self._save(record)

    def kill_deadline(self, run_id: str, stage: int) -> None:
        """The time in which a closed run had to end has passed: name what is left, and go on."""
        record = self.ending.get(run_id)
        if record is None or record.stage != stage:
            return
        at = self._clock.wall()
        self._wait_no_longer(record, record.barrier(), at)
        self._settle(record, at)

    def _wait_no_longer(self, record: RunRecord, held: list[Part], at: float) -> None:
        """The kill deadline of a closed run has passed: later calls no longer wait for its parts, or are refused."""
        if self._settings.barrier == "forced":
            record.forced = True
            if held:
                names = [f"{part.kind} {part.name}" for part in held]
                self._event("session.barrier_forced", {"run_id": record.id, "abandoned": names}, self.active or record)
        elif held and self.active is not None:
            # Strict: what waits is refused, and so is what comes until the parts are proven ended.
            for call in self.active.open_calls():
                if call.waits:
                    self._refuse_strictly(self.active, call, at)

    def abandon(self, provenance: Provenance) -> None:
        """Shut every gate at once, without a record: the actor is failing, or the store takes no writes."""
        for record in self._records():
            self._shut(record, provenance)

    # ── Ends that a run reports ──────────────────────────────────────────────────────────────────────

    def run_finished(self, report: RunFinished) -> None:
        """The agent ended. While its run is open that is the run's end; else one more part of it ended."""
        record = self._open(report.address)
        at = self._clock.wall()
        if record is None:
            if report.how is How.RETURNED:
                self._stale("result", report.address, report.result)
            self._part_ended(report.address, report.how, report.at, report.error or "")
            return
        record.parts[AGENT].end(report.how, report.at, report.error or "")
        self.step.later.append(ForgetPart("execution", record.id))
        if report.how is How.RETURNED:
            self._end_run(record, RunStatus.COMPLETED, None, at, result=report.result)
        else:
            error = report.error or "the agent ended without saying why"
            self._end_run(record, RunStatus.FAILED, None, at, error=error)

    def run_expired(self, report: RunExpired) -> None:
        """The run's deadline passed."""
        record = self._open(report.address)
        if record is None:
            self._dead("run_expired", "its run is closed", report.address, "")
            return
        self._end_run(record, RunStatus.EXPIRED, report.provenance, self._clock.wall())

    def run_lost(self, run_id: str, failure: str | None) -> None:
        """A run's actor is gone. If its run was open it has failed; what it had running is taken over."""
        record = self._record(run_id)
        if record is None:
            return
        at = self._clock.wall()
        if record is self.active:
            reason = f"the run's actor is gone: {failure or 'it was stopped'}"
            provenance = self._inside("actor.failure", reason, at, None)
            self._end_run(record, RunStatus.FAILED, provenance, at, error=reason)
        # A tree that its warden lost brings no more news, whoever asks.
        if any(not part.lost for part in record.runner_parts()) and record.adoptions < ADOPTIONS_MAX:
            record.adoptions += 1
            self.step.later.append(AdoptRun(run_id))

    def _end_run(
        self,
        record: RunRecord,
        status: RunStatus,
        provenance: Provenance | None,
        at: float,
        *,
        error: str | None = None,
        result: Json = None,
    ) -> None:
        """End the active run in another way than by a fence; its children end under the barrier."""
        cause = provenance or self._inside("run.ended", f"the run is {status}", at, None)
        self._close(record, status, provenance, at, error=error, result=result)
        self._halt(record, cause, Mode.GRACEFUL)
        self._unsteer(at)
        self._settle_if_done(record, at)
        self._start_next(at)

    def call_ended(self, report: CallEnded) -> None:
        """A call's execution ended. For an open call this brings its result; for a closed one, proof."""
        record = self._open(report.address)
        call = self._call(report.address)
        if record is not None and call is not None and report.result is not None:
            self._end_call(record, call, report.result, report.at)
        elif record is not None and call is not None:
            # The execution is gone and brought no result (its actor failed, or it could not be started).
            if call.cell is not None:
                call.cell.close()
            result = notes.lost_result(report.how, report.note)
            self.step.now.append(CloseCall(record.id, call.row.call_id, result, None))
            self._end_call(record, call, result, report.at)
        elif report.late or (report.result is not None and not (call is not None and call.finished)):
            self._stale("result", report.address, report.how)
        self._part_ended(report.address, report.how, report.at, report.note)

    def process_report(self, report: ProcessReport) -> None:
        """News of a process tree. Endings are taken in any generation; the rest only while the call is open."""
        record = self._record(report.address.run)
        part = record.parts.get(report.process_id) if record is not None else None
        if record is None or part is None:
            self._dead("process", "its run is not known", report.address, report.process_id)
            if isinstance(report.news, ProcessEnded) and report.news.proven:
                self.step.later.append(ForgetPart("process", report.process_id))
            return
        open_run = self._open(Address(report.address.session, report.address.generation, report.address.run))
        match report.news:
            case ProcessStarted() as news:
                known, part.pid, part.started_at = part.pid, news.pid, news.at
                if report.process_id in record.processes:
                    record.processes[report.process_id].spool = news.spool
                if open_run is not None and known is None:
                    data = {
                        "call_id": report.address.call,
                        "process_id": report.process_id,
                        "pid": news.pid,
                        "name": part.name,
                    }
                    self._event("process.started", data, record)
            case ProcessOutput() as news:
                self._process_output(record, report, news)
            case ProcessExited() as news:
                part.status = news.status
                if report.process_id in record.processes:
                    record.processes[report.process_id].spool = news.spool
            case ProcessRemaining() as news:
                self._process_remains(part, news)
            case ProcessKilled() as news if open_run is not None:
                part.ended_by(news.provenance)
            case ProcessKilled():
                self._dead("process_killed", "its run is over, and ends it", report.address, report.process_id)
            case ProcessEnded() as news:
                self._process_ended(record, part, report, news)

    def _process_remains(self, part: Part, news: ProcessRemaining) -> None:
        """Some of a tree could not be killed so far: the receipt is to name it, also one that was filed before."""
        if part.ended:
            return
        named, part.remaining = part.remaining is not None, news
        at = self._clock.wall()
        for record in [] if named else list(self.late.values()):
            if record.parts.get(part.id) is part:
                self._amend(record, at)

    def _process_ended(self, record: RunRecord, part: Part, report: ProcessReport, news: ProcessEnded) -> None:
        if part.ended or (part.lost and not news.proven):
            # Told again, to one that took the tree over.
            if news.proven:
                self.step.later.append(ForgetPart("process", report.process_id))
            return
        part.end_process(news)
        at = self._clock.wall()
        data: JsonObject = {
            "call_id": report.address.call,
            "process_id": report.process_id,
            "how": str(news.how),
            "status": news.status,
            "reaped": news.reaped,
            "proven": news.proven,
        }
        if news.note:
            data["note"] = news.note
        if part.provenance is not None:
            data["provenance"] = storable_json(part.provenance)
        self._event("process.ended", data, record)
        if not news.proven:
            return
        process = record.processes.get(report.process_id)
        if process is not None:
            self._process_row_ended(process, part)
        self.step.later.append(ForgetPart("process", report.process_id))
        self._after_part(record, at)

    # ── What code of a run started by itself ─────────────────────────────────────────────────────────

    def stray_found(self, found: StrayFound) -> None:
        """Something was started that nobody asked the session for: it is a part from here on, in any generation."""
        address, key = found.address, found.stray_id
        record = self._record(address.run)
        if record is None:
            self._dead("stray", "its run is not known", address, found.name)
            return
        if key in record.parts:
            # Told again, to one that took the run over.
            return
        parent = address.call if address.call in record.parts else AGENT
        part = Part(key, found.kind, storable(found.name), parent, found.ours, found.ours, started_at=found.at)
        part.pid, part.note = found.pid, found.note
        if not record.open and record.info.provenance is None:
            # The run came to its end by itself, and that is what ends this.
            part.provenance = record.token.provenance
        record.add(part)
        row = ProcessRow(
            self.session,
            record.id,
            address.call or "",
            key,
            part.name,
            "granted",
            generation=address.generation,
            pid=found.pid,
            started_at=found.at,
            kind=found.kind,
            born=found.born,
            ours=found.ours,
        )
        record.processes[key] = ProcessRecord(row, None)
        self.step.processes[key] = row
        if record is self.active and part.kind == SUBPROCESS:
            self._stray_event("process.started", record, row, {"pid": found.pid, "name": part.name})
        if record.id in self.late:
            at = self._clock.wall()
            # Its code went on after the kill deadline, and this was found only now.
            self._wait_no_longer(record, [part] if part.holds else [], at)
            self._amend(record, at)

    def stray_ended(self, news: StrayEnded) -> None:
        """A stray ended: taken of an open and of a closed run, in any generation."""
        record = self._record(news.address.run)
        part = record.parts.get(news.stray_id) if record is not None else None
        if record is None or part is None or part.ended:
            self.step.later.append(ForgetPart("stray", news.stray_id))
            return
        part.end_stray(news)
        if news.how is How.OUT_OF_REACH:
            record.unseen.add(part.id)
        process = record.processes[part.id]
        if part.kind == SUBPROCESS:
            data: JsonObject = {"how": str(news.how) if news.how else None, "status": news.status}
            data |= {"reaped": news.reaped, "proven": news.how is not How.OUT_OF_REACH}
            if part.note:
                data["note"] = part.note
            if part.provenance is not None:
                data["provenance"] = storable_json(part.provenance)
            self._stray_event("process.ended", record, process.row, data)
        self._process_row_ended(process, part)
        self.step.later.append(ForgetPart("stray", part.id))
        self._after_part(record, self._clock.wall())

    def _stray_event(self, kind: str, record: RunRecord, row: ProcessRow, data: JsonObject) -> None:
        of: JsonObject = {"call_id": row.call_id} if row.call_id else {}
        self._event(kind, {**of, "process_id": row.process_id, "kind": row.kind, **data}, record)

    def _part_ended(self, address: Address, how: How, at: float, note: str) -> None:
        """An execution ended, of an open or a closed run, in any generation."""
        record = self._record(address.run)
        key = address.call or AGENT
        part = record.parts.get(key) if record is not None else None
        if record is None or part is None or part.ended:
            # Voided by a fence, or of a run that settled long ago: its port may forget it all the same.
            self.step.later.append(ForgetPart("execution", address.call or address.run))
            return
        if address.call is not None and record.calls[address.call].row.outcome == Outcome.NOT_STARTED:
            # What never passed its cell was not killed, whoever says that it is gone.
            how = How.NOT_STARTED
        part.end(how, at, note)
        if address.call is not None:
            call = record.calls[address.call]
            call.row = msgspec.structs.replace(call.row, ended_at=at, how=how)
            self._save_call(call)
            if call.token is not None:
                call.token.detach()
        self.step.later.append(ForgetPart("execution", address.call or record.id))
        self._after_part(record, self._clock.wall())

    def _after_part(self, record: RunRecord, at: float) -> None:
        """A part ended for sure: settle its run, amend its receipt, or let permits go on."""
        if record.id in self.late:
            self._amend(record, at)
            if not record.open_parts():
                self._no_longer_late(record)
            self._go_on(at)
            return
        self._settle_if_done(record, at)
        self._go_on(at)

    def _amend(self, record: RunRecord, at: float) -> None:
        """File the receipt of a settled run again, with what has become known since."""
        receipt = record.file_receipt(at, record.info.later)
        self.step.receipts[receipt.receipt_id] = receipt
        self._event("receipt.amended", {"receipt": storable_json(receipt)}, record)

    # ── Turns that wait ──────────────────────────────────────────────────────────────────────────────

    def _queue_run(self, run_id: str, at: float) -> None:
        info = RunInfo(
            session=self.session,
            run_id=run_id,
            status=RunStatus.QUEUED,
            agent=self._settings.agent,
            generation=None,
            receipt_id=self._ids.new("rcpt"),
            created_at=at,
        )
        self._queued[run_id] = info
        self.step.runs[run_id] = info

    def _unsteer(self, at: float) -> None:
        """The active run is over: what waited to steer it waits on as a pending turn, in its place."""
        rows, new = self.room.unsteer(lambda: self._ids.new("run"))
        for run_id in new:
            self._queue_run(run_id, at)
        for row in rows:
            self._waits(row)

    def _end_queued(self, turn: PendingTurn, provenance: Provenance, at: float, withdrawn: tuple[str, ...]) -> str:
        """A run that never started is cancelled, with a receipt that says so. Returns the receipt's id."""
        info = self._queued.pop(turn.run_id)
        record = RunRecord(info, CancelToken(self._notify), Credit(1, 1), withdrawn=withdrawn, fenced_at=at)
        record.token.cancel(provenance)
        record.info = msgspec.structs.replace(record.info, provenance=provenance, ended_at=at)
        record.move(RunStatus.CANCELLED)
        data = {"status": str(RunStatus.CANCELLED), "provenance": storable_json(provenance)}
        self._event("run.status", data, record)
        record.info = msgspec.structs.replace(record.info, settled=True)
        receipt = record.file_receipt(at, ())
        self.step.receipts[receipt.receipt_id] = receipt
        self._event("run.ended", {"status": str(record.status), "receipt": storable_json(receipt)}, record)
        self._save(record)
        self.over[info.run_id] = receipt.receipt_id
        return receipt.receipt_id

    def _unpark_if_empty(self) -> None:
        """Nothing is parked where nothing waits: a later message need not wait for a person."""
        if self.room.parked and not len(self.room):
            self.room.parked = False
            self.step.row_changed = True

    def _treat_waiting(
        self, waiting: Waiting, provenance: Provenance, at: float, closed: RunRecord | None
    ) -> tuple[Message, ...]:
        """Do with the waiting messages what a Stop says. Returns those that were withdrawn."""
        if waiting is not Waiting.WITHDRAW and closed is not None:
            self._unsteer(at)
            closed.waiting = tuple(row.message.id for turn in self.room.turns for row in turn.rows)
        if waiting is Waiting.PARK:
            self.room.parked = self.room.parked or bool(len(self.room))
            self.step.row_changed = True
            return ()
        if waiting is Waiting.KEEP:
            if closed is not None and len(self.room):
                self._holding = closed.id
            return ()
        rows, turns = self.room.take_all()
        withdrawn = tuple(as_message(row.message, row.run_id, row.accepted_at) for row in rows)
        for row in rows:
            self._returned(row.message, row.run_id, "withdrawn")
        for turn in turns:
            self._end_queued(turn, provenance, at, tuple(row.message.id for row in turn.rows))
        if closed is not None:
            closed.withdrawn += tuple(message.id for message in withdrawn)
        return withdrawn
