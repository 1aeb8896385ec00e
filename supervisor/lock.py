"""The instance lock: one supervisor for each state directory.

An flock on a file in it: the kernel lets go of it when the process ends, however it ends, so no lock is ever
stale. The descriptor is close-on-exec, and a forked child closes its copy at once: a lock belongs to the open
file, so that a copy would hold it for as long as the child lives.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from actors.errors import StateDirBusy, StoreUnavailable


class InstanceLock:
    """The lock of a state directory, held from construction until `release`.

    Args:
        state_dir: made (mode 0700) where there is none.

    Raises:
        StateDirBusy: another process holds it; `pid` names it.
        StoreUnavailable: the directory cannot be made or written.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "lock"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"the state directory {state_dir} cannot be used",
                expected="a directory that this user may write",
                got=str(error),
                remedy="choose another with --state-dir or COUNTERMAND_STATE_DIR, or mend its permissions",
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = holder(self.path)
            os.close(self._fd)
            self._fd = None
            raise StateDirBusy(
                f"the state directory {state_dir} is in use" + (f" by process {pid}" if pid else ""),
                pid=pid,
                expected="a state directory that no other supervisor uses",
                got=f"a lock held by process {pid}" if pid else "a lock held by another process",
                remedy="end that process, or choose another directory with --state-dir or COUNTERMAND_STATE_DIR",
            ) from None
        _locks.add(self)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of it; again is harmless. The file stays: removing it would race with the next holder.

        Unlocked by name, not by the close alone: a child that was forked past Python has a copy of the descriptor.
        """
        fd, self._fd = self._fd, None
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _forked(self) -> None:
        """In a child: the lock is the parent's. Closing a copy takes nothing from it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


_locks: weakref.WeakSet[InstanceLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_locks):
        lock._forked()


os.register_at_fork(after_in_child=_let_go_in_child)


def held(state_dir: Path) -> bool:
    """True if a supervisor holds a state directory at this moment; asking takes nothing from anybody."""
    try:
        fd = os.open(state_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holder(path: Path) -> int | None:
    """Return the pid that a lock file names, if it names one."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
