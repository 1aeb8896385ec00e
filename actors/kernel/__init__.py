"""The kernel: the base of every actor. It knows nothing of sessions, runs or tools.

    actor.py        Actor: one turn after another, watched children, one way out
    down.py         Down: tells a parent that its child has ended
    mailbox.py      Mailbox: two lanes, and a closed state that leaves no `ask` without an answer
    dispatcher.py   the worker threads; the dispatcher of tests, which has one thread and a seed
    future.py       replies
    each.py         Each: steps of which none keeps another from being done
    succession.py   Succession: who is told what a port knows, when an actor is replaced
    waker.py        Waker: wakes one coroutine, from any thread
    registry.py     Pykka's registry, with a hash table for its list
    thread_role.py  threads that may not wait
    log_context.py  the context of log lines: session, run, call

It may import `actors.errors`, and nothing else of ours.
"""
