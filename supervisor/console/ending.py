"""How a command ends after a signal: it cleans up, then ends by that same signal."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


class EndedBy(Exception):
    """A signal ended the command, which has cleaned up; the process is to end of it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def end_of(number: int) -> NoReturn:
    """End this process of a signal, as it would have without a handler: whoever started it sees that it was a signal.

    A shell that is told of an exit code instead takes the signal as dealt with, and goes on with its script or loop.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    # Process 1 of a container is ended by no signal of its own.
    os._exit(128 + number)
