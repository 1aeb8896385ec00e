"""The base of the actors: a Pykka actor that on every way out answers everybody and tells its parent.

The file has over 600 lines, and is whole: all ends of one class, with the actors that show them.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar, TypeVar

import pykka
import pytest
from msgspec import Struct
from pykka import ActorDeadError, ActorRef, ActorRegistry
from pykka._envelope import Envelope

from actors.dead_letters import DeadLetters
from actors.errors import BlockingAskError, Invalid, InvalidTransition, QueueFull, RunCancelled
from actors.kernel import actor as actor_module
from actors.kernel.actor import Actor, StopFlag
from actors.kernel.dispatcher import PooledDispatcher, StepDispatcher
from actors.kernel.down import Down
from actors.kernel.future import ReplyFuture
from actors.kernel.thread_role import HANDLING
from actors.model import Provenance
from actors.requests import NewMessage

DEADLINE_S = 20.0
A = TypeVar("A", bound=Actor)
CANCELLED = RunCancelled(Provenance(source="user.test", reason="enough"))


class Do(Struct, frozen=True):
    """A protocol message: the actor runs the function with itself."""

    what: Callable[[Any], Any]


class Watch(Struct, frozen=True):
    """Asks a parent for the Downs it has seen once there are `count` of them."""

    count: int


class Worker(Actor):
    """Runs what it is sent, and notes which hooks ran."""

    def __init__(self, hooks: list[str] | None = None, fail_in: str = "", **options: Any) -> None:
        if fail_in == "__init__":
            raise ValueError("no actor")
        super().__init__(**options)
        self.hooks = [] if hooks is None else hooks
        self.fail_in = fail_in
        self.field = 1

    def _hook(self, name: str) -> None:
        self.hooks.append(name)
        if name == self.fail_in:
            raise ValueError(f"broken {name}")

    def on_start(self) -> None:
        self._hook("on_start")

    def on_stop(self) -> None:
        self._hook("on_stop")

    def on_failure(self, *_: Any) -> None:
        self._hook("on_failure")

    def on_turn_end(self) -> None:
        if self.fail_in == "on_turn_end":
            self._hook("on_turn_end")

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Do):
            return message.what(self)
        return message(self) if callable(message) else message

    def add(self, left: int, right: int) -> int:
        return left + right


class Parent(Worker):
    """Collects Downs and answers who waits for them. `at_down` is what was in `children` then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.downs: list[Down] = []
        self.got: list[Any] = []
        self.at_down: list[list[str]] = []
        self.watcher: tuple[int, ReplyFuture[Any]] | None = None

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Down):
            self.downs.append(message)
            self.got.append(message)
            self.at_down.append(list(self.children))
        elif isinstance(message, Watch):
            reply = self.take_reply()
            assert reply is not None
            self.watcher = message.count, reply
        elif isinstance(message, str):
            self.got.append(message)
        else:
            return super().on_receive(message)
        if self.watcher is not None and len(self.downs) >= self.watcher[0]:
            self.watcher[1].try_set(list(self.downs))
        return None


def raiser(error: BaseException) -> Callable[[Any], Any]:
    def fail(actor: Any) -> Any:
        raise error

    return fail


@pytest.fixture
def pool() -> Iterator[PooledDispatcher]:
    before = set(ActorRegistry.get_all())
    dispatcher = PooledDispatcher(size=2)
    yield dispatcher
    for ref in ActorRegistry.get_all():
        if ref not in before:
            ref.stop(block=False)
    assert dispatcher.close(timeout=DEADLINE_S)
    assert set(ActorRegistry.get_all()) <= before


@pytest.fixture
def step() -> Iterator[StepDispatcher]:
    before = set(ActorRegistry.get_all())
    dispatcher = StepDispatcher(seed=5)
    yield dispatcher
    for ref in ActorRegistry.get_all():
        if ref not in before:
            ref.stop(block=False)
    dispatcher.run_until_idle()
    dispatcher.close()
    assert set(ActorRegistry.get_all()) <= before


