"""ToolCalls: the tool calls of a program, as calls of the run, and its requests for permission."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import CountermandError, Refused
from ..plain import as_json, cut, dumped
from ..turn import AsyncTurn
from ..values import ToolResult

ARGUMENTS_MAX_BYTES = 65_536
CONTENT_MAX_BYTES = 65_536
QUESTION_MAX_BYTES = 4_096
NAME_MAX_CHARS = 64
ALLOW, DENY = "allow", "deny"
NO_RESULT = "the program's turn ended without a result of this call"
OVER = "the program's turn has ended"


class _Call:
    """One call. `decided`: it began (None), or why it may not; `ended`: its result, as the program reports it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.decided: asyncio.Future[str | None] = loop.create_future()
        self.ended: asyncio.Future[ToolResult] = loop.create_future()
        self.task: asyncio.Task[None] | None = None


class ToolCalls:
    """The calls of one turn of a program, by the program's own ids. On the loop of the host only."""

    def __init__(self, turn: AsyncTurn) -> None:
        self._turn = turn
        self._calls: dict[str, _Call] = {}
        self._over = False

    async def begun(self, key: str, name: str, arguments: object) -> None:
        """Record a call that the program makes without asking, unless it is known.

        It returns when the call is on record as begun. What the program says next is behind that: so whoever has seen
        it has seen the call.
        """
        if key not in self._calls and not self._over:
            await self._record(key, name, arguments, begun=True).decided

    async def gated(self, key: str, name: str, arguments: object, *, ask: bool) -> str | None:
        """Wait until a call may begin, which the program holds until then; `ask`: until a person allows it.

        Returns None if it may, else why not. A call that is on record as begun already is asked about apart.
        """
        if self._over:
            return OVER
        known = self._calls.get(key)
        if known is None:
            return await self._record(key, name, arguments, ask=ask).decided
        if not ask or known.ended.done():
            return None
        return await self._question(name, arguments)

    async def ended(self, key: str, content: str, *, is_error: bool) -> None:
        """Record the result of a call, so that what the program says next stands behind it.

        If the call waits for a person, it is given up.
        """
        call = self._calls.get(key)
        if call is None or call.ended.done():
            return
        call.ended.set_result(ToolResult("finished", cut(content, CONTENT_MAX_BYTES), is_error))
        if call.task is not None:
            if not call.decided.done():
                call.task.cancel()
            await asyncio.wait([call.task])

    async def close(self) -> None:
        """The turn of the program has ended: so have its calls, and none begins."""
        self._over = True
        for key in self._calls:
            await self.ended(key, NO_RESULT, is_error=True)

    def _record(self, key: str, name: str, arguments: object, *, ask: bool = False, begun: bool = False) -> _Call:
        call = self._calls[key] = _Call()
        call.task = asyncio.create_task(self._gate(call, key, name, shown(arguments), ask=ask, begun=begun))
        return call

    async def _gate(
        self, call: _Call, key: str, name: str, arguments: dict[str, Any], *, ask: bool, begun: bool
    ) -> None:
        async def function() -> ToolResult:
            if not call.decided.done():
                call.decided.set_result(None)
            return await call.ended

        why: str | None = None
        try:
            await self._turn.gate(
                name[:NAME_MAX_CHARS] or "tool",
                arguments,
                function,
                provider_id=key,
                show=lambda result: result,
                ask=ask,
                begun=begun,
            )
        except Refused as error:
            why = error.result.content
        except CountermandError as error:
            # It cannot be recorded, as with a name that is none.
            why = str(error)
            sys.stderr.write(f"the call {name!r} of the program is not on record: {error}\n")
        finally:
            if not call.decided.done():
                call.decided.set_result(why or "the run has ended")

    async def _question(self, name: str, arguments: object) -> str | None:
        try:
            answer = await self._turn.ask(question(name, arguments), [ALLOW, DENY])
        except Refused as error:
            return error.result.content
        return None if allows(answer) else answer


def question(name: str, arguments: object) -> str:
    """Return what a person is asked before a call."""
    return cut(f"{name} asks for permission: {dumped(shown(arguments))}", QUESTION_MAX_BYTES)


def allows(answer: str) -> bool:
    """Return True if a person's answer allows a call."""
    return answer.strip().lower() == ALLOW


def shown(arguments: object) -> dict[str, Any]:
    """Return arguments as they are recorded: an object of a limited size."""
    made = as_json(arguments if isinstance(arguments, Mapping) else {} if arguments is None else {"input": arguments})
    text = dumped(made)
    if len(text.encode()) > ARGUMENTS_MAX_BYTES:
        return {"beginning": cut(text, ARGUMENTS_MAX_BYTES)}
    return dict(made)
