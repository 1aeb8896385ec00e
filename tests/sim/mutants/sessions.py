"""Mutants of what the protocol keeps of a session, and of how it restores it."""

from __future__ import annotations

from typing import Final

from actors.protocol import restoration
from actors.protocol.protocol import Protocol
from actors.protocol.restoration import Restoration
from actors.protocol.saves import Saves
from actors.protocol.state import SessionState
from actors.saved import Saved
from tests.sim.mutants.mutant import mutant

SESSIONS: Final = (
    # ── Saves, Saved ──
    mutant(
        "a save of a closed run is kept",
        "L1",
        Saves,
        "requested",
        "record = state.open_run(request.address)",
        "record = state.open_run(request.address) or state.record(request.address.run)",
    ),
    mutant("a rollback keeps the saves of its run", "L6", Saved, "add", "data.run_id == self._run", "False"),
    mutant(
        "saved state is lost when a session is read again",
        "L6",
        SessionState,
        "restore",
        "self.thread, self.saved = snapshot.thread, snapshot.saved",
        "self.thread = snapshot.thread",
    ),
    # ── SessionState ──
    mutant(
        "a report with a stale address is accepted",
        "L1",
        SessionState,
        "open_run",
        "        or address.generation != self.generation\n        or address.run != record.id\n",
        "",
    ),
    mutant("no barrier", "L3", SessionState, "barrier", "if record is not self.active", "if False"),
    mutant(
        "barrier for the last generation only",
        "L3",
        SessionState,
        "barrier",
        "(*self.ending.values(), *self.late.values())",
        "[*self.ending.values(), *self.late.values()][-1:]",
    ),
    mutant(
        "a strict barrier opens at the deadline",
        "L3",
        SessionState,
        "barrier",
        "(*self.ending.values(), *self.late.values())",
        "self.ending.values()",
    ),
    mutant(
        "answers are lost at a restart",
        "L10",
        SessionState,
        "restore",
        "    self.book.restore(snapshot.requests, row.forgotten_to if row is not None else 0.0)\n",
        "",
    ),
    mutant(
        "parked messages start a run after a restart",
        "L12",
        SessionState,
        "restore",
        "parked=row.parked if row is not None else False",
        "parked=False",
    ),
    mutant(
        "the cutoff of a Stop is lost at a restart",
        "L12",
        SessionState,
        "restore",
        "self.cutoffs = dict(row.cutoffs)",
        "self.cutoffs = {}",
    ),
    mutant(
        "passivates with a run under way",
        "L11",
        SessionState,
        "idle",
        "self.active is None and not self.ending",
        "not self.ending",
    ),
    mutant("passivates over an open barrier", "L11", SessionState, "nothing_left", "and not self.late", "and True"),
    mutant(
        "passivates with a tree of the session",
        "L11",
        SessionState,
        "nothing_left",
        "self.quiet and not self.late and not self.owned",
        "self.idle and not self.late",
    ),
    mutant(
        "shutdown does not wait for proofs",
        "L11",
        SessionState,
        "idle",
        "self.active is None and not self.ending",
        "self.active is None",
    ),
    # ── Restoration ──
    mutant(
        "parts of a run are not adopted after a restart",
        "L3",
        Restoration,
        "_restore_half",
        "state.step.later.append(AdoptRun(record.id))",
        "pass",
    ),
    mutant(
        "a run is retried though a Stop came after its failure",
        "L12",
        Restoration,
        "_restore_half",
        "can_run = not stops and",
        "can_run =",
    ),
    mutant(
        "an interrupted run is not closed at a restart",
        "L12",
        Restoration,
        "_restore_half",
        "        self._runs.close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)\n",
        "",
    ),
    mutant(
        "an untouched run is not retried",
        "L12",
        Restoration,
        "_restore_half",
        "_untouched(snapshot, record)",
        "False",
    ),
    mutant(
        "a run that had emitted text is retried",
        "L12",
        Restoration,
        "_restore_half",
        "_untouched(snapshot, record)",
        "True",
    ),
    mutant(
        "a run whose agent had begun an effect is retried",
        "L4",
        restoration,
        "_untouched",
        "or record.token.effects",
        "",
    ),
    mutant(
        "effects of an agent are lost when its session is read again",
        "L6",
        Restoration,
        "_record",
        "token_of(info.run_id) or self._state.new_token()",
        "self._state.new_token()",
    ),
    mutant(
        "effects of a call are lost when its session is read again",
        "L6",
        Restoration,
        "_record",
        "call.token = token_of(call.row.call_id)",
        "pass",
    ),
    mutant(
        "a stored Stop is decided again and stops later work",
        "L12",
        Restoration,
        "restore",
        "[kept for kept in kept_stops if kept.stop.id not in on_record]",
        "list(kept_stops)",
    ),
    mutant(
        "waiting turns start when a draining session is restored",
        "L11",
        Restoration,
        "restore",
        "    if state.draining or state.quarantined:\n        return cause\n",
        "    state.draining, draining = False, state.draining\n"
        "    self._runs.start_next(at)\n    state.draining = draining\n",
    ),
    mutant(
        "an untouched run is retried without end",
        "L14",
        Restoration,
        "_restore_half",
        "info.attempt < state.settings.attempts_max",
        "True",
    ),
    mutant(
        "a receipt loses in a crash the host that a later run has taken back",
        "L3",
        Restoration,
        "_record",
        "(*snapshot.processes, *snapshot.handed_over)",
        "snapshot.processes",
    ),
    # ── Protocol ──
    mutant(
        "a session that is not at rest is not interrupted",
        "L11",
        Protocol,
        "interrupt",
        "    if active is None:\n",
        "    if active is None or not self.state.owned:\n",
    ),
)
