"""The gate: a tool of a framework, called as a call of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from countermand import Refused


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
