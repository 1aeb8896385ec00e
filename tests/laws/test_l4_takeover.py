"""L4 Takeover: each accepted message is an input of exactly one run, in order, or is returned where its sender sees."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

import pytest
from pykka import ActorDeadError

from actors import (
    AsyncTurn,
    CountermandError,
    Resume,
    RunActive,
    RunStatus,
    ShuttingDown,
    Stop,
    Turn,
    Withdraw,
)
from actors.messages import RunDeadline
from supervisor import SessionHandle
from tests.kit import WAIT_S, Kit, check_rest, fates, log, message, poison, say, settled, stop, until


def echo(turn: Turn) -> None:
    for one in turn.inputs:
        turn.emit(one.content)


def hold(turn: Turn) -> None:
    turn.emit("holding")
    turn.cancel_token.wait()
    turn.cancel_token.raise_if_cancelled()


def until_holding(session: SessionHandle, run_id: str) -> None:
    until(lambda: any(e.kind == "text" and e.run_id == run_id for e in log(session)), "the agent holds")


def contents(session: SessionHandle, run_id: str) -> list[str]:
    return [m.content for m in session.thread() if m.role == "user" and m.run_id == run_id]


def test_l4_a_message_to_an_idle_session_is_the_input_of_its_run(kit: Kit) -> None:
    session = kit.session(echo)
    run_id = say(session, "hello")
    session.receipt(run_id, timeout=WAIT_S)
    assert contents(session, run_id) == ["hello"]
    assert [m.content for m in session.thread()] == ["hello", "hello"]


def test_l4_a_persons_message_supersedes_at_once_with_all_that_waits_before_it(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    session.ask(message(content="two", policy="enqueue"))
    session.ask(message(content="three", origin="schedule"))
    accepted = session.ask(message(content="four"))
    assert accepted.superseded_run_id == first
    assert [m.content for m in accepted.with_messages] == ["two", "three"]
    assert accepted.run_id is not None
    assert contents(session, accepted.run_id) == ["two", "three", "four"]
    receipt = session.receipt(first, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.source == "session.new_message"
    assert receipt.provenance.requested_by == accepted.message_id
    stop(session)
    check_rest(session)


def test_l4_the_fence_the_message_and_the_next_run_are_one_step(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    accepted = session.ask(message(content="two"))
    events = log(session)
    fence = next(event for event in events if event.kind == "session.fenced")
    start = next(event for event in events if event.kind == "run.started" and event.run_id == accepted.run_id)
    assert fence.generation == start.generation == accepted.generation
    between = [event.kind for event in events[fence.seq : start.seq - 1]]
    assert between == ["run.status", "message"]
    stop(session)
    settled(session)


@pytest.mark.parametrize("end", ["returns", "fails", "expires", "stopped"])
def test_l4_what_waits_starts_when_the_active_run_ends_in_any_way(kit: Kit, end: str) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("holding")
        if turn.inputs[-1].content != "one":
            return
        while not gate.wait(0.005):
            turn.cancel_token.raise_if_cancelled()
        if end == "fails":
            raise ValueError("no")

    session = kit.session(agent, run_deadline_s=3600.0)
    first = say(session, "one")
    until_holding(session, first)
    waiting = session.ask(message(content="two", policy="enqueue"))
    assert waiting.queued
    assert waiting.generation is None
    assert waiting.run_id is not None
    assert session.run(waiting.run_id).status is RunStatus.QUEUED
    if end == "stopped":
        stop(session, waiting="keep")
    elif end == "expires":
        kit.fire(RunDeadline)
    else:
        gate.set()
    session.receipt(waiting.run_id, timeout=WAIT_S)
    assert session.run(waiting.run_id).status is RunStatus.COMPLETED
    assert contents(session, waiting.run_id) == ["two"]
    # The second run does not wait for the last of the first.
    session.receipt(first, timeout=WAIT_S)
    assert (
        session.run(first).status
        == {"returns": "completed", "fails": "failed", "expires": "expired", "stopped": "cancelled"}[end]
    )
    check_rest(session)


def test_l4_a_message_to_a_cancelling_session_runs_at_once(kit: Kit) -> None:
    inside, gate = threading.Event(), kit.gate()

    def agent(turn: Turn) -> None:
        if turn.inputs[-1].content == "deaf":
            inside.set()
            gate.wait()
        turn.emit("done")

    session = kit.session(agent, kill_s=30.0)
    first = say(session, "deaf")
    assert inside.wait(WAIT_S)
    stop(session)
    second = session.ask(message(content="now"))
    assert not second.queued
    until(lambda: second.run_id is not None and session.run(second.run_id).status is RunStatus.COMPLETED, "it ran")
    assert session.run(first).status is RunStatus.CANCELLING
    gate.set()
    check_rest(session)
    assert session.run(first).status is RunStatus.CANCELLED


@pytest.mark.parametrize("policy", ["interrupt", "enqueue", "steer", "rollback"])
def test_l4_a_message_that_meets_the_end_of_a_run_is_an_input_once(kit: Kit, policy: str) -> None:
    def agent(turn: Turn) -> None:
        turn.emit("x")
        turn.steering()

    session = kit.session(agent)
    ids = []
    for number in range(150):
        sent = message(content=str(number), policy=policy)
        ids.append(sent.id)
        session.ask(sent)
    events = check_rest(session)
    inputs, returned = fates(events)
    assert inputs == ids
    assert returned == []


def test_l4_messages_and_stops_from_many_threads_leave_each_message_one_fate(kit: Kit) -> None:
    async def agent(turn: AsyncTurn) -> None:
        for _ in range(3):
            await turn.emit("x")
            await turn.steering()

    session = kit.session(agent, grace_s=0.05, kill_s=0.2)
    accepted: list[list[str]] = [[] for _ in range(4)]

    def send(number: int) -> None:
        seed = random.Random(number)
        for _ in range(60):
            if seed.random() < 0.2:
                stop(session, waiting=seed.choice(["withdraw", "keep", "park"]))
                continue
            policy = seed.choice(["interrupt", "enqueue", "steer", "rollback", "reject"])
            sent = message(
                content="m", policy=policy, merge=seed.random() < 0.5, origin=seed.choice(["user", "schedule"])
            )
            try:
                session.ask(sent, timeout=WAIT_S)
            except RunActive:
                continue
            accepted[number].append(sent.id)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(session, "last", policy="enqueue")
    # Refused where something runs: then what waits starts by itself.
    with contextlib.suppress(CountermandError):
        session.ask(Resume())
    settled(session)
    if session.status().parked:
        session.ask(Resume())
    events = check_rest(session)
    inputs, returned = fates(events)
    counts = Counter(inputs + returned)
    for ids in accepted:
        assert all(counts[message_id] == 1 for message_id in ids), [i for i in ids if counts[i] != 1]
        own = [message_id for message_id in inputs if message_id in set(ids)]
        assert own == [message_id for message_id in ids if message_id in set(own)], "a sender's order was changed"
    runs = {message_id: run.run_id for run in session.runs() for message_id in run.inputs}
    assert Counter(i for run in session.runs() for i in run.inputs).most_common(1)[0][1] == 1
    assert set(runs) == set(inputs)


def test_l4_a_stop_returns_what_waits_in_its_answer_and_as_events(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    waiting = [session.ask(message(content=text, policy="enqueue")) for text in ("two", "three")]
    stopped = stop(session)
    assert [m.content for m in stopped.withdrawn] == ["two", "three"]
    assert [m.id for m in stopped.withdrawn] == [accepted.message_id for accepted in waiting]
    events = check_rest(session)
    back = [event.data for event in events if event.kind == "session.message_returned"]
    assert [(data["message_id"], data["reason"], data["content"]) for data in back] == [
        (waiting[0].message_id, "withdrawn", "two"),
        (waiting[1].message_id, "withdrawn", "three"),
    ]
    queued = waiting[0].run_id
    assert queued is not None
    assert session.run(queued).status is RunStatus.CANCELLED
    assert session.receipt(queued).withdrawn == tuple(accepted.message_id for accepted in waiting)
    assert session.receipt(first).withdrawn == tuple(accepted.message_id for accepted in waiting)
    assert "two" not in [m.content for m in session.thread()]


def test_l4_what_a_stop_parks_waits_for_a_person(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    session.ask(message(content="two", policy="enqueue"))
    stop(session, waiting="park")
    session.receipt(first, timeout=WAIT_S)
    by_schedule = session.ask(message(content="three", origin="schedule"))
    assert by_schedule.queued
    assert session.status().parked
    by_person = session.ask(message(content="four"))
    assert [m.content for m in by_person.with_messages] == ["two", "three"]
    assert by_person.run_id is not None
    assert contents(session, by_person.run_id) == ["two", "three", "four"]
    stop(session)
    settled(session)


def test_l4_resume_takes_up_what_was_parked(kit: Kit) -> None:
    session = kit.session(hold)
    until_holding(session, say(session, "one"))
    session.ask(message(content="two", policy="enqueue"))
    stop(session, waiting="park")
    resumed = session.ask(Resume())
    assert [m.content for m in resumed.with_messages] == ["two"]
    assert contents(session, resumed.run_id) == ["two"]
    assert session.run(resumed.run_id).generation == resumed.generation
    stop(session)
    settled(session)


def test_l4_turns_that_do_not_merge_are_runs_of_their_own(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("holding")
        gate.wait()

    session = kit.session(agent)
    until_holding(session, say(session, "one"))
    asked = [
        session.ask(message(content=text, policy="enqueue", merge=merge))
        for text, merge in (("a", True), ("b", True), ("alone", False), ("c", True), ("d", True))
    ]
    runs = [accepted.run_id for accepted in asked]
    assert runs[0] == runs[1]
    assert runs[3] == runs[4]
    assert len(set(runs)) == 3
    gate.set()
    check_rest(session)
    assert [contents(session, run) for run in dict.fromkeys(runs) if run] == [["a", "b"], ["alone"], ["c", "d"]]


def test_l4_steering_is_handed_over_once_and_is_in_the_thread(kit: Kit) -> None:
    gate = kit.gate()
    got: list[list[str]] = []

    def agent(turn: Turn) -> None:
        turn.emit("holding")
        gate.wait()
        got.append([m.content for m in turn.steering()])
        got.append([m.content for m in turn.steering()])

    session = kit.session(agent)
    run_id = say(session, "one")
    until_holding(session, run_id)
    accepted = session.ask(message(content="left a bit", policy="steer"))
    assert (accepted.run_id, accepted.queued) == (run_id, True)
    assert accepted.generation == session.run(run_id).generation
    gate.set()
    check_rest(session)
    assert got == [["left a bit"], []]
    assert contents(session, run_id) == ["one", "left a bit"]
    assert session.run(run_id).inputs[-1] == accepted.message_id


def test_l4_steering_that_the_run_did_not_ask_for_keeps_its_place_in_the_queue(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("holding")
        gate.wait()

    session = kit.session(agent)
    first = say(session, "one")
    until_holding(session, first)
    session.ask(message(content="steer", policy="steer"))
    session.ask(message(content="after", policy="enqueue"))
    gate.set()
    events = check_rest(session)
    inputs = [event.data["content"] for event in events if event.kind == "message"]
    assert inputs == ["one", "steer", "after"]
    moved = [e for e in events if e.kind == "session.message_waiting" and e.data["content"] == "steer"]
    assert moved[0].run_id == first
    assert moved[-1].run_id != first
    assert not moved[-1].data["steering"]


def test_l4_a_withdrawn_message_is_returned_once_and_never_an_input(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    waiting = session.ask(message(content="two", policy="enqueue"))
    assert session.ask(Withdraw(message_id=waiting.message_id)).outcome == "withdrawn"
    assert session.ask(Withdraw(message_id=waiting.message_id)).outcome == "already_returned"
    assert session.ask(Withdraw(message_id=session.run(first).inputs[0])).outcome == "already_input"
    stop(session)
    inputs, returned = fates(check_rest(session))
    assert waiting.message_id not in inputs
    assert returned == [waiting.message_id]
    assert waiting.run_id is not None
    assert session.run(waiting.run_id).status is RunStatus.CANCELLED


def test_l4_a_message_that_was_sent_before_the_last_stop_comes_back(kit: Kit) -> None:
    session = kit.session(echo)
    stop(session, sent_at=1000.0)
    early = session.ask(message(content="early", sent_at=999.0))
    assert (early.returned, early.run_id, early.generation) == ("stopped_before_arrival", None, None)
    other = session.ask(message(content="of another", origin="schedule", sent_at=999.0))
    assert other.returned is None
    late = session.ask(message(content="late", sent_at=1001.0))
    assert late.returned is None
    inputs, returned = fates(check_rest(session))
    assert returned == [early.message_id]
    assert inputs == [other.message_id, late.message_id]


def test_l4_what_was_sent_after_a_stop_runs_though_the_stop_was_under_way_for_longer(kit: Kit) -> None:
    session = kit.session(echo)
    stopping = Stop(source="user.test", reason="the test says so")
    sent_at = time.time()  # noqa: TID251  # as a client does
    # Both take their time: the Stop is handled later than the message was sent, and before the message comes.
    until(lambda: time.time() > sent_at)  # noqa: TID251
    assert session.ask(stopping).outcome == "nothing_running"
    accepted = session.ask(message(content="behind it", sent_at=sent_at))
    assert accepted.returned is None
    inputs, returned = fates(check_rest(session))
    assert (inputs, returned) == ([accepted.message_id], [])


def test_l4_rollback_retracts_the_senders_input_and_its_output(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "wrong")
    until_holding(session, first)
    accepted = session.ask(message(content="right", policy="rollback"))
    old = [m for m in session.thread() if m.run_id == first]
    assert {(m.role, m.status) for m in old} == {("user", "retracted"), ("assistant", "retracted")}
    assert accepted.superseded_run_id == first
    stop(session)
    check_rest(session)


def test_l4_what_waits_when_the_supervisor_ends_runs_after_the_next_start(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    waiting = session.ask(message(content="two", policy="enqueue"))
    kit.close(0.0)
    session = kit.session(echo)
    assert waiting.run_id is not None
    session.receipt(waiting.run_id, timeout=WAIT_S)
    assert contents(session, waiting.run_id) == ["two"]
    assert session.run(first).provenance.source == "supervisor.shutdown"  # type: ignore[union-attr]
    inputs, _ = fates(check_rest(session))
    assert len(inputs) == 2


def test_l4_messages_that_arrive_while_the_supervisor_ends_are_refused_or_kept(kit: Kit) -> None:
    gate = kit.gate()

    def agent(turn: Turn) -> None:
        turn.emit("x")

    session = kit.session(agent)
    accepted: list[str] = []
    going = threading.Event()

    def send() -> None:
        while not gate.is_set():
            sent = message(content="m", policy="enqueue")
            try:
                session.ask(sent, timeout=WAIT_S)
            except ShuttingDown:
                break
            except Exception:
                # The supervisor has ended: nothing was promised.
                break
            accepted.append(sent.id)
            if len(accepted) > 20:
                going.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert going.wait(WAIT_S)
    kit.close(0.0)
    gate.set()
    thread.join()
    session = kit.session(agent)
    inputs, returned = fates(check_rest(session))
    counts = Counter(inputs + returned)
    assert all(counts[message_id] == 1 for message_id in accepted)
    assert [i for i in inputs if i in set(accepted)] == accepted


@pytest.mark.parametrize("how", ["poison", "stop"])
def test_l4_messages_survive_the_death_of_the_sessions_actor(kit: Kit, how: str) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    until_holding(session, first)
    waiting = session.ask(message(content="two", policy="enqueue"))
    kill(session, how)
    assert waiting.run_id is not None
    until_holding(session, waiting.run_id)
    assert contents(session, waiting.run_id) == ["two"]
    receipt = session.receipt(first, timeout=WAIT_S)
    assert receipt.provenance is not None
    assert receipt.provenance.source == "actor.failure"
    stop(session)
    inputs, _ = fates(check_rest(session))
    assert len(inputs) == 2


def kill(session: SessionHandle, how: str) -> None:
    """End a session's actor: by hand, or by a message that its handler fails on."""
    ref = session.ref
    assert ref is not None
    if how == "stop":
        ref.stop()
    else:
        poison(ref)
    until(lambda: not ref.is_alive(), "the end of the actor")


