"""The watch: the laws as predicates over what really happens in a world.

`watch.py` says how it works.

    watch.py       Watch: everything wired; a world is entered, a world crashed
    seen.py        Seen: what was seen, as far as more than one of the others reads it
    executions.py  Executions: when agents and tools start, begin, clean up and return
    trees.py       Trees: when process trees start, change their owner, and are used as hosts
    barrier.py     Barrier: whether anything of an earlier run is left
    ends.py        Ends: what is ended, and whether its gate was shut first
    causes.py      Causes: why a run ends
    attempts.py    Attempts: which runs begin again after a failure or a crash
    journal.py     Journal: Stops that the store does not have yet
    answers.py     Answers: what clients are answered and shown
    receipts.py    Receipts: whether a receipt is true, and came in time
    rest.py        Rest: what is left when a session leaves, is deleted, or comes to rest
    records.py     Records: each batch as it becomes durable
"""

from tests.sim.watch.watch import LawBroken, Watch

__all__ = ["LawBroken", "Watch"]
