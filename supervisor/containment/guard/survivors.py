"""The survivors of a tree: processes left after it was killed, named with the reason while we wait for their end.

There are two kinds. We may not signal one that runs as another user by now (`sudo`, a set-uid program): it is out of
our reach. The other got the signal and does not die: it is in an uninterruptible wait (state D), as for a hung disk.

Standard library only: the zygote and the wardens load this file too.
"""

from __future__ import annotations

import os

from supervisor.containment.guard import procfs
from supervisor.containment.guard.ledger import ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

LEFT = "could not be killed"
ENDED_LATE = "took long to end after SIGKILL"
"""What is said of survivors while there are any, and when they have ended."""
NAMES_MAX = 10
SAID_MAX = 20


class Survivors:
    """A warden's or the zygote's report of the survivors: repeated when they change, SAID_MAX times at most."""

    def __init__(self) -> None:
        self._said: list[int] = []
        self.times = 0

    def word(
        self,
        pids: Collection[int],
        refused: Mapping[int, str],
        at: float,
        leader: int | None,
        tree_began: float | None,
    ) -> Word | None:
        """The word ``remaining`` about these processes; None if none lives or the report would be the same.

        `refused`: why a signal was refused, by pid. `leader` and `tree_began`: see `began`.
        """
        there = [seen for pid in pids if (seen := procfs.stat(pid)) is not None and seen.state not in "ZX"]
        now = sorted(seen.pid for seen in there)
        if not there or now == self._said or self.times >= SAID_MAX:
            return None
        self._said = now
        self.times += 1
        names = ", ".join(_named(seen, refused.get(seen.pid)) for seen in there[:NAMES_MAX])
        more = f", and {len(there) - NAMES_MAX} more" if len(there) > NAMES_MAX else ""
        rows = [_row(seen, refused.get(seen.pid), began(seen, leader, tree_began)) for seen in there[:ROWS_MAX]]
        return {"word": "remaining", "note": f"{LEFT}: {names}{more}", "rows": rows, "at": at}


def began(seen: procfs.Stat, leader: int | None, tree_began: float | None) -> float:
    """When a process of a tree began, for its row: never before the tree did.

    The command was forked before it was requested (`preforked.Preforked`), so its row has the time of its exec, not the
    kernel's start time. For all others the kernel's time is used, which is exact only to a tick.

    Args:
        seen: the process.
        leader: the pid of the command; None once it is reaped, since the pid may be reused.
        tree_began: the time of that exec; epoch seconds, UTC; None if there was none.
    """
    if tree_began is None:
        return seen.started_at
    return tree_began if seen.pid == leader else max(seen.started_at, tree_began)


def _named(seen: procfs.Stat, refusal: str | None) -> str:
    why = f", {refusal}" if refusal else ""
    return f"{seen.name} (pid {seen.pid}, state {seen.state}{why})"


def _row(seen: procfs.Stat, refusal: str | None, started_at: float) -> Word:
    if refusal is not None:
        how, note = "out_of_reach", f"SIGKILL was refused: {refusal}{_owner(seen.pid)}"
    elif seen.state == "D":
        how, note = "abandoned", "got SIGKILL, and is in an uninterruptible wait (state D)"
    else:
        how, note = "abandoned", f"got SIGKILL, and has not ended yet (state {seen.state})"
    return {
        "name": seen.name,
        "pid": seen.pid,
        "started_at": started_at,
        "ended_at": None,
        "how": how,
        "status": None,
        "signals": [],
        "note": note,
    }


def _owner(pid: int) -> str:
    try:
        return f"; it is of user {os.stat(f'/proc/{pid}').st_uid}"
    except OSError:
        return ""
