"""ProcessActor: one per process tree; its spawn, its news, its end.

The port does the work. This actor decides, by the cell, whether the spawn takes place at all, passes news up
under its address, and passes Halt down as the kill ladder. It ends when the warden has said its last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from loguru import logger
from pykka import ActorRef

from actors.base import Actor
from actors.cancel import Cell
from actors.messages import Halt, ProcessEnded, ProcessExited, ProcessOutput, ProcessReport, ProcessStarted
from actors.model import Address, How
from actors.ports import Ports, SpawnSpec


class ProcessActor(Actor):
    """The actor of one process tree.

    Args:
        ports: what it needs from outside.
        address: of the call that owns the tree.
        spec: the command.
        cell: of the spawn; shut means that nothing is spawned.
        key: the process id.
    """

    def __init__(
        self,
        ports: Ports,
        address: Address,
        spec: SpawnSpec,
        cell: Cell[None],
        *,
        key: str,
        parent: ActorRef[Any],
        dispatcher: Any,
    ) -> None:
        super().__init__(dispatcher=dispatcher, parent=parent, key=key)
        self._ports = ports
        self._address = address
        self._spec = spec
        self._cell = cell
        self._running = False

    def log_context(self) -> Mapping[str, object]:
        """Its address."""
        return self._address.log_context

    def on_start(self) -> None:
        """Spawn, if no fence was first: the compare-and-set is the gate, and nothing stands between."""
        if not self._cell.start():
            at = self._ports.clock.wall()
            self._report(ProcessEnded(self.key, How.NOT_STARTED, proven=True, at=at, note="stopped before the spawn"))
            self.stop()
            return
        self._running = True
        self._ports.processes.spawn(self.key, self._spec, self.actor_ref)

    def on_receive(self, message: Any) -> None:
        """Handle one message."""
        match message:
            case ProcessStarted() | ProcessOutput() | ProcessExited():
                self._report(message)
            case ProcessEnded():
                self._running = False
                self._report(message)
                self.stop()
            case Halt():
                self._ports.processes.kill(self.key, message.grace_s)
            case _:
                logger.warning("{} does not know {!r:.200}", self, message)

    def on_stop(self) -> None:
        """Leave no tree without an owner: whoever takes it over finds it ending."""
        if self._running:
            self._ports.processes.kill(self.key, self._ports.settings.grace_s)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,  # noqa: ARG002  # Pykka's signature
        exception_value: BaseException | None,  # noqa: ARG002  # Pykka's signature
        traceback: TracebackType | None,  # noqa: ARG002  # Pykka's signature
    ) -> None:
        """As `on_stop`; the parent takes the tree over when it hears Down."""
        self.on_stop()

    def _report(self, news: ProcessStarted | ProcessOutput | ProcessExited | ProcessEnded) -> None:
        self.tell_parent(ProcessReport(self._address, self.key, news))
