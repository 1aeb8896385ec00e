"""The instance lock: one supervisor for each state directory.

Theory of operation. What is locked is the directory itself, by an flock. A file in it could be removed, and the next
supervisor would lock another one of that name. The directory's name can be given away too, but what is behind it then
is another directory, with another store. The kernel ends the lock with the process, however it ends, so no lock is ever
stale. The descriptors are close-on-exec, and a forked child closes its copies at once: a lock belongs to the open file,
so that a copy would hold it for as long as the child lives.

The file `lock` in the directory names the process. It has a shared flock, which a supervisor of version 0.1 respects:
it locks that file alone, and exclusively.

Whoever only wants to know must not take anything, or a supervisor that starts in that moment would be refused. So the
directory has a mark besides: a record lock (OFD), which can be asked for without being taken. It cannot be the lock
itself, since on a directory the kernel has only shared ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from actors.errors import Invalid, StateDirBusy, StoreUnavailable

NAME: Final = "lock"
PID_CHARS: Final = 19
"""Longer than any pid: a shorter one leaves nothing of it behind, and the file need not be cut."""
_FLOCK: Final = "hhqqi4x"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class InstanceLock:
    """The lock of a state directory, held from construction until `release`.

    Args:
        state_dir: made (mode 0700) where there is none.

    Raises:
        StateDirBusy: another process holds it; `pid` names it.
        StoreUnavailable: the directory cannot be made or written.
        Invalid: it is another user's, or open to others, or what has the name of its lock is no file of its own.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / NAME
        self._fds: list[int] = []
        _locks.add(self)
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = self._open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
            _require_private(state_dir, directory)
            if not _flock(directory, fcntl.LOCK_EX):
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
        """Let go of it; again is harmless. The file stays: removing it would race with the next holder.

        Unlocked by name, not by the close alone: a child that was forked past Python has copies of the descriptors.
        """
        while self._fds:
            fd = self._fds.pop()
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._fds.append(fd)
        return fd

    def _open_file(self) -> int:
        """Open the file, or make it. One that leads elsewhere would have our pid written over what is there."""
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
        """In a child: the lock is the parent's. Closing copies takes nothing from it."""
        while self._fds:
            os.close(self._fds.pop())


_locks: weakref.WeakSet[InstanceLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_locks):
        lock._forked()


os.register_at_fork(after_in_child=_let_go_in_child)


def held(state_dir: Path) -> bool:
    """True if a supervisor holds a state directory at this moment; asking takes nothing from anybody."""
    return _is_marked(state_dir) or _is_locked(state_dir / NAME)


def holder(path: Path) -> int | None:
    """Return the pid that a lock file names, if it names one."""
    try:
        with path.open("rb") as file:
            text = file.read(PID_CHARS + 1).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


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
    """True if a supervisor of version 0.1 holds its lock. Asking takes a shared lock, which ours share."""
    with _opened(path, os.O_NOFOLLOW | os.O_NONBLOCK) as fd:
        return fd is not None and not _flock(fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """Open a path for reading; None if that cannot be done."""
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
        expected="a directory that this user may write, on a disk with room",
        got=str(error),
        remedy="make room on its disk"
        if error.errno in FULL
        else "choose another with --state-dir or COUNTERMAND_STATE_DIR, or mend its permissions",
    )


def _require_private(state_dir: Path, directory: int) -> None:
    """Refuse a directory in which others could put or read something.

    One that others may only read, and that is empty, is what `mkdir` makes: nothing was open yet, so it is closed.
    """
    seen = os.fstat(directory)
    another = "name another directory with --state-dir or COUNTERMAND_STATE_DIR; one that is not there yet is made"
    if seen.st_uid != os.geteuid():
        raise Invalid(
            f"the state directory {state_dir} is another user's",
            expected=f"a directory of uid {os.geteuid()}, who runs this",
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
        f"{path} cannot be a lock",
        expected=f"a plain file of uid {os.geteuid()} with one name, or nothing",
        got=got,
        remedy=f"look at what it is (ls -l {shlex.quote(str(path))}), and remove it",
    )
