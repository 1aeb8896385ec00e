"""Patience: a request that failed by what passes is made again, after a wait that a Stop ends at once.

The SDKs retry by themselves too. Here it is ours, so that people see it, and that it is one wait on the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .model import Model
from .offers import Offers, offers

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The waits before each further request, unless the provider names another one."""
WAIT_MAX_S = 60.0
"""A provider that wants a longer wait is not waited for."""

T = TypeVar("T")


async def converse(turn: Any, model: Model, ask: Callable[[Any, Offers], Awaitable[list[Any]]]) -> None:
    """Ask the model, wait for the calls of its answer, and ask again until it calls nothing. See `patiently`."""
    more = True
    async with offers(turn) as offered:
        while more:
            calls = await patiently(turn, model, lambda turn: ask(turn, offered))
            await asyncio.gather(*calls)
            more = bool(await turn.steering() or calls)


async def patiently(turn: Any, model: Model, ask: Callable[[Any], Awaitable[T]]) -> T:
    """Ask, and ask again while it fails by what passes and nothing of the answer is on record.

    Args:
        turn: the turn.
        model: what is asked.
        ask: asks once: begins an answer, and ends it. Returns what is returned here.

    Raises:
        ContextLimit: the thread is too long for the model.
        ModelFailed: it gave no answer, or no whole one. What of it had come is in the thread.
    """
    for wait_s in (*WAITS_S, None):
        known = len(turn.messages)
        try:
            return await ask(turn)
        except Exception as error:
            problem = model.problem(error)
            if problem is None:
                raise
            wanted = wait_s if problem.wait_s is None else problem.wait_s
            said = len(turn.messages) > known
            if wait_s is None or wanted is None or wanted > WAIT_MAX_S or said or not problem.passes:
                # The SDK's own error has the request, and so the key.
                raise problem.error from None
        await turn.progress(model=model.name, asks_again_in_s=wanted, why=str(problem.error))
        await turn.cancel_token.wait(wanted)
    raise AssertionError("the last request is returned, or raises")
