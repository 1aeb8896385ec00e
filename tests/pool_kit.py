"""What tests of hosts share: a pool whose processes are played by hand, and runs without a session."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from actors.gate.credit import Credit
from actors.gate.pending import Pending, settle
from actors.gate.token import CancelToken
from actors.hosts import ToolOffer
from actors.messages import (
    CallRequested,
    LateRefused,
    ProcessEnded,
    ProcessExited,
    Said,
    SaidTogether,
    SteeringRequested,
    ToolResult,
)
from actors.model import Address, Event, How, JsonObject, Message, Mode, Outcome, Owner, Provenance, Role
from actors.plugin.execution import AgentDone
from actors.plugin.spawning import Process, Spawn
from actors.plugin.turn_core import TurnCore
from actors.ports import Settings, SpawnSpec
from actors.thread import Thread
from supervisor.agent import Agent
from supervisor.clock import SystemClock
from supervisor.hosts.host import HostState
from supervisor.hosts.pool import HostPool
from supervisor.hosts.status import AgentStatus, HostStatus
from supervisor.ids import RandomIds
from tests.channel_kit import WAIT_S, Loop, OtherEnd
from tests.process_kit import until

NAME: Final = "mine"
SESSION: Final = "s1"
SPEC: Final = Agent(name=NAME, command=("the", "host"))
SETTINGS: Final = Settings(grace_s=0.5, credit_events=4, credit_bytes=2_000)
HELLO: Final = {"protocol": [1], "runtime": "by hand"}
WHY: Final = Provenance(source="user.test", reason="enough")


class Tree:
    """One process tree, and the host's end of its socket."""

    def __init__(self, process_id: str, spec: SpawnSpec, owner: Any) -> None:
        assert spec.channel is not None
        self.process_id = process_id
        self.spec = spec
        self.owner = owner
        self.host = OtherEnd(socket.socket(fileno=os.dup(spec.channel)))
        self.kills: list[float] = []
        self.nice = [spec.nice]
        self.forgotten = False

    def exit(self, status: int = 0, output: str = "", *, closes: bool = True) -> None:
        """Its command exits; `closes`: its socket with it."""
        if closes:
            self.host.sock.close()
        self.owner.tell(ProcessExited(self.process_id, status, 1.0, 1.0, output, len(output), lossy=False, held=False))

    def end(self, note: str = "", how: How = How.EXIT) -> None:
        """No process of it is left."""
        self.owner.tell(ProcessEnded(self.process_id, how, proven=True, at=1.0, note=note))

    def die(self, status: int = 0, output: str = "") -> None:
        """Its only process exits."""
        self.exit(status, output)
        self.end()


class Trees:
    """`actors.ports.Processes`, for one who plays the processes. `mortal`: a kill ends a tree."""

    def __init__(self, *, mortal: bool = True) -> None:
        self.mortal = mortal
        self.trees: dict[str, Tree] = {}
        self.spawned: queue.SimpleQueue[Tree] = queue.SimpleQueue()

    def spawn(self, process_id: str, spec: SpawnSpec, owner: Any, session: str = "") -> None:
        tree = self.trees[process_id] = Tree(process_id, spec, owner)
        self.spawned.put(tree)

    def kill(self, process_id: str, grace_s: float, session: str = "") -> None:
        tree = self.trees[process_id]
        tree.kills.append(grace_s)
        if self.mortal and len(tree.kills) == 1:
            tree.die(-9)

    def set_nice(self, process_id: str, nice: int) -> None:
        self.trees[process_id].nice.append(nice)

    def kill_session(self, session: str, grace_s: float) -> None:
        raise AssertionError("the pool kills hosts one by one")

    def adopt(self, process_id: str, owner: Any, session: str = "", *, anew: bool = False) -> None:
        raise AssertionError("the pool adopts nothing")

    def read_output(self, process_id: str) -> None:
        raise AssertionError("the pool waits for no output")

    def forget(self, process_id: str) -> None:
        self.trees[process_id].forgotten = True

    def forget_ended(self, session: str, but: Collection[str]) -> None:
        raise AssertionError("no session is read here")

    def forget_session(self, session: str) -> None:
        raise AssertionError("no session is forgotten here")

    def next(self) -> Tree:
        """The next tree that is spawned."""
        return self.spawned.get(timeout=WAIT_S)

    def close(self) -> None:
        for tree in self.trees.values():
            tree.host.sock.close()


