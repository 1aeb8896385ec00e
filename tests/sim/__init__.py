"""A world in which the real actors run on one thread, in a seeded order, in virtual time.

The ports of `actors.ports` as small real implementations, without a thread, a file or a clock of the machine. A
whole stop with its races is then a function of a seed, and a failure is replayed by its number.

    world.py       World: everything wired; the scheduler, a crash, a restart
    clock.py       SimClock: virtual time; timers become messages
    ids.py         SimIds: names that count
    disk.py        Disk: what survives a crash
    store.py       SimStore: commits as steps of their own, with faults
    publisher.py   SimPublisher: what subscribers were given
    processes.py   SimProcesses: process trees that behave as their command line says
    executor.py    SimExecutor: coroutines on a loop that is stepped
    strays.py      SimStrays: what code leaves behind by itself
    agents.py      an agent that does what its messages say
    tools.py       its tools
    model_answers.py  what it says as the answer of a model, and what a log with that has to satisfy
    media.py       files that it is given, and makes, and what a log with files has to satisfy
    asking.py      what it asks a person, and what a log with answers has to satisfy
    delegating.py  what it gives to another agent
    hosts.py       SimHosts: agents and tools in processes of their own
    host_answers.py  the answers of models from there, frame by frame
    host_guards.py  HostGuard: a guard of an agent in a host
    client.py      Client: what a client does, and what it may expect
    ops.py         the steps of a script: drawn one by one, or several that have to happen together
    rewriting.py   other words in the messages of a script that has been drawn
    schedule.py    Schedule: a script that is drawn from a seed, played, and made smaller where it breaks a law
    timeline.py    what happened in a schedule, line by line
    bounds.py      Bounds: what may grow, last or be tried again only so far
    laws.py        what every log has to satisfy
    watch/         Watch: the laws, checked after every step against what really happened
    mutants/       faults of the product that the simulator has to find
    main.py        the command `scripts/sim`
"""
