"""The handle: what is no request, or no argument, is refused at the door, and the session never hears of it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from actors import Invalid, NewMessage, NotFound, Receipt, Stop, Turn
from actors.errors import ReceiptPending, StoreUnavailable
from actors.messages import CommitFailed, Committed, Interrupt, LoadFailed
from actors.model import Provenance
from actors.ports import KeptStop
from actors.requests import Delete, Inspect
from supervisor import SessionHandle
from tests.kit import WAIT_S, Kit, check_rest, kit, message, say, stop, until
from tests.test_text import Number, Unshowable, Words

__all__ = ["kit"]


class Own(NewMessage, frozen=True, kw_only=True, tag=True):
    """A message of somebody's own make, which the store would not know."""


STRANGERS: list[Any] = [
    "hello",
    None,
    NewMessage,
    {"content": "go"},
    Inspect(),
    Committed(99),
    CommitFailed(1, "not so"),
    LoadFailed("not so"),
    Interrupt(Provenance(source="supervisor.shutdown", reason="not so")),
    Own(content="go"),
]


def quick(turn: Turn) -> None:
    turn.emit("x")


def test_nothing_but_a_request_can_be_sent_to_a_session(kit: Kit) -> None:
    session = kit.session(quick)
    for stranger in STRANGERS:
        for send in (session.ask, session.tell, lambda one: asyncio.run(session.aio.ask(one)), session.aio.tell):
            with pytest.raises(Invalid) as caught:
                send(stranger)
            assert "NewMessage" in caught.value.expected
            assert type(stranger).__name__ in caught.value.got
    say(session)
    check_rest(session)
    assert session.status().state == "idle"


BAD_ARGUMENTS: list[Callable[[SessionHandle], object]] = [
    lambda s: s.ask(message("x"), timeout="3"),  # type: ignore[call-overload]  # what is tested
    lambda s: s.ask(message("x"), timeout=float("nan")),
    lambda s: s.ask(message("x"), timeout=float("inf")),
    lambda s: asyncio.run(s.aio.ask(message("x"), timeout="3")),  # type: ignore[call-overload]  # what is tested
    lambda s: s.status(timeout=[]),  # type: ignore[arg-type]  # what is tested
    lambda s: s.receipt([1]),  # type: ignore[arg-type]  # what is tested
    lambda s: s.receipt([]),  # type: ignore[arg-type]  # what is tested
    lambda s: s.receipt("x", timeout="3"),  # type: ignore[arg-type]  # what is tested
    lambda s: s.run([]),  # type: ignore[arg-type]  # what is tested
    lambda s: s.run(b"x"),  # type: ignore[arg-type]  # what is tested
    lambda s: s.subscribe("a"),  # type: ignore[arg-type]  # what is tested
    lambda s: s.subscribe(1.5),  # type: ignore[arg-type]  # what is tested
    lambda s: s.subscribe(10**30),
    lambda s: s.subscribe(timeout="x"),  # type: ignore[arg-type]  # what is tested
    lambda s: s.subscribe(timeout=float("nan")),
]


def test_an_argument_of_another_type_is_refused_with_what_fits(kit: Kit) -> None:
    session = kit.session(quick)
    for bad in BAD_ARGUMENTS:
        with pytest.raises(Invalid) as caught:
            bad(session)
        assert caught.value.expected
        assert caught.value.got
        assert caught.value.remedy
    assert session.status().last_seq == 0


@pytest.mark.parametrize("policies", [{"user": "bogus"}, ["user"], "enqueue", {"user": None}, {"user": Unshowable()}])
def test_policies_that_are_none_are_refused(kit: Kit, policies: Any) -> None:
    supervisor = kit.start(quick)
    with pytest.raises(Invalid) as caught:
        supervisor.session("s1", policies=policies)
    assert "interrupt" in caught.value.expected


def test_l12_values_of_subclasses_are_taken_and_are_there_after_a_restart(kit: Kit) -> None:
    def agent(turn: Turn) -> dict[str, Any]:
        turn.emit(Words("said"))
        return {Words("score"): Number(0.5)}

    session = kit.session(agent, name=Words("s1"))
    request = NewMessage(content=Words("go"), id=Words("m1"), sent_at=Number(1e9))
    run_id = session.ask(request).run_id
    assert run_id is not None
    check_rest(session)
    kit.close()
    session = kit.session(agent)
    assert session.run(run_id).result == {"score": 0.5}
    assert [one.content for one in session.thread()] == ["go", "said"]
    assert session.ask(NewMessage(content="go", id="m1", sent_at=1e9)).run_id == run_id


def test_l13_a_waiting_message_that_cannot_be_read_again_leaves_the_session_usable(kit: Kit) -> None:
    release = kit.gate()

    def held(turn: Turn) -> None:
        release.wait()
        turn.emit("x")

    session = kit.session(held)
    say(session, "first")
    lost, kept = (session.ask(message(one, policy="enqueue", merge=False)).message_id for one in ("lost", "kept"))
    stop(session, waiting="park")
    release.set()
    kit.close()
    with sqlite3.connect(kit.state_dir / "store.sqlite3") as damage:
        damage.execute("UPDATE waiting SET doc = json_set(doc, '$.message.merge', 'yes') WHERE message_id = ?", (lost,))
    damage.close()
    session = kit.session(quick)
    accepted = session.ask(message("go on"))
    assert [one.id for one in accepted.with_messages] == [kept]
    check_rest(session)


