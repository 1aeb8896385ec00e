"""RunActor: one per run; it owns the agent's execution, its calls, and its deadline.

It routes. What the agent asks for goes up to the session, what the session permits goes down to the calls, and reports
of ends go up. It decides nothing about the protocol.

It knows at all times which executions and process trees of its run may be alive. So it can take over and end what a
failed call left. A session starts a run actor with an `Adoption` to take over what a whole run has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from msgspec import structs
from pykka import ActorRef
from pykka._envelope import Envelope

from actors.gate.cell import Cell, CellState
from actors.gate.pending import settle
from actors.hierarchy.process import claim_for_run_end
from actors.hierarchy.run_agent import RunAgent, RunStart
from actors.hierarchy.run_host import RunHost
from actors.hierarchy.spawns import Spawns
from actors.hierarchy.tool import ToolActor
from actors.hierarchy.tool_host import ask_for_host, release_unheard
from actors.kernel.actor import Actor, tell
from actors.kernel.down import Down
from actors.messages import (
    AnswerLeft,
    CallAnswered,
    CallClosed,
    CallEnded,
    CallExpired,
    CallGivenUp,
    CallRequested,
    CallStarted,
    ExecutionEnded,
    Halt,
    HandOffRequested,
    HandOverRequested,
    HostGraceOver,
    HostStartDue,
    KillProcess,
    LateRefused,
    MediaGiven,
    OutputRead,
    Permit,
    PermitRefused,
    PermitWaiting,
    ProcessEnded,
    ProcessNews,
    ProcessReport,
    RecancelExecution,
    RunDeadline,
    RunExpired,
    RunFinished,
    Said,
    SaidTogether,
    SaveRequested,
    SpawnGivenUp,
    SpawnPermit,
    SpawnRefused,
    SpawnRequested,
    Steered,
    SteeringRequested,
    StrayEnded,
    StrayFound,
    ToolResult,
    ToolSaid,
    TreeTaken,
)
from actors.model import Address, How, Message, Owner, Provenance
from actors.plugin import execution
from actors.plugin.registration import Plugins
from actors.ports import HostedAgent, Ports, ProcessRow, Timer
from actors.secrets import NOTHING

GONE = "what ran it is gone"


@dataclass(frozen=True, slots=True)
class Adoption:
    """What an earlier actor of a run left, and how to end it.

    `agent`: the agent may still be executing. `calls`: ids of calls that may. `processes`: the id of each process tree
    that may be alive, with the id of its call; that is empty if the agent itself spawned it. `children`: of those that
    are child runs, the session. `host`: the id of the tree
    in which the agent runs, if that may be alive. `strays`: what code of the run started by itself. `halt`: ends all.
    """

    agent: bool
    calls: tuple[str, ...]
    processes: tuple[tuple[str, str], ...]
    strays: tuple[ProcessRow, ...]
    halt: Halt
    host: str | None = None
    children: Mapping[str, str] = field(default_factory=dict)


class RunActor(Actor):
    """The actor of one run.

    Args:
        ports: what it needs from outside.
        plugins: the tools.
        address: the run's.
        start: what the run begins with; None for an adoption.
        adoption: what to take over and end; None for a run that begins.
        key: the session's name for this actor.
    """

    def __init__(
        self,
        ports: Ports,
        plugins: Plugins,
        address: Address,
        start: RunStart | None,
        adoption: Adoption | None,
        *,
        key: str,
        parent: ActorRef[Any],
        dispatcher: Any,
    ) -> None:
        super().__init__(dispatcher=dispatcher, parent=parent, key=key)
        assert (start is None) != (adoption is None), "a run actor begins a run or adopts one"
        self._ports = ports
        self._plugins = plugins
        self._address = address
        self._start = start
        self._adoption = adoption
        self._agent_running = False
        self._permits: dict[str, Permit] = {}
        self._requests: dict[str, CallRequested] = {}
        self._replies: dict[str, Future[ToolResult]] = {}
        self._steering: dict[int, Future[tuple[Message, ...]]] = {}
        self._executions: set[str] = set()
        self._processes: dict[str, str] = {}
        # What a call has asked for, and the session has not decided: there is nothing of it yet to take over.
        self._undecided: set[str] = set()
        self._strays: set[str] = set()
        self._host = RunHost(self, ports, address)
        asks, token = ("the agent", None) if start is None else (f"the agent {start.agent_name}", start.token)
        self._spawns = Spawns(self, ports, address, asks, token)
        self._cells: dict[str, Cell[None]] = {}
        self._waiting: set[str] = set()
        self._halted: Halt | None = None
        self._deadline_left_s: float | None = None
        self._deadline_since: float = 0.0
        self._deadline_stage = 0
        self._timer: Timer | None = None
        self._recancel: Timer | None = None

    def log_context(self) -> Mapping[str, object]:
        """Its address."""
        return self._address.log_context

    def on_start(self) -> None:
        """Start the agent, or take over what an earlier actor left."""
        if self._start is not None:
            self._begin(self._start)
        elif self._adoption is not None:
            self._adopt(self._adoption)

    def on_receive(self, message: Any) -> None:
        """Handle one message."""
        match message:
            case (
                Said()
                | SaidTogether()
                | AnswerLeft()
                | SaveRequested()
                | ToolSaid()
                | MediaGiven()
                | HandOffRequested()
                | LateRefused()
                | CallStarted()
                | CallGivenUp()
                | CallExpired()
                | HandOverRequested()
            ):
                self.tell_parent(message)
            case CallRequested():
                self._call_requested(message)
            case CallEnded():
                self._call_ended(message)
            case SpawnRequested():
                self._spawn_requested(message)
            case KillProcess() | SpawnGivenUp():
                self._end_spawned(message)
            case TreeTaken():
                self._tree_taken(message)
            case ProcessReport():
                self._process_report(message)
            case StrayFound() | StrayEnded():
                self._stray(message)
            case SteeringRequested():
                self._steering_requested(message)
            case ExecutionEnded():
                self._execution_ended(message)
            case Permit():
                self._permit(message)
            case PermitWaiting():
                self._permit_waits(message)
            case PermitRefused() | CallAnswered():
                self._permit_refused(message)
            case CallClosed():
                self._call_closed(message)
            case SpawnPermit() | SpawnRefused():
                self._spawn_decided(message)
            case Steered():
                reply = self._steering.pop(message.request_id, None)
                if reply is not None:
                    settle(reply, message.messages)
            case Halt():
                self._halt(message)
            case HostGraceOver() | HostStartDue() | OutputRead():
                self._host.take(message, agent_runs=self._agent_running)
            case RunDeadline():
                self._deadline(message)
            case RecancelExecution():
                self._cancel_again(message)
            case Down():
                self._child_down(message)
            case _ if isinstance(message, ProcessNews):
                self._tree_news(message)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    # ── The agent ─────────────────────────────────────────────────────────────────────────────────

    def _begin(self, start: RunStart) -> None:
        if start.token.cancelled:
            # The run was closed, or its session failed, between the start of this actor and its first turn.
            self.tell_parent(
                RunFinished(self._address, How.NOT_STARTED, self._ports.clock.wall(), error="closed before it began")
            )
            if start.host is not None:
                # The run was never sent to its host, but the host is on record as the run's, so it ends with the run.
                self._has_tree(*start.host)
                self._take_tree(start.host[0], self._ports.settings.grace_s)
            self._stop_if_done()
            return
        if isinstance(start.agent, HostedAgent) and start.host is not None:
            self._has_tree(*start.host)
        self._agent_running = True
        RunAgent(self, self._ports, self._plugins, self._address, self._host, self._spawns).begin(start)
        self._deadline_left_s = start.deadline_s
        self._arm_deadline()

    def _has_tree(self, host: str, cell: Cell[None] | None) -> None:
        self._processes[host] = ""
        if cell is not None:
            self._cells[host] = cell

    def _execution_ended(self, ended: ExecutionEnded) -> None:
        if ended.key == self._address.run:
            self._agent_running = False
            self._disarm_deadline()
            self._host.end(agent_runs=False)
            finished = execution.run_finished(self._address, ended)
            self._host.after_output(lambda: self.tell_parent(finished))
        elif ended.key in self._executions:
            # The call was taken over from an actor that failed.
            self._executions.discard(ended.key)
            self._report_end(execution.call_ended(self._address.of_call(ended.key), ended, None))
        self._stop_if_done()

    def _arm_deadline(self) -> None:
        """Start the timer of the deadline. It stands still while a call waits for the barrier, or for a person."""
        if self._deadline_left_s is None or self._timer is not None or self._halted:
            return
        clock = self._ports.clock
        self._deadline_stage += 1
        self._deadline_since = clock.monotonic()
        self._timer = clock.call_later(self._deadline_left_s, self.actor_ref, RunDeadline(self._deadline_stage))

    def _disarm_deadline(self) -> None:
        """Stop the timer of the deadline, and keep how much time is left."""
        if self._timer is None or self._deadline_left_s is None:
            return
        self._timer.cancel()
        self._timer = None
        self._deadline_stage += 1
        self._deadline_left_s -= self._ports.clock.monotonic() - self._deadline_since
        self._deadline_left_s = max(self._deadline_left_s, 0.0)

    def _deadline(self, deadline: RunDeadline) -> None:
        if deadline.stage != self._deadline_stage or self._start is None:
            return
        # The deadline passes once: a permit that is under way does not start its timer again.
        self._timer = self._deadline_left_s = None
        reason = f"the run took longer than {self._start.deadline_s:g} s"
        provenance = Provenance(source="run.deadline", reason=reason, initiated_at=self._ports.clock.wall())
        self.tell_parent(RunExpired(self._address, provenance))

    # ── Calls ─────────────────────────────────────────────────────────────────────────────────────

    def _call_requested(self, request: CallRequested) -> None:
        call_id = request.address.call
        assert call_id is not None, "a call is requested under its own address"
        if request.reply is not None:
            self._replies[call_id] = request.reply
        self._requests[call_id] = request
        self.tell_parent(structs.replace(request, reply=None, context=None, secrets=NOTHING, heard=None))

    def _permit(self, permit: Permit) -> None:
        self._no_longer_waits(permit.call_id)
        request = self._requests.pop(permit.call_id)
        tool = request.made or self._plugins.tools[request.tool]
        deadline_s = tool.deadline_s or permit.deadline_s
        permit = Permit(permit.call_id, permit.cell, permit.token, deadline_s)
        self._permits[permit.call_id] = permit
        self._executions.add(permit.call_id)
        address = self._address.of_call(permit.call_id)
        # Also after a halt: the cells of the run's calls were closed before it, so the call reports no start.
        arguments = request.secrets.restored(request.arguments)
        more = (tool, arguments, permit, address, request.context, request.heard)
        self.start_child(ToolActor, self._ports, *more, key=permit.call_id)

    def _permit_waits(self, waits: PermitWaiting) -> None:
        self._waiting.add(waits.call_id)
        self._disarm_deadline()

    def _no_longer_waits(self, waited: str) -> None:
        """A call, or a tree of the agent's own, does not wait for the barrier or a person any more."""
        self._waiting.discard(waited)
        if not self._waiting and self._agent_running:
            self._arm_deadline()

    def _permit_refused(self, refused: PermitRefused | CallAnswered) -> None:
        """A call has its result, and nothing executes it."""
        self._no_longer_waits(refused.call_id)
        self._requests.pop(refused.call_id, None)
        self._answer(refused.call_id, refused.result)

    def _call_closed(self, closed: CallClosed) -> None:
        """End a call that the session closed. If its permit is on the way, its cell is void and it never begins."""
        self._answer(closed.call_id, closed.result)
        child = self.children.get(closed.call_id)
        if child is not None and closed.provenance is not None:
            tell(child, Halt(closed.provenance, self._ports.settings.grace_s))

    def _call_ended(self, ended: CallEnded) -> None:
        call_id = ended.address.call or ""
        self._executions.discard(call_id)
        self._permits.pop(call_id, None)
        self._report_end(ended)
        self._stop_if_done()

    def _report_end(self, ended: CallEnded) -> None:
        if ended.result is not None and not ended.result.parts:  # files have to be durable first
            self._answer(ended.address.call or "", ended.result)
        self.tell_parent(ended)

    def _answer(self, call_id: str, result: ToolResult) -> None:
        reply = self._replies.pop(call_id, None)
        if reply is not None:
            settle(reply, result)

    def _steering_requested(self, request: SteeringRequested) -> None:
        if request.reply is not None:
            self._steering[request.request_id] = request.reply
        self.tell_parent(SteeringRequested(request.address, request.request_id))

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────

    def _spawn_requested(self, request: SpawnRequested) -> None:
        if request.owner is Owner.RUN:
            self._processes[request.process_id] = request.address.call or ""
            if request.address.call is not None:
                self._undecided.add(request.process_id)
        if request.address.call is None:
            self._spawns.requested(request)
        elif request.host:
            ask_for_host(self, request, self._ports.hosts)
        else:
            self.tell_parent(request)

    def _end_spawned(self, message: KillProcess | SpawnGivenUp) -> None:
        """The agent ends what it has spawned, or waits for a spawn no longer, as a call does too."""
        if isinstance(message, KillProcess):
            self._spawns.kill(message)
        elif message.address.call is None:
            self._spawns.given_up(message)
        else:
            self.tell_parent(message)

    def _spawn_decided(self, decided: SpawnPermit | SpawnRefused) -> None:
        self._no_longer_waits(decided.process_id)
        self._undecided.discard(decided.process_id)
        if isinstance(decided, SpawnRefused):
            self._forget_tree(decided.process_id)
        elif decided.process_id in self._processes:
            # Else a refusal was ahead of it: nothing is spawned.
            self._cells[decided.process_id] = decided.cell
        if not decided.call_id:
            self._own_spawn_decided(decided)
            return
        child = self.children.get(decided.call_id)
        if child is not None:
            tell(child, decided)
        elif isinstance(decided, SpawnPermit):
            # The call's actor failed: nothing is spawned, and the session gets a report of that.
            decided.cell.close()
            self._not_spawned(decided.process_id, decided.call_id)
        else:
            self._stop_if_done()

    def _not_spawned(self, process_id: str, call_id: str) -> None:
        """Report that nothing came of a permit, since the actor of the call is gone."""
        news = ProcessEnded(process_id, How.NOT_STARTED, proven=True, at=self._ports.clock.wall())
        self._process_report(ProcessReport(self._address.of_call(call_id), process_id, news))

    def _own_spawn_decided(self, decided: SpawnPermit | SpawnRefused) -> None:
        """Of a tree that the agent itself has asked for."""
        if isinstance(decided, SpawnPermit):
            self._spawns.permitted(decided)
        else:
            self._spawns.refused(decided)
            self._stop_if_done()

    def _tree_taken(self, taken: TreeTaken) -> None:
        """A tree belongs to the session now: this run does not end it any more."""
        self._no_longer_waits(taken.process_id)
        self._forget_tree(taken.process_id)
        if taken.process_id == self._host.id:
            self._host.let_go()
        elif not taken.call_id:
            self._spawns.taken(taken)
        child = self.children.get(taken.call_id)
        if child is not None:
            tell(child, taken)
        self._stop_if_done()

    def _tree_news(self, news: ProcessNews) -> None:
        """From the port itself: of a tree that was taken over."""
        self._host.hear(news)
        call = self._processes.get(news.process_id)
        address = self._address.of_call(call) if call else self._address
        self._process_report(ProcessReport(address, news.process_id, news))

    def _process_report(self, report: ProcessReport) -> None:
        self._spawns.heard(report)
        if isinstance(report.news, ProcessEnded):
            self._forget_tree(report.process_id)
        self._host.report(report)
        self._stop_if_done()

    def tell_parent(self, message: object) -> None:
        """Send to the session, behind the report that the host has started."""
        if self._host.start is not None:
            super().tell_parent(self._host.take_start())
        super().tell_parent(message)

    def _stray(self, news: StrayFound | StrayEnded) -> None:
        """Code of the run has started something by itself, or that has ended."""
        if isinstance(news, StrayFound):
            self._strays.add(news.stray_id)
        else:
            self._strays.discard(news.stray_id)
        self.tell_parent(news)
        self._stop_if_done()

    # ── Halting and taking over ───────────────────────────────────────────────────────────────────

    def _halt(self, halt: Halt) -> None:
        """End everything. A second halt may give less grace.

        An execution was cancelled by its token, and is not cancelled again before it is named abandoned. It cannot be
        killed in this process, and a clean-up that is cut off leaves behind what it would have ended.
        """
        self._halted = halt
        self._disarm_deadline()
        # Children first, so that a process gets its signal before the agent's own clean-up begins; a host is for that.
        for key, child in self.children.items():
            if key != self._host.id:
                tell(child, halt)
        for process_id, call in self._processes.items():
            mine = process_id != self._host.id and not {call, process_id} & self.children.keys()
            if mine and claim_for_run_end(self._cells.get(process_id)):
                self._ports.processes.kill(process_id, halt.grace_s)
        if self._host.id in self._processes:
            self._host.halt(halt, agent_runs=self._agent_running)
        self._ports.strays.end(self._address, halt.grace_s)
        # For executions that were adopted; the token has cancelled the others.
        self._cancel_executions()
        if self._recancel is not None:
            self._recancel.cancel()
        patience_s = halt.grace_s + self._ports.settings.kill_s
        self._recancel = self._ports.clock.call_later(patience_s, self.actor_ref, RecancelExecution(patience_s))
        self._stop_if_done()

    def _cancel_executions(self, *, again_s: float | None = None) -> bool:
        """Cancel the executions that no child of this actor owns; False if no further cancel can have an effect."""
        keys = sorted(call_id for call_id in self._executions if call_id not in self.children)
        if self._agent_running and self._host.id is None:
            # One in a host was cancelled by its token, and only once: the next step is the end of its host.
            keys.append(self._address.run)
        goes_on = [key for key in keys if self._ports.executor.cancel(key, again_s=again_s)]
        return bool(goes_on)

    def _cancel_again(self, recancel: RecancelExecution) -> None:
        """Something goes on after its time: cancel it again, at growing intervals, for as long as it does."""
        if self._cancel_executions(again_s=recancel.patience_s):
            self._recancel = self._ports.clock.call_later(recancel.next_s, self.actor_ref, recancel.next)

    def _child_down(self, down: Down) -> None:
        """A call's actor has ended: take over what it may have left, and end that."""
        call_id = down.key
        if call_id == self._host.id:
            self._host.output_read()
        at = self._ports.clock.wall()
        permit = self._permits.pop(call_id, None)
        if call_id in self._executions and permit is not None:
            state, result = permit.cell.close()
            reason = f"the call's actor is gone: {down.failure or 'it was stopped'}"
            provenance = Provenance(source="actor.failure", reason=reason, initiated_at=at)
            permit.token.cancel(provenance)
            address = self._address.of_call(call_id)
            if state is not CellState.FINISHED:
                # A result in the cell stands: it comes with the report that the execution has ended.
                self.tell_parent(CallExpired(address, at, provenance, started=state is CellState.CLOSED))
            if self._ports.executor.adopt(call_id, self.actor_ref):
                self._ports.executor.cancel(call_id)
            else:
                self._executions.discard(call_id)
                how = How.NOT_STARTED if state is CellState.VOID else How.RAISED if result is None else How.RETURNED
                self.tell_parent(CallEnded(address, how, at, result))
        for process_id, call in list(self._processes.items()):
            if call_id not in (call, process_id) or process_id in self._undecided:
                continue
            cell = self._cells.get(process_id)
            if call and cell is not None and cell.close()[0] is CellState.VOID:
                # The call's actor had the permit, and did not come to use it.
                self._not_spawned(process_id, call)
                continue
            # Of a call that is gone, or the host whose own actor is.
            self._take_tree(process_id, self._ports.settings.grace_s)
        self._stop_if_done()

    def _forget_tree(self, process_id: str) -> None:
        self._processes.pop(process_id, None)
        self._cells.pop(process_id, None)

    def _take_tree(self, process_id: str, grace_s: float, child: str = "") -> None:
        """Take a tree over, and end it. `child`: the session of a child run that an earlier supervisor started."""
        if not claim_for_run_end(self._cells.get(process_id)):
            return  # It was handed over: the session has it.
        session = child or self._address.session
        self._ports.processes.adopt(process_id, self.actor_ref, session, anew=self._adoption is not None)
        self._ports.processes.kill(process_id, grace_s, self._address.session)

    def _adopt(self, adoption: Adoption) -> None:
        """Take over what an earlier actor of this run left. What the ports do not know has ended."""
        at = self._ports.clock.wall()
        self._halted = adoption.halt
        executor = self._ports.executor
        # Before the executions: what they have started is known before their ends are.
        self._strays.update(row.process_id for row in adoption.strays)
        self._ports.strays.adopt(self._address, self.actor_ref, adoption.strays, anew=True)
        if adoption.agent:
            if executor.adopt(self._address.run, self.actor_ref, anew=True):
                self._agent_running = True
            else:
                self.tell_parent(RunFinished(self._address, How.GONE, at, error=GONE))
        for call_id in adoption.calls:
            if executor.adopt(call_id, self.actor_ref, anew=True):
                self._executions.add(call_id)
            else:
                self.tell_parent(CallEnded(self._address.of_call(call_id), How.GONE, at, None, note=GONE))
        for process_id, call_id in adoption.processes:
            self._processes[process_id] = call_id
            self._take_tree(process_id, adoption.halt.grace_s, adoption.children.get(process_id, ""))
        if adoption.host is not None:
            self._processes[adoption.host] = ""
            self._host.adopt(adoption.host)
        self._halt(adoption.halt)

    # ── Ends ──────────────────────────────────────────────────────────────────────────────────────

    def _stop_if_done(self) -> None:
        if self._agent_running or self.children or self._executions or self._processes or self._strays:
            return
        self.stop()

    def on_failure(self, *_: object) -> None:
        """Release the host of a request for one that was not passed on: no other actor knows of it."""
        message = self.failed_at
        if isinstance(message, SpawnRequested) and message.process_id not in self._undecided:
            release_unheard(message, self._ports.hosts)

    def on_undelivered(self, envelope: Envelope[Any]) -> None:
        """Likewise of a request that this actor did not come to handle."""
        if not release_unheard(envelope.message, self._ports.hosts):
            super().on_undelivered(envelope)
