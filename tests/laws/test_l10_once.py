"""L10 Once: the same request twice has one effect and the same answer, now, later, and after a restart."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from actors import (
    Accepted,
    CountermandError,
    Delete,
    Invalid,
    NewMessage,
    ReceiptPending,
    RequestReused,
    RequestTooOld,
    Resume,
    Stop,
    Stopped,
    StoreUnavailable,
    Turn,
)
from actors.hierarchy.late_stops import STOP_OVERDUE_S
from actors.ids import request_time
from actors.protocol.request_book import RequestBook
from actors.requests import UNKNOWN
from supervisor import SessionHandle
from tests.kit import (
    WAIT_S,
    YEAR_S,
    ClockSteps,
    Kit,
    StoreFaults,
    ask_stop,
    check_rest,
    fates,
    log,
    message,
    say,
    settled,
    stop,
    until,
)


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def until_holding(session: SessionHandle, run_id: str) -> None:
    until(lambda: any(e.kind == "text" and e.run_id == run_id for e in log(session)), "the agent holds")


def test_l10_the_same_message_twice_is_one_input_with_one_answer(kit: Kit) -> None:
    session = kit.session(hold)
    one = NewMessage(content="go")
    answers = [session.ask(one) for _ in range(5)]
    assert all(answer == answers[0] for answer in answers)
    stop(session)
    inputs, _ = fates(check_rest(session))
    assert inputs == [one.id]
    assert session.ask(one) == answers[0]
    assert len(session.runs()) == 1


def test_l10_the_same_message_from_many_threads_is_one_input(kit: Kit) -> None:
    session = kit.session(hold)
    one = NewMessage(content="go")
    answers: list[Accepted] = []
    threads = [threading.Thread(target=lambda: answers.append(session.ask(one))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    assert all(answer == answers[0] for answer in answers)
    stop(session)
    assert fates(check_rest(session))[0] == [one.id]


def test_l10_a_stop_sent_again_ends_no_later_run(kit: Kit) -> None:
    session = kit.session(hold)
    say(session, "one")
    request = Stop(source="user.test", reason="once")
    first = ask_stop(session, request)
    second = say(session, "two")
    until_holding(session, second)
    assert session.ask(request) == first
    assert session.run(second).status == "in_progress"
    assert len([event for event in log(session) if event.kind == "session.fenced"]) == 1
    stop(session)
    settled(session)


def test_l10_an_answer_is_the_same_after_a_restart(kit: Kit) -> None:
    session = kit.session(hold)
    first, queued = NewMessage(content="one"), message("two", policy="enqueue")
    answers = [session.ask(first), session.ask(queued)]
    request = Stop(source="user.test", reason="over")
    stopped = ask_stop(session, request)
    settled(session)
    kit.close()
    session = kit.session(hold)
    # What became of one that waited is news; the answer stands.
    assert [session.ask(first), session.ask(queued)] == [answers[0], replace(answers[1], fate="returned")]
    assert session.ask(request) == stopped
    assert len([event for event in log(session) if event.kind == "run.started"]) == 1


@pytest.mark.parametrize("policy", ["enqueue", "steer"])
@pytest.mark.parametrize("fate", ["input", "returned"])
def test_l10_the_answer_to_a_repeat_says_what_became_of_a_message_that_waited(kit: Kit, policy: str, fate: str) -> None:
    gate = kit.gate()
    session = kit.session(lambda turn: (turn.emit("x"), gate.wait()))
    first = NewMessage(content="one")
    began = session.ask(first)
    waits = message("two", policy=policy)
    accepted = session.ask(waits)
    assert (accepted.queued, accepted.fate) == (True, None)
    assert session.ask(waits) == accepted, "it waits on"
    if fate == "returned":
        stop(session)
    gate.set()
    settled(session)
    for _ in range(2):
        assert session.ask(waits) == replace(accepted, fate=fate)
        assert session.ask(first) == began
        kit.close()
        session = kit.session(hold)


@pytest.mark.parametrize("how", ["ask", "stop", "restart"])
def test_l10_the_same_id_with_other_content_is_an_error(kit: Kit, how: str) -> None:
    session = kit.session(hold)
    one = NewMessage(content="go")
    until_holding(session, session.ask(one).run_id or "")
    if how == "restart":
        kit.close(0.0)
        session = kit.session(hold)
    other: Any = NewMessage(id=one.id, content="other")
    if how == "stop":
        other = Stop(id=one.id, source="user.test", reason="other")
    before = session.status().last_seq
    with pytest.raises(RequestReused) as caught:
        session.ask(other)
    assert caught.value.code == "request_reused"
    assert session.status().last_seq == before
    stop(session)
    settled(session)


def test_l10_a_refusal_has_no_effect_and_may_be_sent_again(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("x")
        gate.wait()

    session = kit.session(agent)
    first = say(session, "one")
    refused = message("two", policy="reject")
    with pytest.raises(CountermandError):
        session.ask(refused)
    gate.set()
    session.receipt(first, timeout=WAIT_S)
    accepted = session.ask(refused)
    assert accepted.run_id is not None
    session.receipt(accepted.run_id, timeout=WAIT_S)
    assert len(fates(check_rest(session))[0]) == 2


def test_l10_ids_are_per_session(kit: Kit) -> None:
    supervisor = kit.start(lambda turn: turn.emit("x"))
    one = NewMessage(content="go")
    runs = [supervisor.session(name).ask(one).run_id for name in ("a", "b")]
    assert runs[0] != runs[1]
    for name in ("a", "b"):
        assert fates(check_rest(supervisor.session(name)))[0] == [one.id]


def test_l10_a_start_while_the_clock_is_ahead_forgets_no_answer(kit: Kit, steps: ClockSteps) -> None:
    session = kit.session(lambda turn: turn.emit("x"), passivate_s=0.05)
    say(session)
    check_rest(session)
    resume = Resume()
    answer = session.ask(resume)
    check_rest(session)
    kit.close()
    steps.by(3 * YEAR_S)
    session = kit.session(lambda turn: turn.emit("x"), passivate_s=0.05)
    assert session.status().state == "idle"
    steps.by(-3 * YEAR_S)
    assert session.ask(resume) == answer
    assert len(session.runs()) == 2


def test_l10_an_id_from_before_the_horizon_is_too_old(kit: Kit) -> None:
    session = kit.session(hold)
    old = "req_" + "0" * 26
    with pytest.raises(RequestTooOld) as caught:
        session.ask(NewMessage(id=old, content="ancient"))
    assert caught.value.code == "request_too_old"
    assert session.status().state == "idle"


def made_at(seconds: int) -> str:
    """A request id as it is made at a time."""
    number, digits = seconds * 1000 << 80, ""
    for shift in range(125, -1, -5):
        digits += "0123456789abcdefghjkmnpqrstvwxyz"[number >> shift & 31]
    assert request_time("req_" + digits) == seconds
    return "req_" + digits


def test_l10_what_the_book_forgot_is_too_old_and_never_new_again() -> None:
    book = RequestBook("s1", kept=3, kept_s=1e12)
    requests = [Resume(id=made_at(1000 + number)) for number in range(5)]
    answer = Accepted("m", None, None, message("x").resolved_policy)
    for request in requests:
        assert book.known(request, 2000.0) is None
        book.answered(request, answer, 2000.0)
    for request in requests[-3:]:
        assert book.known(request, 2000.0) == answer
    with pytest.raises(RequestTooOld):
        book.known(requests[0], 2000.0)


@pytest.mark.parametrize("identity", ["", "   ", "x" * 129])
def test_l10_an_id_that_cannot_be_one_is_refused_where_it_is_made(identity: str) -> None:
    with pytest.raises(Invalid):
        NewMessage(id=identity, content="go")


def test_l10_each_request_makes_an_id_of_its_own() -> None:
    assert len({NewMessage(content="same").id for _ in range(10_000)}) == 10_000


def answers(session: SessionHandle, *stops: Stop) -> list[tuple[str, str | None, str]]:
    """What of the answers to some Stops stands."""
    told = [session.ask(one, timeout=WAIT_S) for one in stops]
    return [(answer.outcome, answer.run_id, answer.receipt_id) for answer in told]


def a_stop(**fields: Any) -> Stop:
    return Stop(source="user.test", reason="once", **fields)


def test_l10_what_a_stop_was_answered_while_the_store_failed_it_is_answered_when_it_is_back(
    kit: Kit, faults: StoreFaults
) -> None:
    session = kit.session(hold)
    run_id = say(session, "one")
    waiting = session.ask(NewMessage(content="two", policy="enqueue", origin="bot")).run_id
    until_holding(session, run_id)
    # Until then the session is not read anew either: it stays as the failure has left it.
    faults.may_read.clear()
    faults.fail(session)
    # The second is aimed at what the first has withdrawn.
    first, second, third = a_stop(), a_stop(run_id=waiting, scope="session"), a_stop(run_id=run_id)
    told = answers(session, first, second, third)
    assert [(outcome, run) for outcome, run, _ in told] == [
        ("stopping", run_id),
        ("already_over", waiting),
        ("stopping", run_id),
    ]
    assert answers(session, first, second, third) == told, "while it fails"
    faults.may_read.set()
    faults.fail_again()
    late = a_stop()
    told += answers(session, late)
    assert answers(session, first, second, third, late) == told, "when it has failed again"
    faults.failing = False
    until(lambda: session.ask(late, timeout=WAIT_S).durable, "the store takes them")
    assert answers(session, first, second, third, late) == told, "when it is back"
    for _, _, receipt_id in told:
        assert session.receipt(receipt_id, timeout=WAIT_S).complete
    kit.close()
    session = kit.session(hold)
    assert answers(session, first, second, third, late) == told, "after a restart"
    check_rest(session)


def test_l10_a_stored_answer_is_given_while_the_store_fails(kit: Kit, faults: StoreFaults) -> None:
    session = kit.session(hold)
    until_holding(session, say(session, "one"))
    first = a_stop()
    told = ask_stop(session, first)
    assert (told.outcome, told.durable) == ("stopped", True)
    faults.fail(session)
    assert session.ask(first, timeout=WAIT_S) == told
    with pytest.raises(RequestReused):
        session.ask(replace(first, reason="another"), timeout=WAIT_S)
    faults.failing = False
    until(lambda: session.ask(a_stop(), timeout=WAIT_S).durable, "the store is back")
    assert session.ask(first, timeout=WAIT_S) == told


def test_l10_an_answer_stands_where_the_store_does_not_take_the_deletion_that_forgot_it(
    kit: Kit, faults: StoreFaults
) -> None:
    session = kit.session(hold)
    until_holding(session, say(session, "one"))
    first = a_stop()
    told = ask_stop(session, first)
    settled(session)
    # What the store has of the deletion is found out when it is read, and not before.
    faults.may_read.clear()
    faults.failing = True
    with pytest.raises(StoreUnavailable):
        session.ask(Delete(source="user.test", reason="once"), timeout=WAIT_S)
    doubtful = session.ask(first, timeout=WAIT_S)
    assert (doubtful.outcome, doubtful.durable) == (UNKNOWN, False)
    faults.failing = False
    faults.may_read.set()
    until(lambda: session.ask(first, timeout=WAIT_S).durable, "the store is back")
    assert session.ask(first, timeout=WAIT_S) == told
    check_rest(session)


def read_slowly(faults: StoreFaults, session: SessionHandle, request: Stop) -> Stopped:
    """Ask while the session is read, which goes on until somebody is answered, or for a second."""
    told: list[Stopped] = []
    asking = threading.Thread(target=lambda: told.append(session.ask(request, timeout=WAIT_S)))
    asking.start()
    asking.join(1.0)
    faults.may_read.set()
    asking.join(WAIT_S)
    (answer,) = told
    return answer


def test_l10_a_stop_of_a_session_with_a_long_log_waits_for_what_is_true(
    kit: Kit, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the session is read before a Stop is answered without it.
    monkeypatch.setattr("actors.hierarchy.late_stops.STOP_UNREAD_S", WAIT_S)
    session = kit.session(hold)
    session.ask(NewMessage(content="it is there"))
    stop(session)
    session.ask(NewMessage(content="to wait", policy="enqueue", origin="bot"))
    until_holding(session, session.runs()[-1].run_id)
    session.ask(a_stop(waiting="park"))
    settled(session)
    kit.close()
    faults.may_read.clear()
    session = kit.session(hold)
    request = a_stop()
    first = read_slowly(faults, session, request)
    assert first.outcome == "nothing_running"
    # Where the disk is slow it is answered ahead of its record.
    assert ask_stop(session, request) == replace(first, durable=True, journalled=False)
    assert session.receipt(first.receipt_id, timeout=WAIT_S).receipt_id == first.receipt_id
    check_rest(session)


def test_l10_a_stored_answer_is_given_again_when_the_session_has_been_read(
    kit: Kit, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.late_stops.STOP_UNREAD_S", WAIT_S)
    session = kit.session(hold)
    until_holding(session, say(session, "one"))
    request = a_stop()
    first = ask_stop(session, request)
    before = check_rest(session)
    kit.close()
    faults.may_read.clear()
    session = kit.session(hold)
    assert read_slowly(faults, session, request) == first
    assert check_rest(session) == before, "it is no other Stop, and was answered once"


def test_l10_what_is_not_known_is_said_to_be_and_its_receipt_is_found_when_it_is(
    kit: Kit, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hierarchy.late_stops.STOP_UNREAD_S", STOP_OVERDUE_S)
    session = kit.session(hold)
    until_holding(session, say(session, "go"))
    session.ask(NewMessage(content="parked", policy="enqueue", origin="bot"))
    session.ask(a_stop(waiting="park"))
    settled(session)
    parked = session.runs()[-1].run_id
    kit.close()
    faults.may_read.clear()
    session = kit.session(hold)
    request = a_stop(run_id=parked)
    told = session.ask(request, timeout=WAIT_S)
    assert (told.outcome, told.run_id, told.receipt_id, told.durable) == ("unknown", None, request.id, False)
    with pytest.raises(ReceiptPending):
        session.receipt(told.receipt_id)
    faults.may_read.set()
    receipt = session.receipt(told.receipt_id, timeout=WAIT_S)
    again = session.ask(request, timeout=WAIT_S)
    assert (again.outcome, again.run_id, again.durable) == ("stopped", parked, True)
    assert receipt.receipt_id == again.receipt_id
    durable = [event.data for event in log(session) if event.kind == "session.stop_durable"]
    assert [(data["request_id"], data["receipt_id"]) for data in durable] == [(request.id, again.receipt_id)]
    check_rest(session)
