"""Words to systemd, as ``sd_notify(3)`` says them: datagrams to the socket that ``NOTIFY_SOCKET`` names."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

from loguru import logger

from actors.text import one_line

SEND_S = 2.0
STATUS_MAX_CHARS = 512


class Notifier:
    """Tells systemd how it goes; without one, nothing happens. Every method may be called from any thread.

    Nothing here raises: a daemon that cannot be heard still serves. A send waits SEND_S seconds at most.

    Args:
        address: a path, or a name that begins with ``@``; None: nobody listens.
        watchdog_s: how often, at least, `feed` has to be called; None: there is no watchdog.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._socket: socket.socket | None = None
        self._status = ""
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(SEND_S)
            self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Take what systemd has put there, and take it out: no child is to speak for the daemon."""
        address = environment.pop("NOTIFY_SOCKET", None)
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        watched = usec.isdigit() and int(usec) > 0 and pid == str(os.getpid())
        return cls(address, int(usec) / 1e6 if watched else None)

    def ready(self, status: str) -> None:
        """The start, or a reload, is done."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        now_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_usec}", "reading the configuration")

    def stopping(self, status: str) -> None:
        """The shutdown begins."""
        self._send("STOPPING=1", status)

    def status(self, status: str) -> None:
        """Say what goes on, in a line for people; the same line again is not sent."""
        if status != self._status:
            self._send("", status)

    def extend(self, seconds: float) -> None:
        """The start or the stop goes on: nobody is to lose patience within `seconds` from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def feed(self) -> None:
        """All is well: the watchdog may wait anew."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, words: str, status: str | None = None) -> None:
        if status is not None:
            self._status = status
            line = one_line(" ".join(status.split()))[:STATUS_MAX_CHARS]
            words = f"{words}\nSTATUS={line}" if words else f"STATUS={line}"
        one = self._socket
        if one is None:
            return
        try:
            one.sendto(words.encode(), self._address)
        except OSError as error:
            logger.warning("systemd could not be told {!r}: {}", words.partition("\n")[0], error)
