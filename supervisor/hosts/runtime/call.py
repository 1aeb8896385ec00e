"""A call that the agent asks for: of a tool of the daemon's, or of a function that is executed here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from .credit import fail, settle
from .errors import Invalid, Refused, RunCancelled
from .files import as_frame
from .main_thread import UNSET
from .plain import as_json, as_result, check_has_run, words
from .token import CancelToken
from .values import MediaPart, ToolResult, made
from .wire import CANCELLED, STALE, WireError, line

if TYPE_CHECKING:
    from .run import Run
    from .thread import Segment

T = TypeVar("T")

Steps = Generator["Future[Any]", None, T]
"""What a door does, for both kinds of turn: it yields the futures that it has to wait for, and returns its value."""


class Call:
    """One call that the agent asked for. Its `result` is set when the daemon has answered.

    For a function that is executed here: `begin` starts it, on the wire thread, once the daemon sends `execute`; `here`
    are the steps that execute it on the waiting thread. `value` and `error` are its end.
    """

    def __init__(self, run: Run, tool: str, arguments: dict[str, Any]) -> None:
        self.run = run
        self.tool = tool
        self.arguments = arguments
        # Further fields of its frame.
        self.frame: dict[str, Any] = {}
        # Another one than `call` has no more parameters than its arguments: `ask`, `delegate`.
        self.method = "call"
        # The whole answer to it.
        self.answer: Mapping[str, Any] = {}
        # The answer of a model that it is a part of, in the thread.
        self.part_of: Segment | None = None
        self.token = CancelToken(run.token)
        self.reply: Future[ToolResult] = run.future()
        self.result: ToolResult | None = None
        self.over = False
        self.id = ""
        self.fence = ""
        self._number = run.host.wire.number(self._taken)
        self._line = b""
        self.begin: Callable[[], object] | None = None
        self.here: Steps[None] | None = None
        self.show: Callable[[Any], Any] | None = None
        self.hide: Callable[[ToolResult], ToolResult] = lambda result: result
        self.execute_id: int | None = None
        # What is done when its function has ended.
        self.at_end: tuple[Callable[[], object], ...] = ()
        self.value: Any = UNSET
        self.error: BaseException | None = None

    def prepare(self) -> int:
        """Make the frame; returns what it costs in bytes."""
        if self.method != "call":
            self._line = line(id=self._number, method=self.method, params={"fence": self.run.fence, **self.arguments})
            return len(self._line) - 1
        params = {"fence": self.run.fence, "tool": self.tool, "arguments": self.arguments, **self.frame}
        where = {} if self.begin is None else {"where": "host"}
        self._line = line(id=self._number, method="call", params={**params, **where})
        return len(self._line) - 1

    def drop(self) -> None:
        """Forget a call that was not asked for."""
        self.run.host.wire.unask(self._number)
        self.token._unlink()
        self.reply.cancel()

    def ask(self) -> None:
        """Ask for it. Its credit was taken before."""
        self.run.token.raise_if_cancelled()
        self.run.calls[self._number] = self
        self.run.thread.requested(self)
        self.run.host.wire.write(self._line)
        self._line = b""

    def give_up(self) -> None:
        """Report that it is not waited for any more, unless the run has ended. Its answer still comes."""
        if not self.run.token.cancelled:
            self.run.host.wire.note("$/cancel_request", {"requestId": self._number, "fence": self.run.fence})

    def outcome(self) -> Any:
        """Return what the function returned, or raise what it raised; Refused if the call was closed before."""
        result = self.reply.result()
        if result.outcome != "finished" or (self.value is UNSET and self.error is None):
            raise Refused(result) from self.error
        if self.error is not None:
            raise self.error
        return self.value

    def _taken(self, result: Any, error: WireError | None) -> None:
        """Take the daemon's answer; on the wire thread."""
        run = self.run
        run.calls.pop(self._number, None)
        self.token._unlink()
        self.over = True
        if error is None:
            parts = tuple(made(MediaPart, part) for part in result.get("parts") or ())
            self.id, self.answer, self.result = result["call"], result, made(ToolResult, {**result, "parts": parts})
            settle(self.reply, self.result)
        elif error.code in (CANCELLED, STALE):
            fail(self.reply, RunCancelled(run.why(error.data.get("provenance"))))
        else:
            fail(self.reply, error.public())

    # ── Executing it here ──

    def executed(self, number: int, params: Mapping[str, Any]) -> None:
        """Handle `execute`; on the wire thread."""
        self.execute_id, self.id, self.fence = number, params["call"], params["fence"]
        self.run.host.executing[number] = self
        if self.begin is None or self.reply.done() or self.token.cancelled:
            self.declined()
            return
        try:
            self.begin()
        except RuntimeError as error:
            # Its loop is closed, or there can be no further thread.
            self.ended(UNSET, error)

    def declined(self) -> None:
        """Answer `execute`: the function did not begin, or was ended by its cancel."""
        number = self._answering()
        if number is not None:
            data = as_json({"provenance": self.token.provenance})
            self.run.host.wire.refuse(number, CANCELLED, "cancelled", data)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Answer `execute`: the function returned, or raised."""
        if isinstance(error, asyncio.CancelledError) and (self.token.cancelled or self.run.token.cancelled):
            self.declined()
            return
        self.value, self.error = value, error
        if error is None:
            try:
                check_has_run(value)
                result = as_result(value if self.show is None else self.show(value))
            except BaseException as failed:  # noqa: BLE001  # it is raised where the function was called
                self.error = failed
        if self.error is not None:
            result = ToolResult("finished", words(self.error), is_error=True)
        result = self.hide(result)
        number = self._answering()
        if number is not None:
            answer = {"content": result.content, "is_error": result.is_error, "data": result.data}
            if result.parts:
                answer["files"] = [as_frame(part) for part in result.parts]
            try:
                self.run.host.wire.answer(number, answer)
            except Invalid as too_large:
                self.run.host.wire.answer(number, {"content": words(too_large), "is_error": True})

    def _answering(self) -> int | None:
        """Return the id of the `execute` to answer: once, whichever thread comes first."""
        for end in self.at_end:
            end()
        number = self.execute_id
        return number if number is not None and self.run.host.executing.pop(number, None) is not None else None
