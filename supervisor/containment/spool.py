"""Spool files: the exact bytes of a tree's output, if a report has no room for them or cannot show them.

Theory of operation. Output is kept in memory up to `inline_bytes`. Larger output, or output for which `need` was
called (it was not UTF-8, or a background process goes on writing), goes into a file
``<key of the session>.<process id>.out``: the bytes of both streams as they came, up to `file_max_bytes`. So a small
output costs no file, and of a large one the file has the beginning and the report the end.

One thread writes. A disk that is slow or full therefore blocks no other thread: the reactor's thread only queues
chunks. The queued bytes are bounded, for each file (PENDING_MAX_BYTES) and for all
(ALL_PENDING_MAX_BYTES): above that a spool is `full`, and its tree is not read until `on_room` is called. So a
command that writes faster than the disk waits for the disk, until its file has reached its cap.

All files together have a cap too. At the cap the oldest closed files are removed. If there are none, the file ends
where it is, as it does when the disk has less than FREE_MIN_BYTES left for the store. Files without a write for
`keep_s` are removed as well, at the start and every SWEEP_S.

The key is a hash of the session's name, since a name may be too long for a file's, or have any characters. By it the
files of a deleted session are removed. A tree may become a session's later (the host of an agent, which was started as
a spare): then its file is renamed. If a crash comes in between, the next start removes files without a session before
it writes the first byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from loguru import logger

from supervisor.ages import Ages

if TYPE_CHECKING:
    from actors.ports import Clock
    from supervisor.containment.reactor import Alarm, Reactor

CHUNK_BYTES = 65_536
PENDING_MAX_BYTES = 1_048_576
ALL_PENDING_MAX_BYTES = 16_777_216
FREE_MIN_BYTES = 67_108_864
FLUSH_S = 0.25
SWEEP_S = 600.0
SUFFIX = ".out"
KEYED = re.compile(r"([0-9a-f]{16})\.")


class SpooledFile(NamedTuple):
    """A spool file: its path, and how many bytes of the output it has, from the first one on."""

    path: str
    size: int


class SpoolUse(NamedTuple):
    """The number of spool files, and their bytes in total."""

    files: int
    size: int


def use_of(folder: Path) -> SpoolUse:
    """Count the spool files of a directory; none if it does not exist. Raises OSError if it cannot be read."""
    sizes = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    sizes.append(entry.stat(follow_symlinks=False).st_size)
    return SpoolUse(len(sizes), sum(sizes))


class SpoolFile:
    """The writing thread's state of one file. Any thread may read `size`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        self.size = 0
        self.pending = 0
        self.over = False