def until(condition: Callable[[], bool]) -> bool:
    """Poll until the condition holds; False if it does not within the deadline."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.001) for _ in range(int(DEADLINE_S * 1000)))


def object_of(ref: ActorRef[Any]) -> Any:
    actor = ref._actor_weakref()
    assert actor is not None
    return actor


def ask(ref: ActorRef[Any], message: Any) -> Any:
    """Ask and wait; Pykka types the answer as "or a future", which it is not."""
    return ref.ask(message, block=True, timeout=DEADLINE_S)


def pending(ref: ActorRef[Any], message: Any) -> ReplyFuture[Any]:
    """Ask without waiting."""
    future = ref.ask(message, block=False)
    assert isinstance(future, ReplyFuture)
    return future


def start_under(parent: ActorRef[Any], cls: type[A], key: str, **options: Any) -> ActorRef[A]:
    """Have `parent` start a child."""
    ref: ActorRef[A] = ask(parent, lambda actor: actor.start_child(cls, key=key, **options))
    return ref


def child_of(parent: ActorRef[Any], key: str = "child", **options: Any) -> ActorRef[Worker]:
    return start_under(parent, Worker, key, **options)


def downs_of(parent: ActorRef[Parent], count: int = 1) -> list[Down]:
    downs: list[Down] = ask(parent, Watch(count))
    return downs


# ── A Pykka citizen ──────────────────────────────────────────────────────────────────────────────


def test_tell_ask_proxies_hooks_and_the_registry_work_as_in_pykka(pool: PooledDispatcher) -> None:
    hooks: list[str] = []
    ref = Worker.start(hooks, dispatcher=pool)
    assert ref in ActorRegistry.get_all()
    assert ActorRegistry.get_by_urn(ref.actor_urn) is ref
    assert ref.ask("echo", timeout=DEADLINE_S) == "echo"
    proxy: Any = ref.proxy()
    assert proxy.add(2, 3).get(timeout=DEADLINE_S) == 5
    proxy.field = 8
    assert proxy.field.get(timeout=DEADLINE_S) == 8
    assert ref.is_alive()
    assert ref.stop(timeout=DEADLINE_S) is True
    assert not ref.is_alive()
    assert ref.stop(timeout=DEADLINE_S) is False
    assert hooks == ["on_start", "on_stop"]
    assert ref not in ActorRegistry.get_all()
    with pytest.raises(ActorDeadError):
        ref.tell("late")
    with pytest.raises(ActorDeadError):
        ref.ask("late")


def test_stop_all_stops_ours_and_stock_actors_together(pool: PooledDispatcher) -> None:
    class Stock(pykka.ThreadingActor):
        pass

    refs: list[ActorRef[Any]] = [Worker.start(dispatcher=pool), Stock.start(), Worker.start(dispatcher=pool)]
    assert ActorRegistry.stop_all(timeout=DEADLINE_S)[:3] == [True, True, True]
    assert not any(ref.is_alive() for ref in refs)


def test_an_actor_can_stop_itself_and_its_urn_is_its_own(pool: PooledDispatcher) -> None:
    refs = [Worker.start(dispatcher=pool) for _ in range(100)]
    assert len({ref.actor_urn for ref in refs}) == 100
    refs[0].tell(lambda actor: actor.stop())
    assert refs[0].actor_stopped.wait(DEADLINE_S)
    assert refs[1].is_alive()


def test_the_stop_flag_wakes_all_waiters_and_stays_set() -> None:
    flag = StopFlag()
    assert not flag.is_set()
    assert not flag.wait(0)
    woken: queue.SimpleQueue[bool] = queue.SimpleQueue()
    waiters = [threading.Thread(target=lambda: woken.put(flag.wait(DEADLINE_S))) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    flag.set()
    for waiter in waiters:
        waiter.join()
    assert [woken.get(), woken.get()] == [True, True]
    assert flag.is_set()
    assert flag.wait()
    flag.set()
    assert flag.is_set()


def test_a_dead_actor_is_freed_without_the_garbage_collector_though_its_ref_is_kept(
    step: StepDispatcher,
) -> None:
    ref = Worker.start(dispatcher=step)
    step.run_until_idle()
    gc.collect()
    gc.disable()
    try:
        ref.stop(block=False)
        step.run_until_idle()
        assert ref._actor_weakref() is None
    finally:
        gc.enable()


# ── Exceptions ───────────────────────────────────────────────────────────────────────────────────


def test_plain_messages_keep_pykkas_rule_for_exceptions(pool: PooledDispatcher) -> None:
    hooks: list[str] = []
    ref = Worker.start(hooks, dispatcher=pool)
    with pytest.raises(KeyError):
        ref.ask(raiser(KeyError("asked")), timeout=DEADLINE_S)
    assert ref.ask("alive", timeout=DEADLINE_S) == "alive"
    ref.tell(raiser(KeyError("told")))
    assert ref.actor_stopped.wait(DEADLINE_S)
    assert until(lambda: hooks == ["on_start", "on_failure"]), "the flag is set before the hook runs"


def test_a_protocol_message_that_raises_fails_the_actor_also_when_it_was_asked(
    pool: PooledDispatcher,
) -> None:
    ref = Worker.start(dispatcher=pool)
    with pytest.raises(KeyError):
        ref.ask(Do(raiser(KeyError("x"))), timeout=DEADLINE_S)
    assert not ref.is_alive(), "the asker is answered when all else is done"


def test_a_refusal_goes_to_the_asker_and_the_actor_lives(pool: PooledDispatcher) -> None:
    ref = Worker.start(dispatcher=pool)
    refusal = Do(raiser(Invalid("no")))
    with pytest.raises(Invalid):
        ref.ask(refusal, timeout=DEADLINE_S)
    ref.tell(refusal)
    assert ref.ask("alive", timeout=DEADLINE_S) == "alive"


def test_a_refusal_reaches_the_asker_although_the_handler_took_the_reply(pool: PooledDispatcher) -> None:
    def take_and_refuse(actor: Worker) -> None:
        actor.take_reply()
        raise Invalid("no")

    ref = Worker.start(dispatcher=pool)
    with pytest.raises(Invalid):
        ref.ask(Do(take_and_refuse), timeout=DEADLINE_S)
    assert ref.ask("alive", timeout=DEADLINE_S) == "alive"


@pytest.mark.parametrize("error", [BlockingAskError("x"), InvalidTransition("x")])
def test_a_defect_of_a_handler_is_no_refusal(pool: PooledDispatcher, error: Exception) -> None:
    ref = Worker.start(dispatcher=pool)
    with pytest.raises(type(error)):
        ref.ask(Do(raiser(error)), timeout=DEADLINE_S)
    assert not ref.is_alive()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), CANCELLED])
@pytest.mark.parametrize("protocol", [True, False])
def test_l13_a_base_exception_fails_its_actor_alone_and_the_asker_gets_actor_dead(
    pool: PooledDispatcher, error: BaseException, protocol: bool
) -> None:
    ref, other = Worker.start(dispatcher=pool), Worker.start(dispatcher=pool)
    fail = raiser(error)
    with pytest.raises(ActorDeadError) as raised:
        ref.ask(Do(fail) if protocol else fail, timeout=DEADLINE_S)
    assert raised.value.__cause__ is error
    assert not ref.is_alive()
    assert other.ask("alive", timeout=DEADLINE_S) == "alive"


# ── Down ─────────────────────────────────────────────────────────────────────────────────────────

WAYS_OUT: list[tuple[str, Any, str | None]] = [
    ("", "stop", None),
    ("on_start", None, "ValueError: broken on_start"),
    ("on_stop", "stop", "ValueError: broken on_stop"),
    ("on_failure", Do(raiser(KeyError("k"))), "KeyError: 'k'"),
    ("on_turn_end", None, "ValueError: broken on_turn_end"),
    ("", Do(raiser(KeyError("k"))), "KeyError: 'k'"),
    ("", raiser(OSError("told")), "OSError: told"),
    ("", Do(raiser(SystemExit(2))), "SystemExit: 2"),
    ("", Do(raiser(KeyboardInterrupt())), "KeyboardInterrupt: "),
    ("", Do(raiser(CANCELLED)), "RunCancelled: cancelled by user.test: enough"),
    ("", raiser(GeneratorExit()), "GeneratorExit: "),
]


@pytest.mark.parametrize(("fail_in", "message", "failure"), WAYS_OUT)
def test_the_parent_gets_down_once_on_every_way_out_and_last_of_all(
    pool: PooledDispatcher, fail_in: str, message: Any, failure: str | None
) -> None:
    parent = Parent.start(dispatcher=pool)
    child = child_of(parent, fail_in=fail_in)
    if message == "stop":
        child.tell(lambda actor: actor.parent.tell("said before"))
        child.ask("handled", timeout=DEADLINE_S)
        child.stop(block=False)
    elif message is not None:
        child.tell(lambda actor: actor.parent.tell("said before"))
        child.tell(message)
    downs = downs_of(parent)
    assert [(down.child, down.key, down.failure) for down in downs] == [(child, "child", failure)]
    assert not child.is_alive()
    seen = object_of(parent).got
    assert parent.stop(timeout=DEADLINE_S)
    if message is not None:
        assert seen[0] == "said before"
    assert seen[-1] is downs[0]
    assert sum(isinstance(message, Down) for message in seen) == 1


def test_down_comes_after_everything_that_the_child_sent(step: StepDispatcher) -> None:
    parent = Parent.start(dispatcher=step)
    parent.tell(lambda actor: actor.start_child(Worker, key="c"))
    step.run_until_idle()
    actor = object_of(parent)

    def chatter(child: Worker) -> None:
        for number in range(50):
            assert child.parent is not None
            child.parent.tell(f"word {number}")
        raise SystemExit

    actor.children["c"].tell(Do(chatter))
    step.run_until_idle()
    assert actor.got[:-1] == [f"word {number}" for number in range(50)]
    assert isinstance(actor.got[-1], Down)
    assert len(actor.downs) == 1


def test_the_child_is_gone_from_children_before_down_is_handled_and_its_key_is_free(
    pool: PooledDispatcher,
) -> None:
    parent = Parent.start(dispatcher=pool)
    first = child_of(parent, "a")
    child_of(parent, "b")
    with pytest.raises(ValueError, match="child 'a' already"):
        child_of(parent, "a")
    first.stop(timeout=DEADLINE_S)
    assert len(downs_of(parent)) == 1
    assert object_of(parent).at_down == [["b"]]
    assert child_of(parent, "a").is_alive()


def test_a_constructor_that_raises_is_the_parents_and_leaves_no_child(pool: PooledDispatcher) -> None:
    parent = Parent.start(dispatcher=pool)
    with pytest.raises(ValueError, match="no actor"):
        child_of(parent, fail_in="__init__")
    assert parent.ask(lambda actor: dict(actor.children), timeout=DEADLINE_S) == {}


@pytest.mark.parametrize("message", [None, Do(raiser(KeyError("k"))), Do(raiser(SystemExit()))])
def test_an_end_reaches_all_below_and_each_parent_hears_of_its_own(pool: PooledDispatcher, message: Any) -> None:
    top = Parent.start(dispatcher=pool)
    middle = start_under(top, Parent, "middle")
    leaves = [child_of(middle, f"leaf {number}") for number in range(5)]
    if message is None:
        middle.stop(block=False)
    else:
        middle.tell(message)
    assert [down.key for down in downs_of(top)] == ["middle"]
    assert all(leaf.actor_stopped.wait(DEADLINE_S) for leaf in leaves)


def test_a_parent_that_is_dead_does_not_keep_its_child_from_ending(pool: PooledDispatcher) -> None:
    parent = Parent.start(dispatcher=pool)
    orphan = Worker.start(dispatcher=pool, parent=parent, key="not in children")
    parent.stop(timeout=DEADLINE_S)
    assert orphan.stop(timeout=DEADLINE_S) is True


def test_children_that_on_stop_handed_over_live_on(pool: PooledDispatcher) -> None:
    class Giver(Parent):
        def on_stop(self) -> None:
            self.children.pop("kept")

    parent = Giver.start(dispatcher=pool)
    kept, lost = child_of(parent, "kept"), child_of(parent, "lost")
    parent.stop(timeout=DEADLINE_S)
    assert lost.actor_stopped.wait(DEADLINE_S)
    assert kept.ask("alive", timeout=DEADLINE_S) == "alive"


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def test_a_taken_reply_is_the_answer_and_the_handlers_return_value_is_not(pool: PooledDispatcher) -> None:
    taken: queue.SimpleQueue[ReplyFuture[Any]] = queue.SimpleQueue()

    def take(actor: Worker) -> str:
        reply = actor.take_reply()
        assert reply is not None
        assert actor.take_reply() is None, "it can be taken once"
        taken.put(reply)
        return "not this"

    ref = Worker.start(dispatcher=pool)
    future = pending(ref, Do(take))
    reply = taken.get(timeout=DEADLINE_S)
    assert ref.ask("between", timeout=DEADLINE_S) == "between"
    assert not future.done()
    assert reply.try_set("this")
    assert future.get(timeout=DEADLINE_S) == "this"


def test_a_told_message_has_no_reply_to_take(pool: PooledDispatcher) -> None:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    Worker.start(dispatcher=pool).tell(Do(lambda actor: found.put(actor.take_reply())))
    assert found.get(timeout=DEADLINE_S) is None


@pytest.mark.parametrize("message", [None, Do(raiser(KeyError("k"))), Do(raiser(SystemExit()))])
def test_a_taken_reply_is_failed_on_any_way_out_and_a_late_set_is_harmless(
    pool: PooledDispatcher, message: Any
) -> None:
    taken: queue.SimpleQueue[ReplyFuture[Any]] = queue.SimpleQueue()
    ref = Worker.start(dispatcher=pool)
    future = ref.ask(Do(lambda actor: taken.put(actor.take_reply())), block=False)
    reply = taken.get(timeout=DEADLINE_S)
    if message is None:
        ref.stop(block=False)
    else:
        ref.tell(message)
    with pytest.raises(ActorDeadError):
        future.get(timeout=DEADLINE_S)
    reply.set("too late")
    assert not reply.try_set("too late")
    assert not reply.try_set_exception(ValueError("too late"))
    with pytest.raises(ActorDeadError):
        future.get(timeout=0)


def test_taken_replies_are_failed_in_an_order_that_does_not_depend_on_addresses(step: StepDispatcher) -> None:
    """The order decides what runs next: under a seed it must be the same in every process."""
    asked: list[ReplyFuture[Any]] = []
    failed: list[ReplyFuture[Any]] = []
    ref = Worker.start(dispatcher=step)
    for _ in range(50):
        future = ref.ask(Do(lambda actor: actor.take_reply()), block=False)
        assert isinstance(future, ReplyFuture)
        future.add_done_callback(failed.append)
        asked.append(future)
    step.run_until_idle()
    ref.stop(block=False)
    step.run_until_idle()
    assert failed == asked[::-1]


def test_taken_replies_are_forgotten_once_they_are_resolved(step: StepDispatcher) -> None:
    ref = Worker.start(dispatcher=step)

    def take(actor: Worker) -> None:
        reply = actor.take_reply()
        assert reply is not None
        reply.try_set(1)

    message = Do(take)
    gc.collect()
    before = gc_count(ReplyFuture)
    for _ in range(5000):
        ref.ask(message, block=False)
        step.run_until_idle()
    assert len(object_of(ref)._taken) == 0
    assert gc_count(ReplyFuture) <= before, "without the garbage collector: no cycle holds them"


def gc_count(cls: type) -> int:
    return sum(type(thing) is cls for thing in gc.get_objects())


def test_a_thousand_asks_that_race_a_stop_each_get_an_answer_or_actor_dead(
    pool: PooledDispatcher,
) -> None:
    outcomes = {"answered": 0, "dead": 0}
    for _ in range(20):
        ref = Worker.start(dispatcher=pool)
        go = threading.Barrier(3)
        futures: list[list[Any]] = [[], []]

        def send(mine: list[Any], ref: ActorRef[Worker] = ref, go: threading.Barrier = go) -> None:
            go.wait()
            mine.extend(ref.ask(Do(lambda actor: "answer"), block=False) for _ in range(25))
            mine.extend(ref.ask("plain", block=False) for _ in range(25))

        senders = [threading.Thread(target=send, args=(mine,)) for mine in futures]
        for sender in senders:
            sender.start()
        go.wait()
        ref.stop(block=False)
        for sender in senders:
            sender.join()
        for future in (*futures[0], *futures[1]):
            try:
                assert future.get(timeout=DEADLINE_S) in ("answer", "plain")
                outcomes["answered"] += 1
            except ActorDeadError:
                outcomes["dead"] += 1
    assert sum(outcomes.values()) == 2000


def test_what_is_left_in_the_closed_mailbox_goes_to_hand_back_and_can_be_answered_by_another(
    step: StepDispatcher,
) -> None:
    heir = Worker.start(dispatcher=step)

    class Leaving(Worker):
        def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
            for envelope in envelopes:
                heir.actor_inbox.put(envelope)

    ref = Leaving.start(dispatcher=step)
    step.run_until_idle()
    future = ref.ask("for the heir", block=False)
    stops = [ref.stop(block=False), ref.stop(block=False)]
    step.run_until_idle()
    assert future.get(timeout=0) == "for the heir"
    assert [stop.get(timeout=0) for stop in stops] == [True, True]
    assert heir.is_alive(), "a stop is for the one that it was sent to"


def test_a_hand_back_that_raises_still_leaves_no_ask_hanging(step: StepDispatcher) -> None:
    class Broken(Worker):
        def hand_back(self, envelopes: list[Envelope[Any]]) -> None:
            raise SystemExit("broken")

    parent = Parent.start(dispatcher=step)
    ref = Broken.start(dispatcher=step, parent=parent, key="b")
    future = ref.ask("left", block=False)
    ref.stop(block=False)
    step.run_until_idle()
    with pytest.raises(ActorDeadError):
        future.get(timeout=0)
    assert [down.failure for down in object_of(parent).downs] == ["SystemExit: broken"]


def test_tells_that_come_after_the_close_or_find_it_full_go_to_on_undelivered(step: StepDispatcher) -> None:
    missed: list[Any] = []

    class Losing(Worker):
        def on_undelivered(self, envelope: Envelope[Any]) -> None:
            missed.append(envelope.message)

        def on_stop(self) -> None:
            self.actor_inbox.put(Envelope("during the end"))

    ref = Losing.start(dispatcher=step, requests_max=1)
    first, second = NewMessage(content="a"), NewMessage(content="b")
    ref.tell(first)
    ref.tell(second)
    with pytest.raises(QueueFull):
        ref.ask(second, block=False).get(timeout=0)
    ref.tell("left behind")
    ref.stop(block=False)
    step.run_until_idle()
    ref.actor_inbox.put(Envelope("after the end"))
    assert missed == [second, "during the end", "left behind", "after the end"]


def test_a_stop_overtakes_a_hundred_thousand_ordinary_messages(step: StepDispatcher) -> None:
    handled: list[int] = []
    ref = Worker.start(dispatcher=step)
    step.run_until_idle()
    for number in range(100_000):
        ref.tell(number)
    ref.tell(Do(lambda actor: handled.append(1)))
    stopped = ref.stop(block=False)
    assert step.run_until_idle() == 1
    assert stopped.get(timeout=0) is True
    assert handled == []


# ── Turns ────────────────────────────────────────────────────────────────────────────────────────


def test_on_turn_end_runs_after_each_batch_and_not_after_the_end() -> None:
    class Flushing(Worker):
        def on_receive(self, message: Any) -> Any:
            self.hooks.append("message")
            return super().on_receive(message)

        def on_turn_end(self) -> None:
            self.hooks.append("flush")

    dispatcher, hooks = StepDispatcher(1), list[str]()
    ref = Flushing.start(hooks, dispatcher=dispatcher)
    ref.tell("a")
    ref.tell("b")
    dispatcher.run_until_idle()
    ref.stop(block=False)
    dispatcher.run_until_idle()
    assert hooks == ["on_start", "flush", "message", "flush", "message", "flush", "on_stop"]


def test_an_actor_halted_before_it_started_starts_and_then_handles_the_urgent_message_first(
    step: StepDispatcher,
) -> None:
    class UrgentNote(Struct, frozen=True):
        urgent: ClassVar[bool] = True

    order: list[Any] = []

    class Born(Worker):
        def on_receive(self, message: Any) -> Any:
            order.append(message)

    hooks: list[str] = []
    ref = Born.start(hooks, dispatcher=step)
    ref.tell("ordinary")
    ref.tell(UrgentNote())
    step.run_until_idle()
    assert hooks == ["on_start"]
    assert order == [UrgentNote(), "ordinary"]


# ── Reply futures ────────────────────────────────────────────────────────────────────────────────


def blocking_ways(other: ActorRef[Any]) -> list[Callable[[Any], Any]]:
    return [
        lambda actor: other.ask("x"),
        lambda actor: other.ask("x", timeout=0.01),
        lambda actor: other.stop(),
        lambda actor: other.ask("x", block=False).map(str).get(),
        lambda actor: actor.actor_ref.ask("myself"),
        lambda actor: other.proxy().field.get(),
    ]


@pytest.mark.parametrize("way", range(6))
def test_waiting_for_a_pending_reply_in_a_handler_raises_there(pool: PooledDispatcher, way: int) -> None:
    never = StepDispatcher(1)
    other = Worker.start(dispatcher=never)

    def handler(actor: Worker) -> str:
        try:
            blocking_ways(other)[way](actor)
        except BlockingAskError as error:
            return error.code
        return "it blocked"

    ref = Worker.start(dispatcher=pool)
    assert ref.ask(Do(handler), timeout=DEADLINE_S) == "blocking_ask"
    assert not HANDLING.active
    other.stop(block=False)
    never.run_until_idle()
    never.close()


def test_the_seeded_dispatcher_refuses_the_same_and_a_resolved_reply_may_be_read(
    step: StepDispatcher,
) -> None:
    ref, other = Worker.start(dispatcher=step), Worker.start(dispatcher=step)
    done = other.ask("value", block=False)
    step.run_until_idle()
    read = ref.ask(Do(lambda actor: done.get()), block=False)
    blocked = ref.ask(lambda actor: other.ask("x"), block=False)
    step.run_until_idle()
    assert read.get(timeout=0) == "value"
    with pytest.raises(BlockingAskError):
        blocked.get(timeout=0)


def test_a_derived_future_that_another_thread_waits_on_does_not_block_a_handler(
    pool: PooledDispatcher,
) -> None:
    never = StepDispatcher(1)
    stopping = Worker.start(dispatcher=never).stop(block=False)
    waiter = threading.Thread(target=lambda: stopping.get(timeout=DEADLINE_S))
    waiter.start()
    ref = Worker.start(dispatcher=pool)
    with pytest.raises(BlockingAskError):
        ref.ask(lambda actor: stopping.get(), timeout=DEADLINE_S)
    never.run_until_idle()
    waiter.join()
    assert stopping.get(timeout=0) is True
    assert isinstance(stopping, ReplyFuture)
    assert stopping.done()


def test_a_callback_runs_once_when_the_reply_is_done_or_at_once() -> None:
    future: ReplyFuture[int] = ReplyFuture()
    seen: list[tuple[str, Any, int]] = []

    def note(name: str) -> Callable[[ReplyFuture[int]], None]:
        return lambda done: seen.append((name, done.get(timeout=0), threading.get_ident()))

    future.add_done_callback(note("early"))
    assert not future.done()
    setter = threading.Thread(target=future.set, args=(5,))
    setter.start()
    setter.join()
    future.add_done_callback(note("late"))
    assert [(name, value) for name, value, _ in seen] == [("early", 5), ("late", 5)]
    assert seen[0][2] == setter.ident
    assert seen[1][2] == threading.get_ident()


def test_what_a_callback_raises_reaches_neither_the_setter_nor_the_other_callbacks() -> None:
    future: ReplyFuture[int] = ReplyFuture()
    seen: list[int] = []
    future.add_done_callback(raiser(SystemExit("broken")))
    future.add_done_callback(lambda done: seen.append(done.get()))
    assert future.try_set(3)
    assert seen == [3]


def test_a_derived_future_takes_no_callback() -> None:
    future: ReplyFuture[int] = ReplyFuture()
    derived: Any = future.map(str)
    with pytest.raises(Invalid):
        derived.add_done_callback(print)


def test_a_second_set_raises_as_pykkas_does_unless_a_teardown_came_first() -> None:
    future: ReplyFuture[int] = ReplyFuture()
    future.set(1)
    with pytest.raises(queue.Full):
        future.set(2)
    with pytest.raises(queue.Full):
        future.set_exception((ValueError, ValueError("x"), None))
    assert not future.try_set(2)
    assert future.get() == 1
    abandoned: ReplyFuture[int] = ReplyFuture()
    assert abandoned.abandon(ActorDeadError("gone"))
    abandoned.set(1)
    abandoned.set_exception((ValueError, ValueError("x"), None))
    with pytest.raises(ActorDeadError):
        abandoned.get()


def test_of_two_that_resolve_at_once_exactly_one_is_first() -> None:
    for _ in range(200):
        future: ReplyFuture[int] = ReplyFuture()
        go = threading.Barrier(2)
        first: list[bool] = []

        def resolve(
            value: int,
            future: ReplyFuture[int] = future,
            go: threading.Barrier = go,
            first: list[bool] = first,
        ) -> None:
            go.wait()
            first.append(future.try_set(value))

        threads = [threading.Thread(target=resolve, args=(value,)) for value in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(first) == [False, True]


# ── Who waits for a reply may be stopped anywhere ─────────────────────────────────────────────────


class StoppedAt:
    """Someone who does something with a reply, and is stopped at one line of its code: as by a signal's handler."""

    def __init__(self, line: int, work: Callable[[], object]) -> None:
        self.line = line
        self.reached = False
        self.there, self.go_on = threading.Event(), threading.Event()
        self.work = work
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        assert self.there.wait(DEADLINE_S)

    def run(self) -> None:
        sys.settrace(self.trace)
        try:
            self.work()
        except pykka.Timeout:
            # It had looked before.
            return
        finally:
            sys.settrace(None)
            self.there.set()

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith("actors/kernel/future.py"):
            return None
        if event == "line":
            self.line -= 1
            if self.line == 0:
                self.reached = True
                self.there.set()
                assert self.go_on.wait(DEADLINE_S)
        return self.trace


