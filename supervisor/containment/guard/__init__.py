"""The guard: the processes that outlive the daemon, and end what it leaves.

    zygote.py        a small interpreter that forks wardens and inherits what a killed one leaves
    warden.py        one for each tree: spawns, reaps, proves
    ladder.py        the steps by which a warden ends its tree
    tree_record.py   what a warden has seen of its tree, of which its last word is made
    ready.py         what a warden prepares before it has a tree
    seed.py          the process that waits to become the command; anchor.py keeps its memory until it has
    command.py       what a command finds on its input, where it begins, within which limits
    account.py       the user that a command runs as, where that is not the daemon's
    niceness.py      how nice a tree is: changed of all of it
    killing.py       rounds of SIGKILL over whatever is proven ours
    survivors.py     what is left of a tree after it was killed, and why
    out_of_reach.py  commands whose work is done elsewhere: on another machine, by another daemon
    ledger.py        the file of a tree, by which the next daemon knows what became of it
    unix.py          what these processes are to the kernel: what wakes them, what they ignore, when they run
    packets.py       messages over their sockets, with descriptors
    cgroups.py       a group for each tree, where cgroup v2 can be written
    namespaces.py    a PID namespace for each tree, where it is asked for
    moment.py        which processes were forked before a moment, and which after it
    procfs.py        what /proc says: children, identity, ancestry

It imports the standard library alone: the zygote's interpreter has no site-packages.
"""
