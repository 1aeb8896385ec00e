"""L8 Token: each run and each call has its own, there before its first line; a cancelled one stays so for ever.

The file has over 600 lines, and is whole: one law, for plain and for async code.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from actors import AsyncCancelToken, AsyncSpawn, AsyncTurn, CancelToken, Provenance, RunCancelled, Turn, tool
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
    raised: list[asyncio.CancelledError] = []
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
                except asyncio.CancelledError as error:
                    raised.append(error)
        over.set()

    session = kit.session(agent)
    say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert over.wait(WAIT_S)
    assert [type(error) for error in raised] == [asyncio.CancelledError] * 18
    assert {vars(error)["provenance"].reason for error in raised} == {"enough"}


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
        turn.cancel_token.add_callback(lambda: calls.append("taken back"))()
        tokens.append(turn.cancel_token)
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


def test_l8_an_async_tool_is_cancelled_too(kit: Kit) -> None:
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


# ── An end is told once ───────────────────────────────────────────────────────────────────────────────


class Told:
    """What a piece of async code saw of its end: each exception, the one that it ended by and those in its clean-up."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.inside, self.done = threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def cleans_up(self) -> AsyncIterator[None]:
        """Have a clean-up of many awaits behind the block."""
        try:
            self.inside.set()
            yield
        except BaseException as error:
            self.errors.append(error)
            try:
                for _ in range(20):
                    await asyncio.sleep(0)
            except BaseException as second:
                self.errors.append(second)
            self.done.set()
            raise

    def check(self, reason: str = "enough", *, door: bool = False) -> None:
        """It was told once, by the class itself; by a door: with the provenance."""
        assert self.done.wait(WAIT_S)
        assert [type(error) for error in self.errors] == [asyncio.CancelledError]
        if door:
            assert vars(self.errors[0])["provenance"].reason == reason


async def waits_in_a_call(turn: AsyncTurn) -> None:
    await turn.call("forever")


async def waits_for_credit(turn: AsyncTurn) -> None:
    while True:
        await turn.emit("x" * 1000)


async def waits_elsewhere(turn: AsyncTurn) -> None:
    await asyncio.Event().wait()


async def waits_on_the_token(turn: AsyncTurn) -> None:
    await turn.cancel_token.wait()


async def waits_in_a_group(turn: AsyncTurn) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(turn.call("forever"))
        group.create_task(turn.call("forever"))
        group.create_task(asyncio.sleep(60))


async def calls_in_the_body_of_a_group(turn: AsyncTurn) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(turn.call("forever"))
        await turn.call("forever")


async def gathers(turn: AsyncTurn) -> None:
    await asyncio.gather(turn.call("forever"), turn.call("forever"))


async def has_a_time_limit(turn: AsyncTurn) -> None:
    async with asyncio.timeout(600):
        await turn.call("forever")


async def asks_all_the_time(turn: AsyncTurn) -> None:
    while True:
        await turn.typing()
        await asyncio.sleep(0)


@tool(isolation="task")
async def forever() -> None:
    """Wait."""
    await asyncio.Event().wait()


SHAPES = [
    waits_in_a_call,
    waits_for_credit,
    waits_elsewhere,
    waits_on_the_token,
    waits_in_a_group,
    calls_in_the_body_of_a_group,
    gathers,
    has_a_time_limit,
    asks_all_the_time,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_l8_an_async_agent_is_cancelled_once_by_cancelled_error_itself(
    kit: Kit, shape: Callable[[AsyncTurn], Awaitable[None]]
) -> None:
    told: dict[str, Told] = {}
    by: list[Provenance | None] = []

    async def agent(turn: AsyncTurn) -> None:
        mine = told.setdefault(turn.address.run, Told())
        by.append(turn.cancelled_by)
        try:
            async with mine.cleans_up():
                await shape(turn)
        finally:
            by.append(turn.cancelled_by)

    session = kit.session(agent, tools=[forever])
    for _ in range(5):
        run_id = say(session)
        until(lambda: run_id in told and told[run_id].inside.is_set(), "the agent runs")  # noqa: B023
        stop(session, "enough")
        told[run_id].check()
        settled(session)
        assert session.run(run_id).status == "cancelled"
        assert session.receipt(run_id).complete
    assert [None if one is None else one.reason for one in by] == [None, "enough"] * 5


def test_l8_a_method_of_the_turn_that_raises_first_is_the_only_one_that_cancels(kit: Kit) -> None:
    told, gate = Told(), kit.gate()

    async def agent(turn: AsyncTurn) -> None:
        async with told.cleans_up():
            # The loop is kept, so that the cancel of the task cannot come before this asks.
            gate.wait()
            assert turn.cancelled_by is not None
            await turn.typing()

    session = kit.session(agent)
    run_id = say(session)
    assert told.inside.wait(WAIT_S)
    stop(session, "enough")
    gate.set()
    told.check(door=True)
    assert session.receipt(run_id, timeout=WAIT_S).complete


@pytest.mark.parametrize("way", ["token", "spawn", "process", "hand over", "elsewhere"])
def test_l8_a_task_tool_is_cancelled_once_by_cancelled_error_itself(kit: Kit, way: str) -> None:
    told, gate = Told(), kit.gate()

    @tool(isolation="task")
    async def work(token: AsyncCancelToken, spawn: AsyncSpawn) -> None:
        process = await spawn(["sleep", "60"])
        async with told.cleans_up():
            if way == "elsewhere":
                await asyncio.Event().wait()
            if way == "process":
                await process.wait()
            gate.wait()
            if way == "token":
                token.raise_if_cancelled()
            elif way == "spawn":
                await spawn(["true"])
            else:
                await process.hand_over()

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("work")

    session = kit.session(agent, tools=[work])
    run_id = say(session)
    assert told.inside.wait(WAIT_S)
    stop(session, "enough")
    gate.set()
    told.check(door=way != "elsewhere")
    assert session.receipt(run_id, timeout=WAIT_S).complete


def test_l8_a_clean_up_that_takes_longer_than_the_grace_is_not_cut(kit: Kit) -> None:
    told: dict[str, Told] = {"agent": Told(), "call": Told()}

    async def beyond_the_grace(who: Told) -> None:
        async with who.cleans_up():
            try:
                await asyncio.Event().wait()
            finally:
                # It dies of the SIGKILL at the end of the grace, and not before.
                while kit.alive():  # noqa: ASYNC110  # there is no event for the death of a process of another's
                    await asyncio.sleep(0.01)

    @tool(isolation="task")
    async def work(spawn: AsyncSpawn) -> None:
        await spawn(["sh", "-c", kit.script("trap '' TERM; echo ready; while :; do sleep 0.1; done")])
        await beyond_the_grace(told["call"])

    async def agent(turn: AsyncTurn) -> None:
        call = asyncio.create_task(turn.call("work"))
        await beyond_the_grace(told["agent"])
        await call

    session = kit.session(agent, tools=[work], grace_s=0.3, kill_s=60.0)
    run_id = say(session)
    assert told["call"].inside.wait(WAIT_S)
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "the process ignores SIGTERM")
    stop(session, "enough")
    for who in told.values():
        who.check()
    assert session.receipt(run_id, timeout=WAIT_S).complete


