"""Pipes between a command and the code that has started it: what it prints, to read; what it reads, to write.

Theory of operation. The code has one end of a pipe, the command (or the daemon, which copies) has the other. Nothing is
between them but the kernel, so the bounds are its own: a command whose output is not read waits when the pipe is full,
and so does a writer whose command does not read. A wait blocks no loop, and on a thread only that thread.

An end is non-blocking. Each read or write is tried, and if it has to wait, then for the descriptor and for a future
that the cancel of the run or of the call fails. The token is looked at before each try, so nothing is read or written
after a cancel. A cancel also ends the command, and its pipes may end before the cancel is known here: so the end of a
pipe is believed only after another look (`Door.ended`). An end that is closed while it is waited for stays open until
the wait has ended: its number cannot become that of another file meanwhile.

The end of output is the kernel's: no process has the other end open any more. A process outside of the tree could keep
it open, so the end of the tree is the end of a pipe too (`Pipes.tree_ended`), behind what is in it by then.

Standard library only, Python 3.9 or later: hosts load this file too. How code waits, and what a cancel raises there, is
given as a `Door`. Plain and async ends are one file of over 600 lines, since the rules above hold for both.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import select
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

READ_BYTES = 65_536
"""How much is read, or written, at once."""
LINE_MAX_BYTES = 8_388_608
"""The longest line, with its newline."""
READ_MAX_BYTES = 67_108_864
"""The most that is read in one piece up to the end."""

STREAMS = ("stdin", "stdout", "stderr")
"""In the order of the descriptors of a command."""
PIPE, FOLLOW = "pipe", "follow"

T = TypeVar("T")


class Door(Protocol):
    """How code waits for a pipe. Each method may be called on any thread of that code."""

    def look(self) -> None:
        """Raise RunCancelled after a cancel."""

    def ended(self) -> None:
        """Raise RunCancelled if a cancel was before the end of a pipe that was just seen, and may be why. May wait."""

    async def ended_async(self) -> None:
        """As `ended`, in async code."""

    def future(self) -> Future[Any]:
        """Return a future that a cancel fails."""

    def plain(self) -> AbstractContextManager[object]:
        """Return what plain code reads and writes in."""

    def aio(self) -> AbstractAsyncContextManager[object]:
        """Return what async code reads and writes in; it converts RunCancelled."""

    async def wait_async(self, future: Future[Any]) -> Any:
        """Wait until the future is done; a cancel raises RunCancelled."""


class End:
    """Our end of one pipe. Any thread.

    Args:
        fd: the descriptor; it belongs to this object now.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        # Reentrant: the garbage collector may close an end anywhere.
        self._lock = threading.RLock()
        self._used = False
        self._closed = False
        self._woken: Future[Any] | None = None
        self.over = False
        """True once the tree has ended: what is in the pipe now is all there is."""

    @property
    def closed(self) -> bool:
        """True once it is closed."""
        return self._closed

    def __enter__(self) -> int:
        """Use the descriptor, which stays open until `__exit__`. Raises ValueError if it is closed, or in use."""
        with self._lock:
            if self._closed:
                raise ValueError("this pipe is closed")
            if self._used:
                raise ValueError("another task or thread waits for this pipe: one at a time")
            self._used = True
            return self._fd

    def __exit__(self, *_: object) -> None:
        """Use it no more."""
        with self._lock:
            self._used = False
            self._close_unused()

    def close(self) -> None:
        """Close it, now or when it is not in use any more. May be called again."""
        with self._lock:
            self._closed = True
            self._close_unused()

    def __del__(self) -> None:
        """Close it."""
        self.close()

    def tree_ended(self) -> None:
        """No process of the tree is left: a wait ends."""
        with self._lock:
            self.over = True
            woken = self._woken
        if woken is not None:
            _settle(woken)

    def wait(self, fd: int, door: Door, *, writable: bool) -> None:
        """Block until the pipe is ready, or its tree has ended, or there was a cancel."""
        woken = self._begin_wait(door)
        wake = _Wake()
        woken.add_done_callback(wake)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLOUT if writable else select.POLLIN)
            poll.register(wake.fd, select.POLLIN)
            poll.poll()
        finally:
            self._woken = None
            wake.close()
            _settle(woken)

    async def wait_async(self, fd: int, door: Door, *, writable: bool) -> None:
        """As `wait`, without blocking the loop."""
        loop = asyncio.get_running_loop()
        woken = self._begin_wait(door)
        add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
        add(fd, _settle, woken)
        try:
            await door.wait_async(woken)
        finally:
            self._woken = None
            remove(fd)
            _settle(woken)

    def _begin_wait(self, door: Door) -> Future[Any]:
        woken = self._woken = door.future()
        if self.over:
            # It has ended since the last try.
            _settle(woken)
        return woken

    def _close_unused(self) -> None:
        if self._closed and not self._used and self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _Wake:
    """What ends the wait of a thread: a pipe, since that is what can be waited for beside another one."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        self._lock = threading.RLock()

    def __call__(self, _: object) -> None:
        """End the wait. Any thread; once."""
        with self._lock:
            if self._write >= 0:
                os.write(self._write, b".")

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            write, self._write = self._write, -1
        os.close(write)
        os.close(self.fd)


class _Closing:
    """A cancel closes pipes: where code finds one closed, it gets the cancel."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise RunCancelled in place of the error of a closed pipe, if there was a cancel."""
        if isinstance(error, ValueError):
            self._door.look()


