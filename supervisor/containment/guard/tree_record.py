"""What a warden has seen of its tree: its command, a row for each process, signals, and commands out of reach.

Its last word is made from this. What is needed to finish the work of a killed warden goes into the ledger at once.

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import os
import signal
import time

from supervisor.containment.guard import procfs
from supervisor.containment.guard.killing import signal_name
from supervisor.containment.guard.ledger import ROWS_MAX, SIGNALS_MAX, Ledger, how_of
from supervisor.containment.guard.out_of_reach import FarSides
from supervisor.containment.guard.survivors import began

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    from supervisor.containment.guard.namespaces import Namespace

    Word: TypeAlias = dict[str, Any]

MAYBE = "it was forked about when its process group got a signal, and may have got it too:"
"""How a row says so; the name of the signal follows."""


class TreeRecord:
    """The processes of one tree, as far as they were seen.

    Args:
        ledger: gets the details that the dead cannot be asked for.
        namespace: that of the tree, whose keeper is not of it.
    """

    def __init__(self, ledger: Ledger, namespace: Namespace | None) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self.anchor = 0
        """The pid of the command's anchor, until it is reaped (`anchor.py`)."""
        self.leader: int | None = None
        """The pid of the command; None: it was not started."""
        self.started_at: float | None = None
        self.status: int | None = None
        """The exit status of the command; None: it was not reaped yet."""
        self.rows: dict[int, Word] = {}
        """Those that were not reaped yet, by pid."""
        self.signals: list[Word] = []
        self.reaped = 0
        self._done: list[Word] = []
        self._far_sides = FarSides()

    @property
    def full(self) -> bool:
        """True if no further process gets a row."""
        return len(self.rows) + len(self._done) >= ROWS_MAX

    @property
    def living_leader(self) -> int | None:
        """The pid of the command, until it is reaped; then it may be the pid of another process."""
        return self.leader if self.status is None else None

    def is_ours(self, pid: int) -> bool:
        """True of a process that the warden has made for itself, which is not of the tree."""
        return pid == self.anchor or (self._namespace is not None and pid == self._namespace.pid)

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────

    def see(self, pid: int, name: str = "", seen: procfs.Stat | None = None, *, reaped: bool = False) -> None:
        """Open a row for a process of the tree; the oldest ROWS_MAX have one."""
        if pid in self.rows or self.full or self.is_ours(pid):
            return
        seen = seen or procfs.stat(pid)
        if seen is None:
            return
        if not name:
            # The pid of one that its keeper has reaped may be another process's by now.
            words = [] if reaped else procfs.command_line(pid)
            self.name_far_sides(words or ([seen.name] if seen.dead else []))
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
        """One of the tree was reaped."""
        self.reaped += 1
        row = self.rows.pop(pid, None)
        if row is not None:
            row.update(ended_at=at, status=status, how=how_of(status))
            self._done.append(row)
            self._ledger.detail({"word": "reaped", "row": row})

    def signalled(self, pid: int, number: int, error: str | None) -> None:
        """Record a signal: with its process, and, the first of its kind or refused, with the tree."""
        if self.is_ours(pid):
            # It is in the groups that are signalled; the tree may have ended by itself all the same.
            return
        word: Word = {"signal": signal_name(number), "at": time.time(), "error": error}
        row = self.rows.get(pid)
        if row is not None and len(row["signals"]) < SIGNALS_MAX:
            last = row["signals"][-1] if row["signals"] else word
            if number == signal.SIGKILL and last is not word and last["signal"] == "SIGKILL" and last["error"] is None:
                return  # One that was killed with the group and is not reaped yet is met again by the rounds.
            row["signals"].append(word)
        first = all(known["signal"] != word["signal"] for known in self.signals)
        if (first or error) and len(self.signals) < SIGNALS_MAX:
            self.signals.append(word)
            self._ledger.detail({"word": "signal", "signal": word})

    def may_have_got(self, pid: int, number: int) -> None:
        """Record that a process was forked about when a signal was sent to its group: maybe in time to get it."""
        row = self.rows.get(pid)
        if row is not None:
            row["note"] = f"{MAYBE} {signal_name(number)}"

    # ── Commands out of reach ─────────────────────────────────────────────────────────────────────

    def name_far_sides(self, argv: list[str]) -> None:
        """Keep a row for each command whose work is done elsewhere, where killing it does not reach."""
        self._keep_far_sides(self._far_sides.see(argv))

    def look_for_far_sides(self, pids: Iterable[int]) -> None:
        """Before they are killed: the dead have no command line, and most of a tree is met only when it is dead."""
        self._keep_far_sides(self._far_sides.look(pids))

    def _keep_far_sides(self, rows: list[Word]) -> None:
        for row in rows:
            self._ledger.detail({"word": "remote", "row": row})

    # ── The last word ─────────────────────────────────────────────────────────────────────────────

    def last_word(self, note: str, *, proven: bool) -> Word:
        """The word ``empty``: no process of the tree is left, as far as the warden can know."""
        now = time.time()
        for row in self.rows.values():
            # Seen alive once, and gone now; its own parent has read its status, so how it ended was not seen.
            gone = "gone by then; its status went to its own parent"
            row.update(ended_at=now, note="; ".join(filter(None, (row.get("note"), gone))))
        return {
            "word": "empty",
            "how": how_of(self.status),
            "status": self.status,
            "pid": self.leader,
            "started_at": self.started_at,
            # Those whose own parent reaped them are gone as well: that is what the empty tree proves.
            "reaped": self.reaped + len(self.rows),
            "rows": (self._done + list(self.rows.values()))[:ROWS_MAX] + self._far_sides.rows,
            "signals": self.signals,
            "note": note,
            "proven": proven,
            "at": now,
        }
