"""Waker: wakes one coroutine, from any thread."""

from __future__ import annotations

import asyncio


class Waker:
    """Create it in a coroutine, and await `woken` there. Any thread may call `wake`, more than once.

    `wake` never waits and never raises: if the loop was closed, none of its coroutines waits any more.
    """

    __slots__ = ("_loop", "woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Resolve `woken`, on its loop."""
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return

    def _resolve(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)
