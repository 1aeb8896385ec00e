"""L13 Isolation: what fails takes down its own part and no more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from pykka import ActorDeadError, ActorRef, ActorRegistry

from actors import (
    AsyncTurn,
    CancelToken,
    Invalid,
    NewMessage,
    ProcessActor,
    Quarantined,
    RunActor,
    RunStatus,
    SessionActor,
    ToolActor,
    Turn,
    tool,
)
from actors.messages import Committed
from tests.kit import WAIT_S, Kit, Listener, check_rest, log, message, poison, rows, say, settled, stop, until

# Three that stay, and one that comes anew each second.
SCRIPT = "trap '' TERM; setsid sleep 60 >/dev/null 2>&1 & sleep 60 & while :; do sleep 1; done"
ACTORS: list[type[Any]] = [ProcessActor, ToolActor, RunActor, SessionActor]


def only(actor: type[Any]) -> ActorRef[Any]:
    """The ref of the one actor of a kind."""
    refs = ActorRegistry.get_by_class(actor)
    assert len(refs) == 1, refs
    return refs[0]


@pytest.mark.parametrize("how", ["poison", "stop"])
@pytest.mark.parametrize("actor", ACTORS)
def test_l13_when_an_actor_dies_what_it_owned_is_ended_and_reported_and_the_session_continues(
    kit: Kit, actor: type[Any], how: str
) -> None:
    session = kit.session()
    other = kit.supervisor.session("other") if kit.supervisor is not None else session
    run_id = say(session, kit.script(SCRIPT))
    until(lambda: len(kit.alive()) >= 3, "the tree")
    until(lambda: any(e.kind == "process.started" for e in log(session)), "the news of it")
    ref = only(actor)
    elsewhere = say(other, "sleep 0.5; echo unharmed")
    if how == "stop":
        ref.stop()
    else:
        poison(ref)
        until(lambda: not ref.is_alive(), "its end")
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert receipt.reaped >= 3
    events = check_rest(session)
    assert len([e for e in events if e.kind == "tool.ended"]) == 1
    run = session.run(run_id)
    if actor in (RunActor, SessionActor):
        assert run.status is RunStatus.FAILED
        assert run.provenance is not None
        assert run.provenance.source == "actor.failure"
    if actor in (RunActor, SessionActor, ToolActor):
        assert [m.outcome for m in session.thread() if m.role == "tool"] == ["interrupted"]
    process = next(row for row in rows(receipt) if row.kind == "process")
    assert process.how is not None
    second = say(session, "echo next")
    session.receipt(second, timeout=WAIT_S)
    assert session.run(second).status is RunStatus.COMPLETED
    assert any("next" in m.content for m in session.thread() if m.role == "tool")
    other.receipt(elsewhere, timeout=WAIT_S)
    assert other.run(elsewhere).status is RunStatus.COMPLETED


@pytest.mark.parametrize("actor", ACTORS)
def test_l13_an_actor_that_dies_while_its_run_is_cancelling_loses_no_receipt(kit: Kit, actor: type[Any]) -> None:
    # The actor has to be there still when it is to die, on a machine that has much to do too.
    session = kit.session(grace_s=4.0)
    run_id = say(session, kit.script(SCRIPT))
    until(lambda: len(kit.alive()) >= 3, "the tree")
    until(lambda: any(e.kind == "process.started" for e in log(session)), "the news of it")
    ref = only(actor)
    stop(session, "mine")
    poison(ref)
    receipt = session.receipt(run_id, timeout=WAIT_S)
    assert kit.alive() == []
    assert receipt.complete
    assert receipt.provenance is not None
    assert receipt.provenance.reason == "mine"
    assert session.run(run_id).status is RunStatus.CANCELLED
    check_rest(session)


def test_l13_the_rounds_of_dying_actors_leave_no_run_open_and_no_process(kit: Kit) -> None:
    session = kit.session(grace_s=0.05)
    for number in range(12):
        run_id = say(session, kit.script("sleep 60 & sleep 60; :"))
        # A different moment of the start each time.
        threading.Event().wait(0.004 * number)
        actor = ACTORS[number % 3]
        for ref in ActorRegistry.get_by_class(actor):
            if ref.is_alive():
                with contextlib.suppress(ActorDeadError):
                    poison(ref)
        stop(session)
        session.receipt(run_id, timeout=WAIT_S)
        assert kit.alive() == []
    check_rest(session)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), KeyboardInterrupt(), GeneratorExit()])
def test_l13_a_failing_agent_fails_its_run_alone(kit: Kit, error: BaseException) -> None:
    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "fail":
            raise error
        turn.emit("fine")

    supervisor = kit.start(agent)
    one, two = supervisor.session("one"), supervisor.session("two")
    failing, fine = say(one, "fail"), say(two, "go")
    one.receipt(failing, timeout=WAIT_S)
    two.receipt(fine, timeout=WAIT_S)
    assert one.run(failing).status is RunStatus.FAILED
    assert type(error).__name__ in (one.run(failing).error or "")
    assert any(m.role == "note" and "failed" in m.content for m in one.thread())
    assert two.run(fine).status is RunStatus.COMPLETED
    again = say(one, "go")
    one.receipt(again, timeout=WAIT_S)
    assert one.run(again).status is RunStatus.COMPLETED


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["thread", "task"])
def test_l13_a_failing_tool_is_a_result_and_no_more(kit: Kit, error: BaseException, kind: str) -> None:
    @tool(isolation="thread", name="bad")
    def bad_thread() -> str:
        raise error

    @tool(isolation="task", name="bad")
    async def bad_task() -> str:
        raise error

    async def agent(turn: AsyncTurn) -> None:
        result = await turn.call("bad")
        await turn.emit(f"{result.outcome} {result.is_error}")

    session = kit.session(agent, tools=[bad_thread if kind == "thread" else bad_task])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.COMPLETED
    assert [e.data["text"] for e in log(session) if e.kind == "text"] == ["finished True"]


def test_l13_what_a_tool_returns_cannot_break_its_session(kit: Kit) -> None:
    @tool(isolation="thread")
    def odd(kind: int) -> Any:
        return [object(), float("nan"), {1: {2}}, b"\xff\xfe", "\ud800", [[[[None]]]], 1 << 70, lambda: None][kind]

    def agent(turn: Turn) -> None:
        for kind in range(8):
            turn.call("odd", kind=kind)
        turn.emit("went on")

    session = kit.session(agent, tools=[odd])
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.COMPLETED
    events = check_rest(session)
    assert len([e for e in events if e.kind == "tool.ended"]) == 8
    assert [e.data["text"] for e in events if e.kind == "text"] == ["went on"]


@pytest.mark.parametrize("value", [object(), float("inf"), {1, 2}, {"a": b"\xff"}, 1 << 70, "\ud800", lambda: None])
def test_l13_what_an_agent_returns_cannot_break_its_session(kit: Kit, value: Any) -> None:
    session = kit.session(lambda turn: value)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.COMPLETED
    second = say(session)
    session.receipt(second, timeout=WAIT_S)
    check_rest(session)


def test_l13_what_an_agent_emits_wrongly_is_its_own_error(kit: Kit) -> None:
    errors: list[BaseException] = []

    def agent(turn: Turn) -> None:
        bad: Any = turn
        for wrong in (b"bytes", None, 1):
            try:
                bad.emit(wrong)
            except Exception as error:
                errors.append(error)
        turn.emit("fine")

    session = kit.session(agent)
    run_id = say(session)
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.COMPLETED
    assert [type(error) for error in errors] == [Invalid] * 3


def test_l13_a_subscriber_that_raises_or_is_dropped_disturbs_no_other(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        for _ in range(100):
            turn.emit("x")

    session = kit.session(agent)
    good = Listener(session)

    def bad() -> None:
        with contextlib.suppress(ValueError):
            for _ in session.subscribe():
                raise ValueError("a subscriber")

    thread = threading.Thread(target=bad)
    thread.start()
    dropped = session.subscribe()
    del dropped
    session.receipt(say(session), timeout=WAIT_S)
    thread.join(WAIT_S)
    events = check_rest(session)
    until(lambda: len(good.events) == len(events))
    assert good.close() == events


def test_l13_a_session_that_fails_too_often_is_quarantined_and_still_takes_stop(kit: Kit) -> None:
    supervisor = kit.start(lambda turn: turn.cancel_token.wait())
    session, other = supervisor.session("bad"), supervisor.session("good")
    run_id = say(session)
    for _ in range(6):
        until(lambda: session.ref is not None and session.ref.is_alive(), "the next incarnation")
        ref = session.ref
        assert ref is not None
        poison(ref)
        until(lambda dead=ref: not dead.is_alive(), "its end")  # type: ignore[misc]
    until(lambda: session.status().state == "quarantined", "the quarantine")
    with pytest.raises(Quarantined):
        session.ask(NewMessage(content="more"))
    assert stop(session).outcome in {"nothing_running", "stopping", "stopped"}
    assert session.receipt(run_id, timeout=WAIT_S).provenance is not None
    fine = say(other)
    assert stop(other).run_id == fine
    settled(other)


def test_l13_a_message_of_an_unknown_type_fails_no_actor(kit: Kit) -> None:
    session = kit.session(lambda turn: turn.cancel_token.wait())
    run_id = say(session)
    until(lambda: ActorRegistry.get_by_class(RunActor), "the run's actor")
    for actor in (SessionActor, RunActor):
        ref = only(actor)
        ref.tell({"what": "is this"})
        ref.tell(CancelToken(lambda callback: None))
    assert stop(session).run_id == run_id
    assert session.receipt(run_id, timeout=WAIT_S).complete
    assert session.run(run_id).status is RunStatus.CANCELLED


def test_l13_a_slow_turn_that_the_stores_thread_gives_holds_up_no_other_session(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = threading.Event(), kit.gate()
    committed = SessionActor._committed

    def slow(self: SessionActor, message: Committed) -> None:
        committed(self, message)
        if self.key == "slow" and threading.current_thread().name.startswith("countermand-store"):
            entered.set()
            gate.wait()

    monkeypatch.setattr(SessionActor, "_committed", slow)
    supervisor = kit.start(lambda turn: turn.emit("heard"))
    supervisor.session("slow").ask(message("go"), timeout=WAIT_S)
    assert entered.wait(WAIT_S), "the store's thread gives it a turn"
    for name in ("s1", "s2"):
        session = supervisor.session(name)
        assert session.ask(message("go"), timeout=WAIT_S).run_id is not None
        check_rest(session)
    assert supervisor._store.answers(WAIT_S)
    gate.set()
    check_rest(supervisor.session("slow"))
