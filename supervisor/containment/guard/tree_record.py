"""What a warden has seen of its tree: its command, a row for each process, signals, and commands out of reach.

Its last word is made from this. Facts that a killed warden's successor needs go into the ledger at once.

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import os
import signal
import time

from supervisor.containment.guard import procfs
from supervisor.containment.guard.killing import signal_name
from supervisor.containment.guard.ledger import ROWS_MAX, SIGNALS_MAX, Ledger, how_of
from supervisor.containment.guard.out_of_reach import OutOfReach
from supervisor.containment.guard.survivors import began

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    from supervisor.containment.guard.namespaces import Namespace

    Word: TypeAlias = dict[str, Any]

MAYBE = "it was forked about when its process group got a signal, and may have got it too:"
"""The note of such a row; the name of the signal follows."""


class TreeRecord:
    """The processes of one tree, as far as they were seen.

    Args:
        ledger: receives the details that cannot be read once a process is dead.
        namespace: the tree's, whose keeper is not part of the tree.
    """

    def __init__(self, ledger: Ledger, namespace: Namespace | None) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self.holder = 0
        """The pid of the command's memory holder, until it is reaped (`memory_holder.py`); 0 without one."""
        self.leader: int | None = None
        """The pid of the command; None: it was not started."""
        self.started_at: float | None = None
        self.status: int | None = None
        """The exit status of the command; None: it was not reaped yet."""
        self.rows: dict[int, Word] = {}
        """The rows of processes that were not reaped yet, by pid."""
        self.signals: list[Word] = []
        self.reaped = 0
        self._done: list[Word] = []
        self._remote = OutOfReach()

    @property
    def full(self) -> bool:
        """True if no further process gets a row."""
        return len(self.rows) + len(self._done) >= ROWS_MAX

    @property
    def living_leader(self) -> int | None:
        """The pid of the command; None once it is reaped, since the pid may be reused."""
        return self.leader if self.status is None else None

    def is_ours(self, pid: int) -> bool:
        """True for a process that the warden made for itself, which is not part of the tree."""
        return pid == self.holder or (self._namespace is not None and pid == self._namespace.pid)

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────

    def see(self, pid: int, name: str = "", seen: procfs.Stat | None = None, *, reaped: bool = False) -> None:
        """Open a row for a process of the tree; the first ROWS_MAX have one."""
        if pid in self.rows or self.full or self.is_ours(pid):
            return
        seen = seen or procfs.stat(pid)
        if seen is None:
            return
        if not name:
            # The pid of a process that the keeper has reaped may be reused by now.
            words = [] if reaped else procfs.command_line(pid)
            self.name_out_of_reach(words or ([seen.name] if seen.dead else []))
        self.rows[pid] = {
            "name": os.path.basename(name) or seen.name,
            "pid": pid,
            "started_at": began(seen, self.living_leader, self.started_at),
            "ended_at": None,
            "how": None,
            "status": None,
            "signals": [],
        }

    def ended(self, pid: int, status: int, at: float) -> None:
        """Complete the row of a process that was reaped."""
        self.reaped += 1
        row = self.rows.pop(pid, None)
        if row is not None:
            row.update(ended_at=at, status=status, how=how_of(status))
            self._done.append(row)
            self._ledger.detail({"word": "reaped", "row": row})

    def signalled(self, pid: int, number: int, error: str | None) -> None:
        """Record a signal for its process, and for the tree if it is the first of its kind or was refused."""
        if self.is_ours(pid):
            # It is in the signalled groups, but says nothing about the tree.
            return
        word: Word = {"signal": signal_name(number), "at": time.time(), "error": error}
        row = self.rows.get(pid)
        if row is not None and len(row["signals"]) < SIGNALS_MAX:
            last = row["signals"][-1] if row["signals"] else word
            if number == signal.SIGKILL and last is not word and last["signal"] == "SIGKILL" and last["error"] is None:
                return  # The rounds meet a process again that was killed with the group and is not reaped yet.
            row["signals"].append(word)
        first = all(known["signal"] != word["signal"] for known in self.signals)
        if (first or error) and len(self.signals) < SIGNALS_MAX:
            self.signals.append(word)
            self._ledger.detail({"word": "signal", "signal": word})

    def may_have_got(self, pid: int, number: int) -> None:
        """Record that a process was forked about when its group was signalled, and may have got the signal."""
        row = self.rows.get(pid)
        if row is not None:
            row["note"] = f"{MAYBE} {signal_name(number)}"

    # ── Commands out of reach ─────────────────────────────────────────────────────────────────────

    def name_out_of_reach(self, argv: list[str]) -> None:
        """Keep a row for each command in `argv` whose work is done elsewhere."""
        self._keep_remote(self._remote.see(argv))

    def find_out_of_reach(self, pids: Iterable[int]) -> None:
        """Check processes before they are killed: most of a tree is met only when dead, without a command line."""
        self._keep_remote(self._remote.look(pids))

    def _keep_remote(self, rows: list[Word]) -> None:
        for row in rows:
            self._ledger.detail({"word": "remote", "row": row})

    # ── The last word ─────────────────────────────────────────────────────────────────────────────

    def last_word(self, note: str, *, proven: bool) -> Word:
        """The word ``empty``: no process of the tree is left, as far as the warden knows."""
        now = time.time()
        for row in self.rows.values():
            # Seen alive before, and gone now: its own parent has read its status, so how it ended is not known.
            gone = "gone by then; its status went to its own parent"
            row.update(ended_at=now, note="; ".join(filter(None, (row.get("note"), gone))))
        return {
            "word": "empty",
            "how": how_of(self.status),
            "status": self.status,
            "pid": self.leader,
            "started_at": self.started_at,
            # Processes that their own parent reaped are gone as well, since the tree is empty.
            "reaped": self.reaped + len(self.rows),
            "rows": (self._done + list(self.rows.values()))[:ROWS_MAX] + self._remote.rows,
            "signals": self.signals,
            "note": note,
            "proven": proven,
            "at": now,
        }
