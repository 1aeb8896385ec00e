"""The four actors. Each carries out decisions; none makes one that a fence could overtake.

    session.py     SessionActor: carries out what the protocol decides, batch by batch
    late_stops.py  Stops that the store does not have yet, and the answers that wait for it
    run.py         RunActor: the agent's execution, its calls, its deadline
    tool.py        ToolActor: one call, its cell and its processes
    process.py     ProcessActor: one process tree

A child knows its parent only as an address. This room may import every other one.
"""
