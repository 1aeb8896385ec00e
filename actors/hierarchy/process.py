"""ProcessActor: one per process tree; it spawns the tree, reports its news, and ends it.

The port does the work. This actor asks the cell whether the spawn takes place at all, passes news up under its address,
and has the port kill the tree at a Halt. It ends when the warden has reported that the tree is empty.

A tree of a run ends with its actor, for whatever reason the actor ends. A tree of the session does not: the session
takes it over. While a tree is being handed over, the cell of its spawn decides whose it is, as the cell of a call
decides its result. The session finishes the cell, the actor that ends the tree for the run closes it, and only the
first of the two has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from loguru import logger
from pykka import ActorRef

from actors.gate.cell import Cell, CellState
from actors.kernel.actor import Actor
from actors.messages import (
    ChildClosed,
    ChildStarted,
    Halt,
    OutputRead,
    ProcessEnded,
    ProcessExited,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessReport,
    ProcessStarted,
    Release,
)
from actors.model import Address, How, Owner
from actors.ports import ChildSpec, Ports, SpawnSpec


class ProcessActor(Actor):
    """The actor of one process tree.

    Args:
        ports: what it needs from outside.
        address: of the call that asked for the tree.
        process_id: the tree's id.
        spec: the command, or the child run in its place; None for a tree that runs already: the parent has the port
            report it to this actor.
        cell: of the spawn; if it is closed, nothing is spawned.
        owner: to whom the tree belongs.
        listener: gets the news first, for the handle that waits in the tool; it must not block.
        key: the parent's name for this actor.
    """

    def __init__(
        self,
        ports: Ports,
        address: Address,
        process_id: str,
        spec: SpawnSpec | ChildSpec | None,
        cell: Cell[None] | None,
        *,
        owner: Owner = Owner.RUN,
        listener: Callable[[ProcessNews], None] | None = None,
        key: str,
        parent: ActorRef[Any],
        dispatcher: Any,
    ) -> None:
        super().__init__(dispatcher=dispatcher, parent=parent, key=key)
        self._ports = ports
        self._address = address
        self._process_id = process_id
        self._spec = spec
        self._cell = cell
        self._owner = owner
        self._listener = listener
        self._running = False

    def log_context(self) -> Mapping[str, object]:
        """Its address."""
        return self._address.log_context

    def on_start(self) -> None:
        """Spawn the tree, unless a fence came first. The compare-and-set of the cell is the last step before it."""
        if self._spec is None:
            # The parent has the port report to this actor, in the parent's turn. Done in this one, it could come after
            # a later owner has adopted the tree, and would take the reports away from that owner.
            self._running = True
            return
        if self._cell is None or not self._cell.start():
            at = self._ports.clock.wall()
            note = "stopped before the spawn"
            self._report(ProcessEnded(self._process_id, How.NOT_STARTED, proven=True, at=at, note=note))
            self.stop()
            return
        self._running = True
        if not isinstance(self._spec, ChildSpec):
            self._ports.processes.spawn(self._process_id, self._spec, self.actor_ref, self._address.session)
        else:
            assert self._ports.children is not None, "a session that is started by hand delegates nothing"
            self._ports.children.start(self._process_id, self._spec, self.actor_ref)

    def on_receive(self, message: Any) -> None:
        """Handle one message."""
        match message:
            case (
                ProcessStarted()
                | ProcessOutput()
                | ProcessExited()
                | ProcessRemaining()
                | ChildStarted()
                | ChildClosed()
            ):
                self._report(message)
            case ProcessEnded():
                self._running = False
                self._report(message)
                self.stop()
            case Halt():
                # What was not spawned, since a fence came first, is not ended.
                if self._running and (self._owner is Owner.SESSION or claim_for_run_end(self._cell)):
                    self._ports.processes.kill(self._process_id, message.grace_s)
            case OutputRead():
                self.tell_parent(message)
            case Release():
                self._running = False
                self.stop()
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    def on_stop(self) -> None:
        """Leave no tree without an owner: a tree of the run is being ended when another actor takes it over."""
        if self._running and self._owner is Owner.RUN and claim_for_run_end(self._cell):
            self._ports.processes.kill(self._process_id, self._ports.settings.grace_s)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,  # noqa: ARG002  # Pykka's signature
        exception_value: BaseException | None,  # noqa: ARG002  # Pykka's signature
        traceback: TracebackType | None,  # noqa: ARG002  # Pykka's signature
    ) -> None:
        """As `on_stop`. The parent takes the tree over when it gets Down."""
        self.on_stop()

    def _report(self, news: ProcessNews) -> None:
        if self._listener is not None:
            self._listener(news)
        self.tell_parent(ProcessReport(self._address, self._process_id, news))


def claim_for_run_end(cell: Cell[None] | None) -> bool:
    """Close the cell of a spawn, in order to end its tree. False: the tree was handed over first, to the session."""
    return cell is None or cell.close()[0] is not CellState.FINISHED
