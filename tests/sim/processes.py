"""SimProcesses: process trees that behave as their command line says, in virtual time.

A command is ``("sim", word, …)``. Words: ``runs=2.5`` seconds until it exits by itself; ``serves``: it does not;
``exit=3`` its status; ``output=4`` pieces of output, evenly over that time; ``children=2`` processes that it leaves
behind, which run until they are killed; ``ignores_term``: only SIGKILL ends it; ``never_dies``: nothing does, as in
state D, which is told half a second after the SIGKILL, or ``never_dies=9`` seconds; ``lost``: it dies, and its warden
is lost before it can prove it; ``absent``: it cannot be executed.

What a tree reports is reported in its order, at steps of its own; the steps of different trees mix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pykka import ActorDeadError

from actors.kernel.succession import Succession
from actors.messages import (
    OutputRead,
    ProcessEnded,
    ProcessExited,
    ProcessNews,
    ProcessOutput,
    ProcessRemaining,
    ProcessStarted,
)
from actors.model import How, PartKind, Row, Signalled
from tests.sim.clock import SimClock
from tests.sim.watch import Watch

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.ports import SpawnSpec, Timer

DEATH_S: Final = 0.01
"""Virtual seconds between a signal and the death that it brings."""

WARDEN_S: Final = 0.2
"""Virtual seconds that a warden needs to end its tree after the daemon is gone."""

AGAIN_S: Final = 1.0
"""Virtual seconds after which who remains is told once more."""

GIVEN_UP_S: Final = 10.0
"""Virtual seconds after which the ledger of a tree that does not end is read as it is."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a command line says."""

    runs_s: float = 0.1
    exit: int = 0
    output: int = 1
    children: int = 0
    serves: bool = False
    ignores_term: bool = False
    never_dies: bool = False
    remains_s: float = 0.5
    lost: bool = False
    absent: bool = False

    @classmethod
    def of(cls, argv: tuple[str, ...]) -> Command:
        """Read a command line."""
        program, *words = argv
        assert program == "sim", f"a simulated command begins with 'sim', not {program!r}"
        said = dict(word.partition("=")[::2] for word in words)
        return cls(
            runs_s=float(said.get("runs", 0.1)),
            exit=int(said.get("exit", 0)),
            output=int(said.get("output", 1)),
            children=int(said.get("children", 0)),
            serves="serves" in said,
            ignores_term="ignores_term" in said,
            never_dies="never_dies" in said,
            remains_s=float(said.get("never_dies") or 0.5),
            lost="lost" in said,
            absent="absent" in said,
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """What a ledger says after a crash.

    at: when its tree is gone; None: it does not go, or nobody can say so. report: what is told of it at once.
    """

    at: float | None
    report: ProcessEnded | None


@dataclass(slots=True)
class _Tree:
    process_id: str
    command: Command
    owner: ActorRef[Any]
    session: str = ""
    succession: Succession = field(default_factory=Succession)
    todo: deque[Callable[[], None]] = field(default_factory=deque)
    pid: int | None = None
    started_at: float = 0.0
    started: ProcessStarted | None = None
    exited: ProcessExited | None = None
    remaining: ProcessRemaining | None = None
    ended: ProcessEnded | None = None
    kill_at: float | None = None
    killing: Timer | None = None
    signals: list[Signalled] = field(default_factory=list)
    dead: bool = False
    forgotten: bool = False

    @property
    def alive(self) -> bool:
        return self.pid is not None and not self.dead


class SimProcesses:
    """`actors.ports.Processes` in virtual time.

    Args:
        clock: virtual time.
        random: chooses the tree that has the next step.
        ledgers: what the wardens of earlier worlds left.
        watch: asked at every spawn and at every kill.
    """

    def __init__(self, clock: SimClock, random: Random, ledgers: dict[str, Ending], watch: Watch) -> None:
        self._clock = clock
        self._random = random
        self._ledgers = ledgers
        self._watch = watch
        self._trees: dict[str, _Tree] = {}
        self._pids = 100
        # Told when the command of a tree has exited.
        self.on_exit: Callable[[str], None] = lambda _: None
        self.spawned: list[str] = []

    def spawn(self, process_id: str, spec: SpawnSpec, owner: ActorRef[Any], session: str = "") -> None:
        """Register a tree; it starts at a step of its own."""
        self._watch.trees.spawns(process_id)
        assert process_id not in self._trees, f"{process_id} is spawned twice"
        self.spawned.append(process_id)
        tree = _Tree(process_id, Command.of(spec.argv), owner, session)
        self._trees[process_id] = tree
        tree.todo.append(lambda: self._start(tree))

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        """SIGTERM now, SIGKILL after `grace_s` seconds; again with less grace it escalates."""
        self._watch.ends.halts(process_id)
        if grace_s > 0:
            self._watch.trees.asks_host(process_id)
        tree = self._trees.get(process_id)
        if tree is not None:
            tree.session = tree.session or session
        if tree is None or tree.dead or tree.ended is not None:
            return
        now = self._clock.monotonic()
        due = now + grace_s
        if tree.kill_at is None:
            if tree.pid is None:
                # The kill comes before the start: the command is never run.
                tree.kill_at = now
                return
            tree.signals.append(Signalled("SIGTERM", self._clock.wall()))
            if not tree.command.ignores_term and grace_s > 0:
                self._clock.call_at(now + DEATH_S, lambda: self._die(tree, How.SIGTERM, -15))
        elif tree.kill_at <= due:
            return
        tree.kill_at = due
        if tree.killing is not None:
            tree.killing.cancel()
        tree.killing = self._clock.call_at(due, lambda: self._sigkill(tree))

    def is_ending(self, process_id: str) -> bool:
        """True of a tree that somebody has ended."""
        tree = self._trees.get(process_id)
        return tree is not None and tree.kill_at is not None

    def kill_session(self, session: str, grace_s: float) -> None:
        """End the trees of a session that were spawned in this world."""
        for tree in list(self._trees.values()):
            if tree.session == session:
                self.kill(tree.process_id, grace_s)

    def set_nice(self, process_id: str, nice: int) -> None:
        """Virtual time has no processor to share."""

    def adopt(self, process_id: str, owner: ActorRef[Any], session: str = "", *, anew: bool = False) -> None:
        """From here on tell `owner`; an unknown id is looked up in the ledgers."""
        tree = self._trees.get(process_id)
        if tree is None:
            tree = _Tree(process_id, Command(), owner, session)
            tree.succession.admits(owner, anew=anew)
            tree.dead = True
            self._trees[process_id] = tree
            self._look(tree)
            return
        if not tree.succession.admits(owner, anew=anew):
            return
        tree.owner, tree.session = owner, tree.session or session
        for report in (tree.started, tree.exited, tree.remaining, tree.ended):
            if report is not None:
                self._tell(tree, report)

    def read_output(self, process_id: str) -> None:
        """Tell the owner what was printed by now, and that this is all."""
        tree = self._trees.get(process_id)
        if tree is not None:
            tree.todo.append(lambda: self._tell(tree, OutputRead(process_id)))

    def forget(self, process_id: str) -> None:
        """The end of the tree is in the log."""
        tree = self._trees.get(process_id)
        if tree is not None and tree.ended is not None:
            del self._trees[process_id]
        elif tree is not None:
            tree.forgotten = True
        self._ledgers.pop(process_id, None)

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        """What else is proven to have ended of a session is forgotten."""
        for tree in [one for one in self._trees.values() if one.session == session and one.process_id not in but]:
            if tree.ended is None or tree.ended.proven:
                self.forget(tree.process_id)

    def forget_session(self, session: str) -> None:
        """Nothing is kept here of a session's output."""

    # ── For the world ─────────────────────────────────────────────────────────────────────────────

    def crash(self, process_id: str) -> None:
        """The command of a tree dies by itself, of a fault of its own."""
        tree = self._trees.get(process_id)
        if tree is not None and tree.pid is not None:
            self._exit(tree, -11)

    @property
    def ready(self) -> bool:
        """True if some tree has something to do."""
        for tree in self._trees.values():  # noqa: SIM110  # a loop, since it is asked at every step
            if tree.todo:
                return True
        return False

    def step(self) -> None:
        """Let one tree do the next thing that it has to do."""
        trees = [tree for tree in self._trees.values() if tree.todo]
        tree = trees[self._random.randrange(len(trees))]
        tree.todo.popleft()()

    def lives(self, process_id: str) -> bool:
        """True if something of a tree is alive, of an earlier world too, whoever knows of it."""
        tree = self._trees.get(process_id)
        if tree is not None and (tree.pid is not None or tree.ended is not None):
            return tree.alive
        found = self._ledgers.get(process_id)
        return found is not None and (found.at is None or found.at > self._clock.monotonic())

    def to_be_killed(self) -> list[_Tree]:
        """The trees that live, and whose SIGKILL is not due, nor behind them."""
        now = self._clock.monotonic()
        return [tree for tree in self._trees.values() if tree.alive and (tree.kill_at is None or tree.kill_at > now)]

    def proven(self, process_id: str) -> bool:
        """True if a tree is gone and its warden has seen that, or it never was."""
        tree = self._trees.get(process_id)
        if tree is None:
            return not self.lives(process_id)
        return tree.ended is not None and tree.ended.proven

    def alive(self) -> list[str]:
        """Trees of which something lives."""
        return [tree.process_id for tree in self._trees.values() if tree.alive]

    def kept(self) -> list[str]:
        """Trees that were proven to have ended and were not forgotten."""
        return [one.process_id for one in self._trees.values() if one.ended is not None and one.ended.proven]

    def drop(self) -> None:
        """A crash: every warden ends its tree by itself, and writes its last word into its ledger."""
        now = self._clock.monotonic()
        for tree in self._trees.values():
            if tree.process_id in self._ledgers or tree.pid is None:
                continue
            if tree.ended is not None and tree.ended.proven:
                self._ledgers[tree.process_id] = Ending(now, tree.ended)
            elif tree.command.lost:
                # Its warden was killed too, which the next daemon sees at once.
                note, at = "its warden was lost", self._clock.wall()
                unproven = ProcessEnded(tree.process_id, How.ABANDONED, proven=False, at=at, note=note)
                self._ledgers[tree.process_id] = Ending(None, unproven)
            elif tree.command.never_dies:
                self._ledgers[tree.process_id] = Ending(None, None)
            else:
                self._ledgers[tree.process_id] = Ending(now + WARDEN_S, None)
        self._trees.clear()

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _start(self, tree: _Tree) -> None:
        if tree.kill_at is not None or tree.command.absent:
            note = "stopped before it started" if tree.kill_at is not None else "no such file"
            self._end(tree, ProcessEnded(tree.process_id, How.NOT_STARTED, True, self._clock.wall(), note=note))
            return
        self._pids += 1
        tree.pid = self._pids
        tree.started_at = self._clock.wall()
        self._watch.ran.add(tree.process_id)
        tree.started = ProcessStarted(tree.process_id, tree.pid, tree.started_at)
        self._tell(tree, tree.started)
        now, command = self._clock.monotonic(), tree.command
        for piece in range(command.output):
            at = now + command.runs_s * (piece + 1) / (command.output + 1)
            self._clock.call_at(at, lambda piece=piece: self._print(tree, piece))  # type: ignore[misc]
        if not command.serves:
            self._clock.call_at(now + command.runs_s, lambda: self._exit(tree, command.exit))

    def _print(self, tree: _Tree, piece: int) -> None:
        if tree.exited is None and not tree.dead:
            self._later(tree, ProcessOutput(tree.process_id, "stdout", f"line {piece}\n"))

    def _exit(self, tree: _Tree, status: int) -> None:
        """The command exits; its tree has ended with it unless it left children behind."""
        if tree.exited is not None or tree.dead or tree.command.never_dies:
            return
        self._say_exit(tree, status)
        if not tree.command.children:
            self._die(tree, How.EXIT, status)

    def _say_exit(self, tree: _Tree, status: int) -> None:
        at = self._clock.wall()
        tree.exited = ProcessExited(
            tree.process_id, status, at, at - tree.started_at, "output\n", 7, lossy=False, held=False
        )
        self._later(tree, tree.exited)
        self.on_exit(tree.process_id)

    def _sigkill(self, tree: _Tree) -> None:
        if not tree.dead:
            tree.signals.append(Signalled("SIGKILL", self._clock.wall()))
            now = self._clock.monotonic()
            self._clock.call_at(now + DEATH_S, lambda: self._die(tree, How.SIGKILL, -9))
            if tree.command.never_dies:
                for after_s in (tree.command.remains_s, tree.command.remains_s + AGAIN_S):
                    self._clock.call_at(now + after_s, lambda: self._say_remaining(tree))

    def _say_remaining(self, tree: _Tree) -> None:
        if not tree.dead:
            row = Row(PartKind.PROCESS, "sim", how=How.ABANDONED, pid=tree.pid, note="state D")
            tree.remaining = ProcessRemaining(tree.process_id, self._clock.wall(), (row,), "could not be killed: sim")
            self._later(tree, tree.remaining)

    def _die(self, tree: _Tree, how: How, status: int) -> None:
        if tree.dead or tree.command.never_dies:
            return
        tree.dead = True
        if tree.exited is None:
            self._say_exit(tree, status)
        else:
            how, status = How.EXIT, tree.exited.status
        report = ProcessEnded(
            tree.process_id,
            how,
            not tree.command.lost,
            self._clock.wall(),
            status=status,
            pid=tree.pid,
            started_at=tree.started_at,
            reaped=1 + tree.command.children,
            signals=tuple(tree.signals),
            note="its warden was lost" if tree.command.lost else "",
        )
        tree.todo.append(lambda: self._end(tree, report))

    def _end(self, tree: _Tree, report: ProcessEnded) -> None:
        tree.dead = True
        tree.ended = report
        self._tell(tree, report)
        if tree.forgotten:
            del self._trees[tree.process_id]

    def _look(self, tree: _Tree) -> None:
        """Look up a tree of an earlier world."""
        found, now = self._ledgers.get(tree.process_id), self._clock.monotonic()
        process_id = tree.process_id
        if found is None:
            report = ProcessEnded(process_id, How.NOT_STARTED, True, self._clock.wall(), note="never spawned")
            tree.todo.append(lambda: self._end(tree, report))
        elif found.report is not None:
            known = found.report
            tree.todo.append(lambda: self._end(tree, known))
        else:
            proven = found.at is not None
            at = max(now, now + GIVEN_UP_S if found.at is None else found.at)

            def ended() -> None:
                how = How.SIGKILL if proven else How.ABANDONED
                report = ProcessEnded(process_id, how, proven, self._clock.wall(), reaped=1, note="by its warden")
                tree.todo.append(lambda: self._end(tree, report))

            self._clock.call_at(at, ended)

    def _later(self, tree: _Tree, news: ProcessNews) -> None:
        tree.todo.append(lambda: self._tell(tree, news))

    @staticmethod
    def _tell(tree: _Tree, news: ProcessNews | OutputRead) -> None:
        try:
            tree.owner.tell(news)
        except ActorDeadError:
            # Told again to whoever adopts the tree.
            return
