"""Peer: requests and answers over the channel of one host. It knows which requests are open, in both directions.

It keeps two rules of the protocol. Each request is answered exactly once (W5): an answer that comes twice, or to
nothing, breaks the protocol, and so does a request under an id that is open. And `first` is called before anything is
written, so that the cancel of a run leaves ahead of whatever its fence has brought about (W3).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from loguru import logger
from msgspec import Raw

from actors.errors import described
from actors.model import Json
from supervisor.hosts import lines
from supervisor.hosts.channel import Channel, Unsent
from supervisor.hosts.frames import Params, Result
from supervisor.hosts.lines import Answer, Code, NotAFrame, Notification, Request

if TYPE_CHECKING:
    import socket

    from supervisor.containment.reactor import Reactor

REQUESTS_MAX: Final = 128
"""How many requests of a host may be open. A run may have 64 calls open."""

REQUESTS_MAX_BYTES: Final = 33_554_432
"""How long the lines of its open requests may be together: what they bring is kept until they are answered."""

Answered = Callable[[Answer], None]


class Owner(Protocol):
    """Handles the requests and notifications of a host; on the reactor's thread."""

    def first(self) -> None:
        """Write what has to be written before anything else."""

    def requested(self, request: Request) -> None:
        """Handle a request: it has to be answered or refused, now or later; see `Peer.crowded`."""

    def notified(self, notification: Notification) -> None:
        """Handle a notification."""

    def pass_on(self) -> None:
        """Pass on the texts that were kept: what follows is no text, or for now nothing."""

    def broke_protocol(self, what: str) -> None:
        """Handle a breach of the protocol. The channel is closed."""

    def at_end(self) -> None:
        """Handle the end of the host's frames: it has closed its end, and all its frames were handled."""


class Peer:
    """The other side of one channel. Reactor thread only, except the constructor.

    Args:
        reactor: the thread of all channels.
        sock: the daemon's end.
        owner: handles what comes.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket, owner: Owner) -> None:
        self.channel = Channel(reactor, sock, self)
        self._owner = owner
        self._numbers = itertools.count(1)
        self._asked: dict[int, Answered] = {}
        # By id: how long its line is.
        self._open: dict[int, int] = {}
        self._open_bytes = 0
        self._urgent: Unsent | None = None

    @property
    def crowded(self) -> bool:
        """True if more requests of the host are open than may be, or longer ones: the last one is to be refused."""
        return len(self._open) > REQUESTS_MAX or self._open_bytes > REQUESTS_MAX_BYTES

    # ── To the host ───────────────────────────────────────────────────────────────────────────────

    def request(self, method: str, params: Params | Raw, answered: Answered) -> tuple[int, Unsent]:
        """Send a request; `answered` is called once, unless the channel is closed first.

        Returns the request's id and its frame. `params` may be encoded already.
        """
        self._owner.first()
        number = next(self._numbers)
        self._asked[number] = answered
        return number, self.channel.send(lines.request(number, method, params))

    def take_back(self, number: int, frame: Unsent) -> bool:
        """Withdraw a request of which nothing was written: it is not answered. False: it is too late."""
        if not self.channel.take_back(frame):
            return False
        del self._asked[number]
        return True

    def notify(self, method: str, params: Params, *, is_answer: bool = False) -> None:
        """Send a notification. `is_answer`: it counts towards the bound on answers, since the host asked for it."""
        self._owner.first()
        self.channel.send(lines.notification(method, params), is_answer=is_answer)

    def notify_first(self, method: str, params: Params, behind: Unsent) -> None:
        """Send a notification ahead of unsent frames, but behind the frame it is about, and earlier ones like it."""
        self._owner.first()
        self._urgent = self.channel.send_first(lines.notification(method, params), (behind, self._urgent))

    def answer(self, number: int, result: Result) -> None:
        """Answer a request; if the channel is closed, this does nothing."""
        self._answered(number, lines.answer(number, result))

    def refuse(self, number: int, code: Code, message: str, data: Json = None) -> None:
        """Answer a request with an error."""
        self._answered(number, lines.refusal(number, code, message, data))

    def _answered(self, number: int, line: bytes) -> None:
        size = self._open.pop(number, None)
        if size is not None:
            self._open_bytes -= size
            self._owner.first()
            self.channel.send(line, is_answer=True)

    def close(self) -> None:
        """Close the channel, and forget what is open."""
        self.channel.close()
        self._asked.clear()
        self._open.clear()
        self._open_bytes = 0

    # ── From the host: see `channel.Receiver` ─────────────────────────────────────────────────────

    def line(self, line: bytes) -> None:
        """Handle one line."""
        try:
            self._handle(line)
        except NotAFrame as error:
            self._break(f"it sent a line that is no frame: {error}")
        except Exception as error:  # noqa: BLE001  # a run whose frame was lost here would wait for ever
            logger.exception("a frame could not be handled: {}", lines.excerpt(line))
            self._break(f"a frame could not be handled, which is a defect of the daemon: {described(error)}")

    def _handle(self, line: bytes) -> None:
        frame = lines.decoded(line)
        if not isinstance(frame, Notification) or frame.method != "emit":
            self._owner.pass_on()
        if isinstance(frame, Notification):
            self._owner.notified(frame)
        elif isinstance(frame, Answer):
            self._take_answer(frame)
        elif frame.id in self._open:
            self._break(f"it used the id {frame.id}, of a request that is open, for another: {lines.excerpt(line)}")
        else:
            self._open[frame.id] = frame.size
            self._open_bytes += frame.size
            if frame.method == "spawn":
                frame = frame._replace(given=self.channel.take_descriptors())
            self._owner.requested(frame)

    def _take_answer(self, answer: Answer) -> None:
        answered = self._asked.pop(answer.id, None)
        if answered is None:
            self._break(f"it answered {answer.id}, which is no request that is open")
        else:
            answered(answer)

    def handed_over(self) -> None:
        """Take note that for now no line follows."""
        try:
            self._owner.pass_on()
        except Exception as error:  # noqa: BLE001  # as in `line`
            logger.exception("what a host has said could not be passed on")
            self._break(f"its frames could not be passed on, which is a defect of the daemon: {described(error)}")

    def too_long(self, beginning: bytes) -> None:
        """Handle a line that is longer than the limit."""
        shown = lines.excerpt(beginning)
        self._break(f"it sent a line of more than {lines.LINE_MAX_BYTES} bytes, which begins {shown}")

    def at_end(self) -> None:
        """Handle the end of the host's frames."""
        self._owner.at_end()

    def _break(self, what: str) -> None:
        self.close()
        self._owner.broke_protocol(what)
