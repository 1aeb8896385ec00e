"""One connection: who is at the other end, and how long it may take.

Theory of operation. uvicorn's protocol parses and writes; this one adds what it leaves open. A connection is in one
of five states: *idle* (no byte of a request has come), *receiving* (a request has begun and is not whole),
*answering*, beside answering, *stalled* (the client takes nothing of what is written), and *leaving* (it is being
closed, whoever began that). Each but answering has a limit, and one sweep a second over all connections enforces them,
which costs no timer for each request.

A transport that is closed writes what is left first, and waits for ever for a client that takes none of it. So a
connection is known, and swept, until it is lost, and while something is left to be written it counts: as one that
leaves, which is the first to go.

While bytes wait behind the request that is answered, nothing more is read, so the end of the stream is not seen either.
The sweep asks the kernel for it: a client that has gone away keeps no place, whatever it sent before. Over TCP the end
comes after all that was sent, and may be stuck with that in the client's kernel: so one that has sent more than
`BEHIND_MAX` behind its request may be answered for `stalled_s` from then on.

Only a connection that is answering may keep its place: at the bound on connections one of the others is closed for the
new one, the oldest of those that leave or else of the rest. Whoever opens many and says nothing, or says it slowly,
keeps nobody out, a Stop least of all.

Memory. What comes in is bounded by the parser (headers) and by the routes (body); while a request is answered, nothing
more is read. What goes out waits for the transport's buffer to empty: it holds 64 KiB and one piece more.
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
"""How many times `body_max` is read, and dropped, of a body that was refused, so that its sender reads the answer."""

BEHIND_MAX: Final = 65_536
"""Bytes that may wait in the kernel behind the request that is answered: nobody sends so many unasked."""

LINGER_S: Final = 1.0

_INT: Final = struct.Struct("i")
_READ_WHOLE: Final = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class Connection(H11Protocol):
    """A connection of the API. On the loop's thread only.

    Args:
        access: who may come in.
        limits: how long it may take.
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

    # ── What the transport says ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        """Take a connection, or refuse it before anything is read from it."""
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
        """Read on; how long a request takes counts from its first byte."""
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
        """Go on with the next request, if there is one."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """The client takes nothing, and the buffer is full: whoever writes waits."""
        super().pause_writing()
        self._stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """The client has taken most of the buffer."""
        super().resume_writing()
        self._stalled_since = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the form that all errors have."""
        refusal = Refusal(
            "invalid",
            "this is no HTTP request",
            expected=f"HTTP/1.1, with a request line and headers of at most {self._limits.header_max} bytes",
            got=msg,
            remedy="see /v1/openapi.json",
        )
        self._end(packed(refusal), "Bad Request")

    # ── Limits ────────────────────────────────────────────────────────────────────────────────────

    @property
    def answering(self) -> bool:
        """True while a request is answered; one whose body is still coming is not, as far as limits go."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def leaving(self) -> bool:
        """True once it is being closed; nothing more is read of it."""
        return self._ending or self.transport.is_closing()

    @property
    def owing(self) -> bool:
        """True while something is left to be written that its client does not take."""
        return self.transport.get_write_buffer_size() > 0

    @property
    def idle_for(self) -> float | None:
        """Seconds for which nobody has been served here; None while somebody is."""
        if self._receiving_since is not None:
            return self.loop.time() - self._receiving_since
        return None if self.answering else self.loop.time() - self._idle_since

    @property
    def gone(self) -> bool:
        """True if nothing is read of the client now, and it has gone away: as if the end of its stream were read."""
        if not self.flow.read_paused or self._fd < 0:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    @property
    def _fd(self) -> int:
        """The socket; -1 once it is closed."""
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    def _overrun(self) -> bool:
        """True if more than `BEHIND_MAX` bytes wait to be read, and nothing is read now."""
        if not self.flow.read_paused or self._fd < 0:
            return False
        (waiting,) = _INT.unpack(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_INT.size)))
        return bool(waiting > BEHIND_MAX)

    def sweep(self) -> None:
        """Close the connection if its client has gone, or if it has used up its time."""
        if self.gone:
            self.transport.abort()
            return
        now, limits = self.loop.time(), self._limits
        self._overrun_since = (self._overrun_since or now) if self._overrun() else None
        if self.leaving and self._leaving_since is None:
            # uvicorn closes too, and does not say so.
            self._leaving_since = now
        taken_nothing = [self._stalled_since, self._overrun_since, self._leaving_since if self.owing else None]
        if any(since is not None and now - since > limits.stalled_s for since in taken_nothing):
            logger.info("a client that takes nothing, or sends on unasked, is let go")
            self.transport.abort()
        elif self.leaving:
            # What is left goes out by itself.
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
        """Close the connection that is the first to go, if one has to; False if all are being served."""
        others = [one for one in cast("Iterable[Connection]", self.connections) if one is not self]
        # One that has only been left open for its client to read has no place, and goes within `LINGER_S`.
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
        """Note whether a request is still coming."""
        theirs = self.conn.their_state
        if theirs in _READ_WHOLE or (theirs is h11.IDLE and not self.conn.trailing_data[0]):
            self._receiving_since = None

    def _end(self, made: Failure, reason: str) -> None:
        """Say something and close; where an answer has begun, only close."""
        if self._ending:
            return
        self._ending = True
        self._receiving_since = None
        self._leaving_since = self.loop.time()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            self.transport.write(as_bytes(made, reason))
        if cycle is not None:
            # Whoever reads the body, or is about to answer, learns that there is nobody.
            cycle.disconnected = True
            cycle.message_event.set()
        lingering = self.loop.create_task(self._linger())
        lingering.add_done_callback(self.tasks.discard)
        self.tasks.add(lingering)

    async def _linger(self) -> None:
        """Close a little later: whoever is still sending would see a broken pipe, and not what was said."""
        try:
            if self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            await asyncio.sleep(LINGER_S)
        finally:
            self.transport.close()
