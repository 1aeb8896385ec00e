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

import msgspec
from loguru import logger
from pykka import ActorDeadError, ActorRef
from pykka._envelope import Envelope

from actors.errors import QueueFull, RunCancelled
from actors.gate.cell import Cell, CellState
from actors.gate.pending import Pending, fail, settle
from actors.hierarchy.process import ProcessActor, claim_for_run_end
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
    KillProcess,
    Permit,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    RecancelExecution,
    Release,
    SpawnPermit,
    SpawnRefused,
    SpawnRequested,
    TreeTaken,
)
from actors.model import Address, Isolation, Mode, Owner, Provenance
from actors.plugin import execution
from actors.plugin.foreign import Foreign, Made
from actors.plugin.registration import Tool
from actors.plugin.spawning import Exit, Process, Spawn
from actors.ports import Ports, SpawnSpec, Timer


class ToolActor(Actor):
    """The actor of one call.

    Args:
        ports: what it needs from outside.
        tool: the tool.
        arguments: the tool's arguments.
        permit: the cell, the token and the deadline.
        address: the call's.
        context: the context variables that the tool's code gets.
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
        self._executing = False
        self._processes: dict[str, Process] = {}
        self._specs: dict[str, SpawnSpec] = {}
        self._cells: dict[str, Cell[None]] = {}
        self._open: set[str] = set()
        # Trees that were asked for on behalf of the session: whatever it decides, this call does not end them.
        self._asked: set[str] = set()
        self._timer: Timer | None = None
        self._recancel: Timer | None = None

    def log_context(self) -> Mapping[str, object]:
        """Its address."""
        return self._address.log_context

    def on_start(self) -> None:
        """Hand the call to the executor: before the tool's first line it passes the cell, or does not."""
        permit, ref, executor, key = self._permit, self.actor_ref, self._ports.executor, self.key
        # Before `spawn` adds its waker: see `RunActor._begin`.
        permit.token.add_waker(lambda: executor.cancel(key))

        def started() -> None:
            ref.tell(ExecutionStarted(self.key, self._ports.clock.wall()))

        body = self._body(_contained(started))
        self._executing = True
        executor.start(key, f"tool {self._tool.name}", self._tool.isolation, body, ref, permit.token, self._context)
        if permit.deadline_s is not None:
            self._timer = self._ports.clock.call_later(permit.deadline_s, ref, CallDeadline())

    def _body(self, started: Callable[[], None]) -> Callable[..., Any]:
        tool, permit, settings = self._tool, self._permit, self._ports.settings
        if isinstance(tool, Foreign):
            return execution.foreign_body(
                tool, self._arguments, self._address, permit.cell, permit.token, started, settings.content_max_bytes
            )
        return execution.body(
            tool,
            self._arguments,
            self._address,
            permit.cell,
            permit.token,
            Spawn(self._request_spawn, Pending(permit.token), self._kill_process, self._request_hand_over),
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
                self._spawn_requested(message)
            case SpawnPermit():
                self._spawn(message)
            case SpawnRefused():
                self._spawn_refused(message)
            case HandOverRequested():
                self._hand_over_requested(message)
            case TreeTaken():
                self._tree_taken(message)
            case ProcessReport():
                self._process_news(message)
            case ProcessStarted() | ProcessOutput() | ProcessExited() | ProcessRemaining() | ProcessEnded():
                # It comes from the port itself: the tree was taken over from a process actor that failed.
                self._process_news(ProcessReport(self._address, message.process_id, message))
            case Halt():
                self._halt(message)
            case CallDeadline():
                self._deadline()
            case RecancelExecution():
                self._cancel_again(message)
            case KillProcess():
                self._kill(message)
            case Down():
                self._child_down(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    # ── The execution ─────────────────────────────────────────────────────────────────────────────

    def _execution_ended(self, ended: ExecutionEnded) -> None:
        self._executing = False
        self._disarm_deadline()
        self.tell_parent(execution.call_ended(self._address, ended, self._permit.cell))
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
        if self._executing and self._tool.isolation is not Isolation.HOST:
            self._ports.executor.cancel(self.key)
            if self._recancel is not None:
                self._recancel.cancel()
            patience_s = halt.grace_s + self._ports.settings.kill_s
            again = RecancelExecution(patience_s)
            self._recancel = self._ports.clock.call_later(patience_s, self.actor_ref, again)
        for child in self.children.values():
            tell(child, halt)
        for process_id in sorted(self._open):
            if process_id not in self.children and claim_for_run_end(self._cells.get(process_id)):
                self._ports.processes.kill(process_id, halt.grace_s)

    def _cancel_again(self, recancel: RecancelExecution) -> None:
        """The execution goes on after its time: cancel it again, at growing intervals, until it ends."""
        if self._executing:
            self._ports.executor.cancel(self.key, again_s=recancel.patience_s)
            self._recancel = self._ports.clock.call_later(recancel.next_s, self.actor_ref, recancel.next)

    # ── Its processes ─────────────────────────────────────────────────────────────────────────────

    def _request_spawn(self, spec: SpawnSpec, owner: Owner, process: Process) -> None:
        """Ask for a process. Called on the tool's thread."""
        process_id = process._id = self._ports.ids.new("proc")
        env = {**spec.env, "COUNTERMAND_FENCE": self._address.fence}
        spec = msgspec.structs.replace(spec, env=env)
        try:
            self.actor_ref.tell(SpawnRequested(self._address, process_id, spec, process, owner))
        except ActorDeadError:
            self._nobody_spawns(process)

    def _kill_process(self, process: Process, grace_s: float) -> None:
        """End a process. Called on the tool's thread."""
        tell(self.actor_ref, KillProcess(process._id, grace_s))

    def _kill(self, kill: KillProcess) -> None:
        """End a process for the tool. Who ended it is reported first, and so before its end is."""
        provenance = Provenance(
            source="tool.kill",
            reason=f"the tool {self._tool.name} ended it",
            mode=Mode.GRACEFUL if kill.grace_s > 0 else Mode.IMMEDIATE,
            requested_by=self._address.call,
            initiated_at=self._ports.clock.wall(),
        )
        killed = ProcessKilled(kill.process_id, provenance, kill.grace_s)
        self.tell_parent(ProcessReport(self._address, kill.process_id, killed))
        if kill.process_id in self._open:
            self._ports.processes.kill(kill.process_id, kill.grace_s)

    def _request_hand_over(self, process: Process, handed: Future[None]) -> None:
        """Hand a process over to the session. Called on the tool's thread."""
        request = HandOverRequested(self._address, process._id, handed, _listener(process))
        try:
            self.actor_ref.tell(request)
        except ActorDeadError:
            self._nobody_hands_over(request)

    def _hand_over_requested(self, request: HandOverRequested) -> None:
        self.tell_parent(request)

    def _spawn_requested(self, request: SpawnRequested) -> None:
        assert request.process is not None, "a tool asks with the handle it waits on"
        process_id, spec = request.process_id, request.spec
        self._processes[process_id] = request.process
        if request.owner is Owner.SESSION:
            self._asked.add(process_id)
            listener = _listener(request.process)
            self.tell_parent(SpawnRequested(request.address, process_id, spec, owner=Owner.SESSION, listener=listener))
            return
        self._specs[process_id] = spec
        self._open.add(process_id)
        self.tell_parent(SpawnRequested(request.address, process_id, spec))

    def _tree_taken(self, taken: TreeTaken) -> None:
        """A tree belongs to the session, from the start or by a hand-over. Its handle gets its news from there."""
        self._asked.discard(taken.process_id)
        self._open.discard(taken.process_id)
        self._cells.pop(taken.process_id, None)
        self._processes.pop(taken.process_id, None)
        child = self.children.get(taken.process_id)
        if child is not None:
            tell(child, Release())
        self._stop_if_done()

    def _spawn(self, permit: SpawnPermit) -> None:
        spec = self._specs.pop(permit.process_id, None)
        if spec is None:
            # A fence refused it while the permit was on the way: a refusal waits for no commit, so it came first.
            return
        if self._permit.token.cancelled:
            # The call's deadline passed while the permit was on the way, and the session does not know that yet.
            permit.cell.close()
        process_id = permit.process_id
        self._cells[process_id] = permit.cell
        self.start_child(ProcessActor, self._ports, self._address, process_id, spec, permit.cell, key=process_id)

    def _spawn_refused(self, refused: SpawnRefused) -> None:
        self._open.discard(refused.process_id)
        self._asked.discard(refused.process_id)
        self._specs.pop(refused.process_id, None)
        process = self._processes.pop(refused.process_id, None)
        provenance = self._permit.token.provenance
        if process is not None and provenance is None and refused.limit is not None:
            process._fail(
                QueueFull(
                    "there are as many processes of this owner as there may be",
                    expected=f"at most {refused.limit} at once",
                    got="one more",
                    remedy="wait for one of them to end, or kill it",
                )
            )
        elif process is not None:
            process._fail(RunCancelled(provenance or self._gone("run.ended", "the call is closed")))
        self._stop_if_done()

    def _process_news(self, report: ProcessReport) -> None:
        process = self._processes.get(report.process_id)
        if process is not None and not isinstance(report.news, ProcessKilled):
            _tell_handle(process, report.news)
        if isinstance(report.news, ProcessEnded):
            self._open.discard(report.process_id)
            self._cells.pop(report.process_id, None)
            self._processes.pop(report.process_id, None)
        self.tell_parent(report)
        self._stop_if_done()

    def _child_down(self, down: Down) -> None:
        """A process actor has ended: take its tree over, if that is still open, and end it."""
        if down.key in self._open and claim_for_run_end(self._cells.get(down.key)):
            self._ports.processes.adopt(down.key, self.actor_ref)
            self._ports.processes.kill(down.key, self._ports.settings.grace_s)
        self._stop_if_done()

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────────

    def _stop_if_done(self) -> None:
        if not self._executing and not self._open and not self._asked and not self.children:
            self.stop()

    def on_stop(self) -> None:
        """Cancel the timer of the deadline."""
        self._disarm_deadline()

    def on_failure(self, *_: object) -> None:
        """Cancel the timer of the deadline."""
        self._disarm_deadline()

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """A thread of the tool that outlived its call asked for something: refuse it."""
        message = envelope.message
        if isinstance(message, SpawnRequested) and message.process is not None:
            self._nobody_spawns(message.process)
        elif isinstance(message, HandOverRequested):
            self._nobody_hands_over(message)
        else:
            super().on_undelivered(envelope)

    def _nobody_spawns(self, process: Process) -> None:
        process._fail(RunCancelled(self._gone("actor.failure", "the call's actor is gone")))

    def _nobody_hands_over(self, request: HandOverRequested) -> None:
        fail(request.handed, RunCancelled(self._gone("actor.failure", "the call's actor is gone")))

    def _gone(self, source: str, reason: str) -> Provenance:
        """Why a request of the tool is refused, if nobody has cancelled the call."""
        return Provenance(source=source, reason=reason, initiated_at=self._ports.clock.wall())


def _tell_handle(process: Process, news: ProcessNews) -> None:
    """Bring news to those who wait for a process. Any thread; idempotent."""
    match news:
        case ProcessStarted():
            settle(process._started, news.pid)
        case ProcessExited():
            settle(process._exited, _as_exit(news))
        case ProcessEnded():
            process._fail(OSError(news.note or "the process tree was lost"))
        case ProcessOutput() | ProcessRemaining():
            pass


def _listener(process: Process) -> Callable[[ProcessNews], None]:
    return functools.partial(_tell_handle, process)


def _as_exit(news: ProcessExited) -> Exit:
    return Exit(
        status=news.status,
        output=news.tail,
        total_bytes=news.total_bytes,
        duration_s=news.duration_s,
        lossy=news.lossy,
        held=news.held,
        cpu_s=news.cpu_s,
        max_rss_kb=news.max_rss_kb,
        spool=news.spool,
        spooled_bytes=news.spooled_bytes,
    )


def _contained(callback: Any) -> Any:
    """Return `callback` such that it does nothing if its actor has ended: the execution goes on to its own end."""

    def call() -> None:
        try:
            callback()
        except ActorDeadError:
            logger.trace("the actor of a call is gone")

    return call
