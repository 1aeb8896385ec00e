"""Channel: lines over the socket of one host, in both directions. It never waits.

Theory of operation. The socket is non-blocking, and all channels belong to one reactor thread. Each time a socket is
readable one piece is read, and the whole lines in it are handed over in their order; so a host that floods delays
another by one piece. What cannot be written is kept and written once the socket takes it. Nothing waits for a host that
does not read.

Bounds. Unread: the beginning of a line of at most LINE_MAX_BYTES, one piece, and the descriptors of one frame; while
the receiver has paused the channel nothing is read, so the host waits in its own write. Unsent: frames that the
receiver sends by itself (`run`, `execute`, `credit`, a cancel), and answers. A host that does not read its answers is
not read either while more than UNSENT_MAX_BYTES of them wait, so it cannot ask for more.

A cancel goes to the front, behind only a frame that was begun and the `run` that it ends: a Stop does not wait
behind frames that a slow host has not read (rule W3).
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from actors.plugin.pipes import STREAMS, Theirs
from supervisor.containment.guard.packets import INT_BYTES, descriptors_in
from supervisor.hosts.lines import LINE_MAX_BYTES

if TYPE_CHECKING:
    from supervisor.containment.reactor import Alarm, Reactor

PIECE_BYTES: Final = 65_536
"""How much is read at a time."""

UNSENT_MAX_BYTES: Final = 1_048_576
"""While more than this of answers is unsent, the host is not read."""

ROOM: Final = socket.CMSG_SPACE(len(STREAMS) * INT_BYTES)
"""For the descriptors of one frame; the kernel closes more than that. A piece has those of one frame."""

MUCH_BYTES: Final = 4_096
"""A piece of this size is worth a wake-up."""

REST_S: Final = 0.001
"""A host that says little within this time, again and again, is read this often."""

SEND_BYTES: Final = 262_144
"""How much is written at a time."""


class Receiver(Protocol):
    """Receives the lines and the end of a channel; on the reactor's thread."""

    def line(self, line: bytes) -> None:
        """Take one line, without its newline. It may pause, resume or close the channel."""

    def handed_over(self) -> None:
        """Take note that for now no line follows: the next one is not here yet, or the channel is paused."""

    def too_long(self, beginning: bytes) -> None:
        """Take note that a line is longer than the limit, and close the channel."""

    def at_end(self) -> None:
        """Take note that the host has closed its end, and that all its lines were handed over."""


class Unsent:
    """A frame that is not written yet. `is_answer`: it counts to the bound on answers."""

    __slots__ = ("data", "is_answer")

    def __init__(self, data: bytes, *, is_answer: bool) -> None:
        self.data = data
        self.is_answer = is_answer


