"""The anchor of a seed: a process that has the seed's memory too, so that the exec need not take that memory down.

An exec gives the process new memory, and takes the old one down if no other process has it; for an interpreter that is
a good part of what a spawn takes. The anchor keeps it until the warden releases it, and takes it down then, while no
call waits. It is a child of the warden, in the seed's cgroup, and runs no line of ours: it sits in one call of the C
library, which reads from a pipe (the *leash*) that only the warden can write to. So it ends with the warden, too.
That call must not allocate: the heap is the seed's, and so is what the C library keeps of its thread, so no lock is
taken.

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


def cast(sock: socket.socket, leash: int) -> tuple[socket.socket, int]:
    """In a seed: make its anchor. Raises OSError if our descriptors cannot be had back.

    Args:
        sock: what the anchor must not have, since its end says that we have executed. It has copies of our descriptors,
            so this one is in a message meanwhile, and comes back as another.
        leash: the end of the pipe that is read.

    Returns:
        `sock`, and the pid of the anchor; 0 where none can be made, which costs time only.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        socket.send_fds(here, [b"s"], [sock.fileno()])
        sock.close()
        top = ctypes.addressof(_STACK) + STACK_BYTES
        file = ctypes.c_void_p(LIBC.fdopen(leash, b"r"))
        # Without one the first read allocates it.
        LIBC.setvbuf(file, _BUFFER, _IOFBF, ctypes.c_size_t(BUFFER_BYTES))
        flags = CLONE_VM | CLONE_PARENT | int(signal.SIGCHLD)
        pid: int = LIBC.clone(LIBC.getc, ctypes.c_void_p(top - top % STACK_ALIGNED), flags, file)
        _, fds = receive(there, 1)
    os.close(leash)
    if not fds:
        raise OSError(0, "no room for a descriptor")
    return socket.socket(fileno=fds[0]), max(0, pid)
