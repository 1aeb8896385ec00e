"""The warden of one process tree: spawns its command, reaps all of it, ends it, and proves that it is gone.

Theory of operation. A warden is a fork of the zygote: one thread, its own session, a *subreaper*, so every
descendant whose parent dies becomes its child, whatever sessions and double forks it made. From that
follows the proof: a non-empty tree has at least one child of the warden (go up from any member; the last
link below the warden is one), so when wait says ECHILD, the tree is gone. A new member can only be forked
by a member.

Spawning. While it has no tree it makes ready what a spawn needs (`Ready`): its session, the tree's cgroup, and a
*seed*, a child in that cgroup that waits to become the command. The seed is given the command at once and prepares
its execution, while the warden locks the ledger, looks whether it still may, and writes that it will; a spawn is then
an exec.

It talks with the daemon over a SEQPACKET socket of its own. Requests: ``kill`` with a grace. Words:
``started`` or ``failed``, ``exited`` (the command itself), ``remaining`` (some cannot be killed), ``empty``
(the proof, and what was seen). The same words go into its ledger, which it locks before it spawns.

Ending. With a grace: SIGTERM, then SIGCONT, once to each process of the tree, and then nothing until nobody
is left or the deadline passes; what a SIGTERM handler forks to clean up is not disturbed. (On a terminal SIGHUP
follows at half of the grace: an interactive shell does not heed a SIGTERM.) At the deadline,
in rounds: SIGKILL to all own children and their groups, reap, again. Each round makes orphans of the next
level its children. A tree that still has new members after ROUNDS_MAX rounds is stopped, all of it, until a
pass over it finds nobody new, and then killed. Where the tree has a cgroup, that is killed and removed first,
which takes everybody at once, also whom we may not signal; the rounds are then for who went into another
one. A second ``kill`` can only bring the deadline nearer. Who
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
* *The seed is killed while it waits*: its socket says so, and another takes its place.
* *Without layer 2* (it can be switched off) ECHILD proves nothing; the removed cgroup does, else nothing is claimed.
* *In a namespace* (namespaces.py) orphans fall to its keeper, our child, which reports them; ECHILD comes when it is
  reaped, which the kernel allows only when all of them are gone. It asks and kills for us, all in one step.
* *The warden itself is killed*: the zygote is a subreaper too, gets the orphans, and does the same
  (zygote.py).

Standard library only, few imports: the zygote has loaded this before it forks.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import time
from binascii import a2b_base64
from contextlib import suppress
from functools import partial

from supervisor.containment import anchor, cgroups, procfs
from supervisor.containment.ledger import ROWS_MAX, SIGNALS_MAX, Ledger, decode, encode, how_of, read, said
from supervisor.containment.namespaces import Namespace, mount_proc
from supervisor.containment.packets import receive
from supervisor.containment.remaining import Remaining, began
from supervisor.containment.remote import SOUGHT_MAX, FarSides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

LAST_WORD = 0
"""Exit status of a warden that has written ``empty``; any other end leaves the tree to the zygote."""
FAILED = 70
ROUNDS_MAX = 10
REAPED_A_TURN = 256
STOPPED_MAX = 20_000
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
NOTE_MAX_BYTES = 4096
PREPARE, GO = b"p", b"g"
"""What a seed is told, each in a message of its own: with the descriptors of the command, and to become it."""
ANCHOR = b"anchor "
"""What a seed says first, and the pid of its anchor; anything else that it says is why it could not."""
LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "as_bytes": resource.RLIMIT_AS,
    "cpu_s": resource.RLIMIT_CPU,
    "core_bytes": resource.RLIMIT_CORE,
    "fsize_bytes": resource.RLIMIT_FSIZE,
}
LAYERS = frozenset({"cgroup", "subreaper", "zygote", "marker"})
"""What can be switched off; with all of them a process has to get past each."""
OPTIONAL_LAYERS = frozenset({"namespace"})
"""What has to be asked for."""
KEEPER_ALONE_S = 0.5
"""How long the keeper of a namespace is given to go on if it is stopped, before it is killed, which ends all of it."""
IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXFSZ,
)
"""What a tree could send its warden, or a terminal its zygote, that would end or stop it."""


def wake_on_child() -> int:
    """Make every SIGCHLD readable on the descriptor returned; the pipe of an earlier call stays the caller's."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def go_first(pid: int = 0) -> None:
    """Run before ordinary processes, if we may (root, or CAP_SYS_NICE); what we fork or spawn does not inherit it.

    `pid`: an unreaped child of ours, instead of us.

    A tree of hundreds of sessions has hundreds of shares of the processor and its warden has one, so without this
    seconds can pass before a kill is even read. A warden sleeps but for the moments in which it reaps or kills.
    """
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def go_with_the_others(pid: int) -> None:
    """Take back what `go_first` gave to an unreaped child."""
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def drain(fd: int) -> None:
    """Empty a wake-up pipe."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def readable(fd: int) -> bool:
    """True if a read of `fd` would not block (also at its end, or for the pidfd of a dead process)."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def signal_name(number: int) -> str:
    """SIGTERM for 15; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def kill_quietly(pid: int, number: int) -> str | None:
    """Signal an unreaped child; the error's text if it was refused, None if sent or already dead."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    except OSError as error:
        return os.strerror(error.errno or errno.EPERM)
    return None


