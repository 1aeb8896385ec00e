"""The watch: the laws as predicates over what really happens in a world.

`watch.py` says how it works.

    watch.py       Watch: everything wired; a world is entered, a world crashed
    seen.py        Seen: the observations that more than one file reads
    executions.py  ExecutionLaws: when agents and tools start, begin, clean up and return
    trees.py       TreeLaws: when process trees start, change their owner, and are used as hosts
    barrier.py     BarrierLaws: whether anything of an earlier run is left
    ends.py        EndLaws: what is ended, and whether its gate was shut first
    causes.py      CauseLaws: why a run ends
    attempts.py    AttemptLaws: which runs begin again after a failure or a crash
    saves.py       SaveLaws: what agents save, and read as the state of their session
    choices.py     ChoiceLaws: which agent runs
    children.py    ChildLaws: child runs, and those whose they are
    usage.py       UsageLaws: what runs have used, and their budgets
    journal.py     JournalLaws: Stops that the store does not have yet
    answers.py     AnswerLaws: what clients are answered and shown
    receipts.py    ReceiptLaws: whether a receipt is true, and came in time
    rest.py        RestLaws: what is left when a session leaves, is deleted, or comes to rest
    records.py     RecordLaws: each batch as it becomes durable
"""

from tests.sim.watch.watch import LawBroken, Watch

__all__ = ["LawBroken", "Watch"]
