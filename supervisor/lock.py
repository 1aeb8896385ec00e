"""The instance lock: one supervisor for each state directory.

Theory of operation. An flock locks the directory itself. If a file in it were locked, that file could be removed, and
the next supervisor would lock a new one of the same name. A directory can be renamed too, but then the name leads to
another directory, with another store. The kernel releases the lock when the process ends, however it ends, so a lock is
never stale. The descriptors are close-on-exec, and a forked child closes its copies at once: a lock belongs to the open
file, so a copy would hold it for as long as the child lives. A process that is killed as it starts a child leaves the
lock to that child until its exec; who finds a dead holder waits for that.

The file `lock` in the directory names the process. It has a shared flock for supervisors of version 0.1, which lock
only that file, exclusively.

A process that only checks must not take the lock, or a supervisor that starts at that moment would be refused. So the
directory also has a mark: a record lock (OFD), which can be tested without being taken. It cannot be the lock itself,
since on a directory the kernel allows only shared record locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import struct
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from actors.errors import Invalid, StateDirBusy, StoreUnavailable

NAME: Final = "lock"
GONE_S: Final = 10.0
"""How long to wait for the lock of a process that has died."""
GONE_LOOK_S: Final = 0.01
PID_CHARS: Final = 19
"""Every pid is padded to this length, which overwrites the previous one completely."""
_FLOCK: Final = "hhqqi4x"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class InstanceLock:
    """The lock of a state directory, held from construction until `release`.

    Args:
        state_dir: created (mode 0700) if it is missing.

    It blocks for at most `GONE_S` seconds, where its last holder has died a moment ago.

    Raises:
        StateDirBusy: another process holds it; `pid` names that process.
        StoreUnavailable: the directory cannot be created or written.
        Invalid: it belongs to another user or is open to others; or its lock file is not a plain file of ours.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / NAME
        self._fds: list[int] = []
        _locks.add(self)
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = self._open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
            _require_private(state_dir, directory)
            if not self._locked(directory):
                raise self._busy(state_dir)
            fcntl.fcntl(directory, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
            file = self._open_file()
            if not _flock(file, fcntl.LOCK_SH):
                raise self._busy(state_dir)
            os.pwrite(file, f"{os.getpid():<{PID_CHARS}}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise _unusable(state_dir, error) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; idempotent. The file stays: removing it would race with the next holder.

        It unlocks explicitly, besides closing: a child that was forked outside of Python has copies of the descriptors.
        """
        while self._fds:
            fd = self._fds.pop()
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _locked(self, directory: int) -> bool:
        """Lock the directory; False: another process has it."""
        until = time.monotonic() + GONE_S
        while not _flock(directory, fcntl.LOCK_EX):
            pid = holder(self.path)
            if pid is None or not _is_dead(pid) or time.monotonic() >= until:
                return False
            time.sleep(GONE_LOOK_S)
        return True

    def _open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._fds.append(fd)
        return fd

    def _open_file(self) -> int:
        """Open or create the lock file. A link is refused, since the pid would overwrite the file to which it leads."""
        try:
            # Opening a pipe must not wait for its other end.
            fd = self._open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            raise _no_file(self.path, "something else") from error
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1 or seen.st_uid != os.geteuid():
            raise _no_file(self.path, f"mode {stat.filemode(seen.st_mode)}, {seen.st_nlink} names, uid {seen.st_uid}")
        return fd

    def _busy(self, state_dir: Path) -> StateDirBusy:
        pid = holder(self.path)
        return StateDirBusy(
            f"the state directory {state_dir} is in use" + (f" by process {pid}" if pid else ""),
            pid=pid,
            expected="a state directory that no other supervisor uses",
            got=f"a lock held by process {pid}" if pid else "a lock held by another process",
            remedy="end that process, or choose another directory with --state-dir or COUNTERMAND_STATE_DIR",
        )

    def _forked(self) -> None:
        """Close the copies of the descriptors in a child. The parent keeps its lock."""
        while self._fds:
            os.close(self._fds.pop())


_locks: weakref.WeakSet[InstanceLock] = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock._forked()


os.register_at_fork(after_in_child=_close_in_child)


def held(state_dir: Path) -> bool:
    """Return True if a supervisor holds a state directory at this moment. The check disturbs no other process."""
    return _is_marked(state_dir) or _is_locked(state_dir / NAME)


def holder(path: Path) -> int | None:
    """Return the pid in a lock file, if there is one."""
    try:
        with path.open("rb") as file:
            text = file.read(PID_CHARS + 1).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _is_dead(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    # Until it is reaped it has a state, and that says so.
    return text[text.rindex(")") + 2] in "ZX"


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_marked(state_dir: Path) -> bool:
    with _opened(state_dir, os.O_DIRECTORY) as fd:
        if fd is None:
            return False
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return found != fcntl.F_UNLCK


def _is_locked(path: Path) -> bool:
    """Return True if a supervisor of version 0.1 holds its lock. The check takes a shared lock, as ours is."""
    with _opened(path, os.O_NOFOLLOW | os.O_NONBLOCK) as fd:
        return fd is not None and not _flock(fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """Open a path for reading; None if that fails."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _unusable(state_dir: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the state directory {state_dir} cannot be used",
        expected="a directory that this user may write, on a disk with free space",
        got=str(error),
        remedy="free space on its disk"
        if error.errno in FULL
        else "choose another with --state-dir or COUNTERMAND_STATE_DIR, or correct its permissions",
    )


def _require_private(state_dir: Path, directory: int) -> None:
    """Refuse a directory that others can read or write.

    An empty one that others may only read is what `mkdir` creates. Nothing was exposed yet, so its mode is corrected.
    """
    seen = os.fstat(directory)
    another = "name another directory with --state-dir or COUNTERMAND_STATE_DIR; a missing one is created"
    if seen.st_uid != os.geteuid():
        raise Invalid(
            f"the state directory {state_dir} belongs to another user",
            expected=f"a directory of uid {os.geteuid()}, which runs this",
            got=f"one of uid {seen.st_uid}",
            remedy=f"run this as uid {seen.st_uid}, or {another}",
        )
    if seen.st_mode & 0o077 and not seen.st_mode & 0o022 and not os.listdir(directory):
        os.fchmod(directory, 0o700)
    elif seen.st_mode & 0o077:
        raise Invalid(
            f"the state directory {state_dir} is open to other users",
            expected="a directory of mode 0700",
            got=f"mode {stat.S_IMODE(seen.st_mode):04o}",
            remedy=f"chmod 700 {shlex.quote(str(state_dir))}, or {another}",
        )


def _no_file(path: Path, got: str) -> Invalid:
    return Invalid(
        f"{path} is not a lock file",
        expected=f"a plain file of uid {os.geteuid()} with one name, or no file",
        got=got,
        remedy=f"inspect it (ls -l {shlex.quote(str(path))}), and remove it",
    )
