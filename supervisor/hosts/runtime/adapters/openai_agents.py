"""openai-agents: ``await run(turn, agent)`` has an `Agent` answer a turn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agents import Agent, FunctionTool, Handoff, RunConfig, Runner, handoff

from countermand import render_responses

from .gate import altered, gated, hand_off

NAME = "openai-agents"


async def run(turn: Any, agent: Any, **options: Any) -> Any:
    """Have an agent answer a turn, and return its output; `options` are those of `Runner.run_streamed`."""
    config = options.get("run_config") or RunConfig()
    provider, session = config.model_provider, options.get("session")
    models = altered(provider, get_model=lambda name: _model(turn, provider.get_model(name)))
    options["run_config"] = replace(config, model=_model(turn, config.model), model_provider=models)
    if session is not None:
        # It gets the thread again: what a Stop has left in it is no history.
        await session.clear_session()
    thread = render_responses(turn.messages, provider=NAME, files=await turn.files())
    running = Runner.run_streamed(_agent(turn, agent), thread, **options)
    try:
        async for _ in running.stream_events():
            pass
    except BaseException:
        running.cancel()
        raise
    if not isinstance(running.final_output, str):
        await turn.emit(json.dumps(running.final_output, default=lambda value: getattr(value, "__dict__", str(value))))
    return running.final_output


def _agent(turn: Any, agent: Any) -> Any:
    """Return an agent whose model is recorded, and whose tools are gated; so are those to whom it hands over."""

    async def mcp_tools(context: Any) -> list[Any]:
        return [_tool(turn, tool) for tool in await agent.get_mcp_tools(context)]

    return altered(
        agent,
        model=_model(turn, agent.model),
        tools=[_tool(turn, tool) for tool in agent.tools],
        get_mcp_tools=mcp_tools,
        handoffs=[_handoff(turn, handoff(one) if isinstance(one, Agent) else one) for one in agent.handoffs],
    )


def _model(turn: Any, model: Any) -> Any:
    if model is None or isinstance(model, str):
        return model

    async def stream(*given: Any, **more: Any) -> Any:
        async with turn.answer(provider=NAME) as said:
            async for event in model.stream_response(*given, **more):
                if event.type == "response.output_text.delta":
                    await said.text(event.delta)
                elif event.type == "response.output_item.done" and event.item.type == "reasoning":
                    await said.block(event.item.to_dict())
                elif event.type == "response.completed" and event.response.usage:
                    used = event.response.usage
                    cached = used.input_tokens_details.cached_tokens
                    said.usage(input=used.input_tokens, output=used.output_tokens, cached=cached)
                yield event

    return altered(model, stream_response=stream)


def _tool(turn: Any, tool: Any) -> Any:
    if not isinstance(tool, FunctionTool):
        return tool

    async def call(context: Any, given: str) -> Any:
        ask = tool.needs_approval
        try:
            arguments = dict(json.loads(given or "{}"))
        except (TypeError, ValueError):
            # The schema refuses them, and the model reads why.
            arguments = {"input": given}
        if callable(ask):
            ask = await ask(context, arguments, context.tool_call_id)
        more = {"schema": tool.params_json_schema, "provider_id": context.tool_call_id, "ask": ask}
        return await gated(turn, tool.name, arguments, lambda: tool.on_invoke_tool(context, given), **more)

    return altered(tool, on_invoke_tool=call, needs_approval=False)


def _handoff(turn: Any, given: Handoff) -> Any:
    async def call(context: Any, arguments: str) -> Any:
        agent = await given.on_invoke_handoff(context, arguments)
        await hand_off(turn, agent.name)
        return _agent(turn, agent)

    return altered(given, on_invoke_handoff=call)
