"""The cgroups of process trees: one each, below a group of this state directory's own, where cgroup v2 can be written.

Theory of operation. Below the daemon's own group, which it or its manager may write, lies ``countermand-<key>``,
the key made of the state directory, so that the next daemon finds the groups of a dead one. In it are ``wardens``,
a leaf for the zygote and all wardens, and one group for each tree, named after its warden. No controller is
enabled anywhere, so the rule that inner groups hold no processes does not bind, and nothing of a terminal's
session or a unit is moved: only the zygote and what it forks. The daemon itself goes into a leaf ``daemon``
only where its group was delegated to it and holds no other process; then a manager may enable controllers.

*Forked inside.* A command is forked by clone3 into its tree's group (`fork_into`), so it never runs outside. If clone3
is not available, the fork joins the group (`join`) before it executes anything, so no foreign code runs outside either.
The warden never enters the group, so it is never killed with it. (If the warden entered, forked and left, each spawn
would cost two RCU grace periods, 8 to 16 ms.)

*The proof.* ``cgroup.kill`` reaches every process in the group, also one that is just being forked. It and rmdir are
repeated until rmdir succeeds: a group that can be removed is empty, and no process can enter a removed group. There
are two ways out of it: a process of the same user may write itself into a group beside it, and one of root into any.
So the warden's own layer (ECHILD) runs after this one.

Standard library only: the zygote and the wardens load this file too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from contextlib import suppress

from supervisor.containment.guard import procfs

BASE_PREFIX = "countermand-"
WARDENS = "wardens"
DAEMON = "daemon"
TREE_PREFIX = "tree-"
KILL_FILE = "cgroup.kill"
DELEGATED = ("user.delegate", "trusted.delegate")
PASSES_MAX = 3
RETRY_S = 0.002

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_CLONE3 = 435
CLONE_INTO_CGROUP = 0x200000000


CLONE_ARGUMENTS = struct.Struct("11Q")
"""struct clone_args of the kernel: the flags come first, the signal at the end fifth, the cgroup last."""


# ── Finding a place ───────────────────────────────────────────────────────────────────────────────


def mount_of(mountinfo: str) -> tuple[str, str] | None:
    """The mount point of cgroup v2, and the group at the root of that mount; None if it is not mounted."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if after.split(" ")[0] == "cgroup2" and len(fields) > 4:
            root, point = (field.replace("\\040", " ") for field in fields[3:5])
            return point, root
    return None


def path_of(cgroup: str) -> str | None:
    """The path in the unified hierarchy that a /proc/<pid>/cgroup names; None if it names none."""
    for line in cgroup.splitlines():
        if line.startswith("0::/"):
            return line[3:].removesuffix(" (deleted)")
    return None


def own_group() -> str | None:
    """The directory of this process's group; None where there is no cgroup v2 or our group is outside its mount."""
    return group_with("self")


def group_with(pid: int | str) -> str | None:
    """The directory of the group that a process is in; None where there is no cgroup v2 or it cannot be read."""
    try:
        mount = mount_of(procfs.read_text("/proc/self/mountinfo"))
        path = path_of(procfs.read_text(f"/proc/{pid}/cgroup"))
    except OSError:
        return None
    if mount is None or path is None:
        return None
    point, root = mount
    below = os.path.relpath(path, root)
    return None if below.startswith("..") else os.path.normpath(os.path.join(point, below))


def delegated(group: str) -> bool:
    """True if the machine's cgroup manager (systemd) has delegated this group to us."""
    for name in DELEGATED:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def take_leaf(own: str) -> str:
    """Enter a leaf of `own`, if it was delegated and no other process is in it; returns the group to divide."""
    parent = os.path.dirname(own)
    if os.path.basename(own) == DAEMON and delegated(parent):
        return parent
    if not delegated(own) or pids_in(own) != [os.getpid()]:
        return own
    leaf = os.path.join(own, DAEMON)
    with suppress(OSError):
        os.makedirs(leaf, exist_ok=True)
        join(leaf, os.getpid())
    return own


