"""The kernel: what any actor rests on. It knows nothing of sessions, runs or tools.

    actor.py        Actor: one turn after another, children that are watched, every way out
    down.py         Down: the end of a child, as its parent receives it
    mailbox.py      Mailbox: two lanes, and a closed state that leaves no `ask` without an answer
    dispatcher.py   the worker threads; the dispatcher of tests, which has one thread and a seed
    future.py       replies
    registry.py     Pykka's registry, with a list that does not slow down
    thread_role.py  threads that may not wait
    log_context.py  what a line of the log is about

It may import `actors.errors`, and nothing else of ours.
"""
