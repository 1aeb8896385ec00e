"""Cells and tokens by themselves: who wins, and that what was cancelled stays so (laws L2 and L8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import BlockingAskError, Invalid, RunCancelled
from actors.gate.cell import Cell, CellState
from actors.gate.credit import Credit
from actors.gate.pending import Pending
from actors.gate.token import CALLBACKS_MAX, CancelToken
from actors.kernel.thread_role import HANDLING, serve_all
from actors.model import Provenance

STOPPED = Provenance(source="user.test", reason="enough")
LATER = Provenance(source="client.test", reason="again")


def inline(callback: Callable[[], None]) -> None:
    callback()


def elsewhere(callback: Callable[[], None]) -> None:
    threading.Thread(target=callback).start()


@given(st.lists(st.sampled_from(["start", "finish", "close"]), max_size=6))
def test_l2_a_cell_starts_once_finishes_once_and_never_after_it_was_closed(moves: list[str]) -> None:
    cell: Cell[str] = Cell()
    started = finished = closed = False
    for move in moves:
        if move == "start":
            assert cell.start() is (not started and not closed)
            started = started or not closed
        elif move == "finish":
            assert cell.finish("result") is (started and not finished and not closed)
            finished = finished or (started and not closed)
        else:
            state, result = cell.close()
            expected = CellState.FINISHED if finished else CellState.CLOSED if started else CellState.VOID
            assert (state, result) == (expected, "result" if finished else None)
            closed = True


def test_l2_of_a_start_and_a_close_that_race_exactly_one_wins_and_both_can_read_which() -> None:
    for _ in range(500):
        cell: Cell[str] = Cell()
        gate = threading.Barrier(2)
        won: list[bool] = []

        def start(cell: Cell[str] = cell, gate: threading.Barrier = gate, won: list[bool] = won) -> None:
            gate.wait(10)
            won.append(cell.start())

        thread = threading.Thread(target=start)
        thread.start()
        gate.wait(10)
        state, _ = cell.close()
        thread.join()
        assert won == [state is CellState.CLOSED]


def test_l2_a_late_finish_changes_neither_state_nor_result() -> None:
    cell: Cell[str] = Cell()
    assert cell.start()
    assert cell.close() == (CellState.CLOSED, None)
    assert not cell.finish("late")
    assert cell.close() == (CellState.CLOSED, None)
    assert cell.state is CellState.CLOSED


def test_l2_only_what_has_not_begun_is_voided_and_one_that_has_may_still_finish() -> None:
    waits: Cell[str] = Cell()
    assert waits.void()
    assert waits.void()
    assert not waits.start()
    begun: Cell[str] = Cell()
    assert begun.start()
    assert not begun.void()
    assert begun.state is CellState.STARTED
    assert begun.finish("done")
    assert not begun.void()
    assert begun.close() == (CellState.FINISHED, "done")


def test_l8_the_first_cause_stands_and_a_cancelled_token_raises_each_time() -> None:
    token = CancelToken(inline)
    token.raise_if_cancelled()
    assert not token.cancelled
    assert token.provenance is None
    assert token.cancel(STOPPED)
    assert not token.cancel(LATER)
    for _ in range(3):
        with pytest.raises(RunCancelled) as raised:
            token.raise_if_cancelled()
        assert raised.value.provenance == STOPPED
    assert token.cancelled
    assert token.provenance == STOPPED
    assert token.wait(0)


def test_l8_a_linked_token_is_cancelled_with_its_parent_and_born_cancelled_after_it() -> None:
    parent = CancelToken(inline)
    before, loose = CancelToken(inline, parent), CancelToken(inline, parent)
    below = CancelToken(inline, before)
    loose.detach()
    parent.cancel(STOPPED)
    after = CancelToken(inline, parent)
    assert before.provenance == below.provenance == after.provenance == STOPPED
    assert not loose.cancelled, "what it guards has ended: it is nobody's child any more"


def test_l8_cancelling_a_child_leaves_its_parent_alone() -> None:
    parent = CancelToken(inline)
    child = CancelToken(inline, parent)
    child.cancel(STOPPED)
    assert not parent.cancelled


def test_l8_callbacks_run_once_where_the_token_says_and_can_be_removed() -> None:
    ran: list[str] = []
    handed: list[Callable[[], None]] = []
    token = CancelToken(handed.append)
    token.add_callback(lambda: ran.append("kept"))
    token.add_callback(lambda: ran.append("taken back"))()
    token.cancel(STOPPED)
    assert not ran, "cancelling runs no foreign code"
    token.add_callback(lambda: ran.append("late"))
    for callback in handed:
        callback()
    assert ran == ["kept", "late"]


def test_l8_a_waiting_thread_is_woken_and_one_that_gives_up_learns_that_it_was_not() -> None:
    token = CancelToken(inline)
    assert token.wait(0) is False
    woken: list[bool] = []
    waiting = threading.Thread(target=lambda: woken.append(token.wait(10)))
    waiting.start()
    token.cancel(STOPPED)
    waiting.join(10)
    assert woken == [True]


def test_l8_async_code_waits_without_blocking_the_loop() -> None:
    async def scene() -> None:
        token = CancelToken(elsewhere)
        assert await token.aio.wait(0.001) is False
        waiting = asyncio.create_task(token.aio.wait(10))
        await asyncio.sleep(0)
        token.cancel(STOPPED)
        assert await waiting is True
        assert await token.aio.wait() is True
        with pytest.raises(asyncio.CancelledError) as raised:
            token.aio.raise_if_cancelled()
        assert type(raised.value) is asyncio.CancelledError
        assert vars(raised.value) == {"provenance": STOPPED}
        assert token.aio.cancelled
        assert token.aio.provenance == STOPPED

    asyncio.run(scene())


def never(callback: Callable[[], None]) -> None:
    """An executor whose threads are all blocked by others' callbacks."""


