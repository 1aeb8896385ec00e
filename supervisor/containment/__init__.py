"""Containment: process trees that end when their owner ends, and whose end is said only when it is proven.

processes.py      ProcessTrees, the port: spawn, kill, adopt, forget; what the daemon knows of each tree
layers.py         which layers a daemon has, and why one is missing
zygote_handle.py  the daemon's end of a zygote
reactor.py        the one thread that all of the daemon's side runs on
readers.py        which pipe is read when, so that no flood and no crowd takes that thread
output.py         what a tree has written, as text: decoded, capped, its tail kept
spool.py          its exact bytes, in a capped file, where a report has no room for them
workplace.py      the directory that a command begins in
pty.py            a terminal for a command that needs one
ledger.py         the file of a tree, by which the next daemon knows what became of it
leftovers.py      what nobody inherited: found by marker and pid, identified, killed, counted
zygote.py         a small interpreter that forks wardens and inherits what a killed one leaves
warden.py         one per tree: spawns, reaps, ends, proves
ready.py          what it makes ready before it has a tree
seed.py           the process that waits to become the command; anchor.py keeps its memory until it has
command.py        what a command finds on its input, where it begins, within which limits
killing.py        rounds of SIGKILL over whoever is proven ours
unix.py           what these processes are to the kernel: woken by whom, ignoring what, run when
packets.py        messages over their sockets, with descriptors
cgroups.py        a group per tree, where cgroup v2 can be written: born inside, killed as one, removed as the proof
namespaces.py     a PID namespace per tree, where it is asked for: whoever is in it dies with its first process
probe.py          whether that can be had here
offspring.py      a process that has no warden, and what is below it: for what is started beside all this
remaining.py      who is left of a tree after it was killed, and why
remote.py         commands whose work is done elsewhere, out of reach
procfs.py         what /proc says: children, identity, ancestry

The layers, from the inside out, each of which holds without the others or says what it cannot promise: the group of
the tree; the warden, a subreaper; the zygote, which inherits from a killed warden; the marker in the environment, for
when both were killed. One more is there only where it is asked for: a PID namespace around the tree, which nobody
leaves and nobody outlives.

From zygote.py on all but probe.py and offspring.py, and ledger.py, also run in the zygote, where there is nothing but
the standard library.
"""
