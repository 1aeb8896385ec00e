"""What the processes of a case do. A script: ``python -I -S roles.py ROLE SEEN TOKEN``, standard library only.

Each process tells that it is there by one line in the file SEEN, so that it is found whatever it makes of its
environment and its name later:

    is PID TICKS      a process, and the start time that makes the pid its own (field 22 of /proc/PID/stat)
    hears PID TICKS   the same, and it will write `heard` at a SIGTERM
    heard PID SIGNAL  it did
    group PATH        a control group that it made
    host PID TICKS    the process that the agent runs in, if that has started the case; see `hosted`
    far PID TICKS     a process that another daemon started on request, so that no stop of its asker reaches it
    namespace PID-NS  the namespace that the numbers in this file are of, as /proc/self/ns/pid has it
    beat              somebody that has no time for more is alive

Every role ends by itself after LIFE_S, and those that keep a processor busy after BUSY_S, or once SEEN is removed.

It has over 600 lines, and is whole: it is one script, which runs where nothing else of the project is.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LIFE_S = 240.0
BUSY_S = 15.0
BORN = time.monotonic()
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_O_TRACEEXIT = 0x4206, 0x4207, 0x40
WALL = 0x40000000
BOMB_MAX = 400
seen_fd = -1


# ── What roles are made of ────────────────────────────────────────────────────────────────────────


def identity(pid: int | str = "self") -> tuple[int, int, int, str]:
    """Pid, parent, start time in ticks, and name of a process, as the /proc here has them."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    text = os.read(fd, 4096).decode(errors="replace")
    os.close(fd)
    fields = text[text.rindex(")") + 2 :].split()
    return int(text.split(" ", 1)[0]), int(fields[1]), int(fields[19]), text[text.index("(") + 1 : text.rindex(")")]


def write(line: str) -> None:
    """Append a line to what was seen, in one write."""
    os.write(seen_fd, f"{line}\n".encode())


def note(word: str = "is") -> None:
    """Say that this process is there."""
    pid, _, ticks, _ = identity()
    write(f"{word} {pid} {ticks}")


def start(*work: Callable[[], object]) -> int:
    """Fork a child that notes itself, does its work, one thing after the other, and exits."""
    pid = os.fork()
    if pid == 0:
        try:
            note()
            for act in work:
                act()
        finally:
            os._exit(0)
    return pid


def start_up(*work: Callable[[], object]) -> int:
    """As `start`, and wait until the child has noted itself."""
    readable, writable = os.pipe()
    pid = start(lambda: os.write(writable, b"."), *work)
    os.read(readable, 1)
    return pid


def start_program(*work: Callable[[], object]) -> int:
    """As `start`, and wait until the child has become the program that its work executes."""
    # Its end of the pipe is closed by the exec.
    readable, writable = os.pipe()
    pid = start(*work)
    os.close(writable)
    os.read(readable, 1)
    os.close(readable)
    return pid


def start_detached(*work: Callable[[], object]) -> None:
    """As `start`, in a session of its own, by a parent that is gone."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        start(*work)
        os._exit(0)
    os.waitpid(pid, 0)


def rest() -> None:
    """Live to the end."""
    while (left_s := BORN + LIFE_S - time.monotonic()) > 0:
        time.sleep(left_s)


def busy() -> bool:
    """True while a role may go on keeping a processor busy: not for long, and only while its file has a name."""
    return time.monotonic() < BORN + BUSY_S and os.fstat(seen_fd).st_nlink > 0


def deaf() -> None:
    """Ignore what asks to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def silent() -> None:
    """Let go of the output, as a daemon does."""
    fd = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(fd, number)


def new_session() -> None:
    """Have a session of one's own."""
    if os.getsid(0) != os.getpid():
        os.setsid()


def prctl(option: int, value: int | bytes) -> None:
    """Set one attribute of this process; raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def hold(pid: int, options: int) -> None:
    """Trace a process and keep it stopped; raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    for request, data in ((PTRACE_SEIZE, options), (PTRACE_INTERRUPT, 0)):
        if libc.ptrace(request, pid, None, data) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, WALL)