@pytest.mark.parametrize("asks", ["get", "add_done_callback"])
def test_l7_resolving_a_reply_waits_for_no_other_thread_wherever_that_is_paused(asks: str) -> None:
    for line in range(1, 200):
        future: ReplyFuture[str] = ReplyFuture()
        ran = threading.Event()

        def work(future: ReplyFuture[str] = future, ran: threading.Event = ran) -> None:
            if asks == "get":
                assert future.get(timeout=0) == "there"
            else:
                future.add_done_callback(lambda _: ran.set())

        stopped = StoppedAt(line, work)
        setter = threading.Thread(target=future.try_set, args=("there",), daemon=True)
        setter.start()
        setter.join(DEADLINE_S)
        assert not setter.is_alive(), f"it waits for one that is stopped at line {line}"
        assert future.get(timeout=DEADLINE_S) == "there"
        stopped.go_on.set()
        stopped.thread.join(DEADLINE_S)
        assert asks == "get" or ran.is_set(), f"the callback of one that was stopped at line {line} does not run"
        if not stopped.reached:
            assert line > 3
            return
    pytest.fail("it has more lines than are tried")


def test_one_result_counts_of_many_hands_and_each_callback_runs_once() -> None:
    for _ in range(200):
        future: ReplyFuture[int] = ReplyFuture()
        ran, won = list[int](), list[int]()
        ready = threading.Barrier(6)

        def sets(
            number: int, future: ReplyFuture[int] = future, won: list[int] = won, ready: threading.Barrier = ready
        ) -> None:
            ready.wait(DEADLINE_S)
            if future.try_set(number):
                won.append(number)

        def adds(
            number: int, future: ReplyFuture[int] = future, ran: list[int] = ran, ready: threading.Barrier = ready
        ) -> None:
            ready.wait(DEADLINE_S)
            future.add_done_callback(lambda _: ran.append(number))

        threads = [threading.Thread(target=one, args=(number,)) for one in (sets, adds) for number in range(3)]
        for thread in threads:
            thread.start()
        value = future.get(timeout=DEADLINE_S)
        for thread in threads:
            thread.join(DEADLINE_S)
        assert won == [value]
        assert sorted(ran) == [0, 1, 2]


def test_a_thread_that_is_interrupted_under_a_small_lock_may_take_it_again() -> None:
    flag, letters, done = StopFlag(), DeadLetters(), threading.Event()

    def handler() -> None:
        with actor_module._waiting, letters._lock:
            letters.add("text", "late", None, 1.0)
            if not flag.wait(0) and len(letters.recent()) == 1 and letters.counts() == {"text": 1}:
                flag.set()
        if flag.wait(0):
            done.set()

    threading.Thread(target=handler, daemon=True).start()
    assert done.wait(DEADLINE_S)
