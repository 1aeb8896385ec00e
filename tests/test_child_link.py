"""The parent's side of a child run: reports may come late, twice, or behind a newer one, and none is told twice."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec.structs import replace

from actors.gate.token import CancelToken
from actors.messages import ChildClosed, ChildReport, ChildStarted, ProcessEnded, ProcessNews, ProcessRemaining
from actors.model import How, PartKind, Provenance, Receipt, Row
from actors.ports import ChildSpec
from actors.protocol.child_link import ChildLink
from actors.run_status import RunStatus

STOPPED = Provenance(source="user.test", reason="wrong target")
OPEN = Row(PartKind.CALL, "deaf", started_at=1.0)


def receipt(*, complete: bool, at: float = 5.0, reaped: int = 0) -> Receipt:
    rows = () if complete else (OPEN,)
    return Receipt("rcpt_1", "run_1", 2, STOPPED, 3.0, at, complete=complete, rows=rows, reaped=reaped)


STARTED = ChildReport("run_1", RunStatus.IN_PROGRESS)
CLOSED = ChildReport("run_1", RunStatus.CANCELLING, "so far", provenance=STOPPED)
FILED = ChildReport("run_1", RunStatus.CANCELLED, "so far", provenance=STOPPED, receipt=receipt(complete=False))
AMENDED = ChildReport(
    "run_1", RunStatus.CANCELLED, "so far", provenance=STOPPED, receipt=receipt(complete=False, at=6.0)
)
FINAL = ChildReport(
    "run_1", RunStatus.CANCELLED, "so far", provenance=STOPPED, receipt=receipt(complete=True, reaped=2), final=True
)
LIFE = (STARTED, CLOSED, FILED, AMENDED, FINAL)


def link() -> ChildLink:
    spec = ChildSpec("worker", "go", "c", CancelToken(lambda callback: callback()))
    return ChildLink("run_1", "c", spec)


def kinds(news: list[ProcessNews]) -> list[type]:
    return [type(one) for one in news]


def test_each_report_brings_what_is_new_in_it() -> None:
    one = link()
    assert kinds(one.heard(STARTED, 1.0)) == [ChildStarted]
    assert kinds(one.heard(CLOSED, 2.0)) == [ChildClosed]
    assert kinds(one.heard(FILED, 5.0)) == [ProcessRemaining]
    assert kinds(one.heard(AMENDED, 6.0)) == [ProcessRemaining]
    (ended,) = one.heard(FINAL, 7.0)
    assert isinstance(ended, ProcessEnded)
    assert (ended.how, ended.proven, ended.at, ended.reaped) == (How.CANCELLED, True, 5.0, 2)
    assert one.over


@pytest.mark.parametrize("seed", range(50))
def test_reports_in_any_order_and_number_are_told_once_and_end_with_the_last(seed: int) -> None:
    drawn = random.Random(seed)
    come = [report for report in LIFE for _ in range(drawn.randint(1, 3))]
    drawn.shuffle(come)
    one, told = link(), list[ProcessNews]()
    for report in come:
        told += one.heard(report, 9.0)
    shown = kinds(told)
    assert shown.count(ChildStarted) == shown.count(ChildClosed) == shown.count(ProcessEnded) == 1
    assert shown[0] is ChildStarted
    assert shown[-1] is ProcessEnded
    assert one.over


@pytest.mark.parametrize(("first", "second"), list(itertools.product(LIFE, repeat=2)))
def test_no_report_takes_back_what_a_later_one_has_said(first: ChildReport, second: ChildReport) -> None:
    one = link()
    one.heard(first, 1.0)
    one.heard(second, 2.0)
    places = LIFE.index(first), LIFE.index(second)
    # Of two receipts of one run, neither of which is final, the one that came last counts.
    amended = sorted(places) == [LIFE.index(FILED), LIFE.index(AMENDED)]
    assert one.seen == (second if amended else LIFE[max(places)])


def test_what_was_told_is_told_anew_to_whoever_adopts_it() -> None:
    one = link()
    for report in LIFE:
        one.heard(report, 1.0)
    assert kinds(one.news(9.0)) == [ChildStarted, ChildClosed, ProcessEnded]


def test_a_child_run_that_is_refused_never_began_and_says_why() -> None:
    (ended,) = link().refuse("a run is active in the session", 1.0)
    assert isinstance(ended, ProcessEnded)
    assert (ended.how, ended.proven, ended.note) == (How.NOT_STARTED, True, "a run is active in the session")


def test_one_whose_session_was_deleted_is_gone_and_never_said_not_to_have_begun() -> None:
    one = link()
    one.heard(STARTED, 1.0)
    closed, ended = one.heard(ChildReport("run_1", None, final=True), 2.0)
    assert isinstance(closed, ChildClosed)
    assert isinstance(ended, ProcessEnded)
    assert (ended.how, ended.proven) == (How.GONE, True)


@pytest.mark.parametrize("how", [None, How.ABANDONED])
def test_what_a_receipt_named_of_one_whose_session_was_deleted_is_gone(how: How | None) -> None:
    """A session is deleted when all that can be seen of it has ended."""
    one, filed = link(), receipt(complete=False)
    filed = replace(
        filed, rows=(*(replace(row, how=how) for row in filed.rows), Row(PartKind.AGENT, "a", how=How.RAISED))
    )
    one.heard(replace(FILED, receipt=filed), 5.0)
    (ended,) = one.heard(ChildReport("run_1", None, final=True), 9.0)
    assert isinstance(ended, ProcessEnded)
    assert (ended.how, ended.proven, ended.at) == (How.CANCELLED, True, 9.0)
    assert [(row.how, row.ended_at) for row in ended.rows] == [(How.GONE, 9.0), (How.RAISED, None)]


def test_what_a_deleted_one_had_out_of_reach_stays_so() -> None:
    one, filed = link(), receipt(complete=False)
    filed = replace(filed, rows=(*filed.rows, Row(PartKind.SUBPROCESS, "orphans", how=How.OUT_OF_REACH)))
    one.heard(replace(FILED, receipt=filed), 5.0)
    (ended,) = one.heard(ChildReport("run_1", None, final=True), 9.0)
    assert isinstance(ended, ProcessEnded)
    assert ended.how is How.OUT_OF_REACH
    assert [row.how for row in ended.rows] == [How.GONE, How.OUT_OF_REACH]


def test_only_a_question_that_comes_again_says_since_when_it_has_been_asked() -> None:
    one = link()
    assert [one.wanted(at).since for at in (1.0, 2.0, 3.0)] == [None, 1.0, 1.0]


def test_what_cannot_be_seen_of_it_is_out_of_reach_for_its_parent_too() -> None:
    unseen = ChildReport("run_1", RunStatus.COMPLETED, receipt=receipt(complete=False), final=True)
    ended = link().heard(unseen, 1.0)[-1]
    assert isinstance(ended, ProcessEnded)
    assert ended.how is How.OUT_OF_REACH


def test_the_first_cause_of_its_end_stands_and_its_grace_only_shrinks() -> None:
    one, later = link(), Provenance(source="run.ended", reason="later")
    assert one.end(STOPPED, 2.0)
    assert not one.end(later, 2.0)
    assert not one.end(later, 5.0)
    assert one.end(later, 0.0)
    assert (one.stop, one.grace_s) == (STOPPED, 0.0)
    assert one.wanted(1.0).stop == STOPPED
    one.heard(FINAL, 9.0)
    assert not one.end(later, 0.0)
