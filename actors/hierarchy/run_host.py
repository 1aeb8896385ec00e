"""RunHost: the tree of the host in which a run's agent runs, or a call's tool, in the hands of its actor.

Reports on the tree go two ways: up to the session, as of any tree, and to the host's connection (`Hosts.heard`). A
halt of the run ends the host, but not at once: the token has cancelled its agent, which cleans up there. No signal
interrupts that before the agent has ended, or the grace is over.

The news that the host has started is put on record with the next news of the run, or a moment later. A spare has
started long ago, and a commit for that alone would be ahead of the agent's first line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from actors.gate.cell import Cell
from actors.hierarchy.process import ProcessActor, claim_for_run_end
from actors.kernel.actor import Actor, tell
from actors.messages import (
    Halt,
    HostGraceOver,
    HostStartDue,
    OutputRead,
    ProcessNews,
    ProcessReport,
    ProcessStarted,
    Release,
)
from actors.model import Address
from actors.ports import Hosts, Ports, Timer

START_HELD_S: Final = 0.02
"""How long the start of a host waits at most for other news of its run."""


class RunHost:
    """The host of one run, if it has one. Used in the turns of the run's actor only.

    Attributes:
        id: of its tree; None: the run has no host.
        start: the report that the host has started, while it is kept; see above.

    Args:
        owner: the run's actor.
        ports: what it needs from outside.
        address: of the run.
    """

    def __init__(self, owner: Actor, ports: Ports, address: Address) -> None:
        self.id: str | None = None
        self._owner = owner
        self._ports = ports
        self._address = address
        self._cell: Cell[None] | None = None
        self._halt: Halt | None = None
        # When its time to end by itself is over, in monotonic seconds.
        self._due = 0.0
        self._timer: Timer | None = None
        self.start: ProcessReport | None = None
        self._start_timer: Timer | None = None
        # What waits until the output is read.
        self._then: Callable[[], None] | None = None

    @property
    def hosts(self) -> Hosts:
        """The port to hosts."""
        assert self._ports.hosts is not None, "an agent that runs in hosts needs them"
        return self._ports.hosts

    def begin(self, process_id: str, cell: Cell[None] | None) -> None:
        """The run begins in this host. The tree has an actor for its reports before the run is sent."""
        self.id, self._cell = process_id, cell
        heard = functools.partial(self.hosts.heard, process_id)
        child = self._owner.start_child(
            ProcessActor, self._ports, self._address, process_id, None, cell, listener=heard, key=process_id
        )
        self._ports.processes.adopt(process_id, child, self._address.session)

    def adopt(self, process_id: str) -> None:
        """An earlier actor of the run has left this host: the run's actor hears its news."""
        self.id = process_id
        self._ports.processes.adopt(process_id, self._owner.actor_ref, self._address.session, anew=True)

    def hear(self, news: ProcessNews) -> None:
        """A report from the processes port itself: pass it to the hosts port, which ignores those on other trees."""
        if self._ports.hosts is not None:
            self._ports.hosts.heard(news.process_id, news)

    def report(self, report: ProcessReport) -> None:
        """Report on a tree of the run; that the host has started is kept for a while, see above."""
        if not isinstance(report.news, ProcessStarted) or report.process_id != self.id or self._halt is not None:
            self._owner.tell_parent(report)
            return
        self.start = report
        if self._start_timer is None:
            self._start_timer = self._ports.clock.call_later(START_HELD_S, self._owner.actor_ref, HostStartDue())

    def take_start(self) -> ProcessReport:
        """Return the report that is kept, and keep it no longer: it goes ahead of anything else."""
        kept, self.start = self.start, None
        assert kept is not None, "looked at by the caller"
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        return kept

    def take(self, message: HostGraceOver | HostStartDue | OutputRead, *, agent_runs: bool) -> None:
        """Handle a message that is about the host."""
        match message:
            case OutputRead():
                self.output_read()
            case HostStartDue():
                if self.start is not None:
                    self._owner.tell_parent(self.take_start())
            case HostGraceOver():
                self.end(agent_runs=agent_runs)

    def let_go(self) -> None:
        """The tree belongs to the session now: its actor ends, and ends nothing."""
        child = self._owner.children.get(self.id or "")
        if child is not None:
            tell(child, Release())

    # ── Its output ────────────────────────────────────────────────────────────────────────────────

    def after_output(self, then: Callable[[], None]) -> None:
        """What runs in the host has answered: call `then` when all that it printed before that is reported.

        The answer and the output come over different descriptors. `then` is called now if nothing can be waited for,
        or if the run is halted: its output is not logged any more. Else in a later turn, which comes for certain: the
        output is read, or the tree has ended, or its actor has.
        """
        if self._halt is not None or self.id is None or self.id not in self._owner.children:
            then()
            return
        self._then = then
        self._ports.processes.read_output(self.id)

    def output_read(self) -> None:
        """All output is reported, or the actor that would report it has ended."""
        then, self._then = self._then, None
        if then is not None:
            then()

    # ── Its end ───────────────────────────────────────────────────────────────────────────────────

    def halt(self, halt: Halt, *, agent_runs: bool) -> None:
        """The run is halted, perhaps again: with less grace the host has less time."""
        due = self._ports.clock.monotonic() + halt.grace_s
        self._due = due if self._halt is None else min(due, self._due)
        self._halt = halt
        self.end(agent_runs=agent_runs)

    def end(self, *, agent_runs: bool) -> None:
        """End the host of a halted run: with the rest of the grace if its agent has ended, else when that is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._halt is None or self.id is None:
            return
        left_s = max(0.0, self._due - self._ports.clock.monotonic())
        if agent_runs and left_s:
            self._timer = self._ports.clock.call_later(left_s, self._owner.actor_ref, HostGraceOver())
            return
        child: Any = self._owner.children.get(self.id)
        if child is not None:
            tell(child, Halt(self._halt.provenance, left_s))
        elif claim_for_run_end(self._cell):
            self._ports.processes.kill(self.id, left_s)
