"""One connection: its peer, and its time limits.

Theory of operation. uvicorn's protocol parses and writes; this class adds access control and limits. A connection is in
one of four states: *idle* (no byte of a request has come), *receiving* (a request has begun and is not complete),
*answering*, and *leaving* (it is being closed, by either side). While it is answering it can also be *stalled* (the
client reads nothing of what is written). Each state but answering has a limit. One sweep per second over all
connections enforces them, so that a request needs no timer.

A transport that is closed first writes what is left, and waits for ever for a client that reads nothing. So a
connection is tracked, and swept, until it is lost. While something is left to be written it counts as a leaving
connection, which is the first to be closed.

While bytes wait behind the request that is being answered, nothing more is read, so the end of the stream is not seen
either. The sweep asks the kernel for it: a client that has disconnected keeps no connection, whatever it sent before.
Over TCP the end comes after all data that was sent, and may be stuck with it in the client's kernel. So a client that
has sent more than `BEHIND_MAX` behind its request is answered for at most `stalled_s` from then on.

Only an answering connection is safe: at the limit on connections one of the others is closed for a new one, the oldest
leaving connection or else the oldest of the rest. A client that opens many connections, and sends nothing or sends
slowly, keeps no other client out, and least of all a Stop.

Memory. Input is limited by the parser (headers) and by the routes (body); nothing more is read while a request is
answered. Output waits until the transport's buffer empties: it holds 64 KiB and one piece more.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from loguru import logger
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from supervisor.http.access import PEER, Access, peer_of
from supervisor.http.limits import Limits
from supervisor.http.refusals import Busy, Failure, as_bytes, failure, packed
from supervisor.wire import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

DRAINED_FACTOR: Final = 2
"""How many times `body_max` of a refused body is read, and dropped, so that its sender reads the answer."""

BEHIND_MAX: Final = 65_536
"""Limit on the bytes that wait in the kernel behind the request that is being answered."""

LINGER_S: Final = 1.0

_INT: Final = struct.Struct("i")
_READ_WHOLE: Final = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class Connection(H11Protocol):
    """A connection of the API. On the loop's thread only.

    Args:
        access: decides who is admitted.
        limits: the time limits.
        options: of `H11Protocol`.
    """

    def __init__(self, *, access: Access, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._access = access
        self._limits = limits
        self._idle_since = self.loop.time()
        self._receiving_since: float | None = None
        self._stalled_since: float | None = None
        self._overrun_since: float | None = None
        self._leaving_since: float | None = None
        self._received = 0
        self._ending = False

    # ── Called by the transport ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Accept a connection, or refuse it before anything is read from it."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        refused = self._access.refuses(peer)
        if refused is not None:
            logger.warning("a connection is refused: {}", refused.got)
            self._end(failure(refused), "Forbidden")
            return
        self.app_state = {**self.app_state, PEER: peer}
        if len(self.connections) > self._limits.clients_max and not self._made_room():
            busy = Busy(
                "too many requests are being answered",
                expected=f"at most {self._limits.clients_max} connections",
                got=f"{len(self.connections)}",
                remedy="close connections that are not needed, or try again later",
            )
            self._end(failure(busy), "Service Unavailable")

    def data_received(self, data: bytes) -> None:
        """Read on. The time of a request counts from its first byte."""
        if self.leaving:
            return
        if self._receiving_since is None:
            self._receiving_since = self.loop.time()
            self._received = 0
        self._received += len(data)
        if self._received > self._limits.header_max + DRAINED_FACTOR * self._limits.body_max:
            self.transport.abort()
            return
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Continue with the next request, if there is one."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """Record that the client reads nothing and the buffer is full: writers wait."""
        super().pause_writing()
        self._stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """Record that the client has read most of the buffer."""
        super().resume_writing()
        self._stalled_since = None

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP, in the form of all errors."""
        refusal = Refusal(
            "invalid",
            "this is not an HTTP request",
            expected=f"HTTP/1.1, with a request line and headers of at most {self._limits.header_max} bytes",
            got=msg,
            remedy="see /v1/openapi.json",
        )
        self._end(packed(refusal), "Bad Request")

    # ── Limits ────────────────────────────────────────────────────────────────────────────────────

    @property
    def answering(self) -> bool:
        """True while a request is being answered. The limits of `receiving` apply while its body is still coming."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def leaving(self) -> bool:
        """True once it is being closed; nothing more is read from it."""
        return self._ending or self.transport.is_closing()

    @property
    def owing(self) -> bool:
        """True while something is left to be written that its client has not read."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def idle_for(self) -> float | None:
        """Seconds since a request was last served here; None while one is."""
        if self._receiving_since is not None:
            return self.loop.time() - self._receiving_since
        return None if self.answering else self.loop.time() - self._idle_since

    @property
    def gone(self) -> bool:
        """True if reading is paused and the client has disconnected."""
        if not self.flow.read_paused or self._fd < 0:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    @property
    def _fd(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    def _overrun(self) -> bool:
        """Return True if reading is paused and more than `BEHIND_MAX` bytes wait to be read."""
        if not self.flow.read_paused or self._fd < 0:
            return False
        (waiting,) = _INT.unpack(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_INT.size)))
        return bool(waiting > BEHIND_MAX)

    def sweep(self) -> None:
        """Close the connection if its client has disconnected, or if its time is over."""
        if self.gone:
            self.transport.abort()
            return
        now, limits = self.loop.time(), self._limits
        self._overrun_since = (self._overrun_since or now) if self._overrun() else None
        if self.leaving and self._leaving_since is None:
            # uvicorn closes connections too, without calling this class.
            self._leaving_since = now
        taken_nothing = [self._stalled_since, self._overrun_since, self._leaving_since if self.owing else None]
        if any(since is not None and now - since > limits.stalled_s for since in taken_nothing):
            logger.info("a client that reads nothing, or sends on without reading, is disconnected")
            self.transport.abort()
        elif self.leaving:
            # The transport writes the rest by itself.
            return
        elif self._receiving_since is not None and now - self._receiving_since > limits.request_s:
            refusal = Refusal(
                "request_timeout",
                "the request did not come in time",
                expected=f"a whole request within {limits.request_s:g} s",
                got=f"{self._received} bytes of it",
                remedy="send it again, faster",
            )
            self._end(packed(refusal), "Request Timeout")
        elif self._receiving_since is None and not self.answering and now - self._idle_since > limits.idle_s:
            self.transport.close()

    def _made_room(self) -> bool:
        """Close the first connection in line, if one has to be closed. Returns False if all are being served."""
        others = [one for one in cast("Iterable[Connection]", self.connections) if one is not self]
        # One that only stays open for its client to read does not count: it is closed within `LINGER_S`.
        owing = [one for one in others if one.leaving and one.owing]
        staying = [one for one in others if not one.leaving]
        if len(owing) + len(staying) < self._limits.clients_max:
            return True
        if owing:
            first = min(owing, key=lambda one: one._leaving_since or self.loop.time())
        else:
            free = [(one.idle_for, one) for one in staying if one.idle_for is not None]
            if not free:
                return False
            _, first = max(free, key=lambda pair: pair[0] or 0.0)
        self.connections.discard(first)
        first.transport.abort()
        return True

    def _note(self) -> None:
        """Record whether a request is still coming."""
        theirs = self.conn.their_state
        if theirs in _READ_WHOLE or (theirs is h11.IDLE and not self.conn.trailing_data[0]):
            self._receiving_since = None

    def _end(self, made: Failure, reason: str) -> None:
        """Send a failure and close; if an answer has begun, only close."""
        if self._ending:
            return
        self._ending = True
        self._receiving_since = None
        self._leaving_since = self.loop.time()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(as_bytes(made, reason))
        if cycle is not None:
            # A route that reads the body, or is about to answer, sees that the client is gone.
            cycle.disconnected = True
            cycle.message_event.set()
        lingering = self.loop.create_task(self._linger())
        lingering.add_done_callback(self.tasks.discard)
        self.tasks.add(lingering)

    async def _linger(self) -> None:
        """Close a little later: a client that is still sending would see a broken pipe, and not the answer."""
        try:
            if self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            await asyncio.sleep(LINGER_S)
        finally:
            self.transport.close()
