"""The watching thread: it finds the pids of starts, signals subprocesses, and sees their ends."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from typing import Final

from loguru import logger

from supervisor.containment.offspring import Offspring
from supervisor.strays.children import Children
from supervisor.strays.records import Stray
from supervisor.strays.reports import Reports
from supervisor.strays.run_end import RunEnd

LADDER_S: Final = 0.02
"""Between two looks at a subprocess that is being ended."""


class Watcher:
    """One thread, started when there is something to watch. Any thread may call `rouse` and `close`.

    Args:
        lock: the one that guards starters and strays.
    """

    def __init__(self, lock: threading.RLock, reports: Reports, children: Children, ends: RunEnd) -> None:
        self._lock = lock
        self._reports = reports
        self._children = children
        self._ends = ends
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.thread: threading.Thread | None = None
        self.closed = False

    def rouse(self) -> None:
        """Start the thread if there is something to watch, or wake it."""
        with self._lock:
            if (
                self.thread is None
                and not self.closed
                and (self._children.inherits or self._children.starting or self._reports.strays)
            ):
                thread = threading.Thread(target=self._watch, name="countermand-strays", daemon=True)
                # If no thread can be started now, the next call tries again.
                with suppress(RuntimeError):
                    thread.start()
                    self.thread = thread
            if self._wake is not None:
                with suppress(BlockingIOError):
                    os.eventfd_write(self._wake, 1)

    def begin_closing(self) -> None:
        """Start no thread any more, and let a running one end."""
        with self._lock:
            self.closed = True

    def close(self) -> None:
        """Wait at most 5 s for the thread to end. May be called again."""
        self.rouse()
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with self._lock:
            if self._wake is not None and (thread is None or not thread.is_alive()):
                os.close(self._wake)
                self._wake = None

    def turn(self) -> float | None:
        """Do what is due; returns the seconds until more is due, None if that takes a wake-up."""
        now = time.monotonic()
        with self._lock:
            waits = self._children.find_due(now)
            processes = [one for one in self._reports.strays.values() if one.process is not None and one.ended is None]
        for stray in processes:
            wait_s = self._tend(stray, now)
            if wait_s is not None:
                waits.append(wait_s)
        with self._lock:
            # Last, since the status of an orphan that is a stray is read when this turn sees its end.
            self._children.reap()
        return min(waits, default=None)

    def _watch(self) -> None:
        while not self.closed:
            try:
                self._wait(self.turn())
            except Exception:  # noqa: BLE001  # it watches for all runs, and goes on
                logger.opt(exception=True).error("strays could not be watched for a moment")
                time.sleep(LADDER_S)

    def _wait(self, timeout_s: float | None) -> None:
        wake = self._wake
        assert wake is not None, "it is closed when this thread has ended"
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        with self._lock:
            for stray in self._reports.strays.values():
                if stray.ended is None and stray.process is not None:
                    for member in stray.process.members.values():
                        if member.fd is not None and member.ended_at is None:
                            poll.register(member.fd, select.POLLIN)
        poll.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))
        with suppress(BlockingIOError):
            os.eventfd_read(wake)

    def _tend(self, stray: Stray, now: float) -> float | None:
        """Ask a subprocess to end, or kill it, and check if it is gone; returns the seconds until the next look."""
        process, due = stray.process, stray.run.due(stray.call)
        assert process is not None, "a subprocess has one"
        if due is None or not stray.found.ours:
            self._end_if_gone(stray, process)
            return None if process.root.fd is not None else LADDER_S
        if now >= due:
            process.kill()
        elif not stray.asked and not stray.spared:
            stray.asked = True
            process.ask()
        else:
            process.look()
        return None if self._end_if_gone(stray, process) else LADDER_S

    def _end_if_gone(self, stray: Stray, process: Offspring) -> bool:
        # Under the lock, since another process may join it.
        with self._lock:
            gone = process.gone
            if gone:
                self._ends.ended(stray, None)
        return gone
