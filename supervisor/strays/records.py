"""The state of a run and of its strays. Read and written under the lock of the `Strays` that has them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from pykka import ActorRef

from actors.kernel.actor import tell
from actors.kernel.succession import Succession
from actors.messages import StrayEnded, StrayFound
from actors.model import Address, PartKind
from supervisor.containment.guard import procfs
from supervisor.containment.offspring import Offspring


class Run:
    """The state of one run; it lives as long as code of the run may execute, or a stray of it is kept."""

    __slots__ = (
        "__weakref__",
        "address",
        "agent_over",
        "begun",
        "doubted",
        "dues",
        "forgotten",
        "forks",
        "here",
        "lock",
        "more",
        "open",
        "owner",
        "strays",
        "succession",
    )

    def __init__(self, address: Address, lock: threading.RLock) -> None:
        self.address = address
        # Of the `Strays` that has it.
        self.lock = lock
        self.owner: ActorRef[Any] | None = None
        self.succession = Succession()
        self.begun = procfs.ticks_now()
        # How many executions of it have begun and not ended.
        self.open = 0
        # One of them has begun in this process.
        self.here = False
        self.agent_over = False
        # By call, None for all: when its strays are killed (seconds, monotonic).
        self.dues: dict[str | None, float] = {}
        self.strays: dict[str, Stray] = {}
        # The strays that stand for all of a kind beyond a bound; the bool: those that are spared.
        self.more: dict[tuple[PartKind, bool], Stray] = {}
        # It has started a process.
        self.forks = False
        self.doubted = False
        # No actor asks for the ends of its strays any more.
        self.forgotten = False

    def due(self, call: str | None) -> float | None:
        """When the strays of a call, or of the agent, are killed; None: they are not being ended."""
        dues = [self.dues[key] for key in {None, call} if key in self.dues]
        return min(dues, default=None)

    def tell(self, message: StrayFound | StrayEnded) -> None:
        """Send a report to the owner, if there is one."""
        # If the owner is gone, the next one gets the report when it adopts the run.
        if self.owner is not None:
            tell(self.owner, message)

    def tell_all(self, stray: Stray) -> None:
        """Send all reports of a stray so far to the owner."""
        self.tell(stray.found)
        if stray.ended is not None:
            self.tell(stray.ended)


class Stray:
    """A stray that was reported to its run. Only a subprocess has `process`; otherwise `left` threads or tasks live.

    It stands for `more` further ones, which were not reported by themselves.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "call",
        "ended",
        "found",
        "id",
        "left",
        "more",
        "process",
        "run",
        "spared",
        "tasks",
    )

    def __init__(self, run: Run, found: StrayFound) -> None:
        self.run = run
        self.id = found.stray_id
        self.call = found.address.call
        self.found = found
        self.ended: StrayEnded | None = None
        self.process: Offspring | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.left = 0
        self.more = 0
        self.asked = False
        # Not asked to end before its execution has ended; killed when its time is over.
        self.spared = False
