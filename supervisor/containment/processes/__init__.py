"""The daemon's side of containment: spawn, kill, adopt, forget, and the state of each process tree.

    trees.py         ProcessTrees, the port `actors.ports.Processes`
    adoption.py      trees of an earlier daemon: their ledgers are read, and their orphans ended
    words.py         handles the words of wardens and zygotes
    lost.py          the verdict on a tree whose warden is gone
    launch.py        a tree from its request to the zygote's socket
    kills.py         kills, their deadlines, and silent wardens
    endings.py       the exit of a command and the end of its tree, each reported once
    pipes.py         the pipes of a tree: read, paused while its disk is behind, drained
    search.py        the search for the orphans of a tree without a warden
    zygotes.py       the zygote that spawns, and older ones that are still needed
    descriptors.py   the socket, the pipes and the command that daemon and warden share
    given.py         what a command was given: a channel, ends of pipes
    copies.py        output that is logged, and also copied to a reader
    keyboard.py      what is typed on a terminal
    warden_dir.py    the directory with the ledgers: its paths, this boot, our cgroup
    tree.py          Tree: the state of one; TreeTable: all of them
    reports.py       words of wardens as reports to the owner of a tree
    environment.py   the part of the daemon's environment that commands get

Theory of operation. One reactor thread owns everything here: every tree, its pipes, the sockets of its warden, the
zygotes. The port's methods post a call to it and return, so they block no caller and need no lock, and the requests of
one caller are done in order.

A tree goes ``waiting -> sent -> running -> ended``, or ``-> lost -> ended`` if its warden was killed. It *ends* only on
a word: ``empty`` from its warden (ECHILD), ``gone`` from the zygote (it inherited the orphans, and none is left), or,
not proven, at a timeout. The order of reports: pipes are not read before ``started``; the exit is reported when both
pipes are at their end, or `drain_s` after it (`held`); the end is reported after the exit.

Races, and why each is closed:

* *The zygote dies with a request in its socket.* The kernel then closes the warden's socket end that was on its way,
  so we read its end. The ledger has no ``spawning`` word, and no process can write it any more, for no copy of that
  socket is left: the tree is sent to another zygote, at most ATTEMPTS_MAX times.
* *A warden dies with a request in its socket*, or before it spawns: its ledger has no ``spawning`` word either.
* *The zygote dies later.* Wardens hold their own sockets and go on. Only a warden that dies after the zygote leaves
  orphans that no process of ours inherits: they are searched for, on a thread of its own, and the tree's cgroup, if it
  had one, is emptied. An emptied cgroup or the end of a namespace's keeper is a proof, a search is not: see `orphans`.
* *The daemon dies at any moment.* See `ledger`: the file is created before the request is sent.
* *A kill before the start.* Not sent yet: it never is. Sent: the kill waits in the socket and the warden reads it
  before it spawns.
* *A warden was stopped by a signal.* It has sent nothing by half of `kill_s` after the deadline, and makes no progress:
  the zygote kills it and inherits the tree. A warden that sends ``remaining``, or that waits for or has had the
  processor, is working, and is left alone, however long it takes under load.
* *The end of a socket comes before the words in it*: it does not, a SEQPACKET socket keeps its order. Only the error
  that the other end has not read everything comes ahead of them (`packets.receive`). The words of the zygote come over
  another socket, so a tree that lost its warden waits for them.

The parts call one another downward, in the order of the list above. Events go the other way, through callbacks: the end
of a pipe, a word, the death of a zygote, the end of a tree.
"""
