"""The executor on real threads and a real loop: every way out is told, once, and nothing that blocks keeps others."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from pykka import ActorDeadError, ActorRef

from actors.errors import RunCancelled
from actors.gate.token import CancelToken
from actors.messages import ExecutionEnded
from actors.model import How, Isolation, Provenance
from supervisor.clock import SystemClock
from supervisor.executor import CALLBACK_THREADS_MAX, ThreadExecutor

WAIT_S = 10.0


class Owner:
    """Hears what is told to it; a dead one refuses as a dead actor does."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[ExecutionEnded] = queue.SimpleQueue()
        self.dead = False

    def tell(self, message: Any) -> None:
        if self.dead:
            raise ActorDeadError("gone")
        self.heard.put(message)

    @property
    def ref(self) -> ActorRef[Any]:
        return cast("ActorRef[Any]", self)

    def next(self) -> ExecutionEnded:
        return self.heard.get(timeout=WAIT_S)


@pytest.fixture
def executor() -> Iterator[ThreadExecutor]:
    clock = SystemClock()
    made = ThreadExecutor(clock, threads_max=3)
    try:
        yield made
    finally:
        made.close(WAIT_S)
        clock.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


async def returns() -> str:
    await asyncio.sleep(0)
    return "async"


def raises(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


def test_a_task_and_a_thread_tell_what_they_returned(executor: ThreadExecutor) -> None:
    owner = Owner()
    executor.start("a", "tool a", Isolation.TASK, returns, owner.ref)
    assert (owner.next().value, executor.leaked()) == ("async", [])
    executor.start("b", "tool b", Isolation.THREAD, lambda: threading.current_thread().name, owner.ref)
    assert owner.next().value == "countermand tool b"
    assert executor.leaked() == [], "whoever hears of the end finds the thread gone from the list"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        RunCancelled(Provenance(source="user.test", reason="enough")),
    ],
    ids=["error", "exit", "interrupt", "cancelled"],
)
def test_l13_whatever_a_function_raises_is_reported_and_ends_no_other(
    executor: ThreadExecutor, error: BaseException
) -> None:
    owner = Owner()

    async def coroutine() -> None:
        raise error

    executor.start("thread", "x", Isolation.THREAD, raises(error), owner.ref)
    executor.start("task", "y", Isolation.TASK, coroutine, owner.ref)
    ended = {message.key: message for message in (owner.next(), owner.next())}
    for message in ended.values():
        assert message.how is How.RAISED
        assert message.error is not None
        assert message.error.startswith(type(error).__name__)
    executor.start("after", "z", Isolation.TASK, returns, owner.ref)
    assert owner.next().value == "async"


def test_a_cancelled_task_ends_and_one_cancelled_before_its_first_line_never_runs_it(executor: ThreadExecutor) -> None:
    owner, began = Owner(), []

    async def forever() -> None:
        began.append(1)
        await asyncio.Event().wait()

    executor.start("long", "x", Isolation.TASK, forever, owner.ref)
    until(lambda: bool(began))
    executor.cancel("long")
    assert owner.next().how is How.RAISED
    hold = threading.Event()
    assert executor._loop is not None
    executor._loop.call_soon_threadsafe(hold.wait)
    executor.start("early", "x", Isolation.TASK, forever, owner.ref)
    executor.cancel("early")
    hold.set()
    ended = owner.next()
    assert (ended.key, ended.how, len(began)) == ("early", How.NOT_STARTED, 1)
    executor.cancel("nobody")


def test_l8_a_task_is_cancelled_once_by_all_halts_and_again_only_where_that_is_meant(
    executor: ThreadExecutor,
) -> None:
    owner, token, told = Owner(), CancelToken(executor.call), list[str]()
    gate, inside, go_on = threading.Event(), threading.Event(), threading.Event()

    async def cleans_up() -> None:
        try:
            inside.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("first")
        try:
            go_on.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("again")

    async def asks_its_token() -> None:
        inside.set()
        gate.wait()
        try:
            token.aio.raise_if_cancelled()
        except asyncio.CancelledError:
            told.append("door")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.append("undisturbed")

    async def never() -> None:
        told.append("a line of one whose end was decided before")

    executor.start("b", "x", Isolation.TASK, cleans_up, owner.ref)
    assert inside.wait(WAIT_S)
    for _ in range(3):
        executor.cancel("b")
    assert go_on.wait(WAIT_S)
    assert told == ["first"]
    executor.cancel("b", again_s=3600.0)
    assert go_on.wait(WAIT_S)
    assert told == ["first"], "it was told less than an hour ago"
    executor.cancel("b", again_s=0.0)
    assert owner.next().how is How.RETURNED
    inside.clear()
    executor.start("c", "x", Isolation.TASK, asks_its_token, owner.ref, token)
    assert inside.wait(WAIT_S)
    token.cancel(Provenance(source="user.test", reason="enough"))
    executor.cancel("c")
    gate.set()
    assert owner.next().how is How.RETURNED
    executor.start("d", "x", Isolation.TASK, never, owner.ref, token)
    assert owner.next().how is How.NOT_STARTED
    assert told == ["first", "again", "door", "undisturbed"]


