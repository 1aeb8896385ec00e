"""Feeds systemd's watchdog for as long as the supervisor's actor and the store's thread answer.

An error is an answer: a full disk is reported to clients and is no reason to kill what runs. A hang is not: then the
watchdog is not fed, and systemd ends the process (SIGABRT, at which the interpreter writes the stack of each thread)
and starts another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from loguru import logger

from actors.messages import Pong
from supervisor.daemon.notify import Notifier

ASKS_IN_A_PERIOD: Final = 4


class Watched(Protocol):
    """What the watchdog needs of the supervisor."""

    def ping(self, timeout: float) -> Pong | None:
        """Return the answer of its actor; None if there is none within `timeout` seconds."""

    def store_responds(self, timeout: float) -> bool:
        """Return True if the store's thread answers within `timeout` seconds."""


class Watchdog:
    """A thread that asks the supervisor and feeds the watchdog, from construction until `close`.

    Args:
        watched: the supervisor.
        notifier: feeds systemd's watchdog. Its `watchdog_s` is the period; without one there is no thread.
        seen: called with each answer, on the thread.
    """

    def __init__(self, watched: Watched, notifier: Notifier, seen: Callable[[Pong], object]) -> None:
        self._watched = watched
        self._notifier = notifier
        self._seen = seen
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if notifier.watchdog_s is not None:
            self._pause_s = notifier.watchdog_s / ASKS_IN_A_PERIOD
            self._thread = threading.Thread(target=self._run, name="countermand-watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop asking. It does not wait for an outstanding answer."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pong = self._watched.ping(self._pause_s)
                stored = pong is not None and self._watched.store_responds(self._pause_s)
            except Exception as error:  # noqa: BLE001  # any error is an answer
                logger.opt(exception=True).error("the watchdog's question failed: {!r}", error)
                pong, stored = None, True
            if self._over.is_set():
                return
            if stored:
                self._notifier.feed()
                if pong is not None:
                    self._seen(pong)
            else:
                silent = "the store's thread" if pong is not None else "the supervisor"
                logger.error("the watchdog is not fed: {} does not answer", silent)
                self._notifier.status(f"{silent} does not answer")
            self._over.wait(self._pause_s)
