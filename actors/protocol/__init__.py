"""The protocol of a session: pure decisions, without a mailbox, a thread or a clock.

    protocol.py      Protocol: builds the deciders and routes to them; its head says who calls whom
    restoration.py   how a session is restored from the store
    child_runs.py    child runs in this session: begun, fenced and reported for a parent in another one
    requests.py      requests from outside: each is decided once; deletion of the session
    stops.py         Stop
    intake.py        NewMessage, Resume, Withdraw
    part_reports.py  reports of the parts of runs: executions, process trees, strays
    tree_reports.py  reports of the session's own process trees
    runs.py          how runs start and end: fence, close, halt, settle; what goes on then
    run_hosts.py     the hosts of runs: reserved, taken back, kept by the session
    calls.py         calls of the active run
    trees.py         process trees that belong to the session
    turns.py         waiting messages
    saves.py         what agents save for later runs
    deletion.py      when the session is deleted
    agents.py        which agent the session has
    processes.py     spawns and output
    state.py         the data, the log, acceptance, the barrier, the step
    owned_tree.py    one process tree of the session
    stop_receipt.py  the receipt of a Stop that found no run
    run_record.py    what a session knows of one run, and its receipt
    queue.py         messages that wait
    request_book.py  request ids and their answers
    step.py          what one turn of the mailbox decided: events, rows, effects
    child_link.py    a child run as its parent's side knows it; its head has the theory of child runs
    notes.py         texts about interruptions, for the model

It may import the nouns and the gate. `hierarchy` carries out what is decided here.
"""