def test_the_receipt_of_a_stop_with_nothing_running_is_found_by_its_id(kit: Kit) -> None:
    session = kit.session(quick)
    stopped = stop(session)
    assert stopped.outcome == "nothing_running"
    assert session.receipt(stopped.receipt_id, timeout=WAIT_S).receipt_id == stopped.receipt_id


# ── Waiting for a receipt in a coroutine ──────────────────────────────────────────────────────────


def test_a_wait_for_a_receipt_that_is_cancelled_is_over_at_once(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    run_id = say(session)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.aio.receipt(run_id, timeout=None), 0.1)

    # The run does not end: a thread that waited for its receipt would keep the loop from its end.
    loop = threading.Thread(target=lambda: asyncio.run(give_up()), daemon=True)
    loop.start()
    loop.join(WAIT_S)
    assert not loop.is_alive()


def test_waits_for_receipts_hold_no_thread_of_the_loop(kit: Kit) -> None:
    release = kit.gate()

    def held(turn: Turn) -> None:
        release.wait()
        turn.emit("x")

    session = kit.session(held)
    run_id = say(session)

    async def wait() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waits = [asyncio.create_task(session.aio.receipt(run_id, timeout=None)) for _ in range(8)]
        async with asyncio.timeout(WAIT_S):
            await asyncio.sleep(0.1)
            # Such as another receipt, or the thread: each is a look that needs one.
            assert await asyncio.to_thread(lambda: True)
            assert not any(one.done() for one in waits)
            release.set()
            assert {one.run_id for one in await asyncio.gather(*waits)} == {run_id}

    asyncio.run(wait())


def test_a_coroutine_gets_the_same_receipts_and_errors_as_a_thread(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    run_id = say(session)
    strange: list[tuple[str | None, float | None]] = [("", 0.1), (None, None), ("no such", 0.1), ("no such", None)]
    for identity, timeout in strange:
        with pytest.raises(NotFound):
            asyncio.run(session.aio.receipt(identity, timeout=timeout))
    for bad in ("3", float("nan")):
        with pytest.raises(Invalid):
            asyncio.run(session.aio.receipt(run_id, timeout=bad))  # type: ignore[arg-type]  # what is tested
    for timeout in (0, -1, 0.1):
        with pytest.raises(ReceiptPending):
            asyncio.run(session.aio.receipt(run_id, timeout=timeout))

    async def stopped() -> Receipt:
        receipt = asyncio.create_task(session.aio.receipt(run_id, timeout=WAIT_S))
        await asyncio.sleep(0.05)
        await session.aio.ask(Stop(source="user.test", reason="the test says so"))
        return await receipt

    receipt = asyncio.run(stopped())
    assert receipt == session.receipt(run_id) == asyncio.run(session.aio.receipt(receipt.receipt_id))
    kit.close()
    for timeout in (0, 0.1, None):
        with pytest.raises(StoreUnavailable):
            asyncio.run(session.aio.receipt(run_id, timeout=timeout))


def test_a_wait_for_a_receipt_that_will_never_come_ends_with_not_found(kit: Kit) -> None:
    session = kit.session(quick)
    kept = [KeptStop("s1", Stop(source="user.test", reason="the test says so", id="kept"), 0.0)]
    session._kept = lambda _: kept

    async def wait() -> None:
        waiting = asyncio.create_task(session.aio.receipt("kept", timeout=None))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        # As a deletion does: the Stop leaves the journal, and the store has no receipt of it.
        kept.clear()
        await session.aio.ask(message("news"))
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(NotFound):
                await waiting

    asyncio.run(wait())


def test_a_wait_for_a_receipt_ends_with_not_found_when_its_session_is_deleted(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    run_id = say(session)
    waiting: Future[Receipt] = Future()

    def wait() -> None:
        try:
            waiting.set_result(session.receipt(run_id, timeout=None))
        except NotFound as error:
            waiting.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    until(lambda: bool(session._hub._channel("s1").bells), "it waits")
    session.ask(Delete(source="user.test", reason="tidy"), timeout=WAIT_S)
    # Either it was filed and seen just before that, or it does not come.
    error = waiting.exception(WAIT_S)
    assert error is None or isinstance(error, NotFound)


def test_a_coroutine_that_waits_for_a_receipt_is_let_go_when_the_supervisor_ends(kit: Kit) -> None:
    leave = kit.gate()
    session = kit.session(lambda turn: leave.wait())
    run_id = say(session)

    async def wait() -> object:
        waiting = asyncio.create_task(session.aio.receipt(run_id, timeout=None))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(kit.close, 0.0)
        async with asyncio.timeout(WAIT_S):
            try:
                return await waiting
            except (ReceiptPending, StoreUnavailable) as error:
                return error

    assert asyncio.run(wait()) is not None
