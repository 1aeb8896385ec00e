"""Strays: what code of agents and tools starts by itself inside this process, outside of calls and of `spawn`.

    strays.py        Strays, the port: executions begin and end, runs are adopted and ended
    claims.py        a run's strays that an earlier supervisor started
    watcher.py       the watching thread: it finds pids, asks, kills, and sees ends
    tasks.py         tasks of our loop
    threads.py       work of our loop's default executor
    run_end.py       the end of a stray, and the look around before the last end of a run
    children.py      the children of this process: which start was whose
    reports.py       what is reported of strays, and for how long it is kept
    attribution.py   whose code starts a process, asked at the moment in which it does
    starter.py       Starter: one execution of an agent or a tool
    records.py       Run and Stray: what is known of them
    subreaper.py     whether orphans fall to this process

Theory of operation. A context variable names the execution whose code runs (`attribution`). A start is attributed so:

- *Processes*. The audit hook runs on the thread that is about to fork, so the process will be a child of this thread:
  one that the thread has afterwards and did not have before. The watching thread looks for it; so does the thread
  itself before it starts another, and at the end of its execution. So each thread has at most one start without a pid,
  and none once the execution that started it has ended.
- *Threads*. Our loop's default executor notes whose work it is given (`asyncio.to_thread`).
- *Tasks*. Our loop's task factory notes whose task it makes.

A process is reported to the run once its pid is known, a thread or a task when its execution ends before it. Either way
the start is reported before the end of what started it. So when everything has ended that was reported to a run,
nothing that can be attributed to the run is left. One thing is not attributed: what code leaves in a timer or a
callback of the loop.

A process is asked and killed with its descendants (`containment.offspring`), by the watching thread. A process that was
started after the fence may go on until the grace is over: it may belong to a clean-up. No exit status is consumed.

An orphan falls to this process, if this process inherits orphans (a subreaper, or process 1). Before the last part of a
run ends, the children of this process are looked at. One that began during the run, and whose start is not attributed,
is reported to the run as not its own. Where orphans fall to another process, the receipt of a run that started
processes says that their orphans cannot be seen. So a receipt is never complete by ignorance of a process.

The processes that `multiprocessing` keeps for the whole program belong to the program, whichever code needs them first.
What a run has the fork server start cannot be seen, and its receipt says so.

Bounds. Of one execution at most STRAYS_MAX threads and tasks are reported one by one; the others are one stray
together. Of one run at most OPEN_MAX strays are kept one by one. Those beyond are one stray of each kind, which is
ended with the run, and whose end says how many more there were. A process that joins it after it was asked to end is
not asked itself: it is killed when its time is over.

Ends that are not on record yet, such as those of what a timer starts after its run, are kept up to ENDED_MAX.

One re-entrant lock guards everything here. Messages to a run's owner are sent while it is held, in order.
"""
