"""Guards: an effect of the code's own begins before the fence and is told of, or does not take place."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import AsyncCancelToken, AsyncTurn, CancelToken, Effect, Invalid, Provenance, Turn, tool
from actors.errors import RunCancelled
from actors.gate.guard import NAME_MAX_CHARS, NAMES_MAX, OTHERS
from actors.messages import CallDeadline
from actors.model import Address, CallState, Event, Outcome, RunInfo
from actors.ports import CallRow
from actors.protocol.run_record import restored
from actors.run_status import RunStatus
from supervisor import Agent, SessionHandle
from tests.kit import WAIT_S, Kit, StoreFaults, faults, kit, log, rows, say, settled, stop, until
from tests.test_token import beside, inline

__all__ = ["faults", "kit"]

PAGE = Path(__file__).parent.parent / "docs" / "tools.md"
CAUSE = Provenance(source="user.test", reason="enough")


def ended_call(events: list[Event]) -> Event:
    """Return the one result of the one call of a log."""
    (event,) = [event for event in events if event.kind == "tool.ended"]
    return event


def told(event: Event) -> list[tuple[str, int, int]]:
    """Return the effects that a result tells of: name, begun, done."""
    return [(one["name"], one["begun"], one["done"]) for one in event.data["effects"]]


# ── The gate itself ───────────────────────────────────────────────────────────────────────────────


def test_l1_an_effect_begins_before_the_cancel_and_never_after_it() -> None:
    token, ran = CancelToken(inline), list[str]()
    with token.guard("first"):
        ran.append("first")
    guard = token.guard("second")
    token.cancel(CAUSE)
    for again in (guard, guard, token.guard("third")):
        with pytest.raises(RunCancelled) as refused, again:
            ran.append("late")
        assert refused.value.provenance == CAUSE
    assert ran == ["first"]
    assert token.effects == (Effect("first", done=1),)


def test_l2_of_a_guard_and_a_cancel_that_race_exactly_one_is_first_and_both_can_read_which() -> None:
    for _ in range(200):
        token, start, took_place = CancelToken(inline), threading.Barrier(2), list[bool]()

        def work(token: CancelToken = token, start: threading.Barrier = start, seen: list[bool] = took_place) -> None:
            start.wait()
            try:
                with token.guard("write"):
                    seen.append(True)
            except RunCancelled:
                seen.append(False)

        thread = threading.Thread(target=work)
        thread.start()
        start.wait()
        token.cancel(CAUSE)
        begun = [effect.begun for effect in token.effects]
        thread.join()
        assert begun == [1] * took_place.count(True), "what the fence has read does not change"


def test_l1_an_effect_of_a_call_does_not_begin_while_the_cancel_has_reached_its_run_only() -> None:
    run, seen = CancelToken(inline), list[str]()
    call = CancelToken(inline, run)

    def inside_the_cancel() -> None:
        assert not call.cancelled
        with pytest.raises(RunCancelled), call.guard("write"):
            seen.append("written")

    run.add_waker(inside_the_cancel)
    run.cancel(CAUSE)
    assert (seen, call.effects) == ([], ())


def test_l1_of_a_call_that_has_its_result_no_effect_begins_and_one_that_had_may_still_be_done() -> None:
    run = CancelToken(inline)
    call = CancelToken(inline, run)
    with call.guard("upload"):
        assert call.end_effects(CAUSE) == (Effect("upload"),)
    with pytest.raises(RunCancelled), call.guard("late"):
        raise AssertionError("it took place")
    assert call.effects == (Effect("upload", done=1),)
    assert not call.cancelled
    with run.guard("of the run"):
        pass


def test_an_effect_that_raises_has_begun_and_is_not_known_to_be_done() -> None:
    token = CancelToken(inline)
    with pytest.raises(ZeroDivisionError), token.guard("divide"):
        raise ZeroDivisionError
    assert token.effects == (Effect("divide"),)
    assert str(token.effects[0]) == "divide (not known to be done)"


def test_l14_effects_are_counted_by_name_and_beyond_a_number_of_names_together() -> None:
    token = CancelToken(inline)
    for number in range(NAMES_MAX + 2):
        for _ in range(2):
            with token.guard(f"effect {number}"):
                pass
    assert len(token.effects) == NAMES_MAX + 1
    assert token.effects[0] == Effect("effect 0", 2, 2)
    assert token.effects[-1] == Effect(OTHERS, 4, 4)
    assert str(token.effects[-1]) == "others (4 times, 4 done)"


def test_l14_the_name_of_an_effect_is_one_short_line_and_not_empty() -> None:
    token = CancelToken(inline)
    with token.guard("a\nb\ud800" + "x" * 1000):
        pass
    (effect,) = token.effects
    assert effect.name.startswith("a\\nb\ufffdx")
    assert len(effect.name) <= NAME_MAX_CHARS + 1
    for name in ("", "  ", None, 7):
        with pytest.raises(Invalid, match="needs a name"):
            token.guard(name)  # type: ignore[arg-type]  # what a caller may do


def test_a_guard_is_entered_while_this_thread_has_the_lock_of_its_token() -> None:
    token = CancelToken(inline)

    def closed_by_the_collector() -> tuple[Effect, ...]:
        with token._lock, token.guard("write"):
            return token.effects

    assert beside(closed_by_the_collector) == (Effect("write"),)


def test_l8_the_guard_of_async_code_raises_cancelled_error_itself_by_with_and_by_async_with() -> None:
    async def scene() -> None:
        token = CancelToken(inline)
        with token.aio.guard("plain"):
            pass
        async with token.aio.guard("async"):
            pass
        token.cancel(CAUSE)

        def plain() -> None:
            with token.aio.guard("late"):
                raise AssertionError("it took place")

        async def with_await() -> None:
            async with token.aio.guard("late"):
                raise AssertionError("it took place")

        for late in (asyncio.to_thread(plain), with_await()):
            with pytest.raises(asyncio.CancelledError) as refused:
                await late
            assert type(refused.value) is asyncio.CancelledError
            assert refused.value.provenance == CAUSE  # type: ignore[attr-defined]  # set where it is raised
        assert token.effects == (Effect("plain", done=1), Effect("async", done=1))

    asyncio.run(scene())


def test_l8_a_task_of_a_group_that_comes_to_a_guard_is_cancelled_once() -> None:
    async def scene() -> None:
        token, cleaned_up = CancelToken(inline), list[str]()

        async def further() -> None:
            token.cancel(CAUSE)
            asyncio.get_running_loop().call_soon(own.cancel)
            try:
                async with token.aio.guard("late"):
                    raise AssertionError("it took place")
            finally:
                await asyncio.sleep(0.01)
                cleaned_up.append("to the end")

        async def agent() -> None:
            token.note_own_task()
            async with asyncio.TaskGroup() as group:
                group.create_task(further())

        own = asyncio.create_task(agent())
        with pytest.raises(asyncio.CancelledError):
            await own
        assert cleaned_up == ["to the end"]

    asyncio.run(scene())


# ── What is told of it ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_l6_a_stop_names_the_effects_that_a_tool_had_begun_and_no_further_one_takes_place(kit: Kit, kind: str) -> None:
    inside, go_on, written = threading.Event(), kit.gate(), list[str]()

    async def as_task(token: AsyncCancelToken) -> None:
        async with token.guard("prepare"):
            written.append("prepare")
        try:
            with token.guard("send mail"):
                inside.set()
                await asyncio.Event().wait()
        finally:
            with token.guard("apologise"):
                written.append("apologise")

    def as_thread(token: CancelToken) -> None:
        with token.guard("prepare"):
            written.append("prepare")
        with token.guard("send mail"):
            inside.set()
            go_on.wait()
        with token.guard("apologise"):
            written.append("apologise")

    function: Callable[..., Any] = as_task if kind == "task" else as_thread

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("mail")

    session = kit.session(agent, tools=[tool(name="mail", isolation=kind)(function)])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    stop(session)
    ended = ended_call(log(session))
    assert ended.data["outcome"] == "interrupted"
    assert told(ended) == [("prepare", 1, 1), ("send mail", 1, 0)]
    assert "It had begun: prepare (done), send mail (not known to be done)." in ended.data["content"]
    go_on.set()
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    (call,) = [row for row in rows(receipt) if row.kind == "call"]
    # The plain one has come out of its block by then.
    assert call.effects == (Effect("prepare", done=1), Effect("send mail", done=int(kind == "thread")))
    assert written == ["prepare"]
    settled(session)


def test_l1_what_a_tool_leaves_behind_begins_nothing_once_its_call_has_its_result(kit: Kit) -> None:
    go_on, reasons = kit.gate(), list[object]()
    left = list[threading.Thread]()

    @tool(isolation="thread")
    def leaves(token: CancelToken) -> str:
        """Leave a thread behind."""

        def behind() -> None:
            go_on.wait()
            try:
                with token.guard("late"):
                    reasons.append("it took place")
            except RunCancelled as error:
                reasons.append(error.provenance.reason)

        with token.guard("start"):
            left.append(threading.Thread(target=behind))
            left[0].start()
        return "left"

    def agent(turn: Turn) -> str:
        result = turn.call("leaves")
        go_on.set()
        left[0].join(WAIT_S)
        return result.content

    session = kit.session(agent, tools=[leaves])
    run_id = say(session)
    until(lambda: session.run(run_id).status is RunStatus.COMPLETED)
    assert reasons == ["the call is closed"]
    ended = ended_call(log(session))
    assert (ended.data["content"], told(ended)) == ("left", [("start", 1, 1)])
    assert session.receipt(run_id, timeout=WAIT_S).complete


def test_l2_a_call_that_its_deadline_closes_names_the_effects_that_it_had_begun(kit: Kit) -> None:
    inside = kit.gate()

    @tool(isolation="task", deadline_s=3600.0)
    async def slow(token: AsyncCancelToken) -> None:
        """Begin, and go on for too long."""
        async with token.guard("upload"):
            inside.set()
            await asyncio.Event().wait()

    async def agent(turn: AsyncTurn) -> str:
        return (await turn.call("slow")).content

    session = kit.session(agent, tools=[slow])
    run_id = say(session)
    assert inside.wait(WAIT_S)
    kit.fire(CallDeadline)
    assert session.receipt(run_id, timeout=WAIT_S).complete
    ended = ended_call(log(session))
    assert told(ended) == [("upload", 1, 0)]
    assert session.run(run_id).result == ended.data["content"]
    assert "It had begun: upload (not known to be done)." in ended.data["content"]


@pytest.mark.parametrize("rollback", [False, True])
def test_l6_what_the_agent_itself_had_begun_is_in_the_note_of_its_end(kit: Kit, rollback: bool) -> None:
    inside = threading.Event()

    async def agent(turn: AsyncTurn) -> None:
        if turn.inputs[-1].content == "go":
            async with turn.cancel_token.guard("write report"):
                inside.set()
                await asyncio.Event().wait()

    session = kit.session(agent)
    first = say(session)
    assert inside.wait(WAIT_S)
    second = say(session, "next", policy="rollback" if rollback else "interrupt")
    receipt = session.receipt(first, timeout=WAIT_S)
    assert session.receipt(second, timeout=WAIT_S).complete
    (agent_row,) = [row for row in rows(receipt) if row.kind == "agent"]
    assert agent_row.effects == session.run(first).effects == (Effect("write report"),)
    (note,) = [message.content for message in session.thread() if message.role == "note"]
    assert "No call had started. The agent itself had begun: write report (not known to be done)." in note


def test_l6_a_run_of_an_earlier_incarnation_has_its_effects_from_its_rows() -> None:
    address = Address("s", 1, "r")
    info = RunInfo(
        "s", "r", RunStatus.CANCELLING, "a", 1, "rcpt", started_at=1.0, provenance=CAUSE, effects=(Effect("own"),)
    )
    row = CallRow("s", "r", "c", "mail", {}, CallState.ENDED, outcome=Outcome.INTERRUPTED, effects=(Effect("send"),))
    token = CancelToken(inline)
    record = restored(info, token, None, [row], [], {})  # type: ignore[arg-type]  # a closed run takes no credit
    assert record.address == address
    receipt = record.file_receipt(2.0, ())
    assert {row.name: row.effects for row in rows(receipt)} == {"a": (Effect("own"),), "mail": (Effect("send"),)}


def test_l4_a_run_in_a_host_that_had_entered_a_guard_is_not_tried_again_after_a_failure_of_the_store(
    kit: Kit, faults: StoreFaults, tmp_path: Path
) -> None:
    session = hosted(kit, tmp_path)
    run_id = say(session, "silent")
    until((tmp_path / "begun").exists, "its effect")
    faults.fail(session)
    faults.failing = False
    until(lambda: session.run(run_id).status is RunStatus.FAILED, "its end is on record")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    settled(session)
    assert [info.retry_of for info in session.runs()] == [None]
    assert session.run(run_id).effects == (Effect("write report"),)
    assert [row.effects for row in rows(receipt) if row.kind == "agent"] == [(Effect("write report"),)]


def test_l6_the_note_of_an_agent_that_fails_names_what_it_had_begun(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        with turn.cancel_token.guard("publish"):
            raise ValueError("no site")

    session = kit.session(agent)
    assert session.receipt(say(session), timeout=WAIT_S).complete
    (note,) = [message.content for message in session.thread() if message.role == "note"]
    assert note.startswith("The run before this failed: ValueError: no site")
    assert note.endswith("\nThe agent itself had begun: publish (not known to be done).")


# ── Where it is used ──────────────────────────────────────────────────────────────────────────────


def test_the_tool_of_the_page_runs_as_it_says(kit: Kit) -> None:
    codes = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [one for one in codes if "token.guard(" in one]
    done = list[str]()
    site, mail = SimpleNamespace(put=done.append), SimpleNamespace(send=done.append)
    names: dict[str, Any] = {"tool": tool, "CancelToken": CancelToken, "render": str.upper, "site": site, "mail": mail}
    exec(code, names)

    async def agent(turn: AsyncTurn) -> None:
        await turn.call("publish", report="all well")

    session = kit.session(agent, tools=[names["publish"]])
    assert session.receipt(say(session), timeout=WAIT_S).complete
    ended = ended_call(log(session))
    assert (ended.data["content"], done) == ("published", ["ALL WELL", "published"])
    assert told(ended) == [("publish", 1, 1), ("send mail", 1, 1)]


HOSTED = """
import asyncio, os
from countermand import CancelToken, AsyncCancelToken, tool

