"""Who was replaced takes nothing back from its successor, at each port, however late its turn comes."""

from __future__ import annotations

import fcntl
import queue
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pykka import ActorRef

from actors.gate.token import CancelToken
from actors.hierarchy.incarnation import Incarnation
from actors.kernel.actor import Actor
from actors.kernel.dispatcher import PooledDispatcher
from actors.kernel.succession import Succession
from actors.messages import AdoptChild, EndChild, ExecutionEnded, ProcessEnded, ProcessStarted, StartChild, StrayFound
from actors.model import Address, Isolation, PartKind
from actors.ports import ChildSpec
from supervisor.child_runs import ChildLinks
from supervisor.clock import SystemClock
from supervisor.executor import ThreadExecutor
from supervisor.strays.strays import Strays
from tests.process_kit import WAIT_S, bench


class Owner(Actor):
    """Keeps what it hears."""

    def __init__(self, heard: queue.SimpleQueue[Any], dispatcher: PooledDispatcher) -> None:
        super().__init__(dispatcher=dispatcher)
        self.heard = heard

    def on_receive(self, message: Any) -> None:
        self.heard.put((self.actor_ref, message))


class Owners:
    """Actors in the order in which they are made, each with all that they hear together."""

    def __init__(self, dispatcher: PooledDispatcher) -> None:
        self.heard: queue.SimpleQueue[tuple[ActorRef[Any], Any]] = queue.SimpleQueue()
        self.replaced, self.successor, self.child = [Owner.start(self.heard, dispatcher) for _ in range(3)]

    def try_all(self, adopt: Callable[..., object]) -> None:
        """The successor adopts, then what it has replaced does, which is in vain."""
        adopt(self.successor, anew=True)
        adopt(self.replaced, anew=False)
        adopt(self.replaced, anew=True)

    def wait(self, kind: type) -> ActorRef[Any]:
        """Return who hears the next message of a kind."""
        while True:
            who, message = self.heard.get(timeout=WAIT_S)
            if isinstance(message, kind):
                return who


@pytest.fixture
def owners() -> Iterator[Owners]:
    dispatcher = PooledDispatcher(size=2)
    made = Owners(dispatcher)
    yield made
    for ref in (made.replaced, made.successor, made.child):
        ref.stop()
    dispatcher.close(WAIT_S)


def test_until_an_actor_is_replaced_it_and_its_children_take_turns(owners: Owners) -> None:
    succession = Succession()
    for owner in (owners.replaced, owners.child, owners.replaced):
        assert succession.admits(owner, anew=False)
    assert succession.admits(owners.successor, anew=True)
    assert succession.admits(owners.child, anew=False)
    assert succession.admits(owners.successor, anew=False)
    assert not succession.admits(owners.replaced, anew=False)
    assert succession.admits(owners.child, anew=True)
    assert not succession.admits(owners.successor, anew=True)


def test_the_end_of_an_execution_goes_to_the_successor(owners: Owners) -> None:
    clock = SystemClock()
    executor = ThreadExecutor(clock, threads_max=3)
    finish: list[Callable[..., object]] = []
    try:
        executor.start("key", "x", Isolation.HOST, finish.append, owners.child)
        owners.try_all(lambda owner, anew: executor.adopt("key", owner, anew=anew))
        finish[0](None)
        assert owners.wait(ExecutionEnded) == owners.successor
        assert executor.adopt("key", owners.replaced), "it is known, though not to be had"
        assert executor.adopt("key", owners.child)
        assert owners.wait(ExecutionEnded) == owners.child
    finally:
        executor.close(WAIT_S)
        clock.close()


def test_the_end_of_a_tree_goes_to_the_successor(owners: Owners, tmp_path: Path) -> None:
    with bench(tmp_path) as opened:
        opened.owner = owners.child  # type: ignore[assignment]
        opened.run(("/bin/sleep", "1000"))
        assert owners.wait(ProcessStarted) == owners.child
        owners.try_all(lambda owner, anew: opened.trees.adopt("p", owner, "s", anew=anew))
        opened.trees.kill("p", 0.0)
        assert owners.wait(ProcessEnded) == owners.successor
        opened.trees.adopt("p", owners.replaced)
        opened.trees.adopt("p", owners.child)
        assert owners.wait(ProcessEnded) == owners.child


def test_the_end_of_a_tree_of_an_earlier_daemon_goes_to_the_successor(owners: Owners, tmp_path: Path) -> None:
    with bench(tmp_path) as opened:
        ledger = opened.state_dir / "wardens" / "p.ledger"
        ledger.parent.mkdir(exist_ok=True)
        with ledger.open("wb") as held:
            # The warden of the earlier daemon is at work: what it has proven is not known before it is done.
            fcntl.flock(held, fcntl.LOCK_EX)
            owners.try_all(lambda owner, anew: opened.trees.adopt("p", owner, "s", anew=anew))
            opened.settle()
            assert owners.heard.empty()
        assert owners.wait(ProcessEnded) == owners.successor


def test_what_a_run_has_left_is_named_to_the_successor(owners: Owners) -> None:
    clock, address = SystemClock(), Address("s", 1, "run_x")
    strays = Strays(clock)
    try:
        body = strays.within(address, Isolation.HOST, CancelToken(lambda callback: callback()), lambda finish: None)
        strays.adopt(address, owners.child)
        owners.try_all(lambda owner, anew: strays.adopt(address, owner, anew=anew))
        run = strays._run(address)
        strays._reports.found(run, StrayFound(address, "thread_x", PartKind.THREAD, "x", 1.0))
        assert owners.wait(StrayFound) == owners.successor
        assert callable(body)
    finally:
        strays.close()
        clock.close()


def test_the_end_of_a_child_run_goes_to_the_successor(owners: Owners) -> None:
    clock = SystemClock()
    links = ChildLinks(owners.replaced, clock)
    try:
        spec = ChildSpec("other", "go", "t", CancelToken(lambda callback: callback()))
        links.take(StartChild("run_x", spec, owners.child))
        owners.try_all(lambda owner, anew: links.take(AdoptChild("run_x", owner, "", anew)))
        assert links._linked["run_x"].owner == owners.successor
        links.take(AdoptChild("run_x", owners.child, "", False))
        assert links._linked["run_x"].owner == owners.child
        links.take(EndChild("run_x", 0.0))
    finally:
        clock.close()


def test_l14_what_has_ended_is_forgotten_but_what_is_open_or_was_when_that_was_decided() -> None:
    """An end that came since then may not be on record yet: if the store fails, it is asked for again."""
    forgotten: dict[str, tuple[str, Collection[str]]] = {}

    def port(name: str) -> SimpleNamespace:
        return SimpleNamespace(forget_ended=lambda session, but: forgotten.update({name: (session, but)}))

    names = ("executor", "processes", "strays")
    state = SimpleNamespace(open_parts=lambda: frozenset({"open"}), open_runs=lambda: frozenset({"run_open"}))
    incarnation = Incarnation.__new__(Incarnation)
    incarnation.session = "s"
    incarnation.protocol = cast("Any", SimpleNamespace(state=state))
    incarnation._ports = cast("Any", SimpleNamespace(**{name: port(name) for name in names}))
    incarnation.forget_ended({"was open"}, {"run_was_open"})
    assert forgotten == {
        "executor": ("s", {"open", "was open"}),
        "processes": ("s", {"open", "was open"}),
        "strays": ("s", {"run_open", "run_was_open"}),
    }