def own_group() -> str:
    """The path of this process's control group in the hierarchy of version 2."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        return next(line[3:].strip() for line in file if line.startswith("0::"))


def join_group(path: str) -> None:
    """Make a control group and move into it."""
    write(f"group {path}")
    os.mkdir(path)
    with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
        file.write("0")
    note()


def warden() -> int:
    """The pid of the warden above."""
    pid = os.getpid()
    while pid > 1:
        _, parent, _, name = identity(pid)
        if name == "cm-warden":
            return pid
        pid = parent
    raise LookupError("there is no warden above")


# ── The roles ─────────────────────────────────────────────────────────────────────────────────────


def plain() -> None:
    """Be one process."""
    note()
    rest()


def polite() -> None:
    """End at a SIGTERM, and say so."""

    def end(number: int, _: object) -> None:
        write(f"heard {identity()[0]} {number}")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    note("hears")
    rest()


def ignores() -> None:
    """Ignore what asks to end, with a child that does so, too."""
    deaf()
    start(rest)
    note()
    rest()


def daemon() -> None:
    """Leave a daemon that executes another program."""

    def work() -> None:
        os.chdir("/")
        silent()
        os.execv("/bin/sleep", ["sleep", str(int(LIFE_S))])

    start_detached(work)
    note()
    rest()


def twice() -> None:
    """Leave three daemons that have made two sessions each."""
    for _ in range(3):
        start_detached(lambda: start_detached(silent, deaf, rest))
    note()
    rest()


def walk(pause_s: float) -> None:
    """Fork and let the parent exit, again and again, each in a session of its own."""
    while busy():
        if os.fork():
            os._exit(0)
        new_session()
        write("beat")
        time.sleep(pause_s)


def chain() -> None:
    """A walker that takes its time."""
    start(silent, lambda: walk(0.05))
    note()
    rest()


def walkers() -> None:
    """Three walkers that run."""
    for _ in range(3):
        start(silent, lambda: walk(0.0))
    note()
    rest()


def bomb() -> None:
    """Fork as often as possible: each child does the same; all together up to a bound."""
    import mmap

    count = mmap.mmap(-1, 8)
    deaf()
    silent()
    note()
    while busy():
        made = int.from_bytes(count[:8], "little") + 1
        if made > BOMB_MAX:
            break
        count[:8] = made.to_bytes(8, "little")
        if os.fork() == 0:
            new_session()
            note()
        time.sleep(0.002)
    rest()


def tree() -> None:
    """Twenty processes on three levels."""
    for _ in range(4):
        start(*(lambda: start(rest),) * 4, rest)
    note()
    rest()


def deep() -> None:
    """Sixty generations, each the only child of the one before it."""
    for _ in range(60):
        if os.fork():
            break
    note()
    rest()


def thousand() -> None:
    """A thousand children."""
    for _ in range(999):
        if os.fork() == 0:
            rest()
            os._exit(0)
    note()
    rest()


def thousand_away() -> None:
    """A thousand processes in sessions of their own, whose parents are gone."""
    for _ in range(99):
        middle = os.fork()
        if middle == 0:
            for _ in range(10):
                if os.fork() == 0:
                    os.setsid()
                    rest()
                    break
            os._exit(0)
        os.waitpid(middle, 0)
    note()
    rest()


def burst() -> None:
    """Print fifty megabytes, then stay."""
    note()
    piece, left = b"x" * 65_535 + b"\n", 50_000_000
    while left > 0:
        left -= os.write(1, piece)
    rest()


def blocks() -> None:
    """Block every signal, and so does a child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    start(rest)
    note()
    rest()


def storm() -> None:
    """Spawn programs that exit at once, as fast as four processes can."""

    def spawn() -> None:
        while busy():
            os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
            write("beat")

    for _ in range(4):
        start(spawn)
    note()
    rest()


def vfork_held() -> None:
    """A parent that waits uninterruptibly for a child that does not come to its exec."""
    path = f"{sys.argv[2]}.fifo"
    os.mkfifo(path)
    actions = [(os.POSIX_SPAWN_OPEN, 9, path, os.O_RDONLY, 0)]
    start(lambda: os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=actions))
    note()
    rest()


