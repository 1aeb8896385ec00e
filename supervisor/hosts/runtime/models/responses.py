"""The Responses API of OpenAI: the preset `openai-responses`."""

from __future__ import annotations

import functools
from typing import Any

from countermand import offer_responses, render_responses

from .model import BrokenOff, Failed, Model, call
from .offers import Offers
from .patience import converse

THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
TEXTS = ("response.output_text.delta", "response.refusal.delta")
ENDS = ("response.completed", "response.incomplete")


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
        # The thread is ours: the provider need not store it, so it has to send reasoning that can be given back.
        "store": False,
        "include": ["reasoning.encrypted_content"],
        **model().options,
        "model": model().name,
        "input": render_responses(turn.messages, provider=model().provider, files=await turn.files()),
        "tools": offer_responses(await offered.now()),
        "stream": True,
    }
    if model().instructions:
        asked["instructions"] = model().instructions
    calls: list[Any] = []
    create = model().client.responses.create
    async with turn.answer(provider=model().provider, model=model().name) as said, await create(**asked) as stream:
        async for event in stream:
            if event.type in TEXTS:
                await said.text(event.delta)
            elif event.type in THOUGHTS:
                await turn.progress(thought=event.delta)
            elif event.type == "response.output_item.done":
                item = event.item
                if item.type == "function_call":
                    calls.append(call(said, offered.named(item.name), item.arguments, item.call_id))
                elif item.type != "message":
                    await said.block(item.to_dict())
            elif event.type in ENDS:
                response = event.response
                cut = response.incomplete_details
                said.stop_reason, said.provider_id = (cut and cut.reason) or response.status, response.id
                if response.usage is not None:
                    said.usage(**tokens(response.usage))
            elif event.type == "response.failed":
                raise Failed(event.response.error)
            elif event.type == "error":
                raise Failed(event)
        if said.stop_reason is None:
            raise BrokenOff("it has no end")
        return calls


def tokens(usage: Any) -> dict[str, int]:
    """Return what an answer has cost."""
    read, written = usage.input_tokens_details, usage.output_tokens_details
    found = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": read and read.cached_tokens,
        "reasoning": written and written.reasoning_tokens,
    }
    return {kind: count for kind, count in found.items() if count}
