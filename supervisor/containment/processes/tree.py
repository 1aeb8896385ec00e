"""The daemon's state of each process tree. Reactor thread only."""

from __future__ import annotations

import os
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import structs

from actors.kernel.succession import Succession
from supervisor.by_session import BySession

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from pykka import ActorRef

    from actors.messages import ProcessEnded, ProcessExited, ProcessRemaining, ProcessStarted
    from actors.ports import SpawnSpec
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.output import Output
    from supervisor.containment.processes.copies import Copy
    from supervisor.containment.processes.given import Given
    from supervisor.containment.processes.keyboard import Keyboard
    from supervisor.containment.reactor import Alarm
    from supervisor.containment.spool import Spool
    from supervisor.containment.zygote_handle import ZygoteHandle


class TreePhase(StrEnum):
    """The phases of a tree."""

    WAITING = "waiting"
    SENT = "sent"
    RUNNING = "running"
    LOST = "lost"
    ENDED = "ended"


class Tree:
    """The daemon's state of one process tree."""

    def __init__(
        self,
        process_id: str,
        spec: SpawnSpec,
        owner: ActorRef[Any],
        session: str,
        path: Path,
        output: Output,
        spool: Spool,
        given: Given,
    ) -> None:
        self.process_id = process_id
        self.session = session
        self.spec = spec
        self.nice = spec.nice
        # Random, so that only a process that inherited it has it.
        self.marker = f"{process_id}:{os.urandom(8).hex()}"
        self.owner = owner
        self.succession = Succession()
        self.path = path
        self.output = output
        self.spool = spool
        self.given = given
        self.paused = False
        self.drained_bytes: int | None = None
        self.held = False
        self.phase = TreePhase.WAITING
        self.attempts = 0
        self.waiting_since: float | None = None
        self.zygote: ZygoteHandle | None = None
        self.sock: socket.socket | None = None
        self.pipes: dict[str, int] = {}
        self.copies: dict[str, Copy] = {}
        self.keyboard: Keyboard | None = None
        # Streams that are not read because a copy is behind.
        self.waiting: set[str] = set()
        self.start_report: ProcessStarted | None = None
        self.exited: Word | None = None
        self.last: Word | None = None
        self.remaining: ProcessRemaining | None = None
        self.kill_at: float | None = None
        self.drain_alarm: Alarm | None = None
        self.kill_alarms: list[Alarm] = []
        self.exit_report: ProcessExited | None = None
        self.end_report: ProcessEnded | None = None
        self.forgotten = False
        self.searched = False

    def belong_to(self, session: str) -> None:
        """Give a tree without a session to one: its spool file is renamed, and later reports name the new file."""
        before, self.session = self.spool.path, session
        self.spool.belong_to(session)
        self.output.elsewhere = self.spool.elsewhere
        if self.start_report is not None and self.start_report.spool == before:
            self.start_report = structs.replace(self.start_report, spool=self.spool.path)
        if self.exit_report is not None and self.exit_report.spool == before:
            self.exit_report = structs.replace(self.exit_report, spool=self.spool.path)

    def disarm_kill(self) -> None:
        """Cancel the alarms of a kill."""
        for alarm in self.kill_alarms:
            alarm.cancel()
        self.kill_alarms.clear()


class TreeTable:
    """All trees that are not forgotten, and whether the daemon is closing."""

    def __init__(self) -> None:
        self.by_id: dict[str, Tree] = {}
        self._sessions = BySession()
        self.closing = False
        self.quiet = threading.Event()
        """Set when the daemon is closing and every tree has ended. Any thread may wait for it."""

    def add(self, tree: Tree) -> None:
        """Keep a tree until `remove`."""
        self.by_id[tree.process_id] = tree
        self._sessions.add(tree.process_id, tree.session)

    def belong_to(self, tree: Tree, session: str) -> None:
        """Give a tree to a session, if it has none; "" is none."""
        if session and not tree.session:
            tree.belong_to(session)
            self._sessions.add(tree.process_id, session)

    def of(self, session: str) -> list[Tree]:
        """Return the trees of a session."""
        return [self.by_id[process_id] for process_id in self._sessions.of(session)]

    def remove(self, process_id: str) -> None:
        """Forget a tree, if it is known."""
        self.by_id.pop(process_id, None)
        self._sessions.discard(process_id)

    def check_quiet(self) -> None:
        """Set `quiet` if that is so."""
        if self.closing and all(tree.phase is TreePhase.ENDED for tree in self.by_id.values()):
            self.quiet.set()
