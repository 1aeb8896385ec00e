"""Agents that put the answers of models on record. They run in the supervisor's process, and are imported in hosts.

What a message says is what is done: a word, and what it takes. So nothing but the standard library is used here.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig=="}


async def agent(turn: Any) -> Any:
    """Do what the last message says."""
    word, _, rest = turn.inputs[-1].content.partition(" ")
    return await globals()[f"do_{word}"](turn, rest)


async def do_nothing(turn: Any, rest: str) -> None:
    """Return."""


async def do_batch(turn: Any, rest: str) -> list[str]:
    """Ask for three calls, of which one is refused."""
    async with turn.answer(provider="anthropic") as answer:
        await answer.block(THINKING)
        calls = [answer.call("none", {}), answer.call("note", {"text": "a"}), answer.call("note", {"text": "b"})]
        await answer.text("so")
    return [str(result.outcome) for result in await asyncio.gather(*calls)]


async def do_half(turn: Any, rest: str) -> None:
    """Say half of an answer, and wait."""
    async with turn.answer(provider="anthropic") as answer:
        await answer.block(THINKING)
        answer.call("note", {"text": "a"}, provider_id="toolu_1")
        await answer.text("half a sen")
        await asyncio.Event().wait()


async def do_left(turn: Any, rest: str) -> list[str]:
    """Lose the connection once, and answer again."""
    for attempt in range(2):
        try:
            async with turn.answer(provider="p") as answer:
                call = answer.call("note", {"text": "a"})
                await answer.text(f"attempt {attempt}")
                if attempt == 0:
                    raise ConnectionError
        except ConnectionError:
            first = await call
    second = await call
    return [first.outcome, first.content, second.outcome, [message.status for message in turn.messages]]


async def do_steer(turn: Any, rest: str) -> list[list[str]]:
    """Ask for what steers inside of an answer and behind it; the file that is named says when."""
    steered = []
    async with turn.answer(provider="p") as answer:
        await answer.text("one ")
        await asyncio.to_thread(_wait_for, rest)
        steered.append(await turn.steering())
        await answer.text("two")
    steered.append(await turn.steering())
    return [[message.content for message in messages] for messages in steered]


def _wait_for(path: str) -> None:
    for _ in range(10_000):
        if os.path.exists(path):
            return
        time.sleep(0.01)


async def do_given_up(turn: Any, rest: str) -> list[Any]:
    """Give up the wait for a call of an answer: its result is in the thread before anything else is said."""
    async with turn.answer(provider="p") as answer:
        held, other = answer.call("note", {"text": "hold"}), answer.call("note", {"text": "b"})
    content = (await other).content
    try:
        await asyncio.wait_for(held, 0.01)
    except asyncio.TimeoutError:  # noqa: UP041  # another class before Python 3.11
        await turn.emit("gave up")
    return [content, [(one.role, one.content) for one in turn.messages if one.role != "user"]]


async def do_many(turn: Any, rest: str) -> list[int]:
    """Say more than there is credit for at once, block by block."""
    async with turn.answer(provider="p") as answer:
        for number in range(600):
            await answer.block({"n": number})
            await answer.text(f"{number} ")
        await answer.text("x" * 100_000)
    message = turn.messages[-1]
    return [len(message.parts), len(message.content)]


async def do_large(turn: Any, rest: str) -> list[int]:
    """Keep blocks that are as large as they may be: as JSON they have `rest` bytes."""
    block = {"x": "y" * (int(rest) - len('{"x":""}'))}
    async with turn.answer(provider="p") as answer:
        for _ in range(3):
            await answer.block(block)
            await answer.text("z")
    return [len(part.data["x"]) for part in turn.messages[-1].parts if hasattr(part, "data")]


def plain(turn: Any) -> list[str]:
    """Ask for two calls, as a plain agent."""
    with turn.answer(provider="p", model="m") as answer:
        answer.text("two")
        calls = [answer.call("note", {"text": text}) for text in "ab"]
        answer.usage(input=1, output=2)
    return [call.result().content for call in calls]