def _settle(future: Future[Any]) -> None:
    try:
        future.set_result(None)
    except InvalidStateError:
        return


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


class _Source:
    """What was read of one pipe and not handed over: at most READ_BYTES and the beginning of a line."""

    def __init__(self, end: End, door: Door) -> None:
        self.end = end
        self.door = door
        self.at_end = False
        self._held = bytearray()
        self._searched = 0

    def fill(self, fd: int) -> bool:
        """Read once. False: there is nothing yet."""
        # Read before the try: what was printed before the end of the tree is in the pipe then.
        over = self.end.over
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            if not over:
                return False
            data = b""
        self._held += data
        if not data:
            self.at_end = True
            self.end.close()
        return True

    def line(self) -> bytes | None:
        """Take one line, or at the end what is left; None: it is not here yet. Raises ValueError if it is too long."""
        at = self._held.find(b"\n", self._searched, LINE_MAX_BYTES)
        if at >= 0:
            return self.take(at + 1)
        self._searched = min(len(self._held), LINE_MAX_BYTES)
        if len(self._held) >= LINE_MAX_BYTES:
            raise ValueError(
                f"a line of the command is longer than expected: at most {LINE_MAX_BYTES} bytes, and these have no "
                "end; read(size) returns them piece by piece"
            )
        return self.take(len(self._held)) if self.at_end else None

    def some(self, size: int) -> bytes | None:
        """Take up to `size` bytes of what is here; None: nothing is yet."""
        return self.take(size) if self._held or self.at_end or not size else None

    def exactly(self, size: int) -> bytes | None:
        """Take `size` bytes, fewer only at the end; None: they are not here yet."""
        return self.take(size) if len(self._held) >= size or self.at_end else None

    def all(self) -> bytes | None:
        """Take everything up to the end; None: that is not here yet. Raises ValueError if it is too much."""
        if len(self._held) > READ_MAX_BYTES:
            raise ValueError(
                f"the command has printed more than can be read at once: at most {READ_MAX_BYTES} bytes; "
                "read(size) returns them piece by piece"
            )
        return self.exactly(READ_MAX_BYTES + 1)

    def take(self, size: int) -> bytes:
        """Take up to `size` bytes."""
        taken = bytes(self._held[:size])
        del self._held[:size]
        self._searched = 0
        return taken

    def wait(self, take: Callable[[], T | None]) -> T:
        """Read until `take` returns something. Plain code."""
        with self.door.plain(), _Closing(self.door):
            while True:
                self.door.look()
                taken = take()
                if taken is not None:
                    return taken
                with self.end as fd:
                    if not self.fill(fd):
                        self.end.wait(fd, self.door, writable=False)
                if self.at_end:
                    self.door.ended()

    async def wait_async(self, take: Callable[[], T | None]) -> T:
        """As `wait`, in async code."""
        async with self.door.aio():
            with _Closing(self.door):
                return await self._taken(take)

    async def _taken(self, take: Callable[[], T | None]) -> T:
        while True:
            self.door.look()
            taken = take()
            if taken is not None:
                return taken
            with self.end as fd:
                # A command that prints without a pause must not keep the loop from others.
                await asyncio.sleep(0)
                self.door.look()
                if not self.fill(fd):
                    await self.end.wait_async(fd, self.door, writable=False)
            if self.at_end:
                await self.door.ended_async()


