"""The command of a tree, in the process that becomes it: its input, directory, user, environment and limits.

Standard library only: the zygote loads this file.
"""

from __future__ import annotations

import errno
import os
import resource
from binascii import a2b_base64
from functools import partial

from supervisor.containment.guard import account
from supervisor.containment.guard.ledger import decode
from supervisor.containment.guard.unix import NICE, go_with_the_others, niceness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "as_bytes": resource.RLIMIT_AS,
    "cpu_s": resource.RLIMIT_CPU,
    "core_bytes": resource.RLIMIT_CORE,
    "fsize_bytes": resource.RLIMIT_FSIZE,
}
ENTER = ": let the user {user} enter it, or set cwd to a directory that this user may enter"
EXECUTE = ": let the user {user} execute it and enter the directories above it, or name another program"
CHANNEL = "COUNTERMAND_CHANNEL"
"""The variable in the environment of a command that names the number of its channel's descriptor."""


def command_in(fd: int) -> Word:
    """Read the command from a file in memory."""
    return decode(os.pread(fd, os.fstat(fd).st_size, 0))


def prepare(spec: Word, given: int | None = None) -> Callable[[], str]:
    """Prepare the command of `spec`; returns a function that executes it, and that returns only on failure: the reason.

    Its input is empty unless `spec` gives one. It has three descriptors and its channel, and the limits of `spec`.
    `given` is its channel, or what it reads from.
    """
    for what in ("channel", "input"):
        if given is None and spec.get(what, False):
            # It was sent, so a process on the way had no room for it in its descriptor table.
            return partial(why_not, f"cannot pass its {what}", errno.EMFILE)
    channel = given if spec.get("channel", False) else None
    if wrong := [name for name, value in spec.get("limits", {}).items() if not _is_limit(name, value)]:
        one_of = ", ".join(LIMITS)
        return partial(str, f"cannot limit {', '.join(wrong)}: a limit is one of {one_of}, and a whole number from 0")
    what, remedy = "cannot prepare its input", ""
    try:
        if "pty" in spec:
            # The first terminal that a session leader without one opens becomes its controlling terminal.
            take_input(os.open(spec["pty"], os.O_RDWR | os.O_CLOEXEC))
        elif given is not None and channel is None:
            take_input(given)
        elif "stdin" in spec:
            take_input(input_file(spec["stdin"]))
        env = dict(spec["env"])
        if "user" in spec:
            what = f"cannot run as the user {spec['user']!r}"
            user = account.find(spec["user"])
            account.become(user)
            env = {**account.environment(user), **env}
        what, remedy = f"cannot enter the directory {spec['cwd']!r}", ENTER
        os.chdir(spec["cwd"])
        what, remedy = f"cannot execute {spec['argv'][0]!r}", EXECUTE
        argv = [exact(word) for word in spec["argv"]]
        if channel is not None:
            os.set_inheritable(channel, True)
            env[CHANNEL] = str(channel)
        environ = {exact(name): exact(value) for name, value in env.items()}
        paths = [exact(path) for path in candidates(spec["argv"][0], env.get("PATH", os.defpath))]
    except OSError as error:
        return partial(_why_not, what, error.errno, spec, remedy)
    except ValueError as error:
        # Such as a NUL byte in an argument.
        return partial(str, f"{what}: {error}")

    def execute() -> str:
        try:
            if "nice" in spec or NICE:
                # Before it can fork or start a thread: they inherit the value, or get 0 where ours is that of a guard.
                go_with_the_others(0, niceness(spec.get("nice", 0)))
            limit(spec.get("limits", {}))
            return _why_not(what, execute_first(paths, argv, environ), spec, remedy)
        except OSError as error:
            return why_not(what, error.errno)

    return execute


def why_not(what: str, number: int | None) -> str:
    """The text of a failure, with the kernel's reason."""
    return f"{what}: {os.strerror(number or errno.EPERM)}"


def _why_not(what: str, number: int | None, spec: Word, remedy: str) -> str:
    """The same, with what to do where it is denied to another user than the daemon's."""
    told = remedy and number == errno.EACCES and "user" in spec
    return why_not(what, number) + (remedy.format(user=repr(spec["user"])) if told else "")


def _is_limit(name: str, value: object) -> bool:
    return name in LIMITS and type(value) is int and 0 <= value < 2**63


def limit(limits: dict[str, int]) -> None:
    """Set our soft and hard resource limits, never above the present hard limit; raises OSError."""
    for name, value in limits.items():
        most = resource.getrlimit(LIMITS[name])[1]
        least = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(LIMITS[name], (least, least))


def take_input(fd: int) -> None:
    """Make `fd` what this process reads from; it is closed."""
    os.dup2(fd, 0)
    os.close(fd)


def input_file(data: str) -> int:
    """Open a read-only file in memory with a command's input, given as base64."""
    written = os.memfd_create("countermand-input", os.MFD_CLOEXEC)
    with os.fdopen(written, "wb") as file:
        file.write(a2b_base64(data))
        file.flush()
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)


def exact(text: str) -> bytes:
    """Encode an argument for exec; raises ValueError if it cannot be passed."""
    word = os.fsencode(text)
    if b"\0" in word:
        raise ValueError("embedded null byte")
    return word


def execute_first(paths: list[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """Try to execute each path; returns the error number. As in a shell, any error is reported before ENOENT."""
    number = errno.ENOENT
    for path in paths:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if number == errno.ENOENT:
                number = error.errno or errno.EPERM
    return number


def candidates(program: str, path: str) -> list[str]:
    """The paths to try for a program: itself, if it has a slash, else each file of that name in the search path."""
    if "/" in program:
        return [program]
    paths = [os.path.join(folder or ".", program) for folder in path.split(":")] if program else []
    return [one for one in paths if os.path.exists(one)]