def test_l8_a_waiter_is_woken_by_the_cancel_itself_though_no_callback_can_run() -> None:
    async def scene() -> None:
        token = CancelToken(never)
        pending = Pending(token)
        futures = [pending.future(), pending.future()]
        waiting = [
            asyncio.create_task(token.aio.wait(10)),
            asyncio.create_task(pending.wait_async(futures[0])),
        ]
        await asyncio.sleep(0)
        token.add_callback(lambda: pytest.fail("foreign code ran in the cancel"))
        token.cancel(STOPPED)
        for future in (*futures, pending.future()):
            assert isinstance(future.exception(0), RunCancelled)
        assert await waiting[0] is True
        with pytest.raises(RunCancelled):
            await waiting[1]

    asyncio.run(scene())


def test_l8_a_waker_runs_once_in_the_cancel_or_at_once_after_it_and_can_be_taken_back() -> None:
    token, woken = CancelToken(never), list[str]()

    def broken() -> None:
        raise RuntimeError("such as a loop that is closed")

    token.add_waker(broken)
    token.add_waker(lambda: woken.append("kept"))
    token.add_waker(lambda: woken.append("taken back"))()
    token.cancel(STOPPED)
    assert woken == ["kept"]
    token.add_waker(broken)()
    token.add_waker(lambda: woken.append("late"))
    assert woken == ["kept", "late"]


def test_l14_one_callback_too_many_on_a_token_is_refused_and_one_taken_back_makes_room() -> None:
    token = CancelToken(never)
    take_back = [token.add_callback(lambda: None) for _ in range(CALLBACKS_MAX)]
    with pytest.raises(Invalid):
        token.add_callback(lambda: None)
    for _ in range(2):
        # Again is harmless, and makes no more room.
        take_back[0]()
    token.aio.add_callback(lambda: None)
    token.cancel(STOPPED)
    take_back[1]()
    with pytest.raises(Invalid):
        token.add_callback(lambda: None)


# ── Threads that others wait for, and the garbage collector ───────────────────────────────────────


def test_l7_nothing_waits_on_a_thread_that_serves_all_sessions() -> None:
    pending = Pending(CancelToken(never))
    open_one, done = pending.future(), pending.future()
    done.set_result("there")

    def serves() -> tuple[object, object]:
        serve_all()
        with pytest.raises(BlockingAskError, match="serves all"):
            pending.wait(open_one, None)
        return pending.wait(done, None), HANDLING.active

    assert beside(serves) == ("there", True)
    assert HANDLING.active is False, "another thread is another thread"


def test_l14_a_future_that_is_awaited_again_and_again_keeps_nothing() -> None:
    async def scene() -> None:
        pending = Pending(CancelToken(never))
        future = pending.future()
        callbacks = future.__dict__["_done_callbacks"]
        before = len(callbacks)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pending.wait_async(future), 0.0001)
        assert len(callbacks) <= before + 1
        waiting = [asyncio.create_task(pending.wait_async(future)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        future.set_result("there")
        assert await asyncio.gather(*waiting[1:]) == ["there", "there"]
        assert await pending.wait_async(future) == "there"
        assert not pending._awaited

    asyncio.run(scene())


def test_l1_what_a_token_is_asked_for_while_this_thread_has_its_lock_is_done() -> None:
    token = CancelToken(inline)
    pending, credit, ran = Pending(token), Credit(1, 10), list[str]()

    def closed_by_the_collector() -> list[str]:
        with token._lock, pending._lock, credit._lock:
            token.add_callback(lambda: ran.append("taken back"))()
            token.add_callback(lambda: ran.append("called"))
            token.wait(0)
            pending.future()
            assert credit.take(1) is None
            credit.give(1)
            assert token.cancel(STOPPED)
        return ran

    assert beside(closed_by_the_collector) == ["called"]


T = TypeVar("T")


def beside(work: Callable[[], T]) -> T:
    """Do it on a thread of its own, which a deadlock does not keep us from failing."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "it hangs, or it has raised"
    return results[0]
