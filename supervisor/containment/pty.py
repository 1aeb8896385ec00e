"""A terminal for a command that needs one, as the daemon opens it.

`warden.execute` makes it the command's, which reads and writes the slave side as its controlling terminal. We read the
master: its end (EIO) comes when no process has the slave open any more. The command leads the terminal's session. When
it exits, the kernel hangs the terminal up: the processes still on it get a SIGHUP, and can no longer write to it.
Nothing is typed.
"""

from __future__ import annotations

import os
import termios

OUTPUT_FLAGS = 1


def open_pty(columns: int, rows: int) -> tuple[int, int, str]:
    """Open a terminal of that size; returns the master, the slave and the slave's path. Raises OSError.

    What the command writes comes as it was written: the terminal makes no CR LF of its LF.
    """
    master, slave = os.openpty()
    try:
        termios.tcsetwinsize(slave, (rows, columns))
        modes = termios.tcgetattr(slave)
        modes[OUTPUT_FLAGS] &= ~termios.ONLCR
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        return master, slave, os.ttyname(slave)
    except termios.error as error:
        os.close(master)
        os.close(slave)
        raise OSError(*error.args) from error
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
