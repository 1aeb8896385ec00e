"""ProcessTrees: the daemon's side of containment, behind the port `actors.ports.Processes`.

Theory of operation. One reactor thread owns everything here: every tree, its pipes, the sockets of its
warden, the zygotes. The port's methods post a call to it and return, so they block nobody and need no lock,
and what one caller asks for happens in the order it was asked.

A tree goes ``waiting -> sent -> running -> ended``, or ``-> lost -> ended`` where its warden was killed. It
*ends* on a word only: ``empty`` from its warden (ECHILD), ``gone`` from the zygote (it inherited what the
warden left, and nobody is left of it), or, not proven, when the time for that is over. Order of reports:
pipes are not read before ``started``; the exit is told when both pipes are at their end, or `drain_s` after
it (`held`); the end is told after the exit.

Races, and why each is closed:

* *The zygote dies with a request in its socket.* The kernel then closes the warden's socket end that was on
  its way, so we read its end; the ledger has no ``spawning`` word, and as no copy of that socket is left
  nobody can write it any more: the tree is sent to another zygote, at most ATTEMPTS_MAX times.
* *A warden dies with a request in its socket*, or before it spawns: its ledger has no ``spawning`` word either.
* *The zygote dies later.* Wardens hold their own sockets and go on. Only a warden that dies after it leaves
  a tree that nobody inherits; what that one left is looked for, on a thread aside, and its cgroup, if it had one,
  is emptied. Only the latter is a proof: see `leftovers`.
* *The daemon dies at any moment.* See `ledger`: the file is created before the request is sent.
* *A kill before the start.* Not sent yet: it never is. Sent: the kill waits in the socket and the warden
  reads it before it spawns.
* *A warden that somebody has stopped.* It has said nothing by half of `kill_s` after the deadline, and does nothing:
  the zygote kills it and inherits the tree. One that says ``remaining``, or that wants or has had the processor, is at
  work, and is left alone, however long a machine under load makes it take.
* *The end of a socket comes before the words in it*: it does not, a SEQPACKET socket keeps its order. What does come
  ahead of them is that the other end has not read all (`packets.receive`). The words of the zygote come over another
  socket, so a tree that lost its warden waits for them.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from loguru import logger

from actors.errors import described
from actors.kernel.actor import tell_contained
from actors.messages import (
    ProcessEnded,
    ProcessExited,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessStarted,
)
from actors.model import How, Row, Signalled
from supervisor.config import LAYERS
from supervisor.containment import orphans as leftovers
from supervisor.containment import probe
from supervisor.containment.guard import cgroups, ledger, procfs
from supervisor.containment.guard.ledger import Ledger
from supervisor.containment.guard.packets import receive
from supervisor.containment.layers import Layers
from supervisor.containment.orphans import Leftover
from supervisor.containment.output import STREAMS, Output
from supervisor.containment.pty import open_pty
from supervisor.containment.reactor import Alarm, Reactor
from supervisor.containment.readers import MUCH_BYTES
from supervisor.containment.spool import Spool, Spools
from supervisor.containment.workplace import Workplace
from supervisor.containment.zygote_handle import ZygoteHandle

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.ports import Clock, SpawnSpec
    from supervisor.containment.guard.ledger import Word

ATTEMPTS_MAX = 3
SEND_RETRY_S = 0.005
SEND_MAX_S = 10.0
READ_MAX_BYTES = 65536
DRAIN_READS = 32
SETTLE_S = 1.0
SETTLE_KILLED_S = 0.01
SHOWN_MAX_BYTES = 4096
"""One that is killed has a file of what it printed if that was more: so much of it is told where it is cut off."""
WORD_MAX_BYTES = 262_144
WORDS_A_TURN = 16
LOCK_POLL_S = 0.02
LOCK_SLACK_S = 5.0
ZYGOTE_END_S = 2.0
SWEEP_S = 2.0
SEARCH_S = 1.0
"""After so long what could not be ended is tried again."""
SILENT_S = 0.5
"""How often it is looked whether a warden that says nothing is at work."""
STOPPED_MAX_S = 3.0
"""After so long a warden of an earlier daemon, and its zygote, are continued: somebody may have stopped them."""
BEHIND = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})

TERMINAL = {"TERM": "xterm-256color"}
"""What a command on a terminal is told of it, where our own environment does not say better."""
ENVIRONMENT_KEPT = frozenset({"PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"})
ENVIRONMENT_KEPT_PREFIX = "LC_"


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a tool may see of the daemon's environment: an allow-list, so that a secret needs no name to be kept out."""
    return {
        name: value
        for name, value in environment.items()
        if name in ENVIRONMENT_KEPT or name.startswith(ENVIRONMENT_KEPT_PREFIX)
    }


class Phase(StrEnum):
    """Where a tree is."""

    WAITING = "waiting"
    SENT = "sent"
    RUNNING = "running"
    LOST = "lost"
    ENDED = "ended"


class Tree:
    """One process tree as the daemon knows it. Reactor thread only."""

    def __init__(
        self,
        process_id: str,
        spec: SpawnSpec,
        owner: ActorRef[Any],
        session: str,
        path: Path,
        output: Output,
        spool: Spool,
    ) -> None:
        self.process_id = process_id
        self.session = session
        self.spec = spec
        # Not to be guessed, so that nobody has it who did not inherit it.
        self.marker = f"{process_id}:{os.urandom(8).hex()}"
        self.owner = owner
        self.path = path
        self.output = output
        self.spool = spool
        self.paused = False
        self.drained_bytes: int | None = None
        self.held = False
        self.phase = Phase.WAITING
        self.attempts = 0
        self.waiting_since: float | None = None
        self.zygote: ZygoteHandle | None = None
        self.sock: socket.socket | None = None
        self.pipes: dict[str, int] = {}
        self.started: Word | None = None
        self.exited: Word | None = None
        self.last: Word | None = None
        self.remaining: ProcessRemaining | None = None
        self.kill_at: float | None = None
        self.drain_alarm: Alarm | None = None
        self.kill_alarms: list[Alarm] = []
        self.exit_report: ProcessExited | None = None
        self.end_report: ProcessEnded | None = None
        self.forgotten = False
        self.searched = False


