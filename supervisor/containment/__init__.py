"""Containment: process trees that end when their owner ends, and whose end is said only when it is proven.

processes.py      ProcessTrees, the port: spawn, kill, adopt, forget; what the daemon knows of each tree
zygote_handle.py  the daemon's end of a zygote
reactor.py        the one thread that all of the daemon's side runs on
readers.py        which pipe is read when, so that no flood and no crowd takes that thread
output.py         what a tree has written, as text: decoded, capped, its tail kept
spool.py          its exact bytes, in a capped file, where a report has no room for them
pty.py            a terminal for a command that needs one
ledger.py         the file of a tree, by which the next daemon knows what became of it
zygote.py         a small interpreter that forks wardens and inherits what a killed one leaves
warden.py         one per tree: spawns, reaps, ends, proves
procfs.py         what /proc says: children, identity, ancestry

The last four also run in the zygote, where there is nothing but the standard library.
"""
