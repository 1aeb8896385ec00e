"""Changes the nice value of a tree: of its command and all its descendants, thread by thread.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

import os
from contextlib import suppress

from supervisor.containment.guard import procfs
from supervisor.containment.guard.unix import NICE

PASSES_MAX = 20
"""After so many passes the rest is left as it is: a tree that forks so fast does no other work."""


def change(before: int, after: int) -> None:
    """Make descendants that are `before` nicer than the daemon `after` nicer, in passes until one finds none.

    A new thread or process inherits the value of its maker, so a pass that finds none is the last. A process that has
    chosen another value keeps it. The pid of a process that is not our child may be reused at this moment: then a
    stranger with the same nice value gets the new one.
    """
    if before == after:
        return
    for _ in range(PASSES_MAX):
        if not sum(_change(pid, NICE + before, NICE + after) for pid in procfs.descendants()):
            return


def _change(pid: int, before: int, after: int) -> bool:
    """Change the threads of a process; True if there was one to change, and we may."""
    changed = False
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                # On Linux each thread has its own nice value.
                if os.getpriority(os.PRIO_PROCESS, int(name)) == before:
                    os.setpriority(os.PRIO_PROCESS, int(name), after)
                    changed = True
    return changed
