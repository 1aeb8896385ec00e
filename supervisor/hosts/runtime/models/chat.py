"""Chat completions, which most servers of models speak: the preset `openai`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from countermand import offer_openai, render_openai

from .model import BrokenOff, Model, call
from .offers import Offers
from .patience import converse

THOUGHTS = ("reasoning_content", "reasoning")
"""The keys in which servers have what a model thinks."""


@functools.cache
def model() -> Model:
    """Return the model of this process."""
    return Model("openai", "AsyncOpenAI", key="OPENAI_API_KEY", url="OPENAI_BASE_URL")


def prepare() -> None:
    """Make the client before the host is ready. What is missing is an error of the agent, which says what to do."""
    model()


async def answer(turn: Any) -> None:
    """Answer a turn."""
    await converse(turn, model(), ask)


async def ask(turn: Any, offered: Offers) -> list[Any]:
    """Ask once, and put the answer on record as it comes. Returns its calls, which have begun."""
    asked = {
        "stream_options": {"include_usage": True},
        **model().options,
        "model": model().name,
        "messages": render_openai(turn.messages, provider=model().provider, files=await turn.files()),
        "tools": offer_openai(await offered.now()),
        "stream": True,
    }
    if model().instructions:
        asked["messages"].insert(0, {"role": "system", "content": model().instructions})
    if not asked["tools"]:
        del asked["tools"]
    thought: dict[str, str] = {}
    spelled: dict[Any, dict[str, str]] = {}
    create = model().client.chat.completions.create
    async with turn.answer(provider=model().provider, model=model().name) as said, await create(**asked) as stream:
        async for chunk in stream:
            said.provider_id = chunk.id or said.provider_id
            if chunk.usage:
                said.usage(**tokens(chunk.usage))
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            said.stop_reason = chunk.choices[0].finish_reason or said.stop_reason
            pieces = {key: piece for key in THOUGHTS if (piece := getattr(delta, key, None))}
            if pieces:
                thought.update({key: thought.get(key, "") + piece for key, piece in pieces.items()})
                await turn.progress(thought=next(iter(pieces.values())))
            if delta.content or delta.refusal:
                await keep(said, thought)
                await said.text(delta.content or delta.refusal)
            spell(spelled, delta.tool_calls or ())
        if said.stop_reason is None:
            raise BrokenOff("it has no end")
        await keep(said, thought)
        return [call(said, offered.named(one["name"]), one["arguments"], one["id"] or None) for one in spelled.values()]


async def keep(said: Any, thought: dict[str, str]) -> None:
    """Keep what the model has thought, which is whole when something else comes."""
    if thought:
        await said.block(dict(thought))
        thought.clear()


def spell(spelled: dict[Any, dict[str, str]], parts: Iterable[Any]) -> None:
    """Add pieces of calls. Some servers give each of an answer's calls the index 0, and some repeat its id."""
    for part in parts:
        last = next((key for key in reversed(list(spelled)) if key[0] == part.index), (part.index, None))
        key = (part.index, part.id) if part.id else last
        one = spelled.setdefault(key, {"id": part.id or "", "name": "", "arguments": ""})
        if part.function is not None:
            one["name"] = one["name"] or part.function.name or ""
            one["arguments"] += part.function.arguments or ""


def tokens(usage: Any) -> dict[str, int]:
    """Return what an answer has cost."""
    read, written = usage.prompt_tokens_details, usage.completion_tokens_details
    found = {
        "input": usage.prompt_tokens,
        "output": usage.completion_tokens,
        "cached": read and read.cached_tokens,
        "reasoning": written and written.reasoning_tokens,
    }
    return {kind: count for kind, count in found.items() if count}
