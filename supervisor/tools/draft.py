"""A draft: the next content of a file, on disk and without a name until it takes the place of the file in one step.

It has no name at all where the file system can do that (``O_TMPFILE``), so it vanishes with its descriptor, also where
the process is killed. Elsewhere it has a name of its own in the same directory, which is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from typing import Final

PIECE_BYTES: Final = 65_536
_NOT_HERE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


class Draft:
    """A file that is being written; a context manager, on one thread.

    Args:
        directory: the open directory of the file that it will replace; it stays open meanwhile.
        like: the file that it will replace, whose mode and owner it gets, if that is allowed; None: a new file.
    """

    def __init__(self, directory: int, like: os.stat_result | None) -> None:
        self._directory = directory
        self._like = like
        self._fd = -1
        # Its name, while it has one of its own.
        self._name: str | None = None

    def __enter__(self) -> Draft:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            self._fd = os.open(".", flags | os.O_TMPFILE, 0o666, dir_fd=self._directory)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            name = _fresh()
            self._fd = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=self._directory)
            self._name = name
        if self._like is not None:
            with suppress(PermissionError):
                os.fchown(self._fd, self._like.st_uid, self._like.st_gid)
            # Behind the change of the owner, which clears bits of the mode.
            with suppress(PermissionError):
                os.fchmod(self._fd, self._like.st_mode & 0o7777)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it, unless it has taken its place."""
        try:
            if self._name is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._name, dir_fd=self._directory)
        finally:
            if self._fd >= 0:
                os.close(self._fd)

    def write(self, piece: bytes) -> None:
        """Add a piece of the content."""
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def save(self) -> None:
        """Bring the content to the disk, so that after a loss of power the file has the old or the new one."""
        os.fsync(self._fd)

    def take_place(self, name: str) -> None:
        """Replace the file of this name, in one step for whoever opens it."""
        if self._name is None:
            fresh = _fresh()
            os.link(f"/proc/self/fd/{self._fd}", fresh, dst_dir_fd=self._directory, follow_symlinks=True)
            self._name = fresh
        os.replace(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name = None


def _fresh() -> str:
    return f".countermand-{secrets.token_hex(8)}"
