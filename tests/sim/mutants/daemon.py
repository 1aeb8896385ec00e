"""Mutants of what is around the sessions: the supervisor's actor, the executor, hosts, the store."""

from __future__ import annotations

from typing import Final

from supervisor.executor import _Execution
from supervisor.router import SupervisorActor
from tests.sim.disk import Disk
from tests.sim.hosts import SimHosts
from tests.sim.mutants.mutant import Edit, Mutant, mutant
from tests.sim.store import SimStore

DAEMON: Final = (
    # ── SupervisorActor ──
    mutant(
        "a message at passivation is dropped",
        "L11",
        SupervisorActor,
        "_release",
        "held.returned + held.later",
        "held.returned",
    ),
    mutant(
        "a message at passivation is sent to the actor that leaves",
        "L11",
        SupervisorActor,
        "_route",
        "if not ends:",
        "if not ends or not route.returned:",
    ),
    mutant(
        "a message that finds the session in use is held for ever",
        "L11",
        SupervisorActor,
        "_rested",
        "    self._release(rested.session)\n",
        "",
    ),
    mutant(
        "a report of rest from before a Stop counts",
        "L11",
        SupervisorActor,
        "_quiet",
        "if self._noisy.get(quiet.session) == quiet.number:",
        "if quiet.session in self._noisy:",
    ),
    mutant(
        "shutdown interrupts at once",
        "L11",
        SupervisorActor,
        "_shutdown",
        "call_later(shutdown.drain_s, ",
        "call_later(0.0, ",
    ),
    mutant(
        "a session that takes a Stop in the shutdown need not come to rest",
        "L11",
        SupervisorActor,
        "_forward",
        "    if self._shutting_down:\n",
        "    if False:\n",
    ),
    mutant(
        "a session is quarantined one failure late",
        "L13",
        SupervisorActor,
        "_restart",
        "> self._policy.failures_max",
        "> self._policy.failures_max + 1",
    ),
    # ── Execution ──
    mutant(
        "the cancel is raised again after a method of the turn has raised it",
        "L8",
        _Execution,
        "cancel",
        "first and (self.token is None or not self.token.was_raised_in(self.task))",
        "first",
    ),
    mutant(
        "a second halt cancels again", "L8", _Execution, "cancel", "first = self.cancelled_at is None", "first = True"
    ),
    # ── SimHosts ──
    mutant("one spare for two runs", "L13", SimHosts, "reserve", "spares.pop(0)", "spares[0]"),
    mutant(
        "a frame of an earlier run is accepted in a kept host",
        "L1",
        SimHosts,
        "_frame",
        "core.address.fence != fence or ",
        "",
    ),
    # ── SimStore ──
    Mutant(
        "a retried batch overtakes an earlier batch",
        "L12",
        (
            Edit(
                SimStore,
                "_commit",
                '        self._fail(group, "the simulated disk failed")\n',
                "        self._queue.extend(group)\n",
            ),
            Edit(Disk, "write", "    if batch.number != last + 1:\n        return False\n", ""),
        ),
    ),
)
