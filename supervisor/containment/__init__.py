"""Containment: process trees that end when their owner ends, and whose end is said only when it is proven.

    processes/        ProcessTrees, the port: spawn, kill, adopt, forget; what the daemon knows of each tree
    layers.py         which layers a daemon has, and why one is missing
    zygote_handle.py  the daemon's end of a zygote
    reactor.py        the one thread that all of the daemon's side runs on
    readers.py        which pipe is read when, so that no flood and no crowd takes that thread
    output.py         what a tree has written, as text: decoded, capped, its tail kept
    spool.py          its exact bytes, in a capped file, where a report has no room for them
    workplace.py      the directory that a command begins in
    pty.py            a terminal for a command that needs one
    orphans.py        trees whose warden and zygote are both gone: found by marker and pid, killed, counted
    offspring.py      a process that has no warden, and what is below it
    probe.py          whether a PID namespace can be had here
    guard/            what runs in the zygote and in wardens, on the standard library alone

The layers, from the inside out, each of which holds without the others or says what it cannot promise: the group of
the tree; the warden, a subreaper; the zygote, which inherits from a killed warden; the marker in the environment, for
when both were killed. One more is optional: a PID namespace around the tree, which no process
of it can leave or outlive.
"""
