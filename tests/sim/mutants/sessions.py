"""Mutants of what the protocol keeps of a session, and of how it restores it."""

from __future__ import annotations

from typing import Final

from actors.protocol.protocol import Protocol
from actors.protocol.restoration import Restoration
from actors.protocol.saves import Saves
from actors.protocol.state import SessionState
from actors.saved import Saved
from tests.sim.mutants.mutant import mutant

SESSIONS: Final = (
    # ── Saves, Saved ──
    mutant(
        "what a closed run saves is kept",
        "L1",
        Saves,
        "requested",
        "record = state.open_run(request.address)",
        "record = state.open_run(request.address) or state.record(request.address.run)",
    ),
    mutant("a rollback keeps what was saved", "L6", Saved, "add", "data.run_id == self._run", "False"),
    mutant(
        "what was saved is forgotten with the memory",
        "L6",
        SessionState,
        "restore",
        "self.thread, self.saved = snapshot.thread, snapshot.saved",
        "self.thread = snapshot.thread",
    ),
    # ── SessionState ──
    mutant(
        "stale accepted when the address is unknown",
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
        "answers forgotten at a restart",
        "L10",
        SessionState,
        "restore",
        "    self.book.restore(snapshot.requests, row.forgotten_to if row is not None else 0.0)\n",
        "",
    ),
    mutant(
        "parked forgotten at a restart",
        "L12",
        SessionState,
        "restore",
        "parked=row.parked if row is not None else False",
        "parked=False",
    ),
    mutant(
        "the Stop's hour forgotten at a restart",
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
        "nothing is taken over after a restart",
        "L3",
        Restoration,
        "_restore_half",
        "state.step.later.append(AdoptRun(record.id))",
        "pass",
    ),
    mutant(
        "what a Stop came behind is tried again",
        "L12",
        Restoration,
        "_restore_half",
        "can_run = not stops and",
        "can_run =",
    ),
    mutant(
        "a half-run is left as it was",
        "L12",
        Restoration,
        "_restore_half",
        "        self._runs.close(record, RunStatus.FAILED, cause, at, noted=again is None, error=cause.reason)\n",
        "",
    ),
    mutant(
        "what had done nothing is not tried again",
        "L12",
        Restoration,
        "_restore_half",
        "untouched = not record.said and not record.called",
        "untouched = False",
    ),
    mutant(
        "tried again although it had spoken",
        "L12",
        Restoration,
        "_restore_half",
        "untouched = not record.said and not record.called",
        "untouched = True",
    ),
    mutant(
        "a Stop that was stored stops what came behind it",
        "L12",
        Restoration,
        "restore",
        "[kept for kept in kept_stops if kept.stop.id not in on_record]",
        "list(kept_stops)",
    ),
    mutant(
        "waiting turns start as a draining session is taken up",
        "L11",
        Restoration,
        "restore",
        "    if state.draining or state.quarantined:\n        return cause\n",
        "    state.draining, draining = False, state.draining\n"
        "    self._runs.start_next(at)\n    state.draining = draining\n",
    ),
    mutant(
        "an untouched run is tried again without end",
        "L14",
        Restoration,
        "_restore_half",
        "info.attempt < state.settings.attempts_max",
        "True",
    ),
    mutant(
        "a receipt forgets in a crash the host that a later run has taken back",
        "L3",
        Restoration,
        "_record",
        "(*snapshot.processes, *snapshot.handed_over)",
        "snapshot.processes",
    ),
    # ── Protocol ──
    mutant(
        "what is not at rest is not interrupted",
        "L11",
        Protocol,
        "interrupt",
        "    if active is None:\n",
        "    if active is None or not self.state.owned:\n",
    ),
)
