"""The decisions of a session alone: any requests and any reports, true, stale, repeated or out of nowhere.

See `protocol_driver`, and for sessions with child runs `protocol_family`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from actors.dead_letters import DeadLetters
from actors.decoding import decoder
from actors.errors import QueueFull
from actors.events import AnswerBegunData, AnswerEndedData, BlockData, Emitted, TextData
from actors.messages import (
    LateRefused,
    Said,
)
from actors.model import Provenance, RunInfo, StopOutcome, Waiting
from actors.ports import KeptStop, SessionRow, Snapshot, WaitingRow
from actors.protocol.request_book import RequestBook
from actors.protocol.run_record import AGENT
from actors.protocol.step import (
    KeepDeadLetter,
    ReturnCredit,
)
from actors.protocol.stops import CUTOFFS_MAX
from actors.requests import (
    Accepted,
    Delete,
    NewMessage,
    Stop,
    Stopped,
)
from actors.run_status import RunStatus
from actors.thread import Thread
from tests.protocol_check import SESSION
from tests.protocol_driver import Driver, Op, started
from tests.protocol_family import Family
from tests.protocol_scripts import ENDS, FAMILY_BEGINNINGS, family_scripts, scripts

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.timeout(600)  # a failure is worth the time that it takes to shrink
@settings(max_examples=900, deadline=None)
@given(script=scripts)
def test_any_requests_and_any_reports_keep_the_laws(script: list[Op]) -> None:
    driver = Driver()
    for one in script:
        driver.play(one)
    driver.finish()


@pytest.mark.parametrize("then", ["end", "leave", "stop"])
def test_l2_calls_of_an_answer_are_granted_with_its_end_and_not_otherwise(then: str) -> None:
    driver = Driver()
    for one in (("new", None, "user", True, None), ("commit", 9), ("begin_answer", 0, 2), ("commit", 9)):
        driver.play(one)
    assert [call.cell for call in driver.calls] == [None, None]
    driver.play(("stop", "graceful", None, None, None) if then == "stop" else ("answer", 0, 0, then))
    driver.commit(9)
    assert [call.cell is not None for call in driver.calls] == [then == "end"] * 2
    assert set(driver.laws.outcomes.values()) == (set() if then == "end" else {"not_started"})
    # Once more, and late: nothing of it counts.
    for what in ("end", "leave", "text", "block"):
        driver.play(("answer", 0, 0, what))
    driver.commit(9)
    assert [call.cell is not None for call in driver.calls] == [then == "end"] * 2
    driver.finish()


@pytest.mark.parametrize("over", ["end", "leave"])
def test_l6_a_part_of_an_answer_that_is_not_open_is_a_dead_letter(over: str) -> None:
    driver = Driver()
    for one in (("new", None, "user", True, None), ("commit", 9), ("begin_answer", 0, 0)):
        driver.play(one)
    address, ((_, answer),) = driver.address(0), driver.begun
    assert address is not None

    def refused(data: Emitted) -> None:
        driver.protocol.report(Said(address, data, 7))
        step = driver.protocol.state.step
        assert [effect.kind for effect in step.now if isinstance(effect, KeepDeadLetter)] == [str(data.event_kind)]
        assert ReturnCredit(address.run, [7]) in step.later
        assert not driver.took()

    refused(AnswerBegunData(answer=answer))
    driver.play(("answer", 0, 0, over))
    for data in (
        TextData(text="late", answer=answer),
        BlockData(answer=answer, data={"type": "thinking"}),
        AnswerEndedData(answer=answer),
    ):
        refused(data)
        refused(msgspec.structs.replace(data, answer="of nobody"))
    driver.finish()


@pytest.mark.timeout(600)
@settings(max_examples=300, deadline=None)
@given(script=scripts)
def test_any_requests_and_any_reports_keep_the_laws_behind_a_strict_barrier(script: list[Op]) -> None:
    driver = Driver("strict")
    for one in script:
        driver.play(one)
    driver.finish()


@pytest.mark.timeout(600)
@settings(max_examples=300, deadline=None)
@given(script=family_scripts)
def test_any_delegations_between_sessions_keep_the_laws_of_parent_and_child(script: list[Op]) -> None:
    family = Family()
    for one in script:
        family.play(one)
    family.finish()


@pytest.mark.parametrize("ends", dict.fromkeys(ENDS))
@pytest.mark.parametrize("begins", FAMILY_BEGINNINGS)
def test_each_end_of_each_delegation_keeps_the_laws_of_parent_and_child(
    begins: tuple[Op, ...], ends: tuple[Op, ...]
) -> None:
    for then in ((), (("crash", 0),)):
        family = Family()
        for one in (*begins, *ends, *then, ("go",)):
            family.play(one)
        family.finish()


@pytest.mark.parametrize("waiting", ["park", "keep", "withdraw"])
def test_what_waits_when_a_run_is_stopped_is_parked_kept_or_withdrawn(waiting: str) -> None:
    driver = Driver()
    first = started(driver)
    driver.op_new("enqueue", "bot", True, None)
    driver.op_stop("graceful", None, waiting, None)
    assert driver.protocol.state.active is None
    driver.op_finish(0, True)
    active = driver.protocol.state.active
    if waiting == "keep":
        assert active is not None
        assert active.info.inputs == ("m2",)
    else:
        assert active is None
        assert driver.protocol.state.queue.parked == (waiting == "park")
    assert driver.laws.status[first] is RunStatus.CANCELLED
    if waiting == "park":
        # Others queue up behind what is parked; a person's message takes all of it along.
        driver.op_new("interrupt", "bot", True, None)
        assert driver.protocol.state.active is None
        answer = driver.request(NewMessage(id="mine", content="go on"))
        assert isinstance(answer, Accepted)
        assert [one.id for one in answer.with_messages] == ["m2", "m3"]
    driver.finish()


def test_l4_steering_messages_that_were_not_pulled_keep_their_own_turns_and_their_place() -> None:
    driver = Driver()
    started(driver)
    for merge in (True, False, True):
        driver.op_new("steer", "bot", merge, None)
    driver.op_new("enqueue", "bot", True, None)
    driver.op_stop("graceful", None, "park", None)
    assert [[row.message.id for row in turn.rows] for turn in driver.protocol.state.queue.turns] == [
        ["m2"],
        ["m3"],
        ["m4", "m5"],
    ]
    driver.finish()


def test_l4_a_stop_that_was_kept_is_decided_before_anything_of_a_restored_session_starts() -> None:
    over = RunInfo(
        session=SESSION,
        run_id="run_1",
        status=RunStatus.COMPLETED,
        agent="a",
        generation=1,
        receipt_id="rcpt_1",
        started_at=1.0,
        ended_at=2.0,
    )
    queued = RunInfo(
        session=SESSION, run_id="run_2", status=RunStatus.QUEUED, agent="a", generation=None, receipt_id="rcpt_2"
    )
    waiting = WaitingRow(SESSION, NewMessage(id="m", content="go", origin="bot"), 1, "run_2", False, 3.0)
    snapshot = Snapshot(
        SESSION, SessionRow(SESSION, generation=1, seq=0), Thread(), runs=(over, queued), waiting=(waiting,)
    )
    driver = Driver()
    # The run that is over settles while it is taken up, and what waits would start then.
    stop = Stop(id="x", source="user.test", reason="meanwhile")
    driver.protocol.restoration.restore(snapshot, None, stops=[KeptStop(SESSION, stop, 4.0)])
    events = driver.protocol.state.take_step().events
    assert [event.data["message_id"] for event in events if event.kind == "session.message_returned"] == ["m"]
    assert driver.protocol.state.active is None
    assert "run.started" not in [event.kind for event in events]


@pytest.mark.parametrize(
    ("waiting", "aimed", "waiting_too", "at", "returned", "parked", "started"),
    [
        # The run of the Stop waits in the store, and m2 behind it.
        (Waiting.WITHDRAW, "run_2", True, 4.0, ["m1", "m2"], False, []),
        (Waiting.PARK, "run_2", True, 4.0, ["m1"], True, []),
        (Waiting.KEEP, "run_2", True, 4.0, ["m1"], False, ["run_3"]),
        # Not even its message is in the store.
        (Waiting.WITHDRAW, "run_lost", True, 4.0, ["m1", "m2"], False, []),
        (Waiting.PARK, "run_lost", True, 4.0, [], True, []),
        # What waits came after it: the journal did not forget it in time.
        (Waiting.WITHDRAW, "run_lost", True, 2.0, [], False, ["run_2"]),
        (Waiting.PARK, "run_lost", True, 2.0, [], False, ["run_2"]),
        # It was aimed at a turn that waited: what else waits is none of its business (law L9).
        (Waiting.WITHDRAW, "run_2", False, 4.0, ["m1"], False, ["run_3"]),
    ],
)
def test_l10_a_kept_stop_does_with_waiting_messages_what_it_did_though_the_start_of_its_run_was_lost(
    waiting: Waiting, aimed: str, *, waiting_too: bool, at: float, returned: list[str], parked: bool, started: list[str]
) -> None:
    runs = tuple(RunInfo(SESSION, f"run_{n}", RunStatus.QUEUED, "a", None, f"rcpt_{n}") for n in (2, 3))
    rows = tuple(
        WaitingRow(
            SESSION, NewMessage(id=f"m{n - 1}", content="go", origin="bot", merge=False), n, f"run_{n}", False, 3.0
        )
        for n in (2, 3)
    )
    snapshot = Snapshot(SESSION, SessionRow(SESSION, generation=1, seq=0), Thread(), runs=runs, waiting=rows)
    stop = Stop(id="x", source="user.test", reason="enough", run_id=aimed, waiting=waiting)
    kept = KeptStop(SESSION, stop, at, StopOutcome.STOPPED, aimed, f"rcpt_{aimed}", 2, waiting_too=waiting_too)
    driver = Driver()
    driver.protocol.restoration.restore(snapshot, None, stops=[kept])
    events = driver.protocol.state.take_step().events
    assert [event.data["message_id"] for event in events if event.kind == "session.message_returned"] == returned
    assert driver.protocol.state.queue.parked == parked
    assert [event.run_id for event in events if event.kind == "run.started"] == started


@pytest.mark.parametrize(
    ("outcome", "run_id", "source"),
    [
        (None, None, "user.test"),
        (StopOutcome.STOPPED, "run_2", "user.test"),
        (StopOutcome.STOPPING, "run_2", "store.failure"),
        (StopOutcome.STOPPING, "run_1", "store.failure"),
        (StopOutcome.NOTHING_RUNNING, None, "store.failure"),
        (StopOutcome.ALREADY_OVER, "run_2", "store.failure"),
    ],
)
def test_l5_what_had_ended_before_a_kept_stop_is_not_ended_by_it(
    outcome: StopOutcome | None, run_id: str | None, source: str
) -> None:
    """A crash has come, and the Stop that the journal kept is all that tells of the failure ahead of it."""
    by_a_person = Provenance(source="user.test", reason="the first stop", initiated_at=1.5)
    ending, running = (
        RunInfo(SESSION, f"run_{n}", status, "a", n, f"rcpt_{n}", started_at=float(n))
        for n, status in ((1, RunStatus.CANCELLING), (2, RunStatus.IN_PROGRESS))
    )
    ending = msgspec.structs.replace(ending, provenance=by_a_person)
    failure = Provenance(source="store.failure", reason="the disk failed", initiated_at=3.0)
    kept = KeptStop(
        SESSION,
        Stop(id="x", source="user.test", reason="meanwhile"),
        4.0,
        outcome,
        run_id,
        run_id and f"rcpt_{run_id[-1]}",
        generation=2,
        cause=failure if outcome not in (None, StopOutcome.STOPPED) else None,
    )
    driver = Driver()
    row = SessionRow(SESSION, generation=2, seq=0)
    driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread(), runs=(ending, running)), None, stops=[kept])
    events = driver.protocol.state.take_step().events
    first = next(event for event in events if event.kind == "run.status" and event.run_id == "run_2")
    assert first.data["provenance"]["source"] == source
    assert not [event for event in events if event.kind == "run.started"], "a Stop came: nothing begins anew"


@pytest.mark.parametrize("failure", ["store.failure", "actor.failure"])
def test_l5_what_failed_before_a_kept_stop_ends_the_run_whose_start_was_stored_after_all(failure: str) -> None:
    """The Stop joined the run that a message had taken over from, and that has a cause of its own."""
    taken_over = Provenance(source="session.new_message", reason="a new message took over", initiated_at=1.5)
    before, after = (
        RunInfo(SESSION, f"run_{n}", RunStatus.IN_PROGRESS, "a", n, f"rcpt_{n}", started_at=float(n)) for n in (1, 2)
    )
    before = msgspec.structs.replace(before, status=RunStatus.CANCELLING, provenance=taken_over)
    kept = KeptStop(
        SESSION,
        Stop(id="x", source="user.test", reason="meanwhile"),
        4.0,
        StopOutcome.STOPPING,
        "run_1",
        "rcpt_1",
        generation=2,
        cause=taken_over,
        failure=Provenance(source=failure, reason="it failed", initiated_at=3.0),
    )
    driver = Driver()
    row = SessionRow(SESSION, generation=2, seq=0)
    driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread(), runs=(before, after)), None, stops=[kept])
    step = driver.protocol.state.take_step()
    ends = [event.data for event in step.events if event.kind == "run.status" and event.run_id == "run_2"]
    assert [end["provenance"]["source"] for end in ends] == [failure]
    assert not [event for event in step.events if event.kind == "run.started"], "a Stop came: nothing begins anew"
    (answered,) = (decoder(dict[str, Any])(row.answer) for row in step.requests if row.request_id == "x")
    assert (answered["outcome"], answered["run_id"]) == ("stopping", "run_1"), "its answer stands"


def test_l14_only_so_many_requests_wait_for_a_session_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.protocol.deletion.DELETIONS_MAX", 2)
    driver = Driver()
    started(driver)
    first, second, third = (Delete(source="user.test", reason=f"reason {number}") for number in range(3))
    # They wait for the agent, which has not ended.
    driver.protocol.requests.decide(first, None)
    driver.protocol.requests.decide(second, None)
    with pytest.raises(QueueFull):
        driver.protocol.requests.decide(third, None)
    assert [request for request, _ in driver.protocol.deletion.call_off()] == [first, second]


def test_l9_a_stop_that_comes_too_late_for_its_run_changes_nothing() -> None:
    driver = Driver()
    first = started(driver)
    driver.op_finish(0, True)
    second = started(driver)
    answer = driver.request(Stop(id="x", source="user.test", reason="late", run_id=first, sent_at=driver.clock.wall()))
    assert isinstance(answer, Stopped)
    assert answer.outcome == "already_over"
    assert driver.protocol.state.active is not None
    assert driver.protocol.state.active.id == second
    # Not even the cutoff: a message that left before that Stop is taken.
    late = NewMessage(id="m", content="and", policy="enqueue", sent_at=driver.clock.wall() - 60)
    accepted = driver.request(late)
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    driver.finish()


def test_l4_a_stop_from_a_clock_that_is_ahead_cuts_off_only_what_was_sent_before_it_came() -> None:
    driver = Driver()
    # Milliseconds where seconds are meant.
    stop = Stop(id="x", source="user.test", reason="enough", sent_at=driver.clock.wall() * 1000)
    assert isinstance(driver.request(stop), Stopped)
    driver.clock.elapse(1.0)
    accepted = driver.request(NewMessage(id="m", content="go", sent_at=driver.clock.wall()))
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    driver.finish()


@pytest.mark.parametrize("restored", [False, True])
def test_l4_a_clock_that_is_set_back_returns_no_message_that_is_sent_after_it(restored: bool) -> None:
    driver = Driver()
    driver.request(Stop(id="x", source="user.test", reason="enough", origin="user"))
    driver.clock.elapse(-3600.0)
    if restored:
        row = driver.protocol.state.row
        driver = Driver()
        driver.clock.elapse(-3600.0)
        driver.protocol.restoration.restore(Snapshot(SESSION, row, Thread()), None)
        driver.protocol.state.take_step()
    protocol, sent_at = driver.protocol, driver.clock.wall()
    driver.clock.elapse(1.0)
    accepted = protocol.requests.decide(NewMessage(id="m", content="go", sent_at=sent_at), None)
    assert isinstance(accepted, Accepted)
    assert accepted.returned is None
    # The next Stop draws a line of its own, by the clock as it is.
    protocol.requests.decide(Stop(id="y", source="user.test", reason="enough", origin="user"), None)
    protocol.state.take_step()
    driver.clock.elapse(1.0)
    for name, at, returned in (("n", sent_at, "stopped_before_arrival"), ("o", driver.clock.wall(), None)):
        accepted = protocol.requests.decide(NewMessage(id=name, content="go", sent_at=at), None)
        assert isinstance(accepted, Accepted)
        assert accepted.returned == returned


def test_l14_the_cutoffs_of_a_session_are_bounded_and_the_oldest_goes_first() -> None:
    driver = Driver()
    for number in range(CUTOFFS_MAX + 2):
        driver.request(Stop(id=f"x{number}", source="user.test", reason="enough", origin=f"o{number}"))
    assert list(driver.protocol.state.cutoffs) == [f"o{number}" for number in range(2, CUTOFFS_MAX + 2)]
    driver.finish()


def test_l10_what_the_book_forgot_is_in_the_row_of_its_batch() -> None:
    driver = Driver()
    driver.protocol.state.book = RequestBook(SESSION, kept=1, kept_s=1e9)
    driver.protocol.requests.decide(Stop(source="user.test", reason="one"), None)
    assert driver.protocol.state.row.forgotten_to == 0.0
    driver.protocol.state.take_step()
    driver.protocol.requests.decide(NewMessage(content="two"), None)
    step = driver.protocol.state.take_step()
    assert step.row_changed
    assert driver.protocol.state.row.forgotten_to > 0.0
    again = Driver()
    again.protocol.restoration.restore(Snapshot(SESSION, driver.protocol.state.row, Thread()), None)
    assert again.protocol.state.book.forgotten_to == driver.protocol.state.row.forgotten_to


def test_l5_a_part_that_a_lost_actor_left_is_still_waited_for() -> None:
    driver = Driver()
    run = started(driver)
    driver.op_lose_run(0)
    assert driver.laws.status[run] is RunStatus.FAILED
    assert run not in driver.laws.ended
    record = driver.protocol.state.record(run)
    assert record is not None
    assert [part.id for part in record.open_parts()] == [AGENT]
    driver.finish()
    assert driver.laws.ended[run]


def test_l1_what_was_refused_where_it_came_in_is_counted_and_changes_nothing_else() -> None:
    driver = Driver()
    run = started(driver)
    address = driver.agents[run]
    driver.request(Stop(id="x", source="user.test", reason="enough"))
    assert not driver.handle(LateRefused(address, {"text": 150, "call": 2}))
    driver.handle(LateRefused(address, {"text": 4}))
    record = driver.protocol.state.record(run)
    assert record is not None
    assert record.refused == {"text": 154, "call": 2}
    driver.finish()
    # Its receipt is filed: from now on these are dead letters alone.
    assert not driver.handle(LateRefused(address, {"text": 1}))


def test_a_letter_for_many_late_reports_counts_all_of_them() -> None:
    letters = DeadLetters(keep=2)
    letters.add("text", "late", None, 1.0, "150 of them", 150)
    letters.add("text", "late", None, 2.0)
    assert letters.counts() == {"text": 151}
    assert len(letters.recent()) == 2
