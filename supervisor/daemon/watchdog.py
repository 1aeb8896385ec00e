"""Feeds systemd's watchdog for as long as the supervisor's actor and the store's thread answer.

An error is an answer: a full disk is told to clients and is no reason to kill what runs. A hang is not: the watchdog
is not fed, and systemd ends the process (SIGABRT, at which the interpreter writes where each thread is) and starts
another.
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
    """What has to answer: the supervisor."""

    def ping(self, timeout: float) -> Pong | None:
        """What its actor answers; None if nothing comes within `timeout` seconds."""

    def store_responds(self, timeout: float) -> bool:
        """True if the store's thread answers within `timeout` seconds."""


class Watchdog:
    """A thread that asks and feeds, from construction until `close`.

    Args:
        watched: what has to answer.
        notifier: hears of it; its `watchdog_s` is the period, and without one there is no thread.
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
        """Ask nothing more. Does not wait for an answer that is outstanding."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pong = self._watched.ping(self._pause_s)
                stored = pong is not None and self._watched.store_responds(self._pause_s)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is an answer
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
