"""The zygote: a small fresh interpreter that forks one warden per process tree, and inherits what a warden leaves.

Run as a script, ``python -I -S zygote.py <socket> <pidfd of the daemon>``. It is one thread with few
modules, so a fork of it is cheap and safe, whatever the size and the threads of the daemon.

Theory of operation. A request is one SEQPACKET message with four descriptors (the warden's socket, the two
write ends of the output pipes, a memfd with the command); the zygote forks a warden and closes its copies,
so that afterwards the warden alone holds its tree's descriptors and their end of file means what it says.

A warden that ends with LAST_WORD has proven its tree gone. Any other end (somebody killed it) leaves
orphans, and as the next subreaper the zygote gets them. It kills and reaps all its children that are not
wardens. *The proof*: what a dead warden left is non-empty only if some member of it is a child of the
zygote (go up from any member; the last link is one). Our list of children only grows while we, the only
thread, do not reap; so one whole read of it that finds living wardens only says that at its end no dead
warden's tree had a member. Then the zygote writes ``empty`` into their ledgers, whose locks it took over
when the wardens died, and says ``gone``. Trees whose wardens died together cannot be told apart and are
proven together; then no process is put down to one of them.

When the daemon is gone (its pidfd, or the end of the socket) nothing more is forked, requests that wait are
dropped, and the zygote stays until its wardens have ended their trees: they see the same end by themselves.
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


def load_siblings() -> None:
    """Make this package importable by its name without running the `__init__` of the packages around it.

    Those belong to the daemon and may import what an interpreter without site-packages does not have.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("supervisor", os.path.dirname(here)), ("supervisor.containment", here)):
        package = type(sys)(name)
        package.__path__ = [path]
        sys.modules[name] = package


if __name__ == "__main__":
    load_siblings()

# Below the line that makes them importable.
from supervisor.containment import procfs, warden  # noqa: E402
from supervisor.containment.ledger import ROWS_MAX, Ledger, decode, encode, fold, how_of, said  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
REQUEST_MAX_BYTES = 8192
DESCRIPTORS = 4
INT_BYTES = ctypes.sizeof(ctypes.c_int)
RETRY_S = 0.02
ORPHAN_ROWS_MAX = 100


