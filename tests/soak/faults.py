"""Faults from outside. Each returns when it is over, so that at rest nothing is broken."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from typing import Final

import psutil

from tests.soak.stand import Stand

PAUSES_S: Final = (0.05, 0.3, 1.0, 3.0)
"""A daemon that is paused for longer would be killed by its watchdog under systemd."""


class Faults:
    """The faults of one soak, by name. On one thread.

    Args:
        stand: the daemon.
        chance: decides what is hit, and for how long.
    """

    def __init__(self, stand: Stand, chance: random.Random) -> None:
        self._stand = stand
        self._chance = chance
        self.of_the_daemon: dict[str, Callable[[], object]] = {
            "the daemon is killed": lambda: stand.again(signal.SIGKILL),
            "the daemon is restarted": lambda: stand.again(signal.SIGTERM),
        }
        self.beside_it: dict[str, Callable[[], object]] = {
            "the daemon is paused": lambda: self._pause([psutil.Process(stand.pid)]),
            "a warden is killed": lambda: self._kill(stand.named("cm-warden")),
            "a warden is paused": lambda: self._pause(stand.named("cm-warden")),
            "the zygote is killed": lambda: self._kill(stand.named("cm-zygote")),
            "the zygote is paused": lambda: self._pause(stand.named("cm-zygote")),
            "a host is killed": lambda: self._kill(stand.hosts()),
            "a host is paused": lambda: self._pause(stand.hosts()),
            "a tool's process is killed": lambda: self._kill(stand.named("sleep") + stand.named("sh")),
            "the store is locked": self._lock,
        }
        if stand.disk.mounted:
            self.beside_it["the disk is full"] = self._fill
        self.done: dict[str, int] = dict.fromkeys((*self.of_the_daemon, *self.beside_it), 0)

    def one(self, *, restarts: bool) -> str | None:
        """Have one fault happen; returns its name, or None if there was nothing that it could hit."""
        faults = {**self.beside_it, **self.of_the_daemon} if restarts else self.beside_it
        name = self._chance.choice(list(faults))
        if faults[name]() is False:
            return None
        self.done[name] += 1
        return name

    # ── What they do ──

    def _kill(self, some: list[psutil.Process]) -> bool:
        return self._signal(some, signal.SIGKILL) is not None

    def _pause(self, some: list[psutil.Process]) -> bool:
        paused = self._signal(some, signal.SIGSTOP)
        if paused is None:
            return False
        try:
            time.sleep(self._chance.choice(PAUSES_S))
        finally:
            # psutil compares the start time first: the number may be another's by now.
            with contextlib.suppress(psutil.Error):
                paused.resume()
        return True

    def _signal(self, some: list[psutil.Process], number: signal.Signals) -> psutil.Process | None:
        if some:
            hit = self._chance.choice(some)
            with contextlib.suppress(psutil.Error):
                hit.send_signal(number)
                return hit
        return None

    def _lock(self) -> None:
        with contextlib.closing(sqlite3.connect(self._stand.state_dir / "store.sqlite3", timeout=10.0)) as other:
            other.isolation_level = None
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                time.sleep(self._chance.choice((0.1, 1.0, 7.0)))
                other.execute("ROLLBACK")

    def _fill(self) -> None:
        filler = self._stand.state_dir / "filler"
        handle = os.open(filler, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            for size in (1 << 26, 1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(handle, os.fstat(handle).st_size, size)
            time.sleep(self._chance.choice((0.1, 1.0, 4.0)))
        finally:
            os.close(handle)
            filler.unlink()
