"""Mutants of the actors of runs and calls, and of how they use a host."""

from __future__ import annotations

from typing import Final

from actors.hierarchy.run import RunActor
from actors.hierarchy.run_host import RunHost
from actors.hierarchy.tool import ToolActor
from actors.hierarchy.tool_host import ToolHost
from tests.sim.mutants.mutant import mutant

RUN_ACTORS: Final = (
    # ── RunActor ──
    mutant(
        "a run actor ends before its strays",
        "L3",
        RunActor,
        "_stop_if_done",
        " or self._strays",
        "",
    ),
    mutant(
        "halt does not reach the trees",
        "L3",
        RunActor,
        "_halt",
        "            tell(child, halt)\n",
        "            pass\n",
    ),
    mutant(
        "an agent is cancelled again at the grace",
        "L8",
        RunActor,
        "_halt",
        "halt.grace_s + self._ports.settings.kill_s",
        "halt.grace_s",
    ),
    mutant(
        "the deadline of a run begins anew after each barrier",
        "L7",
        RunActor,
        "_disarm_deadline",
        "    self._deadline_left_s -= self._ports.clock.monotonic() - self._deadline_since\n",
        "",
    ),
    mutant(
        "the configured deadline beats the tool's own",
        "L7",
        RunActor,
        "_permit",
        "tool.deadline_s or permit.deadline_s",
        "permit.deadline_s or tool.deadline_s",
    ),
    mutant(
        "a process of the agent's own is not ended with its run",
        "L3",
        RunActor,
        "_halt",
        "if key != self._host.id:",
        "if key != self._host.id and key not in self._processes:",
    ),
    mutant(
        "the process of a lost call is not taken over",
        "L3",
        RunActor,
        "_child_down",
        "        if call_id not in (call, process_id) or process_id in self._undecided:\n",
        "        if True:\n",
    ),
    mutant(
        "a host that a lost call had only asked for is ended",
        "L6",
        RunActor,
        "_child_down",
        " or process_id in self._undecided",
        "",
    ),
    mutant(
        "a host is not released when the run's actor fails at its request",
        "L14",
        RunActor,
        "on_failure",
        "isinstance(message, SpawnRequested) and",
        "False and",
    ),
    # ── RunHost ──
    mutant(
        "a signal cuts off the clean-up in a host",
        "L8",
        RunHost,
        "end",
        "if agent_runs and left_s:",
        "if False:",
    ),
    # ── ToolActor ──
    mutant(
        "a call that never began is kept when its run's actor fails",
        "L14",
        ToolActor,
        "on_stop",
        "self._ports.executor.forget(self.key)",
        "pass",
    ),
    mutant(
        "a tool is cancelled again at the grace",
        "L8",
        ToolActor,
        "_halt",
        "halt.grace_s + self._ports.settings.kill_s",
        "halt.grace_s",
    ),
    # ── ToolHost ──
    mutant(
        "a call is sent to the process of its tool after a fence",
        "L1",
        ToolHost,
        "permitted",
        "if finish is None or not permit.cell.start():",
        "if finish is None:",
    ),
    mutant(
        "the process of a tool outlives the Stop of its call",
        "L3",
        ToolHost,
        "halt",
        "self._tree.halt(halt, agent_runs=executing)",
        "pass",
    ),
)
