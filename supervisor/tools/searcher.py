"""The program that `grep` runs: it searches files beneath a root, and prints the lines that match.

A pattern may take for ever on a line, and holds its interpreter meanwhile. So it has a process of its own, with a limit
on its processor time, that a Stop kills. It has the standard library alone, and reads what to do, as JSON, from stdin.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from typing import Final

from supervisor.tools.beneath import DEPTH_MAX, Beneath, PathRefused, below, reopened

SEARCH_MAX_CPU_S: Final = 30
"""How much processor time a search may take."""
SEARCHED_MAX_BYTES: Final = 8_388_608
"""The size of a file that is searched."""
MATCHES_MAX: Final = 500
"""How many lines are printed."""
LINE_MAX_CHARS: Final = 400
"""How much of a line is printed."""
SKIPPED: Final = frozenset({".git"})
"""Directories that are not entered; one that the path itself names is."""
WRONG: Final = 2
"""The exit status if the instructions are wrong; why is on stderr."""


def main() -> int:
    """Search as stdin says: ``root``, ``path``, ``pattern``, ``glob``, ``ignore_case``. Returns the exit status."""
    # Limits of the configuration that are lower stay; without a limit it is -1.
    present = [one if one >= 0 else SEARCH_MAX_CPU_S + 1 for one in resource.getrlimit(resource.RLIMIT_CPU)]
    resource.setrlimit(resource.RLIMIT_CPU, (min(present[0], SEARCH_MAX_CPU_S), min(present[1], SEARCH_MAX_CPU_S + 1)))
    asked = json.load(sys.stdin)
    # A name or a line may be anything.
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]  # it is a TextIOWrapper
    try:
        sought = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
        shown, too_large = 0, 0
        for name, text in _files(asked["root"], asked["path"], asked["glob"]):
            if text is None:
                too_large += 1
                continue
            for number, line in enumerate(text.split("\n"), 1):
                if sought.search(line) is None:
                    continue
                if shown == MATCHES_MAX:
                    print(f"[there are more: these are the first {MATCHES_MAX} lines]")
                    return 0
                shown += 1
                print(f"{name}:{number}:{line if len(line) <= LINE_MAX_CHARS else line[:LINE_MAX_CHARS] + '…'}")
    except (re.error, PathRefused, OSError, OverflowError, RecursionError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return WRONG
    if too_large:
        print(f"[not searched: {too_large} files of more than {SEARCHED_MAX_BYTES} bytes]")
    if not shown:
        print("[no line matches]")
    return 0


def _files(root: str, path: str, glob: str) -> Iterator[tuple[str, str | None]]:
    """Yield the text files of a path, each with its name and its text; None: it is too large."""
    with Beneath(root).place(path) as place:
        if not stat.S_ISDIR(place.mode):
            yield from _file(path, place.open_file())
            return
        start = place.open_directory()
        try:
            for found in below(start, DEPTH_MAX, SKIPPED):
                if stat.S_ISREG(found.mode) and fnmatch.fnmatchcase(found.name, glob):
                    try:
                        fd = os.open(found.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found.directory)
                        try:
                            opened = reopened(fd, os.O_RDONLY) if stat.S_ISREG(os.fstat(fd).st_mode) else -1
                        finally:
                            os.close(fd)
                    except OSError:
                        # It may not be read, or is gone by now.
                        continue
                    if opened >= 0:
                        yield from _file(found.path if path in {".", ""} else os.path.join(path, found.path), opened)
        finally:
            os.close(start)


def _file(name: str, fd: int) -> Iterator[tuple[str, str | None]]:
    with os.fdopen(fd, "rb") as file:
        data = file.read(SEARCHED_MAX_BYTES + 1)
    if len(data) > SEARCHED_MAX_BYTES:
        yield name, None
    elif b"\0" not in data:
        # What is not UTF-8 is searched all the same.
        yield name, data.decode(errors="replace")