class OutputFile(io.BufferedIOBase):
    """What a command prints, for plain code: a binary file to read. `io.TextIOWrapper` makes it text.

    After a cancel each method raises RunCancelled. At most one thread reads it. What is not read stays in the pipe, and
    the command waits when that is full (64 KiB).
    """

    def __init__(self, end: End, door: Door) -> None:
        super().__init__()
        self._source = _Source(end, door)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line with its newline, or at the end what is left; with `size`, at most so many bytes of it.

        Raises:
            RunCancelled: the run or the call was cancelled.
            ValueError: the line has more than LINE_MAX_BYTES; or the file was closed.
        """
        if size is None or size < 0:
            return self._read(self._source.line)
        wanted = size

        def some_of_it() -> bytes | None:
            held = self._source._held
            at = held.find(b"\n", 0, wanted)
            return self._source.take(at + 1) if at >= 0 else self._source.exactly(wanted)

        return self._read(some_of_it)

    def read(self, size: int | None = -1) -> bytes:
        """Return so many bytes, fewer only at the end; without a size everything up to the end (READ_MAX_BYTES)."""
        if size is None or size < 0:
            return self._read(self._source.all)
        return self._read(lambda: self._source.exactly(size))

    def read1(self, size: int = -1) -> bytes:
        """Return up to so many bytes as soon as there are some; empty at the end."""
        return self._read(lambda: self._source.some(READ_BYTES if size < 0 else size))

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; see `read`."""
        return self._into(buffer, self.read)

    def readinto1(self, buffer: Any) -> int:
        """Read into a buffer; see `read1`."""
        return self._into(buffer, self.read1)

    def close(self) -> None:
        """Close it. The command gets SIGPIPE when it prints more, unless its output is logged as well."""
        self._source.end.close()
        super().close()

    def _read(self, take: Callable[[], bytes | None]) -> bytes:
        if self.closed:
            raise ValueError("this pipe is closed")
        return self._source.wait(take)

    @staticmethod
    def _into(buffer: Any, read: Callable[[int], bytes]) -> int:
        view = memoryview(buffer).cast("B")
        data = read(len(view))
        view[: len(data)] = data
        return len(data)


class AsyncOutput:
    """What a command prints, for async code: ``async for line in process.stdout``, lines as bytes with their newline.

    After a cancel each method raises asyncio.CancelledError. At most one task reads it. A read that its own time limit
    ends has taken nothing. What is not read stays in the pipe, and the command waits when that is full (64 KiB).
    """

    def __init__(self, end: End, door: Door) -> None:
        self._source = _Source(end, door)
        self._closed = False

    def __aiter__(self) -> AsyncOutput:
        """Iterate over the lines."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next line."""
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def readline(self) -> bytes:
        """Return a line with its newline, or at the end what is left; then empty.

        Raises:
            ValueError: the line has more than LINE_MAX_BYTES; or it was closed, or another task reads.
        """
        return await self._read(self._source.line)

    async def read(self, size: int = -1) -> bytes:
        """Return up to so many bytes as soon as there are some, empty at the end; without a size everything up to it.

        Raises:
            ValueError: without a size, there are more than READ_MAX_BYTES; or it was closed, or another task reads.
        """
        return await self._read(self._source.all if size < 0 else lambda: self._source.some(size))

    def close(self) -> None:
        """Close it. The command gets SIGPIPE when it prints more, unless its output is logged as well."""
        self._closed = True
        self._source.end.close()

    async def _read(self, take: Callable[[], bytes | None]) -> bytes:
        if self._closed:
            raise ValueError("this pipe is closed")
        return await self._source.wait_async(take)


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


def _try_to_write(end: End, fd: int, data: memoryview) -> int | None:
    """Write once; returns how much of it, 0 if the pipe is full, None if nobody reads it any more."""
    try:
        return None if end.over else os.write(fd, data[:READ_BYTES])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return None


def _broken() -> BrokenPipeError:
    return BrokenPipeError(errno.EPIPE, "the command does not read its input any more: it has closed it, or has exited")