class AskedTrees:
    """What the actor of a run, or of a call, hears of processes: it keeps it, and the test says what becomes of it."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.asked: list[tuple[SpawnSpec, Owner, Process]] = []
        self.killed: list[tuple[str, float]] = []
        self.handed: list[tuple[str, Future[None]]] = []
        self.given_up: list[str] = []

    def spawn(self, pending: Pending) -> Spawn:
        """Return what the code asks."""
        return Spawn(
            self._request,
            pending,
            lambda process, grace_s: self.killed.append((process.process_id, grace_s)),
            lambda process, handed: self.handed.append((process.process_id, handed)),
            lambda process: self.given_up.append(process.process_id),
        )

    def _request(self, spec: SpawnSpec, owner: Owner, process: Process) -> None:
        process._id = f"proc_{next(self._numbers)}"
        self.asked.append((spec, owner, process))

    def next(self, number: int = 0) -> Process:
        """The process that was asked for, when it was."""
        until(lambda: len(self.asked) > number, "a spawn")
        return self.asked[number][2]


class OneRun:
    """A run without a session: it keeps what its actor would be told. `before`: the log of the session."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        *,
        session: str = SESSION,
        generation: int = 4,
        thread: Sequence[Message] = (),
        before: Sequence[Event] = (),
        settings: Settings = SETTINGS,
        check: Callable[[str, JsonObject], str | None] = lambda name, arguments: None,
    ) -> None:
        self.told: list[Any] = []
        # As they come: what is said together is in one.
        self.messages: list[Any] = []
        self.token = CancelToken(lambda callback: callback())
        self.credit = Credit(settings.credit_events, settings.credit_bytes)
        self.done: queue.SimpleQueue[AgentDone] = queue.SimpleQueue()
        self.thread_of_finish: str | None = None
        self.trees = AskedTrees()
        whole = Thread()
        for event in before:
            whole.apply(event)
        self.core = TurnCore(
            self._take,
            Address(session, generation, f"run_{next(self._numbers)}"),
            self.token,
            self.credit,
            whole,
            (),
            lambda: f"call_{next(self._numbers)}",
            check,
            settings.content_max_bytes,
            spawn=self.trees.spawn,
            wall=lambda: 1.0,
        )
        self.core.steered(tuple(thread))

    def _take(self, message: Any) -> None:
        self.messages.append(message)
        self.told += message.said if isinstance(message, SaidTogether) else [message]

    @property
    def fence(self) -> str:
        return self.core.address.fence

    def finish(self, done: AgentDone) -> None:
        self.thread_of_finish = threading.current_thread().name
        self.done.put(done)

    def end(self) -> AgentDone:
        """The end of its agent."""
        done = self.done.get(timeout=WAIT_S)
        assert self.done.empty(), "it has ended twice"
        return done

    @property
    def over(self) -> bool:
        return not self.done.empty()

    def cancel(self, mode: Mode = Mode.GRACEFUL) -> None:
        """What a fence does."""
        self.token.cancel(Provenance(source=WHY.source, reason=WHY.reason, mode=mode))

    def said(self) -> list[str]:
        return [one.data.text for one in self.of(Said) if hasattr(one.data, "text")]

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in list(self.told) if isinstance(one, kind)]

    def calls(self) -> list[CallRequested]:
        return self.of(CallRequested)

    def call(self, which: int = 0) -> CallRequested:
        """Wait for the call with this number."""
        until(lambda: len(self.calls()) > which, f"call {which}")
        return self.calls()[which]

    def refused(self) -> dict[str, int]:
        """What was counted as late."""
        counts: dict[str, int] = {}
        for one in self.of(LateRefused):
            for kind, count in one.counts.items():
                counts[kind] = counts.get(kind, 0) + count
        return counts

    def steer(self, *messages: Message) -> None:
        """Answer a request for steering."""
        until(lambda: self.of(SteeringRequested), "a request for steering")
        settle(self.of(SteeringRequested)[0].reply, messages)


