"""The zygote: a small fresh interpreter that forks one warden per process tree, and inherits a dead warden's orphans.

Run as a script, ``python -I -S zygote.py <socket> <pidfd of the daemon> <settings>``, the settings a word with the
active ``layers`` and the ``cgroup`` below which trees get theirs, or None. It is one thread with few
modules, so a fork of it is cheap and safe, whatever the size and the threads of the daemon.

Theory of operation. A spawn request is one SEQPACKET message with four descriptors (the warden's socket, the two write
ends of the output pipes, a memfd with the command), or five, if the command gets a channel or a pipe. A *spare* warden
is forked while the zygote is idle, and its socket is sent to the daemon (``spare``), so that a spawn waits neither for
a fork nor for us: the daemon tells us which tree the warden has from now on (``taken``), and sends it the request. In a
burst each request but the first comes here (``fork``). The zygote passes it to a warden forked for it and closes its
copies, so that only the warden holds its tree's descriptors, and an end of file means that the tree has closed them.
A killed spare warden costs nothing; one that is killed with a request in its socket has spawned nothing, as its ledger
shows.

*The tree of a dead warden* is known before its death is handled: ``taken`` was sent before the request, so our socket
is read before a spare warden is reaped. A warden that was reaped before its ``taken`` came never had a request: its
tree is ``unborn``.

``end_warden`` checks a silent warden, and kills it if a signal has stopped it or it makes no progress.

A warden that ends with LAST_WORD leaves nothing to prove here. Any other end (it was killed) leaves
orphans, and as the next subreaper the zygote gets them. It kills and reaps all its children that are not
wardens. *The proof*: a dead warden has left a process only if some process of its tree is a child of the
zygote (go up from any member; the last link is one). Our list of children only grows while we, the only
thread, do not reap; so if one whole read of it finds only living wardens, then at its end no dead
warden's tree had a member. Then the zygote writes ``empty`` into their ledgers, whose locks it took over
when the wardens died, and reports ``gone``. A dead warden's cgroup is killed and removed as well.

*Several lost trees* are proven apart, so that a process that cannot be killed delays only its own tree. A tree is also
gone if every other process in the list is known to be of other lost trees (`Lost.knows`): by its cgroup, its marker,
its session, or because it was there already when only one tree was lost and no warden had just died. A process known by
none of these may be of any, and all trees wait for it. No process changes its cgroup *and* takes another tree's marker
by chance. One that does both on purpose counts for the tree whose marker it has, and for no other. A process is
reported with the tree it is known to be of, or with the only lost one. Survivors REMAINING_AFTER_S after the loss are
named (``remaining``).

When the daemon is gone (its pidfd, or the end of the socket), the zygote forks nothing more and drops waiting requests.
It stays until its wardens have ended their trees: they see the same end by themselves. A warden that a signal has
stopped does not, and is killed.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress


def load_siblings() -> None:
    """Make this package importable by its name without running the `__init__` of the packages around it.

    Those belong to the daemon, and may import packages that an interpreter without site-packages does not have.
    """
    path = os.path.dirname(os.path.abspath(__file__))
    for name in ("supervisor.containment.guard", "supervisor.containment", "supervisor"):
        package = type(sys)(name)
        package.__path__ = [path]
        sys.modules[name] = package
        path = os.path.dirname(path)


if __name__ == "__main__":
    load_siblings()

# Below the line that makes them importable.
from supervisor.containment.guard import cgroups, ladder, procfs, warden  # noqa: E402
from supervisor.containment.guard.killing import Killing  # noqa: E402
from supervisor.containment.guard.ledger import (  # noqa: E402
    MARKER,
    ROWS_MAX,
    Ledger,
    decode,
    encode,
    fold,
    how_of,
    read_path,
    said,
)
from supervisor.containment.guard.namespaces import KEEPER, fork_with_socket  # noqa: E402
from supervisor.containment.guard.out_of_reach import SOUGHT_MAX, OutOfReach  # noqa: E402
from supervisor.containment.guard.packets import receive  # noqa: E402
from supervisor.containment.guard.preforked import PREFORKED  # noqa: E402
from supervisor.containment.guard.ready import Ready  # noqa: E402
from supervisor.containment.guard.survivors import Survivors  # noqa: E402
from supervisor.containment.guard.unix import (  # noqa: E402
    FAILED,
    IGNORED,
    drain,
    go_first,
    keep_descriptors,
    readable,
    session_goes_first,
    wake_on_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeAlias

    Word: TypeAlias = dict[str, Any]

LIBC = ctypes.CDLL(None, use_errno=True)
SPARE = "cm-spare"
"""The name of a warden that waits for a tree."""
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
REQUEST_MAX_BYTES = 8192
DESCRIPTORS = 4
RETRY_S = 0.02
REFILL_S = 0.01
"""A spare warden is forked after so long without a request, not during a spawn, whose caller waits."""
REFILL_AGAIN_S = 0.25
"""The same after a spare one was killed, or the daemon could not take it."""
GROUP_MAX_S = 2.0
ORPHAN_ROWS_MAX = 100
OWNERS_SOUGHT_MAX = 64
STOPPED_LOOK_MS = 500
STOPPED_MAX_S = 1.0


def prctl(option: int, value: int | bytes) -> None:
    """Set one attribute of this process; raises OSError."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if LIBC.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Lost:
    """A killed warden, its ledger, whose lock the zygote takes over, and the ways to identify its tree's processes."""

    def __init__(self, process_id: str, ledger_path: str, group: str | None) -> None:
        self.process_id = process_id
        self.ledger_path = ledger_path
        self.ledger: Ledger | None = None
        self.group = group
        self.rows: list[Word] = []
        self.reaped = 0
        self.remote = OutOfReach()
        self.remaining = Survivors()
        self.since = time.monotonic()
        words = read_path(ledger_path)
        marker, started = (said(words, "sent") or {}).get("marker"), said(words, "started") or {}
        self._marker = f"{MARKER}={marker}" if marker else ""
        # If its warden has reaped the command, the pid may be reused by now.
        self.leader: int | None = None if said(words, "exited") else started.get("pid")
        self.began: float | None = started.get("at")
        self._keeper = (said(words, "spawning") or {}).get("keeper")
        self.take_over()

    def take_over(self) -> bool:
        """Lock the ledger, if no other process holds it; True if it is locked or cannot be opened."""
        if self.ledger is None:
            try:
                self.ledger = Ledger.lock(self.ledger_path, wait=False)
            except OSError:
                return True
        return self.ledger is not None

    def end_group(self) -> bool:
        """Kill all in the tree's cgroup; True when it is removed, or a process from outside the tree keeps it."""
        if self.group is None:
            return True
        cgroups.kill(self.group)
        return cgroups.remove(self.group) or time.monotonic() - self.since > GROUP_MAX_S or self._absent()

    def knows(self, seen: procfs.Stat, group: str | None, environment: list[str]) -> bool:
        """True if a process is known to be of this tree: by its cgroup, its marker, or the command's session.

        Also if it is the keeper of the tree's namespace.
        """
        inside = self.group is not None and group is not None and f"{group}/".startswith(f"{self.group}/")
        marked = self._marker != "" and self._marker in environment
        keeps = self._keeper == {"pid": seen.pid, "start_ticks": seen.start_ticks}
        return inside or marked or keeps or self.leader in (seen.sid, seen.pid)

    def _absent(self) -> bool:
        return self.group is not None and not os.path.isdir(self.group)


