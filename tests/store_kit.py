"""What tests of a failing store share: a disk that is small, and can be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FILLER = "filler"


class SmallDisk:
    """A mounted file system of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, but: int = 0) -> None:
        """Leave not one block free, or so many bytes."""
        fd = os.open(self.path / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(fd, bytes(size))
            os.ftruncate(fd, os.fstat(fd).st_size - but)
        finally:
            os.close(fd)
        free = os.statvfs(self.path)
        assert free.f_bavail * free.f_bsize == but, free

    def free(self) -> None:
        """Take away what fills it."""
        (self.path / FILLER).unlink()


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs of `size` bytes; skips the test where that is not allowed."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "countermand-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount one: {made.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a process that a failed test left may still be in it.
        subprocess.run(["umount", "-l", str(path)], check=True)
