"""The guard: the processes that outlive the daemon, and end the trees it leaves.

    zygote.py         a small interpreter that forks wardens and inherits the trees of killed ones
    warden.py         one for each tree: spawns, reaps, proves
    ladder.py         the steps by which a warden ends its tree
    tree_record.py    what a warden has seen of its tree; its last word is made from it
    ready.py          what a warden prepares before it has a tree
    preforked.py      the child that waits to become the command
    memory_holder.py  keeps that child's memory until after its exec
    command.py        the input, directory, user and limits of a command
    account.py        the user that a command runs as, if that is not the daemon's
    niceness.py       changes the nice value of a whole tree
    killing.py        rounds of SIGKILL over processes that are proven ours
    survivors.py      the processes left after a tree was killed, and why
    out_of_reach.py   commands whose work is done elsewhere: on another machine, by another daemon
    ledger.py         the file of a tree, from which the next daemon learns what became of it
    unix.py           signals, wake-ups, scheduling and descriptors of these processes
    packets.py        messages over their sockets, with descriptors
    cgroups.py        a group for each tree, where cgroup v2 can be written
    namespaces.py     a PID namespace for each tree, where it is asked for
    moment.py         which processes were forked before a moment, and which after it
    procfs.py         reads of /proc: children, identity, ancestry

It imports only the standard library: the zygote's interpreter has no site-packages.
"""
