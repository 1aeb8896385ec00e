"""The ledger of a process tree: what its warden saw, in a small locked file that outlives the daemon.

Theory of operation. The daemon creates the file (first word ``sent``) *before* it asks for a warden; the
warden locks it, reads it, and only then spawns; it holds the lock for as long as it lives, and its last
word is ``empty``. So the file shows what happened, whenever the daemon died:

* No file: nothing was ever asked for under this id (or its end was taken note of and the file removed).
* Locked: the warden lives and is ending its tree. Wait.
* Free, last word ``empty``: the tree is proven gone, and that word says how.
* Free, a ``spawning`` word, no ``empty``: the warden was killed. What it left is not proven gone, and is looked for
  (`leftovers`); ``swept`` says what came of that.
* Free, no ``spawning``: no warden has come yet, or it was killed before it forked. One may still be on its
  way, in a socket or in a fork. The finder holds the lock now, and writes ``void``. A warden that gets the
  lock later reads that and spawns nothing. If instead the warden was first, the file is locked, and it
  looks for its daemon before it spawns: dead, it spawns nothing. So the lock decides the race, either way,
  and "never spawned" is said only when it will stay true.

The lock is an flock on a close-on-exec descriptor: the command never holds it. Words are not synced: the
page cache survives the death of processes; after a loss of power the boot id in ``sent`` says that no process
is left, and a missing file says nothing (`ProcessTrees` notes each boot durably). Lines are
appended with one write each; a torn last line is not a word.

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
"""What a command has in its environment, with the value that its ledger's first word names."""
DETAIL_MAX = 200
ROWS_MAX = 100
SIGNALS_MAX = 50
READ_MAX_BYTES = 1_048_576


def encode(word: Word) -> bytes:
    """A word as it goes over a socket or into a file: JSON without a newline."""
    return json.dumps(word, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> Word:
    """The word in `data`; raises ValueError if it is not one."""
    word = json.loads(data)
    if not isinstance(word, dict) or not isinstance(word.get("word"), str):
        raise ValueError("not a word of a ledger")
    return word


def how_of(status: int | None) -> str:
    """How a process ended, as a receipt says it, from its exit status (negative: the signal)."""
    if status is None:
        return "not_started"
    return {-15: "sigterm", -9: "sigkill"}.get(status, "exit")


def create(path: Path, process_id: str, at: float, boot: str, marker: str = "") -> None:
    """Create the file with its first word; raises FileExistsError if there is one.

    `marker` is what the command has in its environment, by which leftovers are known; empty: nothing.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        word = {"word": "sent", "process_id": process_id, "at": at, "boot": boot, "marker": marker}
        os.write(fd, encode(word) + b"\n")
    finally:
        os.close(fd)


class Ledger:
    """An open, locked ledger. `words` holds what it said when it was locked."""

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
        """True if the file has no name any more: its tree was taken note of and forgotten."""
        return os.fstat(self.fd).st_nlink == 0

    def write(self, *words: Word) -> None:
        """Append words. A full disk loses them, not the tree: the work of the warden goes on."""
        try:
            os.write(self.fd, b"".join(encode(word) + b"\n" for word in words))
        except OSError:
            return

    def detail(self, word: Word) -> None:
        """Append a word that the bound counts; after DETAIL_MAX of them it is left out."""
        self._details += 1
        if self._details <= DETAIL_MAX:
            self.write(word)

    def close(self) -> None:
        """Release the lock."""
        os.close(self.fd)


def read(fd: int) -> list[Word]:
    """All words of an open ledger, in order; what is not a word is passed over."""
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
    """What the words say together, in the shape of the last word ``empty``; for a tree whose warden was killed.

    Keys: how, status, pid, started_at, reaped, rows, signals, note; `how` is None where the command may have
    been started and its end was not seen.
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
