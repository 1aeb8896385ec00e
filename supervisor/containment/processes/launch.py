"""A tree from its request to the zygote's socket: its ledger, its descriptors, and the retries."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loguru import logger

from actors.errors import described
from supervisor.containment.guard import ledger
from supervisor.containment.output import Output
from supervisor.containment.processes.tree import Tree, TreePhase
from supervisor.containment.spool import Spool

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.ports import Clock, SpawnSpec
    from supervisor.containment.processes.descriptors import Descriptors
    from supervisor.containment.processes.endings import Endings
    from supervisor.containment.processes.given import Given
    from supervisor.containment.processes.pipes import Pipes
    from supervisor.containment.processes.tree import TreeTable
    from supervisor.containment.processes.warden_dir import WardenDir
    from supervisor.containment.processes.zygotes import Zygotes
    from supervisor.containment.reactor import Reactor
    from supervisor.containment.spool import Spools

ATTEMPTS_MAX = 3
SEND_RETRY_S = 0.005
SEND_MAX_S = 10.0
BEHIND = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})


class Launcher:
    """Launches trees. Reactor thread only.

    Args:
        log_max_bytes: how much text a tree may report as ProcessOutput, before one marker.
        tail_max_bytes: how much text ProcessExited carries.
        on_warden: called when the socket of a tree's warden has something to read.
    """

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        trees: TreeTable,
        warden_dir: WardenDir,
        descriptors: Descriptors,
        zygotes: Zygotes,
        pipes: Pipes,
        spools: Spools,
        endings: Endings,
        *,
        log_max_bytes: int,
        tail_max_bytes: int,
        on_warden: Callable[[Tree], None],
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._trees = trees
        self._warden_dir = warden_dir
        self._descriptors = descriptors
        self._zygotes = zygotes
        self._pipes = pipes
        self._spools = spools
        self._endings = endings
        self._log_max = log_max_bytes
        self._tail_max = tail_max_bytes
        self._on_warden = on_warden

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str, given: Given) -> None:
        """Make a tree, and launch it. If that fails, the tree ends as not started."""
        path = self._warden_dir.ledger(process_id)
        spool = Spool(
            self._spools, process_id, self._reactor, self._tail_max, lambda: self._pipes.resume(tree), session
        )
        output = Output(self._log_max, self._tail_max, spool.elsewhere)
        tree = Tree(process_id, spec, owner, session, path, output, spool, given)
        self._trees.add(tree)
        if self._trees.closing:
            self._endings.never(tree, "the supervisor is shutting down")
            return
        if given.why_not:
            self._endings.never(tree, given.why_not)
            return
        if not spec.argv:
            self._endings.never(tree, "cannot execute an empty command")
            return
        try:
            ledger.create(path, process_id, self._clock.wall(), self._warden_dir.boot, tree.marker)
        except OSError as error:
            self._endings.never(tree, f"cannot create its ledger {path}: {error.strerror}")
            return
        self.launch(tree)

    def launch(self, tree: Tree) -> None:
        """Send the tree to a zygote; if that fails, try again later or end it as not started."""
        tree.phase = TreePhase.WAITING
        tree.attempts += 1
        theirs: list[int] = []
        try:
            zygote = self._zygotes.living()
            try:
                theirs.extend(self._descriptors.open(tree))
                zygote.spawn(tree.process_id, str(tree.path), theirs)
            finally:
                for fd in theirs:
                    os.close(fd)
        except OSError as error:
            self._descriptors.close(tree)
            self._retry(tree, error)
            return
        except Exception as error:  # noqa: BLE001  # a spec that cannot be sent ends its own tree and no other
            logger.opt(exception=True).error("the command of {} could not be sent", tree.process_id)
            self._descriptors.close(tree)
            self._endings.never(tree, f"cannot start a warden: {described(error)}")
            return
        tree.zygote = zygote
        tree.phase = TreePhase.SENT
        assert tree.sock is not None
        self._reactor.watch(tree.sock.fileno(), lambda: self._on_warden(tree))

    def _retry(self, tree: Tree, error: OSError) -> None:
        now = self._clock.monotonic()
        tree.waiting_since = now if tree.waiting_since is None else tree.waiting_since
        if error.errno in BEHIND and now - tree.waiting_since < SEND_MAX_S:
            tree.attempts -= 1
            self._reactor.later(SEND_RETRY_S, lambda: self._relaunch(tree))
        elif error.errno in (errno.EPIPE, errno.ECONNRESET) and tree.attempts < ATTEMPTS_MAX:
            self._zygotes.give_up_current()
            self.launch(tree)
        else:
            self._endings.never(tree, f"cannot start a warden: {error.strerror or error}")

    def _relaunch(self, tree: Tree) -> None:
        if tree.phase is TreePhase.WAITING:
            self.launch(tree)
