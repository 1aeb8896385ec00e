"""L11 Idle: maintenance is not a cancel. Who leaves memory, or goes away, ends nothing; a shutdown drains first."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from actors import NewMessage, Resume, RunStatus, Spawn, Stop, StoreUnavailable, Turn, tool
from actors.model import Waiting
from actors.run_status import TERMINAL
from supervisor import SessionHandle, Supervisor
from tests.kit import WAIT_S, Kit, Listener, check_log, check_rest, fates, log, message, say, settled, stop, until

SOON_S = 0.05


def resident(session: SessionHandle) -> bool:
    return session.ref is not None


def gone(session: SessionHandle) -> None:
    """Wait until the session is not in memory any more."""
    until(lambda: not resident(session), f"{session.session} leaves memory")


def speak(turn: Turn) -> None:
    for one in turn.inputs:
        turn.emit(f"heard {one.content}")


def test_l11_a_session_that_left_memory_is_as_it_was(kit: Kit) -> None:
    session = kit.session(speak, passivate_s=SOON_S)
    say(session, "one")
    settled(session)
    thread, runs, events = session.thread(), session.runs(), log(session)
    status = session.status()
    gone(session)
    assert (session.thread(), session.runs()) == (thread, runs)
    assert log(session) == events
    assert session.status() == status
    accepted = session.ask(message("two"), timeout=WAIT_S)
    assert accepted.generation == status.generation + 1
    check_rest(session)
    assert [one.content for one in session.thread()] == ["one", "heard one", "two", "heard two"]


def test_l11_no_run_is_ended_by_a_session_that_leaves_memory(kit: Kit) -> None:
    go = threading.Event()

    def agent(turn: Turn) -> None:
        while not go.wait(0.01):
            turn.cancel_token.raise_if_cancelled()
        turn.emit("done")

    session = kit.session(agent, passivate_s=SOON_S)
    run_id = say(session)
    other = kit.supervisor.session("other") if kit.supervisor else session
    # While another one comes and goes several times, this one stays.
    for number in range(3):
        assert other.ask(Stop(source="user.test", reason=f"look {number}"), timeout=WAIT_S).outcome == "nothing_running"
        gone(other)
        assert resident(session)
        assert session.run(run_id).status is RunStatus.IN_PROGRESS
    go.set()
    assert session.receipt(run_id, timeout=WAIT_S).provenance is None
    assert session.run(run_id).status is RunStatus.COMPLETED
    gone(session)


def test_l11_a_process_of_the_session_keeps_it_in_memory_and_lives(kit: Kit) -> None:
    @tool(isolation="thread")
    def serve(spawn: Spawn, mark: str) -> str:
        spawn(["bash", "-c", f"export {mark}=1; exec sleep 300"], owner="session")
        return "it serves"

    def agent(turn: Turn) -> None:
        turn.call("serve", mark=kit.mark)

    session = kit.session(agent, passivate_s=SOON_S, tools=[serve])
    say(session)
    settled(session)
    until(kit.alive, "the server runs")
    other = kit.supervisor.session("other") if kit.supervisor else session
    stop(other)
    gone(other)
    assert resident(session)
    assert kit.alive()
    stop(session, scope="session")
    until(lambda: not kit.alive(), "the server is gone")
    gone(session)


def test_l11_what_a_stop_has_parked_leaves_memory_and_comes_back_parked(kit: Kit) -> None:
    def agent(turn: Turn) -> None:
        turn.emit(turn.inputs[-1].content)
        if turn.inputs[-1].content == "first":
            turn.cancel_token.wait()

    session = kit.session(agent, passivate_s=SOON_S)
    first = say(session, "first")
    waiting = session.ask(message("waits", policy="enqueue"), timeout=WAIT_S)
    stop(session, waiting=Waiting.PARK)
    session.receipt(first, timeout=WAIT_S)
    gone(session)
    status = session.status()
    assert (status.parked, status.waiting, status.run_id) == (True, 1, None)
    gone(session)
    resumed = session.ask(Resume(), timeout=WAIT_S)
    assert [one.id for one in resumed.with_messages] == [waiting.message_id]
    assert session.receipt(resumed.run_id, timeout=WAIT_S).complete


def test_l11_a_repeat_after_the_session_left_memory_has_the_same_answer(kit: Kit) -> None:
    session = kit.session(speak, passivate_s=SOON_S)
    request = message("once")
    answer = session.ask(request, timeout=WAIT_S)
    settled(session)
    gone(session)
    assert session.ask(request, timeout=WAIT_S) == answer
    assert fates(check_rest(session))[0] == [request.id]


def test_l11_messages_that_race_passivation_are_answered_as_if_there_were_none(kit: Kit) -> None:
    """The session leaves as soon as it can; clients come again just then, by way of the supervisor and directly."""
    session = kit.session(speak, passivate_s=0.001)
    answers: list[Any] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        for turn in range(40):
            answer = session.ask(message(f"{number} {turn}", policy="enqueue"), timeout=WAIT_S)
            session.receipt(answer.run_id, timeout=WAIT_S)
            with lock:
                answers.append(answer)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    before = kit.supervisor
    assert before is not None
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    inputs, returned = fates(check_rest(session))
    assert sorted(inputs) == sorted(answer.message_id for answer in answers)
    assert len(inputs) == 120
    assert not returned
    assert all(run.status is RunStatus.COMPLETED for run in session.runs())
    gone(session)


def test_l11_a_subscription_continues_while_its_session_leaves_memory_and_is_read_again(kit: Kit) -> None:
    session = kit.session(speak, passivate_s=SOON_S)
    listener = Listener(session)
    for number in range(3):
        say(session, f"message {number}")
        settled(session)
        gone(session)
    until(lambda: len(listener.events) == len(log(session)), "the subscription has all")
    events = listener.close()
    check_log(events)
    assert sum(event.kind == "run.ended" for event in events) == 3


def test_l11_looking_at_a_session_does_not_keep_it_in_memory(kit: Kit) -> None:
    session = kit.session(speak, passivate_s=0.2)
    say(session)
    settled(session)

    def left() -> bool:
        was = session.ref
        session.status()
        return session.ref is not was

    until(left, "it leaves, though somebody looks all the time")


def test_l11_a_client_that_goes_away_ends_no_run(kit: Kit) -> None:
    go = threading.Event()

    def agent(turn: Turn) -> None:
        turn.emit("holding")
        while not go.wait(0.01):
            turn.cancel_token.raise_if_cancelled()

    session = kit.session(agent, passivate_s=SOON_S)
    with session.subscribe(timeout=WAIT_S) as subscription:
        run_id = say(session)
        next(subscription)
    del subscription
    assert session.run(run_id).status is RunStatus.IN_PROGRESS
    go.set()
    session.receipt(run_id, timeout=WAIT_S)
    assert session.run(run_id).status is RunStatus.COMPLETED


@pytest.mark.parametrize("drain_s", [0.0, WAIT_S])
def test_l11_a_stop_that_comes_while_all_is_quiet_is_finished_before_the_close_says_so(
    kit: Kit, drain_s: float
) -> None:
    """A Stop behind a session's word that it is quiet makes it speak again: nothing is decided and not written."""
    supervisor = kit.start(speak)
    sessions = [supervisor.session(f"s{number}") for number in range(8)]
    for session in sessions:
        say(session)
    answers: list[Any] = []

    def stopping() -> None:
        for number in range(400):
            try:
                request = Stop(source="user.test", reason=f"number {number}")
                answers.append((sessions[number % 8], request, sessions[number % 8].ask(request, timeout=WAIT_S)))
            except Exception:
                return

    thread = threading.Thread(target=stopping)
    thread.start()
    closed = kit.close(drain_s)
    thread.join(WAIT_S)
    assert closed
    with Supervisor.start(supervisor.config) as again:
        for session in sessions:
            for run in again.session(session.session).runs():
                assert run.status in TERMINAL
                assert run.provenance is None or run.provenance.source != "supervisor.recovery"
        for session, request, answer in answers[-20:]:
            # If the store was slow it was answered early, from the journal.
            durable = msgspec.structs.replace(answer, durable=True, journalled=False)
            assert again.session(session.session).ask(request, timeout=WAIT_S) == durable


def test_l11_a_store_that_comes_back_finds_the_session_where_it_was(kit: Kit) -> None:
    """A session that fails to be read does not leave, and is not lost."""
    session = kit.session(speak, passivate_s=SOON_S)
    say(session)
    settled(session)
    gone(session)
    assert kit.supervisor is not None
    store = kit.supervisor._store
    snapshot = store._snapshot

    def fails(*_: Any) -> Any:
        raise OSError("the disk is away")

    store._snapshot = fails  # type: ignore[method-assign,assignment]  # the fault that is injected
    with pytest.raises(StoreUnavailable):
        session.ask(message("two"), timeout=WAIT_S)
    assert resident(session)
    store._snapshot = snapshot  # type: ignore[method-assign]
    request = NewMessage(content="two")

    def taken() -> bool:
        try:
            return bool(session.ask(request, timeout=WAIT_S).run_id)
        except StoreUnavailable:
            return False

    until(taken, "the session is read")
    check_rest(session)
    assert [one.content for one in session.thread() if one.role == "user"] == ["go", "two"]
