"""What a tool says while it runs, as its agent does: under the fence of its call, with the credit of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import RunCancelled
from .main_thread import PlainDoor
from .plain import pieces, progress
from .spawning import _look, _wait, _wait_async
from .token import AsyncDoor
from .values import Provenance
from .wire import line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from .call import Call


class _Emitting:
    """The common part of both kinds."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._run = call.run

    def _frame(self, method: str, **params: Any) -> bytes:
        return line(method=method, params={"fence": self._call.fence, **params})

    def _texts(self, text: object) -> list[tuple[bytes, str]]:
        return [(self._frame("emit", text=piece), piece) for piece in pieces(text)]

    def _progress(self, data: Mapping[str, Any]) -> bytes:
        return self._frame("progress", data=progress(data))

    def _credit(self, frame: bytes) -> Future[None] | None:
        """Take what a frame costs; returns what has to be waited for."""
        waiter = self._run.credit.take(len(frame) - 1)
        if waiter is not None:
            self._run.watch(waiter)
        return waiter

    def _write(self, frame: bytes, text: str) -> None:
        """Write a frame whose credit was taken. In a door."""
        try:
            _look(self._run, self._call.token)
            if self._call.over:
                raise RunCancelled(self._run.token.provenance or Provenance("run.ended", "the call is closed"))
        except BaseException:
            self._run.credit.give(1, len(frame) - 1)
            raise
        if text:
            self._run.thread.text(text)
        self._run.host.wire.write(frame)


class Emit(_Emitting):
    """``emit("…")`` for a plain tool: it says a text, as the text of its agent; any thread.

    It raises RunCancelled once the call is closed.
    """

    def __call__(self, text: str) -> None:
        """Say a text. It waits for credit if much of the run's output is not in the log yet."""
        for frame, piece in self._texts(text):
            self._say(frame, piece)

    def progress(self, **data: Any) -> None:
        """Show progress to subscribers; it is not stored. Raises Invalid if it is too large."""
        self._say(self._progress(data), "")

    def _say(self, frame: bytes, text: str) -> None:
        run, token = self._run, self._call.token
        waiter = self._credit(frame)
        if waiter is not None:
            try:
                _wait(run, token, waiter, None)
            except BaseException:
                run.credit.give_up(len(frame) - 1, waiter)
                raise
        with PlainDoor(run.host.main, token):
            self._write(frame, text)


class AsyncEmit(_Emitting):
    """``await emit("…")`` for an async tool; see `Emit`. It raises asyncio.CancelledError itself."""

    async def __call__(self, text: str) -> None:
        """Say a text. It waits for credit if much of the run's output is not in the log yet."""
        for frame, piece in self._texts(text):
            await self._say(frame, piece)

    async def progress(self, **data: Any) -> None:
        """Show progress to subscribers; it is not stored. Raises Invalid if it is too large."""
        await self._say(self._progress(data), "")

    async def _say(self, frame: bytes, text: str) -> None:
        run, token = self._run, self._call.token
        waiter = self._credit(frame)
        if waiter is not None:
            try:
                await _wait_async(run, token, waiter, None)
            except BaseException:
                run.credit.give_up(len(frame) - 1, waiter)
                raise
        with AsyncDoor(token):
            self._write(frame, text)
