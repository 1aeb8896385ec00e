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
    """Do what a tool does: note it, unless its text says ``hold``, for which it never comes to an end."""
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
