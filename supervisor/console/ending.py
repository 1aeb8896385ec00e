"""How a command ends: of the signal that it was ended by, once it has cleaned up, and in time, whatever agents left."""

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
    """Have the process end within `EXIT_S`, whatever code of agents has left.

    The interpreter waits for threads that are no daemons, and `multiprocessing` for its children, without a limit.
    """

    def end() -> None:
        time.sleep(EXIT_S)
        os._exit(code)

    threading.Thread(target=end, name="countermand-exit", daemon=True).start()
    with suppress(OSError, ValueError):
        # The interpreter would do it behind its waiting.
        sys.stdout.flush()


def end_of(number: int) -> NoReturn:
    """End this process of a signal, as it would have without a handler: whoever started it sees that it was a signal.

    A shell that is told of an exit code instead takes the signal as dealt with, and goes on with its script or loop.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    # Process 1 of a container is ended by no signal of its own.
    os._exit(128 + number)