def prctl(option: int, value: int | bytes) -> None:
    """Set one attribute of this process; raises OSError."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if LIBC.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one request and its descriptors, close-on-exec from the start; raises OSError.

    `socket.recv_fds` of Python 3.11 takes flags and does not pass them on: what it receives would be inherited.
    """
    room = socket.CMSG_LEN(DESCRIPTORS * INT_BYTES)
    data, ancillary, _, _ = sock.recvmsg(REQUEST_MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = range(0, len(payload) - INT_BYTES + 1, INT_BYTES)
            fds += [int.from_bytes(payload[at : at + INT_BYTES], sys.byteorder) for at in whole]
    return data, fds


class Lost:
    """A warden that was killed, and the ledger whose lock was taken over from it."""

    __slots__ = ("ledger", "ledger_path", "process_id")

    def __init__(self, process_id: str, ledger_path: str) -> None:
        self.process_id = process_id
        self.ledger_path = ledger_path
        self.ledger: Ledger | None = None
        self.take_over()

    def take_over(self) -> bool:
        """Lock the ledger, if nobody is just looking into it; True if there is nothing (more) to lock."""
        if self.ledger is None:
            try:
                self.ledger = Ledger.lock(self.ledger_path, wait=False)
            except OSError:
                return True
        return self.ledger is not None


class Zygote:
    """Forks wardens and keeps what they leave. One instance per process."""

    def __init__(self, daemon: socket.socket, daemon_pidfd: int) -> None:
        self._daemon = daemon
        self._pidfd = daemon_pidfd
        self._wardens: dict[int, tuple[str, str]] = {}
        self._lost: list[Lost] = []
        self._orphans: list[Word] = []
        self._killing = warden.Killing()
        self._wake = warden.wake_on_child()
        self._serving = True

    def run(self) -> None:
        """Serve until the daemon is gone and no child is left."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._daemon, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        wait_ms: int | None = None
        while True:
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if self._wake in ready:
                warden.drain(self._wake)
            if self._serving and (self._pidfd in ready or (self._daemon.fileno() in ready and not self._serve())):
                self._serving = False
                poll.unregister(self._daemon)
                poll.unregister(self._pidfd)
            reaped = self._reap()
            wait_ms = self._end_orphans()
            if reaped == warden.REAPED_A_TURN:
                wait_ms = 0
            if reaped is None and not self._serving and not self._lost:
                return

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> bool:
        """Handle one request; False at the end of the socket."""
        try:
            data, fds = receive(self._daemon)
        except OSError:
            return False
        if not data:
            return False
        request = decode(data)
        if request["word"] == "fork":
            self._fork(request, fds)
        elif request["word"] == "end_warden":
            self._end_warden(request["process_id"])
        return True

    def _fork(self, request: Word, fds: list[int]) -> None:
        process_id, ledger_path = request["process_id"], request["ledger"]
        pid = -1
        try:
            # Fewer descriptors than sent means that our table of them is full.
            why = "" if len(fds) == DESCRIPTORS else os.strerror(errno.EMFILE)
            pid = -1 if why else os.fork()
        except OSError as error:
            why = os.strerror(error.errno or errno.EAGAIN)
        if why:
            self._say({"word": "not_forked", "process_id": process_id, "note": f"cannot start a warden: {why}"})
        if pid == 0:
            self._become_warden(fds, ledger_path)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._wardens[pid] = (process_id, ledger_path)
            self._say({"word": "forked", "process_id": process_id, "pid": pid})

    def _become_warden(self, fds: list[int], ledger_path: str) -> None:
        """In the forked child; never returns into the zygote's loop."""
        status = warden.FAILED
        try:
            signal.set_wakeup_fd(-1)
            keep = sorted((*fds, self._pidfd))
            for low, high in zip([2, *keep], [*keep, 2**30], strict=True):
                os.closerange(low + 1, high)
            prctl(PR_SET_NAME, b"cm-warden")
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            sock = socket.socket(fileno=fds[0])
            status = warden.main(sock, self._pidfd, fds[1], fds[2], fds[3], ledger_path)
        finally:
            # Not sys.exit: the exits of the zygote's own code must not run twice.
            os._exit(status)

    def _end_warden(self, process_id: str) -> None:
        """Kill a warden that gives no sign of life (somebody stopped it): its tree then falls to us."""
        for pid, (known, _) in self._wardens.items():
            if known == process_id:
                os.kill(pid, signal.SIGKILL)

    # ── What wardens leave ────────────────────────────────────────────────────────────────────────

    def _reap(self) -> int | None:
        """Reap whoever is dead, at most REAPED_A_TURN, and say how many; None if no child is left at all."""
        for count in range(warden.REAPED_A_TURN):
            try:
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return None
            if waiting is None:
                return count
            pid = waiting.si_pid
            seen = procfs.stat(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._killing.reaped(pid)
            if pid in self._wardens:
                process_id, ledger_path = self._wardens.pop(pid)
                if status != warden.LAST_WORD:
                    self._lose(process_id, ledger_path)
            elif seen is not None and len(self._orphans) < ORPHAN_ROWS_MAX:
                self._orphans.append(
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
        return warden.REAPED_A_TURN

    def _lose(self, process_id: str, ledger_path: str) -> None:
        self._lost.append(Lost(process_id, ledger_path))
        self._say({"word": "lost", "process_id": process_id})

    def _end_orphans(self) -> int | None:
        """Kill what is not a warden; returns the milliseconds until the next look, None if nothing is left."""
        if not self._lost:
            # Without a dead warden nothing can have fallen to us.
            return None
        wardens = set(self._wardens)
        unlocked = [lost for lost in self._lost if not lost.take_over()]
        if not unlocked and all(pid in wardens for pid in procfs.own_children()):
            for lost in self._lost:
                self._prove(lost, alone=len(self._lost) == 1)
            self._lost.clear()
            self._orphans.clear()
            self._killing.over()
            return None
        fresh, _ = self._killing.round(wardens)
        return 0 if fresh else int(RETRY_S * 1000)

    def _prove(self, lost: Lost, *, alone: bool) -> None:
        """Write the last word that the killed warden could not, and tell the daemon."""
        if lost.ledger is not None and said(lost.ledger.words, "empty") is None:
            word = fold(lost.ledger.words)
            leaders = [row for row in self._orphans if row["pid"] == word["pid"]]
            if leaders and word["how"] is None:
                # The pid was unreaped when its warden died, so it was still the command's.
                word["status"] = leaders[0]["status"]
                word["how"] = how_of(word["status"])
            rows = self._orphans if alone else leaders
            word["rows"] = (word["rows"] + rows)[:ROWS_MAX]
            word["reaped"] += len(rows)
            if word["how"] is None or word["how"] != "not_started":
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
            # The daemon is gone; the end of the socket will say so.
            return


def main() -> None:
    """Be the zygote: take the descriptors named on the command line and serve."""
    for number in warden.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    warden.go_first()
    prctl(PR_SET_NAME, b"cm-zygote")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    daemon = socket.socket(fileno=int(sys.argv[1]))
    pidfd = int(sys.argv[2])
    daemon.set_inheritable(False)
    os.set_inheritable(pidfd, False)
    os.chdir("/")
    zygote = Zygote(daemon, pidfd)
    gc.collect()
    gc.freeze()
    zygote.run()


if __name__ == "__main__":
    main()
