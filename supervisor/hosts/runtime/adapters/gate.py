"""The gate: what a framework does, as the run does it: it calls a tool, asks a person, hands over."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from countermand import CountermandError, Refused


async def gated(
    turn: Any, name: str, arguments: Mapping[str, Any], function: Callable[[], Awaitable[Any]], **more: Any
) -> Any:
    """Execute a tool as a call of the run: recorded before it begins, allowed where that is asked for, ended by a Stop.

    Returns what `function` returned, raises what it raised. Of a call that did not take place, or was closed before its
    end, it returns the text of its result, for the model. `more` are arguments of `turn.gate`.
    """
    try:
        return await turn.gate(name, arguments, function, **more)
    except Refused as refused:
        return refused.result.content


async def begun(turn: Any, name: str, arguments: Mapping[str, Any], ended: Awaitable[Any], **more: Any) -> str | None:
    """Begin a call that a framework executes by itself, and that is over with `ended`, whose value is its result.

    Returns None when it has begun, else why it may not.
    """
    has_begun = asyncio.get_running_loop().create_future()

    async def function() -> Any:
        has_begun.set_result(None)
        # The framework, not the call, says when it is over.
        return await asyncio.shield(ended)

    call = asyncio.ensure_future(gated(turn, name, arguments, function, **more))
    await asyncio.wait([has_begun, call], return_when=asyncio.FIRST_COMPLETED)
    return None if has_begun.done() else str(call.result())


async def asked(turn: Any, question: str, options: Sequence[str] = ()) -> str:
    """Ask a person; returns the answer, or why there is none."""
    try:
        return str(await turn.ask(question, options))
    except Refused as refused:
        return str(refused.result.content)


async def hand_off(turn: Any, agent: str) -> None:
    """Hand the session over to the agent of this name, if Countermand has one; else only this turn is handed over."""
    try:
        await turn.hand_off(agent)
    except CountermandError as error:
        if error.code not in ("not_found", "invalid"):
            raise


def altered(one: Any, **attributes: Any) -> Any:
    """Return a copy of an object of a framework with other attributes: those of its user stay as they are."""
    made = copy.copy(one)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made