class InputFile(io.BufferedIOBase):
    """What a command reads, for plain code: a binary file to write. Nothing is buffered here.

    After a cancel `write` raises RunCancelled. Writes of several threads come one after the other.
    """

    def __init__(self, end: End, door: Door) -> None:
        super().__init__()
        self._end = end
        self._door = door
        self._turn = threading.Lock()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it; waits while the pipe is full (64 KiB). Returns how many bytes.

        Raises:
            RunCancelled: the run or the call was cancelled; a part may be written.
            BrokenPipeError: the command does not read any more.
            ValueError: it was closed.
        """
        if self.closed:
            raise ValueError("this pipe is closed")
        left = memoryview(data).cast("B")
        size = len(left)
        with self._door.plain(), self._turn, _Closing(self._door):
            while left:
                self._door.look()
                with self._end as fd:
                    written = _try_to_write(self._end, fd, left)
                    if written == 0:
                        self._end.wait(fd, self._door, writable=True)
                if written is None:
                    self._door.ended()
                    raise _broken()
                left = left[written:]
        return size

    def close(self) -> None:
        """Close it: the command reads to the end of its input. May be called again, also after a cancel."""
        self._end.close()
        super().close()


class AsyncInput:
    """What a command reads, for async code. Nothing is buffered here.

    After a cancel `write` raises asyncio.CancelledError. Writes of several tasks come one after the other.
    """

    def __init__(self, end: End, door: Door) -> None:
        self._end = end
        self._door = door
        self._closed = False
        self._turn: asyncio.Lock | None = None

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of it; waits while the pipe is full (64 KiB).

        Raises:
            BrokenPipeError: the command does not read any more.
            ValueError: it was closed.
        """
        if self._closed:
            raise ValueError("this pipe is closed")
        left = memoryview(data).cast("B")
        if self._turn is None:
            # Here, on the loop: before Python 3.10 a lock belongs to the loop in which it is made.
            self._turn = asyncio.Lock()
        async with self._door.aio():
            self._door.look()
            async with self._turn:
                with _Closing(self._door):
                    await self._write(left)

    async def _write(self, left: memoryview) -> None:
        while left:
            self._door.look()
            with self._end as fd:
                written = _try_to_write(self._end, fd, left)
                if written == 0:
                    await self._end.wait_async(fd, self._door, writable=True)
            if written is None:
                await self._door.ended_async()
                raise _broken()
            left = left[written:]

    def close(self) -> None:
        """Close it: the command reads to the end of its input. May be called again, also after a cancel."""
        self._closed = True
        self._end.close()


# ── All pipes of a command ────────────────────────────────────────────────────────────────────────


class Theirs:
    """The other ends, on their way to the command. Any thread.

    Args:
        fds: by stream, close-on-exec; they belong to this object now.
    """

    def __init__(self, fds: Mapping[str, int]) -> None:
        self._fds: dict[str, int] | None = dict(fds)
        self._lock = threading.RLock()

    def take(self) -> dict[str, int] | None:
        """Return the descriptors, which are the caller's now; None: they were closed."""
        with self._lock:
            fds, self._fds = self._fds, None
        return fds

    def close(self) -> None:
        """Close them, unless they were taken."""
        for fd in (self.take() or {}).values():
            os.close(fd)

    def __del__(self) -> None:
        """Close them."""
        self.close()


class Pipes:
    """The pipes of one command.

    Args:
        streams: what each stream is that is not as usual: PIPE or FOLLOW (see `actors.ports.SpawnSpec`).

    Raises:
        OSError: there are no descriptors left.
    """

    def __init__(self, streams: Mapping[str, str]) -> None:
        self.ends: dict[str, End] = {}
        self._followed = {stream for stream, how in streams.items() if how == FOLLOW}
        self._over = False
        theirs: dict[str, int] = {}
        self.theirs = Theirs({})
        try:
            for stream in STREAMS:
                if stream in streams:
                    read, write = os.pipe()
                    ours, theirs[stream] = (write, read) if stream == "stdin" else (read, write)
                    self.ends[stream] = End(ours)
        except OSError:
            self.theirs = Theirs(theirs)
            self.close()
            raise
        self.theirs = Theirs(theirs)

    def over(self, *, cancelled: bool = True) -> None:
        """Their code has ended, or was cancelled: nothing is written or read.

        Behind a cancel, what the tree still prints is no failure: its output is open until it has ended.
        """
        self._over = True
        for stream, end in self.ends.items():
            if not cancelled or stream == "stdin" or stream in self._followed or end.over:
                end.close()

    def tree_ended(self) -> None:
        """No process of the tree is left. What is copied ends when the copy does."""
        for stream, end in self.ends.items():
            if stream not in self._followed:
                end.tree_ended()
            if self._over:
                end.close()

    def close(self) -> None:
        """Close everything: the command was not started."""
        self.theirs.close()
        for end in self.ends.values():
            end.close()
