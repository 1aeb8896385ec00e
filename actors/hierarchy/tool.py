"""ToolActor: one per call; it owns the execution, the cell, the token, and the processes that the call started.

A call has two ends. The cell decides its result: it is finished, or closed by a fence or by the deadline. The execution
and the process trees of the call have ends of their own, which only the executor and the wardens can prove. The actor
lives until the execution and every tree have ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from loguru import logger
from pykka import ActorDeadError, ActorRef
from pykka._envelope import Envelope

from actors.errors import RunCancelled
from actors.events import ProgressData, TextData
from actors.gate.cell import CellState
from actors.gate.pending import Pending, fail
from actors.hierarchy.spawns import Spawns
from actors.hierarchy.tool_host import ToolHost, done_of
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.messages import (
    CallDeadline,
    CallExpired,
    CallStarted,
    ExecutionEnded,
    ExecutionStarted,
    Halt,
    HandOverRequested,
    HostGraceOver,
    KillProcess,
    OutputRead,
    Permit,
    ProcessNews,
    ProcessReport,
    RecancelExecution,
    SpawnGivenUp,
    SpawnPermit,
    SpawnRefused,
    SpawnRequested,
    ToolSaid,
    TreeTaken,
)
from actors.model import Address, Isolation, Provenance
from actors.plugin import execution
from actors.plugin.emitting import Emit
from actors.plugin.foreign import Foreign, Made
from actors.plugin.registration import Tool
from actors.ports import Ports, Timer


class ToolActor(Actor):
    """The actor of one call.

    Args:
        ports: what it needs from outside.
        tool: the tool.
        arguments: the tool's arguments.
        permit: the cell, the token and the deadline.
        address: the call's.
        context: the context variables that the tool's code gets.
        heard: called with each text that the tool has said.
        key: the call's id.
    """

    def __init__(
        self,
        ports: Ports,
        tool: Tool | Made,
        arguments: dict[str, Any],
        permit: Permit,
        address: Address,
        context: Context | None = None,
        heard: Callable[[TextData], None] | None = None,
        *,
        key: str,
        parent: ActorRef[Any],
        dispatcher: Any,
    ) -> None:
        super().__init__(dispatcher=dispatcher, parent=parent, key=key)
        self._ports = ports
        self._tool = tool
        self._arguments = arguments
        self._permit = permit
        self._address = address
        self._context = context
        self._heard = heard or (lambda _: None)
        self._executing = False
        self._spawns = Spawns(self, ports, address, f"the tool {tool.name}", permit.token)
        self._host: ToolHost | None = None
        if isinstance(tool, Tool) and tool.isolation is Isolation.PROCESS:
            emit = self._emit(Pending(permit.token))
            self._host = ToolHost(self, ports, address, tool, arguments, permit, self._spawns.spawn, emit)
        self._timer: Timer | None = None
        self._recancel: Timer | None = None

    def log_context(self) -> Mapping[str, object]:
        """Its address."""
        return self._address.log_context

    def on_start(self) -> None:
        """Hand the call to the executor: before the tool's first line it passes the cell, or does not."""
        permit, ref, executor, key = self._permit, self.actor_ref, self._ports.executor, self.key
        # Before `spawn` adds its waker: see `RunAgent.begin`.
        permit.token.add_waker(lambda: executor.cancel(key))

        def started() -> None:
            ref.tell(ExecutionStarted(self.key, self._ports.clock.wall()))

        body = self._body(_contained(started))
        self._executing = True
        isolation = self._tool.isolation if self._host is None else Isolation.HOST
        name, session = f"tool {self._tool.name}", self._address.session
        executor.start(key, name, isolation, body, ref, permit.token, self._context, session)
        if permit.deadline_s is not None:
            self._timer = self._ports.clock.call_later(permit.deadline_s, ref, CallDeadline())

    def _body(self, started: Callable[[], None]) -> Callable[..., Any]:
        tool, permit, settings = self._tool, self._permit, self._ports.settings
        if isinstance(tool, Foreign):
            return execution.foreign_body(
                tool,
                self._arguments,
                self._address,
                permit.cell,
                permit.token,
                self._spawns.spawn(Pending(permit.token)),
                started,
                settings.content_max_bytes,
            )
        if self._host is not None:
            begin, (_, secrets) = self._host.begin, tool.withheld(self._arguments)
            return execution.process_body(
                permit.cell,
                permit.token,
                secrets,
                lambda finish: begin(lambda value: finish(done_of(value))),
                started,
            )
        pending = Pending(permit.token)
        return execution.body(
            tool,
            self._arguments,
            self._address,
            permit.cell,
            permit.token,
            self._spawns.spawn(pending),
            self._emit(pending),
            started,
            settings.content_max_bytes,
            functools.partial(self._ports.strays.within, self._address, tool.isolation, permit.token),
        )

    def on_receive(self, message: Any) -> None:
        """Handle one message."""
        match message:
            case ExecutionStarted():
                self.tell_parent(CallStarted(self._address, message.at))
            case ExecutionEnded():
                self._execution_ended(message)
            case SpawnRequested():
                self._spawns.requested(message)
            case SpawnPermit() | SpawnRefused():
                self._spawn_decided(message)
            case HostGraceOver() if self._host is not None:
                self._host.grace_over(executing=self._executing)
            case HandOverRequested() | ToolSaid():
                self.tell_parent(message)
            case TreeTaken():
                self._spawns.taken(message)
                self._stop_if_done()
            case ProcessReport():
                self._process_news(message)
            case _ if isinstance(message, ProcessNews):
                # It comes from the port itself: the tree was taken over from a process actor that failed.
                if self._host is not None:
                    self._host.hear(message)
                self._process_news(ProcessReport(self._address, message.process_id, message))
            case OutputRead() if self._host is not None:
                self._host.output_read()
            case Halt():
                self._halt(message)
            case CallDeadline():
                self._deadline()
            case RecancelExecution():
                self._cancel_again(message)
            case KillProcess():
                self._spawns.kill(message)
            case SpawnGivenUp():
                self._spawns.given_up(message)
            case Down():
                self._child_down(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    def _emit(self, pending: Pending) -> Emit:
        """Return what the tool says something by."""
        return Emit(self._say, self.key, pending, self._ports.settings.content_max_bytes, self._heard)

    def _say(self, data: TextData | ProgressData, told: Future[None]) -> None:
        """Send what the tool says; on its thread. It comes behind the report that the call has started."""
        said = ToolSaid(self._address, data, told)
        try:
            self.actor_ref.tell(said)
        except ActorDeadError:
            self._unsaid(said)

    def _unsaid(self, said: ToolSaid) -> None:
        """A thread of the tool that outlived its call says something: refuse it."""
        over = Provenance(source="run.ended", reason="the call is closed", initiated_at=self._ports.clock.wall())
        fail(said.told, RunCancelled(over))

    # ── The execution ─────────────────────────────────────────────────────────────────────────────

    def _execution_ended(self, ended: ExecutionEnded) -> None:
        self._executing = False
        self._disarm_deadline()
        report = execution.call_ended(self._address, ended, self._permit.cell)
        if self._host is None:
            self.tell_parent(report)
        else:
            self._host.after_output(lambda: self.tell_parent(report))
            self._host.executed()
        self._stop_if_done()

    def _disarm_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deadline(self) -> None:
        """Close the call's cell. A result that is in it already stands."""
        if not self._executing:
            return
        state, _ = self._permit.cell.close()
        if state is CellState.FINISHED:
            return
        at = self._ports.clock.wall()
        reason = f"the call of {self._tool.name} took longer than {self._permit.deadline_s:g} s"
        provenance = Provenance(source="tool.deadline", reason=reason, initiated_at=at)
        if not self._permit.token.cancel(provenance):
            # A fence came first: it has closed the call, and its Halt is on the way.
            return
        self.tell_parent(CallExpired(self._address, at, provenance, started=state is CellState.CLOSED))
        self._halt(Halt(provenance, self._ports.settings.grace_s))

    def _halt(self, halt: Halt) -> None:
        """End everything of this call; see `RunActor._halt`."""
        self._ports.strays.end(self._address, halt.grace_s)
        if self._executing and self._host is None and self._tool.isolation is not Isolation.HOST:
            self._ports.executor.cancel(self.key)
            if self._recancel is not None:
                self._recancel.cancel()
            patience_s = halt.grace_s + self._ports.settings.kill_s
            again = RecancelExecution(patience_s)
            self._recancel = self._ports.clock.call_later(patience_s, self.actor_ref, again)
        for key, child in self.children.items():
            if self._host is None or key != self._host.id:
                tell(child, halt)
        self._spawns.halt(halt)
        if self._host is not None:
            self._host.halt(halt, executing=self._executing)

    def _cancel_again(self, recancel: RecancelExecution) -> None:
        """The execution goes on after its time: cancel it again, at growing intervals, until it ends."""
        if self._executing and self._ports.executor.cancel(self.key, again_s=recancel.patience_s):
            self._recancel = self._ports.clock.call_later(recancel.next_s, self.actor_ref, recancel.next)

    def _spawn_decided(self, decided: SpawnPermit | SpawnRefused) -> None:
        host = self._host if self._host is not None and decided.process_id == self._host.id else None
        if isinstance(decided, SpawnRefused):
            self._spawns.refused(decided) if host is None else host.refused(self._spawns.why(decided))
            self._stop_if_done()
        elif host is None:
            self._spawns.permitted(decided)
        else:
            host.permitted(decided)

    def _process_news(self, report: ProcessReport) -> None:
        self._spawns.heard(report)
        if self._host is not None:
            self._host.heard(report.news)
        self.tell_parent(report)
        self._stop_if_done()

    def _child_down(self, down: Down) -> None:
        """A process actor has ended."""
        self._spawns.take_over(down.key)
        if self._host is not None:
            self._host.take_over(down.key)
        self._stop_if_done()

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────────

    def _stop_if_done(self) -> None:
        hosted = self._host is not None and self._host.open
        if not self._executing and self._spawns.idle and not hosted and not self.children:
            self.stop()

    def on_stop(self) -> None:
        """Cancel the timer of the deadline, and wait for no host any more: it may be stopped with its run's actor.

        A call that has not begun never does. Then nothing of it is taken over, and the executor forgets it. One that
        has begun is closed by whoever takes it over, who cancels its token.
        """
        self._disarm_deadline()
        if self._executing and self._permit.cell.void():
            self._ports.executor.forget(self.key)
        if self._host is not None:
            self._host.leave()

    def on_failure(self, *_: object) -> None:
        """As `on_stop`."""
        self.on_stop()

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """A thread of the tool that outlived its call asked for something: refuse it."""
        message = envelope.message
        if isinstance(message, SpawnRequested | HandOverRequested):
            self._spawns.undelivered(message)
        elif isinstance(message, ToolSaid):
            self._unsaid(message)
        else:
            super().on_undelivered(envelope)


def _contained(callback: Any) -> Any:
    """Return `callback` such that it does nothing if its actor has ended: the execution goes on to its own end."""

    def call() -> None:
        try:
            callback()
        except ActorDeadError:
            logger.trace("the actor of a call is gone")

    return call
