"""Paths beneath a root, which they may not leave: not by `..`, not by a link, and not while somebody moves links.

Theory of operation. The kernel is never asked to resolve more than one name. Each name of a path is opened in the
directory that was opened before, without following links (``O_PATH | O_NOFOLLOW``). What was opened is looked at, not
what has the name by then:

- a directory is kept open, and the next name is opened in it;
- a link is read, and its names take its place; an absolute one goes on at the root, if it points below the root;
- ``..`` goes back to the directory through which the path came. At the root it is refused.

So each directory in use was reached from the root by names alone. Somebody who replaces a directory by a link at any
moment makes the walk read that link, or go on in the directory that was there. (Somebody who moves a directory out of
the root takes along whoever works in it; that needs rights outside of the root.)

Only the standard library: the process that searches files has no more.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

DEPTH_MAX: Final = 100
"""How many directories deep a path may go: each is open meanwhile."""
LINKS_MAX: Final = 40
"""How many links a path may lead through, as in Linux itself."""
NAMES_MAX: Final = 100_000
"""How many names of one directory are looked at."""

MakeDirectory = Callable[[int, str], None]
"""Makes a directory that is missing: in an open directory, of a name."""


class PathRefused(Exception):
    """A path cannot be used; the text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a path leads to: a name in an open directory.

    Args:
        path: as it was given.
        directory: an open directory, valid as long as the place is; None: the path is the root itself.
        name: the last name; links are resolved.
        fd: what has this name, opened as a path (``O_PATH``); None: nothing has it.
    """

    path: str
    directory: int | None
    name: str
    fd: int | None

    @property
    def mode(self) -> int:
        """The mode of what is there; 0: nothing is."""
        return 0 if self.fd is None else os.fstat(self.fd).st_mode

    def open_file(self) -> int:
        """Open the file for reading. Returns a descriptor of the caller's.

        Raises:
            PathRefused: it is not a regular file.
        """
        if self.fd is None:
            raise PathRefused(f"there is no file {self.path!r}; list shows what is there")
        refuse_other_than_file(self.path, self.mode)
        return reopened(self.fd, os.O_RDONLY)

    def open_directory(self) -> int:
        """Open the directory for reading. Returns a descriptor of the caller's.

        Raises:
            PathRefused: it is not a directory.
        """
        if self.fd is None:
            raise PathRefused(f"there is no directory {self.path!r}; list shows what is there")
        if not stat.S_ISDIR(self.mode):
            raise PathRefused(f"{self.path!r} is {kind(self.mode)}, not a directory")
        return reopened(self.fd, os.O_RDONLY | os.O_DIRECTORY)


@dataclass(frozen=True, slots=True)
class Found:
    """What a walk through a directory finds. `path` is relative to where the walk began."""

    path: str
    name: str
    directory: int
    mode: int


class Beneath:
    """A root. Any thread may use it.

    Args:
        root: the absolute path of a directory. It is opened anew for each path.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._prefixes = {os.path.normpath(root), os.path.realpath(root)}

    @contextmanager
    def place(self, path: str, make: MakeDirectory | None = None) -> Iterator[Place]:
        """Find what a path leads to. What the place has open is closed when the block is left.

        Args:
            path: relative to the root; an absolute one has to begin with the root's.
            make: makes directories that are missing; None: they are an error.

        Raises:
            PathRefused: the path leads out of the root, is too deep, or a directory of it is not there.
            OSError: the kernel refuses something else, such as a directory that may not be read.
        """
        # The directories from the root to the place, and then what is there.
        held: list[int] = []
        try:
            yield self._walk(path, make, held)
        finally:
            for fd in held:
                os.close(fd)

    def _walk(self, path: str, make: MakeDirectory | None, held: list[int]) -> Place:
        if "\0" in path:
            raise PathRefused(f"{path!r} is no path: it has a NUL character")
        held.append(os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        names, todo, links = ["."], self._names(path, path), 0
        while todo:
            name = todo.pop()
            if name == "..":
                if len(held) == 1:
                    raise self._outside(path)
                os.close(held.pop())
                names.pop()
                continue
            if len(held) > DEPTH_MAX:
                raise PathRefused(f"{path!r} is too deep: expected at most {DEPTH_MAX} directories below the root")
            fd = _opened(held[-1], name)
            if fd is None and todo and make is not None:
                with suppress(FileExistsError):
                    make(held[-1], name)
                fd = _opened(held[-1], name)
            if fd is None:
                if todo:
                    raise PathRefused(f"there is no directory {name!r} on the way to {path!r}")
                return Place(path, held[-1], name, None)
            mode, target = os.fstat(fd).st_mode, _target(fd)
            if target is not None:
                os.close(fd)
                links += 1
                if links > LINKS_MAX:
                    raise PathRefused(f"{path!r} leads through more than {LINKS_MAX} links")
                if target.startswith("/"):
                    while len(held) > 1:
                        os.close(held.pop())
                    del names[1:]
                todo += self._names(target, path)
                continue
            held.append(fd)
            if stat.S_ISDIR(mode):
                names.append(name)
            elif todo:
                raise PathRefused(f"{name!r} is {kind(mode)}, not a directory, on the way to {path!r}")
            else:
                return Place(path, held[-2], name, fd)
        return Place(path, held[-2] if len(held) > 1 else None, names[-1], held[-1])

    def _names(self, path: str, asked: str) -> list[str]:
        """Return the names of a path, the last first. An absolute path is taken from the root on."""
        if path.startswith("/"):
            base = next((one for one in self._prefixes if f"{path}/".startswith(f"{one.rstrip('/')}/")), None)
            if base is None:
                raise self._outside(asked)
            path = path[len(base) :]
        return [name for name in reversed(path.split("/")) if name not in {"", "."}]

    def _outside(self, path: str) -> PathRefused:
        return PathRefused(f"{path!r} leads out of the root; expected a path below {self.root}, such as 'src/main.py'")


def _opened(directory: int, name: str) -> int | None:
    """Open a name as a path, without following it. None: there is none."""
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None


def _target(fd: int) -> str | None:
    """Return where the opened link points; None: it is no link."""
    if not stat.S_ISLNK(os.fstat(fd).st_mode):
        return None
    try:
        return os.readlink("", dir_fd=fd)
    except BaseException:
        os.close(fd)
        raise


def reopened(fd: int, flags: int) -> int:
    """Open for use what is opened as a path. What has its name by then does not matter."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def refuse_other_than_file(path: str, mode: int) -> None:
    """Raise PathRefused unless it is the mode of a regular file."""
    if not stat.S_ISREG(mode):
        raise PathRefused(f"{path!r} is {kind(mode)}, not a file")


def kind(mode: int) -> str:
    """Return in words what has this mode."""
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISREG(mode):
        return "a file"
    return "a link" if stat.S_ISLNK(mode) else "a pipe, a device or a socket"


def below(directory: int, depth: int, skipped: frozenset[str] = frozenset()) -> Iterator[Found]:
    """Yield what is in a directory and, down to a depth, in those below it, sorted by name. No link is followed.

    Args:
        directory: an open directory; it stays open.
        depth: 1: its own names only; at most DEPTH_MAX.
        skipped: names of directories that are not entered.

    A directory that may not be read, or is gone by then, is left out. Of each NAMES_MAX names are looked at.
    """
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, NAMES_MAX))
    for name in names:
        try:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            yield Found(name, name, directory, mode)
            if not stat.S_ISDIR(mode) or depth <= 1 or name in skipped:
                continue
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=directory)
        except OSError:
            continue
        try:
            for found in below(inner, depth - 1, skipped):
                yield Found(f"{name}/{found.path}", found.name, found.directory, found.mode)
        except OSError:
            continue
        finally:
            os.close(inner)
