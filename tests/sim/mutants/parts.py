"""Mutants of what the protocol decides about processes, and about reports that something has ended."""

from __future__ import annotations

from typing import Final

from actors.protocol.part_reports import PartReports
from actors.protocol.processes import Processes
from actors.protocol.tree_reports import TreeReports
from tests.sim.mutants.mutant import mutant

PARTS: Final = (
    # ── PartReports ──
    mutant(
        "a stray is taken for ended",
        "L3",
        PartReports,
        "stray_found",
        "record.add(part)",
        "part.end(None, found.at), record.add(part)",
    ),
    mutant(
        "a stray holds no barrier",
        "L3",
        PartReports,
        "stray_found",
        "found.ours, found.ours, started_at",
        "False, found.ours, started_at",
    ),
    mutant(
        "a stray that is found after the kill deadline is not named",
        "L3",
        PartReports,
        "stray_found",
        "self._runs.force_barrier(record, [part] if part.holds else [], at)",
        "pass",
    ),
    mutant(
        "the run's end is taken as proof of death",
        "L3",
        PartReports,
        "run_finished",
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n',
        "    for part in record.open_parts():\n        part.end(report.how, report.at)\n",
    ),
    mutant(
        "the host's answer ends its tree's part",
        "L3",
        PartReports,
        "run_finished",
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n',
        '    record.parts[AGENT].end(report.how, report.at, report.error or "")\n'
        "    if record.host is not None:\n"
        "        record.parts[record.host.row.process_id].end(report.how, report.at)\n",
    ),
    mutant(
        "the end of an earlier run is dropped as stale",
        "L7",
        PartReports,
        "run_finished",
        '        self._execution_ended(report.address, report.how, report.at, report.error or "")\n',
        "",
    ),
    # ── TreeReports ──
    mutant(
        "a tree that ended with its daemon needs no proof",
        "L3",
        TreeReports,
        "_ended",
        "if not news.proven:",
        "if not news.proven and str(owned.row.ending and owned.row.ending.source) != 'supervisor.recovery':",
    ),
    mutant(
        "an agent begins before the session's abandoned trees are on record",
        "L3",
        TreeReports,
        "deadline",
        "state.step.later.append(OpenBarrier(trees=tuple(owned.id for owned in left)))",
        "[setattr(owned, 'forced', True) for owned in left]",
    ),
    # ── Processes ──
    mutant(
        "output of a closed call is accepted",
        "L1",
        Processes,
        "output",
        "if self._state.open_run(report.address) is None:",
        "if self._state.record(report.address.run) is None:",
    ),
    mutant(
        "a process of the agent's own does not wait for the barrier",
        "L3",
        Processes,
        "spawn_requested",
        "elif address.call is not None or not state.barrier():",
        "elif True:",
    ),
    mutant(
        "a process of the agent's own is asked for by a run that is over",
        "L1",
        Processes,
        "spawn_requested",
        "if record is None or (",
        "record = state.record(address.run)\n    if record is None or (",
    ),
    mutant(
        "a process that waits for the barrier is not refused at the end of its run",
        "L7",
        Processes,
        "drop_waiting",
        "for process_id in waiting:",
        "for process_id in ():",
    ),
    mutant(
        "one process of a run too many",
        "L14",
        Processes,
        "_spawn_for_run",
        ">= limit and",
        "> limit and",
    ),
    mutant(
        "one process of the session too many",
        "L14",
        Processes,
        "_spawn_for_session",
        "if len(state.owned) >= limit:",
        "if len(state.owned) > limit:",
    ),
)