class Execution:
    """A call that is executed by the host, as its cell and its actor would see it."""

    def __init__(self, request: CallRequested, token: CancelToken) -> None:
        assert request.made is not None
        self.fence = request.address.fence
        self.token = CancelToken(lambda callback: callback(), token)
        self.ends: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.trees = AskedTrees()
        request.made.execute(  # type: ignore[union-attr]  # a host's call brings a Foreign
            self.fence, request.arguments, self.token, self.trees.spawn(Pending(self.token)), self.ends.put
        )

    def end(self) -> Any:
        """What it ended with."""
        end = self.ends.get(timeout=WAIT_S)
        assert self.ends.empty(), "it has ended twice"
        return end


class Hosting:
    """A pool with one agent, or with those of `specs`."""

    def __init__(self, trees: Trees, pool: HostPool) -> None:
        self.trees = trees
        self.pool = pool
        self.loop = Loop(pool._reactor)
        self.unwanted: list[tuple[Tree, str]] = []

    def spare(self, hello: Mapping[str, Any] = HELLO) -> Tree:
        """The next host that is started, after its hello."""
        tree = self.trees.next()
        tree.host.request("hello", **hello)
        answer = tree.host.next()
        assert "result" in answer, answer
        return tree

    def reserved(self, session: str = SESSION) -> Tree:
        """Reserve a host: its tree."""
        return self.trees.trees[self.pool.reserve(NAME, session)]

    def keep(self, tree: Tree, session: str = SESSION) -> None:
        """What a session says of a host that it keeps; what it is asked to end is in `unwanted`."""
        self.pool.keep(tree.process_id, session, lambda why: self.unwanted.append((tree, why)))

    def begin(self, tree: Tree, run: OneRun, tools: Sequence[ToolOffer] = ()) -> dict[str, Any]:
        """Tell a host of a run; returns the frame."""
        self.pool.run(tree.process_id, run.core, tools, run.finish)
        frame = tree.host.next()
        assert frame["method"] == "run"
        return frame

    def running(self, *, can: Sequence[str] = (), **options: Any) -> tuple[Tree, OneRun, dict[str, Any]]:
        """A host with a run, and the frame of the run."""
        self.spare({**HELLO, "can": list(can)})
        tree, run = self.reserved(), OneRun(**options)
        return tree, run, self.begin(tree, run)

    def status(self, name: str = NAME) -> AgentStatus:
        return next(one for one in self.pool.status() if one.name == name)

    def host(self, tree: Tree) -> HostStatus | None:
        """What the pool knows of a host; None: nothing."""
        return next((one for one in self.status().hosts if one.process_id == tree.process_id), None)

    def until_state(self, tree: Tree, state: HostState | None) -> None:
        until(lambda: getattr(self.host(tree), "state", None) == state, f"the state {state}")


class Ahead(SystemClock):
    """A clock that can be put ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        """Return the time, with what it is ahead."""
        return super().monotonic() + self.ahead_s


@contextmanager
def hosting(
    *specs: Agent,
    settings: Settings = SETTINGS,
    mortal: bool = True,
    kept_max: int = 64,
    clock: SystemClock | None = None,
) -> Iterator[Hosting]:
    clock, trees = clock or SystemClock(), Trees(mortal=mortal)
    threads: list[threading.Thread] = []

    def elsewhere(callback: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=callback))
        threads[-1].start()

    pool = HostPool(
        trees,
        clock,
        RandomIds(),
        {spec.name: spec for spec in specs or (SPEC,)},
        settings,
        elsewhere=elsewhere,
        kept_max=kept_max,
    )
    pool.start()
    try:
        yield Hosting(trees, pool)
    finally:
        assert pool.close()
        trees.close()
        clock.close()
        for thread in threads:
            thread.join(WAIT_S)


def message(identity: str, content: str = "hello") -> Message:
    return Message(identity, Role.USER, content, 4, "run_1", origin="user")


FINISHED: Final = ToolResult(Outcome.FINISHED, "done")
