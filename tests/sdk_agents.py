"""Agents as people have them: each is written with a package from the registry, as its documentation says.

They run in hosts, with the packages of the extra `sdks`, and inside a supervisor's process. The model is that of
`model_server.py`, at MODEL_URL. A message `work` goes on for good, through the model, a tool, and the model again; its
steps are told as those of `ending_agents.py`. A message `say WORD` says that word in capitals, as the model does.
`plain WORD` says it as it is, without any package.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.ending_agents import Steps, start_children

SERVER = Path(__file__).parent / "mcp_server.py"
"""An MCP server that starts a daemon."""

Body = Callable[[Any, Steps, str], Awaitable[None]]


def url() -> str:
    """Where the model is."""
    return os.environ["MODEL_URL"]


def sdk(body: Body) -> Callable[[Any], Awaitable[None]]:
    """Make an agent of what is done with a package: `body` gets the turn, its steps, and the prompt."""

    async def agent(turn: Any) -> None:
        word, _, rest = turn.inputs[-1].content.partition(" ")
        if word == "plain":
            await turn.emit(f"said: {rest}")
            return
        steps = Steps(turn)
        if word == "work":
            await steps.next()
            await body(turn, steps, "[work]")
            raise AssertionError("it has no end")
        await turn.emit("said: ")
        await body(turn, steps, f"[say {rest}]")

    return agent


async def work(turn: Any, steps: Steps) -> str:
    """Do what the tool of an agent does: it is gated, starts children, and ends when they run."""

    async def own() -> str:
        await steps.next()
        start_children()
        await asyncio.sleep(0.05)
        return "done"

    return str(await turn.gate("work", {}, own))


async def emit(turn: Any, steps: Steps, text: str) -> None:
    """Say a piece of the model's answer; the first one of a text without an end is a step."""
    if text == "0 ":
        await steps.next()
    await turn.emit(text)


@sdk
async def pydantic_ai(turn: Any, steps: Steps, prompt: str) -> None:
    """With pydantic-ai: a tool, and an answer that is streamed."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url() + "/v1", api_key="none")))

    @agent.tool_plain  # type: ignore[untyped-decorator]
    async def tool() -> str:
        """Work."""
        return await work(turn, steps)

    async with agent.run_stream(prompt) as answer:
        async for text in answer.stream_text(delta=True, debounce_by=None):
            await emit(turn, steps, text)


@sdk
async def openai_agents(turn: Any, steps: Steps, prompt: str) -> None:
    """With openai-agents: a tool, and an answer that is streamed."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)

    @function_tool  # type: ignore[untyped-decorator]
    async def tool() -> str:
        """Work."""
        return await work(turn, steps)

    client = AsyncOpenAI(base_url=url() + "/v1", api_key="none")
    agent = Agent(name="mine", model=OpenAIChatCompletionsModel("m", client), tools=[tool])
    async for event in Runner.run_streamed(agent, prompt).stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            await emit(turn, steps, event.data.delta)


@sdk
async def langgraph(turn: Any, steps: Steps, prompt: str) -> None:
    """With LangGraph: a node that asks the model, one that works, and one beside them on a thread that never looks."""
    import operator
    from typing import Annotated, TypedDict

    from langgraph.config import get_stream_writer
    from langgraph.graph import END, START, StateGraph
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url() + "/v1", api_key="none")
    tool = {"type": "function", "function": {"name": "tool", "parameters": {"type": "object", "properties": {}}}}

    State = TypedDict("State", {"messages": Annotated[list[Any], operator.add]})  # noqa: UP013  # local names

    async def model(state: Any) -> dict[str, Any]:
        write, asked = get_stream_writer(), ""
        stream = await client.chat.completions.create(
            model="m",
            messages=state["messages"],
            tools=[tool],
            stream=True,
        )
        async for chunk in stream:
            delta = chunk.choices[0].delta
            if delta.content:
                write(delta.content)
            for call in delta.tool_calls or ():
                asked = call.id or asked
        calls = [{"id": asked, "type": "function", "function": {"name": "tool", "arguments": "{}"}}] if asked else None
        return {"messages": [{"role": "assistant", "content": "", **({"tool_calls": calls} if calls else {})}]}

    async def tools(state: Any) -> dict[str, Any]:
        content = await work(turn, steps)
        call = state["messages"][-1]["tool_calls"][0]["id"]
        return {"messages": [{"role": "tool", "tool_call_id": call, "content": content}]}

    def beside(state: Any) -> dict[str, Any]:
        if prompt == "[work]":
            time.sleep(1000)
        return {"messages": []}

    graph: Any = StateGraph(State)
    for node in (model, tools, beside):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: ["tools"] if "tool_calls" in state["messages"][-1] else [END], ["tools", END]
    )
    graph.add_edge("tools", "model")
    if prompt == "[work]":
        graph.add_edge("tools", "beside")
    compiled = graph.compile()
    asked = {"messages": [{"role": "user", "content": prompt}]}
    async for text in compiled.astream(asked, stream_mode="custom"):
        await emit(turn, steps, text)


@sdk
async def mcp(turn: Any, steps: Steps, prompt: str) -> None:
    """With the client of the mcp SDK: a server as a child, which starts a daemon of its own."""
    await with_mcp(turn, steps, prompt, sys.executable)


@sdk
async def mcp_launched(turn: Any, steps: Steps, prompt: str) -> None:
    """The same, with the server in a tree of the run."""
    await with_mcp(turn, steps, prompt, turn.spawn.launcher(sys.executable))


async def with_mcp(turn: Any, steps: Steps, prompt: str, command: str) -> None:
    """See `mcp`; `command` is what the SDK starts."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=command, args=[str(SERVER)], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        if prompt == "[work]":
            await steps.next()
        word = prompt.strip("[]").removeprefix("say ")
        called = asyncio.ensure_future(session.call_tool("say", {"word": word}))
        if prompt == "[work]":
            await steps.next()
        result: Any = await called
        await turn.emit(result.content[0].text)


@sdk
async def claude(turn: Any, steps: Steps, prompt: str) -> None:
    """With the Claude Agent SDK, and the CLI that comes with it, which starts a shell."""
    await with_claude(turn, steps, prompt, None)


@sdk
async def claude_launched(turn: Any, steps: Steps, prompt: str) -> None:
    """The same, with the CLI in a tree of the run."""
    import claude_agent_sdk

    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    await with_claude(turn, steps, prompt, turn.spawn.launcher(str(bundled)))


async def with_claude(turn: Any, steps: Steps, prompt: str, cli: str | None) -> None:
    """See `claude`; `cli` is what the SDK starts."""
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ClaudeSDKClient, StreamEvent, TextBlock

    env = {"ANTHROPIC_BASE_URL": url(), "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    options = ClaudeAgentOptions(allowed_tools=["Bash"], env=env, include_partial_messages=True, setting_sources=[])
    options.cli_path = cli
    async with ClaudeSDKClient(options=options) as client:
        await client.query(prompt)
        if prompt == "[work]":
            await steps.next()
        async for message in client.receive_response():
            if isinstance(message, AssistantMessage) and prompt == "[work]":
                await steps.next()
            if isinstance(message, StreamEvent) and prompt == "[work]":
                delta = message.event.get("delta", {})
                if delta.get("text"):
                    await emit(turn, steps, delta["text"])
            if isinstance(message, AssistantMessage) and prompt != "[work]":
                await turn.emit("".join(block.text for block in message.content if isinstance(block, TextBlock)))