def leaves_group() -> None:
    """A child that moves to a control group beside that of its tree."""
    start(silent, lambda: join_group(f"{os.environ['CM_GAUNTLET_GROUPS']}/{sys.argv[3]}"), rest)
    note()
    rest()


def nests_group() -> None:
    """A child that makes a control group below that of its tree."""
    mount = os.environ["CM_GAUNTLET_CGROUP2"]
    start(lambda: join_group(f"{mount}{own_group().rstrip('/')}/{sys.argv[3]}"), deaf, rest)
    note()
    rest()


def setuid() -> None:
    """A child that executes a program that is another user's, with that user's rights."""
    start(lambda: os.execv(os.environ["CM_GAUNTLET_SETUID"], ["sleep", "100"]))
    note()
    rest()


def other_user() -> None:
    """A child that becomes another user's process entirely, as `sudo` makes one."""
    argv = ["setpriv", "--reuid=0", "--regid=0", "--clear-groups", "sleep", "10"]
    start(lambda: os.execv(os.environ["CM_GAUNTLET_SETPRIV"], argv))
    note()
    rest()


def tracer() -> None:
    """Hold a child by ptrace."""
    deaf()
    hold(start_up(rest), 0)
    note()
    rest()


def tracer_at_exit() -> None:
    """Trace somebody whose parent is gone, so that they stop once more where they exit."""
    readable, writable = os.pipe()
    start_detached(lambda: os.write(writable, b"%d\n" % os.getpid()), rest)
    deaf()
    new_session()
    hold(int(os.read(readable, 100)), PTRACE_O_TRACEEXIT)
    note()
    rest()


def hydra() -> None:
    """Answer a SIGTERM with three children that ignore it."""

    def grow(number: int, _: object) -> None:
        write(f"heard {identity()[0]} {number}")
        for _ in range(3):
            start(new_session, deaf, rest)

    signal.signal(signal.SIGTERM, grow)
    note("hears")
    rest()


def renamed() -> None:
    """Take a name that is hard to parse, and ask to be told of the parent's death."""

    def work() -> None:
        deaf()
        prctl(PR_SET_NAME, b") R 1 1 (")
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        note()
        rest()

    start(work)
    note()
    rest()


def invisible() -> None:
    """Execute a program under another name, without an environment, in another session."""

    def work() -> None:
        new_session()
        silent()
        os.execve("/bin/sleep", ["kworker/0:1", str(int(LIFE_S))], {})

    start_detached(work)
    note()
    rest()


def threads() -> None:
    """Sixteen threads, each with mapped memory of its own."""
    import mmap
    import threading

    def work() -> None:
        memory = mmap.mmap(-1, 1 << 20)
        while busy():
            memory[: 1 << 16] = b"x" * (1 << 16)
            time.sleep(0.02)

    for _ in range(16):
        threading.Thread(target=work).start()
    note()
    rest()


def threads_at_work() -> None:
    """Eight threads that each want a processor: what they do needs no lock of the interpreter's."""
    import hashlib
    import threading

    def work() -> None:
        while busy():
            hashlib.sha256(bytes(1 << 20))

    for _ in range(8):
        threading.Thread(target=work).start()
    note()
    rest()


def subreaper() -> None:
    """Collect the orphans below, and never reap one."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    deaf()
    for _ in range(3):
        start(lambda: start_detached(rest))
    note()
    rest()


def kills_parent() -> None:
    """Kill the shell that started this."""
    os.kill(os.getppid(), signal.SIGKILL)
    note()
    rest()


def closes() -> None:
    """Close every descriptor."""
    note()
    os.closerange(0, 4096)
    rest()


def hup() -> None:
    """Ignore the hang-up in a session of its own."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    start(new_session, rest)
    note()
    rest()


def zombies() -> None:
    """Reap nobody."""
    for _ in range(50):
        start(lambda: os._exit(3))
    note()
    rest()


