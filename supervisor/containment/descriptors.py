"""Descriptors that come with a message over a Unix socket. Standard library only: the zygote loads it."""

from __future__ import annotations

import ctypes
import socket
import sys

DESCRIPTORS_MAX = 4
INT_BYTES = ctypes.sizeof(ctypes.c_int)


def receive(sock: socket.socket, most_bytes: int) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, close-on-exec from the start; raises OSError.

    Fewer descriptors than were sent means that our table of them is full. `socket.recv_fds` of Python 3.11 takes flags
    and does not pass them on: what it receives would be inherited.
    """
    room = socket.CMSG_LEN(DESCRIPTORS_MAX * INT_BYTES)
    data, ancillary, _, _ = sock.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = range(0, len(payload) - INT_BYTES + 1, INT_BYTES)
            fds += [int.from_bytes(payload[at : at + INT_BYTES], sys.byteorder) for at in whole]
    return data, fds
