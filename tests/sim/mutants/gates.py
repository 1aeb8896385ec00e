"""Mutants of the gate: cell, token, turn, execution, mailbox."""

from __future__ import annotations

from typing import Final
from unittest import mock

from actors.gate.cell import Cell
from actors.gate.token import CancelToken
from actors.kernel import mailbox
from actors.kernel.down import Down
from actors.plugin import execution
from actors.plugin.turn_core import TurnCore
from supervisor.hosts.guards import HostGuards
from tests.sim.mutants.mutant import Edit, Mutant, mutant

GATES: Final = (
    # ── Cell ──
    Mutant(
        "a permit is checked at the request instead of at the start",
        "L2",
        (
            Edit(Cell, "_start", "        if self._state is not CellState.GRANTED:\n            return False\n", ""),
            # A fence cancels the token too, before anything starts.
            Edit(
                Cell,
                "start",
                "self._start() if self._token is None else self._token.begin(self._start)",
                "self._start()",
            ),
        ),
    ),
    # ── CancelToken ──
    mutant(
        "an effect begins after the fence",
        "L1",
        CancelToken,
        "_begin_effect",
        "        if cause is None:\n",
        "        if True:\n",
    ),
    mutant(
        "code that outlives its call has effects",
        "L1",
        CancelToken,
        "end_effects",
        "            self._over = provenance\n",
        "            pass\n",
    ),
    # ── HostGuards ──
    mutant(
        "a guard in a host is permitted without being counted",
        "L1",
        HostGuards,
        "requested",
        "token.guard(params.name).begin()",
        "token.raise_if_cancelled()",
    ),
    # ── execution ──
    mutant(
        "execute before the cell is started",
        "L2",
        execution,
        "foreign_body",
        "        if not cell.start():\n            finish(NOT_STARTED)\n            return\n        started()\n",
        "        tool.execute(address.fence, arguments, token, spawn, lambda value: finish(ended(value)))\n"
        "        if cell.start():\n            started()\n        return\n",
    ),
    mutant(
        "a void call that a host was to execute gets no end",
        "L7",
        execution,
        "foreign_body",
        "finish(NOT_STARTED)",
        "pass",
    ),
    # ── TurnCore ──
    mutant(
        "an agent continues before a call that it gave up has its result",
        "L6",
        TurnCore,
        "give_up",
        "while not reply.done():",
        "while False:",
    ),
    # ── mailbox ──
    Mutant("Down ahead of the output", "L5", other=lambda: mock.patch.dict(mailbox._KINDS, {Down: (True, False)})),
)
