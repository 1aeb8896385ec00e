"""L7 Terminal: each run reaches exactly one terminal status in bounded time, and never leaves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors import AsyncTurn, CancelToken, How, RunCancelled, RunStatus, Turn, tool
from actors.errors import InvalidTransition
from actors.run_status import TERMINAL, TRANSITIONS, transition
from tests.kit import WAIT_S, Kit, check_rest, log, rows, say, settled, stop, until


@pytest.mark.parametrize("old", list(RunStatus))
@pytest.mark.parametrize("new", list(RunStatus))
def test_l7_a_status_moves_only_as_the_table_says(old: RunStatus, new: RunStatus) -> None:
    if new in TRANSITIONS[old]:
        assert transition(old, new) is new
    else:
        with pytest.raises(InvalidTransition):
            transition(old, new)
    if old in TERMINAL:
        assert not TRANSITIONS[old]


Agent = Callable[[Turn], Any]


def never_looks(gate: threading.Event) -> Agent:
    return lambda turn: gate.wait()


def swallows_run_cancelled(gate: threading.Event) -> Agent:
    def agent(turn: Turn) -> None:
        while not gate.is_set():
            try:
                turn.emit("x")
            except RunCancelled:
                gate.wait(0.01)

    return agent


@pytest.mark.parametrize("make", [never_looks, swallows_run_cancelled])
def test_l7_an_agent_that_does_not_end_is_named_abandoned_and_its_end_amends_the_receipt(
    kit: Kit, make: Callable[[threading.Event], Agent]
) -> None:
    gate = kit.gate()
    session = kit.session(make(gate), grace_s=0.05, kill_s=0.2)
    run_id = say(session)
    until(lambda: kit.supervisor is not None and kit.supervisor.busy_threads(), "the agent runs")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert not receipt.complete
    assert [(row.kind, row.how) for row in receipt.rows] == [("agent", How.ABANDONED)]
    assert session.run(run_id).status is RunStatus.CANCELLED
    assert kit.supervisor is not None
    assert kit.supervisor.busy_threads()
    gate.set()
    until(lambda: any(event.kind == "receipt.amended" for event in log(session)), "the amendment")
    amended = session.receipt(run_id)
    assert amended.complete
    assert amended.receipt_id == receipt.receipt_id
    assert [row.how for row in amended.rows] == [How.RETURNED]
    events = check_rest(session)
    statuses = [e.data["status"] for e in events if e.kind == "run.status"]
    assert statuses == ["cancelling", "cancelled"]


def test_l7_an_async_agent_that_swallows_its_cancel_is_bounded_by_the_kill_deadline(kit: Kit) -> None:
    inside = threading.Event()

    async def swallows_async(turn: AsyncTurn) -> None:
        inside.set()
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    session = kit.session(swallows_async, grace_s=0.05, kill_s=0.2)
    run_id = say(session)
    # Before its first line a cancel ends it for good; after it, it is left running and named.
    assert inside.wait(WAIT_S)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.CANCELLED
    assert [(row.kind, row.how) for row in receipt.rows] == [("agent", How.ABANDONED)]
    second = say(session, "next")
    stop(session)
    session.receipt(second, timeout=WAIT_S)
    settled(session)


@pytest.mark.parametrize("where", ["agent", "call"])
def test_l7_async_code_that_swallows_its_cancel_is_cancelled_again_once_it_is_named_abandoned(
    kit: Kit, where: str
) -> None:
    inside, swallowed = threading.Event(), threading.Event()

    async def swallows_one() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
            await asyncio.Event().wait()

    @tool(isolation="task")
    async def work() -> None:
        await swallows_one()

    async def agent(turn: AsyncTurn) -> None:
        await (swallows_one() if where == "agent" else turn.call("work"))

    session = kit.session(agent, tools=[work], grace_s=0.05, kill_s=0.2)
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    assert swallowed.wait(WAIT_S)
    until(lambda: any(event.kind == "receipt.amended" for event in log(session)), "it is cancelled again")
    first = next(event for event in log(session) if event.kind == "run.ended")
    assert not first.data["receipt"]["complete"]
    assert session.receipt(run_id).complete


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no"), "failed"), (SystemExit(1), "failed"), (KeyboardInterrupt(), "failed"), (None, "completed")],
)
def test_l7_a_natural_end_is_one_terminal_status_and_one_receipt(kit: Kit, error: Any, status: str) -> None:
    def agent(turn: Turn) -> dict[str, int]:
        if error is not None:
            raise error
        return {"answer": 42}

    session = kit.session(agent)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    run = session.run(run_id)
    assert run.status == status
    assert run.ended_at is not None
    if error is None:
        assert run.result == {"answer": 42}
    else:
        assert type(error).__name__ in (run.error or "")
    check_rest(session)


def test_l7_a_run_that_ends_as_it_is_stopped_has_one_status(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        turn.emit("x")

    session = kit.session(agent)
    seen = set()
    for _ in range(100):
        run_id = say(session)
        stopped = stop(session)
        seen.add(stopped.outcome)
        receipt = session.receipt(run_id, timeout=WAIT_S)
        status = session.run(run_id).status
        assert status is (RunStatus.CANCELLED if stopped.run_id == run_id else RunStatus.COMPLETED)
        assert (receipt.provenance is None) == (status is RunStatus.COMPLETED)
    check_rest(session)


def test_l7_a_run_is_not_found_in_progress_after_its_actor_died(kit: Kit) -> None:
    from pykka import ActorRegistry

    from actors import RunActor

    session = kit.session(lambda turn: turn.cancel_token.wait())
    for _ in range(5):
        run_id = say(session)
        until(lambda: ActorRegistry.get_by_class(RunActor), "the run's actor")
        for ref in ActorRegistry.get_by_class(RunActor):
            ref.stop()
        session.receipt(run_id, timeout=WAIT_S)
        assert session.run(run_id).status is RunStatus.FAILED
    check_rest(session)


def test_l7_a_tool_that_never_looks_ends_neither_the_bound_nor_the_next_run(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    @tool(isolation="thread")
    def deaf() -> str:
        inside.set()
        gate.wait()
        return "late"

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "deaf":
            turn.call("deaf")
        turn.emit("fine")

    session = kit.session(agent, tools=[deaf], grace_s=0.05, kill_s=0.2)
    first = say(session, "deaf")
    assert inside.wait(WAIT_S)
    stop(session)
    receipt = session.receipt(first, timeout=WAIT_S)
    assert not receipt.complete
    assert [row.how for row in rows(receipt) if row.kind == "call"] == [How.ABANDONED]
    second = say(session, "next")
    session.receipt(second, timeout=WAIT_S)
    assert session.run(second).status is RunStatus.COMPLETED
    gate.set()
    until(lambda: session.receipt(first).complete, "the amended receipt")
    assert session.receipt(first).refused == {"result": 1}


def test_l7_no_run_is_left_open_by_a_shutdown(kit: Kit) -> None:
    supervisor = kit.start(lambda turn: turn.cancel_token.wait())
    runs = {name: say(supervisor.session(name)) for name in ("a", "b", "c")}
    assert kit.close(0.0)
    supervisor = kit.start(lambda turn: None)
    for name, run_id in runs.items():
        session = supervisor.session(name)
        assert session.run(run_id).status is RunStatus.CANCELLED
        assert session.receipt(run_id).provenance.source == "supervisor.shutdown"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_l7_a_part_that_ends_at_its_cancel_is_cancelled_and_one_that_fails_meanwhile_has_raised(
    kit: Kit, kind: str
) -> None:
    inside, broke = threading.Semaphore(0), threading.Semaphore(0)

    @tool(isolation="thread")
    def plain(token: CancelToken, fails: bool) -> None:
        inside.release()
        token.wait()
        if fails:
            raise ValueError("of its own")
        token.raise_if_cancelled()

    @tool(isolation="task")
    async def task(fails: bool) -> None:
        inside.release()
        try:
            await asyncio.Event().wait()
        finally:
            if fails:
                raise ValueError("of its own")

    @tool(isolation="task")
    async def alone() -> None:
        broke.release()
        raise asyncio.CancelledError("nobody asked for it")

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("alone")
        name = "task" if kind == "async" else "plain"
        await asyncio.gather(turn.call(name, fails=False), turn.call(name, fails=True))

    session = kit.session(agent, tools=[plain, task, alone])
    run_id = say(session)
    for semaphore in (broke, inside, inside):
        assert semaphore.acquire(timeout=WAIT_S)
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    ends = sorted((row.kind, str(row.how)) for row in receipt.rows)
    assert ends == [("agent", "cancelled"), ("call", "cancelled"), ("call", "raised"), ("call", "raised")]
    assert [row.note for row in receipt.rows if row.how is How.CANCELLED] == ["", ""]


def test_l7_a_plain_agent_that_ends_at_its_cancel_is_cancelled(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.call("shell", script="sleep 60"))
    run_id = say(session)
    until(lambda: any(event.kind == "process.started" for event in log(session)), "the command runs")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert [(row.kind, row.how) for row in receipt.rows] == [("agent", How.CANCELLED), ("call", How.CANCELLED)]


def test_l7_a_process_whose_own_parent_read_its_status_is_gone(kit: Kit) -> None:
    # Its shell has the time to read the status: nothing ends it before.
    session = kit.session(agent=None, grace_s=3600.0)
    # It says so when its child has become the command, whose name the row has.
    executed = 'while read -r name </proc/$!/comm && [ "$name" != sleep ]; do :; done'
    run_id = say(session, kit.script(f"trap : TERM; sleep 60 & {executed}; echo begun; wait; wait; exit 0"))
    until(lambda: any(event.kind == "tool.output" for event in log(session)), "the script waits for its child")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    ended = [row for row in rows(receipt) if row.ended_at is not None]
    assert all(row.how is not None for row in ended), "of each part that ended it is said how, or that nobody saw it"
    assert [row.how for row in ended if row.name == "sleep"] == [How.GONE]
