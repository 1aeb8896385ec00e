"""The nice value of a tree: changed of its command and of all that it has started, thread by thread.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

import os
from contextlib import suppress

from supervisor.containment.guard import procfs
from supervisor.containment.guard.unix import NICE

PASSES_MAX = 20
"""After so many passes it is left as it is: whoever forks so fast has no other work."""


def change(before: int, after: int) -> None:
    """Make who is below us and `before` nicer than the daemon `after` nicer; in passes, until one finds nobody.

    A new thread or process has the value of the one that made it, so nobody new is left out once those are done. Who
    has chosen another value keeps it. The number of one that is not our child may become somebody else's in this
    moment: what that can cost a stranger with the same value is its value.
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
                # On Linux each thread has its own.
                if os.getpriority(os.PRIO_PROCESS, int(name)) == before:
                    os.setpriority(os.PRIO_PROCESS, int(name), after)
                    changed = True
    return changed
