"""Reads long sessions beside the writer, on threads of their own, so that no other session waits for them.

Each load opens the file anew, so it reads the file to which the path leads, which the writer has just checked. A load
that fails here is given back: the writer tries it itself, and deals with the error as with any other of the disk.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from loguru import logger

from actors.kernel.thread_role import serve_all
from actors.ports import Snapshot
from supervisor.store.work import Load

LOADS_AT_ONCE: Final = 2
"""More would be no faster, since the interpreter runs one at a time, and would each hold a session in memory."""


class LongLoads:
    """Loads of long sessions, on threads that start with this object. They are daemons: a disk may hang.

    As many may wait as there are sessions that are being restored.

    Args:
        read: reads a session; on a thread of this object.
        loaded, failed: called with the end of each load, on that thread.
    """

    def __init__(
        self,
        read: Callable[[str], Snapshot],
        loaded: Callable[[Load, Snapshot], None],
        failed: Callable[[Load], None],
    ) -> None:
        self._read = read
        self._loaded = loaded
        self._failed = failed
        # None: end.
        self._queue: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        # In the order in which they came: those that are read, and those that wait.
        self._open: dict[Load, None] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"countermand-loads-{number}", daemon=True)
            for number in range(LOADS_AT_ONCE)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, load: Load) -> None:
        """Read a session. What is in the store by now is in its snapshot."""
        self._open[load] = None
        self._queue.put(load)

    def since(self) -> float | None:
        """Return when the oldest load that has not ended was handed in. Any thread."""
        return next((load.since for load in self._open.copy()), None)

    def close(self) -> None:
        """End the threads, and wait for them. What they read has to fail by now."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        serve_all()
        while (load := self._queue.get()) is not None:
            try:
                self._do(load)
            except BaseException:  # noqa: BLE001  # a defect in it must not end the thread
                logger.exception("internal error in the load of session {}", load.session)
            del self._open[load]

    def _do(self, load: Load) -> None:
        try:
            found = self._read(load.session)
        except BaseException as error:  # noqa: BLE001  # the writer learns what it is
            logger.debug("session {} could not be read beside the writer: {!r}", load.session, error)
            self._failed(load)
        else:
            self._loaded(load, found)
