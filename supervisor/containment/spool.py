"""Spool files: the exact bytes that trees have written, where a report has no room for them or cannot show them.

Theory of operation. What a tree writes is kept in memory up to `inline_bytes`. What does not fit in there, or what
is `needed` (it was not UTF-8, or something in the background goes on writing), goes into a file
``<key of the session>.<process id>.out``: the bytes of both streams as they came, up to `file_max_bytes`. So a small
output costs no file, and of a large one the file has the beginning and the report the end.

One thread writes. A disk that is slow or full therefore blocks no other thread: the reactor's thread only hands
chunks over. What is handed over and not written is bounded, for each file (PENDING_MAX_BYTES) and for all
(ALL_PENDING_MAX_BYTES): above that a spool is `full`, and its tree is not read until `on_room` is called. So a
command that writes faster than the disk waits for the disk, up to the cap of its file, and then no more.

All files together have a bound too. Where there is no room in it, the oldest files that are closed go; where there
are none, the file ends where it is, as it does when the disk has less than FREE_MIN_BYTES left for the store. Files
without a write for `keep_s` go as well, at the start and from time to time.

The key is made of the session's name, which may be too long, and may be anything, for a file's. With it a session that
is deleted takes its files along. A crash in between is mended at the next start, where nothing is written yet: files
whose session is none go before the first byte of a new one is taken from the queue.
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
    """What is in a file by now: its path, and how many bytes of the output, from the first one on."""

    path: str
    size: int


class SpoolUse(NamedTuple):
    """How many spool files there are, and how many bytes they have together."""

    files: int
    size: int


def use_of(folder: Path) -> SpoolUse:
    """Count the spool files of a directory; none where it is not there. Raises OSError where it cannot be read."""
    sizes = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    sizes.append(entry.stat(follow_symlinks=False).st_size)
    return SpoolUse(len(sizes), sum(sizes))


class SpoolFile:
    """One file as the writing thread has it. `size` may be read by any thread."""

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
        file_max_bytes: the cap of one file; 0: there are none.
        total_max_bytes: the cap of all of them.
        keep_s: how many seconds after its last byte a file may be removed, and is.
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
        """True if more waits to be written than may."""
        return self._pending > ALL_PENDING_MAX_BYTES

    def start(self) -> None:
        """Make the directory and start the thread. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread.start()

    def path(self, process_id: str, session: str = "") -> Path:
        """Where the file of a process of a session is, if there is one; without a session it has no key."""
        key = f"{key_of(session)}." if session else ""
        return self.folder / f"{key}{quote(process_id, safe='')}{SUFFIX}"

    def forget(self, session: str) -> None:
        """A session was deleted: remove its files, after what was handed over. Any thread."""
        key = key_of(session)
        self._jobs.put(lambda: self._remove(lambda found: found == key))

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Remove the files of sessions that are not among the living, whose names are asked for if there are files.

        To be called before anything is spawned, so that it comes before what that will write. Any thread; `living` is
        called on the writing thread, and where it raises, all files stay.
        """

        def job() -> None:
            if use_of(self.folder).files:
                keys = {key_of(session) for session in living()}
                self._remove(lambda found: found not in keys)

        self._jobs.put(job)

    def close(self, timeout_s: float) -> bool:
        """Write what was handed over and end the thread; True if it ended within `timeout_s` seconds."""
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
        """Close a file after what was handed over."""
        self._jobs.put(lambda: self._close_file(file))

    def after(self, call: Callable[[], None]) -> None:
        """Call it on the writing thread, after what was handed over."""
        self._jobs.put(call)

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
        """How many of so many bytes may be written; with fewer than wanted the file is over."""
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
        """Remove what is too old, and the oldest until there is room for so many bytes; count what stays."""
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
        """Remove the files whose key says so; those without one stay."""
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
            logger.exception("the spool could not do what it was asked for")


def key_of(session: str) -> str:
    """What the names of a session's files begin with."""
    return hashlib.sha256(session.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def write(fd: int, data: memoryview) -> int:
    """Write to a file; returns how many bytes."""
    return os.write(fd, data)


class Spool:
    """What one tree has written. Reactor thread only.

    Args:
        spools: all of them.
        process_id: names the file.
        reactor: for calls back.
        inline_bytes: how many bytes need no file.
        on_room: called on the reactor's thread when a spool that was `full` may be fed again.
        session: whose tree it is.
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

    @property
    def path(self) -> str:
        """Where its file is, or would be."""
        return str(self._file.path)

    @property
    def begun(self) -> bool:
        """True if there is a file, or one is on its way."""
        return self._begun

    @property
    def kept(self) -> SpooledFile | None:
        """What is in the file by now; None if there is no byte in it."""
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
        """Take bytes as they were read."""
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
        """What was fed, and what will be, is to be in the file, however little it is."""
        if not self._closed:
            self._begun = True
            self._flush()

    def settle(self, call: Callable[[], None]) -> None:
        """Call on the reactor's thread when what was fed is in the file, or is known not to come into it."""
        self._flush()
        self._spools.after(lambda: self._post(call))

    def close(self) -> None:
        """No more will be fed."""
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