def test_l8_a_task_of_the_agents_own_is_cancelled_too_and_a_time_limit_is_no_cancel(kit: Kit) -> None:
    other, seen, inside = Told(), list[object](), threading.Event()

    async def calls(turn: AsyncTurn) -> None:
        async with other.cleans_up():
            await turn.call("forever")

    async def agent(turn: AsyncTurn) -> None:
        left = asyncio.create_task(calls(turn))
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append(turn.cancelled_by)
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.wait([left])
            seen.append(left.cancelled())

    session = kit.session(agent, tools=[forever])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    assert other.inside.wait(WAIT_S)
    stop(session, "enough")
    other.check(door=True)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert seen == [None, True]


def test_l8_what_plain_code_raises_comes_out_of_a_thread_as_a_cancellation(kit: Kit) -> None:
    seen: list[object] = []
    inside = threading.Event()

    def agent(turn: Turn) -> None:
        async def in_a_loop_of_its_own() -> None:
            calls = asyncio.create_task(asyncio.to_thread(turn.call, "forever"))
            inside.set()
            await asyncio.wait([calls])
            seen.append(calls.cancelled())
            try:
                turn.emit("x")
            except Exception as error:  # what a framework does
                seen.append(error)

        try:
            asyncio.run(in_a_loop_of_its_own())
        except RunCancelled as error:
            seen.extend((error.provenance, turn.cancelled_by))
            raise

    session = kit.session(agent, tools=[forever])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert session.receipt(run_id, timeout=WAIT_S).complete
    provenance = session.run(run_id).provenance
    assert provenance is not None
    assert seen == [True, provenance, provenance]


def test_l8_the_token_of_a_plain_tool_is_cancelled_when_its_call_is_given_up_and_the_run_continues(kit: Kit) -> None:
    told: list[RunCancelled] = []
    over = threading.Event()

    limits: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []

    @tool(isolation="thread")
    def work(token: CancelToken) -> None:
        for loop, limit in limits:
            # It has begun: the time is over now.
            loop.call_soon_threadsafe(limit.reschedule, 0.0)
        token.wait()
        try:
            token.raise_if_cancelled()
        except RunCancelled as error:
            told.append(error)
            raise
        finally:
            over.set()

    async def agent(turn: AsyncTurn) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append((asyncio.get_running_loop(), limit))
                await turn.call("work")
        except TimeoutError:
            outcomes = [str(message.outcome) for message in turn.messages if message.role == "tool"]
            await turn.emit(f"without it: {outcomes}")
        return "done"

    session = kit.session(agent, tools=[work])
    run_id = say(session)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert over.wait(WAIT_S)
    run = session.run(run_id)
    assert (run.status, run.result) == ("completed", "done")
    assert [error.provenance.source for error in told] == ["call.given_up"]
    assert [one.role for one in session.thread()] == ["user", "assistant", "tool", "assistant"]
    assert session.thread()[-1].content in ("without it: ['interrupted']", "without it: ['not_started']")


@pytest.mark.parametrize("says", [False, True], ids=["waits", "emits"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9])
def test_l8_a_task_in_nested_groups_is_cancelled_once_and_its_clean_up_is_not_cut(
    kit: Kit, depth: int, says: bool
) -> None:
    """The groups pass the cancel of the agent's task on, a level at a time; a door could be ahead of them."""
    told: list[str] = []
    inside = threading.Event()

    @tool(isolation="task")
    async def forever() -> None:
        inside.set()
        await asyncio.Event().wait()

    async def leaf(turn: AsyncTurn) -> None:
        try:
            if not says:
                await turn.call("forever")
            while True:
                await turn.typing()
                inside.set()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            told.append("once")
            for _ in range(200):
                await asyncio.sleep(0)
            told.append("undisturbed")
            raise

    async def nested(turn: AsyncTurn, levels: int) -> None:
        if not levels:
            await leaf(turn)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(nested(turn, levels - 1))

    async def agent(turn: AsyncTurn) -> None:
        await nested(turn, depth)

    session = kit.session(agent, tools=[forever])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session, "enough")
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert told == ["once", "undisturbed"]
