"""Agents that put a model's answer on record as docs/agents.md shows it, with the SDKs of two providers as they are.

They run inside a supervisor's process, and in hosts. The provider is that of `scripted_provider`, at MODEL_URL.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from typing import Any

try:
    import countermand as api
except ImportError:
    import actors as api  # type: ignore[no-redef]  # it has the same names

api_: Any = api


@functools.cache
def anthropic_client() -> Any:
    """Return the client of the process."""
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key="none", base_url=os.environ["MODEL_URL"], max_retries=0)


@functools.cache
def openai_client() -> Any:
    """Return the client of the process."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="none", base_url=os.environ["MODEL_URL"] + "/v1", max_retries=0)


async def anthropic(turn: Any) -> None:
    """With the anthropic SDK, thinking on."""
    calls: list[Any] = [None]
    while calls:
        thread = api_.render_anthropic(turn.messages, provider="anthropic", thinking=True, files=await turn.files())
        asked = {
            "model": "m",
            "max_tokens": 8192,
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "tools": api_.offer_anthropic(turn.tools),
            "messages": thread,
        }
        calls = []
        async with (
            turn.answer(provider="anthropic", model="m") as said,
            anthropic_client().messages.stream(**asked) as stream,
        ):
            async for event in stream:
                block = event.content_block if event.type == "content_block_stop" else None
                if event.type == "text":
                    await said.text(event.text)
                elif block is not None and block.type == "tool_use":
                    calls.append(said.call(block.name, block.input, provider_id=block.id))
                elif block is not None and block.type != "text":
                    await said.block(block.to_dict())
            final = await stream.get_final_message()
            said.stop_reason, said.provider_id = final.stop_reason, final.id
            said.usage(input=final.usage.input_tokens, output=final.usage.output_tokens)
        await asyncio.gather(*calls)


async def openai(turn: Any) -> None:
    """With the openai SDK, chat completions of a provider that has reasoning in a key of its own."""
    calls: list[Any] = [None]
    while calls:
        thread = api_.render_openai(turn.messages, provider="openai", files=await turn.files())
        tools = api_.offer_openai(turn.tools)
        create = openai_client().chat.completions.create
        asked: dict[int, dict[str, str]] = {}
        reasoning, calls = "", []
        async with turn.answer(provider="openai", model="m") as said:
            async for chunk in await create(model="m", messages=thread, tools=tools, stream=True):
                delta = chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                if delta.content:
                    if reasoning:
                        await said.block({"reasoning_content": reasoning})
                        reasoning = ""
                    await said.text(delta.content)
                for part in delta.tool_calls or ():
                    call = asked.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                    call["arguments"] += part.function.arguments or ""
            for call in asked.values():
                calls.append(said.call(call["name"], json.loads(call["arguments"]), provider_id=call["id"]))
        await asyncio.gather(*calls)


async def responses(turn: Any) -> None:
    """With the openai SDK, Responses."""
    calls: list[Any] = [None]
    while calls:
        thread = api_.render_responses(turn.messages, provider="responses", files=await turn.files())
        asked = {
            "model": "m",
            "input": thread,
            "tools": api_.offer_responses(turn.tools),
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "stream": True,
        }
        calls = []
        async with turn.answer(provider="responses", model="m") as said:
            async for event in await openai_client().responses.create(**asked):
                if event.type == "response.output_text.delta":
                    await said.text(event.delta)
                elif event.type == "response.output_item.done" and event.item.type == "reasoning":
                    await said.block(event.item.to_dict())
                elif event.type == "response.output_item.done" and event.item.type == "function_call":
                    given = json.loads(event.item.arguments)
                    calls.append(said.call(event.item.name, given, provider_id=event.item.call_id))
        await asyncio.gather(*calls)


async def anthropic_by_hand(turn: Any) -> None:
    """With the anthropic SDK, thinking on; its answers are not on record, only their texts and calls."""
    messages = api_.render_anthropic(turn.messages)
    while True:
        asked = {
            "model": "m",
            "max_tokens": 8192,
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "tools": api_.offer_anthropic(turn.tools),
            "messages": messages,
        }
        async with anthropic_client().messages.stream(**asked) as stream:
            async for text in stream.text_stream:
                await turn.emit(text)
            final = await stream.get_final_message()
        calls = [block for block in final.content if block.type == "tool_use"]
        if not calls:
            return
        results = await asyncio.gather(*(turn.call(call.name, **call.input) for call in calls))
        shown = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result.content, "is_error": result.is_error}
            for call, result in zip(calls, results, strict=True)
        ]
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in final.content]},
            {"role": "user", "content": shown},
        ]
