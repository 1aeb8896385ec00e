"""Agents that are written with a framework as its documentation says, and run by the adapter for it.

They run in hosts and inside a supervisor's process. The model is that of `adapter_provider`, at MODEL_URL. Their tools
are functions of their own: each makes a file in the folder NOTES when it begins, and when it is done.
"""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from typing import Any


def url() -> str:
    """Where the model is."""
    return os.environ["MODEL_URL"]


async def work(text: str) -> str:
    """Do what a tool does: note it, unless its text says ``hold``, for which it never comes to an end.

    With ``run COMMAND`` it runs that by the shell, to the end of its output.
    """
    if text.startswith("run "):
        process = await asyncio.create_subprocess_shell(text[4:], stdout=asyncio.subprocess.PIPE)
        await process.communicate()
        return "it has run"
    notes = Path(os.environ["NOTES"])
    (notes / f"{text} begun").touch()
    if text.endswith(":hold"):
        if "CHILDREN" in os.environ:
            await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
        await asyncio.Event().wait()
    (notes / f"{text} done").touch()
    return f"noted {text}"


@functools.cache
def with_pydantic_ai() -> Any:
    """Make the agent, once in a process."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url() + "/v1", api_key="none")))

    @agent.tool_plain  # type: ignore[untyped-decorator]
    async def note(text: str) -> str:
        """Note a text."""
        return await work(text)

    @agent.tool_plain(requires_approval=True)  # type: ignore[untyped-decorator]
    async def wipe(text: str) -> str:
        """Wipe a text."""
        return await work(text)

    return agent


async def pydantic_ai(turn: Any) -> Any:
    """With pydantic-ai."""
    from countermand.adapters.pydantic_ai import run

    return await run(turn, with_pydantic_ai())


@functools.cache
def with_openai_agents() -> Any:
    """Make the agent, once in a process."""
    from agents import Agent, OpenAIResponsesModel, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)

    @function_tool  # type: ignore[untyped-decorator]
    async def note(text: str) -> str:
        """Note a text."""
        return await work(text)

    @function_tool(needs_approval=True)  # type: ignore[untyped-decorator]
    async def wipe(text: str) -> str:
        """Wipe a text."""
        return await work(text)

    model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=url() + "/v1", api_key="none"))
    return Agent(name="openai_agents", model=model, tools=[note, wipe])


async def openai_agents(turn: Any) -> Any:
    """With openai-agents, and a session of its own on disk."""
    from agents import SQLiteSession
    from countermand.adapters.openai_agents import run

    session = SQLiteSession(turn.address.session, Path(os.environ["NOTES"], "sessions.db"))
    try:
        return await run(turn, with_openai_agents(), session=session)
    finally:
        session.close()


async def triage(turn: Any) -> Any:
    """With openai-agents: an agent that hands over."""
    from agents import Agent
    from countermand.adapters.openai_agents import run

    other = with_openai_agents()
    return await run(turn, Agent(name="triage", model=other.model, handoffs=[other]))


def chat_model() -> Any:
    """Return a chat model of LangChain, made as the packages of providers make theirs."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk, convert_to_openai_messages
    from langchain_core.outputs import ChatGenerationChunk
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url() + "/v1", api_key="none")

    class Model(BaseChatModel):  # type: ignore[misc]
        @property
        def _llm_type(self) -> str:
            return "m"

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self.bind(tools=[convert_to_openai_tool(one) for one in tools])

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def _astream(self, messages: Any, *_: Any, tools: Any, **__: Any) -> Any:
            # No text is none.
            given = [{**one, "content": one["content"] or None} for one in convert_to_openai_messages(messages)]
            asked = {"model": "m", "messages": given, "tools": tools}
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                message = AIMessageChunk(content="")
                for choice in chunk.choices:
                    message.content = choice.delta.content or ""
                    for call in choice.delta.tool_calls or ():
                        part = {"name": call.function.name, "args": call.function.arguments}
                        message.tool_call_chunks.append({**part, "id": call.id, "index": call.index})
                if chunk.usage:
                    read, said = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                    used = {"input_tokens": read, "output_tokens": said, "total_tokens": read + said}
                    message.usage_metadata = used
                yield ChatGenerationChunk(message=message)

    return Model()


@functools.cache
def with_langgraph() -> Any:
    """Make the graph, once in a process: with a checkpointer, and a tool that asks."""
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from langgraph.types import interrupt

    @tool  # type: ignore[untyped-decorator]
    async def note(text: str) -> str:
        """Note a text."""
        return await work(text)

    @tool  # type: ignore[untyped-decorator]
    async def wipe(text: str) -> str:
        """Wipe a text."""
        return await work(text) if interrupt("May it be wiped?") == "allow" else "no"

    chat = chat_model().bind_tools([note, wipe])

    async def model(state: Any) -> Any:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node(model)
    graph.add_node("tools", ToolNode([note, wipe]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(InMemorySaver())


async def langgraph(turn: Any) -> Any:
    """With LangGraph."""
    from countermand.adapters.langgraph import run

    state = await run(turn, with_langgraph())
    return state["messages"][-1].text


async def claude_agent_sdk(turn: Any) -> Any:
    """With the Claude Agent SDK, and the CLI that comes with it; its tools are functions of the agent's."""
    from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool
    from countermand.adapters.claude_agent_sdk import run

    async def noted(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": await work(given["text"])}]}

    tools = [tool(name, "Work.", {"text": str})(noted) for name in ("note", "wipe")]
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    options = ClaudeAgentOptions(
        tools=[],
        allowed_tools=["mcp__own__note"],
        mcp_servers={"own": create_sdk_mcp_server("own", tools=tools)},
        env={"ANTHROPIC_BASE_URL": url(), "ANTHROPIC_API_KEY": "none", **quiet},
        setting_sources=[],
    )
    return (await run(turn, options)).result


def smolagents(turn: Any) -> Any:
    """With smolagents: a plain agent."""
    from countermand.adapters.smolagents import run
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    @tool  # type: ignore[untyped-decorator]
    def note(text: str) -> str:
        """Note a text.

        Args:
            text: the text.
        """
        return asyncio.run(work(text))

    @tool  # type: ignore[untyped-decorator]
    def wipe(text: str) -> str:
        """Wipe a text.

        Args:
            text: the text.
        """
        return asyncio.run(work(text))

    model = OpenAIModel("m", url() + "/v1", api_key="none", flatten_messages_as_text=True)
    return run(turn, ToolCallingAgent([note, wipe], model), approve=["wipe"])
