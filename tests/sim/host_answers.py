"""Answers of models from simulated hosts: each part is a frame, which the daemon's own side of the protocol takes.

What the runtime does in a host is played here, in virtual time. What decides on its frames is `HostAnswers`, the real
one. A host may lie: it then sends a part of an answer that is over, and its run fails for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors.errors import CountermandError, Invalid
from actors.messages import ToolResult
from actors.plugin.turn import AsyncTurn
from supervisor.hosts import frames
from supervisor.hosts.answers import HostAnswers

if TYPE_CHECKING:
    from actors.plugin.turn_core import TurnCore
    from tests.sim.watch import Watch

LIES: Final = 1 / 8
"""In how many answers of a host a part is sent behind the end."""


class AnsweringTurn(AsyncTurn):
    """The turn of an agent in a host, as far as answers go.

    Args:
        core: of the run.
        host: the host, for what is executed there.
        watch: gets what should not have been accepted.
        broke_protocol: fails the host; None: it does not lie.
    """

    def __init__(self, core: TurnCore, host: Any, watch: Watch, broke_protocol: Callable[[str], None] | None) -> None:
        super().__init__(core)
        self.host = host
        self.answers = HostAnswers(core)
        self.numbers = 0
        self._watch = watch
        self._broke_protocol = broke_protocol

    def answer(self, *, provider: str | None = None, model: str | None = None) -> Any:
        """Begin the answer of a model."""
        self.numbers += 1
        return FrameAnswer(self, frames.BeginAnswer(fence="", answer=self.numbers, provider=provider, model=model))

    def send(self, params: frames.BeginAnswer | frames.KeepBlock | frames.EndAnswer | frames.Emit, size: int) -> None:
        """Write a frame; its credit was taken before."""
        if isinstance(params, frames.Emit):
            self._core.said(self.answers.text(params.answer, params.text), size)
        else:
            self._core.said(self.answers.part(params, mended=False), size)

    def request(self, call: frames.Call, size: int) -> tuple[str, Future[ToolResult]]:
        """Ask for a call; its credit was taken before."""
        prepared = self._core.prepare_named(call.tool, call.arguments, None, call.provider_id)
        return self._core.request_call(prepared._replace(answer=self.answers.of_call(call), size=size))

    def leave(self, params: frames.LeaveAnswer) -> None:
        """Leave an answer: the session hears of it, or its calls would wait until the run is ended."""
        told: list[object] = []
        tell, self._core._tell = self._core._tell, told.append
        self.answers.leave(params)
        self._core._tell = tell
        for message in told:
            tell(message)
        if not told and not self._core.token.cancelled:
            self._watch.break_(f"{self.address.run} has left answer {params.answer}, and its session is not told (L2)")

    def may_lie(self, number: int) -> None:
        """Send a part of an answer that is over, if this host lies."""
        if self._broke_protocol is None or self._core.token.cancelled:
            return
        for lie in (
            lambda: self.answers.text(number, "a lie "),
            lambda: self.answers.part(frames.EndAnswer(fence="", answer=number), mended=False),
            lambda: self.answers.of_call(frames.Call(fence="", tool="write", answer=number)),
        ):
            try:
                lie()
            except CountermandError as error:
                self._broke_protocol(str(error))
            else:
                self._watch.break_(f"a part of an answer of {self.address.run} is accepted behind its end (L6)")


class FrameAnswer:
    """As `AsyncModelAnswer`, for the scripted agent."""

    def __init__(self, turn: AnsweringTurn, begin: frames.BeginAnswer) -> None:
        self.turn = turn
        self.number = begin.answer
        self.open = False
        self.stop_reason: str | None = None
        self._begin = begin
        self._usage: dict[str, int] = {}
        self._unsent: list[FrameCall] = []

    async def __aenter__(self) -> FrameAnswer:
        """Begin it."""
        await self._frame(self._begin)
        self.open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it, or leave it."""
        try:
            if kind is None:
                await self._send_calls()
                end = frames.EndAnswer(fence="", answer=self.number, usage=self._usage, stop=self.stop_reason)
                await self._frame(end)
                self.open = False
        finally:
            if self.open:
                self.open = False
                self.turn.leave(frames.LeaveAnswer(fence="", answer=self.number, usage=self._usage))
        if kind is None or issubclass(kind, Exception):
            self.turn.may_lie(self.number)

    def usage(self, **counts: int) -> None:
        """Note what it cost."""
        self._usage |= counts

    async def text(self, text: str) -> None:
        """Say a text."""
        await self._send_calls()
        await self._frame(frames.Emit(fence="", text=text, answer=self.number))

    async def block(self, data: dict[str, Any]) -> None:
        """Keep a block."""
        await self._send_calls()
        await self._frame(frames.KeepBlock(fence="", answer=self.number, data=data))

    def call(self, tool: str, arguments: Mapping[str, Any], *, provider_id: str | None = None) -> FrameCall:
        """Ask for a call, with the next frame."""
        params = frames.Call(
            fence="", tool=tool, arguments=dict(arguments), answer=self.number, provider_id=provider_id
        )
        self._unsent.append(FrameCall(self, params))
        return self._unsent[-1]

    async def _frame(self, params: frames.BeginAnswer | frames.KeepBlock | frames.EndAnswer | frames.Emit) -> None:
        size = len(msgspec.json.encode(params))
        async with self.turn._boundary:
            await self.turn._spend(size)
            self.turn.send(params, size)

    async def _send_calls(self) -> None:
        async with self.turn._boundary:
            while self._unsent:
                size = len(msgspec.json.encode(self._unsent[0].params))
                await self.turn._spend(size)
                self._unsent.pop(0).send(size)


class FrameCall(Awaitable[ToolResult]):
    """A call of an answer."""

    def __init__(self, answer: FrameAnswer, params: frames.Call) -> None:
        self.params = params
        self._answer = answer
        self._sent: tuple[str, Future[ToolResult]] | None = None

    @property
    def id(self) -> str | None:
        """Its id, once it was asked for."""
        return self._sent[0] if self._sent else None

    def send(self, size: int) -> None:
        """Ask for it."""
        self._sent = self._answer.turn.request(self.params, size)

    def __await__(self) -> Generator[Any, None, ToolResult]:
        """Wait for its result, behind the answer."""
        return self._result().__await__()

    async def _result(self) -> ToolResult:
        turn = self._answer.turn
        async with turn._boundary:
            turn._core.token.raise_if_cancelled()
            if self._sent is None:
                raise Invalid("this call was never asked for")
            return await turn._result(*self._sent)