def test_l4_asks_that_are_in_the_mailbox_of_a_session_that_dies_are_answered(kit: Kit) -> None:
    session = kit.session(echo)
    say(session, "zero")
    ids: list[str] = []
    errors: list[BaseException] = []

    def send() -> None:
        for number in range(100):
            sent = message(content=str(number), policy="enqueue")
            try:
                session.ask(sent, timeout=WAIT_S)
            except BaseException as error:
                errors.append(error)
            ids.append(sent.id)

    thread = threading.Thread(target=send)
    thread.start()
    while thread.is_alive():
        ref, answered = session.ref, len(ids)
        if ref is not None and ref.is_alive():
            try:
                ref.stop(block=False)
            except Exception:
                continue
        # However slow the machine is, an answer comes before the next death.
        until(lambda answered=answered: len(ids) > answered or not thread.is_alive(), "an answer")  # type: ignore[misc]
    assert errors == []
    inputs, returned = fates(check_rest(session))
    assert [i for i in inputs if i in set(ids)] == ids
    assert returned == []


def test_l4_reject_names_the_active_run(kit: Kit) -> None:
    session = kit.session(hold)
    first = say(session, "one")
    with pytest.raises(RunActive) as caught:
        session.ask(message(content="two", policy="reject"))
    assert caught.value.run_id == first
    session.ask(Stop(source="user.test", reason="over"))
    inputs, _ = fates(check_rest(session))
    assert len(inputs) == 1


