"""Adapters: agents that are written with a framework, as they are, as agents of Countermand.

    gate.py               what a framework does, as the run does it: it calls a tool, asks a person, hands over
    claude_agent_sdk.py   the Claude Agent SDK
    langgraph.py          LangGraph
    mcp.py                no agent: MCP servers, whose tools any agent may call
    openai_agents.py      openai-agents
    pydantic_ai.py        pydantic-ai
    smolagents.py         smolagents

An agent's file imports `run` from the module of its framework: ``from countermand.adapters.pydantic_ai import run``. In
a host `countermand` is the package of the runtime, and this is a package in it. In a supervisor's process `countermand`
is the module `scripts/countermand.py`, whose path leads here too. So an adapter takes what it needs from `countermand`,
by names that both have; of the files of the runtime only what looks at no class.

Each imports its framework, so it is loaded only where that is: it is one of the extras in `pyproject.toml`, such as
``countermand[pydantic-ai]``, or a package in the environment of the agent.

Theory of operation. The thread of the run is the one history: at its start the framework gets the thread in its own
format, and nothing of what the framework itself has kept of an earlier run. So whatever moment a Stop came at, each
call has a result there that says what became of it. What the model answers is put on record as an answer, text by text,
with what it has used. A tool is called through the gate: it is recorded before it begins, begins only if the run may
still act, and a refusal is the result that the model reads. A Stop cancels the task that the framework runs in, which
each of them takes for a cancel; the tools that it had begun are cancelled with their calls. The Claude Agent SDK is the
exception: its CLI keeps the conversation, by an id that is saved, and is told what it does not know of the thread.
"""