def kill_descendant(pid: int, number: int) -> tuple[bool, str | None]:
    """Signal a descendant that is not our child: by pidfd, and only if it still descends from us.

    Returns whether it is ours, and the error's text if the signal was refused.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False, None
    try:
        if not procfs.descends_from(pid, os.getpid()):
            return False, None
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True, None
    except OSError as error:
        return True, os.strerror(error.errno or errno.EPERM)
    finally:
        os.close(fd)
    return True, None


def freeze_then_kill(spare: frozenset[int] | set[int] = frozenset()) -> None:
    """Stop every descendant until a pass finds nobody new, then kill them all: for a tree that outruns the rounds.

    Children in `spare`, and what is below them, are left alone.
    """
    stopped: set[int] = set()
    while fresh := [pid for pid in procfs.descendants(spare) if pid not in stopped]:
        # Who is gone when its turn comes counts too: whoever it left is found by the next pass.
        stopped.update(fresh)
        signal_each(fresh, signal.SIGSTOP)
        if len(stopped) > STOPPED_MAX:
            break
    signal_each(procfs.descendants(spare), signal.SIGKILL)


def signal_each(pids: list[int], number: int) -> None:
    """Signal descendants, each as its kind allows."""
    own = set(procfs.own_children())
    for pid in pids:
        if pid in own:
            kill_quietly(pid, number)
        else:
            kill_descendant(pid, number)


def keep_descriptors(*kept: int) -> None:
    """Close all descriptors but the first three and these."""
    for low, high in zip([2, *sorted(kept)], [*sorted(kept), 2**30], strict=True):
        os.closerange(low + 1, high)


class Seed:
    """A child that waits to become the command: forked while there was time, in the tree's cgroup from the beginning.

    It takes two steps: `prepare` does all that comes before an exec, and that nobody else can see; `go` executes. The
    first, or else `outcome`, raises BrokenPipeError or ConnectionResetError if it was killed while it waited. The
    constructor raises OSError.
    """

    def __init__(self, group: str | None, namespace: Namespace | None) -> None:
        if namespace is not None:
            namespace.open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leash, self._leash = os.pipe()
        self.anchor = 0
        self._unread: OSError | None = None
        self._keeper = namespace.pid if namespace is not None else None
        try:
            self.pid, inside = cgroups.fork_into(group)
            if self.pid == 0:
                grow(theirs, leash, None if inside else group, own_proc=namespace is not None)
        except OSError:
            ours.close()
            os.close(self._leash)
            raise
        finally:
            theirs.close()
            os.close(leash)
        self._sock = ours

    def prepare(self, fds: list[int]) -> None:
        """Give it the command, which the last of `fds` holds, and for its output the others."""
        socket.send_fds(self._sock, [PREPARE], fds)

    def go(self) -> None:
        """Let it become the command. What one that has ended before has said is still in the socket."""
        try:
            self._sock.send(GO)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._unread = error

    def outcome(self) -> str:
        """Wait until it is the command; why it could not be, or empty."""
        with self._sock:
            # Its end of the socket closes with the exec.
            note = self._read_out()
        if note:
            os.waitpid(self.pid, 0)
        return note

    def weigh_anchor(self) -> int:
        """It is the command now: let its anchor end; returns the anchor's pid, which is to be reaped, or 0."""
        if self.anchor:
            # The end of its pipe is not enough for one that somebody has stopped.
            kill_quietly(self.anchor, signal.SIGKILL)
        os.close(self._leash)
        return self.anchor

    def dismiss(self) -> None:
        """It is not needed, or has ended by itself: kill and reap it, and its anchor."""
        self._sock.close()
        os.close(self._leash)
        kill_quietly(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        # It may not have come to say who its anchor is. Without a command we have no other child.
        for pid in procfs.own_children():
            if pid != self._keeper:
                kill_quietly(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _read_out(self) -> str:
        """Who its anchor is, and then why it could not; empty at the end."""
        while True:
            try:
                said = self._sock.recv(NOTE_MAX_BYTES)
            except ConnectionResetError as error:
                # It has not read all; that is told once, and ahead of what it has said.
                self._unread = error
                continue
            if said.startswith(ANCHOR):
                self.anchor = int(said[len(ANCHOR) :])
                continue
            if not said and self._unread is not None:
                raise self._unread
            return said.decode()


def grow(sock: socket.socket, leash: int, group: str | None, *, own_proc: bool) -> None:
    """In the forked child: wait for the command and execute it; never returns. Says on `sock` why it could not."""
    try:
        keep_descriptors(sock.fileno(), leash)
        # Before ordinary processes up to the exec, which somebody waits for; the warden takes it back at that moment.
        go_first()
        if group is not None:
            cgroups.join(group)
        if own_proc:
            mount_proc()
        os.setsid()
        with open(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), "rb") as null:
            os.dup2(null.fileno(), 0)
        for ignored in signal.valid_signals():
            if signal.getsignal(ignored) is signal.SIG_IGN:
                signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        rehearse()
        if not own_proc:
            # In a namespace of its own it would be told by another number than ours.
            sock, pid = anchor.cast(sock, leash)
            sock.send(b"%s%d" % (ANCHOR, pid))
        _, fds = receive(sock, len(PREPARE))
        if fds:
            for place, fd in enumerate(fds[:2], start=1):
                os.dup2(fd, place)
            execute = prepare(command_in(fds[2]))
            if sock.recv(len(GO)) == GO:
                sock.send(execute().encode()[:NOTE_MAX_BYTES])
    except OSError as error:
        sock.send(f"cannot prepare a process: {error.strerror}".encode())
    finally:
        os._exit(FAILED)


def command_in(fd: int) -> Word:
    """The command that a file in memory holds."""
    return decode(os.pread(fd, os.fstat(fd).st_size, 0))


def prepare(spec: Word) -> Callable[[], str]:
    """Prepare the command of `spec`; returns what executes it, and returns only if that cannot be done: the reason.

    It has nothing on its input unless asked, no descriptor but the three, and the limits of `spec`.
    """
    what = "cannot prepare its input"
    try:
        if "pty" in spec:
            # The leader of a session that has no terminal gets the first that it opens as its own.
            take_input(os.open(spec["pty"], os.O_RDWR | os.O_CLOEXEC))
        elif "stdin" in spec:
            take_input(input_file(spec["stdin"]))
        what = f"cannot enter the directory {spec['cwd']!r}"
        os.chdir(spec["cwd"])
        what = f"cannot execute {spec['argv'][0]!r}"
        argv = [exact(word) for word in spec["argv"]]
        env = {exact(name): exact(value) for name, value in spec["env"].items()}
        paths = [exact(path) for path in candidates(spec["argv"][0], spec["env"].get("PATH", os.defpath))]
    except OSError as error:
        return partial(why_not, what, error.errno)
    except ValueError as error:
        # Such as a NUL byte in an argument: the words are the caller's and so is the mistake.
        return partial(str, f"{what}: {error}")

    def execute() -> str:
        try:
            limit(spec.get("limits", {}))
            return why_not(what, execute_first(paths, argv, env))
        except OSError as error:
            return why_not(what, error.errno)

    return execute


def why_not(what: str, number: int | None) -> str:
    """What could not be done, and the kernel's reason."""
    return f"{what}: {os.strerror(number or errno.EPERM)}"


def limit(limits: dict[str, int]) -> None:
    """Set our resource limits, for good, and never to more than we may have; raises OSError."""
    for name, value in limits.items():
        most = resource.getrlimit(LIMITS[name])[1]
        least = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(LIMITS[name], (least, least))


def take_input(fd: int) -> None:
    """Make `fd` what this process reads from; it is closed."""
    os.dup2(fd, 0)
    os.close(fd)


def input_file(data: str) -> int:
    """Open a file in memory with what a command is to read, given as base64; it can be read and nothing else."""
    written = os.memfd_create("countermand-input", os.MFD_CLOEXEC)
    with os.fdopen(written, "wb") as file:
        file.write(a2b_base64(data))
        file.flush()
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)