class Zygote:
    """Forks wardens and ends their orphans. One instance per process."""

    def __init__(self, daemon: socket.socket, daemon_pidfd: int, layers: frozenset[str], base: str | None) -> None:
        self._daemon = daemon
        self._pidfd = daemon_pidfd
        self._layers = layers
        self._base = base
        self._spares: set[int] = set()
        self._refill_s = REFILL_S
        self._stopped: dict[int, float] = {}
        self._switches: dict[int, int] = {}
        self._wardens: dict[int, tuple[str, str]] = {}
        self._lost: list[Lost] = []
        self._orphans: list[Word] = []
        self._orphans_reaped = 0
        self._whose: dict[int, Lost] = {}
        self._several = False
        self._killing = Killing()
        self._wake = wake_on_child()
        self._serving = True

    def run(self) -> None:
        """Serve until the daemon is gone and no child is left."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._daemon, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        wait_ms: int | None = 0
        while True:
            refill = self._serving and not self._spares
            ready = {fd for fd, _ in poll.poll(int(self._refill_s * 1000) if refill and wait_ms is None else wait_ms)}
            if refill and not ready:
                self._refill()
            if self._wake in ready:
                drain(self._wake)
            if self._serving and (self._pidfd in ready or (self._daemon.fileno() in ready and not self._serve())):
                self._serving = False
                poll.unregister(self._daemon)
                poll.unregister(self._pidfd)
            reaped = self._reap()
            wait_ms = self._end_orphans()
            if not self._serving:
                self._end_stopped()
                wait_ms = STOPPED_LOOK_MS if wait_ms is None else wait_ms
            if reaped is not None and reaped >= warden.REAPED_A_TURN:
                wait_ms = 0
            if reaped is None and not self._serving and not self._lost:
                return

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> bool:
        """Handle one request; False at the end of the socket."""
        try:
            data, fds = receive(self._daemon, REQUEST_MAX_BYTES)
        except OSError:
            return False
        if not data:
            return False
        request = decode(data)
        match request["word"]:
            case "taken":
                self._taken(request["pid"], request["process_id"], request["ledger"])
            case "fork":
                self._fork(request, fds)
            case "end_warden":
                self._end_warden(request["process_id"])
            case _:
                pass
        return True

    def _taken(self, pid: int, process_id: str, ledger_path: str) -> None:
        """Record that a spare warden has a tree from now on."""
        if pid in self._spares:
            self._spares.discard(pid)
            self._wardens[pid] = (process_id, ledger_path)
            self._refill_s = REFILL_S
        else:
            # It was reaped before it was taken, so it never had a request.
            self._say({"word": "unborn", "process_id": process_id})

    def _fork(self, request: Word, fds: list[int]) -> None:
        process_id, ledger_path = request["process_id"], request["ledger"]
        # Fewer descriptors than sent means that our descriptor table is full. The child reports a missing channel.
        why = "" if len(fds) >= DESCRIPTORS else os.strerror(errno.EMFILE)
        pid = -1
        try:
            pid = -1 if why else self._fork_warden({"word": "spawn", "ledger": ledger_path}, fds)
        except OSError as error:
            why = os.strerror(error.errno or errno.EAGAIN)
        for fd in fds:
            os.close(fd)
        if why:
            self._say({"word": "not_forked", "process_id": process_id, "note": f"cannot start a warden: {why}"})
        else:
            self._wardens[pid] = (process_id, ledger_path)
            self._say({"word": "forked", "process_id": process_id, "pid": pid})

    def _fork_warden(self, word: Word, fds: list[int]) -> int:
        """Fork the warden of a tree; returns its pid. Raises OSError."""
        pid, sock = fork_with_socket(self._become_warden)
        with sock, suppress(ConnectionError):  # if it was killed just now, `_reap` notices
            socket.send_fds(sock, [encode(word)], fds)
        return pid

    def _refill(self) -> None:
        """Fork a spare warden. If that fails, the next request reports why."""
        with suppress(OSError):
            pid, sock = fork_with_socket(self._become_warden)
            self._spares.add(pid)
            with sock:
                # A daemon that cannot take the socket closes it, and the warden ends.
                socket.send_fds(self._daemon, [encode({"word": "spare", "pid": pid})], [sock.fileno()])

    def _become_warden(self, sock: socket.socket) -> NoReturn:
        """In the forked child: wait for a tree and be its warden; never returns into the zygote's loop."""
        status = FAILED
        try:
            signal.set_wakeup_fd(-1)
            keep_descriptors(sock.fileno(), self._pidfd)
            prctl(PR_SET_NAME, SPARE.encode())
            if "subreaper" in self._layers:
                prctl(PR_SET_CHILD_SUBREAPER, 1)
            status = self._await_tree(sock)
        finally:
            # Not sys.exit: the exits of the zygote's own code must not run twice.
            os._exit(status)

    def _await_tree(self, sock: socket.socket) -> int:
        ready = Ready(self._layers, self._base)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        data, fds = b"", list[int]()
        if sock.fileno() in {fd for fd, _ in poll.poll()}:
            with suppress(OSError):
                data, fds = receive(sock, REQUEST_MAX_BYTES)
        if not data:
            # The daemon is gone, or has dismissed this warden.
            ready.dismiss()
            return warden.LAST_WORD
        sock.close()
        prctl(PR_SET_NAME, b"cm-warden")
        theirs = socket.socket(fileno=fds[0])
        return warden.main(theirs, self._pidfd, fds[1:], decode(data)["ledger"], ready)

    def _end_stopped(self) -> None:
        """Kill wardens that a signal has stopped: without the daemon only we notice. Their trees then fall to us."""
        now = time.monotonic()
        stopped = [pid for pid in self._all_wardens() if (seen := procfs.stat(pid)) is not None and seen.state in "Tt"]
        self._stopped = {pid: self._stopped.get(pid, now) for pid in stopped}
        for pid, since in self._stopped.items():
            if now - since >= STOPPED_MAX_S:
                os.kill(pid, signal.SIGKILL)

    def _end_warden(self, process_id: str) -> None:
        """Kill a warden that shows no progress (a signal stopped it): its tree then falls to us.

        A warden that works is only slow: under load it may be silent for long, and it knows more of its tree than we
        would. It waits for a processor, or has slept and woken since the last request.
        """
        for pid, (known, _) in self._wardens.items():
            seen = procfs.stat(pid) if known == process_id else None
            if seen is None:
                continue
            switches = procfs.switches(pid)
            before, self._switches[pid] = self._switches.get(pid), switches
            if seen.state in "Tt" or (seen.state != "R" and switches == before):
                os.kill(pid, signal.SIGKILL)

    # ── Orphans ───────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> int | None:
        """Reap the dead, at most as many as a warden does; returns how many, None if no child is left at all."""
        most = max(warden.REAPED_A_TURN, self._killing.crowd)
        for count in range(most):
            try:
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return None
            if waiting is None:
                return count
            pid = waiting.si_pid
            while pid in self._spares and readable(self._daemon.fileno()):
                # Learn first whether it was taken; the loop sees the end of the socket again.
                if not self._serve():
                    break
            seen = procfs.stat(pid)
            whose = self._find_owner(pid) if self._lost and pid not in self._all_wardens() else None
            leads = whose is not None and whose.leader == pid
            if whose is not None and leads:
                # The session's number is valid until the leader is reaped: identify its processes now.
                self._find_owners([child for child in procfs.own_children() if child not in self._all_wardens()])
                whose.leader = None
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._killing.reaped(pid)
            self._switches.pop(pid, None)
            self._whose.pop(pid, None)
            group = cgroups.group_of(self._base, seen) if self._base is not None and seen is not None else None
            if pid in self._wardens:
                process_id, ledger_path = self._wardens.pop(pid)
                if status != warden.LAST_WORD:
                    self._lose(process_id, ledger_path, group)
            elif pid in self._spares:
                self._spares.discard(pid)
                self._refill_s = REFILL_AGAIN_S
                if group is not None:
                    cgroups.end(group, GROUP_MAX_S)
            elif seen is not None and (leads or seen.name not in (SPARE, PREFORKED, KEEPER)):
                rows = self._orphans if whose is None else whose.rows
                if whose is None:
                    self._orphans_reaped += 1
                else:
                    whose.reaped += 1
                if leads:
                    # The command always has a row.
                    del rows[ORPHAN_ROWS_MAX - 1 :]
                if len(rows) >= ORPHAN_ROWS_MAX:
                    continue
                rows.append(
                    {
                        "name": seen.name,
                        "pid": pid,
                        "started_at": seen.started_at,
                        "ended_at": time.time(),
                        "how": how_of(status),
                        "status": status,
                        "signals": [],
                    }
                )
        return most

    def _lose(self, process_id: str, ledger_path: str, group: str | None) -> None:
        if "zygote" in self._layers:
            lost = Lost(process_id, ledger_path, group)
            self._lost.append(lost)
            self._find_out_of_reach(lost)
        self._say({"word": "lost", "process_id": process_id})

    def _find_out_of_reach(self, lost: Lost) -> None:
        """As a warden does before it kills; if several trees are lost, only in processes known to be of this one."""
        if lost.group is not None:
            there = cgroups.pids_below(lost.group)
        else:
            alone = len(self._lost) == 1 and not self._warden_is_dead()
            below_us = procfs.descendants(self._all_wardens(), most=SOUGHT_MAX)
            there = [pid for pid in below_us if alone or self._is_of(lost, pid)]
        lost.remote.look(there)

    @staticmethod
    def _is_of(lost: Lost, pid: int) -> bool:
        seen = procfs.stat(pid)
        return seen is not None and lost.knows(seen, cgroups.group_with(pid), procfs.environment(pid))

    def _end_orphans(self) -> int | None:
        """Kill all children but wardens; returns the milliseconds until the next look, None if no tree is lost."""
        if not self._lost:
            # Without a dead warden we have no orphans.
            return None
        self._several = self._several or len(self._lost) > 1
        wardens = self._all_wardens()
        done = [lost for lost in self._lost if lost.take_over() and lost.end_group()]
        # Read the whole list first, and then identify each process: the proof holds for this moment.
        strangers = [pid for pid in procfs.own_children() if pid not in wardens]
        whose = self._find_owners(strangers)
        for lost in done:
            if all(owner not in (None, lost) for owner in whose):
                self._prove(lost, alone=not self._several)
                self._lost.remove(lost)
        if not self._lost:
            self._orphans.clear()
            self._orphans_reaped = 0
            self._whose.clear()
            self._several = False
            self._killing.over()
            return None
        fresh, _ = self._killing.round(wardens)
        if fresh or self._killing.stopping:
            return 0
        self._report_survivors(strangers)
        return int(RETRY_S * 1000)

    # ── Whose an orphan is ────────────────────────────────────────────────────────────────────────

    def _find_owners(self, strangers: list[int]) -> list[Lost | None]:
        """The lost tree of each of our children that is no warden; None where it is not known."""
        if len(self._lost) == 1 and not self._warden_is_dead():
            # All orphans so far are of this tree, whatever they do later, and whichever tree is lost later. The wardens
            # are checked after the list was read, since a dead warden leaves its tree to us before it is reaped.
            self._whose.update(dict.fromkeys(strangers, self._lost[0]))
        if len(strangers) > OWNERS_SOUGHT_MAX:
            # They are being killed. Look for their trees when few are left.
            return [self._whose.get(pid) for pid in strangers]
        return [self._find_owner(pid) for pid in strangers]

    def _warden_is_dead(self) -> bool:
        return any((seen := procfs.stat(pid)) is None or seen.dead for pid in self._all_wardens())

    def _all_wardens(self) -> set[int]:
        return {*self._wardens, *self._spares}

    def _find_owner(self, pid: int) -> Lost | None:
        """The lost tree of one of our children, if exactly one tree knows it."""
        if pid in self._whose:
            return self._whose[pid]
        seen = procfs.stat(pid)
        if seen is None:
            return None
        group, environment = cgroups.group_with(pid), procfs.environment(pid)
        knowing = [lost for lost in self._lost if lost.knows(seen, group, environment)]
        if len(knowing) == 1:
            self._whose[pid] = knowing[0]
            return knowing[0]
        return None

    def _report_survivors(self, strangers: list[int]) -> None:
        """Report processes that cannot be killed: each to its tree, and one that may be of any tree to all of them."""
        now = time.monotonic()
        for lost in self._lost:
            if now - lost.since < ladder.REMAINING_AFTER_S:
                continue
            pids = [pid for pid in strangers if self._whose.get(pid, lost) is lost]
            word = lost.remaining.word(pids, self._killing.refused, time.time(), lost.leader, lost.began)
            if word is not None:
                for row in word["rows"]:
                    if row["pid"] not in self._whose:
                        row["note"] += "; it may be of another tree whose warden was killed too"
                if lost.ledger is not None:
                    lost.ledger.write(word)
                self._say({**word, "process_id": lost.process_id})

    def _prove(self, lost: Lost, *, alone: bool) -> None:
        """Write the last word that the killed warden could not, and tell the daemon."""
        if lost.ledger is not None and said(lost.ledger.words, "spawning") is None:
            # Nothing was spawned and, since the warden is dead, nothing will be: the daemon may try again.
            lost.ledger.close()
            self._say({"word": "unborn", "process_id": lost.process_id})
            return
        if lost.ledger is not None and said(lost.ledger.words, "empty") is None:
            word = fold(lost.ledger.words)
            # A command that was reaped before its warden is known by its pid, which was not reused yet.
            strays = [row for row in self._orphans if alone or row["pid"] == word["pid"]]
            rows = lost.rows + strays
            leaders = [row for row in rows if row["pid"] == word["pid"]]
            if leaders and word["how"] is None:
                # The pid was unreaped when its warden died, so it was still the command's.
                word["status"] = leaders[0]["status"]
                word["how"] = how_of(word["status"])
                leaders[0]["started_at"] = word["started_at"]
            for row in rows:
                # The kernel's start time is exact to a tick only, and no process began before the command did.
                row["started_at"] = max(row["started_at"], word["started_at"] or 0.0)
            lost.remote.take([row for row in word["rows"] if row.get("kind") == "remote"])
            word["rows"] = [row for row in word["rows"] if row.get("kind") != "remote"]
            word["rows"] = (word["rows"] + rows)[:ROWS_MAX] + lost.remote.rows
            word["reaped"] += lost.reaped + (self._orphans_reaped if alone else len(strays))
            if word["how"] != "not_started":
                word["note"] = "its warden was killed; the zygote ended what it left"
            word.update(word="empty", at=time.time())
            lost.ledger.write(word)
        if lost.ledger is not None:
            lost.ledger.close()
        self._say({"word": "gone", "process_id": lost.process_id})

    def _say(self, word: Word) -> None:
        try:
            self._daemon.send(encode(word))
        except OSError:
            # The daemon is gone; the loop sees the end of the socket.
            return


def main() -> None:
    """Be the zygote: take the descriptors named on the command line and serve."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    go_first()
    session_goes_first()
    prctl(PR_SET_NAME, b"cm-zygote")
    daemon = socket.socket(fileno=int(sys.argv[1]))
    pidfd = int(sys.argv[2])
    settings = decode(sys.argv[3].encode())
    layers, base = frozenset(settings["layers"]), settings["cgroup"]
    daemon.set_inheritable(False)
    os.set_inheritable(pidfd, False)
    os.chdir("/")
    if "zygote" in layers:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    if base is not None:
        try:
            cgroups.join(os.path.join(base, cgroups.WARDENS))
        except OSError:
            # Outside that group the next daemon would mistake wardens for a tree. The other layers remain.
            base = None
    zygote = Zygote(daemon, pidfd, layers, base)
    gc.collect()
    gc.freeze()
    zygote.run()


if __name__ == "__main__":
    main()
