"""The wire: frames over the socket to the daemon. Its thread reads, and acts on what comes at once."""

from __future__ import annotations

import array
import errno
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from .errors import CountermandError, Invalid
from .plain import dumped, report, words

LINE_MAX_BYTES = 8 * 1024 * 1024
READ_BYTES = 262_144

NO_METHOD, INVALID_PARAMS, CANCELLED, RAISED, STALE, REFUSED = -32601, -32602, -32800, -32000, -32001, -32003
EXIT_LOST = 75


class WireError(Exception):
    """The daemon answered a request with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.code = error.get("code")
        data = error.get("data")
        self.data: Mapping[str, Any] = data if isinstance(data, dict) else {}

    def public(self) -> CountermandError:
        """Return it as the error that an agent gets."""
        texts = {name: str(self.data.get(name, "")) for name in ("expected", "got", "remedy")}
        if self.code == INVALID_PARAMS or self.data.get("code") == "invalid":
            return Invalid(str(self), **texts)
        return CountermandError(str(self), code=str(self.data.get("code", self.code)), **texts)


Handler = Callable[[Optional[int], Mapping[str, Any]], None]
Taken = Callable[[Any, Optional[WireError]], None]


class Wire:
    """Frames over one socket: JSON-RPC 2.0, one a line. Any thread writes; the wire thread reads.

    Args:
        sock: the host's end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Reentrant: the garbage collector may close a generator of the agent here, whose clean-up says something.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, Taken] = {}
        self.handlers: dict[str, Handler] = {}

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="countermand-wire", daemon=True).start()
        # A forked child has the socket, but no thread that reads, and not the run.
        os.register_at_fork(after_in_child=self._sock.close)

    def ask(self, method: str, params: Mapping[str, Any], taken: Taken) -> None:
        """Send a request; `taken(result, error)` is called once, on the wire thread: it is quick."""
        number = self.number(taken)
        self.write(line(id=number, method=method, params=params))

    def number(self, taken: Taken) -> int:
        """Return the id for a request that is written next; see `ask`."""
        number = next(self._numbers)
        self._pending[number] = taken
        return number

    def unask(self, number: int) -> None:
        """Forget a request that was not written."""
        self._pending.pop(number, None)

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self.write(line(method=method, params=params))

    def answer(self, number: int, result: Mapping[str, Any]) -> None:
        """Answer a request."""
        self.write(line(id=number, result=result))

    def refuse(self, number: int, code: int, message: str, data: Any = None) -> None:
        """Answer a request with an error."""
        error = {"code": code, "message": message}
        self.write(line(id=number, error=error if data is None else {**error, "data": data}))

    def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Write one line, and copies of descriptors with its first byte. Waits while the daemon reads nothing.

        Raises OSError if more descriptors are on their way than this user may send.
        """
        with self._lock:
            try:
                if descriptors:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                    data = data[self._sock.sendmsg([data], [rights]) :]
                self._sock.sendall(data)
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    raise
                # The daemon is gone, or this is a forked child.
                os._exit(EXIT_LOST)

    def _read(self) -> None:
        unread = bytearray()
        while True:
            try:
                piece = self._sock.recv(READ_BYTES)
            except OSError:
                piece = b""
            if not piece:
                # The warden is ending this tree.
                os._exit(EXIT_LOST)
            searched = len(unread)
            unread += piece
            start = 0
            while (end := unread.find(b"\n", max(start, searched))) >= 0:
                self._take(bytes(unread[start:end]))
                start = end + 1
            del unread[:start]

    def _take(self, data: bytes) -> None:
        try:
            frame = json.loads(data)
            if "method" in frame:
                self._handle(frame.get("id"), frame["method"], frame.get("params") or {})
            else:
                taken = self._pending.pop(frame.get("id"), None)
                if taken is not None:
                    error = frame.get("error")
                    taken(frame.get("result"), None if error is None else WireError(error))
        except Exception as error:  # noqa: BLE001  # this thread has to live on: the cancel comes through it
            report(error)

    def _handle(self, number: int | None, method: str, params: Mapping[str, Any]) -> None:
        handler = self.handlers.get(method)
        if handler is None:
            # An unknown notification is ignored.
            if number is not None:
                self.refuse(number, NO_METHOD, f"there is no method {method!r}")
            return
        try:
            handler(number, params)
        except (KeyError, TypeError, ValueError) as error:
            if number is None:
                raise
            self.refuse(number, INVALID_PARAMS, f"{method}: {words(error)}")


def line(**frame: Any) -> bytes:
    """Return a frame as a line, with its newline. Raises Invalid if it is too long."""
    data = dumped({"jsonrpc": "2.0", **frame}).encode()
    if len(data) > LINE_MAX_BYTES:
        raise Invalid(
            "this is too large for one frame",
            expected=f"at most {LINE_MAX_BYTES} bytes as JSON",
            got=f"{len(data)} bytes",
            remedy="write it to a file, and name the file",
        )
    return data + b"\n"
