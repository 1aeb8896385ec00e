"""The wakeup: ends the wait of an idle main thread, also at a signal that comes just before that wait.

Python handles a signal between two bytecodes of the main thread. Its C handler only sets a flag. If the signal comes
after the last look at that flag and before the system call that waits, or on another thread, it does not interrupt the
wait, and would be handled at the next one. But the C handler also writes a byte to the wakeup descriptor. So an idle
main thread waits for that to be readable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
from typing import TypeVar

DRAIN_BYTES = 65_536
"""As much as a pipe holds."""

T = TypeVar("T")


class Wakeup:
    """A pipe to which Python's signal handler writes. Its methods are for the main thread, but for `wake`."""

    def __init__(self) -> None:
        self._read, self._written = os.pipe()
        os.set_blocking(self._written, False)

    def wake(self) -> None:
        """End the wait in `next_of`. Any thread."""
        # A full pipe ends it too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._written, b"\0")

    def next_of(self, waiting: queue.SimpleQueue[T]) -> T:
        """Take from a queue. Who puts something in calls `wake` then; a handler of a signal need not.

        The agent's code may have set the wakeup descriptor, for a loop that it keeps. It has it back after that.
        """
        before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return waiting.get_nowait()
                os.read(self._read, DRAIN_BYTES)
        finally:
            # If it was closed meanwhile, ours remains.
            with contextlib.suppress(OSError, ValueError):
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def watched_by(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let signals wake a loop from now on."""
        os.set_blocking(self._read, False)
        loop.add_reader(self._read, self._drain)

    def set_anew(self) -> None:
        """Let signals write to this pipe, unless other code has them write to a descriptor of its own.

        Loops do so for `add_signal_handler`, and set no descriptor when the last of these handlers is removed.
        """
        before = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        if before not in (-1, self._written):
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

    def _drain(self) -> None:
        # A forked child may have been first.
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, DRAIN_BYTES)
