"""The daemon's side of containment: spawn, kill, adopt, forget, and what it knows of each process tree.

    trees.py         ProcessTrees, the port `actors.ports.Processes`
    adoption.py      trees of an earlier daemon: their ledgers are read, and what they left is ended
    words.py         what wardens and zygotes say
    lost.py          the verdict on a tree whose warden is gone
    launch.py        a tree from its request to the zygote's socket
    kills.py         kills, their deadlines, and wardens that are silent
    endings.py       the exit of a command and the end of its tree, each reported once
    pipes.py         the pipes of a tree: read, held up while its disk is behind, drained
    search.py        the search for what a tree without a warden left
    zygotes.py       the zygote that spawns, and those that are still needed
    descriptors.py   what daemon and warden share: a socket, pipes, the command
    channel.py       a descriptor that a command inherits, until it has it
    warden_dir.py    the directory with the ledgers: its paths, this boot, our cgroup
    tree.py          Tree: what is known of one; TreeTable: all of them
    reports.py       words of wardens as reports to the owner of a tree
    environment.py   what a command gets of the daemon's environment

Theory of operation. One reactor thread owns everything here: every tree, its pipes, the sockets of its warden, the
zygotes. The port's methods post a call to it and return, so they block no caller and need no lock, and what one caller
asks for happens in the order in which it asked.

A tree goes ``waiting -> sent -> running -> ended``, or ``-> lost -> ended`` where its warden was killed. It *ends* on a
word only: ``empty`` from its warden (ECHILD), ``gone`` from the zygote (it inherited what the warden left, and nothing
of that is left), or, not proven, when the time for that is over. The order of reports: pipes are not read before
``started``; the exit is reported when both pipes are at their end, or `drain_s` after it (`held`); the end is reported
after the exit.

Races, and why each is closed:

* *The zygote dies with a request in its socket.* The kernel then closes the warden's socket end that was on its way,
  so we read its end. The ledger has no ``spawning`` word, and no process can write it any more, for no copy of that
  socket is left: the tree is sent to another zygote, at most ATTEMPTS_MAX times.
* *A warden dies with a request in its socket*, or before it spawns: its ledger has no ``spawning`` word either.
* *The zygote dies later.* Wardens hold their own sockets and go on. Only a warden that dies after it leaves a tree
  that no process of ours inherits: what is left is searched for, on a thread of its own, and the tree's cgroup, if it
  had one, is emptied. Only the latter is a proof: see `orphans`.
* *The daemon dies at any moment.* See `ledger`: the file is created before the request is sent.
* *A kill before the start.* Not sent yet: it never is. Sent: the kill waits in the socket and the warden reads it
  before it spawns.
* *A warden was stopped by a signal.* It has said nothing by half of `kill_s` after the deadline, and does nothing: the
  zygote kills it and inherits the tree. A warden that says ``remaining``, or that wants or has had the processor, is at
  work, and is left alone, however long that takes on a machine under load.
* *The end of a socket comes before the words in it*: it does not, a SEQPACKET socket keeps its order. What does come
  ahead of them is that the other end has not read all (`packets.receive`). The words of the zygote come over another
  socket, so a tree that lost its warden waits for them.

The parts call one another downward, in the order of the list above. What goes the other way is an event that a part was
given a callback for: the end of a pipe, a word, the death of a zygote, the end of a tree.
"""
