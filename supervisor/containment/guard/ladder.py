"""The ladder: the steps by which a warden ends its tree, from a polite signal to rounds of SIGKILL.

With a grace: SIGTERM, then SIGCONT, once to each process of the tree, and then nothing until no process is left or the
deadline passes; a process that a SIGTERM handler forks to clean up is not disturbed. (On a terminal SIGHUP follows at
half of the grace, since an interactive shell ignores SIGTERM.)

At the deadline, in rounds (killing.py): SIGKILL to all own children and their groups, reap, again. If the tree has a
cgroup, that is killed and removed first. This kills every process in it at once, also those we may not signal; the
rounds are then for processes that went into another group. A later request can only bring the deadline nearer.

A process that cannot be killed (another user's, or in an uninterruptible wait) is named, and waited for without limit.

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.guard.killing import Killing, kill_descendant, kill_quietly
from supervisor.containment.guard.ledger import ROWS_MAX
from supervisor.containment.guard.moment import Moment, forked_before
from supervisor.containment.guard.out_of_reach import SOUGHT_MAX
from supervisor.containment.guard.survivors import Survivors
from supervisor.containment.guard.unix import go_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, TypeAlias

    from supervisor.containment.guard.namespaces import Namespace
    from supervisor.containment.guard.tree_record import TreeRecord

    Word: TypeAlias = dict[str, Any]

REMAINING_AFTER_S = 0.5
RETRY_S = 0.05
REMAINING_RETRY_S = 1.0
PAUSE_S = 0.0005
ROUND_PAUSE_MAX_S = 0.003
GROUP_PAUSE_MAX_S = 0.01
GROUP_AGAIN_S = 0.05
GROUP_ALONE_S = 0.5
"""How long to wait for the cgroup to be empty before the rounds over our children begin as well."""
GROUP_MAX_S = 2.0
"""How long to try to remove a group after the proof; a process from outside the tree may be in it."""
KEEPER_ALONE_S = 0.5
"""After so long a stopped keeper of a namespace is killed, which kills the whole namespace."""


class Ladder:
    """The end of one tree.

    Args:
        record: what the warden has seen of the tree.
        group: the tree's cgroup, if it has one.
        namespace: its PID namespace, if it has one.
        subreaper: the orphans of the tree fall to us, so ECHILD is the proof.
        say: called with the word ``remaining``.
    """

    def __init__(
        self,
        record: TreeRecord,
        group: str | None,
        namespace: Namespace | None,
        *,
        subreaper: bool,
        say: Callable[[Word], None],
    ) -> None:
        self._record = record
        self._group = group
        self._namespace = namespace
        self._subreaper = subreaper
        self._say = say
        self.deadline: float | None = None
        """When the tree is killed (monotonic); None: it is not being ended."""
        self.on_terminal = False
        self.killing = Killing()
        self.group_removed = False
        self.note = ""
        """Why the end is not clean; empty if it is."""
        self._asked = False
        self._hang_up_at: float | None = None
        self._kill_at: float | None = None
        self._remaining = Survivors()
        self._group_killed_at: float | None = None
        self._pauses = 0
        self._namespace_killed = False
        self._empty_at: float | None = None

    def step(self, *, busy: bool) -> float | None:
        """Take the next step of the ladder; returns the seconds until the next one, None if there is none.

        `busy`: more dead processes are to be reaped.
        """
        if self.deadline is None:
            return None
        now = time.monotonic()
        if now < self.deadline:
            if not self._asked:
                self._asked = True
                self._hang_up_at = now + (self.deadline - now) / 2 if self.on_terminal else None
                self._ask()
            if self._hang_up_at is not None and now >= self._hang_up_at:
                self._hang_up_at = None
                self._ask(signal.SIGHUP)
            return min(self.deadline, self._hang_up_at or self.deadline) - now
        if self._kill_at is None:
            self._kill_at = now
            if self._record.holder:
                # Among many processes its end would be late, and delay the proof.
                go_first(self._record.holder)
            self._record_living()
        if self._group is not None and not self._kill_group(self._group) and now - self._kill_at < GROUP_ALONE_S:
            return self._pause(GROUP_PAUSE_MAX_S)
        if busy and self.group_removed and now - self._kill_at < GROUP_ALONE_S:
            # First the dead of the group are reaped. The processes that left the group come after that.
            return 0.0
        if self._namespace is not None and not self._namespace_killed:
            self._namespace_killed = True
            self._signal_all(self._namespace, signal.SIGKILL)
        # Read their groups now: a process in a group that is killed gets the signal with it.
        spare = self._spared(now - self._kill_at)
        rows = self._record.rows if self.killing.fresh(spare) else ()
        at = {pid: seen for pid in rows if (seen := procfs.stat(pid)) is not None}
        fresh, refused = self.killing.round(spare)
        for pid in fresh:
            self._record.see(pid)
            if (pid in self._record.rows or pid in refused) and not (pid in at and at[pid].dead):
                self._record.signalled(pid, signal.SIGKILL, refused.get(pid))
        for pid, seen in at.items():
            if seen.pgid in self.killing.groups and pid not in fresh and not seen.dead:
                self._record.signalled(pid, signal.SIGKILL, None)
        if fresh or self.killing.stopping:
            return 0.0
        if now - self._kill_at < GROUP_ALONE_S:
            return self._pause(ROUND_PAUSE_MAX_S)
        if now - self._kill_at >= REMAINING_AFTER_S:
            self._say_remaining()
        return REMAINING_RETRY_S if self._remaining.times else RETRY_S

    def _say_remaining(self) -> None:
        """Name the survivors, for a receipt that does not wait for them for ever."""
        record = self._record
        left = [pid for pid in dict.fromkeys([*self._members(), *procfs.descendants()]) if not record.is_ours(pid)]
        word = self._remaining.word(left, self.killing.refused, time.time(), record.living_leader, record.started_at)
        if word is not None:
            self.note = word["note"]
            self._say(word)

    def _pause(self, most_s: float) -> float:
        """Sleep a little, more each time: waking up for each of a thousand deaths would slow them down."""
        self._pauses += 1
        time.sleep(min(PAUSE_S * self._pauses, most_s))
        return 0.0

    def _kill_group(self, group: str) -> bool:
        """Kill every process in the tree's cgroup and remove it; True once that succeeded."""
        now = time.monotonic()
        if self._group_killed_at is None:
            for pid in self._members():
                self._record.see(pid)
            # A signal is recorded only of a process that is in it now.
            inside = cgroups.pids_below(group)
            cgroups.kill(group)
            self._group_killed_at = now
            for pid in inside:
                if pid in self._record.rows or not self._record.signals:
                    self._record.signalled(pid, signal.SIGKILL, None)
        elif now - self._group_killed_at >= GROUP_AGAIN_S:
            # For processes that entered it since. Not more often: the dying need the processor more than we do.
            cgroups.kill(group)
            self._group_killed_at = now
        return self._remove_group(group)

    def _remove_group(self, group: str) -> bool:
        if not cgroups.remove(group):
            return False
        self._group = None
        self.group_removed = True
        return True

    def _members(self) -> list[int]:
        """Our children; without the subreaper also processes in the tree's cgroup that are not below us."""
        members = procfs.own_children()
        if self._namespace is not None and self._namespace.pid is not None:
            members += procfs.children(self._namespace.pid)
        if self._group is not None and not self._subreaper:
            known = set(members)
            inside = cgroups.pids_below(self._group)
            members += [pid for pid in inside if pid not in known]
        return members

    def gone(self) -> bool:
        """To be called when no child is left; True if there is nothing more to wait for.

        As a subreaper we know that the tree is gone, and remove its cgroup, killing any process from outside in it.
        Otherwise the cgroup is the proof, and a process in it may go on until the deadline.
        """
        if self._group is None or self._remove_group(self._group):
            return True
        now = time.monotonic()
        self._empty_at = now if self._empty_at is None else self._empty_at
        if not self._subreaper:
            return False
        cgroups.kill(self._group)
        if now - self._empty_at < GROUP_MAX_S:
            return False
        self.note = "its cgroup could not be removed: a process that is not of this tree is in it"
        return True

    def _ask(self, politely: int = signal.SIGTERM) -> None:
        """Send SIGTERM (or `politely`) and SIGCONT, once to each process that exists before the first of them is sent.

        A group with a child of ours in it is signalled as a group, so a fork at that moment is not missed; other
        processes one by one. Signal 0 finds a process in a group that would refuse the signal. A process that a SIGTERM
        handler forks gets no signal: it may be there to clean up. In a namespace the keeper signals all processes,
        which misses no fork either.
        """
        if self._namespace is not None:
            self._signal_all(self._namespace, politely, signal.SIGCONT)
            return
        own = set(procfs.own_children())
        inside = self._inside()
        there = self._look(inside)
        ours = os.getpgrp()
        groups = {there[pid].pgid for pid in own if pid in there} - {ours}
        # A process that has ended by itself gets no signal.
        living = {pid: seen for pid, seen in there.items() if not seen.dead}
        for number in (politely, signal.SIGCONT):
            before = Moment()
            for group in groups:
                with suppress(OSError):
                    os.killpg(group, number)
            if groups and number == politely:
                living.update(self._forked_meanwhile(there, groups, number, before, Moment()))
            for pid, seen in living.items():
                effective = 0 if seen.pgid in groups else int(number)
                if pid in own:
                    error = kill_quietly(pid, effective)
                else:
                    still_ours, error = kill_descendant(pid, effective)
                    if effective and not still_ours:
                        # Without the subreaper, processes in the cgroup may not descend from us.
                        still_ours = pid in inside and cgroups.signal_member(pid, inside[pid], number)
                    if effective and not still_ours:
                        continue
                    # If its group was signalled it got the signal too, even if it is gone by now.
                self._record.signalled(pid, number, error)

    def _inside(self) -> dict[int, str]:
        """The group of each process in the tree's cgroup and below, by pid; empty without a cgroup."""
        if self._group is None:
            return {}
        return {pid: below for below in cgroups.groups_below(self._group) for pid in cgroups.pids_in(below)}

    def _look(self, inside: Collection[int]) -> dict[int, procfs.Stat]:
        """The processes of the tree, dead ones included, and any other process in its cgroup."""
        there = {}
        below = procfs.descendants()
        known = set(below)
        for pid in [*below, *(pid for pid in inside if pid not in known)]:
            if pid in known or not self._subreaper or procfs.descends_from(pid, os.getpid()):
                self._record.see(pid)
            seen = procfs.stat(pid)
            if seen is not None:
                there[pid] = seen
        return there

    def _forked_meanwhile(
        self, known: Collection[int], groups: Collection[int], number: int, before: Moment, after: Moment
    ) -> dict[int, procfs.Stat]:
        """Look again after groups were signalled; returns processes forked since the first look that got the signal.

        Those that may have got it are recorded as such. The signal was sent between `before` and `after`.
        """
        fresh = [seen for pid in procfs.descendants() if pid not in known and (seen := procfs.stat(pid)) is not None]
        now, got = Moment(), {}
        for seen in fresh:
            in_time = forked_before(seen, before, after, now)
            if in_time is False:
                continue
            self._record.see(seen.pid)
            if in_time and seen.pgid in groups and not seen.dead:
                got[seen.pid] = seen
            else:
                # It may have ended before the signal, or changed its group since.
                self._record.may_have_got(seen.pid, number)
        return got

    def _signal_all(self, namespace: Namespace, *numbers: int) -> None:
        """Signal all processes of the namespace, and record it for those that are alive now."""
        below = [pid for pid in procfs.descendants() if not self._record.is_ours(pid)]
        for pid in below:
            self._record.see(pid)
        by_itself = {pid for pid in self._record.rows if (seen := procfs.stat(pid)) is not None and seen.dead}
        for number in numbers:
            namespace.signal(number)
            for pid in below:
                if pid not in by_itself and (number != signal.SIGKILL or pid in self._record.rows):
                    self._record.signalled(pid, number, None)

    def _spared(self, since_s: float) -> set[int]:
        """The keeper, unless a signal has stopped it: it ends by itself when it has reaped all its children."""
        keeper = self._namespace.pid if self._namespace is not None else None
        if keeper is None:
            return set()
        seen = procfs.stat(keeper) if since_s >= KEEPER_ALONE_S else None
        return set() if seen is not None and seen.state in "Tt" else {keeper}

    def _record_living(self) -> None:
        """Record the processes before they are killed: a dead one has no command line, or is not seen at all."""
        for pid in procfs.descendants(most=ROWS_MAX):
            self._record.see(pid)
        there = cgroups.pids_below(self._group) if self._group is not None else procfs.descendants(most=SOUGHT_MAX)
        self._record.find_out_of_reach(there)