def test_an_actor_that_adopts_gets_the_end_whenever_it_came_and_a_forgotten_execution_is_unknown(
    executor: ThreadExecutor,
) -> None:
    gone, heir = Owner(), Owner()
    gone.dead = True
    leave = threading.Event()
    executor.start("over", "x", Isolation.THREAD, lambda: "over", gone.ref)
    until(lambda: executor._executions["over"].ended is not None)
    assert executor.adopt("over", heir.ref)
    assert heir.next().value == "over"
    executor.start("under way", "x", Isolation.THREAD, lambda: leave.wait(WAIT_S), gone.ref)
    assert executor.adopt("under way", heir.ref)
    leave.set()
    assert heir.next().key == "under way"
    executor.forget("over")
    assert not executor.adopt("over", heir.ref)
    assert not executor.adopt("never there", heir.ref)


def test_l14_of_a_session_that_is_read_anew_no_end_is_kept_but_those_that_are_asked_for(
    executor: ThreadExecutor,
) -> None:
    owner, leave = Owner(), threading.Event()
    for key in ("over", "asked for", "unheard"):
        executor.start(key, "x", Isolation.TASK, returns, owner.ref, session="s")
        owner.next()
    executor.start("another's", "x", Isolation.TASK, returns, owner.ref, session="t")
    owner.next()
    for key in ("goes on", "is adopted"):
        executor.start(key, "x", Isolation.HOST, lambda finish: None, owner.ref, session="s")
    executor.start("leaves", "x", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref, session="s")
    executor.forget_ended("s", {"asked for"})
    assert set(executor._executions) == {"asked for", "another's", "goes on", "is adopted", "leaves"}
    assert executor.adopt("is adopted", owner.ref)
    for key in ("goes on", "is adopted"):
        executor._end(executor._executions[key], How.RETURNED, None, None)
        assert owner.next().key == key, "who has it hears of its end"
    leave.set()
    assert owner.next().key == "leaves"
    until(lambda: "leaves" not in executor._executions)
    assert set(executor._executions) == {"asked for", "another's", "is adopted"}
    executor.forget("is adopted")
    executor.forget_ended("s", ())
    executor.forget_ended("t", ())
    assert not executor._executions
    assert not executor._sessions._ids


def test_the_token_of_an_execution_is_there_until_it_is_forgotten_also_in_the_next_executor(
    executor: ThreadExecutor,
) -> None:
    owner, token, leave = Owner(), CancelToken(lambda callback: None), threading.Event()
    assert executor.token("x") is None
    executor.start("x", "x", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref, token)
    assert executor.token("x") is token
    clock = SystemClock()
    following = ThreadExecutor(clock)
    try:
        # The thread outlives the executor that started it.
        assert following.token("x") is token
    finally:
        following.close(WAIT_S)
        clock.close()
    leave.set()
    assert owner.next().key == "x"
    assert executor.token("x") is token, "its end may not be on record"
    executor.forget("x")
    until(lambda: executor.token("x") is None)


