"""What tests of hosts share: a reactor, and the other end of a channel, played by hand."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from supervisor.clock import SystemClock
from supervisor.containment.reactor import Reactor

T = TypeVar("T")
WAIT_S = 60.0
"""What does not come within this time does not come. No test depends on it."""


class Loop:
    """A reactor on its thread."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the reactor's thread, and return what it returns."""
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)
            done.set()

        assert self.reactor.post(run)
        assert done.wait(WAIT_S), "the reactor does not answer"
        if errors:
            raise errors[0]
        return results[0]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until something is true on the reactor's thread."""
        deadline = time.monotonic() + WAIT_S
        while not self.call(condition):
            assert time.monotonic() < deadline, f"waited for {what}"
            time.sleep(0.002)


@contextmanager
def looping() -> Iterator[Loop]:
    clock = SystemClock()
    reactor = Reactor("cm-hosts-test", clock)
    reactor.start()
    try:
        yield Loop(reactor)
    finally:
        assert reactor.stop(WAIT_S)
        clock.close()


class OtherEnd:
    """The host's end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = b""
        self._numbers = 0

    def write(self, data: bytes) -> None:
        """Write all of it, however long that takes."""
        self.sock.settimeout(WAIT_S)
        self.sock.sendall(data)

    def write_what_fits(self, data: bytes, patience_s: float = 0.2) -> int:
        """Write until the socket takes no more for `patience_s` seconds. Returns how much was written."""
        self.sock.setblocking(False)
        written = 0
        while written < len(data):
            if not select.select([], [self.sock], [], patience_s)[1]:
                break
            with contextlib.suppress(BlockingIOError):
                written += self.sock.send(data[written : written + 65_536])
        return written

    def line(self) -> bytes | None:
        """Read the next line; None: the other side has closed."""
        self.sock.settimeout(WAIT_S)
        while b"\n" not in self._unread:
            try:
                piece = self.sock.recv(1_048_576)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def next(self) -> dict[str, Any]:
        """Read the next frame."""
        line = self.line()
        assert line is not None, "the daemon has closed the channel"
        frame: dict[str, Any] = json.loads(line)
        return frame

    def nothing(self) -> bool:
        """Return True if nothing is there to read."""
        return not self._unread and not select.select([self.sock], [], [], 0.05)[0]

    def closed(self) -> bool:
        """Read what is left; True when the other side has closed."""
        while self.line() is not None:
            pass
        return True

    def send(self, **frame: Any) -> None:
        """Send a frame."""
        self.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def request_with(self, fds: Sequence[int], method: str, *, first: int | None = None, **params: Any) -> int:
        """Send a request, and descriptors with its first byte. `first`: how much of it is sent along."""
        self._numbers += 1
        frame = {"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params}
        data = json.dumps(frame).encode() + b"\n"
        socket.send_fds(self.sock, [data[:first]], list(fds))
        self.write(data[first:] if first is not None else b"")
        return self._numbers

    def request(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._numbers += 1
        self.send(id=self._numbers, method=method, params=params)
        return self._numbers

    def note(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send(method=method, params=params)

    def answer(self, frame: dict[str, Any], **result: Any) -> None:
        """Answer a request of the daemon."""
        self.send(id=frame["id"], result=result)

    def refuse(self, frame: dict[str, Any], code: int, message: str = "", data: Any = None) -> None:
        """Answer a request of the daemon with an error."""
        self.send(id=frame["id"], error={"code": code, "message": message, "data": data})
