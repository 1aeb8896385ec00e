"""Tools that are made where they are called: a call brings its own along, which stands where a registered one does.

A `Tool` is executed as a registered one is. `Foreign` is executed elsewhere, by a function that is given a way to
finish it. `GatedTask` and `GatedThread` are for
`turn.gate`: one function of the caller's, for one call. An async one is a task of its own, as that of an async tool is,
in the context of the caller; a plain one is called on the thread that asks.

The gate is the same for all of them. The call is on record, waits for the barrier and for its permit, and its cell is
started before the function begins (law L2).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from actors.errors import Invalid, Refused
from actors.gate.pending import Pending, settle
from actors.gate.token import CancelToken
from actors.messages import ToolResult
from actors.model import Isolation, JsonObject, Outcome
from actors.plugin.registration import Tool
from actors.plugin.spawning import Spawn
from actors.secrets import NOTHING, Withheld

T = TypeVar("T")

Finish: TypeAlias = Callable[[object], None]
Show: TypeAlias = Callable[[T], str | ToolResult]
NOBODY_WAITS: Final = "whoever was to execute it does not wait for it any more"


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A tool that is executed elsewhere, for one call: in a host, for example.

    Attributes:
        name: the tool's name in the log.
        execute: called with the fencing token of the call, its arguments, its cancel token, what spawns processes for
            it, and `finish`, once the cell is started. It may not block. `finish` is to be called once, from any
            thread: with a `ToolResult`, or with the exception that ends the call. Anything else is converted as what a
            tool returns. After a cancel too: the call is a part of its run until then.
        deadline_s: as of a tool.
        child: the agent of the child run that it asks for; None: it asks for none.
    """

    name: str
    execute: Callable[[str, JsonObject, CancelToken, Spawn, Finish], None]
    deadline_s: float | None = None
    child: str | None = None
    isolation: ClassVar[Isolation] = Isolation.HOST


class _Gated(Generic[T]):
    """What a function of the caller's returned or raised, as it is."""

    def __init__(self, name: str, show: Show[T] | None, deadline_s: float | None) -> None:
        self.name = name
        self.deadline_s = deadline_s
        self._show = show
        self._value: T | None = None
        self._error: BaseException | None = None

    def _returned(self, value: T) -> object:
        """Keep a value, and return what the thread shows for it.

        Raises:
            Invalid: it is code that has not run, so its effects would come outside of the gate.
        """
        check_has_run(value)
        self._value = value
        return value if self._show is None else self._show(value)

    def outcome(self, result: ToolResult) -> T:
        """Return or raise what the function did; `result` is what the thread has.

        Raises:
            Refused: the function did not take place, or its call was closed before it ended.
        """
        if result.outcome != Outcome.FINISHED:
            raise Refused(result) from self._error
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it returned this


class GatedTask(_Gated[T]):
    """An async function of the caller's: it runs on the loop on which it is gated, as a task."""

    isolation: ClassVar[Isolation] = Isolation.TASK
    child: ClassVar[str | None] = None
    given: ClassVar[dict[str, str]] = {}

    def __init__(
        self, name: str, function: Callable[[], Awaitable[T]], show: Show[T] | None, deadline_s: float | None
    ) -> None:
        super().__init__(name, show, deadline_s)
        self._function = function
        self._loop = asyncio.get_running_loop()

    async def function(self) -> object:
        """Await the function."""
        try:
            if asyncio.get_running_loop() is not self._loop:
                raise Invalid(
                    "an async function can be gated on the agent's own event loop only",
                    expected="gate(…) in a coroutine of the agent's loop",
                    got="a coroutine of another loop",
                    remedy="asyncio.run_coroutine_threadsafe(turn.gate(…), the agent's loop)",
                )
            return self._returned(await self._function())
        except BaseException as error:
            self._error = error
            raise

    def convert(self, _: JsonObject) -> dict[str, Any]:
        """It has its arguments."""
        return {}

    def withheld(self, arguments: JsonObject) -> tuple[JsonObject, Withheld]:
        """Nothing of it is secret."""
        return arguments, NOTHING


class GatedThread(_Gated[T]):
    """A plain function of the caller's: it is called on the thread that asks, once the cell is started."""

    def __init__(
        self,
        name: str,
        function: Callable[[], T],
        show: Show[T] | None,
        deadline_s: float | None,
        pending: Pending,
    ) -> None:
        super().__init__(name, show, deadline_s)
        self._function = function
        self._pending = pending
        # The first of three resolves it, and so decides: the permit, a refusal, or the cancel of the run.
        self._permit: Future[Finish | None] = pending.future()

    @property
    def foreign(self) -> Foreign:
        """The tool that the call brings along."""
        return Foreign(self.name, self._permitted, self.deadline_s)

    def _permitted(self, _: str, __: JsonObject, ___: CancelToken, ____: Spawn, finish: Finish) -> None:
        if not settle(self._permit, finish):
            finish(asyncio.CancelledError(NOBODY_WAITS))

    def run(self, reply: Future[ToolResult]) -> None:
        """Wait until the call may take place, and call the function; or return when it is refused.

        Raises:
            RunCancelled: the run was cancelled before the function began.
        """
        reply.add_done_callback(lambda _: settle(self._permit, None))
        try:
            finish = self._pending.wait(self._permit, None)
        except BaseException:
            self._let_go()
            raise
        if finish is None:
            return
        try:
            shown = self._returned(self._function())
        except BaseException as error:  # noqa: BLE001  # it is raised again, once the call has its result
            self._error = error
            finish(error)
        else:
            finish(shown)

    def _let_go(self) -> None:
        """Give the permit up. If it has come all the same, the call ends as cancelled."""
        if settle(self._permit, None) or self._permit.exception() is not None:
            return
        finish = self._permit.result()
        if finish is not None:
            finish(asyncio.CancelledError(NOBODY_WAITS))


Made: TypeAlias = Foreign | GatedTask[Any] | Tool
"""What a call may bring along."""


def check_has_run(value: object) -> None:
    """Check that a function's result is a value.

    Raises:
        Invalid: it is a coroutine or a generator, so the function's code has not run. It is closed.
    """
    if not (inspect.isawaitable(value) or inspect.isasyncgen(value) or inspect.isgenerator(value)):
        return
    kind = type(value).__name__
    if inspect.iscoroutine(value) or inspect.isgenerator(value):
        value.close()
    raise Invalid(
        "the function returned code that is never run",
        expected="an async function, or a plain one that returns its result",
        got=kind,
        remedy="declare it with 'async def' and without 'yield', and await what it calls",
    )
