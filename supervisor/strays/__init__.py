"""Strays: processes, threads and tasks that agents and tools start by themselves in this process, without `spawn`.

    strays.py        Strays, the port: executions begin and end, runs are adopted and ended
    claims.py        a run's strays that an earlier supervisor started
    watcher.py       the watching thread: it finds pids, signals processes, and sees ends
    tasks.py         tasks of our loop
    threads.py       work of our loop's default executor
    run_end.py       the end of a stray, and the checks before the last end of a run
    children.py      the children of this process, and the starts they belong to
    reports.py       the reports on strays, and how long they are kept
    attribution.py   which execution starts a process, asked at the moment of the start
    starter.py       Starter: one execution of an agent or a tool
    records.py       Run and Stray: their state
    subreaper.py     whether orphans fall to this process

Theory of operation. A context variable names the execution whose code runs (`attribution`). A start is attributed so:

- *Processes*. The audit hook runs on the thread that is about to fork, so the process will be a new child of this
  thread. The watching thread looks for it; so does the thread itself before it starts another, and at the end of its
  execution. So each thread has at most one start without a pid, and none once the execution that started it has ended.
- *Threads*. Our loop's default executor records which execution submits work (`asyncio.to_thread`).
- *Tasks*. Our loop's task factory records which execution makes a task.

A process is reported to the run once its pid is known, a thread or a task if it outlasts its execution. Either way
the start is reported before the end of the execution that started it. So when every reported part of a run has ended,
nothing that can be attributed to the run is left. Only starts from a timer or a callback of the loop are not
attributed.

The watching thread asks a process to end, and kills it, with its descendants (`containment.offspring`). A process that
was started after the fence may go on until the grace is over: it may belong to a clean-up. No exit status is consumed.

An orphan falls to this process, if this process inherits orphans (a subreaper, or process 1). Before the last part of a
run ends of which code was executed here, the children of this process are checked. A child that began during the run,
and whose start is not attributed, is reported to the run as not its own. If orphans fall to another process, the
receipt of a run that started processes says that their orphans cannot be seen. So a receipt is never complete by
ignorance of a process. What executes a launcher (`actors.plugin.launcher`) starts no process itself, so it leaves no
orphan.

The processes that `multiprocessing` keeps for the whole program belong to the program, whichever code needs them first.
Processes that a run starts through the fork server cannot be seen, and its receipt says so.

Bounds. At most STRAYS_MAX threads and tasks of one execution are reported one by one; the others are one stray
together. At most OPEN_MAX strays of one run are kept one by one. Those beyond are one stray of each kind, which is
ended with the run, and whose end says how many more there were. A process that joins it after it was asked to end is
not asked itself: it is killed when its time is over.

Ends that are not in the log yet, such as those of a process that a timer starts after its run, are kept up to
ENDED_MAX.

One re-entrant lock guards everything here. Messages to a run's owner are sent while it is held, in order.
"""
