"""The soak: the real daemon under load for as long as wanted, while faults come from outside.

main.py      the command, its phases, and its report
stand.py     the daemon and its disk: it is started, ended, killed and started again
remote.py    a session of the daemon, for the clients of `tests/load.py`
clients.py   the clients: senders, followers, and readers that are too slow
faults.py    the faults: signals to daemon, zygote, wardens, hosts and tools; a locked store; a full disk
verdict.py   what has to hold of what the clients were told, when all has come to rest
samples.py   memory, threads, descriptors, processes and files, over time
"""
