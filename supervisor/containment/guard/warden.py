"""The warden of one process tree: spawns its command, reaps all of it, ends it, and proves that it is gone.

Theory of operation. A warden is a fork of the zygote: one thread, its own session, a *subreaper*, so every
descendant whose parent dies becomes its child, whatever sessions and double forks it made. From that
follows the proof: a non-empty tree has at least one child of the warden (go up from any member; the last
link below the warden is one), so when wait says ECHILD, the tree is gone. A new member can only be forked
by a member.

Spawning. While it has no tree it makes ready what a spawn needs (ready.py): its session, the tree's cgroup, and a
*seed* (seed.py), a child in that cgroup that waits to become the command. The seed is given the command at once and
prepares its execution (command.py), while the warden locks the ledger, looks whether it still may, and writes that it
will; a spawn is then an exec.

It talks with the daemon over a SEQPACKET socket of its own. Requests: ``kill`` with a grace. Words:
``started`` or ``failed``, ``exited`` (the command itself), ``remaining`` (some cannot be killed), ``empty``
(the proof, and what was seen). The same words go into its ledger, which it locks before it spawns.

Ending. With a grace: SIGTERM, then SIGCONT, once to each process of the tree, and then nothing until nobody
is left or the deadline passes; what a SIGTERM handler forks to clean up is not disturbed. (On a terminal SIGHUP
follows at half of the grace: an interactive shell does not heed a SIGTERM.) At the deadline,
in rounds (killing.py): SIGKILL to all own children and their groups, reap, again. Where the tree has a cgroup,
that is killed and removed first, which takes everybody at once, also whom we may not signal; the rounds are then
for who went into another one. A second ``kill`` can only bring the deadline nearer. Who
cannot be killed (another user's, or in an uninterruptible wait) is named, and waited for without an end.

Races, and why each is closed:

* *The kill comes before the spawn*: it waits in the socket, which is read before the command is spawned.
* *The daemon dies before the spawn*: its pidfd and the socket are looked at after the ledger is locked. If
  it dies later, the main loop sees that and kills the tree at once.
* *A pid is recycled*: own children are unreaped, so their pids (and the groups they are in) stay theirs;
  for the others see `procfs.descends_from`. No group of a tree can hold a stranger: groups do not cross
  sessions, and the command began with a session of its own.
* *The command exits before `started` is sent*: one thread sends both, in order, and nothing is reaped in
  between.
* *A SIGCHLD between the reaping and the poll*: it has written to the wake-up pipe, which ends the poll.
* *A kill comes when the tree has just ended*: nobody reads it, and the kernel then tells the daemon of that ahead of
  our last word, which it receives all the same (packets.py), or finds in the ledger.
* *The seed is killed while it waits*: its socket says so, and another takes its place.
* *Without layer 2* (it can be switched off) ECHILD proves nothing; the removed cgroup does, else nothing is claimed.
* *In a namespace* (namespaces.py) orphans fall to its keeper, our child, which reports them; ECHILD comes when it is
  reaped, which the kernel allows only when all of them are gone. It asks and kills for us, all in one step.
* *The warden itself is killed*: the zygote is a subreaper too, gets the orphans, and does the same
  (zygote.py).

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, procfs
from supervisor.containment.guard.command import command_in
from supervisor.containment.guard.killing import Killing, kill_descendant, kill_quietly, signal_name
from supervisor.containment.guard.ledger import ROWS_MAX, SIGNALS_MAX, Ledger, decode, encode, how_of, said
from supervisor.containment.guard.namespaces import Namespace
from supervisor.containment.guard.out_of_reach import SOUGHT_MAX, FarSides
from supervisor.containment.guard.packets import receive
from supervisor.containment.guard.ready import Ready
from supervisor.containment.guard.seed import Seed
from supervisor.containment.guard.survivors import Remaining, began
from supervisor.containment.guard.unix import drain, go_first, go_with_the_others, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

LAST_WORD = 0
"""Exit status of a warden that has written ``empty``; any other end leaves the tree to the zygote."""
REAPED_A_TURN = 256
REMAINING_AFTER_S = 0.5
RETRY_S = 0.05
REMAINING_RETRY_S = 1.0
WAIT_MAX_S = 3600.0
REQUEST_MAX_BYTES = 4096
GROUP_RETRY_S = 0.005
SETTLE_S = 0.005
PAUSE_S = 0.0005
ROUND_PAUSE_MAX_S = 0.003
GROUP_PAUSE_MAX_S = 0.01
GROUP_AGAIN_S = 0.05
GROUP_IDLE_S = 0.05
GROUP_ALONE_S = 0.5
"""How long its cgroup is given to be empty before the rounds over our children begin as well."""
GROUP_MAX_S = 2.0
"""How long a group is tried to be removed after the proof; somebody from outside the tree may sit in it."""
LAYERS = frozenset({"cgroup", "subreaper", "zygote", "marker"})
"""What can be switched off; with all of them a process has to get past each."""
OPTIONAL_LAYERS = frozenset({"namespace"})
"""What has to be asked for."""
KEEPER_ALONE_S = 0.5
"""How long the keeper of a namespace is given to go on if it is stopped, before it is killed, which ends all of it."""


class Warden:
    """One process tree, from the lock of its ledger to its last word. Runs in a process of its own."""

    def __init__(
        self, sock: socket.socket, daemon_pidfd: int, out: int, err: int, spec_fd: int, ledger: Ledger, ready: Ready
    ) -> None:
        self._sock = sock
        self._daemon = daemon_pidfd
        self._out = out
        self._err = err
        self._spec_fd = spec_fd
        self._ledger = ledger
        self._wake = ready.wake
        self._ready = ready
        self._pid = os.getpid()
        self._spec: Word = {}
        self._seed: Seed | None = None
        self._anchor = 0
        self._leader: int | None = None
        self._leader_began = 0.0
        self._status: int | None = None
        self._deadline: float | None = None
        self._asked = False
        self._on_terminal = False
        self._hang_up_at: float | None = None
        self._killing = Killing()
        self._kill_at: float | None = None
        self._remaining = Remaining()
        self._orphaned = False
        self._reaped = 0
        self._rows: dict[int, Word] = {}
        self._done: list[Word] = []
        self._signals: list[Word] = []
        self._note = ""
        self._started_at: float | None = None
        self._group = ready.group
        self._group_removed = False
        self._group_killed_at: float | None = None
        self._pauses = 0
        self._namespace = ready.namespace
        self._namespace_killed = False
        # By either, ECHILD is the proof.
        self._subreaper = "subreaper" in ready.layers or ready.namespace is not None
        self._empty_at: float | None = None
        self._remote = FarSides()

    def run(self) -> None:
        """Spawn, serve and end; returns when the tree is proven empty and the last word is written."""
        refusal = self._refusal()
        if refusal:
            self._ledger.write(self._ready.word)
            self._note = refusal
            self._ready.dismiss()
        else:
            self._spawn()
            if self._leader is not None:
                self._serve()
        self._last_word()

    # ── Starting ──────────────────────────────────────────────────────────────────────────────────

    def _refusal(self) -> str:
        """Why the command must not be spawned; empty if it may."""
        if self._ledger.removed or said(self._ledger.words, "void"):
            return "taken back before it was started"
        self._read_requests()
        if self._orphaned or readable(self._daemon):
            return "the daemon was gone before it was started"
        if self._deadline is not None:
            return "killed before it was started"
        return ""

    def _spawn(self) -> None:
        word: Word = {"word": "spawning", "at": time.time(), "cgroup": self._group, "keeper": self._keeper()}
        self._ledger.write(self._ready.word, word)
        self._started_at, self._leader_began = time.time(), time.monotonic()
        try:
            seed, note = self._become([self._out, self._err, self._spec_fd])
        except OSError as error:
            seed, note = None, f"cannot start a process: {error.strerror}"
        os.close(self._out)
        os.close(self._err)
        if seed is None or note:
            self._note = note
            self._started_at = None
            self._ledger.write({"word": "failed", "note": note, "at": time.time()})
            if self._namespace is not None:
                self._namespace.close()
            if self._group is not None:
                cgroups.end(self._group, GROUP_MAX_S)
            return
        pid = self._leader = seed.pid
        began = procfs.stat(pid)
        self._say(
            {
                "word": "started",
                "pid": pid,
                "start_ticks": began.start_ticks if began is not None else None,
                "at": self._started_at,
                "name": self._spec["argv"][0][:200],
            }
        )
        go_with_the_others(pid)
        self._seed = seed

    def _settle(self, seed: Seed) -> None:
        """What is left to do for a command that runs."""
        self._seed = None
        os.close(self._spec_fd)
        self._anchor = seed.weigh_anchor()
        argv = self._spec["argv"]
        self._on_terminal = "pty" in self._spec
        self._see(seed.pid, argv[0])
        self._name_far_sides(argv)

    def _become(self, fds: list[int]) -> tuple[Seed, str]:
        """Let the seed become the command; returns it, and why it could not. Raises OSError."""
        seed = self._ready.seed
        if seed is not None:
            try:
                return seed, self._grow(seed)
            except ConnectionError:
                # It was killed while it waited, and has not read that it should go.
                seed.dismiss()
        seed = Seed(self._group, self._namespace)
        try:
            # Of one that has ended at once, its socket has the reason.
            with suppress(ConnectionError):
                seed.prepare(fds)
            return seed, self._grow(seed)
        except OSError:
            # Nobody can end in a namespace while somebody of it is not reaped.
            seed.dismiss()
            raise

    def _grow(self, seed: Seed) -> str:
        seed.go()
        # While it does.
        self._spec = command_in(self._spec_fd)
        return seed.outcome()

    def _keeper(self) -> Word | None:
        """Who the first of the tree's namespace is, for whoever finds us dead; None without one."""
        if self._namespace is None:
            return None
        with suppress(OSError):
            self._namespace.open()
        seen = procfs.stat(self._namespace.pid) if self._namespace.pid is not None else None
        return {"pid": seen.pid, "start_ticks": seen.start_ticks} if seen is not None else None

    # ── Serving ───────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        wake = self._wake
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._sock, select.POLLIN)
        poll.register(self._daemon, select.POLLIN)
        keeper = self._namespace.fileno() if self._namespace is not None else -1
        if keeper >= 0:
            poll.register(keeper, select.POLLIN)
        # The command has the processor first, until something happens.
        wait_s: float | None = SETTLE_S
        while True:
            # A millisecond more, not less: a wait that is rounded down would turn the loop until it is over.
            wait_ms = None if wait_s is None else int(min(wait_s, WAIT_MAX_S) * 1000) + (wait_s > 0)
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if self._seed is not None:
                self._settle(self._seed)
            if wake in ready:
                drain(wake)
            if self._daemon in ready:
                self._orphaned = True
            if self._sock.fileno() in ready:
                self._read_requests()
            if self._orphaned and self._daemon >= 0:
                # Nobody is there to ask for a grace, and nobody to wait for: the tree goes at once.
                for fd in (self._daemon, self._sock.fileno()):
                    poll.unregister(fd)
                self._daemon = -1
                self._deadline = time.monotonic()
            if keeper in ready and not self._hear():
                poll.unregister(keeper)
            reaped = self._reap()
            if reaped is None and self._gone():
                return
            busy = reaped is not None and reaped >= REAPED_A_TURN
            if reaped is None and self._subreaper:
                wait_s = GROUP_RETRY_S
                continue
            wait_s = self._end(busy=busy)
            if reaped is None:
                wait_s = GROUP_IDLE_S if wait_s is None else min(wait_s, GROUP_IDLE_S)
            if busy:
                wait_s = 0.0

    def _read_requests(self) -> None:
        """Take all requests that wait; the end of the socket means that the daemon is gone."""
        while readable(self._sock.fileno()):
            try:
                data, _ = receive(self._sock, REQUEST_MAX_BYTES)
            except OSError:
                data = b""
            if not data:
                self._orphaned = True
                return
            request = decode(data)
            if request["word"] == "kill":
                deadline = time.monotonic() + max(0.0, float(request["grace_s"]))
                self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _reap(self) -> int | None:
        """Reap whoever is dead, and say how many. None: nobody is left (ECHILD), which is the proof.

        At most REAPED_A_TURN, or a crowd that is being stopped: a tree that forks and dies as fast as we reap must not
        keep us from killing it.
        """
        most = max(REAPED_A_TURN, self._killing.crowd)
        for count in range(most):
            target = -1
            try:
                if len(self._rows) + len(self._done) < ROWS_MAX:
                    # Looked at before it is reaped: the name of a zombie can still be read.
                    waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if waiting is None:
                        return count
                    self._see(waiting.si_pid, "")
                    target = waiting.si_pid
                pid, raw, usage = os.wait4(target, os.WNOHANG)
            except ChildProcessError:
                if self._namespace is not None:
                    # What its keeper has said before it went.
                    while self._hear():
                        pass
                return None
            if pid == 0:
                return count
            self._killing.reaped(pid)
            if pid == self._anchor:
                self._anchor = 0
                continue
            if self._namespace is not None and pid == self._namespace.pid:
                self._namespace.pid = None
                continue
            status = os.waitstatus_to_exitcode(raw)
            now = time.time()
            self._note_end(pid, status, now)
            if pid == self._leader and self._status is None:
                if self._namespace is not None:
                    self._namespace.leave()
                self._status = status
                self._say(
                    {
                        "word": "exited",
                        "status": status,
                        "at": now,
                        "duration_s": time.monotonic() - self._leader_began,
                        "cpu_s": usage.ru_utime + usage.ru_stime,
                        "max_rss_kb": usage.ru_maxrss,
                    }
                )
        return most

    def _note_end(self, pid: int, status: int, now: float) -> None:
        """One of the tree was reaped."""
        self._reaped += 1
        row = self._rows.pop(pid, None)
        if row is not None:
            row.update(ended_at=now, status=status, how=how_of(status))
            self._done.append(row)
            self._ledger.detail({"word": "reaped", "row": row})

    def _hear(self) -> bool:
        """Take what the keeper has reaped since, at most REAPED_A_TURN; False if it will say no more."""
        assert self._namespace is not None
        for report in self._namespace.reports(REAPED_A_TURN):
            if report is None:
                return False
            raw, _, text = report.decode("utf-8", "replace").partition(" ")
            if not text:
                self._reaped += 1
                continue
            seen = procfs.Stat(int(text.split(" ", 1)[0]), text)
            self._see(seen.pid, "", seen, reaped=True)
            self._note_end(seen.pid, os.waitstatus_to_exitcode(int(raw)), time.time())
        return True

    def _see(self, pid: int, name: str, seen: procfs.Stat | None = None, *, reaped: bool = False) -> None:
        """Open a row for a process of the tree; the oldest ROWS_MAX have one."""
        if pid in self._rows or len(self._rows) + len(self._done) >= ROWS_MAX or self._is_ours(pid):
            return
        seen = seen or procfs.stat(pid)
        if seen is None:
            return
        if not name:
            # One that its keeper has reaped has a number that may be somebody else's by now.
            words = [] if reaped else procfs.command_line(pid)
            self._name_far_sides(words or ([seen.name] if seen.dead else []))
        leader = self._leader if self._status is None else None
        self._rows[pid] = {
            "name": os.path.basename(name) or seen.name,
            "pid": pid,
            "started_at": began(seen, leader, self._started_at),
            "ended_at": None,
            "how": None,
            "status": None,
            "signals": [],
        }

    # ── Ending ────────────────────────────────────────────────────────────────────────────────────

    def _end(self, *, busy: bool) -> float | None:
        """Take the next step of the ladder; returns the seconds until the one after, None for no such step.

        `busy`: there are more dead to be reaped.
        """
        if self._deadline is None:
            return None
        now = time.monotonic()
        if now < self._deadline:
            if not self._asked:
                self._asked = True
                self._hang_up_at = now + (self._deadline - now) / 2 if self._on_terminal else None
                self._ask()
            if self._hang_up_at is not None and now >= self._hang_up_at:
                self._hang_up_at = None
                self._ask(signal.SIGHUP)
            return min(self._deadline, self._hang_up_at or self._deadline) - now
        if self._kill_at is None:
            self._kill_at = now
            if self._anchor:
                # In a crowd its end would have to wait, and the proof for it.
                go_first(self._anchor)
            self._look_for_far_sides()
        if self._group is not None and not self._kill_group(self._group) and now - self._kill_at < GROUP_ALONE_S:
            return self._pause(GROUP_PAUSE_MAX_S)
        if busy and self._group_removed and now - self._kill_at < GROUP_ALONE_S:
            # The dead of the group are there to be reaped. Who escaped from it comes after them.
            return 0.0
        if self._namespace is not None and not self._namespace_killed:
            self._namespace_killed = True
            self._tell_all(self._namespace, signal.SIGKILL)
        # Where they are now: those in a group that is killed get the signal with it.
        spare = self._spared(now - self._kill_at)
        rows = self._rows if self._killing.fresh(spare) else ()
        at = {pid: seen for pid in rows if (seen := procfs.stat(pid)) is not None}
        fresh, refused = self._killing.round(spare)
        for pid in fresh:
            self._see(pid, "")
            if (pid in self._rows or pid in refused) and not (pid in at and at[pid].dead):
                self._signalled(pid, signal.SIGKILL, refused.get(pid))
        for pid, seen in at.items():
            if seen.pgid in self._killing.groups and pid not in fresh and not seen.dead:
                self._signalled(pid, signal.SIGKILL, None)
        if fresh or self._killing.stopping:
            return 0.0
        if now - self._kill_at < GROUP_ALONE_S:
            return self._pause(ROUND_PAUSE_MAX_S)
        if now - self._kill_at >= REMAINING_AFTER_S:
            self._say_remaining()
        return REMAINING_RETRY_S if self._remaining.times else RETRY_S

    def _say_remaining(self) -> None:
        """Name who is left, for the receipt that does not wait for them for ever."""
        left = [pid for pid in dict.fromkeys([*self._members(), *procfs.descendants()]) if not self._is_ours(pid)]
        leader = self._leader if self._status is None else None
        word = self._remaining.word(left, self._killing.refused, time.time(), leader, self._started_at)
        if word is not None:
            self._note = word["note"]
            self._say(word)

    def _pause(self, most_s: float) -> float:
        """Sleep a little, more each time: to be woken by each of a thousand deaths would slow them down."""
        self._pauses += 1
        time.sleep(min(PAUSE_S * self._pauses, most_s))
        return 0.0

    def _kill_group(self, group: str) -> bool:
        """Kill everybody in the tree's cgroup and remove it; True once that succeeded.

        The rounds over our children come after it: for who went into another group, and to reap.
        """
        now = time.monotonic()
        if self._group_killed_at is None:
            for pid in self._members():
                self._see(pid, "")
            # Only who is in it now is said to have got the signal.
            inside = [pid for below in cgroups.groups_below(group) for pid in cgroups.pids_in(below)]
            cgroups.kill(group)
            self._group_killed_at = now
            for pid in inside:
                if pid in self._rows or not self._signals:
                    self._signalled(pid, signal.SIGKILL, None)
        elif now - self._group_killed_at >= GROUP_AGAIN_S:
            # Whoever came into it since; those that are dying need the processor more than we do.
            cgroups.kill(group)
            self._group_killed_at = now
        return self._remove_group(group)

    def _remove_group(self, group: str) -> bool:
        if not cgroups.remove(group):
            return False
        self._group = None
        self._group_removed = True
        return True

    def _members(self) -> list[int]:
        """Our children, and of those in the tree's cgroup whoever is not below us: somebody only without layer 2."""
        members = procfs.own_children()
        if self._namespace is not None and self._namespace.pid is not None:
            members += procfs.children(self._namespace.pid)
        if self._group is not None and not self._subreaper:
            known = set(members)
            inside = [pid for below in cgroups.groups_below(self._group) for pid in cgroups.pids_in(below)]
            members += [pid for pid in inside if pid not in known]
        return members

    def _gone(self) -> bool:
        """No child is left; True if that is all there is to wait for.

        As a subreaper we know that the tree is gone, and remove its cgroup, with who came from outside into it.
        Without that the cgroup is the proof, and who is in it may go on until it is to be killed.
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
        self._note = "its cgroup could not be removed: a process that is not of this tree is in it"
        return True

    def _ask(self, politely: int = signal.SIGTERM) -> None:
        """SIGTERM (or what is given) and SIGCONT, once to each process of the tree.

        Groups with a child of ours in them are signalled as groups, so a fork in that moment is not missed;
        each process outside of them by itself. Who would refuse a signal in a group is found by asking with 0.
        In a namespace its keeper signals all of them, which misses no fork either.
        """
        if self._namespace is not None:
            self._tell_all(self._namespace, politely, signal.SIGCONT)
            return
        own = set(procfs.own_children())
        everybody = []
        ours = os.getpgrp()
        in_group: dict[int, int] = {}
        for pid in procfs.descendants():
            self._see(pid, "")
            seen = procfs.stat(pid)
            if seen is None:
                continue
            in_group[pid] = seen.pgid
            if not seen.dead:
                # Who has ended by itself was not asked.
                everybody.append(pid)
        groups = {in_group[pid] for pid in own if pid in in_group and in_group[pid] != ours}
        for number in (politely, signal.SIGCONT):
            for group in groups:
                try:
                    os.killpg(group, number)
                except OSError:
                    continue
            for pid in everybody:
                effective = 0 if in_group.get(pid) in groups else int(number)
                if pid in own:
                    error = kill_quietly(pid, effective)
                else:
                    still_ours, error = kill_descendant(pid, effective)
                    if effective and not still_ours:
                        continue
                    # Where its group was signalled it was one of those who got it, also if it is gone by now.
                self._signalled(pid, number, error)
            if self._group is not None:
                self._ask_strangers(self._group, set(everybody), number)

    def _tell_all(self, namespace: Namespace, *numbers: int) -> None:
        """Have everybody in the namespace signalled, and record it of those who are seen now, and have not ended."""
        everybody = [pid for pid in procfs.descendants() if not self._is_ours(pid)]
        for pid in everybody:
            self._see(pid, "")
        by_itself = {pid for pid in self._rows if (seen := procfs.stat(pid)) is not None and seen.dead}
        for number in numbers:
            namespace.signal(number)
            for pid in everybody:
                if pid not in by_itself and (number != signal.SIGKILL or pid in self._rows):
                    self._signalled(pid, number, None)

    def _is_ours(self, pid: int) -> bool:
        """True of whom we have made for ourselves, who is not of the tree."""
        return pid == self._anchor or (self._namespace is not None and pid == self._namespace.pid)

    def _spared(self, since_s: float) -> set[int]:
        """The keeper, which ends when it has reaped all that it was told to kill, unless somebody has stopped it."""
        keeper = self._namespace.pid if self._namespace is not None else None
        if keeper is None:
            return set()
        seen = procfs.stat(keeper) if since_s >= KEEPER_ALONE_S else None
        return set() if seen is not None and seen.state in "Tt" else {keeper}

    def _ask_strangers(self, group: str, known: set[int], number: int) -> None:
        """Signal those in the tree's cgroup that do not descend from us: somebody only without layer 2."""
        for below in cgroups.groups_below(group):
            for pid in cgroups.pids_in(below):
                if pid not in known and cgroups.signal_member(pid, below, number):
                    self._signalled(pid, number, None)

    def _signalled(self, pid: int, number: int, error: str | None) -> None:
        """Record a signal: with its process, and, the first of its kind or refused, with the tree."""
        if self._is_ours(pid):
            # It is in the groups that are signalled; the tree may have ended by itself all the same.
            return
        word: Word = {"signal": signal_name(number), "at": time.time(), "error": error}
        row = self._rows.get(pid)
        if row is not None and len(row["signals"]) < SIGNALS_MAX:
            last = row["signals"][-1] if row["signals"] else word
            if number == signal.SIGKILL and last is not word and last["signal"] == "SIGKILL" and last["error"] is None:
                return  # Who was killed with the group and is not reaped yet is met again by the rounds.
            row["signals"].append(word)
        first = all(known["signal"] != word["signal"] for known in self._signals)
        if (first or error) and len(self._signals) < SIGNALS_MAX:
            self._signals.append(word)
            self._ledger.detail({"word": "signal", "signal": word})

    def _name_far_sides(self, argv: list[str]) -> None:
        """Keep a row for each command whose work is done elsewhere, where killing it does not reach."""
        self._keep_far_sides(self._remote.see(argv))

    def _keep_far_sides(self, rows: list[Word]) -> None:
        for row in rows:
            # Whoever finishes our work has to know it, and cannot ask the dead.
            self._ledger.detail({"word": "remote", "row": row})

    def _look_for_far_sides(self) -> None:
        """Before they are killed: the dead have no command line, and most of a tree is met only when it is dead."""
        if self._group is not None:
            there = [pid for below in cgroups.groups_below(self._group) for pid in cgroups.pids_in(below)]
        else:
            there = procfs.descendants(most=SOUGHT_MAX)
        self._keep_far_sides(self._remote.look(there))

    # ── Words ─────────────────────────────────────────────────────────────────────────────────────

    def _say(self, word: Word) -> None:
        """Write the word down, then send it. The daemon may be gone: the ledger is for whoever comes after it."""
        self._ledger.write(word)
        self._send(word)

    def _send(self, word: Word) -> None:
        try:
            self._sock.send(encode(word))
        except OSError:
            self._orphaned = True

    def _last_word(self) -> None:
        now = time.time()
        for row in self._rows.values():
            # Seen alive once, and gone now; its own parent has read its status, so how it ended was not seen.
            row.update(ended_at=now, note="gone by then; its status went to its own parent")
        self._say(
            {
                "word": "empty",
                "how": how_of(self._status),
                "status": self._status,
                "pid": self._leader,
                "started_at": self._started_at,
                # Those whose own parent reaped them are gone as well: that is what the empty tree proves.
                "reaped": self._reaped + len(self._rows),
                "rows": (self._done + list(self._rows.values()))[:ROWS_MAX] + self._remote.rows,
                "signals": self._signals,
                "note": self._note or self._no_proof(),
                "proven": self._leader is None or self._subreaper or self._group_removed,
                "at": now,
            }
        )

    def _no_proof(self) -> str:
        if self._leader is None or self._subreaper or self._group_removed:
            return ""
        return "nothing proves that no process got away: the subreaper layer is off, and there is no cgroup"


def main(
    sock: socket.socket,
    daemon_pidfd: int,
    out: int,
    err: int,
    spec_fd: int,
    ledger_path: str,
    ready: Ready | None = None,
) -> int:
    """Be a warden: the body of the child that the zygote has forked. Returns the exit status.

    `ready`: what was made ready for it; None: with all layers but a cgroup.
    All descriptors are this process's own copies. Raises nothing that the zygote would survive to see: the
    caller turns every exception into an exit.
    """
    ready = ready or Ready(LAYERS, None)
    ready.prepare([out, err, spec_fd])
    try:
        ledger = Ledger.lock(ledger_path, wait=True)
    except OSError:
        # Forgotten before it began: nobody waits for a word of it.
        ready.dismiss()
        return LAST_WORD
    assert ledger is not None
    Warden(sock, daemon_pidfd, out, err, spec_fd, ledger, ready).run()
    return LAST_WORD
