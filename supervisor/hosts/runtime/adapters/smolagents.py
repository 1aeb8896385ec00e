"""smolagents: ``run(turn, agent)`` has an agent answer a turn, of a plain agent of Countermand."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from smolagents import AgentMemory, ChatMessage, MemoryStep, MessageRole

from countermand import Refused, render_openai

from .gate import altered

NAME = "smolagents"
END = "final_answer"


def run(turn: Any, agent: Any, approve: Collection[str] = (), **options: Any) -> Any:
    """Have an agent answer a turn, and return its answer.

    `approve` names tools that wait for a person; `options` are those of the agent's own `run`.
    """
    *before, last = render_openai(turn.messages)
    task = _text(last["content"]) if last["role"] == "user" else "Go on."
    own = altered(
        agent,
        memory=AgentMemory(agent.system_prompt),
        model=altered(agent.model, generate_stream=lambda *given, **more: _streamed(turn, agent.model, *given, **more)),
        stream_outputs=True,
        tools={name: _tool(turn, tool, name in approve) for name, tool in agent.tools.items()},
    )
    own.memory.steps.append(Said(before if last["role"] == "user" else [*before, last]))
    answer = own.run(task, **{**options, "reset": False, "stream": False, "return_full_result": False})
    turn.emit(str(answer))
    return answer


def _streamed(turn: Any, model: Any, *given: Any, **more: Any) -> Iterator[Any]:
    used = {"input": 0, "output": 0}
    with turn.answer(provider=NAME) as said:
        for delta in model.generate_stream(*given, **more):
            said.text(delta.content or "")
            if delta.token_usage:
                # Some models count what is new in each delta; smolagents adds them up too.
                used["input"] += delta.token_usage.input_tokens
                used["output"] += delta.token_usage.output_tokens
                said.usage(**used)
            yield delta


def _tool(turn: Any, tool: Any, ask: bool) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        arguments = {**dict(zip(tool.inputs, given, strict=False)), **named}
        try:
            return turn.gate(tool.name, arguments, lambda: tool.forward(*given, **named), ask=ask)
        except Refused as refused:
            return refused.result.content

    return tool if tool.name == END else altered(tool, forward=call)


@dataclass
class Said(MemoryStep):  # type: ignore[misc]  # its package is not where types are checked
    """What is in the thread, as messages of smolagents, which has calls as text."""

    rendered: list[dict[str, Any]]

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        """Return the messages."""
        del summary_mode
        return [message for one in self.rendered for message in _messages(one)]


def _messages(one: dict[str, Any]) -> Iterator[Any]:
    roles = {"user": MessageRole.USER, "assistant": MessageRole.ASSISTANT, "tool": MessageRole.TOOL_RESPONSE}
    said = _text(one["content"])
    texts = [f"Observation:\n{said}" if one["role"] == "tool" else said]
    texts += [f"Calling tools:\n{call['function']}" for call in one.get("tool_calls", ())]
    for text in filter(None, texts):
        yield ChatMessage(role=roles[one["role"]], content=[{"type": "text", "text": text}])


def _text(content: Any) -> str:
    """Return a text as it is, and blocks of text as one."""
    return content if isinstance(content, str) else "\n\n".join(one["text"] for one in content or ())