def execs() -> None:
    """Execute itself again and again."""
    if os.environ.get("CM_GAUNTLET_AGAIN") is None:
        deaf()
        note()
    os.environ["CM_GAUNTLET_AGAIN"] = "1"
    if not busy():
        rest()
    os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv])


def hoppers() -> None:
    """Three children that go from one process group to the next."""

    def hop(groups: list[int]) -> None:
        deaf()
        while busy():
            for group in (0, *groups):
                try:
                    os.setpgid(0, group)
                except OSError:
                    continue
                time.sleep(0.002)

    groups: list[int] = []
    for _ in range(3):
        groups.append(start(lambda: hop(groups)))
    note()
    rest()


def respawner() -> None:
    """Keep three workers, each in a session of its own, whatever becomes of them."""

    def work() -> None:
        new_session()
        write("beat")
        rest()

    deaf()
    note()
    workers = {start(work) for _ in range(3)}
    while busy():
        workers.discard(os.waitpid(-1, 0)[0])
        workers.add(start(work))


def stops_warden() -> None:
    """Stop the warden."""
    start_up(new_session, silent, rest)
    note()
    os.kill(warden(), signal.SIGSTOP)
    rest()


def kills_warden() -> None:
    """Kill the warden."""
    start_up(new_session, silent, rest)
    note()
    os.kill(warden(), signal.SIGKILL)
    rest()


def far_sides() -> None:
    """Two clients of another daemon, one as a shell, one as a container's: what they ask for is started there."""

    def client(name: str, *argv: str) -> Callable[[], None]:
        def work() -> None:
            # The connection outlives the exec, as that of a real one is there for as long as it waits.
            os.set_inheritable(ask_far_side(), True)
            os.execv("/bin/sh", [name, *argv])

        return work

    os.chdir(os.path.dirname(sys.argv[2]))
    with open("exec", "w", encoding="ascii") as script:
        script.write(f"sleep {int(LIFE_S)}; :")
    start_program(client("ssh", "-c", f"sleep {int(LIFE_S)}; :", "host"))
    start_program(client("docker", "exec", "web"))
    note()
    rest()


def ask_far_side() -> int:
    """Have the far side start a process for us; returns the connection once it runs."""
    import socket

    far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    far.connect(os.environ["CM_GAUNTLET_FAR"])
    far.sendall(f"{sys.argv[2]}\n{sys.argv[3]}\n".encode())
    if far.recv(1) != b".":
        raise ConnectionError("the far side has started nothing")
    return far.detach()


def far_server() -> None:
    """Be another daemon: start a process for whoever asks on the socket SEEN, until our input is at its end."""
    import select
    import socket

    os.unlink(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(sys.argv[2])
        server.listen(64)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([server.fileno(), 0], [], [])
            if 0 in ready:
                break
            asker, _ = server.accept()
            with asker, asker.makefile("r", encoding="utf-8") as request:
                started.append(start_far(request.readline().strip(), request.readline().strip()))
                # Whoever asked may be gone, and what was asked for is there all the same.
                try:
                    asker.sendall(b".")
                except OSError:
                    continue
    for fd in started:
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            continue


def start_far(seen: str, token: str) -> int:
    """Start a process with the asker's token, as a far shell would be given it; returns its pidfd, once it is up."""
    global seen_fd  # noqa: PLW0603  # in the child alone
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            seen_fd = os.open(seen, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            new_session()
            note("far")
            os.execve("/bin/sh", ["sh", "-c", f"sleep {int(LIFE_S)}; :"], {"CM_GAUNTLET": token})
        finally:
            os._exit(1)
    os.close(writable)
    os.read(readable, 1)
    os.close(readable)
    return os.pidfd_open(pid)


def can_trace() -> None:
    """Exit with success if a process may trace its child here."""
    pid = os.fork()
    if pid == 0:
        time.sleep(10)
        os._exit(0)
    try:
        hold(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Play the role that is named first; the other two arguments are where to write, and the token to be known by."""
    global seen_fd  # noqa: PLW0603  # every function of this script writes there
    # A collection in a child would copy what it shares with its parent.
    gc.freeze()
    gc.disable()
    seen_fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