def exact(text: str) -> bytes:
    """A word as exec takes it; raises ValueError for one that it cannot take."""
    word = os.fsencode(text)
    if b"\0" in word:
        raise ValueError("embedded null byte")
    return word


def execute_first(paths: list[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """Try each path. As a shell does it: what is there and cannot be run is a better reason than what is not there."""
    number = errno.ENOENT
    for path in paths:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if number == errno.ENOENT:
                number = error.errno or errno.EPERM
    return number


def candidates(program: str, path: str) -> list[str]:
    """Where a program may be: itself, if it names a place, else what exists of that name in the search path."""
    if "/" in program:
        return [program]
    places = [os.path.join(place or ".", program) for place in path.split(":")] if program else []
    return [place for place in places if os.path.exists(place)]


class Killing:
    """Rounds of SIGKILL over our own children, except those we `spare`; shared by wardens and the zygote."""

    def __init__(self) -> None:
        self._sent: set[int] = set()
        self.refused: dict[int, str] = {}
        self._rounds = 0
        self.groups: set[int] = set()

    def round(self, spare: frozenset[int] | set[int] = frozenset()) -> tuple[list[int], dict[int, str]]:
        """Signal those not signalled yet. Returns their pids, and of those who refused, why."""
        for pid in list(self.refused):
            # It may have become somebody whom we may signal, as `sudo` does when it executes what it was asked to.
            if kill_quietly(pid, signal.SIGKILL) is None:
                del self.refused[pid]
        if self.refused:
            # While it lives, who is below it does not become our child.
            signal_each([pid for pid in procfs.descendants(spare) if pid not in self._sent], signal.SIGKILL)
        fresh = self.fresh(spare)
        refused: dict[int, str] = {}
        for pid in fresh:
            error = kill_quietly(pid, signal.SIGKILL)
            if error is not None:
                refused[pid] = self.refused[pid] = error
        self._sent.update(fresh)
        self.groups = foreign_groups(fresh)
        for group in self.groups:
            # A member of it is our child and not reaped, so the number still names this group.
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        if not fresh:
            # Those killed before may still be dying, and who they leave is yet to come: the count goes on.
            return fresh, refused
        self._rounds += 1
        if self._rounds >= ROUNDS_MAX:
            freeze_then_kill(spare)
        return fresh, refused

    def fresh(self, spare: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Our children that were not signalled yet."""
        return [pid for pid in procfs.own_children() if pid not in self._sent and pid not in spare]

    def reaped(self, pid: int) -> None:
        """The pid is free again and may come back as somebody new."""
        self._sent.discard(pid)
        self.refused.pop(pid, None)

    def over(self) -> None:
        """Nobody is left: what comes later is counted from the beginning."""
        self._rounds = 0


def foreign_groups(pids: list[int]) -> set[int]:
    """The process groups of our children in `pids`, without those of our own session."""
    session = os.getsid(0)
    seen = [procfs.stat(pid) for pid in pids]
    return {found.pgid for found in seen if found is not None and found.sid != session}


def rehearse() -> None:
    """Go once through what a spawn does, on a file in memory.

    A fork shares its memory with its parent until either writes to it, so the first time costs a page fault for each
    page; those are had before somebody waits.
    """
    fd = os.memfd_create("rehearsal", os.MFD_CLOEXEC)
    try:
        with suppress(OSError, ValueError):
            ledger = Ledger(fd)
            ledger.write({"word": "spawning", "argv": ["true"], "env": {"PATH": os.defpath}, "cwd": os.getcwd()})
            prepare(command_in(fd))
            said(read(fd), "void")
            procfs.stat(os.getpid())
            procfs.command_line(os.getpid())
            readable(fd)
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with one, other:
                socket.send_fds(one, [PREPARE], [fd])
                for copy in receive(other, len(PREPARE))[1]:
                    os.close(copy)
            FarSides().see(["true"])
            limit({})
            execute_first([b"/no/such/program"], [b"true"], {})
            time.monotonic()
    finally:
        os.close(fd)


class Ready:
    """What a warden can make ready before it has a tree: its session, its group, its wake-up pipe, its seed."""

    def __init__(self, layers: frozenset[str], base: str | None) -> None:
        os.setsid()
        go_first()
        self.layers = layers
        me, heir = procfs.stat(os.getpid()), procfs.stat(os.getppid())
        self.word: Word = {
            "word": "warden",
            "pid": os.getpid(),
            "start_ticks": me.start_ticks if me is not None else None,
            "zygote": {"pid": heir.pid, "start_ticks": heir.start_ticks} if heir is not None else None,
            "at": time.time(),
        }
        self.wake = wake_on_child()
        self.group = cgroups.create_tree(base) if base is not None else None
        self.namespace = Namespace() if "namespace" in layers else None
        self.seed: Seed | None = None
        # The request that comes tries again, and says why.
        with suppress(OSError):
            self.seed = Seed(self.group, self.namespace)
        rehearse()

    def prepare(self, fds: list[int]) -> None:
        """The command has come: let the seed prepare it. One that was killed while it waited is missed later."""
        if self.seed is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                self.seed.prepare(fds)

    def dismiss(self) -> None:
        """No tree came."""
        if self.seed is not None:
            self.seed.dismiss()
        if self.namespace is not None:
            self.namespace.close()
        if self.group is not None:
            cgroups.remove(self.group)


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
            except (BrokenPipeError, ConnectionResetError):
                # It was killed while it waited, and has not read that it should go.
                seed.dismiss()
        seed = Seed(self._group, self._namespace)
        try:
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
            busy = reaped == REAPED_A_TURN
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

        At most REAPED_A_TURN: a tree that forks and dies as fast as we reap must not keep us from killing it.
        """
        for count in range(REAPED_A_TURN):
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
        return REAPED_A_TURN

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
            self._name_far_sides(words or ([seen.name] if seen.state in "ZX" else []))
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
        at = [(pid, seen.pgid) for pid in rows if (seen := procfs.stat(pid)) is not None]
        fresh, refused = self._killing.round(spare)
        for pid in fresh:
            self._see(pid, "")
            if pid in self._rows or pid in refused:
                self._signalled(pid, signal.SIGKILL, refused.get(pid))
        for pid, group in at:
            if group in self._killing.groups and pid not in fresh:
                self._signalled(pid, signal.SIGKILL, None)
        if fresh:
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
            for number in (politely, signal.SIGCONT):
                self._tell_all(self._namespace, number)
            return
        own = set(procfs.own_children())
        everybody = procfs.descendants()
        ours = os.getpgrp()
        in_group: dict[int, int] = {}
        for pid in everybody:
            self._see(pid, "")
            seen = procfs.stat(pid)
            if seen is not None:
                in_group[pid] = seen.pgid
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

    def _tell_all(self, namespace: Namespace, number: int) -> None:
        """Have everybody in the namespace signalled, and record it of those who are seen now."""
        everybody = [pid for pid in procfs.descendants() if not self._is_ours(pid)]
        for pid in everybody:
            self._see(pid, "")
        namespace.signal(number)
        for pid in everybody:
            if number != signal.SIGKILL or pid in self._rows:
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
