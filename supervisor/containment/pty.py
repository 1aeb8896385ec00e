"""A terminal for a command that needs one, as the daemon opens it.

`guard.command.prepare` makes it the command's controlling terminal: the command reads and writes the slave side. We
read the master: its end (EIO) comes when no process has the slave open any more. The command leads the terminal's
session. When it exits, the kernel hangs up the terminal: the processes still on it get a SIGHUP, and can no longer
write to it. What is typed on it, if anything, is written to the master: see `processes.keyboard`.
"""

from __future__ import annotations

import os
import termios

OUTPUT_FLAGS = 1


def open_pty(columns: int, rows: int) -> tuple[int, int, str]:
    """Open a terminal of that size; returns the master, the slave and the slave's path. Raises OSError.

    Output is passed unchanged: the terminal does not turn LF into CR LF.
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
