"""L8 Token: each run and each call has its own, there before its first line; a cancelled one stays so for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from actors import AsyncCancelToken, AsyncTurn, CancelToken, Provenance, RunCancelled, Turn, tool
from tests.kit import WAIT_S, Kit, check_rest, log, say, settled, stop, until


def test_l8_each_run_and_each_call_has_a_fresh_token_linked_to_the_run(kit: Kit) -> None:
    runs: list[CancelToken] = []
    calls: list[CancelToken] = []

    @tool(isolation="thread")
    def work(token: CancelToken) -> None:
        calls.append(token)
        token.wait()

    def agent(turn: Turn) -> None:
        runs.append(turn.cancel_token)
        turn.call("work")

    session = kit.session(agent, tools=[work])
    for number in range(3):
        say(session)
        until(lambda n=number: len(calls) == n + 1, "the call")  # type: ignore[misc]
        assert not runs[-1].cancelled
        assert not calls[-1].cancelled
        stop(session, f"reason {number}")
        settled(session)
    assert len({id(token) for token in runs + calls}) == 6
    for number, (run, call) in enumerate(zip(runs, calls, strict=True)):
        assert run.cancelled
        assert call.cancelled
        assert run.provenance is not None
        assert run.provenance.reason == f"reason {number}"
        assert call.provenance == run.provenance


def test_l8_every_method_of_a_turn_raises_each_time_after_a_cancel(kit: Kit) -> None:
    raised: list[RunCancelled] = []
    inside, over = threading.Event(), threading.Event()

    def agent(turn: Turn) -> None:
        inside.set()
        turn.cancel_token.wait()
        for _ in range(3):
            for method in (
                lambda: turn.emit("x"),
                lambda: turn.emit(""),
                lambda: turn.call("shell", script="true"),
                turn.steering,
                turn.typing,
                lambda: turn.progress(n=1),
                turn.cancel_token.raise_if_cancelled,
            ):
                try:
                    method()
                except RunCancelled as error:
                    raised.append(error)
        over.set()

    session = kit.session(agent)
    say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert over.wait(WAIT_S)
    assert len(raised) == 21
    assert {error.provenance.reason for error in raised} == {"enough"}
    check_rest(session)


def test_l8_an_async_turn_is_as_level_triggered(kit: Kit) -> None:
    raised: list[RunCancelled] = []
    inside, over = threading.Event(), threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await turn.cancel_token.wait()
        for _ in range(3):
            for method in (
                lambda: turn.emit("x"),
                lambda: turn.emit(""),
                lambda: turn.call("shell", script="true"),
                turn.steering,
                turn.typing,
                lambda: turn.progress(n=1),
            ):
                try:
                    await method()
                except RunCancelled as error:
                    raised.append(error)
        over.set()

    session = kit.session(agent)
    say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert over.wait(WAIT_S)
    assert len(raised) == 18


def test_l8_a_blocked_call_is_woken_by_the_cancel(kit: Kit) -> None:
    caught: list[RunCancelled] = []
    gate = kit.gate()
    inside = threading.Event()

    @tool(isolation="thread")
    def deaf() -> None:
        inside.set()
        gate.wait()

    def agent(turn: Turn) -> None:
        try:
            turn.call("deaf")
        except RunCancelled as error:
            caught.append(error)
            raise

    session = kit.session(agent, tools=[deaf], kill_s=30.0)
    say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    until(lambda: caught, "the agent wakes while its tool is still deaf")
    assert not gate.is_set()
    gate.set()
    settled(session)


def test_l8_an_agent_that_was_stopped_before_its_first_line_can_say_and_do_nothing(kit: Kit) -> None:
    passed: list[str] = []

    def agent(turn: Turn) -> None:
        # A plain function that was stopped in time runs on; the first thing that it asks of its turn ends it.
        cancelled = turn.cancel_token.cancelled
        turn.typing()
        if cancelled:
            passed.append(turn.address.run)
        turn.cancel_token.wait()

    session = kit.session(agent)
    for _ in range(50):
        say(session)
        stop(session)
    check_rest(session)
    assert passed == []
    assert all(run.status == "cancelled" for run in session.runs())


def test_l8_callbacks_run_elsewhere_and_their_errors_are_contained(kit: Kit) -> None:
    threads: dict[str, str] = {}
    called = threading.Event()
    ready = threading.Event()

    def agent(turn: Turn) -> None:
        def fails() -> None:
            threads["fails"] = threading.current_thread().name
            raise SystemExit("a callback")

        def works() -> None:
            threads["works"] = threading.current_thread().name
            called.set()

        turn.cancel_token.add_callback(fails)
        turn.cancel_token.add_callback(works)
        threads["agent"] = threading.current_thread().name
        ready.set()
        turn.cancel_token.wait()

    session = kit.session(agent)
    run_id = say(session)
    assert ready.wait(WAIT_S)
    stop(session)
    assert called.wait(WAIT_S)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert threads["works"] != threads["agent"]
    assert "countermand-callbacks" in threads["works"]
    assert say(session) != run_id
    stop(session)
    settled(session)


def test_l8_a_callback_that_blocks_holds_up_no_stop(kit: Kit) -> None:
    gate = kit.gate()
    ready = threading.Event()

    def agent(turn: Turn) -> None:
        for _ in range(100):
            turn.cancel_token.add_callback(gate.wait)  # type: ignore[arg-type]
        ready.set()
        turn.cancel_token.wait()

    session = kit.session(agent)
    for _ in range(2):
        ready.clear()
        run_id = say(session)
        assert ready.wait(WAIT_S)
        stop(session)
        assert session.receipt(run_id, timeout=WAIT_S).complete
    gate.set()


def test_l8_callbacks_that_block_for_ever_hold_up_no_stop_of_another_session(kit: Kit) -> None:
    gate, ready = kit.gate(), threading.Semaphore(0)

    @tool(isolation="thread")
    def waits(token: CancelToken) -> str:
        ready.release()
        token.wait()
        return "woken"

    def agent(turn: Turn) -> None:
        for _ in range(100):
            turn.cancel_token.add_callback(gate.wait)  # type: ignore[arg-type]
        turn.call("waits")

    supervisor = kit.start(agent, tools=[waits])
    for name in ("a", "b"):
        session = supervisor.session(name)
        run_id = say(session)
        assert ready.acquire(timeout=WAIT_S)
        stop(session)
        assert session.receipt(run_id, timeout=WAIT_S).complete
        settled(session)


def test_l8_a_callback_added_after_the_cancel_runs_and_one_taken_back_does_not(kit: Kit) -> None:
    tokens: list[CancelToken] = []
    calls: list[str] = []

    def agent(turn: Turn) -> None:
        tokens.append(turn.cancel_token)
        turn.cancel_token.add_callback(lambda: calls.append("taken back"))()
        turn.cancel_token.wait()

    session = kit.session(agent)
    say(session)
    until(lambda: tokens)
    stop(session)
    tokens[0].add_callback(lambda: calls.append("late"))
    until(lambda: "late" in calls)
    assert calls == ["late"]
    assert not tokens[0].cancel(Provenance(source="user.other", reason="again"))
    assert tokens[0].provenance is not None
    assert tokens[0].provenance.source == "user.test"


def test_l8_an_async_tool_is_told_too(kit: Kit) -> None:
    seen: list[Provenance | None] = []
    inside = threading.Event()

    @tool(isolation="task")
    async def work(token: AsyncCancelToken) -> None:
        inside.set()
        try:
            await token.wait()
        finally:
            seen.append(token.provenance)

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("work")

    session = kit.session(agent, tools=[work])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert [provenance.reason for provenance in seen if provenance] == ["enough"]


def test_l8_waiting_on_a_token_ends_at_its_timeout_or_its_cancel(kit: Kit) -> None:
    got: list[bool] = []

    def agent(turn: Turn) -> None:
        got.append(turn.cancel_token.wait(0.001))
        turn.emit("waiting")
        got.append(turn.cancel_token.wait(WAIT_S))
        got.append(turn.cancel_token.wait(0))

    session = kit.session(agent)
    run_id = say(session)
    until(lambda: any(event.kind == "text" for event in log(session)))
    stop(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert got == [False, True, True]


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_l8_after_its_runs_end_a_token_is_cancelled_with_that_cause(kit: Kit, end: str) -> None:
    tokens: list[CancelToken] = []

    def agent(turn: Turn) -> None:
        tokens.append(turn.cancel_token)
        if end == "raises":
            raise ValueError("no")

    session = kit.session(agent)
    session.receipt(say(session), timeout=WAIT_S)
    assert tokens[0].cancelled
    assert tokens[0].provenance is not None
    assert tokens[0].provenance.source == "run.ended"
