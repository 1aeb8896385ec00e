"""The surface for plug-ins: what the code of agents and tools sees, and how it is run.

    turn.py          Turn and AsyncTurn: what an agent's function is given
    spawning.py      `spawn`, for tools
    execution.py     how a call passes its cell, on the thread or the task of the plug-in
    registration.py  agents and tools as functions: names, signatures, schemas
    rendering.py     a thread in the form that model providers take

It may import the nouns, the gate and the kernel. It never sees an actor.
"""
