"""A process that shares the memory of a preforked child, so that the child's exec need not free that memory.

An exec frees the old memory of the process if no other process shares it; for an interpreter that is a good part of
the time of a spawn. The memory holder keeps it until the warden releases it, and frees it when it ends, while no call
waits. It is a child of the warden, in the preforked child's cgroup, and runs no code of ours: it sits in one call of
the C library, a read from a pipe (`hold`) whose other end only the warden has. So it ends with the warden, too.
That call must not allocate or lock: heap and thread state belong to the preforked child.

Standard library only: the wardens load this file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket

from supervisor.containment.guard.packets import receive

CLONE_VM = 0x100
CLONE_PARENT = 0x8000
STACK_BYTES = 65_536
STACK_ALIGNED = 64
BUFFER_BYTES = 64

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fdopen.restype = ctypes.c_void_p
_IOFBF = 0
_STACK = ctypes.create_string_buffer(STACK_BYTES)
_BUFFER = ctypes.create_string_buffer(BUFFER_BYTES)


def start(sock: socket.socket, hold: int) -> tuple[socket.socket, int]:
    """In a preforked child: start its memory holder. Raises OSError if `sock` cannot be received back.

    Args:
        sock: the holder must not have it, since its end means that we have executed. The holder gets copies of our
            descriptors, so this one travels in a message meanwhile, and comes back under another number.
        hold: the read end of the pipe.

    Returns:
        `sock`, and the pid of the holder; 0 if none could be made, which only makes the exec slower.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        socket.send_fds(here, [b"s"], [sock.fileno()])
        sock.close()
        top = ctypes.addressof(_STACK) + STACK_BYTES
        file = ctypes.c_void_p(LIBC.fdopen(hold, b"r"))
        # Without a buffer of ours the first read would allocate one.
        LIBC.setvbuf(file, _BUFFER, _IOFBF, ctypes.c_size_t(BUFFER_BYTES))
        flags = CLONE_VM | CLONE_PARENT | int(signal.SIGCHLD)
        pid: int = LIBC.clone(LIBC.getc, ctypes.c_void_p(top - top % STACK_ALIGNED), flags, file)
        _, fds = receive(there, 1)
    os.close(hold)
    if not fds:
        raise OSError(0, "no room for a descriptor")
    return socket.socket(fileno=fds[0]), max(0, pid)