class Adoption:
    """A tree of an earlier daemon whose ledger is waited for. Reactor thread only."""

    def __init__(self, process_id: str, owner: ActorRef[Any] | None, path: Path, since: float) -> None:
        self.process_id = process_id
        self.owner = owner
        self.path = path
        self.since = since
        self.alarm: Alarm | None = None
        self.leftover: Leftover | None = None
        self.woken = False
        self.size = -1
        self.report: ProcessEnded | None = None


class ProcessTrees:
    """All process trees of one daemon. Implements `actors.ports.Processes`.

    Every method may be called from any thread, and none but `start` and `close` waits for anything.

    Args:
        state_dir: where ``wardens/`` with the ledgers is (made by `start`); one daemon at a time.
        clock: for deadlines and for the times of reports that no warden made.
        drain_s: after the command's exit its output is read to its end, at most this many seconds.
        kill_s: half this long after the grace of a kill a warden that is silent and idle is taken over by the zygote.
        give_up_s: this long after the grace of a kill a tree that is not proven gone is reported so; `kill_s`
            where it is None. A later proof is not reported, so it is worth more time than anybody waits.
        log_max_bytes: how much text a tree may report as ProcessOutput, before one marker.
        tail_max_bytes: how much text ProcessExited carries.
        coalesce_s: output is reported at most this often per stream; the first piece at once.
        spool_max_bytes: how much of what a tree writes is kept in a file; one is made where a report has no room for
            all of it, or cannot show it. See `spool`.
        spool_total_bytes: how large these files may be together.
        spool_keep_s: how long after its last byte such a file is kept.
        environment: what every command gets, below its own `env`; None: `clean_environment` of this process.
        limits: of each process of a tree; see `supervisor.config.Config`.
        layers: those that hold, of `supervisor.config.LAYERS` and `OPTIONAL_LAYERS`; see there.
    """

    def __init__(
        self,
        state_dir: Path,
        clock: Clock,
        *,
        drain_s: float = 0.25,
        kill_s: float = 5.0,
        give_up_s: float | None = None,
        log_max_bytes: int = 1_048_576,
        tail_max_bytes: int = 65_536,
        coalesce_s: float = 0.04,
        spool_max_bytes: int = 67_108_864,
        spool_total_bytes: int = 1_073_741_824,
        spool_keep_s: float = 604_800.0,
        environment: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
        layers: Collection[str] = LAYERS,
    ) -> None:
        # The zygote works elsewhere, so the path must mean the same there.
        self._dir = Path(state_dir).absolute() / "wardens"
        self._workplace = Workplace(Path(state_dir).absolute())
        self._clock = clock
        self._drain_s = drain_s
        self._kill_s = kill_s
        self._give_up_s = kill_s if give_up_s is None else give_up_s
        self._log_max = log_max_bytes
        self._tail_max = tail_max_bytes
        self._environment = clean_environment(os.environ) if environment is None else dict(environment)
        self._limits = dict(limits or {})
        # A zygote that is no subreaper inherits nothing.
        self._layers = frozenset(layers) - (frozenset() if "subreaper" in layers else {"zygote"})
        self._base: str | None = None
        self._no_cgroup = "it is switched off"
        self._aside: list[threading.Thread] = []
        self._boot = procfs.boot_id()
        self._restarted = False
        self._reactor = Reactor("countermand-processes", clock, coalesce_s)
        self._spools = Spools(
            Path(state_dir).absolute() / "spool",
            clock,
            file_max_bytes=spool_max_bytes,
            total_max_bytes=spool_total_bytes,
            keep_s=spool_keep_s,
        )
        self._trees: dict[str, Tree] = {}
        self._adoptions: dict[str, Adoption] = {}
        self._zygote: ZygoteHandle | None = None
        self._zygotes: set[ZygoteHandle] = set()
        self._started = False
        self._closing = False
        self._quiet = threading.Event()
        self._no_zygote = threading.Event()

    # ── The port ──────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Make the directories, start the threads and the first zygote. Raises OSError if one cannot be made.

        Raises:
            Invalid: the layer of namespaces is asked for, and cannot be had here.
        """
        if "namespace" in self._layers:
            probe.require_namespace()
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._restarted = self._note_boot()
        before = self._note_cgroup() if "cgroup" in self._layers else None
        self._started = True
        self._spools.start()
        self._reactor.start()
        self._reactor.post(self._warm_up)
        self._reactor.post(lambda: self._clean_up(before))

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """See `actors.ports.Processes.spawn`. An id that is known already is adopted: it has one effect."""
        if not self._reactor.post(lambda: self._spawn(process_id, spec, owner, session)):
            self._tell(owner, self._not_started(process_id, "the supervisor has shut down"))

    def kill(self, process_id: str, grace_s: float) -> None:
        """See `actors.ports.Processes.kill`."""
        self._reactor.post(lambda: self._kill(process_id, grace_s))

    def kill_session(self, session: str, grace_s: float) -> None:
        """See `actors.ports.Processes.kill_session`."""
        self._reactor.post(lambda: self._kill_session(session, grace_s))

    def adopt(self, process_id: str, owner: ActorRef[Any]) -> None:
        """See `actors.ports.Processes.adopt`."""
        self._reactor.post(lambda: self._adopt(process_id, owner))

    def forget(self, process_id: str) -> None:
        """See `actors.ports.Processes.forget`. A tree that has not ended is forgotten when it has."""
        self._reactor.post(lambda: self._forget(process_id))

    def forget_session(self, session: str) -> None:
        """See `actors.ports.Processes.forget_session`. Behind what the reactor has in hand of its trees."""
        self._reactor.post(lambda: self._spools.forget(session))

    @property
    def layers(self) -> Layers:
        """Which layers of containment hold; known once it is started. Any thread."""
        base = self._base
        names = self._layers if base is not None else self._layers - {"cgroup"}
        delegated = base is not None and cgroups.delegated(os.path.dirname(base))
        return Layers(tuple(sorted(names)), base, self._no_cgroup, delegated)

    @property
    def spools(self) -> Spools:
        """Where the output is that reports have no room for."""
        return self._spools

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kill what is left, wait for the proofs, end the zygote and the thread. Not from the reactor's thread.

        True if every tree was proven gone within `timeout_s` seconds; the others are reported as not proven, and
        their wardens, which see the end of their sockets, go on ending them.
        """
        if not self._started or not self._reactor.post(self._begin_closing):
            return True
        proven = self._quiet.wait(timeout_s)
        self._reactor.post(self._end_zygotes)
        if not self._no_zygote.wait(ZYGOTE_END_S):
            self._reactor.post(self._kill_zygotes)
            self._no_zygote.wait(ZYGOTE_END_S)
        stopped = self._reactor.stop(ZYGOTE_END_S)
        for thread in self._aside:
            thread.join(SWEEP_S)
        if self._base is not None:
            cgroups.leave(self._base)
        return self._spools.close(SETTLE_S) and stopped and proven

    # ── Spawning ──────────────────────────────────────────────────────────────────────────────────

    def _warm_up(self) -> None:
        try:
            self._living_zygote()
        except OSError as error:
            logger.warning("no zygote yet, the next spawn tries again: {}", error)

    def _living_zygote(self) -> ZygoteHandle:
        if self._zygote is None or self._zygote.dead:
            settings: Word = {"word": "settings", "layers": sorted(self._layers), "cgroup": self._base}
            self._zygote = ZygoteHandle(
                self._reactor, self._environment, settings, self._on_zygote_word, self._on_zygote_dead
            )
            self._zygotes.add(self._zygote)
        return self._zygote

    def _spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str) -> None:
        if process_id in self._trees:
            self._adopt(process_id, owner)
            return
        path = self._path(process_id)
        spool = Spool(self._spools, process_id, self._reactor, self._tail_max, lambda: self._resume(tree), session)
        elsewhere = f", and its beginning is in {spool.path}" if self._spools.file_max_bytes else ""
        output = Output(self._log_max, self._tail_max, elsewhere)
        tree = Tree(process_id, spec, owner, session, path, output, spool)
        self._trees[process_id] = tree
        if self._closing:
            self._never(tree, "the supervisor is shutting down")
            return
        if not spec.argv:
            self._never(tree, "cannot execute a command without a word")
            return
        try:
            ledger.create(path, process_id, self._clock.wall(), self._boot, tree.marker)
        except OSError as error:
            self._never(tree, f"cannot create its ledger {path}: {error.strerror}")
            return
        self._launch(tree)

    def _launch(self, tree: Tree) -> None:
        """Send the tree to a zygote; where that cannot be done, end it as not started."""
        tree.phase = Phase.WAITING
        tree.attempts += 1
        theirs: list[int] = []
        try:
            zygote = self._living_zygote()
            try:
                theirs.extend(self._open_descriptors(tree))
                zygote.spawn(tree.process_id, str(tree.path), theirs)
            finally:
                for fd in theirs:
                    os.close(fd)
        except OSError as error:
            self._close_descriptors(tree)
            self._retry(tree, error)
            return
        except Exception as error:  # noqa: BLE001  # a spec that cannot be sent ends its own tree and no other
            logger.opt(exception=True).error("the command of {} could not be sent", tree.process_id)
            self._close_descriptors(tree)
            self._never(tree, f"cannot start a warden: {described(error)}")
            return
        tree.zygote = zygote
        tree.phase = Phase.SENT
        assert tree.sock is not None
        self._reactor.watch(tree.sock.fileno(), lambda: self._on_warden(tree))

    def _open_descriptors(self, tree: Tree) -> list[int]:
        """Open what daemon and warden share; ours go into the tree, theirs are returned, in the zygote's order."""
        spec = tree.spec
        command: Word = {
            "word": "command",
            "argv": list(spec.argv),
            "cwd": self._workplace.path(spec.cwd),
            "env": {**(TERMINAL if spec.pty else {}), **self._environment, **spec.env, ledger.MARKER: tree.marker},
            "limits": self._limits,
        }
        ours, warden = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        tree.sock = ours
        theirs = [warden.detach()]
        try:
            if spec.stdin is not None:
                command["stdin"] = b64encode(spec.stdin).decode("ascii")
            if spec.pty:
                master, slave, command["pty"] = open_pty(*spec.pty_size)
                tree.pipes[STREAMS[0]] = master
                theirs.append(slave)
                theirs.append(os.dup(slave))
            else:
                for stream in STREAMS:
                    readable, writable = os.pipe()
                    tree.pipes[stream] = readable
                    theirs.append(writable)
            for fd in tree.pipes.values():
                os.set_blocking(fd, False)
            # A command may be larger than a message; in memory, not on disk, because its environment may be secret.
            spec_fd = os.memfd_create("countermand-command", os.MFD_CLOEXEC)
            theirs.append(spec_fd)
            left = memoryview(json.dumps(command).encode("ascii"))
            while left:
                left = left[os.write(spec_fd, left) :]
        except BaseException:
            for fd in theirs:
                os.close(fd)
            raise
        return theirs

    def _retry(self, tree: Tree, error: OSError) -> None:
        now = self._clock.monotonic()
        tree.waiting_since = now if tree.waiting_since is None else tree.waiting_since
        if error.errno in BEHIND and now - tree.waiting_since < SEND_MAX_S:
            tree.attempts -= 1
            self._reactor.later(SEND_RETRY_S, lambda: self._relaunch(tree))
        elif error.errno in (errno.EPIPE, errno.ECONNRESET) and tree.attempts < ATTEMPTS_MAX:
            self._zygote = None
            self._launch(tree)
        else:
            self._never(tree, f"cannot start a warden: {error.strerror or error}")

    def _relaunch(self, tree: Tree) -> None:
        if tree.phase is Phase.WAITING:
            self._launch(tree)

    # ── What wardens say ──────────────────────────────────────────────────────────────────────────

    def _on_warden(self, tree: Tree) -> None:
        for _ in range(WORDS_A_TURN):
            if tree.sock is None:
                return
            try:
                data, _ = receive(tree.sock, WORD_MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_warden_gone(tree)
                return
            self._on_warden_word(tree, ledger.decode(data))

    def _on_warden_word(self, tree: Tree, word: Word) -> None:
        match word["word"]:
            case "started":
                self._on_started(tree, word)
            case "exited":
                self._on_exited(tree, word)
            case "remaining":
                self._on_remaining(tree, word)
            case "empty" if not word.get("proven", True) and tree.phase is not Phase.ENDED:
                self._search(tree, "the subreaper layer is off", word)
            case "empty":
                self._on_empty(tree, word)
            case unknown:
                logger.warning("a warden said something unknown: {}", unknown)

    def _on_started(self, tree: Tree, word: Word) -> None:
        tree.phase = Phase.RUNNING
        tree.started = word
        spool = tree.spool.path if self._spools.file_max_bytes else None
        self._tell(tree.owner, ProcessStarted(tree.process_id, word["pid"], word["at"], spool))
        self._read_pipes(tree)

    def _on_exited(self, tree: Tree, word: Word) -> None:
        tree.exited = word
        self._drain(tree)
        if tree.pipes:
            tree.drain_alarm = self._reactor.later(self._drain_s, lambda: self._on_drained(tree))
        else:
            self._on_drained(tree)

    def _on_remaining(self, tree: Tree, word: Word) -> None:
        """Some of it cannot be killed: whoever files a receipt before the proof can name them."""
        if tree.last is None and tree.phase is not Phase.ENDED:
            tree.remaining = _remaining(tree.process_id, word)
            self._tell(tree.owner, tree.remaining)

    def _on_empty(self, tree: Tree, word: Word) -> None:
        """The proof. The exit is told first, if there was a command and its output is still being drained."""
        tree.last = word
        self._disarm_kill(tree)
        if tree.exited is None and word["status"] is not None and tree.started is not None:
            # Its warden was killed and the zygote saw the command end.
            duration_s = max(0.0, word["at"] - tree.started["at"])
            exited = {"status": word["status"], "at": word["at"], "duration_s": duration_s}
            self._on_exited(tree, {"word": "exited", **exited, "cpu_s": 0.0, "max_rss_kb": 0})
        if tree.phase is not Phase.ENDED and (tree.exited is None or tree.exit_report is not None):
            self._end(tree, self._ended(tree.process_id, word, proven=word.get("proven", True)))

    def _on_warden_gone(self, tree: Tree) -> None:
        """The end of a warden's socket. Without a last word it was killed: the ledger and the zygote know more."""
        self._close_socket(tree)
        if tree.last is not None or tree.searched or tree.phase is Phase.ENDED:
            return
        last = ledger.said(ledger.read_path(tree.path), "empty")
        if last is not None:
            # It had no way to say it.
            self._on_warden_word(tree, last)
            return
        tree.phase = Phase.LOST
        if tree.zygote is None or tree.zygote.dead:
            self._judge(tree)
        else:
            tree.kill_alarms.append(self._reactor.later(self._give_up_s, lambda: self._abandon(tree)))

    # ── What the zygote says ──────────────────────────────────────────────────────────────────────

    def _on_zygote_word(self, zygote: ZygoteHandle, word: Word) -> None:
        tree = self._trees.get(word["process_id"])
        if tree is None or tree.phase is Phase.ENDED or tree.zygote is not zygote:
            return
        match word["word"]:
            case "not_forked":
                self._never(tree, word["note"])
            case "gone":
                self._on_gone(tree)
            case "remaining":
                self._on_remaining(tree, word)
            case "unborn":
                self._close_socket(tree)
                self._judge(tree)
            case "lost" if "zygote" not in self._layers:
                self._judge(tree)
            case "forked" | "lost":
                # The warden speaks for itself; and its loss shows at the end of its socket.
                return
            case unknown:
                logger.warning("the zygote said something unknown: {}", unknown)

    def _on_gone(self, tree: Tree) -> None:
        """The warden was killed, and what it left is proven gone."""
        self._close_socket(tree)
        if tree.last is not None:
            return
        words = ledger.read_path(tree.path)
        last = ledger.said(words, "empty") or {**ledger.fold(words), "at": self._clock.wall()}
        self._on_empty(tree, last)

    def _on_zygote_dead(self, zygote: ZygoteHandle) -> None:
        self._zygotes.discard(zygote)
        if not self._closing:
            logger.warning("the zygote (pid {}) has ended; the next spawn starts another", zygote.pid)
        if self._zygote is zygote:
            self._zygote = None
        for tree in list(self._trees.values()):
            if tree.zygote is zygote and tree.phase is Phase.LOST:
                self._judge(tree)
        if not self._zygotes and self._closing:
            self._no_zygote.set()

    def _judge(self, tree: Tree) -> None:
        """A tree without a warden and without a zygote: its ledger is all there is."""
        if tree.last is not None or tree.searched:
            return
        words = ledger.read_path(tree.path)
        last = ledger.said(words, "empty")
        if last is not None:
            self._on_warden_word(tree, last)
        elif ledger.said(words, "spawning") is None:
            self._close_descriptors(tree)
            if tree.kill_at is not None:
                self._never(tree, "killed before it was started")
            elif tree.attempts < ATTEMPTS_MAX and not self._closing:
                self._disarm_kill(tree)
                self._launch(tree)
            else:
                self._never(tree, f"no warden came of {tree.attempts} attempts: each zygote was killed")
        else:
            self._search(tree, "its warden and the zygote were both killed", ledger.fold(words))

    # ── Leftovers ─────────────────────────────────────────────────────────────────────────────────

    def _search(self, tree: Tree, why: str, word: Word) -> None:
        """Look for what is left of a tree that nobody proved gone, and then end it with `word` and what was found."""
        tree.searched = True
        leftover = self._leftover(tree.process_id, why, ledger.read_path(tree.path))
        self._beside(lambda: leftovers.end(leftover), lambda: self._found(tree, word, leftover))

    def _found(self, tree: Tree, word: Word, leftover: Leftover) -> None:
        if tree.phase is Phase.ENDED:
            return
        verdict = self._verdict(word, leftover)
        if verdict["proven"]:
            self._on_empty(tree, verdict)
        else:
            self._end_unproven(tree, verdict)
            self._search_on(
                leftover,
                lambda: self._trees.get(tree.process_id) is tree,
                lambda: self._tell_proof(tree, word, leftover),
            )

    def _tell_proof(self, tree: Tree, word: Word, leftover: Leftover) -> None:
        tree.end_report = self._ended(tree.process_id, self._verdict(word, leftover), proven=True)
        self._tell(tree.owner, tree.end_report)

    def _search_on(self, leftover: Leftover, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        """It was said that a tree is not proven gone. Where its cgroup can prove it later, go on, and then say so.

        One in state D cannot be killed now, and dies when its wait is over. `wanted`: somebody still asks.
        """
        until = self._clock.monotonic() + self._give_up_s

        def again() -> None:
            if leftover.emptied and wanted():
                then()
            elif (
                leftover.cgroup is not None
                and os.path.isdir(leftover.cgroup)
                and wanted()
                and not self._closing
                and self._clock.monotonic() < until
            ):
                self._reactor.later(SEARCH_S, lambda: self._beside(lambda: leftovers.end(leftover), again))

        again()

    def _leftover(self, process_id: str, why: str, words: list[Word]) -> Leftover:
        """How to know what the tree of a ledger has left, as far as the layers allow it."""
        sent, started, spawning = (ledger.said(words, word) or {} for word in ("sent", "started", "spawning"))
        by_marker = "marker" in self._layers and sent.get("boot") == self._boot
        keeper = spawning.get("keeper")
        return Leftover(
            process_id,
            why,
            marker=sent.get("marker", "") if by_marker else None,
            pid=started.get("pid"),
            start_ticks=started.get("start_ticks"),
            cgroup=spawning.get("cgroup") if "cgroup" in self._layers else None,
            keeper=(keeper["pid"], keeper["start_ticks"]) if keeper and sent.get("boot") == self._boot else None,
        )

    def _verdict(self, word: Word, leftover: Leftover) -> Word:
        """The last word on a tree that was searched for, from what its ledger says and what was found."""
        # The kernel has killed whoever was in a namespace that has ended.
        seen_ending = "sigkill" if leftover.command_killed or not leftover.outlived else "abandoned"
        return {
            **word,
            "word": "swept",
            "how": word["how"] or seen_ending,
            "reaped": word["reaped"] + len(leftover.killed),
            "note": leftover.note,
            "proven": leftover.proven,
            "at": self._clock.wall(),
        }

    def _beside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do what may take a while on a thread aside, and then something here."""

        def run() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001  # what was not found is not claimed
                logger.exception("the search for what a tree left has failed")
            self._reactor.post(then)

        self._aside = [thread for thread in self._aside if thread.is_alive()]
        thread = threading.Thread(target=run, name="countermand-leftovers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # A tree at its limit of threads, for one. What is searched for is not proven gone before.
            logger.warning("a thread to search for what a tree left could not be started, and is later: {}", error)
            self._reactor.later(SEARCH_S, lambda: self._beside(work, then))
            return
        self._aside.append(thread)

    def _clean_up(self, before: str | None) -> None:
        """At a start: end what a dead daemon's trees have left, whether or not somebody asks for them."""
        bases = {base for base in (self._base, before) if base is not None}
        judged: set[str] = set()
        for path in self._dir.glob("*.ledger"):
            process_id = unquote(path.stem)
            if process_id not in self._trees:
                self._adopt(process_id, None)
            words = ledger.read_path(path)
            group = (ledger.said(words, "spawning") or {}).get("cgroup")
            if group is not None and not (ledger.said(words, "empty") or ledger.said(words, "swept")):
                # Whoever judges the tree removes it, and has its proof in that.
                judged.add(group)
        if bases:
            self._beside(lambda: _sweep(bases, self._base, frozenset(judged)), lambda: None)
        if judged:
            last = partial(_sweep, bases, self._base, frozenset())
            self._reactor.later(self._give_up_s, lambda: self._beside(last, lambda: None))

    def _note_cgroup(self) -> str | None:
        """Find a cgroup for our trees and write down which; returns the one of the last daemon of this boot, if any."""
        self._base, self._no_cgroup = cgroups.prepare(str(self._dir))
        if self._base is None:
            logger.debug("process trees have no cgroup: {}", self._no_cgroup)
        path = self._dir / "cgroup"
        noted = path.read_text().split("\n") if path.exists() else []
        path.write_text(f"{self._boot}\n{self._base or ''}")
        return noted[1] if len(noted) == 2 and noted[0] == self._boot and noted[1] else None

    # ── Output ────────────────────────────────────────────────────────────────────────────────────

    def _read_pipes(self, tree: Tree) -> None:
        for stream, fd in tree.pipes.items():
            self._reactor.read(fd, partial(self._on_pipe, tree, stream, fd))

    def _on_pipe(self, tree: Tree, stream: str, fd: int) -> bool:
        """Read a bounded amount; True if it was much."""
        taken = self._read(tree, stream, fd)
        if not tree.pipes and tree.exited is not None:
            self._on_drained(tree)
        elif tree.spool.full and not tree.paused:
            # The command waits until the disk has what it has written so far.
            tree.paused = True
            for paused in tree.pipes.values():
                self._reactor.unread(paused)
        return taken >= MUCH_BYTES

    def _read(self, tree: Tree, stream: str, fd: int) -> int:
        """Read once; returns the number of bytes, 0 where there is none or no more will come."""
        try:
            data = os.read(fd, READ_MAX_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            # So a terminal says that nobody has it open any more.
            if error.errno != errno.EIO:
                raise
            data = b""
        if data:
            tree.output.feed(stream, data)
            tree.spool.feed(data)
        else:
            self._close_pipe(tree, stream)
            tree.output.end(stream)
        self._report_output(tree)
        return len(data)

    def _resume(self, tree: Tree) -> None:
        if tree.paused:
            tree.paused = False
            self._read_pipes(tree)

    def _drain(self, tree: Tree) -> None:
        """After the exit: read what the command has left in its pipes, in one go, also if its disk is behind."""
        for stream, fd in list(tree.pipes.items()):
            for _ in range(DRAIN_READS):
                if not self._read(tree, stream, fd):
                    break

    def _report_output(self, tree: Tree) -> None:
        for piece in tree.output.take():
            self._tell(tree.owner, ProcessOutput(tree.process_id, piece.stream, piece.text, piece.marker))

    def _on_drained(self, tree: Tree) -> None:
        """The output is at its end, or the time to drain it is over: report the exit once the disk has it too."""
        if tree.drained_bytes is not None or tree.phase is Phase.ENDED:
            return
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        self._drain(tree)
        tree.held = bool(tree.pipes)
        tree.drained_bytes = tree.output.total_bytes
        tree.output.close()
        self._report_output(tree)
        if tree.held or tree.output.lossy:
            tree.spool.need()
        if tree.spool.begun:
            # A stop waits for no slow disk.
            wait_s = SETTLE_S if tree.kill_at is None else SETTLE_KILLED_S
            tree.drain_alarm = self._reactor.later(wait_s, lambda: self._tell_exited(tree))
            tree.spool.settle(lambda: self._tell_exited(tree))
        else:
            self._tell_exited(tree)

    def _tell_exited(self, tree: Tree) -> None:
        """Report the exit, once."""
        if tree.exit_report is not None or tree.phase is Phase.ENDED:
            return
        assert tree.exited is not None
        assert tree.drained_bytes is not None
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        kept = tree.spool.kept
        word = tree.exited
        tree.exit_report = ProcessExited(
            tree.process_id,
            status=word["status"],
            at=word["at"],
            duration_s=word["duration_s"],
            tail=tree.output.tail,
            total_bytes=tree.drained_bytes,
            lossy=tree.output.lossy,
            held=tree.held,
            cpu_s=word["cpu_s"],
            max_rss_kb=word["max_rss_kb"],
            spool=None if kept is None else kept.path,
            spooled_bytes=0 if kept is None else kept.size,
        )
        self._tell(tree.owner, tree.exit_report)
        if tree.last is not None:
            self._end(tree, self._ended(tree.process_id, tree.last, proven=tree.last.get("proven", True)))

    # ── Ending ────────────────────────────────────────────────────────────────────────────────────

    def _kill_session(self, session: str, grace_s: float) -> None:
        for process_id in [one.process_id for one in self._trees.values() if one.session == session]:
            self._kill(process_id, grace_s)

    def _kill(self, process_id: str, grace_s: float) -> None:
        tree = self._trees.get(process_id)
        if tree is None or tree.phase is Phase.ENDED:
            return
        if tree.phase is Phase.WAITING:
            self._never(tree, "killed before it was started")
            return
        kill_at = self._clock.monotonic() + max(0.0, grace_s)
        if tree.kill_at is not None and tree.kill_at <= kill_at:
            return
        tree.kill_at = kill_at
        if tree.exit_report is None and tree.output.total_bytes > SHOWN_MAX_BYTES:
            # What is cut off is told with the end of its output, and with the name of the file that has all of it. Of
            # one whose exit was told everything is known.
            tree.spool.need()
        if tree.drained_bytes is not None:
            self._tell_exited(tree)
        if tree.last is not None or tree.phase is Phase.LOST:
            return
        self._disarm_kill(tree)
        wait_s = max(0.0, grace_s)
        tree.kill_alarms = [
            self._reactor.later(wait_s + self._kill_s / 2, lambda: self._end_silent_warden(tree)),
            self._reactor.later(wait_s + self._give_up_s, lambda: self._abandon(tree)),
        ]
        if tree.sock is not None:
            try:
                tree.sock.send(ledger.encode({"word": "kill", "grace_s": wait_s}))
            except OSError:
                # It has just ended, or it reads nothing at all: the socket's end or the alarms follow.
                return

    def _end_silent_warden(self, tree: Tree) -> None:
        """A warden that has not said a word since the deadline may be stopped or stuck: then the zygote takes over.

        Whether it is, is for the zygote to see. Asked again, for it may be slow now and be stopped later.
        """
        if tree.last is not None or tree.remaining or tree.zygote is None or tree.phase in (Phase.LOST, Phase.ENDED):
            return
        tree.kill_alarms.append(self._reactor.later(SILENT_S, lambda: self._end_silent_warden(tree)))
        try:
            tree.zygote.send({"word": "end_warden", "process_id": tree.process_id})
        except OSError:
            return

    def _abandon(self, tree: Tree, why: str = "") -> None:
        """Say that the tree is not proven gone. Its warden, if there is one, goes on ending it."""
        if tree.phase is Phase.ENDED or tree.last is not None:
            return
        remains = tree.remaining.note if tree.remaining is not None else ""
        note = why or remains or f"not proven gone {self._give_up_s:g} s after its deadline"
        word = ledger.fold(ledger.read_path(tree.path))
        word.update(how="abandoned", note=note, at=self._clock.wall())
        self._end_unproven(tree, word)

    def _end_unproven(self, tree: Tree, word: Word) -> None:
        self._tell_exit_at_last(tree)
        self._end(tree, self._ended(tree.process_id, word, proven=False))

    def _tell_exit_at_last(self, tree: Tree) -> None:
        """Wait no longer for its output."""
        if tree.exited is not None:
            self._on_drained(tree)
            self._tell_exited(tree)
        tree.output.close()
        self._report_output(tree)

    def _never(self, tree: Tree, note: str) -> None:
        self._end(tree, self._not_started(tree.process_id, note))

    def _end(self, tree: Tree, report: ProcessEnded) -> None:
        if tree.started is not None:
            # What somebody in the background has written last is for the spool alone.
            self._drain(tree)
        tree.phase = Phase.ENDED
        tree.spool.close()
        self._disarm_kill(tree)
        if tree.drain_alarm is not None:
            tree.drain_alarm.cancel()
        self._close_descriptors(tree)
        tree.end_report = report
        self._tell(tree.owner, report)
        if tree.forgotten:
            self._forget(tree.process_id)
        self._check_quiet()

    def _disarm_kill(self, tree: Tree) -> None:
        for alarm in tree.kill_alarms:
            alarm.cancel()
        tree.kill_alarms.clear()

    # ── Adopting, forgetting ──────────────────────────────────────────────────────────────────────

    def _adopt(self, process_id: str, owner: ActorRef[Any] | None) -> None:
        """Tell `owner` of a tree; None: nobody asks, but what it left is to be ended."""
        tree = self._trees.get(process_id)
        if tree is not None:
            assert owner is not None
            tree.owner = owner
            for report in (tree.exit_report, None if tree.end_report else tree.remaining, tree.end_report):
                if report is not None:
                    self._tell(owner, report)
            return
        adoption = self._adoptions.get(process_id)
        if adoption is not None:
            adoption.owner = owner
            adoption.size = -1
            if adoption.report is not None:
                self._tell(owner, adoption.report)
            return
        adoption = Adoption(process_id, owner, self._path(process_id), self._clock.monotonic())
        self._adoptions[process_id] = adoption
        self._look(adoption)

    def _look(self, adoption: Adoption) -> None:
        """Read the ledger of an earlier daemon's tree, if nobody holds it; else look again in a moment."""
        report = self._find_out(adoption)
        if report is None:
            self._look_who_remains(adoption)
            adoption.alarm = self._reactor.later(LOCK_POLL_S, lambda: self._look(adoption))
            return
        self._tell(adoption.owner, report)
        leftover = adoption.leftover
        if report.proven or leftover is None or leftover.cgroup is None:
            del self._adoptions[adoption.process_id]
            return
        adoption.report = report
        self._search_on(
            leftover,
            lambda: self._adoptions.get(adoption.process_id) is adoption,
            lambda: self._prove_adopted(adoption, leftover),
        )

    def _prove_adopted(self, adoption: Adoption, leftover: Leftover) -> None:
        """What a dead daemon's tree has left is gone after all: for the ledger, and for whoever asks."""
        verdict = self._verdict(ledger.fold(ledger.read_path(adoption.path)), leftover)
        held = Ledger.lock(adoption.path, wait=False)
        if held is not None:
            held.write(verdict)
            held.close()
        del self._adoptions[adoption.process_id]
        self._tell(adoption.owner, self._ended(adoption.process_id, verdict, proven=True))

    def _look_who_remains(self, adoption: Adoption) -> None:
        """Tell whom the warden could not kill so far, if its ledger says so."""
        try:
            size = adoption.path.stat().st_size
        except OSError:
            return
        if size == adoption.size:
            return
        adoption.size = size
        word = ledger.said(ledger.read_path(adoption.path), "remaining")
        if word is not None:
            self._tell(adoption.owner, _remaining(adoption.process_id, word))

    def _find_out(self, adoption: Adoption) -> ProcessEnded | None:
        """What became of it; None: not known yet. The cases are those of `ledger`'s theory of operation."""
        process_id, now = adoption.process_id, self._clock.monotonic()
        try:
            held = Ledger.lock(adoption.path, wait=False)
        except FileNotFoundError:
            if not self._restarted:
                return self._not_started(process_id, "never spawned")
            word = {**ledger.fold([]), "how": "abandoned", "at": self._clock.wall()}
            word["note"] = "the machine was restarted, and its ledger, if there was one, did not reach the disk"
            return self._ended(process_id, word, proven=True)
        except OSError as error:
            word = {**ledger.fold([]), "how": "abandoned", "at": self._clock.wall()}
            word["note"] = f"its ledger cannot be read: {error.strerror}"
            return self._ended(process_id, word, proven=False)
        if held is None:
            if now - adoption.since >= STOPPED_MAX_S and not adoption.woken:
                adoption.woken = True
                _wake_up(ledger.read_path(adoption.path))
            if now - adoption.since < self._give_up_s + LOCK_SLACK_S:
                return None
            word = ledger.fold(ledger.read_path(adoption.path))
            word.update(how="abandoned", note="its warden is still ending it", at=self._clock.wall())
            return self._ended(process_id, word, proven=False)
        try:
            return self._read_verdict(adoption, held, now)
        finally:
            held.close()

    def _read_verdict(self, adoption: Adoption, held: Ledger, now: float) -> ProcessEnded | None:
        process_id, words = adoption.process_id, held.words
        last = ledger.said(words, "swept") or ledger.said(words, "empty")
        if last is not None:
            return self._ended(process_id, last, proven=last.get("proven", True))
        if ledger.said(words, "spawning") is None:
            if ledger.said(words, "void") is None:
                held.write({"word": "void", "at": self._clock.wall()})
            return self._not_started(process_id, "never spawned")
        word = ledger.fold(words)
        word.update(how="abandoned", at=self._clock.wall())
        sent = ledger.said(words, "sent")
        if self._boot and sent is not None and sent["boot"] != self._boot:
            word["note"] = "the machine was restarted, which nothing of it can have outlived"
            return self._ended(process_id, word, proven=True)
        # The warden was killed. While its zygote lives, that is about to take the lock over and to finish its work;
        # it cannot have written between our reading and its death, for it writes only under the lock we hold.
        if _zygote_lives(words) and now - adoption.since < self._give_up_s + LOCK_SLACK_S:
            return None
        if adoption.leftover is None:
            adoption.leftover = leftover = self._leftover(process_id, "its warden left no last word", words)
            self._beside(lambda: leftovers.end(leftover), lambda: setattr(leftover, "done", True))
        if not adoption.leftover.done:
            return None
        verdict = self._verdict(ledger.fold(words), adoption.leftover)
        held.write(verdict)
        return self._ended(process_id, verdict, proven=verdict["proven"])

    def _forget(self, process_id: str) -> None:
        tree = self._trees.get(process_id)
        if tree is not None and tree.phase is not Phase.ENDED:
            tree.forgotten = True
            return
        self._trees.pop(process_id, None)
        adoption = self._adoptions.pop(process_id, None)
        if adoption is not None and adoption.alarm is not None:
            adoption.alarm.cancel()
        self._path(process_id).unlink(missing_ok=True)

    # ── Closing ───────────────────────────────────────────────────────────────────────────────────

    def _begin_closing(self) -> None:
        self._closing = True
        for adoption in self._adoptions.values():
            if adoption.alarm is not None:
                adoption.alarm.cancel()
        self._adoptions.clear()
        for tree in list(self._trees.values()):
            self._kill(tree.process_id, 0.0)
        self._check_quiet()

    def _check_quiet(self) -> None:
        if self._closing and all(tree.phase is Phase.ENDED for tree in self._trees.values()):
            self._quiet.set()

    def _end_zygotes(self) -> None:
        for tree in list(self._trees.values()):
            self._abandon(tree, "not proven gone when the supervisor shut down")
            if tree.phase is not Phase.ENDED and tree.last is not None:
                self._tell_exit_at_last(tree)
        for zygote in list(self._zygotes):
            zygote.close()
        if not self._zygotes:
            self._no_zygote.set()

    def _kill_zygotes(self) -> None:
        for zygote in list(self._zygotes):
            zygote.kill()

    # ── Small things ──────────────────────────────────────────────────────────────────────────────

    def _note_boot(self) -> bool:
        """Write down this boot, durably; True if the last daemon here ran in another one.

        Ledgers are not synced, so after a loss of power a missing one does not say that nothing was spawned.
        """
        path = self._dir / "boot"
        before = path.read_text() if path.exists() else self._boot
        with path.open("w") as file:
            file.write(self._boot)
            file.flush()
            os.fsync(file.fileno())
        return before != self._boot

    def _path(self, process_id: str) -> Path:
        return self._dir / f"{quote(process_id, safe='')}.ledger"

    def _close_socket(self, tree: Tree) -> None:
        if tree.sock is not None:
            self._reactor.unwatch(tree.sock.fileno())
            tree.sock.close()
            tree.sock = None

    def _close_pipe(self, tree: Tree, stream: str) -> None:
        fd = tree.pipes.pop(stream)
        self._reactor.unread(fd)
        os.close(fd)

    def _close_descriptors(self, tree: Tree) -> None:
        self._close_socket(tree)
        for stream in list(tree.pipes):
            self._close_pipe(tree, stream)

    def _tell(self, owner: ActorRef[Any] | None, report: ProcessNews) -> None:
        """Tell the owner. A dead one is no error: what it missed is kept for whoever adopts the tree."""
        if owner is not None:
            tell_contained(owner, report)

    def _not_started(self, process_id: str, note: str) -> ProcessEnded:
        return ProcessEnded(process_id, How.NOT_STARTED, proven=True, at=self._clock.wall(), note=note)

    @staticmethod
    def _ended(process_id: str, word: Word, *, proven: bool) -> ProcessEnded:
        """The report of a last word. Where nobody saw the command itself end, it is gone if that is proven."""
        unseen = How.GONE if proven else How.ABANDONED
        how = How(word["how"]) if word["how"] is not None else unseen
        return ProcessEnded(
            process_id,
            how=how,
            proven=proven,
            at=word["at"],
            status=word["status"],
            pid=word["pid"],
            started_at=word["started_at"],
            reaped=word["reaped"],
            rows=tuple(_row(row) for row in word["rows"]),
            signals=tuple(_signalled(signal) for signal in word["signals"]),
            note=word["note"],
        )


def _wake_up(words: list[Word]) -> None:
    """Continue the warden of a ledger, and its zygote, where they still are who they were."""
    warden = ledger.said(words, "warden")
    for one in (warden, warden["zygote"]) if warden is not None else ():
        if one is None or one.get("start_ticks") is None:
            continue
        try:
            fd = os.pidfd_open(one["pid"])
        except OSError:
            continue
        seen = procfs.stat(one["pid"])
        try:
            if seen is not None and seen.start_ticks == one["start_ticks"]:
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        except OSError as error:
            logger.warning("a stopped {} cannot be continued: {}", seen.name if seen else "process", error)
        finally:
            os.close(fd)


def _zygote_lives(words: list[Word]) -> bool:
    """True if the zygote that the warden was forked by is the process that has its pid now."""
    warden = ledger.said(words, "warden")
    if warden is None or warden["zygote"] is None:
        return False
    seen = procfs.stat(warden["zygote"]["pid"])
    return seen is not None and seen.state not in "ZX" and seen.start_ticks == warden["zygote"]["start_ticks"]


def _sweep(bases: set[str], ours: str | None, spare: frozenset[str]) -> None:
    """End the cgroups of dead wardens below `bases`, but those to `spare`, and remove bases that are not `ours`."""
    for base in bases:
        cgroups.sweep(base, SWEEP_S, spare)
        if base != ours:
            cgroups.leave(base)


def _remaining(process_id: str, word: Word) -> ProcessRemaining:
    return ProcessRemaining(process_id, word["at"], tuple(_row(row) for row in word["rows"]), word["note"])


def _row(word: Word) -> Row:
    unseen = How.GONE if word["ended_at"] is not None else None
    return Row(
        kind=word.get("kind", "process"),
        name=word["name"],
        started_at=word["started_at"],
        ended_at=word["ended_at"],
        how=How(word["how"]) if word["how"] is not None else unseen,
        status=word["status"],
        signals=tuple(_signalled(signal) for signal in word["signals"]),
        pid=word["pid"],
        note=word.get("note", ""),
    )


def _signalled(word: Word) -> Signalled:
    return Signalled(word["signal"], word["at"], word["error"])
