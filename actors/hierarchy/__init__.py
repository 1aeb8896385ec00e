"""The four actors. Each carries out decisions; none makes one that a fence could overtake.

    session.py      SessionActor: routes messages to the parts of a session, which it owns
    run.py          RunActor: the agent's execution, its calls, its deadline
    run_agent.py    starts the agent of a run, in this process or in its host
    run_host.py     the host in which the agent of a run runs
    tool.py         ToolActor: one call, its cell and its processes
    tool_host.py    the host in which a call's tool runs
    spawns.py       the processes that an agent or a tool asks for
    process.py      ProcessActor: one process tree

The parts of a session, from the top down:

    reading.py      the session comes from the store, and requests that waited for that are decided
    outage.py       the store does not take writes, or cannot be read
    serving.py      a request is decided, and its step is sent
    draining.py     in a shutdown, the session says once that it is quiet
    passivation.py  a session that is not used leaves memory
    parents.py      who waits for reports on child runs of the session
    batches.py      steps on their way to the store
    effects.py      what a step decided is carried out
    run_actors.py   the actors of its runs
    tree_actors.py  the actors of the process trees that it owns
    stash.py        requests that came while the session is being read
    late_stops.py   Stops that the store does not have yet, and the answers that wait for it
    quarantine.py   a session that fails too often takes Stop and nothing else
    answers.py      answers that need no store
    incarnation.py  the session as it was read last, and its phase
    session_hosts.py  the hosts that it has reserved, until their runs begin

A child knows its parent only as an address. This package may import every other one.
"""
