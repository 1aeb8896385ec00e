"""Mutants of what the protocol decides about runs and their calls."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.run import RunActor
from actors.protocol.calls import Calls
from actors.protocol.run_record import Part, RunRecord
from actors.protocol.runs import Runs
from tests.sim.mutants.mutant import Edit, Mutant, mutant

RUNS: Final = (
    mutant(
        "a tool says something behind its result",
        "L1",
        Runs,
        "tool_said",
        "record = state.open_run(report.address)",
        "record = state.open_run(msgspec.structs.replace(report.address, call=None))",
    ),
    # ── Runs ──
    mutant("the fence does not count", "L1", Runs, "fence", "state.generation += 1", "pass"),
    mutant(
        "text of a closed run is accepted",
        "L1",
        Runs,
        "said",
        "record = state.open_run(said.address)",
        "record = state.open_run(said.address) or state.record(said.address.run)",
    ),
    Mutant(
        "a fenced run is sent to the spare that was reserved for it",
        "L1",
        (
            Edit(
                Runs,
                "claim_start",
                "record = self._state.active\n    if record is None or record.id != run_id or AGENT",
                "record = self._state.record(run_id)\n    if record is None or AGENT",
            ),
            Edit(RunActor, "_begin", "if start.token.cancelled:", "if False:"),
        ),
    ),
    mutant(
        "an agent that may not overlap begins beside an earlier run",
        "L3",
        Runs,
        "claim_start",
        "not agent.overlap",
        "False",
    ),
    mutant(
        "an agent begins before the abandoned parts of an earlier run are on record",
        "L3",
        Runs,
        "force_barrier",
        "state.step.later.append(OpenBarrier(run_id=record.id))",
        "record.forced = True",
    ),
    mutant(
        "a host that a run took back is left when the run does not begin",
        "L7",
        Runs,
        "halt",
        "self._state.step.later.append(AdoptRun(record.id))",
        "pass",
    ),
    mutant(
        "the end of a run takes the waiting messages",
        "L4",
        Runs,
        "end",
        "    self._turns.requeue_steering(at)\n",
        "    self._turns.requeue_steering(at)\n    self._state.queue.take_all()\n",
    ),
    mutant(
        "the second cause replaces the first",
        "L5",
        Runs,
        "join",
        "later=(*record.info.later, provenance)[-16:]",
        "provenance=provenance",
    ),
    mutant(
        "receipt before the reap",
        "L7",
        Runs,
        "settle_if_done",
        "not record.awaited_parts()",
        'not [part for part in record.awaited_parts() if part.kind != "process"]',
    ),
    mutant(
        "a second Stop gets a second receipt",
        "L7",
        Runs,
        "join",
        "later=(*record.info.later, provenance)[-16:]",
        'later=(*record.info.later, provenance)[-16:], receipt_id=self._state.ids.new("rcpt")',
    ),
    mutant("no kill deadline", "L7", Runs, "kill_deadline", "if record is None or record.stage != stage:", "if 1:"),
    mutant(
        "an immediate Stop postpones the kill deadline",
        "L7",
        Runs,
        "halt",
        "record.stage += moves",
        "record.stage += 1",
    ),
    mutant(
        "a late proof amends no receipt",
        "L7",
        Runs,
        "amend",
        "    receipt = record.file_receipt(at, record.info.later)\n"
        "    self._state.step.receipts[receipt.receipt_id] = receipt\n",
        "    receipt = record.file_receipt(at, record.info.later)\n",
    ),
    mutant(
        "token cleared at the end",
        "L8",
        Runs,
        "_settle",
        "    del state.ending[record.id]\n",
        "    del state.ending[record.id]\n    for call in record.calls.values():\n"
        "        if call.token is not None:\n            call.token._provenance = None\n",
    ),
    mutant(
        "drain starts the next turn",
        "L11",
        Runs,
        "start_next",
        "state.active is not None or state.draining or state.quarantined",
        "state.active is not None or state.quarantined",
    ),
    # ── RunRecord ──
    mutant(
        "a receipt is complete though a process of unknown origin may be of its run",
        "L3",
        RunRecord,
        "file_receipt",
        "complete=not open_parts",
        "complete=not self.awaited_parts()",
    ),
    mutant("parts are kept without a bound", "L14", RunRecord, "trim", "if excess <= 0:", "if excess <= 1000:"),
    mutant("a receipt lists parts beyond the bound", "L14", RunRecord, "file_receipt", "    self.trim()\n", ""),
    mutant(
        "rows that a receipt leaves out are not counted", "L14", RunRecord, "trim", "        self.omitted += 1\n", ""
    ),
    # ── Part ──
    mutant("an unproven end is taken as proof", "L3", Part, "end_process", "if news.proven:", "if True:"),
    # ── Calls ──
    mutant(
        "a result does not name the effects of its call",
        "L6",
        Calls,
        "end",
        "effects = call.token.end_effects(over)",
        "call.token.end_effects(over)",
    ),
    mutant(
        "the result in the cell is ignored",
        "L2",
        Calls,
        "close_all",
        "_closed(record, call, state, finished, cause)",
        "_closed(record, call, CellState.CLOSED if finished else state, None, cause)",
    ),
    mutant(
        "a result in the cell is ignored when the agent gives the call up",
        "L2",
        Calls,
        "given_up",
        "if finished is not None:",
        "if False:",
    ),
    Mutant(
        "repair after publish",
        "L6",
        (
            Edit(
                Calls,
                "close_all",
                "self.end(record, call, _closed(record, call, state, finished, cause), at)",
                "notes.closed_result(None, None, cause, '')",
            ),
            Edit(
                Runs,
                "_settle",
                "    del state.ending[record.id]\n",
                "    del state.ending[record.id]\n    for call in record.open_calls():\n"
                '        self._calls.end(record, call, notes.lost_result("raised", ""), at)\n',
            ),
        ),
    ),
    mutant(
        "a late result is a second result",
        "L6",
        Calls,
        "end",
        "replace(call.row, state=CallState.ENDED,",
        "replace(call.row, state=CallState.GRANTED,",
    ),
    Mutant(
        "a call that is given up is not cancelled",
        "L8",
        (
            Edit(Calls, "given_up", "call.token.cancel(provenance)", "pass"),
            Edit(RunActor, "_call_closed", "closed.provenance is not None", "False"),
        ),
    ),
    mutant(
        "one open call too many",
        "L14",
        Calls,
        "requested",
        ">= state.settings.calls_open_max:",
        "> state.settings.calls_open_max:",
    ),
)
