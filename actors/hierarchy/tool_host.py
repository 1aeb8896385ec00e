"""ToolHost: the process in which one call's tool runs, if it runs in one, in the hands of the call's actor.

Such a tool gets a host of its own (`actors.hosts`): a spare, whose tree becomes a part of the run, below the call,
before the call is sent to it. So a host is requested as a spawn is: the request is recorded, then permitted, and a
fence that comes first voids it. If the call is not sent to its host, the session releases the host to the spares, once
it is durable that the host is not the call's. A request may also never reach the session. Then the actor that still has
it releases the host: the call's, the run's if it ends with the request in its mailbox, or the session's if it fails.

Its end. The call's token cancels the code of the tool, which may clean up; no signal interrupts that before the code
has ended or the grace is over (`RunHost`). Then, or when the tool has returned, the tree is ended, and its warden
proves that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from pykka import ActorDeadError

from actors.errors import RunCancelled
from actors.events import ProgressData, TextData
from actors.gate.credit import Credit
from actors.gate.pending import Pending
from actors.hierarchy.run_host import RunHost
from actors.kernel.actor import Actor
from actors.messages import (
    Halt,
    Permit,
    ProcessEnded,
    ProcessKilled,
    ProcessNews,
    ProcessReport,
    Said,
    SaidTogether,
    SpawnPermit,
    SpawnRequested,
)
from actors.model import Address, How, JsonObject, Message, Provenance, Role
from actors.plugin.emitting import Emit
from actors.plugin.execution import AgentDone
from actors.plugin.registration import Tool, host_of
from actors.plugin.spawning import Spawn
from actors.plugin.turn_core import TurnCore
from actors.ports import Hosts, Ports, SpawnSpec
from actors.thread import Thread


class ToolHost:
    """The host of one call. Used in the turns of the call's actor only.

    Args:
        owner: the call's actor.
        ports: what it needs from outside.
        address: of the call.
        tool: the tool.
        arguments: its arguments.
        permit: of the call.
        spawn: makes what spawns processes for the call.
        emit: says something for the call.
    """

    def __init__(
        self,
        owner: Actor,
        ports: Ports,
        address: Address,
        tool: Tool,
        arguments: JsonObject,
        permit: Permit,
        spawn: Callable[[Pending], Spawn],
        emit: Emit,
    ) -> None:
        self.id: str | None = None
        self.open = False
        self._owner = owner
        self._ports = ports
        self._address = address
        self._tool = tool
        self._arguments = arguments
        self._permit = permit
        self._spawn = spawn
        self._emit = emit
        self._tree = RunHost(owner, ports, address)
        self._halted = False
        # Set until the call is sent to its host, or is not to be sent any more.
        self._finish: Callable[[object], None] | None = None

    @property
    def _hosts(self) -> Hosts:
        return self._tree.hosts

    def begin(self, finish: Callable[[object], None]) -> None:
        """The call's cell has started: reserve a host, and ask for it. `finish` is called once, with the end."""
        self._finish = finish
        self.id = self._hosts.reserve(host_of(self._tool.name), self._address.session)
        spec = SpawnSpec((), f"host of {self._tool.name}", None, {})
        request = SpawnRequested(self._address, self.id, spec, host=host_of(self._tool.name))
        ask_for_host(self._owner, request, self._hosts)

    def permitted(self, permit: SpawnPermit) -> None:
        """The host is on record as a part of the call: send it the call, unless a fence came first."""
        finish, self._finish = self._finish, None
        token = self._permit.token
        if finish is None or token.cancelled:
            # Its deadline passed while the permit was on the way, which the session may not know yet; or a fence was.
            permit.cell.close()
        if finish is None or not permit.cell.start():
            at, note = self._ports.clock.wall(), "stopped before it was told"
            ended = ProcessEnded(permit.process_id, How.NOT_STARTED, proven=True, at=at, note=note)
            self._owner.tell_parent(ProcessReport(self._address, permit.process_id, ended))
            if finish is not None:
                finish(self._cancelled())
            return
        self.open = True
        self._tree.begin(permit.process_id, permit.cell)
        self._hosts.run(permit.process_id, self._core(), (), finish)

    def _core(self) -> TurnCore:
        """Return the turn of the call: it has the arguments for a message, and says what the tool says."""
        settings, address = self._ports.settings, self._address
        credit = Credit(settings.credit_events, settings.credit_bytes)
        core = TurnCore(
            lambda message: self._said(message, credit),
            address,
            self._permit.token,
            credit,
            Thread(),
            (),
            lambda: self._ports.ids.new("call"),
            lambda *_: "a tool calls no tools",
            settings.content_max_bytes,
            spawn=self._spawn,
            wall=self._ports.clock.wall,
        )
        said = msgspec.json.encode({"arguments": self._arguments, "max_bytes": settings.content_max_bytes}).decode()
        core.steered((Message("arguments", Role.USER, said, address.generation, address.run, origin="tool"),))
        return core

    def _said(self, message: object, credit: Credit) -> None:
        """Pass on what the tool has said in its process, and give its credit back when that is on record."""
        together = message.said if isinstance(message, SaidTogether) else (message,)
        for said in together:
            if not isinstance(said, Said):
                continue
            if isinstance(said.data, TextData):
                told = self._emit.begin(TextData(text=said.data.text, call=self._address.call))
            elif isinstance(said.data, ProgressData):
                told = self._emit.begin(said.data)
            else:
                credit.give(said.size)
                continue
            told.add_done_callback(functools.partial(_give_back, credit, said.size))

    def refused(self, error: BaseException) -> None:
        """It is not given to the call, for this reason."""
        self._let_go(error)

    def _cancelled(self) -> RunCancelled:
        at = self._ports.clock.wall()
        ended = Provenance(source="run.ended", reason="the call is closed", initiated_at=at)
        return RunCancelled(self._permit.token.provenance or ended)

    def _let_go(self, error: BaseException) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(error)

    def leave(self) -> None:
        """The call's actor ends: if it waits for the host still, the execution has ended."""
        self._let_go(RuntimeError("the call's actor is gone"))

    # ── Its news, and its end ─────────────────────────────────────────────────────────────────────

    def heard(self, news: object) -> None:
        """A report on a tree of the call."""
        if isinstance(news, ProcessEnded) and news.process_id == self.id:
            self.open = False

    def hear(self, news: ProcessNews) -> None:
        """A report from the port itself: pass it to the host's connection."""
        if self.id is not None:
            self._tree.hear(news)

    def halt(self, halt: Halt, *, executing: bool) -> None:
        """The call is halted, perhaps again."""
        self._halted = True
        if self.open:
            self._tree.halt(halt, agent_runs=executing)
        else:
            # If it waits for its host, it waits no longer.
            self._let_go(self._cancelled())

    def grace_over(self, *, executing: bool) -> None:
        """The grace of a halted call is over: end its host."""
        self._tree.end(agent_runs=executing)

    def after_output(self, then: Callable[[], None]) -> None:
        """See `RunHost.after_output`."""
        self._tree.after_output(then) if self.open else then()

    def output_read(self) -> None:
        """See `RunHost.output_read`."""
        self._tree.output_read()

    def executed(self) -> None:
        """The tool has ended: so does its process. Who ends it is reported first."""
        if not self.open or self.id is None:
            return
        if self._halted:
            self._tree.end(agent_runs=False)
            return
        grace_s = self._ports.settings.grace_s
        reason = f"the tool {self._tool.name} has ended"
        why = Provenance(
            source="tool.kill", reason=reason, requested_by=self._address.call, initiated_at=self._ports.clock.wall()
        )
        self._owner.tell_parent(ProcessReport(self._address, self.id, ProcessKilled(self.id, why, grace_s)))
        self._ports.processes.kill(self.id, grace_s)

    def take_over(self, key: str) -> None:
        """The actor of its tree has ended. If it failed, the call's actor takes the tree over, and ends it."""
        if key == self.id:
            self.output_read()
        if self.open and key == self.id:
            self._ports.processes.adopt(self.id, self._owner.actor_ref)
            self._ports.processes.kill(self.id, self._ports.settings.grace_s)


def _give_back(credit: Credit, size: int, _: Future[None]) -> None:
    credit.give(size)


def done_of(value: object) -> AgentDone:
    """Return what `ToolHost.begin` finishes with: the end of the tool in its host, or why it did not begin."""
    if isinstance(value, AgentDone):
        return value
    how = How.CANCELLED if isinstance(value, RunCancelled) else How.RAISED
    return AgentDone(how, None, str(value))


def ask_for_host(asker: Actor, request: SpawnRequested, hosts: Hosts | None) -> None:
    """Ask the parent for the host that was reserved for a call. If the parent has ended, the host is released."""
    assert asker.parent is not None, "a call has a run, and a run its session"
    try:
        asker.parent.tell(request)
    except ActorDeadError:
        release_unheard(request, hosts)


def release_unheard(message: object, hosts: Hosts | None) -> bool:
    """Release the host that a call asks for, in a message that was not handled. False: it asks for none.

    Only if the session did not get the message: what the session has decided is on record, or about to be.
    """
    if not isinstance(message, SpawnRequested) or not message.host or hosts is None:
        return False
    hosts.release(message.process_id)
    return True