def test_l14_of_two_that_come_together_for_the_last_thread_one_gets_it(
    executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, leave = Owner(), threading.Event()
    for number in range(2):
        executor.start(f"t{number}", "deaf", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref)
    made = threading.Thread

    def at_the_same_time(*args: Any, **options: Any) -> threading.Thread:
        monkeypatch.setattr(threading, "Thread", made)
        executor.start("between", "deaf", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref)
        return made(*args, **options)

    monkeypatch.setattr(threading, "Thread", at_the_same_time)
    executor.start("last", "deaf", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref)
    refused = owner.next()
    assert (refused.key, refused.how) == ("last", How.NOT_STARTED)
    assert len(executor.leaked()) == 3
    leave.set()


def test_l14_one_thread_too_many_is_refused_with_the_reason(executor: ThreadExecutor) -> None:
    owner, leave = Owner(), threading.Event()
    for number in range(3):
        executor.start(f"t{number}", f"deaf {number}", Isolation.THREAD, lambda: leave.wait(WAIT_S), owner.ref)
    assert len(executor.leaked()) == 3
    executor.start("more", "x", Isolation.THREAD, lambda: "never", owner.ref)
    refused = owner.next()
    assert (refused.key, refused.how) == ("more", How.NOT_STARTED)
    assert "3 threads are busy" in (refused.error or "")
    leave.set()
    assert {owner.next().key for _ in range(3)} == {"t0", "t1", "t2"}


def test_l8_callbacks_that_block_keep_no_other_from_running_and_errors_end_in_them(executor: ThreadExecutor) -> None:
    leave, ran = threading.Event(), threading.Event()
    try:
        for _ in range(CALLBACK_THREADS_MAX // 2):
            executor.call(cast("Callable[[], None]", lambda: leave.wait(WAIT_S)))
        executor.call(raises(SystemExit(1)))
        executor.call(ran.set)
        assert ran.wait(WAIT_S)
    finally:
        leave.set()


def test_after_the_close_an_execution_ends_at_once_and_says_why() -> None:
    clock, owner = SystemClock(), Owner()
    closed = ThreadExecutor(clock)
    closed.start("a", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().value == "async"
    assert closed.close(WAIT_S)
    closed.start("b", "x", Isolation.THREAD, lambda: "never", owner.ref)
    assert owner.next().error == "the executor is closed"
    clock.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_l13_what_a_task_of_an_agents_own_raises_ends_neither_the_loop_nor_other_tasks(
    executor: ThreadExecutor, error: BaseException
) -> None:
    owner, began, go_on = Owner(), threading.Event(), asyncio.Event()

    async def innocent() -> str:
        began.set()
        await go_on.wait()
        return "innocent"

    async def boom() -> None:
        raise error

    async def gathers() -> None:
        await asyncio.gather(boom())

    async def leaves_it() -> None:
        asyncio.get_running_loop().create_task(boom())
        await asyncio.sleep(0.001)

    executor.start("innocent", "x", Isolation.TASK, innocent, owner.ref)
    assert began.wait(WAIT_S)
    executor.start("gathers", "x", Isolation.TASK, gathers, owner.ref)
    ended = owner.next()
    assert (ended.key, ended.how) == ("gathers", How.RAISED)
    executor.start("leaves", "x", Isolation.TASK, leaves_it, owner.ref)
    assert owner.next().key == "leaves"
    executor.start("after", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().value == "async"
    assert executor._loop is not None
    executor._loop.call_soon_threadsafe(go_on.set)
    assert owner.next().value == "innocent"


def test_l13_an_agent_that_stops_the_loop_stops_nothing(executor: ThreadExecutor) -> None:
    owner = Owner()

    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.001)
        return "went on"

    for key in ("a", "b"):
        executor.start(key, "x", Isolation.TASK, stops, owner.ref)
        assert owner.next().value == "went on"


def test_a_close_from_the_loop_itself_waits_for_everything_but_its_own_thread() -> None:
    clock, owner = SystemClock(), Owner()
    executor = ThreadExecutor(clock)

    async def closes() -> bool:
        return executor.close(WAIT_S)

    executor.start("a", "x", Isolation.TASK, closes, owner.ref)
    assert owner.next().value is False, "its own thread is left"
    assert executor.close(WAIT_S)
    clock.close()


def test_a_task_that_raises_while_the_loop_ends_keeps_no_other_from_its_end() -> None:
    clock, owner, began = SystemClock(), Owner(), threading.Semaphore(0)
    executor = ThreadExecutor(clock)

    async def leaves_with_an_exit() -> None:
        try:
            began.release()
            await asyncio.Event().wait()
        finally:
            raise SystemExit(4)

    async def both() -> None:
        await asyncio.gather(leaves_with_an_exit(), leaves_with_an_exit())

    executor.start("a", "x", Isolation.TASK, both, owner.ref)
    executor.start("b", "x", Isolation.TASK, both, owner.ref)
    for _ in range(4):
        assert began.acquire(timeout=WAIT_S)
    assert executor.close(WAIT_S)
    assert {owner.next().key, owner.next().key} == {"a", "b"}
    clock.close()


# ── No thread can be had for a moment ─────────────────────────────────────────────────────────────


@contextmanager
def no_threads() -> Iterator[None]:
    """As where a fork bomb has reached the limit of the user, or of the service."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        yield


def test_l13_where_no_thread_for_callbacks_can_be_had_the_next_one_starts_it(executor: ThreadExecutor) -> None:
    busy, go_on, ran = threading.Event(), threading.Event(), threading.Event()

    def blocks() -> None:
        busy.set()
        go_on.wait(WAIT_S)

    with no_threads():
        executor.call(blocks)
        assert busy.wait(WAIT_S), "the one that takes it does so all the same"
        until(lambda: executor._callbacks._short)
    executor.call(ran.set)
    assert ran.wait(WAIT_S), "another one runs beside it"
    go_on.set()


def test_l13_where_the_loop_has_no_thread_a_task_ends_with_the_reason_and_the_next_one_runs(
    executor: ThreadExecutor,
) -> None:
    owner = Owner()
    with no_threads():
        executor.start("a", "x", Isolation.TASK, returns, owner.ref)
    ended = owner.next()
    assert (ended.how, ended.error) == (How.NOT_STARTED, "no event loop could be started: can't start new thread")
    executor.start("b", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().value == "async"


def test_l13_an_error_that_cannot_be_said_does_not_end_the_loop(executor: ThreadExecutor) -> None:
    class Unsayable(SystemExit):
        def __str__(self) -> str:
            raise SystemExit(3)

    async def boom() -> None:
        raise Unsayable

    left: list[asyncio.Task[None]] = []

    async def leaves_it() -> None:
        left.append(asyncio.get_running_loop().create_task(boom()))
        await asyncio.sleep(0.001)

    owner = Owner()
    for key in ("a", "b"):
        executor.start(key, "x", Isolation.TASK, leaves_it, owner.ref)
        assert owner.next().key == key
    executor.start("after", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().value == "async"
    # Read here: else asyncio reports them when they are collected, wherever that is, and a traceback that is written
    # while other code is being parsed makes some versions of CPython raise SystemError there.
    assert [type(task.exception()) for task in left] == [Unsayable, Unsayable]


def test_a_thread_that_is_interrupted_inside_the_executor_may_ask_it_and_close_it(executor: ThreadExecutor) -> None:
    asked = list[object]()

    def handler() -> None:
        with executor._lock:
            asked.extend([executor.leaked(), executor.running(), executor.close(WAIT_S)])

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert asked == [[], [], True]


# ── Executed by somebody else ─────────────────────────────────────────────────────────────────────


def test_a_foreign_execution_ends_once_with_its_first_result_at_once_or_later(
    executor: ThreadExecutor,
) -> None:
    owner, ends = Owner(), list[Callable[[object], None]]()
    executor.start("at once", "host a", Isolation.HOST, lambda finish: finish("soon"), owner.ref)
    assert (owner.next().value, executor.leaked()) == ("soon", [])
    executor.start("later", "host b", Isolation.HOST, ends.append, owner.ref)
    thread = threading.Thread(target=lambda: ends[0]("late"), daemon=True)
    thread.start()
    ended = owner.next()
    assert (ended.key, ended.how, ended.value) == ("later", How.RETURNED, "late")
    ends[0]("again")
    executor.cancel("later")
    executor.start("after", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().key == "after", "nothing was told of the second end"


def test_l13_a_foreign_execution_that_cannot_be_started_ends_with_the_reason(executor: ThreadExecutor) -> None:
    owner = Owner()

    def says_it_and_raises(finish: Callable[[object], None]) -> None:
        finish("done")
        raise ValueError("too late")

    executor.start("a", "host a", Isolation.HOST, lambda finish: raises(SystemExit(3))(), owner.ref)
    ended = owner.next()
    assert (ended.how, ended.error) == (How.RAISED, "SystemExit: 3")
    executor.start("b", "host b", Isolation.HOST, says_it_and_raises, owner.ref)
    ended = owner.next()
    assert (ended.how, ended.value, ended.error) == (How.RETURNED, "done", None)


def test_l8_a_cancel_does_not_end_a_foreign_execution_nor_start_a_loop(executor: ThreadExecutor) -> None:
    owner, token, ends = Owner(), CancelToken(executor.call), list[Callable[[object], None]]()
    executor.start("a", "host a", Isolation.HOST, ends.append, owner.ref, token)
    assert executor._loop is None, "it needs no loop"
    executor.start("b", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().key == "b"
    token.cancel(Provenance(source="user.test", reason="enough"))
    executor.cancel("a")
    executor.cancel("a", again_s=0.0)
    executor.start("c", "x", Isolation.TASK, returns, owner.ref)
    assert owner.next().key == "c", "the cancels were handled before, and ended nothing"
    ends[0]("cleaned up")
    assert owner.next().value == "cleaned up"


def test_an_actor_that_adopts_gets_the_end_of_a_foreign_execution(executor: ThreadExecutor) -> None:
    gone, heir, ends = Owner(), Owner(), list[Callable[[object], None]]()
    gone.dead = True
    executor.start("over", "host a", Isolation.HOST, lambda finish: finish("over"), gone.ref)
    assert executor.adopt("over", heir.ref)
    assert heir.next().value == "over"
    executor.start("under way", "host b", Isolation.HOST, ends.append, gone.ref)
    assert executor.adopt("under way", heir.ref)
    ends[0]("later")
    assert heir.next().value == "later"


def test_after_the_close_no_foreign_execution_is_started() -> None:
    clock, owner, asked = SystemClock(), Owner(), list[object]()
    closed = ThreadExecutor(clock)
    assert closed.close(WAIT_S)
    closed.start("a", "host a", Isolation.HOST, asked.append, owner.ref)
    assert (owner.next().error, asked) == ("the executor is closed", [])
    clock.close()
