"""The tools that work on files beneath a root: `read`, `write`, `edit` and `list`.

Theory of operation, of `write` and `edit`. The new content is prepared as a `Draft`, which has no name. Then comes the
guard, and in it one step: the draft takes the name of the file. So a Stop that comes before the guard leaves the file
as it was; one that comes after it finds the whole new content, or the step about to be made; and the receipt says
which. A thread that a slow disk holds up until its run has its receipt does not pass the guard any more.

An edit replaces what it has read, and nothing else. So the file is compared again just before the guard, under a lock
that the edits and writes of this supervisor share, and an edit of what has changed begins again.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from actors.errors import Invalid, TooLarge
from actors.gate.token import CancelToken
from actors.plugin.registration import Tool
from actors.text import one_line, storable
from supervisor.tools.beneath import DEPTH_MAX, Beneath, Place, below, refuse_other_than_file
from supervisor.tools.draft import PIECE_BYTES, Draft

READ_MAX_BYTES: Final = 65_536
"""How much of a file `read` returns at once."""
READ_LINES_MAX: Final = 2_000
"""How many lines `read` returns at once."""
EDIT_MAX_BYTES: Final = 8_388_608
"""The size of a file that `edit` changes."""
EDIT_TRIES_MAX: Final = 5
"""How often an edit begins again because the file has changed meanwhile."""
LISTED_MAX: Final = 1_000
"""How many names `list` returns."""
LOCK_LOOK_S: Final = 0.1
"""How often a change that waits for another one looks at its token."""

_Path = Annotated[str, msgspec.Meta(description="Relative to the root, such as src/main.py.", min_length=1)]
_Line = Annotated[int, msgspec.Meta(ge=1)]
_Depth = Annotated[int, msgspec.Meta(ge=1, le=DEPTH_MAX)]


class _Changed(Exception):
    """The file is not the one that was read."""


class Files:
    """The file tools of one supervisor. Each method is a tool; it runs on a thread of its call.

    Args:
        root: the absolute path of the directory that they may not leave.
    """

    def __init__(self, root: str) -> None:
        self._beneath = Beneath(root)
        self._changes = threading.Lock()

    def tools(self) -> list[Tool]:
        """Return them as tools."""
        named: dict[str, Callable[..., Any]] = {
            "read": self.read,
            "write": self.write,
            "edit": self.edit,
            "list": self.listing,
        }
        return [Tool(function, name=name, isolation="thread") for name, function in named.items()]

    def read(self, path: _Path, token: CancelToken, first_line: _Line = 1, lines: _Line = READ_LINES_MAX) -> str:
        """Read a text file, or some lines of it. If it has more lines, the end of the result says so."""
        taken, room, line = list[bytes](), READ_MAX_BYTES, b""
        with self._beneath.place(path) as place, os.fdopen(place.open_file(), "rb") as file:
            for _ in range(first_line - 1):
                if not _skip_line(file, token):
                    break
            while line := file.readline(READ_MAX_BYTES + 1):
                token.raise_if_cancelled()
                if len(line) > room or len(taken) == min(lines, READ_LINES_MAX):
                    break
                taken.append(line)
                room -= len(line)
        if line and not taken:
            beginning = _text(path, line[:READ_MAX_BYTES], cut=True)
            return f"{beginning}\n[line {first_line} is longer: these are its first {READ_MAX_BYTES} bytes]"
        if not taken and first_line > 1:
            return f"[the file has fewer than {first_line} lines]"
        text = _text(path, b"".join(taken))
        if not line:
            return text
        last = first_line + len(taken) - 1
        return f"{text}[lines {first_line} to {last}; there are more: go on with first_line={last + 1}]"

    def write(self, path: _Path, content: str, token: CancelToken) -> str:
        """Write a text file: make it, or replace all of it. Directories that are missing are made."""
        data = content.encode()
        with self._beneath.place(path, self._make(token)) as place:
            self._replace(place, data, token, f"write {path}", None)
        return f"{len(data)} bytes written to {path}"

    def edit(self, path: _Path, old: str, new: str, token: CancelToken, everywhere: bool = False) -> str:
        """Replace a piece of a text file. `old` must be there exactly once, unless it is replaced `everywhere`."""
        if not old:
            raise Invalid("the text to replace is empty", expected="a piece of the file", remedy="read the file first")
        for _ in range(EDIT_TRIES_MAX):
            token.raise_if_cancelled()
            try:
                with self._beneath.place(path) as place:
                    return self._edit(place, old, new, token, everywhere=everywhere)
            except _Changed:
                continue
        raise Invalid(
            f"{path!r} changes all the time",
            expected=f"a file that is left alone during one of {EDIT_TRIES_MAX} tries",
            got="another change each time",
            remedy="find out who writes it, and edit it then",
        )

    def listing(self, token: CancelToken, path: str = ".", pattern: str = "*", depth: _Depth = 1) -> str:
        """List a directory: a line for each name, with / behind directories, sorted.

        `depth` goes into directories below it, down to that many names. `pattern` is held against the last name.
        """
        lines = list[str]()
        with self._beneath.place(path) as place, _closing(place.open_directory()) as directory:
            for found in below(directory, depth):
                token.raise_if_cancelled()
                if not fnmatch.fnmatchcase(found.name, pattern):
                    continue
                if len(lines) == LISTED_MAX:
                    lines.append(f"[there are more: these are the first {LISTED_MAX}; name a pattern or a directory]")
                    break
                lines.append(_shown(found.path) + ("/" if stat.S_ISDIR(found.mode) else ""))
        return "\n".join(lines) or "[nothing]"

    def _edit(self, place: Place, old: str, new: str, token: CancelToken, *, everywhere: bool) -> str:
        path = place.path
        with os.fdopen(place.open_file(), "rb") as file:
            seen = os.fstat(file.fileno())
            if seen.st_size > EDIT_MAX_BYTES:
                raise _too_large(path, seen.st_size)
            # It may grow meanwhile; then it is another file.
            before = _text(path, file.read(EDIT_MAX_BYTES))
        count = before.count(old)
        if count == 0 or (count > 1 and not everywhere):
            raise Invalid(
                f"the text to replace is not unique in {path!r}" if count else f"{path!r} does not have that text",
                expected="a piece of the file that is there once, with its white space",
                got=f"one that is there {count} times",
                remedy="give more of the lines around it, or everywhere=true" if count else "read the file again",
            )
        # Before it is made: a short piece that is often there can become more than there is memory.
        size = len(before.encode()) + count * (len(new.encode()) - len(old.encode()))
        if size > EDIT_MAX_BYTES:
            raise _too_large(path, size)
        data = before.replace(old, new).encode()
        self._replace(place, data, token, f"edit {path}", seen)
        return f"{count} of {count} replaced in {path}"

    def _replace(self, place: Place, data: bytes, token: CancelToken, effect: str, seen: os.stat_result | None) -> None:
        """Give a place new content, in one step behind a guard; only if it is still `seen`, where that is given."""
        if place.directory is None:
            raise Invalid("the root is not a file", expected="the path of a file below it", got=place.path)
        if place.fd is not None:
            refuse_other_than_file(place.path, place.mode)
        with Draft(place.directory, None if place.fd is None else os.fstat(place.fd)) as draft:
            for start in range(0, len(data), PIECE_BYTES):
                token.raise_if_cancelled()
                draft.write(data[start : start + PIECE_BYTES])
            draft.save()
            with self._alone(token):
                if seen is not None and not _same(place, seen):
                    raise _Changed
                with token.guard(effect):
                    draft.take_place(place.name)

    @contextmanager
    def _alone(self, token: CancelToken) -> Iterator[None]:
        """Keep the other changes out. Raises RunCancelled if the cancel comes while it waits."""
        while not self._changes.acquire(timeout=LOCK_LOOK_S):
            token.raise_if_cancelled()
        try:
            yield
        finally:
            self._changes.release()

    @staticmethod
    def _make(token: CancelToken) -> Callable[[int, str], None]:
        def make(directory: int, name: str) -> None:
            with token.guard(f"make directory {name}"):
                os.mkdir(name, dir_fd=directory)

        return make


def _same(place: Place, seen: os.stat_result) -> bool:
    """Return True if the name of a place has the file that was seen, unchanged."""
    try:
        now = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return all(
        getattr(now, one) == getattr(seen, one) for one in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    )


def _skip_line(file: BinaryIO, token: CancelToken) -> bool:
    """Read a line and forget it. False: there was none."""
    any_of_it = False
    while piece := file.readline(PIECE_BYTES):
        token.raise_if_cancelled()
        any_of_it = True
        if piece.endswith(b"\n"):
            break
    return any_of_it


def _text(path: str, data: bytes, *, cut: bool = False) -> str:
    """Return the bytes of a file as text. `cut`: the last character may be there in part."""
    try:
        if b"\0" in data:
            raise ValueError
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
    except ValueError as error:
        raise Invalid(
            f"{path!r} is not a text file",
            expected="UTF-8 without NUL characters",
            got="other bytes",
            remedy="use a program that reads this format",
        ) from error


def _too_large(path: str, size: int) -> TooLarge:
    return TooLarge(
        f"{path!r} is too large to edit",
        expected=f"at most {EDIT_MAX_BYTES} bytes before and after",
        got=f"{size} bytes",
        remedy="use a program that works line by line",
    )


def _shown(path: str) -> str:
    """Return a path on one line."""
    return one_line(storable(path))


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
