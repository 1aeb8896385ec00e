"""How a command ends: by the signal that ended it, after cleaning up, and in time in spite of the agents' threads."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

EXIT_S: Final = 2.0
"""How long the interpreter has for its own end."""


class EndedBy(Exception):
    """A signal ended the command, which has cleaned up; the process is to end of it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def exit_in_time(code: int) -> None:
    """End the process within `EXIT_S`, even if agents have left threads or processes.

    The interpreter waits for non-daemon threads, and `multiprocessing` for its children, without a limit.
    """

    def end() -> None:
        time.sleep(EXIT_S)
        os._exit(code)

    threading.Thread(target=end, name="countermand-exit", daemon=True).start()
    with suppress(OSError, ValueError):
        # The interpreter would flush only after it has waited for threads.
        sys.stdout.flush()


def end_of(number: int) -> NoReturn:
    """End this process by a signal, as without a handler, so that its parent sees the signal.

    If a shell got an exit code instead, it would take the signal as handled, and go on with its script or loop.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    # Process 1 of a container is ended by no signal of its own.
    os._exit(128 + number)
