"""The ledger of a process tree: what its warden saw, in a small locked file that outlives the daemon.

Theory of operation. The daemon creates the file (first word ``sent``) *before* it asks for a warden; the
warden locks it, reads it, and only then spawns; it holds the lock for as long as it lives, and its last
word is ``empty``. So the file shows what happened, whenever the daemon died:

* No file: no tree was ever requested under this id (or its end was recorded and the file removed).
* Locked: the warden lives and is ending its tree. Wait.
* Free, last word ``empty``: the tree is proven gone, and that word says how.
* Free, a ``spawning`` word, no ``empty``: the warden was killed. Its tree is not proven gone, and is searched for
  (`orphans`); ``swept`` is the result of the search.
* Free, no ``spawning``: no warden has come yet, or it was killed before it forked. One may still be on its
  way, in a socket or in a fork. The finder holds the lock now, and writes ``void``. A warden that gets the
  lock later reads that and spawns nothing. If instead the warden was first, the file is locked, and the warden
  checks before it spawns that its daemon lives: if not, it spawns nothing. So the lock decides the race, either
  way, and "never spawned" is reported only when it will stay true.

The lock is an flock on a close-on-exec descriptor: the command never holds it. Words are not synced, since the
page cache survives the death of processes. After a power failure the boot id in ``sent`` shows that no process
is left, and a missing file proves nothing (`ProcessTrees` records each boot durably). Each line is appended with
one write; a torn last line is ignored.

Standard library only: the zygote and the wardens load this file too.
"""

from __future__ import annotations

import fcntl
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, TypeAlias

    Word: TypeAlias = dict[str, Any]

MARKER = "COUNTERMAND_TREE"
"""A variable in the environment of every command; the first word of its ledger has the value."""
DETAIL_MAX = 200
ROWS_MAX = 100
SIGNALS_MAX = 50
READ_MAX_BYTES = 1_048_576


def encode(word: Word) -> bytes:
    """Encode a word for a socket or a file: JSON without a newline."""
    return json.dumps(word, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> Word:
    """Decode a word; raises ValueError if `data` is not one."""
    word = json.loads(data)
    if not isinstance(word, dict) or not isinstance(word.get("word"), str):
        raise ValueError("not a word of a ledger")
    return word


def how_of(status: int | None) -> str:
    """The `how` of a receipt for an exit status (negative: the signal; None: not started)."""
    if status is None:
        return "not_started"
    return {-15: "sigterm", -9: "sigkill"}.get(status, "exit")


def create(path: Path, process_id: str, at: float, boot: str, marker: str = "") -> None:
    """Create the file with its first word; raises OSError, FileExistsError if there is one.

    `marker`: the value of MARKER in the command's environment, by which orphans are found; empty: none.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        word = {"word": "sent", "process_id": process_id, "at": at, "boot": boot, "marker": marker}
        os.write(fd, encode(word) + b"\n")
    finally:
        os.close(fd)


class Ledger:
    """An open, locked ledger. `words` holds its words when it was locked."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.words = read(fd)
        self._details = 0

    @classmethod
    def lock(cls, path: str | Path, *, wait: bool) -> Ledger | None:
        """Open and lock it. None: it is locked already (only with `wait=False`). Raises OSError if there is no file."""
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @property
    def removed(self) -> bool:
        """True if the file was unlinked: the tree's end was recorded, and the tree forgotten."""
        return os.fstat(self.fd).st_nlink == 0

    def write(self, *words: Word) -> None:
        """Append words. A full disk loses the words, but the warden goes on."""
        try:
            os.write(self.fd, b"".join(encode(word) + b"\n" for word in words))
        except OSError:
            return

    def detail(self, word: Word) -> None:
        """Append a word of detail; after DETAIL_MAX of them the rest are dropped."""
        self._details += 1
        if self._details <= DETAIL_MAX:
            self.write(word)

    def close(self) -> None:
        """Release the lock."""
        os.close(self.fd)


def read(fd: int) -> list[Word]:
    """All words of an open ledger, in order; lines that are not words are skipped."""
    words: list[Word] = []
    for line in os.pread(fd, READ_MAX_BYTES, 0).split(b"\n"):
        try:
            words.append(decode(line))
        except ValueError:
            continue
    return words


def read_path(path: str | Path) -> list[Word]:
    """All words of a ledger, without its lock; an empty list if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return read(fd)
    finally:
        os.close(fd)


def said(words: list[Word], word: str) -> Word | None:
    """The last word of that name, or None."""
    for candidate in reversed(words):
        if candidate["word"] == word:
            return candidate
    return None


def fold(words: list[Word]) -> Word:
    """Combine the words into one in the shape of ``empty``, for a tree whose warden was killed.

    Keys: how, status, pid, started_at, reaped, rows, signals, note; `how` is None if the command may have started
    and its end was not seen.
    """
    started, exited, failed = said(words, "started"), said(words, "exited"), said(words, "failed")
    status = exited["status"] if exited else None
    how: str | None = how_of(status)
    if not exited:
        how = "not_started" if failed or not said(words, "spawning") else None
    rows = [word["row"] for word in words if word["word"] == "reaped"]
    remote = {word["row"]["name"]: word["row"] for word in words if word["word"] == "remote"}
    return {
        "how": how,
        "status": status,
        "pid": started["pid"] if started else None,
        "started_at": started["at"] if started else None,
        "reaped": len(rows),
        "rows": rows[:ROWS_MAX] + list(remote.values()),
        "signals": [word["signal"] for word in words if word["word"] == "signal"][:SIGNALS_MAX],
        "note": failed["note"] if failed else "",
    }
