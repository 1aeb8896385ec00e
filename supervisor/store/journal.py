"""The stop journal: Stops that were answered before the store had them, in a small file beside it.

Theory of operation. A Stop is answered after 250 ms even if the store hangs or fails. It is then written here, so that
it survives a crash before the store works again. The next start reads this file first, and replays its Stops before
any run starts.

The file has its full size from the first start on, is kept open, and is only ever overwritten in place, so a disk that
fills up later does not matter. It is a ring of slots of one page. A record takes one or more consecutive slots: a
header (magic, length, number, checksum), then the Stop as JSON. It is freed by overwriting its header. The next record
goes behind the last one, so all slots wear alike and a freed record stays readable for a while.

  - *Torn write.* The checksum covers number and text, so a record that is only partly on the disk is ignored. Its
    answer said `durable=False`, because the sync never returned.
  - *Text that looks like a header.* There is none: the magic has a byte that never occurs in UTF-8.
  - *The answer of a Stop becomes known later.* The Stop is written again with it, into other slots, under its number;
    the older record is freed when that is on the disk. A crash in between leaves both: the answered one counts.
  - *A freed Stop comes back* if the crash was faster than the disk. The session finds its id already answered.
  - *The write fails.* The file is reopened and all live records are written again (after a failed sync the page cache
    is not trusted), until that works. Meanwhile `health` reports the error.
  - *The write hangs.* Only the journal's thread waits for it; `health` reports for how long.
  - *No slot is free.* The Stop is not kept, and `health` counts it; it has taken effect all the same.

The journal has a thread of its own, because the store's may be the one that hangs.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from loguru import logger

from actors.decoding import decoder
from actors.errors import CountermandError, StoreUnavailable
from actors.kernel.thread_role import serve_all
from actors.ports import KeptStop
from supervisor.store.health import JournalHealth, error_text

SLOT_BYTES: Final = 4096
SLOTS: Final = 512
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
_MAGIC: Final = b"\xffSTP"
_HEADER: Final = struct.Struct(">4sIQI")
_NOTHING: Final = bytes(_HEADER.size)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = decoder(KeptStop)
_Key = tuple[str, str]


class _Record:
    """A Stop and its slots."""

    __slots__ = ("count", "first", "frame", "instead_of", "kept", "number")

    def __init__(self, kept: KeptStop, number: int, first: int, frame: bytes) -> None:
        self.kept = kept
        self.number = number
        self.first = first
        self.frame = frame
        self.count = -(-len(frame) // SLOT_BYTES)
        # The older record of the same Stop, freed when this one is on the disk.
        self.instead_of: _Record | None = None


class StopJournal:
    """See the head of this file. The methods may be called from any thread; only `synced` and `close` wait.

    Args:
        path: the file, made (mode 0600) where there is none. Only one process may use it.
        slots: the least number of pages; a larger file keeps its size.

    Raises StoreUnavailable if the file cannot be made or read.
    """

    def __init__(self, path: Path, *, slots: int = SLOTS) -> None:
        self._path = path
        self._slots = slots
        self._changed = threading.Condition()
        self._live: dict[_Key, _Record] = {}
        self._taken: set[int] = set()
        # The frames to write, by slot.
        self._dirty: dict[int, bytes] = {}
        # Called when everything handed in before is on the disk.
        self._on_synced: list[Callable[[], object]] = []
        self._number = 0
        self._next = 0
        self._torn = self._refused = 0
        self._error: str | None = None
        self._writing_since: float | None = None
        self._closing = False
        try:
            self._fd: int | None = self._open()
            try:
                self._scan(os.pread(self._fd, self._slots * SLOT_BYTES, 0))
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise StoreUnavailable(
                "the stop journal cannot be opened",
                expected=f"a file of {slots * SLOT_BYTES} bytes at {path} that can be written",
                got=str(error),
                remedy="free space on its disk; look at the permissions of the state directory",
            ) from error
        # Not with the first Stop: at that moment no thread may be available, and the Stop would not be kept.
        self._thread = threading.Thread(target=self._run, name="countermand-stops", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            os.close(self._fd)
            raise

    def keep(self, kept: KeptStop, on_synced: Callable[[], object] | None = None) -> bool:
        """Queue a Stop for writing. False: there is no room for it, or the journal is closed.

        A Stop that is already kept is written again only if its answer was unknown then and is known now.

        `on_synced` is called once the Stop is on the disk, on the journal's thread or on this one; it must be quick.
        """
        with self._changed:
            record = self._live.get((kept.session, kept.stop.id))
            answered = record is not None and record.kept.outcome is None and kept.outcome is not None
            if (record is None or answered) and not self._add(kept, record):
                return False
            if on_synced is not None and self._dirty:
                self._on_synced.append(on_synced)
                on_synced = None
        if on_synced is not None:
            on_synced()
        return True

    def forget(self, session: str, request_id: str) -> None:
        """Free the slots of a Stop that is durable in the store. One that is not kept is ignored."""
        with self._changed:
            record = self._live.pop((session, request_id), None)
            if record is None:
                return
            self._free(record)
            if record.instead_of is not None:
                self._free(record.instead_of)
            self._changed.notify_all()

    def of(self, session: str) -> tuple[KeptStop, ...]:
        """The kept Stops of a session, in order of arrival."""
        with self._changed:
            return tuple(kept for kept in self._in_order() if kept.session == session)

    def sessions(self) -> list[str]:
        """The sessions with kept Stops, by name."""
        with self._changed:
            return sorted({session for session, _ in self._live})

    def synced(self, timeout: float) -> bool:
        """Wait until everything handed in is on the disk; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._dirty, timeout)

    def health(self) -> JournalHealth:
        """The journal's health now."""
        with self._changed:
            since = self._writing_since
            return JournalHealth(
                kept=len(self._live),
                unwritten=len(self._dirty),
                slots=self._slots,
                slots_free=self._slots - len(self._taken),
                torn=self._torn,
                refused=self._refused,
                error=self._error,
                writing_s=0.0 if since is None else time.monotonic() - since,
            )

    def close(self, timeout: float | None = None) -> bool:
        """Write what was handed in, if the disk accepts it, and close the file. May be called again.

        False: the disk hangs, and the thread did not end within `timeout` seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        return True

    # ── Slots, under the lock ─────────────────────────────────────────────────────────────────────

    def _add(self, kept: KeptStop, instead_of: _Record | None) -> bool:
        number = self._number + 1 if instead_of is None else instead_of.number
        frame = _frame(kept, number)
        first = None if self._closing else self._room(-(-len(frame) // SLOT_BYTES))
        if first is None:
            self._refused += 1
            logger.error("the stop journal has no room for Stop {} of session {}", kept.stop.id, kept.session)
            return False
        self._number = max(self._number, number)
        record = _Record(kept, number, first, frame)
        record.instead_of = instead_of
        self._take(record)
        self._dirty[first] = frame
        self._changed.notify_all()
        return True

    def _free(self, record: _Record) -> None:
        self._taken.difference_update(range(record.first, record.first + record.count))
        self._dirty[record.first] = _NOTHING

    def _in_order(self) -> list[KeptStop]:
        return [record.kept for record in sorted(self._live.values(), key=lambda record: record.number)]

    def _room(self, count: int) -> int | None:
        """Find `count` free slots in a row, behind the last record first."""
        behind = self._slots - count + 1
        firsts: list[int] = [*range(self._next, behind), *range(min(self._next, behind))]
        for first in firsts:
            if self._taken.isdisjoint(range(first, first + count)):
                return first
        return None

    def _take(self, record: _Record) -> None:
        self._live[record.kept.session, record.kept.stop.id] = record
        self._taken.update(range(record.first, record.first + record.count))
        self._next = (record.first + record.count) % self._slots

    def _scan(self, data: bytes) -> None:
        """Find the records in a file. Torn and unreadable ones are logged, and their slots are free."""
        slot, records = 0, []
        while slot < self._slots:
            record = self._read(data, slot)
            if record is not None:
                records.append(record)
            slot += 1 if record is None else record.count
        # Of two records of one Stop the later counts; of two with one number, the one with the answer.
        for record in sorted(records, key=lambda record: (record.number, record.kept.outcome is not None)):
            older = self._live.get((record.kept.session, record.kept.stop.id))
            if older is not None:
                self._free(older)
            self._take(record)
            self._number = record.number

    def _read(self, data: bytes, slot: int) -> _Record | None:
        start = slot * SLOT_BYTES
        magic, length, number, checksum = _HEADER.unpack_from(data, start)
        if magic != _MAGIC:
            return None
        text = data[start + _HEADER.size : start + _HEADER.size + length]
        if len(text) != length or _checksum(number, text) != checksum:
            self._torn += 1
            logger.warning("slot {} of the stop journal holds a Stop that was written only in part", slot)
            return None
        try:
            return _Record(_decode(text), number, slot, data[start : start + _HEADER.size + length])
        except (msgspec.MsgspecError, CountermandError) as error:
            logger.error("slot {} of the stop journal cannot be read and is left out: {}", slot, error)
            return None

    # ── The thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        serve_all()
        retry_s = RETRY_FIRST_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dirty or self._closing)
                if not self._dirty:
                    return
                writes = dict(self._dirty)
                synced, self._on_synced = self._on_synced, []
                self._writing_since = time.monotonic()
            try:
                self._write(writes)
            except Exception as error:  # noqa: BLE001  # after any error the kept Stops still have to be written
                logger.error("the stop journal could not be written, and is tried again: {!r}", error)
                with self._changed:
                    self._writing_since = None
                    self._on_synced = synced + self._on_synced
                    self._error = error_text(error)
                    self._dirty.update((record.first, record.frame) for record in self._live.values())
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing, retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            retry_s = RETRY_FIRST_S
            with self._changed:
                self._error = self._writing_since = None
                for slot, frame in writes.items():
                    if self._dirty.get(slot) is frame:
                        del self._dirty[slot]
                self._free_replaced(writes)
                if not self._dirty:
                    # Kept again while it was being written.
                    synced, self._on_synced = synced + self._on_synced, []
                self._changed.notify_all()
            for notify in synced:
                notify()

    def _free_replaced(self, writes: dict[int, bytes]) -> None:
        """Free each record whose Stop was just written again with its answer."""
        for record in self._live.values():
            if record.instead_of is not None and writes.get(record.first) is record.frame:
                self._free(record.instead_of)
                record.instead_of = None

    def _write(self, writes: dict[int, bytes]) -> None:
        """Write frames and sync. After an error the file is closed: the next attempt reopens it."""
        if self._fd is None:
            self._fd = self._open()
        try:
            # Freed records first: the header of one may be where the middle of a new record is.
            for slot, frame in sorted(writes.items(), key=lambda write: write[1] is not _NOTHING):
                _write_all(self._fd, frame, slot * SLOT_BYTES)
            os.fdatasync(self._fd)
        except BaseException:
            fd, self._fd = self._fd, None
            os.close(fd)
            raise

    def _open(self) -> int:
        """Open the file, and extend it to its size with written zeros, so that its blocks are allocated."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            self._slots = max(self._slots, size // SLOT_BYTES)
            if size < self._slots * SLOT_BYTES:
                _write_all(fd, bytes(self._slots * SLOT_BYTES - size), size)
                os.fsync(fd)
                _sync_directory(self._path.parent)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _frame(kept: KeptStop, number: int) -> bytes:
    text = _encode(kept)
    return _HEADER.pack(_MAGIC, len(text), number, _checksum(number, text)) + text


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(number.to_bytes(8, "big")))


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