def prepare(state_dir: str) -> tuple[str | None, str]:
    """Make the group below which the trees of this state directory have theirs; returns it, or None and why not."""
    own = own_group()
    if own is None:
        return None, "there is no cgroup v2 here"
    own = take_leaf(own)
    if not os.access(os.path.join(own, "cgroup.procs"), os.W_OK):
        return None, f"{own} is not ours to write"
    # Imported here for the daemon alone, not into the zygote and its wardens.
    import hashlib

    key = hashlib.sha256(os.path.realpath(state_dir).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    base = os.path.join(own, BASE_PREFIX + key)
    try:
        os.makedirs(os.path.join(base, WARDENS), exist_ok=True)
        kind = procfs.read_text(os.path.join(base, WARDENS, "cgroup.type")).strip()
    except OSError as error:
        return None, f"{base} cannot be made: {error.strerror}"
    return (base, "") if kind == "domain" else (None, f"{base} is of the kind {kind!r}, which takes no processes")


# ── One group ─────────────────────────────────────────────────────────────────────────────────────


def group_of(base: str, warden: procfs.Stat) -> str:
    """The directory of the group of the tree that has this warden."""
    return os.path.join(base, f"{TREE_PREFIX}{warden.pid}-{warden.start_ticks}")


def create_tree(base: str) -> str | None:
    """Make the group of the tree whose warden this process is; None if it cannot be made."""
    me = procfs.stat(os.getpid())
    if me is None:
        return None
    path = group_of(base, me)
    try:
        os.mkdir(path, 0o755)
    except OSError:
        return None
    return path


def write(path: str, text: str) -> None:
    """Write one word to a control file; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def join(group: str, pid: int = 0) -> None:
    """Move a process (0: this one) into a group; raises OSError."""
    write(os.path.join(group, "cgroup.procs"), str(pid))


def fork_into(group: str | None) -> tuple[int, bool]:
    """Fork; returns what a fork returns, and whether the child is in `group`. If not, it has to `join` it.

    Only for a process with one thread, and a child that soon executes: this bypasses Python's own fork and its hooks.
    Raises OSError.
    """
    if group is None:
        return os.fork(), True
    fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    arguments = CLONE_ARGUMENTS.pack(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd)
    pid: int = LIBC.syscall(ctypes.c_long(SYS_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
    os.close(fd)
    if pid >= 0:
        return pid, True
    # An old kernel, or a filter of system calls.
    return os.fork(), False


def pids_in(group: str) -> list[int]:
    """The processes of one group, without those of the groups below it; none if it cannot be read."""
    try:
        return [int(word) for word in procfs.read_text(os.path.join(group, "cgroup.procs")).split()]
    except OSError:
        return []


def groups_below(group: str) -> list[str]:
    """A group and all below it, the deepest first."""
    return [path for path, _, _ in os.walk(group, topdown=False)]


def kill(group: str) -> None:
    """Send SIGKILL to all processes in a group and below it; no error if it is gone."""
    try:
        write(os.path.join(group, KILL_FILE), "1")
    except FileNotFoundError:
        if os.path.isdir(group):
            _kill_each(group)
    except OSError:
        _kill_each(group)


def _kill_each(group: str) -> None:
    """As `kill`, for a kernel before 5.14: freeze the group, so that none forks meanwhile, and kill one by one."""
    with suppress(OSError):
        write(os.path.join(group, "cgroup.freeze"), "1")
    for _ in range(PASSES_MAX):
        # A process that was being forked at the freeze is found in the next pass.
        for below in groups_below(group):
            for pid in pids_in(below):
                signal_member(pid, below, signal.SIGKILL)
    with suppress(OSError):
        write(os.path.join(group, "cgroup.freeze"), "0")


def pids_below(group: str) -> list[int]:
    """Return the processes in a group and in those below it."""
    return [pid for below in groups_below(group) for pid in pids_in(below)]


def signal_member(pid: int, group: str, number: int) -> bool:
    """Signal a process by pidfd, if it is in that group after the pidfd was opened: a pid may be reused."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if pid not in pids_in(group):
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove(group: str) -> bool:
    """Remove a group and those below it. True: this call removed it, so it is empty for good."""
    for path in groups_below(group):
        try:
            os.rmdir(path)
        except OSError:
            return False
        if path == group:
            return True
    return False


def end(group: str, within_s: float) -> bool:
    """Kill and remove repeatedly, for at most `within_s` seconds; True if this call removed it."""
    deadline = time.monotonic() + within_s
    while os.path.isdir(group):
        kill(group)
        if remove(group):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_S)
    return False


# ── Groups of a dead daemon ───────────────────────────────────────────────────────────────────────


def warden_lives(group: str) -> bool:
    """True if the warden that a tree's group is named after lives."""
    name = os.path.basename(group).removeprefix(TREE_PREFIX)
    pid, _, ticks = name.partition("-")
    if not (pid.isdigit() and ticks.isdigit()):
        return False
    seen = procfs.stat(int(pid))
    return seen is not None and seen.start_ticks == int(ticks) and seen.state not in "ZX"


def sweep(base: str, within_s: float, spare: frozenset[str] = frozenset()) -> int:
    """End every tree's group below `base` whose warden is dead, but those in `spare`; returns how many were removed."""
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return 0
    groups = [os.path.join(base, name) for name in names if name.startswith(TREE_PREFIX)]
    return sum(end(group, within_s) for group in groups if group not in spare and not warden_lives(group))


def leave(base: str) -> None:
    """Remove the groups that `prepare` made, if no process is in them."""
    for path in (os.path.join(base, WARDENS), base):
        with suppress(OSError):
            os.rmdir(path)
