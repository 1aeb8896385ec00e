"""HostGuard: a guard of an agent in a host, or of a call that a host executes.

The daemon's own code decides on it; the words about it take their time. Between the decision and the permit the run
may be fenced, the host may be told of its cancel, and it may die. In each case the effect has begun for the daemon, and
does not take place.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from actors.errors import RunCancelled
from actors.gate.token import CancelBoundary
from supervisor.hosts import frames
from supervisor.hosts.guards import HostGuards
from supervisor.hosts.lines import Code, Request

if TYPE_CHECKING:
    from actors.gate.token import CancelToken
    from tests.sim.hosts import HostTurn
    from tests.sim.watch import Watch


class _Peer:
    """The daemon's end of the socket, for one request."""

    refused = False

    def answer(self, number: int, result: frames.Result) -> None:
        """It is permitted."""

    def refuse(self, number: int, code: Code, message: str, data: Any = None) -> None:
        """It is refused."""
        self.refused = True

    def note(self, kind: str) -> None:
        """A late one would be counted."""


class HostGuard:
    """What `AsyncCancelToken.guard` returns in a host."""

    def __init__(self, turn: HostTurn, name: str, watch: Watch, call: tuple[str, CancelToken] | None = None) -> None:
        self._host = turn.host
        self._core = turn._core
        self._watch = watch
        self._name = name
        # `call`: its fence and its token.
        self._fence, self._token = call or (turn.address.fence, self._core.token)
        self._key = turn.address.run if call is None else self._fence.rpartition(":")[2]
        self._peer = _Peer()
        self._guards = HostGuards(cast("Any", self._peer), cast("Any", self._peer), watch.break_, self._token_of)

    def _token_of(self, fence: str) -> Any:
        return self._token if fence == self._fence and self._host.core is self._core else None

    async def _on_its_way(self) -> None:
        await asyncio.sleep(self._host.random.random() ** 4 * 0.2)

    async def __aenter__(self) -> None:
        """Ask, and wait for the permit."""
        async with CancelBoundary(self._token):
            await self._on_its_way()
            self._watch.executions.asks_for_guard(self._key)
            request = Request(1, "guard", b"", 0)
            self._guards.requested(request, frames.Guard(fence=self._fence, name=self._name))
            await self._on_its_way()
            if self._peer.refused or self._host.cancelled or self._token.cancelled:
                assert self._token.provenance is not None, "only a fence is first"
                raise RunCancelled(self._token.provenance)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Say that it is done."""
        if kind is None:
            delay_s = self._host.random.random() * 0.1
            asyncio.get_running_loop().call_later(delay_s, self._says_done)

    def _says_done(self) -> None:
        if self._host.runs and not self._host.exited:
            self._guards.done(frames.GuardDone(fence=self._fence, name=self._name))
