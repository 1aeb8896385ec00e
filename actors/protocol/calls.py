"""What the active run says and asks: text, steering, calls, processes.

What comes here was made plain where it came from: exact texts and JSON. Everything begins with `_open`: what is stale
is counted and becomes a dead letter, and where somebody waits for an answer to it, that is a refusal. What is granted
is on record, with its cell, its token and its part, before the permit leaves (after the commit).
"""

from __future__ import annotations

import msgspec

from actors.gate.cell import Cell, CellState
from actors.gate.token import CancelToken
from actors.messages import (
    CallExpired,
    CallGivenUp,
    CallRequested,
    CallStarted,
    ProcessOutput,
    ProcessReport,
    Said,
    SpawnPermit,
    SpawnRequested,
    Steered,
    SteeringRequested,
    ToolResult,
)
from actors.model import (
    Address,
    Event,
    How,
    JsonObject,
    Message,
    Outcome,
    Provenance,
)
from actors.ports import CallRow, ProcessRow
from actors.protocol import notes
from actors.protocol.run_record import (
    OUTPUT_KEPT_CHARS,
    OUTPUT_LOGGED_MAX_BYTES,
    CallRecord,
    Part,
    ProcessRecord,
    RunRecord,
)
from actors.protocol.state import SessionState
from actors.protocol.step import (
    CloseCall,
    GivePermit,
    GiveSpawn,
    GiveSteering,
    MakeWait,
    NothingToSteer,
    RefuseCall,
    RefuseSpawn,
    ReturnCredit,
    ShowEphemeral,
)
from actors.text import storable, storable_json, tail


