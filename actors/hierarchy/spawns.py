"""Spawns: the process trees that an agent, or a call, has asked for, in the hands of its actor.

The code that asks has a handle (`actors.plugin.spawning.Process`), and waits for it on its own thread. The request goes
up to the session, the permit comes back, and an actor of its own spawns the tree. The cell of the spawn decides whether
it takes place at all, and later whose the tree is: the run's, or the session's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

import msgspec
from pykka import ActorDeadError

from actors.errors import QueueFull, Refused, RunCancelled
from actors.gate.cell import Cell
from actors.gate.pending import Pending, fail, settle
from actors.hierarchy.process import ProcessActor, claim_for_run_end
from actors.kernel.actor import Actor, tell
from actors.messages import (
    ChildClosed,
    ChildStarted,
    Halt,
    HandOverRequested,
    KillProcess,
    ProcessEnded,
    ProcessExited,
    ProcessKilled,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    Release,
    SpawnGivenUp,
    SpawnPermit,
    SpawnRefused,
    SpawnRequested,
    ToolResult,
    TreeTaken,
)
from actors.model import Address, Mode, Outcome, Owner, Provenance
from actors.plugin.child import Child
from actors.plugin.spawning import Exit, Process, Spawn
from actors.ports import ChildSpec, Ports, SpawnSpec

if TYPE_CHECKING:
    from actors.gate.token import CancelToken

CHILD_OF_MAX_CHARS: Final = 119
CHILD_CHARS: Final = 8
"""Of the end of an id, which is random. Together they are no longer than the name of a session may be."""


class Spawns:
    """The trees of one call, or those that the agent of a run has asked for itself.

    Used in the turns of its owner, except what `spawn` returns: that is for the code of the agent or the tool.

    Args:
        owner: the actor of the call or of the run.
        ports: what it needs from outside.
        address: of the call or of the run.
        who: who asks, for people: ``the tool NAME``.
        token: of the call or of the run; None: nothing is asked for any more.
    """

    def __init__(
        self, owner: Actor, ports: Ports, address: Address, who: str, token: CancelToken | None = None
    ) -> None:
        self._owner = owner
        self._ports = ports
        self._address = address
        self._who = who
        self._token = token
        self._processes: dict[str, Process | Child] = {}
        self._specs: dict[str, SpawnSpec | ChildSpec] = {}
        self._cells: dict[str, Cell[None]] = {}
        self._open: set[str] = set()
        # Trees that were asked for on behalf of the session: whatever it decides, the owner does not end them.
        self._asked: set[str] = set()
        # Those that are open and given up: they do not start, or are ending.
        self._given_up: set[str] = set()

    @property
    def idle(self) -> bool:
        """True if no tree is open, and none is asked for."""
        return not self._open and not self._asked

    # ── For the code that asks; on its thread ─────────────────────────────────────────────────────

    def spawn(self, pending: Pending) -> Spawn:
        """Return the function that asks for a process."""
        return Spawn(
            self._request,
            pending,
            self._ask_to_kill,
            self._request_hand_over,
            self._say_given_up,
            self._request_child,
        )

    def _request(self, spec: SpawnSpec, owner: Owner, process: Process) -> None:
        process_id = process._id = self._ports.ids.new("proc")
        env = {**spec.env, "COUNTERMAND_FENCE": self._address.fence}
        spec = msgspec.structs.replace(spec, env=env)
        self._send(SpawnRequested(self._address, process_id, spec, process, owner))

    def _request_child(self, spec: ChildSpec, child: Child) -> None:
        run_id = child._id = self._ports.ids.new("run")
        child._session = spec.session or child_session(self._address.session, run_id)
        spec = msgspec.structs.replace(spec, session=child._session)
        self._send(SpawnRequested(self._address, run_id, spec, child))

    def _send(self, request: SpawnRequested) -> None:
        try:
            self._owner.actor_ref.tell(request)
        except ActorDeadError:
            self.undelivered(request)

    def _ask_to_kill(self, process: Process, grace_s: float) -> None:
        tell(self._owner.actor_ref, KillProcess(process._id, grace_s))

    def _say_given_up(self, process: Process) -> None:
        provenance = Provenance(
            source="call.given_up",
            reason=f"{self._who} stopped waiting for its start",
            requested_by=self._address.call,
            initiated_at=self._ports.clock.wall(),
        )
        tell(self._owner.actor_ref, SpawnGivenUp(self._address, process._id, provenance))

    def _request_hand_over(self, process: Process, handed: Future[None]) -> None:
        request = HandOverRequested(self._address, process._id, handed, _listener(process))
        try:
            self._owner.actor_ref.tell(request)
        except ActorDeadError:
            self.undelivered(request)

    # ── Asked for, and decided ────────────────────────────────────────────────────────────────────

    def requested(self, request: SpawnRequested) -> None:
        """The code asks for a process."""
        assert request.process is not None, "it asks with the handle that it waits on"
        process_id, spec, address = request.process_id, request.spec, request.address
        self._processes[process_id] = request.process
        if request.owner is Owner.SESSION:
            self._asked.add(process_id)
            assert isinstance(request.process, Process), "a child run belongs to its run"
            listener = _listener(request.process)
            request = SpawnRequested(address, process_id, spec, owner=Owner.SESSION, listener=listener)
            self._owner.tell_parent(request)
            return
        self._specs[process_id] = spec
        self._open.add(process_id)
        self._owner.tell_parent(SpawnRequested(address, process_id, spec))

    def permitted(self, permit: SpawnPermit) -> None:
        """A process may be spawned: start its actor, which does."""
        process_id, spec = permit.process_id, self._specs.pop(permit.process_id, None)
        if spec is None:
            # A fence refused it while the permit was on the way: a refusal waits for no commit, so it came first.
            return
        if isinstance(spec, ChildSpec):
            spec = msgspec.structs.replace(spec, parent=permit.parent)
        if process_id in self._given_up or (self._token is not None and self._token.cancelled):
            # Nobody waits for it; or a deadline passed while the permit was on the way. The session does not know that
            # yet, and is told that nothing was spawned.
            permit.cell.close()
        self._cells[process_id] = permit.cell
        self._owner.start_child(ProcessActor, self._ports, self._address, process_id, spec, permit.cell, key=process_id)

    def refused(self, refused: SpawnRefused) -> None:
        """A process will not be spawned."""
        self._open.discard(refused.process_id)
        self._asked.discard(refused.process_id)
        self._given_up.discard(refused.process_id)
        self._specs.pop(refused.process_id, None)
        process = self._processes.pop(refused.process_id, None)
        if process is not None:
            process._fail(self.why(refused))

    def why(self, refused: SpawnRefused) -> BaseException:
        """Return what is raised where a process was asked for that will not be spawned."""
        provenance = None if self._token is None else self._token.provenance
        if provenance is None and refused.limit is not None:
            return QueueFull(
                "there are as many processes of this owner as there may be",
                expected=f"at most {refused.limit} at once",
                got="one more",
                remedy="wait for one of them to end, or kill it",
            )
        if provenance is None and refused.reason:
            return Refused(ToolResult(Outcome.NOT_STARTED, refused.reason, is_error=True))
        return RunCancelled(provenance or self._gone("run.ended", "the call is closed"))

    def taken(self, taken: TreeTaken) -> None:
        """A tree belongs to the session, from the start or by a hand-over. Its handle gets its news from there."""
        self._forget(taken.process_id)
        self._asked.discard(taken.process_id)
        child = self._owner.children.get(taken.process_id)
        if child is not None:
            tell(child, Release())

    def undelivered(self, message: SpawnRequested | HandOverRequested) -> None:
        """The owner has ended, and code that outlived it asks for something: refuse it."""
        error = RunCancelled(self._gone("actor.failure", "the actor that it belongs to is gone"))
        if isinstance(message, HandOverRequested):
            fail(message.handed, error)
        elif message.process is not None:
            message.process._fail(error)

    def _gone(self, source: str, reason: str) -> Provenance:
        """Why a request is refused if the token of the code that asks is not cancelled."""
        return Provenance(source=source, reason=reason, initiated_at=self._ports.clock.wall())

    # ── Running, and ended ────────────────────────────────────────────────────────────────────────

    def heard(self, report: ProcessReport) -> None:
        """A report on a tree: pass it to the tree's handle."""
        process = self._processes.get(report.process_id)
        if process is not None and not isinstance(report.news, ProcessKilled):
            _tell_handle(process, report.news)
        if isinstance(report.news, ProcessEnded):
            self._forget(report.process_id)

    def kill(self, kill: KillProcess) -> None:
        """End a process for the code that started it. Who ended it is reported first, and so before its end is."""
        provenance = Provenance(
            source="tool.kill",
            reason=f"{self._who} ended it",
            mode=Mode.GRACEFUL if kill.grace_s > 0 else Mode.IMMEDIATE,
            requested_by=self._address.call,
            initiated_at=self._ports.clock.wall(),
        )
        killed = ProcessKilled(kill.process_id, provenance, kill.grace_s)
        self._owner.tell_parent(ProcessReport(self._address, kill.process_id, killed))
        if kill.process_id in self._open:
            self._ports.processes.kill(kill.process_id, kill.grace_s)

    def given_up(self, given_up: SpawnGivenUp) -> None:
        """Nobody waits for the start of a process any more, or has its handle: it does not start, or is ended.

        It is ended through its actor, so that the kill comes behind the spawn. One whose actor has failed was ended for
        that. One that was asked for on behalf of the session is ended by the session.
        """
        self._owner.tell_parent(given_up)
        process_id, child = given_up.process_id, self._owner.children.get(given_up.process_id)
        if process_id not in self._open:
            return
        self._given_up.add(process_id)
        if child is not None:
            tell(child, Halt(given_up.provenance, self._ports.settings.grace_s))

    def halt(self, halt: Halt) -> None:
        """End the trees that have no actor; those that have one are ended by it."""
        for process_id in sorted(self._open):
            if process_id not in self._owner.children and claim_for_run_end(self._cells.get(process_id)):
                self._ports.processes.kill(process_id, halt.grace_s)

    def take_over(self, process_id: str) -> None:
        """The actor of a tree has ended: take the tree over, if that is still open, and end it."""
        if process_id in self._open and claim_for_run_end(self._cells.get(process_id)):
            self._ports.processes.adopt(process_id, self._owner.actor_ref, self._address.session)
            self._ports.processes.kill(process_id, self._ports.settings.grace_s)

    def _forget(self, process_id: str) -> None:
        self._open.discard(process_id)
        self._given_up.discard(process_id)
        self._cells.pop(process_id, None)
        self._processes.pop(process_id, None)


def _tell_handle(process: Process | Child, news: ProcessNews) -> None:
    """Bring news to those who wait for a process. Any thread; idempotent."""
    if isinstance(process, Child):
        if isinstance(news, ChildClosed):
            process._has_closed(news.report)
        elif isinstance(news, ProcessEnded):
            process._has_ended(news)
        return
    match news:
        case ProcessStarted():
            settle(process._started, news.pid)
        case ProcessExited():
            settle(process._exited, _as_exit(news))
        case ProcessEnded():
            process._ended(OSError(news.note or "the process tree was lost"))
        case ProcessOutput() | ProcessRemaining() | ChildStarted() | ChildClosed():
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


def child_session(parent: str, run_id: str) -> str:
    """Return the name of a new session for a child run: that of its parent's, and the end of its own id."""
    return f"{parent[:CHILD_OF_MAX_CHARS]}.{run_id[-CHILD_CHARS:]}"
