"""Mutants of what a session does while the store fails, and of the stop journal."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.late_stops import LateStops
from actors.hierarchy.outage import Outage
from actors.ports import KeptStop
from tests.sim.mutants.mutant import Edit, Mutant, mutant

OUTAGES: Final = (
    # ── Outage ──
    mutant(
        "a stored answer is not looked up while the store fails",
        "L10",
        Outage,
        "request",
        "self._live.protocol.state.book.known(request, at) if answer is None else None",
        "None",
    ),
    mutant(
        "the cause of an end is lost when the store refuses it",
        "L5",
        Outage,
        "_note_runs",
        "            self.unrecorded.ended.setdefault(info.run_id, info)\n",
        "            pass\n",
    ),
    mutant(
        "the journal does not name the failure that came before a Stop",
        "L5",
        Outage,
        "_keep_and_answer",
        "cause, failure)",
        "cause, None)",
    ),
    mutant(
        "a waiting Delete is not answered when the store fails",
        "L12",
        Outage,
        "_answer_all",
        "in self._live.protocol.deletion.call_off():",
        "in ():",
    ),
    mutant(
        "the wait before a retry of the store grows without a bound",
        "L12",
        Outage,
        "try_later",
        "min(self._retry_s * 2, RETRY_MAX_S)",
        "self._retry_s * 2",
    ),
    mutant(
        "the wait before a retry of the store is not reset",
        "L12",
        Outage,
        "over",
        "    self._retry_s = RETRY_FIRST_S\n",
        "",
    ),
    # ── LateStops ──
    Mutant(
        "the answer to a Stop is lost while the store fails",
        "L10",
        (
            Edit(LateStops, "first_answer", "return kept.answer if kept is not None else None", "return None"),
            Edit(
                LateStops,
                "store_failed",
                "    answer = kept.answer if kept is not None and kept.answer is not None else answer\n",
                "",
            ),
        ),
    ),
    mutant(
        "an answer that is known late is not put into the journal",
        "L10",
        LateStops,
        "_keep",
        "kept.answer is None and answer is not None",
        "False",
    ),
    mutant(
        "the journal is not read at a restart",
        "L12",
        LateStops,
        "restore",
        "for entry in journal:",
        "for entry in ():",
    ),
    mutant(
        "an overdue Stop is not put into the journal",
        "L12",
        LateStops,
        "_keep",
        "    self._store.keep_stop(kept.entry, self._owner)\n",
        "",
    ),
    mutant(
        "a Stop is reported journalled before it is",
        "L12",
        LateStops,
        "answer",
        "kept is not None and kept.journalled",
        "True",
    ),
    mutant(
        "a Stop that is kept again gets the time of the later failure",
        "L5",
        LateStops,
        "store_failed",
        "if replayed is not None and",
        "if False and replayed is not None and",
    ),
    # ── KeptStop ──
    mutant(
        "the target of a Stop in the journal is not looked up",
        "L12",
        KeptStop,
        "is_about",
        "return self.stop.run_id in (None, run.run_id)",
        "return self.stop.run_id is None",
    ),
)
