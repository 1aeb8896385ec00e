"""Containment: process trees that end when their owner ends, and whose end is reported only when it is proven.

    processes/        ProcessTrees, the port: spawn, kill, adopt, forget; the daemon's record of each tree
    layers.py         which layers a daemon has, and why one is missing
    zygote_handle.py  the daemon's end of a zygote
    reactor.py        the one thread that the daemon's side runs on
    readers.py        schedules the reading of pipes, so that no flood and no crowd monopolizes that thread
    output.py         the output of a tree as text: decoded, capped, its tail kept
    spool.py          its exact bytes, in a capped file, if a report has no room for them
    workplace.py      the directory that a command begins in
    pty.py            a terminal for a command that needs one
    orphans.py        trees whose warden and zygote are both gone: found by marker and pid, killed, counted
    offspring.py      a process without a warden, and its descendants
    probe.py          checks that a PID namespace can be made here
    guard/            the code of the zygote and the wardens, on the standard library alone

The layers, from the inside out, each of which works without the others or reports what it cannot prove: the group of
the tree; the warden, a subreaper; the zygote, which inherits from a killed warden; the marker in the environment, in
case both were killed. One more is optional: a PID namespace around the tree, which no process of it can leave or
outlive.
"""