async def mail(token: AsyncCancelToken) -> str:
    async with token.guard("prepare"):
        pass
    try:
        async with token.guard("send mail"):
            await turns[0].emit("sending")
            if turns[0].inputs[-1].content.endswith("dies"):
                os.kill(os.getpid(), 9)
            await asyncio.Event().wait()
    finally:
        async with token.guard("apologise"):
            print("LATE")

turns = []

async def agent(turn):
    turns[:] = [turn]
    said = turn.inputs[-1].content
    if said == "silent":
        async with turn.cancel_token.guard("write report"):
            open("begun", "w").close()
            await asyncio.Event().wait()
    if said.startswith("own"):
        try:
            with turn.cancel_token.guard("plain"):
                pass
        except Exception as error:
            await turn.emit(error.code)
        async with turn.cancel_token.guard("write report"):
            pass
        async with turn.cancel_token.guard("publish"):
            await turn.emit("publishing")
            if said.endswith("dies"):
                os.kill(os.getpid(), 9)
            await asyncio.Event().wait()
    return (await turn.call("mail")).content
"""


def hosted(kit: Kit, path: Path) -> SessionHandle:
    """Return a session of the agent above, which runs in hosts."""
    (path / "guarded.py").write_text(HOSTED)
    env = {kit.mark: "1"}
    spec = Agent(run="guarded:agent", path=[str(path)], env=env, cwd=str(path), spares=0, tools=["guarded:mail"])
    return kit.start(spec).session("s1")


@pytest.mark.parametrize("own", [False, True], ids=["of a tool", "of the agent"])
def test_l6_an_effect_in_which_its_host_dies_is_reported_as_begun(kit: Kit, tmp_path: Path, own: bool) -> None:
    session = hosted(kit, tmp_path)
    run_id = say(session, "own dies" if own else "go dies")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    assert session.run(run_id).status is RunStatus.FAILED
    effects = {row.kind: row.effects for row in rows(receipt) if row.effects}
    (note,) = [message.content for message in session.thread() if message.role == "note"]
    if own:
        assert effects == {"agent": (Effect("write report", done=1), Effect("publish"))}
        assert "The agent itself had begun: write report (done), publish (not known to be done)." in note
    else:
        assert effects == {"call": (Effect("prepare", done=1), Effect("send mail"))}
        assert told(ended_call(log(session))) == [("prepare", 1, 1), ("send mail", 1, 0)]


@pytest.mark.parametrize("own", [False, True], ids=["of a tool", "of the agent"])
def test_l6_a_stop_tells_what_code_in_a_host_had_begun_and_nothing_further_takes_place(
    kit: Kit, tmp_path: Path, own: bool
) -> None:
    session = hosted(kit, tmp_path)
    run_id = say(session, "own" if own else "go")
    last = "publishing" if own else "sending"
    until(lambda: last in [event.data.get("text") for event in log(session)], "it has an effect")
    stop(session)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert receipt.complete
    effects = {row.kind: row.effects for row in rows(receipt) if row.effects}
    if own:
        assert effects == {"agent": (Effect("write report", done=1), Effect("publish"))}
        assert "invalid" in [event.data.get("text") for event in log(session)], "a plain with would block the loop"
    else:
        assert effects == {"call": (Effect("prepare", done=1), Effect("send mail"))}
        assert told(ended_call(log(session))) == [("prepare", 1, 1), ("send mail", 1, 0)]
    assert not [event for event in log(session) if "LATE" in str(event.data.get("text"))]
