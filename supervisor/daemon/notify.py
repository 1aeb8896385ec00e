"""Notifications to systemd (``sd_notify(3)``): datagrams to the socket that ``NOTIFY_SOCKET`` names."""

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
    """Notifies systemd; does nothing where there is no systemd. Every method may be called from any thread.

    No method raises: a daemon that cannot notify still serves. A send waits at most SEND_S seconds.

    Args:
        address: a path, or a name that begins with ``@``; None: there is no receiver.
        watchdog_s: the longest time between two calls of `feed`; None: there is no watchdog.
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
        """Read systemd's variables, and remove them, so that no child process notifies for the daemon."""
        address = environment.pop("NOTIFY_SOCKET", None)
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        watched = usec.isdigit() and int(usec) > 0 and pid == str(os.getpid())
        return cls(address, int(usec) / 1e6 if watched else None)

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is done."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """Report that a reload begins; `ready` ends it."""
        now_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_usec}", "reading the configuration")

    def stopping(self, status: str) -> None:
        """Report that the shutdown begins."""
        self._send("STOPPING=1", status)

    def status(self, status: str) -> None:
        """Send a status line for people, unless it is the same as the last one."""
        if status != self._status:
            self._send("", status)

    def extend(self, seconds: float) -> None:
        """Ask systemd to wait `seconds` more for the start or the stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def feed(self) -> None:
        """Feed the watchdog."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Send nothing more."""
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
            logger.warning("systemd could not be notified of {!r}: {}", words.partition("\n")[0], error)
