"""The pipes between a command and the code that has started it, as in the daemon's process; how code waits here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .errors import CountermandError, RunCancelled
from .main_thread import PlainDoor
from .shared import load
from .token import AsyncDoor, CancelToken, waker

if TYPE_CHECKING:
    from actors.plugin.pipes import AsyncInput, AsyncOutput, End, InputFile, OutputFile, Pipes

    from .run import Run
else:
    _shared = load("pipes")
    AsyncInput, AsyncOutput = _shared.AsyncInput, _shared.AsyncOutput
    End, InputFile, OutputFile, Pipes = _shared.End, _shared.InputFile, _shared.OutputFile, _shared.Pipes


__all__ = ["AsyncInput", "AsyncOutput", "Door", "End", "InputFile", "OutputFile", "Pipes"]


class Door:
    """How code of a host waits for a pipe; see `actors.plugin.pipes.Door`."""

    def __init__(self, run: Run, token: CancelToken, fence: str) -> None:
        self._run = run
        self._token = token
        self._fence = fence

    def look(self) -> None:
        """Raise RunCancelled after a cancel."""
        self._run.token.raise_if_cancelled()
        self._token.raise_if_cancelled()

    def ended(self) -> None:
        """Ask the daemon for a cancel: it ends the command at once, and its frame may come behind the end of a pipe."""
        with contextlib.suppress(CountermandError):
            self._run.wait(self._asked())
        self.look()

    async def ended_async(self) -> None:
        """As `ended`, in async code."""
        with contextlib.suppress(CountermandError):
            await self._run.wait_async(self._asked())
        self.look()

    def _asked(self) -> Future[Any]:
        return self._run.request("process.look", fence=self._fence)

    def future(self) -> Future[Any]:
        """Return a future that a cancel fails, of the run or of the call."""
        return self._run.future_of(self._token)

    def plain(self) -> PlainDoor:
        """Return what plain code reads and writes in."""
        return PlainDoor(self._run.host.main, self._token)

    @contextlib.asynccontextmanager
    async def aio(self) -> AsyncIterator[None]:
        """Return what async code reads and writes in."""
        with AsyncDoor(self._token):
            try:
                yield
            except RunCancelled:
                if self._run.token.cancelled:
                    await self._run.tell_last()
                raise

    async def wait_async(self, future: Future[Any]) -> Any:
        """Wait until the future is done."""
        woken, wake = waker()
        future.add_done_callback(lambda _: wake())
        await woken
        self.look()
        return future.result()