def test_l4_messages_that_are_sent_to_a_session_that_dies_are_not_lost(kit: Kit) -> None:
    session = kit.session(echo)
    say(session, "zero")
    sent = [message(str(number), policy="enqueue") for number in range(200)]
    for number, one in enumerate(sent):
        session.tell(one)
        ref = session.ref
        if number % 3 == 0 and ref is not None:
            with contextlib.suppress(ActorDeadError):
                ref.stop(block=False)
    until(lambda: len(fates(log(session))[0]) == 1 + len(sent), "every message an input")
    inputs, _ = fates(check_rest(session))
    assert inputs[1:] == [one.id for one in sent]


def test_l4_what_was_sent_just_before_a_stop_is_returned_and_what_was_sent_just_after_it_runs(kit: Kit) -> None:
    """Within the same millisecond too, though the Stop itself says no time."""
    session = kit.session(echo)
    for number in range(20):
        # As a client does: the time of its message is an argument of the message, which is made before the Stop is.
        early = message(f"late {number}", sent_at=time.time())  # noqa: TID251
        session.ask(Stop(source="user.test", reason="enough"))
        assert session.ask(early).returned == "stopped_before_arrival"
        stopping = Stop(source="user.test", reason="enough")
        after = time.time()  # noqa: TID251
        session.ask(stopping)
        taken = session.ask(message(f"new {number}", sent_at=after))
        assert taken.returned is None
        settled(session)
    check_rest(session)
