"""Mutants of child runs: what goes between the sessions of a parent and of a child."""

from __future__ import annotations

from typing import Final

from actors.gate.cell import Cell
from actors.hierarchy.parents import Parents
from actors.hierarchy.run import RunActor
from actors.protocol.calls import Calls
from actors.protocol.child_link import ChildLink
from actors.protocol.child_runs import ChildRuns
from actors.protocol.part_reports import PartReports
from actors.protocol.processes import Processes
from actors.protocol.restoration import Restoration
from actors.protocol.state import SessionState
from supervisor.child_runs import ChildLinks
from tests.sim.mutants.mutant import mutant

CHILDREN: Final = (
    mutant(
        "a child run does not follow its parent's fence",
        "L1",
        ChildRuns,
        "follow",
        "if cause is not None:",
        "if False:",
    ),
    mutant(
        "the token of a child run hangs below nothing",
        "L1",
        SessionState,
        "new_token",
        "CancelToken(self.notify, below)",
        "CancelToken(self.notify)",
    ),
    mutant(
        "a call of a child run begins behind its parent's fence",
        "L1",
        Cell,
        "start",
        "self._start() if self._token is None else self._token.begin(self._start)",
        "self._start()",
    ),
    mutant(
        "a child run that comes behind the fence begins",
        "L1",
        ChildRuns,
        "wanted",
        "or wanted.spec.token.cancelled",
        "or False",
    ),
    mutant(
        "a child run is not told to end", "L3", ChildLinks, "_end", "if linked.link.end(cause, grace_s):", "if False:"
    ),
    mutant(
        "the result of a child run ends its part",
        "L3",
        ChildLink,
        "news",
        "        news.append(ChildClosed(self.run_id, report))\n",
        "        news.append(ChildClosed(self.run_id, report))\n        news.append(self._ended(report, at))\n",
    ),
    mutant(
        "the first receipt of a child run is its last",
        "L7",
        ChildRuns,
        "report",
        "info.provenance, record.receipt\n",
        "info.provenance, record.receipt, final=record.receipt is not None\n",
    ),
    mutant(
        "what the store did not take of a child run is reported",
        "L12",
        Parents,
        "found",
        "found.info is not None and found.info.settled",
        "found.info is not None",
    ),
    mutant(
        "a child run is reported before that is durable",
        "L12",
        Parents,
        "_tell",
        "if self._batches.sent:",
        "if False:",
    ),
    mutant(
        "a child run is tried again",
        "L7",
        Restoration,
        "_restore_half",
        "can_run = can_run and info.parent is None",
        "can_run = bool(can_run)",
    ),
    mutant(
        "a child run that is ended leaves its parent waiting",
        "L7",
        PartReports,
        "process",
        "self._calls.child_ended(report, cause)",
        "pass",
    ),
    mutant(
        "a lost question about a child run is not asked again",
        "L7",
        ChildLinks,
        "_not_heard",
        "self._clock.call_later(wait_s, self._me, AskChild(link.run_id, linked.asked))",
        "pass",
    ),
    mutant(
        "a child run of a restored parent is not asked for",
        "L3",
        RunActor,
        "_adopt",
        'adoption.children.get(process_id, "")',
        '""',
    ),
    mutant(
        "one child run too many",
        "L14",
        Processes,
        "_spawn_for_run",
        "limit = limit if child is None else state.settings.children_max",
        "limit = limit if child is None else state.settings.children_max + 1",
    ),
    mutant(
        "child runs stand one deeper than they may",
        "L14",
        Calls,
        "_child_problem",
        "if child_depth(record) > limit:",
        "if child_depth(record) > limit + 1:",
    ),
    mutant(
        "a child run begins beside what runs in its session",
        "L4",
        ChildRuns,
        "_start",
        "if state.active is not None:",
        "if False:",
    ),
    mutant(
        "the parts of a child run are not in its parent's receipt",
        "L3",
        ChildLink,
        "_ended",
        "rows=receipt.rows,",
        "rows=(),",
    ),
)
