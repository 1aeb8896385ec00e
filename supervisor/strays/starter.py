"""Starter: one execution, of a run's agent or of a call. The starts of its code are attributed to it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from actors.gate.token import CancelToken
from actors.model import Address
from supervisor.strays.records import Run, Stray

if TYPE_CHECKING:
    from supervisor.strays.threads import Work


class Host(Protocol):
    """A supervisor that attributes starts. It is called inside foreign code, so it must not wait."""

    def starts(self, starter: Starter, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process for `starter`, by an audit event."""

    def starts_outside(self, event: str, args: Sequence[Any]) -> None:
        """The calling thread is about to start a process outside any agent or tool of this host, by an audit event."""


class Starter:
    """One execution, and what its code has started. Read and written under the lock of its host."""

    __slots__ = ("address", "host", "more", "over", "reported", "run", "tasks", "token", "works")

    def __init__(self, host: Host, run: Run, address: Address, token: CancelToken) -> None:
        self.host = host
        self.token = token
        self.run = run
        self.address = address
        self.over = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.works: set[Work] = set()
        # By kind: how many strays were reported, and the stray that stands for all beyond the limit.
        self.reported: dict[str, int] = {}
        self.more: dict[str, Stray] = {}
