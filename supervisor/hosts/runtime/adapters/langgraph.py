"""LangGraph: ``await run(turn, graph)`` has a compiled graph answer a turn."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import RemoveMessage, ToolMessage, convert_to_messages
from langgraph.errors import GraphBubbleUp
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from countermand import render_openai

from .gate import asked, gated

TURN: ContextVar[Any] = ContextVar("turn")


async def run(turn: Any, graph: Any, config: Any = None, **values: Any) -> Any:
    """Have a graph answer a turn, and return its last state; `values` are further ones of its input."""
    TURN.set(turn)
    for one in (graph, *(found for _, found in graph.get_subgraphs(recurse=True))):
        for node in one.nodes.values():
            if isinstance(node.bound, ToolNode) and not getattr(node.bound._awrap_tool_call, "gates", False):
                node.bound._awrap_tool_call = _gate(node.bound._awrap_tool_call)
    thread = convert_to_messages(render_openai(turn.messages, files=await turn.files()))
    config = {**(config or {})}
    config["configurable"] = {"thread_id": turn.address.session, **config.get("configurable", {})}
    config["callbacks"] = [*(config.get("callbacks") or ()), Record(turn)]
    # What a Stop has left in a checkpoint is no history.
    before = [RemoveMessage(id=REMOVE_ALL_MESSAGES)] if graph.checkpointer else []
    given: Any = {**values, "messages": [*before, *thread]}
    state: Any = {}
    while given is not None:
        async for mode, value in graph.astream(given, config, stream_mode=["messages", "values"]):
            state = value if mode == "values" else state
        waiting = state.get("__interrupt__") or ()
        answers = {one.id: await asked(turn, str(one.value)) for one in waiting}
        given = Command(resume=answers) if waiting else None
    return state


def _gate(inner: Any) -> Any:
    async def gate(request: Any, execute: Any) -> Any:
        async def call() -> Any:
            try:
                return await (inner(request, execute) if inner else execute(request))
            except GraphBubbleUp as interrupt:
                return interrupt

        turn, asked_for = TURN.get(None), request.tool_call
        if turn is None:
            return await (inner(request, execute) if inner else execute(request))
        more = {"provider_id": asked_for["id"], "show": lambda value: str(getattr(value, "text", value))}
        value = await gated(turn, asked_for["name"], asked_for["args"], call, **more)
        if isinstance(value, GraphBubbleUp):
            raise value
        refused = isinstance(value, str)
        return ToolMessage(value, tool_call_id=asked_for["id"], status="error") if refused else value

    gate.gates = True  # type: ignore[attr-defined]
    return gate


class Record(AsyncCallbackHandler):  # type: ignore[misc]  # its package is not where types are checked
    """Records what models say, as they say it."""

    raise_error = run_inline = True

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self._answers: dict[Any, Any] = {}
        self._spoken: set[Any] = set()

    async def on_chat_model_start(self, *_: Any, run_id: Any, **__: Any) -> None:
        """Begin an answer."""
        self._answers[run_id] = await self._turn.answer(provider="langgraph").__aenter__()

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **_: Any) -> None:
        """Say a piece of text."""
        self._spoken.add(run_id)
        await self._answers[run_id].text(token if isinstance(token, str) else chunk.text)

    async def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        """End an answer, with its usage."""
        said, message = self._answers.pop(run_id), response.generations[0][0].message
        if run_id not in self._spoken:
            await said.text(message.text)
        used = message.usage_metadata or {}
        said.usage(input=used.get("input_tokens", 0), output=used.get("output_tokens", 0))
        await said.__aexit__(None, None, None)

    async def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """Leave an answer."""
        await self._answers.pop(run_id).__aexit__(type(error), error, None)
