"""pydantic-ai: ``await run(turn, agent)`` has an `Agent` answer a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt

from countermand import render_responses

from .gate import gated

NAME = "pydantic-ai"
MESSAGES = ai.ModelMessagesTypeAdapter


async def run(turn: Any, agent: Any, **options: Any) -> Any:
    """Have an agent answer a turn, and return its output; `options` are those of `agent.iter`, such as `deps`."""
    options["capabilities"] = [*options.get("capabilities", ()), Gate(turn), ReinjectSystemPrompt()]
    async with agent.iter(message_history=await history(turn), **options) as running:
        async for node in running:
            if agent.is_model_request_node(node):
                async with turn.answer(provider=NAME) as said, node.stream(running.ctx) as stream:
                    async for event in stream:
                        match event:
                            case (
                                ai.PartStartEvent(part=ai.TextPart(content=text))
                                | ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=text))
                            ):
                                await said.text(text)
                            case _:
                                pass
                    used = stream.response.usage
                    said.usage(input=used.input_tokens, output=used.output_tokens, cached=used.cache_read_tokens)
                    thoughts = [part for part in stream.response.parts if part.part_kind == "thinking"]
                    if thoughts:
                        kept = replace(stream.response, parts=thoughts)
                        await said.block({"type": NAME, "kept": MESSAGES.dump_python([kept], mode="json")})
    if not isinstance(running.result.output, str):
        await turn.emit(_text(running.result.output))
    return running.result.output


@dataclass
class Gate(AbstractCapability[Any]):  # type: ignore[misc]  # its package is not where types are checked
    """Calls the tools of an agent as calls of the run; those that require approval ask for it there."""

    turn: Any

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, args: Any, handler: Any, **_: Any) -> Any:
        """Call a tool."""
        more = {"provider_id": call.tool_call_id, "ask": ctx.tool_call_approved, "show": _text}
        return await gated(self.turn, call.tool_name, call.args_as_dict(), lambda: handler(args), **more)

    async def handle_deferred_tool_calls(self, _: Any, *, requests: Any) -> Any:
        """Let calls that require approval come to `wrap_tool_execute`."""
        return requests.build_results(approve_all=True)


def _text(value: Any) -> str:
    """Return what the model is given of a tool's result."""
    return str(ai.ToolReturnPart("", getattr(value, "return_value", value)).model_response_str())


async def history(turn: Any) -> list[Any]:
    """Return the thread as messages of pydantic-ai."""
    items = render_responses(turn.messages, provider=NAME, files=await turn.files())
    names = {one["call_id"]: one["name"] for one in items if one["type"] == "function_call"}
    parts = [part for item in items for part in _parts(item, names)]
    grouped = groupby(parts, lambda part: isinstance(part, (ai.UserPromptPart, ai.ToolReturnPart)))
    return [ai.ModelRequest([*some]) if is_request else ai.ModelResponse([*some]) for is_request, some in grouped]


def _parts(item: Any, names: dict[str, str]) -> list[Any]:
    match item:
        case {"type": "function_call", "name": name, "arguments": arguments, "call_id": call}:
            return [ai.ToolCallPart(name, arguments, call)]
        case {"type": "function_call_output", "output": output, "call_id": call}:
            return [ai.ToolReturnPart(names[call], _content(output), call)]
        case {"role": "user", "content": content}:
            return [ai.UserPromptPart(_content(content))]
        case {"role": "assistant", "content": [{"text": text}]}:
            return [ai.TextPart(text)]
        case _:
            return list(MESSAGES.validate_python(item["kept"])[0].parts)


def _content(given: Any) -> Any:
    if isinstance(given, str):
        return given
    urls = [one.get("image_url") or one.get("file_data") for one in given]
    shown = [ai.BinaryContent.from_data_uri(url) if url else one["text"] for one, url in zip(given, urls, strict=True)]
    return shown[0] if len(shown) == 1 and not urls[0] else shown
