"""The warden of one process tree: spawns its command, reaps all of it, ends it, and proves that it is gone.

Theory of operation. A warden is a fork of the zygote: one thread, its own session, a *subreaper*, so every
descendant whose parent dies becomes its child, whatever sessions and double forks it made. From that
follows the proof: a non-empty tree has at least one child of the warden (go up from any member; the last
link below the warden is one), so when wait says ECHILD, the tree is gone. A new member can only be forked
by a member.

Spawning. While it has no tree it prepares what a spawn needs (ready.py): its session, the tree's cgroup, and a
*preforked* child (preforked.py) in that cgroup that waits to become the command. The child gets the command at once
and prepares its execution (command.py). Meanwhile the warden locks the ledger, checks that it still may spawn, and
records that it will; a spawn is then an exec.

It talks with the daemon over a SEQPACKET socket of its own. Requests: ``kill`` with a grace, ``nice``. Words:
``started`` or ``failed``, ``exited`` (the command itself), ``remaining`` (some cannot be killed), ``empty``
(the proof, and what was seen). The same words go into its ledger, which it locks before it spawns.

Ending: see ladder.py. It records the tree's processes in tree_record.py, and makes its last word from that.

Races, and why each is closed:

* *The kill comes before the spawn*: it waits in the socket, which is read before the command is spawned.
* *The daemon dies before the spawn*: its pidfd and the socket are checked after the ledger is locked. If
  it dies later, the main loop sees that and kills the tree at once.
* *A pid is reused*: own children are unreaped, so their pids (and their groups) stay theirs; for the others see
  `procfs.descends_from`. No group of a tree can hold a stranger: groups do not cross sessions, and the command
  began with a session of its own.
* *The command exits before `started` is sent*: one thread sends both, in order, and nothing is reaped in
  between.
* *A SIGCHLD between the reaping and the poll*: it has written to the wake-up pipe, which ends the poll.
* *A kill comes when the tree has just ended*: it is never read, and the kernel reports that to the daemon ahead of our
  last word, which the daemon receives all the same (packets.py), or finds in the ledger.
* *The preforked child is killed while it waits*: its socket shows that, and another takes its place.
* *Without the subreaper* (it can be switched off) ECHILD proves nothing; the removed cgroup does, else nothing is
  claimed.
* *In a namespace* (namespaces.py) orphans fall to its keeper, our child, which reports them; ECHILD comes when it is
  reaped, which the kernel allows only when all of them are gone. It signals them for us, all in one step.
* *The warden itself is killed*: the zygote is a subreaper too, gets the orphans, and does the same
  (zygote.py).

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress

from supervisor.containment.guard import cgroups, niceness, procfs, unix
from supervisor.containment.guard.command import command_in
from supervisor.containment.guard.ladder import GROUP_MAX_S, Ladder
from supervisor.containment.guard.ledger import Ledger, decode, encode, said
from supervisor.containment.guard.packets import receive
from supervisor.containment.guard.preforked import Preforked
from supervisor.containment.guard.ready import Ready
from supervisor.containment.guard.survivors import ENDED_LATE, LEFT
from supervisor.containment.guard.tree_record import TreeRecord
from supervisor.containment.guard.unix import drain, go_with_the_others, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

SPEC = 2
"""The index of the command itself among its descriptors."""
LAST_WORD = 0
"""Exit status of a warden that leaves nothing to prove; any other end leaves the tree to the zygote."""
REAPED_A_TURN = 256
WAIT_MAX_S = 3600.0
REQUEST_MAX_BYTES = 4096
GROUP_RETRY_S = 0.005
GROUP_IDLE_S = 0.05
SETTLE_S = 0.005
LAYERS = frozenset({"cgroup", "subreaper", "zygote", "marker"})
"""Layers that are on unless switched off; to escape, a process has to get past each."""
OPTIONAL_LAYERS = frozenset({"namespace"})
"""Layers that are off unless asked for."""


class Warden:
    """One process tree, from the lock of its ledger to its last word. Runs in a process of its own."""

    def __init__(self, sock: socket.socket, daemon_pidfd: int, fds: list[int], ledger: Ledger, ready: Ready) -> None:
        self._sock = sock
        self._daemon = daemon_pidfd
        self._fds = fds
        self._ledger = ledger
        self._wake = ready.wake
        self._ready = ready
        self._spec: Word = {}
        self._preforked: Preforked | None = None
        self._leader_began = 0.0
        self._orphaned = False
        self._nice = 0
        self._wanted_nice: int | None = None
        self._record = TreeRecord(ledger, ready.namespace)
        self._note = ""
        self._group = ready.group
        self._namespace = ready.namespace
        # With either of them ECHILD is the proof.
        self._subreaper = "subreaper" in ready.layers or ready.namespace is not None
        self._ladder = Ladder(self._record, ready.group, ready.namespace, subreaper=self._subreaper, say=self._say)

    def run(self) -> None:
        """Spawn, serve and end; returns when the tree is proven empty and the last word is written."""
        refusal = self._refusal()
        if refusal:
            self._ledger.write(self._ready.word)
            self._note = refusal
            self._ready.dismiss()
        else:
            self._spawn()
            if self._record.leader is not None:
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
        if self._ladder.deadline is not None:
            return "killed before it was started"
        return ""

    def _spawn(self) -> None:
        word: Word = {"word": "spawning", "at": time.time(), "cgroup": self._group, "keeper": self._keeper()}
        self._ledger.write(self._ready.word, word)
        self._record.started_at, self._leader_began = time.time(), time.monotonic()
        try:
            child, note = self._become(self._fds)
        except OSError as error:
            child, note = None, f"cannot start a process: {error.strerror}"
        for index, fd in enumerate(self._fds):
            if index != SPEC:
                # So that their end means that no process of the tree has them open.
                os.close(fd)
        if child is None or note:
            self._note = note
            self._record.started_at = None
            self._ledger.write({"word": "failed", "note": note, "at": time.time()})
            if self._namespace is not None:
                self._namespace.close()
            if self._group is not None:
                cgroups.end(self._group, GROUP_MAX_S)
            return
        pid = self._record.leader = child.pid
        began = procfs.stat(pid)
        self._say(
            {
                "word": "started",
                "pid": pid,
                "start_ticks": began.start_ticks if began is not None else None,
                "at": self._record.started_at,
                "name": self._spec["argv"][0][:200],
            }
        )
        self._nice = unix.niceness(self._spec.get("nice", 0))
        go_with_the_others(pid, self._nice)
        self._preforked = child
        self._renice()

    def _settle(self, child: Preforked) -> None:
        """Do what can wait until the command runs."""
        self._preforked = None
        os.close(self._fds[SPEC])
        self._record.holder = child.release_holder()
        argv = self._spec["argv"]
        self._ladder.on_terminal = "pty" in self._spec
        self._record.see(child.pid, argv[0])
        self._record.name_out_of_reach(argv)

    def _become(self, fds: list[int]) -> tuple[Preforked, str]:
        """Let the preforked child become the command; returns it, and why it could not. Raises OSError."""
        child = self._ready.preforked
        if child is not None:
            try:
                return child, self._execute(child)
            except ConnectionError:
                # It was killed while it waited, and has not executed the command.
                child.dismiss()
        child = Preforked(self._group, self._namespace)
        try:
            # If it has ended already, its socket has the reason.
            with suppress(ConnectionError):
                child.prepare(fds)
            return child, self._execute(child)
        except OSError:
            # The keeper of a namespace cannot be reaped while another process in it is not.
            child.dismiss()
            raise

    def _execute(self, child: Preforked) -> str:
        child.go()
        # Read the command meanwhile.
        self._spec = command_in(self._fds[SPEC])
        return child.outcome()

    def _keeper(self) -> Word | None:
        """The first process of the tree's namespace, for a daemon or zygote that finds us dead; None without one."""
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
        # Leave the processor to the command at first, unless something happens.
        wait_s: float | None = SETTLE_S
        while True:
            # Rounded up: a wait that is rounded down would make the loop spin until it is over.
            wait_ms = None if wait_s is None else int(min(wait_s, WAIT_MAX_S) * 1000) + (wait_s > 0)
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if self._preforked is not None:
                self._settle(self._preforked)
            if wake in ready:
                drain(wake)
            if self._daemon in ready:
                self._orphaned = True
            if self._sock.fileno() in ready:
                self._read_requests()
            if self._orphaned and self._daemon >= 0:
                # No daemon can ask for a grace or waits for the end any more: kill the tree at once.
                for fd in (self._daemon, self._sock.fileno()):
                    poll.unregister(fd)
                self._daemon = -1
                self._ladder.deadline = time.monotonic()
            if keeper in ready and not self._hear():
                poll.unregister(keeper)
            reaped = self._reap()
            if reaped is None and self._ladder.gone():
                return
            busy = reaped is not None and reaped >= REAPED_A_TURN
            if reaped is None and self._subreaper:
                wait_s = GROUP_RETRY_S
                continue
            wait_s = self._ladder.step(busy=busy)
            if reaped is None:
                wait_s = GROUP_IDLE_S if wait_s is None else min(wait_s, GROUP_IDLE_S)
            if busy:
                wait_s = 0.0

    def _read_requests(self) -> None:
        """Read all waiting requests; the end of the socket means that the daemon is gone."""
        while readable(self._sock.fileno()):
            try:
                data, _ = receive(self._sock, REQUEST_MAX_BYTES)
            except OSError:
                data = b""
            if not data:
                self._orphaned = True
                return
            request = decode(data)
            if request["word"] == "nice":
                self._wanted_nice = request["nice"]
                self._renice()
            if request["word"] == "kill":
                deadline = time.monotonic() + max(0.0, float(request["grace_s"]))
                earlier = self._ladder.deadline
                self._ladder.deadline = deadline if earlier is None else min(earlier, deadline)

    def _renice(self) -> None:
        """Apply the last requested nice value, once there is a command."""
        if self._wanted_nice is None or self._record.leader is None:
            return
        before, self._nice = self._nice, unix.niceness(self._wanted_nice)
        self._wanted_nice = None
        niceness.change(before, self._nice)

    def _reap(self) -> int | None:
        """Reap the dead, and return how many. None: no child is left (ECHILD), which is the proof.

        At most REAPED_A_TURN, or as many as are being stopped: a tree that forks and dies as fast as we reap must not
        keep us from killing it.
        """
        most = max(REAPED_A_TURN, self._ladder.killing.crowd)
        for count in range(most):
            target = -1
            try:
                if not self._record.full:
                    # Read it before it is reaped: a zombie still has its name.
                    waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if waiting is None:
                        return count
                    self._record.see(waiting.si_pid)
                    target = waiting.si_pid
                pid, raw, usage = os.wait4(target, os.WNOHANG)
            except ChildProcessError:
                if self._namespace is not None:
                    # Read the keeper's last reports.
                    while self._hear():
                        pass
                return None
            if pid == 0:
                return count
            self._ladder.killing.reaped(pid)
            if pid == self._record.holder:
                self._record.holder = 0
                continue
            if self._namespace is not None and pid == self._namespace.pid:
                self._namespace.pid = None
                continue
            status = os.waitstatus_to_exitcode(raw)
            now = time.time()
            self._record.ended(pid, status, now)
            if pid == self._record.leader and self._record.status is None:
                if self._namespace is not None:
                    self._namespace.leave()
                self._record.status = status
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

    def _hear(self) -> bool:
        """Read the keeper's reports, at most REAPED_A_TURN; False if no more will come."""
        assert self._namespace is not None
        for report in self._namespace.reports(REAPED_A_TURN):
            if report is None:
                return False
            raw, _, text = report.decode("utf-8", "replace").partition(" ")
            if not text:
                self._record.reaped += 1
                continue
            seen = procfs.Stat(int(text.split(" ", 1)[0]), text)
            self._record.see(seen.pid, "", seen, reaped=True)
            self._record.ended(seen.pid, os.waitstatus_to_exitcode(int(raw)), time.time())
        return True

    # ── Words ─────────────────────────────────────────────────────────────────────────────────────

    def _say(self, word: Word) -> None:
        """Write the word to the ledger, then send it. If the daemon is gone, the next one reads the ledger."""
        self._ledger.write(word)
        self._send(word)

    def _send(self, word: Word) -> None:
        try:
            self._sock.send(encode(word))
        except OSError:
            self._orphaned = True

    def _last_word(self) -> None:
        proven = self._record.leader is None or self._subreaper or self._ladder.group_removed
        unproven = "nothing proves that no process got away: the subreaper layer is off, and there is no cgroup"
        left = self._ladder.note.replace(LEFT, ENDED_LATE, 1) if proven else self._ladder.note
        note = self._note or left or ("" if proven else unproven)
        self._say(self._record.last_word(note, proven=proven))


def main(
    sock: socket.socket,
    daemon_pidfd: int,
    fds: list[int],
    ledger_path: str,
    ready: Ready | None = None,
) -> int:
    """Be a warden: the body of the child that the zygote has forked. Returns the exit status.

    `fds`: of the command, as `Preforked.prepare` takes them.
    `ready`: prepared before the request; None: with all layers but a cgroup.
    All descriptors are this process's own copies. The caller turns every exception into an exit.
    """
    ready = ready or Ready(LAYERS, None)
    ready.prepare(fds)
    try:
        ledger = Ledger.lock(ledger_path, wait=True)
    except OSError:
        # The tree was forgotten before it began: no daemon waits for it.
        ready.dismiss()
        return LAST_WORD
    assert ledger is not None
    Warden(sock, daemon_pidfd, fds, ledger, ready).run()
    return LAST_WORD
