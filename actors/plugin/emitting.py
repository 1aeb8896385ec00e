"""What a tool says while it runs, as its agent does: `emit("…")`, and `emit.progress(…)`.

A tool says a text under the address of its call. So it is accepted only while that is open: after a fence, at its time
limit, or behind its result the tool gets RunCancelled (asyncio.CancelledError in async code). It takes no credit: each
text is waited for until it is on record, which bounds how much is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from actors.events import ProgressData, TextData
from actors.gate.pending import Pending
from actors.gate.token import CancelBoundary
from actors.plugin.pieces import bounded, pieces

Say = Callable[[TextData | ProgressData, "Future[None]"], None]


class Emit:
    """``emit("…")`` for a plain tool: it says a text, as the text of its agent; any thread.

    The text stands in the thread where one of the agent would stand now: with the call, and before the results; where
    the call is of a model's answer, in a message of its own behind the results.

    Args:
        say: sends to the call's actor what is said, and the future that is resolved when that is on record.
        call_id: the id of the call.
        pending: of the call.
        size_max: limit on the JSON of one `progress`, in bytes.
        heard: called with each text, for the thread that the agent sees.
    """

    def __init__(
        self, say: Say, call_id: str, pending: Pending, size_max: int, heard: Callable[[TextData], None]
    ) -> None:
        self._say = say
        self._call_id = call_id
        self._size_max = size_max
        self._heard = heard
        self.pending = pending

    def __call__(self, text: str) -> None:
        """Say a text; it returns when that is on record. Raises RunCancelled once the call is closed."""
        for data in self.texts(text):
            self.pending.wait(self.begin(data), None)

    def progress(self, **data: Any) -> None:
        """Show progress to subscribers; it is not stored. Raises Invalid if it is too large."""
        self.pending.wait(self.begin(self.shown(data)), None)

    def texts(self, text: object) -> list[TextData]:
        """Return a text in pieces. Raises Invalid if it is none."""
        return [TextData(text=piece, call=self._call_id) for piece in pieces(text)]

    def shown(self, data: dict[str, Any]) -> ProgressData:
        """Return what `progress` shows."""
        made, _ = bounded(
            data, self._size_max, "this progress is too large", "show less of it, or return it as the result"
        )
        return ProgressData(shown=made)

    def begin(self, data: TextData | ProgressData) -> Future[None]:
        """Say it; returns the future of its being on record."""
        self.pending.token.raise_if_cancelled()
        told = self.pending.future()
        self._say(data, told)
        if isinstance(data, TextData):
            self._heard(data)
        return told


class AsyncEmit:
    """``await emit("…")`` for an async tool; see `Emit`."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._boundary = CancelBoundary(emit.pending.token)

    async def __call__(self, text: str) -> None:
        """Say a text; it returns when that is on record. Raises asyncio.CancelledError once the call is closed."""
        emit = self._emit
        async with self._boundary:
            for data in emit.texts(text):
                await emit.pending.wait_async(emit.begin(data))

    async def progress(self, **data: Any) -> None:
        """Show progress to subscribers; it is not stored. Raises Invalid if it is too large."""
        emit = self._emit
        async with self._boundary:
            await emit.pending.wait_async(emit.begin(emit.shown(data)))