class Channel:
    """One socket. Reactor thread only, except the constructor and `hung_up`.

    Args:
        reactor: the thread of all channels.
        sock: the daemon's end. The channel owns it from now on.
        receiver: takes the lines.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket, receiver: Receiver) -> None:
        sock.setblocking(False)
        self._reactor = reactor
        self._sock: socket.socket | None = sock
        self._writer: socket.socket | None = None
        self._receiver = receiver
        self._unread = bytearray()
        self._given = Theirs({})
        self._searched = 0
        self._paused = False
        self._resumed = 0
        self._handing = False
        self._watched = False
        self._read_at = 0.0
        self._rest: Alarm | None = None
        self._ended = False
        self._unsent: deque[Unsent] = deque()
        self._begun = 0
        self._answers_bytes = 0

    @property
    def closed(self) -> bool:
        """True once it is closed by this side."""
        return self._sock is None

    def hung_up(self) -> bool:
        """Return True if the host has closed its end and nothing is left to read. Any thread: it asks the socket."""
        sock = self._sock
        if sock is None or self._ended:
            return True
        try:
            return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # Reset by a host that died with something unread, or closed on our side meanwhile.
            return True

    @property
    def ended(self) -> bool:
        """True once the host has closed its end. Lines may be left that were not handed over."""
        return self._ended

    @property
    def paused(self) -> bool:
        """True while the receiver takes no lines."""
        return self._paused

    @property
    def resumed(self) -> int:
        """How often the receiver has taken lines again."""
        return self._resumed

    @property
    def unsent_bytes(self) -> int:
        """How much was sent and is not written."""
        return sum(len(one.data) for one in self._unsent) - self._begun

    def open(self) -> None:
        """Begin to read."""
        self._rewatch()

    def take_descriptors(self) -> Theirs:
        """Return the descriptors that came last, if they were not taken: with the line that is handed over."""
        given, self._given = self._given, Theirs({})
        return given

    def pause(self) -> None:
        """Hand no line over until `resume`, and read nothing."""
        self._paused = True
        self._rewatch()

    def resume(self) -> None:
        """Hand lines over again. From inside of `Receiver.line` those follow that were read."""
        self._paused = False
        self._resumed += 1
        if not self._handing:
            self._hand_over()
        self._rewatch()

    def close(self) -> None:
        """Close the socket, and drop what was not handed over and not written."""
        if self._sock is None:
            return
        if self._watched:
            self._reactor.unwatch(self._sock.fileno())
            self._watched = False
        if self._rest is not None:
            self._rest.cancel()
        self._stop_writing()
        self._sock.close()
        self._sock = None
        self._unread.clear()
        self._given.close()
        self._unsent.clear()
        self._begun = self._answers_bytes = 0

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    def _rewatch(self) -> None:
        """Read if that is wanted and possible."""
        if self._sock is None:
            return
        may_read = not self._paused and not self._ended and self._rest is None
        wanted = may_read and self._answers_bytes <= UNSENT_MAX_BYTES
        if wanted and not self._watched:
            self._reactor.watch(self._sock.fileno(), self._readable)
        elif not wanted and self._watched:
            self._reactor.unwatch(self._sock.fileno())
        self._watched = wanted

    def _readable(self) -> None:
        assert self._sock is not None, "a closed socket is not watched"
        try:
            piece, ancillary, _, _ = self._sock.recvmsg(PIECE_BYTES, ROOM, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # The host has closed its end while something from here was unread.
            piece, ancillary = b"", []
        if ancillary:
            self._given.close()
            given = descriptors_in(ancillary)
            self._given = Theirs({str(place): fd for place, fd in enumerate(given)})
        if piece:
            self._unread += piece
        else:
            self._ended = True
        now, before = self._reactor.now(), self._read_at
        self._read_at = now
        if piece and len(piece) < MUCH_BYTES and now - before < REST_S:
            # It says little at a time, and often.
            self._rest = self._reactor.later(REST_S, self._go_on_reading)
        self._hand_over()
        self._rewatch()

    def _go_on_reading(self) -> None:
        self._rest = None
        self._rewatch()

    def _hand_over(self) -> None:
        """Hand over whole lines until one pauses or closes the channel."""
        start, self._handing = 0, True
        try:
            while not self._paused and self._sock is not None:
                end = self._unread.find(b"\n", max(start, self._searched))
                if end < 0:
                    self._searched = len(self._unread)
                    break
                line = bytes(self._unread[start:end])
                start = end + 1
                if len(line) > LINE_MAX_BYTES:
                    self._receiver.too_long(line)
                    break
                self._receiver.line(line)
        finally:
            self._handing = False
            if self._sock is not None:
                del self._unread[:start]
                self._searched = max(0, self._searched - start)
        if self._sock is None:
            return
        self._receiver.handed_over()
        if self.closed or self._paused:
            return
        if len(self._unread) > LINE_MAX_BYTES:
            self._receiver.too_long(bytes(self._unread[:PIECE_BYTES]))
        elif self._ended:
            # A last line without its newline may be half a frame: it was never said.
            self._receiver.at_end()

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes, *, is_answer: bool = False) -> Unsent:
        """Send a line. It is written now or later, in order."""
        frame = Unsent(data, is_answer=is_answer)
        if self._sock is not None:
            self._unsent.append(frame)
            self._answers_bytes += len(data) if is_answer else 0
            self._write_now()
        return frame

    def send_first(self, data: bytes, behind: Collection[Unsent | None]) -> Unsent:
        """Send a line ahead of what is unsent, but behind a frame that was begun, and behind those in `behind`."""
        line = Unsent(data, is_answer=False)
        if self._sock is not None:
            place = 1 if self._begun else 0
            for index, frame in enumerate(self._unsent):
                if frame in behind:
                    place = index + 1
            self._unsent.insert(place, line)
            self._write_now()
        return line

    def take_back(self, frame: Unsent) -> bool:
        """Remove a frame of which nothing was written. False: it is too late."""
        if frame not in self._unsent or (self._begun and self._unsent[0] is frame):
            return False
        self._unsent.remove(frame)
        self._answers_bytes -= len(frame.data) if frame.is_answer else 0
        return True

    def _write_now(self) -> None:
        """Write, unless the socket is full: then it says when it is not."""
        if self._writer is None:
            self._write()
        else:
            self._rewatch()

    def _write(self) -> None:
        assert self._sock is not None, "a closed channel has nothing unsent"
        while self._unsent:
            try:
                written = self._sock.send(self._next_piece(), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # It has closed its end: reading sees that.
                self._unsent.clear()
                self._begun = self._answers_bytes = 0
                break
            self._written(written)
        if self._unsent and self._writer is None:
            # A second descriptor: the selector knows each descriptor for one thing.
            self._writer = self._sock.dup()
            self._reactor.watch(self._writer.fileno(), self._write, writable=True)
        elif not self._unsent:
            self._stop_writing()
        self._rewatch()

    def _next_piece(self) -> bytes | memoryview:
        first = self._unsent[0]
        if len(self._unsent) == 1 or len(first.data) - self._begun >= SEND_BYTES:
            return memoryview(first.data)[self._begun :]
        pieces, size = [first.data[self._begun :]], len(first.data) - self._begun
        for frame in itertools.islice(self._unsent, 1, None):
            size += len(frame.data)
            if size > SEND_BYTES:
                break
            pieces.append(frame.data)
        return b"".join(pieces)

    def _written(self, count: int) -> None:
        self._begun += count
        while self._unsent and self._begun >= len(self._unsent[0].data):
            frame = self._unsent.popleft()
            self._begun -= len(frame.data)
            self._answers_bytes -= len(frame.data) if frame.is_answer else 0

    def _stop_writing(self) -> None:
        if self._writer is not None:
            self._reactor.unwatch(self._writer.fileno())
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None
