"""Stops that the store does not have yet: none is forgotten, and nobody is told twice."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pykka import ActorRef

from actors.hierarchy import late_stops
from actors.hierarchy.late_stops import STOP_LATE_S, STOP_OVERDUE_S, STOPS_KEPT_MAX, LateStops
from actors.kernel.future import ReplyFuture
from actors.messages import StopOverdue
from actors.model import Provenance, StopOutcome, Waiting
from actors.ports import KeptStop, Store
from actors.requests import Stop, Stopped
from tests.sim.clock import EPOCH, SimClock

STOPPED = Stopped(StopOutcome.STOPPED, "run-1", "receipt-1", 1)


def stop(name: str = "x", reason: str = "enough") -> Stop:
    return Stop(source="user.test", reason=reason, id=name)


class Journal:
    """What the stop journal was given and is not to forget, by id."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptStop] = {}

    def keep_stop(self, kept: KeptStop, owner: object) -> None:
        self.kept[kept.stop.id] = kept

    def forget_stop(self, session: str, request_id: str) -> None:
        del self.kept[request_id]


class Session:
    """A session whose Stops are late: it hears of its timers, and notes whom it is to answer."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.journal = Journal()
        self.loading = False
        self.to_answer: list[str] = []
        self.late = LateStops("s", self.clock, cast("Store", self.journal), cast("ActorRef[Any]", self))

    def tell(self, message: StopOverdue) -> None:
        if self.late.handle_overdue(message, in_stash=self.loading):
            self.to_answer.append(message.request_id)

    def wait(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while (due := self.clock.next_due()) is not None and due <= until:
            self.clock.fire()
        self.clock.elapse(until - self.clock.monotonic())

    def expect(self, request: Stop) -> None:
        self.late.begin_wait(request, self.clock.wall())

    def fail(self, request: Stop) -> ReplyFuture[Stopped]:
        reply: ReplyFuture[Stopped] = ReplyFuture()
        self.late.store_failed(request, STOPPED, reply)
        return reply


def answered(reply: ReplyFuture[Stopped]) -> tuple[bool, bool]:
    answer = reply.get(timeout=0)
    return answer.durable, answer.journalled


def test_a_stop_that_is_in_time_waits_for_nothing_any_more() -> None:
    session = Session()
    session.expect(stop())
    assert session.late.pending
    assert session.late.on_record(stop()) is None
    assert not session.late.pending
    session.wait(1.0)
    assert not session.journal.kept
    assert not session.to_answer


def test_a_late_stop_is_kept_and_forgotten_where_it_was_not_answered() -> None:
    session = Session()
    session.expect(stop())
    session.wait(STOP_LATE_S)
    assert session.journal.kept["x"] == KeptStop("s", stop(), EPOCH)
    assert session.late.on_record(stop()) is None
    assert not session.journal.kept
    assert not session.late.pending


def test_one_that_is_overdue_is_answered_once_and_stays_in_the_journal_until_that_is_on_record() -> None:
    session = Session()
    session.expect(stop())
    session.wait(STOP_OVERDUE_S)
    assert session.to_answer == ["x"]
    session.late.journalled("x")
    reply: ReplyFuture[Stopped] = ReplyFuture()
    session.late.answer("x", STOPPED, reply)
    assert answered(reply) == (False, True)
    session.wait(1.0)
    assert session.to_answer == ["x"]
    assert session.late.on_record(stop()) == stop(), "whoever was told otherwise is to hear it"
    assert "x" in session.journal.kept, "it is let go with the event that says so"


def test_another_request_under_its_id_ends_no_wait() -> None:
    session = Session()
    session.expect(stop())
    session.late.refused(stop(reason="another"))
    session.wait(STOP_OVERDUE_S)
    assert session.to_answer == ["x"]
    session.late.refused(stop(reason="another"))
    assert "x" in session.journal.kept
    session.late.refused(stop())
    assert not session.journal.kept
    assert not session.late.pending


def test_of_a_store_that_fails_the_answers_wait_for_the_journal_alone() -> None:
    session = Session()
    session.expect(stop())
    session.wait(STOP_OVERDUE_S - 0.01)
    first, again = session.fail(stop()), session.fail(stop())
    assert not first.done()
    assert session.late.answers_pending
    session.late.journalled("x")
    assert answered(first) == answered(again) == (False, True)
    assert answered(session.fail(stop())) == (False, True), "the journal has it by now"
    assert not session.late.answers_pending


def test_l5_the_journal_names_what_had_ended_its_run_and_what_has_failed() -> None:
    session, reply = Session(), ReplyFuture[Stopped]()
    cause = Provenance(source="session.new_message", reason="a new message took over", initiated_at=EPOCH)
    failure = Provenance(source="store.failure", reason="the disk failed", initiated_at=EPOCH)
    session.late.store_failed(stop(), STOPPED, reply, 2, cause, failure)
    kept = session.journal.kept["x"]
    assert (kept.answer and kept.answer.run_id, kept.generation) == (STOPPED.run_id, 2)
    assert (kept.cause, kept.failure) == (cause, failure)
    session.late.store_failed(stop(), STOPPED, ReplyFuture(), 3, failure, None)
    assert session.journal.kept["x"] == kept, "what it was first stands"


def test_no_answer_waits_longer_for_the_journal_than_its_stop_may_wait() -> None:
    session = Session()
    session.expect(stop())
    session.wait(STOP_OVERDUE_S - 0.05)
    waited, fresh = session.fail(stop()), session.fail(stop("y"))
    session.wait(0.05)
    assert answered(waited) == (False, False)
    assert not fresh.done()
    session.wait(STOP_OVERDUE_S)
    assert answered(fresh) == (False, False)


def test_what_was_kept_is_decided_when_the_session_is_read_and_what_waited_for_that_in_its_place() -> None:
    session = Session()
    session.loading = True
    session.expect(stop())
    session.expect(stop("in time"))
    session.late.on_record(stop("in time"))
    session.wait(STOP_OVERDUE_S)
    earlier = KeptStop("s", stop("y"), EPOCH - 9.0)
    assert session.late.restore([earlier]) == [earlier]
    assert session.late.entry(stop()) == KeptStop("s", stop(), EPOCH)
    assert session.late.entry(stop("y")) is None
    assert session.late.pending
    session.fail(stop())
    answered = (STOPPED.outcome, STOPPED.run_id, STOPPED.receipt_id)
    answered_now = KeptStop("s", stop(), EPOCH, *answered, waiting_too=True)
    assert session.late.restore([]) == [answered_now], "the next time it is in no stash"
    assert not session.late.pending


def test_one_that_was_decided_anew_and_is_not_stored_is_kept_as_it_first_came() -> None:
    session = Session()
    session.fail(stop())
    (first,) = session.late.restore([])
    session.wait(9.0)
    session.fail(stop())
    assert session.late.restore([]) == [first]
    assert session.journal.kept["x"] == first


def test_one_that_the_journal_has_forgotten_is_new_where_it_comes_again() -> None:
    session = Session()
    session.fail(stop())
    session.late.restore([])
    session.late.forget("x")
    session.wait(9.0)
    session.fail(stop())
    (again,) = session.late.restore([])
    assert again.at == EPOCH + 9.0


def test_one_that_an_incarnation_before_may_have_answered_is_said_to_be_durable() -> None:
    session = Session()
    session.loading = True
    session.expect(stop())
    session.wait(STOP_LATE_S)
    session.late.restore([KeptStop("s", stop(), EPOCH - 9.0)])
    assert session.late.entry(stop()) == KeptStop("s", stop(), EPOCH - 9.0)
    assert session.late.on_record(stop()) == stop()


def test_those_beyond_the_limit_are_answered_at_once_and_not_kept() -> None:
    session = Session()
    for number in range(STOPS_KEPT_MAX):
        assert not session.fail(stop(f"x{number}")).done()
    assert answered(session.fail(stop())) == (False, False)
    assert len(session.journal.kept) == STOPS_KEPT_MAX


def test_when_the_session_ends_no_answer_waits_for_the_journal() -> None:
    session = Session()
    reply = session.fail(stop())
    session.late.answer_all_held()
    assert answered(reply) == (False, False)
    assert "x" in session.journal.kept


@pytest.mark.parametrize(
    ("outcome", "fence_seq", "waiting", "too"),
    [
        (StopOutcome.STOPPED, 7, None, True),
        # A turn that waited was taken back, and nothing else was asked.
        (StopOutcome.STOPPED, None, Waiting.PARK, False),
        (StopOutcome.STOPPING, 7, Waiting.PARK, True),
        (StopOutcome.STOPPING, None, Waiting.WITHDRAW, True),
        (StopOutcome.STOPPING, 7, Waiting.KEEP, False),
        (StopOutcome.STOPPING, 7, None, False),
        (StopOutcome.ALREADY_OVER, None, Waiting.PARK, False),
    ],
)
def test_l10_an_entry_says_whether_it_was_decided_what_becomes_of_waiting_messages(
    outcome: StopOutcome, fence_seq: int | None, waiting: Waiting | None, *, too: bool
) -> None:
    asked = Stop(id="x", source="user.test", reason="enough", run_id="run-1", waiting=waiting)
    entry = late_stops._entry("s", asked, EPOCH, Stopped(outcome, "run-1", "receipt-1", fence_seq), 1)
    assert (entry.outcome, entry.waiting_too) == (outcome, too)
