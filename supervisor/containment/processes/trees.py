"""ProcessTrees: the port `actors.ports.Processes`. The package's docstring has the theory of operation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.messages import OutputRead
from supervisor.config import LAYERS
from supervisor.containment import probe
from supervisor.containment.guard import cgroups
from supervisor.containment.guard.ledger import encode
from supervisor.containment.layers import Layers
from supervisor.containment.processes.adoption import SWEEP_S, Adoptions
from supervisor.containment.processes.descriptors import Descriptors
from supervisor.containment.processes.endings import SETTLE_S, Endings
from supervisor.containment.processes.environment import clean_environment
from supervisor.containment.processes.given import Given
from supervisor.containment.processes.kills import Kills
from supervisor.containment.processes.launch import Launcher
from supervisor.containment.processes.lost import LostTrees
from supervisor.containment.processes.pipes import Pipes
from supervisor.containment.processes.reports import not_started, tell
from supervisor.containment.processes.search import Search
from supervisor.containment.processes.tree import Tree, TreePhase, TreeTable
from supervisor.containment.processes.warden_dir import WardenDir
from supervisor.containment.processes.words import Words
from supervisor.containment.processes.zygotes import Zygotes
from supervisor.containment.reactor import Reactor
from supervisor.containment.spool import Spools
from supervisor.containment.workplace import Workplace

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.ports import Clock, SpawnSpec
    from supervisor.containment.guard.ledger import Word
    from supervisor.containment.zygote_handle import ZygoteHandle

ZYGOTE_END_S = 2.0


class ProcessTrees:
    """All process trees of one daemon. Implements `actors.ports.Processes`.

    Every method may be called from any thread. Only `start`, `end_unnamed` and `close` wait.

    Args:
        state_dir: where ``wardens/`` with the ledgers is (made by `start`); one daemon at a time.
        clock: for deadlines and for the times of reports that no warden made.
        drain_s: after the command's exit its output is read to its end, for at most this many seconds.
        kill_s: half this long after the grace of a kill the zygote takes over from a warden that is silent and idle.
        give_up_s: this long after the grace of a kill a tree that is not proven gone is reported as such; None:
            `kill_s`. It may be longer than a caller waits, since only a cgroup can still prove the end later.
        log_max_bytes: how much text a tree may report as ProcessOutput, before one marker.
        tail_max_bytes: how much text ProcessExited carries.
        coalesce_s: how often a stream with little output is read and reported; the first piece at once, and a flood as
            it comes. See `readers`.
        spool_max_bytes: how much of a tree's output is kept in a file; one is made if a report has no room for all of
            it, or cannot show it. See `spool`.
        spool_total_bytes: how large these files may be together.
        spool_keep_s: how long after its last byte such a file is kept.
        environment: the base environment of every command, below its own `env`; None: `clean_environment` of this
            process.
        limits: of each process of a tree; see `supervisor.config.Config`.
        layers: the active ones, of `supervisor.config.LAYERS` and `OPTIONAL_LAYERS`; see there.
    """

    def __init__(
        self,
        state_dir: Path,
        clock: Clock,
        *,
        drain_s: float = 0.25,
        kill_s: float = 5.0,
        give_up_s: float | None = None,
        log_max_bytes: int = 1_048_576,
        tail_max_bytes: int = 65_536,
        coalesce_s: float = 0.04,
        spool_max_bytes: int = 67_108_864,
        spool_total_bytes: int = 1_073_741_824,
        spool_keep_s: float = 604_800.0,
        environment: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
        layers: Collection[str] = LAYERS,
    ) -> None:
        # Absolute, since the zygote has another working directory.
        folder = Path(state_dir).absolute()
        given = clean_environment(os.environ) if environment is None else dict(environment)
        patience_s = kill_s if give_up_s is None else give_up_s
        # A zygote that is no subreaper inherits nothing.
        self._layers = frozenset(layers) - (frozenset() if "subreaper" in layers else {"zygote"})
        self._clock = clock
        self._started = False
        self._spools = Spools(
            folder / "spool",
            clock,
            file_max_bytes=spool_max_bytes,
            total_max_bytes=spool_total_bytes,
            keep_s=spool_keep_s,
        )
        reactor = self._reactor = Reactor("countermand-processes", clock, coalesce_s)
        trees = self._trees = TreeTable()
        self._dir = WardenDir(folder / "wardens")
        descriptors = Descriptors(reactor, Workplace(folder), given, limits or {})
        self._zygotes = Zygotes(
            reactor, trees, self._dir, given, self._layers, self._on_zygote_word, self._on_zygote_dead
        )
        self._search = Search(reactor, clock, trees, self._dir.boot, self._layers, patience_s)
        pipes = self._pipes = Pipes(reactor, descriptors, self._on_drained)
        self._endings = Endings(
            reactor,
            clock,
            descriptors,
            pipes,
            drain_s=drain_s,
            give_up_s=patience_s,
            on_ended=self._on_ended,
        )
        self._kills = Kills(reactor, clock, self._endings, kill_s=kill_s, give_up_s=patience_s)
        self._launcher = Launcher(
            reactor,
            clock,
            trees,
            self._dir,
            descriptors,
            self._zygotes,
            pipes,
            self._spools,
            self._endings,
            log_max_bytes=log_max_bytes,
            tail_max_bytes=tail_max_bytes,
            on_warden=self._on_warden,
        )
        lost = LostTrees(reactor, clock, trees, descriptors, self._endings, self._launcher, self._search, patience_s)
        self._words = Words(trees, self._layers, descriptors, pipes, self._spools, self._endings, lost)
        self._adoptions = Adoptions(reactor, clock, self._dir, self._search, patience_s)

    # ── The port ──────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Make the directories, start the threads and the first zygote. Raises OSError if one cannot be made.

        Raises:
            Invalid: the layer of namespaces is asked for, and is not available here.
        """
        if "namespace" in self._layers:
            probe.require_namespace()
        self._dir.make()
        before = self._dir.prepare_cgroup() if "cgroup" in self._layers else None
        self._started = True
        self._spools.start()
        self._reactor.start()
        self._reactor.post(self._zygotes.warm_up)
        self._reactor.post(lambda: self._adoptions.clean_up(before, self._trees.by_id))

    def end_unnamed(self, named: Callable[[], Collection[str]]) -> None:
        """End the trees of an earlier daemon that no row of the store names, prove it, and remove their ledgers.

        To be called after `start`, and before anything is spawned.

        Args:
            named: returns the ids of the trees that rows name; called on the caller's thread, if there is a ledger.
        """
        left = {process_id for process_id, _ in self._dir.ledgers()}
        if left:
            unnamed = left.difference(named())
            self._reactor.post(lambda: self._adoptions.end_unnamed(unnamed))

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """See `actors.ports.Processes.spawn`. An id that is known already is adopted, so it is spawned only once."""
        given = Given(spec)
        if not self._reactor.post(lambda: self._spawn(process_id, spec, owner, session, given)):
            given.close()
            tell(owner, not_started(process_id, "the supervisor has shut down", self._clock.wall()))

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        """See `actors.ports.Processes.kill`."""
        self._reactor.post(lambda: self._kill(process_id, grace_s, session))

    def kill_session(self, session: str, grace_s: float) -> None:
        """See `actors.ports.Processes.kill_session`."""
        self._reactor.post(lambda: self._kill_session(session, grace_s))

    def set_nice(self, process_id: str, nice: int) -> None:
        """See `actors.ports.Processes.set_nice`. The warden does it, with the daemon's rights."""
        self._reactor.post(lambda: self._set_nice(process_id, nice))

    def adopt(self, process_id: str, owner: ActorRef[Any], session: str = "", *, anew: bool = False) -> None:
        """See `actors.ports.Processes.adopt`."""
        self._reactor.post(lambda: self._adopt(process_id, owner, session, anew=anew))

    def read_output(self, process_id: str) -> None:
        """See `actors.ports.Processes.read_output`."""
        self._reactor.post(lambda: self._read_output(process_id))

    def forget(self, process_id: str) -> None:
        """See `actors.ports.Processes.forget`. A tree that has not ended is forgotten when it ends."""
        self._reactor.post(lambda: self._forget(process_id))

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """See `actors.ports.Processes.forget_ended`."""
        self._reactor.post(lambda: self._forget_ended(session, but))

    def forget_session(self, session: str) -> None:
        """See `actors.ports.Processes.forget_session`. Done after the calls posted before it."""
        self._reactor.post(lambda: self._spools.forget(session))

    @property
    def layers(self) -> Layers:
        """The active layers of containment; known after `start`."""
        base = self._dir.cgroup
        names = self._layers if base is not None else self._layers - {"cgroup"}
        delegated = base is not None and cgroups.delegated(os.path.dirname(base))
        return Layers(tuple(sorted(names)), base, self._dir.no_cgroup, delegated)

    @property
    def spools(self) -> Spools:
        """The spool files, for output that reports have no room for."""
        return self._spools

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kill all trees, wait for the proofs, end the zygotes and the threads. Not from the reactor's thread.

        True if every tree ended within `timeout_s` seconds, and all threads did. Other trees are reported as not
        proven; their wardens see the end of their sockets and go on ending them.
        """
        if not self._started or not self._reactor.post(self._begin_closing):
            return True
        proven = self._trees.quiet.wait(timeout_s)
        self._reactor.post(self._end_zygotes)
        if not self._zygotes.none.wait(ZYGOTE_END_S):
            self._reactor.post(self._zygotes.kill_all)
            self._zygotes.none.wait(ZYGOTE_END_S)
        self._reactor.post(self._pipes.close_copies)
        stopped = self._reactor.stop(ZYGOTE_END_S)
        self._search.join(SWEEP_S)
        if self._dir.cgroup is not None:
            cgroups.leave(self._dir.cgroup)
        return self._spools.close(SETTLE_S) and stopped and proven

    # ── On the reactor's thread ───────────────────────────────────────────────────────────────────

    def _spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str, given: Given) -> None:
        if process_id in self._trees.by_id:
            given.close()
            self._adopt(process_id, owner, session, anew=False)
        else:
            self._launcher.spawn(process_id, spec, owner, session, given)

    def _kill(self, process_id: str, grace_s: float, session: str) -> None:
        tree = self._trees.by_id.get(process_id)
        if tree is not None:
            self._trees.belong_to(tree, session)
            self._kills.kill(tree, grace_s)

    def _kill_session(self, session: str, grace_s: float) -> None:
        for tree in self._trees.of(session):
            self._kills.kill(tree, grace_s)

    def _set_nice(self, process_id: str, nice: int) -> None:
        tree = self._trees.by_id.get(process_id)
        if tree is None or tree.phase is TreePhase.ENDED:
            return
        # Kept for a spawn that is tried again.
        tree.nice = nice
        if tree.sock is not None:
            # A warden that has just ended does not need it.
            with suppress(OSError):
                tree.sock.send(encode({"word": "nice", "nice": nice}))

    def _adopt(self, process_id: str, owner: ActorRef[Any], session: str, *, anew: bool) -> None:
        tree = self._trees.by_id.get(process_id)
        if tree is None:
            self._adoptions.adopt(process_id, owner, session, anew=anew)
            return
        if not tree.succession.admits(owner, anew=anew):
            return
        self._trees.belong_to(tree, session)
        tree.owner = owner
        remaining = None if tree.end_report else tree.remaining
        for report in (tree.start_report, tree.exit_report, remaining, tree.end_report):
            if report is not None:
                tell(owner, report)

    def _read_output(self, process_id: str) -> None:
        tree = self._trees.by_id.get(process_id)
        if tree is not None:
            try:
                self._pipes.read_now(tree)
            finally:
                # The end of a run waits for it.
                tell(tree.owner, OutputRead(process_id))

    def _forget(self, process_id: str) -> None:
        tree = self._trees.by_id.get(process_id)
        if tree is not None and tree.phase is not TreePhase.ENDED:
            tree.forgotten = True
            return
        self._trees.remove(process_id)
        self._adoptions.forget(process_id)
        self._dir.ledger(process_id).unlink(missing_ok=True)

    def _forget_ended(self, session: str, but: Collection[str]) -> None:
        for tree in self._trees.of(session):
            unproven = tree.end_report is not None and not tree.end_report.proven
            if tree.process_id not in but and not unproven:
                self._forget(tree.process_id)
        for process_id in self._adoptions.reported(session):
            if process_id not in but:
                self._forget(process_id)

    # ── Events ────────────────────────────────────────────────────────────────────────────────────

    def _on_warden(self, tree: Tree) -> None:
        self._words.on_warden(tree)

    def _on_zygote_word(self, zygote: ZygoteHandle, word: Word) -> None:
        self._words.on_zygote_word(zygote, word)

    def _on_zygote_dead(self, zygote: ZygoteHandle) -> None:
        self._words.on_zygote_dead(zygote)

    def _on_drained(self, tree: Tree) -> None:
        self._endings.drained(tree)

    def _on_ended(self, tree: Tree) -> None:
        if tree.forgotten:
            self._forget(tree.process_id)
        self._trees.check_quiet()

    # ── Closing ───────────────────────────────────────────────────────────────────────────────────

    def _begin_closing(self) -> None:
        self._trees.closing = True
        self._adoptions.forget_all()
        for tree in list(self._trees.by_id.values()):
            self._kills.kill(tree, 0.0)
        self._trees.check_quiet()

    def _end_zygotes(self) -> None:
        for tree in list(self._trees.by_id.values()):
            self._endings.abandon(tree, "not proven gone when the supervisor shut down")
            if tree.phase is not TreePhase.ENDED and tree.last is not None:
                self._endings.report_exit_now(tree)
        self._zygotes.end_all()