class Spools:
    """The spool directory, and the thread that writes into it.

    Args:
        folder: made by `start`; mode 0700, its files 0600.
        file_max_bytes: the cap of one file; 0: no files.
        total_max_bytes: the cap of all files together.
        keep_s: a file is removed so many seconds after its last write.
        clock: for the age of files.
    """

    def __init__(self, folder: Path, clock: Clock, *, file_max_bytes: int, total_max_bytes: int, keep_s: float) -> None:
        self.folder = folder
        self.file_max_bytes = file_max_bytes
        self._clock = clock
        self._ages = Ages(clock)
        self._total_max = total_max_bytes
        self._keep_s = keep_s
        self._used = 0
        self._open: set[Path] = set()
        self._lock = threading.Lock()
        self._pending = 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="countermand-spool", daemon=True)

    @property
    def behind(self) -> bool:
        """True if more than ALL_PENDING_MAX_BYTES wait to be written."""
        return self._pending > ALL_PENDING_MAX_BYTES

    def start(self) -> None:
        """Make the directory and start the thread. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread.start()

    def path(self, process_id: str, session: str = "") -> Path:
        """The path of the file of a process of a session, if there is one; without a session it has no key."""
        key = f"{key_of(session)}." if session else ""
        return self.folder / f"{key}{quote(process_id, safe='')}{SUFFIX}"

    def forget(self, session: str) -> None:
        """Remove the files of a deleted session, after what was queued. Any thread."""
        key = key_of(session)
        self._jobs.put(lambda: self._remove(lambda found: found == key))

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Remove the files of sessions that `living` does not name. Any thread, before anything is spawned.

        `living` is called on the writing thread, if there are files; if it raises, all files stay.
        """

        def job() -> None:
            if use_of(self.folder).files:
                keys = {key_of(session) for session in living()}
                self._remove(lambda found: found not in keys)

        self._jobs.put(job)

    def close(self, timeout_s: float) -> bool:
        """Write what was queued and end the thread; True if it ended within `timeout_s` seconds."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ── For spools, on the reactor's thread ───────────────────────────────────────────────────────

    def write(self, file: SpoolFile, data: bytes, done: Callable[[], None]) -> None:
        """Append to a file, then call `done` on the writing thread."""
        with self._lock:
            self._pending += len(data)
            file.pending += len(data)

        def job() -> None:
            try:
                self._append(file, data)
            finally:
                with self._lock:
                    self._pending -= len(data)
                    file.pending -= len(data)
                done()

        self._jobs.put(job)

    def end(self, file: SpoolFile) -> None:
        """Close a file after what was queued."""
        self._jobs.put(lambda: self._close_file(file))

    def after(self, call: Callable[[], None]) -> None:
        """Call it on the writing thread, after what was queued."""
        self._jobs.put(call)

    def move(self, file: SpoolFile, path: Path) -> None:
        """Have a file under another path from here on. What was handed over before comes into it all the same."""
        before, file.path = file.path, path

        def job() -> None:
            with contextlib.suppress(FileNotFoundError):
                # It is not there if nothing was written so far.
                os.rename(before, path)
            if before in self._open:
                self._open.remove(before)
                if file.fd >= 0:
                    self._open.add(path)

        self._jobs.put(job)

    # ── The thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        sweep_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            if now >= sweep_at:
                sweep_at = now + SWEEP_S
                self._contain(self._sweep)
            try:
                job = self._jobs.get(timeout=sweep_at - now)
            except queue.Empty:
                continue
            if job is None:
                return
            self._contain(job)

    def _append(self, file: SpoolFile, data: bytes) -> None:
        if file.over:
            return
        try:
            if file.fd < 0:
                file.fd = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND, 0o600)
                self._open.add(file.path)
            data = data[: self._room(file, len(data))]
            view = memoryview(data)
            while view:
                written = write(file.fd, view)
                self._used += written
                file.size += written
                view = view[written:]
        except OSError as error:
            file.over = True
            logger.warning("the spool file {} ends after {} bytes: {}", file.path, file.size, error.strerror)

    def _room(self, file: SpoolFile, wanted: int) -> int:
        """How many of `wanted` bytes may be written; if fewer, the file ends."""
        if self._used + wanted > self._total_max:
            self._sweep(wanted)
        disk = os.fstatvfs(file.fd)
        room = min(wanted, self.file_max_bytes - file.size, self._total_max - self._used)
        room = max(0, min(room, disk.f_bavail * disk.f_frsize - FREE_MIN_BYTES))
        file.over = room < wanted
        return room

    def _close_file(self, file: SpoolFile) -> None:
        file.over = True
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1
            self._open.discard(file.path)

    def _sweep(self, wanted: int = 0) -> None:
        """Remove files that are too old, and the oldest until there is room for `wanted` bytes; count the rest."""
        found = []
        self._used = 0
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    seen = entry.stat(follow_symlinks=False)
                    self._used += seen.st_size
                    found.append((seen.st_mtime, seen.st_size, Path(entry.path)))
        too_old = self._ages.older_than(self._keep_s, (changed for changed, _, _ in found))
        for changed, size, path in sorted(found):
            if path not in self._open and (changed < too_old or self._used + wanted > self._total_max):
                with contextlib.suppress(OSError):
                    path.unlink()
                    self._used -= size

    def _remove(self, goes: Callable[[str], bool]) -> None:
        """Remove the files whose key `goes` accepts; those without a key stay."""
        for entry in os.scandir(self.folder):
            keyed = KEYED.match(entry.name)
            if keyed is None or not entry.name.endswith(SUFFIX) or not goes(keyed[1]):
                continue
            try:
                size = entry.stat(follow_symlinks=False).st_size
                os.unlink(entry.path)
                self._used -= size
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.error("the output of a deleted session stays at {}: {}", entry.path, error.strerror)

    @staticmethod
    def _contain(job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001  # one file's failure must not end the thread of all
            logger.exception("a job of the spool failed")


def key_of(session: str) -> str:
    """The prefix of the names of a session's files."""
    return hashlib.sha256(session.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def write(fd: int, data: memoryview) -> int:
    """Write to a file; returns how many bytes."""
    return os.write(fd, data)


class Spool:
    """The exact output of one tree. Reactor thread only.

    Args:
        spools: writes the file.
        process_id: names the file.
        reactor: runs the callbacks.
        inline_bytes: how many bytes need no file.
        on_room: called on the reactor's thread when a spool that was `full` may be fed again.
        session: the tree's.
    """

    def __init__(
        self,
        spools: Spools,
        process_id: str,
        reactor: Reactor,
        inline_bytes: int,
        on_room: Callable[[], None],
        session: str = "",
    ) -> None:
        self._spools = spools
        self._process_id = process_id
        self._reactor = reactor
        self._inline = inline_bytes
        self._on_room = on_room
        self._file = SpoolFile(spools.path(process_id, session))
        self._buffer = bytearray()
        self._handed = 0
        self._begun = False
        self._waits = False
        self._closed = spools.file_max_bytes == 0
        self._alarm: Alarm | None = None

    def belong_to(self, session: str) -> None:
        """The tree, which was of no session, is this one's: its file goes with the session."""
        self._spools.move(self._file, self._spools.path(self._process_id, session))

    @property
    def path(self) -> str:
        """The path of its file, which may not exist."""
        return str(self._file.path)

    @property
    def elsewhere(self) -> str:
        """A clause that says where the beginning of the output is, where there may be a file."""
        return f", and its beginning is in {self.path}" if self._spools.file_max_bytes else ""

    @property
    def begun(self) -> bool:
        """True if there is a file, or one is on its way."""
        return self._begun

    @property
    def kept(self) -> SpooledFile | None:
        """The file as written so far; None if it is empty or does not exist."""
        return SpooledFile(self.path, self._file.size) if self._file.size else None

    @property
    def full(self) -> bool:
        """True if it must not be fed for now; `on_room` follows."""
        pending = self._file.pending
        if not self._waits and (pending >= PENDING_MAX_BYTES or (pending and self._spools.behind)):
            self._waits = True
            if self._file.pending == 0:
                # All was written before the thread could see the wait, so `on_room` will not be called.
                self._waits = False
        return self._waits

    def feed(self, data: bytes) -> None:
        """Add bytes as they were read."""
        if self._closed or self._file.over or self._handed >= self._spools.file_max_bytes:
            return
        together = len(self._buffer) + len(data)
        if not self._begun and together <= self._inline:
            self._buffer += data
        elif self._begun and together < CHUNK_BYTES:
            self._buffer += data
            if self._alarm is None:
                self._alarm = self._reactor.later(FLUSH_S, self._flush)
        else:
            self._begun = True
            self._flush()
            self._hand_over(data)

    def need(self) -> None:
        """Write all output to the file, also earlier and later output, however small."""
        if not self._closed:
            self._begun = True
            self._flush()

    def settle(self, call: Callable[[], None]) -> None:
        """Call on the reactor's thread when the output so far is written, or is known to be left out."""
        self._flush()
        self._spools.after(lambda: self._post(call))

    def close(self) -> None:
        """End the output: no more will be fed."""
        if self._begun and not self._closed:
            self._flush()
            self._spools.end(self._file)
        self._closed = True
        self._buffer.clear()

    def _flush(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._begun and self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        self._handed += len(data)
        self._spools.write(self._file, data, self._written)

    def _written(self) -> None:
        """On the writing thread."""
        if self._waits and self._file.pending == 0:
            self._post(self._make_room)

    def _make_room(self) -> None:
        if self._waits:
            self._waits = False
            self._on_room()

    def _post(self, call: Callable[[], None]) -> None:
        self._reactor.post(call)
