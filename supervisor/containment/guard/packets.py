"""Messages over a Unix socket, and the descriptors that come with them. Standard library only: the zygote loads it."""

from __future__ import annotations

import ctypes
import socket
import sys

DESCRIPTORS_MAX = 5
INT_BYTES = ctypes.sizeof(ctypes.c_int)


def receive(sock: socket.socket, most_bytes: int, *, to_the_end: bool = True) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, close-on-exec from the start; empty at the end. Raises OSError.

    If the other end was closed with an unread message in it, such as a request that came too late, the kernel reports
    that once, ahead of what was sent before. We then read on; without `to_the_end` ConnectionResetError is raised, for
    a message that is of no use without its sender.

    Fewer descriptors than were sent means that our descriptor table is full. `socket.recv_fds` of Python 3.11 takes
    flags and does not pass them on: the descriptors it receives would be inherited.
    """
    room = socket.CMSG_LEN(DESCRIPTORS_MAX * INT_BYTES)
    try:
        data, ancillary, _, _ = sock.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        if not to_the_end:
            raise
        data, ancillary, _, _ = sock.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC)
    return data, descriptors_in(ancillary)


def descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message."""
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = range(0, len(payload) - INT_BYTES + 1, INT_BYTES)
            fds += [int.from_bytes(payload[at : at + INT_BYTES], sys.byteorder) for at in whole]
    return fds
