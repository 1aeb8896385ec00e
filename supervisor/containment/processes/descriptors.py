"""The descriptors that daemon and warden share: a socket, the command's pipes or terminal, the command itself."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.containment.guard import ledger
from supervisor.containment.output import STREAMS
from supervisor.containment.processes.environment import PERSONAL, TERMINAL
from supervisor.containment.pty import open_pty

if TYPE_CHECKING:
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.processes.tree import Tree
    from supervisor.containment.reactor import Reactor
    from supervisor.containment.workplace import Workplace


class Descriptors:
    """Opens and closes the descriptors of trees. Reactor thread only.

    Args:
        environment: the base environment of every command, below its own `env`.
        limits: of each process of a tree; see `supervisor.config.Config`.
    """

    def __init__(
        self, reactor: Reactor, workplace: Workplace, environment: Mapping[str, str], limits: Mapping[str, int]
    ) -> None:
        self._reactor = reactor
        self._workplace = workplace
        self._environment = environment
        self._limits = dict(limits)

    def open(self, tree: Tree) -> list[int]:
        """Open them. Ours go into the tree; the zygote's are returned, in its order.

        Raises OSError; for a spec that cannot be encoded, TypeError or ValueError. Ours then stay open.
        """
        spec = tree.spec
        kept = self._environment.items()
        base = {name: value for name, value in kept if spec.user is None or name not in PERSONAL}
        command: Word = {
            "word": "command",
            "argv": list(spec.argv),
            "cwd": self._workplace.path(spec.cwd),
            "env": {**(TERMINAL if spec.pty else {}), **base, **spec.env, ledger.MARKER: tree.marker},
            "limits": {**self._limits, **spec.limits},
        }
        ours, warden = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        tree.sock = ours
        theirs = [warden.detach()]
        try:
            if spec.stdin is not None:
                command["stdin"] = b64encode(spec.stdin).decode("ascii")
            if spec.user is not None:
                command["user"] = spec.user
            if tree.nice:
                command["nice"] = tree.nice
            if spec.pty:
                master, slave, command["pty"] = open_pty(*spec.pty_size)
                tree.pipes[STREAMS[0]] = master
                theirs.append(slave)
                theirs.append(os.dup(slave))
            else:
                for stream in STREAMS:
                    if stream in tree.given.own:
                        theirs.append(os.dup(tree.given.own[stream]))
                        continue
                    readable, writable = os.pipe()
                    tree.pipes[stream] = readable
                    theirs.append(writable)
            for fd in tree.pipes.values():
                os.set_blocking(fd, False)
            # A command may be larger than a message; in memory, not on disk, because its environment may be secret.
            spec_fd = os.memfd_create("countermand-command", os.MFD_CLOEXEC)
            theirs.append(spec_fd)
            if tree.given.channel is not None:
                command["channel"] = True
                theirs.append(os.dup(tree.given.channel))
            elif "stdin" in tree.given.own:
                command["input"] = True
                theirs.append(os.dup(tree.given.own["stdin"]))
            left = memoryview(json.dumps(command).encode("ascii"))
            while left:
                left = left[os.write(spec_fd, left) :]
        except BaseException:
            for fd in theirs:
                os.close(fd)
            raise
        return theirs

    def close_socket(self, tree: Tree) -> None:
        """Close our end of the warden's socket. May be called again."""
        if tree.sock is not None:
            self._reactor.unwatch(tree.sock.fileno())
            tree.sock.close()
            tree.sock = None

    def close_pipe(self, tree: Tree, stream: str) -> None:
        """Close our end of one pipe."""
        fd = tree.pipes.pop(stream)
        self._reactor.unread(fd)
        os.close(fd)

    def close(self, tree: Tree) -> None:
        """Close all our descriptors of a tree. May be called again."""
        self.close_socket(tree)
        for stream in list(tree.pipes):
            self.close_pipe(tree, stream)