class RunReports(SessionState):
    """The decisions on what an open run reports."""

    # ── What the agent says ──────────────────────────────────────────────────────────────────────────

    def said(self, said: Said) -> None:
        """The agent said something."""
        record = self._open(said.address)
        if record is None:
            self._stale(said.kind, said.address, said.data)
            self.step.later.append(ReturnCredit(said.address.run, said.size))
            return
        if said.kind == "text":
            record.said = True
            self._event("text", said.data, record)
        else:
            event = Event(
                self.seq,
                self.session,
                self.generation,
                record.id,
                said.kind,
                said.data,
                self._clock.wall(),
            )
            self.step.later.append(ShowEphemeral(event))
        self.step.later.append(ReturnCredit(record.id, said.size))

    def steering_requested(self, request: SteeringRequested) -> None:
        """The agent asks for messages that wait to steer it: they become inputs of this run now."""
        record = self._open(request.address)
        if record is None:
            self._stale("steering", request.address)
            self.step.now.append(NothingToSteer(request.address.run, request.request_id))
            return
        if record.open_calls() or not self.room.steering:
            self.step.now.append(NothingToSteer(record.id, request.request_id))
            return
        rows = self.room.pull_steering()
        for row in rows:
            self._input(row.message, record)
        inputs = (*record.info.inputs, *(row.message.id for row in rows))
        record.info = msgspec.structs.replace(record.info, inputs=inputs)
        self._save(record)
        at = self._clock.wall()
        messages = tuple(
            Message(
                id=row.message.id,
                role="user",
                content=row.message.content,
                generation=self.generation,
                run_id=record.id,
                origin=row.message.origin,
                sent_at=row.message.sent_at,
                at=at,
                attachments=tuple(attachment.name for attachment in row.message.attachments),
            )
            for row in rows
        )
        self.step.later.append(GiveSteering(record.id, Steered(request.request_id, messages)))

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────────

    def call_requested(self, request: CallRequested) -> None:
        """The agent asks for a call: it is on record, and starts when the barrier lets it."""
        call_id = request.address.call
        assert call_id is not None, "a call is requested under its own address"
        record = self._open(Address(request.address.session, request.address.generation, request.address.run))
        if record is None:
            self._stale("call", request.address, request.tool)
            self._return_credit(request.address.run, request.size)
            result = ToolResult(Outcome.NOT_STARTED, "Not started: the run is over.", is_error=True)
            self.step.now.append(RefuseCall(request.address.run, call_id, result))
            return
        if call_id in record.calls:
            self._dead("call", "it was asked for before", request.address, request.tool)
            return
        self._return_credit(record.id, request.size)
        problem = request.problem
        if problem is None and len(record.open_calls()) >= self._settings.calls_open_max:
            problem = f"too many calls are open: at most {self._settings.calls_open_max} at once"
        row = CallRow(
            session=self.session,
            run_id=record.id,
            call_id=call_id,
            tool=request.tool,
            arguments=request.arguments,
            state="requested",
            isolation=self._isolation.get(request.tool, "thread"),
        )
        call = CallRecord(row)
        record.calls[call_id] = call
        record.called = True
        asked: JsonObject = {"call_id": call_id, "tool": request.tool, "arguments": request.arguments}
        self._event("tool.requested", asked, record)
        self._save_call(call)
        at = self._clock.wall()
        if problem is not None:
            result = ToolResult(Outcome.NOT_STARTED, f"Not started: {problem}", is_error=True)
            self._end_call(record, call, result, at)
            self.step.now.append(RefuseCall(record.id, call_id, result))
        elif not self.barrier():
            self._grant(record, call)
        elif self._settings.barrier == "strict" and not self._barrier_may_open():
            self._refuse_strictly(record, call, at)
        else:
            self.step.now.append(MakeWait(record.id, call_id))

    def _return_credit(self, run_id: str, size: int | None) -> None:
        """Give back, when this step is durable, what a report took; None: it took none."""
        if size is not None:
            self.step.later.append(ReturnCredit(run_id, size))

    def _barrier_may_open(self) -> bool:
        """True while no kill deadline of what the barrier waits for has passed."""
        return not any(record.barrier() for record in self.late.values())

    def _refuse_strictly(self, record: RunRecord, call: CallRecord, at: float) -> None:
        names = ", ".join(f"{part.kind} {part.name}" for part in self.barrier())
        result = ToolResult(
            Outcome.NOT_STARTED,
            f"Not started: something of an earlier run could not be ended ({names}).",
            is_error=True,
        )
        self._end_call(record, call, result, at)
        self.step.now.append(RefuseCall(record.id, call.row.call_id, result))

    def _grant(self, record: RunRecord, call: CallRecord) -> None:
        """Grant a call: cell, token and part are there before the permit leaves (after the commit)."""
        cell: Cell[ToolResult] = Cell()
        token = CancelToken(self._notify, record.token)
        call.cell, call.token = cell, token
        call.row = msgspec.structs.replace(call.row, state="granted")
        call_id = call.row.call_id
        record.add(Part(call_id, "call", call.row.tool, None, holds=call.row.isolation != "task"))
        self._save_call(call)
        self.step.later.append(GivePermit(record.id, call_id, cell, token))

    def call_started(self, report: CallStarted) -> None:
        """A call passed its cell."""
        record = self._open(report.address)
        call = self._call(report.address)
        part = self._part(report.address)
        if part is not None:
            part.started_at = report.at
        if record is None or call is None or call.row.state != "granted":
            self._dead("call_started", "its call is closed, or has started before", report.address, "")
            return
        call.row = msgspec.structs.replace(call.row, state="started", started_at=report.at)
        self._event("tool.started", {"call_id": call.row.call_id}, record)
        self._save_call(call)

    def call_expired(self, report: CallExpired) -> None:
        """A call's deadline closed it. The run goes on; the execution may go on ending."""
        record = self._open(report.address)
        call = self._call(report.address)
        if record is None or call is None:
            self._dead("call_expired", "its call is closed", report.address, "")
            return
        state = CellState.CLOSED if report.started else CellState.VOID
        result = notes.closed_result(state, None, report.provenance, call.output, record.spools_of(call))
        self.step.now.append(CloseCall(record.id, call.row.call_id, result, None))
        self._cut_call(record, call, result, report.at, report.provenance)

    def call_given_up(self, report: CallGivenUp) -> None:
        """The agent waits for a call no longer: close it by its cell, and end what executes it.

        It is decided here, where the order of the log is: what the agent says after it comes after the result. One
        that has its result, by a fence, by its deadline, or by its own end, keeps it.
        """
        record = self._open(report.address)
        call = self._call(report.address)
        if record is None or call is None:
            self._dead("call_given_up", "its call is closed", report.address, "")
            return
        at = self._clock.wall()
        provenance = self._inside("call.given_up", notes.GIVEN_UP, at, None)
        if call.cell is None or call.token is None:
            result = notes.closed_result(None, None, provenance, "")
            self.step.now.append(RefuseCall(record.id, call.row.call_id, result))
            self._end_call(record, call, result, at, provenance=provenance)
            return
        state, finished = call.cell.close()
        if finished is not None:
            self.step.now.append(CloseCall(record.id, call.row.call_id, finished, None))
            self._end_call(record, call, finished, at)
            return
        call.token.cancel(provenance)
        # Its deadline may have been first: its actor has cancelled the token then, and says so.
        cause = call.token.provenance or provenance
        result = notes.closed_result(state, None, cause, call.output, record.spools_of(call))
        self.step.now.append(CloseCall(record.id, call.row.call_id, result, cause))
        if state is CellState.VOID:
            self._never_began(record, call, at)
        self._cut_call(record, call, result, at, cause)

    def _cut_call(
        self, record: RunRecord, call: CallRecord, result: ToolResult, at: float, provenance: Provenance
    ) -> None:
        """End a call before its own end, in a run that goes on: nothing more is spawned for it."""
        self._end_call(record, call, result, at, provenance=provenance)
        for process in record.processes.values():
            part = record.parts[process.row.process_id]
            if process.row.call_id != call.row.call_id or process.cell is None:
                continue
            if process.cell.close()[0] is CellState.VOID and not part.ended:
                self._void_spawn(record, process, part, at)
            part.ended_by(provenance)

    def _never_began(self, record: RunRecord, call: CallRecord, at: float) -> None:
        """A call was granted, and its cell was void before anything ran: nothing of it is left to end."""
        record.parts[call.row.call_id].end(How.NOT_STARTED, at)
        call.row = msgspec.structs.replace(call.row, ended_at=at, how=How.NOT_STARTED)
        self._save_call(call)

    def _end_call(
        self,
        record: RunRecord,
        call: CallRecord,
        result: ToolResult,
        at: float,
        provenance: Provenance | None = None,
    ) -> None:
        """Give a call its one result in the log."""
        call.row = msgspec.structs.replace(call.row, state="ended", outcome=str(result.outcome))
        data: JsonObject = {
            "call_id": call.row.call_id,
            "tool": call.row.tool,
            "outcome": str(result.outcome),
            "content": result.content,
            "is_error": result.is_error,
        }
        if result.data is not None:
            data["data"] = result.data
        if provenance is not None:
            data["provenance"] = storable_json(provenance)
        self._event("tool.ended", data, record)
        # Its outcome says the rest; the cell would hold the result for as long as the run goes on.
        call.cell = None
        if call.row.call_id not in record.parts:
            call.row = msgspec.structs.replace(call.row, ended_at=at)
            record.trim()
        self._save_call(call)

    # ── Processes ────────────────────────────────────────────────────────────────────────────────────

    def spawn_requested(self, request: SpawnRequested) -> None:
        """A tool asks for a process: on record, and gated, before it is spawned."""
        address = request.address
        record = self._open(address)
        call = self._call(address)
        if record is None or call is None or address.call is None:
            self._stale("spawn", address, request.spec.name)
            self.step.now.append(RefuseSpawn(address.run, address.call or "", request.process_id))
            return
        if request.process_id in record.processes:
            self._dead("spawn", "it was asked for before", address, request.spec.name)
            return
        if len([p for p in record.open_parts() if p.kind == "process"]) >= self._settings.processes_max:
            self._stale("spawn_over_limit", address, request.spec.name)
            self.step.now.append(RefuseSpawn(record.id, address.call, request.process_id, self._settings.processes_max))
            return
        cell: Cell[None] = Cell()
        row = ProcessRow(
            self.session, record.id, address.call, request.process_id, storable(request.spec.name), "granted"
        )
        record.processes[request.process_id] = ProcessRecord(row, cell)
        record.add(Part(request.process_id, "process", row.name, address.call, holds=True))
        self.step.processes[request.process_id] = row
        self.step.later.append(GiveSpawn(record.id, SpawnPermit(address.call, request.process_id, cell)))

    def _process_output(self, record: RunRecord, report: ProcessReport, news: ProcessOutput) -> None:
        if self._open(report.address) is None:
            self._stale("output", report.address, news.text)
            return
        call = record.calls[report.address.call or ""]
        call.output = tail(call.output + news.text, OUTPUT_KEPT_CHARS)
        process = record.processes.get(report.process_id)
        if process is not None:
            process.output_chars += len(news.text)
        if call.muted:
            return
        text, marker = storable(news.text), news.marker
        room = OUTPUT_LOGGED_MAX_BYTES - call.logged_bytes
        encoded = text.encode()
        if len(encoded) > room and not marker:
            # Each of its processes has this limit too, but several of them together have come to it.
            self._log_output(record, report, news.stream, encoded[:room].decode(errors="ignore"))
            text = f"[the limit of {OUTPUT_LOGGED_MAX_BYTES} bytes of logged output is reached]"
            marker = True
        call.muted = marker
        call.logged_bytes += len(encoded)
        self._log_output(record, report, news.stream, text, marker=marker)

    def _log_output(
        self, record: RunRecord, report: ProcessReport, stream: str, text: str, *, marker: bool = False
    ) -> None:
        data: JsonObject = {
            "call_id": report.address.call,
            "process_id": report.process_id,
            "stream": stream,
            "text": text,
        }
        if marker:
            data["marker"] = True
        if text:
            self._event("tool.output", data, record)

    def _void_spawn(self, record: RunRecord, process: ProcessRecord, part: Part, at: float) -> None:
        """A spawn that was granted will not take place: its tool is told, also where the permit is on its way."""
        part.end(How.NOT_STARTED, at)
        self._process_row_ended(process, part)
        self.step.now.append(RefuseSpawn(record.id, process.row.call_id, process.row.process_id))

    def _process_row_ended(self, process: ProcessRecord, part: Part) -> None:
        process.row = msgspec.structs.replace(process.row, state="ended", end=part.as_row(()))
        self.step.processes[process.row.process_id] = process.row
