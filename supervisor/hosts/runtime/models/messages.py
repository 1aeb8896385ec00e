"""The Messages API of Anthropic: the preset `anthropic`."""

from __future__ import annotations

import functools
from typing import Any

from countermand import offer_anthropic, render_anthropic

from .model import BrokenOff, Model, call
from .offers import Offers
from .patience import converse

MAX_TOKENS = 8_192
"""How long an answer may be, unless `options` says it. The API wants to be told."""


@functools.cache
def model() -> Model:
    """Return the model of this process."""
    return Model("anthropic", "AsyncAnthropic", key="ANTHROPIC_API_KEY", url="ANTHROPIC_BASE_URL")


def prepare() -> None:
    """Make the client before the host is ready. What is missing is an error of the agent, which says what to do."""
    model()


async def answer(turn: Any) -> None:
    """Answer a turn."""
    await converse(turn, model(), ask)


async def ask(turn: Any, offered: Offers) -> list[Any]:
    """Ask once, and put the answer on record as it comes. Returns its calls, which have begun."""
    thinks = model().options.get("thinking", {}).get("type", "disabled") != "disabled"
    files = await turn.files()
    asked = {
        "max_tokens": MAX_TOKENS,
        **model().options,
        "model": model().name,
        "messages": render_anthropic(turn.messages, provider=model().provider, thinking=thinks, files=files),
        "tools": offer_anthropic(await offered.now()),
    }
    if model().instructions:
        asked["system"] = model().instructions
    calls: list[Any] = []
    spelled: dict[int, str] = {}
    stream = model().client.messages.stream(**asked)
    async with turn.answer(provider=model().provider, model=model().name) as said, stream as events:
        async for event in events:
            if event.type == "text":
                await said.text(event.text)
            elif event.type == "thinking":
                await turn.progress(thought=event.thinking)
            elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                # The SDK completes arguments that were cut off, which nobody has asked for.
                spelled[event.index] = spelled.get(event.index, "") + event.delta.partial_json
            elif event.type == "content_block_stop" and event.content_block.type == "tool_use":
                block = event.content_block
                calls.append(call(said, offered.named(block.name), spelled.get(event.index, ""), block.id))
            elif event.type == "content_block_stop" and event.content_block.type != "text":
                await said.block(event.content_block.to_dict())
        final = await events.get_final_message()
        said.usage(**tokens(final.usage))
        if final.stop_reason is None:
            raise BrokenOff("it has no end")
        said.stop_reason, said.provider_id = final.stop_reason, final.id
        return calls


def tokens(usage: Any) -> dict[str, int]:
    """Return what an answer has cost. Here what is cached is not among the input."""
    cached = usage.cache_read_input_tokens or 0
    read = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    return {"input": read, "output": usage.output_tokens, "cached": cached}
