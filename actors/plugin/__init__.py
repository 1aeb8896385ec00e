"""The interface for plug-ins: what the code of agents and tools uses, and how it is run.

    turn.py          Turn and AsyncTurn: the argument of an agent's function
    turn_core.py     what both do apart from waiting: calls, credit, saved state, the agent's thread
    answers.py       the answer of a model, and its calls: what `turn.answer` begins
    asking.py        questions to a person, of an agent, or whether a tool may be called
    delegation.py    a call whose work is a run of another agent, in a session of its own
    pieces.py        the pieces of a text, one for each event; bounds
    emitting.py      what a tool says while it runs
    child.py         the handle of a child run
    spawning.py      `spawn`, for tools
    launcher.py      an executable that starts a command in a tree of the run, for libraries
    pipes.py         the pipes between a command and the code that has started it
    execution.py     runs an agent or a call on its thread or task; a call has to pass its cell
    foreign.py       tools that a call brings along: those of a host, and functions that `turn.gate` gates
    registration.py  agents and tools as functions: names, signatures, schemas
    argument_schema.py   the raw JSON schema of a tool's arguments, where one is given
    rendering.py offering.py   a thread, and tools, in the formats of model providers

It may import the nouns, the gate and the kernel. It never sees an actor.
"""
